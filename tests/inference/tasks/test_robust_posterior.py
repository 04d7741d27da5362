"""Tests of `ovkgp.inference.tasks.robust_posterior`."""

import numpy as np
import pytest
from scipy.integrate import quad

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.robust_posterior import (
    GaussianFit,
    HuberDensity,
    LogCoshDensity,
    StudentDensity,
    fit_weights,
)

DENSITIES = [HuberDensity(0.7), LogCoshDensity(1.8), StudentDensity(4.0)]


def potential(density, squares, noise, size=1):
    """ρ at squares/σ², from its definition."""
    r = np.sqrt(squares)
    if isinstance(density, HuberDensity):
        k = density.kappa
        return (squares / 2 if r <= k else k * r - k**2 / 2) / noise
    if isinstance(density, LogCoshDensity):
        return (np.logaddexp(density.nu * r, -density.nu * r) - np.log(2)) / (density.nu**2 * noise)
    return (density.degrees + size) / 2 * np.log1p(squares / noise / density.degrees)


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_normalizer_and_variance_of_a_value(density, noise):
    """G-07, LT §6.1, BO §6.3: normalizers against quadrature."""
    mass = quad(lambda r: np.exp(-potential(density, r**2, noise)), -300, 300, points=[-0.7, 0, 0.7], limit=900)[0]
    second = quad(
        lambda r: r**2 * np.exp(-potential(density, r**2, noise)), -300, 300, points=[-0.7, 0, 0.7], limit=900
    )[0]
    assert float(density.log_normalizer(1.0, noise)) == pytest.approx(np.log(mass), abs=1e-4)
    if not isinstance(density, StudentDensity):
        assert float(density.log_normalizer(1.0, noise)) == pytest.approx(np.log(mass), abs=1e-8)
    assert density.variance(1.0, noise) == pytest.approx(
        second / mass, rel=2e-2 if isinstance(density, StudentDensity) else 1e-6
    )


def test_huber_normalizer_is_the_closed_form():
    """BO §6.3: Z = σ[√(2π)(2Φ(κ/σ) − 1) + (2σ/κ) e^{−κ²/2σ²}]."""
    from scipy.stats import norm

    kappa, sigma = 0.8, 1.3
    Z = sigma * (
        np.sqrt(2 * np.pi) * (2 * norm.cdf(kappa / sigma) - 1)
        + 2 * sigma / kappa * np.exp(-(kappa**2) / (2 * sigma**2))
    )
    assert float(HuberDensity(kappa).log_normalizer(1.0, sigma**2)) == pytest.approx(np.log(Z), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 55])
def test_radial_normalizer(size):
    """LT §6.1: the density of a curve depends on its norm; the radial integral by quadrature."""
    density, noise = HuberDensity(2.0), 0.4
    from scipy.special import gammaln

    def radial(r, extra=0.0):
        return np.exp((size - 1 + extra) * np.log(r) - potential(density, r**2, noise) - offset)

    offset = max((size - 1) * np.log(r) - potential(density, r**2, noise) for r in np.linspace(0.1, 60, 2000))
    limits = {"points": [2.0, 10.0], "limit": 500}
    mass = quad(radial, 0, 200, **limits)[0]
    second = quad(radial, 0, 200, args=(2.0,), **limits)[0]
    log_sphere = np.log(2) + size / 2 * np.log(np.pi) - gammaln(size / 2)
    assert float(density.log_normalizer(size, noise)) == pytest.approx(log_sphere + np.log(mass) + offset, abs=1e-7)
    assert density.variance(size, noise) == pytest.approx(second / mass / size, rel=1e-6)


@pytest.mark.parametrize("density", DENSITIES)
def test_weights_are_tangents_of_the_potential(density):
    """−ρ(x²) ≥ −½wx² − g(w), with equality at the point whose weight is w."""
    noise, size = 0.5, np.ones(1)
    squares = np.linspace(1e-3, 30, 60)
    for at in (0.1, 1.0, 8.0):
        w = density.weight(np.array([at]), size, noise)
        bound = w * squares / 2 + density.offset(w, size, noise)
        values = np.array([potential(density, x * noise, noise) for x in squares])
        assert (values <= bound + 1e-9).all()
        tangent = w * at / 2 + density.offset(w, size, noise)
        assert float(tangent[0]) == pytest.approx(potential(density, at * noise, noise), abs=1e-8)


@pytest.mark.parametrize("density", DENSITIES)
def test_bound_increases_and_is_below_the_log_evidence(density):
    """One latent value f ~ N(0, k) with three observations: the exact evidence is a one-dimensional integral."""
    y, k, noise = np.array([0.2, -0.1, 4.0]), 1.5, 0.3

    def condition(w):
        C = k * np.ones((3, 3)) + np.diag(noise / w)
        inverse = np.linalg.inv(C)
        mean, variance = k * inverse.sum(0) @ y, k - k**2 * inverse.sum()
        return GaussianFit((y - mean) ** 2, np.full(3, variance), y @ inverse @ y, np.linalg.slogdet(C)[1])

    found = fit_weights(density, condition, np.ones(3), noise, np.ones(3), scale=1.0)
    assert (np.diff(found.history) >= -1e-9).all()

    def joint(f):
        likelihood = -sum(potential(density, (v - f) ** 2, noise) for v in y)
        return np.exp(likelihood - f**2 / (2 * k)) / np.sqrt(2 * np.pi * k)

    exact = np.log(quad(joint, -15, 15, points=[0, 4], limit=300)[0]) - 3 * float(density.log_normalizer(1.0, noise))
    assert found.bound <= exact + 1e-9
    assert found.bound > exact - 0.6
    assert found.weights[2] < 0.5 * found.weights[0]


def test_large_kappa_is_gaussian():
    """G-06: κ → ∞ gives weights 1 and the Gaussian evidence; a trained scale maximizes it."""
    y, noise = np.array([0.5, -1.0, 2.0, 0.3]), 0.2
    C = 0.7 * np.ones((4, 4)) + noise * np.eye(4)
    fit = GaussianFit(y**2, np.zeros(4), y @ np.linalg.solve(C, y), np.linalg.slogdet(C)[1])
    found = fit_weights(HuberDensity(1e3), lambda w: fit, np.ones(4), noise, np.ones(4))
    s = fit.quadratic / 4
    assert found.scale == pytest.approx(s, rel=1e-3)
    log_density = -(fit.quadratic / s + fit.logdet + 4 * np.log(2 * np.pi * s)) / 2
    assert found.bound == pytest.approx(log_density, abs=1e-6)


def test_invalid_parameters_are_rejected():
    with pytest.raises((InputError, OptionError), match="kappa"):
        HuberDensity(-1.0)
