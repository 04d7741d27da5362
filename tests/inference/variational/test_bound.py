"""The bound: never above the evidence, equal to it where theory says so, differentiable, and the same in chunks."""

import itertools
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator import to_dense
from pairwise import pairwise

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import Gaussian
from ovkgp.inference.variational.families import WeightGaussian, leading_frame
from ovkgp.inference.variational.gp import VariationalBound, VariationalGP
from ovkgp.inference.variational.inducing import RELATIVE_NUGGET
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def icm(p=3):
    return DecomposableKernel(RBFKernel(ard_num_dims=2), p, rank=2).double()


def lmc():
    return icm() + DecomposableKernel(MaternKernel(ard_num_dims=2), 3).double()


def curl_free():
    return CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()


def data(p, n=30, missing=0.3):
    X = normal(n, 2)
    Y = 0.5 * normal(n, p, seed=1) + X[:, :1].sin()
    Y[(torch.rand(n, p, generator=torch.Generator().manual_seed(2)) < missing)] = torch.nan
    Y[0] = 0.3
    return X, Y


def gradients(value, module):
    """By names that both models share."""
    named = {
        name.removeprefix("likelihood."): value for name, value in module.named_parameters() if value.requires_grad
    }
    return dict(zip(named, torch.autograd.grad(value, tuple(named.values())), strict=True))


@pytest.mark.parametrize(
    ("make", "noise", "missing"),
    pairwise(make=[icm, lmc, curl_free], noise=["shared", "per_output", "full", "known"], missing=[0.0, 0.3]),
)
def test_id_4_gaussian_bound_and_gradient_of_a_full_q_equal_the_evidence(make, noise, missing):
    kernel = make()
    X, Y = data(2 if make is curl_free else 3, missing=missing)
    known = 0.1 + normal(*Y.shape, seed=4).square() if noise == "known" else None
    kind = "per_output" if noise == "known" else noise
    features = ORFF(kernel, 8, random_state=0)
    exact = OperatorValuedGP(kernel, noise=kind, features=features)
    bound = VariationalGP(kernel, Gaussian(exact.num_outputs, kind), features=features, family="full")
    wanted, found = exact.log_evidence(X, Y, known), bound.log_evidence(X, Y, known)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
    for model in (exact, bound):
        model.noise_model.requires_grad_(noise != "known")  # that of the model is then not in use
    wanted, found = gradients(wanted, exact), gradients(found, bound)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("noise", ["shared", "per_output", "full"])
def test_id_4_mean_field_bound_is_exact_in_the_eigenbasis_only(noise):
    kernel, (X, Y) = icm(), data(3, missing=0.0)
    features = ORFF(kernel, 8, random_state=0)
    wanted = OperatorValuedGP(kernel, noise=noise, features=features).log_evidence(X, Y)
    gp = VariationalGP(kernel, Gaussian(3, noise), features=features, family="mean_field")
    collapsed = gp.evidence(X, Y)
    torch.testing.assert_close(collapsed(), wanted, rtol=0, atol=1e-8)
    collapsed.updates_basis, collapsed.has_basis, gp.q_ = False, True, None  # stay in the basis of the map
    assert collapsed() < wanted - 1.0


def test_mean_field_bound_of_dense_rows_is_exact_with_missing_outputs():
    kernel, (X, Y) = curl_free(), data(2)
    features = ORFF(kernel, 8, random_state=0)
    wanted = OperatorValuedGP(kernel, features=features).log_evidence(X, Y)
    found = VariationalGP(kernel, features=features, family="mean_field").log_evidence(X, Y)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("make", [icm, lmc, curl_free, RBFKernel])
def test_bound_equals_exact_evidence_with_inducing_points_at_the_data(make):
    kernel = make().double()
    X, Y = data({icm: 3, lmc: 3, curl_free: 2, RBFKernel: 1}[make])
    wanted = OperatorValuedGP(kernel).log_evidence(X, Y).item()
    found = VariationalGP(kernel, inducing=X, family="full").log_evidence(X, Y).item()
    # the nugget δ is all that is lost: about δ K / (2 σ²) per entry, twice for the log-determinant
    slack = Y.numel() * RELATIVE_NUGGET * kernel(X, diag=True).max().item() / 0.1 * 10
    assert wanted - slack < found < wanted + 1e-9


