"""The monotone rearrangement of quantile curves: sort them along the level (Chernozhukov, Fernández-Val and Galichon, 2010).

A curve θ ↦ h(x)(θ) that falls somewhere is replaced by the quantile function of h(x)(U), U uniform on a grid of levels: its values
there in increasing order. That is never further from any increasing curve than h was, and a curve that rises stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError

ROUNDING = 1e-9
"""A quantile may lie this far, relative to the range of its row, below the one before it; it is then raised to it."""


class LevelDistribution:
    """n distributions, from n rows of quantiles.

    Quantiles that are equal are an atom: the cdf jumps there and the density is infinite.

    Args:
        levels: θ (m,), increasing, in [0, 1], m ≥ 2. A first level 0 or a last level 1 leaves that tail out.
        quantiles: Q(θ) (n, m), not falling along a row; rearrange curves that cross first (`Rearranged`).

    Attributes:
        levels, quantiles: in float64.
        left_scale, right_scale: τ and τ' (n, 1) of the tails; 0 where a tail is missing or a part of an atom.

    Cost: O(n m) memory; a call with k points or levels a row is O(n k log m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.quantile_distribution import LevelDistribution
        >>> quartiles = LevelDistribution(torch.tensor([0.25, 0.5, 0.75]), torch.tensor([[-1.0, 0.0, 1.0]]))
        >>> quartiles.cdf(torch.tensor([0.5])), quartiles.density(torch.tensor([0.5]))
        (tensor([[0.6250]], dtype=torch.float64), tensor([[0.2500]], dtype=torch.float64))
        >>> quartiles.mean, quartiles.sample(2, random_state=0).shape
        (tensor([0.], dtype=torch.float64), torch.Size([1, 2]))
    """

    def __init__(self, levels: Tensor, quantiles: Tensor):
        self.levels = _checked_levels(levels)
        self.quantiles = _checked_quantiles(quantiles, len(self.levels))
        rates = self.quantiles.diff(dim=-1) / self.levels.diff()
        self.left_scale = self.levels[0] * rates[:, :1]
        self.right_scale = (1 - self.levels[-1]) * rates[:, -1:]

    def __len__(self) -> int:
        """n."""
        return len(self.quantiles)

    def quantile(self, levels: Tensor) -> Tensor:
        """Q (n, k) at levels (k,), the same for all rows, or (n, k); −∞ or ∞ at 0 or 1 where there is a tail."""
        levels = self._per_row("levels", levels)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise InputError(f"levels must lie in [0, 1], got {levels.min():g} to {levels.max():g}.")
        low, high = self.levels[0], self.levels[-1]
        left = (torch.searchsorted(self.levels, levels.contiguous(), right=True) - 1).clamp(0, len(self.levels) - 2)
        part = (levels - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        inner = torch.lerp(self.quantiles.gather(-1, left), self.quantiles.gather(-1, left + 1), part.clamp(0.0, 1.0))
        lower = self.quantiles[:, :1] + _times(self.left_scale, (levels / low).log())
        upper = self.quantiles[:, -1:] - _times(self.right_scale, ((1 - levels) / (1 - high)).log())
        return torch.where(levels < low, lower, torch.where(levels > high, upper, inner))

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y), (n, k), at y (k,), the same for all rows, or (n, k)."""
        y = self._per_row("y", y)
        place, left, width = self._cells(y)
        start, size = self.levels[left], self.levels[left + 1] - self.levels[left]
        inner = start + size * ((y - self.quantiles.gather(-1, left)) / width).clamp(0.0, 1.0)
        lower, upper = self._tails(y)
        last = place == len(self.levels)
        return torch.where(place == 0, lower, torch.where(last, 1 - upper, inner))

    def density(self, y: Tensor) -> Tensor:
        """F'(y), (n, k), at y (k,) or (n, k): from the right where it jumps, infinite at an atom."""
        y = self._per_row("y", y)
        place, left, width = self._cells(y)
        lower, upper = self._tails(y)
        inner = (self.levels[left + 1] - self.levels[left]) / width
        last = place == len(self.levels)
        found = torch.where(
            place == 0, _over(lower, self.left_scale), torch.where(last, _over(upper, self.right_scale), inner)
        )
        atom = place - torch.searchsorted(self.quantiles, y.contiguous()) > 1
        return found.masked_fill(atom, torch.inf)

    def sample(self, num_samples: int, random_state=None) -> Tensor:
        """Independent draws (n, num_samples), reproducible from `random_state`."""
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
        """The standard deviation of Y, (n,)."""
        q = self.quantiles - self.mean[:, None]
        cells = (q[:, 1:] ** 2 + q[:, 1:] * q[:, :-1] + q[:, :-1] ** 2) / 3
        inner = (cells * self.levels.diff()).sum(-1, keepdim=True)
        left = self.levels[0] * ((q[:, :1] - self.left_scale) ** 2 + self.left_scale**2)
        right = (1 - self.levels[-1]) * ((q[:, -1:] + self.right_scale) ** 2 + self.right_scale**2)
        return (inner + left + right)[:, 0].sqrt()

    def _per_row(self, name: str, points: Tensor) -> Tensor:
        points = torch.as_tensor(points, dtype=torch.float64)
        if points.dim() not in (1, 2) or (points.dim() == 2 and len(points) != len(self)) or bool(points.isnan().any()):
            raise InputError(
                f"{name} must be numbers of shape (k,), or ({len(self)}, k) for each row its own; got {tuple(points.shape)}."
            )
        return points.expand(len(self), -1)

    def _cells(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many quantiles are ≤ y, the cell where y lies, and its width; the width is 1 where y lies in a tail."""
        place = torch.searchsorted(self.quantiles, y.contiguous(), right=True)
        left = (place - 1).clamp(0, len(self.levels) - 2)
        width = self.quantiles.gather(-1, left + 1) - self.quantiles.gather(-1, left)
        return place, left, torch.where((place == 0) | (place == len(self.levels)), 1.0, width)

    def _tails(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """θ_1 exp((y − q_1)/τ) and (1 − θ_m) exp(−(y − q_m)/τ'); without a scale they drop to 0 at once."""
        below, above = (y - self.quantiles[:, :1]).clamp_max(0.0), (self.quantiles[:, -1:] - y).clamp_max(0.0)
        lower = self.levels[0] * _over(below, self.left_scale, -torch.inf).exp()
        upper = (1 - self.levels[-1]) * _over(above, self.right_scale, -torch.inf).exp()
        return lower, upper


def _times(scale: Tensor, factor: Tensor) -> Tensor:
    """scale · factor, 0 where the scale is 0."""
    return torch.where(scale > 0, scale * factor, 0.0)


def _over(value: Tensor, scale: Tensor, otherwise: float = 0.0) -> Tensor:
    """value / scale, `otherwise` where the scale is 0."""
    return torch.where(scale > 0, value / scale, otherwise)


def _checked_levels(levels: Tensor) -> Tensor:
    levels = torch.as_tensor(levels, dtype=torch.float64)
    if levels.dim() != 1 or len(levels) < 2 or not bool((levels.diff() > 0).all()):
        raise InputError(f"levels must be at least two increasing numbers, got {levels.tolist()}.")
    if not bool((levels[0] >= 0) & (levels[-1] <= 1)):
        raise InputError(f"levels must lie in [0, 1], got {levels[0]:g} to {levels[-1]:g}.")
    return levels


def _checked_quantiles(quantiles: Tensor, num_levels: int) -> Tensor:
    quantiles = torch.as_tensor(quantiles, dtype=torch.float64)
    if quantiles.dim() != 2 or quantiles.shape[1] != num_levels or not bool(torch.isfinite(quantiles).all()):
        raise InputError(
            f"quantiles must be finite, (n, {num_levels}): one column a level; got {tuple(quantiles.shape)}."
        )
    raised = quantiles.cummax(-1).values
    spread = (quantiles.amax(-1) - quantiles.amin(-1))[:, None]
    if bool((raised - quantiles > ROUNDING * spread).any()):
        raise InputError(
            "quantiles fall along a row: the curves cross. Use `Rearranged`, or quantiles.sort(-1).values."
        )
    return raised


EVEN = 1e-6
"""How far, relative to it, the spacing of the grid may be from even."""


class Rearranged:
    """h with its curves rearranged on a fixed grid of levels.

    Rows that rise along the whole grid give h itself at any level. The others give their sorted values on the grid, linear in between,
    and beyond the grid h, but not above the least value, or below the greatest, on it. What a level gives does not depend on
    which others are asked. Use a fine grid: a fall within one cell, or beyond the grid, is not seen.

    Args:
        function: h, from X (n, d) and levels (m,) to (n, m), such as a `TaskFunction`.
        levels: the grid (G,), evenly spaced and increasing, G ≥ 2.

    Cost: h at G + m levels and a sort, O(n G log G); memory O(n (G + m)).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.quantile_distribution import Rearranged
        >>> def crossing(X, levels):
        ...     return X * (levels - 0.3) ** 2
        >>> grid = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
        >>> q = Rearranged(crossing, grid)(torch.ones(1, 1, dtype=torch.float64), grid)
        >>> bool((q.diff() >= 0).all()), torch.equal(q.sort().values, crossing(1.0, grid).sort().values[None])
        (True, True)
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], levels: Tensor):
        self.function, self.levels = function, _even_grid(levels)

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """The rearranged curves at levels (m,), (n, m), for X (n, d)."""
        tasks = torch.as_tensor(tasks, dtype=torch.float64)
        if tasks.dim() != 1 or not bool(torch.isfinite(tasks).all()):
            raise InputError(f"levels must be finite numbers of shape (m,), got {tuple(tasks.shape)}.")
        both = self.function(X, torch.cat([self.levels, tasks]))
        grid, asked = both[:, : len(self.levels)], both[:, len(self.levels) :]
        rises = (grid.diff(dim=-1) >= 0).all(-1, keepdim=True)
        return torch.where(rises, asked, self._sorted(grid.sort(-1).values, asked, tasks))

    def _sorted(self, grid: Tensor, asked: Tensor, tasks: Tensor) -> Tensor:
        left = (torch.searchsorted(self.levels, tasks, right=True) - 1).clamp(0, len(self.levels) - 2)
        part = (tasks - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        inner = torch.lerp(grid[:, left], grid[:, left + 1], part.clamp(0.0, 1.0).expand(len(grid), -1))
        below, above = tasks < self.levels[0], tasks > self.levels[-1]
        outer = torch.where(above, torch.maximum(asked, grid[:, -1:]), torch.minimum(asked, grid[:, :1]))
        return torch.where(below | above, outer, inner)


def _even_grid(levels: Tensor) -> Tensor:
    levels = torch.as_tensor(levels, dtype=torch.float64)
    steps = levels.diff() if levels.dim() == 1 and len(levels) > 1 else levels.new_zeros(1)
    if not bool((steps > 0).all()) or bool(((steps - steps.mean()).abs() > EVEN * steps.mean()).any()):
        raise InputError(
            "the grid of a rearrangement must be at least two increasing, evenly spaced levels (sorting keeps the law of h(x)(U) "
            "only then): use torch.linspace(0.005, 0.995, 199, dtype=torch.float64), say."
        )
    return levels
