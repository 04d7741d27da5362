"""What a model says of each entry of Y without having seen it: rows that were held out, or each entry given all others.

    u = P(y′ < y) + v P(y′ = y),    v uniform,

is uniform where the model is right; for real outputs the jump P(y′ = y) is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.validation import input_table, output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, IndependentPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.prediction import Prediction, normal_cdf


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


def check_predictive(estimator) -> None:
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


class LeaveOneOutEntries(NamedTuple):
    """Y, and mean, standard deviation and P(y′ ≤ y) of each entry given all others, (n, p), NaN where nothing was observed."""

    Y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    cdf: np.ndarray
    is_gaussian: bool


def leave_one_out_entries(estimator, X=None, Y=None) -> LeaveOneOutEntries:
    """Leave-one-out predictions of new observations at the entries that a model was fitted to.

    Args:
        estimator: a fitted `GPRegressor` with Gaussian noise, `OVKRidge` or `ORFFRidge`.
        X, Y: the rows that it was fitted to, (n, d) and (n, p), for a model that does not keep them; else None.

    Raises:
        OptionError: the model keeps no rows and none are given, or has no closed form.

    Cost: one factorisation; one for each draw that predictions average over.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.criticism.predictive_distributions import leave_one_out_entries
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> found = leave_one_out_entries(ovkgp.OVKRidge(lam=1e-3).fit(X, np.sin(X)))
        >>> bool(abs(found.mean - np.sin(X)).max() < 0.1)
        True
    """
    data = _observations(estimator, X, Y)
    found = [*_each(estimator, data)]
    mean, std, cdf = _alone(found[0], data.Y) if len(found) == 1 else _mixed(found, data.Y)
    scaling = estimator.scaling_
    return LeaveOneOutEntries(scaling.mean(data.Y), scaling.mean(mean), scaling.std(std), cdf.numpy(), len(found) == 1)


def _observations(estimator, X, Y) -> Observations:
    check_predictive(estimator)
    if not hasattr(getattr(estimator, "gp_", None), "leave_one_out"):
        kind = "a variational model" if hasattr(estimator, "gp_") else type(estimator).__name__
        raise OptionError(
            f"{kind} has no leave-one-out predictions in closed form: judge it on rows X, Y that were held out of the fit, with "
            "plot_residuals, plot_pit or plot_coverage."
        )
    if X is None and Y is None:
        if (data := kept_observations(estimator)) is None:
            raise OptionError(
                "this model keeps no rows (random features do not): give X and Y, the rows that it was fitted to."
            )
        return data
    X, Y = given_rows(estimator, X, Y)
    return Observations(estimator.scaling_.inputs(X), estimator.scaling_.outputs(Y))


def _each(estimator, data: Observations) -> Iterator[LeaveOneOut]:
    """At each draw of the hyperparameters, or at the one value that there is."""
    posterior = estimator.posterior_
    if not isinstance(posterior, MixturePosterior):
        yield estimator.gp_.leave_one_out(data.X, data.Y, data.noise)
        return
    for index in range(len(posterior)):
        yield posterior.parts.place(index).leave_one_out(data.X, data.Y, data.noise)


def _alone(found: LeaveOneOut, Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return found.mean, found.std, normal_cdf(Y, found.mean, found.std)


def _mixed(found: list[LeaveOneOut], Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, std, log_density = (torch.stack(parts) for parts in zip(*found, strict=True))
    weights = (-log_density).softmax(0)  # (S, n, p), 1/S on average
    weights = weights.clamp_max(len(found) ** -0.5)
    weights = weights / weights.sum(0)
    centre = (weights * mean).sum(0)
    variance = (weights * (std.square() + (mean - centre).square())).sum(0)
    return centre, variance.sqrt(), (weights * normal_cdf(Y, mean, std)).sum(0)


FURTHEST = 8.2
"""Scores beyond have no digits left in u."""


@dataclass(frozen=True)
class Predictive:
    """Predictive distributions of entries, all (m, p) and in the user's units; NaN where Y is missing.

    Attributes:
        Y: what was observed.
        mean, std: of the prediction, noise included.
        below, upto: P(y′ < y) and P(y′ ≤ y).
        is_gaussian: whether mean and std say all.
    """

    Y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    below: np.ndarray
    upto: np.ndarray
    is_gaussian: bool

    def pit(self) -> np.ndarray:
        """u (m, p), with the jumps of labels and counts filled by the same uniform numbers at every call."""
        fill = np.random.default_rng(0).random(self.Y.shape)
        return self.below + fill * (self.upto - self.below)

    def scores(self) -> np.ndarray:
        """Φ⁻¹(u) (m, p), standard normal where the model is right: (y − mean)/std of Gaussian predictions."""
        if self.is_gaussian:
            return (self.Y - self.mean) / self.std
        return np.clip(ndtri(self.pit()), -FURTHEST, FURTHEST)


def predictive(estimator, X=None, Y=None) -> Predictive:
    """Predictive distributions of rows that were held out or, without X and Y, of each entry that the model keeps given all others.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or, for held-out rows, `InfiniteQuantileRegressor`.
        X, Y: rows that it was *not* fitted to, (m, d) and (m, p), NaN where missing.

    Raises:
        OptionError: without rows, where the model has no leave-one-out predictions in closed form.

    Cost: one prediction, or one factorisation (one for each draw that predictions average over).

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.criticism.predictive_distributions import predictive
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.1).fit(X[::2], np.sin(X[::2]))
        >>> predictive(model).pit().shape, predictive(model, X[1::2], np.sin(X[1::2])).scores().shape
        ((20, 1), (20, 1))
    """
    if X is None and Y is None:
        return _kept(estimator)
    check_predictive(estimator)
    X, Y = given_rows(estimator, X, Y)
    if isinstance(estimator, InfiniteQuantileRegressor):
        return _of_levels(estimator, X, Y)
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(X), "diag", noise=True)
    y, is_real = scaling.outputs(Y), _is_real(estimator)
    with torch.no_grad():
        upto = prediction.cdf(y)
        below = upto if is_real.all() else torch.where(is_real, upto, prediction.cdf(y - 1))
    moments = scaling.mean(prediction.mean), scaling.std(prediction.std)
    is_gaussian = type(prediction) is Prediction
    return Predictive(Y, *(_seen(part, Y) for part in (*moments, below.numpy(), upto.numpy())), is_gaussian)


def _kept(estimator) -> Predictive:
    check_predictive(estimator)
    if hasattr(getattr(estimator, "gp_", None), "leave_one_out") and kept_observations(estimator) is None:
        raise OptionError(
            "this model keeps no rows (random features do not): give X and Y, rows that were held out of the fit."
        )
    found = leave_one_out_entries(estimator)
    return Predictive(found.Y, found.mean, found.std, found.cdf, found.cdf, found.is_gaussian)


def _of_levels(estimator, X: np.ndarray, Y: np.ndarray) -> Predictive:
    """Of quantile curves, as they are and not calibrated as `predict_interval` is."""
    observed = np.isfinite(Y[:, 0])
    distribution = estimator.predict_distribution(as_inputs(estimator, X[observed]))
    upto, mean, std = (np.full(Y.shape, np.nan) for _ in range(3))
    upto[observed] = distribution.cdf(torch.from_numpy(Y[observed])).numpy()
    mean[observed, 0], std[observed, 0] = distribution.mean.numpy(), distribution.std.numpy()
    return Predictive(Y, mean, std, upto, upto, False)


def _is_real(estimator) -> torch.Tensor:
    likelihood = getattr(estimator.gp_, "likelihood", None)
    return torch.ones(estimator.n_outputs_, dtype=torch.bool) if likelihood is None else likelihood.is_real


def _seen(values: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(Y), values, np.nan)
