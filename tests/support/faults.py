"""Commands whose writing fails, or which are killed, at a step of one's choice.

A process that has imported everything forks for each command, so that a thousand of them take
minutes. In the fork, what writes to the disk below a folder goes through a shim, which counts the
steps: files created, written, flushed, renamed, removed. Libraries that write from C++ are counted
where we create and flush their file.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STUCK = 300
"""Seconds after which a command that does not end is stopped."""

SLOW = {
    "adapt": ("sklearn.linear_model", "sklearn.model_selection"),
    "embed": ("torchvision.models",),
    "export": ("torch.export._trace", "onnxruntime", "onnxscript.function_libs.torch_lib.ops"),
}
"""What only some commands import, before they are forked."""
UNUSED = ("__main__", "estimator", "figures", "task_figures")
"""Modules that none of them imports; two of these bring scikit-learn and matplotlib."""


@dataclass(frozen=True)
class Fault:
    """What happens at which step."""

    kind: str = "none"
    """none; kill, error or errors at a step (the last: at all after it, too); after: killed at a
    time; size: no file can be larger, by a limit of the system, which C++ runs into as well."""
    at: int = 0
    """The step, from 1 on; or milliseconds, or bytes."""
    errno: int = 0


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), what it printed,
    and its steps."""

    code: int
    out: str
    err: str
    steps: list[str]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def crashed(self) -> bool:
        """Whether it ended in a traceback, or had to be stopped because it was stuck."""
        return "Traceback" in self.err or self.code not in (0, 2, -signal.SIGKILL)


class Commands:
    """A process that runs commands in forks of itself."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=pipe, stdout=pipe, text=True
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)  # which closes both pipes

    def run(self, command: Sequence[object], folder: Path, fault: Fault = Fault()) -> Ended:  # noqa: B008
        """Run a command line of askew's in a folder, below which all writing is watched."""
        assert self._process.stdin
        assert self._process.stdout
        words = [str(word) for word in command]
        modules = (
            () if "safetensors" in words else SLOW.get(words[0], ())
        )  # tensors alone need no exporter
        order = {
            "command": words,
            "folder": str(folder),
            "fault": asdict(fault),
            "modules": modules,
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))


# --- in the process that forks ---


def serve() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _import_all()
    for line in sys.stdin:
        order = json.loads(line)
        for name in order["modules"]:
            importlib.import_module(name)
        gc.freeze()  # a fork looks for garbage, and copies memory, only in what is its own
        answers.write(json.dumps(_forked(order)) + "\n")
        answers.flush()


