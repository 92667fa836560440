"""Findings about an adaptation: what was found in the data, the network and the outcome, why it
matters, what to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from askew.adaptation.assessment import Adaptation
from askew.data.custom import few
from askew.evaluation.priors import DEFAULT
from askew.evaluation.unknown_classes import ALARMS
from askew.nets.embedding import OWN_PREFIX
from askew.nets.small import OWN
from askew.reports.findings import Finding, has_few_classes, keep_findings

FEW_TARGET = 100
FEW_SOURCE = 10
WEAK = 0.6
"""Accuracy on held-out source images below which nothing built on the network is worth much."""
MOST = 0.6
"""Share of the target in one class above which the network may be close to chance there."""


STRANGE = 2 * ALARMS
"""Share of the target above which possible unknown-class images are a finding."""


def adaptation_findings(found: Adaptation) -> list[Finding]:
    """All of them by code; none stops anything."""
    return sorted(
        [*_data(found), *_network(found), *_outcome(found)], key=lambda finding: finding.code
    )


def _data(found: Adaptation) -> list[Finding]:
    data = found.data
    n = len(data.task.training_data.target)
    return keep_findings(
        (
            (*data.source.broken, *data.target.broken),
            "A102",
            "Images that cannot be decoded were left out",
            "if they are of one kind or one class, the rest is a biased sample.",
            "repair or remove them.",
        ),
        (
            data.unknown,
            "A103",
            "The target has labels that the source does not have",
            "each of its images is assigned one of the source's classes, whatever it shows. Only "
            "the names were compared.",
            "leave such images out, or add source images of those classes.",
        ),
        (
            [f"{data.shared:,} of {n:,} target images"] if data.shared else (),
            "A104",
            "Target images that are in the source too",
            "their labels are known, so every estimate looks better than it is.",
            "remove them from one side.",
        ),
        (
            _rare_classes(found),
            "A105",
            f"Classes with fewer than {FEW_SOURCE} source images",
            "the network has hardly seen them, and almost none are held out to evaluate it.",
            "label a few more of them.",
        ),
        (
            [f"{n} images"] if n < FEW_TARGET else (),
            "A106",
            "Few target images",
            "the estimated label distribution and the verdict rest on little data; see their "
            "intervals.",
            f"{FEW_TARGET} images and more make them useful.",
        ),
    )


def _network(found: Adaptation) -> list[Finding]:
    network = found.inputs.description
    return keep_findings(
        (
            [network] if _from_scratch(found) else (),
            "A101",
            "The backbone was randomly initialised",
            "a large network learns little from few images, so a failure here is one of its "
            "features, not of adaptation.",
            "use --weights hub or --weights FILE.safetensors.",
        ),
        (
            _weak_on_source(found),
            "A107",
            "The network is weak on its own source",
            f"less than {WEAK:.0%} of held-out source images are right, as a mean over classes; "
            "nothing that follows can "
            "be better than that.",
            "use pre-trained weights, more rounds (-t rounds=…) or more labels before you adapt.",
        ),
        (
            [network] if found.request is not None and found.request.quick else (),
            "A114",
            "A quick look",
            "only some of the images were taken, and networks were trained for a short time.",
            "run it again without --quick.",
        ),
        (
            [f"{name}: {why}" for name, why in found.failures.items()],
            "A115",
            "A method could not be trained",
            "it is missing from the comparison.",
            "read why, and try another learning rate.",
        ),
        (
            _strange(found),
            "A117",
            "Possible unknown-class images",
            "the methods disagree on them more than on 95 % of the held-out source. An image of an "
            "unknown class is still assigned a known one. Where the domains look different, many "
            "of these images show a known class.",
            "look at them in the report, and leave out those of no class; predictions.csv marks "
            "them.",
        ),
        (
            _one_class(found),
            "A116",
            "Without adaptation, most target images are assigned one class",
            "unless they are of that class, the network is close to chance on the target. Every "
            "method starts from its "
            "predictions: the estimated label distribution is then worthless, and what the "
            "methods agree on, which the "
            "verdict rests on, may be wrong for all of them.",
            "look at the images; if they are of many classes, fine-tune, use another backbone, "
            "or label some.",
        ),
        (
            _few_classes(found),
            "A118",
            "The target seems to have few of the source's classes",
            "so it seems without adaptation, where the network may also just miss the others. If "
            "they are absent, methods "
            "that draw target images evenly by predicted class (teacher; coal, balanced target) "
            "give many images to them.",
            "leave classes that you know to be absent out of the source, or use --method mcc, "
            "which draws none evenly.",
        ),
    )


def _outcome(found: Adaptation) -> list[Finding]:
    name = found.final.name
    verdict, compared = found.verdict, [f"{name} against source-only"]
    answer = None if verdict is None else verdict.verdict
    difference = found.diagnosis.remains.get("adapted" if found.saved else "unadapted")
    return keep_findings(
        (
            compared if answer == "unclear" else (),
            "A108",
            "It is not clear that adaptation helped",
            "the label-free scores disagree or are too close to call.",
            "label some fifty target images at random and compare the two networks on them: "
            "askew audit.",
        ),
        (
            compared if answer == "hurt" else (),
            "A109",
            "Adaptation is likely to have done harm",
            "the ensemble of networks agrees with the unadapted one, most scores fell, or the "
            "predictions collapsed.",
            "use the network without adaptation: --method source.",
        ),
        (
            [name] if verdict is not None and verdict.collapsed else (),
            "A110",
            "The predictions have collapsed",
            "nearly all target images are assigned a few classes, which no plausible label "
            "distribution explains.",
            "use the network without adaptation, or a weaker form of the method.",
        ),
        (
            _unsure_shares(found),
            "A111",
            "The label distribution of the target could not be estimated well",
            "the network confuses classes on its own source, or too few of its images are held "
            "out, so the shares may be wrong by much.",
            "look at which classes are alike; do not predict with --shares target.",
        ),
        (
            [str(difference)] if difference is not None and difference.significant else (),
            "A112",
            "The target looks different beyond its label distribution",
            "what was learnt from the source need not hold there, and so the label distribution "
            "is a guess.",
            "trust the intervals more than the estimate: they span what all networks say, where "
            "there are several.",
        ),
        (
            _unpredicted(found),
            "A113",
            "Classes that are predicted for no target image",
            "they may be absent there, or the network may miss them.",
            "look for them among the least confident images.",
        ),
    )


def _from_scratch(found: Adaptation) -> bool:
    """Whether a large backbone started from random weights; small networks always do."""
    inputs = found.inputs
    if inputs.embedders is not None:
        return inputs.embedders.target.embedding.weights == "none"
    net = found.final.run.net
    small = net.name in OWN or net.name.startswith(OWN_PREFIX)
    return inputs.kind == "images" and not small and net.weights == "none"


def _rare_classes(found: Adaptation) -> Iterator[str]:
    for name, n in zip(found.classes, found.data.source_sizes.tolist(), strict=True):
        if n < FEW_SOURCE:
            yield f"{name}: {n}"


def _weak_on_source(found: Adaptation) -> Iterator[str]:
    outputs = found.networks[0].outputs
    right = outputs.source_val.argmax(axis=1) == outputs.source_val_y
    by_class = [right[outputs.source_val_y == k].mean() for k in np.unique(outputs.source_val_y)]
    if by_class and np.mean(by_class) < WEAK:
        yield f"{100 * float(np.mean(by_class)):.0f} % on {len(right)} held-out source images"


def _one_class(found: Adaptation) -> Iterator[str]:
    counts = np.bincount(
        found.networks[0].outputs.target.argmax(axis=1), minlength=len(found.classes)
    )
    share = counts.max() / counts.sum()
    if share > MOST and share > 2 * found.data.source_prior[counts.argmax()]:
        yield f"{found.classes[counts.argmax()]}: {100 * share:.0f} % of the target"


def _few_classes(found: Adaptation) -> Iterator[str]:
    prior = found.diagnosis.priors["unadapted"][DEFAULT].prior
    if has_few_classes(prior):
        most = np.argsort(-prior)[:3]
        yield ", ".join(f"{found.classes[k]} {prior[k]:.0%}" for k in most if prior[k] > 0)


def _strange(found: Adaptation) -> Iterator[str]:
    share, n = found.unknown.share, found.unknown.marked.sum()
    if share > STRANGE:
        yield f"{share:.0%} of the target; the {n:,} with most disagreement are marked"


def _unsure_shares(found: Adaptation) -> Iterator[str]:
    estimate = found.diagnosis.target_prior
    if estimate.unsure and estimate.estimator == "counting":
        n = len(found.inputs.task.training_data.source_val)
        yield f"predictions were counted, since {n} source images are held out"
    elif estimate.unsure:
        yield f"estimated by {estimate.estimator.upper()}"


def _unpredicted(found: Adaptation) -> Iterator[str]:
    counts = np.bincount(found.predicted, minlength=len(found.classes))
    names = tuple(name for name, n in zip(found.classes, counts, strict=True) if not n)
    if names:
        yield few(names)
