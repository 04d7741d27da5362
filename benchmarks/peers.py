"""Compare a typical untuned first fit of ovkgp, GPyTorch and scikit-learn on drifters in ocean currents.

Each data set has 150 reports of a known current, with 15 % of each component missing. Scores against the *true* field on a grid: RMSE, mean log density
of new observations, coverage of 90 % intervals of the latent field, and seconds to fit and predict on one thread. GPyTorch uses an ICM of rank 1, its mask
for missing outputs and 200 steps of Adam; scikit-learn one Matérn-5/2 process per component on the rows that have it, with two restarts. None of these
settings was tuned. The part sizes of the field were chosen on some of these seeds, where the Helmholtz kernel performs best, so the comparison is not neutral.
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


def drifters(quick: bool = False) -> None:
    """Print means over data sets, and the standard error of the difference in log density to the first method."""
    num_sets = 3 if quick else 20
    grid = np.stack(np.meshgrid(np.linspace(5, 95, 19), np.linspace(5, 55, 11)), -1).reshape(-1, 2)
    found = {name: [] for name in METHODS}
    for seed in range(num_sets):
        X, Y, truth = make_drifters(150, noise=NOISE, random_state=seed)
        field = truth(grid)
        fresh = field + np.sqrt(NOISE) * np.random.default_rng(seed).standard_normal(field.shape)
        for name, method in METHODS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds, prediction = timed(partial(method, X, Y, grid))
            found[name].append((*scores(prediction, field, fresh), seconds))
    heading(
        f"{num_sets} sets of drifters", "", "RMSE m/s", "mean log density", "± (paired)", "coverage of 90 %", "seconds"
    )
    first = np.array(found["ovkgp, helmholtz"])
    for name, values in found.items():
        values = np.array(values)
        rmse, density, coverage, seconds = values.mean(0)
        error = (values - first)[:, 1].std() / np.sqrt(num_sets)
        row(name, f"{rmse:.4f}", f"{density:.3f}", f"{error:.3f}", f"{coverage:.1%}", f"{seconds:.2f}")


if __name__ == "__main__":
    run_sections({"drifters": drifters}, __doc__.splitlines()[0])
