"""`askew data list`, `check` and `show`: what a user sees of the data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import generated_trees
import numpy as np
import pytest
from conftest import Command
from PIL import Image

from askew.data.benchmarks import load_task
from askew.data.benchmarks.inventory import SOURCES, Part, overall
from askew.data.label_distribution import LabelDistributions
from askew.data.label_shift import js_distance


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generated_trees.own_cache(tmp_path, monkeypatch)
    monkeypatch.delenv("ASKEW_DATA", raising=False)


def states(answer: str) -> dict[str, str]:
    found = json.loads(answer)
    return {part["name"]: part["state"] for part in found[0]["parts"]}


def test_data_sets_are_listed_with_where_they_belong_and_come_from(
    cli: Command, tmp_path: Path
) -> None:
    answer = cli("data", "list")
    assert answer.code == 0
    assert all(name in answer.out for name in SOURCES)
    assert "set ASKEW_DATA" in answer.out
    assert "not tried" in answer.out, "nobody could reach these addresses"
    listed = json.loads(cli("data", "list", "--data", tmp_path, "--json").out)
    assert {row["state"] for row in listed["sets"]} == {"missing"}
    assert listed["folder"] == str(tmp_path)


def test_published_counts_add_up() -> None:
    def published(name: str) -> list[int]:
        return [part.published for part in SOURCES[name].look(Path("/nonexistent"))]

    assert published("mnist") == [60_000, 10_000]
    assert published("usps") == [7_291, 2_007]
    assert published("svhn") == [73_257]
    assert sum(published("pacs")) == 9_991
    assert sum(published("office-home")[:4]) == 15_588
    assert sorted(published("domainnet")) == sorted(
        [16_141, 6_727, 3_707, 5_537, 6_943, 2_909, 1_616, 2_399]
    )


def digits(data: Path, name: str, part: str, sizes: list[int]) -> None:
    y = np.repeat(np.arange(10), sizes).astype(np.uint8)
    (data / "digits" / name).mkdir(parents=True, exist_ok=True)
    np.savez(data / "digits" / name / f"{part}.npz", x=np.zeros((len(y), 2, 2), np.uint8), y=y)


def test_fewer_images_are_enough_if_the_rule_draws_the_same_and_short_if_not(
    cli: Command, tmp_path: Path
) -> None:
    # The rule looks at the first and the last digit: SVHN has 4,948 and 4,659 of them.
    digits(tmp_path, "svhn", "train", [4_948, *[2_500] * 8, 4_659])
    answer = cli("data", "check", "svhn", "--data", tmp_path, "--json")
    assert (answer.code, states(answer.out)) == (0, {"train": "enough"})
    digits(tmp_path, "svhn", "train", [4_948, *[2_500] * 8, 4_000])
    answer = cli("data", "check", "svhn", "--data", tmp_path, "--json")
    assert (answer.code, states(answer.out)) == (1, {"train": "short"})


def test_a_damaged_file_is_unreadable_and_the_others_are_still_checked(
    cli: Command, tmp_path: Path
) -> None:
    digits(tmp_path, "usps", "train", [10] * 10)
    (tmp_path / "digits/usps/test.npz").write_bytes(b"nonsense")
    answer = cli("data", "check", "usps", "--data", tmp_path, "--json")
    assert (answer.code, states(answer.out)) == (1, {"train": "short", "test": "unreadable"})


def test_a_check_of_everything_says_one_line_of_what_is_not_there(
    cli: Command, tmp_path: Path
) -> None:
    answer = cli("data", "check", "--data", tmp_path)
    assert answer.code == 0, "nothing was asked for by name"
    assert answer.out.count("missing") == len(SOURCES)


def test_trees_and_lists_are_checked(cli: Command, tmp_path: Path) -> None:
    data = generated_trees.domainnet(tmp_path / "data")
    answer = cli("data", "check", "domainnet", "--data", data, "--json")
    found = states(answer.out)
    assert answer.code == 1
    assert found["real train"] == found["sketch test"] == "enough", (
        "whole, but not the published lists"
    )
    assert found["clipart train"] == "missing"
    shutil.rmtree(data / "domainnet/real/cat")
    assert (
        states(cli("data", "check", "domainnet", "--data", data, "--json").out)["real train"]
        == "short"
    )
    (data / "domainnet/sketch_train_mini.txt").unlink()
    (data / "domainnet/sketch_test_mini.txt").write_text("a picture that is missing")
    found = states(cli("data", "check", "domainnet", "--data", data, "--json").out)
    assert (found["sketch train"], found["sketch test"]) == ("missing", "unreadable")


def test_a_check_decodes_on_request_and_names_what_is_broken(cli: Command, tmp_path: Path) -> None:
    root = tmp_path / "data/pacs"
    for domain in ("photo", "sketch"):
        generated_trees.picture(root / domain / "dog" / "1.jpg")
    assert (
        "pacs: all images decode."
        in cli("data", "check", "pacs", "--data", tmp_path / "data", "--decode").out
    )
    (root / "photo/dog/2.jpg").write_bytes(b"no picture")
    answer = cli("data", "check", "pacs", "--data", tmp_path / "data", "--decode")
    assert answer.code == 2
    assert "2.jpg" in answer.err
    assert "--skip-broken" in answer.err
    left = cli("data", "check", "pacs", "--data", tmp_path / "data", "--skip-broken", "--json")
    assert list(json.loads(left.out)[0]["broken"]["photo"]) == ["dog/2.jpg"]


def test_a_data_set_is_as_good_as_the_worst_part_that_is_needed() -> None:
    def of(*states: str) -> str:
        # type: ignore[arg-type]
        return overall(
            [
                Part(name="", where="", found=1, published=1, state=s, needed=not s.startswith("("))
                for s in states
            ]
        )

    assert of("complete", "enough") == "enough"
    assert of("complete", "missing") == "short"
    assert of("missing", "missing") == "missing"
    assert of("complete", "(missing)") == "complete"


@pytest.mark.parametrize("name", ["domainnet", "pacs"])
def test_what_cannot_be_fetched_is_told_where_to_get_and_where_to_put(
    cli: Command, name: str
) -> None:
    answer = cli("data", "fetch", name)
    assert answer.code == 2
    assert "http" in answer.err
    assert SOURCES[name].folder.split("/")[0] in answer.err


@pytest.mark.parametrize(
    "args",
    [
        ("data", "fetch", "mnits"),
        ("data", "fetch", "mnist"),
        ("data", "check"),
        ("data", "check", "pacs", "--data", "nowhere"),
        ("data", "show", "mini/syn-ucii"),
        ("data", "show", "mini/syn-uci", "--shift", "strong"),
        ("data", "show", "mini/syn-uci", "--figure", "a.xyz"),
        ("data", "show", "mini/syn-uci", "--figure", "nowhere/a.png"),
    ],
)
def test_a_wrong_command_is_a_sentence_and_a_hint_and_writes_nothing(
    cli: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    answer = cli(*args)
    assert answer.code == 2
    assert "\n\nhint: " in answer.err
    assert not list(tmp_path.iterdir())


def test_a_task_s_mixes_are_shown_with_how_strong_the_shift_is(
    cli: Command, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKEW_CACHE", str(cache))
    shown = json.loads(cli("data", "show", "mini/uci-syn", "--json").out)
    source, target = ([row[side] for row in shown["classes"]] for side in ("source", "target"))
    assert shown["js_distance"] == pytest.approx(js_distance(source, target))
    assert shown["error_bound"] == pytest.approx(shown["js_distance"] ** 2 / 2)
    assert shown["largest_to_smallest"]["target"] == pytest.approx(target[0] / target[9])
    assert sum(target) == len(load_task("mini/uci-syn").training_data.target)
    table = cli("data", "show", "mini/uci-syn").out
    assert "Jensen–Shannon distance" in table
    assert f"at least {100 * shown['error_bound']:.1f} %" in table


def test_without_shift_the_bound_is_nothing() -> None:
    same = LabelDistributions(("a", "b"), np.array([3, 5]), np.array([6, 10]), np.array([1, 1]))
    assert same.distance == pytest.approx(0, abs=1e-6)
    apart = LabelDistributions(("a", "b"), np.array([3, 0]), np.array([0, 9]), np.array([1, 1]))
    assert (apart.distance, apart.bound) == (pytest.approx(1), pytest.approx(0.5))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_figure_is_drawn_the_same_each_time(
    cli: Command, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setenv("ASKEW_CACHE", str(cache))
    for name in ("one", "two"):
        assert (
            cli("data", "show", "mini/uci-syn", "--figure", tmp_path / f"{name}.{suffix}").code == 0
        )
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    if suffix == "png":
        with Image.open(tmp_path / "one.png") as image:
            assert min(image.size) > 1_000
    else:
        assert "<svg" in (tmp_path / "one.svg").read_text()
    assert not list(tmp_path.glob(".*")), "no temporary file"
