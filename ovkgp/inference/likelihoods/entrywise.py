"""Likelihoods whose outputs are independent given f: each entry is a scalar problem, p(y_ij | f_ij).

A subclass writes the scalar formulas for whole tensors of entries that were all observed; what is missing is put in and
taken out here.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.likelihoods.base import Likelihood, refuse_noise, require_outputs


class EntrywiseLikelihood(Likelihood):
    """p(y | f) = Π_ij p(y_ij | f_ij); a subclass has `entry_log_density` and `entry_expected`, perhaps `entry_terms`.

    Missing entries are seen by these as y = 0, mean = 0 and variance = 1, and their results are set to zero: zero is a
    possible observation of every one of them.
    """

    @abstractmethod
    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), elementwise over (…, n, p)."""

    @abstractmethod
    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f), elementwise over (n, p)."""

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        refuse_noise(noise, self.name)
        Y, F = require_outputs(Y, self.num_outputs), F.double()
        seen = ~torch.isnan(Y)
        return self.entry_log_density(torch.where(seen, Y, 0.0), torch.where(seen, F, 0.0)).where(seen, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        refuse_noise(noise, self.name)
        seen, *entries = observed_entries(Y, mean, variance, self.num_outputs)
        return self.entry_expected(*entries).where(seen, 0.0)

    def terms(
        self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        refuse_noise(noise, self.name)
        with torch.no_grad():
            seen, *entries = observed_entries(Y, mean, variance, self.num_outputs)
            return tuple(term.where(seen, 0.0) for term in self.entry_terms(*entries))

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value, ∂/∂mean and −2 ∂/∂variance, elementwise; by automatic differentiation unless it is overridden."""
        with torch.enable_grad():
            mean, variance = (part.detach().requires_grad_() for part in (mean, variance))
            value = self.entry_expected(y, mean, variance)
            first, second = torch.autograd.grad(value.sum(), (mean, variance))
        return value.detach(), first, -2 * second


def observed_entries(Y: Tensor, mean: Tensor, variance: Tensor, num_outputs: int) -> tuple[Tensor, ...]:
    """Which entries were seen, and y, mean, variance in float64 with (0, 0, 1) where they were not."""
    Y = require_outputs(Y, num_outputs)
    for name, part in (("mean", mean), ("variance", variance)):
        if part.shape != Y.shape:
            raise InputError(f"the latent {name} must have the shape of Y, {tuple(Y.shape)}; got {tuple(part.shape)}.")
    seen = ~torch.isnan(Y)
    return (
        seen,
        torch.where(seen, Y, 0.0),
        torch.where(seen, mean.double(), 0.0),
        torch.where(seen, variance.double(), 1.0),
    )


def marginal(mean: Tensor, variance: Tensor) -> Tensor:
    """The marginal variances (m, p) in float64, of those or of covariances (m, p, p)."""
    variance = variance.double()
    return variance.diagonal(dim1=-2, dim2=-1) if variance.dim() > mean.dim() else variance
