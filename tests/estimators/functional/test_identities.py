"""Identities between estimators of curves and Gaussian processes, and errata of the sources, by their ids (BO §3, §6)."""

import gpytorch
import numpy as np
import pytest
import torch

import ovkgp
from ovkgp.exceptions import FitWarning
from ovkgp.features import Nystrom
from ovkgp.functional import BSplines, Combination, DictionaryKernel, Fourier, FunctionalData
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.dual import lipschitz_constant, solve_dual
from ovkgp.inference.tasks.solvers.square import solve_square
from ovkgp.losses import CurveHuber, IntegralLoss, Square, TaskMeasure

N, M, D, LAM, ELL = 8, 12, 5, 1e-2, 1.3
OPTIONS = {"lengthscale": ELL, "lam": LAM, "fit_intercept": False, "scale": "given"}


def gauss(a, b, lengthscale=ELL):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def rbf(lengthscale=ELL):
    kernel = gpytorch.kernels.RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


@pytest.fixture
def data():
    """Inputs (n, 3), a grid, curves, new inputs, new points and an output matrix with n ≠ m ≠ d."""
    rng = np.random.default_rng(0)
    X, grid, Y = rng.standard_normal((N, 3)), np.sort(rng.uniform(0, 1, M)), rng.standard_normal((N, M))
    root = rng.standard_normal((D, D + 2))
    return X, grid, Y, rng.standard_normal((4, 3)), np.array([0.3, 0.5, 0.77]), root @ root.T / D


# --- kernel projection learning and Gaussian processes ------------------------------------------------------------------


@pytest.mark.parametrize("rank", [2, D])
def test_bo_c_21_kernel_projection_is_the_fixed_basis_case_of_the_function_process(data, rank):
    """BO §6.2: KPL with λ equals `FunctionGPRegressor` with the kernel φᵀBφ and noise nmλ: mean, variance, evidence to 1e-8."""
    X, grid, Y, Xs, new, B = data
    values, vectors = np.linalg.eigh(B)
    B = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    curves, dictionary = FunctionalData(Y, grid, (0, 1)), BSplines(D)
    projection = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS).fit(X, curves)
    process = ovkgp.FunctionGPRegressor(
        output_basis="kernel",
        kernel=rbf(),
        task_kernel=DictionaryKernel(dictionary, B),
        noise=N * M * LAM,
        hyperparameters="fixed",
    ).fit(X, curves)
    for noise in (False, True):
        found = process.predict(Xs, grid=new, return_std=True, noise=noise)
        expected = projection.predict(Xs, new, return_std=True, noise=noise)
        np.testing.assert_allclose(found, expected, atol=1e-8)
    assert process.posterior_.log_evidence == pytest.approx(projection.log_evidence_, abs=1e-8)


def test_bo_c_21_a_dictionary_as_basis_has_the_identity_as_output_matrix(data):
    """The same with `output_basis=dictionary`, B = I."""
    X, grid, Y, Xs, new, _ = data
    curves, dictionary = FunctionalData(Y, grid, (0, 1)), Fourier(2, (0, 1))
    projection = ovkgp.KernelProjectionRegressor(dictionary, **OPTIONS).fit(X, curves)
    options = {"kernel": rbf(), "noise": N * M * LAM, "hyperparameters": "fixed"}
    process = ovkgp.FunctionGPRegressor(output_basis=dictionary, **options).fit(X, curves)
    found, expected = (model.predict(Xs, new, return_std=True) for model in (process, projection))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert process.posterior_.log_evidence == pytest.approx(projection.log_evidence_, abs=1e-8)


