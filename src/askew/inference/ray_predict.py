"""Predictions on many machines through Ray Data: the inputs are split into shards, each predicted
and written once.

A folder holds what was asked for (`askew-predictions.json`, and `inputs.jsonl` with one line per
shard) and the shards that are done (`part-00000.parquet`, …): started again, only those that are
missing are predicted. Together they are one Parquet data set with one row per image.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.core.files import as_json, is_temporary, sweep, whole_file, whole_folder
from askew.inference.predict_files import (
    PredictionCounts,
    Shard,
    predict_inputs,
    shard_inputs,
    split_source,
)
from askew.inference.predictor import ClassShares, Predictor, load
from askew.inference.writers import writer_for
from askew.runs.launch.ray import Ray
from askew.runs.launch.remote import Environment

REQUEST, INPUTS = "askew-predictions.json", "inputs.jsonl"
SHARD_SIZE = 4096
"""Images in a shard: enough to be worth a task, and not much to compute again if a machine
fails."""


@dataclass(frozen=True)
class ShardFolder:
    """A folder of predictions in shards."""

    folder: Path
    offsets: tuple[int, ...]
    """Where each shard's line begins in the file of inputs."""

    def file(self, shard: int) -> Path:
        return self.folder / f"part-{shard:05}.parquet"

    def inputs(self, shard: int) -> Shard:
        with (self.folder / INPUTS).open("rb") as file:
            file.seek(self.offsets[shard])
            found: Shard = json.loads(file.readline())
        return found

    def missing(self) -> list[int]:
        return [shard for shard in range(len(self.offsets)) if not self.file(shard).exists()]

    def counts(self, classes: Sequence[str]) -> PredictionCounts:
        """How many images of each class all shards hold together."""
        from pyarrow import compute, parquet

        total = PredictionCounts(tuple(classes))
        index = {name: i for i, name in enumerate(classes)}
        for shard in range(len(self.offsets)):
            predicted = parquet.read_table(self.file(shard), columns=["class"])["class"]
            total.images += len(predicted)
            total.broken += predicted.null_count
            for entry in compute.value_counts(predicted.drop_null()).to_pylist():
                total.counts[index[entry["values"]]] += entry["counts"]
        return total


# --- splitting ---


def open_shards(
    sources: Sequence[Path],
    predictor: Predictor,
    shares: ClassShares,
    folder: Path,
    size: int = SHARD_SIZE,
) -> ShardFolder:
    """The shards in a folder: as they were split when it was begun, or split now."""
    predictor.logit_shift(shares)
    request = {
        "what": "predictions by askew, in parts",
        "form": 2,
        "sources": [str(source) for source in sources],
        "shares": shares if isinstance(shares, str) else predictor.class_shares(shares).tolist(),
        "model": _fingerprint(predictor),
    }
    if not (folder / REQUEST).exists():
        _split(sources, predictor, folder, size, request)
    elif _read(folder / REQUEST) != request:
        raise UserError(
            f"{folder} holds predictions of other images, by another model or for other shares.",
            "start the command that it was begun with, or name a new folder with -o.",
        )
    sweep(folder)
    return ShardFolder(folder, _line_offsets(folder / INPUTS))


def _split(
    sources: Sequence[Path], predictor: Predictor, folder: Path, size: int, request: dict[str, Any]
) -> None:
    """Write one line of inputs per shard into a new folder."""
    if folder.exists() and not (folder.is_dir() and all(map(_is_leftover, folder.iterdir()))):
        raise UserError(
            f"{folder} holds other things than predictions in parts.", "name a new folder with -o."
        )
    shards = [shard for source in sources for shard in split_source(source, predictor.card, size)]
    with whole_folder(folder, REQUEST, "name another folder with -o.") as new:
        (new / INPUTS).write_bytes("".join(json.dumps(shard) + "\n" for shard in shards).encode())
        (new / REQUEST).write_bytes(as_json(request))


def _is_leftover(path: Path) -> bool:
    """Whether a file was left by a split that was stopped before it had written what was asked
    for."""
    return is_temporary(path) or path.name == INPUTS


def _line_offsets(file: Path) -> tuple[int, ...]:
    offsets, at = [], 0
    with file.open("rb") as lines:
        for line in lines:
            offsets.append(at)
            at += len(line)
    return tuple(offsets)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def _fingerprint(predictor: Predictor) -> str:
    """A hash of the model's card and weights."""
    digest = hashlib.sha256(json.dumps(predictor.card.as_json(), sort_keys=True).encode())
    for name, value in sorted(predictor.weights.items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


# --- predicting ---


class ShardWorker:
    """A Ray actor that holds the model and predicts one shard after another."""

    def __init__(
        self,
        model: str,
        device: str,
        shares: ClassShares,
        shards: ShardFolder,
        environment: Environment,
    ) -> None:
        environment.apply()
        self.predictor, self.shares, self.shards = load(Path(model), device), shares, shards

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            images = predict_shard(self.predictor, self.shards, int(row["shard"]), self.shares)
        except UserError as error:
            return {"images": 0, "problem": error.sentence, "hint": error.hint}
        return {"images": images, "problem": "", "hint": ""}


def predict_shard(
    predictor: Predictor, shards: ShardFolder, shard: int, shares: ClassShares
) -> int:
    """Predict one shard and count its images; its file appears once it is complete."""
    file, images = shards.file(shard), 0
    inputs = shard_inputs(shards.inputs(shard), predictor.card)
    with (
        whole_file(file, "choose another folder with -o.") as temporary,
        writer_for(file)(temporary, predictor.classes) as writer,
    ):
        for batch in predict_inputs(predictor, inputs, shares):
            writer.write(batch)
            images += len(batch.names)
    return images


def predict_by_ray(
    model: Path, device: str, shares: ClassShares, shards: ShardFolder, ray: Ray
) -> Iterator[int]:
    """Predict the missing shards, yielding each one's number of images; Ray repeats a shard whose
    machine fails."""
    missing = shards.missing()
    if not missing:
        return
    ray.connect()
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.DataContext.get_current().enable_progress_bars = False
    most = ray.workers or max(1, int(_cluster("CPU" if not ray.gpus else "GPU") / (ray.gpus or 1)))
    resolved = ShardFolder(shards.folder.resolve(), shards.offsets)
    done = data.from_items(
        [{"shard": shard} for shard in missing], override_num_blocks=len(missing)
    ).map(
        ShardWorker,
        fn_constructor_args=(str(model.resolve()), device, shares, resolved, Environment.here()),
        compute=data.ActorPoolStrategy(min_size=1, max_size=min(most, len(missing))),
        num_cpus=1,
        num_gpus=ray.gpus,
    )
    for row in done.iter_rows():
        if row["problem"]:
            raise UserError(row["problem"], row["hint"])
        yield int(row["images"])


def _cluster(resource: str) -> float:
    """How much of a resource the cluster has."""
    import ray

    resources: dict[str, float] = ray.cluster_resources()
    return resources.get(resource, 1.0)
