"""Vector fields of known structure: gradients of a potential, and their rotations (BT-82, BA-12).

A gradient y = ∇f is curl-free; rotated by 90° in the plane, y = (∂f/∂x₂, −∂f/∂x₁), it is divergence-free. The potential
is a random function of Fourier features in any dimension, or a sum of a few signed Gaussian bumps in the plane.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer, check_one_of, check_positive
from ovkgp.datasets.samples import (
    INPUTS,
    NOISE,
    TRUTH,
    Sample,
    add_noise,
    check_points,
    combine_features,
    make_features,
    make_gaussian_kernel,
    make_rng,
)
from ovkgp.exceptions import InputError
from ovkgp.kernels import CurlFreeKernel

CENTERS = ((0.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), (1.0, 0.0))
HEIGHTS = (1.0, 1.0, 1.0, -1.0, -1.0)
KINDS = ("curl_free", "divergence_free")


class GradientField:
    """Gradient ∇f of a random potential in any dimension.

    f(x) = 1/√D Σ_j a_j cos⟨ω_j, x⟩ + b_j sin⟨ω_j, x⟩ with a, b ~ N(0, 1), ω ~ N(0, I/σ²) and the lengthscale σ.
    Complexity: O(m D d) time for m points, memory independent of m.
    """

    def __init__(self, num_dims: int, lengthscale: float, num_frequencies: int, seed: int):
        kernel = make_gaussian_kernel(num_dims, lengthscale)
        self.num_dims = num_dims
        self._scalar_features = make_features(kernel, num_frequencies, seed)
        # the same scalar features, times ω
        self._gradient_features = make_features(CurlFreeKernel(kernel), num_frequencies, seed)
        weights = make_rng(seed, TRUTH).standard_normal((2, num_frequencies))
        self._weights = torch.from_numpy(weights.ravel())
        # The derivative of a cos + b sin is b cos − a sin, along ω.
        self._gradient_weights = torch.from_numpy(np.concatenate([weights[1], -weights[0]]))

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return ∇f at points X (m, d): (m, d)."""
        X = check_points(X, self.num_dims)
        return combine_features(self._gradient_features, self._gradient_weights, X).reshape(X.shape)

    def potential(self, X: ArrayLike) -> np.ndarray:
        """Return f at points X (m, d): (m,)."""
        return combine_features(self._scalar_features, self._weights, check_points(X, self.num_dims))


def make_curl_free_field(
    num_rows: int,
    *,
    num_dims: int = 5,
    lengthscale: float = 0.4,
    num_frequencies: int = 1000,
    noise: ArrayLike = 0.0,
    random_state=None,
) -> Sample:
    """Generate a random curl-free field on [−1, 1]ᵈ: the gradient of a random Fourier potential (BT-82).

        X ~ U([−1, 1]ᵈ),   Y = ∇f(X) + ε,   f = φᵀθ,   θ ~ N(0, I),   φ the features of a Gaussian kernel

    The source does not specify the number of features.

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    num_dims : int, default=5
        Number d of inputs and of outputs.
    lengthscale : float, default=0.4
        Lengthscale σ of the kernel of the potential.
    num_frequencies : int, default=1000
        Number D of frequencies of the potential.
    noise : float or array-like, default=0.0
        Variance of ε: one value, one per output (d,), or a covariance (d, d).
    random_state : int, RandomState or None, default=None
        Seed. One int gives one ground truth, and the same first rows for every n.

    Returns
    -------
    Sample
        X (n, d), Y (n, d) and the ground truth, a `GradientField` with its method `potential`.

    Notes
    -----
    Complexity: O(n D d) time, O(n d) memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_curl_free_field
    >>> X, Y, truth = make_curl_free_field(200, random_state=0)
    >>> X.shape, Y.shape, bool((truth(X) == Y).all())
    ((200, 5), (200, 5), True)
    """
    num_rows, num_dims = check_integer("num_rows", num_rows), check_integer("num_dims", num_dims)
    seed = as_seed(random_state)
    truth = GradientField(num_dims, check_positive("lengthscale", lengthscale), num_frequencies, seed)
    X = make_rng(seed, INPUTS).uniform(-1, 1, (num_rows, num_dims))
    return Sample(X, add_noise(truth(X), noise, make_rng(seed, NOISE)), truth)


