"""Train what `askew adapt` fine-tunes, on pairs of PACS's domains: to be judged by judge.py.

    python benchmarks/studies/tuned.py embed EMBEDDINGS --data DATA --weights FILE [--pairs
    reported] python benchmarks/studies/tuned.py answers EMBEDDINGS ANSWERS --data DATA [--pairs
    reported] [--seeds 3] python benchmarks/studies/tuned.py train RUNS ANSWERS --data DATA
    --weights FILE [--jobs 3] python benchmarks/studies/tuned.py answers EMBEDDINGS ANSWERS --data
    DATA --with-tuned RUNS python benchmarks/studies/tuned.py train RUNS ANSWERS --data DATA
    --weights FILE --with-tuned --methods guided python benchmarks/studies/judge.py RUNS --data DATA
    --embeddings EMBEDDINGS --answers ANSWERS

`embed` embeds the images of tasks as `askew adapt` would; `answers` trains what stands on
embeddings of the network as it was, on a CPU, and writes what these answer together for every
target image, or what they and those fine-tuned do; `train` fine-tunes, the guided teacher from such
answers: first from the former, then from the latter. All resume where they were interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import PARTS, TUNED, candidate_of, rows_of
from own import finished, handed_out
from own_rows import PAIRS

from askew.adaptation.candidates import (
    AUTO,
    FROZEN,
    GUIDED,
    GUIDED_BY_ALL,
    REFIT,
    REFIT_BESIDE_TUNED,
    SOURCE_ONLY,
    Candidate,
)
from askew.cli.progress import watch
from askew.core.files import whole_file
from askew.data.benchmarks import load_task
from askew.data.task import Task
from askew.evaluation.outputs import DomainOutputs, Floats, read_outputs, softmax
from askew.evaluation.scores import score_networks
from askew.inference.embeddings import embedded, picture_embedders
from askew.methods import method_class
from askew.nets.embedding import Embedding
from askew.runs.config import RunRequest, hash_of_answers, plan_run
from askew.runs.execute import Execution, execute
from askew.runs.root import finished_runs, open_root
from askew.runs.store import RunFolder

SHIFTS = ("rs-ut", "natural")
NETWORK = "resnet50.v1+bottleneck"
EMBEDDING = Embedding(backbone="resnet50.v1", pooling="gem", corners=True, statistics="both")


@dataclass(frozen=True)
class Choice:
    """One pair under one shift, by one seed."""

    task: str
    shift: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task.replace('/', '.')}.{self.shift}.{self.seed}"


def choices(pairs: str, shifts: Sequence[str], seeds: range) -> Iterator[Choice]:
    for seed, shift, pair in itertools.product(seeds, shifts, PAIRS[pairs]):
        yield Choice(f"pacs/{pair[0]}-{pair[1]}", shift, seed)


def file_of(answers: Path, choice: Choice, tuned: bool) -> Path:
    """Of the answers that fine-tuned networks had a part in, or had not."""
    return answers / f"{choice.name}{TUNED if tuned else ''}.npy"


def answer(choice: Choice, embeddings: Path, data: Path, out: Path, tuned: Path | None) -> Floats:
    """What the networks on embeddings, and those among fine-tuned runs, answer together for the
    target's images. (n_t, c)"""
    task = load_task(choice.task, choice.shift, 0, data)
    rows = rows_of((choice.task, choice.shift, "0", str(choice.seed)), task, embeddings)

    def fit(one: Candidate, on: Task) -> DomainOutputs:
        return read_outputs(
            finished(one.run(on, "mlp", {}, choice.seed), on, out / "runs" / choice.name)
        )

    kinds, outputs = list(FROZEN), [fit(one, rows) for one in FROZEN]
    if tuned is not None:
        first = hash_of_answers(np.load(file_of(out, choice, tuned=False)))
        beside = [
            one
            for one in AUTO["guided pictures"]
            if one.name in (SOURCE_ONLY.name, *GUIDED_BY_ALL.guided_by)
        ]
        kinds = [*beside, *kinds[1:]]
        outputs = [*(stored(tuned, choice, one, task, first) for one in beside), *outputs[1:]]
    refit = REFIT if tuned is None else REFIT_BESIDE_TUNED
    _, together = handed_out(kinds, score_networks(outputs), outputs, rows, fit, refit)
    return softmax(together.target_uniform)


def stored(
    runs: Path, choice: Choice, candidate: Candidate, task: Task, first: str
) -> DomainOutputs:
    """What a fine-tuned network answers; the guided one is that which began with the first answers,
    of that hash."""
    wanted = (choice.task, choice.shift, choice.seed, candidate.method)
    for path in finished_runs(runs):
        run = json.loads((path / "run.json").read_text())["run"]
        found = (run["task"], run["shift"], run["seed"], run["plan"][-1]["method"]["id"])
        if found == wanted and (candidate != GUIDED or run.get("answers") == first):
            return candidate_of(RunFolder(path), candidate.name, task).outputs
    raise FileNotFoundError(f"{runs} has no finished run of {candidate.name} for {choice.name}.")


