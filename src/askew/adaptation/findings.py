"""Coded remarks on an adaptation: what was found, why it matters, what to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from askew.adaptation.pipeline import Adaptation
from askew.data.custom import few
from askew.reports.findings import Check

FEW_TARGET = 100
FEW_SOURCE = 10
WEAK = 0.6
MOST = 0.6


def remarks(found: Adaptation) -> list[Check]:
    """All of them by code; none stops anything."""
    data, request = found.setup.data, found.request
    training_data = data.task.training_data
    verdict = found.verdict
    remains = found.diagnosis.remains.get("adapted" if found.chosen else "unadapted")
    findings = (
        ("A101", "The features began from nothing", "a large network learns little from few pictures; what looks like "
         "a failure of adaptation is one of its features.", "use --weights hub or --weights FILE.safetensors.",
         [found.setup.description] if _from_scratch(found) else []),
        ("A102", "Pictures that cannot be decoded were left out", "if they are of one kind or class, the rest tells "
         "another story.", "mend or remove them.", [*data.source.broken, *data.target.broken]),
        ("A103", "The target brought labels that the source does not have", "each of its images is given one of the "
         "source's classes, whatever it shows. Their names were compared, nothing else.",
         "leave such images out, or add source images of those classes.", data.unknown),
        ("A104", "Target images that are in the source too", "their labels are known, and they make every estimate "
         "look better than it is.", "take them out of one side.",
         [f"{data.shared:,} of {len(training_data.target):,} target images"] if data.shared else []),
        ("A105", f"Classes with fewer than {FEW_SOURCE} source images", "the network hardly knows them, and next to "
         "none are held out to see how it does.", "label a few more of them.", _rare(found)),
        ("A106", "Few target images", "estimates of the class mix and the verdict rest on little; see their intervals.",
         f"{FEW_TARGET} and more make them worth reading.",
         [f"{len(training_data.target)} images"] if len(training_data.target) < FEW_TARGET else []),
        ("A107", "The network is weak on its own source", f"less than {WEAK:.0%} of held-out source images are right, "
         "as a mean over classes; nothing that follows can be better than that.",
         "use pre-trained weights, more rounds (-t rounds=…) or more labels before you adapt.", _weak(found)),
        ("A108", "It is not clear that adaptation helped", "the label-free scores disagree or are too close to call.",
         "label some fifty target images at random and compare the two networks on them.",
         [verdict.sentence] if verdict is not None and verdict.verdict == "unclear" else []),
        ("A109", "Adaptation is likely to have done harm", "the networks together side with the "
         "unadapted one, most scores fell, or the predictions collapsed.",
         "use the network without adaptation: --method source.",
         [verdict.sentence] if verdict is not None and verdict.verdict == "hurt" else []),
        ("A110", "The predictions have collapsed", "nearly all target images are given a few classes, which no "
         "plausible mix explains.", "use the network without adaptation, or a weaker form of the method.",
         [found.winner.candidate.name] if verdict is not None and verdict.collapsed else []),
        ("A111", "The target's class mix could not be estimated well", "the network confuses classes on its own "
         "source, so the estimate may divide them as it likes.",
         "look at which classes are alike; do not decide under it.",
         [found.diagnosis.target_prior.estimator] if found.diagnosis.target_prior.unsure else []),
        ("A112", "The target looks different beyond its class mix", "the estimate of the mix assumes that a class "
         "looks the same on both sides; here it is a guess.", "trust the intervals less than they look.",
         [str(remains)] if remains is not None and remains.found else []),
        ("A113", "Classes that no target image was given", "they may be missing there, or the network may miss them.",
         "look at the doubtful pictures for them.", _unseen(found)),
        ("A114", "A quick look", "some of the pictures, a few rounds, one method beside source-only.",
         "run it again without --quick.", [found.setup.description] if request.quick else []),
        ("A115", "A method could not be trained", "it is missing from the comparison.",
         "see why, and try another rate.", [f"{name}: {why}" for name, why in found.failed.items()]),
        ("A116", "Without adaptation, one class is given to most target images", "if that is not so in truth, the "
         "network is lost on the target. Every method began from its answers: the mix is then worthless, and what the "
         "methods agree on, which the verdict rests on, may be wrong together.",
         "look at the pictures; if they are of many classes, fine-tune, use another backbone, or label some.",
         _one_class(found)),
    )  # fmt: skip
    made = [Check(code, what, why, remedy, tuple(where)) for code, what, why, remedy, where in findings]
    return [check for check in made if check.where]


def _from_scratch(found: Adaptation) -> bool:
    spec = found.setup.backbone or found.winner.run.net
    large = found.setup.backbone is not None or found.setup.network not in (
        "mlp",
        "bare",
        "mini",
        "digits-28",
        "digits-32",
    )
    return large and spec.weights == "none"


def _rare(found: Adaptation) -> Iterator[str]:
    for name, n in zip(found.classes, found.setup.data.source_sizes.tolist(), strict=True):
        if n < FEW_SOURCE:
            yield f"{name}: {n}"


def _weak(found: Adaptation) -> Iterator[str]:
    said = found.trained[0].outputs
    right = said.source_val.argmax(axis=1) == said.source_val_y
    by_class = [right[said.source_val_y == k].mean() for k in np.unique(said.source_val_y)]
    if by_class and np.mean(by_class) < WEAK:
        yield f"{100 * float(np.mean(by_class)):.0f} % on {len(right)} held-out source images"


def _one_class(found: Adaptation) -> Iterator[str]:
    counts = np.bincount(found.trained[0].outputs.target.argmax(axis=1), minlength=len(found.classes))
    share = counts.max() / counts.sum()
    if share > MOST and share > 2 * found.setup.data.source_prior[counts.argmax()]:
        yield f"{found.classes[counts.argmax()]}: {100 * share:.0f} % of the target"


def _unseen(found: Adaptation) -> Iterator[str]:
    counts = np.bincount(found.predicted, minlength=len(found.classes))
    names = tuple(name for name, n in zip(found.classes, counts, strict=True) if not n)
    if names:
        yield few(names)
