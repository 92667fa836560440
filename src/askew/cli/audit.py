"""Commands for a finished adaptation: audit, with labels of target images, choose, and push."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.adapt import adapt_and_print
from askew.cli.common import app, at_least
from askew.cli.options import OWN_DATA, AsJson, Device, LabelColumn, PathColumn, Verbose
from askew.cli.terminal import print_json, print_note, print_table, print_text
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.adaptation.audit import Audit


@app.command(rich_help_panel=OWN_DATA)
def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder that `askew adapt … -o OUT` wrote.")
    ],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="LABELS",
            help="Labels of target images: a list of path,label, a folder, or an array with y.",
        ),
    ] = None,
    draw: Annotated[
        int, typer.Option("--sample", help="Sample this many target images at random to label.")
    ] = 0,
    disagree: Annotated[
        bool,
        typer.Option("--disagree", help="With --sample: three of four where the methods disagree."),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="File for the sampled images; default: OUT/to-label.csv."),
    ] = None,
    path_column: PathColumn = "",
    label_column: LabelColumn = "",
    as_json: AsJson = False,
) -> None:
    """Evaluate an adaptation on target labels collected afterwards; a few are enough.

    The labels are used for evaluation only.
    """
    from askew.adaptation.audit import audit as audited
    from askew.data.image_lists import Columns

    if labels is None:
        _sample_to_label(folder, draw, sheet or folder / "to-label.csv", disagree, as_json)
        return
    if draw or sheet or disagree:
        raise UserError(
            "--sample, --disagree and --out draw images to label, and cannot be used with LABELS.",
            "leave them out.",
        )
    found = audited(folder, labels, Columns(path_column, label_column))
    if as_json:
        print_json(found.as_dict())
    else:
        _print_audit(found)


def _sample_to_label(folder: Path, draw: int, sheet: Path, disagree: bool, as_json: bool) -> None:
    from askew.adaptation.audit import draw_sheet, target_names

    if not draw:
        target_names(folder)  # in a folder of something else, --sample would not help
        raise UserError(
            "There are no labels to evaluate on.",
            f"askew audit {folder} --sample 100 samples images to label.",
        )
    at_least("--sample", draw, 1)
    drawn = draw_sheet(folder, draw, sheet, disagree)
    if as_json:
        print_json({"sheet": str(sheet), "images": drawn})
    else:
        print_text(
            f"{drawn} target images in {sheet}: fill in the labels, then `askew audit {folder} "
            f"{sheet}`."
        )


def _print_audit(found: Audit) -> None:
    head = [
        "method",
        "per-class mean, %",
        "above source",
        "verdict",
        "without labels",
        "overall, %",
        "worst class, %",
    ]
    print_table(
        [*head, ""],
        [
            [
                m.name,
                str(m.accuracy),
                "–" if m.gain is None else f"{m.gain}",
                m.verdict,
                m.label_free or "–",
                f"{m.scores['overall']:.1f}",
                f"{m.scores['worst']:.1f} {found.classes[m.scores['worst_class']]}",
                "saved" if m.saved else "",
            ]
            for m in found.methods
        ],
    )
    print_text(f"{found.sentence} {found.outlook}")
    shares = zip(found.classes, found.counts, found.label_prior, found.target_prior, strict=True)
    print_table(
        ["class", "labels", "labels, %", "target, estimated, %"],
        [
            [name, str(n), f"{100 * own:.1f}", f"{100 * share:.1f}"]
            for name, n, own, share in shares
        ],
    )
    if found.unseen:
        print_note(
            f"Classes without a label, which the means leave out: {', '.join(found.unseen)}."
        )
    if found.labelled < found.images:
        print_note(
            "This assumes that the labelled images are a random sample, as `--sample` draws them."
        )


# --- choose ---


@app.command(rich_help_panel=OWN_DATA)
def choose(
    folder: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder that `askew adapt … -o OUT` wrote.")
    ],
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="One of the methods in its table, such as source."),
    ],
    allow_code: Annotated[
        bool,
        typer.Option("--allow-code", help="Run the file of a method or backbone that OUT names."),
    ] = False,
    device: Device = "auto",
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Hand out another of the networks that `askew adapt` trained: its model, predictions and
    report; no training."""
    from askew.adaptation.artifacts import earlier_request
    from askew.methods import is_file

    request = replace(earlier_request(folder), take=method)
    for name in () if allow_code else (*request.methods, request.backbone):
        if is_file(name):
            raise UserError(
                f"The adaptation in {folder} was made by {name}, which is code of somebody's file.",
                "read it; then --allow-code runs it.",
            )
    adapt_and_print(request, folder, device, as_json, overwrite=True, verbose=verbose)


@app.command(rich_help_panel=OWN_DATA)
def push(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder that `askew adapt` wrote, of a model, or of a finished run."
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="OWNER/NAME", help="The model's repository on the Hugging Face Hub."
        ),
    ],
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="Make a new repository that everybody can see; default: private."
        ),
    ] = False,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--audit", help="Target labels, as for `askew audit`: the card reports the audit."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a model on the Hugging Face Hub, with a generated model card; `askew.load` reads it
    from there.

    Weights, description and card are sent; no image, no prediction and no path.
    """
    from askew.adaptation.audit import audit as audited
    from askew.inference.publish import AuditSection
    from askew.inference.publish import push as published

    section = None
    if labels is not None:
        found = audited(model, labels)
        rows = [
            [m.name, str(m.accuracy), "–" if m.gain is None else str(m.gain), m.verdict]
            for m in found.methods
        ]
        section = AuditSection(found.sentence, rows)
    address = published(model, name, public=public, audited=section)
    if as_json:
        print_json({"address": address, "model": f"hf://{name}"})
    else:
        print_note(f'{address}; askew.load("hf://{name}") reads it')
