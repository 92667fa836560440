"""Random views in training: whose they are, what they are keyed by, and that a run that uses them
can be resumed."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import rows
from test_trainer import Kept, assert_same, copied, kept
from torch import Tensor
from toy_data import stripes, training_data_of

from askew.core import random
from askew.core.errors import UserError
from askew.data.task import Task, TestLabels, TrainingData
from askew.methods import SourceOnly, make_method
from askew.methods.base import Batch, Losses, Method, State
from askew.nets.augment import NO_VIEWS, Views
from askew.nets.layers import Crop, Pixels
from askew.nets.network import Net
from askew.nets.spec import parse_network
from askew.runs.config import RunRequest, plan_run
from askew.training import batches, loop
from askew.training.batches import Feed, with_views
from askew.training.lane_groups import lane_shape
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint
from askew.training.trainer import Resume, fit, tables

CPU = torch.device("cpu")
AFFINE = Views(views="affine+intensity")


@dataclass(frozen=True, kw_only=True)
class Looks(SourceOnly):
    """Wants three views of the source, the last as it is, and two of the target."""

    id = "looks"
    source_views = (1.0, 0.5, 0.0)
    target_views = (1.0, 1.0)
    sees_target = True


def batch_of(n: int, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (n, 1, 9, 9), generator=rng, dtype=torch.uint8)
    return Batch(x, torch.arange(n) % 3, x.clone(), torch.arange(n))


KEY = torch.tensor(random.key("a step"))


# --- of a batch ---


def test_a_method_gets_as_many_views_as_it_asks_for_and_the_first_as_its_batch() -> None:
    batch = with_views(batch_of(5), Looks(), KEY, AFFINE, 0)
    assert len(batch.source_views) == 3
    assert len(batch.target_views) == 2
    assert batch.xs is batch.source_views[0]
    assert batch.xt is batch.target_views[0]
    assert torch.equal(batch.source_views[2], batch_of(5).xs), "strength nought is the image itself"
    assert batch.key is KEY


def test_all_views_of_an_image_differ_and_so_do_those_of_both_domains() -> None:
    batch = with_views(batch_of(5), Looks(), KEY, AFFINE, 0)  # the same images in both domains
    views = torch.stack([v.float() for v in (*batch.source_views, *batch.target_views)]).flatten(2)
    for of_image in views.unbind(dim=1):
        assert (torch.cdist(of_image, of_image) + 1e9 * torch.eye(5)).min() > 10


def test_a_view_is_keyed_by_the_place_in_the_batch_and_not_by_the_image() -> None:
    same = batch_of(1).xs.expand(4, -1, -1, -1)
    batch = with_views(
        Batch(same, torch.zeros(4), same, torch.zeros(4)), SourceOnly(), KEY, AFFINE, 0
    )
    assert len({tuple(v.flatten().tolist()) for v in batch.xs}) == 4


def test_another_step_gives_other_views() -> None:
    one, two = (with_views(batch_of(5), Looks(), KEY + i, AFFINE, 0) for i in (0, 1))
    assert not torch.isclose(one.xs, two.xs).flatten(1).all(dim=1).any()


def test_without_views_images_stay_what_they_are() -> None:
    plain = batch_of(5)
    batch = with_views(plain, Looks(), KEY, NO_VIEWS, 0)
    for view in (*batch.source_views, *batch.target_views):
        assert view.dtype == torch.uint8
        assert torch.equal(view, plain.xs)


def test_a_method_that_never_sees_the_target_costs_no_views_of_it() -> None:
    batch = with_views(batch_of(5), SourceOnly(), KEY, AFFINE, 0)
    assert torch.equal(batch.xt, batch_of(5).xt)
    assert not torch.equal(batch.xs, batch_of(5).xs)


def test_the_views_of_lanes_are_those_of_each_by_itself() -> None:
    keys = random.hash64(1, torch.arange(3))
    singles = [batch_of(4, seed) for seed in range(3)]
    stacked = Batch(*(torch.stack([single[i] for single in singles]) for i in range(4)))
    lanes = with_views(stacked, Looks(), keys, AFFINE, 0)
    for i, (single, key) in enumerate(zip(singles, keys, strict=True)):
        alone = with_views(single, Looks(), key, AFFINE, 0)
        for mine, theirs in (
            (lanes.source_views, alone.source_views),
            (lanes.target_views, alone.target_views),
        ):
            for a, b in zip(mine, theirs, strict=True):
                torch.testing.assert_close(a[i], b, rtol=1e-5, atol=1e-3)


def test_picture_views_have_the_side_that_the_network_would_crop_to() -> None:
    batch = with_views(batch_of(3), Looks(), KEY, Views(views="picture"), 6)
    assert {tuple(v.shape) for v in (*batch.source_views, *batch.target_views)} == {(3, 1, 6, 6)}


@pytest.mark.parametrize("lanes", [(), (2,)])
def test_views_that_lie_channels_last_stay_so_up_to_the_first_convolution(
    lanes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that kernels make."""
    last = torch.zeros(2 if not lanes else 4, 5, 5, 3).permute(0, 3, 1, 2)
    monkeypatch.setattr(batches, "make_view", lambda *args: last)
    x = torch.zeros(*lanes, 2, 3, 9, 9, dtype=torch.uint8)
    seen = with_views(Batch(x, x, x, x), Looks(), KEY.expand(lanes), Views(views="picture"), 5)
    assert seen.xs.data_ptr() == last.data_ptr()
    pixels = Pixels((0.5,) * 3, (0.5,) * 3, 3)
    both = seen.xs.flatten(0, 1) if lanes else torch.cat([seen.xs, seen.xt])
    images = pixels(Crop(5)(both))
    assert images.is_contiguous(memory_format=torch.channels_last)


