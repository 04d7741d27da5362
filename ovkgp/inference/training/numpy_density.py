"""log π(u) = evidence + priors + log |dθ/du| in NumPy, for models whose kernel, outputs, noise and mean have NumPy
nodes.

A gradient through GPyTorch's modules takes one or two milliseconds before any linear algebra. NumPy functions of θ
compute the same numbers faster; everything that does not depend on θ is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel

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
from ovkgp.kernels import DecomposableKernel, IndependentKernel, find_record, is_operator_valued, num_outputs

MAX_STORED_DIFFERENCES = 10_000_000
"""Maximum number of stored squared differences (80 MB); for more, torch's overhead is negligible."""
EXACT_STRATEGIES = ("kronecker", "dense", "independent")  # strategies that use the exact kernel


class NumpyDensity:
    """log π(u) and its gradient; log |dθ/du| is added only with `jacobian`, and if `priors` is None, neither of the two."""

    def __init__(self, vector: NumpyVector, evidence, priors: list | None, jacobian: bool = True):
        self.vector, self.evidence, self.priors, self.jacobian = vector, evidence, priors, jacobian

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
            value += sum(prior(theta, out) for prior in self.priors)
            if not self.jacobian:
                return float(value), self.vector.kept(out * slope)
            return float(value + log_slope), self.vector.kept(out * slope + by_slope)


def make_numpy_density(
    gp, data: Observations | Statistics | OutputStatistics, vector: ParameterVector, jacobian: bool = True
) -> NumpyDensity:
    """Return the NumPy density of an `OperatorValuedGP`; raise `NoAnalyticForm` if a part has no NumPy node.

    Complexity: O(n²d) time and memory once, then that of the evidence and its gradient; see `numpy_evidence`.
    """
    if vector.entries and vector.entries[0].parameter.device.type != "cpu":
        raise NoAnalyticForm("another device")
    values = NumpyVector(vector)
    from_statistics = isinstance(data, (Statistics, OutputStatistics))
    evidence = _evidence_from_statistics(gp, data, values) if from_statistics else _evidence_from_data(gp, data, values)
    try:
        return NumpyDensity(values, evidence, make_prior_terms(gp, values, jacobian), jacobian)
    except NoAnalyticForm:
        return NumpyDensity(values, evidence, None, jacobian)


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
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return ScaledNode(scale, make_kernel_node(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([make_kernel_node(part, X, vector) for part in kernel.kernels])
    record = find_record(kernel)
    if record is None or record.profile is None:
        raise NoAnalyticForm(f"the kernel {kind.__name__}")
    parameters = {name.removeprefix("raw_"): parameter for name, parameter in kernel.named_parameters()}
    if parameters.keys() != record.roles.keys():
        raise NoAnalyticForm(f"a parameter of {kind.__name__} without a role")
    references = {
        name: vector.reference(parameter, kernel.constraint_for_parameter_name(f"raw_{name}"))
        for name, parameter in parameters.items()
    }
    return Radial(record.profile, kernel, X, references)


class Radial:
    """κ(s), s = Σ_i (x_i − z_i)²/ℓ_i², at the columns X (n, d), from the profile of the kernel and its parameters."""

    def __init__(self, profile: Callable, kernel: Kernel, X: np.ndarray, references: dict[str, Reference]):
        self.profile, self.kernel, self.others = profile, kernel, dict(references)
        self.lengthscale = self.others.pop("lengthscale")
        self.squares = _squared_differences(X, separate=self.lengthscale.shape[-1] > 1)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Backward]:
        ell = self.lengthscale.value(theta).ravel()
        others = {name: reference.number(theta) for name, reference in self.others.items()}
        K, first, _, by_parameter = self.profile(np, self._scaled(ell), self.kernel, **others)
        slope = first()

        def backward(G: np.ndarray, out: np.ndarray) -> None:
            by_inverse = self.squares.reshape(len(ell), -1) @ (G * slope).ravel()
            self.lengthscale.add(out, -2 * by_inverse / ell**3)
            for name, reference in self.others.items():
                reference.add(out, np.vdot(G, by_parameter[name]()))

        return K, backward

    def _scaled(self, ell: np.ndarray) -> np.ndarray:
        n = self.squares.shape[-1]
        return (
            self.squares * ell[0] ** -2
            if len(ell) == 1
            else (ell**-2 @ self.squares.reshape(len(ell), -1)).reshape(n, n)
        )


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
