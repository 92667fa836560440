"""Commands for data of one's own: adapt, audit, diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import AsJson, Device, TrainOption, app, at_least, pairs
from askew.cli.terminal import err, out, print_json, print_table, watch
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.adaptation.pipeline import Adaptation
    from askew.data.custom import CustomData
    from askew.evaluation.diagnosis import Diagnosis


SourcePath = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Labelled: a folder with a sub-folder a class, a list, or an array.")
]
TargetPath = Annotated[Path, typer.Argument(metavar="TARGET", help="Without labels: a folder, a list, or an array.")]
Backbone = Annotated[
    str,
    typer.Option("--backbone", help="A torchvision network, timm:NAME, mini, digits-28, digits-32; of rows mlp, bare."),
]
Weights = Annotated[str, typer.Option("--weights", help="Of the backbone: hub, none, or a .safetensors file.")]
Frozen = Annotated[
    bool | None,
    typer.Option("--fine-tune/--frozen", help="Train the backbone, or only what stands on it; default: by device."),
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave pictures out that cannot be decoded.")]
Seed = Annotated[int, typer.Option("--seed", help="Of training.")]
Quick = Annotated[bool, typer.Option("--quick", help="A first answer within a minute, from some of the pictures.")]


@app.command()
def adapt(
    source: SourcePath,
    target: TargetPath,
    folder: Annotated[Path, typer.Option("-o", "--out", help="Folder to write to; stopped, it goes on from there.")],
    method: Annotated[str, typer.Option("--method", "-m", help="auto, an id, or file.py:Class.")] = "auto",
    backbone: Backbone = "",
    weights: Weights = "hub",
    fine_tune: Frozen = None,
    quick: Quick = False,
    train: TrainOption = [],  # noqa: B006
    seed: Seed = 0,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    as_json: AsJson = False,
) -> None:
    """Adapt a classifier to your own target, which has no labels, and say whether that helped.

    Leaves a model, predictions of the target and a report in the folder.
    """
    from askew.adaptation.artifacts import summary, write_artifacts
    from askew.adaptation.pipeline import Order, check_out
    from askew.adaptation.pipeline import adapt as adapted
    from askew.core.device import pick_device

    at_least("--seed", seed, 0)
    order = Order(
        source, target, method, backbone, weights, fine_tune, quick, seed, pairs(train, "training"), skip_broken
    )
    check_out(folder)
    found = watch(adapted(order, folder, pick_device(device)))
    write_artifacts(found, folder)
    _say_unread(found)
    if as_json:
        print_json(summary(found))
        return
    _print(found)
    err.print(f"report in {folder / 'report.html'}, model in {folder / 'model'}", soft_wrap=True, markup=False)


def _say_unread(found: Adaptation) -> None:
    if found.setup.data.target.labels_ignored:
        err.print("The target's labels were not read.", soft_wrap=True)


def _print(found: Adaptation) -> None:
    """The methods with their scores, the verdict, and the class mix."""
    from askew.adaptation.findings import remarks
    from askew.evaluation.validators import CHOOSERS, SCORES

    rows = []
    for i, (trained, scores) in enumerate(zip(found.trained, found.scores, strict=True)):
        name = trained.candidate.name
        verdict = found.verdicts[name].verdict if i else "–"
        values = [f"{scores[n]:.3f}" for n in CHOOSERS]
        rows.append([name, *values, verdict, "chosen" if i == found.chosen else ""])
    titles = [SCORES[n].title if n in SCORES else n for n in CHOOSERS]
    print_table(["method", *titles, "against source", ""], rows)
    out.print(found.sentence, soft_wrap=True, markup=False)
    _print_mix(found.diagnosis, found.setup.data)
    for remark in remarks(found):
        err.print(f"{remark.code} {remark.what}: {remark.remedy}", soft_wrap=True, markup=False)


def _print_mix(diagnosis: Diagnosis, data: CustomData) -> None:
    mix = diagnosis.mix
    values = zip(data.task.training_data.classes, data.source_prior, mix.mix, mix.low, mix.high, strict=True)
    print_table(
        ["class", "source, %", "target, estimated, %", "95 % interval"],
        [
            [name, f"{100 * b:.1f}", f"{100 * v:.1f}", f"{100 * low:.1f} – {100 * high:.1f}"]
            for name, b, v, low, high in values
        ],
    )


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="What `askew adapt … -o OUT` wrote.")],
    labels: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LABELS]", help="Of target images: a list of path,label, a folder, or an array with y."
        ),
    ] = None,
    draw: Annotated[int, typer.Option("--draw", help="Draw so many images at random, for you to label.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option("-o", "--out", help="Where to write those; default OUT/to-label.csv.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold an adaptation against labels that you have found since, even a few, and say whether it helped.

    Nothing is chosen or trained by them.
    """
    from askew.adaptation.audit import audit as audited
    from askew.adaptation.audit import draw_sheet

    if labels is None:
        if not draw:
            raise UserError(
                "There are no labels to hold it against.", f"askew audit {folder} --draw 100 draws images to label."
            )
        at_least("--draw", draw, 1)
        sheet = sheet or folder / "to-label.csv"
        drawn = draw_sheet(folder, draw, sheet)
        if as_json:
            print_json({"sheet": str(sheet), "images": drawn})
        else:
            out.print(
                f"{drawn} target images in {sheet}: fill in the labels, then `askew audit {folder} {sheet}`.",
                soft_wrap=True, markup=False,
            )  # fmt: skip
        return
    if draw or sheet:
        raise UserError(
            "--draw and --out are for labels that are not there yet.", "leave them out, or leave LABELS out."
        )
    found = audited(folder, labels)
    if as_json:
        print_json(found.as_dict())
        return
    print_table(
        ["method", "per-class mean, %", "above source", "labels say", "without", "overall, %", "worst class, %", ""],
        [
            [
                m.name, str(m.accuracy), "–" if m.gain is None else f"{m.gain}", m.truth, m.said or "–",
                f"{m.scores['overall']:.1f}", f"{m.scores['worst']:.1f} {found.classes[m.scores['worst_class']]}",
                "chosen" if m.chosen else "",
            ]
            for m in found.methods
        ],
    )  # fmt: skip
    out.print(found.sentence, soft_wrap=True, markup=False)
    shares = zip(found.classes, found.counts, found.mix, strict=True)
    print_table(
        ["class", "labels", "labels, %", "target, estimated, %"],
        [[name, str(n), f"{100 * n / found.labelled:.1f}", f"{100 * share:.1f}"] for name, n, share in shares],
    )
    if found.unseen:
        err.print(f"Without a label, and in no mean: {', '.join(found.unseen)}.", soft_wrap=True, markup=False)
    if found.labelled < found.images:
        err.print("These labels are taken for a random sample; `--draw` draws one.", soft_wrap=True)


