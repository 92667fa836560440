"""What `askew adapt` prints at the end: verdict, expected accuracy, class shares, next step,
files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from askew.cli.terminal import print_note, print_table, print_text

if TYPE_CHECKING:
    from askew.adaptation.assessment import Adaptation
    from askew.data.custom import CustomData
    from askew.evaluation.diagnosis import Diagnosis

MOST_SHARES, MOST_FINDINGS = 3, 4
"""Lines of class shares and of findings, so that all of it stays within 15 lines."""


def print_end(found: Adaptation, folder: Path, *, verbose: bool) -> None:
    """Print what matters most, in at most 15 lines; if `verbose`, all scores, shares and
    findings."""
    print_text(found.sentence)
    print_text(_expected(found))
    if verbose:
        print_label_distribution(found.diagnosis, found.data)
    else:
        for line in _top_shares(found):
            print_text(line)
    _print_findings(found, all_of_them=verbose)
    if verbose:
        _print_scores(found)
    print_text(_next_step(found, folder))
    print_note(
        f"report in {folder / 'report.html'}, model in {folder / 'model'}, predictions in "
        f"{folder / 'predictions.csv'}"
    )


def _expected(found: Adaptation) -> str:
    expected = found.expected
    if expected is not None and expected.before is not None:
        return expected.sentence
    if expected is not None:
        return (
            f"Expected accuracy: {100 * expected.overall:.0f} % "
            f"({100 * expected.per_class_mean:.0f} % as a mean over classes), as often as two of "
            f"{expected.networks} networks agree; not known without adaptation."
        )
    return "Expected accuracy: not known from one network; labels of 50 target images tell it."


def _top_shares(found: Adaptation) -> list[str]:
    """The classes whose share changes most, by the estimate."""
    prior, source = found.diagnosis.target_prior, found.data.source_prior
    order = sorted(range(len(found.classes)), key=lambda k: -abs(float(prior.prior[k] - source[k])))
    unsure = ", unsure" if prior.unsure else ""
    rest = len(order) - MOST_SHARES
    more = f"; {rest} more in the report" if rest > 0 else ""
    lines = [f"Class shares in the source and the target (estimated{unsure}){more}:"]
    for k in order[:MOST_SHARES]:
        ends = f"{100 * prior.low[k]:.1f} – {100 * prior.high[k]:.1f}"
        lines.append(
            f"  {found.classes[k]}: {100 * source[k]:.1f} % → {100 * prior.prior[k]:.1f} % "
            f"(95 % interval {ends})"
        )
    return lines


def _print_findings(found: Adaptation, *, all_of_them: bool) -> None:
    from askew.adaptation.findings import adaptation_findings

    findings = adaptation_findings(found)
    most = len(findings) if all_of_them else MOST_FINDINGS
    for finding in findings[:most]:
        print_note(f"{finding.code} {finding.what}: {finding.remedy}")
    if len(findings) > most:
        codes = ", ".join(finding.code for finding in findings[most:])
        print_note(f"{len(findings) - most} more findings in the report: {codes}")


def _next_step(found: Adaptation, folder: Path) -> str:
    verdict = None if found.verdict is None else found.verdict.verdict
    if verdict == "helped":
        return (
            f"Next: `askew predict {folder} IMAGES` labels new images; `askew audit {folder} "
            "--sample 50` measures the accuracy."
        )
    if verdict == "hurt":
        return f"Next: `askew choose {folder} source` saves the network without adaptation."
    return (
        f"Next: `askew audit {folder} --sample 50` draws images to label, which measure the "
        "accuracy."
    )


def _print_scores(found: Adaptation) -> None:
    from askew.evaluation.scores import SCORES
    from askew.evaluation.selection import CHOOSERS

    rows = []
    for i, (one, scores) in enumerate(zip(found.networks, found.scores, strict=True)):
        verdict = found.verdicts[one.name].verdict if i else "–"
        values = [f"{scores[n]:.3f}" for n in CHOOSERS]
        rows.append([one.name, *values, verdict, "saved" if i == found.saved else ""])
    titles = [SCORES[n].title if n in SCORES else n for n in CHOOSERS]
    print_table(["method", *titles, "against source", ""], rows)


def print_label_distribution(diagnosis: Diagnosis, data: CustomData) -> None:
    """Print the share of each class in the source and in the target, with its interval."""
    prior = diagnosis.target_prior
    values = zip(
        data.task.training_data.classes,
        data.source_prior,
        prior.prior,
        prior.low,
        prior.high,
        strict=True,
    )
    rows: list[Sequence[str]] = [
        [name, f"{100 * source:.1f}", f"{100 * target:.1f}", f"{100 * low:.1f} – {100 * high:.1f}"]
        for name, source, target, low, high in values
    ]
    print_table(["class", "source, %", "target, estimated, %", "95 % interval"], rows)
