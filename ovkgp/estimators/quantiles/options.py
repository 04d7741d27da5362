"""Option checks of `InfiniteQuantileRegressor`."""

from __future__ import annotations

from numbers import Real

import numpy as np
from gpytorch.kernels import Kernel
from torch.nn import Module

from ovkgp.checks import check_integer, check_positive
from ovkgp.estimators.common.bootstrap import check_replicates
from ovkgp.estimators.common.options import check_option
from ovkgp.estimators.common.task_options import (
    MEASURES,
    TASK_CONVENTIONS,
    canonical_lam,
    check_kernel,
)
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.quantiles.kernel import TRENDS, LearnedKernel
from ovkgp.estimators.quantiles.model import is_auto
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.noncrossing import METHODS
from ovkgp.losses import TaskMeasure

COUPLINGS = ("infinite", "joint", "independent")
LOSSES = ("pinball", "smoothed_pinball")
NONCROSSING = ("rearrange", *METHODS)
PRIOR_MEANS = ("gaussian", "zero")
UNCERTAINTIES = ("sandwich", "bootstrap")


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
            f'noncrossing={options.noncrossing!r} needs a continuum of levels and is not supported with coupling={options.coupling!r}. Use noncrossing="rearrange".'
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
            'lam="auto" is not supported with a feature_extractor, since held-out rows would have trained the network. Set lam to a number or search for one with BayesSearchCV.'
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
