"""The scores of the demo against plain formulas, and its choice."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from ovkgp.cli import demo_models
from ovkgp.cli.demo_models import Sea, Trial, chosen, lead, mixing, try_bayesian, try_model
from ovkgp.datasets import make_drifters

SAMPLING = {"draws": 8, "tune": 4, "chains": 2, "max_draws": 3, "posterior_predictive": False}


@pytest.fixture(scope="module")
def sea():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_models, "NUM_ROWS", 30)
        patch.setattr(demo_models, "GRID", (6, 4))
        return Sea.of(3)


@pytest.fixture(scope="module")
def bayesian(sea):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(demo_models, "SAMPLING", SAMPLING)
        warnings.simplefilter("error", UserWarning)  # chains this short would warn of much
        return try_bayesian("Helmholtz", sea, 0)


def predict(trial, sea, **options):
    return trial.model.predict(pd.DataFrame(sea.points, columns=["east", "north"]), return_std=True, **options)


def test_the_sea_is_that_of_the_generator(sea):
    X, Y, truth = make_drifters(30, noise=demo_models.NOISE, random_state=3)
    np.testing.assert_array_equal(sea.X, X)
    np.testing.assert_array_equal(sea.Y, Y)
    np.testing.assert_array_equal(sea.current, truth(sea.points))
    assert sea.points.shape == (24, 2)
    np.testing.assert_array_equal([sea.points.min(0), sea.points.max(0)], [[0, 0], [100, 60]])
    assert sea.num_measured == np.isfinite(Y).sum() < 60


def test_fresh_measurements_have_the_noise_of_the_drifters_and_not_the_same():
    sea = Sea.of(0)
    residuals = sea.fresh - sea.current
    assert abs(residuals.std() / np.sqrt(demo_models.NOISE) - 1) < 0.08  # 2050 draws: five standard errors
    observed = sea.Y.to_numpy() - sea.truth(sea.X)
    assert not np.isclose(residuals[: len(observed)], observed).any()


@pytest.mark.parametrize("name", demo_models.KERNELS)
def test_scores_are_what_they_say(sea, name):
    trial = try_model(name, sea, 0)
    mean, std = predict(trial, sea, noise=False)
    inside = abs(sea.current - mean) <= norm.ppf(0.95) * std
    total = norm.logpdf(sea.fresh, *predict(trial, sea))
    np.testing.assert_allclose(trial.rmse, np.sqrt(np.mean((mean - sea.current) ** 2)))
    np.testing.assert_allclose(trial.coverage, inside.mean())
    np.testing.assert_allclose(trial.log_density, total.mean())
    assert trial.log_evidence == trial.model.log_evidence_ and trial.model.kernel_ == demo_models.KERNELS[name]
    assert trial.left_out.shape == (sea.num_measured,) and trial.elpd_loo == trial.left_out.sum()


def test_the_bayesian_fit_averages_over_draws(sea, bayesian):
    assert bayesian.log_evidence is None
    mean, _ = predict(bayesian, sea)
    np.testing.assert_allclose(bayesian.rmse, np.sqrt(np.mean((mean - sea.current) ** 2)))
    lower, upper = bayesian.model.predict_interval(
        pd.DataFrame(sea.points, columns=["east", "north"]), 0.9, noise=False
    )
    assert bayesian.coverage == np.mean((lower <= sea.current) & (sea.current <= upper))
    log_likelihood = bayesian.model.to_arviz()["log_likelihood"]["y"].to_numpy().reshape(16, -1)
    # importance sampling stays between the draws, and so does each log density
    assert (log_likelihood.min(0) <= bayesian.left_out + 1e-9).all()
    assert (bayesian.left_out <= log_likelihood.max(0) + 1e-9).all()
    found = mixing(bayesian)
    assert (found["chains"], found["draws"]) == (2, 8) and found["ess_min"] > 0


def trial(log_evidence, left_out):
    return Trial(None, log_evidence, np.array(left_out), rmse=0.1, log_density=1.0, coverage=0.9, seconds=1.0)


def test_loo_chooses():
    trials = {"a": trial(9.0, [1.0, 1.0, 1.0]), "b": trial(1.0, [3.0, 1.0, 2.0]), "c": trial(2.0, [0.0, 0.0, 5.0])}
    assert chosen(trials) == "b"
    second, difference, error = lead(trials)
    # of 3, 1, −3: √3 times their standard deviation
    assert (second, difference) == ("c", 1.0) and error == pytest.approx(np.sqrt(3) * np.std([3.0, 1.0, -3.0]))
