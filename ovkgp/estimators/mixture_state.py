"""Posteriors that average over draws of the hyperparameters as JSON and tensors.

The exact roads keep n² numbers a draw and are made again from the data and the draws, which a file holds, and so are variational ones: the same
computation, so that predictions are equal up to rounding (1e-12). Posteriors of features have no data, and the state of every
component is stored.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ovkgp.estimators.kernel_state import kernel_state
from ovkgp.estimators.posterior_state import DATA, posterior_from_state, posterior_state
from ovkgp.estimators.tensor_layout import prefixed, under
from ovkgp.exceptions import ModelFileError, OptionError
from ovkgp.inference import OperatorValuedGP, VariationalGP
from ovkgp.inference.draws_conditioning import ConditionedDraws, checked_draws
from ovkgp.inference.independent_posterior import IndependentPosterior
from ovkgp.inference.mixture_posterior import MixturePosterior
from ovkgp.inference.posterior import Posterior
from ovkgp.inference.weight_posterior import WeightPosterior

KIND = "mixture"
OPTIONS = ("variance", "num_landmarks")


def mixture_state(posterior: MixturePosterior, gp: OperatorValuedGP | VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """A mixture over draws of the hyperparameters of `gp` as a dictionary that JSON can hold, and tensors by name.

    Args:
        posterior: as `gp.condition(X, Y, hyperparameters=…)` gives it.
        gp: the model; of what was drawn its present values do not matter, all others must be those of the draws.

    Raises:
        OptionError: the model has changed.

    Cost: nothing is computed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.mixture_state import mixture_from_state, mixture_state
        >>> from ovkgp.inference import OperatorValuedGP, VariationalGP
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> X = torch.linspace(0, 6, 20).double().unsqueeze(-1)
        >>> draws = {"kernel.raw_lengthscale": torch.linspace(-1, 1, 3).reshape(3, 1, 1)}
        >>> posterior = gp.condition(X, X.sin(), hyperparameters=draws)
        >>> again = mixture_from_state(*mixture_state(posterior, gp), gp)
        >>> len(again), torch.allclose(again.predict(X).std, posterior.predict(X).std, rtol=1e-12)
        (3, True)
    """
    drawn = posterior.parts
    _require_unchanged(drawn, gp)
    raw = prefixed(raw=drawn.raw)
    if drawn.are_kept and _has_features(drawn[0]):
        parts = [posterior_state(part, drawn.place(index).model) for index, part in enumerate(drawn)]
        groups = {str(index): tensors for index, (_, tensors) in enumerate(parts)}
        return {"kind": KIND, "parts": [header for header, _ in parts]}, {**raw, **prefixed(part=prefixed(**groups))}
    given = drawn.condition.keywords
    data = {name: given[name] for name in DATA if given[name] is not None}
    return {"kind": KIND, "options": {name: given[name] for name in OPTIONS}}, {**raw, **prefixed(data=data)}


def mixture_from_state(
    header: dict, tensors: dict[str, Tensor], gp: OperatorValuedGP | VariationalGP
) -> MixturePosterior:
    """The mixture that `mixture_state` described, over a model with the values that it had.

    Cost: with the exact kernel, one conditioning for each draw; nothing is computed for features.
    """
    raw = checked_draws(gp, {name: value.numpy() for name, value in under("raw", tensors).items()}, allow_missing=True)
    if not raw:
        raise ModelFileError("the file describes an average over draws of the hyperparameters, and holds no draws.")
    if "parts" in header:
        kept = []
        drawn = ConditionedDraws(gp, raw, None, kept)
        for index, part in enumerate(header["parts"]):
            model = drawn.place(index).frozen().model
            kept.append(posterior_from_state(part, under(f"part.{index}", tensors), model))
        return MixturePosterior(drawn)
    data = dict.fromkeys(DATA) | under("data", tensors)
    options = {name: header["options"][name] for name in OPTIONS}
    return MixturePosterior(ConditionedDraws(gp, raw, partial(type(gp).condition, **data, **options)))


def _has_features(posterior: Posterior) -> bool:
    parts = posterior.parts if isinstance(posterior, IndependentPosterior) else [posterior]
    return all(isinstance(part, WeightPosterior) for part in parts)


def _require_unchanged(drawn: ConditionedDraws, gp: OperatorValuedGP | VariationalGP) -> None:
    mine, yours = (kernel_state(model) for model in (drawn.gp, gp))
    trained = {id(p) for name, p in gp.named_parameters() if name in drawn.raw}
    again = {n for n, p in gp.named_parameters(remove_duplicate=False) if id(p) in trained}
    if mine.keys() != yours.keys() or not all(torch.equal(mine[n], yours[n]) for n in mine if n not in again):
        raise OptionError(
            "gp_ was changed after posterior_ was made from it, so that they are two models: call fit again."
        )
