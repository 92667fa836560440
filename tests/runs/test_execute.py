from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dying import (
    carry_out,
    child,
    die_half,
    die_whole,
    finish,
    killed_again_and_again,
    small_files,
    undisturbed,
)
from forked import forks
from test_trainer import Broken

from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.data.task import Task
from askew.methods import COAL, SourceOnly
from askew.nets.augment import Views
from askew.nets.embedding import Embedding
from askew.nets.spec import NetworkSpec, parse_network
from askew.runs import execute as execution
from askew.runs.execute import Execution, execute
from askew.runs.store import RunFolder
from askew.training import clocks, loop
from askew.training.optim import Optim
from askew.training.run import Run, Stage

CPU = torch.device("cpu")


def results(root: Path) -> dict[str, bytes]:
    """The bytes that must not depend on what happened on the way; the trace without its seconds."""
    found = {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.glob("*/*")
        if p.name in ("weights.safetensors", "outputs.safetensors", "scores.json")
    }
    for p in root.glob("*/trace.jsonl"):
        lines = [json.loads(line) for line in p.read_text().splitlines()]
        found[str(p.relative_to(root))] = json.dumps(
            [(e["step"], e["losses"]) for e in lines]
        ).encode()
    return found


def leftovers(root: Path) -> list[str]:
    return [p.name for p in root.rglob(".*") if p.name != ".lock"]


# --- killed and started again ---


@pytest.mark.parametrize("die", [die_half, die_whole])
def test_a_run_killed_at_every_write_ends_as_an_undisturbed_one(
    task: Task, make_run: Any, tmp_path: Path, die: Callable[..., None]
) -> None:
    run = make_run(COAL(), rounds=2, target_sampler="balanced", optimiser="adam")
    assert child(run, task, tmp_path / "reference", undisturbed) == 0
    assert killed_again_and_again(run, task, tmp_path / "rough", die) >= 4
    assert results(tmp_path / "rough") == results(tmp_path / "reference")
    assert leftovers(tmp_path / "rough") == []


