"""Gaussian families over the weights, q(w) = N(μ, S): full, mean-field in an eigenbasis, and what lies between.

In the coordinates of an orthogonal basis, S⁻¹ is a dense block on `rank` of them and diagonal on the others. The block may
be everything (full) or nothing (mean field); families of growing rank contain each other. For a decomposable map with
complete Gaussian outputs the optimal S is diagonal in the basis U ⊗ V of BT-76, so that mean field is exact there (ID-4).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError, OptionError
from ovkgp.inference.dense import inverse_of
from ovkgp.inference.variational_rows import Basis, Rows
from ovkgp.kernels.checks import whole_number

FAMILIES = ("auto", "full", "low_rank", "mean_field")
FULL_UP_TO = 1500
"""The most weights for which the family "auto" is "full"; beyond, it is "mean_field"."""


@dataclass(frozen=True, eq=False)
class WeightGaussian:
    """q(w) = N(μ, S) in an orthogonal basis of the weights.

    Args:
        mean: μ (r,), in the basis.
        precision: (r,) the diagonal of S⁻¹; not looked at on `index`.
        chol: the Cholesky factor (k, k) of the block of S⁻¹ on `index`.
        index: the coordinates (k,) of the block.
        basis: see `variational_rows.Basis`.

    Cost: O(r + k² + basis) memory.

    Example:
        >>> from ovkgp.inference.variational_families import prior_weights
        >>> q = prior_weights(6, rank=2)
        >>> q.num_weights, q.rank, round(float(q.divergence), 6)
        (6, 2, 0.0)
    """

    mean: Tensor
    precision: Tensor
    chol: Tensor
    index: Tensor
    basis: Basis = field(default=())

    @property
    def num_weights(self) -> int:
        """r."""
        return len(self.mean)

    @property
    def rank(self) -> int:
        """k, the size of the dense block."""
        return len(self.index)

    @property
    def is_full(self) -> bool:
        return self.rank == self.num_weights

    @cached_property
    def block(self) -> Tensor:
        """The block (k, k) of S."""
        return inverse_of(self.chol) if self.rank else self.chol  # LAPACK takes no empty matrix

    @cached_property
    def variances(self) -> Tensor:
        """The diagonal (r,) of S outside the block, zero on it."""
        return (1 / self.precision).index_fill(0, self.index, 0.0)

    @cached_property
    def divergence(self) -> Tensor:
        """KL(q ‖ N(0, I)) = ½ (tr S + μᵀμ − r + log det S⁻¹)."""
        trace = self.block.diagonal().sum() + self.variances.sum()
        logs = self.precision.log().index_fill(0, self.index, 0.0).sum() + 2 * self.chol.diagonal().log().sum()
        return (trace + self.mean.square().sum() - self.num_weights + logs) / 2

    def marginals(self, rows: Rows, form: str) -> tuple[Tensor, Tensor]:
        """The mean (n, p) of Φ w and its covariance in the form "diag" or "output"; `rows` are in the basis of q.

        Differentiable in the rows. O(n M q + n p k²) for Kronecker rows.
        """
        mean = rows.times(self.mean)
        if self.is_full:
            return mean, rows.quadratic(self.block, form)
        covariance = rows.diagonal_quadratic(self.variances, form)
        if self.rank:
            covariance = covariance + rows.columns(self.index).quadratic(self.block, form)
        return mean, covariance

    def joint_covariance(self, rows: Rows) -> Tensor:
        """Φ S Φᵀ (n·p, n·p)."""
        features = rows.dense().flatten(0, 1)
        columns = features[:, self.index]
        return columns @ self.block @ columns.mT + (features * self.variances) @ features.mT

    def solve(self, gradient: Tensor) -> Tensor:
        """S v of a vector (r,)."""
        found = gradient / self.precision
        if self.rank:
            found[self.index] = torch.cholesky_solve(gradient[self.index].unsqueeze(-1), self.chol).squeeze(-1)
        return found

    def toward(self, diagonal: Tensor, block: Tensor, share: float) -> WeightGaussian:
        """The precision moved to (1 − ρ) S⁻¹ + ρ target, with the same mean.

        Args:
            diagonal: the target's (r,).
            block: its block (k, k).
            share: ρ.

        Raises:
            FactorisationError: that is not positive definite.
        """
        precision = (1 - share) * self.precision + share * diagonal
        mixed = share * block if share == 1 else torch.lerp(self.chol @ self.chol.mT, block, share)
        chol, info = torch.linalg.cholesky_ex((mixed + mixed.mT) / 2)
        precision = precision.index_fill(0, self.index, 1.0)
        if int(info) or not bool((precision > 0).all() & torch.isfinite(chol.diagonal()).all()):
            raise FactorisationError("a natural step left no positive definite precision: take a smaller one.")
        return replace(self, precision=precision, chol=chol)

    def moved(self, step: Tensor) -> WeightGaussian:
        """The same with the mean moved by a step (r,)."""
        return replace(self, mean=self.mean + step)

    def draw(self, k: int, generator: torch.Generator) -> Tensor:
        """k draws (r, k), in the basis. O(k r + k rank²)."""
        scores = torch.randn(self.num_weights, k, generator=generator, dtype=torch.float64).to(self.mean.device)
        draws = scores * self.precision.rsqrt().unsqueeze(-1)
        draws[self.index] = torch.linalg.solve_triangular(self.chol.mT, scores[self.index], upper=True)
        return self.mean.unsqueeze(-1) + draws

    def turned(self, basis: Basis, order: Tensor) -> WeightGaussian:
        """The nearest member of the family in another basis: the mean is kept, of the precision only the diagonal.

        Args:
            basis: of the same kind as this one, or any if this one is ().
            order: (r,) numbers; the block is on the coordinates where they are largest.
        """
        index = order.topk(self.rank).indices.sort().values if self.rank else self.index
        mean, precision = self.mean, self.precision
        if self.rank:
            precision = precision.index_copy(0, self.index, (self.chol @ self.chol.mT).diagonal())
        turns = [new.mT @ old for new, old in zip(basis, self.basis or _identities(basis), strict=True)]
        mean, precision = _apply(turns, mean), _apply([turn.square() for turn in turns], precision)
        return replace(
            self,
            mean=mean,
            precision=precision,
            chol=torch.diag_embed(precision[index].sqrt()),
            index=index,
            basis=basis,
        )

    def tensors(self) -> dict[str, Tensor]:
        """All that `from_tensors` needs, to be stored bit for bit."""
        own = {name: getattr(self, name) for name in ("mean", "precision", "chol", "index")}
        return {**own, **{f"basis.{i}": part for i, part in enumerate(self.basis)}}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> WeightGaussian:
        """The inverse of `tensors`."""
        basis = tuple(tensors[name] for name in ("basis.0", "basis.1") if name in tensors)
        return cls(*(tensors[name] for name in ("mean", "precision", "chol", "index")), basis)


def prior_weights(num_weights: int, rank: int, device: torch.device | None = None) -> WeightGaussian:
    """q = N(0, I) with a dense block on the first `rank` coordinates of the given basis."""
    ones = torch.ones(num_weights, dtype=torch.float64, device=device)
    eye = torch.eye(rank, dtype=torch.float64, device=device)
    return WeightGaussian(0 * ones, ones, eye, torch.arange(rank, device=device))


def family_rank(family: str, rank: int | None, num_weights: int) -> int:
    """The size of the dense block of a family: r for "full", 0 for "mean_field", `rank` (at most r) for "low_rank"."""
    require_family(family, rank)
    if family == "auto":
        family = "full" if num_weights <= FULL_UP_TO else "mean_field"
    return {"full": num_weights, "mean_field": 0}.get(family, min(rank or 0, num_weights))


def require_family(family: str, rank: int | None) -> None:
    """Refuse a family that there is not, and a rank where it means nothing."""
    if family not in FAMILIES:
        raise OptionError(f"family must be one of {', '.join(map(repr, FAMILIES))}, got {family!r}.")
    if family == "low_rank":
        whole_number("rank", 0 if rank is None else rank)
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
