from __future__ import annotations

from pathlib import Path

import pytest

from askew.core import locks
from askew.core.locks import locked, try_lock


@pytest.mark.parametrize("portable", [False, True])
def test_a_lock_is_held_by_one_until_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, portable: bool
) -> None:
    if portable:
        monkeypatch.setattr(locks, "fcntl", None)
    release = try_lock(tmp_path / ".lock")
    assert release is not None
    assert try_lock(tmp_path / ".lock") is None
    assert try_lock(tmp_path / ".lock", shared=True) is None
    release()
    with locked(tmp_path / ".lock"):
        assert try_lock(tmp_path / ".lock") is None
    again = try_lock(tmp_path / ".lock")
    assert again is not None
    again()


def test_those_who_only_ask_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch(mode=0o444)
    first, second = (try_lock(tmp_path / ".lock", shared=True) for _ in range(2))
    assert first is not None
    assert second is not None
    first()
    second()
