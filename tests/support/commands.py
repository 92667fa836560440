"""Commands to try, and what they left: a run that takes a second, every file of a folder, and a
refusal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from conftest import TINY, Answer, Command

RUN = ("run", "mini/syn-uci", *TINY)


def files(folder: Path) -> dict[str, int]:
    """Every file with the time it was last written."""
    return {
        str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()
    }


def assert_refused(answer: Answer, what: str = "") -> None:
    """One sentence, a blank line, a hint; exit code 2, nothing on stdout."""
    assert answer.code == 2, (what, answer)
    assert answer.out == "", (what, answer)
    assert re.fullmatch(r"[^\n]+\.\n\nhint: [^\n]+\n", answer.err), answer.err


def assert_refuses(cli: Command, folder: Path, command: Iterable[object], sentence: str) -> None:
    """The same for a command, with how its sentence begins; and the folder that it ran in stays
    empty."""
    answer = cli(*command)
    assert_refused(answer)
    assert answer.err.startswith(sentence), answer.err
    assert list(folder.iterdir()) == []
