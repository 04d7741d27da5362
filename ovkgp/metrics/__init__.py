"""Scores of predictions whose observations may be missing (NaN), as functions of arrays and as scikit-learn scorers, and scores of curves."""

from ovkgp.metrics.curves import (
    curve_squared_error,
    median_and_mad,
    normalized_rmse,
    rmse_degradation,
    signal_to_noise,
    simultaneous_coverage,
    sparsity,
)
from ovkgp.metrics.scores import (
    coverage,
    crps_from_cdf,
    crps_from_draws,
    crps_gaussian,
    energy_score,
    log_density_gaussian,
    make_scorer,
    pinball_loss,
    r2_score,
    root_mean_squared_error,
    scorers,
)

__all__ = [
    "coverage",
    "crps_from_cdf",
    "crps_from_draws",
    "crps_gaussian",
    "curve_squared_error",
    "energy_score",
    "log_density_gaussian",
    "make_scorer",
    "median_and_mad",
    "normalized_rmse",
    "pinball_loss",
    "r2_score",
    "rmse_degradation",
    "root_mean_squared_error",
    "scorers",
    "signal_to_noise",
    "simultaneous_coverage",
    "sparsity",
]
