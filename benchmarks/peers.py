"""Compare a typical untuned first fit of ovkgp, GPyTorch and scikit-learn on drifters in ocean currents.

Each data set has 150 reports of a known current, with 15 % of each component missing. Scores against the *true* field on a grid: RMSE, mean log density
of new observations, coverage of 90 % intervals of the latent field, and seconds to fit and predict on one thread. GPyTorch uses an ICM of rank 1, its mask
for missing outputs and 200 steps of Adam; scikit-learn one Matérn-5/2 process per component on the rows that have it, with two restarts. None of these
settings was tuned. The part sizes of the drifters' field were chosen on some of these seeds, where the Helmholtz kernel performs best, so that section is not
neutral. The section "fields" has as many sets from four other processes: independent and correlated Matérn-5/2 components, which are the models of
scikit-learn and GPyTorch, and purely curl-free and divergence-free fields.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import gpytorch
import numpy as np
import torch
from claims import heading, row
from defaults_checks import field_covariance
from scipy.spatial.distance import cdist
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from timing import run_sections, timed

import ovkgp
from ovkgp.datasets import make_drifters

NOISE = 0.0025
"""Noise variance of a measured component."""


class FieldPrediction(NamedTuple):
    """Mean and standard deviation of the latent field on the grid (m, 2), and standard deviation of a new observation."""

    mean: np.ndarray
    latent_std: np.ndarray
    std: np.ndarray


def ours(kernel: str) -> Callable[..., FieldPrediction]:
    """`GPRegressor` with its defaults."""

    def prediction(X: np.ndarray, Y: np.ndarray, grid: np.ndarray) -> FieldPrediction:
        model = ovkgp.GPRegressor(kernel, random_state=0).fit(X, Y)
        mean, std = model.predict(grid, return_std=True)
        return FieldPrediction(mean, model.predict(grid, return_std=True, noise=False)[1], std)

    return prediction


def scikit_learn(X: np.ndarray, Y: np.ndarray, grid: np.ndarray) -> FieldPrediction:
    """Fit one process per component, with the noise in the kernel."""
    columns = []
    for y in Y.T:
        observed = np.isfinite(y)
        kernel = ConstantKernel(0.1) * Matern([10.0, 10.0], nu=2.5) + WhiteKernel(0.01)
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0).fit(X[observed], y[observed])
        mean, std = model.predict(grid, return_std=True)
        columns.append((mean, np.sqrt(std**2 - model.kernel_.k2.noise_level), std))
    return FieldPrediction(*(np.stack(parts, 1) for parts in zip(*columns, strict=True)))


class Multitask(gpytorch.models.ExactGP):
    """GPyTorch's intrinsic coregionalization model, as in its tutorials."""

    def __init__(self, X, Y, likelihood):
        super().__init__(X, Y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
        base = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=2)
        self.covar_module = gpytorch.kernels.MultitaskKernel(base, num_tasks=2, rank=1)

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_multitask(X: np.ndarray, Y: np.ndarray, grid: np.ndarray) -> FieldPrediction:
    """Fit the multitask model to standardized inputs and outputs, with NaN masked."""
    center, scale, offset, size = X.mean(0), X.std(0), np.nanmean(Y, 0), np.nanstd(Y, 0)
    inputs, outputs, locations = (
        torch.tensor(a) for a in ((X - center) / scale, (Y - offset) / size, (grid - center) / scale)
    )
    torch.manual_seed(0)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2).double()
    model = Multitask(inputs, outputs, likelihood).double()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.observation_nan_policy("mask"):
        for _ in range(200):
            optimizer.zero_grad()
            (-evidence(model(inputs), outputs)).backward()
            optimizer.step()
        model.eval(), likelihood.eval()
        with torch.no_grad():
            latent = model(locations)
            observed = likelihood(latent)
    mean, latent_std, std = (values.detach().numpy() * size for values in (latent.mean, latent.stddev, observed.stddev))
    return FieldPrediction(mean + offset, latent_std, std)


METHODS = {
    "ovkgp, helmholtz": ours("helmholtz"),
    "ovkgp, auto": ours("auto"),
    "GPyTorch ICM": gpytorch_multitask,
    "scikit-learn": scikit_learn,
}


