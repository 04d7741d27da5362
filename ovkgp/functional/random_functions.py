"""Random dictionaries: random Fourier features of a kernel, and paths of Gaussian processes (BO-40, BO-45)."""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.linalg import cholesky

from ovkgp.checks import as_seed, check_integer, check_positive
from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.functional.dictionary import Dictionary, Interpolated
from ovkgp.functional.eigenfunctions import uniform_moments
from ovkgp.functional.quadrature import as_array, as_domain, quadrature_weights

LENGTHSCALES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.5, 0.7)
"""Lengthscales of the redundant dictionary of BO-45."""


class RandomFourier(Dictionary):
    """Random Fourier features of a shift-invariant kernel: cos ω_iᵀ(t − low)/√D for all i, then sin ω_iᵀ(t − low)/√D.

    Parameters
    ----------
    kernel : Kernel or array-like of shape (D,) or (D, b)
        Scalar kernel from whose spectral distribution frequencies are drawn, or the frequencies ω.
    num_frequencies : int, default=25
        Number D of frequencies: there are 2D functions. Ignored if frequencies are given.
    domain : array-like of shape (2,) or (b, 2), default=(0, 1)
        Domain.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the frequencies.

    Notes
    -----
    φ(t)ᵀφ(s) = (1/D) Σ_i cos ω_iᵀ(t − s), an unbiased estimate of the kernel with the exact diagonal. The second half are sines (BO-E-10). The
    Gram and roughness matrices are in closed form (LT-24). Complexity: O(k D b) for k points, O(D² b) for the matrices.

    References
    ----------
    BO-40, LT-23, LT-24

    Examples
    --------
    >>> from ovkgp.functional import RandomFourier
    >>> RandomFourier([1.0, 3.0])([0.5, 0.7]).shape
    (2, 4)
    """

    def __init__(self, kernel, num_frequencies: int = 25, domain=(0.0, 1.0), random_state=None):
        self.domain = as_domain(domain)
        if isinstance(kernel, Kernel):
            orff = ORFF(kernel, num_frequencies, num_dims=self.num_dims, random_state=as_seed(random_state)).double()
            with torch.no_grad():
                terms = orff.frequencies if isinstance(orff.frequencies, list) else [orff.frequencies]  # of a sum
                self.frequencies = torch.cat(terms).double().numpy()
                found = [f.double()[:, 0, 0].expand(len(w)) for f, w in zip(orff.factors, terms, strict=True)]
                amplitudes = torch.cat(found).numpy() * len(terms) ** 0.5
        else:
            self.frequencies = as_array(kernel, "frequencies")
            self.frequencies = self.frequencies[:, None] if self.frequencies.ndim == 1 else self.frequencies
            amplitudes = np.ones(self.frequencies.shape[:1])
        if self.frequencies.ndim != 2 or self.frequencies.shape[1] != self.num_dims:
            raise InputError(f"frequencies has shape {self.frequencies.shape}, expected (D, {self.num_dims}).")
        self.amplitudes = np.tile(amplitudes / np.sqrt(len(self.frequencies)), 2)

    @property
    def num_functions(self) -> int:
        return 2 * len(self.frequencies)

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        angles = (points - self.domain[:, 0]) @ self.frequencies.T + sum(order) * np.pi / 2
        return np.concatenate([np.cos(angles), np.sin(angles)], 1) * self.amplitudes * self._rates(order)

    def _rates(self, order: tuple[int, ...]) -> np.ndarray:
        return np.tile(np.prod(self.frequencies ** np.array(order), 1), 2)

    def _gram_of(self, order: tuple[int, ...]) -> np.ndarray:
        widths = np.diff(self.domain).ravel()
        moments = uniform_moments(torch.from_numpy(self.frequencies * widths)).numpy() * self.volume
        if sum(order) % 2:  # derivatives of cosines are −sines, of sines cosines
            half = len(self.frequencies)
            sign = np.repeat([-1.0, 1.0], half)
            moments = np.roll(moments, half, (0, 1)) * np.outer(sign, sign)
        scale = self.amplitudes * self._rates(order)
        return moments * np.outer(scale, scale)


class RandomProcesses(Interpolated):
    """Paths of Gaussian processes with several lengthscales on an interval, with unit L² norm: a redundant dictionary.

    Parameters
    ----------
    num_per_lengthscale : int
        Number of paths for each lengthscale.
    lengthscales : sequence of float, default=LENGTHSCALES
        Lengthscales ℓ of the covariance exp(−(t − s)²/(2ℓ²)).
    domain : array-like of shape (2,), default=(0, 1)
        Domain.
    num_points : int, default=200
        Number of equidistant points at which paths are drawn; they are interpolated linearly.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the paths.

    Attributes
    ----------
    lengthscales : ndarray of shape (d,)
        Lengthscale of each function.

    Notes
    -----
    Complexity: O(num_points³) per lengthscale, once.

    References
    ----------
    BO-45

    Examples
    --------
    >>> from ovkgp.functional import RandomProcesses
    >>> RandomProcesses(4, [0.1, 0.5], random_state=0)
    RandomProcesses(8 functions on [0, 1])
    """

    def __init__(
        self, num_per_lengthscale: int, lengthscales=LENGTHSCALES, domain=(0.0, 1.0), num_points=200, random_state=None
    ):
        count, rng = (
            check_integer("num_per_lengthscale", num_per_lengthscale),
            np.random.default_rng(as_seed(random_state)),
        )
        grid = np.linspace(*as_domain(domain)[0], check_integer("num_points", num_points, 2))
        distances, paths, lengthscales = (grid[:, None] - grid) ** 2, [], np.atleast_1d(lengthscales).astype(float)
        for lengthscale in lengthscales.tolist():
            gram = np.exp(-distances / (2 * check_positive("lengthscales", lengthscale) ** 2))
            root = cholesky(gram + 1e-9 * np.eye(len(grid)), lower=True)
            paths.append(root @ rng.standard_normal((len(grid), count)))
        values = np.concatenate(paths, 1)
        weights = quadrature_weights(grid, rule="trapezoid") * (grid[-1] - grid[0])
        super().__init__(values / np.sqrt(weights @ values**2), grid)
        self.lengthscales = np.repeat(lengthscales, count)
