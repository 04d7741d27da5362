"""The groups of an ArviZ object from draws of raw parameters, or from the present hyperparameters as one draw.

ArviZ cannot estimate leave-one-out densities from a single draw. `point_arviz` stores the closed form
Σ log p(y_ij | y_−ij, θ) with its standard error √(N Var) in the attributes `elpd_loo` and `elpd_loo_se`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, OptionError, OvkgpError
from ovkgp.inference.model.observations import as_floating, validate_inputs
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds
from ovkgp.inference.sampling.arviz_data import (
    SAMPLES,
    Axes,
    make_dataset,
    make_named_group,
    make_raw_group,
    to_arviz_object,
)
from ovkgp.inference.sampling.prior_predictive import draw_prior, set_parameters
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.log_posterior import named_values

if TYPE_CHECKING:
    import xarray


MAX_JOINT_ENTRIES = 500
"""Up to this many entries, Y is drawn jointly by the exact covariance; above, by random functions."""
EIGH_COST_RATIO = 10  # approximate cost of an eigendecomposition relative to a Cholesky factorization
MAX_GROUP_VALUES = 5e7  # maximum number of values (draws × entries) of a group
MAX_AUTO_OPERATIONS = 2e11  # maximum number of elementary operations for a group with "auto": about half a minute
Model = TypeVar("Model", bound=torch.nn.Module)
Groups = dict[str, "xarray.Dataset"]


class DrawGroups:
    """ArviZ groups from a model, draws of its raw parameters (chains, draws, *shape) by qualified name, and data.

    The parameters of the model are overwritten. `names` are the hyperparameters to report (None for all); Y is None if
    X are statistics.
    """

    def __init__(self, gp, raw: Mapping[str, np.ndarray], names, X, Y, noise=None, input_names=None, output_names=None):
        self.gp, self.raw, self.names = gp, dict(raw), names
        self.X, self.Y, self.noise = X, Y, noise
        num_inputs = None if Y is None else validate_inputs(X).shape[1]
        self.axes = Axes.of(num_inputs, gp.num_outputs, input_names, output_names)
        self.shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
        self.attrs: dict[str, Any] = {}

    def variables(self) -> dict[str, np.ndarray]:
        """Return the constrained hyperparameters by name, (chains, draws, *shape)."""
        return named_draws(self.gp, self.raw, self.names)

    def posterior(self, variables: Mapping[str, np.ndarray], attrs: Mapping[str, Any]) -> Groups:
        """Return posterior and unconstrained_posterior."""
        return {
            "posterior": make_named_group(variables, self.axes, {**attrs, **self.attrs}),
            "unconstrained_posterior": make_raw_group(self.raw),
        }

    def prior(self, draws: int, random_state) -> Groups:
        """Return the same hyperparameters drawn from their priors; {} if a prior cannot be drawn from."""
        try:
            drawn = draw_prior(self.gp, draws, random_state) if draws else {}
            raw = {name: np.asarray(values)[None] for name, values in drawn.items()}
            return {"prior": make_named_group(named_draws(self.gp, raw, self.names), self.axes)} if raw else {}
        except KeyboardInterrupt:
            return self._interrupted("prior")
        except OvkgpError as error:
            return self._omit("prior", "auto", str(error))

    def sample_stats(self, stats: Mapping[str, np.ndarray]) -> Groups:
        """Return the sampler's statistics of each draw."""
        return {"sample_stats": make_dataset(stats, dict.fromkeys(stats, SAMPLES))}

    def log_likelihood(self, wanted: bool | str) -> Groups:
        """Return log p(y_ij | y_−ij, θ_s) of the observed entries; {} if it is too expensive or the model has none."""

        def compute() -> Groups:
            values = log_likelihoods(self.gp, self.raw, self.X, self.Y, self.noise)
            rows, columns = np.nonzero(observed_entries(self.Y))
            coords = {"row": ("entry", rows), "output": ("entry", np.array(self.axes.outputs)[columns])}
            values = values.reshape(*self.shape, -1)
            return {"log_likelihood": make_dataset({"y": values}, {"y": (*SAMPLES, "entry")}, coords)}

        if not hasattr(self.gp, "leave_one_out"):
            return self._omit("log_likelihood", wanted, "the model has no leave-one-out densities in closed form")
        return self._compute_if_affordable("log_likelihood", wanted, factorization_cost, compute)

    def posterior_predictive(self, wanted: bool | str, random_state) -> Groups:
        """Return replicated data at the training inputs; {} if they are too expensive."""

        def compute() -> Groups:
            values = draw_replicates(self.gp, self.raw, self.X, self.Y, self.noise, random_state)
            values = values.reshape(*self.shape, *values.shape[1:])
            group = make_dataset({"y": values}, {"y": (*SAMPLES, "row", "output")}, self.axes.coords())
            return {"posterior_predictive": group}

        return self._compute_if_affordable("posterior_predictive", wanted, replication_cost, compute)

    def observed_data(self) -> Groups:
        """Return Y (row, output), NaN where missing."""
        Y = as_floating(self.Y, "Y").double().cpu().numpy().reshape(len(self.Y), -1)
        return {"observed_data": make_dataset({"y": Y}, {"y": ("row", "output")}, self.axes.coords())}

    def _compute_if_affordable(
        self, name: str, wanted: bool | str, work: Callable, compute: Callable[[], Groups]
    ) -> Groups:
        """Return a group, unless it is expensive and not required; the reason for omission goes to the attributes."""
        if wanted not in (True, False, "auto"):
            raise OptionError(f'{name} must be True, False or "auto", got {wanted!r}.')
        if wanted is False:
            return self._omit(name, "auto", "not requested")
        count = int(np.prod(self.shape))
        if count * observed_entries(self.Y).size > MAX_GROUP_VALUES:
            entries = observed_entries(self.Y).size
            return self._omit(name, wanted, f"{count} draws of {entries} entries are too many numbers")
        if wanted == "auto" and count * work(self.gp, self.X, self.Y, self.noise) > MAX_AUTO_OPERATIONS:
            return self._omit(name, wanted, f"{count} factorizations are expensive; {name}=True computes it")
        try:
            return compute()
        except KeyboardInterrupt:
            return self._interrupted(name)
        except OvkgpError as error:
            return self._omit(name, wanted, str(error), error)

    def _interrupted(self, name: str) -> Groups:
        warnings.warn(f"Interrupted; the draws are kept and {name} is omitted.", FitWarning, stacklevel=4)
        return self._omit(name, "auto", "interrupted")

    def _omit(self, name: str, wanted: bool | str, reason: str, error: Exception | None = None) -> Groups:
        if wanted is True:
            raise OptionError(f"{name} cannot be computed: {reason}. Use {name}=False.") from error
        self.attrs[name] = f"left out: {reason}"
        return {}


