"""log π(u) = evidence + priors + log |dθ/du| in NumPy, for models whose kernel, outputs, noise and mean have NumPy
nodes.

A gradient through GPyTorch's modules takes one or two milliseconds before any linear algebra. NumPy functions of θ
compute the same numbers faster; everything that does not depend on θ is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel

from ovkgp.features import ORFF
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.log_prior import make_prior_terms
from ovkgp.inference.training.numpy_evidence import (
    DenseEvidence,
    SeparableEvidence,
    SingleOutputEvidence,
    StatisticsEvidence,
    SumOfEvidences,
)
from ovkgp.inference.training.numpy_values import (
    Backward,
    BasisMean,
    ConstantOutputs,
    NoAnalyticForm,
    NumpyVector,
    Reference,
    ScaledNode,
    Variances,
    make_mean_node,
    make_noise_node,
    make_output_node,
    mean_references,
)
from ovkgp.kernels import DecomposableKernel, IndependentKernel, is_operator_valued, num_outputs

MAX_STORED_DIFFERENCES = 10_000_000
"""Maximum number of stored squared differences (80 MB); for more, torch's overhead is negligible."""
MIN_DISTANCE = 1e-150  # replaces a distance of zero that divides zero
EXACT_STRATEGIES = ("kronecker", "dense", "independent")  # strategies that use the exact kernel


