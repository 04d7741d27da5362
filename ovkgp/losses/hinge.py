"""Hinge losses of labels y = ±1 with a price for each kind of mistake (LT-53, LT-54).

The price c(θ) weighs the label +1, so that it is what a *missed positive* costs (LT-E-29): with c → 1 everything is called positive and
the sensitivity is 1. Label −1 weighs 1 − c(θ).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses.checks import require_positive, require_range
from ovkgp.losses.two_sided import TwoSided

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

    def require_tasks(self, tasks: Tensor) -> None:
        low = 0.0 if self.costs == "unit" else -1.0
        other = COSTS[1 - COSTS.index(self.costs)]
        require_range(f"{self.costs} costs", tasks, low, 1.0, advice=f'or do you mean costs="{other}"?')

    def require_targets(self, y: Tensor) -> None:
        super().require_targets(y)
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
        require_positive("kappa", kappa)
        super().__init__(costs)
        self.kappa = kappa

    def lipschitz(self, tasks: Tensor) -> Tensor:
        price = self.positive_price(tasks)
        return torch.maximum(price, 1 - price) / self.kappa
