"""Model criticism: calibration of predictive distributions, and tests on data and Gram matrices.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

_NAMES = {  # exported names and the modules that define them
    "Check": "results",
    "Comparison": "comparison",
    "Criticism": "results",
    "RecalibratedModel": "recalibration",
    "SimulationCalibration": "simulated_ranks",
    "compare": "comparison",
    "criticize": "model_checks",
    "pivoted_cholesky_errors": "joint_calibration",
    "prerank_pit": "joint_calibration",
    "recalibrate": "recalibration",
    "simulation_calibration": "simulated_ranks",
    "ParsimoniousCovariance": "sample_tests.gram_models",
    "effective_degrees_of_freedom": "sample_tests.gram_models",
    "nuclear_dominance_trace": "sample_tests.gram_models",
    "renormalize_gram": "sample_tests.gram_models",
    "Coverage": "calibration",
    "coverage": "calibration",
    "CovarianceRank": "sample_tests.sequential_rank",
    "HypothesisTest": "results",
    "covariance_rank": "sample_tests.sequential_rank",
    "energy_normality_test": "sample_tests.normality_baselines",
    "gaussianity_power": "sample_tests.gaussianity",
    "gaussianity_test": "sample_tests.gaussianity",
    "henze_zirkler": "sample_tests.normality_baselines",
    "hsic": "sample_tests.two_sample",
    "mmd": "sample_tests.two_sample",
    "pit_values": "calibration",
    "random_projection_test": "sample_tests.normality_baselines",
    "training_data": "predictive_distributions",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