# --- of a run ---


def data_for(net: str) -> TrainingData:
    return training_data_of(
        *(rows(n, 0, n) if net == "mlp" else stripes(n, n) for n in (30, 9, 31, 9))
    )


DATA = {net: data_for(net) for net in ("mlp", "mini")}


def run_of(method: Method, net: str = "mlp", views: Views = NO_VIEWS, **more: Any) -> Run:
    optim = Optim(optimiser="adam", lr=0.001, features_lr=0.001, schedule="cosine")
    values: dict[str, Any] = {"target_sampler": "natural", "seed": 0} | more
    return Run(
        task="toy",
        shift="natural",
        draw=0,
        origin=net,
        net=parse_network(net, norm="split"),
        plan=(
            Stage(method=SourceOnly(), rounds=1, round_steps=2, optim=optim),
            Stage(method=method, rounds=2, round_steps=4, optim=optim),
        ),
        batch=6,
        sampler="balanced",
        precision="float32",
        threads=1,
        views=views,
        **values,
    )


def test_views_are_keyed_by_seed_stage_and_step() -> None:
    run, feed = run_of(SourceOnly()), Feed(DATA["mlp"], CPU)
    keys = [
        tables(run, 1, feed, None, 0, 6, 1).view_keys,
        tables(run, 0, feed, None, 0, 6, 1).view_keys,
        tables(dataclasses.replace(run, seed=1), 1, feed, None, 0, 6, 1).view_keys,
    ]
    assert len(torch.cat(keys).unique()) == 18
    assert torch.equal(tables(run, 1, feed, None, 4, 2, 1).view_keys, keys[0][4:])


def test_training_sees_views_and_predictions_do_not() -> None:
    seen: list[Tensor] = []

    @dataclass(frozen=True, kw_only=True)
    class Noting(SourceOnly):
        id = "noting"

        def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
            seen.append(batch.xs)
            return super().losses(net, batch, state, t)

        def predict(self, net: Net, x: Tensor) -> Tensor:
            assert x.dtype == torch.uint8
            return super().predict(net, x)

    *_, last = fit(run_of(Noting(), "mini", AFFINE), DATA["mini"], CPU)
    assert last.outputs.target.shape == (31, 3)
    assert {x.dtype for x in seen} == {torch.float32}
    assert min(x.min().item() for x in seen) < 0, "views are not clipped"


