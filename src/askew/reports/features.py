"""The task of a finished run, and features that its network computes, to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.data.benchmarks import load_task, task_infos
from askew.data.task import Task, TrainingData
from askew.nets.spec import read_network

Counts = NDArray[np.int64]
MOST = 1_000
"""Images of each domain that a figure of features shows."""


def task_of(run: Mapping[str, Any], data: Path | None) -> Task:
    """The task of a run given as `Run.describe` does; UserError if the data is not what it was
    trained on."""
    if run["task"] not in task_infos():
        raise UserError(
            f"The task {run['task']} is not known to this version of askew.",
            "`askew tasks` lists them.",
        )
    task = load_task(run["task"], run["shift"], run["draw"], data)
    if task.origin != run["origin"]:
        raise UserError(
            f"The data of {run['task']} is not what the run was trained on.",
            "name the folder of that data with --data, or run it again.",
        )
    return task


@dataclass(frozen=True)
class Features:
    """Features of source and target images and their classes; the target's only colour a figure."""

    source: NDArray[np.float32]
    source_y: Counts
    target: NDArray[np.float32]
    target_y: Counts


def network_features(
    folder: Path, run: Mapping[str, Any], training_data: TrainingData, device: str = "auto"
) -> Callable[[NDArray[Any], Literal["source", "target"]], NDArray[np.float32]]:
    """The function that computes the features of a domain's images or rows by the network in a
    run's folder.

    (n, …) → (n, d); where the network keeps batch statistics of each domain, with those of that
    domain.
    """
    from askew.core.device import pick_device  # tables come here for `task_of`, and need no torch
    from askew.nets.forward import forward_in_chunks
    from askew.nets.network import Net, build, keeps_source_statistics, predicting_weights

    file = folder / "weights.safetensors"
    if not file.exists():
        raise UserError(
            f"The run {folder.name} has no weights.",
            "its folder was copied without them; run it again.",
        )
    spec = read_network(run["net"])
    shape = tuple(training_data.source.x.shape[1:])
    parts, width = build(spec, shape, len(training_data.classes), 0)
    weights, prefix = predicting_weights(read_tensors(file)[0]), "features."
    chosen = pick_device(device)  # a large network takes minutes on a CPU
    net = Net(parts, width, split_norm=keeps_source_statistics(weights)).to(chosen).eval()
    features = net["features"]
    try:
        features.load_state_dict(
            {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
        )
    except RuntimeError:
        raise UserError(
            f"The weights of the run {folder.name} do not fit its network {spec.name}.",
            "it was made by another version of askew; run it again.",
        ) from None

    def of(x: NDArray[Any], domain: Literal["source", "target"]) -> NDArray[np.float32]:
        mine = net.of_domain(domain)["features"]
        return forward_in_chunks(lambda rows: mine(rows).flatten(1), x, chosen)

    return of


def features_of(folder: Path, run: Mapping[str, Any], task: Task, most: int = MOST) -> Features:
    """Features and classes of at most so many images of each domain."""
    training_data, test = task.training_data, task.test_labels
    of = network_features(folder, run, training_data)
    rng = np.random.default_rng(0)
    source = some(rng, np.arange(len(training_data.source)), most)
    target = some(rng, np.arange(len(test.y)) if test.paper is None else test.paper, most)
    return Features(
        of(training_data.source.x[source], "source"),
        training_data.source.y[source],
        of(training_data.test_images.x[target], "target"),
        test.y[target],
    )


def some(rng: np.random.Generator, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most so many of the rows, in order."""
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
