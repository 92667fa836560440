"""The trained model: from images or rows to classes, under a class mix that is chosen when it is asked.

A model is a folder: model.json, its card, and weights-<hash>.safetensors. The weights are written first and named by
their hash, which the card holds; so the two always belong together, and a change to either is found.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import __version__
from askew.core.device import pick_device
from askew.core.errors import UserError, unknown
from askew.core.files import as_json, is_temporary, read_tensors, whole_folder
from askew.evaluation.priors import reweighted
from askew.inference.inputs import as_input, listed
from askew.inference.model_card import Card, TargetPrior, net_spec, prior_of, read_card, read_json, rule_of, shape_of
from askew.methods.base import Method, new_net
from askew.nets.forward import Inputs, chunk_rows, forward_in_chunks
from askew.nets.network import Net, keeps_source_statistics, predicting_weights

__all__ = ["PRIORS", "Card", "Classifier", "Predictor", "Prior", "TargetPrior", "load"]

Prior = Literal["uniform", "source", "target", "seen"] | ArrayLike
"""The class mix to decide under: uniform, the source's, the estimated target's, the one seen in training, or shares."""
PRIORS = ("uniform", "source", "target", "seen")

Floats = NDArray[np.float64]

_CARD = "model.json"
_HOW = "name a folder that `askew adapt` or `askew export --to safetensors` wrote, or a finished run's."


class Classifier(nn.Module):
    """A network with the rule that makes its logits: uint8 images or float rows in. (n, …) → (n, c)"""

    def __init__(self, rule: Method, net: Net) -> None:
        super().__init__()
        self.rule, self.net = rule, net

    def forward(self, x: Tensor) -> Tensor:
        return self.rule.predict(self.net, x)


@dataclass(frozen=True)
class _Converted:
    """Inputs of any form; its slices are in the network's own."""

    inputs: Sequence[Any] | NDArray[Any]
    card: Card

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.inputs), *self.card.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return as_input(self.inputs[rows], self.card)


