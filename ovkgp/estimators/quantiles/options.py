"""Option checks and summary of `InfiniteQuantileRegressor`."""

from __future__ import annotations

from numbers import Real

import numpy as np
from gpytorch.kernels import Kernel
from torch.nn import Module

from ovkgp.checks import check_integer, check_positive
from ovkgp.estimators.common.bootstrap import check_replicates
from ovkgp.estimators.common.options import check_option
from ovkgp.estimators.common.summary import Summary
from ovkgp.estimators.common.task_options import (
    MEASURES,
    TASK_CONVENTIONS,
    InterceptFactor,
    canonical_lam,
    check_kernel,
)
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.quantiles.kernel import TRENDS, LearnedKernel, TrendFactor
from ovkgp.estimators.quantiles.model import finite_levels, is_auto
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.noncrossing import METHODS
from ovkgp.losses import TaskMeasure

COUPLINGS = ("infinite", "joint", "independent")
LOSSES = ("pinball", "smoothed_pinball")
NONCROSSING = ("rearrange", *METHODS)
PRIOR_MEANS = ("gaussian", "zero")
UNCERTAINTIES = ("sandwich", "bootstrap")
KERNEL_TERMS = ("stationary", *TRENDS)


def check_quantile_options(options) -> None:
    """Check the options of an estimator and their combinations."""
    _check_kernels(options)
    _check_trend(options)
    _check_lam(options)
    _check_tasks(options)
    _check_loss(options)
    _check_noncrossing(options)
    check_option("prior_mean", options.prior_mean, PRIOR_MEANS)
    check_option("uncertainty", options.uncertainty, UNCERTAINTIES)
    check_replicates(options)
    if options.num_frequencies is not None:
        check_integer("num_frequencies", options.num_frequencies)
    if options.feature_extractor is not None:
        _check_extractor(options)
    check_positive("tol", options.tol)
    check_integer("max_iter", options.max_iter)


def _check_kernels(options) -> None:
    if not isinstance(options.lengthscale, LearnedKernel):
        check_kernel(options, "kernel", also=("auto", "median"))
    check_kernel(options, "task_kernel")


def _check_trend(options) -> None:
    if options.trend is None or is_auto(options.trend):
        return
    check_option("trend", options.trend, ("auto", *TRENDS), "None")
    if isinstance(options.kernel, Kernel):
        raise OptionError("trend is not supported with a kernel object. Add a LinearKernel to the kernel.")
    if isinstance(options.lengthscale, LearnedKernel):
        raise OptionError("trend is not supported with a LearnedKernel, which includes its trend. Omit trend.")
    if options.feature_extractor is not None:
        raise OptionError("trend is not supported with a feature_extractor, which may learn one. Omit trend.")


def _check_lam(options) -> None:
    check_option("convention", options.convention, tuple(TASK_CONVENTIONS))
    if not is_auto(options.lam):
        canonical_lam(options)


def _check_tasks(options) -> None:
    check_option("coupling", options.coupling, COUPLINGS)
    if options.levels is not None:
        if options.coupling == "infinite":
            raise OptionError(
                'levels is not supported with coupling="infinite", which learns all levels. Omit levels or use coupling="joint" or "independent".'
            )
        check_levels(options.levels, "levels")
    if not is_auto(options.num_tasks):
        check_integer("num_tasks", options.num_tasks)
    if isinstance(options.measure, TaskMeasure):
        check_levels(options.measure.nodes, "The nodes of measure")
    else:
        check_option("measure", options.measure, MEASURES, "a TaskMeasure")


def _check_loss(options) -> None:
    check_option("loss", options.loss, LOSSES)
    if options.loss == "smoothed_pinball":
        check_positive("kappa", options.kappa)
    elif options.kappa is not None:
        raise OptionError(f'kappa is not supported with loss={options.loss!r}. Omit kappa or use "smoothed_pinball".')


def _check_noncrossing(options) -> None:
    if options.noncrossing is None:
        return
    check_option("noncrossing", options.noncrossing, NONCROSSING, "None")
    if options.noncrossing in METHODS and options.coupling != "infinite":
        raise OptionError(
            f"noncrossing={options.noncrossing!r} needs a continuum of levels and is not supported with "
            f'coupling={options.coupling!r}. Use noncrossing="rearrange".'
        )
    if isinstance(options.lam_nc, bool) or not isinstance(options.lam_nc, Real) or not 0 <= options.lam_nc < np.inf:
        raise OptionError(f"lam_nc must be a nonnegative number, got {options.lam_nc!r}.")


def _check_extractor(options) -> None:
    if not isinstance(options.feature_extractor, Module):
        raise OptionError(
            f"feature_extractor must be a torch.nn.Module, got {type(options.feature_extractor).__name__}."
        )
    if isinstance(options.lam, str):
        raise OptionError(
            'lam="auto" is not supported with a feature_extractor, since held-out rows would have trained the network. '
            "Set lam to a number or search for one with BayesSearchCV."
        )
    check_integer("extractor_epochs", options.extractor_epochs)
    check_positive("extractor_rate", options.extractor_rate)


def check_levels(levels, name: str = "quantiles") -> np.ndarray:
    """Return levels as a vector (q,) of numbers strictly between 0 and 1."""
    try:
        values = np.array(as_array(levels), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{name} must be a level or a list of levels, got {levels!r}.")
    if not bool(((values > 0) & (values < 1)).all()):  # also rejects NaN
        raise InputError(f"{name} must lie strictly between 0 and 1, got {levels!r}. Divide percentages by 100.")
    return values.reshape(-1)


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
    if proportions := _describe_trend(estimator.function_.inputs):
        lines.append(f"  kernel: {proportions}")
    return Summary("\n".join(lines))


def _describe_levels(estimator) -> str:
    if estimator.coupling == "infinite":
        return f"all levels by {len(estimator.measure_)} nodes"
    return f"levels {_format_numbers(finite_levels(estimator))}, {estimator.coupling}"


def _describe_kernel(estimator) -> str:
    kernel = estimator.kernel if isinstance(estimator.kernel, str) else type(estimator.kernel).__name__
    if estimator.feature_extractor is not None:
        return f"{kernel} kernel after a {type(estimator.feature_extractor).__name__}, random frequencies"
    form = "exact" if estimator.num_frequencies is None else f"{estimator.num_frequencies} random frequencies"
    return f"{kernel} kernel, {form}"


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
