"""All one-class SVMs at once: for every level ν a set that holds a mass 1 − ν of the data (LT-99, LT-107, BT-104)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.stats import beta
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.estimators.common.bootstrap import check_replicates, replicate_fits, replicate_weights
from ovkgp.estimators.common.named_kernels import median_distance
from ovkgp.estimators.common.options import all_or_nothing, check_option
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.task_options import check_kernel, input_factor, make_measure, task_factor
from ovkgp.estimators.common.validation import input_table
from ovkgp.estimators.storage.functions import storable_part
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.factors import Factor, KernelFactor
from ovkgp.inference.tasks.one_class import OneClassProblem, OneClassSolution, solve_one_class
from ovkgp.inference.tasks.one_class_function import (
    ThresholdOffset,
    are_nested,
    at_levels,
    calibrated_thresholds,
    held_out_values,
    joined,
    joined_values,
    level_scores,
    rearranged,
    share_levels,
    thresholds_at,
)
from ovkgp.inference.tasks.one_class_path import OneClassPath
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.losses import TaskMeasure, grid

storable_part(ThresholdOffset)
SLACK = 1e-8
"""Rows on the margin are inside: thresholds that are not calibrated are lower by this part."""


class OneClassFit(NamedTuple):
    """The decision function d, the levels g(θ) (k,) of `share_levels`, and the solution behind them."""

    function: TaskFunction
    shares: np.ndarray
    solution: OneClassSolution


class Replicates(NamedTuple):
    """Of B fits: W (B, r, q), the coefficients of the thresholds (B, k), and the levels of `share_levels` (B, k)."""

    weights: np.ndarray
    thresholds: np.ndarray
    shares: np.ndarray


class OneClassModel:
    """The problem of given rows, to be solved for any weights of these.

    Args:
        inputs: φ.
        rows: X (n, d), distinct.
        measure: levels in order, and weights.
        tasks, thresholds: the factors of the task and the threshold kernel at the levels.
        lam: λ ≥ 0.
        levels: (k,), equally spaced, on which curves are looked at.
        calibrated: the factor of the threshold kernel at these, for thresholds that are calibrated; None does not calibrate.
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
        """Fit to rows of which `counts` (n,) observations weigh `weights` (n,) in all."""
        path = OneClassPath(self.coordinates.numpy(), weights)
        psi, s = self.thresholds.anchor_rows, torch.from_numpy(weights)
        solution = solve_one_class(OneClassProblem(self.coordinates, self.measure, psi, self.lam, s), path=path)
        values = self._values(path, solution, weights / counts)
        factor, t = self._thresholds(solution, values, weights)
        function = joined(self.inputs, self.tasks, factor, solution.weights, torch.from_numpy(t))
        shares = share_levels(values - thresholds_at(function, self.levels), self.levels, weights)
        return OneClassFit(function, shares, solution)

    def _values(self, path: OneClassPath, solution: OneClassSolution, units: np.ndarray) -> np.ndarray:
        """h(x_i)(θ) at the levels (n, k), with the row i left out where it is for calibration."""
        if self.calibrated is None:
            values = (self.coordinates @ solution.weights).numpy()
        else:
            values = held_out_values(path, solution.positions.numpy(), solution.thresholds.numpy(), units)
        return joined_values(values, self.tasks, self.levels)

    def _thresholds(self, solution: OneClassSolution, values: np.ndarray, weights: np.ndarray):
        """A factor of the threshold kernel, and t at its anchors."""
        if self.calibrated is None:
            t = solution.thresholds.numpy()
            return self.thresholds, t - SLACK * np.abs(t)
        return self.calibrated, calibrated_thresholds(values, weights, self.levels)

    def replicates(self, weights: np.ndarray, counts: np.ndarray, verbose: int = 0) -> Replicates:
        """A fit for each row of `weights` (B, n)."""

        def fit(row: np.ndarray) -> tuple[np.ndarray, ...]:
            made = self.fit(row, counts)
            return made.function.weights.numpy(), made.function.offset.coefficients.numpy(), made.shares

        return Replicates(*(np.stack(part) for part in zip(*replicate_fits(fit, weights, verbose), strict=True)))


DENSITIES = ("uniform", "linear")
NUM_LEVELS = 101
"""On how many levels curves are rearranged and scored."""
KERNELS = {"kernel": ("local", "median"), "task_kernel": ("median",), "threshold_kernel": ("median",)}
"""The options that are kernels, and what their lengthscales may be beside numbers."""
LOCAL = 0.3
"""The lengthscale "local", as a part of the median distance."""
REPLICATES = ("_replicates", "_replicate_thresholds", "_replicate_shares")
"""The fitted attributes that hold replicates."""
CHUNK = 4096
"""Rows whose curves are in memory at once."""


