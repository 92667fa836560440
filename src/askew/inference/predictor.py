"""The trained model: from images or rows to classes, under class shares that are chosen when it
predicts.

A model is a folder: model.json, its card, and weights-<hash>.safetensors. The weights are written
first and named by their hash, which the card holds; so the two always belong together, and a change
to either is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from askew import __version__
from askew.core import hub
from askew.core.device import pick_device
from askew.core.errors import UserError, unknown
from askew.core.files import as_json, is_temporary, read_tensors, whole_folder, writing
from askew.core.options import path as as_path
from askew.core.options import shown
from askew.evaluation.outputs import Floats, adjust_logits, read_stored_outputs, softmax
from askew.inference.inputs import as_input, checked_batch, list_inputs
from askew.inference.model_card import (
    CARD_HASH,
    ModelCard,
    TargetPrior,
    card_hash,
    prior_of,
    read_card,
    require_unedited,
    rule_of,
    run_rule,
    shape_of,
)
from askew.inference.one_result import MODEL, require_one_result
from askew.inference.weights import (
    CARD_FILE,
    HOW,
    empty_network,
    fitting_weights,
    read_weights,
    weights_file,
)
from askew.methods.base import Method
from askew.nets.adabn import SOURCE, with_statistics
from askew.nets.forward import Inputs, channels_last, chunk_rows, fast_backbones, forward_in_chunks
from askew.nets.modules import backbone_name
from askew.nets.network import Net, predicting_weights
from askew.nets.spec import read_network

if TYPE_CHECKING:
    from askew.runs.store import RunFolder

__all__ = ["SHARES", "ClassShares", "Classifier", "ModelCard", "Predictor", "TargetPrior", "load"]

ClassShares = Literal["equal", "source", "target", "training"] | ArrayLike
"""The class shares to decide under: equal, the source's, the estimated target's, those of training,
or one share per class."""
SHARES = ("equal", "source", "target", "training")


class Classifier(nn.Module):
    """A network with the rule that makes its logits: uint8 images or float rows in. (n, …) → (n,
    c)"""

    def __init__(self, rule: Method, net: Net) -> None:
        super().__init__()
        self.rule, self.net = rule, net

    def forward(self, x: Tensor) -> Tensor:
        return self.rule.predict(self.net, x)


@dataclass(frozen=True)
class _Converted:
    """Inputs of any form; its slices are in the network's own."""

    inputs: Sequence[Any] | NDArray[Any]
    card: ModelCard

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.inputs), *self.card.shape)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return as_input(self.inputs[rows], self.card)


