"""The options of an estimator, checked before anything is done."""

from __future__ import annotations

from ovkgp.exceptions import OptionError
from ovkgp.inference.gp import VARIANCES
from ovkgp.kernels.checks import whole_number

APPROXIMATIONS = ("auto", "exact", "orff", "nystrom")
HYPERPARAMETERS = ("fixed", "evidence", "laplace", "svi", "nuts")
LIKELIHOODS = ("gaussian",)
LATER = {
    "approximation": ("variational",),
    "likelihood": (
        "student_t",
        "laplace",
        "asymmetric_laplace",
        "huber",
        "bernoulli",
        "poisson",
        "negative_binomial",
        "softmax",
    ),
}
"""Values that are named already and not available in this version."""


def require_options(estimator) -> None:
    """Refuse option values that there are not, saying which there are."""
    require_option("approximation", estimator.approximation, APPROXIMATIONS)
    require_option("hyperparameters", estimator.hyperparameters, HYPERPARAMETERS)
    require_option("likelihood", estimator.likelihood, LIKELIHOODS)
    require_option("variance", estimator.variance, VARIANCES)
    whole_number("num_frequencies", estimator.num_frequencies)
    if estimator.training_rows is not None:
        whole_number("training_rows", estimator.training_rows)


def require_option(name: str, value, allowed: tuple[str, ...], otherwise: str = "") -> None:
    """Refuse a value that is not among those allowed; `otherwise` says what else might have been given."""
    if isinstance(value, str) and value in allowed:
        return
    names = ", ".join(map(repr, allowed))
    if isinstance(value, str) and value in LATER.get(name, ()):
        raise OptionError(f"{name}={value!r} arrives in a later version; in this one {name} is one of {names}.")
    names += f" or {otherwise}" if otherwise else ""
    raise OptionError(f"{name} must be one of {names}, got {value!r}.")
