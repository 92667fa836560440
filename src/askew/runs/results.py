"""What `askew.run` and `askew.bench` return: finished runs and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from askew.core.tables import data_frame, html_table
from askew.runs.config import RunRequest
from askew.runs.store import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Result:
    """A finished run: its key, its folder, and its scores on the whole test split and on the
    paper's test split.

    >>> result = askew.run("mini/syn-uci", "source", training=short)
    >>> result.folder.name == result.key, sorted(result.scores)
    (True, ['paper', 'whole'])
    """

    key: str
    folder: Path
    scores: dict[str, Any]

    @classmethod
    def read(cls, folder: RunFolder) -> Result:
        """The result in the folder of a finished run."""
        return cls(folder.path.name, folder.path, folder.scores())


@dataclass(frozen=True, eq=False, repr=False)
class BenchResult:
    """The runs of a benchmark: `table` has one row per run, and `failed` says why others are
    missing.

    >>> found = askew.bench("mini", ["source"], ["syn-uci"], seeds=1, training=short)
    >>> found.table[["task", "method", "seed"]].values.tolist()
    [['mini/syn-uci', 'source', 0]]
    """

    runs: Mapping[str, RunRequest]
    """What was asked for, by key."""
    root: Path
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> list[Result]:
        """Of the runs that are finished."""
        keys = (key for key in self.runs if key not in self.failed)
        return [Result.read(RunFolder(self.root / key)) for key in keys]

    @property
    def table(self) -> DataFrame:
        """One row per run: task, method, its hyper-parameters, seed, and the scores on the whole
        test split."""
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for result in self.results:
            asked, whole = self.runs[result.key], result.scores["whole"]
            params = " ".join(f"{name}={value}" for name, value in asked.params.items())
            scores = {name: whole[name] for name in ("per_class_mean", "overall", "worst")}
            what = {
                "task": asked.task,
                "method": asked.method,
                "params": params,
                "seed": asked.seed,
                **scores,
            }
            paper = result.scores.get(
                "paper", whole
            )  # they are one where nothing is drawn, as under natural shift
            rows.append(what | {"paper_split": paper["per_class_mean"], "key": result.key})
        return rows

    def _lines(self) -> list[list[str]]:
        """Per-class means over the seeds, a line for each task and method."""
        groups: dict[tuple[str, ...], list[float]] = {}
        for row in self._rows():
            groups.setdefault((row["task"], row["method"], row["params"]), []).append(
                row["per_class_mean"]
            )
        return [
            [*group, _mean_and_std(values), str(len(values))] for group, values in groups.items()
        ]

    def __repr__(self) -> str:
        lines = ["  ".join(cell for cell in line[:-1] if cell) for line in self._lines()]
        missing = [f"{len(self.failed)} runs failed"] if self.failed else []
        return "\n".join(["<BenchResult: per-class mean accuracy, %", *lines, *missing]) + ">"

    def _repr_html_(self) -> str:
        table = html_table(
            ["task", "method", "hyper-parameters", "per-class mean, %", "seeds"], self._lines()
        )
        return f"{table}<p>{len(self.failed)} runs failed.</p>" if self.failed else table


def _mean_and_std(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")
