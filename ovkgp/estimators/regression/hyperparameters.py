"""What ArviZ reads, in the user's units.

The draws of a regressor are in the units of its model. Hyperparameters are turned as `user_units` says, data and predictions
as the outputs are, and a log density of an entry of output a loses log s_a, as the density of s y′ is that of y′ over s.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np
import torch

from ovkgp.checks import check_integer
from ovkgp.estimators.common.options import reject_variational
from ovkgp.estimators.common.scaling import draws_in_user_units, named_structure
from ovkgp.estimators.common.validation import entry_values, input_table
from ovkgp.estimators.regression.training import Table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, IndependentPosterior
from ovkgp.inference.sampling.arviz_data import Axes, named_group, to_arviz_object
from ovkgp.inference.sampling.arviz_groups import point_arviz
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.training.log_posterior import named_values

SAMPLED = ("laplace", "svi", "nuts")
"""The values of `hyperparameters` for which they are drawn."""

MIXTURE_DRAWS = 50
"""Over how many draws predictions average, where nobody says."""

OWN = ("noise", "input_names", "output_names", "random_state", "verbose")
"""Options of the sampler that a regressor sets itself."""


def is_sampled(estimator) -> bool:
    """Whether the options ask for draws of the hyperparameters."""
    return estimator.hyperparameters in SAMPLED


def check_sampling(estimator) -> None:
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


def reject_sampling(estimator, doing: str) -> None:
    """Refuse what needs all data at once: an average over draws has no statistics to add to."""
    if is_sampled(estimator) or hasattr(estimator, "draws_"):
        raise OptionError(
            f"{doing} is not available with draws of the hyperparameters, since each draw has features of its own and looks "
            'at all rows: use fit(X, Y), or hyperparameters="evidence" and fit anew.'
        )


def takes_further_rows(estimator) -> bool:
    """Whether `partial_fit` is there: not for a model with draws or a variational one, and then an error says why."""
    reject_variational(estimator, "partial_fit")
    reject_sampling(estimator, "partial_fit")
    return True


def sampler_options() -> tuple[str, ...]:
    """The names of the options of `sample_hyperparameters` that `sampling` may hold."""
    parameters = inspect.signature(sample_hyperparameters).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in OWN)


def mixture_draws(estimator) -> int:
    """Over how many draws predictions average."""
    return check_integer("max_draws", (estimator.sampling or {}).get("max_draws", MIXTURE_DRAWS))


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


if TYPE_CHECKING:
    import xarray

NAMED = ("posterior", "prior")
DENSITIES = ("log_marginal_likelihood", "elbo")
"""Attributes that are log densities of all observed entries."""
MODEL_UNITS = "of the model (outputs are divided by scaling_.output_scale)"


def export(estimator, X=None, Y=None, noise=None):
    """A fitted `GPRegressor` as the object that ArviZ reads, in the user's units; see `GPRegressor.to_arviz`.

    Cost: a copy of the draws; for a model without draws, one factorisation (or two passes over the data).
    """
    if hasattr(estimator, "draws_") and not (X is None and Y is None and noise is None):
        raise OptionError(
            "this model has draws, with all that they say of its training data: to_arviz() takes no data."
        )
    data = estimator.draws_ if hasattr(estimator, "draws_") else _point(estimator, X, Y, noise)
    groups = {name: in_units(estimator, name, group) for name, group in groups_of(data)}
    attrs = groups["posterior"].attrs
    if not hasattr(estimator, "draws_"):
        trained = "elbo" if estimator.approximation_ == "variational" else "evidence"
        attrs["method"] = "fixed" if estimator.fit_report_ is None else trained
    if "observed_data" in groups:
        num_observed = np.isfinite(groups["observed_data"]["y"].values).sum(0)
        for name in attrs.keys() & set(DENSITIES):
            attrs[name] = estimator.scaling_.log_density(attrs[name], num_observed)
    if "elpd_loo" in attrs:
        pointwise = groups["log_likelihood"]["y"].values.ravel()
        attrs["elpd_loo"], attrs["elpd_loo_se"] = pointwise.sum(), np.sqrt(len(pointwise) * pointwise.var())
    return to_arviz_object(groups)


def groups_of(data) -> list[tuple[str, xarray.Dataset]]:
    """The groups of an ArviZ object of either kind, as Datasets by name."""
    if hasattr(data, "children"):  # an xarray.DataTree
        return [(name, group.to_dataset()) for name, group in data.children.items()]
    return [(name, data[name]) for name in data.groups()]


def in_units(estimator, name: str, group: xarray.Dataset) -> xarray.Dataset:
    """One group in the user's units."""
    scaling = estimator.scaling_
    if name in NAMED:
        attrs = {**group.attrs, "units": units_of(estimator)}
        return named_group(values_in_units(estimator, group), Axes(*map(tuple, axis_names(estimator))), attrs)
    if name in ("posterior_predictive", "observed_data"):
        moved = group["y"].values * scaling.output_scale + scaling.output_offset
        return group.assign(y=(group["y"].dims, moved))
    if name == "log_likelihood":
        columns = {label: a for a, label in enumerate(axis_names(estimator)[1])}
        shift = np.log(scaling.output_scale)[[columns[label] for label in group["output"].values.tolist()]]
        return group.assign(y=(group["y"].dims, group["y"].values - shift))
    return group.copy(deep=True)


