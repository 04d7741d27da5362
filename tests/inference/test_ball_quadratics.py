"""The quadratic objective in its three forms, and its largest eigenvalue."""

import pytest
import torch
from ball_cases import psd, vector

from ovkgp.exceptions import InputError
from ovkgp.inference.ridge.ball_constraints import CURVATURE_MARGIN, BallQuadratic, Spectrum


def test_a_kronecker_product_is_its_matrix():
    S, T, v = psd(4, 0), psd(3, 1), vector(12)
    fast, slow = BallQuadratic.of((S, T), v, 2.0), BallQuadratic.of(torch.kron(S, T), v, 2.0)
    w = vector(12, 6)
    torch.testing.assert_close(fast.apply(w), torch.kron(S, T) @ w)
    assert fast.value(w, fast.apply(w)) == pytest.approx(float(w @ torch.kron(S, T) @ w) / 2 - float(v @ w) + 1.0)
    assert fast.curvature() == pytest.approx(slow.curvature())


def test_the_spectrum_is_that_of_the_product():
    S, T, w = psd(4, 0, rank=2), psd(3, 1), vector(12)
    spectrum = Spectrum.of(S, T)
    torch.testing.assert_close(spectrum.back(spectrum.values * spectrum.into(w)), torch.kron(S, T) @ w)
    torch.testing.assert_close(spectrum.back(spectrum.into(w)), w)
    assert (spectrum.values >= 0).all()


@pytest.mark.parametrize("rank", [None, 3])
def test_the_shortest_solution(rank):
    A = psd(8, 0, rank)
    found = BallQuadratic.of(A, A @ vector(8), 1.0)
    torch.testing.assert_close(found.least_norm(), torch.linalg.pinv(A, rtol=1e-12) @ A @ vector(8))


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_lanczos_finds_the_largest_eigenvalue(size):
    A = psd(size, 0)
    found = BallQuadratic.of(A, vector(size), 1.0, factorise=False)
    exact = float(torch.linalg.eigvalsh(A)[-1])
    assert found.spectrum is None
    assert exact <= found.curvature() <= (CURVATURE_MARGIN + 1e-3 if size > 2 else 2**0.5) * exact


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="they must agree"):
        BallQuadratic.of(psd(4, 0), vector(3), 1.0)