@pytest.mark.parametrize(
    ("net", "views", "method"),
    [
        ("mlp", Views(views="rows"), make_method("teacher", {"threshold": 0.4})),
        ("mini", AFFINE, make_method("teacher", {"threshold": 0.4, "memory": 3})),
        ("mini", Views(views="affine"), make_method("coal", {})),
    ],
    ids=["rows", "affine+intensity", "affine"],
)
def test_going_on_from_any_snapshot_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, net: str, views: Views, method: Method
) -> None:
    """With Adam, statistics of each domain and an even target."""
    monkeypatch.setattr(loop, "CPU_CHUNK", 3)  # so that snapshots also fall inside a round
    run, data = run_of(method, net, views, target_sampler="even"), DATA[net]
    assert run.before is not None
    *_, last = fit(run.before, data, CPU)
    start: Checkpoint = copied(last.weights())

    def rest(at: Kept | None) -> list[Kept]:
        resume = at and Resume(at.step, copied(at.tensors), list(at.losses))
        return kept(fit(run, data, CPU, start=start, resume=resume))

    whole = rest(None)
    assert [s.step for s in whole] == [3, 4, 7, 8]
    for i, at in enumerate(whole[:-1]):
        for ours, theirs in zip(rest(at), whole[i + 1 :], strict=True):
            assert ours.losses == theirs.losses
            assert_same(ours.tensors, theirs.tensors)


# --- a run's key ---


def test_settings_without_effect_do_not_change_a_run_s_key() -> None:
    run = run_of(SourceOnly())
    same = [
        dataclasses.replace(
            run, views=Views(rotation=5, noise=0.3, area=0.5, style=0, feature_dropout=0.4)
        ),
        dataclasses.replace(run, target_floor=0.1),
        dataclasses.replace(run, net=dataclasses.replace(run.net, last_dropout=True)),
    ]
    assert {other.key for other in same} == {run.key}
    for views, idle in (
        ("affine", "inversion"),
        ("affine", "style"),
        ("picture", "noise"),
        ("rows", "rotation"),
    ):
        how: Any = {"views": views}
        one, two = (
            dataclasses.replace(run, views=Views(**how, **more)) for more in ({}, {idle: 0.05})
        )
        assert one.key == two.key
        assert lane_shape(one) == lane_shape(two)


def test_settings_with_an_effect_change_a_run_s_key_and_its_lane() -> None:
    run = run_of(SourceOnly())
    others = [
        *(
            dataclasses.replace(run, views=Views(views=kind))
            for kind in ("affine", "affine+intensity", "picture")
        ),
        dataclasses.replace(run, views=Views(views="rows")),
        dataclasses.replace(run, views=Views(views="rows", noise=0.05)),
        dataclasses.replace(run, views=Views(views="affine", shift=1.0)),
        dataclasses.replace(run, views=Views(views="picture", style=0.5)),
        dataclasses.replace(run, target_sampler="even"),
        dataclasses.replace(run, target_sampler="even", target_floor=0.1),
        dataclasses.replace(run, net=dataclasses.replace(run.net, last_dropout=False)),
    ]
    assert len({run.key, *(other.key for other in others)}) == 1 + len(others)
    assert len({lane_shape(run), *(lane_shape(other) for other in others)}) == 1 + len(others)


def test_pre_training_is_shared_by_runs_that_draw_the_target_in_other_ways() -> None:
    keys = {
        dataclasses.replace(
            run_of(SourceOnly()), target_sampler=sampler, target_floor=floor
        ).before.key  # type: ignore[arg-type, union-attr]
        for sampler, floor in (
            ("natural", 0.002),
            ("balanced", 0.002),
            ("even", 0.002),
            ("even", 0.1),
        )
    }
    assert len(keys) == 1


def test_views_that_do_not_fit_the_task_are_refused_before_training() -> None:
    task = Task("toy", DATA["mini"], TestLabels(np.arange(9) % 3, None, ("a", "b", "c")))
    for views, refused in (("rows", True), ("affine", False)):
        request = RunRequest(task="mini/toy", method="source", training={"views": views})
        with (
            pytest.raises(UserError, match="rows are for rows of features")
            if refused
            else nullcontext()
        ):
            assert plan_run(request, task, "mini").views.views == views
