"""`askew.adapt`, `diagnose`, `audit` and `embed`: the commands of these names, for data in files or
in memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew.adaptation.artifacts import write_artifacts
from askew.adaptation.audit import Audit, target_names
from askew.adaptation.audit import audit as audit_folder
from askew.adaptation.candidates import SOURCE_ONLY
from askew.adaptation.given import GivenLabels, GivenShares
from askew.adaptation.members import train
from askew.adaptation.pipeline import adapt as adapt_steps
from askew.adaptation.results import AdaptationResult, DiagnosisResult
from askew.adaptation.setup import AdaptRequest, read_domains, set_up
from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.core.files import temporary_folder
from askew.core.options import checked
from askew.core.tracking import Maker, checked_trackers
from askew.data.custom import CustomData, CustomDomain, few
from askew.data.image_lists import LISTS, USUAL, Columns
from askew.data.objects import as_domain
from askew.evaluation.diagnosis import Diagnosis
from askew.evaluation.diagnosis import diagnose as diagnose_outputs
from askew.evaluation.outputs import DomainOutputs
from askew.inference.embeddings import backbone_spec, embed_pictures, embed_rows, picture_embedder
from askew.inference.predictor import Predictor, load
from askew.methods import named
from askew.methods.base import Method
from askew.nets.modules import backbone_name
from askew.runs.config import Training
from askew.runs.execute import Progress
from askew.runs.journal import Journal
from askew.runs.root import check_out

Returned = TypeVar("Returned")
Watch = Callable[[Generator[Progress, None, Any]], Any]
"""What takes the steps of a training one by one, to show them, say, and gives what the training
returns."""


def silently(training: Generator[Progress, None, Returned]) -> Returned:
    """Take all steps of a training; what it returns."""
    while True:
        try:
            next(training)
        except StopIteration as end:
            returned: Returned = end.value
            return returned


# --- adapt ---


def adapt(  # noqa: PLR0913
    source: Any,
    target: Any,
    out: Path | str | None = None,
    *,
    method: str | Method | type[Method] = "auto",
    params: Mapping[str, Any] | None = None,
    search: int = 0,
    backbone: str | nn.Module = "",
    weights: str = "hub",
    fine_tune: bool | None = None,
    labels: Any = None,
    train_labels: bool = False,
    target_prior: Any = None,
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    image: str = "",
    label: str = "",
    quick: bool = False,
    skip_broken: bool = False,
    device: str = "auto",
    log: Sequence[str | Maker] = (),
    watch: Watch = silently,
) -> AdaptationResult:
    """Adapt a classifier to an unlabelled target, and estimate whether that helped: `askew adapt`
    (docs/python.md).

    >>> result = askew.adapt((xs, ys), xt, method="coal", training=short)
    >>> result.predictions.columns.tolist()
    ['path', 'class', 'probability', 'p_cat', 'p_dog', 'p_owl', 'unknown']
    """
    name, own = named(method)
    inputs = _given(source, target, image, label, skip_broken)
    request = AdaptRequest(
        *inputs,
        name,
        backbone_name(backbone),
        weights,
        fine_tune,
        quick,
        seed,
        training or {},
        skip_broken,
        _columns(source, target, image, label),
        _given_labels(labels, inputs[1]),
        train_labels,
        _given_prior(target_prior),
        params=own | dict(params or {}),
        search=search,
        log=checked_trackers(log),
    )
    return adapted(request, out, device, watch, getattr(target, "index", None))


def adapted(
    request: AdaptRequest,
    out: Path | str | None,
    device: str = "auto",
    watch: Watch = silently,
    index: Any = None,
) -> AdaptationResult:
    """The same for a request: everything that is computed, and its files."""
    with contextlib.ExitStack() as undo:
        folder = undo.enter_context(temporary_folder("askew-adapt")) if out is None else Path(out)
        check_out(folder)
        journal = Journal(
            folder, len(request.candidates("embeddings")) + 1
        )  # until the data are read, a guess
        found = watch(
            journal.watch(adapt_steps(request, folder, pick_device(device), journal.expect))
        )
        write_artifacts(found, folder)
        journal.note(f"the model, predictions and the report of {found.winner.candidate.name}")
        fits = index is not None and not callable(index) and len(index) == len(found.predicted)
        result = AdaptationResult(found, folder, device, index if fits else None)
        weakref.finalize(
            result, undo.pop_all().close
        )  # a temporary folder lasts as long as the result
        return result


# --- diagnose, audit, embed ---


def diagnose(  # noqa: PLR0913
    source: Any,
    target: Any,
    *,
    model: Predictor | AdaptationResult | Path | str | None = None,
    backbone: str | nn.Module = "",
    weights: str = "hub",
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    image: str = "",
    label: str = "",
    quick: bool = False,
    skip_broken: bool = False,
    device: str = "auto",
) -> DiagnosisResult:
    """Test whether two domains differ in their label distribution, in their look, or in both:
    `askew diagnose`.

    A network is trained on the source, unless a model is given.

    >>> found = askew.diagnose((xs, ys), xt, training=short)
    >>> found.shares.round(1).columns.tolist()
    ['source', 'target', 'low', 'high']
    """
    request = AdaptRequest(
        *_given(source, target, image, label, skip_broken),
        "source",
        backbone_name(backbone),
        weights,
        False,
        quick,
        seed,
        training or {},
        skip_broken,
        _columns(source, target, image, label),
    )
    return diagnosed_by(
        request, None, model.model if isinstance(model, AdaptationResult) else model, device
    )


def diagnosed_by(
    request: AdaptRequest,
    out: Path | None,
    model: Predictor | Path | str | None,
    device: str,
    watch: Watch = silently,
) -> DiagnosisResult:
    """The same for a request; `out` keeps the network, if it is given."""
    if out is not None:
        check_out(out)
    with contextlib.nullcontext(out) if out else temporary_folder("askew-diagnose") as folder:
        return DiagnosisResult(*watch(diagnosed(request, folder, pick_device(device), model)))


def diagnosed(
    request: AdaptRequest, out: Path, device: torch.device, model: Path | str | Predictor | None
) -> Generator[Progress, None, tuple[Diagnosis, CustomData]]:
    """What differs between the domains, by a network trained on the source or by a given model; and
    the data."""
    checked(Training, dict(request.training), "training")
    if model is None:
        setup = yield from set_up(request, out, device)
        ((only,), _) = yield from train(setup, request, (SOURCE_ONLY,), out, device)
        return diagnose_outputs(only.outputs), setup.data
    predictor = model if isinstance(model, Predictor) else load(model, str(device))
    data = read_domains(request)
    training_data = data.task.training_data
    if predictor.classes != training_data.classes:
        raise UserError(
            f"The model knows the classes {few(predictor.classes)}; the source has "
            f"{few(training_data.classes)}.",
            "name the source that it was trained on, or one with the same classes.",
        )
    yield Progress(key="model", label="applying the model", step=0, steps=2, losses={})
    source_val = predictor.logits(training_data.source_val.x, domain="source")
    yield Progress(key="model", label="applying the model", step=1, steps=2, losses={})
    target = predictor.logits(training_data.target.x)
    outputs = DomainOutputs.of(
        source_val, training_data.source_val.y, target, predictor.card.training_prior
    )
    return diagnose_outputs(outputs), data


def audit(adaptation: AdaptationResult | Path | str, labels: Any) -> Audit:
    """Evaluate an adaptation on target labels collected afterwards: `askew audit`.

    Labels are a file, as the command takes it; a dictionary or a Series from names, as in
    `predictions`, to labels; or one for each target image in their order, None where there is none.

    >>> result = askew.adapt((xs, ys), xt, method="coal", training=short)
    >>> print(askew.audit(result, yt).labelled)
    60
    """
    folder = adaptation.folder if isinstance(adaptation, AdaptationResult) else Path(adaptation)
    return audit_folder(
        folder, _labels(labels, () if isinstance(labels, str | Path) else target_names(folder))
    )


def _labels(labels: Any, names: Sequence[str]) -> Path | GivenLabels:
    """Labels in a file, by name, or one for each of the names."""
    if isinstance(labels, str | Path):
        return Path(labels)
    if not hasattr(labels, "items") and len(labels) != len(names):
        raise UserError(
            f"There are {len(labels)} labels and {len(names)} target images.",
            "give one or None for each.",
        )
    pairs = labels.items() if hasattr(labels, "items") else zip(names, labels, strict=True)
    return GivenLabels({str(name): _label(label) for name, label in pairs})


def _given_labels(labels: Any, target: Path | CustomDomain) -> Path | GivenLabels | None:
    names = target.names if isinstance(target, CustomDomain) else ()
    return None if labels is None else _labels(labels, names)


def _given_prior(prior: Any) -> Path | GivenShares | None:
    """A file, or shares by class."""
    if prior is None or isinstance(prior, str | Path):
        return None if prior is None else Path(prior)
    return GivenShares(prior)


def _label(value: Any) -> str:
    """A label as text; empty if there is none."""
    plain = value.item() if hasattr(value, "item") else value
    return "" if plain is None or plain != plain else str(plain)


def embed(
    images: Any,
    backbone: str | nn.Module = "resnet50",
    *,
    weights: str = "hub",
    image: str = "",
    skip_broken: bool = False,
    device: str = "auto",
) -> NDArray[np.float32]:
    """Embeddings of images by a frozen network, in their order: `askew embed`. (n, d)

    >>> pictures = np.zeros((2, 3, 8, 8), np.uint8)
    >>> askew.embed(pictures, torch.nn.Flatten()).shape
    (2, 192)
    """
    path = Path(images) if isinstance(images, str | Path) else None
    if path is not None and (path.is_dir() or path.suffix.lower() in LISTS):
        embedder = picture_embedder(backbone_name(backbone), weights, pick_device(device))
        pictures: CustomDomain = silently(
            embed_pictures(path, embedder, skip_broken, Columns(image))
        )
        return embedder.rows(pictures.x)
    domain = as_domain(images, "target", image=image, skip_broken=skip_broken)
    spec = backbone_spec(backbone_name(backbone), weights, domain.shape)
    return embed_rows(domain.x, spec, pick_device(device))


def _given(
    source: Any, target: Any, image: str, label: str, skip_broken: bool
) -> tuple[Path | CustomDomain, Path | CustomDomain]:
    """Paths as they are; what lives in memory as domains."""
    paths = [isinstance(given, str | Path) for given in (source, target)]
    how: dict[str, Any] = {"image": image, "skip_broken": skip_broken}
    return (
        Path(source) if paths[0] else as_domain(source, "source", label=label, **how),
        Path(target) if paths[1] else as_domain(target, "target", **how),
    )


def _columns(source: Any, target: Any, image: str, label: str) -> Columns:
    """Of two lists in files; a domain in memory was read by them already, and a file beside it has
    its own."""
    return (
        Columns(image, label)
        if all(isinstance(given, str | Path) for given in (source, target))
        else USUAL
    )
