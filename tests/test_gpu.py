"""What only a GPU can show: the captured step computes what the plain step computes."""

from __future__ import annotations

import pytest
import torch

from askew.data.feed import Feed
from askew.engine import fit
from askew.methods import METHODS
from askew.recipe import Wish, prepare

pytestmark = [pytest.mark.gpu, pytest.mark.real_data]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::askew.priors.UnsureMixWarning")  # an untrained network can tell no class mix
def test_a_captured_graph_trains_to_the_same_weights_as_plain_steps(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, task = prepare(Wish("digits/usps-uci", method, training={"round": 10, "rounds": 2, "pretrain": 0}))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    last = {}
    for graph in (False, True):
        *_, last[graph] = fit(run, task.study, torch.device("cuda"), graph=graph)
        assert (last[graph]._trained.captured is not None) == graph
    plain, captured = last[False].weights(), last[True].weights()
    for name, value in plain.items():
        torch.testing.assert_close(captured[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert last[True].losses == pytest.approx(last[False].losses, rel=1e-3, abs=1e-5)


def test_batches_and_dropout_are_the_same_on_the_gpu_and_on_the_cpu() -> None:
    _, task = prepare(Wish("digits/usps-uci", "coal"))
    tables = {}
    for name in ("cpu", "cuda"):
        feed = Feed(task.study, torch.device(name))
        tables[name] = [
            feed.source_rows("balanced", 0, 7, 50, 32).cpu(),
            feed.source_rows("natural", 0, 7, 50, 32).cpu(),
            feed.target_rows(None, 0, 7, 50, 32).cpu(),
        ]
    for cpu, cuda in zip(tables["cpu"], tables["cuda"], strict=True):
        assert torch.equal(cpu, cuda)
