"""Adapt a model to another target without its source, as SHOT does, with the target's label
distribution left free.

J. Liang, D. Hu, J. Feng, Do we really need to access the source data? Source hypothesis transfer
for unsupervised domain adaptation, ICML 2020.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.core.options import Between, checked
from askew.core.random import hash64, key, shuffled
from askew.data.custom import CustomDomain, in_columns_of
from askew.evaluation.outputs import Floats
from askew.evaluation.priors import em_prior
from askew.inference.inputs import as_input
from askew.inference.model_card import TargetPrior
from askew.inference.predictor import Predictor, load
from askew.methods.losses import cross_entropy, entropy
from askew.nets.adabn import NORM_IMAGES, domain_norms, in_batches
from askew.nets.forward import forward_in_chunks
from askew.nets.heads import CosineHead
from askew.nets.network import Net
from askew.runs.execute import Progress

COLLAPSED = 0.5
"""Total variation from every plausible prior at which predictions that became more concentrated
have collapsed."""


@dataclass(frozen=True, kw_only=True)
class SourceFree:
    """Settings of an adaptation without source."""

    rounds: Annotated[int, Between(1, 10_000)] = 8
    """Rounds; each begins with new labels of the prototypes and a new estimate of the prior."""
    round: Annotated[int, Between(1, 10**6)] = 50
    """Steps of a round."""
    batch: Annotated[int, Between(2, 65_536)] = 64
    """Target images in a batch."""
    lr: Annotated[float, Between(0, 10)] = 0.01
    """Learning rate of the features; of a whole pre-trained backbone a hundredth of it."""
    weight: Annotated[float, Between(0, 100)] = 0.3
    """Weight of the prototypes' labels at the end; it grows from zero."""
    trust: Annotated[float, Between(0, 0.99)] = 0.5
    """Share of the estimate in the label distribution that is expected; the rest is uniform. 0:
    SHOT as published."""
    anchor: Annotated[float, Between(0)] = 20.0
    """Where there is nothing but a head: how many images its prototypes count for as they move to
    the target's."""


@dataclass(frozen=True, eq=False)
class Readapted:
    """A model that was adapted again."""

    predictor: Predictor
    before: Floats
    """Probabilities of the target's images by the model as it was, under a uniform prior. (n_t,
    c)"""
    after: Floats
    """By the model as it is now. (n_t, c)"""
    prior: Floats
    """The estimated prior of the target. (c,)"""
    collapsed: bool
    """Whether adaptation ended in a few classes, so that the model was kept as it was."""

    @property
    def changed(self) -> float:
        """Share of the images whose class changed."""
        return float((self.before.argmax(axis=1) != self.after.argmax(axis=1)).mean())

    @property
    def sentence(self) -> str:
        if self.collapsed:
            return (
                "The model was kept as it was: adapted to this target, it predicts few classes "
                "for nearly all of it."
            )
        sure = [100 * float(p.max(axis=1).mean()) for p in (self.before, self.after)]
        return (
            f"The model was adapted without its source: {100 * self.changed:.0f} % of the "
            "predictions changed, and "
            f"their mean probability from {sure[0]:.0f} to {sure[1]:.0f} %. Without source "
            "nothing tells whether that "
            "helped: label some fifty images of the target."
        )


def adapt_again(
    model: Path,
    domain: CustomDomain,
    values: dict[str, Any],
    seed: int,
    device: torch.device,
    method: str = "",
) -> Generator[Progress, None, Readapted]:
    """The model in a folder, adapted to a domain of which no label and nothing else is known."""
    settings = SourceFree(**checked(SourceFree, values, "adaptation without source"))
    start = load(model, str(device), method)
    domain = in_columns_of(domain, start.card.columns, "the model")
    as_input(
        np.asarray(domain.x[:1]), start.card
    )  # a target of another form is refused before the work
    before = start.predict_proba(domain.x)
    now = Predictor(start.card, start.weights, str(device))
    # trained as it always was
    now.classifier.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    net = now.classifier.net
    rows, above = _inputs(net, start, domain)
    if any(True for _ in above.parameters()):
        yield from _train(net, above, rows, start, settings, seed)
    else:
        _move_prototypes(net, above, rows, settings)
    weights = {name: value.detach().cpu() for name, value in net.state_dict().items()}
    prior = _prior(now.probabilities(now.logits(domain.x)))
    card = dataclasses.replace(
        start.card,
        target_prior=TargetPrior(tuple(prior.tolist()), "em"),
        made={"by": "askew adapt --model", "before": dict(start.card.made)},
    )
    adapted = Predictor(card, weights, str(device))
    after = adapted.predict_proba(domain.x)
    collapsed = _collapsed(before, after)
    return Readapted(
        start if collapsed else adapted, before, before if collapsed else after, prior, collapsed
    )


def _inputs(net: Net, model: Predictor, domain: CustomDomain) -> tuple[Tensor, nn.Module]:
    """What the trained part of the features sees of each image, and that part.

    A backbone that was frozen stays so, but for statistics of the domain, and embeds the images
    once.
    """
    features: Any = net["features"]
    if not model.card.net.on_backbone:
        return torch.from_numpy(
            np.ascontiguousarray(as_input(np.asarray(domain.x), model.card))
        ), features
    below: Callable[[Tensor], Tensor] = lambda x: features[0](x).flatten(1)  # noqa: E731
    net.eval()
    if (norms := domain_norms(features[0])) is not None:
        norms.estimate(x.to(model.device) for x in in_batches(np.asarray(domain.x[:NORM_IMAGES])))
    return torch.from_numpy(forward_in_chunks(below, domain.x, model.device)), features[1]


