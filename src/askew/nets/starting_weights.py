"""Starting weights from a file, checked to be those of the network, and published ones, checked by
their hash."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.errors import UserError

KINDS = "a .safetensors or .pth file"

_WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "teacher",
    "student",
)  # where training programs put the weights
_CLEARLY = 0.8  # share of the statistics' misfit that another form of the network must get below

_sound: set[tuple[str, tuple[Path, int]]] = (
    set()
)  # networks and files whose strides were found to agree


def load_weights(body: nn.Module, path: Path, name: str) -> None:
    """Give a network the weights in a file; UserError if they are not its own."""
    if not path.is_file():
        raise UserError(f"The weights file {path} does not exist.", f"none, hub, or {KINDS}.")
    tensors, about = _read(path)
    own = body.state_dict()
    missing = [k for k in own if k not in tensors and not k.endswith("num_batches_tracked")]
    wrong = [k for k in own if k in tensors and own[k].shape != tensors[k].shape]
    if missing or wrong:
        first = (missing or wrong)[0]
        raise UserError(
            f"{path} does not fit the network: {len(missing)} tensors are missing, {len(wrong)} "
            "differ in shape "
            f"(first: {first}).",
            "the file must hold the model's own state_dict names.",
        )
    bad = [k for k in own if k in tensors and not tensors[k].isfinite().all()]
    if bad:
        raise UserError(
            f"The weights {bad[0]} in {path} hold NaN or infinity.",
            "the file was damaged, or training diverged; name another.",
        )
    if any(value.is_meta for value in own.values()):
        return
    body.load_state_dict(
        {k: v.to(own[k].dtype) for k, v in tensors.items() if k in own}, strict=False
    )
    if (
        name,
        file := (path, path.stat().st_mtime_ns),
    ) not in _sound:  # a network is built more than once
        _check_strides(body, path, name, about.get("stride", ""))
        _sound.add((name, file))


def _read(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Tensors by their names, and what the file says of itself. Nothing in it is run."""
    from safetensors import SafetensorError, safe_open

    if path.suffix.lower() in (".pth", ".pt", ".bin"):
        return _read_pickled(path), {}
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a safetensors file: {error}.",
            "convert it with safetensors.torch.save_file.",
        ) from None


def _read_pickled(path: Path) -> Mapping[str, Tensor]:
    """The weights in a file of torch.save's, by the reader that makes tensors and plain containers
    only."""
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each have their own
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} holds no plain weights: {why}",
            "save the model's state_dict() with torch.save or safetensors.",
        ) from None
    while isinstance(found, Mapping) and not any(
        isinstance(value, Tensor) for value in found.values()
    ):
        found = next((found[key] for key in _WRAPPERS if key in found), None)
    if not isinstance(found, Mapping):
        raise UserError(
            f"{path} holds no weights by name.", "save the model's state_dict() with torch.save."
        )
    # the prefix is that of torch's DistributedDataParallel
    return {str(k).removeprefix("module."): v for k, v in found.items() if isinstance(v, Tensor)}


# --- the same shapes with other strides ---


def move_strides(body: nn.Module) -> int:
    """Move each bottleneck's stride from its 3x3 convolution to the 1x1 before it, or back; how
    many moved."""
    moved = 0
    for block in body.modules():
        one, two = getattr(block, "conv1", None), getattr(block, "conv2", None)
        if isinstance(one, nn.Conv2d) and isinstance(two, nn.Conv2d) and one.kernel_size == (1, 1):
            moved += one.stride != two.stride
            one.stride, two.stride = two.stride, one.stride
    return moved


def _check_strides(body: nn.Module, path: Path, name: str, about: str) -> None:
    """UserError if weights of the original ResNet (v1) are given to a later one, or the other way
    round."""
    other = copy.deepcopy(body)
    if not move_strides(other):
        return
    original = name.endswith(".v1")
    if about:  # what its maker wrote goes before what its statistics say
        fits = (about.lower().startswith("v1") and not about.lower().startswith("v1.5")) == original
        why = f"it says '{about}'"
    else:
        here, there = _misfit(body), _misfit(other)
        fits = there > _CLEARLY * here
        why = (
            f"statistics of photographs differ from those in the file by {here:.2f}, and by "
            f"{there:.2f} there"
        )
    if not fits:
        plain = name.removeprefix("timm:").removesuffix(".v1")
        raise UserError(
            f"The weights in {path} have the strides of "
            f"{'a later ResNet' if original else 'the original ResNet'}, "
            f"not those of {name}: {why}.",
            f"--backbone {plain}{'' if original else '.v1'}.",
        )


