"""Tests of `ovkgp.inference.ridge.online`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.ridge import online
from ovkgp.inference.ridge.online import (
    DenseBlocks,
    OnlineGradient,
    OnlinePosterior,
    SeparableBlocks,
    make_kernel_blocks,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, OperatorValuedKernel


def decomposable(p=2):
    matrix = torch.eye(p) + 0.5
    return DecomposableKernel(RBFKernel(), output_matrix=matrix).double().requires_grad_(False)


def curl_free():
    return CurlFreeKernel(RBFKernel(), num_dims=2).double().requires_grad_(False)


def sum_of_two():
    second = ScaleKernel(DecomposableKernel(LinearKernel(), output_matrix=torch.diag(torch.tensor([1.0, 0.0]))))
    return (decomposable() + second).double().requires_grad_(False)


def rank_one():
    return DecomposableKernel(RBFKernel(), output_matrix=torch.ones(2, 2)).double().requires_grad_(False)


class ValueAndSlope(OperatorValuedKernel):
    """A function of one column and its derivative: blocks that are not symmetric."""

    num_outputs = 2

    def forward(self, x1, x2, diag=False, **params):
        t = x1 - x2 if diag else x1 - x2.mT
        k = torch.exp(-t.square() / 2)
        if diag:
            return torch.stack([k, k * (1 - t.square())], -1).flatten(-3)
        blocks = torch.stack([k, t * k, -t * k, k * (1 - t.square())], -1).unflatten(-1, (2, 2))
        return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def value_and_slope():
    return ValueAndSlope(active_dims=(0,)).double()


KERNELS = [decomposable, curl_free, sum_of_two, rank_one, value_and_slope]


def rows(n=40, seed=0, missing=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.c_[np.sin(X[:, 0]), X[:, 1] * X[:, 0]] + 0.1 * rng.standard_normal((n, 2))
    Y[(rng.random(Y.shape) < missing) & (np.arange(2) > 0)] = np.nan
    return X, Y


def gram(kernel, X, Z):
    return to_dense(kernel(torch.from_numpy(X), torch.from_numpy(Z))).numpy()


def oracle(kernel, X, Y, lam, eta0, power):
    """Run the recursion in function space: values of f at all rows of X and their average."""
    n, p = Y.shape
    K = gram(kernel, X, X)
    norms = [np.linalg.norm(K[i * p : (i + 1) * p, i * p : (i + 1) * p], 2) for i in range(n)]
    f, average, largest = np.zeros(n * p), np.zeros(n * p), 0.0
    for t in range(n):
        at = slice(t * p, (t + 1) * p)
        largest = max(largest, norms[t])
        eta = 2 * eta0 * (t + 1) ** -power / (lam + largest)
        f = (1 - eta * lam) * f - eta * K[:, at] @ np.nan_to_num(f[at] - Y[t])
        average += (f - average) / (t + 1)
    return f.reshape(n, p), average.reshape(n, p)


def learn(learner, X, Y, size=7):
    expansion = learner.start(X.shape[1])
    for start in range(0, len(X), size):
        expansion = learner.learn(expansion, X[start : start + size], Y[start : start + size])
    return expansion


def values(kernel, X, expansion, average=False):
    coefficients = expansion.average if average else expansion.coefficients
    return (gram(kernel, X, expansion.X) @ coefficients.ravel()).reshape(len(X), -1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("power", [0.0, 0.5])
def test_online_gradient_equals_the_recursion_of_functions(kernel, power):
    kernel, (X, Y) = kernel(), rows(missing=0.2)
    learner = OnlineGradient(kernel, 2, 0.05, eta0=0.4, power=power, average=True)
    expansion = learn(learner, X, Y)
    f, average = oracle(kernel, X, Y, 0.05, 0.4, power)
    np.testing.assert_allclose(values(kernel, X, expansion), f, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(values(kernel, X, expansion, average=True), average, rtol=1e-9, atol=1e-12)
    assert expansion.error == expansion.average_error == 0.0 and expansion.num_steps == 40


def test_online_gradient_equals_one_step_by_hand():
    kernel, X, Y = decomposable(), np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    expansion = learn(OnlineGradient(kernel, 2, 0.5, eta0=0.25), X, Y)
    matrix = np.eye(2) + 0.5  # K(x, x), of norm 2
    np.testing.assert_allclose(expansion.coefficients, 0.5 / 2.5 * Y)
    np.testing.assert_allclose(values(kernel, X, expansion), 0.5 / 2.5 * Y @ matrix, atol=1e-15)
    assert expansion.norm == pytest.approx(2.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_online_gradient_merges_rows_with_the_same_input(kernel):
    kernel, (X, Y) = kernel(), rows(12)
    X, Y = np.tile(X, (3, 1)), np.tile(Y, (3, 1))
    X[5], X[17] = 0.0, -0.0  # the same input too
    expansion = learn(OnlineGradient(kernel, 2, 0.05), X, Y)
    assert len(expansion) == 13  # the input that row 5 had comes again at row 29
    np.testing.assert_allclose(
        values(kernel, X, expansion), oracle(kernel, X, Y, 0.05, 0.5, 0.5)[0], rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("eta0", [0.5, 0.9])
def test_budget_error_is_below_its_bound(kernel, average, eta0):
    kernel, (X, Y) = kernel(), rows(150, missing=0.1)
    options = dict(eta0=eta0, power=0.25, average=average)
    whole = learn(OnlineGradient(kernel, 2, 0.05, **options), X, Y)
    short = learn(OnlineGradient(kernel, 2, 0.05, budget=20, **options), X, Y)
    assert len(short) == 20 and whole.error == 0
    bound = short.average_error if average else short.error
    X_all = np.concatenate([whole.X, short.X])
    part = "average" if average else "coefficients"
    difference = np.concatenate([getattr(whole, part), -getattr(short, part)]).ravel()
    norm = np.sqrt(difference @ gram(kernel, X_all, X_all) @ difference)
    assert 0 < norm <= bound * (1 + 1e-9)
    X_new = rows(50, seed=1)[0]
    errors = values(kernel, X_new, whole, average) - values(kernel, X_new, short, average)
    largest = np.sqrt([np.linalg.norm(gram(kernel, x[None], x[None]), 2) for x in X_new])
    assert (np.linalg.norm(errors, axis=1) <= bound * largest).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_step_on_a_full_budget_loses_least(kernel):
    """The loss is the least over dropping a kept point and projecting the new one on a kept point, computed densely."""
    kernel, (X, Y) = kernel(), rows(30)
    learner = OnlineGradient(kernel, 2, 0.05, power=0.0, budget=10)
    before = learn(learner, X[:-1], Y[:-1])
    after = learner.learn(before, X[-1:], Y[-1:])
    eta, x = learner.step_size(30, after.norm), X[-1:]
    kept, new = before.coefficients * (1 - eta * 0.05), eta * (Y[-1] - values(kernel, x, before)[0])
    losses = [square(kernel, z[None], a) for z, a in zip(before.X, kept, strict=True)]
    for z in before.X[:, None]:
        u = gram(kernel, z, x) @ new
        inverse = np.linalg.pinv(gram(kernel, z, z), rcond=1e-10, hermitian=True)
        losses.append(square(kernel, x, new) - u @ inverse @ u)
    lost = after.error - before.error * (1 - eta * 0.05)
    assert lost**2 == pytest.approx(max(min(losses), 0.0), rel=1e-6, abs=1e-10)


def square(kernel, z, a):
    return a @ gram(kernel, z, z) @ a


def test_error_bound_decays_geometrically():
    """With constant steps the bound is at most the geometric series of the largest loss."""
    X, Y = rows(400)
    learner = OnlineGradient(decomposable(), 2, 0.5, power=0.0, budget=5)
    errors, expansion = [], learner.start(2)
    for x, y in zip(X, Y, strict=True):
        expansion = learner.learn(expansion, x[None], y[None])
        errors.append(expansion.error)
    shrinkage = 1 - learner.step_size(1, expansion.norm) * 0.5
    losses = np.array(errors[1:]) - shrinkage * np.array(errors[:-1])
    assert (losses > -1e-12).all() and max(errors) <= losses.max() / (1 - shrinkage)


def test_online_gradient_is_independent_of_chunks():
    for kernel in KERNELS:
        kernel, (X, Y) = kernel(), rows(60, missing=0.1)
        learner = OnlineGradient(kernel, 2, 0.01, budget=15, average=True)
        one, other = learn(learner, X, Y, 60), learn(learner, X, Y, 1)
        np.testing.assert_array_equal(one.X, other.X)
        np.testing.assert_allclose(one.coefficients, other.coefficients, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one.average, other.average, rtol=1e-9, atol=1e-12)
        assert one.error == pytest.approx(other.error, rel=1e-9)


def test_step_size_shrinks_with_a_growing_kernel():
    """A kernel that grows along the stream never makes a step unstable: f stays below the bound √κ max‖y‖ / λ."""
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(2)).double().requires_grad_(False)
    X = np.exp(np.linspace(0, 8, 300))[:, None]
    learner = OnlineGradient(kernel, 2, 0.1, eta0=1.0, power=0.0, budget=50)
    expansion = learn(learner, X, np.ones((300, 2)))
    assert np.isfinite(expansion.coefficients).all()
    assert np.abs(values(kernel, X[-1:], expansion)).max() <= expansion.norm / 0.1 * np.sqrt(2)


def test_smaller_budget_drops_points_at_once():
    kernel, (X, Y) = decomposable(), rows(30)
    before = learn(OnlineGradient(kernel, 2, 0.01), X, Y)
    after = OnlineGradient(kernel, 2, 0.01, budget=4).learn(before, X[:1], Y[:1])
    assert len(before) == 30 and len(after) == 4 and after.error > 0


def test_learn_does_not_change_the_earlier_expansion():
    kernel, (X, Y) = decomposable(), rows(30)
    learner = OnlineGradient(kernel, 2, 0.01, budget=10, average=True)
    before = learn(learner, X[:20], Y[:20])
    copies = [getattr(before, name).copy() for name in ("X", "coefficients", "average", "observed")]
    learner.learn(before, X[20:], Y[20:])
    for name, copy in zip(("X", "coefficients", "average", "observed"), copies, strict=True):
        np.testing.assert_array_equal(getattr(before, name), copy)


POSTERIOR_KERNELS = {
    "decomposable": lambda: DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2) + 0.5),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(), num_dims=2),
}


def posterior(kernel, budget=1000, missing=0.0, n=50, average=False):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.sin(X)
    Y[(rng.random(Y.shape) < missing) & (np.arange(2) > 0)] = np.nan
    gp = OperatorValuedGP(POSTERIOR_KERNELS[kernel](), mean="zero", noise=0.3)
    learner = OnlineGradient(gp.kernel, 2, 0.01, budget=budget, average=True)
    return gp, X, Y, OnlinePosterior(gp, learner.learn(learner.start(2), X, Y), average)


@pytest.mark.parametrize("kernel", POSTERIOR_KERNELS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_online_posterior_with_all_points_has_the_covariance_of_the_process(kernel, missing):
    gp, X, Y, found = posterior(kernel, missing=missing)
    exact, X_new = gp.condition(X, Y), np.random.default_rng(1).uniform(-3, 3, (9, 2))
    for form in ("diag", "output", "full"):
        one, other = found.predict(X_new, form, noise=True), exact.predict(X_new, form, noise=True)
        covariance = (one.std, other.std) if form == "diag" else (one.cov, other.cov)
        torch.testing.assert_close(*covariance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", POSTERIOR_KERNELS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_online_posterior_variance_never_falls_with_fewer_points(kernel, missing, monkeypatch):
    gp, X, Y, few = posterior(kernel, budget=12, missing=missing)
    X_new = np.random.default_rng(1).uniform(-3, 3, (40, 2))
    exact = gp.condition(X, Y).predict(X_new).std
    std = few.predict(X_new).std
    assert (std >= exact - 1e-9).all() and (std > exact + 1e-3).any()
    monkeypatch.setattr(online, "MAX_DENSE_ENTRIES", 6)
    fewer = OnlinePosterior(gp, few.expansion)
    assert fewer.given_points.data.num_observed <= 12 and (fewer.predict(X_new).std >= std - 1e-9).all()


@pytest.mark.parametrize("average", [False, True])
def test_online_posterior_mean_is_the_expansion(average):
    _, X, _, found = posterior("curl-free", budget=20, average=average)
    coefficients = found.expansion.average if average else found.expansion.coefficients
    K = found.process.cross(torch.from_numpy(X), torch.from_numpy(found.expansion.X)).to_dense().numpy()
    np.testing.assert_allclose(found.predict(X).mean.numpy(), (K @ coefficients.ravel()).reshape(-1, 2), atol=1e-12)


@pytest.mark.slow
def test_online_posterior_draws_have_mean_and_standard_deviation():
    _, X, _, found = posterior("decomposable", budget=20)
    draws = found.sample_functions(3000, random_state=0)(X[:4])
    prediction = found.predict(X[:4])
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * prediction.std / 3000**0.5 + 0.02).all()
    torch.testing.assert_close(draws.std(0), prediction.std, rtol=0.15, atol=0.01)
    assert torch.equal(found.sample_functions(2, random_state=3)(X), found.sample_functions(2, random_state=3)(X))


def test_online_posterior_keeps_the_prior_of_an_unobserved_output():
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2)), mean="zero", noise=0.3)
    learner = OnlineGradient(gp.kernel, 2, 0.01)
    expansion = learner.learn(learner.start(1), np.zeros((1, 1)), np.array([[1.0, np.nan]]))
    prediction = OnlinePosterior(gp, expansion).predict([[0.0]])
    np.testing.assert_allclose(prediction.std.numpy() ** 2, [[1 - 1 / 1.3, 1.0]], rtol=1e-9)
    assert prediction.mean[0, 1] == 0


def test_separable_and_dense_blocks_agree():
    rng = np.random.default_rng(0)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2) + 0.5).double().requires_grad_(False)
    X, Y = rng.standard_normal((9, 2)), rng.standard_normal((9, 2))
    fast, slow = make_kernel_blocks(kernel, 2), DenseBlocks(kernel, 2)
    assert isinstance(fast, SeparableBlocks)
    a, z = Y[0], X[1:]
    pairs = [(blocks, blocks.self_blocks(z), blocks.cross(X[:1], z)[0]) for blocks in (fast, slow)]
    for compute in (
        lambda b, own, row: b.norms(own),
        lambda b, own, row: b.value(row, Y[1:]),
        lambda b, own, row: b.squares(own, Y[1:]),
        lambda b, own, row: b.covered(row, own, a),
        lambda b, own, row: b.transfer(row, own, 3, a),
    ):
        one, other = (compute(*pair) for pair in pairs)
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_transfer_is_zero_at_points_with_zero_kernel():
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(2)).double().requires_grad_(False)
    for blocks in (make_kernel_blocks(kernel, 2), DenseBlocks(kernel, 2)):
        own, row = blocks.self_blocks(np.zeros((1, 1))), blocks.cross(np.ones((1, 1)), np.zeros((1, 1)))[0]
        assert blocks.covered(row, own, np.ones(2)).tolist() == [0.0]
        assert blocks.transfer(row, own, 0, np.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_transfer_is_the_nearest_projection(seed):
    """No other coefficient at x_j comes nearer to K(·, x)a, and `covered` gives the squared norm of the projection."""
    rng = np.random.default_rng(seed)
    kernel = CurlFreeKernel(RBFKernel(), num_dims=2).double().requires_grad_(False)
    blocks, X, a = make_kernel_blocks(kernel, 2), rng.standard_normal((2, 2)), rng.standard_normal(2)
    K = to_dense(kernel(torch.from_numpy(X))).numpy()
    own, row = blocks.self_blocks(X[1:]), blocks.cross(X[:1], X[1:])[0]
    b = blocks.transfer(row, own, 0, a)

    def squared_distance(b):
        difference = np.concatenate([a, -b])
        return difference @ K @ difference

    np.testing.assert_allclose(squared_distance(b), a @ K[:2, :2] @ a - blocks.covered(row, own, a)[0], rtol=1e-9)
    assert all(squared_distance(b + 1e-3 * rng.standard_normal(2)) > squared_distance(b) for _ in range(20))


def test_cross_equals_the_kernel_for_sums_of_separable_kernels():
    rng = np.random.default_rng(0)
    parts = [DecomposableKernel(RBFKernel(), output_matrix=torch.diag(torch.rand(2) + 1)) for _ in range(2)]
    kernel = (parts[0] + parts[1]).double().requires_grad_(False)
    X, Z = rng.standard_normal((3, 1)), rng.standard_normal((4, 1))
    blocks = make_kernel_blocks(kernel, 2).cross(X, Z)
    dense = to_dense(kernel(torch.from_numpy(X), torch.from_numpy(Z))).numpy().reshape(3, 2, 4, 2)
    np.testing.assert_allclose(blocks, dense.transpose(0, 2, 3, 1), rtol=1e-12)
