"""Fifty timm models by chance, and four that people ask for: each embeds, adapts, is saved, loaded
and predicts.

    python benchmarks/studies/fifty.py --out RESULTS.jsonl [--count 50] [--seed 0]
    [--most-parameters 60]

Weights are random and pictures drawn, so this says nothing about accuracy: it asks whether a name
works, at a size that the model takes, and whether the saved model gives the probabilities of the
adaptation. Models of more than 60 million parameters are not drawn, so that it runs on a laptop.
Interrupted, it goes on with the next name.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from askew.adaptation.artifacts import predictor
from askew.adaptation.pipeline import adapt
from askew.adaptation.setup import AdaptRequest
from askew.cli.progress import watch
from askew.inference.predictor import load

ASKED_FOR = (
    "vit_small_patch14_dinov2",
    "vit_base_patch32_clip_quickgelu_224",
    "convnext_tiny",
    "swinv2_cr_tiny_384",
)
LENGTH = {"pretrain": 10, "rounds": 1, "round": 10, "batch": 8}


def draw_names(count: int, seed: int, most: float) -> list[str]:
    """The names that people ask for, and others at random, none too large."""
    import timm

    names, chance = list(ASKED_FOR), random.Random(seed)
    for name in chance.sample(timm.list_models(), len(timm.list_models())):
        if len(names) >= count + len(ASKED_FOR):
            break
        with torch.device("meta"):
            size = sum(p.numel() for p in timm.create_model(name, num_classes=0).parameters())
        if size <= most * 1e6:
            names.append(name)
    return names


def draw_pictures(folder: Path, dark: int) -> Path:
    """Squares of a colour per class on a ground."""
    for k, name in enumerate(("red", "green")):
        (folder / name).mkdir(parents=True)
        for i in range(4):
            pixels = np.full((48, 48, 3), dark, np.uint8)
            pixels[12:36, 12:36, k] = np.random.default_rng([k, i, dark]).integers(
                150, 255, (24, 24)
            )
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def try_name(name: str) -> dict[str, Any]:
    """What became of it: the size and width that were found, and how far the loaded model's
    probabilities are."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        folder = Path(scratch)
        source, target = draw_pictures(folder / "source", 90), draw_pictures(folder / "target", 0)
        request = AdaptRequest(
            source, target, "coal", f"timm:{name}", "none", tuned=False, training=LENGTH
        )
        found = watch(adapt(request, folder / "out", torch.device("cpu")))
        predictor(found).save(folder / "out" / "model")
        model = load(folder / "out", "cpu")
        p = model.predict_proba([target / path for path in found.setup.data.target.names])
    assert found.setup.backbone is not None
    return {
        "name": name,
        "size": found.setup.backbone.crop,
        "width": found.setup.task.training_data.source.x.shape[1],
        "difference": float(np.abs(p - found.probabilities).max()),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-parameters", type=float, default=60.0, help="In millions.")
    args = parser.parse_args()
    known = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if args.out.exists()
        else []
    )
    rows = {row["name"]: row for row in known}
    names = draw_names(args.count, args.seed, args.most_parameters)
    for name in names:
        if name in rows:
            continue
        try:
            rows[name] = try_name(name)
        except Exception as error:  # which is what it looks for
            rows[name] = {"name": name, "failed": f"{type(error).__name__}: {error}"}
        with args.out.open("a") as file:
            file.write(json.dumps(rows[name]) + "\n")
        print(rows[name], flush=True)
    tried = [rows[name] for name in names]
    sound = [row for row in tried if "failed" not in row]
    print(f"{len(sound)} of {len(tried)} embed, adapt, save, load and predict")
    print(f"largest difference of a probability: {max(row['difference'] for row in sound):.4f}")


if __name__ == "__main__":
    main()
