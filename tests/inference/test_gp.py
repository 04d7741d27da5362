"""OperatorValuedGP as a whole: the identities of its reading as ridge regression, its random functions, and bad input."""

import math

import numpy as np
import pytest
import torch
from gp_cases import Problem, close, normal
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel
from gpytorch.means import Mean
from linear_operator import to_dense
from numpy.linalg import eigh, inv, slogdet, solve
from oracles import curl_free_rbf, dense, gram, rbf, scalar_gram
from posterior_oracle import DensePosterior, noise_matrix

import ovkgp
from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, GraphMatrix, IndependentKernel, graph_laplacian

GAMMA = torch.tensor([[1.0, 0.4, -0.3], [0.4, 0.8, 0.2], [-0.3, 0.2, 1.2]], dtype=torch.float64)


def data(n=12, p=3, d=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return normal(generator, n, d), normal(generator, n, p), normal(generator, 5, d)


def icm(matrix=GAMMA, lengthscale=0.9):
    kernel = RBFKernel(ard_num_dims=2).double()
    kernel.lengthscale = lengthscale
    return DecomposableKernel(kernel, output_matrix=matrix)


# --- from the formulas of the papers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["auto", "dense", "iterative"])
def test_posterior_equals_formula_for_separable_kernel(strategy):
    (X, Y, test), kernel = data(), icm()
    lengthscale = kernel.base_kernel.lengthscale[0, 0].item()  # GPyTorch rounds what it is given to float32
    posterior = OperatorValuedGP(kernel, "zero", 0.1, strategy=strategy).condition(X, Y)
    K, cross, prior = (
        np.kron(scalar_gram(lambda lag: rbf(lag, lengthscale), *pair), GAMMA)
        for pair in ((X, X), (test, X), (test, test))
    )
    oracle = DensePosterior(K, noise_matrix(0.1, 12, 3), np.zeros((12, 3)), Y.numpy())
    prediction, rtol = posterior.predict(test, "full"), 1e-6 if strategy == "iterative" else 1e-8
    close(prediction.mean, oracle.mean(cross, np.zeros((5, 3))), rtol)
    close(prediction.cov, oracle.covariance(cross, prior), rtol)


def test_posterior_equals_formula_for_curl_free_field():
    X, Y, test = data(p=2)
    kernel = CurlFreeKernel(RBFKernel(), num_dims=2).double()
    kernel.base_kernel.lengthscale = 0.8
    s = kernel.base_kernel.lengthscale.item()
    posterior = OperatorValuedGP(kernel, "zero", 0.1).condition(X, Y)
    X, test = X.numpy(), test.numpy()
    K, cross, prior = (gram(lambda x, z: curl_free_rbf(x - z, s), *pair) for pair in ((X, X), (test, X), (test, test)))
    oracle = DensePosterior(K, noise_matrix(0.1, 12, 2), np.zeros((12, 2)), Y.numpy())
    prediction = posterior.predict(test, "full")
    close(prediction.mean, oracle.mean(cross, np.zeros((5, 2))))
    close(prediction.cov, oracle.covariance(cross, prior))
    assert posterior.log_evidence == pytest.approx(oracle.evidence, rel=1e-10)


# --- identities --------------------------------------------------------------------------------------------------------


def feature_model(noise, kernel=None, num_frequencies=4, n=12):
    """A model with features, data, and Φ at the data and at the test points as explicit matrices."""
    kernel = icm() if kernel is None else kernel
    gp = OperatorValuedGP(kernel, "zero", noise, features=ORFF(kernel, num_frequencies, random_state=0))
    X, Y, test = data(n, p=gp.num_outputs)
    Phi, Phi_test = (to_dense(gp.features(x)).detach().numpy() for x in (X, test))
    return gp, X, Y, test, Phi, Phi_test


def fields():
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([0.7, 1.1])
    return kernel


@pytest.mark.parametrize("make", [icm, fields])
def test_id_1_mean_equals_ridge_regression_on_features(make):
    """Algorithm 3: (ΦᵀΦ / n + λI) θ = Φᵀy / n, with noise nλ."""
    n, lam = 12, 0.03
    gp, X, Y, test, Phi, Phi_test = feature_model(n * lam, make())
    theta = solve(Phi.T @ Phi / n + lam * np.eye(Phi.shape[1]), Phi.T @ Y.numpy().ravel() / n)
    posterior = gp.condition(X, Y)
    close(posterior.weights, theta)
    close(posterior.predict(test).mean, (Phi_test @ theta).reshape(5, -1))


@pytest.mark.parametrize("make", [icm, fields])
def test_id_2_covariance_in_weight_space_equals_function_space(make):
    noise = 0.05
    gp, X, Y, test, Phi, Phi_test = feature_model(noise, make())
    found = gp.condition(X, Y).predict(test, "full").cov
    close(found, Phi_test @ (noise * inv(Phi.T @ Phi + noise * np.eye(Phi.shape[1]))) @ Phi_test.T)
    K, cross = Phi @ Phi.T, Phi_test @ Phi.T
    close(found, Phi_test @ Phi_test.T - cross @ solve(K + noise * np.eye(len(K)), cross.T))


@pytest.mark.parametrize("num_frequencies", [2, 30])
def test_id_3_evidence_in_weight_space_equals_function_space(num_frequencies):
    """With fewer and with more features than data; and for a separable kernel from the eigenvalues of its two sides."""
    noise, n, p = 0.05, 12, 3
    gp, X, Y, _, Phi, _ = feature_model(noise, num_frequencies=num_frequencies)
    y, r = Y.numpy().ravel(), Phi.shape[1]
    A = Phi.T @ Phi + noise * np.eye(r)
    square = (y @ y - y @ Phi @ solve(A, Phi.T @ y)) / noise
    rest = n * p * math.log(2 * math.pi)
    expected = -0.5 * (square + slogdet(A)[1] + (n * p - r) * math.log(noise) + rest)
    assert gp.log_evidence(X, Y).item() == pytest.approx(expected, rel=1e-9)
    scalar = dense_scalar_features(gp, X)
    s, t = eigh(scalar.T @ scalar / n)[0], eigh(GAMMA.numpy())[0]
    logdet = np.log(n * np.outer(s, t) + noise).sum() + (n * p - s.size * t.size) * math.log(noise)
    assert gp.log_evidence(X, Y).item() == pytest.approx(-0.5 * (square + logdet + rest), rel=1e-9)


def dense_scalar_features(gp, X):
    return to_dense(gp.features.part(0)(X)).detach().numpy()


@pytest.mark.parametrize("make", [icm, fields])
def test_id_5_mean_and_norm_equal_the_representer_formula(make):
    """f = Σ K(·, x_j) u_j with u = (K + σ²I)⁻¹ y, and ‖f‖² = uᵀKu, which for features is ‖θ‖²."""
    noise = 0.05
    gp, X, Y, test, Phi, Phi_test = feature_model(noise, make())
    y = Y.numpy().ravel()
    u = solve(Phi @ Phi.T + noise * np.eye(len(Phi)), y)
    posterior = gp.condition(X, Y)
    close(posterior.predict(test).mean, (Phi_test @ Phi.T @ u).reshape(5, -1))
    assert posterior.weights.square().sum().item() == pytest.approx(u @ Phi @ Phi.T @ u, rel=1e-9)
    exact = OperatorValuedGP(make(), "zero", noise).condition(X, Y)
    K = dense(make(), X)
    u = solve(K + noise * np.eye(len(K)), y)
    close(exact.solver.alpha.flatten(), u)
    close(exact.predict(test).mean, (dense(make(), test, X) @ u).reshape(5, -1))


def test_id_8_correlated_noise_equals_ridge_with_mahalanobis_loss():
    """(ΦᵀWΦ / n + λI) θ = ΦᵀWy / n, W = I ⊗ Σ⁻¹, with noise nλΣ."""
    n, lam = 12, 0.03
    sigma = np.array([[1.0, 0.5, 0.1], [0.5, 0.9, -0.2], [0.1, -0.2, 0.7]])
    gp, X, Y, test, Phi, Phi_test = feature_model(n * lam * sigma)
    W = np.kron(np.eye(n), inv(sigma))
    theta = solve(Phi.T @ W @ Phi / n + lam * np.eye(Phi.shape[1]), Phi.T @ W @ Y.numpy().ravel() / n)
    close(gp.condition(X, Y).predict(test).mean, (Phi_test @ theta).reshape(5, -1))
    exact = OperatorValuedGP(icm(), "zero", n * lam * sigma).condition(X, Y)  # the same by two eigendecompositions
    K, cross = dense(icm(), X), dense(icm(), test, X)
    expected = cross @ solve(K + np.kron(np.eye(n), n * lam * sigma), Y.numpy().ravel())
    close(exact.predict(test).mean, expected.reshape(5, -1))


@pytest.mark.parametrize("features", [False, True])
def test_id_9_one_task_per_row_equals_hadamard_process(features):
    """Covariance k(x_i, x_j) Γ_{t_i t_j} between observations (x_i, t_i), some inputs and some pairs being repeated."""
    generator = torch.Generator().manual_seed(0)
    x = normal(generator, 9, 2)[torch.tensor([0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8])]
    task = torch.tensor([0, 1, 2, 0, 1, 2, 1, 0, 0, 2, 1, 2])
    y, test = normal(generator, 12), normal(generator, 4, 2)
    kernel = icm()
    gp = OperatorValuedGP(kernel, "zero", 0.2, features=ORFF(kernel, 5, random_state=0) if features else None)
    X, Y = ovkgp.to_wide(x, task, y)
    assert len(X) == 10 and int((~torch.isnan(Y)).sum()) == 12  # (x_6, 0) was observed twice
    posterior = gp.condition(X, Y)

    def scalar(a, b):
        if features:
            return dense_scalar_features(gp, a) @ dense_scalar_features(gp, b).T
        return dense(kernel.base_kernel, a, b)

    G = GAMMA.numpy()
    C = scalar(x, x) * G[np.ix_(task, task)] + 0.2 * np.eye(12)
    cross = np.einsum("mi,ai->mai", scalar(test, x), G[:, task])  # (m, p, N)
    prediction = posterior.predict(test, "full")
    close(prediction.mean, cross @ solve(C, y.numpy()))
    flat = cross.reshape(12, 12)
    close(prediction.cov, np.kron(scalar(test, test), G) - flat @ solve(C, flat.T))
    quadratic = y.numpy() @ solve(C, y.numpy())
    expected = -0.5 * (quadratic + slogdet(C)[1] + 12 * math.log(2 * math.pi))
    assert posterior.log_evidence == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_id_10_task_graph_sums_to_zero_and_has_edge_norm(missing):
    W = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    kernel = icm(GraphMatrix(torch.from_numpy(W), mean_variance=0))
    X, Y, test = data()
    if missing:
        Y[::3, 1] = torch.nan
    posterior = OperatorValuedGP(kernel, "zero", 0.1).condition(X, Y)
    prediction = posterior.predict(test, "output")
    assert prediction.mean.sum(-1).abs().max() < 1e-10 < prediction.mean.abs().max()
    assert prediction.cov.sum(-1).abs().max() < 1e-10 < prediction.cov.abs().max()
    assert posterior.sample(test, 10, random_state=0).sum(-1).abs().max() < 1e-6  # a root of round-off, 1e-16
    assert posterior.sample_functions(10, random_state=0)(test).sum(-1).abs().max() < 1e-6
    u = posterior.solver.alpha.numpy()
    k, L = dense(kernel.base_kernel, X), graph_laplacian(torch.from_numpy(W)).numpy()
    c = u @ kernel.output_matrix.numpy()  # f_k = Σ_j k(·, x_j) c_jk
    inner = c.T @ k @ c  # ⟨f_k, f_l⟩
    norm = (u * (k @ c)).sum()
    squares = inner.diagonal()[:, None] + inner.diagonal() - 2 * inner  # ‖f_k − f_l‖²
    assert norm == pytest.approx((L * inner).sum(), rel=1e-9)
    assert norm == pytest.approx((W * squares).sum() / 2, rel=1e-9)


def test_id_20_nystrom_mean_equals_deterministic_training_conditional():
    """K_*z (σ² K_zz + K_zx K_xz)⁻¹ K_zx y, the subset of regressors with the landmarks as inducing points."""
    X, Y, test = data()
    for make in (icm, fields):
        kernel, Z = make(), X[:4]
        p = 3 if make is icm else 2
        gp = OperatorValuedGP(kernel, "zero", 0.05, features=Nystrom(kernel, Z))
        y = Y[:, :p]
        to_z, within = dense(kernel, X, Z), dense(kernel, Z)
        expected = dense(kernel, test, Z) @ solve(0.05 * within + to_z.T @ to_z, to_z.T @ y.numpy().ravel())
        close(gp.condition(X, y).predict(test).mean, expected.reshape(5, p), 1e-7)  # K_zx K_xz squares the condition


# --- random functions ----------------------------------------------------------------------------------------------------


DRAWN = {
    "kronecker": dict(name="icm, rank 2", missing=0.0, noise="vector"),
    "kronecker, full noise": dict(name="icm, rank 2", missing=0.0, noise="matrix"),
    "dense, missing": dict(name="curl-free", noise="vector"),
    "dense, missing, full noise": dict(name="icm, rank 2", noise="matrix"),
    "dense, missing, known noise": dict(name="lmc", noise="known"),
    "iterative": dict(name="lmc", noise="vector", strategy="iterative"),
    "independent": dict(name="independent", noise="vector"),
    "features": dict(name="helmholtz", noise="matrix", features="orff"),
    "features, separable": dict(name="icm, rank 2", noise="vector", missing=0.0, features="orff"),
    "independent, features": dict(name="independent", noise="known", features="orff"),
}


def drawn(case, **options):
    """A problem with noise as large as the signal, and test points close to the data, where that noise matters most."""
    problem = Problem(**{"mean": "linear", "n": 8, "m": 3, "level": 0.5, **DRAWN[case], **options})
    problem.test = problem.X[torch.arange(3) % len(problem.X)] + torch.tensor([[0.1], [-0.1], [0.2]])
    return problem


def scores(samples, expected):
    """(mean − expected) / standard error over the independent samples (S, ...)."""
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    return ((samples.mean(0) - expected) / error).ravel()


def check_scores(found):
    """Standard normal, up to the error of a few tens of correlated values."""
    assert np.abs(found).max() < 5
    assert np.sqrt(np.mean(found**2)) < 1.8


@pytest.mark.parametrize("case", DRAWN)
@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_posterior_moments(case, noise):
    problem = drawn(case)
    posterior = problem.condition()
    samples = posterior.sample(problem.test, 4000, noise=noise, random_state=0)
    assert samples.shape == (4000, 3, problem.num_outputs)
    prediction = posterior.predict(problem.test, "full", noise=noise)
    errors = (samples - prediction.mean).flatten(1).numpy()
    check_scores(scores(errors, 0.0))
    check_scores(scores(errors[:, :, None] * errors[:, None, :], prediction.cov.numpy()))
    assert torch.equal(samples, posterior.sample(problem.test, 4000, noise=noise, random_state=0))
    assert not torch.equal(samples, posterior.sample(problem.test, 4000, noise=noise, random_state=1))


@pytest.mark.parametrize("case", DRAWN)
@pytest.mark.slow
def test_function_draws_have_posterior_moments(case):
    """Prior features are unbiased, so that over seeds, each with its own features, Matheron's rule has exactly the
    posterior's mean and covariance. Draws of one seed share their features: a seed is one sample, of 30 draws."""
    problem = drawn(case)
    posterior = problem.condition()
    prediction = posterior.predict(problem.test, "full")
    options = {"num_frequencies": 50} if isinstance(posterior, ExactPosterior) else {}
    means, squares = [], []
    for seed in range(40 if case == "independent" else 100):  # where the number of frequencies cannot be chosen
        draws = posterior.sample_functions(30, random_state=1000 * seed, **options)(problem.test)
        errors = (draws - prediction.mean).flatten(1).numpy()
        means.append(errors.mean(0))
        squares.append(errors.T @ errors / len(errors))
    check_scores(scores(np.array(means), 0.0))
    check_scores(scores(np.array(squares), prediction.cov.numpy()))


@pytest.mark.parametrize("case", DRAWN)
def test_function_draws_keep_their_values_over_calls(case):
    problem = drawn(case)
    posterior = problem.condition()
    draws = posterior.sample_functions(4, random_state=0)
    together = draws(problem.test)
    assert len(draws) == 4 and together.shape == (4, 3, problem.num_outputs)
    close(draws(problem.test), together, 1e-12)
    for i in range(4):
        close(draws[i](problem.test), together[i], 1e-12)
        close(draws[i](problem.test[1:2]), together[i, 1:2], 1e-12)
    close(draws[-1](problem.test), together[3], 1e-12)
    assert [f(problem.test).shape for f in draws[1:3]] == [together.shape[1:]] * 2
    assert len(list(draws)) == 4
    with pytest.raises(IndexError, match="index"):
        draws[4]
    close(posterior.sample_functions(4, random_state=0)(problem.test), together, 1e-12)
    assert not torch.allclose(posterior.sample_functions(4, random_state=1)(problem.test), together)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("features", [False, True])
def test_function_draws_of_independent_outputs_are_independent(features):
    """Also where the outputs have one and the same kernel, and so the same feature maps but for their random numbers."""
    X, Y, _ = data(p=2)
    kernel = IndependentKernel.copies(RBFKernel(ard_num_dims=2), 2)
    gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 30, random_state=0) if features else None)
    values = gp.condition(X, Y).sample_functions(500, random_state=0)(X[:3] + 2.0)
    for point in range(3):
        correlation = np.corrcoef(values[:, point].T)[0, 1]
        assert abs(correlation) < 4 / math.sqrt(500)


