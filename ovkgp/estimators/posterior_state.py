"""Posteriors as JSON and tensors: what was factorised is kept, so that a posterior read back computes the very same numbers.

The kernel, the mean and the feature map are not part of it: a posterior is put back over a model that has them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.estimators.kernel_state import kernel_state
from ovkgp.estimators.tensor_layout import prefixed, under
from ovkgp.exceptions import ModelFileError, OptionError
from ovkgp.inference.common_solver import CommonSolver
from ovkgp.inference.data import Observations
from ovkgp.inference.dense import DenseSolver
from ovkgp.inference.exact_posterior import ExactPosterior, KroneckerPosterior
from ovkgp.inference.guard import VarianceGuard
from ovkgp.inference.independent_posterior import IndependentPosterior
from ovkgp.inference.independent_road import output_model
from ovkgp.inference.iterative import IterativeSolver
from ovkgp.inference.kronecker import KroneckerSolver
from ovkgp.inference.model import Model
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.weight_posterior import WeightPosterior
from ovkgp.inference.weight_space import WeightSystem

SOLVERS = {
    "dense": (ExactPosterior, DenseSolver),
    "kronecker": (KroneckerPosterior, KroneckerSolver),
    "common": (KroneckerPosterior, CommonSolver),
    "iterative": (ExactPosterior, IterativeSolver),
}
"""By name, the posteriors with the exact kernel and their solvers."""

DATA = ("X", "Y", "noise")


def posterior_state(posterior: Posterior, model: Model) -> tuple[dict, dict[str, Tensor]]:
    """A posterior as a dictionary that JSON can hold, and tensors by name.

    Args:
        posterior: of `model`, by the exact kernel or by features.
        model: what it was made from; its values are not stored here, and must not have changed since.

    Raises:
        OptionError: the posterior was made by products alone and has nothing factorised, or the model has changed.

    Cost: nothing is computed or copied.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.posterior_state import posterior_from_state, posterior_state
        >>> from ovkgp.inference import OperatorValuedGP
        >>> gp = OperatorValuedGP(RBFKernel(), noise=0.1)
        >>> X = torch.linspace(0, 6, 20).double().unsqueeze(-1)
        >>> posterior = gp.condition(X, X.sin())
        >>> header, tensors = posterior_state(posterior, gp.model)
        >>> again = posterior_from_state(header, tensors, gp.frozen().model)
        >>> header["kind"], torch.equal(again.predict(X).std, posterior.predict(X).std)
        ('dense', True)
    """
    if isinstance(posterior, IndependentPosterior):
        parts = [posterior_state(part, output_model(model, a)) for a, part in enumerate(posterior.parts)]
        groups = {str(a): tensors for a, (_, tensors) in enumerate(parts)}
        return {"kind": "independent", "parts": [header for header, _ in parts]}, prefixed(**groups)
    _require_unchanged(posterior, model)
    noise = {"output_noise": posterior.output_noise}
    if isinstance(posterior, WeightPosterior):
        guard = {} if posterior.guard is None else posterior.guard.tensors()
        header = {"kind": "weights", "num_dims": posterior.num_dims, "guarded": posterior.guard is not None}
        return header, {**noise, **prefixed(system=posterior.system.tensors(), guard=guard)}
    solver = posterior.solver
    kind = next(kind for kind, (_, known) in SOLVERS.items() if isinstance(solver, known))
    counted = {"num_iterations": solver.num_iterations} if kind == "iterative" else {}
    data = {name: value for name in DATA if (value := getattr(posterior.data, name)) is not None}
    return {"kind": kind, **counted}, {**noise, **prefixed(solver=solver.tensors(), data=data)}


def posterior_from_state(header: dict, tensors: dict[str, Tensor], model: Model) -> Posterior:
    """The posterior that `posterior_state` described.

    Args:
        header, tensors: from `posterior_state`, possibly after a journey through a file.
        model: frozen, with the values that it had.

    Cost: nothing is factorised again.

    Example:
        See `posterior_state`.
    """
    kind = header["kind"]
    if kind == "independent":
        return IndependentPosterior(
            [
                posterior_from_state(h, under(str(a), tensors), output_model(model, a))
                for a, h in enumerate(header["parts"])
            ]
        )
    noise = tensors["output_noise"]
    process = KernelProcess(model.kernel, len(noise))
    if kind == "weights":
        system = WeightSystem.from_tensors(under("system", tensors))
        guard = VarianceGuard.from_tensors(model.kernel, under("guard", tensors)) if header["guarded"] else None
        return WeightPosterior(process, model.features, system, model.mean, noise, header["num_dims"], guard)
    if kind not in SOLVERS:
        raise ModelFileError(f"the file describes a posterior of kind {kind!r}, which this version does not know.")
    posterior, solver = SOLVERS[kind][0], SOLVERS[kind][1].from_tensors(under("solver", tensors))
    if "num_iterations" in header:
        solver.num_iterations = header["num_iterations"]
    return posterior(process, solver, Observations(**under("data", tensors)), model.mean, noise)


def _require_unchanged(posterior: ExactPosterior | WeightPosterior, model: Model) -> None:
    """Refuse a model that was trained or edited after the data were conditioned on: the two would not fit together."""
    pairs = [(posterior.process.kernel, model.kernel), (posterior.mean, model.mean)]
    if isinstance(posterior, WeightPosterior):
        pairs.append((posterior.feature_map, model.features))
    if not all(_same(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs):
        raise OptionError(
            "gp_ was changed after posterior_ was made from it, so that they are two models: call fit again."
        )


def _same(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> bool:
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)
