"""Adapt between tables, beside what else could be done with them: one command, one table.

    python benchmarks/studies/tables.py OUT.jsonl [--tables DATA/tables] [--seeds 3] [--jobs 2]
    python benchmarks/studies/tables.py OUT.jsonl --only "made grid" --only wine

Every pair of tables is adapted as `askew adapt` does it, and scored with the target's labels. The
rows are appended to OUT.jsonl, so that it resumes where it was interrupted. Harm is measured
against balanced logistic regression, which is source-only on tables too. `made_tables.py` says
which groups were used for development.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from made_tables import Floats, Labels, Pair, groups
from numpy.typing import NDArray

from askew.adaptation.api import adapt_steps, silently
from askew.adaptation.assessment import Adaptation
from askew.adaptation.request import AdaptRequest
from askew.data.objects import as_domain
from askew.evaluation.priors import em_prior

BASE, OURS = "balanced logistic regression", "**auto**"
MATTERS, LARGE = 1.0, 2.0
"""Points of accuracy from which a difference counts as help or harm, and is a large one."""


def score(y: Labels, predicted: NDArray[Any]) -> tuple[float, float]:
    """Give the per-class mean accuracy and the overall accuracy, in per cent."""
    right = predicted == y
    return 100 * float(np.mean([right[y == k].mean() for k in np.unique(y)])), 100 * right.mean()


def adapt(pair: Pair) -> Adaptation:
    """Adapt as `askew adapt` does, without its files."""
    names = np.array([f"class {k:02d}" for k in range(pair.classes)])
    request = AdaptRequest(
        source=as_domain((pair.xs.astype(np.float32), names[pair.ys]), "source"),
        target=as_domain(pair.xt.astype(np.float32), "target"),
        resamples=50,
    )
    with tempfile.TemporaryDirectory(prefix="askew-") as folder:
        return silently(adapt_steps(request, Path(folder), torch.device("cpu")))


def peers(pair: Pair) -> dict[str, NDArray[Any]]:
    """Predict as others would: scikit-learn, with and without corrected class shares."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    mean, sd = pair.xs.mean(axis=0), pair.xs.std(axis=0)
    xs, xt = ((x - mean) / np.where(sd > 0, sd, 1) for x in (pair.xs, pair.xt))
    known = np.unique(pair.ys)
    regression = LogisticRegression(max_iter=1000, class_weight="balanced").fit(xs, pair.ys)
    boosting = HistGradientBoostingClassifier(
        max_iter=100, class_weight="balanced", random_state=0
    ).fit(xs, pair.ys)
    found = {BASE: regression.predict(xt), "gradient boosting": boosting.predict(xt)}
    for name, model in (("logistic regression", regression), ("gradient boosting", boosting)):
        p = np.clip(model.predict_proba(xt), 1e-9, 1)
        shares = em_prior(p, np.full(len(known), 1 / len(known)))
        found[f"{name}, shares by EM"] = known[(p * shares).argmax(axis=1)]
    return found


def row_of(job: tuple[str, int, Pair]) -> dict[str, Any]:
    """Adapt one pair, and score everything."""
    group, number, pair = job
    torch.set_num_threads(1)
    began = time.monotonic()
    found = adapt(pair)
    seconds = time.monotonic() - began
    class_of = {name: int(name.split()[1]) for name in found.classes}
    numbers = np.array([class_of[name] for name in found.classes])
    predicted = {OURS: numbers[found.predicted], **peers(pair)}
    if pair.best is not None:
        predicted["best possible"] = pair.best
    truth: Floats = np.array([np.mean(pair.yt == k) for k in numbers])
    shares = found.diagnosis.target_prior
    verdict = found.verdict.verdict if found.verdict else "not adapted"
    return {
        "group": group,
        "number": number,
        "pair": pair.name,
        "scores": {name: score(pair.yt, p) for name, p in predicted.items()},
        "saved": found.final.name,
        "verdict": verdict,
        "expected": None if found.expected is None else 100 * found.expected.overall,
        "shares_l1": float(np.abs(shares.prior - truth).sum()),
        "equal_l1": float(np.abs(1 / len(truth) - truth).sum()),
        "covered": float(np.mean((shares.low <= truth) & (truth <= shares.high))),
        "seconds": round(seconds, 2),
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print per-class means by group, then what users are told, as Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append(row)
    print("| group | pairs |", " | ".join(names), "| auto harms by > 1 / > 2 |")
    print("|---|---|" + "---|" * (len(names) + 1))
    for group, own in by_group.items():
        cells = [
            f"{np.mean([r['scores'][n][0] for r in own]):.1f}" if n in own[0]["scores"] else "–"
            for n in names
        ]
        gain = np.array([r["scores"][OURS][0] - r["scores"][BASE][0] for r in own])
        harm = f"{100 * np.mean(gain < -MATTERS):.0f} / {100 * np.mean(gain < -LARGE):.0f} %"
        print(f"| {group} | {len(own)} |", " | ".join(cells), f"| {harm} |")
    print(
        "\n| group | helped, of gains > 2 | verdict opposite | the same, by per-class means | "
        "expected accuracy off | too high | class shares, L1 | equal shares, L1 | covered | "
        "seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for group, own in by_group.items():
        overall, by_class = (judged(own, which) for which in (1, 0))
        off = [r["expected"] - r["scores"][OURS][1] for r in own if r["expected"] is not None]
        mean = {k: np.mean([r[k] for r in own]) for k in ("shares_l1", "equal_l1", "covered")}
        print(
            f"| {group} | {overall[0]} | {overall[1]} | {by_class[0]}, {by_class[1]} | "
            f"{np.mean(np.abs(off)):.1f} | {np.mean(off):+.1f} | {mean['shares_l1']:.2f} | "
            f"{mean['equal_l1']:.2f} | {100 * mean['covered']:.0f} % | "
            f"{np.mean([r['seconds'] for r in own]):.1f} |"
        )


def judged(rows: Sequence[dict[str, Any]], which: int) -> tuple[str, str]:
    """Tell how often a large gain is said to have helped, and how often the opposite is said."""
    gain = np.array([r["scores"][OURS][which] - r["scores"][BASE][which] for r in rows])
    said = np.array([r["verdict"] for r in rows])
    opposite = ((said == "helped") & (gain < -MATTERS)) | ((said == "hurt") & (gain > MATTERS))
    large = gain > LARGE
    helped = f"{100 * np.mean(said[large] == 'helped'):.0f} %" if large.any() else "–"
    return helped, f"{100 * opposite.mean():.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", type=Path, help="The folder with heart4 and wine.")
    parser.add_argument("--only", action="append", default=[], help="A group; several times.")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    done = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if (args.out.exists())
        else []
    )
    known = {(row["group"], row["number"]) for row in done}
    jobs = [
        (group, number, pair)
        for group, pairs in groups(args.only, args.tables, args.seeds).items()
        for number, pair in enumerate(pairs)
        if (group, number) not in known
    ]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for n, row in enumerate(pool.imap_unordered(row_of, jobs), start=1):
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            done.append(row)
            if n % 20 == 0:
                print(f"{n} of {len(jobs)}", flush=True)
    print_table([row for row in done if not args.only or row["group"] in args.only])


if __name__ == "__main__":
    main()
