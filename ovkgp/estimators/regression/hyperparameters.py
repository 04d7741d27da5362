"""Sampling of the hyperparameters of a `GPRegressor`, and their export to ArviZ in original units.

Draws are in standardized units. Hyperparameters are converted by `common/scaling`, data and predictions like the outputs, and a log
density of an entry of output a is shifted by −log s_a.
"""

from __future__ import annotations

import warnings
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from ovkgp.checks import suggest_name
from ovkgp.estimators.common.options import FRACTION, check_constraints, integer, one_of, reject_variational
from ovkgp.estimators.common.scaling import values_in_units
from ovkgp.estimators.common.summary import ColumnNames, axis_names, split_output
from ovkgp.estimators.common.validation import Table
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling.arviz_data import (
    Axes,
    groups_of,
    make_dataset,
    make_named_group,
    point_arviz,
    resize_draws,
    row_densities_group,
    squeeze_shape,
    to_arviz_object,
)
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.stacking.model_draws import resample
from ovkgp.inference.stacking.stack import StackPosterior
from ovkgp.inference.training.log_posterior import named_values

if TYPE_CHECKING:
    import xarray

SAMPLED = ("laplace", "svi", "nuts")  # values of `hyperparameters` that sample
NUM_RESAMPLED = 32  # number of equally weighted draws that weighted ones are exported as
MIXTURE_DRAWS = 50  # default number of draws that predictions average over
SAMPLING_CONSTRAINTS = {
    "draws": [integer()],
    "tune": [integer()],
    "chains": [integer()],
    "guide": [one_of("normal", "multivariate", "low_rank")],
    "batch_size": [integer(), None],
    "target_accept": [FRACTION],
    "prior_draws": [integer(0)],
    "log_likelihood": [one_of("auto"), "boolean"],
    "posterior_predictive": [one_of("auto"), "boolean"],
    "max_draws": [integer()],
}
"""Entries of the option `sampling`: options of the sampler that a regressor does not set, and "max_draws"."""


def check_sampling(estimator) -> None:
    """Check the option `sampling`, a dictionary."""
    if estimator.hyperparameters not in SAMPLED:
        names = ", ".join(map(repr, SAMPLED))
        raise OptionError(
            f"sampling is not supported with hyperparameters={estimator.hyperparameters!r}. Use one of {names}, or sampling=None."
        )
    if unknown := [name for name in estimator.sampling if name not in SAMPLING_CONSTRAINTS]:
        suggestion = suggest_name(unknown[0], SAMPLING_CONSTRAINTS)
        raise OptionError(
            f"sampling must have options among {', '.join(SAMPLING_CONSTRAINTS)}, got {unknown[0]!r}{suggestion}."
        )
    check_constraints(estimator.sampling, SAMPLING_CONSTRAINTS)


def reject_sampling(estimator, doing: str) -> None:
    """Raise if hyperparameters are sampled: an average over draws has no additive statistics."""
    if estimator.hyperparameters in SAMPLED or hasattr(estimator, "draws_"):
        raise OptionError(
            f"{doing} is not supported with hyperparameter draws, each of which has its own features. Use fit(X, Y), or fit again "
            'with hyperparameters="evidence".'
        )


def supports_partial_fit(estimator) -> bool:
    """Whether `partial_fit` is available; raises for models with draws and variational ones."""
    reject_variational(estimator, "partial_fit")
    reject_sampling(estimator, "partial_fit")
    return True


def draw_hyperparameters(estimator, gp: OperatorValuedGP, rows: Table, seed: int) -> None:
    """Sample the hyperparameters around the mode, in standardized units, unless the training was interrupted."""
    if estimator.fit_report_.interrupted:
        warnings.warn(
            "Training was interrupted and no hyperparameters were sampled; predictions use the best values so far. Call fit again.",
            FitWarning,
            stacklevel=3,
        )
        return
    X, Y, noise = rows.scaled(estimator.scaling_)
    options = {name: value for name, value in (estimator.sampling or {}).items() if name != "max_draws"}
    inputs, outputs = axis_names(estimator)
    estimator.draws_ = sample_hyperparameters(
        *(gp, X, Y, estimator.hyperparameters),
        noise=noise,
        input_names=inputs,
        output_names=outputs,
        random_state=seed,
        verbose=estimator.verbose,
        **options,
    )


DENSITIES = ("log_marginal_likelihood", "elbo")  # attributes that are log densities of all observed entries


