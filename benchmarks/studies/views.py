"""What random views of pictures are worth on a frozen backbone: their embeddings in training, or
their mean.

    python benchmarks/studies/views.py embed PACS VIEWS --backbone resnet50.v1 --weights
    FILE.safetensors python benchmarks/studies/views.py try VIEWS --out RESULTS.jsonl --shift rs-ut
    [--seeds 0 1 2] [--variants NAME …] python benchmarks/studies/own.py table RESULTS.jsonl
    python benchmarks/studies/views.py rows VIEWS EMBEDDINGS --rows corners

`embed` writes one file per domain: embeddings of its pictures (plain), of their four corners
(corners), of six random crops of each (crops) and of four more in another style (style), and the
paths. `try` trains what `askew adapt` trains on rows, with the committed settings, on the pairs of
domains that no table reports, once for every variant (VARIANTS below says what they are), and
scores every candidate and what is handed out. Interrupted, it resumes. `rows` writes the mean over
a picture and its views, one row each, for `own.py try`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from own import trained
from own_rows import DOMAINS, PAIRS, draw
from torch import Tensor

from askew.adaptation.candidates import AUTO
from askew.adaptation.setup import AdaptRequest, Setup, set_up
from askew.cli.progress import watch
from askew.core import random
from askew.data.custom import list_pictures
from askew.data.decode import decode
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.metrics import score
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.validators import choose_several, score_networks
from askew.inference.embeddings import checked_embedding, frozen, picture_shape
from askew.methods import COMPARED
from askew.methods.base import Batch, Method
from askew.nets.augment import Views, make_view
from askew.nets.backbones import corners
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_backbones
from askew.training.batches import Feed

KINDS = {
    "crops": (6, Views(views="picture", area=0.35, style=0.0)),
    "style": (4, Views(views="picture", area=0.35)),
}


@dataclass(frozen=True)
class Training:
    """How one method is trained."""

    rows: str = "plain"
    """What stands for a picture: its own embedding, or the mean of that and those of its views, or
    of some: crops/3."""
    views: str = ""
    """The kind of views of which batches draw one for each picture, the picture itself among them;
    empty: none."""
    noise: bool = True
    """Whether the teacher's rows get noise and dropout as well."""
    calm: bool = False
    """Whether the teacher sees the picture itself."""


TODAY = Training()
VARIANTS: Mapping[str, tuple[Training, Training]] = {
    "today": (TODAY, TODAY),
    "teacher: crops": (TODAY, Training(views="crops")),
    "teacher: crops, no noise": (TODAY, Training(views="crops", noise=False)),
    "teacher: crops, picture for the teacher": (TODAY, Training(views="crops", calm=True)),
    "teacher: style": (TODAY, Training(views="style")),
    "teacher: style, no noise": (TODAY, Training(views="style", noise=False)),
    "others: crops": (Training(views="crops"), TODAY),
    "all: crops": (Training(views="crops"), Training(views="crops")),
    "all: style": (Training(views="style"), Training(views="style")),
    "mean of crops": (Training(rows="crops"), Training(rows="crops")),
    "mean of crops, teacher: crops": (
        Training(rows="crops"),
        Training(rows="crops", views="crops"),
    ),
    "mean of crops, all: crops": (
        Training(rows="crops", views="crops"),
        Training(rows="crops", views="crops"),
    ),
    "mean of corners": (Training(rows="corners"), Training(rows="corners")),
    "mean of corners, teacher: corners": (
        Training(rows="corners"),
        Training(rows="corners", views="corners"),
    ),
    "mean of 3 crops": (Training(rows="crops/3"), Training(rows="crops/3")),
    "mean of style": (Training(rows="style"), Training(rows="style")),
}
"""How the other methods are trained, and how the teacher."""


def embed(pacs: Path, out: Path, backbone: str, weights: str, side: int) -> None:
    """One .npz per domain, of pictures decoded to so many pixels, or to those that `askew adapt`
    decodes them to."""
    out.mkdir(parents=True, exist_ok=True)
    plain = Embedding(backbone=backbone, weights=weights)
    shape = (3, side, side) if side else picture_shape(plain)
    embedding = checked_embedding(plain, shape)
    network = frozen(embedding, shape)
    for domain in DOMAINS:
        listing = list_pictures(pacs / domain, "source")
        assert listing is not None
        found: dict[str, list[Tensor]] = {}
        with torch.inference_mode(), fast_backbones(network, 32):
            for some in torch.split(torch.arange(len(listing.paths)), 32):
                pixels = [decode(listing.root / listing.paths[i], shape) for i in some.tolist()]
                for kind, views in views_of(
                    torch.from_numpy(np.stack(pixels)), some, min(embedding.crop, shape[1])
                ).items():
                    rows = torch.stack([network(view).flatten(1) for view in views], dim=1)
                    found.setdefault(kind, []).append(rows.half())
        arrays: dict[str, Any] = {kind: torch.cat(rows).numpy() for kind, rows in found.items()}
        arrays |= {"plain": arrays["plain"][:, 0], "paths": np.array(listing.paths)}
        np.savez(out / f"{domain}.npz", **arrays)
        print(domain, len(listing.paths), flush=True)


