"""A Gaussian process in plain NumPy: explicit np × np matrices, cut down to the observed entries, and nothing clever.

mean  m_* + K_* C⁻¹ (y − m),    covariance  K_** − K_* C⁻¹ K_*ᵀ,    evidence  log N(y | m, C),    C = K + N.
"""

import numpy as np
from numpy.linalg import slogdet, solve


def noise_matrix(noise, n, p):
    """N (n·p, n·p), data-major, from a variance, (p,), (p, p), or known variances (n, p)."""
    noise = np.asarray(noise, dtype=float)
    if noise.shape == (n, p) and n != p:
        return np.diag(noise.ravel())
    block = noise if noise.ndim == 2 else np.diag(np.broadcast_to(noise, (p,)))
    return np.kron(np.eye(n), block)


def log_normal(residual, covariance):
    """log N(r | 0, C)."""
    size = len(residual) * np.log(2 * np.pi)
    return -0.5 * (residual @ solve(covariance, residual) + slogdet(covariance)[1] + size)


class DensePosterior:
    """The posterior given Y (n, p), NaN where missing, with K (n·p, n·p), N (n·p, n·p) and the prior mean M (n, p)."""

    def __init__(self, K, N, M, Y):
        self.K, self.N, self.M, self.Y = K, N, M, Y
        self.observed = ~np.isnan(Y).ravel()
        self.C = (K + N)[np.ix_(self.observed, self.observed)]
        self.residual = (Y - M).ravel()[self.observed]

    @property
    def evidence(self):
        return log_normal(self.residual, self.C)

    @property
    def coefficients(self):
        """C⁻¹ (y − m) (n·p,), zero where missing."""
        found = np.zeros(len(self.observed))
        found[self.observed] = solve(self.C, self.residual)
        return found

    def mean(self, cross, prior_mean):
        """(m, p) from K_* (m·p, n·p) and M_* (m, p)."""
        return prior_mean + (cross[:, self.observed] @ solve(self.C, self.residual)).reshape(prior_mean.shape)

    def covariance(self, cross, prior):
        """(m·p, m·p) from K_* and K_**."""
        cross = cross[:, self.observed]
        return prior - cross @ solve(self.C, cross.T)

    def without(self, i, a):
        """The posterior of the same data with one entry deleted."""
        Y = self.Y.copy()
        Y[i, a] = np.nan
        return DensePosterior(self.K, self.N, self.M, Y)

    def leave_one_out(self):
        """Mean, standard deviation and log density (n, p) of each observed entry, from the data without it."""
        mean, std, log_density = (np.full(self.Y.shape, np.nan) for _ in range(3))
        total = self.K + self.N  # of observations: noise may be correlated between the outputs of a point
        for i, a in np.argwhere(~np.isnan(self.Y)):
            rest, entry = self.without(i, a), i * self.Y.shape[1] + a
            cross = total[entry, rest.observed]
            mean[i, a] = self.M[i, a] + cross @ solve(rest.C, rest.residual)
            variance = total[entry, entry] - cross @ solve(rest.C, cross)
            std[i, a] = np.sqrt(variance)
            log_density[i, a] = log_normal(np.array([self.Y[i, a] - mean[i, a]]), np.array([[variance]]))
        return mean, std, log_density


def leave_rows_out(posterior, groups=None):
    """Mean and standard deviation (n, p) and log density (G,) of each row or group, from the data without it."""
    n, p = posterior.Y.shape
    groups = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = groups.max() + 1
    mean, std, log_density = np.full((n, p), np.nan), np.full((n, p), np.nan), np.full(count, np.nan)
    total = posterior.K + posterior.N
    for i in range(count):
        is_own = np.repeat(groups == i, p)
        own = np.flatnonzero(posterior.observed & is_own)
        if not len(own):
            continue
        others = np.flatnonzero(posterior.observed & ~is_own)
        C, cross = total[np.ix_(others, others)], total[np.ix_(own, others)]
        residual = (posterior.Y - posterior.M).ravel()
        found = posterior.M.ravel()[own] + cross @ solve(C, residual[others])
        covariance = total[np.ix_(own, own)] - cross @ solve(C, cross.T)
        mean.ravel()[own], std.ravel()[own] = found, np.sqrt(covariance.diagonal())
        log_density[i] = log_normal(posterior.Y.ravel()[own] - found, covariance)
    return mean, std, log_density


def diagonal_parts(covariance, p):
    """The variances (m, p) and the blocks (m, p, p) that a whole covariance (m·p, m·p) contains."""
    m = len(covariance) // p
    blocks = np.stack([covariance[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(m)])
    return covariance.diagonal().reshape(m, p), blocks