def _import_all() -> None:
    """What commands import when they are called; nothing may compute here, since autograd does not
    survive a fork."""
    import pkgutil

    import askew

    for module in pkgutil.walk_packages(askew.__path__, "askew."):
        if module.name.rpartition(".")[2] not in UNUSED:
            importlib.import_module(module.name)
    # Typer reads options with pydantic's; a run is scored with SciPy.
    for name in (
        "pyarrow.parquet",
        "pydantic.type_adapter",
        "pydantic.fields",
        "safetensors.torch",
        "scipy.optimize",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    from askew.adaptation import report
    from askew.evaluation import diagnosis, metrics, priors, verdict
    from askew.runs import claims

    claims.BEAT = 3600.0  # a heartbeat is a write at a time that nobody can foresee
    # What takes long and writes nothing.
    metrics.RESAMPLES = 20
    report._embed = lambda features: [(0.0, 0.0)] * len(features)
    estimates = (priors.estimate_prior, priors.estimate_priors)
    for estimate in (*estimates, diagnosis.diagnose, verdict.judge_transfers):
        estimate.__kwdefaults__["resamples"] = 5


def _forked(order: dict[str, Any]) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _run(order, write)
    os.close(write)
    fault = Fault(**order["fault"])
    timer = threading.Timer(fault.at / 1000, os.kill, (child, signal.SIGKILL))
    if fault.kind == "after":
        timer.start()
    with os.fdopen(read) as steps:
        lines = steps.read().splitlines()
    timer.cancel()
    timer.join() if timer.is_alive() else None
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    log = Path(order["folder"] + ".log")
    return {"code": code, "out": _text(f"{log}.out"), "err": _text(f"{log}.err"), "steps": lines}


def _text(file: str) -> str:
    return Path(file).read_text(errors="replace")


def _run(order: dict[str, Any], steps: int) -> None:
    """The command, in a fork; never returns."""
    code = 99
    try:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(
                os.open(f"{order['folder']}.log.{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY),
                stream,
            )
        os.chdir(order["folder"])
        if order["command"][0] == "embed":
            os.environ["ASKEW_CACHE"] = (
                f"{order['folder']}/cache"  # so that its writing is watched, too
            )
        sys.argv = ["askew", *order["command"]]
        fault = Fault(**order["fault"])
        signal.alarm(STUCK)
        if fault.kind == "size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.at, fault.at))
        Shim(Path(order["folder"]), fault, steps).install()
        from askew.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# --- the shim ---


class Shim:
    """Counts every step of writing below a folder, and lets one of them fail."""

    def __init__(self, folder: Path, fault: Fault, log: int) -> None:
        self.folder, self.fault, self.log = f"{folder}{os.sep}", fault, log
        self.number, self.lock, self.write = itertools.count(1), threading.Lock(), os.write

    def watches(self, path: Any) -> bool:
        if isinstance(path, int):
            with contextlib.suppress(OSError):
                return str(Path(f"/proc/self/fd/{path}").readlink()).startswith(self.folder)
            return False
        return str(Path.cwd() / os.fsdecode(path)).startswith(self.folder)

    def step(self, what: str, path: Any, torn: Callable[[], object] = lambda: None) -> None:
        """Called before a step; `torn` does half of it before the process is killed or the disk
        fails."""
        with self.lock:
            number = next(self.number)
            self.write(
                self.log,
                f"{what} {Path(os.fsdecode(path)).name if not isinstance(path, int) else ''}\n".encode(),
            )
        kind, at = self.fault.kind, self.fault.at
        if kind == "kill" and number == at:
            torn()
            os.kill(os.getpid(), signal.SIGKILL)
        if (kind == "error" and number == at) or (kind == "errors" and number >= at):
            torn()
            name = None if isinstance(path, int) else os.fsdecode(path)
            raise OSError(self.fault.errno, os.strerror(self.fault.errno), name)

    def install(self) -> None:
        for name in (
            "replace",
            "rename",
            "unlink",
            "remove",
            "rmdir",
            "mkdir",
            "truncate",
            "ftruncate",
            "fsync",
        ):
            setattr(os, name, self._stepping(name, getattr(os, name)))
        # type: ignore[assignment]
        os.open = self._stepping("create", os.open, lambda flags=0, *_: flags & os.O_CREAT)
        os.write = self._stepping("write", os.write)  # type: ignore[assignment]
        io.open = builtins.open = self._opening(io.open)  # type: ignore[assignment]

    def _stepping(self, name: str, call: Any, counts: Callable[..., Any] = lambda *_: True) -> Any:
        def stepping(path: Any, *args: Any, **more: Any) -> Any:
            if not more.get("dir_fd") and self.watches(path) and counts(*args):
                self.step(name, path)
            return call(path, *args, **more)

        return stepping

    def _opening(self, plain: Any) -> Any:
        shim = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                half = bytes(data)[: len(data) // 2]
                shim.step("write", self.name, lambda: super(Raw, self).write(half))
                return super().write(data)

        def opening(
            file: Any, mode: str = "r", buffering: int = -1, *args: Any, **more: Any
        ) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+") or not shim.watches(file):
                return plain(file, mode, buffering, *args, **more)
            if not more.get("opener"):
                shim.step("open", file)
            raw = Raw(
                os.fspath(file),
                mode.replace("b", "").replace("t", ""),
                opener=more.pop("opener", None),
            )
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **more)

        return opening


if __name__ == "__main__":
    serve()
