"""Options that the functional estimators share: dictionaries by name, output matrices, and losses of curves."""

from __future__ import annotations

import numpy as np

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.options import Rule, integer, one_of
from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import (
    BSplines,
    Combination,
    Dictionary,
    Fourier,
    FunctionalData,
    PrincipalComponents,
)
from ovkgp.losses import Loss

MIN_FUNCTIONS, MAX_FUNCTIONS = 4, 20  # range of the default number of functions of a dictionary
SPLINE_ORDER = 4
DICTIONARIES = ("bsplines", "fourier", "pca")
DICTIONARY_CONSTRAINTS = {
    "dictionary": [one_of(*DICTIONARIES), Dictionary],
    "num_functions": [integer(), None],
    "output_matrix": ["array-like", None],
}
LOSS = [one_of("square"), Rule("a Loss", lambda value: isinstance(value, Loss))]


def make_dictionary(option, num_functions: int | None, data: FunctionalData) -> Dictionary:
    """Make a dictionary by name on the domain of the curves, or return the given one."""
    if isinstance(option, Dictionary):
        return option
    count = num_functions or int(np.clip(np.median(data.counts) // 3, MIN_FUNCTIONS, MAX_FUNCTIONS))
    if data.num_dims > 1:
        raise InputError(
            f"dictionary={option!r} requires curves on an interval, got {data.num_dims} dimensions. Pass a TensorProduct, or PrincipalComponents(y, num_functions, TensorProduct(…))."
        )
    if option == "pca":
        return (
            PrincipalComponents(data, min(count, len(data) - 1, data.num_points))
            if len(data) > 1
            else BSplines(4, data.domain)
        )
    if option == "fourier":
        return Fourier((count + 2) // 2, data.domain)
    return BSplines(count, data.domain, order=min(SPLINE_ORDER, count))


def check_loss(loss: str | Loss) -> None:
    """Check that the loss of a value is the same at all points: a position on a curve is not a quantile level or a cost."""
    if getattr(loss, "num_task_dims", None) is not None:
        raise OptionError(
            f"loss={type(loss).__name__} depends on a level, which is not supported. Use Huber, EpsilonInsensitive or LogCosh, or InfiniteQuantileRegressor for quantiles."
        )


def check_output_matrix(matrix, size: int) -> np.ndarray:
    """Return B (d, d) from a matrix, its diagonal (d,) or None for the identity."""
    if matrix is None:
        return np.eye(size)
    B = as_numbers(as_array(matrix), "output_matrix")
    B = np.diag(B) if B.ndim == 1 else B
    if B.shape != (size, size):
        raise InputError(
            f"output_matrix has shape {np.shape(matrix)}, expected ({size}, {size}) or ({size},), one row per function."
        )
    return B


def truncate_dictionary(
    dictionary: Dictionary, matrix: np.ndarray, threshold: float, gram: np.ndarray
) -> tuple[Dictionary, np.ndarray]:
    """Keep the eigenvectors W of the Gram matrix above a threshold: functions ΦW and the output matrix WᵀBW (BO-80)."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > threshold
    if not keep.any():
        raise InputError(
            f"rank_threshold must be below the largest eigenvalue {values[-1]:.3g} of the Gram matrix, got {threshold:g}."
        )
    W = vectors[:, keep][:, ::-1]
    return Combination(dictionary, W), W.T @ matrix @ W
