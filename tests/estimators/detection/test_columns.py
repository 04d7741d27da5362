"""Tests of `ovkgp.estimators.detection.columns`."""

import numpy as np
import pytest
import torch
from detector_cases import gram
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from scipy.linalg import hadamard
from scipy.special import j1
from scipy.stats import chi2, kstest

from ovkgp.estimators.common.named_kernels import random_features
from ovkgp.estimators.common.task_options import task_kernel
from ovkgp.estimators.detection import columns
from ovkgp.estimators.detection.columns import ExactColumns, LowRankColumns
from ovkgp.exceptions import InputError

rng = np.random.default_rng(0)
N, P = 30, 7
ROWS, POINTS, DIRECTIONS = rng.normal(size=(N, 2)), rng.normal(size=(9, 2)), rng.normal(size=(P, N))


def rbf(gamma, rows=ROWS):
    return task_kernel("rbf", (2 * gamma) ** -0.5, torch.from_numpy(rows))


def low_rank(approximation, size, gamma=0.7):
    kernel = rbf(gamma)
    if approximation == "nystrom":
        return LowRankColumns(kernel, N, None, ROWS[:size])
    return LowRankColumns(kernel, N, random_features(kernel, 2, size, 0), None)


def low_rank_gram(cols, x, z):
    features = cols._features()
    Zx, Zz = (cols._rows(features, torch.from_numpy(part)).numpy() for part in (x, z))
    return Zx @ Zz.T


@pytest.mark.parametrize("leave_one_out", [True, False])
def test_exact_columns_equal_dense_sums(leave_one_out):
    exact = ExactColumns(rbf(0.7), ROWS)
    projection, log_var, own = exact.project(DIRECTIONS, leave_one_out)
    K = gram(ROWS, ROWS, 0.7)
    sums = np.square(K).sum(1)
    np.testing.assert_allclose(np.exp(log_var), (sums - 1) / (N - 1) if leave_one_out else sums / N, rtol=1e-12)
    np.testing.assert_allclose(np.exp(own), np.square((K - np.eye(N)) @ DIRECTIONS.T).sum(1) / (N - 1), rtol=1e-10)
    found = exact.log_statistics(POINTS, projection)
    expected = np.square(gram(POINTS, ROWS, 0.7) @ DIRECTIONS.T).sum(1) / N
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("approximation", ["nystrom", "orff"])
def test_low_rank_columns_equal_sums_of_their_gram_matrix(approximation, leave_one_out):
    cols = low_rank(approximation, 12)
    projection, log_var, own = cols.project(ROWS, DIRECTIONS, leave_one_out)
    K = low_rank_gram(cols, ROWS, ROWS)
    off = K - np.diag(np.diag(K))
    variances = np.square(off).sum(1) / (N - 1) if leave_one_out else np.square(K).mean(1)
    np.testing.assert_allclose(np.exp(log_var), variances, rtol=1e-9)
    np.testing.assert_allclose(np.exp(own), np.square(off @ DIRECTIONS.T).sum(1) / (N - 1), rtol=1e-9)
    expected = np.square(low_rank_gram(cols, POINTS, ROWS) @ DIRECTIONS.T).sum(1) / N
    np.testing.assert_allclose(np.exp(cols.log_statistics(POINTS, projection)), expected, rtol=1e-9)


def test_low_rank_columns_equal_exact_ones_at_full_rank():
    """To 1e-6: landmarks drop directions with eigenvalues below 1e-10 of the largest."""
    exact, full = ExactColumns(rbf(0.7), ROWS), low_rank("nystrom", N)
    projection, *expected = exact.project(DIRECTIONS, True)
    low_projection, *found = full.project(ROWS, DIRECTIONS, True)
    for mine, yours in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, yours, atol=1e-6)
    np.testing.assert_allclose(
        full.log_statistics(POINTS, low_projection), exact.log_statistics(POINTS, projection), atol=1e-6
    )


