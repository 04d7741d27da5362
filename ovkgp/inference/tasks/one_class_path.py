"""A one-class SVM without one of its points, exactly: the point's coefficient is taken away step by step, and the others follow.

With b_i = β − τ the rest of b is piecewise linear in τ, as it is in C on the path: between two breaks the points on the margin keep f = 1,
K_MM b_M' = K_Mi, and f' = K_:M b_M' − K_:i. At the end f(x_i) is the value that the SVM of the other points has there.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack

from ovkgp.exceptions import FactorizationError, InputError

ABOVE, MARGIN, BELOW = np.int8(0), np.int8(1), np.int8(2)
"""Where a point is: f > 1 and b = 0; f = 1; f < 1 and b = C s."""
RIDGE = 1e-10
"""What is added to the diagonal, in units of its mean, so that near copies of a point can both be on the margin."""
MAX_RELATIVE_C = 1e-3
"""How large C may become, in units of 1/ridge: beyond that it is the ridge that separates the rows from 0, not the kernel."""
GRAM_ROWS = 5000
"""Up to so many rows K is kept, where it is not much larger than Φ."""
PATIENCE = 50
"""How many breaks at one place, for each point, are too many."""


class Segment(NamedTuple):
    """A stretch of the path between two breaks, on which b(C) = start + C · rate.

    Args:
        low, high: the values of C.
        place: of each point (n,), int8.
        total: (u, v) with Σ b = u + v C.
        value, rates: G at `low`, and (u, v) with G' = u + v C.
    """

    low: float
    high: float
    place: np.ndarray
    total: tuple[float, float]
    value: float
    rates: tuple[float, float]


class PointState(NamedTuple):
    """The SVM at one C: b (n,), f at the points (n,), and their places (n,)."""

    coefficients: np.ndarray
    values: np.ndarray
    place: np.ndarray


class OneClassPath:
    """The path, followed as far as it is asked for.

    Args:
        rows: Φ (n, r) with K = Φ Φᵀ. Copies of a point are better given as one with a larger weight.
        weights: s (n,) > 0; ones where None. N = Σ s.

    Cost: O(n (r + |M|) + |M|³) a break, with |M| points on the margin (few); from 2n breaks in all, for a
    smooth kernel, to 12n. O(n (r + breaks)) memory.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_path import OneClassPath
        >>> path = OneClassPath(np.array([[1.0], [2.0]]))  # f is linear on the line
        >>> C = path.position(0.75)
        >>> round(C, 6), path.at(C).values.round(6), path.at(C).coefficients.round(6)
        (0.25, array([0.5, 1. ]), array([0.25 , 0.125]))
    """

    def __init__(self, rows: np.ndarray, weights: np.ndarray | None = None):
        self.rows = np.ascontiguousarray(rows)
        self.weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.total_weight = self.weights.sum()
        self.diagonal = np.einsum("ir,ir->i", self.rows, self.rows)
        self.ridge = RIDGE * self.diagonal.mean()
        self._gram = self.rows @ self.rows.T if len(rows) <= min(GRAM_ROWS, 2 * self.rows.shape[1]) else None
        self.segments: list[Segment] = []
        self._highs: list[float] = []
        self._shares: list[float] = []
        self._place = np.full(len(rows), BELOW)
        self._bounded = self.rows @ (self.rows.T @ self.weights) + self.ridge * self.weights  # K_:B s_B
        self._margin: list[int] = []
        self._columns = np.empty((len(rows), 8), order="F")  # K_:M
        self._repeats = 0
        self._follow()

    # --- asking -----------------------------------------------------------------------------------------------------

    def position(self, level: float) -> float:
        """The C with θ(C) = level, for 0 < level ≤ 1: the classical one-class SVM."""
        farthest = MAX_RELATIVE_C / max(self.ridge, np.finfo(float).tiny)
        while self._shares[-1] > level and self._highs[-1] < farthest:
            self._follow()
        C = self._stop(level) if self._shares[-1] <= level else np.inf
        if farthest < C:
            raise InputError(
                f"no function of the kernel is positive at all but a share of {self.share(farthest):.3g} of the rows, so there is no one-class SVM "
                f"of level {level:.3g}; take a kernel with positive values, such as the Gaussian, or larger levels."
            )
        return C

    def _stop(self, level: float) -> float:
        segment = self.segments[bisect_left(self._shares, -level, key=float.__neg__)]
        start, rate = segment.total
        # Σ b = θ N C; on the first stretch θ = 1 everywhere, and its end is the natural place
        gap = level * self.total_weight - rate
        return float(np.clip(start / gap, segment.low, segment.high)) if gap > 0 and start > 0 else segment.high

    def segment(self, C: float) -> Segment:
        """The stretch that holds C."""
        while self._highs[-1] < C:
            self._follow()
        return self.segments[bisect_left(self._highs, C)]

    def share(self, C: float) -> float:
        """θ(C) = Σ b / (N C)."""
        start, rate = self.segment(C).total
        return (start / C + rate) / self.total_weight

    def value(self, C: float) -> float:
        """G(C)."""
        part = self.segment(C)
        return part.value + part.rates[0] * (C - part.low) + part.rates[1] * (C**2 - part.low**2) / 2

    def at(self, C: float) -> PointState:
        """The SVM at C, solved afresh from its places. Cost O(n r + |M|³)."""
        place = self.segment(C).place
        b = np.where(place == BELOW, C * self.weights, 0.0)
        on = np.flatnonzero(place == MARGIN)
        if len(on):
            b[on] = self._solve(on, 1 - self.rows[on] @ (self.rows.T @ b))
        b = np.clip(b, 0.0, C * self.weights)
        return PointState(b, self.rows @ (self.rows.T @ b) + self.ridge * b, place)

    def span_rule(self, C: float, units: np.ndarray | None = None) -> np.ndarray:
        """f at each point when that point (a weight `units` of it, all by default) is left out, the others' places held (n,).

        f_i − (b taken away) · (squared distance of the point from the span of the margin). See `one_class_removal` for places that move.
        Cost O(n r + n |M|²).
        """
        state, s = self.at(C), self.weights
        units = s if units is None else units
        taken = np.clip(state.coefficients - C * (s - units), 0.0, None)
        on = np.flatnonzero(state.place == MARGIN)
        distance = self.diagonal + self.ridge
        if len(on):
            columns = self.rows @ self.rows[on].T
            inverse = self._solve(on, np.eye(len(on)))
            distance = distance - np.einsum("im,mk,ik->i", columns, inverse, columns)
            distance[on] = 1 / np.diagonal(inverse)
        return state.values - taken * np.clip(distance, 0.0, None)

    def column(self, k: int) -> np.ndarray:
        """K_:k, ridge included (n,)."""
        return self.columns([k])[:, 0]

    def columns(self, chosen: list[int]) -> np.ndarray:
        """K_:M, ridge included (n, |M|)."""
        columns = self.rows @ self.rows[chosen].T if self._gram is None else self._gram[chosen].T
        columns[chosen, np.arange(len(chosen))] += self.ridge
        return columns

    def _solve(self, on: np.ndarray, right: np.ndarray) -> np.ndarray:
        gram = self.rows[on] @ self.rows[on].T + self.ridge * np.eye(len(on))
        return cho_solve(cho_factor(gram, lower=True), right)

    # --- following --------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """One stretch more."""
        if self.segments and not self._turn():
            return
        start, rate, values, rates = self._lines()
        low = self._highs[-1] if self._highs else 0.0
        breaks = self._breaks(start, rate, values, rates, low)
        self._next, high = int(breaks.argmin()), float(breaks.min())
        self._count_repeats(low, high)
        below, s = self._place == BELOW, self.weights
        gain = float((s * (1 - values))[below].sum()), -float((s * rates)[below].sum())
        value = self.value(low) if self.segments else 0.0
        total = float(start.sum()), float(s[below].sum() + rate.sum())
        self.segments.append(Segment(low, high, self._place.copy(), total, value, gain))
        self._highs.append(high)
        share = total[1] + (total[0] / high if np.isfinite(high) else 0.0)
        self._shares.append(min(share / self.total_weight, self._shares[-1] if self._shares else 1.0))

    def _lines(self):
        """b_M = start + C rate (|M|,), and f = values + C rates (n,)."""
        on, columns = self._margin, self._columns[:, : len(self._margin)]
        if not on:
            return np.zeros(0), np.zeros(0), np.zeros(len(self.rows)), self._bounded
        gram = columns[on] + 0.0
        factor, info = lapack.dpotrf(gram, lower=True)
        if info:
            raise FactorizationError(
                f"{len(on)} points on the margin have a singular kernel matrix: are rows of X nearly the same? Round them, or "
                "take a shorter lengthscale."
            )
        pair, _ = lapack.dpotrs(factor, np.stack([np.ones(len(on)), -self._bounded[on]], 1), lower=True)
        moved = columns @ pair
        return pair[:, 0], pair[:, 1], moved[:, 0], self._bounded + moved[:, 1]

    def _breaks(self, start, rate, values, rates, low: float) -> np.ndarray:
        """Where each point would leave its place (n,), ∞ where it never does."""
        breaks, on = np.full(len(self.rows), np.inf), self._margin
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = (1 - values) / rates
            leaving = np.where(self._place == BELOW, rates > 0, rates < 0) & (self._place != MARGIN)
            breaks[leaving] = crossing[leaving]
            s = self.weights[on]
            to_zero = np.where(rate < 0, -start / rate, np.inf)
            to_bound = np.where(rate > s, start / (s - rate), np.inf)
        breaks[on] = np.minimum(to_zero, to_bound)
        self._sinks = to_zero <= to_bound
        return np.maximum(breaks, low)

    def _count_repeats(self, low: float, high: float) -> None:
        self._repeats = self._repeats + 1 if high <= low * (1 + 1e-14) else 0
        if self._repeats > PATIENCE * len(self.rows):
            raise FactorizationError(
                "the path of one-class SVMs does not move on: many rows of X lie symmetrically. Move each by a little noise."
            )

    def _turn(self) -> bool:
        """Move the point of the last break to its new place; False at the end of the path."""
        if not np.isfinite(self._highs[-1]):
            return False
        k = self._next
        if self._place[k] == MARGIN:
            place = self._margin.index(k)
            self._leave(place)
            self._move(k, ABOVE if self._sinks[place] else BELOW)
        else:
            self._enter(k)
            self._move(k, MARGIN)
        return True

    def _move(self, k: int, place: np.int8) -> None:
        change = (place == BELOW) - (self._place[k] == BELOW) * 1.0
        if change:
            self._bounded = self._bounded + change * self.weights[k] * self.column(k)
        self._place[k] = place

    def _enter(self, k: int) -> None:
        size = len(self._margin)
        if size == self._columns.shape[1]:
            self._columns = np.asfortranarray(np.hstack([self._columns, np.empty_like(self._columns)]))
        self._columns[:, size] = self.column(k)
        self._margin.append(k)

    def _leave(self, place: int) -> None:
        """The last column takes the place of the one that goes."""
        last = len(self._margin) - 1
        self._columns[:, place] = self._columns[:, last]
        self._margin[place] = self._margin[last]
        self._margin.pop()


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
        >>> from ovkgp.inference.tasks.one_class_path import OneClassPath
        >>> from ovkgp.inference.tasks.one_class_path import value_without
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
