"""Classes: one-hot rows, or counts of N trials, with class probabilities softmax(f); the p outputs are coupled.

log p(y | f) = log N!/Πy_c! + Σ y_c f_c − N log Σ e^{f_c}. Only the p − 1 contrasts f_c − f_p matter; E log Σ e^f is exact for p = 2, by a
product of Gauss–Hermite rules for p = 3, and by a fixed quasi-Monte-Carlo rule for more classes.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.features.spectral.base_samples import sobol_points
from ovkgp.inference.likelihoods.base import (
    EntrywiseLikelihood,
    Likelihood,
    check_outputs,
    marginal,
    reject_noise,
    reject_values,
)
from ovkgp.inference.likelihoods.prediction import check_level
from ovkgp.inference.likelihoods.quadrature import (
    by_blocks,
    expected_log_ndtr,
    expected_sigmoid,
    expected_softplus,
    hermite_rule,
    normal_cdf,
    softplus,
)

LINKS = ("logit", "probit")


class Bernoulli(EntrywiseLikelihood):
    """y ∈ {0, 1}.

    Args:
        num_outputs: p.
        link: "logit" or "probit".

    Cost: `expected` 32 nodes for each entry, 153 where a variance in the batch is above 2.25; with the probit link 35, and 25 √v where
    a variance v in the batch is above 2.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import Bernoulli
        >>> mean, variance = Bernoulli(num_outputs=1).moments(torch.zeros(1, 1), torch.ones(1, 1))
        >>> round(mean.item(), 9), round(variance.item(), 9)
        (0.5, 0.25)
    """

    name = "bernoulli"

    def __init__(self, num_outputs: int, link: str = "logit"):
        if link not in LINKS:
            raise OptionError(f"link must be one of {', '.join(map(repr, LINKS))}; got {link!r}.")
        super().__init__(num_outputs)
        self.link = link

    def check(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        reject_values(Y, ~torch.isnan(Y) & (Y != 0) & (Y != 1), self.name, "labels 0 and 1")

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        if self.link == "probit":
            return torch.special.log_ndtr((2 * y - 1) * f)
        return y * f - softplus(f)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if self.link == "probit":
            return expected_log_ndtr((2 * y - 1) * mean, variance)
        return y * mean - expected_softplus(mean, variance)

    def probability(self, mean: Tensor, variance: Tensor) -> Tensor:
        """P(y = 1) (m, p) under the latent marginal."""
        mean, variance = mean.double(), marginal(mean, variance)
        if self.link == "probit":
            return normal_cdf(mean / (1 + variance).sqrt())
        return expected_sigmoid(mean, variance)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        probability = self.probability(mean, variance)
        return probability, probability * (1 - probability)

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return binary_cdf(y.double(), self.probability(mean, variance))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Of a label; −∞ for any other number."""
        y, mean = y.double(), mean.double()
        sign = 2 * y - 1  # P(y = 0) is P(y = 1) at −m: one minus a probability near one has no digits
        if self.link == "probit":
            value = torch.special.log_ndtr(sign * mean / (1 + marginal(mean, variance)).sqrt())
        else:
            value = self.probability(sign.nan_to_num() * mean, marginal(mean, variance).expand(sign.shape)).log()
        return torch.where((y == 0) | (y == 1), value, -torch.inf).masked_fill(torch.isnan(y), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        return (check_level(q) > 1 - self.probability(mean, variance)).double()

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        F = F.double()
        probability = torch.special.ndtr(F) if self.link == "probit" else torch.sigmoid(F)
        return (torch.rand(F.shape, generator=generator, dtype=torch.float64).to(F.device) < probability).double()

    def initial_latent(self, Y: Tensor) -> Tensor:
        """The link of each frequency, with half a success and half a failure added."""
        Y = check_outputs(Y, self.num_outputs)
        share = (Y.nansum(0) + 0.5) / ((~torch.isnan(Y)).sum(0) + 1)
        return torch.special.ndtri(share) if self.link == "probit" else torch.logit(share)


def binary_cdf(y: Tensor, probability: Tensor) -> Tensor:
    """P(Y ≤ y) of a 0/1 variable; NaN where y is NaN."""
    steps = torch.where(y < 0, 0.0, torch.where(y < 1, 1 - probability, 1.0))
    return steps.masked_fill(torch.isnan(y), torch.nan)


PRODUCT_NODES, SOBOL_PAIRS = 24, 512
JITTER, JITTERS = 1e-10, 5
"""Added to covariances of contrasts, relative to their mean variance (and to one): they may be singular. Ten times as much where that
is not enough, up to 1e-6."""


class Softmax(Likelihood):
    """p classes; a row of Y is one-hot, or counts; a row with any NaN is missing.

    Args:
        num_outputs: p ≥ 2.

    Predictions are of one new trial: `moments` gives the class probabilities π and π(1 − π). A class has no quantiles.

    Cost: S nodes a row, O(n S p + n p³) time and O(n p²) memory, with S = 576 for p = 3 and 1024 for p > 3 (4p to 8p beyond p = 257). The error
    of `expected`, relative to max(|value|, 1), is below 1e-8 for p = 2. For p = 3 it is below 1e-4 while the latent standard deviations
    are below 2, and 2e-3 at 5; for p = 4 to 20 it is below 5e-4 at ½, 5e-3 at 1 and 2, and 1e-2 at 5
    (tests/inference/likelihoods/test_softmax.py). Derivatives are those of the rule itself, so that ascent on it is exact: with V = L Lᵀ,
    the curvatures W of `terms` are E[diag π − π πᵀ] as far as Lᵀ W L goes (to 5 % of its size at latent standard deviations up to 3);
    in directions in which f hardly varies they may be anything, and negative.

    Example:
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
                "softmax takes one column for each class, and there is one: for labels 0, 1, … give "
                "np.eye(num_classes)[labels]; for one binary output use 'bernoulli'."
            )

    def check(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        is_count = (Y >= 0) & (Y.round() == Y) & torch.isfinite(Y)
        reject_values(Y, ~torch.isnan(Y) & ~is_count, self.name, "one-hot rows, or counts")
        empty = (Y.sum(1) == 0).nonzero()
        if len(empty):
            raise InputError(f"row {empty[0].item()} of Y is all zeros: a trial has a class; NaN marks a missing row.")

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        observed, Y = self._rows(Y, noise)
        F = torch.where(observed.unsqueeze(-1), F.double(), 0.0)
        return (_constant(Y) + (Y * F).sum(-1) - Y.sum(-1) * F.logsumexp(-1)).where(observed, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        observed, Y = self._rows(Y, noise)
        mean, variance = self._latent(mean, variance, len(Y))
        mean = torch.where(observed.unsqueeze(-1), mean, 0.0)
        variance = torch.where(observed[:, None, None], variance, torch.eye(self.num_outputs).to(variance))
        normaliser = mean[:, -1] + _expected_log_sum(*_contrasts(mean, variance))
        return (_constant(Y) + (Y * mean).sum(-1) - Y.sum(-1) * normaliser).where(observed, 0.0)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = self._latent(mean, variance, len(mean))
        with torch.enable_grad():  # π = ∂ E log Σ e^f / ∂m, which sums to one exactly
            centre = mean.detach().requires_grad_()
            value = centre[:, -1] + _expected_log_sum(*_contrasts(centre, variance.detach()))
            (probability,) = torch.autograd.grad(value.sum(), centre)
        return probability, probability * (1 - probability)

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Of each class's indicator."""
        return binary_cdf(y.double(), self.moments(mean, variance)[0])

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """y_c log E[π_c] of one new trial: the entries of a one-hot row sum to the log probability of its class."""
        y, probability = y.double(), self.moments(mean, variance)[0]
        missing = torch.isnan(y).any(-1)
        if not bool(((((y == 0) | (y == 1)).all(-1) & (y.sum(-1) == 1)) | missing).all()):
            raise InputError("a prediction is of one new trial: y has one-hot rows, or NaN where a row is missing.")
        return torch.special.xlogy(y, probability).masked_fill(missing.unsqueeze(-1), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        raise OptionError("a class has no quantiles: read the class probabilities, the `mean` of the prediction.")

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """One-hot rows."""
        flat = F.double().softmax(-1).reshape(-1, self.num_outputs).cpu()
        labels = torch.multinomial(flat, 1, generator=generator).squeeze(-1)
        return torch.nn.functional.one_hot(labels, self.num_outputs).double().reshape(F.shape).to(F.device)

    def initial_latent(self, Y: Tensor) -> Tensor:
        """The logarithms of the class frequencies, with half a case of each class added, centred."""
        observed, Y = self._rows(Y, None)
        scores = (Y[observed].sum(0) + 0.5).log()
        return scores - scores.mean()

    def _rows(self, Y: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Which rows were seen (n,), and Y with zeros in the others."""
        reject_noise(noise, self.name)
        Y = check_outputs(Y, self.num_outputs)
        observed = ~torch.isnan(Y).any(-1)
        return observed, torch.where(observed.unsqueeze(-1), Y, 0.0)

    def _latent(self, mean: Tensor, variance: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        p = self.num_outputs
        if mean.shape != (num_rows, p) or variance.shape != (num_rows, p, p):
            raise InputError(
                f"softmax couples the outputs: it takes a latent mean ({num_rows}, {p}) and covariances ({num_rows}, {p}, {p}); "
                f"got {tuple(mean.shape)} and {tuple(variance.shape)}. (A latent prediction has them with cov='output'.)"
            )
        return mean.double(), variance.double()


def _constant(Y: Tensor) -> Tensor:
    return torch.lgamma(Y.sum(-1) + 1) - torch.lgamma(Y + 1).sum(-1)


def _contrasts(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, p − 1) and covariance of f_c − f_p."""
    last = variance[:, :-1, -1:]
    return mean[:, :-1] - mean[:, -1:], variance[:, :-1, :-1] - last - last.mT + variance[:, -1:, -1:]


def _expected_log_sum(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + Σ e^{d_c}) (n,) for contrasts d ~ N(mean, variance)."""
    if mean.shape[1] == 1:
        return expected_softplus(mean[:, 0], variance[:, 0, 0].clamp_min(0.0))
    return by_blocks(_log_sum, len(normal_rule(mean.shape[1])[1]) * mean.shape[1], mean, _root(variance))


def _root(variance: Tensor) -> Tensor:
    """Cholesky factors (n, p, p) of covariances, with more jitter in the rows that need it."""
    variance = (variance + variance.mT) / 2
    level = JITTER * (1 + variance.detach().diagonal(dim1=-2, dim2=-1).mean(-1))
    for _ in range(JITTERS):
        lifted = variance + torch.diag_embed(level.unsqueeze(-1).expand(variance.shape[:-1]))
        failed = torch.linalg.cholesky_ex(lifted.detach()).info > 0
        if not bool(failed.any()):
            return torch.linalg.cholesky(lifted)
        level = torch.where(failed, 10 * level, level)
    raise FactorizationError(
        f"the latent covariance of row {failed.nonzero()[0].item()} is not positive semi-definite: softmax needs one for each point."
    )


def _log_sum(mean: Tensor, root: Tensor) -> Tensor:
    nodes, weights = (part.to(mean.device) for part in normal_rule(mean.shape[1]))
    contrasts = mean.unsqueeze(-1) + root @ nodes.mT  # nodes last: the sum over classes runs over long rows
    return torch.logaddexp(contrasts.logsumexp(-2), torch.zeros((), dtype=torch.float64).to(mean.device)) @ weights


@cache
def normal_rule(num_dims: int) -> tuple[Tensor, Tensor]:
    """Nodes (S, dims) and weights (S,) of E g(z), z ~ N(0, I): a product of Hermite rules in two dimensions; in more, Sobol
    points and their mirror images, turned and scaled so that second moments are exact."""
    if num_dims == 2:
        one, weights = hermite_rule(PRODUCT_NODES)
        return torch.cartesian_prod(one, one), torch.outer(weights, weights).flatten()
    # more pairs than dimensions, so that their second moments have a root
    pairs = max(SOBOL_PAIRS, 2 ** math.ceil(math.log2(2 * num_dims)))
    scores = torch.from_numpy(ndtri(sobol_points(pairs, num_dims, np.random.default_rng(0))))
    scores = torch.linalg.solve_triangular(
        torch.linalg.cholesky(scores.mT @ scores / len(scores)), scores.mT, upper=False
    ).mT
    return torch.cat([scores, -scores]), torch.full((2 * len(scores),), 0.5 / len(scores), dtype=torch.float64)
