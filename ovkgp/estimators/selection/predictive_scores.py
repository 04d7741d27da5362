"""Log predictive densities of single entries of Y, leave-one-out (with trained or sampled hyperparameters) or of held-out rows.

All are in original units: an estimator models ỹ = (y − offset) / scale, so that log p(y) = log p(ỹ) − log scale, and candidates with
different scalings can be compared.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np

from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.sampling import sample_hyperparameters


def compute_loo_densities(estimator, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Compute log p(y_ij | all other entries) of the observed entries, row by row, in closed form."""
    scaling = estimator.scaling_
    loo = estimator.gp_.leave_one_out(scaling.inputs(X), scaling.outputs(Y))
    return (loo.log_density.numpy() - np.log(scaling.output_scale))[np.isfinite(Y)]


def compute_psis_loo_densities(
    estimator, X: np.ndarray, Y: np.ndarray, method: str, *, random_state=None, **sampling
) -> tuple[np.ndarray, np.ndarray]:
    """Compute log p(y_ij | all other entries) of the observed entries and k̂ by PSIS over hyperparameter draws.

    `method` and `sampling` are options of `sample_hyperparameters`. Complexity: one factorization per draw; draws × entries numbers
    of memory.
    """
    scaling, rows = estimator.scaling_, np.isfinite(Y).any(1)
    options = {"prior_draws": 0, "posterior_predictive": False} | sampling
    data = sample_hyperparameters(
        estimator.gp_, scaling.inputs(X[rows]), scaling.outputs(Y[rows]), method, random_state=random_state, **options
    )
    try:
        data["log_likelihood"]
    except KeyError as error:
        attrs = data["posterior"].attrs
        reason = next((str(text) for name, text in attrs.items() if "log_likelihood" in name), "they cost too much")
        raise OptionError(
            f"PSIS-LOO needs the densities of all entries at every draw, which were not computed: {reason}. Use fewer draws, "
            'log_likelihood=True or method="none".'
        ) from error
    log_density, khat = run_psis_loo(data)
    return log_density - np.broadcast_to(np.log(scaling.output_scale), Y.shape)[np.isfinite(Y)], khat


def run_psis_loo(data, library: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return ArviZ's pointwise PSIS-LOO of the log likelihood `y` in `data`, and the k̂ of each entry.

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
