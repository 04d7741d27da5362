"""Scales of the data in which initial values, bounds and priors of hyperparameters are expressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ovkgp.kernels import EmpiricalMatrix

MAX_DISTANCE_ROWS = 500  # maximum number of rows between which distances are measured
MIN_RELATIVE_VARIANCE = 1e-3  # variance assigned to a constant output, relative to the mean of the others
ROUNDING_TOLERANCE = 1e-12  # an output whose standard deviation is below this, relative to its values, is constant


@dataclass
class Distances:
    """The 5 % quantile and the median of the nonzero distances, as vectors with one entry per column or one entry."""

    small: Tensor
    median: Tensor


def subsample(X: Tensor, num_rows: int = MAX_DISTANCE_ROWS) -> Tensor:
    """Return at most `num_rows` of the rows of X, always the same ones."""
    if len(X) <= num_rows:
        return X
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:num_rows].to(X.device)]


def column_distances(X: Tensor) -> Distances:
    """Return the distances within each column of X (n, d); 1 for a constant column."""
    found = [_quantiles(column) for column in subsample(X).T.unsqueeze(-1)]
    return Distances(torch.cat([one.small for one in found]), torch.cat([one.median for one in found]))


def row_distances(X: Tensor) -> Distances:
    """Return the Euclidean distances between the rows of X (n, d); 1 if all rows are equal."""
    return _quantiles(subsample(X))


def _quantiles(X: Tensor) -> Distances:
    X = X.detach().to("cpu", torch.float64)
    size = X.abs().amax().clamp_min(torch.finfo(torch.float64).tiny) if X.numel() else 1.0
    distances = torch.nn.functional.pdist(X / size).numpy()  # squares of 1e±200 would overflow
    distances = distances[distances > 0]
    quantiles = np.quantile(distances, [0.05, 0.5]) * float(size) if len(distances) else np.ones(2)
    return Distances(*torch.as_tensor(quantiles).unsqueeze(-1))


def output_covariance(Y: Tensor) -> Tensor:
    """Return the covariance (p, p) of the outputs Y (n, p), NaN where missing, with a positive diagonal.

    A constant output gets `MIN_RELATIVE_VARIANCE` times the mean variance of the others. If all outputs are constant,
    their mean square is used, or 1 if they are zero.
    """
    Y = Y.detach().to("cpu", torch.float64)
    largest = Y.nan_to_num(nan=0.0).abs().amax(0) if len(Y) else torch.zeros(Y.shape[1], dtype=torch.float64)
    unit = torch.where(largest > 0, largest, 1.0)  # outputs of very different scales would lose digits
    covariance, mean_square = _moments(Y / unit)
    covariance, mean_square = covariance * torch.outer(unit, unit), mean_square * unit.square()
    variances = covariance.diagonal()
    is_constant = variances == 0
    if bool(is_constant.all()):
        mean_square = mean_square.mean()
        return torch.eye(len(unit), dtype=torch.float64) * (mean_square if mean_square > 0 else 1.0)
    return covariance + torch.diag(
        torch.where(is_constant, MIN_RELATIVE_VARIANCE * variances[~is_constant].mean(), 0.0)
    )


def _moments(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the covariance (p, p), zero for constant and unobserved outputs, and the mean squares (p,)."""
    observed = ~Y.isnan()
    mean_square = torch.where(observed, Y, 0.0).square().sum(0) / observed.sum(0).clamp_min(1)
    covariance = torch.zeros(Y.shape[1], Y.shape[1], dtype=torch.float64)
    known = observed.any(0).nonzero().flatten()
    if len(Y) > 1 and len(known):
        covariance[known.unsqueeze(-1), known] = EmpiricalMatrix(Y[:, known])()
    is_constant = covariance.diagonal() <= ROUNDING_TOLERANCE**2 * mean_square
    covariance[is_constant] = 0.0
    covariance[:, is_constant] = 0.0
    return covariance, mean_square


