"""Noise with two exponential tails: the Laplace distribution, and the asymmetric one for which f is a quantile of y.

At unit scale the density is αβ/(α+β) e^{−α e} for e > 0 and αβ/(α+β) e^{β e} for e < 0. Everything is in closed form,
as quadrature is poor at kinks: E max(u, 0) = u Φ(u/√v) + √v φ(u/√v), and the predictive distribution is the
normal–Laplace one.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_probability
from ovkgp.inference.likelihoods.base import check_outputs, marginal_variance
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.likelihoods.quadrature import (
    expected_positive_part,
    log_tilted_cdf,
    normal_cdf,
    normal_density,
    tilted_cdf,
)


class TwoSidedExponential(LocationLikelihood):
    """y = f + s·e, where e has an exponential tail of rate α to the right and β to the left."""

    @property
    @abstractmethod
    def rates(self) -> tuple[float, float]:
        """Rates α and β at unit scale."""

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        right, left = self.rates
        residual = (y - f) / self.scale
        return self._constant() - torch.maximum(right * residual, -left * residual)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        right, left = self.rates
        gap, std = self._standardize(y, mean, variance)
        # β E max(−u, 0) = β (E max(u, 0) − E u)
        return self._constant() - (right + left) * expected_positive_part(gap, std) + left * gap

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right, left = self.rates
        gap, std = self._standardize(y, mean, variance)
        z = gap / std
        first = right * normal_cdf(z) - left * normal_cdf(-z)
        curvature = (right + left) * normal_density(z) / std
        return self.entry_expected(y, mean, variance), first / self.scale, curvature / self.scale.square()

    def _constant(self) -> Tensor:
        right, left = self.rates
        return np.log(right * left / (right + left)) - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        right, left = self.rates
        one = torch.ones_like(self.scale)
        return one * (1 / right - 1 / left), one * (right**-2 + left**-2)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute Φ(z) − [β t(α√v, z) − α t(β√v, −z)] / (α + β), with t(a, z) = e^{a²/2 − a z} Φ(z − a)."""
        right, left = self.rates
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        z = gap / std
        tails = left * tilted_cdf(right * std, z) - right * tilted_cdf(left * std, -z)
        return (normal_cdf(z) - tails / (right + left)).clamp(0.0, 1.0)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute log of αβ/(α+β) [t(α√v, z) + t(β√v, −z)] / s, the normal–Laplace density."""
        right, left = self.rates
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        z = gap / std
        return self._constant() + torch.logaddexp(log_tilted_cdf(right * std, z), log_tilted_cdf(left * std, -z))

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        right, left = self.rates
        up, down = torch.empty((2, *F.shape), dtype=torch.float64).exponential_(generator=generator).to(F.device)
        return F.double() + self.scale * (up / right - down / left)


class Laplace(TwoSidedExponential):
    """Laplace noise with density e^{−|y − f|/s} / (2s): absolute instead of squared errors.

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`; Var[y | f] = 2 s².

    Notes
    -----
    Complexity: O(n p), in closed form.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Laplace
    >>> likelihood = Laplace(num_outputs=1, scale=1.0)
    >>> value = likelihood.expected(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    >>> round(value.item(), 6)  # −log 2 − √(2/π)
    -1.491032
    """

    name = "laplace"
    rates = (1.0, 1.0)


class AsymmetricLaplace(TwoSidedExponential):
    """Asymmetric Laplace noise with density τ(1−τ)/s · e^{−ρ_τ(y − f)/s}, with ρ_τ(r) = max(τ r, (τ−1) r).

    f is the τ-quantile of y. The mean of y is f + s (1 − 2τ) / (τ(1−τ)).

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`.
    tau : float, default=0.5
        Quantile level of all outputs, strictly between 0 and 1. It is not trained.

    Notes
    -----
    Complexity: O(n p), in closed form.

    References
    ----------
    ID-15

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import AsymmetricLaplace
    >>> likelihood = AsymmetricLaplace(num_outputs=1, scale=1.0, tau=0.9)
    >>> zero = torch.zeros(1, 1)
    >>> round(likelihood.cdf(zero, zero, zero).item(), 6)
    0.9
    """

    name = "asymmetric_laplace"

    def __init__(self, num_outputs: int, scale=None, tau: float = 0.5):
        super().__init__(num_outputs, scale)
        self.tau = check_probability("tau", tau)

    @property
    def rates(self) -> tuple[float, float]:
        return self.tau, 1 - self.tau

    def initial_latent(self, Y: Tensor) -> Tensor:
        """Return the τ-quantile of each output."""
        Y = check_outputs(Y, self.num_outputs)
        columns = [column[~np.isnan(column)] for column in Y.detach().cpu().numpy().T]
        return Y.new_tensor([np.quantile(column, self.tau) if len(column) else 0.0 for column in columns])
