"""Many outputs that have something in common: quadratic tasks, and outputs of low rank under correlated noise.

The tasks of BT-83 share their features, y_t = ⟨w_t, φ(x)⟩ with seven monomials φ; the outputs of BA-13 share one random
function, Cov(y) = k(x, z) A with A of rank one, and are seen through noise N(0, Σ) with a full Σ.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist

from ovkgp.checks import as_seed, check_integer, positive
from ovkgp.datasets.samples import (
    COVARIANCE,
    INPUTS,
    NOISE,
    OUTPUT_MATRIX,
    REFERENCE,
    TRUTH,
    Sample,
    finite_rows,
    gaussian_kernel,
    in_chunks,
    random_features,
    random_stream,
    with_noise,
)
from ovkgp.exceptions import OptionError
from ovkgp.kernels import DecomposableKernel

TASK_VARIANCES = (0.5, 0.25, 0.1, 0.05, 0.15, 0.1, 0.15)
MIN_DIMS = 5
NUM_REFERENCE = 1000


class QuadraticTasks:
    """x ↦ (⟨w_t, φ(x)⟩)_t, φ(x) = (x₁², x₄², x₁x₂, x₃x₅, x₂, x₄, 1); the other inputs do not matter.

    Args:
        weights: w (p, 7).
        num_dims: d, at least 5.
        rescaled: whether inputs are given in [−1, 1], as 2x − 1, instead of [0, 1].

    Cost: O(m (d + p)) for m points.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.multitask import QuadraticTasks
        >>> QuadraticTasks(np.eye(7), num_dims=5)([[2.0, 3.0, 5.0, 7.0, 11.0]])
        array([[ 4., 49.,  6., 55.,  3.,  7.,  1.]])
    """

    def __init__(self, weights: np.ndarray, num_dims: int, rescaled: bool = False):
        self.weights, self.num_dims, self.rescaled = weights, num_dims, rescaled

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """The noiseless outputs at the rows of X (m, d): (m, p)."""
        X = finite_rows(X, self.num_dims)
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
    """Random quadratic functions of 5 of 20 inputs, one a task (BT-83).

        X ~ U([0, 1]ᵈ),   y_t = ⟨w_t, φ(x)⟩ + ε_t,   w_t ~ N(0, diag(.5, .25, .1, .05, .15, .1, .15))

    The author's own script adds noise of standard deviation .1 and hands the inputs over as 2X − 1: `noise=0.01` and
    `rescaled=True`.

    Args:
        num_rows: n.
        num_tasks: p.
        num_dims: d, at least 5.
        noise: the variance of ε: one, one an output (p,), or a covariance (p, p).
        rescaled: give the inputs in [−1, 1]; the outputs stay what they are.
        random_state: as in scikit-learn. One int gives one truth, and the same first rows for every n.

    Returns:
        X (n, d), Y (n, p) and the truth, a `QuadraticTasks`.

    Cost: O(n (d + p)) time and memory.

    Example:
        >>> from ovkgp.datasets import make_quadratic_tasks
        >>> X, Y, truth = make_quadratic_tasks(100, noise=0.01, rescaled=True, random_state=0)
        >>> X.shape, Y.shape
        ((100, 20), (100, 4))
    """
    num_rows, num_tasks = check_integer("num_rows", num_rows), check_integer("num_tasks", num_tasks)
    num_dims, seed = check_integer("num_dims", num_dims, least=MIN_DIMS), as_seed(random_state)
    weights = random_stream(seed, TRUTH).standard_normal((num_tasks, len(TASK_VARIANCES))) * np.sqrt(TASK_VARIANCES)
    truth = QuadraticTasks(weights, num_dims, rescaled)
    X = random_stream(seed, INPUTS).random((num_rows, num_dims))
    X = 2 * X - 1 if rescaled else X
    return Sample(X, with_noise(truth(X), noise, random_stream(seed, NOISE)), truth)


class LowRankFunction:
    """x ↦ Φ(x) θ, θ ~ U([−1, 1]), with the random features Φ of a decomposable kernel k(x, z) A.

    Args:
        output_matrix: A (p, p), positive semi-definite.
        num_dims: d.
        lengthscale: σ of the Gaussian kernel k.
        num_frequencies: D.
        seed: of the frequencies and θ.

    Attributes:
        noise_covariance: the Σ (p, p) of BA-13: full, random, of spectral norm equal to the standard deviation of the
            outputs (the root of their variance over the cube, averaged over outputs).

    Cost: O(m D (d + r) + m p r) time for m points, r the rank of A; memory independent of m but for the answer.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.multitask import LowRankFunction
        >>> function = LowRankFunction(np.ones((3, 3)) / 3, num_dims=2, lengthscale=1.0, num_frequencies=50, seed=0)
        >>> int(np.linalg.matrix_rank(function(np.random.default_rng(0).random((10, 2)))))
        1
    """

    def __init__(self, output_matrix: np.ndarray, num_dims: int, lengthscale: float, num_frequencies: int, seed: int):
        self.output_matrix, self.num_dims, self.lengthscale = output_matrix, num_dims, lengthscale
        matrix = torch.from_numpy(output_matrix)
        kernel = DecomposableKernel(gaussian_kernel(num_dims, lengthscale), output_matrix=matrix)
        self._features = random_features(kernel, num_frequencies, seed)
        self._weights = torch.from_numpy(random_stream(seed, TRUTH).uniform(-1, 1, self._features.num_features))
        self.noise_covariance = self._noise_covariance(seed)

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """The noiseless outputs at the rows of X (m, d): (m, p)."""
        X = finite_rows(X, self.num_dims)
        values = in_chunks(lambda part: self._features(part) @ self._weights, X, len(self._weights))
        return values.reshape(len(X), len(self.output_matrix))

    def _noise_covariance(self, seed: int) -> np.ndarray:
        deviation = np.sqrt(self(reference_inputs(self.num_dims, seed)).var(0).mean())
        root = random_stream(seed, COVARIANCE).standard_normal(self.output_matrix.shape)
        return deviation * _unit_norm(root @ root.T)


def reference_inputs(num_dims: int, seed: int) -> np.ndarray:
    """Points of the cube (1000, d) that stand for all of it, so that no property of the truth depends on n."""
    return random_stream(seed, REFERENCE).uniform(-1, 1, (NUM_REFERENCE, num_dims))


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
    """Outputs of low rank, seen through full-rank correlated noise (BA-13).

        X ~ U([−1, 1]ᵈ),   Y = Φ(X) θ + ε,   θ ~ U([−1, 1]),   ΦΦᵀ ≈ k(x, z) A,   rank A = 1,   ‖A‖₂ = 1

    Args:
        num_rows: n.
        num_dims: d.
        num_outputs: p.
        rank: of A.
        lengthscale: of the Gaussian kernel k; None takes the median distance between points of the cube.
        num_frequencies: D of the truth.
        noise: "full", ε ~ N(0, Σ) with the random Σ in `truth.noise_covariance`; or one variance (0 for none), one an
            output (p,), or a covariance (p, p).
        random_state: as in scikit-learn. One int gives one truth, and the same first rows for every n.

    Returns:
        X (n, d), Y (n, p) and the truth, a `LowRankFunction` with `output_matrix`, `lengthscale` and `noise_covariance`.

    Cost: O((n + 1000) D d) time, O(n (d + p)) memory.

    Example:
        >>> from ovkgp.datasets import make_low_rank_outputs
        >>> X, Y, truth = make_low_rank_outputs(30, num_frequencies=100, random_state=0)
        >>> X.shape, Y.shape, truth.noise_covariance.shape
        ((30, 20), (30, 20), (20, 20))
    """
    if isinstance(noise, str) and noise != "full":
        raise OptionError(f'noise must be "full", a variance, variances or a covariance; got {noise!r}.')
    num_rows, num_dims = check_integer("num_rows", num_rows), check_integer("num_dims", num_dims)
    seed = as_seed(random_state)
    if lengthscale is None:
        lengthscale = float(np.median(pdist(reference_inputs(num_dims, seed))))
    matrix = _random_matrix(check_integer("num_outputs", num_outputs), check_integer("rank", rank), seed)
    truth = LowRankFunction(matrix, num_dims, positive("lengthscale", lengthscale), num_frequencies, seed)
    X = random_stream(seed, INPUTS).uniform(-1, 1, (num_rows, num_dims))
    covariance = truth.noise_covariance if isinstance(noise, str) else noise
    return Sample(X, with_noise(truth(X), covariance, random_stream(seed, NOISE)), truth)


def _random_matrix(num_outputs: int, rank: int, seed: int) -> np.ndarray:
    if rank > num_outputs:
        raise OptionError(f"rank must be at most the number of outputs, {num_outputs}; got {rank}.")
    root = random_stream(seed, OUTPUT_MATRIX).standard_normal((num_outputs, rank))
    return _unit_norm(root @ root.T)


def _unit_norm(matrix: np.ndarray) -> np.ndarray:
    return matrix / np.linalg.norm(matrix, 2)
