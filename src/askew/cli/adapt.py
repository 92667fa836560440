"""Commands for your own data: adapt, diagnose."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.adaptation_end import print_end, print_label_distribution
from askew.cli.common import app, at_least, check_file_method, expand_options, pairs
from askew.cli.options import (
    DATA,
    OWN_DATA,
    TRAINING,
    AsJson,
    Device,
    LabelColumn,
    Log,
    PathColumn,
    Seed,
    TrainingSettings,
    Verbose,
)
from askew.cli.terminal import print_json, print_note, print_table, print_text
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.adaptation.request import AdaptRequest


SourcePath = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE",
        help="Labelled data: a folder with one sub-folder per class, a list, or an array.",
    ),
]
OptionalTarget = Annotated[
    Path | None,
    typer.Argument(metavar="TARGET", help="Unlabelled data: a folder, a list, or an array."),
]
TargetPath = Annotated[
    Path, typer.Argument(metavar="TARGET", help="Unlabelled data: a folder, a list, or an array.")
]


@dataclass(frozen=True)
class MethodOptions:
    """What adapts, and its hyper-parameters."""

    methods: Annotated[
        list[str],
        typer.Option(
            "--method",
            "-m",
            metavar="METHOD",
            help="auto, a method by id, or file.py:Class; several times: those that auto combines.",
        ),
    ] = field(default_factory=list)
    params: Annotated[
        list[str],
        typer.Option(
            "-p",
            "--param",
            metavar="NAME=VALUE",
            help="Hyper-parameter of the method; `askew methods METHOD` lists them.",
            rich_help_panel=TRAINING,
        ),
    ] = field(default_factory=list)
    search: Annotated[
        int,
        typer.Option(
            "--search",
            help="Try this many settings of the method's hyper-parameters, and choose one "
            "without labels.",
            rich_help_panel=TRAINING,
        ),
    ] = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The methods that were named; none for auto."""
        return () if self.methods == ["auto"] else tuple(self.methods)


@dataclass(frozen=True)
class NetworkOptions:
    """The network that is trained on your own data, and how."""

    backbone: Annotated[
        str,
        typer.Option(
            "--backbone",
            help="A torchvision network, timm:NAME, mini, digits-28 or digits-32, or your own: "
            "file.py:function; for "
            "feature rows: mlp or bare. Default: one that fits the data.",
        ),
    ] = ""
    weights: Annotated[
        str,
        typer.Option(
            "--weights", help="Initial weights: hub, none, or a .safetensors or .pth file."
        ),
    ] = "hub"
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A first estimate within a minute, from a sample of the images."
        ),
    ] = False
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Ignore images that cannot be decoded.")
    ] = False
    path_column: PathColumn = ""
    label_column: LabelColumn = ""
    train: TrainingSettings = field(default_factory=list)
    seed: Seed = 0
    device: Device = "auto"

    def request(
        self, source: Path, target: Path, method: MethodOptions, fine_tune: bool | None
    ) -> AdaptRequest:
        from askew.adaptation.request import AdaptRequest
        from askew.data.image_lists import Columns
        from askew.methods import method_class

        at_least("--seed", self.seed, 0)
        at_least("--search", method.search, 0)
        params = pairs(method.params, "the method")
        if params and len(method.names) != 1:
            raise UserError(
                "Hyper-parameters belong to one method, and several are combined.",
                "--method coal, say.",
            )
        return AdaptRequest(
            source=source,
            target=target,
            methods=method.names,
            params={method_class(name).id: params for name in method.names if params},
            search=method.search,
            backbone=self.backbone,
            weights=self.weights,
            fine_tune=fine_tune,
            quick=self.quick,
            seed=self.seed,
            training=pairs(self.train, "training"),
            skip_broken=self.skip_broken,
            columns=Columns(self.path_column, self.label_column),
        )


@dataclass(frozen=True)
class KnownOptions:
    """What is there beside the two domains."""

    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="Instead of SOURCE: a model to adapt again, without its source.",
            rich_help_panel=DATA,
        ),
    ] = None
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            help="Labels of some target images, to train with: a list of path,label, a folder, or "
            "an array.",
            rich_help_panel=DATA,
        ),
    ] = None
    target_shares: Annotated[
        Path | None,
        typer.Option(
            "--target-shares",
            help="The target's known class shares, which the predictions follow: lines of "
            "class,share, or JSON.",
            rich_help_panel=DATA,
        ),
    ] = None

    def added_to(self, request: AdaptRequest) -> AdaptRequest:
        return replace(request, labels=self.labels, target_shares=self.target_shares)


