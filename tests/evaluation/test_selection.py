"""Choices among networks by their ranks."""

from __future__ import annotations

from worlds import noisy_worlds

from askew.evaluation.scores import score_networks
from askew.evaluation.selection import choose


def test_the_best_network_is_chosen_wherever_it_stands() -> None:
    worlds = noisy_worlds()
    assert worlds[0].accuracy < worlds[1].accuracy < worlds[2].accuracy
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert order[choose(score_networks([worlds[i].outputs for i in order]))] == 2


def test_of_equals_the_first_is_chosen() -> None:
    outputs = noisy_worlds()[0].outputs
    assert choose(score_networks([outputs, outputs, outputs])) == 0
