"""The square loss and its two relatives: linear for large errors (Huber), or free for small ones (ε-insensitive) (LT-50, LT-56, LT-61).

Both are ½(·)² convolved with a second function: with κ|·| and with the indicator of [−ε, ε]. Their conjugates are therefore
a y + ½a² and one term more (LT-10, BO-70): |a| ≤ κ, or + ε|a|. `ovkgp.losses.curves` has the same for whole curves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.balls import soft_threshold
from ovkgp.losses.base import Loss
from ovkgp.losses.checks import require_positive


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
        require_positive("kappa", kappa)
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
        require_positive("epsilon", epsilon, or_zero=True)
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
