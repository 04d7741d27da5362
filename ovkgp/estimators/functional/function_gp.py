"""`FunctionGPRegressor`: curves as outputs, with bands, from complete, partly observed or irregularly sampled curves."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_integer, check_probability
from ovkgp.criticism.predictive_distributions import PredictiveDistribution
from ovkgp.estimators.common.base import INPUT_ATTRIBUTES, TableRegressor
from ovkgp.estimators.common.descriptions import NO_LEAVE_ONE_OUT, Description
from ovkgp.estimators.common.fit_checks import warn_about_rows
from ovkgp.estimators.common.options import (
    POSITIVE,
    RANDOM_STATE,
    VERBOSE,
    integer,
    names_in,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.prediction_columns import DEFAULT_INTERVAL_LEVEL, PredictionColumns, PredictionRequest
from ovkgp.estimators.common.summary import Hyperparameter, Summary, summarize_facts
from ovkgp.estimators.common.validation import check_size
from ovkgp.estimators.functional.curve_protocol import BasisFunctions, CurveDraws, CurveEstimator
from ovkgp.estimators.functional.curve_scaling import CurveScaling, list_hyperparameters
from ovkgp.estimators.functional.curve_tables import CurveInputs, CurveOutputs, read_curves
from ovkgp.estimators.functional.curve_training import (
    KERNEL_OPTIONS,
    OUTPUT_BASES,
    FittedCurves,
    fit_curves,
    has_kernel_object,
    list_kernel_options,
    restore_curves,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import DomainError, OptionError
from ovkgp.functional import Dictionary, FunctionalData
from ovkgp.functional.point_names import name_points
from ovkgp.functional.quadrature import DOMAIN_TOLERANCE, as_points, describe_domain
from ovkgp.inference.stacking.curve_candidates import CurveData
from ovkgp.inference.training.log_posterior import named_values
from ovkgp.kernels.records import named_kernels

MAX_CURVE_SIZE = 1e70  # largest absolute value of curves in original units, whose variances are multiplied
UNITS = "those of `scaling_`; the methods of the estimator use original units"  # of `posterior_`


def _restore(estimator: FunctionGPRegressor) -> None:
    """Condition the models of a loaded estimator on the stored curves."""
    estimator._set_fitted(restore_curves(estimator._parts, estimator.weights_, estimator._data))


@storable(
    *("n_features_in_", "n_outputs_", "output_names_", "_is_flat", "_has_names", "grid_", "domain_", "scaling_"),
    *("weights_", "scores_", "fit_report_", "_parts", "_data", "_outputs_format", "_inputs_format"),
    optional=("draws_",),
    finish=_restore,
)
class FunctionGPRegressor(CurveEstimator, TableRegressor):
    """Gaussian-process regression of whole curves on vectors or curves, with bands around every predicted curve.

        y_i(θ) = m(θ) + f(x_i, θ) + δ_i(θ) + ε_i(θ),   f ~ GP(0, k_X ⊗ k_Θ),   δ_i ~ GP(0, k'_Θ),   ε white

    Curves share the smooth function f of their inputs; each deviates from it smoothly by δ_i. This model treats missing values and
    curves observed at different points exactly; "pca" fills them in by their expectation under it. By default, models with several
    kernels are mixed, with weights by the density of held-out curves; where the standard deviation of 20 or more curves varies along
    the domain by more than a factor of 2, also a model of the curves divided by a smooth curve of standard deviations.

    Parameters
    ----------
    output_basis : {"auto", "kernel", "pca", "shared"} or dictionary, default="auto"
        Model of the curves. "kernel" is the model above. "pca" has one Gaussian process per principal component, each with its own
        lengthscales, and adds the truncation error to the variance. "shared" gives all grid points one kernel of the inputs, for
        emulators with thousands of outputs. A dictionary of `ovkgp.functional` is a fixed basis, k_Θ(θ, θ') = φ(θ)ᵀBφ(θ').
        "auto" mixes "kernel" and, for complete curves or few missing values, "pca" and "shared"; beyond 1000 values per curve only
        the latter two, which do not predict derivatives. Given `kernel`, `task_kernel`, `noise` or `hyperparameters`, "auto" is
        "kernel", since the others do not have these options.
    kernel : {"auto", "matern52", "rbf", "rq", …} or Kernel, default="auto"
        Kernel k_X of the inputs, with a linear term and one lengthscale per input if it is given by name. "auto" mixes models with
        Matérn and rational quadratic kernels. Kernel objects are copied and in original units: their values, priors and
        constraints are, and what they read is not scaled. Curves are then centered by their mean curve, but not scaled.
    task_kernel : {"auto", "matern52", "rbf", "matern32", …} or Kernel, default="auto"
        Kernel k_Θ of the domain, and of the deviations; kernel objects as for `kernel`. The prior variance of f is the product
        of those of both kernels: give an outputscale to one of them. If no kernel object has one, k_X gets one.
    deviations : {"auto"} or bool, default="auto"
        Whether curves deviate smoothly from f. "auto" mixes models with and without.
    noise : {"constant", "varying"} or float, default="constant"
        White noise; "varying" lets its variance relative to f vary smoothly along the domain. A number is a fixed variance.
    hyperparameters : {"evidence", "laplace", "svi", "nuts", "fixed"}, default="evidence"
        How hyperparameters are inferred: at the mode ("evidence"), or averaged over draws of their posterior. "fixed" uses given
        kernels and noise in original units, without centering. Those of principal components are always averaged where draws are
        affordable.
    num_components : int or None, default=None
        Number of principal components. If None, as many as explain 99.5 % of the variance, at most 12.
    max_draws : int, default=8
        Maximum number of hyperparameter draws per model.
    random_state : int, RandomState instance or None, default=None
        Seed of hyperparameter draws.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    grid_ : ndarray of shape (m,) or (m, b)
        Points at which curves are predicted by default, with those where no curve was observed.
    domain_ : ndarray of shape (b, 2)
        Ends of the domain.
    weights_ : ndarray of shape (K,)
        Weights of the models in the mixture.
    scores_ : dict
        Mean log density of held-out values by model, in original units, and its weight.
    scaling_ : CurveScaling
        Mean curve, and scales of inputs, points and channels.
    gp_, posterior_ : OperatorValuedGP, Posterior
        Model with the largest weight among those with a kernel of the domain, in the units of `scaling_` (divided curves, if its variance changes along the domain), and its posterior on the grid.
    fit_report_ : FitReport
        Report of its training.

    Notes
    -----
    On a grid of m points the covariance is K_X ⊗ K_Θ + I ⊗ (K'_Θ + σ²I): O(n³ + m³ + nm(n + m)) for complete curves, O(N³) for N ≤ 5000
    observed values of incomplete ones. Beyond, with more than 2000 missing values, f is expanded in r ≤ 250 functions of the domain: O(Σ m_i³ + n r²)
    for curves of m_i values; variances then use the 3000 weights of these functions with the largest prior influence. Up to 5 % missing values (30 %
    beyond 1000 values per curve) are imputed by principal components for training, and count as observed in "pca" and "shared", whose bands do not have the
    error of the imputation. Hyperparameters are trained on at most 300 curves and 120 points. One-dimensional grids whose largest
    spacing exceeds 5 times the median are warped by the ranks of their points. Between grid points, "pca" and "shared" interpolate by
    kriging, with its error. Curves are not aligned (registered).

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> grid, X = np.linspace(0, 1, 20), rng.uniform(-1, 1, (30, 1))
    >>> Y = np.sin(6 * grid + X) + 0.3 * rng.standard_normal((30, 1)) * grid + 0.05 * rng.standard_normal((30, 20))
    >>> Y[:5, 12:] = np.nan  # curves that were cut off
    >>> model = ovkgp.FunctionGPRegressor(output_basis="kernel").fit(X, Y, grid=grid)
    >>> mean, std = model.predict(X[:2], grid=np.linspace(0, 1, 50), return_std=True)
    >>> lower, upper = model.predict_interval(X[:2], level=0.9, simultaneous=True)
    >>> mean.shape, lower.shape, model.complete(X[:5], Y[:5]).shape
    ((2, 50), (2, 20), (5, 20))
    """

    has_predictive = True
    has_trained_hyperparameters = False
    calibration_note = NO_LEAVE_ONE_OUT
    parameter_note = "Hyperparameters of the kernel model with the largest weight, at the mode of their posterior."
    description = Description(
        "curves as outputs",
        "The model predicts a whole curve for each input, with smooth deviations of single curves and white noise. Its band contains the curve of a new row with the given probability.",
        "y(θ) = m(θ) + f(x, θ) + δ(θ) + ε(θ),   Cov f = k_X(x, x′) k_Θ(θ, θ′)",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "output_basis": [one_of("auto", *OUTPUT_BASES), Dictionary],
        "kernel": [one_of("auto"), names_in(named_kernels), Kernel],
        "task_kernel": [one_of("auto"), names_in(named_kernels), Kernel],
        "deviations": [one_of("auto"), "boolean"],
        "noise": [one_of("constant", "varying"), POSITIVE],
        "hyperparameters": [one_of("evidence", "laplace", "svi", "nuts", "fixed")],
        "num_components": [integer(), None],
        "max_draws": [integer()],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

    def __init__(
        self,
        output_basis="auto",
        kernel="auto",
        task_kernel="auto",
        deviations="auto",
        noise="constant",
        hyperparameters="evidence",
        num_components=None,
        max_draws=8,
        random_state=None,
        verbose=0,
    ):
        self.output_basis = output_basis
        self.kernel = kernel
        self.task_kernel = task_kernel
        self.deviations = deviations
        self.noise = noise
        self.hyperparameters = hyperparameters
        self.num_components = num_components
        self.max_draws = max_draws
        self.random_state = random_state
        self.verbose = verbose

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if self.hyperparameters == "fixed":
            given = isinstance(self.kernel, Kernel), isinstance(self.noise, Real)
            has_basis = isinstance(self.task_kernel, Kernel) or isinstance(self.output_basis, Dictionary)
            if not (all(given) and has_basis):
                raise OptionError(
                    'hyperparameters="fixed" needs a kernel object, a number as noise, and a task_kernel object or a dictionary as output_basis.'
                )
        elif isinstance(self.noise, Real):
            raise OptionError('noise must be "constant" or "varying" unless hyperparameters="fixed".')
        if self.output_basis in ("pca", "shared") and (unused := list_kernel_options(self, *KERNEL_OPTIONS)):
            supported = ["num_components"] if self.output_basis == "pca" else []
            listed = " and ".join(f"{name}={getattr(self, name)!r}" for name in unused)
            raise OptionError(
                f'{listed} is not supported with output_basis="{self.output_basis}", which has the options {", ".join([*supported, "random_state", "verbose"])}. Use output_basis="kernel".'
            )

    def fit(self, X, y, grid=None, groups=None) -> FunctionGPRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d), FunctionalData, or array of shape (n, g, q)
            Inputs: vectors, or curves at g points with q channels. Curves are reduced to the scores of their principal components.
        y : array-like of shape (n, m), (n, m, q) or (n,), or FunctionalData
            Values of the curves at the grid, NaN where missing, with q channels; functional data may have different points for
            each curve.
        grid : array-like of shape (m,) or (m, b), or None, default=None
            Points of the domain. If None, those of functional data, the increasing numbers or dates in the column names of a data
            frame ("depth_10"), or equidistant points on [0, 1] if there are none. Dates are days since 1970-01-01.
        groups : array-like of shape (n,) or None, default=None
            Labels of subjects with several curves, which share a subject-level term.

        Returns
        -------
        self : FunctionGPRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            inputs = CurveInputs.of(self, X, groups)
            curves = CurveOutputs.of(y, grid, len(inputs.table))
            warn_about_rows(inputs.table, curves.values)
            for name in [one for one in vars(self) if one.endswith("_") and one not in INPUT_ATTRIBUTES]:
                delattr(self, name)
            self._inputs_format, self._outputs_format = inputs.format, curves.format
            self.grid_, self.domain_ = curves.format.grid, curves.format.domain
            self._check_dictionary()
            self.output_names_, self._has_names, self._is_flat = curves.names, curves.has_names, curves.format.is_flat
            self.n_outputs_ = len(self.output_names_)
            is_fixed = self.hyperparameters == "fixed"
            arrays = inputs.table, curves.points, curves.values
            if has_kernel_object(self):
                check_size([inputs.table], "X")
                check_size([curves.points], "grid")
                for channel in np.moveaxis(curves.values, 2, 0):
                    check_size([channel], "y", MAX_CURVE_SIZE)
            scaled = {"scales_inputs": not isinstance(self.kernel, Kernel)}
            scaled["scales_points"] = not isinstance(self.task_kernel, Kernel)
            can_warp = not isinstance(self.output_basis, Dictionary)
            self.scaling_ = (
                CurveScaling.identity(*arrays) if is_fixed else CurveScaling.of(*arrays, can_warp=can_warp, **scaled)
            )
            self._data = CurveData(
                inputs.add_groups(self.scaling_.inputs(inputs.table)),
                self.scaling_.standardize(curves.values, curves.points),
                self.scaling_.points(curves.points),
                curves.values.shape[2],
            )
            fitted = fit_curves(self, self._data, has_groups=groups is not None)
            self.weights_, self.scores_, self._parts = fitted.weights, fitted.scores, fitted.parts
            self.fit_report_ = fitted.report
            if fitted.draws is not None:
                self.draws_ = fitted.draws
            self._set_fitted(fitted)
        return self

    def _check_dictionary(self) -> None:
        """Check that a dictionary is defined on the domain of the curves."""
        if not isinstance(self.output_basis, Dictionary):
            return
        domain = self.output_basis.domain
        if len(domain) != len(self.domain_):
            raise DomainError(
                f"output_basis has functions on R^{len(domain)}, expected R^{len(self.domain_)}, the dimension of grid."
            )
        slack = DOMAIN_TOLERANCE * np.ptp(domain, axis=1)
        if (self.domain_[:, 0] < domain[:, 0] - slack).any() or (self.domain_[:, 1] > domain[:, 1] + slack).any():
            raise DomainError(
                f"output_basis has functions on {describe_domain(domain)}, expected a domain that contains {describe_domain(self.domain_)}, that of the curves. Set the domain of the dictionary."
            )

    def _set_fitted(self, fitted: FittedCurves) -> None:
        self.mixture_, self.gp_, self.posterior_ = fitted.mixture, fitted.gp, fitted.posterior
        if self.posterior_ is not None:
            self.posterior_.units = UNITS

    def predict(self, X, grid=None, return_std=False, noise=True, derivative=0, groups=None):
        """Predict curves, or their first derivatives.

        Parameters
        ----------
        X : array-like of shape (k, d) or FunctionalData
            Inputs.
        grid : array-like of shape (M,) or (M, b), or None, default=None
            Points of the domain. If None, `grid_`.
        return_std : bool, default=False
            Whether to return the standard deviation.
        noise : bool, default=True
            Whether to describe a new curve, with its deviation and noise, or only f. Derivatives are without white noise.
        derivative : {0, 1}, default=0
            Order of the derivative along a one-dimensional domain.
        groups : array-like of shape (k,) or None, default=None
            Labels of the subjects, if the model was fitted with groups. If None, every row is a new subject.

        Returns
        -------
        mean : ndarray of shape (k, M) or (k, M, q), (k,) if y was one-dimensional
            Predicted curves.
        std : ndarray of the same shape
            Standard deviation, if `return_std`.
        """
        X, points, tasks = self._request(X, grid, groups)
        derivative = self._check_derivative(derivative)
        if not return_std:
            return self._shape(self.scaling_.values(self.mixture_.mean(X, tasks, derivative), points, derivative), grid)
        found = self.mixture_.predict(X, tasks, noise=bool(noise), derivative=derivative)
        mean = self._shape(self.scaling_.values(found.mean, points, derivative), grid)
        return mean, self._shape(self.scaling_.std(found.std, derivative, points), grid)

    def predict_interval(
        self, X, level=0.9, simultaneous=False, grid=None, noise=True, derivative=0, groups=None, random_state=0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict bands around curves.

        Parameters
        ----------
        X, grid, noise, derivative, groups
            See `predict`.
        level : float, default=0.9
            Probability that a band contains a value, or, if `simultaneous`, the whole curve at the points of the grid.
        simultaneous : bool, default=False
            Whether bands hold for all points and channels of a curve together.
        random_state : int, RandomState instance or None, default=0
            Seed of the draws from which simultaneous bands are computed.

        Returns
        -------
        lower, upper : ndarray of shape (k, M) or (k, M, q), (k,) if y was one-dimensional
            Ends of the bands.
        """
        level = check_probability("level", level)
        X, points, tasks = self._request(X, grid, groups)
        options = {"noise": bool(noise), "derivative": self._check_derivative(derivative)}
        if simultaneous:
            mean, std, factor = self.mixture_.band_factors(X, tasks, level, **options, random_state=random_state)
            ends = mean - factor * std, mean + factor * std
        else:
            ends = self.mixture_.predict(X, tasks, **options).interval(level)
        return tuple(self._shape(self.scaling_.values(end, points, options["derivative"]), grid) for end in ends)

    def sample_y(self, X, n_samples=1, grid=None, noise=True, derivative=0, groups=None, random_state=0) -> np.ndarray:
        """Sample whole curves jointly at all rows of X.

        Parameters
        ----------
        X, grid, noise, derivative, groups
            See `predict`.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed.

        Returns
        -------
        ndarray of shape (k, M, n_samples) or (k, M, q, n_samples), (k, n_samples) if y was one-dimensional
            Draws.
        """
        X, points, tasks = self._request(X, grid, groups)
        k, derivative = check_integer("n_samples", n_samples), self._check_derivative(derivative)
        draws = self.mixture_.sample(X, tasks, k, noise=bool(noise), derivative=derivative, random_state=random_state)
        values = self.scaling_.values(draws, points, derivative)  # (s, k, M, q)
        return np.moveaxis(np.stack([self._shape(one, grid) for one in values]), 0, -1)

    def sample_functions(self, k=1, random_state=None) -> CurveDraws:
        """Sample functions x ↦ (θ ↦ f(x, θ)) from the posterior, without deviations and noise.

        Parameters
        ----------
        k : int, default=1
            Number of functions.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        CurveDraws
            `draws(X, grid)` is (k, m, M) or (k, m, M, q), and `draws[i](X, grid)` is one of them, the same functions at every call.
        """
        check_is_fitted(self, "mixture_")
        draw = self.mixture_.sample_functions(check_integer("k", k), random_state=random_state)

        def evaluate(X, grid, index):
            X, points, tasks = self._request(X, grid, None)
            values = self.scaling_.values(draw(X, tasks, torch.from_numpy(index)), points)
            return np.stack([self._shape(one, grid) for one in values])

        return CurveDraws(evaluate, k)

    def complete(self, X, y, grid=None, observed_grid=None, return_std=False, noise=True, groups=None):
        """Continue partly observed curves: predict their other values given those observed.

        Each curve is conditioned on its own values, as if they were added to the training data.

        Parameters
        ----------
        X : array-like of shape (k, d) or FunctionalData
            Inputs of the curves.
        y : array-like of shape (k, m) or (k, m, q), or FunctionalData
            Observed values, NaN where not observed.
        grid : array-like of shape (M,) or (M, b), or None, default=None
            Points at which to predict. If None, `grid_`.
        observed_grid : array-like of shape (m,) or (m, b), or None, default=None
            Points of y. If None, those of functional data or in column names, or the grid of the fit.
        return_std : bool, default=False
            Whether to return the standard deviation.
        noise : bool, default=True
            Whether the standard deviation is that of a measurement, with white noise, or of the curve itself.
        groups : array-like of shape (k,) or None, default=None
            Labels of the subjects, see `predict`.

        Returns
        -------
        mean : ndarray of shape (k, M) or (k, M, q)
            Curves.
        std : ndarray of the same shape
            Standard deviation, if `return_std`.
        """
        X, points, tasks = self._request(X, grid, groups)
        values, observed = read_curves(self, y, observed_grid, len(X), self._num_channels())
        Y = self.scaling_.standardize(values, observed)
        found = self.mixture_.complete(X, tasks, Y, self.scaling_.points(observed), noise=bool(noise))
        mean = self._shape(self.scaling_.values(found.mean, points), grid)
        return (mean, self._shape(self.scaling_.std(found.std), grid)) if return_std else mean

    def _check_inputs(self, X) -> torch.Tensor:
        return self._request(X, None, None)[0]

    def _predict_mean(self, X: torch.Tensor, points: np.ndarray) -> np.ndarray:
        return self.scaling_.values(self.mixture_.mean(X, self.scaling_.points(points)), points)

    def _num_channels(self) -> int:
        return len(self.scaling_.output_scale)

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of the values of new curves at X (k, d) and `grid_`."""
        X, points, tasks = self._request(X, None, None)
        prediction = self.mixture_.predict(X, tasks, noise=True)

        def standard(Y: np.ndarray) -> torch.Tensor:
            return self.scaling_.standardize(np.reshape(Y, (len(Y), len(points), -1)), points)

        def cdf(Y: np.ndarray) -> np.ndarray:
            return prediction.cdf(standard(Y)).numpy()

        def log_density(Y: np.ndarray) -> np.ndarray:
            scale = np.tile(self.scaling_.output_scale, len(points))
            return prediction.log_density(standard(Y)).numpy() - np.log(scale)

        mean = self.scaling_.values(prediction.mean, points).reshape(len(X), -1)
        std = self.scaling_.std(prediction.std).reshape(len(X), -1)
        return PredictiveDistribution(mean, std, cdf, cdf, len(self.mixture_.weights) == 1, log_density)

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict mean, standard deviation and quantiles of each point and channel at X (k, d), on `grid_` or another grid."""
        request.reject_options("a regressor", "costs")
        inputs, names, pointwise = X, self._point_names(request.grid), request.for_pointwise_columns()
        X, points, tasks = self._request(inputs, request.grid, None)
        prediction = self.mixture_.predict(X, tasks, noise=not request.latent)
        mean = self.scaling_.values(prediction.mean, points).reshape(len(X), -1)
        std = self.scaling_.std(prediction.std).reshape(len(X), -1)
        quantiles = [self.scaling_.values(prediction.quantile(q), points).reshape(len(X), -1) for q in pointwise.levels]
        columns = pointwise.name_columns(
            names, mean, std, np.stack(quantiles) if quantiles else np.empty((0, *mean.shape))
        )
        if not request.simultaneous:
            return columns
        options = {"grid": request.grid, "noise": not request.latent, "simultaneous": True}
        ends = self.predict_interval(inputs, request.level or DEFAULT_INTERVAL_LEVEL, **options)
        return request.add_band(columns, names, *(end.reshape(len(X), -1) for end in ends))

    def _point_names(self, grid) -> list[str]:
        """Return the names of points and channels of a grid: the columns of the fit, or names in their style."""
        if grid is None:
            return self.output_names_
        q = len(self.scaling_.output_scale)
        names = name_points(
            self.output_names_ if self._has_names and q == 1 else None, as_points(grid, self.domain_, "grid")
        )
        return names if q == 1 else [f"{name}_{channel}" for name in names for channel in range(q)]

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the training rows X (n, d) and Y (n, m·q); None if curves were observed at different points."""
        check_is_fitted(self, "mixture_")
        if self._outputs_format.is_ragged or self._inputs_format.components is not None:
            return None
        X, curves = self.training_curves()
        return X, curves.values.reshape(len(X), -1)

    def training_curves(self) -> tuple[np.ndarray | FunctionalData, FunctionalData]:
        """Return inputs, of curves as inputs the projections on their principal components, and the curves of the fit."""
        check_is_fitted(self, "mixture_")
        scaling, form = self.scaling_, self._inputs_format
        X = self._data.X[:, : len(scaling.input_scale)].numpy() * scaling.input_scale + scaling.input_offset
        if form.components is not None:
            values = (X @ form.components + form.mean).reshape(len(X), len(form.grid), -1)
            X = FunctionalData(values if values.shape[2] > 1 else values[..., 0], form.grid)
        grid = self._outputs_format.training_grid
        values = scaling.values(self._data.Y.numpy(), as_points(grid, self.domain_, "grid"))
        values = values if self._outputs_format.has_channels else values[..., 0]
        if not self._outputs_format.is_ragged:
            return X, FunctionalData(values, grid, self.domain_).on_common_grid(self.grid_)
        masks = [np.isfinite(row).reshape(len(grid), -1).any(1) for row in values]
        rows = [row[mask] for row, mask in zip(values, masks, strict=True)]
        return X, FunctionalData(rows, [grid[mask] for mask in masks], self.domain_)

    def basis_functions(self) -> BasisFunctions | None:
        """Return the principal components, or the functions of a dictionary, if the model has them."""
        if isinstance(self.output_basis, Dictionary):
            return self._evaluate_basis(self.output_basis)
        states = [part for part in self._parts if hasattr(part, "components")]
        if not states or len(self.scaling_.output_scale) > 1:
            return None
        points = as_points(self._outputs_format.training_grid, self.domain_, "grid")
        return BasisFunctions("principal components", points, states[0].components.T)

    def model_weights(self) -> dict[str, float]:
        """Return the weights of the models in the mixture."""
        return {name: score.weight for name, score in self.scores_.items()}

    def list_parameters(self) -> list[Hyperparameter]:
        """List the hyperparameters of the kernel model with the largest weight, in original units."""
        check_is_fitted(self, "mixture_")
        if self.gp_ is None:
            return []
        has_groups = self._inputs_format.groups is not None
        return list_hyperparameters(self.gp_, self.scaling_, self.input_labels(), has_groups)

    def largest_lengthscale(self) -> float:
        """Return the largest lengthscale of the inputs in original units; the largest scale of an input if the model has none."""
        named = {} if self.gp_ is None else named_values(self.gp_)
        found = [
            value.max()
            for name, value in named.items()
            if name.startswith("input_kernel.") and name.endswith("lengthscale")
        ]
        return float(max(found, default=1.0) * self.scaling_.input_scale.max())

    def summary(self) -> Summary:
        """Return a text with the columns, the size and the training of the model, and the weights of its parts."""
        check_is_fitted(self, "mixture_")
        lines = [str(summarize_facts(self)), "models (log density per held-out value, weight):"]
        lines += [f"  {name}: {score.log_density:.3f}, {score.weight:.2f}" for name, score in self.scores_.items()]
        return Summary("\n".join(lines))

    def _request(self, X, grid, groups) -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
        """Return standardized inputs (k, d), points (M, b) in original units, and standardized points."""
        check_is_fitted(self, "mixture_")
        table = self._inputs_format.table(self, X)
        points = as_points(self.grid_ if grid is None else grid, self.domain_, "grid")
        X = self._inputs_format.add_groups(self.scaling_.inputs(table), groups)
        return X, points, self.scaling_.points(points)

    def _check_derivative(self, derivative) -> int:
        """Check the order of a derivative."""
        derivative = check_integer("derivative", derivative, 0)
        if derivative > 1:
            raise OptionError(f"derivative must be 0 or 1, got {derivative}.")
        if derivative and len(self.domain_) > 1:
            raise OptionError(
                f"derivative=1 is not supported on a domain in R^{len(self.domain_)}. Use differences of predictions."
            )
        return derivative

    def _shape(self, values: np.ndarray, grid) -> np.ndarray:
        """Return values (k, M, q) in the layout of y."""
        values = values if self._outputs_format.has_channels else values[..., 0]
        return values[:, 0] if self._is_flat and grid is None else values

    def _structure(self) -> str | None:
        return None

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags
