"""Predictive densities of each observed entry given all the others, in closed form.

With C = K + noise on the observed entries, α = C⁻¹ (y − m) and d = diag C⁻¹,

    y_ij | y_−ij  ~  N(y_ij − α_ij / d_ij,  1 / d_ij),

which are densities of observations, noise included, at fixed hyperparameters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.data import Observations


class LeaveOneOut(NamedTuple):
    """Mean, standard deviation and log density of each entry given all others, (n, p), NaN where nothing was observed."""

    mean: Tensor
    std: Tensor
    log_density: Tensor

    @classmethod
    def from_inverse(cls, data: Observations, alpha: Tensor, diagonal: Tensor) -> LeaveOneOut:
        """From α and diag C⁻¹, both (n, p)."""
        seen = data.seen
        if not bool((diagonal[seen] > 0).all()):
            raise FactorisationError("the inverse covariance has a diagonal that is not positive: raise the noise.")
        diagonal = torch.where(seen, diagonal, torch.nan)
        deviation = alpha / diagonal
        log_density = 0.5 * (diagonal.log() - math.log(2 * math.pi) - alpha * deviation)
        return cls(data.Y - deviation, diagonal.rsqrt(), log_density)

    @classmethod
    def stack(cls, parts: list[LeaveOneOut]) -> LeaveOneOut:
        """Consecutive rows as one."""
        return cls(*(torch.cat(fields) for fields in zip(*parts, strict=True)))

    def spread(self, rows: Tensor) -> LeaveOneOut:
        """The same with NaN in the rows (a mask) that were left out."""
        return LeaveOneOut(*(spread(field, rows) for field in self))

    @property
    def total(self) -> float:
        """The sum of the log densities of the observed entries."""
        return float(self.log_density.nansum())


def spread(values: Tensor, rows: Tensor) -> Tensor:
    """Values of some of the rows (a mask), and NaN in the others."""
    whole = values.new_full((len(rows), *values.shape[1:]), torch.nan)
    whole[rows] = values
    return whole
