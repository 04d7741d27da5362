"""Each observed entry given all the others, in closed form and in the user's units.

At fixed hyperparameters θ that is N(μ_ij, σ_ij²) (`ovkgp.inference.leave_one_out`). With draws θ_s ~ p(θ | Y) it is the mixture of
these with weights w_s ∝ 1 / p(y_ij | y_−ij, θ_s), since p(θ | y_−ij) ∝ p(θ | Y) / p(y_ij | y_−ij, θ). Weights above √S times their mean are cut
there (truncated importance sampling, Ionides 2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ovkgp.criticism.rows import given_rows, kept_observations, require_predictive
from ovkgp.exceptions import OptionError
from ovkgp.inference.data import Observations
from ovkgp.inference.leave_one_out import LeaveOneOut
from ovkgp.inference.mixture_posterior import MixturePosterior
from ovkgp.inference.prediction import normal_cdf


class LeftOutEntries(NamedTuple):
    """Y, and mean, standard deviation and P(y′ ≤ y) of each entry given all others, (n, p), NaN where nothing was observed."""

    Y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    cdf: np.ndarray
    is_gaussian: bool


def leave_one_out_entries(estimator, X=None, Y=None) -> LeftOutEntries:
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
        >>> from ovkgp.criticism.left_out import leave_one_out_entries
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> found = leave_one_out_entries(ovkgp.OVKRidge(lam=1e-3).fit(X, np.sin(X)))
        >>> bool(abs(found.mean - np.sin(X)).max() < 0.1)
        True
    """
    data = _observations(estimator, X, Y)
    found = [*_each(estimator, data)]
    mean, std, cdf = _alone(found[0], data.Y) if len(found) == 1 else _mixed(found, data.Y)
    scaling = estimator.scaling_
    return LeftOutEntries(scaling.mean(data.Y), scaling.mean(mean), scaling.std(std), cdf.numpy(), len(found) == 1)


def _observations(estimator, X, Y) -> Observations:
    require_predictive(estimator)
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
