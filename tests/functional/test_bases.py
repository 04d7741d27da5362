"""Tests of `ovkgp.functional.bases`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from ovkgp.exceptions import InputError, OptionError, SmoothnessError
from ovkgp.functional import BSplines, Dictionary, Fourier, FunctionalData, TensorProduct

T = np.linspace(0, 1, 101)


def test_bo_36_number_of_fourier_functions_counts_the_constant():
    assert [Fourier(F).num_functions for F in (1, 15, 40, 50)] == [1, 29, 79, 99]


def test_bo_c_11_real_and_complex_truncations_agree():
    """Σ_l c_l e^{2πilu} with c_l = ⟨f, e^{2πil·}⟩, and Parseval's identity."""
    m = 256
    u = (np.arange(m) + 0.5) / m
    f = np.exp(np.sin(2 * np.pi * u)) * (u - 0.5) ** 2
    fourier = Fourier(6)
    a = fourier.inner(FunctionalData([f], u, (0, 1)))[0]
    l = np.arange(-5, 6)
    waves = np.exp(2j * np.pi * np.outer(u, l))
    c = waves.conj().T @ f / m
    assert np.allclose(fourier(u) @ a, (waves @ c).real, atol=1e-12)
    assert a @ a == pytest.approx(np.sum(np.abs(c) ** 2))


def test_bo_e_22_fourier_functions_are_bounded_by_root_two():
    assert np.abs(Fourier(5)(T)).max() == pytest.approx(np.sqrt(2))
    assert np.abs(Fourier(5, (0, 4))(4 * T)).max() == pytest.approx(np.sqrt(2 / 4))


def test_bo_c_12_fourier_approximation_error_decreases_at_the_rate_of_smoothness():
    """A periodic function whose s-th derivative is square integrable: squared error O(d^(−2s)). Here |x|-type kinks, s < 3/2."""
    m = 2**14
    u = (np.arange(m) + 0.5) / m
    f = np.maximum(0.25 - np.abs(u - 0.5), 0)  # in H^s for s < 3/2
    errors, sizes = [], np.array([8, 16, 32, 64, 128])
    for F in sizes:
        fourier = Fourier(int(F))
        a = fourier.inner(FunctionalData([f], u, (0, 1)))[0]
        errors.append(np.mean((fourier(u) @ a - f) ** 2))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert slope <= -2 * 1.4 + 0.2


@pytest.mark.parametrize("s", [1, 2, 3])
def test_bo_32_roughness_of_fourier_is_diagonal(s):
    fourier = Fourier(3, (0, 2))
    expected = np.diag([0, np.pi, np.pi, 2 * np.pi, 2 * np.pi]) ** (2 * s)
    assert np.allclose(fourier.roughness(s), expected)
    assert np.allclose(Dictionary._gram_of(fourier, (s,)), expected, atol=1e-8 * expected.max())


@settings(max_examples=20, deadline=None)
@given(order=st.integers(1, 5), inner=st.lists(st.floats(0.05, 0.95), max_size=5), seed=st.integers(0, 99))
def test_bo_c_14_splines_are_a_nonnegative_partition_of_unity_with_local_support(order, inner, seed):
    splines = BSplines(order=order, knots=np.unique([0.0, *np.round(inner, 3), 1.0]))
    t = np.random.default_rng(seed).uniform(size=30)
    rows = splines(t)
    assert np.allclose(rows.sum(1), 1) and (rows >= 0).all()
    for l in range(splines.num_functions):
        outside = (t < splines.knots[l]) | (t > splines.knots[l + order])
        assert (rows[outside, l] == 0).all()
    expected = np.stack(
        [BSpline.basis_element(splines.knots[l : l + order + 1], extrapolate=False)(t) for l in range(len(splines))], 1
    )
    assert np.allclose(rows, np.nan_to_num(expected), atol=1e-10)