def scores(prediction: FieldPrediction, truth: np.ndarray, fresh: np.ndarray) -> tuple[float, float, float]:
    """Compute RMSE, mean log density of new observations, and coverage of 90 % intervals."""
    rmse = float(np.sqrt(np.mean((prediction.mean - truth) ** 2)))
    density = float(norm.logpdf(fresh, prediction.mean, prediction.std).mean())
    inside = abs(prediction.mean - truth) < norm.ppf(0.95) * prediction.latent_std
    return rmse, density, float(inside.mean())


GRID = np.stack(np.meshgrid(np.linspace(5, 95, 19), np.linspace(5, 55, 11)), -1).reshape(-1, 2)
"""Points (m, 2) at which predictions are compared with the ground truth, in km."""

LENGTHSCALE, DEVIATION = 18.0, 0.3
"""Lengthscale in km and standard deviation in m/s of the components of a drawn field."""


def draw_field(process: str, seed: int, n: int = 150) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a field at n random positions and on the grid; return positions, measurements with 15 % missing, and the field on the grid."""
    rng = np.random.default_rng([seed, list(PROCESSES).index(process)])
    X = rng.uniform([0, 0], [100, 60], (n, 2))
    points = np.concatenate([X, GRID]) / (LENGTHSCALE * np.exp(0.2 * rng.standard_normal()))
    K = DEVIATION**2 * PROCESSES[process](points, rng)
    field = (np.linalg.cholesky(K + 1e-8 * np.eye(len(K))) @ rng.standard_normal(len(K))).reshape(-1, 2)
    Y = field[:n] + np.sqrt(NOISE) * rng.standard_normal((n, 2))
    missing = np.where(rng.random(n) < 0.3, rng.integers(0, 2, n), 2)  # no report misses both components
    Y[np.arange(n)[missing < 2], missing[missing < 2]] = np.nan
    return X, Y, field[n:]


def _separable(correlated: bool) -> Callable:
    def covariance(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        r = np.sqrt(5) * cdist(points, points)
        c = rng.uniform(0.6, 0.95) * rng.choice([-1, 1]) if correlated else 0.0
        return np.kron((1 + r + r**2 / 3) * np.exp(-r), np.array([[1, c], [c, 1]]))

    return covariance


PROCESSES = {
    "independent Matérn-5/2 components": _separable(False),
    "correlated Matérn-5/2 components": _separable(True),
    "curl-free": lambda points, rng: field_covariance(points, 1.0, True),
    "divergence-free": lambda points, rng: field_covariance(points, 1.0, False),
}
"""Covariances (2m, 2m), row by row, of fields at points (m, 2), with lengthscale and variance 1."""


def drifters(quick: bool = False) -> None:
    """Print means over sets of drifters."""
    sets = []
    for seed in range(3 if quick else 20):
        X, Y, truth = make_drifters(150, noise=NOISE, random_state=seed)
        sets.append((X, Y, truth(GRID)))
    _compare("drifters", sets)


def fields(quick: bool = False) -> None:
    """Print means over fields of other processes, of each and of all."""
    found = [
        _compare(f"fields: {process}", [draw_field(process, seed) for seed in range(1 if quick else 5)])
        for process in PROCESSES
    ]
    _print_scores(
        "fields of all four processes", {name: np.concatenate([part[name] for part in found]) for name in METHODS}
    )


def _compare(title: str, sets: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Print means over sets of positions, measurements and the field on the grid; return all scores."""
    found = {name: [] for name in METHODS}
    for seed, (X, Y, field) in enumerate(sets):
        fresh = field + np.sqrt(NOISE) * np.random.default_rng(seed).standard_normal(field.shape)
        for name, method in METHODS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds, prediction = timed(partial(method, X, Y, GRID))
            found[name].append((*scores(prediction, field, fresh), seconds))
    found = {name: np.array(values) for name, values in found.items()}
    _print_scores(title, found)
    return found


def _print_scores(title: str, found: dict[str, np.ndarray]) -> None:
    """Print means, and the standard error of the difference in log density to the first method."""
    first = next(iter(found.values()))
    heading(
        f"{len(first)} sets, {title}", "", "RMSE m/s", "mean log density", "± (paired)", "coverage of 90 %", "seconds"
    )
    for name, values in found.items():
        rmse, density, coverage, seconds = values.mean(0)
        error = (values - first)[:, 1].std() / np.sqrt(len(first))
        row(name, f"{rmse:.4f}", f"{density:.3f}", f"{error:.3f}", f"{coverage:.1%}", f"{seconds:.2f}")


if __name__ == "__main__":
    run_sections({"drifters": drifters, "fields": fields}, __doc__.splitlines()[0])
