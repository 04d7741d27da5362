"""Hyperparameters of a kernel with their roles and units: one rule per class of kernels.

`kernel_parameters` visits a kernel from the outside in: a composite kernel passes on the inputs and the variance that its
parts have to explain (`Units`). `initialization` derives initial values, bounds and priors from role and units.
`apply_rule.register` adds a rule for another class of composite kernels; a scalar kernel names the roles of its parameters
in its record (`ovkgp.kernels.register_kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, singledispatch

import numpy as np
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LCMKernel,
    MultitaskKernel,
    PolynomialKernel,
    ProductKernel,
    ScaleKernel,
)
from gpytorch.module import Module
from linear_operator import to_dense
from torch import Tensor

from ovkgp.features.orff_kernel import ORFFKernel
from ovkgp.inference.training.priors import DEFAULT_PRIORS, PriorSettings
from ovkgp.kernels import (
    BlockwiseProductKernel,
    DecomposableKernel,
    EmpiricalMatrix,
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
from ovkgp.scales import unit_of

MIN_SQUARABLE = 1e-150  # smaller distances have squares with few digits, or none
MAX_DIFFERENCES = 1 << 20  # number of differences that are computed together
MAX_DISTANCE_ROWS = 500  # maximum number of rows between which distances are measured
MIN_RELATIVE_VARIANCE = 1e-3  # variance assigned to a constant output, relative to the mean of the others
ROUNDING_TOLERANCE = 1e-12  # an output whose standard deviation is below this, relative to its values, is constant
TERM_LENGTHSCALE_RATIO, MIN_TERM_LENGTHSCALE_RATIO = 0.4, 0.064
"""Ratio of lengthscales between consecutive terms of a sum, and its minimum over the whole sum."""


@dataclass(frozen=True, eq=False)
class Units:
    """Inputs of a kernel and the covariance of the outputs that it explains.

    `covariance` is (p, p), or (1, 1) for scalar kernels and for equal outputs; `X` is (m, d), or None for standardized
    columns. Initial variances are `variance_factor` times these, and initial lengthscales `lengthscale_factor` times the
    typical ones; `sets_values` says whether initial values are known at all. `is_scaled` says that an outer kernel has the
    outputscale; `is_derivative_variance` that the variance is that of derivatives and has to be multiplied by ℓ².
    `parameter_unit` is the size of parameters without a role, and `priors` are the priors for standardized data. `are_tasks` says
    that the inputs are tasks, which vary independently of the inputs of a function-valued kernel.
    """

    num_dims: int
    covariance: Tensor
    X: Tensor | None = None
    variance_factor: Tensor | float = 1.0
    lengthscale_factor: float = 1.0
    sets_values: bool = True
    is_scaled: bool = False
    is_derivative_variance: bool = False
    parameter_unit: Tensor | float = 1.0
    priors: PriorSettings = DEFAULT_PRIORS
    are_tasks: bool = False

    @classmethod
    def standard(cls, num_dims: int, priors: PriorSettings = DEFAULT_PRIORS) -> Units:
        """Return the units of standardized data."""
        return cls(num_dims, torch.ones(1, 1, dtype=torch.float64), priors=priors)

    @classmethod
    def of(cls, X: Tensor, covariance: Tensor) -> Units:
        """Return the units of inputs X (n, d) and outputs with a covariance (p, p)."""
        return cls(X.shape[1], covariance, X.detach().to("cpu", torch.float64))

    @cached_property
    def rows(self) -> Tensor:
        """At most 500 rows of X."""
        return subsample(self.X)

    @cached_property
    def column_scales(self) -> Tensor:
        """Standard deviation of each column (d,); 1 for a constant column."""
        if self.X is None or len(self.X) < 2:
            return torch.ones(self.num_dims, dtype=torch.float64)
        std = column_stds(self.X)
        return torch.where(std > ROUNDING_TOLERANCE * self.X.abs().amax(0), std, 1.0)

    @property
    def center(self) -> Tensor:
        """Mean of each column (d,)."""
        return torch.zeros(self.num_dims, dtype=torch.float64) if self.X is None else self.X.mean(0)

    @property
    def mean_squared_norm(self) -> Tensor:
        """Mean of ‖x‖²."""
        return (self.column_scales.square() + self.center.square()).sum()

    @property
    def typical_distance(self) -> Tensor:
        """Typical distance between rows: the root of the summed squares of the column scales."""
        return self.column_scales.square().sum().sqrt()

    @property
    def deviations(self) -> Tensor:
        """Standard deviations of the outputs (p,)."""
        return self.covariance.diagonal().sqrt()

    @property
    def variance(self) -> Tensor:
        """Mean variance of the outputs."""
        return self.covariance.diagonal().mean()

    @property
    def initial_covariance(self) -> Tensor:
        """Covariance that the kernel should have initially."""
        return self.variance_factor * self.covariance

    @property
    def initial_variance(self) -> Tensor:
        """Mean variance that the kernel should have initially."""
        return self.variance_factor * self.variance

    def select_columns(self, active_dims: Tensor | Sequence[int] | None) -> Units:
        """Return the units of a kernel with these `active_dims`."""
        if active_dims is None:
            return self
        index = torch.as_tensor(active_dims).cpu()
        return replace(self, num_dims=len(index), X=None if self.X is None else self.X[:, index])

    def with_inputs(self, X: Tensor | None, num_dims: int) -> Units:
        """Return the units of a kernel on other inputs, such as warped inputs or tasks."""
        return replace(self, num_dims=num_dims, X=None if X is None else subsample(X.detach().to("cpu", torch.float64)))

    def for_output(self, index: int) -> Units:
        """Return the units of a scalar kernel that explains one of the outputs."""
        variances = self.covariance.diagonal()
        return self.as_scalar(variances[min(index, len(variances) - 1)])

    def as_scalar(self, variance: Tensor | None = None) -> Units:
        """Return the units of a scalar kernel with this variance; if None, of one that has variance 1 initially too."""
        if variance is None:
            return replace(self, covariance=torch.ones(1, 1, dtype=torch.float64), variance_factor=1.0)
        return replace(self, covariance=variance.to(torch.float64).reshape(1, 1))

    def share(self, fraction: Tensor | float) -> Units:
        """Return the units of a kernel that explains a fraction of the variance initially."""
        return replace(self, variance_factor=self.variance_factor * fraction)

    def normalized(self) -> Units:
        """Return the same units with mean variance 1, for a kernel inside one that has an outputscale."""
        covariance = self.covariance / self.variance
        return replace(self, covariance=covariance, variance_factor=1.0, is_scaled=True, is_derivative_variance=False)


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
        units_of_lengthscale(inner, units),
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
    has_variance = task_kernel_has_variance(kernel.input_kernel, kernel.task_kernel)
    of_tasks = units.as_scalar(units.variance) if has_variance else units.as_scalar()
    of_tasks = replace(of_tasks.with_inputs(tasks, t), lengthscale_factor=1.0, are_tasks=True)
    yield from kernel_parameters(kernel.task_kernel, of_tasks)
    if has_variance:
        units = units.as_scalar()
    elif on_grid and len(units.covariance) > 1:  # the outputs of one task, averaged over tasks
        blocks = units.covariance.reshape(len(kernel.tasks), q, len(kernel.tasks), q)
        units = replace(units, covariance=blocks.diagonal(dim1=0, dim2=2).mean(-1))
    if X is not None and not has_variance:
        units = units.share(1 / mean_prior_variance(kernel.task_kernel, of_tasks.X))
    yield from kernel_parameters(kernel.input_kernel, units.with_inputs(inputs, num_inputs))


def task_kernel_has_variance(input_kernel: Kernel, task_kernel: Kernel) -> bool:
    """Whether the variance of a product of kernels is that of the kernel of the tasks, which has an outputscale.

    That of several outputs is in the matrix of the kernel of the inputs.
    """
    return num_outputs(input_kernel) == 1 and any(isinstance(part, ScaleKernel) for part in task_kernel.modules())


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


def units_of_lengthscale(kernel: Kernel, units: Units) -> Units:
    """Return units with as many columns as the kernel has lengthscales, if the data do not define them."""
    count = kernel.ard_num_dims
    return units if count is None or count == units.num_dims else Units(count, units.covariance)


@dataclass
class Distances:
    """The 5 % quantile and the median of the nonzero distances, as vectors with one entry per column or one entry."""

    small: Tensor
    median: Tensor


def subsample(X: Tensor, num_rows: int = MAX_DISTANCE_ROWS) -> Tensor:
    """Return at most `num_rows` of the rows of X, always the same ones."""
    if len(X) <= num_rows:
        return X
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:num_rows].to(X.device)]


def column_distances(X: Tensor) -> Distances:
    """Return the distances within each column of X (n, d); 1 for a constant column."""
    found = [_quantiles(column) for column in subsample(X).T.unsqueeze(-1)]
    return Distances(torch.cat([one.small for one in found]), torch.cat([one.median for one in found]))


def row_distances(X: Tensor) -> Distances:
    """Return the Euclidean distances between the rows of X (n, d); 1 if all rows are equal."""
    return _quantiles(subsample(X))


def _quantiles(X: Tensor) -> Distances:
    distances = pair_distances(X)
    distances = distances[distances > 0]
    quantiles = np.quantile(distances, [0.05, 0.5]) if len(distances) else np.ones(2)
    return Distances(*torch.as_tensor(quantiles).unsqueeze(-1))


def pair_distances(X: Tensor) -> np.ndarray:
    """Return the distances between all pairs of rows of X (n, d), in the order of `pdist`; squares do not overflow or underflow."""
    X = X.detach().to("cpu", torch.float64)
    unit = float(unit_of(float(X.abs().amax()) if X.numel() else 0.0))
    distances = torch.nn.functional.pdist(X / unit).numpy()
    is_small = distances < MIN_SQUARABLE  # beside a row at 1e200
    distances = distances * unit
    if is_small.any():
        distances[is_small] = _small_distances(X.numpy(), np.flatnonzero(is_small))
    return distances


def _small_distances(X: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the distances of pairs of rows, numbered as by `pdist`, each computed in units of its largest difference."""
    first, second = (index[pairs] for index in np.triu_indices(len(X), 1))
    found = []
    for start in range(0, len(pairs), step := max(1, MAX_DIFFERENCES // X.shape[1])):
        rows = slice(start, start + step)
        differences = X[first[rows]] - X[second[rows]]
        unit = unit_of(np.abs(differences).max(1))
        found.append(unit * np.sqrt(np.square(differences / unit[:, None]).sum(1)))
    return np.concatenate(found)


def column_stds(X: Tensor) -> Tensor:
    """Return the standard deviation (d,) of each column of X (n, d), with the divisor n."""
    unit = torch.from_numpy(unit_of(X.detach().abs().amax(0).cpu().numpy())).to(X)
    return (X / unit).std(0, correction=0) * unit


def output_covariance(Y: Tensor) -> Tensor:
    """Return the covariance (p, p) of the outputs Y (n, p), NaN where missing, with a positive diagonal.

    A constant output gets `MIN_RELATIVE_VARIANCE` times the mean variance of the others. If all outputs are constant,
    their mean square is used, or 1 if they are zero.
    """
    Y = Y.detach().to("cpu", torch.float64)
    largest = Y.nan_to_num(nan=0.0).abs().amax(0) if len(Y) else torch.zeros(Y.shape[1], dtype=torch.float64)
    unit = torch.where(largest > 0, largest, 1.0)  # outputs of very different scales would lose digits
    covariance, mean_square = _moments(Y / unit)
    covariance, mean_square = covariance * torch.outer(unit, unit), mean_square * unit.square()
    variances = covariance.diagonal()
    is_constant = variances == 0
    if bool(is_constant.all()):
        mean_square = mean_square.mean()
        return torch.eye(len(unit), dtype=torch.float64) * (mean_square if mean_square > 0 else 1.0)
    return covariance + torch.diag(
        torch.where(is_constant, MIN_RELATIVE_VARIANCE * variances[~is_constant].mean(), 0.0)
    )


def _moments(Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the covariance (p, p), zero for constant and unobserved outputs, and the mean squares (p,)."""
    observed = ~Y.isnan()
    mean_square = torch.where(observed, Y, 0.0).square().sum(0) / observed.sum(0).clamp_min(1)
    covariance = torch.zeros(Y.shape[1], Y.shape[1], dtype=torch.float64)
    known = observed.any(0).nonzero().flatten()
    if len(Y) > 1 and len(known):
        covariance[known.unsqueeze(-1), known] = EmpiricalMatrix(Y[:, known])()
    is_constant = covariance.diagonal() <= ROUNDING_TOLERANCE**2 * mean_square
    covariance[is_constant] = 0.0
    covariance[:, is_constant] = 0.0
    return covariance, mean_square
