"""Tests of `ovkgp.functional.smoothing`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import make_smoothing_spline
from scipy.optimize import minimize

from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import BSplines, Fourier, FunctionalData, KernelSections, TensorProduct, Wavelets, smooth

RNG = np.random.default_rng(0)
T = np.sort(RNG.uniform(2, 7, 40))
Y = np.sin(2 * T) + 0.2 * RNG.standard_normal((3, 40))
FINE = np.linspace(T[0], T[-1], 300)


def gaussian(lengthscale=0.5):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale).double()
    return kernel


@pytest.mark.parametrize("lam", [1e-5, 1e-2, 1.0])
def test_bo_32_smoothing_spline_equals_scipys_with_m_times_the_penalty(lam):
    """The objective has 1/m in front of the squares, hence SciPy's λ is m · roughness, on any interval."""
    curves = smooth(FunctionalData(Y, T), BSplines(knots=T), roughness=lam)
    for i in range(3):
        expected = make_smoothing_spline(T, Y[i], lam=len(T) * lam)
        assert np.allclose(curves(FINE)[i], expected(FINE), atol=1e-7)
        assert np.allclose(curves(FINE, 1)[i], expected.derivative()(FINE), atol=1e-6)


def test_generalized_cross_validation_is_near_scipys_choice():
    curves = smooth(FunctionalData(Y[:1], T), BSplines(knots=T), roughness="gcv")
    expected = make_smoothing_spline(T, Y[0])
    assert np.abs(curves(FINE)[0] - expected(FINE)).max() < 0.05
    assert curves.noise[0] == pytest.approx(0.04, rel=0.5)


@settings(max_examples=10, deadline=None)
@given(ridge=st.floats(1e-4, 1), rough=st.floats(0, 1e-2), shrinkage=st.floats(0, 1), seed=st.integers(0, 99))
def test_bo_31_coefficients_minimize_the_objective(ridge, rough, shrinkage, seed):
    rng = np.random.default_rng(seed)
    t, y, fourier = np.sort(rng.uniform(size=15)), rng.standard_normal(15), Fourier(3)
    rows, P = fourier(t), fourier.roughness(2)

    def objective(a):
        f = rows @ a
        return np.mean((f - y) ** 2) + ridge * a @ a + shrinkage * np.mean(f**2) + rough * a @ P @ a

    data = FunctionalData([y], t, (0, 1))
    found = smooth(data, fourier, ridge=ridge, roughness=rough, shrinkage=shrinkage).coefficients[0]
    best = minimize(objective, found + 0.1 * rng.standard_normal(5), tol=1e-12)
    assert objective(found) <= best.fun + 1e-9
    step = 1e-5 * np.eye(5)
    gradient = [(objective(found + e) - objective(found - e)) / 2e-5 for e in step]
    assert np.abs(gradient).max() < 1e-6 * (1 + rough * P.max())


def test_bo_e_05_shrinkage_divides_least_squares_by_one_plus_lambda():
    """(1/m)‖Φa − y‖² + (λ/m)‖Φa‖²: a = LS/(1 + λ), not LS/(1 − λ)."""
    data, splines, lam = FunctionalData(Y, T), BSplines(8, (2, 7)), 0.4
    least_squares = splines.project(data)
    found = smooth(data, splines, shrinkage=lam).coefficients
    assert np.allclose(found, least_squares / (1 + lam))
    assert not np.allclose(found, least_squares / (1 - lam), rtol=0.1)


def test_dense_orthonormal_smoothing_is_a_scaled_projection():
    t = (np.arange(200) + 0.5) / 200
    data, fourier = FunctionalData([np.exp(t)], t, (0, 1)), Fourier(4)
    assert np.allclose(smooth(data, fourier, ridge=0.3).coefficients, fourier.inner(data) / 1.3, atol=1e-10)


def test_smoothing_without_penalty_is_least_squares_also_if_singular():
    few = FunctionalData(Y[:, :5], T[:5], (2, 7))
    for basis in (BSplines(8, (2, 7)), Wavelets(3, "db2", (2, 7), "restricted")):
        curves = smooth(few, basis)
        assert np.allclose(curves.coefficients, basis.project(few), atol=1e-6)


def test_noise_is_nan_where_curves_are_interpolated():
    curves = smooth(FunctionalData(Y[:, ::8], T[::8], (2, 7)), Fourier(4, (2, 7)))
    assert np.allclose(curves(T[::8]), Y[:, ::8]) and np.isnan(curves.noise).all()


def test_bo_33_smoothing_in_an_rkhs_is_the_posterior_mean_of_a_gaussian_process():
    """α = (K + λm I)⁻¹ y; the standard deviation is that of the process with prior variance noise/(λm)."""
    kernel, lam = gaussian(), 1e-3
    K = kernel(torch.from_numpy(T)[:, None]).to_dense().detach().numpy()
    cross = kernel(torch.from_numpy(FINE)[:, None], torch.from_numpy(T)[:, None]).to_dense().detach().numpy()
    curves = smooth(FunctionalData(Y, T), kernel, ridge=lam)
    system = K + lam * 40 * np.eye(40)
    assert np.allclose(curves(FINE), Y @ np.linalg.solve(system, cross.T), atol=1e-9)
    variance = (1 - np.einsum("km,mk->k", cross, np.linalg.solve(system, cross.T))) / (lam * 40)
    assert np.allclose(curves.std(FINE), np.sqrt(variance * curves.noise[:, None]), atol=1e-8)
    differences = (curves(FINE[1:-1] + 1e-6) - curves(FINE[1:-1] - 1e-6)) / 2e-6
    assert np.allclose(curves(FINE[1:-1], 1), differences, atol=1e-5)


