"""Vector fields: curl- and divergence-free kernels against outputs on their own (BT-82, BA-12).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from claims import Claim, claim, heading, infeasible, note, row
from sklearn.metrics import r2_score
from timing import timed

from ovkgp import ORFFRidge, OVKRidge
from ovkgp.datasets import make_curl_free_field, make_gaussian_field
from ovkgp.estimators.ridge.base import RidgeEstimator
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES

DIMS = 5
TEST_ROWS, HELD_OUT = 2000, 500
LAMS = np.logspace(-8, 2, 21)
"""Two per decade: leave-one-out errors are flat where there are as many weights as rows, and the best λ of a coarser grid is
decided by their noise (R² .18 instead of .24 at N = 1000, D = 500 with one λ per two decades)."""

# --- five dimensions --------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """Test R² with the λ of leave-one-out errors and with that of held-out rows, and seconds of the path of λ."""

    leave_one_out: float
    held_out: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.leave_one_out:.3f} {self.held_out:.3f} ({self.seconds:.0f} s)"


def bt82(
    rows: Sequence[int] = (100, 316, 1000, 3162, 10_000),
    beyond: Sequence[int] = (100_000,),
    num_frequencies: int = 500,
    exact_rows: int = 500,
    frequencies: Sequence[int] = (50, 200, 1000),
    fixed_rows: int = 500,
) -> list[Claim]:
    """R² and seconds of a curl-free field in five dimensions, against the rows and against the features."""
    X, Y, _ = make_curl_free_field(TEST_ROWS + HELD_OUT + max(*rows, fixed_rows), random_state=0)
    scored = partial(_scored, X, Y)
    columns = "curl-free ORFF", "independent RFF", "independent, D/5", "curl-free exact"
    heading(f"BT-82: curl-free field, R^5 to R^5, D = {num_frequencies}: test R² twice (seconds)", "N", *columns)
    by_rows = {}
    for n in rows:
        by_rows[n] = _three(scored, n, num_frequencies)
        exact = str(scored(OVKRidge("curl_free"), n)) if n <= exact_rows else _too_many(n)
        row(f"{n}", *map(str, by_rows[n]), exact)
    for n in beyond:
        row(f"{n}", *3 * ("with --full",), infeasible(n, DIMS))
    heading(f"BT-82: N = {fixed_rows}: test R² twice (seconds)", "D", *columns)
    exact = scored(OVKRidge("curl_free"), fixed_rows)
    by_features = {}
    for D in frequencies:
        by_features[D] = _three(scored, fixed_rows, D)
        row(f"{D}", *map(str, by_features[D]), str(exact))
    note(
        "The lengthscale is the median distance. λ is one of 1e-8, 10^-7.5, …, 1e2: of smallest leave-one-out error in closed"
    )
    note(
        f'form (left), or of smallest error at {HELD_OUT} other rows (right). "independent, D/5" has as many weights as the'
    )
    note(
        'curl-free features; at equal D it has five times as many. "no" is the memory that the exact kernel would need.'
    )
    note(
        "The thesis finds features equal to the exact kernel or better; here they stay below it and tend to it with D."
    )
    note(
        "With many rows weights are scarce: at N = 10 000 and equal D independent features, with five times as many weights,"
    )
    note("are better.")
    return _verdicts(by_rows, by_features, exact)


def _three(scored: Callable[..., Score], n: int, D: int) -> list[Score]:
    settings = ("curl_free", D), ("independent", D), ("independent", max(D // DIMS, 1))
    return [scored(ORFFRidge(kernel, num_frequencies=count, random_state=0), n) for kernel, count in settings]


def _verdicts(by_rows: dict[int, list[Score]], by_features: dict[int, list[Score]], exact: Score) -> list[Claim]:
    medium = [scores for n, scores in by_rows.items() if min(1000, max(by_rows)) <= n <= 3162]
    enough = [scores for n, scores in by_rows.items() if n >= min(1000, max(by_rows))]
    gaps = [exact.held_out - scores[0].held_out for scores in by_features.values()]
    few, many = min(by_features), max(by_features)
    everything = [exact, *(score for table in (by_rows, by_features) for scores in table.values() for score in scores)]
    losses = np.array([score.held_out - score.leave_one_out for score in everything])
    return [
        claim("at equal D curl-free features beat independent ones, from N = 1000 to N = 3162", _wins(medium, 1)),
        claim("with equally many weights they do from N = 1000 on", _wins(enough, 2)),
        claim("and at the largest D of the second table", _wins(list(by_features.values())[-1:], 1)),
        claim(
            f"features tend to the exact kernel: R² {gaps[0]:.3f} below it at D = {few}, {gaps[-1]:.3f} at D = {many}",
            gaps[-1] < gaps[0] / 2,
        ),
        claim(
            f"leave-one-out errors choose λ nearly as well as {HELD_OUT} further rows: R² lower by {losses.mean():.3f} on average, "
            f"at most {losses.max():.3f} (with few rows)",
            losses.mean() < 0.02,
        ),
    ]


def _wins(table: list[list[Score]], rival: int) -> bool:
    return all(scores[0].held_out > scores[rival].held_out for scores in table)


def _scored(X: np.ndarray, Y: np.ndarray, model: RidgeEstimator, n: int) -> Score:
    """Test rows come first, then the rows that λ may be chosen by, then those to learn from."""
    start = TEST_ROWS + HELD_OUT
    known = X[start : start + n], Y[start : start + n]
    model.fit(*known)
    spent, path = timed(lambda: model.path(*known, LAMS))
    means = path.predict(X[:start])
    errors = np.square(means[:, TEST_ROWS:] - Y[TEST_ROWS:start]).mean((1, 2))
    leave_one_out, held_out = (
        r2_score(Y[:TEST_ROWS], means[best, :TEST_ROWS]) for best in (path.loo_error.argmin(), errors.argmin())
    )
    return Score(leave_one_out, held_out, spent)


def _too_many(n: int) -> str:
    return infeasible(n, DIMS) if n * DIMS > MAX_DENSE_ENTRIES else "not run"


# --- the plane --------------------------------------------------------------------------------------------------------


def ba12(
    num_rows: int = 500,
    frequencies: Sequence[int] = (10, 30, 100, 300, 1000),
    clock_rows: Sequence[int] = (100, 1000, 2000, 10_000, 100_000),
) -> list[Claim]:
    """Errors of two fields in the plane against the features, and seconds against the rows."""
    return [
        *_errors("curl_free", num_rows, frequencies),
        *_errors("divergence_free", num_rows, frequencies),
        _clock(clock_rows),
    ]


def _errors(kind: str, num_rows: int, frequencies: Sequence[int]) -> list[Claim]:
    noise = 0.01
    X, Y, truth = make_gaussian_field(num_rows, kind=kind, noise=noise, random_state=0)
    Xs = make_gaussian_field(TEST_ROWS, kind=kind, random_state=1).X
    kernels = (kind, "independent")

    def error(make) -> float:
        return float(np.square(_tuned(make, X, Y).predict(Xs) - truth(Xs)).mean())

    heading(
        f"BA-12: {kind.replace('_', '-')} field in the plane, N = {num_rows}, noise variance {noise}: squared error x 1000",
        "D",
        *kernels,
        "ratio",
    )
    table = []
    for D in frequencies:
        makers = (lambda D=D, k=k, **o: ORFFRidge(k, num_frequencies=D, random_state=0, **o) for k in kernels)
        table.append([error(make) for make in makers])
        row(f"{D}", *(1e3 * np.array(table[-1])), table[-1][1] / table[-1][0])
    exact = [error(lambda k=k, **o: OVKRidge(k, **o)) for k in kernels]
    row("exact", *(1e3 * np.array(exact)), exact[1] / exact[0])
    note("Errors are against the field without its noise; σ and λ on a grid by leave-one-out errors, for each cell.")
    note("At equal D the decomposable kernel has p times the weights, which helps if D is small.")
    (before, _), (last, other), many, name = *table[-2:], frequencies[-1], kind.replace("_", "-")
    return [
        claim(f"{name} features end below decomposable ones (at D = {many})", last < other),
        claim(
            f"and tend to the exact kernel: {before / exact[0]:.2f} times its error, then {last / exact[0]:.2f} (D = {many})",
            last < min(before, 2 * exact[0]),
        ),
    ]


def _tuned(make, X: np.ndarray, Y: np.ndarray) -> RidgeEstimator:
    """The model with the lengthscale and λ of smallest leave-one-out error."""
    lams = np.logspace(-4, 2, 7)
    models = [make(lam=lams, lengthscale=lengthscale).fit(X, Y) for lengthscale in (0.2, 0.3, 0.45, 0.7)]
    return min(models, key=lambda model: model.path_.loo_error.min())


def _clock(rows: Sequence[int], num_frequencies: int = 300) -> Claim:
    heading(
        f"BA-12: seconds of one fit, D = {num_frequencies}", "N", "curl-free ORFF", "curl-free exact", "paper, exact"
    )
    X, Y, _ = make_gaussian_field(max(rows), noise=0.01, random_state=0)
    seconds = {}
    for n in rows:
        features = ORFFRidge("curl_free", lam=0.01, lengthscale=0.4, num_frequencies=num_frequencies, random_state=0)
        seconds[n] = timed(lambda model=features, n=n: model.fit(X[:n], Y[:n]))[0]
        exact = infeasible(n, 2)
        if 2 * n <= MAX_DENSE_ENTRIES:
            model = OVKRidge("curl_free", lam=0.01, lengthscale=0.4)
            exact = f"{timed(lambda model=model, n=n: model.fit(X[:n], Y[:n]))[0]:.2f}"
        row(f"{n}", f"{seconds[n]:.2f}", exact, "> 1000 s" if n > 10_000 else "-")
    more, times = max(rows) / min(rows), seconds[max(rows)] / seconds[min(rows)]
    return claim(
        f"features take {more:.0f} times the rows in {times:.1f} times the seconds: linear in N", times < 2 * more
    )
