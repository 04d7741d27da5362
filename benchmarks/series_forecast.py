"""Series: gaps that are filled and futures that are forecast by `GPForecaster`, beside simple methods and independent models.

    OVKGP_DATA=... python benchmarks/series_forecast.py [--quick] [--only gaps|futures|updates]

Gaps: the cells of row i and series j with (i + s j) mod P < L are hidden, in addition to the real gaps. Scores are the CRPS at hidden
observed cells divided by the standard deviation of the training values, averaged over the series of a data set. Positive series are in logarithms.
Methods without a distribution get the standard deviation of their errors at other gaps, which are hidden by the same rule, shifted by P/2.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import RidgeCV
from timing import run_sections

from ovkgp import GPForecaster
from ovkgp.metrics import crps_gaussian

FOLDER = Path(os.environ.get("OVKGP_DATA", "data")) / "series"


@dataclass(frozen=True)
class Table:
    """Data set: columns, index, gaps (P, L, s), season in steps, steps of a forecast, and options of the coupled model."""

    file: str
    start: str
    frequency: str
    gaps: tuple[int, int, int]
    season: int | None
    horizon: int
    columns: Callable[[pd.DataFrame], list[str]]
    is_log: bool = False
    options: dict = field(default_factory=dict)

    def read(self) -> pd.DataFrame:
        """Return the values with an index of dates."""
        frame = pd.read_csv(FOLDER / f"{self.file}.csv")
        values = frame[self.columns(frame)].astype(float)
        values.index = pd.date_range(self.start, periods=len(values), freq=self.frequency)
        return np.log(values) if self.is_log else values


def _all(frame: pd.DataFrame) -> list[str]:
    return list(frame.columns[1:])


def _channel(name: str) -> Callable:
    return lambda frame: [column for column in frame.columns if column.endswith(f"_{name}")]


SHORT = {"trend": None, "kernel": "matern12", "seasonal": None, "coupled": True, "rank": 3, "training_rows": 1000}
SOLENT = ("solent_hourly", "2020-01-01", "h", (240, 48, 60), 24, 24)
TABLES = {
    "nox": Table("nox", "2004-01-01", "D", (39, 7, 3), 7, 7, _all, True, SHORT),
    "fx": Table("fx", "2017-01-03", "B", (50, 10, 5), None, 5, _all, True, SHORT),
    "macro": Table(
        "macro",
        "1959-01-01",
        "QS",
        (40, 8, 3),
        4,
        4,
        lambda frame: [name for name in _all(frame) if name not in ("infl", "realint")],
        True,
        SHORT | {"trend": "integrated"},
    ),
    "co2": Table("co2", "1958-03-29", "7D", (104, 13, 0), 52, 52, lambda frame: ["co2"], False, {}),
    "solent u": Table(*SOLENT, _channel("u"), False, SHORT),
    "solent atmp": Table(*SOLENT, _channel("atmp"), False, SHORT),
    "airquality": Table("airquality", "2004-03-10 18:00", "h", (240, 24, 20), 24, 24, _all, False, SHORT),
}
QUICK = ("nox", "co2")
"""Data sets; `infl` and `realint` of macro are functions of other columns."""


def hide(table: Table, values: np.ndarray, shift: int = 0) -> np.ndarray:
    """Return the mask of the cells that are hidden."""
    period, length, step = table.gaps
    rows, columns = np.indices(values.shape)
    return (rows + step * columns + shift) % period < length


def interpolate(table: Table, values: np.ndarray) -> np.ndarray:
    """Interpolate linearly in time."""
    return pd.DataFrame(values).interpolate(limit_direction="both").to_numpy()


def seasonal_naive(table: Table, values: np.ndarray) -> np.ndarray:
    """Fill a gap by the mean of the nearest observed values a whole number of seasons before and after."""
    filled, m = values.copy(), table.season
    for phase in range(m):
        part = pd.DataFrame(values[phase::m])
        filled[phase::m] = np.nanmean([part.ffill().to_numpy(), part.bfill().to_numpy()], 0)
    return np.where(np.isfinite(filled), filled, interpolate(table, values))


def ridge(table: Table, values: np.ndarray) -> np.ndarray:
    """Regress each series on the others in the same row, whose gaps are interpolated."""
    inputs, filled = interpolate(table, values), values.copy()
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    for j in range(values.shape[1]):
        others, observed = np.delete(inputs, j, 1), np.isfinite(values[:, j])
        model = RidgeCV(np.logspace(-3, 3, 13)).fit(others[observed], values[observed, j])
        filled[~observed, j] = model.predict(others[~observed])
    return filled


def point_method(method: Callable) -> Callable:
    """Return a method with the standard deviations of its errors at other gaps."""

    def predict(table: Table, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        values = frame.to_numpy()
        other = hide(table, values, table.gaps[0] // 2) & np.isfinite(values)
        errors = np.where(other, values - method(table, np.where(other, np.nan, values)), np.nan)
        return method(table, values), np.broadcast_to(np.sqrt(np.nanmean(errors**2, 0)), values.shape)

    return predict


def gp_method(**options) -> Callable:
    """Return gap filling by `GPForecaster`."""

    def predict(table: Table, frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        filled = GPForecaster(**(table.options | options)).fit(frame).impute(n_samples=2)
        return filled.mean.to_numpy(), filled.std.to_numpy()

    return predict


GAP_METHODS = {
    "linear interpolation": point_method(interpolate),
    "seasonal naive": point_method(seasonal_naive),
    "ridge on the others": point_method(ridge),
    "independent GPs": gp_method(coupled=False),
    "GPForecaster": gp_method(),
}


def gaps(quick: bool) -> None:
    """CRPS at hidden cells, per data set and method."""
    print("\nGap filling: CRPS / standard deviation of the series, R², coverage of 90 % intervals, CPU seconds")
    scores: dict[str, dict[str, float]] = {}
    for name in QUICK if quick else TABLES:
        table = TABLES[name]
        frame = table.read()
        values = frame.to_numpy()
        hidden = hide(table, values) & np.isfinite(values)
        train = frame.mask(hidden)
        for method, predict in GAP_METHODS.items():
            if (method == "seasonal naive" and table.season is None) or (
                values.shape[1] == 1 and method in ("ridge on the others", "independent GPs")
            ):
                continue
            began = time.process_time()
            mean, std = predict(table, train)
            spent = time.process_time() - began
            truth = np.where(hidden, values, np.nan)
            crps = crps_gaussian(truth, mean, np.maximum(std, 1e-12), multioutput="raw_values") / np.nanstd(train, 0)
            error, total = np.nansum((truth - mean) ** 2, 0), np.nansum((truth - np.nanmean(train, 0)) ** 2, 0)
            inside = np.abs(truth - mean)[hidden] <= 1.645 * std[hidden]
            scores.setdefault(name, {})[method] = float(np.mean(crps))
            print(
                f"    {name:12} {method:22} CRPS {np.mean(crps):.4f}  R² {np.mean(1 - error / total):6.3f}  coverage {inside.mean():.2f}  {spent:7.1f} s",
                flush=True,
            )
    print_averages(scores)


def print_averages(scores: dict[str, dict[str, float]]) -> None:
    """Print the mean over all data sets, and that over the data sets for which all methods exist."""
    methods = max((list(found) for found in scores.values()), key=len)
    common = [found for found in scores.values() if len(found) == len(methods)]
    print(f"    average over {len(common)} data sets with all methods, and over all data sets of a method:")
    for method in methods:
        every = [found[method] for found in scores.values() if method in found]
        mean = np.mean([found[method] for found in common])
        print(f"        {method:22} CRPS {mean:.4f}    {np.mean(every):.4f} ({len(every)})")


# Forecasts.


def naive(frame: pd.DataFrame, steps: int, season: int) -> tuple[np.ndarray, np.ndarray]:
    """Repeat the last season, with the standard deviations of its errors of the same number of steps in the past."""
    values = frame.ffill().bfill().to_numpy()
    mean, std = [], []
    for step in range(1, steps + 1):
        lag = season * -(-step // season)
        mean.append(values[len(values) - lag + step - 1])
        std.append(np.sqrt(np.nanmean((values[lag:] - values[:-lag]) ** 2, 0)))
    return np.array(mean), np.array(std)


def last_value(frame: pd.DataFrame, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Repeat the last value, with the standard deviations of differences over the same number of steps."""
    values = frame.ffill().bfill().to_numpy()
    std = [np.sqrt(np.mean((values[step:] - values[:-step]) ** 2, 0)) for step in range(1, steps + 1)]
    return np.repeat(values[-1:], steps, 0), np.array(std)


