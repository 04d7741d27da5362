"""Units of curves: a smooth mean curve, one scale per channel, and standardized inputs and points of the domain.

With a kernel object, whose values are in original units, curves are only centered, and what the object reads is not scaled.

Where curves have gaps, the average of the few curves observed at a point depends on which curves these are. The mean curve is therefore a
spline that is estimated together with smooth deviations of the curves (`fit_mean_curve`). Where the points of a one-dimensional grid are
much denser in some parts than in others, as depths of 0, 5, 10, …, 1000, 3000 m, no kernel with one lengthscale suits all parts: the
domain is warped by the ranks of the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator

from ovkgp.estimators.common.summary import Hyperparameter
from ovkgp.estimators.storage.values import storable_record
from ovkgp.functional.mean_curve import SPLINE_DEGREE, MeanCurve, fit_mean_curve
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.scales import mean_and_std, root_mean_square, unit_of

MAX_MEAN_CURVES, MAX_MEAN_POINTS = 500, 200  # curves, and points of complete curves, from which the mean is estimated
MAX_MEAN_VALUES = 20_000  # values from which it is estimated in several dimensions
MIN_SPLINE_POINTS = 4  # points below which the mean of complete curves is pointwise
NUM_WARP_BLOCKS = 8  # groups of neighboring points whose spacing is compared
MAX_LISTED_VALUES = 20  # values of one hyperparameter that are listed
PARAMETER_LABELS = {
    "input_kernel": "kernel of the inputs",
    "task_kernel": "kernel of the domain",
    "deviation": "deviations",
}
MAX_SPACING_RATIO = 5.0  # of the largest to the median spacing, above which the domain is warped


@storable_record
@dataclass(frozen=True)
class PointWarp:
    """Increasing map of a one-dimensional domain, with values (k,) at nodes (k,): a monotone spline, linear beyond its ends."""

    nodes: np.ndarray
    ranks: np.ndarray

    @classmethod
    def of(cls, points: np.ndarray) -> PointWarp | None:
        """Map points (g, t) to their ranks, smoothly, if their spacing is very uneven; else None."""
        if points.shape[1] > 1 or len(points) < MIN_SPLINE_POINTS:
            return None
        x = np.unique(points[:, 0])
        size = max(-(-len(x) // NUM_WARP_BLOCKS), min(2, len(x) // MIN_SPLINE_POINTS))
        index = np.unique(np.append(np.arange(0, len(x) - 1, max(size, 1)), len(x) - 1))
        spacing = np.diff(x[index]) / np.diff(index)
        if spacing.max() <= MAX_SPACING_RATIO * np.median(spacing):
            return None
        return cls(x[index], index.astype(float))

    def __call__(self, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return images (k, 1) of points (k, 1), or the derivative of the map."""
        spline, inside = PchipInterpolator(self.nodes, self.ranks), np.clip(points, self.nodes[0], self.nodes[-1])
        slopes = spline(inside, 1)
        return slopes if derivative else spline(inside) + slopes * (points - inside)