def export(estimator, X=None, Y=None, noise=None):
    """Return a fitted `GPRegressor` as an ArviZ object in original units; see `GPRegressor.to_arviz`.

    Complexity: a copy of the draws; for a model without draws, one factorization or two passes over the data.
    """
    draws = estimator.hyperparameter_draws
    if draws is not None and not (X is None and Y is None and noise is None):
        raise OptionError("X, Y and noise are not supported for a model with draws. Call to_arviz() without data.")
    data = _point(estimator, X, Y, noise) if draws is None else draws
    groups, is_stack = dict(groups_of(data)), isinstance(estimator.posterior_, StackPosterior) and X is None
    if is_stack:
        stack = estimator.posterior_
        groups |= row_densities_group(stack.row_log_densities()[None], stack.data.Y)
    groups = in_units(estimator, groups)
    if is_stack:
        groups["posterior"] = _candidate_draws(estimator, groups["posterior"].attrs)
    elif draws is None and estimator.averages_draws and X is None:
        groups["posterior"] = _averaged_draws(estimator, groups["posterior"].attrs)
    attrs = groups["posterior"].attrs
    if is_stack:
        attrs["method"] = "laplace, mixture" if stack.num_draws > 1 else "evidence, mixture"
    elif draws is None:
        trained = "elbo" if estimator.approximation_ == "variational" else "evidence"
        attrs["method"] = "fixed" if estimator.fit_report_ is None else trained
    if "observed_data" in groups:
        num_observed = np.isfinite(groups["observed_data"]["y"].values).sum(0)
        for name in attrs.keys() & set(DENSITIES):
            attrs[name] = estimator.scaling_.log_density(attrs[name], num_observed)
    if "elpd_loo" in attrs:
        by_draw = groups["log_likelihood"]["y"].values[0]
        pointwise = np.log(len(by_draw)) - logsumexp(-by_draw, axis=0)
        attrs["elpd_loo"], attrs["elpd_loo_se"] = pointwise.sum(), np.sqrt(len(pointwise) * pointwise.var())
    return to_arviz_object(groups)


def _candidate_draws(estimator, attrs: dict) -> xarray.Dataset:
    """Return the draws of the candidates of a mixture and their weights; names of others than that of `gp_` have a prefix."""
    stack, shown = estimator.posterior_, next(iter(estimator.candidates_))
    axes = Axes(*map(tuple, axis_names(estimator)))
    merged = None
    for name, values in stack.named_draws().items():
        group = _convert_hyperparameters(estimator, make_named_group(values, axes))
        group = group if name == shown else group.rename({one: f"{name}.{one}" for one in group.data_vars})
        merged = group if merged is None else merged.merge(group)
    names = [candidate.name for candidate in stack.candidates]
    shape = merged.sizes["chain"], merged.sizes["draw"], len(names)
    weights = np.broadcast_to(stack.weights, shape)
    merged = merged.assign_coords(candidate=names).assign(weight=(("chain", "draw", "candidate"), weights.copy()))
    return merged.assign_attrs(attrs)


def _averaged_draws(estimator, attrs: dict) -> xarray.Dataset:
    """Return the draws that the predictions of a named kernel average over; weighted ones are resampled."""
    posterior, axes = (
        estimator.posterior_,
        Axes.of(estimator.n_features_in_, estimator.n_outputs_, *axis_names(estimator)),
    )
    index = np.arange(len(posterior))
    if posterior.weights is not None:
        index = resample(posterior.weights, NUM_RESAMPLED, np.random.default_rng(0))
    rows = [named_values(gp) for gp in estimator._drawn_models()]  # arrays, of a model that is changed by the next draw
    values = {name: np.stack([rows[i][name] for i in index])[None] for name in rows[0]}
    return _convert_hyperparameters(estimator, make_named_group(values, axes)).assign_attrs(attrs)


