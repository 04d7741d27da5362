"""The pinball loss, whose minimiser is a quantile (LT-51)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.losses.base import Loss


class Pinball(Loss):
    """ρ_θ(r) = max(θ r, (θ − 1) r) with r = y − u: the θ-quantile of y minimises its mean (LT-51, BT-E-31, LT-E-30).

    Its conjugate is a y + χ(−a ∈ [θ − 1, θ]) (LT-E-02).
    """

    name = "pinball"

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        r = y - u
        return torch.maximum(tasks * r, (tasks - 1) * r)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return (y < u).to(u.dtype) - tasks * (y != u)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        inside = (-a >= tasks - 1) & (-a <= tasks)
        return torch.where(inside, a * y, float("inf"))

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        r = y - u
        return u + torch.clamp(r, step * (tasks - 1), step * tasks)
