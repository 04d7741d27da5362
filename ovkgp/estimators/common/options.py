"""Checks of options by the `_parameter_constraints` of the estimators, conventions of λ, and rollback of a failed fit."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Hidden, Options, make_constraint

from ovkgp.checks import suggest_name
from ovkgp.estimators.common.validation import as_array
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.likelihoods.factory import LIKELIHOODS

MAX_COUNT = 10**9  # largest number of rows, features, iterations, … that an option may ask for


class Rule(Options):
    """Constraint of scikit-learn with a predicate and the description of the allowed values, of which `names` are strings."""

    def __init__(self, text: str, test: Callable[[Any], bool], names: Callable[[], Iterable[str]] = tuple):
        super().__init__(object, set())
        self.text, self.test, self.names = text, test, names

    def is_satisfied_by(self, val) -> bool:
        """Whether a value is allowed."""
        try:
            return bool(self.test(val))
        except (TypeError, ValueError, OverflowError):
            return False

    def __str__(self) -> str:
        names = [repr(name) for name in self.names()]
        return self.text or ("one of " if len(names) > 1 else "") + ", ".join(names)


def one_of(*names: str) -> Rule:
    """Allow some strings."""
    return names_in(lambda: names)


def names_in(names: Callable[[], Iterable[str]]) -> Rule:
    """Allow the strings of a registry, which may change."""
    return Rule("", lambda value: isinstance(value, str) and value in names(), names)


def integer(minimum: int = 1, maximum: int = MAX_COUNT) -> Rule:
    """Allow integers between a minimum and a maximum, by default the largest number of anything that fits in memory."""
    text = f"an integer of at least {minimum}" + (f" and at most {maximum}" if maximum != MAX_COUNT else "")
    return Rule(text, lambda value: not isinstance(value, bool) and minimum <= index(value) <= maximum)


def number(text: str, test: Callable[[float], bool]) -> Rule:
    """Allow finite numbers by a predicate."""
    return Rule(text, lambda value: np.ndim(value) == 0 and _is_real(value) and test(value))


def _is_real(value) -> bool:
    return not isinstance(value, bool | str | bytes) and math.isfinite(value)


def vector(text: str, test: Callable[[float], bool]) -> Rule:
    """Allow nonempty vectors of finite numbers by a predicate of each."""

    def is_allowed(values) -> bool:
        values = as_array(values)
        return np.ndim(values) == 1 and len(values) > 0 and all(_is_real(value) and test(value) for value in values)

    return Rule(text, is_allowed)


NUMBER = number("a number", lambda value: True)
NUMBERS = vector("a list of numbers", lambda value: True)
POSITIVE = number("a positive number", lambda value: value > 0)
POSITIVES = vector("a list of positive numbers", lambda value: value > 0)
NONNEGATIVE = number("a nonnegative number", lambda value: value >= 0)
FRACTION = number("a number between 0 and 1", lambda value: 0 < value < 1)
FRACTIONS = vector("a list of numbers between 0 and 1", lambda value: 0 < value < 1)
RANDOM_STATE = [integer(0, 2**32 - 1), np.random.RandomState, np.random.Generator, None]
VERBOSE = [integer(0), "boolean"]
GPYTORCH_NAMES = {  # GPyTorch's names of scikit-learn's kernels
    "Matern": "MaternKernel",
    "RationalQuadratic": "RQKernel",
    "ExpSineSquared": "PeriodicKernel",
    "DotProduct": "LinearKernel",
    "ConstantKernel": "ScaleKernel",
    "Product": "ProductKernel",
    "Sum": "AdditiveKernel",
}
DESCRIPTIONS = {None: "None", "array-like": "an array", "boolean": "a boolean", callable: "a function"}


def check_constraints(options: Mapping[str, Any], constraints: Mapping[str, list]) -> None:
    """Check each option that has constraints against its allowed values."""
    for name, value in options.items():
        allowed = constraints.get(name)
        if allowed is None or any(make_constraint(one).is_satisfied_by(value) for one in allowed):
            continue
        *first, last = (describe_constraint(one) for one in allowed if not isinstance(one, Hidden))
        expected = f"{', '.join(first)} or {last}" if first else last
        names = [known for one in allowed if isinstance(one, Rule) for known in one.names()]
        suggestion = suggest_name(value, names) if isinstance(value, str) else ""
        fix = ""
        if type(value).__module__ == "sklearn.gaussian_process.kernels":
            fix = f" Kernels of scikit-learn are not supported. Use gpytorch.kernels.{GPYTORCH_NAMES.get(type(value).__name__, 'RBFKernel')}."
        raise OptionError(f"{name} must be {expected}, got {reprlib.repr(value)}{suggestion}.{fix}")


def describe_constraint(one) -> str:
    """Describe the values that a constraint allows."""
    if isinstance(one, type):
        return f"a{'n' * (one.__name__[0] in 'AEIO')} {one.__name__}"
    return str(one) if isinstance(one, Rule) else DESCRIPTIONS[one]


def _is_likelihood(value) -> bool:
    return isinstance(value, Likelihood) or (isinstance(value, str) and value in LIKELIHOODS)


LIKELIHOOD = [
    one_of(*LIKELIHOODS),
    Likelihood,
    Rule(
        "a list with one per output", lambda value: isinstance(value, list | tuple) and all(map(_is_likelihood, value))
    ),
]
LAM = [POSITIVE, POSITIVES]


def is_variational(estimator) -> bool:
    """Whether the options lead to variational inference: by name, or because the likelihood is not Gaussian."""
    return estimator.approximation == "variational" or not _is_gaussian(estimator.likelihood)


def check_likelihood(estimator) -> None:
    """Check the options that depend on the likelihood."""
    likelihood, approximation = estimator.likelihood, estimator.approximation
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
    "mean_halved": lambda n, N: 2.0 * n,
    "samples": lambda n, N: N,
    "stability": lambda n, N: 2.0 * N,
    "var": lambda n, N: n - 1,
}


def noise_of(lam: float, convention: str, num_rows: float, num_observed: float) -> float:
    """Compute the noise variance σ² of λ in a convention.

    `num_rows` is n, the number of rows with an observed entry; for "var" it is the number of vectors of a series, whose n − 1 pairs
    (x_t, x_{t+1}) are the rows. `num_observed` is N, the number of observed entries.
    """
    factor = CONVENTIONS[convention](num_rows, num_observed)
    if factor <= 0:
        raise InputError(f'convention="{convention}" requires at least 2 rows, got {num_rows:g}.')
    return float(lam * factor)


def check_lam(lam) -> np.ndarray:
    """Return λ as a vector (k,) of positive numbers."""
    check_constraints({"lam": lam}, {"lam": LAM})
    return np.atleast_1d(np.asarray(as_array(lam), dtype=np.float64))


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
