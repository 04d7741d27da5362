"""Search of `itl_tables.py`: λ, a factor on learned lengthscales, and the scale of the levels.

Lengthscales and trend are learned once, on the training part of a split; a trial then is one plain fit. Run by itself it does nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone

from ovkgp import BayesSearchCV, InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.kernel import learn_trend
from ovkgp.estimators.quantiles.rows import QuantileRows, measure_crossing

LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
MAX_ITER = 2000
"""Value for the last fit; the trials use 200."""
SPACE = {
    "stretch": (0.5, 4.0, "log"),
    "strength": (1e-3, 1e2, "log"),
    "task_lengthscale": (0.1, 1.0, "log"),
}


class TunedQuantiles(RegressorMixin, BaseEstimator):
    """`InfiniteQuantileRegressor` with a kernel that is known but for a few factors.

    Args:
        known: a `LearnedKernel`.
        stretch: a factor on its lengthscales.
        strength: λ, as a multiple of what signal and noise of a Gaussian process suggest.
        coupling, task_lengthscale, max_iter: Options of the estimator.
    """

    def __init__(
        self,
        known=None,
        stretch=1.0,
        strength=1.0,
        coupling="infinite",
        task_lengthscale=0.3,
        max_iter=200,
    ):
        self.known = known
        self.stretch = stretch
        self.strength = strength
        self.coupling = coupling
        self.task_lengthscale = task_lengthscale
        self.max_iter = max_iter

    def fit(self, X, y):
        chosen = self.known
        self.model_ = InfiniteQuantileRegressor(
            lengthscale=replace(chosen, lengthscale=self.stretch * chosen.lengthscale),
            lam=self.strength * chosen.scales.lam(len(y)),
            coupling=self.coupling,
            task_lengthscale=self.task_lengthscale,
            tol=1e-3,
            max_iter=self.max_iter,
            calibrate=False,
            random_state=0,
        ).fit(X, y)
        return self

    def predict(self, X, quantiles=None):
        return self.model_.predict(X, quantiles)

    def score(self, X, y):
        """Minus the sum over five levels of the pinball loss."""
        return -self.model_.pinball_loss(X, y, LEVELS).sum()

    def raw_crossing(self, X, levels) -> float:
        """Compute the decrease of unsorted curves, in the units of y."""
        model = self.model_
        curves = model.function_(model.scaling_.inputs(X), torch.from_numpy(levels))
        return float(model.scaling_.output_scale[0]) * measure_crossing(curves.numpy()).total


def tuned(X: np.ndarray, y: np.ndarray, *, coupling: str, trials: int, folds, seed: int) -> TunedQuantiles:
    """The best of a search on the rows given, fitted to all of them; half of the trials are Sobol points."""
    rows = QuantileRows.of(X, y)
    rows = rows.scaled(rows.scaling(scale_inputs=True))
    search = BayesSearchCV(
        TunedQuantiles(learn_trend(rows, "rbf"), coupling=coupling),
        {name: values for name, values in SPACE.items() if coupling != "independent" or name != "task_lengthscale"},
        n_startup=trials - trials // 2,
        n_iter=trials,
        cv=folds,
        refit=False,
        random_state=seed,
    )
    return clone(search.estimator).set_params(**search.fit(X, y).best_params_, max_iter=MAX_ITER).fit(X, y)
