"""A one-class SVM without one of its points, exactly: the point's coefficient is taken away step by step, and the others follow.

With b_i = β − τ the rest of b is piecewise linear in τ, as it is in C on the path: between two breaks the points on the margin keep f = 1,
K_MM b_M' = K_Mi, and f' = K_:M b_M' − K_:i. At the end f(x_i) is the value that the SVM of the other points has there.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from ovkgp.inference.task_learning.one_class_path import ABOVE, BELOW, MARGIN, OneClassPath, PointState

BREAKS = 200
"""After so many breaks the places are held: the rest is the span rule."""
FEW = 60
"""With more points on or below the margin the span rule is near enough, and each of them would cost."""


def leave_one_out(path: OneClassPath, C: float, units: np.ndarray | None = None) -> np.ndarray:
    """f at each point when that point (a weight `units` of it, all by default) is left out, (n,).

    Only points with b > 0 change anything when they go. Where they are few, one of them matters much, and the result is exact; where
    they are many it is the span rule.

    Cost: that of `value_without` for each of the few.
    """
    values, state, s = path.span_rule(C, units), path.at(C), path.weights
    taken = state.coefficients - C * (s - (s if units is None else units))
    going = np.flatnonzero(taken > 0)
    for i in going if len(going) <= FEW else ():
        values[i] = value_without(path, state, C, int(i), taken[i])
    return values


def value_without(path: OneClassPath, state: PointState, C: float, i: int, taken: float) -> float:
    """f(x_i) once an amount `taken` of b_i is gone, all else being optimal again.

    Args:
        path: of all points.
        state: its SVM at C.
        i: the point.
        taken: in (0, b_i].

    Cost: O(n |M| + |M|³) a break, with |M| points on the margin; about ten breaks.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.task_learning.one_class_path import OneClassPath
        >>> from ovkgp.inference.task_learning.one_class_removal import value_without
        >>> path = OneClassPath(np.array([[1.0], [2.0]]))
        >>> state = path.at(0.25)  # f = x/2, by b = (¼, ⅛)
        >>> round(value_without(path, state, 0.25, 0, state.coefficients[0]), 6)  # ½ x without the first point as well
        0.5
    """
    b, f, place = state.coefficients.copy(), state.values.copy(), state.place.copy()
    column, most, left = path.column(i), C * path.weights, taken
    margin = [int(k) for k in np.flatnonzero(place == MARGIN) if k != i]
    place[i] = -1  # neither here nor there
    for count in range(BREAKS):
        rates, slopes = _directions(path, margin, column)
        step, k = _first_break(b, f, place, margin, most, rates, slopes) if count < BREAKS - 1 else (np.inf, -1)
        if step >= left:
            break
        f, left = f + step * slopes, left - step
        b[margin] += step * rates
        _move(k, b, place, margin, most)
    return float(f[i] + left * slopes[i])


def _directions(path: OneClassPath, margin: list[int], column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """b_M' (|M|,) and f' (n,)."""
    if not margin:
        return np.zeros(0), -column
    columns = path.columns(margin)
    factor, _ = lapack.dpotrf(columns[margin], lower=True)
    rates, _ = lapack.dpotrs(factor, column[margin], lower=True)
    return rates, columns @ rates - column


def _first_break(b, f, place, margin, most, rates, slopes) -> tuple[float, int]:
    """How far until a point leaves its place, and which; 0 where one is at its end already."""
    steps = np.full(len(b), np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        leaving = np.where(place == ABOVE, slopes < 0, (place == BELOW) & (slopes > 0))
        steps[leaving] = ((1 - f) / slopes)[leaving]
        down, up = (
            np.where(rates < 0, -b[margin] / rates, np.inf),
            np.where(rates > 0, (most - b)[margin] / rates, np.inf),
        )
    steps[margin] = np.minimum(down, up)
    k = int(steps.argmin())
    return max(float(steps[k]), 0.0), k


def _move(k: int, b: np.ndarray, place: np.ndarray, margin: list[int], most: np.ndarray) -> None:
    if place[k] == MARGIN:
        margin.remove(k)
        place[k] = ABOVE if b[k] < most[k] / 2 else BELOW
        b[k] = 0.0 if place[k] == ABOVE else most[k]
    else:
        margin.append(k)
        place[k] = MARGIN
