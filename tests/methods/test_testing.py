"""check_method accepts every listed method and finds each breach of the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from askew.core.random import hash64, key
from askew.methods import METHODS
from askew.methods.base import Batch, Losses, Method, Outputs, Phase, Shape, State, join_domains
from askew.methods.losses import cross_entropy, entropy
from askew.nets.network import Net
from askew.testing import check_method


@dataclass(frozen=True, kw_only=True)
class Sound(Method):
    """A method with all there is: a part of its own, a state, two phases, a float and a whole
    number."""

    id = "sound"

    weight: float = 0.5
    """Of the critic's loss."""
    hidden: int = 4
    """Width of the critic."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {
            "critic": nn.Sequential(
                nn.Linear(shape.width, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1)
            )
        }

    def phases(self) -> tuple[Phase, ...]:
        return Phase(self.losses), Phase(self.critic, trains=("critic",))

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"pseudo": outputs.target.argmax(dim=-1)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        own = self.weight * t * cross_entropy(net["head"](ft), state["pseudo"][batch.it])
        return {"label": cross_entropy(net["head"](fs), batch.ys), "own": own}

    def critic(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        return {"critic": self.weight * (net["critic"](fs).mean() - net["critic"](ft).mean()) ** 2}


class Changed(Sound):
    """Sound, but for what a test changes."""

    def label(self, net: Net, batch: Batch) -> Tensor:
        return cross_entropy(net["head"](net["features"](batch.xs)), batch.ys)


class NoLosses(Method):
    id = "none"


@dataclass(frozen=True, kw_only=True)
class Unexplained(Sound):
    strength: float = 1.0


class Vector(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"rows": net["features"](batch.xs).mean(dim=1)}


class Plain(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": self.label(net, batch), "constant": 1.0}  # type: ignore[dict-item]


class Infinite(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": self.label(net, batch) / t}


class NotANumberBehind(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        f = net["features"](batch.xs)
        return {"label": self.label(net, batch), "root": (f - f).abs().sum().sqrt()}


class Detached(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": self.label(net, batch), "seen": self.label(net, batch).detach()}


class Empty(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {}


class Idle(Changed):
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.losses),)


class IdleHead(Changed):
    def phases(self) -> tuple[Phase, ...]:
        return Phase(self.losses, trains=("features",)), Phase(self.critic)


class Misspelt(Changed):
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.critic, trains=("critics",)),)


class NoPart(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": net["discriminator"](batch.xs).mean()}


class Branching(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        label = self.label(net, batch)
        return {"label": label if label > 0.1 else 2 * label}


class Item(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": self.label(net, batch) * t.item()}


class Indexing(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        logits = net["head"](net["features"](batch.xt))
        return {
            "label": self.label(net, batch),
            "sure": entropy(logits[logits.softmax(-1).amax(-1) > 0.2]),
        }


class FloatBranch(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        label = self.label(net, batch)
        return {"label": label * self.weight if self.weight > 0 else label}


class Remembering(Changed):
    """Its losses depend on how often they were asked for."""

    calls: ClassVar[list[Tensor]] = []

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        self.calls.append(t)
        return {"label": self.label(net, batch) * len(self.calls)}


class TorchRandom(Changed):
    """Noise on the features of the target, from torch's global generator."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        ft = net["features"](batch.xt)
        return {
            "label": self.label(net, batch),
            "own": entropy(net["head"](ft + 0.1 * torch.randn(ft.shape))),
        }


class OtherUnderVmap(Changed):
    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        stacked = torch._C._functorch.is_batchedtensor(t)
        return {"label": (2.0 if stacked else 1.0) * self.label(net, batch)}


class TorchRandomInRefresh(Changed):
    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"pseudo": torch.randint(3, (len(outputs.target),))}


class BadState(Changed):
    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"pseudo": outputs.target.argmax(-1), "prior": torch.zeros(3) / 0}


