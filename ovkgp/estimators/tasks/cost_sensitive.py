"""`InfiniteCostSensitiveClassifier`, classification for all costs of both kinds of mistakes (LT-53, LT-139)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.estimators.common.bootstrap import refitted_weights, replicate_fits, replicate_weights
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.options import NUMBER, NUMBERS, POSITIVE, integer, one_of, restore_on_error
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.summary import Hyperparameter
from ovkgp.estimators.common.task_options import (
    TASK_CONSTRAINTS,
    TASK_CONVENTIONS,
    canonical_lam,
    check_scalar_tasks,
    input_factor,
    list_input_lengthscales,
    make_measure,
    task_factor,
)
from ovkgp.estimators.common.validation import (
    as_array,
    input_table,
    output_names,
    raise_input_errors,
    warn_about_distant_rows,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional.factors import LEVEL_TOLERANCE, LevelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import CostSensitiveHinge, IntegralLoss, SmoothedHinge, TaskMeasure, grid

ENDS = {"signed": (-1.0, 1.0), "unit": (0.0, 1.0)}  # range of the costs in each scale
DEFAULT_LEVELS = (-0.9, 0.0, 0.9)  # default signed costs of coupling="independent"
NUM_COSTS = 101  # default number of costs of a ROC curve


class ROCCurve(NamedTuple):
    """Rates of a classifier at each of q costs.

    Attributes
    ----------
    cost : ndarray of shape (q,)
        Increasing costs in the scale of the estimator.
    sensitivity : ndarray of shape (q,)
        Fraction of the positives (`classes_[1]`) that are predicted positive.
    specificity : ndarray of shape (q,)
        Fraction of the negatives that are predicted negative.
    """

    cost: np.ndarray
    sensitivity: np.ndarray
    specificity: np.ndarray

    @property
    def area(self) -> float:
        """Area under (1 − specificity, sensitivity) with the corners (0, 0) and (1, 1), by the trapezoidal rule."""
        x, y = np.r_[0.0, 1 - self.specificity, 1.0], np.r_[0.0, self.sensitivity, 1.0]
        order = np.lexsort((y, x))
        return float(np.trapezoid(y[order], x[order]))


@storable(
    *(
        "n_features_in_",
        "output_names_",
        "classes_",
        "scaling_",
        "function_",
        "measure_",
        "lam_",
        "gap_",
        "fit_report_",
    ),
    *("_seed", "_rows", "_labels"),
    optional=("_replicates",),
)
class InfiniteCostSensitiveClassifier(ClassifierMixin, Estimator):
    """Support vector machine for all costs of mistakes (LT-139).

    h(x)(θ) ≥ 0 predicts `classes_[1]`, whose false negatives cost c(θ). The fit minimizes

        (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖²,      c_θ(1) = c(θ),  c_θ(−1) = 1 − c(θ),

    with labels y = ±1.

    Parameters
    ----------
    costs : {"signed", "unit"}, default="signed"
        Scale of all costs: "signed" is θ ∈ [−1, 1] with c = (θ + 1)/2, "unit" is θ = c ∈ [0, 1]. A larger θ increases
        the sensitivity to `classes_[1]` (LT-E-29).
    kernel : {"rbf", "matern12", "matern32", "matern52", "rq", "laplace"} or Kernel, default="rbf"
        Kernel of the standardized inputs. A scalar GPyTorch kernel is evaluated at inputs in original units.
    lengthscale : "median", float or array-like of shape (d,), default="median"
        Lengthscale of a kernel by name; "median" is the median distance between rows (LT-41).
    task_kernel, task_lengthscale : str or Kernel, float, "median" or "quantile_0.2", default="rbf", 0.1**0.5
        Kernel of the signed costs; the default is γ = 5.
    lam : float, default=1e-4
        λ > 0.
    convention : {"samples", "stability"}, default="samples"
        Meaning of λ: "samples" is (λ/2) ‖h‖², "stability" λ ‖h‖².
    coupling : {"infinite", "independent"}, default="infinite"
        "infinite" learns all costs jointly; "independent" learns each of the `levels` separately, with the penalty λ/2
        times their number.
    levels : array-like or None, default=None
        Costs of `coupling="independent"`. If None, −0.9, 0 and 0.9 (signed).
    measure : {"sobol", "gauss_legendre", "monte_carlo"} or TaskMeasure, default="sobol"
        Nodes and weights of the costs; "sobol" is scrambled.
    num_tasks : int, default=20
        Number of nodes.
    kappa : float or None, default=None
        Width of the smoothing of the hinge (LT-54). If None, the hinge is not smoothed.
    num_frequencies : int or None, default=None
        Number of random features. If None, the kernel is exact.
    num_replicates : int, default=20
        Number of bootstrap fits of `return_std`.
    tol, max_iter : float, int, default=1e-3, 5000
        Relative duality gap at which the solver stops, and its maximum number of iterations.
    random_state : int, RandomState instance or None, default=None
        Seed of nodes, random features and replicates.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        Sorted labels; `classes_[1]` is the positive one.
    function_ : TaskFunction
        Function h of scaled inputs and signed costs; `scaling_` has the offsets and scales.
    measure_, lam_, gap_, fit_report_, n_iter_
        Nodes and weights of the signed costs, canonical λ, duality gap and report of the solver.
    output_names_, n_features_in_, feature_names_in_
        Name of the column of y, names and number of inputs.

    Notes
    -----
    Complexity: O(n³) for the coordinates of the exact kernel, then O(n r m) per step for r coordinates and m nodes.

    Examples
    --------
    >>> import ovkgp
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.3, random_state=0)
    >>> model = ovkgp.InfiniteCostSensitiveClassifier(lam=1e-3, random_state=0).fit(X[::2], y[::2])
    >>> curve = model.roc_curve(X[1::2], y[1::2])
    >>> curve.cost[[5, 50, 95]], curve.sensitivity[[5, 50, 95]].round(1), curve.specificity[[5, 50, 95]].round(1)
    (array([-0.9,  0. ,  0.9]), array([0.2, 0.9, 1. ]), array([1. , 0.8, 0.4]))
    """

    kind = "labels"
    has_costs = True
    description = Description(
        "classification for all misclassification costs",
        "The model is a support vector machine for each cost c of missing the second class, all of them learned jointly. At any cost, h ≥ 0 predicts the second class.",
        "h = argmin (1/n) Σ_i ∫ c_θ(y_i) max(0, 1 − y_i h(x_i)(θ)) dθ + (λ/2) ‖h‖^2",
    )
    calibration_note = (
        "The scores are margins, not probabilities; the costs set the trade-off between both kinds of errors."
    )
    reported = (
        ("lam_", "penalty λ"),
        ("kappa", "width of the smoothing κ"),
        ("task_lengthscale", "lengthscale of the tasks"),
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **TASK_CONSTRAINTS,
        "costs": [one_of(*ENDS)],
        "lam": [POSITIVE],
        "convention": [one_of(*TASK_CONVENTIONS)],
        "coupling": [one_of("infinite", "independent")],
        "levels": [NUMBER, NUMBERS, None],  # their range depends on `costs`
        "kappa": [POSITIVE, None],
        "tol": [POSITIVE],
        "max_iter": [integer()],
    }

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

    def fit(self, X, y) -> InfiniteCostSensitiveClassifier:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,)
            Labels of two classes: numbers, strings or booleans.

        Returns
        -------
        self : InfiniteCostSensitiveClassifier
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            self.output_names_ = output_names(y) or ["y"]
            X = input_table(self, X, reset=True)
            with raise_input_errors("y"):
                X, y = check_X_y(X, as_array(y), dtype=None, estimator=self)
            self.classes_, labels = _two_classes(y)
            self._seed = as_seed(self.random_state)
            vars(self).pop("_replicates", None)
            scale = not isinstance(self.kernel, Kernel)
            if scale:
                warn_about_distant_rows(X, self.input_labels())
            self.scaling_ = Scaling.of(X, np.zeros((len(X), 1)), scale_inputs=scale, shared=False)
            self._rows, self._labels = self.scaling_.inputs(X).numpy(), 2.0 * labels - 1
            self.lam_, self.measure_ = canonical_lam(self), self._measure()
            problem, inputs, tasks = self._problem()
            solution = self._solve(problem, verbose=self.verbose)
            self.function_ = TaskFunction(inputs, tasks, solution.weights)
            self.gap_, self.fit_report_ = solution.gap, solution.report
            self.fit_report_.num_rows = len(self._rows)
        return self

    def _measure(self) -> TaskMeasure:
        if self.coupling == "independent":
            levels = DEFAULT_LEVELS if self.levels is None else signed_costs(self.levels, self.costs, "levels")
            return grid(np.unique(levels))
        measure = self.measure
        if isinstance(measure, TaskMeasure):
            check_scalar_tasks(measure)
            nodes = signed_costs(measure.nodes.flatten(), self.costs, "The nodes of measure")
            measure = TaskMeasure(torch.from_numpy(nodes).reshape(measure.nodes.shape), measure.weights)
        return make_measure(measure, self.num_tasks, *ENDS["signed"], random_state=self._seed)

    def _problem(self) -> tuple[TaskProblem, object, object]:
        """Return the problem and the factors of inputs and costs."""
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

    def _solve(self, problem: TaskProblem, init: Tensor | None = None, verbose: int = 0) -> TaskSolution:
        return solve_primal(problem, init=init, tolerance=self.tol, max_iter=self.max_iter, verbose=verbose)

    def predict(self, X, cost=None) -> np.ndarray:
        """Predict the class.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        cost : float, array-like of shape (q,) or None, default=None
            Cost θ in the scale `costs`. If None, both mistakes have the same cost.

        Returns
        -------
        ndarray of shape (m,) or (m, q)
            Labels; two-dimensional for a list of costs.
        """
        decided = self.decision_function(X, cost) >= 0
        return self.classes_[decided.astype(int)]

    def decision_function(self, X, cost=None, return_std=False):
        """Return the score h(x)(θ), nonnegative for `classes_[1]`.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        cost : float, array-like of shape (q,) or None, default=None
            Cost θ in the scale `costs`. If None, both mistakes have the same cost.
        return_std : bool, default=False
            Whether to also return the standard deviation over `num_replicates` fits with random weights of the rows
            (the Bayesian bootstrap), an estimate of the variability of the score for other data. It is not that of a
            posterior, since the hinge is not a normalized likelihood (ID-17). The first call fits the replicates.

        Returns
        -------
        score : ndarray of shape (m,) or (m, q)
            Scores; two-dimensional for a list of costs.
        std : ndarray of the same shape
            Standard deviations, if `return_std`.
        """
        check_is_fitted(self, "function_")
        X = self.scaling_.inputs(input_table(self, X, reset=False))
        levels = self._signed(cost)
        score = self.function_(X, levels).numpy()
        one = np.ndim(cost) == 0
        if not return_std:
            return score[:, 0] if one else score
        draws = np.stack([function(X, levels).numpy() for function in self._replicate_functions()])
        std = draws.std(0, ddof=1)
        return (score[:, 0], std[:, 0]) if one else (score, std)

    def roc_curve(self, X, y, costs=None) -> ROCCurve:
        """Compute sensitivity and specificity at each cost: the ROC curve of one fit.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,)
            Labels, with both classes.
        costs : float, array-like or None, default=None
            Costs in the scale `costs`. If None, 101 costs over the whole range, or the learned ones if
            `coupling="independent"`.

        Returns
        -------
        ROCCurve
            Costs and rates.
        """
        check_is_fitted(self, "function_")
        costs = self._curve_costs() if costs is None else np.sort(check_costs(costs, self.costs, "costs"))
        y = np.asarray(as_array(y))
        decided = self.decision_function(X, costs) >= 0
        if y.shape != (len(decided),):
            raise InputError(f"y has shape {y.shape}, expected ({len(decided)},) (one label per row of X).")
        if not set(np.unique(y)) == set(self.classes_):
            raise InputError(
                f"y must contain both classes {self.classes_.tolist()} and no other, got {np.unique(y)[:5].tolist()}. Add rows of the missing class, whose rate is undefined."
            )
        return ROCCurve(costs, *compute_rates(y == self.classes_[1], decided))

    @property
    def n_iter_(self) -> int:
        """Number of iterations of the solver."""
        check_is_fitted(self, "function_")
        return max(1, self.fit_report_.iterations)

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict class and score at the requested costs, or at equal costs."""
        request.reject_options("a classifier", "quantiles", "level", "latent")
        (name,), found = self.output_names_, {}
        for cost, suffix in [(None, "")] if request.costs is None else [(c, f"_at_{c:g}") for c in request.costs]:
            found[f"{name}_class{suffix}"] = self.predict(X, cost)
            found[f"{name}_decision{suffix}"] = self.decision_function(X, cost)
        return found

    def training_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the training rows X (n, d) in original units, and their labels (n,)."""
        check_is_fitted(self)
        rows = self._rows * self.scaling_.input_scale + self.scaling_.input_offset
        return rows, self.classes_[(self._labels > 0).astype(int)]

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ and lengthscales."""
        return [*super().list_parameters(), *list_input_lengthscales(self)]

    def _curve_costs(self) -> np.ndarray:
        low, high = ENDS[self.costs]
        if self.coupling == "infinite":
            return np.linspace(low, high, NUM_COSTS)
        nodes = self.measure_.nodes.numpy()
        return nodes if self.costs == "signed" else (nodes + 1) / 2

    def _signed(self, cost) -> Tensor:
        """Return signed costs (q,), checked against the learned ones if they are independent."""
        levels = torch.from_numpy(np.zeros(1) if cost is None else signed_costs(cost, self.costs))
        if self.coupling == "independent" and bool(
            ((levels[:, None] - self.measure_.nodes).abs().amin(-1) > LEVEL_TOLERANCE).any()
        ):
            raise InputError(
                f"cost must be among the learned costs {self._curve_costs().tolist()}, got cost={cost!r}. "
                'Add it to `levels` or use coupling="infinite".'
            )
        return levels

    def _replicate_functions(self) -> list[TaskFunction]:
        """Return the functions of the replicates, which the first call fits."""
        h = self.function_
        if not hasattr(self, "_replicates"):
            problem = self._problem()[0]

            def fit(weights: np.ndarray) -> np.ndarray:
                return refitted_weights(self._solve(replace(problem, row_weights=torch.from_numpy(weights)), h.weights))

            weights = replicate_weights(np.ones(len(self._rows)), self.num_replicates, self._seed)
            self._replicates = np.stack(replicate_fits(fit, weights, self.verbose))
        return [replace(h, weights=torch.from_numpy(weights)) for weights in self._replicates]

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        if self.levels is not None and self.coupling == "infinite":
            raise OptionError(
                'levels is not supported with coupling="infinite", which learns all costs. Omit levels or use coupling="independent".'
            )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def signed_costs(costs, scale: str, name: str = "cost") -> np.ndarray:
    """Convert costs of either scale to signed ones (q,)."""
    values = check_costs(costs, scale, name)
    return values if scale == "signed" else 2 * values - 1