def test_columns_do_not_underflow():
    """At 200 lengthscales k² = exp(−40000): logarithms are those of the nearest row."""
    rows = np.array([[0.0], [1.0], [1e3]])
    exact = ExactColumns(task_kernel("rbf", 1.0, torch.from_numpy(rows)), rows)
    directions = np.array([[0.5, -2.0, 1.0]])
    projection, log_var, own = exact.project(directions, True)
    np.testing.assert_allclose(log_var, [-1 - np.log(2), -1 - np.log(2), -(999.0**2) - np.log(2)], rtol=1e-12)
    assert np.isfinite(own).all()
    found = exact.log_statistics(np.array([[200.0]]), projection)
    np.testing.assert_allclose(found, -(199.0**2) + 2 * np.log(2.0) - np.log(3), rtol=1e-12)


def test_kernel_values_are_relative_to_their_standard_deviations():
    kernel = LinearKernel().double().requires_grad_(False)
    exact = ExactColumns(kernel, ROWS)
    cosine = ROWS @ ROWS.T / np.linalg.norm(ROWS, axis=1)[:, None] / np.linalg.norm(ROWS, axis=1)
    _, log_var, own = exact.project(DIRECTIONS, True)
    np.testing.assert_allclose(np.exp(log_var), (np.square(cosine).sum(1) - 1) / (N - 1), rtol=1e-10)
    np.testing.assert_allclose(np.exp(own), np.square((cosine - np.eye(N)) @ DIRECTIONS.T).sum(1) / (N - 1), rtol=1e-10)
    with pytest.raises(InputError, match="row 1"):
        exact.log_statistics(np.array([[1.0, 0.0], [0.0, 0.0]]), DIRECTIONS)


def test_scale_of_the_kernel_has_no_effect():
    base = MaternKernel(1.5).double().requires_grad_(False)
    scaled = ScaleKernel(MaternKernel(1.5)).double().requires_grad_(False)
    scaled.outputscale = torch.tensor(5.0, dtype=torch.float64)
    found = [ExactColumns(kernel, ROWS).project(DIRECTIONS, True) for kernel in (base, scaled)]
    for mine, yours in zip(*found, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-10)


def test_columns_in_chunks_are_equal(monkeypatch):
    exact = ExactColumns(rbf(0.7), ROWS)
    whole = [*exact.project(DIRECTIONS, True)[1:], exact.log_statistics(POINTS, DIRECTIONS)]
    monkeypatch.setattr(columns, "CHUNK_ENTRIES", 4 * N)
    parts = [*exact.project(DIRECTIONS, True)[1:], exact.log_statistics(POINTS, DIRECTIONS)]
    for mine, yours in zip(parts, whole, strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-12)


# --- laws of random projections -----------------------------------------------------------------------------------------


def statistics(num_draws, gamma=2.0, num_projections=3):
    """Draw S(x) at one point for many directions, and return it with S_n(x, x)."""
    exact, rng, x = ExactColumns(rbf(gamma), ROWS), np.random.default_rng(3), POINTS[:1]
    draws = [np.exp(exact.log_statistics(x, rng.standard_normal((num_projections, N)))[0]) for _ in range(num_draws)]
    return np.array(draws), np.square(gram(x, ROWS, gamma)).mean()


def test_kt_46_statistic_is_chi_square_given_the_rows():
    draws, variance = statistics(600)
    assert kstest(draws / variance, chi2(3).cdf).pvalue > 0.001


def test_kt_e_10_projections_are_divided_by_the_root_of_n():
    draws, variance = statistics(600)
    assert draws.mean() / 3 == pytest.approx(variance, rel=0.15)  # 1/n would give a fraction 1/30 of it