class NoTensor(Changed):
    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"pseudo": outputs.target.argmax(-1), "share": 0.5}  # type: ignore[dict-item]


class Growing(Changed):
    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"pseudo": outputs.target.argmax(-1), "trusted": torch.arange(5 + round)}


class Probability(Changed):
    def predict(self, net: Net, x: Tensor) -> Tensor:
        return super().predict(net, x).amax(dim=-1)


class NotFinite(Changed):
    def predict(self, net: Net, x: Tensor) -> Tensor:
        return super().predict(net, x) / 0


BREACHES: list[tuple[type[Method], str]] = [
    (NoLosses, "losses of phase 0 raised TypeError"),
    (Unexplained, "the hyper-parameter 'strength' has no help text"),
    (Vector, "the loss 'rows' of phase 0 is not a scalar"),
    (Plain, "the loss 'constant' of phase 0 is not a scalar tensor"),
    (Infinite, "the loss 'label' of phase 0 is not finite at t = 0"),
    (NotANumberBehind, r"∂features\..* of phase 0 is not finite"),
    (Detached, "the loss 'seen' of phase 0 has no gradient"),
    (Empty, "phase 0 has no loss"),
    (Idle, r"no phase has a gradient for \['critic'\]"),
    (IdleHead, r"no phase has a gradient for \['head'\]"),
    (Misspelt, r"phase 0 trains \['critics'\]"),
    (NoPart, "losses of phase 0 raised KeyError"),
    (Branching, "losses of phase 0 under torch.func.vmap.* raised"),
    (Item, "losses of phase 0 under torch.func.vmap.* raised"),
    (Indexing, "losses of phase 0 under torch.func.vmap.* raised"),
    (FloatBranch, "losses of phase 0 under torch.func.vmap.* raised"),
    (Remembering, "the loss 'label' of phase 0 differs between two calls with the same arguments"),
    (
        TorchRandom,
        "the loss 'own' of phase 0 differs between two calls.*torch.randn.*bit for bit; "
        ".*askew.core.random",
    ),
    (TorchRandomInRefresh, "the same seed does not give the same weights; .*askew.core.random"),
    (OtherUnderVmap, "label of phase 0 differs under torch.func.vmap from a run by itself"),
    (BadState, "the entry 'prior' of refresh is not a finite tensor"),
    (NoTensor, "the entry 'share' of refresh is not a finite tensor"),
    (Growing, "the entry 'trusted' of refresh changes its shape"),
    (Probability, "predict does not return one finite logit per row and class"),
    (NotFinite, "predict does not return one finite logit per row and class"),
]


@pytest.mark.parametrize("id", METHODS)
def test_every_listed_method_keeps_the_contract(id: str) -> None:
    check_method(METHODS[id]())


def test_a_sound_method_of_ones_own_keeps_the_contract() -> None:
    check_method(Sound())
    check_method(Sound(weight=2.0, hidden=7))


def test_a_draft_may_lack_help_texts_and_have_parts_that_do_not_learn() -> None:
    check_method(Unexplained(), strict=False)
    check_method(Idle(), strict=False)


@pytest.mark.parametrize(
    ("cls", "sentence"), BREACHES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_breach_is_told_in_one_sentence_that_names_the_method(cls: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence) as told:
        check_method(cls())
    text = str(told.value)
    assert text.startswith(f"The method {cls.__name__}: ")
    assert text.endswith(".")
    assert "\n" not in text


def test_random_numbers_by_hash_are_allowed() -> None:
    class Hashed(Changed):
        def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
            noise = hash64(key("noise"), batch.it).double().mul(2.0**-63).mean().float()
            return {"label": self.label(net, batch) * (1 + noise)}

    check_method(Hashed())


def test_checking_leaves_torchs_global_generator_alone() -> None:
    before = torch.get_rng_state()
    check_method(Sound())
    assert torch.equal(torch.get_rng_state(), before)
