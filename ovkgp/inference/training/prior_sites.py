"""The units in which priors are written: what a kernel inside a model sees of the data, and who has a prior already."""

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

MAX_ROWS = 500
"""Rows between which distances are measured."""
FLOOR = 1e-3
"""The variance that is given to a constant output, relative to the mean of the others."""
ROUNDING = 1e-12
"""A spread below this, relative to the values, is rounding: the output is constant."""


@dataclass
class Distances:
    """The 5 % quantile and the median of the nonzero distances, as vectors: one a column, or a single one."""

    small: Tensor
    median: Tensor


def subsample(X: Tensor, num_rows: int = MAX_ROWS) -> Tensor:
    """At most `num_rows` of the rows of X, always the same ones."""
    if len(X) <= num_rows:
        return X
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:num_rows].to(X.device)]


def column_distances(X: Tensor) -> Distances:
    """Of each column of X (n, d) alone; 1 for a constant column."""
    found = [_quantiles(column) for column in subsample(X).T.unsqueeze(-1)]
    return Distances(torch.cat([one.small for one in found]), torch.cat([one.median for one in found]))


def row_distances(X: Tensor) -> Distances:
    """Euclidean ones between the rows of X (n, d); 1 where all rows are equal."""
    return _quantiles(subsample(X))


def _quantiles(X: Tensor) -> Distances:
    X = X.detach().to("cpu", torch.float64)
    size = X.abs().amax().clamp_min(torch.finfo(torch.float64).tiny) if X.numel() else 1.0
    distances = torch.nn.functional.pdist(X / size).numpy()  # squares of 1e±200 would leave the range of numbers
    distances = distances[distances > 0]
    quantiles = np.quantile(distances, [0.05, 0.5]) * float(size) if len(distances) else np.ones(2)
    return Distances(*torch.as_tensor(quantiles).unsqueeze(-1))


def output_covariance(Y: Tensor) -> Tensor:
    """The covariance (p, p) of the outputs Y (n, p), NaN where missing, with a positive diagonal.

    A constant output has `FLOOR` times the mean variance of the others; where all are constant their mean square is
    taken, or 1 where they are zero.

    Example:
        >>> import torch
        >>> from ovkgp.inference.training.prior_sites import output_covariance
        >>> output_covariance(torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])).round(decimals=6).tolist()
        [[1.0, 0.0], [0.0, 0.001]]
    """
    Y = Y.detach().to("cpu", torch.float64)
    largest = Y.nan_to_num(nan=0.0).abs().amax(0) if len(Y) else torch.zeros(Y.shape[1], dtype=torch.float64)
    unit = torch.where(largest > 0, largest, 1.0)  # outputs in units far apart would lose digits to one another
    covariance, level = _moments(Y / unit)
    covariance, level = covariance * torch.outer(unit, unit), level * unit.square()
    variances = covariance.diagonal()
    is_constant = variances == 0
    if bool(is_constant.all()):
        level = level.mean()
        return torch.eye(len(unit), dtype=torch.float64) * (level if level > 0 else 1.0)
    return covariance + torch.diag(torch.where(is_constant, FLOOR * variances[~is_constant].mean(), 0.0))


def _moments(Y: Tensor) -> tuple[Tensor, Tensor]:
    """The covariance (p, p), zero for constant and unseen outputs, and the mean squares (p,)."""
    observed = ~Y.isnan()
    level = torch.where(observed, Y, 0.0).square().sum(0) / observed.sum(0).clamp_min(1)
    covariance = torch.zeros(Y.shape[1], Y.shape[1], dtype=torch.float64)
    known = observed.any(0).nonzero().flatten()
    if len(Y) > 1 and len(known):
        covariance[known.unsqueeze(-1), known] = EmpiricalMatrix(Y[:, known])()
    is_constant = covariance.diagonal() <= ROUNDING**2 * level
    covariance[is_constant] = 0.0
    covariance[:, is_constant] = 0.0
    return covariance, level


@dataclass(frozen=True)
class Reader:
    """The constrained value of the parameter at a dotted path below a module; unlike a lambda it can be pickled."""

    path: str

    def __call__(self, module: Module) -> Tensor:
        parameter, constraint = find(module, self.path)
        return parameter if constraint is None else constraint.transform(parameter)


