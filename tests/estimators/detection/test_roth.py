"""Tests of `ovkgp.estimators.detection.roth`."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import ovkgp
from ovkgp import roth_distance
from ovkgp.estimators.detection.roth import _fit_line
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP

rng = np.random.default_rng(0)
X, POINTS = rng.normal(size=(30, 2)), rng.normal(scale=2.0, size=(8, 2))
Y = np.c_[np.sin(X[:, 0]), np.cos(X[:, 1])] + 0.1 * rng.standard_normal((30, 2))


def ridge(Y=Y[:, 0], **options):
    return ovkgp.OVKRidge(**{"lam": 0.1, "lengthscale": 1.0} | options).fit(X, Y)


def gram(model, x, z):
    x, z = (model.scaling_.inputs(part).numpy() for part in (x, z))
    return np.exp(-np.square(x[:, None] - z).sum(-1) / 2)


@pytest.fixture(scope="module")
def rbf():
    return ridge(base_kernel="rbf")


def test_kt_37_distance_is_the_mahalanobis_distance_in_the_space_of_the_kernel(rbf):
    """Covariance of the embedded rows plus δ/n, in coordinates that hold all rows and points."""
    everything, delta = np.vstack([X, POINTS]), float(rbf.gp_.noise)
    values, vectors = np.linalg.eigh(gram(rbf, everything, everything))
    coordinates = vectors * np.sqrt(np.maximum(values, 0))
    centered = coordinates - coordinates[:30].mean(0)
    covariance = centered[:30].T @ centered[:30] / 30 + delta / 30 * np.eye(38)
    expected = np.einsum("id,id->i", centered, np.linalg.solve(covariance, centered.T).T)
    np.testing.assert_allclose(roth_distance(rbf).distance[:, 0], expected[:30], rtol=1e-8)
    np.testing.assert_allclose(roth_distance(rbf, POINTS).distance[:, 0], expected[30:], rtol=1e-8)


def test_distance_is_made_of_the_posterior_of_targets_one(rbf):
    """The first term is n/δ times the posterior variance, and t the posterior mean (KT-37)."""
    delta, rows = float(rbf.gp_.noise), rbf.scaling_.inputs(X)
    gp = OperatorValuedGP(rbf.gp_.kernel, mean="zero", noise=delta)
    posterior = gp.condition(rows, torch.ones(30, 1, dtype=torch.float64))
    found, own = (posterior.predict(rbf.scaling_.inputs(part), cov="diag") for part in (POINTS, X))
    t, s2 = found.mean[:, 0].numpy(), own.mean.mean().item()
    expected = 30 / delta * found.std[:, 0].square().numpy() + (t**2 - 2 * t + s2) / (1 - s2)
    np.testing.assert_allclose(roth_distance(rbf, POINTS).distance[:, 0], expected, rtol=1e-8)


def test_mean_distance_is_the_centered_degrees_of_freedom(rbf):
    """mean D = tr Kc (Kc + δI)⁻¹; the reference has tr K (K + δI)⁻¹, which differs by at most 1 (KT-38)."""
    K, delta, H = gram(rbf, X, X), float(rbf.gp_.noise), np.eye(30) - 1 / 30
    centered = H @ K @ H
    found = roth_distance(rbf)
    df = [np.trace(M @ np.linalg.inv(M + delta * np.eye(30))) for M in (centered, K)]
    assert found.distance.mean() == pytest.approx(df[0], rel=1e-8)
    assert found.df[0] == pytest.approx(df[1], rel=1e-8)
    assert 0 <= df[1] - df[0] <= 1
    np.testing.assert_allclose(found.pvalue, chi2(df[1]).sf(found.distance))


def test_kt_e_26_middle_term_is_divided_by_the_square(rbf):
    """D = s⁻²/(1 − s²) (t − s²)² − s⁻² t² + n k' A e; printed with s⁻¹ in the second place."""
    K, delta = gram(rbf, X, X), float(rbf.gp_.noise)
    S = K @ np.linalg.inv(K + delta * np.eye(30))
    t, s2 = S.sum(1), S.sum() / 30
    first, last = (t - s2) ** 2 / (s2 * (1 - s2)), 30 * np.diag(S)
    found = roth_distance(rbf).distance[:, 0]
    np.testing.assert_allclose(found, first - t**2 / s2 + last, rtol=1e-8)
    assert np.abs(first - t**2 / np.sqrt(s2) + last - found).max() > 1e-3


def test_kt_e_32_quantiles_are_finite(rbf):
    """At (i − ½)/n; the printed i/n is infinite at i = n."""
    found = roth_distance(rbf)
    quantile = found.qq[0][:, 0]
    np.testing.assert_allclose(quantile, chi2(found.df[0]).ppf((np.arange(30) + 0.5) / 30))
    assert np.isfinite(quantile).all()
    np.testing.assert_array_equal(found.qq[0][:, 1], np.sort(found.distance[:, 0]))


