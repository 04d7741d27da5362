"""Vector fields whose structure is known: gradients of a potential, and their rotations (BT-82, BA-12).

A gradient y = ∇f has no curl; turned by 90° in the plane, y = (∂f/∂x₂, −∂f/∂x₁), it has no divergence. The potential is
a random function of Fourier features in any dimension, or a sum of a few signed Gaussian bumps in the plane.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer, one_of, positive
from ovkgp.datasets.samples import (
    INPUTS,
    NOISE,
    TRUTH,
    Sample,
    finite_rows,
    gaussian_kernel,
    in_chunks,
    random_features,
    random_stream,
    with_noise,
)
from ovkgp.exceptions import InputError
from ovkgp.kernels import CurlFreeKernel

CENTRES = ((0.0, 0.0), (0.0, 1.0), (0.0, -1.0), (-1.0, 0.0), (1.0, 0.0))
HEIGHTS = (1.0, 1.0, 1.0, -1.0, -1.0)
KINDS = ("curl_free", "divergence_free")


class GradientField:
    """x ↦ ∇f(x) of the random potential f(x) = 1/√D Σ_j a_j cos⟨ω_j, x⟩ + b_j sin⟨ω_j, x⟩, a, b ~ N(0, 1).

    Args:
        num_dims: d.
        lengthscale: σ of the Gaussian kernel whose features these are, ω ~ N(0, I/σ²).
        num_frequencies: D.
        seed: of ω, a and b.

    Cost: O(m D d) time for m points, memory independent of m but for the answer.

    Example:
        >>> from ovkgp.datasets.fields import GradientField
        >>> field = GradientField(num_dims=3, lengthscale=0.4, num_frequencies=100, seed=0)
        >>> field([[0.0, 0.0, 0.0]]).shape, field.potential([[0.0, 0.0, 0.0]]).shape
        ((1, 3), (1,))
    """

    def __init__(self, num_dims: int, lengthscale: float, num_frequencies: int, seed: int):
        kernel = gaussian_kernel(num_dims, lengthscale)
        self.num_dims = num_dims
        self._waves = random_features(kernel, num_frequencies, seed)
        self._directed = random_features(CurlFreeKernel(kernel), num_frequencies, seed)  # the same waves, times ω
        weights = random_stream(seed, TRUTH).standard_normal((2, num_frequencies))
        self._weights = torch.from_numpy(weights.ravel())
        # The derivative of a cos + b sin is b cos − a sin, along ω.
        self._turned = torch.from_numpy(np.concatenate([weights[1], -weights[0]]))

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """∇f at the rows of X (m, d): (m, d)."""
        X = finite_rows(X, self.num_dims)
        values = in_chunks(lambda part: self._directed(part) @ self._turned, X, len(self._turned))
        return values.reshape(X.shape)

    def potential(self, X: ArrayLike) -> np.ndarray:
        """f at the rows of X (m, d): (m,)."""
        X = finite_rows(X, self.num_dims)
        return in_chunks(lambda part: self._waves(part) @ self._weights, X, len(self._weights))


def make_curl_free_field(
    num_rows: int,
    *,
    num_dims: int = 5,
    lengthscale: float = 0.4,
    num_frequencies: int = 1000,
    noise: ArrayLike = 0.0,
    random_state=None,
) -> Sample:
    """A random curl-free field on [−1, 1]ᵈ: the gradient of a random Fourier potential (BT-82).

        X ~ U([−1, 1]ᵈ),   Y = ∇f(X) + ε,   f = φᵀθ,   θ ~ N(0, I),   φ the features of a Gaussian kernel

    The source does not say how many features there are.

    Args:
        num_rows: n.
        num_dims: d, and the number of outputs.
        lengthscale: σ of the kernel of the potential.
        num_frequencies: D of the potential.
        noise: the variance of ε: one, one an output (d,), or a covariance (d, d).
        random_state: as in scikit-learn. One int gives one truth, and the same first rows for every n.

    Returns:
        X (n, d), Y (n, d) and the truth, a `GradientField`, which has its `potential` too.

    Cost: O(n D d) time, O(n d) memory.

    Example:
        >>> from ovkgp.datasets import make_curl_free_field
        >>> X, Y, truth = make_curl_free_field(200, random_state=0)
        >>> X.shape, Y.shape, bool((truth(X) == Y).all())
        ((200, 5), (200, 5), True)
    """
    num_rows, num_dims = check_integer("num_rows", num_rows), check_integer("num_dims", num_dims)
    seed = as_seed(random_state)
    truth = GradientField(num_dims, positive("lengthscale", lengthscale), num_frequencies, seed)
    X = random_stream(seed, INPUTS).uniform(-1, 1, (num_rows, num_dims))
    return Sample(X, with_noise(truth(X), noise, random_stream(seed, NOISE)), truth)


class GaussianField:
    """The gradient of f(x) = Σ_k h_k exp(−‖x − c_k‖²/(2ℓ²)) in the plane, or that gradient turned by 90°.

    Args:
        centres: c (k, 2).
        heights: h (k,).
        lengthscale: ℓ.
        kind: "curl_free", ∇f, or "divergence_free", (∂f/∂x₂, −∂f/∂x₁).

    Cost: O(m k) time and memory for m points.

    Example:
        >>> from ovkgp.datasets.fields import GaussianField
        >>> GaussianField([[0.0, 0.0]], [1.0], 1.0)([[0.0, 0.0]])
        array([[0., 0.]])
    """

    def __init__(self, centres: ArrayLike, heights: ArrayLike, lengthscale: float, kind: str = "curl_free"):
        self.heights = np.array(heights, dtype=np.float64)
        self.centres = finite_rows(centres, 2)
        if self.heights.shape != (len(self.centres),) or not np.isfinite(self.heights).all():
            raise InputError(f"heights must be {len(self.centres)} finite numbers, one a centre; got {heights!r}.")
        self.lengthscale, self.kind = positive("lengthscale", lengthscale), one_of("kind", kind, KINDS)

    def __call__(self, X: ArrayLike) -> np.ndarray:
        """The field at the rows of X (m, 2): (m, 2)."""
        lags, bumps = self._bumps(X)
        gradient = -np.einsum("mk,mki->mi", bumps, lags) / self.lengthscale**2 + 0.0  # + 0.0: no negative zeros
        return gradient if self.kind == "curl_free" else gradient[:, ::-1] * [1.0, -1.0]

    def potential(self, X: ArrayLike) -> np.ndarray:
        """f at the rows of X (m, 2): (m,). It is the stream function of a divergence-free field."""
        return self._bumps(X)[1].sum(1)

    def _bumps(self, X: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        lags = finite_rows(X, 2)[:, None] - self.centres
        return lags, self.heights * np.exp(-0.5 * (lags**2).sum(-1) / self.lengthscale**2)


def make_gaussian_field(
    num_rows: int,
    *,
    kind: str = "curl_free",
    noise: ArrayLike = 0.0,
    lengthscale: float = 0.4,
    half_width: float = 2.0,
    centres: ArrayLike = CENTRES,
    heights: ArrayLike = HEIGHTS,
    random_state=None,
) -> Sample:
    """A field in the plane, made of five Gaussian bumps (BA-12; the thesis' pictures of such fields are of this kind).

    The potential is positive at (0, 0), (0, 1), (0, −1) and negative at (−1, 0), (1, 0). The sources give neither the
    width of the bumps nor the domain: here both are options.

    Args:
        num_rows: n.
        kind: "curl_free", the gradient, or "divergence_free", the gradient turned by 90°.
        noise: the variance of the noise: one, one an output (2,), or a covariance (2, 2).
        lengthscale: ℓ, the width of a bump.
        half_width: X is uniform on the square [−half_width, half_width]².
        centres: (k, 2), of the bumps.
        heights: (k,), of the bumps, signed.
        random_state: as in scikit-learn. One int gives the same first rows for every n; the truth is not random.

    Returns:
        X (n, 2), Y (n, 2) and the truth, a `GaussianField`, which has its `potential` too.

    Cost: O(n k) time and memory.

    Example:
        >>> from ovkgp.datasets import make_gaussian_field
        >>> X, Y, truth = make_gaussian_field(50, kind="divergence_free", noise=0.01, random_state=0)
        >>> Y.shape, bool(abs(Y - truth(X)).max() < 0.5)
        ((50, 2), True)
    """
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    truth = GaussianField(centres, heights, lengthscale, kind)
    half_width = positive("half_width", half_width)
    X = random_stream(seed, INPUTS).uniform(-half_width, half_width, (num_rows, 2))
    return Sample(X, with_noise(truth(X), noise, random_stream(seed, NOISE)), truth)
