"""Piecewise linear losses with different weights on both sides of the target, and their smoothed versions."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_one_of, check_positive, check_range
from ovkgp.exceptions import InputError
from ovkgp.losses.base import Loss

COSTS = ("signed", "unit")
_TINY = torch.finfo(torch.float64).tiny
_MAX_SLOPE = 1e300  # slope that, clamped to the side weights, gives a step function and keeps NaN


class TwoSided(Loss):
    """Piecewise linear loss of y − u with weights c₊, c₋ ≥ 0 for u below and above y, smoothed over a width κ ≥ 0.

    The conjugate in u is a y + κ a²/(2 c₋) for 0 ≤ a ≤ c₋ and a y + κ a²/(2 c₊) for −c₊ ≤ a ≤ 0 (LT-E-02, LT-E-04).
    """

    kappa: float = 0.0

    @abstractmethod
    def side_weights(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights c₊ and c₋, which broadcast against u.

        Parameters
        ----------
        y, tasks : Tensor
            Targets and tasks.

        Returns
        -------
        positive, negative : Tensor
            Weights.
        """

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        d, (below, above) = u - y, self.side_weights(y, tasks)
        if self.kappa == 0:
            return _sides(d, above, -below)
        slope = (d / self.kappa).clamp_(-1.0, 1.0)
        return _sides(slope, above, below).mul_(d.sub_(slope, alpha=self.kappa / 2))

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        below, above = self.side_weights(y, tasks)
        if self.kappa == 0:
            return torch.clamp((u - y).mul_(_MAX_SLOPE), -below, above)
        return _sides((u - y).div_(self.kappa).clamp_(-1.0, 1.0), above, below)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        if self.kappa == 0:
            return torch.zeros_like(u)
        d, (below, above) = u - y, self.side_weights(y, tasks)
        return (((d > 0) & (d < self.kappa)) * above + ((d < 0) & (d > -self.kappa)) * below) / self.kappa

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        if self.kappa == 0:
            return a * y
        below, above = self.side_weights(y, tasks)
        # the only slope on a side of weight 0 is 0, and 0²/tiny = 0
        factors = [self.kappa / (2 * weight.clamp_min(_TINY)) for weight in (above, below)]
        return _sides(a, *factors).add_(y).mul_(a)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        d, (below, above) = u - y, self.side_weights(y, tasks)
        below, above = step * below, step * above
        if self.kappa > 0:
            d = _sides(d, above / (self.kappa + above), below / (self.kappa + below))
        return u - torch.clamp(d, -below, above)

    def slope_range(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        below, above = self.side_weights(y, tasks)
        return -below, above

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        a, (below, above) = a - step * y, self.side_weights(y, tasks)
        if self.kappa > 0:
            width = step * self.kappa
            a = _sides(a, above / (width + above), below / (width + below))
        return torch.clamp(a, -below, above)


def _sides(x: Tensor, right: Tensor, left: Tensor) -> Tensor:
    """Multiply x by `right` where x > 0 and by `left` where x < 0."""
    # few temporaries: for a (1000, 30) array, allocation costs more than multiplication
    return x.clamp_max(0.0).mul_(left).addcmul_(x.clamp_min(0.0), right)


class Pinball(TwoSided):
    """Pinball loss ρ_θ(r) = max(θ r, (θ − 1) r), r = y − u, whose expectation is minimized by the θ-quantile of y.

    Notes
    -----
    The slopes in u are [−θ, 1 − θ]; the conjugate is a y there.

    References
    ----------
    LT-51, BT-E-31, LT-E-02, LT-E-30

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import Pinball
    >>> u, y, level = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0]]), torch.tensor([0.8])
    >>> Pinball().value(u, y, level)  # underestimation costs four times as much
    tensor([[0.8000, 0.2000]])
    """

    name = "pinball"

    def side_weights(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return tasks, 1 - tasks

    def check_tasks(self, tasks: Tensor) -> None:
        check_range("Quantile levels", tasks, 0.0, 1.0, advice="Divide percentages by 100.")


class SmoothedPinball(Pinball):
    """Pinball loss with a Huber-type smoothing of its kink.

    Its minimizers are M-quantiles: quantiles for κ → 0, expectiles for κ → ∞. The loss decreases like 1/κ: for a large
    κ divide λ by κ too, otherwise the fit shrinks to 0.

    Parameters
    ----------
    kappa : float
        Width κ of the smoothing, in the units of y. Must be greater than 0.

    Notes
    -----
    The loss is w(r) ψ_κ(r) with w = θ for r > 0 and 1 − θ for r < 0, ψ_κ(r) = r²/(2κ) for |r| ≤ κ, else |r| − κ/2.

    References
    ----------
    LT-52

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import SmoothedPinball
    >>> SmoothedPinball(1.0).value(torch.tensor([[1.5, 0.0]]), torch.tensor([[2.0]]), torch.tensor([0.8]))
    tensor([[0.1000, 1.2000]])
    """

    name = "smoothed_pinball"

    def __init__(self, kappa: float):
        self.kappa = check_positive("kappa", kappa)

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return torch.maximum(tasks, 1 - tasks) / self.kappa


class PinballEnvelope(Loss):
    """Moreau envelope of the pinball loss, `Envelope(Pinball(), kappa)` in closed form.

    Its minimizers are quantiles for κ → 0 and, for all θ, the mean for κ → ∞.

    Parameters
    ----------
    kappa : float
        Smoothing parameter κ, in the units of y. Must be greater than 0.

    Notes
    -----
    min_v ρ_θ(v) + (r − v)²/(2κ) is r²/(2κ) for −κ(1 − θ) ≤ r ≤ κθ, and linear with slopes θ − 1 and θ outside.

    References
    ----------
    LT-11, LT-52

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import PinballEnvelope
    >>> PinballEnvelope(1.0).value(torch.tensor([[1.5, 0.0]]), torch.tensor([[2.0]]), torch.tensor([0.8]))
    tensor([[0.1250, 1.2800]])
    """

    name = "pinball_envelope"
    check_tasks = Pinball.check_tasks

    def __init__(self, kappa: float):
        self.kappa = check_positive("kappa", kappa)

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


class CostSensitiveHinge(TwoSided):
    """Cost-sensitive hinge loss c max(0, 1 − y u), with c = c(θ) for y = +1 and 1 − c(θ) for y = −1.

    Parameters
    ----------
    costs : {"signed", "unit"}, default="signed"
        Scale of the costs: θ ∈ [−1, 1] and c(θ) = (θ + 1)/2 if "signed", θ ∈ [0, 1] and c(θ) = θ if "unit".

    Notes
    -----
    The conjugate is a y where −a y lies in [0, c].

    References
    ----------
    LT-53, LT-E-04

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import CostSensitiveHinge
    >>> u, y = torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])
    >>> CostSensitiveHinge().value(u, y, torch.tensor([0.6])).flatten()  # a missed positive costs more
    tensor([0.8000, 0.2000])
    """

    name = "cost_sensitive_hinge"

    def __init__(self, costs: str = "signed"):
        self.costs = check_one_of("costs", costs, COSTS)

    def positive_weight(self, tasks: Tensor) -> Tensor:
        """Return the weight c(θ) of the label +1, with the shape of tasks.

        Parameters
        ----------
        tasks : Tensor of shape (m,) or (n, m)
            Costs θ.

        Returns
        -------
        Tensor of the same shape
            Weights.
        """
        return tasks if self.costs == "unit" else (tasks + 1) / 2

    def side_weights(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        # max(0, 1 − y u) = max(0, y (y − u)): y = +1 costs for u below it, y = −1 for u above it
        weight = self.positive_weight(tasks)
        return (y > 0) * weight, (y < 0) * (1 - weight)

    def check_tasks(self, tasks: Tensor) -> None:
        low = 0.0 if self.costs == "unit" else -1.0
        other = COSTS[1 - COSTS.index(self.costs)]
        advice = f'Did you mean costs="{other}"?'
        check_range(f'Tasks for costs="{self.costs}"', tasks, low, 1.0, advice=advice)

    def check_targets(self, y: Tensor) -> None:
        super().check_targets(y)
        if not bool((y.abs() == 1).all()):
            raise InputError(f"Labels must be -1 or +1, got {torch.unique(y)[:5].tolist()}.")


class SmoothedHinge(CostSensitiveHinge):
    """Smoothed hinge loss c m_κ(1 − y u), with m_κ the Moreau envelope of max(0, ·).

    Parameters
    ----------
    kappa : float
        Width κ of the smoothing. Must be greater than 0.
    costs : {"signed", "unit"}, default="signed"
        Scale of the costs, see `CostSensitiveHinge`.

    Notes
    -----
    m_κ(t) is 0 for t ≤ 0, t²/(2κ) for 0 < t ≤ κ and t − κ/2 for t > κ.

    References
    ----------
    LT-54

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import SmoothedHinge
    >>> SmoothedHinge(0.5, costs="unit").value(torch.tensor([[0.0, 0.75]]), torch.ones(1, 1), torch.tensor([0.8]))
    tensor([[0.6000, 0.0500]])
    """

    name = "smoothed_hinge"

    def __init__(self, kappa: float, costs: str = "signed"):
        kappa = check_positive("kappa", kappa)
        super().__init__(costs)
        self.kappa = kappa

    def lipschitz(self, tasks: Tensor) -> Tensor:
        weight = self.positive_weight(tasks)
        return torch.maximum(weight, 1 - weight) / self.kappa


class OneClass(TwoSided):
    """One-class loss (1/θ) m_κ(t − u) − t of a score u and a threshold t, with mass θ ∈ (0, 1] outside the level set.

    The threshold t is passed as the target y, and all methods are those in u for a fixed t. For a fixed u, the mean
    over the data is minimal if a fraction θ of them has u < t.

    Parameters
    ----------
    kappa : float, default=0.0
        Width κ of the smoothing. Must be at least 0. If 0, m_0 = max(0, ·).

    References
    ----------
    LT-55

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import OneClass
    >>> OneClass().value(torch.tensor([[0.5, 2.0]]), torch.tensor([[1.0]]), torch.tensor([0.1]))
    tensor([[ 4., -1.]])
    """

    name = "one_class"

    def __init__(self, kappa: float = 0.0):
        self.kappa = check_nonnegative("kappa", kappa)

    def side_weights(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return 1 / tasks, torch.zeros_like(tasks)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return super().value(u, y, tasks) - y

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return super().finite_conjugate(a, y, tasks) + y

    def lipschitz(self, tasks: Tensor) -> Tensor:
        return super().lipschitz(tasks) if self.kappa == 0 else 1 / (tasks * self.kappa)

    def check_tasks(self, tasks: Tensor) -> None:
        check_range("Levels", tasks, torch.finfo(torch.float64).tiny, 1.0, advice="A level is a mass greater than 0.")
