"""Where the priors of a module are, and of which trained parameters each is a law.

GPyTorch keeps a prior with a closure that reads a value θ and perhaps one that sets it. Which raw parameters θ depends on,
and whether it is one number for each of theirs, is asked of autograd, so that closures of the user's own are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module, Parameter

from ovkgp.exceptions import OptionError
from ovkgp.inference.covariance_prior import CovariancePrior, get_chol


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

    def require_one_to_one(self) -> None:
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
        site.require_one_to_one()
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
