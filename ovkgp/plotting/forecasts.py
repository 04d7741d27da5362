"""Figures of forecasts: fans of intervals, sample paths, and the series before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ovkgp.checks import check_integer, check_probability
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.axes import ACCENT_COLOR, BAND_COLOR, INK_COLOR, LINE_COLOR, MIDTONE_COLOR, Panels, format_label

FAN_PANEL_INCHES, SINGLE_FAN_INCHES = (5.6, 3.0), (7.2, 3.8)
PATH_OPACITY = 0.5


def plot_forecast(
    forecast: Forecast,
    history=None,
    actual=None,
    *,
    levels: Sequence[float] = (0.5, 0.9),
    paths: int = 0,
    output=None,
    start: int | None = None,
    ax: Axes | None = None,
) -> Axes | np.ndarray:
    """Plot a forecast, or a series whose gaps were filled, as a fan of central intervals around the mean.

    Parameters
    ----------
    forecast : Forecast
        Result of `forecast` or `impute`.
    history : array-like, DataFrame or Series, default=None
        Series before the forecast, or with the gaps that were filled. Gaps interrupt its line.
    actual : array-like, DataFrame or Series, default=None
        Observations of the forecast steps.
    levels : sequence of float, default=(0.5, 0.9)
        Probabilities of the intervals.
    paths : int, default=0
        Number of sample paths to draw.
    output : str, int, list or None, default=None
        Outputs, by name or number. If None, all.
    start : int or None, default=None
        Position of the first row of the forecast if series have no index. If None, the forecast follows `history`.
    ax : Axes or array of Axes or None, default=None
        Axes to draw on, one per output. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of Axes
        The Axes, one per output.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from ovkgp import GPForecaster
    >>> from ovkgp.plotting import plot_forecast
    >>> series = np.sin(np.arange(60) / 5)
    >>> model = GPForecaster(trend=None, kernel="matern32", seasonal=None).fit(series)
    >>> ax = plot_forecast(model.forecast(10, random_state=0), series, ax=Figure().subplots())
    >>> len(ax.collections), len(ax.get_lines())
    (2, 2)
    """
    form, names = forecast._format, forecast.output_names
    outputs = range(len(names)) if output is None else [_find_output(one, names) for one in np.atleast_1d(output)]
    levels = sorted((check_probability("levels", level) for level in levels), reverse=True)
    count = check_integer("paths", paths, 0)
    if count > (0 if forecast.paths is None else len(forecast.paths)):
        raise OptionError(f"paths must be at most the number of paths of the forecast, got {count}.")
    size = SINGLE_FAN_INCHES if len(outputs) == 1 else FAN_PANEL_INCHES
    panels = Panels.create(ax, len(outputs), columns=1 if len(outputs) < 4 else 2, size=size)
    tables = {name: _read(table, form, name) for name, table in (("history", history), ("actual", actual))}
    length = 0 if tables["history"] is None else len(tables["history"][1])
    start = length if start is None else check_integer("start", start, 0)
    steps = _positions(form, forecast.stamps, start, len(forecast))
    bands = [[np.asarray(forecast.quantile((1 + sign * level) / 2)) for sign in (-1, 1)] for level in levels]
    mean = np.asarray(forecast.mean).reshape(len(forecast), -1)
    for axes, j in zip(panels.axes, outputs, strict=True):
        for k, (level, ends) in enumerate(zip(levels, bands, strict=True)):
            lower, upper = (end.reshape(len(forecast), -1)[:, j] for end in ends)
            shade = BAND_COLOR if k < len(levels) - 1 or len(levels) == 1 else MIDTONE_COLOR
            axes.fill_between(steps, lower, upper, color=shade, linewidth=0, label=f"{100 * level:g} % interval")
        for k in range(count):
            label = "sample paths" if k == 0 else None
            axes.plot(steps, forecast.paths[k, :, j], color=LINE_COLOR, alpha=PATH_OPACITY, linewidth=0.6, label=label)
        axes.plot(steps, mean[:, j], color=LINE_COLOR, linewidth=1.6, label="mean")
        if tables["history"] is not None:
            stamps, values = tables["history"]
            axes.plot(_positions(form, stamps, 0, len(values)), values[:, j], color=INK_COLOR, lw=1.0, label="observed")
        if tables["actual"] is not None:
            stamps, values = tables["actual"]
            axes.plot(
                _positions(form, stamps, start, len(values)),
                values[:, j],
                color=ACCENT_COLOR,
                linestyle="none",
                marker="o",
                markersize=3,
                label="observed later",
            )
        axes.set(xlabel=format_label(form.index_name or "time"), ylabel=format_label(names[j]))
        axes.margins(x=0.01)
    panels.legend()
    return panels.result


def _find_output(output, names: list[str]) -> int:
    if str(output) in names:
        return names.index(str(output))
    try:
        return range(len(names)).index(range(len(names))[int(output)])
    except (ValueError, IndexError) as error:
        raise InputError(f"output must be one of {names} or a number below {len(names)}, got {output!r}.") from error


def _read(table, form: SeriesFormat, name: str) -> tuple[pd.Index | None, np.ndarray] | None:
    """Return stamps and values of a series; rows that a regular series skips are missing."""
    if table is None:
        return None
    part = read_series(table, regular=False, fitted=form, name=name).only(name)
    if part.stamps is not None and form.is_regular and part.stamps.is_unique:
        part = read_series(form.table(part.values, part.stamps), regular=True, fitted=form, name=name).only(name)
    return part.stamps, part.values


def _positions(form: SeriesFormat, stamps: pd.Index | None, start: int, length: int) -> np.ndarray:
    """Return the horizontal coordinates of rows."""
    if stamps is None:
        return start + np.arange(length)
    if form.kind == "period":
        return stamps.to_timestamp().to_numpy()
    return (stamps if form.timezone is None else stamps.tz_localize(None)).to_numpy()
