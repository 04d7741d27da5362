"""The monotone rearrangement of quantile curves: sort them along the level (Chernozhukov, Fernández-Val and Galichon, 2010).

A curve θ ↦ h(x)(θ) that falls somewhere is replaced by the quantile function of h(x)(U), U uniform on a grid of levels: its values
there in increasing order. That is never further from any increasing curve than h was, and a curve that rises stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ovkgp.exceptions import InputError

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
        >>> from ovkgp.inference.task_learning.rearrangement import Rearranged
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
