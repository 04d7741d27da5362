"""Parameters, kernels, output matrices, noise and mean as NumPy functions of θ with hand-written gradients.

Each node returns its value at θ and a `Backward` function, which adds derivatives by that value to those by θ.
Derivatives by a symmetric matrix need not be symmetric: only their symmetric part counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel
from scipy.special import expit

from ovkgp.inference.model.mean_noise import OutputMean, OutputNoise, PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.kernels import (
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    IndependentKernel,
    MeanRegularizedMatrix,
    OutputMatrix,
    find_record,
    is_operator_valued,
    num_outputs,
)

MAX_STORED_DIFFERENCES = 20_000_000
"""Maximum number of stored squared differences (160 MB); for more, torch's overhead is negligible."""
MAX_DIFFERENCE_COLUMNS = 6  # with more columns, distances for several lengthscales are computed by matrix products

Backward = Callable[[np.ndarray, np.ndarray], None]
"""Takes the derivatives by a value and the vector of those by θ, to which it adds."""


class NoAnalyticForm(Exception):
    """A part of the model has no NumPy form: use torch."""


class Reference:
    """One parameter: a slice of θ, or a constant."""

    def __init__(self, shape: tuple[int, ...], position: slice | None, constant: np.ndarray | None = None):
        self.shape, self.position, self.constant = tuple(shape), position, constant

    def value(self, theta: np.ndarray) -> np.ndarray:
        """Return the parameter in its shape."""
        return self.constant if self.position is None else theta[self.position].reshape(self.shape)

    def column(self, index: int) -> Reference:
        """Return the entries of one output, the last axis; a scalar belongs to all outputs."""
        if self.shape == ():
            return self
        shape = (*self.shape[:-1], 1)
        if self.position is None:
            return Reference(shape, None, self.constant[..., [index]])
        return Reference(shape, slice(self.position.start + index, self.position.stop, self.shape[-1]))

    def number(self, theta: np.ndarray) -> float:
        """Return a parameter with one entry as a float."""
        return self.constant.item() if self.position is None else theta[self.position.start]

    def entries(self, thetas: np.ndarray) -> np.ndarray:
        """Return the entries (S, size) of the parameter at S values of θ (S, k)."""
        if self.position is None:
            return np.broadcast_to(self.constant.reshape(1, -1), (len(thetas), self.constant.size))
        return thetas[:, self.position]

    def numbers(self, thetas: np.ndarray) -> np.ndarray:
        """Return a parameter with one entry at S values of θ, (S,)."""
        return self.entries(thetas)[:, 0]

    def add(self, out: np.ndarray, by_value) -> None:
        """Add derivatives by the parameter to those by θ."""
        if self.position is not None:
            out[self.position] += by_value.ravel() if isinstance(by_value, np.ndarray) else by_value


class ScaledNode:
    """v A, for a scalar v and the matrix A of another node.

    A node of a kernel has also `cross(thetas, Z, X)`, the covariances (S, m, n) of points Z (m, d) with points X, or the rows of
    the data if X is None, at S values of θ, and
    `variances(thetas, Z)`, the prior variances (S, m) of Z; either may have one entry for all S.
    """

    def __init__(self, scale: Reference, inner):
        self.scale, self.inner = scale, inner

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        matrix, inner_backward = self.inner.matrix(theta)
        scale = self.scale.number(theta)

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            self.scale.add(out, np.vdot(G, matrix))
            inner_backward(scale * G, out)

        return scale * matrix, backward

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        return self.scale.numbers(thetas)[:, None, None] * self.inner.cross(thetas, Z, X)

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return self.scale.numbers(thetas)[:, None] * self.inner.variances(thetas, Z)