def test_bo_e_20_bo_e_11_coefficients_are_one_column_per_curve_and_bo_c_02_they_are_stationary(data):
    """BO-E-11, BO-E-20: α is (d, n). The gradient of (1/n) Σ‖y_i − ΦBαk_i‖² + λ⟨K, αᵀBα⟩ vanishes at the solution (BO C-02)."""
    X, grid, Y, _, _, B = data
    dictionary, K = BSplines(D), gauss(X, X)
    model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **OPTIONS)
    H = model.fit(X, FunctionalData(Y, grid, (0, 1))).predict(X, grid)
    Phi = dictionary(grid)
    alpha = np.linalg.lstsq(Phi @ B, H.T, rcond=None)[0] @ np.linalg.inv(K)
    assert alpha.shape == (D, N)
    residual = Phi @ B @ alpha @ K - Y.T
    gradient = 2 / (N * M) * B @ Phi.T @ residual @ K + 2 * LAM * B @ alpha @ K
    assert np.abs(gradient).max() < 1e-12 * np.abs(Y).max() * np.linalg.norm(K) * np.linalg.norm(B) * 100
    halved = 2 / (N * M) * B @ Phi.T @ residual @ K + LAM * B @ alpha @ K  # as printed, BO-E-19
    assert np.abs(halved).max() > 1e-3


def test_bo_e_33_bo_e_34_effective_rank_has_no_further_kernel_factors(data):
    """α = (υ_l K + nλ)⁻¹(W̌ᵀV)_l without a factor Ǩ (BO-E-33); values are ΦW̌ α K (BO-E-34), for B̌ = I."""
    X, grid, Y, _, _, _ = data
    redundant = Combination(BSplines(D), np.random.default_rng(3).standard_normal((D, D + 3)))
    K, Phi = gauss(X, X), redundant(grid)
    values, W = np.linalg.eigh(Phi.T @ Phi / M)
    keep = values > 1e-9
    values, W = values[keep], W[:, keep]
    right = W.T @ Phi.T @ Y.T / M  # (r, n)
    alpha = np.stack([np.linalg.solve(u * K + N * LAM * np.eye(N), b) for u, b in zip(values, right, strict=True)])
    found = (
        ovkgp.KernelProjectionRegressor(redundant, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1))).predict(X, grid)
    )
    np.testing.assert_allclose(found, (Phi @ W @ alpha @ K).T, atol=1e-8)
    printed = Phi @ W @ (alpha @ K) @ K
    assert np.abs(printed.T - found).max() > 0.1
    assert np.abs((Phi @ W @ alpha).T - found).max() > 0.1


def test_bo_e_37_truncated_features_keep_the_penalty(data):
    """C = ČW̌ᵀ minimizes (1/n) Σ‖ΦCᵀx_i − y_i‖² + λ‖Č‖² with Č (q, r), with λ and for the transposed product."""
    X, grid, Y, _, _, _ = data
    dictionary = BSplines(D)
    model = ovkgp.FeatureProjectionRegressor(dictionary, features="nystrom", num_features=N, **OPTIONS)
    H = model.fit(X, FunctionalData(Y, grid, (0, 1))).predict(X, grid)
    Z, Phi = np.linalg.cholesky(gauss(X, X)), dictionary(grid)  # (n, q) with q = n
    upsilon, W = np.linalg.eigh(Phi.T @ Phi / M)
    C = np.stack(
        [
            np.linalg.solve(Z.T @ Z * u + N * LAM * np.eye(N), Z.T @ Y @ Phi @ w / M)
            for u, w in zip(upsilon, W.T, strict=True)
        ],
        1,
    )  # (q, r)
    np.testing.assert_allclose(H, Z @ C @ W.T @ Phi.T, atol=1e-7)
    gradient = 2 / (N * M) * Z.T @ (Z @ C @ W.T @ Phi.T - Y) @ Phi @ W + 2 * LAM * C
    assert np.abs(gradient).max() < 1e-10
    assert np.abs(gradient - 2 * LAM * C + 2 * C).max() > 1e-2  # the penalty without λ, as printed


# --- ridge regression ---------------------------------------------------------------------------------------------------


def test_bo_e_01_half_the_square_loss_doubles_the_ridge(data):
    """(1/n) Σ ½(h − y)² + λ‖h‖² has the solution (K + 2nλ)⁻¹y, convention "mean_halved"; the printed nλ is not stationary (BO C-02)."""
    X, _, Y, _, _, _ = data
    K, y = gauss(X, X), Y[:, :1]
    model = ovkgp.OVKRidge(kernel=rbf(), lam=LAM, convention="mean_halved", fit_intercept=False).fit(X, y)
    assert model.noise_ == pytest.approx(2 * N * LAM)
    for factor, is_stationary in ((2, True), (1, False)):
        a = np.linalg.solve(K + factor * N * LAM * np.eye(N), y)
        gradient = K @ (K @ a - y) / N + 2 * LAM * K @ a
        assert (np.abs(gradient).max() < 1e-12) == is_stationary
        assert np.allclose(model.predict(X).reshape(-1, 1), K @ a, atol=1e-8) == is_stationary


