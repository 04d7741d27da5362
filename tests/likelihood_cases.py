"""Likelihoods under test beside SciPy's distributions, and integrals over the latent normal distribution by adaptive
quadrature."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import erf, gammaln

from ovkgp.inference.likelihoods import (
    AsymmetricHuber,
    AsymmetricLaplace,
    Bernoulli,
    EpsilonInsensitive,
    Gaussian,
    Huber,
    Laplace,
    LogCosh,
    NegativeBinomial,
    Poisson,
    StudentT,
)


class HuberDistribution:
    """The density exp(−h_κ((y − f)/s)) / (s Z), its parts written out one by one."""

    def __init__(self, kappa, f, s):
        self.kappa, self.f, self.s = kappa, f, s
        self.tail = np.exp(-(kappa**2) / 2) / kappa
        self.middle = np.sqrt(2 * np.pi) * (2 * stats.norm.cdf(kappa) - 1)

    def logpdf(self, y):
        u = np.abs(y - self.f) / self.s
        loss = np.where(u <= self.kappa, u * u / 2, self.kappa * (u - self.kappa / 2))
        return -loss - np.log((self.middle + 2 * self.tail) * self.s)

    def cdf(self, y):
        u, kappa = (y - self.f) / self.s, self.kappa
        left = self.tail * np.exp(kappa * np.minimum(u + kappa, 0.0))
        inside = np.sqrt(2 * np.pi) * (stats.norm.cdf(np.clip(u, -kappa, kappa)) - stats.norm.cdf(-kappa))
        right = self.tail * -np.expm1(-kappa * np.maximum(u - kappa, 0.0))
        return (left + inside + right) / (self.middle + 2 * self.tail)


class InsensitiveDistribution:
    """The density exp(−½ max(|u| − ε, 0)²) / (s (2ε + √(2π))) of u = (y − f)/s: two halves of a normal density around a flat core."""

    def __init__(self, epsilon, f, s):
        self.epsilon, self.f, self.s, self.total = epsilon, f, s, 2 * epsilon + np.sqrt(2 * np.pi)

    def logpdf(self, y):
        u = np.abs(y - self.f) / self.s
        return -(np.maximum(u - self.epsilon, 0.0) ** 2) / 2 - np.log(self.s * self.total)

    def cdf(self, y):
        u = (y - self.f) / self.s
        tails = (
            stats.norm.cdf(np.minimum(u + self.epsilon, 0.0)) + stats.norm.cdf(np.maximum(u - self.epsilon, 0.0)) - 0.5
        )
        return (np.sqrt(2 * np.pi) * tails + np.clip(u, -self.epsilon, self.epsilon) + self.epsilon) / self.total


class AsymmetricHuberDistribution:
    """The density exp(−w ψ_κ(u)) / (s Z) of u = (y − f)/s, with the normalizer of LT §6.1; each side is a Huber distribution's."""

    def __init__(self, tau, kappa, f, s):
        self.f, self.s, self.sides = f, s, {}
        for side, w in ((1, tau), (-1, 1 - tau)):
            middle = np.sqrt(np.pi * kappa / (2 * w)) * erf(np.sqrt(w * kappa / 2))
            self.sides[side] = w, kappa, middle, np.exp(-w * kappa / 2) / w
        self.total = sum(middle + tail for _, _, middle, tail in self.sides.values())

    def logpdf(self, y):
        u = (y - self.f) / self.s
        size, w, kappa = np.abs(u), np.where(u > 0, self.sides[1][0], self.sides[-1][0]), self.sides[1][1]
        loss = np.where(size <= kappa, size**2 / (2 * kappa), size - kappa / 2)
        return -w * loss - np.log(self.s * self.total)

    def _mass_beyond(self, side, size):
        """The mass of e beyond `size` ≥ 0 on one side, times Z."""
        w, kappa, middle, tail = self.sides[side]
        inner = middle - np.sqrt(np.pi * kappa / (2 * w)) * erf(np.sqrt(w / (2 * kappa)) * np.minimum(size, kappa))
        return inner + tail * np.exp(-w * np.maximum(size - kappa, 0.0))

    def cdf(self, y):
        u = (y - self.f) / self.s
        below = self._mass_beyond(-1, np.maximum(-u, 0.0)) / self.total
        return np.where(u > 0, 1 - self._mass_beyond(1, np.maximum(u, 0.0)) / self.total, below)


