"""Tests of `ovkgp.estimators.quantiles.kernel`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy import stats
from scipy.optimize import minimize

import ovkgp
from ovkgp.estimators.common.task_options import input_factor
from ovkgp.estimators.quantiles import kernel as kernel_module
from ovkgp.estimators.quantiles.kernel import (
    MAX_INITIAL_LAM,
    NOISE_RATIOS,
    GaussianQuantiles,
    GaussianScales,
    KernelProportions,
    LearnedKernel,
    TrendFactor,
    compute_slope_penalty,
    estimate_gaussian_scales,
    learn_kernel,
    learn_trend,
    make_initial_points,
    make_log_density,
    quadratic_monomials,
)
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.training.initial_grid import make_lengthscale_grid
from ovkgp.inference.training.lbfgs import find_mode
from ovkgp.kernels.records import named_kernels


def scaled_rows(X, y):
    rows = QuantileRows.of(X, y)
    return rows.scaled(rows.scaling(scale_inputs=True))


def inputs(n=80, d=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), 0.1 * rng.standard_normal(n)


def test_log_density_matches_a_dense_gaussian_process_and_its_priors():
    X, noise = inputs(30)
    rows = scaled_rows(X, X[:, 0] + noise)
    data = Observations(torch.from_numpy(rows.X), torch.from_numpy(rows.y)[:, None])
    density = make_log_density(data, "rbf", "quadratic", None, varying_noise=True)
    logs = np.array([-1.0, 0.1, 0.4, -0.7, 0.3, -0.2, 0.5, -0.1])
    value, gradient = density(logs)
    (noise, s, linear, q), scale, slopes = np.exp(logs[:4]), np.exp(logs[4:6]), logs[6:]
    gram = rows.X @ rows.X.T / 2
    lag = (rows.X[:, None] - rows.X) / scale
    K = s * np.exp(-(lag**2).sum(-1) / 2) + linear * gram + q * gram**2 + (s + linear + q)
    K += np.diag(noise * np.exp(rows.X @ slopes) ** 2 + 1e-6)
    expected = stats.multivariate_normal(np.zeros(30), K).logpdf(rows.y)
    prior_covariance = np.ones((2, 2)) + 0.25 * np.eye(2)
    expected += stats.multivariate_normal([math.log(2 * math.sqrt(2))] * 2, prior_covariance).logpdf(logs[4:6])
    expected += stats.norm([-1.0, 0.0, 0.0, -2.0], [1.5, 3.0, 3.0, 3.0]).logpdf(logs[:4]).sum()
    expected += stats.norm(0.0, 0.3 / math.sqrt(2)).logpdf(slopes).sum()
    assert value == pytest.approx(expected, rel=1e-9)
    steps = 1e-5 * np.eye(8)
    numeric = [(density(logs + step)[0] - density(logs - step)[0]) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)
    constant = make_log_density(data, "rbf", "quadratic", None)
    assert constant(logs[:6])[0] == pytest.approx(density(np.r_[logs[:6], 0.0, 0.0])[0], rel=1e-12)


@pytest.mark.slow
def test_slope_penalty_is_the_occam_factor_of_gaussian_noise():
    """With pure noise the evidence of the slopes is an integral over them."""
    rng = np.random.default_rng(0)
    x, std = rng.standard_normal(400), 0.3
    y = rng.standard_normal(400)
    slopes = np.linspace(-1, 1, 4001)
    logs = np.array([stats.norm(0, np.exp(slope * x)).logpdf(y).sum() for slope in slopes]) + stats.norm(0, std).logpdf(
        slopes
    )
    evidence = np.log(np.exp(logs - logs.max()).sum() * (slopes[1] - slopes[0])) + logs.max()
    mode = logs.max() - stats.norm(0, std).logpdf(0.0)  # the density without slopes has the factor of the prior at zero
    assert compute_slope_penalty(torch.from_numpy(x)[:, None]) == pytest.approx(mode - evidence, abs=0.1)


def test_learn_kernel_finds_a_line_although_noise_grows():
    """Rows with more noise than others, and one far from the rest, ask for short lengthscales if the noise is constant."""
    rng = np.random.default_rng(0)
    x = np.r_[rng.gamma(4.0, 1.0, 149), 20.0]
    y = x + 0.25 * x * rng.standard_normal(150)
    y[-1] = 10.0
    found = learn_kernel(scaled_rows(x[:, None], y), "rbf", "linear")
    assert found.proportions.linear > 0.5 and found.lengthscale[0] > 1


def test_learn_kernel_keeps_constant_noise_without_evidence_for_another():
    X, noise = inputs()
    rows = scaled_rows(X, np.sin(2 * X[:, 0]) + noise)
    density = make_log_density(
        Observations(torch.from_numpy(rows.X), torch.from_numpy(rows.y)[:, None]), "rbf", "linear", None
    )
    mode = find_mode(density.vector, density, make_initial_points(density, torch.from_numpy(rows.X)), 200, 1e-6)
    assert learn_kernel(rows, "rbf", "linear").log_density == pytest.approx(mode.value, abs=0.01)


@pytest.mark.parametrize("periods, n, std, even", [(1, 200, 0.2, True), (10, 200, 0.05, False), (40, 400, 0.2, True)])
def test_learn_kernel_finds_sines_of_any_frequency(periods, n, std, even):
    rng = np.random.default_rng(periods)
    x = np.linspace(0, 1, n) if even else rng.uniform(0, 1, n)
    y = np.sin(2 * np.pi * periods * x) + std * rng.standard_normal(n)
    found = learn_kernel(scaled_rows(x[:, None], y), "rbf", "linear")
    assert found.scales.residual_scale < 1.5 * std / y.std()


def test_initial_points_have_all_lengthscales_and_noises():
    X, noise = inputs(40, 3)
    rows = scaled_rows(X, noise)
    data = Observations(torch.from_numpy(rows.X), torch.from_numpy(rows.y)[:, None])
    points = np.array(make_initial_points(make_log_density(data, "rbf", "linear", None), data.X))
    grid = make_lengthscale_grid(rows.X)
    assert points.shape == (12, 6)
    np.testing.assert_allclose(points[:, 0], np.tile(np.log([0.3, 0.02]), 6))
    np.testing.assert_allclose(points[:, 3:], np.log(np.repeat(grid, 2))[:, None].repeat(3, 1))
    assert len(make_initial_points(make_log_density(data, "rbf", "linear", 1.5), data.X)) == 2


def test_learn_kernel_finds_the_optimum_of_another_optimizer():
    X, noise = inputs(60)
    rows = scaled_rows(X, np.sin(2 * X[:, 0]) + noise)
    sample = rows.clip_outliers().sample(500)
    data = Observations(torch.from_numpy(sample.X), torch.from_numpy(sample.Y))
    density = make_log_density(data, "rbf", "linear", None)

    def objective(logs):
        value, gradient = density(logs)
        return -value, -gradient

    initial, bounds = density.vector.get(), density.vector.bounds
    best = minimize(objective, initial, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-12})
    assert learn_kernel(rows, "rbf", "linear").log_density == pytest.approx(-best.fun, abs=1e-6 * len(rows))


@pytest.mark.parametrize("name", list(named_kernels()))
def test_learn_kernel_supports_every_name(name):
    X, noise = inputs(40)
    found = learn_kernel(scaled_rows(X, np.sin(2 * X[:, 0]) + noise), name, "linear")
    assert found.lengthscale.shape == (2,)
    assert (found.lengthscale > 0).all()
    assert found.lengthscale[0] < found.lengthscale[1]


def test_learn_kernel_finds_a_linear_function():
    X, noise = inputs()
    found = learn_kernel(scaled_rows(X, X @ [1.0, -2.0] + noise), "rbf", "linear")
    assert found.proportions.linear > 0.8
    assert found.scales.residual_scale == pytest.approx(0.1 / math.sqrt(5), rel=0.4)


def test_learn_kernel_finds_no_trend_in_a_sine():
    X, noise = inputs()
    found = learn_kernel(scaled_rows(X, np.sin(3 * X[:, 0]) + noise), "rbf", "quadratic")
    assert found.proportions.stationary > 0.6


def test_lengthscales_are_similar_for_few_rows():
    X, noise = inputs(8, 4)
    few = learn_kernel(scaled_rows(X, X[:, 0] + 10 * noise), "rbf").lengthscale
    assert few.max() / few.min() < 2.5


def test_learn_kernel_keeps_a_given_lengthscale():
    X, noise = inputs()
    found = learn_kernel(scaled_rows(X, X[:, 0] + noise), "rbf", "linear", lengthscale=1.5)
    assert found.lengthscale == 1.5
    assert 0 < found.proportions.linear < 1


def test_intercept_grows_for_a_weak_signal():
    assert LearnedKernel(1.0).intercept == 1
    assert LearnedKernel(1.0, scales=GaussianScales(2.0, 0.1)).intercept == 1
    assert LearnedKernel(1.0, scales=GaussianScales(0.04, 1.0)).intercept == pytest.approx(5.0)
    assert LearnedKernel(1.0, scales=GaussianScales(1e-12, 1.0)).intercept == pytest.approx(math.sqrt(1000))


def test_learn_trend_is_quadratic_only_for_strong_evidence():
    X, noise = inputs(80, 3)
    linear_rows = scaled_rows(X, X.sum(1) + noise)
    quadratic_rows = scaled_rows(X, X[:, 0] * X[:, 1] + X[:, 2] ** 2 + noise)
    assert learn_trend(linear_rows, "rbf").proportions.quadratic == 0
    assert learn_trend(quadratic_rows, "rbf").proportions.quadratic > 0.1
    linear, quadratic = (learn_kernel(quadratic_rows, "rbf", trend).log_density for trend in ("linear", "quadratic"))
    assert quadratic > linear + 5


def test_learn_kernel_finds_a_sine_with_an_outlying_input():
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(0, 1, 60), 8.0]
    found = learn_kernel(scaled_rows(x[:, None], np.sin(12 * x) + 0.1 * rng.standard_normal(61)), "rbf", "linear")
    assert found.scales.residual_scale < 0.3  # in standard deviations of y; a line alone leaves 1


def test_offset_equals_gaussian_quantiles():
    levels = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    np.testing.assert_allclose(GaussianQuantiles(0.7)(levels), stats.norm(0, 0.7).ppf(levels), atol=1e-12)


def test_offset_slopes_are_its_derivative():
    levels = torch.linspace(0.02, 0.98, 13, dtype=torch.float64).requires_grad_()
    offset = GaussianQuantiles(1.3)
    (slopes,) = torch.autograd.grad(offset(levels).sum(), levels)
    torch.testing.assert_close(offset.slopes(levels.detach()), slopes, rtol=1e-10, atol=0)


def coordinates(n=40, r=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Phi = torch.randn(n, r, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return Phi, Phi @ torch.randn(r, generator=generator, dtype=torch.float64) + 0.5 * noise


def dense_log_evidence(Phi, y, signal, noise):
    covariance = signal * Phi @ Phi.T + noise * torch.eye(len(y), dtype=torch.float64)
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).item()


def test_gaussian_scales_maximize_the_dense_evidence():
    Phi, y = coordinates()
    found = estimate_gaussian_scales(Phi, y, torch.ones(len(y), dtype=torch.float64))
    best = dense_log_evidence(Phi, y, found.signal, found.noise)
    for c in NOISE_RATIOS[::4].tolist():
        # at a given ratio c the best signal is the mean of the whitened squares
        whitened = torch.linalg.solve(Phi @ Phi.T + c * torch.eye(len(y), dtype=torch.float64), y)
        signal = (y @ whitened).item() / len(y)
        assert dense_log_evidence(Phi, y, signal, c * signal) <= best + 1e-9
    for factor in (0.9, 1.1):
        assert dense_log_evidence(Phi, y, factor * found.signal, factor * found.noise) < best


def test_gaussian_scales_count_weights_as_copies():
    Phi, y = coordinates()
    copies = torch.tensor([2] * 10 + [1] * 30)
    weighted = estimate_gaussian_scales(Phi, y, copies.double())
    repeated = estimate_gaussian_scales(
        Phi.repeat_interleave(copies, 0), y.repeat_interleave(copies), torch.ones(50, dtype=torch.float64)
    )
    assert weighted.signal == pytest.approx(repeated.signal, rel=1e-9)
    assert weighted.noise == pytest.approx(repeated.noise, rel=1e-9)


def test_initial_lam_balances_curvature_of_loss_and_prior():
    scales = GaussianScales(signal=2.0, noise=0.04)
    assert scales.residual_scale == pytest.approx(0.2)
    assert scales.lam(100) == pytest.approx(0.3 * 0.2 / (100 * 2.0))
    # 0.3/σ is the mean over the levels of the density of Gaussian noise at its quantiles
    levels = np.arange(0.5, 1000) / 1000
    assert stats.norm.pdf(stats.norm.ppf(levels)).mean() == pytest.approx(1 / (2 * math.sqrt(math.pi)), rel=1e-3)


def test_initial_lam_is_bounded_without_signal():
    assert GaussianScales(signal=1e-12, noise=1.0).lam(50) == MAX_INITIAL_LAM


def points(n, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(X, Z, proportions, lengthscale):
    inner = X @ Z.T / X.shape[1]
    stationary = torch.exp(-(torch.cdist(X, Z) ** 2) / (2 * lengthscale**2))
    return proportions.stationary * stationary + proportions.linear * inner + proportions.quadratic * inner**2


@pytest.mark.parametrize(
    "proportions", [KernelProportions(0.5, 0.5), KernelProportions(0.2, 0.3, 0.5), KernelProportions(0.6, 0.0, 0.4)]
)
def test_trend_factor_reproduces_the_dense_kernel(proportions):
    X = points(10)
    phi = TrendFactor(input_factor(X, lengthscale=1.5), proportions)
    new = points(4, seed=1)
    torch.testing.assert_close(phi(new) @ phi(X).T, dense(new, X, proportions, 1.5), rtol=1e-8, atol=1e-8)


def test_trend_factor_anchor_rows_equal_evaluated_rows():
    X = points(8)
    phi = TrendFactor(KernelFactor(RBFKernel().double(), X), KernelProportions(0.3, 0.3, 0.4))
    torch.testing.assert_close(phi.anchor_rows, phi(X), rtol=1e-9, atol=1e-9)


def test_quadratic_monomials_have_the_squared_inner_product():
    X, Z = points(6), points(5, seed=2)
    torch.testing.assert_close(quadratic_monomials(X) @ quadratic_monomials(Z).T, (X @ Z.T) ** 2)


def test_proportions_sum_to_one():
    proportions = KernelProportions.from_variances(stationary=2.0, linear=1.0, quadratic=1.0)
    assert (proportions.stationary, proportions.linear, proportions.quadratic) == (0.5, 0.25, 0.25)


@pytest.mark.parametrize("trend", ["auto", "linear"])
def test_restarts_are_runs_from_several_lengthscales(monkeypatch, trend):
    counts = []

    def count_runs(vector, density, points, max_iter, tolerance, restarts):
        counts.append((len(points), restarts))
        return find_mode(vector, density, points, max_iter, tolerance, restarts)

    monkeypatch.setattr(kernel_module, "find_mode", count_runs)
    x = np.linspace(0, 1, 30)[:, None]
    ovkgp.InfiniteQuantileRegressor(trend=trend, restarts=3, lam=1e-3, calibrate=False).fit(x, np.sin(6 * x[:, 0]))
    assert (6, 3) in counts
