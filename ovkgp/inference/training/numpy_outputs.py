"""Output matrices, noise, means and separable kernels as NumPy functions of θ, like the kernels of `numpy_values`."""

from __future__ import annotations

import numpy as np
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel

from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.mean_noise import OutputMean, OutputNoise, PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.training.numpy_values import Backward, NoAnalyticForm, NumpyVector, Reference, make_kernel_node
from ovkgp.kernels import (
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    IndependentKernel,
    MeanRegularizedMatrix,
    OutputMatrix,
    is_operator_valued,
    num_outputs,
)


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


class KroneckerOutputs:
    """A ⊗ B of two nodes (m, m) and (q, q)."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        (A, first_backward), (B, second_backward) = self.first.matrix(theta), self.second.matrix(theta)

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            blocks = G.reshape(len(A), len(B), len(A), len(B))
            first_backward(np.einsum("iajb,ab->ij", blocks, B), out)
            second_backward(np.einsum("iajb,ij->ab", blocks, A), out)

        return np.kron(A, B), backward


class ScaledOutputs:
    """v A, for a scalar v and the matrix A of another node."""

    def __init__(self, scale: Reference, inner):
        self.scale, self.inner = scale, inner

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        matrix, inner_backward = self.inner.matrix(theta)
        scale = self.scale.number(theta)

        def backward(A: np.ndarray, out: np.ndarray) -> None:
            self.scale.add(out, np.vdot(A, matrix))
            inner_backward(scale * A, out)

        return scale * matrix, backward


class CurveNoiseNode:
    """K' ⊗ B + diag exp(2 H s) of a `CurveNoise`: the node of K' ⊗ B or None, the weights H (m, K), and s (K, q)."""

    def __init__(self, deviation, weights: np.ndarray, log_scale: Reference):
        self.deviation, self.weights, self.log_scale = deviation, weights, log_scale

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        white = np.exp(2 * self.weights @ self.log_scale.value(theta))  # (m, q)
        if self.deviation is None:
            matrix, inner_backward = np.diag(white.ravel()), None
        else:
            smooth, inner_backward = self.deviation.matrix(theta)
            matrix = smooth.copy()
            matrix.flat[:: len(matrix) + 1] += white.ravel()

        def backward(A: np.ndarray, out: np.ndarray) -> None:
            self.log_scale.add(out, self.weights.T @ (2 * white * A.diagonal().reshape(white.shape)))
            if inner_backward is not None:
                inner_backward(A, out)

        return matrix, backward


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

    def single(self, thetas: np.ndarray) -> np.ndarray:
        """Return the variance of one output at S values of θ (S, k), as (S, 1)."""
        return np.exp(2 * self.log_scale.entries(thetas))

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


def make_noise_node(
    noise: OutputNoise | CurveNoise, vector: NumpyVector, index: int | None = None
) -> Variances | CholeskyOutputs | CurveNoiseNode:
    """Return the node of a noise that is equal at all rows; of one output if `index` is given."""
    if type(noise) is CurveNoise and index is None:
        return _curve_noise_node(noise, vector)
    if type(noise) is not OutputNoise:
        raise NoAnalyticForm(f"the noise {type(noise).__name__}")
    if noise.is_diagonal:
        log_scale = vector.reference(noise, "log_scale")
        return Variances(log_scale, noise.num_outputs) if index is None else Variances(log_scale.column(index), 1)
    return CholeskyOutputs.of(noise, vector)


def _curve_noise_node(noise: CurveNoise, vector: NumpyVector) -> CurveNoiseNode:
    deviation = None
    if noise.deviation is not None:
        deviation = make_kernel_node(noise.deviation, noise.tasks.cpu().numpy(), vector)
        if noise.channel_matrix is not None:
            deviation = KroneckerOutputs(deviation, make_output_node(noise.channel_matrix, vector))
    weights = noise.weights(noise.tasks).cpu().numpy()
    return CurveNoiseNode(deviation, weights, vector.reference(noise, "log_scale"))


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
        return ScaledOutputs(scale, make_output_factor_node(kernel.base_kernel, vector))
    if type(kernel) is DecomposableKernel:
        matrix = make_output_node(kernel.output_module, vector)
        if isinstance(matrix, ConstantOutputs):  # its factor drops small directions
            factor = kernel.output_module.factor().detach().double().cpu().numpy()
            matrix = ConstantOutputs(factor @ factor.T)
        inner = kernel.base_kernel
        while type(inner) is ScaleKernel:
            scale = vector.reference(inner, "raw_outputscale")
            matrix, inner = ScaledOutputs(scale, matrix), inner.base_kernel
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
        return [
            (k, ScaledOutputs(scale, outputs)) for k, outputs in make_separable_nodes(kernel.base_kernel, X, vector)
        ]
    if kind is DecomposableKernel:
        return [(make_kernel_node(kernel.base_kernel, X, vector), make_output_node(kernel.output_module, vector))]
    if kind is FunctionValuedKernel and kernel.tasks is not None:
        tasks = make_kernel_node(kernel.task_kernel, kernel.tasks.cpu().double().numpy(), vector)
        inner = make_separable_nodes(kernel.input_kernel, X, vector)
        is_vector = is_operator_valued(kernel.input_kernel)
        return [(k, KroneckerOutputs(tasks, outputs) if is_vector else tasks) for k, outputs in inner]
    if kind is IndependentKernel:
        units = np.eye(num_outputs(kernel))
        pairs = zip(kernel.kernels, units, strict=True)
        return [(make_kernel_node(part, X, vector), ConstantOutputs(np.diag(unit))) for part, unit in pairs]
    raise NoAnalyticForm(f"the kernel {kind.__name__}")