def test_line_is_the_least_squares_fit_and_flags_what_is_above():
    rng = np.random.default_rng(0)
    own = chi2(8).ppf((np.arange(100) + 0.5) / 100) * 2 + 1
    qq, threshold = _fit_line(rng.permutation(own), 8.0, 0.05)
    np.testing.assert_allclose(qq[:, 2], np.sort(own), rtol=1e-10)
    assert threshold >= own.max() * (1 - 1e-9)
    own[[3, 50]] = 200.0
    qq, threshold = _fit_line(own, 8.0, 0.05)
    assert threshold == 200.0
    slope, intercept = np.polyfit(qq[:, 0], qq[:, 1], 1)
    np.testing.assert_allclose(qq[:, 2], intercept + slope * qq[:, 0])


def test_distant_rows_are_flagged():
    rows = np.vstack([np.random.default_rng(1).normal(size=(100, 2)), [[5.0, 5.0], [-5.0, 4.0]]])
    model = ovkgp.OVKRidge(lam=1.0, lengthscale=1.0).fit(rows, np.sin(rows[:, 0]))
    found = roth_distance(model)
    assert found.is_outlier[100:].all() and found.is_outlier[:100].mean() < 0.08
    assert roth_distance(model, [[-5.0, -5.0], [0.0, 0.0]]).is_outlier.ravel().tolist() == [True, False]


@pytest.mark.parametrize("kernel", ["independent", "decomposable"])
def test_each_output_has_its_kernel_and_rows(kernel):
    """An output is compared with a model of that output alone, on the rows where it is observed."""
    gaps = Y.copy()
    gaps[:6, 1] = np.nan
    model = ovkgp.GPRegressor(kernel, random_state=0, hyperparameters="evidence").fit(X, gaps)
    found = roth_distance(model, POINTS)
    assert found.distance.shape == (8, 2) and [len(qq) for qq in found.qq] == [30, 24]
    rows, points = (model.scaling_.inputs(part).numpy() for part in (X[6:], POINTS))
    K = model.gp_.kernel(torch.from_numpy(np.vstack([rows, points]))).to_dense().detach().numpy()[1::2, 1::2]
    delta = float(model.gp_.noise.detach().reshape(-1)[1])
    A = np.linalg.inv(K[:24, :24] + delta * np.eye(24))
    variance = np.diag(K[24:, 24:] - K[24:, :24] @ A @ K[:24, 24:])
    t, s2 = K[24:, :24] @ A.sum(1), (K[:24, :24] @ A.sum(1)).mean()
    expected = 24 / delta * variance + (t**2 - 2 * t + s2) / (1 - s2)
    np.testing.assert_allclose(found.distance[:, 1], expected, rtol=1e-6)


def test_features_give_the_distances_of_their_kernel():
    model = ovkgp.ORFFRidge(lam=0.1, num_frequencies=25, lengthscale=1.0, random_state=0).fit(X, Y[:, 0])
    found = roth_distance(model, POINTS, training=X)
    Phi = [model.gp_.features(model.scaling_.inputs(part)).to_dense().detach().numpy() for part in (X, POINTS)]
    delta = float(model.gp_.noise)
    A = np.linalg.inv(Phi[0] @ Phi[0].T + delta * np.eye(30))
    columns = Phi[1] @ Phi[0].T
    variance = np.square(Phi[1]).sum(1) - np.einsum("ij,jk,ik->i", columns, A, columns)
    t, s2 = columns @ A.sum(1), (Phi[0] @ Phi[0].T @ A.sum(1)).mean()
    expected = 30 / delta * variance + (t**2 - 2 * t + s2) / (1 - s2)
    np.testing.assert_allclose(found.distance[:, 0], expected, rtol=1e-6)


def test_distances_do_not_depend_on_the_batch_or_units(rbf):
    alone = np.vstack([roth_distance(rbf, point[None]).distance for point in POINTS])
    np.testing.assert_allclose(roth_distance(rbf, POINTS).distance, alone, rtol=1e-10)
    moved = ovkgp.OVKRidge(lam=0.1, lengthscale=1e3, base_kernel="rbf").fit(1e3 * X - 7, 1e-2 * Y[:, 0])
    np.testing.assert_allclose(
        roth_distance(moved, 1e3 * POINTS - 7).distance, roth_distance(rbf, POINTS).distance, rtol=1e-6
    )


def test_default_regressor_has_distances():
    found = roth_distance(ovkgp.GPRegressor(random_state=0).fit(X, Y[:, 0]), POINTS)
    assert np.isfinite(found.distance).all() and (found.distance > 0).all()


def test_invalid_calls_are_rejected(rbf):
    with pytest.raises(InputError, match="estimator"):
        roth_distance(object())
    with pytest.raises(OptionError, match="OneClassForest"):
        roth_distance(ovkgp.OneClassForest(num_trees=2).fit(X))
    with pytest.raises(OptionError, match="alpha"):
        roth_distance(rbf, alpha=2.0)
    with pytest.raises(InputError, match="NaN"):
        roth_distance(rbf, [[np.nan, 0.0]])
    with pytest.raises(InputError, match="training"):
        roth_distance(ovkgp.ORFFRidge(lam=0.1, num_frequencies=10, random_state=0).fit(X, Y))
    poisson = ovkgp.GPRegressor(likelihood="poisson", num_frequencies=5).fit(X, np.arange(30) % 3)
    with pytest.raises(OptionError, match="Gaussian"):
        roth_distance(poisson)
