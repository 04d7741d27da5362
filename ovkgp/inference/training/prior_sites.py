"""Priors registered on a model: reading them (`PriorSite`), adding them (`PriorRegistry`), and the distributions used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior, UniformPrior
from torch import Tensor
from torch.nn import Module, Parameter

from ovkgp.exceptions import OptionError
from ovkgp.inference.training.covariance_prior import CovariancePrior, get_chol, register_covariance_prior


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
