"""Natural gradients of the bound in q, as conjugate computations: with g_i and W_i the slopes of E log p(y_i | f_i),

    S⁻¹ ← (1 − ρ) S⁻¹ + ρ (I + Σ Φ_iᵀ W_i Φ_i),      μ ← μ + ρ S (Σ Φ_iᵀ g_i − μ),

the first on the coordinates that the family lets it have. With ρ = 1 and a Gaussian likelihood that is the posterior in one
step (ID-4); a negative curvature W (a robust likelihood at an outlier) or an overshoot makes ρ smaller, never the bound. The
targets of several steps are mixed where that raises the bound (`variational_mixing`).
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
from ovkgp.inference.variational.bound import Piece, RowChunks, VariationalBound
from ovkgp.inference.variational.families import Frame, WeightGaussian, leading_frame

MEMORY = 5
"""Targets that are mixed."""
RIDGE = 1e-12
"""Added to the Gram matrix of remainders, relative to its mean diagonal."""


class Target(NamedTuple):
    """Where a natural step leads to: the diagonal (r,) and the block (k, k) of S⁻¹, and the mean (r,)."""

    diagonal: Tensor
    block: Tensor
    mean: Tensor


class Mixing:
    """The last few targets, of steps in one and the same family and basis.

    Cost: 2 k³ for each target, and memory for 2 · 5 numbers of q.

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational.families import prior_weights
        >>> from ovkgp.inference.variational.natural_gradients import Mixing, Target
        >>> mixing, q, empty = Mixing(), prior_weights(1, rank=0), torch.zeros(0, 0).double()
        >>> for mean in (0.0, 1.0):  # each target overshoots: it is 3 − 2 μ, so that the fixed point is 1
        ...     q = q.moved(mean - q.mean)
        ...     mixing.remember(q, Target(q.precision, empty, 3 - 2 * q.mean))
        >>> round(mixing.mixture(q).mean.item(), 6)
        1.0
    """

    def __init__(self):
        self.targets: list[Target] = []
        self.remainders: list[Tensor] = []

    def remember(self, q: WeightGaussian, target: Target) -> None:
        """Take note of the target of a step from q."""
        self.targets = [*self.targets, target][-MEMORY:]
        self.remainders = [*self.remainders, _remainder(q, target)][-MEMORY:]

    def forget(self, kept: int = 0) -> None:
        """All but the last `kept` targets."""
        first = len(self.targets) - kept
        self.targets, self.remainders = self.targets[first:], self.remainders[first:]

    @property
    def decrement(self) -> Tensor:
        """½ ‖t − q‖² of the last step in the Fisher metric: the gain that it would have if the bound were quadratic."""
        return self.remainders[-1].square().sum() / 2

    def mixture(self, q: WeightGaussian) -> WeightGaussian | None:
        """The mixed target, as a member of the family of q; None while there are fewer than two.

        Raises:
            FactorizationError: its precision is not positive definite.
        """
        if len(self.targets) < 2:
            return None
        remainders = torch.stack(self.remainders)
        gram = remainders @ remainders.mT
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        shares = torch.linalg.solve(gram, torch.ones(len(gram)).to(gram))
        shares = shares / shares.sum()
        diagonal, block, mean = (
            sum(share * part for share, part in zip(shares, parts, strict=True))
            for parts in zip(*self.targets, strict=True)
        )
        return replace(q.toward(diagonal, block, 1.0), mean=mean)


def _remainder(q: WeightGaussian, target: Target) -> Tensor:
    """t − q as a vector whose square is twice the divergence from one to the other, to second order."""
    moved = target.mean - q.mean
    moved = moved if q.frame is None else q.frame.inward(moved)
    mean = moved * q.precision.sqrt()
    mean[q.index] = q.chol.mT @ moved[q.index]
    diagonal = (target.diagonal / q.precision - 1).index_fill(0, q.index, 0.0)
    half = torch.linalg.solve_triangular(q.chol, target.block, upper=False)
    block = torch.linalg.solve_triangular(q.chol, half.mT, upper=False)
    block.diagonal().sub_(1)
    return torch.cat([mean, diagonal / 2**0.5, block.flatten() / 2**0.5])


TOLERANCE = 1e-11
"""A gain of the bound below this, for each observed entry, ends the ascent, unless that of a quadratic bound would be `DECREMENT_RATIO` times as
large: then it may be that a step has gone as far beyond the summit as it was short of it."""
DECREMENT_RATIO = 100
MAX_STEPS = 200
SMALLEST_SHARE = 2.0**-20
EXACT, STREAMED, INEXACT, MAX_PRODUCTS = 1e-12, 1e-6, 1e-4, 500
"""Tolerances of the conjugate gradients for the mean, where the family is not full: of the only step for a Gaussian likelihood,
the same where each product makes the features of all rows anew, and of one of many steps for another likelihood."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """What a natural step needs to know, at some q.

    Args:
        value: Σ E log p(y_i | f_i).
        gradient: Σ Φ_iᵀ g_i (r,).
        diagonal: the diagonal (r,) of Σ Φ_iᵀ W_i Φ_i, in the coordinates of the frame of q; zero on a block that is everything.
        block: its block (k, k), likewise.
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

    Cost: O(n M² p) for a full q and Kronecker rows, O(n p r²) for dense ones; O(n M q) for mean field, k times that for rank k.

    Raises:
        FactorizationError: the bound is not finite.
    """
    value, gradient, diagonal = (q.mean.new_zeros(shape) for shape in ((), q.num_weights, q.num_weights))
    block, curvatures = q.mean.new_zeros(q.rank, q.rank), []
    for piece in pieces:
        mean, variance = piece.marginals(q, form) if with_variances else _without_variances(piece, q, form)
        parts, first, curvature = likelihood.terms(piece.Y, mean, variance, piece.noise)
        _require_finite(parts, first, curvature)
        curvature = _positive_part(curvature) if clamped else curvature
        value += scale * parts.sum()
        gradient += scale * piece.rows.adjoint(first)
        curvatures.append(curvature)
        on_diagonal, on_block = _restricted_gram(q, piece, curvature)
        diagonal += scale * on_diagonal
        block += scale * on_block
    return Slopes(value, gradient, diagonal, block, curvatures)


def _restricted_gram(q: WeightGaussian, piece: Piece, curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Σ Φ_iᵀ W_i Φ_i as far as q may have it: a diagonal (r,) and a block (k, k)."""
    if q.is_full:
        return torch.zeros_like(q.precision), piece.rows.gram(curvature)
    diagonal = piece.rows.diagonal_gram(curvature)
    if q.frame is None:
        return diagonal, q.chol
    return q.frame.restricted(diagonal, piece.rows.adjoint(_weigh(curvature, piece.rows.times(q.frame.probes))))


