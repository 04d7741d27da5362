"""What stands between the scalar kernels and the data, as plain functions: output matrices, noise and mean.

Each piece gives its value at θ and takes derivatives by it back to those by θ; derivatives by a symmetric matrix need not
be symmetric, since only their symmetric part counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gpytorch.constraints import Interval
from scipy.special import expit
from torch import Tensor

from ovkgp.inference.model.mean_noise import OutputMean, OutputNoise, PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.kernels import FreeMatrix, FullMatrix, MeanRegularizedMatrix, OutputMatrix

Back = Callable[[np.ndarray, np.ndarray], None]
"""Takes the derivatives by a value and the vector of those by θ, to which it adds."""


class NoAnalyticForm(Exception):
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


class NumpyVector:
    """θ of all trained parameters, flat and in the order of a `ParameterVector`.

    Args:
        vector: whose entries these are, variables that it leaves out included.

    Cost: O(k) a call for k variables.

    Raises:
        NoAnalyticForm: a parameter has a constraint whose transform is not in the table.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.numpy_values import NumpyVector
        >>> theta, slope, *_ = NumpyVector(ParameterVector(RBFKernel().double())).values(np.array([1.0]))
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
            raise NoAnalyticForm(f"the constraint {constraint} of {entry.name}")

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


class FreeOutputs:
    """Γ = W Wᵀ + diag v.

    Args:
        loadings: W (p, rank).
        diagonal: v (p,).
    """

    def __init__(self, loadings: Reference, diagonal: Reference):
        self.loadings, self.diagonal = loadings, diagonal

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        W = self.loadings.value(theta)
        matrix = W @ W.T
        matrix.flat[:: len(matrix) + 1] += self.diagonal.value(theta)

        def back(A: np.ndarray, out: np.ndarray) -> None:
            self.loadings.add(out, (A + A.T) @ W)
            self.diagonal.add(out, A.diagonal())

        return matrix, back


class CholeskyOutputs:
    """L Lᵀ with the logarithm of the diagonal of L and what is below it: a `FullMatrix`, or a full noise.

    Args:
        log_scale: log L_ii (p,).
        lower: what is below, row by row (p(p−1)/2,), or in a (p, p) matrix of which nothing else is looked at.
    """

    def __init__(self, log_scale: Reference, lower: Reference):
        self.log_scale, self.lower, self.num_outputs = log_scale, lower, log_scale.shape[0]
        self.below = np.tril_indices(self.num_outputs, -1)
        self.places = self.below if len(lower.shape) == 2 else slice(None)

    def chol(self, theta: np.ndarray) -> np.ndarray:
        """L (p, p)."""
        L = np.diag(np.exp(self.log_scale.value(theta)))
        L[self.below] = self.lower.value(theta)[self.places]
        return L

    def add(self, out: np.ndarray, L: np.ndarray, by_chol: np.ndarray) -> None:
        """Take derivatives by L back."""
        self.log_scale.add(out, by_chol.diagonal() * L.diagonal())
        by_lower = np.zeros(self.lower.shape)
        by_lower[self.places] = by_chol[self.below]
        self.lower.add(out, by_lower)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        L = self.chol(theta)

        def back(A: np.ndarray, out: np.ndarray) -> None:
            self.add(out, L, (A + A.T) @ L)

        return L @ L.T, back


class CoupledOutputs:
    """Γ = c 11ᵀ + (1 − c) I.

    Args:
        coupling: c, one number.
        num_outputs: p.
    """

    def __init__(self, coupling: Reference, num_outputs: int):
        self.coupling, self.eye = coupling, np.eye(num_outputs)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        c = self.coupling.number(theta)

        def back(A: np.ndarray, out: np.ndarray) -> None:
            self.coupling.add(out, A.sum() - np.trace(A))

        return c + (1 - c) * self.eye, back


class ConstantOutputs:
    """A matrix that nobody trains.

    Args:
        value: (p, p).
    """

    def __init__(self, value: np.ndarray):
        self.value = value

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        return self.value, _nothing


