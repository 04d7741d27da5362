"""Base class of the ridge estimators: posterior means of Gaussian processes with a standard deviation.

    f̂ = argmin Σ_i (y_i − f(x_i))ᵀ Σ⁻¹ (y_i − f(x_i)) / (2σ²) + ½ ‖f‖²_K

is the posterior mean of f ~ GP(0, K) with noise σ² Σ (BT-67, 72); σ² is λ in one of several conventions
(`ovkgp.estimators.common.options`). The kernel is not trained; λ is given or selected among several.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.base import POSTERIOR_ATTRIBUTES, PosteriorRegressor
from ovkgp.estimators.common.named_kernels import (
    RIDGE_KERNEL_CONSTRAINTS,
    check_base,
    ridge_kernel,
    scale_kernel,
    usable_scale,
)
from ovkgp.estimators.common.options import (
    CONVENTIONS,
    LAM,
    POSITIVE,
    VERBOSE,
    check_lam,
    integer,
    noise_of,
    one_of,
    restore_on_error,
)
from ovkgp.estimators.common.scaling import Scaling, points
from ovkgp.estimators.common.summary import Hyperparameter, list_gp_parameters
from ovkgp.estimators.common.validation import WeightedData, apply_weights, as_array, input_table, numbers
from ovkgp.estimators.storage.models import ModelBuilder
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import NoisePath, OperatorValuedGP, noise_path, rows_left_out
from ovkgp.inference.posteriors.leave_one_out import LeaveRowOut
from ovkgp.inference.ridge.solvers import SOLVERS


@storable_record
@dataclass(frozen=True, eq=False)
class RidgePath:
    """Criteria of k values of λ, (k,) each: `lam`, `noise` (σ²), `log_evidence`, `loo_error` and `loo_log_density`.

    `loo_error` is the mean squared error of each row predicted from all others, weighted by the inverse noise of its entries if
    weights or a metric make it vary; `loo_log_density` is the sum of the log densities of the rows given all others.
    """

    lam: np.ndarray
    noise: np.ndarray
    log_evidence: np.ndarray
    loo_error: np.ndarray
    loo_log_density: np.ndarray
    _path: NoisePath | None = field(default=None, repr=False)
    _scaling: Scaling | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: NoisePath, lam: np.ndarray, noise: np.ndarray, scaling: Scaling | None = None) -> RidgePath:
        """Make the table of a path of noise levels; without a scaling it cannot predict."""
        columns = (getattr(path, name).numpy() for name in ("log_evidence", "loo_error", "loo_log_density"))
        return cls(lam, noise, *columns, None if scaling is None else path, scaling)

    def best(self, selection: str) -> int:
        """Return the index of the λ with the smallest leave-one-out error ("loo") or the largest evidence ("evidence")."""
        return int(np.argmin(self.loo_error) if selection == "loo" else np.argmax(self.log_evidence))

    def predict(self, X) -> np.ndarray:
        """Return the posterior means (k, m, p) at X (m, d), one per λ."""
        if self._path is None:
            raise OptionError("This table cannot predict. Use the table of estimator.path(X, Y, lam).")
        return self._scaling.mean(self._path.predict(self._scaling.inputs(points(X, self._scaling))))


class RowPredictions(NamedTuple):
    """Mean and standard deviation (n, p) of a new observation in each row given all other rows, NaN where unobserved, and the log density (n,) of the row."""

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray

    @classmethod
    def of(cls, found: LeaveRowOut, scaling: Scaling) -> RowPredictions:
        """Convert to original units; a ridge shifts its outputs and does not scale them."""
        return cls(scaling.mean(found.mean), scaling.std(found.std), found.log_density.numpy())


SOLVER_CONSTRAINTS = {
    "solver": [one_of(*SOLVERS)],
    "selection": [one_of("loo", "evidence")],
    "tolerance": [POSITIVE],
    "max_iter": [integer(), None],
}
"""Options of the ridge estimators that use `solve_ridge`."""


class RidgeEstimator(PosteriorRegressor):
    """Base class of `OVKRidge`, `ORFFRidge` and `ManifoldRidge`."""

    reported = (("lam_", "penalty λ"), ("scale_", "scale of prior and noise s²"))
    _parameter_constraints: ClassVar[dict[str, list]] = {
        **RIDGE_KERNEL_CONSTRAINTS,
        "lam": LAM,
        "convention": [one_of(*CONVENTIONS)],
        "output_metric": ["array-like", None],
        "fit_intercept": ["boolean"],
        "scale": [one_of("given", "evidence")],
        "verbose": VERBOSE,
    }

    def fit(self, X, y, sample_weight=None) -> RidgeEstimator:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n, p) or (n,)
            Outputs, NaN where missing.
        sample_weight : array-like of shape (n,) or (n, p), or None, default=None
            Weights of rows, which count as copies, or of entries in the loss. The noise of an entry is σ² / weight; entries of
            weight zero are ignored. The covariance of the outputs (`kernel="decomposable"`) and leave-one-out do not use them.

        Returns
        -------
        self
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            table = self._first(X, y, sample_weight)
            self._begin(table.X, table.Y, table.mean())
            self._select_lam(table)
            self._solve(table)
            if self.scale == "evidence":
                self.scale_ = usable_scale(self._best_scale(table), table.Y)
                self._take(self.noise_, self.scale_)
                self._solve(table)
        return self

    def _begin(self, X: np.ndarray, Y: np.ndarray, mean: np.ndarray) -> None:
        """Make the kernel, from the rows or a sample of them, and the intercept."""
        self._kernel = self._kernel_of(X, Y)
        self.kernel_ = "given" if isinstance(self.kernel, Kernel) else self.kernel
        none = Scaling.none(X.shape[1], Y.shape[1])
        offset = mean if self.fit_intercept else none.output_offset
        self.scaling_ = Scaling(none.input_offset, none.input_scale, offset, none.output_scale)

    def _kernel_of(self, X: np.ndarray, Y: np.ndarray) -> Kernel:
        observed = np.isfinite(Y).any(1)
        return ridge_kernel(self, X[observed], Y[observed])

    def _select_lam(self, table: WeightedData) -> None:
        """Select λ and make the model."""
        self._counts = table.num_rows, table.num_observed
        self._choose(lambda lams, noises: RidgePath.of(self._noise_path(table, noises), lams, noises))

    def _choose(self, path: Callable[[np.ndarray, np.ndarray], RidgePath]) -> None:
        """Take the only λ, or select the best of several on their path."""
        lams, noises, best = check_lam(self.lam), self._noises(), 0
        if len(lams) > 1:
            self.path_ = path(lams, noises)
            best = self.path_.best(self.selection)
        self.lam_, self.noise_ = float(lams[best]), float(noises[best])
        self._take(self.noise_)

    def _noises(self) -> np.ndarray:
        """Return σ² (k,) of each λ, for the rows so far."""
        return noise_of(1.0, self.convention, *self._counts) * check_lam(self.lam)

    def _take(self, noise: float, scale: float = 1.0) -> None:
        """Make `gp_`, the Gaussian process whose posterior mean the estimator is."""
        self.gp_, self._noise_now = self._gp(noise, scale), noise * scale

    def _gp(self, noise: float, scale: float = 1.0) -> OperatorValuedGP:
        kernel, metric = self._kernel, self._metric()
        kernel = kernel if scale == 1.0 else self._scaled(kernel, scale)
        noise = noise * scale if metric is None else noise * scale * metric
        return OperatorValuedGP(kernel, mean="zero", noise=noise, features=self._features(kernel))

    def _scaled(self, kernel: Kernel, scale: float) -> Kernel:
        return scale_kernel(kernel, scale)

    @abstractmethod
    def _features(self, kernel: Kernel):
        """Return the feature map, or None for the exact kernel."""

    @abstractmethod
    def _solve(self, table: WeightedData) -> None:
        """Set `posterior_` from `gp_`."""

    def _data(
        self, table: WeightedData, noise: float | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the table in standardized units, and the noise of each entry if weights make it vary."""
        noise = self._noise_now if noise is None else noise
        known = None if table.variances is None else torch.from_numpy(noise * table.variances)
        return self.scaling_.inputs(table.X), self.scaling_.outputs(table.Y), known

    def _noise_path(self, table: WeightedData, noises: np.ndarray) -> NoisePath:
        unit = middle(noises)  # eigenvalues far from the noise would be lost to rounding
        X, Y, known = self._data(table, unit)
        return noise_path(self._gp(unit), X, Y, noises / unit, known, rescale=self.scale == "evidence")

    def _best_scale(self, table: WeightedData) -> float:
        """Compute yᵀ (K + N)⁻¹ y / |y| = yᵀ N⁻¹ (y − f̂) / |y|."""
        X, Y, known = self._data(table)
        observed = torch.isfinite(Y)
        if (solver := getattr(self.posterior_, "solver", None)) is not None:  # without the difference y − f̂
            kept = observed.any(1)
            return float((torch.nan_to_num(Y[kept]) * solver.alpha).sum() / observed.sum())
        Y, remainder = torch.nan_to_num(Y), torch.where(observed, Y - self.posterior_.predict(X, "none").mean, 0.0)
        noise = self.gp_.noise_model
        if known is not None or noise.is_diagonal:
            weighted = remainder / (noise.matrix().diagonal() if known is None else known)
            return float((Y * weighted).sum() / observed.sum())
        rows = zip(Y, remainder, observed, strict=True)
        return sum(_row_form(*row, noise.matrix()) for row in rows) / int(observed.sum())

    def path(self, X, y, lam=None, sample_weight=None) -> RidgePath:
        """Compute evidence, leave-one-out errors and predictions for several λ from one factorization (BT-76).

        Parameters
        ----------
        X, y, sample_weight
            Data, as for `fit`.
        lam : list of float or None, default=None
            Values of λ in the convention of the estimator. If None, those of the constructor.

        Returns
        -------
        RidgePath
            `lam`, `noise`, `log_evidence`, `loo_error` and `loo_log_density`, (k,) each; `predict(X)` returns the posterior
            means (k, m, p).
        """
        table, lams = self._again(X, y, sample_weight), check_lam(self.lam if lam is None else lam)
        factor = noise_of(1.0, self.convention, table.num_rows, table.num_observed)
        return RidgePath.of(self._noise_path(table, factor * lams), lams, factor * lams, self.scaling_)

    def leave_one_out(self, X, y, sample_weight=None) -> RowPredictions:
        """Predict each row of y from all other rows, at the fitted λ and in closed form.

        Parameters
        ----------
        X, y, sample_weight
            Data, as for `fit`.

        Returns
        -------
        RowPredictions
            `mean` and `std` (n, p), `log_density` (n,).
        """
        table = self._again(X, y, sample_weight)
        data = self._data(table)
        return RowPredictions.of(rows_left_out(self.gp_, *data), self.scaling_)

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, scale, noise and the parameters of the kernel."""
        return [*super().list_parameters(), *list_gp_parameters(self, self._noise_now)]

    def _about(self) -> dict:
        return super()._about() | {"num_entries": int(self._counts[1])}

    def _first(self, X, Y, sample_weight, simplify: bool = True) -> WeightedData:
        """Check the data of a new model, in which every output must be observed."""
        table = self._checked(apply_weights(*self._enter(X, Y), sample_weight), simplify)
        if not np.isfinite(table.Y).any(0).all():
            raise InputError(
                "sample_weight must be positive for an observed entry of every output, got only zero. Drop the column or add observations."
            )
        return table

    def _again(self, X, Y, sample_weight, simplify: bool = True) -> WeightedData:
        """Check data of the fitted model."""
        check_is_fitted(self, "posterior_")
        X = input_table(self, X, reset=False)
        return self._checked(apply_weights(X, self._outputs(Y, X), sample_weight), simplify)

    def _checked(self, table: WeightedData, simplify: bool) -> WeightedData:
        table = table.simplified() if simplify or self.output_metric is not None else table
        if self._metric() is not None and table.variances is not None:
            raise OptionError("sample_weight of entries is not supported with an output_metric. Remove one of them.")
        return table

    def check_options(self) -> None:
        """Check the options and their combinations."""
        super().check_options()
        check_base(self)

    def _metric(self) -> np.ndarray | None:
        """Return Σ (p, p) of the loss (y − f)ᵀ Σ⁻¹ (y − f)."""
        if self.output_metric is None:
            return None
        metric, p = numbers(as_array(self.output_metric), "output_metric"), self.n_outputs_
        if metric.shape not in ((p,), (p, p)):
            raise InputError(f"output_metric has shape {metric.shape}, expected ({p},) or ({p}, {p}).")
        return metric


def middle(noises: np.ndarray) -> float:
    """Return the geometric mean of the smallest and largest noise level."""
    return float(np.sqrt(noises.min()) * np.sqrt(noises.max()))


def _row_form(y: torch.Tensor, remainder: torch.Tensor, observed: torch.Tensor, noise: torch.Tensor) -> float:
    return float(y[observed] @ torch.linalg.solve(noise[observed][:, observed], remainder[observed]))


def rebuild_ridge_kernel(estimator, values: dict[str, torch.Tensor], scale: float) -> Kernel:
    """Make the kernel of a loaded ridge estimator, of which only the shapes matter."""
    options = SimpleNamespace(base_kernel=estimator.base_kernel, output_matrix=estimator.output_matrix, lengthscale=1.0)
    options.kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else estimator.kernel_
    kernel = ridge_kernel(options, np.zeros((2, estimator.n_features_in_)), np.zeros((2, estimator.n_outputs_)))
    return kernel if scale == 1.0 else scale_kernel(kernel, scale)


RIDGE_ATTRIBUTES = (*POSTERIOR_ATTRIBUTES, "lam_", "noise_", "_noise_now", "_counts")
"""Fitted attributes of every ridge estimator, for model files."""
RIDGE_BUILDER = ModelBuilder(rebuild_ridge_kernel, keeps_unscaled_kernel=True)
