"""Scales of the data in which priors are expressed, and priors registered on a model (`PriorSite`, `PriorRegistry`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior, UniformPrior
from torch import Tensor
from torch.nn import Module, Parameter

from ovkgp.exceptions import OptionError
from ovkgp.inference.training.covariance_prior import CovariancePrior, get_chol, register_covariance_prior
from ovkgp.kernels import EmpiricalMatrix

MAX_DISTANCE_ROWS = 500  # maximum number of rows between which distances are measured
MIN_RELATIVE_VARIANCE = 1e-3  # variance assigned to a constant output, relative to the mean of the others
ROUNDING_TOLERANCE = 1e-12  # an output whose standard deviation is below this, relative to its values, is constant


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
    X = X.detach().to("cpu", torch.float64)
    size = X.abs().amax().clamp_min(torch.finfo(torch.float64).tiny) if X.numel() else 1.0
    distances = torch.nn.functional.pdist(X / size).numpy()  # squares of 1e±200 would overflow
    distances = distances[distances > 0]
    quantiles = np.quantile(distances, [0.05, 0.5]) * float(size) if len(distances) else np.ones(2)
    return Distances(*torch.as_tensor(quantiles).unsqueeze(-1))


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


@dataclass(frozen=True)
class ParameterReader:
    """Reads the constrained value of the parameter at a dotted path below a module; can be pickled, unlike a lambda."""

    path: str

    def __call__(self, module: Module) -> Tensor:
        parameter, constraint = find_parameter(module, self.path)
        return parameter if constraint is None else constraint.transform(parameter)


@dataclass(frozen=True)
class ParameterWriter:
    """Sets the value that a `ParameterReader` reads."""

    path: str

    @torch.no_grad()
    def __call__(self, module: Module, value: Tensor) -> None:
        parameter, constraint = find_parameter(module, self.path)
        value = torch.as_tensor(value).to(parameter).expand_as(parameter)
        parameter.copy_(value if constraint is None else constraint.inverse_transform(value))


def find_parameter(module: Module, path: str) -> tuple[Parameter, Interval | None]:
    """Return the parameter at a dotted path, and its constraint if it has one."""
    owner, _, leaf = path.rpartition(".")
    owner = module.get_submodule(owner)
    return getattr(owner, leaf), getattr(owner, "_constraints", {}).get(f"{leaf}_constraint")


@dataclass(frozen=True, eq=False)
class PriorSite:
    """One registered prior: its qualified name, the module it is registered on, and its closures."""

    name: str
    module: Module
    prior: Prior
    read: Callable[[Module], Tensor]
    write: Callable[[Module, Tensor], None] | None

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Trained parameters below the module on which the value depends, by path."""
        trained = {path: one for path, one in self.module.named_parameters() if one.requires_grad}
        with torch.enable_grad():
            value = self.read(self.module)
            if not (value.requires_grad and trained):
                return {}
            slopes = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
        return {path: one for (path, one), slope in zip(trained.items(), slopes, strict=True) if slope is not None}

    @property
    def is_covariance(self) -> bool:
        """Whether the prior is a `CovariancePrior` on the Cholesky factor of a module."""
        return isinstance(self.prior, CovariancePrior) and self.read is get_chol

    @cached_property
    def constrained_parameter(self) -> tuple[Parameter, Interval | None] | None:
        """Parameter and constraint if the value is the constrained value of one parameter; otherwise None."""
        if len(self.parameters) != 1 or self.is_covariance:
            return None
        parameter, constraint = find_parameter(self.module, next(iter(self.parameters)))
        kept = parameter.detach().clone()
        try:
            is_constrained_value = self._reads(parameter, constraint)
            parameter.data.add_(torch.linspace(0.1, 0.2, kept.numel()).to(kept).reshape(kept.shape))
            is_constrained_value = is_constrained_value and self._reads(
                parameter, constraint
            )  # two values may agree at one point by chance
        finally:
            parameter.data.copy_(kept)
        return (parameter, constraint) if is_constrained_value else None

    @torch.no_grad()
    def _reads(self, parameter: Parameter, constraint: Interval | None) -> bool:
        known = parameter if constraint is None else constraint.transform(parameter)
        value = self.read(self.module)
        return known.shape == value.shape and torch.equal(known, value)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of θ; infinite unless it is the constrained value of a parameter."""
        constraint = None if self.constrained_parameter is None else self.constrained_parameter[1]
        ends = (-torch.inf, torch.inf) if constraint is None else constraint
        return tuple(torch.as_tensor(end, dtype=torch.float64, device="cpu") for end in ends)

    def check_one_to_one(self) -> None:
        """Check that the value has one number for each number of one parameter."""
        if self.is_covariance or not self.parameters:
            return
        if len(self.parameters) == 1 and self._is_elementwise():
            return
        raise OptionError(
            f"The prior {self.name} ({type(self.prior).__name__}) is on a function of {', '.join(self.parameters)} that is "
            "not one-to-one, so the parameters have no density to sample from. Put priors on the parameters themselves "
            "(register_data_priors does), or use FullMatrix(p) with "
            "register_covariance_prior(matrix, CovariancePrior(loc, scale)) for a prior on a whole covariance."
        )

    def _is_elementwise(self) -> bool:
        (parameter,) = self.parameters.values()
        with torch.enable_grad():
            value = self.read(self.module)
            if value.numel() != parameter.numel():
                return False
            # not equidistant: averaging over neighbors would map equal steps to themselves
            probe = torch.linspace(0.0, 1.0, value.numel()).exp().to(value)
            slopes, probed = (
                torch.autograd.grad(value, parameter, weight.reshape(value.shape), retain_graph=True)[0].reshape(-1)
                for weight in (torch.ones_like(probe), probe)
            )
        return torch.allclose(probed, slopes * probe, rtol=1e3 * torch.finfo(value.dtype).eps, atol=0.0, equal_nan=True)


def prior_sites(module: Module) -> Iterator[PriorSite]:
    """Yield all priors registered on a module and inside it, each once even if a module is shared."""
    for path, part in module.named_modules():
        for name, (prior, read, write) in getattr(part, "_priors", {}).items():
            yield PriorSite(f"{path}.{name}".lstrip("."), part, prior, read, write)


def trained_sites(module: Module) -> list[PriorSite]:
    """Return the priors on trained parameters; raise `OptionError` if one is not one-to-one or a parameter has two."""
    found, owners = [], {}
    for site in prior_sites(module):
        if not site.parameters:
            continue
        site.check_one_to_one()
        for path, parameter in site.parameters.items():
            other = owners.setdefault(id(parameter), site.name)
            if other != site.name:
                raise OptionError(
                    f"{path} has two priors, {other} and {site.name}, whose product is not a known density. Remove one of them."
                )
        found.append(site)
    return found


def move_prior(prior: Prior, device: torch.device) -> None:
    """Move a prior to a device: `Module.to` does not move the values of a transformed distribution."""
    if device.type == "cpu":
        return
    for name, buffer in list(prior.named_buffers(recurse=False)):
        if name.startswith("_buffered_") and getattr(prior.base_dist, name[len("_buffered_") :]).device != device:
            setattr(prior, name, buffer.to(device))


@dataclass(frozen=True)
class Units:
    """Inputs of a kernel and standard deviations of the outputs it explains, from which its priors are scaled.

    `deviations` is (p,), or (1,) for scalar kernels and for equal outputs; `X` is (m, d), or None for standardized
    columns. `is_scaled` says that an outer kernel has the outputscale; `is_derivative_variance` that the variance is
    that of derivatives and has to be multiplied by ℓ².
    """

    num_dims: int
    deviations: Tensor
    X: Tensor | None = None
    is_scaled: bool = False
    is_derivative_variance: bool = False

    @classmethod
    def standard(cls, num_dims: int) -> Units:
        """Return the units of standardized data."""
        return cls(num_dims, torch.ones(1, dtype=torch.float64))

    @classmethod
    def of(cls, X: Tensor, covariance: Tensor) -> Units:
        """Return the units of inputs X (n, d) and outputs with a covariance (p, p)."""
        return cls(X.shape[1], covariance.diagonal().sqrt(), X.detach().to("cpu", torch.float64))

    @property
    def column_scales(self) -> Tensor:
        """Standard deviation of each column (d,); 1 for a constant column."""
        if self.X is None or len(self.X) < 2:
            return torch.ones(self.num_dims, dtype=torch.float64)
        std = self.X.std(0, correction=0)
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
    def variance(self) -> Tensor:
        """Mean variance of the outputs."""
        return self.deviations.square().mean()

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
        return replace(self, deviations=self.deviations.expand(max(len(self.deviations), index + 1))[[index]])

    def as_scalar(self, variance: Tensor | float = 1.0) -> Units:
        """Return the units of a scalar kernel with this variance."""
        return replace(self, deviations=torch.as_tensor(variance, dtype=torch.float64).sqrt().reshape(1))

    def normalized(self) -> Units:
        """Return the same units with mean variance 1, for a kernel inside one that has an outputscale."""
        return replace(
            self, deviations=self.deviations / self.variance.sqrt(), is_scaled=True, is_derivative_variance=False
        )


class PriorRegistry:
    """Registers priors on the trained parameters of a module that have none, in place."""

    def __init__(self, module: torch.nn.Module):
        self._with_prior = {id(one) for site in prior_sites(module) for one in site.parameters.values()}

    def needs_prior(self, parameter: Tensor) -> bool:
        """Return whether a parameter is trained and has no prior."""
        return parameter.requires_grad and id(parameter) not in self._with_prior

    def add(self, module: Module, path: str, prior: Prior) -> None:
        """Register a prior on the constrained value of the parameter at a path below a module, if it has none."""
        parameter, _ = find_parameter(module, path)
        if self.needs_prior(parameter):
            self._with_prior.add(id(parameter))
            name = f"{path.replace('.', '_').removeprefix('raw_')}_prior"
            module.register_prior(_unused_name(module, name), prior, ParameterReader(path), ParameterWriter(path))

    def add_covariance(self, module: Module, prior: CovariancePrior) -> None:
        """Register a prior on a covariance held by its Cholesky factor, if neither part of it has one."""
        parts = (module.log_scale, module.lower)
        if any(part.requires_grad for part in parts) and not any(id(part) in self._with_prior for part in parts):
            self._with_prior.update(map(id, parts))
            register_covariance_prior(module, prior, _unused_name(module, "covariance_prior"))

    def add_with_closures(self, module: Module, name: str, parameter: Tensor, prior: Prior, read, write) -> None:
        """Register a prior on a function of one parameter, if it has none."""
        if self.needs_prior(parameter):
            self._with_prior.add(id(parameter))
            module.register_prior(_unused_name(module, name), prior, read, write)


def _unused_name(module: Module, name: str) -> str:
    """Return a name for a prior; an existing prior of this name is on a parameter that is not trained, and is kept."""
    if name not in module._priors:
        return name
    free = f"data_{name}"
    if free in module._priors:
        raise OptionError(
            f"{type(module).__name__} has priors named {name} and {free} on other parameters. Rename one of them."
        )
    return free


def log_normal(loc: float | Tensor, scale: float | Tensor) -> LogNormalPrior:
    """Return the prior log θ ~ N(loc, scale²) in float64."""
    return LogNormalPrior(*_as_float64(loc, scale), validate_args=False)


def normal(loc: float | Tensor, scale: float | Tensor) -> NormalPrior:
    """Return the prior θ ~ N(loc, scale²) in float64."""
    return NormalPrior(*_as_float64(loc, scale), validate_args=False)


def uniform(low: float | Tensor, high: float | Tensor) -> UniformPrior:
    """Return the prior θ ~ U(low, high) in float64."""
    return UniformPrior(*_as_float64(low, high), validate_args=False)


def output_prior(prior: Prior, index: int) -> Prior:
    """Return the distribution of one entry of a normal or log-normal prior with one entry per output; keep other
    priors."""
    if not isinstance(prior, (LogNormalPrior, NormalPrior)) or prior._transform is not None:
        return prior
    loc, scale = (number if number.dim() == 0 else number[..., index] for number in (prior.loc, prior.scale))
    return type(prior)(loc.clone(), scale.clone(), validate_args=False)


def _as_float64(*numbers: float | Tensor) -> tuple[Tensor, ...]:
    """Return float64 tensors, scalars if all entries are equal."""
    tensors = [torch.as_tensor(number, dtype=torch.float64).detach() for number in numbers]
    return tuple(
        one.flatten()[0].clone() if one.numel() and bool((one == one.flatten()[0]).all()) else one for one in tensors
    )


def get_variances(noise) -> Tensor:
    """Return the noise variances: the value that their prior is on."""
    return noise.variances


@torch.no_grad()
def set_variances(noise, value: Tensor) -> None:
    """Write noise variances into `log_scale`."""
    noise.log_scale.copy_(value.to(noise.log_scale).log() / 2)
