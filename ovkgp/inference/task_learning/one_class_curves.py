"""Decision curves θ ↦ d(x)(θ) of a one-class model: what is inside at level θ, d ≥ 0, has a mass of about 1 − θ (LT-107, LT-E-41).

Level sets of a density are nested: a curve begins positive, changes its sign once and stays negative. Learned curves need not, so that they may
be rearranged: sorted from large to small along θ. That keeps the number of levels at which a point is inside, and makes the sets nested.
"""

from __future__ import annotations

import numpy as np


def rearranged(curves: np.ndarray) -> np.ndarray:
    """Curves (n, k) over equally spaced levels, sorted from large to small.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import rearranged
        >>> rearranged(np.array([[2.0, -1.0, 1.0]]))
        array([[ 2.,  1., -1.]])
    """
    return -np.sort(-curves, axis=1)


def at_level(curves: np.ndarray, levels: np.ndarray, level: float) -> np.ndarray:
    """The curves (n, k) at one level, linear between the `levels` (k,) in order: (n,)."""
    right = int(np.clip(np.searchsorted(levels, level), 1, len(levels) - 1))
    share = (level - levels[right - 1]) / (levels[right] - levels[right - 1])
    return (1 - share) * curves[:, right - 1] + share * curves[:, right]


def level_scores(curves: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """s(x) = sup{θ: d(x)(θ) ≥ 0}, (n,), linear between the `levels` (k,): near 1 for typical points, 0 for those outside everywhere.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import level_scores
        >>> level_scores(np.array([[3.0, 1.0, -1.0], [-1.0, -2.0, -3.0], [1.0, 1.0, 1.0]]), np.array([0.0, 0.5, 1.0]))
        array([0.75, 0.  , 1.  ])
    """
    inside = curves >= 0
    last = curves.shape[1] - 1 - inside[:, ::-1].argmax(1)  # where there is none it is not used
    rows, after = np.arange(len(curves)), np.minimum(last + 1, curves.shape[1] - 1)
    here, there = curves[rows, last], curves[rows, after]
    drop = np.where(here > there, here - there, 1.0)
    share = np.where(after > last, here / drop, 0.0)
    return np.where(inside.any(1), levels[last] + share * (levels[after] - levels[last]), 0.0)


def nesting_rate(curves: np.ndarray) -> float:
    """The share of curves (n, k) whose sign never goes from minus to plus: 1 where all level sets are nested.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import nesting_rate
        >>> nesting_rate(np.array([[1.0, -1.0, -2.0], [1.0, -1.0, 1.0]]))
        0.5
    """
    inside = curves >= 0
    return float(1 - (inside[:, 1:] & ~inside[:, :-1]).any(1).mean())
