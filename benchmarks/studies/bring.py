"""What users bring, measured on frozen embeddings of PACS: a few labels, a known prior, a model
alone, unknown images.

    python benchmarks/studies/own.py embed PACS EMBEDDINGS --backbone resnet50.v1 --weights
    FILE.safetensors python benchmarks/studies/bring.py try EMBEDDINGS --out RESULTS.jsonl [--pairs
    development] [--seeds 3] python benchmarks/studies/bring.py digits DATA IMAGES
    python benchmarks/studies/bring.py try IMAGES --out RESULTS.jsonl --pairs digits --seeds 1
    python benchmarks/studies/bring.py table RESULTS.jsonl

`try` takes every pair of domains under RS-UT and every seed, and scores with the target labels what
`askew adapt` hands out, without the verdict that may overrule it: mostly an ensemble of its
methods.

- labels: 0, 1, 3 or 10 labels per class, drawn at random, choose among the methods of `askew adapt`
and their ensemble,
  or teach what they chose; beside source-only and MME taught with the same labels. Scored on target
  images that are never labelled.
- prior: the target's true shares, which choose and decide, against `askew adapt` as it is.
- source-free: source-only's model adapted without source.
- unknown: one class leaves the source, and its images are a fifth of the target; how well they are
told from the others
  (area under the curve), how many are marked, and the others' accuracy beside that without them.

Interrupted, it resumes; `--parts` takes some of them. `digits` draws 2,000 images of USPS and of
MNIST, which are trained on as images, for a fifth as long as `askew adapt` does: a small case that
one core can do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from own_rows import PAIRS, draw

from askew.adaptation.candidates import SOURCE_ONLY, Candidate
from askew.adaptation.given import TAUGHT, TargetLabels, taught
from askew.adaptation.members import Trained, ensemble_of, teach, train
from askew.adaptation.pipeline import prefer
from askew.adaptation.setup import AdaptRequest, Setup, set_up
from askew.adaptation.source_free import adapt_again
from askew.cli.progress import watch
from askew.data.benchmarks.digit_files import read_part
from askew.data.benchmarks.digits import framed
from askew.data.custom import read_domain
from askew.evaluation.calibration import impose_prior
from askew.evaluation.metrics import score
from askew.evaluation.outputs import DomainOutputs, Floats, adjust_logits
from askew.evaluation.priors import target_prior
from askew.evaluation.scores import ScoredNetwork, score_another, score_networks
from askew.evaluation.unknown_classes import find_unknown_images
from askew.inference.predictor import Predictor

CPU = torch.device("cpu")
PER_CLASS = (0, 1, 3, 10)
MME = Candidate("MME", "coal", params={"self_training": False})
"""Minimax entropy with labels of both domains (Saito et al. 2019) is COAL without self-training. As
there, the target's labels are half of all."""
LENGTH = {"digits": {"pretrain": 60, "rounds": 4, "round": 45}}
"""Of training, where it is not that of `askew adapt`."""

Labels = NDArray[np.int64]
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class HandedOut:
    """What `askew adapt` trains, and what of it it hands out."""

    request: AdaptRequest
    setup: Setup
    trained: list[Trained]
    networks: list[ScoredNetwork]

    @classmethod
    def of(
        cls,
        request: AdaptRequest,
        setup: Setup,
        trained: list[Trained],
        prior: Floats | None = None,
    ) -> HandedOut:
        networks = score_networks([t.outputs for t in trained], prior)
        out = trained[0].folder.parents[1]
        more, _ = watch(ensemble_of(trained, networks, setup, request, out, torch.device("cpu")))
        return cls(
            request,
            setup,
            trained + more,
            networks + [score_another(networks, t.outputs) for t in more],
        )

    def chosen(self, labels: TargetLabels | None = None) -> int:
        return prefer(self.request, labels, self.trained, self.networks)

    @property
    def predicted(self) -> Labels:
        """Classes of the target under a uniform prior. (n_t,)"""
        return self.trained[self.chosen()].predicted

    @property
    def outputs(self) -> DomainOutputs:
        """Calibrated, under a uniform prior."""
        return self.networks[self.chosen()].outputs

    @property
    def single_outputs(self) -> list[DomainOutputs]:
        """The same of each network by itself."""
        pairs = zip(self.trained, self.networks, strict=True)
        return [network.outputs for t, network in pairs if not t.members]