def test_kt_45_and_kt_e_12_random_directions_are_orthonormal():
    """E|h|² = 1 and Var|h|² = 2 tr(K²)/n² = cov(h, h')·2, so that |h| ≤ .293 has no probability for large γ."""
    rng = np.random.default_rng(0)
    X, gamma = rng.uniform(size=(400, 2)), 200.0
    K = gram(X, X, gamma)
    U = rng.standard_normal((2000, 400))
    norms = np.einsum("pi,ij,pj->p", U, K, U, optimize=True) / 400
    inner = np.einsum("pi,ij,pj->p", U[:1000], K, U[1000:], optimize=True) / 400
    variance = np.square(K).sum() / 400**2
    assert norms.mean() == pytest.approx(1, abs=4 * np.sqrt(2 * variance / 2000))
    assert norms.var() == pytest.approx(2 * variance, rel=0.2)
    assert inner.var() == pytest.approx(variance, rel=0.2)
    assert norms.min() > 0.293**2


def test_kt_e_11_first_eigenvalue_is_that_of_the_largest_density():
    """Density 2x on [0, 1]: λ₁ √(γ/π) → 2, not E f = 4/3 (KT-44); 1.87 at γ = 1e4."""
    nodes, weights = np.polynomial.legendre.leggauss(600)
    x, weights, gamma = (nodes + 1) / 2, weights / 2, 1e4
    root = np.sqrt(2 * x * weights)
    operator = root[:, None] * np.exp(-gamma * (x[:, None] - x) ** 2) * root
    largest = np.linalg.eigvalsh(operator)[-1] * np.sqrt(gamma / np.pi)
    assert largest == pytest.approx(2, rel=0.07)
    assert np.square(operator).sum() / np.sqrt(np.pi / (2 * gamma)) == pytest.approx(4 / 3, rel=0.05)  # KT-48


def test_kt_e_13_covariance_of_projections_decays_like_gamma_over_two():
    """U[0, 1], γ = 50: E S(X, X')/tr S² ≤ (γ/2)^(−s) Γ(s + 1) E A²/E A, s = 1/2, A = √π/Γ(3/2); the printed (2γ)^(−s) is exceeded (KT-49, 52)."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    x, w, gamma, s = (nodes + 1) / 2, weights / 2, 50.0, 0.5
    K = np.exp(-gamma * (x[:, None] - x) ** 2)
    S = (K * w) @ K  # S(x, x') = E k(X, x) k(X, x')
    delta = w @ S @ w / (w @ np.diag(S))
    assert delta == pytest.approx(0.32, abs=0.02)
    factor = np.sqrt(np.pi)  # A Γ(s + 1) = √π/Γ(3/2) · Γ(3/2)
    assert (2 * gamma) ** -s * factor < delta < (gamma / 2) ** -s * factor


def test_kt_e_16_low_rank_variances_are_not_negative():
    """With landmarks k̃(x, x) < 1: subtracting 1 instead of k̃(x, x)² gives negative variances (KT-59)."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    kernel = task_kernel("rbf", 100**-0.5, torch.from_numpy(X))
    cols = LowRankColumns(kernel, 300, None, X[:50])
    K = low_rank_gram(cols, X, X)
    printed = np.square(K).sum(1) - 1
    assert (printed < 0).mean() > 0.1
    _, log_var, _ = cols.project(X, rng.standard_normal((2, 300)), True)
    np.testing.assert_allclose(np.exp(log_var), (np.square(K).sum(1) - np.diag(K) ** 2) / 299, rtol=1e-6, atol=1e-12)


def test_kt_e_17_random_features_have_unit_norm():
    """cos and sin features divided by √r, not by r: k̃(x, x) = 1, and k̃ is unbiased (KT-28, 59)."""
    cols = low_rank("orff", 4000)
    K = low_rank_gram(cols, ROWS, ROWS)
    np.testing.assert_allclose(np.diag(K), 1, rtol=1e-12)
    np.testing.assert_allclose(K, gram(ROWS, ROWS, 0.7), atol=0.06)


