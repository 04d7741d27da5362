"""Which models have a plain road, and the density of u on it: evidence + priors + log |dθ/du|, and the gradient.

GPyTorch's modules cost a millisecond or two a gradient before any algebra begins. Here the same numbers come from NumPy
functions of the values θ, with everything that does not depend on them computed once.
"""

from __future__ import annotations

import numpy as np
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel

from ovkgp.features import ORFF
from ovkgp.inference.data import Observations
from ovkgp.inference.means import PolynomialMean
from ovkgp.inference.output_statistics import OutputStatistics
from ovkgp.inference.parameters import ParameterVector
from ovkgp.inference.plain_evidence import Entries, OneOutput, Separable, Several
from ovkgp.inference.plain_kernels import plain_kernel
from ovkgp.inference.plain_outputs import (
    BasisMean,
    ConstantOutputs,
    Variances,
    mean_parts,
    plain_mean,
    plain_noise,
    plain_outputs,
)
from ovkgp.inference.plain_parameters import NotPlain, PlainVector, Scaled
from ovkgp.inference.plain_priors import plain_priors
from ovkgp.inference.plain_statistics import SharedStatistics
from ovkgp.inference.roads import choose_road
from ovkgp.inference.statistics import Statistics
from ovkgp.kernels import DecomposableKernel, IndependentKernel, is_operator_valued, num_outputs

EXACT = ("kronecker", "dense", "independent")
"""The roads whose evidence is one of the exact kernel."""


class PlainDensity:
    """log π(u) and its gradient.

    Args:
        vector: of the variables.
        evidence: θ, derivatives ↦ log p(Y | θ).
        priors: likewise; None where the priors are not plain, and then neither they nor log |dθ/du| are added.

    Cost: of a call, that of the evidence plus O(k) for k variables.
    """

    def __init__(self, vector: PlainVector, evidence, priors: list | None):
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


def plain_density(gp, data: Observations | Statistics | OutputStatistics, vector: ParameterVector) -> PlainDensity:
    """The plain road of a model.

    Args:
        gp: an `OperatorValuedGP`.
        data: what it is given.
        vector: its trained parameters.

    Cost: O(n²d) time and memory once, then that of the evidence and its gradient; see `plain_evidence`.

    Raises:
        NotPlain: some part of it is not in the tables.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.parameters import ParameterVector
        >>> from ovkgp.inference.plain_density import plain_density
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> density = plain_density(gp, gp.observe(X, X.sin()), ParameterVector(gp))
        >>> value, gradient = density(torch.zeros(1).double().numpy())  # lengthscale 1, without a prior
        >>> gp.kernel.lengthscale = 1.0
        >>> abs(value - gp.log_evidence(X, X.sin()).item()) < 1e-9
        True
    """
    if vector.entries and vector.entries[0].parameter.device.type != "cpu":
        raise NotPlain("another device")
    plain = PlainVector(vector)
    gathered = isinstance(data, (Statistics, OutputStatistics))
    evidence = _of_statistics(gp, data, plain) if gathered else _of_data(gp, data, plain)
    try:
        return PlainDensity(plain, evidence, plain_priors(gp, plain))
    except NotPlain:
        return PlainDensity(plain, evidence, None)


def _of_data(gp, data: Observations, vector: PlainVector):
    road = choose_road(gp.model, data, gp.road)
    if road.name not in EXACT or gp.features is not None:
        raise NotPlain(f"the road {road.name}")
    if road.name == "independent":
        if type(gp.kernel) is not IndependentKernel:
            raise NotPlain(f"the kernel {type(gp.kernel).__name__}")
        return Several([_one_output(gp, data, vector, index) for index in range(data.num_outputs)])
    terms = plain_terms(gp.kernel, data.X.cpu().numpy(), vector)
    noise, mean = plain_noise(gp.noise_model, vector), plain_mean(gp.mean, data, vector)
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


