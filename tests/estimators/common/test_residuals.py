"""Whitened residuals of estimators against dense algebra: training rows, held-out rows, gaps, features and mixtures."""

import gpytorch
import numpy as np
import pytest

import ovkgp
from ovkgp.exceptions import InputError, OptionError

rng = np.random.default_rng(0)
X = rng.uniform(0, 6, (40, 1))
NEW_X = rng.uniform(0, 6, (15, 1))
A = np.array([[1.0, 0.6], [0.6, 2.0]])
NOISE = np.diag([0.04, 0.25])
Y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.3 * rng.normal(size=(40, 2))
GAPS = np.where(rng.uniform(size=Y.shape) < 0.2, np.nan, Y)
NEW_Y = np.column_stack([np.sin(NEW_X[:, 0]), np.cos(NEW_X[:, 0])]) + 0.3 * rng.normal(size=(15, 2))


def fit_known(Y=Y):
    """Condition a decomposable RBF kernel on X and Y; the mean is that of each column."""
    base = gpytorch.kernels.RBFKernel()
    base.lengthscale = 1.3
    kernel = ovkgp.kernels.DecomposableKernel(base, output_matrix=A)
    return ovkgp.GPRegressor(kernel, noise=np.diag(NOISE), hyperparameters="fixed", random_state=0).fit(X, Y)


def prior_covariance(first, second):
    """Return k(x, x') A between all entries, in the order of rows."""
    return np.kron(np.exp(-0.5 * ((first - second.T) / 1.3) ** 2), A)


def dense_covariance(Y, X=X):
    """Return K + Σ between the observed entries, and their index."""
    index = np.flatnonzero(np.isfinite(Y).ravel())
    covariance = prior_covariance(X, X) + np.kron(np.eye(len(X)), NOISE)
    return covariance[np.ix_(index, index)], index


