"""What an adaptation starts from: the request, the candidates to train, both domains and the
network."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew.adaptation.candidates import AUTO, QUICK_AUTO, SOURCE_ONLY, Candidate
from askew.adaptation.given import GivenLabels, GivenShares, TargetLabels, read_prior, read_truth
from askew.core.errors import UserError
from askew.core.options import whole_number
from askew.core.tracking import Maker
from askew.data.custom import (
    CustomData,
    CustomDomain,
    OpenPictures,
    load_custom_data,
    open_decoded,
    open_unread,
)
from askew.data.decode import SIDE
from askew.data.image_cache import Pictures
from askew.data.image_lists import LISTS, USUAL, Columns, Listing
from askew.data.task import Task
from askew.evaluation.logits import Floats
from askew.inference.embeddings import (
    Embedders,
    backbone_spec,
    embedded,
    embedders,
    picture_embedders,
    weights_file,
)
from askew.methods import make_method, method_class
from askew.nets.adabn import NORMS
from askew.nets.backbones import CORNERS, CROPS, GEM, plain_name
from askew.nets.modules import OWN_PREFIX, backbone_name
from askew.nets.small import OWN
from askew.nets.spec import NetSpec
from askew.runs.execute import Progress
from askew.runs.journal import part_of
from askew.runs.root import open_root
from askew.runs.tune import trials

QUICK_IMAGES = 200
"""Images of each domain that a quick look takes."""
FEW_IMAGES = 10_000
"""Images up to which a frozen network sees two corners of each as well, which takes twice as
long."""
QUICK = {"pretrain": 200, "rounds": 4, "round": 40}


@dataclass(frozen=True)
class AdaptRequest:
    """What a user asks for."""

    source: Path | CustomDomain
    target: Path | CustomDomain
    method: str = "auto"
    backbone: str = ""
    """Network by name, or `file.py:function`; empty: one that suits the data."""
    weights: str = "hub"
    """Its starting weights: hub, none, or a .safetensors or .pth file."""
    tuned: bool | None = None
    """Whether the backbone is fine-tuned, or frozen; None: fine-tuned on a GPU, frozen on a CPU."""
    quick: bool = False
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    skip_broken: bool = False
    columns: Columns = USUAL
    """Where lists hold their paths and labels."""
    labels: Path | GivenLabels | None = None
    """Labels of some target images, which choose among the candidates."""
    train_labels: bool = False
    """Whether what they chose is trained again, with them."""
    target_prior: Path | GivenShares | None = None
    """The target's known shares of classes, which the choice and the predictions use."""
    take: str = ""
    """The candidate to hand out, of those that an earlier adaptation trained; empty: the one that
    is chosen."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the method."""
    search: int = 0
    """How many settings of the others are tried, the best of them chosen without labels; 0 and 1:
    none but these."""
    log: tuple[str | Maker, ...] = ()
    """Trackers that hear of its runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed))

    def candidates(self, kind: str) -> tuple[Candidate, ...]:
        """What is trained on data of that kind."""
        if self.method == "auto":
            if self.params or self.search:
                raise UserError(
                    "Hyper-parameters belong to one method, and the method is auto.",
                    "--method coal, say.",
                )
            return (QUICK_AUTO if self.quick else AUTO)[kind]
        name = method_class(self.method).id
        make_method(
            self.method, dict(self.params)
        )  # what is wrong in them is an error before any work
        return (SOURCE_ONLY,) if name == "source" else (SOURCE_ONLY, *self._settings_of(name))

    def _settings_of(self, name: str) -> Iterator[Candidate]:
        """The method as it is set, then with other hyper-parameters in the ranges that it
        declares."""
        yield Candidate(name, self.method, params=self.params)
        for found in (
            trials(self.method, {}, self.search, fixed=tuple(self.params))
            if self.search > 1
            else ()
        ):
            if found.origin == "searched":
                yield Candidate(
                    f"{name} {found.label}", self.method, params={**self.params, **found.params}
                )


@dataclass(frozen=True, eq=False)
class Setup:
    """The data that is trained on, and the network."""

    data: CustomData
    task: Task
    """With embeddings in place of images where the backbone is frozen."""
    network: str
    embedders: Embedders | None
    """The frozen backbone below the network, for each domain."""
    training: Mapping[str, Any]
    labels: TargetLabels | None = None
    """Those of target images that the user has."""
    prior: Floats | None = None
    """The target's prior, if the user knows it. (c,)"""

    def candidates(self, request: AdaptRequest) -> tuple[Candidate, ...]:
        guided = self.task.training_data.answers is not None
        return request.candidates(
            "embeddings" if self.of_rows else "guided images" if guided else self.data.kind
        )

    def guided(self, answers: NDArray[np.float32]) -> Setup:
        """The same with answers of other networks for the target's images. (n_t, c)"""
        data = replace(self.task.training_data, answers=answers)
        return replace(self, task=replace(self.task, training_data=data))

    @property
    def of_rows(self) -> bool:
        """Whether it is rows that are trained on, embeddings or others."""
        return self.task.training_data.source.x.ndim == 2

    @property
    def backbone(self) -> NetSpec | None:
        """The frozen one below the network."""
        return None if self.embedders is None else self.embedders.target.spec

    @property
    def description(self) -> str:
        """The network in a few words."""
        if self.backbone is not None:
            name = self.backbone.name
            corners = ", corners too" if name.startswith((CORNERS, CROPS)) else ""
            return f"{self.network} on embeddings of a frozen {plain_name(name)}{corners}"
        if self.data.kind in ("embeddings", "tables"):
            return f"{self.network} on rows of {self.data.source.shape[0]} numbers"
        return f"{self.network}, all of it trained"


