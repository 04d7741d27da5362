from functools import cache

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import beta, norm, uniform

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import (
    Coordinates,
    IntegralLoss,
    Pinball,
    TaskMeasure,
    Truncated,
    gauss_legendre,
    grid,
    monte_carlo,
    sobol,
    star_discrepancy,
    trapezoid,
)

LAWS = {
    "uniform": None,
    "interval": uniform(-1, 2),
    "beta": beta(2, 3),
    "density_2theta": beta(2, 1),
    "truncated": Truncated(beta(2, 1), 0.05, 1.0),
}


def smooth(t):
    return np.exp(np.sin(3 * t))


@cache
def exact(distribution):
    distribution = distribution or uniform()
    return quad(lambda t: smooth(t) * distribution.pdf(t), *distribution.support(), epsabs=1e-13, epsrel=1e-13)[0]


def error(measure, distribution=None):
    return abs(measure.integral(torch.from_numpy(smooth(measure.nodes.numpy()))).item() - exact(distribution))


@pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)
def test_measure_weights_sum_to_one_and_integrals_are_accurate(distribution):
    for measure, bound in (
        (gauss_legendre(20, distribution=distribution), 1e-10),
        (sobol(512, distribution, random_state=0), 2e-3),
        (monte_carlo(40_000, distribution, random_state=0), 0.02),
    ):
        assert abs(measure.weights.sum().item() - 1) < 1e-14
        assert error(measure, distribution) < bound


def test_gauss_legendre_is_exact_for_polynomials():
    measure = gauss_legendre(4, -1.0, 3.0)
    assert measure.integral(measure.nodes**7).item() == pytest.approx((3**8 - 1) / 8 / 4, rel=1e-14)


def test_lt_e_11_quadrature_error_rates():
    """LT B-23, LT-E-11: log-log slopes of the error over several random states; −½ for Monte Carlo, not the printed +½."""
    sizes = np.array([16, 64, 256, 1024])

    def slope(rule):
        errors = [np.sqrt(np.mean([error(rule(m, s)) ** 2 for s in range(12)])) for m in sizes]
        return np.polyfit(np.log(sizes), np.log(errors), 1)[0]

    assert -0.65 < slope(lambda m, s: monte_carlo(m, random_state=s)) < -0.35
    # scrambling does better than 1/m on a smooth function
    assert slope(lambda m, s: sobol(int(m), random_state=s)) < -0.9
    assert error(gauss_legendre(12)) < 1e-8 < 1e-4 < error(sobol(12, random_state=0))


def test_lt_e_23_quantile_nodes_have_equal_weights_and_even_nodes_density_weights():
    distribution = beta(2, 1)
    equal, weighted = sobol(256, distribution, scramble=False), gauss_legendre(30, distribution=distribution)
    assert torch.equal(equal.weights, torch.full((256,), 1 / 256, dtype=torch.float64))
    assert error(equal, distribution) < 5e-3 and error(weighted, distribution) < 1e-12
    # as printed, η_j ∝ F⁻¹(θ_j) = √θ_j at even nodes: the mean of the distribution, 2/3, would be 3/5
    even = gauss_legendre(30)
    printed = grid(even.nodes, even.weights * torch.from_numpy(distribution.ppf(even.nodes.numpy())))
    assert weighted.integral(weighted.nodes).item() == pytest.approx(2 / 3, abs=1e-12)
    assert printed.integral(printed.nodes).item() == pytest.approx(3 / 5, abs=1e-4)


def test_lt_e_27_spline_weights_cover_the_ends():
    nodes = torch.tensor([0.2, 0.3, 0.9], dtype=torch.float64)
    weights = trapezoid(nodes).weights
    fine = np.linspace(0, 1, 200_001)
    for j in range(3):
        hat = np.interp(fine, nodes.numpy(), np.eye(3)[j])  # constant beyond the outer nodes
        assert weights[j].item() == pytest.approx(np.trapezoid(hat, fine), abs=1e-9)
    inner = np.trapezoid(np.ones(2), [0.2, 0.9])
    assert inner == pytest.approx(0.7) and weights.sum().item() == pytest.approx(1.0, abs=1e-15)


