"""Mistakes that a user can correct: one sentence that says what was found, and a hint."""

from __future__ import annotations

import difflib
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
        """The error whose `str` is this text: errors travel between processes, and into files, as text."""
        sentence, _, hint = text.partition(_HINT)
        return cls(sentence, hint)


class EmptyClassWarning(UserWarning):
    """A class of the task has no image to learn from."""


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
