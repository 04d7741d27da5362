"""Base class of the ridge estimators: posterior means of Gaussian processes with a standard deviation.

    f̂ = argmin Σ_i (y_i − f(x_i))ᵀ Σ⁻¹ (y_i − f(x_i)) / (2σ²) + ½ ‖f‖²_K

is the posterior mean of f ~ GP(0, K) with noise σ² Σ (BT-67, 72); σ² is λ in one of several conventions
(`ovkgp.estimators.common.options`). The kernel is not trained; λ is given or selected among several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_numbers
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
    FRACTION,
    LAM,
    VERBOSE,
    check_lam,
    integer,
    noise_of,
    one_of,
)
from ovkgp.estimators.common.scaling import Scaling, points
from ovkgp.estimators.common.summary import Hyperparameter, list_gp_parameters
from ovkgp.estimators.common.validation import Table, WeightedData, apply_weights, as_array, input_table
from ovkgp.estimators.storage.models import ModelBuilder
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference import NoisePath, OperatorValuedGP, Posterior, leave_rows_out, noise_path
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
    _about: tuple = field(default=(None, np.inf), repr=False)  # last arguments of `points`

    def best(self, selection: str) -> int:
        """Return the index of the λ with the smallest leave-one-out error ("loo") or the largest evidence ("evidence")."""
        return int(np.argmin(self.loo_error) if selection == "loo" else np.argmax(self.log_evidence))

    def predict(self, X) -> np.ndarray:
        """Return the posterior means (k, m, p) at X (m, d), one per λ."""
        if self._path is None:
            raise OptionError("This table cannot predict. Use the table of estimator.path(X, Y, lam).")
        return self._scaling.mean(self._path.predict(self._scaling.inputs(points(X, self._scaling, *self._about))))


class RowPredictions(NamedTuple):
    """Mean and standard deviation (n, p) of a new observation in each row given all other rows, NaN where unobserved, and the log density (n,) of the row."""

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray


SOLVER_CONSTRAINTS = {
    "solver": [one_of(*SOLVERS)],
    "selection": [one_of("loo", "evidence")],
    "tolerance": [FRACTION],
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
        data, lams = self._check_further_rows(X, y, sample_weight), check_lam(self.lam if lam is None else lam)
        noises = noise_of(1.0, self.convention, data.num_rows, data.num_observed) * lams
        scale, rescale = getattr(self, "scale_", 1.0), self.scale == "evidence"

        def make_gp(noise: float) -> OperatorValuedGP:
            return make_ridge_gp(self.gp_.kernel, noise, self._metric(), self.gp_.features)

        found = compute_path(make_gp, data, lams, scale * noises, self.scaling_, rescale=rescale)
        about = getattr(self, "input_times_", None), self.largest_lengthscale()
        return replace(found, noise=noises, _about=about)

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
        table = weighted_table(self._check_further_rows(X, y, sample_weight), self._scaled_noise)
        found, scaling = leave_rows_out(self.gp_, *table.scaled(self.scaling_)), self.scaling_
        return RowPredictions(scaling.mean(found.mean), scaling.std(found.std), found.log_density.numpy())

    def list_parameters(self) -> list[Hyperparameter]:
        """List λ, scale, noise and the parameters of the kernel."""
        return [*super().list_parameters(), *list_gp_parameters(self, self._scaled_noise)]

    @property
    def _scaled_noise(self) -> float:
        """Noise σ² of `gp_`, including the scale of the evidence."""
        return self.noise_ * getattr(self, "scale_", 1.0)

    def _about(self) -> dict:
        return super()._about() | {"num_entries": int(self._counts[1])}

    def _check_first_rows(self, X, Y, sample_weight, simplify: bool = True) -> WeightedData:
        """Check the data of a new model, in which every output must be observed."""
        table = self._checked(apply_weights(*self._enter(X, Y), sample_weight), simplify)
        if not np.isfinite(table.Y).any(0).all():
            raise InputError(
                "sample_weight must be positive for an observed entry of every output, got only zero. Drop the column or add observations."
            )
        return table

    def _check_further_rows(self, X, Y, sample_weight, simplify: bool = True) -> WeightedData:
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
        metric, p = as_numbers(as_array(self.output_metric), "output_metric"), self.n_outputs_
        if metric.shape not in ((p,), (p, p)):
            raise InputError(f"output_metric has shape {metric.shape}, expected ({p},) or ({p}, {p}).")
        return metric


def weighted_table(data: WeightedData, noise: float) -> Table:
    """Return the data with the noise of each entry, σ² / weight, if weights make it vary."""
    return Table(data.X, data.Y, None if data.variances is None else noise * data.variances)


def make_scaling(num_inputs: int, mean: np.ndarray, *, fit_intercept: bool) -> Scaling:
    """Return the scaling that subtracts the mean (p,) of the outputs, or nothing."""
    none = Scaling.none(num_inputs, len(mean))
    return replace(none, output_offset=mean) if fit_intercept else none


def make_ridge_gp(
    kernel: Kernel, noise: float, metric: np.ndarray | None, features: FeatureMap | None = None
) -> OperatorValuedGP:
    """Make the Gaussian process whose posterior mean is the ridge estimate, with the noise σ² Σ of a metric Σ."""
    return OperatorValuedGP(kernel, mean="zero", noise=noise if metric is None else noise * metric, features=features)


def multiply_kernel(kernel: Kernel, scale: float) -> Kernel:
    """Return a kernel times the scale of the evidence, which is 1 if it could not be computed."""
    return kernel if scale == 1.0 else scale_kernel(kernel, scale)


def select_lam(estimator, compute: Callable[[np.ndarray, np.ndarray], RidgePath]) -> None:
    """Set `lam_` and `noise_`: the only λ, or the best of several by `path_` = compute(lams, noises)."""
    lams, best = check_lam(estimator.lam), 0
    noises = noise_of(1.0, estimator.convention, *estimator._counts) * lams
    if len(lams) > 1:
        estimator.path_ = replace(compute(lams, noises), _path=None, _scaling=None)  # without the rows
        best = estimator.path_.best(estimator.selection)
    estimator.lam_, estimator.noise_ = float(lams[best]), float(noises[best])


def compute_path(
    make_gp: Callable[[float], OperatorValuedGP],
    data: WeightedData,
    lams: np.ndarray,
    noises: np.ndarray,
    scaling: Scaling,
    *,
    rescale: bool,
) -> RidgePath:
    """Compute the criteria of each λ from one factorization of the model at the middle noise level."""
    unit = middle(noises)  # eigenvalues far from the noise would be lost to rounding
    X, Y, known = weighted_table(data, unit).scaled(scaling)
    path = noise_path(make_gp(unit), X, Y, noises / unit, known, rescale=rescale)
    columns = (getattr(path, name).numpy() for name in ("log_evidence", "loo_error", "loo_log_density"))
    return RidgePath(lams, noises, *columns, path, scaling)


def middle(noises: np.ndarray) -> float:
    """Return the geometric mean of the smallest and largest noise level."""
    return float(np.sqrt(noises.min()) * np.sqrt(noises.max()))


def best_scale(gp: OperatorValuedGP, posterior: Posterior, table: Table, scaling: Scaling) -> float:
    """Return the scale of largest evidence, yᵀ (K + N)⁻¹ y / |y| = yᵀ N⁻¹ (y − f̂) / |y|."""
    X, Y, known = table.scaled(scaling)
    observed, y = torch.isfinite(Y), torch.nan_to_num(Y)
    if (solver := getattr(posterior, "solver", None)) is not None:  # without the difference y − f̂
        total = (y[observed.any(1)] * solver.alpha).sum()
    else:
        remainder, noise = torch.where(observed, y - posterior.predict(X, "none").mean, 0.0), gp.noise_model
        if known is not None or noise.is_diagonal:
            total = (y * remainder / (noise.matrix().diagonal() if known is None else known)).sum()
        else:
            rows = zip(y, remainder, observed, strict=True)
            total = sum(u[s] @ torch.linalg.solve(noise.matrix()[s][:, s], v[s]) for u, v, s in rows)
    return usable_scale(float(total / observed.sum()), table.Y)


def rebuild_ridge_kernel(
    estimator, values: dict[str, torch.Tensor], scale: float, num_outputs: int | None = None
) -> Kernel:
    """Make the kernel of a loaded ridge estimator, of which only the shapes matter; it may have latent outputs."""
    options = SimpleNamespace(base_kernel=estimator.base_kernel, output_matrix=estimator.output_matrix, lengthscale=1.0)
    options.kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else estimator.kernel_
    kernel = ridge_kernel(
        options, np.zeros((2, estimator.n_features_in_)), np.zeros((2, num_outputs or estimator.n_outputs_))
    )
    return multiply_kernel(kernel, scale)


RIDGE_ATTRIBUTES = (*POSTERIOR_ATTRIBUTES, "lam_", "noise_", "_counts")
"""Fitted attributes of every ridge estimator, for model files."""
RIDGE_BUILDER = ModelBuilder(rebuild_ridge_kernel, keeps_unscaled_kernel=True)
