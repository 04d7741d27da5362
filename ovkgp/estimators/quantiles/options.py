"""A fitted `InfiniteQuantileRegressor` in words."""

from __future__ import annotations

from numbers import Real

import numpy as np
from gpytorch.kernels import Kernel
from torch.nn import Module

from ovkgp.checks import check_integer
from ovkgp.estimators.common.bootstrap import check_replicates
from ovkgp.estimators.common.options import check_lam, check_option
from ovkgp.estimators.common.summary import Summary
from ovkgp.estimators.common.task_options import MEASURES, InterceptFactor, check_kernel
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.quantiles.kernel import TRENDS, LearnedKernel, TrendFactor
from ovkgp.estimators.quantiles.model import finite_levels
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.noncrossing import METHODS
from ovkgp.losses import TaskMeasure

CONVENTIONS = {"samples": 1.0, "stability": 2.0}
"""The canonical λ of one in each convention (LT §0.2)."""
COUPLINGS = ("infinite", "joint", "independent")
LOSSES = ("pinball", "smoothed_pinball")
NONCROSSING = ("rearrange", *METHODS)
PRIOR_MEANS = ("gaussian", "zero")
UNCERTAINTIES = ("sandwich", "bootstrap")


def check_quantile_options(options) -> None:
    """Refuse option values that there are not, and those that do not go together."""
    _require_kernels(options)
    _require_trend(options)
    _require_lam(options)
    _require_tasks(options)
    _require_loss(options)
    _require_noncrossing(options)
    check_option("prior_mean", options.prior_mean, PRIOR_MEANS)
    check_option("uncertainty", options.uncertainty, UNCERTAINTIES)
    check_replicates(options)
    if options.num_frequencies is not None:
        check_integer("num_frequencies", options.num_frequencies)
    if options.feature_extractor is not None:
        _require_extractor(options)
    check_positive("tol", options.tol)
    check_integer("max_iter", options.max_iter)


def _require_kernels(options) -> None:
    if not isinstance(options.lengthscale, LearnedKernel):
        check_kernel(options, "kernel", also=("auto", "median"))
    check_kernel(options, "task_kernel")


def _require_trend(options) -> None:
    if options.trend is None or (isinstance(options.trend, str) and options.trend == "auto"):
        return
    check_option("trend", options.trend, ("auto", *TRENDS), "None")
    if isinstance(options.kernel, Kernel):
        raise OptionError("trend is for a kernel by name: add a LinearKernel to the kernel object instead.")
    if isinstance(options.lengthscale, LearnedKernel):
        raise OptionError("a LearnedKernel has its trend already: leave trend out.")
    if options.feature_extractor is not None:
        raise OptionError("trend is not for a feature_extractor, which may learn one itself: leave trend out.")


def _require_lam(options) -> None:
    check_option("convention", options.convention, tuple(CONVENTIONS))
    if not (isinstance(options.lam, str) and options.lam == "auto"):
        canonical_lam(options)


def canonical_lam(options) -> float:
    """λ of (λ/2) ‖h − b‖² from a number in either convention.

    Example:
        >>> from types import SimpleNamespace
        >>> from ovkgp.estimators.quantiles.options import canonical_lam
        >>> canonical_lam(SimpleNamespace(lam=0.1, convention="stability"))
        0.2
    """
    values = check_lam(options.lam)
    if len(values) > 1:
        raise OptionError(f"lam must be one positive number, got {options.lam!r}.")
    return float(values[0]) * CONVENTIONS[options.convention]


def _require_tasks(options) -> None:
    check_option("coupling", options.coupling, COUPLINGS)
    if options.levels is not None:
        if options.coupling == "infinite":
            raise OptionError(
                'levels are for coupling="joint" or "independent"; coupling="infinite" learns all: leave levels out.'
            )
        check_levels(options.levels, "levels")
    if not (isinstance(options.num_tasks, str) and options.num_tasks == "auto"):
        check_integer("num_tasks", options.num_tasks)
    if isinstance(options.measure, TaskMeasure):
        check_levels(options.measure.nodes, "the nodes of the measure")
    else:
        check_option("measure", options.measure, MEASURES, "a TaskMeasure")


def _require_noncrossing(options) -> None:
    if options.noncrossing is None:
        return
    check_option("noncrossing", options.noncrossing, NONCROSSING, "None")
    if options.noncrossing in METHODS and options.coupling != "infinite":
        raise OptionError(
            f"noncrossing={options.noncrossing!r} looks at slopes along a continuum of levels, and coupling={options.coupling!r} has "
            'none: use noncrossing="rearrange".'
        )
    if isinstance(options.lam_nc, bool) or not isinstance(options.lam_nc, Real) or not 0 <= options.lam_nc < np.inf:
        raise OptionError(f"lam_nc must be a number that is not negative, got {options.lam_nc!r}.")


def _require_loss(options) -> None:
    check_option("loss", options.loss, LOSSES)
    if options.loss == "smoothed_pinball":
        check_positive("kappa", options.kappa)
    elif options.kappa is not None:
        raise OptionError('kappa is for loss="smoothed_pinball": leave it out.')


def _require_extractor(options) -> None:
    if not isinstance(options.feature_extractor, Module):
        raise OptionError(
            f"feature_extractor must be a torch.nn.Module, got {type(options.feature_extractor).__name__}."
        )
    if isinstance(options.lam, str):
        raise OptionError(
            'lam="auto" would judge λ by rows that have trained the network: with a feature_extractor give a number, or search '
            "for one with BayesSearchCV."
        )
    check_integer("extractor_epochs", options.extractor_epochs)
    check_positive("extractor_rate", options.extractor_rate)


def check_positive(name: str, value) -> float:
    """Refuse what is not a positive number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < np.inf:
        raise OptionError(f"{name} must be a positive number, got {value!r}.")
    return float(value)


def check_levels(levels, name: str = "quantiles") -> np.ndarray:
    """Levels as a vector (q,) of numbers strictly between 0 and 1.

    Example:
        >>> from ovkgp.estimators.quantiles.options import check_levels
        >>> check_levels([0.1, 90])
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.InputError: quantiles must lie strictly between 0 and 1, got [0.1, 90]; divide percentages by 100.
    """
    try:
        values = np.array(as_array(levels), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{name} must be a level or a list of levels, got {levels!r}.")
    if not bool(((values > 0) & (values < 1)).all()):  # NaN neither
        raise InputError(f"{name} must lie strictly between 0 and 1, got {levels!r}; divide percentages by 100.")
    return values.reshape(-1)


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
