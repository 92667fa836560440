"""A tracker of another package: one line per round in a text file."""

from __future__ import annotations

from askew.core.tracking import RunInfo, Values


class Journal:
    """Lines in `logs/<key>.txt`, beside the runs."""

    def started(self, run: RunInfo) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.file = run.folder / f"{run.key}.txt"
        self._write(f"started {run.label}")

    def round(self, step: int, values: Values) -> None:
        self._write(
            " ".join([f"step {step}", *(f"{name}={value:.4g}" for name, value in values.items())])
        )

    def finished(self, scores: Values, failure: str = "") -> None:
        self._write(failure or "finished")

    def _write(self, line: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