@app.command()
def diagnose(
    source: SourcePath,
    target: TargetPath,
    folder: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder to keep what is trained in; `askew adapt` goes on there.")
    ] = None,
    model: Annotated[Path | None, typer.Option("--model", help="A trained model, in place of a new one.")] = None,
    backbone: Backbone = "",
    weights: Weights = "hub",
    quick: Quick = False,
    train: TrainOption = [],  # noqa: B006
    seed: Seed = 0,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
    as_json: AsJson = False,
) -> None:
    """Say whether source and target differ in their class mix, in their look, or both."""
    import tempfile

    from askew.adaptation.pipeline import Order, check_out, diagnosed
    from askew.core.device import pick_device

    at_least("--seed", seed, 0)
    order = Order(
        source, target, "source", backbone, weights, False, quick, seed, pairs(train, "training"), skip_broken
    )
    if folder is not None:
        check_out(folder)
    with tempfile.TemporaryDirectory(prefix="askew-") as temporary:
        found, data = watch(diagnosed(order, folder or Path(temporary), pick_device(device), model))
    if as_json:
        told: dict[str, Any] = {"classes": list(data.task.training_data.classes), **found.as_dict()}
        print_json(told)
        return
    out.print(f"{found.sentence} ({found.sure})", soft_wrap=True, markup=False)
    print_table(
        ["question", "answer", "p", "how much"],
        [
            [test.question, "yes" if test.found else "no", f"{test.p:.4f}", f"{test.size:.2f} {test.unit}"]
            for test in (found.outputs, found.mix_differs, *found.remains.values())
        ],
    )
    _print_mix(found, data)