class GaussianField:
    """Gradient of f(x) = Σ_k h_k exp(−‖x − c_k‖²/(2ℓ²)) in the plane if "curl_free", its rotation if "divergence_free"."""

    def __init__(self, centers: ArrayLike, heights: ArrayLike, lengthscale: float, kind: str = "curl_free"):
        self.heights = np.array(heights, dtype=np.float64)
        self.centers = check_points(centers, 2)
        if self.heights.shape != (len(self.centers),) or not np.isfinite(self.heights).all():
            raise InputError(f"heights must be {len(self.centers)} finite numbers (one per center), got {heights!r}.")
        self.lengthscale, self.kind = check_positive("lengthscale", lengthscale), check_one_of("kind", kind, KINDS)

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """Return the field at points X (m, 2): (m, 2)."""
        lags, bumps = self._bumps(X)
        gradient = -np.einsum("mk,mki->mi", bumps, lags) / self.lengthscale**2 + 0.0  # + 0.0: no negative zeros
        return gradient if self.kind == "curl_free" else gradient[:, ::-1] * [1.0, -1.0]

    def potential(self, X: ArrayLike) -> np.ndarray:
        """Return f at points X (m, 2): (m,); it is the stream function of a divergence-free field."""
        return self._bumps(X)[1].sum(1)

    def _bumps(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        lags = check_points(X, 2)[:, None] - self.centers
        return lags, self.heights * np.exp(-0.5 * (lags**2).sum(-1) / self.lengthscale**2)


def make_gaussian_field(
    num_rows: int,
    *,
    kind: str = "curl_free",
    noise: ArrayLike = 0.0,
    lengthscale: float = 0.4,
    half_width: float = 2.0,
    centers: ArrayLike = CENTERS,
    heights: ArrayLike = HEIGHTS,
    random_state=None,
) -> Sample:
    """Generate a field in the plane made of five Gaussian bumps (BA-12; figures of the thesis show such fields).

    The potential is positive at (0, 0), (0, 1), (0, −1) and negative at (−1, 0), (1, 0). The sources specify neither
    the width of the bumps nor the domain; both are options here.

    Parameters
    ----------
    num_rows : int
        Number n of rows.
    kind : {"curl_free", "divergence_free"}, default="curl_free"
        Gradient of the potential, or the gradient rotated by 90°.
    noise : float or array-like, default=0.0
        Noise variance: one value, one per output (2,), or a covariance (2, 2).
    lengthscale : float, default=0.4
        Width ℓ of a bump.
    half_width : float, default=2.0
        X is uniform on the square [−half_width, half_width]².
    centers : array-like of shape (k, 2)
        Centers of the bumps.
    heights : array-like of shape (k,)
        Signed heights of the bumps.
    random_state : int, RandomState or None, default=None
        Seed. One int gives the same first rows for every n; the ground truth is not random.

    Returns
    -------
    Sample
        X (n, 2), Y (n, 2) and the ground truth, a `GaussianField` with its method `potential`.

    Notes
    -----
    Complexity: O(n k) time and memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_gaussian_field
    >>> X, Y, truth = make_gaussian_field(50, kind="divergence_free", noise=0.01, random_state=0)
    >>> Y.shape, bool(abs(Y - truth(X)).max() < 0.5)
    ((50, 2), True)
    """
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    truth = GaussianField(centers, heights, lengthscale, kind)
    half_width = check_positive("half_width", half_width)
    X = make_rng(seed, INPUTS).uniform(-half_width, half_width, (num_rows, 2))
    return Sample(X, add_noise(truth(X), noise, make_rng(seed, NOISE)), truth)
