"""What an adaptation starts from: both domains, the network that suits them, and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from askew.adaptation.request import (
    AdaptRequest,
    TargetLabels,
    add_target_labels,
    read_shares,
    read_truth,
)
from askew.adaptation.session import SOURCE_ONLY, TrainingSet
from askew.adaptation.target_rows import TargetRows
from askew.core.errors import UserError
from askew.data.custom import CustomData, OpenPictures, load_custom_data, open_decoded, open_unread
from askew.data.decode import SIDE
from askew.data.image_cache import Pictures
from askew.data.image_lists import LISTS, Listing
from askew.data.task import Task
from askew.evaluation.outputs import Floats
from askew.inference.embeddings import (
    Embedders,
    checked_embedding,
    embed_task,
    embedders,
    picture_embedders,
    weights_file,
)
from askew.nets.embedding import OWN_PREFIX, Embedding
from askew.nets.modules import backbone_name
from askew.nets.spec import LAYERS, parse_network
from askew.runs.execute import Progress
from askew.runs.journal import part_of
from askew.runs.root import open_root

QUICK_IMAGES = 200
"""Images of each domain that a quick look takes."""
QUICK = {"pretrain": 200, "rounds": 4, "round": 40}
"""How long its networks are trained."""
FEW_IMAGES = 10_000
"""Images up to which two corners of each are embedded as well, which takes twice as long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """The data of an adaptation, and what is trained on them."""

    task: Task
    """As it was given: images or rows."""
    kind: str
    """embeddings, tables, small-images or images."""
    pixels: TrainingSet | None = None
    """What learns from the images themselves: a fine-tuned backbone or a small network."""
    rows: TrainingSet | None = None
    """What learns from rows: the user's own, or embeddings by a frozen backbone."""
    embedders: Embedders | None = None
    """The frozen backbone, for each domain."""
    labels: TargetLabels | None = None
    """Those of target images that the user has."""
    target_shares: Floats | None = None
    """The target's class shares, where the user knows them. (c,)"""
    data: CustomData | None = None
    """The user's own data; None for a benchmark's task."""

    @property
    def fine_tune(self) -> bool:
        """Whether a backbone is fine-tuned after networks on its embeddings."""
        return self.pixels is not None and self.rows is not None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.training_data.classes

    @property
    def description(self) -> str:
        """Describe the network in a few words."""
        if self.pixels is not None:
            return f"{self.pixels.network}, all of it trained"
        assert self.rows is not None
        if self.embedders is not None:
            return f"{self.rows.network} on embeddings of a frozen {self.embedding_label}"
        width = self.task.training_data.source.x.shape[1]
        network = "one linear layer" if self.kind == "tables" else self.rows.network
        return f"{network} on rows of {width} numbers"

    @property
    def embedding_label(self) -> str:
        """Name the frozen backbone."""
        return "" if self.embedders is None else self.embedders.target.embedding.label

    def with_labels(self, training_set: TrainingSet) -> TrainingSet:
        """Add the labelled target images to the source, if there are some."""
        if self.labels is None:
            return training_set
        return replace(training_set, task=add_target_labels(training_set.task, self.labels))


def read_inputs(
    request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, Inputs]:
    """Read both domains and what is known of the target, choose a network, and embed images."""
    both = None
    if _streams(request, device):
        data, both = yield from _stream(request, out, device)
    else:
        data = read_domains(request)
    inputs = yield from _networks(request, data, both, out, device)
    return replace(inputs, data=data, **_known(request, data))


def _known(request: AdaptRequest, data: CustomData) -> dict[str, Any]:
    """Read the labels and the class shares of the target that the user gave."""
    classes = data.task.training_data.classes
    known: dict[str, Any] = {}
    if request.labels is not None:
        found = read_truth(request.labels, TargetRows.of(data.target), classes, request.columns)
        known["labels"] = TargetLabels(*found, len(classes))
    if request.target_shares is not None:
        known["target_shares"] = read_shares(request.target_shares, classes)
    return known


def _networks(
    request: AdaptRequest, data: CustomData, both: Embedders | None, out: Path, device: torch.device
) -> Generator[Progress, None, Inputs]:
    """Choose the network that suits the data, and embed images where there is a backbone."""
    weights_file(request.weights)  # a wrong name is a mistake also where no weights are needed
    training = (QUICK if request.quick else {}) | dict(request.training)
    task, asked = data.task, backbone_name(request.backbone)
    if data.kind in ("embeddings", "tables") and not asked.startswith(OWN_PREFIX):
        if request.backbone not in ("", "mlp", "bare"):
            raise UserError(
                f"The data are rows of numbers, which {request.backbone} does not take.",
                "--backbone mlp or bare.",
            )
        rows = TrainingSet(task=task, network=request.backbone or "mlp", training=training)
        return Inputs(task=task, kind=data.kind, rows=rows)
    name = asked or default_network(tuple(task.training_data.source.x.shape[1:]), request, device)
    if name in LAYERS:
        pixels = TrainingSet(task=task, network=name, training=training)
        return Inputs(task=task, kind="small-images", pixels=pixels)
    images = ImageSettings(
        network=name,
        weights=request.weights,
        fine_tune=fine_tunes(request, device),
        quick=request.quick,
        method=request.method,
        training=training,
    )

    def begin() -> None:
        open_root(out / "runs")  # marks the folder as ours, so that stopped work can go on

    return (yield from image_inputs(task, images, device, both, begin))


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images are learnt from, by a pre-trained backbone."""

    network: str
    """The backbone, with layers of askew's on it or without: resnet50, resnet50+bottleneck."""
    weights: str
    fine_tune: bool
    quick: bool = False
    method: str = ""
    """The one method that is asked for; empty: several."""
    training: Mapping[str, Any] = field(default_factory=dict)