@pytest.mark.parametrize(
    "case", ["kronecker", "dense, missing", "dense, missing, full noise", "iterative", "independent"]
)
def test_function_draws_interpolate_data_without_noise(case):
    problem = drawn(case, level=1e-9)
    values = problem.condition().sample_functions(3, random_state=0)(problem.X)
    observed = ~torch.isnan(problem.Y)
    assert (values - problem.Y)[:, observed].abs().max() < 1e-3
    assert problem.num_outputs == 1 or observed.all() or (values[0] - values[1])[~observed].abs().max() > 1e-2


def test_function_draws_reject_kernel_without_features():
    X, Y, test = data()
    posterior = OperatorValuedGP(DecomposableKernel(LinearKernel(), num_outputs=3)).condition(X, Y)
    with pytest.raises(OptionError, match=r"sample\(X, k\)"):
        posterior.sample_functions(2)
    assert posterior.sample(test, 2).shape == (2, 5, 3)


@pytest.mark.parametrize("k", [0, -1, 1.5, "two"])
def test_sample_rejects_invalid_number_of_draws(k):
    for case in ("kronecker", "features", "independent"):
        posterior = drawn(case).condition()
        with pytest.raises(OptionError, match="number of draws"):
            posterior.sample_functions(k)
        with pytest.raises(OptionError, match="number of draws"):
            posterior.sample(torch.zeros(1, 2), k)


