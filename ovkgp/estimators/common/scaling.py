"""Standardization of inputs and outputs, and conversion of predictions and hyperparameters to original units.

With x = s_x x′ + o_x and y_a = s_a y′_a + o_a, a lengthscale scales with s_x, an output matrix with s_a s_b, a noise variance with s_a²,
the scale of a likelihood with s_a, and the mean is shifted and scaled like the outputs. A kernel object is used in original units:
nothing is scaled, so that its values need no conversion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.common.dates import Origins, check_kinds, to_days
from ovkgp.estimators.common.validation import as_array, check_finite, check_reach
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.inference.posteriors.posterior import FunctionDraws

if TYPE_CHECKING:
    import xarray

CHUNK_ROWS = 1 << 16  # number of rows converted to float64 at a time


@dataclass(frozen=True)
class Moments:
    """Moments of k columns, without NaN; `a + b` are those of both together.

    `count`, `mean` and `largest` (absolute value) are (k,); `squares` is the sum of squared deviations from the mean, in units
    of largest².
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    largest: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray) -> Moments:
        """Compute the moments of an array (n, k), a part of the rows at a time."""
        starts = range(0, max(len(columns), 1), CHUNK_ROWS)
        return reduce(add, (cls._of_part(columns[i : i + CHUNK_ROWS]) for i in starts))

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
        """Standard deviation (k,) of each column, with the divisor n."""
        return _unit(self.largest) * np.sqrt(self.squares / np.maximum(self.count, 1))

    @property
    def is_constant(self) -> np.ndarray:
        """Whether each column (k,) is constant, up to rounding."""
        return self.std <= np.finfo(np.float64).eps * 16 * np.abs(self.mean)

    def __add__(self, other: Moments) -> Moments:
        largest = np.maximum(self.largest, other.largest)
        unit, count = _unit(largest), self.count + other.count
        fraction = other.count / np.maximum(count, 1)
        first, step = self.mean / unit, other.mean / unit - self.mean / unit
        squares = sum(part.squares * (part.largest / unit) ** 2 for part in (self, other))
        return Moments(count, unit * (first + step * fraction), squares + step**2 * self.count * fraction, largest)


def _unit(largest: np.ndarray) -> np.ndarray:
    return np.where(largest > 0, largest, 1.0)