def test_a_run_killed_at_random_ends_as_an_undisturbed_one(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(COAL(), rounds=8)
    assert child(run, task, tmp_path / "reference", undisturbed) == 0
    for delay in (0.05, 0.15, 0.1, 0.2):
        process = forks.Process(target=carry_out, args=(run, task, tmp_path / "rough", undisturbed))
        process.start()
        time.sleep(delay)
        process.kill()
        process.join()
    assert child(run, task, tmp_path / "rough", undisturbed) == 0
    assert results(tmp_path / "rough") == results(tmp_path / "reference")


def test_a_resumed_trace_names_every_round_once(task: Task, make_run: Any, tmp_path: Path) -> None:
    run = make_run(rounds=3, pretrain=0)
    assert killed_again_and_again(run, task, tmp_path, die_half) >= 3
    assert [entry["step"] for entry in RunFolder(tmp_path / run.key).trace()] == [10, 20, 30]


def test_two_processes_on_one_folder_do_not_harm_each_other(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(COAL())
    pair = [
        forks.Process(target=carry_out, args=(run, task, tmp_path / "shared", undisturbed))
        for _ in range(2)
    ]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]
    assert child(run, task, tmp_path / "alone", undisturbed) == 0
    assert results(tmp_path / "shared") == results(tmp_path / "alone")


# --- what is run, and what is not ---


def test_a_finished_run_is_not_run_again(task: Task, make_run: Any, tmp_path: Path) -> None:
    run = make_run(COAL())
    finish(run, task, tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert list(execute(run, task, Execution(root=tmp_path, device=CPU))) == []
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_two_methods_with_the_same_head_and_seed_share_their_pre_training(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    source, coal = make_run(SourceOnly()), make_run(COAL())
    assert source.before.key == coal.before.key
    assert make_run(COAL(), head="linear").before.key != coal.before.key
    assert make_run(COAL(), seed=1).before.key != coal.before.key
    finish(source, task, tmp_path)
    mtime = (tmp_path / coal.before.key / "weights.safetensors").stat().st_mtime_ns
    finish(coal, task, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {source.key, coal.key, coal.before.key}
    assert (tmp_path / coal.before.key / "weights.safetensors").stat().st_mtime_ns == mtime


def test_a_run_that_reads_like_a_pre_training_is_scored_all_the_same(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    folder = finish(make_run(rounds=1, pretrain=0), task, tmp_path)
    assert folder.scores()["whole"]["images"] == 60


def test_how_a_run_is_carried_out_changes_neither_its_folder_nor_its_numbers(
    task: Task, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(COAL())
    finish(run, task, tmp_path / "a")
    finish(run, task, tmp_path / "b", checkpoint_every=1e9, curve=True, graph=False)
    assert results(tmp_path / "a") == results(tmp_path / "b")
    assert {f.name for f in dataclasses.fields(Execution)}.isdisjoint(run.describe())


@pytest.mark.parametrize(
    ("every", "takes", "saves"), [(2.0, 0.0, 4), (2.0, 0.25, 2), (2.0, 10.0, 1), (0.0, 10.0, 9)]
)
def test_checkpoints_that_take_long_are_made_less_often_unless_all_are_wanted(
    task: Task,
    make_run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: float,
    takes: float,
    saves: int,
) -> None:
    """Ten looks at the losses, a second apart."""
    seconds, made = [0.0], []

    def save(folder: RunFolder, step: int, *_: object) -> None:
        made.append(step)
        seconds[0] += takes

    def look() -> float:
        return seconds[0]

    def looked(*args: Any, **more: Any) -> Iterator[Any]:
        for snapshot in fit(*args, **more):
            seconds[0] += 1
            yield snapshot

    fit = execution.fit
    monkeypatch.setattr(loop, "CPU_CHUNK", 4)
    monkeypatch.setattr(execution, "fit", looked)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=look))
    monkeypatch.setattr(RunFolder, "save_checkpoint", save)
    finish(
        make_run(SourceOnly(), pretrain=0, rounds=5, round_steps=8),
        task,
        tmp_path,
        checkpoint_every=every,
    )
    assert len(made) == saves


def test_a_curve_scores_every_round_in_the_trace(task: Task, make_run: Any, tmp_path: Path) -> None:
    folder = finish(make_run(COAL()), task, tmp_path, curve=True)
    assert [set(entry["oracle"]) for entry in folder.trace()] == [{"whole", "paper"}] * 3
    assert folder.trace()[-1]["oracle"]["whole"] == folder.scores()["whole"]["per_class_mean"]


# --- the key ---


def changed_runs(run: Run) -> dict[str, Run]:
    """The run with one thing changed, for every field that there is."""
    new: dict[str, Any] = {
        "task": "toy2",
        "shift": "rs-ut",
        "draw": 1,
        "origin": "elsewhere",
        "batch": 13,
        "sampler": "natural",
        "target_sampler": "balanced",
        "precision": "bf16",
        "seed": 1,
        "threads": 2,
        "views": Views(views="rows"),
        "soft_labels": "of others",
        "recipe": "today",
        "overrides": (("rounds", 3),),
    }
    nets: dict[str, Any] = {
        "layers": "bare",
        "head": "linear",
        "temperature": 0.1,
        "norm": "split",
        "last_dropout": False,
    }
    embeddings: dict[str, Any] = {
        "backbone": "resnet50",
        "weights": "hub",
        "weights_hash": "f00",
        "crop": 192,
        "pooling": "gem",
        "corners": True,
        "statistics": "both",
    }
    stages: dict[str, Any] = {
        "method": COAL(alpha=0.2),
        "rounds": 4,
        "round_steps": 11,
        "restart": True,
    }
    optims: dict[str, Any] = {
        "optimiser": "adam",
        "lr": 0.2,
        "features_lr": 0.2,
        "momentum": 0.5,
        "nesterov": True,
        "weight_decay": 0.1,
        "schedule": "cosine",
    }
    of_run = {"net", "plan", "target_floor"}
    for cls, values, rest in (
        (Run, new, of_run),
        (NetworkSpec, nets, {"embedding"}),
        (Embedding, embeddings, set()),
        (Stage, stages, {"optim"}),
    ):
        assert {f.name for f in dataclasses.fields(cls)} == values.keys() | rest, (
            "a new field belongs in this test"
        )
    assert {f.name for f in dataclasses.fields(Optim)} == optims.keys(), (
        "a new field belongs in this test"
    )

    def with_stage(number: int, **values: Any) -> Run:
        plan = list(run.plan)
        plan[number] = dataclasses.replace(plan[number], **values)
        return dataclasses.replace(run, plan=tuple(plan))

    runs = {name: dataclasses.replace(run, **{name: value}) for name, value in new.items()}
    runs |= {
        f"net.{n}": dataclasses.replace(run, net=dataclasses.replace(run.net, **{n: v}))
        for n, v in nets.items()
    }
    below = Embedding(backbone="resnet18")
    on_backbone = dataclasses.replace(run.net, embedding=below)
    runs["embedding"] = dataclasses.replace(run, net=on_backbone)
    for n, v in embeddings.items():
        net = dataclasses.replace(on_backbone, embedding=dataclasses.replace(below, **{n: v}))
        runs[f"embedding.{n}"] = dataclasses.replace(run, net=net)
    for i in range(len(run.plan)):
        runs |= {f"{i}.{n}": with_stage(i, **{n: v}) for n, v in stages.items()}
        for n, v in optims.items():
            runs[f"{i}.optim.{n}"] = with_stage(
                i, optim=dataclasses.replace(run.plan[i].optim, **{n: v})
            )
    runs["plan"] = dataclasses.replace(run, plan=run.plan[1:])
    return runs


def test_a_floor_of_the_target_sampler_changes_the_key_where_it_is_used_alone(
    make_run: Any,
) -> None:
    for sampler, differs in (("balanced", False), ("even", True)):
        run = make_run(COAL(), target_sampler=sampler)
        assert (dataclasses.replace(run, target_floor=0.1).key != run.key) == differs


def test_every_field_that_can_change_numbers_changes_the_key(make_run: Any) -> None:
    run = make_run(COAL())
    runs = changed_runs(run)
    keys = [run.key, *(other.key for other in runs.values())]
    assert len(set(keys)) == len(keys)
    assert make_run(COAL()).key == run.key


@pytest.mark.parametrize("field", dataclasses.fields(COAL), ids=lambda f: f.name)
def test_every_hyper_parameter_changes_the_key(make_run: Any, field: Any) -> None:
    other = {bool: lambda v: not v, float: lambda v: v / 2, str: lambda v: "two"}[
        type(field.default)
    ](field.default)
    assert make_run(COAL(**{field.name: other})).key != make_run(COAL()).key


def test_a_method_s_revision_changes_the_key(
    make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_run(COAL()).key
    monkeypatch.setattr(COAL, "revision", "another")
    assert make_run(COAL()).key != before


def test_what_has_no_effect_does_not_split_equal_runs(make_run: Any) -> None:
    def with_net(**values: Any) -> str:
        run: Run = make_run(COAL(), head=values.pop("head", "linear"))
        return dataclasses.replace(run, net=dataclasses.replace(run.net, **values)).key

    assert with_net(temperature=0.1) == with_net()
    assert with_net(temperature=0.1, head="cosine") != with_net(head="cosine")
    # a file is named by what it holds, not by where it lies
    one, two = (
        Embedding(backbone="resnet18", weights=file, weights_hash="f00")
        for file in ("here/a", "there/b")
    )
    assert with_net(embedding=one) == with_net(embedding=two)
    assert parse_network("mlp", crop=192) == parse_network("mlp"), "it does not crop"


# --- what goes wrong ---


def test_a_loss_that_turns_nan_keeps_the_last_good_checkpoint(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(Broken(), rounds=4, pretrain=0)
    for _ in range(2):  # also when it is tried again
        with pytest.raises(UserError) as caught:
            finish(run, task, tmp_path)
        assert caught.value.sentence == (
            "toy broken seed 0: the loss 'label' is not finite after step 30; "
            f"the last good checkpoint is kept in {tmp_path / run.key}."
        )
        assert "-t lr" in caught.value.hint
        tensors, meta = read_tensors(tmp_path / run.key / "last.safetensors")
        assert meta["step"] == "20"
        assert all(torch.isfinite(value).all() for value in tensors.values())
        assert not RunFolder(tmp_path / run.key).done


def test_a_full_disk_ends_in_a_sentence_and_the_run_resumes_when_there_is_room(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(COAL(), rounds=2)
    reference, full = tmp_path / "reference", tmp_path / "full"
    assert child(run, task, reference, undisturbed) == 0
    weights = (reference / run.key / "weights.safetensors").stat().st_size
    # no room for the weights; then for the weights of the pre-training, but not for the method's
    # larger checkpoint
    for limit in (weights // 2, weights + 20_000):
        assert child(run, task, full, small_files, limit) == 2
        assert "There is no room left on the disk for " in (full / "error.txt").read_text()
        assert leftovers(full) == []
        assert set(results(full)) <= set(results(reference))
        for path in full.glob("*/*.safetensors"):
            read_tensors(path)
    assert child(run, task, full, undisturbed) == 0
    assert results(full) == results(reference)


def test_a_folder_that_refuses_writing_is_named(
    task: Task, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / make_run(pretrain=0).key).write_text("a file in the way")
    with pytest.raises(UserError, match="Cannot write"):
        finish(make_run(pretrain=0), task, tmp_path)


def test_run_json_says_what_made_the_run(task: Task, make_run: Any, tmp_path: Path) -> None:
    run = make_run(COAL())
    record = json.loads((finish(run, task, tmp_path).path / "run.json").read_text())
    assert record["key"] == run.key
    assert record["run"] == json.loads(json.dumps(run.describe()))
    assert record["versions"]["torch"] == torch.__version__
    assert record["images"] == {"source": 120, "source_val": 30, "target": 90}
