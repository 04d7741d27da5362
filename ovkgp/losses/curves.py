"""Robust and sparse losses of whole curves: ½‖·‖² of L²(η) convolved with a norm or a ball of L^p(η) (LT-57..62, BO-70..72).

Huber bounds how much a curve may pull: p = 2 the norm of its pull, p = 1 each of its values, p = ∞ their mean size. The insensitive
losses forgive: p = 2 curves of small norm, p = ∞ small values, p = 1 values of a small mean size.
In all cases the conjugate is ⟨a, y⟩ + ½‖a‖² + g*(a), and everything follows from the projection on one ball (`ovkgp.losses.balls`).
"""

from __future__ import annotations

import math
from abc import abstractmethod

from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.losses.balls import dual_order, norm, project, project_product, shrink
from ovkgp.losses.base import SLACK
from ovkgp.losses.integral import MeasuredLoss
from ovkgp.losses.measures import TaskMeasure


class ConvolvedLoss(MeasuredLoss):
    """½‖·‖² □ g of u − y, with g even (BO-70): its gradient is 1-Lipschitz."""

    def __init__(self, p: float, measure: TaskMeasure):
        super().__init__(measure)
        self.p, self.q = p, dual_order(p)

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value_and_derivative(u, y)[0]

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value_and_derivative(u, y)[1]

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.mean(a * (y + a / 2)) + self._dual_term(self._without_missing(a))

    @abstractmethod
    def _dual_term(self, a: Tensor) -> Tensor:
        """g*(a), (n,)."""

    def lipschitz(self) -> float:
        return 1.0

    def _error(self, u: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(u - y)

    def _pulled(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        """The step of ⟨·, y⟩ + ½‖·‖² from a."""
        return self._without_missing((a - step * y) / (1 + step))


class CurveHuber(ConvolvedLoss):
    """½‖·‖² □ κ‖·‖_p of u − y (LT-57, LT-58, BO-71).

    Its gradient is the projection of u − y on ‖·‖_q ≤ κ, 1/p + 1/q = 1. p = 1 is `IntegralLoss(Huber(kappa), measure)`; p = 2 is
    Huber's function of the norm ‖u − y‖ in L²(η).

    Args:
        kappa: κ > 0.
        p: 1, 2 or math.inf.
        measure: nodes and weights.

    Cost: O(n m) each method, O(n m log m) for p = ∞.

    Example:
        >>> import torch
        >>> from ovkgp.losses import CurveHuber, gauss_legendre
        >>> loss = CurveHuber(1.0, 2, gauss_legendre(5))
        >>> u = torch.tensor([[0.5], [3.0]], dtype=torch.float64).expand(2, 5)
        >>> loss.value(u, torch.zeros(2, 1, dtype=torch.float64))
        tensor([0.1250, 2.5000], dtype=torch.float64)
    """

    def __init__(self, kappa: float, p: float, measure: TaskMeasure):
        check_positive("kappa", kappa)
        super().__init__(p, measure)
        self.kappa = kappa

    def __repr__(self) -> str:
        return f"CurveHuber(kappa={self.kappa!r}, p={self.p!r}, {self.nodes.shape[-1]} nodes)"

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        d = self._error(u, y)
        slope = self._project(d)
        return self.mean(slope * (d - slope / 2)), slope

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """The derivative of the gradient along a direction (n, m), (n, m), almost everywhere."""
        direction = self._without_missing(direction)
        return project_product(self._error(u, y), direction, self.kappa, self.q, self.weights)

    def _dual_term(self, a: Tensor) -> Tensor:
        outside = norm(a, self.q, self.weights) > self.kappa * (1 + SLACK)
        return a.new_zeros(outside.shape).masked_fill(outside, math.inf)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return u - step * self._project(self._error(u, y) / (1 + step))

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._project(self._without_missing(a))

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return self._project(self._pulled(a, y, step))

    def _project(self, x: Tensor) -> Tensor:
        return project(x, self.kappa, self.q, self.weights)


class CurveInsensitive(ConvolvedLoss):
    """½ dist(u − y, {‖·‖_p ≤ ε})² in L²(η) (LT-59..61, BO-72).

    p = 2 is ½ max(‖u − y‖ − ε, 0)², p = ∞ is `IntegralLoss(EpsilonInsensitive(epsilon), measure)`; the ½ belongs there (LT-E-08).
    Dual variables are exact zeros: whole curves for p = 2, single values for p = ∞.

    Args:
        epsilon: ε ≥ 0.
        p: 1, 2 or math.inf.
        measure: nodes and weights.

    Cost: O(n m) each method, O(n m log m) for p = 1.

    Example:
        >>> import torch
        >>> from ovkgp.losses import CurveInsensitive, gauss_legendre
        >>> loss = CurveInsensitive(1.0, 2, gauss_legendre(5))
        >>> u = torch.tensor([[0.5], [3.0]], dtype=torch.float64).expand(2, 5)
        >>> loss.value(u, torch.zeros(2, 1, dtype=torch.float64))
        tensor([0.0000, 2.0000], dtype=torch.float64)
    """

    def __init__(self, epsilon: float, p: float, measure: TaskMeasure):
        check_positive("epsilon", epsilon, or_zero=True)
        super().__init__(p, measure)
        self.epsilon = epsilon

    def __repr__(self) -> str:
        return f"CurveInsensitive(epsilon={self.epsilon!r}, p={self.p!r}, {self.nodes.shape[-1]} nodes)"

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        slope = self._outside(self._error(u, y))
        return self.mean(slope.square() / 2), slope

    def curvature_product(self, u: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """The derivative of the gradient along a direction (n, m), (n, m), almost everywhere."""
        direction = self._without_missing(direction)
        return direction - project_product(self._error(u, y), direction, self.epsilon, self.p, self.weights)

    def _dual_term(self, a: Tensor) -> Tensor:
        return self.epsilon * norm(a, self.q, self.weights)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return u - step / (1 + step) * self._outside(self._error(u, y))

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self._without_missing(a)

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        return shrink(self._pulled(a, y, step), step * self.epsilon / (1 + step), self.q, self.weights)

    def _outside(self, d: Tensor) -> Tensor:
        return shrink(d, self.epsilon, self.q, self.weights)
