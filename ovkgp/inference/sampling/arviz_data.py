"""Draws of raw parameters, or the present hyperparameters as one draw, as the object that ArviZ reads.

Dimensions are `chain` and `draw`, then `input` for ARD lengthscales, `output` (and `output_bis`) for noise, mean and
output matrix. ArviZ 0.x reads an `InferenceData`, ArviZ 1.x an `xarray.DataTree`; both are imported inside the
functions, since `import ovkgp` must load neither.

The log_likelihood of a row, from which ArviZ estimates leave-one-row-out densities by importance sampling, is log p(y_i | y_−i, θ_s)
in closed form, or log p(y_i | f_i, θ_s) at a draw of f from q(f | θ_s) for a variational model. ArviZ cannot use a single draw:
`point_arviz` also stores the closed form Σ log p(y_i | y_−i, θ), with its standard error √(n Var), as `elpd_loo`, and for a
variational model many draws of f at the present θ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_one_of
from ovkgp.exceptions import InputError, OptionError, OvkgpError
from ovkgp.inference.model.observations import as_floating, validate_inputs
from ovkgp.inference.posteriors.leave_one_out import group_index
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds
from ovkgp.inference.sampling.prior_predictive import draw_prior, draw_prior_function
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.log_posterior import value_readers

if TYPE_CHECKING:
    import xarray

KINDS = ("auto", "inference_data", "datatree")
SAMPLES = ("chain", "draw")
MAX_JOINT_ENTRIES = 500
"""Up to this many entries, a variational model is drawn jointly by its exact covariance; above, by random functions."""
NUM_FUNCTION_DRAWS = 1000  # draws of f in the log_likelihood of a variational point estimate
EIGH_COST_RATIO = 10  # approximate cost of an eigendecomposition relative to a Cholesky factorization
MAX_GROUP_VALUES = 5e7  # maximum number of values (draws × entries) of a group
MAX_AUTO_OPERATIONS = 2e11  # maximum number of elementary operations for a group with "auto": about half a minute
Model = TypeVar("Model", bound=torch.nn.Module)
Groups = dict[str, "xarray.Dataset"]


@dataclass(frozen=True)
class Axes:
    """Labels of the columns of X (None for statistics) and Y, for the dimensions `input` and `output`."""

    inputs: tuple | None
    outputs: tuple

    @classmethod
    def of(cls, num_inputs: int | None, num_outputs: int, input_names=None, output_names=None) -> Axes:
        """Return labels from names, or 0, 1, … if there are none."""
        inputs = _labels(input_names, num_inputs, "input_names") if num_inputs is not None else None
        return cls(inputs, _labels(output_names, num_outputs, "output_names"))

    def dims(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the dimensions of a hyperparameter whose value has this shape, without uninformative ones."""
        p, last = len(self.outputs), name.rpartition(".")[2]
        shape = squeeze_shape(last, shape)
        if last in ("output_matrix", "noise") and shape == (p, p):
            return ("output", "output_bis")
        if last in ("noise", "mean", "scale", "df", "dispersion") and shape == (p,):
            return ("output",)
        if self.inputs is not None and last == "slopes" and shape == (len(self.inputs), p):
            return ("input", "output")
        if self.inputs is not None and last in ("lengthscale", "variance") and shape == (len(self.inputs),):
            return ("input",)
        return tuple(f"{name}_dim_{i}" for i in range(len(shape)))

    def coords(self) -> dict[str, Any]:
        """Return the labels by dimension."""
        labels = {"output": list(self.outputs), "output_bis": list(self.outputs)}
        return labels if self.inputs is None else {"input": list(self.inputs), **labels}


