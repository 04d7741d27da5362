"""Tests of `ovkgp.features.bounds.tasks`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import OptionError
from ovkgp.features.bounds import (
    task_generalization_bound,
    task_loss_bound,
    task_sampling_bound,
    task_stability,
    task_value_bound,
)
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import CostSensitiveHinge, IntegralLoss, Pinball, gauss_legendre, sobol, star_discrepancy

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


def test_sampling_bound_is_as_stated():
    B, lam, kappa_x, kappa_task, slope = 3.0, 0.2, 1.5, 0.7, 2.5
    given = {"target": B, "kappa_x": kappa_x, "kappa_task": kappa_task, "slope": slope}
    expected = 0.1 * (B + kappa_x * np.sqrt(B / lam) * (kappa_task + slope))
    assert task_sampling_bound(0.1, lam, **given) == pytest.approx(expected, rel=1e-12)


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
