"""Random projections of the columns k_x = (k(X_i, x)) of a kernel, exact or of low rank (KT-46, 58, 59).

Given rows X_i and directions U (p, n) of independent N(0, 1), S(x) = ‖U k_x‖²/n has the distribution S_n(x, x) χ²(p), with
S_n(x, x) = (1/n) Σ_i k(X_i, x)². All kernels are scaled to k(x, x) = 1. Results are logarithms, so that squares of small
kernel values do not underflow: with γ = 1/(2ℓ²), k² = exp(−2γd²) is zero in double precision from d = 27ℓ on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.features import ORFF, FeatureMap, Nystrom
from ovkgp.kernels.evaluation import evaluate_kernel, squared_distances

CHUNK_ENTRIES = 1 << 22  # number of kernel values that are computed together


def split_rows(points: np.ndarray, num_columns: int) -> tuple[Tensor, ...]:
    """Split points (m, d) into parts whose matrices with `num_columns` columns are not too large."""
    return torch.from_numpy(points).split(max(1, CHUNK_ENTRIES // num_columns))


@storable_record
@dataclass(frozen=True, eq=False)
class ExactColumns:
    """Columns of a kernel at the rows (n, d)."""

    kernel: Kernel
    rows: np.ndarray

    def project(self, directions: np.ndarray, leave_one_out: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the projection, log s_i² (n,), and log S(x_i) (n,) of each row without itself.

        s_i² is the mean of k(X_j, X_i)² over all other rows, or over all rows if not `leave_one_out`.
        """
        n, start = len(self.rows), 0
        variances, own = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.float64)
        for part in split_rows(self.rows, n):
            log, sign = self._log_columns(part)
            these, index = slice(start, start := start + len(part)), torch.arange(len(part))
            everyone = torch.logsumexp(2 * log, 1) - np.log(n)
            log[index, these.start + index] = -torch.inf
            variances[these] = torch.logsumexp(2 * log, 1) - np.log(n - 1) if leave_one_out else everyone
            own[these] = _log_squares(log, sign, directions) - np.log(n - 1)
        return directions, variances.numpy(), own.numpy()

    def log_statistics(self, points: np.ndarray, projection: np.ndarray) -> np.ndarray:
        """Return log S(x) (m,) at points (m, d)."""
        parts = split_rows(points, len(self.rows))
        found = [_log_squares(*self._log_columns(part), projection) for part in parts]
        return torch.cat(found).numpy() - np.log(len(self.rows))

    def log_mean_squares(self, points: np.ndarray) -> np.ndarray:
        """Return log S_n(x, x) (m,) at points (m, d), the logarithms of means of k(X_i, x)²."""
        parts = split_rows(points, len(self.rows))
        return torch.cat([torch.logsumexp(2 * self._log_columns(part)[0], 1) for part in parts]).numpy() - np.log(
            len(self.rows)
        )

    def _log_columns(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return log |k(x, X_i)| (m, n) and the sign of k(x, X_i)."""
        kernel, rows = self.kernel, torch.from_numpy(self.rows)
        if type(kernel) is RBFKernel and kernel.active_dims is None:  # the logarithm of exp(−745) without underflow
            log = -squared_distances(points / kernel.lengthscale, rows / kernel.lengthscale) / 2
            return log, torch.ones_like(log)
        values = to_dense(evaluate_kernel(kernel, points, rows))
        values = values / _stds(kernel, points)[:, None] / _stds(kernel, rows)
        return values.abs().log(), values.sign()


@storable_record
@dataclass(frozen=True, eq=False)
class LowRankColumns:
    """Columns of the low-rank kernel k̃(x, z) = Z(x) Z(z)ᵀ, from random features or landmarks (r, d) (KT-59)."""

    kernel: Kernel
    num_rows: int
    features: ORFF | None
    landmarks: np.ndarray | None

    def project(self, rows: np.ndarray, directions: np.ndarray, leave_one_out: bool):
        """Return the projection U Z (p, r), and the same as `ExactColumns.project`, from Z (n, r), in O(n r²)."""
        n, features = self.num_rows, self._features()
        Z = torch.cat([self._rows(features, part) for part in split_rows(rows, features.num_features)]).numpy()
        projection, norms = directions @ Z, np.square(Z).sum(1)
        # Σ_j k̃(X_j, X_i)²
        sums = np.square(Z @ Z.T).sum(1) if n < Z.shape[1] else ((Z @ (Z.T @ Z)) * Z).sum(1)
        others = np.maximum(sums - norms**2, 0.0)  # not sums − 1: k̃(x, x) ≤ 1
        own = np.square(Z @ projection.T - directions.T * norms[:, None]).sum(1)
        with np.errstate(divide="ignore"):
            variances = np.log(others / (n - 1) if leave_one_out else sums / n)
            return projection, variances, np.log(own / (n - 1))

    def log_statistics(self, points: np.ndarray, projection: np.ndarray) -> np.ndarray:
        """Return log S(x) (m,) at points (m, d)."""
        features = self._features()
        parts = split_rows(points, features.num_features)
        squares = [np.square(self._rows(features, part).numpy() @ projection.T).sum(1) for part in parts]
        with np.errstate(divide="ignore"):
            return np.log(np.concatenate(squares) / self.num_rows)

    def _features(self) -> FeatureMap:
        if self.features is not None:
            return self.features
        return Nystrom(self.kernel, torch.from_numpy(self.landmarks))

    def _rows(self, features: FeatureMap, points: Tensor) -> Tensor:
        with torch.no_grad():
            return to_dense(features(points)) / _stds(self.kernel, points)[:, None]


def _log_squares(log: Tensor, sign: Tensor, directions: np.ndarray) -> Tensor:
    """Return log ‖U k_x‖² (m,) from log |k_x| and its sign (m, n), for directions U (p, n)."""
    largest = log.amax(1, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    projected = (sign * (log - largest).exp()) @ torch.from_numpy(directions).T
    return 2 * largest[:, 0] + projected.square().sum(1).log()


def _stds(kernel: Kernel, points: Tensor) -> Tensor:
    """Return the standard deviations √k(x, x) (m,), which must be positive."""
    variances = to_dense(evaluate_kernel(kernel, points, diag=True)).detach()
    if not bool((variances > 0).all()):
        row = int((variances <= 0).nonzero()[0])
        raise InputError(f"kernel must have k(x, x) > 0, got 0 at row {row} of X. Add a constant to the kernel.")
    return variances.sqrt()
