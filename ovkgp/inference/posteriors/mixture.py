"""Posterior averaged over draws of the hyperparameters.

A draw is a value of each raw parameter, by qualified name; a copy of the model at each draw is conditioned on the data.
The posteriors of all draws are cached if they fit in memory together, and otherwise recomputed one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from operator import methodcaller
from types import FunctionType, ModuleType

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.posteriors.posterior import FunctionDraws, Posterior, spawn_seeds
from ovkgp.inference.posteriors.prediction import MixturePrediction, Prediction, check_form

RAW_DRAWS_GROUP = "unconstrained_posterior"
"""Group of the ArviZ object of `sample_hyperparameters` with the raw parameters."""
SAMPLE_AXES = ("chain", "draw")

MAX_CACHED_BYTES = 1e9  # memory that the posteriors of all draws may need together to be cached

Condition = Callable[[torch.nn.Module], Posterior]


class MixturePosterior(Posterior):
    """Average of S posteriors of the same outputs, with weights (S,) that sum to one; None is equal weights.

    `log_evidence` is the mean over the draws of log p(Y | θ_s), which is not the log of an averaged evidence.
    """

    data: Observations | None = None  # the observations, if they are stored

    no_residuals = (
        "Whitened residuals are not defined for an average over hyperparameter draws. Condition at one value, "
        "gp.condition(X, Y).whitened_residuals()."
    )

    def __init__(self, components: Sequence[Posterior], weights: np.ndarray | None = None):
        if not len(components):
            raise InputError("components must have at least one posterior.")
        self.parts, self.weights = components, weights
        first = components[0]
        self.num_outputs, self.num_dims = first.num_outputs, first.num_dims

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def noise(self) -> Tensor | None:
        return self._averages[0]

    @property
    def log_evidence(self) -> float:
        return self._averages[1]

    @property
    def log_evidence_error(self) -> float:
        return self._averages[2]

    @cached_property
    def _averages(self) -> tuple[Tensor | None, float, float]:
        """Noise, log evidence and its standard error, in one pass over the components."""
        noises, evidences, errors = zip(
            *((part.noise, part.log_evidence, part.log_evidence_error) for part in self.parts), strict=True
        )
        weights = np.full(len(noises), 1 / len(noises)) if self.weights is None else self.weights
        noise = None
        if all(noise is not None for noise in noises):
            noise = torch.tensordot(torch.as_tensor(weights).to(noises[0]), torch.stack(noises), 1)
        return noise, math.fsum(weights * evidences), math.hypot(*(weights * errors))

    def predict(self, X, cov: str = "diag", noise: bool = False) -> MixturePrediction:
        form, X = check_form(cov), validate_inputs(X, self.num_dims).double()
        return MixturePrediction((part.predict(X, form, noise) for part in self.parts), self.weights)

    @torch.no_grad()
    def joint_log_density(self, X, Y) -> Tensor:
        densities = torch.stack([part.joint_log_density(X, Y) for part in self.parts])
        weights = np.full(len(densities), 1 / len(densities)) if self.weights is None else self.weights
        return (densities + torch.as_tensor(weights).to(densities).log().unsqueeze(-1)).logsumexp(0)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        mixture = MixturePrediction((Prediction(*part.latent(X, form), form) for part in self.parts), self.weights)
        return mixture.mean, mixture._covariance

    def max_chunk_rows(self, form: str) -> int:
        return self.parts[0].max_chunk_rows(form)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, p) at the points X (m, d), each from one component. O((m·p)³) per component used."""
        allocation = DrawAllocation(
            check_integer("the number of draws", k), len(self.parts), random_state, self.weights
        )
        X = validate_inputs(X, self.num_dims).double()
        values = X.new_empty(k, len(X), self.num_outputs)
        for index, rows in allocation.rows.items():
            seed = allocation.seeds[index]
            values[rows] = self.parts[index].sample(X, len(rows), noise=noise, random_state=seed).to(values)
        return values

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """Draw k random functions, from each component in proportion to its weight as far as k allows."""
        allocation = DrawAllocation(
            check_integer("the number of draws", k), len(self.parts), random_state, self.weights
        )

        def draw_from(part: int) -> FunctionDraws:
            return self.parts[part].sample_functions(len(allocation.rows[part]), random_state=allocation.seeds[part])

        # Recomputed components give the same functions again, from the same seeds.
        cached = {part: draw_from(part) for part in allocation.rows} if getattr(self.parts, "are_cached", True) else {}

        def functions_of(part: int) -> FunctionDraws:
            return cached[part] if part in cached else draw_from(part)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), len(X), self.num_outputs)
            for part, rows, ranks in allocation.group(index):
                values[rows] = functions_of(part)._evaluate(X, ranks)
            return values

        def evaluate_pairs(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), self.num_outputs)
            for part, rows, ranks in allocation.group(index):
                values[rows] = functions_of(part)._evaluate_pairs(X[rows], ranks)
            return values

        def noise() -> Tensor:
            found = torch.empty(k, self.num_outputs, self.num_outputs, dtype=torch.float64)
            for part, rows in allocation.rows.items():
                found[rows] = functions_of(part).noise
            return found

        return FunctionDraws(evaluate, k, self.num_dims, noise, evaluate_pairs)

    def potential(self, reference=None) -> MixturePosterior:
        """Return the average over the draws of `FieldPosteriors.potential`."""
        return self._map(methodcaller("potential", reference))

    def stream_function(self, reference=None) -> MixturePosterior:
        """Return the average over the draws of `FieldPosteriors.stream_function`."""
        return self._map(methodcaller("stream_function", reference))

    def divergence(self) -> MixturePosterior:
        """Return the average over the draws of `FieldPosteriors.divergence`."""
        return self._map(methodcaller("divergence"))

    def curl(self) -> MixturePosterior:
        """Return the average over the draws of `FieldPosteriors.curl`."""
        return self._map(methodcaller("curl"))

    def components(self) -> dict[str, MixturePosterior]:
        """Return the averages over the draws of `FieldPosteriors.components`."""
        return {name: self._map(partial(_field_component, name)) for name in self.parts[0].components()}

    def _map(self, function: Callable[[Posterior], Posterior]) -> MixturePosterior:
        found = MixturePosterior(MappedPosteriors(self.parts, function), self.weights)
        found.units = self.units
        return found


