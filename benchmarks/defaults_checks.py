"""Sections of `defaults.py` with known ground truth: periodic data, data of the model's family, and CPU seconds.

Imported by `defaults.py`; not a script.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
from claims import Claim, claim, heading, note, row
from defaults_peers import CONTENDERS, Contender, ours
from defaults_tables import remove_outputs
from scipy.linalg import eigh
from scipy.linalg.lapack import dpotrf
from scipy.spatial.distance import cdist

import ovkgp

PERIODS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40)
MAX_R2_LOSS = 0.01
"""Largest loss of R² to the best mode of a fit that found it."""

MAX_CPU_SECONDS = {(500, 3): 3.0, (1000, 4): 8.0, (3000, 5): 60.0, (5000, 3): 90.0}
"""Aims for `GPRegressor()` by number of rows and outputs."""


class Series(NamedTuple):
    """Setting of a periodic data set; outputs are sines of unit amplitude and different phase."""

    n: int
    spacing: str
    noise_std: float
    p: int
    units: str
    periods: int


HOURLY = [Series(17 * 24, "even", noise_std, p, "hours", 17) for noise_std in (0.05, 0.2) for p in (1, 2)]
"""Hourly measurements of 17 days with a daily cycle."""

SERIES = [
    Series(*values)
    for values in product((200, 400), ("even", "random"), (0.05, 0.2), (1, 2), ("raw", "standardized"), PERIODS)
]


def make_series(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs (n, 1), outputs (n, p), a grid (m, 1) and the outputs without noise on the grid."""
    rng = np.random.default_rng([series.n, series.periods])
    x = _locations(series.n, series.spacing)
    grid = np.linspace(x[0], x[-1], 1009)
    clean, truth = (
        np.stack([np.sin(2 * np.pi * series.periods * t + phase) for phase in (0.3, 1.4)[: series.p]], 1)
        for t in (x, grid)
    )
    Y = clean + series.noise_std * rng.standard_normal(clean.shape)
    scale = {"hours": series.n, "raw": 1000.0, "standardized": 1 / x.std()}[series.units]
    return scale * x[:, None], Y, scale * grid[:, None], truth


@cache
def _locations(n: int, spacing: str) -> np.ndarray:
    """Return n sorted locations in [0, 1]."""
    return np.arange(n) / n if spacing == "even" else np.sort(np.random.default_rng(n).uniform(size=n))


