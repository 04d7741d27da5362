"""Random functions in the user's units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ovkgp.estimators.scaling import Scaling
from ovkgp.estimators.tables import as_array
from ovkgp.exceptions import InputError
from ovkgp.inference.draws import FunctionDraws


class ScaledDraws(Sequence):
    """k functions X (m, d) ↦ (m, p), or (m,) where Y was one-dimensional; called, all of them at once.

    Args:
        draws: the functions in the units of the model.
        scaling: from those to the user's.
        is_flat: whether Y was one-dimensional.
    """

    def __init__(self, draws: FunctionDraws, scaling: Scaling, is_flat: bool):
        self._draws, self._scaling, self._is_flat = draws, scaling, is_flat

    def __len__(self) -> int:
        return len(self._draws)

    def __call__(self, X) -> np.ndarray:
        return self._evaluate(self._draws, X)

    def __getitem__(self, index):
        chosen = self._draws[index]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return lambda X: self._evaluate(chosen, X)

    def _evaluate(self, draw, X) -> np.ndarray:
        values = self._scaling.mean(draw(self._scaling.inputs(points(X, self._scaling))))
        return values[..., 0] if self._is_flat else values


def points(X, scaling: Scaling) -> np.ndarray:
    """X as an array (m, d), in the units that `scaling` was made for."""
    X = np.asarray(as_array(X), dtype=np.float64)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or X.shape[1] != (d := len(scaling.input_scale)):
        raise InputError(f"X must have shape (m, {d}), got {X.shape}.")
    return X