def test_lt_e_33_star_discrepancy_is_computed():
    for m, value in ((20, 0.075), (34, 0.040), (100, 0.0175), (500, 0.0039)):
        nodes = sobol(m, scramble=False).nodes.sort().values
        formula = (
            1 / (2 * m) + (nodes - (2 * torch.arange(1, m + 1, dtype=torch.float64) - 1) / (2 * m)).abs().max().item()
        )
        assert star_discrepancy(TaskMeasure(nodes)) == pytest.approx(formula, abs=1e-12)
        assert formula == pytest.approx(value, abs=6e-4)
    # log(m)/m with constant 1, as printed, is not a bound for m ≤ 2
    assert star_discrepancy(sobol(1, scramble=False)) == 0.5 > np.log(1)
    assert star_discrepancy(TaskMeasure([0.9, 0.95])) > np.log(2) / 2


def test_koksma_hlawka_inequality():
    """|∫f − Σηf| ≤ V(f) D*."""
    variation = quad(lambda t: abs(3 * np.cos(3 * t) * smooth(t)), 0, 1)[0]
    for measure in (sobol(33, random_state=3), monte_carlo(33, random_state=3), gauss_legendre(6)):
        assert error(measure) <= variation * star_discrepancy(measure)


def test_monte_carlo_draws_nodes_per_row():
    measure = monte_carlo(3, num_rows=7, random_state=0)
    assert measure.nodes.shape == (7, 3) and not measure.is_shared and len(measure) == 3
    y, u = torch.randn(7, 1).double(), torch.randn(7, 3).double()
    values = IntegralLoss(Pinball(), measure).value(u, y)
    one = IntegralLoss(Pinball(), TaskMeasure(measure.nodes[4])).value(u[4:5], y[4:5])
    assert values[4].item() == pytest.approx(one.item(), abs=1e-15)


def test_grid_computes_importance_weights():
    nodes = torch.from_numpy(norm.rvs(0.5, 0.3, size=60_000, random_state=0))
    measure = grid(nodes, density=beta(2, 3).pdf, proposal=norm(0.5, 0.3).pdf)
    assert error(measure, beta(2, 3)) < 0.01


def test_samples_are_reproducible():
    for rule in (monte_carlo, sobol):
        assert torch.equal(rule(5, random_state=3).nodes, rule(5, random_state=3).nodes)
        assert not torch.equal(rule(5, random_state=3).nodes, rule(5, random_state=4).nodes)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TaskMeasure([]), "not empty"),
        (lambda: TaskMeasure([0.1, np.nan]), "finite"),
        (lambda: TaskMeasure([0.1, 0.2], [1.0]), "weights"),
        (lambda: TaskMeasure([0.1, 0.2], [1.5, -0.5]), "convex"),
        (lambda: TaskMeasure([0.1, 0.2], [0.5, 0.6]), "sum to 1"),
        (lambda: grid([0.1, 0.2], [0.0, 0.0]), "positive sum"),
        (lambda: trapezoid([0.5, 0.4]), "strictly increasing"),
        (lambda: star_discrepancy(monte_carlo(2, num_rows=2)), "shared"),
    ],
)
def test_measures_reject_invalid_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: gauss_legendre(0),
        lambda: gauss_legendre(5, distribution=norm()),
        lambda: monte_carlo(2.5),
        lambda: Truncated(uniform(), 2.0, 3.0),
    ],
)
def test_measures_reject_invalid_options(make):
    with pytest.raises(OptionError):
        make()


def test_coordinates_have_unit_weights():
    assert Coordinates(4).weights.sum().item() == 4 and len(Coordinates(4)) == 4
