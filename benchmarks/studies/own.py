"""Compare settings for your own data, and methods with their peers: frozen embeddings of pictures,
by pairs of domains.

    python benchmarks/studies/own.py report PACS OUT --weights FILE.safetensors [--seeds 3] [--jobs
    2]

makes every table of results/own-data: the reported pairs of PACS's domains, the development pairs
beside them, and rows that are no pictures. It embeds what is not embedded yet, tries `askew adapt`,
every candidate and their peers on every pair, appends each to OUT/results.jsonl, so that it resumes
where it was interrupted, and prints the tables. Its parts:

    python benchmarks/studies/own.py embed PACS EMBEDDINGS --weights FILE.safetensors
    python benchmarks/studies/own.py sensors EMBEDDINGS
    python benchmarks/studies/own.py try benchmarks/studies/own.toml EMBEDDINGS --out RESULTS.jsonl
    python benchmarks/studies/own.py try benchmarks/studies/committed.toml EMBEDDINGS --out
    RESULTS.jsonl --auto \
        --pairs reported --shift natural
    python benchmarks/studies/own.py table RESULTS.jsonl
    python benchmarks/studies/own.py pairs RESULTS.jsonl

`embed` writes an array per domain, and one per draw of it; `sensors` makes two domains that are not
pictures. `try` trains every method that `askew adapt` does, with every variant of the file ([NAME]
with train, params of each method, backbone, the methods, and candidates to do without, over the
committed settings), and scores it with the target labels: to choose settings on the development
pairs, which no table reports, and to report the four others. With `--auto` also what is handed out
without labels and, unless candidates are left out, what users are told of it, and peers:
scikit-learn's logistic regression, k-means on the target from the source's class means, and, where
it is installed (pip install 'askew[benchmarks]'), three methods of skada. `table` compares variants
as means over pairs; `pairs` prints every pair, how far the choice is from the best, and how far
what users are told holds. (Embeddings are not a benchmark's task, so this is not a grid of `askew
bench`.)
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claims import prior_errors
from numpy.typing import NDArray
from own_rows import PAIRS, SHIFTS, draw, embed, sensors
from own_tables import of_group, print_pairs, print_summary, print_table, read
from peers import peers

from askew.adaptation.candidates import (
    AUTO,
    REFIT,
    Candidate,
    answered,
    choose_members,
    refit_joins,
    refits,
)
from askew.adaptation.setup import AdaptRequest, Setup, set_up
from askew.cli.progress import watch
from askew.data.decode import SIDE
from askew.data.task import Task
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.diagnosis import diagnose
from askew.evaluation.expected_accuracy import expected_accuracy
from askew.evaluation.metrics import score
from askew.evaluation.outputs import DomainOutputs, as_labels, read_outputs
from askew.evaluation.scores import ScoredNetwork, score_another, score_networks
from askew.evaluation.verdict import judge_transfers
from askew.inference.embeddings import checked_embedding
from askew.nets.embedding import Embedding
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.training.run import Run

EMBEDDING = Embedding(backbone="resnet50.v1", pooling="gem", corners=True, statistics="both")
COMMITTED = "committed"
"""The variant that changes nothing: `askew adapt` as it is."""
REPORT = (
    ("reported", "rs-ut"),
    ("reported", "natural"),
    ("rows", "rs-ut"),
    ("development", "rs-ut"),
    ("development", "natural"),
)
"""Pairs and shifts that `report` tries."""


@dataclass(frozen=True)
class Trial:
    """One variant of the settings on one pair by one seed."""

    name: str
    pair: tuple[str, str]
    shift: str
    seed: int
    variant: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.name, "-".join(self.pair), self.shift, self.seed


@dataclass(frozen=True)
class Trier:
    """What makes a trial, in a process of its own: every method, on request what is chosen without
    labels, what users are told of it, and peers."""

    embeddings: Path
    auto: bool
    runs: Path | None = None

    def __call__(self, trial: Trial) -> tuple[Trial, list[dict[str, Any]]]:
        name, pair, shift, seed = trial.key
        same = {"variant": name, "pair": pair, "shift": shift, "seed": seed}
        return trial, [same | row for row in self.rows(trial)]

    def rows(self, trial: Trial) -> Iterator[dict[str, Any]]:
        variant, seed = trial.variant, trial.seed
        methods, left_out = variant.get("methods"), variant.get("without", ())
        candidates = [one for one in AUTO["embeddings"] if methods is None or one.method in methods]
        candidates = [one for one in candidates if one.name not in left_out]
        setup, outputs, y = train_all(
            candidates, variant, self.embeddings, trial.pair, trial.shift, seed, self.runs
        )
        found = dict(zip((one.name for one in candidates), outputs, strict=True))
        claims: dict[str, dict[str, Any]] = {}
        if self.auto:
            networks = score_networks(outputs)
            with tempfile.TemporaryDirectory(prefix="askew-") as scratch:

                def fit(refit: Candidate, task: Task) -> DomainOutputs:
                    return trained(
                        refit, {}, replace(setup, task=task), seed, Path(scratch) / "runs"
                    )

                fitted, auto_outputs = handed_out(candidates, networks, outputs, setup.task, fit)
            if fitted is not None:
                networks.append(score_another(networks, fitted))
                found[REFIT.name] = fitted
            found["auto"] = auto_outputs
            if not left_out:
                last = score_another(networks, found["auto"])
                claims = claimed([*networks, last], list(found), y)
                expected = expected_accuracy(
                    outputs[1:], as_labels(last.outputs.target_uniform.argmax(axis=1))
                )
                assert expected is not None, "there are several candidates"
                claims["auto"] |= {"expected": 100 * expected.per_class_mean}
        predicted = {
            name: of_network.target_uniform.argmax(axis=1) for name, of_network in found.items()
        }
        predicted |= peers(setup.task) if self.auto and not left_out else {}
        for name, classes in predicted.items():
            scores = score(y, classes, len(setup.task.training_data.classes))
            yield {"method": name, "mean": scores["per_class_mean"]} | claims.get(name, {})


def handed_out(
    candidates: Sequence[Candidate],
    networks: Sequence[ScoredNetwork],
    outputs: Sequence[DomainOutputs],
    task: Task,
    fit: Callable[[Candidate, Task], DomainOutputs],
    refit: Candidate = REFIT,
) -> tuple[DomainOutputs | None, DomainOutputs]:
    """LDA from the answers of the better candidates to a task of rows, where there are several, and
    what all answer together."""
    chosen = choose_members(candidates, networks) or [(0, 1.0)]
    members = [(replace(candidates[i], weight=weight), outputs[i]) for i, weight in chosen]
    fitted = None
    if len(members) > 1 and refits(task):
        refit, again = answered(task, [one for one, _ in members], [of for _, of in members], refit)
        fitted = fit(refit, again)
        members += [(refit, fitted)] if refit_joins(fitted, again) else []
    return fitted, mean_outputs([of for _, of in members], [one.weight for one, _ in members])


def train_all(
    candidates: Sequence[Candidate],
    variant: Mapping[str, Any],
    embeddings: Path,
    pair: tuple[str, str],
    shift: str,
    seed: int,
    runs: Path | None = None,
) -> tuple[Setup, list[DomainOutputs], NDArray[np.int64]]:
    """The task of a pair, what every candidate answers to it, and the target's labels."""
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        source, target, y = draw(embeddings, pair, shift, Path(scratch))
        request = AdaptRequest(
            source, target, backbone=variant.get("backbone", ""), training=variant.get("train", {})
        )
        setup = watch(set_up(request, Path(scratch), torch.device("cpu")))
        outputs = [
            trained(one, variant, setup, seed, runs or Path(scratch) / "runs") for one in candidates
        ]
    return setup, outputs, y


