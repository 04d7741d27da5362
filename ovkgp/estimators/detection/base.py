"""Base class of the detectors of outliers: validation, thresholds from held-out scores, predictions, kernels by name."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.options import FRACTION
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.summary import ColumnNames, Hyperparameter, Summary, format_hyperparameters, pluralize
from ovkgp.estimators.common.validation import input_table, warn_about_distant_rows
from ovkgp.exceptions import InputError
from ovkgp.inference.model.row_sample import draw_folds

DETECTOR_ATTRIBUTES = ("n_features_in_", "scaling_", "offset_", "held_out_scores_", "num_rows_", "_rows", "_seed")
"""Fitted attributes of all detectors that a model file holds."""
MAX_LISTED_ROWS = 12  # of more outliers among the training rows, a summary lists the first


class OutlierDetector(OutlierMixin, Estimator):
    """Detector of outliers with a score of each point, which is larger for more typical points.

    The `fit` of a subclass calls `enter_rows` and sets `held_out_scores_` and `offset_`; `_score` returns the scores of scaled points.
    """

    kind = "none"
    calibration_note = (
        "The threshold was set with scores of held-out training rows. To assess it, give new rows (X=, or --data)."
    )
    reported = (("alpha", "level α of predict"), ("offset_", "threshold of the score at that level"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "alpha": [FRACTION],
        "scale_inputs": ["boolean"],
    }

    @abstractmethod
    def _score(self, points: np.ndarray) -> np.ndarray:
        """Return the scores (m,) of scaled points (m, d)."""

    def score_samples(self, X) -> np.ndarray:
        """Return the score of each row; larger for more typical points.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            Scores.
        """
        check_is_fitted(self)
        return self._score(self.scaling_.inputs(input_table(self, X, reset=False)).numpy())

    def decision_function(self, X) -> np.ndarray:
        """Return the scores minus `offset_`: negative for outliers.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            `score_samples(X) - offset_`.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X) -> np.ndarray:
        """Predict −1 for outliers and +1 for all other rows; a fraction of about `alpha` of typical new rows is −1.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            +1 or −1.
        """
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def level_score(self, X) -> np.ndarray:
        """Return the p-value of each row: the fraction of held-out training rows that are at most as typical.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            p-values, below `alpha` for outliers. A fraction of about ν of typical new rows has one below ν.
        """
        scores = np.sort(self.held_out_scores_)
        return np.searchsorted(scores, self.score_samples(X), side="right") / len(scores)

    @property
    def min_nu(self) -> float:
        """Smallest level that the training rows contain information on, 1/n."""
        return 1 / self.num_rows_

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict inliers and p-values: a row is an outlier if its level is below `alpha`."""
        request.reject_options("detectors of outliers", "quantiles", "level", "latent", "costs")
        return {"inlier": self.predict(X) == 1, "level": self.level_score(X)}

    def training_data(self) -> tuple[np.ndarray, None]:
        """Return the training rows X (n, d) and None."""
        check_is_fitted(self)
        return self._rows * self.scaling_.input_scale + self.scaling_.input_offset, None

    def summary(self) -> Summary:
        """Return a text with the rows, those that are outliers given the others, the threshold and the parameters.

        Returns
        -------
        Summary
            Text, also as rows of a table.
        """
        found = super().summary()
        flagged = np.flatnonzero(self.held_out_scores_ < self.offset_)
        listed = ", ".join(map(str, flagged[:MAX_LISTED_ROWS])) + ", …" * (len(flagged) > MAX_LISTED_ROWS)
        rows = f"rows       {self.num_rows_}; {pluralize(len(flagged), 'outlier')} among them" + f": {listed}" * bool(
            listed
        )
        return Summary("\n".join([found, rows, *format_hyperparameters(self.list_parameters())]))

    def list_parameters(self) -> list[Hyperparameter]:
        """List the level, the threshold and the lengthscales in original units."""
        lengthscale = getattr(getattr(self, "kernel_", None), "lengthscale", None)
        if lengthscale is None:
            return super().list_parameters()
        values = np.broadcast_to(lengthscale.detach().numpy().reshape(-1), self.n_features_in_)
        pairs = zip(values * self.scaling_.input_scale, ColumnNames.of(self).inputs, strict=True)
        return [*super().list_parameters(), *(Hyperparameter.of("lengthscale", value, name) for value, name in pairs)]


def enter_rows(detector, X) -> np.ndarray:
    """Check the options of a detector and the rows X; set their number, scaling and the seed, and return scaled rows (n, d)."""
    X = input_table(detector, X, reset=True)
    if len(X) < 2:
        raise InputError(f"X must have at least 2 rows, got n_samples = {len(X)}.")
    detector.check_options()
    detector._seed = as_seed(getattr(detector, "random_state", 0))
    scale = detector.scale_inputs and not isinstance(getattr(detector, "kernel", None), Kernel)
    if scale:
        warn_about_distant_rows(X, detector.input_labels())
    detector.scaling_ = Scaling.of(X, np.zeros((len(X), 1)), scale_inputs=scale, shared=False)
    detector._rows, detector.num_rows_ = detector.scaling_.inputs(X).numpy(), len(X)
    if (detector._rows == detector._rows[0]).all():
        raise InputError("X must have at least 2 distinct rows, but all rows are equal.")
    return detector._rows


def set_threshold(detector, rows: np.ndarray) -> None:
    """Score each of the scaled rows (n, d) by a fit to the other four of five random folds; the threshold is the ⌈αn⌉-th smallest."""
    folds, scores = draw_folds(len(rows)), np.empty(len(rows))
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        other = type(detector)(**detector.get_params(deep=False))
        other._seed = detector._seed
        other._fit_rows(rows[~held_out])
        scores[held_out] = other._score(rows[held_out])
    detector.held_out_scores_ = scores
    detector.offset_ = float(np.quantile(scores, detector.alpha, method="inverted_cdf"))