def values_in_units(estimator, group: xarray.Dataset) -> dict[str, np.ndarray]:
    """Draws of hyperparameters by name, (chains, draws, *shape), in the user's units."""
    structure, scaling = named_structure(estimator), estimator.scaling_
    return {
        str(name): draws_in_user_units(str(name), group[name].values, structure, scaling) for name in group.data_vars
    }


def units_of(estimator) -> str:
    """Whose units the hyperparameters of the kernel are in."""
    return MODEL_UNITS if named_structure(estimator) == "given" and not estimator.scaling_.is_none else "of the data"


def _point(estimator, X, Y, noise):
    """The one draw of a model without draws, in the units of the model."""
    if (X is None) != (Y is None):
        raise InputError("give X and Y together, as fit had them, or neither.")
    names = dict(zip(("input_names", "output_names"), axis_names(estimator), strict=True))
    is_variational = estimator.approximation_ == "variational"
    if X is not None and is_variational:
        raise OptionError(
            "a variational model has no leave-one-out densities in closed form that data would be needed for: to_arviz() takes none."
        )
    if X is not None:
        return point_arviz(estimator.gp_, *_given(estimator, X, Y, noise), **names)
    if (data := _kept(estimator)) is not None:
        return point_arviz(estimator.gp_, data.X, data.Y, data.noise, **names)
    values = {name: value[None, None] for name, value in named_values(estimator.gp_).items()}
    why = "left out: a model with features keeps no data; to_arviz(X, Y) computes it"
    if is_variational:
        why = "left out: a variational model has no leave-one-out densities in closed form"
    axes = Axes.of(estimator.n_features_in_, estimator.n_outputs_, **names)
    return to_arviz_object({"posterior": named_group(values, axes, {"log_likelihood": why})})


def _given(estimator, X, Y, noise) -> tuple:
    X = input_table(estimator, X, reset=False)
    Y = estimator._outputs(Y, X)
    return Table(X, Y, entry_values(noise, Y, "noise is a variance")).scaled(estimator.scaling_)


def _kept(estimator) -> Observations | None:
    """The data as the posterior has kept them; None where it has features instead."""
    posterior = estimator.posterior_
    parts = posterior.parts if isinstance(posterior, IndependentPosterior) else [posterior]
    if not all(isinstance(part, ExactPosterior) for part in parts):
        return None
    first, *rest = (part.data for part in parts)
    if all(torch.equal(other.X, first.X) for other in rest):  # whole rows again
        noise = None if first.noise is None else torch.cat([part.data.noise for part in parts], 1)
        return Observations(first.X, torch.cat([part.data.Y for part in parts], 1), noise)
    return posterior.data
