"""NVIDIA's MPS, which lets several processes compute on one GPU at the same time instead of taking
turns."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 20.0
"""Most seconds to wait for an answer of the control program."""


class Mps:
    """A control daemon of our own, in a folder of its own, so that whoever else uses the GPU has
    nothing to do with it.

    None is started where the program is missing or somebody's daemon runs already, which workers
    then find themselves.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.note = note
        self.folder: Path | None = None
        self.tried = False

    def start(self) -> None:
        """Start the daemon, once; a note says so, or why it could not be started."""
        if self.tried:
            return
        self.tried = True
        if shutil.which(CONTROL) is None or not _control("get_server_list\n"):
            return
        self.folder = Path(tempfile.mkdtemp(prefix="askew-mps-"))
        if problem := _control("", "-d", environment=self._own()):
            self._remove()
            self.note(
                f"NVIDIA's MPS could not be started, so processes take turns on the GPU: {problem}."
            )
        else:
            self.note(
                "NVIDIA's MPS was started, for processes to share the GPU, and is stopped at the "
                "end (or: --no-mps)."
            )

    def stop(self) -> None:
        """Stop the daemon that `start` started, if any."""
        if self.folder is not None:
            _control("quit\n", environment=self._own())
            self._remove()

    def _remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Processes that are started meanwhile use the daemon; this one, which may outlive it, does
        not."""
        own = {} if self.folder is None else self._own()
        before = {name: os.environ[name] for name in own if name in os.environ}
        os.environ.update(own)
        try:
            yield
        finally:
            for name in own:
                del os.environ[name]
            os.environ.update(before)

    def _own(self) -> dict[str, str]:
        return {PIPES: str(self.folder), LOGS: str(self.folder)}


def _control(say: str, *args: str, environment: Mapping[str, str] | None = None) -> str:
    """Call the control program; what is wrong, empty if it did as it was told."""
    # The daemon is to see all GPUs: among those that it sees, workers count theirs anew.
    inherited = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
    }
    with (
        tempfile.TemporaryFile() as answer
    ):  # a pipe would be held open by the daemon, and waited for
        try:
            done = subprocess.run(
                [CONTROL, *args],
                input=say.encode(),
                env=inherited | dict(environment or {}),
                stdout=answer,
                stderr=answer,
                timeout=PATIENCE,
                start_new_session=True,  # Ctrl-C is not for the daemon: workers end before it does
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        answer.seek(0)
        reason = answer.read(1000).decode(errors="replace").strip().partition("\n")[0].rstrip(".")
    return "" if done.returncode == 0 else reason or f"exit code {done.returncode}"
