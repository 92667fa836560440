"""Embeddings of images by a frozen network, each computed once: kept by network and content, for
all commands.

`<cache>/embeddings/<network>/<block>.safetensors` has rows, and for each the hash of its image and
the number of its view: 0 is the image itself, others are random views. Pictures are decoded in a
stream, and only those not known yet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core import random
from askew.core.errors import UserError
from askew.core.files import Damaged, read_tensors, write_tensors
from askew.data.custom import CustomDomain, pictures_to_embed, read_domain
from askew.data.decode import SIDE, PictureFiles, Row, decode, decoding
from askew.data.domains import Labeled, Rows, RowSubset, Unlabeled, row_hashes
from askew.data.image_cache import Pictures
from askew.data.image_lists import USUAL, Columns, Listing
from askew.data.paths import cache_folder
from askew.data.row_cache import RowCache, content_hashes
from askew.data.task import Task, TrainingData
from askew.inference.decode_ahead import load_ahead, processes_for
from askew.nets.adabn import NORM_IMAGES, domain_norms, in_batches
from askew.nets.augment import NO_VIEWS, Views, make_view
from askew.nets.backbones import seen_side, which_weights
from askew.nets.embedding import Embedding
from askew.nets.forward import channels_last, fast_backbones, fast_bfloat16
from askew.nets.module_identity import close, fixed_batch
from askew.nets.network import build
from askew.nets.spec import NetworkSpec, file_hash
from askew.runs.execute import Progress

_BATCH = 32  # images in a forward pass
_MANY = 512  # passes from which on it pays to prepare the network for them

Vectors = NDArray[np.float32]


def frozen_backbone(embedding: Embedding, shape: tuple[int, ...]) -> nn.Module:
    """The features of a network, not to be trained."""
    features: nn.Module = build(NetworkSpec(embedding=embedding), shape, 2, 0)[0]["features"].eval()
    channels_last(features)
    return features


def picture_shape(embedding: Embedding) -> tuple[int, int, int]:
    """The shape in which pictures are decoded for a network: so that it sees 7/8 of each side, as
    of 256 pixels 224."""
    seen = seen_side(embedding)
    side = seen * 8 // 7 if seen > embedding.crop else SIDE
    return 3, side, side


def weights_file(weights: str) -> Path | None:
    """The file of starting weights, if they are to come from one."""
    file = Path(weights) if weights not in ("hub", "none") else None
    if file is not None and not file.is_file():
        raise UserError(
            f"The weights file {file} does not exist.", "--weights hub, none, or a file."
        )
    return file


def with_hash(embedding: Embedding) -> Embedding:
    """Add the hash of an embedding's weights file; UserError if its weights cannot be had."""
    file = weights_file(embedding.weights)
    if file is None:
        return embedding
    if embedding.own:
        raise UserError(
            "A backbone of your own brings its weights.",
            "leave --weights out, and load them in its code.",
        )
    return dataclasses.replace(embedding, weights_hash=file_hash(file))


def checked_embedding(embedding: Embedding, shape: tuple[int, ...]) -> Embedding:
    """The same with the hash of its weights; UserError if it does not take such inputs, or its
    weights cannot be had."""
    hashed = with_hash(embedding)
    frozen_backbone(hashed, shape)
    return hashed


def picture_embedder(
    embedding: Embedding, device: torch.device, views: Views = NO_VIEWS, count: int = 0
) -> Embedder:
    """A frozen network for pictures, which it sees at a size that it takes; and for random views of
    them."""
    shape = picture_shape(embedding)
    seen = dataclasses.replace(embedding, crop=seen_side(embedding))
    return Embedder(checked_embedding(seen, shape), shape, device, views, count)


def picture_embedders(embedding: Embedding, device: torch.device) -> Embedders:
    """The same for the pictures of two domains."""
    one = picture_embedder(embedding, device)
    return embedders(one.embedding, one.shape, device)