@cache
def _spectra(n: int, spacing: str, num_lengthscales: int = 50) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Return lengthscales and the eigendecompositions of the Matérn-5/2 correlation matrices at the locations."""
    distances = np.abs(np.subtract.outer(x := _locations(n, spacing), x))
    lengthscales = np.geomspace(0.5 / n, 3, num_lengthscales)
    return [(ell, *eigh(_matern52(distances / ell))) for ell in lengthscales]


def _matern52(r: np.ndarray) -> np.ndarray:
    s = np.sqrt(5) * r
    return (1 + s + s**2 / 3) * np.exp(-s)


def best_mode(series: Series) -> np.ndarray:
    """Return the mean (m, p) on the grid of the Matérn-5/2 process with the largest evidence of a grid of lengthscales and noise ratios, for each output."""
    X, Y, grid, _ = make_series(series)
    x, t = _locations(series.n, series.spacing), grid[:, 0] / X[-1, 0] * _locations(series.n, series.spacing)[-1]
    ratios = np.geomspace(1e-6, 10, 40)[:, None]
    means = []
    for y in Y.T:
        best, centered = (-np.inf,), y - y.mean()
        for ell, values, vectors in _spectra(series.n, series.spacing):
            spectrum, projected = np.maximum(values, 0) + ratios, vectors.T @ centered
            variance = (projected**2 / spectrum).mean(1)
            evidence = -0.5 * (np.log(spectrum).sum(1) + series.n * np.log(variance))
            if evidence.max() > best[0]:
                i = evidence.argmax()
                best = evidence[i], ell, vectors @ (projected / spectrum[i])
        means.append(y.mean() + _matern52(np.abs(np.subtract.outer(t, x)) / best[1]) @ best[2])
    return np.stack(means, 1)


def explained_variance(mean: np.ndarray, truth: np.ndarray) -> float:
    """Compute R², the mean over the outputs."""
    return float(np.mean(1 - ((mean.reshape(truth.shape) - truth) ** 2).sum(0) / ((truth - truth.mean(0)) ** 2).sum(0)))


def predict_medians(X: np.ndarray, Y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    """Predict the median of each output by `InfiniteQuantileRegressor`."""
    return np.stack([ovkgp.InfiniteQuantileRegressor().fit(X, y).predict(X_test) for y in Y.T], 1)


def _mean(contender: Contender) -> Callable:
    return lambda X, Y, X_test: contender(X, Y, X_test).mean


MEANS = {name: _mean(contender) for name, contender in CONTENDERS.items() if name != "helmholtz"} | {
    "decomposable": _mean(ours(kernel="decomposable", random_state=0)),
    "student_t": _mean(ours(likelihood="student_t", random_state=0)),
    "quantiles": predict_medians,
}
"""Predictors of periodic data."""


def sines(quick: bool = False, names: Sequence[str] | None = None, num_sets: int | None = None) -> list[Claim]:
    """Compare R² on sines of 1 to 40 periods and on hourly series with that of the best mode; settings are a random subset of all 320."""
    num_sets = num_sets or (20 if quick else 200)
    chosen = np.random.default_rng(0).permutation(len(SERIES))[: max(num_sets - len(HOURLY), 1)]
    settings = [*(SERIES[i] for i in sorted(chosen)), *HOURLY]
    truths = [make_series(series)[3] for series in settings]
    best = np.array(
        [explained_variance(best_mode(series), truth) for series, truth in zip(settings, truths, strict=True)]
    )
    claims = []
    for name in names or ["ovkgp"]:
        found = np.array([_fit_series(MEANS[name], series) for series in settings])
        lost = ~(found[:, 0] >= best - MAX_R2_LOSS)  # also if R² is NaN
        heading(
            f"{name}, {len(settings)} periodic series: R² against the series without noise",
            "periods",
            "settings",
            "R²",
            "R² of best mode",
            "worst loss",
            "within .01",
            "CPU seconds",
        )
        labels = np.array(["17 (hourly)" if series.units == "hours" else str(series.periods) for series in settings])
        for label in [*(str(periods) for periods in PERIODS), "17 (hourly)"]:
            if (mask := labels == label).any():
                worst = np.nanmax((best - found[:, 0])[mask]) if np.isfinite(found[mask, 0]).any() else np.nan
                within = f"{(~lost[mask]).sum()} of {mask.sum()}"
                row(
                    label,
                    f"{mask.sum()}",
                    np.nanmean(found[mask, 0]),
                    best[mask].mean(),
                    worst,
                    within,
                    found[mask, 1].mean(),
                )
        for i in np.flatnonzero(lost)[:12]:
            note(f"missed: {tuple(settings[i])}, R² {found[i, 0]:.3f} of {best[i]:.3f}")
        fraction = 1 - lost.mean()
        claims.append(
            claim(f"{name}: R² within .01 of the best mode in ≥ 99 % of the series ({fraction:.1%})", fraction >= 0.99)
        )
    return claims


def _fit_series(predict: Callable, series: Series) -> tuple[float, float]:
    """Return R² (NaN if the contender fails) and CPU seconds."""
    X, Y, grid, truth = make_series(series)
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return explained_variance(predict(X, Y, grid), truth), time.process_time() - start
    except Exception as error:  # counted as a miss
        note(f"failed: {tuple(series)}, {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return np.nan, time.process_time() - start


def draw_outputs(n: int, p: int, rng: np.random.Generator, num_test: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs and noisy outputs of n + num_test rows from an ICM with a Matérn-5/2 kernel over one to three inputs."""
    X = rng.standard_normal((n + num_test, d := rng.integers(1, 4)))
    lengthscale = 0.8 * np.sqrt(d) * np.exp(0.4 * rng.standard_normal(d))
    K = _matern52(cdist(X / lengthscale, X / lengthscale)) + 1e-9 * np.eye(len(X))
    W = rng.standard_normal((p, 2))
    B = W @ W.T + np.diag(np.exp(rng.standard_normal(p) - 1))
    B /= np.sqrt(np.outer(np.diag(B), np.diag(B)))
    F = np.linalg.cholesky(K) @ rng.standard_normal((len(X), p)) @ np.linalg.cholesky(B).T
    return X, F + _noise(F, rng)