def squeeze_shape(last: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones that GPyTorch adds; noise, mean and output matrix keep theirs."""
    if last in ("noise", "mean", "output_matrix", "slopes"):
        return tuple(shape)
    return tuple(size for size in shape if size > 1)


def make_dataset(
    variables: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xarray.Dataset:
    """Return an xarray Dataset of named arrays; `coords` are labels, or (dimension, labels), of those that are used."""
    import xarray

    arrays = {name: (tuple(dims[name]), values) for name, values in variables.items()}
    used = {dim: size for names, values in arrays.values() for dim, size in zip(names, values.shape, strict=True)}
    labels = {dim: np.arange(size) for dim, size in used.items()}
    for name, values in (coords or {}).items():
        if (values[0] if isinstance(values, tuple) else name) in used:
            labels[name] = values
    return xarray.Dataset(arrays, labels, {key: _storable(key, value) for key, value in (attrs or {}).items()})


def make_named_group(
    variables: Mapping[str, np.ndarray], axes: Axes, attrs: Mapping[str, Any] | None = None
) -> xarray.Dataset:
    """Return the group of hyperparameters by name, each (chains, draws, *shape)."""
    dims, arrays = {}, {}
    for name, values in variables.items():
        dims[name] = (*SAMPLES, *axes.dims(name, values.shape[2:]))
        arrays[name] = values.reshape(*values.shape[:2], *squeeze_shape(name.rpartition(".")[2], values.shape[2:]))
    return make_dataset(arrays, dims, axes.coords(), attrs)


def make_raw_group(raw: Mapping[str, np.ndarray]) -> xarray.Dataset:
    """Return the raw parameters by qualified name, each (chains, draws, *shape) with every dimension kept."""
    dims = {name: (*SAMPLES, *(f"{name}_dim_{i}" for i in range(v.ndim - 2))) for name, v in raw.items()}
    return make_dataset(raw, dims)


def to_arviz_object(groups: Mapping[str, xarray.Dataset], kind: str = "auto"):
    """Return the groups as "inference_data" (ArviZ 0.x), "datatree" (ArviZ 1.x), or "auto" for the installed ArviZ."""
    kind = _installed_kind() if check_one_of("kind", kind, KINDS) == "auto" else kind
    if kind == "inference_data":
        return import_module("arviz").InferenceData(**groups)
    return import_module("xarray").DataTree.from_dict({f"/{name}": group for name, group in groups.items()})


def _installed_kind() -> str:
    try:
        return "inference_data" if int(version("arviz").partition(".")[0]) < 1 else "datatree"
    except PackageNotFoundError:
        return "datatree"  # what arviz-base reads


def _labels(names, size: int, what: str) -> tuple:
    labels = tuple(range(size)) if names is None else tuple(names)
    if len(labels) != size or len(set(labels)) != size:
        raise InputError(f"{what} must have {size} different names, got {list(labels)}.")
    return labels


def _storable(key: str, value):
    """Return an attribute as netCDF stores it: text, a number or an array."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (str, int, float, np.integer, np.floating, np.ndarray)):
        return value
    raise InputError(f"Attribute {key} must be text, a number or an array, got {value!r}.")


def groups_of(data) -> list[tuple[str, xarray.Dataset]]:
    """Return the groups of an ArviZ object of either kind, as Datasets by name."""
    if hasattr(data, "children"):  # an xarray.DataTree
        return [(name, group.to_dataset()) for name, group in data.children.items()]
    return [(name, data[name]) for name in data.groups()]


class DrawGroups:
    """ArviZ groups from a model, which is overwritten, draws (chains, draws, *shape) of its raw parameters, and data.

    `names` are the hyperparameters to report (None for all); Y is None if X are statistics. prior, log_likelihood and
    posterior_predictive are computed when they are first read.
    """

    def __init__(self, gp, raw: Mapping[str, np.ndarray], names, X, Y, noise=None, input_names=None, output_names=None):
        self.gp, self.raw, self.names = gp, dict(raw), names
        if Y is not None:  # copied, since groups are computed later
            X, Y = validate_inputs(X).clone(), as_floating(Y, "Y").clone()
            noise = None if noise is None else as_floating(noise, "noise").clone()
        self.data = X, Y, noise
        self.axes = Axes.of(None if Y is None else X.shape[1], gp.num_outputs, input_names, output_names)
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

    def sample_stats(self, stats: Mapping[str, np.ndarray]) -> Groups:
        """Return the sampler's statistics of each draw."""
        return {"sample_stats": make_dataset(stats, dict.fromkeys(stats, SAMPLES))}

    def observed_data(self) -> Groups:
        """Return Y (row, output), NaN where missing."""
        Y = self.data[1]
        Y = Y.double().cpu().numpy().reshape(len(Y), -1)
        return {"observed_data": make_dataset({"y": Y}, {"y": ("row", "output")}, self.axes.coords())}

    def prior(self, draws: int, random_state) -> Groups:
        """Return the same hyperparameters drawn from their priors; {} if a prior cannot be drawn from."""
        if not draws:
            return {}
        compute = partial(_prior_group, self.gp, self.names, self.axes, random_state)
        return self._make_group("prior", "auto", compute, 1, draws, (1, draws))

    def log_likelihood(self, wanted: bool | str, random_state=0) -> Groups:
        """Return the log density of each row with observed outputs at each draw; {} if it is too expensive."""
        if not self._is_affordable("log_likelihood", wanted, factorization_cost):
            return {}
        compute = partial(_log_likelihood_group, self.gp, self.data, random_state)
        return self._make_group("log_likelihood", wanted, compute, self._first_draw, self.raw, self.shape)

    def posterior_predictive(self, wanted: bool | str, random_state) -> Groups:
        """Return replicated data at the training inputs; {} if they are too expensive."""
        if not self._is_affordable("posterior_predictive", wanted, replication_cost):
            return {}
        compute = partial(_posterior_predictive_group, self.gp, self.data, self.axes, random_state)
        return self._make_group("posterior_predictive", wanted, compute, self._first_draw, self.raw, self.shape)

    @property
    def _first_draw(self) -> dict[str, np.ndarray]:
        return {name: values[:1, :1] for name, values in self.raw.items()}

    def _is_affordable(self, name: str, wanted: bool | str, cost: Callable) -> bool:
        """Return whether a group is to be computed; the reason for omission goes to the attributes."""
        if wanted not in (True, False, "auto"):
            raise OptionError(f'{name} must be True, False or "auto", got {wanted!r}.')
        count, entries = int(np.prod(self.shape)), observed_entries(self.data[1]).size
        if wanted is False:
            self._omit(name, "auto", "not requested")
        elif count * entries > MAX_GROUP_VALUES:
            self._omit(name, wanted, f"{count} draws of {entries} entries are too many numbers")
        elif wanted == "auto" and count * cost(self.gp, *self.data) > MAX_AUTO_OPERATIONS:
            self._omit(name, wanted, f"{count} factorizations are expensive; {name}=True computes it")
        else:
            return True
        return False

    def _make_group(self, name: str, wanted: bool | str, compute: Callable, first, everything, shape) -> Groups:
        """Return a group that is computed when it is read, if it can be computed at a first draw."""
        from ovkgp.inference.sampling.lazy_groups import make_lazy_group

        try:
            template = compute(first)
        except OvkgpError as error:
            self._omit(name, wanted, str(error), error)
            return {}
        return {name: make_lazy_group(resize_draws(template, shape), partial(compute, everything))}

    def _omit(self, name: str, wanted: bool | str, reason: str, error: Exception | None = None) -> None:
        if wanted is True:
            raise OptionError(f"{name} cannot be computed: {reason}. Use {name}=False.") from error
        self.attrs[name] = f"omitted: {reason}"


def _prior_group(gp, names, axes: Axes, random_state, draws: int) -> xarray.Dataset:
    raw = {name: np.asarray(values)[None] for name, values in draw_prior(gp, draws, random_state).items()}
    return make_named_group(named_draws(gp, raw, names), axes)


def _log_likelihood_group(gp, data, random_state, raw: Mapping[str, np.ndarray]) -> xarray.Dataset:
    values = log_likelihoods(gp, raw, *data, random_state=random_state)
    return row_densities_group(values.reshape(*next(iter(raw.values())).shape[:2], -1), data[1])["log_likelihood"]


def _posterior_predictive_group(gp, data, axes: Axes, random_state, raw: Mapping[str, np.ndarray]) -> xarray.Dataset:
    values = draw_replicates(gp, raw, *data, random_state)
    values = values.reshape(*next(iter(raw.values())).shape[:2], *values.shape[1:])
    return make_dataset({"y": values}, {"y": (*SAMPLES, "row", "output")}, axes.coords())


def resize_draws(group: xarray.Dataset, shape: tuple[int, int]) -> xarray.Dataset:
    """Return a group of one draw with zeros for (chains, draws) draws, without memory for them."""
    zeros = {name: np.broadcast_to(np.zeros((), v.dtype), shape + v.shape[2:]) for name, v in group.data_vars.items()}
    labels = {name: values for name, values in group.coords.items() if name not in SAMPLES}
    return make_dataset(zeros, {name: group[name].dims for name in zeros}, labels, group.attrs)


def point_arviz(gp, X, Y, noise=None, *, input_names=None, output_names=None):
    """Return the present hyperparameters as one draw: posterior, log_likelihood, observed_data and elpd_loo.

    The log_likelihood of a variational model has `NUM_FUNCTION_DRAWS` draws of f, and there is no elpd_loo.
    """
    gp = deepcopy(gp)
    raw = {name: parameter.detach().cpu().numpy()[None, None] for name, parameter in gp.named_parameters()}
    writer = DrawGroups(gp, raw, None, X, Y, noise, input_names, output_names)
    attrs = {"inference_library": "ovkgp", "method": "point"}
    if is_variational(gp):
        values = function_log_likelihoods(gp, X, Y, noise, NUM_FUNCTION_DRAWS)
        likelihood = row_densities_group(values[None], Y)
    else:
        likelihood = writer.log_likelihood(True)
        pointwise = likelihood["log_likelihood"]["y"].to_numpy().ravel()
        attrs["elpd_loo"] = float(pointwise.sum())
        attrs["elpd_loo_se"] = float(np.sqrt(len(pointwise) * pointwise.var()))
    return to_arviz_object(writer.posterior(writer.variables(), attrs) | likelihood | writer.observed_data())


def named_draws(gp, raw: Mapping[str, np.ndarray], names=None) -> dict[str, np.ndarray]:
    """Return the constrained hyperparameters by name, (chains, draws, *shape), at draws of the raw parameters."""
    shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
    readers = {name: read for name, read in value_readers(gp).items() if names is None or name in names}
    rows = [{name: read() for name, read in readers.items()} for _ in iterate_draws(gp, raw)]
    names = readers if names is None else names
    return {name: np.stack([row[name] for row in rows]).reshape(*shape, *rows[0][name].shape) for name in names}


def iterate_draws(gp: Model, raw: Mapping[str, np.ndarray]) -> Iterator[Model]:
    """Yield the model with the raw parameters (chains, draws, *shape) of each draw in turn, in place."""
    parameters = dict(gp.named_parameters())
    values = [(parameters[name], torch.as_tensor(draws)) for name, draws in raw.items()]
    for index in np.ndindex(next(iter(raw.values())).shape[:2] if raw else (1, 1)):
        with torch.no_grad():
            for parameter, draws in values:
                parameter.copy_(draws[index])
        yield gp


def log_likelihoods(
    gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, *, groups="rows", random_state=0
) -> np.ndarray:
    """Return log p(y_i | y_−i, θ_s) of the rows or groups with observed outputs: (draws, rows), chain after chain.

    For a variational model it is log p(y_i | f_i, θ_s) at one draw of f per θ_s; `groups` must then be "rows".
    """
    if is_variational(gp):
        if not isinstance(groups, str):
            raise OptionError(
                "groups is not supported with variational models, which have no closed-form leave-one-out densities. Use cross-validation, such as cv=GroupKFold()."
            )
        count = int(np.prod(next(iter(raw.values())).shape[:2])) if raw else 1
        pairs = zip(iterate_draws(gp, raw), spawn_seeds(random_state, count), strict=True)
        return np.concatenate([function_log_likelihoods(model, X, Y, noise, 1, seed) for model, seed in pairs])
    observed = observed_entries(Y).any(1)
    kept = np.bincount(group_index(groups, len(observed)).numpy(), observed) > 0
    found = [model.leave_one_out(X, Y, noise, groups=groups).log_density.cpu() for model in iterate_draws(gp, raw)]
    return torch.stack(found).numpy()[:, kept]


def is_variational(gp) -> bool:
    """Whether a model has no closed-form leave-one-out densities but a distribution q(f)."""
    return not hasattr(gp, "leave_one_out")


def function_log_likelihoods(gp, X, Y, noise, num_draws: int, seed: int = 0) -> np.ndarray:
    """Return log p(y_i | f_i) of the rows with observed outputs at draws of f from q(f) of a variational model."""
    data = gp.observe(X, Y, noise)
    posterior = deepcopy(gp).condition(data.X, data.Y, noise=data.noise)
    return posterior.row_log_densities(data, num_draws, seed).cpu().numpy()


def row_densities_group(values: np.ndarray, Y) -> Groups:
    """Return the group log_likelihood of values (chains, draws, rows) of the rows of Y with observed outputs."""
    rows = np.flatnonzero(observed_entries(Y).any(1))
    return {"log_likelihood": make_dataset({"y": values}, {"y": (*SAMPLES, "row")}, {"row": rows})}


@torch.no_grad()
def draw_replicates(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, random_state=None) -> np.ndarray:
    """Draw one data set per draw at the training inputs, (draws, n, p); known noise is averaged where Y is missing.

    By Matheron's rule: with f' from the prior and noise ε', f' + E[f | data Y − f' − ε'] is a draw of f given Y, for which no
    covariance of the posterior is computed. A variational model is drawn from its posterior.
    """
    count = int(np.prod(next(iter(raw.values())).shape[:2])) if raw else 1
    pairs = zip(iterate_draws(gp, raw), spawn_seeds(random_state, count), strict=True)
    X, deviations, found = validate_inputs(X).double(), None, []
    if noise is not None:  # NaN where Y is missing
        deviations = as_floating(noise, "noise").double().reshape(len(X), -1).sqrt()
        deviations = deviations.where(torch.from_numpy(observed_entries(Y)).to(X.device), torch.nan)
    if is_variational(gp):
        for model, seed in pairs:
            posterior = model.condition(X, Y, noise=noise)
            found.append(_replicate_variational(posterior, X, deviations, seed))
        return torch.stack(found).cpu().numpy()
    data = gp.observe(X, Y, noise).double()
    strategy, kept = select_strategy(gp.model, data, gp.strategy), slice(None) if data.kept is None else data.kept
    for model, seed in pairs:
        generator = torch.Generator().manual_seed(seed)
        function = draw_prior_function(model, X, generator, seed)
        scores = torch.randn(2, *function.shape, generator=generator, dtype=torch.float64).to(function)
        error = _scale_noise(scores[0], model.noise_model.matrix(), deviations)
        posterior = strategy.condition(model.model, replace(data, Y=data.Y - (function + error)[kept]), 0)
        function += posterior.predict(X, "none").mean
        found.append(function + _scale_noise(scores[1], posterior.noise, deviations))
    return torch.stack(found).cpu().numpy()


def observed_entries(Y) -> np.ndarray:
    """Return a mask (n, p) of the observed entries of Y."""
    return ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).cpu().numpy()


