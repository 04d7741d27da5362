"""`InfiniteQuantileRegressor` without options: on tables, on sines of any frequency, and with many rows.

A module for `itl.py`; run by itself it does nothing. Nothing is tuned: a fit is the default one. The peer is scikit-learn's
linear `QuantileRegressor` on the same rows of the same run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from claims import Claim, claim, heading, note, row
from itl_tables import PRINTED, load
from sklearn.linear_model import QuantileRegressor
from sklearn.model_selection import KFold

from ovkgp import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.kernel import GaussianScales, KernelProportions, LearnedKernel, make_log_density
from ovkgp.estimators.quantiles.rows import QuantileRows, pinball_losses
from ovkgp.exceptions import FitWarning
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.training.lbfgs import find_mode

LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
OUTER = np.array([0.1, 0.5, 0.9])
MAX_ENGEL_RATIO, COVERAGE_RANGE = 1.02, (0.77, 0.83)
BRUTE_LENGTHSCALES, BRUTE_NOISES = np.geomspace(0.005, 5.0, 14), (0.3, 0.01)
MAX_SECONDS, MAX_LOSS_RATIO = 60.0, 1.01
MAX_LINEAR_ROWS = 5000  # linear programs of more rows are slow


def _cpu_seconds(work) -> tuple[float, object]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def _coverage(y: np.ndarray, curves: np.ndarray) -> float:
    return float(((curves[:, 0] <= y) & (y <= curves[:, -1])).mean())


# --- tables ---------------------------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """Of one fold: pinball losses (5,) in original units of the calibrated and the bare quantiles and of lines, coverages of [.1, .9], seconds."""

    ours: np.ndarray
    bare: np.ndarray
    linear: np.ndarray
    coverages: tuple[float, float, float]
    seconds: float
    size: float


def quantile_tables(
    folder: str | None = None, names: Sequence[str] = tuple(PRINTED), seeds: Sequence[int] = (0,)
) -> list[Claim]:
    """Five-fold cross-validation on the tables of Table 5.1.

    Args:
        folder: with quantile/*.csv.
        names: tables.
        seeds: Seeds of the folds.
    """
    if folder is None or not (Path(folder) / "quantile").is_dir():
        print("\nquantile_tables: skipped; give --data FOLDER with quantile/*.csv, or set OVKGP_DATA")
        return []
    heading(
        f"defaults on tables, 5 folds x {len(seeds)}: pinball x 100 of 5 levels in sd of y; coverage of [.1, .9]",
        *("table", "ours", "calibrate=False", "linear", "ours / linear"),
        *("coverage", "calibrate=False", "linear", "CPU-s a fit"),
    )
    found, means = {}, []
    for name in names:
        found[name] = _cross_validate(*load(Path(folder) / "quantile" / f"{name}.csv"), seeds)
        means.append(_print_table(name, found[name]))
    _print_means("mean", np.mean(means, 0))
    return _table_claims(found, np.mean(means, 0))


def _cross_validate(X: np.ndarray, y: np.ndarray, seeds: Sequence[int]) -> list[Scores]:
    splits = [split for seed in seeds for split in KFold(5, shuffle=True, random_state=seed).split(X)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return [_score_split(X, y, *split) for split in splits]


def _score_split(X: np.ndarray, y: np.ndarray, used: np.ndarray, left: np.ndarray) -> Scores:
    seconds, model = _cpu_seconds(lambda: InfiniteQuantileRegressor(random_state=0).fit(X[used], y[used]))
    curves = [model.predict(X[left], LEVELS), model.predict(X[left], LEVELS, calibrate=False)]
    curves.append(_linear_curves(X[used], y[used], X[left], LEVELS))
    losses = (pinball_losses(y[left], found, LEVELS) for found in curves)
    return Scores(*losses, tuple(_coverage(y[left], found) for found in curves), seconds, y[used].std())


def _linear_curves(X: np.ndarray, y: np.ndarray, new: np.ndarray, levels: np.ndarray) -> np.ndarray:
    mean, scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
    fits = (QuantileRegressor(quantile=level, alpha=0.0, solver="highs").fit((X - mean) / scale, y) for level in levels)
    return np.stack([fit.predict((new - mean) / scale) for fit in fits], -1)


def _print_table(name: str, scores: list[Scores]) -> np.ndarray:
    losses = [100 * np.mean([getattr(s, kind).sum() / s.size for s in scores]) for kind in ("ours", "bare", "linear")]
    means = np.array([*losses, *np.mean([s.coverages for s in scores], 0), np.mean([s.seconds for s in scores])])
    _print_means(name, means)
    return means


def _print_means(name: str, means: np.ndarray) -> None:
    ours, bare, linear, *coverages, seconds = means
    cells = [f"{value:.1f}" for value in (ours, bare, linear)] + [f"{ours / linear:.3f}"]
    row(name, *cells, *(f"{value:.3f}" for value in coverages), f"{seconds:.1f}")


def _table_claims(found: dict[str, list[Scores]], means: np.ndarray) -> list[Claim]:
    low, high = COVERAGE_RANGE
    claims = [
        claim(f"[.1, .9] covers {means[3]:.3f} on average (.77 to .83)", low <= means[3] <= high),
        claim(f"at a pinball loss of {means[0] / means[1]:.3f} times that without calibration", means[0] <= means[1]),
    ]
    if "engel" in found:
        ours, linear = (np.mean([getattr(s, kind) for s in found["engel"]], 0) for kind in ("ours", "linear"))
        of_three = [losses[[0, 2, 4]] for losses in (ours, linear)]
        texts = ("/".join(f"{value:.1f}" for value in losses) for losses in of_three)
        note("engel at .1/.5/.9, original units: ours {}, linear {}".format(*texts))
        ratio = of_three[0].sum() / of_three[1].sum()
        claims.append(claim(f"engel: {ratio:.3f} times the loss of lines (at most 1.02)", ratio <= MAX_ENGEL_RATIO))
    return claims


# --- sines ----------------------------------------------------------------------------------------------------------------


def quantile_sines(settings: int = 40, sizes: Sequence[int] = (200, 400)) -> list[Claim]:
    """R² of the median on sines of 1 to 40 periods, beside the best mode of descents from a dense grid.

    Args:
        settings: Number of random settings: periods, rows, noise sd .05 or .2, raw or standardized x, even or random spacing.
        sizes: Numbers of rows.
    """
    rng, missed, spent = np.random.default_rng(7), 0, 0.0
    heading(
        f"sines, {settings} settings: those whose R² is below the best mode's by .01",
        "periods",
        "rows",
        "noise sd",
        "R2",
        "best mode",
    )
    for seed in range(settings):
        periods, n, std = int(rng.integers(1, 41)), int(rng.choice(sizes)), float(rng.choice([0.05, 0.2]))
        X, y, new, truth = _make_sine(periods, n, std, bool(rng.integers(2)), bool(rng.integers(2)), seed)
        seconds, model = _cpu_seconds(lambda X=X, y=y: InfiniteQuantileRegressor(random_state=0).fit(X, y))
        spent += seconds
        best = InfiniteQuantileRegressor(lengthscale=_find_best_mode(X, y), random_state=0).fit(X, y)
        ours, brute = (1 - ((truth - m.predict(new)) ** 2).mean() / truth.var() for m in (model, best))
        if ours < brute - 0.01:
            missed += 1
            row(str(periods), str(n), std, ours, brute)
    note(f"{spent / settings:.1f} CPU-s a fit")
    return [
        claim(f"within .01 of the best mode in {settings - missed} of {settings} settings", missed <= 0.01 * settings)
    ]


def _make_sine(periods: int, n: int, std: float, is_raw: bool, is_even: bool, seed: int):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, n) if is_even else np.sort(rng.uniform(0, 1, n))
    y = np.sin(2 * np.pi * periods * x) + std * rng.standard_normal(n)
    new = np.linspace(0, 1, 1001)
    truth = np.sin(2 * np.pi * periods * new)
    offset, scale = (-100.0 / 37, 1 / 37) if is_raw else (x.mean(), x.std())
    return ((x - offset) / scale)[:, None], y, ((new - offset) / scale)[:, None], truth


def _find_best_mode(X: np.ndarray, y: np.ndarray) -> LearnedKernel:
    """The best of descents from all points of a dense grid."""
    rows = QuantileRows.of(X, y)
    rows = rows.scaled(rows.scaling(scale_inputs=True)).clip_outliers()
    data = Observations(torch.from_numpy(rows.X), torch.from_numpy(rows.y)[:, None])
    density, modes = make_log_density(data, "rbf", "linear", None), []
    for lengthscale in BRUTE_LENGTHSCALES:
        for noise in BRUTE_NOISES:
            with torch.no_grad():
                density.gp.log_lengthscale.fill_(np.log(lengthscale))
                density.gp.log_variances.copy_(torch.tensor([np.log(noise), 0.0, 0.0]))
            modes.append(find_mode(density.vector, density, [density.vector.get()], 100, 1e-6))
    density.vector.set(max(modes, key=lambda mode: mode.value).u)
    noise, *variances = density.gp.log_variances.exp().tolist()
    return LearnedKernel(
        density.gp.log_lengthscale.detach().exp().numpy(),
        KernelProportions.from_variances(*variances),
        GaussianScales(sum(variances), noise),
    )


# --- many rows ------------------------------------------------------------------------------------------------------------


def quantile_rows(
    sizes: Sequence[int] = (2000, 4000, 8000, 20_000, 50_000, 100_000), exact: int = 4000, target: int = 20_000
) -> list[Claim]:
    """CPU seconds and test loss for d = 2 and noise that varies, beside the exact kernel and lines.

    Args:
        sizes: Numbers of rows.
        exact: Number of rows of a fit with the exact kernel.
        target: Number of rows of the claim.
    """
    heading(
        "defaults with many rows, d = 2; test loss at .1, .5, .9",
        "rows",
        "CPU-s",
        "loss",
        "coverage",
        "linear: CPU-s",
        "loss",
    )
    new, y_new = _make_varying_noise(20_000, seed=1)
    spent, losses = {}, {}
    for n in sizes:
        X, y = _make_varying_noise(n, seed=0)
        spent[n], losses[n], coverage = _measure(X, y, new, y_new)
        seconds, curves = _cpu_seconds(
            lambda X=X, y=y: _linear_curves(X[:MAX_LINEAR_ROWS], y[:MAX_LINEAR_ROWS], new, OUTER)
        )
        row(
            str(n), spent[n], f"{losses[n]:.5f}", coverage, seconds, f"{pinball_losses(y_new, curves, OUTER).sum():.5f}"
        )
    seconds, loss, coverage = _measure(*_make_varying_noise(exact, seed=0), new, y_new, num_frequencies=None)
    row(f"{exact}, exact", seconds, f"{loss:.5f}", coverage)
    note(f"lines are fitted to {MAX_LINEAR_ROWS} rows at most")
    large = [n for n in sizes if n >= target]
    if len(large) > 1:
        slope = np.polyfit(np.log(large), np.log([spent[n] for n in large]), 1)[0]
        note(f"seconds grow as n^{slope:.2f} from {large[0]} to {large[-1]} rows")
    return [
        claim(f"{target} rows in {spent[target]:.1f} CPU-s (at most 60)", spent[target] <= MAX_SECONDS),
        claim(
            f"at {losses[target] / loss:.4f} times the loss of the exact kernel on {exact} rows (at most 1.01)",
            losses[target] <= MAX_LOSS_RATIO * loss,
        ),
    ]


def _measure(X, y, new, y_new, **options) -> tuple[float, float, float]:
    """CPU seconds of a fit, test loss and coverage."""
    seconds, model = _cpu_seconds(lambda: InfiniteQuantileRegressor(random_state=0, **options).fit(X, y))
    curves = model.predict(new, OUTER)
    return seconds, pinball_losses(y_new, curves, OUTER).sum(), _coverage(y_new, curves)


def _make_varying_noise(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    noise = (0.15 + 0.25 * np.abs(X[:, 1])) * rng.standard_normal(n)
    return X, np.sin(2 * X[:, 0]) + 0.25 * X[:, 1] ** 2 + noise