class Predictor:
    """A trained model, ready to answer."""

    def __init__(self, card: Card, weights: Mapping[str, Tensor], device: str = "auto") -> None:
        """`weights` are those of the network; of parts that only training needed, none are kept."""
        self.card = card
        self.device = pick_device(device)
        with torch.device("meta"):  # so that a description alone cannot ask for all memory
            self.weights = _fitting(weights, _network(card, weights))
        net = _network(card, weights)
        net.load_state_dict(self.weights)
        self.classifier = Classifier(card.rule, net).to(self.device).eval()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    @property
    def batch(self) -> int:
        """How many inputs are forwarded together unless a caller decides otherwise."""
        return chunk_rows(self.card.shape)

    # --- predictions ---

    def logits(self, x: Any, batch: int = 0, domain: Literal["target", "source"] = "target") -> NDArray[np.float32]:
        """Logits for the class prior of training. (n, c)

        x: uint8 images (n, k, h, w), (n, h, w, k) or (n, h, w); float rows (n, d); pictures of PIL or paths of picture
        files, one or many, which are resized. A network that keeps batch statistics of each domain uses those of
        `domain`.
        """
        inputs = listed(x)
        if not len(inputs):
            return np.zeros((0, len(self.classes)), dtype=np.float32)
        with self.classifier.net.source_statistics() if domain == "source" else nullcontext():
            return self.forward(_Converted(inputs, self.card), batch)

    def forward(self, x: Inputs, batch: int = 0) -> NDArray[np.float32]:
        """The same for inputs that are in the network's own form already."""
        return forward_in_chunks(self.classifier, x, self.device, batch)

    def predict_proba(self, x: Any, prior: Prior = "uniform", batch: int = 0) -> Floats:
        """Probability of each class, in the order of `classes`. (n, c)"""
        return self.probabilities(self.logits(x, batch), prior)

    def predict(self, x: Any, prior: Prior = "uniform", batch: int = 0) -> NDArray[np.str_]:
        """The most probable class of each input. (n,)"""
        names: NDArray[np.str_] = np.array(self.classes)[self.predict_proba(x, prior, batch).argmax(axis=1)]
        return names

    def probabilities(self, logits: NDArray[Any], prior: Prior = "uniform") -> Floats:
        """softmax(z_k + log(prior_k/seen_k)): the same for logits that are there already. (n, c) → (n, c)"""
        z = torch.from_numpy(np.asarray(logits, dtype=np.float64)) + torch.from_numpy(self.prior_shift(prior))
        p: Floats = z.softmax(dim=-1).numpy()
        return p

    def prior_shift(self, prior: Prior) -> Floats:
        """What a prior adds to each class's logit. A class that training never saw is not weighed up. (c,)"""
        seen = torch.tensor(self.card.training_prior, dtype=torch.float64)
        mix = torch.where(seen > 0, torch.from_numpy(self.prior_shares(prior)), 0.0)
        shift: Floats = reweighted(torch.zeros_like(seen), mix, seen).numpy()
        return shift

    def prior_shares(self, prior: Prior) -> Floats:
        """The shares that a prior stands for. (c,)"""
        c = len(self.classes)
        if isinstance(prior, str):
            return self._named_prior(prior)
        try:
            mix: Floats = np.asarray(prior, dtype=np.float64)
        except (TypeError, ValueError):
            mix = np.empty(0)
        if mix.shape != (c,) or not np.isfinite(mix).all() or mix.min() < 0 or mix.sum() <= 0:
            found = f"{mix.size} numbers" if mix.shape != (c,) else str(mix.tolist())
            raise UserError(
                f"A prior has a share of each of the {c} classes, found {found}.",
                f"shares at least 0, in this order: {', '.join(self.classes)}.",
            )
        shares: Floats = mix / mix.sum()
        return shares

    def _named_prior(self, name: str) -> Floats:
        c, card = len(self.classes), self.card
        known = {
            "uniform": (1 / c,) * c,
            "source": card.source_prior,
            "target": card.target_prior.mix if card.target_prior else None,
            "seen": card.training_prior,
        }
        if name not in known:
            raise unknown("prior", name, PRIORS, "from Python also an array of shares.")
        mix = known[name]
        if mix is None:
            raise UserError(
                f"The model does not know the {name}'s class mix.", "use uniform, or say a share for each class."
            )
        return np.array(mix, dtype=np.float64)

    # --- on disk ---

    def save(self, path: Path | str) -> None:
        """Write the model's folder, or replace the model in it."""
        from safetensors.torch import save

        folder, card = Path(path), self.card.as_json()
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, and a model is a folder.", "choose another name.")
        if folder.is_dir() and not (folder / _CARD).is_file() and not all(map(_is_leftover, folder.iterdir())):
            raise UserError(f"The folder {folder} holds other things than a model.", "choose a new or empty folder.")
        content = save(self.weights)
        digest = hashlib.sha256(content).hexdigest()
        with whole_folder(folder, _CARD, "choose another folder.") as new:
            (new / _weights_file(digest)).write_bytes(content)
            (new / _CARD).write_bytes(as_json({**card, "weights_sha256": digest, "askew": __version__}))
        for other in folder.glob("weights-*.safetensors"):  # of the model that was there before
            if other.name != _weights_file(digest):
                other.unlink(missing_ok=True)

    @classmethod
    def of_run(
        cls,
        folder: Path | str,
        device: str = "auto",
        target_prior: TargetPrior | None = None,
        made: Mapping[str, Any] | None = None,
    ) -> Predictor:
        """The model of a finished run; the target's mix is the run's own estimate, unless a better one is given."""
        from askew.runs.store import RunFolder  # a model folder is loaded without what runs need

        path = Path(folder)
        if not RunFolder(path).done:
            raise UserError(f"The run in {path} is not finished.", "start its command again to go on.")
        record = read_json(path / "run.json")
        try:
            card = _run_card(path, record, target_prior, made)
            weights = predicting_weights(read_tensors(path / "weights.safetensors")[0])
        except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
            raise UserError(
                f"The run in {path} does not say enough to make a model of it ({error}).",
                "it was made by another version of askew; run it again.",
            ) from None
        return cls(card, weights, device)


