"""Tests of `ovkgp.features.bounds.learning`."""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.exceptions import OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.features.bounds import (
    constrained_excess_risk_bound,
    generalization_bound,
    lambda_ceiling,
    mean_deviation_bound,
    ridge_generalization_bound,
    stability_bound,
    suggest_features,
    weight_radius,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, TransformableKernel

LIMITS = {"lipschitz": 2.0, "norm_bound": 3.0, "trace": 4.0, "cost_bound": 5.0}
RIDGE = {"kernel_norm": 1.5, "trace": 3.0, "output_norm": 2.0}


def rbf(num_dims, lengthscale=1.0):
    kernel = RBFKernel(ard_num_dims=num_dims)
    kernel.lengthscale = lengthscale
    return kernel.double()


def test_generalization_bound_formula():
    found = generalization_bound(0.3, 50, delta=0.1, **LIMITS)
    assert found == pytest.approx(0.3 + 2 * math.sqrt(2 / 50) * (2 * 3 * 2 + 5 * math.sqrt(math.log(20))))


def test_generalization_bound_holds_for_a_finite_class_of_linear_functions():
    # f(x) = a x with |a| ≤ 1, |x| ≤ 1, cost min(|f(x) − y|, 1): L = M = T = C = 1
    generator = torch.Generator().manual_seed(0)
    slopes = torch.linspace(-1, 1, 41)
    X = 2 * torch.rand(20_100, 1, generator=generator) - 1
    cost = (X * slopes - (0.5 * X + 0.3 * torch.randn(X.shape, generator=generator))).abs().clamp_max(1)
    risk, samples = cost[100:].mean(0), cost[100:].reshape(200, 100, 41).mean(1)
    slack = generalization_bound(0.0, 100, lipschitz=1.0, norm_bound=1.0, trace=1.0, cost_bound=1.0, delta=0.1)
    assert ((risk - samples).amax(1) > slack).double().mean() <= 0.1


@pytest.mark.parametrize("loss", ["half", "full"])
def test_ridge_bound_is_7_2_with_the_constants_of_ridge(loss):
    lam, kappa, size, std = 0.4, 1.5, 2.0, 1.2
    norm_bound = std / math.sqrt(lam) if loss == "half" else std * math.sqrt(2 / lam)
    residual = math.sqrt(kappa) * norm_bound + size
    factor = 1 if loss == "half" else 2
    limits = {"lipschitz": factor * residual, "norm_bound": norm_bound, "cost_bound": factor * residual**2 / 2}
    expected = generalization_bound(0.1, 30, trace=3.0, **limits)
    assert ridge_generalization_bound(0.1, 30, lam, output_std=std, loss=loss, **RIDGE) == pytest.approx(expected)


def ridge(kernel, X, Y, lam):
    """The minimiser of (1/N) Σ‖f(x_i) − y_i‖² + (λ/2)‖f‖²: its squared norm and its values at X."""
    K, n = kernel(X).to_dense().detach(), len(X)
    weights = torch.linalg.solve(K + n * lam / 2 * torch.eye(len(K), dtype=K.dtype), Y.reshape(-1))
    return float(weights @ K @ weights), (K @ weights).reshape(Y.shape)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(30, 2, generator=generator, dtype=torch.float64)
    return X, torch.stack([X[:, 0].sin(), X[:, 1].cos()], -1)


@pytest.mark.parametrize("lam", [0.01, 0.3, 5.0])
def test_ridge_solution_norm_satisfies_the_bound_behind_the_ceiling(data, lam):
    X, Y = data
    square, values = ridge(DecomposableKernel(rbf(2), output_matrix=torch.eye(2, dtype=torch.float64)), X, Y, lam)
    variance = float(Y.square().sum(-1).mean())
    assert lam / 2 * square <= variance
    assert values.norm(dim=-1).max() <= math.sqrt(2 * variance / lam)


def test_lambda_ceiling_values():
    sigma = 0.5
    gamma = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert lambda_ceiling(DecomposableKernel(rbf(2), output_matrix=gamma), 3.0, 2.0) == pytest.approx(2 * 2 * 3 / 4)
    assert lambda_ceiling(CurlFreeKernel(rbf(3, sigma)), 1.0, 1.0) == pytest.approx(2 / sigma**2)
    assert lambda_ceiling(DivergenceFreeKernel(rbf(3, sigma)), 1.0, 1.0) == pytest.approx(4 / sigma**2)
    scaled = ScaleKernel(rbf(2)).double()
    scaled.outputscale = 3.0
    assert lambda_ceiling(scaled, 1.0, 1.0) == pytest.approx(6)
    parts = [DecomposableKernel(rbf(2), output_matrix=torch.diag(row)) for row in torch.eye(2, dtype=torch.float64)]
    assert lambda_ceiling(parts[0] + parts[1], 1.0, 1.0) == pytest.approx(2)  # ‖K(0)‖ = 1, not the sum of two norms
    with pytest.raises(SpectralError):
        lambda_ceiling(TransformableKernel(rbf(2), [torch.sin]), 1.0, 1.0)


def test_lambda_above_the_ceiling_cannot_reach_the_largest_output(data):
    X, Y = data
    variance, largest = float(Y.square().sum(-1).mean()), float(Y.norm(dim=-1).max())
    kernel = DecomposableKernel(rbf(2), output_matrix=torch.eye(2, dtype=torch.float64))
    _, values = ridge(kernel, X, Y, 1.01 * lambda_ceiling(kernel, variance, largest))
    assert values.norm(dim=-1).max() < largest


def test_suggest_features():
    assert suggest_features(100) == 10 and suggest_features(101) == 11
    assert suggest_features(100, "linear") == 100
    assert suggest_features(100, constant=2.5) == 25 and suggest_features(1, constant=0.01) == 1


@pytest.mark.parametrize("radius", [1.0, 2.5])
@pytest.mark.parametrize("delta", [0.5, 0.1])
def test_lemma_7_1_holds(radius, delta):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(2000, 20, 3, generator=generator, dtype=torch.float64)
    draws[..., 0] += 1.0  # off center
    points = radius * torch.nn.functional.normalize(draws, dim=-1)
    deviation = (points.mean(1) - points.mean((0, 1))).norm(dim=-1)
    assert (deviation > mean_deviation_bound(radius, 20, delta)).double().mean() <= delta


def test_excess_risk_bound_is_twice_the_estimation_error_plus_the_approximation_error():
    found = constrained_excess_risk_bound(100, 400, factor_norm=1.5, delta=0.1, **LIMITS)
    estimation = 4 * math.sqrt(2 / 100) * (2 * 3 * 2 + 5 * math.sqrt(math.log(20)))
    approximation = 1.5 * 2 * 3 / 20 * (1 + math.sqrt(2 * math.log(10)))
    assert found == pytest.approx(estimation + approximation)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("num_rows", lambda: generalization_bound(0.1, 0, **LIMITS)),
        ("delta", lambda: generalization_bound(0.1, 10, delta=1.0, **LIMITS)),
        ("trace", lambda: generalization_bound(0.1, 10, **{**LIMITS, "trace": math.inf})),
        ("empirical_risk", lambda: generalization_bound(-0.1, 10, **LIMITS)),
        ("lam", lambda: ridge_generalization_bound(0.1, 10, 0.0, **RIDGE)),
        ("loss", lambda: ridge_generalization_bound(0.1, 10, 1.0, loss="hinge", **RIDGE)),
        ("lam", lambda: ridge_generalization_bound(0.1, 10, 3.0, variant="printed", **RIDGE)),
        ("kappa", lambda: stability_bound(0.1, 10, 1.0, kappa=-1.0, output_norm=1.0)),
        ("variant", lambda: stability_bound(0.1, 10, 1.0, kappa=1.0, output_norm=1.0, variant="new")),
        ("output_norm", lambda: lambda_ceiling(rbf(2), 1.0, 0.0)),
        ("rule", lambda: suggest_features(10, "cubic")),
        ("num_rows", lambda: suggest_features(0)),
        ("num_samples", lambda: mean_deviation_bound(1.0, 0)),
        ("norm_bound", lambda: weight_radius(0.0, 10)),
    ],
)
def test_bounds_reject_invalid_arguments(name, call):
    with pytest.raises(OptionError, match=name):
        call()


