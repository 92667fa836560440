"""A scikit-learn estimator: adaptation in memory, on rows of features or on small images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from askew.adaptation.api import MethodLike, named_methods, silently
from askew.adaptation.artifacts import final_model
from askew.adaptation.assessment import assess
from askew.adaptation.inputs import Inputs
from askew.adaptation.recipe import auto, named_candidates, one_method
from askew.adaptation.session import Session, TrainingSet
from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.core.files import temporary_folder
from askew.core.options import checked
from askew.data.custom import kind_of
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, make_unlabeled_task
from askew.inference.predictor import ClassShares, Predictor
from askew.runs.config import Training

Rows = NDArray[Any]

SampleDomain = ArrayLike | None
"""Which domain each row is of, as skada marks them: below 0 a target, from 0 on a source."""


class AdaptiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns from labelled source rows and unlabelled target rows to predict the target, whatever
    its class prior.

    In `fit(X, y)` target rows are those whose label is −1, as in scikit-learn's semi-supervised
    estimators, so −1 is never a class; `fit(X, y, sample_domain)` marks them as skada does, below
    0; `fit_domains(Xs, ys, Xt)` takes the two apart. Without a target it trains on the source
    alone. X are rows of features, best scaled first, or uint8 images (n, channels, height, width).

    >>> model = askew.AdaptiveClassifier("coal", training=short).fit_domains(xs, ys, xt)
    >>> model.predict(xt).shape, model.method_
    ((60,), 'coal')

    Parameters
    ----------
    methods : which method adapts, by id or as an object; several, which `auto` combines; or auto.
        `askew methods` lists them.
    backbone : the network by name: mlp or bare for rows; mini, digits-28, digits-32 or a
        torchvision model for images.
    params : hyper-parameters of the one method, by name.
    training : training settings, by name, such as {"rounds": 10}; others are those of
        `askew adapt`.
    shares : the class shares to decide under: equal, source, target (as estimated), training, or
        one share per class.
    random_state : seeds weights, batches and which tenth of the source is held out.
    device : auto, cpu, cuda, cuda:N or mps.

    Attributes
    ----------
    classes_ : labels, sorted.
    method_ : the name of the network that predicts.
    scores_ : label-free scores of each network that was trained.
    target_shares_ : the target's estimated class shares, or None without a target.
    expected_accuracy_ : with several methods, which share of the target rows is expected to be
        right. None without a target.
    predictor_ : the trained model, calibrated; it can be saved and exported.
    """

    def __init__(
        self,
        methods: MethodLike | Sequence[MethodLike] = "auto",
        backbone: str = "mlp",
        *,
        params: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        shares: ClassShares = "equal",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.methods = methods
        self.backbone = backbone
        self.params = params
        self.training = training
        self.shares = shares
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike, sample_domain: SampleDomain = None) -> Self:
        """Train on the source's rows, and adapt to the target's: those marked so, or whose label is
        −1."""
        x, labels = self._checked(X, y)
        target = _is_target(labels) if sample_domain is None else _below_zero(sample_domain, len(x))
        if target.all():
            raise ValueError("All rows are the target's: there is no source row to learn from.")
        if _is_target(labels[~target]).any():
            raise ValueError("A source row has the label -1, which means that there is none.")
        return self._fit(x[~target], labels[~target], x[target])

    def fit_domains(self, Xs: ArrayLike, ys: ArrayLike, Xt: ArrayLike) -> Self:
        """Train on the source's rows and labels, and adapt to the target's rows."""
        xs, labels = self._checked(Xs, ys)
        return self._fit(xs, labels, self._inputs(Xt, reset=False))

    def predict_proba(
        self, X: ArrayLike, sample_domain: SampleDomain = None
    ) -> NDArray[np.float64]:
        """Calibrated probability of each class, in the order of `classes_`; rows are taken for the
        target's. (n, c)"""
        check_is_fitted(self)
        return self.predictor_.predict_proba(self._inputs(X, reset=False), self.shares)

    def predict(self, X: ArrayLike, sample_domain: SampleDomain = None) -> NDArray[Any]:
        """The most probable class of each row. (n,)"""
        p = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[p.argmax(axis=1)]
        return predicted

    # --- inputs ---

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[Rows, NDArray[Any]]:
        if _are_images(X):
            x, labels = np.asarray(X), np.asarray(y)
            self.n_features_in_ = int(np.prod(x.shape[1:]))
            if labels.shape != (len(x),):
                raise ValueError(f"There are {len(x)} images and labels of shape {labels.shape}.")
            return x, labels
        x, labels = validate_data(self, X, y, dtype=np.float32)
        return x, labels

    def _inputs(self, X: ArrayLike, reset: bool) -> Rows:
        x: Rows = (
            np.asarray(X)
            if _are_images(X)
            else validate_data(self, X, dtype=np.float32, reset=reset)
        )
        return x

    # --- training ---

    def _fit(self, xs: Rows, labels: NDArray[Any], xt: Rows) -> Self:
        check_classification_targets(labels)
        self.classes_, y = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        seed = int(check_random_state(self.random_state).randint(2**31))
        inputs = self._made_inputs(Labeled(xs, y.astype(np.int64)), xt, seed)
        checked(Training, dict(self.training or {}), "training")
        names, params = named_methods(self.methods, self.params)
        candidates = named_candidates(names, params, 0)
        with temporary_folder("askew-fit") as folder:
            session = Session(folder / "runs", pick_device(self.device), seed=seed)
            train = auto if len(xt) and len(names) != 1 else one_method
            try:
                outcome = silently(train(session, inputs, candidates if len(xt) else ()))
            except UserError as error:
                raise ValueError(f"{error.sentence} Scale the rows, or lower lr.") from None
            found = assess(session, inputs, outcome)
            model = final_model(found)
        self.method_ = found.final.name
        self.scores_ = {
            one.name: dict(scores) for one, scores in zip(found.networks, found.scores, strict=True)
        }
        self.target_shares_ = found.diagnosis.target_prior.prior if len(xt) else None
        self.expected_accuracy_ = found.expected
        columns = tuple(getattr(self, "feature_names_in_", ())) if xs.ndim == 2 else ()
        card = replace(model.card, columns=columns)
        self.predictor_ = Predictor(card, model.weights, self.device)
        return self

    def _made_inputs(self, source: Labeled, xt: Rows, seed: int) -> Inputs:
        """Make the inputs of an adaptation; without a target, the source stands in for it."""
        images = source.x.ndim == 4
        # torch's tensors are writable.
        target = Unlabeled(np.require(xt if len(xt) else np.asarray(source.x), requirements="W"))
        kind, classes = kind_of(tuple(source.x.shape[1:])), tuple(map(str, self.classes_))
        task = _with_held_out(make_unlabeled_task(f"own/{kind}", source, target, classes, seed))
        training_set = TrainingSet(
            task=task, network=self.backbone, training=dict(self.training or {})
        )
        if images:
            return Inputs(task=task, kind=kind, pixels=training_set)
        return Inputs(task=task, kind=kind, rows=training_set)


