"""A separate likelihood for each output."""

from __future__ import annotations

from collections.abc import Sequence

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
        return self._columns("log_density", Y, F, noise)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        check_latent_shapes(Y, mean, variance)
        return self._columns("expected", Y, mean, variance, noise)

    def terms(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Terms:
        Y = check_outputs(Y, self.num_outputs)
        check_latent_shapes(Y, mean, variance)
        return tuple(torch.cat(parts, -1) for parts in zip(*self._each("terms", Y, mean, variance, noise), strict=True))

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        found = self._each("moments", mean, marginal_variance(mean, variance))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns("cdf", y, mean, marginal_variance(mean, variance))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns("log_predictive", y, mean, marginal_variance(mean, variance))

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        return self._columns("quantile", q, mean, marginal_variance(mean, variance))

    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return self._columns("draw", F, generator)

    def start(self, Y: Tensor) -> None:
        self._each("start", check_outputs(Y, self.num_outputs))

    def initial_latent(self, Y: Tensor) -> Tensor:
        return self._columns("initial_latent", check_outputs(Y, self.num_outputs))

    def noise_covariance(self) -> Tensor | None:
        parts = [member.noise_covariance() for member in self.likelihoods]
        return None if any(part is None for part in parts) else torch.block_diag(*parts)

    def variables(self) -> dict[str, Tensor]:
        """Return the values of the trained parameters by name and output: `scale_0`, `dispersion_2`, …"""
        members = enumerate(self.likelihoods)
        return {f"{name}_{j}": value.reshape(()) for j, one in members for name, value in one.variables().items()}

    def _each(self, method: str, *parts) -> list:
        """Call a method of each likelihood with its column, (…, 1), of the tensors among `parts`."""

        def columns(j: int) -> list:
            return [part[..., [j]] if torch.is_tensor(part) else part for part in parts]

        return [getattr(member, method)(*columns(j)) for j, member in enumerate(self.likelihoods)]

    def _columns(self, method: str, *parts) -> Tensor:
        return torch.cat(self._each(method, *parts), -1)
