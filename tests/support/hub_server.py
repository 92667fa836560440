"""A stand-in for the Hub on 127.0.0.1: repositories, commits with large files, snapshots; what its
client asks."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Hub:
    """Repositories by "models/owner/name" or "datasets/owner/name": the bytes of each file."""

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    """Uploaded, not committed yet, by SHA-256."""
    commits: list[str] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, value: Any, status: int = 200, **headers: str) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def missing(self) -> None:
        self.reply({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    @property
    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("api/"):
            _, kind, owner, name, *rest = path.split("/")
            repo = f"{kind}/{owner}/{name}"
            if repo not in self.hub.files:
                self.missing()
            elif rest[:1] == ["tree"]:
                self.reply(
                    [
                        {
                            "type": "file",
                            "path": p,
                            "size": len(c),
                            "oid": hashlib.sha1(c).hexdigest(),
                        }
                        for p, c in self.hub.files[repo].items()
                    ]
                )
            else:
                siblings = [{"rfilename": p} for p in self.hub.files[repo]]
                self.reply({"id": f"{owner}/{name}", "sha": "1" * 40, "siblings": siblings})
            return
        kind = "datasets" if path.startswith("datasets/") else "models"
        owner, name, _, _, *file = path.removeprefix("datasets/").split("/")
        content = self.hub.files.get(f"{kind}/{owner}/{name}", {}).get("/".join(file))
        if content is None:
            self.missing()
        else:
            self.reply(
                content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit="1" * 40
            )

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.body
        self.hub.large[hashlib.sha256(content).hexdigest()] = content
        self.reply(b"")

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0].strip("/"), self.body
        if not self.headers.get("Authorization"):
            self.reply({"error": "Invalid credentials"}, 401)
        elif path == "api/repos/create":
            asked = json.loads(body)
            name = (
                f"{asked['organization']}/{asked['name']}"
                if asked.get("organization")
                else asked["name"]
            )
            self.hub.files.setdefault(f"models/{name}", {".gitattributes": b""})
            private = asked.get("private") or asked.get("visibility") == "private"  # clients differ
            self.hub.private.setdefault(name, bool(private))
            self.reply({"url": f"{self.hub.address}/{name}", "name": name})
        elif path.endswith("/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.hub.address}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self.reply({"transfer": "basic", "objects": objects})
        elif path == "api/validate-yaml":  # a card's front matter
            self.reply({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {
                    "path": one["path"],
                    "shouldIgnore": False,
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                }
                for one in json.loads(body)["files"]
            ]
            self.reply({"files": files})
        elif "/commit/" in path:
            _, kind, owner, name, *_ = path.split("/")
            self.commit(self.hub.files[f"{kind}/{owner}/{name}"], body)
            url = f"{self.hub.address}/{owner}/{name}/commit/{'1' * 40}"
            self.reply({"commitUrl": url, "commitOid": "1" * 40})
        else:
            self.missing()

    def commit(self, files: dict[str, bytes], body: bytes) -> None:
        for line in body.splitlines():
            action = json.loads(line)
            value = action["value"]
            if action["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif action["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif action["key"] == "deletedFile":
                del files[value["path"]]
            else:
                self.hub.commits.append(value["summary"])


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A Hub that answers until the block ends."""
    handler = type("Own", (Handler,), {"hub": Hub()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield handler.hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
