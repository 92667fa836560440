"""Methods by name, and handed over as classes and objects."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import Tensor

from askew.core.errors import UserError
from askew.methods import COAL, id_and_params, make_method, method_class
from askew.methods.base import Batch, Losses, Method, State, join_domains
from askew.methods.losses import cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class Plain(Method):
    """Learns from the source."""

    weight: float = 1.0
    """Of the label loss."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, _ = join_domains(net, batch)
        return {"label": self.weight * cross_entropy(net["head"](fs), batch.ys)}


def test_an_object_is_asked_for_by_its_id_and_all_of_its_hyper_parameters() -> None:
    name, params = id_and_params(COAL(alpha=0.3))
    assert name == "coal"
    assert make_method(name, params) == COAL(alpha=0.3)
    assert id_and_params("dann") == ("dann", {})
    assert id_and_params(COAL) == ("coal", {})


def test_a_class_of_one_s_own_is_found_by_its_id_and_known_by_its_code() -> None:
    name, params = id_and_params(Plain(weight=2.0))
    assert make_method(name, params) == Plain(weight=2.0)
    assert method_class("plain") is Plain
    first = Plain.revision

    class Other(Method):
        id = "plain"

    id_and_params(Other)
    assert method_class("plain") is Other, "the last one counts, as in a notebook"
    assert Other.revision != first


def test_a_class_of_one_s_own_may_not_take_the_id_of_ours() -> None:
    class Thief(Method):
        id = "coal"

    with pytest.raises(UserError, match="The id 'coal' of Thief is that of one of askew's methods"):
        id_and_params(Thief())
