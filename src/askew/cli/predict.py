"""Commands for a trained model: predict, export; and embed, for a pre-trained one."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import app, expand_options
from askew.cli.options import (
    CLUSTER,
    EXECUTION,
    OWN_DATA,
    Address,
    AsJson,
    CodeOptions,
    Device,
    Gpus,
    LabelColumn,
    PathColumn,
)
from askew.cli.terminal import print_json, print_note
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.data.custom import CustomDomain
    from askew.inference.embeddings import Embedder
    from askew.inference.predict_files import PredictionCounts
    from askew.inference.predictor import ClassShares, Predictor


Model = Annotated[
    Path,
    typer.Argument(
        help="Folder of a model, folder that `askew adapt` wrote, folder of a finished run, or "
        "hf://owner/name."
    ),
]
SharesOption = Annotated[
    str,
    typer.Option(
        "--shares",
        help="Class shares to predict for: equal, source, target (as estimated), training, a file "
        "of class,share, or one share per class, separated by commas.",
    ),
]
_SHOWN = 12  # classes whose shares are printed


class PredictOn(StrEnum):
    """Where predictions are computed."""

    local = "local"
    ray = "ray"


class Pooling(StrEnum):
    """How a ResNet's last feature map becomes a vector."""

    average = "average"
    gem = "gem"


class Statistics(StrEnum):
    """Which batch statistics a frozen backbone uses."""

    original = "original"
    domain = "domain"
    both = "both"


