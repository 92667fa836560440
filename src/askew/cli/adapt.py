"""Commands for your own data: adapt, audit, diagnose."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.common import app, at_least, pairs
from askew.cli.options import OWN_DATA, AsJson, Device, Seed, TrainingSettings, expand_options
from askew.cli.terminal import print_json, print_note, print_table, print_text
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.adaptation.audit import Audit
    from askew.adaptation.pipeline import Adaptation
    from askew.adaptation.setup import AdaptRequest
    from askew.data.custom import CustomData
    from askew.evaluation.diagnosis import Diagnosis


SourcePath = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE", help="Labelled data: a folder with one sub-folder per class, a list, or an array."
    ),
]
TargetPath = Annotated[Path, typer.Argument(metavar="TARGET", help="Unlabelled data: a folder, a list, or an array.")]


@dataclass(frozen=True)
class NetworkOptions:
    """The network that is trained on your own data, and how."""

    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            help="A torchvision network, timm:NAME, mini, digits-28 or digits-32; for feature rows: mlp or bare. "
            "Default: one that fits the data.",
        ),
    ] = ""
    weights: Annotated[
        str, typer.Option("--weights", help="Initial weights of the backbone: hub, none, or a .safetensors file.")
    ] = "hub"
    quick: Annotated[
        bool, typer.Option("--quick", help="A first estimate within a minute, from a sample of the images.")
    ] = False
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Ignore images that cannot be decoded.")] = False
    train: TrainingSettings = field(default_factory=list)
    seed: Seed = 0
    device: Device = "auto"

    def request(self, source: Path, target: Path, method: str, fine_tune: bool | None) -> AdaptRequest:
        from askew.adaptation.setup import AdaptRequest

        at_least("--seed", self.seed, 0)
        training = pairs(self.train, "training")
        network = (self.backbone, self.weights, fine_tune, self.quick)
        return AdaptRequest(source, target, method, *network, self.seed, training, self.skip_broken)


# --- adapt ---


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def adapt(
    source: SourcePath,
    target: TargetPath,
    *,
    folder: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for the results; started again, adapt continues there.")
    ],
    method: Annotated[str, typer.Option("--method", "-m", help="auto, a method by id, or file.py:Class.")] = "auto",
    fine_tune: Annotated[
        bool | None,
        typer.Option(
            "--fine-tune/--frozen",
            help="Train the backbone, or only the layers on top of it; default: train it on a GPU.",
        ),
    ] = None,
    options: NetworkOptions,
    as_json: AsJson = False,
) -> None:
    """Adapt a classifier to your own unlabelled target data, and estimate whether that helped.

    Writes a model, predictions for the target and a report.
    """
    from askew.adaptation.artifacts import summary, write_artifacts
    from askew.adaptation.pipeline import adapt as adapted
    from askew.adaptation.setup import check_out
    from askew.cli.progress import watch
    from askew.core.device import pick_device

    request = options.request(source, target, method, fine_tune)
    check_out(folder)
    found = watch(adapted(request, folder, pick_device(options.device)))
    write_artifacts(found, folder)
    if found.setup.data.target.labels_ignored:
        print_note("The target's labels were not read.")
    if as_json:
        print_json(summary(found))
        return
    _print_adaptation(found)
    print_note(f"report in {folder / 'report.html'}, model in {folder / 'model'}")


def _print_adaptation(found: Adaptation) -> None:
    """The methods with their label-free scores, the verdict, and the estimated label distribution."""
    from askew.adaptation.findings import adaptation_findings
    from askew.evaluation.validators import CHOOSERS, SCORES

    rows = []
    for i, (trained, scores) in enumerate(zip(found.trained, found.scores, strict=True)):
        name = trained.candidate.name
        verdict = found.verdicts[name].verdict if i else "–"
        values = [f"{scores[n]:.3f}" for n in CHOOSERS]
        rows.append([name, *values, verdict, "chosen" if i == found.chosen else ""])
    titles = [SCORES[n].title if n in SCORES else n for n in CHOOSERS]
    print_table(["method", *titles, "against source", ""], rows)
    print_text(found.sentence)
    _print_label_distribution(found.diagnosis, found.setup.data)
    for finding in adaptation_findings(found):
        print_note(f"{finding.code} {finding.what}: {finding.remedy}")


def _print_label_distribution(diagnosis: Diagnosis, data: CustomData) -> None:
    prior = diagnosis.target_prior
    values = zip(data.task.training_data.classes, data.source_prior, prior.prior, prior.low, prior.high, strict=True)
    print_table(
        ["class", "source, %", "target, estimated, %", "95 % interval"],
        [
            [name, f"{100 * source:.1f}", f"{100 * target:.1f}", f"{100 * low:.1f} – {100 * high:.1f}"]
            for name, source, target, low, high in values
        ],
    )


# --- audit ---


@app.command(rich_help_panel=OWN_DATA)
def audit(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder that `askew adapt … -o OUT` wrote.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="LABELS", help="Labels of target images: a list of path,label, a folder, or an array with y."
        ),
    ] = None,
    draw: Annotated[int, typer.Option("--draw", help="Sample this many target images at random to label.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the sampled images; default: OUT/to-label.csv.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate an adaptation on target labels collected afterwards; a few are enough.

    The labels are used for evaluation only.
    """
    from askew.adaptation.audit import audit as audited

    if labels is None:
        _sample_to_label(folder, draw, sheet or folder / "to-label.csv", as_json)
        return
    if draw or sheet:
        raise UserError("--draw and --out sample images to label, and cannot be used with LABELS.", "leave them out.")
    found = audited(folder, labels)
    if as_json:
        print_json(found.as_dict())
    else:
        _print_audit(found)


