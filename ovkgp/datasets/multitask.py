"""Related outputs: quadratic tasks, and outputs of low rank under correlated noise.

The tasks of BT-83 share their features, y_t = ⟨w_t, φ(x)⟩ with seven monomials φ. The outputs of BA-13 share one random
function, Cov(y) = k(x, z) A with A of rank one, and are observed with noise N(0, Σ) with a full Σ.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist

from ovkgp.checks import as_seed, check_integer, check_positive
from ovkgp.datasets.samples import (
    COVARIANCE,
    INPUTS,
    NOISE,
    OUTPUT_MATRIX,
    REFERENCE,
    TRUTH,
    Sample,
    add_noise,
    check_points,
    combine_features,
    make_features,
    make_gaussian_kernel,
    make_rng,
)
from ovkgp.exceptions import OptionError
from ovkgp.kernels import DecomposableKernel

TASK_VARIANCES = (0.5, 0.25, 0.1, 0.05, 0.15, 0.1, 0.15)
MIN_DIMS = 5
NUM_REFERENCE_INPUTS = 1000


class QuadraticTasks:
    """Function x ↦ (⟨w_t, φ(x)⟩)_t with φ(x) = (x₁², x₄², x₁x₂, x₃x₅, x₂, x₄, 1) and weights w (p, 7).

    If `rescaled`, inputs are given as 2x − 1 in [−1, 1]. Complexity: O(m (d + p)) for m points.
    """

    def __init__(self, weights: np.ndarray, num_dims: int, rescaled: bool = False):
        self.weights, self.num_dims, self.rescaled = weights, num_dims, rescaled

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return the noiseless outputs at points X (m, d): (m, p)."""
        X = check_points(X, self.num_dims)
        x1, x2, x3, x4, x5 = ((X + 1) / 2 if self.rescaled else X)[:, :MIN_DIMS].T
        return np.stack([x1**2, x4**2, x1 * x2, x3 * x5, x2, x4, np.ones(len(X))], axis=1) @ self.weights.T


def make_quadratic_tasks(
    num_rows: int,
    *,
    num_tasks: int = 4,
    num_dims: int = 20,
    noise: ArrayLike = 0.0,
    rescaled: bool = False,
    random_state=None,
) -> Sample:
    """Generate one random quadratic function of 5 of 20 inputs per task (BT-83).

        X ~ U([0, 1]ᵈ),   y_t = ⟨w_t, φ(x)⟩ + ε_t,   w_t ~ N(0, diag(.5, .25, .1, .05, .15, .1, .15))

    The author's script adds noise of standard deviation 0.1 and passes the inputs as 2X − 1: `noise=0.01`,
    `rescaled=True`.

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    num_tasks : int, default=4
        Number p of tasks.
    num_dims : int, default=20
        Number d of inputs, at least 5.
    noise : float or array-like, default=0.0
        Variance of ε: one value, one per output (p,), or a covariance (p, p).
    rescaled : bool, default=False
        Whether to return the inputs in [−1, 1]; the outputs stay the same.
    random_state : int, RandomState or None, default=None
        Seed. One int gives one ground truth, and the same first rows for every n.

    Returns
    -------
    Sample
        X (n, d), Y (n, p) and the ground truth, a `QuadraticTasks`.

    Notes
    -----
    Complexity: O(n (d + p)) time and memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_quadratic_tasks
    >>> X, Y, truth = make_quadratic_tasks(100, noise=0.01, rescaled=True, random_state=0)
    >>> X.shape, Y.shape
    ((100, 20), (100, 4))
    """
    num_rows, num_tasks = check_integer("num_rows", num_rows), check_integer("num_tasks", num_tasks)
    num_dims, seed = check_integer("num_dims", num_dims, minimum=MIN_DIMS), as_seed(random_state)
    weights = make_rng(seed, TRUTH).standard_normal((num_tasks, len(TASK_VARIANCES))) * np.sqrt(TASK_VARIANCES)
    truth = QuadraticTasks(weights, num_dims, rescaled)
    X = make_rng(seed, INPUTS).random((num_rows, num_dims))
    X = 2 * X - 1 if rescaled else X
    return Sample(X, add_noise(truth(X), noise, make_rng(seed, NOISE)), truth)