def check_costs(costs, scale: str, name: str = "cost") -> np.ndarray:
    """Return one cost or several as numbers (q,) in the range of their scale."""
    low, high = ENDS[scale]
    try:
        values = np.asarray(as_array(costs), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{name} must be a cost or a list of costs, got {costs!r}.")
    if not bool(((values >= low) & (values <= high)).all()):  # also rejects NaN
        other = next(one for one in ENDS if one != scale)
        raise InputError(
            f'{name} must lie in [{low:g}, {high:g}] for costs="{scale}", got {costs!r}. Check whether costs="{other}" is meant.'
        )
    return values.reshape(-1)


def compute_rates(positive: np.ndarray, decided: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute sensitivity and specificity (q,) of decisions (n, q), given which rows (n,) are positive."""
    return decided[positive].mean(0), 1 - decided[~positive].mean(0)


def _two_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two labels and the class index (n,) of each row."""
    with raise_input_errors("y"):
        check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) > 2:
        raise InputError(
            f"Only binary classification is supported. The type of the target is multiclass: y has the {len(classes)} classes {classes[:5].tolist()}. Merge some or use SimplexClassifier."
        )
    if len(classes) < 2:
        raise InputError(f"y must have two classes, got one class {classes.tolist()}.")
    return classes, labels.reshape(-1)
