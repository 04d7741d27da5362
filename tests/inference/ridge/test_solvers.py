"""Tests of `ovkgp.inference.ridge.solvers`."""

import pickle
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from gp_cases import Problem, close
from gpytorch.kernels import RBFKernel
from linear_operator import to_dense
from linear_operator.utils.warnings import NumericalWarning
from posterior_oracle import diagonal_parts

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features import ORFF, BlockedORFF
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference import OperatorValuedGP, primal_dual_residual
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.ridge import solvers
from ovkgp.inference.ridge.products import KernelProducts
from ovkgp.inference.ridge.solvers import SOLVERS, solve_ridge
from ovkgp.inference.statistics.factors import DenseFactor
from ovkgp.inference.strategies import exact

KERNELS = ("icm, rank 2", "curl-free", "divergence-free", "lmc")


@pytest.mark.parametrize("name", KERNELS)
def test_id_5_the_norm_of_the_weights_is_that_of_the_function(name):
    problem = Problem(name, "float", 0.0, mean="zero", features="orff", n=20, level=0.1, num_frequencies=15)
    weights = solve_ridge(problem.gp, problem.X, problem.Y, solver="closed_form").weights.numpy()
    oracle = problem.oracle()
    u = oracle.coefficients
    assert weights @ weights == pytest.approx(u @ oracle.K @ u, rel=1e-10)
    Phi = to_dense(problem.gp.features(problem.X)).detach().numpy()
    np.testing.assert_allclose(Phi.T @ u, weights, rtol=0, atol=1e-10 * np.abs(weights).max())


ALL_KERNELS = ("icm, rank 2", "lmc", "curl-free", "divergence-free", "independent", "scalar")


def problem_of(name, noise="float", missing=0.0, features=None, **options):
    return Problem(name, noise, missing, features=features, n=40, level=0.05, num_frequencies=20, **options)


def solved(problem, solver, **options):
    return solve_ridge(problem.gp, problem.X, problem.Y, problem.known, solver=solver, **options)


def has_eigen_form(name, noise, missing):
    """One component and complete outputs; a scalar one without its missing rows is complete."""
    return noise != "known" and (name == "scalar" or (name == "icm, rank 2" and missing == 0))


@pytest.mark.parametrize("features", [None, "orff"])
@pytest.mark.parametrize("name", ALL_KERNELS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("noise", ["float", "matrix", "known"])
def test_solvers_give_the_posterior_of_the_dense_oracle(features, name, missing, noise):
    problem = problem_of(name, noise, missing, features)
    mean, covariance, _ = problem.expected()
    variances, _ = diagonal_parts(covariance, problem.num_outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        for solver in SOLVERS if features else [name for name in SOLVERS if name != "doubly_sgd"]:
            if solver == "eigen" and not has_eigen_form(name, noise, missing):
                with pytest.raises(OptionError, match=r"eigen.*closed_form"):
                    solved(problem, solver)
                continue
            prediction = solved(problem, solver).predict(problem.test)
            close(prediction.mean, mean, 1e-6)
            close(prediction.std, np.sqrt(variances), 1e-6)


@pytest.mark.parametrize("features", [None, "orff"])
@pytest.mark.parametrize("solver", ["cg", "lbfgs"])
def test_matrix_free_posteriors_have_covariances_draws_and_new_noise(features, solver):
    problem = problem_of("curl-free", "known", 0.3, features)
    posterior, exact = solved(problem, solver), solved(problem, "closed_form")
    for cov in ("output", "full"):
        expected = exact.predict(problem.test, cov, noise=True).cov
        close(posterior.predict(problem.test, cov, noise=True).cov, expected, 1e-6)
    draws = posterior.sample_functions(400, random_state=0)(problem.test)
    prediction = exact.predict(problem.test)
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * prediction.std / 20).all()
    assert ((draws.std(0) / prediction.std - 1).abs() < 0.3).all()
    again = pickle.loads(pickle.dumps(posterior))
    assert torch.equal(again.predict(problem.test).std, posterior.predict(problem.test).std)


def test_closed_form_uses_a_dense_factor_for_separable_features():
    problem = problem_of("icm, rank 2", features="orff")
    closed, eigen = solved(problem, "closed_form"), solved(problem, "eigen")
    assert isinstance(closed.system.factor, DenseFactor) and not isinstance(eigen.system.factor, DenseFactor)
    close(closed.weights, eigen.weights, 1e-8)
    assert closed.log_evidence == pytest.approx(eigen.log_evidence, rel=1e-9)  # ID-3


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "eigen"])
def test_bt_e_25_algorithm_3_is_of_half_the_squared_error(solver):
    """(P + λI) θ = q is the minimizer of (1/N) Σ ½‖y − f‖² + (λ/2)‖θ‖², and its GP has the noise Nλ (ID-1)."""
    problem = problem_of("curl-free", mean="zero", features="orff")
    N, noise = len(problem.X), problem.gp.noise.item()
    Phi, y, lam = to_dense(problem.gp.features(problem.X)).detach().numpy(), problem.Y.numpy().ravel(), noise / N
    weights = solved(problem, solver).weights.numpy()
    gradient = Phi.T @ (Phi @ weights - y) / N + lam * weights
    assert np.abs(gradient).max() < 1e-8 * np.abs(Phi.T @ y / N).max()
    P, q = Phi.T @ Phi / N, Phi.T @ y / N
    close(weights, np.linalg.solve(P + lam * np.eye(len(P)), q), 1e-6)


