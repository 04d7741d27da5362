"""`BasisRegressor`, base class of curve regressors with a fixed output basis: f(x)(θ) = ψ(θ)ᵀ w(x), w ~ GP(0, k_X I) (BO-60).

In the coordinates u of `coordinates`, complete curves are a ridge regression on z with the output matrix diag(t), such as an
`OVKRidge`. Curves with gaps or different points are a `CoordinatePosterior` of u.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp.estimators.common.descriptions import EXACT_KERNEL
from ovkgp.estimators.common.named_kernels import BASE_KERNEL, random_features, ridge_kernel, usable_scale
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
from ovkgp.estimators.functional.coordinates import (
    CurveCoordinates,
    CurveFunction,
    Evidence,
    ProjectedCurves,
    collect_entries,
    project_curves,
)
from ovkgp.estimators.functional.curve_problem import factor_rows, make_problem, to_tensor
from ovkgp.estimators.ridge.base import RidgePath, make_ridge_gp, middle
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import Factor
from ovkgp.inference import noise_path
from ovkgp.inference.algebra.kronecker import KroneckerSolver
from ovkgp.inference.posteriors.exact import KroneckerPosterior
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.tasks.coordinate_posterior import (
    CoordinateEntries,
    CoordinatePosterior,
    curve_path,
)
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.spectral_path import CurvePath, spectral_path
from ovkgp.kernels import components

JITTER = 1e-9  # added to the covariance of joint draws, relative to its largest variance
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


class BasisRegressor(FunctionalRegressor):
    """Base class of curve regressors with a fixed output basis, whose `fit` calls `fit_curves` or `fit_projected`."""

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

    @property
    def has_predictive(self) -> bool:
        """Whether there are bands: with the square loss."""
        return not hasattr(self, "function_")

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        if hasattr(self, "function_"):
            return self.function_(X, points), None
        return self._predict_posterior(X, points, form)

    def _predict_posterior(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return mean and variance or covariance along the curve of the posterior."""
        rows = self.coordinates_.rows(points)
        inputs, is_irregular = to_tensor(X), isinstance(self.latent_, CurveRidge)
        found = self.posterior_.predict(inputs, "none" if form == "none" or is_irregular else "diag")
        mean = found.mean.numpy() @ rows.T
        if form == "none":
            return mean, None
        with torch.no_grad():
            prior = self._input_kernel(inputs, diag=True).numpy()[:, None]
        residual = self.coordinates_.residual_variance(points)
        if is_irregular:  # gaps couple the coordinates
            inner = self.posterior_.covariance_along(inputs, to_tensor(rows), form).numpy()
        else:
            latent = found.std.square().numpy()
            inner = latent @ np.square(rows).T if form == "diag" else (rows * latent[:, None]) @ rows.T
        if form == "diag":
            return mean, self.scale_ * (inner + prior * residual)
        return mean, self.scale_ * (inner + prior[:, :, None] * self.coordinates_.residual_covariance(points))

    @property
    def _input_kernel(self) -> Kernel:
        """Scalar kernel k_X."""
        ((scalar, _),) = components(self.gp_.kernel)
        return scalar

    def _noise_variance(self, points: np.ndarray) -> float:
        return self.point_noise_

    def _draw_remainders(self, k: int, seed: int):
        try:
            draws = self.posterior_.sample_functions(k, random_state=seed)
        except OptionError:  # the kernel has no random features
            draws = JointDraws(self.posterior_, k, seed)

        def evaluate(X: np.ndarray, points: np.ndarray) -> np.ndarray:
            mean, inputs = self._predict_remainder(X, points, "none")[0], to_tensor(X)
            deviations = (draws(inputs) - self.posterior_.predict(inputs, "none").mean).numpy()
            return mean + np.sqrt(self.scale_) * deviations @ self.coordinates_.rows(points).T

        return evaluate

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, scale, noise and the lengthscale of the input kernel."""
        if not hasattr(self, "latent_"):
            return super().list_parameters()
        rows = [*super().list_parameters(), Hyperparameter.of("noise variance of a value", self.point_noise_)]
        if (lengthscale := getattr(self._input_kernel, "lengthscale", None)) is not None:
            rows.append(Hyperparameter.of("lengthscale", float(lengthscale.detach().mean())))
        return rows

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | {"Approximation": EXACT_KERNEL}


def fit_curves(estimator, X: np.ndarray, data: FunctionalData, coordinates: CurveCoordinates) -> None:
    """Fit the coordinates of curves with an exact kernel, and select λ; see `fit_projected`."""
    if data.is_complete:
        projected = project_curves(coordinates, data, estimator.quadrature)
        make_latent = partial(make_exact, estimator, estimator.kernel, coordinates.variances)
        fit_projected(estimator, X, data, coordinates, projected, make_latent)
    else:
        fit_entries(estimator, X, data, coordinates, CurveRidge(estimator.kernel, estimator.lengthscale))


def make_exact(estimator, kernel: str | Kernel, variances: np.ndarray, noise: float) -> OVKRidge:
    """Make the ridge regression of coordinates with prior variances (ρ,) and a kernel of the inputs."""
    options = {"lengthscale": estimator.lengthscale, "lam": noise, "verbose": estimator.verbose}
    return OVKRidge(base_kernel=kernel, output_matrix=np.diag(variances), **options)


def fit_projected(
    estimator,
    inputs: np.ndarray,
    data: FunctionalData,
    coordinates: CurveCoordinates,
    projected: ProjectedCurves,
    make_latent: Callable[[float], BaseEstimator],
) -> None:
    """Fit the ridge regression `make_latent(σ²)` of z, and select λ from one factorization if the kernel is exact.

    Set `coordinates_`, `latent_`, `lam_`, `noise_`, `scale_`, `log_evidence_` and, for several λ, `path_`.
    """
    Z, (lams, noises) = projected.Z, _noise_levels(estimator, len(data))
    latent, best = make_latent(middle(noises) if len(noises) > 1 else float(noises[0])).fit(inputs, Z), 0
    if len(noises) > 1:
        path = _compute_path(latent, inputs, Z, noises, coordinates.variances)
        best = _select_level(estimator, path, lams, noises, projected)
        latent = _change_noise(latent, float(noises[best]), inputs, Z, make_latent)
    found = projected.evidence(noises[best], latent_quadratic(latent, inputs, Z), latent.posterior_.log_evidence)
    estimator.latent_ = latent
    _set_fit(estimator, data, coordinates, float(lams[best]), float(noises[best]), found)


def fit_entries(
    estimator, X: np.ndarray, data: FunctionalData, coordinates: CurveCoordinates, latent: CurveRidge, weighting=None
) -> None:
    """Fit the coordinates of curves with gaps or at different points, and select λ; see `fit_projected`.

    Curves are weighted as the option `curve_weighting` says, unless `weighting` is given.
    """
    entries, projected = collect_entries(
        coordinates, data, estimator.quadrature, weighting or estimator.curve_weighting
    )
    (lams, noises), best = _noise_levels(estimator, len(data)), 0
    latent.variances = torch.from_numpy(coordinates.variances)
    if len(lams) > 1:
        path = curve_path(latent.make_kernel(X), latent.variances, to_tensor(X), entries, torch.from_numpy(noises))
        best = _select_level(estimator, path, lams, noises, projected)
    estimator.latent_ = latent.fit(X, entries, float(noises[best]))
    found = projected.evidence(noises[best], latent.posterior_.quadratic, latent.posterior_.log_evidence)
    _set_fit(estimator, data, coordinates, float(lams[best]), float(noises[best]), found)


def _noise_levels(estimator, num_curves: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the candidates of λ, and of the noise σ² in an orthonormal basis."""
    lams = check_lam(estimator.lam)
    return lams, noise_of(1.0, estimator.convention, num_curves, num_curves) * lams