def set_up(
    request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, Setup]:
    """Read both domains and what is known of the target, choose a network, and compute embeddings
    if it is frozen."""
    both = None
    if _streams(request, device):
        data, both = yield from _stream(request, out, device)
    else:
        data = read_domains(request)
    labels, prior = _known(request, data)
    setup = yield from _network(request, data, both, out, device)
    return replace(setup, labels=labels, prior=prior)


def _known(request: AdaptRequest, data: CustomData) -> tuple[TargetLabels | None, Floats | None]:
    """The labels and the prior of the target that the user gave."""
    classes, labels, prior = data.task.training_data.classes, None, None
    if request.labels is not None:
        found = read_truth(request.labels, data.target.names, classes, request.columns)
        labels = TargetLabels(*found, len(classes))
    elif request.train_labels:
        raise UserError("There are no labels to train with.", "name them with --labels FILE.")
    if request.target_prior is not None:
        prior = read_prior(request.target_prior, classes)
    return labels, prior


def _network(
    request: AdaptRequest, data: CustomData, both: Embedders | None, out: Path, device: torch.device
) -> Generator[Progress, None, Setup]:
    """The network that suits the data, and embeddings where it is frozen."""
    weights_file(request.weights)  # a wrong name is a mistake also where no weights are needed
    asked = backbone_name(request.backbone)
    own = asked.startswith(OWN_PREFIX)
    training = (QUICK if request.quick else {}) | dict(request.training)
    if both is not None:
        return Setup(data, (yield from embedded(data.task, both)), "mlp", both, training)
    if data.kind in ("embeddings", "tables") and not own:
        if request.backbone not in ("", "mlp", "bare"):
            raise UserError(
                f"The data are rows of numbers, which {request.backbone} does not take.",
                "--backbone mlp or bare.",
            )
        return Setup(data, data.task, request.backbone or "mlp", None, training)
    shape = tuple(data.task.training_data.source.x.shape[1:])
    name = asked or _default_network(shape, request, device)
    if name in OWN:
        return Setup(data, data.task, name, None, training)
    if _fine_tunes(request, device):
        backbone_spec(name, request.weights, shape)
        network = name if "+" in name else f"{name}+bottleneck"
        return Setup(data, data.task, network, None, _tuning(request, data) | training)
    spec = backbone_spec(_frozen_network(name, request, _images(data)), request.weights, shape)
    open_root(out / "runs")  # marks the folder as ours, so that work stopped from here on can go on
    both = embedders(spec, shape, device)
    return Setup(data, (yield from embedded(data.task, both)), "mlp", both, training)


