"""Could the verdict be right more often, and what is handed out be better, by another rule? On
development tasks.

    python benchmarks/studies/own.py try benchmarks/studies/committed.toml EMBEDDINGS --out R.jsonl
    --auto --seeds 3 \
        --runs RUNS
    python benchmarks/studies/verdicts.py frozen EMBEDDINGS --runs RUNS --seeds 3 [--shift natural]
    [--pairs rows] python benchmarks/studies/verdicts.py finished RUNS --data DATA

The first trains, and keeps, what `askew adapt` trains on frozen embeddings; what it has kept is not
trained again. The others judge every adapted network by other rules than `judge_transfers`, combine
the candidates by other rules than `choose_several`, and calibrate them otherwise than
`score_networks` before they are compared (RULES, MIXES and CALIBRATIONS below), with the target's
labels. `finished` takes runs as `judge.py` does.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from claims import count, truth_of
from judge import read_choices
from own import train_all
from own_rows import PAIRS, SHIFTS
from scipy.optimize import brentq, minimize_scalar

from askew.adaptation.candidates import AUTO
from askew.evaluation.calibration import at_temperature, calibrate, mean_outputs, temperature
from askew.evaluation.metrics import score
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, adjust_logits, softmax
from askew.evaluation.scores import (
    SCORES,
    ScoredNetwork,
    score_another,
    score_calibrated,
    score_networks,
)
from askew.evaluation.selection import choose, choose_several, rank_sums
from askew.evaluation.verdict import (
    LEAD,
    MARGIN,
    UNRELIABLE,
    VOTERS,
    Answer,
    Evidence,
    Verdict,
    gather_evidence,
    judge_transfers,
    resample_scores,
)

AGREEMENTS = ("ensemble",)
MORE = ("prior-information",)


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidates for one task and seed, source-only first."""

    task: str
    outputs: list[DomainOutputs]
    tests: list[DomainOutputs]
    """With the images as the target that accuracy is measured on."""
    y: Labels
    weights: list[float]
    """How much each counts in what is handed out."""
    methods: list[str]

    def accuracy(self, answers: Floats) -> float:
        """Per-class mean in %. (n, c)"""
        return float(score(self.y, answers.argmax(axis=1), answers.shape[1])["per_class_mean"])


# --- rules of the verdict ---

Shown = Mapping[str, Evidence]
"""Evidence by score; "others" is agreement with the mean of the other adapted networks alone."""


@dataclass(frozen=True)
class Rule:
    """A verdict like that of `judge`, with other settings, and scores that have to agree with
    it."""

    margin: float = MARGIN
    lead: int = LEAD
    agreement: str = "ensemble"
    unreliable: float = UNRELIABLE
    rises: tuple[str, ...] = ()
    """Scores that have to rise too where a network is said to have helped."""
    rises_by: float = 0.0

    def __call__(self, shown: Shown) -> Answer:
        answer = beyond(shown[self.agreement], self.margin)
        votes = [shown[name].votes for name in VOTERS]
        lead = votes.count("helped") - votes.count("hurt")
        if answer == "unclear" and abs(lead) >= self.lead:
            answer = "helped" if lead > 0 else "hurt"
        if answer == "helped" and any(
            beyond(shown[name], self.rises_by) != "helped" for name in self.rises
        ):
            return "unclear"
        return (
            "unclear" if answer == "hurt" and shown["expected"].before < self.unreliable else answer
        )


def beyond(evidence: Evidence, margin: float) -> Answer:
    return "helped" if evidence.low > margin else "hurt" if evidence.high < -margin else "unclear"


NEVER = len(VOTERS) + 1
RULES: Mapping[str, Rule] = {
    "as it is": Rule(),
    "confidence by class has to rise too": Rule(rises=("expected",)),
    "prior-aware information has to rise too": Rule(rises=("prior-information",)),
    "agreement with the others alone has to rise too": Rule(rises=("others",)),
    "agreement with the others alone in its place": Rule(agreement="others"),
    "twice the margin": Rule(margin=2 * MARGIN),
    "a lead of two scores": Rule(lead=2),
    "a lead of four scores": Rule(lead=4),
    "agreement alone": Rule(lead=NEVER),
    "no exception for an unreliable source-only": Rule(unreliable=0.0),
}