def load(path: Path | str, device: str = "auto") -> Predictor:
    """The model in a folder, in the folder `model` within it, or of a finished run. Runs none of its maker's code."""
    folder = Path(path)
    if not folder.exists():
        raise UserError(f"There is no model {folder}.", _HOW)
    if folder.name == _CARD:
        folder = folder.parent
    if not (folder / _CARD).is_file() and (folder / "model" / _CARD).is_file():
        folder = folder / "model"
    if (folder / _CARD).is_file():
        card, values = read_card(folder / _CARD)
        return Predictor(card, _sound_weights(folder, values.get("weights_sha256")), device)
    if (folder / "run.json").is_file():
        return Predictor.of_run(folder, device)
    raise UserError(f"{folder} is not a model of askew's: it holds no {_CARD}.", _HOW)


def _run_card(
    path: Path, record: dict[str, Any], target_prior: TargetPrior | None, made: Mapping[str, Any] | None
) -> Card:
    run = record["run"]
    classes = tuple(str(name) for name in record["classes"])
    method = run["plan"][-1]["method"]
    outputs = read_tensors(path / "outputs.safetensors")[0]
    seen = prior_of(outputs["seen_mix"].tolist(), len(classes), "seen_mix")
    if target_prior is None and (path / "reweighted.json").is_file():
        guess = prior_of(read_json(path / "reweighted.json")["target_mix"], len(classes), "target_mix")
        target_prior = TargetPrior(guess, "bbse")
    sizes = record["source_sizes"]
    return Card(
        net=net_spec(run["net"]),
        rule=rule_of({"method": method["id"], "options": method["options"]}),
        shape=shape_of(record["shape"]),
        classes=classes,
        training_prior=seen,
        source_prior=prior_of([n / sum(sizes) for n in sizes], len(classes), "source_mix"),
        target_prior=target_prior,
        made={"run": run, "images": record["images"], "versions": record["versions"], **(made or {})},
    )


# --- weights ---


def _weights_file(digest: str) -> str:
    return f"weights-{digest[:16]}.safetensors"


def _is_leftover(path: Path) -> bool:
    """Whether a file was left by a `save` that was stopped before it had written the card."""
    return is_temporary(path) or path.match("weights-*.safetensors")


def _sound_weights(folder: Path, digest: Any) -> dict[str, Tensor]:
    """The weights that the card names, if they are still what they were."""
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise UserError(f"{folder / _CARD} is not a model of askew's: it names no weights.", _HOW)
    file = folder / _weights_file(digest)
    if not file.is_file():
        raise UserError(f"The model in {folder} has lost its weights, {file.name}.", "copy the whole folder again.")
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != digest:
        raise UserError(
            f"The weights {file} are not those that the model was saved with: their hash is {found[:16]}….",
            "they were damaged or changed; get the model again from where it comes from.",
        )
    return read_tensors(file)[0]


def _network(card: Card, weights: Mapping[str, Tensor]) -> Net:
    spec = card.net if keeps_source_statistics(weights) else dataclasses.replace(card.net, norm="joint")
    return new_net(spec, card.rule, card.shape, len(card.classes))


def _fitting(weights: Mapping[str, Tensor], net: Net) -> dict[str, Tensor]:
    """Those of the weights that the network has; UserError if one is missing, misshapen or not finite."""
    own, fitting = net.state_dict(), {}
    for name, like in own.items():
        found = weights.get(name)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            what = "none" if found is None else f"{found.dtype} {tuple(found.shape)}"
            raise UserError(
                f"The weights do not fit the network: {name} is {like.dtype} {tuple(like.shape)}, found {what}.",
                "the model was damaged, or made by another version of askew.",
            )
        if not found.isfinite().all():
            raise UserError(f"The weights {name} hold NaN or infinity.", "the model was damaged; make it again.")
        fitting[name] = found.detach().cpu().clone(memory_format=torch.contiguous_format)
    return fitting
