"""The one-class loss: a score u below the threshold t costs 1/θ a unit, and the threshold wants to be high (LT-55).

It has two unknowns. Here t stands where other losses have the target y, so that all methods of a `Loss` are those in u with t held;
what concerns t has methods of its own.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ovkgp.checks import check_positive, check_range
from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses.base import Loss

_TINY = torch.finfo(torch.float64).tiny
_STEEP = 1e300
"""A slope so steep that, cut to the prices, it is a jump; NaN stays NaN."""


class TwoSided(Loss):
    """f(y − u) with prices c₊, c₋ ≥ 0 for u below and above y, and κ ≥ 0.

    The conjugate in u is a y + κ a²/(2 c₋) for 0 ≤ a ≤ c₋ and a y + κ a²/(2 c₊) for −c₊ ≤ a ≤ 0; the linear term stays
    (LT-E-02, LT-E-04).
    """

    kappa: float = 0.0

    @abstractmethod
    def prices(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """c₊ and c₋, which broadcast against u."""

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        d, (below, above) = u - y, self.prices(y, tasks)
        if self.kappa == 0:
            return _sides(d, above, -below)
        part = (d / self.kappa).clamp_(-1.0, 1.0)
        return _sides(part, above, below).mul_(d.sub_(part, alpha=self.kappa / 2))

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        below, above = self.prices(y, tasks)
        if self.kappa == 0:
            return torch.clamp((u - y).mul_(_STEEP), -below, above)
        return _sides((u - y).div_(self.kappa).clamp_(-1.0, 1.0), above, below)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        if self.kappa == 0:
            return torch.zeros_like(u)
        d, (below, above) = u - y, self.prices(y, tasks)
        return (((d > 0) & (d < self.kappa)) * above + ((d < 0) & (d > -self.kappa)) * below) / self.kappa

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        if self.kappa == 0:
            return a * y
        below, above = self.prices(y, tasks)
        # a side without a price has no slope but 0, and 0²/tiny = 0
        bends = [self.kappa / (2 * price.clamp_min(_TINY)) for price in (above, below)]
        return _sides(a, *bends).add_(y).mul_(a)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        d, (below, above) = u - y, self.prices(y, tasks)
        below, above = step * below, step * above
        if self.kappa > 0:
            d = _sides(d, above / (self.kappa + above), below / (self.kappa + below))
        return u - torch.clamp(d, -below, above)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        below, above = self.prices(y, tasks)
        return -below, above

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        a, (below, above) = a - step * y, self.prices(y, tasks)
        if self.kappa > 0:
            bend = step * self.kappa
            a = _sides(a, above / (bend + above), below / (bend + below))
        return torch.clamp(a, -below, above)


def _sides(x: Tensor, right: Tensor, left: Tensor) -> Tensor:
    """x times right where x > 0, times left where x < 0."""
    # few temporaries: for a (1000, 30) array, to allocate is dearer than to multiply
    return x.clamp_max(0.0).mul_(left).addcmul_(x.clamp_min(0.0), right)


def _require_levels(tasks: Tensor) -> None:
    check_range("the levels of quantiles", tasks, 0.0, 1.0, advice="divide percentages by 100.")


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

    def check_tasks(self, tasks: Tensor) -> None:
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
        check_positive("kappa", kappa)
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
        check_positive("kappa", kappa)
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

    def check_tasks(self, tasks: Tensor) -> None:
        _require_levels(tasks)


COSTS = ("signed", "unit")


class CostSensitiveHinge(TwoSided):
    """c max(0, 1 − y u), with c = c(θ) for y = +1 and 1 − c(θ) for y = −1 (LT-53).

    Its conjugate is a y where −a y lies in [0, c] (LT-E-04).

    Args:
        costs: "signed", θ ∈ [−1, 1] and c(θ) = (θ + 1)/2; or "unit", θ ∈ [0, 1] and c(θ) = θ.

    Example:
        >>> import torch
        >>> from ovkgp.losses import CostSensitiveHinge
        >>> u, y = torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])
        >>> CostSensitiveHinge().value(u, y, torch.tensor([0.6])).flatten()  # a missed positive costs more
        tensor([0.8000, 0.2000])
    """

    name = "cost_sensitive_hinge"

    def __init__(self, costs: str = "signed"):
        if costs not in COSTS:
            raise OptionError(f"costs must be one of {', '.join(COSTS)}; got {costs!r}.")
        self.costs = costs

    def positive_price(self, tasks: Tensor) -> Tensor:
        """c(θ), what the label +1 weighs, like tasks."""
        return tasks if self.costs == "unit" else (tasks + 1) / 2

    def prices(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        # y = +1 pays for u below it, y = −1 for u above it; max(0, 1 − y u) = max(0, y (y − u))
        price = self.positive_price(tasks)
        return (y > 0) * price, (y < 0) * (1 - price)

    def check_tasks(self, tasks: Tensor) -> None:
        low = 0.0 if self.costs == "unit" else -1.0
        other = COSTS[1 - COSTS.index(self.costs)]
        check_range(f"{self.costs} costs", tasks, low, 1.0, advice=f'or do you mean costs="{other}"?')

    def check_targets(self, y: Tensor) -> None:
        super().check_targets(y)
        if not bool((y.abs() == 1).all()):
            raise InputError(f"labels must be -1 or +1, got {torch.unique(y)[:5].tolist()}: encode the two classes so.")


class SmoothedHinge(CostSensitiveHinge):
    """c m_κ(1 − y u), m_κ the Moreau envelope of max(0, ·): 0, t²/(2κ), t − κ/2 for t ≤ 0, ≤ κ, > κ (LT-54).

    Args:
        kappa: κ > 0.
        costs: as for `CostSensitiveHinge`.

    Example:
        >>> import torch
        >>> from ovkgp.losses import SmoothedHinge
        >>> SmoothedHinge(0.5, costs="unit").value(torch.tensor([[0.0, 0.75]]), torch.ones(1, 1), torch.tensor([0.8]))
        tensor([[0.6000, 0.0500]])
    """

    name = "smoothed_hinge"

    def __init__(self, kappa: float, costs: str = "signed"):
        check_positive("kappa", kappa)
        super().__init__(costs)
        self.kappa = kappa

    def lipschitz(self, tasks: Tensor) -> Tensor:
        price = self.positive_price(tasks)
        return torch.maximum(price, 1 - price) / self.kappa


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
        check_positive("kappa", kappa, or_zero=True)
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

    def check_tasks(self, tasks: Tensor) -> None:
        check_range("levels", tasks, torch.finfo(torch.float64).tiny, 1.0, advice="they are masses, greater than 0.")