def claimed(
    networks: list[ScoredNetwork], names: list[str], y: NDArray[np.int64]
) -> dict[str, dict[str, Any]]:
    """What users are told without labels: the verdict on each adapted network, and, of the last,
    its confidence and the label distribution: its L1 error, an even one's, and the share of classes
    whose interval holds the truth."""
    claims: dict[str, dict[str, Any]] = {
        name: {"verdict": verdict.verdict}
        for name, verdict in zip(names[1:], judge_transfers(networks), strict=True)
    }
    others = [network.outputs for network in networks[1:-1]]
    prior = diagnose(networks[0].outputs, networks[-1].outputs, others).target_prior
    truth = np.bincount(y, minlength=len(prior.prior)) / len(y)
    claims[names[-1]] |= {"confidence": 100 * networks[-1].scores["expected"]} | prior_errors(
        prior, truth
    )
    return claims


def trained(
    candidate: Candidate, variant: Mapping[str, Any], setup: Setup, seed: int, runs: Path
) -> DomainOutputs:
    """Train one method, unless that was done before, and return its outputs."""
    candidate = replace(candidate, params=variant.get("params", {}).get(candidate.method, {}))
    run = candidate.run(setup.task, setup.network, setup.training, seed)
    return read_outputs(finished(run, setup.task, runs))


