"""Names that strangers chose, made harmless for a terminal and for a spreadsheet; no two names
become the same."""

from __future__ import annotations

import re

# Control characters, those that turn the direction of text, and halves of characters; and a
# backslash that would otherwise be taken for one of the escapes that are written here.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    r"|\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})"
)
# Spreadsheets take full-width signs for the usual ones.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_IN_JSON = re.compile(_UNSAFE.pattern.partition("|")[0].replace(r"\x00-\x1f", ""))


def visible(text: str, keep: str = "\n\t") -> str:
    """Text for a terminal: what could control it is shown as \\x1b or \\u202e, but for what to
    `keep`."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def visible_json(text: str) -> str:
    """The same for JSON, which has escapes of its own and already used those for characters below a
    space."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def csv_cell(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: one that begins like one gets an
    apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv_cell(cell: str) -> str:
    """The text that `csv_cell` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
