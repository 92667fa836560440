"""The weights of a model: found in its folder by their hash, and checked against its network."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.inference.model_card import ModelCard
from askew.methods.base import new_net
from askew.nets.network import Net, keeps_source_statistics

CARD_FILE = "model.json"
HOW = (
    "name a folder that `askew adapt` or `askew export --to safetensors` wrote, or a finished "
    "run's."
)


def weights_file(digest: str) -> str:
    return f"weights-{digest[:16]}.safetensors"


def read_weights(folder: Path, digest: Any) -> dict[str, Tensor]:
    """The weights that the card names, if they are still what they were."""
    if (
        not isinstance(digest, str)
        or len(digest) != 64
        or not set(digest) <= set("0123456789abcdef")
    ):
        raise UserError(
            f"{folder / CARD_FILE} is not a model of askew's: it names no weights.", HOW
        )
    file = folder / weights_file(digest)
    if not file.is_file():
        raise UserError(
            f"The model in {folder} lacks its weights, {file.name}.", "copy the whole folder again."
        )
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != digest:
        raise UserError(
            f"The weights {file} are not those that the model was saved with: their hash is "
            f"{found[:16]}….",
            "they were damaged or changed; get the model again from where it comes from.",
        )
    return read_tensors(file)[0]


def empty_network(card: ModelCard, weights: Mapping[str, Tensor]) -> Net:
    """The network that the card describes, before these weights are loaded into it."""
    spec = (
        card.net
        if keeps_source_statistics(weights)
        else dataclasses.replace(card.net, norm="joint")
    )
    return new_net(spec, card.rule, card.shape, len(card.classes))


def fitting_weights(weights: Mapping[str, Tensor], net: Net) -> dict[str, Tensor]:
    """Those of the weights that the network has; UserError if one is missing, misshapen or not
    finite."""
    own, fitting = net.state_dict(), {}
    for name, like in own.items():
        found = weights.get(name)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            what = "none" if found is None else f"{found.dtype} {tuple(found.shape)}"
            raise UserError(
                f"The weights do not fit the network: {name} is {like.dtype} "
                f"{tuple(like.shape)}, found {what}.",
                "the model was damaged, or made by another version of askew.",
            )
        if not found.isfinite().all():
            raise UserError(
                f"The weights {name} hold NaN or infinity.", "the model was damaged; make it again."
            )
        fitting[name] = found.detach().cpu().clone(memory_format=torch.contiguous_format)
    return fitting