def natural_step(q: WeightGaussian, slopes: Slopes, share: float) -> WeightGaussian:
    """q after one natural step of size ρ = `share`; the mean moves by what the new S makes of its gradient.

    Raises:
        FactorizationError: the precision would not be positive definite.
    """
    moved = q.toward(*_target(q, slopes), share)
    return moved.moved(share * moved.solve(slopes.gradient - q.mean))


@torch.no_grad()
def ascend(q: WeightGaussian, bound: VariationalBound, pieces: RowChunks, max_steps: int = MAX_STEPS) -> WeightGaussian:
    """The best q of its family, in its basis, by natural steps over all rows that never lower the bound.

    A Gaussian likelihood takes one step. Others go to the mixture of the last targets, or where that would lower the bound take
    a step of twice the last share ρ, halved until the bound does not fall; the ascent ends when it gains less than 1e-11 for
    each observed entry.

    Raises:
        FactorizationError: the bound is not finite at q.
    """
    rows, likelihood = pieces.rotated(q.basis), bound.likelihood
    if bound.is_conjugate:
        found = slopes(q, rows, likelihood, bound.form, with_variances=False)
        moved = q.toward(*_target(q, found), 1.0)
        tolerance = EXACT if isinstance(rows, list) else STREAMED
        return moved.moved(_newton_direction(moved, found, rows, q.mean, tolerance))
    here, share, mixing = slopes(q, rows, likelihood, bound.form), 1.0, Mixing()
    for _ in range(max_steps):
        level, before = here.value - q.divergence, q
        mixed = _mixed_step(q, here, rows, bound, mixing)
        q, here, share = _longest_step(q, here, rows, bound, share) if mixed is None else (*mixed, share)
        gain, enough = here.value - q.divergence - level, TOLERANCE * bound.data.num_observed
        if q is before or (gain <= enough and (not mixing.targets or mixing.decrement <= DECREMENT_RATIO * enough)):
            break
        share = min(1.0, 2 * share)
    return q


def _mixed_step(
    q: WeightGaussian, here: Slopes, rows: Iterable[Piece], bound: VariationalBound, mixing: Mixing
) -> tuple[WeightGaussian, Slopes] | None:
    """q and its slopes at the mixture of the last targets; None where there is none that does not lower the bound."""
    try:
        diagonal, block = _target(q, here)
        whole = q.toward(diagonal, block, 1.0)
        mean = q.mean + _newton_direction(whole, here, rows, q.mean)
        mixing.remember(q, Target(diagonal, block, mean))
        # far from the summit a mixture points nowhere, and each that fails costs a pass over the rows
        moved = None if mixing.decrement > bound.data.num_observed else mixing.mixture(q)
        there = None if moved is None else slopes(moved, rows, bound.likelihood, bound.form)
    except FactorizationError:
        mixing.forget()
        return None
    if there is None:
        return None
    if _is_lower(there, moved, here.value - q.divergence):
        mixing.forget(kept=1)
        return None
    return moved, there


