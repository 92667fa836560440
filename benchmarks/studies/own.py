"""Compare settings for your own data, and methods with their peers: frozen embeddings of pictures, by pairs of domains.

    python benchmarks/studies/own.py embed PACS EMBEDDINGS --weights FILE.safetensors
    python benchmarks/studies/own.py sensors EMBEDDINGS
    python benchmarks/studies/own.py try benchmarks/studies/own.toml EMBEDDINGS --out RESULTS.jsonl [--shard 0/2]
    python benchmarks/studies/own.py try benchmarks/studies/own-auto.toml EMBEDDINGS --out REPORTED.jsonl --auto \
        --pairs reported --shift natural
    python benchmarks/studies/own.py table RESULTS.jsonl
    python benchmarks/studies/own.py pairs REPORTED.jsonl

`embed` writes an array per domain, and one per draw of it. `try` trains every method that `askew adapt` does, with
every variant of the file ([NAME] with train, hyper of each method, backbone and methods, over the committed settings),
on every pair under RS-UT or as they are, and scores it with the target labels: to choose settings on the development
pairs, which no table reports, and to report the four others. With `--auto` also what is handed out without labels, and
peers: scikit-learn's logistic regression, k-means on the target from the source's class means, and, where it is
installed (pip install 'askew[benchmarks]'), three methods of skada. `sensors` makes two domains that are not pictures.
Interrupted, it resumes. `table` compares variants as means over pairs; `pairs` prints every pair of one shift, how far
the choice is from the best, and how far what users are told holds. Shards can run in parallel. (Embeddings are not a
benchmark's task, so this is not a grid of `askew bench`.)
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from claims import count, prior_errors, truth_of
from numpy.typing import NDArray
from peers import peers

from askew.adaptation.candidates import (
    AUTO,
    FROZEN_SHARE,
    REFIT,
    Candidate,
    answered,
    choose_members,
    refit_joins,
    refits,
)
from askew.adaptation.setup import AdaptRequest, Setup, set_up
from askew.cli.progress import watch
from askew.data import label_shift
from askew.data.custom import list_pictures
from askew.data.decode import SIDE, decode
from askew.data.task import Task
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.diagnosis import diagnose
from askew.evaluation.metrics import score
from askew.evaluation.outputs import DomainOutputs, read_outputs
from askew.evaluation.validators import ScoredNetwork, score_another, score_networks
from askew.evaluation.verdict import judge_transfers
from askew.inference.embeddings import backbone_spec, embed_rows
from askew.nets.adabn import NORMS
from askew.nets.spec import NetSpec
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.training.run import Run

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
REPORTED = {("photo", "sketch"), ("cartoon", "photo"), ("sketch", "photo"), ("photo", "cartoon")}
MANY = ("letters", "symbols", "scenes", "icons", "emoji", "stamps")
PAIRS = {
    "development": [pair for pair in itertools.permutations(DOMAINS, 2) if pair not in REPORTED],
    "reported": sorted(REPORTED),
    "restyled": [("art_lines", "photo"), ("art_flat", "photo"), ("photo", "art_lines"), ("photo", "art_flat")],
    "rows": [("first_sensor", "second_sensor"), ("second_sensor", "first_sensor")],
    "digits": [("usps", "mnist")],
    "many": [(f"{kind}_{a}", f"{kind}_{b}") for kind in MANY for a, b in ("pq", "qp")],
    "collected": [(f"{kind}_{a}", f"{kind}_{b}") for kind in MANY[3:] for a, b in ("pq", "qp")],
}
"""Rows are no pictures: handwritten digits as 64 numbers, and as a second sensor would measure them. Many classes are
those that glyphs.py draws and drawings.py collects, restyled ones those of restyle.py, all to develop on."""
SHIFTS = ("rs-ut", "natural", "reversed")
ROLES = ("source", "target")


def embed(pictures: Path, out: Path, spec: NetSpec, side: int, shift: str, device: torch.device) -> None:
    """One row per picture of each domain, a folder with one folder per class, as `askew adapt` embeds it: DOMAIN.npz,
    and a file more for each role under the shift, since batch statistics of a domain hang on which pictures it has."""
    out.mkdir(parents=True, exist_ok=True)
    for domain in sorted(folder for folder in pictures.iterdir() if folder.is_dir()):
        listing = list_pictures(domain, "source")
        assert listing is not None
        names = np.array([Path(path).parent.name for path in listing.paths])
        _, y = np.unique(names, return_inverse=True)
        x = np.stack([decode(listing.root / path, (3, side, side)) for path in listing.paths])
        draws = [("", np.arange(len(x)))]
        for role in ROLES if NORMS in spec.name else ():
            rows = label_shift.draw(y, wanted(np.bincount(y), shift, role == "source"), 0)
            draws.append((f".{shift}.{role}", rows))
        for name, rows in draws:
            found = embed_rows(x[rows], spec, device)
            np.savez(out / f"{domain.name}{name}.npz", x=found, y=names[rows], path=np.array(listing.paths)[rows])
            print(f"{domain.name}{name}", len(rows), flush=True)


def sensors(out: Path) -> None:
    """scikit-learn's digits, and the same with a gain and an offset for each pixel, blurred, and noise."""
    from sklearn.datasets import load_digits

    out.mkdir(parents=True, exist_ok=True)
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    half = rng.permutation(len(x))
    gain, offset = rng.uniform(0.4, 1.6, 64), rng.uniform(-4, 4, 64)
    blurred = 0.5 * x + 0.25 * np.roll(x, 1, axis=1) + 0.25 * np.roll(x, -1, axis=1)
    second = gain * blurred + offset + rng.normal(0, 2, x.shape)
    names = np.array([f"digit {k}" for k in y])
    for name, rows, which in (("first_sensor", x, half[::2]), ("second_sensor", second, half[1::2])):
        np.savez(out / f"{name}.npz", x=rows[which].astype(np.float32), y=names[which])