def embedders(embedding: Embedding, shape: tuple[int, ...], device: torch.device) -> Embedders:
    """An embedder for each domain, or one for both where nothing in it depends on the domain."""
    source = Embedder(embedding, shape, device)
    return Embedders(
        source, Embedder(embedding, shape, device) if embedding.uses_domain else source
    )


def embed_pictures(
    path: Path, embedder: Embedder, skip_broken: bool = False, columns: Columns = USUAL
) -> Generator[Progress, None, CustomDomain]:
    """The pictures of a folder or a list, all of them embedded."""
    (opened,) = yield from embedder.open_listings([pictures_to_embed(path, columns)])
    return read_domain(path, "target", skip_broken, columns=columns, open_pictures=lambda _: opened)


def embed_rows(x: Rows, embedding: Embedding, device: torch.device) -> Vectors:
    """The features of images or rows, in their order. (n, …) → (n, d)"""
    embedder = Embedder(embedding, tuple(x.shape[1:]), device)
    for _ in embedder.learn_rows([x]):
        pass
    return embedder.rows(x)


def embed_task(task: Task, both: Embedders) -> Generator[Progress, None, Task]:
    """Replace a task's images by their embeddings. Stopped, it goes on where it was."""
    data = task.training_data
    yield from both.source.learn_rows((data.source.x, data.source_val.x))
    yield from both.target.learn_rows((data.target.x,))
    target = test = Unlabeled(both.target.rows(data.target.x))
    if data.test_images is not data.target:
        yield from both.target.learn_rows((data.test_images.x,))
        test = Unlabeled(both.target.rows(data.test_images.x))
    source, held_out = (both.source.rows(x) for x in (data.source.x, data.source_val.x))
    rows = TrainingData(
        source=Labeled(source, data.source.y),
        source_val=Labeled(held_out, data.source_val.y),
        target=target,
        test_images=test,
        classes=data.classes,
    )
    return Task("own/embeddings", rows, task.test, task.notes)


class Embedders(NamedTuple):
    """One frozen network for each domain: the same one, but for batch statistics of the domain
    where it has them."""

    source: Embedder
    target: Embedder


