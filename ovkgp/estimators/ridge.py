"""Ridge regression with an operator-valued kernel: the papers' estimators, as posterior means with a standard deviation.

    f̂ = argmin Σ_i (y_i − f(x_i))ᵀ Σ⁻¹ (y_i − f(x_i)) / (2σ²) + ½ ‖f‖²_K

is the posterior mean of the Gaussian process f ~ GP(0, K) with noise σ² Σ (BT-67, 72); σ² is λ in one of several conventions
(`ovkgp.estimators.conventions`). Nothing is trained: the kernel is what it is, and λ is given, or chosen among several.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.conventions import noise_of, require_convention, require_lam
from ovkgp.estimators.options import require_option
from ovkgp.estimators.posterior_regressor import PosteriorRegressor
from ovkgp.estimators.restoring import all_or_nothing
from ovkgp.estimators.ridge_kernels import require_base, ridge_kernel
from ovkgp.estimators.ridge_path import LeftOut, RidgePath
from ovkgp.estimators.scaling import Scaling
from ovkgp.estimators.tables import as_array, entry_values, input_table, numbers
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import NoisePath, OperatorValuedGP, Posterior, noise_path, rows_left_out
from ovkgp.inference.ridge_solvers import SOLVERS, solve_ridge
from ovkgp.kernels.checks import whole_number

SELECTIONS = ("loo", "evidence")
SCALES = ("given", "evidence")


@dataclass(frozen=True)
class Weighed:
    """X (n, d), Y (n, p) with NaN where missing or without weight, 1 / weight of each entry, and how often a row counts."""

    X: np.ndarray
    Y: np.ndarray
    variances: np.ndarray | None = None
    counts: np.ndarray | None = None

    @property
    def num_rows(self) -> float:
        """How many rows have something observed."""
        return float((np.isfinite(self.Y).any(1) * (1 if self.counts is None else self.counts)).sum())

    @property
    def num_seen(self) -> float:
        """How many entries are observed."""
        return float((np.isfinite(self.Y).sum(1) * (1 if self.counts is None else self.counts)).sum())

    def simplified(self) -> Weighed:
        """The same without weights that are all one."""
        is_plain = self.variances is None or bool((self.variances == 1).all())
        return Weighed(self.X, self.Y) if is_plain else self

    def mean(self) -> np.ndarray:
        """The weighted mean (p,) of each output."""
        weights = np.isfinite(self.Y) / (1.0 if self.variances is None else self.variances)
        return np.nansum(weights * np.nan_to_num(self.Y), 0) / weights.sum(0)


class RidgeEstimator(PosteriorRegressor):
    """What `OVKRidge` and `ORFFRidge` share."""

    # --- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X, y, sample_weight=None) -> RidgeEstimator:
        """Fit to X (n, d) and y (n, p) or (n,), NaN where an output is missing.

        Args:
            sample_weight: of the rows (n,), which then count so many times, or of the entries (n, p) in the loss. The noise
                of an entry is σ² / weight; a weight of zero leaves it out. Neither the covariance of the outputs, for
                kernel="decomposable", nor leaving out a row knows of copies.
        """
        with all_or_nothing(self):
            self._require_options()
            table = self._first(X, y, sample_weight)
            self._begin(table.X, table.Y, table.mean())
            self._settle(table)
            self._solve(table)
            if self.scale == "evidence":
                self.scale_ = positive(self._best_scale(table), table.Y)
                self._take(self.noise_, self.scale_)
                self._solve(table)
        return self

    def _begin(self, X: np.ndarray, Y: np.ndarray, mean: np.ndarray) -> None:
        """The kernel, from the rows or a sample of them, and the intercept."""
        self._kernel = self._kernel_of(X, Y)
        self.kernel_ = "given" if isinstance(self.kernel, Kernel) else self.kernel
        none = Scaling.none(X.shape[1], Y.shape[1])
        offset = mean if self.fit_intercept else none.output_offset
        self.scaling_ = Scaling(none.input_offset, none.input_scale, offset, none.output_scale)

    def _kernel_of(self, X: np.ndarray, Y: np.ndarray) -> Kernel:
        seen = np.isfinite(Y).any(1)
        return ridge_kernel(self, X[seen], Y[seen])

    def _settle(self, table: Weighed) -> None:
        """Choose λ and make the model."""
        self._counts, best = (table.num_rows, table.num_seen), 0
        lams, noises = require_lam(self.lam), self._noises()
        if len(lams) > 1:
            self.path_ = RidgePath.of(self._noise_path(table, noises), lams, noises)
            best = self.path_.best(self.selection)
        self.lam_, self.noise_ = float(lams[best]), float(noises[best])
        self._take(self.noise_)

    def _noises(self) -> np.ndarray:
        """σ² (k,) of each λ, for the rows seen so far."""
        return noise_of(1.0, self.convention, *self._counts) * require_lam(self.lam)

    def _take(self, noise: float, scale: float = 1.0) -> None:
        """Make `gp_`, the Gaussian process whose posterior mean the estimator is."""
        self.gp_, self._noise_now = self._gp(noise, scale), noise * scale

    def _gp(self, noise: float, scale: float = 1.0) -> OperatorValuedGP:
        kernel, metric = self._kernel, self._metric()
        kernel = kernel if scale == 1.0 else self._scaled(kernel, scale)
        noise = noise * scale if metric is None else noise * scale * metric
        return OperatorValuedGP(kernel, mean="zero", noise=noise, features=self._features(kernel))

    def _scaled(self, kernel: Kernel, scale: float) -> Kernel:
        return scaled_kernel(kernel, scale)

    @abstractmethod
    def _features(self, kernel: Kernel):
        """The feature map, or None for the exact kernel."""

    @abstractmethod
    def _solve(self, table: Weighed) -> None:
        """Set `posterior_` from `gp_`."""

    def _data(
        self, table: Weighed, noise: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The table in the model's units, and the noise of each entry where weights make it unlike."""
        noise = self._noise_now if noise is None else noise
        known = None if table.variances is None else torch.from_numpy(noise * table.variances)
        return self.scaling_.inputs(table.X), self.scaling_.outputs(table.Y), known

    def _noise_path(self, table: Weighed, noises: np.ndarray) -> NoisePath:
        unit = middle(noises)  # eigenvalues far from the noise would be lost beside it
        X, Y, known = self._data(table, unit)
        return noise_path(self._gp(unit), X, Y, noises / unit, known, rescale=self.scale == "evidence")

    def _best_scale(self, table: Weighed) -> float:
        """yᵀ (K + N)⁻¹ y / |y| = yᵀ N⁻¹ (y − f̂) / |y|."""
        X, Y, known = self._data(table)
        seen = torch.isfinite(Y)
        if (solver := getattr(self.posterior_, "solver", None)) is not None:  # without the difference y − f̂
            kept = seen.any(1)
            return float((torch.nan_to_num(Y[kept]) * solver.alpha).sum() / seen.sum())
        Y, remainder = torch.nan_to_num(Y), torch.where(seen, Y - self.posterior_.predict(X, "none").mean, 0.0)
        noise = self.gp_.noise_model
        if known is not None or noise.is_diagonal:
            weighted = remainder / (noise.matrix().diagonal() if known is None else known)
            return float((Y * weighted).sum() / seen.sum())
        rows = zip(Y, remainder, seen, strict=True)
        return sum(_row_form(*row, noise.matrix()) for row in rows) / int(seen.sum())

    # --- asking -----------------------------------------------------------------------------------------------------

    def path(self, X, y, lam=None, sample_weight=None) -> RidgePath:
        """Evidence, leave-one-out errors and predictions for each of several λ, from one factorisation (BT-76).

        Args:
            X, y, sample_weight: the data, as in `fit`.
            lam: several λ, in the estimator's convention; those of the constructor where it is None.

        Returns:
            A table with `lam`, `noise`, `log_evidence`, `loo_error` and `loo_log_density`, (k,) each; its `predict(X)`
            gives the posterior means (k, m, p).
        """
        table, lams = self._again(X, y, sample_weight), require_lam(self.lam if lam is None else lam)
        factor = noise_of(1.0, self.convention, table.num_rows, table.num_seen)
        return RidgePath.of(self._noise_path(table, factor * lams), lams, factor * lams, self.scaling_)

    def leave_one_out(self, X, y, sample_weight=None) -> LeftOut:
        """Each row of y given all other rows, at the fitted λ and in closed form: mean and std (n, p), log density (n,)."""
        table = self._again(X, y, sample_weight)
        data = self._data(table)
        return LeftOut.of(rows_left_out(self.gp_, *data), self.scaling_)

    def _first(self, X, Y, sample_weight, simplify: bool = True) -> Weighed:
        """Data of a new model, in which every output must be seen."""
        table = self._checked(weighed(*self._enter(X, Y), sample_weight), simplify)
        if not np.isfinite(table.Y).any(0).all():
            raise InputError("all observed entries of an output have weight zero: leave that column out, or add data.")
        return table

    def _again(self, X, Y, sample_weight, simplify: bool = True) -> Weighed:
        """Data of the fitted model."""
        check_is_fitted(self, "posterior_")
        X = input_table(self, X, reset=False)
        return self._checked(weighed(X, self._outputs(Y, X), sample_weight), simplify)

    def _checked(self, table: Weighed, simplify: bool) -> Weighed:
        table = table.simplified() if simplify or self.output_metric is not None else table
        if self._metric() is not None and table.variances is not None:
            raise OptionError("weights of the entries and an output_metric do not go together: leave one of them out.")
        return table

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        require_convention(self.convention)
        require_lam(self.lam)
        require_base(self)
        require_option("scale", self.scale, SCALES)

    def _metric(self) -> np.ndarray | None:
        """Σ (p, p) of the loss (y − f)ᵀ Σ⁻¹ (y − f)."""
        if self.output_metric is None:
            return None
        metric, p = numbers(as_array(self.output_metric), "output_metric"), self.n_outputs_
        if metric.shape not in ((p,), (p, p)):
            raise InputError(f"output_metric must be ({p},) or ({p}, {p}), for {p} outputs; got {metric.shape}.")
        return metric


