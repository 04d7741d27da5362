"""Tests of `ovkgp.inference.stacking.scaled_curves`."""

import numpy as np
import pytest
import torch
from curve_cases import simulate_curves
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.functional.mean_curve import MeanCurve
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.posteriors.curves import CurvePosterior
from ovkgp.inference.posteriors.ragged_curves import RaggedCurvePosterior
from ovkgp.inference.stacking.curve_candidates import CurveData
from ovkgp.inference.stacking.scaled_curves import ScaleCurve, ScaledCurves, fit_scale_curve
from ovkgp.kernels import DecomposableKernel, FullMatrix, FunctionValuedKernel


def draw_scaled(seed=0, num_curves=60, missing=0.5):
    """Return points, curves (n, g) of standard deviation exp(−θ) on [−1.7, 1.7], and their mask."""
    rng = np.random.default_rng(seed)
    grid, _, Y = simulate_curves(num_curves, 40, seed=seed)
    points = (grid - 0.5) * 3.4
    Y = (Y - Y.mean(0)) / Y.std(0) * np.exp(-points)
    return torch.from_numpy(points[:, None]), torch.from_numpy(np.where(rng.random(Y.shape) < missing, np.nan, Y))


@pytest.mark.parametrize("missing", [0.0, 0.5, 0.8])
def test_scale_curve_is_that_of_the_curves(missing):
    tasks, Y = draw_scaled(missing=missing)
    scale = fit_scale_curve(CurveData(torch.zeros(60, 1), Y, tasks))
    np.testing.assert_allclose(scale(tasks).numpy(), np.exp(-tasks[:, 0].numpy()), rtol=0.3)
    np.testing.assert_allclose((Y / scale(tasks)).square().nanmean(), 1.0, rtol=1e-6)
    outside = torch.tensor([[-5.0], [5.0]]).double()
    np.testing.assert_allclose(scale(outside), scale(tasks[[0, -1]]))
    np.testing.assert_array_equal(scale.log_slopes(outside), 0.0)


def test_equal_variances_few_curves_and_few_points_have_no_scale_curve():
    rng = np.random.default_rng(0)
    for n, m, t in ((60, 40, 1), (9, 40, 1), (60, 7, 1), (60, 40, 3)):
        tasks, Y = torch.from_numpy(rng.standard_normal((m, t))), torch.from_numpy(rng.standard_normal((n, m)))
        Y = Y if (n, m, t) == (60, 40, 1) else Y * (2 * tasks[:, 0]).exp()
        assert fit_scale_curve(CurveData(torch.zeros(n, 1), Y, tasks)) is None
    constant = CurveData(
        torch.zeros(60, 1), torch.zeros(60, 40).double(), torch.linspace(-1, 1, 40).double().unsqueeze(1)
    )
    assert fit_scale_curve(constant) is None


def test_scale_curve_of_fields_and_channels():
    rng = np.random.default_rng(0)
    tasks = rng.uniform(-1.7, 1.7, (80, 2))
    true = np.stack([np.exp(tasks[:, 0]), np.ones(80)], 1)  # (g, q)
    Y = torch.from_numpy((rng.standard_normal((50, 80, 2)) * true).reshape(50, -1))
    scale = fit_scale_curve(CurveData(torch.zeros(50, 1), Y, torch.from_numpy(tasks), 2))
    np.testing.assert_allclose(scale(torch.from_numpy(tasks)).reshape(80, 2), true, rtol=0.35)


