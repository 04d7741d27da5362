"""The log-cosh loss: the absolute error with its kink rounded by an analytic function (BO-76)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.losses.balls import soft_threshold
from ovkgp.losses.base import Loss


class Square(Loss):
    """½ (y − u)² (LT-50): the mean of y minimises its mean.

    Example:
        >>> import torch
        >>> from ovkgp.losses import Square
        >>> Square().value(torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
        tensor([[0.5000, 2.0000]])
    """

    name = "square"

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return (u - y).square_().div_(2)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return u - y

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.ones_like(u)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.add(y, a, alpha=0.5).mul_(a)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return (u + step * y) / (1 + step)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return (a - step * y) / (1 + step)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.ones_like(tasks)


class Huber(Square):
    """½ r² for |r| ≤ κ, κ(|r| − κ/2) beyond, r = y − u: an outlier pulls with κ and no more (LT-56, LT-58).

    Args:
        kappa: κ > 0, in the units of y. The square loss at κ → ∞.

    Example:
        >>> import torch
        >>> from ovkgp.losses import Huber
        >>> Huber(1.0).value(torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
        tensor([[0.5000, 1.5000]])
    """

    name = "huber"

    def __init__(self, kappa: float):
        check_positive("kappa", kappa)
        self.kappa = kappa

    @property
    def slope_scale(self) -> float:
        return self.kappa

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        d = u - y
        slope = d.clamp(-self.kappa, self.kappa)
        return torch.sub(d, slope, alpha=0.5).mul_(slope)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return (u - y).clamp_(-self.kappa, self.kappa)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return ((u - y).abs() < self.kappa).to(u.dtype)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return u - step * ((u - y) / (1 + step)).clamp(-self.kappa, self.kappa)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float, float]:
        return -self.kappa, self.kappa

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return super().conjugate_prox(a, y, tasks, step).clamp(-self.kappa, self.kappa)


class EpsilonInsensitive(Square):
    """½ max(|y − u| − ε, 0)²: errors up to ε are free, and their dual variables exact zeros (LT-61).

    The ½ belongs there (LT-E-08), and soft thresholding takes a step's whole γε off (LT-E-09).

    Args:
        epsilon: ε ≥ 0, in the units of y. The square loss at 0.

    Example:
        >>> import torch
        >>> from ovkgp.losses import EpsilonInsensitive
        >>> EpsilonInsensitive(1.0).value(torch.tensor([[1.5, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
        tensor([[0.0000, 0.5000]])
    """

    name = "epsilon_insensitive"

    def __init__(self, epsilon: float):
        check_positive("epsilon", epsilon, or_zero=True)
        self.epsilon = epsilon

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.derivative(u, y, tasks).square() / 2

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return soft_threshold(u - y, self.epsilon)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return ((u - y).abs() > self.epsilon).to(u.dtype)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return super().finite_conjugate(a, y, tasks) + self.epsilon * a.abs()

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return u - step / (1 + step) * self.derivative(u, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return soft_threshold(a - step * y, step * self.epsilon) / (1 + step)


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
        check_positive("nu", nu)
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