# --- odd data ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DRAWN)
def test_posterior_of_one_row_equals_dense_algebra(case):
    problem = drawn(case, n=1, missing=0.0)
    posterior, (mean, covariance, evidence) = problem.condition(), problem.expected()
    prediction = posterior.predict(problem.test, "full")
    close(prediction.mean, mean)
    close(prediction.cov, covariance)
    assert posterior.log_evidence == pytest.approx(evidence, abs=1e-8 + 3 * posterior.log_evidence_error)


@pytest.mark.parametrize("case", DRAWN)
def test_posterior_of_repeated_rows_equals_dense_algebra(case):
    problem = drawn(case)
    problem.X[4:] = problem.X[:4]
    posterior, (mean, covariance, evidence) = problem.condition(), problem.expected()
    rtol = 1e-6 if case == "iterative" else 1e-8
    prediction = posterior.predict(problem.test, "full")
    close(prediction.mean, mean, rtol)
    close(prediction.cov, covariance, rtol)
    assert posterior.log_evidence == pytest.approx(evidence, rel=rtol, abs=3 * posterior.log_evidence_error)


@pytest.mark.parametrize("case", DRAWN)
def test_posterior_ignores_rows_without_outputs(case):
    problem = drawn(case)
    expected = problem.condition().predict(problem.test, "full")
    evidence = problem.log_evidence()
    empty = torch.full((2, problem.num_outputs), torch.nan, dtype=torch.float64)
    problem.X = torch.cat([problem.X[:3], torch.zeros(1, 2), problem.X[3:], torch.ones(1, 2)])
    problem.Y = torch.cat([problem.Y[:3], empty[:1], problem.Y[3:], empty[1:]])
    if problem.known is not None:
        problem.known = torch.cat([problem.known[:3], empty[:1], problem.known[3:], empty[1:]])
    assert problem.strategy == case.split(",")[0]
    found = problem.condition().predict(problem.test, "full")
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.cov, expected.cov)
    assert torch.equal(problem.log_evidence(), evidence)