@dataclass(frozen=True)
class Embedder:
    """What writes embeddings of one task, with batch statistics of its own images, in a process of
    its own."""

    out: Path
    data: Path
    weights: Path
    device: str

    def __call__(self, choice: Choice) -> str:
        file = self.out / f"{choice.task.replace('/', '.')}.{choice.shift}.npz"
        if not file.exists():
            task = load_task(choice.task, choice.shift, 0, self.data)
            embedding = replace(EMBEDDING, weights=str(self.weights))
            both = picture_embedders(embedding, torch.device(self.device))
            rows = watch(embedded(task, both)).training_data
            test = task.training_data.test_images.x
            watch(both.target.learn_rows((test,)))
            parts = (rows.source.x, rows.source_val.x, rows.target.x, both.target.rows(test))
            half: dict[str, Any] = {
                name: np.asarray(x, dtype=np.float16) for name, x in zip(PARTS, parts, strict=True)
            }
            with whole_file(file, "name another folder.") as new, new.open("wb") as writing:
                np.savez(writing, **half)
        return file.name


@dataclass(frozen=True)
class Answerer:
    """What writes the answers for one choice, in a process of its own."""

    embeddings: Path
    out: Path
    data: Path
    tuned: Path | None

    def __call__(self, choice: Choice) -> str:
        began, file = time.monotonic(), file_of(self.out, choice, self.tuned is not None)
        if not file.exists():
            torch.set_num_threads(1)
            found = answer(choice, self.embeddings, self.data, self.out, self.tuned)
            with whole_file(file, "name another folder.") as new, new.open("wb") as writing:
                np.save(writing, found.astype(np.float32))
        return f"{choice.name} {time.monotonic() - began:.0f} s"


@dataclass(frozen=True)
class Trainer:
    """What trains one run, in a process of its own."""

    root: Path
    answers: Path
    data: Path
    weights: Path
    device: str
    training: str
    """Settings that differ, as lines of TOML."""
    tuned: bool
    """Whether fine-tuned networks have a part in the answers."""

    def __call__(self, job: tuple[Choice, str]) -> str:
        choice, asked = job
        began, task = time.monotonic(), loaded(choice.task, choice.shift, self.data)
        method, _, options = asked.partition(":")
        if method_class(method).takes_answers:
            given = np.load(file_of(self.answers, choice, self.tuned))
            task = replace(task, training_data=replace(task.training_data, answers=given))
        params = tomllib.loads(options.replace("+", "\n"))
        training = {"net": NETWORK, "weights": str(self.weights)} | tomllib.loads(self.training)
        request = RunRequest(
            task=choice.task,
            method=method,
            seed=choice.seed,
            shift=choice.shift,
            params=params,
            training=training,
            recipe="today",
        )
        run, how = (
            plan_run(request, task, NETWORK),
            Execution(root=open_root(self.root), device=torch.device(self.device)),
        )
        for _ in execute(run, task, how):
            pass
        score = RunFolder(how.root / run.key).scores()["whole"]["per_class_mean"]
        return f"{choice.name} {asked} {score:.1f} {time.monotonic() - began:.0f} s"


@lru_cache(2)
def loaded(name: str, shift: str, data: Path) -> Task:
    return load_task(name, shift, 0, data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    zero = commands.add_parser("embed")
    one = commands.add_parser("answers")
    for command in (zero, one):
        command.add_argument("embeddings", type=Path)
    one.add_argument(
        "--with-tuned", type=Path, metavar="RUNS", help="Of the teachers that have a part in them."
    )
    two = commands.add_parser("train")
    two.add_argument("runs", type=Path)
    for command in (zero, two):
        command.add_argument("--weights", type=Path, required=True)
        command.add_argument("--device", default="cuda")
    two.add_argument(
        "--methods",
        default="source,teacher,guided",
        help="With hyper-parameters: guided:until=1.0+guidance=3.0",
    )
    two.add_argument(
        "--with-tuned", action="store_true", help="Begin with answers that those had a part in."
    )
    two.add_argument(
        "-t",
        "--train",
        action="append",
        default=[],
        help="A training setting that differs: round=2.",
    )
    for command in (one, two):
        command.add_argument("answers", type=Path, help="A folder.")
    for command in (zero, one, two):
        command.add_argument(
            "--jobs", type=int, default=2, help="Processes that work side by side."
        )
        command.add_argument("--data", type=Path, required=True)
        command.add_argument("--pairs", choices=("development", "reported"), default="development")
        command.add_argument("--shifts", default=",".join(SHIFTS))
        command.add_argument("--first-seed", type=int, default=0)
        command.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    jobs: list[Any]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    wanted = list(choices(args.pairs, args.shifts.split(","), seeds))
    work: Callable[[Any], str]
    if args.command == "embed":
        args.embeddings.mkdir(parents=True, exist_ok=True)
        jobs, work = wanted, Embedder(args.embeddings, args.data, args.weights, args.device)
    elif args.command == "answers":
        args.answers.mkdir(parents=True, exist_ok=True)
        jobs, work = wanted, Answerer(args.embeddings, args.answers, args.data, args.with_tuned)
    else:
        jobs = [(choice, method) for choice in wanted for method in args.methods.split(",")]
        training = "\n".join(args.train)
        work = Trainer(
            args.runs, args.answers, args.data, args.weights, args.device, training, args.with_tuned
        )
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for line in pool.imap_unordered(work, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
