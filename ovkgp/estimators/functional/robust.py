"""`RobustFunctionalRegressor`, robust and sparse regression of curves (LT-92..95, BO-70..75), with robust bands (LT §6.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.loss_options import HUBER_TUNING, MAX_SCALE_ROUNDS, NORMAL_MAD, SCALE_TOLERANCE
from ovkgp.estimators.common.options import (
    FRACTION,
    POSITIVE,
    POSITIVES,
    Rule,
    check_lam,
    integer,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.functional.basis_ridge import (
    BASIS_ATTRIBUTES,
    BASIS_CONSTRAINTS,
    BasisRegressor,
    CurveRidge,
    fit_curves,
)
from ovkgp.estimators.functional.coordinates import (
    CurveCoordinates,
    CurveFunction,
    observed_coordinates,
    project_curves,
)
from ovkgp.estimators.functional.curve_problem import factor_rows, is_robust, make_curve_loss, make_problem, to_tensor
from ovkgp.estimators.functional.functional_ridge import OUTPUT_KERNEL_CONSTRAINTS, make_output_factor
from ovkgp.estimators.functional.weighted_curves import WeightedCurves
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.model.row_sample import draw_folds
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.robust_posterior import (
    HuberDensity,
    LogCoshDensity,
    RobustDensity,
    StudentDensity,
    fit_weights,
)
from ovkgp.inference.tasks.solvers.paths import compute_sparsity, solve_path
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import Coordinates, IntegralLoss, Square
from ovkgp.losses.balls import norm

LOSSES = ("huber", "insensitive", "log_cosh")
UNCERTAINTIES = ("variational", "student_t")
CV_TOLERANCE = 1e-3
NUM_CALIBRATIONS = 2  # updates of the scale of the bands
PARAMETER = [one_of("auto"), POSITIVE, POSITIVES]
PARAMETER_NAMES = {"huber": "kappa", "insensitive": "epsilon", "log_cosh": "nu"}


@storable_record
@dataclass(frozen=True, eq=False)
class ParameterPath:
    """Candidates of λ, κ, ε or ν, and the median (Huber, log-cosh) or mean error of cross-validation of each, (k,)."""

    values: np.ndarray
    error: np.ndarray


@storable(
    *BASIS_ATTRIBUTES,
    *("function_", "parameter_", "gap_", "fit_report_", "sparsity_"),
    optional=("lam_path_", "parameter_path_", "outlier_scores_", "weights_", "bound_", "_predictive_noise"),
    parts=("latent_",),
)
class RobustFunctionalRegressor(BasisRegressor):
    """Regression of curves with losses that ignore outliers or small errors, whole curves or single values.

        min_h (1/n) Σ_i L(y_i − h(x_i)) + (λ/2) ‖h‖²,      L = ½‖·‖² □ κ‖·‖_p  or  ½‖·‖² □ χ{‖·‖_p ≤ ε}  or  ∫ log cosh

    in L^p of the domain, with the kernel k_X(x, x') k_Θ(θ, θ').

    Parameters
    ----------
    loss : {"huber", "insensitive", "log_cosh"}, default="huber"
        "huber" bounds the influence of outliers, "insensitive" ignores errors up to ε, so that dual variables are sparse, "log_cosh"
        is a smooth absolute error.
    p : {1, 2, math.inf}, default=1
        Norm of the deviations. For "huber", 1 is for outliers at single points and 2 for outlying curves; for "insensitive", 2
        ignores whole curves and inf single values. Ignored for "log_cosh".
    kappa, epsilon, nu : "auto", float or list of float, default="auto"
        Parameter of the loss: bound κ of "huber", width ε of "insensitive", inverse width ν of "log_cosh". "auto" is 1.345 robust
        standard deviations of the residuals for κ, half of one for ε, and the inverse of one for ν. Of a list the
        best by 5-fold cross-validation is chosen: by the median error of curves, or the mean for "insensitive".
    basis : {"grid", "eigen"}, default="grid"
        "grid": values at the points; "eigen": coefficients of the leading eigenfunctions of k_Θ (only p = 2).
    uncertainty : {"variational", "student_t"} or None, default=None
        Bands from a Gaussian approximation of the posterior under the normalized likelihood of the loss, of single values for p = 1
        and of whole curves for p = 2, or under a Student-t likelihood with 4 degrees of freedom. If None, there are no bands, as always
        for "insensitive". With p = 2 a scale for prior and noise follows from sums of squares of curves, in which single outlying values count, and
        the noise of a new curve from regular values. If single values are outlying, p = 1 has narrower bands.
    output_kernel, output_lengthscale, num_functions, kernel, lengthscale, lam, convention, curve_weighting, quadrature,
    fit_intercept, selection, verbose
        As for `FunctionalRidge`. Several λ are compared by 5-fold cross-validation, as the parameter of the loss. The intercept of
        "huber" and "log_cosh" is the median of complete curves, and with gaps a smooth mean without outlying values and curves.
    tolerance : float, default=1e-6
        Relative duality gap.
    max_iter : int, default=20000
        Maximum number of steps.

    Attributes
    ----------
    parameter_ : float
        κ, ε or ν.
    parameter_path_, lam_path_ : ParameterPath
        Errors of several candidates.
    sparsity_ : float
        Fraction of dual variables that are exactly 0: of curves if p = 2, else of values.
    gap_, fit_report_ : float, FitReport
        Relative duality gap, and report of the solver.
    outlier_scores_ : ndarray of shape (n,)
        Fraction of the residual of each curve that its loss disregards, 0 for curves that are treated as by least squares ("huber",
        "log_cosh").
    weights_, bound_ : ndarray, float
        Weights of curves (n,) or values (n, m), NaN where missing, and the lower bound on the log evidence (`uncertainty`).
    lam_, noise_, scale_, point_noise_, function_, coordinates_, latent_, posterior_, grid_, domain_, mean_curve_
        As for `KernelProjectionRegressor`. Scale, noise and posterior are those of the bands, and without bands those of the ridge
        regression with the same λ, from which the solver begins.

    Notes
    -----
    The solver is an accelerated proximal gradient method on the dual problem, which starts at the ridge regression. In L² of m
    points with equal weights, the bound of a curve (p = 2) is √m κ in Euclidean norm, and thresholds of a step γ are γε√m (p = 2)
    and γε (p = ∞) (BO-E-29, BO-E-45). Complexity: O(n m (n + m)) per step; bands O(n m D²) per update of the weights,
    with at most 5000 eigenfunctions D of k_X k_Θ whose variance is above 10⁻⁶ of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, grid = rng.uniform(0, 1, (40, 1)), np.linspace(0, 1, 30)
    >>> Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((40, 30))
    >>> Y[:4] += 5.0  # outlying curves
    >>> model = ovkgp.RobustFunctionalRegressor(p=2, lam=1e-3).fit(X, Y, grid)
    >>> sorted(np.argsort(model.outlier_scores_)[-4:].tolist())
    [0, 1, 2, 3]
    """

    std_advice = 'Use uncertainty="variational".'
    description = Description(
        "robust regression of curves",
        "The fit minimizes a loss of curves that bounds the influence of outliers or ignores small errors, plus a penalty on the norm of the function.",
        "h = argmin (1/n) Σ_i L(y_i − h(x_i)) + λ‖h‖^2/2",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **{name: rule for name, rule in BASIS_CONSTRAINTS.items() if name != "scale"},
        **OUTPUT_KERNEL_CONSTRAINTS,
        "loss": [one_of(*LOSSES)],
        "p": [Rule("1, 2 or math.inf", lambda value: value in (1, 2, math.inf))],
        "kappa": PARAMETER,
        "epsilon": PARAMETER,
        "nu": PARAMETER,
        "uncertainty": [one_of(*UNCERTAINTIES), None],
        "tolerance": [FRACTION],
        "max_iter": [integer()],
    }
    scale = "evidence"

    def __init__(
        self,
        loss="huber",
        p=1,
        kappa="auto",
        epsilon="auto",
        nu="auto",
        basis="grid",
        uncertainty=None,
        output_kernel="matern52",
        output_lengthscale="quantile_0.2",
        num_functions=None,
        kernel="rbf",
        lengthscale="median",
        lam=1e-3,
        convention="mean",
        curve_weighting="equal",
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        tolerance=1e-6,
        max_iter=20_000,
        verbose=0,
    ):
        self.loss = loss
        self.p = p
        self.kappa = kappa
        self.epsilon = epsilon
        self.nu = nu
        self.basis = basis
        self.uncertainty = uncertainty
        self.output_kernel = output_kernel
        self.output_lengthscale = output_lengthscale
        self.num_functions = num_functions
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.lam = lam
        self.convention = convention
        self.curve_weighting = curve_weighting
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> RobustFunctionalRegressor:
        """Fit the model.

        Parameters
        ----------
        X, y, grid
            As for `KernelProjectionRegressor.fit`.

        Returns
        -------
        self : RobustFunctionalRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid, is_robust(self.loss))
            factor = make_output_factor(self, data)
            fit_curves(self, X, data, observed_coordinates(factor, data, self.quadrature))
            inputs = KernelFactor(self._input_kernel, to_tensor(X))
            rows = to_tensor(factor_rows(inputs, X))
            square = self._make_problem(rows, data, lambda measure: IntegralLoss(Square(), measure))
            if len(check_lam(self.lam)) > 1:
                square = self._select_lam(square)
            ridge = solve_square(square)
            self.parameter_ = self._choose_parameter(square)
            problem = replace(square, loss=self._make_loss(square.loss.measure, self.parameter_))
            options = {"tolerance": self.tolerance, "max_iter": self.max_iter, "verbose": self.verbose}
            (found,) = solve_path([problem], init=ridge, **options)
            self._set_solution(problem, found, inputs)
            if self.uncertainty is not None:
                self._fit_bands(X, data)
        return self

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if self.basis == "eigen" and (self.p != 2 or self.loss == "log_cosh"):
            raise OptionError(
                'basis="eigen" is supported with p=2 only, for "huber" and "insensitive". Use basis="grid".'
            )
        if self.uncertainty is not None and self.loss == "insensitive":
            raise OptionError(
                'uncertainty is not supported for "insensitive", whose fit follows outliers that robust bands ignore. Use loss="huber".'
            )
        if self.uncertainty == "variational" and self.loss == "huber" and self.p == math.inf:
            raise OptionError(
                'uncertainty="variational" is supported for "huber" with p=1 or 2 and for "log_cosh". Use uncertainty="student_t".'
            )

    def _make_problem(self, rows: torch.Tensor, data: FunctionalData, make_loss) -> TaskProblem:
        """Make the problem of the values on the grid, or of their coefficients in the orthonormal eigenfunctions."""
        lam = self.noise_ / len(data)
        if self.basis == "grid":
            settings = {"quadrature": self.quadrature, "weighting": self.curve_weighting}
            return make_problem(rows, ScaledCoordinates(self.coordinates_), data, lam, make_loss, **settings)
        if not data.is_complete:
            raise InputError(
                'y must be complete on a common grid with basis="eigen", got missing values. Use basis="grid".'
            )
        Z = project_curves(self.coordinates_, data, self.quadrature).Z
        tasks = torch.diag(to_tensor(np.sqrt(self.coordinates_.variances)))
        return TaskProblem(rows, tasks, to_tensor(Z), make_loss(Coordinates(Z.shape[1])), lam)

    def _make_loss(self, measure, parameter: float):
        return make_curve_loss(self.loss, self.p, parameter, measure)

    def _choose_parameter(self, square: TaskProblem) -> float:
        """Return κ, ε or ν: given, from the scale of residuals, or by cross-validation."""
        option = getattr(self, PARAMETER_NAMES[self.loss])
        if isinstance(option, str):
            return self._default_parameter(square)
        values = np.atleast_1d(np.asarray(option, dtype=float))
        if len(values) == 1:
            return float(values[0])
        errors = self._cross_validate(square, [(value, square.lam) for value in values])
        self.parameter_path_ = ParameterPath(values, errors)
        return float(values[np.argmin(errors)])

    def _select_lam(self, square: TaskProblem) -> TaskProblem:
        """Choose λ by cross-validation, with the parameter of the loss that belongs to the λ of the ridge regression."""
        option, lams = getattr(self, PARAMETER_NAMES[self.loss]), check_lam(self.lam)
        value = self._default_parameter(square) if np.ndim(option) or isinstance(option, str) else float(option)
        factor = self.noise_ / self.lam_
        del self.path_  # of the ridge regression
        errors = self._cross_validate(square, [(value, factor * lam / square.num_rows) for lam in lams])
        self.lam_path_ = ParameterPath(lams, errors)
        self.lam_ = float(lams[np.argmin(errors)])
        self.noise_ = factor * self.lam_
        return replace(square, lam=self.noise_ / square.num_rows)

    def _default_parameter(self, square: TaskProblem) -> float:
        """Return κ, ε or ν from the scale of residuals, of the ridge regression first and then of the robust fit itself."""
        value = self._parameter_of(self._held_out_residuals(square), square)
        if self.loss == "insensitive":
            return value
        last = solve_square(square)
        for _ in range(MAX_SCALE_ROUNDS):
            problem = replace(square, loss=self._make_loss(square.loss.measure, value))
            (last,) = solve_path([problem], init=last, tolerance=CV_TOLERANCE, max_iter=self.max_iter)
            residuals = torch.where(problem.entry_weights > 0, problem.targets - problem.values(last.weights), 0.0)
            before, value = value, self._parameter_of(residuals, square)
            if abs(math.log(value / before)) < SCALE_TOLERANCE:
                break
        return value

    def _parameter_of(self, residuals: torch.Tensor, square: TaskProblem) -> float:
        """Return κ, ε or ν of residuals (n, m)."""
        weights = square.loss.weights.expand(residuals.shape)
        if self.loss == "log_cosh" or (self.loss, self.p) in (("huber", 1), ("insensitive", math.inf)):
            scale = NORMAL_MAD * residuals[weights > 0].abs().median().item()
        else:
            order = 1 if self.loss == "huber" and self.p == math.inf else self.p
            scale = norm(residuals, order, weights).median().item()
        scale = scale if scale > 0 else 1.0
        return {"huber": HUBER_TUNING * scale, "insensitive": scale / 2, "log_cosh": 1 / scale}[self.loss]

    def _held_out_residuals(self, square: TaskProblem) -> torch.Tensor:
        """Return residuals of the ridge regression of each curve given all others, (n, m), 0 where missing."""
        K, noise = square.inputs @ square.inputs.mT, self.noise_
        if square.is_shared and square.loss.weights.dim() == 1:
            values, U = torch.linalg.eigh(K)
            rows = square.loss.weights.sqrt().unsqueeze(-1) * square.tasks
            t, V = torch.linalg.eigh(rows @ rows.mT)
            rotated = square.loss.weights.sqrt() * square.targets @ V
            inverse = 1 / (values.clamp_min(0).unsqueeze(-1) * t.clamp_min(0) + noise)
            alpha, diagonal = U @ (inverse * (U.mT @ rotated)), U.square() @ inverse
            return (alpha / diagonal) @ V.mT / square.loss.weights.sqrt()
        fitted = square.values(solve_square(square).weights)
        return torch.where(square.entry_weights > 0, square.targets - fitted, 0.0)

    def _cross_validate(self, square: TaskProblem, candidates: list[tuple[float, float]]) -> np.ndarray:
        """Return the error of each (parameter, λ) by cross-validation; the median over curves unless "insensitive"."""
        order = sorted(range(len(candidates)), key=lambda i: candidates[i][::-1], reverse=True)  # easy problems first
        n = square.num_rows
        folds = draw_folds(n)
        errors = torch.zeros(len(candidates), n, dtype=torch.float64)
        for fold in np.unique(folds):
            train, test = (torch.from_numpy(np.flatnonzero(mask)) for mask in (folds != fold, folds == fold))
            part, held_out = _select_rows(square, train), _select_rows(square, test)
            problems = [
                replace(part, loss=self._make_loss(part.loss.measure, candidates[i][0]), lam=candidates[i][1])
                for i in order
            ]
            init = solve_square(replace(part, lam=problems[0].lam))
            solutions = solve_path(problems, init=init, tolerance=CV_TOLERANCE, max_iter=self.max_iter)
            for index, found in zip(order, solutions, strict=True):
                missed = torch.where(held_out.entry_weights > 0, held_out.targets - held_out.values(found.weights), 0.0)
                errors[index, test] = held_out.loss.mean(missed.square())
        return (errors.mean(1) if self.loss == "insensitive" else errors.median(1).values).numpy()

    def _set_solution(self, problem: TaskProblem, found: TaskSolution, inputs) -> None:
        self.function_ = CurveFunction(inputs, ScaledCoordinates(self.coordinates_), found.weights.numpy())
        self.gap_, self.fit_report_ = found.gap / max(abs(found.objective), 1e-300), found.report
        sparsity = compute_sparsity(found.dual, problem.entry_weights)
        self.sparsity_ = sparsity.rows if self.p == 2 else sparsity.entries
        if self.loss != "insensitive":
            residual = torch.where(problem.entry_weights > 0, problem.targets - problem.values(found.weights), 0.0)
            slope = self.parameter_ if self.loss == "log_cosh" else 1.0
            weights = problem.loss.weights
            kept = norm(found.dual, 2, weights) / (slope * norm(residual, 2, weights)).clamp_min(1e-300)
            self.outlier_scores_ = (1 - kept).clamp(0, 1).numpy()

    @property
    def has_predictive(self) -> bool:
        """Whether there are bands."""
        return self.uncertainty is not None

    @property
    def point_noise_(self) -> float:
        """Noise variance of one regular value, that of the bands if there are any."""
        return self._predictive_noise if self.has_predictive else super().point_noise_

    def _fit_bands(self, X: np.ndarray, data: FunctionalData) -> None:
        """Fit weights of curves or values, and the Gaussian posterior given them."""
        by_curve = self.p == 2 and self.loss != "log_cosh"
        density = self._density()
        # the log-cosh loss has the curvature ν at 0
        noise = self.noise_ / (self.parameter_ if self.loss == "log_cosh" else 1.0)
        model = WeightedCurves(self._input_kernel, self.coordinates_, X, data, noise, by_curve)
        unit = noise * (1.0 if by_curve else self._points_per_curve)  # of ‖·‖² in L², or of a value
        squares = model.residuals(self.function_) / unit
        weights = np.clip(density.weight(squares, model.sizes, unit), 1e-3, 1.0)
        mean_weights = np.clip(self._loss_density().weight(squares, model.sizes, unit), 1e-3, 1.0)
        for _ in range(NUM_CALIBRATIONS):
            scale, noise_scale = model.robust_scales(weights, mean_weights)
            found = fit_weights(density, model.condition, model.sizes, unit, weights, scale)
            weights = found.weights
        self.coordinates_ = model.coordinates
        self.scale_, self.bound_ = scale, found.bound
        self.weights_ = model.expand(found.weights)
        latent = CurveRidge(self._input_kernel, "median", to_tensor(self.coordinates_.variances))
        self.latent_ = latent.fit(X, model.entries(found.weights), noise)
        self._predictive_noise = noise_scale * noise * self._points_per_curve

    def _density(self) -> RobustDensity:
        """Return the normalized density of residuals: of ‖r‖ in L² of curves, or of single values."""
        return StudentDensity() if self.uncertainty == "student_t" else self._loss_density()

    def _loss_density(self) -> RobustDensity:
        """Return the density whose mode is the fit; for p=inf approximately, by single values."""
        return LogCoshDensity(self.parameter_) if self.loss == "log_cosh" else HuberDensity(self.parameter_)

    def _predict_remainder(self, X: np.ndarray, points: np.ndarray, form: str) -> tuple[np.ndarray, np.ndarray | None]:
        covariance = None if form == "none" else self._predict_posterior(X, points, form)[1]
        return self.function_(X, points), covariance


@storable_record
@dataclass(frozen=True, eq=False)
class ScaledCoordinates:
    """Coordinates √t h(θ) of the output kernel, from orthonormal ones with prior variances t."""

    coordinates: CurveCoordinates

    def __call__(self, points: torch.Tensor) -> torch.Tensor:
        return to_tensor(self.coordinates.rows(points.numpy()) * np.sqrt(self.coordinates.variances))


def _select_rows(problem: TaskProblem, rows: torch.Tensor) -> TaskProblem:
    """Return the problem of some rows."""
    measure = problem.loss.measure
    if measure.weights.dim() == 2:
        nodes = measure.nodes if measure.nodes.dim() == 1 else measure.nodes[rows]
        measure = type(measure)(nodes, measure.weights[rows])
    tasks = problem.tasks if problem.is_shared else problem.tasks[rows]
    return TaskProblem(problem.inputs[rows], tasks, problem.targets[rows], IntegralLoss(Square(), measure), problem.lam)