def test_bo_33_solution_minimizes_the_regularized_error_over_a_larger_space():
    """Representer theorem: sections at other points do not reduce the objective."""
    kernel, lam, t = gaussian(), 0.01, T[::3]
    sections = KernelSections(kernel, FINE[::10], (T[0], T[-1]))
    points = np.concatenate([t, sections.points[:, 0]])
    K = kernel(torch.from_numpy(points)[:, None]).to_dense().detach().numpy()
    y, m = Y[0, ::3], len(t)

    def objective(a):
        return np.mean((K[:m] @ a - y) ** 2) + lam * a @ K @ a

    a = np.zeros(len(points))
    a[:m] = smooth(FunctionalData([y], t, (T[0], T[-1])), kernel, ridge=lam).coefficients[0]
    gradient = 2 / m * K[:m].T @ (K[:m] @ a - y) + 2 * lam * K @ a
    assert np.abs(gradient).max() < 1e-10
    assert objective(a) <= min(objective(a + 0.01 * e) for e in np.eye(len(a)))


@pytest.mark.parametrize("basis", [BSplines(10, (2, 7)), gaussian()])
def test_ragged_and_dense_curves_agree(basis):
    penalty = {"ridge": 1e-3}
    dense = smooth(FunctionalData(Y, T, (2, 7)), basis, **penalty)
    ragged = smooth(FunctionalData(list(Y), [T] * 3, (2, 7)), basis, **penalty)
    for a, b in ((dense(FINE), ragged(FINE)), (dense.std(FINE), ragged.std(FINE)), (dense.noise, ragged.noise)):
        assert np.allclose(a, b, atol=1e-10)
    gaps = np.where(RNG.uniform(size=Y.shape) < 0.2, np.nan, Y)
    keep = ~np.isnan(gaps)
    lists = FunctionalData([y[k] for y, k in zip(gaps, keep, strict=True)], [T[k] for k in keep], (2, 7))
    with_gaps = smooth(FunctionalData(gaps, T, (2, 7)), basis, **penalty)
    assert np.allclose(with_gaps(FINE), smooth(lists, basis, **penalty)(FINE), atol=1e-10)


def test_channels_are_smoothed_separately():
    both = np.stack([Y, -2 * Y], -1)
    gaps = both.copy()
    gaps[0, 3, 1] = np.nan
    for values in (both, gaps):
        curves = smooth(FunctionalData(values, T), BSplines(10, (2, 7)), ridge=1e-6)
        assert curves(FINE).shape == curves.std(FINE).shape == (3, 300, 2) and curves.noise.shape == (3, 2)
        single = smooth(FunctionalData(Y, T), BSplines(10, (2, 7)), ridge=1e-6)
        assert np.allclose(curves(FINE)[1:, :, 1], -2 * single(FINE)[1:], atol=1e-9)
        assert np.allclose(curves.std(FINE)[1:, :, 1], 2 * single.std(FINE)[1:], atol=1e-9)


def test_standard_deviations_cover_the_truth():
    """Posterior intervals of level 90 % of a smoothing spline cover about 90 % on average over the interval (Wahba)."""
    rng, t, covered = np.random.default_rng(3), np.linspace(0, 1, 60), []
    truth = np.sin(6 * t) * t
    curves = smooth(FunctionalData(truth + 0.1 * rng.standard_normal((60, 60)), t), BSplines(25), roughness="gcv")
    covered = np.abs(curves(t) - truth) < 1.645 * curves.std(t)
    assert 0.85 < covered.mean() < 0.95


def test_surfaces_are_smoothed_in_tensor_products():
    rng = np.random.default_rng(0)
    grid = rng.uniform(size=(300, 2))
    truth = np.sin(3 * grid[:, 0]) * grid[:, 1]
    data = FunctionalData(truth + 0.1 * rng.standard_normal((2, 300)), grid, [(0, 1), (0, 1)])
    curves = smooth(data, TensorProduct(BSplines(6), BSplines(6)), roughness="gcv")
    assert np.sqrt(np.mean((curves(grid) - truth) ** 2)) < 0.04
    smoothed = curves.to_data(grid)
    assert smoothed.is_complete and smoothed.num_dims == 2


def test_smooth_rejects_invalid_options():
    data = FunctionalData(Y, T)
    for options, error, message in (
        ({"basis": gaussian()}, OptionError, "ridge"),
        ({"basis": gaussian(), "ridge": 1.0, "roughness": 1.0}, OptionError, "roughness"),
        ({"basis": BSplines(5, (2, 7)), "ridge": "gcv", "roughness": "gcv"}, OptionError, "gcv"),
        ({"basis": BSplines(5, (2, 7)), "ridge": -1.0}, OptionError, "ridge"),
        ({"basis": "splines"}, InputError, "basis"),
        ({"basis": BSplines(5, (0, 1))}, InputError, "domain"),
    ):
        with pytest.raises(error, match=message):
            smooth(data, **options)