class OVKRidge(RidgeEstimator):
    """Ridge regression with the exact kernel: the posterior mean of a Gaussian process with noise σ² (BT-67).

    Args:
        kernel: "auto" or "independent" (k(x, z) I), "decomposable" (k(x, z) Γ), "curl_free", "divergence_free",
            "helmholtz" (vector fields), or a kernel object, which is copied.
        lam: λ > 0, or a list of several, among which `selection` chooses.
        convention: what λ means; see `ovkgp.estimators.conventions`. "sum" is σ² = λ, "mean" is σ² = nλ, …
        solver: "auto" (the fastest that applies), or "eigen" (two eigendecompositions: separable kernels, complete outputs),
            "closed_form" (Cholesky), "cg", "lbfgs" (products with the kernel only). They agree.
        base_kernel: "rbf", "matern12", "matern32", "matern52", "rq" or a scalar kernel object.
        lengthscale: of a base kernel by name: "median" (the median distance between inputs) or a number.
        output_matrix: Γ (p, p) for "decomposable" (or "auto"): an array or a module of `ovkgp.kernels`. None takes the
            covariance of the outputs for "decomposable", the identity for "auto".
        output_metric: Σ (p, p) or (p,) in the loss (y − f)ᵀ Σ⁻¹ (y − f): noise that is correlated between outputs.
        fit_intercept: centre the outputs first; the papers do not.
        selection: among several λ, by "loo" (the smallest error of rows left out) or "evidence" (the largest).
        scale: "given" takes prior and noise as they are. λ fixes only their ratio: "evidence" multiplies both by the one
            factor that makes the evidence largest, which leaves the mean as it is and gives the std its size (and takes
            twice the time).
        tolerance, max_iter: of the iterative solvers.
        verbose: 0 is quiet, 1 shows progress.

    Attributes:
        noise_: σ², the noise variance (its covariance is σ² Σ with an `output_metric`), before `scale_`.
        lam_, path_: the λ taken and, for several, the table that it was chosen by.
        scale_: the factor of scale="evidence".
        gp_, posterior_: the `OperatorValuedGP` behind it and its posterior; `scaling_` holds the intercept.
        dual_coef_: u (n, p) with f(x) = Σ_j K(x, x_j) u_j, over the rows x_j in which something was seen (`posterior_.X`).
        n_iter_: iterations of the solver; 1 for those that factorise.
        kernel_, n_outputs_, output_names_, n_features_in_, feature_names_in_.

    Cost: O(n³ + p³) for a separable kernel with complete outputs, else O(N³) for N observed entries; O(n²) or O(N²) memory.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> ridge = ovkgp.OVKRidge(lam=[1e-6, 1e-3, 1.0], convention="mean").fit(X, Y)
        >>> ridge.lam_, ridge.noise_ == 40 * ridge.lam_
        (1e-06, True)
        >>> mean, std = ridge.predict([[1.5], [2.0]], return_std=True)
        >>> mean.shape, std.shape
        ((2, 2), (2, 2))
    """

    def __init__(
        self,
        kernel="auto",
        lam=1.0,
        convention="sum",
        solver="auto",
        base_kernel="rbf",
        lengthscale="median",
        output_matrix=None,
        output_metric=None,
        fit_intercept=False,
        selection="loo",
        scale="given",
        tolerance=1e-9,
        max_iter=None,
        verbose=0,
    ):
        self.kernel = kernel
        self.lam = lam
        self.convention = convention
        self.solver = solver
        self.base_kernel = base_kernel
        self.lengthscale = lengthscale
        self.output_matrix = output_matrix
        self.output_metric = output_metric
        self.fit_intercept = fit_intercept
        self.selection = selection
        self.scale = scale
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.verbose = verbose

    def _require_options(self) -> None:
        super()._require_options()
        require_solver(self)

    def _features(self, kernel: Kernel) -> None:
        return None

    def _solve(self, table: Weighed) -> None:
        data = self._data(table)
        options = {"tolerance": self.tolerance, "max_iter": self.max_iter, "verbose": self.verbose}
        self.posterior_: Posterior = solve_ridge(self.gp_, *data, solver=self.solver, **options)

    @property
    def n_iter_(self) -> int:
        """How many iterations the solver took; 1 for those that factorise."""
        check_is_fitted(self, "posterior_")
        return max(getattr(self.posterior_.solver, "num_iterations", 1), 1)

    @property
    def dual_coef_(self) -> np.ndarray:
        check_is_fitted(self, "posterior_")
        return self.posterior_.solver.alpha.numpy()


