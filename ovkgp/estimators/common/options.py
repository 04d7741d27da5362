"""Checks of the options that several estimators share, conventions of λ, and rollback of a failed fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real

import numpy as np
from sklearn.base import BaseEstimator

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.likelihoods.factory import LIKELIHOODS

APPROXIMATIONS = ("auto", "exact", "orff", "nystrom", "variational")
HYPERPARAMETERS = ("fixed", "evidence", "laplace", "svi", "nuts")


def check_options(estimator) -> None:
    """Check the options of a `GPRegressor`."""
    check_option("approximation", estimator.approximation, APPROXIMATIONS)
    check_option("hyperparameters", estimator.hyperparameters, HYPERPARAMETERS)
    check_likelihood(estimator)
    check_option("variance", estimator.variance, VARIANCES)
    if estimator.num_frequencies != "auto":
        check_integer("num_frequencies", estimator.num_frequencies)
    if estimator.training_rows is not None:
        check_integer("training_rows", estimator.training_rows)


def check_option(name: str, value, allowed: tuple[str, ...], otherwise: str = "") -> None:
    """Check that a value is one of the allowed names; `otherwise` names other allowed values in the message."""
    if isinstance(value, str) and value in allowed:
        return
    names = ", ".join(map(repr, allowed))
    names += f" or {otherwise}" if otherwise else ""
    raise OptionError(f"{name} must be one of {names}, got {value!r}.")


def is_variational(estimator) -> bool:
    """Whether the options lead to variational inference: by name, or because the likelihood is not Gaussian."""
    return estimator.approximation == "variational" or not _is_gaussian(estimator.likelihood)


def check_likelihood(estimator) -> None:
    """Check the likelihood, and the options that depend on it."""
    likelihood, approximation = estimator.likelihood, estimator.approximation
    for one in likelihood if isinstance(likelihood, (list, tuple)) else [likelihood]:
        if not isinstance(one, Likelihood):
            check_option("likelihood", one, tuple(LIKELIHOODS), "a Likelihood, or a list with one per output")
    if not is_variational(estimator):
        return
    if approximation not in ("auto", "variational"):
        raise OptionError(
            f"approximation={approximation!r} is not supported with a {_named(likelihood)} likelihood. Use "
            'approximation="variational" or "auto".'
        )
    if not _is_gaussian(likelihood) and not (isinstance(estimator.noise, str) and estimator.noise == "per_output"):
        raise OptionError(
            f"noise is not supported with a {_named(likelihood)} likelihood. Leave it at its default; a Likelihood object can fix its parameters."
        )
    if estimator.distributed:
        raise OptionError("distributed=True is not supported with variational inference. Fit in one process.")


def reject_variational(estimator, doing: str) -> None:
    """Raise if the options lead to variational inference, which has no additive statistics."""
    if is_variational(estimator):
        raise OptionError(
            f"{doing} is not supported with variational inference. Use fit(X, Y), which trains in batches if there are many rows."
        )


def _is_gaussian(likelihood) -> bool:
    """Whether the noise is Gaussian, as described by the option `noise`."""
    return isinstance(likelihood, str) and likelihood == "gaussian"


def _named(likelihood) -> str:
    return likelihood.name if isinstance(likelihood, Likelihood) else repr(likelihood)


CONVENTIONS: dict[str, Callable[[float, float], float]] = {  # σ² / λ for n rows and N observed entries
    "sum": lambda n, N: 1.0,
    "mean": lambda n, N: n,
    "mean_unhalved": lambda n, N: n / 2,
    "penalty_unhalved": lambda n, N: 2.0 * n,
    "samples": lambda n, N: N,
    "stability": lambda n, N: 2.0 * N,
    "var": lambda n, N: n - 1,
}


def noise_of(lam: float, convention: str, num_rows: float, num_observed: float) -> float:
    """Compute the noise variance σ² of λ in a convention.

    `num_rows` is n, the number of rows with an observed entry; for "var" it is the number of vectors of a series, whose n − 1 pairs
    (x_t, x_{t+1}) are the rows. `num_observed` is N, the number of observed entries.
    """
    factor = CONVENTIONS[check_convention(convention)](num_rows, num_observed)
    if factor <= 0:
        raise InputError(f'convention="{convention}" requires at least 2 rows, got {num_rows:g}.')
    return float(lam * factor)


def check_convention(convention: str) -> str:
    """Check that a convention is known."""
    if not isinstance(convention, str) or convention not in CONVENTIONS:
        raise OptionError(f"convention must be one of {', '.join(map(repr, CONVENTIONS))}, got {convention!r}.")
    return convention


def check_lam(lam, name: str = "lam") -> np.ndarray:
    """Return λ as a vector (k,) of positive numbers."""
    try:
        values = np.asarray(lam if isinstance(lam, Real | np.ndarray | list | tuple) else np.nan, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if (
        isinstance(lam, bool)
        or values.ndim > 1
        or values.size == 0
        or not bool((np.isfinite(values) & (values > 0)).all())
    ):
        raise InputError(
            f"{name} must be a positive number or a list of candidates, got {lam!r}. For a fit without penalty, use a small value such as 1e-8 times the variance of the outputs."
        )
    return values.reshape(-1)


@contextmanager
def restore_on_error(estimator: BaseEstimator) -> Iterator[None]:
    """Restore the attributes of an estimator if an error occurs inside the block."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
