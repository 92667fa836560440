"""A run: everything that can change its numbers, and the key that names it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from askew.data.task import TARGET_FLOOR, Sampler, TargetSampler
from askew.methods.base import Method
from askew.nets.augment import NO_VIEWS, Views
from askew.nets.spec import NetworkSpec
from askew.training.optim import Optim


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One method trained for a number of rounds; each round begins with a refresh."""

    method: Method
    rounds: int
    round_steps: int
    optim: Optim
    restart: bool = False
    """From fresh weights; the network of the stage before predicts for the first refresh."""

    @property
    def steps(self) -> int:
        return self.rounds * self.round_steps


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training: a task's data, a network, and a plan of stages; the last stage is the method
    under test."""

    task: str
    shift: str
    draw: int
    origin: str
    net: NetworkSpec
    plan: tuple[Stage, ...]
    batch: int
    sampler: Sampler
    target_sampler: TargetSampler
    precision: Literal["float32", "tf32", "bf16"]
    seed: int
    threads: int
    views: Views = NO_VIEWS
    target_floor: float = TARGET_FLOOR
    soft_labels: str = ""
    """A hash of the soft labels that other networks gave the target, where there are some."""

    recipe: str = ""
    """The recipe that was asked for, for a method with its own runner, which plans runs itself."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Likewise the training settings that differ from the recipe."""

    @property
    def method(self) -> Method:
        return self.plan[-1].method

    @cached_property
    def before(self) -> Run | None:
        """The run that this one continues: the same without its last stage, and blind to the
        target."""
        if len(self.plan) == 1:
            return None
        return dataclasses.replace(
            self,
            plan=self.plan[:-1],
            target_sampler="natural",
            target_floor=TARGET_FLOOR,
            soft_labels="",
        )

    def describe(self) -> dict[str, Any]:
        """As plain JSON values."""
        values = dataclasses.asdict(self)
        for stage, plain in zip(self.plan, values["plan"], strict=True):
            method = stage.method
            plain["method"] = {
                "id": method.id,
                "revision": method.revision,
                "options": {f.name: getattr(method, f.name) for f in dataclasses.fields(method)},
            }
        values["net"] = self.net.describe()
        # what has no effect must not split equal runs, and what came later must not rename earlier
        # ones
        values["views"] = self.views.describe()
        if self.views.views == "none":
            del values["views"]
        if self.target_sampler != "even":
            del values["target_floor"]
        values["overrides"] = dict(self.overrides)
        for name in ("soft_labels", "recipe", "overrides"):
            if not values[name]:
                del values[name]
        if self.net.last_dropout:
            del values["net"]["last_dropout"]
        if values["net"]["head"] != "cosine":
            del values["net"]["temperature"]
        return values

    @cached_property
    def key(self) -> str:
        """Names the run's folder: a hash of `describe`. Kept, since planning asks for it again and
        again."""
        return _key(self.describe())


def key_before(described: Mapping[str, Any]) -> str | None:
    """The key of the run that one continues, from what `describe` gave for it; None for a first
    stage."""
    if len(described["plan"]) == 1:
        return None
    values = {**described, "plan": described["plan"][:-1], "target_sampler": "natural"}
    for seen in ("target_floor", "soft_labels"):
        values.pop(seen, None)
    return _key(values)


def _key(described: Mapping[str, Any]) -> str:
    text = json.dumps(described, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
