"""The networks of an adaptation: candidates trained on the same images, and those that answer
together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from askew.adaptation.candidates import (
    ENSEMBLE,
    FROZEN,
    REFIT,
    REFIT_BESIDE_TUNED,
    SOURCE_ONLY,
    Candidate,
    answered,
    choose_members,
    refit_joins,
    refits,
)
from askew.adaptation.given import TargetLabels, taught
from askew.adaptation.setup import AdaptRequest, Setup, on_rows
from askew.core.errors import UserError
from askew.core.files import Unwritable
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.logits import Labels, as_labels, softmax
from askew.evaluation.outputs import DomainOutputs, read_outputs
from askew.evaluation.validators import ScoredNetwork, choose, score_networks
from askew.inference.embeddings import Embedders
from askew.inference.ensemble import joins
from askew.nets.network import fetch_weights
from askew.runs.config import hash_of_answers
from askew.runs.execute import Execution, Progress, execute
from askew.runs.root import open_root
from askew.runs.store import RunFolder
from askew.training.run import Run


@dataclass(frozen=True, eq=False)
class Trained:
    """A candidate with its finished run and its network's outputs."""

    candidate: Candidate
    run: Run
    folder: Path
    outputs: DomainOutputs
    members: tuple[Trained, ...] = ()
    """Those that an ensemble consists of; run and folder are the first one's."""
    embedders: Embedders | None = None
    """The frozen backbone below its network, where the others have been fine-tuned."""
    answers: NDArray[np.float32] | None = None
    """What other networks had answered for the target's images before it was trained. (n_t, c)"""

    @property
    def predicted(self) -> Labels:
        """The class of each target image under a uniform prior. (n_t,)"""
        return as_labels(self.outputs.target_uniform.argmax(axis=1))


def train(
    setup: Setup,
    request: AdaptRequest,
    candidates: Sequence[Candidate],
    out: Path,
    device: torch.device,
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """Every candidate's run, in its folder, and why others failed; source-only may not fail."""
    runs = []
    for candidate in candidates:
        runs.append(
            (
                candidate,
                run := candidate.run(setup.task, setup.network, setup.training, request.seed),
            )
        )
        if not RunFolder(out / "runs" / run.key).done:
            fetch_weights(run.net, tuple(setup.task.training_data.source.x.shape[1:]))
    how = Execution(root=open_root(out / "runs"), device=device, log=request.log)
    done, failed = [], {}
    for candidate, run in runs:
        needed = candidate.method == SOURCE_ONLY.method
        if request.take and not RunFolder(how.root / run.key).done:
            if needed or candidate.name == request.take:
                raise UserError(
                    f"The network of {candidate.name} is not in {out}: it failed, or data or "
                    "settings have changed.",
                    "run `askew adapt` again with the same -o.",
                )
            failed[candidate.name] = "it was not trained."
            continue
        try:
            for step in execute(run, setup.task, how):
                yield replace(step, label=candidate.name) if step.key == run.key else step
            outputs = read_outputs(how.root / run.key)
        except UserError as error:
            if needed or isinstance(error, Unwritable):  # a full disk is no method's fault
                raise
            failed[candidate.name] = error.sentence
            continue
        given = setup.task.training_data.answers
        done.append(Trained(candidate, run, how.root / run.key, outputs, answers=given))
    return done, failed


def answer(
    rows: Setup, request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str], NDArray[np.float32]]]:
    """What is trained on embeddings before a backbone is fine-tuned, why others failed, and what
    the former answer together for the target's images. (n_t, c)"""
    trained, failed = yield from train(rows, request, FROZEN, out, device)
    answers, failures = yield from answer_together(trained, rows, request, out, device)
    return [replace(t, embedders=rows.embedders) for t in trained], failed | failures, answers


def answer_together(
    trained: Sequence[Trained], rows: Setup, request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, tuple[NDArray[np.float32], dict[str, str]]]:
    """What networks, source-only first, answer for the target's images, for others to begin with.
    (n_t, c)"""
    networks = score_networks([t.outputs for t in trained], rows.prior)
    joint, failed = yield from ensemble_of(trained, networks, rows, request, out, device)
    best = joint[-1].outputs if joint else networks[choose(networks)].outputs
    return softmax(best.target_uniform).astype(np.float32), failed