def factorization_cost(gp, X, Y, noise=None) -> float:
    """Return the approximate number of elementary operations of one factorization with the model's strategy."""
    data = gp.observe(X, Y, noise)
    if gp.features is not None:
        return float(data.num_rows) * gp.features.num_features**2
    strategy = select_strategy(gp.model, data, gp.strategy).name
    if strategy in ("kronecker", "kronecker_missing"):
        return EIGH_COST_RATIO * float(data.num_rows) ** 3 + float(data.num_missing) ** 3
    return float(data.num_observed) ** 3


def replication_cost(gp, X, Y, noise=None) -> float:
    """Return the approximate number of elementary operations of a draw of data: a posterior and a draw from the prior."""
    size = observed_entries(Y).size
    joint = EIGH_COST_RATIO * float(size) ** 3 if is_variational(gp) and size <= MAX_JOINT_ENTRIES else 0.0
    return 2 * factorization_cost(gp, X, Y, noise) + joint


def _scale_noise(scores: Tensor, covariance: Tensor, deviations: Tensor | None) -> Tensor:
    """Return noise from standard normal scores (n, p), with known standard deviations where they are not NaN."""
    error = scores @ torch.linalg.cholesky(covariance).mT
    return error if deviations is None else torch.where(torch.isnan(deviations), error, scores * deviations)


def _replicate_variational(posterior, X: Tensor, deviations: Tensor | None, seed: int) -> Tensor:
    of_function, of_noise = spawn_seeds(seed, 2)
    if len(X) * posterior.num_outputs <= MAX_JOINT_ENTRIES:
        function = posterior.sample(X, 1, random_state=of_function)[0]
    else:
        function = posterior.sample_functions(1, random_state=of_function)(X)[0]
    if posterior.noise is None:  # the likelihood is not Gaussian
        return posterior.likelihood.draw(function, torch.Generator().manual_seed(of_noise))
    scores = draw_normal(tuple(function.shape), of_noise, function)
    return function + _scale_noise(scores, posterior.noise, deviations)
