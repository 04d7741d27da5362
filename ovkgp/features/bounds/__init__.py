"""How good are random features, and how many are enough? Bounds and diagnostics of operator-valued kernels.

They come from chapters 5 to 7 of R. Brault's thesis, "Large-scale operator-valued kernel regression" (Université
Paris-Saclay, 2017); "the thesis" below is that one, but for the bounds on a continuum of tasks (`task_…`), which are A. Lambert's. Codes such as BT-62 (an item) and BT-E-16 (an erratum): see
``docs/references.md``.

Every function says which variant it evaluates: "corrected" by default; "printed" is what the thesis prints. The bounds
are for frequencies drawn independently (``ORFF(..., sampler="iid")``).
"""

from __future__ import annotations

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
    task_generalization_bound,
    task_loss_bound,
    task_sampling_bound,
    task_stability,
    task_value_bound,
    weight_radius,
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
