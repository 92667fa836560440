"""Export a model to ONNX, which needs no askew to run.

The graph holds everything from raw input to logits: pixels/255, mean and deviation, the centre
crop, and the class shares. So the softmax of its output is what `Predictor.predict_proba`
returns. A file is kept only if its logits are the model's, on random inputs and batches of several
sizes.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.core.files import check_file, whole_file
from askew.inference.model_card import ModelCard
from askew.inference.predictor import ClassShares, Predictor

TOLERANCE = 1e-4
"""Largest accepted difference of a logit, relative to the largest logit where that is above one."""

_BATCHES = (1, 2, 5)
_PATCH = 8  # pixels


class Graph(nn.Module):
    """A model and its class shares as one function. (n, …) → (n, c)"""

    def __init__(self, predictor: Predictor, shares: ClassShares) -> None:
        super().__init__()
        self.classifier = predictor.plain_classifier()
        even, shift = (
            torch.from_numpy(predictor.logit_shift(s)).float() for s in ("equal", shares)
        )
        self.temperature = predictor.card.temperature
        self.register_buffer("even", even)
        self.register_buffer("shift", shift - even)

    even: Tensor
    shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = (self.classifier(x) + self.even) / self.temperature + self.shift
        return logits


def export(predictor: Predictor, file: Path, shares: ClassShares = "equal") -> float:
    """Write the model to an ONNX file and return the largest difference of a logit."""
    check_form(file)
    check_file(file)
    about = json.dumps(describe(predictor, shares), ensure_ascii=False)
    graph = Graph(predictor, shares).eval()
    with whole_file(file, "choose another file with -o.") as temporary, _quietly():
        forward = _write_onnx(graph, predictor.card, temporary, about)
        worst = max(_distance(graph, forward, x) for x in _trials(predictor.card))
        if not worst <= TOLERANCE:  # also when it is NaN
            raise UserError(
                f"The ONNX file gives other logits than the model: they differ by {worst:.2g}.",
                "use askew's own format, by --to safetensors; the file was not kept.",
            )
    return worst


def check_form(file: Path) -> None:
    """Refuse the names of files that only PyTorch writes."""
    if file.suffix.lower() in (".pt", ".pt2"):
        raise UserError(
            f"askew exports no {file.suffix} file, found {file.name!r}.",
            "name an ONNX file, such as model.onnx, or use --to safetensors.",
        )


def describe(predictor: Predictor, shares: ClassShares) -> dict[str, Any]:
    """The description inside the file: its input, its output, its classes and its class shares."""
    card = predictor.card
    form = (
        "images, 0 … 255 as decoded; all scaling and cropping is inside" if card.images else "rows"
    )
    dtype = "uint8" if card.images else "float32"
    return {
        "what": "a classifier exported by askew",
        "input": {"name": "x", "dtype": dtype, "shape": ["n", *card.shape], "form": form},
        "output": {
            "name": "logits",
            "shape": ["n", len(card.classes)],
            "form": "softmax gives probabilities",
        },
        "classes": list(card.classes),
        "shares": predictor.class_shares(shares).tolist(),
    }


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporters' own messages: the file is checked anyway."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _trials(card: ModelCard) -> list[Tensor]:
    """Random inputs; images are made of patches, since networks return the same for any white
    noise."""
    rng = np.random.default_rng(0)
    if not card.images:
        return [
            torch.from_numpy(rng.normal(size=(n, *card.shape)).astype(np.float32)) for n in _BATCHES
        ]
    k, h, w = card.shape
    coarse = [
        rng.integers(0, 256, (n, k, h // _PATCH + 1, w // _PATCH + 1), dtype=np.uint8)
        for n in _BATCHES
    ]
    fine = [x.repeat(_PATCH, axis=2).repeat(_PATCH, axis=3)[:, :, :h, :w] for x in coarse]
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in fine]


Forward = Callable[[Tensor], NDArray[Any]]


def _distance(graph: Graph, forward: Forward, x: Tensor) -> float:
    with torch.inference_mode():
        wanted = graph(x).numpy()
    return float(np.abs(forward(x) - wanted).max() / max(1.0, np.abs(wanted).max()))


def _write_onnx(graph: Graph, card: ModelCard, file: Path, about: str) -> Forward:
    """Write the file and return a function that runs it."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError as error:
        raise UserError(
            f"Export to ONNX needs {error.name}, which is not installed.",
            "pip install 'askew[onnx]'.",
        ) from None
    # The example has two inputs, because a batch of one would be taken for a constant.
    dynamic = ({0: torch.export.Dim("n", min=1)},)
    exported = torch.export.export(graph, (_trials(card)[1],), dynamic_shapes=dynamic)
    program = torch.onnx.export(
        exported, input_names=["x"], output_names=["logits"], dynamo=True, verbose=False
    )
    assert program is not None
    program.model.metadata_props["askew"] = about
    program.model.producer_name = "askew"
    program.save(str(file), external_data=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda x: np.asarray(session.run(["logits"], {"x": x.numpy()})[0])
