"""Judge the label-free scores, the verdict and the estimates of the target prior on finished runs
with known labels.

    python benchmarks/studies/judge.py RUNS [RUNS …] [--data DATA] [--json FILE] [--embeddings
    EMBEDDINGS] \
        [--answers ANSWERS]

Runs of one task, shift, draw and seed are the candidates of one choice, as a user without labels
would have them: what `askew adapt` hands out is the mean of the better ones, unless the verdict on
it is hurt. Numbers are means over these choices. With what `tuned.py embed` wrote for tasks of
PACS, LDA from the answers of fine-tuned networks, and what `askew adapt` trains on embeddings
beside them, are candidates too. With the answers that tuned.py wrote, the two guided teachers are
told apart. Markdown goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from claims import count, off_sentence, prior_errors, truth_of
from own import finished
from scipy.stats import rankdata

from askew.adaptation.candidates import AUTO as CANDIDATES
from askew.adaptation.candidates import (
    FROZEN,
    GUIDED_BY_ALL,
    REFIT_BESIDE_TUNED,
    answered,
    choose_members,
    refit_joins,
)
from askew.adaptation.candidates import Candidate as Kind
from askew.core.files import read_tensors
from askew.data.benchmarks import load_task
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TrainingData
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.diagnosis import diagnose
from askew.evaluation.expected_accuracy import expected_accuracy
from askew.evaluation.metrics import mean, score
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, as_labels
from askew.evaluation.priors import ESTIMATORS, TargetShares, target_prior
from askew.evaluation.scores import SCORES, ScoredNetwork, score_another, score_networks
from askew.evaluation.selection import CHOOSERS, choose
from askew.evaluation.verdict import judge_transfers
from askew.runs.config import hash_of_answers
from askew.runs.root import finished_runs
from askew.runs.store import RunFolder

SOURCE_ONLY = "source"
VERDICTS = ("helped", "unclear", "hurt")
COUNTED = "counting"
"""The share of target images that each class is predicted for: what an estimator has to beat."""
RANDOM_PICK = "random pick (mean)"
AUTO = "handed out"
"""What `askew adapt` saves: the mean of the better networks, or source-only where the verdict on it
is hurt."""
ENSEMBLE = "ensemble"
SHOWN = "shown to users (before: an even one)"

PARTS = ("source", "source_val", "target", "test")
"""Of a task, as `tuned.py embed` writes them."""
TUNED = ".tuned"
"""In names of files: answers that fine-tuned networks had a part in."""

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
    """Accuracy under the target's own label distribution (the unbalanced test split, if there is
    one), in points."""
    true_prior: Floats | None
    test: DomainOutputs
    """With the whole test split as the target."""
    test_y: Labels
    weight: float = 1.0
    """How much it counts in an ensemble."""


Choices = dict[Choice, list[Candidate]]


def read_choices(roots: Sequence[Path], data: Path | None, answers: Path | None = None) -> Choices:
    """Candidates by task, shift, draw and seed, source-only first; choices without source-only are
    left out."""
    files = answers.glob(f"*{TUNED}.npy") if answers else ()
    by_all = {hash_of_answers(np.load(file)) for file in files}
    tasks: dict[tuple[str, str, int], Task] = {}
    found: Choices = {}
    for folder in (RunFolder(path) for root in roots for path in finished_runs(root)):
        run = json.loads((folder.path / "run.json").read_text())["run"]
        drawn = (run["task"], run["shift"], run["draw"])
        if drawn not in tasks:
            tasks[drawn] = load_task(*drawn, data)
        key = (run["task"], run["shift"], str(run["draw"]), str(run["seed"]))
        method = (
            GUIDED_BY_ALL.name if run.get("answers") in by_all else run["plan"][-1]["method"]["id"]
        )
        found.setdefault(key, []).append(candidate_of(folder, method, tasks[drawn]))
    for candidates in found.values():
        candidates.sort(key=lambda one: one.method != SOURCE_ONLY)
    whole = {
        key: some for key, some in found.items() if some[0].method == SOURCE_ONLY and len(some) > 1
    }
    return {
        key: [replace(one, weight=weight_among(one, some)) for one in some]
        for key, some in whole.items()
    }


def weight_among(candidate: Candidate, candidates: Sequence[Candidate]) -> float:
    """How much it counts among fine-tuned networks."""
    guided = any(one.method == "guided" for one in candidates)
    known = CANDIDATES["guided images" if guided else "images"]
    return next((one.weight for one in known if one.name == candidate.method), 1.0)


def candidate_of(folder: RunFolder, method: str, task: Task) -> Candidate:
    logits, _ = read_tensors(folder.path / "outputs.safetensors")
    seen = json.loads((folder.path / "reweighted.json").read_text())["seen_mix"]
    outputs = DomainOutputs.of(
        logits["source_val"], task.training_data.source_val.y, logits["target"], seen
    )
    assert task.test is not None, "a benchmark's task has one"
    sizes = task.test.target_sizes
    prior = None if sizes is None else sizes / sizes.sum()
    scores = folder.scores()
    overall = scores.get("paper", scores["whole"])["overall"]
    test = DomainOutputs.of(
        logits["source_val"], task.training_data.source_val.y, logits["exam"], seen
    )
    return Candidate(
        method, outputs, scores["whole"]["per_class_mean"], overall, prior, test, task.test.y
    )


def ensemble(members: Sequence[Candidate]) -> Candidate:
    """What several networks answer together."""
    weights = [one.weight for one in members]
    first, test = members[0], mean_outputs([one.test for one in members], weights)
    found = score(first.test_y, test.target_uniform.argmax(axis=1), test.classes)
    outputs = mean_outputs([one.outputs for one in members], weights)
    # Its accuracy under the target's own label distribution is not stored anywhere.
    return Candidate(
        ENSEMBLE, outputs, found["per_class_mean"], math.nan, first.true_prior, test, first.test_y
    )


def rows_of(choice: Choice, task: Task, embeddings: Path) -> Task:
    """A task of PACS with embeddings in place of its pictures, whose test images are the whole
    target domain."""
    found = np.load(embeddings / f"{choice[0].replace('/', '.')}.{choice[1]}.npz")
    source, held_out, target, test = (found[part].astype(np.float32) for part in PARTS)
    own = task.training_data
    labelled = (
        Labeled(source, np.asarray(own.source.y)),
        Labeled(held_out, np.asarray(own.source_val.y)),
    )
    return Task(
        "own/embeddings",
        TrainingData(*labelled, Unlabeled(target), Unlabeled(test), own.classes),
        None,
    )


def trained_on_rows(
    kind: Kind, task: Task, seed: int, first: Candidate, kept: Path | None
) -> Candidate:
    """What is trained on embeddings, beside a candidate that was fine-tuned for the same images."""
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        folder = finished(kind.run(task, "mlp", {}, seed), task, kept or Path(scratch) / "runs")
        logits, _ = read_tensors(folder / "outputs.safetensors")
    val, seen = (logits["source_val"], logits["source_val_y"]), logits["seen_mix"]
    outputs, test = (DomainOutputs.of(*val, logits[name], seen) for name in ("target", "exam"))
    right = score(first.test_y, test.target_uniform.argmax(axis=1), test.classes)["per_class_mean"]
    return Candidate(
        kind.name, outputs, right, math.nan, first.true_prior, test, first.test_y, kind.weight
    )


def kind_of(candidate: Candidate) -> Kind:
    """What `askew adapt` would call it."""
    known = next((one for one in FROZEN if one.name == candidate.method), None)
    return known or Kind(candidate.method, candidate.method, weight=candidate.weight)


def judge_scores(
    candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork], handed_out: float
) -> dict[str, dict[str, float]]:
    """For every score: its rank correlation with accuracy, and how many points its pick is below
    the best."""
    accuracy = np.array([one.accuracy for one in candidates])
    columns = {name: np.array([network.scores[name] for network in networks]) for name in SCORES}
    columns["choose"] = np.sum([rankdata(columns[name].round(9)) for name in CHOOSERS], axis=0)
    found = {
        name: {"rank": spearman(v, accuracy), "pick": int(v.argmax())}
        for name, v in columns.items()
    }
    assert found["choose"]["pick"] == choose(networks)
    found["source only"] = {"rank": math.nan, "pick": 0}
    judged = {
        name: {"rank": f["rank"], "regret": accuracy.max() - accuracy[int(f["pick"])]}
        for name, f in found.items()
    }
    judged[AUTO] = {"rank": math.nan, "regret": accuracy.max() - handed_out}
    return judged | {RANDOM_PICK: {"rank": 0.0, "regret": accuracy.max() - accuracy.mean()}}


def spearman(scores: Floats, accuracy: Floats) -> float:
    """The rank correlation; 0 where all candidates score the same."""
    from scipy.stats import spearmanr

    return (
        float(spearmanr(scores, accuracy).statistic) if np.ptp(scores) and np.ptp(accuracy) else 0.0
    )


def judge_verdicts(
    candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork]
) -> list[dict[str, Any]]:
    """The verdict on every adapted run, beside what is true."""
    before, *adapted = candidates
    found = []
    for after, verdict in zip(adapted, judge_transfers(networks), strict=True):
        known = not math.isnan(after.overall)
        truths = {
            "truth": truth_of(after.accuracy - before.accuracy),
            "truth_overall": truth_of(after.overall - before.overall) if known else None,
        }
        found.append({"method": after.method, **truths, **verdict.as_dict()})
    return found


def judge_priors(candidates: Sequence[Candidate]) -> dict[str, dict[str, float]]:
    """L1 error of every estimate of the target prior, before adaptation and, on average over the
    runs, after."""
    errors: dict[str, list[float]] = {}
    for one in candidates:
        if one.true_prior is None:
            continue
        predicted = one.outputs.target.argmax(axis=1)
        priors = {COUNTED: np.bincount(predicted, minlength=one.outputs.classes) / len(predicted)}
        priors |= {name: target_prior(one.outputs, name) for name in ESTIMATORS}
        for name, prior in priors.items():
            errors.setdefault(name, []).append(float(np.abs(prior - one.true_prior).sum()))
    return {
        name: {"before": values[0], "after": mean(values[1:])} for name, values in errors.items()
    }


def judge_choice(
    candidates: Sequence[Candidate],
    rows: Task | None = None,
    seed: int = 0,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Everything that is judged on one choice; networks on rows are kept there, and not trained
    again."""
    if rows is not None:
        candidates = [
            *candidates,
            *(trained_on_rows(one, rows, seed, candidates[0], kept) for one in FROZEN[1:]),
        ]
    networks = single = score_networks([one.outputs for one in candidates])
    kinds, compared = [kind_of(one) for one in candidates], list(candidates)
    several = choose_members(kinds, single) or [(0, 1.0)]
    if len(several) > 1:
        members = [replace(candidates[i], weight=weight) for i, weight in several]
        if rows is not None:
            counted = [replace(kinds[i], weight=weight) for i, weight in several]
            kind, task = answered(
                rows, counted, [one.outputs for one in members], REFIT_BESIDE_TUNED
            )
            fitted = trained_on_rows(kind, task, seed, candidates[0], kept)
            compared.append(fitted)
            members += [fitted] if refit_joins(fitted.outputs, task) else []
        compared.append(ensemble(members))
        networks = [
            *single,
            *(score_another(single, one.outputs) for one in compared[len(single) :]),
        ]
    verdicts = judge_verdicts(compared, networks)
    pick = several[0][0] if len(several) == 1 else len(compared) - 1
    pick = 0 if pick and verdicts[pick - 1]["verdict"] == "hurt" else pick
    others = [network.outputs for i, network in enumerate(single) if i not in (0, pick)]
    adapted, answers = (
        [one.outputs for one in single[1:]],
        networks[pick].outputs.target_uniform.argmax(axis=1),
    )
    expected = expected_accuracy(adapted, as_labels(answers)) if pick else None
    prior = diagnose(
        single[0].outputs, networks[pick].outputs if pick else None, others
    ).target_prior
    return {
        "candidates": [{"method": one.method, "accuracy": one.accuracy} for one in compared],
        "handed_out": {
            "method": compared[pick].method,
            "accuracy": compared[pick].accuracy,
            "verdict": verdicts[pick - 1]["verdict"] if pick else None,
            "confidence": 100 * networks[pick].scores["expected"],
            "expected": None if expected is None else 100 * expected.per_class_mean,
        },
        "scores": judge_scores(candidates, single, compared[pick].accuracy),
        "verdicts": verdicts,
        "priors": judge_priors(candidates) | judge_shown(prior, candidates[0].true_prior),
    }


