"""Binary outputs: P(y = 1 | f) = σ(f) (logit) or Φ(f) (probit).

E log p(y | f) = y m − E log(1 + e^f) for the logit link, exact at every variance (`quadrature.expected_softplus`); for the probit link
it is E log Φ(±f) by the trapezoidal rule (`quadrature.expected_log_ndtr`). The predictive probability of the probit link is closed: Φ(m / √(1 + v)).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods.base import refuse_values, require_outputs
from ovkgp.inference.likelihoods.entrywise import EntrywiseLikelihood, marginal
from ovkgp.inference.likelihoods.quadrature import (
    expected_log_ndtr,
    expected_sigmoid,
    expected_softplus,
    normal_cdf,
    softplus,
)
from ovkgp.inference.likelihoods.quantiles import require_level

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
        Y = require_outputs(Y, self.num_outputs)
        refuse_values(Y, ~torch.isnan(Y) & (Y != 0) & (Y != 1), self.name, "labels 0 and 1")

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
        return (require_level(q) > 1 - self.probability(mean, variance)).double()

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        F = F.double()
        probability = torch.special.ndtr(F) if self.link == "probit" else torch.sigmoid(F)
        return (torch.rand(F.shape, generator=generator, dtype=torch.float64).to(F.device) < probability).double()

    def latent_start(self, Y: Tensor) -> Tensor:
        """The link of each frequency, with half a success and half a failure added."""
        Y = require_outputs(Y, self.num_outputs)
        share = (Y.nansum(0) + 0.5) / ((~torch.isnan(Y)).sum(0) + 1)
        return torch.special.ndtri(share) if self.link == "probit" else torch.logit(share)


def binary_cdf(y: Tensor, probability: Tensor) -> Tensor:
    """P(Y ≤ y) of a 0/1 variable; NaN where y is NaN."""
    steps = torch.where(y < 0, 0.0, torch.where(y < 1, 1 - probability, 1.0))
    return steps.masked_fill(torch.isnan(y), torch.nan)
