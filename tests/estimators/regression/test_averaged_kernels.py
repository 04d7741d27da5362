"""Tests of named kernels averaged over hyperparameter draws, the default of `GPRegressor("decomposable")` and others."""

import warnings

import numpy as np
import pytest
from scipy.stats import norm

import ovkgp
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.stacking import model_draws
from ovkgp.inference.stacking.model_draws import NUM_DRAWS, NUM_OUTPUT_DRAWS

GRID = np.random.default_rng(1).uniform(0, 100, (7, 2))
KERNELS = ("independent", "decomposable", "helmholtz")


def table(n=20):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 100, (n, 2))
    Y = np.c_[np.sin(X[:, 0] / 30), np.cos(X[:, 1] / 20)] * 3 + rng.standard_normal((n, 2)) * [0.1, 0.5]
    return X, 20 + Y


@pytest.fixture(scope="module")
def averaged():
    return {name: ovkgp.GPRegressor(name, random_state=0).fit(*table()) for name in KERNELS}


def drawn_models(model):
    """Return the weights and the models in standardized units at all draws."""
    weights = model.posterior_.weights
    count = len(model.posterior_)
    for index in range(count):
        yield (1 / count if weights is None else weights[index]), model.posterior_.parts.set_draw(index)


@pytest.mark.parametrize("name", KERNELS)
def test_predictions_are_the_mixture_of_conditioned_models(name, averaged):
    model = averaged[name]
    assert len(model.posterior_) == NUM_DRAWS
    X, Y = model.scaling_.inputs(table()[0]), model.scaling_.outputs(table()[1])
    Z, mean, second, cdf, evidence = model.scaling_.inputs(GRID), 0.0, 0.0, 0.0, 0.0
    quantile = model.scaling_.outputs(model.predict_quantiles(GRID, 0.8)).numpy()
    for weight, gp in drawn_models(model):
        assert isinstance(gp, OperatorValuedGP)
        posterior = gp.condition(X, Y)
        one = posterior.predict(Z, noise=True)
        mean, second = mean + weight * one.mean, second + weight * (one.std**2 + one.mean**2)
        cdf = cdf + weight * norm.cdf(quantile, one.mean, one.std)
        evidence += weight * posterior.log_evidence
    found, std = model.predict(GRID, return_std=True, noise=True)
    np.testing.assert_allclose(found, model.scaling_.mean(mean), rtol=1e-8)
    np.testing.assert_allclose(std, model.scaling_.std((second - mean**2).sqrt()), rtol=1e-6)
    np.testing.assert_allclose(cdf, 0.8, atol=1e-6)
    expected = model.scaling_.log_density(evidence, np.array([20, 20]))
    assert model.log_evidence_ == pytest.approx(expected, rel=1e-9)
    noise = sum(weight * gp.noise_model.matrix().detach().numpy() for weight, gp in drawn_models(model))
    np.testing.assert_allclose(model.noise_, noise * np.outer(*[model.scaling_.output_scale] * 2), rtol=1e-9)


def test_mode_is_used_alone_with_evidence_given_noise_or_kernel():
    X, Y = table()
    cases = [
        ({"hyperparameters": "evidence"}, {}),
        ({"noise": 0.1}, {}),
        ({}, {"noise": np.full(Y.shape, 0.1)}),
        ({"approximation": "orff", "num_frequencies": 20}, {}),
        ({"training_rows": 15}, {}),
    ]
    for options, given in cases:
        model = ovkgp.GPRegressor("decomposable", random_state=0, **options).fit(X, Y, **given)
        assert not isinstance(model.posterior_, MixturePosterior), options


def test_evidence_has_the_mode_of_the_average(averaged):
    at_mode = ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(*table())
    averaged = averaged["decomposable"]
    for mine, yours in zip(at_mode.gp_.parameters(), averaged.gp_.parameters(), strict=True):
        assert (mine == yours).all()
    assert at_mode.log_evidence_ > averaged.log_evidence_


