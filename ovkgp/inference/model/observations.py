"""Inputs, outputs and known noise, checked once at the door.

X is (n, d) and finite, Y is (n, p) with NaN where an output is missing, and `noise`, where it is known, is (n, p) with the
variance of each observed entry. Rows in which nothing is observed are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError

CHUNK_CHECKED = 1 << 20
"""Rows whose finiteness is checked together, so that a check makes no copy as large as the data."""


@dataclass(frozen=True, eq=False)
class Observations:
    """What was seen: X (n, d), Y (n, p) with NaN where nothing was, and known variances (n, p) or None.

    Use `observations` to make one from unchecked data.
    """

    X: Tensor
    Y: Tensor
    noise: Tensor | None = None

    @property
    def num_rows(self) -> int:
        return self.Y.shape[0]

    @property
    def num_outputs(self) -> int:
        return self.Y.shape[1]

    @cached_property
    def observed(self) -> Tensor:
        """Which entries were observed, (n, p)."""
        return ~torch.isnan(self.Y)

    @cached_property
    def is_complete(self) -> bool:
        """Whether no output is missing anywhere."""
        return bool(self.observed.all())

    @cached_property
    def num_observed(self) -> int:
        """The number of observed entries."""
        return int(self.observed.sum())

    def double(self) -> Observations:
        """The same in float64."""
        return Observations(self.X.double(), self.Y.double(), None if self.noise is None else self.noise.double())

    def clone(self) -> Observations:
        """The same, in memory of its own."""
        return Observations(self.X.clone(), self.Y.clone(), None if self.noise is None else self.noise.clone())

    def rows(self, index) -> Observations:
        """Some of the rows."""
        return Observations(self.X[index], self.Y[index], None if self.noise is None else self.noise[index])

    def output(self, index: int) -> Observations:
        """One output alone, where it was observed."""
        rows = self.observed[:, index]
        noise = None if self.noise is None else self.noise[rows][:, [index]]
        return Observations(self.X[rows], self.Y[rows][:, [index]], noise)

    def chunks(self, num_rows: int) -> Iterator[Observations]:
        """Consecutive rows, at most `num_rows` at a time, in float64, without rows in which nothing is seen."""
        for start in range(0, self.num_rows, num_rows):
            chunk = self.rows(slice(start, start + num_rows)).double()
            yield chunk if chunk.is_complete else chunk.observed_rows()

    def observed_rows(self) -> Observations:
        """Without the rows in which nothing is seen."""
        kept = self.observed.any(1)
        return self if bool(kept.all()) else self.rows(kept)


def observations(X, Y, num_outputs: int, noise=None, *, every_output: bool = True) -> Observations:
    """Check data and bring them into shape, without a copy where none is needed.

    Args:
        X: inputs (n, d), or (n,) for one column; an array or a tensor.
        Y: outputs (n, p) with NaN where missing; (n,) for p = 1.
        num_outputs: p.
        noise: known variances (n, p), or (n,) for p = 1, positive wherever Y is observed.
        every_output: whether each output must be observed at least once.
    """
    if Y is None:
        raise InputError("Y is missing: give X and Y (statistics alone come without).")
    X, Y = inputs(X), as_floating(Y, "Y")
    Y = Y.unsqueeze(-1) if Y.dim() == 1 and num_outputs == 1 else Y
    if Y.dim() != 2 or Y.shape[1] != num_outputs:
        raise InputError(
            f"Y must have shape (n, {num_outputs}), one column for each output of the kernel; got {tuple(Y.shape)}."
        )
    if len(X) != len(Y):
        raise InputError(f"X has {len(X)} rows and Y has {len(Y)}; each row of X needs its outputs.")
    _refuse(Y, torch.isinf, "Y holds infinity; a missing output is NaN.")
    data = Observations(X, Y, None if noise is None else _known_noise(noise, Y)).observed_rows()
    if data.num_rows == 0:
        why = "every entry of Y is missing (NaN)" if len(Y) else "X and Y have no rows"
        raise InputError(f"there is nothing to learn from: {why}.")
    unobserved = [] if not every_output or data.is_complete else (~data.observed.any(0)).nonzero().flatten().tolist()
    if unobserved:
        raise InputError(
            f"nobody observed output {', '.join(map(str, unobserved))} of Y (all NaN): leave that column out, or add data."
        )
    return data


def inputs(X, num_dims: int | None = None, name: str = "X") -> Tensor:
    """X as a finite floating (n, d) tensor; a vector is one column."""
    X = as_floating(X, name)
    X = X.unsqueeze(-1) if X.dim() == 1 else X
    if X.dim() != 2 or X.shape[1] == 0:
        raise InputError(f"{name} must have shape (n, d) with d ≥ 1, got {tuple(X.shape)}.")
    if num_dims is not None and X.shape[1] != num_dims:
        raise InputError(
            f"{name} has {X.shape[1]} columns; the model was made with {num_dims}. (One point is one row, [[…]].)"
        )
    _refuse(X, lambda t: ~torch.isfinite(t), f"{name} holds NaN or infinity; only outputs may be missing.")
    return X


def one_point(point, num_dims: int, name: str) -> Tensor:
    """A single point as a (1, d) tensor in float64."""
    message = f"{name} must be one finite point with {num_dims} coordinates, got {point}."
    try:
        row = as_floating(point, name).double().reshape(1, -1)
    except InputError as error:
        raise InputError(message) from error
    if row.shape[1] != num_dims or not bool(torch.isfinite(row).all()):
        raise InputError(message)
    return row


def as_floating(values, name: str) -> Tensor:
    """Values as a real floating tensor, a view of them where possible; whole numbers become float64, masked ones NaN."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.astype(np.float64).filled(np.nan)
    try:
        tensor = values if torch.is_tensor(values) else _from_array(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}") from error
    if tensor.is_complex():
        raise InputError(f"{name} is complex; real numbers are wanted.")
    return tensor if tensor.is_floating_point() else tensor.double()


def _from_array(array: np.ndarray) -> Tensor:
    if any(stride < 0 for stride in array.strides):  # torch cannot read backwards
        array = array.copy()
    with warnings.catch_warnings():  # of read-only memory, such as a table's or a file's: nobody writes to it here
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ", category=UserWarning)
        return torch.from_numpy(array)


def _known_noise(noise, Y: Tensor) -> Tensor:
    noise = as_floating(noise, "noise")
    noise = noise.unsqueeze(-1) if noise.dim() == 1 and Y.shape[1] == 1 else noise
    if noise.shape != Y.shape:
        raise InputError(
            f"known noise is a variance for each entry of Y and has its shape {tuple(Y.shape)}; got "
            f"{tuple(noise.shape)}. A noise that is alike at all points goes into the constructor."
        )
    observed = ~torch.isnan(Y)
    if not bool((torch.isfinite(noise) & (noise > 0))[observed].all()):
        raise InputError("known noise must be a positive, finite variance wherever Y is observed.")
    return torch.where(observed, noise, 1.0)


def _refuse(values: Tensor, is_bad, message: str) -> None:
    for start in range(0, len(values), CHUNK_CHECKED):
        bad = is_bad(values.detach()[start : start + CHUNK_CHECKED])
        if bool(bad.any()):
            row, column = bad.nonzero()[0].tolist()
            raise InputError(f"{message} (First such entry: row {start + row}, column {column}.)")
