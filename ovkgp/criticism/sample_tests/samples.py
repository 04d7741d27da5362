"""Samples of a Hilbert space: rows of numbers or a Gram matrix of inner products, and their principal coordinates."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg import eigh

from ovkgp.checks import as_numbers, check_one_of
from ovkgp.exceptions import InputError, OptionError

MIN_ROWS = 10  # distributions of statistics are asymptotic
EIGENVALUE_TOLERANCE = 1e-10  # relative to the largest; smaller ones are rounding errors of the Gram matrix
GRAM_TOLERANCE = 1e-8  # relative asymmetry, and relative negative eigenvalues, that are taken for rounding errors


def as_rows(data, name: str = "data", minimum: int = MIN_ROWS) -> np.ndarray:
    """Return arrays, frames or tensors of shape (n, d) or (n,) as finite float64 rows (n, d) with n ≥ `minimum`."""
    if torch.is_tensor(data):
        data = data.detach().cpu().numpy()
    rows = as_numbers(data, name)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise InputError(
            f"{name} has shape {rows.shape}, expected (n, d) with d ≥ 1. Flatten each observation to a row."
        )
    if len(rows) < minimum:
        raise InputError(f"{name} must have at least {minimum} rows, got {len(rows)}. Pass more rows.")
    _check_finite(rows, name)
    return rows


def as_gram(gram, name: str = "gram", minimum: int = MIN_ROWS) -> np.ndarray:
    """Return a symmetric matrix of finite float64; eigenvalues are checked where they are computed."""
    if torch.is_tensor(gram):
        gram = gram.detach().cpu().numpy()
    matrix = as_numbers(gram, name)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{name} has shape {matrix.shape}, expected (n, n): inner products of the n observations.")
    if len(matrix) < minimum:
        raise InputError(f"{name} must have at least {minimum} rows, got {len(matrix)}. Pass more observations.")
    _check_finite(matrix, name)
    asymmetry, largest = np.abs(matrix - matrix.T).max(), np.abs(matrix).max()
    if asymmetry > GRAM_TOLERANCE * largest:
        raise InputError(f"{name} must be symmetric, got {name} - {name}.T of up to {asymmetry:.3g}. Pass (G + G.T)/2.")
    return (matrix + matrix.T) / 2


def check_one_source(data, gram) -> None:
    """Check that exactly one of `data` and `gram` is passed."""
    if (data is None) == (gram is None):
        given = "neither" if data is None else "both"
        raise OptionError(f"Exactly one of data and gram is expected, got {given}.")


def center_gram(gram: np.ndarray) -> np.ndarray:
    """Return the inner products (n, n) of deviations from the mean of the observations."""
    means = gram.mean(0)
    return gram - means[:, None] - means + means.mean()


def coordinates_of_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotate centered rows (n, d) to the eigenvectors of XᵀX/n; return coordinates (n, q) and eigenvalues (q,), decreasing."""
    if rows.shape[1] > len(rows):
        return coordinates_of_gram(rows @ rows.T, "data")
    eigenvalues, vectors = eigh(rows.T @ rows / len(rows))
    return rows @ vectors[:, ::-1], np.maximum(eigenvalues[::-1], 0.0)


def coordinates_of_gram(gram: np.ndarray, name: str = "gram") -> tuple[np.ndarray, np.ndarray]:
    """Factorize a Gram matrix of centered observations into C Cᵀ; return C (n, q) and the eigenvalues (q,) of CᵀC/n."""
    eigenvalues, vectors = eigh(gram)
    largest = eigenvalues[-1]
    if eigenvalues[0] < -GRAM_TOLERANCE * max(largest, -eigenvalues[0]):
        raise InputError(
            f"{name} must be positive semi-definite, got an eigenvalue of {eigenvalues[0]:.3g} (largest {largest:.3g}). "
            "Pass inner products, not distances or correlations with missing values."
        )
    kept = eigenvalues > EIGENVALUE_TOLERANCE * largest
    eigenvalues, vectors = eigenvalues[kept][::-1], vectors[:, kept][:, ::-1]
    return vectors * np.sqrt(eigenvalues), eigenvalues / len(gram)


def squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute squared distances (n, m) between rows (n, d) and (m, d), at least 0."""
    products = first @ second.T
    products *= -2
    products += np.einsum("ij,ij->i", first, first)[:, None]
    products += np.einsum("ij,ij->i", second, second)
    return np.maximum(products, 0.0, out=products)


def is_median(scale) -> bool:
    """Whether the scale of a kernel is "median", and not numbers; raise for other strings."""
    return isinstance(scale, str) and check_one_of("scale", scale, ("median",)) == "median"


def median_squared_distance(rows: np.ndarray, rng: np.random.Generator) -> float:
    """Compute the median squared distance of pairs among at most 1000 rows."""
    if len(rows) > 1000:
        rows = rows[rng.choice(len(rows), 1000, replace=False)]
    squares = squared_distances(rows, rows)[np.triu_indices(len(rows), 1)]
    return float(np.median(squares))


def _check_finite(values: np.ndarray, name: str) -> None:
    """Raise unless all values are finite."""
    if not np.isfinite(values).all():
        invalid = int((~np.isfinite(values)).sum())
        raise InputError(f"{name} must be finite, got {invalid} NaN or infinite values. Drop or impute these rows.")
