"""Vector autoregressions: Tables 8.1 and 8.2 of the thesis of Brault, US macroeconomic growth beside a VAR(4), and updates.

    python benchmarks/series_var.py [--quick] [--only NAME] [--data FOLDER]

The options of all models were fixed before the run. The data of `macro` are read from series/macro.csv in the folder of the data; those of
statsmodels.datasets.macrodata are the same.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from timing import run_sections

import ovkgp
from ovkgp.datasets import make_var_series
from ovkgp.metrics import crps_from_draws, crps_gaussian, energy_score

TABLE_8_1 = {  # VAR(1), ORFFVAR, number of frequencies, lengthscale
    ("linear", "white"): (0.914979, 0.919663, 25, 200.0),
    ("linear", "toeplitz"): (1.091096, 1.097183, 50, 200.0),
    ("exponential", "white"): (0.001275, 0.001003, 25, 1.0),
    ("exponential", "toeplitz"): (0.017014, 0.012635, 50, 1.0),
    ("sine", "white"): (0.009534, 0.009536, 25, 50.0),
    ("sine", "toeplitz"): (0.116901, 0.116964, 50, 50.0),
}
TABLE_8_2 = {1: 0.005342, 5: 0.001111, 10: 0.000991, 25: 0.000962, 50: 0.000949, 100: 0.000944}
MACRO = ["realgdp", "realcons", "realinv"]
FIRST, STEPS, NUM_PATHS = 120, 4, 1000  # quarters of the first window, horizons, paths
TRAINING_INTERVAL = 20  # origins between trainings of the mixture of candidates, with updates in between


def linear_var() -> ovkgp.VectorAutoregressor:
    """VAR(1) with intercept, by a penalty that vanishes."""
    return ovkgp.VectorAutoregressor(kernel="linear", lam=1e-10, scale="given")


def orffvar(num_frequencies: int, lengthscale: float) -> ovkgp.VectorAutoregressor:
    """ORFFVAR with the options of the thesis."""
    options = dict(lam=1e-6, lengthscale=lengthscale, fit_intercept=False, scale="given", random_state=0)
    return ovkgp.VectorAutoregressor(approximation="orff", num_frequencies=num_frequencies, **options)


def sequential_errors(model: ovkgp.VectorAutoregressor, series: np.ndarray) -> tuple[np.ndarray, float]:
    """Squared errors of the next row for windows of half of the series, by updates, and CPU seconds per step."""
    window, errors, start = len(series) // 2, [], time.process_time()
    model.fit(series[:window])
    for i in range(window, len(series)):
        errors.append(np.mean((model.predict(series[i - 1 : i])[-1] - series[i]) ** 2))
        model.update(series[i : i + 1], drop=1)
    return np.array(errors), (time.process_time() - start) / len(errors)


def tables(quick: bool) -> None:
    """Errors of Tables 8.1 and 8.2 beside the printed ones, mean (standard deviation)."""
    print("\nTable 8.1: errors of the next row (found / printed)")
    for (setting, noise), (var, orff, num_frequencies, lengthscale) in TABLE_8_1.items():
        if quick and noise != "white":
            continue
        series = make_var_series(1000, setting, noise)
        for name, model, printed in [
            ("VAR(1)", linear_var(), var),
            ("ORFFVAR", orffvar(num_frequencies, lengthscale), orff),
        ]:
            errors, seconds = sequential_errors(model, series)
            found = f"{errors.mean():.6f} ({errors.std():.6f}) / {printed:.6f}"
            print(
                f"    {setting:<12}{noise:<10}{name:<8} {found}, ratio {errors.mean() / printed:.3f}, {1e3 * seconds:.1f} CPU ms/step"
            )
    series = make_var_series(10_000, "exponential", link_scale=0.5)
    print("Table 8.2: 10 000 rows, by the number of frequencies")
    models = {"VAR(1)": (linear_var(), 0.001660)} | {f"D = {D}": (orffvar(D, 1.0), v) for D, v in TABLE_8_2.items()}
    for name, (model, printed) in models.items():
        if quick and name != "D = 5":
            continue
        errors, seconds = sequential_errors(model, series)
        print(
            f"    {name:<8} {errors.mean():.6f} ({errors.std():.6f}) / {printed:.6f}, ratio {errors.mean() / printed:.3f}, {1e3 * seconds:.1f} CPU ms/step",
            flush=True,
        )


def read_growth(folder: str | Path) -> pd.DataFrame:
    """Read quarterly growth rates, 100 Δ log, of real GDP, consumption and investment."""
    table = pd.read_csv(Path(folder) / "series" / "macro.csv")
    return (100 * np.log(table[MACRO]).diff().iloc[1:]).set_axis(
        pd.period_range("1959Q2", periods=len(table) - 1, freq="Q")
    )


def forecast_var(values: np.ndarray, lags: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forecast by least squares, as statsmodels does: means and standard deviations (steps, p), and draws (steps, p, k)."""
    n, p = values.shape
    X = np.hstack([np.ones((n - lags, 1)), *(values[lags - lag : n - lag] for lag in range(1, lags + 1))])
    coefficients = np.linalg.lstsq(X, values[lags:], rcond=None)[0]
    residuals = values[lags:] - X @ coefficients
    noise = residuals.T @ residuals / (len(X) - X.shape[1])
    A = coefficients[1:].T.reshape(p, lags, p).swapaxes(0, 1)
    rows, responses, cov, found = list(values[-lags:]), [np.eye(p)], np.zeros((p, p)), []
    for step in range(STEPS):
        rows.append(coefficients[0] + sum(A[lag] @ rows[-1 - lag] for lag in range(lags)))
        cov = cov + responses[-1] @ noise @ responses[-1].T
        responses.append(sum(A[lag] @ responses[step - lag] for lag in range(min(lags, step + 1))))
        found.append((rows[-1], np.sqrt(np.diag(cov)), rng.multivariate_normal(rows[-1], cov, NUM_PATHS).T))
    return tuple(map(np.array, zip(*found, strict=True)))


