"""Tests of Gaussian models computed from Gram matrices."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import multivariate_normal
from sklearn.preprocessing import KernelCenterer

from ovkgp.criticism import (
    ParsimoniousCovariance,
    effective_degrees_of_freedom,
    nuclear_dominance_trace,
    renormalize_gram,
)
from ovkgp.criticism.sample_tests.samples import center_gram
from ovkgp.exceptions import FactorizationError, InputError, OptionError


def make_class(seed, n=40, d=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + seed


def parsimonious_matrix(rows, number):
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    values[:-number] = values[:-number].mean()
    return vectors @ np.diag(values) @ vectors.T


def test_kt_e_28_classifier_is_quadratic_discriminant_analysis():
    new, scores, densities = make_class(5, 30), [], []
    for seed, number, proportion in ((0, 2, 0.3), (1, 3, 0.7)):
        rows = make_class(seed)
        model = ParsimoniousCovariance.fit(rows @ rows.T, number)
        scores.append(model.discriminant(rows @ new.T, (new**2).sum(1), proportion))
        gaussian = multivariate_normal(rows.mean(0), parsimonious_matrix(rows, number))
        densities.append(-2 * gaussian.logpdf(new) - 5 * np.log(2 * np.pi) - 2 * np.log(proportion))
    np.testing.assert_allclose(scores, densities, rtol=1e-8)


def test_kt_e_29_trace_is_that_of_all_eigenvalues():
    rows = make_class(0)
    model = ParsimoniousCovariance.fit(rows @ rows.T, 2)
    matrix = parsimonious_matrix(rows, 2)
    assert model.trace == pytest.approx(np.trace(np.cov(rows.T, bias=True)), rel=1e-10)
    assert model.trace == pytest.approx(np.trace(center_gram(rows @ rows.T)) / len(rows), rel=1e-10)
    assert model.trace > 1.001 * model.eigenvalues.sum()  # printed
    assert model.log_determinant == pytest.approx(np.linalg.slogdet(matrix)[1], rel=1e-10)
    assert repr(model).startswith("ParsimoniousCovariance(2 of 5 components")


def test_squared_distances_of_the_sample_average_to_the_number_of_dimensions():
    rows = make_class(2)
    for number in (0, 2, 4):
        gram = rows @ rows.T
        found = ParsimoniousCovariance.fit(gram, number).squared_distances(gram, np.diag(gram))
        assert found.mean() == pytest.approx(5, rel=1e-8)


def test_degrees_of_freedom_match_the_trace_of_the_smoother():
    rows = np.random.default_rng(3).normal(size=(20, 2))
    K = np.exp(-((rows[:, None] - rows) ** 2).sum(-1))
    smoother = K @ np.linalg.inv(K + 0.1 * np.eye(20))
    assert effective_degrees_of_freedom(K, 0.1) == pytest.approx(np.trace(smoother), rel=1e-10)
    # mean of Roth's distances
    ones = np.ones(20)
    t, s = smoother @ ones, ones @ smoother @ ones / 20
    distances = 20 * np.diag(smoother) + (t**2 - 2 * t + s) / (1 - s)
    assert effective_degrees_of_freedom(K, 0.1, centered=True) == pytest.approx(distances.mean(), rel=1e-8)


def matern(x, order, lengthscale=0.3):
    r = np.sqrt(order) * np.abs(x[:, None] - x) / lengthscale
    return np.exp(-r) * (1 if order == 1 else 1 + r)


def test_traces_match_dense_inverses_and_the_kernel_itself_gives_the_number_of_points():
    x = np.random.default_rng(4).permutation(np.linspace(0, 1, 12))
    R, K = matern(x, 3), matern(x, 1)
    found = nuclear_dominance_trace(R, K)
    expected = [np.trace(R[:n, :n] @ np.linalg.inv(K[:n, :n])) for n in range(1, 13)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(nuclear_dominance_trace(K, K), np.arange(1, 13), rtol=1e-10)
    assert (np.diff(found) >= 0).all()
    assert nuclear_dominance_trace(R, K, jitter=0.1)[-1] < found[-1]


def test_traces_of_several_outputs_add_blocks():
    x, A = np.linspace(0, 1, 6), np.array([[2.0, 0.5], [0.5, 1.0]])
    R, K = np.kron(matern(x, 3), A), np.kron(matern(x, 1), np.eye(2))
    expected = np.trace(A) * nuclear_dominance_trace(matern(x, 3), matern(x, 1))
    np.testing.assert_allclose(nuclear_dominance_trace(R, K, num_outputs=2), expected, rtol=1e-10)


@pytest.mark.parametrize(("n", "value"), [(10, 5.87), (20, 6.74), (40, 7.19), (80, 7.43), (160, 7.55)])
def test_traces_of_smoother_paths_converge(n, value):
    x = np.linspace(0, 1, n)
    assert nuclear_dominance_trace(matern(x, 3), matern(x, 1))[-1] == pytest.approx(value, rel=0.01)


def test_traces_of_rougher_paths_diverge():
    values = [
        nuclear_dominance_trace(matern(x, 1), matern(x, 3))[-1] for x in map(np.linspace, [0] * 2, [1] * 2, [10, 160])
    ]
    assert values[0] == pytest.approx(33, rel=0.02)
    assert values[1] == pytest.approx(1.5e5, rel=0.05)


def test_renormalized_kernels_have_unit_second_moments():
    rng = np.random.default_rng(5)
    rows, new = rng.random((300, 1)) ** 2, rng.random((7, 1))
    K, cross = (np.exp(-50 * (rows - other.T) ** 2) for other in (rows, new))
    squares = (K**2).mean(0)
    np.testing.assert_allclose(renormalize_gram(K), K / np.sqrt(np.outer(squares, squares)), rtol=1e-12)
    # ⟨S k̃_x, k̃_x⟩ = 1 for vectors embedded by k: mean of k(X_i, x)²/S(x)
    back = renormalize_gram(K, cross) * np.sqrt(squares)[:, None]
    np.testing.assert_allclose((back**2).mean(0), 1, rtol=1e-10)


def test_centered_grams_are_those_of_the_kernel_centerer():
    rows = make_class(6, 20)
    gram = rows @ rows.T
    np.testing.assert_allclose(center_gram(gram), KernelCenterer().fit_transform(gram), atol=1e-10)


def test_kt_e_33_eigenvalues_of_a_gaussian_input_are_geometric_from_zero():
    # KT-43: X ~ N(0, ν²), k = exp(−γ(x − y)²)
    nu, gamma = 0.7, 2.0
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    root = np.sqrt(weights / weights.sum())
    x = nu * nodes
    found = np.linalg.eigvalsh(root[:, None] * np.exp(-gamma * (x[:, None] - x) ** 2) * root)[::-1]
    a = 1 / (4 * nu**2)
    c = np.sqrt(a**2 + 2 * a * gamma)
    expected = np.sqrt(2 * a / (a + gamma + c)) * (gamma / (a + gamma + c)) ** np.arange(8)
    np.testing.assert_allclose(found[:8], expected, rtol=1e-6)
    assert found.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ParsimoniousCovariance.fit(np.eye(5), 4), OptionError, "below the rank"),
        (
            lambda: ParsimoniousCovariance.fit(np.eye(5), 2).squared_distances(np.ones((4, 2)), [1, 1]),
            InputError,
            "cross",
        ),
        (lambda: effective_degrees_of_freedom(-np.eye(3), 1.0), InputError, "semi-definite"),
        (lambda: effective_degrees_of_freedom(np.eye(3), 0.0), OptionError, "noise"),
        (lambda: nuclear_dominance_trace(np.eye(3), np.eye(4)), InputError, "same shape"),
        (lambda: nuclear_dominance_trace(np.eye(3), np.ones((3, 3))), FactorizationError, "jitter"),
        (lambda: renormalize_gram(np.zeros((3, 3))), InputError, "kernel 0"),
    ],
)
def test_invalid_input_is_an_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_kt_e_34_linear_classifiers_separate_some_points_not_all():
    """The VC dimension d + 1 needs d + 1 points of which all splits are linearly separable; three points on a line are not such."""

    def is_separable(points, labels):
        left = -labels[:, None] * np.c_[points, np.ones(len(points))]  # labels (w·x + b) ≥ 1
        return linprog(np.zeros(3), left, -np.ones(len(points)), bounds=(None, None)).status == 0

    splits = [np.array(signs) for signs in itertools.product([-1.0, 1.0], repeat=3)]
    assert all(is_separable(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), labels) for labels in splits)
    assert not all(is_separable(np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]), labels) for labels in splits)
