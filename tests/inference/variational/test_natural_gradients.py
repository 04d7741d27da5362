"""Tests of `ovkgp.inference.variational.natural_gradients`."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.optimize import minimize
from torch.distributions import MultivariateNormal, kl_divergence

from ovkgp.exceptions import FactorizationError
from ovkgp.features import ORFF
from ovkgp.inference.variational.bound import RowChunks, VariationalBound
from ovkgp.inference.variational.families import WeightGaussian, leading_frame, prior_weights
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.inference.variational.natural_gradients import (
    MAX_MIXED_TARGETS,
    AndersonMixing,
    Target,
    compute_slopes,
    maximize_bound,
    natural_step,
    rotate_to_eigenbasis,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(likelihood, n=20, p=2, frequencies=4, missing=0.2, map_kind="icm"):
    X = normal(n, 2)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), p, rank=min(p, 2)).double()
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double() if map_kind == "curl-free" else kernel
    latent = 1.5 * X[:, :1].sin() + 0.3 * normal(n, p, seed=1)
    Y = {
        "bernoulli": (latent > 0).double(),
        "poisson": latent.exp().round(),
        "student_t": latent + 8 * (torch.arange(n) == 3).double().unsqueeze(-1),
        "softmax": torch.nn.functional.one_hot(latent.argmax(1), p).double(),
    }.get(likelihood, latent)
    hidden = torch.rand(n, p, generator=torch.Generator().manual_seed(2)) < missing
    Y[hidden if likelihood != "softmax" else hidden[:, :1].expand(n, p)] = torch.nan
    gp = VariationalGP(kernel, likelihood, features=ORFF(kernel, frequencies, random_state=0)).requires_grad_(False)
    bound = VariationalBound(gp.features, gp.mean, gp.likelihood, gp.observe(X, Y))
    return bound, RowChunks(bound)


def dense_bound(bound, chunks, mean, chol):
    """The bound of q = N(mean, chol cholᵀ), written out."""
    (chunk,) = chunks.cached
    Phi, S = chunk.rows.dense(), chol @ chol.mT
    covariance = Phi @ S @ Phi.mT
    covariance = covariance if bound.form == "output" else covariance.diagonal(dim1=-2, dim2=-1)
    expected = bound.likelihood.expected(chunk.Y, chunk.prior + Phi @ mean, covariance, chunk.noise).sum()
    logs = 2 * chol.diagonal().abs().log().sum()
    return expected - (S.trace() + mean @ mean - len(mean) - logs) / 2


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson", "student_t", "softmax"])
def test_compute_slopes_equals_gradients_of_the_expected_log_likelihood(likelihood):
    bound, chunks = problem(likelihood)
    (chunk,) = chunks.cached
    r = chunk.rows.num_weights
    root = 0.3 * normal(r, r, seed=5) + torch.eye(r)
    mean, S = (0.3 * normal(r, seed=6)).requires_grad_(), (root @ root.mT).requires_grad_()
    Phi = chunk.rows.dense()
    covariance = Phi @ S @ Phi.mT
    covariance = covariance if bound.form == "output" else covariance.diagonal(dim1=-2, dim2=-1)
    value = bound.likelihood.expected(chunk.Y, chunk.prior + Phi @ mean, covariance, chunk.noise).sum()
    by_mean, by_S = torch.autograd.grad(value, (mean, S))
    chol = torch.linalg.cholesky(torch.linalg.inv(S.detach()))
    found = compute_slopes(
        WeightGaussian(mean.detach(), torch.ones(r).double(), chol), [chunk], bound.likelihood, bound.form
    )
    torch.testing.assert_close(found.value, value.detach())
    torch.testing.assert_close(found.gradient, by_mean)
    torch.testing.assert_close(found.block, -(by_S + by_S.mT), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("map_kind", ["icm", "curl-free"])
def test_id_4_natural_step_is_the_posterior_of_the_weights(map_kind):
    bound, chunks = problem("gaussian", map_kind=map_kind)
    (chunk,) = chunks.cached
    r, noise = chunk.rows.num_weights, bound.likelihood.noise
    initial = WeightGaussian(normal(r, seed=3), torch.ones(r).double(), 2 * torch.eye(r).double())
    q = natural_step(initial, compute_slopes(initial, chunks.cached, bound.likelihood, bound.form), 1.0)
    observed = ~torch.isnan(chunk.Y)
    Phi, y = chunk.rows.dense()[observed], (chunk.Y - chunk.prior)[observed]
    weight = (1 / noise).expand(chunk.Y.shape)[observed]
    precision = torch.eye(r) + Phi.mT * weight @ Phi
    torch.testing.assert_close(q.chol @ q.chol.mT, precision)
    torch.testing.assert_close(q.mean, torch.linalg.solve(precision, Phi.mT @ (weight * y)))
    again = maximize_bound(initial, bound, chunks)
    torch.testing.assert_close(again.mean, q.mean)


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "student_t", "softmax"])
def test_maximize_bound_agrees_with_a_general_optimizer(likelihood):
    bound, chunks = problem(likelihood, n=12, frequencies=1)
    r = chunks.cached[0].rows.num_weights
    q = maximize_bound(prior_weights(r, r), bound, chunks)
    best = float(bound.value(q))
    lower = torch.tril_indices(r, r)

    def objective(vector):
        vector = torch.tensor(vector, requires_grad=True)
        chol = torch.zeros(r, r).double().index_put(tuple(lower), vector[r:])
        value = -dense_bound(bound, chunks, vector[:r], chol)
        (gradient,) = torch.autograd.grad(value, vector)
        return value.item(), gradient.numpy()

    S = torch.linalg.inv(q.chol @ q.chol.mT)
    initial = np.concatenate([np.zeros(r), (0.5 * torch.eye(r))[tuple(lower)].numpy()])
    found = minimize(objective, initial, jac=True, method="BFGS", options={"gtol": 1e-8, "maxiter": 2000})
    assert abs(-found.fun - best) < 1e-6 * max(abs(best), 1)
    here = torch.cat([q.mean, torch.linalg.cholesky(S)[tuple(lower)]]).numpy()
    assert np.abs(objective(here)[1]).max() < 2e-4  # the gain of the last step is below 1e-11 per entry: its root


@pytest.mark.parametrize("likelihood", ["bernoulli", "student_t"])
def test_maximize_bound_grows_with_the_rank_up_to_the_full_family(likelihood):
    bound, chunks = problem(likelihood, n=30, frequencies=3)
    r = chunks.cached[0].rows.num_weights
    levels = []
    for rank in (0, 3, 6, 9, r):
        levels.append(float(bound.value(best_q(prior_weights(r, rank), bound, chunks))))
    assert all(after >= before - 1e-8 for before, after in pairwise(levels))
    full = float(bound.value(maximize_bound(prior_weights(r, r), bound, chunks)))
    assert abs(levels[-1] - full) < 1e-8 and levels[0] < full - 1e-4


def best_q(q, bound, chunks):
    """Maximize the bound in an eigenbasis at the curvatures of q."""
    for _ in range(2):
        q = maximize_bound(rotate_to_eigenbasis(q, bound, chunks), bound, chunks)
    return q


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson", "student_t"])
def test_low_rank_family_recovers_most_of_the_mean_field_loss(likelihood):
    bound, chunks = problem(likelihood, n=60, frequencies=15)
    r = chunks.cached[0].rows.num_weights
    mean_field, low_rank, full = (
        float(bound.value(best_q(prior_weights(r, rank), bound, chunks))) for rank in (0, r // 6, r)
    )
    assert mean_field < full - 0.02
    assert full - low_rank < 0.4 * (full - mean_field)


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson"])
def test_bt_76_mean_field_of_one_output_is_exact_at_the_curvatures_of_its_basis(likelihood):
    """U weights rows by their curvatures: the precision of one output is diagonal there, as long as none is
    negative."""
    bound, chunks = problem(likelihood, n=40, p=1, frequencies=6, missing=0.0)
    r = chunks.cached[0].rows.num_weights
    full = float(bound.value(maximize_bound(prior_weights(r, r), bound, chunks)))
    once = float(bound.value(maximize_bound(rotate_to_eigenbasis(prior_weights(r, 0), bound, chunks), bound, chunks)))
    twice = float(bound.value(best_q(prior_weights(r, 0), bound, chunks)))
    assert once < full - 1e-3  # in the basis of the prior's curvatures
    assert full - twice < 1e-2 * (full - once)


def test_maximize_bound_is_stationary_for_families_that_are_not_full():
    bound, chunks = problem("poisson", n=30, frequencies=3)
    q = best_q(prior_weights(12, 4), bound, chunks)
    found, (on_diagonal, on_block) = compute_slopes(q, chunks.rotate(q.basis), bound.likelihood, bound.form), q.prior
    assert (found.gradient - q.mean).abs().max() < 1e-5
    outside = [i for i in range(12) if i not in q.index.tolist()]
    assert (on_diagonal + found.diagonal - q.precision)[outside].abs().max() < 1e-4
    assert (on_block + found.block - q.chol @ q.chol.mT).abs().max() < 1e-4


def test_maximize_bound_of_a_low_rank_q_is_a_maximum_within_the_family():
    bound, chunks = problem("poisson", n=30, frequencies=3)
    q = best_q(prior_weights(12, 4), bound, chunks)
    level, basis = float(bound.value(q)), torch.kron(*(part.contiguous() for part in q.basis))
    S = basis @ torch.stack([q.solve(unit) for unit in torch.eye(12).double()]) @ basis.mT
    dense = float(dense_bound(bound, chunks, basis @ q.mean, torch.linalg.cholesky(S)))
    assert abs(dense - level) < 1e-8
    for seed in range(10):
        root = torch.eye(4) + 0.03 * normal(4, 4, seed=seed).tril()
        other = replace(q, precision=q.precision * (0.03 * normal(12, seed=seed + 10)).exp(), chol=q.chol @ root)
        assert float(bound.value(other)) < level
        assert float(bound.value(q.move_mean(0.01 * normal(12, seed=seed)))) < level


def test_maximize_bound_takes_smaller_steps_at_negative_curvature():
    bound, chunks = problem("student_t", n=20)
    bound.likelihood._set_value("scale", 0.05)
    r = chunks.cached[0].rows.num_weights
    sharp = WeightGaussian(torch.zeros(r).double(), torch.ones(r).double(), 100 * torch.eye(r).double())
    found = compute_slopes(sharp, chunks.cached, bound.likelihood, bound.form)
    assert torch.linalg.eigvalsh(found.block + torch.eye(r))[0] < 0  # a full step would not be positive definite
    with pytest.raises(FactorizationError):
        natural_step(sharp, found, 1.0)
    before = float(bound.value(sharp))
    assert float(bound.value(maximize_bound(sharp, bound, chunks))) > before
    clamped = compute_slopes(sharp, chunks.cached, bound.likelihood, bound.form, clamped=True)
    assert torch.linalg.eigvalsh(clamped.block)[0] > -1e-8
    natural_step(sharp, clamped, 1.0)


def test_maximize_bound_takes_few_steps_for_separable_labels(monkeypatch):
    """132 steps without mixing: full ones overshoot in some directions, small ones are slow in the others."""
    from ovkgp.inference.variational import natural_gradients

    X = normal(80, 2)
    labels = (torch.stack([X[:, 0].sin(), X[:, 1], X.sum(1).cos()], 1) > 0).double()
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), 3, rank=2).double()
    gp = VariationalGP(kernel, "bernoulli", inducing=X[:20], mean="zero").requires_grad_(False)
    gp.kernel.base_kernel.lengthscale = 1.0
    gp.kernel.output_module.loadings.mul_(10)
    data = gp.observe(X, labels)
    bound, calls = VariationalBound(gp.features, gp.mean, gp.likelihood, data), []
    monkeypatch.setattr(natural_gradients, "compute_slopes", lambda *a, **k: calls.append(1) or compute_slopes(*a, **k))
    natural_gradients.maximize_bound(prior_weights(60, 60), bound, RowChunks(bound))
    assert len(calls) < 30


def test_maximize_bound_rejects_a_bound_that_is_not_finite():
    bound, chunks = problem("poisson")
    (chunk,) = chunks.cached
    chunk.prior.fill_(1e4)
    with pytest.raises(FactorizationError, match="not finite"):
        maximize_bound(prior_weights(chunk.rows.num_weights, 0), bound, chunks)


def test_anderson_mixing_solves_a_linear_map_in_as_many_steps_as_eigenvalues():
    q, rates, maximum = prior_weights(4, 0), torch.tensor([-5.0, 0.9, -5.0, 0.9]).double(), normal(4)
    mixing, block = AndersonMixing(), q.chol
    for _ in range(4):
        mixing.add(q, Target(q.precision, block, maximum + rates * (q.mean - maximum)))
        q = mixing.mixed_target(q) or q.move_mean(0.1 * (mixing.targets[-1].mean - q.mean))
    torch.testing.assert_close(q.mean, maximum, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_anderson_mixing_decrement_is_the_divergence_of_a_small_step(rank):
    C = torch.eye(5).double() + 0.3 * torch.ones(5, 5)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank) if 0 < rank < 5 else None
    root = torch.eye(rank).double() + 0.3 * normal(rank, rank).tril(-1)
    q = WeightGaussian(normal(5), 1 + normal(5, seed=1).square(), root, frame=frame)
    move = 1e-4 * normal(rank, rank, seed=2)
    target = Target(
        q.precision + 1e-4 * normal(5, seed=3), root @ root.mT + move + move.mT, q.mean + 1e-4 * normal(5, seed=4)
    )
    mixing = AndersonMixing()
    mixing.add(q, target)
    other = q.move_precision(target.diagonal, target.block, 1.0).move_mean(target.mean - q.mean)
    dense = [MultivariateNormal(one.mean, _covariance(one)) for one in (q, other)]
    torch.testing.assert_close(mixing.decrement, kl_divergence(*dense), rtol=1e-3, atol=1e-12)


def _covariance(q):
    S = torch.stack([q.solve(unit) for unit in torch.eye(q.num_weights).double()])
    return (S + S.mT) / 2


def test_anderson_mixing_keeps_a_limited_number_of_targets():
    mixing, q = AndersonMixing(), prior_weights(3, 0)
    assert mixing.mixed_target(q) is None
    for seed in range(MAX_MIXED_TARGETS + 2):
        mixing.add(q, Target(q.precision, q.chol, normal(3, seed=seed)))
    assert len(mixing.targets) == len(mixing.residuals) == MAX_MIXED_TARGETS
    mixing.discard(kept=1)
    torch.testing.assert_close(mixing.targets[0].mean, normal(3, seed=MAX_MIXED_TARGETS + 1))
    assert mixing.mixed_target(q) is None
    mixing.discard()
    assert not mixing.targets and not mixing.residuals


def test_anderson_mixing_rejects_a_precision_that_is_not_positive():
    mixing, q = AndersonMixing(), prior_weights(1, 0)
    for precision, target in (
        (1.0, 0.5),
        (10.0, 1.0),
    ):  # relative residuals −0.5 and −0.9: their mixture is zero at −0.125
        q = WeightGaussian(q.mean, torch.tensor([precision]).double(), q.chol)
        mixing.add(q, Target(torch.tensor([target]).double(), q.chol, q.mean))
    with pytest.raises(FactorizationError, match="positive definite"):
        mixing.mixed_target(q)
