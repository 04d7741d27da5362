"""Sections of `defaults.py` on complete real tables: CPU seconds of large ones, small ones beside peers, and an emulator.

Imported by `defaults.py`; not a script. All need the folder of data.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from claims import Claim, claim, heading, note, row
from defaults_checks import _cpu_seconds
from defaults_peers import CONTENDERS
from defaults_tables import HALVES, load_table, make_splits, read_arrays
from scipy.linalg import eigh
from scipy.linalg.lapack import dpotrf

import ovkgp

MAX_CPU_SECONDS = {("sarcos", 1000): 20.0, ("abalone", 2924): 90.0, ("circadapt", 440): 20.0}
"""Aims for `GPRegressor()` with all outputs, by table and number of training rows."""

MAX_RATIO = 1.5  # largest ratio of CPU seconds to scikit-learn's, for one output and few rows
EMULATOR, EMULATOR_ROWS, NUM_SPLITS = "fission_gas", 157, 3
MIN_R2, COVERAGE = 0.8, (0.86, 0.94)


def large(folder: Path, quick: bool = False, num_sets: int | None = None) -> list[Claim]:
    """Measure CPU seconds of fit and prediction with all outputs, beside one factorization of that size."""
    heading(
        "CPU seconds, all outputs", "table", "(n, d, p)", "fit", "predict", "aim", "eigh", "potrf", "R²", "coverage"
    )
    claims = []
    for (name, n), aim in list(MAX_CPU_SECONDS.items())[: num_sets or (1 if quick else None)]:
        X, Y = _shuffled(folder, name, 0)
        fitted, scores = _fit_and_score(X[:n], Y[:n], X[n : n + 400], Y[n : n + 400])
        matrix = np.cov(np.random.default_rng(0).standard_normal((n, n + 100))) + np.eye(n)
        works = partial(eigh, matrix), partial(dpotrf, matrix, lower=1)
        factorizations = [min(_cpu_seconds(work) for _ in range(3)) for work in works]
        row(
            name,
            f"({n}, {X.shape[1]}, {Y.shape[1]})",
            *(f"{seconds:.1f}" for seconds in fitted),
            f"{aim:g}",
            *(f"{seconds:.2f}" for seconds in factorizations),
            *scores,
        )
        claims.append(claim(f"{name}: at most {aim:g} CPU seconds ({sum(fitted):.1f})", sum(fitted) <= aim))
    return claims


def small(folder: Path, quick: bool = False, num_sets: int | None = None) -> list[Claim]:
    """Compare CPU seconds with scikit-learn (one output, n = 30, 60) and GPyTorch (several outputs, n = 60, 120, 250)."""
    claims = []
    tables = [load_table(folder, name) for half in HALVES.values() for name in half]
    cases = ((True, (30, 60), "sklearn_rbf", MAX_RATIO), (False, (60, 120, 250), "gpytorch_prior", 1.0))
    for is_single, sizes, peer, aim in cases:
        chosen = [table for table in tables if (table.Y.shape[1] == 1) == is_single][
            : num_sets or (3 if quick else None)
        ]
        heading(
            f"mean CPU seconds over {len(chosen)} tables with {'one output' if is_single else 'several outputs'}",
            "n",
            "ovkgp",
            peer,
            "ratio",
            "median ratio",
        )
        for n in sizes:
            splits = [split for table in chosen for _, split in make_splits(table, n, 0.0, 1)]
            spent = {name: [] for name in ("ovkgp", peer)}
            for split in splits:
                for name, values in spent.items():
                    work = partial(CONTENDERS[name], split.X, split.Y, split.X_test)
                    values.append(min(_cpu_seconds(work) for _ in range(2 if n < 100 else 1)))
            ours, theirs = (np.array(values) for values in spent.values())
            ratio = ours.mean() / theirs.mean()
            row(f"{n}", ours.mean(), theirs.mean(), f"{ratio:.2f}", f"{np.median(ours / theirs):.2f}")
            claims.append(claim(f"n = {n}: at most {aim:g} times {peer} ({ratio:.2f})", ratio <= aim))
    return claims


def emulator(folder: Path, quick: bool = False, num_sets: int | None = None) -> list[Claim]:
    """Predict all 31 outputs of a simulator from 157 of its 225 runs: R² and coverage, averaged over three splits."""
    heading(f"{EMULATOR}, {EMULATOR_ROWS} rows", "split", "fit", "predict", "R²", "coverage")
    found = []
    for number in range(num_sets or (1 if quick else NUM_SPLITS)):
        X, Y = _shuffled(Path(folder), EMULATOR, number)
        n = EMULATOR_ROWS
        seconds, scores = _fit_and_score(X[:n], Y[:n], X[n:], Y[n:])
        row(f"{number}", *(f"{value:.1f}" for value in seconds), *scores)
        found.append(scores)
    r2, coverage = np.mean(found, 0)
    return [
        claim(f"{EMULATOR}: R² at least {MIN_R2:g} ({r2:.3f})", r2 >= MIN_R2),
        claim(
            f"{EMULATOR}: coverage of 90 % intervals .86 to .94 ({coverage:.3f})",
            COVERAGE[0] <= coverage <= COVERAGE[1],
        ),
    ]


def _shuffled(folder: Path, name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the complete rows of a table with all outputs, in random order."""
    X, Y = read_arrays(Path(folder), name)
    complete = np.isfinite(X).all(1) & np.isfinite(Y).all(1)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(complete))
    return X[order], Y[order]


def _fit_and_score(X, Y, X_test, Y_test) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return CPU seconds of fit and prediction, and R² (mean over outputs that vary) and coverage of 90 % intervals."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ovkgp.GPRegressor(random_state=0).fit(X[:10, :2], Y[:10, :2])  # imports and caches of a first call
        times = [time.process_time()]
        model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
        times.append(time.process_time())
        mean, _ = model.predict(X_test, return_std=True)
        times.append(time.process_time())
        lower, upper = model.predict_interval(X_test, 0.9)
    varies = Y_test.std(0) > 0
    r2 = 1 - np.square(mean - Y_test)[:, varies].mean(0) / Y_test[:, varies].var(0)
    if not varies.all():
        note(f"{(~varies).sum()} outputs are constant on the test rows")
    return tuple(np.diff(times)), (float(r2.mean()), float(((lower <= Y_test) & (Y_test <= upper)).mean()))
