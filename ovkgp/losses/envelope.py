"""Moreau envelopes: any convex loss made smooth, e_κ(u) = min_v L(v) + ‖v − u‖²/(2κ) (LT-11).

The gradient is (u − prox_{κL}(u))/κ = prox_{L*/κ}(u/κ), the conjugate gains κ/2 ‖a‖², and every slope of the envelope is a slope of
L: the dual variable of the smoothed problem is feasible for the first one. L − κ/2 · sup‖slope‖² ≤ e_κ ≤ L.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.losses.base import CurveLoss, Loss

_SAME_SLOPE = 1e-9


class Envelope(Loss):
    """e_κ of a loss in one number.

    Args:
        loss: ℓ.
        kappa: κ > 0, in the units of u² over those of ℓ.

    Cost: that of the `conjugate_prox` of ℓ.

    Example:
        >>> import torch
        >>> from ovkgp.losses import CostSensitiveHinge, Envelope
        >>> smooth = Envelope(CostSensitiveHinge(costs="unit"), kappa=0.5)
        >>> smooth.value(torch.tensor([[0.0, 0.8]]), torch.ones(1, 1), torch.tensor([0.8]))
        tensor([[0.6400, 0.0400]])
    """

    def __init__(self, loss: Loss, kappa: float):
        check_positive("kappa", kappa)
        self.loss, self.kappa = loss, kappa

    @property
    def name(self) -> str:
        return f"{self.loss.name}_envelope"

    @property
    def slope_scale(self) -> float:
        return self.loss.slope_scale

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        # sup_a a u − ℓ*(a) − κ/2 a², reached at the slope: autograd need not look into that
        slope = self.derivative(u.detach(), y, tasks)
        return slope * (u - self.kappa / 2 * slope) - self.loss.finite_conjugate(slope, y, tasks)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.conjugate_prox(u / self.kappa, y, tasks, 1 / self.kappa)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        slope = self.derivative(u, y, tasks)
        nearest = u - self.kappa * slope
        inner = self.loss.curvature(nearest, y, tasks)
        # at a kink of ℓ the nearest point stays while u moves: the slope is then none of the two beside the kink
        smooth = (slope - self.loss.derivative(nearest, y, tasks)).abs() <= _SAME_SLOPE * (1 + inner)
        return torch.where(smooth, inner / (1 + self.kappa * inner), 1 / self.kappa)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.finite_conjugate(a, y, tasks) + self.kappa / 2 * a.square()

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        whole = step + self.kappa
        return u + step / whole * (self.loss.prox(u, y, tasks, whole) - u)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float | Tensor, float | Tensor] | None:
        return self.loss.slope_range(y, tasks)

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.nearest_slope(a, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        part = 1 / (1 + step * self.kappa)
        return self.loss.conjugate_prox(part * a, y, tasks, part * step)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return 1 / (1 / self.loss.lipschitz(tasks) + self.kappa)

    def check_tasks(self, tasks: Tensor) -> None:
        self.loss.check_tasks(tasks)

    def check_targets(self, y: Tensor) -> None:
        self.loss.check_targets(y)


class CurveEnvelope(CurveLoss):
    """e_κ of a loss between curves.

    Args:
        loss: L.
        kappa: κ > 0.

    Of an `IntegralLoss` this is the integral of the `Envelope` of ℓ, which knows its curvature as well.

    Cost: that of the `conjugate_prox` and `conjugate` of L.

    Example:
        >>> import torch
        >>> from ovkgp.losses import CurveEnvelope, IntegralLoss, Pinball, gauss_legendre
        >>> smooth = CurveEnvelope(IntegralLoss(Pinball(), gauss_legendre(20)), kappa=0.1)
        >>> smooth.value(torch.zeros(1, 20, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))  # 1/2 − κ/6
        tensor([0.4833], dtype=torch.float64)
    """

    def __init__(self, loss: CurveLoss, kappa: float):
        check_positive("kappa", kappa)
        self.loss, self.kappa = loss, kappa

    def __repr__(self) -> str:
        return f"CurveEnvelope({self.loss!r}, kappa={self.kappa!r})"

    @property
    def nodes(self) -> Tensor:
        return self.loss.nodes

    @property
    def weights(self) -> Tensor:
        return self.loss.weights

    def value(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value_and_derivative(u, y)[0]

    def derivative(self, u: Tensor, y: Tensor) -> Tensor:
        return self.loss.conjugate_prox(u / self.kappa, y, 1 / self.kappa)

    def value_and_derivative(self, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        slope = self.derivative(u.detach(), y)
        gain = torch.sub(u, slope, alpha=self.kappa / 2).mul_(slope)
        return torch.linalg.vecdot(gain, self.weights) - self.loss.conjugate(slope, y), slope

    def conjugate(self, a: Tensor, y: Tensor) -> Tensor:
        return self.loss.conjugate(a, y) + self.kappa / 2 * (self.weights * a.square()).sum(-1)

    def prox(self, u: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        whole = step + self.kappa
        return u + step / whole * (self.loss.prox(u, y, whole) - u)

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self.loss.nearest_slope(a, y)

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        part = 1 / (1 + step * self.kappa)
        return self.loss.conjugate_prox(part * a, y, part * step)

    def lipschitz(self) -> float:
        return 1 / (1 / self.loss.lipschitz() + self.kappa)

    def check_targets(self, y: Tensor) -> None:
        self.loss.check_targets(y)
