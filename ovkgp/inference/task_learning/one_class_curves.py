"""Decision curves θ ↦ d(x)(θ) of a one-class model: what is inside at level θ, d ≥ 0, has a mass of about 1 − θ (LT-107, LT-E-41).

Level sets of a density are nested: a curve begins positive, changes its sign once and stays negative. Learned curves need not, so that they may
be rearranged: sorted from large to small along θ. That keeps the number of levels at which a point is inside, and makes the sets nested; but
where curves differ, the set of level θ then has another mass than 1 − θ, which `share_levels` puts right.
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


def share_levels(curves: np.ndarray, levels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """g(θ) at each of the levels θ: of curves like these (n, k), a share θ is negative at g(θ) once they are rearranged, (k,) increasing.

    Args:
        curves: over the `levels` (k,), in order and equally spaced.
        weights: of the curves (n,).

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import share_levels
        >>> levels = np.linspace(0, 1, 5)
        >>> share_levels(0.5 * np.linspace(0, 1, 999)[:, None] - levels, levels, np.ones(999)).round(2)  # none is inside above ½
        array([0.  , 0.12, 0.25, 0.38, 0.5 ])
    """
    scores = level_scores(rearranged(curves), levels)
    return np.clip([weighted_quantile(scores, weights, level) for level in levels], levels[0], levels[-1])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """The level-quantile of values (n,) of which `weights` copies were seen: a fresh one is below it with probability `level`.

    The k-th smallest of n has the level k/(n + 1); between these it is linear.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import weighted_quantile
        >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
        2.0
    """
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(np.interp(level, shares, values[order]))


def at_levels(curves: np.ndarray, levels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The curves (n, k) at levels `asked` (q,), linear between the `levels` (k,) in order: (n, q).

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import at_levels
        >>> at_levels(np.array([[2.0, 0.0, -1.0]]), np.array([0.0, 0.5, 1.0]), np.array([0.25, 1.0]))
        array([[ 1., -1.]])
    """
    right = np.clip(np.searchsorted(levels, asked), 1, len(levels) - 1)
    share = (asked - levels[right - 1]) / (levels[right] - levels[right - 1])
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


def are_nested(curves: np.ndarray) -> np.ndarray:
    """Whether the sign of each curve (n, k) never goes from minus to plus, (n,): level sets are nested where it does for no point.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_curves import are_nested
        >>> are_nested(np.array([[1.0, -1.0, -2.0], [1.0, -1.0, 1.0]]))
        array([ True, False])
    """
    inside = curves >= 0
    return ~(inside[:, 1:] & ~inside[:, :-1]).any(1)
