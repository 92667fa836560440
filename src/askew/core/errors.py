"""Mistakes that a user can correct: one sentence that says what was found, and a hint."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import warnings
from collections.abc import Iterable

from askew.core.text import visible

_HINT = "\n\nhint: "


class UserError(Exception):
    """A mistake that the user can correct: one sentence that says what was found, and a hint.

    >>> askew.UserError("It is dark.", "open a window.").hint
    'open a window.'
    """

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(sentence, hint)
        self.sentence = sentence
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.sentence}{_HINT}{self.hint}" if self.hint else self.sentence

    @classmethod
    def from_text(cls, text: str) -> UserError:
        """The error whose `str` is this text: errors travel between processes, and into files, as
        text."""
        sentence, _, hint = text.partition(_HINT)
        return cls(sentence, hint)


_REMEDIES = {
    errno.ENAMETOOLONG: "a name may have 255 bytes; choose a shorter one.",
    errno.ELOOP: "a link there leads back to itself; remove it.",
    errno.EACCES: "see that you may read and write there.",
    errno.EPERM: "see that you may read and write there.",
    errno.EROFS: "the disk is read-only; choose another place.",
    errno.ENOSPC: "free some room, then start the same command again.",
    errno.EDQUOT: "free some room, then start the same command again.",
    errno.EMFILE: "too many files are open at a time; raise the limit with `ulimit -n`.",
    errno.ENOMEM: "use fewer --jobs, or a smaller batch.",
}


def from_os_error(error: OSError) -> UserError:
    """What the system refused, with the path that it is about."""
    names = [
        os.fsdecode(name)
        for name in (error.filename, error.filename2)
        if isinstance(name, str | bytes)
    ]
    shown = " and ".join(name if len(name) <= 80 else f"{name[:77]}…" for name in names)
    reason = (error.strerror or str(error) or type(error).__name__).rstrip(".")
    sentence = f"Cannot use {shown}: {reason}." if shown else f"The system refused: {reason}."
    hint = _REMEDIES.get(
        error.errno or 0,
        "see that what the command names is there and can be used; then start it again.",
    )
    return UserError(sentence.replace("\n", " "), hint)


class EmptyClassWarning(UserWarning):
    """A class of the task has no image to learn from."""


class SimilarClassesWarning(UserWarning):
    """Classes have names that may be meant as one."""


def unknown(kind: str, name: str, known: Iterable[str], listing: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if not near:  # "usps-mnist" should find "digits/usps-mnist"
        near = [n for n in names if name and name in n][:1]
    listed = ", ".join(names[:20]) + (f" … ({len(names)} in all)" if len(names) > 20 else "")
    known_names = f"known: {listed}." if names else "there is none."
    hint = f"did you mean '{near[0]}'?" if near else known_names
    return UserError(f"There is no {kind} '{name}'.", f"{hint} {listing}".strip())


def warn_plainly() -> None:
    """Print warnings as one line, without the file and line that raised them."""

    def show(message: Warning | str, *rest: object, **more: object) -> None:
        print(visible(f"warning: {message}"), file=sys.stderr)

    warnings.showwarning = show
