"""The log-cosh loss: the absolute error with its kink rounded by an analytic function (BO-76)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.base import Loss
from ovkgp.losses.checks import require_positive

_ALMOST_ONE = 1 - torch.finfo(torch.float64).eps / 2
_LAST_STEP = 1e-9
"""Newton's steps square: after one of this relative size the next would be rounding."""


class LogCosh(Loss):
    """(1/ν) log cosh(ν r), r = y − u: about ν r²/2 near 0 and |r| − log(2)/ν far from it (BO-64, BO-76).

    The conjugate is a y + [(1 + a) log(1 + a) + (1 − a) log(1 − a)]/(2ν) for |a| ≤ 1.

    Args:
        nu: ν > 0, one over the width of the rounding, in one over the units of y.

    Cost: O(n m); `prox` takes up to about ten Newton steps.

    Example:
        >>> import torch
        >>> from ovkgp.losses import LogCosh
        >>> LogCosh(25.0).value(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 1), torch.zeros(2))
        tensor([[0.0000, 0.9723]])
    """

    name = "log_cosh"

    def __init__(self, nu: float):
        require_positive("nu", nu)
        self.nu = nu

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        size = (u - y).abs()
        # log cosh z = z + log((1 + e^{−2z})/2), which overflows nowhere and keeps the digits of a small z
        return size + torch.log1p(torch.expm1(-2 * self.nu * size) / 2) / self.nu

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.tanh(self.nu * (u - y))

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.nu * (1 - self.derivative(u, y, tasks).square())

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        b = a.clamp(-_ALMOST_ONE, _ALMOST_ONE)  # 0 log 0 would be NaN
        entropy = (1 + b) * torch.log1p(b) + (1 - b) * torch.log1p(-b)
        return a * y + entropy / (2 * self.nu)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        d = u - y
        return y + torch.copysign(self._shrunk(d.abs(), step), d)

    def _shrunk(self, size: Tensor, step: float | Tensor) -> Tensor:
        """The root v ≥ 0 of v + γ tanh(ν v) = size, by Newton.

        The left side is concave in v, so that Newton's steps from below never pass the root; tanh z ≤ min(z, 1) gives where to begin.
        """
        steep = 1 + step * self.nu
        v = torch.maximum(size / steep, size - step)
        for _ in range(100):
            tanh = torch.mul(v, self.nu).tanh_()
            slope = steep - (steep - 1) * tanh.square()
            ahead = (size - v).sub_(tanh.mul_(step)).div_(slope)
            v = v.add_(ahead)
            if not bool((ahead > _LAST_STEP * size).any()):
                break
        return v

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float, float]:
        return -1.0, 1.0

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.full_like(tasks, self.nu)