def draw_field(n: int, rng: np.random.Generator, num_test: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Draw a noisy vector field on the plane, the sum of a curl-free and a divergence-free Gaussian process."""
    X = rng.uniform(-2, 2, (n + num_test, 2))
    parts = (field_covariance(X, np.exp(0.3 * rng.standard_normal()), is_curl_free) for is_curl_free in (True, False))
    K = sum(rng.uniform(0.3, 1) * part for part in parts)
    F = (np.linalg.cholesky(K + 1e-8 * np.eye(len(K))) @ rng.standard_normal(len(K))).reshape(-1, 2)
    return X, F + _noise(F, rng)


def field_covariance(X: np.ndarray, ell: float, is_curl_free: bool) -> np.ndarray:
    """Return the covariance (2n, 2n), row by row, of ℓ times the gradient (or rotated gradient) of a process with an RBF kernel."""
    R = X[:, None] - X
    D = R if is_curl_free else np.stack([-R[..., 1], R[..., 0]], -1)
    correlations = np.exp(-0.5 * (R**2).sum(-1) / ell**2)[..., None, None]
    blocks = (np.eye(2) - D[..., :, None] * D[..., None, :] / ell**2) * correlations
    return blocks.transpose(0, 2, 1, 3).reshape(2 * len(X), 2 * len(X))


def _noise(F: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.sqrt(0.05 * np.exp(0.7 * rng.standard_normal(F.shape[1]))) * rng.standard_normal(F.shape)


def _cases() -> Iterator[tuple[str, int, float, Callable]]:
    for n, missing in product((24, 40, 60), (0.0, 0.4)):
        for p in (1, 2, 4):
            yield f"p = {p}", n, missing, lambda n, rng, p=p: draw_outputs(n, p, rng)
        yield "helmholtz", n, missing, draw_field


def simulated(quick: bool = False, names: Sequence[str] | None = None, num_sets: int | None = None) -> list[Claim]:
    """Compute the coverage of 90 % intervals of new observations on data of the model's family."""
    num_sets, names = num_sets or (2 if quick else 10), names or ["ovkgp"]
    heading(f"coverage of 90 % intervals, {num_sets} sets per case (± standard error)", "", "n", "missing", *names)
    found = {name: [] for name in names}
    for case, (label, n, missing, draw) in enumerate(_cases()):
        for number in range(num_sets):
            rng = np.random.default_rng([case, number])
            X, Y = draw(n, rng)
            train = remove_outputs(Y[:n], missing, rng)
            for name in names:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    lower, upper = CONTENDERS[name](X[:n], train, X[n:]).interval()
                truth = Y[n:]
                found[name].append(
                    np.mean((lower.reshape(truth.shape) <= truth) & (truth <= upper.reshape(truth.shape)))
                )
        row(label, f"{n}", f"{missing:.0%}", *(_mean_and_error(found[name][-num_sets:]) for name in names))
    row("all", "", "", *(_mean_and_error(found[name]) for name in names))
    coverage = float(np.mean(found[names[0]]))
    return [claim(f"{names[0]}: 90 % intervals cover 88 to 92 % on average ({coverage:.1%})", 0.88 <= coverage <= 0.92)]


def _mean_and_error(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values) / np.sqrt(max(len(values) - 1, 1)):.3f}"


def speed(quick: bool = False, names: Sequence[str] | None = None, num_sets: int | None = None) -> list[Claim]:
    """Measure CPU seconds of fit and prediction beside one eigendecomposition and one Cholesky factorization of n rows."""
    heading("CPU seconds", "(n, p)", "contender", "fit and predict", "aim of ovkgp", "eigh", "potrf", "ratio to potrf")
    claims = []
    for (n, p), aim in list(MAX_CPU_SECONDS.items())[: num_sets or (1 if quick else None)]:
        X, Y = make_large_table(n, p)
        K = _matern52(cdist(X, X)) + 0.1 * np.eye(n)
        works = partial(eigh, K), partial(dpotrf, K, lower=1)
        factorizations = [min(_cpu_seconds(work) for _ in range(3)) for work in works]
        for name in names or ["ovkgp"]:
            _cpu_seconds(partial(CONTENDERS[name], X[:10], Y[:10], X[:10]))  # imports and caches of a first call
            spent = _cpu_seconds(partial(CONTENDERS[name], X, Y, X[:400]))
            row(f"({n}, {p})", name, f"{spent:.2f}", f"{aim:g}", *factorizations, f"{spent / factorizations[1]:.0f}")
            if name == "ovkgp":
                claims.append(claim(f"({n}, {p}): at most {aim:g} CPU seconds ({spent:.1f})", spent <= aim))
    return claims


def make_large_table(n: int, p: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return n rows of four standard normal inputs and p smooth, related outputs with noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    F = np.sin(X @ rng.standard_normal((4, 6)) + rng.uniform(0, 6, 6)) @ rng.standard_normal((6, p))
    return X, F + 0.2 * rng.standard_normal((n, p))


def _cpu_seconds(work: Callable) -> float:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    return time.process_time() - start
