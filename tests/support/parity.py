"""Two ways to take the same few steps from the same state: how far apart their tensors may be.

Only a few, since steps build on each other: a ReLU or a max pool that is undecided takes rounding
for an answer, and how fast that grows is a matter of the processor. A step is compared by how far
it moved a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from askew.training.snapshot import Checkpoint

STORED = 2e-6
"""Of a tensor's size: what float32 numbers cannot hold."""
UNDECIDED = 0.15
"""Of the way that Adam went: a weight whose gradient is nought but for rounding takes a whole step
to either side, and this is half a percent of a tensor's weights. The gradients themselves, which
its slots hold, are compared as usual."""


def before_norms(names: Iterable[str]) -> tuple[str, ...]:
    """Biases that the next layer, a batch norm, takes away again.

    Their true gradient is nought. What is computed is rounding, in one way as in another.
    """
    found = (
        re.fullmatch(r"(?:net\.)?(?:teacher\.)?(.+\.)(\d+)\.running_mean", name) for name in names
    )
    return tuple(f".{match[1]}{int(match[2]) - 1}.bias" for match in found if match)


def assert_same_steps(
    begun: Checkpoint,
    one: Checkpoint,
    other: Checkpoint,
    share: float,
    *,
    adam: bool = False,
    undecided: float = 0.0,
) -> None:
    """No tensor is farther apart than a share of the way that it went since `begun`, which may lack
    some.

    Left out are gradients that are nought (`before_norms`). Adam divides by their size and so makes
    whole steps of rounding; under it those biases are left out themselves, and with them the
    running means that contain them.
    """
    assert one.keys() == other.keys()
    noise = before_norms(one)
    start = {name.removeprefix("net."): value for name, value in begun.items()}
    for name, value in one.items():
        is_slot = name.startswith("optim.")
        if f".{name}".endswith(noise) and (adam or is_slot):
            continue
        if adam and name.endswith("running_mean"):
            continue
        own = name.removeprefix("net.")
        since = start.get(own, start.get(own.removeprefix("teacher.")))
        moved = value.double() if since is None or is_slot else value.double() - since.double()
        apart, size = (other[name].double() - value.double()).norm(), value.double().norm()
        allowed = share if is_slot else max(share, undecided)
        most = STORED * size + allowed * moved.norm() + 1e-9
        assert apart <= most, (
            f"{name} is {apart:.2g} apart, of a size of {size:.2g}, {moved.norm():.2g} of it moved"
        )