def test_bo_c_01_solutions_are_combinations_of_the_kernel_at_the_data():
    """In a feature space five times as large, the part of W orthogonal to the features of the data is zero."""
    rng = np.random.default_rng(0)
    rows, tasks = (torch.from_numpy(rng.standard_normal(shape) / 6) for shape in ((N, 5 * N), (M, 3)))
    measure = TaskMeasure(np.linspace(0, 1, M))
    y = torch.from_numpy(rng.standard_normal((N, M)))
    for loss in (IntegralLoss(Square(), measure), CurveHuber(0.3, 2, measure)):
        W = solve_dual(TaskProblem(rows, tasks, y, loss, LAM), tolerance=1e-6).weights
        span = torch.linalg.pinv(rows) @ rows
        assert (W - span @ W).abs().max() < 1e-9 < W.abs().max()


def test_bo_c_05_three_forms_of_nystroem_ridge(data):
    """(K_nqᵀK_nq + λnK_qq)⁻¹K_nqᵀy, ridge on Nyström features, and the mean of the process with these features and noise nλ."""
    X, _, Y, Xs, _, _ = data
    y, Q, kernel = Y[:, :1], X[:5], rbf()
    Kn, Kq, Ks = gauss(X, Q), gauss(Q, Q), gauss(Xs, Q)
    first = Ks @ np.linalg.solve(Kn.T @ Kn + LAM * N * Kq, Kn.T @ y)
    values, vectors = np.linalg.eigh(Kq)
    Z, Zs = (K @ vectors / np.sqrt(values) for K in (Kn, Ks))
    second = Zs @ np.linalg.solve(Z.T @ Z + LAM * N * np.eye(5), Z.T @ y)
    gp = OperatorValuedGP(kernel, mean="zero", noise=N * LAM, features=Nystrom(kernel, torch.from_numpy(Q)))
    third = gp.condition(torch.from_numpy(X), torch.from_numpy(y)).predict(torch.from_numpy(Xs)).mean.numpy()
    np.testing.assert_allclose(second, first, atol=1e-10)
    np.testing.assert_allclose(third, first, atol=1e-7)


# --- duality ------------------------------------------------------------------------------------------------------------


def dual_case(seed=0, kappa=0.3):
    """Curves on m points with Gaussian kernels, H² loss, and the Gram matrices."""
    rng = np.random.default_rng(seed)
    x, t = rng.uniform(0, 2, (N, 1)), np.linspace(0, 1, M)[:, None]
    K, T = gauss(x, x, 0.6), gauss(t, t, 0.3)
    roots = [np.linalg.cholesky(G + 1e-12 * np.eye(len(G))) for G in (K, T)]
    y = np.sin(3 * x + 4 * t.T) + 0.5 * rng.standard_normal((N, M))
    loss = CurveHuber(kappa, 2, TaskMeasure(t[:, 0]))
    return K, T, TaskProblem(*map(torch.from_numpy, (*roots, y)), loss, LAM)


def test_bo_e_03_bo_e_32_bo_e_26_the_dual_has_the_operator_between_the_dual_curves():
    """Strong duality for the primal (7.1), BO-E-26, with ⟨α_i, T α_j⟩; with ⟨α_i, α_j⟩ the values differ (BO-E-03, BO-E-32)."""
    K, T, problem = dual_case()
    found = solve_dual(problem, tolerance=1e-10)
    A, y = found.dual.numpy(), problem.targets.numpy()
    linear = (0.5 * (A**2).mean(1) - (A * y).mean(1)).sum()
    quadratic = np.trace(K @ A @ T @ A.T) / M**2 / (2 * LAM * N)
    assert -(linear + quadratic) / N == pytest.approx(found.objective, rel=1e-8)
    printed = np.trace(K @ A @ A.T) / M / (2 * LAM * N)
    assert abs(-(linear + printed) / N - found.objective) > 0.1 * found.objective