def test_bad_draws_leave_the_mode(monkeypatch):
    monkeypatch.setattr(model_draws, "importance_weights", lambda *args: None)
    for name in ("independent", "decomposable"):
        model = ovkgp.GPRegressor(name, random_state=0).fit(*table())
        assert not isinstance(model.posterior_, MixturePosterior)
        assert "averaged" not in str(model.summary())


@pytest.mark.parametrize("name", KERNELS)
def test_stored_model_predicts_the_same(name, averaged, tmp_path):
    model = averaged[name]
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    for mine, yours in zip(model.predict_interval(GRID), loaded.predict_interval(GRID), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-9)
    assert (loaded.posterior_.weights is None) == (name == "independent")


def test_summary_report_and_leave_one_out_describe_the_average(averaged):
    model = averaged["decomposable"]
    assert f"over {NUM_DRAWS} draws" in str(model.summary())
    assert f"averaged over {NUM_DRAWS} draws" in str(model.describe())
    X, Y, found = model.scaling_.inputs(table()[0]), model.scaling_.outputs(table()[1]), []
    for weight, gp in drawn_models(model):
        mean, std, log_density, *_ = gp.leave_one_out(X, Y, groups="rows")
        found.append((np.log(weight) - log_density.numpy(), mean.numpy(), std.numpy()))
    log_weights, mean, _ = (np.stack(part) for part in zip(*found, strict=True))
    weights = np.exp(log_weights - log_weights.max(0))
    weights = np.minimum(weights / weights.sum(0), NUM_DRAWS**-0.5)
    expected = ((weights / weights.sum(0))[..., None] * mean).sum(0)
    entries = model.leave_one_out_entries()
    np.testing.assert_allclose(
        entries.mean, expected * model.scaling_.output_scale + model.scaling_.output_offset, rtol=1e-8
    )
    assert not entries.is_gaussian


def test_draws_are_exported_with_equal_weights(averaged):
    group = averaged["independent"].to_arviz()["posterior"]
    assert group.sizes["draw"] == NUM_DRAWS
    group = averaged["decomposable"].to_arviz()["posterior"]
    lengthscale, model = group["lengthscale"].values, averaged["decomposable"]
    assert np.ptp(lengthscale) > 0
    assert np.ptp(group["output_matrix"].values, axis=1).max() == 0
    expected = sum(w * gp.kernel.base_kernel.lengthscale.detach().numpy() for w, gp in drawn_models(model))
    np.testing.assert_allclose(lengthscale.mean((0, 1)), expected[0] * model.scaling_.input_scale, rtol=0.15)


def test_functions_samples_and_field_parts_average_over_the_draws(averaged):
    model = averaged["helmholtz"]
    mean, std = model.predict(GRID, return_std=True, noise=False)
    draws = model.sample_functions(600, random_state=0)(GRID)
    np.testing.assert_allclose((draws.mean(0) - mean) / std, 0, atol=0.25)
    draws = model.sample_y(GRID, 2000, noise=False)
    np.testing.assert_allclose((draws.mean(-1) - mean) / std, 0, atol=0.15)
    parts = model.components(GRID)
    total = sum(part if isinstance(part, np.ndarray) else part[0] for part in parts.values())
    assert np.isfinite(total).all()
    assert np.isfinite(model.log_density(GRID, mean)).all()


def test_rows_can_be_added_to_an_averaged_model():
    X, Y = table(30)
    model = ovkgp.GPRegressor("decomposable", num_frequencies=50, random_state=0).fit(X[:20], Y[:20])
    assert isinstance(model.posterior_, MixturePosterior)
    model.partial_fit(X[20:], Y[20:])
    assert model.approximation_ == "orff"
    assert model._num_observed.tolist() == [30, 30]
    assert not isinstance(model.posterior_, MixturePosterior)


def test_a_single_output_is_averaged():
    X, Y = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ovkgp.GPRegressor("independent", random_state=0).fit(X, Y[:, 0])
    assert len(model.posterior_) in (NUM_DRAWS, NUM_OUTPUT_DRAWS)
    assert model.predict(GRID).shape == (7,)
