"""Likelihoods of labels: `Bernoulli` for independent binary outputs, `Softmax` for p classes, which couple the outputs.

`Softmax` takes one-hot rows or counts of N trials: log p(y | f) = log N!/Πy_c! + Σ y_c f_c − N log Σ e^{f_c}. Only the
p − 1 contrasts f_c − f_p matter; E log Σ e^f is exact for p = 2, by a product of Gauss–Hermite rules for p = 3, and by
a fixed quasi-Monte-Carlo rule for more classes.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ovkgp.checks import check_one_of, check_probability
from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.features.spectral.base_samples import sobol_points
from ovkgp.inference.likelihoods.base import (
    EntrywiseLikelihood,
    Likelihood,
    check_outputs,
    marginal_variance,
    reject_noise,
    reject_values,
)
from ovkgp.inference.likelihoods.quadrature import (
    apply_by_blocks,
    differentiate,
    expected_log_ndtr,
    expected_sigmoid,
    expected_softplus,
    hermite_rule,
    normal_cdf,
    softplus,
)

LINKS = ("logit", "probit")
PRODUCT_NODES, SOBOL_PAIRS = 24, 512
JITTER, MAX_JITTER_STEPS = 1e-10, 5
"""Jitter of the covariances of contrasts, which may be singular, relative to one plus their mean variance; multiplied
by ten until the factorization succeeds, at most to 1e-6."""


class Bernoulli(EntrywiseLikelihood):
    """Binary observations y ∈ {0, 1}.

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.
    link : {"logit", "probit"}, default="logit"
        Link function: P(y = 1 | f) = 1 / (1 + e^{−f}) or Φ(f).

    Notes
    -----
    Complexity: `expected` takes 32 nodes per entry, 153 if a variance in the batch is above 2.25; with the probit link
    35, and 25 √v if the largest variance v in the batch is above 2.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Bernoulli
    >>> mean, variance = Bernoulli(num_outputs=1).moments(torch.zeros(1, 1), torch.ones(1, 1))
    >>> round(mean.item(), 9), round(variance.item(), 9)
    (0.5, 0.25)
    """

    name = "bernoulli"

    def __init__(self, num_outputs: int, link: str = "logit"):
        super().__init__(num_outputs)
        self.link = check_one_of("link", link, LINKS)

    def check(self, Y: Tensor, first_output: int = 0) -> None:
        Y = check_outputs(Y, self.num_outputs)
        reject_values(Y, ~torch.isnan(Y) & (Y != 0) & (Y != 1), self.name, "labels 0 and 1", first_output)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        if self.link == "probit":
            return torch.special.log_ndtr((2 * y - 1) * f)
        return y * f - softplus(f)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if self.link == "probit":
            return expected_log_ndtr((2 * y - 1) * mean, variance)
        return y * mean - expected_softplus(mean, variance)

    def probability(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute P(y = 1) (m, p) under the latent marginals.

        Parameters
        ----------
        mean, variance : Tensor of shape (m, p)
            Latent moments.

        Returns
        -------
        Tensor of shape (m, p)
            Probabilities.
        """
        mean, variance = mean.double(), marginal_variance(mean, variance)
        if self.link == "probit":
            return normal_cdf(mean / (1 + variance).sqrt())
        return expected_sigmoid(mean, variance)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        probability = self.probability(mean, variance)
        return probability, probability * (1 - probability)

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return binary_cdf(y.double(), self.probability(mean, variance))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute the log probability of a label; −∞ for any other number."""
        y, mean, variance = y.double(), mean.double(), marginal_variance(mean, variance)
        sign = 2 * y - 1  # P(y = 0) is P(y = 1) at −m: one minus a probability near one would lose all digits
        if self.link == "probit":
            value = torch.special.log_ndtr(sign * mean / (1 + variance).sqrt())
        else:
            value = self.probability(sign.nan_to_num() * mean, variance.expand(sign.shape)).log()
        return torch.where((y == 0) | (y == 1), value, -torch.inf).masked_fill(torch.isnan(y), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        return (check_probability("q", q) > 1 - self.probability(mean, variance)).double()

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        F = F.double()
        probability = torch.special.ndtr(F) if self.link == "probit" else torch.sigmoid(F)
        return (torch.rand(F.shape, generator=generator, dtype=torch.float64).to(F.device) < probability).double()

    def initial_latent(self, Y: Tensor) -> Tensor:
        """Apply the link to the frequency of each output, with half a success and half a failure added."""
        Y = check_outputs(Y, self.num_outputs)
        frequency = (Y.nansum(0) + 0.5) / ((~torch.isnan(Y)).sum(0) + 1)
        return torch.special.ndtri(frequency) if self.link == "probit" else torch.logit(frequency)


class Softmax(Likelihood):
    """Observations of one of p classes: a row of Y is one-hot, or holds counts; a row with any NaN is missing.

    Predictions are of one new trial: `moments` gives the class probabilities π and π(1 − π). A class has no quantiles.

    Parameters
    ----------
    num_outputs : int
        Number of classes p. Must be at least 2.

    Notes
    -----
    Complexity: O(n S p + n p³) time and O(n p²) memory with S nodes per row, S = 576 for p = 3 and 1024 for p > 3 (4p
    to 8p beyond p = 257). The error of `expected`, relative to max(|value|, 1), is below 1e-8 for p = 2. For p = 3 it
    is below 1e-4 while the latent standard deviations are below 2, and 2e-3 at 5; for p = 4 to 20 it is below 5e-4 at
    ½, 5e-3 at 1 and 2, and 1e-2 at 5 (tests/inference/likelihoods/test_classification.py). Derivatives are those of the
    quadrature rule itself, so that an optimizer has exact gradients. With V = L Lᵀ, the curvatures W of `terms`
    approximate E[diag π − π πᵀ] in Lᵀ W L (to 5 % of its size at latent standard deviations up to 3); in directions in
    which f hardly varies they are arbitrary and may be negative.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Softmax
    >>> probabilities, _ = Softmax(num_outputs=3).moments(torch.zeros(1, 3), torch.eye(3).expand(1, 3, 3))
    >>> probabilities.round(decimals=6).tolist()
    [[0.333333, 0.333333, 0.333333]]
    """

    name = "softmax"
    couples_outputs = True
    predicts_from = "output"

    def __init__(self, num_outputs: int):
        super().__init__(num_outputs)
        if self.num_outputs < 2:
            raise OptionError(
                "The softmax likelihood needs at least 2 outputs, one column per class, got 1. Encode labels 0, 1, … as np.eye(num_classes)[labels], or use likelihood='bernoulli' for one binary output."
            )

    def check(self, Y: Tensor, first_output: int = 0) -> None:
        Y = check_outputs(Y, self.num_outputs)
        is_count = (Y >= 0) & (Y.round() == Y) & torch.isfinite(Y)
        reject_values(Y, ~torch.isnan(Y) & ~is_count, self.name, "one-hot rows, or counts", first_output)
        empty = (Y.sum(1) == 0).nonzero()
        if len(empty):
            raise InputError(
                f"Row {empty[0].item()} of Y is all zeros, but a trial has a class. Use NaN for missing rows."
            )

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        observed, Y = self._rows(Y, noise)
        F = torch.where(observed.unsqueeze(-1), F.double(), 0.0)
        return (_constant(Y) + (Y * F).sum(-1) - Y.sum(-1) * F.logsumexp(-1)).where(observed, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        observed, Y = self._rows(Y, noise)
        mean, variance = self._latent(mean, variance, len(Y))
        mean = torch.where(observed.unsqueeze(-1), mean, 0.0)
        variance = torch.where(observed[:, None, None], variance, torch.eye(self.num_outputs).to(variance))
        log_sum = mean[:, -1] + _expected_log_sum(*_contrasts(mean, variance))
        return (_constant(Y) + (Y * mean).sum(-1) - Y.sum(-1) * log_sum).where(observed, 0.0)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = self._latent(mean, variance, len(mean))
        variance = variance.detach()
        # π = ∂ E log Σ e^f / ∂m, which sums to one exactly
        probability = differentiate(lambda m: m[:, -1] + _expected_log_sum(*_contrasts(m, variance)), mean)[1]
        return probability, probability * (1 - probability)

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute the distribution function of each class's indicator."""
        return binary_cdf(y.double(), self.moments(mean, variance)[0])

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute y_c log E[π_c] of one new trial; the entries of a row sum to the log probability of its class."""
        y, probability = y.double(), self.moments(mean, variance)[0]
        missing = torch.isnan(y).any(-1)
        if not bool(((((y == 0) | (y == 1)).all(-1) & (y.sum(-1) == 1)) | missing).all()):
            raise InputError("y must have one-hot rows (one new trial each). Use NaN for missing rows.")
        return torch.special.xlogy(y, probability).masked_fill(missing.unsqueeze(-1), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        raise OptionError(
            "Quantiles are not supported with classes. Use the class probabilities, the `mean` of the prediction."
        )

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one-hot rows."""
        flat = F.double().softmax(-1).reshape(-1, self.num_outputs).cpu()
        labels = torch.multinomial(flat, 1, generator=generator).squeeze(-1)
        return torch.nn.functional.one_hot(labels, self.num_outputs).double().reshape(F.shape).to(F.device)

    def initial_latent(self, Y: Tensor) -> Tensor:
        """Return the centered logarithms of the class frequencies, with half a case of each class added."""
        observed, Y = self._rows(Y, None)
        scores = (Y[observed].sum(0) + 0.5).log()
        return scores - scores.mean()

    def _rows(self, Y: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mask (n,) of observed rows, and Y with zeros in the others."""
        reject_noise(noise, self.name)
        Y = check_outputs(Y, self.num_outputs)
        observed = ~torch.isnan(Y).any(-1)
        return observed, torch.where(observed.unsqueeze(-1), Y, 0.0)

    def _latent(self, mean: Tensor, variance: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        p = self.num_outputs
        if mean.shape != (num_rows, p) or variance.shape != (num_rows, p, p):
            raise InputError(
                f"The latent mean and covariance have shapes {tuple(mean.shape)} and {tuple(variance.shape)}, expected ({num_rows}, {p}) and ({num_rows}, {p}, {p}), as softmax couples the outputs. Predict with cov='output'."
            )
        return mean.double(), variance.double()


def binary_cdf(y: Tensor, probability: Tensor) -> Tensor:
    """Compute P(Y ≤ y) of a 0/1 variable; NaN where y is NaN."""
    steps = torch.where(y < 0, 0.0, torch.where(y < 1, 1 - probability, 1.0))
    return steps.masked_fill(torch.isnan(y), torch.nan)


def _constant(Y: Tensor) -> Tensor:
    """Compute log N!/Πy_c!."""
    return torch.lgamma(Y.sum(-1) + 1) - torch.lgamma(Y + 1).sum(-1)


def _contrasts(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean (n, p − 1) and covariance of f_c − f_p."""
    last = variance[:, :-1, -1:]
    return mean[:, :-1] - mean[:, -1:], variance[:, :-1, :-1] - last - last.mT + variance[:, -1:, -1:]


def _expected_log_sum(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E log(1 + Σ e^{d_c}) (n,) for contrasts d ~ N(mean, variance)."""
    if mean.shape[1] == 1:
        return expected_softplus(mean[:, 0], variance[:, 0, 0].clamp_min(0.0))
    return apply_by_blocks(_log_sum, len(normal_rule(mean.shape[1])[1]) * mean.shape[1], mean, _root(variance))


def _root(variance: Tensor) -> Tensor:
    """Compute Cholesky factors (n, p, p) of covariances, with more jitter in the rows that need it."""
    variance = (variance + variance.mT) / 2
    jitter = JITTER * (1 + variance.detach().diagonal(dim1=-2, dim2=-1).mean(-1))
    for _ in range(MAX_JITTER_STEPS):
        jittered = variance + torch.diag_embed(jitter.unsqueeze(-1).expand(variance.shape[:-1]))
        failed = torch.linalg.cholesky_ex(jittered.detach()).info > 0
        if not bool(failed.any()):
            return torch.linalg.cholesky(jittered)
        jitter = torch.where(failed, 10 * jitter, jitter)
    raise FactorizationError(
        f"The latent covariance of row {failed.nonzero()[0].item()} is not positive semi-definite, as softmax needs it."
    )


def _log_sum(mean: Tensor, root: Tensor) -> Tensor:
    nodes, weights = (part.to(mean.device) for part in normal_rule(mean.shape[1]))
    contrasts = mean.unsqueeze(-1) + root @ nodes.mT  # nodes last: the sum over classes runs over long rows
    return torch.logaddexp(contrasts.logsumexp(-2), torch.zeros((), dtype=torch.float64).to(mean.device)) @ weights


@cache
def normal_rule(num_dims: int) -> tuple[Tensor, Tensor]:
    """Compute nodes (S, dims) and weights (S,) of E g(z), z ~ N(0, I): of Hermite rules, or mirrored Sobol points."""
    if num_dims == 2:
        one, weights = hermite_rule(PRODUCT_NODES)
        return torch.cartesian_prod(one, one), torch.outer(weights, weights).flatten()
    # more pairs than dimensions, so that their second moments have a root
    pairs = max(SOBOL_PAIRS, 2 ** math.ceil(math.log2(2 * num_dims)))
    scores = torch.from_numpy(ndtri(sobol_points(pairs, num_dims, np.random.default_rng(0))))
    root = torch.linalg.cholesky(scores.mT @ scores / len(scores))
    scores = torch.linalg.solve_triangular(root, scores.mT, upper=False).mT
    return torch.cat([scores, -scores]), torch.full((2 * len(scores),), 0.5 / len(scores), dtype=torch.float64)