def test_bo_e_27_the_norm_of_the_function_has_the_squares_of_all_factors():
    """‖h‖² = Tr(AᵀK_TAK_X)/(λnm)²; the printed value is λn times as large."""
    K, T, problem = dual_case()
    found = solve_dual(problem, tolerance=1e-10)
    A = found.dual.numpy()
    square = problem.dual_weights(found.dual).square().sum().item()
    trace = np.trace(K @ A @ T @ A.T)
    assert trace / (LAM * N * M) ** 2 == pytest.approx(square, rel=1e-6)
    assert trace / (LAM * N * M**2) == pytest.approx(LAM * N * square, rel=1e-6)
    assert not np.isclose(trace / (LAM * N * M**2), square, rtol=0.1)


def test_bo_c_26_gaps_of_the_dual_solver_close():
    """BO C-26 for H²: primal − dual < 1e-10 (printed thresholds: `test_printed_thresholds_leave_a_gap_bo_e_29`)."""
    problem = dual_case()[2]
    found = solve_dual(problem, tolerance=1e-10)
    assert -1e-14 <= found.gap < 1e-10


def accelerated_values(problem, steps, num_steps):
    """Dual objective along accelerated proximal gradient steps from 0, negative so that it is minimized, times n."""
    A = previous = torch.zeros_like(problem.targets)
    values, t = [], 1.0
    for _ in range(num_steps):
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        V = A + (t - 1) / after * (A - previous)
        U = V - steps * problem.values(problem.dual_weights(V))
        previous, A, t = A, -problem.loss.conjugate_prox(-U, problem.targets, steps), after
        values.append(-N * problem.dual_objective(A).item())
    return np.array(values)


def test_bo_c_29_rate_of_accelerated_gradients_and_bo_e_28_their_step():
    """F(A_T) − F* ≤ 2L‖A_0 − A*‖²/(T + 1)² for the step 1/L with the tight L of BO-E-28."""
    K, T, problem = dual_case(kappa=1e3)
    L = np.linalg.norm(K, 2) * np.linalg.norm(T, 2) / (LAM * N * M)
    assert lipschitz_constant(problem) == pytest.approx(L, rel=0.1) and lipschitz_constant(problem) >= L * (1 - 1e-9)
    best = solve_square(
        TaskProblem(problem.inputs, problem.tasks, problem.targets, IntegralLoss(Square(), problem.loss.measure), LAM)
    )
    distance = (best.dual**2).mean(1).sum().item()
    values = accelerated_values(problem, 1 / L, 60)
    excess = values + N * best.objective
    bound = 2 * L * distance / (np.arange(1, 61) + 1) ** 2
    assert (excess >= -1e-9).all() and (excess <= bound + 1e-12).all()


# --- risk and operators -------------------------------------------------------------------------------------------------


def test_bo_e_02_bo_c_34_excess_risk_is_a_squared_norm(data):
    """R(Φh) − R(Φh*) = ‖√T(h − h*)‖², the square of what is printed (BO-E-02): finite inputs, known distribution."""
    rng = np.random.default_rng(0)
    grid = (np.arange(M) + 0.5) / M
    Phi, weights = Fourier(2, (0, 1))(grid), rng.dirichlet(np.ones(N))
    target = rng.standard_normal((N, M))
    G = Phi.T @ Phi / M
    best = np.linalg.solve(G, Phi.T @ target.T / M).T  # h*(x_i), any values of h at the N inputs
    h = best + rng.standard_normal(best.shape)

    def risk(coefficients):
        return weights @ ((coefficients @ Phi.T - target) ** 2).mean(1)

    square = weights @ np.einsum("ij,jk,ik->i", h - best, G, h - best)
    assert risk(h) - risk(best) == pytest.approx(square, rel=1e-12)
    assert abs(risk(h) - risk(best) - np.sqrt(square)) > 0.1


