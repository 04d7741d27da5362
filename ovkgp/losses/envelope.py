"""Moreau envelopes, which smooth any convex loss L: e_κ(u) = min_v L(v) + ‖v − u‖²/(2κ) (LT-11).

The gradient is (u − prox_{κL}(u))/κ = prox_{L*/κ}(u/κ), the conjugate is L* + κ/2 ‖·‖², and slopes of the envelope are
slopes of L, so that a dual variable of the smoothed problem is feasible for that of L. L − κ/2 · sup‖slope‖² ≤ e_κ ≤ L.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.losses.base import CurveLoss, Loss

_SAME_SLOPE = 1e-9


class Envelope(Loss):
    """Moreau envelope e_κ of a loss of one number.

    Parameters
    ----------
    loss : Loss
        Loss ℓ to smooth.
    kappa : float
        Smoothing parameter κ, in the units of u² divided by those of ℓ. Must be greater than 0.

    Notes
    -----
    Complexity: that of `loss.conjugate_prox`.

    References
    ----------
    LT-11

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import CostSensitiveHinge, Envelope
    >>> smooth = Envelope(CostSensitiveHinge(costs="unit"), kappa=0.5)
    >>> smooth.value(torch.tensor([[0.0, 0.8]]), torch.ones(1, 1), torch.tensor([0.8]))
    tensor([[0.6400, 0.0400]])
    """

    def __init__(self, loss: Loss, kappa: float):
        self.loss, self.kappa = loss, check_positive("kappa", kappa)

    @property
    def name(self) -> str:
        return f"{self.loss.name}_envelope"

    @property
    def slope_scale(self) -> float:
        return self.loss.slope_scale

    @property
    def num_task_dims(self) -> int | None:
        return self.loss.num_task_dims

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        # sup_a a u − ℓ*(a) − κ/2 a² is attained at the slope, which therefore needs no gradient
        slope = self.derivative(u.detach(), y, tasks)
        return slope * (u - self.kappa / 2 * slope) - self.loss.finite_conjugate(slope, y, tasks)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.conjugate_prox(u / self.kappa, y, tasks, 1 / self.kappa)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        slope = self.derivative(u, y, tasks)
        nearest = u - self.kappa * slope
        inner = self.loss.curvature(nearest, y, tasks)
        # at a kink of ℓ the nearest point is constant in u, and the slope is neither of the two beside the kink
        smooth = (slope - self.loss.derivative(nearest, y, tasks)).abs() <= _SAME_SLOPE * (1 + inner)
        return torch.where(smooth, inner / (1 + self.kappa * inner), 1 / self.kappa)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.finite_conjugate(a, y, tasks) + self.kappa / 2 * a.square()

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        total = step + self.kappa
        return u + step / total * (self.loss.prox(u, y, tasks, total) - u)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float | Tensor, float | Tensor] | None:
        return self.loss.slope_range(y, tasks)

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.loss.nearest_slope(a, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        factor = 1 / (1 + step * self.kappa)
        return self.loss.conjugate_prox(factor * a, y, tasks, factor * step)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return 1 / (1 / self.loss.lipschitz(tasks) + self.kappa)

    def check_tasks(self, tasks: Tensor) -> None:
        self.loss.check_tasks(tasks)

    def check_targets(self, y: Tensor) -> None:
        self.loss.check_targets(y)


class CurveEnvelope(CurveLoss):
    """Moreau envelope e_κ of a loss between curves.

    For an `IntegralLoss` it equals the integral of the `Envelope` of ℓ, which also provides the curvature.

    Parameters
    ----------
    loss : CurveLoss
        Loss L to smooth.
    kappa : float
        Smoothing parameter κ. Must be greater than 0.

    Notes
    -----
    Complexity: that of `loss.conjugate_prox` and `loss.conjugate`.

    References
    ----------
    LT-11

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import CurveEnvelope, IntegralLoss, Pinball, gauss_legendre
    >>> smooth = CurveEnvelope(IntegralLoss(Pinball(), gauss_legendre(20)), kappa=0.1)
    >>> smooth.value(torch.zeros(1, 20, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))  # 1/2 − κ/6
    tensor([0.4833], dtype=torch.float64)
    """

    def __init__(self, loss: CurveLoss, kappa: float):
        self.loss, self.kappa = loss, check_positive("kappa", kappa)

    def __repr__(self) -> str:
        return f"CurveEnvelope({self.loss!r}, kappa={self.kappa!r})"

    @property
    def nodes(self) -> Tensor:
        return self.loss.nodes

    @property
    def weights(self) -> Tensor:
        return self.loss.weights

    @property
    def num_dims(self) -> int:
        return self.loss.num_dims

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
        total = step + self.kappa
        return u + step / total * (self.loss.prox(u, y, total) - u)

    def nearest_slope(self, a: Tensor, y: Tensor) -> Tensor:
        return self.loss.nearest_slope(a, y)

    def conjugate_prox(self, a: Tensor, y: Tensor, step: float | Tensor) -> Tensor:
        factor = 1 / (1 + step * self.kappa)
        return self.loss.conjugate_prox(factor * a, y, factor * step)

    def lipschitz(self) -> float:
        return 1 / (1 / self.loss.lipschitz() + self.kappa)

    def check_targets(self, y: Tensor) -> None:
        self.loss.check_targets(y)