def point_arviz(gp, X, Y, noise=None, *, input_names=None, output_names=None):
    """Return the present hyperparameters of a model as one draw: posterior, log_likelihood, observed_data and elpd_loo.

    The model is not changed. Complexity: one factorization.
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


def named_draws(gp, raw: Mapping[str, np.ndarray], names=None) -> dict[str, np.ndarray]:
    """Return the constrained hyperparameters by name, (chains, draws, *shape), at draws of the raw parameters."""
    shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
    rows = [named_values(model) for model in iterate_draws(gp, raw)]
    names = rows[0] if names is None else names
    return {name: np.stack([row[name] for row in rows]).reshape(*shape, *rows[0][name].shape) for name in names}


def iterate_draws(gp: Model, raw: Mapping[str, np.ndarray]) -> Iterator[Model]:
    """Yield the model with the raw parameters (chains, draws, *shape) of each draw in turn, in place."""
    for index in np.ndindex(next(iter(raw.values())).shape[:2] if raw else (1, 1)):
        set_parameters(gp, raw, index)
        yield gp


def log_likelihoods(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None) -> np.ndarray:
    """Return log p(y_ij | y_−ij, θ_s) of the observed entries, row by row: (draws, entries), one chain after another.

    The parameters of the model are overwritten. Complexity: one factorization per draw, n³ + p³ for a separable kernel,
    (observed entries)³ for others; two passes over the data for a feature map.
    """
    mask = observed_entries(Y)
    found = [model.leave_one_out(X, Y, noise).log_density.cpu().numpy() for model in iterate_draws(gp, raw)]
    return np.stack([values.reshape(mask.shape)[mask] for values in found])


def draw_replicates(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, random_state=None) -> np.ndarray:
    """Draw one data set per draw at the training inputs: (draws, n, p), one chain after another.

    The noise is the model's at θ_s; if it is known for each entry, the known one (its average where Y is missing).
    Complexity: one conditioning per draw, and O((n·p)³) for a joint draw of at most 500 entries.
    """
    X = validate_inputs(X).double()
    count = int(np.prod(next(iter(raw.values())).shape[:2])) if raw else 1
    pairs = zip(iterate_draws(gp, raw), spawn_seeds(random_state, count), strict=True)
    found = [_replicate(model.condition(X, Y, noise=noise), X, Y, noise, seed) for model, seed in pairs]
    return torch.stack(found).cpu().numpy()


def observed_entries(Y) -> np.ndarray:
    """Return a mask (n, p) of the observed entries of Y."""
    return ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).cpu().numpy()


def factorization_cost(gp, X, Y, noise=None) -> float:
    """Return the approximate number of elementary operations of one factorization with the model's strategy."""
    data = gp.observe(X, Y, noise)
    if gp.features is not None:
        return float(data.num_rows) * gp.features.num_features**2
    if select_strategy(gp.model, data, gp.strategy).name == "kronecker":
        return EIGH_COST_RATIO * float(data.num_rows) ** 3
    return float(data.num_observed) ** 3


def replication_cost(gp, X, Y, noise=None) -> float:
    """Return the approximate number of elementary operations of a posterior and one draw of data from it."""
    size = observed_entries(Y).size
    joint = EIGH_COST_RATIO * float(size) ** 3 if size <= MAX_JOINT_ENTRIES else 0.0
    return factorization_cost(gp, X, Y, noise) + joint


def _replicate(posterior, X: Tensor, Y, known, seed: int) -> Tensor:
    is_joint = len(X) * posterior.num_outputs <= MAX_JOINT_ENTRIES
    if is_joint and known is None:
        return posterior.sample(X, 1, noise=True, random_state=seed)[0]
    of_function, of_noise = spawn_seeds(seed, 2)
    if is_joint:
        function = posterior.sample(X, 1, random_state=of_function)[0]
    else:
        function = posterior.sample_functions(1, random_state=of_function)(X)[0]
    if posterior.noise is None:  # a variational one whose likelihood is not Gaussian
        return posterior.likelihood.draw(function, torch.Generator().manual_seed(of_noise))
    scores = draw_normal(tuple(function.shape), of_noise, function)
    error = scores @ torch.linalg.cholesky(posterior.noise).mT
    if known is None:
        return function + error
    deviations = as_floating(known, "noise").double().reshape(function.shape).sqrt()
    mask = torch.from_numpy(observed_entries(Y)).to(function.device)
    return function + torch.where(mask, scores * deviations, error)
