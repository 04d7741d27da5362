"""The one-class loss: a score u below the threshold t costs 1/θ a unit, and the threshold wants to be high (LT-55).

It has two unknowns. Here t stands where other losses have the target y, so that all methods of a `Loss` are those in u with t held;
what concerns t has methods of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.checks import require_positive, require_range
from ovkgp.losses.two_sided import TwoSided


class OneClass(TwoSided):
    """(1/θ) m_κ(t − u) − t, with θ ∈ (0, 1] the mass left outside; m_0 = max(0, ·) (LT-55).

    For u given, the mean over the data is least where a fraction θ of them has u < t.

    Args:
        kappa: κ ≥ 0, the width over which the kink is smoothed; 0 leaves it.

    Example:
        >>> import torch
        >>> from ovkgp.losses import OneClass
        >>> u, t, level = torch.tensor([[0.5, 2.0]]), torch.tensor([[1.0]]), torch.tensor([0.1])
        >>> OneClass().value(u, t, level), OneClass().threshold_derivative(u, t, level)
        (tensor([[ 4., -1.]]), tensor([[ 9., -1.]]))
    """

    name = "one_class"

    def __init__(self, kappa: float = 0.0):
        require_positive("kappa", kappa, or_zero=True)
        self.kappa = kappa

    def prices(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return 1 / tasks, torch.zeros_like(tasks)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return super().value(u, y, tasks) - y

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return super().finite_conjugate(a, y, tasks) + y

    def threshold_derivative(self, u: Tensor, t: Tensor, tasks: Tensor) -> Tensor:
        """∂ℓ/∂t = −1 − ∂ℓ/∂u, like u."""
        return -1 - self.derivative(u, t, tasks)

    def joint_prox(self, u: Tensor, t: Tensor, tasks: Tensor, step: float | Tensor) -> tuple[Tensor, Tensor]:
        """argmin over (v, s) of step · ℓ(θ, v, s) + ½ (v − u)² + ½ (s − t)², two tensors like u.

        The loss is linear along u + t and one-sided in t − u, which both move by half.
        """
        t = t + step
        moved = (super().prox(u, t, tasks, 2 * step) - u) / 2
        return u + moved, t - moved

    def lipschitz(self, tasks: Tensor) -> Tensor:
        """In u with t held; twice as much in both together."""
        return super().lipschitz(tasks) if self.kappa == 0 else 1 / (tasks * self.kappa)

    def require_tasks(self, tasks: Tensor) -> None:
        require_range("levels", tasks, torch.finfo(torch.float64).tiny, 1.0, advice="they are masses, greater than 0.")
