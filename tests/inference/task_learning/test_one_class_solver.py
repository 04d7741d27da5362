"""The solver of all one-class SVMs: certificates, scikit-learn's SVMs, a general solver as an oracle, and the ν-property."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.svm import OneClassSVM

from ovkgp.exceptions import FitWarning
from ovkgp.inference.tasks.one_class import OneClassProblem, solve_one_class
from ovkgp.inference.tasks.one_class_path import OneClassPath
from ovkgp.losses import gauss_legendre


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def rows_of(K):
    values, vectors = np.linalg.eigh(K)
    return torch.from_numpy(vectors * np.sqrt(np.clip(values, 0, None)))


def problem(n=60, m=8, lam=0.0, seed=0, weighted=False, lengthscale=0.8, lowest=0.05):
    rng = np.random.default_rng(seed)
    X, measure = rng.standard_normal((n, 2)), gauss_legendre(m, lowest, 1.0)
    levels = measure.nodes.numpy()[:, None]
    s = torch.from_numpy(rng.uniform(0.3, 3, n)) if weighted else None
    P = OneClassProblem(rows_of(gauss(X, X, lengthscale)), measure, rows_of(gauss(levels, levels, 0.3)), lam, s)
    return X, P


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lam", [0.0, 1e-6, 1e-3, 0.1, 10.0])
def test_the_gap_is_small_at_every_penalty(lam, weighted):
    _, P = problem(lam=lam, weighted=weighted)
    solution = solve_one_class(P)
    assert -1e-10 <= solution.gap <= 1e-6 * abs(solution.objective)
    assert solution.report.converged
    assert ((solution.dual >= 0) & (solution.dual <= P.bounds * (1 + 1e-9))).all()
    torch.testing.assert_close(solution.weights, P.inputs.T @ solution.dual)


@pytest.mark.parametrize("lam", [0.0, 1e-6])
def test_b_26_without_a_penalty_each_level_is_a_support_vector_machine_of_its_own(lam):
    """LT B-26: α and ρ of scikit-learn divided by nθ."""
    X, P = problem(lam=lam)
    solution = solve_one_class(P)
    for j, nu in enumerate(P.levels.tolist()):
        svm = OneClassSVM(gamma=1 / (2 * 0.8**2), nu=nu, tol=1e-10).fit(X)
        scale = len(X) * nu
        H = P.values(solution.weights)[:, j].numpy()
        np.testing.assert_allclose(H, svm.score_samples(X) / scale, atol=1e-6 if lam == 0 else 2e-4)
        assert solution.thresholds[j].item() == pytest.approx(svm.offset_[0] / scale, abs=1e-6 if lam == 0 else 2e-4)


def test_b_27_the_nu_property():
    """LT B-27: the share strictly below is at most θ, the share below or on the threshold at least θ."""
    for seed in range(3):
        _, P = problem(seed=seed, weighted=True, m=12)
        solution = solve_one_class(P)
        excess = P.values(solution.weights) - solution.thresholds
        share = P.row_weights / P.total_weight
        slack = 1e-8 * solution.thresholds.abs()
        below, not_above = ((share[:, None] * (part)).sum(0) for part in (excess < -slack, excess <= slack))
        assert (below <= P.levels + 1e-12).all() and (not_above >= P.levels - 1e-12).all()


@pytest.mark.parametrize("lam", [1e-3, 0.3])
def test_a_general_solver_finds_nothing_better(lam):
    """The dual in coordinates by L-BFGS-B, on a tiny problem."""
    _, P = problem(n=10, m=3, lam=lam, weighted=True)
    solution = solve_one_class(P)
    eta, bounds = P.weights.numpy(), P.bounds.numpy()
    K, K_b = (P.inputs @ P.inputs.T).numpy(), (P.thresholds @ P.thresholds.T).numpy()

    def negative(flat):
        a = flat.reshape(10, 3)
        rest = eta * (1 - a.sum(0))
        value = (eta * np.einsum("ij,ik,kj->j", a, K, a)).sum() / 2 + rest @ K_b @ rest / (2 * lam)
        return value, (eta * (K @ a) - eta * (K_b @ rest) / lam).ravel()

    best = minimize(
        negative,
        bounds.ravel() / 2,
        jac=True,
        bounds=[(0, b) for b in bounds.ravel()],
        method="L-BFGS-B",
        options={"maxiter": 20_000, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-11},
    )
    assert solution.objective == pytest.approx(-best.fun, rel=1e-6)
    assert solution.objective >= -best.fun - 1e-9


@pytest.mark.parametrize("lam", [0.0, 1e-2])
def test_no_step_from_the_solution_goes_down(lam):
    _, P = problem(n=25, m=5, lam=lam)
    solution = solve_one_class(P)
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            w = solution.weights + size * torch.from_numpy(rng.standard_normal(solution.weights.shape))
            t = solution.thresholds + P.thresholds @ torch.from_numpy(size * rng.standard_normal(5))
            assert P.objective(w, t) >= solution.objective - 1e-12


def test_a_larger_penalty_makes_the_threshold_curve_smaller():
    norms = []
    for lam in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
        _, P = problem(lam=lam)
        norms.append(P.threshold_norm(solve_one_class(P).thresholds).item())
    assert (np.diff(norms) < 0).all() and norms[-1] < 0.1 * norms[0]


def test_a_path_that_is_at_hand_is_used():
    _, P = problem(n=20)
    path = OneClassPath(P.inputs.numpy(), P.row_weights.numpy())
    one, two = solve_one_class(P), solve_one_class(P, path=path)
    torch.testing.assert_close(one.weights, two.weights)
    assert len(path.segments) > 1


def test_a_few_newton_steps_are_enough():
    _, P = problem(lam=1e-2)
    solution = solve_one_class(P)
    path = OneClassPath(P.inputs.numpy())
    for level in P.levels.tolist():
        path.position(level)
    assert solution.report.iterations - len(path.segments) < 40


def test_a_gap_that_stays_large_warns():
    _, P = problem(lam=1e-2)
    with pytest.warns(FitWarning, match="gap"):
        solution = solve_one_class(P, max_iter=1)
    assert not solution.report.converged and solution.gap > 1e-6 * abs(solution.objective)


def test_the_map_of_a_gibbs_posterior():
    """ID-17: the solution is the mode of exp(−P) with h(·)(θ_j) ~ GP(0, k/η_j) and t ~ GP(0, k_b/λ), and of nothing normalised."""
    _, P = problem(n=20, m=4, lam=0.05)
    solution = solve_one_class(P)
    K, K_b = P.inputs @ P.inputs.T, P.thresholds @ P.thresholds.T
    H, t = P.values(solution.weights), solution.thresholds

    def negative_log_prior(H, t):
        jitter = 1e-10 * torch.eye(20).double()
        prior = sum(eta * h @ torch.linalg.solve(K + jitter, h) for eta, h in zip(P.weights, H.T, strict=True)) / 2
        return prior + 0.05 * t @ torch.linalg.solve(K_b, t) / 2

    short = (P.bounds * (t - H).clamp(min=0)).sum(0)
    pseudo = (P.weights * (short - t)).sum()
    assert (pseudo + negative_log_prior(H, t)).item() == pytest.approx(solution.objective, rel=1e-5)