def _longest_step(
    q: WeightGaussian, here: Slopes, rows: Iterable[Piece], bound: VariationalBound, share: float
) -> tuple[WeightGaussian, Slopes, float]:
    """q, its slopes and ρ after the longest of the steps ρ, ρ/2, … that does not lower the bound; all as before if none."""
    while share >= SMALLEST_SHARE:
        try:
            moved = q.toward(*_target(q, here), share)
            moved = moved.moved(share * _newton_direction(moved, here, rows, q.mean))
            there = slopes(moved, rows, bound.likelihood, bound.form)
        except FactorizationError:  # so long a step leaves no precision, or no finite bound
            share /= 2
            continue
        if not _is_lower(there, moved, here.value - q.divergence):
            return moved, there, share
        share /= 2
    return q, here, share


def _is_lower(there: Slopes, q: WeightGaussian, level: Tensor) -> bool:
    return not bool(there.value - q.divergence >= level - 1e-13 * level.abs())


def _target(q: WeightGaussian, slopes: Slopes) -> tuple[Tensor, Tensor]:
    """I + Σ Φ_iᵀ W_i Φ_i, restricted to the family: a diagonal (r,) and a block (k, k)."""
    on_diagonal, on_block = q.prior
    return on_diagonal + slopes.diagonal, on_block + slopes.block


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
    found = conjugate_gradients(apply, precondition, gradient.view(-1, 1, 1), tolerance, MAX_PRODUCTS)
    return found.solution.flatten()


@torch.no_grad()
def eigenbasis(q: WeightGaussian, bound: VariationalBound, pieces: RowChunks, scale: float = 1.0) -> WeightGaussian:
    """q in the eigenbasis of Σ Φ_iᵀ W_i Φ_i, at its own curvatures W; for Kronecker rows in U ⊗ V, from Σ w_i φ_iᵀφ_i with w_i the size
    of W_i and from BᵀW̄B with the average W̄ (BT-76). A block takes the directions that a diagonal there misses most. A full q as
    it is.

    Args:
        scale: of the sum: n over the number of rows in `pieces`.

    O(n M² + M³ + p³) for Kronecker rows, O(n p r² + r³) for dense ones, and 6 (k + 5) products with Φ and Φᵀ for rank k.
    """
    if q.is_full:
        return q
    weight, gram, count, curvatures = 0.0, 0.0, 0, []
    for piece, own in zip(pieces.rotated(()), pieces.rotated(q.basis), strict=True):
        curvature = bound.likelihood.terms(own.Y, *own.marginals(q, bound.form), own.noise)[2]
        _require_finite(curvature)
        curvature = _positive_part(curvature)
        weight, gram = weight + curvature.sum(0), gram + piece.rows.basis_gram(curvature)
        count, rows = count + len(curvature), piece.rows
        curvatures.append(scale * curvature)
    weight = weight if weight.dim() == 2 else torch.diag_embed(weight)
    basis = rows.own_basis(weight / count, gram)
    return q.rotated(basis, _frame(pieces.rotated(basis), curvatures, q.rank) if q.rank else None)


def _frame(pieces: Iterable[Piece], curvatures: list[Tensor], rank: int) -> Frame:
    diagonal = 1 + sum(piece.rows.diagonal_gram(weight) for piece, weight in zip(pieces, curvatures, strict=True))
    return leading_frame(lambda columns: _precision_times(columns, pieces, curvatures), diagonal, rank)


def _precision_times(vectors: Tensor, pieces: Iterable[Piece], curvatures: list[Tensor]) -> Tensor:
    """(I + ΦᵀWΦ) v of a vector (r,), or of columns (r, k)."""
    total = vectors.clone()
    for piece, weight in zip(pieces, curvatures, strict=True):
        total += piece.rows.adjoint(_weigh(weight, piece.rows.times(vectors)))
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
    """W v of values (n, p), or of k columns (n, p, k), for W (n, p) or (n, p, p)."""
    if values.dim() == 2:
        return _weigh(weight, values.unsqueeze(-1)).squeeze(-1)
    return weight.unsqueeze(-1) * values if weight.dim() == 2 else weight @ values


def _require_finite(*parts: Tensor) -> None:
    if not all(math.isfinite(part.sum().item()) for part in parts):
        raise FactorizationError(
            "the bound is not finite at the present hyperparameters: a scale or an outputscale has left the range of numbers. "
            "Bound them, or scale the data."
        )