def on_rows(
    request: AdaptRequest, setup: Setup, device: torch.device
) -> Generator[Progress, None, Setup | None]:
    """The same with embeddings in place of images: by the backbone that is fine-tuned, as it was
    before. None where there is no such backbone, or one without weights that tell anything."""
    if setup.of_rows:
        return setup
    below = plain_name(setup.network.partition("+")[0])  # of the layers that are put on it
    if below in OWN or below.startswith(OWN_PREFIX) or request.weights == "none":
        return None
    data, shape = setup.data, tuple(setup.task.training_data.source.x.shape[1:])
    seen = (
        {"crop": int(setup.training["crop"])} if "crop" in setup.training else {}
    )  # one model sees one size
    spec = backbone_spec(
        _frozen_network(below, request, _images(data)), request.weights, shape, **seen
    )
    both = embedders(spec, shape, device)
    # What was asked of training is about fine-tuning: rates and lengths on rows are others.
    return replace(
        setup,
        task=(yield from embedded(data.task, both)),
        network="mlp",
        embedders=both,
        training={},
    )


def _images(data: CustomData) -> int:
    """How many images there are to embed."""
    splits = data.task.training_data
    return len(splits.source) + len(splits.source_val) + len(splits.target)


def _frozen_network(name: str, request: AdaptRequest, images: int) -> str:
    """The network that embeds so many images, by a generalised mean: with the domain's batch
    statistics too, unless nothing is adapted, and the corners of each where there is time for
    them."""
    if name.startswith((CORNERS, CROPS, NORMS, GEM, OWN_PREFIX)):
        return name
    corners = "" if request.quick or images > FEW_IMAGES else CORNERS
    return f"{corners}{'' if request.method == SOURCE_ONLY.name else NORMS}{GEM}{name}"


def _fine_tunes(request: AdaptRequest, device: torch.device) -> bool:
    return device.type == "cuda" if request.tuned is None else request.tuned


# --- pictures below a frozen backbone, which are decoded once, in a stream, and not kept ---


def _streams(request: AdaptRequest, device: torch.device) -> bool:
    if _fine_tunes(request, device) or _picture_network(request, device) in OWN:
        return False
    paths = (request.source, request.target)
    return all(
        isinstance(path, Path) and (path.is_dir() or path.suffix.lower() in LISTS) for path in paths
    )


def _picture_network(request: AdaptRequest, device: torch.device) -> str:
    return backbone_name(request.backbone) or _default_network((3, SIDE, SIDE), request, device)


def _stream(
    request: AdaptRequest, out: Path, device: torch.device
) -> Generator[Progress, None, tuple[CustomData, Embedders]]:
    """Both domains, and what has embedded all of their pictures."""
    listings: list[Listing] = []

    def listed(listing: Listing) -> Pictures:
        listings.append(listing)
        return open_unread(listing)

    _known(request, read_domains(request, listed))  # what is wrong is an error before the work
    images = sum(len(listing.paths) for listing in listings)
    network = _frozen_network(_picture_network(request, device), request, images)
    both = picture_embedders(network, request.weights, device)
    open_root(out / "runs")  # marks the folder as ours, so that work stopped from here on can go on
    opened, done = {}, 0
    for listing, embedder in zip(listings, both, strict=True):
        (opened[listing],) = yield from part_of(
            embedder.open_listings([listing]), "embeddings", done, images
        )
        done += len(listing.paths)
    return read_domains(request, opened.__getitem__), both


def _tuning(request: AdaptRequest, data: CustomData) -> dict[str, Any]:
    """What fine-tuning needs beyond the settings: the weights, and a round that covers a large data
    set."""
    training = data.task.training_data
    largest = max(len(training.source), len(training.target))
    kept = {"norm": "joint"} if request.weights == "none" else {}  # there are no statistics to keep
    return {"weights": request.weights, "round": max(100, largest // 32)} | kept


def read_domains(request: AdaptRequest, open_pictures: OpenPictures = open_decoded) -> CustomData:
    most = QUICK_IMAGES if request.quick else 0
    return load_custom_data(
        request.source, request.target, request.skip_broken, most, request.columns, open_pictures
    )


def _default_network(shape: tuple[int, ...], request: AdaptRequest, device: torch.device) -> str:
    """A network for such images: a small one of ours for small ones, else a ResNet; a smaller one
    for a first look."""
    small: dict[tuple[int, ...], str] = {(1, 28, 28): "digits-28", (3, 32, 32): "mini"}
    return small.get(shape) or (
        "resnet18" if request.quick and device.type != "cuda" else "resnet50"
    )