def test_bound_equals_collapsed_bound_of_titsias():
    kernel, (X, Y) = icm(), data(3)
    gp = VariationalGP(kernel, Gaussian(3, torch.tensor([0.1, 0.2, 0.3])), inducing=X[:7], family="full")
    found = gp.log_evidence(X, Y).item()
    observed = ~torch.isnan(Y).flatten()
    K_ff, K_uf, K_uu = (to_dense(kernel(*pair)).detach() for pair in ((X, X), (X[:7], X), (X[:7], X[:7])))
    Q = (K_uf.mT @ torch.linalg.solve(K_uu + RELATIVE_NUGGET * torch.eye(21), K_uf))[observed][:, observed]
    noise = torch.tensor([0.1, 0.2, 0.3]).double().expand(30, 3).flatten()[observed]
    gaussian = torch.distributions.MultivariateNormal(torch.zeros(len(Q)).double(), Q + torch.diag(noise))
    slack = ((K_ff[observed][:, observed] - Q).diagonal() / noise).sum() / 2
    wanted = gaussian.log_prob(Y.flatten()[observed]) - slack  # the mean starts at zero
    assert abs(found - wanted.item()) < 1e-5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12), rank=st.integers(0, 8), p=st.integers(1, 3))
def test_bound_is_below_the_evidence_for_any_q_and_inducing_points(seed, count, rank, p):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), p).double()
    X, Y, Z = draw(8, 2), draw(8, p), 2 * draw(count, 2)
    noise = float(0.05 + draw().abs())
    evidence = OperatorValuedGP(kernel, noise=noise).log_evidence(X, Y).item()
    gp = VariationalGP(kernel, Gaussian(p, noise), inducing=Z, family="full")
    best = gp.log_evidence(X, Y).item()
    r = gp.q_.num_weights
    k = min(rank, r)
    root, correlated = draw(k, k), draw(r, r)
    chol = torch.linalg.cholesky(root @ root.mT + 0.1 * torch.eye(k)) if k else root
    gp.family, gp.rank = ("low_rank", k) if k else ("mean_field", None)
    C = correlated @ correlated.mT + torch.eye(r)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), k) if 0 < k < r else None
    gp.q_ = WeightGaussian(draw(r), 0.1 + draw(r).square(), chol, frame=frame)
    assert gp.elbo(X, Y).item() <= best + 1e-8 <= evidence + 2e-8


@pytest.mark.parametrize(
    ("make", "noise", "size", "points"),
    pairwise(
        make=[icm, lmc, curl_free, lambda: curl_free() + icm(2)],
        noise=[1e-2, 1e-12, "full"],
        size=[1e-6, 1.0, 1e6],
        points=["data", "twice", "many"],
    ),
)
def test_bound_is_below_the_evidence_in_extreme_cases(make, noise, size, points):
    """Next to no noise, outputs of extreme size, repeated inducing points, more of them than rows."""
    kernel, p = make(), 3 if make in (icm, lmc) else 2
    X, Y = data(p, n=15)
    Z = {"data": X, "twice": X[:5].repeat(3, 1), "many": normal(40, 2, seed=7)}[points]
    noise = 1e-4 * (torch.eye(p) + 0.5).double() if noise == "full" else noise
    evidence = OperatorValuedGP(kernel, noise=noise).log_evidence(X, size * Y).item()
    found = VariationalGP(kernel, Gaussian(p, noise), inducing=Z, family="full").log_evidence(X, size * Y).item()
    assert found <= evidence + 1e-6 * max(abs(evidence), 1)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "student_t"])
