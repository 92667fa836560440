"""A task: training data, which hold no target label, and the test labels, which only scoring
receives."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import EmptyClassWarning, UserError
from askew.data import label_shift
from askew.data.domains import Labeled, Labels, Unlabeled

Sampler = Literal["natural", "balanced"]
"""Batches as the images come, or with the same number of each class."""
TargetSampler = Literal["natural", "balanced", "even"]
"""Likewise of the target by pseudo-label; `even` draws with replacement, every pseudo-class equally
often in expectation, unless it is smaller than a floor."""
TARGET_FLOOR = 0.002
"""Share of the target that a pseudo-class is taken to have at least, where it is drawn evenly."""

Counts = NDArray[np.int64]

MOST_IMAGES = 10**9
"""Of a target with few images, and of classes: no data set has as many."""
LEAST_DIRICHLET = 1e-6
"""Least strength of a Dirichlet draw, and the inverse of the largest: one class holds all from
there on, or all are equal, to the last image."""


@dataclass(frozen=True, kw_only=True)
class Info:
    """What `askew tasks` shows of a task."""

    source: str
    target: str
    network: str
    role: Literal["reported", "development"] = "reported"
    notes: tuple[str, ...] = ()
    draws_differ: bool = False
    """Whether draws other than 0, which tables report, are meant for development: they have other
    test images."""
    shift: str = "rs-ut"
    """The label shift that the task was published with."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingData:
    """Everything that training and model selection may use. It holds no target label.

    >>> data = askew.load_task("mini/syn-uci").training_data
    >>> len(data.classes), hasattr(data.target, "y")
    (10, False)
    """

    source: Labeled
    source_val: Labeled
    target: Unlabeled
    test_images: Unlabeled
    classes: tuple[str, ...]
    soft_labels: NDArray[np.float32] | None = None
    """Probabilities that other networks give the target's images, for a method that starts from
    them. (n_t, c)"""

    def __post_init__(self) -> None:
        empty = [
            name
            for name, n in zip(self.classes, self.source.sizes(len(self.classes)), strict=True)
            if n == 0
        ]
        if names := ", ".join(empty[:5]) + (", …" if len(empty) > 5 else ""):
            warnings.warn(
                f"The source has no image of class {names}.", EmptyClassWarning, stacklevel=3
            )
        for name in ("source", "target", "test_images"):
            if len(getattr(self, name)) == 0:
                raise UserError(
                    f"The {name.replace('_', ' ')} of this task is empty.",
                    "it needs at least one image.",
                )

    @cached_property
    def origin(self) -> str:
        """A hash of all images and labels."""
        views: list[Labeled | Unlabeled] = [
            self.source,
            self.source_val,
            self.target,
            self.test_images,
        ]
        names = [*(view.fingerprint() for view in views), *self.classes]
        return hashlib.sha256(",".join(names).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class TestLabels:
    """The labels of the test images, in their order; only scoring receives them.

    >>> askew.load_task("mini/syn-uci").test_labels.y.shape
    (901,)
    """

    __test__ = False  # pytest takes a class named Test… for tests

    y: Labels
    paper: NDArray[np.int64] | None
    """The rows of the paper's test split (the unbalanced one); None if it is all of them."""
    classes: tuple[str, ...]
    target_sizes: Counts | None = None
    """How many images of each class the unlabelled target has; for reports only."""


@dataclass(frozen=True, eq=False)
class Task:
    """Training data, and test labels, which custom data do not have. `fit` takes the training data
    alone.

    >>> askew.load_task("mini/syn-uci").name
    'mini/syn-uci'
    """

    name: str
    training_data: TrainingData
    test: TestLabels | None
    notes: tuple[str, ...] = ()

    @property
    def test_labels(self) -> TestLabels:
        """The test labels; UserError if there are none."""
        if self.test is None:
            raise UserError(
                f"The task {self.name} has no test labels.",
                "custom data are scored by `askew audit`.",
            )
        return self.test

    @cached_property
    def origin(self) -> str:
        """A hash of all images and labels, part of a run's identity: on other data it is another
        run."""
        if self.test is None:
            return self.training_data.origin
        digest = hashlib.sha256(self.training_data.origin.encode() + self.test.y.tobytes())
        if self.test.paper is not None:
            digest.update(self.test.paper.tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Shift:
    """A kind of label shift: rs-ut, bs-bt, a degree between them, natural, or a Dirichlet draw;
    rs-ut turned round (ut-rs), with a target that lacks its last classes (absent:K), or with few
    target images (few:N)."""

    kind: str = "rs-ut"
    amount: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Shift:
        kind, _, amount = text.lower().partition(":")
        try:
            if kind in ("rs-ut", "bs-bt", "natural", "ut-rs") and not amount:
                return cls(kind)
            if kind in ("absent", "few") and 0 < int(amount) <= MOST_IMAGES:
                return cls(kind, int(amount))
            if kind == "degree" and 0 <= float(amount) <= 1:
                return cls(kind, float(amount))
            if kind == "dirichlet" and LEAST_DIRICHLET <= float(amount) <= 1 / LEAST_DIRICHLET:
                return cls(kind, float(amount))
        except ValueError:
            pass
        raise UserError(
            f"There is no label shift '{text}'.",
            "rs-ut, ut-rs, bs-bt, natural, degree:D with D in [0, 1], dirichlet:S with S in "
            "[1e-6, 1e6], "
            "absent:K (the target lacks the last K classes) or few:N (N target images).",
        )

    def __str__(self) -> str:
        numbered = self.kind in ("degree", "dirichlet", "absent", "few")
        return f"{self.kind}:{self.amount!r}".removesuffix(".0") if numbered else self.kind

    def present(self, classes: int) -> NDArray[np.bool_]:
        """Which classes the target has."""
        if self.kind == "absent" and self.amount >= classes:
            raise UserError(
                f"A target cannot lack {self.amount:g} of {classes} classes.",
                "leave it one at least.",
            )
        return np.arange(classes) < (classes - self.amount if self.kind == "absent" else classes)

    def source_counts(self, sizes: Counts, tail: NDArray[np.float64]) -> Counts:
        match self.kind:
            case "rs-ut" | "absent" | "few":
                return label_shift.rs_counts(sizes, tail)
            case "ut-rs":
                return label_shift.ut_counts(sizes, tail)
            case "bs-bt":
                return label_shift.degree_counts(sizes, tail, 0.0, "source")
            case "degree":
                return label_shift.degree_counts(sizes, tail, self.amount, "source")
            case _:
                return sizes

    def target_counts(self, sizes: Counts, tail: NDArray[np.float64], seed: int) -> Counts:
        match self.kind:
            case "rs-ut":
                return label_shift.ut_counts(sizes, tail)
            case "ut-rs":
                return label_shift.rs_counts(sizes, tail)
            case "absent":
                return np.where(self.present(len(sizes)), label_shift.ut_counts(sizes, tail), 0)
            case "few":
                return label_shift.scaled_counts(
                    label_shift.ut_counts(sizes, tail), int(self.amount)
                )
            case "bs-bt":
                return label_shift.degree_counts(sizes, tail, 0.0, "target")
            case "degree":
                return label_shift.degree_counts(sizes, tail, self.amount, "target")
            case "dirichlet":
                return label_shift.dirichlet_counts(sizes, self.amount, seed)
            case _:
                return sizes


@dataclass(frozen=True, eq=False)
class Pool:
    """The images of a domain that are drawn from. `spare` are further ones, for validation only."""

    sizes: Counts
    images: Callable[[Counts], Labeled]
    """Takes how many images of each class are needed: an array returns all it has, a renderer just
    those."""
    spare: Labeled | None = None

    @classmethod
    def of(cls, images: Labeled, classes: int, spare: Labeled | None = None) -> Pool:
        return cls(images.sizes(classes), lambda _: images, spare)


VALIDATION_SHARE = 0.1
"""Share of a source class that is held out, where no images outside the draw are left."""
FEW = 5
"""Images of a class of one's own data from which on some are held out: of three, one is worth more
in training."""


@dataclass(frozen=True, eq=False)
class Listed:
    """Published row indices of the two pools, used instead of a draw."""

    source: Counts
    target: Counts


def draw_source(
    pool: Pool, counts: Counts, seed: int, listed: Counts | None = None
) -> tuple[Labeled, Labeled, tuple[str, ...]]:
    """The source and, outside it and in its proportions, images for validation."""
    share = np.ceil(VALIDATION_SHARE * counts).astype(np.int64)
    images = pool.images(counts + share)
    taken = label_shift.draw(images.y, counts, seed) if listed is None else listed
    source = images.take(taken)
    left = images.take(np.setdiff1d(np.arange(len(images)), taken))
    left = left if pool.spare is None else left.followed_by(pool.spare)
    short = np.flatnonzero((left.sizes(len(counts)) < share) & (counts > 1))
    notes: tuple[str, ...] = ()
    if len(
        short
    ):  # every image of these classes was drawn: a tenth of them goes to validation instead
        give = np.zeros_like(counts)
        give[short] = share[short]
        moved = label_shift.draw(source.y, give, seed)
        left = left.followed_by(source.take(moved))
        source = source.take(np.setdiff1d(np.arange(len(source)), moved))
        notes = (
            f"validation holds {len(moved)} images of the source draw: nothing else is left of "
            f"{len(short)} "
            f"of the {len(counts)} classes",
        )
    held = label_shift.hold_out(left.y, np.array([], dtype=np.int64), counts, seed)
    return source, left.take(held), notes


def make_task(  # noqa: PLR0913
    name: str,
    classes: tuple[str, ...],
    tail: NDArray[np.float64],
    shift: Shift,
    draw: int,
    source: Pool,
    target: Pool,
    test: Labeled,
    listed: Listed | None = None,
) -> Task:
    """Draw a task under a label shift: adapt on the target pool, score on all of `test` and on its
    unbalanced part.

    With published rows, `test` has to be the whole target pool: they are both adapted on and the
    paper's test split.
    """
    if listed is None:
        counts = (
            shift.source_counts(source.sizes, tail),
            shift.target_counts(target.sizes, tail, draw),
        )
    else:
        counts = _sizes_of(source, listed.source), _sizes_of(target, listed.target)
    own_source, source_val, notes = draw_source(
        source, counts[0], draw, None if listed is None else listed.source
    )
    pool, paper = target.images(counts[1]), None if listed is None else listed.target
    own_target = pool.take(
        label_shift.draw(pool.y, counts[1], draw) if listed is None else listed.target
    )
    if listed is None and shift.kind != "natural":
        unbalanced = (
            Shift() if shift.kind == "few" else shift
        )  # few images to adapt on, not to test on
        test_counts = unbalanced.target_counts(test.sizes(len(classes)), tail, draw)
        test = (
            test.take(np.flatnonzero(shift.present(len(classes))[test.y]))
            if shift.kind == "absent"
            else test
        )
        paper = label_shift.draw(test.y, test_counts, draw)
    training_data = TrainingData(
        source=own_source,
        source_val=source_val,
        target=own_target.unlabeled(),
        test_images=test.unlabeled(),
        classes=classes,
    )
    return Task(
        name,
        training_data,
        TestLabels(test.y, paper, classes, own_target.sizes(len(classes))),
        notes,
    )


def make_unlabeled_task(
    name: str, source: Labeled, target: Unlabeled, classes: tuple[str, ...], seed: int = 0
) -> Task:
    """A task without test labels: ⌈n / 10⌉ of a source class of n ≥ FEW images are held out, n > 1
    if all are few."""
    sizes = source.sizes(len(classes))
    share = np.ceil(
        VALIDATION_SHARE * sizes * (sizes >= (FEW if sizes.max() >= FEW else 2))
    ).astype(np.int64)
    held = label_shift.draw(source.y, share, seed)
    rest = np.setdiff1d(np.arange(len(source)), held)
    return Task(
        name,
        TrainingData(
            source=source.take(rest),
            source_val=source.take(held),
            target=target,
            test_images=target,
            classes=classes,
        ),
        None,
    )


def _sizes_of(pool: Pool, rows: Counts) -> Counts:
    return pool.images(pool.sizes).take(rows).sizes(len(pool.sizes))