@pytest.mark.parametrize("case", ["kronecker", "dense, missing", "features"])
def test_posterior_accepts_data_of_any_type_and_precision(case):
    """Everything is worked out in float64, whatever the data came in; float32 numbers are taken at their value."""
    problem = drawn(case)
    problem.X, problem.Y, problem.test = problem.X.float(), problem.Y.float(), problem.test.float()
    found = problem.condition().predict(problem.test, "full")
    assert found.mean.dtype == found.cov.dtype == torch.float64
    X, Y, test = (t.double() for t in (problem.X, problem.Y, problem.test))
    for args in ((X, Y, test), (problem.X, Y, test.numpy()), (X.numpy(), problem.Y.numpy(), test.tolist())):
        prediction = problem.gp.condition(*args[:2]).predict(args[2], "full")
        close(prediction.mean, found.mean, 1e-12)
        close(prediction.cov, found.cov, 1e-12)
    whole = problem.gp.condition([[0, 1], [2, 3]], np.ones((2, problem.num_outputs), dtype=int)).predict([[1, 1]])
    assert whole.mean.dtype == torch.float64


def test_posterior_accepts_vectors_as_one_column():
    gp = OperatorValuedGP(RBFKernel(), noise=0.1)
    X, Y = torch.linspace(0, 1, 6), torch.linspace(0, 2, 6)
    posterior = gp.condition(X, Y, noise=torch.full((6,), 0.2))
    assert posterior.predict(X).mean.shape == (6, 1)
    column = gp.condition(X[:, None], Y[:, None], noise=torch.full((6, 1), 0.2)).predict(X[:, None])
    assert torch.equal(posterior.predict(X).mean, column.mean)


