"""Log predictive densities of rows of Y, leave-one-out (with trained or sampled hyperparameters) or of held-out rows.

All are in original units: an estimator models ỹ = (y − offset) / scale, so that log p(y) = log p(ỹ) − log scale, and candidates with
different scalings can be compared.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from ovkgp.exceptions import OptionError
from ovkgp.inference.posteriors.leave_one_out import group_index
from ovkgp.inference.sampling.arviz_data import (
    NUM_FUNCTION_DRAWS,
    function_log_likelihoods,
    is_variational,
    log_likelihoods,
    make_dataset,
    to_arviz_object,
)
from ovkgp.inference.sampling.sampling import sample_hyperparameters


def count_observed(Y: np.ndarray, groups="rows") -> np.ndarray:
    """Count the observed entries (G, p) of each output in each row or group that has any, in the order of the densities."""
    index = group_index(groups, len(Y)).numpy()
    counts = np.column_stack([np.bincount(index, column) for column in np.isfinite(Y).T])
    return counts[counts.any(1)]


def compute_loo_densities(
    estimator, X: np.ndarray, Y: np.ndarray, groups="rows"
) -> tuple[np.ndarray, np.ndarray | None]:
    """Compute log p(y_i | all other rows or groups) of those with observed entries, and k̂ if they were sampled.

    They are in closed form, but for a variational model, where they are estimated by PSIS from draws of the functions.
    """
    scaling, gp = estimator.scaling_, estimator.gp_
    shift = count_observed(Y, groups) @ np.log(scaling.output_scale)
    data = scaling.inputs(X), scaling.outputs(Y)
    if is_variational(gp) and isinstance(groups, str):
        values = function_log_likelihoods(gp, *data, None, NUM_FUNCTION_DRAWS)
        log_density, khat = _run_psis(values)
        return log_density - shift, khat
    return log_likelihoods(gp, {}, *data, groups=groups)[0] - shift, None


def compute_psis_loo_densities(
    estimator, X: np.ndarray, Y: np.ndarray, method: str, *, groups="rows", random_state=None, **sampling
) -> tuple[np.ndarray, np.ndarray]:
    """Compute log p(y_i | all other rows or groups) of those with observed entries and k̂ by PSIS over hyperparameter draws.

    `method` and `sampling` are options of `sample_hyperparameters`. Complexity: one factorization per draw; draws × rows numbers
    of memory.
    """
    scaling, rows = estimator.scaling_, np.isfinite(Y).any(1)
    options = {"prior_draws": 0, "posterior_predictive": False} | sampling
    given = scaling.inputs(X[rows]), scaling.outputs(Y[rows])
    shift = count_observed(Y, groups) @ np.log(scaling.output_scale)
    if not isinstance(groups, str):
        options["log_likelihood"] = False
    data = sample_hyperparameters(estimator.gp_, *given, method, random_state=random_state, **options)
    if not isinstance(groups, str):
        raw = {name: values.values for name, values in data["unconstrained_posterior"].data_vars.items()}
        values = log_likelihoods(deepcopy(estimator.gp_), raw, *given, groups=np.asarray(groups)[rows])
        log_density, khat = _run_psis(values)
        return log_density - shift, khat
    try:
        data["log_likelihood"]
    except KeyError as error:
        attrs = data["posterior"].attrs
        reason = next((str(text) for name, text in attrs.items() if "log_likelihood" in name), "they cost too much")
        raise OptionError(
            f"PSIS-LOO needs the densities of all rows at every draw, which were not computed: {reason}. Use fewer draws, "
            'log_likelihood=True or method="none".'
        ) from error
    log_density, khat = run_psis_loo(data)
    return log_density - shift, khat


def _run_psis(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Run PSIS-LOO on log likelihoods (draws, rows) of one chain."""
    draws = {"y": values[None]}
    groups = {
        "posterior": make_dataset({"draw_index": np.arange(len(values))[None]}, {"draw_index": ("chain", "draw")}),
        "log_likelihood": make_dataset(draws, {"y": ("chain", "draw", "row")}),
    }
    return run_psis_loo(to_arviz_object(groups))


def run_psis_loo(data, library: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return ArviZ's pointwise PSIS-LOO of the log likelihood `y` in `data`, and the k̂ of each row.

    `data` is an `arviz.InferenceData` or `xarray.DataTree`; `library` is "arviz", "arviz_stats" (ArviZ 1.x) or None (the installed).
    """
    # Imported here and not above: `import ovkgp` must not load ArviZ
    library = library or ("arviz" if find_spec("arviz") is not None else "arviz_stats")
    loo = import_module(library).loo(data, pointwise=True, var_name="y")
    pointwise = loo.loo_i if hasattr(loo, "loo_i") else loo.elpd_i
    return np.asarray(pointwise).ravel(), np.asarray(loo.pareto_k).ravel()


def score_heldout_rows(estimator, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log p(y_ij) and y_ij − E[y_ij] of new rows, (m, p) each and NaN if missing, under marginal predictions."""
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(X), "diag", noise=True)
    log_density = prediction.log_density(scaling.outputs(Y)).numpy() - np.log(scaling.output_scale)
    return log_density, Y - scaling.mean(prediction.mean)