class NumpyVector:
    """θ of all trained parameters, flat and in the order of a `ParameterVector`, including the variables that it omits.

    Raises `NoAnalyticForm` if a parameter has a constraint with an unknown transform. Complexity: O(k) per call.
    """

    def __init__(self, vector: ParameterVector):
        self.vector, self.kept, size = vector, vector.kept, len(vector.kept)
        self.is_log, self.is_interval = np.zeros(size), np.zeros(size, dtype=bool)
        self.low, self.length, self.size = np.zeros(size), np.ones(size), np.ones(size)
        self.positions = {}
        for entry in vector.entries:
            at, constraint = entry.span, entry.constraint
            self.positions[id(entry.parameter)] = at
            if entry.is_log:
                self.is_log[at], self.low[at] = 1.0, entry.lower.reshape(-1).numpy()
            elif constraint is None:
                self.size[at] = entry.scale.reshape(-1).numpy()
            elif _is_sigmoid(constraint):
                low, high = (end.double().expand(entry.parameter.shape).reshape(-1).numpy() for end in constraint)
                self.is_interval[at], self.low[at], self.length[at] = True, low, high - low
            else:
                raise NoAnalyticForm(f"the constraint {constraint} of {entry.name}")
        self.has_intervals = bool(self.is_interval.any())
        self.linear = np.where((self.is_log == 1) | self.is_interval, 0.0, self.size)
        self.by_kept = self.is_log * self.kept
        self.log_size = float(np.log(self.size[self.kept]).sum())  # the size of others is 1

    def reference(self, module: torch.nn.Module, name: str) -> Reference:
        """Return the position of a parameter of a module in θ, or its constrained value if it is not trained."""
        parameter = getattr(module, name)
        if id(parameter) in self.positions:
            return Reference(parameter.shape, self.positions[id(parameter)])
        raw, constraint = parameter.detach().double(), module._constraints.get(f"{name}_constraint")
        value = raw if constraint is None else constraint.transform(raw)
        return Reference(parameter.shape, None, value.detach().cpu().numpy().copy())

    def values(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
        """Return θ and dθ/du of all entries, Σ log |dθ/du| of the variables u (len,), and its derivative in all entries."""
        full = self.vector.expand(u)
        grown = np.exp(self.is_log * full)  # 1 where θ is linear in u
        slope = self.is_log * grown + self.linear
        theta = self.low + self.is_log * grown + self.linear * full
        log_slope, by_slope = self.by_kept @ full + self.log_size, self.is_log
        if self.has_intervals:
            part, by_slope = self.is_interval, by_slope.copy()
            fraction, rest = expit(full[part]), expit(-full[part])
            theta[part] = self.low[part] + self.length[part] * fraction
            slope[part] = self.length[part] * fraction * rest
            log_slope, by_slope[part] = log_slope + np.log(slope[part & self.kept]).sum(), rest - fraction
        return theta, slope, log_slope, by_slope


def _is_sigmoid(constraint: Interval) -> bool:
    ends = all(bool(torch.isfinite(end).all()) for end in constraint)
    return ends and type(constraint) is Interval and constraint._transform is torch.sigmoid


class FreeOutputs:
    """Γ = W Wᵀ + diag v, with loadings W (p, rank) and v (p,)."""

    def __init__(self, loadings: Reference, diagonal: Reference):
        self.loadings, self.diagonal = loadings, diagonal

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        W = self.loadings.value(theta)
        matrix = W @ W.T
        matrix.flat[:: len(matrix) + 1] += self.diagonal.value(theta)

        def backward(A: np.ndarray, out: np.ndarray) -> None:
            self.loadings.add(out, (A + A.T) @ W)
            self.diagonal.add(out, A.diagonal())

        return matrix, backward


class CholeskyOutputs:
    """L Lᵀ from log L_ii (p,) and the entries below: a `FullMatrix`, or a full noise.

    `lower` holds these entries row by row (p(p−1)/2,), or in a (p, p) matrix of which nothing else is read.
    """

    def __init__(self, log_scale: Reference, lower: Reference):
        self.log_scale, self.lower, self.num_outputs = log_scale, lower, log_scale.shape[0]
        self.below = np.tril_indices(self.num_outputs, -1)
        self.lower_index = self.below if len(lower.shape) == 2 else slice(None)

    @classmethod
    def of(cls, module: FullMatrix | OutputNoise, vector: NumpyVector) -> CholeskyOutputs:
        """Return the node of a module that holds `log_scale` and `lower`."""
        return cls(vector.reference(module, "log_scale"), vector.reference(module, "lower"))

    def chol(self, theta: np.ndarray) -> np.ndarray:
        """Return L (p, p)."""
        L = np.diag(np.exp(self.log_scale.value(theta)))
        L[self.below] = self.lower.value(theta)[self.lower_index]
        return L

    def add(self, out: np.ndarray, L: np.ndarray, by_chol: np.ndarray) -> None:
        """Propagate derivatives by L."""
        self.log_scale.add(out, by_chol.diagonal() * L.diagonal())
        by_lower = np.zeros(self.lower.shape)
        by_lower[self.lower_index] = by_chol[self.below]
        self.lower.add(out, by_lower)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        L = self.chol(theta)

        def backward(A: np.ndarray, out: np.ndarray) -> None:
            self.add(out, L, (A + A.T) @ L)

        return L @ L.T, backward


class CoupledOutputs:
    """Γ = c 11ᵀ + (1 − c) I, with a scalar coupling c."""

    def __init__(self, coupling: Reference, num_outputs: int):
        self.coupling, self.eye = coupling, np.eye(num_outputs)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        c = self.coupling.number(theta)

        def backward(A: np.ndarray, out: np.ndarray) -> None:
            self.coupling.add(out, A.sum() - np.trace(A))

        return c + (1 - c) * self.eye, backward


class ConstantOutputs:
    """A matrix (p, p) that is not trained."""

    def __init__(self, value: np.ndarray):
        self.value = value

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        return self.value, lambda A, out: None


class Variances:
    """A diagonal noise exp(2s), with one s or one per output."""

    def __init__(self, log_scale: Reference, num_outputs: int):
        self.log_scale, self.num_outputs = log_scale, num_outputs

    def variances(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        """Return the variances (p,)."""
        trained = np.exp(2 * self.log_scale.value(theta))

        def backward(by_variances: np.ndarray, out: np.ndarray) -> None:
            by_trained = by_variances.sum() if self.log_scale.shape == () else by_variances
            self.log_scale.add(out, 2 * trained * by_trained)

        return trained if trained.shape == (self.num_outputs,) else np.full(self.num_outputs, trained), backward

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        value, inner_backward = self.variances(theta)
        return np.diag(value), lambda A, out: inner_backward(A.diagonal(), out)


class BasisMean:
    """h(x)ᵀβ, from h at the rows of the data (n, b), constant (p,) and slopes (d, p)."""

    def __init__(self, basis: np.ndarray, parts: list[Reference]):
        self.basis, self.parts = basis, parts

    def coefficients(self, theta: np.ndarray) -> np.ndarray:
        """Return β (b, p)."""
        return np.concatenate([np.atleast_2d(part.value(theta)) for part in self.parts])

    def values(self, theta: np.ndarray) -> np.ndarray | float:
        """Return the mean (n, p) at the rows."""
        return self.basis @ self.coefficients(theta) if self.parts else 0.0

    def backward(self, by_values: np.ndarray, out: np.ndarray) -> None:
        """Propagate derivatives (n, p) by the mean."""
        if self.parts:
            self.backward_coefficients(self.basis.T @ by_values, out)

    def backward_coefficients(self, by_coefficients: np.ndarray, out: np.ndarray) -> None:
        """Propagate derivatives (b, p) by β."""
        for row, part in enumerate(self.parts):
            part.add(out, by_coefficients[0] if row == 0 else by_coefficients[1:])


class KnownMean:
    """A mean (n, p) that is not trained."""

    def __init__(self, value: np.ndarray):
        self.value = value

    def values(self, theta: np.ndarray) -> np.ndarray:
        return self.value

    def backward(self, by_values: np.ndarray, out: np.ndarray) -> None:
        """Do nothing: the mean does not depend on θ."""


def make_output_node(module: OutputMatrix, vector: NumpyVector):
    """Return the node of an output matrix; raise `NoAnalyticForm` if it is trained and unknown."""
    if len(module.batch_shape):
        raise NoAnalyticForm("a batch of output matrices")
    if type(module) is FreeMatrix:
        return FreeOutputs(vector.reference(module, "loadings"), vector.reference(module, "raw_diagonal"))
    if type(module) is FullMatrix:
        return CholeskyOutputs.of(module, vector)
    if type(module) is MeanRegularizedMatrix:
        return CoupledOutputs(vector.reference(module, "raw_coupling"), module.num_outputs)
    if any(parameter.requires_grad for parameter in module.parameters()):
        raise NoAnalyticForm(f"the output matrix {type(module).__name__}")
    return ConstantOutputs(module().detach().double().cpu().numpy())


def make_noise_node(noise: OutputNoise, vector: NumpyVector, index: int | None = None) -> Variances | CholeskyOutputs:
    """Return the node of a noise that is equal at all rows; of one output if `index` is given."""
    if type(noise) is not OutputNoise:
        raise NoAnalyticForm(f"the noise {type(noise).__name__}")
    if noise.is_diagonal:
        log_scale = vector.reference(noise, "log_scale")
        return Variances(log_scale, noise.num_outputs) if index is None else Variances(log_scale.column(index), 1)
    return CholeskyOutputs.of(noise, vector)


def make_mean_node(mean: OutputMean, data: Observations, vector: NumpyVector, index: int | None = None):
    """Return the node of a mean at the rows of some data; of one output if `index` is given."""
    if type(mean) is PolynomialMean:
        return BasisMean(mean.basis(data.X).cpu().numpy(), mean_references(mean, vector, index))
    if any(parameter.requires_grad for parameter in mean.parameters()):
        raise NoAnalyticForm(f"the mean {type(mean).__name__}")
    value = mean(data.X).detach().cpu().numpy()
    return KnownMean(value if index is None else value[:, [index]])


def mean_references(mean: PolynomialMean, vector: NumpyVector, index: int | None = None) -> list[Reference]:
    """Return the references of constant and slopes, as far as the mean has them; of one output if `index` is given."""
    found = [vector.reference(mean, name) for name in ("constant", "slopes")[: mean.degree + 1]]
    return found if index is None else [part.column(index) for part in found]


def make_output_factor_node(kernel: Kernel, vector: NumpyVector):
    """Return the node of Γ of separable random features: the output matrix times every outputscale."""
    if type(kernel) is ScaleKernel:
        scale = vector.reference(kernel, "raw_outputscale")
        return ScaledNode(scale, make_output_factor_node(kernel.base_kernel, vector))
    if type(kernel) is DecomposableKernel:
        matrix = make_output_node(kernel.output_module, vector)
        if isinstance(matrix, ConstantOutputs):  # its factor drops small directions
            factor = kernel.output_module.factor().detach().double().cpu().numpy()
            matrix = ConstantOutputs(factor @ factor.T)
        inner = kernel.base_kernel
        while type(inner) is ScaleKernel:
            scale = vector.reference(inner, "raw_outputscale")
            matrix, inner = ScaledNode(scale, matrix), inner.base_kernel
        if isinstance(inner, AdditiveKernel) or is_operator_valued(inner):
            raise NoAnalyticForm(f"the kernel {type(inner).__name__}")
        return matrix
    if is_operator_valued(kernel) or isinstance(kernel, AdditiveKernel):
        raise NoAnalyticForm(f"the kernel {type(kernel).__name__}")
    return ConstantOutputs(np.ones((1, 1)))


def make_separable_nodes(kernel: Kernel, X: np.ndarray, vector: NumpyVector) -> list[tuple]:
    """Return the separable terms of a kernel as pairs of a kernel and an output node."""
    if not is_operator_valued(kernel):
        return [(make_kernel_node(kernel, X, vector), ConstantOutputs(np.ones((1, 1))))]
    kind = type(kernel)
    if kernel.active_dims is not None:
        raise NoAnalyticForm("columns that are selected for all outputs together")
    if kind is AdditiveKernel:
        return [term for part in kernel.kernels for term in make_separable_nodes(part, X, vector)]
    if kind is ScaleKernel:
        scale = vector.reference(kernel, "raw_outputscale")
        return [(k, ScaledNode(scale, outputs)) for k, outputs in make_separable_nodes(kernel.base_kernel, X, vector)]
    if kind is DecomposableKernel:
        return [(make_kernel_node(kernel.base_kernel, X, vector), make_output_node(kernel.output_module, vector))]
    if kind is IndependentKernel:
        units = np.eye(num_outputs(kernel))
        pairs = zip(kernel.kernels, units, strict=True)
        return [(make_kernel_node(part, X, vector), ConstantOutputs(np.diag(unit))) for part, unit in pairs]
    raise NoAnalyticForm(f"the kernel {kind.__name__}")


def make_kernel_node(kernel: Kernel, X: np.ndarray, vector: NumpyVector, is_called: bool = True):
    """Return the node of a scalar kernel whose record has a profile, scaled or summed, at the rows of X (n, d).

    `is_called` says whether the kernel selects its `active_dims` itself; GPyTorch's ScaleKernel does it for its base
    kernel. Raises `NoAnalyticForm` for other kernels. Complexity: O(n²d) once, then O(n²), or
    O(n²d) with ARD.
    """
    if len(kernel.batch_shape):
        raise NoAnalyticForm("a batch of kernels")
    if is_called and kernel.active_dims is not None:
        X = X[:, kernel.active_dims.cpu().numpy()]
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = vector.reference(kernel, "raw_outputscale")
        return ScaledNode(scale, make_kernel_node(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([make_kernel_node(part, X, vector) for part in kernel.kernels])
    if kind is ConstantKernel:
        return ScaledNode(vector.reference(kernel, "raw_constant"), Ones(len(X)))
    if kind is LinearKernel and kernel.ard_num_dims is None:
        return ScaledNode(vector.reference(kernel, "raw_variance"), InnerProducts(X))
    record = find_record(kernel)
    if record is None or record.profile is None:
        raise NoAnalyticForm(f"the kernel {kind.__name__}")
    if {name.removeprefix("raw_") for name, _ in kernel.named_parameters()} != record.roles.keys():
        raise NoAnalyticForm(f"a parameter of {kind.__name__} without a role")
    references = {name: vector.reference(kernel, f"raw_{name}") for name in record.roles}
    return Radial(record.profile, kernel, X, references)


class Radial:
    """κ(s), s = Σ_i (x_i − z_i)²/ℓ_i², at the columns X (n, d), from the profile of the kernel and its parameters.

    Squared differences are stored for few rows and columns; for more, s and its gradient are matrix products, O(n²d) without an
    n × n × d array.
    """

    def __init__(self, profile: Callable, kernel: Kernel, X: np.ndarray, references: dict[str, Reference]):
        self.profile, self.kernel, self.others, self.X = profile, kernel, dict(references), X
        self.lengthscale = self.others.pop("lengthscale")
        is_ard = self.lengthscale.shape[-1] > 1
        is_large = X.shape[1] > MAX_DIFFERENCE_COLUMNS or X.size * len(X) > MAX_STORED_DIFFERENCES
        self.uses_products = is_ard and is_large
        self.squares = None if self.uses_products else _squared_differences(X, X, separate=is_ard)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        ell = self.lengthscale.value(theta).ravel()
        others = {name: reference.number(theta) for name, reference in self.others.items()}
        scaled = self.X / ell if self.uses_products else None
        s = _squared_distances(scaled) if self.uses_products else _weigh(self.squares, ell[None])[0]
        K, first, _, by_parameter = self.profile(np, s, self.kernel, **others)

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            M = G * first()
            if self.uses_products:
                M = M + M.T  # Σ_ij M_ij (z_i − z_j)² = Σ_i z_i² Σ_j (M + Mᵀ)_ij − zᵀ (M + Mᵀ) z
                by_log = -2 * (M.sum(1) @ np.square(scaled) - (scaled * (M @ scaled)).sum(0))
                self.lengthscale.add(out, by_log / ell)
            else:
                by_inverse = self.squares.reshape(len(ell), -1) @ M.ravel()
                self.lengthscale.add(out, -2 * by_inverse / ell**3)
            for name, reference in self.others.items():
                reference.add(out, np.vdot(G, by_parameter[name]()))

        return K, backward

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        ell = self.lengthscale.entries(thetas)
        squares = _squared_differences(Z, self.X if X is None else X, separate=ell.shape[1] > 1)
        others = {name: reference.numbers(thetas)[:, None, None] for name, reference in self.others.items()}
        return self.profile(np, _weigh(squares, ell), self.kernel, **others).value

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.ones((len(thetas), len(Z)))


class Ones:
    """k(x, z) = 1."""

    def __init__(self, num_rows: int):
        self.num_rows = num_rows

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        return np.ones((self.num_rows, self.num_rows)), lambda G, out: None

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        return np.ones((1, len(Z), self.num_rows if X is None else len(X)))

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.ones((1, len(Z)))


class InnerProducts:
    """k(x, z) = x · z."""

    def __init__(self, X: np.ndarray):
        self.X, self.products = X, X @ X.T

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        return self.products, lambda G, out: None

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        return (Z @ (self.X if X is None else X).T)[None]

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return np.square(Z).sum(1)[None]


class Sum:
    """k_1 + k_2 + …"""

    def __init__(self, parts: list):
        self.parts = parts

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        found = [part.matrix(theta) for part in self.parts]

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            for _, one in found:
                one(G, out)

        return sum(K for K, _ in found), backward

    def cross(self, thetas: np.ndarray, Z: np.ndarray, X: np.ndarray | None = None) -> np.ndarray:
        return sum(part.cross(thetas, Z, X) for part in self.parts)

    def variances(self, thetas: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return sum(part.variances(thetas, Z) for part in self.parts)


def _squared_differences(Z: np.ndarray, X: np.ndarray, separate: bool) -> np.ndarray:
    """Return squared differences (d, m, n) between rows of Z and X, or their sum (1, m, n)."""
    if len(Z) * len(X) * (X.shape[1] if separate else 1) > MAX_STORED_DIFFERENCES:
        raise NoAnalyticForm("too many rows")
    if separate:
        return np.square(Z.T[:, :, None] - X.T[:, None, :])
    return sum(np.square(z[:, None] - x) for z, x in zip(Z.T, X.T, strict=True))[None]


def _weigh(squares: np.ndarray, ell: np.ndarray) -> np.ndarray:
    """Return Σ_i squares_i / ℓ_i² (S, m, n) for S lengthscales (S, d) or (S, 1)."""
    return (ell**-2 @ squares.reshape(len(squares), -1)).reshape(-1, *squares.shape[1:])


def _squared_distances(X: np.ndarray) -> np.ndarray:
    """Return the squared distances (n, n) between rows, from their products."""
    products = X @ X.T
    norms = products.diagonal().copy()
    products *= -2
    products += norms
    products += norms[:, None]
    np.maximum(products, 0.0, out=products)
    products.flat[:: len(X) + 1] = 0.0
    return products