def judged(networks: Sequence[ScoredNetwork]) -> Iterator[tuple[Verdict, Shown]]:
    """The verdict on each network but the first, and all that rules look at; the last one is the
    ensemble."""
    for i, verdict in enumerate(judge_transfers(networks), 1):
        others = [n for j, n in enumerate(networks[1:-1], 1) if j != i]
        mean = np.mean([softmax(n.outputs.target) for n in others], axis=0).argmax(axis=1)
        more = evidence(networks[0], networks[i], MORE)
        alone = evidence(
            with_ensemble(networks[0], mean), with_ensemble(networks[i], mean), AGREEMENTS
        )
        shown = {e.score: e for e in (*verdict.evidence, *more)}
        yield verdict, shown | {e.score.replace("ensemble", "others"): e for e in alone}


def evidence(
    source_only: ScoredNetwork, adapted: ScoredNetwork, names: Sequence[str]
) -> tuple[Evidence, ...]:
    """By other scores than the verdict's."""
    before, after = (resample_scores(one.inputs, 100, 0, names) for one in (source_only, adapted))
    return gather_evidence(source_only, adapted, after - before, names)


def with_ensemble(network: ScoredNetwork, ensemble: Labels) -> ScoredNetwork:
    inputs = replace(network.inputs, ensemble=ensemble)
    with_it = {name: SCORES[name].value(inputs) for name in AGREEMENTS}
    return replace(network, inputs=inputs, scores=dict(network.scores) | with_it)


# --- rules of what is handed out ---

Mix = Callable[[Sequence[ScoredNetwork], list[Floats], list[float]], Floats]
"""From scored networks, their calibrated logits and how much each counts to one array of
answers."""


def best(networks: Sequence[ScoredNetwork], most: int) -> list[int]:
    """The adapted networks of the best sums of ranks, or source-only if it has the best."""
    order = np.argsort(-rank_sums(networks), kind="stable")
    return [int(i) for i in order if i][:most] if order[0] else [0]


def above_average(networks: Sequence[ScoredNetwork]) -> list[int]:
    """Those adapted networks that are at least as good as the mean of the adapted ones."""
    ranks = rank_sums(networks)[1:]
    return [int(i) + 1 for i in np.flatnonzero(ranks >= ranks.mean())]


def mean(answers: list[Floats], members: Sequence[int], weights: Sequence[float]) -> Floats:
    found: Floats = np.average(
        [answers[i] for i in members], axis=0, weights=[weights[i] for i in members]
    )
    return found


MIXES: Mapping[str, Mix] = {
    "as it is": lambda nets, z, w: mean(z, choose_several(nets, w), w),
    "all count alike": lambda nets, z, w: mean(z, choose_several(nets), np.ones(len(z)).tolist()),
    "mean of probabilities": lambda nets, z, w: mean(
        [softmax(one) for one in z], choose_several(nets, w), w
    ),
    "weights by rank": lambda nets, z, w: mean(
        z, choose_several(nets, w), rank_sums(nets).tolist()
    ),
    "the best one": lambda nets, z, w: mean(z, best(nets, 1), w),
    "the best two": lambda nets, z, w: mean(z, best(nets, 2), w),
    "the best three": lambda nets, z, w: mean(z, best(nets, 3), w),
    "at least the mean of the adapted": lambda nets, z, w: mean(z, above_average(nets), w),
    "all adapted": lambda nets, z, w: mean(z, range(1, len(nets)), w),
}


# --- calibrations before networks are compared ---

Calibration = Callable[[DomainOutputs], Callable[[Floats], Floats]]
"""From a network to what makes its logits, under a uniform prior, comparable with those of others.
(n, c) → (n, c)"""
SURE = 0.9
"""Mean top probability that "to its accuracy" asks for at most."""


def divided_by(find: Callable[[DomainOutputs], float]) -> Calibration:
    def calibration(outputs: DomainOutputs) -> Callable[[Floats], Floats]:
        t, uniform = find(outputs), np.full(outputs.classes, 1 / outputs.classes)
        return lambda z: adjust_logits(z, uniform, outputs.training_prior) / t

    return calibration


