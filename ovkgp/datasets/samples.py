"""The sample that generators return, and their common parts: random streams, features, noise and checks.

Inputs, ground truth and noise of a sample have separate random streams, so that one seed gives the same ground truth
and the same first rows for every number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from numpy.typing import ArrayLike
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF

INPUTS, TRUTH, FEATURES, NOISE, LABELS, REFERENCE, OUTPUT_MATRIX, COVARIANCE = range(8)
"""Independent random streams of a seed."""

SAMPLE_CHUNK_ENTRIES = 2**22  # maximum number of features, rows times columns, in memory at once


class Sample(NamedTuple):
    """Inputs, outputs and the function behind them.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        Inputs, float64.
    Y : ndarray of shape (n, p)
        Outputs, float64; NaN where an output is not observed.
    truth : callable
        Function from points (m, d) to the noiseless outputs (m, p), for test sets and errors against the ground truth.

    Examples
    --------
    >>> from ovkgp.datasets import make_gaussian_field
    >>> X, Y, truth = make_gaussian_field(100, noise=0.01, random_state=0)
    >>> X.shape, Y.shape, truth([[0.0, 0.5]]).shape
    ((100, 2), (100, 2), (1, 2))
    """

    X: np.ndarray
    Y: np.ndarray
    truth: Callable[[ArrayLike], np.ndarray]


def make_rng(seed: int, name: int) -> np.random.Generator:
    """Return the generator of one stream (`INPUTS`, …) of a seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(name,)))


def derive_seed(seed: int, name: int) -> int:
    """Derive a separate seed for an object that takes one."""
    return int(make_rng(seed, name).integers(2**31))


def make_gaussian_kernel(num_dims: int, lengthscale: float) -> RBFKernel:
    """Return a fixed Gaussian kernel on R^d, in float64."""
    kernel = RBFKernel(ard_num_dims=num_dims).double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)  # a bare float would pass through float32
    return kernel


def make_features(kernel: Kernel, num_frequencies: int, seed: int) -> ORFF:
    """Return the features of a ground truth, unbounded: those of a curl-free kernel are gradients of its base kernel's.

    The seed differs from the user's: a model fitted with the same `random_state` must not share the frequencies.
    """
    features = ORFF(kernel, num_frequencies, bounded=False, random_state=derive_seed(seed, FEATURES))
    return features.double().block(0)  # drawn again in float64: the same under any default dtype


def check_points(X: ArrayLike, num_dims: int) -> np.ndarray:
    """Return X as a finite float64 copy (m, num_dims)."""
    X = np.array(np.asarray(X), dtype=np.float64, order="C")  # a tensor becomes an array first, or NumPy warns
    if X.ndim != 2 or X.shape[1] != num_dims:
        raise InputError(f"X has shape {X.shape}, expected (m, {num_dims}) with one row per point.")
    if not np.isfinite(X).all():
        raise InputError("X must be finite, got NaN or infinity.")
    return X


def combine_features(features: ORFF, weights: Tensor, X: np.ndarray) -> np.ndarray:
    """Return Φ(X) @ weights, a few rows of X at a time, with O(SAMPLE_CHUNK_ENTRIES) memory for the features."""
    parts = torch.from_numpy(X).split(max(1, SAMPLE_CHUNK_ENTRIES // len(weights)))
    return torch.cat([features(part) @ weights for part in parts]).numpy()


def add_noise(Y: np.ndarray, noise: ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """Return Y + ε with ε ~ N(0, Σ) per row; `noise` is Σ as one variance, p variances or a covariance (p, p)."""
    try:
        noise, epsilon = np.asarray(noise, dtype=np.float64), rng.standard_normal(Y.shape)
    except (TypeError, ValueError) as error:
        raise OptionError(f"noise must be a variance, p variances or a covariance matrix, got {noise!r}.") from error
    _check_noise(noise, Y.shape[1])
    return Y + (epsilon @ _root(noise) if noise.ndim == 2 else epsilon * np.sqrt(noise))


def _check_noise(noise: np.ndarray, p: int) -> None:
    if noise.shape not in ((), (p,), (p, p)):
        raise OptionError(
            f"noise must be one variance, {p} variances or a covariance of shape ({p}, {p}), got shape {noise.shape}."
        )
    if not np.isfinite(noise).all() or (noise.ndim == 2 and not np.allclose(noise, noise.T)):
        raise OptionError("noise must be finite, and symmetric if it is a covariance matrix.")
    if noise.ndim < 2 and (noise < 0).any():
        raise OptionError(f"noise must not be negative, got the variance {noise.min():.3g}.")


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return the symmetric root of Σ (p, p), by eigenvectors since Σ may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-10 * abs(values[-1]):
        raise OptionError(f"noise must not have a negative eigenvalue, got {values[0]:.3g}.")
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
