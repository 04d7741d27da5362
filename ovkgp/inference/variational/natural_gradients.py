"""Natural gradients of the bound in q, as conjugate computations: with g_i and W_i the slopes of E log p(y_i | f_i),

    S⁻¹ ← (1 − ρ) S⁻¹ + ρ (I + Σ Φ_iᵀ W_i Φ_i),      μ ← μ + ρ S (Σ Φ_iᵀ g_i − μ),

the first restricted to the family. With ρ = 1 and a Gaussian likelihood this is the posterior in one step (ID-4); a
negative curvature W (a robust likelihood at an outlier) or an overshoot makes ρ smaller, so that the bound never
decreases. Targets of several steps are mixed (Anderson) if that raises the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.algebra.krylov import conjugate_gradients
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.variational.bound import RowChunk, RowChunks, VariationalBound
from ovkgp.inference.variational.families import Frame, WeightGaussian, leading_frame

GAIN_TOLERANCE = 1e-11
"""Gain of the bound per observed entry below which the optimization stops, unless the gain of a quadratic bound would
be `DECREMENT_RATIO` times as large: a step may have overshot the maximum symmetrically."""
DECREMENT_RATIO = 100
MAX_STEPS = 200
MIN_STEP_SIZE = 2.0**-20
EXACT_TOLERANCE, STREAMED_TOLERANCE, INEXACT_TOLERANCE, MAX_CG_STEPS = 1e-12, 1e-6, 1e-4, 500
"""Tolerances of the conjugate gradients for the mean, if the family is not full: of the only step for a Gaussian
likelihood, of the same if each product recomputes the features of all rows, and of one of many steps for other
likelihoods."""
MAX_MIXED_TARGETS = 5  # maximum number of targets that are mixed
GRAM_RIDGE = 1e-12  # ridge of the Gram matrix of residuals, relative to its mean diagonal


@torch.no_grad()
def maximize_bound(
    q: WeightGaussian, bound: VariationalBound, chunks: RowChunks, max_steps: int = MAX_STEPS
) -> WeightGaussian:
    """Find the best q of its family, in its basis, by natural steps over all rows that never lower the bound."""
    rows, likelihood = chunks.rotate(q.basis), bound.likelihood
    if bound.is_conjugate:
        found = compute_slopes(q, rows, likelihood, bound.form, with_variances=False)
        moved = q.move_precision(*_target(q, found), 1.0)
        tolerance = EXACT_TOLERANCE if isinstance(rows, list) else STREAMED_TOLERANCE
        return moved.move_mean(_newton_direction(moved, found, rows, q.mean, tolerance))
    here, step_size, mixing = compute_slopes(q, rows, likelihood, bound.form), 1.0, AndersonMixing()
    for _ in range(max_steps):
        level, before = here.value - q.divergence, q
        mixed = _mixed_step(q, here, rows, bound, mixing)
        q, here, step_size = _longest_step(q, here, rows, bound, step_size) if mixed is None else (*mixed, step_size)
        gain, enough = here.value - q.divergence - level, GAIN_TOLERANCE * bound.data.num_observed
        if q is before or (gain <= enough and (not mixing.targets or mixing.decrement <= DECREMENT_RATIO * enough)):
            break
        step_size = min(1.0, 2 * step_size)
    return q


def _mixed_step(
    q: WeightGaussian, here: Slopes, rows: Iterable[RowChunk], bound: VariationalBound, mixing: AndersonMixing
) -> tuple[WeightGaussian, Slopes] | None:
    """Move q to the mixture of the last targets, and return it with its slopes; None if that would lower the bound."""
    try:
        diagonal, block = _target(q, here)
        full_step = q.move_precision(diagonal, block, 1.0)
        mean = q.mean + _newton_direction(full_step, here, rows, q.mean)
        mixing.add(q, Target(diagonal, block, mean))
        # far from the maximum a mixture is useless, and each failure costs a pass over the rows
        moved = None if mixing.decrement > bound.data.num_observed else mixing.mixed_target(q)
        there = None if moved is None else compute_slopes(moved, rows, bound.likelihood, bound.form)
    except FactorizationError:
        mixing.discard()
        return None
    if there is None:
        return None
    if _is_lower(there, moved, here.value - q.divergence):
        mixing.discard(kept=1)
        return None
    return moved, there


def _longest_step(
    q: WeightGaussian, here: Slopes, rows: Iterable[RowChunk], bound: VariationalBound, step_size: float
) -> tuple[WeightGaussian, Slopes, float]:
    """Take the longest of the steps ρ, ρ/2, … that does not lower the bound, if any; return q, its slopes and ρ."""
    while step_size >= MIN_STEP_SIZE:
        try:
            moved = q.move_precision(*_target(q, here), step_size)
            moved = moved.move_mean(step_size * _newton_direction(moved, here, rows, q.mean))
            there = compute_slopes(moved, rows, bound.likelihood, bound.form)
        except FactorizationError:  # the precision is not positive definite, or the bound not finite
            step_size /= 2
            continue
        if not _is_lower(there, moved, here.value - q.divergence):
            return moved, there, step_size
        step_size /= 2
    return q, here, step_size


def _is_lower(there: Slopes, q: WeightGaussian, level: Tensor) -> bool:
    return not bool(there.value - q.divergence >= level - 1e-13 * level.abs())


def _target(q: WeightGaussian, slopes: Slopes) -> tuple[Tensor, Tensor]:
    """Compute I + Σ Φ_iᵀ W_i Φ_i, restricted to the family: a diagonal (r,) and a block (k, k)."""
    on_diagonal, on_block = q.prior
    return on_diagonal + slopes.diagonal, on_block + slopes.block


def _newton_direction(
    moved: WeightGaussian, slopes: Slopes, rows: Iterable[RowChunk], mean: Tensor, tolerance: float = INEXACT_TOLERANCE
) -> Tensor:
    """Compute (I + ΦᵀWΦ)⁻¹ (Φᵀg − μ): by S for a full q; otherwise by conjugate gradients, with S as preconditioner."""
    gradient = slopes.gradient - mean
    if moved.is_full:
        return moved.solve(gradient)
    weights = [_positive_part(curvature) for curvature in slopes.curvatures]
    apply = lambda columns: _precision_times(columns.flatten(), rows, weights).view(columns.shape)  # noqa: E731
    precondition = lambda columns: moved.solve(columns.flatten()).view(columns.shape)  # noqa: E731
    found = conjugate_gradients(apply, precondition, gradient.view(-1, 1, 1), tolerance, MAX_CG_STEPS)
    return found.solution.flatten()


@torch.no_grad()
def rotate_to_eigenbasis(
    q: WeightGaussian, bound: VariationalBound, chunks: RowChunks, scale: float = 1.0
) -> WeightGaussian:
    """Rotate q, unless it is full, to the eigenbasis of Σ Φ_iᵀ W_i Φ_i at its curvatures W, scaled to all rows.

    For Kronecker rows the basis is U ⊗ V, from Σ w_i φ_iᵀφ_i with w_i the size of W_i and from BᵀW̄B (BT-76).
    """
    if q.is_full:
        return q
    weight, gram, count, curvatures = 0.0, 0.0, 0, []
    for chunk, own in zip(chunks.rotate(()), chunks.rotate(q.basis), strict=True):
        curvature = bound.likelihood.terms(own.Y, *own.marginals(q, bound.form), own.noise)[2]
        _check_finite(curvature)
        curvature = _positive_part(curvature)
        weight, gram = weight + curvature.sum(0), gram + chunk.rows.basis_gram(curvature)
        count, rows = count + len(curvature), chunk.rows
        curvatures.append(scale * curvature)
    weight = weight if weight.dim() == 2 else torch.diag_embed(weight)
    basis = rows.compute_eigenbasis(weight / count, gram)
    return q.rotate(basis, _frame(chunks.rotate(basis), curvatures, q.rank) if q.rank else None)


def _frame(chunks: Iterable[RowChunk], curvatures: list[Tensor], rank: int) -> Frame:
    diagonal = 1 + sum(chunk.rows.diagonal_gram(weight) for chunk, weight in zip(chunks, curvatures, strict=True))
    return leading_frame(lambda columns: _precision_times(columns, chunks, curvatures), diagonal, rank)


def _precision_times(vectors: Tensor, chunks: Iterable[RowChunk], curvatures: list[Tensor]) -> Tensor:
    """Compute (I + ΦᵀWΦ) v of a vector (r,), or of columns (r, k)."""
    total = vectors.clone()
    for chunk, weight in zip(chunks, curvatures, strict=True):
        total += chunk.rows.adjoint(_weigh(weight, chunk.rows.times(vectors)))
    return total


def _positive_part(curvature: Tensor) -> Tensor:
    """Set the negative eigenvalues of W (n, p) or (n, p, p) to zero."""
    if curvature.dim() == 2:
        return curvature.clamp_min(0)
    values, vectors = torch.linalg.eigh(curvature)
    return (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT


def _weigh(weight: Tensor, values: Tensor) -> Tensor:
    """Compute W v of values (n, p), or of k columns (n, p, k), for W (n, p) or (n, p, p)."""
    if values.dim() == 2:
        return _weigh(weight, values.unsqueeze(-1)).squeeze(-1)
    return weight.unsqueeze(-1) * values if weight.dim() == 2 else weight @ values


def _check_finite(*parts: Tensor) -> None:
    if not all(math.isfinite(part.sum().item()) for part in parts):
        raise FactorizationError(
            "The bound is not finite at the current hyperparameters, as a scale or an outputscale overflowed. Constrain them, or scale the data."
        )


@dataclass(frozen=True, eq=False)
class Slopes:
    """Value and slopes of the expected log likelihood at some q."""

    value: Tensor  # Σ E log p(y_i | f_i)
    gradient: Tensor  # Σ Φ_iᵀ g_i (r,)
    diagonal: Tensor  # of Σ Φ_iᵀ W_i Φ_i (r,), in the coordinates of the frame of q; zero if q is full
    block: Tensor  # of the same matrix, (k, k)
    curvatures: list[Tensor]  # W of each chunk


@torch.no_grad()
def compute_slopes(
    q: WeightGaussian,
    chunks: Iterable[RowChunk],
    likelihood: Likelihood,
    form: str,
    scale: float = 1.0,
    with_variances: bool = True,
    clamped: bool = False,
) -> Slopes:
    """Compute the slopes of the expected log likelihood at q, from chunks in its basis, all multiplied by `scale`.

    If `with_variances` is False (Gaussian likelihoods, whose slopes do not depend on them), `value` lacks them; if
    `clamped`, negative curvatures are set to zero.
    """
    value, gradient, diagonal = (q.mean.new_zeros(shape) for shape in ((), q.num_weights, q.num_weights))
    block, curvatures = q.mean.new_zeros(q.rank, q.rank), []
    for chunk in chunks:
        if with_variances:
            mean, variance = chunk.marginals(q, form)
        else:
            mean = chunk.prior + chunk.rows.times(q.mean)
            variance = mean.new_zeros(mean.shape if form == "diag" else (*mean.shape, mean.shape[1]))
        parts, first, curvature = likelihood.terms(chunk.Y, mean, variance, chunk.noise)
        _check_finite(parts, first, curvature)
        curvature = _positive_part(curvature) if clamped else curvature
        value += scale * parts.sum()
        gradient += scale * chunk.rows.adjoint(first)
        curvatures.append(curvature)
        on_diagonal, on_block = _restricted_gram(q, chunk, curvature)
        diagonal += scale * on_diagonal
        block += scale * on_block
    return Slopes(value, gradient, diagonal, block, curvatures)


def _restricted_gram(q: WeightGaussian, chunk: RowChunk, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Σ Φ_iᵀ W_i Φ_i restricted to the family of q: a diagonal (r,) and a block (k, k)."""
    if q.is_full:
        return torch.zeros_like(q.precision), chunk.rows.gram(curvature)
    diagonal = chunk.rows.diagonal_gram(curvature)
    if q.frame is None:
        return diagonal, q.chol
    return q.frame.restrict(diagonal, chunk.rows.adjoint(_weigh(curvature, chunk.rows.times(q.frame.probes))))


