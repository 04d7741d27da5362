"""Rules for the initial value, bounds and prior of each hyperparameter of a kernel, one rule per class of kernels.

Rules work from the outside in: a composite kernel passes on the inputs and the variance that its parts have to explain.
With columns of scales s_j (of root mean square s) and outputs of variance v, the priors are

    lengthscale   LogNormal(√2 + ½ log d + log s_j, √3)         period       LogNormal(log 2 s_j, 1)
    outputscale   LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)

`apply_init_rule.register` and `apply_prior_rule.register` add rules for another class of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
from linear_operator import to_dense
from torch import Tensor

from ovkgp.features.orff_kernel import ORFFKernel
from ovkgp.inference.training.covariance_prior import CovariancePrior, set_chol
from ovkgp.inference.training.prior_sites import (
    MIN_RELATIVE_VARIANCE,
    PriorRegistry,
    Units,
    column_distances,
    find_parameter,
    log_normal,
    normal,
    row_distances,
    subsample,
    uniform,
)
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
OUTPUTSCALE_PRIOR = (0.0, 1.0)
"""Location and scale of the logarithm of an outputscale, relative to the variance of the outputs."""
DIAGONAL_PRIOR = (-1.0, 1.5)  # location and scale of the logarithm of an output-specific variance
PERIOD_PRIOR = (math.log(2), 1.0)
"""Location and scale of the logarithm of a period, relative to the scale of the column."""
SHAPE_PRIOR = (0.0, 1.0)  # location and scale of the logarithm of α of a rational quadratic kernel
DEFAULT_LOG_STD = 1.5  # standard deviation of the logarithm of any other positive parameter, around its present value
LKJ_CONCENTRATION = 2.0
"""Concentration of the LKJ distribution of correlations; values above 1 favor small correlations."""

RecordBounds = Callable[[torch.nn.Parameter, Tensor, Tensor], None]


@dataclass
class InitializationContext:
    """Inputs of a kernel, the covariance it has to explain, and a factor on its lengthscales.

    `record_bounds(parameter, low, high)` is called for each parameter that gets an initial value.
    """

    X: Tensor
    covariance: Tensor
    record_bounds: RecordBounds
    lengthscale_factor: float = 1.0

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal().mean()

    def normalized(self) -> InitializationContext:
        """Return the same correlations with mean variance 1."""
        return replace(self, covariance=self.covariance / self.variance)

    def as_scalar(self, variance: Tensor | float = 1.0) -> InitializationContext:
        """Return the context of a scalar kernel with this variance."""
        return replace(self, covariance=torch.as_tensor(variance, dtype=torch.float64).reshape(1, 1))


def initialize_kernel(kernel: Kernel, context: InitializationContext) -> None:
    """Set the hyperparameters of a kernel and of all kernels inside it; `active_dims` compose on the way down."""
    if kernel.active_dims is not None:
        context = replace(context, X=context.X[:, kernel.active_dims.cpu()])
    apply_init_rule(kernel, context)


@singledispatch
def apply_init_rule(kernel: Kernel, context: InitializationContext) -> None:
    """Initialize the lengthscale of a kernel, then the kernel that it wraps (default rule)."""
    if kernel.has_lengthscale:
        initialize_lengthscale(kernel, "lengthscale", context)
    if isinstance(inner := getattr(kernel, "base_kernel", None), Kernel):
        initialize_kernel(inner, context)


@apply_init_rule.register
def _(kernel: ScaleKernel, context: InitializationContext) -> None:
    # its active_dims were applied with those of the ScaleKernel
    apply_init_rule(kernel.base_kernel, context.normalized())
    inner = kernel.base_kernel.forward(*2 * (_cast_like(kernel, context.X),), diag=True)
    initialize_variance(kernel, "outputscale", context.variance / _mean_or_one(inner), context)


@apply_init_rule.register(AdditiveKernel)
def _(kernel: AdditiveKernel, context: InitializationContext) -> None:
    _initialize_terms(kernel.kernels, context)


@apply_init_rule.register
def _(kernel: LCMKernel, context: InitializationContext) -> None:
    _initialize_terms(kernel.covar_module_list, context)


def _initialize_terms(terms, context: InitializationContext) -> None:
    ratio = max(TERM_LENGTHSCALE_RATIO, MIN_TERM_LENGTHSCALE_RATIO ** (1 / max(1, len(terms) - 1)))
    for index, term in enumerate(terms):
        factor = context.lengthscale_factor * ratio**index
        part = replace(context, covariance=context.covariance / len(terms), lengthscale_factor=factor)
        initialize_kernel(term, part)


@apply_init_rule.register
def _(kernel: ProductKernel, context: InitializationContext) -> None:
    first, *rest = kernel.kernels
    initialize_kernel(first, context)
    for factor in rest:
        initialize_kernel(factor, context.as_scalar())


@apply_init_rule.register
def _(kernel: BlockwiseProductKernel, context: InitializationContext) -> None:
    initialize_kernel(kernel.scalar_kernel, context.as_scalar())
    initialize_kernel(kernel.base_kernel, context)


@apply_init_rule.register
def _(kernel: DecomposableKernel, context: InitializationContext) -> None:
    module = kernel.output_module
    if isinstance(module, FreeMatrix):
        initialize_kernel(kernel.base_kernel, context.as_scalar())
        target = context.covariance / mean_prior_variance(kernel.base_kernel, context.X)
        _initialize_loadings(module, "loadings", "diagonal", target, context)
    elif isinstance(module, FullMatrix):
        initialize_kernel(kernel.base_kernel, context.as_scalar())
        _initialize_cholesky(module, context.covariance / mean_prior_variance(kernel.base_kernel, context.X), context)
    else:
        known = module().diagonal(dim1=-2, dim2=-1).mean().clamp_min(1e-30)
        initialize_kernel(kernel.base_kernel, context.as_scalar(context.variance / known.cpu()))


@apply_init_rule.register
def _(kernel: FieldKernel, context: InitializationContext) -> None:
    initialize_kernel(kernel.base_kernel, context.as_scalar())
    # the variance of a field is that of derivatives, known once the lengthscale is set
    initialize_kernel(kernel.base_kernel, context.as_scalar(context.variance / mean_prior_variance(kernel, context.X)))


@apply_init_rule.register
def _(kernel: MultitaskKernel, context: InitializationContext) -> None:
    initialize_kernel(kernel.data_covar_module, context.as_scalar())
    _initialize_loadings(kernel.task_covar_module, "covar_factor", "var", context.covariance, context)


@apply_init_rule.register
def _(kernel: IndependentKernel, context: InitializationContext) -> None:
    for part, variance in zip(kernel.kernels, context.covariance.diagonal(), strict=True):
        initialize_kernel(part, context.as_scalar(variance))


@apply_init_rule.register
def _(kernel: TransformableKernel, context: InitializationContext) -> None:
    points = kernel.points(_cast_like(kernel, context.X)).flatten(-3, -2).to("cpu", torch.float64)
    initialize_kernel(kernel.base_kernel, replace(context.as_scalar(context.variance), X=subsample(points)))


@apply_init_rule.register
def _(kernel: FunctionValuedKernel, context: InitializationContext) -> None:
    q, t, covariance = num_outputs(kernel.input_kernel), kernel.num_task_dims, context.covariance
    if kernel.tasks is None:
        X, tasks = context.X[:, :-t], context.X[:, -t:]
    else:
        X, tasks = context.X, kernel.tasks.detach().to("cpu", torch.float64)
        blocks = covariance.reshape(len(tasks), q, len(tasks), q)
        covariance = blocks.diagonal(dim1=0, dim2=2).mean(-1)  # the outputs of one task, averaged over tasks
    initialize_kernel(kernel.task_kernel, replace(context.as_scalar(), X=tasks, lengthscale_factor=1.0))
    covariance = covariance / mean_prior_variance(kernel.task_kernel, tasks)
    initialize_kernel(kernel.input_kernel, replace(context, X=X, covariance=covariance))


@apply_init_rule.register
def _(kernel: WarpedKernel, context: InitializationContext) -> None:
    warped = kernel.group(_cast_like(kernel, context.X), kernel.columns).detach().to("cpu", torch.float64)
    initialize_kernel(kernel.base_kernel, replace(context, X=warped))


@apply_init_rule.register
def _(kernel: ORFFKernel, context: InitializationContext) -> None:
    if kernel.orff.kernel is not None:
        initialize_kernel(kernel.orff.kernel, context)


@apply_init_rule.register(PeriodicKernel)
@apply_init_rule.register(CosineKernel)
def _(kernel: PeriodicKernel | CosineKernel, context: InitializationContext) -> None:
    initialize_lengthscale(kernel, "period_length", context)  # the lengthscale of a periodic kernel has no unit


@apply_init_rule.register
def _(kernel: LinearKernel, context: InitializationContext) -> None:
    size = context.X.square().sum(-1).mean()
    initialize_variance(kernel, "variance", context.variance / (size if size > 0 else 1.0), context)


@apply_init_rule.register
def _(kernel: ConstantKernel, context: InitializationContext) -> None:
    initialize_variance(kernel, "constant", context.variance, context)


@apply_init_rule.register(GaussianCurveKernel)
@apply_init_rule.register(LaplaceCurveKernel)
def _(kernel: GaussianCurveKernel | LaplaceCurveKernel, context: InitializationContext) -> None:
    # the kernel averages over grid points and compares the curves at one of them at a time
    num_points = max(1, context.X.shape[1] // kernel.num_channels)
    factor = context.lengthscale_factor / num_points**0.5
    initialize_lengthscale(kernel, "lengthscale", replace(context, lengthscale_factor=factor))


def initialize_lengthscale(kernel: Kernel, name: str, context: InitializationContext) -> None:
    """Set `name` to the median distance times √d, per column if it has several entries."""
    is_ard = getattr(kernel, f"raw_{name}").shape[-1] > 1
    distances = (column_distances if is_ard else row_distances)(context.X)
    factor = context.X.shape[1] ** 0.5 if is_ard else 1.0
    median = factor * context.lengthscale_factor * distances.median
    low = RELATIVE_LENGTHSCALE_BOUNDS[0] * torch.minimum(distances.small, median)
    high = RELATIVE_LENGTHSCALE_BOUNDS[1] * factor * distances.median
    set_parameter(kernel, name, median, low, high, context.record_bounds)


def initialize_variance(kernel: Kernel, name: str, value: Tensor, context: InitializationContext) -> None:
    """Set `name` to a variance."""
    set_parameter(kernel, name, value, *(end * value for end in RELATIVE_VARIANCE_BOUNDS), context.record_bounds)


def set_parameter(module, name: str, value: Tensor, low: Tensor, high: Tensor, record_bounds: RecordBounds) -> None:
    """Set the constrained value of `raw_<name>` as close to `value` as its constraint allows, if it is trained."""
    raw, constraint = getattr(module, f"raw_{name}"), module.constraint_for_parameter_name(f"raw_{name}")
    if not raw.requires_grad:
        return
    lower, upper = (end.to("cpu", torch.float64) for end in constraint)
    size = torch.where(torch.isfinite(lower), lower, upper).abs()
    margin = 1e-3 * torch.where(torch.isfinite(upper - lower), upper - lower, size)
    value = torch.clamp(value, lower + margin, upper - margin)
    raw.copy_(constraint.inverse_transform(value.to(raw)).expand_as(raw))
    if bool((low < upper).all() and (high > lower).all()):  # otherwise the constraint is tighter
        record_bounds(raw, low, high)


def mean_prior_variance(kernel: Kernel, X: Tensor) -> Tensor:
    """Return the prior variance of a kernel, averaged over the rows of X and the outputs; 1 if it is not positive."""
    return _mean_or_one(kernel(_cast_like(kernel, X), diag=True))


def _mean_or_one(values: Tensor) -> Tensor:
    mean = to_dense(values).to("cpu", torch.float64).mean()
    return mean if bool(torch.isfinite(mean) and mean > 0) else torch.ones((), dtype=torch.float64)


def _cast_like(kernel: Kernel, X: Tensor) -> Tensor:
    parameter = next(kernel.parameters(), None)
    return X if parameter is None else X.to(parameter)


def _initialize_loadings(module, factor: str, diagonal: str, covariance: Tensor, context) -> None:
    """Set W Wᵀ + diag(v) ≈ covariance, with W the leading principal components of the correlations.

    Correlations rather than covariances keep outputs in small units; W gets `LOADINGS_FRACTION` of their variance.
    """
    loadings, variances = getattr(module, factor), covariance.diagonal()
    deviations, rank = variances.sqrt(), loadings.shape[-1]
    values, vectors = torch.linalg.eigh(covariance / torch.outer(deviations, deviations))
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    # a column of zeros has no gradient and would stay zero
    scales = (LOADINGS_FRACTION * values.clamp_min(MIN_RELATIVE_VARIANCE)).sqrt()
    found = vectors * scales * _signs_of_largest(vectors)
    if loadings.requires_grad:
        loadings.copy_((deviations.unsqueeze(-1) * found).to(loadings).expand_as(loadings))
    rest = variances * (1 - found.square().sum(-1)).clamp_min(MIN_RELATIVE_VARIANCE)
    set_parameter(module, diagonal, rest, *(end * variances for end in RELATIVE_VARIANCE_BOUNDS), context.record_bounds)


def _initialize_cholesky(module: FullMatrix, covariance: Tensor, context: InitializationContext) -> None:
    """Set L Lᵀ = covariance with correlations shrunk by `LOADINGS_FRACTION`, since estimates may be singular."""
    if not (module.log_scale.requires_grad and module.lower.requires_grad):
        return
    variances = covariance.diagonal()
    shrunk = LOADINGS_FRACTION * covariance + (1 - LOADINGS_FRACTION) * torch.diag(variances)
    set_chol(module, torch.linalg.cholesky(shrunk))
    context.record_bounds(module.log_scale, *(0.5 * (end * variances).log() for end in RELATIVE_VARIANCE_BOUNDS))


def _signs_of_largest(vectors: Tensor) -> Tensor:
    """Return signs that make the largest entry of each column positive."""
    largest = vectors.abs().argmax(0, keepdim=True)
    return torch.where(vectors.gather(0, largest) < 0, -1.0, 1.0)


def register_kernel_priors(kernel: Kernel, units: Units, registry: PriorRegistry) -> None:
    """Register priors on a kernel and all kernels inside it; `active_dims` compose on the way down."""
    apply_prior_rule(kernel, units.select_columns(kernel.active_dims), registry)


@singledispatch
def apply_prior_rule(kernel: Kernel, units: Units, registry: PriorRegistry) -> None:
    """Register priors on the lengthscale and other parameters of a kernel, then on its parts (default rule)."""
    register_own_priors(kernel, units, registry)
    for part in _inner_modules(kernel):
        (register_kernel_priors if isinstance(part, Kernel) else register_matrix_priors)(part, units, registry)


def _inner_modules(module: torch.nn.Module) -> Iterator[Kernel | OutputMatrix]:
    """Yield the nearest kernels and output matrices inside a module, also inside containers."""
    for child in module.children():
        if isinstance(child, (Kernel, OutputMatrix)):
            yield child
        else:
            yield from _inner_modules(child)


@apply_prior_rule.register
def _(kernel: ScaleKernel, units: Units, registry: PriorRegistry) -> None:
    inner = kernel.base_kernel
    is_derivative_variance = units.is_derivative_variance or isinstance(inner, FieldKernel)
    loc = units.variance.log() - _unscaled_variance(inner, units).log()
    prior = _outputscale_prior(loc, _units_of_lengthscale(inner, units), is_derivative_variance)
    registry.add(kernel, "raw_outputscale", prior)
    register_own_priors(kernel, units, registry)
    # its active_dims were applied with those of the ScaleKernel
    apply_prior_rule(inner, units.normalized(), registry)


def _outputscale_prior(loc: Tensor, units: Units, is_derivative_variance: bool) -> Prior:
    loc, scale = loc + OUTPUTSCALE_PRIOR[0], OUTPUTSCALE_PRIOR[1]
    if is_derivative_variance:  # log(v ℓ²) = log v + 2 log ℓ, the two independent
        loc, scale = loc + 2 * _lengthscale_location(units), math.hypot(scale, 2 * LENGTHSCALE_PRIOR[1])
    return log_normal(loc, scale)


def _unscaled_variance(kernel: Kernel, units: Units) -> Tensor:
    """Return the mean prior variance of a kernel that has no outputscale."""
    is_polynomial = isinstance(kernel, PolynomialKernel)
    return (2 * units.mean_squared_norm).pow(kernel.power) if is_polynomial else torch.ones((), dtype=torch.float64)


@apply_prior_rule.register(AdditiveKernel)
@apply_prior_rule.register(LCMKernel)
def _(kernel: AdditiveKernel | LCMKernel, units: Units, registry: PriorRegistry) -> None:
    for term in getattr(kernel, "kernels", None) or kernel.covar_module_list:
        register_kernel_priors(term, units, registry)


@apply_prior_rule.register
def _(kernel: ProductKernel, units: Units, registry: PriorRegistry) -> None:
    for index, factor in enumerate(kernel.kernels):
        register_kernel_priors(factor, units if index == 0 else units.as_scalar(), registry)


@apply_prior_rule.register
def _(kernel: BlockwiseProductKernel, units: Units, registry: PriorRegistry) -> None:
    register_kernel_priors(kernel.scalar_kernel, units.as_scalar(), registry)
    register_kernel_priors(kernel.base_kernel, units, registry)


@apply_prior_rule.register
def _(kernel: DecomposableKernel, units: Units, registry: PriorRegistry) -> None:
    module = kernel.output_module
    register_matrix_priors(module, units, registry)
    if isinstance(module, (FreeMatrix, FullMatrix)):
        register_kernel_priors(kernel.base_kernel, units.as_scalar(), registry)
    else:
        with torch.no_grad():
            known = module().diagonal(dim1=-2, dim2=-1).mean().to("cpu", torch.float64).clamp_min(1e-30)
        register_kernel_priors(kernel.base_kernel, units.as_scalar(units.variance / known), registry)


def register_matrix_priors(module: OutputMatrix | IndexKernel, units: Units, registry: PriorRegistry) -> None:
    """Register the priors of an output matrix that explains the variances of `units`."""
    if isinstance(module, FullMatrix):
        distribution = (2 * units.deviations.log() + OUTPUTSCALE_PRIOR[0], OUTPUTSCALE_PRIOR[1], LKJ_CONCENTRATION)
        registry.add_covariance(module, CovariancePrior(*distribution))
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = ("loadings", "diagonal") if isinstance(module, FreeMatrix) else ("covar_factor", "var")
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        distribution = (2 * units.deviations.log() + DIAGONAL_PRIOR[0], DIAGONAL_PRIOR[1])
        registry.add(module, f"raw_{diagonal}", log_normal(*distribution))
    register_remaining_priors(module, registry)


@apply_prior_rule.register
def _(kernel: FieldKernel, units: Units, registry: PriorRegistry) -> None:
    inner = replace(units.as_scalar(units.variance), is_derivative_variance=not units.is_scaled)
    register_kernel_priors(kernel.base_kernel, inner, registry)


@apply_prior_rule.register
def _(kernel: MultitaskKernel, units: Units, registry: PriorRegistry) -> None:
    register_kernel_priors(kernel.data_covar_module, units.as_scalar(), registry)
    register_matrix_priors(kernel.task_covar_module, units, registry)


@apply_prior_rule.register
def _(kernel: IndependentKernel, units: Units, registry: PriorRegistry) -> None:
    for index, part in enumerate(kernel.kernels):
        register_kernel_priors(part, units.for_output(index), registry)


@apply_prior_rule.register
def _(kernel: TransformableKernel, units: Units, registry: PriorRegistry) -> None:
    inner = units.as_scalar(units.variance)
    if units.X is not None:
        with torch.no_grad():
            points = kernel.points(_cast_like(kernel, units.X)).flatten(-3, -2)
        inner = inner.with_inputs(points, points.shape[-1])
    register_kernel_priors(kernel.base_kernel, inner, registry)
    register_remaining_priors(kernel, registry, _typical_distance(units))  # a delay is in the units of the inputs


@apply_prior_rule.register
def _(kernel: FunctionValuedKernel, units: Units, registry: PriorRegistry) -> None:
    X, on_grid = units.X, kernel.tasks is not None
    t = kernel.tasks.shape[-1] if on_grid else kernel.num_task_dims
    num_inputs = units.num_dims if on_grid else max(1, units.num_dims - t)
    inputs, tasks = (None, None) if X is None else (X, kernel.tasks) if on_grid else (X[:, :-t], X[:, -t:])
    register_kernel_priors(kernel.task_kernel, units.as_scalar().with_inputs(tasks, t), registry)
    if on_grid and len(units.deviations) > 1:  # the outputs of one task, averaged over tasks
        variances = units.deviations.square().reshape(len(kernel.tasks), -1).mean(0)
        units = replace(units, deviations=variances.sqrt())
    register_kernel_priors(kernel.input_kernel, units.with_inputs(inputs, num_inputs), registry)


@apply_prior_rule.register
def _(kernel: WarpedKernel, units: Units, registry: PriorRegistry) -> None:
    X = units.X
    if X is not None:
        with torch.no_grad():
            X = kernel.group(_cast_like(kernel, X), kernel.columns)
    register_kernel_priors(kernel.base_kernel, units.with_inputs(X, kernel.group.embedding_dim), registry)
    register_remaining_priors(kernel, registry)


@apply_prior_rule.register
def _(kernel: ORFFKernel, units: Units, registry: PriorRegistry) -> None:
    if kernel.orff.kernel is not None:
        register_kernel_priors(kernel.orff.kernel, units, registry)
    register_score_priors(kernel.orff, registry)


def register_score_priors(orff: Module, registry: PriorRegistry) -> None:
    """Register standard normal priors on the scores from which learned frequencies are computed."""
    for name in dict(orff.named_parameters(recurse=False)):
        registry.add(orff, name, normal(0.0, 1.0))


@apply_prior_rule.register(PeriodicKernel)
@apply_prior_rule.register(CosineKernel)
def _(kernel: PeriodicKernel | CosineKernel, units: Units, registry: PriorRegistry) -> None:
    scales = units.column_scales if kernel.raw_period_length.shape[-1] == units.num_dims else _typical_distance(units)
    registry.add(kernel, "raw_period_length", log_normal(PERIOD_PRIOR[0] + scales.log(), PERIOD_PRIOR[1]))
    register_own_priors(kernel, replace(units, X=None), registry)  # the lengthscale of a periodic kernel has no unit


@apply_prior_rule.register
def _(kernel: RQKernel, units: Units, registry: PriorRegistry) -> None:
    registry.add(kernel, "raw_alpha", log_normal(*SHAPE_PRIOR))
    register_own_priors(kernel, units, registry)


@apply_prior_rule.register
def _(kernel: LinearKernel, units: Units, registry: PriorRegistry) -> None:
    loc, scale = OUTPUTSCALE_PRIOR
    registry.add(
        kernel, "raw_variance", log_normal(loc + units.variance.log() - _positive(units.mean_squared_norm).log(), scale)
    )


@apply_prior_rule.register
def _(kernel: ConstantKernel, units: Units, registry: PriorRegistry) -> None:
    registry.add(kernel, "raw_constant", log_normal(OUTPUTSCALE_PRIOR[0] + units.variance.log(), OUTPUTSCALE_PRIOR[1]))


@apply_prior_rule.register
def _(kernel: PolynomialKernel, units: Units, registry: PriorRegistry) -> None:
    registry.add(kernel, "raw_offset", log_normal(_positive(units.mean_squared_norm).log(), DEFAULT_LOG_STD))


@apply_prior_rule.register
def _(kernel: SpectralMixtureKernel, units: Units, registry: PriorRegistry) -> None:
    # weights sum to the variance; a width σ is the lengthscale 1/(2πσ), and a mean the inverse of a period
    width = -_lengthscale_location(units, per_column=True) - math.log(2 * math.pi)
    # GPyTorch multiplies the mixtures of the columns: the variance is (Σ weights)^d
    weight = units.variance.log() / kernel.raw_mixture_means.shape[-1] - math.log(kernel.num_mixtures)
    registry.add(kernel, "raw_mixture_weights", log_normal(weight, OUTPUTSCALE_PRIOR[1]))
    registry.add(kernel, "raw_mixture_scales", log_normal(width, LENGTHSCALE_PRIOR[1]))
    registry.add(kernel, "raw_mixture_means", log_normal(-PERIOD_PRIOR[0] - units.column_scales.log(), PERIOD_PRIOR[1]))


@apply_prior_rule.register(GaussianCurveKernel)
@apply_prior_rule.register(LaplaceCurveKernel)
def _(kernel: GaussianCurveKernel | LaplaceCurveKernel, units: Units, registry: PriorRegistry) -> None:
    # curves are compared at one grid point at a time: one column per channel, with the joint scale
    loc = LENGTHSCALE_PRIOR[0] + math.log(kernel.num_channels) / 2 + units.column_scales.square().mean().log() / 2
    registry.add(kernel, "raw_lengthscale", log_normal(loc, LENGTHSCALE_PRIOR[1]))
    register_remaining_priors(kernel, registry)


def register_own_priors(kernel: Kernel, units: Units, registry: PriorRegistry) -> None:
    """Register the prior of a kernel's lengthscale and of its remaining parameters."""
    if kernel.has_lengthscale:
        own = _units_of_lengthscale(kernel, units)
        loc = _lengthscale_location(own, per_column=kernel.raw_lengthscale.shape[-1] > 1)
        registry.add(kernel, "raw_lengthscale", log_normal(loc, LENGTHSCALE_PRIOR[1]))
    register_remaining_priors(kernel, registry)


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


def _units_of_lengthscale(kernel: Kernel, units: Units) -> Units:
    """Return units with as many columns as the kernel has lengthscales, if the data do not define them."""
    count = kernel.ard_num_dims
    return units if count is None or count == units.num_dims else Units(count, units.deviations)


def _lengthscale_location(units: Units, per_column: bool = False) -> Tensor:
    """Return √2 + ½ log d + log s, with the scale of each column (d,) or their root mean square."""
    scales = units.column_scales if per_column else units.column_scales.square().mean().sqrt()
    return LENGTHSCALE_PRIOR[0] + math.log(units.num_dims) / 2 + scales.log()


def _typical_distance(units: Units) -> Tensor:
    """Return the typical distance between rows: the root of the summed squares of the column scales."""
    return units.column_scales.square().sum().sqrt()


def _positive(value: Tensor) -> Tensor:
    return torch.where(value > 0, value, 1.0)
