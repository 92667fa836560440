"""Findings about an adaptation, and when they hold."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import LENGTH, NAMES, Made, codes

import askew
from askew.adaptation import findings
from askew.adaptation.assessment import Adaptation
from askew.evaluation.unknown_classes import UnknownImages

pytestmark = pytest.mark.usefixtures("small_maps")


def changed(found: Adaptation, **verdict: Any) -> Adaptation:
    """The same as if the first method beside source-only had been saved, with such a verdict."""
    name = found.networks[1].name
    own = dataclasses.replace(
        found.verdicts[name], **({"verdict": "helped", "collapsed": False} | verdict)
    )
    return dataclasses.replace(
        found, saved=1, rejected="", verdicts=dict(found.verdicts) | {name: own}
    )


@pytest.fixture(scope="module")
def fine(made: Made) -> Adaptation:
    """An adaptation that helped, with nothing strange."""
    return dataclasses.replace(
        changed(made.found),
        unknown=UnknownImages(np.zeros(102), 0.5),
        probabilities=np.eye(3)[[0, 1, 2] * 34],
    )


CASES: dict[str, Callable[[Adaptation], Adaptation]] = {
    "A102": lambda fine: _with_data(
        fine, target=dataclasses.replace(fine.data.target, broken=("x.jpg: torn",))
    ),
    "A103": lambda fine: _with_data(fine, unknown=("zebra",)),
    "A104": lambda fine: _with_data(fine, shared=3),
    "A108": lambda fine: changed(fine, verdict="unclear"),
    "A109": lambda fine: changed(fine, verdict="hurt"),
    "A110": lambda fine: changed(fine, collapsed=True),
    "A113": lambda fine: dataclasses.replace(fine, probabilities=np.eye(3)[[0, 1] * 51]),
    "A114": lambda fine: dataclasses.replace(
        fine, request=dataclasses.replace(fine.request, quick=True)
    ),
    "A115": lambda fine: dataclasses.replace(fine, failures={"dann": "no"}),
    "A116": lambda fine: _with_source_only_logits(fine, np.eye(3)[[2] * 102]),
    "A117": lambda fine: dataclasses.replace(fine, unknown=UnknownImages(np.arange(102.0), 50.0)),
    "A118": lambda fine: _with_estimate(fine, np.array([0.9, 0.1] + [0.0] * 8)),
}


@pytest.mark.parametrize("code", CASES)
def test_a_finding_is_made_where_it_holds(fine: Adaptation, code: str) -> None:
    assert code in codes(CASES[code](fine))


@pytest.mark.parametrize("code", ["A101", "A106", *CASES])
def test_a_finding_is_not_made_where_it_does_not_hold(fine: Adaptation, code: str) -> None:
    assert code not in codes(fine)


@pytest.mark.parametrize(
    ("shares", "code"), [({"target": 40}, "A106"), ({"classes": (0.9, 0.08, 0.02)}, "A105")]
)
def test_too_few_images_are_a_finding(shares: dict[str, Any], code: str) -> None:
    own = np.random.default_rng(0).choice(3, 100, p=shares.get("classes", (0.4, 0.3, 0.3)))
    own[:6] = [0, 0, 1, 1, 2, 2]
    rows = 2 * np.eye(3, 8)[own].astype(np.float32)
    rows += np.random.default_rng(1).normal(size=rows.shape).astype(np.float32)
    result = askew.adapt(
        (rows, NAMES[own]),
        rows[: shares.get("target", 100)] + 1,
        methods="source",
        training=LENGTH,
        device="cpu",
    )
    assert code in {finding["code"] for finding in result.summary["findings"]}


def _with_estimate(found: Adaptation, prior: np.ndarray) -> Adaptation:
    """As if the network without adaptation had estimated that prior."""
    priors = found.diagnosis.priors
    own = priors["unadapted"] | {
        "bbse": dataclasses.replace(priors["unadapted"]["bbse"], prior=prior)
    }
    return dataclasses.replace(
        found, diagnosis=dataclasses.replace(found.diagnosis, priors={"unadapted": own})
    )


def _with_source_only_logits(found: Adaptation, logits: np.ndarray) -> Adaptation:
    first = found.networks[0]
    first = dataclasses.replace(first, outputs=dataclasses.replace(first.outputs, target=logits))
    return dataclasses.replace(found, networks=(first, *found.networks[1:]))


def _with_data(found: Adaptation, **changes: Any) -> Adaptation:
    data = dataclasses.replace(found.data, **changes)
    return dataclasses.replace(found, inputs=dataclasses.replace(found.inputs, data=data))


def test_the_guide_lists_every_finding() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text()
    made = re.findall(r'"(A1\d\d)"', inspect.getsource(findings))
    assert len(set(made)) == len(made) > 10
    assert re.findall(r"^\| (A1\d\d) \|", page, flags=re.M) == sorted(made)