# Errata


def test_bt_e_23_the_ridge_rule_bounds_the_square_of_the_norm(data):
    X, Y = data
    kernel = DecomposableKernel(rbf(2), output_matrix=torch.eye(2, dtype=torch.float64))
    square, _ = ridge(kernel, X, 0.01 * Y, 0.1)
    variance = float((0.01 * Y).square().sum(-1).mean())
    assert 0.1 * square <= 2 * variance
    assert 0.1 * math.sqrt(square) > 2 * variance  # as printed, without the square


def test_bt_e_39_the_lipschitz_constant_of_least_squares_is_a_sum():
    lam, kappa, size = 0.4, 1.5, 2.0
    reach = math.sqrt(2 * kappa / lam) * size  # the largest ‖f(x)‖, with the printed M
    f, y = torch.tensor([reach, 0.0], requires_grad=True), torch.tensor([-size, 0.0])
    (gradient,) = torch.autograd.grad((f - y).square().sum() / 2, f)
    assert gradient.norm() == pytest.approx(reach + size) and gradient.norm() > max(reach, size)
    printed = ridge_generalization_bound(0.1, 30, lam, variant="printed", **RIDGE)
    expected = 0.1 + 8 * 4 / 0.4 * math.sqrt(1.5 / 30) * (math.sqrt(3) + math.sqrt(1.5 * math.log(20) / 2))
    assert printed == pytest.approx(expected)
    # (7.2), which is evaluated by default, exceeds the printed bound where that leaves out the larger part of L
    unit = {"kernel_norm": 1.0, "trace": 1.0, "output_norm": 1.0}
    corrected, printed = (ridge_generalization_bound(0.0, 30, 1.9, variant=v, **unit) for v in ("corrected", "printed"))
    assert corrected > printed


