"""Commands for a trained model: predict, export."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import Address, AsJson, Device, Gpus, app
from askew.cli.terminal import err, print_json
from askew.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from askew.inference.predict_files import PredictionCounts
    from askew.inference.predictor import Prior
    from askew.inference.writers import PredictionBatch


MODEL_HELP = "A model's folder, the folder that `askew adapt` wrote, or a finished run's."
Model = Annotated[Path, typer.Argument(help=MODEL_HELP)]
PriorOption = Annotated[
    str,
    typer.Option(
        "--prior",
        help="The class mix to decide under: uniform, source, target (as estimated), seen (in training), or a share "
        "for each class, separated by commas.",
    ),
]
_SHOWN = 12  # classes that the mix on the terminal names


class Where(StrEnum):
    """Where images are looked at."""

    local = "local"
    ray = "ray"


class Form(StrEnum):
    """What a model is exported to."""

    onnx = "onnx"
    torchscript = "torchscript"
    program = "program"
    safetensors = "safetensors"


@app.command()
def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(help="A folder, a list (.csv, .txt), pictures, or arrays (.npy, .npz, .parquet).")
    ],
    file: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .csv or .parquet file; without it, CSV on stdout.")
    ] = None,
    prior: PriorOption = "uniform",
    batch: Annotated[int, typer.Option("--batch", help="Images at a time; 0: what fits.", min=0)] = 0,
    device: Device = "auto",
    on: Annotated[
        Where, typer.Option("--on", help="This machine, or a Ray cluster: then -o is a folder.")
    ] = Where.local,
    address: Address = "",
    gpus: Gpus = 0.0,
    workers: Annotated[int, typer.Option("--jobs", help="With --on ray: processes; 0: what there is.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Say the class of any number of images, one row an image, in a stable order; broken files are named."""
    if as_json and file is None:
        raise UserError("--json prints a summary where the predictions go.", "name a file for them with -o.")
    if on is Where.ray:
        _predict_by_ray(model, images, file, _prior(prior), device, (address, workers, gpus), as_json)
        return
    if address or gpus or workers:
        raise UserError("--address, --gpus and --jobs have no meaning on one machine.", "--on ray")
    from askew.inference.predict_files import PredictionCounts, write_predictions
    from askew.inference.predictor import load
    from askew.inference.writers import writer_for

    if file is not None:
        writer_for(file)  # what cannot be written is said before the work
    predictor = load(model, device)
    counts = PredictionCounts(predictor.classes)
    try:
        for done in _shown(write_predictions(predictor, images, file, _prior(prior), batch)):
            counts.add(done)
            for name, problem in zip(done.names, done.problems, strict=True):
                if problem:
                    err.print(f"cannot read {name}: {problem}", soft_wrap=True, markup=False)
        sys.stdout.flush()
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if as_json:
        print_json({"file": str(file)} | _summary(counts))
    else:
        _say(counts, file)


def _predict_by_ray(
    model: Path,
    images: list[Path],
    folder: Path | None,
    prior: Prior,
    device: str,
    cluster: tuple[str, int, float],
    as_json: bool,
) -> None:
    """In parts, each written once; started again, only what is missing."""
    if folder is None:
        raise UserError("With --on ray, predictions go to a folder, in parts.", "name it with -o.")
    from askew.inference.predictor import load
    from askew.inference.ray_predict import open_shards, predict_by_ray
    from askew.runs.launch.ray import Ray

    predictor = load(model, "cpu")
    shards = open_shards(images, predictor, prior, folder)
    with _counting() as count:
        for done in predict_by_ray(model, device, prior, shards, Ray(*cluster)):
            count(done)
    counts = shards.counts(predictor.classes)
    if as_json:
        print_json({"folder": str(folder)} | _summary(counts))
    else:
        _say(counts, folder)


def _prior(text: str) -> Prior:
    """A name, or shares."""
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        return text


def _shown(batches: Iterable[PredictionBatch]) -> Iterator[PredictionBatch]:
    with _counting() as count:
        for done in batches:
            count(len(done.names))
            yield done


@contextmanager
def _counting() -> Iterator[Callable[[int], None]]:
    """A count of images on the terminal; how many there will be, nobody knows."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from askew.cli.terminal import Rate

    columns = (SpinnerColumn(), TextColumn("{task.completed} images"), Rate(), TimeElapsedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bars:
        bar = bars.add_task("predict", total=None)
        yield lambda images: bars.advance(bar, images)


def _summary(counts: PredictionCounts) -> dict[str, Any]:
    return {"images": counts.images, "broken": counts.broken, "mix": counts.distribution}


def _say(counts: PredictionCounts, file: Path | None) -> None:
    where = "" if file is None else f" in {file}"
    broken = f", {counts.broken} of them broken" if counts.broken else ""
    shares = sorted(counts.distribution.items(), key=lambda item: -item[1])
    mix = ", ".join(f"{name} {share:.1%}" for name, share in shares[:_SHOWN])
    more = f" and {len(shares) - _SHOWN} more" if len(shares) > _SHOWN else ""
    err.print(f"predictions of {counts.images} images{where}{broken}", soft_wrap=True, markup=False)
    err.print(f"class mix: {mix}{more}", soft_wrap=True, markup=False)


@app.command()
def export(
    model: Model,
    file: Annotated[Path, typer.Option("-o", "--output", help="The file to write; a folder for safetensors.")],
    to: Annotated[
        Form, typer.Option("--to", help="onnx, torchscript, program (torch.export), or safetensors: askew's own form.")
    ] = Form.onnx,
    prior: PriorOption = "uniform",
    as_json: AsJson = False,
) -> None:
    """Write a model in another form, checked to give the same; from raw pixels to logits, all is inside."""
    if to is Form.safetensors and prior != "uniform":
        raise UserError("A model in askew's own form gets its prior when it is used.", "leave --prior out.")
    from askew.inference.predictor import load

    predictor = load(model, "cpu")
    if to is Form.safetensors:
        predictor.save(file)
        worst = 0.0
    else:
        from askew.inference.export import export as write

        worst = write(predictor, file, to, _prior(prior))
    if as_json:
        print_json({"file": str(file), "form": to.value, "difference": worst})
    else:
        err.print(f"{to.value} in {file}; logits differ by {worst:.1g} at most", soft_wrap=True, markup=False)
