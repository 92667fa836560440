"""A model's description as JSON: its network, its input, its classes and the class priors that it
knows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.core.files import digest, unique_keys
from askew.core.plugins import FROM_FILE, plugins
from askew.evaluation.priors import TargetShares
from askew.methods import METHODS, make_method
from askew.methods.base import Method
from askew.nets.network import check
from askew.nets.spec import NetworkSpec, read_network

FORM = 3
"""Version of the JSON's layout."""
CARD_HASH = "card_hash"

Shares = tuple[float, ...]

_LONGEST = 2**24  # bytes of JSON, and numbers in one input: far more than any real model has


@dataclass(frozen=True)
class TargetPrior:
    """The target's estimated class prior, its estimator, and the ends of an interval for each
    class."""

    prior: Shares
    estimator: str
    low: Shares | None = None
    high: Shares | None = None

    @classmethod
    def of(cls, shares: TargetShares) -> TargetPrior:
        prior, low, high = (
            tuple(some.tolist()) for some in (shares.prior, shares.low, shares.high)
        )
        return cls(prior, shares.estimator, low, high)

    def as_json(self) -> dict[str, Any]:
        return {
            "shares": self.prior,
            "estimator": self.estimator,
            "low": self.low,
            "high": self.high,
        }


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Everything about a model but its weights."""

    net: NetworkSpec
    rule: Method
    """The method whose `predict` makes logits; `Method()` where that is the usual forward pass."""
    shape: tuple[int, ...]
    """Of one input: (channels, height, width) of uint8 images, or (width,) of float rows."""
    classes: tuple[str, ...]
    training_prior: Shares
    """The label distribution that the label loss was trained on, which the logits assume."""
    source_prior: Shares | None = None
    """The labelled source's own."""
    target_prior: TargetPrior | None = None
    temperature: float = 1.0
    """What logits under a uniform prior are divided by for calibrated probabilities."""
    bias: tuple[float, ...] = ()
    """What is added to the logits, where known shares of the target show that they lack it; empty:
    nothing."""
    columns: tuple[str, ...] = ()
    """Names of the columns of rows, by which tables are matched; empty: by position. (d,)"""
    made: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, for people to read."""

    def __post_init__(self) -> None:
        if type(self.rule).predict is Method.predict:
            object.__setattr__(self, "rule", Method())
        # The trained weights are in the model, so the starting weights no longer matter, nor does
        # it that their batch statistics were kept: those of the model are.
        norm = "joint" if self.net.norm == "kept" else self.net.norm
        net = dataclasses.replace(self.net.without_weights(), norm=norm)
        object.__setattr__(self, "net", net)

    @property
    def images(self) -> bool:
        """Whether it takes images rather than rows."""
        return len(self.shape) == 3

    @property
    def input(self) -> str:
        """One input in words."""
        return (
            f"{' x '.join(map(str, self.shape))} images"
            if self.images
            else f"rows of {self.shape[0]} numbers"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "what": "askew model",
            "form": FORM,
            "network": self._network(),
            "rule": self._rule(),
            "input": {
                "kind": "uint8 images" if self.images else "float32 rows",
                "shape": list(self.shape),
                **({"columns": list(self.columns)} if self.columns else {}),
            },
            "classes": list(self.classes),
            "training_shares": list(self.training_prior),
            "source_shares": None if self.source_prior is None else list(self.source_prior),
            "target_shares": None if self.target_prior is None else self.target_prior.as_json(),
            "temperature": self.temperature,
            **({"bias": list(self.bias)} if self.bias else {}),
            "made": dict(self.made),
        }

    def _network(self) -> dict[str, Any]:
        """Without starting weights, which no longer matter."""
        values = self.net.describe()
        if values["embedding"] is not None:
            plain = values["embedding"].items()
            values["embedding"] = {k: v for k, v in plain if not k.startswith("weights")}
        return values

    def _rule(self) -> dict[str, Any] | None:
        cls = type(self.rule)
        if cls is Method:
            return None
        rule = {"method": cls.id, "options": dataclasses.asdict(self.rule)}
        return (
            rule
            if METHODS.get(cls.id) is cls
            else rule | {"file": _file_of(cls), "revision": cls.revision}
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that anybody may have written; UserError if there is none."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        if path.stat().st_size > _LONGEST:
            raise ValueError("it is too long")
        value = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_no_number,
            object_pairs_hook=unique_keys,
        )
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(path, f"it cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise _wrong(path, "it holds no JSON object")
    return value


def card_hash(values: Mapping[str, Any]) -> str:
    """A hash of all in a model's JSON but the hash itself, which tells whether it was edited."""
    rest = {name: value for name, value in values.items() if name != CARD_HASH}
    return digest(json.dumps(rest, sort_keys=True).encode())


