"""All conditional quantiles at once: infinite quantile regression (LT-05, LT-51, BT-99..102).

    h = argmin (1/n) Σ_i ∫ ρ_θ(y_i − h(x_i)(θ)) dθ + (λ/2) ‖h − b‖²,      h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ),

is a function of input and level: any level may be asked for after the fit. Under the prior W ~ N(0, I) it is the mode of the posterior
with the likelihood exp(−loss/λ): a Gaussian process of quantile curves with mean b(θ) = s Φ⁻¹(θ).
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.estimators.common.base import KEPT
from ovkgp.estimators.common.options import all_or_nothing
from ovkgp.estimators.common.summary import Summary
from ovkgp.estimators.common.validation import as_array, input_table, output_names
from ovkgp.estimators.quantiles.deep import deep_model
from ovkgp.estimators.quantiles.model import (
    FEW_TASKS,
    LEVELS,
    QuantileModel,
    TaskSide,
    chosen_kernel,
    finite_levels,
    quantile_model,
    quantile_path,
    quantile_replicates,
    quantile_sandwich,
    sandwich_std,
    solve_quantiles,
    task_side,
)
from ovkgp.estimators.quantiles.options import (
    canonical_lam,
    check_levels,
    check_quantile_options,
    summarise_quantiles,
)
from ovkgp.estimators.quantiles.posterior import FoldFits, QuantilePosterior, fold_fits, widening
from ovkgp.estimators.quantiles.rows import (
    NUM_FOLDS,
    PERCENTILES,
    Crossing,
    QuantileRows,
    crossing_of,
    d2_pinball,
    pinball_losses,
)
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.tasks.quantile_distribution import LevelDistribution, Rearranged
from ovkgp.inference.tasks.sandwich import Sandwich

GRID = torch.arange(1, 200, dtype=torch.float64) / 200
"""Levels at which curves are sorted; percentiles are among them."""
CHUNK_POINTS = 1 << 14
FEW_ROWS = 20
"""With fewer, standard deviations of the curves come with a warning."""
MADE = ("_sandwich", "_replicates", "_posterior", "_fold_fits")
"""What is made when it is first asked for, and forgotten when another fit begins."""


class InfiniteQuantileRegressor(RegressorMixin, BaseEstimator):
    """Quantile regression for a continuum of levels.

    Inputs and target are standardised inside; everything comes back in the user's units.

    Args:
        kernel: of the inputs: "rbf", "matern12", "matern32", "matern52", "rq", "laplace", or a scalar GPyTorch kernel, which is
            copied, left as it is, and given the inputs in their own units.
        lengthscale: of a kernel by name, in standard deviations of the input columns: "auto" (one a column, of largest evidence for
            a Gaussian process on at most 500 rows), "median" (the median distance between rows, LT-41), a number, (d,), or a
            `LearnedKernel` from `learned_kernel`, so that many fits share one training.
        trend: "linear" or "quadratic": a polynomial of the inputs is a part of a kernel by name, as large as the evidence says, so
            that curves go on where the data end; None for none; "auto" is "linear" where the lengthscale is "auto", or "quadratic"
            where the evidence for that is strong, and None where the lengthscale is not "auto".
        task_kernel, task_lengthscale: of the levels in [0, 1], likewise. Longer scales tie the levels closer together.
        lam: λ > 0, or "auto": by 5-fold cross-validation of the loss along a path (`lam_path_`).
        convention: of a λ that is a number: "samples" (λ/2 ‖h − b‖², as above) or "stability" (λ ‖h − b‖²).
        coupling: "infinite" (all levels), or finitely many `levels`: "joint" (with the task kernel between them, LT-03, BT-106) or
            "independent" (nothing between them). These answer for their levels only.
        levels: of the finite couplings, in (0, 1); .1, .3, .5, .7, .9 where None.
        num_tasks: nodes m of the integral over the levels; "auto" is √n, at least 10 and at most 50 (LT-137).
        measure: "gauss_legendre", "sobol", "monte_carlo", or a `TaskMeasure` with nodes in (0, 1) shared by all rows.
        loss: "pinball", or "smoothed_pinball" with `kappa` > 0, in standard deviations of y (LT-52).
        noncrossing: "rearrange" (curves that cross are sorted at each point where they are asked for); "penalty" (`lam_nc` times what
            they fall is added to the objective, at the nodes and at most 200 rows, LT-63); "exact" (they do not fall there); or None.
        lam_nc: λ_nc ≥ 0 of "penalty", in the units of the loss of the standardised target; where "exact" begins to look.
        num_frequencies: None for the exact kernel; a number D for so many random Fourier features (LT-86), for many rows: where their
            matrix would be large, rows of it are made a few at a time and made again in each pass.
        feature_extractor: a torch module from (n, d) to (n, k) that the inputs go through before the kernel (LT-44); a copy of it is
            trained with the curves, on random features (100 where num_frequencies is None). λ must then be a number, as the rows
            that a fold leaves out would have trained the network.
        extractor_epochs, extractor_rate: passes over the rows, and the step size of Adam.
        uncertainty: of `return_std`: "sandwich" (from the spread of the score and the density of the residuals, see
            `ovkgp.inference.tasks.sandwich`), or "bootstrap" (over `num_replicates` fits to the same rows with random
            weights, which does not see how the penalty biases the curves).
        num_replicates: of the bootstrap.
        prior_mean: "gaussian": b(θ) = s Φ⁻¹(θ) with s the noise of the Gaussian process with this kernel; "zero": b = 0.
        intercept: whether a constant is added to the kernel of the inputs.
        tol: the relative duality gap at which the solver stops.
        max_iter: its largest number of iterations.
        random_state: of features, random measures and folds.
        verbose: whether there are progress bars.

    Attributes:
        function_: h, a `TaskFunction` of scaled inputs and levels.
        lam_: λ, canonical.
        lengthscale_: of the inputs as used, in standard deviations; None for a kernel object.
        residual_scale_: s, in the user's units.
        lam_path_: `QuantilePath`, the loss of rows left out at each λ tried; only with lam="auto".
        sandwich_, posterior_: how sure the curves are: the covariance of the weights, and draws of whole quantile functions; made at the
            first use.
        gap_: the duality gap: the objective is at most so far above the least one.
        fit_report_: how the solver fared.
        measure_: nodes and weights of the levels.
        scaling_, output_names_ (the column of y), n_features_in_, feature_names_in_.

    Cost: with n rows, m nodes and r coordinates (at most n, or 2D), O(n³ + k n m r) time for k iterations and O(n²) memory with the
    exact kernel; O(k n m D) with random features, and memory O(D²) beside the data and at most 134 MB of features.
    lam="auto" adds a dozen loose fits to each of five folds, and lengthscale="auto" the training of a Gaussian process on at most 500 rows.

    Example:
        >>> import ovkgp
        >>> from ovkgp.datasets import make_sine_quantiles
        >>> X, y, quantiles = make_sine_quantiles(200, random_state=0)
        >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-4, random_state=0).fit(X, y)
        >>> model.predict(X, quantiles=[0.1, 0.5, 0.9]).shape
        (200, 3)
        >>> fresh = make_sine_quantiles(1000, random_state=1)
        >>> lower, upper = model.predict_interval(fresh.X, level=0.8)
        >>> bool(abs(((lower < fresh.y) & (fresh.y < upper)).mean() - 0.8) < 0.05)
        True
    """

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
        num_frequencies=None,
        feature_extractor=None,
        extractor_epochs=200,
        extractor_rate=1e-2,
        uncertainty="sandwich",
        num_replicates=50,
        prior_mean="gaussian",
        intercept=True,
        tol=1e-4,
        max_iter=5000,
        random_state=None,
        verbose=0,
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
        self.uncertainty = uncertainty
        self.num_replicates = num_replicates
        self.prior_mean = prior_mean
        self.intercept = intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y, sample_weight=None) -> InfiniteQuantileRegressor:
        """Learn all quantiles of y given X.

        Args:
            X: (n, d).
            y: (n,), or (n, 1).
            sample_weight: (n,), how often each row counts; a row with the weight 2 is a row that comes twice.
        """
        with all_or_nothing(self):
            check_quantile_options(self)
            rows, seed = self._enter(X, y, sample_weight), as_seed(self.random_state)
            self.scaling_ = rows.scaling(scale_inputs=not isinstance(self.kernel, Kernel))
            rows = rows.scaled(self.scaling_)
            side = task_side(self, self._num_tasks(rows.count), seed)
            if self.feature_extractor is None:
                model = quantile_model(self, rows, chosen_kernel(self, rows), seed)
            else:
                model = deep_model(self, rows, side, canonical_lam(self), seed)
            self._learn(model, side, seed)
        return self

    def _learn(self, model: QuantileModel, side: TaskSide, seed: int) -> None:
        self.lam_ = self._chosen_lam(model, seed)
        solution = solve_quantiles(self, model, side, self.lam_, verbose=self.verbose)
        self.function_ = model.function(side, solution.weights)
        self.measure_, self.lengthscale_ = side.measure, model.lengthscale
        self.residual_scale_ = float(self.scaling_.output_scale[0]) * model.residual_scale
        self.gap_, self.fit_report_ = solution.gap, solution.report
        self.fit_report_.num_rows = len(model.rows)
        self._data, self._seed = model.rows, seed

    def _chosen_lam(self, model: QuantileModel, seed: int) -> float:
        if self.lam != "auto":
            return canonical_lam(self)
        if model.scales is None:
            return 1.0  # of a constant, any will do
        some, kappa = model.in_memory(), 0.0 if self.kappa is None else self.kappa
        guess = some.scales.lam(some.rows.count) / (1 + kappa / some.scales.residual_scale)
        side = task_side(self, min(FEW_TASKS, self._num_tasks(some.rows.count)), seed)
        folds = some.rows.folds(NUM_FOLDS, seed)
        self.lam_path_ = quantile_path(some.problem(side, guess), folds, verbose=self.verbose)
        # what the rows weigh against the prior, λ n, is the same for a part of them
        return self.lam_path_.best * some.rows.count / model.rows.count

    def _num_tasks(self, count: float) -> int:
        return int(np.clip(np.sqrt(count), 10, 50)) if self.num_tasks == "auto" else self.num_tasks

    def _enter(self, X, y, sample_weight) -> QuantileRows:
        """The data checked, and what was fitted before forgotten."""
        if y is None:
            raise InputError("this estimator requires y to be passed, but the target y is None.")
        names = output_names(y) or ["y"]
        X, y = validate_data(self, as_array(X), as_array(y), dtype=np.float64, y_numeric=True, multi_output=True)
        if y.ndim > 1 and y.shape[1] != 1:
            raise InputError(
                f"y must be (n,) or (n, 1), got shape {y.shape}: quantiles are those of one output. Fit one model a column."
            )
        y = column_or_1d(y, dtype=np.float64, warn=True)
        if len(y) < 2:
            raise InputError("found 1 sample, and one row says nothing of how y spreads: give at least two.")
        for fitted in [name for name in vars(self) if (name.endswith("_") and name not in KEPT) or name in MADE]:
            delattr(self, fitted)
        self.output_names_ = names
        return QuantileRows.of(X, y, sample_weight)

    @property
    def n_iter_(self) -> int:
        """The iterations of the solver, as scikit-learn names them."""
        return self.fit_report_.iterations

    # --- predicting -------------------------------------------------------------------------------------------------

    def predict(self, X, quantiles=None, return_std=False):
        """Conditional quantiles at X (m, d).

        Args:
            quantiles: None for the median, (m,); a level in (0, 1), (m,); or a list of q levels in any order, (m, q).
            return_std: also the standard deviation of the curve itself, of the same shape: how sure the quantile is, not how y spreads around
                it. ± 1.64 of it is a pointwise band of 90 %. The first call computes what all need, once.

        Example:
            >>> import ovkgp
            >>> from ovkgp.datasets import make_exponential_quantiles
            >>> X, y, _ = make_exponential_quantiles(300, random_state=0)
            >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=1e-2).fit(X, y)
            >>> model.predict(X[:3], quantiles=0.8).shape
            (3,)
        """
        X = self._inputs(X)
        levels = check_levels(0.5 if quantiles is None else quantiles)
        found = self.scaling_.mean(self._curves(X, torch.from_numpy(levels)))
        one = np.ndim(quantiles) == 0
        if not return_std:
            return found[:, 0] if one else found
        if self._data.count < FEW_ROWS:
            message = (
                f"{self._data.count:g} rows say little of the density of y: the standard deviations are too small."
            )
            warnings.warn(f"{message} Take them for a lower bound.", FitWarning, stacklevel=2)
        std = float(self.scaling_.output_scale[0]) * self._std(X, torch.from_numpy(levels))
        return (found[:, 0], std[:, 0]) if one else (found, std)

    def predict_interval(self, X, level=0.95, calibrate=True) -> tuple[np.ndarray, np.ndarray]:
        """The central interval at X (m, d) that holds y with probability `level`: lower and upper ends, each (m,).

        Args:
            level: a number in (0, 1).
            calibrate: whether the interval between two quantiles is widened, or narrowed, until rows that were left out of five further fits lie
                inside as often as it says (`ovkgp.estimators.quantiles.posterior`): right on average over the inputs. The curves alone
                follow the rows they were learned from, and lie too close together where rows are few for their inputs. The first
                call fits, once. A finite coupling needs both ends among its levels.
        """
        if np.ndim(level) != 0:
            raise InputError(f"level must be one number in (0, 1), got {level!r}.")
        (level,) = check_levels(level, "level")
        levels = np.array([(1 - level) / 2, (1 + level) / 2])
        ends = self.predict(X, levels)
        more = float(self.scaling_.output_scale[0]) * widening(self, self._folds(), levels) if calibrate else 0.0
        middle = ends.mean(1)
        return np.minimum(ends[:, 0] - more, middle), np.maximum(ends[:, 1] + more, middle)

    def _folds(self) -> FoldFits:
        if not hasattr(self, "_fold_fits"):
            self._fold_fits = fold_fits(self, self._seed)
        return self._fold_fits

    def predict_distribution(self, X) -> LevelDistribution:
        """The law of y at each row of X (m, d): cdf, density, quantile, sample, mean, std, in the user's units (tensors).

        It has the predicted quantiles at 199 levels, is linear between them, and has exponential tails; of a finite coupling it has
        those levels. Curves that cross are sorted first. It is as wide as the curves say, and not calibrated as `predict_interval` is.

        Example:
            >>> import ovkgp
            >>> from ovkgp.datasets import make_sine_quantiles
            >>> X, y, _ = make_sine_quantiles(100, random_state=0)
            >>> distribution = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y).predict_distribution(X)
            >>> distribution.sample(5, random_state=0).shape, distribution.mean.shape, distribution.cdf(y[:, None]).shape
            (torch.Size([100, 5]), torch.Size([100]), torch.Size([100, 1]))
        """
        check_is_fitted(self, "function_")
        levels = GRID.numpy() if self.coupling == "infinite" else finite_levels(self)
        return LevelDistribution(torch.from_numpy(levels), torch.from_numpy(np.sort(self.predict(X, levels), axis=1)))

    def _curves(self, X: Tensor, levels: Tensor) -> Tensor:
        """Curves (m, q) in the units of the model, sorted where they cross if that was asked for."""
        if self.coupling == "infinite":
            curves = Rearranged(self.function_, GRID) if self.noncrossing == "rearrange" else self.function_
            return torch.cat([curves(part, levels) for part in X.split(CHUNK_POINTS)])
        known = torch.from_numpy(finite_levels(self))
        values = self.function_(X, known)
        return (values.sort(-1).values if self.noncrossing == "rearrange" else values)[:, _places(known, levels)]

    def _std(self, X: Tensor, levels: Tensor) -> np.ndarray:
        """How sure the curves are, (m, q), in the units of the model."""
        parts = X.split(CHUNK_POINTS)
        if self.uncertainty == "sandwich":
            return torch.cat([sandwich_std(self, part, levels) for part in parts]).numpy()
        if not hasattr(self, "_replicates"):
            self._replicates = quantile_replicates(self, self._seed)
        functions = [replace(self.function_, weights=torch.from_numpy(weights)) for weights in self._replicates]
        draws = [torch.stack([function(part, levels) for function in functions]) for part in parts]
        return torch.cat([draw.std(0) for draw in draws]).numpy()

    @property
    def sandwich_(self) -> Sandwich:
        """The covariance of the weights of `function_`, made at the first use."""
        check_is_fitted(self, "function_")
        if not hasattr(self, "_sandwich"):
            self._sandwich = quantile_sandwich(self)
        return self._sandwich

    @property
    def posterior_(self) -> QuantilePosterior:
        """Draws of whole quantile functions, and the probability that curves cross; made at the first use."""
        check_is_fitted(self, "function_")
        if not hasattr(self, "_posterior"):
            self._posterior = QuantilePosterior(self)
        return self._posterior

    def _inputs(self, X) -> Tensor:
        check_is_fitted(self, "function_")
        return self.scaling_.inputs(input_table(self, X, reset=False))

    # --- judging ----------------------------------------------------------------------------------------------------

    def score(self, X, y, sample_weight=None) -> float:
        """D² = 1 − pinball loss / pinball loss of the quantiles of y itself, both summed over levels: 1 is perfect, 0 is what
        one knows without inputs.

        The levels are .1, .3, .5, .7, .9, or those of a finite coupling.
        """
        levels = self._score_levels()
        predicted = self.predict(X, levels)
        return d2_pinball(self._target(y, predicted), predicted, levels, sample_weight)

    def pinball_loss(self, X, y, quantiles=None, sample_weight=None) -> np.ndarray:
        """The mean pinball loss at each of q levels, (q,), in the units of y; at those of `score` where None (LT-51)."""
        levels = self._score_levels() if quantiles is None else check_levels(quantiles)
        predicted = self.predict(X, levels)
        return pinball_losses(self._target(y, predicted), predicted, levels, sample_weight)

    def crossing(self, X, quantiles=None) -> Crossing:
        """How far the predicted curves fall where they should rise, between neighbouring levels (LT-63).

        Args:
            quantiles: levels; the 99 percentiles where None, or those of a finite coupling.
        """
        check_is_fitted(self, "function_")
        every = PERCENTILES if self.coupling == "infinite" else finite_levels(self)
        return crossing_of(self.predict(X, np.sort(every if quantiles is None else check_levels(quantiles))))

    def _score_levels(self) -> np.ndarray:
        return np.array(LEVELS) if self.coupling == "infinite" else finite_levels(self)

    @staticmethod
    def _target(y, predicted: np.ndarray) -> np.ndarray:
        y = column_or_1d(check_array(as_array(y), ensure_2d=False, dtype=np.float64, input_name="y"))
        check_consistent_length(predicted, y)
        return y

    # --- keeping ----------------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """What was learned, in words."""
        check_is_fitted(self, "function_")
        return summarise_quantiles(self)

    def save(self, path) -> None:
        """Write the fitted model to one file, all or nothing; `ovkgp.load(path)` gives it back, equal to the bit.

        Kernels must be by name, of GPyTorch or of ovkgp; with one of one's own, or a feature_extractor, pickle the estimator.

        Args:
            path: where; the folder must exist, and a file of this name is replaced.
        """
        from ovkgp.estimators.storage.storage import save  # which makes regressors, and so imports this module

        if self.feature_extractor is not None:
            raise InputError("a file cannot hold a network, which is code: pickle a model with a feature_extractor.")
        save(self, path)


def _places(known: Tensor, levels: Tensor) -> list[int]:
    """The places of levels among those that were learned."""
    distance, places = (levels[:, None] - known).abs().min(-1)
    if bool((distance > 1e-9).any()):
        raise InputError(
            f"only the levels {known.tolist()} were learned, and {levels[distance > 1e-9].tolist()} were asked for: name them in "
            '`levels`, or learn all with coupling="infinite".'
        )
    return places.tolist()
