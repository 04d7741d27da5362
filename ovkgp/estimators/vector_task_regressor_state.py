"""The posterior of a `VectorTaskRegressor` in a model file, with the kernel and the noise that it was made from."""

from __future__ import annotations

from torch import Tensor

from ovkgp.estimators.kernel_specs import kernel_from_spec, kernel_to_spec
from ovkgp.estimators.posterior_state import posterior_from_state, posterior_state
from ovkgp.estimators.tensor_layout import prefixed, under
from ovkgp.estimators.vector_task_regressor import VectorTaskRegressor
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.data import Observations
from ovkgp.inference.exact_posterior import ExactPosterior
from ovkgp.inference.model import Model
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.task_learning.functional_ridge_grid import GridSolver
from ovkgp.inference.task_learning.functional_ridge_posterior import GridPosterior

GRID = "grid"


def task_posterior_state(posterior: ExactPosterior) -> tuple[dict, dict[str, Tensor]]:
    """A posterior on pairs as what JSON can hold, and tensors. Nothing is computed."""
    spec, values = kernel_to_spec(posterior.process.kernel)
    if isinstance(posterior, GridPosterior):
        about = {"kind": GRID}
        data = {"X": posterior.data.X, "Y": posterior.data.Y}
        own = {"output_noise": posterior.output_noise, "grid": posterior.grid}
        tensors = {**own, **prefixed(solver=posterior.solver.tensors(), data=data)}
    else:
        model = Model(posterior.process.kernel, posterior.mean, None)
        about, tensors = posterior_state(posterior, model)
    return {"kernel": spec, "posterior": about}, prefixed(kernel=values, posterior=tensors)


def task_posterior_from_state(entry: dict, tensors: dict[str, Tensor]) -> ExactPosterior:
    """The posterior that `task_posterior_state` described. Nothing is factorised again."""
    kernel, values = kernel_from_spec(entry["kernel"], under("kernel", tensors)), under("posterior", tensors)
    gp = OperatorValuedGP(kernel, mean="zero", noise=1.0)
    gp.mean.see(values["data.X"].shape[1])
    model = gp.frozen().model
    if entry["posterior"]["kind"] != GRID:
        return posterior_from_state(entry["posterior"], values, model)
    solver, data = GridSolver.from_tensors(under("solver", values)), Observations(**under("data", values))
    process = KernelProcess(model.kernel, data.num_outputs)
    return GridPosterior(process, solver, data, model.mean, values["output_noise"], values["grid"])


def put_gp(estimator: VectorTaskRegressor) -> None:
    """`gp_` of a loaded estimator, from its posterior."""
    noise = estimator.noise_ * estimator.scale_
    estimator.gp_ = OperatorValuedGP(estimator.posterior_.process.kernel, mean="zero", noise=noise)
    estimator.gp_.requires_grad_(False)
    estimator.gp_.fit_report_ = estimator.fit_report_