def read_card(path: Path, method: str = "") -> tuple[ModelCard, dict[str, Any]]:
    """The card in a model's JSON, every field checked, and the whole JSON object.

    A model that predicts by code of a file needs its user to name that file, as `method`.
    """
    values = read_json(path)
    if values.get("what") != "askew model":
        raise _wrong(path, 'its "what" is not "askew model"')
    if values.get("form") != FORM:
        raise UserError(
            f"{path} is a model of form {values.get('form')!r}, and this askew reads form {FORM}.",
            "adapt again with this askew, or use the one that wrote the model.",
        )
    with _fields_of(path):
        rule = _rule_from_file(path, values.get("rule"), method)
    with _fields_of(path):
        try:
            card = _card(values, rule)
            check(card.net, card.shape)
        except UserError as error:
            raise _wrong(path, error.sentence.rstrip(".")) from None
    return card, values


def require_unedited(path: Path, values: Mapping[str, Any]) -> None:
    """Raise a UserError if a model's JSON has a hash that does not fit the rest of it."""
    if values.get(CARD_HASH, card_hash(values)) != card_hash(values):
        raise UserError(
            f"{path} is not as it was saved: its {CARD_HASH} does not fit the rest.",
            "it was damaged or edited; get the model again, or adapt again with other classes.",
        )


@contextlib.contextmanager
def _fields_of(path: Path) -> Iterator[None]:
    """Turn what a field that is missing or of the wrong kind ends in into a UserError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _wrong(path, f"a field is missing or of the wrong kind ({error})") from None


def _card(values: Mapping[str, Any], rule: Method | None) -> ModelCard:
    classes = tuple(_text(name) for name in _list(values["classes"], "classes"))
    if len(classes) < 1 or len(set(classes)) < len(classes):
        raise ValueError("classes must be names that differ")
    c, source, target = len(classes), values["source_shares"], values["target_shares"]
    shape = shape_of(values["input"]["shape"])
    return ModelCard(
        net=read_network(values["network"]),
        rule=rule or rule_of(values["rule"]),
        shape=shape,
        columns=_columns(values["input"].get("columns", []), shape),
        classes=classes,
        training_prior=prior_of(values["training_shares"], c, "training_shares"),
        source_prior=None if source is None else prior_of(source, c, "source_shares"),
        target_prior=None if target is None else _target_prior(target, c),
        temperature=_temperature(values.get("temperature", 1.0)),
        bias=_bias(values.get("bias", []), c),
        made=dict(values["made"]),
    )


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of one input."""
    shape = tuple(_list(value, "shape"))
    whole = all(type(side) is int and side > 0 for side in shape)
    if len(shape) not in (1, 3) or not whole or math.prod(shape) > _LONGEST:
        raise ValueError(f"no input has shape {list(shape)}")
    return shape