@pytest.mark.parametrize("features", [False, True])
def test_posterior_accepts_output_matrix_in_column_order(features):
    """As LAPACK leaves its inverses, and `torch.from_numpy` a Fortran array."""
    (X, Y, test), found = data(), []
    for matrix in (GAMMA, GAMMA.mT):
        kernel = icm(matrix)
        gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 5, random_state=0) if features else None)
        posterior = gp.condition(X, Y, variance="guarded")
        found.append((posterior.predict(test, "full").cov, posterior.sample_functions(2, random_state=0)(test)))
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-12)


def test_predict_without_points_is_empty():
    for case in ("kronecker", "dense, missing", "features", "independent"):
        problem = drawn(case)
        prediction = problem.condition().predict(torch.zeros(0, 2), "diag")
        assert prediction.mean.shape == prediction.std.shape == (0, problem.num_outputs)


def test_posterior_is_frozen_and_kernel_unchanged():
    kernel = icm()
    gp = OperatorValuedGP(kernel)
    X, Y, test = data()
    posterior = gp.condition(X, Y)
    before = posterior.predict(test).mean
    with torch.no_grad():
        for parameter in (*gp.parameters(), *kernel.parameters()):
            parameter.add_(0.5)
    assert torch.equal(posterior.predict(test).mean, before)
    assert not posterior.predict(test).mean.requires_grad
    assert kernel.base_kernel.raw_lengthscale.dtype == torch.float64
    single = DecomposableKernel(RBFKernel(), num_outputs=2)
    OperatorValuedGP(single)
    assert single.base_kernel.raw_lengthscale.dtype == torch.float32


