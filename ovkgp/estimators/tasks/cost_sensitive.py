"""Classification for all costs of the two kinds of mistakes at once (LT-53, LT-139)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.bootstrap import check_replicates, replicate_fits, replicate_weights
from ovkgp.estimators.common.options import all_or_nothing, check_option
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.task_options import check_kernel, input_factor, make_measure, task_factor
from ovkgp.estimators.common.validation import as_array, input_table, output_names
from ovkgp.estimators.quantiles.options import CONVENTIONS, canonical_lam, check_positive
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.factors import SAME_LEVEL, LevelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import CostSensitiveHinge, IntegralLoss, SmoothedHinge, TaskMeasure, grid

ENDS = {"signed": (-1.0, 1.0), "unit": (0.0, 1.0)}


def signed_costs(costs, scale: str, name: str = "cost") -> np.ndarray:
    """Costs of either scale as signed ones, (q,).

    Example:
        >>> from ovkgp.estimators.tasks.cost_sensitive import signed_costs
        >>> signed_costs([0.5, 0.95], "unit")
        array([0. , 0.9])
    """
    values = costs_in_scale(costs, scale, name)
    return values if scale == "signed" else 2 * values - 1


def costs_in_scale(costs, scale: str, name: str = "cost") -> np.ndarray:
    """One cost or several as numbers (q,), refused where they are not in the range of their scale.

    Example:
        >>> from ovkgp.estimators.tasks.cost_sensitive import costs_in_scale
        >>> costs_in_scale(0.5, "unit")
        array([0.5])
    """
    low, high = ENDS[scale]
    try:
        values = np.asarray(as_array(costs), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{name} must be a cost or a list of costs, got {costs!r}.")
    if not bool(((values >= low) & (values <= high)).all()):  # NaN neither
        other = next(one for one in ENDS if one != scale)
        raise InputError(
            f'{name} must lie in [{low:g}, {high:g}] for costs="{scale}", got {costs!r}; or do you mean "{other}"?'
        )
    return values.reshape(-1)


class ROCCurve(NamedTuple):
    """What a classifier does at each of q costs.

    Attributes:
        cost: in the estimator's scale, increasing (q,).
        sensitivity: the share of positives (`classes_[1]`) that are found, (q,).
        specificity: the share of negatives that are left alone, (q,).
    """

    cost: np.ndarray
    sensitivity: np.ndarray
    specificity: np.ndarray

    @property
    def area(self) -> float:
        """The area under (1 − specificity, sensitivity), with the corners (0, 0) and (1, 1), by trapezia."""
        x, y = np.r_[0.0, 1 - self.specificity, 1.0], np.r_[0.0, self.sensitivity, 1.0]
        order = np.lexsort((y, x))
        return float(np.trapezoid(y[order], x[order]))


def rates(positive: np.ndarray, decided: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity and specificity (q,) of decisions (n, q) for rows of which some are positive (n,).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.tasks.cost_sensitive import rates
        >>> rates(np.array([True, True, False]), np.array([[True], [False], [False]]))
        (array([0.5]), array([1.]))
    """
    return decided[positive].mean(0), 1 - decided[~positive].mean(0)


COUPLINGS = ("infinite", "independent")
LEVELS = (-0.9, 0.0, 0.9)
"""The signed costs that are learned one by one where none are named."""
NUM_COSTS = 101
"""On how many costs a ROC curve is drawn."""