def _columns(value: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    names = _list(value, "columns")
    texts = all(isinstance(name, str) for name in names)
    if names and (not texts or len(set(names)) < len(names) or (len(names),) != shape):
        raise ValueError("columns must be a name for each of the input's numbers")
    return tuple(names)


def prior_of(value: Any, classes: int, name: str) -> Shares:
    """A share of each class, in sum one."""
    prior = _shares(value, classes, name)
    if abs(sum(prior) - 1) > 1e-3:
        raise ValueError(f"{name} must have the sum 1")
    return prior


def _shares(value: Any, classes: int, name: str) -> Shares:
    shares = _list(value, name)
    if len(shares) != classes or not all(
        type(p) in (int, float) and 0 <= p <= 1.001 for p in shares
    ):
        raise ValueError(f"{name} must have a share of each of the {classes} classes")
    return tuple(float(p) for p in shares)


def _target_prior(value: Mapping[str, Any], classes: int) -> TargetPrior:
    low, high = (
        None if value[k] is None else _shares(value[k], classes, k) for k in ("low", "high")
    )
    return TargetPrior(
        prior_of(value["shares"], classes, "target_shares"), _text(value["estimator"]), low, high
    )


def _file_of(cls: type[Method]) -> str:
    """How a method that is not ours was named: file.py:Class, or a plug-in; UserError if it has no
    such name."""
    if cls.id in plugins("askew.methods"):
        return cls.id
    if not cls.__module__.startswith(FROM_FILE):
        raise UserError(
            f"The method {cls.id} predicts by code of its own, which a model file cannot hold.",
            "name it as file.py:Class, and the model will ask for that file.",
        )
    return f"{Path(str(sys.modules[cls.__module__].__file__)).name}:{cls.__name__}"


def _rule_from_file(path: Path, value: Any, method: str) -> Method | None:
    """The method that a model predicts by, from the file that its user names; None if it needs
    none.

    What a model says is never imported: whoever made it does not choose what runs here.
    """
    if not (isinstance(value, dict) and "file" in value):
        return None
    if not method:
        raise UserError(
            f"{path} predicts by code of its own, {value['file']}, which a model does not hold.",
            f"name the file if you trust it: --method {value['file']}, or askew.load(…, method=…).",
        )
    rule = make_method(method, dict(value["options"]))
    if (rule.id, rule.revision) != (value["method"], value["revision"]):
        raise UserError(
            f"{method} is not the code that {path} was made with: it has changed, or is another "
            "method.",
            f"name the {value['file']} of that time, or adapt again.",
        )
    return rule


def run_rule(folder: Path, method: str) -> Method | None:
    """The same for a finished run; None if its method is one of ours, or its record is of another
    form."""
    try:
        own = read_json(folder / "run.json")["run"]["plan"][-1]["method"]
        value = {
            "method": own["id"],
            "options": own["options"],
            "revision": own["revision"],
            "file": "FILE.py:CLASS",
        }
    except (KeyError, TypeError, IndexError):
        return None
    return None if own["id"] in METHODS else _rule_from_file(folder, value, method)


def rule_of(value: Any) -> Method:
    """The method that a model predicts by: one of ours, never `file.py:Class`."""
    if value is None:
        return Method()
    if value["method"] not in METHODS:
        raise ValueError(f"its method {value['method']!r} is not one of askew's")
    return make_method(value["method"], dict(value["options"]))


def _bias(value: Any, classes: int) -> tuple[float, ...]:
    numbers = _list(value, "bias")
    if len(numbers) not in (0, classes) or not all(
        type(b) in (int, float) and math.isfinite(b) for b in numbers
    ):
        raise ValueError(f"bias must be a number for each of the {classes} classes")
    return tuple(float(b) for b in numbers)


def _temperature(value: Any) -> float:
    if type(value) not in (int, float) or not 1e-6 < value < 1e6:
        raise ValueError(f"temperature must be a number above 0, found {value!r}")
    return float(value)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a name, found {value!r}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"the name {value!r} holds half a character")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _wrong(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} is not a model of askew's: {why}.",
        "make it with `askew adapt` or `askew export --to safetensors`.",
    )
