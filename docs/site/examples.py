"""Griffe's view of our docstrings: examples stand in a block of code, where a reader of the site
expects them."""

from __future__ import annotations

from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring whose paragraphs of examples are blocks of code."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        f"```pycon\n{p.strip()}\n```" if p.lstrip().startswith(">>> ") else p for p in paragraphs
    )


class Examples(griffe.Extension):
    """Rewrites every docstring that was found."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
