"""A fitted `InfiniteQuantileRegressor` in words."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.quantile_model import finite_levels
from ovkgp.estimators.quantile_trend import TRENDS, TrendFactor
from ovkgp.estimators.summary import Summary
from ovkgp.estimators.task_options import InterceptFactor

PARTS = ("stationary", *TRENDS)


def summarise_quantiles(estimator) -> Summary:
    """Coupling, kernels, λ and how the solver fared."""
    report = estimator.fit_report_
    lines = [
        f"InfiniteQuantileRegressor: {_tasks(estimator)}, {_inputs(estimator)}",
        f"  {report.num_rows} distinct rows, {estimator.n_features_in_} inputs",
        f"  λ {estimator.lam_:.4g}{_path(estimator)}",
        f"  residual scale {estimator.residual_scale_:.4g} (of a Gaussian process with the same kernel)",
        f"  training: {report.message}, {report.iterations} iterations, duality gap {estimator.gap_:.2g}",
    ]
    if estimator.lengthscale_ is not None:
        lines.append(f"  lengthscale {_numbers(estimator.lengthscale_)} (standard deviations of the inputs)")
    if shares := _shares(estimator.function_.inputs):
        lines.append(f"  kernel: {shares}")
    return Summary("\n".join(lines))


def _shares(inputs) -> str:
    """The parts of a kernel with a trend; nothing where there is none."""
    trend = inputs.factor if isinstance(inputs, InterceptFactor) else inputs
    if not isinstance(trend, TrendFactor):
        return ""
    return ", ".join(f"{100 * getattr(trend, name):.3g} % {name}" for name in PARTS if getattr(trend, name))


def _tasks(estimator) -> str:
    if estimator.coupling == "infinite":
        return f"all levels by {len(estimator.measure_)} nodes"
    return f"levels {_numbers(finite_levels(estimator))}, {estimator.coupling}"


def _inputs(estimator) -> str:
    kernel = estimator.kernel if isinstance(estimator.kernel, str) else type(estimator.kernel).__name__
    if estimator.feature_extractor is not None:
        return f"{kernel} kernel after a {type(estimator.feature_extractor).__name__}, random frequencies"
    how = "exact" if estimator.num_frequencies is None else f"{estimator.num_frequencies} random frequencies"
    return f"{kernel} kernel, {how}"


def _path(estimator) -> str:
    if not hasattr(estimator, "lam_path_"):
        return ""
    path = estimator.lam_path_
    return f", of {len(path.lams)} tried; loss of rows left out {path.losses.min():.4g} standard deviations"


def _numbers(values) -> str:
    return ", ".join(f"{value:.4g}" for value in np.atleast_1d(values))