@pytest.mark.parametrize("name", ["icm, rank 2", "lmc", "curl-free", "independent"])
def test_blocked_features_by_every_solver(name):
    problem = problem_of(name)
    kernel = problem.gp.kernel
    gp = OperatorValuedGP(kernel, "zero", 1.0, features=BlockedORFF(kernel, 20, 10, num_dims=2, random_state=0))
    Phi = gp.features(problem.X)
    assert isinstance(Phi, FeatureOperator) == (name in ("icm, rank 2", "curl-free"))
    expected = solve_ridge(gp, problem.X, problem.Y, solver="closed_form").predict(problem.test)
    for solver in ("auto", "cg", "lbfgs", "doubly_sgd"):
        found = solve_ridge(gp, problem.X, problem.Y, solver=solver).predict(problem.test)
        close(found.mean, expected.mean, 1e-6)
        close(found.std, expected.std, 1e-6)


@pytest.mark.parametrize("solver", ["cg", "lbfgs"])
def test_separable_kernels_with_many_rows_use_kernel_products(solver, monkeypatch):
    monkeypatch.setattr(solvers, "MAX_EXACT_ROWS", 10)
    problem = problem_of("lmc", "matrix", 0.3)
    posterior = solved(problem, solver)
    assert isinstance(posterior.solver.covariance, KernelProducts)
    close(posterior.predict(problem.test).mean, problem.expected()[0], 1e-6)


@pytest.mark.parametrize("features", [None, "orff"])
@pytest.mark.parametrize("solver", ["cg", "lbfgs"])
def test_iterative_solvers_warn_after_too_few_iterations(features, solver, monkeypatch):
    for name in (
        "algebra.krylov.MAX_SKETCH_COLUMNS",
        "ridge.products.MAX_RANK",
    ):  # a good preconditioner would converge
        monkeypatch.setattr(f"ovkgp.inference.{name}", 1)
    problem = problem_of("curl-free", features=features)
    with pytest.warns(FitWarning, match="residual"):
        solved(problem, solver, max_iter=2)


def test_kronecker_solver_warns_after_too_few_iterations(monkeypatch):
    monkeypatch.setattr(exact, "IterativeSolver", partial(IterativeSolver, max_rank=1))
    with pytest.warns(FitWarning, match=r"cg.*residual"):
        solved(problem_of("lmc", missing=0.3), "cg", max_iter=2)


def test_doubly_sgd_rejects_models_without_features():
    with pytest.raises(OptionError, match="ORFFRidge"):
        solved(problem_of("curl-free"), "doubly_sgd")


@pytest.mark.parametrize(
    "options, match",
    [
        ({"solver": "newton"}, "solver"),
        ({"solver": "cg", "tolerance": 0.0}, "tolerance"),
        ({"solver": "cg", "tolerance": float("nan")}, "tolerance"),
        ({"solver": "cg", "max_iter": 0}, "max_iter"),
        ({"solver": "doubly_sgd", "batch_size": 0}, "batch_size"),
        ({"solver": "doubly_sgd", "learning_rate": -1.0}, "learning_rate"),
        ({"solver": "doubly_sgd", "learning_rate": lambda t: float("nan")}, "learning_rate"),
    ],
)
def test_solve_ridge_rejects_invalid_options(options, match):
    problem = problem_of("curl-free", features="orff")
    with pytest.raises(OptionError, match=match):
        solve_ridge(problem.gp, problem.X, problem.Y, **options)