def draw(embeddings: Path, pair: tuple[str, str], shift: str, folder: Path) -> tuple[Path, Path, NDArray[np.int64]]:
    """A pair of domains under a shift: two files to adapt with, and the labels of the second."""
    files, y = [], np.zeros(0, dtype=np.int64)
    for domain, role in zip(pair, ROLES, strict=True):
        drawn = embeddings / f"{domain}.{shift}.{role}.npz"
        array = np.load(drawn if drawn.exists() else embeddings / f"{domain}.npz")
        _, y = np.unique(array["y"], return_inverse=True)
        counts = np.bincount(y)
        rows = label_shift.draw(y, counts if drawn.exists() else wanted(counts, shift, role == "source"), 0)
        files.append(folder / f"{domain}.npz")
        labels = {"y": array["y"][rows]} if domain == pair[0] else {}
        np.savez(files[-1], x=array["x"][rows], **labels)
        y = y[rows]
    return files[0], files[1], y


def wanted(sizes: NDArray[np.int64], shift: str, source: bool) -> NDArray[np.int64]:
    """How many images of each class a domain gives; reversed: all of the first class in the target, a tenth of the
    last, and the other way round in the source, but two or three at least. (c,) → (c,)"""
    if shift == "natural":
        return sizes
    if shift == "rs-ut":
        counts = label_shift.rs_counts if source else label_shift.ut_counts
        return counts(sizes, label_shift.picture_tail(len(sizes)))
    tail = label_shift.long_tail(len(sizes), 100, 1, 10)
    share = tail[:: -1 if source else 1] / tail[0]
    return np.maximum(3 if source else 2, np.round(sizes * share)).astype(np.int64)


