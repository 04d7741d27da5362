"""The models of ``ovkgp demo``, and how good each is: by what the data say, and by the truth that no model saw.

The evidence is how likely all measurements were beforehand; LOO is the log density of each component given all others. Both
are known to whoever has the data, and choose. Error, log density and coverage on a grid need the truth, and check the choice.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from ovkgp import GPRegressor
from ovkgp.datasets import make_drifters
from ovkgp.datasets.drifters import Currents
from ovkgp.estimators.selection.compare_kernels import standard_error
from ovkgp.estimators.selection.predictive_scores import left_out_entries, left_out_rows, smoothed_leave_one_out
from ovkgp.exceptions import FitWarning

KERNELS = {
    "Helmholtz": "helmholtz",
    "curl-free": "curl_free",
    "divergence-free": "divergence_free",
    "ICM": "decomposable",
    "independent": "independent",
}
"""The models by the names that the table has."""
NUM_ROWS = 150
NOISE = 0.05**2
GRID = (41, 25)
LEVEL = 0.9
SAMPLING = {"draws": 100, "tune": 75, "chains": 2, "max_draws": 25, "posterior_predictive": False}
"""Of the fully Bayesian fit: short, since a minute is all there is."""

regressor = partial(GPRegressor, base_kernel="rbf")
"""Currents are smooth."""


@dataclass(frozen=True)
class Sea:
    """What the drifters saw, and what is there.

    Attributes:
        X, Y: the tables with columns east and north in km, u and v in m/s.
        truth: the currents.
        points: (m, 2), a grid over the region.
        current: (m, 2), the truth there.
        fresh: (m, 2), measurements there that no model has seen, as noisy as those of the drifters.
    """

    X: pd.DataFrame
    Y: pd.DataFrame
    truth: Currents
    points: np.ndarray
    current: np.ndarray
    fresh: np.ndarray

    @classmethod
    def of(cls, seed: int) -> Sea:
        """Everything random from one seed."""
        X, Y, truth = make_drifters(NUM_ROWS, noise=NOISE, random_state=seed)
        west, east, south, north = truth.extent
        axes = np.linspace(west, east, GRID[0]), np.linspace(south, north, GRID[1])
        points = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
        current = truth(points)
        # a stream of its own: the generator's are numbered from 0
        noise = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(100,))).standard_normal(current.shape)
        tables = pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])
        return cls(*tables, truth, points, current, current + np.sqrt(NOISE) * noise)

    @property
    def num_measured(self) -> int:
        """How many components the drifters measured."""
        return int(np.isfinite(self.Y.to_numpy()).sum())


@dataclass(frozen=True)
class Trial:
    """A fitted model and its scores.

    Attributes:
        model: the estimator.
        log_evidence: log p(Y); None where hyperparameters are averaged over.
        left_out: log p(y_ij given all others), for each measured component.
        rmse: of the posterior mean, against the truth on the grid, in m/s.
        log_density: of fresh measurements on the grid, the mean of a component.
        coverage: how much of the true current lies in its 90 % intervals.
        seconds: of the fit.
        khat: the largest Pareto shape behind `left_out`, where hyperparameters are averaged over by smoothed importance sampling.
    """

    model: GPRegressor
    log_evidence: float | None
    left_out: np.ndarray
    rmse: float
    log_density: float
    coverage: float
    seconds: float
    khat: float = 0.0

    @property
    def elpd_loo(self) -> float:
        """The sum of `left_out`."""
        return float(self.left_out.sum())


def try_model(name: str, sea: Sea, seed: int) -> Trial:
    """Train one of `KERNELS` by evidence, and score it."""
    began = time.monotonic()
    model = regressor(KERNELS[name], random_state=seed).fit(sea.X, sea.Y)
    seconds = time.monotonic() - began
    left_out = left_out_entries(model, sea.X.to_numpy(), sea.Y.to_numpy())
    return Trial(model, model.log_evidence_, left_out, *_against_truth(model, sea), seconds)


def try_bayesian(name: str, sea: Sea, seed: int) -> Trial:
    """The same with draws of the hyperparameters instead of one value each: predictions and LOO average over them."""
    began = time.monotonic()
    model = regressor(KERNELS[name], hyperparameters="nuts", sampling=SAMPLING, random_state=seed)
    with warnings.catch_warnings():
        # of short chains, and ArviZ's of their LOO: `mixing` and k̂ are said in any case
        warnings.simplefilter("ignore", FitWarning)
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto distribution", UserWarning)
        model.fit(sea.X, sea.Y)
        seconds = time.monotonic() - began
        left_out, khat = smoothed_leave_one_out(model.to_arviz())
    return Trial(model, None, left_out, *_against_truth(model, sea), seconds, float(khat.max()))


def _against_truth(model: GPRegressor, sea: Sea) -> tuple[float, float, float]:
    """Error of the mean, log density of fresh measurements, and coverage of the latent current."""
    latent = model.posterior_.predict(model.scaling_.inputs(sea.points), "diag")
    lower, upper = (model.scaling_.mean(end) for end in latent.interval(LEVEL))
    error = model.scaling_.mean(latent.mean) - sea.current
    inside = (lower <= sea.current) & (sea.current <= upper)
    log_density, _ = left_out_rows(model, sea.points, sea.fresh)
    return float(np.sqrt(np.mean(error**2))), float(log_density.mean()), float(inside.mean())


def chosen(trials: dict[str, Trial]) -> str:
    """The model that tells left-out components best: LOO asks less of a model than the evidence, which needs its prior to be right."""
    return max(trials, key=lambda name: trials[name].elpd_loo)


def lead(trials: dict[str, Trial]) -> tuple[str, float, float]:
    """Who follows the chosen one, by how much LOO, and the standard error of that."""
    best = chosen(trials)
    second = chosen({name: trial for name, trial in trials.items() if name != best})
    difference = trials[best].left_out - trials[second].left_out
    return second, float(difference.sum()), standard_error(difference)


def mixing(trial: Trial) -> dict[str, float]:
    """How many draws there are, and how far they are to be trusted: R̂, their effective number, and divergences."""
    posterior = trial.model.draws_["posterior"]
    attrs = {name: posterior.attrs[name] for name in ("rhat_max", "ess_min", "num_divergences")}
    return attrs | {"chains": posterior.sizes["chain"], "draws": posterior.sizes["draw"]}