def _sample_to_label(folder: Path, draw: int, sheet: Path, as_json: bool) -> None:
    from askew.adaptation.audit import draw_sheet

    if not draw:
        raise UserError(
            "There are no labels to evaluate on.", f"askew audit {folder} --draw 100 samples images to label."
        )
    at_least("--draw", draw, 1)
    drawn = draw_sheet(folder, draw, sheet)
    if as_json:
        print_json({"sheet": str(sheet), "images": drawn})
    else:
        print_text(f"{drawn} target images in {sheet}: fill in the labels, then `askew audit {folder} {sheet}`.")


def _print_audit(found: Audit) -> None:
    head = ["method", "per-class mean, %", "above source", "verdict", "without labels", "overall, %", "worst class, %"]
    print_table(
        [*head, ""],
        [
            [
                m.name, str(m.accuracy), "–" if m.gain is None else f"{m.gain}", m.verdict, m.label_free or "–",
                f"{m.scores['overall']:.1f}", f"{m.scores['worst']:.1f} {found.classes[m.scores['worst_class']]}",
                "chosen" if m.chosen else "",
            ]
            for m in found.methods
        ],
    )  # fmt: skip
    print_text(found.sentence)
    shares = zip(found.classes, found.counts, found.target_prior, strict=True)
    print_table(
        ["class", "labels", "labels, %", "target, estimated, %"],
        [[name, str(n), f"{100 * n / found.labelled:.1f}", f"{100 * share:.1f}"] for name, n, share in shares],
    )
    if found.unseen:
        print_note(f"Classes without a label, which the means leave out: {', '.join(found.unseen)}.")
    if found.labelled < found.images:
        print_note("This assumes that the labelled images are a random sample; `--draw` draws one.")


# --- diagnose ---


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def diagnose(
    source: SourcePath,
    target: TargetPath,
    *,
    folder: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to keep the network in; `askew adapt` continues there.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="A trained model to use instead of training one.")
    ] = None,
    options: NetworkOptions,
    as_json: AsJson = False,
) -> None:
    """Test whether source and target differ in their label distribution, in their appearance, or in both."""
    from askew.adaptation.pipeline import diagnosed
    from askew.adaptation.setup import check_out
    from askew.cli.progress import watch
    from askew.core.device import pick_device

    request = options.request(source, target, "source", fine_tune=False)
    if folder is not None:
        check_out(folder)
    with tempfile.TemporaryDirectory(prefix="askew-") as temporary:
        found, data = watch(diagnosed(request, folder or Path(temporary), pick_device(options.device), model))
    if as_json:
        print_json({"classes": list(data.task.training_data.classes), **found.as_dict()})
        return
    print_text(f"{found.sentence} ({found.sure})")
    print_table(
        ["question", "answer", "p", "how much"],
        [
            [test.question, "yes" if test.found else "no", f"{test.p:.4f}", f"{test.size:.2f} {test.unit}"]
            for test in (found.outputs, found.prior_differs, *found.remains.values())
        ],
    )
    _print_label_distribution(found, data)