def judge_shown(shown: TargetShares, truth: Floats | None) -> dict[str, dict[str, float]]:
    """The label distribution that users see, beside an even one, and how many classes its intervals
    hold."""
    if truth is None:
        return {}
    found = prior_errors(shown, truth)
    return {SHOWN: {"before": found["l1_even"], "after": found["l1"], "covered": found["covered"]}}


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
    found = [one for of in judged.values() for one in of["verdicts"] if one[by] is not None]
    rows = [
        [
            truth,
            *(
                str(sum(v[by] == truth and v["verdict"] == verdict for v in found))
                for verdict in VERDICTS
            ),
        ]
        for truth in VERDICTS
    ]
    right, wrong = (
        100 * n / len(found) for n in count([v["verdict"] for v in found], [v[by] for v in found])
    )
    share = f"right {right:.0f} %, opposite to the truth {wrong:.0f} % of {len(found)} adapted runs"
    return f"The verdict, by {measure} ({share}):\n\n" + table(["true \\ verdict", *VERDICTS], rows)


def handed_out_verdicts(judged: Judged) -> str:
    """How often the verdict on what is handed out is right."""
    verdicts = [of["handed_out"]["verdict"] or "unclear" for of in judged.values()]
    gains = [
        of["handed_out"]["accuracy"] - of["candidates"][0]["accuracy"] for of in judged.values()
    ]
    right, opposite = count(verdicts, [truth_of(gain) for gain in gains])
    return f"On what is handed out: right {right}, opposite {opposite} of {len(verdicts)}.\n"


