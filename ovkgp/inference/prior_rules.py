"""The prior of each kind of hyperparameter of a kernel, in the units that it is told of, from the outside in.

With columns of scales s_j (of root mean square s) and outputs of variance v:

    lengthscale   LogNormal(√2 + ½ log d + log s_j, √3)         period       LogNormal(log 2 s_j, 1)
    outputscale   LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)

`kernel_priors.register` adds a rule for another class of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import singledispatch

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    IndexKernel,
    Kernel,
    LCMKernel,
    LinearKernel,
    MultitaskKernel,
    PeriodicKernel,
    PolynomialKernel,
    ProductKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.module import Module
from gpytorch.priors import Prior
from torch import Tensor

from ovkgp.features.orff_kernel import ORFFKernel
from ovkgp.inference.covariance_prior import CovariancePrior
from ovkgp.inference.prior_sites import find
from ovkgp.inference.prior_units import Registry, Units, log_normal, normal, uniform
from ovkgp.kernels import (
    BlockwiseProductKernel,
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    IndependentKernel,
    LaplaceCurveKernel,
    OutputMatrix,
    TransformableKernel,
    WarpedKernel,
)
from ovkgp.kernels.fields import FieldKernel

LENGTHSCALE = (math.sqrt(2), math.sqrt(3))
"""Location in one dimension, and scale, of log ℓ."""
OUTPUTSCALE = (0.0, 1.0)
"""Location and scale of the logarithm of an outputscale, relative to the variance of the outputs."""
DIAGONAL = (-1.0, 1.5)
"""Of the logarithm of an output's own variance."""
PERIOD = (math.log(2), 1.0)
"""Of the logarithm of a period, relative to the scale of the column."""
SHAPE = (0.0, 1.0)
"""Of the logarithm of the α of a rational quadratic kernel."""
OTHER = 1.5
"""The standard deviation of the logarithm of any other positive parameter, around its present value."""
CONCENTRATION = 2.0
"""Of the LKJ law of correlations: it is mildly against correlations of ±1."""


def visit(kernel: Kernel, units: Units, registry: Registry) -> None:
    """Give the kernel and all those inside it their priors; `active_dims` compose on the way down."""
    kernel_priors(kernel, units.columns_of(kernel.active_dims), registry)


@singledispatch
def kernel_priors(kernel: Kernel, units: Units, registry: Registry) -> None:
    """The rule for one class of kernels: its own lengthscale and any other parameters, then what is inside it."""
    own_priors(kernel, units, registry)
    for part in _parts(kernel):
        (visit if isinstance(part, Kernel) else matrix_priors)(part, units, registry)


def _parts(module: torch.nn.Module) -> Iterator[Kernel | OutputMatrix]:
    """The nearest kernels and output matrices inside a module, in containers too."""
    for child in module.children():
        if isinstance(child, (Kernel, OutputMatrix)):
            yield child
        else:
            yield from _parts(child)


# --- wrappers, sums and products ------------------------------------------------------------------------------------


@kernel_priors.register
def _(kernel: ScaleKernel, units: Units, registry: Registry) -> None:
    inner = kernel.base_kernel
    of_derivatives = units.of_derivatives or isinstance(inner, FieldKernel)
    loc = units.variance.log() - _level(inner, units).log()
    registry.add(kernel, "raw_outputscale", log_normal(*_scale_law(loc, _own(inner, units), of_derivatives)))
    own_priors(kernel, units, registry)
    kernel_priors(inner, units.unit(), registry)  # its active_dims are also those of the scaling, and done with


def _scale_law(loc: Tensor, units: Units, of_derivatives: bool) -> tuple[Tensor, float]:
    if not of_derivatives:
        return loc + OUTPUTSCALE[0], OUTPUTSCALE[1]
    # log(v ℓ²) = log v + 2 log ℓ, the two independent
    return loc + OUTPUTSCALE[0] + 2 * _lengthscale_loc(units), math.hypot(OUTPUTSCALE[1], 2 * LENGTHSCALE[1])


def _level(kernel: Kernel, units: Units) -> Tensor:
    """The mean prior variance of a kernel that has no scale of its own."""
    is_polynomial = isinstance(kernel, PolynomialKernel)
    return (2 * units.size).pow(kernel.power) if is_polynomial else torch.ones((), dtype=torch.float64)


@kernel_priors.register(AdditiveKernel)
@kernel_priors.register(LCMKernel)
def _(kernel: AdditiveKernel | LCMKernel, units: Units, registry: Registry) -> None:
    for term in getattr(kernel, "kernels", None) or kernel.covar_module_list:
        visit(term, units, registry)


@kernel_priors.register
def _(kernel: ProductKernel, units: Units, registry: Registry) -> None:
    for place, factor in enumerate(kernel.kernels):
        visit(factor, units if place == 0 else units.scalar(), registry)


@kernel_priors.register
def _(kernel: BlockwiseProductKernel, units: Units, registry: Registry) -> None:
    visit(kernel.scalar_kernel, units.scalar(), registry)
    visit(kernel.base_kernel, units, registry)


