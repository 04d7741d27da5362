"""The rules by which the hyperparameters of each kind of kernel start from data, from the outside in.

A kernel is told what it sees (`Surroundings`): inputs after `active_dims` and warps, the covariance that is asked of it, and
a factor on its lengthscales; it sets its own parameters and tells the kernels inside it. `start_kernel.register` adds a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatch

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    LCMKernel,
    LinearKernel,
    MultitaskKernel,
    PeriodicKernel,
    ProductKernel,
    ScaleKernel,
)
from linear_operator import to_dense
from torch import Tensor

from ovkgp.features.orff_kernel import ORFFKernel
from ovkgp.inference.covariance_prior import set_chol
from ovkgp.inference.data_scales import FLOOR, column_distances, row_distances, subsample
from ovkgp.kernels import (
    BlockwiseProductKernel,
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    IndependentKernel,
    LaplaceCurveKernel,
    TransformableKernel,
    WarpedKernel,
    num_outputs,
)
from ovkgp.kernels.fields import FieldKernel

LENGTHSCALE_BOX = (1e-2, 1e3)
"""Relative to the 5 % quantile and to the median of the distances."""
VARIANCE_BOX = (1e-8, 1e4)
"""Relative to the variance of the outputs."""
SPREAD, LEAST_SPREAD = 0.4, 0.064
"""The ratio of lengthscales from one term of a sum to the next, and the least over the whole sum."""
SHARED = 0.9
"""The part of a principal component's variance that goes to the loadings; the rest goes to the diagonal."""

Note = Callable[[torch.nn.Parameter, Tensor, Tensor], None]


@dataclass
class Surroundings:
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

    def unit(self) -> Surroundings:
        """The same correlations, with variance 1."""
        return replace(self, covariance=self.covariance / self.variance)

    def scalar(self, variance: Tensor | float = 1.0) -> Surroundings:
        """For a scalar kernel with this variance."""
        return replace(self, covariance=torch.as_tensor(variance, dtype=torch.float64).reshape(1, 1))


def start(kernel: Kernel, around: Surroundings) -> None:
    """Set the hyperparameters of a kernel and of all those inside it; `active_dims` compose on the way down."""
    if kernel.active_dims is not None:
        around = replace(around, X=around.X[:, kernel.active_dims.cpu()])
    start_kernel(kernel, around)


@singledispatch
def start_kernel(kernel: Kernel, around: Surroundings) -> None:
    """The rule for one class of kernels: its own lengthscale, then the kernel that it wraps."""
    if kernel.has_lengthscale:
        set_lengthscale(kernel, "lengthscale", around)
    if isinstance(inner := getattr(kernel, "base_kernel", None), Kernel):
        start(inner, around)


# --- wrappers, sums and products ------------------------------------------------------------------------------------


@start_kernel.register
def _(kernel: ScaleKernel, around: Surroundings) -> None:
    start_kernel(kernel.base_kernel, around.unit())  # its active_dims are also those of the scaling, and done with
    inner = kernel.base_kernel.forward(*2 * (_like(kernel, around.X),), diag=True)
    set_variance(kernel, "outputscale", around.variance / _positive_mean(inner), around)


@start_kernel.register(AdditiveKernel)
def _(kernel: AdditiveKernel, around: Surroundings) -> None:
    _start_terms(kernel.kernels, around)


@start_kernel.register
def _(kernel: LCMKernel, around: Surroundings) -> None:
    _start_terms(kernel.covar_module_list, around)


def _start_terms(terms, around: Surroundings) -> None:
    ratio = max(SPREAD, LEAST_SPREAD ** (1 / max(1, len(terms) - 1)))
    for place, term in enumerate(terms):
        start(term, replace(around, covariance=around.covariance / len(terms), spread=around.spread * ratio**place))


@start_kernel.register
def _(kernel: ProductKernel, around: Surroundings) -> None:
    first, *rest = kernel.kernels
    start(first, around)
    for factor in rest:
        start(factor, around.scalar())


@start_kernel.register
def _(kernel: BlockwiseProductKernel, around: Surroundings) -> None:
    start(kernel.scalar_kernel, around.scalar())
    start(kernel.base_kernel, around)


# --- operator-valued kernels ------------------------------------------------------------------------------------------


@start_kernel.register
def _(kernel: DecomposableKernel, around: Surroundings) -> None:
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
def _(kernel: FieldKernel, around: Surroundings) -> None:
    start(kernel.base_kernel, around.scalar())
    # the variance of a field is that of derivatives, and known only after the lengthscale
    start(kernel.base_kernel, around.scalar(around.variance / level(kernel, around.X)))


