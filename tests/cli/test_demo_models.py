"""Scores of the demo against their formulas, and the selection of the best model."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from ovkgp.cli import demo_models
from ovkgp.cli.demo_models import (
    OceanData,
    Trial,
    compare_with_second,
    evaluate_bayesian,
    evaluate_model,
    sampler_diagnostics,
    select_best,
)
from ovkgp.datasets import make_drifters

SAMPLING = {"draws": 8, "tune": 4, "chains": 2, "max_draws": 3, "posterior_predictive": False}


@pytest.fixture(scope="module")
def ocean():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_models, "NUM_ROWS", 30)
        patch.setattr(demo_models, "GRID", (6, 4))
        return OceanData.generate(3)


@pytest.fixture(scope="module")
def bayesian(ocean):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(demo_models, "SAMPLING", SAMPLING)
        warnings.simplefilter("error", UserWarning)  # short chains would warn
        return evaluate_bayesian("Helmholtz", ocean, 0)


def predict(trial, ocean, **options):
    return trial.model.predict(pd.DataFrame(ocean.points, columns=["east", "north"]), return_std=True, **options)


def test_ocean_data_equal_generator(ocean):
    X, Y, truth = make_drifters(30, noise=demo_models.NOISE, random_state=3)
    np.testing.assert_array_equal(ocean.X, X)
    np.testing.assert_array_equal(ocean.Y, Y)
    np.testing.assert_array_equal(ocean.current, truth(ocean.points))
    assert ocean.points.shape == (24, 2)
    np.testing.assert_array_equal([ocean.points.min(0), ocean.points.max(0)], [[0, 0], [100, 60]])
    assert ocean.num_measured == np.isfinite(Y).sum() < 60


def test_fresh_measurements_have_independent_noise_of_same_size():
    ocean = OceanData.generate(0)
    residuals = ocean.fresh - ocean.current
    assert abs(residuals.std() / np.sqrt(demo_models.NOISE) - 1) < 0.08  # 2050 draws: five standard errors
    observed = ocean.Y.to_numpy() - ocean.truth(ocean.X)
    assert not np.isclose(residuals[: len(observed)], observed).any()


@pytest.mark.parametrize("name", demo_models.KERNELS)
def test_trial_scores_equal_formulas(ocean, name):
    trial = evaluate_model(name, ocean, 0)
    mean, _ = predict(trial, ocean)
    posterior, scaling = trial.model.posterior_, trial.model.scaling_
    count = len(posterior.parts)
    weights = np.full(count, 1 / count) if posterior.weights is None else posterior.weights

    def moments(noise):
        found = [part.predict(scaling.inputs(ocean.points), noise=noise) for part in posterior.parts]
        return [np.stack(one) for one in zip(*((scaling.mean(p.mean), scaling.std(p.std)) for p in found), strict=True)]

    below = np.tensordot(weights, norm.cdf(ocean.current, *moments(False)), 1)
    inside = (below >= 0.05) & (below <= 0.95)
    total = logsumexp(norm.logpdf(ocean.fresh, *moments(True)), axis=0, b=weights[:, None, None])
    np.testing.assert_allclose(trial.rmse, np.sqrt(np.mean((mean - ocean.current) ** 2)))
    np.testing.assert_allclose(trial.coverage, inside.mean())
    np.testing.assert_allclose(trial.log_density, total.mean())
    assert trial.log_evidence == trial.model.log_evidence_ and trial.model.kernel_ == demo_models.KERNELS[name]
    assert trial.loo_log_densities.shape == (30,) and trial.elpd_loo == trial.loo_log_densities.sum()


def test_bayesian_trial_averages_over_draws(ocean, bayesian):
    assert bayesian.log_evidence is None
    mean, _ = predict(bayesian, ocean)
    np.testing.assert_allclose(bayesian.rmse, np.sqrt(np.mean((mean - ocean.current) ** 2)))
    lower, upper = bayesian.model.predict_interval(
        pd.DataFrame(ocean.points, columns=["east", "north"]), 0.9, noise=False
    )
    assert bayesian.coverage == np.mean((lower <= ocean.current) & (ocean.current <= upper))
    log_likelihood = bayesian.model.to_arviz()["log_likelihood"]["y"].to_numpy().reshape(16, -1)
    # importance sampling stays between the draws, and so does each log density
    assert (log_likelihood.min(0) <= bayesian.loo_log_densities + 1e-9).all()
    assert (bayesian.loo_log_densities <= log_likelihood.max(0) + 1e-9).all()
    found = sampler_diagnostics(bayesian)
    assert (found["chains"], found["draws"]) == (2, 8) and found["ess_min"] > 0


def trial(log_evidence, loo_log_densities):
    return Trial(None, log_evidence, np.array(loo_log_densities), rmse=0.1, log_density=1.0, coverage=0.9, seconds=1.0)


def test_select_best_uses_loo():
    trials = {"a": trial(9.0, [1.0, 1.0, 1.0]), "b": trial(1.0, [3.0, 1.0, 2.0]), "c": trial(2.0, [0.0, 0.0, 5.0])}
    assert select_best(trials) == "b"
    second, difference, error = compare_with_second(trials)
    # of 3, 1, −3: √3 times their standard deviation
    assert (second, difference) == ("c", 1.0) and error == pytest.approx(np.sqrt(3) * np.std([3.0, 1.0, -3.0]))
