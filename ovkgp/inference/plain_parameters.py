"""The variables u and the values θ of the parameters that they stand for, without modules: θ(u), dθ/du and log |dθ/du|.

Beside the logarithms and sizes of `ParameterVector` an interval has θ = l + (h − l) / (1 + e^{−u}). A `Reference` finds one
parameter in the vector of all θ, and adds its derivatives to theirs; what is fixed is a constant. A *piece* has `matrix(θ)`,
which gives a matrix and a function that carries derivatives by it back to those by θ; `Scaled` multiplies any.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gpytorch.constraints import Interval
from scipy.special import expit
from torch import Tensor

from ovkgp.inference.parameters import ParameterVector

Back = Callable[[np.ndarray, np.ndarray], None]
"""Takes the derivatives by a value and the vector of those by θ, to which it adds."""


class NotPlain(Exception):
    """A part of the model that is not in the tables: take the modules."""


class Reference:
    """One parameter: a piece of θ, or a constant.

    Args:
        shape: of the parameter.
        piece: where it is in θ; None for a constant.
        constant: its value, where it is one.
    """

    def __init__(self, shape: tuple[int, ...], piece: slice | None, constant: np.ndarray | None = None):
        self.shape, self.piece, self.constant = tuple(shape), piece, constant

    def value(self, theta: np.ndarray) -> np.ndarray:
        """The parameter, of its own shape."""
        return self.constant if self.piece is None else theta[self.piece].reshape(self.shape)

    def number(self, theta: np.ndarray) -> float:
        """The parameter where it is one number."""
        return self.constant.item() if self.piece is None else theta[self.piece.start]

    def add(self, out: np.ndarray, by_value) -> None:
        """Add derivatives by the parameter to those by θ."""
        if self.piece is not None:
            out[self.piece] += np.ravel(by_value)


class Scaled:
    """v A, for a matrix A that a piece gives.

    Args:
        scale: v, one number.
        inner: the piece.
    """

    def __init__(self, scale: Reference, inner):
        self.scale, self.inner = scale, inner

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        matrix, inner_back = self.inner.matrix(theta)
        scale = self.scale.number(theta)

        def back(G: np.ndarray, out: np.ndarray) -> None:
            self.scale.add(out, np.vdot(G, matrix))
            inner_back(scale * G, out)

        return scale * matrix, back


class PlainVector:
    """θ of all trained parameters, flat and in the order of a `ParameterVector`.

    Args:
        vector: whose entries these are, variables that it leaves out included.

    Cost: O(k) a call for k variables.

    Raises:
        NotPlain: a parameter has a constraint whose transform is not in the table.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.parameters import ParameterVector
        >>> from ovkgp.inference.plain_parameters import PlainVector
        >>> theta, slope, *_ = PlainVector(ParameterVector(RBFKernel().double())).values(np.array([1.0]))
        >>> theta.round(4).tolist(), slope.round(4).tolist()
        ([2.7183], [2.7183])
    """

    def __init__(self, vector: ParameterVector):
        self.vector, size = vector, len(vector.kept)
        self.is_log, self.is_interval = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
        self.low, self.length, self.size = np.zeros(size), np.ones(size), np.ones(size)
        self.pieces = {}
        for entry in vector.entries:
            self.pieces[id(entry.parameter)] = entry.piece
            self._note(entry)
        self.all_log = bool(self.is_log.all())

    def _note(self, entry) -> None:
        piece, constraint = entry.piece, entry.constraint
        if entry.is_log:
            self.is_log[piece], self.low[piece] = True, entry.lower.reshape(-1).numpy()
        elif constraint is None:
            self.size[piece] = entry.size.reshape(-1).numpy()
        elif _is_sigmoid(constraint):
            low, high = (end.double().expand(entry.parameter.shape).reshape(-1).numpy() for end in constraint)
            self.is_interval[piece], self.low[piece], self.length[piece] = True, low, high - low
        else:
            raise NotPlain(f"the constraint {constraint} of {entry.name}")

    def reference(self, parameter: Tensor, constraint: Interval | None) -> Reference:
        """Where a parameter is; its constrained value, where it is not trained."""
        if id(parameter) in self.pieces:
            return Reference(parameter.shape, self.pieces[id(parameter)])
        raw = parameter.detach().double()
        value = raw if constraint is None else constraint.transform(raw)
        return Reference(parameter.shape, None, value.detach().cpu().numpy().copy())

    def values(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """θ and dθ/du of all entries, Σ log |dθ/du| of those that u (len,) does not leave out, and its derivative in all."""
        full = self.vector.spread(u)
        if self.all_log:
            grown = np.exp(full)
            return self.low + grown, grown, u.sum(), np.ones(len(full))
        grown = np.exp(np.where(self.is_log, full, 0.0))
        theta = np.where(self.is_log, self.low + grown, full * self.size)
        slope = np.where(self.is_log, grown, self.size)
        log_slope, by_slope = np.where(self.is_log, full, np.log(self.size)), self.is_log.astype(np.float64)
        if self.is_interval.any():
            part = self.is_interval
            share, rest = expit(full[part]), expit(-full[part])
            theta[part], slope[part] = self.low[part] + self.length[part] * share, self.length[part] * share * rest
            log_slope[part], by_slope[part] = np.log(slope[part]), rest - share
        return theta, slope, self.kept(log_slope).sum(), by_slope

    def kept(self, gradient: np.ndarray) -> np.ndarray:
        """The entries that the vector does not leave out."""
        return gradient[self.vector.kept]


def _is_sigmoid(constraint: Interval) -> bool:
    ends = all(bool(torch.isfinite(end).all()) for end in constraint)
    return ends and type(constraint) is Interval and constraint._transform is torch.sigmoid