def natural_step(q: WeightGaussian, slopes: Slopes, step_size: float) -> WeightGaussian:
    """Take one natural step of size ρ = `step_size`; the mean moves by ρ times the new S times its gradient."""
    moved = q.move_precision(*_target(q, slopes), step_size)
    return moved.move_mean(step_size * moved.solve(slopes.gradient - q.mean))


class Target(NamedTuple):
    """Target of a natural step: the diagonal (r,) and the block (k, k) of S⁻¹, and the mean (r,)."""

    diagonal: Tensor
    block: Tensor
    mean: Tensor


class AndersonMixing:
    """Anderson mixing of the last targets in one family and basis: Σ α_i t_i with least residual, Σ α_i = 1."""

    def __init__(self):
        self.targets: list[Target] = []
        self.residuals: list[Tensor] = []

    def add(self, q: WeightGaussian, target: Target) -> None:
        """Store the target of a step from q."""
        self.targets = [*self.targets, target][-MAX_MIXED_TARGETS:]
        self.residuals = [*self.residuals, _residual(q, target)][-MAX_MIXED_TARGETS:]

    def discard(self, kept: int = 0) -> None:
        """Discard all but the last `kept` targets."""
        first = len(self.targets) - kept
        self.targets, self.residuals = self.targets[first:], self.residuals[first:]

    @property
    def decrement(self) -> Tensor:
        """½ ‖t − q‖² of the last step in the Fisher metric: its gain if the bound were quadratic."""
        return self.residuals[-1].square().sum() / 2

    def mixed_target(self, q: WeightGaussian) -> WeightGaussian | None:
        """Mix the targets, and return the result as a member of the family of q; None if there are fewer than two."""
        if len(self.targets) < 2:
            return None
        residuals = torch.stack(self.residuals)
        gram = residuals @ residuals.mT
        gram.diagonal().add_(GRAM_RIDGE * gram.diagonal().mean())
        weights = torch.linalg.solve(gram, torch.ones(len(gram)).to(gram))
        weights = weights / weights.sum()
        diagonal, block, mean = (
            sum(weight * part for weight, part in zip(weights, parts, strict=True))
            for parts in zip(*self.targets, strict=True)
        )
        return replace(q.move_precision(diagonal, block, 1.0), mean=mean)


def _residual(q: WeightGaussian, target: Target) -> Tensor:
    """Compute t − q as a vector whose square is twice the divergence between them, to second order."""
    shift = target.mean - q.mean
    shift = shift if q.frame is None else q.frame.from_weights(shift)
    mean = shift * q.precision.sqrt()
    mean[q.index] = q.chol.mT @ shift[q.index]
    diagonal = (target.diagonal / q.precision - 1).index_fill(0, q.index, 0.0)
    half = torch.linalg.solve_triangular(q.chol, target.block, upper=False)
    block = torch.linalg.solve_triangular(q.chol, half.mT, upper=False)
    block.diagonal().sub_(1)
    return torch.cat([mean, diagonal / 2**0.5, block.flatten() / 2**0.5])
