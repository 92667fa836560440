"""Modules of one's own as backbones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

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
