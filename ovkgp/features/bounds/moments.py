"""Moments of a spectral law: closed forms for Gaussian scale mixtures, Sobol estimates for any other.

The frequencies of an RBF, Matérn or rational quadratic kernel are ω = √τ ε ⊘ ℓ with normal ε and one τ for all
coordinates, so E‖ω‖ˢ is the Gaussian moment times E[τ^(s/2)]. Another law is met through 2¹⁴ scrambled Sobol points
with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ovkgp.features.noise import sobol_points
from ovkgp.features.radial_pairs import gamma_ratio
from ovkgp.features.spectral import SpectralPair

NUM_DRAWS = 2**14
_CHUNK = 2**10


def gaussian_norm_moment(variances: Tensor, s: float) -> float:
    """E‖ω‖ˢ for ω ~ N(0, diag(variances)).

    Exact where the variances are equal, (2 v)^(s/2) Γ((d+s)/2)/Γ(d/2), and for s = 2; else a Sobol estimate.
    """
    d = variances.numel()
    if s == 2:
        return float(variances.sum())
    if bool((variances == variances[0]).all()):
        return float(2 * variances[0]) ** (s / 2) * gamma_ratio(d / 2, s / 2)
    normals = torch.special.ndtri(sobol(d))
    return float((normals.square() @ variances.to(normals)).pow(s / 2).mean())


def sobol(num_dims: int) -> Tensor:
    """2¹⁴ scrambled Sobol points in (0, 1)^num_dims, always the same ones, in float64."""
    return torch.from_numpy(sobol_points(NUM_DRAWS, num_dims, np.random.default_rng(0)))


def draw_frequencies(term: SpectralPair) -> Tensor:
    """Sobol draws (2¹⁴, q) from the law of one term of a spectral pair."""
    with torch.no_grad():
        frequencies = term.frequencies(sobol(term.base_dim))
    return frequencies.reshape(NUM_DRAWS, -1).to(torch.float64)


def has_constant_factor(term: SpectralPair) -> bool:
    """Whether B does not depend on ω."""
    two = torch.tensor([[0.3], [0.6]], dtype=torch.float64).expand(2, term.base_dim)
    return term.factor(term.frequencies(two)).shape[-3] == 1


def draw_factors(term: SpectralPair, frequencies: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs (frequencies (c, q), B (c or 1, p, r)) in chunks, so that many outputs do not fill the memory."""
    for chunk in frequencies.split(_CHUNK):
        with torch.no_grad():
            factor = term.factor(chunk)
        yield chunk, factor.to(torch.complex128 if factor.is_complex() else torch.float64)


def operator_norms(term: SpectralPair, frequencies: Tensor) -> Tensor:
    """‖A(ω)‖ = ‖B(ω)‖² at each frequency, (2¹⁴,); of shape (1,) where B does not depend on ω."""
    norms = []
    for _, factor in draw_factors(term, frequencies):
        norms.append(torch.linalg.matrix_norm(factor, ord=2).square())
        if factor.shape[-3] == 1:
            return norms[0].reshape(1)
    return torch.cat(norms)


def mean_square(term: SpectralPair, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """E[A] and E[A²], each (p, p), estimated at the given frequencies."""
    first, second = [], []
    for _, factor in draw_factors(term, frequencies):
        operators = factor @ factor.mH
        first.append(operators.mean(-3))
        second.append((operators @ operators).mean(-3))
        if factor.shape[-3] == 1:
            break
    return torch.stack(first).mean(0), torch.stack(second).mean(0)


def growth(term: SpectralPair, frequencies: Tensor) -> tuple[float, float]:
    """The power g with ‖A(ω)‖ = O(‖ω‖ᵍ) and, if g = 0, the largest ‖A‖ met (else infinity).

    Read off by scaling the draws: ‖A(100 ω)‖ is compared with ‖A(10 ω)‖.
    """
    few = frequencies[:_CHUNK]
    near, far = (float(operator_norms(term, scale * few).max()) for scale in (10.0, 100.0))
    power = math.log10(far / near) if near > 0 and far > 0 else 0.0
    if power > 0.01:
        return power, math.inf
    return 0.0, max(near, far, float(operator_norms(term, frequencies).max()))
