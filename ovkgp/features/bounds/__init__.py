"""Errors of random features and numbers of features: bounds and diagnostics of operator-valued kernels.

The bounds are from chapters 5 to 7 of R. Brault's thesis, "Large-scale operator-valued kernel regression" (Université
Paris-Saclay, 2017), called "the thesis"; those on a continuum of tasks (`task_…`) are from A. Lambert's. Codes such as
BT-62 (an item) and BT-E-16 (an erratum): see ``docs/references.md``.

The default ``variant="corrected"`` repairs errata, "printed" is the bound as printed in the thesis. The bounds assume
independent frequencies (``ORFF(..., sampler="iid")``).
"""

from ovkgp.features.bounds.concentration import (
    bernstein_bound,
    measured_error,
    pointwise_error_bound,
    required_features,
    uniform_error_bound,
)
from ovkgp.features.bounds.constants import SpectralConstants, intrinsic_dimension, orlicz_norm, spectral_constants
from ovkgp.features.bounds.learning import (
    constrained_excess_risk_bound,
    generalization_bound,
    lambda_ceiling,
    mean_deviation_bound,
    ridge_generalization_bound,
    stability_bound,
    suggest_features,
    weight_radius,
)
from ovkgp.features.bounds.tasks import (
    task_generalization_bound,
    task_loss_bound,
    task_sampling_bound,
    task_stability,
    task_value_bound,
)
from ovkgp.features.bounds.variance import kernel_variance

__all__ = [
    "SpectralConstants",
    "bernstein_bound",
    "constrained_excess_risk_bound",
    "generalization_bound",
    "intrinsic_dimension",
    "kernel_variance",
    "lambda_ceiling",
    "mean_deviation_bound",
    "measured_error",
    "orlicz_norm",
    "pointwise_error_bound",
    "required_features",
    "ridge_generalization_bound",
    "spectral_constants",
    "stability_bound",
    "suggest_features",
    "task_generalization_bound",
    "task_loss_bound",
    "task_sampling_bound",
    "task_stability",
    "task_value_bound",
    "uniform_error_bound",
    "weight_radius",
]
