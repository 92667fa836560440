"""Modules of one's own as backbones."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import askew
from askew.core.errors import UserError
from askew.nets.modules import backbone_name
from askew.nets.network import build, check
from askew.nets.spec import parse_network


class Mean(nn.Module):
    """The mean colour, and as many numbers as it is told."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.linear(x.mean(dim=(2, 3)))
        return features


def test_a_module_is_known_by_its_source_and_its_weights() -> None:
    torch.manual_seed(0)
    module = Mean()
    name = backbone_name(module)
    assert name.startswith("own:Mean@")
    assert backbone_name(module) == name
    with torch.no_grad():
        module.linear.bias += 1
    assert backbone_name(module) != name, "other weights"

    class Other(Mean):
        pass

    other = Other()
    other.load_state_dict(module.state_dict())
    assert backbone_name(other).partition("@")[2] != backbone_name(module).partition("@")[2], (
        "other source"
    )


def test_it_sees_pixels_from_0_to_1_and_its_width_is_found() -> None:
    spec = parse_network(backbone_name(nn.Flatten()), crop=4)
    parts, width = build(spec, (3, 6, 6), 2, 0)
    assert width == 48
    pixels = torch.full((2, 3, 6, 6), 255, dtype=torch.uint8)
    assert torch.equal(parts["features"].eval()(pixels), torch.ones(2, 48))
    check(spec, (3, 6, 6))
    layered = parse_network(f"{spec.name}+mlp", crop=4)
    assert build(layered, (3, 6, 6), 2, 0)[1] == 256


def test_a_function_in_a_file_makes_the_same_network_each_time(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\ndef small():\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(12, 5))\n"
    )
    name = backbone_name(f"{file}:small")
    assert backbone_name(f"{file}:small") == name
    assert build(parse_network(name), (3, 2, 2), 2, 0)[1] == 5
    assert backbone_name("resnet18") == "resnet18"


def test_what_is_no_backbone_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def three():\n    return 3\n")
    for text, message in (
        (f"{file}:three", "returns a int, not an nn.Module"),
        (f"{file}:four", "defines no function 'four'"),
        (f"{tmp_path}/none.py:f", "The backbone file .* does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            backbone_name(text)
    with pytest.raises(UserError, match="fails on a batch of 1 x 8 x 8"):
        build(parse_network(backbone_name(Mean())), (1, 8, 8), 2, 0)
    with pytest.raises(UserError, match="somebody's own, whose code is needed"):
        build(parse_network("own:Lost@000000000000"), (3, 8, 8), 2, 0)


# --- identity ---


class Wrapped(nn.Module):
    """Pools as an attribute says, which neither repr nor weights show."""

    def __init__(self, pool: object = "mean") -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        if callable(self.pool):
            found: Tensor = self.pool(x)
            return found
        return x.mean(dim=(2, 3)) if self.pool == "mean" else x[:, :, 0, 0]


def scaled(by: float) -> Callable[[Tensor], Tensor]:
    return lambda x: by * x.mean(dim=(2, 3))


def with_default(by: float) -> Callable[[Tensor], Tensor]:
    def pool(x: Tensor, by: float = by) -> Tensor:
        return by * x.mean(dim=(2, 3))

    return pool


class Settings:
    def __init__(self, power: int) -> None:
        self.power = power

    def __call__(self, x: Tensor) -> Tensor:
        return (x**self.power).mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("mean", "first"),
        (scaled(1.0), scaled(2.0)),
        (with_default(1.0), with_default(2.0)),
        (functools.partial(torch.amax, dim=(2, 3)), functools.partial(torch.amin, dim=(2, 3))),
        (Settings(1), Settings(2)),
    ],
    ids=["attribute", "closure", "default", "partial", "object"],
)
def test_modules_of_other_attributes_have_other_names(one: object, other: object) -> None:
    names = [backbone_name(Wrapped(pool)) for pool in (one, other, one)]
    assert names[0] == names[2] != names[1]


def test_modules_of_other_attributes_share_no_embeddings() -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (4, 3, 8, 8), np.uint8)
    mean, first = (askew.embed(pictures, Wrapped(pool)) for pool in ("mean", "first"))
    assert mean == pytest.approx(pictures.mean(axis=(2, 3)) / 255, abs=1e-5)
    assert first == pytest.approx(pictures[:, :, 0, 0] / 255, abs=1e-5)


def test_another_helper_in_the_file_is_another_backbone(tmp_path: Path) -> None:
    text = """
from torch import nn
def pool(x):
    return {}
class Net(nn.Module):
    def forward(self, x):
        return pool(x)
def make():
    return Net()
"""
    file, names = tmp_path / "mine.py", []
    for body in ("x.mean(dim=(2, 3))", "x[:, :, 0, 0]"):
        file.write_text(text.format(body))
        names.append(backbone_name(f"{file}:make"))
    assert names[0] != names[1]


OUTSIDE = {"scale": 1.0}


class Reads(nn.Module):
    """Depends on what no attribute shows."""

    def forward(self, x: Tensor) -> Tensor:
        return OUTSIDE["scale"] * x.mean(dim=(2, 3))


def test_modules_of_other_outputs_share_no_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = np.random.default_rng(1).integers(0, 255, (4, 3, 8, 8), np.uint8)
    before = askew.embed(pictures, Reads())
    monkeypatch.setitem(OUTSIDE, "scale", 2.0)
    assert askew.embed(pictures, Reads()) == pytest.approx(2 * before)
    monkeypatch.undo()
    assert askew.embed(pictures, Reads()) == pytest.approx(before)


def test_a_name_is_the_same_in_every_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\nclass Thing:\n    pass\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b, self.c = Thing(), {'x', 'y', 'z'}, lambda x: x\n"
        "    def forward(self, x):\n        return x.flatten(1)\n"
    )
    code = f"from askew.nets.modules import backbone_name as n; print(n({str(file) + ':Net'!r}))"
    names = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(names) == 1