def test_bo_c_07_bo_11_composed_kernel_is_an_operator_valued_kernel(data):
    """k(x, z) ΦBΦ# on a grid: symmetric, positive, and Ψ(x)Ψ(z)# for Ψ = φ_X ⊗ ΦB^½ (BO-11)."""
    X, grid, _, _, _, B = data
    matrix = BSplines(D)(grid) @ B @ BSplines(D)(grid).T
    kernel = ovkgp.kernels.DecomposableKernel(rbf(), output_matrix=torch.from_numpy(matrix)).double()
    gram = kernel(torch.from_numpy(X)).to_dense().detach().numpy()
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    a = np.random.default_rng(1).standard_normal((50, N * M))
    assert (np.einsum("ki,ij,kj->k", a, gram, a) >= -1e-10).all()
    values, vectors = np.linalg.eigh(B)
    features = np.kron(np.linalg.cholesky(gauss(X, X)), BSplines(D)(grid) @ vectors * np.sqrt(values))
    np.testing.assert_allclose(features @ features.T, gram, atol=1e-8)
    assert np.linalg.matrix_rank(gram, tol=1e-8) <= N * D


def test_bo_c_37_norms_of_operators_are_below_their_bounds():
    """‖T_x‖_HS = κ‖G‖_F ≤ √d κ C_φ², and ‖√A − √B‖ ≤ ‖A − B‖^½ for positive semidefinite matrices (that of Φ: BO-E-17)."""
    dictionary, rng = BSplines(7), np.random.default_rng(0)
    assert np.linalg.norm(dictionary.gram()) <= np.sqrt(7) * dictionary.riesz_constants[1] ** 2
    for rank in (1, 3, 6):
        roots, squares = [], []
        for _ in range(2):
            factor = rng.standard_normal((6, rank))
            squares.append(factor @ factor.T)
            values, vectors = np.linalg.eigh(squares[-1])
            roots.append((vectors * np.sqrt(values.clip(0))) @ vectors.T)
        assert np.linalg.norm(roots[0] - roots[1], 2) <= np.sqrt(np.linalg.norm(squares[0] - squares[1], 2))


# --- BO §6.3 and bounds -------------------------------------------------------------------------------------------------


def test_bo_6_3_plug_in_is_a_whitened_process_of_pseudo_targets(data):
    """BO-62: V replaced by (1/m) Φ̃ᵀy with the exact Gram G: the posterior mean for targets G^{−½}ṽ, G^½BG^½ and noise nλ."""
    X, grid, Y, Xs, new, B = data
    dictionary = BSplines(D)
    with pytest.warns(FitWarning):  # the points are few for this Gram matrix
        model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, method="plug_in", **OPTIONS).fit(
            X, FunctionalData(Y, grid, (0, 1))
        )
    values, W = np.linalg.eigh(dictionary.gram())
    root, inverse = (W * values**power @ W.T for power in (0.5, -0.5))
    targets, C = Y @ dictionary(grid) / M @ inverse, root @ B @ root
    alpha = np.linalg.solve(np.kron(gauss(X, X), C) + N * LAM * np.eye(N * D), targets.ravel())
    coefficients = (np.kron(gauss(Xs, X), C) @ alpha).reshape(-1, D)
    np.testing.assert_allclose(model.predict(Xs, new), coefficients @ inverse @ dictionary(new).T, atol=1e-8)


def test_bo_6_3_effective_rank_truncates_the_prior(data):
    """With B̌ = I the prior of the effective rank is k_X φᵀW̌W̌ᵀφ: mean and variance of the grid process with noise nmλ."""
    X, grid, Y, Xs, new, _ = data
    dictionary = BSplines(D)
    values, W = np.linalg.eigh(dictionary.gram())
    threshold = (values[1] + values[2]) / 2
    W = W[:, values > threshold]
    model = ovkgp.KernelProjectionRegressor(dictionary, rank_threshold=threshold, **OPTIONS)
    mean, std = model.fit(X, FunctionalData(Y, grid, (0, 1))).predict(Xs, new, return_std=True, noise=False)
    rows, new_rows = dictionary(grid) @ W, dictionary(new) @ W
    C = np.kron(gauss(X, X), rows @ rows.T) + N * M * LAM * np.eye(N * M)
    cross = np.kron(gauss(Xs, X), new_rows @ rows.T)
    np.testing.assert_allclose(mean.ravel(), cross @ np.linalg.solve(C, Y.ravel()), atol=1e-8)
    prior = np.tile((new_rows**2).sum(1), len(Xs))
    variance = prior - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))
    np.testing.assert_allclose(std.ravel() ** 2, variance, atol=1e-8)


