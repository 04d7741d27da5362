"""`FeatureProjectionRegressor`, linear models of input features and a dictionary of output functions (BO-82..86)."""

from __future__ import annotations

import warnings
from functools import partial
from typing import ClassVar

import numpy as np

from ovkgp.checks import as_seed
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import name_structure, random_features, ridge_kernel
from ovkgp.estimators.common.options import FRACTION, RANDOM_STATE, check_lam, integer, one_of, restore_on_error
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.streaming import accumulate_statistics, shown_parts
from ovkgp.estimators.functional.basis_ridge import (
    BASIS_ATTRIBUTES,
    BASIS_CONSTRAINTS,
    BasisRegressor,
    CurveRidge,
    fit_loss,
    fit_projected,
)
from ovkgp.estimators.functional.coordinates import CurveFunction, observed_coordinates, project_curves
from ovkgp.estimators.functional.curve_problem import factor_rows, is_robust, to_tensor
from ovkgp.estimators.functional.options import (
    DICTIONARY_CONSTRAINTS,
    LOSS,
    check_loss,
    check_output_matrix,
    make_dictionary,
)
from ovkgp.estimators.ridge.base import (
    RIDGE_ATTRIBUTES,
    RIDGE_BUILDER,
    RidgeEstimator,
    make_ridge_gp,
    weighted_table,
)
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features import Nystrom
from ovkgp.functional import FunctionalData
from ovkgp.functional.dictionary import pseudo_inverse
from ovkgp.functional.factors import FeatureFactor, KernelFactor
from ovkgp.inference.model.row_sample import draw_folds
from ovkgp.inference.tasks.solvers.group_lasso import GroupLassoProblem, group_lasso_path, solve_group_lasso
from ovkgp.losses import IntegralLoss

FEATURES = ("orff", "nystrom")
PENALTIES = ("coefficients", "function", "group")
SMALL_RIDGE = 1e-9  # weight of Tr(C G Cᵀ) in the selection of functions, which makes the weights unique
OPTIONAL_ATTRIBUTES = ("coordinates_", "noise_", "scale_", "log_evidence_")  # not set by the selection of functions


