"""Progress bars on stderr, or in a notebook; none where it is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from askew.cli.terminal import err, print_note
from askew.core.text import visible

if TYPE_CHECKING:
    from askew.runs.execute import Progress as Step
    from askew.runs.launch.jobs import Event, Failed

Returned = TypeVar("Returned")


class Speed(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


class Count(MofNCompleteColumn):
    """Steps done and in all; nothing where nobody knows how many there are."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


def _bars(*columns: ProgressColumn) -> Progress:
    return Progress(
        *columns, console=err, disable=not (err.is_terminal or err.is_jupyter), transient=True
    )


def _training_bars() -> Progress:
    return _bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        Count(),
        Speed(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[losses]}"),
    )


class RunBars:
    """One bar per run, by the run's key."""

    def __init__(self, bars: Progress, indent: str = "") -> None:
        self.bars, self.indent = bars, indent
        self.ids: dict[str, TaskID] = {}

    def show(self, step: Step) -> None:
        label = self.indent + visible(step.label, keep="")
        if step.key not in self.ids:
            self.ids[step.key] = self.bars.add_task(label, total=step.steps, losses="")
        losses = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
        self.bars.update(self.ids[step.key], completed=step.step, description=label, losses=losses)

    def finish_others(self, key: str) -> None:
        """Fill the bars of all stages but one: they have ended, also where steps were left out."""
        for other, id in self.ids.items():
            if other != key:
                self.bars.update(id, completed=self._total(id))

    def _total(self, id: TaskID) -> float:
        return next(task.total or 0 for task in self.bars.tasks if task.id == id)

    def remove(self, key: str) -> None:
        """Remove the bar of a run that has ended, and the full bars of what was trained before
        it."""
        full = {task.id for task in self.bars.tasks if task.finished}
        for ended in [k for k, id in self.ids.items() if k == key or id in full]:
            self.bars.remove_task(self.ids.pop(ended))


def watch(training: Generator[Step, None, Returned]) -> Returned:
    """Progress bars for training from Python, in a terminal or a notebook.

    It takes the steps of a training one by one, and gives what the training returns. Above the bars
    stands how long all of it will take from now on, if the steps know.

    >>> result = askew.adapt((xs, ys), xt, methods="coal", training=short, watch=askew.watch)
    """
    if not (err.is_terminal or err.is_jupyter):
        return _watch_in_lines(training)
    with _training_bars() as bars:
        runs, overall = RunBars(bars), None
        while True:
            try:
                step = next(training)
                if step.left is not None:
                    overall = (
                        bars.add_task("", total=None, losses="") if overall is None else overall
                    )
                    bars.update(overall, description=f"about {_in_words(step.left)} left")
                runs.finish_others(step.key)
                runs.show(step)
            except StopIteration as end:
                runs.finish_others("")
                returned: Returned = end.value
                return returned


def _watch_in_lines(training: Generator[Step, None, Returned]) -> Returned:
    """One line for each stage as it ends, where stderr is a file or a pipe."""
    now: Step | None = None
    began = time.monotonic()
    while True:
        try:
            step = next(training)
        except StopIteration as end:
            _note_stage(now, began)
            returned: Returned = end.value
            return returned
        if now is None or step.key != now.key:
            _note_stage(now, began)
            began = time.monotonic()
        now = step


def _note_stage(stage: Step | None, began: float) -> None:
    if stage is not None:
        print_note(f"{stage.label}: done in {time.monotonic() - began:.1f} s")


def _in_words(seconds: float) -> str:
    """A rough duration."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def waiting(what: str) -> AbstractContextManager[object]:
    """Meanwhile a spinner, where there is a terminal: importing torch alone takes seconds."""
    return err.status(what) if err.is_terminal else nullcontext()


def show_training(events: Iterator[Event], runs: int, what: str) -> Iterator[Failed]:
    """Show a training of so many runs as progress bars, one for all of them and one per run; yields
    each run that fails."""
    from askew.runs.execute import Progress as Step
    from askew.runs.launch.jobs import Failed, Finished

    with _training_bars() as bars:
        overall = bars.add_task(what, total=runs, losses="")
        shown = RunBars(bars, indent="  ")
        for event in events:
            if isinstance(event, Step):
                shown.show(event)
            elif isinstance(event, Finished | Failed):
                shown.remove(event.key)
                bars.advance(overall)
            if isinstance(event, Failed):
                yield event


@contextmanager
def count_images() -> Iterator[Callable[[int], None]]:
    """A running count of images, of which nobody knows the total; call it with the number of new
    ones."""
    with _bars(
        SpinnerColumn(), TextColumn("{task.completed} images"), Speed(), TimeElapsedColumn()
    ) as bars:
        images = bars.add_task("predict", total=None)
        yield lambda new: bars.advance(images, new)


@contextmanager
def downloads() -> Iterator[Callable[[str], Callable[[int, int | None], None]]]:
    """Bars of downloads: called with a file's name, it gives a function to call with bytes so far
    and in all."""
    with _bars(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    ) as bars:

        def start(name: str) -> Callable[[int, int | None], None]:
            file = bars.add_task(name, total=None)
            return lambda so_far, size: bars.update(file, completed=so_far, total=size)

        yield start
