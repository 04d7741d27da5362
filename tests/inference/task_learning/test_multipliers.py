"""Newton steps on Moreau envelopes: F, its gradient and curvature against differences, and the last digits of the gap."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import NAMES, M, N, case, loss_on, own_nodes
from tqdm import tqdm

from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.admm import Splitting, ridge_step
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import Curvature, Multipliers, solve_primal
from ovkgp.inference.tasks.solvers.square import observed
from ovkgp.losses import CurveEnvelope, IntegralLoss, Pinball, gauss_legendre, grid

BAR = tqdm(disable=True)


def rough(problem, rounds=10, tolerance=1e-6) -> Splitting:
    """Where a splitting is after a few rounds."""
    certificate = Certificate(problem, tolerance)
    slopes = certificate.look_at(certificate.weights)
    splitting = Splitting(ridge_step(problem), certificate, slopes, problem.values(certificate.weights))
    splitting.run(rounds, BAR)
    return splitting


def multipliers_at(name, nodes=None, kappa=0.3):
    splitting = rough(case(name, nodes))
    found = Multipliers(splitting, splitting.certificate)
    found.kappa = kappa
    return found, 0.1 * normal(*found.problem.shape, seed=1)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_f_is_the_envelope_at_moved_values(name, nodes):
    """F(W) = (1/n) Σ s [e_κ(H + κS)] + (λ/2)‖W‖², and its gradient that of automatic differentiation (LT-11)."""
    found, W = multipliers_at(name, nodes)
    problem, kappa = found.problem, found.kappa
    envelope = CurveEnvelope(problem.loss, kappa)
    W = W.requires_grad_()
    value = problem.risk(problem.values(W) + kappa * found.slopes, envelope) + problem.lam / 2 * W.square().sum()
    (gradient,) = torch.autograd.grad(value, W)
    place = found._look(W.detach())
    assert place.value == pytest.approx(value.item(), rel=1e-10)
    torch.testing.assert_close(place.gradient, gradient, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_curvature_is_the_difference_of_gradients(name, nodes):
    found, W = multipliers_at(name, nodes)
    direction, step = normal(*W.shape, seed=2), 1e-6
    place = found._look(W)
    product = found._curvature(place).apply(direction)
    difference = (found._look(W + step * direction).gradient - place.gradient) / step
    # a kink that lies between the two points is seen by one side only
    torch.testing.assert_close(product, difference, rtol=1e-2, atol=2e-2 * product.abs().max().item())


@pytest.mark.parametrize("name", ["curve_insensitive_1", "curve_huber_inf", "curve_huber_2"])
def test_curvatures_of_coupled_losses_are_positive(name):
    """Differences across a kink are not, and a Newton system without a factor would be the end."""
    found, W = multipliers_at(name)
    blocks = found._curvature(found._look(10 * W)).blocks
    assert torch.linalg.eigvalsh(blocks).min() >= -1e-12 * blocks.abs().max()
    tiny = solve_primal(case(name, lam=1e-7))
    assert tiny.gap <= 1e-6 * tiny.objective


@pytest.mark.parametrize("name", NAMES)
def test_last_digits_are_a_few_newton_steps(name):
    problem = case(name, lam=1e-3)
    splitting = rough(problem, rounds=30, tolerance=1e-11)
    certificate = splitting.certificate
    certificate.steps = 0
    Multipliers(splitting, certificate).run(BAR)
    assert certificate.done
    assert certificate.steps <= 60
    assert certificate.gap <= 1e-11 * certificate.objective


def test_a_newton_step_is_dearer_where_more_entries_lie_on_a_kink():
    prices = []
    for lam in (1.0, 1e-2, 1e-5):
        splitting = rough(case("pinball", lam=lam), rounds=100, tolerance=1e-12)
        prices.append(Multipliers(splitting, splitting.certificate).price())
    assert 0 <= prices[0] < prices[1] < prices[2]


def test_holes_and_unequal_rows_make_no_difference():
    measure = observed(gauss_legendre(M), normal(N, M, seed=4) > -0.5)
    problem = replace(
        case("pinball"), loss=loss_on("pinball", measure), row_weights=torch.linspace(0.1, 2.0, N).double()
    )
    solution = solve_primal(problem, tolerance=1e-11)
    assert solution.gap <= 1e-11 * solution.objective


def test_a_step_that_lowers_nothing_is_not_taken():
    found, W = multipliers_at("huber")
    place = found._look(W)
    assert found._search(place, place.gradient) is None  # uphill
    down = found._search(place, -place.gradient)
    assert down.value < place.value


def test_newton_steps_stop_at_the_limit_of_steps():
    splitting = rough(case("pinball", lam=1e-4), rounds=10, tolerance=1e-12)
    certificate = splitting.certificate
    certificate.max_iter = certificate.steps + 3
    Multipliers(splitting, certificate).run(BAR)
    assert certificate.steps == certificate.max_iter
    assert not certificate.done


def test_rounding_ends_the_search_and_is_said():
    """A tolerance beyond float64: it gives up rather than turn in circles."""
    splitting = rough(case("log_cosh"), rounds=30, tolerance=1e-18)
    certificate = splitting.certificate
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Multipliers(splitting, certificate).run(BAR)
    assert certificate.stuck or certificate.done
    assert certificate.gap <= 1e-13 * certificate.objective


def test_systems_are_those_of_the_moved_coordinates():
    """A Newton step in the diagonal coordinates is that of the problem's own."""
    problem = replace(case("square"), row_weights=torch.linspace(0.1, 2.0, N).double())
    splitting = rough(problem)
    found = Multipliers(splitting, splitting.certificate)
    place = found._look(found.weights)
    step = splitting.step.back(found._curvature(place).solve(place.gradient, found.gram))
    own = Curvature(problem, found._curvature(place).entries)
    torch.testing.assert_close(own.apply(step), splitting.step.back(place.gradient), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("lam", [1e-6, 1e-8])
def test_a_step_that_lambda_alone_would_send_too_far_is_damped(lam):
    """Few coordinates, many rows and hardly a penalty: where no entry bends, λ is the whole Hessian."""
    rng = np.random.default_rng(0)
    x, weights = rng.uniform(-1, 1, 200), torch.from_numpy(rng.exponential(size=200))
    inputs = torch.from_numpy(np.stack([np.ones(200), x], 1))
    y, loss = torch.from_numpy(x + rng.standard_normal(200))[:, None], IntegralLoss(Pinball(), grid([0.25, 0.5, 0.75]))
    solution = solve_primal(TaskProblem(inputs, torch.eye(3).double(), y, loss, lam, weights))
    assert solution.report.converged and solution.gap <= 1e-6 * solution.objective
