"""Networks of one adaptation: how a candidate becomes a run, and what a session may not do."""

from __future__ import annotations

from pathlib import Path

import pytest
from adaptations import CPU, LENGTH, Made, finish
from toy_data import wide_task

from askew import UserError
from askew.adaptation.session import SOURCE_ONLY, Candidate, Session, TrainingSet
from askew.runs.recipes import read_settings


@pytest.mark.parametrize(("classes", "batch"), [(7, 32), (16, 32), (31, 62), (345, 128)])
def test_a_candidate_that_compares_classes_has_room_for_them(classes: int, batch: int) -> None:
    mcc = Candidate(name="mcc", method="mcc", images_per_class=2)
    assert mcc.run(TrainingSet(task=wide_task(classes), network="mlp"), 0).batch == batch


def test_a_batch_that_the_user_wants_is_kept() -> None:
    mcc = Candidate(name="mcc", method="mcc", images_per_class=2)
    training_set = TrainingSet(task=wide_task(31), network="mlp", training={"batch": 24})
    assert mcc.run(training_set, 0).batch == 24


def test_rows_are_trained_as_long_as_the_committed_settings_say() -> None:
    settings = read_settings("embeddings")["train"]
    coal = Candidate(name="coal", method="coal")
    plan = coal.run(TrainingSet(task=wide_task(3), network="mlp"), 0).plan
    assert [stage.steps for stage in plan] == [
        settings["pretrain"],
        settings["rounds"] * settings["round"],
    ]


def test_soft_labels_are_part_of_what_a_run_is_known_by(made: Made) -> None:
    student = made.found.networks[-1]
    training_set = TrainingSet(task=made.found.inputs.task, network="mlp", training=LENGTH)
    assert student.candidate.run(training_set, 0).key != student.run.key


def test_the_seed_is_part_of_what_a_run_is_known_by(made: Made) -> None:
    assert made.found.inputs.rows is not None
    keys = {SOURCE_ONLY.run(made.found.inputs.rows, seed).key for seed in (0, 1)}
    assert len(keys) == 2
    assert made.found.networks[0].run.key in keys


def test_a_session_that_only_reads_trains_nothing(made: Made, tmp_path: Path) -> None:
    assert made.found.inputs.rows is not None
    session = Session(tmp_path / "runs", CPU, train_missing=False)
    with pytest.raises(UserError, match="The network of source is not there"):
        finish(session.train([SOURCE_ONLY], made.found.inputs.rows))
    assert not (tmp_path / "runs").exists()


def test_a_session_tells_how_many_trainings_are_missing(made: Made, tmp_path: Path) -> None:
    heard = list[int]()
    assert made.found.inputs.rows is not None
    for folder in (made.out / "runs", tmp_path / "runs"):
        session = Session(folder, CPU, expect=lambda trainings, later: heard.append(trainings))
        work = session.train(
            [SOURCE_ONLY, *[made.found.networks[1].candidate]], made.found.inputs.rows
        )
        next(work, None)
        work.close()
    assert heard[0] == 0
    assert heard[1] >= 2
