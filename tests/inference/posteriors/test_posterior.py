"""Whitened residuals of every strategy against `eigh` of the dense covariance of the observed entries."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from gp_cases import KERNELS, NOISES, SEPARABLE, Problem
from gpytorch.kernels import RBFKernel
from pairwise import pairwise
from scipy import stats

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, VariationalGP, solve_ridge
from ovkgp.inference.likelihoods import Gaussian
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

MISSING = (0.0, 0.3)
NYSTROM = ("icm, singular", "lmc", "independent", "curl-free", "transformable", "scalar")

CASES = {
    "kronecker": dict(name="icm, rank 2", noise="matrix", missing=0.0),
    "kronecker_missing": dict(name="icm, rank 2", noise="vector", strategy="kronecker_missing"),
    "kronecker_missing, full noise": dict(name="function-valued", noise="matrix", strategy="kronecker_missing"),
    "dense": dict(name="helmholtz", noise="vector"),
    "iterative": dict(name="lmc", noise="known", strategy="iterative"),
    "features, shared": dict(name="icm, rank 2", noise="vector", missing=0.0, features="orff", n=40),
    "features, one variance": dict(name="helmholtz", noise="float", features="orff", n=40),
    "features, known noise": dict(name="curl-free", noise="known", features="orff", n=40),
    "independent": dict(name="independent", noise="vector"),
    "independent, features": dict(name="independent", noise="vector", features="orff", n=40),
}


def oracle(problem):
    """Residuals (n, p) whitened by the eigendecomposition of the covariance of the observed entries, and their quadratic form."""
    dense = problem.oracle()
    values, vectors = np.linalg.eigh(dense.C)
    found = np.full(problem.Y.shape, np.nan)
    found[~np.isnan(problem.Y.numpy())] = vectors @ ((vectors.T @ dense.residual) / np.sqrt(values))
    return found, dense.residual @ np.linalg.solve(dense.C, dense.residual)


def check(problem, rtol=1e-8):
    expected, quadratic = oracle(problem)
    found = problem.condition().whitened_residuals()
    assert found.shape == problem.Y.shape and found.dtype == torch.float64 and not found.requires_grad
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.nanmax(np.abs(expected)))
    assert float(found.square().nansum()) == pytest.approx(quadratic, rel=rtol)


def make(case, **options):
    return Problem(**{"mean": "linear", **CASES[case], **options})


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=KERNELS, noise=NOISES, missing=MISSING))
def test_whitened_residuals_of_exact_strategies(name, noise, missing):
    check(Problem(name, noise, missing))


@pytest.mark.parametrize(
    ("name", "noise", "missing", "n"), pairwise(name=KERNELS, noise=NOISES, missing=MISSING, n=[14, 60])
)
def test_whitened_residuals_of_random_features(name, noise, missing, n):
    """With 14 rows there are fewer entries than features, with 60 rows more."""
    check(Problem(name, noise, missing, features="orff", n=n))


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=NYSTROM, noise=NOISES, missing=MISSING))
def test_whitened_residuals_of_nystrom_features(name, noise, missing):
    check(Problem(name, noise, missing, features="nystrom", n=40))


@pytest.mark.parametrize(("name", "noise", "missing"), pairwise(name=SEPARABLE, noise=NOISES, missing=MISSING))
def test_whitened_residuals_of_conjugate_gradients(name, noise, missing):
    check(Problem(name, noise, missing, strategy="iterative"), 1e-6)


@pytest.mark.parametrize("strategy", ["dense", "independent"])
def test_whitened_residuals_of_requested_strategy(strategy):
    check(Problem("independent", "vector", 0.3, strategy=strategy))


@pytest.mark.parametrize("case", CASES)
def test_whitened_residuals_follow_the_order_of_rows(case):
    problem = make(case)
    found = problem.condition().whitened_residuals()
    order = torch.randperm(len(problem.X), generator=torch.Generator().manual_seed(3))
    known = None if problem.known is None else problem.known[order]
    again = problem.gp.condition(problem.X[order], problem.Y[order], noise=known).whitened_residuals()
    torch.testing.assert_close(again, found[order], rtol=0, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_whitened_residuals_keep_rows_without_outputs(case):
    problem = make(case)
    expected = problem.condition().whitened_residuals()
    nothing = torch.full((1, problem.num_outputs), torch.nan, dtype=torch.float64)
    problem.X = torch.cat([problem.X[:4], torch.zeros(1, 2), problem.X[4:]])
    problem.Y = torch.cat([problem.Y[:4], nothing, problem.Y[4:]])
    if problem.known is not None:
        problem.known = torch.cat([problem.known[:4], nothing, problem.known[4:]])
    found = problem.condition().whitened_residuals()
    torch.testing.assert_close(found, torch.cat([expected[:4], nothing, expected[4:]]), equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_whitened_residuals_belong_to_the_time_of_conditioning(case):
    """Neither arrays nor hyperparameters that change later matter, and copies give the same."""
    problem = make(case)
    posterior = problem.condition()
    expected = posterior.whitened_residuals()
    problem.X.zero_(), problem.Y.zero_()
    with torch.no_grad():
        for parameter in problem.gp.parameters():
            parameter.add_(1.0)
    for same in (posterior, deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        torch.testing.assert_close(same.whitened_residuals(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", ["features, one variance", "features, known noise"])
def test_whitened_residuals_are_unchanged_by_chunks(case, monkeypatch):
    posterior = make(case).condition()
    expected = posterior.whitened_residuals()
    monkeypatch.setattr("ovkgp.inference.strategies.features.CHUNK_ENTRIES", 1)
    torch.testing.assert_close(posterior.whitened_residuals(), expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("missing", MISSING)
def test_whitened_residuals_of_the_true_model_are_standard_normal(missing, features):
    """Data are drawn with lengthscales and noise of the model; another lengthscale is rejected by the same test."""
    rng, n, p = np.random.default_rng(0), 150, 2
    X = rng.uniform(0, 10, (n, 1))
    K, G, S = np.exp(-0.5 * (X - X.T) ** 2), np.array([[1.0, 0.6], [0.6, 2.0]]), np.diag([0.05, 0.2])
    if features:
        kernel = DecomposableKernel(RBFKernel(ard_num_dims=1), output_matrix=torch.tensor(G))
        kernel.base_kernel.lengthscale = 1.0
        Phi = ORFF(kernel, 30, random_state=0).double()
        weights = torch.from_numpy(rng.standard_normal(Phi.num_features))
        Y = (Phi(torch.from_numpy(X)) @ weights).detach().numpy().reshape(n, p)
    else:
        Y = (np.linalg.cholesky(np.kron(K, G) + 1e-9 * np.eye(n * p)) @ rng.standard_normal(n * p)).reshape(n, p)
    Y = Y + rng.standard_normal((n, p)) @ np.sqrt(S)
    Y[rng.random((n, p)) < missing] = np.nan

    def p_value(lengthscale):
        kernel = DecomposableKernel(RBFKernel(ard_num_dims=1), output_matrix=torch.tensor(G))
        kernel.base_kernel.lengthscale = lengthscale
        options = {"features": ORFF(kernel, 30, random_state=0)} if features else {}
        gp = OperatorValuedGP(kernel, mean="zero", noise=S.diagonal().copy(), **options)
        found = gp.condition(X, Y).whitened_residuals().numpy()
        return stats.kstest(found[~np.isnan(found)], "norm").pvalue

    assert p_value(1.0) > 0.01
    assert p_value(4.0) < 1e-4


def test_whitened_residuals_need_data():
    kernel, X = RBFKernel(ard_num_dims=1), torch.linspace(0, 3, 20).double().unsqueeze(-1)
    gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 10, random_state=0))
    with pytest.raises(OptionError, match=r"Condition on X and Y.*not on statistics"):
        gp.condition(gp.statistics(X, X.sin())).whitened_residuals()
    field = OperatorValuedGP(CurlFreeKernel(RBFKernel(ard_num_dims=2)), noise=0.1)
    inputs = torch.cat([X, X.cos()], 1)
    with pytest.raises(OptionError, match="observed process"):
        field.condition(inputs, inputs.sin()).potential().whitened_residuals()


def test_whitened_residuals_are_undefined_for_averages_and_variational_posteriors():
    X = torch.linspace(0, 3, 20).double().unsqueeze(-1)
    kernel = RBFKernel(ard_num_dims=1)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5, random_state=0))
    draws = {name: value.detach().expand(3, *value.shape) for name, value in gp.named_parameters()}
    average = gp.condition(X, X.sin(), draws)
    assert all(part.conditioning is None for part in average.parts)  # no copy of the data per draw
    with pytest.raises(OptionError, match="average over hyperparameter draws"):
        average.whitened_residuals()
    with pytest.raises(OptionError, match=r"variational posterior.*OperatorValuedGP"):
        VariationalGP(kernel, Gaussian(1), inducing=5).condition(X, X.sin()).whitened_residuals()


@pytest.mark.parametrize("solver", ["eigen", "closed_form", "cg"])
@pytest.mark.parametrize("features", [None, "orff"])
def test_whitened_residuals_of_ridge_solvers(solver, features):
    problem = Problem("icm, rank 2", "vector", 0.0, features=features, n=40, level=0.05)
    found = solve_ridge(problem.gp, problem.X, problem.Y, solver=solver).whitened_residuals()
    np.testing.assert_allclose(found, oracle(problem)[0], rtol=0, atol=1e-6)


def test_data_of_independent_posterior_are_the_given_rows():
    problem = Problem("independent", "vector", 0.3, strategy="independent")
    repeated = [torch.cat([part, part[:3]]) for part in (problem.X, problem.Y)]  # copies of rows stay
    found = problem.gp.condition(*repeated).data
    observed = repeated[1].isfinite().any(1)
    order = lambda X, Y: sorted(map(str, torch.cat([X, Y], 1)[Y.isfinite().any(1)].tolist()))  # noqa: E731
    assert len(found.X) == observed.sum()
    assert order(found.X, found.Y) == order(*repeated)


def test_kt_e_27_posterior_adds_the_variance_of_the_noise():
    """K + σ² I, not K + σ I."""
    generator = torch.Generator().manual_seed(0)
    X, sigma = torch.rand(12, 1, generator=generator, dtype=torch.float64), 0.3
    y = torch.sin(6 * X) + sigma * torch.randn(12, 1, generator=generator, dtype=torch.float64)
    kernel = RBFKernel().double()
    found = OperatorValuedGP(kernel, mean="zero", noise=sigma**2).condition(X, y).predict(X, cov="none").mean
    K = kernel(X).to_dense().detach()
    means = {noise: K @ torch.linalg.solve(K + noise * torch.eye(12), y) for noise in (sigma**2, sigma)}
    torch.testing.assert_close(found, means[sigma**2], rtol=1e-8, atol=1e-9)
    assert (found - means[sigma]).abs().max() > 0.02