NUM_ORIGINS = 20


def futures(quick: bool) -> None:
    """CRPS of forecasts from 20 origins in the last 30 % of each series, with the default options, one fit and updates."""
    print("\nForecasts: CRPS / standard deviation of the series, coverage of 90 % intervals, CPU seconds")
    scores: dict[str, dict[str, float]] = {}
    for name in QUICK if quick else TABLES:
        table = TABLES[name]
        frame, steps = table.read(), table.horizon
        origins = np.linspace(0.7 * len(frame), len(frame) - steps, NUM_ORIGINS).astype(int)
        began = time.process_time()
        model = GPForecaster().fit(frame.iloc[: origins[0]])
        found: dict[str, list] = {"GPForecaster": []}
        for before, origin in zip([origins[0], *origins[:-1]], origins, strict=True):
            if origin > before:
                model.update(frame.iloc[before:origin])
            forecast = model.forecast(steps, n_samples=2)
            found["GPForecaster"].append((forecast.mean.to_numpy(), forecast.std.to_numpy()))
        spent = {"GPForecaster": time.process_time() - began}
        past = [frame.iloc[:origin] for origin in origins]
        found["last value"] = [last_value(part, steps) for part in past]
        if table.season is not None:
            found["seasonal naive"] = [naive(part, steps, table.season) for part in past]
        truth = np.concatenate([frame.iloc[origin : origin + steps].to_numpy() for origin in origins])
        scale = np.nanstd(frame.iloc[: origins[0]], 0)
        for method, pairs in found.items():
            mean, std = (np.concatenate(part) for part in zip(*pairs, strict=True))
            crps = crps_gaussian(truth, mean, np.maximum(std, 1e-12), multioutput="raw_values") / scale
            observed = np.isfinite(truth)
            inside = np.abs(truth - mean)[observed] <= 1.645 * std[observed]
            scores.setdefault(name, {})[method] = float(np.mean(crps))
            print(
                f"    {name:12} {method:16} CRPS {np.mean(crps):.4f}  coverage {inside.mean():.2f}  {spent.get(method, 0.0):7.1f} s",
                flush=True,
            )
    print_averages(scores)


