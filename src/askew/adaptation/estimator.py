"""A scikit-learn estimator: adaptation in memory, on rows of features or on small images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from askew.core.device import pick_device
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData, make_unlabeled_task
from askew.evaluation.prior_estimators import bbse_prior
from askew.inference.model_card import ModelCard, TargetPrior
from askew.inference.predictor import Predictor, Prior
from askew.runs.config import RunRequest, plan_run
from askew.training.run import Run
from askew.training.snapshot import NotFinite, Snapshot
from askew.training.trainer import fit

Rows = NDArray[Any]

LENGTH = {"pretrain": 150, "rounds": 5, "round": 30}
"""Default length of training: an estimator is fitted many times, and rows are learnt in a second or two."""


class AdaptiveClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns from labelled source rows and unlabelled target rows to predict the target, whatever its class prior.

    In `fit(X, y)` target rows are those whose label is −1, as in scikit-learn's semi-supervised estimators, so −1 is
    never a class; without any it trains on the source alone. `fit_domains(Xs, ys, Xt)` takes the two apart, and any
    labels. X are rows of features, best scaled first, or uint8 images (n, channels, height, width).

    Parameters
    ----------
    method : which method adapts; `askew methods` lists them.
    net : the network by name: mlp or bare for rows; mini, digits-28, digits-32 or a torchvision model for images.
    hyper : the method's hyper-parameters, by name.
    training : training settings, by name, such as {"rounds": 10}.
    prior : the class prior to decide under: uniform, source, target (as estimated), seen (in training), or shares.
    random_state : seeds weights, batches and which tenth of the source is held out.
    device : auto, cpu, cuda or cuda:N.

    Attributes
    ----------
    classes_ : labels, sorted.
    target_prior_ : the target's estimated class prior, or None without a target (black-box shift estimation, Lipton et
        al. 2018, on the adapted network).
    predictor_ : the trained model, which can be saved and exported.
    """

    def __init__(
        self,
        method: str = "coal",
        net: str = "mlp",
        *,
        hyper: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        prior: Prior = "uniform",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.net = net
        self.hyper = hyper
        self.training = training
        self.prior = prior
        self.random_state = random_state
        self.device = device

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train on the rows with a label, and adapt to those whose label is −1."""
        x, labels = self._checked(X, y)
        target = _is_target(labels)
        if target.all():
            raise ValueError("All labels are -1: there is no source row to learn from.")
        return self._fit(x[~target], labels[~target], x[target])

    def fit_domains(self, Xs: ArrayLike, ys: ArrayLike, Xt: ArrayLike) -> Self:
        """Train on the source's rows and labels, and adapt to the target's rows."""
        xs, labels = self._checked(Xs, ys)
        return self._fit(xs, labels, self._inputs(Xt, reset=False))

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probability of each class, in the order of `classes_`. (n, c)"""
        check_is_fitted(self)
        return self.predictor_.predict_proba(self._inputs(X, reset=False), self.prior)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
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
        x: Rows = np.asarray(X) if _are_images(X) else validate_data(self, X, dtype=np.float32, reset=reset)
        return x

    # --- training ---

    def _fit(self, xs: Rows, labels: NDArray[Any], xt: Rows) -> Self:
        check_classification_targets(labels)
        self.classes_, y = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        seed = int(check_random_state(self.random_state).randint(2**31))
        adapts = len(xt) > 0
        source = Labeled(xs, y.astype(np.int64))
        target = Unlabeled(np.require(xt if adapts else xs, requirements="W"))  # torch's tensors are writable
        name = f"own/{'images' if source.x.ndim == 4 else 'rows'}"
        task = make_unlabeled_task(name, source, target, tuple(map(str, self.classes_)), seed)
        request = RunRequest(
            task.name, self.method if adapts else "source", seed, shift="natural",
            hyper=(self.hyper or {}) if adapts else {}, training=LENGTH | dict(self.training or {}),
        )  # fmt: skip
        run = plan_run(request, task, self.net)
        try:
            trained = _trained(run, task.training_data, pick_device(self.device))
        except NotFinite as error:
            raise ValueError(f"{error.what} after step {error.step}: scale the rows, or lower lr.") from None
        self._keep(run, task.training_data, trained, adapts)
        return self

    def _keep(self, run: Run, training_data: TrainingData, trained: Snapshot, adapts: bool) -> None:
        outputs, c = trained.outputs, len(self.classes_)
        sizes = training_data.source.sizes(c) + training_data.source_val.sizes(c)
        estimate = None
        if adapts and len(training_data.source_val):
            estimate = tuple(bbse_prior(outputs.source_val, outputs.source_val_y, outputs.target).tolist())
        self.target_prior_ = None if estimate is None else np.array(estimate)
        card = ModelCard(
            net=run.net,
            rule=run.method,
            shape=tuple(training_data.source.x.shape[1:]),
            classes=training_data.classes,
            training_prior=tuple(trained.training_prior.tolist()),
            source_prior=tuple((sizes / sizes.sum()).tolist()),
            target_prior=None if estimate is None else TargetPrior(estimate, "bbse"),
            made={"by": "askew.AdaptiveClassifier", "run": run.describe()},
        )
        self.predictor_ = Predictor(card, trained.weights(), self.device)


def _are_images(X: Any) -> bool:
    return getattr(X, "dtype", None) == np.uint8 and getattr(X, "ndim", 0) == 4


def _is_target(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows marked as target: −1, as a number also where the other labels are names."""
    if y.dtype.kind in "US" and (y == np.array("-1", dtype=y.dtype)).any():
        raise ValueError("y holds the text '-1'; mark target rows with the number -1, in an array of dtype=object.")
    if y.dtype.kind == "O":
        return np.array([isinstance(v, int | float | np.number) and v == -1 for v in y], dtype=np.bool_)
    return np.asarray(y == -1) if y.dtype.kind in "iuf" else np.zeros(len(y), dtype=np.bool_)


def _trained(run: Run, training_data: TrainingData, device: torch.device) -> Snapshot:
    """The last snapshot of a run, after the stages before it, without a folder."""
    start = None if run.before is None else _trained(run.before, training_data, device).weights()
    *_, last = fit(run, training_data, device, start=start)
    return last
