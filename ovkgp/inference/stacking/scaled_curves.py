"""Curves whose variance changes along the domain: a model of y(θ)/s(θ), times a smooth curve s of standard deviations.

A kernel k_Θ of the domain with one variance has bands of one width for all points, which are too wide where curves vary little. Where all
curves share a complete grid, principal components and a shared kernel of the inputs have a variance for each point; with gaps, s is estimated
from the squares of all observed values, as a spline of their logarithms, and the model with s is weighted against those without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ovkgp.functional.mean_curve import MeanCurve, fit_mean_curve
from ovkgp.inference.posteriors.curves import CURVE_CHUNK_ENTRIES, CurveFunctions

if TYPE_CHECKING:
    from ovkgp.inference.stacking.curve_candidates import CurveData

MIN_RATIO = 2.0  # of the largest to the smallest standard deviation, below which one variance is enough
MIN_SCALE_CURVES, MIN_SCALE_POINTS = 20, 8  # curves, and distinct points per dimension, below which s is not estimated
MAX_SCALE_CURVES, MAX_SCALE_POINTS = 300, 120  # of the data from which it is estimated, of complete curves
NUM_SPLINES = {1: 6, 2: 4}  # per dimension of the domain
MIN_RELATIVE_SQUARE = 1e-4  # lowest square relative to their mean, as logarithms have no lower bound


@dataclass(frozen=True)
class ScaleCurve:
    """Standard deviation s(θ) of each channel, a smooth curve."""

    log_std: MeanCurve

    def __call__(self, tasks: Tensor) -> Tensor:
        """Return s (M·q,) at points (M, t); it is constant beyond the points of the data."""
        inside = np.clip(tasks.numpy(), *self.log_std.domain.T)
        return torch.from_numpy(np.exp(self.log_std(inside)).ravel())

    def log_slopes(self, tasks: Tensor) -> Tensor:
        """Return the derivative (M·q,) of log s at points (M, 1)."""
        points = tasks.numpy()
        inside = np.clip(points, *self.log_std.domain.T)
        return torch.from_numpy(np.where(points == inside, self.log_std(inside, 1), 0.0).ravel())

    def relative_to(self, std: tuple[float, ...]) -> ScaleCurve:
        """Divide s by the standard deviations of the channels (q,), so that divided curves keep their units."""
        mean = self.log_std  # splines sum to 1
        return ScaleCurve(MeanCurve(mean.domain, mean.grid, mean.coefficients - np.log(std), mean.knots))

    def divide(self, data: CurveData) -> CurveData:
        """Divide the curves by s."""
        return replace(data, Y=data.Y / self(data.tasks))


def fit_scale_curve(data: CurveData) -> ScaleCurve | None:
    """Estimate s from centered curves; None if it varies by less than a factor of 2, or from few curves or points."""
    count = MAX_SCALE_POINTS if data.is_complete else len(data.tasks)
    part = data.subset(MAX_SCALE_CURVES, count, data.Y.numel())
    points, t = part.tasks.numpy(), part.tasks.shape[1]
    if t not in NUM_SPLINES or len(part.X) < MIN_SCALE_CURVES:
        return None
    if min(len(np.unique(column)) for column in points.T) < MIN_SCALE_POINTS:
        return None
    squares = np.square(part.Y.unflatten(1, (-1, part.num_channels)).numpy())  # (n, g, q)
    size = np.nanmean(squares, (0, 1))
    if not size.all():
        return None
    logs = 0.5 * np.log(np.maximum(squares / size, MIN_RELATIVE_SQUARE))  # of order 1 in any units
    curve, at = (~np.isnan(squares).all(2)).nonzero()
    domain = np.stack([points.min(0), points.max(0)], -1)
    mean = fit_mean_curve(domain, curve, points[at], logs[curve, at], NUM_SPLINES[t])
    found = mean(points)  # (g, q)
    if np.ptp(found, axis=0).max() < np.log(MIN_RATIO):
        return None
    level = 0.5 * np.log(np.nanmean(squares / np.exp(2 * found), (0, 1)))
    return ScaleCurve(MeanCurve(domain, None, mean.coefficients + level, mean.knots))  # splines sum to 1


class ScaledCurves:
    """Component of a `CurveMixture` that is another one of divided curves z, times s: y = s z, and y' = s (z' + z (log s)')."""

    has_derivatives = True

    def __init__(self, component, scale: ScaleCurve):
        self.component, self.scale = component, scale

    def _multiply(self, values: Tensor, tasks: Tensor, derivative: int) -> Tensor:
        """Return values of y or y' (..., M·q) from those of z (..., M·q), or of z and z' (..., 2·M·q)."""
        if not derivative:
            return values * self.scale(tasks)
        z, slopes = values.chunk(2, -1)
        return self.scale(tasks) * (slopes + self.scale.log_slopes(tasks) * z)

    def _multiply_covariance(self, covariance: Tensor, tasks: Tensor, derivative: int) -> Tensor:
        """Return the covariance of y or y' (..., M·q, M·q)."""
        return self._multiply(self._multiply(covariance, tasks, derivative).mT, tasks, derivative)

    @staticmethod
    def _request(tasks: Tensor, derivative: int) -> tuple[Tensor, Tensor | int]:
        """Return the points of the divided curves, and the orders of their derivatives: z, or z and z'."""
        if not derivative:
            return tasks, 0
        return torch.cat([tasks, tasks]), torch.arange(2).repeat_interleave(len(tasks))

    def moments(self, X: Tensor, tasks: Tensor, form: str, derivative: int = 0) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, M·q) and covariance of f, or of its derivative: "none", "diag" or "output"."""
        points, orders = self._request(tasks, derivative)
        if form != "diag" or not derivative:
            mean, covariance = self.component.moments(X, points, form, orders)
            if form == "output":
                covariance = self._multiply_covariance(covariance, tasks, derivative)
            elif form == "diag":
                covariance = covariance * self.scale(tasks).square()
            return self._multiply(mean, tasks, derivative), covariance
        size = max(CURVE_CHUNK_ENTRIES // (2 * len(self.scale(tasks))) ** 2, 1)
        found = [self.moments(part, tasks, "output", derivative) for part in X.split(size)]
        return torch.cat([mean for mean, _ in found]), torch.cat([C.diagonal(dim1=1, dim2=2) for _, C in found])

    def deviation_at(self, tasks: Tensor, derivative: int = 0) -> Tensor | None:
        """Return the covariance (M·q, M·q) of the deviations of a new curve; None if there are none."""
        smooth = self.component.deviation_at(*self._request(tasks, derivative))
        return None if smooth is None else self._multiply_covariance(smooth, tasks, derivative)

    def deviation_variances_at(self, tasks: Tensor, derivative: int = 0) -> Tensor | float:
        """Return the diagonal (M·q,) of `deviation_at`; 0 if there are no deviations."""
        if not derivative:
            return self.component.deviation_variances_at(tasks) * self.scale(tasks).square()
        smooth = self.deviation_at(tasks, derivative)
        return 0.0 if smooth is None else smooth.diagonal()

    def white_at(self, tasks: Tensor) -> Tensor:
        """Return the white variances (M·q,) of a new curve."""
        return self.component.white_at(tasks) * self.scale(tasks).square()

    def sample(self, X: Tensor, tasks: Tensor, k: int, *, derivative: int = 0, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, M·q) of f."""
        points, orders = self._request(tasks, derivative)
        draws = self.component.sample(X, points, k, derivative=orders, random_state=random_state)
        return self._multiply(draws, tasks, derivative)

    def sample_functions(self, k: int, *, random_state=None) -> CurveFunctions:
        """Draw k random functions f, as `CurvePosterior.sample_functions` does."""
        evaluate = self.component.sample_functions(k, random_state=random_state)
        return lambda X, tasks, index: evaluate(X, tasks, index) * self.scale(tasks)