def views_of(x: Tensor, rows: Tensor, side: int) -> dict[str, list[Tensor]]:
    """Pictures, and their views by kind."""
    found = {
        "plain": [x],
        "corners": [*corners(x, (side, side)), *corners(x.flip(-1), (side, side))],
    }
    for kind, (count, how) in KINDS.items():
        keys = [random.hash64(random.key("study", kind, v), rows) for v in range(count)]
        found[kind] = [make_view(x, key, how, side=side) for key in keys]
    return found


def write_rows(views: Path, out: Path, rows: str) -> None:
    """One .npz per domain for `own.py`: a row for each picture, and the classes' names."""
    out.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        found = Domain(views / f"{domain}.npz")
        np.savez(out / f"{domain}.npz", x=found.rows(rows), y=found.y)


class Domain:
    """The embeddings of a domain."""

    def __init__(self, file: Path) -> None:
        arrays = np.load(file)
        self.y = np.array([Path(path).parent.name for path in arrays["paths"]])
        self.plain: NDArray[np.float32] = arrays["plain"].astype(np.float32)
        self.of_views: dict[str, NDArray[np.float16]] = {
            kind: arrays[kind] for kind in ("corners", *KINDS) if kind in arrays
        }

    def rows(self, name: str) -> NDArray[np.float32]:
        """One row per picture. (n, d)"""
        if name == "plain":
            return self.plain
        kind, _, most = name.partition("/")
        views = self.of_views[kind][:, : int(most) if most else None]
        mean: NDArray[np.float32] = (self.plain + views.sum(axis=1, dtype=np.float32)) / np.float32(
            1 + views.shape[1]
        )
        return mean

    def stack(self, kind: str, rows: str, wanted: NDArray[np.float32]) -> Tensor:
        """The embeddings, and those of the views, of the pictures that these rows stand for. (n, 1
        + v, d)"""
        number = {row.tobytes(): i for i, row in enumerate(self.rows(rows))}
        at = np.array([number[row.tobytes()] for row in np.asarray(wanted)])
        return torch.from_numpy(
            np.concatenate(
                [self.plain[at].astype(np.float16)[:, None], self.of_views[kind][at]], axis=1
            )
        )


@contextmanager
def drawn_views(source: Tensor, target: Tensor, calm: bool) -> Iterator[None]:
    """Batches hold one of each picture's embeddings, drawn anew for each view that a method asks
    for."""

    def batch(self: Feed, source_rows: Tensor, target_rows: Tensor) -> Batch:
        return Batch(source[source_rows], self.ys[source_rows], target[target_rows], target_rows)

    def with_views(batch: Batch, method: Method, key: Tensor, how: Views, _: int) -> Batch:
        def views(x: Tensor, domain: str, strengths: Sequence[float]) -> Iterator[Tensor]:
            for number, strength in enumerate(strengths):
                pick = random.bits(key, f"{domain} embedding {number}", len(x)) % x.shape[1]
                pick = torch.zeros_like(pick) if calm and number == 1 else pick
                rows = x[torch.arange(len(x)), pick].float()
                yield make_view(
                    rows, random.bits(key, f"{domain} view {number}", len(x)), how, strength
                )

        xs, xt = (
            tuple(views(batch.xs, "source", method.source_views)),
            tuple(views(batch.xt, "target", method.target_views if method.sees_target else (0.0,))),
        )
        return batch._replace(xs=xs[0], xt=xt[0], source_views=xs, target_views=xt, key=key)

    with (
        mock.patch.object(Feed, "batch", batch),
        mock.patch("askew.training.loop.with_views", with_views),
    ):
        yield


