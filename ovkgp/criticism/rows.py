"""The rows that a model is judged by: those it keeps, or those it is given, in the user's units.

An exact posterior is made of its data and keeps them; random features and inducing points have forgotten the rows they were made from.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.posterior_regressor import PosteriorRegressor
from ovkgp.estimators.tables import input_table, output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.data import Observations
from ovkgp.inference.exact_posterior import ExactPosterior
from ovkgp.inference.independent_posterior import IndependentPosterior
from ovkgp.inference.mixture_posterior import MixturePosterior


def kept_rows(estimator) -> tuple[np.ndarray, np.ndarray] | None:
    """The rows X (n, d) and Y (n, p) that a fitted model keeps, NaN where an output is missing; None where it keeps none.

    Rows of independent outputs, which are kept one output at a time, are put together again where their inputs are the same; they then
    come in the order in which the first output that was observed has them.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or `InfiniteQuantileRegressor`.

    Raises:
        NotFittedError: it is not fitted.

    Cost: a copy of the rows.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.criticism import kept_rows
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> rows = kept_rows(ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X)))
        >>> [part.shape for part in rows], kept_rows(ovkgp.ORFFRidge(lam=0.1).fit(X, np.sin(X)))
        ([(30, 1), (30, 1)], None)
    """
    check_is_fitted(estimator)
    if isinstance(estimator, InfiniteQuantileRegressor):
        X, Y = estimator._data.X, estimator._data.y[:, None]
    elif not isinstance(estimator, PosteriorRegressor) or (data := kept_observations(estimator)) is None:
        return None
    else:
        X, Y = data.X.numpy(), data.Y.numpy()
    scaling = estimator.scaling_
    return X * scaling.input_scale + scaling.input_offset, Y * scaling.output_scale + scaling.output_offset


def kept_observations(estimator) -> Observations | None:
    """The same rows in the units of the model, with their noise where it is known; for a model with a `posterior_`."""
    posterior = estimator.posterior_
    if isinstance(posterior, MixturePosterior):
        return _given_to_draws(posterior)
    if isinstance(posterior, IndependentPosterior):
        parts = [part.data for part in posterior.parts if isinstance(part, ExactPosterior)]
        return _together(parts) if len(parts) == posterior.num_outputs else None
    return posterior.data if isinstance(posterior, ExactPosterior) else None


def require_predictive(estimator) -> None:
    """Refuse what is not fitted, or has no predictive distributions."""
    check_is_fitted(estimator)
    if not isinstance(estimator, PosteriorRegressor | InfiniteQuantileRegressor):
        raise OptionError(
            f"a model is judged by its predictive distributions, and {type(estimator).__name__} has none: use GPRegressor, OVKRidge, "
            "ORFFRidge or InfiniteQuantileRegressor."
        )


def given_rows(estimator, X, Y) -> tuple[np.ndarray, np.ndarray]:
    """X (m, d) and Y (m, p) as arrays, their columns checked against those of the fit.

    Raises:
        InputError: one of them is missing, or Y has other columns.
    """
    check_is_fitted(estimator)
    if X is None or Y is None:
        raise InputError("give X and Y together, or neither for the rows that the model keeps.")
    X = input_table(estimator, X, reset=False)
    if hasattr(estimator, "_outputs"):
        return X, estimator._outputs(Y, X)
    table = output_table(Y, X)[0]
    if table.shape[1] != 1:
        raise InputError(f"y has {table.shape[1]} columns; {type(estimator).__name__} has one output.")
    return X, table


def as_inputs(estimator, X: np.ndarray) -> np.ndarray | pd.DataFrame:
    """Points (m, d) as the estimator wants them: with column names where it was fitted to a data frame, as it warns without."""
    names = getattr(estimator, "feature_names_in_", None)
    return X if names is None else pd.DataFrame(X, columns=names)


def _given_to_draws(posterior: MixturePosterior) -> Observations | None:
    """The rows that the posterior of every draw is made from; a loaded model with features has none."""
    given = getattr(getattr(posterior.parts, "condition", None), "keywords", {})
    if torch.is_tensor(given.get("X")) and torch.is_tensor(given.get("Y")):
        return Observations(given["X"], given["Y"], given.get("noise"))
    return None


def _together(parts: list[Observations]) -> Observations:
    """Outputs that were observed at rows of their own, (n_a, 1) each, as one table."""
    if all(torch.equal(part.X, parts[0].X) for part in parts):
        noise = None if parts[0].noise is None else torch.cat([part.noise for part in parts], 1)
        return Observations(parts[0].X, torch.cat([part.Y for part in parts], 1), noise)
    places = [_named(part.X) for part in parts]
    order = {name: i for i, name in enumerate(dict.fromkeys(name for names in places for name in names))}
    X = parts[0].X.new_empty(len(order), parts[0].X.shape[1])
    Y = X.new_full((len(order), len(parts)), torch.nan)
    noise = None if parts[0].noise is None else torch.ones_like(Y)
    for a, (part, names) in enumerate(zip(parts, places, strict=True)):
        rows = [order[name] for name in names]
        X[rows], Y[rows, a] = part.X, part.Y[:, 0]
        if noise is not None:
            noise[rows, a] = part.noise[:, 0]
    return Observations(X, Y, noise)


def _named(X: torch.Tensor) -> list[tuple]:
    """Each row with how often it came before, so that rows with the same inputs stay apart."""
    met: dict[tuple, int] = {}
    names = []
    for row in map(tuple, X.tolist()):
        met[row] = met.get(row, -1) + 1
        names.append((row, met[row]))
    return names
