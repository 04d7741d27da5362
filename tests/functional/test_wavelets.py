"""Tests of `ovkgp.functional.wavelets`."""

import numpy as np
import pytest
import pywt
import torch

from ovkgp.exceptions import OptionError, SmoothnessError
from ovkgp.functional import Fourier, FunctionalData, Wavelets, keep_largest, select_functions
from ovkgp.functional.wavelets import scaling_values

MIDDLE = (np.arange(2**13) + 0.5) / 2**13


@pytest.mark.parametrize("name", ["db2", "db3", "sym4"])
def test_scaling_function_satisfies_its_two_scale_relation(name):
    """φ(x) = √2 Σ h_k φ(2x − k) at points that are not dyadic, Σ_i φ(x + i) = 1, and PyWavelets' cascade within its error."""
    h = np.array(pywt.Wavelet(name).rec_lo)
    size = len(h) - 1

    def phi(x):
        inside, cell = (x >= 0) & (x < size), np.clip(np.floor(x), 0, size - 1).astype(int)
        return np.where(inside, scaling_values(h, np.where(inside, x - cell, 0))[np.arange(len(x)), cell], 0.0)

    x = np.random.default_rng(0).uniform(0, size, 50)
    assert np.allclose(phi(x), np.sqrt(2) * sum(c * phi(2 * x - k) for k, c in enumerate(h)), atol=1e-7)
    assert np.allclose(scaling_values(h, x % 1).sum(1), 1)
    cascade, _, at = pywt.Wavelet(name).wavefun(12)
    assert np.abs(np.interp(x, at, cascade) - phi(x)).max() < 0.01


@pytest.mark.parametrize("name", ["haar", "db2", "db3", "sym4"])
@pytest.mark.parametrize("boundary", ["periodic", "symmetric", "restricted"])
def test_gram_is_exact_at_every_boundary(name, boundary):
    wavelets = Wavelets(3, name, (1, 3), boundary, coarsest=1)
    rows = wavelets(1 + 2 * MIDDLE)
    assert np.allclose(rows.T @ rows * 2 / len(rows), wavelets.gram(), atol=1e-4)
    values = np.linalg.eigvalsh(wavelets.gram())
    assert values[0] > -1e-10 and values[-1] < 1 + 1e-10


@pytest.mark.parametrize("name", ["db2", "db3"])
def test_wavelets_have_vanishing_moments(name):
    """Wavelets inside of the domain are orthogonal to polynomials of degree below N, and not to those of degree N."""
    wavelets, moments = Wavelets(3, name, boundary="restricted", coarsest=3), int(name[2])
    finest = np.flatnonzero(wavelets.levels == 2)
    rows = wavelets(MIDDLE)[:, finest]
    inner = np.abs(rows[[0, -1]]).max(0) == 0
    for degree in range(moments):
        assert np.abs((MIDDLE**degree) @ rows[:, inner] / len(rows)).max() < 1e-6
    assert np.abs((MIDDLE**moments) @ rows[:, inner] / len(rows)).max() > 1e-6


def test_restricted_wavelets_reproduce_polynomials_up_to_the_boundary():
    wavelets = Wavelets(2, "db3", boundary="restricted", coarsest=2)
    data = FunctionalData(np.stack([MIDDLE**k for k in range(4)])[:, ::8], MIDDLE[::8])
    error = np.abs(wavelets.expand(wavelets.project(data), data.grid) - data.values).max(1)
    assert (error[:3] < 1e-6).all() and error[3] > 1e-6


def test_symmetric_wavelets_represent_functions_that_are_not_periodic():
    """BO-37: folding keeps f continuous at the ends; the periodic basis has Gibbs oscillations there."""
    f = FunctionalData([MIDDLE[::16]], MIDDLE[::16], (0, 1))
    errors = {}
    for boundary in ("periodic", "symmetric"):
        wavelets = Wavelets(4, "db2", boundary=boundary)
        fitted = wavelets.expand(wavelets.project(f, "quadrature", "trapezoid"), f.grid)
        errors[boundary] = np.sqrt(np.mean((fitted - f.values) ** 2))
    assert errors["symmetric"] < 0.1 * errors["periodic"]
    folded = Wavelets(4, "db2", boundary="symmetric")
    inner = folded.inner(f, "trapezoid")[0]
    assert inner @ inner == pytest.approx(1 / 3, rel=0.01)  # ‖f‖², up to the part of f̃ outside of the finest level


def test_bo_12_scale_weights_damp_fine_wavelets():
    wavelets = Wavelets(3, "db2")
    assert np.allclose(wavelets.scale_weights(2.0), [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])
    assert np.allclose(wavelets.scale_weights(1.0), 1)
    factor = wavelets.as_factor(wavelets.scale_weights(1.5))
    t = torch.tensor([0.2, 0.7]).double()
    B = np.diag(1.5 ** -wavelets.levels.astype(float))
    assert np.allclose((factor(t) @ factor(t).T).numpy(), wavelets(t) @ B @ wavelets(t).T)


@pytest.mark.parametrize("dictionary", [Wavelets(6, "db2"), Fourier(32)])
def test_bo_c_13_nonlinear_approximation_is_at_least_as_good_as_linear(dictionary):
    """The d0 best coefficients of an orthonormal basis; with a jump they are strictly better."""
    f = np.where(MIDDLE < 0.37, 0.0, 1.0) + MIDDLE
    a = dictionary.inner(FunctionalData([f], MIDDLE, (0, 1)))
    rows, d0 = dictionary(MIDDLE), 12
    linear = np.where(np.arange(a.shape[1]) < d0, a, 0.0)
    errors = [np.mean((rows @ c[0] - f) ** 2) for c in (keep_largest(a, d0), linear)]
    assert errors[0] <= errors[1] + 1e-12
    if isinstance(dictionary, Wavelets):
        assert errors[0] < 0.5 * errors[1]


def test_bo_c_12_wavelet_approximation_error_decreases_at_the_rate_of_smoothness():
    """f with a kink is in H^s for s < 3/2 < 2 vanishing moments of db2: squared error O(2^(−2sJ))."""
    f = np.maximum(0.25 - np.abs(MIDDLE - 0.47), 0)
    sizes, errors = np.arange(3, 8), []
    for J in sizes:
        wavelets = Wavelets(int(J), "db2")
        a = wavelets.inner(FunctionalData([f], MIDDLE, (0, 1)))[0]
        errors.append(np.mean((wavelets(MIDDLE) @ a - f) ** 2))
    assert np.polyfit(sizes * np.log(2), np.log(errors), 1)[0] <= -2 * 1.4 + 0.2


def test_bo_38_common_functions_are_selected_by_their_inner_products():
    fourier, t = Fourier(6), (np.arange(64) + 0.5) / 64
    a = np.zeros((3, 11))
    a[:, 5], a[:, 2], a[0, 9] = 3.0, -2.0, 1.0
    selected = select_functions(fourier, FunctionalData(fourier.expand(a, t), t, (0, 1)), 2)
    assert np.allclose(selected(t), fourier(t)[:, [5, 2]])


def test_wavelets_reject_unknown_names_and_derivatives():
    with pytest.raises(OptionError, match="name"):
        Wavelets(3, "nope")
    with pytest.raises(OptionError, match="orthogonal"):
        Wavelets(3, "bior2.2")
    with pytest.raises(SmoothnessError):
        Wavelets(3).derivative([0.5])
    with pytest.raises(SmoothnessError):
        Wavelets(3).roughness()
