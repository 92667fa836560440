"""The scikit-learn estimator beside `askew.adapt` on the same embeddings of PACS, pair by pair of
domains.

    python benchmarks/studies/own.py embed PACS EMBEDDINGS --backbone resnet50.v1 --weights
    FILE.safetensors python benchmarks/studies/estimator.py EMBEDDINGS --out RESULTS.json [--seeds
    3]

Domains are as they are, without a drawn label shift. Scores are per-class means in %, by the target
labels that neither has seen; seconds are of one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import askew

PAIRS = (("cartoon", "photo"), ("photo", "cartoon"), ("photo", "sketch"), ("sketch", "photo"))
"""Those of PACS's pairs that are reported; settings were chosen on the others."""
BEFORE = {"pretrain": 150, "rounds": 5, "round": 30}
"""How long the estimator trained COAL, its only method, before `auto` was its default."""

Rows = NDArray[np.float32]
Names = NDArray[np.str_]
Trained = tuple[Names, str]
"""The class of each target row, and the method that was chosen."""


def estimator(**more: Any) -> Callable[[Rows, Names, Rows, int], Trained]:
    def train(xs: Rows, ys: Names, xt: Rows, seed: int) -> Trained:
        model = askew.AdaptiveClassifier(device="cpu", random_state=seed, **more).fit_domains(
            xs, ys, xt
        )
        return model.predict(xt), model.method_

    return train


def adapt(xs: Rows, ys: Names, xt: Rows, seed: int) -> Trained:
    result = askew.adapt((xs, ys), xt, device="cpu", seed=seed)
    return result.predictions["class"].to_numpy(), result.summary["chosen"]


WAYS = {
    "the estimator, COAL, 300 steps": estimator(method="coal", training=BEFORE),
    "the estimator": estimator(),
    "askew.adapt": adapt,
}


def per_class_mean(y: Names, predicted: Names) -> float:
    return 100 * float(np.mean([(predicted[y == name] == name).mean() for name in np.unique(y)]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("embeddings", type=Path, help="folder with one .npz per domain")
    parser.add_argument("--out", type=Path, required=True, help="file for the results, as JSON")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    for seed, (source, target) in itertools.product(range(given.seeds), PAIRS):
        (xs, ys), (xt, yt) = (
            (np.asarray(file["x"], np.float32), np.asarray(file["y"]).astype(str))
            for file in (np.load(given.embeddings / f"{domain}.npz") for domain in (source, target))
        )
        for way, train in WAYS.items():
            began = time.monotonic()
            predicted, chosen = train(xs, ys, xt, seed)
            seconds, score = (
                round(time.monotonic() - began, 1),
                round(per_class_mean(yt, predicted), 1),
            )
            row = {
                "pair": f"{source}-{target}",
                "seed": seed,
                "way": way,
                "score": score,
                "method": chosen,
            }
            found.append(row | {"seconds": seconds})
            print(*found[-1].values(), sep=" | ", flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