# --- adapt ---


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def adapt(
    source: SourcePath,
    target: OptionalTarget = None,
    *,
    folder: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="Folder for the results; started again, adapt continues there."
        ),
    ],
    methods: MethodOptions,
    fine_tune: Annotated[
        bool | None,
        typer.Option(
            "--fine-tune/--frozen",
            help="Train the backbone, or only the layers on top of it; default: train it on a GPU.",
        ),
    ] = None,
    known: KnownOptions,
    options: NetworkOptions,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the result of another adaptation in OUT.")
    ] = False,
    log: Log = [],  # noqa: B006 (Typer copies it)
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Adapt a classifier to your own unlabelled target data, and estimate whether that helped.

    Writes a model, predictions for the target and a report. `askew adapt --model OUT TARGET` adapts
    a model again.
    """
    from askew.core.tracking import checked_trackers
    from askew.runs.root import check_out

    if (target is None) != (known.model is not None):
        found = f"{source} alone" if target is None else "all three"
        hint = "askew adapt SOURCE TARGET, or askew adapt --model OUT TARGET."
        raise UserError(
            f"An adaptation takes a source or a model, and a target, found {found}.", hint
        )
    check_out(folder)
    for name in methods.names:
        check_file_method(name)
    if target is None:
        _adapt_again(source, folder, known, options, methods, as_json, overwrite)
        return
    request = replace(
        known.added_to(options.request(source, target, methods, fine_tune)),
        log=checked_trackers(log),
    )
    adapt_and_print(request, folder, options.device, as_json, overwrite=overwrite, verbose=verbose)


def _adapt_again(
    target: Path,
    folder: Path,
    known: KnownOptions,
    options: NetworkOptions,
    methods: MethodOptions,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Adapt a model without its source, write it and its predictions, and print what changed."""
    from askew.adaptation.artifacts import again_as_json, write_again
    from askew.adaptation.source_free import adapt_again
    from askew.adaptation.switch import identity, require_same
    from askew.cli.progress import watch
    from askew.core.device import pick_device
    from askew.data.custom import read_domain

    assert known.model is not None
    if (
        known != KnownOptions(model=known.model)
        or options.quick
        or options.backbone
        or methods.search
    ):
        raise UserError(
            "With --model there is no source to choose or train with.",
            "leave the other options out.",
        )
    request = options.request(known.model, target, methods, fine_tune=None)
    asked = identity(request)
    require_same(folder, asked, overwrite=overwrite)
    own = methods.names[0] if methods.names else ""
    domain = read_domain(target, "target", request.skip_broken, columns=request.columns)
    device = pick_device(options.device)
    found = watch(
        adapt_again(known.model, domain, dict(request.training), request.seed, device, own)
    )
    write_again(found, domain, folder, asked)
    if as_json:
        print_json(again_as_json(found, domain))
        return
    print_text(found.sentence)
    print_note(f"model in {folder / 'model'}, predictions in {folder / 'predictions.csv'}")


def adapt_and_print(
    request: AdaptRequest,
    folder: Path,
    device: str,
    as_json: bool,
    *,
    overwrite: bool = False,
    verbose: bool = False,
) -> None:
    """Adapt, write everything, and print it."""
    from askew.cli.progress import waiting, watch

    with waiting("starting"):
        from askew.adaptation.api import run_request
    result = run_request(request, folder, device, watch, overwrite=overwrite)
    found = result.adaptation
    if found.data.target.labels_ignored:
        print_note("The target's labels were not read.")
    if as_json:
        print_json(result.summary)
        return
    print_end(found, folder, verbose=verbose)


# --- diagnose ---


@app.command(rich_help_panel=OWN_DATA)
@expand_options
def diagnose(
    source: SourcePath,
    target: TargetPath,
    *,
    folder: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Folder to keep the network in; `askew adapt` continues there."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("--model", help="A trained model to use instead of training one.")
    ] = None,
    options: NetworkOptions,
    as_json: AsJson = False,
) -> None:
    """Test whether source and target differ in their label distribution, in their appearance, or in
    both."""
    from askew.adaptation.api import diagnose_request
    from askew.cli.progress import watch

    request = options.request(source, target, MethodOptions(["source"]), fine_tune=False)
    result = diagnose_request(request, folder, model, options.device, watch)
    if as_json:
        print_json(result.summary)
        return
    found, data = result.diagnosis, result.data
    print_text(f"{found.sentence} ({found.sure})")
    print_table(
        ["question", "answer", "p", "how much"],
        [
            [
                test.question,
                "yes" if test.significant else "no",
                f"{test.p:.4f}",
                f"{test.size:.2f} {test.unit}",
            ]
            for test in (found.outputs, found.prior_differs, *found.remains.values())
        ],
    )
    print_label_distribution(found, data)
