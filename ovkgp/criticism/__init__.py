"""Model criticism: calibration of predictive distributions, and tests on data and Gram matrices.

Each name is loaded at its first use.
"""

from ovkgp.lazy import lazy_names

_NAMES = {  # exported names and the modules that define them
    "ParsimoniousCovariance": "gram_models",
    "effective_degrees_of_freedom": "gram_models",
    "nuclear_dominance_trace": "gram_models",
    "renormalize_gram": "gram_models",
    "Coverage": "calibration",
    "coverage": "calibration",
    "CovarianceRank": "sequential_rank",
    "HypothesisTest": "results",
    "covariance_rank": "sequential_rank",
    "energy_normality_test": "normality_baselines",
    "gaussianity_power": "gaussianity",
    "gaussianity_test": "gaussianity",
    "henze_zirkler": "normality_baselines",
    "hsic": "two_sample",
    "mmd": "two_sample",
    "pit_values": "calibration",
    "random_projection_test": "normality_baselines",
    "training_data": "predictive_distributions",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