def finished(run: Run, task: Task, runs: Path) -> Path:
    """The folder of a run, which is trained unless that was done before."""
    how = Execution(root=open_root(runs), device=torch.device("cpu"))
    for _ in execute(run, task, how):
        pass
    return how.root / run.key


def run_trials(trials: Sequence[Trial], work: Trier, out: Path, jobs: int = 1) -> None:
    """Those that are not in the file yet, one or several at a time; each is appended when it is
    done."""
    done = {(row["variant"], row["pair"], row["shift"], row["seed"]) for row in read(out)}
    missing = [trial for trial in trials if trial.key not in done]
    several = (
        multiprocessing.get_context("spawn").Pool(jobs, torch.set_num_threads, (1,))
        if jobs > 1
        else None
    )
    with several or nullcontext():
        found = several.imap_unordered(work, missing) if several else map(work, missing)
        for n, (trial, rows) in enumerate(found, start=1):
            with out.open("a") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))
            print(f"{n} of {len(missing)}:", *trial.key, flush=True)


def report(
    pictures: Path, out: Path, weights: str, device: torch.device, seeds: int, jobs: int
) -> None:
    """From pictures to tables."""
    embedding = checked_embedding(replace(EMBEDDING, weights=weights), (3, SIDE, SIDE))
    embed(pictures, out / "embeddings", embedding, SIDE, "rs-ut", device)
    sensors(out / "embeddings")
    results = out / "results.jsonl"
    trials = [
        Trial(COMMITTED, pair, shift, seed, {})
        for seed, (pairs, shift) in itertools.product(range(seeds), REPORT)
        for pair in PAIRS[pairs]
    ]
    run_trials(trials, Trier(out / "embeddings", auto=True, runs=out / "runs"), results, jobs)
    rows = list(read(results))
    print_summary(rows, REPORT)
    for group in REPORT:
        print(f"\n{', '.join(group)}:\n")
        print_pairs(of_group(rows, *group))


def main() -> None:  # noqa: C901
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    whole, one, rows, two, three, four = (
        commands.add_parser(name)
        for name in ("report", "embed", "sensors", "try", "table", "pairs")
    )
    for command in (whole, one):
        command.add_argument(
            "pictures", type=Path, help="A folder per domain, with one folder per class."
        )
        command.add_argument("--weights", default="hub")
        command.add_argument("--device", default="cpu")
    whole.add_argument("out", type=Path)
    for command in (one, rows):
        command.add_argument("embeddings", type=Path)
    one.add_argument("--backbone", default=EMBEDDING.backbone)
    one.add_argument("--plain", action="store_true", help="One view of each image.")
    one.add_argument(
        "--side",
        type=int,
        default=SIDE,
        help="Side of the decoded pictures, of which 224 are seen.",
    )
    two.add_argument("variants", type=Path)
    two.add_argument("embeddings", type=Path)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument(
        "--auto", action="store_true", help="Also score what is chosen without labels, and peers."
    )
    two.add_argument("--pairs", choices=PAIRS, default="development")
    two.add_argument(
        "--runs", type=Path, help="Keep what was trained there, and train nothing twice."
    )
    for command, seeds in ((whole, 3), (two, 1)):
        command.add_argument("--seeds", type=int, default=seeds)
        command.add_argument(
            "--jobs", type=int, default=1, help="Processes that work side by side."
        )
    for command in (one, two):
        command.add_argument("--shift", choices=SHIFTS, default="rs-ut")
    for command in (three, four):
        command.add_argument("results", type=Path)
    args = parser.parse_args()
    match args.command:
        case "report":
            report(
                args.pictures,
                args.out,
                args.weights,
                torch.device(args.device),
                args.seeds,
                args.jobs,
            )
        case "embed":
            how = Embedding(backbone="") if args.plain else EMBEDDING
            how = replace(how, backbone=args.backbone, weights=args.weights)
            embedding = checked_embedding(how, (3, args.side, args.side))
            embed(
                args.pictures,
                args.embeddings,
                embedding,
                args.side,
                args.shift,
                torch.device(args.device),
            )
        case "sensors":
            sensors(args.embeddings)
        case "try":
            variants = tomllib.loads(args.variants.read_text()).items()
            trials = [
                Trial(name, pair, args.shift, seed, variant)
                for (name, variant), seed, pair in itertools.product(
                    variants, range(args.seeds), PAIRS[args.pairs]
                )
            ]
            run_trials(trials, Trier(args.embeddings, args.auto, args.runs), args.out, args.jobs)
        case "table":
            print_table(list(read(args.results)))
        case _:
            print_pairs(list(read(args.results)))


if __name__ == "__main__":
    main()