class LowRankFunction:
    """Function x ↦ Φ(x) θ, θ ~ U([−1, 1]), with the random features Φ of a decomposable kernel k(x, z) A.

    `noise_covariance` is the Σ (p, p) of BA-13: full, random, of spectral norm equal to the standard deviation of the
    outputs (the root of their variance over the cube, averaged over outputs). Complexity: O(m D (d + r) + m p r) time
    for m points and A of rank r, memory independent of m.
    """

    def __init__(self, output_matrix: np.ndarray, num_dims: int, lengthscale: float, num_frequencies: int, seed: int):
        self.output_matrix, self.num_dims, self.lengthscale = output_matrix, num_dims, lengthscale
        matrix = torch.from_numpy(output_matrix)
        kernel = DecomposableKernel(make_gaussian_kernel(num_dims, lengthscale), output_matrix=matrix)
        self._features = make_features(kernel, num_frequencies, seed)
        self._weights = torch.from_numpy(make_rng(seed, TRUTH).uniform(-1, 1, self._features.num_features))
        self.noise_covariance = self._noise_covariance(seed)

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return the noiseless outputs at points X (m, d): (m, p)."""
        X = check_points(X, self.num_dims)
        return combine_features(self._features, self._weights, X).reshape(len(X), len(self.output_matrix))

    def _noise_covariance(self, seed: int) -> np.ndarray:
        deviation = np.sqrt(self(make_reference_inputs(self.num_dims, seed)).var(0).mean())
        root = make_rng(seed, COVARIANCE).standard_normal(self.output_matrix.shape)
        return deviation * _normalize(root @ root.T)


def make_reference_inputs(num_dims: int, seed: int) -> np.ndarray:
    """Return 1000 points that represent the cube, so that no property of the ground truth depends on n."""
    return make_rng(seed, REFERENCE).uniform(-1, 1, (NUM_REFERENCE_INPUTS, num_dims))


def make_low_rank_outputs(
    num_rows: int,
    *,
    num_dims: int = 20,
    num_outputs: int = 20,
    rank: int = 1,
    lengthscale: float | None = None,
    num_frequencies: int = 10_000,
    noise: ArrayLike | str = "full",
    random_state=None,
) -> Sample:
    """Generate outputs of low rank, observed with full-rank correlated noise (BA-13).

        X ~ U([−1, 1]ᵈ),   Y = Φ(X) θ + ε,   θ ~ U([−1, 1]),   ΦΦᵀ ≈ k(x, z) A,   rank A = 1,   ‖A‖₂ = 1

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    num_dims : int, default=20
        Number d of inputs.
    num_outputs : int, default=20
        Number p of outputs.
    rank : int, default=1
        Rank of A.
    lengthscale : float or None, default=None
        Lengthscale of the Gaussian kernel k. If None, the median distance between points of the cube.
    num_frequencies : int, default=10_000
        Number D of frequencies of the ground truth.
    noise : {"full"}, float or array-like, default="full"
        ε ~ N(0, Σ) with the random Σ in `truth.noise_covariance` for "full", one variance (0 for no noise), one per
        output (p,), or a covariance (p, p).
    random_state : int, RandomState or None, default=None
        Seed. One int gives one ground truth, and the same first rows for every n.

    Returns
    -------
    Sample
        X (n, d), Y (n, p) and the ground truth, a `LowRankFunction` with `output_matrix`, `lengthscale` and
        `noise_covariance`.

    Notes
    -----
    Complexity: O((n + 1000) D d) time, O(n (d + p)) memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_low_rank_outputs
    >>> X, Y, truth = make_low_rank_outputs(30, num_frequencies=100, random_state=0)
    >>> X.shape, Y.shape, truth.noise_covariance.shape
    ((30, 20), (30, 20), (20, 20))
    """
    if isinstance(noise, str) and noise != "full":
        raise OptionError(f'noise must be "full", a variance, variances or a covariance, got {noise!r}.')
    num_rows, num_dims = check_integer("num_rows", num_rows), check_integer("num_dims", num_dims)
    seed = as_seed(random_state)
    if lengthscale is None:
        lengthscale = float(np.median(pdist(make_reference_inputs(num_dims, seed))))
    matrix = _draw_output_matrix(check_integer("num_outputs", num_outputs), check_integer("rank", rank), seed)
    truth = LowRankFunction(matrix, num_dims, check_positive("lengthscale", lengthscale), num_frequencies, seed)
    X = make_rng(seed, INPUTS).uniform(-1, 1, (num_rows, num_dims))
    covariance = truth.noise_covariance if isinstance(noise, str) else noise
    return Sample(X, add_noise(truth(X), covariance, make_rng(seed, NOISE)), truth)


def _draw_output_matrix(num_outputs: int, rank: int, seed: int) -> np.ndarray:
    if rank > num_outputs:
        raise OptionError(f"rank must be at most the number of outputs, {num_outputs}, got {rank}.")
    root = make_rng(seed, OUTPUT_MATRIX).standard_normal((num_outputs, rank))
    return _normalize(root @ root.T)


def _normalize(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.linalg.norm(matrix, 2)