def _one_output(gp, data: Observations, vector: PlainVector, index: int) -> OneOutput:
    alone = data.output(index)
    kernel = plain_kernel(gp.kernel.kernels[index], alone.X.cpu().numpy(), vector)
    noise, mean = plain_noise(gp.noise_model, vector, index), plain_mean(gp.mean, alone, vector, index)
    return OneOutput(kernel, noise, mean, alone)


def plain_terms(kernel: Kernel, X: np.ndarray, vector: PlainVector) -> list[tuple]:
    """The separable terms of a kernel, as pairs of a scalar kernel's and an output matrix's piece.

    Raises:
        NotPlain: the kernel is not in the table.
    """
    if not is_operator_valued(kernel):
        return [(plain_kernel(kernel, X, vector), ConstantOutputs(np.ones((1, 1))))]
    kind = type(kernel)
    if kernel.active_dims is not None:
        raise NotPlain("columns that are selected for all outputs together")
    if kind is AdditiveKernel:
        return [term for part in kernel.kernels for term in plain_terms(part, X, vector)]
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return [(k, Scaled(scale, outputs)) for k, outputs in plain_terms(kernel.base_kernel, X, vector)]
    if kind is DecomposableKernel:
        return [(plain_kernel(kernel.base_kernel, X, vector), plain_outputs(kernel.output_module, vector))]
    if kind is IndependentKernel:
        units = np.eye(num_outputs(kernel))
        pairs = zip(kernel.kernels, units, strict=True)
        return [(plain_kernel(part, X, vector), ConstantOutputs(np.diag(unit))) for part, unit in pairs]
    raise NotPlain(f"the kernel {kind.__name__}")


def _of_statistics(gp, data: Statistics | OutputStatistics, vector: PlainVector):
    if type(gp.features) is not ORFF or type(gp.mean) is not PolynomialMean:
        raise NotPlain("features or a mean of another kind")
    if isinstance(data, OutputStatistics):
        pairs = zip(gp.kernel.kernels, data.parts, strict=True)
        return Several([_shared(gp, kernel, part, vector, index) for index, (kernel, part) in enumerate(pairs)])
    return _shared(gp, gp.kernel, data, vector)


def _shared(gp, kernel: Kernel, data: Statistics, vector: PlainVector, index: int | None = None) -> SharedStatistics:
    if data.layout != "shared":
        raise NotPlain(f"statistics of layout {data.layout}")
    outputs = _factor_piece(kernel, vector)
    mean = BasisMean(np.zeros((0, data.num_basis)), mean_parts(gp.mean, vector), index)
    return SharedStatistics(
        data, outputs, gp.features.num_frequencies, plain_noise(gp.noise_model, vector, index), mean
    )


def _factor_piece(kernel: Kernel, vector: PlainVector):
    """Γ of separable random features: the output matrix, times every outputscale."""
    if type(kernel) is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return Scaled(scale, _factor_piece(kernel.base_kernel, vector))
    if type(kernel) is DecomposableKernel:
        matrix = plain_outputs(kernel.output_module, vector)
        if isinstance(matrix, ConstantOutputs):  # its factor leaves out what is small
            factor = kernel.output_module.factor().detach().double().cpu().numpy()
            matrix = ConstantOutputs(factor @ factor.T)
        inner = kernel.base_kernel
        while type(inner) is ScaleKernel:
            scale = vector.reference(inner.raw_outputscale, inner.raw_outputscale_constraint)
            matrix, inner = Scaled(scale, matrix), inner.base_kernel
        if isinstance(inner, AdditiveKernel) or is_operator_valued(inner):
            raise NotPlain(f"the kernel {type(inner).__name__}")
        return matrix
    if is_operator_valued(kernel) or isinstance(kernel, AdditiveKernel):
        raise NotPlain(f"the kernel {type(kernel).__name__}")
    return ConstantOutputs(np.ones((1, 1)))
