"""Moments of spectral distributions: finite orders and Sobol estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import singledispatch

import numpy as np
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LCMKernel,
    MultitaskKernel,
    ProductKernel,
    ScaleKernel,
)
from torch import Tensor

from ovkgp.exceptions import SpectralError
from ovkgp.features.spectral.base_samples import sobol_points
from ovkgp.kernels import (
    BlockwiseProductKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    OperatorValuedKernel,
    TransformableKernel,
    WarpedKernel,
    components,
    find_record,
)
from ovkgp.kernels.spectral import SpectralPair, gamma_ratio

NUM_DRAWS = 2**14  # number of Sobol draws of an estimate
CHUNK_FREQUENCIES = 2**10  # number of frequencies whose factors are in memory at a time


@singledispatch
def moment_order(kernel: Kernel) -> float:
    """Return the supremum of the orders q with E‖ω‖^q < ∞ under the scalar spectral distribution.

    That of a scalar kernel is part of its record; see `ovkgp.kernels.KernelRecord`.

    Parameters
    ----------
    kernel : Kernel
        Any kernel with a spectral pair; of an operator-valued one, its scalar kernel counts.

    Returns
    -------
    float
        Supremum of the orders; `math.inf` for light tails.

    Examples
    --------
    >>> from gpytorch.kernels import MaternKernel, RBFKernel
    >>> from ovkgp.features import moment_order
    >>> moment_order(MaternKernel(nu=1.5)), moment_order(RBFKernel())
    (3.0, inf)
    """
    record = find_record(kernel)
    return math.inf if record is None else record.moment_order(kernel)


@moment_order.register(AdditiveKernel)
@moment_order.register(ProductKernel)
@moment_order.register(HelmholtzKernel)
def _(kernel) -> float:
    return min(moment_order(k) for k in kernel.kernels)


@moment_order.register(ScaleKernel)
@moment_order.register(WarpedKernel)
@moment_order.register(TransformableKernel)
def _(kernel) -> float:
    return moment_order(kernel.base_kernel)


@moment_order.register
def _(kernel: BlockwiseProductKernel) -> float:
    return min(moment_order(kernel.base_kernel), moment_order(kernel.scalar_kernel))


@moment_order.register
def _(kernel: FunctionValuedKernel) -> float:
    order = moment_order(kernel.input_kernel)  # on a grid the task kernel is only a matrix
    return min(order, moment_order(kernel.task_kernel)) if kernel.tasks is None else order


@moment_order.register(OperatorValuedKernel)
@moment_order.register(MultitaskKernel)
@moment_order.register(LCMKernel)
def _(kernel) -> float:
    parts = components(kernel)
    if parts is not None:
        return min(moment_order(k) for k, _ in parts)
    return moment_order(kernel.base_kernel) if hasattr(kernel, "base_kernel") else math.inf


def check_moment_is_finite(kernel: Kernel, order: float, what: str) -> None:
    """Check that the moment of the frequencies that the features need is finite."""
    if order >= moment_order(kernel):
        raise SpectralError(
            f"{what.capitalize()} features of {type(kernel).__name__} have infinite variance: E‖ω‖^{order:g} is "
            "infinite. Use a smoother base kernel, or bounded=True with an RBF, Matérn (nu ≥ 1.5) or RQ kernel, scaled "
            "or in a sum."
        )


def gaussian_norm_moment(variances: Tensor, s: float) -> float:
    """Return E‖ω‖ˢ for ω ~ N(0, diag(variances)): exact for equal variances and for s = 2, else a Sobol estimate."""
    d = variances.numel()
    if s == 2:
        return float(variances.sum())
    if bool((variances == variances[0]).all()):
        return float(2 * variances[0]) ** (s / 2) * gamma_ratio(d / 2, s / 2)
    normals = torch.special.ndtri(sobol_uniforms(d))
    return float((normals.square() @ variances.to(normals)).pow(s / 2).mean())


def sobol_uniforms(num_dims: int) -> Tensor:
    """Return 2¹⁴ scrambled Sobol points in (0, 1)^num_dims, always the same ones, in float64."""
    return torch.from_numpy(sobol_points(NUM_DRAWS, num_dims, np.random.default_rng(0)))


def draw_frequencies(term: SpectralPair) -> Tensor:
    """Return Sobol draws (2¹⁴, q) from the distribution of one term of a spectral pair."""
    with torch.no_grad():
        frequencies = term.frequencies(sobol_uniforms(term.base_dim))
    return frequencies.reshape(NUM_DRAWS, -1).to(torch.float64)


def has_constant_factor(term: SpectralPair) -> bool:
    """Return whether B does not depend on ω."""
    two = torch.tensor([[0.3], [0.6]], dtype=torch.float64).expand(2, term.base_dim)
    return term.factor(term.frequencies(two)).shape[-3] == 1


def draw_factors(term: SpectralPair, frequencies: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs (frequencies (c, q), B (c or 1, p, r)) in chunks, to bound the memory for many outputs."""
    for chunk in frequencies.split(CHUNK_FREQUENCIES):
        with torch.no_grad():
            factor = term.factor(chunk)
        yield chunk, factor.to(torch.complex128 if factor.is_complex() else torch.float64)


def operator_norms(term: SpectralPair, frequencies: Tensor) -> Tensor:
    """Return ‖A(ω)‖ = ‖B(ω)‖² at each frequency, (2¹⁴,); of shape (1,) if B does not depend on ω."""
    norms = []
    for _, factor in draw_factors(term, frequencies):
        norms.append(torch.linalg.matrix_norm(factor, ord=2).square())
        if factor.shape[-3] == 1:
            return norms[0].reshape(1)
    return torch.cat(norms)


def estimate_moments(term: SpectralPair, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[A] and E[A²], each (p, p), estimated at the given frequencies."""
    first, second = [], []
    for _, factor in draw_factors(term, frequencies):
        operators = factor @ factor.mH
        first.append(operators.mean(-3))
        second.append((operators @ operators).mean(-3))
        if factor.shape[-3] == 1:
            break
    return torch.stack(first).mean(0), torch.stack(second).mean(0)


def estimate_growth(term: SpectralPair, frequencies: Tensor) -> tuple[float, float]:
    """Return the power g with ‖A(ω)‖ = O(‖ω‖ᵍ) and, if g = 0, the largest ‖A‖ found (else infinity)."""
    few = frequencies[:CHUNK_FREQUENCIES]
    near, far = (float(operator_norms(term, scale * few).max()) for scale in (10.0, 100.0))
    power = math.log10(far / near) if near > 0 and far > 0 else 0.0
    if power > 0.01:
        return power, math.inf
    return 0.0, max(near, far, float(operator_norms(term, frequencies).max()))
