"""A polynomial beside a stationary kernel, so that curves go on rising where the data end.

    k(x, z) = s k_0(x, z) + l ⟨x, z⟩/d + q (⟨x, z⟩/d)²,        s + l + q = 1,

in coordinates: those of k_0, the columns of x, and their products. A stationary kernel alone falls back to its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.estimators.task_state import storable_part
from ovkgp.inference.task_learning.factors import Factor

TRENDS = ("linear", "quadratic")


@dataclass(frozen=True)
class KernelShares:
    """The parts s, l, q ≥ 0 of a kernel, with sum one.

    Example:
        >>> from ovkgp.estimators.quantile_trend import KernelShares
        >>> KernelShares.of(stationary=1.0, linear=3.0)
        KernelShares(stationary=0.25, linear=0.75, quadratic=0.0)
    """

    stationary: float = 1.0
    linear: float = 0.0
    quadratic: float = 0.0

    @classmethod
    def of(cls, stationary: float, linear: float = 0.0, quadratic: float = 0.0) -> KernelShares:
        """From variances, not all zero."""
        total = stationary + linear + quadratic
        return cls(stationary / total, linear / total, quadratic / total)


@storable_part
class TrendFactor:
    """The rows of another factor and of a polynomial: φ(x)ᵀφ(z) = k(x, z), as above.

    Args:
        factor: φ_0, with φ_0(x)ᵀφ_0(z) = k_0(x, z).
        shares: s, l and q.

    Cost: d columns more where l > 0, d (d + 1)/2 where q > 0.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantile_trend import KernelShares, TrendFactor
        >>> from ovkgp.estimators.task_options import input_factor
        >>> X = torch.tensor([[0.0, 1.0], [2.0, 1.0]]).double()
        >>> phi = TrendFactor(input_factor(X, lengthscale=1.0), KernelShares(0.5, 0.25, 0.25))
        >>> (phi(X) @ phi(X).T).tolist()[0][0], 0.5 + 0.25 * 1 / 2 + 0.25 * (1 / 2) ** 2
        (0.6875, 0.6875)
    """

    def __init__(self, factor: Factor, shares: KernelShares):
        self.factor = factor
        self.stationary, self.linear, self.quadratic = shares.stationary, shares.linear, shares.quadratic

    def __call__(self, points: Tensor) -> Tensor:
        return self._beside(self.factor(points), points.double())

    def left_out(self, points: Tensor) -> Tensor:
        """That of the other factor, times its share, (k,)."""
        return self.stationary * self.factor.left_out(points)

    @property
    def anchor_rows(self) -> Tensor:
        """The rows at the anchors of the other factor, which must be a `KernelFactor`."""
        return self._beside(self.factor.anchor_rows, self.factor.anchors)

    def _beside(self, rows: Tensor, points: Tensor) -> Tensor:
        d = points.shape[-1]
        parts = [math.sqrt(self.stationary) * rows]
        if self.linear:
            parts.append(math.sqrt(self.linear / d) * points)
        if self.quadratic:
            parts.append(math.sqrt(self.quadratic) / d * products(points))
        return torch.cat(parts, -1)


def products(points: Tensor) -> Tensor:
    """Columns with inner product ⟨x, z⟩²: squares, and √2 times the products of different coordinates, (k, d (d + 1)/2).

    Example:
        >>> import torch
        >>> from ovkgp.estimators.quantile_trend import products
        >>> products(torch.tensor([[1.0, 3.0]]))
        tensor([[1.0000, 4.2426, 9.0000]])
    """
    row, column = torch.triu_indices(points.shape[-1], points.shape[-1])
    scale = torch.full(row.shape, math.sqrt(2.0), dtype=points.dtype).masked_fill(row == column, 1.0)
    return scale * points[:, row] * points[:, column]
