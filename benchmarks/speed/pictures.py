"""From picture files to embeddings, and to predictions: askew against plain PyTorch, in images per
second.

    python benchmarks/speed/pictures.py embed FOLDER --backbone resnet50.v1 --weights FILE [--images
    256] [--more] python benchmarks/speed/pictures.py predict FOLDER --backbone resnet18 [--images
    1024] [--rounds 3] [--fine-tuned] python benchmarks/speed/pictures.py predict --device cuda
    --images 4096        # random pictures of its own

`embed` times forward passes alone, on decoded pictures: plain eager float32; channels last;
bfloat16 by autocast; and askew's. With a folder of classes it also compares scikit-learn's
LogisticRegression on both embeddings, trained on half of the images and scored on the other half.

`predict` times everything from JPEG files to a CSV file: `askew predict`, and the usual loop, a
DataLoader with torchvision's transforms in as many processes as there are cores, an eager network,
and Python's csv module; and the same loop with the network channels last in memory. The model is an
MLP on a frozen backbone, or a network that was fine-tuned as a whole. Without a folder, random
pictures are made: JPEG, 640 x 480.

All ways take turns in every round, so that other work on the machine hits each of them; ratios are
medians over rounds.
"""

from __future__ import annotations

import argparse
import copy
import csv
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from askew.core.device import pick_device
from askew.data.decode import PictureFiles
from askew.data.image_lists import Listing, read_folder
from askew.inference.embeddings import frozen_backbone
from askew.inference.model_card import ModelCard
from askew.inference.predict_files import write_predictions
from askew.inference.predictor import Predictor
from askew.methods.base import Method
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_backbones, fast_bfloat16
from askew.nets.network import build
from askew.nets.spec import NetworkSpec, file_hash, parse_network

BATCH = 32
CPU = torch.device("cpu")


def some(folder: Path, images: int) -> Listing:
    """About so many pictures of a folder, at equal distances."""
    listing = read_folder(folder)
    rows = (
        np.linspace(0, len(listing.paths) - 1, min(images, len(listing.paths))).astype(int).tolist()
    )
    labels = None if listing.labels is None else tuple(listing.labels[i] for i in rows)
    return Listing(listing.root, tuple(listing.paths[i] for i in rows), labels)


def make_pictures(folder: Path, images: int) -> None:
    """Smooth random pictures with some grain, some dozens of them again and again."""
    from PIL import Image

    rng, files = np.random.default_rng(0), []
    for i in range(min(images, 64)):
        coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(
            (640, 480)
        )
        x = np.asarray(coarse).astype(np.float32) + rng.normal(0, 6, (480, 640, 1))
        file = folder / f"{i:06}.jpg"
        Image.fromarray(x.clip(0, 255).astype(np.uint8)).save(file, quality=90)
        files.append(file.read_bytes())
    for i in range(len(files), images):
        (folder / f"{i:06}.jpg").write_bytes(files[i % len(files)])


def embedding_of(args: argparse.Namespace) -> Embedding:
    file = args.weights not in ("hub", "none")
    return Embedding(
        backbone=args.backbone,
        weights=args.weights,
        weights_hash=file_hash(Path(args.weights)) if file else "",
    )


