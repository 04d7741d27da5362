"""From draws of the hyperparameters to the posterior that averages over them.

A draw is a value for each raw parameter, by its qualified name; it is written into a copy of the model, and the data are
conditioned on. The posteriors of all draws are kept where they are small together, and made anew, one at a time, where they
are not: the exact roads keep n² numbers a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.mixture_posterior import MixturePosterior
from ovkgp.inference.posterior import Posterior
from ovkgp.kernels.checks import whole_number

GROUP = "unconstrained_posterior"
"""Where the ArviZ object of `sample_hyperparameters` has the raw parameters."""
SAMPLE_AXES = ("chain", "draw")

MOST_BYTES = 1e9
"""What the posteriors of all draws may need together and still be kept."""

Condition = Callable[[torch.nn.Module], Posterior]


def condition_on_draws(
    gp: torch.nn.Module, draws, condition: Condition, *, max_draws: int = 200, allow_missing: bool = False
) -> MixturePosterior:
    """The posterior averaged over draws of the hyperparameters.

    Args:
        gp: the model that the draws belong to; copied, not changed.
        draws: what `sample_hyperparameters` returns, or a dictionary from the qualified names of raw parameters to arrays
            (draws, *shape).
        condition: from a model at one draw to its posterior. Give a function that can be pickled (of the top level, or a
            `functools.partial` of one), where the posterior should be.
        max_draws: more are thinned to so many, evenly over the chains.
        allow_missing: whether trained parameters without draws stay as they are in `gp`; else they are an error.

    Raises:
        InputError: names or shapes are not those of the model's parameters, or draws are not finite.

    Cost: that of `condition` for each draw, in time; memory is bounded (`ConditionedDraws`).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.draws_conditioning import condition_on_draws
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.01)
        >>> draws = {"kernel.raw_lengthscale": torch.linspace(-1, 1, 5).reshape(5, 1, 1)}
        >>> posterior = condition_on_draws(gp, draws, lambda model: model.condition(X, X.sin()))
        >>> len(posterior), posterior.predict(X).mean.shape
        (5, torch.Size([20, 1]))
    """
    raw = checked_draws(gp, thinned(raw_draws(draws), max_draws), allow_missing)
    return MixturePosterior(ConditionedDraws(gp, raw, condition))


class ConditionedDraws(Sequence):
    """The posteriors of a model at S draws of its raw parameters.

    Args:
        gp: the model; copied.
        raw: by qualified name, the draws (S, *shape).
        condition: from a model at one draw to its posterior.
        kept: the S posteriors, where they are there already.

    Attributes:
        are_kept: whether all posteriors together need no more than `MOST_BYTES`, so that they are kept.

    Cost: S conditionings once where they are kept; one at every question to a component where they are not.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.draws_conditioning import ConditionedDraws
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.01)
        >>> condition = partial(OperatorValuedGP.condition, X=X, Y=X.sin())
        >>> drawn = ConditionedDraws(gp, {"kernel.raw_lengthscale": torch.zeros(5, 1, 1)}, condition)
        >>> len(drawn), drawn.are_kept, type(drawn[0]).__name__
        (5, True, 'ExactPosterior')
    """

    def __init__(
        self, gp: torch.nn.Module, raw: dict[str, Tensor], condition: Condition, kept: list[Posterior] | None = None
    ):
        self.gp, self.raw, self.condition = deepcopy(gp), raw, condition
        self.num_draws = len(next(iter(raw.values())))
        self._kept = self._keep() if kept is None else kept

    @property
    def are_kept(self) -> bool:
        return self._kept is not None

    def __len__(self) -> int:
        return self.num_draws

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} draws; {index} is not one of them.")
        return self._kept[index] if self.are_kept else self.make(index % len(self))

    def place(self, index: int) -> torch.nn.Module:
        """The model at one draw: the same object at every call."""
        parameters = dict(self.gp.named_parameters())
        with torch.no_grad():
            for name, values in self.raw.items():
                parameters[name].copy_(values[index])
        return self.gp

    def make(self, index: int) -> Posterior:
        """The posterior at one draw, conditioned on the data now."""
        return self.condition(self.place(index))

    def _keep(self) -> list[Posterior] | None:
        first = self.make(0)
        # Some factors are made when they are first needed; ½ is a point of every domain.
        first.predict(torch.full((1, first.num_dims), 0.5, dtype=torch.float64))
        if num_bytes(first) * len(self) > MOST_BYTES:
            return None
        return [first, *(self.make(index) for index in range(1, len(self)))]


def raw_draws(draws) -> dict[str, np.ndarray]:
    """Draws of raw parameters by qualified name, (chains, draws, *shape), from an ArviZ object or a dictionary."""
    try:
        has_group = GROUP in draws
    except TypeError as error:
        raise InputError(
            f"hyperparameters are what sample_hyperparameters returns, or a dictionary of raw parameters; got a "
            f"{type(draws).__name__}."
        ) from error
    if has_group:
        group = draws[GROUP]
        values = {str(name): group[name] for name in group.data_vars}
        return {name: value.transpose(*SAMPLE_AXES, ...).values for name, value in values.items()}
    if not isinstance(draws, dict):
        raise InputError(
            f"these draws have no group {GROUP!r}, which holds the raw parameters: draw them with sample_hyperparameters, "
            "or give a dictionary from the names of raw parameters to arrays (draws, *shape)."
        )
    return {name: _by_chain(name, value) for name, value in draws.items()}


def _by_chain(name: str, value) -> np.ndarray:
    value = value.detach().cpu().numpy() if torch.is_tensor(value) else np.asarray(value)
    if value.ndim == 0:
        raise InputError(f"the draws of {name} have no axis of draws: give an array (draws, *shape).")
    return value[None]


def thinned(draws: Mapping[str, np.ndarray], most: int) -> dict[str, np.ndarray]:
    """At most `most` of the draws (chains, draws, *shape), evenly over the chains, as (S, *shape)."""
    most, sizes = whole_number("max_draws", most), {name: value.shape[:2] for name, value in draws.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"there are not equally many draws of all hyperparameters: (chains, draws) are {sizes}.")
    total = int(np.prod(next(iter(sizes.values()), (0, 0))))
    if total == 0:
        raise InputError("there are no draws of the hyperparameters to average over.")
    chosen = np.arange(total) if total <= most else (np.arange(most) + 0.5) * total // most
    return {name: value.reshape(total, *value.shape[2:])[chosen.astype(int)] for name, value in draws.items()}


def checked_draws(gp: torch.nn.Module, draws: Mapping[str, np.ndarray], allow_missing: bool) -> dict[str, Tensor]:
    """Draws (S, *shape) as float64 tensors, with the names and shapes of the model's parameters."""
    parameters = dict(gp.named_parameters())
    if unknown := [name for name in draws if name not in parameters]:
        raise InputError(
            f"there are draws of {unknown[0]!r}, which this model does not have; its parameters are {', '.join(parameters)}."
        )
    missing = [name for name, value in parameters.items() if value.requires_grad and name not in draws]
    if missing and not allow_missing:
        raise InputError(
            f"there are no draws of {', '.join(missing)}: draw all trained parameters, or hold these at their present values "
            "with requires_grad_(False)."
        )
    return {name: _checked(name, value, parameters[name]) for name, value in draws.items()}


def _checked(name: str, values: np.ndarray, parameter: Tensor) -> Tensor:
    shape = tuple(parameter.shape)
    if values.shape[1:] != shape:
        raise InputError(f"each draw of {name} has shape {shape}; got draws of shape {values.shape[1:]}.")
    values = torch.as_tensor(np.array(values, dtype=np.float64))
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"the draws of {name} are not all finite.")
    return values


def num_bytes(thing) -> int:
    """The memory of all tensors that an object holds, each once."""
    sizes, waiting, met = {}, [thing], set()
    while waiting:
        part = waiting.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        if torch.is_tensor(part) and part.layout is torch.strided:
            storage = part.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part
        elif hasattr(part, "__dict__") and not isinstance(part, type | FunctionType | ModuleType):
            waiting += vars(part).values()
    return sum(sizes.values())
