"""Student-t noise: y = f + s·e, e with ν degrees of freedom. Gross errors cost log r² and not r².

log p = log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(πν) − log s − ½(ν+1) log(1 + r²/(ν s²)); the expectation of the last term is an integral over
one variable that is exact at every variance (`quadrature.expected_log1p_square`).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import gammainccinv, gammaincinv, gammaln
from torch import Tensor

from ovkgp.inference.likelihoods.blocks import by_blocks
from ovkgp.inference.likelihoods.entrywise import marginal
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.likelihoods.quadrature import expected_log1p_square, normal_cdf

LEAST_DF = 2.0
"""Trained degrees of freedom stay above 2, so that a new observation has a variance."""
START_DF = 5.0
LARGE_DF = 1e3
"""Above it log Γ((ν+1)/2) − log Γ(ν/2) is a series, whose next term is below 1e-16; a plain difference loses digits."""
_LEAST_NODES, _STEP, _TAIL = 64, 0.35, 1e-12


class StudentT(LocationLikelihood):
    """y = f + s·e, e ~ t(ν).

    Args:
        num_outputs: p.
        scale: s, a number or (p,), kept fixed; None trains one an output.
        df: ν, a number or (p,), kept fixed (any ν > 0); None trains one an output, above 2: Var[y] = v + s² ν/(ν − 2) is then
            finite. With a fixed ν ≤ 2 the variance of a new observation is infinite, and with ν ≤ 1 its mean is the location f.

    log p is not concave in f: `terms` has negative curvatures at gross errors.

    Cost: `expected` about 40 nodes for each entry (`quadrature.expected_log1p_square`), `cdf` 64 to 90 (more for ν < 2).

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import StudentT
        >>> likelihood = StudentT(num_outputs=1, scale=1.0, df=4.0)
        >>> value, first, curvature = likelihood.terms(torch.tensor([[9.0]]), torch.zeros(1, 1), torch.ones(1, 1))
        >>> round(first.item(), 3), bool(curvature < 0)  # a gross error pulls little: (ν+1) r / (ν + r²) = 0.53 at v = 0
        (0.535, True)
    """

    name = "student_t"

    def __init__(self, num_outputs: int, scale=None, df=None):
        super().__init__(num_outputs, scale)
        self._own("df", df, start=START_DF, least=LEAST_DF if df is None else 0.0)

    @property
    def df(self) -> Tensor:
        """ν (p,)."""
        return self._value("df")

    @df.setter
    def df(self, value) -> None:
        self._place("df", value)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        residual = (y - f) / (self.scale * self.df.sqrt())
        return self._constant() - (self.df + 1) / 2 * torch.log1p(residual.square())

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        unit = self.scale * self.df.sqrt()
        return self._constant() - (self.df + 1) / 2 * expected_log1p_square((y - mean) / unit, variance / unit.square())

    def _constant(self) -> Tensor:
        df, small, half = self.df, self.df.clamp_max(LARGE_DF), self.df.clamp_min(LARGE_DF) / 2
        plain = torch.lgamma((small + 1) / 2) - torch.lgamma(small / 2)
        series = half.log() / 2 - 1 / (8 * half) + 1 / (192 * half**3)
        return torch.where(df < LARGE_DF, plain, series) - (math.pi * df).log() / 2 - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        df = self.df
        return torch.zeros_like(df), torch.where(df > 2, df / (df - 2), torch.inf)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E Φ((y − m) / √(v + s²/τ)) over the precision τ ~ Gamma(ν/2, ν/2), of which the t law is a mixture."""
        gap, output = y.double() - mean.double(), torch.arange(self.num_outputs, device=mean.device)
        precision, weights = (part.to(mean.device) for part in _precision_rule(self.df.detach().cpu().numpy()))
        noise = self.scale.square().unsqueeze(-1) / precision

        def mixture(gap: Tensor, variance: Tensor, output: Tensor) -> Tensor:
            spread = variance.unsqueeze(-1) + noise[output]
            return (normal_cdf(gap.unsqueeze(-1) / spread.sqrt()) * weights[output]).sum(-1)

        parts = (part.expand(gap.shape).reshape(-1) for part in (gap, marginal(mean, variance), output))
        return by_blocks(mixture, weights.shape[1], *parts).reshape(gap.shape)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log E N(y; m, v + s²/τ) over the precision τ, whose nodes reach to where a gross error would put it."""
        mean = mean.double()
        gap, variance = torch.broadcast_tensors(y.double() - mean, marginal(mean, variance))
        residual = (gap / self.scale).nan_to_num()
        t, log_weight = (part.to(mean.device) for part in _precision_grid(self.df, residual))
        spread = variance.unsqueeze(-1) + self.scale.square().unsqueeze(-1) * torch.exp(-t)
        log_normal = -(math.log(2 * math.pi) + spread.log() + gap.square().unsqueeze(-1) / spread) / 2
        return (log_weight + log_normal).logsumexp(-1)

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        F, half = F.double(), (self.df / 2).cpu().expand(F.shape)
        normal = torch.randn(F.shape, generator=generator, dtype=torch.float64)
        precision = torch._standard_gamma(half, generator=generator) / half
        return F + self.scale * (normal / precision.sqrt()).to(F.device)

    @torch.no_grad()
    def start(self, Y: Tensor) -> None:
        if self._is_trained("df"):
            self.df = START_DF
        super().start(Y)


def _precision_rule(df: np.ndarray) -> tuple[Tensor, Tensor]:
    """Nodes τ and weights (p, N) of Gamma(ν/2, ν/2): the trapezoidal rule in log τ between two far quantiles."""
    half = df[:, None] / 2
    # for a small shape a the lower quantile, (tail · Γ(a + 1))^{1/a}, is not a number that can be written
    low = np.where(
        half < 0.5, (np.log(_TAIL) + gammaln(half + 1)) / half, np.log(gammaincinv(np.maximum(half, 0.5), _TAIL))
    )
    high = np.log(gammainccinv(half, _TAIL))
    count = max(_LEAST_NODES, int(np.ceil((high - low).max() / _STEP)))
    t = low + (high - low) * np.linspace(0.0, 1.0, count)
    weights = np.exp(half * t - np.exp(t) - gammaln(half))
    return torch.from_numpy(np.exp(t) / half), torch.from_numpy(weights / weights.sum(1, keepdims=True))


def _precision_grid(df: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes t = log τ and the logarithms of their weights, (…, m, p, N), that hold the law of τ both before and after a
    residual (…, m, p) in scales: Gamma(ν/2, ν/2) and Gamma((ν+1)/2, (ν + r²)/2)."""
    half, residual = df.detach().cpu().numpy() / 2, residual.detach().cpu().numpy()
    after = gammaincinv(half + 0.5, _TAIL) / (half + residual**2 / 2)
    low = np.log(np.minimum(gammaincinv(half, _TAIL) / half, after))
    high = np.log(gammainccinv(half, _TAIL) / half)
    steps = (high - low) / np.minimum(_STEP, 1 / np.sqrt(half + 0.5))  # as long as the narrower of the two laws is wide
    count = max(_LEAST_NODES, int(np.ceil(steps.max(initial=0.0))))
    t = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, count)
    half, step = half[:, None], (high - low)[..., None] / (count - 1)
    log_density = half * (t + np.log(half)) - half * np.exp(t) - gammaln(half)
    return torch.from_numpy(t), torch.from_numpy(log_density + np.log(step))