def _train(
    net: Net, above: nn.Module, rows: Tensor, model: Predictor, settings: SourceFree, seed: int
) -> Generator[Progress, None, None]:
    """Minimise E H(p) + KL(p̄ ‖ q) + λt·E CE(z, ŷ) over the features, p̄ being the batch's mean and
    q its prior.

    SHOT has the uniform distribution in place of q, which is wrong under label shift, and λ
    throughout: but the first labels of a model that is often wrong hold it where it is, so their
    weight grows with the progress t.
    """
    whole = model.card.net.embedding is not None and not model.card.net.layers
    optimiser = torch.optim.SGD(
        above.parameters(),
        settings.lr / (100 if whole else 1),
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
    )
    steps = settings.rounds * settings.round
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    shift = torch.from_numpy(model.logit_shift("equal")).float().to(model.device)
    order = shuffled(
        key("source-free", seed), len(rows), 0, steps * settings.batch, torch.device("cpu")
    )
    step_keys = hash64(key("source-free noise", seed), torch.arange(steps))
    net.share_step_key()
    head = net["head"]
    for step in range(steps):
        if step % settings.round == 0:
            labels, q = _refresh(net, above, rows, shift, settings.trust)
            yield Progress(
                key="source-free",
                label="adapting without source",
                step=step,
                steps=steps,
                losses={},
            )
        net.train()
        net.set_step_key(step_keys[step].to(model.device))
        index = order[step * settings.batch : (step + 1) * settings.batch]
        z = head(above(rows[index].to(model.device)).flatten(1)) + shift
        p = (z + q.log()).softmax(dim=-1).mean(dim=0)
        diverse = (p * (p.clamp(min=1e-12) / q).log()).sum()
        loss = (
            entropy(z + q.log())
            + diverse
            + settings.weight * step / steps * cross_entropy(z, labels[index].to(model.device))
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    net.eval()


def _refresh(
    net: Net, above: nn.Module, rows: Tensor, shift: Tensor, trust: float
) -> tuple[Tensor, Tensor]:
    """Each image's label by its nearest prototype, and the prior, which is never quite zero. (n,),
    (c,)"""
    net.eval()
    f = torch.from_numpy(
        forward_in_chunks(lambda x: above(x).flatten(1), rows.numpy(), shift.device)
    )
    with torch.no_grad():
        z = net["head"](f.to(shift.device)).cpu() + shift.cpu()
    prior = torch.from_numpy(_prior(z.softmax(dim=-1).double().numpy())).float()
    c = z.shape[-1]
    q = trust * prior + (1 - trust) / c
    return prototype_labels(f, (z + q.log()).softmax(dim=-1)), q.to(shift.device)


def prototype_labels(f: Tensor, p: Tensor) -> Tensor:
    """The class whose prototype is nearest by cosine: means of features weighted by p, then once
    more by those classes. (n, d), (n, c) → (n,)"""
    f, weights = F.normalize(f, dim=1), p
    nearest = p.argmax(dim=1)
    for _ in range(2):
        prototypes = F.normalize(weights.T @ f, dim=1)
        present = weights.sum(dim=0) > 0
        nearest = (f @ prototypes.T).masked_fill(~present, -2.0).argmax(dim=1)
        weights = F.one_hot(nearest, p.shape[1]).to(p.dtype)
    return nearest


def _move_prototypes(net: Net, above: nn.Module, rows: Tensor, settings: SourceFree) -> None:
    """A head on bare rows has no features to adapt: its own prototypes move to the target's
    clusters, anchored."""
    head = net["head"]
    if not isinstance(head, CosineHead):
        raise UserError(
            "The model is one linear layer on the rows: it has no features to adapt.",
            "adapt with the source, or a model with --backbone mlp.",
        )
    own = head.prototypes.weight.detach().cpu()
    start = F.normalize(own, dim=1)
    f, w = F.normalize(above(rows).flatten(1).float(), dim=1), start
    for _ in range(20):
        near = F.one_hot((f @ w.T).argmax(dim=1), len(w)).to(f.dtype)
        w = F.normalize(settings.anchor * start + near.T @ f, dim=1)
    head.set_weight((w * own.norm(dim=1, keepdim=True)).to(head.prototypes.weight.device))


def _prior(p: Floats) -> Floats:
    """The prior of greatest likelihood, by EM from probabilities under a uniform one. (n, c) →
    (c,)"""
    return em_prior(p, np.full(p.shape[1], 1 / p.shape[1]))


def _collapsed(before: Floats, after: Floats) -> bool:
    """Whether predictions moved to few classes, far from all that was plausible before."""
    c = before.shape[1]
    first, last = (np.bincount(p.argmax(axis=1), minlength=c) / len(p) for p in (before, after))
    plausible: tuple[NDArray[np.float64], ...] = (first, _prior(before), np.full(c, 1 / c))
    far = min(float(np.abs(last - one).sum() / 2) for one in plausible)
    return bool(far > COLLAPSED and last.max() > first.max())