def adapted(request: AdaptRequest, out: Path) -> HandedOut:
    setup = watch(set_up(request, out, CPU))
    trained, _ = watch(train(setup, request, setup.candidates(request), out, CPU))
    return HandedOut.of(request, setup, trained)


@dataclass(frozen=True, eq=False)
class Trial:
    """One pair of domains, drawn once, and the ordinary adaptation on it."""

    source: Path
    target: Path
    y: Labels
    """The target's labels. (n_t,)"""
    seed: int
    out: Path
    length: Mapping[str, Any]

    @property
    def request(self) -> AdaptRequest:
        return AdaptRequest(self.source, self.target, seed=self.seed, training=self.length)

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @cached_property
    def plain(self) -> HandedOut:
        return adapted(self.request, self.out)

    def train(self, candidate: Candidate, labels: TargetLabels, share: float = TAUGHT) -> Trained:
        """A candidate, taught with labels."""
        setup = replace(self.plain.setup, task=taught(self.plain.setup.task, labels, share))
        (one,), _ = watch(
            train(setup, self.request, (replace(candidate, taught=True),), self.out, CPU)
        )
        return one

    def teach(self, winner: Trained, labels: TargetLabels) -> Trained:
        """What was chosen, or each of its members, taught with labels."""
        more, _ = watch(teach(winner, labels, self.plain.setup, self.request, self.out, CPU))
        return more[-1]

    def row(self, what: str, predicted: Labels, rows: Labels | None = None, **more: Any) -> Row:
        here = np.arange(len(self.y)) if rows is None else rows
        found = score(self.y[here], predicted[here], self.classes)
        return {"what": what, "mean": found["per_class_mean"], "overall": found["overall"], **more}


# --- the parts ---


