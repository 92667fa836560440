"""Files that are almost right: a good one with bytes changed, cut, doubled or put in; and values of
the wrong kind."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\ud800",
    "\x1b[2J",
    "../../x",
    "x" * 300,
    [],
    {},
    [[]],
    {"a": None},
    "nan",
]

edits = st.tuples(
    st.sampled_from(["set", "cut", "double", "insert", "end"]),
    st.floats(0, 1),
    st.binary(min_size=1, max_size=6),
)


def mutated(good: bytes) -> st.SearchStrategy[bytes]:
    """Some bytes like these."""

    def apply(steps: list[tuple[str, float, bytes]]) -> bytes:
        content = good
        for kind, share, new in steps:
            at = int(share * len(content))
            match kind:
                case "set":
                    content = content[:at] + new + content[at + len(new) :]
                case "cut":
                    content = content[:at] + content[at + 4 * len(new) :]
                case "double":
                    content = content[:at] + content[at : at + 64] * 2 + content[at + 64 :]
                case "insert":
                    content = content[:at] + new + content[at:]
                case _:
                    content = content[:at]
        return content

    return st.lists(edits, min_size=1, max_size=3).map(apply)


def mutated_json(good: bytes) -> st.SearchStrategy[bytes]:
    """Some JSON like this, a value of which is odd, absent or renamed; or bytes like these."""
    value = json.loads(good)
    places = list(_places(value))

    def apply(choice: tuple[int, Any, bool]) -> bytes:
        at, odd, remove = choice
        changed = copy.deepcopy(value)
        *way, last = places[at]
        inner = changed
        for step in way:
            inner = inner[step]
        if remove:
            del inner[last]
        else:
            inner[last] = odd
        return json.dumps(changed).encode()

    choices = st.tuples(st.integers(0, len(places) - 1), st.sampled_from(_ODD), st.booleans())
    return choices.map(apply) | mutated(good)


def _places(value: Any, way: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value[:3]):
            yield (*way, step)
            yield from _places(inner, (*way, step))