class Form(StrEnum):
    """What a model is exported to."""

    onnx = "onnx"
    safetensors = "safetensors"


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def predict(
    model: Model,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="A folder, a list (.csv, .txt), images, or arrays (.npy, .npz, .parquet)."
        ),
    ],
    code: CodeOptions,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A .csv or .parquet file; default: CSV on stdout."),
    ] = None,
    path_column: PathColumn = "",
    shares: SharesOption = "equal",
    batch: Annotated[
        int,
        typer.Option(
            "--batch", help="Images per batch; 0: as many as fit.", min=0, rich_help_panel=EXECUTION
        ),
    ] = 0,
    device: Device = "auto",
    on: Annotated[
        PredictOn,
        typer.Option(
            "--on",
            help="This machine, or a Ray cluster: then -o is a folder.",
            rich_help_panel=CLUSTER,
        ),
    ] = PredictOn.local,
    address: Address = "",
    gpus: Gpus = 0.0,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", help="With --on ray: processes; 0: all.", min=0, rich_help_panel=CLUSTER
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Predict a class for every image, one row per image, in a stable order; files that cannot be
    read are listed."""
    if on is PredictOn.ray:
        if any(vars(code).values()) or path_column:
            raise UserError(
                "--method, --backbone and --path-column are for one machine.", "leave --on ray out."
            )
        _predict_by_ray(model, images, file, shares, device, (address, jobs, gpus), as_json)
    elif address or gpus or jobs:
        raise UserError("--address, --gpus and --jobs have no meaning on one machine.", "--on ray")
    else:
        from askew.core.files import require_other_file
        from askew.inference.predictor import load
        from askew.inference.writers import writer_for

        if file is not None:
            writer_for(file)  # a file that cannot be written is refused before the work
            require_other_file(file, images)
        predictor = load(model, device, **vars(code))
        _predict_here(
            predictor, images, file, _class_shares(shares, predictor), batch, path_column, as_json
        )


def _predict_here(
    predictor: Predictor,
    images: list[Path],
    file: Path | None,
    shares: ClassShares,
    batch: int,
    path_column: str,
    as_json: bool,
) -> None:
    from askew.cli.progress import count_images
    from askew.data.image_lists import Columns
    from askew.inference.predict_files import PredictionCounts, write_predictions
    from askew.inference.writers import RowCollector

    counts = PredictionCounts(predictor.classes)
    rows = RowCollector(predictor.classes) if as_json and file is None else None
    try:
        with count_images() as count:
            for done in write_predictions(
                predictor, images, rows or file, shares, batch, Columns(path_column)
            ):
                count(len(done.names))
                counts.add(done)
                for name, problem in zip(done.names, done.problems, strict=True):
                    if problem:
                        print_note(f"cannot read {name}: {problem}")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    _print_counts(counts, "file", file, as_json, None if rows is None else rows.rows)


def _predict_by_ray(
    model: Path,
    images: list[Path],
    folder: Path | None,
    shares: str,
    device: str,
    cluster: tuple[str, int, float],
    as_json: bool,
) -> None:
    """In shards, each written once; started again, only missing ones are computed."""
    if folder is None:
        raise UserError("With --on ray, predictions go to a folder, in parts.", "name it with -o.")
    from askew.cli.progress import count_images
    from askew.inference.predictor import load
    from askew.inference.ray_predict import open_shards, predict_by_ray
    from askew.runs.launch.ray import Ray

    predictor = load(model, "cpu")
    given = _class_shares(shares, predictor)
    shards = open_shards(images, predictor, given, folder)
    with count_images() as count:
        for done in predict_by_ray(model, device, given, shards, Ray(*cluster)):
            count(done)
    _print_counts(shards.counts(predictor.classes), "folder", folder, as_json)


def _class_shares(text: str, predictor: Predictor) -> ClassShares:
    """Read the name of a label distribution, one share per class, or a file of shares."""
    from askew.inference.predictor import SHARES

    if text in SHARES:
        return text
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        pass
    if not Path(text).exists():
        return text  # the model refuses it
    from askew.adaptation.request import read_shares

    return read_shares(Path(text), predictor.classes)


def _print_counts(
    counts: PredictionCounts,
    kind: str,
    path: Path | None,
    as_json: bool,
    rows: list[dict[str, Any]] | None = None,
) -> None:
    """How many images there were, where their predictions are, and how they are distributed over
    the classes."""
    if as_json:
        summary: dict[str, Any] = {} if path is None else {kind: str(path)}
        summary |= {"images": counts.images, "broken": counts.broken, "shares": counts.distribution}
        print_json(summary | ({} if rows is None else {"predictions": rows}))
        return
    where = "" if path is None else f" in {path}"
    broken = f", {counts.broken} of them broken" if counts.broken else ""
    print_note(f"predictions for {counts.images} images{where}{broken}")
    shares = sorted(counts.distribution.items(), key=lambda item: -item[1])
    listed = ", ".join(f"{name} {share:.1%}" for name, share in shares[:_SHOWN])
    more = f" and {len(shares) - _SHOWN} more" if len(shares) > _SHOWN else ""
    print_note(f"predicted label distribution: {listed}{more}")


@app.command(rich_help_panel=OWN_DATA)
def embed(
    images: Annotated[
        Path, typer.Argument(help="A folder, with or without sub-folders of classes, or a list.")
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="A .npz file with x, names and, where there are some, labels y."
        ),
    ] = None,
    backbone: Annotated[
        str, typer.Option("--backbone", help="A torchvision network or timm:NAME.")
    ] = "resnet50",
    weights: Annotated[
        str,
        typer.Option("--weights", help="Its weights: hub, none, or a .safetensors or .pth file."),
    ] = "hub",
    pooling: Annotated[
        Pooling, typer.Option("--pooling", help="Pooling of a ResNet: average or gem.")
    ] = Pooling.average,
    corners: Annotated[
        bool, typer.Option("--corners", help="Average over each image and two of its corners.")
    ] = False,
    statistics: Annotated[
        Statistics,
        typer.Option(
            "--statistics", help="Batch statistics: original, of the domain, or both (their mean)."
        ),
    ] = Statistics.original,
    views: Annotated[
        int,
        typer.Option(
            "--views", help="Random views of each image to embed as well.", min=0, max=1000
        ),
    ] = 0,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Ignore images that cannot be decoded.")
    ] = False,
    path_column: PathColumn = "",
    label_column: LabelColumn = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed images with a frozen network, each once: other commands find the embeddings by the
    images' content."""
    from askew.cli.progress import watch
    from askew.core.device import pick_device
    from askew.core.options import checked
    from askew.data.custom import pictures_to_embed
    from askew.data.image_lists import Columns
    from askew.inference.embeddings import embed_pictures, picture_embedder
    from askew.nets.augment import Views
    from askew.nets.embedding import Embedding

    _check_embed(file, backbone)
    columns = Columns(path_column, label_column)
    pictures_to_embed(
        images, columns
    )  # a folder that is not there is found before any weights are downloaded
    how = {"pooling": pooling.value, "corners": corners, "statistics": statistics.value}
    given = {"backbone": backbone, "weights": weights} | how
    embedding = Embedding(**checked(Embedding, given, "the embedding"))
    embedder = picture_embedder(embedding, pick_device(device), Views(views="picture"), views)
    domain = watch(embed_pictures(images, embedder, skip_broken, columns))
    _hand_out(embedder, domain, file, as_json)


