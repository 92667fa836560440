"""Tasks: the training data hold no target label, no image has two roles, and the numbers stay what
they are."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.core.errors import EmptyClassWarning, UserError
from askew.data.benchmarks import load_task
from askew.data.domains import Labeled, Unlabeled
from askew.data.label_shift import long_tail
from askew.data.task import (
    Pool,
    Shift,
    Task,
    TestLabels,
    TrainingData,
    draw_source,
    make_task,
    make_unlabeled_task,
)
from askew.training.batches import Feed
from askew.training.trainer import fit

steady = settings(derandomize=True, deadline=None, max_examples=60, database=None)
MINI = ("mini/syn-uci", "mini/uci-syn")
CLASSES = tuple("abc")
TAIL = long_tail(3, 1, 1, 3)
pools = st.lists(st.integers(3, 60), min_size=3, max_size=3)
roomy = st.lists(st.integers(15, 60), min_size=3, max_size=3)  # enough for an image of every class


def numbered(sizes: list[int], start: int = 0) -> Labeled:
    """Rows that are their own number, so that a row is recognised wherever it went."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    return Labeled(np.arange(start, start + len(y), dtype=np.float32).reshape(-1, 1), y)


def drawn(
    source: list[int], target: list[int], test: list[int], shift: str = "rs-ut", draw: int = 0
) -> Task:
    pool = Pool.of(numbered(source), 3), Pool.of(numbered(target, 1_000), 3)
    return make_task(
        "own/task", CLASSES, TAIL, Shift.parse(shift), draw, *pool, numbered(test, 2_000)
    )


def images(rows: Labeled | Unlabeled) -> set[bytes]:
    return {x.tobytes() for x in rows.x}


