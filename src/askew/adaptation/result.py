"""What `askew.adapt` and `askew.diagnose` return: tables for pandas, a model, and a summary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from askew.adaptation.artifacts import final_model, summary
from askew.adaptation.assessment import Adaptation, with_saved
from askew.adaptation.audit import Audit
from askew.adaptation.audit import audit as audit_folder
from askew.adaptation.given import labels_of
from askew.core.tables import data_frame, html_table
from askew.data.custom import CustomData
from askew.evaluation.diagnosis import Diagnosis
from askew.evaluation.scores import SCORES
from askew.evaluation.selection import CHOOSERS
from askew.inference.predictor import ClassShares, Predictor
from askew.inference.writers import columns

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False, repr=False)
class AdaptationResult:
    """A finished adaptation: `predictions`, `model`, `report`, `summary`, and the folder that holds
    its files.

    >>> result = askew.adapt((xs, ys), xt, methods="coal", training=short)
    >>> len(result.predictions), result.model.classes, result.report.name
    (60, ('cat', 'dog', 'owl'), 'report.html')
    >>> len(result.predict(xt)), list(result.models), result.audit(yt).labelled
    (60, ['source', 'coal'], 60)
    """

    adaptation: Adaptation
    """Everything that was computed."""
    folder: Path
    """If nobody named one, it is removed with this object."""
    device: str = "auto"
    index: Any = None
    """Of the predictions; that of the target, if it is a DataFrame."""

    @cached_property
    def predictions(self) -> DataFrame:
        """One row per target image: path, class, its probability, those of all classes, whether it
        may be of none."""
        found = self.adaptation
        best, p = found.predicted, found.probabilities
        named = [
            found.data.target.names,
            np.array(found.classes, dtype=object)[best],
            p.max(axis=1),
        ]
        names = [name for name in columns(found.classes) if name != "problem"]
        table = dict(zip(names, [*named, *p.T], strict=True)) | {"unknown": found.unknown.marked}
        return data_frame(table, index=self.index)

    @cached_property
    def model(self) -> Predictor:
        """The final model, ready to predict."""
        made = final_model(self.adaptation)
        return Predictor(made.card, made.weights, self.device)

    @cached_property
    def models(self) -> dict[str, Predictor]:
        """The model of each method that was trained, by the method's name, source-only first."""
        found = self.adaptation
        made = {
            one.name: final_model(with_saved(found, number))
            for number, one in enumerate(found.networks)
        }
        return {name: Predictor(m.card, m.weights, self.device) for name, m in made.items()}

    def predict(self, x: Any, shares: ClassShares = "equal") -> NDArray[np.str_]:
        """Predict the class of each input by the final model. (n,)"""
        return self.model.predict(x, shares)

    def audit(self, labels: Any) -> Audit:
        """Evaluate every method on target labels collected afterwards: `askew.audit`."""
        return audit_folder(self.folder, labels_of(labels, self.adaptation.data.target.names))

    @property
    def report(self) -> Path:
        """The report, an HTML page."""
        return self.folder / "report.html"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Every number of the report, as plain values."""
        return summary(self.adaptation)

    def __repr__(self) -> str:
        found = self.adaptation
        verdict = "" if found.verdict is None else f" ({found.verdict.verdict})"
        what = f"{len(found.predicted):,} target images, {len(found.classes)} classes"
        return f"<AdaptationResult: {found.final.name}{verdict}; {what}; {self.report}>"

    def _repr_html_(self) -> str:
        found = self.adaptation
        head = ["method", *(SCORES[name].title for name in CHOOSERS), "against source", ""]
        rows = [
            [
                one.name,
                *(f"{scores[name]:.3f}" for name in CHOOSERS),
                found.verdicts[one.name].verdict if i else "–",
                "saved" if i == found.saved else "",
            ]
            for i, (one, scores) in enumerate(zip(found.networks, found.scores, strict=True))
        ]
        expected = "" if found.expected is None else f"<p>{escape(found.expected.sentence)}</p>"
        shares = _shares(
            found.diagnosis, found.data, np.bincount(found.predicted, minlength=len(found.classes))
        )
        return (
            f"<div><p><strong>{escape(found.sentence)}</strong></p>{expected}"
            f"{html_table(head, rows)}{shares}"
            "<p>Scores without labels; higher is better. Report: "
            f"<code>{escape(str(self.report))}</code></p></div>"
        )


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosisResult:
    """What differs between two domains: a sentence, the tests behind it, and the estimated label
    distribution.

    >>> askew.diagnose((xs, ys), xt, training=short).shares.index.tolist()
    ['cat', 'dog', 'owl']
    """

    diagnosis: Diagnosis
    data: CustomData

    @property
    def kind(self) -> str:
        """none, label, feature or both."""
        return self.diagnosis.kind

    @property
    def sentence(self) -> str:
        return self.diagnosis.sentence

    @property
    def summary(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"classes": list(self.data.task.training_data.classes), **self.diagnosis.as_dict()}

    @cached_property
    def shares(self) -> DataFrame:
        """The share of each class in the source, and in the target as estimated, with its 95 %
        interval."""
        prior = self.diagnosis.target_prior
        values = {
            "source": self.data.source_prior,
            "target": prior.prior,
            "low": prior.low,
            "high": prior.high,
        }
        return data_frame(values, index=list(self.data.task.training_data.classes))

    def __repr__(self) -> str:
        return f"<DiagnosisResult: {self.sentence} ({self.diagnosis.sure})>"

    def _repr_html_(self) -> str:
        tests = (
            self.diagnosis.outputs,
            self.diagnosis.prior_differs,
            *self.diagnosis.remains.values(),
        )
        rows = [
            [
                test.question,
                "yes" if test.significant else "no",
                f"{test.p:.4f}",
                f"{test.size:.2f} {test.unit}",
            ]
            for test in tests
        ]
        table = html_table(["question", "answer", "p", "how much"], rows)
        sentence = f"{escape(self.sentence)} ({self.diagnosis.sure})"
        shares = _shares(self.diagnosis, self.data)
        return f"<div><p><strong>{sentence}</strong></p>{table}{shares}</div>"


def _shares(diagnosis: Diagnosis, data: CustomData, predicted: Any = None) -> str:
    """The label distributions as a table."""
    prior, head = (
        diagnosis.target_prior,
        ["class", "source, %", "target, estimated, %", "95 % interval"],
    )
    values = np.stack([data.source_prior, prior.prior, prior.low, prior.high], axis=1) * 100
    rows = [
        [name, f"{source:.1f}", f"{target:.1f}", f"{low:.1f} – {high:.1f}"]
        for name, (source, target, low, high) in zip(
            data.task.training_data.classes, values.tolist(), strict=True
        )
    ]
    if predicted is not None:
        head, rows = (
            [*head, "predicted"],
            [[*row, str(n)] for row, n in zip(rows, predicted, strict=True)],
        )
    return html_table(head, rows)
