"""The small networks: the paper's two for digits, one for a laptop, and layers for embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from askew.core.errors import UserError
from askew.nets.layers import Centre, Contrast, UnitLength, conv, dense, plus_minus_one


def digits_28(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The USPS↔MNIST network of MCD (Saito et al. 2018): 28 x 28 grey, 768–100–100."""
    _expect(shape, "digits-28", (1, 28, 28))
    layers = [
        plus_minus_one(),
        *conv(1, 32, pool=(2, 2, 0)),
        *conv(32, 48, pool=(2, 2, 0)),
        nn.Flatten(),
        *dense(768, 100, layer=1),
        *dense(100, 100, layer=2),
    ]
    return nn.Sequential(*layers), 100


def digits_32(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The SVHN→MNIST network of MCD (Saito et al. 2018): 32 x 32 RGB, 8192–3072–2048."""
    _expect(shape, "digits-32", (3, 32, 32))
    layers = [
        plus_minus_one(),
        *conv(3, 64, 2, pool=(3, 2, 1)),
        *conv(64, 64, 2, pool=(3, 2, 1)),
        *conv(64, 128, 2),
        nn.Flatten(),
        *dense(8192, 3072, layer=1),
        *dense(3072, 2048),
    ]
    return nn.Sequential(*layers), 2048


def mini(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """A small network for 32 x 32 RGB on a laptop: under 200,000 parameters."""
    _expect(shape, "mini", (3, 32, 32))
    layers = [
        plus_minus_one(),
        nn.AvgPool2d(2),
        Contrast(),
        nn.ZeroPad2d(-2),
        *conv(1, 32, 2, pool=(2, 2, 0)),
        *conv(32, 48, 2, pool=(2, 2, 0)),
        nn.Flatten(),
        *dense(432, 100, layer=1),
        *dense(100, 100),
    ]
    return nn.Sequential(*layers), 100


def mlp(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Two dense layers for arrays of features."""
    (width,) = _expect(shape, "mlp", (None,))
    return nn.Sequential(*dense(width, 512, layer=1), *dense(512, 256)), 256


def bottleneck(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """One dense layer, as transfer learning puts it between a backbone and a head."""
    (width,) = _expect(shape, "bottleneck", (None,))
    return nn.Sequential(*dense(width, 256)), 256


def then_centred(
    layers: Callable[[tuple[int, ...]], tuple[nn.Module, int]],
) -> Callable[[tuple[int, ...]], tuple[nn.Module, int]]:
    """Follow layers by unit length and a centre of each domain, for a head that is computed."""

    def build(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        below, width = layers(shape)
        assert isinstance(below, nn.Sequential), "layers are one after another"
        return nn.Sequential(*below, UnitLength(), Centre(width)), width

    return build


def bare(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """No features at all: the head works on the rows as they are."""
    (width,) = _expect(shape, "bare", (None,))
    return nn.Identity(), width


def shifted(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Rows less a centre of their domain."""
    (width,) = _expect(shape, "shifted", (None,))
    return nn.Sequential(Centre(width)), width


def centred(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Rows of unit length, less the mean of their domain."""
    (width,) = _expect(shape, "centred", (None,))
    return nn.Sequential(UnitLength(), Centre(width)), width


OWN: Mapping[str, Callable[[tuple[int, ...]], tuple[nn.Module, int]]] = {
    "digits-28": digits_28,
    "digits-32": digits_32,
    "mini": mini,
    "mlp": mlp,
    "bottleneck": bottleneck,
    "bare": bare,
    "centred": centred,
    "shifted": shifted,
    "mlp-centred": then_centred(mlp),
    "bottleneck-centred": then_centred(bottleneck),
}


def _expect(shape: tuple[int, ...], name: str, wanted: tuple[int | None, ...]) -> tuple[int, ...]:
    if len(shape) != len(wanted) or any(
        w not in (None, s) for s, w in zip(shape, wanted, strict=True)
    ):
        found = " x ".join(map(str, shape))
        need = " x ".join("any width" if w is None else str(w) for w in wanted)
        fitting = (
            "use mlp or bare"
            if len(shape) == 1
            else "networks of torchvision and timm take images of any size"
        )
        raise UserError(f"The network {name} takes {need}, found {found}.", f"{fitting}.")
    return shape