def likeliest(outputs: DomainOutputs) -> float:
    """The temperature of greatest likelihood on the held-out source, without Platt's targets."""
    z, y = outputs.source_val, outputs.source_val_y

    def loss(log_t: float) -> float:
        p = softmax(z / np.exp(log_t))[np.arange(len(y)), y]
        return float(-np.log(np.maximum(p, 1e-300)).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded").x))


def as_sure_as_right(outputs: DomainOutputs) -> float:
    """The temperature at which the mean top probability on the held-out source is the accuracy
    there, SURE at most."""
    z = outputs.source_val
    wanted = min(SURE, float((z.argmax(axis=1) == outputs.source_val_y).mean()))

    def apart(log_t: float) -> float:
        return float(softmax(z / np.exp(log_t)).max(axis=1).mean()) - wanted

    return float(np.exp(brentq(apart, -9, 9))) if apart(-9) > 0 > apart(9) else 1.0


def bias_corrected(outputs: DomainOutputs) -> Callable[[Floats], Floats]:
    fitted, uniform = calibrate(outputs), np.full(outputs.classes, 1 / outputs.classes)
    return lambda z: np.log(np.maximum(fitted.posterior(z, uniform), 1e-12))


CALIBRATIONS: Mapping[str, Calibration] = {
    "as it is: temperature, Platt's targets": divided_by(temperature),
    "none": divided_by(lambda outputs: 1.0),
    "temperature, plain targets": divided_by(likeliest),
    "bias-corrected temperature": bias_corrected,
    "mean top probability = accuracy, at most 0.9": divided_by(as_sure_as_right),
}
HARD, BY_FAMILY = "the first, agreement with hard votes", "the first, one vote per family"


def compared(choice: Choice) -> Iterator[tuple[str, list[ScoredNetwork], list[Floats]]]:
    """Networks that have been compared after each calibration, and their logits on the images that
    count."""
    for name, calibration in CALIBRATIONS.items():
        maps = [calibration(outputs) for outputs in choice.outputs]
        networks = [calibrated(outputs, f) for outputs, f in zip(choice.outputs, maps, strict=True)]
        logits = [f(test.target) for f, test in zip(maps, choice.tests, strict=True)]
        yield name, score_calibrated(networks), logits
        if calibration is CALIBRATIONS["as it is: temperature, Platt's targets"]:
            hard = sum(np.eye(one.classes)[one.target.argmax(axis=1)] for one in networks)
            yield HARD, score_calibrated(networks, ensemble=np.asarray(hard).argmax(axis=1)), logits
            families: dict[str, list[Floats]] = {}
            for method, one in zip(choice.methods, networks, strict=True):
                families.setdefault(method, []).append(softmax(one.target))
            votes = np.mean([np.mean(own, axis=0) for own in families.values()], axis=0)
            yield BY_FAMILY, score_calibrated(networks, ensemble=votes.argmax(axis=1)), logits


def calibrated(outputs: DomainOutputs, f: Callable[[Floats], Floats]) -> DomainOutputs:
    uniform = np.full(outputs.classes, 1 / outputs.classes)
    return replace(
        outputs, source_val=f(outputs.source_val), target=f(outputs.target), training_prior=uniform
    )


# --- tables ---


def frozen(embeddings: Path, runs: Path, pairs: str, shift: str, seeds: int) -> Iterator[Choice]:
    for seed, pair in itertools.product(range(seeds), PAIRS[pairs]):
        _, outputs, y = train_all(AUTO["embeddings"], {}, embeddings, pair, shift, seed, runs)
        weights, methods = (
            [one.weight for one in AUTO["embeddings"]],
            [one.method for one in AUTO["embeddings"]],
        )
        yield Choice("-".join(pair), outputs, outputs, y, weights, methods)


def finished(runs: Sequence[Path], data: Path | None) -> Iterator[Choice]:
    for key, candidates in read_choices(runs, data).items():
        outputs, tests = [one.outputs for one in candidates], [one.test for one in candidates]
        weights, methods = [one.weight for one in candidates], [one.method for one in candidates]
        yield Choice(key[0], outputs, tests, candidates[0].test_y, weights, methods)


def study(choices: Iterator[Choice]) -> None:
    truths: list[str] = []
    answers: dict[str, list[Answer]] = {name: [] for name in RULES}
    regrets: dict[str, dict[str, list[float]]] = {name: {} for name in MIXES}
    otherwise: dict[str, tuple[list[Answer], list[float], list[float]]] = {}
    own: list[str] = []
    for choice in choices:
        single, weights = score_networks(choice.outputs), choice.weights
        members = choose_several(single, weights)
        ensemble = mean_outputs([choice.outputs[i] for i in members], [weights[i] for i in members])
        logits = [at_temperature(test, temperature(test)).target for test in choice.tests]
        known = [choice.accuracy(z) for z in logits]
        for name, mix in MIXES.items():
            regrets[name].setdefault(choice.task, []).append(
                max(known) - choice.accuracy(mix(single, logits, weights))
            )
        known.append(choice.accuracy(MIXES["as it is"](single, logits, weights)))
        truths += [truth_of(after - known[0]) for after in known[1:]]
        own += [truth_of(after - known[0]) for after in known[1:-1]]
        for name, networks, z in compared(choice):
            verdicts, picked, together = otherwise.setdefault(name, ([], [], []))
            verdicts += [verdict.verdict for verdict in judge_transfers(networks)]
            picked.append(max(known[:-1]) - known[choose(networks)])
            together.append(
                max(known[:-1])
                - choice.accuracy(mean(z, choose_several(networks, weights), weights))
            )
        for verdict, shown in judged([*single, score_another(single, ensemble)]):
            for name, rule in RULES.items():
                answers[name].append("hurt" if verdict.collapsed else rule(shown))
    print_verdicts(answers, truths)
    print_regrets(regrets)
    print(
        "\n| calibrated by | regret of what is handed out | of the best-ranked one | verdicts "
        "right / opposite |"
    )
    print("|---" * 4 + "|")
    for name, (verdicts, picked, together) in otherwise.items():
        right, opposite = count(verdicts, own)
        print(
            f"| {name} | {np.mean(together):.2f} | {np.mean(picked):.2f} | {right} / {opposite} "
            f"of {len(own)} |"
        )


def print_verdicts(answers: Mapping[str, Sequence[Answer]], truths: Sequence[str]) -> None:
    print(
        f"| verdict, of {len(truths)} ({truths.count('helped')} helped, {truths.count('hurt')} "
        "hurt) "
        "| right | opposite | helped, for hurt |\n|---|---|---|---|"
    )
    for name, given in answers.items():
        right, opposite = count(given, truths)
        praised = sum(a == "helped" and b == "hurt" for a, b in zip(given, truths, strict=True))
        print(f"| {name} | {right} ({right / len(truths):.0%}) | {opposite} | {praised} |")


def print_regrets(regrets: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Means over tasks, and the difference to the first rule ± its standard error over tasks."""
    means = {
        name: np.array([np.mean(values) for values in by_task.values()])
        for name, by_task in regrets.items()
    }
    print("\n| handed out | regret | difference |\n|---|---|---|")
    for name, values in means.items():
        apart = values - means["as it is"]
        spread = (
            f"{apart.mean():+.2f} ± {apart.std(ddof=1) / np.sqrt(len(apart)):.2f}"
            if apart.any()
            else ""
        )
        print(f"| {name} | {values.mean():.2f} | {spread} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("frozen")
    one.add_argument("embeddings", type=Path)
    one.add_argument("--runs", type=Path, required=True)
    one.add_argument("--pairs", choices=PAIRS, default="development")
    one.add_argument("--shift", choices=SHIFTS, default="rs-ut")
    one.add_argument("--seeds", type=int, default=1)
    two = commands.add_parser("finished")
    two.add_argument("runs", type=Path, nargs="+")
    two.add_argument("--data", type=Path)
    args = parser.parse_args()
    if args.command == "frozen":
        study(frozen(args.embeddings, args.runs, args.pairs, args.shift, args.seeds))
    else:
        study(finished(args.runs, args.data))


if __name__ == "__main__":
    main()