def test_bo_6_2_slope_of_the_evidence_in_lam_is_that_of_the_grid(data):
    """Identity 6: with the term of the curves off the dictionary, d log p/d log λ equals that of the dense evidence."""
    X, grid, Y, _, _, B = data
    dictionary, step = BSplines(D), 1e-4

    def projected(lam):
        model = ovkgp.KernelProjectionRegressor(dictionary, output_matrix=B, **(OPTIONS | {"lam": lam}))
        return model.fit(X, FunctionalData(Y, grid, (0, 1))).log_evidence_

    Phi = dictionary(grid)
    K, y = np.kron(gauss(X, X), Phi @ B @ Phi.T), Y.ravel()
    inverse = np.linalg.inv(K + N * M * LAM * np.eye(N * M))
    dense = N * M * LAM * (y @ inverse @ inverse @ y - np.trace(inverse)) / 2
    slope = (projected(LAM * np.exp(step)) - projected(LAM * np.exp(-step))) / (2 * step)
    assert slope == pytest.approx(dense, rel=1e-5)


def simulate_projection(n, seed, points=None, noise=0.3):
    """Curves Φh*(x) + bounded noise with h* = Σ_j k(·, z_j) c_j and an orthonormal Φ; R² = ‖h*‖², L bounds ‖y‖."""
    rng = np.random.default_rng(seed)
    dictionary, fixed = Fourier(2, (0, 1)), np.random.default_rng(1)
    z, c = fixed.uniform(-1, 1, (4, 1)), fixed.standard_normal((4, 3)) / 3
    x, grid = rng.uniform(-1, 1, (n, 1)), (np.arange(40) + 0.5) / 40
    truth = gauss(x, z) @ c
    curves = (truth + noise * rng.uniform(-1, 1, truth.shape)) @ dictionary(grid).T
    data = FunctionalData(curves, grid, (0, 1))
    if points is not None:
        where = [np.sort(rng.choice(40, points, replace=False)) for _ in range(n)]
        data = FunctionalData([row[w] for row, w in zip(curves, where, strict=True)], [grid[w] for w in where], (0, 1))
    R = np.sqrt(np.trace(c.T @ gauss(z, z) @ c))
    return x, data, dictionary, lambda at: gauss(at, z) @ c, R, R + noise * np.sqrt(3)


def excess_risk(n, seed, lam, points=None, method="exact"):
    """E‖Φ(ĥ − h*)(x)‖² on a fine set of inputs."""
    x, data, dictionary, truth, _, _ = simulate_projection(n, seed, points)
    model = ovkgp.KernelProjectionRegressor(dictionary, method=method, **(OPTIONS | {"lam": lam})).fit(x, data)
    at, grid = np.linspace(-1, 1, 101)[:, None], (np.arange(40) + 0.5) / 40
    return np.mean((model.predict(at, grid) - truth(at) @ dictionary(grid).T) ** 2)


@pytest.mark.slow
def test_bo_c_35_excess_risk_of_the_ridge_is_below_its_bound_and_decreases():
    """27(B_0/√d + B_1√d) log(4/η)/√n for λ* = 6κC²log(4/η)√(d/n); slope ≤ −0.4 for λ ∝ n^{−½}."""
    eta, d = 0.05, 3
    R, L = simulate_projection(2, 0)[-2:]
    for n in (40, 160):
        lam = 6 * np.log(4 / eta) * np.sqrt(d / n)
        bound = 27 * ((L + R) ** 2 / np.sqrt(d) + R**2 * np.sqrt(d)) * np.log(4 / eta) / np.sqrt(n)
        assert max(excess_risk(n, seed, lam) for seed in range(5)) <= bound
    sizes = np.array([40, 160, 640])
    errors = [np.mean([excess_risk(n, seed, 0.3 / np.sqrt(n)) for seed in range(4)]) for n in sizes]
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] <= -0.4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_bo_c_36_plug_in_is_consistent_if_points_grow_with_the_root_of_n():
    """m = ⌈√n⌉ points per curve: the error decreases; m = 3: it stays on a plateau that inner products by few points leave."""
    sizes = (40, 160, 640)

    def errors(points):
        return [
            np.mean([excess_risk(n, seed, 0.03 / np.sqrt(n), points(n), "plug_in") for seed in range(3)]) for n in sizes
        ]

    growing, fixed = errors(lambda n: int(np.ceil(np.sqrt(n)))), errors(lambda n: 3)
    assert growing[2] < 0.35 * growing[0] and growing[2] < 0.35 * fixed[2]