# --- bad input -----------------------------------------------------------------------------------------------------------


def data_functions(gp, X, Y, noise=None):
    """All that takes data, as functions to be called."""
    verbs = [gp.condition, gp.log_evidence, gp.leave_one_out, gp.fit] + ([] if gp.features is None else [gp.statistics])
    return [lambda verb=verb: verb(X, Y, noise=noise) for verb in verbs]


def spoiled(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


X, Y, _ = data()
BAD = {
    "X of other length": (X[:-1], Y, None, "rows, got 11 and 12"),
    "X with a third dimension": (X[None], Y, None, r"shape \(n, d\)"),
    "X without columns": (X[:, :0], Y, None, r"d ≥ 1"),
    "X with NaN": (spoiled(X, (3, 1), torch.nan), Y, None, "NaN or infinity.*row 3, column 1"),
    "X with infinity": (spoiled(X, (3, 1), -torch.inf), Y, None, "NaN or infinity.*row 3, column 1"),
    "X of strings": ([["a", "b"]], Y, None, "array of numbers"),
    "complex X": (X + 0j, Y, None, "complex"),
    "Y of strings": (X, [["a", "b", "c"]] * 12, None, "array of numbers"),
    "Y a number": (X, 1.0, None, r"shape \(\).*\(n, 3\)"),
    "Y with too few columns": (X, Y[:, :2], None, r"\(12, 2\).*\(n, 3\)"),
    "Y a vector": (X, Y[:, 0], None, r"\(12,\).*\(n, 3\)"),
    "Y with infinity": (X, spoiled(Y, (5, 2), torch.inf), None, "infinity.*row 5, column 2"),
    "Y all missing": (X, torch.full_like(Y, torch.nan), None, "every entry of Y is missing"),
    "noise of other shape": (X, Y, torch.ones(12), r"\(12,\).*\(12, 3\)"),
    "noise of zero": (X, Y, spoiled(torch.ones(12, 3), (1, 1), 0.0), "positive"),
    "noise of NaN": (X, Y, spoiled(torch.ones(12, 3), (1, 1), torch.nan), "positive"),
    "negative noise": (X, Y, -torch.ones(12, 3), "positive"),
}


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_condition_rejects_invalid_data(bad, features):
    kernel = icm()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5) if features else None)
    *given, message = BAD[bad]
    calls = data_functions(gp, *given)
    for call in calls[:4] if bad == "Y all missing" else calls:  # statistics of no observations are empty
        with pytest.raises(InputError, match=message):
            call()