def test_kt_e_19_constant_of_the_false_alarm_bound_diverges():
    """The Fourier transform of the indicator of a disk is J₁(r)/r: its integral grows like √R, so there is no such constant (KT-60)."""
    r = np.linspace(1e-6, 4000, 400_001)
    integral = np.cumsum(np.abs(j1(r))) * (r[1] - r[0])
    ends = integral[[100_000, 400_000]]
    assert ends[1] / ends[0] == pytest.approx(2, rel=0.02)


def fastfood(d: int, num_blocks: int, gamma: float, power: int, rng) -> np.ndarray:
    """Frequencies √(2γ/d) S H G Π H B (num_blocks d, d) with S_ii = χ_d/‖G‖, or over ‖G‖² d as printed (power 2)."""
    H, blocks = hadamard(d), []
    for _ in range(num_blocks):
        G, signs = rng.normal(size=d), rng.choice([-1.0, 1.0], d)
        norm = np.linalg.norm(G) if power == 1 else np.square(G).sum() * d
        S = np.sqrt(rng.chisquare(d, d)) / norm
        blocks.append(np.sqrt(2 * gamma / d) * S[:, None] * (H @ (G[:, None] * H[rng.permutation(d)] * signs)))
    return np.vstack(blocks)


def test_kt_e_24_rows_of_fastfood_have_the_norm_of_g():
    """KT-29: the rows of H G Π H B have the squared norm d‖G‖², so that S_ii = χ_d/‖G‖; with 1/(‖G‖² d) the kernel is nearly 1."""
    rng, d, gamma = np.random.default_rng(0), 8, 0.5
    G, signs = rng.normal(size=d), rng.choice([-1.0, 1.0], d)
    product = hadamard(d) @ (G[:, None] * hadamard(d)[rng.permutation(d)] * signs)
    np.testing.assert_allclose(np.square(product).sum(1), d * np.square(G).sum())
    z = rng.normal(size=d)
    z /= np.linalg.norm(z)
    corrected, printed = (np.cos(fastfood(d, 4000, gamma, power, rng) @ z).mean() for power in (1, 2))
    assert corrected == pytest.approx(np.exp(-gamma), abs=0.02)
    assert printed > 0.95


def test_kt_e_35_bound_of_bennett_is_that_of_a_mean():
    """Mean ≤ Eξ + √(2v L/n) (1 + κ c √(L/(n v))) with probability 1 − δ, L = log(1/δ); the sum, as printed, is never below."""
    rng, n, delta = np.random.default_rng(0), 400, 0.05
    L, v = np.log(1 / delta), 0.3 * 0.7
    sums = rng.binomial(n, 0.3, 20_000)
    bound = 0.3 + np.sqrt(2 * v * L / n) * (1 + np.sqrt(L / (n * v)))
    assert (sums / n > bound).mean() <= delta
    assert (sums > bound).all()


def test_kt_e_35_and_c_20_mean_squares_are_of_order_gamma_to_the_minus_s():
    """KT-89, uniform rows on [0, 1], s = ½, A = 2 inside: (2γ)^s S_γ(x, x) tends to A Γ(s + 1) = √π, and (2γ)^(2s) S_γ(x, x) diverges.

    The relative error of the empirical S_n(x, x) is O(√(γ^s/n)): half of it for 4 times as many rows.
    """
    inner = np.linspace(0.3, 0.7, 5)[:, None]
    grid = ((np.arange(20_000) + 0.5) / 20_000)[:, None]
    found = {gamma: np.exp(ExactColumns(rbf(gamma), grid).log_mean_squares(inner)) for gamma in (1e2, 1e4)}
    for gamma, values in found.items():
        np.testing.assert_allclose(np.sqrt(2 * gamma) * values, np.sqrt(np.pi), rtol=1e-3)
    assert (1e4 * found[1e4] > 9 * 1e2 * found[1e2]).all()
    rng, errors = np.random.default_rng(0), []
    for n in (500, 2000):
        columns = [ExactColumns(rbf(100.0), rng.uniform(size=(n, 1))) for _ in range(300)]
        errors.append(np.std([np.exp(each.log_mean_squares(inner[2:3])) for each in columns]))
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2)
