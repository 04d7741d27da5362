"""The kernels of ridge estimators: by name, with values that are set and never trained.

The lengthscale is a number, or the median distance between the inputs, as in the papers. It is measured on distinct rows
that are chosen by a hash of their values, so that neither their order, nor copies of a row, nor the way the rows are spread
over files and machines changes it.
"""

from __future__ import annotations

from copy import deepcopy
from numbers import Real

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.estimators.options import require_option
from ovkgp.estimators.structures import BASES, FIELDS, base_kernel, field_kernel, given_kernel
from ovkgp.estimators.tables import as_array
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.data import Observations, as_floating
from ovkgp.inference.data_scales import output_covariance, row_distances
from ovkgp.inference.landmarks import choose_landmarks
from ovkgp.kernels import DecomposableKernel, HelmholtzKernel, OutputMatrix

RIDGE_KERNELS = ("auto", "independent", "decomposable", *FIELDS)
MOST_ROWS = 500
"""Rows between which distances are measured."""


def ridge_kernel(options, X: np.ndarray, Y: np.ndarray) -> Kernel:
    """The kernel of a ridge estimator for X (n, d) and Y (n, p), in float64.

    Args:
        options: an estimator, for `kernel`, `base_kernel`, `lengthscale` and `output_matrix`.

    "auto" and "independent" are k(x, z) I; "decomposable" is k(x, z) Γ with the `output_matrix`, or the covariance of the
    outputs where that is None (BA-05). Fields have no output matrix.
    """
    kernel, p = options.kernel, Y.shape[1]
    if isinstance(kernel, Kernel):
        _refuse_matrix(options, "beside a kernel object, which has its own")
        return given_kernel(kernel, p).double()
    if not isinstance(kernel, str) or kernel not in RIDGE_KERNELS:
        raise OptionError(f"kernel must be one of {', '.join(map(repr, RIDGE_KERNELS))} or a kernel, got {kernel!r}.")
    base = _base(options.base_kernel, options.lengthscale, X)
    if kernel in FIELDS:
        _refuse_matrix(options, f"for kernel={kernel!r}, whose outputs are tied by derivatives")
        return _unit_field(field_kernel(kernel, base, X.shape[1], p).double())
    if kernel == "independent":
        _refuse_matrix(options, 'for kernel="independent", where it is the identity; say kernel="decomposable"')
    matrix = _output_matrix(kernel, options.output_matrix, Y)
    return DecomposableKernel(base, output_matrix=matrix).double()


def _unit_field(kernel: Kernel) -> Kernel:
    """The bare kernel of the papers; of a Helmholtz kernel the mean of its two parts (BT-29)."""
    parts = (kernel.curl, kernel.div) if isinstance(kernel, HelmholtzKernel) else (kernel,)
    for part in parts:
        part.outputscale = torch.tensor(1 / len(parts), dtype=torch.float64)
    return kernel


def _base(base: str | Kernel, lengthscale, X: np.ndarray) -> Kernel:
    """The scalar kernel, with one lengthscale for all columns unless it is an object."""
    if isinstance(base, Kernel) or base not in BASES:
        return base_kernel(base, X.shape[1]).double()
    kernel = BASES[base](None).double()
    value = median_distance(X) if isinstance(lengthscale, str) else _number(lengthscale)
    kernel.lengthscale = torch.tensor(value, dtype=torch.float64)  # a bare number would be rounded to float32
    return kernel


def require_base(options) -> None:
    """Refuse a base kernel that there is not, and a lengthscale that is no positive number, or has nobody to take it."""
    base, lengthscale = options.base_kernel, options.lengthscale
    if not isinstance(base, Kernel):
        require_option("base_kernel", base, tuple(BASES))
    if isinstance(lengthscale, str):
        require_option("lengthscale", lengthscale, ("median",), "a positive number")
    elif _number(lengthscale) and any(isinstance(part, Kernel) for part in (options.kernel, base)):
        raise OptionError(
            "lengthscale is for base kernels by name; a kernel object has its own: set it there, and leave it out here."
        )


def _number(lengthscale) -> float:
    if isinstance(lengthscale, bool) or not isinstance(lengthscale, Real) or not 0 < lengthscale < np.inf:
        raise OptionError(f'lengthscale must be "median" or a positive number, got {lengthscale!r}.')
    return float(lengthscale)


def median_distance(X: np.ndarray) -> float:
    """The median of the distances between at most 500 distinct rows of X (n, d); 1 where all rows are equal.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.ridge_kernels import median_distance
        >>> median_distance(np.array([[0.0], [1.0], [1.0], [3.0]]))
        2.0
    """
    rows = Observations(as_floating(X, "X"), torch.zeros(len(X), 1))
    return float(row_distances(choose_landmarks(rows, MOST_ROWS).X).median)


def _output_matrix(kernel: str, matrix, Y: np.ndarray) -> OutputMatrix | torch.Tensor:
    p = Y.shape[1]
    if matrix is None:
        return output_covariance(torch.from_numpy(Y)) if kernel == "decomposable" else torch.eye(p, dtype=torch.float64)
    if isinstance(matrix, OutputMatrix):
        shape = (matrix.num_outputs,) * 2
    else:
        matrix = torch.as_tensor(as_array(matrix), dtype=torch.float64)
        shape = tuple(matrix.shape)
    if shape != (p, p):
        raise InputError(f"output_matrix must be ({p}, {p}), one row for each column of Y; got {shape}.")
    return deepcopy(matrix)


def _refuse_matrix(options, why: str) -> None:
    if options.output_matrix is not None:
        raise OptionError(f"output_matrix has no meaning {why}: leave it out.")
