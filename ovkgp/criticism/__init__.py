"""Model criticism: calibration of predictive distributions, and tests on data and Gram matrices.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

_NAMES = {  # exported names and the modules that define them
    "Coverage": "calibration",
    "coverage": "calibration",
    "HypothesisTest": "results",
    "gaussianity_power": "gaussianity",
    "gaussianity_test": "gaussianity",
    "pit_values": "calibration",
    "training_data": "predictive_distributions",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
