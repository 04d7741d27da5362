"""Tests of embedded Gaussian distributions: simulation, dense closed forms and finite differences."""

from dataclasses import replace

import numpy as np
import pytest

from ovkgp.criticism.sample_tests.gaussian_embeddings import KERNELS, gaussian_inner_product
from ovkgp.criticism.sample_tests.gaussianity import fit_gaussian, influence_gram
from ovkgp.criticism.sample_tests.samples import center_gram


def evaluate_kernel(x, y, kernel):
    return np.exp(-((x - y) ** 2).sum(-1)) if kernel == "gaussian" else np.exp((x * y).sum(-1))


def draw_moments(rng, d, largest):
    mean, root = 0.4 * rng.normal(size=d), rng.normal(size=(d, d))
    covariance = root @ root.T
    return mean, largest * covariance / np.linalg.eigvalsh(covariance)[-1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_inner_products_match_simulation(kernel):
    rng = np.random.default_rng(0)
    (m1, S1), (m2, S2) = (draw_moments(rng, 4, 0.25) for _ in range(2))
    draws = [rng.multivariate_normal(m, S, 200_000) for m, S in ((m1, S1), (m2, S2))]
    values = evaluate_kernel(*draws, kernel)
    exact = gaussian_inner_product(m1, S1, m2, S2, kernel)
    assert abs(values.mean() - exact) < 4 * values.std() / np.sqrt(len(values))


def test_kt_e_01_norm_of_the_exponential_embedding_has_the_first_power_in_the_exponent():
    rng = np.random.default_rng(1)
    m, S = draw_moments(rng, 4, 0.25)
    m *= 2
    values = evaluate_kernel(*rng.multivariate_normal(m, S, (2, 400_000)), "exponential")
    identity = np.eye(4)
    root = np.linalg.det(identity - S @ S) ** -0.5
    corrected = root * np.exp(m @ np.linalg.solve(identity - S, m))
    printed = root * np.exp(m @ np.linalg.solve(identity - S @ S, m))
    error = values.std() / np.sqrt(len(values))
    assert gaussian_inner_product(m, S, m, S, "exponential") == pytest.approx(corrected, rel=1e-12)
    assert abs(values.mean() - corrected) < 4 * error
    assert abs(values.mean() - printed) > 10 * error


def test_kt_e_04_embedding_of_the_gaussian_kernel_has_an_inverse_in_the_exponent():
    rng = np.random.default_rng(2)
    m, S = draw_moments(rng, 3, 0.8)
    y, A = np.array([0.5, -0.2, 0.3]), np.eye(3) + 2 * S
    values = evaluate_kernel(y, rng.multivariate_normal(m, S, 200_000), "gaussian")
    printed = np.linalg.det(A) ** -0.5 * np.exp(-(y - m) @ A @ (y - m))
    error = values.std() / np.sqrt(len(values))
    assert abs(values.mean() - gaussian_inner_product(m, S, y, np.zeros((3, 3)), "gaussian")) < 4 * error
    assert abs(values.mean() - printed) > 10 * error


def make_sample(n=12, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) @ np.diag([0.5, 0.4, 0.25, 0.15])[:d, :d]


def truncate(S, rank):
    values, vectors = np.linalg.eigh(S)
    values[:-rank] = 0
    return vectors @ np.diag(values) @ vectors.T


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rank", [None, 2])
def test_values_in_coordinates_match_dense_forms(kernel, rank):
    rows = make_sample()
    model = fit_gaussian(rows, None, "full" if rank is None else rank)
    forms, m, S = KERNELS[kernel], rows.mean(0), np.cov(rows.T, bias=True)
    S = S if rank is None else truncate(S, rank)
    if kernel == "exponential":  # about the mean
        rows, m = rows - m, 0 * m
    zero = np.zeros_like(S)
    dense = [gaussian_inner_product(m, S, y, zero, kernel) for y in rows]
    np.testing.assert_allclose(forms.embedding(model), dense, rtol=1e-10)
    assert forms.squared_norm(model) == pytest.approx(gaussian_inner_product(m, S, m, S, kernel), rel=1e-10)
    np.testing.assert_allclose(forms.gram(model), evaluate_kernel(rows[:, None], rows[None], kernel), rtol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("null", "rank", "derivative_at"),
    [
        ("full", None, "projected"),
        ("known_mean", None, "projected"),
        ("known_covariance", None, "projected"),
        ("full", 2, "projected"),
        ("full", 2, "empirical"),
    ],
)
def test_derivatives_match_finite_differences(kernel, null, rank, derivative_at):
    rows = make_sample(10)
    if null == "full":
        model = fit_gaussian(rows, None, null if rank is None else rank, derivative_at=derivative_at)
    else:
        model = fit_gaussian(rows, None, null, covariance=np.diag([0.3, 0.2, 0.1, 0.05]))
    C, S = model.coordinates, np.diag(model.eigenvalues)
    start = S if derivative_at == "projected" else np.diag(model.empirical)

    def moments(j, t):
        mean = t * C[j] if model.estimates_mean else 0 * C[j]
        covariance = start + t * np.outer(C[j], C[j]) if model.estimates_covariance else start
        return mean, covariance if rank is None else truncate(covariance, rank)

    def inner(first, second):
        return gaussian_inner_product(*first, *second, kernel)

    t, n, zero = 1e-4, len(C), np.zeros_like(S)
    at_rows, products, along = KERNELS[kernel].derivatives(model)
    numerical = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            values = [inner(moments(j, s), (C[i], zero)) for s in (t, -t)]
            numerical[i, j] = (values[0] - values[1]) / (2 * t)
    np.testing.assert_allclose(at_rows, numerical, rtol=1e-5, atol=1e-7)
    for i in range(n):
        for j in range(n):
            values = [a * b * inner(moments(i, a * t), moments(j, b * t)) for a in (1, -1) for b in (1, -1)]
            numerical[i, j] = sum(values) / (4 * t**2)
    np.testing.assert_allclose(products, numerical, rtol=1e-5, atol=2e-6)
    fitted = moments(0, 0.0)
    numerical = [(inner(fitted, moments(i, t)) - inner(fitted, moments(i, -t))) / (2 * t) for i in range(n)]
    np.testing.assert_allclose(along, numerical, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("null", ["full", "known", "known_mean", "known_covariance", 2])
def test_centered_influence_gram_is_positive_semidefinite(kernel, null):
    model = fit_gaussian(make_sample(40), None, null, covariance=np.diag([0.3, 0.2, 0.1, 0.05]))
    values = np.linalg.eigvalsh(center_gram(influence_gram(model, kernel)))
    assert values[0] > -1e-10
    assert values[-1] > 1e-3


def test_kt_e_05_known_parameters_have_no_derivative():
    # printed: T is the identity, whose derivative would be that of the full model
    model = fit_gaussian(make_sample(), None, "known", covariance=np.eye(4))
    at_rows, products, along = KERNELS["gaussian"].derivatives(model)
    assert not at_rows.any()
    assert not products.any()
    assert not along.any()
    assert KERNELS["gaussian"].derivatives(replace(model, null="full"))[0].any()
