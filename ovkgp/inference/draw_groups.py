"""Draws of hyperparameters written out as the groups of an ArviZ object.

The names, dimensions and units are those of the design: `posterior` holds the hyperparameters by name, and
`unconstrained_posterior` the raw parameters from which a model can be conditioned again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ovkgp.exceptions import FitWarning, OptionError, OvkgpError
from ovkgp.inference.arviz_data import SAMPLES, Axes, dataset, named_group, raw_group
from ovkgp.inference.data import as_floating, inputs
from ovkgp.inference.log_posterior import named_values
from ovkgp.inference.pointwise import (
    log_likelihoods,
    observed,
    placed,
    replicates,
    work_of_factorising,
    work_of_replicating,
)
from ovkgp.inference.prior_draws import draw_prior

if TYPE_CHECKING:
    import xarray

MOST_NUMBERS = 5e7
"""So many numbers (draws × entries) a group may have before it is left out."""
MOST_WORK = 2e11
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
            rows, columns = np.nonzero(observed(self.Y))
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
        if count * observed(self.Y).size > MOST_NUMBERS:
            return self._without(name, wanted, f"{count} draws of {observed(self.Y).size} entries are too many numbers")
        if wanted == "auto" and count * work(self.gp, self.X, self.Y, self.noise) > MOST_WORK:
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
