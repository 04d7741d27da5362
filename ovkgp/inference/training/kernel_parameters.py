"""The prior of each kind of hyperparameter of a kernel, in the units that it is told of, from the outside in.

With columns of scales s_j (of root mean square s) and outputs of variance v:

    lengthscale   LogNormal(√2 + ½ log d + log s_j, √3)         period       LogNormal(log 2 s_j, 1)
    outputscale   LogNormal(log v, 1)                           loadings     Normal(0, √v_a)
    diagonal      LogNormal(log v_a − 1, 1.5)                   full matrix  LogNormal(log v_a, 1) variances, LKJ(2)

`kernel_priors.register` adds a rule for another class of kernels.
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
    FLOOR,
    Registry,
    Units,
    column_distances,
    find,
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

LENGTHSCALE_BOUNDS = (1e-2, 1e3)
"""Relative to the 5 % quantile and to the median of the distances."""
VARIANCE_BOUNDS = (1e-8, 1e4)
"""Relative to the variance of the outputs."""
SPREAD, MIN_SPREAD = 0.4, 0.064
"""The ratio of lengthscales from one term of a sum to the next, and the least over the whole sum."""
SHARED = 0.9
"""The part of a principal component's variance that goes to the loadings; the rest goes to the diagonal."""

Note = Callable[[torch.nn.Parameter, Tensor, Tensor], None]


@dataclass
class InitializationContext:
    """What a kernel inside another one sees: inputs, the covariance that is asked of it, and a factor on lengthscales.

    `note(parameter, low, high)` is called for each parameter that gets a start.
    """

    X: Tensor
    covariance: Tensor
    note: Note
    spread: float = 1.0

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal().mean()

    def unit(self) -> InitializationContext:
        """The same correlations, with variance 1."""
        return replace(self, covariance=self.covariance / self.variance)

    def scalar(self, variance: Tensor | float = 1.0) -> InitializationContext:
        """For a scalar kernel with this variance."""
        return replace(self, covariance=torch.as_tensor(variance, dtype=torch.float64).reshape(1, 1))


def start(kernel: Kernel, around: InitializationContext) -> None:
    """Set the hyperparameters of a kernel and of all those inside it; `active_dims` compose on the way down."""
    if kernel.active_dims is not None:
        around = replace(around, X=around.X[:, kernel.active_dims.cpu()])
    start_kernel(kernel, around)


@singledispatch
def start_kernel(kernel: Kernel, around: InitializationContext) -> None:
    """The rule for one class of kernels: its own lengthscale, then the kernel that it wraps."""
    if kernel.has_lengthscale:
        set_lengthscale(kernel, "lengthscale", around)
    if isinstance(inner := getattr(kernel, "base_kernel", None), Kernel):
        start(inner, around)


# --- wrappers, sums and products ------------------------------------------------------------------------------------


@start_kernel.register
def _(kernel: ScaleKernel, around: InitializationContext) -> None:
    start_kernel(kernel.base_kernel, around.unit())  # its active_dims are also those of the scaling, and done with
    inner = kernel.base_kernel.forward(*2 * (_like(kernel, around.X),), diag=True)
    set_variance(kernel, "outputscale", around.variance / _positive_mean(inner), around)


@start_kernel.register(AdditiveKernel)
def _(kernel: AdditiveKernel, around: InitializationContext) -> None:
    _start_terms(kernel.kernels, around)


@start_kernel.register
def _(kernel: LCMKernel, around: InitializationContext) -> None:
    _start_terms(kernel.covar_module_list, around)


def _start_terms(terms, around: InitializationContext) -> None:
    ratio = max(SPREAD, MIN_SPREAD ** (1 / max(1, len(terms) - 1)))
    for place, term in enumerate(terms):
        start(term, replace(around, covariance=around.covariance / len(terms), spread=around.spread * ratio**place))


@start_kernel.register
def _(kernel: ProductKernel, around: InitializationContext) -> None:
    first, *rest = kernel.kernels
    start(first, around)
    for factor in rest:
        start(factor, around.scalar())


@start_kernel.register
def _(kernel: BlockwiseProductKernel, around: InitializationContext) -> None:
    start(kernel.scalar_kernel, around.scalar())
    start(kernel.base_kernel, around)


# --- operator-valued kernels ------------------------------------------------------------------------------------------


@start_kernel.register
def _(kernel: DecomposableKernel, around: InitializationContext) -> None:
    module = kernel.output_module
    if isinstance(module, FreeMatrix):
        start(kernel.base_kernel, around.scalar())
        target = around.covariance / level(kernel.base_kernel, around.X)
        _start_loadings(module, "loadings", "diagonal", target, around)
    elif isinstance(module, FullMatrix):
        start(kernel.base_kernel, around.scalar())
        _start_chol(module, around.covariance / level(kernel.base_kernel, around.X), around)
    else:
        known = module().diagonal(dim1=-2, dim2=-1).mean().clamp_min(1e-30)
        start(kernel.base_kernel, around.scalar(around.variance / known.cpu()))