def test_bound_grows_with_every_inducing_point(likelihood):
    X = normal(25, 2)
    Y = (normal(25, 2, seed=1) + X[:, :1] > 0).double() if likelihood == "bernoulli" else X.sin() + 0.1 * normal(25, 2)
    kernel = icm(2)
    levels = [
        VariationalGP(kernel, likelihood, inducing=X[:m], family="full").log_evidence(X, Y).item() for m in range(1, 9)
    ]
    assert all(after > before - 1e-6 for before, after in itertools.pairwise(levels))
    assert levels[-1] > levels[0] + 0.1


@pytest.mark.parametrize(
    ("basis", "likelihood", "family"),
    pairwise(
        basis=["features", "inducing"],
        likelihood=["gaussian", "poisson", "student_t", "softmax"],
        family=["full", "mean_field", "low_rank"],
    ),
)
def test_bound_gradients_equal_finite_differences(basis, likelihood, family):
    X, kernel = normal(12, 2), icm(2)
    Y = (X.sin() + 1.5).round() if likelihood == "poisson" else X.sin()
    if likelihood == "softmax":
        Y = torch.nn.functional.one_hot((X[:, 0] > 0).long(), 2).double()
    options = (
        {"features": ORFF(kernel, 3, random_state=0)}
        if basis == "features"
        else {"inducing": X[:4], "learn_inducing": True}
    )
    Y[3, 1] = torch.nan  # so that mean field is not exact
    gp = VariationalGP(kernel, likelihood, family=family, rank=3 if family == "low_rank" else None, **options)
    collapsed = gp.evidence(X, Y)
    collapsed()
    parameters = list(gp.parameters())
    for function in (lambda: gp.elbo(X, Y), collapsed):
        found = torch.autograd.grad(function(), parameters)
        directions = [normal(*parameter.shape, seed=i) for i, parameter in enumerate(parameters)]
        slope = sum((gradient * direction).sum() for gradient, direction in zip(found, directions, strict=True)).item()
        q, values, step = gp.q_, [], 1e-5
        for sign in (1, -2, 1):
            with torch.no_grad():
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.add_(sign * step * direction)
            gp.q_ = q
            values.append(function().item())
        gp.q_ = q
        numeric = (values[0] - values[1]) / (2 * step)
        assert abs(slope - numeric) < 1e-5 * max(abs(numeric), 10)


def test_bound_does_not_depend_on_chunks(monkeypatch):
    kernel, (X, Y) = icm(), data(3, n=18)
    gp = VariationalGP(kernel, "student_t", inducing=X[:5], family="mean_field")
    whole = gp.log_evidence(X, Y)
    gradient = torch.autograd.grad(whole, list(gp.parameters()))
    constants = VariationalBound.__init__.__globals__  # of the module that is in use
    monkeypatch.setitem(constants, "CHUNK_ENTRIES", 100)
    for cached in (10**6, 0):
        monkeypatch.setitem(constants, "MAX_CACHED_ENTRIES", cached)
        gp.q_ = None
        collapsed = gp.evidence(X, Y)
        assert 1 < collapsed.bound.chunk_rows < 10
        value = collapsed()
        torch.testing.assert_close(value, whole)
        for one, other in zip(torch.autograd.grad(value, list(gp.parameters())), gradient, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_bound_of_one_row_equals_closed_form():
    gp = VariationalGP(RBFKernel().double(), Gaussian(1, 1.0), inducing=[[0.0]], mean="zero")
    # y ~ N(0, k + σ²) with k = 1; the inducing point is the datum
    wanted = -0.5 * (math.log(2 * math.pi * 2) + 4 / 2)
    assert abs(gp.log_evidence([[0.0]], [[2.0]]).item() - wanted) < 1e-6


def test_elbo_uses_the_prior_as_q_before_training():
    kernel, (X, Y) = icm(), data(3)
    gp = VariationalGP(kernel, Gaussian(3, 0.5), features=ORFF(kernel, 4, random_state=0))
    prior = gp.features(X).squared_rows().unflatten(0, (-1, 3))
    wanted = gp.likelihood.expected(Y, torch.zeros(30, 3).double(), prior).sum()
    torch.testing.assert_close(gp.elbo(X, Y), wanted)