class Embedder:
    """A frozen network, and what it computed here or before.

    Where the network has batch statistics of a domain, they are those of the images that it is
    first to learn.
    """

    def __init__(
        self,
        embedding: Embedding,
        shape: tuple[int, ...],
        device: torch.device,
        views: Views = NO_VIEWS,
        count: int = 0,
    ) -> None:
        """`count` random views of each image are embedded too, as `views` says."""
        self.embedding, self.shape, self.device = embedding, shape, device
        self.how, self.count = views, count
        self.statistics: Vectors | None = None
        """Of the domain, once it is known. (s,)"""
        self._open_stores()

    @functools.cached_property
    def network(self) -> nn.Module:
        network = frozen_backbone(self.embedding, self.shape).to(self.device)
        if (norms := domain_norms(network)) is not None and self.statistics is not None:
            norms.set_statistics(torch.from_numpy(self.statistics).to(self.device))
        return network

    @property
    def store(self) -> dict[str, str | bool]:
        """Say where its embeddings are kept, and whether they are computed in bfloat16."""
        return {"store": self._stores[0].folder.name, "bfloat16": fast_bfloat16(self.device)}

    def rows(self, x: Rows) -> Vectors:
        """Embeddings of images that were learnt. (n, …) → (n, d)"""
        return np.stack([self._stores[0].rows[h, 0] for h in row_hashes(x).tolist()])

    def views(self, x: Rows) -> Vectors:
        """Embeddings of their random views. (n, …) → (n, count, d)"""
        found = self._stores[1].rows
        return np.stack(
            [[found[h, v] for v in range(1, self.count + 1)] for h in row_hashes(x).tolist()]
        )

    def open_listings(
        self, listings: Sequence[Listing]
    ) -> Generator[Progress, None, list[Pictures]]:
        """Embed listed pictures in a stream; the pictures, without those that cannot be read."""
        paths = [[listing.root / path for path in listing.paths] for listing in listings]
        contents: list[list[int | str]] = [[] for _ in paths]
        for group, found in zip(paths, contents, strict=True):
            yield Progress(
                key="reading", label="reading pictures", step=0, steps=len(group), losses={}
            )
            for some in content_hashes(group):
                found += some
                yield Progress(
                    key="reading",
                    label="reading pictures",
                    step=len(found),
                    steps=len(group),
                    losses={},
                )
        flat = zip(chain.from_iterable(contents), chain.from_iterable(paths), strict=True)
        images = {
            h: functools.partial(decode, path, self.shape) for h, path in flat if isinstance(h, int)
        }
        broken = yield from self.learn(images, files=True)
        opened = []
        for listing, group, found in zip(listings, paths, contents, strict=True):
            why = [h if isinstance(h, str) else broken.get(h, "") for h in found]
            kept = np.array([i for i, one in enumerate(why) if not one], dtype=np.int64)
            hashes = np.array([h if isinstance(h, int) else 0 for h in found], dtype="<u8")
            bad = {path: one[:120] for path, one in zip(listing.paths, why, strict=True) if one}
            opened.append(
                Pictures(RowSubset(PictureFiles(group, self.shape[1]), kept, hashes), kept, bad)
            )
        return opened

    def learn_rows(self, groups: Iterable[Rows]) -> Generator[Progress, None, None]:
        """Embed images of arrays that are not known yet."""
        images: dict[int, Callable[[], Row]] = {}
        for x in groups:
            images |= {
                h: functools.partial(x.__getitem__, i) for i, h in enumerate(row_hashes(x).tolist())
            }
        for h, why in (yield from self.learn(images)).items():
            raise UserError(f"The image {h:016x} cannot be read any more: {why}.", "start again.")

    def learn(
        self, images: Mapping[int, Callable[[], Row]], files: bool = False
    ) -> Generator[Progress, None, dict[int, str]]:
        """Embed images, by their hashes, that are not known yet; why others cannot be read.

        Those that are picture files can be decoded by other processes.
        """
        yield from self._learn_statistics(images)
        wanted = [
            [(h, 0) for h in images],
            [(h, v) for h in images for v in range(1, self.count + 1)],
        ]
        lacking = {
            h for store, keys in zip(self._stores, wanted, strict=True) for h, _ in store.find(keys)
        }
        todo = [(h, get) for h, get in images.items() if h in lacking]
        done, label = len(images) - len(todo), f"embeddings by {self.embedding.label}"
        yield Progress(key="embeddings", label=label, step=done, steps=len(images), losses={})
        if not todo:
            return {}
        broken: dict[int, str] = {}
        passes = len(todo) * (1 + self.count) * self.embedding.views
        rows = _BATCH if passes >= _MANY else 0
        ahead = load_ahead(
            todo, 4 * _BATCH, processes_for(len(todo), self.device.type) if files else 0, self.shape
        )
        try:
            with (
                decoding(),
                fast_backbones(self.network, rows),
                contextlib.closing(ahead) as loaded,
            ):
                while block := list(islice(loaded, _BATCH)):
                    broken |= {h: x for h, x in block if isinstance(x, str)}
                    self._embed({h: x for h, x in block if not isinstance(x, str)})
                    done += len(block)
                    yield Progress(
                        key="embeddings", label=label, step=done, steps=len(images), losses={}
                    )
        finally:
            for store in self._stores:
                store.flush()
        return broken

    def _learn_statistics(
        self, images: Mapping[int, Callable[[], Row]]
    ) -> Generator[Progress, None, None]:
        """Find or estimate the domain's batch statistics, once; without batch norms there are
        none."""
        if self.statistics is not None or not self.embedding.uses_domain:
            return
        some = sorted(images)[
            :NORM_IMAGES
        ]  # by their hashes, so at random, and the same in any order
        digest = hashlib.blake2b(np.array(some, dtype="<u8").tobytes(), digest_size=8).digest()
        store, key = _store(f"{self._names()[0]}-norms"), (int.from_bytes(digest, "little"), 0)
        if store.find([key]):
            label = f"batch statistics by {self.embedding.label}"
            yield Progress(key="statistics", label=label, step=0, steps=len(some), losses={})
            store.add([key], self._estimate([images[h] for h in some])[None])
            store.flush()
            yield Progress(
                key="statistics", label=label, step=len(some), steps=len(some), losses={}
            )
        self.statistics = store.rows[key]
        self._open_stores()

    def _estimate(self, images: Sequence[Callable[[], Row]]) -> Vectors:
        """The statistics of a domain, by some of its images. (s,)"""
        norms = domain_norms(self.network)
        with decoding():
            loaded = [
                x
                for _, x in load_ahead(list(enumerate(images)), len(images))
                if not isinstance(x, str)
            ]
        if norms is None or not loaded:
            return np.zeros(0, dtype=np.float32)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=fast_bfloat16(self.device)):
            norms.estimate(x.to(self.device) for x in in_batches(np.stack(loaded)))
        found: Vectors = norms.statistics.float().cpu().numpy()
        return found

    def _embed(self, pixels: Mapping[int, Row]) -> None:
        """One batch and its views."""
        for v in range(1 + self.count if pixels else 0):
            store = self._stores[v > 0]
            hashes = [h for h in pixels if (h, v) not in store.rows]
            if hashes:
                x = torch.from_numpy(np.stack([pixels[h] for h in hashes]))
                store.add([(h, v) for h in hashes], self._forward(x, hashes, v))

    def _forward(self, x: Tensor, hashes: Sequence[int], v: int) -> Vectors:
        """(n, k, h, w) → (n, d)"""
        with torch.inference_mode():
            x = x.to(self.device)
            if v:
                keys = torch.from_numpy(np.array(hashes, dtype="<u8").view("<i8")).to(self.device)
                keys = random.hash64(random.key("embedded view", v), keys)
                crops = self.embedding.crop < min(self.shape[1:])
                x = make_view(x, keys, self.how, side=seen_side(self.embedding) if crops else 0)
            rows: Vectors = self.network(x).flatten(1).float().cpu().numpy()
        return rows

    def _open_stores(self) -> None:
        names = self._names()
        if self.embedding.own:
            suffix = _suffix_for(names[0], frozen_backbone(self.embedding, self.shape), self.shape)
            names = (f"{names[0]}{suffix}", f"{names[1]}{suffix}")
        self._stores = [_store(name) for name in names]

    def _names(self) -> tuple[str, str]:
        """Hashes of all that embeddings hang on: the network, the shape of images, the arithmetic,
        the domain; and their views."""
        hub = which_weights(self.embedding) if self.embedding.weights == "hub" else ""
        domain = (
            []
            if self.statistics is None
            else [hashlib.sha256(self.statistics.tobytes()).hexdigest()]
        )
        network = [self.embedding.describe(), hub, self.shape, fast_bfloat16(self.device), *domain]
        texts = (
            json.dumps(about, sort_keys=True)
            for about in (network, [*network, self.how.describe()])
        )
        images, views = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts)
        return images, f"{views}-views"


def _suffix_for(name: str, network: nn.Module, shape: tuple[int, ...]) -> str:
    """Find the end of the name of a store whose network gave the same for a fixed batch.

    Not everything that decides a stranger's network can be hashed: files that it reads, say.
    """
    batch = fixed_batch(shape)
    x = (255 * batch).to(torch.uint8) if len(shape) == 3 else batch
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        outputs = network(x).flatten(1).float().cpu()
    for number in itertools.count():
        suffix = f"-{number}" if number else ""
        probe = cache_folder() / "embeddings" / f"{name}{suffix}" / "fixed-batch"
        try:
            known = read_tensors(probe)[0]["outputs"]
        except (FileNotFoundError, Damaged, KeyError):
            probe.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(probe, {"outputs": outputs.clone()}, {})
            return suffix
        if close(known, outputs):
            return suffix
    raise AssertionError


def _store(name: str) -> RowCache:
    return RowCache(cache_folder() / "embeddings" / name)