def in_units(estimator, groups: dict[str, xarray.Dataset]) -> dict[str, xarray.Dataset]:
    """Convert groups to original units; prior, log_likelihood and posterior_predictive when they are read."""
    # imported here since `import ovkgp` must not load xarray
    from ovkgp.inference.sampling.lazy_groups import make_lazy_group

    scaling, found = estimator.scaling_, {name: group.copy(deep=True) for name, group in groups.items()}
    found["posterior"] = _convert_hyperparameters(estimator, groups["posterior"])
    if "prior" in groups:
        sizes = groups["prior"].sizes
        template = resize_draws(found["posterior"], (sizes["chain"], sizes["draw"]))
        template.attrs = {**groups["prior"].attrs, "units": found["posterior"].attrs["units"]}
        # a copy, since the estimator may be fitted again
        compute = partial(_convert_hyperparameters, copy(estimator), groups["prior"])
        found["prior"] = make_lazy_group(template, compute)
    if "observed_data" in groups:
        found["observed_data"] = _convert(groups["observed_data"], scaling.output_scale, scaling.output_offset)
    if "posterior_predictive" in groups:
        group = groups["posterior_predictive"]
        compute = partial(_convert, group, scaling.output_scale, scaling.output_offset)
        found["posterior_predictive"] = make_lazy_group(group, compute)
    if "log_likelihood" in groups:
        group = groups["log_likelihood"]
        compute = partial(_convert, group, 1.0, -_log_scales(estimator, group, groups["observed_data"]))
        found["log_likelihood"] = make_lazy_group(group, compute)
    return found


def _convert_hyperparameters(estimator, group: xarray.Dataset) -> xarray.Dataset:
    attrs = {**group.attrs, "units": "original units"}
    names = ColumnNames(*axis_names(estimator), estimator.kernel_)
    return named_terms_group(values_in_units(estimator, group), names, attrs)


def _log_scales(estimator, group: xarray.Dataset, observed_data: xarray.Dataset) -> np.ndarray:
    """Return Σ log s_a over the observed outputs of each row, by which their log densities differ."""
    observed = np.isfinite(observed_data["y"].values)[group["row"].values]
    return observed @ np.log(estimator.scaling_.output_scale)


def _convert(group: xarray.Dataset, scale: np.ndarray | float, offset: np.ndarray) -> xarray.Dataset:
    return group.assign(y=(group["y"].dims, group["y"].values * scale + offset))


def named_terms_group(values: dict[str, np.ndarray], names: ColumnNames, attrs: dict) -> xarray.Dataset:
    """Return the group of hyperparameters by name, (chains, draws, *shape) each, with named terms.

    Hyperparameters of independent outputs become one variable with the dimension `output`; terms of a sum keep a prefix, such
    as `curl_free.lengthscale` or `component_1.output_matrix`.
    """
    axes = Axes(tuple(names.inputs), tuple(names.outputs))
    by_output: dict[str, dict[int, np.ndarray]] = {}
    variables = {}
    for path, draws in values.items():
        name, output = split_output(path, len(names.outputs))
        if output is None:
            variables[name] = draws
        else:
            by_output.setdefault(name, {})[output] = draws
    group = make_named_group(variables, axes, attrs)
    for name, parts in by_output.items():
        if len(parts) < len(names.outputs) or len({draws.shape for draws in parts.values()}) > 1:
            group = group.merge(make_named_group({f"{names.outputs[a]}.{name}": d for a, d in parts.items()}, axes))
            continue
        shape = squeeze_shape(name.rpartition(".")[2], parts[0].shape[2:])
        stacked = np.stack([parts[a].reshape(*parts[a].shape[:2], *shape) for a in range(len(parts))], axis=2)
        dims = axes.dims(name, shape)
        group = group.merge(make_dataset({name: stacked}, {name: ("chain", "draw", "output", *dims)}, axes.coords()))
    return group.assign_attrs(attrs)


def _point(estimator, X, Y, noise):
    """Return the point estimate of a model without draws as one draw, in standardized units."""
    if (X is None) != (Y is None):
        raise InputError("X and Y must be passed together. Pass the training data or neither.")
    inputs, outputs = axis_names(estimator)
    names = {"input_names": inputs, "output_names": outputs}
    if X is not None:
        given = estimator._further_table(X, Y, noise).scaled(estimator.scaling_)
        return point_arviz(estimator.gp_, *given, **names)
    data = estimator.training_observations()
    if estimator.approximation_ == "variational":
        data = estimator.gp_.observations_  # None if the model was loaded
    if data is not None:
        return point_arviz(estimator.gp_, data.X, data.Y, data.noise, **names)
    values = {name: value[None, None] for name, value in named_values(estimator.gp_).items()}
    reason = "omitted: the model stores no training rows; to_arviz(X, Y) computes it"
    axes = Axes(tuple(inputs), tuple(outputs))
    return to_arviz_object({"posterior": make_named_group(values, axes, {"log_likelihood": reason})})
