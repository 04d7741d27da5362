"""Hyperparameters of a kernel with their roles: one rule per class of kernels, one table of roles.

`kernel_parameters` visits a kernel from the outside in: a composite kernel passes on the inputs and the variance that its
parts have to explain. The role of a parameter gives its initial value, bounds and prior in these units. With columns of
scales s_j (of root mean square s) and outputs of variance v, the priors are

    lengthscale   LogNormal(√2 + ½ log d + log s_j, √3)         period       LogNormal(log 2 s_j, 1)
    variance      LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)

`kernel_parameters.register` adds a rule for another class of composite kernels; a scalar kernel names the roles of its
parameters in its record (`ovkgp.kernels.register_kernel`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import NamedTuple

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    AdditiveKernel,
    IndexKernel,
    Kernel,
    LCMKernel,
    MultitaskKernel,
    PolynomialKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.module import Module
from gpytorch.priors import Prior
from linear_operator import to_dense
from torch import Tensor

from ovkgp.features.orff_kernel import ORFFKernel
from ovkgp.inference.training.covariance_prior import CovariancePrior, set_chol
from ovkgp.inference.training.prior_sites import PriorRegistry, find_parameter, log_normal, normal, uniform
from ovkgp.inference.training.units import MIN_RELATIVE_VARIANCE, Units, column_distances, row_distances
from ovkgp.kernels import (
    BlockwiseProductKernel,
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    IndependentKernel,
    OutputMatrix,
    TransformableKernel,
    WarpedKernel,
    find_record,
    num_outputs,
)
from ovkgp.kernels.fields import FieldKernel

RELATIVE_LENGTHSCALE_BOUNDS = (1e-2, 1e3)  # relative to the 5 % quantile and to the median of the distances
RELATIVE_VARIANCE_BOUNDS = (1e-8, 1e4)  # relative to the variance of the outputs
TERM_LENGTHSCALE_RATIO, MIN_TERM_LENGTHSCALE_RATIO = 0.4, 0.064
"""Ratio of lengthscales between consecutive terms of a sum, and its minimum over the whole sum."""
LOADINGS_FRACTION = 0.9
"""Fraction of a principal component's variance that goes to the loadings; the rest goes to the diagonal."""
LENGTHSCALE_PRIOR = (math.sqrt(2), math.sqrt(3))  # location (in one dimension) and scale of log ℓ
VARIANCE_PRIOR = (0.0, 1.0)  # location and scale of the logarithm of a variance, relative to that of the outputs
DIAGONAL_PRIOR = (-1.0, 1.5)  # location and scale of the logarithm of an output-specific variance
PERIOD_PRIOR = (math.log(2), 1.0)
"""Location and scale of the logarithm of a period, relative to the scale of the column."""
SHAPE_PRIOR = (0.0, 1.0)  # location and scale of the logarithm of α of a rational quadratic kernel
DEFAULT_LOG_STD = 1.5  # standard deviation of the logarithm of any other positive parameter, around its present value
LKJ_CONCENTRATION = 2.0
"""Concentration of the LKJ distribution of correlations; values above 1 favor small correlations."""

Range = tuple[Tensor, Tensor, Tensor]
"""Initial value, lower and upper bound of a parameter."""


