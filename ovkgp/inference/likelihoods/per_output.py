"""One likelihood for each output: a count beside a temperature beside a label, tied by the latent functions alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood, require_outputs
from ovkgp.inference.likelihoods.entrywise import marginal


class PerOutput(Likelihood):
    """p(y | f) = Π_j p_j(y_j | f_j).

    Args:
        likelihoods: p likelihoods of one output each, none of which couples outputs.

    Cost: that of its members, one after another.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import Bernoulli, Gaussian, PerOutput
        >>> likelihood = PerOutput([Gaussian(1), Bernoulli(1)])
        >>> likelihood.is_real.tolist()
        [True, False]
        >>> likelihood.expected(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2)).shape
        torch.Size([3, 2])
    """

    name = "per_output"

    def __init__(self, likelihoods: Sequence[Likelihood]):
        super().__init__(len(likelihoods))
        for j, one in enumerate(likelihoods):
            if one.num_outputs != 1 or one.couples_outputs:
                raise OptionError(
                    f"a list holds one likelihood for each output; number {j} ({one.name}) is of {one.num_outputs} outputs"
                    f"{' that it couples' if one.couples_outputs else ''}."
                )
        self.likelihoods = torch.nn.ModuleList(likelihoods)

    @property
    def is_real(self) -> Tensor:
        return torch.cat([one.is_real for one in self.likelihoods])

    def check(self, Y: Tensor) -> None:
        Y = require_outputs(Y, self.num_outputs)
        for j, one in enumerate(self.likelihoods):
            try:
                one.check(Y[:, [j]])
            except InputError as error:
                raise InputError(f"output {j}: {str(error).replace(', 0]', f', {j}]', 1)}") from error

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = require_outputs(Y, self.num_outputs)
        return self._columns(lambda one, j: one.log_density(Y[:, j], F[..., j], _column(noise, j)))

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = require_outputs(Y, self.num_outputs)
        _require_shapes(Y, mean, variance)
        return self._columns(lambda one, j: one.expected(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))

    def terms(
        self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        Y = require_outputs(Y, self.num_outputs)
        _require_shapes(Y, mean, variance)
        found = self._each(lambda one, j: one.terms(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        variance = marginal(mean, variance)
        found = self._each(lambda one, j: one.moments(mean[:, j], variance[:, j]))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda one, j: one.cdf(y[..., j], mean[:, j], variance[:, j]))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda one, j: one.log_predictive(y[..., j], mean[:, j], variance[:, j]))

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        return self._columns(lambda one, j: one.quantile(q, mean[:, j], variance[:, j]))

    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return self._columns(lambda one, j: one.draw(F[..., j], generator))

    def start(self, Y: Tensor) -> None:
        Y = require_outputs(Y, self.num_outputs)
        self._each(lambda one, j: one.start(Y[:, j]))

    def latent_start(self, Y: Tensor) -> Tensor:
        Y = require_outputs(Y, self.num_outputs)
        return self._columns(lambda one, j: one.latent_start(Y[:, j]))

    def noise_covariance(self) -> Tensor | None:
        parts = [one.noise_covariance() for one in self.likelihoods]
        return None if any(part is None for part in parts) else torch.block_diag(*parts)

    def variables(self) -> dict[str, Tensor]:
        """By name and output: `scale_0`, `dispersion_2`, …"""
        found = enumerate(one.variables() for one in self.likelihoods)
        return {f"{name}_{j}": value.reshape(()) for j, own in found for name, value in own.items()}

    def _each(self, ask: Callable[[Likelihood, list[int]], object]) -> list:
        """What every member says; it is given its column as a list, so that the axis stays."""
        return [ask(one, [j]) for j, one in enumerate(self.likelihoods)]

    def _columns(self, ask: Callable[[Likelihood, list[int]], Tensor]) -> Tensor:
        return torch.cat(self._each(ask), -1)


def _column(noise: Tensor | None, j: list[int]) -> Tensor | None:
    return None if noise is None else noise[:, j]


def _require_shapes(Y: Tensor, mean: Tensor, variance: Tensor) -> None:
    if mean.shape != Y.shape or variance.shape != Y.shape:
        raise InputError(
            f"the latent mean and variance must have the shape of Y, {tuple(Y.shape)}; got {tuple(mean.shape)} and "
            f"{tuple(variance.shape)}."
        )