class LogCoshDistribution:
    """The density exp(−log cosh(νu)/ν) / (s Z) of u = (y − f)/s; tanh(νu) = 2B − 1 with B ~ Beta(1/(2ν), 1/(2ν))."""

    def __init__(self, nu, f, s):
        a = 1 / nu
        self.nu, self.f, self.s, self.beta = nu, f, s, stats.beta(a / 2, a / 2)
        self.log_total = np.log(np.pi) / 2 + gammaln(a / 2) - np.log(nu) - gammaln((a + 1) / 2)

    def logpdf(self, y):
        z = self.nu * (y - self.f) / self.s
        return -(np.logaddexp(z, -z) - np.log(2)) / self.nu - np.log(self.s) - self.log_total

    def cdf(self, y):
        z = self.nu * (y - self.f) / self.s
        lower = self.beta.cdf(np.exp(-np.logaddexp(0.0, 2 * np.abs(z))))  # near 1 its argument would lose all digits
        return np.where(z > 0, 1 - lower, lower)


def asymmetric_laplace(tau, f, s):
    return stats.laplace_asymmetric(np.sqrt(tau / (1 - tau)), loc=f, scale=s / np.sqrt(tau * (1 - tau)))


def negative_binomial(f, alpha):
    return stats.nbinom(1 / alpha, 1 / (1 + alpha * np.exp(f)))


# name: (a likelihood of one output, SciPy's distribution given f, observations to try)
REAL = {
    "gaussian": (Gaussian(1, noise=0.49), lambda f: stats.norm(f, 0.7), (-2.0, 0.3, 5.0)),
    "student_t": (StudentT(1, scale=0.7, df=3.5), lambda f: stats.t(3.5, f, 0.7), (-2.0, 0.3, 50.0)),
    "laplace": (Laplace(1, scale=0.7), lambda f: stats.laplace(f, 0.7), (-2.0, 0.3, 5.0)),
    "asymmetric_laplace": (
        AsymmetricLaplace(1, scale=0.3, tau=0.8),
        lambda f: asymmetric_laplace(0.8, f, 0.3),
        (-2.0, 0.3, 5.0),
    ),
    "huber": (Huber(1, scale=0.7, kappa=1.1), lambda f: HuberDistribution(1.1, f, 0.7), (-2.0, 0.3, 5.0)),
    "asymmetric_huber": (
        AsymmetricHuber(1, scale=0.7, tau=0.8, kappa=1.1),
        lambda f: AsymmetricHuberDistribution(0.8, 1.1, f, 0.7),
        (-2.0, 0.3, 5.0),
    ),
    "epsilon_insensitive": (
        EpsilonInsensitive(1, scale=0.7, epsilon=1.1),
        lambda f: InsensitiveDistribution(1.1, f, 0.7),
        (-2.0, 0.3, 5.0),
    ),
    "log_cosh": (LogCosh(1, scale=0.7, nu=1.6), lambda f: LogCoshDistribution(1.6, f, 0.7), (-2.0, 0.3, 5.0)),
}
DISCRETE = {
    "bernoulli": (Bernoulli(1), lambda f: stats.bernoulli(1 / (1 + np.exp(-f))), (0.0, 1.0)),
    "probit": (Bernoulli(1, link="probit"), lambda f: stats.bernoulli(stats.norm.cdf(f)), (0.0, 1.0)),
    "poisson": (Poisson(1), lambda f: stats.poisson(np.exp(f)), (0.0, 1.0, 7.0)),
    "negative_binomial": (
        NegativeBinomial(1, dispersion=0.6),
        lambda f: negative_binomial(f, 0.6),
        (0.0, 1.0, 7.0),
    ),
}
ALL = {**REAL, **DISCRETE}


def log_density(distribution, y):
    return distribution.logpdf(y) if hasattr(distribution, "logpdf") else distribution.logpmf(y)


def latent_average(function, mean, std, kinks=()):
    """E g(f) for f ~ N(mean, std²) by adaptive quadrature of a scalar function, split at the kinks."""
    if std == 0:
        return float(function(mean))
    cuts = _cuts(mean, std, kinks)

    def integrand(z):
        return function(mean + std * z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)

    return sum(quad(integrand, a, b, limit=500, epsabs=1e-14, epsrel=1e-12)[0] for a, b in pairwise(cuts))


def fine_average(function, mean, std, kinks=()):
    """E g(f) for a vectorized function and std up to about 10, on 12 000 Gauss–Legendre nodes."""
    edges = np.unique([*np.linspace(-13, 13, 601), *_cuts(mean, std, kinks)])
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(edges)[:, None] / 2
    z = edges[:-1, None] + half * (nodes + 1)
    return float((half * weights * stats.norm.pdf(z) * function((mean + std * z).ravel()).reshape(z.shape)).sum())


def _cuts(mean, std, kinks):
    return sorted({-13.0, 13.0, *(float(np.clip((kink - mean) / std, -13, 13)) for kink in kinks)})


def one(value):
    """A number as a (1, 1) tensor."""
    return torch.full((1, 1), float(value), dtype=torch.float64)


def column(values):
    """Numbers as an (n, 1) tensor."""
    return torch.as_tensor(np.asarray(values, dtype=float)).reshape(-1, 1)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