def test_condition_names_output_without_observations():
    kernel = icm()
    unobserved = spoiled(Y, (slice(None), 1), torch.nan)
    gp = OperatorValuedGP(kernel)
    for call in data_functions(gp, X, unobserved):
        with pytest.raises(InputError, match="output 1"):
            call()
    streaming = OperatorValuedGP(kernel, features=ORFF(kernel, 5, random_state=0))
    part = streaming.statistics(X, unobserved)  # it may be observed in another part
    streaming.condition(part + streaming.statistics(X, Y))


def test_condition_names_output_without_observations_in_statistics():
    kernel = icm()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5, random_state=0))
    statistics = gp.statistics(X, spoiled(Y, (slice(None), 1), torch.nan))
    for call in (gp.condition, gp.log_evidence):
        with pytest.raises(InputError, match="output 1"):
            call(statistics)


def test_known_noise_of_missing_entries_is_ignored():
    noise = torch.where(torch.arange(12)[:, None] == 4, torch.nan, torch.full((12, 3), 0.1))
    gp = OperatorValuedGP(icm(), "zero")
    a = gp.condition(X, spoiled(Y, 4, torch.nan), noise=noise).predict(X)
    b = gp.condition(X, spoiled(Y, 4, torch.nan), noise=torch.full((12, 3), 0.1)).predict(X)
    assert torch.equal(a.mean, b.mean) and torch.equal(a.std, b.std)