# --- operator-valued kernels ------------------------------------------------------------------------------------------


@kernel_priors.register
def _(kernel: DecomposableKernel, units: Units, registry: Registry) -> None:
    module = kernel.output_module
    matrix_priors(module, units, registry)
    if isinstance(module, (FreeMatrix, FullMatrix)):
        visit(kernel.base_kernel, units.scalar(), registry)
    else:
        with torch.no_grad():
            known = module().diagonal(dim1=-2, dim2=-1).mean().to("cpu", torch.float64).clamp_min(1e-30)
        visit(kernel.base_kernel, units.scalar(units.variance / known), registry)


def matrix_priors(module: OutputMatrix | IndexKernel, units: Units, registry: Registry) -> None:
    """The priors of an output matrix of which the variances of `units` are asked."""
    if isinstance(module, FullMatrix):
        law = (2 * units.deviations.log() + OUTPUTSCALE[0], OUTPUTSCALE[1], CONCENTRATION)
        registry.add_covariance(module, CovariancePrior(*law))
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = ("loadings", "diagonal") if isinstance(module, FreeMatrix) else ("covar_factor", "var")
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        law = (2 * units.deviations.log() + DIAGONAL[0], DIAGONAL[1])
        registry.add(module, f"raw_{diagonal}", log_normal(*law))
    other_priors(module, registry)


@kernel_priors.register
def _(kernel: FieldKernel, units: Units, registry: Registry) -> None:
    inner = replace(units.scalar(units.variance), of_derivatives=not units.is_scaled)
    visit(kernel.base_kernel, inner, registry)


@kernel_priors.register
def _(kernel: MultitaskKernel, units: Units, registry: Registry) -> None:
    visit(kernel.data_covar_module, units.scalar(), registry)
    matrix_priors(kernel.task_covar_module, units, registry)


@kernel_priors.register
def _(kernel: IndependentKernel, units: Units, registry: Registry) -> None:
    for index, part in enumerate(kernel.kernels):
        visit(part, units.output(index), registry)


@kernel_priors.register
def _(kernel: TransformableKernel, units: Units, registry: Registry) -> None:
    inner = units.scalar(units.variance)
    if units.X is not None:
        with torch.no_grad():
            points = kernel.points(_like(kernel, units.X)).flatten(-3, -2)
        inner = inner.at(points, points.shape[-1])
    visit(kernel.base_kernel, inner, registry)
    other_priors(kernel, registry, _size(units))  # a delay is in the units of the inputs


@kernel_priors.register
def _(kernel: FunctionValuedKernel, units: Units, registry: Registry) -> None:
    X, on_grid = units.X, kernel.tasks is not None
    t = kernel.tasks.shape[-1] if on_grid else kernel.num_task_dims
    seen = units.num_dims if on_grid else max(1, units.num_dims - t)
    inputs, tasks = (None, None) if X is None else (X, kernel.tasks) if on_grid else (X[:, :-t], X[:, -t:])
    visit(kernel.task_kernel, units.scalar().at(tasks, t), registry)
    if on_grid and len(units.deviations) > 1:  # the outputs of one task, averaged over tasks
        variances = units.deviations.square().reshape(len(kernel.tasks), -1).mean(0)
        units = replace(units, deviations=variances.sqrt())
    visit(kernel.input_kernel, units.at(inputs, seen), registry)


@kernel_priors.register
def _(kernel: WarpedKernel, units: Units, registry: Registry) -> None:
    X = units.X
    if X is not None:
        with torch.no_grad():
            X = kernel.group(_like(kernel, X), kernel.columns)
    visit(kernel.base_kernel, units.at(X, kernel.group.embedding_dim), registry)
    other_priors(kernel, registry)


@kernel_priors.register
def _(kernel: ORFFKernel, units: Units, registry: Registry) -> None:
    if kernel.orff.kernel is not None:
        visit(kernel.orff.kernel, units, registry)
    score_priors(kernel.orff, registry)


def score_priors(orff: Module, registry: Registry) -> None:
    """Learned frequencies are functions of scores that are standard normal under the kernel's own law."""
    for name in dict(orff.named_parameters(recurse=False)):
        registry.add(orff, name, normal(0.0, 1.0))


# --- scalar kernels with something else than a lengthscale ------------------------------------------------------------


@kernel_priors.register(PeriodicKernel)
@kernel_priors.register(CosineKernel)
def _(kernel: PeriodicKernel | CosineKernel, units: Units, registry: Registry) -> None:
    columns = units.columns if kernel.raw_period_length.shape[-1] == units.num_dims else _size(units)
    registry.add(kernel, "raw_period_length", log_normal(PERIOD[0] + columns.log(), PERIOD[1]))
    own_priors(kernel, replace(units, X=None), registry)  # the lengthscale of a periodic kernel has no unit


@kernel_priors.register
def _(kernel: RQKernel, units: Units, registry: Registry) -> None:
    registry.add(kernel, "raw_alpha", log_normal(*SHAPE))
    own_priors(kernel, units, registry)


