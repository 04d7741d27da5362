"""The density of y at its quantiles, from the residuals of a fit: f_i(q_i(θ)) ≈ g(θ) / scale_i.

Each row has a scale of its own, the mean distance of its curve from its middle, in which the residuals of all rows have one law; its density at its
own θ-quantile is g(θ). Nothing of it knows of the loss: a smoothed pinball loss bends by 1/κ on its own, which is no property of the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.task_learning.problem import TaskProblem

NARROWEST = 0.1
"""The least scale of a row, as a part of the mean: a curve that is too narrow by chance would be taken for certain."""
SILVERMAN = 0.9
BLOCK = 1 << 22


@dataclass(frozen=True)
class RowResiduals:
    """What rows say about the law of the residuals.

    Args:
        spread: the mean distance of the curve of each row from its middle (n,), in the units of y.
        residuals: y_i − h(x_i)(θ_0) (n,), θ_0 the node nearest to ½.
        weights: s (n,).
    """

    spread: Tensor
    residuals: Tensor
    weights: Tensor

    @classmethod
    def of(cls, parts: Iterable[TaskProblem], weights: Tensor, offset: Tensor) -> RowResiduals:
        """Of the rows of a problem, in pieces, at W (r, q); its targets are y less b(θ_j) = offset (m,)."""
        found = [_residuals(part, weights, offset) for part in parts]
        return cls(*(torch.cat(columns) for columns in zip(*found, strict=True)))

    @property
    def scale(self) -> Tensor:
        """Of each row (n,): its spread, at least a tenth of the mean. One level alone has no spread, and all rows the scale 1."""
        mean = float(self.spread @ self.weights / self.weights.sum())
        return self.spread.clamp_min(NARROWEST * mean) if mean > 0 else torch.ones_like(self.spread)


def _residuals(part: TaskProblem, weights: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    H, middle = part.values(weights), int((part.loss.nodes - 0.5).abs().argmin())
    curves = H + offset
    spread = (curves - curves[:, [middle]]).abs() @ part.loss.weights
    return spread, part.targets.expand_as(H)[:, middle] - H[:, middle], part.row_weights


class ResidualDensity:
    """θ ↦ g(θ), a Gaussian kernel estimate with Silverman's bandwidth.

    Args:
        residuals: in units of the scale of their rows (n,).
        weights: of the rows (n,).
        count: N, the observations that the rows stand for; the sum of the weights where None.

    Cost: O(n m) for m levels.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.residual_density import ResidualDensity
        >>> z = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
        >>> density = ResidualDensity(z, torch.ones_like(z))
        >>> bool((density(torch.tensor([0.1, 0.5]).double()) - torch.tensor([0.175, 0.399])).abs().max() < 0.02)  # of N(0, 1)
        True
    """

    def __init__(self, residuals: Tensor, weights: Tensor, count: float | None = None):
        order = residuals.argsort()
        self.residuals, self.weights = residuals[order], weights[order] / weights.sum()
        self.bandwidth = self._bandwidth(float(weights.sum()) if count is None else count)

    def __call__(self, levels: Tensor) -> Tensor:
        """g (m,) at levels (m,)."""
        places = self.quantile(levels)
        found = torch.empty_like(places)
        at_once = max(1, BLOCK // len(self.residuals))
        for block in torch.arange(len(places)).split(at_once):
            lags = (places[block, None] - self.residuals) / self.bandwidth
            found[block] = torch.exp(-lags.square() / 2) @ self.weights
        return found / (self.bandwidth * (2 * torch.pi) ** 0.5)

    def quantile(self, levels: Tensor) -> Tensor:
        """The least residual with a share of at least θ of the rows at or below it, (m,)."""
        places = torch.searchsorted(self.weights.cumsum(0), levels.contiguous() - 1e-12)
        return self.residuals[places.clamp_max(len(self.residuals) - 1)]

    def _bandwidth(self, count: float) -> float:
        """0.9 min(sd, IQR/1.34) N^(−1/5); 1 where all residuals are the same."""
        mean = self.weights @ self.residuals
        deviation = float((self.weights @ (self.residuals - mean).square()).sqrt())
        low, high = self.quantile(self.residuals.new_tensor([0.25, 0.75])).tolist()
        spread = min(deviation, (high - low) / 1.34) or deviation
        return SILVERMAN * spread * count**-0.2 or 1.0
