"""Adapt to data of one's own: train a few methods, choose one without labels, and judge whether it helped."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from askew.adaptation.setup import SOURCE_ONLY, AdaptRequest, Candidate, Setup, check_out, read_domains, set_up
from askew.core.errors import UserError
from askew.core.files import read_tensors, sweep
from askew.core.options import checked
from askew.data.custom import CustomData, few
from askew.evaluation.diagnosis import Diagnosis, diagnose
from askew.evaluation.logits import Floats, softmax
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.validators import choose, score_networks
from askew.evaluation.verdict import Verdict, judge_transfers
from askew.inference.predictor import load
from askew.runs.config import RunRequest, Training, plan_run
from askew.runs.execute import Execution, Progress, execute
from askew.runs.store import open_root
from askew.training.run import Run


@dataclass(frozen=True, eq=False)
class Trained:
    """A candidate with its finished run and its network's outputs."""

    candidate: Candidate
    run: Run
    folder: Path
    outputs: DomainOutputs


@dataclass(frozen=True, eq=False)
class Adaptation:
    """All results."""

    request: AdaptRequest
    setup: Setup
    trained: tuple[Trained, ...]
    failed: Mapping[str, str]
    """Candidates that could not be trained, and why."""
    scores: tuple[Mapping[str, float], ...]
    """Label-free scores of each."""
    verdicts: Mapping[str, Verdict]
    """Of each candidate against source-only."""
    chosen: int
    """Whose network is saved."""
    rejected: str
    """The candidate that the scores preferred, if its verdict was against it; empty otherwise."""
    diagnosis: Diagnosis
    probabilities: Floats
    """Of the target's images, calibrated, under a uniform class prior. (n_t, c)"""
    temperature: float
    """What calibrated the chosen network."""
    seconds: float

    @property
    def winner(self) -> Trained:
        return self.trained[self.chosen]

    @property
    def verdict(self) -> Verdict | None:
        """On the saved network; None if that is source-only."""
        return self.verdicts.get(self.winner.candidate.name)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.setup.task.training_data.classes

    @property
    def predicted(self) -> NDArray[np.int64]:
        classes: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return classes

    @property
    def sentence(self) -> str:
        """Whether it helped, and which network was saved if that is not obvious."""
        if self.verdict is not None and self.verdict.verdict == "hurt":
            return (
                f"{self.verdict.sentence} The network of {self.winner.candidate.name} was saved because it was "
                "asked for; `--method source` gives the one without adaptation."
            )
        if self.verdict is not None:
            return self.verdict.sentence
        if self.rejected:
            return (
                f"The network without adaptation was saved: {self.rejected} had the best scores, but looks harmful "
                f"when compared with it. {self.verdicts[self.rejected].sentence}"
            )
        if len(self.trained) > 1:
            return "No method looks better than the network without adaptation, which was saved."
        return "The network was trained on the source alone: there is nothing to compare it with."


# --- training and choosing ---


def train(
    setup: Setup, request: AdaptRequest, candidates: Sequence[Candidate], out: Path, device: torch.device
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """Every candidate's run, in its folder, and why others failed; source-only may not fail."""
    runs = []
    for candidate in candidates:
        training = dict(setup.training) | dict(candidate.training)
        one = RunRequest(setup.task.name, candidate.method, request.seed, shift="natural", training=training)
        runs.append((candidate, plan_run(one, setup.task, setup.network)))
    how = Execution(open_root(out / "runs"), device)
    done, failed = [], {}
    for candidate, run in runs:
        try:
            yield from execute(run, setup.task, how)
        except UserError as error:
            if candidate is SOURCE_ONLY:
                raise
            failed[candidate.name] = error.sentence
            continue
        folder = how.root / run.key
        done.append(Trained(candidate, run, folder, read_outputs(folder)))
    return done, failed


def read_outputs(folder: Path) -> DomainOutputs:
    """The outputs of a finished run's network on held-out source and target."""
    stored, _ = read_tensors(folder / "outputs.safetensors")
    return DomainOutputs.of(stored["source_val"], stored["source_val_y"], stored["target"], stored["seen_mix"])


def adapt(request: AdaptRequest, out: Path, device: torch.device) -> Generator[Progress, None, Adaptation]:
    """Everything but the files at the end, which `write_artifacts` writes."""
    began = time.monotonic()
    check_out(out)
    sweep(out)
    _ = request.candidates  # what is wrong in the request is an error before any work
    checked(Training, dict(request.training), "training")
    setup = yield from set_up(request, out, device)
    trained, failed = yield from train(setup, request, setup.candidates(request), out, device)
    steps = len(trained) + 2
    yield Progress("choice", "choosing without labels", 0, steps, {})
    networks = score_networks([t.outputs for t in trained])
    verdicts = {}
    for i, (t, verdict) in enumerate(zip(trained[1:], judge_transfers(networks), strict=True), start=1):
        verdicts[t.candidate.name] = verdict
        yield Progress("choice", "choosing without labels", i, steps, {})
    preferred = choose(networks) if request.method == "auto" else len(trained) - 1
    name = trained[preferred].candidate.name
    harmful = request.method == "auto" and preferred > 0 and verdicts[name].verdict == "hurt"
    chosen = 0 if harmful else preferred
    yield Progress("choice", "estimating the label distribution", steps - 1, steps, {})
    outputs = networks[chosen].outputs
    diagnosis = diagnose(networks[0].outputs, outputs if chosen else None)
    return Adaptation(
        request, setup, tuple(trained), failed, tuple(network.scores for network in networks), verdicts, chosen,
        name if harmful else "", diagnosis, softmax(outputs.target_uniform), networks[chosen].temperature,
        time.monotonic() - began,
    )  # fmt: skip


def diagnosed(
    request: AdaptRequest, out: Path, device: torch.device, model: Path | None
) -> Generator[Progress, None, tuple[Diagnosis, CustomData]]:
    """What differs between the domains, by a network trained on the source or by a given model; and the data."""
    checked(Training, dict(request.training), "training")
    if model is None:
        setup = yield from set_up(request, out, device)
        ((only,), _) = yield from train(setup, request, (SOURCE_ONLY,), out, device)
        return diagnose(only.outputs), setup.data
    predictor = load(model, str(device))
    data = read_domains(request)
    training_data = data.task.training_data
    if predictor.classes != training_data.classes:
        raise UserError(
            f"The model knows the classes {few(predictor.classes)}; the source has {few(training_data.classes)}.",
            "name the source that it was trained on, or one with the same classes.",
        )
    yield Progress("model", "applying the model", 0, 2, {})
    source_val = predictor.logits(training_data.source_val.x, domain="source")
    yield Progress("model", "applying the model", 1, 2, {})
    target = predictor.logits(training_data.target.x)
    outputs = DomainOutputs.of(source_val, training_data.source_val.y, target, predictor.card.training_prior)
    return diagnose(outputs), data
