"""Gaussian families over the weights, q(w) = N(μ, S): full, low-rank, and mean-field in an eigenbasis.

Mean field has a diagonal S⁻¹ in an orthogonal basis. For a decomposable map with complete Gaussian outputs the optimal
S is diagonal in the basis U ⊗ V of BT-76, so that mean field is exact there (ID-4). In the low-rank family S⁻¹ is dense
on `rank` directions, those in which a diagonal loses most, and diagonal on the others, in the coordinates of a `Frame`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ovkgp.checks import check_integer, check_one_of
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.algebra.dense import inverse_from_cholesky
from ovkgp.inference.variational.rows import Basis, DenseRows, Rows

FAMILIES = ("auto", "full", "low_rank", "mean_field")
MAX_FULL_WEIGHTS = 1500  # maximum number of weights for which the family "auto" is "full"; beyond, it is "mean_field"
KRYLOV_DEPTH, KRYLOV_OVERSAMPLING = 3, 5
"""Number of powers, and of vectors beyond the rank, that span the Krylov space in which directions are sought."""


@dataclass(frozen=True, eq=False)
class WeightGaussian:
    """q(w) = N(μ, S) in an orthogonal `basis` of the weights."""

    mean: Tensor  # μ (r,) in the basis
    precision: Tensor  # diagonal (r,) of S⁻¹ in the coordinates of the frame, unused on the block
    chol: Tensor  # Cholesky factor (k, k) of the block of S⁻¹
    basis: Basis = ()
    frame: Frame | None = None  # if 0 < k < r, the coordinates in which S⁻¹ is a block and a diagonal

    @property
    def num_weights(self) -> int:
        """Number of weights r."""
        return len(self.mean)

    @property
    def rank(self) -> int:
        """Size k of the dense block."""
        return len(self.chol)

    @property
    def is_full(self) -> bool:
        return self.rank == self.num_weights

    @cached_property
    def index(self) -> Tensor:
        """Coordinates (k,) of the block."""
        return torch.arange(self.rank, device=self.mean.device) if self.frame is None else self.frame.index

    @cached_property
    def block(self) -> Tensor:
        """Block (k, k) of S."""
        return inverse_from_cholesky(self.chol) if self.rank else self.chol  # LAPACK rejects empty matrices

    @cached_property
    def variances(self) -> Tensor:
        """Diagonal (r,) of S outside the block, zero on it."""
        return (1 / self.precision).index_fill(0, self.index, 0.0)

    @property
    def prior(self) -> tuple[Tensor, Tensor]:
        """Precision of N(0, I): its diagonal (r,) and its block (k, k)."""
        if self.frame is not None:
            return self.frame.prior
        return torch.ones_like(self.precision), torch.eye(self.rank).to(self.chol)

    @cached_property
    def low_rank_form(self) -> tuple[Tensor, Tensor, Tensor]:
        """S as diag(v) + F M Fᵀ, if there is a frame: v (r,), F (r, 3k) and M (3k, 3k)."""
        variances, factor, core = self.frame.expand(self.variances, self.block)
        return self.frame.scale.square() * variances, self.frame.scale.unsqueeze(-1) * factor, core

    @cached_property
    def divergence(self) -> Tensor:
        """KL(q ‖ N(0, I)) = ½ (tr S + μᵀμ − r + log det S⁻¹)."""
        on_diagonal, on_block = self.prior
        trace = (self.block * on_block).sum() + (self.variances * on_diagonal).sum()
        logs = self.precision.log().index_fill(0, self.index, 0.0).sum() + 2 * self.chol.diagonal().log().sum()
        logs = logs if self.frame is None else logs - 2 * self.frame.scale.log().sum()
        return (trace + self.mean.square().sum() - self.num_weights + logs) / 2

    def marginals(self, rows: Rows, form: str) -> tuple[Tensor, Tensor]:
        """Compute the mean (n, p) of Φ w and its covariance, as "diag" or "output", from rows in the basis of q."""
        mean = rows.times(self.mean)
        if self.is_full:
            return mean, rows.quadratic(self.block, form)
        if self.frame is None:
            return mean, rows.diagonal_quadratic(self.variances, form)
        variances, factor, core = self.low_rank_form
        return mean, rows.diagonal_quadratic(variances, form) + DenseRows(rows.times(factor)).quadratic(core, form)

    def joint_covariance(self, rows: Rows) -> Tensor:
        """Compute Φ S Φᵀ (n·p, n·p)."""
        features = rows.dense().flatten(0, 1)
        if self.is_full:
            return features @ self.block @ features.mT
        if self.frame is None:
            return (features * self.variances) @ features.mT
        variances, factor, core = self.low_rank_form
        columns = features @ factor
        return (features * variances) @ features.mT + columns @ core @ columns.mT

    def solve(self, gradient: Tensor) -> Tensor:
        """Compute S v of a vector (r,)."""
        gradient = gradient if self.frame is None else self.frame.pull_gradient(gradient)
        found = gradient / self.precision
        if self.rank:
            found[self.index] = torch.cholesky_solve(gradient[self.index].unsqueeze(-1), self.chol).squeeze(-1)
        return found if self.frame is None else self.frame.to_weights(found)

    def move_precision(self, diagonal: Tensor, block: Tensor, step_size: float) -> WeightGaussian:
        """Move the precision to (1 − ρ) S⁻¹ + ρ target, a diagonal (r,) and a block (k, k); the mean stays."""
        precision = (1 - step_size) * self.precision + step_size * diagonal
        mixed = step_size * block if step_size == 1 else torch.lerp(self.chol @ self.chol.mT, block, step_size)
        chol, info = torch.linalg.cholesky_ex((mixed + mixed.mT) / 2)
        precision = precision.index_fill(0, self.index, 1.0)
        if int(info) or not bool((precision > 0).all() & torch.isfinite(chol.diagonal()).all()):
            raise FactorizationError("The precision after a natural step is not positive definite. Try a smaller step.")
        return replace(self, precision=precision, chol=chol)

    def move_mean(self, step: Tensor) -> WeightGaussian:
        """Return a copy with the mean moved by a step (r,)."""
        return replace(self, mean=self.mean + step)

    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """Draw k samples (r, k), in the basis. Complexity: O(k r rank)."""
        scores = torch.randn(self.num_weights, k, generator=generator, dtype=torch.float64).to(self.mean.device)
        draws = scores * self.precision.rsqrt().unsqueeze(-1)
        draws[self.index] = torch.linalg.solve_triangular(self.chol.mT, scores[self.index], upper=True)
        return self.mean.unsqueeze(-1) + (draws if self.frame is None else self.frame.to_weights(draws))

    def rotate(self, basis: Basis, frame: Frame | None = None) -> WeightGaussian:
        """Project q onto the family in another basis of the same kind, keeping of the precision only the diagonal."""
        rotations = [new.mT for new in basis]
        if self.basis:
            rotations = [new @ old for new, old in zip(rotations, self.basis, strict=True)]
        mean = _apply(rotations, self.mean)
        precision = _apply([rotation.square() for rotation in rotations], self._diagonal())
        if frame is None:
            return replace(self, mean=mean, precision=precision, basis=basis)
        on_diagonal, on_block = frame.restrict(precision, precision.unsqueeze(-1) * frame.probes)
        return WeightGaussian(mean, on_diagonal, torch.linalg.cholesky(on_block), basis, frame)

    def _diagonal(self) -> Tensor:
        """Compute the diagonal (r,) of S⁻¹ in the basis."""
        if self.frame is None:
            return self.precision
        outside = self.precision.index_fill(0, self.index, 0.0)
        diagonal, factor, core = self.frame.expand(outside, self.chol @ self.chol.mT)
        return (diagonal + ((factor @ core) * factor).sum(1)) / self.frame.scale.square()


def prior_weights(num_weights: int, rank: int, device: torch.device | None = None) -> WeightGaussian:
    """Make q = N(0, I) with a dense block on the first `rank` coordinates."""
    ones = torch.ones(num_weights, dtype=torch.float64, device=device)
    eye = torch.eye(rank, dtype=torch.float64, device=device)
    frame = unit_frame(num_weights, rank, device) if 0 < rank < num_weights else None
    return WeightGaussian(0 * ones, ones, eye, frame=frame)


def family_rank(family: str, rank: int | None, num_weights: int) -> int:
    """Return the size of the dense block: r for "full", 0 for "mean_field", `rank` (at most r) for "low_rank"."""
    check_family(family, rank)
    if family == "auto":
        family = "full" if num_weights <= MAX_FULL_WEIGHTS else "mean_field"
    return {"full": num_weights, "mean_field": 0}.get(family, min(rank or 0, num_weights))


def check_family(family: str, rank: int | None) -> None:
    """Check that `family` is known, and that `rank` is given for "low_rank" only."""
    check_one_of("family", family, FAMILIES)
    if family == "low_rank":
        check_integer("rank", 0 if rank is None else rank)
    elif rank is not None:
        raise OptionError(f'rank must be None with family={family!r}, got {rank}. Use family="low_rank".')


def _apply(rotations: list[Tensor], vector: Tensor) -> Tensor:
    """Compute A v, or (A ⊗ B) v, of a vector (r,)."""
    if len(rotations) == 1:
        return rotations[0] @ vector
    left, right = rotations
    return (left @ vector.unflatten(0, (-1, len(right))) @ right.mT).flatten()


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates z of the weights x = D^{-½} H z, with a reflection H; O(r k) memory, and time per vector."""

    scale: Tensor  # D^{-½} (r,)
    directions: Tensor  # V (r, k), orthonormal with V[index] symmetric and positive semi-definite
    index: Tensor  # coordinates (k,) of z that run along −V

    @cached_property
    def normals(self) -> Tensor:
        """Normals Z (r, k) of the reflection: V plus the unit vectors of `index`."""
        units = torch.zeros_like(self.directions)
        units[self.index, torch.arange(len(self.index), device=units.device)] = 1.0
        return self.directions + units

    @cached_property
    def solved_normals(self) -> Tensor:
        """Z (I + V₁)⁻¹ (r, k)."""
        return torch.linalg.solve(self.normals[self.index], self.normals, left=False)

    @cached_property
    def probes(self) -> Tensor:
        """D^{-½} [Z, V] (r, 2k): a symmetric matrix is restricted by what it makes of these."""
        return self.scale.unsqueeze(-1) * torch.cat([self.normals, self.directions], 1)

    @cached_property
    def prior(self) -> tuple[Tensor, Tensor]:
        """The identity in the coordinates z, restricted."""
        return self.restrict(torch.ones_like(self.scale), self.probes)

    def reflect(self, vectors: Tensor) -> Tensor:
        """Compute H v of vectors (r, …)."""
        return vectors - self.solved_normals @ (self.normals.mT @ vectors)

    def to_weights(self, z: Tensor) -> Tensor:
        """Compute x (r, …) from z."""
        return (self.scale * self.reflect(z).mT).mT if z.dim() > 1 else self.scale * self.reflect(z)

    def from_weights(self, x: Tensor) -> Tensor:
        """Compute z (r,) from x."""
        return self.reflect(x / self.scale)

    def pull_gradient(self, gradient: Tensor) -> Tensor:
        """Compute the gradient (r,) in z of a function from its gradient in x."""
        return self.reflect(self.scale * gradient)

    def restrict(self, diagonal: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """Express M, from its diagonal (r,) and M times `probes`, in z: diagonal, valid outside `index`, and block."""
        k = len(self.index)
        by_normals, by_directions = products[:, :k], products[:, k:]
        inner = self.probes[:, :k].mT @ by_normals
        cross = 2 * self.scale.unsqueeze(-1) * by_normals - self.solved_normals @ inner
        on_diagonal = self.scale.square() * diagonal - (self.solved_normals * cross).sum(1)
        return on_diagonal, self.probes[:, k:].mT @ by_directions

    def expand(self, diagonal: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write H (diag + block) H, with diag zero on `index`, as diag (r,) + F M Fᵀ with F (r, 3k), M (3k, 3k)."""
        weighted = diagonal.unsqueeze(-1) * self.normals
        eye = torch.eye(len(block)).to(block)
        zero = torch.zeros_like(block)
        core = [[self.normals.mT @ weighted, -eye, zero], [-eye, zero, zero], [zero, zero, block]]
        factor = torch.cat([self.solved_normals, weighted, self.directions], 1)
        return diagonal, factor, torch.cat([torch.cat(row, 1) for row in core])


def unit_frame(num_weights: int, rank: int, device: torch.device | None = None) -> Frame:
    """Make the frame whose block is on the first `rank` coordinates."""
    eye = torch.eye(num_weights, rank, dtype=torch.float64, device=device)
    return Frame(torch.ones(num_weights, dtype=torch.float64, device=device), eye, torch.arange(rank, device=device))


def leading_frame(times: Callable[[Tensor], Tensor], diagonal: Tensor, rank: int) -> Frame:
    """Find the `rank` directions along which a precision C, known by C V, differs most from its diagonal (r,)."""
    # Eigenvectors are approximated in a block Krylov space of random vectors, which is enough as any V is valid.
    scale = diagonal.rsqrt()
    off_diagonal = lambda V: scale.unsqueeze(-1) * times(scale.unsqueeze(-1) * V) - V  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(len(scale), rank + KRYLOV_OVERSAMPLING, generator=generator, dtype=torch.float64).to(scale)
    spaces = []
    for _ in range(KRYLOV_DEPTH):
        block = torch.linalg.qr(off_diagonal(block))[0]
        spaces.append(block)
    space = torch.linalg.qr(torch.cat(spaces, 1))[0]
    values, vectors = torch.linalg.eigh(space.mT @ off_diagonal(space))
    loss = values - torch.log1p(values.clamp_min(-1 + 1e-12))
    return _align(scale, space @ vectors[:, loss.topk(rank).indices])


def _align(scale: Tensor, directions: Tensor) -> Frame:
    """Make the frame with the span of these directions, on the coordinates in which they are largest."""
    index = directions.square().sum(1).topk(directions.shape[1]).indices.sort().values
    left, _, right = torch.linalg.svd(directions[index])
    return Frame(scale, directions @ (left @ right).mT, index)