def test_bo_e_07_the_recursion_is_that_of_m_splines():
    """M_{t,1} = 1/(τ_{t+1} − τ_t) and N = (τ_{t+k} − τ_t) M; indicators of height 1 in that recursion give negative values."""

    def recursion(tau, k, first, t):
        """Return the functions of order k by (k/(k−1)) [(θ − τ_t) M_t + (τ_{t+k} − θ) M_{t+1}]/(τ_{t+k} − τ_t)."""
        if k == 1:
            inside = (tau[:-1] <= t[:, None]) & (t[:, None] < tau[1:])
            return inside * first(np.diff(tau))
        below = recursion(tau, k - 1, first, t)
        width = tau[k:] - tau[:-k]
        left, right = t[:, None] - tau[:-k], tau[k:] - t[:, None]
        return (left * below[:, :-1] + right * below[:, 1:]) / width

    tau, t = np.array([0.0, 0.2, 0.5, 0.6, 1.0]), np.linspace(0, 0.999, 50)
    M = recursion(tau, 3, lambda width: 1 / width, t)
    N = (tau[3:] - tau[:-3]) * M
    basis = BSpline.basis_element(tau[:4], extrapolate=False)
    assert np.allclose(N[:, 0], np.nan_to_num(basis(t)), atol=1e-12)
    printed = recursion(tau, 3, lambda width: np.ones_like(width), t)
    assert not np.allclose(printed[:, 0], np.nan_to_num(basis(t)), atol=0.05)
    # support of order s spans s intervals, not one
    splines = BSplines(8, order=3)
    assert np.ptp(T[splines(T)[:, 3] > 0]) > 2 * np.diff(np.unique(splines.knots))[0]


def test_bo_c_14_coincident_knots_reduce_the_smoothness():
    """A cubic spline with a double knot has a continuous first, not second, derivative there; a triple knot only its value."""
    e = 1e-9
    for repeats, continuous in ((1, 2), (2, 1), (3, 0)):
        splines = BSplines(knots=[0.0, *[0.5] * repeats, 1.0])
        for order in (0, 1, 2):
            jump = np.abs(splines.derivative([0.5 + e], order) - splines.derivative([0.5 - e], order)).max()
            assert (jump < 1e-5) == (order <= continuous)


def test_gram_of_splines_is_exact_and_banded():
    splines = BSplines(9, (0, 3), order=3)
    fine = Dictionary.rule(BSplines(9, (0, 3)))
    rows = splines(fine[0])
    assert np.allclose(splines.gram(), (rows * fine[1][:, None]).T @ rows, atol=1e-6)
    assert np.allclose(np.tril(splines.gram(), -3), 0)
    # polynomials of degree below the order are in the span, and constants have no roughness
    ones = splines.project(FunctionalData([np.ones(50)], np.linspace(0, 3, 50)))[0]
    assert ones @ splines.gram() @ ones == pytest.approx(3) and np.allclose(splines.roughness(1) @ ones, 0, atol=1e-9)


def test_roughness_of_a_cubic_spline_is_the_integral_of_its_second_derivative():
    splines, a = BSplines(8), np.random.default_rng(0).standard_normal(8)
    fine = (np.arange(20_000) + 0.5) / 20_000
    assert a @ splines.roughness(2) @ a == pytest.approx(np.mean((splines.derivative(fine, 2) @ a) ** 2), rel=1e-6)


def test_splines_reject_invalid_knots_and_orders():
    with pytest.raises(OptionError, match="num_functions"):
        BSplines(3)
    with pytest.raises(InputError, match="knots"):
        BSplines(knots=[0.0, 1.0, 0.5])
    with pytest.raises(OptionError, match="repeat"):
        BSplines(order=2, knots=[0.0, 0.5, 0.5, 0.5, 1.0])
    with pytest.raises(SmoothnessError, match="roughness"):
        BSplines(5, order=2).roughness(2)
    with pytest.raises(InputError, match="TensorProduct"):
        Fourier(3, [(0, 1), (0, 1)])


def test_tensor_products_are_products_of_functions():
    fourier, splines = Fourier(2), BSplines(5, (0, 2))
    product, points = TensorProduct(fourier, splines), np.random.default_rng(0).uniform(size=(6, 2))
    rows = product(points)
    assert np.allclose(rows[:, 7], fourier(points[:, 0])[:, 1] * splines(points[:, 1])[:, 2])
    assert np.allclose(product.gram(), np.kron(fourier.gram(), splines.gram()))
    mixed = product.derivative(points, (1, 2))
    assert np.allclose(mixed[:, 7], fourier.derivative(points[:, 0])[:, 1] * splines.derivative(points[:, 1], 2)[:, 2])


def test_roughness_in_two_dimensions_is_the_thin_plate_penalty():
    """∫ f_xx² + 2 f_xy² + f_yy², by quadrature."""
    product = TensorProduct(BSplines(4), BSplines(5, (0, 2)))
    nodes, weights = product.rule()
    expected = sum(
        weight * (product.derivative(nodes, order) * weights[:, None]).T @ product.derivative(nodes, order)
        for order, weight in (((2, 0), 1), ((1, 1), 2), ((0, 2), 1))
    )
    assert np.allclose(product.roughness(2), expected, rtol=1e-8)