def expected_line(judged: Judged) -> str:
    """How far the accuracy that users are told to expect is off, and the confidence of what is
    handed out."""
    told = [of["handed_out"] for of in judged.values() if of["handed_out"]["expected"] is not None]
    if not told:
        return "No accuracy is expected where fewer than two adapted networks are compared.\n"
    truth = [one["accuracy"] for one in told]
    expected, confidence = (
        off_sentence([one[key] for one in told], truth) for key in ("expected", "confidence")
    )
    return (
        f"Expected per-class mean accuracy: {expected} ({len(told)} choices); confidence by "
        f"class: {confidence}.\n"
    )


def priors_table(judged: Judged, tasks: Sequence[str]) -> str:
    rows = [
        [
            f"{name} {when}",
            *(f"{v:.2f}" for v in by_task(judged, lambda of, n=name, w=when: of["priors"][n][w])),
        ]
        for name in (COUNTED, *ESTIMATORS, SHOWN)
        for when in ("before", "after")
    ]
    covered = by_task(judged, lambda of: of["priors"][SHOWN]["covered"])
    rows.append(
        ["classes whose 95 % interval holds the truth", *(f"{100 * v:.0f} %" for v in covered)]
    )
    return table(["estimator", *tasks, "mean"], rows)


def handed_out_table(judged: Judged, tasks: Sequence[str]) -> str:
    """Accuracy of what is handed out beside every candidate's and the best one's."""
    methods = list(
        dict.fromkeys(one["method"] for of in judged.values() for one in of["candidates"])
    )
    rows = []
    for method in methods:
        own = {
            k: [o["accuracy"] for o in of["candidates"] if o["method"] == method]
            for k, of in judged.items()
        }
        here = {key: {"accuracy": values[0]} for key, values in own.items() if values}
        if len(here) == len(judged):  # an ensemble is not made every time
            rows.append([method, *(f"{v:.1f}" for v in by_task(here, lambda of: of["accuracy"]))])
    best = by_task(
        judged, lambda of: max(o["accuracy"] for o in of["candidates"] if o["method"] != ENSEMBLE)
    )
    rows.append(["the best of each choice", *(f"{v:.1f}" for v in best)])
    rows.append(
        [
            f"**{AUTO}**",
            *(f"{v:.1f}" for v in by_task(judged, lambda of: of["handed_out"]["accuracy"])),
        ]
    )
    return table(["method", *tasks, "mean"], rows)


