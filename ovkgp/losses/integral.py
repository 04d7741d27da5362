"""A loss summed over a continuum of tasks: L(u, y) = ∫ ℓ(θ, u(θ), y(θ)) dμ(θ) ≈ Σ_j η_j ℓ(θ_j, u_j, y_j) (LT-07)."""

from __future__ import annotations

from torch import Tensor

from ovkgp.losses.base import Loss
from ovkgp.losses.measured import MeasuredLoss
from ovkgp.losses.measures import TaskMeasure


class IntegralLoss(MeasuredLoss):
    """∫ ℓ dμ on the nodes of a measure. In its inner product everything but the sums is entry by entry (LT-87).

    Args:
        loss: ℓ.
        measure: nodes θ (m,) or (n, m), and their weights η; an entry of weight 0 is missing.

    Cost: O(n m) time and memory, each method.

    Example:
        >>> import torch
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(20))
        >>> u, y = torch.zeros(2, 20, dtype=torch.float64), torch.tensor([[1.0], [-3.0]], dtype=torch.float64)
        >>> loss.value(u, y)  # ∫ θ dθ = 1/2 a unit of error
        tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    def __init__(self, loss: Loss, measure: TaskMeasure):
        loss.require_tasks(measure.nodes)
        super().__init__(measure)
        self.loss = loss

    def __repr__(self) -> str:
        return f"IntegralLoss({self.loss!r}, {self.nodes.shape[-1]} nodes)"

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self.mean(self.loss.value(u, y, self.nodes))

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(self.loss.derivative(u, y, self.nodes))

    def curvature(self, u: Tensor, y: Tensor) -> Tensor:
        """ℓ'' at each node, (n, m)."""
        return self._without_missing(self.loss.curvature(u, y, self.nodes))

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """The derivative of the gradient along a direction (n, m), (n, m)."""
        return self.curvature(u, y) * direction

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.mean(self.loss.conjugate(a, y, self.nodes))

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._keep_missing(self.loss.prox(u, y, self.nodes, step), u)

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(self.loss.nearest_slope(a, y, self.nodes))

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._without_missing(self.loss.conjugate_prox(a, y, self.nodes, step))

    def lipschitz(self) -> float:
        return self.loss.lipschitz(self.nodes).max().item()

    def require_targets(self, y: Tensor) -> None:
        self.loss.require_targets(self._present(y))
