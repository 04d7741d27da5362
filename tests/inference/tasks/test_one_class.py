"""Tests of `ovkgp.inference.tasks.one_class`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from scipy.optimize import minimize
from sklearn.svm import OneClassSVM

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.one_class import (
    OneClassProblem,
    ThresholdOffset,
    are_nested,
    calibrate_thresholds,
    compute_level_scores,
    evaluate_thresholds,
    find_fraction_levels,
    interpolate_levels,
    interpolate_values,
    leave_one_out_values,
    make_decision_function,
    predictive_quantile,
    solve_one_class,
    sort_curves,
    strong_convexity,
)
from ovkgp.inference.tasks.one_class_path import OneClassPath, leave_one_out
from ovkgp.losses import gauss_legendre, grid


def tensors(n=7, r=4, m=3, q=2, seed=0):
    rng = np.random.default_rng(seed)
    phi, psi, w, t = (rng.standard_normal(shape) for shape in ((n, r), (m, q), (r, m), (q,)))
    return torch.from_numpy(phi), torch.from_numpy(psi), torch.from_numpy(w), torch.from_numpy(t)


def problem(lam=0.3, weighted=True, n=7, m=3):
    phi, psi, w, z = tensors(n=n, m=m)
    s = torch.linspace(0.5, 2.0, n).double() if weighted else None
    return OneClassProblem(phi, gauss_legendre(m, 0.05, 1.0), psi, lam, s), w, psi @ z, z


def test_one_class_objective_equals_its_formula():
    """LT-99: (1/N) Σ s [|t − h|_+ / θ − t], ½ Σ η ‖h(·)(θ)‖², (λ/2) ‖t‖²."""
    P, w, t, z = problem()
    s, eta, theta = P.row_weights.numpy(), P.weights.numpy(), P.levels.numpy()
    H = P.inputs.numpy() @ w.numpy()
    total = 0.0
    for j in range(3):
        for i in range(7):
            total += eta[j] * s[i] / s.sum() * (max(t[j].item() - H[i, j], 0) / theta[j] - t[j].item())
        total += eta[j] * np.square(w.numpy()[:, j]).sum() / 2
    total += 0.3 / 2 * np.square(z.numpy()).sum()
    assert P.objective(w, t).item() == pytest.approx(total, rel=1e-12)
    assert P.threshold_norm(t).item() == pytest.approx(np.square(z.numpy()).sum())


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_every_feasible_dual_value_is_below_every_objective(lam):
    P, _, _, _ = problem(lam)
    rng = np.random.default_rng(1)
    for _ in range(50):
        dual = torch.from_numpy(rng.uniform(size=(7, 3))) * P.bounds
        if lam == 0:
            excess_mass = dual.sum(0) - 1  # sums of 1 within the bounds, whose sums are 1/θ ≥ 1
            dual = torch.where(
                excess_mass > 0, dual / dual.sum(0), dual + (P.bounds - dual) * -excess_mass / (P.bounds - dual).sum(0)
            )
            torch.testing.assert_close(dual.sum(0), torch.ones(3).double())
        w = torch.from_numpy(rng.standard_normal((4, 3)) * rng.uniform(0.01, 2))
        t = P.thresholds @ torch.from_numpy(rng.standard_normal(2))
        assert (dual <= P.bounds + 1e-12).all()
        assert P.objective(w, t) >= P.dual_objective(dual) - 1e-12


def test_lt_e_41_a_level_is_the_mass_left_outside():
    """A small θ has a set that holds nearly all rows, and a large one few: inlier mass 1 − θ."""
    X = torch.linspace(-2, 2, 40).double()[:, None]
    rows = torch.linalg.cholesky(torch.exp(-((X - X.T) ** 2)) + 1e-8 * torch.eye(40))
    P = OneClassProblem(rows, grid([0.1, 0.5, 0.9]))
    solution = solve_one_class(P)
    inside = (P.values(solution.weights) >= solution.thresholds - 1e-8).double().mean(0)
    np.testing.assert_allclose(inside, [0.9, 0.5, 0.1], atol=0.051)


def test_lt_e_36_strong_convexity_counts_the_weights():
    """Ω̃(h) + (λ/2) ‖t‖² is min(λ, min_j η_j · λ_min(K_Θ))-strongly convex; without η the bound fails."""
    rng = np.random.default_rng(0)
    theta, eta = np.array([0.1, 0.4, 0.6, 1.0]), np.array([0.05, 0.5, 0.15, 0.3])
    K_T = np.exp(-((theta[:, None] - theta) ** 2) / (2 * 0.2**2))
    X = rng.standard_normal((6, 2))
    K_X = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1))
    constant = strong_convexity(torch.from_numpy(eta), torch.from_numpy(K_T), lam=1e9)
    assert constant == pytest.approx(0.05 * np.linalg.eigvalsh(K_T)[0])
    ratios = []
    directions = [rng.standard_normal((6, 4)) for _ in range(200)]
    directions += [np.outer(rng.standard_normal(6), np.linalg.solve(K_T, np.eye(4)[j])) for j in range(4)]
    for alpha in directions:
        W = alpha @ K_T  # h(·)(θ_j) = Σ_i W_ij k_X(·, x_i)
        penalty = np.einsum("j,ij,ik,kj->", eta, W, K_X, W)
        norm = np.einsum("ij,ik,kl,jl->", alpha, K_X, alpha, K_T)
        ratios.append(penalty / norm)
    assert min(ratios) >= constant
    assert min(ratios) < np.linalg.eigvalsh(K_T)[0]  # the printed constant, without η, is too large


def test_joint_strong_convexity_is_the_smaller_of_the_two():
    eta, K_T = torch.tensor([0.25, 0.75]).double(), torch.eye(2).double()
    assert strong_convexity(eta, K_T, lam=1e-3) == 1e-3
    assert strong_convexity(eta, K_T, lam=7.0) == 0.25
    assert strong_convexity(eta, torch.ones(2, 2).double(), lam=7.0) == pytest.approx(0, abs=1e-15)


def test_id_17_prior_of_the_features_weights_each_level():
    """BT-104 in features, h = φᵀ Θ φ_T(ν): with the density 2ν the penalty is ½ Tr(Θ S Θᵀ), S = mean of ν φ_T φ_Tᵀ, not ½ ‖Θ‖²."""
    rng = np.random.default_rng(0)
    nu = rng.uniform(0.1, 1, 6)
    phi, phi_T, Theta, tau = (rng.standard_normal(shape) for shape in ((9, 4), (6, 5), (4, 5), 5))
    P = OneClassProblem(torch.from_numpy(phi), grid(nu, nu / nu.sum()))
    t, H = phi_T @ tau, phi @ Theta @ phi_T.T
    S = np.einsum("j,ja,jb->ab", nu, phi_T, phi_T) / 6
    brault = np.clip(t - H, 0, None).mean() + np.trace(Theta @ S @ Theta.T) / 2 - (nu * t).mean()
    ours = P.objective(torch.from_numpy(Theta @ phi_T.T), torch.from_numpy(t)).item()
    assert ours * nu.mean() == pytest.approx(brault, rel=1e-12)
    unscaled = OneClassProblem(torch.from_numpy(phi), grid(nu))
    assert unscaled.objective(
        torch.from_numpy(Theta @ phi_T.T), torch.from_numpy(t)
    ).item() * nu.mean() != pytest.approx(brault)


def test_dual_bounds_sum_to_the_inverse_levels():
    P, _, _, _ = problem()
    np.testing.assert_allclose(P.bounds.sum(0), 1 / P.levels)
    assert P.total_weight == P.row_weights.sum()


@pytest.mark.parametrize(
    ("levels", "weights"), [([0.0, 0.5], [0.5, 0.5]), ([0.5, 1.2], [0.5, 0.5]), ([0.2, 0.5], [0.0, 1.0])]
)
def test_one_class_problem_rejects_invalid_levels_and_weights(levels, weights):
    phi, _, _, _ = tensors()
    with pytest.raises(InputError, match=r"levels|weights"):
        OneClassProblem(phi, grid(levels, weights))


@pytest.mark.parametrize("lam", [-1.0, float("nan"), 0.1])
def test_one_class_problem_rejects_a_penalty_without_a_threshold_kernel(lam):
    with pytest.raises(OptionError, match="lam"):
        OneClassProblem(tensors()[0], grid([0.5]), None, lam)


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def rows_of(K):
    values, vectors = np.linalg.eigh(K)
    return torch.from_numpy(vectors * np.sqrt(np.clip(values, 0, None)))


def svm_problem(n=60, m=8, lam=0.0, seed=0, weighted=False, lengthscale=0.8, lowest=0.05):
    rng = np.random.default_rng(seed)
    X, measure = rng.standard_normal((n, 2)), gauss_legendre(m, lowest, 1.0)
    levels = measure.nodes.numpy()[:, None]
    s = torch.from_numpy(rng.uniform(0.3, 3, n)) if weighted else None
    P = OneClassProblem(rows_of(gauss(X, X, lengthscale)), measure, rows_of(gauss(levels, levels, 0.3)), lam, s)
    return X, P


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lam", [0.0, 1e-6, 1e-3, 0.1, 10.0])
def test_gap_is_small_at_every_penalty(lam, weighted):
    _, P = svm_problem(lam=lam, weighted=weighted)
    solution = solve_one_class(P)
    assert -1e-10 <= solution.gap <= 1e-6 * abs(solution.objective)
    assert solution.report.converged
    assert ((solution.dual >= 0) & (solution.dual <= P.bounds * (1 + 1e-9))).all()
    torch.testing.assert_close(solution.weights, P.inputs.T @ solution.dual)


@pytest.mark.parametrize("lam", [0.0, 1e-6])
def test_b_26_levels_are_separate_svms_without_a_penalty(lam):
    """LT B-26: α and ρ of scikit-learn divided by nθ."""
    X, P = svm_problem(lam=lam)
    solution = solve_one_class(P)
    for j, nu in enumerate(P.levels.tolist()):
        svm = OneClassSVM(gamma=1 / (2 * 0.8**2), nu=nu, tol=1e-10).fit(X)
        scale = len(X) * nu
        H = P.values(solution.weights)[:, j].numpy()
        np.testing.assert_allclose(H, svm.score_samples(X) / scale, atol=1e-6 if lam == 0 else 2e-4)
        assert solution.thresholds[j].item() == pytest.approx(svm.offset_[0] / scale, abs=1e-6 if lam == 0 else 2e-4)


def test_b_27_nu_property_holds_at_every_level():
    """LT B-27: the share strictly below is at most θ, the share below or on the threshold at least θ."""
    for seed in range(3):
        _, P = svm_problem(seed=seed, weighted=True, m=12)
        solution = solve_one_class(P)
        excess = P.values(solution.weights) - solution.thresholds
        fractions = P.row_weights / P.total_weight
        slack = 1e-8 * solution.thresholds.abs()
        below, not_above = ((fractions[:, None] * (part)).sum(0) for part in (excess < -slack, excess <= slack))
        assert (below <= P.levels + 1e-12).all() and (not_above >= P.levels - 1e-12).all()


@pytest.mark.parametrize("lam", [1e-3, 0.3])
def test_solve_one_class_agrees_with_a_general_solver(lam):
    """The dual in coordinates by L-BFGS-B, on a tiny problem."""
    _, P = svm_problem(n=10, m=3, lam=lam, weighted=True)
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
def test_random_steps_from_the_solution_do_not_decrease_the_objective(lam):
    _, P = svm_problem(n=25, m=5, lam=lam)
    solution = solve_one_class(P)
    rng = np.random.default_rng(0)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            w = solution.weights + size * torch.from_numpy(rng.standard_normal(solution.weights.shape))
            t = solution.thresholds + P.thresholds @ torch.from_numpy(size * rng.standard_normal(5))
            assert P.objective(w, t) >= solution.objective - 1e-12


def test_larger_penalty_makes_the_threshold_curve_smaller():
    norms = []
    for lam in (1e-3, 1e-2, 1e-1, 1.0, 10.0):
        _, P = svm_problem(lam=lam)
        norms.append(P.threshold_norm(solve_one_class(P).thresholds).item())
    assert (np.diff(norms) < 0).all() and norms[-1] < 0.1 * norms[0]


def test_solve_one_class_uses_a_given_path():
    _, P = svm_problem(n=20)
    path = OneClassPath(P.inputs.numpy(), P.row_weights.numpy())
    one, two = solve_one_class(P), solve_one_class(P, path=path)
    torch.testing.assert_close(one.weights, two.weights)
    assert len(path.segments) > 1


def test_solve_one_class_takes_few_newton_steps():
    _, P = svm_problem(lam=1e-2)
    solution = solve_one_class(P)
    path = OneClassPath(P.inputs.numpy())
    for level in P.levels.tolist():
        path.position(level)
    assert solution.report.iterations - len(path.segments) < 40


def test_solve_one_class_warns_of_a_large_gap():
    _, P = svm_problem(lam=1e-2)
    with pytest.warns(FitWarning, match="gap"):
        solution = solve_one_class(P, max_iter=1)
    assert not solution.report.converged and solution.gap > 1e-6 * abs(solution.objective)


def test_solution_is_the_mode_of_a_gibbs_posterior():
    """ID-17: the solution is the mode of exp(−P) with h(·)(θ_j) ~ GP(0, k/η_j) and t ~ GP(0, k_b/λ), and of nothing normalised."""
    _, P = svm_problem(n=20, m=4, lam=0.05)
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


def factor(levels, lengthscale):
    kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
    kernel.lengthscale = lengthscale
    return KernelFactor(kernel, torch.as_tensor(levels, dtype=torch.float64))


LEVELS, GRID = np.linspace(0.05, 1, 7), np.linspace(0.05, 1, 31)
TASKS, THRESHOLDS = factor(LEVELS, 0.3), factor(GRID, 0.2)


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    return rng.standard_normal((5, 7)), rng.standard_normal(31), rng.standard_normal((9, 5))


def test_decision_function_interpolates_the_levels(parts):
    w, t, X = parts
    d = make_decision_function(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    np.testing.assert_allclose(evaluate_thresholds(d, GRID), t, atol=1e-8)
    got = d(torch.from_numpy(X), torch.from_numpy(LEVELS)).numpy()
    np.testing.assert_allclose(got, X @ w - evaluate_thresholds(d, LEVELS), atol=1e-8)


def test_decision_function_has_the_least_norm(parts):
    """h(x)(θ) = k_Θ(θ, levels) K_Θ⁻¹ (φ(x)ᵀ w_j)_j, written out."""
    w, t, X = parts
    d = make_decision_function(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    new = np.array([0.1, 0.33, 0.9])

    def along(kernel, anchors, values):
        gram = kernel(torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        cross = kernel(torch.from_numpy(new)[:, None], torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        return np.linalg.solve(gram, values).T @ cross.T

    expected = along(TASKS.kernel, LEVELS, (X @ w).T) - along(THRESHOLDS.kernel, GRID, t)
    np.testing.assert_allclose(d(torch.from_numpy(X), torch.from_numpy(new)), expected, atol=1e-7)
    np.testing.assert_allclose(interpolate_values(X @ w, TASKS, new) - evaluate_thresholds(d, new), expected, atol=1e-7)


def test_slopes_of_the_offset_are_differences(parts):
    offset = ThresholdOffset(TASKS, torch.from_numpy(parts[1][:7]))
    points, step = torch.tensor([0.2, 0.5, 0.71]).double(), 1e-6
    differences = (offset(points + step) - offset(points - step)) / (2 * step)
    torch.testing.assert_close(offset.slopes(points), differences, rtol=1e-6, atol=1e-6)


def test_leave_one_out_values_are_those_of_the_path_times_the_threshold():
    rng = np.random.default_rng(0)
    path = OneClassPath(np.abs(rng.standard_normal((12, 6))))
    C = np.array([path.position(0.2), path.position(0.7), np.inf])
    t = np.array([0.5, 2.0, -1.0])
    held = leave_one_out_values(path, C, t)
    np.testing.assert_allclose(held[:, 0], 0.5 * leave_one_out(path, C[0]))
    np.testing.assert_allclose(held[:, 1], 2.0 * leave_one_out(path, C[1]))
    assert (held[:, 2] == 0).all()  # a threshold of 0 or less has h = 0


def test_calibrated_thresholds_have_their_level_below():
    rng = np.random.default_rng(0)
    curves = rng.uniform(0.1, 1, (2000, 1)) * np.ones(31) + 0.1 * GRID
    t = calibrate_thresholds(curves, np.ones(2000), GRID)
    np.testing.assert_allclose((curves < t).mean(0), GRID, atol=2e-3)
    heavy = np.where(curves[:, 0] < 0.5, 3.0, 1.0)
    t = calibrate_thresholds(curves, heavy, GRID)
    np.testing.assert_allclose(np.average(curves < t, axis=0, weights=heavy), GRID, atol=4e-3)


def test_calibrated_threshold_is_positive():
    t = calibrate_thresholds(np.array([[0.0], [0.0], [1.0]]), np.ones(3), np.array([0.3]))
    assert 0 < t[0] <= 1e-6


CURVE_LEVELS = np.linspace(0.01, 1, 101)


def curves(n=500, seed=0):
    """Return curves that decrease overall, with oscillations."""
    rng = np.random.default_rng(seed)
    height, phase = rng.uniform(size=(n, 1)) ** 2, rng.uniform(0, 2 * np.pi, (n, 1))
    return height + 0.1 - CURVE_LEVELS + 0.1 * np.sin(40 * CURVE_LEVELS + phase)


def test_sort_curves_keeps_the_values_and_makes_sets_nested():
    before, after = curves(), sort_curves(curves())
    np.testing.assert_array_equal(np.sort(after, 1), np.sort(before, 1))
    assert (np.diff(after, axis=1) <= 0).all()
    assert are_nested(before).mean() < 0.5 and are_nested(after).all()
    np.testing.assert_array_equal((after >= 0).sum(1), (before >= 0).sum(1))


def test_fraction_levels_give_each_level_its_mass():
    """Rearranging alone changes the mass of the sets; the levels of `find_fraction_levels` put it right, on fresh curves too."""
    sorted_curves = sort_curves(curves(5000))
    fractions = find_fraction_levels(curves(5000), CURVE_LEVELS, np.ones(5000))
    assert (np.diff(fractions) >= 0).all() and fractions.min() >= 0.01 and fractions.max() <= 1
    inner = (CURVE_LEVELS > 0.1) & (CURVE_LEVELS < 0.9)
    outside = (interpolate_levels(sorted_curves, CURVE_LEVELS, fractions) < 0).mean(0)
    np.testing.assert_allclose(outside[inner], CURVE_LEVELS[inner], atol=0.01)
    assert np.abs((sorted_curves < 0).mean(0) - CURVE_LEVELS)[inner].max() > 0.1
    fresh = interpolate_levels(sort_curves(curves(5000, seed=1)), CURVE_LEVELS, fractions)
    np.testing.assert_allclose((fresh < 0).mean(0)[inner], CURVE_LEVELS[inner], atol=0.03)


def test_predictive_quantile_counts_copies():
    values, weights = np.array([0.4, 0.1, 0.9]), np.array([1.0, 2.0, 3.0])
    repeated = np.repeat(values, [1, 2, 3])
    for level in (2 / 7, 3 / 7, 6 / 7):  # where a value's copies end
        assert predictive_quantile(values, weights, level) == pytest.approx(
            predictive_quantile(repeated, np.ones(6), level)
        )


@pytest.mark.parametrize("level", [0.05, 0.3, 0.5, 0.8])
def test_predictive_quantile_has_the_level_of_a_new_value(level):
    """The average over samples of 19 is the level, exactly where (n + 1) θ is whole: order statistics of a uniform variable."""
    rng = np.random.default_rng(0)
    quantiles = [predictive_quantile(rng.uniform(size=19), np.ones(19), level) for _ in range(4000)]
    assert np.mean(quantiles) == pytest.approx(level, abs=0.006)


def test_predictive_quantile_is_clipped_at_the_sample():
    values = np.array([3.0, 1.0, 2.0])
    assert predictive_quantile(values, np.ones(3), 0.01) == 1.0 and predictive_quantile(values, np.ones(3), 0.99) == 3.0


def test_curves_between_levels_are_linear():
    line = 2.0 - 3.0 * CURVE_LEVELS[None]
    levels = np.array([0.01, 0.123, 0.5, 0.999, 1.0])
    np.testing.assert_allclose(interpolate_levels(line, CURVE_LEVELS, levels)[0], 2 - 3 * levels, atol=1e-12)


def test_level_score_is_the_last_level_inside():
    """LT-107: s(x) = sup{θ: d(x)(θ) ≥ 0}; near 0 for rare points, near 1 for typical ones."""
    line = np.array([0.2, 0.77])[:, None] - CURVE_LEVELS
    np.testing.assert_allclose(compute_level_scores(line, CURVE_LEVELS), [0.2, 0.77], atol=1e-12)
    twice = np.where((CURVE_LEVELS < 0.2) | ((CURVE_LEVELS > 0.5) & (CURVE_LEVELS < 0.6)), 1.0, -1.0)[None]
    assert compute_level_scores(twice, CURVE_LEVELS)[0] == pytest.approx(0.6, abs=0.01)
    np.testing.assert_array_equal(compute_level_scores(np.array([[-1.0] * 101, [1.0] * 101]), CURVE_LEVELS), [0, 1])
    assert compute_level_scores(np.array([[0.0, -1.0]]), np.array([0.1, 1.0]))[0] == 0.1


def test_are_nested_is_false_for_a_curve_that_returns():
    signs = np.array([[1, 1, -1], [1, -1, 1], [-1, -1, -1], [-1, 1, 1], [1, 1, 1], [0, -1, -1.0]])
    assert are_nested(signs).tolist() == [True, False, True, False, True, True]
