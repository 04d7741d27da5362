"""Tests of `ovkgp.inference.posteriors.ragged_curves` against dense algebra."""

import numpy as np
import pytest
import torch
from curve_cases import simulate_curves

from ovkgp.inference.posteriors import ragged_curves
from ovkgp.inference.posteriors.curves import CurvePosterior
from ovkgp.inference.posteriors.ragged_curves import RaggedCurvePosterior
from ovkgp.inference.stacking.curve_candidates import CurveCandidate, CurveData

POINTS = torch.tensor([[-1.2], [0.1], [0.9]], dtype=torch.float64)


def make_data(num_channels=1):
    grid, X, Y = simulate_curves(20, 24)
    tasks = torch.from_numpy((grid - grid.mean()) / grid.std()).unsqueeze(-1)
    Y = Y - Y.mean()
    if num_channels == 2:
        Y = np.stack([Y, 0.5 * Y**2], -1).reshape(20, -1)
    Y = np.where(np.random.default_rng(0).random(Y.shape) < 0.6, np.nan, Y)
    return CurveData(torch.from_numpy(X / X.std(0)), torch.from_numpy(Y), tasks, num_channels)


def make_posteriors(data, deviations=True):
    gp = CurveCandidate("", "matern52", "rbf", has_deviations=deviations).make_gp(data).requires_grad_(False)
    gp.noise_model.set(0.05)
    posterior = gp.condition(data.X, data.Y)
    return CurvePosterior(posterior, gp.noise_model), RaggedCurvePosterior(gp, data.X, data.Y)


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("deviations", [False, True])
def test_moments_and_evidence_equal_dense_algebra(num_channels, deviations, monkeypatch):
    monkeypatch.setattr(ragged_curves, "NODE_TOLERANCE", 1e-9)
    data = make_data(num_channels)
    dense, ragged = make_posteriors(data, deviations)
    assert ragged.log_evidence == pytest.approx(dense.log_evidence, abs=1e-4)
    X = torch.cat([data.X[:2], data.X[:2] + 1])
    for form in ("diag", "output"):
        for a, b in zip(ragged.moments(X, POINTS, form), dense.moments(X, POINTS, form), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    for a, b in zip(ragged.moments(X, POINTS, "diag", 1), dense.moments(X, POINTS, "diag", 1), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    if deviations:
        torch.testing.assert_close(ragged.deviation_means(data.Y), dense.deviation_means(data.Y), atol=1e-5, rtol=0)


def test_few_weights_keep_the_mean_and_approximate_the_variance(monkeypatch):
    data = make_data()
    dense, _ = make_posteriors(data)
    monkeypatch.setattr(ragged_curves, "MAX_WEIGHTS", 60)
    _, ragged = make_posteriors(data)
    expected, variance = dense.moments(data.X, POINTS, "diag")
    mean, approximate = ragged.moments(data.X, POINTS, "diag")
    torch.testing.assert_close(mean, expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(approximate, variance, atol=0.05, rtol=0)


def test_draws_have_the_moments_of_the_posterior(monkeypatch):
    data = make_data()
    monkeypatch.setattr(ragged_curves, "MAX_WEIGHTS", 100)
    _, ragged = make_posteriors(data)
    X = torch.cat([data.X[:2], data.X[:1] + 5])
    mean, variance = ragged.moments(X, POINTS, "diag")
    draws = ragged.sample(X, POINTS, 4000, random_state=0)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.08, rtol=0)
    torch.testing.assert_close(draws.std(0), variance.sqrt(), atol=0.01, rtol=0.1)
    functions = ragged.sample_functions(2000, random_state=0)(X, POINTS, torch.arange(2000))
    torch.testing.assert_close(functions.mean(0), mean, atol=0.1, rtol=0)
    torch.testing.assert_close(functions.std(0), variance.sqrt(), atol=0.03, rtol=0.15)
