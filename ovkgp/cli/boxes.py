"""The box around the inputs of a table, in one pass over it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ovkgp.datasets import TableStream
from ovkgp.exceptions import OptionError


class Box(NamedTuple):
    """Rows, inputs and outputs of a table, and the diagonal of the box around its inputs, each in its standard deviations."""

    num_rows: int
    num_dims: int
    num_outputs: int | None
    diagonal: float


def box_of(path: str, inputs: str | None, outputs: str | None, separator: str) -> Box:
    """Look at a table.

    Args:
        path: the file.
        inputs: names of columns.
        outputs: names of columns, a number of outputs, or None where it is not known.
        separator: of a text table.

    Cost: one pass, memory for a chunk.
    """
    if inputs is None:
        raise OptionError("name the input columns of the table with --inputs.")
    is_number = outputs is None or outputs.strip().isdecimal()
    rows = TableStream(
        Path(path).expanduser(), inputs, None if is_number else outputs, bad="error", separator=separator
    )
    count, origin, total, squares, low, high = 0, None, 0.0, 0.0, np.inf, -np.inf
    for X, _ in rows:
        origin = X[0] if origin is None else origin  # sums of squares far from zero would lose their digits
        count, total, squares = count + len(X), total + (X - origin).sum(0), squares + np.square(X - origin).sum(0)
        low, high = np.minimum(low, X.min(0)), np.maximum(high, X.max(0))
    std = np.sqrt(np.maximum(squares / count - np.square(total / count), 0.0))
    spread = np.divide(high - low, std, out=np.zeros_like(std), where=std > 0)  # a constant input has no extent
    number = rows.num_outputs if not is_number else None if outputs is None else int(outputs)
    return Box(count, rows.num_inputs, number, float(np.linalg.norm(spread)))