def _check_embed(file: Path | None, backbone: str) -> None:
    """UserError if there is nothing to embed with, or the file cannot be written."""
    from askew.core.files import check_file
    from askew.nets.spec import LAYERS

    if backbone in LAYERS:
        raise UserError(
            f"The network {backbone} is not pre-trained.",
            "--backbone resnet50, or another of torchvision.",
        )
    if file is not None:
        check_file(file)
        if file.suffix.lower() != ".npz":
            raise UserError(
                f"Embeddings are written to a .npz file, found {file}.", "-o embeddings.npz"
            )


def _hand_out(embedder: Embedder, domain: CustomDomain, file: Path | None, as_json: bool) -> None:
    """Write x (n, d), names (n,), and labels y (n,) and views (n, v, d) where there are some;
    `adapt` reads x and y."""
    import numpy as np

    from askew.core.files import whole_file

    rows = embedder.rows(domain.x)
    if file is not None:
        arrays: dict[str, Any] = {"x": rows, "names": np.array(domain.names)}
        arrays |= {} if domain.labels is None else {"y": np.array(domain.labels)}
        arrays |= {"views": embedder.views(domain.x)} if embedder.count else {}
        with (
            whole_file(file, "choose another file with -o.") as temporary,
            temporary.open("wb") as content,
        ):
            np.savez(content, **arrays)
    n, width, name = *rows.shape, embedder.embedding.label
    if as_json:
        print_json(
            {"file": str(file or ""), "images": n, "width": width, "broken": len(domain.broken)}
        )
    else:
        where = "in the cache" if file is None else f"in {file}"
        print_note(f"embeddings of {n} images {where}: rows of {width} numbers by {name}")


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def export(
    model: Model,
    file: Annotated[
        Path, typer.Option("-o", "--out", help="The file to write; a folder for safetensors.")
    ],
    code: CodeOptions,
    to: Annotated[
        Form, typer.Option("--to", help="onnx, or safetensors: askew's own format.")
    ] = Form.onnx,
    shares: SharesOption = "equal",
    as_json: AsJson = False,
) -> None:
    """Export a model, from raw pixels to logits, and check that the outputs are the same."""
    if to is Form.safetensors and shares != "equal":
        raise UserError(
            "A model in askew's own format gets its class shares when it is used.",
            "leave --shares out.",
        )
    from askew.inference.export import check_form
    from askew.inference.export import export as write
    from askew.inference.predictor import load

    check_form(file)
    predictor = load(model, "cpu", **vars(code))
    if to is Form.safetensors:
        predictor.save(file)
        worst = 0.0
    else:
        worst = write(predictor, file, _class_shares(shares, predictor))
    if as_json:
        print_json({"file": str(file), "form": to.value, "difference": worst})
    else:
        print_note(f"{to.value} in {file}; logits differ by {worst:.1g} at most")
