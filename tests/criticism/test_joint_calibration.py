"""Joint calibration: definitions against dense algebra, null distributions, and the kind of error that each test shows."""

import numpy as np
import pytest
from scipy.stats import chi2, f, kstest, norm

from ovkgp.criticism import pivoted_cholesky_errors, prerank_pit
from ovkgp.criticism.joint_calibration import (
    PRERANKS,
    mahalanobis_test,
    marginal_test,
    pivoted_cholesky_test,
    prerank_test,
    spectral_errors,
    spectral_test,
)
from ovkgp.criticism.residuals import JointErrors
from ovkgp.exceptions import FactorizationError, InputError, OptionError


def make_covariance(n=40, lengthscale=0.3, noise=0.05):
    x = np.sort(np.random.default_rng(3).uniform(0, 1, n))
    return np.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2) + noise * np.eye(n)


def draw_errors(covariance, seed):
    return np.linalg.cholesky(covariance) @ np.random.default_rng(seed).normal(size=len(covariance))


def pivots_by_definition(covariance):
    """Choose the entry of largest variance given those before, by dense conditioning."""
    chosen = []
    for _ in range(len(covariance)):
        variance = np.diag(covariance).copy()
        if chosen:
            cross = covariance[:, chosen]
            variance -= np.einsum("ij,ji->i", cross, np.linalg.solve(covariance[np.ix_(chosen, chosen)], cross.T))
        variance[chosen] = -np.inf
        chosen.append(int(np.argmax(variance)))
    return chosen


def test_pivoted_cholesky_errors_are_conditional_standardized_errors():
    covariance = make_covariance(12) * np.outer(np.arange(1, 13), np.arange(1, 13))
    errors = draw_errors(covariance, 0)
    values, order = pivoted_cholesky_errors(errors, covariance)
    assert order.tolist() == pivots_by_definition(covariance)
    for k in range(12):
        before, one = order[:k], order[k]
        weights = np.linalg.solve(covariance[np.ix_(before, before)], covariance[before, one])
        variance = covariance[one, one] - weights @ covariance[before, one]
        assert values[k] == pytest.approx((errors[one] - weights @ errors[before]) / np.sqrt(variance), abs=1e-8)


def test_pivoted_cholesky_errors_reject_invalid_arguments():
    with pytest.raises(FactorizationError, match="rank 1, expected 2"):
        pivoted_cholesky_errors([1.0, 1.0], np.ones((2, 2)))
    with pytest.raises(InputError, match="covariance has shape"):
        pivoted_cholesky_errors([1.0, 1.0], np.eye(3))


def test_pivoted_cholesky_test_is_that_of_the_largest_of_independent_errors():
    covariance = make_covariance()
    errors = draw_errors(covariance, 1)
    test = pivoted_cholesky_test(JointErrors(errors, covariance))
    largest = np.abs(pivoted_cholesky_errors(errors, covariance)[0]).max()
    assert test.statistic == pytest.approx(largest)
    assert test.pvalue == pytest.approx(1 - (2 * norm.cdf(largest) - 1) ** 40)
    assert 1 - (2 * norm.cdf(test.critical_value) - 1) ** 40 == pytest.approx(0.05)


@pytest.mark.parametrize("prerank", PRERANKS)
def test_prerank_pit_is_uniform_for_normal_rows(prerank):
    z = np.random.default_rng(0).normal(size=(4000, 3))
    u = prerank_pit(z, prerank)
    assert ((u >= 0) & (u <= 1)).all()
    assert kstest(u, "uniform").pvalue > 0.01


def test_prerank_pit_has_the_closed_forms():
    z = np.random.default_rng(1).normal(size=(30, 3))
    np.testing.assert_allclose(prerank_pit(z, "location"), norm.cdf(z.sum(1) / np.sqrt(3)))
    np.testing.assert_allclose(prerank_pit(z, "scale"), chi2.cdf((z**2).sum(1), 3))
    # z₁ z₂ = (a² − b²)/2 for independent standard normal a, b; its distribution is symmetric
    pairs = z[:, :2]
    flipped = pairs * [1, -1]
    np.testing.assert_allclose(prerank_pit(pairs, "dependence") + prerank_pit(flipped, "dependence"), 1, atol=0.01)


@pytest.mark.parametrize(
    ("prerank", "wrong"), [("location", "dependence"), ("scale", "scale"), ("dependence", "dependence")]
)
def test_prerank_test_finds_its_error(prerank, wrong):
    z = np.random.default_rng(2).normal(size=(200, 2))
    assert prerank_test(z, prerank, random_state=0).pvalue > 0.05
    changed = 1.5 * z if wrong == "scale" else z @ np.linalg.cholesky([[1, 0.6], [0.6, 1]]).T
    assert prerank_test(changed, prerank, random_state=0).pvalue < 0.01


