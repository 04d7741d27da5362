"""The units in which priors are written: what a kernel inside a model sees of the data, and who has a prior already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from gpytorch.module import Module
from gpytorch.priors import LogNormalPrior, NormalPrior, Prior, UniformPrior
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.data_scales import ROUNDING, subsample
from ovkgp.inference.prior_sites import Reader, Writer, find, prior_sites


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
