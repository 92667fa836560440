"""`askew.adapt`, `diagnose`, `audit` and `embed`: the commands of these names, for data in files or
in memory."""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew.adaptation.artifacts import write_artifacts
from askew.adaptation.assessment import Adaptation, assess
from askew.adaptation.audit import Audit, target_names
from askew.adaptation.audit import audit as audit_folder
from askew.adaptation.given import labels_of
from askew.adaptation.inputs import read_domains, read_inputs
from askew.adaptation.recipe import auto, named_candidates, one_method, take
from askew.adaptation.request import AdaptRequest, GivenLabels, GivenShares, check_combination
from askew.adaptation.result import AdaptationResult, DiagnosisResult
from askew.adaptation.session import SOURCE_ONLY, Expect, Session
from askew.adaptation.switch import identity, require_same
from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.core.files import sweep, temporary_folder
from askew.core.options import checked, shown
from askew.core.options import path as as_path
from askew.core.plugins import load_function
from askew.core.tracking import Maker, checked_trackers
from askew.data.custom import CustomData, CustomDomain, few
from askew.data.feature_columns import in_order_of
from askew.data.image_lists import LISTS, USUAL, Columns
from askew.data.objects import as_domain
from askew.evaluation.diagnosis import Diagnosis
from askew.evaluation.diagnosis import diagnose as diagnose_outputs
from askew.evaluation.outputs import DomainOutputs
from askew.inference.embeddings import (
    checked_embedding,
    embed_pictures,
    embed_rows,
    picture_embedder,
)
from askew.inference.predictor import Predictor, load
from askew.methods import id_and_params, make_method, method_class
from askew.methods.base import Method
from askew.nets.embedding import Embedding
from askew.nets.modules import backbone_name
from askew.runs.config import Training
from askew.runs.execute import Progress
from askew.runs.journal import Journal
from askew.runs.root import check_out

Returned = TypeVar("Returned")
MethodLike = str | Method | type[Method]
"""A method by id, as file.py:Class, as a class, or as an object with its hyper-parameters."""
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


def usual_watch() -> Watch:
    """Show progress where somebody looks: in a terminal or a notebook."""
    notebook = "ipykernel" in sys.modules
    if notebook or (sys.stderr is not None and sys.stderr.isatty()):
        return load_function("askew.cli.progress:watch")  # of a layer above this one
    return silently


# --- adapt ---


def adapt(  # noqa: PLR0913
    source: Any,
    target: Any,
    out: Path | str | None = None,
    *,
    methods: MethodLike | Sequence[MethodLike] = "auto",
    params: Mapping[str, Any] | None = None,
    search: int = 0,
    backbone: str | nn.Module = "",
    weights: str = "hub",
    fine_tune: bool | None = None,
    labels: Any = None,
    target_shares: Any = None,
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    image: str = "",
    label: str = "",
    quick: bool = False,
    skip_broken: bool = False,
    device: str = "auto",
    log: Sequence[str | Maker] = (),
    watch: Watch | None = None,
    overwrite: bool = False,
) -> AdaptationResult:
    """Adapt a classifier to an unlabelled target, and estimate whether that helped.

    `methods` is one method, which is then saved; several, which `auto` combines; or auto. A folder
    `out` that holds the result of another request is refused, unless `overwrite` is true. `watch`
    shows progress: bars in a terminal or a notebook, and nothing elsewhere.

    >>> result = askew.adapt((xs, ys), xt, methods="coal", training=short)
    >>> result.predictions.columns.tolist()
    ['path', 'class', 'probability', 'p_cat', 'p_dog', 'p_owl', 'unknown']
    """
    names, own = named_methods(methods, params)
    given_source, given_target = _given(source, target, image, label, skip_broken)
    request = AdaptRequest(
        source=given_source,
        target=given_target,
        methods=names,
        params=own,
        search=search,
        backbone=backbone_name(backbone),
        weights=weights,
        fine_tune=fine_tune,
        quick=quick,
        seed=seed,
        training=training or {},
        skip_broken=skip_broken,
        columns=_columns(source, target, image, label),
        labels=_given_labels(labels, given_target),
        target_shares=_given_shares(target_shares),
        log=checked_trackers(log),
    )
    index = getattr(target, "index", None)
    return run_request(request, out, device, watch or usual_watch(), index, overwrite=overwrite)


