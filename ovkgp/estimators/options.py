"""The options of an estimator, checked before anything is done."""

from __future__ import annotations

from ovkgp.exceptions import OptionError
from ovkgp.inference.gp import VARIANCES
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.likelihoods.making import LIKELIHOODS
from ovkgp.kernels.checks import whole_number

APPROXIMATIONS = ("auto", "exact", "orff", "nystrom", "variational")
HYPERPARAMETERS = ("fixed", "evidence", "laplace", "svi", "nuts")


def require_options(estimator) -> None:
    """Refuse option values that there are not, saying which there are."""
    require_option("approximation", estimator.approximation, APPROXIMATIONS)
    require_option("hyperparameters", estimator.hyperparameters, HYPERPARAMETERS)
    require_likelihood(estimator)
    require_option("variance", estimator.variance, VARIANCES)
    if estimator.num_frequencies != "auto":
        whole_number("num_frequencies", estimator.num_frequencies)
    if estimator.training_rows is not None:
        whole_number("training_rows", estimator.training_rows)


def require_option(name: str, value, allowed: tuple[str, ...], otherwise: str = "") -> None:
    """Refuse a value that is not among those allowed; `otherwise` says what else might have been given."""
    if isinstance(value, str) and value in allowed:
        return
    names = ", ".join(map(repr, allowed))
    names += f" or {otherwise}" if otherwise else ""
    raise OptionError(f"{name} must be one of {names}, got {value!r}.")


def is_variational(estimator) -> bool:
    """Whether the options lead to variational inference: by name, or since the outputs are not Gaussian."""
    return estimator.approximation == "variational" or not _is_plain(estimator.likelihood)


def require_likelihood(estimator) -> None:
    """Refuse likelihoods that there are not, and options that do not go with them."""
    likelihood, approximation = estimator.likelihood, estimator.approximation
    for one in likelihood if isinstance(likelihood, (list, tuple)) else [likelihood]:
        if not isinstance(one, Likelihood):
            require_option("likelihood", one, tuple(LIKELIHOODS), "a Likelihood, or a list with one for each output")
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


def refuse_variational(estimator, doing: str) -> None:
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
