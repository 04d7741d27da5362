"""Additive noise with a scale, y = f + s·e, that is robust against gross errors: `StudentT` and `Huber`.

Huber: p(y | f) = exp(−h_κ(r/s)) / (s Z), h_κ(u) = ½u² for |u| ≤ κ and κ(|u| − κ/2) beyond (LT-56),
Z = √(2π)(2Φ(κ) − 1) + (2/κ) e^{−κ²/2}. Since h_κ(u) = κu − ½κ² + ½ max(κ − u, 0)² − ½ max(−κ − u, 0)², its
expectation under a normal distribution is closed, without cancellation for u of positive mean.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import gammainccinv, gammaincinv, gammaln, ndtr, owens_t
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.inference.likelihoods.base import (
    INITIAL_NOISE_FRACTION,
    EntrywiseLikelihood,
    check_outputs,
    marginal_variance,
    parameter_property,
)
from ovkgp.inference.likelihoods.prediction import continuous_quantile
from ovkgp.inference.likelihoods.quadrature import (
    apply_by_blocks,
    expected_log1p_square,
    expected_positive_part,
    log_tilted_cdf,
    normal_cdf,
    normal_density,
    standard_deviation,
    tilted_cdf,
)

NORMAL_MAD = 1.482602218505602  # standard deviation of a normal distribution whose median absolute deviation is one
INFINITE_UNIT_VARIANCE = 3.0  # replacement of an infinite noise variance at unit scale when a scale is initialized
MIN_DF = 2.0  # lower bound of trained degrees of freedom, above which a new observation has a variance
INITIAL_DF = 5.0
LARGE_DF = 1e3
"""Above it log Γ((ν+1)/2) − log Γ(ν/2) is a series to 1e-16, as a direct difference loses digits."""
MIN_PRECISION_NODES, PRECISION_STEP, PRECISION_TAIL = 64, 0.35, 1e-12
"""Quadrature over the precision τ: minimum number of nodes, largest step in log τ, and omitted tail probability."""


class LocationLikelihood(EntrywiseLikelihood):
    """y = f + s·e with a scale s per output, fixed if given and trained if None."""

    scale = parameter_property("scale", "Scale s (p,), in the units of the outputs.")

    def __init__(self, num_outputs: int, scale=None):
        super().__init__(num_outputs)
        self._add_parameter("scale", scale, initial=0.3)

    @property
    def is_real(self) -> Tensor:
        return torch.ones(self.num_outputs, dtype=torch.bool)

    @abstractmethod
    def unit_moments(self) -> tuple[Tensor, Tensor]:
        """Compute E[e] and Var[e] at scale one, (p,).

        Returns
        -------
        mean, variance : Tensor of shape (p,)
            Moments.
        """

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        (shift, noise), mean = self.unit_moments(), mean.double()
        return mean + self.scale * shift, marginal_variance(mean, variance) + self.scale.square() * noise

    def noise_covariance(self) -> Tensor:
        return torch.diag_embed(self.scale.square() * self.unit_moments()[1])

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """Invert `cdf`; the initial interval is as wide as latent standard deviation and scale together."""
        width = (marginal_variance(mean, variance) + self.scale.square()).sqrt()
        return continuous_quantile(lambda y: self.cdf(y, mean, variance), q, mean.double(), width)

    @torch.no_grad()
    def start(self, Y: Tensor) -> None:
        """Set the scale such that noise has a tenth of each output's (robust) variance."""
        if self._is_trained("scale"):
            std = column_std(check_outputs(Y, self.num_outputs))
            unit = self.unit_moments()[1].nan_to_num(posinf=INFINITE_UNIT_VARIANCE)
            self.scale = std.to(unit.device) * (INITIAL_NOISE_FRACTION / unit).sqrt()

    def initial_latent(self, Y: Tensor) -> Tensor:
        """Return the median of each output."""
        return column_statistic(check_outputs(Y, self.num_outputs), lambda y, dim: y.nanmedian(dim).values)

    def _standardize(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the residual and the latent standard deviation in units of the scale."""
        return (y - mean) / self.scale, standard_deviation(variance / self.scale.square())


class StudentT(LocationLikelihood):
    """Student-t noise, y = f + s·e with e ~ t(ν).

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.
    scale : float, array-like of shape (p,) or None, default=None
        Fixed scale s. If None, one scale per output is trained.
    df : float, array-like of shape (p,) or None, default=None
        Fixed degrees of freedom ν > 0. If None, one value per output is trained above 2, so that Var[y] = v + s² ν/(ν −
        2) is finite. With a fixed ν ≤ 2 the variance of a new observation is infinite, and with ν ≤ 1 its mean is
        reported as the location f.

    Notes
    -----
    log p is not concave in f: `terms` has negative curvatures at gross errors.
    Complexity: `expected` takes about 40 nodes per entry, `cdf` 64 to 90 (more for ν < 2).

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import StudentT
    >>> likelihood = StudentT(num_outputs=1, scale=1.0, df=4.0)
    >>> value, first, curvature = likelihood.terms(torch.tensor([[9.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    >>> round(first.item(), 3), bool(curvature < 0)  # (ν+1) r / (ν + r²) = 0.53 at v = 0
    (0.535, True)
    """

    name = "student_t"
    df = parameter_property("df", "Degrees of freedom ν (p,).")

    def __init__(self, num_outputs: int, scale=None, df=None):
        super().__init__(num_outputs, scale)
        self._add_parameter("df", df, initial=INITIAL_DF, lower=MIN_DF if df is None else 0.0)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        residual = (y - f) / (self.scale * self.df.sqrt())
        return self._constant() - (self.df + 1) / 2 * torch.log1p(residual.square())

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        unit = self.scale * self.df.sqrt()
        return self._constant() - (self.df + 1) / 2 * expected_log1p_square((y - mean) / unit, variance / unit.square())

    def _constant(self) -> Tensor:
        df, small, half = self.df, self.df.clamp_max(LARGE_DF), self.df.clamp_min(LARGE_DF) / 2
        direct = torch.lgamma((small + 1) / 2) - torch.lgamma(small / 2)
        series = half.log() / 2 - 1 / (8 * half) + 1 / (192 * half**3)
        return torch.where(df < LARGE_DF, direct, series) - (math.pi * df).log() / 2 - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        df = self.df
        return torch.zeros_like(df), torch.where(df > 2, df / (df - 2), torch.inf)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute E Φ((y − m) / √(v + s²/τ)) over the precision τ ~ Gamma(ν/2, ν/2) of a normal mixture."""
        gap, output = y.double() - mean.double(), torch.arange(self.num_outputs, device=mean.device)
        precision, weights = (part.to(mean.device) for part in _precision_rule(self.df.detach().cpu().numpy()))
        noise = self.scale.square().unsqueeze(-1) / precision

        def mixture(gap: Tensor, variance: Tensor, output: Tensor) -> Tensor:
            total = variance.unsqueeze(-1) + noise[output]
            return (normal_cdf(gap.unsqueeze(-1) / total.sqrt()) * weights[output]).sum(-1)

        parts = (part.expand(gap.shape).reshape(-1) for part in (gap, marginal_variance(mean, variance), output))
        return apply_by_blocks(mixture, weights.shape[1], *parts).reshape(gap.shape)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute log E N(y; m, v + s²/τ) over the precision τ."""
        mean = mean.double()
        gap, variance = torch.broadcast_tensors(y.double() - mean, marginal_variance(mean, variance))
        residual = (gap / self.scale).nan_to_num()
        t, log_weight = (part.to(mean.device) for part in _precision_grid(self.df, residual))
        total = variance.unsqueeze(-1) + self.scale.square().unsqueeze(-1) * torch.exp(-t)
        log_normal = -(math.log(2 * math.pi) + total.log() + gap.square().unsqueeze(-1) / total) / 2
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
            self.df = INITIAL_DF
        super().start(Y)


class Huber(LocationLikelihood):
    """Noise with the Huber loss as negative log density, y = f + s·e with density exp(−h_κ(e)) / Z of e.

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`.
    kappa : float, default=1.345
        Threshold κ > 0 of all outputs, in units of the scale, beyond which the loss is linear. The default is 95 %
        efficient for Gaussian noise.

    Notes
    -----
    log p is concave in f, with curvatures between 0 and 1/s².
    Complexity: O(n p), in closed form; `cdf` runs on the CPU (Owen's T function).

    References
    ----------
    LT-56

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Huber
    >>> likelihood = Huber(num_outputs=1, scale=1.0)
    >>> _, first, curvature = likelihood.terms(torch.tensor([[50.0]]), torch.zeros(1, 1), torch.ones(1, 1))
    >>> round(first.item(), 9), curvature.item()
    (1.345, 0.0)
    """

    name = "huber"

    def __init__(self, num_outputs: int, scale=None, kappa: float = 1.345):
        super().__init__(num_outputs, scale)
        self.kappa = check_positive("kappa", kappa)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        size = ((y - f) / self.scale).abs()
        loss = torch.where(size <= self.kappa, size.square() / 2, self.kappa * (size - self.kappa / 2))
        return self._constant() - loss

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        gap, std = self._standardize(y, mean, variance)
        size = gap.abs()
        inside = half_square(self.kappa - size, std) - half_square(-self.kappa - size, std)
        return self._constant() - self.kappa * (size - self.kappa / 2) - inside

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gap, std = self._standardize(y, mean, variance)
        below, beyond = self.kappa - gap.abs(), -self.kappa - gap.abs()
        first = self.kappa - expected_positive_part(below, std) + expected_positive_part(beyond, std)
        curvature = normal_cdf(below / std) - normal_cdf(beyond / std)
        return self.entry_expected(y, mean, variance), gap.sign() * first / self.scale, curvature / self.scale.square()

    @property
    def _masses(self) -> tuple[float, float]:
        """Masses of the Gaussian middle and of both tails together, times Z."""
        middle = math.sqrt(2 * math.pi) * (2 * ndtr(self.kappa) - 1)
        return middle, 2 / self.kappa * math.exp(-(self.kappa**2) / 2)

    def _constant(self) -> Tensor:
        return -math.log(sum(self._masses)) - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        middle, tails = self._masses
        variance = (middle + tails * (2 + 2 / self.kappa**2)) / (middle + tails)
        return torch.zeros_like(self.scale), torch.full_like(self.scale, variance)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Add up the middle of the noise, a bivariate normal rectangle, and its two exponential tails."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        kappa, tail = self.kappa, math.exp(-(self.kappa**2) / 2) / self.kappa
        above, below = (gap - kappa) / std, (gap + kappa) / std
        right = tail * (normal_cdf(above) - tilted_cdf(kappa * std, above))
        left = tail * (normal_cdf(below) + tilted_cdf(kappa * std, -below))
        total, std = (1 + std.square()).sqrt(), std.expand(gap.shape)
        rectangle = [bivariate_cdf(end, gap / total, 1 / total, std / total) for end in (kappa, -kappa)]
        middle = math.sqrt(2 * math.pi) * (rectangle[0] - rectangle[1])
        return ((left + middle + right) / sum(self._masses)).clamp(0.0, 1.0)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Add up the middle, a normal density times a normal probability, and the two exponential tails."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        kappa, total, size = self.kappa, 1 + std.square(), gap.abs()
        low, high = ((end - size / total) * total.sqrt() / std for end in (-kappa, kappa))
        middle = -total.log() / 2 - size.square() / (2 * total) + log_normal_interval(low, high)
        tails = [log_tilted_cdf(kappa * std, (side - kappa) / std) - kappa**2 / 2 for side in (gap, -gap)]
        return self._constant() + torch.logaddexp(middle, torch.logaddexp(*tails))

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by composition: a normal number inside (−κ, κ), or an exponential one beyond."""
        uniform, which, sign = torch.rand((3, *F.shape), generator=generator, dtype=torch.float64)
        low = ndtr(-self.kappa)
        inside = torch.special.ndtri(low + (1 - 2 * low) * uniform)
        beyond = torch.where(sign < 0.5, -1.0, 1.0) * (self.kappa - torch.log1p(-uniform) / self.kappa)
        middle, tails = self._masses
        noise = torch.where(which < middle / (middle + tails), inside, beyond)
        return F.double() + self.scale * noise.to(F.device)


def column_statistic(Y: Tensor, statistic: Callable[..., Tensor]) -> Tensor:
    """Compute a statistic of each column of Y (n, p) that ignores NaN; 0 for a column without observed values."""
    return statistic(Y, dim=0).nan_to_num(0.0)


def column_std(Y: Tensor, robust: bool = True) -> Tensor:
    """Compute the standard deviation (p,) of each column, 1 if constant; if `robust`, by a nonzero median deviation."""
    std = (Y - Y.nanmean(0)).square().nanmean(0).sqrt()
    if robust:
        deviation = NORMAL_MAD * (Y - Y.nanmedian(0).values).abs().nanmedian(0).values
        std = torch.where(deviation > 0, deviation, std)
    return torch.where(std > 1e-12 * Y.abs().nan_to_num(0.0).amax(0), std, 1.0)


def _precision_rule(df: np.ndarray) -> tuple[Tensor, Tensor]:
    """Compute nodes τ and weights (p, N) of Gamma(ν/2, ν/2) by the trapezoidal rule in log τ."""
    half = df[:, None] / 2
    # for a small shape a the lower quantile, (tail · Γ(a + 1))^{1/a}, underflows
    direct = np.log(gammaincinv(np.maximum(half, 0.5), PRECISION_TAIL))
    low = np.where(half < 0.5, (np.log(PRECISION_TAIL) + gammaln(half + 1)) / half, direct)
    high = np.log(gammainccinv(half, PRECISION_TAIL))
    count = max(MIN_PRECISION_NODES, int(np.ceil((high - low).max() / PRECISION_STEP)))
    t = low + (high - low) * np.linspace(0.0, 1.0, count)
    weights = np.exp(half * t - np.exp(t) - gammaln(half))
    return torch.from_numpy(np.exp(t) / half), torch.from_numpy(weights / weights.sum(1, keepdims=True))


def _precision_grid(df: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Compute nodes log τ and log weights (…, m, p, N) that cover the prior of τ and its posterior given a residual."""
    # the prior is Gamma(ν/2, ν/2), the posterior given r (…, m, p) at unit scale Gamma((ν+1)/2, (ν + r²)/2)
    half, residual = df.detach().cpu().numpy() / 2, residual.detach().cpu().numpy()
    posterior_low = gammaincinv(half + 0.5, PRECISION_TAIL) / (half + residual**2 / 2)
    low = np.log(np.minimum(gammaincinv(half, PRECISION_TAIL) / half, posterior_low))
    high = np.log(gammainccinv(half, PRECISION_TAIL) / half)
    largest = np.minimum(PRECISION_STEP, 1 / np.sqrt(half + 0.5))  # at most the narrower distribution's width
    count = max(MIN_PRECISION_NODES, int(np.ceil(((high - low) / largest).max(initial=0.0))))
    t = low[..., None] + (high - low)[..., None] * np.linspace(0.0, 1.0, count)
    half, step = half[:, None], (high - low)[..., None] / (count - 1)
    log_density = half * (t + np.log(half)) - half * np.exp(t) - gammaln(half)
    return torch.from_numpy(t), torch.from_numpy(log_density + np.log(step))


def half_square(mean: Tensor, std: Tensor) -> Tensor:
    """Compute ½ E max(u, 0)² for u ~ N(mean, std²)."""
    z = mean / std
    return ((mean.square() + std.square()) * normal_cdf(z) + mean * std * normal_density(z)) / 2


def log_normal_interval(low: Tensor, high: Tensor) -> Tensor:
    """Compute log P(low < Z < high), to full precision if the interval lies in the left tail or around zero."""
    above, below = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    return above + torch.log1p(-torch.exp(below - above))


def bivariate_cdf(h: float, k: Tensor, correlation: Tensor, complement: Tensor) -> Tensor:
    """Compute P(X ≤ h, Y ≤ k) of normals with correlation ρ > 0 and complement √(1 − ρ²), by Owen's T function."""
    k, rho, rest = (part.cpu().numpy() for part in (k, correlation, complement))
    k = np.where(k == 0, 1e-300, k)  # the formula divides by k; the function is continuous there
    with np.errstate(over="ignore"):  # T(h, ±∞) is defined
        at_h = owens_t(h, (k - rho * h) / (h * rest))
        at_k = owens_t(k, (h - rho * k) / (k * rest))
    value = (ndtr(h) + ndtr(k)) / 2 - at_h - at_k - np.where(h * k < 0, 0.5, 0.0)
    return torch.from_numpy(np.asarray(value)).to(correlation.device)