def _select_level(estimator, path: CurvePath, lams: np.ndarray, noises: np.ndarray, projected: ProjectedCurves) -> int:
    """Set `path_` from the criteria of the coordinates at several noise levels, and return the index of the best."""
    log_evidence = []
    for noise, quadratic, value in zip(noises, path.quadratic.tolist(), path.log_evidence.tolist(), strict=True):
        found = projected.evidence(noise, quadratic, value)
        # the evidence of the coordinates alone does not determine the noise (BO §6.2)
        log_evidence.append(found.at_scale(found.quadratic / found.count if estimator.scale == "evidence" else 1.0))
    loo = path.loo_error.numpy(), path.loo_log_density.numpy()
    estimator.path_ = RidgePath(lams, noises, np.array(log_evidence), *loo)
    return estimator.path_.best(estimator.selection)


def _set_fit(
    estimator, data: FunctionalData, coordinates: CurveCoordinates, lam: float, noise: float, found: Evidence
) -> None:
    """Set the attributes of the selected λ, and the scale."""
    estimator.coordinates_, estimator.lam_, estimator.noise_ = coordinates, lam, noise
    estimator.scale_ = 1.0
    if estimator.scale == "evidence":
        values = np.concatenate([values.ravel() for _, values in data.curves()])
        estimator.scale_ = usable_scale(found.quadratic / found.count, values)
    estimator.log_evidence_ = found.at_scale(estimator.scale_)


