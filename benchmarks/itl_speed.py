"""Seconds of infinite quantile regression: beside the nm × nm Gram matrix, beside scikit-learn, and with many rows.

    python benchmarks/itl_speed.py [--quick]

First: L-BFGS on the coefficients of the double representer theorem (`itl_speed_gram`). Second: all percentiles, beside nine fits of
`QuantileRegressor`. Third: random features of many rows, a chunk at a time. One thread, float64.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from claims import Claim, claim, heading, row
from itl_speed_gram import LENGTHSCALE, beside_the_gram, data
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss
from threadpoolctl import threadpool_limits
from timing import memory_growth, timed

from ovkgp import InfiniteQuantileRegressor
from ovkgp.estimators.common.task_options import input_factor, task_factor
from ovkgp.exceptions import FitWarning
from ovkgp.inference.tasks.solvers.stochastic import solve_stochastic
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, StreamedSolution
from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre

LAM = 1e-5
NINE = np.arange(1, 10) / 10
"""The levels of scikit-learn's fits."""
MEMORY = 150
"""MB that a streamed fit may take beside its data."""


def speed(
    sizes: tuple[tuple[int, int, int], ...] = ((200, 15, 40), (1000, 30, 3)),
    percentile_rows: int = 2000,
    num_features: int = 200,
    many_rows: int = 100_000,
    frequencies: tuple[int, ...] = (200, 500),
    batches: int = 2000,
) -> list[Claim]:
    """All three.

    Args:
        sizes: rows, nodes, and epochs of L-BFGS that the peers get.
        percentile_rows, num_features: beside scikit-learn.
        many_rows, frequencies, batches: Sizes of the streamed fits, and steps on batches of rows and tasks.
    """
    return [
        *(found for size in sizes for found in beside_the_gram(*size)),
        *_percentiles(percentile_rows, num_features),
        *_many_rows(many_rows, frequencies, batches),
    ]


# --- percentiles --------------------------------------------------------------------------------------------------------


def _percentiles(num_rows: int, num_features: int) -> list[Claim]:
    X, y = data(2 * num_rows)
    X, Xs, y, ys = X[:num_rows], X[num_rows:], y[:num_rows], y[num_rows:]
    levels = np.arange(1, 100) / 100
    heading(f"quantiles on {num_features} random features, n = {num_rows}", "", "levels", "seconds", "test loss")

    def ours() -> np.ndarray:
        options = {"num_frequencies": num_features // 2, "calibrate": False, "random_state": 0}
        return InfiniteQuantileRegressor(lengthscale=LENGTHSCALE, lam=LAM, **options).fit(X, y).predict(Xs, levels)

    def theirs() -> np.ndarray:
        sampler = RBFSampler(gamma=1 / (2 * LENGTHSCALE**2), n_components=num_features, random_state=0).fit(X)
        Phi, Phis = sampler.transform(X), sampler.transform(Xs)
        fits = (QuantileRegressor(quantile=level, alpha=1e-4, solver="highs").fit(Phi, y) for level in NINE)
        return np.stack([fit.predict(Phis) for fit in fits], -1)

    spent, curves = timed(ours)
    seconds, nine = timed(theirs)
    losses = [
        np.mean([mean_pinball_loss(ys, curve, alpha=level) for level, curve in zip(NINE, found.T, strict=True)])
        for found in (curves[:, np.rint(100 * NINE).astype(int) - 1], nine)
    ]
    row("ours", "99", spent, f"{losses[0]:.4f}")
    row("scikit-learn", "9", seconds, f"{losses[1]:.4f}")
    return [
        claim(f"99 percentiles in less time than 9 fits of scikit-learn (by {seconds / spent:.1f})", spent < seconds),
        claim("at a test loss that is no larger than theirs by 2 %", losses[0] <= 1.02 * losses[1]),
    ]


# --- many rows ----------------------------------------------------------------------------------------------------------


def _many_rows(num_rows: int, frequencies: tuple[int, ...], batches: int) -> list[Claim]:
    """L-BFGS until the gap is 1e-3 of the objective, and steps on batches of rows and tasks."""
    heading(
        f"streamed, n = {num_rows}, m = 30", "frequencies", "seconds", "passes", "objective", "gap / objective", "MB"
    )
    return [found for count in frequencies for found in _streamed(_problem(num_rows, count), count, batches)]


def _problem(num_rows: int, num_frequencies: int) -> StreamedProblem:
    X, y = (torch.from_numpy(values) for values in data(num_rows))
    measure = gauss_legendre(30)
    phi = input_factor(X[:1000], lengthscale=LENGTHSCALE, num_frequencies=num_frequencies, random_state=0)
    tasks, loss = task_factor(measure.nodes)(measure.nodes[:, None]), IntegralLoss(Pinball(), measure)
    return StreamedProblem.from_factor(phi, X, tasks, y[:, None], loss, LAM, random_state=0)


def _streamed(problem: StreamedProblem, count: int, batches: int) -> list[Claim]:
    whole, megabytes = _measured(str(count), lambda: solve_streamed(problem, tolerance=1e-3))
    rough, _ = _measured(f"{count}, batches", lambda: solve_stochastic(problem, max_iter=batches, random_state=0))
    size = 8e-6 * problem.num_rows * problem.shape[0]
    return [
        claim(
            f"{count} frequencies: converged in less than {MEMORY} MB (Φ has {size:.0f})",
            whole.report.converged and not megabytes > MEMORY,
        ),
        claim("    and batches come within 1 % of its objective (B-33)", rough.objective <= 1.01 * whole.objective),
    ]


def _measured(name: str, solve: Callable[[], StreamedSolution]) -> tuple[StreamedSolution, float]:
    """Return the result, and the growth of the memory of the process in MB."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        megabytes = memory_growth(lambda: found.append(solve())) / 1e6
    (solution,) = found
    gap, report = f"{solution.gap / solution.objective:.1e}", solution.report
    row(name, report.seconds, str(report.evaluations), f"{solution.objective:.6f}", gap, f"{megabytes:.0f}")
    return solution, megabytes


QUICK = {"sizes": ((200, 15, 10),), "percentile_rows": 500, "many_rows": 20_000, "frequencies": (100,), "batches": 500}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):  # NumPy's threads are not torch's
        speed(**(QUICK if options.quick else {}))


if __name__ == "__main__":
    main()