def macro(quick: bool, folder: str | None) -> None:
    """Scores of growth rates one to four quarters ahead, averaged over 79 origins and horizons."""
    if folder is None:
        print("\nmacrodata: pass --data, the folder that contains series/macro.csv")
        return
    growth = read_growth(folder)
    origins = range(FIRST, len(growth) - STEPS + 1)
    origins = origins[:6] if quick else origins
    print(f"\nmacrodata: growth of {', '.join(MACRO)}; {len(origins)} origins, h = 1..{STEPS}")
    scores = {"VAR(4)": _score_var(growth, origins)}
    models = {
        "linear, lags=4": (ovkgp.VectorAutoregressor(lags=4, kernel="linear", random_state=0), 1),
        "auto, lags=4": (ovkgp.VectorAutoregressor(lags=4, random_state=0), TRAINING_INTERVAL),
    }
    for name, (model, interval) in models.items():
        scores[name] = _score_model(model, growth, origins, interval)
    for name, found in scores.items():
        errors, crps, energy, covered, seconds = found
        rmse = "/".join(f"{v:.3f}" for v in np.sqrt(np.mean(errors**2, (0, 1))))
        by_series = "/".join(f"{v:.3f}" for v in crps.mean((0, 1)))
        line = f"    {name:<16} RMSE {rmse}  CRPS {by_series}  energy {energy.mean():.3f}  coverage {covered:.3f}  {seconds:.0f} CPU s"
        if name != "VAR(4)":
            base = scores["VAR(4)"]
            scale = base[1].mean((0, 1))
            p_crps = diebold_mariano(((crps - base[1]) / scale).mean((1, 2)))
            line += f"  p {p_crps:.3f} (CRPS), {diebold_mariano((energy - base[2]).mean(1)):.3f} (energy)"
        print(line, flush=True)


def _score_var(growth: pd.DataFrame, origins: range) -> tuple:
    rng, values, start, rows = np.random.default_rng(0), growth.to_numpy(), time.process_time(), []
    for origin in origins:
        mean, std, draws = forecast_var(values[:origin], 4, rng)
        actual = values[origin : origin + STEPS]
        crps = [
            [crps_gaussian(*(v.reshape(1, 1) for v in cell)) for cell in zip(*row, strict=True)]
            for row in zip(actual, mean, std, strict=True)
        ]
        inside = np.abs(actual - mean) < norm.ppf(0.95) * std
        rows.append((actual - mean, np.array(crps), _energy(actual, draws), inside.mean()))
    return _join(rows, start)


def _score_model(model: ovkgp.VectorAutoregressor, growth: pd.DataFrame, origins: range, interval: int) -> tuple:
    start, rows = time.process_time(), []
    for origin in origins:
        if (origin - origins[0]) % interval == 0:
            model.fit(growth[:origin])
        else:
            model.update(growth[origin - 1 : origin])
        forecast = model.forecast(STEPS, n_samples=NUM_PATHS, random_state=origin)
        actual, draws = growth.to_numpy()[origin : origin + STEPS], np.moveaxis(forecast.paths, 0, -1)
        crps = [
            [crps_from_draws(y.reshape(1, 1), d.reshape(1, 1, -1)) for y, d in zip(*row, strict=True)]
            for row in zip(actual, draws, strict=True)
        ]
        inside = (actual > forecast.lower.to_numpy()) & (actual < forecast.upper.to_numpy())
        rows.append((actual - forecast.mean.to_numpy(), np.array(crps), _energy(actual, draws), inside.mean()))
    return _join(rows, start)


def _energy(actual: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Energy score of each horizon (steps,)."""
    return np.array([energy_score(y[None], d[None]) for y, d in zip(actual, draws, strict=True)])


def _join(rows: list[tuple], start: float) -> tuple:
    errors, crps, energy, inside = (np.array(column) for column in zip(*rows, strict=True))
    return errors, crps, energy, float(inside.mean()), time.process_time() - start


def diebold_mariano(differences: np.ndarray) -> float:
    """Two-sided p-value of equal scores, with autocovariances up to the horizon."""
    n, centered = len(differences), differences - differences.mean()
    covariances = [centered[lag:] @ centered[: n - lag] / n for lag in range(STEPS)]
    weights = 1 - np.arange(STEPS) / STEPS
    variance = (covariances[0] + 2 * (weights[1:] * covariances[1:]).sum()) / n
    return float(2 * norm.sf(abs(differences.mean()) / np.sqrt(variance)))


def updates(quick: bool) -> None:
    """CPU seconds of 200 updates beside fits of the same model to each window."""
    count = 20 if quick else 200
    series = make_var_series(2000 + count, "exponential")
    print(f"\n{count} windows of 2000 rows: updates beside fits")
    for name, model in {"VAR(1)": linear_var(), "ORFFVAR, D = 100": orffvar(100, 1.0)}.items():
        model.fit(series[:2000])
        start = time.process_time()
        for i in range(count):
            model.update(series[2000 + i : 2001 + i], drop=1)
        ours, begin = time.process_time() - start, time.process_time()
        for i in range(0, count, 10):
            model.fit(series[i : 2000 + i])
        fits = 10 * (time.process_time() - begin)
        print(f"    {name:<18} {ours:.2f} CPU s by update, {fits:.2f} by fit, ratio {fits / ours:.1f}", flush=True)


if __name__ == "__main__":
    run_sections({"tables": tables, "macro": macro, "updates": updates}, __doc__.splitlines()[0], "series", "macro")
