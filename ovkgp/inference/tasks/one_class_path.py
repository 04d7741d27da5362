"""Path of one-class SVMs over all levels, and exact leave-one-out values.

    G(C) = min_f ½ ‖f‖² + C Σ_i s_i max(0, 1 − f(x_i)),      f = Σ_i b_i k(·, x_i)

The coefficients b are piecewise linear in C. If a point is removed, b_i = β − τ, the other coefficients are piecewise
linear in τ: between two breaks the points on the margin keep f = 1, K_MM b_M' = K_Mi, and f' = K_:M b_M' − K_:i. At the
end f(x_i) is the value of the SVM of the other points.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, lapack

from ovkgp.exceptions import FactorizationError, InputError

ABOVE, MARGIN, BELOW = np.int8(0), np.int8(1), np.int8(2)
"""Status of a point: f > 1 and b = 0; f = 1; f < 1 and b = C s."""
RELATIVE_RIDGE = 1e-10
"""Term added to the diagonal, relative to its mean, so that near copies of a point can both be on the margin."""
MAX_RELATIVE_C = 1e-3
"""Maximum of C in units of 1/ridge; beyond it the ridge separates the rows from 0, not the kernel."""
MAX_GRAM_ROWS = 5000  # maximum number of rows for which K is stored, if it is not much larger than Φ
MAX_REPEATS_PER_ROW = 50  # maximum number of breaks at one value of C, per row
MAX_BREAKS = 200
"""Number of breaks after which the status of all points is held fixed when a point is removed (span rule)."""
MAX_EXACT_REMOVALS = 60  # with more points on or below the margin, the cheaper span rule is accurate enough


class OneClassPath:
    """The path for rows Φ (n, r), K = Φ Φᵀ, and weights s > 0 (n,), ones if None, computed as far as needed.

    Copies of a point should be one row with a larger weight. Complexity: O(n (r + |M|) + |M|³) per break, with |M|
    points on the margin; from 2n breaks in all, for a smooth kernel, to 12n. O(n (r + breaks)) memory.
    """

    def __init__(self, rows: np.ndarray, weights: np.ndarray | None = None):
        self.rows = np.ascontiguousarray(rows)
        self.weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.total_weight = self.weights.sum()
        self.diagonal = np.einsum("ir,ir->i", self.rows, self.rows)
        self.ridge = RELATIVE_RIDGE * self.diagonal.mean()
        self._gram = self.rows @ self.rows.T if len(rows) <= min(MAX_GRAM_ROWS, 2 * self.rows.shape[1]) else None
        self.segments: list[Segment] = []
        self._highs: list[float] = []
        self._levels: list[float] = []
        self._status = np.full(len(rows), BELOW)
        self._bounded = self.rows @ (self.rows.T @ self.weights) + self.ridge * self.weights  # K_:B s_B
        self._margin: list[int] = []
        self._columns = np.empty((len(rows), 8), order="F")  # K_:M
        self._repeats = 0
        self._extend()

    def position(self, level: float) -> float:
        """Return the C with θ(C) = level, for 0 < level ≤ 1: the classical one-class SVM."""
        farthest = MAX_RELATIVE_C / max(self.ridge, np.finfo(float).tiny)
        while self._levels[-1] > level and self._highs[-1] < farthest:
            self._extend()
        C = self._invert(level) if self._levels[-1] <= level else np.inf
        if farthest < C:
            raise InputError(
                f"No one-class SVM of level {level:.3g} exists: no function of the kernel is positive at all but a fraction {self.level_at(farthest):.3g} of the rows. Use a kernel with positive values, such as the Gaussian, or larger levels."
            )
        return C

    def _invert(self, level: float) -> float:
        segment = self.segments[bisect_left(self._levels, -level, key=float.__neg__)]
        start, rate = segment.total
        # Σ b = θ N C; on the first segment θ = 1 everywhere, and its end is returned
        gap = level * self.total_weight - rate
        return float(np.clip(start / gap, segment.low, segment.high)) if gap > 0 and start > 0 else segment.high

    def segment(self, C: float) -> Segment:
        """Return the segment that contains C."""
        while self._highs[-1] < C:
            self._extend()
        return self.segments[bisect_left(self._highs, C)]

    def level_at(self, C: float) -> float:
        """Return θ(C) = Σ b / (N C)."""
        start, rate = self.segment(C).total
        return (start / C + rate) / self.total_weight

    def value(self, C: float) -> float:
        """Return G(C)."""
        part = self.segment(C)
        return part.value + part.rates[0] * (C - part.low) + part.rates[1] * (C**2 - part.low**2) / 2

    def at(self, C: float) -> PointState:
        """Return the SVM at C, solved again from the status of its points. O(n r + |M|³)."""
        status = self.segment(C).status
        b = np.where(status == BELOW, C * self.weights, 0.0)
        on = np.flatnonzero(status == MARGIN)
        if len(on):
            b[on] = self._solve(on, 1 - self.rows[on] @ (self.rows.T @ b))
        b = np.clip(b, 0.0, C * self.weights)
        return PointState(b, self.rows @ (self.rows.T @ b) + self.ridge * b, status)

    def span_rule(self, C: float, units: np.ndarray | None = None) -> np.ndarray:
        """Return f at each point without it (or a weight `units` of it), with the status of the others fixed, (n,).

        f_i − (b removed) · (squared distance of the point from the span of the margin). `leave_one_out_value` lets the
        status change. Complexity: O(n r + n |M|²).
        """
        state, s = self.at(C), self.weights
        units = s if units is None else units
        taken = np.clip(state.coefficients - C * (s - units), 0.0, None)
        on = np.flatnonzero(state.status == MARGIN)
        distance = self.diagonal + self.ridge
        if len(on):
            columns = self.rows @ self.rows[on].T
            inverse = self._solve(on, np.eye(len(on)))
            distance = distance - np.einsum("im,mk,ik->i", columns, inverse, columns)
            distance[on] = 1 / np.diagonal(inverse)
        return state.values - taken * np.clip(distance, 0.0, None)

    def column(self, k: int) -> np.ndarray:
        """Return K_:k, including the ridge (n,)."""
        return self.columns([k])[:, 0]

    def columns(self, chosen: list[int]) -> np.ndarray:
        """Return K_:M, including the ridge (n, |M|)."""
        columns = self.rows @ self.rows[chosen].T if self._gram is None else self._gram[chosen].T
        columns[chosen, np.arange(len(chosen))] += self.ridge
        return columns

    def _solve(self, on: np.ndarray, right: np.ndarray) -> np.ndarray:
        gram = self.rows[on] @ self.rows[on].T + self.ridge * np.eye(len(on))
        return cho_solve(cho_factor(gram, lower=True), right)

    def _extend(self) -> None:
        """Compute one more segment."""
        if self.segments and not self._cross_break():
            return
        start, rate, values, rates = self._lines()
        low = self._highs[-1] if self._highs else 0.0
        breaks = self._breaks(start, rate, values, rates, low)
        self._next, high = int(breaks.argmin()), float(breaks.min())
        self._count_repeats(low, high)
        below, s = self._status == BELOW, self.weights
        gain = float((s * (1 - values))[below].sum()), -float((s * rates)[below].sum())
        value = self.value(low) if self.segments else 0.0
        total = float(start.sum()), float(s[below].sum() + rate.sum())
        self.segments.append(Segment(low, high, self._status.copy(), total, value, gain))
        self._highs.append(high)
        mass = total[1] + (total[0] / high if np.isfinite(high) else 0.0)
        self._levels.append(min(mass / self.total_weight, self._levels[-1] if self._levels else 1.0))

    def _lines(self):
        """Return b_M = start + C rate (|M|,), and f = values + C rates (n,)."""
        on, columns = self._margin, self._columns[:, : len(self._margin)]
        if not on:
            return np.zeros(0), np.zeros(0), np.zeros(len(self.rows)), self._bounded
        gram = columns[on] + 0.0
        factor, info = lapack.dpotrf(gram, lower=True)
        if info:
            raise FactorizationError(
                f"The kernel matrix of {len(on)} points on the margin is singular. Round rows of X that are nearly equal, or use a shorter lengthscale."
            )
        pair, _ = lapack.dpotrs(factor, np.stack([np.ones(len(on)), -self._bounded[on]], 1), lower=True)
        response = columns @ pair
        return pair[:, 0], pair[:, 1], response[:, 0], self._bounded + response[:, 1]

    def _breaks(self, start, rate, values, rates, low: float) -> np.ndarray:
        """Return the C at which the status of each point would change (n,), ∞ if it never does."""
        breaks, on = np.full(len(self.rows), np.inf), self._margin
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            crossing = (1 - values) / rates
            leaving = np.where(self._status == BELOW, rates > 0, rates < 0) & (self._status != MARGIN)
            breaks[leaving] = crossing[leaving]
            s = self.weights[on]
            to_zero = np.where(rate < 0, -start / rate, np.inf)
            to_bound = np.where(rate > s, start / (s - rate), np.inf)
        breaks[on] = np.minimum(to_zero, to_bound)
        self._reaches_zero = to_zero <= to_bound
        return np.maximum(breaks, low)

    def _count_repeats(self, low: float, high: float) -> None:
        self._repeats = self._repeats + 1 if high <= low * (1 + 1e-14) else 0
        if self._repeats > MAX_REPEATS_PER_ROW * len(self.rows):
            raise FactorizationError(
                "The path of one-class SVMs does not advance, because many rows of X are symmetric. Add a little noise to X."
            )

    def _cross_break(self) -> bool:
        """Change the status of the point of the last break; return False at the end of the path."""
        if not np.isfinite(self._highs[-1]):
            return False
        k = self._next
        if self._status[k] == MARGIN:
            index = self._margin.index(k)
            self._leave(index)
            self._move(k, ABOVE if self._reaches_zero[index] else BELOW)
        else:
            self._enter(k)
            self._move(k, MARGIN)
        return True

    def _move(self, k: int, status: np.int8) -> None:
        change = (status == BELOW) - (self._status[k] == BELOW) * 1.0
        if change:
            self._bounded = self._bounded + change * self.weights[k] * self.column(k)
        self._status[k] = status

    def _enter(self, k: int) -> None:
        size = len(self._margin)
        if size == self._columns.shape[1]:
            self._columns = np.asfortranarray(np.hstack([self._columns, np.empty_like(self._columns)]))
        self._columns[:, size] = self.column(k)
        self._margin.append(k)

    def _leave(self, index: int) -> None:
        """Remove a column by overwriting it with the last one."""
        last = len(self._margin) - 1
        self._columns[:, index] = self._columns[:, last]
        self._margin[index] = self._margin[last]
        self._margin.pop()


def leave_one_out(path: OneClassPath, C: float, units: np.ndarray | None = None) -> np.ndarray:
    """Return f at each point without that point (or a weight `units` of it), (n,).

    Only the removal of points with b > 0 has an effect. If they are few, the result is exact; if they are many, it is
    the span rule.
    """
    values, state, s = path.span_rule(C, units), path.at(C), path.weights
    taken = state.coefficients - C * (s - (s if units is None else units))
    support = np.flatnonzero(taken > 0)
    for i in support if len(support) <= MAX_EXACT_REMOVALS else ():
        values[i] = leave_one_out_value(path, state, C, int(i), taken[i])
    return values


def leave_one_out_value(path: OneClassPath, state: PointState, C: float, i: int, taken: float) -> float:
    """Return f(x_i) after `taken` in (0, b_i] is removed from b_i and the other coefficients are optimal again.

    Complexity: O(n |M| + |M|³) per break, with |M| points on the margin; about ten breaks.
    """
    b, f, status = state.coefficients.copy(), state.values.copy(), state.status.copy()
    column, bound, remaining = path.column(i), C * path.weights, taken
    margin = [int(k) for k in np.flatnonzero(status == MARGIN) if k != i]
    status[i] = -1  # no status while it is removed
    for count in range(MAX_BREAKS):
        rates, slopes = _directions(path, margin, column)
        step, k = _first_break(b, f, status, margin, bound, rates, slopes) if count < MAX_BREAKS - 1 else (np.inf, -1)
        if step >= remaining:
            break
        f, remaining = f + step * slopes, remaining - step
        b[margin] += step * rates
        _move(k, b, status, margin, bound)
    return float(f[i] + remaining * slopes[i])


class Segment(NamedTuple):
    """A segment of the path between two breaks, on which b is linear in C.

    `status` (n,) is that of each point, `total` (u, v) gives Σ b = u + v C, `value` is G at `low`, and `rates` (u, v)
    give G' = u + v C.
    """

    low: float
    high: float
    status: np.ndarray
    total: tuple[float, float]
    value: float
    rates: tuple[float, float]


class PointState(NamedTuple):
    """The SVM at one C: b (n,), f at the points (n,), and their status (n,)."""

    coefficients: np.ndarray
    values: np.ndarray
    status: np.ndarray


def _directions(path: OneClassPath, margin: list[int], column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return b_M' (|M|,) and f' (n,)."""
    if not margin:
        return np.zeros(0), -column
    columns = path.columns(margin)
    factor, _ = lapack.dpotrf(columns[margin], lower=True)
    rates, _ = lapack.dpotrs(factor, column[margin], lower=True)
    return rates, columns @ rates - column


def _first_break(b, f, status, margin, bound, rates, slopes) -> tuple[float, int]:
    """Return the distance to the first change of status, and the point; 0 if a point is at its end already."""
    steps = np.full(len(b), np.inf)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        leaving = np.where(status == ABOVE, slopes < 0, (status == BELOW) & (slopes > 0))
        steps[leaving] = ((1 - f) / slopes)[leaving]
        down = np.where(rates < 0, -b[margin] / rates, np.inf)
        up = np.where(rates > 0, (bound - b)[margin] / rates, np.inf)
    steps[margin] = np.minimum(down, up)
    k = int(steps.argmin())
    return max(float(steps[k]), 0.0), k


def _move(k: int, b: np.ndarray, status: np.ndarray, margin: list[int], bound: np.ndarray) -> None:
    if status[k] == MARGIN:
        margin.remove(k)
        status[k] = ABOVE if b[k] < bound[k] / 2 else BELOW
        b[k] = 0.0 if status[k] == ABOVE else bound[k]
    else:
        margin.append(k)
        status[k] = MARGIN