def run_request(
    request: AdaptRequest,
    out: Path | str | None,
    device: str = "auto",
    watch: Watch = silently,
    index: Any = None,
    *,
    overwrite: bool = False,
) -> AdaptationResult:
    """Do the same for a request: everything that is computed, and its files."""
    with contextlib.ExitStack() as undo:
        if out is None:
            folder = undo.enter_context(temporary_folder("askew-adapt"))
        else:
            folder = as_path("out", out)
        check_out(folder)
        require_same(folder, identity(request), overwrite=overwrite)
        journal = Journal(folder, 1)  # how many trainings there are is known once data are read
        work = adapt_steps(request, folder, pick_device(device), journal.expect)
        found = watch(journal.watch(work))
        write_artifacts(found, folder)
        journal.note(f"the model, predictions and the report of {found.final.name}")
        fits = index is not None and not callable(index) and len(index) == len(found.predicted)
        result = AdaptationResult(found, folder, device, index if fits else None)
        # A temporary folder lasts as long as the result.
        weakref.finalize(result, undo.pop_all().close)
        return result


def adapt_steps(
    request: AdaptRequest,
    out: Path,
    device: torch.device,
    expect: Expect = lambda trainings, later: None,
) -> Generator[Progress, None, Adaptation]:
    """Compute everything but the files at the end, which `write_artifacts` writes."""
    began = time.monotonic()
    check_out(out)
    sweep(out)
    request.check()
    checked(Training, dict(request.training), "training")
    inputs = yield from read_inputs(request, out, device)
    session = Session(
        out / "runs",
        device,
        seed=request.seed,
        log=request.log,
        resamples=request.resamples,
        train_missing=not request.take,
        expect=expect,
    )
    candidates = named_candidates(request.methods, request.params, request.search)
    if request.method:
        outcome = yield from one_method(session, inputs, candidates)
    else:
        outcome = yield from auto(session, inputs, candidates)
    outcome = take(outcome, request.take) if request.take else outcome
    yield Progress(key="choice", label="estimating class shares", step=0, steps=1, losses={})
    found = assess(session, inputs, outcome)
    return replace(found, seconds=time.monotonic() - began, request=request)


