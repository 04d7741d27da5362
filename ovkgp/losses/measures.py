"""Measures on tasks and the nodes and weights that stand for them (LT-70..75)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TaskMeasure:
    """∫ f dμ ≈ Σ_j η_j f(θ_j).

    Args:
        nodes: θ, (m,) shared by all rows, or (n, m), one set a row.
        weights: η ≥ 0 of the same shape, with sum 1 over the last axis.
    """

    nodes: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return self.nodes.shape[-1]


def gauss_legendre(num_nodes: int, low: float = 0.0, high: float = 1.0) -> TaskMeasure:
    """The Gauss–Legendre rule of the uniform measure on [low, high]."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return TaskMeasure(torch.from_numpy(low + (high - low) * (nodes + 1) / 2), torch.from_numpy(weights / 2))
