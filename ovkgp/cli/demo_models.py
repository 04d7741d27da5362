"""Models of ``ovkgp demo`` and their scores.

The evidence (marginal likelihood) and LOO (sum of the log densities of each component given all others) need the data only;
LOO selects the model. Error, log density and coverage on a grid use the ground truth and check the selection.
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
from ovkgp.estimators.selection.compare_kernels import compute_standard_error
from ovkgp.estimators.selection.predictive_scores import compute_loo_densities, run_psis_loo, score_heldout_rows
from ovkgp.exceptions import FitWarning

KERNELS = {  # kernels by the name of the model in the table
    "Helmholtz": "helmholtz",
    "curl-free": "curl_free",
    "divergence-free": "divergence_free",
    "ICM": "decomposable",
    "independent": "independent",
}
NUM_ROWS = 150
NOISE = 0.05**2
GRID = (41, 25)
INTERVAL_LEVEL = 0.9
NUM_OTHER_SETS = 20  # other data sets on which the best model is scored: coverage varies by some 4 % between them
SAMPLING = {"draws": 100, "tune": 75, "chains": 2, "max_draws": 25, "posterior_predictive": False}
"""Options of the fully Bayesian fit: short chains, since the demo should take about a minute."""

make_regressor = partial(GPRegressor, base_kernel="rbf")  # currents are smooth


@dataclass(frozen=True)
class OceanData:
    """Measurements of the drifters, and the ground truth."""

    X: pd.DataFrame  # columns east, north in km
    Y: pd.DataFrame  # columns u, v in m/s
    truth: Currents
    points: np.ndarray  # (m, 2), a grid over the region
    current: np.ndarray  # (m, 2), the ground truth at `points`
    fresh: np.ndarray  # (m, 2), held-out measurements at `points`, with the noise of the drifters

    @classmethod
    def generate(cls, seed: int) -> OceanData:
        """Generate everything from one seed."""
        X, Y, truth = make_drifters(NUM_ROWS, noise=NOISE, random_state=seed)
        west, east, south, north = truth.extent
        axes = np.linspace(west, east, GRID[0]), np.linspace(south, north, GRID[1])
        points = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
        current = truth(points)
        # a separate random stream: those of the generator are numbered from 0
        noise = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(100,))).standard_normal(current.shape)
        tables = pd.DataFrame(X, columns=["east", "north"]), pd.DataFrame(Y, columns=["u", "v"])
        return cls(*tables, truth, points, current, current + np.sqrt(NOISE) * noise)

    @property
    def num_measured(self) -> int:
        """Number of components that the drifters measured."""
        return int(np.isfinite(self.Y.to_numpy()).sum())


@dataclass(frozen=True)
class Trial:
    """Fitted model and its scores."""

    model: GPRegressor
    log_evidence: float | None  # log p(Y); None if the hyperparameters are sampled
    loo_log_densities: np.ndarray  # log p(y_i | all other rows) of each measured velocity
    rmse: float  # of the posterior mean against the ground truth on the grid, in m/s
    log_density: float  # of held-out measurements on the grid, mean per component
    coverage: float  # fraction of the true current inside its 90 % intervals
    seconds: float
    khat: float = 0.0  # largest Pareto k̂ of the importance sampling behind `loo_log_densities`

    @property
    def elpd_loo(self) -> float:
        """Sum of `loo_log_densities`."""
        return float(self.loo_log_densities.sum())


def evaluate_model(name: str, ocean: OceanData, seed: int) -> Trial:
    """Train one of `KERNELS`, average its predictions over draws around the mode of the hyperparameters, and score it."""
    began = time.monotonic()
    model = make_regressor(KERNELS[name], random_state=seed).fit(ocean.X, ocean.Y)
    seconds = time.monotonic() - began
    loo_log_densities, _ = compute_loo_densities(model, ocean.X.to_numpy(), ocean.Y.to_numpy())
    return Trial(model, model.log_evidence_, loo_log_densities, *_score_against_truth(model, ocean), seconds)


def score_other_sets(name: str, seed: int) -> np.ndarray:
    """Train one of `KERNELS` on other data sets; return RMSE, log density and coverage on each, (NUM_OTHER_SETS, 3)."""
    found = []
    for other in range(seed + 1, seed + 1 + NUM_OTHER_SETS):
        ocean = OceanData.generate(other)
        model = make_regressor(KERNELS[name], random_state=other).fit(ocean.X, ocean.Y)
        found.append(_score_against_truth(model, ocean))
    return np.array(found)


def evaluate_bayesian(name: str, ocean: OceanData, seed: int) -> Trial:
    """Fit one of `KERNELS` with sampled hyperparameters, over which predictions and LOO average, and score it."""
    began = time.monotonic()
    model = make_regressor(KERNELS[name], hyperparameters="nuts", sampling=SAMPLING, random_state=seed)
    with warnings.catch_warnings():
        # short chains warn, and so does their LOO; the demo prints `sampler_diagnostics` and k̂ itself
        warnings.simplefilter("ignore", FitWarning)
        warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto distribution", UserWarning)
        model.fit(ocean.X, ocean.Y)
        seconds = time.monotonic() - began
        loo_log_densities, khat = run_psis_loo(model.to_arviz())
    return Trial(model, None, loo_log_densities, *_score_against_truth(model, ocean), seconds, float(khat.max()))


def _score_against_truth(model: GPRegressor, ocean: OceanData) -> tuple[float, float, float]:
    """Compute the error of the mean, the log density of held-out measurements, and the coverage of the latent current."""
    latent = model.posterior_.predict(model.scaling_.inputs(ocean.points), "diag")
    lower, upper = (model.scaling_.mean(end) for end in latent.interval(INTERVAL_LEVEL))
    error = model.scaling_.mean(latent.mean) - ocean.current
    inside = (lower <= ocean.current) & (ocean.current <= upper)
    log_density, _ = score_heldout_rows(model, ocean.points, ocean.fresh)
    return float(np.sqrt(np.mean(error**2))), float(log_density.mean()), float(inside.mean())


def select_best(trials: dict[str, Trial]) -> str:
    """Return the name of the model with the best LOO, which is less sensitive to the prior than the evidence."""
    return max(trials, key=lambda name: trials[name].elpd_loo)


def compare_with_second(trials: dict[str, Trial]) -> tuple[str, float, float]:
    """Return the name of the second-best model, its difference in LOO from the best, and the standard error of that."""
    best = select_best(trials)
    second = select_best({name: trial for name, trial in trials.items() if name != best})
    difference = trials[best].loo_log_densities - trials[second].loo_log_densities
    return second, float(difference.sum()), compute_standard_error(difference)


def sampler_diagnostics(trial: Trial) -> dict[str, float]:
    """Return the number of chains and draws, R̂, the effective sample size and the number of divergences."""
    posterior = trial.model.draws_["posterior"]
    attrs = {name: posterior.attrs[name] for name in ("rhat_max", "ess_min", "num_divergences")}
    return attrs | {"chains": posterior.sizes["chain"], "draws": posterior.sizes["draw"]}
