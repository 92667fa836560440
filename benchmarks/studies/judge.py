"""Judge the label-free scores, the verdict and the estimates of the target prior on finished runs with known labels.

    python benchmarks/studies/judge.py RUNS [RUNS …] [--data DATA] [--json FILE]

Runs of one task, shift, draw and seed are the candidates of one choice, as a user without labels would have them;
numbers are means over these choices. Markdown goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from askew.core.files import read_tensors
from askew.data.benchmarks import load_task
from askew.data.task import Task
from askew.evaluation.logits import Floats
from askew.evaluation.metrics import mean
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.prior_estimators import ESTIMATORS, target_prior
from askew.evaluation.validators import CHOOSERS, SCORES, ScoredNetwork, choose, score_networks
from askew.evaluation.verdict import judge_transfers
from askew.runs.root import finished_runs
from askew.runs.store import RunFolder

SOURCE_ONLY = "source"
MATTERS = 1.0
"""Points of per-class mean accuracy from which a difference counts as help or harm."""
VERDICTS = ("helped", "unclear", "hurt")
COUNTED = "counting"
"""The share of target images that each class is predicted for: what an estimator has to beat."""
RANDOM_PICK = "random pick (mean)"
AUTO = "choose, unless hurt"
"""What `askew adapt` saves: source-only where the verdict on the pick of `choose` is hurt."""

Choice = tuple[str, ...]
"""Task, shift, draw and seed."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A finished run, with what is known from its target labels."""

    method: str
    outputs: DomainOutputs
    accuracy: float
    """Per-class mean accuracy on the whole test split, in points."""
    overall: float
    """Accuracy under the target's own label distribution (the unbalanced test split, if there is one), in points."""
    true_prior: Floats | None


Choices = dict[Choice, list[Candidate]]


def read_choices(roots: Sequence[Path], data: Path | None) -> Choices:
    """Candidates by task, shift, draw and seed, source-only first; choices without source-only are left out."""
    tasks: dict[tuple[str, str, int], Task] = {}
    found: Choices = {}
    for folder in (RunFolder(path) for root in roots for path in finished_runs(root)):
        run = json.loads((folder.path / "run.json").read_text())["run"]
        drawn = (run["task"], run["shift"], run["draw"])
        if drawn not in tasks:
            tasks[drawn] = load_task(*drawn, data)
        key = (run["task"], run["shift"], str(run["draw"]), str(run["seed"]))
        found.setdefault(key, []).append(_candidate(folder, run["plan"][-1]["method"]["id"], tasks[drawn]))
    for candidates in found.values():
        candidates.sort(key=lambda one: one.method != SOURCE_ONLY)
    return {key: some for key, some in found.items() if some[0].method == SOURCE_ONLY and len(some) > 1}


def _candidate(folder: RunFolder, method: str, task: Task) -> Candidate:
    logits, _ = read_tensors(folder.path / "outputs.safetensors")
    seen = json.loads((folder.path / "reweighted.json").read_text())["seen_mix"]
    outputs = DomainOutputs.of(logits["source_val"], task.training_data.source_val.y, logits["target"], seen)
    assert task.test is not None, "a benchmark's task has one"
    sizes = task.test.target_sizes
    prior = None if sizes is None else sizes / sizes.sum()
    scores = folder.scores()
    overall = scores.get("paper", scores["whole"])["overall"]
    return Candidate(method, outputs, scores["whole"]["per_class_mean"], overall, prior)


def judge_scores(
    candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork], verdicts: Sequence[str]
) -> dict[str, dict[str, float]]:
    """For every score: its rank correlation with accuracy, and how many points its pick is below the best."""

    accuracy = np.array([one.accuracy for one in candidates])
    columns = {name: np.array([network.scores[name] for network in networks]) for name in SCORES}
    columns["choose"] = np.sum([rankdata(columns[name].round(9)) for name in CHOOSERS], axis=0)
    found = {name: {"rank": spearman(v, accuracy), "pick": int(v.argmax())} for name, v in columns.items()}
    pick = choose(networks)
    assert found["choose"]["pick"] == pick
    found[AUTO] = {"rank": math.nan, "pick": 0 if pick and verdicts[pick - 1] == "hurt" else pick}
    found["source only"] = {"rank": math.nan, "pick": 0}
    judged = {
        name: {"rank": f["rank"], "regret": accuracy.max() - accuracy[int(f["pick"])]} for name, f in found.items()
    }
    return judged | {RANDOM_PICK: {"rank": 0.0, "regret": accuracy.max() - accuracy.mean()}}


def spearman(scores: Floats, accuracy: Floats) -> float:
    """The rank correlation; 0 where all candidates score the same."""
    from scipy.stats import spearmanr

    return float(spearmanr(scores, accuracy).statistic) if np.ptp(scores) and np.ptp(accuracy) else 0.0


