"""A cut through the inputs: one column runs over its range, the others stay at their medians, and the data beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism.rows import given_rows, kept_rows
from ovkgp.estimators.tables import input_table
from ovkgp.exceptions import InputError
from ovkgp.kernels.checks import whole_number
from ovkgp.plotting.names import chosen_input, input_names, label

REACH = 2.0
"""Standard deviations to either side of the mean that are drawn where a model knows no more of its inputs."""
NAMED = 3
"""So many other inputs are named with their values."""


@dataclass(frozen=True)
class Data:
    """X (n, d), or None where nothing is known of the inputs; Y (n, p), or None where there is none to show."""

    X: np.ndarray | None
    Y: np.ndarray | None

    @classmethod
    def of(cls, estimator, X=None, Y=None) -> Data:
        """What was given, or else the rows that a fitted model keeps; X alone says only where to draw.

        Raises:
            NotFittedError: there is no model yet.
            InputError: Y without X, or other columns than those of the fit.
        """
        check_is_fitted(estimator)
        if X is not None and Y is None:
            return cls(input_table(estimator, X, reset=False), None)
        if X is None and Y is None:
            return cls(*(kept_rows(estimator) or (None, None)))
        return cls(*given_rows(estimator, X, Y))


@dataclass(frozen=True)
class Cut:
    """Points along one input.

    Attributes:
        along: the column that runs.
        points: (m, d), the others at their medians.
        name: what stands below the axis.
    """

    along: int
    points: np.ndarray
    name: str

    @classmethod
    def of(cls, estimator, data: Data, along=None, num_points: int = 200) -> Cut:
        """Along an input by name or number, over the range of the data.

        Raises:
            OptionError: there is no such input.
            InputError: neither the model nor the caller says where the inputs lie.
        """
        index, number = chosen_input(estimator, along), whole_number("num_points", num_points, least=2)
        low, middle, high = input_range(estimator, data.X)
        points = np.tile(middle, (number, 1))
        points[:, index] = np.linspace(low[index], high[index], number)
        return cls(index, points, _axis_name(input_names(estimator), index, middle))

    @property
    def axis(self) -> np.ndarray:
        """The values (m,) of the input that runs."""
        return self.points[:, self.along]


def input_range(estimator, X: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least, middle and largest value (d,) of each input: of the rows X, or of what the scaling knows of them."""
    if X is not None and len(X):
        low, high = X.min(0), X.max(0)
        flat = low == high  # a range of no width is no axis
        reach = np.where(flat, np.maximum(np.abs(low) / 10, 0.5), 0.0)
        return low - reach, np.median(X, axis=0), high + reach
    offset, scale = estimator.scaling_.input_offset, estimator.scaling_.input_scale
    if not offset.any() and (scale == 1).all():
        raise InputError("this model keeps no rows, and does not know where its inputs lie: give X.")
    return offset - REACH * scale, offset, offset + REACH * scale


def _axis_name(names: list[str], along: int, middle: np.ndarray) -> str:
    """The name of the input and, small enough, at what the others stay."""
    others = [i for i in range(len(names)) if i != along]
    if not others:
        return label(names[along], 40)
    held = ", ".join(f"{names[i]} = {middle[i]:.3g}" for i in others)
    if len(others) > NAMED or len(held) > 80:
        held = f"the other {len(others)} inputs" if len(others) > 1 else "the other input"
        held += " at their medians" if len(others) > 1 else " at its median"
    return f"{label(names[along], 40)}\n{label(f'({held})', 48)}"
