"""Tests of the benchmark of a first fit: every method predicts on the same grid, and the scores equal their formulas."""

import numpy as np
import pytest

from ovkgp.datasets import make_drifters


@pytest.fixture
def peers(benchmark_of):
    return benchmark_of("peers")


def test_methods_predict_finite_means_and_larger_noisy_std(peers):
    X, Y, truth = make_drifters(25, random_state=0)
    grid = truth.extent[1] * np.random.default_rng(0).uniform(0.1, 0.5, (7, 2))
    for method in peers.METHODS.values():
        prediction = method(X, Y, grid)
        assert all(part.shape == (7, 2) and np.isfinite(part).all() for part in prediction)
        assert (prediction.latent_std < prediction.std).all()


def test_scores_equal_the_formulas(peers):
    truth = np.zeros((1000, 2))
    fresh = 0.5 * np.random.default_rng(0).standard_normal(truth.shape)
    prediction = peers.FieldPrediction(truth + 0.3, np.full(truth.shape, 0.1), np.full(truth.shape, 0.5))
    rmse, density, coverage = peers.scores(prediction, truth, fresh)
    assert rmse == pytest.approx(0.3) and coverage == 0.0
    # −log(σ√2π) − (1 + 0.3²/σ²)/2 on average, within 4 standard errors
    assert density == pytest.approx(-np.log(0.5 * np.sqrt(2 * np.pi)) - 0.5 * (1 + 0.36), abs=0.1)
    assert peers.scores(prediction._replace(latent_std=np.full(truth.shape, 0.2)), truth, fresh)[2] == 1.0
