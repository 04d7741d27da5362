"""What every generator returns, and what the generators share: random streams, features, noise and checks.

A sample is (X, Y, truth), with `truth` the noiseless function behind the outputs. Inputs, truth and noise each have a
random stream of their own, so that one seed gives the same truth, and the same first rows, whatever the number of rows.
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
"""The streams of a seed."""

CHUNK = 2**22
"""How many features, rows times columns, are in memory at once."""


class Sample(NamedTuple):
    """Inputs, outputs and the function behind them.

    Attributes:
        X: (n, d), float64.
        Y: (n, p), float64; NaN where an output is not observed.
        truth: X (m, d) ↦ the noiseless outputs (m, p), for test sets and errors against the truth.

    Example:
        >>> from ovkgp.datasets import make_gaussian_field
        >>> X, Y, truth = make_gaussian_field(100, noise=0.01, random_state=0)
        >>> X.shape, Y.shape, truth([[0.0, 0.5]]).shape
        ((100, 2), (100, 2), (1, 2))
    """

    X: np.ndarray
    Y: np.ndarray
    truth: Callable[[ArrayLike], np.ndarray]


def random_stream(seed: int, name: int) -> np.random.Generator:
    """The generator of one stream (`INPUTS`, …) of a seed."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(name,)))


def child_seed(seed: int, name: int) -> int:
    """A seed of its own for an object that takes one."""
    return int(random_stream(seed, name).integers(2**31))


def gaussian_kernel(num_dims: int, lengthscale: float) -> RBFKernel:
    """A fixed Gaussian kernel on R^d, in float64."""
    kernel = RBFKernel(ard_num_dims=num_dims).double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)  # a bare float would pass through float32
    return kernel


def random_features(kernel: Kernel, num_frequencies: int, seed: int) -> ORFF:
    """The features of a truth, unbounded: those of a curl-free kernel are then the gradients of its base kernel's.

    Their seed is not the user's own, which a model fitted with the same `random_state` draws its features from: it
    would know part of the truth.
    """
    features = ORFF(kernel, num_frequencies, bounded=False, random_state=child_seed(seed, FEATURES))
    return features.double().block(0)  # drawn again in float64: the same under any default dtype


def finite_rows(X: ArrayLike, num_dims: int) -> np.ndarray:
    """X as a finite float64 copy (m, num_dims)."""
    X = np.array(np.asarray(X), dtype=np.float64, order="C")  # a tensor becomes an array first, or NumPy warns
    if X.ndim != 2 or X.shape[1] != num_dims:
        raise InputError(f"X must have shape (m, {num_dims}), one row a point; got {X.shape}.")
    if not np.isfinite(X).all():
        raise InputError("X holds NaN or infinity; the truth is known at finite points only.")
    return X


def in_chunks(function: Callable[[Tensor], Tensor], X: np.ndarray, num_features: int) -> np.ndarray:
    """`function` of the rows of X, a few at a time: O(CHUNK) memory for its features."""
    parts = torch.from_numpy(X).split(max(1, CHUNK // num_features))
    return torch.cat([function(part) for part in parts]).numpy()


def with_noise(Y: np.ndarray, noise: ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """Y + ε, ε ~ N(0, Σ) for each row.

    Args:
        Y: (n, p).
        noise: Σ as one variance, the p variances, or a covariance (p, p).
        rng: where ε comes from.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.samples import with_noise
        >>> with_noise(np.zeros((4, 2)), [0.0, 1.0], np.random.default_rng(0))[:, 0]
        array([0., 0., 0., 0.])
    """
    try:
        noise, epsilon = np.asarray(noise, dtype=np.float64), rng.standard_normal(Y.shape)
    except (TypeError, ValueError) as error:
        raise OptionError(f"noise is a variance, some or a covariance, got {noise!r}.") from error
    _require_variances(noise, Y.shape[1])
    return Y + (epsilon @ _root(noise) if noise.ndim == 2 else epsilon * np.sqrt(noise))


def _require_variances(noise: np.ndarray, p: int) -> None:
    if noise.shape not in ((), (p,), (p, p)):
        raise OptionError(
            f"noise is one variance, {p} variances or a covariance ({p}, {p}); got an array of shape {noise.shape}."
        )
    if not np.isfinite(noise).all() or (noise.ndim == 2 and not np.allclose(noise, noise.T)):
        raise OptionError("noise must be finite, and symmetric where it is a covariance matrix.")
    if noise.ndim < 2 and (noise < 0).any():
        raise OptionError(f"noise is a variance and must not be negative; got {noise.min():.3g}.")


def _root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric root of Σ (p, p); by eigenvectors, as Σ may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    if values[0] < -1e-10 * abs(values[-1]):
        raise OptionError(
            f"a noise covariance must not be indefinite or negative; it has an eigenvalue {values[0]:.3g}."
        )
    return (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
