"""Alternating directions: the solution is a fixed point, and every look has both sides of the gap."""

from dataclasses import replace

import pytest
import torch
from loss_cases import normal
from task_cases import NAMES, M, N, case, loss_on, own_nodes
from tqdm import tqdm

from ovkgp.inference.tasks.solvers import admm as module
from ovkgp.inference.tasks.solvers.admm import DenseStep, KroneckerStep, Splitting, is_entrywise, ridge_step
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import observed
from ovkgp.losses import CurveEnvelope, CurveHuber, IntegralLoss, Pinball, gauss_legendre

BAR = tqdm(disable=True)
SEEN = normal(N, M, seed=4) > -0.5


def masked(name):
    return replace(case(name), loss=loss_on(name, observed(gauss_legendre(M), SEEN)))


def begin(problem, tolerance=1e-6, slopes=None, weights=None) -> Splitting:
    certificate = Certificate(problem, tolerance, max_iter=10_000)
    found = certificate.look_at(certificate.weights if weights is None else weights)
    return Splitting(
        ridge_step(problem), certificate, found if slopes is None else slopes, problem.values(certificate.weights)
    )


def test_losses_that_act_entry_by_entry_are_known():
    measure = gauss_legendre(M)
    integral, curve = IntegralLoss(Pinball(), measure), CurveHuber(1.0, 2, measure)
    assert is_entrywise(integral) and is_entrywise(CurveEnvelope(integral, 0.1))
    assert not is_entrywise(curve) and not is_entrywise(CurveEnvelope(curve, 0.1))


def test_step_is_the_fastest_that_fits(monkeypatch):
    """Kronecker for shared nodes, even with holes where the loss acts entry by entry; dense else, while that fits."""
    assert isinstance(ridge_step(case("curve_huber_2")), KroneckerStep)
    assert isinstance(ridge_step(masked("pinball")), KroneckerStep)
    assert isinstance(ridge_step(masked("curve_huber_2")), DenseStep)
    assert isinstance(ridge_step(case("pinball", own_nodes())), DenseStep)
    monkeypatch.setattr(module, "DENSE_COORDINATES", 10)
    assert ridge_step(case("pinball", own_nodes())) is None


@pytest.mark.parametrize("make", [case, masked, lambda name: case(name, own_nodes())], ids=["shared", "holes", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_a_few_rounds_come_near_and_the_gap_is_never_negative(name, make):
    problem = make(name)
    splitting = begin(problem, tolerance=1e-3)
    splitting.run(200, BAR)
    certificate = splitting.certificate
    assert certificate.done
    least = solve_primal(problem).objective
    assert certificate.lower <= least * (1 + 1e-12) and certificate.objective >= least * (1 - 1e-6)
    # slopes are those of the loss at U: feasible, and equal there in Fenchel's inequality
    loss, S, U = problem.loss, splitting.slopes, splitting.U
    young = loss.value(U, problem.targets) + loss.conjugate(loss.nearest_slope(S, problem.targets), problem.targets)
    torch.testing.assert_close(young, (loss.weights * S * U).sum(-1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", [case, masked, lambda name: case(name, own_nodes())], ids=["shared", "holes", "own"])
@pytest.mark.parametrize(
    "name", ["square", "pinball", "hinge", "insensitive", "curve_huber_inf", "curve_insensitive_2"]
)
def test_solution_is_a_fixed_point(name, make):
    """B-05, for the iteration: from W and the slopes of the solution nothing moves."""
    problem = make(name)
    solution = solve_primal(problem, tolerance=1e-13)
    splitting = begin(problem, slopes=-solution.dual, weights=solution.weights)
    splitting.U = problem.values(solution.weights)
    for _ in range(5):
        H, moved = splitting._advance()
    size = problem.values(solution.weights).abs().max()
    weighed = problem.entry_weights > 0
    assert (H - problem.values(solution.weights)).abs().max() < 2e-6 * size
    assert moved[weighed].abs().max() < 2e-6 * size
    assert (splitting.slopes + solution.dual)[weighed].abs().max() < 2e-5


def test_entries_without_weight_have_no_slope():
    splitting = begin(masked("pinball"))
    splitting.run(20, BAR)
    assert (splitting.slopes[~SEEN] == 0).all()
    assert (splitting.T[~SEEN] == 0).all()


def test_kappa_changes_at_first_only(monkeypatch):
    """An iteration whose κ goes on changing need not converge."""
    calls = []
    monkeypatch.setattr(Splitting, "_balance", lambda self, H, moved: calls.append(self.certificate.steps))
    begin(case("hinge", lam=1e-4), tolerance=1e-14).run(400, BAR)
    assert calls == list(range(10, module.ADAPT_UNTIL + 1, module.LOOK_EVERY))


def test_a_change_of_kappa_leaves_the_slopes():
    splitting = begin(case("pinball", lam=1e-4), tolerance=1e-14)
    H, moved = splitting._advance()
    before = splitting.kappa
    splitting._balance(H + 100.0, 1e-3 * moved)  # values far apart, and U at rest: κ must fall
    assert splitting.kappa < before
    torch.testing.assert_close(splitting.T, splitting.kappa * splitting.share * splitting.slopes)


def test_a_gap_that_falls_no_more_ends_the_run():
    assert module._stalls([1.0] * 12, budget=30)
    assert not module._stalls([0.5**k for k in range(12)], budget=30)
    assert not module._stalls([1.0] * 9, budget=30)


def test_targets_of_zero_have_a_first_kappa():
    problem = replace(case("square"), targets=torch.zeros(N, M).double())
    assert begin(problem).kappa == pytest.approx(module.FIRST_KAPPA)