class InfiniteCostSensitiveClassifier(ClassifierMixin, BaseEstimator):
    """A support vector machine for every cost of mistakes: h(x)(θ) ≥ 0 says `classes_[1]`, whose misses cost c(θ) (LT-139).

    The fit minimises (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖² with labels y = ±1, c_θ(1) = c(θ), c_θ(−1) = 1 − c(θ).

    Args:
        costs: the scale of θ wherever a cost is given: "signed", θ ∈ [−1, 1] and c = (θ + 1)/2; or "unit", θ = c ∈ [0, 1]. A θ near its upper end
            favours finding every `classes_[1]` (LT-E-29).
        kernel, lengthscale: of the inputs, which are standardised: "rbf", "matern52", "laplace", … or a scalar GPyTorch kernel, which is given
            the inputs in their own units; "median" (LT-41), a number, or a vector with one a column.
        task_kernel, task_lengthscale: of the costs, in signed units; the default is γ = 5.
        lam: λ > 0.
        convention: "samples" (λ/2 ‖h‖²) or "stability" (λ ‖h‖²).
        coupling: "infinite" learns all costs together; "independent" each of the `levels` by itself, with the penalty
            λ/2 times their number.
        levels: the costs of coupling="independent", by default −.9, 0 and .9 (signed).
        measure, num_tasks: "sobol" (scrambled), "gauss_legendre", "monte_carlo" or a `TaskMeasure` of costs, and how many nodes are used.
        kappa: the width over which the hinge is smoothed (LT-54); None leaves its kink.
        num_frequencies: None for the exact kernel, a number for so many random features.
        num_replicates: how many times `return_std` fits again.
        tol, max_iter: of the solver: the gap, as a part of the objective.
        random_state: of the nodes, the random features and the replicates.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        classes_: the two labels, sorted; `classes_[1]` is the positive one.
        function_: h, called with inputs in scaled units and signed costs; `scaling_` has the units.
        measure_, lam_, gap_, fit_report_, n_iter_: what was solved, and how well; costs are signed.
        output_names_ (the column of y), n_features_in_, feature_names_in_.

    Cost: O(n³) for the coordinates of the exact kernel, then O(n r m) a step for r of them and m nodes.

    Example:
        >>> import ovkgp
        >>> from sklearn.datasets import make_moons
        >>> X, y = make_moons(200, noise=0.3, random_state=0)
        >>> model = ovkgp.InfiniteCostSensitiveClassifier(lam=1e-3, random_state=0).fit(X[::2], y[::2])
        >>> curve = model.roc_curve(X[1::2], y[1::2])
        >>> curve.cost[[5, 50, 95]], curve.sensitivity[[5, 50, 95]].round(1), curve.specificity[[5, 50, 95]].round(1)
        (array([-0.9,  0. ,  0.9]), array([0.2, 0.9, 1. ]), array([1. , 0.8, 0.4]))
    """

    def __init__(
        self,
        costs="signed",
        kernel="rbf",
        lengthscale="median",
        task_kernel="rbf",
        task_lengthscale=0.1**0.5,
        lam=1e-4,
        convention="samples",
        coupling="infinite",
        levels=None,
        measure="sobol",
        num_tasks=20,
        kappa=None,
        num_frequencies=None,
        num_replicates=20,
        tol=1e-3,
        max_iter=5000,
        random_state=None,
        verbose=0,
    ):
        self.costs = costs
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.task_kernel = task_kernel
        self.task_lengthscale = task_lengthscale
        self.lam = lam
        self.convention = convention
        self.coupling = coupling
        self.levels = levels
        self.measure = measure
        self.num_tasks = num_tasks
        self.kappa = kappa
        self.num_frequencies = num_frequencies
        self.num_replicates = num_replicates
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y) -> InfiniteCostSensitiveClassifier:
        """Fit to X (n, d) and labels y (n,) of two classes: numbers, strings or booleans."""
        with all_or_nothing(self):
            self._require_options()
            self.output_names_ = output_names(y) or ["y"]
            X, y = validate_data(self, as_array(X), as_array(y), reset=True, dtype=[np.float64, np.float32])
            self.classes_, labels = _two_classes(y)
            self._seed = as_seed(self.random_state)
            vars(self).pop("_replicates", None)
            scale = not isinstance(self.kernel, Kernel)
            self.scaling_ = Scaling.of(X, np.zeros((len(X), 1)), scale_inputs=scale, shared=False)
            self._rows, self._labels = self.scaling_.inputs(X).numpy(), 2.0 * labels - 1
            self.lam_, self.measure_ = canonical_lam(self), self._measure()
            self._learn()
        return self

    def _learn(self) -> None:
        problem, inputs, tasks = self._problem()
        solution = self._solve(problem)
        self.function_ = TaskFunction(inputs, tasks, solution.weights)
        self.gap_, self.fit_report_ = solution.gap, solution.report
        self.fit_report_.num_rows = len(self._rows)

    def _measure(self) -> TaskMeasure:
        if self.coupling == "independent":
            return grid(self._levels())
        measure = self.measure
        if isinstance(measure, TaskMeasure):
            nodes = signed_costs(measure.nodes.flatten(), self.costs, "the nodes of the measure")
            measure = TaskMeasure(torch.from_numpy(nodes).reshape(measure.nodes.shape), measure.weights)
        return make_measure(measure, self.num_tasks, *ENDS["signed"], random_state=self._seed)

    def _levels(self) -> np.ndarray:
        return np.array(LEVELS) if self.levels is None else np.unique(signed_costs(self.levels, self.costs, "levels"))

    def _problem(self) -> tuple[TaskProblem, object, object]:
        """The problem, and the coordinates of inputs and costs."""
        X, nodes = torch.from_numpy(self._rows), self.measure_.nodes
        inputs = input_factor(
            X,
            kernel=self.kernel,
            lengthscale=self.lengthscale,
            num_frequencies=self.num_frequencies,
            random_state=self._seed,
        )
        tasks = (
            LevelFactor(nodes)
            if self.coupling == "independent"
            else task_factor(nodes, kernel=self.task_kernel, lengthscale=self.task_lengthscale)
        )
        loss = CostSensitiveHinge() if self.kappa is None else SmoothedHinge(self.kappa)
        rows = tasks(nodes.reshape(-1, 1)).reshape(*nodes.shape, -1)
        y = torch.from_numpy(self._labels)[:, None]
        return TaskProblem(inputs(X), rows, y, IntegralLoss(loss, self.measure_), self.lam_), inputs, tasks

    def _solve(self, problem: TaskProblem, start: Tensor | None = None, verbose: int | None = None) -> TaskSolution:
        verbose = self.verbose if verbose is None else verbose
        return solve_primal(problem, start=start, tolerance=self.tol, max_iter=self.max_iter, verbose=verbose)

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X, cost=None) -> np.ndarray:
        """The class at one cost (m,), or at each of q costs (m, q).

        Args:
            cost: θ, or a list, in the scale `costs`; None prices both mistakes alike.
        """
        decided = self.decision_function(X, cost) >= 0
        return self.classes_[decided.astype(int)]

    def decision_function(self, X, cost=None, return_std=False):
        """The score h(x)(θ), ≥ 0 for `classes_[1]`: (m,) at one cost, (m, q) at each of q.

        Args:
            cost: θ, or a list, in the scale `costs`; None prices both mistakes alike.
            return_std: also the standard deviation, of the same shape, over `num_replicates` fits to the same rows with random weights (the
                Bayesian bootstrap): how the score would vary with other data. The hinge is no normalised likelihood (ID-17), so it is not
                that of a posterior. The first call fits the replicates, which are kept.
        """
        check_is_fitted(self, "function_")
        X = self.scaling_.inputs(input_table(self, X, reset=False))
        levels = self._asked(cost)
        score = self.function_(X, levels).numpy()
        one = np.ndim(cost) == 0
        if not return_std:
            return score[:, 0] if one else score
        draws = np.stack([function(X, levels).numpy() for function in self._replicate_functions()])
        std = draws.std(0, ddof=1)
        return (score[:, 0], std[:, 0]) if one else (score, std)

    def roc_curve(self, X, y, costs=None) -> ROCCurve:
        """Sensitivity and specificity on rows X (n, d) with labels y (n,), at each cost: a whole ROC curve from one fit.

        Args:
            costs: where, in the scale `costs`; 101 from end to end where None, or those that were learned one by one.
        """
        check_is_fitted(self, "function_")
        costs = self._curve_costs() if costs is None else np.sort(costs_in_scale(costs, self.costs, "costs"))
        y = np.asarray(as_array(y))
        decided = self.decision_function(X, costs) >= 0
        if y.shape != (len(decided),):
            raise InputError(f"y must be ({len(decided)},), a label for each row of X; got {y.shape}.")
        if not set(np.unique(y)) == set(self.classes_):
            raise InputError(
                f"y must hold both classes {self.classes_.tolist()} and no other, got {np.unique(y)[:5].tolist()}: without a class one of "
                "the two rates is not defined."
            )
        return ROCCurve(costs, *rates(y == self.classes_[1], decided))

    @property
    def n_iter_(self) -> int:
        """Steps of the solver."""
        check_is_fitted(self, "function_")
        return max(1, self.fit_report_.iterations)

    def save(self, path) -> None:
        """Write the fitted classifier to one file; see `GPRegressor.save` and `ovkgp.load`."""
        from ovkgp.estimators.storage.storage import save  # which makes classifiers, and so imports this module

        save(self, path)

    def _curve_costs(self) -> np.ndarray:
        low, high = ENDS[self.costs]
        if self.coupling == "infinite":
            return np.linspace(low, high, NUM_COSTS)
        nodes = self.measure_.nodes.numpy()
        return nodes if self.costs == "signed" else (nodes + 1) / 2

    def _asked(self, cost) -> Tensor:
        """Signed costs (q,)."""
        levels = torch.from_numpy(np.zeros(1) if cost is None else signed_costs(cost, self.costs))
        learned = self.measure_.nodes
        if self.coupling == "independent" and bool(((levels[:, None] - learned).abs().amin(-1) > SAME_LEVEL).any()):
            asked = "both mistakes at one price (cost=None)" if cost is None else repr(cost)
            raise InputError(
                f"only the costs {self._curve_costs().tolist()} were learned, and {asked} was asked for: name it in `levels`, or learn "
                'all with coupling="infinite".'
            )
        return levels

    def _replicate_functions(self) -> list[TaskFunction]:
        """Fits to rows with random weights, made at the first call."""
        h = self.function_
        if not hasattr(self, "_replicates"):
            weights = replicate_weights(np.ones(len(self._rows)), check_replicates(self), self._seed)
            self._replicates = np.stack(replicate_fits(self._refit(self._problem()[0]), weights, self.verbose))
        return [TaskFunction(h.inputs, h.tasks, torch.from_numpy(w)) for w in self._replicates]

    def _refit(self, problem: TaskProblem):
        """From weights of the rows (n,) to W."""

        def fit(weights: np.ndarray) -> np.ndarray:
            weighted = TaskProblem(
                problem.inputs, problem.tasks, problem.targets, problem.loss, problem.lam, torch.from_numpy(weights)
            )
            solution = self._solve(weighted, start=self.function_.weights, verbose=0)
            if solution.report.interrupted:
                raise KeyboardInterrupt  # the solver kept what it had; here it is all replicates that are to end
            return solution.weights.numpy()

        return fit

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        for name in ("kernel", "task_kernel"):
            check_kernel(self, name)
        check_option("costs", self.costs, tuple(ENDS))
        check_option("coupling", self.coupling, COUPLINGS)
        check_option("convention", self.convention, tuple(CONVENTIONS))
        check_positive("tol", self.tol)
        check_integer("max_iter", self.max_iter)
        check_replicates(self)
        if self.kappa is not None:
            check_positive("kappa", self.kappa)
        if self.levels is not None and self.coupling == "infinite":
            raise OptionError(
                'levels are for coupling="independent"; coupling="infinite" learns all: leave levels out.'
            )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The labels, and which of the two each row has (n,)."""
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) > 2:
        raise InputError(
            "Only binary classification is supported. The type of the target is multiclass: y has the "
            f"{len(classes)} classes {classes[:5].tolist()}. Merge some, or see SimplexClassifier."
        )
    if len(classes) < 2:
        raise InputError(f"y has one class, {classes.tolist()}; a classifier needs two.")
    return classes, labels.reshape(-1)