@dataclass(frozen=True)
class Writer:
    """Sets what a `Reader` reads."""

    path: str

    @torch.no_grad()
    def __call__(self, module: Module, value: Tensor) -> None:
        parameter, constraint = find(module, self.path)
        value = torch.as_tensor(value).to(parameter).expand_as(parameter)
        parameter.copy_(value if constraint is None else constraint.inverse_transform(value))


def find(module: Module, path: str) -> tuple[Parameter, Interval | None]:
    """The parameter at a dotted path, and its constraint where there is one."""
    owner, _, leaf = path.rpartition(".")
    owner = module.get_submodule(owner)
    return getattr(owner, leaf), getattr(owner, "_constraints", {}).get(f"{leaf}_constraint")


@dataclass(frozen=True, eq=False)
class Site:
    """One prior: its qualified name, the module it is registered on, and its closures."""

    name: str
    module: Module
    prior: Prior
    read: Callable[[Module], Tensor]
    write: Callable[[Module, Tensor], None] | None

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The trained parameters below the module on which the value depends, by path."""
        trained = {path: one for path, one in self.module.named_parameters() if one.requires_grad}
        with torch.enable_grad():
            value = self.read(self.module)
            if not (value.requires_grad and trained):
                return {}
            slopes = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
        return {path: one for (path, one), slope in zip(trained.items(), slopes, strict=True) if slope is not None}

    @property
    def is_covariance(self) -> bool:
        """Whether it is a `CovariancePrior` on the Cholesky factor of a module that holds one."""
        return isinstance(self.prior, CovariancePrior) and self.read is get_chol

    @cached_property
    def plain(self) -> tuple[Parameter, Interval | None] | None:
        """The parameter and its constraint, where the value is the constrained value of one parameter; else None."""
        if len(self.parameters) != 1 or self.is_covariance:
            return None
        parameter, constraint = find(self.module, next(iter(self.parameters)))
        kept = parameter.detach().clone()
        try:
            is_plain = self._reads(parameter, constraint)
            parameter.data.add_(torch.linspace(0.1, 0.2, kept.numel()).to(kept).reshape(kept.shape))
            is_plain = is_plain and self._reads(parameter, constraint)  # two values may agree at one point by chance
        finally:
            parameter.data.copy_(kept)
        return (parameter, constraint) if is_plain else None

    @torch.no_grad()
    def _reads(self, parameter: Parameter, constraint: Interval | None) -> bool:
        known = parameter if constraint is None else constraint.transform(parameter)
        value = self.read(self.module)
        return known.shape == value.shape and torch.equal(known, value)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Between which values θ lies; infinite ones where it is not the constrained value of a parameter."""
        constraint = None if self.plain is None else self.plain[1]
        ends = (-torch.inf, torch.inf) if constraint is None else constraint
        return tuple(torch.as_tensor(end, dtype=torch.float64, device="cpu") for end in ends)

    def check_one_to_one(self) -> None:
        """Refuse a prior on a value that is not one number for each number of one parameter."""
        if self.is_covariance or not self.parameters:
            return
        if len(self.parameters) == 1 and self._is_elementwise():
            return
        raise OptionError(
            f"the prior {self.name} ({type(self.prior).__name__}) is on a function of {', '.join(self.parameters)} that is "
            "not one number for each of theirs, so that there is no density of the parameters to sample from. Put priors on "
            "the parameters themselves (register_data_priors does), or use FullMatrix(p) with "
            "register_covariance_prior(matrix, CovariancePrior(loc, scale)) for a prior on a whole covariance."
        )

    def _is_elementwise(self) -> bool:
        (parameter,) = self.parameters.values()
        with torch.enable_grad():
            value = self.read(self.module)
            if value.numel() != parameter.numel():
                return False
            # not in equal steps, which a number that is spread evenly over its neighbours would map to themselves
            probe = torch.linspace(0.0, 1.0, value.numel()).exp().to(value)
            slopes, probed = (
                torch.autograd.grad(value, parameter, weight.reshape(value.shape), retain_graph=True)[0].reshape(-1)
                for weight in (torch.ones_like(probe), probe)
            )
        return torch.allclose(probed, slopes * probe, rtol=1e3 * torch.finfo(value.dtype).eps, atol=0.0, equal_nan=True)


