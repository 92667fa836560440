"""Files come whole, checked by their hash, and go on where they were interrupted; from a server on
this machine."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from conftest import Command

from askew.core.errors import UserError
from askew.data.benchmarks import download as fetching
from askew.data.benchmarks.download import Remote, digit_files, fetch

CONTENT = np.random.default_rng(0).integers(0, 255, 300_000, dtype=np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; `break_after` ends the first answer early, `ranges` is whether it can go on
    in the middle."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"file.bin": CONTENT}
        self.break_after: int | None = None
        self.ranges = True
        self.asked: list[str] = []
        self.sent = 0

    def url(self, name: str = "file.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def remote(self, md5: str = MD5) -> Remote:
        return Remote("file.bin", (self.url(),), md5)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range", "")
        server.asked.append(wanted)
        content = server.files.get(self.path[1:])
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if server.break_after is not None:
            body, server.break_after = body[: server.break_after], None
            self.close_connection = True
        server.sent += len(body)
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_file_comes_whole_and_a_second_time_nothing_is_asked_for(
    server: Server, tmp_path: Path
) -> None:
    steps: list[tuple[int, int | None]] = []
    assert fetch(server.remote(), tmp_path / "new", lambda *at: steps.append(at)) == "fetched"
    assert (tmp_path / "new/file.bin").read_bytes() == CONTENT
    assert steps[-1] == (300_000, 300_000)
    assert fetch(server.remote(), tmp_path / "new") == "there"
    assert len(server.asked) == 1
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file.bin"]


def test_an_interrupted_file_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.break_after = 100_000
    with pytest.raises(
        UserError, match="the connection broke after 100,000 of 300,000 bytes"
    ) as caught:
        fetch(server.remote(), tmp_path)
    assert "100,000 bytes of it are kept" in caught.value.sentence
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin.part"], "nothing that looks finished"
    assert fetch(server.remote(), tmp_path) == "fetched"
    assert server.asked == ["", "bytes=100000-"]
    assert server.sent == 300_000, "no byte came twice"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_cannot_resume_starts_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:5_000])
    server.ranges = False
    assert fetch(server.remote(), tmp_path) == "fetched"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_put_in_place(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(server.remote(), tmp_path) == "fetched"
    assert server.sent == 0


def test_a_file_with_another_hash_is_thrown_away(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"it sent another file .*{MD5}"):
        fetch(server.remote(md5="0" * 32), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_part_of_another_file_is_thrown_away_and_the_next_try_succeeds(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "file.bin.part").write_bytes(b"x" * 1_000)
    with pytest.raises(UserError, match="another file"):
        fetch(server.remote(), tmp_path)
    assert fetch(server.remote(), tmp_path) == "fetched"


def test_the_next_address_is_tried_and_goes_on_from_what_there_is(
    server: Server, tmp_path: Path
) -> None:
    server.break_after = 100_000
    remote = Remote("file.bin", (server.url("no such file"[:2]), server.url(), server.url()), MD5)
    assert fetch(remote, tmp_path) == "fetched"
    assert server.asked == ["", "", "bytes=100000-"]


def test_an_address_that_does_not_answer_is_named(tmp_path: Path) -> None:
    closed = Server()
    url = closed.url()
    closed.server_close()
    with pytest.raises(UserError, match=url):
        fetch(Remote("file.bin", (url,), MD5), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_same_name_is_never_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"mine")
    with pytest.raises(UserError, match="is there already"):
        fetch(server.remote(), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"mine"


def test_addresses_and_hashes_are_torchvision_s() -> None:
    files = {
        remote.name: remote for name in ("mnist", "usps", "svhn") for remote in digit_files(name)
    }
    assert len(files) == 4 + 2 + 1
    assert all(len(remote.md5) == 32 and remote.urls for remote in files.values())
    assert all(url.endswith(remote.name) for remote in files.values() for url in remote.urls)
    assert "train_32x32.mat" in files


def test_the_command_fetches_what_the_readers_read(
    cli: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def idx(x: np.ndarray) -> bytes:
        return gzip.compress(
            bytes((0, 0, 8, x.ndim)) + np.array(x.shape, ">u4").tobytes() + x.tobytes()
        )

    x, y = np.zeros((10, 28, 28), np.uint8), np.arange(10, dtype=np.uint8)
    server.files = {"t10k-images-idx3-ubyte.gz": idx(x), "t10k-labels-idx1-ubyte.gz": idx(y)}
    remotes = tuple(
        Remote(n, (server.url(n),), hashlib.md5(c).hexdigest()) for n, c in server.files.items()
    )
    monkeypatch.setattr(fetching, "digit_files", lambda name: remotes)
    answer = cli("data", "fetch", "mnist", "--data", tmp_path / "fresh", "--json")
    assert answer.code == 0, answer.err
    assert [file["state"] for file in json.loads(answer.out)] == ["fetched", "fetched"]
    assert answer.err == "", "no bars in a pipe"
    again = cli("data", "fetch", "mnist", "--data", tmp_path / "fresh")
    assert again.out.count("was there") == 2
    checked = json.loads(cli("data", "check", "mnist", "--data", tmp_path / "fresh", "--json").out)
    assert {part["name"]: part["found"] for part in checked[0]["parts"]} == {"train": 0, "test": 10}


# --- mirrors that misbehave ---


class Odd(BaseHTTPRequestHandler):
    """A mirror that answers with nonsense headers."""

    headers_to_send: tuple[tuple[str, str], ...] = ()
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        for name, value in self.headers_to_send:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"nonsense")

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(
    ("status", "header"),
    [
        (200, ("Content-Length", "many")),
        (200, ("Content-Length", "-7")),
        (200, ("Content-Length", "1e3")),
        (302, ("Location", "http://[half/")),
        (302, ("Location", "nonsense://x/")),
        (302, ("Location", f"http://{'x' * 300}/")),
        (302, ("Location", "/again")),
    ],
)
def test_a_mirror_that_answers_with_nonsense_is_followed_by_the_next(
    server: Server, tmp_path: Path, status: int, header: tuple[str, str]
) -> None:
    kind = type("Odd", (Odd,), {"headers_to_send": (header,), "status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as odd:
        thread = threading.Thread(target=odd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        urls = (f"http://127.0.0.1:{odd.server_port}/file.bin", server.url())
        assert fetch(Remote("file.bin", urls, MD5), tmp_path) == "fetched"
        odd.shutdown()
        thread.join()
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_server_that_cannot_be_reached_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be fetched"):
        fetch(
            Remote("file.bin", ("http://127.0.0.1:9/file.bin",), MD5), tmp_path / "data" / "digits"
        )
    assert list(tmp_path.iterdir()) == []