class MappedPosteriors(Sequence):
    """Posteriors of another process, computed from each posterior by `function` when it is accessed."""

    def __init__(self, parts: Sequence[Posterior], function: Callable[[Posterior], Posterior]):
        self.parts, self.function, self.are_cached = parts, function, getattr(parts, "are_cached", True)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Posterior:
        return self.function(self.parts[index])


def _field_component(name: str, posterior: Posterior) -> Posterior:
    return posterior.components()[name]


class DrawAllocation:
    """Random allocation of k draws to S components, in random order.

    Each gets the integer part of k times its weight (S,), and the remainder is drawn at random; None is equal weights.
    """

    def __init__(self, num_draws: int, num_components: int, random_state=None, weights: np.ndarray | None = None):
        seed = as_seed(random_state)
        self.seeds, rng = spawn_seeds(seed, num_components), np.random.default_rng(seed)  # one seed per component
        weights = np.full(num_components, 1 / num_components) if weights is None else np.asarray(weights)
        expected = num_draws * weights
        counts = np.floor(expected + 1e-9).astype(int)  # 3 · ⅓ is 1
        left, rest = num_draws - counts.sum(), np.maximum(expected - counts, 0.0) + 1e-12 * weights
        some = rng.choice(num_components, left, replace=False, p=rest / rest.sum()) if left else np.zeros(0, int)
        # the component of each draw (k,), the draws of each component, and the number of each draw among those
        self.parts = rng.permutation(np.concatenate([np.repeat(np.arange(num_components), counts), some]))
        self.rows = {int(part): np.flatnonzero(self.parts == part) for part in np.unique(self.parts)}
        self.ranks = np.empty(num_draws, dtype=np.int64)
        for rows in self.rows.values():
            self.ranks[rows] = np.arange(len(rows))

    def group(self, index: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each component of the draws `index` (m,), their positions in it, and their numbers among its draws."""
        parts, ranks = self.parts[index.numpy()], self.ranks[index.numpy()]
        for part in np.unique(parts).tolist():
            rows = np.flatnonzero(parts == part)
            yield part, torch.from_numpy(rows), torch.from_numpy(ranks[rows])


def condition_on_draws(
    gp: torch.nn.Module, draws, condition: Condition, *, max_draws: int = 200, allow_missing: bool = False
) -> MixturePosterior:
    """Compute the posterior averaged over draws of the hyperparameters (see `read_raw_draws`), thinned to `max_draws`.

    `condition` maps a model at one draw to its posterior; the result can be pickled if it can. If `allow_missing`,
    trained parameters without draws keep their values in `gp`.
    """
    raw = validate_draws(gp, thin_draws(read_raw_draws(draws), max_draws), allow_missing)
    return MixturePosterior(ConditionedDraws(gp, raw, condition))


class ConditionedDraws(Sequence):
    """Posteriors of a model at S draws of its raw parameters, cached if all need at most `MAX_CACHED_BYTES`.

    `cached` are the posteriors, if they were computed before.
    """

    def __init__(
        self,
        gp: torch.nn.Module,
        raw: dict[str, Tensor],
        condition: Condition,
        cached: Sequence[Posterior] | None = None,
    ):
        self.gp, self.raw, self.condition = deepcopy(gp), raw, condition
        self.num_draws = len(next(iter(raw.values())))
        self._cached = self._fill_cache() if cached is None else cached

    @property
    def are_cached(self) -> bool:
        """Whether the posteriors are cached rather than recomputed at every access."""
        return self._cached is not None

    def __len__(self) -> int:
        return self.num_draws

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}.")
        return self._cached[index] if self.are_cached else self.condition_at(index % len(self))

    def set_draw(self, index: int) -> torch.nn.Module:
        """Write one draw into the model and return it (the same object at every call)."""
        parameters = dict(self.gp.named_parameters())
        with torch.no_grad():
            for name, values in self.raw.items():
                parameters[name].copy_(values[index])
        return self.gp

    def condition_at(self, index: int) -> Posterior:
        """Compute the posterior at one draw."""
        posterior = self.condition(self.set_draw(index))
        posterior.forget_data()  # one copy per draw
        return posterior

    def _fill_cache(self) -> list[Posterior] | None:
        first = self.condition_at(0)
        # Some factors are computed when they are first needed; ½ is a point of every domain.
        first.predict(torch.full((1, first.num_dims), 0.5, dtype=torch.float64))
        if count_bytes(first) * len(self) > MAX_CACHED_BYTES:
            return None
        return [first, *(self.condition_at(index) for index in range(1, len(self)))]


def read_raw_draws(draws) -> dict[str, np.ndarray]:
    """Read draws of raw parameters by qualified name, (chains, draws, *shape), from an ArviZ object or a dictionary."""
    try:
        has_group = RAW_DRAWS_GROUP in draws
    except TypeError as error:
        raise InputError(
            f"hyperparameters must be the result of sample_hyperparameters or a dictionary of raw parameters, got a {type(draws).__name__}."
        ) from error
    if has_group:
        group = draws[RAW_DRAWS_GROUP]
        values = {str(name): group[name] for name in group.data_vars}
        return {name: value.transpose(*SAMPLE_AXES, ...).values for name, value in values.items()}
    if not isinstance(draws, dict):
        raise InputError(
            f"hyperparameters must have a group {RAW_DRAWS_GROUP!r} with the raw parameters. Draw them with "
            "sample_hyperparameters, or pass a dictionary from names of raw parameters to arrays (draws, *shape)."
        )
    return {name: _as_one_chain(name, value) for name, value in draws.items()}


def _as_one_chain(name: str, value) -> np.ndarray:
    value = value.detach().cpu().numpy() if torch.is_tensor(value) else np.asarray(value)
    if value.ndim == 0:
        raise InputError(f"hyperparameters[{name!r}] must be an array (draws, *shape), got a number.")
    return value[None]


def thin_draws(draws: Mapping[str, np.ndarray], max_draws: int) -> dict[str, np.ndarray]:
    """Select at most `max_draws` of the draws (chains, draws, *shape), evenly over the chains, as (S, *shape)."""
    max_draws, sizes = check_integer("max_draws", max_draws), {name: value.shape[:2] for name, value in draws.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"hyperparameters must have equally many draws each, got (chains, draws) = {sizes}.")
    total = int(np.prod(next(iter(sizes.values()), (0, 0))))
    if total == 0:
        raise InputError("hyperparameters must have at least one draw, got none.")
    chosen = np.arange(total) if total <= max_draws else (np.arange(max_draws) + 0.5) * total // max_draws
    return {name: value.reshape(total, *value.shape[2:])[chosen.astype(int)] for name, value in draws.items()}


def validate_draws(gp: torch.nn.Module, draws: Mapping[str, np.ndarray], allow_missing: bool) -> dict[str, Tensor]:
    """Convert draws (S, *shape) to float64 tensors with the names and shapes of the model's parameters."""
    parameters = dict(gp.named_parameters())
    if unknown := [name for name in draws if name not in parameters]:
        raise InputError(
            f"hyperparameters refers to unknown parameter {unknown[0]!r}. The parameters are {', '.join(parameters)}."
        )
    missing = [name for name, value in parameters.items() if value.requires_grad and name not in draws]
    if missing and not allow_missing:
        raise InputError(
            f"hyperparameters has no draws of {', '.join(missing)}. Draw all trained parameters, or fix these at their current values with requires_grad_(False)."
        )
    return {name: _validate_parameter(name, value, parameters[name]) for name, value in draws.items()}


def _validate_parameter(name: str, values: np.ndarray, parameter: Tensor) -> Tensor:
    shape = tuple(parameter.shape)
    if values.shape[1:] != shape:
        raise InputError(f"hyperparameters[{name!r}] has draws of shape {values.shape[1:]}, expected {shape}.")
    values = torch.as_tensor(np.array(values, dtype=np.float64))
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"hyperparameters[{name!r}] must be finite.")
    return values


def count_bytes(root) -> int:
    """Count the memory of all tensors that an object contains, each once."""
    sizes, waiting, visited = {}, [root], set()
    while waiting:
        part = waiting.pop()
        if id(part) in visited:
            continue
        visited.add(id(part))
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