def test_bt_e_40_stability_bound():
    N, lam, kappa, size, delta = 200, 0.3, 1.2, 2.0, 0.1
    square = size**2 * (1 + kappa / math.sqrt(lam)) ** 2
    first = kappa**2 * square / (lam * N)
    second = square * (4 * kappa**2 / lam + 1) * math.sqrt(math.log(1 / delta) / (2 * N))
    options = {"kappa": kappa, "output_norm": size, "delta": delta}
    assert stability_bound(0.1, N, lam, **options) == pytest.approx(0.1 + first + second / 2)
    assert stability_bound(0.1, N, lam, variant="printed", **options) == pytest.approx(0.1 + first + second)
    # of order N^(−1/2) and λ^(−2), not N^(1/2) and λ^(−3/2)
    in_rows = stability_bound(0.0, 10**12, lam, **options) / stability_bound(0.0, 4 * 10**12, lam, **options)
    in_lam = stability_bound(0.0, N, 1e-12, **options) / stability_bound(0.0, N, 2e-12, **options)
    assert in_rows == pytest.approx(2, rel=1e-3) and in_lam == pytest.approx(4, rel=1e-3)


def test_bt_e_41_weights_of_normalized_features_have_radius_m_over_root_d():
    M, D = 3.0, 64
    Phi = ORFF(rbf(2), D, random_state=0)(torch.zeros(1, 2, dtype=torch.float64)).to_dense().detach()
    theta = M * Phi[0]  # at x = 0 the D cosines are 1: one weight of size M/√D a frequency
    assert theta.abs().max() == pytest.approx(weight_radius(M, D)) and (theta.abs() > 1e-12).sum() == D
    assert float(Phi[0] @ theta) == pytest.approx(M)  # the largest value a function of the class takes
    shrunk = theta * weight_radius(M, D, normalized=False) / weight_radius(M, D)
    assert float(Phi[0] @ shrunk) == pytest.approx(M / math.sqrt(D))  # the printed radius empties the class as D grows