def trials(
    variant: dict[str, Any],
    embeddings: Path,
    pair: tuple[str, str],
    shift: str,
    seed: int,
    auto: bool,
    runs: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Every method on one pair; on request what is chosen without labels, what users are told of it, and peers."""
    candidates = [one for one in AUTO["rows"] if one.method in variant.get("methods", [one.method])]
    setup, outputs, y = train_all(candidates, variant, embeddings, pair, shift, seed, runs)
    found = dict(zip((one.name for one in candidates), outputs, strict=True))
    claims: dict[str, dict[str, Any]] = {}
    if auto:
        networks = score_networks(outputs)
        with tempfile.TemporaryDirectory(prefix="askew-") as scratch:

            def fit(refit: Candidate, task: Task) -> DomainOutputs:
                return trained(refit, {}, replace(setup, task=task), seed, Path(scratch) / "runs")

            fitted, auto_outputs = handed_out(candidates, networks, outputs, setup.task, fit)
        if fitted is not None:
            networks.append(score_another(networks, fitted))
            found[REFIT.name] = fitted
        found["auto"] = auto_outputs
        claims = claimed([*networks, score_another(networks, found["auto"])], list(found), y)
    predicted = {name: of_network.target_uniform.argmax(axis=1) for name, of_network in found.items()}
    predicted |= peers(setup.task) if auto else {}
    for name, classes in predicted.items():
        scores = score(y, classes, len(setup.task.training_data.classes))
        row = {"pair": "-".join(pair), "shift": shift, "method": name, "seed": seed, "mean": scores["per_class_mean"]}
        yield row | claims.get(name, {})


def handed_out(
    candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork], outputs: Sequence[DomainOutputs], task: Task,
    fit: Callable[[Candidate, Task], DomainOutputs], refit: Candidate = REFIT, frozen_share: float = FROZEN_SHARE,
) -> tuple[DomainOutputs | None, DomainOutputs]:  # fmt: skip
    """LDA from the answers of the better candidates to a task of rows, where there are several, and what all answer
    together."""
    chosen = choose_members(candidates, networks, frozen_share) or [(0, 1.0)]
    members = [(replace(candidates[i], weight=weight), outputs[i]) for i, weight in chosen]
    fitted = None
    if len(members) > 1 and refits(task):
        refit, again = answered(task, [one for one, _ in members], [of for _, of in members], refit)
        fitted = fit(refit, again)
        members += [(refit, fitted)] if refit_joins(fitted, again) else []
    return fitted, mean_outputs([of for _, of in members], [one.weight for one, _ in members])


def train_all(
    candidates: Sequence[Candidate],
    variant: dict[str, Any],
    embeddings: Path,
    pair: tuple[str, str],
    shift: str,
    seed: int,
    runs: Path | None = None,
) -> tuple[Setup, list[DomainOutputs], NDArray[np.int64]]:
    """The task of a pair, what every candidate answers to it, and the target's labels."""
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        source, target, y = draw(embeddings, pair, shift, Path(scratch))
        request = AdaptRequest(source, target, backbone=variant.get("backbone", ""), training=variant.get("train", {}))
        setup = watch(set_up(request, Path(scratch), torch.device("cpu")))
        outputs = [trained(one, variant, setup, seed, runs or Path(scratch) / "runs") for one in candidates]
    return setup, outputs, y


def claimed(networks: list[ScoredNetwork], names: list[str], y: NDArray[np.int64]) -> dict[str, dict[str, Any]]:
    """What users are told without labels: the verdict on each adapted network, and, of the last, the expected accuracy
    and the label distribution: its L1 error, an even one's, and the share of classes whose interval holds the truth."""
    claims: dict[str, dict[str, Any]] = {
        name: {"verdict": verdict.verdict} for name, verdict in zip(names[1:], judge_transfers(networks), strict=True)
    }
    others = [network.outputs for network in networks[1:-1]]
    prior = diagnose(networks[0].outputs, networks[-1].outputs, others).target_prior
    truth = np.bincount(y, minlength=len(prior.prior)) / len(y)
    claims[names[-1]] |= {"expected": 100 * networks[-1].scores["expected"]} | prior_errors(prior, truth)
    return claims


def trained(candidate: Candidate, variant: dict[str, Any], setup: Setup, seed: int, runs: Path) -> DomainOutputs:
    """Train one method, unless that was done before, and return its outputs."""
    candidate = replace(candidate, hyper=variant.get("hyper", {}).get(candidate.method, {}))
    run = candidate.run(setup.task, setup.network, setup.training, seed)
    return read_outputs(finished(run, setup.task, runs))


def finished(run: Run, task: Task, runs: Path) -> Path:
    """The folder of a run, which is trained unless that was done before."""
    how = Execution(open_root(runs), torch.device("cpu"))
    for _ in execute(run, task, how):
        pass
    return how.root / run.key


def run_variants(
    variants: Path,
    embeddings: Path,
    out: Path,
    seeds: int = 1,
    shard: str = "0/1",
    auto: bool = False,
    pairs: str = "development",
    shift: str = "rs-ut",
    runs: Path | None = None,
) -> None:
    number, of = map(int, shard.split("/"))
    known = out.read_text().splitlines() if out.exists() else []
    done = {(row["variant"], row["pair"], row["shift"], row["seed"]) for row in map(json.loads, known)}
    work = itertools.product(tomllib.loads(variants.read_text()).items(), range(seeds), PAIRS[pairs])
    for (name, variant), seed, pair in itertools.islice(work, number, None, of):
        if (name, "-".join(pair), shift, seed) not in done:
            found = trials(variant, embeddings, pair, shift, seed, auto, runs)
            rows = [json.dumps({"variant": name} | row) for row in found]
            with out.open("a") as file:
                file.write("\n".join(rows) + "\n")
            print(name, *pair, shift, seed, flush=True)


def print_table(out: Path) -> None:
    """Means over pairs and, in brackets, the difference to the first variant ± its standard error."""
    found: dict[tuple[str, str], dict[tuple[str, str, int], float]] = {}
    for row in map(json.loads, out.read_text().splitlines()):
        found.setdefault((row["variant"], row["method"]), {})[row["pair"], row["shift"], row["seed"]] = row["mean"]
    variants = list(dict.fromkeys(name for name, _ in found))
    methods = list(dict.fromkeys(method for _, method in found))
    print("| variant | " + " | ".join(methods) + " |")
    print("|---" * (len(methods) + 1) + "|")
    for name in variants:
        cells = []
        for method in methods:
            here, base = found.get((name, method), {}), found.get((variants[0], method), {})
            apart = np.array([value - base[key] for key, value in here.items() if key in base])
            text = f"{np.mean(list(here.values())):.1f}" if here else "–"
            if len(apart) > 1 and name != variants[0]:
                text += f" ({apart.mean():+.1f} ± {apart.std(ddof=1) / np.sqrt(len(apart)):.1f})"
            cells.append(text)
        pairs = len({pair for (variant, _), values in found.items() if variant == name for pair, *_ in values})
        print(f"| {name} ({pairs} pairs) | " + " | ".join(cells) + " |")


def print_pairs(out: Path) -> None:
    """Each method on each pair, mean ± sample standard deviation over seeds; how good the choice is, and the claims."""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    pairs, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("pair", "method"))
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        values.setdefault((row["method"], row["pair"]), {})[row["seed"]] = row["mean"]
    print(f"| {rows[0]['shift']} | " + " | ".join([*pairs, "mean"]) + " |\n" + "|---" * (len(pairs) + 2) + "|")
    for method in methods:
        cells = [_spread(list(values[method, pair].values())) for pair in pairs]
        by_seed = np.array([list(values[method, pair].values()) for pair in pairs]).mean(axis=0)
        print(f"| {method} | " + " | ".join([*cells, _spread(list(by_seed))]) + " |")
    trained = methods[: methods.index("auto")]
    regret = [
        max(values[method, pair][seed] for method in trained) - found
        for pair in pairs for seed, found in values["auto", pair].items()
    ]  # fmt: skip
    print(f"\nRegret of auto: {np.mean(regret):.1f} points, at most {max(regret):.1f}, over {len(regret)} choices.")
    judged = [row for row in rows if "verdict" in row]
    if not judged:
        return
    truths = [truth_of(row["mean"] - values["source", row["pair"]][row["seed"]]) for row in judged]
    right, opposite = (n / len(judged) for n in count([row["verdict"] for row in judged], truths))
    print(
        f"Verdicts: right {right:.0%}, opposite {opposite:.0%} of {len(judged)}; {truths.count('helped')} had helped."
    )
    told = [row for row in rows if "covered" in row]
    l1, even, covered = (np.mean([row[key] for row in told]) for key in ("l1", "l1_even", "covered"))
    apart = np.mean([abs(row["expected"] - row["mean"]) for row in told])
    print(
        f"Label distribution: L1 {l1:.2f} (an even one {even:.2f}); its 95 % intervals cover {covered:.0%} of classes."
    )
    print(f"Confidence by class: {apart:.1f} points from the accuracy on average.")


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("embed")
    one.add_argument("pictures", type=Path)
    one.add_argument("embeddings", type=Path)
    one.add_argument("--backbone", default="corners:norms:gem:resnet50.v1")
    one.add_argument("--weights", default="hub")
    one.add_argument("--side", type=int, default=SIDE, help="Side of the decoded pictures, of which 224 are seen.")
    one.add_argument("--shift", choices=SHIFTS, default="rs-ut")
    one.add_argument("--device", default="cpu")
    rows = commands.add_parser("sensors")
    rows.add_argument("embeddings", type=Path)
    two = commands.add_parser("try")
    two.add_argument("variants", type=Path)
    two.add_argument("embeddings", type=Path)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--seeds", type=int, default=1)
    two.add_argument("--shard", default="0/1", help="Which part of the work: 0/2 and 1/2 make the whole.")
    two.add_argument("--auto", action="store_true", help="Also score what is chosen without labels, and peers.")
    two.add_argument("--pairs", choices=PAIRS, default="development")
    two.add_argument("--shift", choices=SHIFTS, default="rs-ut")
    two.add_argument("--runs", type=Path, help="Keep what was trained there, and train nothing twice.")
    three = commands.add_parser("table")
    three.add_argument("out", type=Path)
    four = commands.add_parser("pairs")
    four.add_argument("out", type=Path)
    args = parser.parse_args()
    match args.command:
        case "embed":
            spec = backbone_spec(args.backbone, args.weights, (3, args.side, args.side))
            embed(args.pictures, args.embeddings, spec, args.side, args.shift, torch.device(args.device))
        case "sensors":
            sensors(args.embeddings)
        case "try":
            run_variants(
                args.variants, args.embeddings, args.out, args.seeds, args.shard, args.auto, args.pairs, args.shift,
                args.runs,
            )  # fmt: skip
        case "table":
            print_table(args.out)
        case _:
            print_pairs(args.out)


if __name__ == "__main__":
    main()
