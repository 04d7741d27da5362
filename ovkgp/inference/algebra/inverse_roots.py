"""Products with the symmetric inverse root C^(−½) of a covariance: dense, Kronecker and by shifted solves.

With K = U diag(s) Uᵀ, C = K ⊗ Γ + I ⊗ Σ is block diagonal in the rotated rows, for any Σ:

    C^(−½) = (U ⊗ I) blockdiag((s_i Γ + Σ)^(−½)) (U ⊗ I)ᵀ.

Any other C with eigenvalues in [a, b] needs solves only. The midpoint rule for C^(−½) = (2/π) ∫ (C + s²)⁻¹ ds, s > 0, in
s = √a sn(u)/cn(u) with the Jacobi functions of parameter 1 − a/b, has an error that falls like exp(−2π² J / (3 + log
b/a)) for J nodes (Hale, Higham and Trefethen 2008): about 20 for a condition number of 10⁶.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ellipkm1
from torch import Tensor

from ovkgp.inference.algebra.dense import MATRIX_CHUNK_ENTRIES, safe_cholesky
from ovkgp.inference.algebra.kronecker import check_shapes, eigh

QUADRATURE_TOLERANCE = 1e-12  # relative error of the quadrature; a smaller one is lost to rounding


class Node(NamedTuple):
    """Node of the quadrature: C^(−½) ≈ Σ weight (C + shift I)⁻¹."""

    shift: float
    weight: float


def quadrature_nodes(smallest: float, largest: float) -> list[Node]:
    """Compute the nodes for C with eigenvalues between `smallest` > 0 and `largest`."""
    ratio = min(smallest / largest, 0.5)  # bounds that coincide are widened
    count = math.ceil((3 - math.log(ratio)) * -math.log(QUADRATURE_TOLERANCE) / (2 * math.pi**2)) + 2
    step = ellipkm1(ratio) / count
    first = _jacobi_sc((np.arange((count + 1) // 2) + 0.5) * step, ratio)
    s = np.concatenate([first, (1 / (math.sqrt(ratio) * first[::-1]))[count % 2 :]])  # sc(K − u) = 1 / (√ratio sc(u))
    weights = 2 / math.pi * step * math.sqrt(smallest) * np.sqrt((1 + s**2) * (1 + ratio * s**2))
    return [Node(*pair) for pair in zip((smallest * s**2).tolist(), weights.tolist(), strict=True)]


def _jacobi_sc(u: np.ndarray, complement: float) -> np.ndarray:
    """Compute sn(u)/cn(u) for the parameter 1 − complement, for which SciPy's `ellipj` would round the complement."""
    a, b, ratios = 1.0, math.sqrt(complement), []
    while abs(a - b) > 1e-15 * a:  # arithmetic-geometric mean
        ratios.append((a - b) / (a + b))
        a, b = (a + b) / 2, math.sqrt(a * b)
    angle = 2 ** len(ratios) * a * u
    for ratio in reversed(ratios):
        angle = (angle + np.arcsin(ratio * np.sin(angle))) / 2
    return np.tan(angle)


@torch.no_grad()
def dense_inverse_root(covariance: Tensor, residuals: Tensor) -> Tensor:
    """Compute C^(−½) r for C (N, N) and r (N,), with the jitter of `safe_cholesky` if C is indefinite. O(N³)."""
    chol = safe_cholesky(covariance)
    values, vectors = eigh(chol @ chol.mT)
    values = values.clamp_min(torch.finfo(values.dtype).eps * values[-1])
    return vectors @ ((vectors.mT @ residuals) / values.sqrt())


@torch.no_grad()
def kronecker_inverse_root(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
    """Compute C^(−½) vec R (n, p) for C = K ⊗ Γ + I ⊗ Σ. O(n³ + n²p + np³), or O(n³ + n²p + p³) if Σ is a multiple of I."""
    check_shapes(K, output_matrix, noise, residuals)
    s, U = eigh(K)
    rotated = U.mT @ residuals
    if (variance := common_variance(noise)) is not None:
        t, V = eigh(output_matrix)
        return U @ ((rotated @ V) / (s.unsqueeze(-1) * t + variance).sqrt()) @ V.mT
    size = max(MATRIX_CHUNK_ENTRIES // noise.numel(), 1)
    parts = zip(s.split(size), rotated.split(size), strict=True)
    return U @ torch.cat([_block_inverse_roots(part[:, None, None] * output_matrix + noise, r) for part, r in parts])


def _block_inverse_roots(blocks: Tensor, rows: Tensor) -> Tensor:
    """Compute B_i^(−½) r_i for blocks (n, p, p) and rows (n, p)."""
    values, vectors = torch.linalg.eigh(blocks)
    coordinates = (vectors.mT @ rows.unsqueeze(-1)) / values.sqrt().unsqueeze(-1)
    return (vectors @ coordinates).squeeze(-1)


def common_variance(noise: Tensor) -> float | None:
    """Return σ² if Σ = σ² I, else None."""
    variance = noise[0, 0]
    return variance.item() if torch.equal(noise, torch.diag(variance.expand(len(noise)))) else None
