"""`BasisRegressor`, base class of curve regressors with a fixed output basis: f(x)(θ) = ψ(θ)ᵀ w(x), w ~ GP(0, k_X I) (BO-60).

ψ are coordinates of the output kernel: a dictionary times the root of an output matrix, or those of a kernel on the domain. In
the eigenbasis of their Gram matrix in L²(η), G = W diag(t) Wᵀ, the coordinates u = diag(t)^½ Wᵀ w of a curve are independent a
priori with variances t, and are observed with the noise σ² of an orthonormal basis (BO §6.2):

    z_i = diag(t)^{−½} Wᵀ ⟨ψ, y_i⟩ = u(x_i) + ε_i,     ε_i ~ N(0, σ² I),     y(θ) = ψ(θ)ᵀ W diag(t)^{−½} u.

Complete curves are thus a ridge regression `OVKRidge` on z with the output matrix diag(t). Curves with gaps or different points
are a `CoordinatePosterior` of u.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from linear_operator import to_dense
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp.estimators.common.descriptions import EXACT_KERNEL
from ovkgp.estimators.common.named_kernels import BASE_KERNEL, ridge_kernel, usable_scale
from ovkgp.estimators.common.options import (
    CONVENTIONS,
    LAM,
    POSITIVE,
    VERBOSE,
    check_lam,
    noise_of,
    one_of,
)
from ovkgp.estimators.common.summary import Hyperparameter
from ovkgp.estimators.functional.base import FUNCTIONAL_ATTRIBUTES, FUNCTIONAL_CONSTRAINTS, FunctionalRegressor
from ovkgp.estimators.functional.curve_problem import factor_rows, make_problem, to_tensor
from ovkgp.estimators.functional.joint_draws import JointDraws
from ovkgp.estimators.ridge.base import RidgePath, make_ridge_gp
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import KernelFactor
from ovkgp.functional.quadrature import quadrature_weights
from ovkgp.inference import noise_path
from ovkgp.inference.algebra.kronecker import KroneckerSolver
from ovkgp.inference.posteriors.exact import KroneckerPosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.ridge.spectral_path import SpectralPath, spectral_path
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.tasks.coordinate_posterior import CoordinateEntries, CoordinatePosterior, curve_path
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

COORDINATE_CUTOFF = 1e-14
"""Coordinates with a smaller fraction of the largest variance are dropped, as they are below the precision of float64."""
MAX_GRAM_ERROR = (
    0.05  # relative error of the Gram matrix at the points of a curve above which plug-in estimates warn (BO-62)
)
WEIGHTINGS = ("equal", "points")
BASIS_CONSTRAINTS = {
    **FUNCTIONAL_CONSTRAINTS,
    "kernel": BASE_KERNEL,
    "lengthscale": [one_of("median"), POSITIVE],
    "lam": LAM,
    "convention": [one_of(*CONVENTIONS)],
    "curve_weighting": [one_of(*WEIGHTINGS)],
    "selection": [one_of("loo", "evidence")],
    "scale": [one_of("given", "evidence")],
    "verbose": VERBOSE,
}
BASIS_ATTRIBUTES = (
    *FUNCTIONAL_ATTRIBUTES,
    "coordinates_",
    "lam_",
    "noise_",
    "scale_",
    "log_evidence_",
    "_points_per_curve",
)


@storable_record
@dataclass(frozen=True, eq=False)
class CurveCoordinates:
    """Basis h(θ) = ψ(θ)ᵀ P (k, ρ) of curves with independent coordinates of prior variances t (ρ,)."""

    factor: object
    projection: np.ndarray
    variances: np.ndarray

    def rows(self, points: np.ndarray) -> np.ndarray:
        """Return h at points (k, b), (k, ρ)."""
        return factor_rows(self.factor, points) @ self.projection

    def residual_variance(self, points: np.ndarray) -> np.ndarray:
        """Return the prior variance at points (k, b) that the coordinates do not explain, (k,)."""
        psi = factor_rows(self.factor, points)
        inside = np.square(psi @ self.projection) @ self.variances
        outside = self.factor.residual_variance(to_tensor(points)).numpy()
        return np.clip(outside + np.square(psi).sum(1) - inside, 0.0, None)

    def residual_covariance(self, points: np.ndarray) -> np.ndarray:
        """Return the prior covariance between points (k, b) that the coordinates do not explain, (k, k)."""
        psi = factor_rows(self.factor, points)
        rows = psi @ self.projection
        kernel = getattr(self.factor, "kernel", None)
        total = psi @ psi.T
        if kernel is not None:
            with torch.no_grad():
                total = to_dense(evaluate_kernel(kernel, to_tensor(points))).double().numpy()
        residual = total - (rows * self.variances) @ rows.T
        np.fill_diagonal(residual, self.residual_variance(points))
        return residual


def empirical_coordinates(factor, points: np.ndarray, weights: np.ndarray) -> CurveCoordinates:
    """Make coordinates that are orthonormal at points (m, b) with weights (m,), from the singular values of √η ψ."""
    weighted = np.sqrt(weights)[:, None] * factor_rows(factor, points)
    _, roots, vectors = np.linalg.svd(weighted, full_matrices=False)
    keep = np.square(roots) > COORDINATE_CUTOFF * roots[0] ** 2
    return CurveCoordinates(factor, vectors[keep].T / roots[keep], np.square(roots[keep]))


def gram_coordinates(factor, gram: np.ndarray) -> CurveCoordinates:
    """Make coordinates that are orthonormal for the Gram matrix (q, q) of ψ in L²."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > max(COORDINATE_CUTOFF, len(values) * np.finfo(float).eps) * values[-1]
    return CurveCoordinates(factor, vectors[:, keep] / np.sqrt(values[keep]), values[keep])


