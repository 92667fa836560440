"""The command line: what there is, and run, bench and table from the command to what lies on
disk."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from commands import RUN, assert_refused, files
from conftest import TINY, Command
from rich.progress import Progress

from askew import __version__
from askew.cli import app
from askew.cli.common import expand_options
from askew.cli.progress import RunBars
from askew.core.options import options
from askew.methods.base import Method
from askew.runs.config import Training
from askew.runs.execute import Progress as Step
from askew.testing import check_method

MINE = '''\
from dataclasses import dataclass
from typing import Annotated

import askew
from askew.methods.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Mine(askew.methods.Method):
    """Learns from the source, at a weight."""

    id = "mine"
    weight: Annotated[float, askew.methods.Between(0)] = 1.0
    """Weight of the loss."""

    def losses(self, net, batch, state, t):
        fs, _ = askew.methods.join_domains(net, batch)
        return {"label": self.weight * cross_entropy(net["head"](fs), batch.ys)}
'''

# --- what there is ---


def commands(group: Any, name: str = "askew") -> Iterator[tuple[str, Any]]:
    """Every command with its full name."""
    yield name, group
    for child, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{name} {child}")


def test_every_command_and_option_has_a_help_text_in_the_words_of_the_field() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 15
    dialect = re.compile(
        r"\b(class mix|exam|study|wish|a class mix|an image each|one row an|pictures?)\b"
    )
    for name, command in found.items():
        texts = {name: command.help} | {
            f"{name} {p.name}": p.help for p in command.params if p.name != "help"
        }
        assert [what for what, text in texts.items() if not text] == []
        assert [what for what, text in texts.items() if dialect.search(text)] == []


def test_a_dataclass_of_options_becomes_one_option_per_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @dataclass(frozen=True)
    class Shared:
        names: Annotated[list[str], typer.Option("--name", help="Names.")] = field(
            default_factory=list
        )
        size: Annotated[int, typer.Option("--size", help="A size.")] = 3

    def command(
        file: Annotated[str, typer.Argument(help="A file.")], *, shared: Shared, last: bool = False
    ) -> None:
        print(file, shared, last)

    command.__annotations__["shared"] = Shared  # a local class, which its name does not lead to
    small = typer.Typer()
    small.command()(expand_options(command))
    small(["a", "--name", "x", "--name", "y", "--last"], standalone_mode=False)
    small(["b", "--size", "4"], standalone_mode=False)
    assert capsys.readouterr().out.splitlines() == [
        f"a {Shared(['x', 'y'])} True",
        f"b {Shared([], 4)} False",
    ]


def test_a_bar_goes_when_its_run_ends_and_with_it_those_that_are_full() -> None:
    bars = RunBars(Progress(disable=True))
    for key, step in (("pre-training", 10), ("run", 3), ("other", 2)):
        bars.show(Step(key=key, label=key, step=step, steps=10, losses={"label": 0.5}))
    bars.remove("run")
    assert list(bars.ids) == ["other"]
    assert [task.description for task in bars.bars.tasks] == ["other"]


def test_a_bare_command_shows_the_help(cli: Command) -> None:
    answer = cli()
    assert "Usage:" in answer.out
    assert answer.err == ""


def test_the_version_says_what_is_installed(cli: Command) -> None:
    answer = cli("--version")
    assert answer.code == 0
    assert (
        answer.out
        == f"askew {__version__}, torch {version('torch')}, Python {platform.python_version()}\n"
    )


def test_tasks_are_listed(cli: Command) -> None:
    assert "mini/syn-uci" in cli("tasks").out
    listing = {t["task"]: t for t in json.loads(cli("tasks", "--json").out)}
    assert listing["mini/syn-uci"]["network"] == "mini"
    assert listing["digits/usps-uci"]["role"] == "development"


def test_methods_are_listed_in_groups_with_assumption_formula_citation_and_use(
    cli: Command,
) -> None:
    listed = cli("methods").out
    places = [
        listed.index(word)
        for word in ("THE PAPER'S TWELVE", "  coal (", "PUBLISHED BESIDES", "  sentry (", "OUR OWN")
    ]
    assert places == sorted(places)
    assert "                L_H  = E_t −Σ_i h_i(x) log h_i(x)" in listed
    found = {m["method"]: m for m in json.loads(cli("methods", "--json").out)}
    assert found["sentry"]["group"] == "further"
    for id, method in found.items():
        assert all(
            method[entry] or (id, entry) == ("source", "cites")
            for entry in ("assumes", "minimises", "cites")
        )


def test_when_to_use_a_method_is_said_in_the_same_words_everywhere(cli: Command) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    table = dict(
        re.findall(r"^\| `(\w+)` \| (?:paper|further|ours) \| (.*) \|$", page, re.MULTILINE)
    )
    listed = {
        m["method"]: " ".join(m["use_when"].split())
        for m in json.loads(cli("methods", "--json").out)
    }
    assert listed == {id: f"{text.replace('`', '')}." for id, text in table.items()}


def test_the_list_of_methods_ends_with_the_training_settings_that_help_points_to(
    cli: Command,
) -> None:
    assert "`askew methods` lists them" in " ".join(
        cli("run", "--help").out.replace("│", " ").split()
    )
    listed = cli("methods").out
    assert all(re.search(rf"^ {o.name} ", listed, re.MULTILINE) for o in options(Training).values())
    assert options(Training)["rounds"].help in listed


def test_a_method_is_explained(cli: Command) -> None:
    text = cli("methods", "coal").out
    assert "L_H  = E_t −Σ_i h_i(x) log h_i(x)" in text
    assert "pseudo-class" in text
    found = json.loads(cli("methods", "coal", "--json").out)
    assert {o["option"] for o in found["options"]} >= {"alpha", "k0", "k_step", "k_max"}
    assert all(o["help"] for o in found["options"] + found["training"])


def test_an_explanation_is_printed_as_it_is_written(cli: Command) -> None:
    assert "E_s −log h(x)[y]." in cli("methods", "source").out  # [y] is no markup


# --- run, bench, table ---


def test_a_run_prints_its_scores_and_says_where_it_lies(cli: Command, tmp_path: Path) -> None:
    answer = cli("run", "mini/syn-uci", *TINY)
    assert answer.code == 0
    assert "whole test split" in answer.out
    assert "the paper's test split" in answer.out
    (key,) = re.findall(r"^run ([0-9a-f]{16}) in runs/\1$", answer.err, re.MULTILINE)
    assert (tmp_path / "runs" / key / "done").exists()


def test_a_bench_in_a_pipe_shows_no_bars_and_no_escapes(cli: Command) -> None:
    answer = cli(
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source",
        "--seeds",
        2,
        "--jobs",
        1,
        *TINY,
    )
    assert answer.code == 0
    assert answer.err == ""
    assert "\x1b" not in answer.out
    assert re.search(r"mini/syn-uci +source +2 +\d", answer.out)


def test_a_bench_run_again_runs_nothing_and_a_seed_more_runs_that_seed_alone(
    cli: Command, tmp_path: Path
) -> None:
    ask = ["bench", "mini", "--tasks", "syn-uci", "--methods", "source,coal", "--jobs", 1, *TINY]
    first = cli(*ask, "--seeds", 1, "--json")
    assert first.code == 0
    assert [(r["method"], r["n"]) for r in json.loads(first.out)] == [("source", 1), ("coal", 1)]
    before = files(tmp_path)
    assert cli(*ask, "--seeds", 1, "--json").out == first.out
    assert files(tmp_path) == before
    more = cli(*ask, "--seeds", 2, "--json")
    assert [r["seeds"] for r in json.loads(more.out)] == [[0, 1], [0, 1]]
    after = files(tmp_path)
    assert after | before == after
    folders = {name.split("/")[1] for name in after.keys() - before.keys() if name.count("/") > 1}
    assert len(folders) == 4  # two runs, and a pre-training for either head
    assert all(
        json.loads((tmp_path / "runs" / f / "run.json").read_text())["run"]["seed"] == 1
        for f in folders
    )
    assert json.loads(cli("table", "--json").out) == json.loads(more.out)
    assert "source" in cli("table").out


def test_a_method_from_a_file_is_explained_run_and_compared(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    found = json.loads(cli("methods", "mine.py:Mine", "--json").out)
    assert found["options"][0]["help"] == "Weight of the loss."
    one = json.loads(
        cli("run", "mini/syn-uci", "-m", "mine.py:Mine", "-p", "weight=1", *TINY, "--json").out
    )
    both = [
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source,mine.py:Mine",
        "--seeds",
        1,
        "--jobs",
        2,
    ]
    answer = cli(*both, *TINY, "--json")
    assert answer.code == 0, answer.err
    rows = {r["method"]: r for r in json.loads(answer.out)}
    assert rows["mine"]["whole"]["values"][0] == one["scores"]["whole"]["per_class_mean"]
    assert rows["mine"]["n"] == rows["source"]["n"] == 1
    # another text is another method
    (tmp_path / "mine.py").write_text(MINE + "# changed\n")
    again = json.loads(cli("run", "mini/syn-uci", "-m", "mine.py:Mine", *TINY, "--json").out)
    assert again["key"] != one["key"]


RANDOM = MINE.replace("cross_entropy(net", "torch.rand(()) * cross_entropy(net").replace(
    "import askew\n", "import askew\nimport torch\n", 1
)
BRANCHING = MINE.replace("return {", "if t > 0.5:\n            fs = 2 * fs\n        return {")


@pytest.mark.parametrize(
    ("text", "law"),
    [
        (RANDOM, "the loss 'label' of phase 0 differs between two calls with the same arguments"),
        (BRANCHING, "losses of phase 0 under torch.func.vmap, with floats as tensors, raised"),
    ],
    ids=["random", "branching"],
)
def test_a_bench_refuses_a_method_from_a_file_that_breaks_the_contract(
    cli: Command, tmp_path: Path, text: str, law: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    ask = (
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source,mine.py:Mine",
        "--seeds",
        1,
        "--jobs",
        1,
    )
    answer = cli(*ask, *TINY)
    assert_refused(answer)
    assert answer.err.startswith(f"The method Mine: {law}")
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["mine.py"]


def test_a_bench_checks_each_method_from_a_file_once_and_allows_a_weight_of_zero(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def check(method: Method, *, strict: bool) -> None:
        checked.append(method)
        check_method(method, strict=strict)

    monkeypatch.setattr("askew.runs.launch.jobs.check_method", check)
    (tmp_path / "mine.py").write_text(MINE)
    ask = (
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "mine.py:Mine",
        "--seeds",
        2,
        "--jobs",
        1,
        *TINY,
    )
    assert cli(*ask, "-p", "weight=0").code == 0
    assert len(checked) == 1


def test_settings_of_one_s_own_are_used(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        "[train]\nlr = 0.125\n[task.syn-uci.method.coal]\nalpha = 0.5\n"
    )
    found = json.loads(cli("run", "mini/syn-uci", "--settings", "my.toml", *TINY, "--json").out)
    run = json.loads((tmp_path / found["folder"] / "run.json").read_text())["run"]
    assert run["plan"][1]["optim"]["lr"] == 0.125
    assert run["plan"][1]["method"]["options"]["alpha"] == 0.5


def test_a_shift_has_one_name_however_it_is_typed(cli: Command) -> None:
    lower, upper = (
        json.loads(cli(*RUN, "--shift", shift, "--json").out)["key"] for shift in ("rs-ut", "RS-UT")
    )
    assert lower == upper
