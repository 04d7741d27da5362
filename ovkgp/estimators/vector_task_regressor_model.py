"""What a `VectorTaskRegressor` is made of: tasks and targets in one shape, the output matrix, and the model on pairs (x, θ)."""

from __future__ import annotations

from numbers import Integral

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.ridge import scaled_kernel
from ovkgp.estimators.tables import as_array, numbers
from ovkgp.estimators.task_options import task_kernel
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel


def task_points(tasks, num_columns: int) -> np.ndarray:
    """The tasks (T, q) of an option: points (T,) or (T, q), or 0, 1, … for each column of Y where it is None.

    Example:
        >>> from ovkgp.estimators.vector_task_regressor_model import task_points
        >>> task_points(None, 3).tolist()
        [[0.0], [1.0], [2.0]]
    """
    if tasks is None:
        return np.arange(float(num_columns))[:, None]
    points = numbers(as_array(tasks), "tasks")
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all():
        raise InputError(f"tasks must be finite points of shape (T,) or (T, q), got {np.shape(tasks)}.")
    return points


def by_task(Y: np.ndarray, num_tasks: int) -> np.ndarray:
    """Y (n, T·p), task-major, as (n, T, p)."""
    if Y.shape[1] % num_tasks:
        raise InputError(
            f"Y has {Y.shape[1]} columns for {num_tasks} tasks: give (n, T, p), or (n, T·p) with the p outputs of the first task first."
        )
    return Y.reshape(len(Y), num_tasks, -1)


def second_moments(Y: np.ndarray) -> np.ndarray:
    """YᵀY over its observed entries, (p, p): uncentred means of products, of Y (n, T, p)."""
    rows = Y.reshape(-1, Y.shape[-1])
    seen = np.isfinite(rows).astype(float)
    rows = np.where(seen > 0, rows, 0.0)
    return rows.T @ rows / np.maximum(seen.T @ seen, 1.0)


def output_matrix(option, Y: np.ndarray) -> Tensor:
    """A (p, p): "identity"; a rank r, for V J_r Vᵀ with the eigenvectors V of YᵀY (LT-102); or a matrix.

    Args:
        option: as above.
        Y: (n, T, p), NaN where missing.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.vector_task_regressor_model import output_matrix
        >>> output_matrix(1, np.array([[[3.0, 0.0]], [[1.0, 0.0]]]))
        tensor([[1., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    p = Y.shape[-1]
    if isinstance(option, str):
        if option != "identity":
            raise OptionError(f'output_matrix must be "identity", a rank or a ({p}, {p}) matrix; got {option!r}.')
        return torch.eye(p, dtype=torch.float64)
    if isinstance(option, Integral) and not isinstance(option, bool):
        if not 1 <= option <= p:
            raise OptionError(f"the rank of the output matrix must be 1 to {p}, the number of outputs; got {option}.")
        _, vectors = np.linalg.eigh(second_moments(Y))
        leading = vectors[:, -int(option) :]
        return torch.from_numpy(leading @ leading.T)
    return _matrix(option, p)


def _matrix(option, p: int) -> Tensor:
    matrix = numbers(as_array(option), "output_matrix")
    if matrix.shape != (p, p):
        raise InputError(f"output_matrix must be ({p}, {p}), for {p} outputs a task; got {matrix.shape}.")
    scale = np.abs(matrix).max()
    if not np.isfinite(scale) or np.abs(matrix - matrix.T).max() > 1e-8 * scale:
        raise InputError("output_matrix must be finite and symmetric.")
    if np.linalg.eigvalsh(matrix)[0] < -1e-8 * scale:
        raise InputError("output_matrix must be positive semi-definite: it has a negative eigenvalue.")
    return torch.from_numpy((matrix + matrix.T) / 2)


def pair_kernel(options, X: Tensor, tasks: Tensor, matrix: Tensor) -> DecomposableKernel:
    """k_X(x, x') k_Θ(θ, θ') A on pairs, in float64, nothing of it trained.

    Args:
        options: an estimator, for `kernel`, `lengthscale`, `task_kernel` and `task_lengthscale`.
        X: (n, d), between which a median distance is measured.
        tasks: (T, q), likewise.
        matrix: A (p, p).

    Example:
        >>> import torch
        >>> import ovkgp
        >>> from ovkgp.estimators.vector_task_regressor_model import pair_kernel
        >>> X, tasks = torch.randn(6, 2).double(), torch.randn(4, 2).double()
        >>> kernel = pair_kernel(ovkgp.VectorTaskRegressor(), X, tasks, torch.eye(3).double())
        >>> kernel(torch.cat([X[:4], tasks], 1)).shape  # four pairs, three outputs
        torch.Size([12, 12])
    """
    inputs = task_kernel(options.kernel, options.lengthscale, X)
    over_tasks = task_kernel(options.task_kernel, options.task_lengthscale, tasks, "task_kernel")
    q = tasks.shape[1]
    if q > 1 and over_tasks.ard_num_dims != q:
        over_tasks = _one_a_column(options.task_kernel, over_tasks, tasks)
    kernel = DecomposableKernel(FunctionValuedKernel(inputs, over_tasks), output_matrix=matrix)
    return kernel.double().requires_grad_(False)


def _one_a_column(option, kernel: Kernel, tasks: Tensor) -> Kernel:
    """The same kernel with a lengthscale for each column, by which a function-valued kernel knows how many are the task."""
    q = tasks.shape[1]
    if isinstance(option, Kernel):
        raise InputError(f"tasks have {q} columns: make the task kernel with ard_num_dims={q}.")
    return task_kernel(option, np.full(q, kernel.lengthscale.item()), tasks, "task_kernel")


def pair_gp(kernel: Kernel, noise: float, scale: float, *, trained: bool) -> OperatorValuedGP:
    """The model s² (K, σ²): mean zero, one noise for all.

    Args:
        kernel: of `pair_kernel`.
        noise, scale: σ² and s².
        trained: whether lengthscales, s² and s²σ² are to be trained; A is not.
    """
    gp = OperatorValuedGP(scaled_kernel(kernel, scale), mean="zero", noise="shared" if trained else noise * scale)
    if trained:
        gp.noise_model.set(noise * scale)
        gp.kernel.requires_grad_(True)
    else:
        gp.kernel.requires_grad_(False)
    return gp


def outputscale(gp: OperatorValuedGP) -> float:
    """s² of a `pair_gp`."""
    return gp.kernel.outputscale.item()
