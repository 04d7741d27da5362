"""Is the model right? Whether observations fall where its predictive distributions say.

Each name is loaded at its first use.

Example:
    >>> from ovkgp import criticism
    >>> criticism.coverage.__name__
    'coverage'
"""

from __future__ import annotations

from ovkgp.lazy import lazy_names

_NAMES = {
    "Coverage": "calibration",
    "coverage": "calibration",
    "kept_rows": "predictive_distributions",
    "pit_values": "calibration",
}
"""What is offered, and the module in which it lives."""

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
