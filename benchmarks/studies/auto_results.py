"""Print the tables of results/auto/README.md: `auto_results.py results/auto/bench.jsonl`.

`paper` is the paper's unbalanced test images, `whole` all target images. All are per-class means.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

Run = dict[str, Any]
TASKS = ("rw-pr", "rw-cl", "pr-rw", "pr-cl", "cl-rw", "cl-pr")
OFFICE_HOME = {task: task.title().replace("-", "→") for task in TASKS}
PUBLISHED = {
    "source-only, in the paper": (70.8, 35.5, 65.7, 35.0, 51.3, 51.1),
    "COAL, in the paper": (73.7, 42.6, 74.5, 40.6, 59.2, 62.7),
}
OTHERS = {"SENTRY, as published": 65.3, "the previous version: up to four networks": 66.1}
PAIRS = ("cartoon-photo", "photo-cartoon", "photo-sketch", "sketch-photo")
PACS = {pair: pair.replace("-", " → ") for pair in PAIRS}
PREVIOUS = {"rs-ut": "87.2 ± 1.0", "natural": "90.3 ± 0.7"}
SHIFTS = {"rs-ut": "RS-UT", "natural": "original label distribution"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def with_mean(values: Sequence[float]) -> list[str]:
    """Print values and their mean."""
    return [f"{value:.1f}" for value in [*values, fmean(values)]]


def accuracy(run: Run, split: str = "whole") -> float:
    """Give the saved network's accuracy."""
    return float(run["scores"][split]["per_class_mean"])


def oracle(name: str, run: Run) -> float:
    """Give a network's accuracy, which only labels tell."""
    return float(run["auto"]["oracle"][name])


def cells(runs: Sequence[Run], tasks: Iterable[str], value: Callable[[Run], float]) -> list[str]:
    """Average a number over the seeds of each task."""
    by_task = ([r for r in runs if r["task"].endswith(f"/{task}")] for task in tasks)
    return with_mean([fmean(map(value, own)) for own in by_task])


def office_home(runs: Sequence[Run]) -> str:
    """Compare the saved network with published ones on the paper's test images."""
    rows = [[name, *with_mean(values)] for name, values in PUBLISHED.items()]
    rows += [[name, *["–"] * len(TASKS), f"{mean:.1f}"] for name, mean in OTHERS.items()]
    rows.append(["**`auto`: one network**", *cells(runs, TASKS, partial(accuracy, split="paper"))])
    return table(["Office-Home, UT test images", *OFFICE_HOME.values(), "mean"], rows)


def pacs(shift: str, runs: Sequence[Run]) -> str:
    """List the saved network's accuracy by seed."""
    groups = {f"seed {s}": [r for r in runs if r["seed"] == s] for s in {r["seed"] for r in runs}}
    groups = dict(sorted(groups.items())) | {"**mean**": list(runs)}
    rows = [[name, *cells(own, PACS, accuracy)] for name, own in groups.items()]
    rows.append(["the previous version", *["–"] * len(PACS), PREVIOUS[shift]])
    return table([f"PACS, {SHIFTS[shift]}", *PACS.values(), "mean"], rows)


def networks(title: str, runs: Sequence[Run], tasks: dict[str, str]) -> str:
    """List the accuracy of every network on all target images, averaged over seeds."""
    rows = [[f"`{n}`", *cells(runs, tasks, partial(oracle, n))] for n in runs[0]["auto"]["oracle"]]
    return table([f"{title}, every network", *tasks.values(), "mean"], rows)


def expected(groups: dict[str, list[Run]]) -> str:
    """Compare the accuracy that is expected without labels with the true one."""
    rows = []
    for name, runs in groups.items():
        truth = [accuracy(r) for r in runs]
        guess = [100 * r["auto"]["expected_accuracy"]["per_class_mean"] for r in runs]
        off = [abs(g - t) for g, t in zip(guess, truth, strict=True)]
        numbers = [f"{value:.1f}" for value in (fmean(guess), fmean(truth), fmean(off), max(off))]
        rows.append([name, str(len(runs)), *numbers])
    return table(["group", "runs", "expected", "true", "off by", "off by at most"], rows)


def verdicts(runs: Sequence[Run]) -> str:
    """Count the verdicts on every adapted network beside its true gain over source-only."""
    rows = []
    for verdict in ("helped", "unclear", "hurt"):
        found = [(n, r) for r in runs for n, v in r["auto"]["verdicts"].items() if v == verdict]
        gains = [oracle(name, run) - oracle("source", run) for name, run in found]
        better, worse = sum(gain > 1 for gain in gains), sum(gain < -1 for gain in gains)
        same = len(gains) - better - worse
        rows.append([verdict, *map(str, (len(gains), better, same, worse))])
    return table(["verdict", "networks", "gained > 1", "within 1", "lost > 1"], rows)


def every_table(path: Path) -> list[str]:
    """Give all tables of the page in its order."""
    runs = list(map(json.loads, path.read_text().splitlines()))
    home = [run for run in runs if run["task"].startswith("office-home/")]
    of_pacs = {s: [r for r in runs if r["task"][:4] == "pacs" and r["shift"] == s] for s in SHIFTS}
    groups = {f"PACS, {SHIFTS[shift]}": own for shift, own in of_pacs.items()}
    saved = [office_home(home), *(pacs(shift, own) for shift, own in of_pacs.items())]
    saved.append(networks("Office-Home", home, OFFICE_HOME))
    saved += [networks(name, own, PACS) for name, own in groups.items()]
    return [*saved, expected({"Office-Home, RS-UT": home} | groups), verdicts(runs)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    print("\n\n".join(every_table(parser.parse_args().runs)))