class NumpyDensity:
    """log π(u) and its gradient; if `priors` is None, neither priors nor log |dθ/du| are added."""

    def __init__(self, vector: NumpyVector, evidence, priors: list | None):
        self.vector, self.evidence, self.priors = vector, evidence, priors

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the density and its gradient (k,), NaN if θ is not finite.

        Raises `numpy.linalg.LinAlgError` if a covariance is not positive definite to working precision.
        """
        with np.errstate(all="ignore"):  # overflow is detected by the checks for finite values
            theta, slope, log_slope, by_slope = self.vector.values(u)
            if not np.isfinite(theta).all():
                return np.nan, u
            out = np.zeros_like(theta)
            value = self.evidence(theta, out)
            if self.priors is None:
                return value, self.vector.kept(out * slope)
            value += sum(prior(theta, out) for prior in self.priors) + log_slope
            return float(value), self.vector.kept(out * slope + by_slope)


def make_numpy_density(gp, data: Observations | Statistics | OutputStatistics, vector: ParameterVector) -> NumpyDensity:
    """Return the NumPy density of an `OperatorValuedGP`; raise `NoAnalyticForm` if a part has no NumPy node.

    Complexity: O(n²d) time and memory once, then that of the evidence and its gradient; see `numpy_evidence`.
    """
    if vector.entries and vector.entries[0].parameter.device.type != "cpu":
        raise NoAnalyticForm("another device")
    values = NumpyVector(vector)
    from_statistics = isinstance(data, (Statistics, OutputStatistics))
    evidence = _evidence_from_statistics(gp, data, values) if from_statistics else _evidence_from_data(gp, data, values)
    try:
        return NumpyDensity(values, evidence, make_prior_terms(gp, values))
    except NoAnalyticForm:
        return NumpyDensity(values, evidence, None)


def _evidence_from_data(gp, data: Observations, vector: NumpyVector):
    strategy = select_strategy(gp.model, data, gp.strategy)
    if strategy.name not in EXACT_STRATEGIES or gp.features is not None:
        raise NoAnalyticForm(f"the strategy {strategy.name}")
    if strategy.name == "independent":
        if type(gp.kernel) is not IndependentKernel:
            raise NoAnalyticForm(f"the kernel {type(gp.kernel).__name__}")
        return SumOfEvidences([_single_output_evidence(gp, data, vector, index) for index in range(data.num_outputs)])
    terms = make_separable_nodes(gp.kernel, data.X.cpu().numpy(), vector)
    noise, mean = make_noise_node(gp.noise_model, vector), make_mean_node(gp.mean, data, vector)
    is_even = data.is_complete and data.noise is None
    if (
        len(terms) == 1
        and not is_operator_valued(gp.kernel)
        and (data.noise is not None or isinstance(noise, Variances))
    ):
        return SingleOutputEvidence(terms[0][0], noise, mean, data)
    if len(terms) == 1 and is_even:
        return SeparableEvidence(*terms[0], noise, mean, data)
    return DenseEvidence(terms, noise, mean, data)


def _single_output_evidence(gp, data: Observations, vector: NumpyVector, index: int) -> SingleOutputEvidence:
    alone = data.output(index)
    kernel = make_kernel_node(gp.kernel.kernels[index], alone.X.cpu().numpy(), vector)
    noise, mean = make_noise_node(gp.noise_model, vector, index), make_mean_node(gp.mean, alone, vector, index)
    return SingleOutputEvidence(kernel, noise, mean, alone)


def _evidence_from_statistics(gp, data: Statistics | OutputStatistics, vector: NumpyVector):
    if type(gp.features) is not ORFF or type(gp.mean) is not PolynomialMean:
        raise NoAnalyticForm("features or a mean of another kind")
    if isinstance(data, OutputStatistics):
        pairs = zip(gp.kernel.kernels, data.parts, strict=True)
        return SumOfEvidences(
            [_shared_statistics_evidence(gp, kernel, part, vector, index) for index, (kernel, part) in enumerate(pairs)]
        )
    return _shared_statistics_evidence(gp, gp.kernel, data, vector)


def _shared_statistics_evidence(
    gp, kernel: Kernel, data: Statistics, vector: NumpyVector, index: int | None = None
) -> StatisticsEvidence:
    if data.layout != "shared":
        raise NoAnalyticForm(f"statistics of layout {data.layout}")
    outputs = _output_factor_node(kernel, vector)
    mean = BasisMean(np.zeros((0, data.num_basis)), mean_references(gp.mean, vector), index)
    return StatisticsEvidence(
        data, outputs, gp.features.num_frequencies, make_noise_node(gp.noise_model, vector, index), mean
    )


def _output_factor_node(kernel: Kernel, vector: NumpyVector):
    """Return the node of Γ of separable random features: the output matrix times every outputscale."""
    if type(kernel) is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return ScaledNode(scale, _output_factor_node(kernel.base_kernel, vector))
    if type(kernel) is DecomposableKernel:
        matrix = make_output_node(kernel.output_module, vector)
        if isinstance(matrix, ConstantOutputs):  # its factor drops small directions
            factor = kernel.output_module.factor().detach().double().cpu().numpy()
            matrix = ConstantOutputs(factor @ factor.T)
        inner = kernel.base_kernel
        while type(inner) is ScaleKernel:
            scale = vector.reference(inner.raw_outputscale, inner.raw_outputscale_constraint)
            matrix, inner = ScaledNode(scale, matrix), inner.base_kernel
        if isinstance(inner, AdditiveKernel) or is_operator_valued(inner):
            raise NoAnalyticForm(f"the kernel {type(inner).__name__}")
        return matrix
    if is_operator_valued(kernel) or isinstance(kernel, AdditiveKernel):
        raise NoAnalyticForm(f"the kernel {type(kernel).__name__}")
    return ConstantOutputs(np.ones((1, 1)))


def make_separable_nodes(kernel: Kernel, X: np.ndarray, vector: NumpyVector) -> list[tuple]:
    """Return the separable terms of a kernel as pairs of a kernel and an output node; raise `NoAnalyticForm` if
    unknown."""
    if not is_operator_valued(kernel):
        return [(make_kernel_node(kernel, X, vector), ConstantOutputs(np.ones((1, 1))))]
    kind = type(kernel)
    if kernel.active_dims is not None:
        raise NoAnalyticForm("columns that are selected for all outputs together")
    if kind is AdditiveKernel:
        return [term for part in kernel.kernels for term in make_separable_nodes(part, X, vector)]
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return [(k, ScaledNode(scale, outputs)) for k, outputs in make_separable_nodes(kernel.base_kernel, X, vector)]
    if kind is DecomposableKernel:
        return [(make_kernel_node(kernel.base_kernel, X, vector), make_output_node(kernel.output_module, vector))]
    if kind is IndependentKernel:
        units = np.eye(num_outputs(kernel))
        pairs = zip(kernel.kernels, units, strict=True)
        return [(make_kernel_node(part, X, vector), ConstantOutputs(np.diag(unit))) for part, unit in pairs]
    raise NoAnalyticForm(f"the kernel {kind.__name__}")


def make_kernel_node(kernel: Kernel, X: np.ndarray, vector: NumpyVector, is_called: bool = True):
    """Return the node of a scalar kernel (RBF, Matérn, rational quadratic; scaled or summed) at the rows of X (n, d).

    `is_called` says whether the kernel selects its `active_dims` itself; GPyTorch's ScaleKernel does it for its base
    kernel. Raises `NoAnalyticForm` for other kernels, including subclasses. Complexity: O(n²d) once, then O(n²), or
    O(n²d) with ARD.
    """
    if len(kernel.batch_shape):
        raise NoAnalyticForm("a batch of kernels")
    if is_called and kernel.active_dims is not None:
        X = X[:, kernel.active_dims.cpu().numpy()]
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return ScaledNode(scale, make_kernel_node(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([make_kernel_node(part, X, vector) for part in kernel.kernels])
    if kind not in (RBFKernel, MaternKernel, RQKernel) or (kind is MaternKernel and kernel.nu not in MATERN_PROFILES):
        raise NoAnalyticForm(f"the kernel {kind.__name__}")
    lengthscale = vector.reference(kernel.raw_lengthscale, kernel.raw_lengthscale_constraint)
    if kind is RQKernel:
        return RationalQuadratic(X, lengthscale, vector.reference(kernel.raw_alpha, kernel.raw_alpha_constraint))
    return Stationary(_rbf if kind is RBFKernel else MATERN_PROFILES[kernel.nu], X, lengthscale)


def _rbf(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    K = np.exp(-0.5 * r2)
    return K, -0.5 * K


def _matern12(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r = np.sqrt(r2)
    K = np.exp(-r)
    return K, -0.5 * K / np.maximum(r, MIN_DISTANCE)


def _matern32(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(3 * r2)
    decay = np.exp(-a)
    return (1 + a) * decay, -1.5 * decay


def _matern52(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(5 * r2)
    decay = np.exp(-a)
    grown = (1 + a) * decay
    return grown + (5 / 3) * r2 * decay, (-5 / 6) * grown


MATERN_PROFILES = {0.5: _matern12, 1.5: _matern32, 2.5: _matern52}


class Stationary:
    """k(r²) at the columns X (n, d), with lengthscale (1, 1) or one per column (1, d); profile: r² ↦ k and dk/dr²."""

    def __init__(self, profile: Callable, X: np.ndarray, lengthscale: Reference):
        self.profile, self.lengthscale = profile, lengthscale
        self.squares = _squared_differences(X, separate=lengthscale.shape[-1] > 1)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        ell = self.lengthscale.value(theta).ravel()
        r2 = self._scaled(ell)
        K, slope = self.profile(r2)

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            self._add_lengthscale(out, ell, G * slope)

        return K, backward

    def _scaled(self, ell: np.ndarray) -> np.ndarray:
        n = self.squares.shape[-1]
        return (
            self.squares * ell[0] ** -2
            if len(ell) == 1
            else (ell**-2 @ self.squares.reshape(len(ell), -1)).reshape(n, n)
        )

    def _add_lengthscale(self, out: np.ndarray, ell: np.ndarray, weights: np.ndarray) -> None:
        by_inverse = self.squares.reshape(len(ell), -1) @ weights.ravel()
        self.lengthscale.add(out, -2 * by_inverse / ell**3)


class RationalQuadratic(Stationary):
    """(1 + r²/2α)^{−α}; see `Stationary`."""

    def __init__(self, X: np.ndarray, lengthscale: Reference, alpha: Reference):
        super().__init__(None, X, lengthscale)
        self.alpha = alpha

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        ell, alpha = self.lengthscale.value(theta).ravel(), self.alpha.number(theta)
        part = self._scaled(ell) / (2 * alpha)
        logs = np.log1p(part)
        K = np.exp(-alpha * logs)

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            weighted = G * K
            self._add_lengthscale(out, ell, -0.5 * weighted / (1 + part))
            self.alpha.add(out, np.vdot(weighted, part / (1 + part) - logs))

        return K, backward


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


def _squared_differences(X: np.ndarray, separate: bool) -> np.ndarray:
    """Return squared differences (d, n, n) between the rows, or their sum (n, n)."""
    n, d = X.shape
    if n * n * (d if separate else 1) > MAX_STORED_DIFFERENCES:
        raise NoAnalyticForm("too many rows")
    if separate:
        return np.square(X.T[:, :, None] - X.T[:, None, :])
    return sum(np.square(column[:, None] - column) for column in X.T)
