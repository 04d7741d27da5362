"""Gaussian families over the weights, q(w) = N(μ, S): full, mean-field in an eigenbasis, and what lies between.

Mean field has a diagonal S⁻¹ in an orthogonal basis. For a decomposable map with complete Gaussian outputs the optimal S is
diagonal in the basis U ⊗ V of BT-76, so that it is exact there (ID-4). Between it and the full family, S⁻¹ is a dense block on
`rank` directions and diagonal on the others, in the coordinates of a `Frame`: those directions that a diagonal misses most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.algebra.dense import inverse_of
from ovkgp.inference.variational.rows import Basis, DenseRows, Rows

DEPTH, SPARE = 3, 5
"""Powers of R, and vectors beyond the rank, that span the space in which directions are sought."""


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates z of the weights x = D^{-½} H z.

    Args:
        scale: D^{-½} (r,).
        directions: V (r, k), orthonormal, with V[index] symmetric and positive semi-definite.
        index: the coordinates (k,) of z that run along −V.

    Cost: O(r k) memory, and time for each vector.

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational.families import unit_frame
        >>> frame = unit_frame(num_weights=5, rank=2)
        >>> frame.outward(torch.ones(5).double()).tolist()
        [-1.0, -1.0, 1.0, 1.0, 1.0]
    """

    scale: Tensor
    directions: Tensor
    index: Tensor

    @cached_property
    def normals(self) -> Tensor:
        """Z (r, k)."""
        units = torch.zeros_like(self.directions)
        units[self.index, torch.arange(len(self.index), device=units.device)] = 1.0
        return self.directions + units

    @cached_property
    def mixed(self) -> Tensor:
        """Z (I + V₁)⁻¹ (r, k)."""
        return torch.linalg.solve(self.normals[self.index], self.normals, left=False)

    @cached_property
    def probes(self) -> Tensor:
        """D^{-½} [Z, V] (r, 2k): a symmetric matrix is restricted by what it makes of these."""
        return self.scale.unsqueeze(-1) * torch.cat([self.normals, self.directions], 1)

    @cached_property
    def prior(self) -> tuple[Tensor, Tensor]:
        """The identity, restricted."""
        return self.restricted(torch.ones_like(self.scale), self.probes)

    def reflected(self, vectors: Tensor) -> Tensor:
        """H v of vectors (r, …)."""
        return vectors - self.mixed @ (self.normals.mT @ vectors)

    def outward(self, z: Tensor) -> Tensor:
        """x (r, …) of z."""
        return (self.scale * self.reflected(z).mT).mT if z.dim() > 1 else self.scale * self.reflected(z)

    def inward(self, x: Tensor) -> Tensor:
        """z (r,) of x."""
        return self.reflected(x / self.scale)

    def pulled(self, gradient: Tensor) -> Tensor:
        """The gradient (r,) in z of a function with this gradient in x."""
        return self.reflected(self.scale * gradient)

    def restricted(self, diagonal: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
        """A symmetric M in the coordinates z: its diagonal (r,), of use outside `index`, and its block (k, k) on it. Linear in M.

        Args:
            diagonal: of M (r,).
            products: M times `probes` (r, 2k).
        """
        k = len(self.index)
        by_normals, by_directions = products[:, :k], products[:, k:]
        inner = self.probes[:, :k].mT @ by_normals
        cross = 2 * self.scale.unsqueeze(-1) * by_normals - self.mixed @ inner
        return self.scale.square() * diagonal - (self.mixed * cross).sum(1), self.probes[:, k:].mT @ by_directions

    def spread(self, diagonal: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """H (diag + block) H of a diagonal (r,) that is zero on `index` and a block (k, k), as diag + F M Fᵀ.

        Returns:
            the diagonal (r,), F (r, 3k) and M (3k, 3k).
        """
        weighted = diagonal.unsqueeze(-1) * self.normals
        eye = torch.eye(len(block)).to(block)
        zero = torch.zeros_like(block)
        core = [[self.normals.mT @ weighted, -eye, zero], [-eye, zero, zero], [zero, zero, block]]
        factor = torch.cat([self.mixed, weighted, self.directions], 1)
        return diagonal, factor, torch.cat([torch.cat(row, 1) for row in core])


def unit_frame(num_weights: int, rank: int, device: torch.device | None = None) -> Frame:
    """The first `rank` coordinates set apart as they are."""
    eye = torch.eye(num_weights, rank, dtype=torch.float64, device=device)
    return Frame(torch.ones(num_weights, dtype=torch.float64, device=device), eye, torch.arange(rank, device=device))


def leading_frame(times: Callable[[Tensor], Tensor], diagonal: Tensor, rank: int) -> Frame:
    """The `rank` directions along which a precision C differs most from its diagonal: those of the largest λ − 1 − log λ.

    Args:
        times: C V of columns V (r, c).
        diagonal: that of C (r,).
        rank: k.

    The eigenvectors are those in a block Krylov space of random vectors (of fixed seed): any V is valid, and a good one near enough.

    Cost: 6 (k + 5) products with C and O(r k²).

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational.families import leading_frame
        >>> C = torch.eye(6).double() + 0.9 * torch.ones(6, 6).double()
        >>> leading_frame(lambda V: C @ V, C.diagonal(), rank=1).directions.abs().round(decimals=3).flatten().tolist()
        [0.408, 0.408, 0.408, 0.408, 0.408, 0.408]
    """
    scale = diagonal.rsqrt()
    beside = lambda V: scale.unsqueeze(-1) * times(scale.unsqueeze(-1) * V) - V  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(len(scale), rank + SPARE, generator=generator, dtype=torch.float64).to(scale)
    spaces = []
    for _ in range(DEPTH):
        block = torch.linalg.qr(beside(block))[0]
        spaces.append(block)
    space = torch.linalg.qr(torch.cat(spaces, 1))[0]
    values, vectors = torch.linalg.eigh(space.mT @ beside(space))
    loss = values - torch.log1p(values.clamp_min(-1 + 1e-12))
    return _aligned(scale, space @ vectors[:, loss.topk(rank).indices])


def _aligned(scale: Tensor, directions: Tensor) -> Frame:
    """The frame with these directions, turned among themselves, on the coordinates that they have most of."""
    index = directions.square().sum(1).topk(directions.shape[1]).indices.sort().values
    left, _, right = torch.linalg.svd(directions[index])
    return Frame(scale, directions @ (left @ right).mT, index)


FAMILIES = ("auto", "full", "low_rank", "mean_field")
FRAME = ("scale", "directions", "index")
FULL_UP_TO = 1500
"""The most weights for which the family "auto" is "full"; beyond, it is "mean_field"."""


@dataclass(frozen=True, eq=False)
class WeightGaussian:
    """q(w) = N(μ, S) in an orthogonal basis of the weights.

    Args:
        mean: μ (r,), in the basis.
        precision: (r,) the diagonal of S⁻¹, in the coordinates of the frame; not looked at on the block.
        chol: the Cholesky factor (k, k) of the block of S⁻¹.
        basis: see `variational_rows.Basis`.
        frame: where 0 < k < r, the coordinates in which S⁻¹ is a block and a diagonal; None where there is only one of these.

    Cost: O(r k + k² + basis) memory.

    Example:
        >>> from ovkgp.inference.variational.families import prior_weights
        >>> q = prior_weights(6, rank=2)
        >>> q.num_weights, q.rank, round(float(q.divergence), 6)
        (6, 2, 0.0)
    """

    mean: Tensor
    precision: Tensor
    chol: Tensor
    basis: Basis = field(default=())
    frame: Frame | None = None

    @property
    def num_weights(self) -> int:
        """r."""
        return len(self.mean)

    @property
    def rank(self) -> int:
        """k, the size of the dense block."""
        return len(self.chol)

    @property
    def is_full(self) -> bool:
        return self.rank == self.num_weights

    @cached_property
    def index(self) -> Tensor:
        """The coordinates (k,) of the block."""
        return torch.arange(self.rank, device=self.mean.device) if self.frame is None else self.frame.index

    @cached_property
    def block(self) -> Tensor:
        """The block (k, k) of S."""
        return inverse_of(self.chol) if self.rank else self.chol  # LAPACK takes no empty matrix

    @cached_property
    def variances(self) -> Tensor:
        """The diagonal (r,) of S outside the block, zero on it."""
        return (1 / self.precision).index_fill(0, self.index, 0.0)

    @property
    def prior(self) -> tuple[Tensor, Tensor]:
        """The precision of N(0, I): its diagonal (r,) and its block (k, k)."""
        if self.frame is not None:
            return self.frame.prior
        return torch.ones_like(self.precision), torch.eye(self.rank).to(self.chol)

    @cached_property
    def spread(self) -> tuple[Tensor, Tensor, Tensor]:
        """S as diag(v) + F M Fᵀ, where there is a frame: v (r,), F (r, 3k) and M (3k, 3k)."""
        variances, factor, core = self.frame.spread(self.variances, self.block)
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
        """The mean (n, p) of Φ w and its covariance in the form "diag" or "output"; `rows` are in the basis of q.

        Differentiable in the rows. O(n M q k + n p k²) for Kronecker rows.
        """
        mean = rows.times(self.mean)
        if self.is_full:
            return mean, rows.quadratic(self.block, form)
        if self.frame is None:
            return mean, rows.diagonal_quadratic(self.variances, form)
        variances, factor, core = self.spread
        return mean, rows.diagonal_quadratic(variances, form) + DenseRows(rows.times(factor)).quadratic(core, form)

    def joint_covariance(self, rows: Rows) -> Tensor:
        """Φ S Φᵀ (n·p, n·p)."""
        features = rows.dense().flatten(0, 1)
        if self.is_full:
            return features @ self.block @ features.mT
        if self.frame is None:
            return (features * self.variances) @ features.mT
        variances, factor, core = self.spread
        columns = features @ factor
        return (features * variances) @ features.mT + columns @ core @ columns.mT

    def solve(self, gradient: Tensor) -> Tensor:
        """S v of a vector (r,)."""
        gradient = gradient if self.frame is None else self.frame.pulled(gradient)
        found = gradient / self.precision
        if self.rank:
            found[self.index] = torch.cholesky_solve(gradient[self.index].unsqueeze(-1), self.chol).squeeze(-1)
        return found if self.frame is None else self.frame.outward(found)

    def toward(self, diagonal: Tensor, block: Tensor, share: float) -> WeightGaussian:
        """The precision moved to (1 − ρ) S⁻¹ + ρ target, with the same mean.

        Args:
            diagonal: the target's (r,).
            block: its block (k, k).
            share: ρ.

        Raises:
            FactorizationError: that is not positive definite.
        """
        precision = (1 - share) * self.precision + share * diagonal
        mixed = share * block if share == 1 else torch.lerp(self.chol @ self.chol.mT, block, share)
        chol, info = torch.linalg.cholesky_ex((mixed + mixed.mT) / 2)
        precision = precision.index_fill(0, self.index, 1.0)
        if int(info) or not bool((precision > 0).all() & torch.isfinite(chol.diagonal()).all()):
            raise FactorizationError("a natural step left no positive definite precision: take a smaller one.")
        return replace(self, precision=precision, chol=chol)

    def moved(self, step: Tensor) -> WeightGaussian:
        """The same with the mean moved by a step (r,)."""
        return replace(self, mean=self.mean + step)

    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """k draws (r, k), in the basis. O(k r rank)."""
        scores = torch.randn(self.num_weights, k, generator=generator, dtype=torch.float64).to(self.mean.device)
        draws = scores * self.precision.rsqrt().unsqueeze(-1)
        draws[self.index] = torch.linalg.solve_triangular(self.chol.mT, scores[self.index], upper=True)
        return self.mean.unsqueeze(-1) + (draws if self.frame is None else self.frame.outward(draws))

    def rotated(self, basis: Basis, frame: Frame | None = None) -> WeightGaussian:
        """The nearest member of the family in another basis: the mean is kept, of the precision only the diagonal.

        Args:
            basis: of the same kind as this one, or any if this one is ().
            frame: the directions of the block in that basis, where there is one.
        """
        turns = [new.mT @ old for new, old in zip(basis, self.basis or _identities(basis), strict=True)]
        mean, precision = _apply(turns, self.mean), _apply([turn.square() for turn in turns], self._diagonal())
        if frame is None:
            return replace(self, mean=mean, precision=precision, basis=basis)
        on_diagonal, on_block = frame.restricted(precision, precision.unsqueeze(-1) * frame.probes)
        return WeightGaussian(mean, on_diagonal, torch.linalg.cholesky(on_block), basis, frame)

    def _diagonal(self) -> Tensor:
        """The diagonal (r,) of S⁻¹ in the basis."""
        if self.frame is None:
            return self.precision
        outside = self.precision.index_fill(0, self.index, 0.0)
        diagonal, factor, core = self.frame.spread(outside, self.chol @ self.chol.mT)
        return (diagonal + ((factor @ core) * factor).sum(1)) / self.frame.scale.square()

    def tensors(self) -> dict[str, Tensor]:
        """All that `from_tensors` needs, to be stored bit for bit."""
        own = {name: getattr(self, name) for name in ("mean", "precision", "chol")}
        parts = {f"basis.{i}": part for i, part in enumerate(self.basis)}
        return {**own, **parts, **({} if self.frame is None else {f"frame.{n}": getattr(self.frame, n) for n in FRAME})}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> WeightGaussian:
        """The inverse of `tensors`."""
        basis = tuple(tensors[name] for name in ("basis.0", "basis.1") if name in tensors)
        frame = Frame(*(tensors[f"frame.{name}"] for name in FRAME)) if "frame.scale" in tensors else None
        return cls(*(tensors[name] for name in ("mean", "precision", "chol")), basis, frame)


def prior_weights(num_weights: int, rank: int, device: torch.device | None = None) -> WeightGaussian:
    """q = N(0, I) with a dense block on the first `rank` coordinates of the given basis."""
    ones = torch.ones(num_weights, dtype=torch.float64, device=device)
    eye = torch.eye(rank, dtype=torch.float64, device=device)
    frame = unit_frame(num_weights, rank, device) if 0 < rank < num_weights else None
    return WeightGaussian(0 * ones, ones, eye, frame=frame)


def family_rank(family: str, rank: int | None, num_weights: int) -> int:
    """The size of the dense block of a family: r for "full", 0 for "mean_field", `rank` (at most r) for "low_rank"."""
    check_family(family, rank)
    if family == "auto":
        family = "full" if num_weights <= FULL_UP_TO else "mean_field"
    return {"full": num_weights, "mean_field": 0}.get(family, min(rank or 0, num_weights))


def check_family(family: str, rank: int | None) -> None:
    """Refuse a family that there is not, and a rank where it means nothing."""
    if family not in FAMILIES:
        raise OptionError(f"family must be one of {', '.join(map(repr, FAMILIES))}, got {family!r}.")
    if family == "low_rank":
        check_integer("rank", 0 if rank is None else rank)
    elif rank is not None:
        raise OptionError(f'rank belongs to family="low_rank"; got rank={rank} with family={family!r}.')


def _identities(basis: Basis) -> Basis:
    return tuple(torch.eye(len(part), dtype=part.dtype, device=part.device) for part in basis)


def _apply(turns: list[Tensor], vector: Tensor) -> Tensor:
    """A v, or (A ⊗ B) v, of a vector (r,)."""
    if len(turns) == 1:
        return turns[0] @ vector
    left, right = turns
    return (left @ vector.unflatten(0, (-1, len(right))) @ right.mT).flatten()
