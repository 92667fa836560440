"""Compare settings on the development tasks, whose target labels may be looked at and which no table reports.

    python benchmarks/develop.py benchmarks/develop/NAME.toml --seeds 3 --out RUNS --data DATA

The file names variants; each has [NAME.train] and [NAME.hyper] over the committed settings, and may name its
`method` (default coal) and `tasks`. Every variant runs on every task with every seed; interrupted, it resumes.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from pathlib import Path

from askew.core.device import pick_device
from askew.evaluation.metrics import mean
from askew.reports.results import cell
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution
from askew.runs.launch.jobs import Failed, carry_out, plan_jobs
from askew.runs.launch.local import Local
from askew.runs.store import RunFolder, open_root

TASKS = ("digits/usps-uci", "digits/uci-mnist", "digits/syn-usps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default="", help="Variants, separated by commas.")
    parser.add_argument("--tasks", default=",".join(TASKS), help="Separated by commas.")
    parser.add_argument("--curves", type=Path, help="Write the accuracy after every round there, as JSON.")
    args = parser.parse_args()

    variants = tomllib.loads(args.variants.read_text())
    if args.only:
        variants = {name: variants[name] for name in args.only.split(",")}
    tasks = args.tasks.split(",")
    requests = {
        (name, task, seed): RunRequest(
            task,
            variant.get("method", "coal"),
            seed,
            hyper=variant.get("hyper", {}),
            training=variant.get("train", {}),
            data=args.data,
        )
        for task in tasks
        for name, variant in variants.items()
        if "tasks" not in variant or task.partition("/")[2] in variant["tasks"]
        for seed in range(args.seeds)
    }
    how = Execution(open_root(args.out), pick_device(args.device), checkpoint_every=1e9, curve=True)
    _, shared, rest = plan_jobs(list(requests.values()), how)
    print(f"{len(shared)} pre-trainings and {len(rest)} runs are missing", flush=True)
    began, launcher = time.monotonic(), Local(args.jobs)
    for jobs in (shared, rest):
        for event in carry_out(jobs, how, launcher):
            if isinstance(event, Failed):
                print("FAILED", event.request, event.reason, flush=True)
        print(f"{time.monotonic() - began:.0f} s", flush=True)

    launcher.close()
    curves: dict[str, list[list[float]]] = {}
    for key, request in requests.items():
        folder = RunFolder(how.root / prepare(request)[0].key)
        if folder.done:
            curve = [entry["oracle"]["whole"] for entry in folder.trace()]
            curves.setdefault(f"{key[1]} {key[0]}", []).append(curve)
    if args.curves:
        args.curves.write_text(json.dumps(curves))
    print(f"{'task':16} {'variant':28} {'last round':>15}  after a quarter, half, all: per seed")
    for name, runs in sorted(curves.items()):
        task, _, variant = name.partition(" ")
        quarter, half = (mean([run[max(0, len(run) * part // 4 - 1)] for run in runs]) for part in (1, 2))
        last = [run[-1] for run in runs]
        print(
            f"{task:16} {variant:28} {cell(last):>15}  {quarter:.1f} {half:.1f} | {' '.join(f'{v:.1f}' for v in last)}"
        )


if __name__ == "__main__":
    main()
