"""Tests of `benchmarks/series_wind.py`: a LASSO and ridge regression by other means, and claims of small runs."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Lasso


@pytest.fixture
def wind(benchmark_of):
    return benchmark_of("series_wind")


def make_split(wind, n=120, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3 * n, d)) * 3 + 1
    Y = np.column_stack([X[:, 0] + 0.5 * X[:, 1], np.sin(X[:, 2])]) + 0.1 * rng.normal(size=(3 * n, 2))
    parts = [slice(k * n, (k + 1) * n) for k in range(3)]
    return wind.Split([pd.DataFrame(X[r]) for r in parts], [pd.DataFrame(Y[r]) for r in parts], np.arange(d))


def test_lasso_is_that_of_scikit_learn(wind, monkeypatch):
    monkeypatch.setattr(wind, "LASSO_OPTIONS", {"tol": 1e-8, "max_iter": 10_000})
    split = make_split(wind)
    (X, V, T), (Y, W, _), center, scale = split.scaled()
    found = wind.predict_lasso(split)
    for a in range(2):
        models = [Lasso(alpha=lam / 2, fit_intercept=False, tol=1e-8).fit(X, Y[:, a]) for lam in wind.LASSO_LAMS]
        best = min(models, key=lambda model: ((model.predict(V) - W[:, a]) ** 2).mean())
        final = Lasso(alpha=best.alpha, tol=1e-8).fit(np.vstack([X, V]), np.r_[Y[:, a], W[:, a]])
        np.testing.assert_allclose(found[:, a], final.predict(T) * scale[a] + center[a], atol=1e-5)


def test_nystrom_posterior_is_ridge_regression_on_landmarks(wind):
    (X, V, _), (Y, _, _), _, _ = make_split(wind).scaled()
    landmarks, gamma, lam = X[:30], 0.05, 0.3
    found = wind.fit_nystrom(wind.make_kernel(gamma), lam, X, Y[:, :1], landmarks).predict(torch.from_numpy(V)).mean

    def kernel(a, b):
        return np.exp(-gamma * ((a[:, None] - b[None]) ** 2).sum(-1))

    K, Kp = kernel(X, landmarks), kernel(landmarks, landmarks)  # (9.4)
    weights = np.linalg.solve(K.T @ K + lam * Kp, K.T @ Y[:, 0])
    np.testing.assert_allclose(found[:, 0], kernel(V, landmarks) @ weights, atol=1e-8)
    _, values, validation, cross = next(wind.spectra(X, V, Y, landmarks, np.array([gamma])))
    np.testing.assert_allclose(validation @ (cross[:, 0] / (values + lam)), found[:, 0], atol=1e-8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # of the smallest λ, as in the script
def test_claims_of_wind_speed_hold_at_small_sizes(wind, capsys):
    claims = wind.wind_speed(quick=True)
    assert [claim.text for claim in claims[1:] if not claim.holds] == []  # 10 minutes ahead needs more rows
    assert "NRMSE" in capsys.readouterr().out
