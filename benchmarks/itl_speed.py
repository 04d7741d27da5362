"""Seconds of infinite quantile regression: beside the nm × nm Gram matrix, beside scikit-learn, and with many rows.

    python benchmarks/itl_speed.py [--quick]

First: the same objective by L-BFGS on the double representer coefficients α (n m), strong Wolfe, as the authors' public `torch_itl`
has it; that package runs beside where it is installed. Second: all percentiles, beside nine fits of `QuantileRegressor`. Third:
random features of many rows, a chunk at a time. One thread, float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from claims import Claim, claim, heading, infeasible, note, row
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss
from threadpoolctl import threadpool_limits
from timing import memory_growth, timed

from ovkgp import InfiniteQuantileRegressor
from ovkgp.estimators.task_options import input_factor, task_factor
from ovkgp.exceptions import FitWarning
from ovkgp.inference.task_learning.stochastic import solve_stochastic
from ovkgp.inference.task_learning.streamed import StreamedProblem
from ovkgp.inference.task_learning.streamed_lbfgs import solve_streamed
from ovkgp.inference.task_learning.streamed_run import StreamedSolution
from ovkgp.losses import IntegralLoss, Pinball, TaskMeasure, gauss_legendre

LENGTHSCALE, TASK_LENGTHSCALE = 2.0, 0.3
LAM, FEATURE_LAM = 1e-4, 1e-5
"""λ beside the Gram matrix, and with random features of more rows."""
INNER, PUBLIC_EPOCHS = 20, 2
"""Iterations of an epoch of torch's L-BFGS; and the most epochs of `torch_itl`, which is slow."""
NINE = np.arange(1, 10) / 10
"""The levels of scikit-learn's fits."""
MEMORY = 150
"""MB that a streamed fit may take beside its data."""


