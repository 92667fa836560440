"""Fields of dataclasses as options: help texts, hard limits, search ranges, and parsing
`name=value`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import operator
import textwrap
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.core.errors import UserError, unknown


@dataclass(frozen=True)
class Between:
    """Hard limits of an option, ends included.

    >>> 0.5 in askew.methods.Between(0, 1)
    True
    """

    low: float
    high: float = float("inf")
    reason: str = ""
    """Why there is an upper limit, where that is not plain."""

    def __str__(self) -> str:
        low, high = (
            f"{end:,}" if isinstance(end, int) else f"{end:g}" for end in (self.low, self.high)
        )
        return f"at least {low}" if self.high == float("inf") else f"between {low} and {high}"

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True)
class Search:
    """The range that tuning searches; in log scale where `log`.

    >>> print(askew.methods.Search(0.01, 1, log=True))
    0.01 … 1 (log)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"no range to search: {self}")

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g}{' (log)' if self.log else ''}"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of a dataclass of settings, as a user sees it."""

    name: str
    type: Any
    default: Any
    help: str
    limits: Between | None
    search: Search | None


def options(cls: type) -> dict[str, Option]:
    """The options of a dataclass: its fields, each explained by the string that follows it in the
    source."""
    return _options(cls)


@functools.cache
def _options(cls: type) -> dict[str, Option]:
    hints = typing.get_type_hints(cls, include_extras=True)
    helps: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            helps.update(_field_docs(base))
    found = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        extras: tuple[Any, ...] = ()
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras_list = typing.get_args(hint)
            extras = tuple(extras_list)
        default = None if field.default is dataclasses.MISSING else field.default
        limits = next((e for e in extras if isinstance(e, Between)), None)
        search = next((e for e in extras if isinstance(e, Search)), None)
        found[field.name] = Option(
            name=field.name,
            type=hint,
            default=default,
            help=helps.get(field.name, ""),
            limits=limits,
            search=search,
        )
    return found


@functools.cache
def _field_docs(cls: type) -> dict[str, str]:
    """The string below each field; none where the source cannot be had: in `python -`, or in a
    notebook."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    body = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = " ".join(after.value.value.split())
    return docs


def _is_union(kind: Any) -> bool:
    # `int | str` and `Literal[…] | int` are of two different classes in Python 3.11
    return isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union


def type_name(kind: Any) -> str:
    """`float`, `'a' or 'b'`, …: a type as an error message names it."""
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(repr(a) for a in typing.get_args(kind))
    if _is_union(kind):
        return " or ".join(type_name(a) for a in typing.get_args(kind) if a is not type(None))
    return {float: "a number", int: "a whole number", bool: "true or false", str: "text"}.get(
        kind, str(kind)
    )


def _convert(kind: Any, value: Any) -> Any:  # noqa: C901
    """The value as that type; ValueError if it is not one."""
    if _is_union(kind):
        # None first: text would take the word "none" for itself
        for choice in sorted(typing.get_args(kind), key=lambda choice: choice is not type(None)):
            try:
                return _convert(choice, value)
            except (ValueError, TypeError):
                continue
        raise ValueError
    if typing.get_origin(kind) is typing.Literal:
        for choice in typing.get_args(kind):
            if str(value) == str(choice):
                return choice
        raise ValueError
    if kind is type(None):
        if value is None or value in ("", "none"):
            return None
        raise ValueError
    if kind is bool:
        return _truth(value)
    if isinstance(value, bool):
        raise ValueError
    if kind is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    return kind(value)


def _truth(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True}
    words |= {"false": False, "no": False, "off": False, "0": False}
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def checked(cls: type, values: dict[str, Any], what: str) -> dict[str, Any]:
    """The values as the types of `cls`'s fields, within their limits; UserError otherwise."""
    known = options(cls)
    out = {}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"option of {what}", name, known)
        option = known[name]
        hint = option.help or f"the default is {option.default}."
        try:
            out[name] = _convert(option.type, value)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"The option '{name}' of {what} must be {type_name(option.type)}, found '{value}'.",
                hint,
            ) from None
        limits, number = option.limits, out[name]
        if limits and isinstance(number, int | float) and number not in limits:
            reason = f" {limits.reason}" if limits.reason and number > limits.high else ""
            raise UserError(
                f"The option '{name}' of {what} must be {limits}, found {value}.", f"{hint}{reason}"
            )
    return out


def parse(pairs: Iterable[str], what: str, example: str) -> dict[str, str]:
    """`["alpha=0.1", …]` as a dictionary of strings."""
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"An option of {what} reads name=value, found '{pair}'.", f"for example: {example}"
            )
        out[name.strip().replace("-", "_")] = value.strip()
    return out


def text(name: str, value: Any) -> str:
    """A text argument; UserError if it is something else."""
    if not isinstance(value, str):
        raise UserError(f"The {name} must be text, found {shown(value)}.", f"{name}='…'.")
    return value


def path(name: str, value: Any) -> Path:
    """A path argument; UserError if it is something else, or empty."""
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(
            f"The {name} must be a path, found {shown(value)}.", "a text, or a pathlib.Path."
        )
    return Path(value)


def shown(value: Any) -> str:
    """A value of the wrong type, short enough for a message."""
    kind = type(value).__name__
    plain = isinstance(value, str | int | float | bytes | None) and len(repr(value)) < 80
    return f"{value!r} ({kind})" if plain else f"a {kind}"


def whole_number(name: str, value: Any) -> int:
    """A seed or a draw as an int from 0 on; UserError if it is none."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UserError(
            f"The {name} must be a whole number, found {value!r}.", f"for example {name}=0."
        )
    if not 0 <= number < 2**63:
        limit = "0 or more" if number < 0 else "less than 2⁶³"
        raise UserError(f"The {name} must be {limit}, found {number}.", f"for example {name}=0.")
    return number
