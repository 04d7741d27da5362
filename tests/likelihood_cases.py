"""Likelihoods under test beside SciPy's distributions, and integrals over the latent normal distribution by adaptive
quadrature."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from scipy import stats
from scipy.integrate import quad

from ovkgp.inference.likelihoods import (
    AsymmetricLaplace,
    Bernoulli,
    Gaussian,
    Huber,
    Laplace,
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
