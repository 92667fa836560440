"""Predictions on many machines: in parts, each written once by whoever got it, through Ray Data.

A folder holds what was asked for (`askew-predictions.json`, `inputs.jsonl`, a line a part) and the parts that are done
(`part-00000.parquet`, …): started again, only those that are missing are answered. Together they are one Parquet data
set with one row an image.
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
from askew.core.files import whole_file, write_bytes, write_json
from askew.inference.predict_files import Part, Tally, answers, inputs_of, parts_of
from askew.inference.predictor import Predictor, Prior, load
from askew.inference.writers import writer_of
from askew.runs.launch.ray import Ray
from askew.runs.launch.remote import Environment

PLAN, INPUTS = "askew-predictions.json", "inputs.jsonl"
SIZE = 4096
"""Images a part: enough to be worth a task, few enough to lose."""


@dataclass(frozen=True)
class Parts:
    """A folder of predictions in parts."""

    folder: Path
    offsets: tuple[int, ...]
    """Where each part's line begins in the file of inputs."""

    def file(self, part: int) -> Path:
        return self.folder / f"part-{part:05}.parquet"

    def inputs(self, part: int) -> Part:
        with (self.folder / INPUTS).open("rb") as file:
            file.seek(self.offsets[part])
            found: Part = json.loads(file.readline())
        return found

    def missing(self) -> list[int]:
        return [part for part in range(len(self.offsets)) if not self.file(part).exists()]

    def tally(self, classes: Sequence[str]) -> Tally:
        """What all parts say together."""
        from pyarrow import compute, parquet

        tally = Tally(tuple(classes))
        places = {name: i for i, name in enumerate(classes)}
        for part in range(len(self.offsets)):
            said = parquet.read_table(self.file(part), columns=["class"])["class"]
            tally.images += len(said)
            tally.broken += said.null_count
            for entry in compute.value_counts(said.drop_null()).to_pylist():
                tally.counts[places[entry["values"]]] += entry["counts"]
        return tally


def plan(sources: Sequence[Path], predictor: Predictor, prior: Prior, folder: Path, size: int = SIZE) -> Parts:
    """The parts of an answer in a folder: as they were laid out when it was begun, or laid out now."""
    predictor.prior_shift(prior)
    asked = {
        "what": "predictions by askew, in parts", "form": 1, "sources": [str(source) for source in sources],
        "prior": prior if isinstance(prior, str) else predictor.prior_mix(prior).tolist(), "model": _mark(predictor),
    }  # fmt: skip
    file = folder / PLAN
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(p.name != INPUTS for p in folder.iterdir())):
            raise UserError(f"{folder} holds other things than predictions in parts.", "name a new folder with -o.")
        lines = [json.dumps(part) + "\n" for source in sources for part in parts_of(source, predictor.card, size)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot make the folder {folder}: {error.strerror}.", "name another with -o.") from None
        write_bytes(folder / INPUTS, "".join(lines).encode())
        write_json(file, asked)  # last: from now on the inputs are laid out
    elif _read(file) != asked:
        raise UserError(
            f"{folder} holds predictions of other images, by another model or under another prior.",
            "start the command that it was begun with, or name a new folder with -o.",
        )
    offsets, at = [], 0
    with (folder / INPUTS).open("rb") as inputs:
        for line in inputs:
            offsets.append(at)
            at += len(line)
    return Parts(folder, tuple(offsets))


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _mark(predictor: Predictor) -> str:
    """A hash of all that a model is."""
    digest = hashlib.sha256(json.dumps(predictor.card.as_json(), sort_keys=True).encode())
    for name, value in sorted(predictor.weights.items()):
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


class Answerer:
    """A process of Ray's that holds the model and answers one part after another."""

    def __init__(self, model: str, device: str, prior: Prior, parts: Parts, standpoint: Environment) -> None:
        standpoint.take()
        self.predictor, self.prior, self.parts = load(Path(model), device), prior, parts

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part = int(row["part"])
        try:
            return {"images": write_part(self.predictor, self.parts, part, self.prior), "problem": ""}
        except UserError as error:
            return {"images": 0, "problem": str(error)}


def write_part(predictor: Predictor, parts: Parts, part: int, prior: Prior) -> int:
    """Answer one part; its file is there once all of it is."""
    file, images = parts.file(part), 0
    inputs = inputs_of(parts.inputs(part), predictor.card)
    with (
        whole_file(file, "choose another folder with -o.") as temporary,
        writer_of(file)(temporary, predictor.classes) as sink,
    ):
        for portion in answers(predictor, inputs, prior):
            sink.write(portion)
            images += len(portion.names)
    return images


def predict_by_ray(model: Path, device: str, prior: Prior, parts: Parts, ray: Ray) -> Iterator[int]:
    """Answer what is missing, yielding numbers of images as they are done; a part whose machine is lost comes again."""
    missing = parts.missing()
    if not missing:
        return
    ray.connect()
    from ray import data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    data.DataContext.get_current().enable_progress_bars = False
    most = ray.workers or max(1, int(_cluster("CPU" if not ray.gpus else "GPU") / (ray.gpus or 1)))
    resolved = Parts(parts.folder.resolve(), parts.offsets)
    done = data.from_items([{"part": part} for part in missing], override_num_blocks=len(missing)).map(
        Answerer,  # type: ignore[arg-type]
        fn_constructor_args=(str(model.resolve()), device, prior, resolved, Environment.here()),
        compute=data.ActorPoolStrategy(min_size=1, max_size=min(most, len(missing))),
        num_cpus=1,
        num_gpus=ray.gpus,
    )
    for row in done.iter_rows():
        if row["problem"]:
            sentence, _, hint = row["problem"].partition("\n\nhint: ")
            raise UserError(sentence, hint)
        yield int(row["images"])


def _cluster(what: str) -> float:
    import ray

    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return there.get(what, 1.0)
