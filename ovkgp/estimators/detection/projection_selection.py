"""Choice of the lengthscale and of the number of random projections by a Kolmogorov-Smirnov distance (KT-62)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import gammainc

from ovkgp.estimators.common.task_options import task_kernel
from ovkgp.estimators.detection.columns import ExactColumns


def chi_square_values(log_s: np.ndarray, log_variances: np.ndarray, num_projections: int) -> np.ndarray:
    """Return F(S(x)/s_i²) (m, n), F being the lower distribution function of χ²(p)."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(log_s[:, None] - log_variances)
    ratio[np.isnan(ratio)] = np.inf  # zero over zero: as typical as the training row
    return gammainc(num_projections / 2, ratio / 2)


def ks_distance(log_s: np.ndarray, log_variances: np.ndarray, num_projections: int) -> float:
    """Return the largest distance between the empirical distribution of S and the mean of those of s_i² χ²(p)."""
    n, expected = len(log_s), chi_square_values(np.sort(log_s), log_variances, num_projections).mean(1)
    rank = np.arange(n)
    return float(np.maximum(np.abs((rank + 1) / n - expected), np.abs(rank / n - expected)).max())


class ProjectionChoice(NamedTuple):
    """Chosen lengthscale ℓ and number of projections, and the smoothed distances `ks` (q, L) they were chosen from."""

    lengthscale: float
    num_projections: int
    lengthscales: np.ndarray
    candidates: np.ndarray
    ks: np.ndarray


def choose_projection(
    rows: np.ndarray,
    lengthscales: np.ndarray,
    candidates: Sequence[int],
    *,
    kernel: str = "rbf",
    leave_one_out: bool = True,
    half_window: int = 5,
    num_tested: int | None = None,
    rng: np.random.Generator,
) -> ProjectionChoice:
    """Choose the smallest smoothed distance KS between tested rows and all others, half of the rows (n, d) each by default.

    `lengthscales` (decreasing) and numbers of projections are candidates; each pair has new directions. With leave-one-out
    variances the curve hardly rises beyond its minimum: the largest lengthscale within one standard error of the minimum is
    chosen. γ = 1/(2ℓ²) is then multiplied by (n / n_reference)^(1/d), since the optimum is proportional to n^(1/d).
    """
    n, d = rows.shape
    num_tested = n // 2 if num_tested is None else num_tested
    tested, reference = rows[:num_tested], rows[num_tested:]
    columns = ExactColumns(task_kernel(kernel, 1.0, torch.from_numpy(rows)), reference)
    values = np.empty((len(candidates), len(lengthscales)))
    for k, lengthscale in enumerate(lengthscales):
        columns.kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
        for i, p in enumerate(candidates):
            directions = rng.standard_normal((p, len(reference)))
            projection, variances, _ = columns.project(directions, leave_one_out)
            values[i, k] = ks_distance(columns.log_statistics(tested, projection), variances, p)
    smooth, errors = smooth_rows(values, half_window)
    inner = lengthscales[half_window : len(lengthscales) - half_window]
    i, best = np.unravel_index(smooth.argmin(), smooth.shape)
    if leave_one_out:
        best = np.flatnonzero(smooth[i] <= smooth[i, best] + errors[i, best])[0]
    chosen = float(inner[best]) * (len(reference) / n) ** (1 / (2 * d))
    return ProjectionChoice(chosen, int(candidates[i]), inner, np.asarray(candidates), smooth)


def smooth_rows(values: np.ndarray, half_window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the averages over 2T + 1 neighbors in each row (q, L − 2T), and their standard errors."""
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half_window + 1, axis=1)
    return windows.mean(2), windows.std(2) / np.sqrt(max(2 * half_window, 1))
