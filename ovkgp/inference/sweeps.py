"""Sweeps of block descent combined: the least point of the objective along the last sweep and a few before it.

A sweep moves the weights by d and the residual z − Ψθ by e = −Ψd. Their products ⟨d, d'⟩ = dᵀd' + eᵀe' = dᵀCd' are those of the
Hessian C = I + ΨᵀΨ and cost no product with Φ, so that sweeps can be made conjugate for the price of a few sums of vectors.
Blocks of random features of one kernel explain much the same: plain Gauss–Seidel needs several times as many sweeps.
"""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

SWEEPS_KEPT = 8
"""How many sweeps are combined with the next."""

ROUND_OFF = 1e-8
"""A sweep of which less than this is new says nothing any more: what is left of e is no longer −Ψd."""


class Sweeps:
    """The weights and the residual after each sweep, with every sweep made conjugate to those kept, and of the best length.

    Args:
        weights: θ at the start (r,).
        left: z − Ψθ there (n, p).

    Cost of a sweep: O((r + n p) `SWEEPS_KEPT`) time and memory.

    Example:
        >>> import torch
        >>> from ovkgp.inference.sweeps import Sweeps
        >>> Psi, z = torch.eye(2).double(), torch.ones(2, 1).double()
        >>> sweeps = Sweeps(torch.zeros(2).double(), z)
        >>> change = torch.full((2,), 0.1).double()  # too short a step: (I + ΨᵀΨ)⁻¹ Ψᵀz is ½
        >>> sweeps.add(slice(None), change, (Psi @ change).view(2, 1))
        >>> sweeps.combine()[0]
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, weights: Tensor, left: Tensor):
        self.weights, self.left = weights.clone(), left.clone()
        self.kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=SWEEPS_KEPT)
        self.moves = torch.zeros_like(weights), torch.zeros_like(left)

    def add(self, columns: Tensor | slice, change: Tensor, moved: Tensor) -> None:
        """A step on one block: what it adds to θ and to Ψθ."""
        self.moves[0][columns] += change
        self.moves[1].sub_(moved)

    def combine(self) -> tuple[Tensor, Tensor]:
        """The weights and the residual after a sweep, improved."""
        d, e = self.moves
        whole = math.sqrt(_dot(d, e, d, e))
        for _ in range(2):  # once more for what rounding left
            for old_d, old_e in self.kept:
                share = _dot(d, e, old_d, old_e)
                d, e = d - share * old_d, e - share * old_e
        size = math.sqrt(_dot(d, e, d, e))
        if size > ROUND_OFF * whole:
            d, e = d / size, e / size
            self.kept.append((d, e))
            length = -_dot(d, e, self.weights, self.left)  # minus the slope, dᵀθ − (Ψd)ᵀ(z − Ψθ)
            self.weights, self.left = self.weights + length * d, self.left + length * e
        else:
            self.kept.clear()
            self.weights, self.left = self.weights + self.moves[0], self.left + self.moves[1]
        self.moves = torch.zeros_like(d), torch.zeros_like(e)
        return self.weights.clone(), self.left.clone()


def _dot(d: Tensor, e: Tensor, other_d: Tensor, other_e: Tensor) -> float:
    return (d @ other_d + (e * other_e).sum()).item()
