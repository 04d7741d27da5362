"""Model criticism: calibration of predictive distributions, and tests on data and Gram matrices.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

_NAMES = {  # exported names and the modules that define them
    "Check": "table",
    "Comparison": "comparison",
    "Criticism": "table",
    "RecalibratedModel": "recalibration",
    "SimulationCalibration": "simulated_ranks",
    "compare": "comparison",
    "criticize": "model_checks",
    "pivoted_cholesky_errors": "joint_calibration",
    "prerank_pit": "joint_calibration",
    "recalibrate": "recalibration",
    "simulation_calibration": "simulated_ranks",
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
