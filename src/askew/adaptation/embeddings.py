"""Embeddings of a task's images by a frozen network, computed once and kept in files named by network and images."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from askew.core.files import Damaged, read_tensors, write_tensors
from askew.data.domains import Labeled, Rows, RowSubset, Unlabeled
from askew.data.task import Task, TrainingData
from askew.nets.forward import forward_in_chunks
from askew.nets.modules import OWN_PREFIX
from askew.nets.network import build
from askew.nets.spec import NetSpec
from askew.runs.execute import Progress

_FILE_ROWS = 256  # embeddings in one file: what has to be computed again if the work is stopped


def frozen(spec: NetSpec, shape: tuple[int, ...]) -> nn.Module:
    """The features of a network, not to be trained."""
    features: nn.Module = build(spec, shape, 2, 0)[0]["features"].eval()
    if spec.name.startswith(OWN_PREFIX):
        return features  # whoever wrote it may count on the usual order in memory
    return features.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def embedded(task: Task, spec: NetSpec, folder: Path, device: torch.device) -> Generator[Progress, None, Task]:
    """The same task with rows of the network's features in place of its images. Stopped, it goes on where it was."""
    data = task.training_data
    domains = (data.source.x, data.source_val.x, data.target.x)
    total, done = sum(map(len, domains)), 0
    embedder = _Embedder(spec, tuple(data.source.x.shape[1:]), folder, device)
    embeddings: list[NDArray[np.float32]] = []
    for x in domains:
        blocks = []
        for start in range(0, len(x), _FILE_ROWS):
            blocks.append(embedder.rows(_block(x, start)))
            done += len(blocks[-1])
            yield Progress("embeddings", f"embeddings by {spec.name}", done, total, {})
        embeddings.append(np.concatenate(blocks) if blocks else embeddings[0][:0])
    source, held_out, target = embeddings
    images = Unlabeled(target)
    rows = TrainingData(
        Labeled(source, data.source.y), Labeled(held_out, data.source_val.y), images, images, data.classes
    )
    return Task("own/rows", rows, None, task.notes)


def embed_rows(x: Rows, spec: NetSpec, device: torch.device) -> NDArray[np.float32]:
    """The features of images or rows, in their order. (n, …) → (n, d)"""
    network = frozen(spec, tuple(x.shape[1:])).to(device)
    return forward_in_chunks(lambda images: network(images).flatten(1), x, device)


@dataclass(frozen=True)
class _Embedder:
    """A frozen network, and the folder that keeps what it computed."""

    spec: NetSpec
    shape: tuple[int, ...]
    folder: Path
    device: torch.device

    @functools.cached_property
    def network(self) -> nn.Module:
        return frozen(self.spec, self.shape).to(self.device)

    def rows(self, x: Rows) -> NDArray[np.float32]:
        """Embeddings of some images, from their file if there is one. (n, k, h, w) → (n, d)"""
        file = self.folder / f"{self._key(x)}.safetensors"
        kept = _kept(file)
        if kept is None:
            kept = forward_in_chunks(lambda images: self.network(images).flatten(1), x, self.device)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_tensors(file, {"rows": torch.from_numpy(kept)}, {"form": "1"})
        return kept

    def _key(self, x: Rows) -> str:
        """A hash of the network and the images."""
        spec = dataclasses.asdict(self.spec) | ({"weights": ""} if self.spec.weights_hash else {})
        network = json.dumps(spec, sort_keys=True)
        return hashlib.sha256((network + Unlabeled(x).fingerprint()).encode()).hexdigest()[:16]


def _kept(file: Path) -> NDArray[np.float32] | None:
    """Embeddings that are there; None if they are not, or are damaged."""
    try:
        rows: NDArray[np.float32] = read_tensors(file)[0]["rows"].numpy()
    except (FileNotFoundError, Damaged):
        return None
    return rows


def _block(x: Rows, start: int) -> Rows:
    rows: NDArray[np.int64] = np.arange(start, min(start + _FILE_ROWS, len(x)))
    return x.pick(rows) if isinstance(x, RowSubset) else x[rows]
