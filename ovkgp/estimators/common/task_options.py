"""What estimators of a continuum of tasks are made of: a measure on the tasks, and coordinates of the two kernels.

A kernel is a name or a scalar GPyTorch kernel; the lengthscale of a name is a number, one number a column, or the median distance
between the points. The coordinates are exact at the points given, or random Fourier features where a number of these is named.
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
from ovkgp.estimators.common.options import check_option
from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.factors import Factor, FeatureFactor, KernelFactor
from ovkgp.kernels import LaplaceKernel
from ovkgp.kernels.decomposable import check_scalar
from ovkgp.losses import TaskMeasure

MEASURES = ("gauss_legendre", "sobol", "monte_carlo")
TASK_KERNELS = {**BASES, "laplace": lambda d: LaplaceKernel(ard_num_dims=d)}
"""By name, the scalar kernels of inputs and tasks."""


class InterceptFactor:
    """The rows of another factor with a constant column c: the kernel k(x, z) + c².

    Args:
        factor: φ.
        scale: c, the prior standard deviation of the constant.

    Cost: a column more.
    """

    def __init__(self, factor: Factor, scale: float = 1.0):
        self.factor, self.scale = factor, scale

    def __call__(self, points: Tensor) -> Tensor:
        return self._with_column(self.factor(points))

    def left_out(self, points: Tensor) -> Tensor:
        """That of the other factor, (k,)."""
        return self.factor.left_out(points)

    @property
    def anchor_rows(self) -> Tensor:
        """The rows at the anchors, where the other factor has some."""
        return self._with_column(self.factor.anchor_rows)

    def _with_column(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_full((len(rows), 1), self.scale)], -1)


def make_measure(measure, num_tasks: int, low: float = 0.0, high: float = 1.0, random_state=None) -> TaskMeasure:
    """The uniform measure on [low, high] as nodes and weights (LT-70..72).

    Args:
        measure: "gauss_legendre", "sobol" (scrambled), "monte_carlo", or a `TaskMeasure`, which is checked and returned.
        num_tasks: m, the number of nodes; of no use beside a `TaskMeasure`.
        random_state: of "sobol" and "monte_carlo".

    Example:
        >>> from ovkgp.estimators.common.task_options import make_measure
        >>> make_measure("gauss_legendre", 3).nodes
        tensor([0.1127, 0.5000, 0.8873], dtype=torch.float64)
    """
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
            f"the nodes of the measure must lie in [{low:g}, {high:g}], got {nodes.min():g} to {nodes.max():g}."
        )
    return measure


def task_kernel(kernel: str | Kernel, lengthscale, points: Tensor, role: str = "kernel") -> Kernel:
    """A scalar kernel by name, or a copy of the one given, in float64 and never trained.

    Args:
        kernel: a name of `TASK_KERNELS`, or a scalar GPyTorch kernel.
        lengthscale: of a name: a positive number, a vector (d,) of them, or "median" (LT-41).
        points: (n, d), between which the median distance is measured.
        role: what the option is called in an error.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.common.task_options import task_kernel
        >>> task_kernel("rbf", "median", torch.tensor([[0.0], [1.0], [3.0]])).lengthscale.item()
        2.0
    """
    if isinstance(kernel, Kernel):
        check_scalar(kernel, role)
        return deepcopy(kernel).double().requires_grad_(False)
    check_option(role, kernel, tuple(TASK_KERNELS), "a scalar GPyTorch kernel")
    value = median_distance(points.numpy()) if _is_median(lengthscale) else check_lengthscale(lengthscale)
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.dim() and len(value) != points.shape[1]:
        raise InputError(
            f"lengthscale has {len(value)} entries and the inputs have {points.shape[1]} columns; give one a column."
        )
    made = TASK_KERNELS[kernel](len(value) if value.dim() else None).double()
    made.lengthscale = value
    return made.requires_grad_(False)


def check_lengthscale(
    lengthscale, name: str = "lengthscale", also: tuple[str, ...] = ("median",)
) -> float | np.ndarray:
    """A positive number, or a vector (d,) of them; `name` and what `also` might have been given are for the error."""
    try:
        value = np.asarray(as_array(lengthscale), dtype=np.float64)
    except (TypeError, ValueError):
        value = np.array(np.nan)
    if isinstance(lengthscale, bool | str) or value.ndim > 1 or value.size == 0 or not _all_positive(value):
        names = ", ".join(map(repr, also))
        raise OptionError(
            f"{name} must be {names}, a positive number or a vector with one a column; got {lengthscale!r}."
        )
    return value if value.ndim else float(value)


def check_kernel(options, name: str, also: tuple[str, ...] = ("median",)) -> None:
    """Refuse an option `name` ("kernel", "task_kernel", …) that is no kernel, and a lengthscale of its name that is none."""
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
    """Coordinates of the input kernel: exact at the rows of X, or random features.

    Args:
        X: (n, d), float64, scaled.
        kernel, lengthscale: as for `task_kernel`.
        num_frequencies: D of random Fourier features (orthogonal where the law allows); None is exact (LT-83).
        intercept: whether a constant is added to the kernel (LT §2.8: the models have none of their own).
        random_state: of the frequencies.

    Cost: exact O(n³) time and O(n²) memory; with features O(n D d) a call.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.common.task_options import input_factor
        >>> X = torch.linspace(0, 1, 5).double()[:, None]
        >>> rows = input_factor(X, lengthscale=0.5)(X)
        >>> torch.allclose(rows @ rows.T, torch.exp(-2 * (X - X.T) ** 2))
        True
        >>> input_factor(X, lengthscale=0.5, num_frequencies=10, intercept=True, random_state=0)(X).shape
        torch.Size([5, 21])
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
    """Coordinates of the task kernel, exact at the nodes (m,), or at all nodes of all rows (n, m).

    Args:
        kernel, lengthscale: as for `task_kernel`, on one column.

    Cost: O(m³).

    Example:
        >>> import torch
        >>> from ovkgp.estimators.common.task_options import task_factor
        >>> task_factor(torch.linspace(0, 1, 4).double())(torch.tensor([[0.5]]).double()).shape
        torch.Size([1, 4])
    """
    anchors = torch.unique(nodes.double()).unsqueeze(-1)
    return KernelFactor(task_kernel(kernel, lengthscale, anchors, "task_kernel"), anchors)
