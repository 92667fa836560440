"""Embeddings: what a frozen network makes of a task's images, computed once and kept by what they are of."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Generator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.files import Damaged, read_tensors, write_tensors
from askew.data.domains import Labeled, Rows, RowSubset, Unlabeled
from askew.data.task import Task, TrainingData
from askew.nets.network import build
from askew.nets.spec import NetSpec
from askew.runs.execute import Progress

_PART = 256  # images whose embeddings are one file: what is lost when work is stopped
_BATCH = 32


def frozen(spec: NetSpec, shape: tuple[int, ...]) -> nn.Module:
    """The features of a network, not to be trained."""
    features: nn.Module = build(spec, shape, 2, 0)[0]["features"].eval()
    return features.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def embedded(task: Task, spec: NetSpec, folder: Path, device: torch.device) -> Generator[Progress, None, Task]:
    """The same task with rows of the network's features in place of its images. Stopped, it goes on where it was."""
    training_data = task.training_data
    views = (training_data.source.x, training_data.source_val.x, training_data.target.x)
    total, done = sum(map(len, views)), 0
    network = functools.cache(lambda: frozen(spec, tuple(training_data.source.x.shape[1:])).to(device))
    about = json.dumps(dataclasses.asdict(spec) | ({"weights": ""} if spec.weights_hash else {}), sort_keys=True)
    made: list[NDArray[np.float32]] = []
    for x in views:
        parts = []
        for start in range(0, len(x), _PART):
            part = _taken(x, start)
            told = hashlib.sha256((about + Unlabeled(part).fingerprint()).encode()).hexdigest()[:16]
            file = folder / f"{told}.safetensors"
            rows = _kept(file)
            if rows is None:
                folder.mkdir(parents=True, exist_ok=True)
                with torch.no_grad():
                    batches = torch.split(torch.from_numpy(np.ascontiguousarray(part)), _BATCH)
                    rows = torch.cat([network()(batch.to(device)).flatten(1).float().cpu() for batch in batches])
                write_tensors(file, {"rows": rows}, {"form": "1"})
            parts.append(rows.numpy())
            done += len(part)
            yield Progress("embeddings", f"embeddings by {spec.name}", done, total, {})
        made.append(np.concatenate(parts) if parts else np.zeros((0, made[0].shape[1]), dtype=np.float32))
    source, held, target = made
    images = Unlabeled(target)
    rows_study = TrainingData(
        Labeled(source, training_data.source.y),
        Labeled(held, training_data.source_val.y),
        images,
        images,
        training_data.classes,
    )
    return Task("own/rows", rows_study, None, task.notes)


def _kept(file: Path) -> Tensor | None:
    """Embeddings that are there; None if they are not, or are damaged."""
    try:
        return read_tensors(file)[0]["rows"]
    except (FileNotFoundError, Damaged):
        return None


def _taken(x: Rows, start: int) -> Rows:
    rows: NDArray[np.int64] = np.arange(start, min(start + _PART, len(x)))
    return x.pick(rows) if isinstance(x, RowSubset) else x[rows]