class InfiniteOneClassSVM(OutlierMixin, BaseEstimator):
    """One-class SVMs of all levels ν, fitted at once: {x: h(x)(ν) ≥ t(ν)} holds a mass of about 1 − ν (LT-99, BT-104).

    The fit minimises, exactly and with a certificate (`gap_`), over h and the threshold curve t

        (1/n) Σ_i Σ_j η_j [ |t(θ_j) − h(x_i)(θ_j)|_+ / θ_j − t(θ_j) ] + ½ Σ_j η_j ‖h(·)(θ_j)‖² + (λ/2) ‖t‖²

    A task kernel joins the levels; with λ = 0 each is scikit-learn's `OneClassSVM` of that level.

    Args:
        nu: the level of `predict` and `decision_function` where none is asked for.
        kernel, lengthscale: of the inputs, after scaling: "rbf", "matern52", "laplace", … or a scalar GPyTorch kernel; a number, a vector
            with one a column, "median", the median distance between rows, or "local", 0.3 times that, which tells several modes apart.
        task_kernel, task_lengthscale: of the levels: k_Θ joins h between those that are learned.
        threshold_kernel, threshold_lengthscale: of the threshold curve t.
        lam: λ ≥ 0, of the threshold curve.
        measure, num_tasks: "gauss_legendre", "sobol", "monte_carlo" or a `TaskMeasure`, and how many levels are learned.
        density: "uniform" on [lowest, 1], or "linear", 2θ: the problem in which each level is weighted by ν (BT-104).
        lowest: the least level that is learned and may be asked for; below 1/n nothing can be known.
        calibrate: multiply t(ν) by the ν-quantile of leave-one-out values, so that *fresh* points are inside with probability 1 − ν. Without it the
            share of the rows learned from is right, that of fresh ones too small (by .1 for ν → 0 and 200 rows).
        nested: rearrange decision curves, so that the set of a larger ν lies within that of a smaller one, and keep its mass.
        num_frequencies: None for the exact kernel, a number for so many random features.
        num_replicates: how many times `return_std` fits again.
        scale_inputs: whether the columns of X are centred and scaled; never for a kernel object.
        random_state: of sampled levels, random features and replicates.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        function_: the decision function d = h − t, called with inputs in scaled units and levels; `scaling_` has the units.
        offset_: t(nu), so that `decision_function` is `score_samples` less `offset_`, as in scikit-learn.
        levels_, thresholds_: θ_j and t(θ_j), (m,), calibrated where asked.
        measure_, lam_, gap_, fit_report_: what was solved, and how well.
        nesting_rate_: the share of the rows learned from whose curve d(x)(·), before rearranging, goes from plus to minus only.
        n_features_in_, feature_names_in_.

    Cost: O(n³) for the coordinates of the exact kernel, then 2n to 12n steps of O(n r) for r coordinates; O(n²) memory. A point costs O(n r).

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> rng = np.random.default_rng(0)
        >>> X, fresh = rng.normal(size=(300, 2)), rng.normal(size=(2000, 2))
        >>> model = ovkgp.InfiniteOneClassSVM(nu=0.1).fit(X)
        >>> [bool(abs((model.predict(fresh, nu) == 1).mean() - (1 - nu)) < 0.06) for nu in (0.05, 0.1, 0.5)]
        [True, True, True]
        >>> model.predict([[0.0, 0.0], [9.0, 9.0]]), model.level_score([[9.0, 9.0]])
        (array([ 1, -1]), array([0.]))
    """

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
        lowest=0.01,
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
        self.lowest = lowest
        self.calibrate = calibrate
        self.nested = nested
        self.num_frequencies = num_frequencies
        self.num_replicates = num_replicates
        self.scale_inputs = scale_inputs
        self.random_state = random_state
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y=None) -> InfiniteOneClassSVM:
        """Fit to X (n, d), n ≥ 2; y is not used."""
        with all_or_nothing(self):
            X = input_table(self, X, reset=True)
            if len(X) < 2:
                raise InputError(f"X has n_samples = {len(X)}; two rows are the least that has a spread.")
            self._require_options()
            self._seed = as_seed(self.random_state)
            for made in REPLICATES:
                vars(self).pop(made, None)
            scale = self.scale_inputs and not isinstance(self.kernel, Kernel)
            self.scaling_ = Scaling.of(X, np.zeros((len(X), 1)), scale_inputs=scale, shared=False)
            # copies of a row are one row with more weight: the path has no ties to break
            rows, counts = np.unique(self.scaling_.inputs(X).numpy(), axis=0, return_counts=True)
            if len(rows) < 2:
                raise InputError("all rows of X are the same: a level set needs rows that differ.")
            self._rows, self._row_counts = rows, counts.astype(np.float64)
            self.measure_ = self._measure()
            self._learn()
        return self

    def _measure(self) -> TaskMeasure:
        made = make_measure(self.measure, self.num_tasks, self.lowest, 1.0, random_state=self._seed)
        if made.nodes.dim() != 1:
            raise InputError(
                "measure must have one set of levels for all rows: the levels of one point are not enough."
            )
        order = torch.argsort(made.nodes)
        nodes, weights = made.nodes[order], made.weights[order]
        density = beta(2, 1).pdf(nodes.numpy()) if self.density == "linear" else 1.0
        return grid(nodes, weights * torch.as_tensor(density))

    def _learn(self) -> None:
        model = self._model()
        fitted = model.fit(self._row_counts, self._row_counts)
        self.function_, self._shares, solution = fitted
        self.levels_ = self.measure_.nodes.numpy()
        self.thresholds_ = thresholds_at(self.function_, self.levels_)
        self.lam_, self.gap_, self.fit_report_ = float(self.lam), solution.gap, solution.report
        self.fit_report_.num_rows = int(self._row_counts.sum())
        self.offset_ = float(thresholds_at(self.function_, self.nu)[0])
        nested = self._are_nested(torch.from_numpy(self._rows))
        self.nesting_rate_ = float(np.average(nested, weights=self._row_counts))

    def _model(self) -> OneClassModel:
        inputs = input_factor(
            torch.from_numpy(self._rows),
            kernel=self.kernel,
            lengthscale=self._lengthscale(),
            num_frequencies=self.num_frequencies,
            random_state=self._seed,
        )
        levels = self.measure_.nodes
        tasks = task_factor(levels, kernel=self.task_kernel, lengthscale=self.task_lengthscale)
        thresholds = self._threshold_factor(levels)
        grid = self._grid()
        calibrated = self._threshold_factor(torch.from_numpy(grid)) if self.calibrate else None
        rows = torch.from_numpy(self._rows)
        return OneClassModel(inputs, rows, self.measure_, tasks, thresholds, float(self.lam), grid, calibrated)

    def _lengthscale(self):
        if isinstance(self.lengthscale, str) and self.lengthscale == "local":
            return LOCAL * median_distance(self._rows)
        return self.lengthscale

    def _threshold_factor(self, levels: torch.Tensor) -> KernelFactor:
        return task_factor(levels, kernel=self.threshold_kernel, lengthscale=self.threshold_lengthscale)

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X, nu=None) -> np.ndarray:
        """+1 inside the set of level ν (of mass about 1 − ν), −1 outside, (m,).

        Args:
            nu: ν in [lowest, 1]; the estimator's own where None.
        """
        return np.where(self.decision_function(X, nu) >= 0, 1, -1)

    def decision_function(self, X, nu=None, return_std=False):
        """d(x)(ν) = h(x)(ν) − t(ν), (m,): ≥ 0 inside; rearranged along ν where the estimator is `nested`.

        Args:
            nu: ν in [lowest, 1]; the estimator's own where None.
            return_std: also the standard deviation (m,) over `num_replicates` fits to the same rows with random weights (the Bayesian
                bootstrap). It says how d would vary with other data; the loss has no normalised likelihood (ID-17), so this is not the
                standard deviation of a posterior. The first call fits the replicates, which are kept.
        """
        X, level = self._inputs(X), self._level(nu)
        decision = self._decision(self.function_, self._shares, X, level)
        if not return_std:
            return decision
        draws = np.stack([self._decision(*replicate, X, level) for replicate in self._replicate_functions()])
        return decision, draws.std(0, ddof=1)

    def score_samples(self, X, nu=None) -> np.ndarray:
        """d(x)(ν) + t(ν), (m,): h(x)(ν) where nothing is rearranged. The larger, the more usual."""
        level = self._level(nu)
        return self.decision_function(X, level) + thresholds_at(self.function_, level)[0]

    def level_score(self, X) -> np.ndarray:
        """s(x) = sup{ν: d(x)(ν) ≥ 0}, (m,): the share of the data that is less usual than x; 0 outside all sets, 1 inside all (LT-107).

        Calibrated, it is a p-value: of fresh points of the same law a share ν has s(x) < ν, for ν ≥ lowest.
        """
        levels = self._grid()
        curves = self._curves(self._inputs(X))
        return np.concatenate([level_scores(self._nest(part, self._shares), levels) for part in curves])

    def nesting_rate(self, X) -> float:
        """The share of the rows of X whose curve d(x)(·), before rearranging, changes its sign once at most, from plus to minus."""
        return float(self._are_nested(self._inputs(X)).mean())

    def save(self, path) -> None:
        """Write the fitted model to one file; see `GPRegressor.save` and `ovkgp.load`."""
        from ovkgp.estimators.storage.storage import save  # which makes estimators, and so imports this module

        save(self, path)

    # --- curves -----------------------------------------------------------------------------------------------------

    def _grid(self) -> np.ndarray:
        return np.linspace(self.lowest, 1.0, NUM_LEVELS)

    def _curves(self, X: torch.Tensor, function: TaskFunction | None = None):
        """d(x)(·) on the grid of levels, some rows at a time."""
        levels = torch.from_numpy(self._grid())
        for part in X.split(CHUNK):
            yield (function or self.function_)(part, levels).numpy()

    def _are_nested(self, X: torch.Tensor) -> np.ndarray:
        return np.concatenate([are_nested(curves) for curves in self._curves(X)])

    def _nest(self, curves: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """Curves on the grid of levels, made monotone, with a share 1 − ν of them positive at ν."""
        return at_levels(rearranged(curves), self._grid(), shares) if self.nested else curves

    def _decision(self, function: TaskFunction, shares: np.ndarray, X: torch.Tensor, level: float) -> np.ndarray:
        if not self.nested:
            return function(X, torch.tensor([level], dtype=torch.float64))[:, 0].numpy()
        nested = (self._nest(curves, shares) for curves in self._curves(X, function))
        return np.concatenate([at_levels(part, self._grid(), np.array([level]))[:, 0] for part in nested])

    def _replicate_functions(self) -> list[tuple[TaskFunction, np.ndarray]]:
        """Fits to rows with random weights, made at the first call: d, and the levels of `share_levels`."""
        if not hasattr(self, REPLICATES[0]):
            weights = replicate_weights(self._row_counts, check_replicates(self), self._seed)
            made = self._model().replicates(weights, self._row_counts, verbose=self.verbose)
            vars(self).update(zip(REPLICATES, made, strict=True))
        found = zip(*(getattr(self, name) for name in REPLICATES), strict=True)
        return [(self._replicate(torch.from_numpy(w), torch.from_numpy(z)), shares) for w, z, shares in found]

    def _replicate(self, weights: torch.Tensor, thresholds: torch.Tensor) -> TaskFunction:
        d = self.function_
        return TaskFunction(d.inputs, d.tasks, weights, ThresholdOffset(d.offset.factor, thresholds))

    def _inputs(self, X) -> torch.Tensor:
        check_is_fitted(self, "function_")
        return self.scaling_.inputs(input_table(self, X, reset=False))

    # --- options ----------------------------------------------------------------------------------------------------

    def _level(self, nu) -> float:
        check_is_fitted(self, "function_")
        return check_level("nu", self.nu if nu is None else nu, self.lowest)

    def _require_options(self) -> None:
        for name, also in KERNELS.items():
            check_kernel(self, name, also)
        check_option("density", self.density, DENSITIES)
        check_replicates(self)
        check_level("lowest", self.lowest, 0.0)
        if not 0 < self.lowest < 1:
            raise OptionError(f"lowest must be between 0 and 1, got {self.lowest!r}.")
        check_level("nu", self.nu, self.lowest)
        if (
            isinstance(self.lam, bool | str)
            or not np.isscalar(self.lam)
            or not (np.isfinite(self.lam) and self.lam >= 0)
        ):
            raise OptionError(f"lam must be a number, 0 or positive; got {self.lam!r}.")


def check_level(name: str, level, lowest: float) -> float:
    """A level in [lowest, 1]."""
    try:
        value = float(level)
    except (TypeError, ValueError):
        value = np.nan
    if isinstance(level, bool | str) or not lowest <= value <= 1:
        raise OptionError(
            f"{name} is the mass left outside and must lie in [{lowest:g}, 1]; got {level!r}. A smaller `lowest` allows smaller ones."
        )
    return value