class Predictor:
    """A trained model, ready to predict.

    >>> model = askew.load(askew.run("mini/syn-uci", "source", training=short).folder)
    >>> model.predict_proba(np.zeros((2, 3, 32, 32), np.uint8), shares="source").shape
    (2, 10)
    """

    def __init__(
        self, card: ModelCard, weights: Mapping[str, Tensor], device: str = "auto"
    ) -> None:
        """`weights` are those of the network; modules that only training needed are left out."""
        self.card = card
        self.device = pick_device(device)
        with torch.device(
            "meta"
        ):  # checked first: a wrong description must not allocate all memory
            self.weights = fitting_weights(weights, empty_network(card, weights))
        self.classifier = self.plain_classifier().to(self.device)
        channels_last(self.classifier)

    def plain_classifier(self) -> Classifier:
        """A copy of the network on the CPU, its weights in the order in memory that they are stored
        in."""
        net = empty_network(self.card, self.weights)
        net.load_state_dict(self.weights)
        return Classifier(self.card.rule, net).eval()

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:3]) + (", …" if len(self.classes) > 3 else "")
        return (
            f"<Predictor: {len(self.classes)} classes ({names}); {self.card.net.name} on "
            f"{self.card.input}; {self.device}>"
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return self.card.classes

    @property
    def batch(self) -> int:
        """How many inputs are forwarded together unless a caller decides otherwise."""
        return chunk_rows(self.card.shape)

    # --- predictions ---

    def logits(
        self, x: Any, batch: int = 0, domain: Literal["target", "source"] = "target"
    ) -> NDArray[np.float32]:
        """Logits for the class prior of training. (n, c)

        x: uint8 images (n, k, h, w), (n, h, w, k) or (n, h, w); float rows (n, d); pictures of PIL
        or paths of picture files, one or many, which are resized; a folder, a list or an array in a
        file; a data set or loader of torch's or Hugging Face's. The columns of a DataFrame are
        matched by name where the model knows their names. Labels are left out. A network that
        keeps batch statistics of each domain uses those of `domain`.
        """
        inputs = list_inputs(x, self.card)
        if not isinstance(domain, str) or domain not in ("target", "source"):
            raise UserError(f"There is no domain {shown(domain)}.", "target or source.")
        if not len(inputs):
            return np.zeros((0, len(self.classes)), dtype=np.float32)
        return self._forward(_Converted(inputs, self.card), batch, domain)

    def forward(self, x: Inputs, batch: int = 0) -> NDArray[np.float32]:
        """The same for inputs that are in the network's own form already."""
        return self._forward(x, batch, "target")

    def _forward(
        self, x: Inputs, batch: int, domain: Literal["target", "source"]
    ) -> NDArray[np.float32]:
        source = domain == "source"
        classifier = with_statistics(self.classifier, SOURCE) if source else self.classifier
        with self._prepared(classifier):
            return forward_in_chunks(classifier, x, self.device, checked_batch(batch))

    def prepared(self, rows: int = 0) -> AbstractContextManager[None]:
        """Meanwhile, in this thread, a backbone below other layers computes as it did when it made
        their embeddings.

        For many batches of `rows` images, it is worth its time to prepare for exactly those.
        """
        return self._prepared(self.classifier, rows)

    def _prepared(self, classifier: Classifier, rows: int = 0) -> AbstractContextManager[None]:
        on_backbone = self.card.net.on_backbone
        return fast_backbones(classifier, rows) if on_backbone else nullcontext()

    def predict_proba(self, x: Any, shares: ClassShares = "equal", batch: int = 0) -> Floats:
        """Probability of each class, in the order of `classes`. (n, c)"""
        return self.probabilities(self.logits(x, batch), shares)

    def predict(self, x: Any, shares: ClassShares = "equal", batch: int = 0) -> NDArray[np.str_]:
        """The most probable class of each input. (n,)"""
        names: NDArray[np.str_] = np.array(self.classes)[
            self.predict_proba(x, shares, batch).argmax(axis=1)
        ]
        return names

    def probabilities(self, logits: NDArray[Any], shares: ClassShares = "equal") -> Floats:
        """softmax((z_k + b_k − log(c·training_prior_k))/T + log(c·shares_k)): the same from logits.
        (n, c) → (n, c)"""
        try:
            z: Floats = np.asarray(logits, dtype=np.float64)
        except (TypeError, ValueError):
            z = np.empty(0)
        if z.ndim != 2 or z.shape[1] != len(self.classes):
            raise UserError(
                f"Logits are rows of {len(self.classes)} numbers, found {shown(logits)}.",
                "give what `logits` returns.",
            )
        equal = self.logit_shift("equal")
        return softmax((z + equal) / self.card.temperature + self.logit_shift(shares) - equal)

    def logit_shift(self, shares: ClassShares) -> Floats:
        """What class shares add to each class's logit; a class that was absent from training keeps
        its logit. (c,)"""
        training_prior = np.array(self.card.training_prior)
        bias = np.array(self.card.bias) if self.card.bias else np.zeros_like(training_prior)
        return adjust_logits(bias, self.class_shares(shares), training_prior)

    def class_shares(self, shares: ClassShares) -> Floats:
        """Class shares as numbers with the sum one. (c,)"""
        c = len(self.classes)
        if isinstance(shares, str):
            return self._named_shares(shares)
        try:
            given: Floats = np.asarray(shares, dtype=np.float64)
        except (TypeError, ValueError):
            given = np.empty(0)
        if (
            given.shape != (c,)
            or not np.isfinite(given).all()
            or given.min() < 0
            or given.sum() <= 0
        ):
            found = f"{given.size} numbers" if given.shape != (c,) else str(given.tolist())
            raise UserError(
                f"One share is needed for each of the {c} classes, found {found}.",
                f"shares at least 0, in this order: {', '.join(self.classes)}.",
            )
        whole: Floats = given / given.sum()
        return whole

    def _named_shares(self, name: str) -> Floats:
        c, card = len(self.classes), self.card
        known = {
            "equal": (1 / c,) * c,
            "source": card.source_prior,
            "target": card.target_prior.prior if card.target_prior else None,
            "training": card.training_prior,
        }
        if name not in known:
            raise unknown("label distribution", name, SHARES, "or give one share per class.")
        shares = known[name]
        if shares is None:
            raise UserError(
                f"The model does not know the {name}'s class shares.",
                "use equal, or give a share for each class.",
            )
        return np.array(shares, dtype=np.float64)

    # --- on disk ---

    def save(self, path: Path | str) -> None:
        """Write the model's folder, or replace the model in it."""
        from safetensors.torch import save

        folder, card = as_path("path", path), self.card.as_json()
        _require_model_folder(folder)
        content = save(self.weights)
        digest = hashlib.sha256(content).hexdigest()
        with whole_folder(folder, CARD_FILE, "choose another folder.") as new:
            (new / weights_file(digest)).write_bytes(content)
            # as JSON has it, where tuples are lists
            values = json.loads(as_json({**card, "weights_sha256": digest, "askew": __version__}))
            (new / CARD_FILE).write_bytes(as_json({**values, CARD_HASH: card_hash(values)}))
        _remove_other_weights(folder, weights_file(digest))

    @classmethod
    def of_run(
        cls,
        folder: Path | str,
        device: str = "auto",
        target_prior: TargetPrior | None = None,
        made: Mapping[str, Any] | None = None,
        rule: Method | None = None,
    ) -> Predictor:
        """The model of a finished run; the target prior is the run's own estimate, unless a better
        one is given.

        The run of a method from a file needs that method, as `rule`.
        """
        from askew.runs.store import RunFolder  # a model folder is loaded without what runs need

        path = Path(folder)
        if not RunFolder(path).done:
            raise UserError(
                f"The run in {path} is not finished.", "start its command again to go on."
            )
        try:
            card = _run_card(RunFolder(path), target_prior, made, rule)
            weights = predicting_weights(read_tensors(path / "weights.safetensors")[0])
        except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
            raise UserError(
                f"The run in {path} lacks what a model is made of ({error}).",
                "it was made by another version of askew; run it again.",
            ) from None
        return cls(card, weights, device)


def load(
    path: Path | str,
    device: str = "auto",
    method: str = "",
    backbone: str | nn.Module | None = None,
) -> Predictor:
    """The model in a folder, in the folder `model` within it, of a finished run, or on the Hub
    (hf://owner/name).

    Runs none of its maker's code. `method` is `file.py:Class` of a model whose method is from a
    file, `backbone` an nn.Module or `file.py:function` of one whose backbone is somebody's own;
    nothing but these files is run.

    >>> askew.load(askew.run("mini/syn-uci", "source", training=short).folder).classes[:3]
    ('0', '1', '2')
    """
    if backbone not in (None, ""):
        backbone_name(backbone)
    folder = (
        hub.snapshot(str(path), [CARD_FILE, "weights-*.safetensors"])
        if hub.on_hub(path)
        else as_path("path", path)
    )
    if not folder.exists():
        raise UserError(f"There is no model {folder}.", HOW)
    if folder.name == CARD_FILE:
        folder = folder.parent
    if not (folder / CARD_FILE).is_file() and (folder / "model" / CARD_FILE).is_file():
        folder = folder / "model"
    if (folder / CARD_FILE).is_file():
        if folder.name == MODEL:
            require_one_result(folder.parent)
        card, values = read_card(folder / CARD_FILE, method)
        model = Predictor(card, read_weights(folder, values.get("weights_sha256")), device)
        require_unedited(folder / CARD_FILE, values)
        return model
    if (folder / "run.json").is_file():
        return Predictor.of_run(folder, device, rule=run_rule(folder, method))
    raise UserError(f"{folder} is not a model of askew's: it holds no {CARD_FILE}.", HOW)


def replace_model(new: Path, folder: Path) -> None:
    """Move a saved model to where there may be another, its card last."""
    _require_model_folder(folder)
    with writing(folder):
        folder.mkdir(exist_ok=True)
        files = sorted(new.iterdir(), key=lambda file: file.name == CARD_FILE)
        for file in files:
            file.replace(folder / file.name)
        _remove_other_weights(folder, files[0].name)


def _require_model_folder(folder: Path) -> None:
    """Raise a UserError if a folder holds other things than a model."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and a model is a folder.", "choose another name.")
    if (
        folder.is_dir()
        and not (folder / CARD_FILE).is_file()
        and not all(map(_is_leftover, folder.iterdir()))
    ):
        raise UserError(
            f"The folder {folder} holds other things than a model.", "choose a new or empty folder."
        )


def _remove_other_weights(folder: Path, kept: str) -> None:
    """Remove the weights of a model that was there before."""
    for other in folder.glob("weights-*.safetensors"):
        if other.name != kept:
            other.unlink(missing_ok=True)


def _run_card(
    folder: RunFolder,
    target_prior: TargetPrior | None,
    made: Mapping[str, Any] | None,
    rule: Method | None,
) -> ModelCard:
    record, reweighting = folder.record(), folder.reweighting()
    run = record["run"]
    classes = tuple(str(name) for name in record["classes"])
    method = run["plan"][-1]["method"]
    outputs = read_stored_outputs(folder.path)
    training_prior = prior_of(outputs["training_shares"].tolist(), len(classes), "training_shares")
    if target_prior is None and reweighting:
        target_prior = TargetPrior(
            prior_of(reweighting["target_shares"], len(classes), "target_shares"), "bbse"
        )
    sizes = record["source_sizes"]
    return ModelCard(
        net=read_network(run["net"]),
        rule=rule or rule_of({"method": method["id"], "options": method["options"]}),
        shape=shape_of(record["shape"]),
        classes=classes,
        training_prior=training_prior,
        source_prior=prior_of([n / sum(sizes) for n in sizes], len(classes), "source_shares"),
        target_prior=target_prior,
        made={
            "run": run,
            "images": record["images"],
            "versions": record["versions"],
            **(made or {}),
        },
    )


def _is_leftover(path: Path) -> bool:
    """Whether a file was left by a `save` that was stopped before it had written the card."""
    return is_temporary(path) or path.match("weights-*.safetensors")
