"""Distributions given by quantiles at some levels, and the monotone rearrangement of quantile curves that cross.

The rearrangement sorts a curve θ ↦ h(x)(θ) on a grid of levels (Chernozhukov, Fernández-Val and Galichon, 2010): the
result is the quantile function of h(x)(U), U uniform on the grid. It is at least as close to any increasing curve as h,
and equals an increasing h.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError

ROUNDING = 1e-9
"""A quantile may lie below the previous one by this fraction of the range of its row; it is then raised to it."""
SPACING_TOLERANCE = 1e-6  # relative tolerance of the even spacing of a grid


class LevelDistribution:
    """n distributions from quantiles (n, m), non-decreasing along rows, at increasing levels (m,) in [0, 1], m ≥ 2.

    The quantile function is linear between levels and has exponential tails with scales τ and τ' (n, 1) in `left_scale`
    and `right_scale`, which are 0 if a tail is missing, because the first level is 0 or the last is 1, or part of an
    atom. Equal quantiles are an atom: the cdf jumps and the density is infinite. Rearrange curves that cross first
    (`Rearranged`).

    Complexity: O(n m) memory; a call with k points or levels per row is O(n k log m).
    """

    def __init__(self, levels: Tensor, quantiles: Tensor):
        self.levels = _check_levels(levels)
        self.quantiles = _check_quantiles(quantiles, len(self.levels))
        rates = self.quantiles.diff(dim=-1) / self.levels.diff()
        self.left_scale = self.levels[0] * rates[:, :1]
        self.right_scale = (1 - self.levels[-1]) * rates[:, -1:]

    def __len__(self) -> int:
        return len(self.quantiles)

    def quantile(self, levels: Tensor) -> Tensor:
        """Return Q (n, k) at levels (k,), shared by all rows, or (n, k); −∞ or ∞ at 0 or 1 if there is a tail."""
        levels = self._check_per_row("levels", levels)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise InputError(f"levels must be in [0, 1], got {levels.min():g} to {levels.max():g}.")
        low, high = self.levels[0], self.levels[-1]
        left = (torch.searchsorted(self.levels, levels.contiguous(), right=True) - 1).clamp(0, len(self.levels) - 2)
        part = (levels - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        inner = torch.lerp(self.quantiles.gather(-1, left), self.quantiles.gather(-1, left + 1), part.clamp(0.0, 1.0))
        lower = self.quantiles[:, :1] + _multiply_or_zero(self.left_scale, (levels / low).log())
        upper = self.quantiles[:, -1:] - _multiply_or_zero(self.right_scale, ((1 - levels) / (1 - high)).log())
        return torch.where(levels < low, lower, torch.where(levels > high, upper, inner))

    def cdf(self, y: Tensor) -> Tensor:
        """Return P(Y ≤ y), (n, k), at y (k,), shared by all rows, or (n, k)."""
        y = self._check_per_row("y", y)
        count, left, width = self._cells(y)
        low, width_in_levels = self.levels[left], self.levels[left + 1] - self.levels[left]
        inner = low + width_in_levels * ((y - self.quantiles.gather(-1, left)) / width).clamp(0.0, 1.0)
        lower, upper = self._tails(y)
        last = count == len(self.levels)
        return torch.where(count == 0, lower, torch.where(last, 1 - upper, inner))

    def density(self, y: Tensor) -> Tensor:
        """Return F'(y), (n, k), at y (k,) or (n, k): from the right at jumps, infinite at an atom."""
        y = self._check_per_row("y", y)
        count, left, width = self._cells(y)
        lower, upper = self._tails(y)
        inner = (self.levels[left + 1] - self.levels[left]) / width
        last = count == len(self.levels)
        density = torch.where(last, _divide_or(upper, self.right_scale), inner)
        density = torch.where(count == 0, _divide_or(lower, self.left_scale), density)
        atom = count - torch.searchsorted(self.quantiles, y.contiguous()) > 1
        return density.masked_fill(atom, torch.inf)

    def sample(self, num_samples: int, random_state=None) -> Tensor:
        """Draw independent samples (n, num_samples), reproducible from `random_state`."""
        generator = torch.Generator().manual_seed(as_seed(random_state))
        shape = len(self), check_integer("num_samples", num_samples)
        uniforms = torch.rand(shape, dtype=torch.float64, generator=generator)
        return self.quantile(uniforms.clamp_min(torch.finfo(torch.float64).tiny))

    @property
    def mean(self) -> Tensor:
        """E Y, (n,)."""
        inner = ((self.quantiles[:, 1:] + self.quantiles[:, :-1]) / 2 * self.levels.diff()).sum(-1, keepdim=True)
        left = self.levels[0] * (self.quantiles[:, :1] - self.left_scale)
        right = (1 - self.levels[-1]) * (self.quantiles[:, -1:] + self.right_scale)
        return (inner + left + right)[:, 0]

    @property
    def std(self) -> Tensor:
        """Standard deviation of Y, (n,)."""
        q = self.quantiles - self.mean[:, None]
        cells = (q[:, 1:] ** 2 + q[:, 1:] * q[:, :-1] + q[:, :-1] ** 2) / 3
        inner = (cells * self.levels.diff()).sum(-1, keepdim=True)
        left = self.levels[0] * ((q[:, :1] - self.left_scale) ** 2 + self.left_scale**2)
        right = (1 - self.levels[-1]) * ((q[:, -1:] + self.right_scale) ** 2 + self.right_scale**2)
        return (inner + left + right)[:, 0].sqrt()

    def _check_per_row(self, name: str, points: Tensor) -> Tensor:
        points = torch.as_tensor(points, dtype=torch.float64)
        if points.dim() not in (1, 2) or (points.dim() == 2 and len(points) != len(self)) or bool(points.isnan().any()):
            raise InputError(
                f"{name} must be numbers of shape (k,), or ({len(self)}, k) with one row per distribution, got {tuple(points.shape)}."
            )
        return points.expand(len(self), -1)

    def _cells(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the number of quantiles ≤ y, the cell of y, and its width, which is 1 in a tail."""
        count = torch.searchsorted(self.quantiles, y.contiguous(), right=True)
        left = (count - 1).clamp(0, len(self.levels) - 2)
        width = self.quantiles.gather(-1, left + 1) - self.quantiles.gather(-1, left)
        return count, left, torch.where((count == 0) | (count == len(self.levels)), 1.0, width)

    def _tails(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return θ_1 exp((y − q_1)/τ) and (1 − θ_m) exp(−(y − q_m)/τ'); if the scale is 0 they drop to 0 at once."""
        below, above = (y - self.quantiles[:, :1]).clamp_max(0.0), (self.quantiles[:, -1:] - y).clamp_max(0.0)
        lower = self.levels[0] * _divide_or(below, self.left_scale, -torch.inf).exp()
        upper = (1 - self.levels[-1]) * _divide_or(above, self.right_scale, -torch.inf).exp()
        return lower, upper


class Rearranged:
    """h with its curves rearranged on a fixed, evenly spaced grid of levels (G,), G ≥ 2.

    `function` h maps X (n, d) and levels (m,) to (n, m), such as a `TaskFunction`. Rows that increase along the grid
    give h itself at any level. Others give their sorted values on the grid, with linear interpolation, and beyond the
    grid h, clipped at the minimum or maximum on it. The value at a level does not depend on the other requested levels.
    A decrease within one cell, or beyond the grid, is not detected. Complexity: h at G + m levels and a sort, O(n G log
    G); memory O(n (G + m)).
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], levels: Tensor):
        self.function, self.levels = function, _check_even_grid(levels)

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """Return the rearranged curves at levels (m,), (n, m), for X (n, d)."""
        tasks = torch.as_tensor(tasks, dtype=torch.float64)
        if tasks.dim() != 1 or not bool(torch.isfinite(tasks).all()):
            raise InputError(f"levels must be finite numbers of shape (m,), got {tuple(tasks.shape)}.")
        both = self.function(X, torch.cat([self.levels, tasks]))
        grid, direct = both[:, : len(self.levels)], both[:, len(self.levels) :]
        rises = (grid.diff(dim=-1) >= 0).all(-1, keepdim=True)
        return torch.where(rises, direct, self._interpolate_sorted(grid.sort(-1).values, direct, tasks))

    def _interpolate_sorted(self, grid: Tensor, direct: Tensor, tasks: Tensor) -> Tensor:
        left = (torch.searchsorted(self.levels, tasks, right=True) - 1).clamp(0, len(self.levels) - 2)
        part = (tasks - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        inner = torch.lerp(grid[:, left], grid[:, left + 1], part.clamp(0.0, 1.0).expand(len(grid), -1))
        below, above = tasks < self.levels[0], tasks > self.levels[-1]
        outer = torch.where(above, torch.maximum(direct, grid[:, -1:]), torch.minimum(direct, grid[:, :1]))
        return torch.where(below | above, outer, inner)


def _multiply_or_zero(scale: Tensor, factor: Tensor) -> Tensor:
    """Return scale · factor, or 0 if the scale is 0."""
    return torch.where(scale > 0, scale * factor, 0.0)


def _divide_or(value: Tensor, scale: Tensor, otherwise: float = 0.0) -> Tensor:
    """Return value / scale, or `otherwise` if the scale is 0."""
    return torch.where(scale > 0, value / scale, otherwise)


def _check_levels(levels: Tensor) -> Tensor:
    levels = torch.as_tensor(levels, dtype=torch.float64)
    if levels.dim() != 1 or len(levels) < 2 or not bool((levels.diff() > 0).all()):
        raise InputError(f"levels must be at least two increasing numbers, got {levels.tolist()}.")
    if not bool((levels[0] >= 0) & (levels[-1] <= 1)):
        raise InputError(f"levels must be in [0, 1], got {levels[0]:g} to {levels[-1]:g}.")
    return levels


def _check_quantiles(quantiles: Tensor, num_levels: int) -> Tensor:
    quantiles = torch.as_tensor(quantiles, dtype=torch.float64)
    if quantiles.dim() != 2 or quantiles.shape[1] != num_levels or not bool(torch.isfinite(quantiles).all()):
        raise InputError(
            f"quantiles must be finite with shape (n, {num_levels}), one column per level, got {tuple(quantiles.shape)}."
        )
    raised = quantiles.cummax(-1).values
    width = (quantiles.amax(-1) - quantiles.amin(-1))[:, None]
    if bool((raised - quantiles > ROUNDING * width).any()):
        raise InputError(
            "quantiles must not decrease along a row, got curves that cross. Use `Rearranged` or quantiles.sort(-1).values."
        )
    return raised


def _check_even_grid(levels: Tensor) -> Tensor:
    levels = torch.as_tensor(levels, dtype=torch.float64)
    steps = levels.diff() if levels.dim() == 1 and len(levels) > 1 else levels.new_zeros(1)
    if not bool((steps > 0).all()) or bool(((steps - steps.mean()).abs() > SPACING_TOLERANCE * steps.mean()).any()):
        raise InputError(
            "levels of a rearrangement must be at least two increasing, evenly spaced numbers. Use, for example, torch.linspace(0.005, 0.995, 199, dtype=torch.float64)."
        )
    return levels
