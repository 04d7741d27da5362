"""Protocol of the estimators of curves: what reports and commands know of them besides `Estimator`."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from ovkgp.functional import Dictionary, FunctionalData


class BasisFunctions(NamedTuple):
    """Functions in which curves are expanded: their kind, points (m, b) and values (m, k)."""

    name: str
    points: np.ndarray
    values: np.ndarray


class CurveEstimator:
    """Mixin of estimators whose outputs are curves at the points `grid_`."""

    has_curves: ClassVar[bool] = True

    def training_curves(self) -> tuple[np.ndarray | FunctionalData, FunctionalData] | None:
        """Return the inputs of the fit, as `predict` takes them, and its curves; None if they are not stored."""
        return None

    def basis_functions(self) -> BasisFunctions | None:
        """Return the functions in which predictions are expanded; None if there is no finite basis."""
        dictionary = getattr(self, "dictionary_", None)
        if dictionary is None:
            dictionary = getattr(getattr(getattr(self, "coordinates_", None), "factor", None), "dictionary", None)
        return None if dictionary is None else self._evaluate_basis(dictionary)

    def _evaluate_basis(self, dictionary: Dictionary) -> BasisFunctions:
        points = self.grid_[:, None] if self.grid_.ndim == 1 else self.grid_
        if points.shape[1] == 1:
            points = np.linspace(*self.domain_[0], 200)[:, None]
        name = "eigenfunctions" if "Eigen" in type(dictionary).__name__ else "functions of the dictionary"
        name = "principal components" if "Principal" in type(dictionary).__name__ else name
        return BasisFunctions(name, points, dictionary(points))

    def outlier_scores(self) -> np.ndarray | None:
        """Return scores (n,) in [0, 1] of the training curves, large for outliers; None if there are none."""
        return getattr(self, "outlier_scores_", None)

    def model_weights(self) -> dict[str, float]:
        """Return the weights of the models of a mixture by name, empty if there is one model."""
        return {}