def test_bo_e_24_projections_of_curves_are_bounded_by_the_bound_of_curves():
    """‖K_x Φ#y‖ ≤ √κ C_φ L for ‖y‖ ≤ L; with R = ‖h*‖ instead of L, as printed, curves around h* = 0 exceed the bound."""
    rng, grid = np.random.default_rng(0), (np.arange(200) + 0.5) / 200
    Phi = Fourier(3, (0, 1))(grid)
    curves = rng.standard_normal((100, Phi.shape[1])) @ Phi.T + 0.5 * rng.standard_normal((100, 200))
    L, C = np.sqrt(np.square(curves).mean(1)).max(), np.linalg.norm(Phi / np.sqrt(200), 2)
    norms = np.linalg.norm(curves @ Phi / 200, axis=1)  # κ = k(x, x) = 1
    assert (norms <= C * L).all()
    R = np.sqrt(np.square(curves).mean(1).mean()) / 10  # any h* of small norm
    assert (norms > C * R).any()


def test_bo_e_23_constants_of_the_plug_in_bound():
    """The second and third terms of (6.45) at λ*: 18√d(C² + CR/√d)/m^{3/2} and (9/2)√d C²/(√n m), without the printed factors."""
    L, M, C_phi, R, kappa, n, m, eta = 1.3, 1.4, 1.1, 0.7, 0.9, 50, 20, 0.1
    for d in (1, 4, 9):
        log = np.log(6 / eta)
        lam = 6 * kappa * C_phi**2 * log * np.sqrt(d / n)
        A_0 = 4 * np.sqrt(kappa) * (L * np.sqrt(d) * M + C_phi * R)
        A_1 = 2 * L * np.sqrt(kappa * d) * M
        second, third = (27 / 4 * term * log**2 / lam for term in (2 * A_0 * A_1 / (n**0.5 * m**1.5), A_1**2 / (n * m)))
        C = L * M / C_phi
        B_3 = 18 * np.sqrt(d) * (C**2 + C * R / np.sqrt(d))
        assert second == pytest.approx(B_3 / m**1.5 * log, rel=1e-12)
        assert third == pytest.approx(4.5 * np.sqrt(d) * C**2 / (np.sqrt(n) * m) * log, rel=1e-12)
        printed = 18 * np.sqrt(d) * (C + R / np.sqrt(d)) ** 2 - 18 * R**2 / np.sqrt(d)
        assert printed > B_3  # larger than necessary, so still a bound
        assert (third > 4.5 * C**2 / (np.sqrt(n) * m) * log * (1 + 1e-9)) == (d > 1)  # the printed one is none


def test_bo_e_25_empirical_operators_concentrate_with_log_2_over_eta():
    """‖T_x − T_Φ‖_HS ≤ 6κC²√d log(2/η)/√n, as Bernstein's inequality gives it; log(4/η) inside the proof is larger."""
    rng, eta, n, d = np.random.default_rng(0), 0.1, 200, 3
    x, weights = rng.uniform(-1, 1, (20, 1)), rng.dirichlet(np.ones(20))
    squares = gauss(x, x) ** 2  # of the traces of T_x T_z = k(x, z)² G², with G = I and κ = C = 1
    norms = []
    for _ in range(400):
        difference = rng.multinomial(n, weights) / n - weights
        norms.append(np.sqrt(d * difference @ squares @ difference))
    largest, spread = 2 * np.sqrt(d), np.sqrt(d)  # H and σ of Lemma 6.21
    bernstein = 2 * (largest / n + spread / np.sqrt(n)) * np.log(2 / eta)
    stated = 6 * np.sqrt(d) * np.log(2 / eta) / np.sqrt(n)
    assert np.mean(np.array(norms) <= bernstein) >= 1 - eta
    assert bernstein <= stated < 6 * np.sqrt(d) * np.log(4 / eta) / np.sqrt(n)
    assert np.sqrt(d) * np.log(4 / eta) * (4 / n + 2 / np.sqrt(n)) > bernstein * 1.2
