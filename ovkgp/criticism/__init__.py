"""Checks of predictive distributions: probability integral transforms and coverage of intervals.

Each name is loaded at its first use.
"""

from __future__ import annotations

from ovkgp.lazy import lazy_names

_NAMES = {
    "Coverage": "calibration",
    "coverage": "calibration",
    "pit_values": "calibration",
    "training_data": "predictive_distributions",
}
"""Exported names and the modules that define them."""

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