@kernel_priors.register
def _(kernel: LinearKernel, units: Units, registry: Registry) -> None:
    loc, scale = OUTPUTSCALE
    registry.add(kernel, "raw_variance", log_normal(loc + units.variance.log() - _positive(units.size).log(), scale))


@kernel_priors.register
def _(kernel: ConstantKernel, units: Units, registry: Registry) -> None:
    registry.add(kernel, "raw_constant", log_normal(OUTPUTSCALE[0] + units.variance.log(), OUTPUTSCALE[1]))


@kernel_priors.register
def _(kernel: PolynomialKernel, units: Units, registry: Registry) -> None:
    registry.add(kernel, "raw_offset", log_normal(_positive(units.size).log(), OTHER))


@kernel_priors.register
def _(kernel: SpectralMixtureKernel, units: Units, registry: Registry) -> None:
    """Weights share the variance; a width σ is the lengthscale 1/(2πσ), and a mean the inverse of a period."""
    width = -_lengthscale_loc(units, of_columns=True) - math.log(2 * math.pi)
    # GPyTorch multiplies the mixtures of the columns: the variance is (Σ weights)^d
    weight = units.variance.log() / kernel.raw_mixture_means.shape[-1] - math.log(kernel.num_mixtures)
    registry.add(kernel, "raw_mixture_weights", log_normal(weight, OUTPUTSCALE[1]))
    registry.add(kernel, "raw_mixture_scales", log_normal(width, LENGTHSCALE[1]))
    registry.add(kernel, "raw_mixture_means", log_normal(-PERIOD[0] - units.columns.log(), PERIOD[1]))


@kernel_priors.register(GaussianCurveKernel)
@kernel_priors.register(LaplaceCurveKernel)
def _(kernel: GaussianCurveKernel | LaplaceCurveKernel, units: Units, registry: Registry) -> None:
    # curves are compared at one grid point at a time: as many columns as channels, of the scale of all together
    loc = LENGTHSCALE[0] + math.log(kernel.num_channels) / 2 + units.columns.square().mean().log() / 2
    registry.add(kernel, "raw_lengthscale", log_normal(loc, LENGTHSCALE[1]))
    other_priors(kernel, registry)


# --- parameters -------------------------------------------------------------------------------------------------------


def own_priors(kernel: Kernel, units: Units, registry: Registry) -> None:
    """The prior of a kernel's lengthscale, and of whatever else it has."""
    if kernel.has_lengthscale:
        own = _own(kernel, units)
        loc = _lengthscale_loc(own, of_columns=kernel.raw_lengthscale.shape[-1] > 1)
        registry.add(kernel, "raw_lengthscale", log_normal(loc, LENGTHSCALE[1]))
    other_priors(kernel, registry)


def other_priors(module: Module, registry: Registry, unit: Tensor | float = 1.0) -> None:
    """Priors on all that is left below a module, its kernels and output matrices left out: they know better.

    Around the present value they are log-normal of width `OTHER` for what is positive, uniform for what lies in an
    interval, and normal of width max(|value|, unit) for all else.
    """
    for path, parameter in list(module.named_parameters()):  # priors are modules, and join the others
        owners = [module.get_submodule(path[:dot]) for dot, letter in enumerate(path) if letter == "."]
        if not registry.is_open(parameter) or any(isinstance(owner, (Kernel, OutputMatrix)) for owner in owners):
            continue
        registry.add(module, path, _around(module, path, unit))


def _around(module: Module, path: str, unit: Tensor | float) -> Prior:
    parameter, constraint = find(module, path)
    with torch.no_grad():
        value = (parameter if constraint is None else constraint.transform(parameter)).to("cpu", torch.float64)
    low, high = _ends(constraint)
    if math.isfinite(low) and math.isfinite(high):
        return uniform(low, high)
    return log_normal(value.log(), OTHER) if low >= 0 else normal(value, value.abs().clamp_min(float(unit)))


def _ends(constraint: Interval | None) -> tuple[float, float]:
    if constraint is None:
        return -math.inf, math.inf
    return constraint.lower_bound.min().item(), constraint.upper_bound.max().item()


def _own(kernel: Kernel, units: Units) -> Units:
    """With as many columns as a kernel has lengthscales, where nothing is known of the data."""
    count = kernel.ard_num_dims
    return units if count is None or count == units.num_dims else Units(count, units.deviations)


def _lengthscale_loc(units: Units, of_columns: bool = False) -> Tensor:
    """√2 + ½ log d + log s, with the scale of each column (d,) or of their root mean square."""
    scales = units.columns if of_columns else units.columns.square().mean().sqrt()
    return LENGTHSCALE[0] + math.log(units.num_dims) / 2 + scales.log()


def _size(units: Units) -> Tensor:
    """The typical distance between rows: the root of the summed squares of the columns' scales."""
    return units.columns.square().sum().sqrt()


def _positive(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1.0)


def _like(kernel: Kernel, X: Tensor) -> Tensor:
    parameter = next(kernel.parameters(), None)
    return X if parameter is None else X.to(parameter)
