"""Losses whose minimisers are quantiles, expectiles, and what lies between them and the mean (LT-51, LT-52).

Two smoothings of the pinball loss go by the same name in the literature and have two limits: with κ → ∞ the minimiser of
`SmoothedPinball` is the expectile, that of `PinballEnvelope` the mean. Both tend to the pinball loss with κ → 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.base import Loss
from ovkgp.losses.checks import require_positive, require_range
from ovkgp.losses.two_sided import TwoSided


def _require_levels(tasks: Tensor) -> None:
    require_range("the levels of quantiles", tasks, 0.0, 1.0, advice="divide percentages by 100.")


class Pinball(TwoSided):
    """ρ_θ(r) = max(θ r, (θ − 1) r) with r = y − u: the θ-quantile of y minimises its mean (LT-51, BT-E-31, LT-E-30).

    Its slopes in u are [−θ, 1 − θ] and its conjugate is a y there (LT-E-02).

    Example:
        >>> import torch
        >>> from ovkgp.losses import Pinball
        >>> u, y, level = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0]]), torch.tensor([0.8])
        >>> Pinball().value(u, y, level)  # to say too little costs four times as much
        tensor([[0.8000, 0.2000]])
    """

    name = "pinball"

    def prices(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return tasks, 1 - tasks

    def require_tasks(self, tasks: Tensor) -> None:
        _require_levels(tasks)


class SmoothedPinball(Pinball):
    """w(r) ψ_κ(r), w = θ for r > 0 and 1 − θ for r < 0; ψ_κ(r) = r²/(2κ) for |r| ≤ κ, else |r| − κ/2 (LT-52).

    Its minimisers are M-quantiles: quantiles at κ → 0, expectiles at κ → ∞. It falls like 1/κ: with a large κ divide λ by κ as
    well, or a fit shrinks to 0.

    Args:
        kappa: κ > 0, in the units of y.

    Example:
        >>> import torch
        >>> from ovkgp.losses import SmoothedPinball
        >>> SmoothedPinball(1.0).value(torch.tensor([[1.5, 0.0]]), torch.tensor([[2.0]]), torch.tensor([0.8]))
        tensor([[0.1000, 1.2000]])
    """

    name = "smoothed_pinball"

    def __init__(self, kappa: float):
        require_positive("kappa", kappa)
        self.kappa = kappa

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.maximum(tasks, 1 - tasks) / self.kappa


class PinballEnvelope(Loss):
    """min_v ρ_θ(v) + (r − v)²/(2κ): r²/(2κ) for −κ(1 − θ) ≤ r ≤ κθ, linear with slopes θ − 1 and θ outside (LT-11, LT-52).

    `Envelope(Pinball(), kappa)` in closed form. Its minimisers are quantiles at κ → 0 and the mean, for all θ, at κ → ∞.

    Args:
        kappa: κ > 0, in the units of y.

    Example:
        >>> import torch
        >>> from ovkgp.losses import PinballEnvelope
        >>> PinballEnvelope(1.0).value(torch.tensor([[1.5, 0.0]]), torch.tensor([[2.0]]), torch.tensor([0.8]))
        tensor([[0.1250, 1.2800]])
    """

    name = "pinball_envelope"

    def __init__(self, kappa: float):
        require_positive("kappa", kappa)
        self.kappa = kappa

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        d = u - y
        slope = torch.clamp(d / self.kappa, -tasks, 1 - tasks)
        return d.sub_(slope, alpha=self.kappa / 2).mul_(slope)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.clamp((u - y).div_(self.kappa), -tasks, 1 - tasks)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        slope = (u - y) / self.kappa
        return ((slope > -tasks) & (slope < 1 - tasks)).to(u.dtype) / self.kappa

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return a * (y + self.kappa / 2 * a)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return u - step * torch.clamp((u - y) / (self.kappa + step), -tasks, 1 - tasks)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return -tasks, 1 - tasks

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return torch.clamp((a - step * y) / (1 + step * self.kappa), -tasks, 1 - tasks)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.full_like(tasks, 1 / self.kappa)

    def require_tasks(self, tasks: Tensor) -> None:
        _require_levels(tasks)