class Variances:
    """A diagonal noise exp(2s): one variance, or one for each output; `index` takes that of one output alone.

    Args:
        log_scale: s, () or (p,).
        num_outputs: p.
        index: of an output.
    """

    def __init__(self, log_scale: Reference, num_outputs: int, index: int | None = None):
        self.log_scale, self.num_outputs, self.index = log_scale, num_outputs, index

    def variances(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        """(p,), or (1,) of one output."""
        own = np.exp(2 * self.log_scale.value(theta))
        whole = np.broadcast_to(own, (self.num_outputs,))
        value = whole if self.index is None else whole[[self.index]]

        def back(by_variances: np.ndarray, out: np.ndarray) -> None:
            self.log_scale.add(out, 2 * own * self._spread(by_variances))

        return value, back

    def _spread(self, by_variances: np.ndarray) -> np.ndarray:
        if self.log_scale.shape == ():
            return by_variances.sum()
        if self.index is None:
            return by_variances
        spread = np.zeros(self.num_outputs)
        spread[self.index] = by_variances.item()
        return spread

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        value, inner_back = self.variances(theta)
        return np.diag(value), lambda A, out: inner_back(A.diagonal(), out)


class BasisMean:
    """h(x)ᵀβ; `index` takes the column of one output alone.

    Args:
        basis: h at the rows of the data (n, b).
        parts: constant (p,) and slopes (d, p), as far as there are such.
        index: of an output.
    """

    def __init__(self, basis: np.ndarray, parts: list[Reference], index: int | None = None):
        self.basis, self.parts, self.index = basis, parts, index

    def coefficients(self, theta: np.ndarray) -> np.ndarray:
        """β (b, p), or (b, 1) of one output."""
        whole = np.concatenate([np.atleast_2d(part.value(theta)) for part in self.parts])
        return whole if self.index is None else whole[:, [self.index]]

    def values(self, theta: np.ndarray) -> np.ndarray | float:
        """The mean (n, p) at the rows."""
        return self.basis @ self.coefficients(theta) if self.parts else 0.0

    def back(self, by_values: np.ndarray, out: np.ndarray) -> None:
        """Take derivatives (n, p) by the mean back."""
        if self.parts:
            self.back_coefficients(self.basis.T @ by_values, out)

    def back_coefficients(self, by_coefficients: np.ndarray, out: np.ndarray) -> None:
        """Take derivatives (b, p) by β back."""
        if self.index is not None:
            spread = np.zeros((len(by_coefficients), self.parts[0].shape[-1]))
            spread[:, [self.index]] = by_coefficients
            by_coefficients = spread
        for row, part in enumerate(self.parts):
            part.add(out, by_coefficients[0] if row == 0 else by_coefficients[1:])


class KnownMean:
    """A mean that nobody trains.

    Args:
        value: (n, p).
    """

    def __init__(self, value: np.ndarray):
        self.value = value

    def values(self, theta: np.ndarray) -> np.ndarray:
        return self.value

    def back(self, by_values: np.ndarray, out: np.ndarray) -> None:
        """Nothing depends on θ."""


def numpy_outputs(module: OutputMatrix, vector: NumpyVector):
    """The piece of an output matrix.

    Raises:
        NoAnalyticForm: it is trained, and not in the table.
    """
    if len(module.batch_shape):
        raise NoAnalyticForm("a batch of output matrices")
    if type(module) is FreeMatrix:
        diagonal = vector.reference(module.raw_diagonal, module.raw_diagonal_constraint)
        return FreeOutputs(vector.reference(module.loadings, None), diagonal)
    if type(module) is FullMatrix:
        return CholeskyOutputs(vector.reference(module.log_scale, None), vector.reference(module.lower, None))
    if type(module) is MeanRegularizedMatrix:
        coupling = vector.reference(module.raw_coupling, module.raw_coupling_constraint)
        return CoupledOutputs(coupling, module.num_outputs)
    if any(parameter.requires_grad for parameter in module.parameters()):
        raise NoAnalyticForm(f"the output matrix {type(module).__name__}")
    return ConstantOutputs(module().detach().double().cpu().numpy())


def numpy_noise(noise: OutputNoise, vector: NumpyVector, index: int | None = None) -> Variances | CholeskyOutputs:
    """The piece of a noise that is alike at all rows; of one output alone where there is an index."""
    if type(noise) is not OutputNoise:
        raise NoAnalyticForm(f"the noise {type(noise).__name__}")
    log_scale = vector.reference(noise.log_scale, None)
    if noise.is_diagonal:
        return Variances(log_scale, noise.num_outputs, index)
    return CholeskyOutputs(log_scale, vector.reference(noise.lower, None))


def numpy_mean(mean: OutputMean, data: Observations, vector: NumpyVector, index: int | None = None):
    """The piece of a mean at the rows of some data; of one output alone where there is an index."""
    if type(mean) is PolynomialMean:
        return BasisMean(mean.basis(data.X).cpu().numpy(), mean_parts(mean, vector), index)
    if any(parameter.requires_grad for parameter in mean.parameters()):
        raise NoAnalyticForm(f"the mean {type(mean).__name__}")
    value = mean(data.X).detach().cpu().numpy()
    return KnownMean(value if index is None else value[:, [index]])


def mean_parts(mean: PolynomialMean, vector: NumpyVector) -> list[Reference]:
    """Constant and slopes, as far as there are such."""
    names = ("constant", "slopes")[: mean.degree + 1]
    return [vector.reference(getattr(mean, name), None) for name in names]


def _nothing(by_value: np.ndarray, out: np.ndarray) -> None:
    """Nothing depends on θ."""