def whiten(covariance, errors):
    """Multiply errors by C^(−½), the symmetric root."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors @ (vectors.T @ errors / np.sqrt(values))


@pytest.mark.parametrize("table", [Y, GAPS], ids=["complete", "gaps"])
def test_residuals_of_training_rows_are_whitened_by_the_prior_covariance(table):
    found = fit_known(table).normal_residuals()
    covariance, index = dense_covariance(table)
    expected = np.full(table.size, np.nan)
    expected[index] = whiten(covariance, (table - np.nanmean(table, axis=0)).ravel()[index])
    order = np.argsort(found.X[:, 0])
    np.testing.assert_allclose(
        found.values[order], expected.reshape(table.shape)[np.argsort(X[:, 0])], rtol=1e-6, atol=1e-8
    )
    assert found.is_joint
    assert not found.is_held_out
    joint = found.joint
    assert joint.errors @ np.linalg.solve(joint.covariance, joint.errors) == pytest.approx(
        np.nansum(found.values**2), rel=1e-6
    )


@pytest.mark.parametrize("table", [Y, GAPS], ids=["complete", "gaps"])
def test_residuals_of_held_out_rows_are_whitened_by_their_joint_prediction(table):
    new = np.where(np.arange(30).reshape(15, 2) % 7 == 0, np.nan, NEW_Y)
    found = fit_known(table).normal_residuals(NEW_X, new)
    C, index = dense_covariance(table)
    cross = prior_covariance(NEW_X, X)[:, index]
    center = np.nanmean(table, axis=0)
    mean = np.tile(center, 15) + cross @ np.linalg.solve(C, (table - center).ravel()[index])
    covariance = prior_covariance(NEW_X, NEW_X) - cross @ np.linalg.solve(C, cross.T)
    covariance += np.kron(np.eye(15), NOISE)
    observed = np.flatnonzero(np.isfinite(new).ravel())
    expected = np.full(30, np.nan)
    expected[observed] = whiten(covariance[np.ix_(observed, observed)], new.ravel()[observed] - mean[observed])
    np.testing.assert_allclose(found.values, expected.reshape(15, 2), rtol=1e-6, atol=1e-8)
    assert found.is_held_out
    np.testing.assert_allclose(found.joint.covariance, covariance[np.ix_(observed, observed)], atol=1e-8)


def test_training_rows_in_another_order_are_recognized():
    model, order = fit_known(GAPS), np.random.default_rng(1).permutation(40)
    straight, shuffled = model.normal_residuals(X, GAPS), model.normal_residuals(X[order], GAPS[order])
    assert not shuffled.is_held_out
    np.testing.assert_allclose(shuffled.values, straight.values[order], rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(shuffled.rows, np.arange(40))


def test_mixed_training_and_held_out_rows_are_an_error():
    with pytest.raises(InputError, match="40 of the 55 rows are training rows"):
        fit_known().normal_residuals(np.vstack([X, NEW_X]), np.vstack([Y, NEW_Y]))


def test_residuals_are_those_of_known_hyperparameters_only_if_nothing_was_trained():
    assert fit_known().normal_residuals().is_known
    trained = ovkgp.GPRegressor("decomposable", hyperparameters="evidence", random_state=0).fit(X, Y)
    assert not trained.normal_residuals().is_known
    assert not ovkgp.OVKRidge(lam=0.1).fit(X, Y).normal_residuals().is_known


def test_derivatives_of_the_covariance_are_those_of_lengthscale_signal_and_noise():
    model = ovkgp.GPRegressor("independent", "rbf", hyperparameters="evidence", random_state=0).fit(X, Y[:, 0])
    joint = model.normal_residuals().joint
    signal = joint.covariance - np.diag(np.diag(joint.covariance))  # between rows
    expected = {"lengthscale": signal * (X - X.T) ** 2, "signal": signal, "noise": np.eye(40)}
    for name, slope in expected.items():  # up to a factor: the derivative in raw parameters, whose span is used
        cosines = [
            abs((one * slope).sum()) / np.linalg.norm(one * (slope != 0))
            for one in joint.derivatives
            if (one * slope).any()
        ]
        assert max(cosines) == pytest.approx(np.linalg.norm(slope), rel=1e-4), name


@pytest.mark.parametrize("approximation", ["orff", "nystrom"])
def test_feature_models_have_residuals_of_held_out_rows(approximation):
    options = {"hyperparameters": "evidence", "num_frequencies": 30, "random_state": 0}
    model = ovkgp.GPRegressor("independent", approximation=approximation, **options).fit(X, Y)
    with pytest.raises(OptionError, match="stores no training rows"):
        model.normal_residuals()
    found = model.normal_residuals(NEW_X, NEW_Y)
    scaling = model.scaling_
    errors = ((NEW_Y - model.predict(NEW_X)) / scaling.output_scale).ravel()
    joint = model.posterior_.predict(scaling.inputs(NEW_X), "full", noise=True).cov.numpy()
    assert np.square(found.values).sum() == pytest.approx(errors @ np.linalg.solve(joint, errors), rel=1e-6)


def test_residuals_of_a_mixture_are_those_of_its_heaviest_component():
    model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    found = model.normal_residuals()
    assert "heaviest component of the mixture" in found.source
    # whitened residuals, without the correlation of the outputs, have mean square 1 at the mode
    assert 0.5 < np.square(found.values).mean() < 1.5
    correlation = np.corrcoef(found.values.T)[0, 1]
    assert abs(correlation) < 0.4


def test_large_tables_use_random_rows(monkeypatch):
    monkeypatch.setattr("ovkgp.estimators.common.residuals.MAX_WHITENED_ROWS", 25)
    monkeypatch.setattr("ovkgp.estimators.common.residuals.MAX_JOINT_ENTRIES", 20)
    model = fit_known()
    found, other = model.normal_residuals(random_state=0), model.normal_residuals(random_state=1)
    assert found.values.shape == (25, 2)
    assert "25 of 40 training rows" in found.source
    assert len(found.joint.errors) == 20
    assert not np.array_equal(found.rows, other.rows)
    covariance = prior_covariance(found.X, found.X) + np.kron(np.eye(25), NOISE)
    stored = model.training_data()[1][found.rows] - Y.mean(0)
    np.testing.assert_allclose(found.values.ravel(), whiten(covariance, stored.ravel()), rtol=1e-6, atol=1e-8)