def _compute_path(latent, inputs: np.ndarray, Z: np.ndarray, noises: np.ndarray, variances: np.ndarray) -> CurvePath:
    """Compute the criteria of the coordinates at several noise levels from a ridge regression with one of them."""
    solver = getattr(latent.posterior_, "solver", None)
    if isinstance(solver, KroneckerSolver):
        return spectral_path(solver.s, solver.U, *(to_tensor(values) for values in (variances, Z, noises)))
    found = noise_path(latent.gp_, to_tensor(inputs), to_tensor(Z), noises / latent.noise_, rescale=True)
    scales = found.scales
    quadratic = Z.size * scales
    log_evidence = found.log_evidence - quadratic * (1 - 1 / scales) / 2 + Z.size * scales.log() / 2
    return CurvePath(log_evidence, quadratic, found.loo_error, found.loo_log_density)


def _change_noise(latent, noise: float, inputs: np.ndarray, Z: np.ndarray, make_latent: Callable):
    """Return the ridge regression with another noise level, from the same factorization if it is exact."""
    solver = getattr(latent.posterior_, "solver", None)
    if not isinstance(solver, KroneckerSolver):
        return make_latent(noise).fit(inputs, Z)
    other, old = copy.copy(latent), latent.posterior_
    other.lam = other.lam_ = other.noise_ = noise
    other.gp_ = make_ridge_gp(latent._kernel, noise, None)
    model_noise = other.gp_.frozen().model.predictive_noise(old.data)
    other.posterior_ = KroneckerPosterior(
        old.process, solver.with_noise(noise / latent.noise_), old.data, old.mean, model_noise
    )
    return other


def fit_loss(
    estimator, X: np.ndarray, data: FunctionalData, inputs: Factor, outputs: Factor, make_loss, weighting: str
) -> None:
    """Minimize another loss with the λ and the kernel of the ridge regression: set `function_`, `gap_` and `fit_report_`."""
    lam, rows = estimator.noise_ / len(data), to_tensor(factor_rows(inputs, X))
    problem = make_problem(rows, outputs, data, lam, make_loss, quadrature=estimator.quadrature, weighting=weighting)
    options = {name: getattr(estimator, name) for name in ("tolerance", "max_iter", "verbose")}
    found = solve_primal(problem, **options)
    estimator.function_ = CurveFunction(inputs, outputs, found.weights.numpy())
    estimator.gap_, estimator.fit_report_ = found.gap / max(abs(found.objective), 1e-300), found.report


