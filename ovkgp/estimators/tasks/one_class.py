"""`InfiniteOneClassSVM`, one-class SVMs of all levels ν: a set of mass 1 − ν for every ν (LT-99, LT-107, BT-104)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.stats import beta
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.estimators.common.bootstrap import replicate_fits, replicate_weights
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.named_kernels import BASE_KERNEL
from ovkgp.estimators.common.options import (
    FRACTION,
    NONNEGATIVE,
    number,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.summary import Hyperparameter
from ovkgp.estimators.common.task_options import (
    LOCAL_LENGTHSCALE,
    TASK_CONSTRAINTS,
    TASK_LENGTHSCALE,
    input_factor,
    list_input_lengthscales,
    make_measure,
    task_factor,
)
from ovkgp.estimators.common.validation import input_table, warn_about_distant_rows
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional.factors import Factor, KernelFactor
from ovkgp.inference.tasks.one_class import (
    OneClassProblem,
    OneClassSolution,
    ThresholdOffset,
    are_nested,
    calibrate_thresholds,
    compute_level_scores,
    evaluate_thresholds,
    find_fraction_levels,
    interpolate_levels,
    interpolate_values,
    leave_one_out_values,
    make_decision_function,
    solve_one_class,
    sort_curves,
)
from ovkgp.inference.tasks.one_class_path import OneClassPath
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.losses import TaskMeasure, grid

storable_record(ThresholdOffset)
NUM_LEVELS = 101  # number of levels at which curves are rearranged and scored
CHUNK_ROWS = 4096
THRESHOLD_SLACK = 1e-8  # relative decrease of uncalibrated thresholds, so that rows on the margin are inside
REPLICATES = ("_replicates", "_replicate_thresholds", "_replicate_fraction_levels")
"""Fitted attributes that hold replicates."""


@storable(
    *("n_features_in_", "scaling_", "function_", "measure_", "levels_", "thresholds_", "offset_", "nesting_rate_"),
    *("lam_", "gap_", "fit_report_", "_seed", "_rows", "_row_counts", "_fraction_levels"),
    optional=REPLICATES,
)
class InfiniteOneClassSVM(OutlierMixin, Estimator):
    """One-class SVMs of all levels ν, fitted at once (LT-99, BT-104).

    The set {x: h(x)(ν) ≥ t(ν)} contains a mass of about 1 − ν. The fit minimizes over h and the threshold curve t,
    exactly and with a certificate (`gap_`),

        (1/n) Σ_i Σ_j η_j [ |t(θ_j) − h(x_i)(θ_j)|_+ / θ_j − t(θ_j) ] + ½ Σ_j η_j ‖h(·)(θ_j)‖² + (λ/2) ‖t‖².

    The task kernel interpolates between the levels, and λ > 0 couples their thresholds; with λ = 0 each level is scikit-learn's
    `OneClassSVM` of that level.

    Parameters
    ----------
    nu : float, default=0.1
        Default level of `predict` and `decision_function`.
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the scaled inputs, by name or as a scalar GPyTorch kernel.
    lengthscale : {"local", "median"}, float or array-like of shape (d,), default="local"
        Lengthscale of a kernel by name. "median" is the median distance between rows, "local" 0.3 times that, which
        separates several modes.
    task_kernel, task_lengthscale : str or Kernel, float, "median" or "quantile_0.2", default="matern52", 0.3
        Kernel of the levels, which interpolates h between the learned ones.
    threshold_kernel, threshold_lengthscale : str or Kernel, float, "median" or "quantile_0.2", default="matern52", 0.3
        Kernel of the threshold curve t.
    lam : float, default=1e-4
        λ ≥ 0 of the threshold curve.
    measure : {"gauss_legendre", "sobol", "monte_carlo"} or TaskMeasure, default="gauss_legendre"
        Nodes and weights of the learned levels.
    num_tasks : int, default=20
        Number of learned levels.
    density : {"uniform", "linear"}, default="uniform"
        Density of the levels on [min_nu, 1]; "linear" is 2θ, which weights each level by ν (BT-104).
    min_nu : float, default=0.01
        Smallest level that is learned and can be predicted; the data contain no information below 1/n.
    calibrate : bool, default=True
        Whether to multiply t(ν) by the ν-quantile of leave-one-out values, so that *new* points are inside with
        probability 1 − ν. Otherwise the training fraction is right, and that of new points too small (by 0.1 for ν → 0
        and 200 rows).
    nested : bool, default=True
        Whether to rearrange decision curves, so that the set of a larger ν is contained in that of a smaller one, with
        the same mass.
    num_frequencies : int or None, default=None
        Number of random features. If None, the kernel is exact.
    num_replicates : int, default=20
        Number of bootstrap fits of `return_std`.
    scale_inputs : bool, default=True
        Whether to center and scale the columns of X; never done for a kernel object.
    random_state : int, RandomState instance or None, default=None
        Seed of sampled levels, random features and replicates.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    function_ : TaskFunction
        Decision function d = h − t of scaled inputs and levels; `scaling_` has the offsets and scales.
    offset_ : float
        t(nu); `decision_function` is `score_samples` minus `offset_`, as in scikit-learn.
    levels_, thresholds_ : ndarray of shape (m,)
        θ_j and t(θ_j), calibrated if `calibrate`.
    measure_, lam_, gap_, fit_report_
        Nodes and weights of the levels, λ, duality gap and report of the solver.
    nesting_rate_ : float
        Fraction of the training rows whose curve d(x)(·), before rearrangement, changes sign from plus to minus only.
    n_features_in_, feature_names_in_
        Number and names of the inputs.

    Notes
    -----
    Complexity: O(n³) for the coordinates of the exact kernel, then 2n to 12n steps of O(n r) for r coordinates; O(n²)
    memory; O(n r) per predicted point.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> rng = np.random.default_rng(0)
    >>> X, X_new = rng.normal(size=(300, 2)), rng.normal(size=(2000, 2))
    >>> model = ovkgp.InfiniteOneClassSVM(nu=0.1).fit(X)
    >>> [bool(abs((model.predict(X_new, nu) == 1).mean() - (1 - nu)) < 0.06) for nu in (0.05, 0.1, 0.5)]
    [True, True, True]
    >>> model.predict([[0.0, 0.0], [9.0, 9.0]]), model.level_score([[9.0, 9.0]])
    (array([ 1, -1]), array([0.]))
    """

    kind = "none"
    description = Description(
        "level sets of every mass",
        "For each fraction ν, the model estimates a set that excludes about ν of the data: one-class support vector machines of all levels, fitted jointly. Points outside of the set of a small ν are outliers.",
        "P(h(x)(ν) ≥ t(ν)) ≈ 1 − ν",
    )
    calibration_note = (
        "Levels were calibrated with leave-one-out scores. To assess them, give new rows (X=, or --data)."
    )
    reported = (
        ("lam_", "penalty λ"),
        ("nu", "level ν of predict"),
        ("offset_", "threshold at that level"),
        ("task_lengthscale", "lengthscale of the tasks"),
        ("threshold_lengthscale", "lengthscale of the thresholds"),
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **TASK_CONSTRAINTS,
        "nu": [number("a number above 0 and at most 1", lambda value: 0 < value <= 1)],
        "lengthscale": LOCAL_LENGTHSCALE,
        "threshold_kernel": BASE_KERNEL,
        "threshold_lengthscale": TASK_LENGTHSCALE,
        "lam": [NONNEGATIVE],
        "density": [one_of("uniform", "linear")],
        "min_nu": [FRACTION],
        "calibrate": ["boolean"],
        "nested": ["boolean"],
        "scale_inputs": ["boolean"],
    }

    def __init__(
        self,
        nu=0.1,
        kernel="rbf",
        lengthscale="local",
        task_kernel="matern52",
        task_lengthscale=0.3,
        threshold_kernel="matern52",
        threshold_lengthscale=0.3,
        lam=1e-4,
        measure="gauss_legendre",
        num_tasks=20,
        density="uniform",
        min_nu=0.01,
        calibrate=True,
        nested=True,
        num_frequencies=None,
        num_replicates=20,
        scale_inputs=True,
        random_state=None,
        verbose=0,
    ):
        self.nu = nu
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.task_kernel = task_kernel
        self.task_lengthscale = task_lengthscale
        self.threshold_kernel = threshold_kernel
        self.threshold_lengthscale = threshold_lengthscale
        self.lam = lam
        self.measure = measure
        self.num_tasks = num_tasks
        self.density = density
        self.min_nu = min_nu
        self.calibrate = calibrate
        self.nested = nested
        self.num_frequencies = num_frequencies
        self.num_replicates = num_replicates
        self.scale_inputs = scale_inputs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y=None) -> InfiniteOneClassSVM:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs, with at least two distinct rows.
        y : None, default=None
            Ignored.

        Returns
        -------
        self : InfiniteOneClassSVM
            Fitted estimator.
        """
        with restore_on_error(self):
            X = input_table(self, X, reset=True)
            if len(X) < 2:
                raise InputError(f"X must have at least 2 rows, got n_samples = {len(X)}.")
            self.check_options()
            self._seed = as_seed(self.random_state)
            for name in REPLICATES:
                vars(self).pop(name, None)
            scale = self.scale_inputs and not isinstance(self.kernel, Kernel)
            if scale:
                warn_about_distant_rows(X, self.input_labels())
            self.scaling_ = Scaling.of(X, np.zeros((len(X), 1)), scale_inputs=scale, shared=False)
            # copies of a row become one row of larger weight, so that the path has no ties
            rows, counts = np.unique(self.scaling_.inputs(X).numpy(), axis=0, return_counts=True)
            if len(rows) < 2:
                raise InputError("X must have at least 2 distinct rows, but all rows are equal.")
            self._rows, self._row_counts = rows, counts.astype(np.float64)
            self.measure_, self.lam_ = self._measure(), float(self.lam)
            self.function_, self._fraction_levels, solution = self._model().fit(self._row_counts, self._row_counts)
            self.levels_ = self.measure_.nodes.numpy()
            self.thresholds_ = evaluate_thresholds(self.function_, self.levels_)
            self.offset_ = float(evaluate_thresholds(self.function_, self.nu)[0])
            self.gap_, self.fit_report_ = solution.gap, solution.report
            self.fit_report_.num_rows = len(X)
            nested = self._are_nested(torch.from_numpy(self._rows))
            self.nesting_rate_ = float(np.average(nested, weights=self._row_counts))
        return self

    def _measure(self) -> TaskMeasure:
        measure = make_measure(self.measure, self.num_tasks, self.min_nu, 1.0, random_state=self._seed)
        if measure.nodes.dim() != 1:
            raise InputError("measure must have one set of levels for all rows, got separate levels per row.")
        order = torch.argsort(measure.nodes)
        nodes, weights = measure.nodes[order], measure.weights[order]
        density = beta(2, 1).pdf(nodes.numpy()) if self.density == "linear" else 1.0
        return grid(nodes, weights * torch.as_tensor(density))

    def _model(self) -> OneClassModel:
        rows, levels, curve_levels = torch.from_numpy(self._rows), self.measure_.nodes, self._grid()
        inputs = input_factor(
            rows,
            kernel=self.kernel,
            lengthscale=self.lengthscale,
            num_frequencies=self.num_frequencies,
            random_state=self._seed,
        )
        tasks = task_factor(levels, kernel=self.task_kernel, lengthscale=self.task_lengthscale)
        thresholds = self._threshold_factor(levels)
        calibrated = self._threshold_factor(torch.from_numpy(curve_levels)) if self.calibrate else None
        return OneClassModel(inputs, rows, self.measure_, tasks, thresholds, float(self.lam), curve_levels, calibrated)

    def _threshold_factor(self, levels: Tensor) -> KernelFactor:
        return task_factor(levels, kernel=self.threshold_kernel, lengthscale=self.threshold_lengthscale)

    def predict(self, X, nu=None) -> np.ndarray:
        """Predict +1 inside the set of level ν, of mass about 1 − ν, and −1 outside.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        nu : float or None, default=None
            Level ν in [min_nu, 1]. If None, that of the estimator.

        Returns
        -------
        ndarray of shape (m,)
            +1 or −1.
        """
        return np.where(self.decision_function(X, nu) >= 0, 1, -1)

    def decision_function(self, X, nu=None, return_std=False):
        """Return d(x)(ν) = h(x)(ν) − t(ν), nonnegative inside, rearranged along ν if `nested`.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        nu : float or None, default=None
            Level ν in [min_nu, 1]. If None, that of the estimator.
        return_std : bool, default=False
            Whether to also return the standard deviation over `num_replicates` fits with random weights of the rows
            (the Bayesian bootstrap), an estimate of the variability of d for other data. It is not that of a posterior,
            since the loss is not a normalized likelihood (ID-17). The first call fits the replicates.

        Returns
        -------
        decision : ndarray of shape (m,)
            Values of d.
        std : ndarray of shape (m,)
            Standard deviations, if `return_std`.
        """
        X, level = self._inputs(X), self._level(nu)
        decision = self._decision(self.function_, self._fraction_levels, X, level)
        if not return_std:
            return decision
        draws = np.stack([self._decision(*replicate, X, level) for replicate in self._replicate_functions()])
        return decision, draws.std(0, ddof=1)

    def score_samples(self, X, nu=None) -> np.ndarray:
        """Return d(x)(ν) + t(ν) (m,), which is h(x)(ν) without rearrangement; larger for more typical points.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        nu : float or None, default=None
            Level ν. If None, the option `nu`.

        Returns
        -------
        ndarray of shape (m,)
            Scores.
        """
        level = self._level(nu)
        return self.decision_function(X, level) + evaluate_thresholds(self.function_, level)[0]

    def level_score(self, X) -> np.ndarray:
        """Return s(x) = sup{ν: d(x)(ν) ≥ 0} (m,), the fraction of the data that is less typical than x (LT-107).

        It is 0 outside all sets and 1 inside all. Calibrated, it is a p-value: a fraction ν of new points of the same
        distribution has s(x) < ν, for ν ≥ min_nu.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,)
            Scores in [0, 1].
        """
        levels = self._grid()
        curves = self._curves(self._inputs(X))
        return np.concatenate(
            [compute_level_scores(self._nest(part, self._fraction_levels), levels) for part in curves]
        )

    def nesting_rate(self, X) -> float:
        """Return the fraction of rows whose curve d(x)(·), before rearrangement, changes sign only from plus to minus.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        float
            Fraction in [0, 1]; 1 if all level sets are nested.
        """
        return float(self._are_nested(self._inputs(X)).mean())

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict inliers and levels: a row is inside the set of every ν up to its level."""
        request.reject_options("level sets", "quantiles", "level", "latent", "costs")
        level = self.level_score(X)
        return {"inlier": self.predict(X) == 1, "level": level}

    def training_data(self) -> tuple[np.ndarray, None]:
        """Return the training rows X (n, d), copies side by side, and None."""
        check_is_fitted(self)
        rows = self._rows * self.scaling_.input_scale + self.scaling_.input_offset
        return np.repeat(rows, self._row_counts.astype(int), 0), None

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, levels and lengthscales."""
        return [*super().list_parameters(), *list_input_lengthscales(self)]

    def _grid(self) -> np.ndarray:
        return np.linspace(self.min_nu, 1.0, NUM_LEVELS)

    def _curves(self, X: Tensor, function: TaskFunction | None = None):
        """Iterate over d(x)(·) on the grid of levels, in chunks of rows."""
        levels = torch.from_numpy(self._grid())
        for part in X.split(CHUNK_ROWS):
            yield (function or self.function_)(part, levels).numpy()

    def _are_nested(self, X: Tensor) -> np.ndarray:
        return np.concatenate([are_nested(curves) for curves in self._curves(X)])

    def _nest(self, curves: np.ndarray, fraction_levels: np.ndarray) -> np.ndarray:
        """Make curves on the grid of levels monotone, with a fraction 1 − ν of them positive at ν."""
        return interpolate_levels(sort_curves(curves), self._grid(), fraction_levels) if self.nested else curves

    def _decision(self, function: TaskFunction, fraction_levels: np.ndarray, X: Tensor, level: float) -> np.ndarray:
        if not self.nested:
            return function(X, torch.tensor([level], dtype=torch.float64))[:, 0].numpy()
        nested = (self._nest(curves, fraction_levels) for curves in self._curves(X, function))
        return np.concatenate([interpolate_levels(part, self._grid(), np.array([level]))[:, 0] for part in nested])

    def _replicate_functions(self) -> list[tuple[TaskFunction, np.ndarray]]:
        """Return d and the levels of `find_fraction_levels` of each replicate; the first call fits them."""
        if not hasattr(self, REPLICATES[0]):
            weights = replicate_weights(self._row_counts, self.num_replicates, self._seed)
            found = self._model().fit_replicates(weights, self._row_counts, verbose=self.verbose)
            vars(self).update(zip(REPLICATES, found, strict=True))
        found = zip(*(getattr(self, name) for name in REPLICATES), strict=True)
        d = self.function_

        def function(weights: np.ndarray, thresholds: np.ndarray) -> TaskFunction:
            offset = ThresholdOffset(d.offset.factor, torch.from_numpy(thresholds))
            return TaskFunction(d.inputs, d.tasks, torch.from_numpy(weights), offset)

        return [(function(weights, thresholds), levels) for weights, thresholds, levels in found]

    def _inputs(self, X) -> Tensor:
        check_is_fitted(self, "function_")
        return self.scaling_.inputs(input_table(self, X, reset=False))

    def _level(self, nu) -> float:
        check_is_fitted(self, "function_")
        return check_level("nu", self.nu if nu is None else nu, self.min_nu)

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_level("nu", self.nu, self.min_nu)


