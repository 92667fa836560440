"""What only a GPU can show: the captured step computes what the plain step computes."""

from __future__ import annotations

import pytest
import torch

from askew.data.feed import Feed
from askew.engine import Trainer
from askew.nets import Net, build
from askew.recipe import Wish, prepare

pytestmark = [pytest.mark.gpu, pytest.mark.real_data]


@pytest.mark.parametrize("method", ["source", "coal"])
def test_a_captured_graph_trains_to_the_same_weights_as_plain_steps(method: str) -> None:
    run, task = prepare(Wish("digits/usps-uci", method, training={"round": 20, "rounds": 2, "pretrain": 0}))
    torch.backends.cudnn.deterministic = True
    device = torch.device("cuda")
    feed = Feed(task.study, device)
    weights = {}
    for graph in (False, True):
        parts, width = build(run.net, (1, 28, 28), 10, seed=0)
        net = Net(parts, width, split_norm=False).to(device)
        net.share_moment()
        trainer = Trainer(run, 0, feed, net, graph)
        last = list(trainer.train(0))[-1]
        assert (trainer.captured is not None) == graph
        weights[graph] = (last.weights(), last.losses)
    for name, plain in weights[False][0].items():
        torch.testing.assert_close(weights[True][0][name], plain, rtol=1e-3, atol=1e-4, msg=name)
    assert weights[True][1] == pytest.approx(weights[False][1], rel=1e-3)


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
