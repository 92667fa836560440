"""Choices among networks by their ranks."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import noisy_worlds, world

from askew.evaluation import selection
from askew.evaluation.scores import score_networks
from askew.evaluation.selection import choose, choose_several


def test_the_best_network_is_chosen_wherever_it_stands() -> None:
    worlds = noisy_worlds()
    assert worlds[0].accuracy < worlds[1].accuracy < worlds[2].accuracy
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert order[choose(score_networks([worlds[i].outputs for i in order]))] == 2


def test_networks_with_low_ranks_join_only_with_a_larger_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        selection, "rank_sums", lambda networks: np.array([6.0, 10.0, 4.0, 6.0])
    )  # mean 6.5
    networks = score_networks([world(50, 50).outputs]) * 4
    assert choose_several(networks) == [1, 3]
    assert choose_several(networks, [2, 1, 2, 1]) == [1, 2, 3], "source-only joins nobody"


def test_many_networks_need_half_of_the_mean_rank_and_few_three_quarters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums = [
        6.0,
        15.375,
        4.875,
        3.25,
        3.0,
    ]  # mean 6.5: the third has three quarters of it, the fourth half
    joined = {}
    for more in range(3):
        ranks = np.array(sums + [6.5] * more)
        monkeypatch.setattr(selection, "rank_sums", lambda networks, ranks=ranks: ranks)
        joined[len(ranks)] = choose_several(score_networks([world(50, 50).outputs]) * len(ranks))
    assert joined == {5: [1, 2], 6: [1, 2, 3, 5], 7: [1, 2, 3, 5, 6]}


def test_of_equals_the_first_is_chosen() -> None:
    outputs = noisy_worlds()[0].outputs
    assert choose(score_networks([outputs, outputs, outputs])) == 0
