from __future__ import annotations

import pytest
import torch

from askew.core.device import pick_device
from askew.core.errors import UserError


@pytest.mark.parametrize("name", ["mps", "cuda", "cuba", "cuda:x", "meta", ""])
def test_a_device_that_cannot_be_used_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError) as caught:
        pick_device(name)
    assert caught.value.hint == "auto, cpu, cuda, cuda:N, or mps."


def test_a_device_that_is_there_is_taken_and_auto_prefers_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps").type == "mps"
    for there, chosen in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert pick_device("auto").type == chosen
