"""The mini grid, all of it: the same on every engine, also where workers and machines are killed
half way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from grids import (
    a_worker_of,
    done_once,
    finished,
    harmed,
    kill,
    ray_nodes,
    results,
    slurm_workers_of,
    until,
)

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore")]

GRID = ("bench", "mini", "--seeds", "3", "--json", "--checkpoint-every", "0")
GRID += ("-t", "pretrain=20", "-t", "rounds=2", "-t", "round=20")


@pytest.fixture(scope="module")
def reference(command: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the table of a grid that nothing disturbs, on this machine."""
    root = tmp_path_factory.mktemp("reference") / "runs"
    done = subprocess.run(
        [command, *GRID, "--out", root], capture_output=True, text=True, check=True
    )
    return root, done.stdout


def test_ray_loses_a_worker_and_a_node_and_gives_the_same(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    root = tmp_path / "runs"
    with ray_nodes(2) as cluster:

        def harm() -> None:
            until(lambda: finished(root) > 20, 900)
            kill([until(lambda: a_worker_of(root))])
            until(lambda: finished(root) > 40, 900)
            until(lambda: a_worker_of(root))
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            until(lambda: finished(root) > 60, 900)
            cluster.add_node(num_cpus=1)

        ray = (command, *GRID, "--on", "ray", "--address", cluster.address)
        assert harmed(ray, root, harm, seconds=1800) == reference[1]
    assert results(root) == results(reference[0])
    assert (
        len(list(root.glob("*/scores.json"))) == len(list(reference[0].glob("*/scores.json"))) >= 72
    )


def test_slurm_s_stand_in_loses_workers_and_gives_the_same(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    root = tmp_path / "runs"

    def harm() -> None:
        for count in (20, 40, 60):
            until(lambda count=count: finished(root) > count, 900)
            kill(slurm_workers_of(root)[:1])

    on_slurm = (command, *GRID, "--on", "slurm", "--slurm", "cluster=local", "--jobs", "2")
    assert harmed(on_slurm, root, harm, seconds=1800) == reference[1]
    assert results(root) == results(reference[0])


def test_two_people_starting_the_same_grid_share_its_work(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    root = tmp_path / "runs"
    other = [command, *GRID, "--out", str(root), "--jobs", "2"]
    with done_once(root):
        pair = [
            subprocess.Popen(other, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        answers = [process.communicate(timeout=1800) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], answers
    assert [out for out, _ in answers] == [reference[1], reference[1]]
    assert results(root) == results(reference[0])
