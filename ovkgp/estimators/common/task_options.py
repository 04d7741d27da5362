"""Options of the estimators for a continuum of tasks: a measure on the tasks, and factors of the input and task kernels.

A kernel is a name or a scalar GPyTorch kernel; the lengthscale of a name is a number, one number per column, or the median distance
between the points. Factors are exact at the given points, or random Fourier features.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import stats
from torch import Tensor

from ovkgp import losses
from ovkgp.checks import as_seed
from ovkgp.estimators.common.named_kernels import BASE_KERNEL, median_distance, random_features
from ovkgp.estimators.common.options import POSITIVE, POSITIVES, RANDOM_STATE, VERBOSE, integer, one_of
from ovkgp.estimators.common.summary import ColumnNames, Hyperparameter
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.functional.factors import Factor, FeatureFactor, KernelFactor
from ovkgp.inference.training.kernel_parameters import pair_distances, subsample
from ovkgp.kernels.protocol import check_scalar_kernel
from ovkgp.kernels.records import make_scalar_kernel
from ovkgp.losses import TaskMeasure

MEASURES = ("gauss_legendre", "sobol", "monte_carlo")
TASK_CONVENTIONS = {"samples": 1.0, "stability": 2.0}  # factor of the canonical λ in each convention (LT §0.2)
QUANTILE_RULE, DISTANCE_QUANTILE = "quantile_0.2", 0.2  # lengthscale of tasks from their distances (LT-41)
LENGTHSCALE_RATIOS = {"local": 0.3, "median": 1.0}  # lengthscales by name, relative to the median distance between rows
LENGTHSCALE = [one_of("median"), POSITIVE, POSITIVES]
LOCAL_LENGTHSCALE = [one_of(*LENGTHSCALE_RATIOS), POSITIVE, POSITIVES]
TASK_LENGTHSCALE = [one_of("median", QUANTILE_RULE), POSITIVE, POSITIVES]
TASK_KERNEL_CONSTRAINTS = {
    "kernel": BASE_KERNEL,
    "lengthscale": LENGTHSCALE,
    "task_kernel": BASE_KERNEL,
    "task_lengthscale": TASK_LENGTHSCALE,
}
TASK_CONSTRAINTS = {
    **TASK_KERNEL_CONSTRAINTS,
    "measure": [one_of(*MEASURES), TaskMeasure],
    "num_tasks": [integer()],
    "num_frequencies": [integer(), None],
    "num_replicates": [integer(2)],
    "random_state": RANDOM_STATE,
    "verbose": VERBOSE,
}
"""Options that the estimators for a continuum of tasks share."""


@storable_record
class InterceptFactor:
    """Factor with an additional constant column c: the kernel k(x, z) + c², c the prior standard deviation of the intercept."""

    def __init__(self, factor: Factor, scale: float = 1.0):
        self.factor, self.scale = factor, scale

    def __call__(self, points: Tensor) -> Tensor:
        return self._with_column(self.factor(points))

    def residual_variance(self, points: Tensor) -> Tensor:
        """Return the residual variance (k,) of the other factor."""
        return self.factor.residual_variance(points)

    @property
    def anchor_rows(self) -> Tensor:
        """Rows at the anchors of the other factor."""
        return self._with_column(self.factor.anchor_rows)

    def _with_column(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_full((len(rows), 1), self.scale)], -1)


def make_measure(measure, num_tasks: int, low: float = 0.0, high: float = 1.0, random_state=None) -> TaskMeasure:
    """Make the uniform measure on [low, high] with `num_tasks` nodes (LT-70..72), or check a `TaskMeasure`."""
    if isinstance(measure, TaskMeasure):
        return _inside(measure, low, high)
    if measure == "gauss_legendre":
        return losses.gauss_legendre(num_tasks, low, high)
    distribution = stats.uniform(low, high - low)
    return getattr(losses, measure)(num_tasks, distribution=distribution, random_state=as_seed(random_state))


def check_scalar_tasks(measure: TaskMeasure) -> None:
    """Raise InputError unless the tasks of a measure are numbers, such as levels or costs."""
    if measure.num_dims != 1:
        raise InputError(
            f"measure must have tasks in one dimension, such as quantile levels or costs, got num_dims={measure.num_dims}."
        )


def _inside(measure: TaskMeasure, low: float, high: float) -> TaskMeasure:
    check_scalar_tasks(measure)
    nodes = measure.nodes
    if not bool(((nodes >= low) & (nodes <= high)).all()):
        raise InputError(
            f"The nodes of measure must lie in [{low:g}, {high:g}], got {nodes.min():g} to {nodes.max():g}."
        )
    return measure


def task_kernel(kernel: str | Kernel, lengthscale, points: Tensor, role: str = "kernel") -> Kernel:
    """Make a scalar kernel by name, or copy the given one, in float64 and not trained.

    The lengthscale of a name is a positive number, a vector (d,), or taken from the distances between the points (n, d): "median",
    "local", 0.3 times that, or for tasks "quantile_0.2" (LT-41).
    `role` is the name of the option in messages.
    """
    if isinstance(kernel, Kernel):
        check_scalar_kernel(kernel, role)
        return deepcopy(kernel).double().requires_grad_(False)
    if isinstance(lengthscale, str):
        ratio = LENGTHSCALE_RATIOS.get(lengthscale)
        value = _low_distance(points) if ratio is None else ratio * median_distance(points.numpy())
    else:
        value = as_array(lengthscale)
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.dim() and len(value) != points.shape[1]:
        raise InputError(f"lengthscale must have one entry per input column ({points.shape[1]}), got {len(value)}.")
    made = make_scalar_kernel(kernel, len(value) if value.dim() else None).double()
    made.lengthscale = value
    return made.requires_grad_(False)


def _low_distance(points: Tensor) -> float:
    """Compute the .2-quantile of the distances between at most 500 distinct points (n, d); 1 if all are equal (LT-41)."""
    distances = pair_distances(subsample(torch.unique(points.double(), dim=0)))
    return float(np.quantile(distances, DISTANCE_QUANTILE)) if len(distances) else 1.0


def input_factor(
    X: Tensor,
    *,
    kernel="rbf",
    lengthscale="median",
    num_frequencies: int | None = None,
    intercept: bool = False,
    random_state=None,
) -> Factor:
    """Make the factor of the input kernel: exact at the rows of X (LT-83), or with `num_frequencies` random features.

    The models have no intercept (LT §2.8); `intercept` adds a constant to the kernel. Complexity: exact O(n³) time and O(n²) memory;
    with D features O(n D d) per call.
    """
    made = task_kernel(kernel, lengthscale, X)
    if num_frequencies is None:
        factor = KernelFactor(made, X)
    else:
        seed = as_seed(random_state)
        factor = FeatureFactor(random_features(made, X.shape[1], num_frequencies, seed))
    return InterceptFactor(factor) if intercept else factor


def task_factor(nodes: Tensor, *, kernel="rbf", lengthscale=0.3) -> KernelFactor:
    """Make the factor of the task kernel, exact at the nodes (m,), or at all nodes of all rows (n, m), in O(m³)."""
    anchors = torch.unique(nodes.double()).unsqueeze(-1)
    return KernelFactor(task_kernel(kernel, lengthscale, anchors, "task_kernel"), anchors)


def list_input_lengthscales(estimator) -> list[Hyperparameter]:
    """List the lengthscales of the input kernel of a fitted `function_`, in original units."""
    factor = estimator.function_.inputs
    while hasattr(factor, "factor"):  # beside an intercept or a trend
        factor = factor.factor
    kernel = getattr(getattr(factor, "features", factor), "kernel", None)
    if (lengthscale := getattr(kernel, "lengthscale", None)) is None:
        return []
    values = np.broadcast_to(lengthscale.detach().numpy().reshape(-1), estimator.n_features_in_)
    values, names = values * estimator.scaling_.input_scale, ColumnNames.of(estimator).inputs
    return [Hyperparameter.of("lengthscale", value, name) for name, value in zip(names, values, strict=True)]


def canonical_lam(options) -> float:
    """Return λ of (λ/2) ‖h − b‖² from a number in either convention."""
    return float(options.lam) * TASK_CONVENTIONS[options.convention]
