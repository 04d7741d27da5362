"""Roles of the hyperparameters of kernels: initial value, bounds and prior of each, in the units of `kernel_parameters`.

With columns of scales s_j (of root mean square s) and outputs of variance v, the default priors (`PriorSettings`) are

    lengthscale   LogNormal(0.35 + ½ log d + log s_j, 0.8)      period       LogNormal(log 2 s_j, 1)
    variance      LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)
    slope         LogNormal(log v/‖x‖², 3)                      noise        LogNormal(log 0.1 v_a, 1.5)

They are normal in the logarithm, and training maximizes that density of the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from gpytorch.kernels import IndexKernel, Kernel
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor

from ovkgp.inference.model.parameter_vector import Bounds
from ovkgp.inference.training.covariance_prior import CovariancePrior, set_chol
from ovkgp.inference.training.kernel_parameters import (
    MIN_RELATIVE_VARIANCE,
    KernelParameter,
    Units,
    column_distances,
    kernel_parameters,
    row_distances,
    units_of_lengthscale,
)
from ovkgp.inference.training.priors import PriorRegistry, find_parameter, log_normal, normal, uniform
from ovkgp.kernels import FreeMatrix, FullMatrix, OutputMatrix

RELATIVE_LENGTHSCALE_BOUNDS = (1e-2, 1e3)  # relative to the 5 % quantile and to the median of the distances
RELATIVE_VARIANCE_BOUNDS = (1e-8, 1e4)  # relative to the variance of the outputs
LOADINGS_FRACTION = 0.9
"""Fraction of a principal component's variance that goes to the loadings; the rest goes to the diagonal."""
DEFAULT_LOG_STD = 1.5  # standard deviation of the logarithm of any other positive parameter, around its present value
LKJ_CONCENTRATION = 2.0
"""Concentration of the LKJ distribution of correlations; values above 1 favor small correlations."""

Range = tuple[Tensor, Tensor, Tensor]
"""Initial value, lower and upper bound of a parameter."""


@torch.no_grad()
def initialize_kernel(kernel: Kernel, units: Units) -> dict[int, Bounds]:
    """Set the trained hyperparameters of a kernel and return their bounds by identity."""
    bounds = {}
    for parameter in kernel_parameters(kernel, units):
        if parameter.role == "output_matrix" and parameter.initial is not None:
            set_matrix = initialize_cholesky if isinstance(parameter.module, FullMatrix) else _initialize_loadings
            bounds |= set_matrix(parameter.module, parameter.initial())
        elif parameter.role in ROLES and ROLES[parameter.role].initial is not None and parameter.units.sets_values:
            bounds |= set_parameter(parameter.module, parameter.name, *ROLES[parameter.role].initial(parameter))
    return bounds


def register_kernel_priors(parameters: Iterator[KernelParameter], registry: PriorRegistry) -> None:
    """Register priors on the trained hyperparameters of a kernel that have none."""
    for parameter in list(parameters):  # priors are modules, and join the others
        module, name, role = parameter.module, parameter.name, parameter.role
        if role == "output_matrix":
            _register_matrix_priors(module, parameter.units, registry)
        elif role == "score":  # learned frequencies are computed from standard normal scores
            registry.add(module, name, normal(0.0, 1.0))
        elif role == "other":
            register_remaining_priors(module, registry, parameter.units.parameter_unit)
        else:
            registry.add(module, f"raw_{name}", ROLES[role].prior(parameter))


class Role(NamedTuple):
    """Prior of a parameter and, if it is initialized from the data, its initial value and bounds."""

    prior: Callable[[KernelParameter], Prior]
    initial: Callable[[KernelParameter], Range] | None = None


def _find_lengthscale_range(parameter: KernelParameter) -> Range:
    """Return the median distance times √d, per column if there are several entries, and its bounds."""
    X = parameter.units.rows
    is_ard = getattr(parameter.module, f"raw_{parameter.name}").shape[-1] > 1
    distances = (column_distances if is_ard else row_distances)(X)
    factor = X.shape[1] ** 0.5 if is_ard else 1.0
    median = factor * parameter.units.lengthscale_factor * distances.median
    low = RELATIVE_LENGTHSCALE_BOUNDS[0] * torch.minimum(distances.small, median)
    return median, low, RELATIVE_LENGTHSCALE_BOUNDS[1] * factor * distances.median


