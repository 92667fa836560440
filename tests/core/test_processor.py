"""What is known of a processor, from descriptions as Linux gives them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from askew.core.processor import Processor

AMX = (
    "vendor_id\t: {vendor}\ncpuid level\t: {level}\nflags\t\t: fma avx512f avx512_bf16 amx_bf16 "
    "amx_tile\n\n" * 2
)


def described(vendor: str = "GenuineIntel", level: int = 32) -> Processor:
    return Processor.parse(AMX.format(vendor=vendor, level=level))


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Which instructions torch finds."""
    found = {"_is_amx_tile_supported": False, "_is_avx512_bf16_supported": True}
    for name in found:
        monkeypatch.setattr(torch.cpu, name, lambda name=name: found[name], raising=False)
    return found


def test_amx_that_is_offered_and_not_described_is_left_alone() -> None:
    assert described(level=28).hides_tiles
    assert not described(level=29).hides_tiles
    assert not Processor.parse("cpuid level : 13\nflags : avx2").hides_tiles
    assert not Processor.parse("").hides_tiles  # other systems


def test_bfloat16_is_taken_where_it_is_faster(has: dict[str, bool]) -> None:
    assert described("AuthenticAMD").multiplies_bfloat16
    assert not described("GenuineIntel").multiplies_bfloat16
    has["_is_amx_tile_supported"] = True
    assert described("GenuineIntel").multiplies_bfloat16
    assert not described("GenuineIntel", level=28).multiplies_bfloat16


def test_a_product_in_bfloat16_does_not_end_the_process_on_this_machine() -> None:
    code = (
        "import askew.core.device, torch; x = torch.ones(256, 256).bfloat16(); print(float((x "
        "@ x)[0, 0]))"
    )
    clean = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=clean
    )
    assert (done.returncode, done.stdout) == (0, "256.0\n"), done.stderr