@storable(
    *(name for name in BASIS_ATTRIBUTES if name not in OPTIONAL_ATTRIBUTES),
    *("dictionary_", "_seed"),
    optional=(
        *(*OPTIONAL_ATTRIBUTES, "path_", "function_", "fit_report_", "gap_", "selected_", "lam_max_"),
        *("path_lam_", "path_error_", "path_count_", "_iterations"),
    ),
    parts=("latent_",),
)
class FeatureProjectionRegressor(BasisRegressor):
    """Feature projection learning: curves as bilinear functions of input features and a dictionary (FPL, BO-82).

        min_C (1/n) Σ_i ‖y_i − Σ_l φ_l c_lᵀψ(x_i)‖²_{L²} + λ Ω(C)

    with random Fourier or Nyström features ψ of a kernel. It is kernel projection learning with the kernel ψ(x)ᵀψ(x'), at a cost
    that is linear in the number of rows.

    Parameters
    ----------
    dictionary, num_functions, output_matrix, kernel, lengthscale, lam, convention, loss, quadrature, fit_intercept, selection, scale,
    tolerance, max_iter, verbose
        As for `KernelProjectionRegressor`.
    features : {"orff", "nystrom"}, default="orff"
        Random Fourier features, or those of the kernel at random rows of X.
    num_features : int, default=200
        Number of features.
    penalty : {"coefficients", "function", "group"}, default="coefficients"
        Ω: "coefficients" is ‖C‖² (with B ≠ I, ‖C B^{−½}‖²), "function" Tr(C G Cᵀ), which does not depend on the scale of the
        functions (BO-83), and "group" Σ_l ‖c_l‖, which selects functions (BO-85). "group" has no band, and its λ is that of the
        objective above; several λ are compared by 5-fold cross-validation.
    random_state : int, RandomState instance or None, default=None
        Seed of the features and folds.

    Attributes
    ----------
    selected_ : ndarray of int
        Functions with weights other than 0 (`penalty="group"`).
    lam_max_ : float
        Smallest λ at which no function is selected (`penalty="group"`).
    path_lam_, path_error_, path_count_ : ndarray of shape (k,)
        λ, error of cross-validation and number of selected functions (`penalty="group"`, several λ).
    dictionary_, lam_, noise_, scale_, point_noise_, path_, coordinates_, latent_, gp_, posterior_, function_, gap_, fit_report_, grid_,
    domain_, mean_curve_, n_outputs_, output_names_, n_features_in_, feature_names_in_
        As for `KernelProjectionRegressor`.

    Notes
    -----
    Complexity: O(n q² + q³ + n m d) for q features and d functions. With the features of a smooth kernel, standard deviations far
    from the data are underestimated; they are bounded from below as those of `ORFFRidge`.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, grid = rng.uniform(0, 1, (60, 1)), np.linspace(0, 1, 30)
    >>> Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((60, 30))
    >>> model = ovkgp.FeatureProjectionRegressor("fourier", 21, penalty="group", lam=0.05, random_state=0).fit(X, Y, grid)
    >>> model.selected_  # the sine and cosine of one period
    array([1, 2])
    """

    description = Description(
        "feature projection learning of curves",
        "The model predicts a curve from features of the input and a dictionary of functions. With the square penalty it is the posterior mean of a Gaussian process, which provides bands.",
        "y(x)(θ) = Σ_l φ_l(θ) c_lᵀψ(x)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **{name: rule for name, rule in BASIS_CONSTRAINTS.items() if name != "curve_weighting"},
        **DICTIONARY_CONSTRAINTS,
        "features": [one_of(*FEATURES)],
        "num_features": [integer(2)],
        "penalty": [one_of(*PENALTIES)],
        "loss": LOSS,
        "tolerance": [FRACTION],
        "max_iter": [integer()],
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        dictionary="bsplines",
        num_functions=None,
        output_matrix=None,
        kernel="rbf",
        lengthscale="median",
        features="orff",
        num_features=200,
        lam=1e-3,
        convention="mean",
        penalty="coefficients",
        loss="square",
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        scale="evidence",
        tolerance=1e-6,
        max_iter=5000,
        random_state=None,
        verbose=0,
    ):
        self.dictionary = dictionary
        self.num_functions = num_functions
        self.output_matrix = output_matrix
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.features = features
        self.num_features = num_features
        self.lam = lam
        self.convention = convention
        self.penalty = penalty
        self.loss = loss
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> FeatureProjectionRegressor:
        """Fit the model.

        Parameters
        ----------
        X, y, grid
            As for `KernelProjectionRegressor.fit`; curves must be complete on a common grid.

        Returns
        -------
        self : FeatureProjectionRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid, is_robust(self.loss))
            if not data.is_complete:
                raise InputError(
                    "y must be complete on a common grid, got missing values or different points. Use KernelProjectionRegressor, or FunctionalData.resample."
                )
            self._seed = as_seed(self.random_state)
            self.dictionary_ = make_dictionary(self.dictionary, self.num_functions, data)
            Phi, weights = self.dictionary_(data.grid), data.weights(self.quadrature)
            gram = (Phi * weights[:, None]).T @ Phi
            if self.penalty == "group":
                self._select_functions(X, data, Phi * weights[:, None], gram)
                return self
            matrix = check_output_matrix(self.output_matrix, len(gram))
            if self.penalty == "function":
                matrix = pseudo_inverse(gram)
            factor = self.dictionary_.as_factor(matrix)
            coordinates = observed_coordinates(factor, data, self.quadrature)
            projected = project_curves(coordinates, data, self.quadrature)
            fit_projected(self, X, data, coordinates, projected, partial(self._make_latent, coordinates.variances))
            if self.loss != "square":
                inputs = self._make_factor(self._input_kernel, X)
                fit_loss(self, X, data, inputs, factor, partial(IntegralLoss, self.loss), weighting="equal")
        return self

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_loss(self.loss)
        if self.penalty != "coefficients" and self.output_matrix is not None:
            raise OptionError(
                f'output_matrix is not supported with penalty="{self.penalty}". Use penalty="coefficients".'
            )
        if self.penalty == "group" and self.loss != "square":
            raise OptionError('loss is not supported with penalty="group". Use loss="square".')
        if self.penalty == "group" and self.convention != "mean":
            raise OptionError(f'convention="{self.convention}" is not supported with penalty="group". Use "mean".')

    def _make_latent(self, variances: np.ndarray, noise: float) -> RidgeEstimator:
        """Make the ridge regression of coordinates with prior variances (ρ,)."""
        options = {
            "base_kernel": self.kernel,
            "lengthscale": self.lengthscale,
            "output_matrix": np.diag(variances),
            "lam": noise,
            "random_state": self._seed,
            "verbose": self.verbose,
        }
        if self.features == "nystrom":
            return NystromRidge(num_landmarks=self.num_features, **options)
        return ORFFRidge(num_frequencies=(self.num_features + 1) // 2, **options)

    def _make_factor(self, scalar, X: np.ndarray):
        """Make the input features of a scalar kernel."""
        if self.features == "nystrom":
            return KernelFactor(scalar, to_tensor(draw_distinct_rows(X, self.num_features, self._seed)))
        return FeatureFactor(random_features(scalar, X.shape[1], (self.num_features + 1) // 2, self._seed))

    def _select_functions(self, X: np.ndarray, data: FunctionalData, weighted: np.ndarray, gram: np.ndarray) -> None:
        """Fit weights with the group penalty."""
        scalar = CurveRidge(self.kernel, self.lengthscale).make_kernel(X)
        inputs = self._make_factor(scalar, X)
        rows, V = factor_rows(inputs, X), data.values @ weighted
        norms = np.square(data.values) @ data.weights(self.quadrature)
        problem = GroupLassoProblem.from_rows(rows, V, gram, norms.sum(), SMALL_RIDGE)
        self.lam_max_, lams = problem.lam_max, check_lam(self.lam)
        if len(lams) > 1:
            self._cross_validate(rows, V, gram, norms, lams)
        self.lam_ = float(lams[np.argmin(self.path_error_)] if len(lams) > 1 else lams[0])
        found = solve_group_lasso(problem, self.lam_, tolerance=self.tolerance, max_iter=self.max_iter)
        self.selected_, self.gap_ = found.selected, found.gap
        if not found.gap <= self.tolerance:
            warnings.warn(
                f"The selection of functions stopped after max_iter={self.max_iter} steps with a relative duality gap of {found.gap:.1e}. "
                "Increase max_iter or tolerance.",
                FitWarning,
                stacklevel=3,
            )
        if len(found.selected):
            factor = self.dictionary_.subset(found.selected).as_factor()
            self.function_ = CurveFunction(inputs, factor, found.weights[:, found.selected])
        else:
            factor = self.dictionary_.subset([0]).as_factor()
            self.function_ = CurveFunction(inputs, factor, np.zeros((rows.shape[1], 1)))
        self._iterations = found.iterations

    def _cross_validate(
        self, rows: np.ndarray, V: np.ndarray, gram: np.ndarray, norms: np.ndarray, lams: np.ndarray
    ) -> None:
        """Compute the error of several λ by cross-validation over curves."""
        folds = draw_folds(len(rows), self._seed)
        errors, counts = np.zeros(len(lams)), np.zeros(len(lams))
        for fold in np.unique(folds):
            train, test = folds != fold, folds == fold
            problem = GroupLassoProblem.from_rows(rows[train], V[train], gram, norms[train].sum(), SMALL_RIDGE)
            held_out = GroupLassoProblem.from_rows(rows[test], V[test], gram, norms[test].sum())
            found = group_lasso_path(problem, lams, tolerance=max(self.tolerance, 1e-4), max_iter=self.max_iter)
            errors += [held_out.risk(one.weights) * test.sum() for one in found]
            counts += [len(one.selected) / len(np.unique(folds)) for one in found]
        self.path_lam_, self.path_error_, self.path_count_ = lams, errors / len(rows), counts

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver; 1 for direct ones."""
        return max(self._iterations, 1) if self.penalty == "group" else super().n_iter_