def _find_curve_lengthscale_range(parameter: KernelParameter) -> Range:
    # the kernel averages over grid points and compares the curves at one of them at a time
    units, num_points = parameter.units, max(1, parameter.units.rows.shape[1] // parameter.module.num_channels)
    units = replace(units, lengthscale_factor=units.lengthscale_factor / num_points**0.5)
    return _find_lengthscale_range(replace(parameter, units=units))


def _find_variance_range(parameter: KernelParameter) -> Range:
    value = parameter.units.initial_variance if parameter.initial is None else parameter.initial()
    return value, *(end * value for end in RELATIVE_VARIANCE_BOUNDS)


def _find_slope_variance_range(parameter: KernelParameter) -> Range:
    size = parameter.units.rows.square().sum(-1).mean()
    value = parameter.units.initial_variance / (size if size > 0 else 1.0)
    return value, *(end * value for end in RELATIVE_VARIANCE_BOUNDS)


def _lengthscale_location(units: Units, per_column: bool = False) -> Tensor:
    """Return loc + ½ log d + log s, with the scale of each column (d,) or their root mean square."""
    scales = units.column_scales if per_column else units.column_scales.square().mean().sqrt()
    return units.priors.lengthscale[0] + math.log(units.num_dims) / 2 + scales.log()


def _lengthscale_prior(parameter: KernelParameter) -> Prior:
    units = units_of_lengthscale(parameter.module, parameter.units)
    loc = _lengthscale_location(units, per_column=parameter.module.raw_lengthscale.shape[-1] > 1)
    return log_normal(loc, units.priors.lengthscale[1])


def _curve_lengthscale_prior(parameter: KernelParameter) -> Prior:
    # curves are compared at one grid point at a time: one column per channel, with the joint scale
    units, (loc, scale) = parameter.units, parameter.units.priors.lengthscale
    loc += math.log(parameter.module.num_channels) / 2
    return log_normal(loc + units.column_scales.square().mean().log() / 2, scale)


def _period_prior(parameter: KernelParameter) -> Prior:
    units, size = parameter.units, getattr(parameter.module, f"raw_{parameter.name}").shape[-1]
    scales = units.column_scales if size == units.num_dims else units.typical_distance
    return log_normal(units.priors.period[0] + scales.log(), units.priors.period[1])


def _variance_prior(parameter: KernelParameter) -> Prior:
    units, (loc, scale) = parameter.units, parameter.units.priors.variance
    loc = units.variance.log() + loc
    if units.is_derivative_variance:  # log(v ℓ²) = log v + 2 log ℓ, the two independent
        loc, scale = loc + 2 * _lengthscale_location(units), math.hypot(scale, 2 * units.priors.lengthscale[1])
    return log_normal(loc, scale)


def _slope_variance_prior(parameter: KernelParameter) -> Prior:
    units, (loc, scale) = parameter.units, parameter.units.priors.slope_variance
    return log_normal(loc + units.variance.log() - _positive(units.mean_squared_norm).log(), scale)


def _mixture_weight_prior(parameter: KernelParameter) -> Prior:
    # GPyTorch multiplies the mixtures of the columns: the variance is (Σ weights)^d
    kernel = parameter.module
    loc = parameter.units.variance.log() / kernel.raw_mixture_means.shape[-1] - math.log(kernel.num_mixtures)
    return log_normal(loc, parameter.units.priors.variance[1])


def _mixture_scale_prior(parameter: KernelParameter) -> Prior:
    # a width σ is the lengthscale 1/(2πσ)
    loc = -_lengthscale_location(parameter.units, per_column=True) - math.log(2 * math.pi)
    return log_normal(loc, parameter.units.priors.lengthscale[1])


def _mixture_mean_prior(parameter: KernelParameter) -> Prior:
    loc, scale = parameter.units.priors.period
    return log_normal(-loc - parameter.units.column_scales.log(), scale)


ROLES = {
    "lengthscale": Role(_lengthscale_prior, _find_lengthscale_range),
    "relative_lengthscale": Role(lambda p: _lengthscale_prior(replace(p, units=replace(p.units, X=None)))),
    "curve_lengthscale": Role(_curve_lengthscale_prior, _find_curve_lengthscale_range),
    "period": Role(_period_prior, _find_lengthscale_range),
    "variance": Role(_variance_prior, _find_variance_range),
    "slope_variance": Role(_slope_variance_prior, _find_slope_variance_range),
    "shape": Role(lambda p: log_normal(*p.units.priors.shape)),
    "offset": Role(lambda p: log_normal(_positive(p.units.mean_squared_norm).log(), DEFAULT_LOG_STD)),
    "mixture_weight": Role(_mixture_weight_prior),
    "mixture_scale": Role(_mixture_scale_prior),
    "mixture_mean": Role(_mixture_mean_prior),
}
"""Roles of the parameters of scalar kernels by name. The lengthscale of a periodic kernel is relative: it has no unit.
All other parameters get a prior around their present value."""


def set_parameter(module: Module, name: str, value: Tensor, low: Tensor, high: Tensor) -> dict[int, tuple]:
    """Set the constrained value of `raw_<name>` as close to `value` as its constraint allows, if it is trained.

    Returns its bounds by identity, or nothing if the constraint is tighter.
    """
    raw, constraint = getattr(module, f"raw_{name}"), module.constraint_for_parameter_name(f"raw_{name}")
    if not raw.requires_grad:
        return {}
    lower, upper = (end.to("cpu", torch.float64) for end in constraint)
    size = torch.where(torch.isfinite(lower), lower, upper).abs()
    margin = 1e-3 * torch.where(torch.isfinite(upper - lower), upper - lower, size)
    value = torch.clamp(value, lower + margin, upper - margin)
    raw.copy_(constraint.inverse_transform(value.to(raw)).expand_as(raw))
    return {id(raw): (low, high)} if bool((low < upper).all() and (high > lower).all()) else {}


def _loading_names(module: FreeMatrix | IndexKernel) -> tuple[str, str]:
    return ("loadings", "diagonal") if isinstance(module, FreeMatrix) else ("covar_factor", "var")


def _initialize_loadings(module: FreeMatrix | IndexKernel, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Set W Wᵀ + diag(v) ≈ covariance, with W the leading principal components of the correlations.

    Correlations rather than covariances keep outputs in small units; W gets `LOADINGS_FRACTION` of their variance.
    """
    name, diagonal = _loading_names(module)
    loadings, variances = getattr(module, name), covariance.diagonal()
    deviations, rank = variances.sqrt(), loadings.shape[-1]
    values, vectors = torch.linalg.eigh(covariance / torch.outer(deviations, deviations))
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    # a column of zeros has no gradient and would stay zero
    scales = (LOADINGS_FRACTION * values.clamp_min(MIN_RELATIVE_VARIANCE)).sqrt()
    found = vectors * scales * _signs_of_largest(vectors)
    if loadings.requires_grad:
        loadings.copy_((deviations.unsqueeze(-1) * found).to(loadings).expand_as(loadings))
    rest = variances * (1 - found.square().sum(-1)).clamp_min(MIN_RELATIVE_VARIANCE)
    return set_parameter(module, diagonal, rest, *(end * variances for end in RELATIVE_VARIANCE_BOUNDS))


def initialize_cholesky(module: FullMatrix, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Set L Lᵀ = covariance with correlations shrunk by `LOADINGS_FRACTION`, since estimates may be singular."""
    if not (module.log_scale.requires_grad and module.lower.requires_grad):
        return {}
    variances = covariance.diagonal()
    shrunk = LOADINGS_FRACTION * covariance + (1 - LOADINGS_FRACTION) * torch.diag(variances)
    set_chol(module, torch.linalg.cholesky(shrunk))
    return {id(module.log_scale): tuple(0.5 * (end * variances).log() for end in RELATIVE_VARIANCE_BOUNDS)}


def _signs_of_largest(vectors: Tensor) -> Tensor:
    """Return signs that make the largest entry of each column positive."""
    largest = vectors.abs().argmax(0, keepdim=True)
    return torch.where(vectors.gather(0, largest) < 0, -1.0, 1.0)


def _register_matrix_priors(module: OutputMatrix | IndexKernel, units: Units, registry: PriorRegistry) -> None:
    log_variances, priors = 2 * units.deviations.log(), units.priors
    if isinstance(module, FullMatrix):
        prior = CovariancePrior(log_variances + priors.variance[0], priors.variance[1], LKJ_CONCENTRATION)
        registry.add_covariance(module, prior)
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = _loading_names(module)
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        registry.add(module, f"raw_{diagonal}", log_normal(log_variances + priors.diagonal[0], priors.diagonal[1]))
    register_remaining_priors(module, registry)


def register_remaining_priors(module: Module, registry: PriorRegistry, unit: Tensor | float = 1.0) -> None:
    """Register priors on all other parameters below a module, except those inside kernels and output matrices.

    Around the present value they are log-normal of width `DEFAULT_LOG_STD` for positive parameters, uniform on bounded
    intervals, and normal of width max(|value|, unit) otherwise.
    """
    for path, parameter in list(module.named_parameters()):  # priors are modules, and join the others
        owners = [module.get_submodule(path[:dot]) for dot, letter in enumerate(path) if letter == "."]
        if not registry.needs_prior(parameter) or any(isinstance(owner, (Kernel, OutputMatrix)) for owner in owners):
            continue
        registry.add(module, path, _prior_around_value(module, path, unit))


def _prior_around_value(module: Module, path: str, unit: Tensor | float) -> Prior:
    parameter, constraint = find_parameter(module, path)
    with torch.no_grad():
        value = (parameter if constraint is None else constraint.transform(parameter)).to("cpu", torch.float64)
    ends = (-math.inf, math.inf) if constraint is None else (constraint.lower_bound.min(), constraint.upper_bound.max())
    low, high = map(float, ends)
    if math.isfinite(low) and math.isfinite(high):
        return uniform(low, high)
    return log_normal(value.log(), DEFAULT_LOG_STD) if low >= 0 else normal(value, value.abs().clamp_min(float(unit)))


def _positive(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1.0)
