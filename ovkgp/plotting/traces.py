"""Draws of hyperparameters: the density of each, and how the chains moved. Chains that have mixed look alike in both."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.sampling.diagnostics import rhat
from ovkgp.plotting.axes import LINES, Panels, label

MOST = 16
"""So many hyperparameters are drawn where nobody says which."""
ROW = (4.2, 1.7)
"""Inches of a panel."""
FEWEST = 5
"""Draws of a chain below which there is no density to speak of."""


class Entry(NamedTuple):
    """One number that was drawn: its name, that of the variable it belongs to, and its draws (chains, draws)."""

    name: str
    variable: str
    draws: np.ndarray


def plot_traces(data, *, names=None, ax=None) -> np.ndarray:
    """Density and trace of each hyperparameter that was drawn, a line for each chain, in the user's units.

    Args:
        data: a fitted `GPRegressor` with draws (hyperparameters="laplace", "svi" or "nuts"), or an ArviZ object with a posterior.
        names: which: names of variables such as "noise", or of entries such as "noise[u]". None takes all that moved; of more than 16
            those 16 with the largest R̂, which are the ones to look at.
        ax: where to draw: two Axes for each, density and trace.

    Returns:
        An array (k, 2) of Axes.

    Raises:
        OptionError: there are no draws, or none of such a name.

    Cost: a kernel density estimate for each chain.

    Example:
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
    entries = drawn_entries(_posterior(data))
    entries = worst(entries) if names is None else chosen(entries, names)
    if not entries:
        raise OptionError("nothing was drawn: all hyperparameters are fixed.")
    panels = Panels.of(ax, 2 * len(entries), "a density and a trace for each", columns=2, size=ROW)
    pairs = np.empty((len(entries), 2), dtype=object)
    pairs[:] = np.array(panels.axes, dtype=object).reshape(-1, 2)
    for (left, right), entry in zip(pairs, entries, strict=True):
        _draw_densities(left, entry)
        _draw_traces(right, entry)
    pairs[-1, 1].set_xlabel("draw")
    return pairs


def drawn_entries(posterior) -> list[Entry]:
    """The entries of an xarray Dataset of draws (chain, draw, …); of a symmetric matrix those on and above the diagonal."""
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


def worst(entries: list[Entry], most: int = MOST) -> list[Entry]:
    """The entries that moved; of more than `most` those with the largest R̂, in their order."""
    moving = [entry for entry in entries if np.ptp(entry.draws) > 0]
    if len(moving) <= most:
        return moving
    rhats = np.nan_to_num([rhat(entry.draws) for entry in moving], nan=np.inf)
    return [moving[i] for i in np.sort(np.argsort(-rhats, kind="stable")[:most])]


def chosen(entries: list[Entry], names) -> list[Entry]:
    """The entries of some names, of variables or of entries, in the order of the names."""
    found = []
    for name in [names] if isinstance(names, str) else names:
        mine = [entry for entry in entries if name in (entry.name, entry.variable)]
        if not mine:
            known = ", ".join(map(repr, dict.fromkeys(entry.variable for entry in entries)))
            raise OptionError(f"nothing of the name {name!r} was drawn; there are {known}.")
        found += mine
    return found


def _posterior(data):
    """The group of hyperparameters, in the user's units."""
    if isinstance(data, BaseEstimator):
        check_is_fitted(data)
        if not hasattr(data, "draws_"):
            raise OptionError(
                'this model has no draws of its hyperparameters: fit a GPRegressor with hyperparameters="nuts", "svi" or "laplace".'
            )
        data = data.to_arviz()
    if hasattr(data, "data_vars") and len(data.data_vars):
        return data
    try:
        group = data["posterior"]
    except (LookupError, TypeError) as error:
        raise InputError(
            f"data is a fitted estimator with draws, or an ArviZ object with a posterior; got a {type(data).__name__}."
        ) from error
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def _draw_densities(axes: Axes, entry: Entry) -> None:
    low, high = entry.draws.min(), entry.draws.max()
    reach = 0.1 * (high - low)
    grid = np.linspace(low - reach, high + reach, 200)
    for i, chain in enumerate(entry.draws):
        if len(chain) >= FEWEST and np.ptp(chain) > 0:
            axes.plot(grid, gaussian_kde(chain)(grid), **_style(i), linewidth=1.2)
        else:
            axes.plot(chain, np.zeros(len(chain)), **_style(i) | {"linestyle": "none"}, marker="|", markersize=12)
    axes.set(xlabel=label(entry.name, 40), yticks=[])
    axes.set_ylim(bottom=0)


def _draw_traces(axes: Axes, entry: Entry) -> None:
    for i, chain in enumerate(entry.draws):
        axes.plot(np.arange(len(chain)), chain, **_style(i) | {"linestyle": "-"}, linewidth=0.6, alpha=0.8)
    axes.margins(x=0.0)


def _style(chain: int) -> dict:
    colour, dash, _ = LINES[chain % len(LINES)]
    return {"color": colour, "linestyle": dash}
