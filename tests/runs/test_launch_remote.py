"""Jobs in processes that others start: the driver with a crew of our own, then Ray and Slurm's stand-in in earnest."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from grids import a_worker_of, done_once, finished, kill, ray_nodes, results, slurm_workers_of, until

from askew.core.errors import UserError
from askew.runs.claims import claim
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution, Progress
from askew.runs.launch import jobs as jobs_module
from askew.runs.launch import remote
from askew.runs.launch.jobs import Event, Failed, Finished, Job
from askew.runs.launch.remote import PATIENCE, Environment, JobGroup, drive, run_jobs
from askew.runs.launch.slurm import _minutes
from askew.runs.store import RunFolder, open_root

WISH = RunRequest("mini/syn-uci", "source", training={"pretrain": 0, "rounds": 2, "round": 10, "batch": 16})


@pytest.fixture
def how(tmp_path: Path) -> Execution:
    return Execution(open_root(tmp_path / "runs"), torch.device("cpu"))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(jobs_module, "PAUSE", 0.01)


class OwnCrew:
    """Does what a test says of each load, at once."""

    room = 2

    def __init__(self, do: Callable[[JobGroup], list[Event] | None]) -> None:
        self.do = do
        self.sent: list[JobGroup] = []
        self.cancelled: list[Any] = []

    def send(self, loads: Sequence[JobGroup], how: Execution) -> list[Any]:
        assert len(loads) <= self.room
        self.sent += loads
        return list(range(len(self.sent) - len(loads), len(self.sent)))

    def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        return [(tickets[0], self.do(self.sent[tickets[0]]))]

    def cancel(self, tickets: Sequence[Any]) -> None:
        self.cancelled += tickets


def loads(count: int) -> list[JobGroup]:
    return [JobGroup([Job({f"key{i}": WISH}, pretraining=False)]) for i in range(count)]


def well(load: JobGroup) -> list[Event]:
    return [Finished(key) for key, _ in load.runs()]


def test_every_load_is_handed_over_once_and_never_more_than_there_is_room_for(how: Execution) -> None:
    crew = OwnCrew(well)
    assert list(drive(loads(5), how, crew)) == [Finished(f"key{i}") for i in range(5)]
    assert len(crew.sent) == 5


def test_a_load_that_was_lost_is_handed_over_again(how: Execution) -> None:
    lives = {"key0": 2, "key1": 0}

    def do(load: JobGroup) -> list[Event] | None:
        ((key, _),) = load.runs()
        lives[key] -= 1
        return None if lives[key] >= 0 else well(load)

    crew = OwnCrew(do)
    assert {e for e in drive(loads(2), how, crew) if isinstance(e, Finished)} == {Finished("key0"), Finished("key1")}
    assert len(crew.sent) == 4


def test_a_load_that_is_lost_again_and_again_fails_unless_it_gets_further(how: Execution) -> None:
    crew = OwnCrew(lambda load: None)
    (failed,) = drive(loads(1), how, crew)
    assert isinstance(failed, Failed)
    assert "was lost 4 times" in failed.reason
    assert len(crew.sent) == PATIENCE + 1
    assert "was lost 4 times" in (how.root / "key0" / "failed.json").read_text()

    steps = 0

    def further(load: JobGroup) -> list[Event] | None:
        nonlocal steps
        steps += 1
        if steps > 5 * PATIENCE:
            return well(load)
        held = claim(how.root / "key0")
        held.report("", steps, 100)
        held.beat()
        held._released.set()  # killed: its claim is left behind
        held._unlock()
        return None

    assert Finished("key0") in list(drive(loads(1), how, OwnCrew(further)))


def test_progress_is_read_from_the_folders(how: Execution) -> None:
    (how.root / "key0").mkdir()
    held = claim(how.root / "key0")
    held.report("mini/syn-uci coal seed 0", 7, 20)
    held.beat()
    looks = 0

    class Slow(OwnCrew):
        def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
            nonlocal looks
            looks += 1
            return [] if looks == 1 else super().ended(tickets, seconds)

    events = list(drive(loads(2), how, Slow(well)))
    held.release()
    assert events[0] == Progress("key0", "mini/syn-uci coal seed 0", 7, 20, {})
    assert {event.key for event in events if isinstance(event, Progress)} == {"key0"}


def test_ends_are_told_as_they_happen_and_once_while_a_load_is_under_way(how: Execution) -> None:
    """A load of three runs: the folders tell of two ends, of which one is news, before the load has ended."""
    RunFolder(how.root / "key2").fail("long ago")
    load = JobGroup([Job({f"key{i}": WISH}, pretraining=False) for i in range(3)])

    def do(load: JobGroup) -> list[Event]:
        return [Finished("key0"), Failed("key1", WISH, "too hot"), Finished("key2")]

    class Slow(OwnCrew):
        looks = 0

        def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
            self.looks += 1
            if self.looks == 1:
                RunFolder(how.root / "key0").path.mkdir()
                RunFolder(how.root / "key0").finish()
            if self.looks == 2:
                RunFolder(how.root / "key1").fail("too hot")
            return [] if self.looks < 4 else super().ended(tickets, seconds)

    crew = Slow(do)
    told = [(crew.looks, event) for event in drive([load], how, crew)]
    assert told == [(1, Finished("key0")), (2, Failed("key1", WISH, "too hot")), (4, Finished("key2"))]


def test_whoever_stops_listening_takes_back_what_was_handed_over(how: Execution) -> None:
    crew = OwnCrew(well)
    events = drive(loads(4), how, crew)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert crew.cancelled == [1]


def test_a_worker_tells_everything_by_what_it_returns(
    how: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = prepare(WISH)[0].key
    job = Job({key: WISH}, pretraining=False)
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = Environment.here()
    monkeypatch.delenv("ASKEW_DATA")
    monkeypatch.chdir("/")
    assert run_jobs([job], how, here) == [Finished(key)]
    assert RunFolder(how.root / key).done
    assert (Path.cwd(), os.environ["ASKEW_DATA"]) == (tmp_path, str(tmp_path))
    (failed,) = run_jobs([job], how, Environment(tmp_path / "nowhere", {}))
    assert isinstance(failed, Failed)
    assert failed.reason.startswith(f"The folder {tmp_path / 'nowhere'} cannot be entered on ")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("12:00:00", 720), ("2-0", 2880), ("1-2:30", 1590), ("1-02:30:00", 1590), ("45:30", 45)],
)
def test_slurm_s_ways_to_write_a_time_are_read(text: str, minutes: int) -> None:
    assert _minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "0", "1:2:x", "-5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no time"):
        _minutes(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--address", "auto"), "--address has no meaning with --on local"),
        (("--gpus", "1"), "--gpus has no meaning with --on local"),
        (("--on", "ray", "--slurm", "time=5"), "--slurm has no meaning with --on ray"),
        (("--on", "slurm", "--gpus", "0.5"), "Slurm gives whole GPUs, found --gpus 0.5"),
        (("--on", "ray", "--device", "cuda"), "--device cuda does not fit --gpus 0"),
        (("--on", "slurm", "--slurm", "time=soon"), "--slurm time=soon is no time"),
    ],
)
def test_options_that_do_not_fit_the_place_are_refused_and_leave_nothing(
    cli: Command, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    answer = cli("bench", "mini", *words)
    assert answer.code == 2
    assert said in answer.err
    assert "hint: " in answer.err
    assert not (tmp_path / "runs").exists()


# --- in earnest: one grid, killed on its way, equal to the undisturbed one ---

GRID = ("bench", "mini", "--tasks", "syn-uci", "--methods", "source,coal", "--seeds", "1", "--json")
GRID += ("-t", "pretrain=20", "-t", "rounds=24", "-t", "round=5", "-t", "batch=16", "--checkpoint-every", "0")


@pytest.fixture(scope="module")
def calm(command: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("calm") / "runs"
    done = subprocess.run([command, *GRID, "--out", root, "--jobs", "1"], capture_output=True, text=True, check=True)
    return root, done.stdout


def end_of(command: str, root: Path, harm: Callable[[], object], *where: str) -> str:
    """The table of a grid that is harmed on its way; none of its runs is finished twice."""
    pipe = subprocess.PIPE
    with done_once(root):
        process = subprocess.Popen([command, *GRID, "--out", root, *where], stdout=pipe, stderr=pipe, text=True)
        try:
            harm()
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
            kill(slurm_workers_of(root))
        assert process.returncode == 0, err
    return out


def in_the_middle(root: Path) -> bool:
    """Whether a run, not its pre-training, has some rounds behind it and is not done."""
    open_traces = (p for p in root.glob("*/trace.jsonl") if not (p.parent / "done").exists())
    return any(p.read_text().count("\n") >= 5 for p in open_traces)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_loses_a_worker_and_a_node_and_the_grid_is_the_same(
    command: str, tmp_path: Path, calm: tuple[Path, str]
) -> None:
    pytest.importorskip("ray")
    root = tmp_path / "runs"
    with ray_nodes(2) as cluster:

        def harm() -> None:
            until(lambda: in_the_middle(root))
            kill([until(lambda: a_worker_of(root))])
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

        assert end_of(command, root, harm, "--on", "ray", "--address", cluster.address) == calm[1]
    assert results(root) == results(calm[0])


@pytest.mark.soak
def test_slurm_s_stand_in_loses_a_worker_and_the_grid_is_the_same(
    command: str, tmp_path: Path, calm: tuple[Path, str]
) -> None:
    pytest.importorskip("submitit")
    root = tmp_path / "runs"

    def harm() -> None:
        until(lambda: in_the_middle(root))
        kill(until(lambda: slurm_workers_of(root)))

    assert end_of(command, root, harm, "--on", "slurm", "--slurm", "cluster=local", "--jobs", "1") == calm[1]
    assert results(root) == results(calm[0])
    assert finished(root) == finished(calm[0])


@pytest.mark.soak
def test_two_people_who_start_one_grid_share_its_work(command: str, tmp_path: Path, calm: tuple[Path, str]) -> None:
    root, pipe = tmp_path / "runs", subprocess.PIPE
    with done_once(root):
        ask = [command, *GRID, "--out", str(root), "--jobs", "1"]
        pair = [subprocess.Popen(ask, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
        said = [process.communicate(timeout=300) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    assert [out for out, _ in said] == [calm[1], calm[1]]
    assert results(root) == results(calm[0])