def labels(trial: Trial, seed: int) -> Iterator[Row]:
    """Labels that choose, and labels that teach."""
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.flatnonzero(trial.y == k)) for k in range(trial.classes)]
    orders = [order[: max(1, min(max(PER_CLASS), len(order) // 2))] for order in orders]
    rest = np.setdiff1d(np.arange(len(trial.y)), np.concatenate(orders))
    plain = trial.plain
    predicted = [t.predicted for t in plain.trained]
    best = max(trial.row("", own, rest)["mean"] for own in predicted)
    for n in PER_CLASS:
        if not n:
            yield trial.row("source-only", predicted[0], rest, labels=0)
            yield trial.row("choice", plain.predicted, rest, labels=0)
            yield {"what": "best candidate", "mean": best, "labels": 0}
            continue
        rows = np.concatenate([order[:n] for order in orders])
        given = TargetLabels(rows, trial.y[rows], trial.classes)
        winner = plain.trained[plain.chosen(given)]
        yield trial.row("choice", winner.predicted, rest, labels=n)
        yield trial.row("trained with them", trial.teach(winner, given).predicted, rest, labels=n)
        yield trial.row(
            "source and labels", trial.train(SOURCE_ONLY, given).predicted, rest, labels=n
        )
        yield trial.row("MME", trial.train(MME, given, share=1).predicted, rest, labels=n)


def prior(trial: Trial, seed: int) -> Iterator[Row]:
    """The true shares of the target's classes."""
    shares = np.bincount(trial.y, minlength=trial.classes) / len(trial.y)
    plain, uniform = trial.plain, np.full(trial.classes, 1 / trial.classes)
    logits, estimate = plain.outputs.target_uniform, target_prior(plain.outputs)
    own = [t for t in plain.trained if not t.members]
    known = HandedOut.of(plain.request, plain.setup, own, shares).outputs.target_uniform
    (under, bias), by_rule = impose_prior(known, shares), adjust_logits(known, shares, uniform)
    yield trial.row("as it is", plain.predicted)
    yield trial.row(
        "decided under the estimated prior", adjust_logits(logits, estimate, uniform).argmax(axis=1)
    )
    yield trial.row("decided under the known prior by Bayes' rule", by_rule.argmax(axis=1))
    yield trial.row("with its known shares", under.argmax(axis=1))
    yield trial.row("with its known shares, for a uniform prior", (known + bias).argmax(axis=1))


def source_free(trial: Trial, seed: int) -> Iterator[Row]:
    """Source-only's model and the target, and nothing else."""
    setup = watch(set_up(trial.request, trial.out, CPU))
    (only,), _ = watch(train(setup, trial.request, (SOURCE_ONLY,), trial.out, CPU))
    model = trial.out.parent / "model"
    Predictor.of_run(only.folder, "cpu").save(model)
    yield trial.row("source-only", only.predicted)
    domain = read_domain(trial.target, "target")
    for name, values in (
        ("source-free", {}),
        ("source-free, uniform prior as published", {"trust": 0}),
    ):
        found = watch(adapt_again(model, domain, values, seed, CPU))
        yield trial.row(name, found.after.argmax(axis=1), collapsed=found.collapsed)


def unknown(trial: Trial, seed: int) -> Iterator[Row]:
    """A class leaves the source, another with every seed, and a fifth of the target is of that
    class."""
    from sklearn.metrics import roc_auc_score

    with np.load(trial.source) as source, np.load(trial.target) as target:
        xs, ys, xt = source["x"], source["y"], target["x"]
    gone = int(np.random.default_rng(len(trial.source.name)).permutation(trial.classes)[seed])
    rng, names = np.random.default_rng(seed), np.unique(ys)
    strange, known = (
        rng.permutation(np.flatnonzero(own)) for own in (trial.y == gone, trial.y != gone)
    )
    n = min(len(strange), len(known) // 4)
    y = np.delete(np.arange(trial.classes), gone).searchsorted(trial.y[known[: 4 * n]])
    folder = trial.out.parent
    np.savez(folder / "fewer.npz", x=xs[ys != names[gone]], y=ys[ys != names[gone]])
    found = {}
    for name, rows in (
        ("without", known[: 4 * n]),
        ("with", np.concatenate([known[: 4 * n], strange[:n]])),
    ):
        np.savez(folder / f"{name}.npz", x=xt[rows])
        request = replace(trial.request, source=folder / "fewer.npz", target=folder / f"{name}.npz")
        found[name] = adapted(request, folder / name)
    for name, one in found.items():
        own = [
            score(y, t.predicted[: 4 * n], trial.classes - 1)["per_class_mean"] for t in one.trained
        ]
        yield {
            "what": f"others' accuracy {name} them",
            "mean": own[one.chosen()],
            "best": max(own),
            "images": n,
        }
    strangers = {name: find_unknown_images(one.single_outputs) for name, one in found.items()}
    marked, values = strangers["with"].marked, strangers["with"].score
    yield {
        "what": "area under the curve",
        "mean": 100 * roc_auc_score(np.arange(5 * n) >= 4 * n, values),
    }
    yield {"what": "marked of the unknown", "mean": 100 * float(marked[4 * n :].mean())}
    yield {"what": "marked of the others", "mean": 100 * float(marked[: 4 * n].mean())}
    yield {"what": "marked without them", "mean": 100 * float(strangers["without"].marked.mean())}


PARTS: dict[str, Callable[[Trial, int], Iterator[Row]]] = {
    "labels": labels,
    "prior": prior,
    "source-free": source_free,
    "unknown": unknown,
}


# --- running and printing ---


def draw_digits(data: Path, out: Path, n: int = 2000) -> None:
    """Images of USPS and MNIST, digits equally large, as arrays."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("usps", "mnist"):
        part = read_part(data, name, "train")
        some = part.take(np.sort(np.random.default_rng(0).permutation(len(part))[:n]))
        x = framed(np.asarray(some.x), 20, 28) if name == "usps" else np.asarray(some.x)
        np.savez(out / f"{name}.npz", x=x[:, 0], y=np.array([f"digit {k}" for k in some.y]))


def run_trials(
    embeddings: Path, out: Path, pairs: str, seeds: int, parts: list[str], most: int
) -> None:
    """Every pair, seed and part that the file does not have yet, at most so many trials."""
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["part"], row["pair"], row["seed"]) for row in known}
    for seed, pair in itertools.product(range(seeds), PAIRS[pairs]):
        missing = [part for part in parts if (part, "-".join(pair), seed) not in done]
        if not missing or most <= 0:
            continue
        most -= 1
        with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
            source, target, y = draw(embeddings, pair, "rs-ut", Path(scratch))
            trial = Trial(source, target, y, seed, Path(scratch) / "out", LENGTH.get(pairs, {}))
            for part in missing:
                rows = [
                    {"part": part, "pair": "-".join(pair), "seed": seed} | row
                    for row in PARTS[part](trial, seed)
                ]
                with out.open("a") as file:
                    file.write("".join(json.dumps(row) + "\n" for row in rows))
                print(part, *pair, seed, flush=True)


def print_tables(out: Path) -> None:
    """One table for each part: mean over pairs and seeds, and each pair's mean over seeds."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for part in dict.fromkeys(row["part"] for row in rows):
        own = [row for row in rows if row["part"] == part]
        pairs = list(dict.fromkeys(row["pair"] for row in own))
        seeds = len({row["seed"] for row in own})
        print(f"\n### {part}: {len(pairs)} pairs, {seeds} seeds, under RS-UT\n")
        print("| | " + " | ".join(pairs) + " | mean | overall |")
        print("|---" * (len(pairs) + 3) + "|")
        for what, n in dict.fromkeys((row["what"], row.get("labels")) for row in own):
            here = [row for row in own if (row["what"], row.get("labels")) == (what, n)]
            cells = [_mean([row["mean"] for row in here if row["pair"] == pair]) for pair in pairs]
            overall = _mean([row["overall"] for row in here if "overall" in row])
            name = what if n is None else f"{what}, {n} labels per class"
            print(f"| {name} | " + " | ".join([*cells, _spread(here), overall]) + " |")


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):.1f}" if values else "–"


def _spread(rows: list[Row]) -> str:
    """Mean over pairs, ± standard deviation of that mean over seeds."""
    by_seed = [
        np.mean([row["mean"] for row in rows if row["seed"] == seed])
        for seed in {row["seed"] for row in rows}
    ]
    off = f" ± {np.std(by_seed, ddof=1):.1f}" if len(by_seed) > 1 else ""
    return f"{np.mean(by_seed):.1f}{off}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("try")
    one.add_argument("embeddings", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--pairs", choices=PAIRS, default="reported")
    one.add_argument("--seeds", type=int, default=3)
    one.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    one.add_argument(
        "--most", type=int, default=10**6, help="Trials, pairs times seeds, before it stops."
    )
    two = commands.add_parser("digits")
    two.add_argument("data", type=Path, help="Folder that holds digits/usps and digits/mnist.")
    two.add_argument("images", type=Path)
    three = commands.add_parser("table")
    three.add_argument("out", type=Path)
    args = parser.parse_args()
    match args.command:
        case "try":
            run_trials(args.embeddings, args.out, args.pairs, args.seeds, args.parts, args.most)
        case "digits":
            draw_digits(args.data, args.images)
        case _:
            print_tables(args.out)


if __name__ == "__main__":
    main()