def weighed(X: np.ndarray, Y: np.ndarray, weight) -> Weighed:
    """Data with the weights of rows (n,) or entries (n, p)."""
    if weight is None:
        return Weighed(X, Y)
    weight = np.asarray(as_array(weight), dtype=np.float64)
    counts = weight if weight.ndim == 1 and len(weight) == len(Y) else None
    weight = np.broadcast_to(weight[:, None], Y.shape) if counts is not None else weight
    weight = entry_values(weight, Y, "sample_weight is a number for each row, or")
    if not bool((np.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight must be finite and not negative.")
    Y = np.where(weight > 0, Y, np.nan)
    return Weighed(X, Y, 1 / np.where(weight > 0, weight, 1.0), counts)


def require_solver(estimator) -> None:
    """Refuse a solver, its options, or a way to choose λ that there is not."""
    require_option("solver", estimator.solver, SOLVERS)
    require_option("selection", estimator.selection, SELECTIONS)
    tolerance = estimator.tolerance
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 < tolerance < np.inf:
        raise OptionError(f"tolerance must be a positive number, got {tolerance!r}.")
    if estimator.max_iter is not None:
        whole_number("max_iter", estimator.max_iter)


def scaled_kernel(kernel: Kernel, scale: float) -> Kernel:
    """A kernel times a number."""
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = torch.tensor(scale, dtype=torch.float64)  # a bare number would be rounded to float32
    return scaled


def middle(noises: np.ndarray) -> float:
    """The geometric middle of some noise levels."""
    return float(np.sqrt(noises.min()) * np.sqrt(noises.max()))


def positive(scale: float, Y: np.ndarray | None = None) -> float:
    """A scale that can be used: outputs that are all zero have none, and where λ is numerically zero it is lost to rounding."""
    if scale > 0:
        return scale
    if Y is None or np.nan_to_num(Y).any():
        warnings.warn(
            'lam is numerically zero, and the scale of scale="evidence" was lost to rounding: it is taken as 1. Raise lam.',
            FitWarning,
            stacklevel=4,
        )
    return 1.0


def _row_form(y: torch.Tensor, remainder: torch.Tensor, seen: torch.Tensor, noise: torch.Tensor) -> float:
    return float(y[seen] @ torch.linalg.solve(noise[seen][:, seen], remainder[seen]))
