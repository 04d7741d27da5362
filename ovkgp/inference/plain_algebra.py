"""log det C, C⁻¹ and C⁻¹ r of a small covariance, with as little around LAPACK as there can be."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import lapack

SMALL = 64
"""Up to so many rows SciPy's LAPACK is called, which begins sooner; beyond, torch's, which is the faster of the two."""


def solved(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """C⁻¹ columns, C⁻¹ and log det C for a positive definite C (N, N) and columns (N, k).

    Of C⁻¹ (N, N) only the symmetric part is right: contract it with symmetric matrices. C may be overwritten.

    Cost: N³ + 2N²k operations.

    Raises:
        numpy.linalg.LinAlgError: C is not positive definite to working precision.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.plain_algebra import solved
        >>> x, inverse, logdet = solved(4 * np.eye(3), np.ones((3, 1)))
        >>> x.ravel().tolist(), inverse.diagonal().tolist(), round(logdet, 4)
        ([0.25, 0.25, 0.25], [0.25, 0.25, 0.25], 4.1589)
    """
    return _by_scipy(C, columns) if len(C) <= SMALL else _by_torch(C, columns)


def _by_scipy(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    chol, info = lapack.dpotrf(C.T, lower=1, clean=1, overwrite_a=1)  # C.T is C in the order of Fortran
    logdet = 2 * float(np.log(chol.diagonal()).sum()) if info == 0 else np.nan
    if not np.isfinite(logdet):
        raise np.linalg.LinAlgError("a covariance matrix is not positive definite")
    x = lapack.dpotrs(chol, columns, lower=1)[0]
    inverse = lapack.dpotri(chol, lower=1, overwrite_c=1)[0]
    inverse = inverse.T  # in the order of C; one of its triangles is zero
    inverse *= 2
    inverse.flat[:: len(C) + 1] *= 0.5
    return x, inverse, logdet


def _by_torch(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    chol, info = torch.linalg.cholesky_ex(torch.from_numpy(C))
    logdet = 2 * float(chol.diagonal().log().sum()) if info.item() == 0 else np.nan
    if not np.isfinite(logdet):
        raise np.linalg.LinAlgError("a covariance matrix is not positive definite")
    x = torch.cholesky_solve(torch.from_numpy(np.ascontiguousarray(columns)), chol).numpy()
    return x, torch.cholesky_inverse(chol).mT.numpy(), logdet  # symmetric, and thus in the order of C