def data(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows in five dimensions, with noise that varies."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num_rows, 5))
    noise = (0.3 + 0.3 * abs(X[:, 0])) * rng.standard_normal(num_rows)
    y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + X[:, 2] * X[:, 3] + noise
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


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
        many_rows, frequencies, batches: of the streamed fits, and the steps on batches of rows and tasks.
    """
    return [
        *(found for size in sizes for found in _beside_the_gram(*size)),
        *_percentiles(percentile_rows, num_features),
        *_many_rows(many_rows, frequencies, batches),
    ]


# --- the nm × nm Gram matrix --------------------------------------------------------------------------------------------


def _beside_the_gram(num_rows: int, num_tasks: int, epochs: int) -> list[Claim]:
    X, y = data(num_rows)
    nodes = torch.linspace(0.01, 0.99, num_tasks, dtype=torch.float64)
    heading(
        f"one objective, n = {num_rows}, m = {num_tasks}, λ = {LAM:g}, RBF", "", "seconds", "objective", "slower by"
    )
    spent, model = timed(lambda: _ours(X, y, nodes))
    values, square = model.function_(torch.from_numpy(X), nodes), model.function_.norm() ** 2
    ours = objective(values, torch.from_numpy(y), nodes, square).item()
    row("ours", spent, f"{ours:.6f}", "1")
    if 8 * (num_rows * num_tasks) ** 2 > 0.7 * available_memory():
        row("Gram, L-BFGS", infeasible(num_rows, num_tasks), "", "")
        return []
    seconds, theirs = timed(lambda: _gram_lbfgs(X, y, nodes, epochs))
    row("Gram, L-BFGS", seconds, f"{theirs:.6f}", f"{seconds / spent:.0f}")
    note(f"at most {epochs} epochs of {INNER} iterations")
    if importlib.util.find_spec("torch_itl") and num_rows * num_tasks <= 5000:
        public, reached = timed(lambda: _public(X, y, nodes, PUBLIC_EPOCHS))
        row("torch_itl", public, f"{reached:.6f}", f"{public / spent:.0f}")
        note(f"{PUBLIC_EPOCHS} epochs")
    name = f"n = {num_rows}, m = {num_tasks}"
    return [
        claim(f"{name}: at least 20 times faster than L-BFGS on the Gram matrix", seconds >= 20 * spent),
        claim(f"{name}: at an objective that is at least as low", ours <= theirs),
    ]


def _ours(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor) -> InfiniteQuantileRegressor:
    """The estimator without intercept and prior mean, for the objective of the paper."""
    return InfiniteQuantileRegressor(
        lengthscale=LENGTHSCALE,
        task_lengthscale=TASK_LENGTHSCALE,
        lam=LAM,
        measure=TaskMeasure(nodes),
        noncrossing=None,
        prior_mean="zero",
        intercept=False,
    ).fit(X, y)


def objective(values: torch.Tensor, y: torch.Tensor, nodes: torch.Tensor, square: torch.Tensor | float) -> torch.Tensor:
    """(1/nm) Σ_ij ρ_θj(y_i − h_ij) + (λ/2) ‖h‖² for values h (n, m) and ‖h‖² (LT-84)."""
    r = y[:, None] - values
    return torch.maximum(nodes * r, (nodes - 1) * r).mean() + LAM / 2 * square


def _gram_lbfgs(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor, epochs: int) -> float:
    """The double representer theorem taken literally: α (nm,), zero at first, and K made once (LT-83, LT-84)."""
    K, y = gram(X, nodes), torch.from_numpy(y)
    alpha = torch.zeros(len(K), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([alpha], max_iter=INNER, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        values = K @ alpha
        loss = objective(values.view(len(y), -1), y, nodes, alpha @ values)
        loss.backward()
        return loss

    found = math.inf
    for _ in range(epochs):
        before, found = found, optimiser.step(closure).item()
        if abs(before - found) <= 1e-7 * found:
            break
    return closure().item()


def gram(X: np.ndarray, nodes: torch.Tensor) -> torch.Tensor:
    """K (nm, nm) of the product of the two kernels."""
    x = torch.from_numpy(X)
    inputs = torch.exp(-torch.cdist(x, x).square() / (2 * LENGTHSCALE**2))
    return torch.kron(inputs, torch.exp(-(nodes[:, None] - nodes).square() / (2 * TASK_LENGTHSCALE**2)))


def _public(X: np.ndarray, y: np.ndarray, nodes: torch.Tensor, epochs: int) -> float:
    """The authors' package, which makes the Gram matrix again at each evaluation."""
    from torch_itl.estimator import IQR
    from torch_itl.kernel import Gaussian
    from torch_itl.model import DecomposableIdentity
    from torch_itl.sampler import LinearSampler

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        kernels = (Gaussian(1 / (2 * scale**2)) for scale in (LENGTHSCALE, TASK_LENGTHSCALE))
        sampler = LinearSampler(0.0, 1.0)
        sampler.m = len(nodes)
        model = IQR(DecomposableIdentity(*kernels, 1), LAM, 0.0, sampler)
        x, y = torch.from_numpy(X), torch.from_numpy(y)
        model.fit_alpha_gd(x, y, n_epochs=epochs, line_search_fn="strong_wolfe")
        return model.objective(x, y, model.model.thetas).item()
    finally:
        torch.set_default_dtype(before)


def available_memory() -> float:
    """Bytes that may be had; infinite where the system does not tell (it is Linux that does)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


# --- percentiles --------------------------------------------------------------------------------------------------------


def _percentiles(num_rows: int, num_features: int) -> list[Claim]:
    X, y = data(2 * num_rows)
    X, Xs, y, ys = X[:num_rows], X[num_rows:], y[:num_rows], y[num_rows:]
    levels = np.arange(1, 100) / 100
    heading(f"quantiles on {num_features} random features, n = {num_rows}", "", "levels", "seconds", "test loss")

    def ours() -> np.ndarray:
        options = {"num_frequencies": num_features // 2, "random_state": 0}
        return (
            InfiniteQuantileRegressor(lengthscale=LENGTHSCALE, lam=FEATURE_LAM, **options).fit(X, y).predict(Xs, levels)
        )

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
    return StreamedProblem.of(phi, X, tasks, y[:, None], loss, FEATURE_LAM, random_state=0)


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
    """What was found, and by how many MB the process grew."""
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
