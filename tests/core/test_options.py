"""Options: read from a dataclass and its source, converted and checked, with every mistake told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.core.errors import UserError
from askew.core.options import Between, Option, Search, checked, options, parse, type_name
from askew.methods import METHODS
from askew.methods.coal import COAL
from askew.nets.embedding import Embedding
from askew.nets.spec import NetworkSpec
from askew.runs.config import Training
from askew.training.optim import Optim

steady = settings(derandomize=True, deadline=None, max_examples=60, database=None)


@dataclass(frozen=True, kw_only=True)
class Base:
    alpha: Annotated[float, Between(0, 2), Search(0.1, 1, log=True)] = 0.5
    """Help of alpha,
    on two lines."""
    steps: Annotated[int, Between(1)] = 10
    """Help of steps."""


@dataclass(frozen=True, kw_only=True)
class Settings(Base):
    steps: Annotated[int, Between(1)] = 20
    """Another help of steps."""
    switch: bool = True
    """Help of switch."""
    kind: Literal["one", "two"] = "one"
    """Help of kind."""
    round: Literal["larger", "smaller"] | int = "larger"
    """Help of round."""
    maybe: float | None = None
    """Help of maybe."""
    label: str = "a"
    names: tuple[str, ...] = field(default_factory=tuple)
    """Help of names."""


# Reading


def test_help_texts_are_the_strings_below_the_fields_in_the_source() -> None:
    helps = {name: option.help for name, option in options(Settings).items()}
    assert helps == {
        "alpha": "Help of alpha, on two lines.",
        "steps": "Another help of steps.",
        "switch": "Help of switch.",
        "kind": "Help of kind.",
        "round": "Help of round.",
        "maybe": "Help of maybe.",
        "label": "",
        "names": "Help of names.",
    }


def test_an_option_knows_its_type_default_limits_and_search_range() -> None:
    alpha = options(Settings)["alpha"]
    assert alpha == Option(
        name="alpha",
        type=float,
        default=0.5,
        help=alpha.help,
        limits=Between(0, 2),
        search=Search(0.1, 1, log=True),
    )
    steps = options(Settings)["steps"]
    assert (steps.type, steps.default, steps.limits, steps.search) == (int, 20, Between(1), None)
    assert options(Settings)["names"].default is None, "a factory is no default to show"


def test_a_class_inside_a_function_is_read_too() -> None:
    @dataclass
    class Inner:
        x: float = 1.0
        """Help of x."""

    # Its annotations are found among builtins, whatever else the function holds.
    assert options(Inner)["x"].help == "Help of x."


@pytest.mark.parametrize("cls", [Training, Embedding, NetworkSpec, Optim, *METHODS.values()])
def test_every_setting_that_a_user_sees_is_explained(cls: type) -> None:
    unexplained = [
        name for name, option in options(cls).items() if not option.help.endswith((".", ")"))
    ]
    assert not unexplained


@pytest.mark.parametrize("cls", [Training, Optim, *METHODS.values()])
def test_every_default_is_within_its_own_limits_and_of_its_own_type(cls: type) -> None:
    defaults = {name: option.default for name, option in options(cls).items()}
    assert checked(cls, defaults, "it") == defaults


@pytest.mark.parametrize("cls", METHODS.values())
def test_search_ranges_lie_within_the_limits(cls: type) -> None:
    for option in options(cls).values():
        if option.search and option.limits:
            assert option.limits.low <= option.search.low < option.search.high <= option.limits.high


def test_limits_and_ranges_read_as_words() -> None:
    assert str(Between(0)) == "at least 0"
    assert str(Between(0, 0.5)) == "between 0 and 0.5"
    assert str(Search(0.01, 1, log=True)) == "0.01 … 1 (log)"
    assert str(Search(0, 1)) == "0 … 1"


# Converting


@pytest.mark.parametrize(
    ("name", "given_", "value"),
    [
        ("alpha", "0.25", 0.25),
        ("alpha", "1e-1", 0.1),
        ("alpha", 1, 1.0),
        ("alpha", "0", 0.0),
        ("alpha", 2.0, 2.0),
        ("steps", "7", 7),
        ("steps", 7.0, 7),
        ("switch", True, True),
        ("switch", "no", False),
        ("switch", "ON", True),
        ("switch", "0", False),
        ("switch", 1, True),
        ("kind", "two", "two"),
        ("round", "smaller", "smaller"),
        ("round", "150", 150),
        ("round", 150, 150),
        ("maybe", "none", None),
        ("maybe", "2", 2.0),
        ("label", "a=b", "a=b"),
    ],
)
def test_a_value_takes_the_type_of_its_field(name: str, given_: Any, value: Any) -> None:
    out = checked(Settings, {name: given_}, "it")
    assert out == {name: value}
    assert type(out[name]) is type(value)


@steady
@given(st.floats(0, 2), st.integers(1, 10**9))
def test_numbers_survive_being_written_out(alpha: float, steps: int) -> None:
    pairs = parse([f"alpha={alpha!r}", f"steps={steps}"], "it", "a=b")
    assert checked(Settings, pairs, "it") == {"alpha": alpha, "steps": steps}


def test_nothing_given_is_nothing_returned() -> None:
    assert checked(Settings, {}, "it") == {}


# Mistakes


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("alpha", "much", "The option 'alpha' of it must be a number, found 'much'."),
        ("alpha", True, "The option 'alpha' of it must be a number, found 'True'."),
        ("alpha", None, "The option 'alpha' of it must be a number, found 'None'."),
        ("alpha", -0.1, "The option 'alpha' of it must be between 0 and 2, found -0.1."),
        ("alpha", "2.5", "The option 'alpha' of it must be between 0 and 2, found 2.5."),
        ("alpha", "nan", "The option 'alpha' of it must be between 0 and 2, found nan."),
        ("steps", "2.5", "The option 'steps' of it must be a whole number, found '2.5'."),
        ("steps", 2.5, "The option 'steps' of it must be a whole number, found '2.5'."),
        ("steps", 0, "The option 'steps' of it must be at least 1, found 0."),
        ("switch", "perhaps", "The option 'switch' of it must be true or false, found 'perhaps'."),
        ("kind", "three", "The option 'kind' of it must be 'one' or 'two', found 'three'."),
        (
            "round",
            "all",
            "The option 'round' of it must be 'larger' or 'smaller' or a whole number, found "
            "'all'.",
        ),
        ("maybe", "x", "The option 'maybe' of it must be a number, found 'x'."),
    ],
)
def test_a_value_of_another_type_or_beyond_its_limits_is_told_with_the_help(
    name: str, value: Any, sentence: str
) -> None:
    with pytest.raises(UserError) as told:
        checked(Settings, {name: value}, "it")
    assert told.value.sentence == sentence
    assert told.value.hint == options(Settings)[name].help


def test_an_unknown_option_is_told_the_nearest() -> None:
    with pytest.raises(UserError) as told:
        checked(COAL, {"alhpa": 1}, "method coal")
    assert told.value.sentence == "There is no option of method coal 'alhpa'."
    assert told.value.hint == "did you mean 'alpha'?"


def test_an_unknown_option_near_to_nothing_is_told_all() -> None:
    with pytest.raises(UserError) as told:
        checked(Base, {"zzz": 1}, "it")
    assert told.value.hint == "known: alpha, steps."


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    pairs = ["alpha=0.1", " k-max = 0.3 ", "label=a=b", "empty="]
    assert parse(pairs, "it", "a=b") == {
        "alpha": "0.1",
        "k_max": "0.3",
        "label": "a=b",
        "empty": "",
    }


@pytest.mark.parametrize("pair", ["alpha", "=3", ""])
def test_a_pair_without_name_or_equals_sign_is_refused(pair: str) -> None:
    with pytest.raises(UserError) as told:
        parse([pair], "the method", "a=b")
    assert told.value.sentence == f"An option of the method reads name=value, found '{pair}'."


def test_types_read_as_words() -> None:
    assert type_name(float) == "a number"
    assert type_name(Literal["a", "b"]) == "'a' or 'b'"
    assert type_name(Literal["a"] | int) == "'a' or a whole number"
    assert type_name(float | None) == "a number"
