"""What the Triton kernels of lanes compute, shown without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is missing")
PROGRAM = Path(__file__).parents[1] / "support" / "interpreted.py"
HALF = 1e-3
"""Float16 has eleven binary digits."""


def test_interpreted_kernels_compute_what_torchs_layers_compute() -> None:
    """Value and gradient: float32 to rounding, float16 to its digits (the interpreter knows no
    bfloat16)."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    apart = [float(line) for line in done.stdout.split()]
    # Convolution, norm and both; the last two by running statistics; a norm of rows; a norm by kept
    # statistics; dropouts; steps of SGD and Adam; draws.
    assert len(apart) == 4 * 3 + 2 + 1 + 2 + 2 + 2 + 6
    assert sum(value < 1e-6 for value in apart) == 7 + 1 + 2 + 2 + 6
    assert max(apart) < HALF
    assert apart[-6:-4] == apart[-3:-1] == [0, 0], "hashes are exact"