def prior_sites(module: Module) -> Iterator[Site]:
    """All priors registered on a module and inside it, each once, also where a module is shared."""
    for path, part in module.named_modules():
        for name, (prior, read, write) in getattr(part, "_priors", {}).items():
            yield Site(f"{path}.{name}".lstrip("."), part, prior, read, write)


def trained_sites(module: Module) -> list[Site]:
    """The priors on trained parameters, checked: each one-to-one, and no parameter with two of them.

    Raises:
        OptionError: a prior is on a function of several parameters, or a parameter has two priors.
    """
    found, owners = [], {}
    for site in prior_sites(module):
        if not site.parameters:
            continue
        site.check_one_to_one()
        for path, parameter in site.parameters.items():
            other = owners.setdefault(id(parameter), site.name)
            if other != site.name:
                raise OptionError(
                    f"{path} has two priors, {other} and {site.name}: their product has no known density to sample from. "
                    "Keep one of them."
                )
        found.append(site)
    return found


def follow(prior: Prior, device: torch.device) -> None:
    """Move a prior to where its value is: `Module.to` leaves the numbers of a transformed distribution behind."""
    if device.type == "cpu":
        return
    for name, buffer in list(prior.named_buffers(recurse=False)):
        if name.startswith("_buffered_") and getattr(prior.base_dist, name[len("_buffered_") :]).device != device:
            setattr(prior, name, buffer.to(device))


@dataclass(frozen=True)
class Units:
    """What a kernel is told: the inputs that it sees and the standard deviations of the outputs that it explains.

    Args:
        num_dims: d.
        deviations: (p,), or (1,) for all outputs alike and for scalar kernels.
        X: some inputs (m, d), or None where every column is of order one.
        is_scaled: whether a kernel outside has a scale that takes the variance on itself.
        of_derivatives: whether the variance is that of derivatives, and has to be multiplied by ℓ².
    """

    num_dims: int
    deviations: Tensor
    X: Tensor | None = None
    is_scaled: bool = False
    of_derivatives: bool = False

    @classmethod
    def standard(cls, num_dims: int) -> Units:
        """Of standardised data."""
        return cls(num_dims, torch.ones(1, dtype=torch.float64))

    @classmethod
    def of(cls, X: Tensor, covariance: Tensor) -> Units:
        """Of inputs X (n, d) and outputs with a covariance (p, p)."""
        return cls(X.shape[1], covariance.diagonal().sqrt(), X.detach().to("cpu", torch.float64))

    @property
    def columns(self) -> Tensor:
        """The standard deviation of each column (d,); 1 for one that is constant."""
        if self.X is None or len(self.X) < 2:
            return torch.ones(self.num_dims, dtype=torch.float64)
        spread = self.X.std(0, correction=0)
        return torch.where(spread > ROUNDING * self.X.abs().amax(0), spread, 1.0)

    @property
    def centre(self) -> Tensor:
        """The mean of each column (d,)."""
        return torch.zeros(self.num_dims, dtype=torch.float64) if self.X is None else self.X.mean(0)

    @property
    def size(self) -> Tensor:
        """The mean of ‖x‖²."""
        return (self.columns.square() + self.centre.square()).sum()

    @property
    def variance(self) -> Tensor:
        """The mean variance of the outputs."""
        return self.deviations.square().mean()

    def columns_of(self, active_dims: Tensor | Sequence[int] | None) -> Units:
        """For a kernel with these `active_dims`."""
        if active_dims is None:
            return self
        index = torch.as_tensor(active_dims).cpu()
        return replace(self, num_dims=len(index), X=None if self.X is None else self.X[:, index])

    def at(self, X: Tensor | None, num_dims: int) -> Units:
        """For a kernel that sees other inputs: a warp of these, or tasks."""
        return replace(self, num_dims=num_dims, X=None if X is None else subsample(X.detach().to("cpu", torch.float64)))

    def output(self, index: int) -> Units:
        """For a scalar kernel that explains one of the outputs."""
        return replace(self, deviations=self.deviations.expand(max(len(self.deviations), index + 1))[[index]])

    def scalar(self, variance: Tensor | float = 1.0) -> Units:
        """For a scalar kernel with this variance."""
        return replace(self, deviations=torch.as_tensor(variance, dtype=torch.float64).sqrt().reshape(1))

    def unit(self) -> Units:
        """The same with mean variance 1, for a kernel inside one that has a scale."""
        return replace(self, deviations=self.deviations / self.variance.sqrt(), is_scaled=True, of_derivatives=False)