def arrays(value: Any, name: str = "") -> dict[str, np.ndarray]:
    """Every array or tensor that can be reached from a value, by its path."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {name: value}
    if isinstance(value, dict):
        inner = value
    elif isinstance(value, list | tuple):
        inner = dict(enumerate(value))
    else:
        inner = getattr(value, "__dict__", {})
    return {
        k: v
        for part, item in inner.items()
        for k, v in arrays(item, f"{name}.{part}".strip(".")).items()
    }


# No target label


@pytest.mark.parametrize("name", MINI)
def test_training_data_have_labels_of_the_source_alone(name: str) -> None:
    training_data = load_task(name).training_data
    assert training_data.origin, "computed, so that what is remembered of it is walked too"
    labels = {path for path, array in arrays(training_data).items() if array.ndim == 1}
    assert labels == {"source.y", "source_val.y"}
    assert set(arrays(training_data)) - labels == {
        "source.x",
        "source_val.x",
        "target.x",
        "test_images.x",
    }
    kinds = typing.get_type_hints(TrainingData)
    assert kinds["target"] is kinds["test_images"] is Unlabeled
    assert [field.name for field in dataclasses.fields(Unlabeled)] == ["x"]


@pytest.mark.parametrize("name", MINI)
def test_no_row_of_numbers_in_training_data_or_their_feed_is_as_long_as_the_target(
    name: str,
) -> None:
    task = load_task(name)
    forbidden = {len(task.training_data.target), len(task.test.y)}
    assert not forbidden & {len(task.training_data.source), len(task.training_data.source_val)}, (
        "lengths tell the domains apart"
    )
    for holder in (task.training_data, Feed(task.training_data, torch.device("cpu"))):
        rows = {path: array for path, array in arrays(holder).items() if array.ndim == 1}
        assert rows, "the walk sees the source labels"
        assert not [path for path, array in rows.items() if len(array) in forbidden]


def test_the_walk_would_find_a_label_that_leaks() -> None:
    task = load_task(MINI[0])
    object.__setattr__(task.training_data.target, "y", task.test.y)
    try:
        assert "target.y" in arrays(task.training_data)
    finally:
        object.__delattr__(task.training_data.target, "y")


def test_fit_takes_neither_a_task_nor_test_labels() -> None:
    taken = {
        kind
        for hint in typing.get_type_hints(fit).values()
        for kind in (hint, *typing.get_args(hint))
    }
    assert TrainingData in taken
    assert not {Task, TestLabels} & taken


# Roles


@pytest.mark.parametrize("name", MINI)
@pytest.mark.parametrize("shift", ["rs-ut", "bs-bt"])
def test_no_image_of_the_mini_benchmark_has_two_roles(name: str, shift: str) -> None:
    training_data = load_task(name, shift).training_data
    assert not images(training_data.source) & images(training_data.source_val)
    assert not images(training_data.target) & images(training_data.test_images)


@steady
@given(
    pools,
    pools,
    st.sampled_from(("rs-ut", "bs-bt", "degree:0.5", "natural", "dirichlet:1")),
    st.integers(0, 99),
)
def test_source_and_validation_share_no_image_of_their_pool(
    n: list[int], spare: list[int], shift: str, draw: int
) -> None:
    pool = Pool.of(numbered(n), 3, spare=numbered(spare, 1_000))
    for chosen in (pool, dataclasses.replace(pool, spare=None)):
        counts = Shift.parse(shift).source_counts(pool.sizes, TAIL)
        source, held, notes = draw_source(chosen, counts, draw)
        assert not images(source) & images(held)
        assert len(images(source)) == len(source)
        assert source.x.max() < 1_000, "a spare image is never trained on"
        assert (held.sizes(3) >= (counts > 1)).all(), "validation has every class"
        assert (source.sizes(3) <= counts).all()
        assert (source.sizes(3) < counts).any() == bool(notes), (
            "what validation took from the draw is noted"
        )


@steady
@given(roomy, roomy, roomy, st.sampled_from(("rs-ut", "bs-bt", "degree:0.3")), st.integers(0, 99))
def test_a_task_has_the_counts_of_its_shift(
    source: list[int], target: list[int], test: list[int], shift: str, draw: int
) -> None:
    task = drawn(source, target, test, shift, draw)
    rule = Shift.parse(shift)
    adapted = task.training_data.target.x[:, 0].astype(int) - 1_000
    mix = np.bincount(numbered(target).y[adapted], minlength=3)
    assert mix.tolist() == rule.target_counts(np.array(target), TAIL, draw).tolist()
    assert task.test.paper is not None
    mix = np.bincount(task.test.y[task.test.paper], minlength=3)
    assert mix.tolist() == rule.target_counts(np.array(test), TAIL, draw).tolist()
    assert len(task.test.y) == len(task.training_data.test_images) == sum(test)


def test_validation_takes_a_tenth_of_a_class_that_was_drawn_whole_and_says_so() -> None:
    source, held, notes = draw_source(Pool.of(numbered([40, 60, 30]), 3), np.array([10, 20, 30]), 0)
    assert source.sizes(3).tolist() == [10, 20, 27]
    assert held.sizes(3).tolist() == [1, 2, 3]
    assert notes == (
        "validation holds 3 images of the source draw: nothing else is left of 1 of the 3 classes",
    )


@pytest.mark.parametrize(
    ("images", "held_out"),
    [(1, 0), (2, 0), (4, 0), (5, 1), (9, 1), (10, 1), (11, 2), (15, 2), (70, 7), (79, 8)],
)
def test_of_ones_own_data_a_tenth_of_each_class_rounded_up_is_held_out_unless_few(
    images: int, held_out: int
) -> None:
    y = np.repeat([0, 1], [20, images])
    source = Labeled(np.zeros((len(y), 4), dtype=np.float32), y)
    data = make_unlabeled_task(
        "own/embeddings", source, Unlabeled(source.x), ("a", "b")
    ).training_data
    assert data.source_val.sizes(2).tolist() == [2, held_out]
    assert data.source.sizes(2).tolist() == [18, images - held_out]


def test_where_every_class_is_small_one_image_of_each_is_held_out() -> None:
    source = Labeled(np.zeros((8, 4), dtype=np.float32), np.array([0, 0, 0, 0, 1, 1, 1, 2]))
    data = make_unlabeled_task(
        "own/embeddings", source, Unlabeled(source.x), ("a", "b", "c")
    ).training_data
    assert data.source_val.sizes(3).tolist() == [1, 1, 0]


def test_spare_images_spare_the_draw() -> None:
    pool = Pool.of(numbered([40, 60, 30]), 3, spare=numbered([0, 0, 9], 1_000))
    source, held, notes = draw_source(pool, np.array([10, 20, 30]), 0)
    assert source.sizes(3).tolist() == [10, 20, 30]
    assert held.sizes(3).tolist() == [3, 6, 9]
    assert notes == ()


def test_the_notes_of_a_draw_are_those_of_its_task() -> None:
    assert load_task("mini/syn-uci").notes == ()
    assert load_task("mini/uci-syn").notes == (
        "validation holds 18 images of the source draw: nothing else is left of 1 of the 10 "
        "classes",
    )


# Numbers


@pytest.mark.usefixtures("all_test_images")
def test_the_counts_of_the_mini_tasks_are_stable() -> None:
    ut = [0.449, 0.2, 0.112, 0.072, 0.05, 0.037, 0.028, 0.022, 0.018, 0.015]
    syn_uci, uci_syn = (load_task(name) for name in MINI)
    assert syn_uci.training_data.source.sizes(10).tolist() == [
        33,
        39,
        49,
        62,
        81,
        111,
        159,
        249,
        444,
        999,
    ]
    assert syn_uci.training_data.source_val.sizes(10).tolist() == [
        3,
        3,
        4,
        6,
        8,
        11,
        16,
        25,
        44,
        100,
    ]
    assert (len(syn_uci.training_data.target), len(syn_uci.test.y)) == (193, 901)
    assert uci_syn.training_data.source.sizes(10).tolist() == [5, 7, 8, 11, 14, 19, 28, 44, 79, 159]
    assert uci_syn.training_data.source_val.sizes(10).tolist() == [1, 1, 1, 1, 1, 2, 3, 5, 9, 21]
    assert (len(uci_syn.training_data.target), len(uci_syn.test.y)) == (2226, 1000)
    for task in (syn_uci, uci_syn):
        assert task.test.paper is not None
        mix = np.bincount(task.test.y[task.test.paper], minlength=10)
        np.testing.assert_allclose(mix / mix.sum(), ut, atol=0.01)
        assert (
            task.training_data.source.x.shape[1:]
            == task.training_data.target.x.shape[1:]
            == (3, 32, 32)
        )


def test_degree_0_is_bs_bt_and_degree_1_is_rs_ut() -> None:
    sizes = (
        [200, 300, 250],
        [500, 400, 450],
        [120, 90, 100],
    )  # where a hundredth of a degree would tell
    for degree, shift in (("degree:0", "bs-bt"), ("degree:1", "rs-ut")):
        one, other = drawn(*sizes, degree), drawn(*sizes, shift)
        assert one.training_data.origin == other.training_data.origin
        assert one.test.paper is not None
        assert one.test.paper.tolist() == other.test.paper.tolist()  # type: ignore[union-attr]
    assert (
        drawn(*sizes, "bs-bt").training_data.origin != drawn(*sizes, "rs-ut").training_data.origin
    )


def test_a_natural_task_keeps_all_it_has_and_has_one_test_split() -> None:
    task = drawn([20, 30, 25], [50, 40, 45], [12, 9, 10], "natural")
    assert len(task.training_data.source) + len(task.training_data.source_val) == 75
    assert len(task.training_data.target) == 135
    assert task.test.paper is None


def test_a_dirichlet_shift_leaves_the_source_as_it_is() -> None:
    sizes = [20, 30, 25], [500, 400, 450], [12, 9, 10]
    natural, shifted = (
        drawn(*sizes, shift).training_data for shift in ("natural", "dirichlet:0.5")
    )
    assert images(natural.source) == images(shifted.source)
    assert len(shifted.target) < len(natural.target)


def test_another_draw_takes_other_images_and_the_same_draw_the_same() -> None:
    sizes = [20, 30, 25], [50, 40, 45], [12, 9, 10]
    assert drawn(*sizes).training_data.origin == drawn(*sizes).training_data.origin
    assert drawn(*sizes).training_data.origin != drawn(*sizes, draw=1).training_data.origin


def test_the_origin_tells_every_image_label_and_class_name() -> None:
    x, y = np.zeros((6, 2), dtype=np.float32), np.array([0, 1, 2, 0, 1, 2])
    other_x, other_y = x.copy(), y.copy()
    other_x[5, 1] = 1
    other_y[[0, 1]] = 1, 0
    plain = TrainingData(
        source=Labeled(x, y),
        source_val=Labeled(x, y),
        target=Unlabeled(x),
        test_images=Unlabeled(x),
        classes=CLASSES,
    )
    changes: list[dict[str, Any]] = [
        {"source": Labeled(other_x, y)},
        {"source": Labeled(x, other_y)},
        {"source_val": Labeled(x, other_y)},
        {"target": Unlabeled(other_x)},
        {"target": Unlabeled(x.reshape(4, 3))},
        {"classes": ("a", "b", "d")},
    ]
    origins = {plain.origin, *(dataclasses.replace(plain, **change).origin for change in changes)}
    assert len(origins) == 7


# Shifts as text


@pytest.mark.parametrize(
    "text", ["rs-ut", "bs-bt", "natural", "degree:0", "degree:0.25", "degree:1", "dirichlet:0.5"]
)
def test_a_shift_reads_as_it_is_written(text: str) -> None:
    assert str(Shift.parse(text)) == text
    assert Shift.parse(text.upper()) == Shift.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "rsut",
            "rs-ut:1",
            "degree",
            "degree:",
            "degree:x",
            "degree:1.1",
            "degree:-0.1",
            "degree:nan",
        ),
        *("dirichlet", "dirichlet:0", "dirichlet:-1", "dirichlet:nan"),
    ],
)
def test_a_shift_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="There is no label shift") as caught:
        Shift.parse(text)
    assert f"'{text}'" in caught.value.sentence
    assert "degree:D" in caught.value.hint


# Mistakes


def test_a_class_without_source_images_is_warned_of_by_name() -> None:
    x = Unlabeled(np.zeros((2, 1), dtype=np.float32))
    with pytest.warns(
        EmptyClassWarning, match=r"The source has no image of class b, c\."
    ) as caught:
        TrainingData(
            source=Labeled(x.x, np.array([0, 0])),
            source_val=Labeled(x.x, np.array([0, 0])),
            target=x,
            test_images=x,
            classes=CLASSES,
        )
    assert caught[0].filename == __file__
    with pytest.warns(EmptyClassWarning, match=r"of class b, c, d, e, f, …\.$"):
        TrainingData(
            source=Labeled(x.x, np.array([0, 0])),
            source_val=Labeled(x.x, np.array([0, 0])),
            target=x,
            test_images=x,
            classes=tuple("abcdefgh"),
        )


@pytest.mark.parametrize("part", ["target", "test_images"])
def test_a_target_or_exam_without_images_is_refused(part: str) -> None:
    rows, none = (Unlabeled(np.zeros((n, 1), dtype=np.float32)) for n in (3, 0))
    parts = {"target": rows, "test_images": rows} | {part: none}
    with pytest.raises(UserError, match=f"The {part.replace('_', ' ')} of this task is empty"):
        TrainingData(
            source=numbered([1, 1, 1]), source_val=numbered([1, 1, 1]), **parts, classes=CLASSES
        )


def test_a_source_without_images_is_refused() -> None:
    rows = Unlabeled(np.zeros((3, 1), dtype=np.float32))
    with (
        pytest.warns(EmptyClassWarning),
        pytest.raises(UserError, match="The source of this task is empty"),
    ):
        TrainingData(
            source=numbered([0, 0, 0]),
            source_val=numbered([1, 1, 1]),
            target=rows,
            test_images=rows,
            classes=CLASSES,
        )


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: Unlabeled(np.zeros((3, 2))), "found float64 (3, 2)"),
        (lambda: Unlabeled(np.zeros((3, 28, 28), dtype=np.uint8)), "found uint8 (3, 28, 28)"),
        (
            lambda: Unlabeled(np.array([[1, np.nan], [0, 0]], dtype=np.float32)),
            "1 of the 2 rows hold NaN",
        ),
        (
            lambda: Labeled(np.zeros((3, 2), dtype=np.float32), np.zeros(2, dtype=np.int64)),
            "Expected 3 labels",
        ),
        (lambda: load_task("mini/syn-uc"), "There is no task 'mini/syn-uc'"),
        (lambda: load_task("syn-uci"), "There is no task 'syn-uci'"),
        (lambda: load_task("mini/syn-uci", draw=-1), "The draw must be 0 or more, found -1"),
        (lambda: load_task("mini/syn-uci", "rs"), "There is no label shift 'rs'"),
        (lambda: load_task("digits/usps-mnist", data=Path("no/such/folder")), "does not exist"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(mistake: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        mistake()
    assert sentence in caught.value.sentence
    assert caught.value.hint


def test_a_misspelt_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean 'mini/syn-uci'\?"):
        load_task("syn-uci")


def test_a_task_that_needs_real_images_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    with pytest.raises(UserError, match="needs real images"):
        load_task("digits/usps-mnist")
