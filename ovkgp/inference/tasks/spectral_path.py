"""Criteria of a posterior of complete curves at several noise levels, from one eigendecomposition."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_ENTRIES, MAX_PAIRS = 5_000_000, 128  # numbers, and pairs of a coordinate and a level, that are computed together
SMALL_RATIO = 1e-4  # prior variance over that of the noise below which two terms of a series have 12 digits


@dataclass(frozen=True)
class CurvePath:
    """Criteria of k noise levels c, (k,) each: log density and yᵀC⁻¹y, and leave-one-curve-out error and log density."""

    log_evidence: Tensor
    quadratic: Tensor
    loo_error: Tensor
    loo_log_density: Tensor


@torch.no_grad()
def spectral_path(s: Tensor, U: Tensor, t: Tensor, Z: Tensor, noises: Tensor) -> CurvePath:
    """Compute the criteria of complete curves Z (n, ρ), with K = U diag(s) Uᵀ and independent coordinates of variances t (ρ,).

    `loo_error` is the mean squared error of a coordinate. The inverse of coordinate l at noise c is (I − U diag(e) Uᵀ)/c with e = s r/(1 + s r), r = t_l/c. Pairs (l, c) in the order of r are
    computed together: e itself of the q eigenvectors with s r > 1e-4, and e ≈ s r − (s r)² of the others, whose sums do not depend on r.
    Complexity: O(n² ρ + n q k ρ) for q eigenvectors on average.
    """
    (n, rho), levels = Z.shape, len(noises)
    s, order = s.clamp_min(0).sort(descending=True)
    rows, columns = U.mT[order], Z.mT.contiguous()  # (j, n), (ρ, n)
    rotated, squares = columns @ rows.mT, rows.square()  # (ρ, j), (j, n)
    ratios = torch.outer(1 / noises, t).flatten()  # (k ρ,), of levels and coordinates
    sums = torch.zeros(4, levels * rho, dtype=torch.float64)
    tail, last = _SeriesTail(n, rho), n
    for part in ratios.argsort(descending=True).split(max(min(MAX_ENTRIES // n, MAX_PAIRS), 1)):
        r, c, which = ratios[part], noises[part // rho], part % rho
        q = int((s * r[0] > SMALL_RATIO).sum())
        tail.extend(s[q:last], rows[q:last], squares[q:last], rotated[:, q:last])
        last = q
        values, scores = 1 + torch.outer(r, s[:q]), rotated[:, :q].index_select(0, which)
        shrunk = 1 - 1 / values  # e
        signed = torch.stack([-r, r.square()], 1)  # of s and s² in the series of −e
        diagonal = (signed @ tail.diagonal).add_(1).addmm_(shrunk, squares[:q], alpha=-1)
        solved = columns.index_select(0, which).addmm_(
            shrunk.mul_(scores), rows[:q], alpha=-1
        )  # c times the inverse times z
        for fitted, factor in zip(tail.fitted, signed.mT, strict=True):
            solved.addcmul_(fitted.index_select(0, which), factor[:, None])
        missed = solved / diagonal
        quadratic = (scores.square() / values).sum(1) + tail.quadratic[0, which]
        sums[0, part] = (quadratic + (tail.quadratic[1:, which] * signed.mT).sum(0)) / c
        sums[1, part] = _sum_logs(values) - signed @ (tail.powers / torch.tensor([1.0, 2.0]).double()) + n * c.log()
        sums[2, part] = torch.linalg.vecdot(missed, missed)
        sums[3, part] = torch.linalg.vecdot(missed, solved) / c - _sum_logs(diagonal) + n * c.log()
    quadratic, logdet, error, density = sums.view(4, levels, rho).sum(-1)
    constant = Z.numel() * math.log(2 * math.pi)
    return CurvePath(-(quadratic + logdet + constant) / 2, quadratic, error / Z.numel(), -(density + constant) / 2)


def _sum_logs(values: Tensor) -> Tensor:
    """Return the sums of the logarithms of the rows of values between 1e-35 and 1e35, from products of eight."""
    for _ in range(3):
        half = values.shape[1] // 2
        values = torch.cat([values[:, :half] * values[:, half : 2 * half], values[:, 2 * half :]], 1)
    return values.log_().sum(1)


class _SeriesTail:
    """Sums over eigenvectors u with small s r of s and s², alone (2,) and with u² (2, n) and u uᵀ z (2, ρ, n), and of 1, s, s² with (uᵀ z)² (3, ρ)."""

    def __init__(self, n: int, rho: int):
        self.powers, self.diagonal = torch.zeros(2).double(), torch.zeros(2, n).double()
        self.fitted, self.quadratic = torch.zeros(2, rho, n).double(), torch.zeros(3, rho).double()

    def extend(self, s: Tensor, rows: Tensor, squares: Tensor, rotated: Tensor) -> None:
        """Add eigenvectors with eigenvalues s (j,), u and u² as rows (j, n), and uᵀ z (ρ, j)."""
        powers = torch.stack([s, s.square()])
        self.powers += powers.sum(1)
        self.diagonal += powers @ squares
        for fitted, power in zip(self.fitted, powers, strict=True):
            fitted.addmm_(rotated * power, rows)
        self.quadratic += torch.stack([torch.ones_like(s), *powers]) @ rotated.square().mT