@pytest.mark.parametrize("features", [None, "orff"])
@pytest.mark.parametrize("solver", ["closed_form", "cg", "lbfgs"])
def test_solve_ridge_rejects_invalid_data_and_accepts_single_rows_and_float32(features, solver):
    problem = problem_of("curl-free", features=features)
    X, Y = problem.X.clone(), problem.Y.clone()
    X[3, 1] = torch.inf
    with pytest.raises(InputError, match="NaN or infinity"):
        solve_ridge(problem.gp, X, problem.Y, solver=solver)
    Y[:, 1] = torch.nan
    with pytest.raises(InputError, match="output 1"):
        solve_ridge(problem.gp, problem.X, Y, solver=solver)
    one = solve_ridge(problem.gp, problem.X[:1].float(), problem.Y[:1].float(), solver=solver)
    expected = problem.gp.condition(problem.X[:1].float(), problem.Y[:1].float()).predict(problem.test)
    close(one.predict(problem.test).mean, expected.mean, 1e-6)
    twice = solve_ridge(problem.gp, problem.X.repeat(2, 1), problem.Y.repeat(2, 1), solver=solver)
    expected = problem.gp.condition(problem.X.repeat(2, 1), problem.Y.repeat(2, 1)).predict(problem.test)
    close(twice.predict(problem.test).mean, expected.mean, 1e-6)


def test_posterior_is_independent_of_later_changes_of_arrays_and_model():
    problem = problem_of("curl-free", features="orff")
    posterior = solved(problem, "cg")
    before = posterior.predict(problem.test)
    problem.X.zero_(), problem.Y.zero_()
    problem.gp.kernel.base_kernel.lengthscale = 17.0
    after = posterior.predict(problem.test)
    assert torch.equal(before.mean, after.mean) and torch.equal(before.std, after.std)


# --- dual and primal ---------------------------------------------------------------------------------------------------


def figure_6_1(lam):
    """N = 50, x ~ U(−1, 1), y = sin 10x + 2x² + ½ N(0, 1), lengthscale 0.3, D = 50."""
    generator = torch.Generator().manual_seed(0)
    X = 2 * torch.rand(50, 1, generator=generator).double() - 1
    Y = (10 * X).sin() + 2 * X**2 + 0.5 * torch.randn(50, 1, generator=generator).double()
    kernel = RBFKernel(ard_num_dims=1)
    kernel.lengthscale = 0.3
    return OperatorValuedGP(kernel, "zero", lam, features=ORFF(kernel, 50, random_state=0)), X, Y


@pytest.mark.parametrize("name", ["icm, rank 2", "curl-free", "divergence-free", "lmc"])
@pytest.mark.parametrize("noise", ["float", "matrix", "known"])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_bt_69_primal_and_dual_solutions_agree(name, noise, missing):
    problem = Problem(name, noise, missing, features="orff", n=20, level=0.1, num_frequencies=15)
    found = primal_dual_residual(problem.gp, problem.X, problem.Y, problem.known)
    assert found.relative < 1e-11
    assert len(found.residual) == problem.gp.features.num_features


def test_primal_dual_residual_flags_numerically_zero_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # jitter, at 1e-18
        found = [primal_dual_residual(*figure_6_1(lam)).relative for lam in (1e-2, 1e-10, 1e-18)]
    assert found[0] < 1e-12 and found[1] < 1e-3 and found[2] > 0.05


def test_without_noise_the_solutions_of_least_norm_are_equal():
    gp, X, Y = figure_6_1(1.0)
    Phi, y = to_dense(gp.features(X)).detach().numpy(), Y.numpy().ravel()
    primal = np.linalg.pinv(Phi.T @ Phi, rcond=1e-9, hermitian=True) @ Phi.T @ y
    dual = Phi.T @ np.linalg.pinv(Phi @ Phi.T, rcond=1e-9, hermitian=True) @ y
    np.testing.assert_allclose(primal, dual, rtol=0, atol=1e-4 * np.abs(dual).max())


def test_primal_dual_residual_uses_conjugate_gradients_beyond_the_dense_limit(monkeypatch):
    monkeypatch.setattr(solvers, "MAX_DENSE_ENTRIES", 10)
    problem = Problem("curl-free", "matrix", 0.3, features="orff", n=20, level=0.1, num_frequencies=15)
    assert primal_dual_residual(problem.gp, problem.X, problem.Y).relative < 1e-9


def test_primal_dual_residual_rejects_models_without_features():
    problem = Problem("curl-free")
    with pytest.raises(OptionError, match="feature map"):
        primal_dual_residual(problem.gp, problem.X, problem.Y)