def markdown(judged: Judged) -> str:
    tasks = sorted({key[0] for key in judged})
    counts = [sum(key[0] == task for key in judged) for task in tasks]
    parts = [
        ", ".join(f"{task}: {n} choices" for task, n in zip(tasks, counts, strict=True)) + ".\n",
        "Per-class mean accuracy:\n",
        handed_out_table(judged, tasks),
        "Spearman's rank correlation with true per-class mean accuracy:\n",
        scores_table(judged, tasks, "rank", "{:.2f}"),
        "Regret of the pick, in points below the best (the oracle's is 0):\n",
        scores_table(judged, tasks, "regret", "{:.1f}"),
        verdicts_table(judged, "truth", "per-class mean accuracy"),
        handed_out_verdicts(judged),
        expected_line(judged),
        verdicts_table(
            judged, "truth_overall", "accuracy under the target's own label distribution"
        ),
        "L1 error of the estimated target prior, before (source-only) and after adaptation:\n",
        priors_table(judged, tasks),
    ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path, help="Write everything there.")
    parser.add_argument(
        "--embeddings", type=Path, help="Of PACS's domains: candidates on them stand beside."
    )
    parser.add_argument("--answers", type=Path, help="What tuned.py wrote.")
    args = parser.parse_args()
    judged = {}
    for key, candidates in read_choices(args.runs, args.data, args.answers).items():
        task = args.embeddings and load_task(key[0], key[1], int(key[2]), args.data)
        rows = task and rows_of(key, task, args.embeddings)
        kept = (
            args.answers and args.answers / "runs" / f"{key[0].replace('/', '.')}.{key[1]}.{key[3]}"
        )
        judged[key] = judge_choice(candidates, rows, int(key[3]), kept)
    if not judged:
        parser.exit(
            2,
            "There is no choice to judge: a task needs a finished source-only run and another "
            "one of its seed.\n",
        )
    if args.json:
        args.json.write_text(
            json.dumps([{"choice": key, **of} for key, of in judged.items()], indent=1)
        )
    print(markdown(judged))


if __name__ == "__main__":
    main()