def image_inputs(
    task: Task,
    images: ImageSettings,
    device: torch.device,
    both: Embedders | None = None,
    begin: Callable[[], None] = lambda: None,
) -> Generator[Progress, None, Inputs]:
    """Embed the images of a task with a frozen backbone, and plan its fine-tuning.

    `begin` is called once the backbone and its weights are there, before any work.
    """
    tuned = _fine_tuned(images, task) if images.fine_tune else None
    if tuned is not None and (images.method or images.weights == "none"):
        return Inputs(task=task, kind="images", pixels=tuned)
    if both is None:
        data = task.training_data
        n = len(data.source) + len(data.source_val) + len(data.target)
        shape = tuple(data.source.x.shape[1:])
        both = embedders(checked_embedding(_embedding(images, n), shape), shape, device)
    begin()
    embeddings = yield from embed_task(task, both)
    # What was asked of training is about fine-tuning: rates and lengths on embeddings differ.
    short = QUICK if images.quick else {}
    training = short if tuned else images.training
    rows = TrainingSet(task=embeddings, network="mlp", training=training)
    return Inputs(task=task, kind="images", pixels=tuned, rows=rows, embedders=both)


def _fine_tuned(images: ImageSettings, task: Task) -> TrainingSet:
    """Plan to train a backbone with a bottleneck, in rounds that cover a large data set."""
    data = task.training_data
    network = parse_network(images.network, weights=images.weights)
    assert network.embedding is not None, "it is no network of layers"
    checked_embedding(network.embedding, tuple(data.source.x.shape[1:]))
    largest = max(len(data.source), len(data.target))
    training: dict[str, Any] = {"weights": images.weights, "round": max(100, largest // 32)}
    if images.weights == "none":  # there are no batch statistics to keep
        training["norm"] = "joint"
    name = images.network if network.layers else f"{images.network}+bottleneck"
    return TrainingSet(task=task, network=name, training=training | dict(images.training))


def _embedding(images: ImageSettings, count: int) -> Embedding:
    """Say how a backbone embeds so many images."""
    network = parse_network(images.network, weights=images.weights)
    assert network.embedding is not None, "it is no network of layers"
    if network.embedding.own:
        return network.embedding
    return replace(
        network.embedding,
        crop=int(images.training.get("crop", network.embedding.crop)),
        pooling="gem",
        corners=not images.quick and count <= FEW_IMAGES,
        statistics="original" if images.method == SOURCE_ONLY.method else "both",
    )


def fine_tunes(request: AdaptRequest, device: torch.device) -> bool:
    """Tell whether the backbone is fine-tuned."""
    if request.fine_tune is None:
        return device.type == "cuda" and not request.quick
    return request.fine_tune


def default_network(shape: tuple[int, ...], request: AdaptRequest, device: torch.device) -> str:
    """Choose a network by the size of images: a small one for small ones, else a ResNet."""
    small: dict[tuple[int, ...], str] = {(1, 28, 28): "digits-28", (3, 32, 32): "mini"}
    quick = request.quick and device.type != "cuda"
    return small.get(shape) or ("resnet18" if quick else "resnet50")


def read_domains(request: AdaptRequest, open_pictures: OpenPictures = open_decoded) -> CustomData:
    """Read both domains."""
    return load_custom_data(
        request.source,
        request.target,
        request.skip_broken,
        QUICK_IMAGES if request.quick else 0,
        request.columns,
        open_pictures,
    )


# --- image files below a frozen backbone, which are decoded once, in a stream, and not kept ---


def _streams(request: AdaptRequest, device: torch.device) -> bool:
    if fine_tunes(request, device) or _image_network(request, device) in LAYERS:
        return False
    paths = (request.source, request.target)
    return all(
        isinstance(path, Path) and (path.is_dir() or path.suffix.lower() in LISTS) for path in paths
    )


def _image_network(request: AdaptRequest, device: torch.device) -> str:
    return backbone_name(request.backbone) or default_network((3, SIDE, SIDE), request, device)


def _stream(
    request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, tuple[CustomData, Embedders]]:
    """Read both domains while all of their images are embedded."""
    listings: list[Listing] = []

    def listed(listing: Listing) -> Pictures:
        listings.append(listing)
        return open_unread(listing)

    _known(request, read_domains(request, listed))  # what is wrong is an error before the work
    count = sum(len(listing.paths) for listing in listings)
    images = ImageSettings(
        network=_image_network(request, device),
        weights=request.weights,
        fine_tune=False,
        quick=request.quick,
        method=request.method,
        training=request.training,
    )
    both = picture_embedders(_embedding(images, count), device)
    open_root(out / "runs")  # marks the folder as ours, so that stopped work can go on
    opened, done = {}, 0
    for listing, embedder in zip(listings, both, strict=True):
        work = embedder.open_listings([listing])
        (opened[listing],) = yield from part_of(work, "embeddings", done, count)
        done += len(listing.paths)

    def opened_before(listing: Listing) -> Pictures:
        if listing not in opened:
            raise UserError(
                f"The images of {listing.root} changed while they were embedded: some appeared or "
                "disappeared.",
                "start the same command again; what has been embedded is kept.",
            )
        return opened[listing]

    return read_domains(request, opened_before), both