def draw_distinct_rows(X: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw at most `count` distinct rows at random."""
    distinct = np.unique(X, axis=0)
    order = np.random.default_rng(seed).permutation(len(distinct))
    return distinct[np.sort(order[:count])]


@storable(*RIDGE_ATTRIBUTES, builder=RIDGE_BUILDER)
class NystromRidge(RidgeEstimator):
    """Ridge regression on the features of a kernel at `num_landmarks` random rows (BO-20), for one λ."""

    kernel, convention, scale, output_metric = "auto", "sum", "given", None

    def __init__(
        self,
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        lam=1.0,
        num_landmarks=200,
        random_state=None,
        verbose=0,
    ):
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.lam = lam
        self.num_landmarks = num_landmarks
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y) -> NystromRidge:
        """Fit the model to X (n, d) and complete outputs (n, p)."""
        data = self._check_first_rows(X, y, None)
        self.kernel_ = name_structure(self.kernel)
        self.scaling_ = Scaling.none(data.X.shape[1], data.Y.shape[1])
        self._counts = data.num_rows, data.num_observed
        self.lam_ = self.noise_ = self.lam
        self._kernel = ridge_kernel(self, data.X, data.Y)
        landmarks = to_tensor(draw_distinct_rows(data.X, self.num_landmarks, as_seed(self.random_state)))
        self.gp_ = make_ridge_gp(self._kernel, self.noise_, None, Nystrom(self._kernel, landmarks))
        parts = shown_parts(weighted_table(data, self.noise_), self.verbose)
        self.posterior_ = self.gp_.condition(accumulate_statistics(self.gp_, self.scaling_, parts), variance="guarded")
        return self