@start_kernel.register
def _(kernel: FieldKernel, around: InitializationContext) -> None:
    start(kernel.base_kernel, around.scalar())
    # the variance of a field is that of derivatives, and known only after the lengthscale
    start(kernel.base_kernel, around.scalar(around.variance / level(kernel, around.X)))


@start_kernel.register
def _(kernel: MultitaskKernel, around: InitializationContext) -> None:
    start(kernel.data_covar_module, around.scalar())
    _start_loadings(kernel.task_covar_module, "covar_factor", "var", around.covariance, around)


@start_kernel.register
def _(kernel: IndependentKernel, around: InitializationContext) -> None:
    for part, variance in zip(kernel.kernels, around.covariance.diagonal(), strict=True):
        start(part, around.scalar(variance))


@start_kernel.register
def _(kernel: TransformableKernel, around: InitializationContext) -> None:
    points = kernel.points(_like(kernel, around.X)).flatten(-3, -2).to("cpu", torch.float64)
    start(kernel.base_kernel, replace(around.scalar(around.variance), X=subsample(points)))


@start_kernel.register
def _(kernel: FunctionValuedKernel, around: InitializationContext) -> None:
    q, t, covariance = num_outputs(kernel.input_kernel), kernel.num_task_dims, around.covariance
    if kernel.tasks is None:
        X, tasks = around.X[:, :-t], around.X[:, -t:]
    else:
        X, tasks = around.X, kernel.tasks.detach().to("cpu", torch.float64)
        blocks = covariance.reshape(len(tasks), q, len(tasks), q)
        covariance = blocks.diagonal(dim1=0, dim2=2).mean(-1)  # the outputs of one task, averaged over tasks
    start(kernel.task_kernel, replace(around.scalar(), X=tasks, spread=1.0))
    covariance = covariance / level(kernel.task_kernel, tasks)
    start(kernel.input_kernel, replace(around, X=X, covariance=covariance))


@start_kernel.register
def _(kernel: WarpedKernel, around: InitializationContext) -> None:
    warped = kernel.group(_like(kernel, around.X), kernel.columns).detach().to("cpu", torch.float64)
    start(kernel.base_kernel, replace(around, X=warped))


@start_kernel.register
def _(kernel: ORFFKernel, around: InitializationContext) -> None:
    if kernel.orff.kernel is not None:
        start(kernel.orff.kernel, around)


# --- scalar kernels with something else than a lengthscale ------------------------------------------------------------


@start_kernel.register(PeriodicKernel)
@start_kernel.register(CosineKernel)
def _(kernel: PeriodicKernel | CosineKernel, around: InitializationContext) -> None:
    set_lengthscale(kernel, "period_length", around)  # the lengthscale of a periodic kernel has no unit


@start_kernel.register
def _(kernel: LinearKernel, around: InitializationContext) -> None:
    size = around.X.square().sum(-1).mean()
    set_variance(kernel, "variance", around.variance / (size if size > 0 else 1.0), around)


@start_kernel.register
def _(kernel: ConstantKernel, around: InitializationContext) -> None:
    set_variance(kernel, "constant", around.variance, around)