def named_methods(
    methods: MethodLike | Sequence[MethodLike], params: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Give the names of methods and their hyper-parameters by id; no names stand for auto."""
    several = [methods] if isinstance(methods, str | Method | type) else list(methods)
    if several in ([], ["auto"]):
        several = []
    if params and len(several) != 1:
        raise UserError(
            "Hyper-parameters belong to one method, and several are combined.",
            "methods='coal', say.",
        )
    pairs = [id_and_params(method) for method in several]
    check_combination([method_class(name).id for name, _ in pairs])
    own = {method_class(name).id: {**of_object, **(params or {})} for name, of_object in pairs}
    for name, _ in pairs:
        make_method(name, own[method_class(name).id])  # a UserError for a wrong name or value
    return tuple(name for name, _ in pairs), {
        name: values for name, values in own.items() if values
    }


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
    """Test whether two domains differ in their class shares, in their look, or in both.

    A network is trained on the source, unless a model is given.

    >>> found = askew.diagnose((xs, ys), xt, training=short)
    >>> found.shares.round(1).columns.tolist()
    ['source', 'target', 'low', 'high']
    """
    given_source, given_target = _given(source, target, image, label, skip_broken)
    request = AdaptRequest(
        source=given_source,
        target=given_target,
        methods=(SOURCE_ONLY.method,),
        backbone=backbone_name(backbone),
        weights=weights,
        fine_tune=False,
        quick=quick,
        seed=seed,
        training=training or {},
        skip_broken=skip_broken,
        columns=_columns(source, target, image, label),
    )
    own_model = model.model if isinstance(model, AdaptationResult) else model
    return diagnose_request(request, None, own_model, device)


def diagnose_request(
    request: AdaptRequest,
    out: Path | None,
    model: Predictor | Path | str | None,
    device: str,
    watch: Watch = silently,
) -> DiagnosisResult:
    """Do the same for a request; `out` keeps the network, if it is given."""
    if out is not None:
        check_out(out)
    with contextlib.nullcontext(out) if out else temporary_folder("askew-diagnose") as folder:
        return DiagnosisResult(*watch(diagnose_steps(request, folder, pick_device(device), model)))


def diagnose_steps(
    request: AdaptRequest, out: Path, device: torch.device, model: Path | str | Predictor | None
) -> Generator[Progress, None, tuple[Diagnosis, CustomData]]:
    """Diagnose by a network trained on the source, or by a given model; give the data too."""
    checked(Training, dict(request.training), "training")
    if model is None:
        inputs = yield from read_inputs(request, out, device)
        features = inputs.rows or inputs.pixels
        assert features is not None
        assert inputs.data is not None
        (only,) = yield from Session(out / "runs", device, seed=request.seed).train(
            [SOURCE_ONLY], features
        )
        return diagnose_outputs(only.outputs), inputs.data
    predictor = model if isinstance(model, Predictor) else load(model, str(device))
    data = read_domains(request)
    training_data = data.task.training_data
    if predictor.classes != training_data.classes:
        raise UserError(
            f"The model knows the classes {few(predictor.classes)}; the source has "
            f"{few(training_data.classes)}.",
            "name the source that it was trained on, or one with the same classes.",
        )
    order = in_order_of(predictor.card.columns, data.columns, "The source", "the model")
    source_rows, target_rows = (
        x if order is None else np.asarray(x)[:, order]
        for x in (training_data.source_val.x, training_data.target.x)
    )
    yield Progress(key="model", label="applying the model", step=0, steps=2, losses={})
    source_val = predictor.logits(source_rows, domain="source")
    yield Progress(key="model", label="applying the model", step=1, steps=2, losses={})
    target = predictor.logits(target_rows)
    outputs = DomainOutputs.of(
        source_val, training_data.source_val.y, target, predictor.card.training_prior
    )
    return diagnose_outputs(outputs), data


def audit(adaptation: AdaptationResult | Path | str, labels: Any) -> Audit:
    """Evaluate an adaptation on target labels collected afterwards: `askew audit`.

    Labels are a file, as the command takes it; a dictionary or a Series from names, as in
    `predictions`, to labels; or one for each target image in their order, None where there is none.
    A pair (x, y), a DataFrame with a column of labels, or a data set is matched by its content.

    >>> result = askew.adapt((xs, ys), xt, methods="coal", training=short)
    >>> print(askew.audit(result, yt).labelled)
    60
    """
    folder = adaptation.folder if isinstance(adaptation, AdaptationResult) else Path(adaptation)
    return audit_folder(
        folder, labels_of(labels, () if isinstance(labels, str | Path) else target_names(folder))
    )


def _given_labels(
    labels: Any, target: Path | CustomDomain
) -> Path | GivenLabels | CustomDomain | None:
    names = target.names if isinstance(target, CustomDomain) else ()
    return None if labels is None else labels_of(labels, names)


def _given_shares(shares: Any) -> Path | GivenShares | None:
    """A file, or shares by class."""
    if shares is None or isinstance(shares, str | Path):
        return None if shares is None else Path(shares)
    try:
        return GivenShares(shares)
    except (TypeError, ValueError):
        raise UserError(
            f"The target's class shares are {shown(shares)}, and no shares by class.",
            "give a path, or a dictionary such as {'cat': 0.7, 'dog': 0.3}.",
        ) from None


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
    embedding = Embedding(backbone=backbone_name(backbone), weights=weights)
    path = Path(images) if isinstance(images, str | Path) else None
    if path is not None and (path.is_dir() or path.suffix.lower() in LISTS):
        embedder = picture_embedder(embedding, pick_device(device))
        pictures: CustomDomain = silently(
            embed_pictures(path, embedder, skip_broken, Columns(image))
        )
        return embedder.rows(pictures.x)
    domain = as_domain(images, "target", image=image, skip_broken=skip_broken)
    embedding = checked_embedding(embedding, domain.shape)
    return embed_rows(domain.x, embedding, pick_device(device))


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
