"""What a model says of each entry of Y without having seen it: rows that were held out, or each entry given all others.

    u = P(y′ < y) + v P(y′ = y),    v uniform,

is uniform where the model is right; for real outputs the jump P(y′ = y) is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from ovkgp.criticism.left_out import leave_one_out_entries
from ovkgp.criticism.rows import as_inputs, given_rows, kept_observations, require_predictive
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import OptionError
from ovkgp.inference.prediction import Prediction

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
        >>> from ovkgp.criticism.predictives import predictive
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.1).fit(X[::2], np.sin(X[::2]))
        >>> predictive(model).pit().shape, predictive(model, X[1::2], np.sin(X[1::2])).scores().shape
        ((20, 1), (20, 1))
    """
    if X is None and Y is None:
        return _kept(estimator)
    require_predictive(estimator)
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
    require_predictive(estimator)
    if hasattr(getattr(estimator, "gp_", None), "leave_one_out") and kept_observations(estimator) is None:
        raise OptionError(
            "this model keeps no rows (random features do not): give X and Y, rows that were held out of the fit."
        )
    found = leave_one_out_entries(estimator)
    return Predictive(found.Y, found.mean, found.std, found.cdf, found.cdf, found.is_gaussian)


def _of_levels(estimator, X: np.ndarray, Y: np.ndarray) -> Predictive:
    """Of quantile curves, as they are and not calibrated as `predict_interval` is."""
    seen = np.isfinite(Y[:, 0])
    law = estimator.predict_distribution(as_inputs(estimator, X[seen]))
    upto, mean, std = (np.full(Y.shape, np.nan) for _ in range(3))
    upto[seen] = law.cdf(torch.from_numpy(Y[seen])).numpy()
    mean[seen, 0], std[seen, 0] = law.mean.numpy(), law.std.numpy()
    return Predictive(Y, mean, std, upto, upto, False)


def _is_real(estimator) -> torch.Tensor:
    likelihood = getattr(estimator.gp_, "likelihood", None)
    return torch.ones(estimator.n_outputs_, dtype=torch.bool) if likelihood is None else likelihood.is_real


def _seen(values: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(Y), values, np.nan)