@start_kernel.register
def _(kernel: MultitaskKernel, around: Surroundings) -> None:
    start(kernel.data_covar_module, around.scalar())
    _start_loadings(kernel.task_covar_module, "covar_factor", "var", around.covariance, around)


@start_kernel.register
def _(kernel: IndependentKernel, around: Surroundings) -> None:
    for part, variance in zip(kernel.kernels, around.covariance.diagonal(), strict=True):
        start(part, around.scalar(variance))


@start_kernel.register
def _(kernel: TransformableKernel, around: Surroundings) -> None:
    points = kernel.points(_like(kernel, around.X)).flatten(-3, -2).to("cpu", torch.float64)
    start(kernel.base_kernel, replace(around.scalar(around.variance), X=subsample(points)))


@start_kernel.register
def _(kernel: FunctionValuedKernel, around: Surroundings) -> None:
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
def _(kernel: WarpedKernel, around: Surroundings) -> None:
    warped = kernel.group(_like(kernel, around.X), kernel.columns).detach().to("cpu", torch.float64)
    start(kernel.base_kernel, replace(around, X=warped))


@start_kernel.register
def _(kernel: ORFFKernel, around: Surroundings) -> None:
    if kernel.orff.kernel is not None:
        start(kernel.orff.kernel, around)


# --- scalar kernels with something else than a lengthscale ------------------------------------------------------------


@start_kernel.register(PeriodicKernel)
@start_kernel.register(CosineKernel)
def _(kernel: PeriodicKernel | CosineKernel, around: Surroundings) -> None:
    set_lengthscale(kernel, "period_length", around)  # the lengthscale of a periodic kernel has no unit


@start_kernel.register
def _(kernel: LinearKernel, around: Surroundings) -> None:
    size = around.X.square().sum(-1).mean()
    set_variance(kernel, "variance", around.variance / (size if size > 0 else 1.0), around)


@start_kernel.register
def _(kernel: ConstantKernel, around: Surroundings) -> None:
    set_variance(kernel, "constant", around.variance, around)


@start_kernel.register(GaussianCurveKernel)
@start_kernel.register(LaplaceCurveKernel)
def _(kernel: GaussianCurveKernel | LaplaceCurveKernel, around: Surroundings) -> None:
    # the kernel averages over grid points and compares the curves at one of them at a time
    num_points = max(1, around.X.shape[1] // kernel.num_channels)
    set_lengthscale(kernel, "lengthscale", replace(around, spread=around.spread / num_points**0.5))


# --- one parameter at a time ------------------------------------------------------------------------------------------


def set_lengthscale(kernel: Kernel, name: str, around: Surroundings) -> None:
    """Start `name` at the median distance times √d, a column at a time where it has several entries."""
    is_ard = getattr(kernel, f"raw_{name}").shape[-1] > 1
    distances = (column_distances if is_ard else row_distances)(around.X)
    factor = around.X.shape[1] ** 0.5 if is_ard else 1.0
    median = factor * around.spread * distances.median
    low = LENGTHSCALE_BOX[0] * torch.minimum(distances.small, median)
    assign(kernel, name, median, low, LENGTHSCALE_BOX[1] * factor * distances.median, around.note)


def set_variance(kernel: Kernel, name: str, value: Tensor, around: Surroundings) -> None:
    """Start `name` at a variance."""
    assign(kernel, name, value, *(end * value for end in VARIANCE_BOX), around.note)


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


def _start_loadings(module, factor: str, diagonal: str, covariance: Tensor, around: Surroundings) -> None:
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
    assign(module, diagonal, rest, *(end * variances for end in VARIANCE_BOX), around.note)


def _start_chol(module: FullMatrix, covariance: Tensor, around: Surroundings) -> None:
    """L Lᵀ = covariance, with `SHARED` of its correlations: they are estimates, and may be singular."""
    if not (module.log_scale.requires_grad and module.lower.requires_grad):
        return
    variances = covariance.diagonal()
    shrunk = SHARED * covariance + (1 - SHARED) * torch.diag(variances)
    set_chol(module, torch.linalg.cholesky(shrunk))
    around.note(module.log_scale, *(0.5 * (end * variances).log() for end in VARIANCE_BOX))


def _signs(vectors: Tensor) -> Tensor:
    """Makes the largest entry of each column positive, as the sign of an eigenvector is anybody's."""
    largest = vectors.abs().argmax(0, keepdim=True)
    return torch.where(vectors.gather(0, largest) < 0, -1.0, 1.0)
