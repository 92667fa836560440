"""The commands that write, small enough to be disturbed at each step, and what must be true of
their files."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults import Commands, Ended, Fault
from PIL import Image

from askew.core.files import is_temporary

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = ("-t", "pretrain=4", "-t", "rounds=2", "-t", "round=2", "-t", "batch=6")
DOMAINS = (GOLDEN / "source.npz", GOLDEN / "target.npz")
GRID = ("--seeds", "1", "--jobs", "1", "--json", *TINY)

CASES: dict[str, tuple[object, ...]] = {
    "adapt": ("adapt", *DOMAINS, "-o", "out", "--backbone", "bare", "--method", "coal", *TINY),
    "adapt auto": ("adapt", *DOMAINS, "-o", "out", *TINY),
    "adapt model": (
        "adapt",
        "--model",
        GOLDEN / "adaptation",
        GOLDEN / "target.npz",
        "-o",
        "out",
        *TINY[2:],
    ),
    "choose": ("choose", "out", "source"),
    "embed": ("embed", "pictures", "-o", "rows.npz", "--weights", "none"),
    "bench": (
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source,coal",
        "--checkpoint-every",
        "0",
        *GRID,
    ),
    "run": (
        "run",
        "mini/syn-uci",
        "-t",
        "pretrain=0",
        "-t",
        "rounds=1",
        "-t",
        "round=2",
        "-t",
        "batch=6",
    ),
    "tune": ("tune", "mini/syn-uci", "--draw", "1", "--methods", "coal", "--trials", "2", *GRID),
    "predict": ("predict", GOLDEN / "adaptation", GOLDEN / "target.npz", "-o", "predictions.csv"),
    "predict parquet": (
        "predict",
        GOLDEN / "adaptation",
        GOLDEN / "target.npz",
        "-o",
        "predictions.parquet",
    ),
    "export safetensors": ("export", GOLDEN / "adaptation", "-o", "model", "--to", "safetensors"),
    "export onnx": ("export", GOLDEN / "adaptation", "-o", "model.onnx"),
    "audit": ("audit", "out", "--sample", "5"),
    "figure": ("figure", "mix", "--tasks", "mini/syn-uci", "-o", "mix.svg"),
    "report": ("report", "runs"),
}
"""By name: a command line, to be run in a folder that is empty but for what `new_folder` says."""

# They hold how long something took, or differ with where a command was stopped.
_OWN = re.compile(r".*/(done|report\.html|log\.txt|failed\.json|last\.safetensors|claim\.\d+)")


BEFORE = {"adapt auto": "adapt auto", "choose": "adapt", "report": "run"}
"""The case that a command finds ended in its folder; of `auto`, only its runs."""


def new_folder(case: str, folder: Path) -> Path:
    """The folder that a command is started in, with what was there before it."""
    before = folder.parent / "before"
    if before.exists():
        return shutil.copytree(before, folder)
    folder.mkdir(parents=True)
    if case == "audit":
        shutil.copytree(GOLDEN / "adaptation", folder / "out")
    if case == "embed":
        (folder / "pictures").mkdir()
        for i in range(3):
            Image.new("RGB", (40, 40), (80 * i, 99, 0)).save(folder / "pictures" / f"{i}.png")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All that a command has left, as far as it is the same whenever and however often the command
    was started."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    found = {f"/{path.relative_to(folder)}": path for path in files}
    found = {
        name: path for name, path in found.items() if not name.startswith(("/pictures/", "/cache/"))
    }
    return {
        name: b"" if _OWN.fullmatch(name) else _without_times(path)
        for name, path in sorted(found.items())
    }


def _without_times(path: Path) -> bytes:
    content = path.read_bytes()
    if path.name == "trace.jsonl":
        return re.sub(rb'"seconds": [0-9.]+', b"", content)
    if path.name == "summary.json":
        summary: dict[str, Any] = json.loads(content)
        # The report tells how many seconds it took, so its hash differs too.
        files = {k: v for k, v in summary.get("files", {}).items() if k != "report.html"}
        return json.dumps(summary | {"seconds": 0, "files": files}).encode()
    return content


@dataclass(frozen=True)
class Undisturbed:
    """A command that nothing went wrong with."""

    case: str
    ended: Ended
    before: dict[str, bytes]
    contents: dict[str, bytes]

    @classmethod
    def of(cls, commands: Commands, case: str, folder: Path) -> Undisturbed:
        if case in BEFORE:
            before = folder.parent / "before"
            first = commands.run(
                CASES[BEFORE[case]], new_folder(BEFORE[case], folder.parent / "first")
            )
            assert first.code == 0, first.err
            (folder.parent / "first").rename(before)
        if case == "adapt auto":
            shutil.rmtree(before / "out" / "model")
            for name in (
                "predictions.csv",
                "report.html",
                "summary.json",
                "target.json",
                "log.txt",
            ):
                (before / "out" / name).unlink()
        found = contents(new_folder(case, folder))
        ended = commands.run(CASES[case], folder)
        assert ended.code == 0, ended.err
        if case == "adapt auto":
            summary = json.loads((folder / "out" / "summary.json").read_bytes())
            assert [one["name"] for one in summary["methods"]][-1] == "student"
        return cls(case, ended, found, contents(folder))

    def survives(self, commands: Commands, fault: Fault, folder: Path) -> None:
        """A fault leaves nothing half there, and the same command, started again, ends as if there
        had been none."""
        hit = commands.run(CASES[self.case], new_folder(self.case, folder), fault)
        where = f"{self.case}, {fault}, {hit.steps[fault.at - 1 : fault.at]}: {hit.code}\n{hit.err}"
        assert not hit.crashed, where
        self._check_sound(folder, where)
        if hit.code == 0:
            assert self.contents.items() <= contents(folder).items(), where
            if (
                self.case == "audit"
            ):  # a sheet that is there is never replaced: it may have labels by now
                return
        again = commands.run(CASES[self.case], folder)
        assert again.code == 0, f"{where}\nagain: {again.err}"
        assert again.out == self.ended.out, where
        self.check_same(folder, where)
        shutil.rmtree(folder)

    def check_same(self, folder: Path, where: str) -> None:
        """Every file is that of the undisturbed command, bit for bit, and there is no other."""
        left = contents(folder)
        assert left.keys() == self.contents.keys(), where
        assert left == self.contents, (
            f"{where}\n{[name for name in left if left[name] != self.contents[name]]}"
        )

    def _check_sound(self, folder: Path, where: str) -> None:
        """What has its name is whole, as before or as after: files of a run that is done, a model
        that has its card."""
        found = contents(folder)
        for name, content in found.items():
            if (
                not is_temporary(Path(name))
                and name in self.contents
                and not name.endswith("trace.jsonl")
            ):
                inside = any(is_temporary(Path(part)) for part in name.split("/"))
                whole = inside or content in (self.contents[name], self.before.get(name))
                assert whole, f"{name} is half there: {where}"
        for card in (
            name for name in found if name in self.contents and name.endswith("/model/model.json")
        ):
            state = self.contents if found[card] == self.contents[card] else self.before
            model = card.removesuffix("model.json")
            assert {name for name in state if name.startswith(model)} <= found.keys(), where
