"""Whatever a stranger's file holds, its reader gives a value or one sentence with a hint, and
nothing else.

A few hundred files in `make test`, ten thousand in `make soak`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import socket
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from many_runs import make_runs
from mutations import mutated, mutated_json
from PIL import Image
from safetensors.numpy import save
from small_models import card, predictor

from askew.adaptation.artifacts import earlier_request, request_as_json
from askew.adaptation.audit import audit
from askew.adaptation.request import AdaptRequest, read_shares, read_truth
from askew.core.errors import UserError
from askew.core.files import digest, read_tensors
from askew.data.array_files import read_array
from askew.data.benchmarks import download
from askew.data.benchmarks.download import Remote, fetch
from askew.data.benchmarks.split_lists import read_list
from askew.data.image_lists import read_listing
from askew.data.row_cache import RowCache
from askew.inference.predictor import Predictor, load
from askew.nets.starting_weights import load_weights
from askew.reports.results import collect
from askew.runs.claims import holder_of
from askew.runs.config import RunRequest, read_settings
from askew.runs.grid import read_grid
from askew.runs.root import finished_runs
from askew.runs.status import read_status
from askew.runs.store import RunFolder

FILES = int(os.environ.get("ASKEW_TEST_FILES", "10000"))
"""How many files the soak test reads in all; a server answers as often as there are files of a
kind."""
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "adaptation"


@dataclass(frozen=True)
class Target:
    """A reader, and files to start from by the name that each is given."""

    read: Callable[[Path], object]
    good: dict[str, bytes] | Callable[[Path], dict[str, bytes]]
    """By name, or from a function that makes a folder of them."""
    json: bool = False


def npz(save_to: Callable[..., None]) -> bytes:
    file = BytesIO()
    save_to(file, x=np.arange(48, dtype=np.uint8).reshape(3, 4, 4), y=np.array(["a", "b", "c"]))
    return file.getvalue()


def npy() -> bytes:
    file = BytesIO()
    np.save(file, np.ones((3, 4), np.float32))
    return file.getvalue()


def png() -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, "PNG")
    return file.getvalue()


def read_runs(file: Path) -> None:
    """Also as if the file had been like that when the run was finished: a stranger writes hashes
    that are right."""
    root, done = file.parents[1], file.parent / "done"
    for honest in (True, False):
        before = done.read_bytes()
        if not honest and file != done:
            manifest = json.loads(before.partition(b"\n")[2])
            manifest["files"][file.name] = [file.stat().st_size, digest(file.read_bytes())]
            done.write_bytes(signed(b"\n" + json.dumps({"files": manifest["files"]}).encode()))
        try:
            read_status(root, check=True)
            holder_of(file.parent)
            with contextlib.suppress(UserError):
                RunFolder(file.parent).trace()
            with contextlib.suppress(UserError):
                collect(finished_runs(root))
        finally:
            if file != done:
                done.write_bytes(before)


def a_run(folder: Path) -> dict[str, bytes]:
    """A folder with one finished run, and those of its files that are mutated."""
    (run,) = (path for path in make_runs(folder / "runs", 1, classes=2).iterdir() if path.is_dir())
    (run / "claim.1").write_text(json.dumps(CLAIM))
    names = ("run.json", "scores.json", "trace.jsonl", "claim.1", "done")
    return {str((run / name).relative_to(folder)): (run / name).read_bytes() for name in names}


def signed(content: bytes) -> bytes:
    """A `done` whose own hash is right, as a stranger would write it."""
    body = content.partition(b"\n")[2]
    return digest(body).encode() + b"\n" + body


@functools.cache
def of_pictures() -> Predictor:
    return predictor("mini", (3, 32, 32))


@functools.cache
def a_network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(4, 2))


def adapted(folder: Path) -> Path:
    """A copy of an adaptation with the part of its summary that is read, also by `choose`, and
    labels of its target."""
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)
    whole = json.loads((folder / "summary.json").read_bytes())
    summary = {name: whole[name] for name in ("classes", "saved", "target_shares", "methods")}
    summary["request"] = request_as_json(
        AdaptRequest(source=Path("source.npz"), target=Path("target.npz"), methods=("coal",))
    )
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "labels.csv").write_text("path,label\n0,ash\n1,birch\n2,cedar\n")
    return folder


def an_adaptation(folder: Path) -> dict[str, bytes]:
    return {"summary.json": (adapted(folder) / "summary.json").read_bytes()}


def tables_of_an_adaptation(folder: Path) -> dict[str, bytes]:
    adapted(folder)
    return {name: (folder / name).read_bytes() for name in ("predictions.csv", "labels.csv")}


def audit_of(file: Path) -> object:
    with contextlib.suppress(UserError):
        earlier_request(file.parent).check()
    return audit(file.parent, file.parent / "labels.csv").as_dict()


def embeddings(folder: Path) -> dict[str, bytes]:
    cache = RowCache(folder)
    cache.add([(1, 0), (2, 0)], np.ones((2, 3), np.float32))
    cache.flush()
    (file,) = folder.glob("*.safetensors")
    return {file.name: file.read_bytes()}


CLAIM = {
    "id": "a",
    "machine": "m",
    "host": "h",
    "pid": 1,
    "beat": 1,
    "label": "l",
    "step": 1,
    "steps": 2,
}
CARD = json.dumps(predictor().card.as_json() | {"weights": "0" * 64}).encode()
ON_BACKBONE = json.dumps(card("resnet18+mlp", (3, 32, 32)).as_json() | {"weights": ""}).encode()
TENSORS = save({"0.weight": np.ones((2, 4), np.float32), "0.bias": np.ones(2, np.float32)})

TARGETS = {
    "lists": Target(
        read_listing,
        {
            "list.csv": b"path,label\na.png,cat\n'b c.png',dog\n\"d,e.png\",owl\n",
            "list.tsv": b"a.png\tcat\nb.png\tdog\n",
            "list.txt": b"a.png cat\nb.png dog\n",
        },
    ),
    "published lists": Target(
        read_list, {"list.txt": b"Clipart/Alarm_Clock/00052.jpg 0\nReal World/Bike/1.jpg 12\n"}
    ),
    "arrays": Target(
        read_array,
        {"a.npy": npy(), "a.npz": npz(np.savez), "compressed.npz": npz(np.savez_compressed)},
    ),
    "grids": Target(
        lambda file: read_grid(file).requests(RunRequest(task="", method="")),
        {p.name: p.read_bytes() for p in (ROOT / "benchmarks" / "grids").glob("*.toml")},
    ),
    "settings": Target(
        lambda file: read_settings("mini", file),
        {
            p.name: p.read_bytes()
            for p in (ROOT / "src" / "askew" / "runs" / "settings").glob("*.toml")
        },
    ),
    "runs": Target(read_runs, a_run),
    "model cards": Target(lambda file: load(file.parent, "cpu"), {"model.json": CARD}, json=True),
    "cards of backbones": Target(
        lambda file: load(file.parent, "cpu"), {"model.json": ON_BACKBONE}, json=True
    ),
    "tensors": Target(
        read_tensors,
        {"t.safetensors": (GOLDEN / "runs/bbc70468030b2787/outputs.safetensors").read_bytes()},
    ),
    "weights": Target(
        lambda file: load_weights(a_network(), file, "network"), {"w.safetensors": TENSORS}
    ),
    "shares of classes": Target(
        lambda file: read_shares(file, ("ash", "birch")),
        {"a.csv": b"class,share\nash,0.25\nbirch,0.75\n", "a.json": b'{"ash": 1, "birch": 3}'},
    ),
    "labels": Target(
        lambda file: read_truth(file, ["0", "a/1.png"], ["ash", "birch"]),
        {"a.csv": b"path,label\n0,ash\na/1.png,birch\n", "a.npz": npz(np.savez)},
    ),
    "summaries": Target(audit_of, an_adaptation, json=True),
    "adaptations": Target(audit_of, tables_of_an_adaptation),
    "embeddings": Target(lambda file: RowCache(file.parent).find([(1, 0), (2, 0)]), embeddings),
    "pictures": Target(
        lambda file: of_pictures().logits([file]),
        {"a.png": png(), "a.jpg": png(), "b.gif": b"GIF89a" + bytes(40)},
    ),
}


def fuzz(target: Target, folder: Path, examples: int) -> Counter[str]:
    """Read so many files like the good ones; only a UserError may come out. How many were read and
    refused."""
    mutate = mutated_json if target.json else mutated
    files = target.good(folder) if callable(target.good) else target.good
    contents = st.one_of(
        [st.tuples(st.just(name), mutate(good)) for name, good in sorted(files.items())]
    )
    ends = Counter[str]()

    @settings(max_examples=examples, database=None)
    @given(contents)
    def one(content: tuple[str, bytes]) -> None:
        file = folder / content[0]
        file.write_bytes(signed(content[1]) if file.name == "done" else content[1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                target.read(file)
                ends["read"] += 1
            except UserError:
                ends["refused"] += 1
        file.write_bytes(files[content[0]])

    one()
    return ends


@pytest.mark.parametrize("name", TARGETS)
def test_a_stranger_s_file_is_read_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    fuzz(TARGETS[name], tmp_path, 30)


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_ten_thousand_strangers_files_are_read_or_refused_in_a_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = fuzz(TARGETS[name], tmp_path, FILES // len(TARGETS))
    with capsys.disabled():
        print(
            f"\n{name}: {ends.total()} files, {ends['read']} read, {ends['refused']} refused, 0 "
            "tracebacks"
        )


# --- servers ---

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/5\r\nContent-Type: text/plain\r\n"
    b"Location: http://127.0.0.1:1/x\r\nTransfer-Encoding: identity\r\n\r\nhello"
)
REDIRECT = ANSWER.replace(b"200 OK", b"302 Found")
PARTIAL = ANSWER.replace(b"200 OK", b"206 Partial Content")


class AnyServer:
    """Answers every request with the same bytes, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(self.answer)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnyServer]:
    monkeypatch.setattr(download, "_TIMEOUT", 2.0)
    monkeypatch.setenv("no_proxy", "*")
    server = AnyServer()
    yield server
    server.socket.close()


def fuzz_answers(server: AnyServer, folder: Path, examples: int) -> int:
    """Fetch a file from a server that answers in so many ways; how many were refused, which is
    all."""
    refused = itertools.count()

    @settings(max_examples=examples, database=None)
    @given(st.sampled_from([ANSWER, REDIRECT, PARTIAL]).flatmap(mutated))
    def one(answer: bytes) -> None:
        server.answer = answer
        remote = Remote(
            "file", tuple(f"http://127.0.0.1:{server.port}/{i}" for i in range(2)), "0" * 32
        )
        with pytest.raises(UserError, match="could not be fetched"):
            fetch(remote, folder)
        shutil.rmtree(folder, ignore_errors=True)
        next(refused)

    one()
    return next(refused)


def test_a_server_s_answer_is_refused_in_a_sentence(server: AnyServer, tmp_path: Path) -> None:
    fuzz_answers(server, tmp_path / "data", 30)


@pytest.mark.soak
def test_hundreds_of_answers_of_servers_are_refused_in_a_sentence(
    server: AnyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = fuzz_answers(server, tmp_path / "data", FILES // len(TARGETS))
    with capsys.disabled():
        print(f"\nservers: {refused} answers, all refused, 0 tracebacks")