def check_level(name: str, level, min_nu: float) -> float:
    """Return a level in [min_nu, 1]."""
    try:
        value = float(level)
    except (TypeError, ValueError):
        value = np.nan
    if isinstance(level, bool | str) or not min_nu <= value <= 1:
        raise OptionError(
            f"{name}, the mass outside, must lie in [{min_nu:g}, 1], got {level!r}. Decrease min_nu for smaller levels."
        )
    return value


class OneClassFit(NamedTuple):
    """Decision function d, levels g(θ) (k,) of `find_fraction_levels`, and solution."""

    function: TaskFunction
    fraction_levels: np.ndarray
    solution: OneClassSolution


class OneClassModel:
    """Problem of distinct rows X (n, d), to be solved for any weights of these.

    `inputs`, `tasks` and `thresholds` are the factors of the kernels, the last two at the sorted levels of `measure`.
    `levels` (k,) is the equally spaced grid of curves, `calibrated` the factor of the threshold kernel there, or None
    for no calibration.
    """

    def __init__(
        self,
        inputs: Factor,
        rows: Tensor,
        measure: TaskMeasure,
        tasks: KernelFactor,
        thresholds: KernelFactor,
        lam: float,
        levels: np.ndarray,
        calibrated: KernelFactor | None,
    ):
        self.inputs, self.measure, self.tasks, self.lam = inputs, measure, tasks, lam
        self.thresholds, self.levels, self.calibrated = thresholds, levels, calibrated
        self.coordinates = inputs.anchor_rows if hasattr(inputs, "anchor_rows") else inputs(rows)

    def fit(self, weights: np.ndarray, counts: np.ndarray) -> OneClassFit:
        """Fit to rows of `counts` (n,) observations each, with total weights `weights` (n,)."""
        path = OneClassPath(self.coordinates.numpy(), weights)
        psi, s = self.thresholds.anchor_rows, torch.from_numpy(weights)
        solution = solve_one_class(OneClassProblem(self.coordinates, self.measure, psi, self.lam, s), path=path)
        values = self._values(path, solution, weights / counts)
        factor, t = self._thresholds(solution, values, weights)
        function = make_decision_function(self.inputs, self.tasks, factor, solution.weights, torch.from_numpy(t))
        fraction_levels = find_fraction_levels(
            values - evaluate_thresholds(function, self.levels), self.levels, weights
        )
        return OneClassFit(function, fraction_levels, solution)

    def _values(self, path: OneClassPath, solution: OneClassSolution, units: np.ndarray) -> np.ndarray:
        """Return h(x_i)(θ) at the levels (n, k), for calibration with row i held out."""
        if self.calibrated is None:
            values = (self.coordinates @ solution.weights).numpy()
        else:
            values = leave_one_out_values(path, solution.positions.numpy(), solution.thresholds.numpy(), units)
        return interpolate_values(values, self.tasks, self.levels)

    def _thresholds(self, solution: OneClassSolution, values: np.ndarray, weights: np.ndarray):
        """Return a factor of the threshold kernel, and t at its anchors."""
        if self.calibrated is None:
            t = solution.thresholds.numpy()
            return self.thresholds, t - THRESHOLD_SLACK * np.abs(t)
        return self.calibrated, calibrate_thresholds(values, weights, self.levels)

    def fit_replicates(self, weights: np.ndarray, counts: np.ndarray, verbose: int = 0) -> list[np.ndarray]:
        """Fit to each row of `weights` (B, n).

        Return W (B, r, q), threshold coefficients (B, k) and levels of `find_fraction_levels` (B, k).
        """

        def fit(row: np.ndarray) -> tuple[np.ndarray, ...]:
            found = self.fit(row, counts)
            return found.function.weights.numpy(), found.function.offset.coefficients.numpy(), found.fraction_levels

        return [np.stack(part) for part in zip(*replicate_fits(fit, weights, verbose), strict=True)]
