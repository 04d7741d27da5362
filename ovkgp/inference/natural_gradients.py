"""Natural gradients of the bound in q, as conjugate computations: with g_i and W_i the slopes of E log p(y_i | f_i),

    S⁻¹ ← (1 − ρ) S⁻¹ + ρ (I + Σ Φ_iᵀ W_i Φ_i),      μ ← μ + ρ S (Σ Φ_iᵀ g_i − μ),

the first on the coordinates that the family lets it have. With ρ = 1 and a Gaussian likelihood that is the posterior in one
step (ID-4); a negative curvature W (a robust likelihood at an outlier) or an overshoot makes ρ smaller, never the bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.conjugate_gradients import conjugate_gradients
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.variational_bound import Piece, Pieces, VariationalBound
from ovkgp.inference.variational_families import WeightGaussian

TOLERANCE = 1e-11
"""A gain of the bound below this, for each observed entry, ends the ascent."""
MOST_STEPS = 200
SMALLEST_SHARE = 2.0**-20
EXACT, STREAMED, INEXACT, MOST_PRODUCTS = 1e-12, 1e-6, 1e-4, 500
"""Tolerances of the conjugate gradients for the mean, where the family is not full: of the only step for a Gaussian likelihood,
the same where each product makes the features of all rows anew, and of one of many steps for another likelihood."""
PROBES = 20
"""Random vectors that find the coordinates of a low-rank block."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """What a natural step needs to know, at some q.

    Args:
        value: Σ E log p(y_i | f_i).
        gradient: Σ Φ_iᵀ g_i (r,).
        diagonal: the diagonal (r,) of Σ Φ_iᵀ W_i Φ_i; zero on a block that is everything.
        block: its block (k, k).
        curvatures: W of each piece.
    """

    value: Tensor
    gradient: Tensor
    diagonal: Tensor
    block: Tensor
    curvatures: list[Tensor]


@torch.no_grad()
def slopes(
    q: WeightGaussian,
    pieces: Iterable[Piece],
    likelihood: Likelihood,
    form: str,
    scale: float = 1.0,
    with_variances: bool = True,
    clamped: bool = False,
) -> Slopes:
    """The slopes of the expected log-likelihood at q, all multiplied by `scale`.

    Args:
        pieces: rows in the basis of q: all of the data, or a batch with `scale` n over its size.
        form: "diag" or "output", as the likelihood wants.
        with_variances: False where the slopes do not depend on them (Gaussian likelihoods); `value` then lacks them.
        clamped: whether negative curvatures are set to zero.

    Cost: O(n M² p) for a full q and Kronecker rows, O(n p r²) for dense ones; O(n M q) for mean field.
    """
    value, gradient, diagonal = (q.mean.new_zeros(shape) for shape in ((), q.num_weights, q.num_weights))
    block, curvatures = q.mean.new_zeros(q.rank, q.rank), []
    for piece in pieces:
        mean, variance = piece.marginals(q, form) if with_variances else _without_variances(piece, q, form)
        parts, first, curvature = likelihood.terms(piece.Y, mean, variance, piece.noise)
        curvature = _positive_part(curvature) if clamped else curvature
        value += scale * parts.sum()
        gradient += scale * piece.rows.adjoint(first)
        curvatures.append(curvature)
        if q.is_full:
            block += scale * piece.rows.gram(curvature)
            continue
        diagonal += scale * piece.rows.diagonal_gram(curvature)
        if q.rank:
            block += scale * piece.rows.columns(q.index).gram(curvature)
    return Slopes(value, gradient, diagonal, block, curvatures)


def natural_step(q: WeightGaussian, slopes: Slopes, share: float) -> WeightGaussian:
    """q after one natural step of size ρ = `share`; the mean moves by what the new S makes of its gradient.

    Raises:
        FactorisationError: the precision would not be positive definite.
    """
    moved = _precision_step(q, slopes, share)
    return moved.moved(share * moved.solve(slopes.gradient - q.mean))


@torch.no_grad()
def ascend(q: WeightGaussian, bound: VariationalBound, pieces: Pieces, max_steps: int = MOST_STEPS) -> WeightGaussian:
    """The best q of its family, in its basis, by natural steps over all rows that never lower the bound.

    A Gaussian likelihood takes one step. Others start each step at twice the last share ρ and halve it until the bound does
    not fall; the ascent ends when it gains less than 1e-11 for each observed entry.
    """
    rows, likelihood = pieces.turned(q.basis), bound.likelihood
    if bound.is_conjugate:
        found = slopes(q, rows, likelihood, bound.form, with_variances=False)
        moved = _precision_step(q, found, 1.0)
        tolerance = EXACT if isinstance(rows, list) else STREAMED
        return moved.moved(_newton_direction(moved, found, rows, q.mean, tolerance))
    here, share = slopes(q, rows, likelihood, bound.form), 1.0
    _require_finite(here)
    for _ in range(max_steps):
        level, before = here.value - q.divergence, q
        q, here, share = _longest_step(q, here, rows, bound, share)
        if here.value - q.divergence - level <= TOLERANCE * bound.data.num_seen or q is before:
            break
        share = min(1.0, 2 * share)
    return q


def _longest_step(
    q: WeightGaussian, here: Slopes, rows: Iterable[Piece], bound: VariationalBound, share: float
) -> tuple[WeightGaussian, Slopes, float]:
    """q, its slopes and ρ after the longest of the steps ρ, ρ/2, … that does not lower the bound; all as before if none."""
    level = here.value - q.divergence
    while share >= SMALLEST_SHARE:
        try:
            moved = _precision_step(q, here, share)
        except FactorisationError:
            share /= 2
            continue
        moved = moved.moved(share * _newton_direction(moved, here, rows, q.mean))
        there = slopes(moved, rows, bound.likelihood, bound.form)
        if bool(there.value - moved.divergence >= level - 1e-13 * level.abs()):
            return moved, there, share
        share /= 2
    return q, here, share


def _precision_step(q: WeightGaussian, slopes: Slopes, share: float) -> WeightGaussian:
    target = slopes.block.clone()
    target.diagonal().add_(1)
    return q.toward(1 + slopes.diagonal, target, share)


def _newton_direction(
    moved: WeightGaussian, slopes: Slopes, rows: Iterable[Piece], mean: Tensor, tolerance: float = INEXACT
) -> Tensor:
    """(I + ΦᵀWΦ)⁻¹ (Φᵀg − μ): S times it for a full q; otherwise by conjugate gradients, with S as preconditioner."""
    gradient = slopes.gradient - mean
    if moved.is_full:
        return moved.solve(gradient)
    weights = [_positive_part(curvature) for curvature in slopes.curvatures]
    apply = lambda columns: _precision_times(columns.flatten(), rows, weights).view(columns.shape)  # noqa: E731
    precondition = lambda columns: moved.solve(columns.flatten()).view(columns.shape)  # noqa: E731
    found = conjugate_gradients(apply, precondition, gradient.view(-1, 1, 1), tolerance, MOST_PRODUCTS)
    return found.solution.flatten()


@torch.no_grad()
def eigenbasis(q: WeightGaussian, bound: VariationalBound, pieces: Pieces) -> WeightGaussian:
    """q in the eigenbasis of Σ Φ_iᵀ W_i Φ_i, at its own curvatures W; for Kronecker rows in U ⊗ V, from φᵀφ and BᵀW̄B with the
    average W̄ (BT-76). A full q as it is.

    O(n M² + M³ + p³) for Kronecker rows, O(n p r² + r³) for dense ones.
    """
    if q.is_full:
        return q
    weight, gram, count, curvatures = 0.0, 0.0, 0, []
    for piece, own in zip(pieces.turned(()), pieces.turned(q.basis), strict=True):
        curvature = bound.likelihood.terms(own.Y, *own.marginals(q, bound.form), own.noise)[2]
        curvature = _positive_part(curvature)
        weight, gram = weight + curvature.sum(0), gram + piece.rows.basis_gram(curvature)
        count, rows = count + len(curvature), piece.rows
        curvatures.append(curvature)
    weight = weight if weight.dim() == 2 else torch.diag_embed(weight)
    basis = rows.own_basis(weight / count, gram)
    return q.turned(basis, _correlation(pieces.turned(basis), curvatures) if q.rank else q.mean)


def _correlation(pieces: Iterable[Piece], curvatures: list[Tensor]) -> Tensor:
    """Σ_j≠i C_ij² / (C_ii C_jj) of C = I + ΦᵀWΦ for each coordinate i (r,): what a diagonal precision would lose.

    It is estimated from `PROBES` random signs z, as the average of (D^{-½} (C − D) D^{-½} z)².
    """
    diagonal = 1 + sum(piece.rows.diagonal_gram(weight) for piece, weight in zip(pieces, curvatures, strict=True))
    generator, total = torch.Generator().manual_seed(0), torch.zeros_like(diagonal)
    for _ in range(PROBES):
        signs = torch.randint(2, diagonal.shape, generator=generator).to(diagonal) * 2 - 1
        scaled = signs * diagonal.rsqrt()
        total += ((_precision_times(scaled, pieces, curvatures) - diagonal * scaled) * diagonal.rsqrt()).square()
    return total / PROBES


def _precision_times(vector: Tensor, pieces: Iterable[Piece], curvatures: list[Tensor]) -> Tensor:
    """(I + ΦᵀWΦ) v."""
    total = vector.clone()
    for piece, weight in zip(pieces, curvatures, strict=True):
        total += piece.rows.adjoint(_weigh(weight, piece.rows.times(vector)))
    return total


def _without_variances(piece: Piece, q: WeightGaussian, form: str) -> tuple[Tensor, Tensor]:
    mean = piece.prior + piece.rows.times(q.mean)
    return mean, mean.new_zeros(mean.shape if form == "diag" else (*mean.shape, mean.shape[1]))


def _positive_part(curvature: Tensor) -> Tensor:
    """W (n, p) or (n, p, p) without its negative eigenvalues."""
    if curvature.dim() == 2:
        return curvature.clamp_min(0)
    values, vectors = torch.linalg.eigh(curvature)
    return (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT


def _weigh(weight: Tensor, values: Tensor) -> Tensor:
    return weight * values if weight.dim() == 2 else (weight @ values.unsqueeze(-1)).squeeze(-1)


def _require_finite(found: Slopes) -> None:
    if not bool(torch.isfinite(found.value) & torch.isfinite(found.gradient).all()):
        raise FactorisationError(
            "the bound is not finite at the present hyperparameters: a scale or an outputscale has left the range of numbers. "
            "Bound them, or scale the data."
        )
