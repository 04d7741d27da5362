"""Curves with weights of values or of whole curves, and their Gaussian posterior in the leading eigenfunctions of the prior.

The prior covariance of values is K_X ⊗ H diag(t) Hᵀ. In the eigenvectors of K_X = U diag(s) Uᵀ it is Ψ Ψᵀ with one column √(s_a t_r) U_a ⊗ h_r
for each pair (a, r), and columns with s_a t_r far below the noise are dropped. With precisions p of the values, the posterior of their
coefficients has the precision A = I + Ψᵀ diag(p) Ψ (D, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from linear_operator import to_dense
from scipy.optimize import brentq
from scipy.stats import chi2
from torch import Tensor

from ovkgp.estimators.functional.coordinates import CurveCoordinates
from ovkgp.estimators.functional.curve_problem import to_tensor
from ovkgp.exceptions import InputError
from ovkgp.functional import FunctionalData
from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.tasks.coordinate_posterior import CoordinateEntries
from ovkgp.inference.tasks.robust_posterior import GaussianFit
from ovkgp.kernels.evaluation import evaluate_kernel

MIN_COORDINATE, MIN_FEATURE = 1e-2, 1e-6
"""Variances t_r max_a s_a of coordinates and s_a t_r of coefficients, relative to the noise σ², up to which they are dropped. The data would
reduce the variance t_r of a dropped coordinate by at most a hundredth."""
MIN_REGULAR_WEIGHT = 0.25
MIN_NOISE_SCALE, MAX_NOISE_SCALE = 1e-4, 4.0  # of the noise of regular values, relative to the average noise
CHI_SQUARE_MEDIAN = 0.4549364  # of one degree of freedom


def _regular_noise(squares: Tensor, latent: Tensor, noise: float, largest: float) -> float:
    """Return the c ≤ `largest` with the median of squares over latent + c noise that normal residuals have."""

    def excess(log_scale: float) -> float:
        return float((squares / (latent + np.exp(log_scale) * noise)).median()) - CHI_SQUARE_MEDIAN

    ends = np.log(MIN_NOISE_SCALE / MAX_NOISE_SCALE * largest), np.log(largest)
    if excess(ends[1]) >= 0 or excess(ends[0]) <= 0:
        return float(np.exp(ends[1] if excess(ends[1]) >= 0 else ends[0]))
    return float(np.exp(brentq(excess, *ends, xtol=1e-3)))


@dataclass(frozen=True)
class _Conditioned:
    """Precisions p (N,) and A⁻¹ (D, D), its log determinant, and the means of the coefficients (D,) and of the values (N,)."""

    precisions: Tensor
    covariance: Tensor
    logdet: Tensor
    coefficients: Tensor
    fitted: Tensor


class WeightedCurves:
    """Curves y_i = H_i u(x_i) + ε with noise mσ²/w of a value, w of curves or values; m is the average number of points.

    Parameters
    ----------
    kernel, coordinates
        k_X and the coordinates u; `coordinates` of the object are those whose variance is above the noise.
    X, data : ndarray of shape (n, d), FunctionalData
        Inputs and centered curves.
    noise : float
        σ².
    by_curve : bool
        Whether weights are of curves (n,), or of all values (N,).

    Notes
    -----
    Complexity: O(N D²) per method, D ≤ 5000.
    """

    @torch.no_grad()
    def __init__(
        self, kernel, coordinates: CurveCoordinates, X: np.ndarray, data: FunctionalData, noise: float, by_curve: bool
    ):
        self.X, self.noise, self.by_curve, self.counts = X, noise, by_curve, data.counts
        s, U = eigh(to_dense(evaluate_kernel(kernel, to_tensor(X))).double())
        t = coordinates.variances
        kept = t * float(s.max()) > min(MIN_COORDINATE * noise, t.max() * float(s.max()) / 2)
        self.coordinates = CurveCoordinates(coordinates.factor, coordinates.projection[:, kept], t[kept])
        self.points, values = zip(*data.curves(), strict=True)
        self.values = to_tensor(np.concatenate([one[:, 0] for one in values]))
        self.basis = to_tensor(np.concatenate([self.coordinates.rows(points) for points in self.points]))
        variances = torch.outer(s, to_tensor(t[kept]))
        left, right = (variances > min(MIN_FEATURE * noise, float(variances.max()) / 2)).nonzero().unbind(1)
        if len(left) > MAX_DENSE_ENTRIES:
            raise InputError(
                f"Bands are supported up to {MAX_DENSE_ENTRIES} eigenfunctions with a variance above the noise, got {len(left)}. "
                "Use larger lam or lengthscales, fewer curves, or uncertainty=None."
            )
        self.curves = torch.from_numpy(np.repeat(np.arange(len(X)), self.counts))
        self.features = (U[:, left] * variances[left, right].sqrt())[self.curves] * self.basis[:, right]
        self.observed = None if data.is_ragged else ~np.isnan(data.values)
        self.eta = 1 / float(np.mean(self.counts))
        self.sizes = self.counts.astype(float) if by_curve else np.ones(len(self.values))

    def entries(self, weights: np.ndarray) -> CoordinateEntries:
        """Return the entries, scaled such that all have noise σ²."""
        roots = (self._precisions(weights) * self.noise).sqrt()
        counts = self.counts.tolist()
        basis = (self.basis * roots.unsqueeze(-1)).split(counts)
        return CoordinateEntries.compress(basis, (self.values * roots).split(counts), [1.0] * len(counts))

    def residuals(self, function) -> np.ndarray:
        """Return Σ η r² of curves, or r² of values, of a function."""
        fitted = np.concatenate([function(self.X[[i]], points)[0] for i, points in enumerate(self.points)])
        return self._sum((self.values - to_tensor(fitted)).square())

    def condition(self, weights: np.ndarray) -> GaussianFit:
        """Return errors and variances of the Gaussian posterior with noise σ²/w, and its quadratic form and log determinant."""
        found = self._condition(weights)
        variances = ((self.features @ found.covariance) * self.features).sum(1)
        errors = (self.values - found.fitted).square()
        p = found.precisions
        quadratic = (p * errors).sum() + found.coefficients.square().sum()
        logdet = found.logdet - p.log().sum()
        if self.by_curve:  # curves are measured in L², values in their units
            logdet = logdet + len(p) * np.log(self.eta)
        return GaussianFit(self._sum(errors), self._sum(variances), float(quadratic), float(logdet))

    def robust_scales(self, weights: np.ndarray, mean_weights: np.ndarray | None = None) -> tuple[float, float]:
        """Return the scale s² of prior and noise, and that of the noise of a regular value, from leave-one-curve-out residuals.

        With weights of values, both are such that the median of squared residuals over their variances is that of a normal one, where
        values with a weight below 1/4 do not count and variances include the noise mσ² of a regular value. With weights of curves, the
        median over curves of their sums of squares, relative to those expected, is s²: outlying values in all curves count, as they do in
        the fit. The noise of a regular value follows from the median of values, given the variances of f.
        `mean_weights` are those of the fit at the center of the bands, if it is another one.
        """
        found = self._condition(weights)
        center = found if mean_weights is None else self._condition(mean_weights)
        latent, noise = self._leave_curves_out(found)[1], self.noise / self.eta
        squares = self._leave_curves_out(center)[0].square()
        regular = found.precisions * noise > MIN_REGULAR_WEIGHT
        regular = regular if bool(regular.any()) else torch.ones_like(regular)
        if not self.by_curve:
            scale = max(float((squares / (latent + noise))[regular].median()) / CHI_SQUARE_MEDIAN, 1e-12)
            return scale, scale
        medians = chi2.median(self.counts) / self.counts  # of sums of squares, relative to their means
        expected = torch.from_numpy(self._sum(latent + 1 / found.precisions) * medians)
        is_regular = torch.from_numpy(self._sum(regular.double())) > 0
        scale = max(float((torch.from_numpy(self._sum(squares)) / expected)[is_regular].median()), 1e-12)
        return scale, _regular_noise(squares[regular], scale * latent[regular], noise, MAX_NOISE_SCALE * scale)

    def _leave_curves_out(self, found: _Conditioned) -> tuple[Tensor, Tensor]:
        """Return residuals (N,) of all values given the other curves, and the variances of f there."""
        errors, variances, counts = [], [], self.counts.tolist()
        missed, roots = self.values - found.fitted, found.precisions.sqrt()
        for Psi, r, root in zip(*(x.split(counts) for x in (self.features, missed, roots)), strict=True):
            scaled = Psi * root.unsqueeze(-1)
            B = torch.eye(len(r), dtype=torch.float64) - scaled @ found.covariance @ scaled.mT
            inverse = torch.cholesky_inverse(safe_cholesky(B))
            errors.append(inverse @ (root * r) / root)
            variances.append((inverse.diagonal() - 1).clamp_min(0) / root.square())
        return torch.cat(errors), torch.cat(variances)

    def expand(self, weights: np.ndarray) -> np.ndarray:
        """Return weights (n,) of curves, or (n, m) of values with NaN where missing; a vector of all values if ragged."""
        if self.by_curve or self.observed is None:
            return weights
        table = np.full(self.observed.shape, np.nan)
        table[self.observed] = weights
        return table

    def _precisions(self, weights: np.ndarray) -> Tensor:
        """Return ηw/σ² of all values, (N,)."""
        return to_tensor(np.repeat(weights, self.counts) if self.by_curve else weights) * (self.eta / self.noise)

    def _condition(self, weights: np.ndarray) -> _Conditioned:
        p = self._precisions(weights)
        weighted = self.features * p.unsqueeze(-1)
        A = weighted.mT @ self.features
        A.diagonal().add_(1.0)
        chol = safe_cholesky(A)
        coefficients = torch.cholesky_solve((weighted.mT @ self.values).unsqueeze(-1), chol).squeeze(-1)
        logdet = 2 * chol.diagonal().log().sum()
        return _Conditioned(p, torch.cholesky_inverse(chol), logdet, coefficients, self.features @ coefficients)

    def _sum(self, values: Tensor) -> np.ndarray:
        """Return Σ η(·) of curves, or the values."""
        if not self.by_curve:
            return values.numpy()
        return self.eta * np.bincount(self.curves.numpy(), values.numpy(), minlength=len(self.counts))
