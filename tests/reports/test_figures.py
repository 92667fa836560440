from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import assert_refused, assert_refuses
from conftest import Command
from PIL import Image

from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.data.benchmarks import load_task
from askew.data.task import Task
from askew.nets.augment import Views
from askew.reports.features import features_of, task_of
from askew.reports.figures import save
from askew.reports.results import collect
from askew.reports.task_figures import sample_images, task_overview, view_sheet
from askew.runs.config import RunRequest, prepare
from askew.runs.root import finished_runs
from askew.runs.store import RunFolder


def drawn(path: Path) -> bool:
    """Whether a picture shows more than one colour."""
    pixels = np.asarray(Image.open(path).convert("L"))
    return pixels.size > 10_000 and pixels.std() > 1


def test_mix_and_samples_need_no_runs_where_tasks_are_named(cli: Command, tmp_path: Path) -> None:
    for kind in ("mix", "samples"):
        answer = cli("figure", kind, "--tasks", "mini/syn-uci,mini/uci-syn", "-o", f"{kind}.png")
        assert answer.code == 0, answer.err
        assert drawn(tmp_path / f"{kind}.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mix.png", "samples.png"]


def test_accuracy_by_class_is_drawn_from_the_scores_alone(
    cli: Command, mini_runs: Path, tmp_path: Path
) -> None:
    assert cli("figure", "classes", mini_runs, "-o", "classes.svg").code == 0
    text = (tmp_path / "classes.svg").read_text()
    assert text.startswith("<?xml")
    assert cli("figure", "classes", mini_runs, "-o", "again.svg").code == 0
    assert (tmp_path / "again.svg").read_text() == text  # the same runs, the same file


def test_features_are_those_that_the_trained_head_was_given(mini_runs: Path) -> None:
    (row,) = [r for r in collect(finished_runs(mini_runs)) if r.method == "source"]
    task, folder = task_of(row.run, None), row.folders[0]
    found = features_of(folder, row.run, task, most=10_000)
    tensors, outputs = (
        read_tensors(folder / "weights.safetensors")[0],
        read_tensors(folder / "outputs.safetensors")[0],
    )
    (weight,) = [t.numpy() for n, t in tensors.items() if n.startswith("head.") and t.ndim == 2]
    (bias,) = [t.numpy() for n, t in tensors.items() if n.startswith("head.") and t.ndim == 1]
    wanted = outputs["test"].float().numpy()[task.test.paper]
    assert np.allclose(found.target @ weight.T + bias, wanted, atol=0.05)
    assert np.array_equal(found.target_y, task.test.y[task.test.paper])


def test_features_are_mapped_with_few_images_a_domain(
    cli: Command, mini_runs: Path, tmp_path: Path
) -> None:
    answer = cli("figure", "features", mini_runs, "--images", 40, "--seed", 1, "-o", "features.png")
    assert answer.code == 0, answer.err
    assert drawn(tmp_path / "features.png")


def test_accuracy_by_degree_is_drawn_beside_the_paper_s(cli: Command, tmp_path: Path) -> None:
    from test_results import put

    from askew.runs.root import open_root

    root = open_root(tmp_path / "runs")
    for degree, score in (("0", 91.0), ("0.4", 85.0), ("1", 80.0)):
        put(root, degree, score, method="mcd", shift=f"degree:{degree}")
    assert cli("figure", "degree", root, "-o", "degree.svg").code == 0
    assert "mcd, paper" in (tmp_path / "degree.svg").read_text()


def test_rows_of_numbers_have_no_images_to_show(task: Task) -> None:
    with pytest.raises(UserError, match="rows of numbers, not images"):
        sample_images({"toy": task})


def tiles(task: Task, how: Views, domain: int) -> list[np.ndarray]:
    """The columns of one domain's half of a sheet: the images as they are, and one per view."""
    picture = np.asarray(
        view_sheet("mini", task.training_data, how).axes[domain].images[0].get_array()
    )
    return np.split(picture, 8, axis=1)


@pytest.fixture(scope="module")
def mini() -> Task:
    return load_task("mini/syn-uci")


@pytest.mark.parametrize("domain", [0, 1], ids=["source", "target"])
def test_a_sheet_shows_images_as_they_are_and_seven_different_views_of_each(
    mini: Task, domain: int
) -> None:
    first, *views = tiles(mini, Views(views="affine+intensity"), domain)
    data = mini.training_data
    image = np.asarray((data.source, data.target)[domain].x[0]).transpose(1, 2, 0)
    assert np.array_equal(first[: image.shape[0], : image.shape[1]], image)
    seen = {tile.tobytes() for tile in (first, *views)}
    assert len(seen) == 8


