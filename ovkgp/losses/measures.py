"""Measures on tasks: finitely many nodes with weights, in place of an integral, ∫ f dμ ≈ Σ_j η_j f(θ_j) (LT-70..75).

The rules that choose them are in `ovkgp.losses.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError

SUM_ERROR = 1e-6
"""How far from 1 weights may sum by rounding of the caller's; they are then divided by their sum."""


@dataclass(frozen=True)
class TaskMeasure:
    """A probability measure on nodes.

    Args:
        nodes: θ, (m,) shared by all rows, or (n, m), one set a row. Anything that torch can read; kept as float64.
        weights: η ≥ 0 of the same shape, with sum 1 over the last axis; None weighs all nodes alike.

    Shared nodes keep every matrix a Kronecker product; nodes of their own for each row are for samples of the tasks.

    Example:
        >>> from ovkgp.losses import TaskMeasure
        >>> len(TaskMeasure([0.1, 0.5, 0.9])), TaskMeasure([0.25, 0.75]).weights.tolist()
        (3, [0.5, 0.5])
    """

    nodes: Tensor
    weights: Tensor | None = None

    def __post_init__(self):
        nodes = torch.as_tensor(self.nodes, dtype=torch.float64)
        if nodes.dim() not in (1, 2) or nodes.numel() == 0 or not bool(torch.isfinite(nodes).all()):
            raise InputError(f"nodes must be finite, of shape (m,) or (n, m), and not empty; got {tuple(nodes.shape)}.")
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "weights", self._probabilities())

    def _probabilities(self) -> Tensor:
        if self.weights is None:
            return torch.full_like(self.nodes, 1 / len(self))
        weights = torch.as_tensor(self.weights, dtype=torch.float64)
        if weights.shape != self.nodes.shape:
            raise InputError(
                f"nodes are {tuple(self.nodes.shape)}, their weights {tuple(weights.shape)}: give one each."
            )
        total = weights.sum(-1, keepdim=True)
        if not bool((weights >= 0).all()):
            raise InputError("weights must be 0 or more: with a negative one a loss would no longer be convex.")
        if not bool(((total - 1).abs() <= SUM_ERROR).all()):
            raise InputError(f"weights must sum to 1, got {total.flatten()[0].item():.6g}: divide them by their sum.")
        return weights / total

    def __len__(self) -> int:
        """m."""
        return self.nodes.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == 1

    def integral(self, values: Tensor) -> Tensor:
        """Σ_j η_j f_j over the last axis of values (…, m)."""
        return (self.weights * values).sum(-1)


@dataclass(frozen=True)
class Coordinates:
    """In place of a measure: m coordinates in an orthonormal basis, each with weight 1, so that ⟨a, b⟩ = Σ_j a_j b_j (LT-89).

    Only losses that see a curve through its norm, p = 2, mean the same on coordinates as on curves.

    Example:
        >>> from ovkgp.losses.measures import Coordinates
        >>> Coordinates(3).weights.tolist()
        [1.0, 1.0, 1.0]
    """

    num_coordinates: int
    is_shared = True

    def __len__(self) -> int:
        return self.num_coordinates

    @property
    def nodes(self) -> Tensor:
        """0, 1, …: the coordinates' numbers."""
        return torch.arange(self.num_coordinates, dtype=torch.float64)

    @property
    def weights(self) -> Tensor:
        return torch.ones(self.num_coordinates, dtype=torch.float64)
