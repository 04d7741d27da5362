"""A separate likelihood for each output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods.base import Likelihood, Terms, check_latent_shapes, check_outputs, marginal_variance


class PerOutput(Likelihood):
    """Independent outputs with one likelihood each, p(y | f) = Π_j p_j(y_j | f_j).

    Parameters
    ----------
    likelihoods : sequence of Likelihood
        p likelihoods of one output each, none of which couples outputs.

    Notes
    -----
    Complexity: the sum over the likelihoods, evaluated in sequence.

    Examples
    --------
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
        for j, member in enumerate(likelihoods):
            if member.num_outputs != 1 or member.couples_outputs:
                raise OptionError(
                    f"likelihoods[{j}] ({member.name}) must have 1 output, got {member.num_outputs}{' coupled outputs' if member.couples_outputs else ''}."
                )
        self.likelihoods = torch.nn.ModuleList(likelihoods)

    @property
    def is_real(self) -> Tensor:
        return torch.cat([member.is_real for member in self.likelihoods])

    def check(self, Y: Tensor, first_output: int = 0) -> None:
        Y = check_outputs(Y, self.num_outputs)
        for j, member in enumerate(self.likelihoods):
            member.check(Y[:, [j]], first_output + j)

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        return self._columns(lambda member, j: member.log_density(Y[:, j], F[..., j], _column(noise, j)))

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        check_latent_shapes(Y, mean, variance)
        return self._columns(lambda member, j: member.expected(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))

    def terms(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Terms:
        Y = check_outputs(Y, self.num_outputs)
        check_latent_shapes(Y, mean, variance)
        found = self._each(lambda member, j: member.terms(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        variance = marginal_variance(mean, variance)
        found = self._each(lambda member, j: member.moments(mean[:, j], variance[:, j]))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal_variance(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda member, j: member.cdf(y[..., j], mean[:, j], variance[:, j]))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal_variance(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda member, j: member.log_predictive(y[..., j], mean[:, j], variance[:, j]))

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal_variance(mean, variance)
        return self._columns(lambda member, j: member.quantile(q, mean[:, j], variance[:, j]))

    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return self._columns(lambda member, j: member.draw(F[..., j], generator))

    def start(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        self._each(lambda member, j: member.start(Y[:, j]))

    def initial_latent(self, Y: Tensor) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        return self._columns(lambda member, j: member.initial_latent(Y[:, j]))

    def noise_covariance(self) -> Tensor | None:
        parts = [member.noise_covariance() for member in self.likelihoods]
        return None if any(part is None for part in parts) else torch.block_diag(*parts)

    def variables(self) -> dict[str, Tensor]:
        """Return the values of the trained parameters by name and output: `scale_0`, `dispersion_2`, …"""
        members = enumerate(self.likelihoods)
        return {f"{name}_{j}": value.reshape(()) for j, one in members for name, value in one.variables().items()}

    def _each(self, compute: Callable[[Likelihood, list[int]], object]) -> list:
        """Call a function on each likelihood and its column index, a list, so that indexing keeps the axis."""
        return [compute(member, [j]) for j, member in enumerate(self.likelihoods)]

    def _columns(self, compute: Callable[[Likelihood, list[int]], Tensor]) -> Tensor:
        return torch.cat(self._each(compute), -1)


def _column(noise: Tensor | None, j: list[int]) -> Tensor | None:
    return None if noise is None else noise[:, j]
