"""Options of `InfiniteQuantileRegressor`: their allowed values, and combinations that are not supported."""

from __future__ import annotations

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.utils._param_validation import Hidden
from torch.nn import Module

from ovkgp.estimators.common.options import FRACTION, FRACTIONS, NONNEGATIVE, POSITIVE, POSITIVES, integer, one_of
from ovkgp.estimators.common.task_options import TASK_CONSTRAINTS, TASK_CONVENTIONS, check_scalar_tasks
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.quantiles.kernel import TRENDS, LearnedKernel
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.noncrossing import METHODS
from ovkgp.losses import TaskMeasure

QUANTILE_CONSTRAINTS = {
    **TASK_CONSTRAINTS,
    "lengthscale": [one_of("auto", "median"), POSITIVE, POSITIVES, Hidden(LearnedKernel)],
    "trend": [one_of("auto", *TRENDS), None],
    "lam": [one_of("auto"), POSITIVE],
    "convention": [one_of(*TASK_CONVENTIONS)],
    "coupling": [one_of("infinite", "joint", "independent")],
    "levels": [FRACTION, FRACTIONS, None],
    "num_tasks": [one_of("auto"), integer()],
    "loss": [one_of("pinball", "smoothed_pinball")],
    "kappa": [POSITIVE, None],
    "noncrossing": [one_of("rearrange", *METHODS), None],
    "lam_nc": [NONNEGATIVE],
    "num_frequencies": [one_of("auto"), integer(), None],
    "feature_extractor": [Module, None],
    "extractor_epochs": [integer()],
    "extractor_rate": [POSITIVE],
    "calibrate": ["boolean"],
    "uncertainty": [one_of("sandwich", "bootstrap")],
    "prior_mean": [one_of("gaussian", "zero")],
    "intercept": ["boolean"],
    "tol": [POSITIVE],
    "max_iter": [integer()],
    "restarts": [integer()],
}


def check_combinations(options) -> None:
    """Check the options that depend on others."""
    _check_trend(options)
    if options.levels is not None and options.coupling == "infinite":
        raise OptionError(
            'levels is not supported with coupling="infinite", which learns all levels. Omit levels or use coupling="joint" or "independent".'
        )
    if isinstance(options.measure, TaskMeasure):
        check_scalar_tasks(options.measure)
        check_levels(options.measure.nodes, "The nodes of measure")
    if options.loss == "smoothed_pinball" and options.kappa is None:
        raise OptionError("kappa must be a positive number with loss='smoothed_pinball', got None.")
    if options.loss != "smoothed_pinball" and options.kappa is not None:
        raise OptionError(f'kappa is not supported with loss={options.loss!r}. Omit kappa or use "smoothed_pinball".')
    if options.noncrossing in METHODS and options.coupling != "infinite":
        raise OptionError(
            f'noncrossing={options.noncrossing!r} needs a continuum of levels and is not supported with coupling={options.coupling!r}. Use noncrossing="rearrange".'
        )
    if options.feature_extractor is not None and isinstance(options.lam, str):
        raise OptionError(
            'lam="auto" is not supported with a feature_extractor, since held-out rows would have trained the network. Set lam to a number or search for one with BayesSearchCV.'
        )


def _check_trend(options) -> None:
    if options.trend in (None, "auto"):
        return
    if isinstance(options.kernel, Kernel):
        raise OptionError("trend is not supported with a kernel object. Add a LinearKernel to the kernel.")
    if isinstance(options.lengthscale, LearnedKernel):
        raise OptionError("trend is not supported with a LearnedKernel, which includes its trend. Omit trend.")
    if options.feature_extractor is not None:
        raise OptionError("trend is not supported with a feature_extractor, which may learn one. Omit trend.")


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
