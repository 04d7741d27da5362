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

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_one_of
from ovkgp.exceptions import FitWarning, InputError, OptionError, OvkgpError
from ovkgp.inference.model.observations import as_floating, validate_inputs
from ovkgp.inference.posteriors.leave_one_out import group_index
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds
from ovkgp.inference.sampling.prior_predictive import draw_prior, set_parameters
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.log_posterior import named_values

if TYPE_CHECKING:
    import xarray

KINDS = ("auto", "inference_data", "datatree")
SAMPLES = ("chain", "draw")
MAX_JOINT_ENTRIES = 500
"""Up to this many entries, Y is drawn jointly by the exact covariance; above, by random functions."""
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
        if self.inputs is not None and last == "lengthscale" and shape == (len(self.inputs),):
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

    `names` are the hyperparameters to report (None for all); Y is None if X are statistics.
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

    def log_likelihood(self, wanted: bool | str, random_state=0) -> Groups:
        """Return the log density of each row with observed outputs at each draw; {} if it is too expensive."""

        def compute() -> Groups:
            values = log_likelihoods(self.gp, self.raw, self.X, self.Y, self.noise, random_state=random_state)
            return row_densities_group(values.reshape(*self.shape, -1), self.Y)

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
    rows = [named_values(model) for model in iterate_draws(gp, raw)]
    names = rows[0] if names is None else names
    return {name: np.stack([row[name] for row in rows]).reshape(*shape, *rows[0][name].shape) for name in names}


def iterate_draws(gp: Model, raw: Mapping[str, np.ndarray]) -> Iterator[Model]:
    """Yield the model with the raw parameters (chains, draws, *shape) of each draw in turn, in place."""
    for index in np.ndindex(next(iter(raw.values())).shape[:2] if raw else (1, 1)):
        set_parameters(gp, raw, index)
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


def draw_replicates(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, random_state=None) -> np.ndarray:
    """Draw one data set per draw at the training inputs, (draws, n, p); known noise is averaged where Y is missing."""
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
