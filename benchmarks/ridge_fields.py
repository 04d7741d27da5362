"""Vector fields: curl- and divergence-free kernels against outputs on their own (BT-82, BA-12).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ridge_tables import Claim, claim, heading, infeasible, note, row
from sklearn.metrics import r2_score
from timing import timed

from ovkgp import ORFFRidge, OVKRidge
from ovkgp.datasets import make_curl_free_field, make_gaussian_field
from ovkgp.estimators.ridge import RidgeEstimator
from ovkgp.inference.roads import DENSE_LIMIT

DIMS = 5
TEST_ROWS = 2000

# --- five dimensions --------------------------------------------------------------------------------------------------


def bt82(
    rows: Sequence[int] = (100, 316, 1000, 3162, 10_000),
    beyond: Sequence[int] = (100_000,),
    num_frequencies: int = 500,
    exact_rows: int = 500,
    frequencies: Sequence[int] = (50, 100, 200, 500, 1000),
    fixed_rows: int = 500,
) -> list[Claim]:
    """R² and seconds of a curl-free field in five dimensions, against the rows and against the features."""
    lams = np.logspace(-10, 2, 7)
    X, Y, _ = make_curl_free_field(TEST_ROWS + max(*rows, fixed_rows), random_state=0)
    sample = X[TEST_ROWS:], Y[TEST_ROWS:], X[:TEST_ROWS], Y[:TEST_ROWS]

    def features(kernel: str, D: int, n: int) -> tuple[float, float]:
        return _scored(ORFFRidge(kernel, lam=lams, num_frequencies=D, random_state=0), sample, n)

    heading(
        f"BT-82: curl-free field, R^5 to R^5, D = {num_frequencies}: test R² (seconds)",
        "N",
        "curl-free ORFF",
        "independent RFF",
        "curl-free exact",
    )
    scores = []
    for n in rows:
        ours = [features(kernel, num_frequencies, n) for kernel in ("curl_free", "independent")]
        exact = _cell(*_scored(OVKRidge("curl_free", lam=lams), sample, n)) if n <= exact_rows else _too_many(n)
        scores.append([r2 for r2, _ in ours])
        row(f"{n}", *(_cell(*each) for each in ours), exact)
    for n in beyond:
        row(f"{n}", "with --full", "with --full", infeasible(n, DIMS))

    heading(f"BT-82: N = {fixed_rows}, test R² (seconds)", "D", "curl-free ORFF", "independent RFF", "curl-free exact")
    exact = _scored(OVKRidge("curl_free", lam=lams), sample, fixed_rows)
    by_features = []
    for D in frequencies:
        ours = [features(kernel, D, fixed_rows) for kernel in ("curl_free", "independent")]
        by_features.append([r2 for r2, _ in ours])
        row(f"{D}", *(_cell(*each) for each in ours), _cell(*exact))
    note("The lengthscale is the median distance, λ one of 1e-10, 1e-8, …, 1e2 by leave-one-out errors in closed form;")
    note('the seconds are of fit, λ included. "no" is the memory that the exact kernel would need.')
    curl, independent = np.array(by_features)[-1]
    return [
        claim(
            f"curl-free features beat independent ones for every N >= 1000, or the largest (D = {num_frequencies})",
            all(a > b for (a, b), n in zip(scores, rows, strict=True) if n >= min(1000, max(rows))),
        ),
        claim(f"and at equal D = {frequencies[-1]}, N = {fixed_rows}", curl > independent),
        claim(
            f"curl-free features come to the exact kernel or above it (R² {curl:.3f} and {exact[0]:.3f})",
            curl >= exact[0] - 0.02,
        ),
    ]


def _scored(model: RidgeEstimator, sample: tuple[np.ndarray, ...], n: int) -> tuple[float, float]:
    """R² at the test rows and the seconds of fitting to n rows."""
    X, Y, Xs, Ys = sample
    spent, _ = timed(lambda: model.fit(X[:n], Y[:n]))
    return r2_score(Ys, model.predict(Xs)), spent


def _cell(r2: float, spent: float) -> str:
    return f"{r2:.3f} ({spent:.1f})"


def _too_many(n: int) -> str:
    return infeasible(n, DIMS) if n * DIMS > DENSE_LIMIT else "not run"


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
    note("At equal D the decomposable kernel has p times the weights, which tells where D is small.")
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
        if 2 * n <= DENSE_LIMIT:
            model = OVKRidge("curl_free", lam=0.01, lengthscale=0.4)
            exact = f"{timed(lambda model=model, n=n: model.fit(X[:n], Y[:n]))[0]:.2f}"
        row(f"{n}", f"{seconds[n]:.2f}", exact, "> 1000 s" if n > 10_000 else "-")
    more, times = max(rows) / min(rows), seconds[max(rows)] / seconds[min(rows)]
    return claim(
        f"features take {more:.0f} times the rows in {times:.1f} times the seconds: linear in N", times < 2 * more
    )
