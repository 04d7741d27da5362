"""Tests of `ovkgp.features.bounds.learning`."""

import math

import numpy as np
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
    task_generalization_bound,
    task_loss_bound,
    task_sampling_bound,
    task_stability,
    task_value_bound,
    weight_radius,
)
from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, TransformableKernel
from ovkgp.losses import CostSensitiveHinge, IntegralLoss, Pinball, gauss_legendre, sobol, star_discrepancy

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


LEVELS, COSTS = gauss_legendre(8), gauss_legendre(8, -1.0, 1.0)
HALF = 0.05  # λ of ‖h‖², half the canonical one


def gaussian(lengthscale):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def rows(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1.5, n)
    y = np.clip(np.sin(4 * x) + 0.3 * rng.normal(size=n), -1, 1)
    return torch.from_numpy(x[:, None]), torch.from_numpy(y[:, None])


def fitted(loss, X, y, lam=HALF, row_weights=None):
    nodes = loss.nodes
    inputs, tasks = KernelFactor(gaussian(0.3), X), KernelFactor(gaussian(0.4), nodes[:, None])
    problem = TaskProblem(inputs.anchor_rows, tasks.anchor_rows, y, loss, 2 * lam, row_weights)
    return TaskFunction(inputs, tasks, solve_primal(problem, tolerance=1e-7).weights)


def losses(function, loss, X, y):
    return loss.value(function(X, loss.nodes), y)


PINBALL, HINGE = IntegralLoss(Pinball(), LEVELS), IntegralLoss(CostSensitiveHinge(), COSTS)


def labels(y):
    return torch.where(y > 0, 1.0, -1.0).double()


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.parametrize("loss, targets", [(PINBALL, lambda y: y), (HINGE, labels)], ids=["pinball", "hinge"])
def test_losses_change_by_less_than_the_stability_without_a_row(n, loss, targets):
    """B-17. The problem without a row keeps the factor 1/n."""
    X, y = rows(n, 0)
    grid = torch.linspace(0, 1.5, 30).double()[:, None]
    whole = fitted(loss, X, targets(y))
    bound, largest = task_stability(n, HALF), 0.0
    for i in range(0, n, n // 5):
        weights = torch.ones(n, dtype=torch.float64)
        weights[i] = 0.0
        other = fitted(loss, X, targets(y), row_weights=weights)
        for value in (-1.0, 0.3, 1.0):
            target = targets(torch.full((30, 1), value, dtype=torch.float64))
            change = losses(whole, loss, grid, target) - losses(other, loss, grid, target)
            largest = max(largest, change.abs().max().item())
    assert 0 < largest <= bound


@pytest.mark.parametrize("lam", [0.5, 0.01])
def test_task_value_and_loss_bounds_hold(lam):
    """B-18 and B-19."""
    X, y = rows(40, 1)
    grid = torch.linspace(-0.5, 2, 60).double()[:, None]
    for name, loss, target in (("pinball", PINBALL, y), ("hinge", HINGE, labels(y))):
        function = fitted(loss, X, target, lam)
        assert function(grid, loss.nodes).abs().max().item() <= task_value_bound(lam, loss=name)
        assert losses(function, loss, X, target).max().item() <= task_loss_bound(lam, loss=name)


def test_task_generalization_bound_holds_over_resamples():
    """B-20: at most δ·50 of 50 samples may violate it; the bound is loose, none does."""
    X_test, y_test = rows(2000, 99)
    for seed in range(50):
        X, y = rows(30, seed)
        function = fitted(PINBALL, X, y)
        risk, empirical = (losses(function, PINBALL, *data).mean().item() for data in ((X_test, y_test), (X, y)))
        assert risk <= task_generalization_bound(empirical, 30, HALF, form="tight")


def test_task_generalization_bounds_are_those_of_the_thesis():
    """(5.15) with 4κ²/(λn) + [8κ²/λ + 2(B + κ√(B/λ))]√(ln(1/δ)/n), and κ²/(λn) + (2κ²/λ + 1 + κ/√λ)√(ln(1/δ)/n)."""
    n, lam, B, kappa, delta = 50, 0.2, 3.0, 1.5, 0.1
    rate = np.sqrt(np.log(1 / delta) / n)
    pinball = 4 * kappa**2 / (lam * n) + (8 * kappa**2 / lam + 2 * (B + kappa * np.sqrt(B / lam))) * rate
    hinge = kappa**2 / (lam * n) + (2 * kappa**2 / lam + 1 + kappa / np.sqrt(lam)) * rate
    given = {"kappa_x": kappa, "delta": delta}
    assert task_generalization_bound(0.5, n, lam, target=B, **given) == pytest.approx(0.5 + pinball, rel=1e-12)
    assert task_generalization_bound(0.5, n, lam, loss="hinge", **given) == pytest.approx(0.5 + hinge, rel=1e-12)


def test_sharp_bound_is_as_stated_and_decreases_with_rows():
    n, lam, delta = 10_000, 0.5, 0.05
    beta, xi, log = 1 / (2 * lam * n), 2 * (1 + np.sqrt(2)), np.log(np.e / delta)
    expected = 12 * np.sqrt(2) * np.e * beta * np.log2(n) * log + 4 * np.e * xi * np.sqrt(log / n)
    assert task_generalization_bound(0.0, n, lam, form="sharp") == pytest.approx(expected, rel=1e-12)
    assert task_generalization_bound(0.0, 10 * n, lam, form="sharp") < expected


def test_lt_e_31_the_tight_lipschitz_constant_makes_the_stability_four_times_smaller():
    tight, printed = (task_generalization_bound(0.0, 10**9, 1e-3, form=form) for form in ("tight", "thesis"))
    assert task_stability(10, 1.0) == pytest.approx((2 / 2) ** 2 / 20)
    assert printed > 2.5 * tight


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_lt_e_32_and_33_the_sampling_error_is_below_the_safe_bound(m):
    """B-22, against 400 Gauss–Legendre levels."""
    X, y = rows(40, 2)
    function = fitted(PINBALL, X, y)
    sampled, reference = sobol(m, scramble=False), gauss_legendre(400)
    risks = [
        IntegralLoss(Pinball(), measure).value(function(X, measure.nodes), y).mean() for measure in (sampled, reference)
    ]
    bound = task_sampling_bound(star_discrepancy(sampled), HALF, slope=1 / 0.4)
    assert (risks[0] - risks[1]).abs().item() <= bound


def test_lt_e_32_sums_of_square_roots_of_cells_are_not_bounded():
    for p in (4, 100):
        assert np.sqrt(np.full(p, 1 / p)).sum() == pytest.approx(np.sqrt(p))


def test_task_bounds_reject_invalid_options():
    for call in (
        lambda: task_stability(0, 1.0),
        lambda: task_stability(5, -1.0),
        lambda: task_value_bound(1.0, loss="square"),
        lambda: task_generalization_bound(0.1, 5, 1.0, form="loose"),
        lambda: task_generalization_bound(0.1, 5, 1.0, delta=2.0),
        lambda: task_sampling_bound(-1.0, 1.0),
    ):
        with pytest.raises(OptionError):
            call()
