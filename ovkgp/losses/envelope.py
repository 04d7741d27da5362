"""Moreau envelopes: any convex loss made smooth, e_κ(u) = min_v L(v) + ‖v − u‖²/(2κ) (LT-11).

The gradient is (u − prox_{κL}(u))/κ, the conjugate gains κ/2 ‖a‖², and every slope of the envelope is a slope of L: the dual
variable of the smoothed problem is feasible for the first one.
"""

from __future__ import annotations

from torch import Tensor

from ovkgp.losses.base import CurveLoss


class CurveEnvelope(CurveLoss):
    """e_κ of a loss between curves; L − κ/2 · sup‖slope‖² ≤ e_κ ≤ L."""

    def __init__(self, loss: CurveLoss, kappa: float):
        self.loss, self.kappa = loss, kappa

    @property
    def nodes(self) -> Tensor:
        return self.loss.nodes

    @property
    def weights(self) -> Tensor:
        return self.loss.weights

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        nearest = self.loss.prox(u, y, self.kappa)
        return self.loss.value(nearest, y) + (self.weights * (nearest - u) ** 2).sum(-1) / (2 * self.kappa)

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return (u - self.loss.prox(u, y, self.kappa)) / self.kappa

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.loss.conjugate(a, y) + self.kappa / 2 * (self.weights * a**2).sum(-1)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        whole = step + self.kappa
        return u + step / whole * (self.loss.prox(u, y, whole) - u)