@storable_record
@dataclass(frozen=True, eq=False)
class CurveFunction:
    """Function f(x)(θ) = φ(x)ᵀ W ψ(θ) of coordinates of the input and output kernels, with weights W (r, q)."""

    inputs: object
    factor: object
    weights: np.ndarray

    def __call__(self, X: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the values at X (k, d) and points (m, b), (k, m)."""
        return factor_rows(self.inputs, X) @ self.weights @ factor_rows(self.factor, points).T


class BasisRegressor(FunctionalRegressor):
    """Base class of curve regressors with a fixed output basis; `_fit_coordinates` fits `latent_` and sets `scale_`."""

    reported = (("lam_", "penalty λ"), ("scale_", "scale of prior and noise s²"))
    _parameter_constraints: ClassVar[dict[str, list]] = BASIS_CONSTRAINTS

    @property
    def gp_(self):
        """Gaussian process of the coordinates u, before the scale."""
        return self.latent_.gp_

    @property
    def posterior_(self) -> Posterior:
        """Posterior of the coordinates u, before the scale."""
        return self.latent_.posterior_

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver; 1 for direct ones."""
        report = getattr(self, "fit_report_", None)
        return max(getattr(self.latent_, "n_iter_", 1) if report is None else report.iterations, 1)

    @property
    def point_noise_(self) -> float:
        """Noise variance s²σ²m of one observed value, with m the number of points of a curve (their average if it varies)."""
        return self.scale_ * self.noise_ * self._points_per_curve

    def _observed_coordinates(self, factor, data: FunctionalData) -> CurveCoordinates:
        """Make coordinates that are orthonormal at the points of complete curves, or at those of all curves together."""
        if data.is_ragged:
            pairs = [(points, quadrature_weights(points, data.domain, self.quadrature)) for points, _ in data.curves()]
            points, weights = (np.concatenate(column) for column in zip(*pairs, strict=True))
            return empirical_coordinates(factor, points, weights / len(data))
        return empirical_coordinates(factor, _as_columns(data.grid), data.weights(self.quadrature))

    def _fit_coordinates(
        self, X: np.ndarray, data: FunctionalData, coordinates: CurveCoordinates, plug_in: bool
    ) -> None:
        """Fit the posterior of the coordinates, select λ and set the scale."""
        self.coordinates_ = coordinates
        self._points_per_curve = self._count_points(data)
        if plug_in or data.is_complete:
            found = self._fit_complete(X, self._project(data, plug_in))
        else:
            found = self._fit_irregular(X, data)
        self.scale_ = 1.0
        if self.scale == "evidence":
            values = np.concatenate([values.ravel() for _, values in data.curves()])
            self.scale_ = usable_scale(found.quadratic / found.count, values)
        self.log_evidence_ = found.at_scale(self.scale_)

    def _count_points(self, data: FunctionalData) -> float:
        """Return the average number of observed values of a curve."""
        return float(np.mean(data.counts))

    def _project(self, data: FunctionalData, plug_in: bool) -> ProjectedCurves:
        """Return z (n, ρ) and the part of the curves outside of the basis, which the plug-in estimate ignores."""
        if data.is_complete:
            points, weights = data.union_grid, data.weights(self.quadrature)
            rows = self.coordinates_.rows(_as_columns(points))
            Z = (data.values * weights) @ rows
            if plug_in:
                _warn_about_errors([self._gram_error(rows, weights)])
                return ProjectedCurves(Z, 0.0, Z.size, 0.0)
            total = float((np.square(data.values) @ weights).sum())
            outside = max(total - float(np.square(Z).sum()), 0.0)
            return ProjectedCurves(Z, outside, data.values.size, len(data) * float(np.log(weights).sum()) / 2)
        Z, errors = [], []
        for points, values in data.curves():
            weights = quadrature_weights(points, data.domain, self.quadrature)
            rows = self.coordinates_.rows(points)
            Z.append((values[:, 0] * weights) @ rows)
            errors.append(self._gram_error(rows, weights))
        _warn_about_errors(errors)
        return ProjectedCurves(np.stack(Z), 0.0, len(Z) * len(Z[0]), 0.0)

    def _gram_error(self, rows: np.ndarray, weights: np.ndarray) -> float:
        """Return ‖Ĝ − G‖/‖G‖ of the Gram matrix Ĝ of ψ at points with basis rows (m, ρ) and weights (m,)."""
        roots = np.sqrt(self.coordinates_.variances)
        gram = (rows * weights[:, None]).T @ rows - np.eye(len(roots))
        return float(np.linalg.norm(roots[:, None] * gram * roots, 2) / roots.max() ** 2)

    def _fit_complete(self, X: np.ndarray, projected: ProjectedCurves) -> _Evidence:
        """Fit a ridge regression of z, and select λ from one factorization if the kernel is exact."""
        Z, factor = projected.Z, noise_of(1.0, self.convention, len(projected.Z), len(projected.Z))
        noises, inputs = factor * check_lam(self.lam), self._latent_inputs(X)
        middle = np.sqrt(noises.min()) * np.sqrt(noises.max())
        self.latent_ = self._make_latent(np.atleast_1d(middle if len(noises) > 1 else noises[0])).fit(inputs, Z)
        if len(noises) > 1:
            path = self._latent_path(inputs, Z, noises)
            evidences = (
                _Evidence(q + projected.outside / c, projected.count, value + projected.outside_log_density(c))
                for c, q, value in zip(noises, path.quadratic, path.log_evidence, strict=True)
            )
            # the evidence of the coordinates alone does not determine the noise (BO §6.2)
            is_fitted = self.scale == "evidence"
            log_evidence = [one.at_scale(one.quadratic / one.count if is_fitted else 1.0) for one in evidences]
            self.path_ = RidgePath(
                noises / factor, noises, np.array(log_evidence), path.loo_error, path.loo_log_density
            )
            self.latent_ = self._change_noise(float(noises[self.path_.best(self.selection)]), inputs, Z)
        self.noise_ = self.latent_.noise_
        self.lam_ = self.noise_ / factor
        quadratic = latent_quadratic(self.latent_, inputs, Z) + projected.outside / self.noise_
        log_evidence = self.latent_.posterior_.log_evidence + projected.outside_log_density(self.noise_)
        return _Evidence(quadratic, projected.count, log_evidence)

    def _latent_path(self, inputs: np.ndarray, Z: np.ndarray, noises: np.ndarray) -> SpectralPath:
        """Return the criteria of the coordinates at several noise levels."""
        solver = getattr(self.latent_.posterior_, "solver", None)
        if isinstance(solver, KroneckerSolver):
            return spectral_path(solver.s, solver.U, to_tensor(self.coordinates_.variances), to_tensor(Z), noises)
        found = noise_path(
            self.latent_.gp_, to_tensor(inputs), to_tensor(Z), noises / self.latent_.noise_, rescale=True
        )
        scales = found.scales.numpy()
        quadratic = Z.size * scales
        log_evidence = found.log_evidence.numpy() - quadratic * (1 - 1 / scales) / 2 + Z.size * np.log(scales) / 2
        return SpectralPath(log_evidence, quadratic, found.loo_error.numpy(), found.loo_log_density.numpy())

    def _change_noise(self, noise: float, inputs: np.ndarray, Z: np.ndarray):
        """Return the ridge regression with another noise level, from the same factorization if it is exact."""
        latent, solver = self.latent_, getattr(self.latent_.posterior_, "solver", None)
        if not isinstance(solver, KroneckerSolver):
            return self._make_latent(np.array([noise])).fit(inputs, Z)
        other, old, factor = copy.copy(latent), latent.posterior_, noise / latent.noise_
        other.lam = other.lam_ = other.noise_ = noise
        other.gp_ = make_ridge_gp(latent._kernel, noise, None)
        solver = solver.with_noise(factor)
        other.posterior_ = KroneckerPosterior(
            old.process, solver, old.data, old.mean, other.gp_.frozen().model.predictive_noise(old.data)
        )
        return other

    def _latent_inputs(self, X: np.ndarray) -> np.ndarray:
        """Return the inputs of the ridge regression of the coordinates, (n, c)."""
        return X

    def _make_latent(self, noises: np.ndarray):
        """Make the ridge regression of the coordinates for several noise levels σ²."""
        return OVKRidge(
            base_kernel=self.kernel,
            lengthscale=self.lengthscale,
            output_matrix=np.diag(self.coordinates_.variances),
            lam=noises if len(noises) > 1 else float(noises[0]),
            selection=self.selection,
            verbose=self.verbose,
        )

    def _fit_irregular(self, X: np.ndarray, data: FunctionalData) -> _Evidence:
        """Fit the posterior of u to curves at different points."""
        entries, projected = self._make_entries(data)
        factor = noise_of(1.0, self.convention, len(data), len(data))
        lams = check_lam(self.lam)
        inner = CurveRidge(self.kernel, self.lengthscale, torch.from_numpy(self.coordinates_.variances))
        best = 0
        if len(lams) > 1:
            if len(entries) > MAX_DENSE_ENTRIES and not entries.has_few_gaps:
                raise OptionError(
                    f"Several lam are not supported with gaps and more than {MAX_DENSE_ENTRIES} values, got {len(entries)}. Use one lam."
                )
            found = curve_path(
                inner.make_kernel(X),
                inner.variances,
                to_tensor(X),
                entries,
                torch.from_numpy(factor * lams),
            )
            criteria = (getattr(found, name).numpy() for name in ("log_evidence", "loo_error", "loo_log_density"))
            log_evidence, *others = criteria
            evidences = (
                _Evidence(
                    quadratic + projected.outside / noise, projected.count, value + projected.outside_log_density(noise)
                )
                for noise, value, quadratic in zip(factor * lams, log_evidence, found.quadratic.tolist(), strict=True)
            )
            best_scale = self.scale == "evidence"
            log_evidence = [one.at_scale(one.quadratic / one.count if best_scale else 1.0) for one in evidences]
            self.path_ = RidgePath(lams, factor * lams, np.array(log_evidence), *others)
            best = self.path_.best(self.selection)
        self.lam_ = float(lams[best])
        self.noise_ = factor * self.lam_
        self.latent_ = inner.fit(X, entries, self.noise_)
        posterior = self.latent_.posterior_
        quadratic = posterior.quadratic + projected.outside / self.noise_
        return _Evidence(
            quadratic, projected.count, posterior.log_evidence + projected.outside_log_density(self.noise_)
        )

    def _curve_weight(self, count: int) -> float:
        """Return the weight of a curve with a number of points."""
        return count / self._points_per_curve if self.curve_weighting == "points" else 1.0

    def _make_entries(self, data: FunctionalData) -> tuple[CoordinateEntries, ProjectedCurves]:
        """Return values √η y with basis √η h of each curve, rotated to at most ρ values, and what is outside of the basis."""
        basis, targets, total, jacobian = [], [], 0.0, 0.0
        for points, values in data.curves():
            weights = quadrature_weights(points, data.domain, self.quadrature)
            weights = weights * self._curve_weight(len(points))
            roots = np.sqrt(weights)
            basis.append(torch.from_numpy(self.coordinates_.rows(points) * roots[:, None]))
            targets.append(torch.from_numpy(values[:, 0] * roots))
            total += float(targets[-1].square().sum())
            jacobian += float(np.log(weights).sum()) / 2
        entries = CoordinateEntries.compress(basis, targets, [1.0] * len(basis))
        if not data.is_ragged and self.quadrature == "mean" and data.counts.max() <= len(self.coordinates_.variances):
            scales = [math.sqrt(self._curve_weight(len(H)) / len(H)) for H in basis]
            entries = replace(
                entries,
                columns=torch.from_numpy(np.nonzero(~np.isnan(data.values))[1]),
                grid_basis=torch.from_numpy(self.coordinates_.rows(_as_columns(data.grid))),
                row_scales=torch.tensor(scales, dtype=torch.float64),
            )
        outside = max(total - float(entries.values.square().sum()), 0.0)
        return entries, ProjectedCurves(entries.values, outside, int(data.counts.sum()), jacobian)

    @property
    def has_predictive(self) -> bool:
        """Whether there are bands: with the square loss."""
        return not hasattr(self, "function_")

    def _fit_loss(self, X: np.ndarray, data: FunctionalData, factor, make_loss) -> None:
        """Minimize another loss with the λ and the kernel of the ridge regression, from its solution."""
        inputs = self._input_factor(X)
        lam = self.noise_ / len(data)
        settings = {"quadrature": self.quadrature, "weighting": self.curve_weighting}
        problem = make_problem(to_tensor(factor_rows(inputs, X)), factor, data, lam, make_loss, **settings)
        found = solve_primal(problem, tolerance=self.tolerance, max_iter=self.max_iter, verbose=self.verbose)
        self.function_ = CurveFunction(inputs, factor, found.weights.numpy())
        self.gap_, self.fit_report_ = found.gap / max(abs(found.objective), 1e-300), found.report

    def _input_factor(self, X: np.ndarray):
        """Return coordinates of the input kernel, exact at X (n, d)."""
        ((scalar, _),) = components(self.gp_.kernel)
        return KernelFactor(scalar, to_tensor(X))

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        if hasattr(self, "function_"):
            return self.function_(X, points), None
        return self._predict_posterior(X, points, form)

    def _predict_posterior(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return mean and variance or covariance along the curve of the posterior."""
        rows = self.coordinates_.rows(points)
        inputs, is_irregular = to_tensor(self._latent_inputs(X)), isinstance(self.latent_, CurveRidge)
        found = self.posterior_.predict(inputs, "none" if form == "none" or is_irregular else "diag")
        mean = found.mean.numpy() @ rows.T
        if form == "none":
            return mean, None
        prior = self._prior_variance(X)[:, None]
        residual = self.coordinates_.residual_variance(points)
        if is_irregular:  # gaps couple the coordinates
            inner = self.posterior_.covariance_along(inputs, to_tensor(rows), form).numpy()
        else:
            latent = found.std.square().numpy()
            inner = latent @ np.square(rows).T if form == "diag" else (rows * latent[:, None]) @ rows.T
        if form == "diag":
            return mean, self.scale_ * (inner + prior * residual)
        return mean, self.scale_ * (inner + prior[:, :, None] * self.coordinates_.residual_covariance(points))

    def _prior_variance(self, X: np.ndarray) -> np.ndarray:
        """Return k_X(x, x), (k,)."""
        ((scalar, _),) = components(self.gp_.kernel)
        with torch.no_grad():
            return scalar(to_tensor(self._latent_inputs(X)), diag=True).numpy()

    def _noise_variance(self, points: np.ndarray) -> float:
        return self.point_noise_

    def _draw_remainders(self, k: int, seed: int):
        try:
            draws = self.posterior_.sample_functions(k, random_state=seed)
        except OptionError:  # the kernel has no random features
            draws = JointDraws(self.posterior_, k, seed)

        def evaluate(X: np.ndarray, points: np.ndarray) -> np.ndarray:
            return np.sqrt(self.scale_) * self._deviations(draws, X) @ self.coordinates_.rows(
                points
            ).T + self._mean_rows(X, points)

        return evaluate

    def _deviations(self, draws, X: np.ndarray) -> np.ndarray:
        """Return the draws of u minus their mean, (k, n, ρ), before the scale."""
        X = to_tensor(self._latent_inputs(X))
        return (draws(X) - self.posterior_.predict(X, "none").mean).numpy()

    def _mean_rows(self, X: np.ndarray, points: np.ndarray) -> np.ndarray:
        return self._predict_remainder(X, points, "none")[0]

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, scale, noise and the lengthscale of the input kernel."""
        if not hasattr(self, "latent_"):
            return super().list_parameters()
        rows = [*super().list_parameters(), Hyperparameter.of("noise variance of a value", self.point_noise_)]
        ((scalar, _),) = components(self.gp_.kernel)
        if getattr(scalar, "lengthscale", None) is not None:
            rows.append(Hyperparameter.of("lengthscale", float(scalar.lengthscale.detach().mean())))
        return rows

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | {"Approximation": EXACT_KERNEL}


def _condition_again(ridge: CurveRidge) -> None:
    ridge._condition()


@storable("X_", "entries_", "noise_", finish=_condition_again)
class CurveRidge(BaseEstimator):
    """Posterior of coordinates with prior variances (ρ,) and a scalar kernel, given entries of curves at different points."""

    def __init__(self, kernel="rbf", lengthscale="median", variances=None):
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.variances = variances

    def make_kernel(self, X: np.ndarray):
        """Make the scalar kernel in float64."""
        options = SimpleNamespace(
            kernel="auto", base_kernel=self.kernel, lengthscale=self.lengthscale, output_matrix=None
        )
        ((scalar, _),) = components(ridge_kernel(options, X, np.zeros((len(X), 1))))
        return scalar.requires_grad_(False)

    def fit(self, X: np.ndarray, entries: CoordinateEntries, noise: float) -> CurveRidge:
        """Condition on the entries with noise σ²."""
        self.X_, self.entries_, self.noise_ = to_tensor(X), entries, noise
        self._condition()
        return self

    def _condition(self) -> None:
        scalar = self.make_kernel(self.X_.numpy())
        self.posterior_ = CoordinatePosterior(scalar, self.variances, self.X_, self.entries_, self.noise_)
        self.gp_ = SimpleNamespace(kernel=self.posterior_.process.kernel)


storable_record(CoordinateEntries)


@dataclass(frozen=True)
class ProjectedCurves:
    """Coordinates z of curves, Σ η y² outside of the basis, the number of observed values and Σ ½ log η."""

    Z: np.ndarray | Tensor
    outside: float
    count: int
    jacobian: float

    def outside_log_density(self, noise: float) -> float:
        """Return the log density of what is outside of the basis, white noise, and of the change to the units of y."""
        size = self.count - np.prod(self.Z.shape)
        return self.jacobian - (self.outside / noise + size * np.log(2 * np.pi * noise)) / 2


class _Evidence(NamedTuple):
    """yᵀ(K + N)⁻¹y and log density of all observed values, and their number, before the scale."""

    quadratic: float
    count: int
    log_evidence: float

    def at_scale(self, scale: float) -> float:
        """Return the log density with prior and noise times a scale."""
        return float(self.log_evidence + self.quadratic * (1 - 1 / scale) / 2 - self.count * np.log(scale) / 2)


def latent_quadratic(ridge, X: np.ndarray, Z: np.ndarray) -> float:
    """Return Σ z (K + σ²)⁻¹ z = Σ z (z − û)/σ² of a fitted ridge regression of z."""
    if (solver := getattr(ridge.posterior_, "solver", None)) is not None:  # without the difference z − û
        return float((to_tensor(Z) * solver.alpha).sum())
    return float((Z * (Z - ridge.predict(X).reshape(Z.shape))).sum() / ridge.noise_)


def _as_columns(points: np.ndarray) -> np.ndarray:
    return points[:, None] if points.ndim == 1 else points


def _warn_about_errors(errors: list[float]) -> None:
    if (worst := max(errors)) > MAX_GRAM_ERROR:
        warnings.warn(
            f"Inner products at the observed points are inaccurate: the Gram matrix of the basis at the points of a curve differs by {worst:.2g} (relative) from the exact one. "
            'Use method="exact", quadrature="trapezoid", fewer functions or more points.',
            FitWarning,
            stacklevel=5,
        )