def judge_verdicts(candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork]) -> list[dict[str, Any]]:
    """The verdict on every adapted run, beside what is true."""
    before, *adapted = candidates
    found = []
    for after, verdict in zip(adapted, judge_transfers(networks), strict=True):
        truths = {
            "truth": _truth(after.accuracy - before.accuracy),
            "truth_overall": _truth(after.overall - before.overall),
        }
        found.append({"method": after.method, **truths, **verdict.as_dict()})
    return found


def _truth(gain: float) -> str:
    return "helped" if gain > MATTERS else "hurt" if gain < -MATTERS else "unclear"


def judge_priors(candidates: Sequence[Candidate]) -> dict[str, dict[str, float]]:
    """L1 error of every estimate of the target prior, before adaptation and, on average over the runs, after."""
    errors: dict[str, list[float]] = {}
    for one in candidates:
        if one.true_prior is None:
            continue
        predicted = one.outputs.target.argmax(axis=1)
        priors = {COUNTED: np.bincount(predicted, minlength=one.outputs.classes) / len(predicted)}
        priors |= {name: target_prior(one.outputs, name) for name in ESTIMATORS}
        for name, prior in priors.items():
            errors.setdefault(name, []).append(float(np.abs(prior - one.true_prior).sum()))
    return {name: {"before": values[0], "after": mean(values[1:])} for name, values in errors.items()}


def judge_choice(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """Everything that is judged on one choice."""
    networks = score_networks([one.outputs for one in candidates])
    verdicts = judge_verdicts(candidates, networks)
    return {
        "candidates": [{"method": one.method, "accuracy": one.accuracy} for one in candidates],
        "scores": judge_scores(candidates, networks, [one["verdict"] for one in verdicts]),
        "verdicts": verdicts,
        "priors": judge_priors(candidates),
    }


# --- Markdown ---

Judged = Mapping[Choice, Mapping[str, Any]]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def by_task(judged: Judged, value: Callable[[Any], float]) -> list[float]:
    """Means over the choices of each task, and over tasks."""
    tasks: dict[str, list[float]] = {}
    for key, of_choice in judged.items():
        tasks.setdefault(key[0], []).append(value(of_choice))
    means = [mean(values) for _, values in sorted(tasks.items())]
    return [*means, mean(means)]


def scores_table(judged: Judged, tasks: Sequence[str], what: str, form: str) -> str:
    rows = []
    for name in (*SCORES, "choose", AUTO, RANDOM_PICK, "source only"):
        values = by_task(judged, lambda of, name=name: of["scores"][name][what])
        rows.append([name, *("–" if math.isnan(v) else form.format(v) for v in values)])
    return table(["score", *tasks, "mean"], rows)


def verdicts_table(judged: Judged, by: str, measure: str) -> str:
    found = [one for of in judged.values() for one in of["verdicts"]]
    rows = [
        [truth, *(str(sum(v[by] == truth and v["verdict"] == verdict for v in found)) for verdict in VERDICTS)]
        for truth in VERDICTS
    ]
    right = mean([float(v[by] == v["verdict"]) for v in found])
    wrong = mean([float({v[by], v["verdict"]} == {"helped", "hurt"}) for v in found])
    share = f"right {100 * right:.0f} %, opposite to the truth {100 * wrong:.0f} % of {len(found)} adapted runs"
    return f"The verdict, by {measure} ({share}):\n\n" + table(["true \\ verdict", *VERDICTS], rows)


def priors_table(judged: Judged, tasks: Sequence[str]) -> str:
    rows = [
        [f"{name} {when}", *(f"{v:.2f}" for v in by_task(judged, lambda of, n=name, w=when: of["priors"][n][w]))]
        for name in (COUNTED, *ESTIMATORS)
        for when in ("before", "after")
    ]
    return table(["estimator", *tasks, "mean"], rows)


def markdown(judged: Judged) -> str:
    tasks = sorted({key[0] for key in judged})
    counts = [sum(key[0] == task for key in judged) for task in tasks]
    parts = [
        ", ".join(f"{task}: {n} choices" for task, n in zip(tasks, counts, strict=True)) + ".\n",
        "Spearman's rank correlation with true per-class mean accuracy:\n",
        scores_table(judged, tasks, "rank", "{:.2f}"),
        "Regret of the pick, in points below the best (the oracle's is 0):\n",
        scores_table(judged, tasks, "regret", "{:.1f}"),
        verdicts_table(judged, "truth", "per-class mean accuracy"),
        verdicts_table(judged, "truth_overall", "accuracy under the target's own label distribution"),
        "L1 error of the estimated target prior, before (source-only) and after adaptation:\n",
        priors_table(judged, tasks),
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path, help="Write everything there.")
    args = parser.parse_args()
    judged = {key: judge_choice(candidates) for key, candidates in read_choices(args.runs, args.data).items()}
    if not judged:
        parser.exit(
            2, "There is no choice to judge: a task needs a finished source-only run and another one of its seed.\n"
        )
    if args.json:
        args.json.write_text(json.dumps([{"choice": key, **of} for key, of in judged.items()], indent=1))
    print(markdown(judged))


if __name__ == "__main__":
    main()
