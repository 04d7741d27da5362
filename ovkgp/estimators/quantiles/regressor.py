"""`InfiniteQuantileRegressor`, quantile regression for all levels at once (LT-05, LT-51, BT-99..102).

    h = argmin (1/n) Σ_i ∫ ρ_θ(y_i − h(x_i)(θ)) dθ + (λ/2) ‖h − b‖²,      h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ),

is a function of input and level, so that any level can be predicted after the fit. With the prior W ~ N(0, I) and the
likelihood exp(−loss/λ) it is the posterior mode: a Gaussian process of quantile curves with mean b(θ) = s Φ⁻¹(θ).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_X_y, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.criticism.predictive_distributions import PredictiveDistribution
from ovkgp.estimators.common.base import INPUT_ATTRIBUTES, LENGTHSCALE
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.formatting import format_number
from ovkgp.estimators.common.options import restore_on_error
from ovkgp.estimators.common.prediction_columns import (
    DEFAULT_INTERVAL_LEVEL,
    DEFAULT_QUANTILES,
    PredictionColumns,
    PredictionRequest,
    quantile_suffix,
)
from ovkgp.estimators.common.summary import Hyperparameter, Summary, pluralize
from ovkgp.estimators.common.task_options import canonical_lam, list_input_lengthscales
from ovkgp.estimators.common.validation import (
    convert_output_times,
    input_table,
    output_names,
    raise_input_errors,
    warn_about_distant_rows,
)
from ovkgp.estimators.quantiles.conformal import calibrate_quantiles
from ovkgp.estimators.quantiles.deep import build_deep_model
from ovkgp.estimators.quantiles.model import (
    DEFAULT_LEVELS,
    REARRANGEMENT_LEVELS,
    QuantileModel,
    TaskSide,
    build_quantile_model,
    compute_curves,
    compute_replicate_std,
    compute_sandwich,
    compute_sandwich_std,
    cross_validate_lam,
    finite_levels,
    fit_replicates,
    make_task_side,
    rebuild_model,
    select_kernel,
    select_num_tasks,
    solve_quantiles,
)
from ovkgp.estimators.quantiles.options import QUANTILE_CONSTRAINTS, check_combinations, check_levels
from ovkgp.estimators.quantiles.posterior import QuantileDistribution, QuantilePosterior
from ovkgp.estimators.quantiles.rows import (
    PERCENTILES,
    Crossing,
    QuantileRows,
    d2_pinball,
    measure_crossing,
    pinball_losses,
)
from ovkgp.estimators.quantiles.summary import summarize_quantiles
from ovkgp.estimators.storage.storage import SavableMixin, storable
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.tasks.sandwich import Sandwich

MIN_ROWS_FOR_STD = 20  # number of rows below which standard deviations of the curves come with a warning


@storable(
    *("n_features_in_", "output_names_", "scaling_", "function_", "lam_", "gap_", "lengthscale_", "residual_scale_"),
    *("fit_report_", "measure_", "_data", "_seed"),
    optional=("lam_path_", "calibration_", "_replicates"),
)
class InfiniteQuantileRegressor(RegressorMixin, Estimator):
    """Quantile regression for a continuum of levels.

    Inputs and target are standardized internally; everything public is in original units.

    Parameters
    ----------
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the inputs. A scalar GPyTorch kernel is copied, not trained, and evaluated at inputs in original
        units.
    lengthscale : {"auto", "median"}, float, array-like of shape (d,) or LearnedKernel, default="auto"
        Lengthscale of a kernel by name, in standard deviations of the input columns. "auto" maximizes the evidence of a
        Gaussian process on at most 500 rows, with one lengthscale per column; "median" is the median distance between
        rows (LT-41). A `LearnedKernel`, the result of one training, can be shared by many fits.
    trend : {"auto", "linear", "quadratic"} or None, default="auto"
        Polynomial of the inputs in a kernel by name, sized by the evidence, for extrapolation. "auto" is "linear", or
        "quadratic" if the evidence for it is strong, if the lengthscale is "auto", and None otherwise.
    task_kernel, task_lengthscale : str or Kernel, float, "median" or "quantile_0.2", default="rbf", 0.3
        Kernel of the levels in [0, 1]. "quantile_0.2" is the .2-quantile of the distances between the nodes (LT-41). Larger lengthscales couple the levels more strongly.
    lam : float or "auto", default="auto"
        λ > 0; "auto" is 5-fold cross-validation of the loss along a path (`lam_path_`).
    convention : {"samples", "stability"}, default="samples"
        Meaning of a number λ: "samples" is (λ/2) ‖h − b‖², "stability" λ ‖h − b‖².
    coupling : {"infinite", "joint", "independent"}, default="infinite"
        "infinite" learns all levels. The others learn and predict finitely many `levels`: "joint" with the task kernel
        between them (LT-03, BT-106), "independent" without coupling.
    levels : array-like or None, default=None
        Levels in (0, 1) of the finite couplings. If None, 0.1, 0.3, 0.5, 0.7 and 0.9.
    num_tasks : int or "auto", default="auto"
        Number m of nodes of the integral over the levels; "auto" is √n, at least 10 and at most 50 (LT-137).
    measure : {"gauss_legendre", "sobol", "monte_carlo"} or TaskMeasure, default="gauss_legendre"
        Nodes and weights of the levels; a `TaskMeasure` must have nodes in (0, 1) that are shared by all rows.
    loss : {"pinball", "smoothed_pinball"}, default="pinball"
        Loss (LT-52).
    kappa : float or None, default=None
        Width > 0 of "smoothed_pinball", in standard deviations of y.
    noncrossing : {"rearrange", "penalty", "exact"} or None, default="rearrange"
        "rearrange" sorts crossing curves at each predicted point. "penalty" adds `lam_nc` times the decrease of the
        curves to the objective, at the nodes and at most 200 rows (LT-63); "exact" forbids a decrease there.
    lam_nc : float, default=1.0
        Weight ≥ 0 of "penalty", in units of the loss of the standardized target; initial value for "exact".
    num_frequencies : int, "auto" or None, default="auto"
        If a number, D random Fourier features (LT-86); a large feature matrix is recomputed in chunks in each pass. If
        None, the kernel is exact. "auto" is the exact kernel for at most 2000 distinct rows, and for more its
        projection on 1000 random rows (Nyström), with λ selected on 4000 rows and one held-out fifth for the
        calibration beyond 5000; time and memory are then linear in the number of rows.
    feature_extractor : torch.nn.Module or None, default=None
        Network from (n, d) to (n, k) applied before the kernel (LT-44). A copy is trained with the curves, on random
        features (100 if `num_frequencies` is "auto" or None). It requires a number λ, since held-out rows would have trained the
        network.
    extractor_epochs, extractor_rate : int, float, default=200, 1e-2
        Number of passes over the rows, and step size of Adam.
    calibrate : bool, default=True
        Whether `fit` calibrates the curves: five further fits, each without a fifth of the rows, give the margins with
        which the interval between two opposite levels has its nominal coverage of held-out rows, on average over the
        inputs (`ovkgp.estimators.quantiles.conformal`). Uncalibrated curves are too close to each other if there are
        few rows for the inputs. Beyond 5000 rows a fifth of the rows is held out, once. A level of a finite coupling is
        calibrated if its mirror image is learned too. If False, curves are minimizers of the objective.
    uncertainty : {"sandwich", "bootstrap"}, default="sandwich"
        Method of `return_std`. "sandwich" uses the variance of the score and the density of the residuals (see
        `ovkgp.inference.tasks.sandwich`); "bootstrap" uses `num_replicates` fits with random weights of the rows, and
        omits the bias of the curves due to the penalty.
    num_replicates : int, default=50
        Number of replicates of the bootstrap.
    prior_mean : {"gaussian", "zero"}, default="gaussian"
        "gaussian" is b(θ) = s Φ⁻¹(θ) with s the noise of the Gaussian process with this kernel; "zero" is b = 0.
    intercept : bool, default=True
        Whether to add a constant to the kernel of the inputs.
    tol : float, default=1e-4
        Relative duality gap at which the solver stops.
    max_iter : int, default=5000
        Maximum number of iterations of the solver.
    random_state : int, RandomState instance or None, default=None
        Seed of features, random measures and folds.
    verbose : int, default=0
        If 1, progress is shown.
    restarts : int, default=1
        Number of optimization runs of `lengthscale="auto"`, from the best lengthscales of a grid; the best is kept.

    Attributes
    ----------
    function_ : TaskFunction
        Function h of scaled inputs and levels.
    lam_ : float
        Canonical λ.
    lengthscale_ : float, ndarray of shape (d,) or None
        Lengthscale of the inputs in standard deviations; None for a kernel object.
    residual_scale_ : float
        s, in original units.
    calibration_ : QuantileCalibration
        Margins of the curves in standardized units, if calibrated.
    lam_path_ : QuantilePath
        Held-out loss at each λ of the path, if `lam="auto"`.
    sandwich_, posterior_ : Sandwich, QuantilePosterior
        Covariance of the weights, and draws of whole quantile functions; computed at the first use.
    gap_ : float
        Duality gap, an upper bound of the distance of the objective from its minimum.
    fit_report_ : FitReport
        Report of the solver.
    measure_ : TaskMeasure
        Nodes and weights of the levels.
    scaling_, output_names_, n_features_in_, feature_names_in_
        Offsets and scales; names and numbers of columns.

    Notes
    -----
    Complexity: with n rows, m nodes and r coordinates (at most n, or 2D, or 1000 landmarks), O(n³ + k n m r) time for k
    iterations and O(n²) memory with the exact kernel; O(k n m r) time with features, and O(r²) memory besides the data
    and at most 134 MB of features. `lam="auto"` adds a dozen loose fits to each of five folds, `lengthscale="auto"` the
    training of a Gaussian process.

    Examples
    --------
    >>> import ovkgp
    >>> from ovkgp.datasets import make_sine_quantiles
    >>> X, y, quantiles = make_sine_quantiles(200, random_state=0)
    >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-4, random_state=0).fit(X, y)
    >>> model.predict(X, quantiles=[0.1, 0.5, 0.9]).shape
    (200, 3)
    >>> new = make_sine_quantiles(1000, random_state=1)
    >>> lower, upper = model.predict_interval(new.X, level=0.8)
    >>> bool(abs(((lower < new.y) & (new.y < upper)).mean() - 0.8) < 0.05)
    True
    """

    kind = "target"
    description = Description(
        "all conditional quantiles at once",
        "The model is a function h of the input and the level: the quantile of y at any level τ between 0 and 1. A kernel between levels shares information among them. The loss is the pinball loss ρ, averaged over all levels.",
        "h = argmin (1/n) Σ_i ∫ ρ_τ(y_i − h(x_i)(τ)) dτ + (λ/2) ‖h − b‖^2",
    )
    has_predictive = True
    _parameter_constraints = QUANTILE_CONSTRAINTS
    calibration_note = "Quantiles and intervals are calibrated on held-out rows. To assess them, give rows that were not used for the fit (X=, Y=, or --data)."
    reported = (
        ("lam_", "penalty λ"),
        ("residual_scale_", "residual scale"),
        ("kappa", "width of the smoothing κ"),
        ("task_lengthscale", "lengthscale of the tasks"),
    )

    def __init__(
        self,
        kernel="rbf",
        lengthscale="auto",
        trend="auto",
        task_kernel="rbf",
        task_lengthscale=0.3,
        lam="auto",
        convention="samples",
        coupling="infinite",
        levels=None,
        num_tasks="auto",
        measure="gauss_legendre",
        loss="pinball",
        kappa=None,
        noncrossing="rearrange",
        lam_nc=1.0,
        num_frequencies="auto",
        feature_extractor=None,
        extractor_epochs=200,
        extractor_rate=1e-2,
        calibrate=True,
        uncertainty="sandwich",
        num_replicates=50,
        prior_mean="gaussian",
        intercept=True,
        tol=1e-4,
        max_iter=5000,
        random_state=None,
        verbose=0,
        restarts=1,
    ):
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.trend = trend
        self.task_kernel = task_kernel
        self.task_lengthscale = task_lengthscale
        self.lam = lam
        self.convention = convention
        self.coupling = coupling
        self.levels = levels
        self.num_tasks = num_tasks
        self.measure = measure
        self.loss = loss
        self.kappa = kappa
        self.noncrossing = noncrossing
        self.lam_nc = lam_nc
        self.num_frequencies = num_frequencies
        self.feature_extractor = feature_extractor
        self.extractor_epochs = extractor_epochs
        self.extractor_rate = extractor_rate
        self.calibrate = calibrate
        self.uncertainty = uncertainty
        self.num_replicates = num_replicates
        self.prior_mean = prior_mean
        self.intercept = intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose
        self.restarts = restarts

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_combinations(self)

    def fit(self, X, y, sample_weight=None) -> InfiniteQuantileRegressor:
        """Fit all quantiles of y given X.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, 1)
            Target.
        sample_weight : array-like of shape (n,) or None, default=None
            Weights of the rows; a row of weight 2 counts as two equal rows.

        Returns
        -------
        self : InfiniteQuantileRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            rows, seed = self._validate_data(X, y, sample_weight), as_seed(self.random_state)
            self.scaling_ = rows.scaling(scale_inputs=not isinstance(self.kernel, Kernel))
            rows = rows.scaled(self.scaling_)
            side = make_task_side(self, select_num_tasks(self, rows.count), seed)
            if self.feature_extractor is None:
                model = build_quantile_model(self, rows, select_kernel(self, rows), seed)
            else:
                model = build_deep_model(self, rows, side, canonical_lam(self), seed)
            if self.lam != "auto":
                self.lam_ = canonical_lam(self)
            elif model.scales is None:
                self.lam_ = 1.0  # y is constant, and λ has no effect
            else:
                sample = model.sample()
                self.lam_path_ = cross_validate_lam(self, sample, seed)
                # the weight of data against prior, λ n, is kept
                self.lam_ = self.lam_path_.best * sample.rows.count / rows.count
            solution = solve_quantiles(self, model, side, self.lam_, verbose=self.verbose)
            self.function_ = model.function(side, solution.weights)
            self.measure_, self.lengthscale_ = side.measure, model.lengthscale
            self.residual_scale_ = float(self.scaling_.output_scale[0]) * model.residual_scale
            self.gap_, self.fit_report_ = solution.gap, solution.report
            self.fit_report_.num_rows = len(rows)
            self._data, self._seed = rows, seed
            if self.calibrate and not self.fit_report_.interrupted:
                self._calibrate(model, side)
            for problem in rows.list_problems():
                warnings.warn(problem, FitWarning, stacklevel=2)
        return self

    def _calibrate(self, model: QuantileModel, side: TaskSide) -> None:
        """Set `calibration_`; Ctrl-C leaves the curves as they are, and warns."""
        try:
            self.calibration_ = calibrate_quantiles(self, model, side, self.lam_, self.function_.weights, self._seed)
        except KeyboardInterrupt:
            message = "The calibration was interrupted; the quantiles are not calibrated. Call fit again."
            warnings.warn(message, FitWarning, stacklevel=3)

    def _validate_data(self, X, y, sample_weight) -> QuantileRows:
        """Check the data and reset the last fit."""
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        names = output_names(y) or ["y"]
        X = input_table(self, X, reset=True).astype(np.float64)
        y = convert_output_times(self, y, reset=True)
        with raise_input_errors("y"):
            X, y = check_X_y(X, y, y_numeric=True, multi_output=True, estimator=self)
        if y.ndim > 1 and y.shape[1] != 1:
            raise InputError(f"y has shape {y.shape}, expected (n,) or (n, 1). Fit one model per column.")
        y = column_or_1d(y, dtype=np.float64, warn=True)
        if len(y) < 2:
            raise InputError("X and y must have at least 2 rows, got 1 sample.")
        for name in list(vars(self)):
            if (name.endswith("_") and name not in INPUT_ATTRIBUTES) or name == "_replicates":
                delattr(self, name)
        self.output_names_ = names
        if not isinstance(self.kernel, Kernel):
            warn_about_distant_rows(X, self.input_labels())
        return QuantileRows.of(X, y, sample_weight)

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver."""
        return self.fit_report_.iterations

    def predict(self, X, quantiles=None, return_std=False, calibrate=None):
        """Predict conditional quantiles.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        quantiles : float, array-like of shape (q,) or None, default=None
            Level in (0, 1), or levels in any order. If None, the median.
        return_std : bool, default=False
            Whether to also return the standard error of the curve, which is not the standard deviation of y. ± 1.64
            standard errors are a pointwise 90 % band. The first call computes what all calls need.
        calibrate : bool or None, default=None
            Whether to return calibrated quantiles: if None, as the option says. False gives the minimizers of the
            objective, to which the standard errors refer. True after a fit without calibration makes the fits for it.

        Returns
        -------
        quantiles : ndarray of shape (m,) or (m, q)
            Predicted quantiles; two-dimensional for a list of levels.
        std : ndarray of the same shape
            Standard errors, if `return_std`.

        Examples
        --------
        >>> import ovkgp
        >>> from ovkgp.datasets import make_exponential_quantiles
        >>> X, y, _ = make_exponential_quantiles(300, random_state=0)
        >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=1e-2).fit(X, y)
        >>> model.predict(X[:3], quantiles=0.8).shape
        (3,)
        """
        check_is_fitted(self, "function_")
        X = self.scaling_.inputs(input_table(self, X, reset=False))
        levels = check_levels(0.5 if quantiles is None else quantiles)
        shifts = self._find_shifts(calibrate)
        found = self.scaling_.mean(compute_curves(self, X, torch.from_numpy(levels), shifts))
        one = np.ndim(quantiles) == 0
        if not return_std:
            return found[:, 0] if one else found
        if self._data.count < MIN_ROWS_FOR_STD:
            warnings.warn(
                f"Standard errors of a fit to {self._data.count:g} rows are underestimated. Use them as a lower bound.",
                FitWarning,
                stacklevel=2,
            )
        std = float(self.scaling_.output_scale[0]) * self._std(X, torch.from_numpy(levels))
        return (found[:, 0], std[:, 0]) if one else (found, std)

    def _find_shifts(self, calibrate: bool | None) -> Callable[[Tensor], Tensor] | None:
        """Return the shifts of the curves of a calibrated prediction, None if it is not calibrated."""
        if calibrate not in (None, True, False):
            raise InputError(f"calibrate must be True, False or None, got {calibrate!r}.")
        if calibrate and not hasattr(self, "calibration_"):
            self._calibrate(*rebuild_model(self))
        is_calibrated = (self.calibrate if calibrate is None else calibrate) and hasattr(self, "calibration_")
        return self.calibration_.shifts if is_calibrated else None

    def predict_interval(self, X, level=0.95, calibrate=None) -> tuple[np.ndarray, np.ndarray]:
        """Predict the central interval that contains y with probability `level`.

        Its ends are the quantiles of `predict` at the levels (1 − level)/2 and (1 + level)/2.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        level : float, default=0.95
            Coverage in (0, 1). A finite coupling needs both ends among its levels.
        calibrate : bool or None, default=None
            Whether the quantiles are calibrated, as for `predict`.

        Returns
        -------
        lower, upper : ndarray of shape (m,)
            Ends of the intervals.
        """
        if np.ndim(level) != 0:
            raise InputError(f"level must be one number in (0, 1), got {level!r}.")
        (level,) = check_levels(level, "level")
        ends = self.predict(X, [(1 - level) / 2, (1 + level) / 2], calibrate=calibrate)
        return ends.min(1), ends.max(1)

    def predict_distribution(self, X) -> QuantileDistribution:
        """Predict the distribution of y.

        It has the predicted quantiles at 199 levels, or at those of a finite coupling, is linear between them and has
        exponential tails. Crossing curves are sorted first. It is calibrated as `predict` is.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        QuantileDistribution
            Distributions with `cdf`, `density`, `quantile`, `sample`, `mean` and `std`, as arrays in original units.

        Examples
        --------
        >>> import ovkgp
        >>> from ovkgp.datasets import make_sine_quantiles
        >>> X, y, _ = make_sine_quantiles(100, random_state=0)
        >>> distribution = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y).predict_distribution(X)
        >>> distribution.sample(5, random_state=0).shape, distribution.mean.shape, distribution.cdf(y[:, None]).shape
        ((100, 5), (100,), (100, 1))
        """
        check_is_fitted(self, "function_")
        levels = self._levels(REARRANGEMENT_LEVELS.numpy())
        return QuantileDistribution(levels, np.sort(self.predict(X, levels), axis=1))

    @cached_property
    def sandwich_(self) -> Sandwich:
        """Covariance of the weights of `function_`, computed at the first use."""
        check_is_fitted(self, "function_")
        return compute_sandwich(self)

    @cached_property
    def posterior_(self) -> QuantilePosterior:
        """Posterior of the quantile curves, computed at the first use."""
        check_is_fitted(self, "function_")
        return QuantilePosterior(self)

    def _std(self, X: Tensor, levels: Tensor) -> np.ndarray:
        """Return the standard errors (m, q) of the curves in standardized units."""
        if self.uncertainty == "sandwich":
            return compute_sandwich_std(self, X, levels).numpy()
        if not hasattr(self, "_replicates"):
            self._replicates = fit_replicates(self, self._seed)
        return compute_replicate_std(self, X, levels).numpy()

    def score(self, X, y, sample_weight=None) -> float:
        """Return D² = 1 − pinball loss / pinball loss of the marginal quantiles of y, both summed over levels.

        The levels are 0.1, 0.3, 0.5, 0.7 and 0.9, or those of a finite coupling. 1 is perfect, 0 is no better than
        without inputs.
        """
        levels = self._levels(DEFAULT_LEVELS)
        predicted = self.predict(X, levels)
        return d2_pinball(self._target(y, predicted), predicted, levels, sample_weight)

    def pinball_loss(self, X, y, quantiles=None, sample_weight=None) -> np.ndarray:
        """Return the mean pinball loss (q,) at each level, those of `score` if None, in the units of y (LT-51).

        Parameters
        ----------
        X, y, sample_weight
            As for `score`.
        quantiles : array-like of shape (q,) or None, default=None
            Levels in (0, 1).

        Returns
        -------
        ndarray of shape (q,)
            Losses.
        """
        levels = self._levels(DEFAULT_LEVELS, quantiles)
        predicted = self.predict(X, levels)
        return pinball_losses(self._target(y, predicted), predicted, levels, sample_weight)

    def crossing(self, X, quantiles=None) -> Crossing:
        """Measure how far the predicted curves decrease between neighboring levels (LT-63).

        If `quantiles` is None, the levels are the 99 percentiles, or those of a finite coupling.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        quantiles : array-like of shape (q,) or None, default=None
            Levels in (0, 1).

        Returns
        -------
        Crossing
            Sizes and frequencies of the decreases.
        """
        check_is_fitted(self, "function_")
        return measure_crossing(self.predict(X, np.sort(self._levels(PERCENTILES, quantiles))))

    def _levels(self, default, quantiles=None) -> np.ndarray:
        """Return the given levels; if None, those of a finite coupling, or the default."""
        if quantiles is not None:
            return check_levels(quantiles)
        return np.array(default) if self.learned_levels is None else self.learned_levels

    def _target(self, y, predicted: np.ndarray) -> np.ndarray:
        y = convert_output_times(self, y, reset=False)
        y = column_or_1d(check_array(y, ensure_2d=False, dtype=np.float64, input_name="y"))
        check_consistent_length(predicted, y)
        return y

    def summary(self) -> Summary:
        """Return a text with coupling, kernel, λ and convergence."""
        check_is_fitted(self, "function_")
        return summarize_quantiles(self)

    def training_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct training rows X (n, d) and Y (n, 1) in original units."""
        check_is_fitted(self)
        return self.scaling_.original(self._data.X, self._data.y[:, None])

    @property
    def learned_levels(self) -> np.ndarray | None:
        """Levels of a finite coupling; None if all levels between 0 and 1 were learned."""
        return None if self.coupling == "infinite" else finite_levels(self)

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict quantiles and, unless only some levels were learned, a calibrated interval."""
        request.reject_options("a quantile regressor", "latent", "costs")
        (name,), learned = self.output_names_, self.learned_levels
        default = DEFAULT_QUANTILES if learned is None else tuple(learned.tolist())
        levels = default if request.quantiles is None else request.quantiles
        curves = self.predict(X, quantiles=list(levels))
        found = {f"{name}_{quantile_suffix(level)}": curves[:, j] for j, level in enumerate(levels)}
        if learned is not None and request.level is None:
            return found
        lower, upper = self.predict_interval(X, request.level or DEFAULT_INTERVAL_LEVEL)
        return found | {f"{name}_low": lower, f"{name}_high": upper}

    def list_problems(self) -> list[str]:
        """List problems of training and data, such as copied rows."""
        return [*super().list_problems(), *self._data.list_problems()]

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, residual scale and lengthscales."""
        return [*super().list_parameters(), *list_input_lengthscales(self)]

    def lengthscales(self) -> dict[str, np.ndarray]:
        """Return the lengthscales (1, k) of the inputs in standardized units, if the kernel has any."""
        return {} if self.lengthscale_ is None else {LENGTHSCALE: np.atleast_2d(self.lengthscale_)}

    def _facts(self) -> dict[str, str | None]:
        levels = f"all between 0 and 1, learned at {pluralize(len(self.measure_), 'node')}"
        if (learned := self.learned_levels) is not None:
            levels = f"{', '.join(map(format_number, learned.tolist()))} only ({self.coupling})"
        return super()._facts() | {"Levels": levels}

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of `predict_distribution` at X (m, d)."""
        found = self.predict_distribution(X)

        def cdf(Y: np.ndarray) -> np.ndarray:
            observed = np.isfinite(Y)
            return np.where(observed, found.cdf(np.where(observed, Y, 0.0)), np.nan)

        return PredictiveDistribution(found.mean[:, None], found.std[:, None], cdf, cdf, is_gaussian=False)

    def save(self, path) -> None:
        if self.feature_extractor is not None:
            raise InputError("A model file cannot hold a network. Pickle a model with a feature_extractor.")
        super().save(path)

    save.__doc__ = SavableMixin.save.__doc__