@dataclass(frozen=True, eq=False)
class Units:
    """Inputs of a kernel and the covariance of the outputs that it explains.

    `covariance` is (p, p), or (1, 1) for scalar kernels and for equal outputs; `X` is (m, d), or None for standardized
    columns. Initial variances are `variance_factor` times these, and initial lengthscales `lengthscale_factor` times the
    typical ones; `sets_values` says whether initial values are known at all. `is_scaled` says that an outer kernel has the
    outputscale; `is_derivative_variance` that the variance is that of derivatives and has to be multiplied by ℓ².
    `parameter_unit` is the size of parameters without a role.
    """

    num_dims: int
    covariance: Tensor
    X: Tensor | None = None
    variance_factor: Tensor | float = 1.0
    lengthscale_factor: float = 1.0
    sets_values: bool = True
    is_scaled: bool = False
    is_derivative_variance: bool = False
    parameter_unit: Tensor | float = 1.0

    @classmethod
    def standard(cls, num_dims: int) -> Units:
        """Return the units of standardized data."""
        return cls(num_dims, torch.ones(1, 1, dtype=torch.float64))

    @classmethod
    def of(cls, X: Tensor, covariance: Tensor) -> Units:
        """Return the units of inputs X (n, d) and outputs with a covariance (p, p)."""
        return cls(X.shape[1], covariance, X.detach().to("cpu", torch.float64))

    @cached_property
    def rows(self) -> Tensor:
        """At most 500 rows of X."""
        return subsample(self.X)

    @cached_property
    def column_scales(self) -> Tensor:
        """Standard deviation of each column (d,); 1 for a constant column."""
        if self.X is None or len(self.X) < 2:
            return torch.ones(self.num_dims, dtype=torch.float64)
        std = self.X.std(0, correction=0)
        return torch.where(std > ROUNDING_TOLERANCE * self.X.abs().amax(0), std, 1.0)

    @property
    def center(self) -> Tensor:
        """Mean of each column (d,)."""
        return torch.zeros(self.num_dims, dtype=torch.float64) if self.X is None else self.X.mean(0)

    @property
    def mean_squared_norm(self) -> Tensor:
        """Mean of ‖x‖²."""
        return (self.column_scales.square() + self.center.square()).sum()

    @property
    def typical_distance(self) -> Tensor:
        """Typical distance between rows: the root of the summed squares of the column scales."""
        return self.column_scales.square().sum().sqrt()

    @property
    def deviations(self) -> Tensor:
        """Standard deviations of the outputs (p,)."""
        return self.covariance.diagonal().sqrt()

    @property
    def variance(self) -> Tensor:
        """Mean variance of the outputs."""
        return self.covariance.diagonal().mean()

    @property
    def initial_covariance(self) -> Tensor:
        """Covariance that the kernel should have initially."""
        return self.variance_factor * self.covariance

    @property
    def initial_variance(self) -> Tensor:
        """Mean variance that the kernel should have initially."""
        return self.variance_factor * self.variance

    def select_columns(self, active_dims: Tensor | Sequence[int] | None) -> Units:
        """Return the units of a kernel with these `active_dims`."""
        if active_dims is None:
            return self
        index = torch.as_tensor(active_dims).cpu()
        return replace(self, num_dims=len(index), X=None if self.X is None else self.X[:, index])

    def with_inputs(self, X: Tensor | None, num_dims: int) -> Units:
        """Return the units of a kernel on other inputs, such as warped inputs or tasks."""
        return replace(self, num_dims=num_dims, X=None if X is None else subsample(X.detach().to("cpu", torch.float64)))

    def for_output(self, index: int) -> Units:
        """Return the units of a scalar kernel that explains one of the outputs."""
        variances = self.covariance.diagonal()
        return self.as_scalar(variances[min(index, len(variances) - 1)])

    def as_scalar(self, variance: Tensor | None = None) -> Units:
        """Return the units of a scalar kernel with this variance; if None, of one that has variance 1 initially too."""
        if variance is None:
            return replace(self, covariance=torch.ones(1, 1, dtype=torch.float64), variance_factor=1.0)
        return replace(self, covariance=variance.to(torch.float64).reshape(1, 1))

    def share(self, fraction: Tensor | float) -> Units:
        """Return the units of a kernel that explains a fraction of the variance initially."""
        return replace(self, variance_factor=self.variance_factor * fraction)

    def normalized(self) -> Units:
        """Return the same units with mean variance 1, for a kernel inside one that has an outputscale."""
        covariance = self.covariance / self.variance
        return replace(self, covariance=covariance, variance_factor=1.0, is_scaled=True, is_derivative_variance=False)