def latent_quadratic(ridge, X: np.ndarray, Z: np.ndarray) -> float:
    """Return Σ z (K + σ²)⁻¹ z = Σ z (z − û)/σ² of a fitted ridge regression of z."""
    if (solver := getattr(ridge.posterior_, "solver", None)) is not None:  # without the difference z − û
        return float((to_tensor(Z) * solver.alpha).sum())
    return float((Z * (Z - ridge.predict(X).reshape(Z.shape))).sum() / ridge.noise_)


def _condition_again(ridge: CurveRidge) -> None:
    ridge._condition()


@storable("X_", "entries_", "noise_", finish=_condition_again)
class CurveRidge(BaseEstimator):
    """Posterior of coordinates with prior variances (ρ,) and a scalar kernel, given entries of curves at different points.

    The kernel may be that of random features, with a number of frequencies and their seed.
    """

    def __init__(self, kernel="rbf", lengthscale="median", variances=None, num_frequencies=None, random_state=None):
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.variances = variances
        self.num_frequencies = num_frequencies
        self.random_state = random_state

    def make_kernel(self, X: np.ndarray):
        """Make the scalar kernel in float64."""
        options = SimpleNamespace(
            kernel="auto", base_kernel=self.kernel, lengthscale=self.lengthscale, output_matrix=None
        )
        ((scalar, _),) = components(ridge_kernel(options, X, np.zeros((len(X), 1))))
        scalar = scalar.requires_grad_(False)
        if self.num_frequencies is None:
            return scalar
        return FeatureKernel(random_features(scalar, X.shape[1], self.num_frequencies, self.random_state).double())

    def fit(self, X: np.ndarray, entries: CoordinateEntries, noise: float) -> CurveRidge:
        """Condition on the entries with noise σ²."""
        self.X_, self.entries_, self.noise_ = to_tensor(X), entries, noise
        self._condition()
        return self

    def _condition(self) -> None:
        scalar = self.make_kernel(self.X_.numpy())
        self.posterior_ = CoordinatePosterior(scalar, self.variances, self.X_, self.entries_, self.noise_)
        self.gp_ = SimpleNamespace(kernel=self.posterior_.process.kernel)


class FeatureKernel(Kernel):
    """Scalar kernel φ(x)ᵀφ(z) of random features."""

    def __init__(self, features: ORFF):
        super().__init__()
        self.features = features

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        left = to_dense(self.features(x1))
        right = left if x2 is x1 else to_dense(self.features(x2))
        return (left * right).sum(-1) if diag else left @ right.mT


class JointDraws:
    """k random functions with the joint distribution of a posterior: `draws(X)` is (k, n, p), the same values at repeated inputs.

    The standard normal variables of all inputs so far are kept; those of new inputs extend the Cholesky factor. Complexity:
    O((N p)³) for N different inputs.
    """

    def __init__(self, posterior: Posterior, k: int, seed: int):
        self._posterior, self._rng = posterior, np.random.default_rng(seed)
        self._index: dict[bytes, int] = {}
        self._rows: list[Tensor] = []
        self._normal = torch.zeros(k, 0, posterior.num_outputs, dtype=torch.float64)

    @torch.no_grad()
    def __call__(self, X: Tensor) -> Tensor:
        """Evaluate the functions at X (n, d)."""
        for row in X:
            if (key := row.numpy().tobytes()) not in self._index:
                self._index[key] = len(self._rows)
                self._rows.append(row)
                noise = self._rng.standard_normal((len(self._normal), 1, self._normal.shape[2]))
                self._normal = torch.cat([self._normal, torch.from_numpy(noise)], 1)
        found = self._posterior.predict(torch.stack(self._rows), "full")
        covariance = found.cov.clone()
        covariance.diagonal().add_(JITTER * covariance.diagonal().max().clamp_min(1e-300))
        deviations = self._normal.flatten(1) @ torch.linalg.cholesky(covariance).mT
        values = found.mean + deviations.view_as(self._normal)
        return values[:, [self._index[row.numpy().tobytes()] for row in X]]