def _with_held_out(task: Task) -> Task:
    """Hold out the source itself where it is too small to leave anything out of training."""
    data = task.training_data
    if len(data.source_val):
        return task
    return replace(task, training_data=replace(data, source_val=data.source))


def _are_images(X: Any) -> bool:
    return getattr(X, "dtype", None) == np.uint8 and getattr(X, "ndim", 0) == 4


def _is_target(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows marked as target: −1, as a number also where the other labels are names."""
    if y.dtype.kind in "US" and (y == np.array("-1", dtype=y.dtype)).any():
        raise ValueError(
            "y holds the text '-1'; mark target rows with the number -1, in an array of "
            "dtype=object."
        )
    if y.dtype.kind == "O":
        return np.array(
            [isinstance(v, int | float | np.number) and v == -1 for v in y], dtype=np.bool_
        )
    return np.asarray(y == -1) if y.dtype.kind in "iuf" else np.zeros(len(y), dtype=np.bool_)


def _below_zero(sample_domain: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Rows of a target, by the marks that skada uses."""
    marks = np.asarray(sample_domain)
    if marks.shape != (n,) or marks.dtype.kind not in "iu":
        raise ValueError(
            f"sample_domain has one whole number for each of the {n} rows, found {marks.shape}."
        )
    if (marks == 0).any():
        raise ValueError(
            "sample_domain holds 0, which is neither: a source has numbers above 0, a target "
            "below 0."
        )
    return np.asarray(marks < 0)