@start_kernel.register(GaussianCurveKernel)
@start_kernel.register(LaplaceCurveKernel)
def _(kernel: GaussianCurveKernel | LaplaceCurveKernel, around: InitializationContext) -> None:
    # the kernel averages over grid points and compares the curves at one of them at a time
    num_points = max(1, around.X.shape[1] // kernel.num_channels)
    set_lengthscale(kernel, "lengthscale", replace(around, spread=around.spread / num_points**0.5))


# --- one parameter at a time ------------------------------------------------------------------------------------------


def set_lengthscale(kernel: Kernel, name: str, around: InitializationContext) -> None:
    """Start `name` at the median distance times √d, a column at a time where it has several entries."""
    is_ard = getattr(kernel, f"raw_{name}").shape[-1] > 1
    distances = (column_distances if is_ard else row_distances)(around.X)
    factor = around.X.shape[1] ** 0.5 if is_ard else 1.0
    median = factor * around.spread * distances.median
    low = LENGTHSCALE_BOUNDS[0] * torch.minimum(distances.small, median)
    assign(kernel, name, median, low, LENGTHSCALE_BOUNDS[1] * factor * distances.median, around.note)


def set_variance(kernel: Kernel, name: str, value: Tensor, around: InitializationContext) -> None:
    """Start `name` at a variance."""
    assign(kernel, name, value, *(end * value for end in VARIANCE_BOUNDS), around.note)


def assign(module, name: str, value: Tensor, low: Tensor, high: Tensor, note: Note) -> None:
    """Set the constrained value of `raw_<name>` as near to `value` as its constraint allows, if it is trained."""
    raw, constraint = getattr(module, f"raw_{name}"), module.constraint_for_parameter_name(f"raw_{name}")
    if not raw.requires_grad:
        return
    least, most = (end.to("cpu", torch.float64) for end in constraint)
    size = torch.where(torch.isfinite(least), least, most).abs()
    room = 1e-3 * torch.where(torch.isfinite(most - least), most - least, size)
    value = torch.clamp(value, least + room, most - room)
    raw.copy_(constraint.inverse_transform(value.to(raw)).expand_as(raw))
    if bool((low < most).all() and (high > least).all()):  # else the constraint is the narrower of the two
        note(raw, low, high)


def level(kernel: Kernel, X: Tensor) -> Tensor:
    """The average prior variance of a kernel at the rows of X (over outputs too); 1 where it is none."""
    return _positive_mean(kernel(_like(kernel, X), diag=True))


def _positive_mean(values: Tensor) -> Tensor:
    mean = to_dense(values).to("cpu", torch.float64).mean()
    return mean if bool(torch.isfinite(mean) and mean > 0) else torch.ones((), dtype=torch.float64)


def _like(kernel: Kernel, X: Tensor) -> Tensor:
    parameter = next(kernel.parameters(), None)
    return X if parameter is None else X.to(parameter)


def _start_loadings(module, factor: str, diagonal: str, covariance: Tensor, around: InitializationContext) -> None:
    """W Wᵀ + diag(v) ≈ covariance, W the leading principal components of the correlations with `SHARED` of their
    variance: of the correlations, so that an output in small units is not left out."""
    loadings, variances = getattr(module, factor), covariance.diagonal()
    deviations, rank = variances.sqrt(), loadings.shape[-1]
    values, vectors = torch.linalg.eigh(covariance / torch.outer(deviations, deviations))
    values, vectors = values.flip(0)[:rank], vectors.flip(1)[:, :rank]
    # a column of zeros has no gradient and would stay: every column gets some variance
    found = vectors * (SHARED * values.clamp_min(FLOOR)).sqrt() * _signs(vectors)
    if loadings.requires_grad:
        loadings.copy_((deviations.unsqueeze(-1) * found).to(loadings).expand_as(loadings))
    rest = variances * (1 - found.square().sum(-1)).clamp_min(FLOOR)
    assign(module, diagonal, rest, *(end * variances for end in VARIANCE_BOUNDS), around.note)


def _start_chol(module: FullMatrix, covariance: Tensor, around: InitializationContext) -> None:
    """L Lᵀ = covariance, with `SHARED` of its correlations: they are estimates, and may be singular."""
    if not (module.log_scale.requires_grad and module.lower.requires_grad):
        return
    variances = covariance.diagonal()
    shrunk = SHARED * covariance + (1 - SHARED) * torch.diag(variances)
    set_chol(module, torch.linalg.cholesky(shrunk))
    around.note(module.log_scale, *(0.5 * (end * variances).log() for end in VARIANCE_BOUNDS))


def _signs(vectors: Tensor) -> Tensor:
    """Makes the largest entry of each column positive, as the sign of an eigenvector is anybody's."""
    largest = vectors.abs().argmax(0, keepdim=True)
    return torch.where(vectors.gather(0, largest) < 0, -1.0, 1.0)


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
        distribution = (2 * units.deviations.log() + OUTPUTSCALE[0], OUTPUTSCALE[1], CONCENTRATION)
        registry.add_covariance(module, CovariancePrior(*distribution))
    elif isinstance(module, (FreeMatrix, IndexKernel)):
        loadings, diagonal = ("loadings", "diagonal") if isinstance(module, FreeMatrix) else ("covar_factor", "var")
        registry.add(module, loadings, normal(0.0, units.deviations.unsqueeze(-1)))
        distribution = (2 * units.deviations.log() + DIAGONAL[0], DIAGONAL[1])
        registry.add(module, f"raw_{diagonal}", log_normal(*distribution))
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
            points = kernel.points(_like_prior_rules(kernel, units.X)).flatten(-3, -2)
        inner = inner.at(points, points.shape[-1])
    visit(kernel.base_kernel, inner, registry)
    other_priors(kernel, registry, _size(units))  # a delay is in the units of the inputs


@kernel_priors.register
def _(kernel: FunctionValuedKernel, units: Units, registry: Registry) -> None:
    X, on_grid = units.X, kernel.tasks is not None
    t = kernel.tasks.shape[-1] if on_grid else kernel.num_task_dims
    observed = units.num_dims if on_grid else max(1, units.num_dims - t)
    inputs, tasks = (None, None) if X is None else (X, kernel.tasks) if on_grid else (X[:, :-t], X[:, -t:])
    visit(kernel.task_kernel, units.scalar().at(tasks, t), registry)
    if on_grid and len(units.deviations) > 1:  # the outputs of one task, averaged over tasks
        variances = units.deviations.square().reshape(len(kernel.tasks), -1).mean(0)
        units = replace(units, deviations=variances.sqrt())
    visit(kernel.input_kernel, units.at(inputs, observed), registry)


@kernel_priors.register
def _(kernel: WarpedKernel, units: Units, registry: Registry) -> None:
    X = units.X
    if X is not None:
        with torch.no_grad():
            X = kernel.group(_like_prior_rules(kernel, X), kernel.columns)
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


def _like_prior_rules(kernel: Kernel, X: Tensor) -> Tensor:
    parameter = next(kernel.parameters(), None)
    return X if parameter is None else X.to(parameter)