def test_views_without_any_change_are_the_image_itself(mini: Task) -> None:
    still = Views(views="affine", rotation=0, stretch=0, shear=0, shift=0, noise=0)
    first, *views = tiles(mini, still, 1)
    assert all(np.abs(view.astype(int) - first).max() <= 1 for view in views)


def test_the_command_draws_the_views_of_the_settings_or_those_that_it_is_given(
    cli: Command, tmp_path: Path
) -> None:
    answer = cli("data", "show", "mini/syn-uci", "--views", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) == {
        "figure": "views.png",
        "views": prepare(RunRequest(task="mini/syn-uci", method="teacher")).run.views.describe(),
    }
    assert drawn(tmp_path / "views.png")
    weak = ("-t", "views=affine", "-t", "rotation=5")
    for name in ("weak.png", "again.png"):
        assert cli("data", "show", "mini/syn-uci", "--views", *weak, "-o", name).code == 0
    weak_sheet = (tmp_path / "weak.png").read_bytes()
    assert (
        weak_sheet == (tmp_path / "again.png").read_bytes() != (tmp_path / "views.png").read_bytes()
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.png", "views.png", "weak.png"]


def test_a_sheet_that_cannot_be_drawn_is_refused(cli: Command, tmp_path: Path, task: Task) -> None:
    for words, problem in (
        (("--views", "-t", "views=none"), "The settings of mini/syn-uci have no random views."),
        (("--views", "--recipe", "paper"), "The settings of mini/syn-uci have no random views."),
        (("--views", "-o", "views.txt"), "Cannot write a figure as 'views.txt'."),
        (("--views", "--figure", "mix.png"), "--views and --figure are two figures."),
        (("-o", "views.png"), "-o, -t, --settings and --recipe belong to --views."),
        (("-t", "rotation=5"), "-o, -t, --settings and --recipe belong to --views."),
    ):
        assert_refuses(cli, tmp_path, ("data", "show", "mini/syn-uci", *words), problem)
    with pytest.raises(UserError, match="rows of numbers, not images: there is no view to draw"):
        view_sheet("toy", task.training_data, Views(views="rows"))


WRONG = {
    "no suffix": (("classes", "-o", "figure"), "Cannot write a figure as 'figure'."),
    "unknown suffix": (("classes", "-o", "figure.gif"), "Cannot write a figure as 'figure.gif'."),
    "no such folder": (("classes", "-o", "no/figure.svg"), "Cannot write a file no/figure.svg: "),
    "no such method": (("classes", "--methods", "jan"), "The folder "),
    "no degrees": (("degree",), "There are no runs under shifts of different degree here."),
    "no such seed": (("features", "--seed", "7"), "No run there has seed 7."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_figure_that_cannot_be_drawn_is_refused_and_nothing_is_written(
    cli: Command, mini_runs: Path, tmp_path: Path, case: str
) -> None:
    (kind, *rest), sentence = WRONG[case]
    assert_refuses(cli, tmp_path, ("figure", kind, mini_runs, *rest), sentence)


def test_other_data_and_missing_weights_are_refused(
    cli: Command, mini_runs: Path, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    shutil.copytree(mini_runs, root)
    for folder in finished_runs(root):
        (folder / "weights.safetensors").unlink()
        RunFolder(folder).finish()
    answer = cli("figure", "features", root, "-o", "features.png")
    assert_refused(answer)
    assert " has no weights." in answer.err
    for folder in finished_runs(root):
        record = json.loads((folder / "run.json").read_text())
        record["run"]["origin"] = "other"
        (folder / "run.json").write_text(json.dumps(record))
        RunFolder(folder).finish()
    answer = cli("figure", "mix", root, "-o", "mix.png")
    assert_refused(answer)
    assert answer.err.startswith("The data of mini/syn-uci is not what the run was trained on.")
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_figure_is_the_same_file_each_time(tmp_path: Path, suffix: str) -> None:
    task = load_task("mini/syn-uci", "rs-ut")
    for name in ("a", "b"):
        save(task_overview(task), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_an_overview_of_rows_of_numbers_has_their_label_distributions_alone(task: Task) -> None:
    assert len(task_overview(task).axes) == 1
    assert len(task_overview(load_task("mini/syn-uci", "rs-ut")).axes) == 3
