"""How large things are in the data: distances between inputs, covariances between outputs.

Distances are quantiles of the nonzero |x_i − x_j| over at most 500 rows; the output covariance is over pairs of entries
that were both observed. Degenerate data (one row, constant columns) give finite, positive sizes all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.kernels import EmpiricalMatrix

MOST_ROWS = 500
"""Rows between which distances are measured."""
FLOOR = 1e-3
"""The variance that is given to a constant output, relative to the mean of the others."""
ROUNDING = 1e-12
"""A spread below this, relative to the values, is rounding: the output is constant."""


@dataclass
class Distances:
    """The 5 % quantile and the median of the nonzero distances, as vectors: one a column, or a single one."""

    small: Tensor
    median: Tensor


def subsample(X: Tensor, num_rows: int = MOST_ROWS) -> Tensor:
    """At most `num_rows` of the rows of X, always the same ones."""
    if len(X) <= num_rows:
        return X
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:num_rows].to(X.device)]


def column_distances(X: Tensor) -> Distances:
    """Of each column of X (n, d) alone; 1 for a constant column."""
    found = [_quantiles(column) for column in subsample(X).T.unsqueeze(-1)]
    return Distances(torch.cat([one.small for one in found]), torch.cat([one.median for one in found]))


def row_distances(X: Tensor) -> Distances:
    """Euclidean ones between the rows of X (n, d); 1 where all rows are equal."""
    return _quantiles(subsample(X))


def _quantiles(X: Tensor) -> Distances:
    X = X.detach().to("cpu", torch.float64)
    size = X.abs().amax().clamp_min(torch.finfo(torch.float64).tiny) if X.numel() else 1.0
    distances = torch.nn.functional.pdist(X / size).numpy()  # squares of 1e±200 would leave the range of numbers
    distances = distances[distances > 0]
    quantiles = np.quantile(distances, [0.05, 0.5]) * float(size) if len(distances) else np.ones(2)
    return Distances(*torch.as_tensor(quantiles).unsqueeze(-1))


def output_covariance(Y: Tensor) -> Tensor:
    """The covariance (p, p) of the outputs Y (n, p), NaN where missing, with a positive diagonal.

    A constant output has `FLOOR` times the mean variance of the others; where all are constant their mean square is
    taken, or 1 where they are zero.

    Example:
        >>> import torch
        >>> from ovkgp.inference.data_scales import output_covariance
        >>> output_covariance(torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])).round(decimals=6).tolist()
        [[1.0, 0.0], [0.0, 0.001]]
    """
    Y = Y.detach().to("cpu", torch.float64)
    largest = Y.nan_to_num(nan=0.0).abs().amax(0) if len(Y) else torch.zeros(Y.shape[1], dtype=torch.float64)
    unit = torch.where(largest > 0, largest, 1.0)  # outputs in units far apart would lose digits to one another
    covariance, level = _moments(Y / unit)
    covariance, level = covariance * torch.outer(unit, unit), level * unit.square()
    variances = covariance.diagonal()
    is_constant = variances == 0
    if bool(is_constant.all()):
        level = level.mean()
        return torch.eye(len(unit), dtype=torch.float64) * (level if level > 0 else 1.0)
    return covariance + torch.diag(torch.where(is_constant, FLOOR * variances[~is_constant].mean(), 0.0))


def _moments(Y: Tensor) -> tuple[Tensor, Tensor]:
    """The covariance (p, p), zero for constant and unseen outputs, and the mean squares (p,)."""
    seen = ~Y.isnan()
    level = torch.where(seen, Y, 0.0).square().sum(0) / seen.sum(0).clamp_min(1)
    covariance = torch.zeros(Y.shape[1], Y.shape[1], dtype=torch.float64)
    known = seen.any(0).nonzero().flatten()
    if len(Y) > 1 and len(known):
        covariance[known.unsqueeze(-1), known] = EmpiricalMatrix(Y[:, known])()
    is_constant = covariance.diagonal() <= ROUNDING**2 * level
    covariance[is_constant] = 0.0
    covariance[:, is_constant] = 0.0
    return covariance, level
