"""Summary of `InfiniteQuantileRegressor`."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.common.summary import Summary
from ovkgp.estimators.common.task_options import InterceptFactor, list_input_lengthscales
from ovkgp.estimators.quantiles.kernel import TRENDS, TrendFactor
from ovkgp.estimators.quantiles.model import NUM_LANDMARKS, finite_levels, is_exact, is_projected

KERNEL_TERMS = ("stationary", *TRENDS)


def summarize_quantiles(estimator) -> Summary:
    """Summarize coupling, kernels, λ and the solver of a fitted estimator."""
    report = estimator.fit_report_
    lines = [
        f"InfiniteQuantileRegressor: {_describe_levels(estimator)}, {_describe_kernel(estimator)}",
        f"  {report.num_rows} distinct rows, {estimator.n_features_in_} inputs",
        f"  λ {estimator.lam_:.4g}{_describe_path(estimator)}",
        f"  residual scale {estimator.residual_scale_:.4g} (of a Gaussian process with the same kernel)",
        f"  training: {report.message}, {report.iterations} iterations, duality gap {estimator.gap_:.2g}",
    ]
    if estimator.lengthscale_ is not None:
        lines.append(f"  lengthscale {_format_numbers(estimator.lengthscale_)} (standard deviations of the inputs)")
        if hasattr(estimator, "input_times_"):
            found = zip(estimator.input_times_, list_input_lengthscales(estimator), strict=False)
            lines += [
                f"  lengthscale of {row.input}: {row.draws.item():.4g}" for time, row in found if time is not None
            ]
    if proportions := _describe_trend(estimator.function_.inputs):
        lines.append(f"  kernel: {proportions}")
    lines += [f"  note: {text}" for text in estimator.list_problems()]
    return Summary("\n".join(lines))


def _describe_levels(estimator) -> str:
    if estimator.coupling == "infinite":
        return f"all levels by {len(estimator.measure_)} nodes"
    return f"levels {_format_numbers(finite_levels(estimator))}, {estimator.coupling}"


def _describe_kernel(estimator) -> str:
    kernel = estimator.kernel if isinstance(estimator.kernel, str) else type(estimator.kernel).__name__
    if estimator.feature_extractor is not None:
        return f"{kernel} kernel after a {type(estimator.feature_extractor).__name__}, random frequencies"
    return f"{kernel} kernel, {_describe_coordinates(estimator)}"


def _describe_coordinates(estimator) -> str:
    num_rows = estimator.fit_report_.num_rows
    if is_projected(estimator, num_rows):
        return f"projected on {NUM_LANDMARKS} rows"
    return "exact" if is_exact(estimator, num_rows) else f"{estimator.num_frequencies} random frequencies"


def _describe_path(estimator) -> str:
    if not hasattr(estimator, "lam_path_"):
        return ""
    path = estimator.lam_path_
    return f" (best of {len(path.lams)}; held-out loss {path.losses.min():.4g} standard deviations)"


def _describe_trend(inputs) -> str:
    """Describe the terms of a kernel with a trend; empty without one."""
    trend = inputs.factor if isinstance(inputs, InterceptFactor) else inputs
    if not isinstance(trend, TrendFactor):
        return ""
    return ", ".join(f"{100 * getattr(trend, name):.3g} % {name}" for name in KERNEL_TERMS if getattr(trend, name))


def _format_numbers(values) -> str:
    return ", ".join(f"{value:.4g}" for value in np.atleast_1d(values))
