"""One value of the hyperparameters as an ArviZ object, so that a point estimate stands beside posteriors in a table.

ArviZ cannot estimate leave-one-out densities from a single draw, and need not: Σ log p(y_ij | y_−ij, θ) has a closed form,
and is kept with its standard error √(N Var) in the attributes `elpd_loo` and `elpd_loo_se`.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np

from ovkgp.inference.arviz_data import to_arviz_object
from ovkgp.inference.draw_groups import DrawGroups


def point_arviz(gp, X, Y, noise=None, *, input_names=None, output_names=None):
    """The present hyperparameters of a model as one draw: posterior, log_likelihood, observed_data and elpd_loo.

    Args:
        gp: the model; not changed.
        X, Y, noise: as for `gp.condition`.
        input_names, output_names: labels of the columns.

    Cost: one factorisation.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.point_arviz import point_arviz
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), noise=0.1)
        >>> data = point_arviz(gp, X, X.sin())
        >>> abs(data["posterior"].attrs["elpd_loo"] - gp.leave_one_out(X, X.sin()).total) < 1e-9
        True
    """
    gp = deepcopy(gp)
    raw = {name: parameter.detach().cpu().numpy()[None, None] for name, parameter in gp.named_parameters()}
    writer = DrawGroups(gp, raw, None, X, Y, noise, input_names, output_names)
    likelihood = writer.log_likelihood(True)
    pointwise = likelihood["log_likelihood"]["y"].to_numpy().ravel()
    attrs = {
        "inference_library": "ovkgp",
        "method": "point",
        "elpd_loo": float(pointwise.sum()),
        "elpd_loo_se": float(np.sqrt(len(pointwise) * pointwise.var())),
    }
    return to_arviz_object(writer.posterior(writer.variables(), attrs) | likelihood | writer.observed_data())
