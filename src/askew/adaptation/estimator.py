"""A scikit-learn estimator: adaptation in memory, on rows of features or on small images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from askew.adaptation.candidates import AUTO, SOURCE_ONLY, Candidate, answered, refit_joins, refits
from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.data.custom import OWN, kind_of
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TrainingData, make_unlabeled_task
from askew.evaluation.agreement import ExpectedAccuracy, expected_accuracy
from askew.evaluation.calibration import at_temperature, mean_outputs, temperature, temperature_for
from askew.evaluation.diagnosis import alike, remaining_difference
from askew.evaluation.logits import as_labels
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.prior_estimators import estimate_prior
from askew.evaluation.target_shares import TargetShares, target_shares
from askew.evaluation.validators import (
    ScoredNetwork,
    choose,
    choose_several,
    score_another,
    score_networks,
)
from askew.evaluation.verdict import judge_transfers
from askew.inference.ensemble import join, joins
from askew.inference.model_card import ModelCard, TargetPrior
from askew.inference.predictor import Predictor, Prior
from askew.methods import method_class, named
from askew.methods.base import Method
from askew.nets.network import predicting_weights
from askew.training.run import Run
from askew.training.snapshot import NotFinite, Snapshot
from askew.training.trainer import fit

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
    method : which method adapts, by id or as an object; `askew methods` lists them. auto: those
    that `askew adapt`
        tries, and one of them is chosen without labels.
    net : the network by name: mlp or bare for rows; mini, digits-28, digits-32 or a torchvision
    model for images. params : the method's hyper-parameters, by name.
    training : training settings, by name, such as {"rounds": 10}; others are those of `askew
    adapt`. prior : the class prior to decide under: uniform, source, target (as estimated), seen
    (in training), or shares. random_state : seeds weights, batches and which tenth of the source is
    held out. device : auto, cpu, cuda, cuda:N or mps.

    Attributes
    ----------
    classes_ : labels, sorted.
    method_ : the method whose network predicts.
    scores_ : with auto, the label-free scores of each method.
    target_prior_ : the target's estimated class prior, or None without a target: the share of
    target rows that each
        class is predicted for or, where nothing but the class prior differs, black-box shift
        estimation (Lipton et al. 2018).
    expected_accuracy_ : with auto, what share of the target rows is expected to be right: how often
    two of the adapted
        networks name the same class. None without a target, or where no two were trained.
    predictor_ : the trained model, calibrated on held-out source rows or, with auto, to be as sure
    of the target's as
        it is expected to be right; it can be saved and exported.
    """

    def __init__(
        self,
        method: str | Method = "auto",
        net: str = "mlp",
        *,
        params: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        prior: Prior = "uniform",
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.net = net
        self.params = params
        self.training = training
        self.prior = prior
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
        return self.predictor_.predict_proba(self._inputs(X, reset=False), self.prior)

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
        source = Labeled(xs, y.astype(np.int64))
        target = Unlabeled(
            np.require(xt if len(xt) else xs, requirements="W")
        )  # torch's tensors are writable
        name = f"{OWN}/{kind_of(tuple(source.x.shape[1:]))}"
        task = make_unlabeled_task(name, source, target, tuple(map(str, self.classes_)), seed)
        candidates = (
            self._candidates("embeddings" if source.x.ndim == 2 else "small-images")
            if len(xt)
            else (SOURCE_ONLY,)
        )
        runs = [self._run(candidate, task, seed) for candidate in candidates]
        device, done = pick_device(self.device), dict[str, Snapshot]()
        try:
            trained = [_trained(run, task.training_data, device, done) for run in runs]
        except NotFinite as error:
            raise ValueError(
                f"{error.what} after step {error.step}: scale the rows, or lower lr."
            ) from None
        networks = (
            score_networks(list(map(_outputs, trained)))
            if len(task.training_data.source_val)
            else []
        )
        weights = [one.weight for one in candidates]
        members = _chosen(networks, runs, weights) if networks else [len(trained) - 1]
        if len(members) > 1 and refits(task):
            refit, again = answered(
                task, [candidates[i] for i in members], [_outputs(trained[i]) for i in members]
            )
            run = self._run(refit, again, seed)
            last = _trained(run, again.training_data, device, done)
            if refit_joins(_outputs(last), again):
                candidates, members = (*candidates, refit), [*members, len(trained)]
                networks.append(score_another(networks, _outputs(last)))
                runs, trained = [*runs, run], [*trained, last]
        self._keep(
            candidates, runs, trained, networks, members, task.training_data, adapts=len(xt) > 0
        )
        return self

    def _candidates(self, kind: str) -> tuple[Candidate, ...]:
        if self.method != "auto":
            name, own = named(self.method)
            return (Candidate(method_class(name).id, name, params=own | dict(self.params or {})),)
        if self.params:
            raise UserError(
                "Hyper-parameters belong to one method, and the method is auto.",
                "method='coal', say.",
            )
        return AUTO[kind]

    def _run(self, candidate: Candidate, task: Task, seed: int) -> Run:
        return candidate.run(task, self.net, self.training or {}, seed)

    def _keep(
        self,
        candidates: Sequence[Candidate],
        runs: list[Run],
        trained: list[Snapshot],
        networks: list[ScoredNetwork],
        members: Sequence[int],
        data: TrainingData,
        adapts: bool,
    ) -> None:
        """Calibrate the network that was chosen, or the mean of several, and keep it."""
        names, weights = [one.name for one in candidates], [one.weight for one in candidates]
        self.method_ = " + ".join(names[i] for i in members)
        self.scores_ = {
            name: dict(network.scores) for name, network in zip(names, networks, strict=False)
        }
        shares = (
            _shares([network.outputs for network in networks], members, weights)
            if adapts and networks
            else None
        )
        self.target_prior_ = None if shares is None else shares.prior
        sizes = data.source.sizes(len(self.classes_)) + data.source_val.sizes(len(self.classes_))
        models = []
        for run, last in ((runs[i], trained[i]) for i in members):
            card = ModelCard(
                net=run.net,
                rule=run.method,
                shape=tuple(data.source.x.shape[1:]),
                classes=data.classes,
                training_prior=tuple(last.training_prior.tolist()),
                source_prior=tuple((sizes / sizes.sum()).tolist()),
                target_prior=None if shares is None else TargetPrior.of(shares),
                made={"by": "askew.AdaptiveClassifier", "run": run.describe()},
            )
            models.append(Predictor(card, predicting_weights(last.weights()), self.device))
        scored = [networks[i] for i in members] if networks else []
        several = self.method == "auto" and adapts and scored and 0 not in members
        adapted = zip(candidates[1:], networks[1:], strict=True) if several else ()
        compared = [network.outputs for one, network in adapted if not one.is_refit]
        self.predictor_, self.expected_accuracy_ = _calibrated(
            models, scored, [weights[i] for i in members], compared
        )


def _calibrated(
    models: Sequence[Predictor],
    networks: Sequence[ScoredNetwork],
    weights: Sequence[float],
    compared: Sequence[DomainOutputs],
) -> tuple[Predictor, ExpectedAccuracy | None]:
    """One model, or several as one, calibrated on the held-out source or, where others can be
    compared, on the target; and what share of the target is right."""
    if not networks:
        return models[0], None
    model, t, outputs = models[0], networks[0].temperature, networks[0].outputs
    if len(models) > 1:
        model = join(models, [network.temperature for network in networks], weights)
        mean = mean_outputs([network.outputs for network in networks], weights)
        t = temperature(mean)
        outputs = at_temperature(mean, t)
    expected = expected_accuracy(compared, as_labels(outputs.target_uniform.argmax(axis=1)))
    if expected is not None:
        t *= temperature_for(outputs.target_uniform, expected.overall)
    return Predictor(
        dataclasses.replace(model.card, temperature=t), model.weights, str(model.device)
    ), expected


def _shares(
    networks: Sequence[DomainOutputs], members: Sequence[int], weights: Sequence[float]
) -> TargetShares:
    """The target's label distribution, by those that were chosen of the compared networks."""
    chosen = [networks[i] for i in members]
    outputs = chosen[0] if len(chosen) == 1 else mean_outputs(chosen, [weights[i] for i in members])
    others = [one for one in networks if one is not outputs]
    remains = [remaining_difference(one) for one in (networks[0], outputs)]
    return target_shares(outputs, others, estimate_prior(outputs), alike(remains))


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
    return np.asarray(marks < 0)


def _trained(
    run: Run, training_data: TrainingData, device: torch.device, done: dict[str, Snapshot]
) -> Snapshot:
    """The last snapshot of a run, after the stages before it, which runs share, without a
    folder."""
    if run.key not in done:
        start = (
            None
            if run.before is None
            else _trained(run.before, training_data, device, done).weights()
        )
        *_, done[run.key] = fit(run, training_data, device, start=start)
    return done[run.key]


def _outputs(snapshot: Snapshot) -> DomainOutputs:
    outputs = snapshot.outputs
    return DomainOutputs.of(
        outputs.source_val, outputs.source_val_y, outputs.target, snapshot.training_prior
    )


def _chosen(networks: list[ScoredNetwork], runs: list[Run], weights: Sequence[float]) -> list[int]:
    """The networks that label-free scores prefer; source-only, the first, if the verdict is against
    them."""
    members = [i for i in choose_several(networks, weights) if joins(runs[i])] or [choose(networks)]
    if members == [0]:
        return members
    outputs = mean_outputs([networks[i].outputs for i in members], [weights[i] for i in members])
    (verdict,) = judge_transfers([networks[0], score_another(networks, outputs)])
    return [0] if verdict.verdict == "hurt" else members
