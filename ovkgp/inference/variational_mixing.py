"""Anderson's mixing of natural steps: where whole steps overshoot or creep, a mixture of the last targets is far nearer.

A natural step goes from q_j toward a target t_j = (S⁻¹, μ). The mixture is Σ_j α_j t_j, Σ α_j = 1, with the α that would make the
remainder Σ_j α_j (t_j − q_j) smallest in the Fisher metric of q. It converges in tens of steps where plain ones take hundreds (labels
that can be told apart without error, counts of very different size).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.inference.variational_families import WeightGaussian

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
        >>> from ovkgp.inference.variational_families import prior_weights
        >>> from ovkgp.inference.variational_mixing import Mixing, Target
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
            FactorisationError: its precision is not positive definite.
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
