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
from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.named_kernels import BASES, median_distance, random_features
from ovkgp.estimators.common.options import check_lam, check_option
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.storage.functions import storable_part
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.factors import Factor, FeatureFactor, KernelFactor
from ovkgp.kernels import LaplaceKernel
from ovkgp.kernels.decomposable import check_scalar_kernel
from ovkgp.losses import TaskMeasure

MEASURES = ("gauss_legendre", "sobol", "monte_carlo")
TASK_KERNELS = {**BASES, "laplace": lambda d: LaplaceKernel(ard_num_dims=d)}
"""Scalar kernels of inputs and tasks by name."""
TASK_CONVENTIONS = {"samples": 1.0, "stability": 2.0}  # factor of the canonical λ in each convention (LT §0.2)


@storable_part
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
    check_option("measure", measure, MEASURES, "a TaskMeasure")
    num_tasks = check_integer("num_tasks", num_tasks)
    if measure == "gauss_legendre":
        return losses.gauss_legendre(num_tasks, low, high)
    distribution = stats.uniform(low, high - low)
    return getattr(losses, measure)(num_tasks, distribution=distribution, random_state=as_seed(random_state))


def _inside(measure: TaskMeasure, low: float, high: float) -> TaskMeasure:
    nodes = measure.nodes
    if not bool(((nodes >= low) & (nodes <= high)).all()):
        raise InputError(
            f"The nodes of measure must lie in [{low:g}, {high:g}], got {nodes.min():g} to {nodes.max():g}."
        )
    return measure


def task_kernel(kernel: str | Kernel, lengthscale, points: Tensor, role: str = "kernel") -> Kernel:
    """Make a scalar kernel by name, or copy the given one, in float64 and not trained.

    The lengthscale of a name is a positive number, a vector (d,) or "median" (LT-41), the median distance between the points (n, d).
    `role` is the name of the option in messages.
    """
    if isinstance(kernel, Kernel):
        check_scalar_kernel(kernel, role)
        return deepcopy(kernel).double().requires_grad_(False)
    check_option(role, kernel, tuple(TASK_KERNELS), "a scalar GPyTorch kernel")
    value = median_distance(points.numpy()) if _is_median(lengthscale) else check_lengthscale(lengthscale)
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.dim() and len(value) != points.shape[1]:
        raise InputError(f"lengthscale must have one entry per input column ({points.shape[1]}), got {len(value)}.")
    made = TASK_KERNELS[kernel](len(value) if value.dim() else None).double()
    made.lengthscale = value
    return made.requires_grad_(False)


def check_lengthscale(
    lengthscale, name: str = "lengthscale", also: tuple[str, ...] = ("median",)
) -> float | np.ndarray:
    """Return a positive number or a vector (d,) of them; `also` are the names that the option allows besides."""
    try:
        value = np.asarray(as_array(lengthscale), dtype=np.float64)
    except (TypeError, ValueError):
        value = np.array(np.nan)
    if isinstance(lengthscale, bool | str) or value.ndim > 1 or value.size == 0 or not _all_positive(value):
        names = ", ".join(map(repr, also))
        raise OptionError(
            f"{name} must be {names}, a positive number or a vector with one per column, got {lengthscale!r}."
        )
    return value if value.ndim else float(value)


def check_kernel(options, name: str, also: tuple[str, ...] = ("median",)) -> None:
    """Check the kernel option `name` ("kernel", "task_kernel", …) and its lengthscale."""
    kernel, scale = getattr(options, name), name.removesuffix("kernel") + "lengthscale"
    if isinstance(kernel, Kernel):
        return
    check_option(name, kernel, tuple(TASK_KERNELS), "a scalar GPyTorch kernel")
    value = getattr(options, scale)
    if not (isinstance(value, str) and value in also):
        check_lengthscale(value, scale, also)


def _all_positive(values: np.ndarray) -> bool:
    return bool((np.isfinite(values) & (values > 0)).all())


def _is_median(lengthscale) -> bool:
    return isinstance(lengthscale, str) and lengthscale == "median"


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
        factor = FeatureFactor(
            random_features(made, X.shape[1], check_integer("num_frequencies", num_frequencies), seed)
        )
    return InterceptFactor(factor) if intercept else factor


def task_factor(nodes: Tensor, *, kernel="rbf", lengthscale=0.3) -> KernelFactor:
    """Make the factor of the task kernel, exact at the nodes (m,), or at all nodes of all rows (n, m), in O(m³)."""
    anchors = torch.unique(nodes.double()).unsqueeze(-1)
    return KernelFactor(task_kernel(kernel, lengthscale, anchors, "task_kernel"), anchors)


def canonical_lam(options) -> float:
    """Return λ of (λ/2) ‖h − b‖² from a number in either convention."""
    values = check_lam(options.lam)
    if len(values) > 1:
        raise OptionError(f"lam must be one positive number, got {options.lam!r}.")
    return float(values[0]) * TASK_CONVENTIONS[options.convention]