def _misfit(body: nn.Module) -> float:
    """How far photographs' activations are from the batch norms' own statistics: mean of (log of
    variances' ratio)²."""
    found: list[float] = []

    def compare(norm: nn.BatchNorm2d, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert norm.running_var is not None
        var = inputs[0].var(dim=(0, 2, 3))
        found.append(
            float(((var + norm.eps) / (norm.running_var + norm.eps)).log().square().mean())
        )

    norms = [m for m in body.modules() if isinstance(m, nn.BatchNorm2d)]
    hooks = [norm.register_forward_hook(compare) for norm in norms]
    training = body.training
    try:
        with torch.no_grad():
            body.eval()(_photographs())
    finally:
        body.train(training)
        for hook in hooks:
            hook.remove()
    return sum(found) / max(1, len(found))


@functools.cache
def _photographs() -> Tensor:
    """Six squares of the two photographs that come with scikit-learn, as networks of ImageNet take
    them."""
    from sklearn.datasets import load_sample_images

    side, squares = 400, []
    for photograph in load_sample_images().images:
        x = torch.from_numpy(np.array(photograph)).permute(2, 0, 1)[None].float() / 255
        top, spare = (x.shape[2] - side) // 2, x.shape[3] - side
        for left in (0, spare // 2, spare):
            square = x[:, :, top : top + side, left : left + side]
            squares.append(F.interpolate(square, (128, 128), mode="bilinear", antialias=True))
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (torch.cat(squares) - mean[:, None, None]) / std[:, None, None]


# --- published weights ---

_NO_CODE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # makes torch.load refuse whatever is no tensor
_ELSEWHERE = (
    "start again where there is a network, or name a file: -t weights=FILE in run, bench and "
    "tune, --weights FILE in "
    "adapt and embed; none instead of FILE starts from chance."
)


@contextlib.contextmanager
def published(name: str) -> Iterator[None]:
    """Fetch and load published weights without running any code in them, whatever the library asks
    for."""
    before = os.environ.get(_NO_CODE)
    os.environ[_NO_CODE] = "1"
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # torch tells there what it downloads; stdout is for data alone
            yield
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        why = (
            " ".join(str(getattr(error, "reason", "") or error).split())[:200].rstrip(".")
            or type(error).__name__
        )
        if isinstance(error, OSError) or type(error).__module__.startswith("http"):
            raise UserError(
                f"The weights of {name} could not be fetched: {why}.", _ELSEWHERE
            ) from None
        raise UserError(
            f"The published weights of {name} cannot be loaded: {why}.",
            "if the file was damaged, delete it from the cache of torch or Hugging Face: it is "
            "then downloaded again.",
        ) from None
    finally:
        os.environ.pop(_NO_CODE) if before is None else os.environ.update({_NO_CODE: before})


def check_published(file: Path) -> None:
    """UserError if a file in a cache has not the SHA-256 that its name gives, in part or as a
    whole."""
    found = re.search(r"(?:^|-)([0-9a-f]{8,64})(?:\.|$)", file.name)
    if found is None or not file.is_file():
        return
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if not digest.startswith(found[1]):
        raise UserError(
            f"The weights {file} are not those that were published: their hash is {digest[:16]}….",
            "they were damaged or changed; delete the file, and it is downloaded again.",
        )


def cached_by_timm(model: str) -> list[Path]:
    """A model's weights in the cache of Hugging Face, where files are named by their hash."""
    import timm
    from huggingface_hub import try_to_load_from_cache

    config = timm.get_pretrained_cfg(model)
    if config is None or not config.hf_hub_id:
        return []
    found = [
        try_to_load_from_cache(config.hf_hub_id, name)
        for name in ("model.safetensors", "pytorch_model.bin")
    ]
    return [Path(path).resolve() for path in found if isinstance(path, str)]
