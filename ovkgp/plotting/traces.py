"""Densities and traces of sampled hyperparameters, per chain; chains that have mixed agree in both."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import wrong_type
from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.diagnostics import rhat
from ovkgp.plotting.axes import Panels, format_label, get_line_style

MAX_ENTRIES = 16  # maximum number of hyperparameters shown by default
PANEL_INCHES = (4.2, 1.7)
MIN_DENSITY_DRAWS = 5  # minimum number of draws per chain for a density estimate


class Entry(NamedTuple):
    """A scalar hyperparameter: its name, the variable it is an entry of, and its draws (chains, draws)."""

    name: str
    variable: str
    draws: np.ndarray


def plot_traces(data, *, names=None, ax=None) -> np.ndarray:
    """Plot density and trace of each sampled hyperparameter in original units, with a line per chain.

    Parameters
    ----------
    data : GPRegressor or ArviZ object
        Fitted estimator with draws (hyperparameters="laplace", "svi" or "nuts"), or an ArviZ object with a posterior.
    names : str or list of str, default=None
        Names of variables such as "noise", or of entries such as "noise[u]". If None, all that vary are shown; of more
        than 16, those with the largest R̂.
    ax : array of Axes, default=None
        Axes to draw on, two per entry (density and trace). If None, a new figure is made.

    Returns
    -------
    ndarray of shape (k, 2)
        The Axes.

    Raises
    ------
    OptionError
        If there are no draws, or none of such a name.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from matplotlib.figure import Figure
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=30)
    >>> model = ovkgp.GPRegressor("independent", hyperparameters="laplace", sampling={"draws": 100}, random_state=0)
    >>> axes = ovkgp.plotting.plot_traces(model.fit(X, y), names=["noise"], ax=Figure().subplots(1, 2))
    >>> axes.shape, axes[0, 0].get_xlabel()
    ((1, 2), 'noise[y0]')
    """
    entries = list_entries(_get_posterior(data))
    entries = select_worst(entries) if names is None else select_entries(entries, names)
    if not entries:
        raise OptionError("All hyperparameters are fixed, so there are no draws to plot.")
    panels = Panels.create(ax, 2 * len(entries), "a density and a trace per entry", columns=2, size=PANEL_INCHES)
    pairs = panels.result.reshape(-1, 2)
    for (left, right), entry in zip(pairs, entries, strict=True):
        _draw_densities(left, entry)
        _draw_traces(right, entry)
    pairs[-1, 1].set_xlabel("draw")
    return pairs


def _get_posterior(data):
    """Return the group of hyperparameter draws, in original units."""
    with suppress(LookupError, TypeError):
        return data["posterior"]
    if len(getattr(data, "data_vars", ())):  # the group itself
        return data
    try:
        check_is_fitted(data)
    except TypeError as error:
        expected = "a fitted estimator with draws or an ArviZ object with a posterior"
        raise wrong_type("data", expected, data) from error
    if data.hyperparameter_draws is None:
        raise OptionError(
            'data must be a model with draws. Fit a GPRegressor with hyperparameters="nuts", "svi" or "laplace".'
        )
    return data.to_arviz()["posterior"]


def list_entries(posterior) -> list[Entry]:
    """List the entries of an xarray Dataset (chain, draw, …); of symmetric matrices only the upper triangle."""
    entries = []
    for variable in posterior.data_vars:
        array = posterior[variable].transpose("chain", "draw", ...)
        dims, shape = array.dims[2:], array.shape[2:]
        for index in np.ndindex(*shape):
            if dims == ("output", "output_bis") and index[0] > index[1]:
                continue
            labels = [str(array[dim].values[i]) for dim, i in zip(dims, index, strict=True)]
            name = f"{variable}[{', '.join(labels)}]" if labels else str(variable)
            entries.append(Entry(name, str(variable), array.values[(slice(None), slice(None), *index)]))
    return entries


def select_worst(entries: list[Entry], max_entries: int = MAX_ENTRIES) -> list[Entry]:
    """Select the entries that vary; of more than `max_entries` those with the largest R̂, in their order."""
    moving = [entry for entry in entries if np.ptp(entry.draws) > 0]
    if len(moving) <= max_entries:
        return moving
    rhats = np.nan_to_num([rhat(entry.draws) for entry in moving], nan=np.inf)
    return [moving[i] for i in np.sort(np.argsort(-rhats, kind="stable")[:max_entries])]


def select_entries(entries: list[Entry], names) -> list[Entry]:
    """Select entries by names of variables or of entries, in the order of the names."""
    found = []
    for name in np.atleast_1d(names).tolist():
        matches = [entry for entry in entries if name in (entry.name, entry.variable)]
        if not matches:
            known = ", ".join(map(repr, dict.fromkeys(entry.variable for entry in entries)))
            raise OptionError(f"names must be among {known}, got {name!r}.")
        found += matches
    return found


def _draw_densities(axes: Axes, entry: Entry) -> None:
    low, high = entry.draws.min(), entry.draws.max()
    margin = 0.1 * (high - low)
    grid = np.linspace(low - margin, high + margin, 200)
    for i, chain in enumerate(entry.draws):
        style = get_line_style(i)
        if len(chain) >= MIN_DENSITY_DRAWS and np.ptp(chain) > 0:
            axes.plot(grid, gaussian_kde(chain)(grid), **style | {"marker": "none"}, linewidth=1.2)
        else:
            axes.plot(chain, np.zeros(len(chain)), **style | {"linestyle": "none", "marker": "|"}, markersize=12)
    axes.set(xlabel=format_label(entry.name, 40), yticks=[])
    axes.set_ylim(bottom=0)


def _draw_traces(axes: Axes, entry: Entry) -> None:
    for i, chain in enumerate(entry.draws):
        style = get_line_style(i) | {"linestyle": "-", "marker": "none"}
        axes.plot(np.arange(len(chain)), chain, **style, linewidth=0.6, alpha=0.8)
    axes.margins(x=0.0)