def test_prerank_pit_rejects_invalid_rows():
    with pytest.raises(OptionError, match="prerank"):
        prerank_pit(np.zeros((5, 2)), "size")
    with pytest.raises(InputError, match="at least 2 outputs"):
        prerank_pit(np.zeros((5, 1)))
    with pytest.raises(InputError, match="finite"):
        prerank_pit([[1.0, np.nan]])


@pytest.mark.parametrize("is_known", [True, False])
def test_marginal_test_has_its_level(is_known):
    rng, options = np.random.default_rng(4), {"is_known": is_known, "num_replicates": 99}
    scale = 1.0 if is_known else 7.0  # scale and mean are irrelevant if they are estimated
    rejected = sum(marginal_test(scale * rng.normal(size=30), "y", **options).rejected for _ in range(200))
    assert rejected <= 19  # of 200 at .05: exceeded with probability .003


def test_marginal_test_finds_heavy_tails_and_unless_known_ignores_scale():
    rng = np.random.default_rng(5)
    assert marginal_test(rng.standard_t(2, size=200), "y", is_known=False).pvalue < 0.01
    values = 2 * rng.normal(size=200)
    assert marginal_test(values, "y", is_known=True).pvalue < 0.01
    assert marginal_test(values, "y", is_known=False).pvalue > 0.01


def test_mahalanobis_test_is_two_sided():
    z = np.random.default_rng(6).normal(size=50)
    square = np.square(z).mean()
    known, trained = mahalanobis_test(z), mahalanobis_test(z, num_trained=80)
    assert known.statistic == pytest.approx(square)
    assert known.pvalue == pytest.approx(2 * min(chi2.cdf(50 * square, 50), chi2.sf(50 * square, 50)))
    assert trained.pvalue == pytest.approx(2 * min(f.cdf(square, 50, 80), f.sf(square, 50, 80)))
    assert mahalanobis_test(2 * z).pvalue < 1e-6
    assert mahalanobis_test(z / 2).pvalue < 1e-6
    assert mahalanobis_test(np.append(z, np.nan)).statistic == pytest.approx(square)


def test_spectral_errors_are_projections_on_eigenvectors():
    covariance = make_covariance()
    errors = draw_errors(covariance, 7)
    values, directions = spectral_errors(JointErrors(errors, covariance, (covariance, np.eye(40))))
    assert np.square(values).sum() == pytest.approx(errors @ np.linalg.solve(covariance, errors))
    eigenvalues = np.linalg.eigvalsh(covariance)[::-1]
    np.testing.assert_allclose(directions.T @ directions, np.eye(2), atol=1e-10)
    # of ∂C/∂θ = C all squares count equally; of noise by 1/w
    for slope in (np.ones(40), 1 / eigenvalues):
        np.testing.assert_allclose(directions @ (directions.T @ slope), slope, rtol=1e-6)


def test_training_makes_squares_orthogonal_to_the_directions():
    """At the maximum of the likelihood of a scale and a noise variance, Σ_j (e_j² − 1) v_jᵀ (∂C/∂θ) v_j / w_j = 0."""
    from scipy.optimize import minimize

    K = make_covariance(noise=0.0)
    y = draw_errors(make_covariance() + 1e-9 * np.eye(40), 8)

    def covariance(logs):
        return np.exp(logs[0]) * K + np.exp(logs[1]) * np.eye(40)

    def loss(logs):
        C = covariance(logs)
        return np.linalg.slogdet(C)[1] + y @ np.linalg.solve(C, y)

    logs = minimize(loss, [0.0, -3.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}).x
    values, directions = spectral_errors(JointErrors(y, covariance(logs), (np.exp(logs[0]) * K, np.eye(40))))
    np.testing.assert_allclose((np.square(values) - 1) @ directions, 0, atol=1e-3)


def test_spectral_test_has_its_level_and_finds_a_wrong_smoothness():
    right, rejected = make_covariance(), 0
    for seed in range(100):
        joint = JointErrors(draw_errors(right, seed), right)
        rejected += spectral_test(joint, num_replicates=199, random_state=seed).rejected
    assert rejected <= 12  # of 100 at .05: exceeded with probability .002
    x = np.linspace(0, 1, 100)
    rough = np.exp(-np.abs(x[:, None] - x)) + 1e-3 * np.eye(100)
    smooth = np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + 1e-2 * np.eye(100)
    assert spectral_test(JointErrors(draw_errors(rough, 0), smooth)).pvalue < 0.01
