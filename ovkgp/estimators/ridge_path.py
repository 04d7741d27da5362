"""A table of several λ, what the data say of each, and each row given all others: from one factorisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ovkgp.estimators.scaled_draws import points
from ovkgp.estimators.scaling import Scaling
from ovkgp.exceptions import OptionError
from ovkgp.inference import NoisePath
from ovkgp.inference.rows_left_out import RowsLeftOut


@dataclass(frozen=True, eq=False)
class RidgePath:
    """What the data say of each of k values of λ.

    Attributes:
        lam, noise: λ and the noise variance σ² that it stands for, (k,).
        log_evidence: log p(Y), (k,).
        loo_error: the mean squared error of each row predicted from all others, (k,); entries are weighted by the inverse of
            their noise, where weights or a metric make it unlike.
        loo_log_density: the sum of the log densities of the rows given all others, (k,).
    """

    lam: np.ndarray
    noise: np.ndarray
    log_evidence: np.ndarray
    loo_error: np.ndarray
    loo_log_density: np.ndarray
    _path: NoisePath | None = field(default=None, repr=False)
    _scaling: Scaling | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: NoisePath, lam: np.ndarray, noise: np.ndarray, scaling: Scaling | None = None) -> RidgePath:
        """From a path of noise levels; without a scaling it keeps the numbers only, and does not predict."""
        columns = (getattr(path, name).numpy() for name in ("log_evidence", "loo_error", "loo_log_density"))
        return cls(lam, noise, *columns, None if scaling is None else path, scaling)

    def best(self, selection: str) -> int:
        """The place of the λ with the smallest leave-one-out error ("loo") or the largest evidence ("evidence")."""
        return int(np.argmin(self.loo_error) if selection == "loo" else np.argmax(self.log_evidence))

    def predict(self, X) -> np.ndarray:
        """The posterior means (k, m, p) at X (m, d), one for each λ."""
        if self._path is None:
            raise OptionError("this table keeps numbers only: estimator.path(X, Y, lam) makes one that predicts.")
        return self._scaling.mean(self._path.predict(self._scaling.inputs(points(X, self._scaling))))


class LeftOut(NamedTuple):
    """Mean and standard deviation (n, p) of a new observation in each row given all other rows, NaN where nothing was seen, and the
    log density (n,) of what was."""

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray

    @classmethod
    def of(cls, left_out: RowsLeftOut, scaling: Scaling) -> LeftOut:
        """The same in the user's units; a ridge shifts its outputs and does not scale them."""
        return cls(scaling.mean(left_out.mean), scaling.std(left_out.std), left_out.log_density.numpy())
