"""Priors as plain functions of the values θ: log-normal, normal and uniform ones of one parameter, and `CovariancePrior`.

A log-normal prior of a variance exp(2s) is, as a density of the trained s, log N(2s | loc, scale) + log 2.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.priors import LogNormalPrior, NormalPrior, UniformPrior

from ovkgp.inference.covariance_prior import CovariancePrior
from ovkgp.inference.data_priors import get_variances
from ovkgp.inference.plain_outputs import CholeskyOutputs
from ovkgp.inference.plain_parameters import NotPlain, PlainVector
from ovkgp.inference.prior_sites import Site, trained_sites

LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class NormalTerms:
    """Σ log N(c x | loc, scale) + log c over entries of θ, with x = θ or, for a log-normal prior, x = log θ.

    Args:
        places: of the entries in θ, (m,).
        loc, scale: of their laws, (m,).
        is_log: which have a log-normal prior, (m,).
        factor: c, 2 where θ is half the logarithm of a variance with a log-normal prior, else 1, (m,).
    """

    def __init__(self, places: np.ndarray, loc: np.ndarray, scale: np.ndarray, is_log: np.ndarray, factor: np.ndarray):
        self.places, self.loc, self.scale, self.factor = places, loc, scale, factor
        self.is_log, self.any_log = is_log, bool(is_log.any())
        self.constant = float(np.log(factor / scale).sum()) - len(places) * LOG_ROOT_2_PI

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        value, total = theta[self.places], self.constant
        x, slope = value * self.factor, self.factor
        if self.any_log:
            logs = np.log(np.where(self.is_log, value, 1.0))
            x, slope = np.where(self.is_log, logs, x), np.where(self.is_log, 1 / value, slope)
            total -= float(logs.sum())
        scores = (x - self.loc) / self.scale
        by_value = -scores / self.scale * slope
        if self.any_log:
            by_value -= np.where(self.is_log, slope, 0.0)
        np.add.at(out, self.places, by_value)
        return total - 0.5 * float(scores @ scores)


class CovarianceTerms:
    """log p of a covariance L Lᵀ under a `CovariancePrior`, as a density of log L_ii and what is below.

    Args:
        prior: the prior.
        factor: where L is.
    """

    def __init__(self, prior: CovariancePrior, factor: CholeskyOutputs):
        p, self.factor = factor.num_outputs, factor
        self.loc, self.scale = (np.broadcast_to(v.cpu().numpy(), (p,)) for v in (prior.loc, prior.scale))
        rows = np.arange(p)
        # the coefficients of log s_i² and of log L_ii: those of the density and those of the Jacobian
        self.on_diagonal = 2 * (prior.concentration.item() - 1) + p + 1 - rows
        self.on_variances = -rows / 2 - self.on_diagonal / 2
        at_one = prior.log_prob(torch.eye(p, dtype=torch.float64)) + prior.log_jacobian(
            torch.eye(p, dtype=torch.float64)
        )
        self.constant = at_one.item() + 0.5 * float(np.square(self.loc / self.scale).sum())

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        L = self.factor.chol(theta)
        squares = np.square(L).sum(1)
        log_variances, log_diagonal = np.log(squares), np.log(L.diagonal())
        scores = (log_variances - self.loc) / self.scale
        by_variances = self.on_variances - scores / self.scale
        by_chol = (2 * by_variances / squares)[:, None] * L
        by_chol.flat[:: len(L) + 1] += self.on_diagonal / L.diagonal()
        self.factor.add(out, L, by_chol)
        return self.constant + float(
            self.on_variances @ log_variances + self.on_diagonal @ log_diagonal - 0.5 * scores @ scores
        )


def plain_priors(module: torch.nn.Module, vector: PlainVector) -> list:
    """The pieces of all priors on trained parameters of a module.

    Cost: O(number of parameters), once and at every call of a piece.

    Raises:
        NotPlain: a prior is neither normal, log-normal nor uniform, or not one of a parameter's value.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.priors import LogNormalPrior
        >>> from ovkgp.inference.parameters import ParameterVector
        >>> from ovkgp.inference.plain_parameters import PlainVector
        >>> from ovkgp.inference.plain_priors import plain_priors
        >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
        >>> (piece,) = plain_priors(kernel, PlainVector(ParameterVector(kernel)))
        >>> round(piece(np.array([1.0]), np.zeros(1)), 4)
        -0.9189
    """
    sites = trained_sites(module)
    terms = [CovarianceTerms(site.prior, _factor(site.module, vector)) for site in sites if site.is_covariance]
    uniform = [site for site in sites if type(site.prior) is UniformPrior]
    normal = [_normal(site, vector) for site in sites if not site.is_covariance and site not in uniform]
    terms += [Constant(_uniform(site)) for site in uniform]
    if normal:
        terms.append(NormalTerms(*(np.concatenate(column) for column in zip(*normal, strict=True))))
    return terms


class Constant:
    """The log-density of uniform priors.

    Args:
        value: the number.
    """

    def __init__(self, value: float):
        self.value = value

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        return self.value


def _uniform(site: Site) -> float:
    """log 1/(high − low) of all entries, where the parameter cannot leave the support."""
    low, high = (v.detach().double() for v in (site.prior.low, site.prior.high))
    bounds = site.bounds()
    if bool((bounds[0] < low).any() or (bounds[1] > high).any()):
        raise NotPlain(f"the prior {site.name}, from whose support its parameter can escape")
    return -float((high - low).log().expand(site.read(site.module).shape).sum())


def _factor(part: torch.nn.Module, vector: PlainVector) -> CholeskyOutputs:
    return CholeskyOutputs(vector.reference(part.log_scale, None), vector.reference(part.lower, None))


def _normal(site: Site, vector: PlainVector) -> tuple[np.ndarray, ...]:
    """The arguments of `NormalTerms` for one prior."""
    prior, (parameter,) = site.prior, site.parameters.values()
    if type(prior) not in (LogNormalPrior, NormalPrior) or getattr(prior, "_transform", None) is not None:
        raise NotPlain(f"the prior {site.name}")
    (entry,) = (entry for entry in vector.vector.entries if entry.parameter is parameter)
    is_log = type(prior) is LogNormalPrior
    is_variance = is_log and site.read is get_variances
    if not is_variance and site.plain is None:
        raise NotPlain(f"the prior {site.name}, of a function of {entry.name}")
    shape = parameter.shape
    loc, scale = (v.detach().double().expand(shape).reshape(-1).cpu().numpy() for v in (prior.loc, prior.scale))
    places, size = np.arange(entry.piece.start, entry.piece.stop), parameter.numel()
    return places, loc, scale, np.full(size, is_log and not is_variance), np.full(size, 2.0 if is_variance else 1.0)