@storable_record
@dataclass(frozen=True)
class CurveScaling:
    """Offsets and scales of inputs (d,), points (t,) and channels (q,), the mean curve in original units, and the warp of the points.

    `output_std` are the standard deviations (q,) of the channels after scaling, 1 unless a kernel object is in original units.
    """

    input_offset: np.ndarray
    input_scale: np.ndarray
    point_offset: np.ndarray
    point_scale: np.ndarray
    output_scale: np.ndarray
    mean: MeanCurve
    warp: PointWarp | None = None
    output_std: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        points: np.ndarray,
        values: np.ndarray,
        can_warp: bool = True,
        scales_inputs: bool = True,
        scales_points: bool = True,
    ) -> CurveScaling:
        """Compute the units of inputs (n, d) and values (n, g, q), NaN if missing, at points (g, t).

        Values are scaled if inputs and points are, which kernel objects forbid.
        """
        warp = PointWarp.of(points) if can_warp and scales_points else None
        warped = points if warp is None else warp(points)
        offsets, scales = zip(
            *(
                _standardize(array) if is_scaled else (np.zeros(array.shape[1]), np.ones(array.shape[1]))
                for array, is_scaled in ((X, scales_inputs), (warped, scales_points))
            ),
            strict=True,
        )
        standard = (warped - offsets[1]) / scales[1]
        mean = fit_smooth_mean(standard, values)
        residuals = values - mean(standard)
        std = root_mean_square(residuals, (0, 1))
        size = np.nanmax(np.abs(values), (0, 1), initial=0.0)
        scale = np.where(std > 1e-12 * size, std, np.where(size > 0, size, 1.0))
        one = np.ones(len(scale))
        scale, std = (scale, one) if scales_inputs and scales_points else (one, scale)
        return cls(offsets[0], scales[0], offsets[1], scales[1], scale, mean, warp, std)

    @classmethod
    def identity(cls, X: np.ndarray, points: np.ndarray, values: np.ndarray) -> CurveScaling:
        """Return original units, without a mean curve."""
        (d, t), q = (X.shape[1], points.shape[1]), values.shape[2]
        mean = _constant_mean(points, np.zeros(q))
        return cls(np.zeros(d), np.ones(d), np.zeros(t), np.ones(t), np.ones(q), mean)

    def inputs(self, X: np.ndarray) -> torch.Tensor:
        """Return standardized inputs."""
        return torch.from_numpy(np.ascontiguousarray((X - self.input_offset) / self.input_scale, dtype=np.float64))

    def points(self, points: np.ndarray) -> torch.Tensor:
        """Return standardized points (g, t)."""
        warped = points if self.warp is None else self.warp(points)
        return torch.from_numpy(np.ascontiguousarray((warped - self.point_offset) / self.point_scale))

    def standardize(self, values: np.ndarray, points: np.ndarray) -> torch.Tensor:
        """Return standardized values (n, g·q) of values (n, g, q) at points (g, t) in original units."""
        centered = (values - self.mean_values(points)) / self.output_scale
        return torch.from_numpy(centered.reshape(len(values), -1))

    def values(self, standard, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return values (..., g, q) in original units from standardized ones (..., g·q)."""
        return self.std(standard, derivative, points) + self.mean_values(points, derivative)

    def mean_values(self, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return the mean curve (g, q) at points (g, t), or its derivative; it is constant beyond the points of the fit."""
        standard = self.points(points).numpy()
        inside = np.clip(standard, *self.mean.domain.T)
        values = self.mean(inside, derivative)
        if derivative:
            values = np.where(standard == inside, values, 0.0) * self._rate(points)
        return values

    def std(self, standard, derivative: int = 0, points: np.ndarray | None = None) -> np.ndarray:
        """Return differences or standard deviations (..., g, q) in original units from standardized ones (..., g·q).

        Derivatives need the points (g, t).
        """
        standard = np.asarray(standard)
        shaped = standard.reshape(*standard.shape[:-1], -1, len(self.output_scale)) * self.output_scale
        return shaped * self._rate(points) if derivative else shaped

    def hyperparameter(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a hyperparameter of a model with kernels in original units, by its name in `named_values`.

        With several channels their covariances are in output matrices, and kernels are relative to these.
        """
        prefix, leaf, scale = name.partition(".")[0], name.rpartition(".")[2], self.output_scale
        unit = scale[0] if len(scale) == 1 and prefix != "task_kernel" else 1.0  # of the square root of a variance
        lengths = self.input_scale if prefix == "input_kernel" else self.point_scale
        lengths = lengths[0] if np.ptp(lengths) == 0 else lengths
        if leaf in ("lengthscale", "period_length"):  # one lengthscale of standardized columns is one per column
            return value * lengths
        if leaf == "noise":
            return value * (scale[0] if len(scale) == 1 else scale) ** 2
        if leaf == "output_matrix":
            return value * np.outer(scale, scale)
        if leaf == "variance":  # of slopes
            return value * (unit / lengths) ** 2
        return value * unit**2 if leaf in ("outputscale", "constant") else value

    def _rate(self, points: np.ndarray) -> np.ndarray | float:
        """Return the derivative (g, 1) of standardized points of a one-dimensional domain."""
        return (1.0 if self.warp is None else self.warp(points, 1)) / self.point_scale[0]


def _standardize(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of columns; 1 for a constant column."""
    offset, std = mean_and_std(array)
    return offset, np.where(std > 1e-12 * np.abs(array).max(0, initial=0.0), std, 1.0)


def list_hyperparameters(gp, scaling: CurveScaling, inputs: list[str], has_groups: bool) -> list[Hyperparameter]:
    """List the hyperparameters of a model with kernels in original units, those of the inputs by their names.

    With groups, the last term of the kernel of the inputs is the variance between them.
    """
    values, rows = named_values(gp), []
    terms = sorted({name.split(".")[1] for name in values if name.startswith("input_kernel.component_")}, key=_number)
    for name, value in values.items():
        prefix, _, rest = name.partition(".")
        label = f"{PARAMETER_LABELS[prefix]}: {rest}" if prefix in PARAMETER_LABELS and rest else name
        if has_groups and rest.startswith(f"{terms[-1]}."):
            if rest.endswith("lengthscale"):  # fixed: labels are equal or not
                continue
            label = "groups: outputscale"
        if scaling.warp is not None and prefix != "input_kernel" and rest.endswith("lengthscale"):
            label += ", in ranks of points"
        flat = scaling.hyperparameter(name, value).ravel()
        if prefix == "input_kernel" and rest.endswith(("lengthscale", ".variance")) and len(flat) == len(inputs) > 1:
            rows += [Hyperparameter.of(label, one, inputs[i]) for i, one in enumerate(flat)]
            continue
        names = [label] if len(flat) == 1 else [f"{label} {i}" for i in range(min(len(flat), MAX_LISTED_VALUES))]
        rows += [Hyperparameter.of(*pair) for pair in zip(names, flat)]  # noqa: B905
    return rows


def _number(term: str) -> int:
    return int(term.rpartition("_")[2])


def _constant_mean(points: np.ndarray, level: np.ndarray) -> MeanCurve:
    """Return a constant mean curve (q,)."""
    domain = np.stack([points.min(0), points.max(0)], -1)
    return MeanCurve(domain, points[:1], level[None])


def fit_smooth_mean(points: np.ndarray, values: np.ndarray) -> MeanCurve:
    """Estimate the mean curve of values (n, g, q), NaN if missing, at standardized points (g, t), from at most 500 curves."""
    units = unit_of(np.nanmax(np.abs(values), (0, 1), initial=0.0))
    mean = _fit_scaled_mean(points, values / units)
    return MeanCurve(mean.domain, mean.grid, mean.coefficients * units, mean.knots)


def _fit_scaled_mean(points: np.ndarray, values: np.ndarray) -> MeanCurve:
    generator, is_complete, t = np.random.default_rng(0), not np.isnan(values).any(), points.shape[1]
    if (np.ptp(points, axis=0) == 0).any():
        return _constant_mean(points, np.nanmean(values, (0, 1)))
    if is_complete and len(points) < MIN_SPLINE_POINTS:
        if t == 1:
            return MeanCurve(np.stack([points.min(0), points.max(0)], -1), points, values.mean(0))
        return _constant_mean(points, np.nanmean(values, (0, 1)))
    domain = np.stack([points.min(0), points.max(0)], -1)
    if (
        is_complete
    ):  # the average, without its white noise; in several dimensions cubic, so that residuals have no kinks
        kept = _thin(points, MAX_MEAN_POINTS if t == 1 else MAX_MEAN_VALUES, generator)
        curve, count = np.zeros(len(kept), dtype=int), None if t == 1 else SPLINE_DEGREE + 1
        return fit_mean_curve(domain, curve, points[kept], values.mean(0)[kept], count)
    count = MAX_MEAN_CURVES if t == 1 else int(np.clip(MAX_MEAN_VALUES // len(points), 2, MAX_MEAN_CURVES))
    values = values[np.sort(generator.permutation(len(values))[:count])]
    curve, at = (~np.isnan(values).all(2)).nonzero()
    return fit_mean_curve(domain, curve, points[at], values[curve, at])


def _thin(points: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return the indices of at most `count` points: evenly in one dimension, at random in several."""
    if points.shape[1] == 1:
        return np.unique(np.linspace(0, len(points) - 1, min(count, len(points))).round().astype(int))
    return np.sort(generator.permutation(len(points))[:count])
