"""Predictive densities of each row given all other rows, in closed form.

With C = K + noise on the observed entries, α = C⁻¹ (y − m) and B_i the block of C⁻¹ between the entries of row i,

    y_i | y_−i  ~  N(y_i − B_i⁻¹ α_i,  B_i⁻¹).

Where outputs are coupled this is another thing than leaving out entries one by one (`ovkgp.inference.posteriors.leave_one_out`): the other
outputs of the same row, with the same inputs, tell much of an entry, and nothing of a new row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.model.observations import Observations


class LeaveOneOut(NamedTuple):
    """Mean, standard deviation and log density of each entry given all others, (n, p), NaN where nothing was observed."""

    mean: Tensor
    std: Tensor
    log_density: Tensor

    @classmethod
    def from_inverse(cls, data: Observations, alpha: Tensor, diagonal: Tensor) -> LeaveOneOut:
        """From α and diag C⁻¹, both (n, p)."""
        observed = data.observed
        if not bool((diagonal[observed] > 0).all()):
            raise FactorizationError("the inverse covariance has a diagonal that is not positive: raise the noise.")
        diagonal = torch.where(observed, diagonal, torch.nan)
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


class LeaveRowOut(NamedTuple):
    """Means and standard deviations (n, p) of each row given all others, NaN where nothing was observed, and the log density (n,) of
    what was."""

    mean: Tensor
    std: Tensor
    log_density: Tensor
    quadratic: Tensor
    """(y_i − mean)ᵀ B_i (y_i − mean), (n,)."""

    @classmethod
    def from_blocks(cls, data: Observations, alpha: Tensor, blocks: Tensor) -> LeaveRowOut:
        """From α (n, p) and the blocks B (n, p, p), both zero where nothing was observed. O(n p³)."""
        filled = blocks + torch.diag_embed((~data.observed).to(blocks))
        chol, info = torch.linalg.cholesky_ex(filled)
        if bool(info.any()):
            raise FactorizationError("a block of the inverse covariance is not positive definite: raise the noise.")
        covariance = torch.cholesky_inverse(chol)
        deviation = (covariance @ alpha.unsqueeze(-1)).squeeze(-1)
        logdet = -2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls.of(data, alpha, deviation, covariance.diagonal(dim1=-2, dim2=-1), logdet)

    @classmethod
    def of(cls, data: Observations, alpha: Tensor, deviation: Tensor, variance: Tensor, logdet: Tensor) -> LeaveRowOut:
        """From B⁻¹ α (n, p), the diagonals of B⁻¹ (n, p) and their log determinants (n,)."""
        observed = data.observed
        quadratic = torch.where(observed, alpha * deviation, 0.0).sum(-1)
        log_density = -0.5 * (quadratic + logdet + observed.sum(-1) * math.log(2 * math.pi))
        std = torch.where(observed, variance, torch.nan).sqrt()
        return cls(data.Y - deviation, std, log_density, quadratic)

    @classmethod
    def stack(cls, parts: list[LeaveRowOut]) -> LeaveRowOut:
        """Consecutive rows as one."""
        return cls(*(torch.cat(fields) for fields in zip(*parts, strict=True)))

    def spread(self, rows: Tensor) -> LeaveRowOut:
        """The same with NaN in the rows (a mask) that were left out."""
        return LeaveRowOut(*(spread(field, rows) for field in self))
