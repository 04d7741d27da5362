"""Tests of log predictive densities in original units against direct computations."""

import numpy as np
import pytest
import torch
import xarray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import ovkgp
from ovkgp.estimators.selection.predictive_scores import (
    compute_loo_densities,
    compute_psis_loo_densities,
    run_psis_loo,
    score_heldout_rows,
)
from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.arviz_data import to_arviz_object
from ovkgp.inference.sampling.sampling import sample_hyperparameters


def data(n=16, missing=True, seed=0):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 5, n))[:, None]
    Y = np.hstack([np.sin(X), 100 + 30 * np.cos(X)]) + [0.1, 3.0] * rng.normal(size=(n, 2))
    if missing:
        Y[2, 0] = Y[5, 1] = Y[7] = np.nan  # and one row without observed values
    return X, Y


@pytest.fixture(scope="module")
def fitted():
    X, Y = data()
    return ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(X, Y), X, Y


def joint_density(model, X, Y, own):
    """Log density of the observed entries of some rows, given the others, at the trained hyperparameters."""
    scaling, observed = model.scaling_, np.isfinite(Y[own]).ravel()
    others = np.where(own[:, None], np.nan, Y)
    prediction = model.gp_.condition(scaling.inputs(X), scaling.outputs(others)).predict(
        scaling.inputs(X[own]), "full", noise=True
    )
    scale = np.tile(scaling.output_scale, own.sum())
    covariance = (prediction.cov.numpy() * np.outer(scale, scale))[np.ix_(observed, observed)]
    mean = scaling.mean(prediction.mean).ravel()[observed]
    return multivariate_normal.logpdf(Y[own].ravel()[observed], mean, covariance)


def test_loo_densities_match_predictions_from_other_rows(fitted):
    model, X, Y = fitted
    found, khat = compute_loo_densities(model, X, Y)
    rows = np.flatnonzero(np.isfinite(Y).any(1))
    assert len(found) == len(rows) == 15 and khat is None
    for k, i in enumerate(rows):
        assert found[k] == pytest.approx(joint_density(model, X, Y, np.arange(16) == i), abs=1e-8)


def test_loo_densities_match_predictions_from_other_groups(fitted):
    model, X, Y = fitted
    tracks = np.array([*"aabbccdd" * 2])
    tracks[7] = "z"  # a group without observed values
    found, _ = compute_loo_densities(model, X, Y, tracks)
    assert len(found) == 4
    for k, label in enumerate("abcd"):
        assert found[k] == pytest.approx(joint_density(model, X, Y, tracks == label), abs=1e-8)
    drawn, khat = compute_psis_loo_densities(model, X, Y, "laplace", groups=tracks, random_state=0, draws=200)
    assert drawn.shape == khat.shape == (4,) and np.abs(drawn - found).max() < 3


def test_heldout_rows_are_scored_by_noisy_predictions(fitted):
    model = fitted[0]
    inputs, outputs = data(n=9, seed=1)
    density, error = score_heldout_rows(model, inputs, outputs)
    mean, std = model.predict(inputs, return_std=True)
    np.testing.assert_allclose(density, norm.logpdf(outputs, mean, std), rtol=1e-10)
    np.testing.assert_allclose(error, outputs - mean, rtol=1e-10)


def test_heldout_rows_are_scored_by_mixture_of_draws():
    X, Y = data(missing=False)
    options = {"draws": 40}
    model = ovkgp.GPRegressor("independent", hyperparameters="laplace", sampling=options, random_state=0).fit(X, Y)
    density, _ = score_heldout_rows(model, X + 0.1, Y)
    prediction = model.posterior_.predict(model.scaling_.inputs(X + 0.1), "diag", noise=True)
    parts = [
        norm.logpdf(Y, model.scaling_.mean(part.mean), model.scaling_.std(part.variance.sqrt()))
        for part in prediction.components
    ]
    assert len(parts) > 1
    np.testing.assert_allclose(density, logsumexp(parts, axis=0) - np.log(len(parts)), rtol=1e-10)


def test_psis_loo_densities_match_arviz_in_original_units(fitted):
    model, X, Y = fitted
    log_density, khats = compute_psis_loo_densities(model, X, Y, "laplace", random_state=3, draws=100)
    rows = np.isfinite(Y).any(1)
    inputs, outputs = model.scaling_.inputs(X[rows]), model.scaling_.outputs(Y[rows])
    direct = sample_hyperparameters(
        model.gp_, inputs, outputs, "laplace", draws=100, random_state=3, prior_draws=0, posterior_predictive=False
    )
    pointwise, khat = run_psis_loo(direct)
    shift = np.isfinite(Y[rows]) @ np.log(model.scaling_.output_scale)
    np.testing.assert_allclose(log_density, pointwise - shift, rtol=1e-12)
    np.testing.assert_array_equal(khats, khat)


def test_psis_loo_densities_approach_closed_form_for_many_rows():
    X, Y = data(n=200, missing=False)
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, Y)
    point, _ = compute_loo_densities(model, X, Y)
    drawn, _ = compute_psis_loo_densities(model, X, Y, "laplace", random_state=0, draws=100)
    assert abs(drawn.sum() - point.sum()) < 0.02 * len(point)
    assert np.corrcoef(drawn, point)[0, 1] > 0.99


@pytest.mark.parametrize("library, kind", [("arviz", "inference_data"), ("arviz_stats", "datatree")])
def test_psis_loo_agrees_between_arviz_versions(library, kind):
    rng = np.random.default_rng(0)
    values = rng.normal(-1, 0.2, (1, 400, 12))
    coords = {"chain": [0], "draw": np.arange(400)}
    groups = {
        "posterior": xarray.Dataset({"a": (("chain", "draw"), rng.normal(size=(1, 400)))}, coords),
        "log_likelihood": xarray.Dataset({"y": (("chain", "draw", "entry"), values)}, coords),
    }
    pointwise, khat = run_psis_loo(make(groups, kind), library)
    # 1 / mean(1 / p), which smoothing hardly changes if all weights are similar
    unsmoothed = np.log(400) - logsumexp(-values[0], axis=0)
    np.testing.assert_allclose(pointwise, unsmoothed, atol=0.01)
    assert khat.shape == (12,) and khat.max() < 0.7


def make(groups, kind):
    if kind == "datatree":
        return xarray.DataTree.from_dict(groups)
    return to_arviz_object(groups)


def test_psis_loo_densities_reject_missing_log_likelihood(fitted):
    model, X, Y = fitted
    with pytest.raises(OptionError, match='method="none"'):
        compute_psis_loo_densities(model, X, Y, "laplace", random_state=0, draws=20, log_likelihood=False)


def test_psis_loo_densities_do_not_modify_model(fitted):
    model, X, Y = fitted
    before = {name: value.clone() for name, value in model.gp_.state_dict().items()}
    compute_psis_loo_densities(model, X, Y, "laplace", random_state=0, draws=20)
    assert all(torch.equal(value, before[name]) for name, value in model.gp_.state_dict().items())
