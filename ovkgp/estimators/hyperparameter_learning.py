"""Posteriors of the hyperparameters behind a regressor: what may be asked of the sampler, and the draws themselves.

`GPRegressor(hyperparameters="nuts")` trains by evidence first, and then draws on the rows that it was trained on, in the units
of the model; predictions average over at most `MIXTURE_DRAWS` of the draws.
"""

from __future__ import annotations

import inspect

from ovkgp.estimators.learning import Table
from ovkgp.estimators.options import refuse_variational
from ovkgp.exceptions import OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling import sample_hyperparameters
from ovkgp.kernels.checks import whole_number

SAMPLED = ("laplace", "svi", "nuts")
"""The values of `hyperparameters` for which they are drawn."""

MIXTURE_DRAWS = 50
"""Over how many draws predictions average, where nobody says."""

OWN = ("noise", "input_names", "output_names", "random_state", "verbose")
"""Options of the sampler that a regressor sets itself."""


def is_sampled(estimator) -> bool:
    """Whether the options ask for draws of the hyperparameters."""
    return estimator.hyperparameters in SAMPLED


def require_sampling(estimator) -> None:
    """Refuse options of the sampler that there are not, or that nobody would read."""
    if estimator.sampling is None:
        return
    if not is_sampled(estimator):
        names = ", ".join(map(repr, SAMPLED))
        raise OptionError(
            f"sampling is for hyperparameters={names}; with {estimator.hyperparameters!r} nothing is drawn: leave it None."
        )
    if not isinstance(estimator.sampling, dict):
        raise OptionError(f'sampling is a dictionary such as {{"draws": 500}}, got {estimator.sampling!r}.')
    allowed = ("max_draws", *sampler_options())
    if unknown := [name for name in estimator.sampling if name not in allowed]:
        raise OptionError(f"sampling has the unknown option {unknown[0]!r}; there are {', '.join(allowed)}.")
    mixture_draws(estimator)


def refuse_sampling(estimator, doing: str) -> None:
    """Refuse what needs all data at once: an average over draws has no statistics to add to."""
    if is_sampled(estimator) or hasattr(estimator, "draws_"):
        raise OptionError(
            f"{doing} is not available with draws of the hyperparameters, since each draw has features of its own and looks "
            'at all rows: use fit(X, Y), or hyperparameters="evidence" and fit anew.'
        )


def takes_further_rows(estimator) -> bool:
    """Whether `partial_fit` is there: not for a model with draws or a variational one, and then an error says why."""
    refuse_variational(estimator, "partial_fit")
    refuse_sampling(estimator, "partial_fit")
    return True


def sampler_options() -> tuple[str, ...]:
    """The names of the options of `sample_hyperparameters` that `sampling` may hold."""
    parameters = inspect.signature(sample_hyperparameters).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in OWN)


def mixture_draws(estimator) -> int:
    """Over how many draws predictions average."""
    return whole_number("max_draws", (estimator.sampling or {}).get("max_draws", MIXTURE_DRAWS))


def draw_hyperparameters(estimator, gp: OperatorValuedGP, rows: Table, seed: int):
    """Draws of the hyperparameters of a trained model, in the units of the model, as the object that ArviZ reads.

    Args:
        estimator: a `GPRegressor`, for its options, names and scaling.
        gp: the model that was trained, at its mode.
        rows: those that it was trained on, in the user's units.
        seed: of everything random.

    Cost: that of `sample_hyperparameters`.
    """
    X, Y, noise = rows.scaled(estimator.scaling_)
    options = {name: value for name, value in (estimator.sampling or {}).items() if name != "max_draws"}
    inputs, outputs = axis_names(estimator)
    return sample_hyperparameters(
        *(gp, X, Y, estimator.hyperparameters),
        noise=noise,
        input_names=inputs,
        output_names=outputs,
        random_state=seed,
        verbose=estimator.verbose,
        **options,
    )


def axis_names(estimator) -> tuple[list[str], list[str]]:
    """The names of inputs and outputs; numbered ones where there are none, or where two are the same."""
    inputs = [f"x{i}" for i in range(estimator.n_features_in_)]
    outputs = [f"y{a}" for a in range(estimator.n_outputs_)]
    return _distinct(getattr(estimator, "feature_names_in_", inputs), inputs), _distinct(
        estimator.output_names_, outputs
    )


def _distinct(names, numbered: list[str]) -> list[str]:
    names = [str(name) for name in names]
    return names if len(set(names)) == len(names) else numbered