def trials(
    names: Sequence[str],
    domains: Mapping[str, Domain],
    pair: tuple[str, str],
    shift: str,
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Every candidate and what is handed out, by every variant, on one pair."""
    found: dict[tuple[str, Training], tuple[DomainOutputs, float]] = {}
    setups: dict[str, tuple[Setup, NDArray[np.int64]]] = {}
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        for name in names:
            outputs, seconds = [], 0.0
            for one in AUTO["rows"]:
                how = VARIANTS[name][one.method == "teacher"]
                if one.method not in COMPARED:  # computed, without random views
                    how = Training(how.rows)
                if how.rows not in setups:
                    setups[how.rows] = set_up_rows(how.rows, domains, pair, shift, Path(scratch))
                setup, y = setups[how.rows]
                if (one.name, how) not in found:
                    began = time.process_time()
                    with drawing(how, setup, domains, pair):
                        variant = {"train": {} if how.noise else {"views": "none"}}
                        runs = Path(scratch) / "runs" / f"{how}".replace("/", "-")
                        network = trained(
                            one, variant, with_training(setup, variant["train"]), seed, runs
                        )
                    found[one.name, how] = network, time.process_time() - began
                outputs.append(found[one.name, how][0])
                seconds += found[one.name, how][1]
            handed_out = mean_outputs([outputs[i] for i in choose_several(score_networks(outputs))])
            c = len(setup.task.training_data.classes)
            for method, network in zip(
                (*(one.name for one in AUTO["rows"]), "auto"), (*outputs, handed_out), strict=True
            ):
                mean = score(y, network.target_uniform.argmax(axis=1), c)["per_class_mean"]
                yield {
                    "variant": name,
                    "pair": "-".join(pair),
                    "shift": shift,
                    "method": method,
                    "seed": seed,
                    "mean": mean,
                    "seconds": seconds,
                }


def set_up_rows(
    rows: str, domains: Mapping[str, Domain], pair: tuple[str, str], shift: str, scratch: Path
) -> tuple[Setup, NDArray[np.int64]]:
    """The task of a pair, and the target's labels."""
    for folder in (scratch / rows, scratch / "drawn" / rows):
        folder.mkdir(parents=True)
    for domain in pair:
        np.savez(
            scratch / rows / f"{domain}.npz", x=domains[domain].rows(rows), y=domains[domain].y
        )
    source, target, y = draw(scratch / rows, pair, shift, scratch / "drawn" / rows)
    return watch(set_up(AdaptRequest(source, target), scratch, torch.device("cpu"))), y


def with_training(setup: Setup, training: Mapping[str, Any]) -> Setup:
    return Setup(
        setup.data,
        setup.task,
        setup.network,
        setup.embedders,
        dict(setup.training) | dict(training),
    )


def drawing(
    how: Training, setup: Setup, domains: Mapping[str, Domain], pair: tuple[str, str]
) -> Any:
    """Batches as the training wants them."""
    if not how.views:
        return nullcontext()
    data = setup.task.training_data
    rows = (data.source.x, data.target.x)
    source, target = (
        domains[d].stack(how.views, how.rows, np.asarray(x))
        for d, x in zip(pair, rows, strict=True)
    )
    return drawn_views(source, target, how.calm)


def run_variants(
    names: Sequence[str],
    views: Path,
    out: Path,
    shift: str,
    seeds: Sequence[int],
    shard: str,
    pairs: str,
) -> None:
    number, of = map(int, shard.split("/"))
    known = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["variant"], row["pair"], row["shift"], row["seed"]) for row in known}
    for seed, pair in itertools.islice(itertools.product(seeds, PAIRS[pairs]), number, None, of):
        todo = [name for name in names if (name, "-".join(pair), shift, seed) not in done]
        if not todo:
            continue
        domains = {domain: Domain(views / f"{domain}.npz") for domain in pair}
        lines = [json.dumps(row) for row in trials(todo, domains, pair, shift, seed)]
        with out.open("a") as file:
            file.write("\n".join(lines) + "\n")
        print(*pair, shift, seed, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("embed")
    one.add_argument("pacs", type=Path)
    one.add_argument("views", type=Path)
    one.add_argument("--backbone", default="resnet50.v1")
    one.add_argument("--weights", default="hub")
    one.add_argument(
        "--side",
        type=int,
        default=0,
        help="Side of the decoded pictures; default: as askew adapt does.",
    )
    two = commands.add_parser("try")
    two.add_argument("views", type=Path)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    two.add_argument("--shift", choices=("rs-ut", "natural"), default="rs-ut")
    two.add_argument("--seeds", type=int, nargs="+", default=[0])
    two.add_argument(
        "--shard", default="0/1", help="Which part of the work: 0/2 and 1/2 make the whole."
    )
    two.add_argument("--pairs", choices=("development", "reported"), default="development")
    three = commands.add_parser("rows")
    three.add_argument("views", type=Path)
    three.add_argument("embeddings", type=Path)
    three.add_argument(
        "--rows",
        default="corners",
        help="Whose mean with the picture stands for it: corners, crops/3.",
    )
    args = parser.parse_args()
    if args.command == "embed":
        embed(args.pacs, args.views, args.backbone, args.weights, args.side)
    elif args.command == "rows":
        write_rows(args.views, args.embeddings, args.rows)
    else:
        run_variants(
            args.variants, args.views, args.out, args.shift, args.seeds, args.shard, args.pairs
        )


if __name__ == "__main__":
    main()
