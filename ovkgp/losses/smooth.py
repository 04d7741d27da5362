"""Symmetric losses of the error r = y − u: square, Huber, ε-insensitive and log-cosh."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_positive
from ovkgp.losses.balls import soft_threshold
from ovkgp.losses.base import Loss

_MAX_SLOPE = 1 - torch.finfo(torch.float64).eps / 2
_NEWTON_TOLERANCE = 1e-9
"""Relative size of the last Newton step; convergence is quadratic, so that the next step would be rounding."""


class Square(Loss):
    """Square loss ½ (y − u)², whose expectation is minimized by the mean of y.

    References
    ----------
    LT-50

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import Square
    >>> Square().value(torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
    tensor([[0.5000, 2.0000]])
    """

    name = "square"
    num_task_dims = None

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
    """Huber loss: ½ r² for |r| ≤ κ, else κ(|r| − κ/2), with r = y − u.

    Parameters
    ----------
    kappa : float
        Largest slope κ, in the units of y. Must be greater than 0. The limit κ → ∞ is the square loss.

    References
    ----------
    LT-56, LT-58

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import Huber
    >>> Huber(1.0).value(torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
    tensor([[0.5000, 1.5000]])
    """

    name = "huber"

    def __init__(self, kappa: float):
        self.kappa = check_positive("kappa", kappa)

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
    """Squared ε-insensitive loss ½ max(|y − u| − ε, 0)².

    The dual variables of errors up to ε are exactly 0.

    Parameters
    ----------
    epsilon : float
        Largest error ε without cost, in the units of y. Must be at least 0; 0 is the square loss.

    References
    ----------
    LT-61; LT-E-08 for the factor ½, LT-E-09 for soft thresholding

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import EpsilonInsensitive
    >>> EpsilonInsensitive(1.0).value(torch.tensor([[1.5, 4.0]]), torch.tensor([[2.0]]), torch.zeros(2))
    tensor([[0.0000, 0.5000]])
    """

    name = "epsilon_insensitive"

    def __init__(self, epsilon: float):
        self.epsilon = check_nonnegative("epsilon", epsilon)

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


class LogCosh(Loss):
    """Log-cosh loss (1/ν) log cosh(ν r), r = y − u, an analytic smoothing of the absolute error.

    It is about ν r²/2 near 0 and |r| − log(2)/ν far from it.

    Parameters
    ----------
    nu : float
        Inverse width ν of the smoothing, in the inverse units of y. Must be greater than 0.

    Notes
    -----
    The conjugate is a y + [(1 + a) log(1 + a) + (1 − a) log(1 − a)]/(2ν) for |a| ≤ 1.
    Complexity: O(n m); `prox` takes up to about ten Newton steps.

    References
    ----------
    BO-64, BO-76

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import LogCosh
    >>> LogCosh(25.0).value(torch.tensor([[0.0, 1.0]]), torch.zeros(1, 1), torch.zeros(2))
    tensor([[0.0000, 0.9723]])
    """

    name = "log_cosh"
    num_task_dims = None

    def __init__(self, nu: float):
        self.nu = check_positive("nu", nu)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        size = (u - y).abs()
        # log cosh z = z + log((1 + e^{−2z})/2), which never overflows and is accurate for small z
        return size + torch.log1p(torch.expm1(-2 * self.nu * size) / 2) / self.nu

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.tanh(self.nu * (u - y))

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self.nu * (1 - self.derivative(u, y, tasks).square())

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        b = a.clamp(-_MAX_SLOPE, _MAX_SLOPE)  # 0 log 0 would be NaN
        entropy = (1 + b) * torch.log1p(b) + (1 - b) * torch.log1p(-b)
        return a * y + entropy / (2 * self.nu)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        d = u - y
        return y + torch.copysign(self._shrink(d.abs(), step), d)

    def _shrink(self, size: Tensor, step: float | Tensor) -> Tensor:
        """Return the root v ≥ 0 of v + step · tanh(ν v) = size by Newton's method.

        The left side is concave in v, so that steps from below never pass the root; tanh z ≤ min(z, 1) gives the
        initial v.
        """
        max_slope = 1 + step * self.nu
        v = torch.maximum(size / max_slope, size - step)
        for _ in range(100):
            tanh = torch.mul(v, self.nu).tanh_()
            slope = max_slope - (max_slope - 1) * tanh.square()
            change = (size - v).sub_(tanh.mul_(step)).div_(slope)
            v = v.add_(change)
            if not bool((change > _NEWTON_TOLERANCE * size).any()):
                break
        return v

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[float, float]:
        return -1.0, 1.0

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.full_like(tasks, self.nu)