class Registry:
    """Registers priors on the trained parameters of a module that have none, in place."""

    def __init__(self, module: torch.nn.Module):
        self._covered = {id(one) for site in prior_sites(module) for one in site.parameters.values()}

    def is_open(self, parameter: Tensor) -> bool:
        """Whether a parameter is trained and has no prior."""
        return parameter.requires_grad and id(parameter) not in self._covered

    def add(self, module: Module, path: str, prior: Prior) -> None:
        """Put a prior on the constrained value of the parameter at a dotted path below a module, if it has none."""
        parameter, _ = find(module, path)
        if self.is_open(parameter):
            self._covered.add(id(parameter))
            name = f"{path.replace('.', '_').removeprefix('raw_')}_prior"
            module.register_prior(_free_name(module, name), prior, Reader(path), Writer(path))

    def add_covariance(self, module: Module, prior: CovariancePrior) -> None:
        """Put a prior on a covariance that is held by its Cholesky factor, if neither part of it has one."""
        parts = (module.log_scale, module.lower)
        if any(part.requires_grad for part in parts) and not any(id(part) in self._covered for part in parts):
            self._covered.update(map(id, parts))
            register_covariance_prior(module, prior, _free_name(module, "covariance_prior"))

    def add_with(self, module: Module, name: str, parameter: Tensor, prior: Prior, read, write) -> None:
        """Put a prior on a function of one parameter, if it has none."""
        if self.is_open(parameter):
            self._covered.add(id(parameter))
            module.register_prior(_free_name(module, name), prior, read, write)


def _free_name(module: Module, name: str) -> str:
    """A prior of this name that is there already is on something that is not trained any more: it stays."""
    if name not in module._priors:
        return name
    free = f"data_{name}"
    if free in module._priors:
        raise OptionError(
            f"{type(module).__name__} has priors named {name} and {free} on other parameters: rename one."
        )
    return free


def log_normal(loc: float | Tensor, scale: float | Tensor) -> LogNormalPrior:
    """log θ ~ N(loc, scale²), in float64."""
    return LogNormalPrior(*_exact(loc, scale), validate_args=False)


def normal(loc: float | Tensor, scale: float | Tensor) -> NormalPrior:
    """θ ~ N(loc, scale²), in float64."""
    return NormalPrior(*_exact(loc, scale), validate_args=False)


def uniform(low: float | Tensor, high: float | Tensor) -> UniformPrior:
    """θ ~ U(low, high), in float64."""
    return UniformPrior(*_exact(low, high), validate_args=False)


def output_prior(prior: Prior, index: int) -> Prior:
    """The law of one entry of a value that has a normal or log-normal law for each output; any other prior is kept."""
    if not isinstance(prior, (LogNormalPrior, NormalPrior)) or prior._transform is not None:
        return prior
    loc, scale = (number if number.dim() == 0 else number[..., index] for number in (prior.loc, prior.scale))
    return type(prior)(loc.clone(), scale.clone(), validate_args=False)


def _exact(*numbers: float | Tensor) -> tuple[Tensor, ...]:
    """float64 tensors, single numbers where all entries are equal."""
    tensors = [torch.as_tensor(number, dtype=torch.float64).detach() for number in numbers]
    return tuple(
        one.flatten()[0].clone() if one.numel() and bool((one == one.flatten()[0]).all()) else one for one in tensors
    )


def get_variances(noise) -> Tensor:
    return noise.variances


@torch.no_grad()
def set_variances(noise, value: Tensor) -> None:
    noise.log_scale.copy_(value.to(noise.log_scale).log() / 2)
