"""All or nothing: an estimator whose fit fails is what it was before."""

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
    """Refuse option values that there are not, saying which there are."""
    check_option("approximation", estimator.approximation, APPROXIMATIONS)
    check_option("hyperparameters", estimator.hyperparameters, HYPERPARAMETERS)
    check_likelihood(estimator)
    check_option("variance", estimator.variance, VARIANCES)
    if estimator.num_frequencies != "auto":
        check_integer("num_frequencies", estimator.num_frequencies)
    if estimator.training_rows is not None:
        check_integer("training_rows", estimator.training_rows)


def check_option(name: str, value, allowed: tuple[str, ...], otherwise: str = "") -> None:
    """Refuse a value that is not among those allowed; `otherwise` says what else might have been given."""
    if isinstance(value, str) and value in allowed:
        return
    names = ", ".join(map(repr, allowed))
    names += f" or {otherwise}" if otherwise else ""
    raise OptionError(f"{name} must be one of {names}, got {value!r}.")


def is_variational(estimator) -> bool:
    """Whether the options lead to variational inference: by name, or since the outputs are not Gaussian."""
    return estimator.approximation == "variational" or not _is_plain(estimator.likelihood)


def check_likelihood(estimator) -> None:
    """Refuse likelihoods that there are not, and options that do not go with them."""
    likelihood, approximation = estimator.likelihood, estimator.approximation
    for one in likelihood if isinstance(likelihood, (list, tuple)) else [likelihood]:
        if not isinstance(one, Likelihood):
            check_option("likelihood", one, tuple(LIKELIHOODS), "a Likelihood, or a list with one for each output")
    if not is_variational(estimator):
        return
    if approximation not in ("auto", "variational"):
        raise OptionError(
            f"approximation={approximation!r} is for Gaussian noise; a {_named(likelihood)} likelihood needs variational inference: "
            'approximation="variational", or "auto".'
        )
    if not _is_plain(likelihood) and not (isinstance(estimator.noise, str) and estimator.noise == "per_output"):
        raise OptionError(
            f'noise is an option of likelihood="gaussian"; a {_named(likelihood)} likelihood has parameters of its own, which a '
            "Likelihood object may fix. Leave noise at its default."
        )
    if estimator.distributed:
        raise OptionError("distributed=True is not available with variational inference: fit in one process.")


def reject_variational(estimator, doing: str) -> None:
    """Refuse what needs statistics that rows can be added to."""
    if is_variational(estimator):
        raise OptionError(
            f"{doing} is not available with variational inference, which looks at all rows again: use fit(X, Y), which trains in "
            "batches where rows are many."
        )


def _is_plain(likelihood) -> bool:
    """Whether noise is Gaussian, as the option `noise` says."""
    return isinstance(likelihood, str) and likelihood == "gaussian"


def _named(likelihood) -> str:
    return likelihood.name if isinstance(likelihood, Likelihood) else repr(likelihood)


CONVENTIONS: dict[str, Callable[[float, float], float]] = {
    "sum": lambda n, N: 1.0,
    "mean": lambda n, N: n,
    "mean_unhalved": lambda n, N: n / 2,
    "penalty_unhalved": lambda n, N: 2.0 * n,
    "samples": lambda n, N: N,
    "stability": lambda n, N: 2.0 * N,
    "var": lambda n, N: n - 1,
}
"""σ² / λ for n rows and N observed entries."""


def noise_of(lam: float, convention: str, num_rows: float, num_observed: float) -> float:
    """σ² of λ.

    Args:
        lam: λ > 0.
        convention: a row of the table above.
        num_rows: n, the rows in which something is observed. For "var" the vectors of a series; where its n − 1 pairs
            (x_t, x_{t+1}) are the rows, "mean" says the same.
        num_observed: N, the observed entries.

    Example:
        >>> from ovkgp.estimators.common.options import noise_of
        >>> noise_of(0.1, "mean", num_rows=50, num_observed=150)
        5.0
    """
    factor = CONVENTIONS[check_convention(convention)](num_rows, num_observed)
    if factor <= 0:
        raise InputError(f'convention="{convention}" needs at least two rows, got {num_rows:g}.')
    return float(lam * factor)


def check_convention(convention: str) -> str:
    """Refuse a convention that there is not."""
    if not isinstance(convention, str) or convention not in CONVENTIONS:
        raise OptionError(f"convention must be one of {', '.join(map(repr, CONVENTIONS))}, got {convention!r}.")
    return convention


def check_lam(lam, name: str = "lam") -> np.ndarray:
    """λ as a vector (k,) of positive numbers; a number is a vector of one."""
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
            f"{name} must be a positive number, or a list of some to choose from; got {lam!r}. A fit without a penalty is the "
            "limit of a small one, such as 1e-8 times the variance of the outputs."
        )
    return values.reshape(-1)


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Whatever goes wrong inside, what was fitted before is there again.

    Example:
        >>> import ovkgp
        >>> from ovkgp.estimators.common.options import all_or_nothing
        >>> model = ovkgp.OVKRidge(lam=0.5)
        >>> try:
        ...     with all_or_nothing(model):
        ...         model.lam = 7.0
        ...         raise ValueError
        ... except ValueError:
        ...     print(model.lam)
        0.5
    """
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