@dataclass(frozen=True)
class KernelParameter:
    """A hyperparameter inside a kernel: the module that owns `raw_<name>`, its role, and the units of the module.

    `initial` computes the variance (or the covariance, for an output matrix) that the parameter should have, from the
    parts of the kernel that are visited before it.
    """

    module: Module
    name: str
    role: str
    units: Units
    initial: Callable[[], Tensor] | None = None

    def initialize(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Set the parameter and return its bounds by the identity of the raw parameter, as far as they are known."""
        if self.role == "output_matrix":
            return {} if self.initial is None else _initialize_matrix(self.module, self.initial())
        find_range = ROLES[self.role].initial if self.role in ROLES else None
        if find_range is None or not self.units.sets_values:
            return {}
        return set_parameter(self.module, self.name, *find_range(self))

    def register_prior(self, registry: PriorRegistry) -> None:
        """Register the prior of the parameter, if it is trained and has none."""
        if self.role == "output_matrix":
            _register_matrix_priors(self.module, self.units, registry)
        elif self.role == "score":  # learned frequencies are computed from standard normal scores
            registry.add(self.module, self.name, normal(0.0, 1.0))
        elif self.role == "other":
            register_remaining_priors(self.module, registry, self.units.parameter_unit)
        else:
            registry.add(self.module, f"raw_{self.name}", ROLES[self.role].prior(self))


class Role(NamedTuple):
    """Prior of a parameter and, if it is initialized from the data, its initial value and bounds."""

    prior: Callable[[KernelParameter], Prior]
    initial: Callable[[KernelParameter], Range] | None = None


def initialize_kernel(kernel: Kernel, units: Units) -> dict[int, tuple[Tensor, Tensor]]:
    """Set the trained hyperparameters of a kernel and return their bounds by identity."""
    bounds = {}
    for parameter in kernel_parameters(kernel, units):
        bounds |= parameter.initialize()
    return bounds


def register_kernel_priors(kernel: Kernel, units: Units, registry: PriorRegistry) -> None:
    """Register priors on the trained hyperparameters of a kernel that have none."""
    for parameter in list(kernel_parameters(kernel, units)):  # priors are modules, and join the others
        parameter.register_prior(registry)


def kernel_parameters(kernel: Kernel, units: Units) -> Iterator[KernelParameter]:
    """Yield the hyperparameters of a kernel, each after those inside it; `active_dims` compose on the way down."""
    return apply_rule(kernel, units.select_columns(kernel.active_dims))


@singledispatch
def apply_rule(kernel: Kernel, units: Units) -> Iterator[KernelParameter]:
    """Yield the own parameters of a kernel, then those of its parts; only `base_kernel` is initialized (default rule)."""
    yield from _own_parameters(kernel, units)
    for part in _inner_modules(kernel):
        own = units if part is getattr(kernel, "base_kernel", None) else replace(units, sets_values=False)
        if isinstance(part, Kernel):
            yield from kernel_parameters(part, own)
        else:
            yield KernelParameter(part, "", "output_matrix", own)


def _own_parameters(kernel: Kernel, units: Units) -> Iterator[KernelParameter]:
    record = find_record(kernel)
    roles = record.roles if record is not None else {"lengthscale": "lengthscale"} if kernel.has_lengthscale else {}
    for name, role in roles.items():
        if hasattr(kernel, f"raw_{name}"):  # options of a kernel may omit a parameter
            yield KernelParameter(kernel, name, role, units)
    yield KernelParameter(kernel, "", "other", units)


def _inner_modules(module: torch.nn.Module) -> Iterator[Kernel | OutputMatrix]:
    """Yield the nearest kernels and output matrices inside a module, also inside containers."""
    for child in module.children():
        if isinstance(child, (Kernel, OutputMatrix)):
            yield child
        else:
            yield from _inner_modules(child)


@apply_rule.register
def _(kernel: ScaleKernel, units: Units) -> Iterator[KernelParameter]:
    inner = kernel.base_kernel
    yield from apply_rule(inner, units.normalized())  # its active_dims were applied with those of the ScaleKernel
    own = replace(
        _units_of_lengthscale(inner, units),
        covariance=units.covariance / _unscaled_variance(inner, units),
        is_derivative_variance=units.is_derivative_variance or isinstance(inner, FieldKernel),
    )

    def initial() -> Tensor:
        return units.initial_variance / _mean_or_one(inner.forward(*2 * (_cast_like(kernel, units.rows),), diag=True))

    yield KernelParameter(kernel, "outputscale", "variance", own, initial)
    yield KernelParameter(kernel, "", "other", units)


def _unscaled_variance(kernel: Kernel, units: Units) -> Tensor | float:
    """Return the mean prior variance of a kernel that has no outputscale."""
    return (2 * units.mean_squared_norm).pow(kernel.power) if isinstance(kernel, PolynomialKernel) else 1.0


@apply_rule.register(AdditiveKernel)
@apply_rule.register(LCMKernel)
def _(kernel: AdditiveKernel | LCMKernel, units: Units) -> Iterator[KernelParameter]:
    terms = getattr(kernel, "kernels", None) or kernel.covar_module_list
    ratio = max(TERM_LENGTHSCALE_RATIO, MIN_TERM_LENGTHSCALE_RATIO ** (1 / max(1, len(terms) - 1)))
    for index, term in enumerate(terms):
        factor = units.lengthscale_factor * ratio**index
        yield from kernel_parameters(term, replace(units.share(1 / len(terms)), lengthscale_factor=factor))


@apply_rule.register
def _(kernel: ProductKernel, units: Units) -> Iterator[KernelParameter]:
    for index, factor in enumerate(kernel.kernels):
        yield from kernel_parameters(factor, units if index == 0 else units.as_scalar())


@apply_rule.register
def _(kernel: BlockwiseProductKernel, units: Units) -> Iterator[KernelParameter]:
    yield from kernel_parameters(kernel.scalar_kernel, units.as_scalar())
    yield from kernel_parameters(kernel.base_kernel, units)


@apply_rule.register
def _(kernel: DecomposableKernel, units: Units) -> Iterator[KernelParameter]:
    module, base = kernel.output_module, kernel.base_kernel
    if isinstance(module, (FreeMatrix, FullMatrix)):
        yield from kernel_parameters(base, units.as_scalar())
        initial = lambda: units.initial_covariance / mean_prior_variance(base, units.rows)  # noqa: E731
        yield KernelParameter(module, "", "output_matrix", units, initial)
    else:
        yield KernelParameter(module, "", "output_matrix", units)
        with torch.no_grad():
            known = module().diagonal(dim1=-2, dim2=-1).mean().to("cpu", torch.float64).clamp_min(1e-30)
        yield from kernel_parameters(base, units.as_scalar(units.variance / known))


@apply_rule.register
def _(kernel: FieldKernel, units: Units) -> Iterator[KernelParameter]:
    own = replace(units.as_scalar(units.variance), is_derivative_variance=not units.is_scaled)
    yield from kernel_parameters(kernel.base_kernel, replace(own, variance_factor=1 / units.variance))
    if units.X is not None:  # the variance of a field is that of derivatives, known once the lengthscale is set
        factor = units.variance_factor / mean_prior_variance(kernel, units.rows)
        yield from kernel_parameters(kernel.base_kernel, replace(own, variance_factor=factor))


@apply_rule.register
def _(kernel: MultitaskKernel, units: Units) -> Iterator[KernelParameter]:
    yield from kernel_parameters(kernel.data_covar_module, units.as_scalar())
    yield KernelParameter(kernel.task_covar_module, "", "output_matrix", units, lambda: units.initial_covariance)


@apply_rule.register
def _(kernel: IndependentKernel, units: Units) -> Iterator[KernelParameter]:
    for index, part in enumerate(kernel.kernels):
        yield from kernel_parameters(part, units.for_output(index))


@apply_rule.register
def _(kernel: TransformableKernel, units: Units) -> Iterator[KernelParameter]:
    inner = units.as_scalar(units.variance)
    if units.X is not None:
        with torch.no_grad():
            points = kernel.points(_cast_like(kernel, units.X)).flatten(-3, -2)
        inner = inner.with_inputs(points, points.shape[-1])
    yield from kernel_parameters(kernel.base_kernel, inner)
    # a delay is in the units of the inputs
    yield KernelParameter(kernel, "", "other", replace(units, parameter_unit=units.typical_distance))


@apply_rule.register
def _(kernel: FunctionValuedKernel, units: Units) -> Iterator[KernelParameter]:
    X, on_grid, q = units.X, kernel.tasks is not None, num_outputs(kernel.input_kernel)
    t = kernel.tasks.shape[-1] if on_grid else kernel.num_task_dims
    num_inputs = units.num_dims if on_grid else max(1, units.num_dims - t)
    inputs, tasks = (None, None) if X is None else (X, kernel.tasks) if on_grid else (X[:, :-t], X[:, -t:])
    of_tasks = replace(units.as_scalar().with_inputs(tasks, t), lengthscale_factor=1.0)
    yield from kernel_parameters(kernel.task_kernel, of_tasks)
    if on_grid and len(units.covariance) > 1:  # the outputs of one task, averaged over tasks
        blocks = units.covariance.reshape(len(kernel.tasks), q, len(kernel.tasks), q)
        units = replace(units, covariance=blocks.diagonal(dim1=0, dim2=2).mean(-1))
    if X is not None:
        units = units.share(1 / mean_prior_variance(kernel.task_kernel, of_tasks.X))
    yield from kernel_parameters(kernel.input_kernel, units.with_inputs(inputs, num_inputs))


@apply_rule.register
def _(kernel: WarpedKernel, units: Units) -> Iterator[KernelParameter]:
    X = units.X
    if X is not None:
        with torch.no_grad():
            X = kernel.group(_cast_like(kernel, X), kernel.columns)
    yield from kernel_parameters(kernel.base_kernel, units.with_inputs(X, kernel.group.embedding_dim))
    yield KernelParameter(kernel, "", "other", units)


@apply_rule.register
def _(kernel: ORFFKernel, units: Units) -> Iterator[KernelParameter]:
    if kernel.orff.kernel is not None:
        yield from kernel_parameters(kernel.orff.kernel, units)
    yield from score_parameters(kernel.orff, units)


def score_parameters(features: Module, units: Units) -> Iterator[KernelParameter]:
    """Yield the scores from which the learned frequencies of random features are computed."""
    for name in dict(features.named_parameters(recurse=False)):
        yield KernelParameter(features, name, "score", units)


def mean_prior_variance(kernel: Kernel, X: Tensor) -> Tensor:
    """Return the prior variance of a kernel, averaged over the rows of X and the outputs; 1 if it is not positive."""
    return _mean_or_one(kernel(_cast_like(kernel, X), diag=True))


def _mean_or_one(values: Tensor) -> Tensor:
    mean = to_dense(values).to("cpu", torch.float64).mean().detach()
    return mean if bool(torch.isfinite(mean) and mean > 0) else torch.ones((), dtype=torch.float64)


def _cast_like(kernel: Kernel, X: Tensor) -> Tensor:
    parameter = next(kernel.parameters(), None)
    return X if parameter is None else X.to(parameter)


def _units_of_lengthscale(kernel: Kernel, units: Units) -> Units:
    """Return units with as many columns as the kernel has lengthscales, if the data do not define them."""
    count = kernel.ard_num_dims
    return units if count is None or count == units.num_dims else Units(count, units.covariance)


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
    """Return √2 + ½ log d + log s, with the scale of each column (d,) or their root mean square."""
    scales = units.column_scales if per_column else units.column_scales.square().mean().sqrt()
    return LENGTHSCALE_PRIOR[0] + math.log(units.num_dims) / 2 + scales.log()


def _lengthscale_prior(parameter: KernelParameter) -> Prior:
    units = _units_of_lengthscale(parameter.module, parameter.units)
    loc = _lengthscale_location(units, per_column=parameter.module.raw_lengthscale.shape[-1] > 1)
    return log_normal(loc, LENGTHSCALE_PRIOR[1])


def _curve_lengthscale_prior(parameter: KernelParameter) -> Prior:
    # curves are compared at one grid point at a time: one column per channel, with the joint scale
    loc = LENGTHSCALE_PRIOR[0] + math.log(parameter.module.num_channels) / 2
    return log_normal(loc + parameter.units.column_scales.square().mean().log() / 2, LENGTHSCALE_PRIOR[1])


def _period_prior(parameter: KernelParameter) -> Prior:
    units, size = parameter.units, getattr(parameter.module, f"raw_{parameter.name}").shape[-1]
    scales = units.column_scales if size == units.num_dims else units.typical_distance
    return log_normal(PERIOD_PRIOR[0] + scales.log(), PERIOD_PRIOR[1])


def _variance_prior(parameter: KernelParameter) -> Prior:
    loc, scale = parameter.units.variance.log() + VARIANCE_PRIOR[0], VARIANCE_PRIOR[1]
    if parameter.units.is_derivative_variance:  # log(v ℓ²) = log v + 2 log ℓ, the two independent
        loc, scale = loc + 2 * _lengthscale_location(parameter.units), math.hypot(scale, 2 * LENGTHSCALE_PRIOR[1])
    return log_normal(loc, scale)


def _slope_variance_prior(parameter: KernelParameter) -> Prior:
    units = parameter.units
    loc = VARIANCE_PRIOR[0] + units.variance.log() - _positive(units.mean_squared_norm).log()
    return log_normal(loc, VARIANCE_PRIOR[1])


def _mixture_weight_prior(parameter: KernelParameter) -> Prior:
    # GPyTorch multiplies the mixtures of the columns: the variance is (Σ weights)^d
    kernel = parameter.module
    loc = parameter.units.variance.log() / kernel.raw_mixture_means.shape[-1] - math.log(kernel.num_mixtures)
    return log_normal(loc, VARIANCE_PRIOR[1])


def _mixture_scale_prior(parameter: KernelParameter) -> Prior:
    # a width σ is the lengthscale 1/(2πσ)
    loc = -_lengthscale_location(parameter.units, per_column=True) - math.log(2 * math.pi)
    return log_normal(loc, LENGTHSCALE_PRIOR[1])


ROLES = {
    "lengthscale": Role(_lengthscale_prior, _find_lengthscale_range),
    "relative_lengthscale": Role(lambda p: _lengthscale_prior(replace(p, units=replace(p.units, X=None)))),
    "curve_lengthscale": Role(_curve_lengthscale_prior, _find_curve_lengthscale_range),
    "period": Role(_period_prior, _find_lengthscale_range),
    "variance": Role(_variance_prior, _find_variance_range),
    "slope_variance": Role(_slope_variance_prior, _find_slope_variance_range),
    "shape": Role(lambda p: log_normal(*SHAPE_PRIOR)),
    "offset": Role(lambda p: log_normal(_positive(p.units.mean_squared_norm).log(), DEFAULT_LOG_STD)),
    "mixture_weight": Role(_mixture_weight_prior),
    "mixture_scale": Role(_mixture_scale_prior),
    "mixture_mean": Role(lambda p: log_normal(-PERIOD_PRIOR[0] - p.units.column_scales.log(), PERIOD_PRIOR[1])),
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
    with torch.no_grad():
        raw.copy_(constraint.inverse_transform(value.to(raw)).expand_as(raw))
    return {id(raw): (low, high)} if bool((low < upper).all() and (high > lower).all()) else {}


def _initialize_matrix(module: OutputMatrix | IndexKernel, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    with torch.no_grad():
        if isinstance(module, FullMatrix):
            return _initialize_cholesky(module, covariance)
        return _initialize_loadings(module, covariance)


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


def _initialize_cholesky(module: FullMatrix, covariance: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
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
    log_variances = 2 * units.deviations.log()
    if isinstance(module, FullMatrix):
        prior = CovariancePrior(log_variances + VARIANCE_PRIOR[0], VARIANCE_PRIOR[1], LKJ_CONCENTRATION)
        registry.add_covariance(module, prior)
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = _loading_names(module)
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        registry.add(module, f"raw_{diagonal}", log_normal(log_variances + DIAGONAL_PRIOR[0], DIAGONAL_PRIOR[1]))
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
    low, high = _constraint_bounds(constraint)
    if math.isfinite(low) and math.isfinite(high):
        return uniform(low, high)
    return log_normal(value.log(), DEFAULT_LOG_STD) if low >= 0 else normal(value, value.abs().clamp_min(float(unit)))


def _constraint_bounds(constraint: Interval | None) -> tuple[float, float]:
    if constraint is None:
        return -math.inf, math.inf
    return constraint.lower_bound.min().item(), constraint.upper_bound.max().item()


def _positive(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1.0)
