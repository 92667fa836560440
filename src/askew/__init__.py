"""askew: class-imbalanced domain adaptation, with numbers that can be trusted."""

from __future__ import annotations

__version__ = "0.1.0"
