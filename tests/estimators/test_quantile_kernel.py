"""Most probable lengthscales and shares: against a dense log posterior, and what data say of them."""

import math

import numpy as np
import pytest
import torch

from ovkgp.estimators.common.task_options import TASK_KERNELS
from ovkgp.estimators.quantiles import kernel as quantile_kernel
from ovkgp.estimators.quantiles.kernel import GaussianScales, LearnedKernel, learned_kernel, learned_trend
from ovkgp.estimators.quantiles.rows import QuantileRows


def rows_of(X, y):
    rows = QuantileRows.of(X, y)
    return rows.scaled(rows.scaling(scale_inputs=True))


def inputs(n=80, d=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), 0.1 * rng.standard_normal(n)


def test_the_density_is_that_of_a_dense_gaussian_process_and_its_priors():
    X, noise = inputs(30)
    rows = rows_of(X, X[:, 0] + noise)
    X, y = torch.from_numpy(rows.X), torch.from_numpy(rows.y)
    posterior = quantile_kernel._LogPosterior(X, y, "rbf", "quadratic", None)
    logs = np.array([0.3, -0.2, -1.0, 0.1, 0.4, -0.7])
    value, gradient = posterior(logs)
    scale, (noise, s, linear, q) = np.exp(logs[:2]), np.exp(logs[2:])
    gram = (X @ X.T / 2).numpy()
    lag = (rows.X[:, None] - rows.X) / scale
    K = s * np.exp(-(lag**2).sum(-1) / 2) + linear * gram + q * gram**2 + (s + linear + q)
    K += (noise + 1e-6) * np.eye(30)
    evidence = -(rows.y @ np.linalg.solve(K, rows.y) + np.linalg.slogdet(K)[1] + 30 * math.log(2 * math.pi)) / 2
    off = logs[:2] - math.log(2 * math.sqrt(2))
    prior = off @ np.linalg.solve(np.ones((2, 2)) + 0.25 * np.eye(2), off) / 2
    prior += (((logs[2:] - np.array([-1.0, 0.0, 0.0, -2.0])) / np.array([1.5, 3.0, 3.0, 3.0])) ** 2).sum() / 2
    assert value == pytest.approx(prior - evidence, rel=1e-9)
    steps = 1e-5 * np.eye(6)
    numeric = [(posterior(logs + step)[0] - posterior(logs - step)[0]) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", list(TASK_KERNELS))
def test_every_kernel_by_name_can_be_learned(name):
    X, noise = inputs(40)
    found = learned_kernel(rows_of(X, np.sin(2 * X[:, 0]) + noise), name, "linear")
    assert found.lengthscale.shape == (2,)
    assert (found.lengthscale > 0).all()
    assert found.lengthscale[0] < found.lengthscale[1]


def test_a_line_is_found_to_be_one():
    X, noise = inputs()
    found = learned_kernel(rows_of(X, X @ [1.0, -2.0] + noise), "rbf", "linear")
    assert found.shares.linear > 0.8
    assert found.scales.residual_scale == pytest.approx(0.1 / math.sqrt(5), rel=0.4)


def test_a_wave_has_no_trend():
    X, noise = inputs()
    found = learned_kernel(rows_of(X, np.sin(3 * X[:, 0]) + noise), "rbf", "quadratic")
    assert found.shares.stationary > 0.6


def test_few_rows_give_columns_about_the_same_lengthscale():
    X, noise = inputs(8, 4)
    few = learned_kernel(rows_of(X, X[:, 0] + 10 * noise), "rbf").lengthscale
    assert few.max() / few.min() < 2.5


def test_a_known_lengthscale_is_kept():
    X, noise = inputs()
    found = learned_kernel(rows_of(X, X[:, 0] + noise), "rbf", "linear", lengthscale=1.5)
    assert found.lengthscale == 1.5
    assert 0 < found.shares.linear < 1


def test_a_weak_signal_leaves_room_for_a_constant():
    assert LearnedKernel(1.0).intercept == 1
    assert LearnedKernel(1.0, scales=GaussianScales(2.0, 0.1)).intercept == 1
    assert LearnedKernel(1.0, scales=GaussianScales(0.04, 1.0)).intercept == pytest.approx(5.0)
    assert LearnedKernel(1.0, scales=GaussianScales(1e-12, 1.0)).intercept == pytest.approx(math.sqrt(1000))


def test_auto_takes_a_quadratic_trend_only_where_the_evidence_is_strong():
    X, noise = inputs(80, 3)
    straight, bent = rows_of(X, X.sum(1) + noise), rows_of(X, X[:, 0] * X[:, 1] + X[:, 2] ** 2 + noise)
    assert learned_trend(straight, "rbf").shares.quadratic == 0
    assert learned_trend(bent, "rbf").shares.quadratic > 0.1
    linear, quadratic = (learned_kernel(bent, "rbf", trend).log_density for trend in ("linear", "quadratic"))
    assert quadratic > linear + 5


def test_a_wave_beside_an_outlier_is_found_from_short_lengthscales():
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(0, 1, 60), 8.0]
    found = learned_kernel(rows_of(x[:, None], np.sin(12 * x) + 0.1 * rng.standard_normal(61)), "rbf", "linear")
    assert found.scales.residual_scale < 0.3  # in standard deviations of y; a line alone leaves 1
