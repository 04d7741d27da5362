"""Losses with one price for each side: f(r) = c₊ m_κ(r) + c₋ m_κ(−r) of the residual r = y − u.

m_0(r) = max(r, 0), and m_κ is its Moreau envelope: 0, r²/(2κ), r − κ/2 for r ≤ 0, ≤ κ, > κ. Pinball, hinge and one-class losses and
their smoothings (LT-51..55) are this with prices that depend on the task and the target, and share all the formulas below.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

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
