from __future__ import annotations

from typing import Any

import pytest

from askew.reports.paper import (
    degree_curve,
    degree_of,
    method_order,
    notes,
    paper_numbers,
    printed_accuracy,
    printed_average,
    recomputed_average,
)


def averages(benchmark: str) -> dict[str, tuple[float | None, float]]:
    """Printed and recomputed average of every method."""
    tasks = [values for task, values in paper_numbers().items() if task.startswith(f"{benchmark}/")]
    return {
        m: (printed_average(benchmark, m), recomputed_average([values[m][0] for values in tasks]))
        for m in method_order()
    }


def test_all_three_tables_are_there_with_all_twelve_methods() -> None:
    sizes: dict[str, int] = {}
    for task, methods in paper_numbers().items():
        assert len(methods) == 12
        sizes[task.partition("/")[0]] = sizes.get(task.partition("/")[0], 0) + 1
    assert sizes == {"digits": 4, "office-home": 6, "domainnet": 12}


@pytest.mark.parametrize(
    ("benchmark", "wrong"),
    [
        ("digits", {"coal": (84.33, 84.36)}),
        ("office-home", {"dan": (45.02, 51.95), "uan": (48.62, 54.68), "etn": (52.14, 55.43)}),
        ("domainnet", {"uan": (72.05, 71.29), "etn": (73.99, 72.15)}),
    ],
)
def test_the_printed_averages_follow_from_the_cells_but_for_those_known_to_be_wrong(
    benchmark: str, wrong: dict[str, tuple[float, float]]
) -> None:
    assert {m: pair for m, pair in averages(benchmark).items() if pair[0] != pair[1]} == wrong
    assert all(any(f"Average of {m}" in note for note in notes(benchmark)) for m in wrong)


def run(task: str = "digits/usps-mnist", method: str = "coal", **changes: Any) -> dict[str, Any]:
    options = changes.pop("options", {"self_training": True, "minimax": True})
    stage = {"method": {"id": method, "options": options}}
    usual = {"shift": "rs-ut", "sampler": "balanced", "target_sampler": "natural"}
    return usual | {"task": task, "plan": [stage]} | changes


@pytest.mark.parametrize(
    ("asked", "number"),
    [
        (run(), (88.12, 0.37)),
        (run(shift="degree:1"), (88.12, 0.37)),
        (run(sampler="natural"), (87.5, None)),
        (run(method="jan", sampler="natural"), None),
        (run(options={"self_training": False, "minimax": True}), (85.22, None)),
        (run(options={"self_training": True, "minimax": False}), (85.57, None)),
        (run(options={"self_training": False, "minimax": False}), None),
        (run(sampler="natural", options={"self_training": False}), None),
        (run(shift="bs-bt"), (93.42, None)),
        (run(shift="degree:0"), (93.42, None)),
        (run(shift="degree:0.4"), None),
        (run(method="dan", shift="degree:0"), None),
        (run(target_sampler="balanced"), None),
        (run("mini/syn-uci"), None),
        (run("domainnet/r-c", shift="natural"), (73.85, None)),
        (run("domainnet/r-c"), None),
        (run("office-home/rw-pr"), (73.65, None)),
        (run("office-home/rw-pr", shift="natural"), None),
        (run(method="mine"), None),
    ],
)
def test_a_run_stands_beside_the_paper_s_number_of_the_same_experiment_or_none(
    asked: dict[str, Any], number: tuple[float, float | None] | None
) -> None:
    assert printed_accuracy(asked) == number


def test_degrees_are_read_from_shifts() -> None:
    assert [degree_of(s) for s in ("bs-bt", "rs-ut", "degree:0.2", "natural", "dirichlet:1")] == [
        0,
        1,
        0.2,
        None,
        None,
    ]
    assert degree_curve("digits/usps-mnist")["mcd"] == {0.0: 91.45, 1.0: 77.18}
    assert degree_curve("mini/syn-uci") == {}
