"""Log predictive densities of single entries of Y, in the user's units: left out one by one, with fixed or with drawn
hyperparameters, or left out by whole rows.

An estimator models ỹ = (y − offset) / scale, so that log p(y) = log p(ỹ) − log scale: whatever a candidate scales by, the numbers of
all candidates can be compared.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.sampling import sample_hyperparameters


def left_out_entries(estimator, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """log p(y_ij | all other entries) at the trained hyperparameters, in closed form, for the observed entries, row by row.

    Args:
        estimator: a fitted `GPRegressor`.
        X, Y: its data (n, d) and (n, p), NaN where missing.

    Cost: one factorisation of the model's covariance.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.estimators.selection.predictive_scores import left_out_entries
        >>> X = np.linspace(0, 3, 20)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)])
        >>> Y[3, 1] = np.nan
        >>> left_out_entries(ovkgp.GPRegressor("independent", random_state=0).fit(X, Y), X, Y).shape
        (39,)
    """
    scaling = estimator.scaling_
    left_out = estimator.gp_.leave_one_out(scaling.inputs(X), scaling.outputs(Y))
    return _observed(left_out.log_density.numpy() - np.log(scaling.output_scale), Y)


class DrawnLeaveOneOut(NamedTuple):
    """log p(y_ij | all other entries) of the observed entries and the Pareto shape k̂ of each, the hyperparameters averaged out."""

    log_density: np.ndarray
    khat: np.ndarray


def left_out_entries_drawn(
    estimator, X: np.ndarray, Y: np.ndarray, method: str, *, random_state=None, **sampling
) -> DrawnLeaveOneOut:
    """The same with the hyperparameters averaged out: Pareto-smoothed importance sampling over draws of their posterior.

    Args:
        estimator, X, Y: as for `left_out_entries`.
        method: of `sample_hyperparameters`: "laplace", "svi" or "nuts".
        random_state: of the draws.
        **sampling: further options of `sample_hyperparameters`, such as draws=500.

    Raises:
        OptionError: the densities of all draws would take too long; log_likelihood=True insists.

    Cost: the sampler's, and one factorisation a draw; draws × entries numbers of memory.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.estimators.selection.predictive_scores import left_out_entries_drawn
        >>> X = np.linspace(0, 3, 20)[:, None]
        >>> y = np.sin(X[:, 0]) + 0.1 * np.cos(50 * X[:, 0])
        >>> model = ovkgp.GPRegressor("independent", random_state=0).fit(X, y)
        >>> left_out_entries_drawn(model, X, y[:, None], "laplace", random_state=0, draws=100).log_density.shape
        (20,)
    """
    scaling, rows = estimator.scaling_, np.isfinite(Y).any(1)
    options = {"prior_draws": 0, "posterior_predictive": False} | sampling
    data = sample_hyperparameters(
        estimator.gp_,
        scaling.inputs(X[rows]),
        scaling.outputs(Y[rows]),
        method,
        random_state=random_state,
        **options,
    )
    try:
        data["log_likelihood"]
    except KeyError as error:
        attrs = data["posterior"].attrs
        reason = next((str(text) for name, text in attrs.items() if "log_likelihood" in name), "they cost too much")
        raise OptionError(
            f"PSIS-LOO needs the densities of all entries at every draw, which were left out: {reason}. Take fewer draws, "
            'insist with log_likelihood=True, or use method="none".'
        ) from error
    log_density, khat = smoothed_leave_one_out(data)
    scale = np.broadcast_to(np.log(scaling.output_scale), Y.shape)
    return DrawnLeaveOneOut(log_density - _observed(scale, Y), khat)


def smoothed_leave_one_out(data, library: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """ArviZ's pointwise PSIS-LOO of an ArviZ object with a log_likelihood `y`, and the k̂ of each entry.

    Args:
        data: `arviz.InferenceData` or `xarray.DataTree`.
        library: "arviz" or "arviz_stats" (ArviZ 1.x); None takes the one that is installed.
    """
    # Imported here and not above: `import ovkgp` must not load ArviZ
    library = library or ("arviz" if find_spec("arviz") is not None else "arviz_stats")
    found = import_module(library).loo(data, pointwise=True, var_name="y")
    pointwise = found.loo_i if hasattr(found, "loo_i") else found.elpd_i
    return np.asarray(pointwise).ravel(), np.asarray(found.pareto_k).ravel()


def left_out_rows(estimator, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(y_ij) and y_ij − E[y_ij] of new rows, (m, p) each and NaN where missing, under the marginal prediction of each entry.

    Args:
        estimator: a `GPRegressor` fitted to other rows; one with draws predicts by their mixture, which is what is scored.
        X, Y: the new rows.

    Cost: one prediction.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.estimators.selection.predictive_scores import left_out_rows
        >>> X = np.linspace(0, 3, 20)[:, None]
        >>> model = ovkgp.GPRegressor("independent", random_state=0).fit(X[::2], np.sin(X[::2]))
        >>> log_density, error = left_out_rows(model, X[1::2], np.sin(X[1::2]))
        >>> log_density.shape, bool(abs(error).max() < 0.1)
        ((10, 1), True)
    """
    scaling = estimator.scaling_
    prediction = estimator.posterior_.predict(scaling.inputs(X), "diag", noise=True)
    log_density = prediction.log_density(scaling.outputs(Y)).numpy() - np.log(scaling.output_scale)
    return log_density, Y - scaling.mean(prediction.mean)


def _observed(values: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return values[np.isfinite(Y)]
