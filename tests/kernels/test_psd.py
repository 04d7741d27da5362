"""Properties of all operator-valued kernels (BT-19, BT-20, BT-23) with random hyperparameters and inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import OUTPUTS, SMOOTH_BASES, STATIONARY, dense, operator_valued, randomize, smooth_base

from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel

EVERY = pytest.mark.parametrize("name", OUTPUTS)
few = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**20)
scales = st.sampled_from([0.0, 0.01, 0.3, 1.0, 10.0])


def points(n, seed, scale, d=2):
    """Draw points, from coincident (scale 0) to distant ones."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, d, generator=generator, dtype=torch.float64)


def case(name, seed, scale, n=5):
    return randomize(operator_valued(name).double(), seed), points(n, seed + 1, scale)


def smallest_over_largest(matrix):
    values = np.linalg.eigvalsh(matrix)
    return values[0] / values[-1]


def spectral_norm(matrix):
    return np.linalg.norm(matrix, 2)


@EVERY
@few
@given(seed=seeds, scale=scales)
def test_bt_19_matrix_is_symmetric_and_positive_semidefinite(name, seed, scale):
    kernel, x = case(name, seed, scale)
    matrix = dense(kernel, x)
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-12, atol=1e-14 * np.abs(matrix).max())
    assert smallest_over_largest(matrix) >= -1e-8


@pytest.mark.parametrize("base", SMOOTH_BASES)
@pytest.mark.parametrize("make", [CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel])
@settings(max_examples=5, deadline=None)
@given(seed=seeds, scale=scales)
def test_bt_19_fields_over_every_base_kernel(make, base, seed, scale):
    kernel = randomize(make(smooth_base(base, 3)).double(), seed)
    assert smallest_over_largest(dense(kernel, points(5, seed + 1, scale, d=3))) >= -1e-8


@EVERY
@few
@given(seed=seeds, scale=scales)
def test_bt_19_exchanging_the_arguments_transposes(name, seed, scale):
    kernel, x = case(name, seed, scale)
    z = points(3, seed + 2, 1.0)
    np.testing.assert_allclose(dense(kernel, x, z), dense(kernel, z, x).T, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", STATIONARY)
@few
@given(seed=seeds, shift=st.floats(-3, 3))
def test_bt_23_stationary_kernels_are_shift_invariant(name, seed, shift):
    kernel, x = case(name, seed, 1.0)
    z, moved = points(3, seed + 2, 1.0), dense(kernel, x, points(3, seed + 2, 1.0))
    shifted = dense(kernel, x + shift, z + shift)
    np.testing.assert_allclose(shifted, moved, rtol=1e-7, atol=1e-9 * max(np.abs(moved).max(), 1))


@pytest.mark.parametrize("name", STATIONARY)
@few
@given(seed=seeds)
def test_bt_23_block_at_a_point_is_the_signature_at_zero(name, seed):
    kernel, x = case(name, seed, 1.0, n=1)
    at_zero = spectral_norm(dense(kernel, torch.zeros_like(x)))
    assert spectral_norm(dense(kernel, x)) == pytest.approx(at_zero, rel=1e-10)


@EVERY
@few
@given(seed=seeds, scale=scales)
@pytest.mark.slow
def test_bt_20_values_are_bounded_by_the_norm(name, seed, scale):
    """‖f(z)‖ ≤ √‖K(z, z)‖ ‖f‖ for f = Σ K(·, x_i) u_i, ‖f‖² = uᵀKu."""
    kernel, x = case(name, seed, scale)
    u = np.random.default_rng(seed).normal(size=5 * OUTPUTS[name])
    norm = np.sqrt(u @ dense(kernel, x) @ u)
    for z in torch.cat([x[:1], points(2, seed + 2, 1.0)]):
        f = dense(kernel, z[None], x) @ u
        assert np.linalg.norm(f) <= np.sqrt(spectral_norm(dense(kernel, z[None]))) * norm * (1 + 1e-8)


def test_bt_20_bound_is_attained_at_a_data_point():
    kernel, x = case("curl_free", 0, 1.0, n=1)
    matrix = dense(kernel, x)
    u = np.linalg.eigh(matrix)[1][:, -1]
    assert np.linalg.norm(matrix @ u) == pytest.approx(np.sqrt(spectral_norm(matrix) * (u @ matrix @ u)))
