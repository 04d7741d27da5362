"""From the user's units to units in which every column is of order one, and back.

Each output is centred and scaled by its own standard deviation. Where the kernel ties outputs to each other or to the
axes of the inputs (vector fields, known output matrices), all outputs share one scale and all inputs another: anything
else would destroy the property that the kernel was chosen for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.moments import Moments


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

    def log_density(self, log_density: float, num_seen: np.ndarray) -> float:
        """A log density of `num_seen` (p,) observed entries in the user's units."""
        return log_density - float(num_seen @ np.log(self.output_scale))


def _offset_and_scale(moments: Moments, shared: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; one deviation for all where `shared`."""
    offset, scale, largest = moments.mean, moments.std, moments.largest
    scale = np.where(scale > np.finfo(np.float64).eps * 16 * np.abs(offset), scale, 0.0)
    if shared and scale.any():
        unit = scale.max()  # squares of what is left neither overflow nor vanish
        scale = np.full_like(scale, unit * np.sqrt(np.mean((scale / unit) ** 2)))
    # A column without spread says of its scale no more than its size.
    return offset, np.where(scale > 0, scale, np.where(largest > 0, largest, 1.0))