def make_components(num_channels, kind=CurvePosterior):
    """Return a posterior of divided curves, s of each channel, and its `ScaledCurves`."""
    rng = np.random.default_rng(0)
    tasks, X = torch.linspace(-1.5, 1.5, 9).double().unsqueeze(1), torch.from_numpy(rng.uniform(-1, 1, (8, 1)))
    kernel = ScaleKernel(RBFKernel()).double()
    deviation = RBFKernel().double() if num_channels > 1 else ScaleKernel(RBFKernel()).double()
    if num_channels > 1:
        kernel = DecomposableKernel(kernel, output_matrix=FullMatrix(num_channels)).double()
    over_tasks = FunctionValuedKernel(kernel, RBFKernel().double(), tasks=tasks)
    gp = OperatorValuedGP(over_tasks, mean="zero", noise=CurveNoise(tasks, deviation, num_channels)).double()
    Y = torch.from_numpy(rng.standard_normal((8, 9 * num_channels)))
    if kind is RaggedCurvePosterior:
        Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(0)) < 0.3] = torch.nan
        inner = kind(gp.requires_grad_(False), X, Y)
    else:
        inner = kind(gp.requires_grad_(False).condition(X, Y), gp.noise_model)
    coefficients = np.array([[0.2, -0.4]])[:, :num_channels] * np.array([[-1.5], [-0.5], [0.5], [1.5]])
    log_std = MeanCurve(np.array([[-1.5, 1.5]]), None, coefficients, [np.repeat([-1.5, 1.5], 4)])
    return inner, ScaledCurves(inner, ScaleCurve(log_std))


@pytest.mark.parametrize("kind", [CurvePosterior, RaggedCurvePosterior])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_moments_are_those_of_divided_curves_times_the_scale(num_channels, kind):
    inner, scaled = make_components(num_channels, kind)
    X, at = torch.tensor([[0.2], [0.9]]).double(), torch.tensor([[-1.1], [0.3], [1.2]]).double()
    s = scaled.scale(at)
    mean, covariance = inner.moments(X, at, "output")
    found = scaled.moments(X, at, "output")
    np.testing.assert_allclose(found[0], mean * s)
    np.testing.assert_allclose(found[1], covariance * torch.outer(s, s), atol=1e-14)
    for order in (0, 1):
        mean, covariance = scaled.moments(X, at, "output", order)
        smooth = scaled.deviation_at(at, order)
        np.testing.assert_allclose(scaled.moments(X, at, "none", order)[0], mean)
        np.testing.assert_allclose(scaled.moments(X, at, "diag", order)[0], mean)
        np.testing.assert_allclose(
            scaled.moments(X, at, "diag", order)[1], covariance.diagonal(dim1=1, dim2=2), rtol=1e-8
        )
        np.testing.assert_allclose(scaled.deviation_variances_at(at, order), smooth.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(scaled.white_at(at), inner.white_at(at) * s**2)


@pytest.mark.parametrize("kind", [CurvePosterior, RaggedCurvePosterior])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_derivatives_are_limits_of_differences(num_channels, kind):
    _, scaled = make_components(num_channels, kind)
    X, at, h = torch.tensor([[0.2], [0.9]]).double(), torch.tensor([[-1.1], [0.3]]).double(), 1e-4
    both = torch.cat([at - h, at + h])
    mean, covariance = scaled.moments(X, both, "output")
    difference = torch.cat([-torch.eye(2 * num_channels), torch.eye(2 * num_channels)], 1).double() / (2 * h)
    found = scaled.moments(X, at, "output", 1)
    np.testing.assert_allclose(found[0], mean @ difference.mT, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[1], difference @ covariance @ difference.mT, rtol=1e-3, atol=1e-4)
    smooth = difference @ scaled.deviation_at(both) @ difference.mT
    np.testing.assert_allclose(scaled.deviation_at(at, 1), smooth, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("derivative", [0, 1])
def test_draws_have_the_moments(derivative):
    _, scaled = make_components(1)
    X, at = torch.tensor([[0.2], [0.9]]).double(), torch.tensor([[-1.1], [0.3], [1.2]]).double()
    draws = scaled.sample(X, at, 20_000, derivative=derivative, random_state=0)
    mean, variances = scaled.moments(X, at, "diag", derivative)
    error = variances.sqrt().max().item()
    np.testing.assert_allclose(draws.mean(0), mean, atol=0.04 * error)
    np.testing.assert_allclose(draws.var(0), variances, rtol=0.06, atol=1e-3 * error**2)
    if not derivative:
        functions = scaled.sample_functions(2000, random_state=0)(X, at, torch.arange(2000))
        np.testing.assert_allclose(functions.mean(0), mean, atol=0.12 * error)
