"""A loss summed over a continuum of tasks: L(u, y) = ∫ ℓ(θ, u(θ), y(θ)) dμ(θ) ≈ Σ_j η_j ℓ(θ_j, u_j, y_j) (LT-07)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.base import CurveLoss, Loss
from ovkgp.losses.measures import TaskMeasure


class IntegralLoss(CurveLoss):
    """∫ ℓ dμ on the nodes of a measure. Everything but the value is entry by entry: conjugate of integral = integral of conjugate (LT-87)."""

    def __init__(self, loss: Loss, measure: TaskMeasure):
        self.loss, self.measure = loss, measure

    @property
    def nodes(self) -> Tensor:
        return self.measure.nodes

    @property
    def weights(self) -> Tensor:
        return self.measure.weights

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self._sum(self.loss.value(u, y, self.nodes))

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self.loss.derivative(u, y, self.nodes)

    def curvature(self, u: Tensor, y: Tensor) -> Tensor:
        """ℓ'' at each node, (n, m)."""
        return self.loss.curvature(u, y, self.nodes)

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self._sum(self.loss.conjugate(a, y, self.nodes))

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self.loss.prox(u, y, self.nodes, step)

    def _sum(self, values: Tensor) -> Tensor:
        # a node without weight costs nothing, even where its cost is infinite or its target is missing
        return torch.where(self.weights > 0, self.weights * values, 0.0).sum(-1)
