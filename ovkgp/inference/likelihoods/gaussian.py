"""The Gaussian likelihood, y = f + ε with ε ~ N(0, Σ): every expectation in closed form.

E log p(y | f) = log N(y; m, Σ) − ½ tr(Σ⁻¹ V). With a diagonal Σ, or known variances per entry, the outputs are
independent given f; a full Σ couples them, and a row with missing outputs has the Σ of its observed outputs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.checks import check_probability
from ovkgp.exceptions import InputError
from ovkgp.inference.likelihoods.base import (
    INITIAL_NOISE_FRACTION,
    Likelihood,
    Terms,
    check_outputs,
    marginal_variance,
    observed_entries,
)
from ovkgp.inference.likelihoods.location import column_statistic, column_std
from ovkgp.inference.likelihoods.quadrature import normal_cdf
from ovkgp.inference.model.mean_noise import OutputNoise

LOG_2PI = math.log(2 * math.pi)


class Gaussian(Likelihood):
    """Gaussian noise, y = f + ε with ε ~ N(0, Σ).

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.
    noise : {"shared", "per_output", "full"}, float or array-like of shape (p,) or (p, p), default="per_output"
        Noise variance or covariance Σ, as for `OperatorValuedGP`. A name is trained, values are fixed.

    Notes
    -----
    Complexity: O(n p); with a full Σ O(n p² + k p³) time and O(n p²) memory for k patterns of missing outputs.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Gaussian
    >>> likelihood = Gaussian(num_outputs=2, noise=1.0)
    >>> Y = torch.tensor([[0.0, torch.nan]])
    >>> likelihood.expected(Y, torch.zeros(1, 2), torch.ones(1, 2)).tolist()  # −½ log 2π − ½
    [[-1.4189385332046727, 0.0]]
    """

    name = "gaussian"

    def __init__(self, num_outputs: int, noise="per_output"):
        super().__init__(num_outputs)
        self.noise_model = OutputNoise(noise, self.num_outputs)

    @property
    def couples_outputs(self) -> bool:
        return not self.noise_model.is_diagonal

    @property
    def is_real(self) -> Tensor:
        return torch.ones(self.num_outputs, dtype=torch.bool)

    @property
    def noise(self) -> Tensor:
        """Σ in the form of the option `noise`: a scalar, (p,) or (p, p)."""
        return self.noise_model.value

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        Y, F = check_outputs(Y, self.num_outputs), F.double()
        observed = ~torch.isnan(Y)
        residual = torch.where(observed, Y - F, 0.0)
        if self.couples_outputs:
            precision, constant = self._rows(observed, noise)
            return constant - ((residual.unsqueeze(-2) @ precision).squeeze(-2) * residual).sum(-1) / 2
        variances = self._variances(observed, noise)
        return (-(LOG_2PI + variances.log() + residual.square() / variances) / 2).where(observed, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        if self.couples_outputs:
            precision, constant, residual = self._coupled(Y, mean, variance, noise)
            second_moment = residual.unsqueeze(-1) * residual.unsqueeze(-2) + variance.double()
            return constant - (precision * second_moment).sum((-2, -1)) / 2
        observed, y, mean, variance = observed_entries(Y, mean, variance, self.num_outputs)
        variances = self._variances(observed, noise)
        second_moment = (y - mean).square() + variance
        return (-(LOG_2PI + variances.log() + second_moment / variances) / 2).where(observed, 0.0)

    @torch.no_grad()
    def terms(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Terms:
        value = self.expected(Y, mean, variance, noise)
        if self.couples_outputs:
            precision, _, residual = self._coupled(Y, mean, variance, noise)
            return value, (precision @ residual.unsqueeze(-1)).squeeze(-1), precision
        observed, y, mean, _ = observed_entries(Y, mean, variance, self.num_outputs)
        precision = 1 / self._variances(observed, noise)
        return value, ((y - mean) * precision).where(observed, 0.0), precision.where(observed, 0.0)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        mean = mean.double()
        return mean, marginal_variance(mean, variance) + self.noise_model.variances

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = self.moments(mean, variance)
        return normal_cdf((y.double() - mean) / variance.sqrt())

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = self.moments(mean, variance)
        return -(LOG_2PI + variance.log() + (y.double() - mean).square() / variance) / 2

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = self.moments(mean, variance)
        score = torch.special.ndtri(torch.tensor(check_probability("q", q), dtype=torch.float64)).item()
        return mean + score * variance.sqrt()

    def noise_covariance(self) -> Tensor:
        return self.noise_model.matrix()

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        F = F.double()
        scores = torch.randn(F.shape, generator=generator, dtype=torch.float64).to(F.device)
        noise = self.noise_model
        return F + (scores * noise.value.sqrt() if noise.is_diagonal else scores @ noise.chol.mT)

    def start(self, Y: Tensor) -> None:
        """Set trained noise to a tenth of each output's variance."""
        if self.noise_model.is_trained:
            std = column_std(check_outputs(Y, self.num_outputs), robust=False)
            self.noise_model.set(INITIAL_NOISE_FRACTION * std.square())

    def initial_latent(self, Y: Tensor) -> Tensor:
        return column_statistic(check_outputs(Y, self.num_outputs), torch.nanmean)

    def variables(self) -> dict[str, Tensor]:
        return {"noise": self.noise.detach().clone()} if self.noise_model.is_trained else {}

    def _variances(self, observed: Tensor, noise: Tensor | None) -> Tensor:
        """Return Σ_jj of each entry (n, p); if `noise` is known, its values where observed and 1 elsewhere."""
        if noise is None:
            return self.noise_model.variances.expand(observed.shape)
        if noise.shape != observed.shape:
            raise InputError(f"noise has shape {tuple(noise.shape)}, expected {tuple(observed.shape)}, the shape of Y.")
        noise = noise.double()
        if not bool((torch.isfinite(noise) & (noise > 0))[observed].all()):
            raise InputError("noise must hold positive and finite variances wherever Y is observed.")
        return torch.where(observed, noise, 1.0)

    def _coupled(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None) -> tuple[Tensor, ...]:
        """Return precisions and constants of `_rows`, and residuals (n, p), zero where unobserved."""
        Y = check_outputs(Y, self.num_outputs)
        if mean.shape != Y.shape or variance.shape != (*Y.shape, Y.shape[1]):
            raise InputError(
                f"The latent mean and covariance have shapes {tuple(mean.shape)} and {tuple(variance.shape)}, expected {tuple(Y.shape)} and {(*Y.shape, Y.shape[1])}, as full noise couples the outputs."
            )
        observed = ~torch.isnan(Y)
        return *self._rows(observed, noise), torch.where(observed, Y - mean.double(), 0.0)

    def _rows(self, observed: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return Σ⁻¹ (n, p, p) of each row's observed outputs, zero elsewhere, and −½ log det 2πΣ (n,)."""
        if noise is not None:
            variances = self._variances(observed, noise)
            constant = -(LOG_2PI + variances.log()).where(observed, 0.0).sum(-1) / 2
            return torch.diag_embed((1 / variances).where(observed, 0.0)), constant
        patterns, which = torch.unique(observed, dim=0, return_inverse=True)
        both = patterns.unsqueeze(-1) & patterns.unsqueeze(-2)
        # Missing outputs get independent noise of variance one, which does not change the other entries of the inverse.
        chol = torch.linalg.cholesky(torch.where(both, self.noise, torch.eye(self.num_outputs).to(self.noise)))
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        precision = torch.cholesky_inverse(chol).where(both, 0.0)
        return precision[which], -(patterns.sum(-1).to(logdet) * LOG_2PI + logdet)[which] / 2