def train_guided(  # noqa: PLR0913
    candidates: Sequence[Candidate],
    trained: Sequence[Trained],
    frozen: Sequence[Trained],
    setup: Setup,
    rows: Setup,
    request: AdaptRequest,
    out: Path,
    device: torch.device,
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """Those that begin with the answers of some that have been fine-tuned and of the frozen ones
    together."""
    more, failed, by_name = (
        list[Trained](),
        dict[str, str](),
        {t.candidate.name: t for t in trained},
    )
    for candidate in candidates:
        missing = [name for name in candidate.guided_by if name not in by_name]
        if missing:
            failed[candidate.name] = (
                f"{' and '.join(missing)}, whose answers it begins with, failed."
            )
            continue
        guides = [by_name[name] for name in candidate.guided_by]
        answers, failures = yield from answer_together(
            [trained[0], *guides, *frozen], rows, request, out, device
        )
        failed |= failures
        if hash_of_answers(answers) == hash_of_answers(setup.task.training_data.answers):
            # Scores prefer source-only to its guides, which have no say then.
            continue
        found, failures = yield from train(setup.guided(answers), request, [candidate], out, device)
        more, failed = more + found, failed | failures
    return more, failed


def ensemble_of(
    trained: Sequence[Trained],
    networks: Sequence[ScoredNetwork],
    rows: Setup | None,
    request: AdaptRequest,
    out: Path,
    device: torch.device,
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """Of the better adapted networks, `joined`; nothing where fewer than two can be."""
    chosen = choose_members([t.candidate for t in trained], networks)
    counted = [
        replace(trained[i], candidate=replace(trained[i].candidate, weight=weight))
        for i, weight in chosen
    ]
    members = [t for t in counted if joins(t.run)]
    if len(members) < 2:
        return [], {}
    return (yield from joined(ENSEMBLE.name, members, rows, request, out, device))


def joined(
    name: str,
    members: Sequence[Trained],
    rows: Setup | None,
    request: AdaptRequest,
    out: Path,
    device: torch.device,
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """What several networks answer together, last; before it, on wide rows, the one fitted to their
    answers."""
    more, failed, every = list[Trained](), dict[str, str](), list(members)
    if rows is not None and refits(rows.task):
        tuned = any(
            t.run.task != rows.task.name for t in members
        )  # on images, and not all on these rows
        kind = REFIT_BESIDE_TUNED if tuned else REFIT
        refit, task = answered(
            rows.task, [t.candidate for t in members], [t.outputs for t in members], kind
        )
        refit = replace(
            refit, name=name.replace(ENSEMBLE.name, refit.name), taught=members[0].candidate.taught
        )
        more, failed = yield from train(replace(rows, task=task), request, [refit], out, device)
        more = [replace(t, embedders=rows.embedders if tuned else None) for t in more]
        every += [t for t in more if refit_joins(t.outputs, task)]
    return [
        *more,
        together(replace(ENSEMBLE, name=name, taught=members[0].candidate.taught), every),
    ], failed


def together(candidate: Candidate, members: Sequence[Trained]) -> Trained:
    outputs = mean_outputs([t.outputs for t in members], [t.candidate.weight for t in members])
    return Trained(candidate, members[0].run, members[0].folder, outputs, tuple(members))


def teach(
    winner: Trained,
    labels: TargetLabels,
    setup: Setup,
    request: AdaptRequest,
    out: Path,
    device: torch.device,
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """What was chosen, trained again with the labels: every member of an ensemble, and last their
    mean."""
    again = replace(setup, task=taught(setup.task, labels))
    plain = [t for t in winner.members or (winner,) if not t.candidate.is_refit]
    candidates = [
        replace(t.candidate, name=f"{t.candidate.name}, with labels", taught=True) for t in plain
    ]
    more, failed = list[Trained](), dict[str, str]()
    for one, before in zip(candidates, plain, strict=True):
        if not one.frozen:
            own = again if before.answers is None else again.guided(before.answers)
            found, failures = yield from train(own, request, [one], out, device)
            more, failed = more + found, failed | failures
    rows = None if request.quick else (yield from on_rows(request, setup, device))
    if rows is not None:
        rows = replace(rows, task=taught(rows.task, labels))
        frozen = [one for one in candidates if one.frozen]
        others, failures = yield from train(rows, request, frozen, out, device)
        more, failed = (
            more + [replace(t, embedders=rows.embedders) for t in others],
            failed | failures,
        )
    if len(more) < 2:
        return more, failed
    rest, failures = yield from joined(
        f"{ENSEMBLE.name}, with labels", more, rows, request, out, device
    )
    return more + rest, failed | failures