@storable_record
@dataclass(frozen=True)
class Scaling:
    """Offsets and scales of inputs (d,) and outputs (p,), as float64 arrays, and the indices of inputs that the model does not use."""

    input_offset: np.ndarray
    input_scale: np.ndarray
    output_offset: np.ndarray
    output_scale: np.ndarray
    unused_inputs: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def none(cls, num_inputs: int, num_outputs: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(np.zeros(num_inputs), np.ones(num_inputs), np.zeros(num_outputs), np.ones(num_outputs))

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, *, scale_inputs: bool, shared: bool) -> Scaling:
        """Return the scaling of X (n, d) and Y (n, p); if `shared`, with one scale for all outputs and one for all inputs."""
        return cls.of_moments(Moments.of(X), Moments.of(Y), scale_inputs=scale_inputs, shared=shared)

    @classmethod
    def of_moments(
        cls, inputs: Moments, outputs: Moments, *, scale_inputs: bool, shared: bool, is_real: np.ndarray | None = None
    ) -> Scaling:
        """Return the scaling of data with these moments; options as for `of`.

        `is_real` (p,) are the outputs that may be centered and scaled, all by default. If outputs share a scale, none is scaled
        unless all may be.
        """
        offset, scale = _offset_and_scale(outputs, shared)
        if is_real is not None and not is_real.all():
            may = is_real & (not shared)
            offset, scale = np.where(may, offset, 0.0), np.where(may, scale, 1.0)
        if scale_inputs:
            return cls(*_offset_and_scale(inputs, shared), offset, scale)
        unscaled = cls.none(len(inputs.mean), len(outputs.mean))
        return cls(unscaled.input_offset, unscaled.input_scale, offset, scale)

    def without_constant_inputs(self, inputs: Moments) -> Scaling:
        """Return a scaling to the inputs that vary, of data with these moments; to all if none varies."""
        return self if inputs.is_constant.all() else replace(self, unused_inputs=np.flatnonzero(inputs.is_constant))

    @property
    def used_inputs(self) -> np.ndarray:
        """Indices of the inputs of the model."""
        return np.delete(np.arange(len(self.input_scale)), self.unused_inputs)

    def inputs(self, X: np.ndarray) -> Tensor:
        """Return the inputs of the model in standardized units, float64."""
        scaled = (np.asarray(X, dtype=np.float64) - self.input_offset) / self.input_scale
        return torch.from_numpy(np.delete(scaled, self.unused_inputs, axis=-1) if len(self.unused_inputs) else scaled)

    def outputs(self, Y: np.ndarray) -> Tensor:
        """Return Y in standardized units, float64."""
        return torch.from_numpy((np.asarray(Y, dtype=np.float64) - self.output_offset) / self.output_scale)

    def variances(self, noise: np.ndarray) -> Tensor:
        """Return variances of outputs (…, p) in standardized units."""
        return torch.from_numpy(np.asarray(noise, dtype=np.float64) / self.output_scale**2)

    def original(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return standardized X (n, d) and Y (n, p) in original units."""
        inputs = np.zeros((len(X), len(self.input_scale)))
        inputs[:, self.used_inputs] = X
        return inputs * self.input_scale + self.input_offset, Y * self.output_scale + self.output_offset

    def mean(self, mean: Tensor) -> np.ndarray:
        """Return a mean (…, p) in original units."""
        return mean.detach().numpy() * self.output_scale + self.output_offset

    def std(self, std: Tensor) -> np.ndarray:
        """Return a standard deviation (…, p) in original units."""
        return std.detach().numpy() * self.output_scale

    def cov(self, cov: Tensor) -> np.ndarray:
        """Return a covariance (…, k·p, k·p), data-major, in original units."""
        scale = np.tile(self.output_scale, cov.shape[-1] // len(self.output_scale))
        with np.errstate(over="ignore"):  # of outputs beyond 1e154 it is infinite
            return cov.detach().numpy() * scale[:, None] * scale

    def log_density(self, log_density: float, num_observed: np.ndarray) -> float:
        """Return a log density of `num_observed` (p,) observed entries in original units."""
        return log_density - float(num_observed @ np.log(self.output_scale))


def _offset_and_scale(moments: Moments, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column; one deviation for all if `shared`."""
    offset, scale, largest = moments.mean, np.where(moments.is_constant, 0.0, moments.std), moments.largest
    if shared and scale.any():
        unit = scale.max()  # so that squares neither overflow nor underflow
        scale = np.full_like(scale, unit * np.sqrt(np.mean((scale / unit) ** 2)))
    # a constant column is scaled by its absolute value
    return offset, np.where(scale > 0, scale, np.where(largest > 0, largest, 1.0))


class ScaledDraws(Sequence):
    """Functions X (m, d) ↦ (m, p), or (m,) if Y was one-dimensional, in original units; calling it evaluates all at once.

    `about` are the last arguments of `points`.
    """

    def __init__(self, draws: FunctionDraws, scaling: Scaling, is_flat: bool, *about):
        self._draws, self._scaling, self._is_flat, self._about = draws, scaling, is_flat, about

    def __len__(self) -> int:
        return len(self._draws)

    def __call__(self, X) -> np.ndarray:
        return self._evaluate(self._draws, X)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return partial(self._evaluate, self._draws[index])

    def _evaluate(self, draw, X) -> np.ndarray:
        values = self._scaling.mean(draw(self._scaling.inputs(points(X, self._scaling, *self._about))))
        return values[..., 0] if self._is_flat else values


def points(X, scaling: Scaling, times: Origins | None, lengthscale: float) -> np.ndarray:
    """Return X as an array (m, d) in original units, with dates in days since `times`; `lengthscale` is the largest one."""
    X, found = to_days(as_array(X), times)
    X, d = np.asarray(X, dtype=np.float64), len(scaling.input_scale)
    X = X[:, None] if X.ndim == 1 else X
    if X.ndim != 2 or X.shape[1] != d:
        raise InputError(f"X must have shape (m, {d}), got {X.shape}.")
    check_kinds(found, times, range(d), "X")
    check_finite(X, range(d))
    check_reach(X, range(d), lengthscale)
    return X


def in_original_units(name: str, value, structure: str, scaling: Scaling) -> np.ndarray:
    """Convert a hyperparameter of a named structure to original units.

    The outputscale of a field kernel is multiplied by the squared input scale, since the field is a derivative with respect to
    standardized inputs. A noise shared by standardized outputs becomes one per output. `name` is that of
    `ovkgp.inference.hyperparameters`, or "noise", "mean" or a parameter of a likelihood ("scale", "scale_2" for output 2);
    `structure` is "given" for a kernel object.
    """
    value = value.detach().numpy() if torch.is_tensor(value) else np.asarray(value)
    path, scale, input_scale = name.split("."), scaling.output_scale, scaling.input_scale[scaling.used_inputs]
    if path[-1] == "noise":
        return _noise(value, scale)
    if name == "mean":
        return value * scale + scaling.output_offset
    if name == "scale":  # of a likelihood
        return value * (scale if value.ndim else scale[0])
    if of_one := re.fullmatch(r"(scale|noise)_(\d+)", name):  # of the likelihood of one output
        return value * scale[int(of_one[2])] ** (2 if of_one[1] == "noise" else 1)
    if structure == "given":  # in original units
        return value
    if path[-1] == "lengthscale":  # one lengthscale of standardized inputs is one per input in original units
        return value * (input_scale[0] if np.ptp(input_scale) == 0 else input_scale)
    if structure in ("auto", "independent") and path[-1] in ("variance", "constant"):  # of a linear and a constant term
        unit = input_scale if path[-1] == "variance" else 1.0  # a slope; the square of a large unit would overflow
        return value * (scale[int(path[0])] / unit) ** 2
    if path[-1] == "output_matrix":
        return value * np.outer(scale, scale)
    if path[-1] != "outputscale":
        return value
    if structure in ("auto", "independent"):
        return value * scale[int(path[0])] ** 2
    return value * (scale[0] * input_scale[0]) ** 2


def draws_in_original_units(name: str, draws: np.ndarray, structure: str, scaling: Scaling) -> np.ndarray:
    """Convert draws (chains, draws, *shape) of a hyperparameter to original units."""
    flat = draws.reshape(-1, *draws.shape[2:])
    moved = np.stack([in_original_units(name, value, structure, scaling) for value in flat])
    return moved.reshape(*draws.shape[:2], *moved.shape[1:])


def named_structure(estimator) -> str:
    """Return the name of the structure; "given" if a kernel object was passed, whose values are in original units."""
    by_name = isinstance(estimator.kernel, str) and isinstance(estimator.base_kernel, str)
    return estimator.kernel_ if by_name else "given"


def _noise(value: np.ndarray, scale: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the variance of outputs beyond 1e154 is infinite
        if value.ndim == 2:
            return value * np.outer(scale, scale)
        return value * (np.square(scale[0]) if value.ndim == 0 and np.all(scale == scale[0]) else scale**2)


def values_in_units(estimator, group: xarray.Dataset) -> dict[str, np.ndarray]:
    """Return hyperparameter draws by name, (chains, draws, *shape), in original units."""
    structure, scaling = named_structure(estimator), estimator.scaling_
    return {
        str(name): draws_in_original_units(str(name), group[name].values, structure, scaling)
        for name in group.data_vars
    }
