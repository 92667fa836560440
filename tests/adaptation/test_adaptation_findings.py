"""What is remarked about an adaptation, and when."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from adaptations import Adapted, codes
from askew.adaptation.pipeline import Adaptation

from askew.adaptation import findings
from askew.evaluation.unknown_classes import UnknownImages


def changed(found: Adaptation, **verdict: Any) -> Adaptation:
    """As if the first method beside source-only had been chosen, with such a verdict."""
    name = found.trained[1].candidate.name
    own = dataclasses.replace(
        found.verdicts[name], **({"verdict": "helped", "collapsed": False} | verdict)
    )
    return dataclasses.replace(found, chosen=1, verdicts=dict(found.verdicts) | {name: own})


def test_each_remark_is_made_where_it_holds_and_only_there(made: Adapted) -> None:
    found = made.found
    fine = dataclasses.replace(changed(found), unfamiliar=UnknownImages(np.zeros(102), 0.5))
    data, setup = fine.setup.data, fine.setup
    assert not codes(fine) & {
        "A101",
        "A102",
        "A103",
        "A104",
        "A106",
        "A108",
        "A109",
        "A110",
        "A114",
        "A115",
        "A117",
        "A118",
    }
    cases: dict[str, Callable[[], Adaptation]] = {
        "A102": lambda: _with_data(
            fine, target=dataclasses.replace(data.target, broken=("x.jpg: torn",))
        ),
        "A103": lambda: _with_data(fine, unknown=("zebra",)),
        "A104": lambda: _with_data(fine, shared=3),
        "A108": lambda: changed(found, verdict="unclear"),
        "A109": lambda: changed(found, verdict="hurt"),
        "A110": lambda: changed(found, collapsed=True),
        "A113": lambda: dataclasses.replace(fine, probabilities=np.eye(3)[[0, 1] * 51]),
        "A114": lambda: dataclasses.replace(
            fine, request=dataclasses.replace(fine.request, quick=True)
        ),
        "A116": lambda: _with_source_only_logits(fine, np.eye(3)[[2] * 102]),
        "A115": lambda: dataclasses.replace(fine, failed={"dann": "no"}),
        "A117": lambda: dataclasses.replace(fine, unfamiliar=UnknownImages(np.arange(102.0), 50.0)),
        "A118": lambda: _with_estimate(fine, np.array([0.9, 0.1] + [0.0] * 8)),
    }
    before = codes(dataclasses.replace(fine, probabilities=np.eye(3)[[0, 1, 2] * 34], setup=setup))
    for code, case in cases.items():
        assert code not in before, code
        assert code in codes(case()), code


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
    first = found.trained[0]
    first = dataclasses.replace(first, outputs=dataclasses.replace(first.outputs, target=logits))
    return dataclasses.replace(found, trained=(first, *found.trained[1:]))


def _with_data(found: Adaptation, **changes: Any) -> Adaptation:
    data = dataclasses.replace(found.setup.data, **changes)
    return dataclasses.replace(found, setup=dataclasses.replace(found.setup, data=data))


def test_the_guide_lists_every_finding() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text()
    made = re.findall(r'"(A1\d\d)"', inspect.getsource(findings))
    assert len(set(made)) == len(made) > 10
    assert re.findall(r"^\| (A1\d\d) \|", page, flags=re.M) == sorted(made)
