"""Validated data: inputs X (n, d), outputs Y (n, p) with NaN if missing, and optional known noise variances (n, p).

Rows without observed outputs are dropped.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError

CHUNK_ROWS = 1 << 20  # rows whose finiteness is checked together, so that a check makes no copy as large as the data


@dataclass(frozen=True, eq=False)
class Observations:
    """X (n, d), Y (n, p) with NaN if missing, and known variances (n, p) or None; `validate_observations` makes one."""

    X: Tensor
    Y: Tensor
    noise: Tensor | None = None
    kept: Tensor | None = None  # mask of these rows among those that were given; None if no row was dropped

    @property
    def num_rows(self) -> int:
        return self.Y.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.Y.shape[1]

    @cached_property
    def observed(self) -> Tensor:
        """Mask of the observed entries (n, p)."""
        return ~torch.isnan(self.Y)

    @cached_property
    def is_complete(self) -> bool:
        """Whether no output is missing."""
        return bool(self.observed.all())

    @cached_property
    def num_observed(self) -> int:
        """Number of observed entries."""
        return int(self.observed.sum())

    @property
    def num_missing(self) -> int:
        """Number of missing entries."""
        return self.Y.numel() - self.num_observed

    def double(self) -> Observations:
        """Convert to float64."""
        noise = None if self.noise is None else self.noise.double()
        return replace(self, X=self.X.double(), Y=self.Y.double(), noise=noise)

    def clone(self) -> Observations:
        """Copy the data, in row-major order, so that results do not depend on the order of the original."""
        parts = {"X": self.X, "Y": self.Y, "noise": self.noise}
        copies = {k: None if t is None else t.clone(memory_format=torch.contiguous_format) for k, t in parts.items()}
        return replace(self, **copies)

    def rows(self, index) -> Observations:
        """Select rows."""
        return Observations(self.X[index], self.Y[index], None if self.noise is None else self.noise[index])

    def followed_by(self, other: Observations) -> Observations:
        """Append the rows of other data."""
        noise = None if self.noise is None else torch.cat([self.noise, other.noise])
        return Observations(torch.cat([self.X, other.X]), torch.cat([self.Y, other.Y]), noise)

    def output(self, index: int) -> Observations:
        """Select one output, on the rows where it is observed."""
        rows = self.observed[:, index]
        noise = None if self.noise is None else self.noise[rows][:, [index]]
        return Observations(self.X[rows], self.Y[rows][:, [index]], noise, self._mask_kept(rows))

    def chunks(self, num_rows: int) -> Iterator[Observations]:
        """Iterate over chunks of at most `num_rows` rows, in float64, without rows that have no observed outputs."""
        for start in range(0, self.num_rows, num_rows):
            chunk = self.rows(slice(start, start + num_rows)).double()
            yield chunk if chunk.is_complete else chunk.observed_rows()

    def observed_rows(self) -> Observations:
        """Drop the rows without observed outputs."""
        kept = self.observed.any(1)
        return self if bool(kept.all()) else replace(self.rows(kept), kept=self._mask_kept(kept))

    def _mask_kept(self, rows: Tensor) -> Tensor:
        """Return the mask of some of these rows among those that were given."""
        return rows if self.kept is None else self.kept.masked_scatter(self.kept, rows)


def validate_observations(X, Y, num_outputs: int, noise=None, *, every_output: bool = True) -> Observations:
    """Validate X (n, d) or (n,), Y (n, p) or (n,) and known variances of the shape of Y, without a copy if possible.

    Unless `every_output`, outputs may have no observed values, and all of them may be missing.
    """
    if Y is None:
        raise InputError("Y must be given together with X. Only statistics are passed without Y.")
    X, Y = validate_inputs(X), as_floating(Y, "Y")
    Y = Y.unsqueeze(-1) if Y.dim() == 1 and num_outputs == 1 else Y
    if Y.dim() != 2 or Y.shape[1] != num_outputs:
        raise InputError(
            f"Y has shape {tuple(Y.shape)}, expected (n, {num_outputs}) with one column per output of the kernel."
        )
    if len(X) != len(Y):
        raise InputError(f"X and Y must have equally many rows, got {len(X)} and {len(Y)}.")
    _reject_entries(Y, torch.isinf, "Y must not contain infinity. Mark missing outputs by NaN.")
    data = Observations(X, Y, None if noise is None else _validate_known_noise(noise, Y)).observed_rows()
    if every_output and data.num_rows == 0:
        reason = "every entry of Y is missing (NaN)" if len(Y) else "X and Y have no rows"
        raise InputError(f"Y must have at least one observed value, but {reason}.")
    unobserved = [] if not every_output or data.is_complete else (~data.observed.any(0)).nonzero().flatten().tolist()
    if unobserved:
        raise InputError(
            f"Y has no observed values for output {', '.join(map(str, unobserved))} (all NaN). Drop the column or add data."
        )
    return data


def validate_inputs(X, num_dims: int | None = None, name: str = "X") -> Tensor:
    """Convert X to a finite floating (n, d) tensor; a vector is one column."""
    X = as_floating(X, name)
    X = X.unsqueeze(-1) if X.dim() == 1 else X
    if X.dim() != 2 or X.shape[1] == 0:
        raise InputError(f"{name} must have shape (n, d) with d ≥ 1, got {tuple(X.shape)}.")
    if num_dims is not None and X.shape[1] != num_dims:
        raise InputError(
            f"{name} has {X.shape[1]} columns, expected {num_dims} as in the model. Pass one point as one row, [[…]]."
        )
    _reject_entries(X, lambda t: ~torch.isfinite(t), f"{name} must not contain NaN or infinity.")
    return X


def validate_point(point, num_dims: int, name: str) -> Tensor:
    """Convert a single point to a (1, d) tensor in float64."""
    message = f"{name} must be one finite point with {num_dims} coordinates, got {point}."
    try:
        row = as_floating(point, name).double().reshape(1, -1)
    except InputError as error:
        raise InputError(message) from error
    if row.shape[1] != num_dims or not bool(torch.isfinite(row).all()):
        raise InputError(message)
    return row


def as_floating(values, name: str) -> Tensor:
    """Convert to a real floating tensor, as a view if possible; integers become float64 and masked entries NaN."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.astype(np.float64).filled(np.nan)
    try:
        tensor = values if torch.is_tensor(values) else _from_array(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if tensor.is_complex():
        raise InputError(f"{name} must be real, got complex numbers.")
    return tensor if tensor.is_floating_point() else tensor.double()


def _from_array(array: np.ndarray) -> Tensor:
    if any(stride < 0 for stride in array.strides):  # torch cannot read backwards
        array = array.copy()
    with warnings.catch_warnings():  # arrays in read-only memory are fine, since they are never written to
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
        return torch.from_numpy(array)


def _validate_known_noise(noise, Y: Tensor) -> Tensor:
    noise = as_floating(noise, "noise")
    noise = noise.unsqueeze(-1) if noise.dim() == 1 and Y.shape[1] == 1 else noise
    if noise.shape != Y.shape:
        raise InputError(
            f"noise has shape {tuple(noise.shape)}, expected {tuple(Y.shape)} with a known variance for each entry of Y. Pass noise that is equal for all rows to the constructor."
        )
    observed = ~torch.isnan(Y)
    if not bool((torch.isfinite(noise) & (noise > 0))[observed].all()):
        raise InputError("noise must be a positive, finite variance for each observed entry of Y.")
    return torch.where(observed, noise, 1.0)


def _reject_entries(values: Tensor, is_bad, message: str) -> None:
    for start in range(0, len(values), CHUNK_ROWS):
        bad = is_bad(values.detach()[start : start + CHUNK_ROWS])
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise InputError(f"{message} The first such entry is at row {start + row}, column {column}.")
