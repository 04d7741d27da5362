"""Joint paths of a vector autoregression: each path follows one random function, and missing values are drawn along the way."""

from __future__ import annotations

import math

import numpy as np
import torch

from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.posterior import spawn_seeds

LARGEST_VALUE = 1e150  # of a path; its square must be finite


def sample_paths(
    regressor: PosteriorRegressor, history: np.ndarray, lags: int, steps: int, num_paths: int, random_state
) -> np.ndarray:
    """Sample paths (k, steps, p) of new observations after the end of a history (T, p), with the units of the regressor.

    Path s has one function f_s of the posterior and the noise covariance Σ_s of its hyperparameters: y_t = f_s(y_{t−1}, …) + ε_t.
    Rows after the last complete window of the history are simulated given their observed values: missing ones are drawn from their
    conditional distribution, and paths are resampled with the densities of the observed ones as weights (a particle filter), which is
    exact for many paths.

    Notes
    -----
    The first of these rows is no weight: its inputs are complete, so that it is among the pairs that the functions are given if the
    history is that of the fit. Complexity: O(k M p) per step for M features, O(k n p) for n rows of an exact kernel.
    """
    start = _end_of_last_window(history, lags)
    for_functions, for_noise, for_particles = spawn_seeds(random_state, 3)
    functions = regressor.posterior_.sample_functions(num_paths, random_state=for_functions)
    noise, scaling = regressor.scaling_.cov(functions.noise), regressor.scaling_
    index = np.arange(num_paths)
    rng, particles = np.random.default_rng(for_noise), np.random.default_rng(for_particles)
    window = np.repeat(history[None, start - lags : start], num_paths, 0)  # (k, lags, p)
    paths = np.empty((num_paths, steps, history.shape[1]))
    for t in range(start, len(history) + steps):
        inputs = scaling.inputs(window[:, ::-1].reshape(num_paths, -1))
        mean = scaling.mean(functions.evaluate_pairs(inputs, torch.from_numpy(index)))
        known = history[t] if t < len(history) else np.full(history.shape[1], np.nan)
        rows, log_weights = draw_row(mean, noise[index], known, rng)
        if not (np.abs(rows) < LARGEST_VALUE).all():
            raise OptionError(
                f"steps must be at most {max(t - len(history), 0)}, got {steps}: paths of the fitted model diverge. Forecast fewer steps, or fit to differences or growth rates."
            )
        window = np.concatenate([window[:, 1:], rows[:, None]], 1)
        if t >= len(history):
            paths[:, t - len(history)] = rows
        elif t > start and np.isfinite(known).any():
            chosen = _resample(log_weights, particles)
            window, index = window[chosen], index[chosen]
    return paths


def _end_of_last_window(history: np.ndarray, lags: int) -> int:
    """Return the index after the last `lags` complete rows in a row."""
    complete = np.isfinite(history).all(1)
    runs = np.convolve(complete, np.ones(lags), "valid") == lags if len(complete) >= lags else np.zeros(0, bool)
    if not runs.any():
        raise InputError(
            f"history must have {lags} complete rows in a row, as many as lags, got {len(history)} rows with none. Pass a longer history or fill in missing values."
        )
    return int(np.flatnonzero(runs)[-1]) + lags


def draw_row(
    mean: np.ndarray, noise: np.ndarray, known: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw y (k, p) of N(mean, noise) given its known values (p,), NaN where unknown; return also their log densities (k,)."""
    observed = np.isfinite(known)
    rows, log_density = np.broadcast_to(known, mean.shape).copy(), np.zeros(len(mean))
    covariance = noise[:, ~observed][:, :, ~observed]
    center = mean[:, ~observed]
    if observed.any():
        own, cross = noise[:, observed][:, :, observed], noise[:, ~observed][:, :, observed]
        gap = (known - mean)[:, observed]
        solved = np.linalg.solve(own, np.concatenate([gap[:, :, None], cross.swapaxes(1, 2)], 2))
        quadratic = (gap * solved[:, :, 0]).sum(1)
        log_density = -0.5 * (quadratic + np.linalg.slogdet(own)[1] + observed.sum() * math.log(2 * math.pi))
        center = center + (cross @ solved[:, :, :1])[:, :, 0]
        covariance = covariance - cross @ solved[:, :, 1:]
    scores = rng.standard_normal(mean.shape)[:, ~observed]
    if not observed.all():
        values, vectors = np.linalg.eigh(covariance)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
        rows[:, ~observed] = center + (roots @ scores[:, :, None])[:, :, 0]
    return rows, log_density


def _resample(log_weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return indices (k,) of paths in proportion to their weights, by systematic resampling."""
    weights = np.exp(log_weights - log_weights.max())
    cumulative = np.cumsum(weights / weights.sum())
    k = len(weights)
    return np.minimum(np.searchsorted(cumulative, (np.arange(k) + rng.random()) / k), k - 1)
