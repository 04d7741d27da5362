"""Which models have a plain road, and the density of u on it: evidence + priors + log |dθ/du|, and the gradient.

GPyTorch's modules cost a millisecond or two a gradient before any algebra begins. Here the same numbers come from NumPy
functions of the values θ, with everything that does not depend on them computed once.
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
from ovkgp.inference.training.log_prior import numpy_priors
from ovkgp.inference.training.numpy_evidence import Entries, OneOutput, Separable, Several, SharedStatistics
from ovkgp.inference.training.numpy_values import (
    Back,
    BasisMean,
    ConstantOutputs,
    NoAnalyticForm,
    NumpyVector,
    Reference,
    Scaled,
    Variances,
    mean_parts,
    numpy_mean,
    numpy_noise,
    numpy_outputs,
)
from ovkgp.kernels import DecomposableKernel, IndependentKernel, is_operator_valued, num_outputs

MAX_ENTRIES = 10_000_000
"""Squared differences that are kept (80 MB); where there would be more, the modules cost little beside the algebra."""
TINY = 1e-150
"""In place of a distance of zero, where it divides zero."""


def _rbf(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    K = np.exp(-0.5 * r2)
    return K, -0.5 * K


def _matern12(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r = np.sqrt(r2)
    K = np.exp(-r)
    return K, -0.5 * K / np.maximum(r, TINY)


def _matern32(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(3 * r2)
    decay = np.exp(-a)
    return (1 + a) * decay, -1.5 * decay


def _matern52(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(5 * r2)
    decay = np.exp(-a)
    grown = (1 + a) * decay
    return grown + (5 / 3) * r2 * decay, (-5 / 6) * grown


MATERNS = {0.5: _matern12, 1.5: _matern32, 2.5: _matern52}


class Stationary:
    """k(r²) with a lengthscale for all columns or one for each.

    Args:
        profile: r² ↦ k and dk/dr².
        X: the columns that the kernel looks at (n, d).
        lengthscale: (1, 1) or (1, d).
    """

    def __init__(self, profile: Callable, X: np.ndarray, lengthscale: Reference):
        self.profile, self.lengthscale = profile, lengthscale
        self.squares = _squares(X, separate=lengthscale.shape[-1] > 1)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        ell = self.lengthscale.value(theta).ravel()
        r2 = self._scaled(ell)
        K, slope = self.profile(r2)

        def back(G: np.ndarray, out: np.ndarray) -> None:
            self._add_lengthscale(out, ell, G * slope)

        return K, back

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
    """(1 + r²/2α)^{−α}; see `Stationary`.

    Args:
        alpha: α (1,).
    """

    def __init__(self, X: np.ndarray, lengthscale: Reference, alpha: Reference):
        super().__init__(None, X, lengthscale)
        self.alpha = alpha

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        ell, alpha = self.lengthscale.value(theta).ravel(), self.alpha.number(theta)
        part = self._scaled(ell) / (2 * alpha)
        logs = np.log1p(part)
        K = np.exp(-alpha * logs)

        def back(G: np.ndarray, out: np.ndarray) -> None:
            weighted = G * K
            self._add_lengthscale(out, ell, -0.5 * weighted / (1 + part))
            self.alpha.add(out, np.vdot(weighted, part / (1 + part) - logs))

        return K, back


class Sum:
    """k_1 + k_2 + …

    Args:
        parts: their pieces.
    """

    def __init__(self, parts: list):
        self.parts = parts

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        found = [part.matrix(theta) for part in self.parts]

        def back(G: np.ndarray, out: np.ndarray) -> None:
            for _, one in found:
                one(G, out)

        return sum(K for K, _ in found), back


def numpy_kernel(kernel: Kernel, X: np.ndarray, vector: NumpyVector, is_called: bool = True):
    """The piece of a scalar kernel at the rows of X (n, d).

    Args:
        kernel: an RBF, Matérn or rational quadratic kernel, scaled or added up.
        X: the inputs.
        vector: where the parameters are.
        is_called: whether the kernel selects its `active_dims` itself; GPyTorch's ScaleKernel does it for what it scales.

    Cost: O(n²d) once; K and its derivatives O(n²), O(n²d) with a lengthscale for each column.

    Raises:
        NoAnalyticForm: the kernel is not in the table; a subclass, whose `forward` is its own, never is.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.numpy_density import numpy_kernel
        >>> from ovkgp.inference.training.numpy_values import NumpyVector
        >>> kernel = RBFKernel().double()
        >>> piece = numpy_kernel(kernel, np.array([[0.0], [1.0]]), NumpyVector(ParameterVector(kernel)))
        >>> K, back = piece.matrix(np.array([2.0]))  # lengthscale 2
        >>> bool(abs(K[0, 1] - np.exp(-1 / 8)) < 1e-15)
        True
    """
    if len(kernel.batch_shape):
        raise NoAnalyticForm("a batch of kernels")
    if is_called and kernel.active_dims is not None:
        X = X[:, kernel.active_dims.cpu().numpy()]
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return Scaled(scale, numpy_kernel(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([numpy_kernel(part, X, vector) for part in kernel.kernels])
    if kind not in (RBFKernel, MaternKernel, RQKernel) or (kind is MaternKernel and kernel.nu not in MATERNS):
        raise NoAnalyticForm(f"the kernel {kind.__name__}")
    lengthscale = vector.reference(kernel.raw_lengthscale, kernel.raw_lengthscale_constraint)
    if kind is RQKernel:
        return RationalQuadratic(X, lengthscale, vector.reference(kernel.raw_alpha, kernel.raw_alpha_constraint))
    return Stationary(_rbf if kind is RBFKernel else MATERNS[kernel.nu], X, lengthscale)


def _squares(X: np.ndarray, separate: bool) -> np.ndarray:
    """Squared differences (d, n, n) between the rows, or their sum (n, n)."""
    n, d = X.shape
    if n * n * (d if separate else 1) > MAX_ENTRIES:
        raise NoAnalyticForm("too many rows")
    if separate:
        return np.square(X.T[:, :, None] - X.T[:, None, :])
    return sum(np.square(column[:, None] - column) for column in X.T)


EXACT = ("kronecker", "dense", "independent")
"""The roads whose evidence is one of the exact kernel."""


class NumpyDensity:
    """log π(u) and its gradient.

    Args:
        vector: of the variables.
        evidence: θ, derivatives ↦ log p(Y | θ).
        priors: likewise; None where the priors are not plain, and then neither they nor log |dθ/du| are added.

    Cost: of a call, that of the evidence plus O(k) for k variables.
    """

    def __init__(self, vector: NumpyVector, evidence, priors: list | None):
        self.vector, self.evidence, self.priors = vector, evidence, priors

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """The density and its gradient (k,); NaN where θ is not finite.

        Raises:
            numpy.linalg.LinAlgError: a covariance is not positive definite to working precision.
        """
        with np.errstate(all="ignore"):  # what overflows is not finite, and found to be so
            theta, slope, log_slope, by_slope = self.vector.values(u)
            if not np.isfinite(theta).all():
                return np.nan, u
            out = np.zeros_like(theta)
            value = self.evidence(theta, out)
            if self.priors is None:
                return value, self.vector.kept(out * slope)
            value += sum(prior(theta, out) for prior in self.priors) + log_slope
            return float(value), self.vector.kept(out * slope + by_slope)


def numpy_density(gp, data: Observations | Statistics | OutputStatistics, vector: ParameterVector) -> NumpyDensity:
    """The plain road of a model.

    Args:
        gp: an `OperatorValuedGP`.
        data: what it is given.
        vector: its trained parameters.

    Cost: O(n²d) time and memory once, then that of the evidence and its gradient; see `plain_evidence`.

    Raises:
        NoAnalyticForm: some part of it is not in the tables.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.numpy_density import numpy_density
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = numpy_density(gp, gp.observe(X, X.sin()), ParameterVector(gp))
        >>> value, gradient = density(torch.zeros(1).double().numpy())  # lengthscale 1, without a prior
        >>> gp.kernel.lengthscale = 1.0
        >>> abs(value - gp.log_evidence(X, X.sin()).item()) < 1e-9
        True
    """
    if vector.entries and vector.entries[0].parameter.device.type != "cpu":
        raise NoAnalyticForm("another device")
    plain = NumpyVector(vector)
    gathered = isinstance(data, (Statistics, OutputStatistics))
    evidence = _of_statistics(gp, data, plain) if gathered else _of_data(gp, data, plain)
    try:
        return NumpyDensity(plain, evidence, numpy_priors(gp, plain))
    except NoAnalyticForm:
        return NumpyDensity(plain, evidence, None)


def _of_data(gp, data: Observations, vector: NumpyVector):
    strategy = select_strategy(gp.model, data, gp.strategy)
    if strategy.name not in EXACT or gp.features is not None:
        raise NoAnalyticForm(f"the road {strategy.name}")
    if strategy.name == "independent":
        if type(gp.kernel) is not IndependentKernel:
            raise NoAnalyticForm(f"the kernel {type(gp.kernel).__name__}")
        return Several([_one_output(gp, data, vector, index) for index in range(data.num_outputs)])
    terms = numpy_terms(gp.kernel, data.X.cpu().numpy(), vector)
    noise, mean = numpy_noise(gp.noise_model, vector), numpy_mean(gp.mean, data, vector)
    is_even = data.is_complete and data.noise is None
    if (
        len(terms) == 1
        and not is_operator_valued(gp.kernel)
        and (data.noise is not None or isinstance(noise, Variances))
    ):
        return OneOutput(terms[0][0], noise, mean, data)
    if len(terms) == 1 and is_even:
        return Separable(*terms[0], noise, mean, data)
    return Entries(terms, noise, mean, data)


def _one_output(gp, data: Observations, vector: NumpyVector, index: int) -> OneOutput:
    alone = data.output(index)
    kernel = numpy_kernel(gp.kernel.kernels[index], alone.X.cpu().numpy(), vector)
    noise, mean = numpy_noise(gp.noise_model, vector, index), numpy_mean(gp.mean, alone, vector, index)
    return OneOutput(kernel, noise, mean, alone)


def numpy_terms(kernel: Kernel, X: np.ndarray, vector: NumpyVector) -> list[tuple]:
    """The separable terms of a kernel, as pairs of a scalar kernel's and an output matrix's piece.

    Raises:
        NoAnalyticForm: the kernel is not in the table.
    """
    if not is_operator_valued(kernel):
        return [(numpy_kernel(kernel, X, vector), ConstantOutputs(np.ones((1, 1))))]
    kind = type(kernel)
    if kernel.active_dims is not None:
        raise NoAnalyticForm("columns that are selected for all outputs together")
    if kind is AdditiveKernel:
        return [term for part in kernel.kernels for term in numpy_terms(part, X, vector)]
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return [(k, Scaled(scale, outputs)) for k, outputs in numpy_terms(kernel.base_kernel, X, vector)]
    if kind is DecomposableKernel:
        return [(numpy_kernel(kernel.base_kernel, X, vector), numpy_outputs(kernel.output_module, vector))]
    if kind is IndependentKernel:
        units = np.eye(num_outputs(kernel))
        pairs = zip(kernel.kernels, units, strict=True)
        return [(numpy_kernel(part, X, vector), ConstantOutputs(np.diag(unit))) for part, unit in pairs]
    raise NoAnalyticForm(f"the kernel {kind.__name__}")


def _of_statistics(gp, data: Statistics | OutputStatistics, vector: NumpyVector):
    if type(gp.features) is not ORFF or type(gp.mean) is not PolynomialMean:
        raise NoAnalyticForm("features or a mean of another kind")
    if isinstance(data, OutputStatistics):
        pairs = zip(gp.kernel.kernels, data.parts, strict=True)
        return Several([_shared(gp, kernel, part, vector, index) for index, (kernel, part) in enumerate(pairs)])
    return _shared(gp, gp.kernel, data, vector)


def _shared(gp, kernel: Kernel, data: Statistics, vector: NumpyVector, index: int | None = None) -> SharedStatistics:
    if data.layout != "shared":
        raise NoAnalyticForm(f"statistics of layout {data.layout}")
    outputs = _factor_piece(kernel, vector)
    mean = BasisMean(np.zeros((0, data.num_basis)), mean_parts(gp.mean, vector), index)
    return SharedStatistics(
        data, outputs, gp.features.num_frequencies, numpy_noise(gp.noise_model, vector, index), mean
    )


def _factor_piece(kernel: Kernel, vector: NumpyVector):
    """Γ of separable random features: the output matrix, times every outputscale."""
    if type(kernel) is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return Scaled(scale, _factor_piece(kernel.base_kernel, vector))
    if type(kernel) is DecomposableKernel:
        matrix = numpy_outputs(kernel.output_module, vector)
        if isinstance(matrix, ConstantOutputs):  # its factor leaves out what is small
            factor = kernel.output_module.factor().detach().double().cpu().numpy()
            matrix = ConstantOutputs(factor @ factor.T)
        inner = kernel.base_kernel
        while type(inner) is ScaleKernel:
            scale = vector.reference(inner.raw_outputscale, inner.raw_outputscale_constraint)
            matrix, inner = Scaled(scale, matrix), inner.base_kernel
        if isinstance(inner, AdditiveKernel) or is_operator_valued(inner):
            raise NoAnalyticForm(f"the kernel {type(inner).__name__}")
        return matrix
    if is_operator_valued(kernel) or isinstance(kernel, AdditiveKernel):
        raise NoAnalyticForm(f"the kernel {type(kernel).__name__}")
    return ConstantOutputs(np.ones((1, 1)))
