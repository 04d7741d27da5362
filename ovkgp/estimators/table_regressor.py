"""Tables at the door of a regressor: arrays, frames and tensors, names, missing outputs, and a score.

A subclass calls `_enter` in `fit`, and has a `predict`.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score

from ovkgp.estimators.tables import input_table, output_table
from ovkgp.exceptions import InputError

KEPT = {"n_features_in_", "feature_names_in_"}
"""Fitted attributes that the check of X has just set."""


class TableRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The common part of all regressors.

    Attributes:
        output_names_, n_outputs_, n_features_in_, feature_names_in_: of the data.
    """

    def score(self, X, y, sample_weight=None) -> float:
        """R² over the observed entries of each output, averaged over the outputs."""
        predicted = np.reshape(self.predict(X), (-1, self.n_outputs_))
        Y = self._outputs(y, predicted)
        weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        seen = np.isfinite(Y)
        columns = [a for a in range(Y.shape[1]) if seen[:, a].any()]
        if not columns:
            raise InputError("there is nothing to score: every entry of y is missing.")
        scores = [r2_score(Y[s, a], predicted[s, a], sample_weight=weight[s]) for a in columns for s in [seen[:, a]]]
        return float(np.mean(scores))

    def _enter(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """X (n, d) and Y (n, p) checked and remembered; what was fitted before is forgotten."""
        X = input_table(self, X, reset=True)
        Y, names, self._is_flat = output_table(Y, X)
        _require_seen(Y, names)
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in KEPT]:
            delattr(self, fitted)
        self.n_outputs_ = Y.shape[1]
        self.output_names_ = names or [f"y{a}" for a in range(Y.shape[1])]
        self._has_names = names is not None
        return X, Y

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Further outputs (n, p), whose names must be those of the fit where both have names."""
        table, names, _ = output_table(Y, X)
        if table.shape[1] != self.n_outputs_:
            raise InputError(f"Y has {table.shape[1]} columns; the model was fitted with {self.n_outputs_}.")
        if names is not None and self._has_names and names != self.output_names_:
            raise InputError(
                f"the columns of Y are {names}; the model was fitted with {self.output_names_}, in this order."
            )
        return table

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


def _require_seen(Y: np.ndarray, names: list[str] | None) -> None:
    unseen = np.flatnonzero(~np.isfinite(Y).any(0))
    if len(unseen):
        column = names[unseen[0]] if names else int(unseen[0])
        raise InputError(f"nobody observed output {column!r} of Y (all NaN): leave that column out, or add data.")
