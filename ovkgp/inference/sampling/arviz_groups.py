"""One value of the hyperparameters as an ArviZ object, so that a point estimate stands beside posteriors in a table.

ArviZ cannot estimate leave-one-out densities from a single draw, and need not: Σ log p(y_ij | y_−ij, θ) has a closed form,
and is kept with its standard error √(N Var) in the attributes `elpd_loo` and `elpd_loo_se`.
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
from ovkgp.inference.model.observations import as_floating, inputs
from ovkgp.inference.posteriors.posterior import normal, seeds
from ovkgp.inference.sampling.arviz_data import SAMPLES, Axes, dataset, named_group, raw_group, to_arviz_object
from ovkgp.inference.sampling.prior_predictive import draw_prior
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.log_posterior import named_values

JOINT_ENTRIES = 500
"""Up to so many entries of Y are drawn jointly by the exact covariance; more by random functions."""
EIGEN = 10
"""About how many times the work of a Cholesky factor an eigendecomposition is."""

Model = TypeVar("Model", bound=torch.nn.Module)


def placed(gp: Model, raw: Mapping[str, np.ndarray]) -> Iterator[Model]:
    """The model with the raw parameters (chains, draws, *shape) of each draw in turn, one chain after another, in place."""
    parameters = dict(gp.named_parameters())
    shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
    for index in np.ndindex(shape):
        with torch.no_grad():
            for name, values in raw.items():
                parameters[name].copy_(torch.as_tensor(values[index]))
        yield gp


def log_likelihoods(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None) -> np.ndarray:
    """log p(y_ij | y_−ij, θ_s) of the observed entries, row by row: (draws, entries), chains one after another.

    Args:
        gp: a model with `leave_one_out`; its parameters are written to.
        raw: draws of its raw parameters by name, (chains, draws, *shape).
        X, Y, noise: the data.

    Cost: one factorisation a draw, n³ + p³ for a separable kernel, (observed entries)³ for others; for a feature map two
    passes over the data.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.sampling.arviz_groups import log_likelihoods
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> raw = {"kernel.raw_lengthscale": torch.linspace(0, 1, 5).reshape(1, 5, 1, 1).numpy()}  # one chain, five draws
        >>> log_likelihoods(gp, raw, X, X.sin()).shape
        (5, 20)
    """
    mask = observed_entries(Y)
    found = [model.leave_one_out(X, Y, noise).log_density.cpu().numpy() for model in placed(gp, raw)]
    return np.stack([values.reshape(mask.shape)[mask] for values in found])


def replicates(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, random_state=None) -> np.ndarray:
    """Data drawn anew at the training inputs, one set for each draw: (draws, n, p), chains one after another.

    The noise is the model's at θ_s; where it was given for each entry, the given one (its average where Y is missing).

    Cost: one conditioning a draw, and O((n·p)³) for a joint draw of at most 500 entries.
    """
    X = inputs(X).double()
    count = int(np.prod(next(iter(raw.values())).shape[:2])) if raw else 1
    pairs = zip(placed(gp, raw), seeds(random_state, count), strict=True)
    found = [_replicate(model.condition(X, Y, noise=noise), X, Y, noise, seed) for model, seed in pairs]
    return torch.stack(found).cpu().numpy()


def observed_entries(Y) -> np.ndarray:
    """Which entries of Y are observed, (n, p)."""
    return ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).cpu().numpy()


def work_of_factorising(gp, X, Y, noise=None) -> float:
    """About how many elementary operations one factorisation takes on the road that the model takes."""
    data = gp.observe(X, Y, noise)
    if gp.features is not None:
        return float(data.num_rows) * gp.features.num_features**2
    if select_strategy(gp.model, data, gp.strategy).name == "kronecker":
        return EIGEN * float(data.num_rows) ** 3
    return float(data.num_observed) ** 3


def work_of_replicating(gp, X, Y, noise=None) -> float:
    """The same for a posterior and one draw of data from it."""
    size = observed_entries(Y).size
    joint = EIGEN * float(size) ** 3 if size <= JOINT_ENTRIES else 0.0
    return work_of_factorising(gp, X, Y, noise) + joint


def _replicate(posterior, X: Tensor, Y, known, seed: int) -> Tensor:
    is_joint = len(X) * posterior.num_outputs <= JOINT_ENTRIES
    if is_joint and known is None:
        return posterior.sample(X, 1, noise=True, random_state=seed)[0]
    of_function, of_noise = seeds(seed, 2)
    if is_joint:
        function = posterior.sample(X, 1, random_state=of_function)[0]
    else:
        function = posterior.sample_functions(1, random_state=of_function)(X)[0]
    if posterior.noise is None:  # a variational one whose likelihood is not Gaussian
        return posterior.likelihood.draw(function, torch.Generator().manual_seed(of_noise))
    scores = normal(tuple(function.shape), of_noise, function)
    error = scores @ torch.linalg.cholesky(posterior.noise).mT
    if known is None:
        return function + error
    deviations = as_floating(known, "noise").double().reshape(function.shape).sqrt()
    mask = torch.from_numpy(observed_entries(Y)).to(function.device)
    return function + torch.where(mask, scores * deviations, error)


if TYPE_CHECKING:
    import xarray

MAX_NUMBERS = 5e7
"""So many numbers (draws × entries) a group may have before it is left out."""
MAX_WORK = 2e11
"""So many elementary operations are spent on a group that was not asked for: about half a minute."""

Groups = dict[str, "xarray.Dataset"]


class DrawGroups:
    """A model, draws of its raw parameters, and the data: what the groups are made of.

    Args:
        gp: the model; its parameters are written to.
        raw: draws by qualified name, (chains, draws, *shape).
        names: the hyperparameters to report; None for all.
        X, Y, noise: the data; Y is None where X are statistics.
        input_names, output_names: labels of the columns.
    """

    def __init__(self, gp, raw: Mapping[str, np.ndarray], names, X, Y, noise=None, input_names=None, output_names=None):
        self.gp, self.raw, self.names = gp, dict(raw), names
        self.X, self.Y, self.noise = X, Y, noise
        num_inputs = None if Y is None else inputs(X).shape[1]
        self.axes = Axes.of(num_inputs, gp.num_outputs, input_names, output_names)
        self.shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
        self.attrs: dict[str, Any] = {}

    def variables(self) -> dict[str, np.ndarray]:
        """The constrained hyperparameters by name, (chains, draws, *shape)."""
        return named_draws(self.gp, self.raw, self.names)

    def posterior(self, variables: Mapping[str, np.ndarray], attrs: Mapping[str, Any]) -> Groups:
        """posterior and unconstrained_posterior."""
        return {
            "posterior": named_group(variables, self.axes, {**attrs, **self.attrs}),
            "unconstrained_posterior": raw_group(self.raw),
        }

    def prior(self, draws: int, random_state) -> Groups:
        """The same hyperparameters drawn from their priors; {} where a prior cannot be drawn from."""
        try:
            drawn = draw_prior(self.gp, draws, random_state) if draws else {}
            raw = {name: np.asarray(values)[None] for name, values in drawn.items()}
            return {"prior": named_group(named_draws(self.gp, raw, self.names), self.axes)} if raw else {}
        except KeyboardInterrupt:
            return self._interrupted("prior")
        except OvkgpError as error:
            return self._without("prior", "auto", str(error))

    def sample_stats(self, stats: Mapping[str, np.ndarray]) -> Groups:
        """What the sampler says of each draw."""
        return {"sample_stats": dataset(stats, dict.fromkeys(stats, SAMPLES))}

    def log_likelihood(self, wanted: bool | str) -> Groups:
        """log p(y_ij | y_−ij, θ_s) of the observed entries; {} where it costs too much or the model has none."""

        def compute() -> Groups:
            values = log_likelihoods(self.gp, self.raw, self.X, self.Y, self.noise)
            rows, columns = np.nonzero(observed_entries(self.Y))
            coords = {"row": ("entry", rows), "output": ("entry", np.array(self.axes.outputs)[columns])}
            values = values.reshape(*self.shape, -1)
            return {"log_likelihood": dataset({"y": values}, {"y": (*SAMPLES, "entry")}, coords)}

        if not hasattr(self.gp, "leave_one_out"):
            return self._without("log_likelihood", wanted, "the model has no leave-one-out densities in closed form")
        return self._where_cheap("log_likelihood", wanted, work_of_factorising, compute)

    def posterior_predictive(self, wanted: bool | str, random_state) -> Groups:
        """Data drawn anew at the training inputs; {} where they cost too much."""

        def compute() -> Groups:
            values = replicates(self.gp, self.raw, self.X, self.Y, self.noise, random_state)
            values = values.reshape(*self.shape, *values.shape[1:])
            group = dataset({"y": values}, {"y": (*SAMPLES, "row", "output")}, self.axes.coords())
            return {"posterior_predictive": group}

        return self._where_cheap("posterior_predictive", wanted, work_of_replicating, compute)

    def observed_data(self) -> Groups:
        """Y (row, output), NaN where missing."""
        Y = as_floating(self.Y, "Y").double().cpu().numpy().reshape(len(self.Y), -1)
        return {"observed_data": dataset({"y": Y}, {"y": ("row", "output")}, self.axes.coords())}

    def _where_cheap(self, name: str, wanted: bool | str, work: Callable, compute: Callable[[], Groups]) -> Groups:
        """A group, unless it was not asked for and is dear; why it is missing goes to the attributes."""
        if wanted not in (True, False, "auto"):
            raise OptionError(f'{name} must be True, False or "auto", got {wanted!r}.')
        if wanted is False:
            return self._without(name, "auto", "not asked for")
        count = int(np.prod(self.shape))
        if count * observed_entries(self.Y).size > MAX_NUMBERS:
            return self._without(
                name, wanted, f"{count} draws of {observed_entries(self.Y).size} entries are too many numbers"
            )
        if wanted == "auto" and count * work(self.gp, self.X, self.Y, self.noise) > MAX_WORK:
            return self._without(name, wanted, f"{count} factorisations take long; {name}=True computes it")
        try:
            return compute()
        except KeyboardInterrupt:
            return self._interrupted(name)
        except OvkgpError as error:
            return self._without(name, wanted, str(error), error)

    def _interrupted(self, name: str) -> Groups:
        warnings.warn(f"interrupted: the draws are kept, {name} is left out.", FitWarning, stacklevel=4)
        return self._without(name, "auto", "interrupted")

    def _without(self, name: str, wanted: bool | str, why: str, error: Exception | None = None) -> Groups:
        if wanted is True:
            raise OptionError(f"{name} cannot be computed: {why}. Leave it out with {name}=False.") from error
        self.attrs[name] = f"left out: {why}"
        return {}


def named_draws(gp, raw: Mapping[str, np.ndarray], names=None) -> dict[str, np.ndarray]:
    """The constrained hyperparameters of a model by name, (chains, draws, *shape), at draws of its raw parameters."""
    shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
    rows = [named_values(model) for model in placed(gp, raw)]
    names = rows[0] if names is None else names
    return {name: np.stack([row[name] for row in rows]).reshape(*shape, *rows[0][name].shape) for name in names}


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
        >>> from ovkgp.inference.sampling.arviz_groups import point_arviz
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
