"""`TripleBasisRegressor` (3BE, 1BE) and `KernelAdditiveRegressor` (KAM), baselines with a basis of output functions (BO-52, 53, 55)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_array, check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import POSITIVE, RANDOM_STATE, integer, one_of, restore_on_error
from ovkgp.estimators.common.task_options import TASK_LENGTHSCALE, task_kernel
from ovkgp.estimators.common.validation import MAX_SIZE
from ovkgp.estimators.functional.basis_ridge import (
    BASIS_ATTRIBUTES,
    BASIS_CONSTRAINTS,
    BasisRegressor,
    CurveRidge,
    fit_entries,
    fit_projected,
    make_exact,
)
from ovkgp.estimators.functional.coordinates import (
    CurveCoordinates,
    ProjectedCurves,
    observed_coordinates,
    project_curves,
    project_plug_in,
)
from ovkgp.estimators.functional.curve_problem import factor_rows, to_tensor
from ovkgp.estimators.functional.kernel_projection import METHODS
from ovkgp.estimators.functional.options import DICTIONARIES, make_dictionary
from ovkgp.estimators.ridge.base import RidgeEstimator
from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError
from ovkgp.functional import Dictionary, FunctionalData, PrincipalComponents
from ovkgp.functional.factors import KernelFactor
from ovkgp.functional.quadrature import as_points, quadrature_weights
from ovkgp.inference.algebra.dense import DenseSolver
from ovkgp.kernels import components
from ovkgp.kernels.curves import AdditiveCurveKernel

CONSTRAINTS = {name: rule for name, rule in BASIS_CONSTRAINTS.items() if name != "curve_weighting"}


LENGTHSCALE_FRACTION = 0.1  # default lengthscales of the additive model, relative to domains and ranges


def complete_curves(data: FunctionalData, grid: np.ndarray) -> FunctionalData:
    """Return complete curves, on their common grid or interpolated linearly on another."""
    return data if data.is_complete else data.resample(grid, extrapolate=True)


def input_curves(X: np.ndarray, grid: np.ndarray | None, domain: np.ndarray | None) -> FunctionalData:
    """Return inputs (n, t) as curves on a grid, or on equidistant points of [0, 1]."""
    return FunctionalData(X, np.linspace(0.0, 1.0, X.shape[1]) if grid is None else grid, domain)


@storable(*BASIS_ATTRIBUTES, "dictionary_", "input_dictionary_", "_seed", optional=("path_",), parts=("latent_",))
class TripleBasisRegressor(BasisRegressor):
    """Independent ridge regressions of coefficients in an orthonormal basis on those of the input curve (3BE, BO-52).

    Parameters
    ----------
    input_dictionary : {"bsplines", "fourier", "pca"}, Dictionary or None, default="fourier"
        Functions whose inner products with the input curves are the inputs of the regression. If None, the inputs themselves.
    num_input_functions : int or None, default=None
        Number of functions of an input dictionary by name.
    dictionary, num_functions : as `input_dictionary` without None, and int or None, default="fourier", None
        Output functions, which are made orthonormal.
    features : {"orff", "kernel"}, default="orff"
        "orff": random Fourier features (3BE). "kernel": the kernel itself; without an input dictionary this is the single basis
        estimator (1BE, BO-53).
    num_features : int, default=200
        Number of random features.
    method : {"exact", "plug_in"}, default="exact"
        "exact": least squares coefficients, so that output functions are orthonormal at the points of the curves. "plug_in": averages
        over the points of functions that are orthonormal in L², as in the source (BO-52), which are less accurate on grids with both
        ends or few points, and with gaps.
    kernel, lengthscale, lam, convention, quadrature, fit_intercept, selection, scale, verbose
        As for `KernelProjectionRegressor`. The source ran convention="sum" (BO-E-14).
    random_state : int, RandomState instance or None, default=None
        Seed of the features.

    Attributes
    ----------
    dictionary_, input_dictionary_ : Dictionary
        Orthonormal output functions, and input functions or None.
    lam_, noise_, scale_, point_noise_, path_, coordinates_, latent_, gp_, posterior_, grid_, domain_, mean_curve_, n_outputs_,
    output_names_, n_features_in_, feature_names_in_
        As for `KernelProjectionRegressor`.

    Notes
    -----
    With `method="exact"` curves with gaps or at different points enter by their observed values, with equal noise; the prior of the coefficients
    is the same. "plug_in" interpolates them linearly. Complexity: O(n q² + q³) for q features, O(n³) for the kernel; with gaps as
    `KernelProjectionRegressor`.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> phase, grid = rng.uniform(0, 1, (50, 1)), np.linspace(0, 1, 30)
    >>> X, Y = np.cos(2 * np.pi * (grid + phase)), np.sin(2 * np.pi * (grid + phase)) ** 3
    >>> ovkgp.TripleBasisRegressor(lam=1e-5, random_state=0).fit(X, Y, grid).score(X, Y) > 0.9
    True
    """

    description = Description(
        "triple basis estimator of curves",
        "The model predicts the coefficients of a curve in an orthonormal basis by ridge regressions on the coefficients of the input curve.",
        "y(x)(θ) = Σ_l φ_l(θ) w_lᵀz(⟨ψ, x⟩)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **CONSTRAINTS,
        "input_dictionary": [one_of(*DICTIONARIES), Dictionary, None],
        "num_input_functions": [integer(), None],
        "dictionary": [one_of(*DICTIONARIES), Dictionary],
        "num_functions": [integer(), None],
        "features": [one_of("orff", "kernel")],
        "num_features": [integer(2)],
        "method": [one_of(*METHODS)],
        "random_state": RANDOM_STATE,
    }

    def __init__(
        self,
        input_dictionary="fourier",
        num_input_functions=None,
        dictionary="fourier",
        num_functions=None,
        features="orff",
        num_features=200,
        method="exact",
        kernel="rbf",
        lengthscale="median",
        lam=1e-3,
        convention="mean",
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        scale="evidence",
        random_state=None,
        verbose=0,
    ):
        self.input_dictionary = input_dictionary
        self.num_input_functions = num_input_functions
        self.dictionary = dictionary
        self.num_functions = num_functions
        self.features = features
        self.num_features = num_features
        self.method = method
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.lam = lam
        self.convention = convention
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> TripleBasisRegressor:
        """Fit the model.

        Parameters
        ----------
        X, y, grid
            As for `KernelProjectionRegressor.fit`.

        Returns
        -------
        self : TripleBasisRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, observed = self._enter_curves(X, y, grid)
            data, self._seed = complete_curves(observed, self.grid_), as_seed(self.random_state)
            self.input_dictionary_ = None
            if self.input_dictionary is not None:
                curves = input_curves(X, self._input_grid, self._input_domain)
                self.input_dictionary_ = make_dictionary(self.input_dictionary, self.num_input_functions, curves)
            self.dictionary_ = make_dictionary(self.dictionary, self.num_functions, data).orthonormalize()
            factor, size = self.dictionary_.as_factor(), self.dictionary_.num_functions
            if self.method == "plug_in":  # orthonormal in L² of the uniform probability measure
                coordinates = CurveCoordinates(factor, np.sqrt(self.dictionary_.volume) * np.eye(size), np.ones(size))
                projected = project_plug_in(coordinates, data, self.quadrature)
            else:  # orthonormal at the points of the curves, with prior variances 1
                coordinates = observed_coordinates(factor, observed, self.quadrature)
                coordinates = replace(coordinates, variances=np.ones_like(coordinates.variances), has_residual=False)
                if not observed.is_complete:
                    fit_entries(self, self._regressors(X), observed, coordinates, self._make_irregular(), "points")
                    return self
                projected = project_curves(coordinates, data, self.quadrature)
            fit_projected(self, self._regressors(X), data, coordinates, projected, self._make_latent)
        return self

    def _make_latent(self, noise: float) -> RidgeEstimator:
        """Make the ridge regressions of coordinates with prior variances 1."""
        options = {"base_kernel": self.kernel, "lengthscale": self.lengthscale, "lam": noise, "verbose": self.verbose}
        if self.features == "kernel":
            return OVKRidge(**options)
        return ORFFRidge(num_frequencies=(self.num_features + 1) // 2, random_state=self._seed, **options)

    def _make_irregular(self) -> CurveRidge:
        """Make the posterior of coordinates of curves with gaps or at different points, with the same kernel."""
        if self.features == "kernel":
            return CurveRidge(self.kernel, self.lengthscale)
        count = (self.num_features + 1) // 2
        return CurveRidge(self.kernel, self.lengthscale, num_frequencies=count, random_state=self._seed)

    def _check_inputs(self, X) -> np.ndarray:
        return self._regressors(super()._check_inputs(X))

    def _regressors(self, X: np.ndarray) -> np.ndarray:
        """Return the inputs of the regression: inner products of the input curves with the input functions."""
        if self.input_dictionary_ is None:
            return X
        return self.input_dictionary_.inner(input_curves(X, self._input_grid, self._input_domain))


@storable(*BASIS_ATTRIBUTES, "dictionary_", optional=("path_",), parts=("latent_",))
class KernelAdditiveRegressor(BasisRegressor):
    """Kernel additive model: curves y(θ) = ∫ h(θ, ξ, x(ξ)) dξ of input curves x (KAM, BO-55).

    Observations are coefficients of y in its principal components φ_l; h is a Gaussian process with the covariance κ_Θ(θ, θ')
    κ_Ξ(ξ, ξ') exp(−(u − u')²/2ℓ²).

    Parameters
    ----------
    num_functions : int, default=20
        Maximum number of principal components.
    position_lengthscale, value_lengthscale : float or None, default=None
        Lengthscales of κ_Ξ, in the units of the input grid, and of the values of x. If None, a tenth of the domain of x, and of the
        range of its values.
    output_lengthscale : "median", "quantile_0.2", float or None, default=None
        Lengthscale of κ_Θ by name. If None, a tenth of the domain of y.
    position_kernel : {"rbf", "laplace"}, default="rbf"
        κ_Ξ.
    output_kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        κ_Θ.
    lam, convention, quadrature, fit_intercept, selection, scale, verbose
        As for `KernelProjectionRegressor`. The source ran convention="sum" (BO-E-15).

    Attributes
    ----------
    dictionary_ : PrincipalComponents
        φ.
    lam_, noise_, scale_, point_noise_, path_, coordinates_, latent_, gp_, posterior_, grid_, domain_, mean_curve_, n_outputs_,
    output_names_, n_features_in_, feature_names_in_
        As for `KernelProjectionRegressor`.

    Notes
    -----
    Complexity: O(n² t²) kernel evaluations for t points of the input curves, O(n³ + d³) to solve, O(n t²) per predicted curve.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> phase, grid = rng.uniform(0, 1, (40, 1)), np.linspace(0, 1, 20)
    >>> X, Y = np.cos(2 * np.pi * (grid + phase)), np.sin(2 * np.pi * (grid + phase))
    >>> model = ovkgp.KernelAdditiveRegressor(value_lengthscale=0.5, lam=1e-6).fit(X, Y, grid)
    >>> model.score(X, Y) > 0.9
    True
    """

    description = Description(
        "kernel additive model of curves",
        "The model predicts a curve as the integral of a function of the position, the position of the input curve and its value there, which is a Gaussian process.",
        "y(θ) = ∫ h(θ, ξ, x(ξ)) dξ,   h ~ GP(0, s^2 κ_Θ κ_Ξ κ_U)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **{name: rule for name, rule in CONSTRAINTS.items() if name not in ("kernel", "lengthscale")},
        "num_functions": [integer()],
        "position_lengthscale": [POSITIVE, None],
        "value_lengthscale": [POSITIVE, None],
        "output_lengthscale": [*TASK_LENGTHSCALE, None],
        "position_kernel": [one_of("rbf", "laplace")],
        "output_kernel": BASE_KERNEL,
    }
    lengthscale = "median"  # that of the kernel object

    def __init__(
        self,
        num_functions=20,
        position_lengthscale=None,
        value_lengthscale=None,
        output_lengthscale=None,
        position_kernel="rbf",
        output_kernel="rbf",
        lam=1e-3,
        convention="mean",
        quadrature="mean",
        fit_intercept=True,
        selection="loo",
        scale="evidence",
        verbose=0,
    ):
        self.num_functions = num_functions
        self.position_lengthscale = position_lengthscale
        self.value_lengthscale = value_lengthscale
        self.output_lengthscale = output_lengthscale
        self.position_kernel = position_kernel
        self.output_kernel = output_kernel
        self.lam = lam
        self.convention = convention
        self.quadrature = quadrature
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.verbose = verbose

    def fit(self, X, y, grid=None) -> KernelAdditiveRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, t) or FunctionalData
            Input curves, on equidistant points of [0, 1] unless they have a grid.
        y, grid
            As for `KernelProjectionRegressor.fit`; gaps are interpolated linearly.

        Returns
        -------
        self : KernelAdditiveRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, data = self._enter_curves(X, y, grid)
            data = complete_curves(data, self.grid_)
            if data.num_dims > 1:
                raise InputError(
                    f"y must be curves on an interval, got {data.num_dims} dimensions. Use FunctionalRidge."
                )
            if not 1 / MAX_SIZE <= data.volume <= MAX_SIZE:
                raise InputError(
                    f"The width of the domain must lie between {1 / MAX_SIZE:g} and {MAX_SIZE:g}, got {data.volume:g}. Measure grid in another unit."
                )
            points, weights = data.grid[:, None], data.weights(self.quadrature)
            self.dictionary_ = self._components(data)
            Phi = self.dictionary_(data.grid) * np.sqrt(self.dictionary_.volume)
            length = self.output_lengthscale
            length = _fraction(None, data.domain) if length is None else length
            kernel = task_kernel(self.output_kernel, length, to_tensor(points), "output_kernel")
            factor = KernelFactor(kernel, to_tensor(points))
            moments = factor_rows(factor, points).T @ (weights[:, None] * Phi)  # ∫ ψ φ_l
            values, vectors = np.linalg.eigh(moments.T @ moments)
            keep = values > 1e-12 * values[-1]
            values, vectors = values[keep], vectors[:, keep]
            curves = input_curves(X, self._input_grid, self._input_domain)
            additive = AdditiveCurveKernel(
                torch.from_numpy(curves.grid).double(),
                torch.from_numpy(quadrature_weights(curves.grid, curves.domain)).double(),
                _fraction(self.position_lengthscale, curves.domain),
                self.position_kernel,
            ).double()
            additive.lengthscale = torch.tensor(_fraction(self.value_lengthscale, X), dtype=torch.float64)
            coordinates = CurveCoordinates(factor, moments @ vectors / values, values)
            projected = ProjectedCurves.without_rest(data.values @ (weights[:, None] * Phi @ vectors))
            fit_projected(self, X, data, coordinates, projected, partial(make_exact, self, additive, values))
        return self

    def predict_surface(self, points, positions, values, return_std=False):
        """Predict the function h(θ, ξ, u) whose integral along a curve is its effect, without the mean curve.

        Parameters
        ----------
        points, positions, values : array-like
            Points θ of the output curves, positions ξ along the input curves and their values u, of shapes that can be broadcast.
        return_std : bool, default=False
            Whether to return the standard deviation.

        Returns
        -------
        mean : ndarray of the common shape
            Posterior mean of h.
        std : ndarray of the same shape
            Posterior standard deviation, if `return_std`.
        """
        check_is_fitted(self, "latent_")
        arrays = [
            check_array(np.atleast_1d(one), ensure_2d=False, allow_nd=True, dtype=np.float64)
            for one in (points, positions, values)
        ]
        try:
            points, positions, values = np.broadcast_arrays(*arrays)
        except ValueError:
            raise InputError(
                f"points, positions and values must have shapes that can be broadcast, got {[one.shape for one in arrays]}."
            ) from None
        posterior, theta = self.posterior_, as_points(points.ravel(), self.domain_, "points")
        ((additive, _),) = components(self.gp_.kernel)
        rows, solver = self.coordinates_.rows(theta), posterior.solver
        with torch.no_grad():
            cross = additive.with_surface(*map(to_tensor, (positions.ravel(), values.ravel())), posterior.data.X)
            effects = (cross @ solver.alpha.reshape(len(posterior.data.X), -1)).numpy()
            if isinstance(solver, DenseSolver):
                cross = torch.kron(cross, torch.diag(to_tensor(self.coordinates_.variances)))
            explained = solver.explained(cross, "diag").reshape(len(theta), -1).numpy()
            prior = self.coordinates_.factor.kernel(to_tensor(theta), diag=True).numpy()
        mean = (effects * rows) @ self.coordinates_.variances
        variance = self.scale_ * np.clip(prior - (np.square(rows) * explained).sum(1), 0.0, None)
        mean = mean.reshape(points.shape)
        return (mean, np.sqrt(variance).reshape(points.shape)) if return_std else mean

    def _components(self, data: FunctionalData) -> Dictionary:
        count = min(self.num_functions, len(data) - 1, data.num_points)
        if count < 1 or data.num_points < 2:
            return make_dictionary("bsplines", 1, data)
        return PrincipalComponents(data, count)


def _fraction(lengthscale: float | None, values: np.ndarray) -> float:
    """Return a lengthscale; if None, a tenth of the range of values, or 1 if they are equal."""
    return float(lengthscale or LENGTHSCALE_FRACTION * np.ptp(values) or 1.0)
