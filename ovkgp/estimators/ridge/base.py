"""Ridge regression with an operator-valued kernel: the papers' estimators, as posterior means with a standard deviation.

    f̂ = argmin Σ_i (y_i − f(x_i))ᵀ Σ⁻¹ (y_i − f(x_i)) / (2σ²) + ½ ‖f‖²_K

is the posterior mean of the Gaussian process f ~ GP(0, K) with noise σ² Σ (BT-67, 72); σ² is λ in one of several conventions
(`ovkgp.estimators.common.options`). Nothing is trained: the kernel is what it is, and λ is given, or chosen among several.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_integer
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.named_kernels import check_base, ridge_kernel
from ovkgp.estimators.common.options import all_or_nothing, check_convention, check_lam, check_option, noise_of
from ovkgp.estimators.common.scaling import Scaling, points
from ovkgp.estimators.common.validation import Weighed, as_array, input_table, numbers, weighted
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import NoisePath, OperatorValuedGP, noise_path, rows_left_out
from ovkgp.inference.posteriors.leave_one_out import LeaveRowOut
from ovkgp.inference.ridge.solvers import SOLVERS


@dataclass(frozen=True, eq=False)
class RidgePath:
    """What the data say of each of k values of λ.

    Attributes:
        lam, noise: λ and the noise variance σ² that it stands for, (k,).
        log_evidence: log p(Y), (k,).
        loo_error: the mean squared error of each row predicted from all others, (k,); entries are weighted by the inverse of
            their noise, where weights or a metric make it unlike.
        loo_log_density: the sum of the log densities of the rows given all others, (k,).
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
        """From a path of noise levels; without a scaling it keeps the numbers only, and does not predict."""
        columns = (getattr(path, name).numpy() for name in ("log_evidence", "loo_error", "loo_log_density"))
        return cls(lam, noise, *columns, None if scaling is None else path, scaling)

    def best(self, selection: str) -> int:
        """The place of the λ with the smallest leave-one-out error ("loo") or the largest evidence ("evidence")."""
        return int(np.argmin(self.loo_error) if selection == "loo" else np.argmax(self.log_evidence))

    def predict(self, X) -> np.ndarray:
        """The posterior means (k, m, p) at X (m, d), one for each λ."""
        if self._path is None:
            raise OptionError("this table keeps numbers only: estimator.path(X, Y, lam) makes one that predicts.")
        return self._scaling.mean(self._path.predict(self._scaling.inputs(points(X, self._scaling))))


class LeftOut(NamedTuple):
    """Mean and standard deviation (n, p) of a new observation in each row given all other rows, NaN where nothing was seen, and the
    log density (n,) of what was."""

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray

    @classmethod
    def of(cls, left_out: LeaveRowOut, scaling: Scaling) -> LeftOut:
        """The same in the user's units; a ridge shifts its outputs and does not scale them."""
        return cls(scaling.mean(left_out.mean), scaling.std(left_out.std), left_out.log_density.numpy())


SELECTIONS = ("loo", "evidence")
SCALES = ("given", "evidence")


class RidgeEstimator(PosteriorRegressor):
    """What `OVKRidge`, `ORFFRidge` and `ManifoldRidge` share."""

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
        observed = np.isfinite(Y).any(1)
        return ridge_kernel(self, X[observed], Y[observed])

    def _settle(self, table: Weighed) -> None:
        """Choose λ and make the model."""
        self._counts = table.num_rows, table.num_observed
        self._choose(lambda lams, noises: RidgePath.of(self._noise_path(table, noises), lams, noises))

    def _choose(self, path: Callable[[np.ndarray, np.ndarray], RidgePath]) -> None:
        """Take the one λ, or the best of several on the path that they and their σ² make."""
        lams, noises, best = check_lam(self.lam), self._noises(), 0
        if len(lams) > 1:
            self.path_ = path(lams, noises)
            best = self.path_.best(self.selection)
        self.lam_, self.noise_ = float(lams[best]), float(noises[best])
        self._take(self.noise_)

    def _noises(self) -> np.ndarray:
        """σ² (k,) of each λ, for the rows seen so far."""
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
        table, lams = self._again(X, y, sample_weight), check_lam(self.lam if lam is None else lam)
        factor = noise_of(1.0, self.convention, table.num_rows, table.num_observed)
        return RidgePath.of(self._noise_path(table, factor * lams), lams, factor * lams, self.scaling_)

    def leave_one_out(self, X, y, sample_weight=None) -> LeftOut:
        """Each row of y given all other rows, at the fitted λ and in closed form: mean and std (n, p), log density (n,)."""
        table = self._again(X, y, sample_weight)
        data = self._data(table)
        return LeftOut.of(rows_left_out(self.gp_, *data), self.scaling_)

    def _first(self, X, Y, sample_weight, simplify: bool = True) -> Weighed:
        """Data of a new model, in which every output must be seen."""
        table = self._checked(weighted(*self._enter(X, Y), sample_weight), simplify)
        if not np.isfinite(table.Y).any(0).all():
            raise InputError("all observed entries of an output have weight zero: leave that column out, or add data.")
        return table

    def _again(self, X, Y, sample_weight, simplify: bool = True) -> Weighed:
        """Data of the fitted model."""
        check_is_fitted(self, "posterior_")
        X = input_table(self, X, reset=False)
        return self._checked(weighted(X, self._outputs(Y, X), sample_weight), simplify)

    def _checked(self, table: Weighed, simplify: bool) -> Weighed:
        table = table.simplified() if simplify or self.output_metric is not None else table
        if self._metric() is not None and table.variances is not None:
            raise OptionError("weights of the entries and an output_metric do not go together: leave one of them out.")
        return table

    # --- options ----------------------------------------------------------------------------------------------------

    def _require_options(self) -> None:
        check_convention(self.convention)
        check_lam(self.lam)
        check_base(self)
        check_option("scale", self.scale, SCALES)

    def _metric(self) -> np.ndarray | None:
        """Σ (p, p) of the loss (y − f)ᵀ Σ⁻¹ (y − f)."""
        if self.output_metric is None:
            return None
        metric, p = numbers(as_array(self.output_metric), "output_metric"), self.n_outputs_
        if metric.shape not in ((p,), (p, p)):
            raise InputError(f"output_metric must be ({p},) or ({p}, {p}), for {p} outputs; got {metric.shape}.")
        return metric


def check_solver(estimator) -> None:
    """Refuse a solver, its options, or a way to choose λ that there is not."""
    check_option("solver", estimator.solver, SOLVERS)
    check_option("selection", estimator.selection, SELECTIONS)
    tolerance = estimator.tolerance
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 < tolerance < np.inf:
        raise OptionError(f"tolerance must be a positive number, got {tolerance!r}.")
    if estimator.max_iter is not None:
        check_integer("max_iter", estimator.max_iter)


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


def _row_form(y: torch.Tensor, remainder: torch.Tensor, observed: torch.Tensor, noise: torch.Tensor) -> float:
    return float(y[observed] @ torch.linalg.solve(noise[observed][:, observed], remainder[observed]))
