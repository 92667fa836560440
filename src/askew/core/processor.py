"""What this machine's processor does well in bfloat16: torch knows which instructions there are,
and no more."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch

_ASKED = (
    "_is_amx_tile_supported",
    "_is_avx512_bf16_supported",
)  # which older versions of torch do not have
_TILES_LEAF = 0x1D
"""The page of a processor's description of itself that says how large AMX's tiles are."""


@dataclass(frozen=True)
class Processor:
    """What Linux says of it."""

    vendor: str = ""
    flags: frozenset[str] = frozenset()
    level: int = _TILES_LEAF
    """The last page of its description of itself."""

    @classmethod
    def parse(cls, cpuinfo: str) -> Processor:
        """From the text of /proc/cpuinfo; unknown where that does not say.

        >>> text = "vendor_id : GenuineIntel\\ncpuid level : 28\\nflags : fma amx_tile"
        >>> Processor.parse(text).hides_tiles
        True
        """
        found = dict[str, str]()
        for line in cpuinfo.splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
        level = found.get("cpuid level", "")
        return cls(
            found.get("vendor_id", ""),
            frozenset(found.get("flags", "").split()),
            int(level) if level.isdecimal() else _TILES_LEAF,
        )

    @property
    def hides_tiles(self) -> bool:
        """Whether it offers AMX and does not describe it, as under some hypervisors: oneDNN then
        lays out tiles of no size, and the first product in bfloat16 ends the process with
        SIGILL."""
        return "amx_tile" in self.flags and self.level < _TILES_LEAF

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether products in bfloat16 are faster than in float32: by AMX, or by AVX-512 on AMD's
        processors; on Intel's the latter gains nothing (ResNet-50, fused layers: 41 ms in float32,
        57 to 67 in bfloat16)."""
        amx, avx512 = (getattr(torch.cpu, name, bool)() for name in _ASKED)
        return bool(amx and not self.hides_tiles) or bool(avx512 and self.vendor != "GenuineIntel")


@functools.cache
def processor() -> Processor:
    """This machine's."""
    try:
        return Processor.parse(Path("/proc/cpuinfo").read_text())
    except OSError:
        return Processor()


def leave_hidden_tiles() -> None:
    """Have oneDNN do without AMX where it would fail; before its first use in this process, and in
    those to come."""
    if processor().hides_tiles:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
