"""Leave-one-out predictive densities in closed form: of an entry given all others, and of a row given all others.

With C = K + noise on the observed entries, α = C⁻¹ (y − m) and B_i the block of C⁻¹ between the entries of row i,

    y_i | y_−i  ~  N(y_i − B_i⁻¹ α_i,  B_i⁻¹).

If outputs are coupled the two differ: the other outputs of a row are informative about an entry, but unknown for a new
row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.model.observations import Observations


def _stack(cls, parts: list):
    """Concatenate consecutive rows."""
    return cls(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _expand_rows(self, rows: Tensor | None):
    """Insert rows of NaN where the mask `rows` is False; None is True everywhere."""
    return type(self)(*(expand_rows(field, rows) for field in self))


class LeaveOneOut(NamedTuple):
    """Predictive mean, standard deviation and log density of each entry given all others.

    Attributes
    ----------
    mean, std, log_density : Tensor of shape (n, p)
        NaN for entries that were not observed.
    """

    mean: Tensor
    std: Tensor
    log_density: Tensor

    @classmethod
    def from_inverse(cls, data: Observations, alpha: Tensor, diagonal: Tensor) -> LeaveOneOut:
        """Compute from α and diag C⁻¹, both (n, p)."""
        observed = data.observed
        if not bool((diagonal[observed] > 0).all()):
            raise FactorizationError("The diagonal of the inverse covariance is not positive. Increase the noise.")
        diagonal = torch.where(observed, diagonal, torch.nan)
        deviation = alpha / diagonal
        log_density = 0.5 * (diagonal.log() - math.log(2 * math.pi) - alpha * deviation)
        return cls(data.Y - deviation, diagonal.rsqrt(), log_density)

    stack = classmethod(_stack)
    expand_rows = _expand_rows

    @property
    def total(self) -> float:
        """Sum of the log densities of the observed entries."""
        return float(self.log_density.nansum())


def expand_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Insert rows of NaN where the mask `rows` is False; None is True everywhere."""
    if rows is None:
        return values
    whole = values.new_full((len(rows), *values.shape[1:]), torch.nan)
    whole[rows] = values
    return whole


class LeaveRowOut(NamedTuple):
    """Means and standard deviations (n, p) of each row given all others, NaN if missing, and its log density (n,)."""

    mean: Tensor
    std: Tensor
    log_density: Tensor
    quadratic: Tensor
    """(y_i − mean)ᵀ B_i (y_i − mean), (n,)."""

    @classmethod
    def from_blocks(cls, data: Observations, alpha: Tensor, blocks: Tensor) -> LeaveRowOut:
        """Compute from α (n, p) and the blocks B (n, p, p), both zero for missing entries. O(n p³)."""
        filled = blocks + torch.diag_embed((~data.observed).to(blocks))
        chol, info = torch.linalg.cholesky_ex(filled)
        if bool(info.any()):
            raise FactorizationError("A block of the inverse covariance is not positive definite. Increase the noise.")
        covariance = torch.cholesky_inverse(chol)
        deviation = (covariance @ alpha.unsqueeze(-1)).squeeze(-1)
        logdet = -2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls.from_deviations(data, alpha, deviation, covariance.diagonal(dim1=-2, dim2=-1), logdet)

    @classmethod
    def from_deviations(
        cls, data: Observations, alpha: Tensor, deviation: Tensor, variance: Tensor, logdet: Tensor
    ) -> LeaveRowOut:
        """Compute from B⁻¹ α (n, p), the diagonals of B⁻¹ (n, p) and their log determinants (n,)."""
        observed = data.observed
        quadratic = torch.where(observed, alpha * deviation, 0.0).sum(-1)
        log_density = -0.5 * (quadratic + logdet + observed.sum(-1) * math.log(2 * math.pi))
        std = torch.where(observed, variance, torch.nan).sqrt()
        return cls(data.Y - deviation, std, log_density, quadratic)

    stack = classmethod(_stack)
    expand_rows = _expand_rows