@pytest.mark.parametrize("features", [False, True])
def test_predict_rejects_invalid_points(features):
    kernel = icm()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5) if features else None)
    posterior = gp.condition(X, Y)
    calls = (posterior.predict, posterior.sample, posterior.sample_functions(2), posterior.sample_functions(2)[0])
    for call in calls:
        for given, message in (
            (X[:, :1], "1 columns.*2"),
            (spoiled(X, (0, 0), torch.nan), "NaN or infinity"),
            (X[None], r"\(n, d\)"),
        ):
            with pytest.raises(InputError, match=message):
                call(given)


def test_gp_rejects_unknown_options():
    kernel = icm()
    for options, message in (
        ({"mean": "quadratic"}, "'quadratic'"),
        ({"noise": "heteroscedastic"}, "'heteroscedastic'"),
        ({"strategy": "scenic"}, "'scenic'"),
        ({"features": ORFF(icm(), 5)}, "another kernel"),
    ):
        with pytest.raises(OptionError, match=message):
            OperatorValuedGP(kernel, **options)
    with pytest.raises(KernelTypeError, match="str"):
        OperatorValuedGP("rbf")
    with pytest.raises(KernelTypeError, match="batch_shape"):
        OperatorValuedGP(RBFKernel(batch_shape=torch.Size([2])))
    gp = OperatorValuedGP(kernel)
    with pytest.raises(OptionError, match="variance"):
        gp.condition(X, Y, variance="robust")
    with pytest.raises(OptionError, match="'diagonal'"):
        gp.condition(X, Y).predict(X, cov="diagonal")
    with pytest.raises(OptionError, match="feature map"):
        gp.statistics(X, Y)
    with pytest.raises(OptionError, match="random"):
        gp.fit(X, Y, init="random")


@pytest.mark.parametrize(
    "noise, message",
    [
        (-0.1, "positive"),
        (0.0, "positive"),
        (math.nan, "positive"),
        ([0.1, 0.2], r"\(2,\).*\(3,\)"),
        (torch.ones(12, 3), "noise="),
        (-torch.eye(3), "positive definite"),
        (torch.tensor([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 1]]), "symmetric"),
        (None, "number"),
    ],
)
def test_gp_rejects_invalid_noise(noise, message):
    with pytest.raises(InputError, match=message):
        OperatorValuedGP(icm(), noise=noise)


def test_linear_mean_rejects_other_number_of_columns():
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=3), "linear")
    gp.condition(X, Y)
    with pytest.raises(InputError, match=r"3 columns.*2"):
        gp.condition(torch.zeros(12, 3), Y)


def test_gp_rejects_mean_of_wrong_shape():
    class Wide(Mean):
        def forward(self, x):
            return x.new_zeros(len(x), 2)

    with pytest.raises(InputError, match=r"Wide.*\(12, 2\).*\(12, 3\)"):
        OperatorValuedGP(icm(), Wide()).condition(X, Y)


def test_condition_rejects_empty_data():
    kernel = icm()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5))
    with pytest.raises(InputError, match="empty"):
        gp.condition(Statistics.empty())
    for call in (gp.condition, gp.log_evidence):
        with pytest.raises(InputError, match="Y"):
            call(X)


def test_condition_rejects_data_with_statistics():
    """Y, or a known noise, beside statistics would be ignored without a word."""
    kernel = icm()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5))
    for call in (gp.condition, gp.log_evidence):
        for extra in ({"Y": Y}, {"noise": torch.ones_like(Y)}):
            with pytest.raises((InputError, OptionError)):
                call(gp.statistics(X, Y), **extra)


def test_gpytorch_kernels_need_no_wrapping():
    gp = OperatorValuedGP(MaternKernel(), noise=0.1)
    assert gp.num_outputs == 1 and gp.condition(X, Y[:, 0]).predict(X).mean.shape == (12, 1)


def test_initialize_without_data_sets_values_by_name():
    gp = OperatorValuedGP(RBFKernel()).initialize(**{"kernel.lengthscale": 2.0})
    assert gp.kernel.lengthscale.item() == pytest.approx(2.0)
