"""Hyperparameters in the units of the data, from those of a model whose inputs and outputs are scaled.

With x = s_x x′ + o_x and y_a = s_a y′_a + o_a a lengthscale grows by s_x, an output matrix by s_a s_b, a noise variance by s_a², the
scale of a likelihood by s_a, and the mean is shifted and scaled as the outputs are. A kernel object keeps its own numbers: only its author knows which of
them carry units.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import InputError
from ovkgp.inference.posteriors.posterior import FunctionDraws

CHUNK_ROWS = 1 << 16
"""Rows that are made float64 together."""


@dataclass(frozen=True)
class Moments:
    """The moments of k columns, NaN left out; `a + b` are those of both together.

    Args:
        count: how many entries each column has, (k,) int64.
        mean: of each, (k,); zero where there are no entries.
        squares: the sum of squared deviations from the mean, (k,), in units of largest².
        largest: the largest absolute value, (k,).

    Cost of `a + b`: O(k).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.scaling import Moments
        >>> columns = np.array([[1.0, 5.0], [2.0, np.nan], [3.0, 7.0]])
        >>> both = Moments.of(columns[:1]) + Moments.of(columns[1:])
        >>> both.count, both.mean, both.std
        (array([3, 2]), array([2., 6.]), array([0.81649658, 1.        ]))
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    largest: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray) -> Moments:
        """The moments of an array (n, k) with NaN where an entry is missing. O(n k) time, memory for one part of the rows."""
        total = cls._of_part(columns[:CHUNK_ROWS])
        for part in _parts(columns[CHUNK_ROWS:]):
            total = total + cls._of_part(part)
        return total

    @classmethod
    def _of_part(cls, columns: np.ndarray) -> Moments:
        columns = columns.astype(np.float64)
        largest = np.nan_to_num(np.abs(columns)).max(0, initial=0.0)
        count = np.isfinite(columns).sum(0)
        relative = columns / _unit(largest)
        mean = np.nansum(relative, 0) / np.maximum(count, 1)
        return cls(count, _unit(largest) * mean, np.nansum((relative - mean) ** 2, 0), largest)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation (k,) of each column, with the divisor n."""
        return _unit(self.largest) * np.sqrt(self.squares / np.maximum(self.count, 1))

    def __add__(self, other: Moments) -> Moments:
        largest = np.maximum(self.largest, other.largest)
        unit, count = _unit(largest), self.count + other.count
        share = other.count / np.maximum(count, 1)
        start, step = self.mean / unit, other.mean / unit - self.mean / unit
        squares = sum(part.squares * (part.largest / unit) ** 2 for part in (self, other))
        return Moments(count, unit * (start + step * share), squares + step**2 * self.count * share, largest)


def _unit(largest: np.ndarray) -> np.ndarray:
    return np.where(largest > 0, largest, 1.0)


def _parts(columns: np.ndarray) -> Iterator[np.ndarray]:
    return (columns[i : i + CHUNK_ROWS] for i in range(0, len(columns), CHUNK_ROWS))


@dataclass(frozen=True)
class Scaling:
    """Offsets and scales of inputs (d,) and outputs (p,), as float64 arrays."""

    input_offset: np.ndarray
    input_scale: np.ndarray
    output_offset: np.ndarray
    output_scale: np.ndarray

    @classmethod
    def none(cls, num_inputs: int, num_outputs: int) -> Scaling:
        """Everything left as it is."""
        return cls(np.zeros(num_inputs), np.ones(num_inputs), np.zeros(num_outputs), np.ones(num_outputs))

    @property
    def is_none(self) -> bool:
        """Whether everything is left as it is."""
        offsets, scales = (self.input_offset, self.output_offset), (self.input_scale, self.output_scale)
        return not any(offset.any() for offset in offsets) and all((scale == 1).all() for scale in scales)

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, *, scale_inputs: bool, shared: bool) -> Scaling:
        """The scaling of data X (n, d) and Y (n, p) with NaN where missing.

        Args:
            scale_inputs: whether the inputs are scaled at all.
            shared: one scale for all outputs, and one for all inputs.
        """
        return cls.of_moments(Moments.of(X), Moments.of(Y), scale_inputs=scale_inputs, shared=shared)

    @classmethod
    def of_moments(
        cls,
        inputs: Moments,
        outputs: Moments,
        *,
        scale_inputs: bool,
        shared: bool,
        is_real: np.ndarray | None = None,
    ) -> Scaling:
        """The scaling of data of which only the moments are left; the options are those of `of`.

        Args:
            is_real: which outputs (p,) may be centred and scaled, all by default; labels, counts and classes are left as they
                are, and where outputs share a scale so are then all.
        """
        offset, scale = _offset_and_scale(outputs, shared)
        if is_real is not None and not is_real.all():
            may = is_real & (not shared)
            offset, scale = np.where(may, offset, 0.0), np.where(may, scale, 1.0)
        if scale_inputs:
            return cls(*_offset_and_scale(inputs, shared), offset, scale)
        unscaled = cls.none(len(inputs.mean), len(outputs.mean))
        return cls(unscaled.input_offset, unscaled.input_scale, offset, scale)

    def inputs(self, X: np.ndarray) -> Tensor:
        """X in the units of the model, float64."""
        return torch.from_numpy((np.asarray(X, dtype=np.float64) - self.input_offset) / self.input_scale)

    def outputs(self, Y: np.ndarray) -> Tensor:
        """Y in the units of the model, float64."""
        return torch.from_numpy((np.asarray(Y, dtype=np.float64) - self.output_offset) / self.output_scale)

    def variances(self, noise: np.ndarray) -> Tensor:
        """Variances of outputs, (…, p), in the units of the model."""
        return torch.from_numpy(np.asarray(noise, dtype=np.float64) / self.output_scale**2)

    def mean(self, mean: Tensor) -> np.ndarray:
        """A mean (…, p) in the user's units."""
        return mean.detach().numpy() * self.output_scale + self.output_offset

    def std(self, std: Tensor) -> np.ndarray:
        """A standard deviation (…, p) in the user's units."""
        return std.detach().numpy() * self.output_scale

    def cov(self, cov: Tensor) -> np.ndarray:
        """A covariance (…, k·p, k·p), data-major, in the user's units."""
        scale = np.tile(self.output_scale, cov.shape[-1] // len(self.output_scale))
        return cov.detach().numpy() * scale[:, None] * scale

    def log_density(self, log_density: float, num_observed: np.ndarray) -> float:
        """A log density of `num_observed` (p,) observed entries in the user's units."""
        return log_density - float(num_observed @ np.log(self.output_scale))


def _offset_and_scale(moments: Moments, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; one deviation for all where `shared`."""
    offset, scale, largest = moments.mean, moments.std, moments.largest
    scale = np.where(scale > np.finfo(np.float64).eps * 16 * np.abs(offset), scale, 0.0)
    if shared and scale.any():
        unit = scale.max()  # squares of what is left neither overflow nor vanish
        scale = np.full_like(scale, unit * np.sqrt(np.mean((scale / unit) ** 2)))
    # A column without spread says of its scale no more than its size.
    return offset, np.where(scale > 0, scale, np.where(largest > 0, largest, 1.0))


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


def in_user_units(name: str, value, structure: str, scaling: Scaling) -> np.ndarray:
    """One hyperparameter of a named structure, in the units of the data.

    A field is made of derivatives in the scaled inputs, so that its outputscale has their square in it. A noise that all
    scaled outputs share is one for each output in the units of the data.

    Args:
        name: as `ovkgp.inference.model.parameter_vector` has it, or "noise", "mean" or one of a likelihood ("scale", "df", …; "scale_2" of
            output 2 where each has a likelihood of its own).
        value: in the units of the model, a tensor or an array of any shape, ones dropped or not.
        structure: the name of the kernel, such as "lmc"; "given" for a kernel object.
        scaling: from the user's units to the model's.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.scaling import Scaling
        >>> from ovkgp.estimators.common.scaling import in_user_units
        >>> scaling = Scaling(np.zeros(1), np.array([10.0]), np.array([5.0, 0.0]), np.array([2.0, 3.0]))
        >>> in_user_units("noise", np.array([0.1, 0.1]), "lmc", scaling).tolist()
        [0.4, 0.9]
    """
    value = value.detach().numpy() if torch.is_tensor(value) else np.asarray(value)
    path, scale = name.split("."), scaling.output_scale
    if path[-1] == "noise":
        return _noise(value, scale)
    if name == "mean":
        return value * scale + scaling.output_offset
    if name == "scale":  # of a likelihood
        return value * (scale if value.ndim else scale[0])
    if of_one := re.fullmatch(r"(scale|noise)_(\d+)", name):  # of one output's likelihood
        return value * scale[int(of_one[2])] ** (2 if of_one[1] == "noise" else 1)
    if structure == "given":
        return value
    if path[-1] == "lengthscale":
        return value * (scaling.input_scale if value.size > 1 else scaling.input_scale[0])
    if path[-1] == "output_matrix":
        return value * np.outer(scale, scale)
    if path[-1] != "outputscale":
        return value
    if structure == "independent":
        return value * scale[int(path[0])] ** 2
    return value * (scale[0] * scaling.input_scale[0]) ** 2


def draws_in_user_units(name: str, draws: np.ndarray, structure: str, scaling: Scaling) -> np.ndarray:
    """The same for draws (chains, draws, *shape)."""
    flat = draws.reshape(-1, *draws.shape[2:])
    moved = np.stack([in_user_units(name, value, structure, scaling) for value in flat])
    return moved.reshape(*draws.shape[:2], *moved.shape[1:])


def named_structure(estimator) -> str:
    """The structure whose hyperparameters have units that are known: "given" where a kernel object was."""
    by_name = isinstance(estimator.kernel, str) and isinstance(estimator.base_kernel, str)
    return estimator.kernel_ if by_name else "given"


def _noise(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    if value.ndim == 2:
        return value * np.outer(scale, scale)
    return value * (scale[0] ** 2 if value.ndim == 0 and np.all(scale == scale[0]) else scale**2)