def take_turns(ways: Mapping[str, Callable[[], object]], images: int, rounds: int) -> None:
    """Print images per second of each way, and the median over rounds of its ratio to the first."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    first = next(iter(times.values()))
    for name, seconds in times.items():
        ratio = statistics.median(plain / own for plain, own in zip(first, seconds, strict=True))
        print(
            f"{name:32} {images / statistics.median(seconds):8.1f} images/s   {ratio:5.2f} x",
            flush=True,
        )


# --- embeddings ---


def embed(args: argparse.Namespace) -> None:
    listing, embedding = some(args.folder, args.images), embedding_of(args)
    spec = NetworkSpec(embedding=embedding)
    x = torch.from_numpy(PictureFiles([listing.root / path for path in listing.paths])[:])
    x = x[: len(x) // BATCH * BATCH]
    plain: Any = build(spec, (3, 256, 256), 2, 0)[0]["features"].eval()
    last: Any = frozen_backbone(embedding, (3, 256, 256))

    def over(network: nn.Module) -> NDArray[np.float32]:
        with torch.inference_mode():
            return torch.cat([network(part).float() for part in x.split(BATCH)]).numpy()

    def in_bfloat16() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return over(last)

    quick: Any = frozen_backbone(embedding, (3, 256, 256))
    with fast_backbones(quick, BATCH):  # its graph is made here, once, outside of the times
        ways: dict[str, Callable[[], object]] = {
            "plain eager, float32": lambda: over(plain),
            "channels last, float32": lambda: over(last),
            "channels last, autocast bfloat16": in_bfloat16,
            "askew": lambda: over(quick),
        }
        more = others(last, plain, x) if args.more else {}
        ways |= {name: functools.partial(over, network) for name, network in more.items()}
        take_turns(ways, len(x), args.rounds)
        exact, own = over(plain), over(quick)
        for name, rows in {
            "askew": own,
            **{name: over(network) for name, network in more.items()},
        }.items():
            cosines = (
                (exact * rows).sum(axis=1)
                / np.linalg.norm(exact, axis=1)
                / np.linalg.norm(rows, axis=1)
            )
            print(
                f"{name:32} cosine to plain: {cosines.mean():.5f} on average, "
                f"{cosines.min():.5f} at least"
            )
    print(
        "relative difference of embeddings: "
        f"{np.linalg.norm(own - exact) / np.linalg.norm(exact):.4f}"
    )
    if listing.labels is not None:
        labels = np.array(listing.labels[: len(x)])
        scores = [100 * regression_score(rows, labels) for rows in (exact, own)]
        print(
            f"LogisticRegression: {scores[0]:.2f} % on plain embeddings, {scores[1]:.2f} % on "
            "askew's",
            flush=True,
        )


def others(last: Any, plain: Any, x: Tensor) -> dict[str, nn.Module]:
    """Ways that askew does not take: torch.compile, and ONNX Runtime in float32 and int8.

    The ranges of int8 are taken from a batch beforehand (static), or from each input (dynamic).
    """
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        quantize_dynamic,
        quantize_static,
    )

    class Calibration(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter([{"x": plain.pixels(plain.crop(x[:BATCH])).numpy()}])

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return next(self.batches, None)

    class Session(nn.Module):
        def __init__(self, file: Path) -> None:
            super().__init__()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self.session = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )

        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(
                self.session.run(None, {"x": plain.pixels(plain.crop(x)).numpy()})[0]
            )

    compiled = copy.deepcopy(last)
    compiled.body = torch.compile(compiled.body.bfloat16())
    pixels = compiled.pixels
    compiled.pixels = nn.Sequential(pixels, Bfloat16())
    began = time.perf_counter()
    with torch.inference_mode():
        compiled(x[:BATCH])
    print(f"torch.compile took {time.perf_counter() - began:.1f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        exact, static, dynamic = (
            Path(scratch) / f"{name}.onnx" for name in ("exact", "static", "dynamic")
        )
        inputs = (torch.zeros(BATCH, 3, *plain.size),)
        torch.onnx.export(
            plain.body, inputs, str(exact), input_names=["x"], dynamo=True, verbose=False
        )
        quantize_static(
            exact, static, Calibration(), quant_format=QuantFormat.QDQ, per_channel=True
        )
        quantize_dynamic(exact, dynamic)
        files = {"float32": exact, "static int8": static, "dynamic int8": dynamic}
        sessions = {f"ONNX Runtime, {name}": Session(file) for name, file in files.items()}
    return {"torch.compile, bfloat16": compiled, **sessions}


class Bfloat16(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16().contiguous(memory_format=torch.channels_last)


def regression_score(x: NDArray[np.float32], y: NDArray[np.str_]) -> float:
    """Accuracy on the odd rows of a regression on the even ones, and the other way round."""
    from sklearn.linear_model import LogisticRegression

    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    halves = [(slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))]
    return float(
        np.mean(
            [
                LogisticRegression(C=10.0, max_iter=300).fit(x[a], y[a]).score(x[b], y[b])
                for a, b in halves
            ]
        )
    )


# --- predictions ---


class Pictures(Dataset[Tensor]):
    """Files as torchvision's guides read them."""

    def __init__(self, paths: list[Path]) -> None:
        from torchvision import transforms

        self.paths = paths
        self.transform = transforms.Compose(
            [
                transforms.Resize((256, 256)),
                transforms.CenterCrop(224),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Tensor:
        from PIL import Image

        with Image.open(self.paths[row]) as picture:
            x: Tensor = self.transform(picture.convert("RGB"))
        return x


def usual_loop(
    paths: list[Path],
    network: nn.Module,
    classes: list[str],
    file: Path,
    workers: int,
    device: torch.device,
) -> None:
    batches = DataLoader(
        Pictures(paths), batch_size=64, num_workers=workers, pin_memory=device.type == "cuda"
    )
    with file.open("w", newline="") as out, torch.inference_mode():
        writer, row = csv.writer(out), 0
        writer.writerow(["path", "class", "probability", *classes])
        for x in batches:
            for p in network(x.to(device, non_blocking=True)).softmax(dim=1).tolist():
                best = max(range(len(p)), key=p.__getitem__)
                writer.writerow([paths[row], classes[best], p[best], *p])
                row += 1


def predict(args: argparse.Namespace) -> None:
    listing = some(args.folder, args.images)
    paths = [listing.root / path for path in listing.paths]
    name = args.backbone if args.fine_tuned else f"{args.backbone}+mlp"
    spec = parse_network(name, head="cosine")
    parts, _ = build(spec, (3, 256, 256), 7, 0)
    weights = {
        f"{part}.{k}": v for part, module in parts.items() for k, v in module.state_dict().items()
    }
    classes = [f"class {k}" for k in range(7)]
    card = ModelCard(
        net=spec,
        rule=Method(),
        shape=(3, 256, 256),
        classes=tuple(classes),
        training_prior=(1 / 7,) * 7,
    )
    device = pick_device(args.device)
    predictor, usual = (Predictor(card, weights, args.device) for _ in range(2))
    usual.classifier.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    features: Any = parts["features"]
    layers = (
        [features.body, nn.Flatten()]
        if args.fine_tuned
        else [features[0].body, nn.Flatten(), features[1]]
    )
    plain = nn.Sequential(*layers, parts["head"]).eval().to(device)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:

        def by_askew(model: Predictor, of: list[Path]) -> None:
            for _ in write_predictions(model, of, Path(scratch) / "askew.csv"):
                pass

        def by_loop(network: nn.Module) -> None:
            usual_loop(paths, network, classes, Path(scratch) / "plain.csv", args.workers, device)

        ways: dict[str, Callable[[], object]] = {
            "DataLoader, PIL, eager, csv": lambda: by_loop(plain),
            "DataLoader, channels last": lambda: by_loop(last),
            "askew, weights channels first": lambda: by_askew(usual, paths),
            "askew predict": lambda: by_askew(predictor, paths),
        }
        with torch.inference_mode():  # a network's first pass on a GPU takes longer than all others
            for network in (plain, last):
                network(torch.zeros(64, 3, 224, 224, device=device))
        for model in (usual, predictor):
            by_askew(model, paths[:64])
        take_turns(ways, len(paths), args.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["embed", "predict"])
    parser.add_argument(
        "folder", type=Path, nargs="?", help="Of pictures; without one, random ones are made."
    )
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--weights", default="none", help="For embed: hub, none, or a file.")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="For predict: cpu, or cuda.")
    parser.add_argument(
        "--more", action="store_true", help="For embed: also torch.compile and ONNX Runtime."
    )
    parser.add_argument(
        "--fine-tuned", action="store_true", help="For predict: a whole network instead of an MLP."
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="Processes of the DataLoader."
    )
    args = parser.parse_args()
    fast = "native" if fast_bfloat16(CPU) else "not native"
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, bfloat16 {fast}, "
        f"{args.backbone}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        if args.folder is None:
            args.folder = Path(scratch)
            make_pictures(args.folder, args.images)
        embed(args) if args.what == "embed" else predict(args)


if __name__ == "__main__":
    main()