def updates(quick: bool) -> None:
    """CPU seconds of 200 forecasts by updates, and by conditioning again on the rows before each origin."""
    print("\n200 origins, one new row each, forecasts of 12 steps with 100 paths")
    cases = {"co2": {"trend": "linear", "kernel": "matern12", "seasonal": "year"}, "solent u": SHORT}
    for name, options in cases.items():
        frame = TABLES[name].read()
        first = len(frame) - 200
        model = GPForecaster(**options).fit(frame.iloc[:first])
        model.forecast(12, n_samples=100)
        spent, means = {}, {}
        for method in ("update", "condition again"):
            began, found = time.process_time(), []
            for origin in range(first, first + (20 if quick else 200)):
                if method == "update":
                    found.append(model.forecast(12, n_samples=100, random_state=0).mean.to_numpy())
                    model.update(frame.iloc[origin : origin + 1])
                else:
                    past = frame.iloc[:origin]
                    found.append(model.forecast(12, history=past, n_samples=100, random_state=0).mean.to_numpy())
            spent[method], means[method] = time.process_time() - began, np.array(found)
        gap = np.abs(means["update"] - means["condition again"]).max()
        times = ", ".join(f"{method} {seconds:.2f} CPU s" for method, seconds in spent.items())
        ratio = spent["condition again"] / spent["update"]
        print(
            f"    {name:10} {len(frame)} rows: {times}, ratio {ratio:.1f}, largest difference of the means {gap:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Mean of empty slice")
    run_sections({"gaps": gaps, "futures": futures, "updates": updates}, __doc__.splitlines()[0])
