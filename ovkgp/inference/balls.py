"""Weights held in balls, one for each frequency of a feature map (BT-88, thesis (7.7))."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError


@dataclass(frozen=True, eq=False)
class Balls:
    """{θ : ‖θ_j‖ ≤ R for each j}, for weights θ (r,) in groups.

    Args:
        groups: (D, k) int64; row j lists the entries of θ_j. Each entry is in one group.
        radius: R > 0.

    Example:
        >>> import torch
        >>> from ovkgp.inference.balls import Balls
        >>> balls = Balls(torch.tensor([[0, 2], [1, 3]]), radius=1.0)
        >>> balls.project(torch.tensor([3.0, 0.1, 4.0, 0.2]))
        tensor([0.6000, 0.1000, 0.8000, 0.2000])
    """

    groups: Tensor
    radius: float

    def norms(self, weights: Tensor) -> Tensor:
        """‖θ_j‖ (D,)."""
        return weights[self.groups].norm(dim=1)

    def project(self, weights: Tensor) -> Tensor:
        """The nearest point of the balls. O(r)."""
        scale = (self.radius / self.norms(weights)).clamp_max(1.0)
        projected = torch.empty_like(weights)
        projected[self.groups] = weights[self.groups] * scale.unsqueeze(1)
        return projected

    def support(self, direction: Tensor) -> float:
        """max ⟨direction, θ⟩ over the balls: R Σ_j ‖direction_j‖."""
        return self.radius * float(self.norms(direction).sum())


def frequency_groups(features: LinearOperator) -> Tensor:
    """Which columns of Φ belong to each of the D frequencies, (D, k): cosines and sines, and all terms of a sum.

    Args:
        features: Φ at any points, from `ORFF`: its columns are (cos or sin, frequency, column of the factor), term after term.

    The j-th frequencies of the terms of a sum are one draw from the product of their laws, with B = [B_1, …, B_c].

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.balls import frequency_groups
        >>> frequency_groups(ORFF(RBFKernel(ard_num_dims=1), 3, random_state=0)(torch.zeros(1, 1))).tolist()
        [[0, 3], [1, 4], [2, 5]]
    """
    parts, first, groups = getattr(features, "parts", (features,)), 0, []
    for part in parts:
        D = part.features.shape[-1] // 2
        columns = torch.arange(first, first + part.num_columns).view(2, D, -1)
        groups.append(columns.transpose(0, 1).flatten(1))
        first += part.num_columns
    if len({len(group) for group in groups}) > 1:
        raise InputError("the terms of these features have different numbers of frequencies: draw as many for each.")
    return torch.cat(groups, 1)
