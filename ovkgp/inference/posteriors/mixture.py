"""From draws of the hyperparameters to the posterior that averages over them.

A draw is a value for each raw parameter, by its qualified name; it is written into a copy of the model, and the data are
conditioned on. The posteriors of all draws are kept where they are small together, and made anew, one at a time, where they
are not: the exact roads keep n² numbers a draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from operator import methodcaller
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError
from ovkgp.inference.model.observations import inputs
from ovkgp.inference.posteriors.posterior import FunctionDraws, Posterior, seeds
from ovkgp.inference.posteriors.prediction import MixturePrediction, Prediction, check_form


class MixturePosterior(Posterior):
    """S posteriors of the same outputs as one.

    Args:
        components: the S posteriors, a list, or any sequence that makes each anew when it is asked for
            (`ovkgp.inference.posteriors.mixture.ConditionedDraws`): they are then used one at a time.

    `noise` is the average of the components' noise; `log_evidence` is the *mean over the draws* of log p(Y | θ_s), which is
    not the log of an averaged evidence.

    Cost: S times that of one component, in time; in memory S times the factors of a component where they are kept, one
    component's where they are made anew, and O(S m p) for predictions at m points.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.posteriors.mixture import MixturePosterior
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> noisy = [OperatorValuedGP(RBFKernel(), noise=level).condition(X, X.sin()) for level in (0.01, 0.1)]
        >>> prediction = MixturePosterior(noisy).predict([[1.0], [9.0]], noise=True)
        >>> lower, upper = prediction.interval(0.95)
        >>> prediction.mean.shape, bool((lower < upper).all())
        (torch.Size([2, 1]), True)
    """

    def __init__(self, components: Sequence[Posterior]):
        if not len(components):
            raise InputError("a mixture needs at least one posterior.")
        self.parts = components
        first = components[0]
        self.num_outputs, self.num_dims = first.num_outputs, first.num_dims

    def __len__(self) -> int:
        return len(self.parts)

    # --- numbers ----------------------------------------------------------------------------------------------------

    @property
    def noise(self) -> Tensor | None:
        return self._facts[0]

    @property
    def log_evidence(self) -> float:
        return self._facts[1]

    @property
    def log_evidence_error(self) -> float:
        return self._facts[2]

    @cached_property
    def _facts(self) -> tuple[Tensor | None, float, float]:
        """Noise, log evidence and its error, in one pass over the components."""
        noises, evidences, errors = zip(
            *((part.noise, part.log_evidence, part.log_evidence_error) for part in self.parts), strict=True
        )
        noise = None if any(noise is None for noise in noises) else torch.stack(noises).mean(0)
        return noise, math.fsum(evidences) / len(evidences), math.hypot(*errors) / len(errors)

    # --- questions --------------------------------------------------------------------------------------------------

    def predict(self, X, cov: str = "diag", noise: bool = False) -> MixturePrediction:
        form, X = check_form(cov), inputs(X, self.num_dims).double()
        return MixturePrediction(part.predict(X, form, noise) for part in self.parts)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        mixture = MixturePrediction(Prediction(*part.latent(X, form), form) for part in self.parts)
        return mixture.mean, mixture._covariance

    def rows_at_once(self, form: str) -> int:
        return self.parts[0].rows_at_once(form)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """k joint draws at the points X (m, d), (k, m, p), each from one component: O((m·p)³) for each component drawn."""
        share = Shares(check_integer("the number of draws", k), len(self.parts), random_state)
        X = inputs(X, self.num_dims).double()
        values = X.new_empty(k, len(X), self.num_outputs)
        for index, places in share.places.items():
            seed = share.seeds[index]
            values[places] = self.parts[index].sample(X, len(places), noise=noise, random_state=seed).to(values)
        return values

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """k random functions, each from one component, equally many from each as far as k allows."""
        share = Shares(check_integer("the number of draws", k), len(self.parts), random_state)

        def draws_of(index: int) -> FunctionDraws:
            return self.parts[index].sample_functions(len(share.places[index]), random_state=share.seeds[index])

        # Components that are made anew give the same functions anew, from the same seeds.
        kept = {index: draws_of(index) for index in share.places} if getattr(self.parts, "are_kept", True) else {}

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), len(X), self.num_outputs)
            owners, ranks = share.owners[index.numpy()], share.ranks[index.numpy()]
            for owner in np.unique(owners).tolist():
                rows = np.flatnonzero(owners == owner)
                own = torch.from_numpy(ranks[rows])
                values[rows] = (kept.get(owner) or draws_of(owner))._evaluate(X, own)
            return values

        return FunctionDraws(evaluate, k, self.num_dims)

    # --- vector fields ----------------------------------------------------------------------------------------------

    def potential(self, reference=None) -> MixturePosterior:
        """The average over the draws of the posteriors of g with f = ∇g; see `FieldViews.potential`."""
        return MixturePosterior(Views(self.parts, methodcaller("potential", reference)))

    def stream_function(self, reference=None) -> MixturePosterior:
        """The average over the draws of the posteriors of ψ with f = (∂₂ψ, −∂₁ψ); see `FieldViews.stream_function`."""
        return MixturePosterior(Views(self.parts, methodcaller("stream_function", reference)))

    def components(self) -> dict[str, MixturePosterior]:
        """The average over the draws of the two parts of a Helmholtz field; see `FieldViews.components`."""
        names = self.parts[0].components()
        return {name: MixturePosterior(Views(self.parts, partial(_part_of_field, name))) for name in names}


class Views(Sequence):
    """What each of some posteriors says of a process that is tied to its own.

    Args:
        parts: the posteriors.
        ask: from one of them to the posterior of the other process.
    """

    def __init__(self, parts: Sequence[Posterior], ask: Callable[[Posterior], Posterior]):
        self.parts, self.ask, self.are_kept = parts, ask, getattr(parts, "are_kept", True)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Posterior:
        return self.ask(self.parts[index])


def _part_of_field(name: str, posterior: Posterior) -> Posterior:
    return posterior.components()[name]


class Shares:
    """Which component makes which of k draws: equally many each, the rest at random, in random order.

    Args:
        num_draws: k.
        num_components: S.
        random_state: as in scikit-learn.

    Attributes:
        owners: the component (k,) of each draw.
        ranks: the how-manieth (k,) of its component's draws it is.
        places: component ↦ the places of its draws, where it has any.
        seeds: one for each component.

    Example:
        >>> from ovkgp.inference.posteriors.mixture import Shares
        >>> sorted(len(places) for places in Shares(7, 3, random_state=0).places.values())
        [2, 2, 3]
    """

    def __init__(self, num_draws: int, num_components: int, random_state=None):
        seed = as_seed(random_state)
        self.seeds, rng = seeds(seed, num_components), np.random.default_rng(seed)
        whole, left = divmod(num_draws, num_components)
        some = rng.choice(num_components, left, replace=False)
        self.owners = rng.permutation(np.concatenate([np.repeat(np.arange(num_components), whole), some]))
        self.places = {int(owner): np.flatnonzero(self.owners == owner) for owner in np.unique(self.owners)}
        self.ranks = np.empty(num_draws, dtype=np.int64)
        for places in self.places.values():
            self.ranks[places] = np.arange(len(places))


GROUP = "unconstrained_posterior"
"""Where the ArviZ object of `sample_hyperparameters` has the raw parameters."""
SAMPLE_AXES = ("chain", "draw")

MAX_BYTES = 1e9
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
        >>> from ovkgp.inference.posteriors.mixture import condition_on_draws
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
        are_kept: whether all posteriors together need no more than `MAX_BYTES`, so that they are kept.

    Cost: S conditionings once where they are kept; one at every question to a component where they are not.

    Example:
        >>> import torch
        >>> from functools import partial
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.posteriors.mixture import ConditionedDraws
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
        if num_bytes(first) * len(self) > MAX_BYTES:
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
    most, sizes = check_integer("max_draws", most), {name: value.shape[:2] for name, value in draws.items()}
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
