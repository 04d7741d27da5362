"""Tests of `ovkgp.inference.ridge.descent`."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from gp_cases import close
from gpytorch.kernels import RBFKernel
from linear_operator import to_dense

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import ORFF, BlockedORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.ridge import descent
from ovkgp.inference.ridge.descent import Sweeps, doubly_stochastic_weights
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

NOISE = 0.5


def data(n=60, p=2, missing=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=generator).double()
    Y = X.sin()[:, :p] + 0.3 * torch.randn(n, p, generator=generator).double()
    Y[torch.rand(n, p, generator=generator) < missing] = torch.nan
    return X, Y


def model(num_frequencies=12, block_size=4, kernel=None, noise=NOISE):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2) if kernel is None else kernel
    blocked = BlockedORFF(kernel, num_frequencies, block_size, random_state=0)
    return OperatorValuedGP(kernel, "zero", noise, features=blocked)


def weights(gp, X, Y, **options):
    return doubly_stochastic_weights(gp.frozen().model, gp.observe(X, Y), **options).solution


def exact(gp, X, Y):
    return solve_ridge(gp, X, Y, solver="closed_form").weights


def dense(gp, X):
    return to_dense(gp.features(X)).detach().numpy()


def errors(found, expected):
    return (found - expected).norm().item() / expected.norm().item()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("noise", [NOISE, [[0.5, 0.2], [0.2, 0.4]]])
def test_id_19_one_step_on_all_rows_and_features_is_the_closed_form(missing, noise):
    X, Y = data(missing=missing)
    gp = model(block_size=12, noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = weights(gp, X, Y, max_iter=1)
    close(found, exact(gp, X, Y), 1e-10)


def test_feature_map_without_blocks_is_one_block():
    X, Y = data()
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2))
    gp = OperatorValuedGP(kernel, "zero", NOISE, features=ORFF(kernel, 12, random_state=0))
    close(weights(gp, X, Y, max_iter=1), exact(gp, X, Y), 1e-10)


@pytest.mark.parametrize("kernel", [None, CurlFreeKernel(RBFKernel(ard_num_dims=2))])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_all_rows_reach_the_closed_form(kernel, missing):
    X, Y = data(missing=missing)
    gp = model(kernel=kernel)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        found = weights(gp, X, Y)
    close(found, exact(gp, X, Y), 1e-6)


def test_steps_are_block_gauss_seidel():
    X, Y = data()
    gp = model()
    Phi, y = dense(gp, X), Y.numpy().ravel()
    theta = np.zeros(Phi.shape[1])
    for t in range(7):
        block = gp.features.columns(t % 3).numpy()
        P = Phi[:, block]
        others = y - Phi @ theta + P @ theta[block]
        theta[block] = np.linalg.solve(P.T @ P + NOISE * np.eye(len(block)), P.T @ others)
    with pytest.warns(FitWarning):
        close(weights(gp, X, Y, max_iter=7, learning_rate=lambda t: 1.0), theta, 1e-10)


def test_steps_without_preconditioning_are_algorithm_4():
    """θ_i ← θ_i − γ ((1/n) Σ Φ_iᵀ (h − y) + λ θ_i) with λ = σ²/n, and the same 1/√D in h as in the gradient (BT-E-36)."""
    X, Y = data()
    gp = model()
    Phi, y, lam = dense(gp, X), Y.numpy().ravel(), NOISE / len(X)
    theta = np.zeros(Phi.shape[1])
    for t in range(1, 9):
        block = gp.features.columns((t - 1) % 3).numpy()
        gradient = Phi[:, block].T @ (Phi @ theta - y) / len(X) + lam * theta[block]
        theta[block] -= 0.7 / t * gradient
    with pytest.warns(FitWarning):
        options = {"max_iter": 8, "preconditioned": False, "learning_rate": lambda t: 0.7 / t}
        close(weights(gp, X, Y, **options), theta, 1e-10)


@pytest.mark.filterwarnings("ignore:solver=.doubly_sgd:ovkgp.exceptions.FitWarning")  # few iterations
@pytest.mark.slow
def test_steps_without_preconditioning_reach_the_closed_form():
    X, Y = data()
    gp = model(noise=20.0)
    close(weights(gp, X, Y, preconditioned=False), exact(gp, X, Y), 1e-6)
    rate = {"preconditioned": False, "learning_rate": lambda t: 30 / (30 + t)}
    assert errors(weights(gp, X, Y, batch_size=20, max_iter=300, **rate), exact(gp, X, Y)) < 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver=.doubly_sgd:ovkgp.exceptions.FitWarning")  # few iterations
def test_batch_error_falls_with_the_root_of_the_iterations():
    """γ_t = 1/t on one block: the variance of a mean of t independent batches, and no bias is left."""
    X, Y = data()
    gp = model(block_size=12)
    expected = exact(gp, X, Y)

    def error(num):
        runs = [
            weights(gp, X, Y, batch_size=20, max_iter=num, learning_rate=lambda t: 1 / t, random_state=seed)
            for seed in range(3)
        ]
        return np.sqrt(np.mean([errors(run, expected) ** 2 for run in runs]))

    early, late = error(15), error(240)
    assert late < 0.06
    assert 2.0 < early / late < 8.0  # 4 = √16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:solver=.doubly_sgd:ovkgp.exceptions.FitWarning")  # few iterations
def test_default_rate_converges_over_blocks():
    X, Y = data()
    gp = model(noise=5.0)
    expected = exact(gp, X, Y)
    few, many = (weights(gp, X, Y, batch_size=20, max_iter=num, random_state=0) for num in (9, 1200))
    assert errors(many, expected) < 0.1 < errors(few, expected)


@pytest.mark.parametrize("noise", [5.0, 0.5])
@pytest.mark.parametrize("preconditioned", [True, False])
def test_batches_reach_the_closed_form_by_default(noise, preconditioned):
    X, Y = data()
    gp = model(noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        found = weights(gp, X, Y, batch_size=10, preconditioned=preconditioned, random_state=0)
    close(found, exact(gp, X, Y), 1e-6)


@pytest.mark.parametrize("options", [{"max_iter": 40}, {"learning_rate": lambda t: 1 / t}])
def test_batches_report_the_measured_error_if_they_have_not_converged(options):
    X, Y = data()
    gp = model()
    with pytest.warns(FitWarning, match=r"doubly_sgd.*residual of .*Increase max_iter") as caught:
        found = weights(gp, X, Y, batch_size=10, random_state=0, **options)
    Phi, y = dense(gp, X) / np.sqrt(NOISE), Y.numpy().ravel() / np.sqrt(NOISE)
    gradient = found.numpy() - Phi.T @ (y - Phi @ found.numpy())
    expected = np.linalg.norm(gradient) / min(np.linalg.norm(Phi.T @ y), np.linalg.norm(y))
    assert f"residual of {expected:.1e}" in str(caught[0].message)
    assert errors(found, exact(gp, X, Y)) > 1e-3


@pytest.mark.filterwarnings("ignore:solver=.doubly_sgd:ovkgp.exceptions.FitWarning")  # few iterations
def test_batches_reproduce_bit_for_bit_and_touch_no_global_state():
    X, Y = data()
    gp, before = model(noise=5.0), torch.get_rng_state()
    runs = [weights(gp, X, Y, batch_size=10, max_iter=12, random_state=seed) for seed in (3, 3, 4)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert torch.equal(before, torch.get_rng_state())


def test_descent_stops_if_the_gradient_does_not_halve(monkeypatch):
    monkeypatch.setattr(descent, "PATIENCE_SWEEPS", 5)
    gp, (X, Y) = model(), data()
    with pytest.warns(FitWarning, match="residual"):
        found = doubly_stochastic_weights(
            gp.frozen().model, gp.observe(X, Y), learning_rate=lambda t: 1e-9, max_iter=300
        )
    assert found.num_iterations == 2 * 5 * 3  # the gradient of sweep 10 is that of sweep 5; three blocks per sweep


def test_batch_of_all_rows_equals_no_batches():
    X, Y = data()
    gp = model()
    assert torch.equal(weights(gp, X, Y, batch_size=1000), weights(gp, X, Y))


@pytest.mark.parametrize("batch_size", [None, 20])
def test_descent_evaluates_frequencies_of_one_block_at_a_time(batch_size, monkeypatch):
    X, Y = data()
    gp, drawn, frequencies = model(num_frequencies=40), [], BlockedORFF._frequencies

    def watched(self, terms):
        found = frequencies(self, terms)
        drawn.extend(len(part) for part in found)
        return found

    monkeypatch.setattr(BlockedORFF, "_frequencies", watched)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # too few iterations
        posterior = solve_ridge(gp, X, Y, solver="doubly_sgd", batch_size=batch_size, max_iter=30)
    assert len(drawn) > 20 and max(drawn) == 4
    assert not any(getattr(posterior.feature_map, name).numel() for name in posterior.feature_map._noise_names)
    gp.features(X)
    assert max(drawn) == 40  # evaluating the whole map would be noticed


def test_descent_keeps_the_weights_after_an_interrupt(monkeypatch):
    X, Y = data()
    gp, calls, step = model(), [], descent.AllRows.step

    def interrupted(self, index, rate):
        calls.append(index)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return step(self, index, rate)

    with pytest.warns(FitWarning, match="residual"):
        expected = weights(gp, X, Y, max_iter=4)
    monkeypatch.setattr(descent.AllRows, "step", interrupted)
    with pytest.warns(FitWarning, match="interrupted at iteration 5"):
        posterior = solve_ridge(gp, X, Y, solver="doubly_sgd")
    assert torch.equal(posterior.weights, expected) and bool(expected.any())
    assert bool((posterior.predict(X).std > 0).all())


def test_descent_reports_slow_convergence_and_divergence():
    X, Y = data()
    gp = model(noise=0.01)
    with pytest.warns(FitWarning, match=r"doubly_sgd.*residual"):
        weights(gp, X, Y, max_iter=3)
    with pytest.raises(OptionError, match=r"diverged.*learning_rate"):
        weights(gp, X, Y, preconditioned=False, learning_rate=lambda t: 1e4)


def test_descent_shows_a_progress_bar(capsys):
    X, Y = data()
    weights(model(block_size=12), X, Y, verbose=1)
    assert "iteration" in capsys.readouterr().err


def test_descent_gives_zero_weights_for_zero_outputs():
    X, Y = data()
    assert not bool(weights(model(), X, 0 * Y).any())


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def test_sweeps_reach_the_minimum_after_as_many_as_unknowns():
    Psi, z = normal(0, 9, 5), normal(1, 9, 1)
    sweeps = Sweeps(torch.zeros(5).double(), z)
    for seed in range(5):
        change = normal(seed + 2, 5)
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, residual = sweeps.combine()
        torch.testing.assert_close(residual, z - (Psi @ weights).unsqueeze(-1))
    exact = torch.linalg.solve(torch.eye(5).double() + Psi.mT @ Psi, Psi.mT @ z).squeeze(-1)
    torch.testing.assert_close(weights, exact)


def test_sweeps_lower_the_objective():
    Psi, z = normal(0, 30, 20), normal(1, 30, 1)
    sweeps, values = Sweeps(torch.zeros(20).double(), z), [z.square().sum().item()]
    for seed in range(15):  # more than are stored
        change = normal(seed + 2, 20)
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, residual = sweeps.combine()
        values.append((residual.square().sum() + weights.square().sum()).item())
    assert all(after < before for before, after in pairwise(values))


def test_sweeps_accept_a_sweep_without_a_new_direction():
    Psi, z, change = normal(0, 9, 5), normal(1, 9, 1), normal(2, 5)
    sweeps = Sweeps(torch.zeros(5).double(), z)
    for _ in range(2):
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, residual = sweeps.combine()
        torch.testing.assert_close(residual, z - (Psi @ weights).unsqueeze(-1))
    sweeps.add(slice(None), 0 * change, 0 * z)
    assert torch.equal(sweeps.combine()[0], weights)
