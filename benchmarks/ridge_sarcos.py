"""SARCOS, with one torque observed at each input: tasks on their own and tasks tied by a graph (BT-84, Table 6.5).

A module for `ridge.py`; run by itself it does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from claims import Claim, claim, heading, note, row
from scipy.stats import ttest_rel
from timing import timed

from ovkgp import ORFFRidge
from ovkgp.estimators.common.named_kernels import median_distance
from ovkgp.kernels import GraphMatrix

NUM_TASKS = 7
TUNING_ROWS = 1049
"""Rows, complete, that choose the hyperparameters and are used for nothing else; 3400 remain."""

MIN_FEATURES = 500
"""Twice the fewest frequencies: the thesis takes D = max(N, 500)/2."""

PRINTED = {
    50: (23.138, 22.254, "2.68 %"),
    100: (16.191, 15.568, "< .1 %"),
    150: (13.821, 13.459, "< .1 %"),
    200: (12.713, 12.554, "1.52 %"),
    400: (10.785, 10.651, "< .1 %"),
}
"""nMSE in per cent: independent, Laplacian, and the p-value; 7.512, 6.486, 5.658 for both from 800 rows a task on."""


class Settings(NamedTuple):
    """Settings of both models, and the Γ of the second."""

    lengthscale: float
    lam: float
    gamma: float = 0.0
    ridge: float = 0.0
    output_matrix: np.ndarray | None = None


def bt84(
    folder: str | None = None,
    rows: Sequence[int] = (50, 100, 200, 400),
    repeats: int = 10,
    tuning_rows: int = 100,
) -> list[Claim]:
    """Errors of independent and of coupled tasks against the rows of each task."""
    path = None if folder is None else Path(folder) / "sarcos" / "sarcos_test.npz"
    if path is None or not path.is_file():
        print("\nBT-84: skipped; give --data FOLDER with sarcos/sarcos_test.npz, or set OVKGP_DATA")
        return []
    X, Y, tuning = _load(path)
    independent, coupled = _settings(*tuning, tuning_rows)
    heading(
        f"BT-84: SARCOS, one torque an input, {repeats} repetitions: nMSE in %",
        "N of each task",
        "independent",
        "Laplacian",
        "p-value",
        "printed, ind.",
        "printed, Lap.",
        "printed p",
        "seconds",
    )
    gains, values = [], []
    for n in rows:
        spent, errors = timed(
            lambda n=n: np.array([_both(X, Y, n, seed, independent, coupled) for seed in range(repeats)])
        )
        gains.append(1 - errors[:, 1].mean() / errors[:, 0].mean())
        values.append(ttest_rel(*errors.T).pvalue)
        half_widths = errors.std(0, ddof=1) / np.sqrt(repeats)
        ours = (f"{mean:.2f} ± {width:.2f}" for mean, width in zip(errors.mean(0), half_widths, strict=True))
        printed = PRINTED.get(n, (np.nan, np.nan, "-"))
        row(f"{n}", *ours, f"{100 * values[-1]:.2g} %", *printed, f"{spent / repeats / 2:.2f}")
    note(
        "± is the standard error; the p-value is of a paired t-test; seconds of one fit and its test. The file is the test file of the"
    )
    note("original, split again: levels are not comparable with the printed ones. Fixed once, on 1049 separate rows:")
    note(
        f"lengthscale {independent.lengthscale:.2f}, λ {independent.lam:g}; of the graph γ {coupled.gamma:g}, ε {coupled.ridge:g}."
    )
    return [
        claim(
            f"the graph helps where rows are few: {100 * gains[0]:.1f} % less error at N = {rows[0]}",
            gains[0] > 0 and values[0] < 0.05,
        ),
        claim(
            f"and the gain closes: {100 * gains[0]:.1f} % at N = {rows[0]}, {100 * gains[-1]:.1f} % at N = {rows[-1]}",
            gains[-1] < gains[0],
        ),
    ]


def _load(path: Path) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """X, Y, and the rows for tuning, in random order; standardised by the latter."""
    with np.load(path, allow_pickle=False) as arrays:
        X, Y = arrays["X"], arrays["Y"]
    order = np.random.default_rng(0).permutation(len(X))
    X, Y = ((table[order] - table[order[:TUNING_ROWS]].mean(0)) / table[order[:TUNING_ROWS]].std(0) for table in (X, Y))
    return X[TUNING_ROWS:], Y[TUNING_ROWS:], (X[:TUNING_ROWS], Y[:TUNING_ROWS])


def _settings(X: np.ndarray, Y: np.ndarray, n: int) -> tuple[Settings, Settings]:
    """Select the best settings on part of the tuning rows, fitted to n rows per task: for independent tasks, and for tasks coupled by a graph."""
    median = median_distance(X)
    plain = [Settings(c * median, lam) for c, lam in product((1.5, 2.0, 3.0), (0.0003, 0.003, 0.03))]
    independent = min(plain, key=lambda settings: _error(X, Y, n, settings))
    graphs = product((2.0, 4.0, 8.0), (0.03, 0.3))
    coupled = [Settings(*independent[:2], *graph, output_matrix=_graph(Y, *graph)) for graph in graphs]
    return independent, min(coupled, key=lambda settings: _error(X, Y, n, settings))


def _graph(Y: np.ndarray, gamma: float, ridge: float) -> np.ndarray:
    """(L + ε I)⁻¹ of the graph with weights exp(−γ ‖y_k − y_l‖ / √n), with a mean variance of one."""
    matrix = GraphMatrix.from_outputs(torch.from_numpy(Y), gamma=gamma / np.sqrt(len(Y)), ridge=ridge)().detach()
    return (matrix / matrix.diagonal().mean()).numpy()


def _both(X: np.ndarray, Y: np.ndarray, n: int, seed: int, *models: Settings) -> list[float]:
    order = np.random.default_rng(seed + 1).permutation(len(X))
    return [_error(X[order], Y[order], n, settings, seed) for settings in models]


def _error(X: np.ndarray, Y: np.ndarray, n: int, settings: Settings, seed: int = 0) -> float:
    """nMSE in per cent at the rows that remain when the first 7n are used, n for each task."""
    used, task = np.arange(NUM_TASKS * n), np.repeat(np.arange(NUM_TASKS), n)
    observed = np.full((len(used), NUM_TASKS), np.nan)
    observed[used, task] = Y[used, task]
    matrix = settings.output_matrix
    model = ORFFRidge(
        "independent" if matrix is None else "decomposable",
        lam=settings.lam,
        lengthscale=settings.lengthscale,
        output_matrix=matrix,
        num_frequencies=max(n, MIN_FEATURES) // 2,
        variance="features",
        random_state=seed,
    )
    Xs, Ys = X[len(used) :], Y[len(used) :]
    mean = model.fit(X[used], observed).predict(Xs)
    return float(100 * np.mean(np.square(mean - Ys).mean(0) / Ys.var(0)))
