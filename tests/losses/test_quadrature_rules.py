"""Tests of `ovkgp.losses.quadrature_rules` and of products of measures, for tasks in R^b (LT-70..72)."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm, qmc, uniform

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import (
    CurveHuber,
    Envelope,
    Huber,
    IntegralLoss,
    LogCosh,
    OneClass,
    Pinball,
    SmoothedHinge,
    Square,
    TaskMeasure,
    gauss_legendre,
    gaussian_embedding,
    grid,
    kernel_quadrature,
    kernel_rule,
    monte_carlo,
    product_measure,
    sobol,
    star_discrepancy,
    trapezoid,
)

RATES = {2: [1.0, -2.0], 3: [1.0, -2.0, 0.5]}


def exponential(points):
    """exp(aᵀθ), whose integral over the unit cube is the product of (e^{a_j} − 1)/a_j."""
    return (points @ torch.tensor(RATES[points.shape[-1]], dtype=torch.float64)).exp()


def exact(num_dims):
    return math.prod(math.expm1(a) / a for a in RATES[num_dims])


@pytest.mark.parametrize("num_dims", [2, 3])
def test_integrals_of_an_exponential_over_the_cube(num_dims):
    """LT-70, LT-71, LT-72 in R² and R³."""
    for measure, bound in (
        (gauss_legendre(9, num_dims=num_dims), 1e-12),
        (sobol(1024, num_dims=num_dims, random_state=0), 1e-3),
        (monte_carlo(40_000, num_dims=num_dims, random_state=0), 0.02),
        (product_measure(*[trapezoid(np.linspace(0, 1, 41))] * num_dims), 2e-3),
    ):
        assert measure.nodes.shape == (len(measure), num_dims) and measure.is_shared
        assert measure.weights.sum().item() == pytest.approx(1.0, abs=1e-13)
        assert abs(measure.integral(exponential(measure.nodes)).item() - exact(num_dims)) < bound


def test_gauss_legendre_product_is_exact_for_polynomials_in_each_coordinate():
    measure = gauss_legendre((2, 4), low=(0.0, -1.0), high=(2.0, 3.0))
    s, t = measure.nodes.T
    assert len(measure) == 8
    assert measure.integral(s**3 * t**7).item() == pytest.approx(16 / 4 / 2 * (3**8 - 1) / 8 / 4, rel=1e-13)


def test_rules_follow_a_distribution_per_coordinate():
    """Means and the covariance of independent coordinates."""
    distributions = [beta(2, 1), uniform(-1, 4)]
    for measure, bound in (
        (gauss_legendre(6, distribution=distributions), 1e-12),
        (sobol(4096, distributions, random_state=1), 2e-3),
        (monte_carlo(40_000, distributions, random_state=1), 0.02),
    ):
        means = [measure.integral(column).item() for column in measure.nodes.T]
        assert means == pytest.approx([2 / 3, 1.0], abs=bound)
        product = measure.integral(measure.nodes.prod(-1)).item()
        assert product == pytest.approx(2 / 3, abs=2 * bound)


def test_one_distribution_holds_for_all_coordinates():
    measure = sobol(512, norm(1.0, 0.5), num_dims=3, random_state=0)
    assert torch.allclose(measure.nodes.mean(0), torch.ones(3).double(), atol=0.01)


def test_quasi_random_points_in_the_square_converge_faster_than_random_ones():
    """LT-71: O((log m)^b/m) against O(m^(−1/2))."""

    def root_mean_square(rule, m):
        errors = [rule(m, num_dims=2, random_state=s) for s in range(10)]
        return np.sqrt(np.mean([(e.integral(exponential(e.nodes)).item() - exact(2)) ** 2 for e in errors]))

    slopes = {r: np.log2(root_mean_square(r, 1024) / root_mean_square(r, 64)) / 4 for r in (sobol, monte_carlo)}
    assert slopes[sobol] < -0.9 and -0.75 < slopes[monte_carlo] < -0.25


def test_nodes_in_one_dimension_are_those_of_the_uniform_numbers():
    """b = 1 keeps its shape (m,) and its numbers."""
    seed = int(np.random.RandomState(0).randint(2**31))
    rng = np.random.default_rng(seed)
    np.testing.assert_array_equal(monte_carlo(5, random_state=0).nodes, rng.uniform(size=5))
    engine = qmc.Sobol(1, rng=np.random.default_rng(seed))
    np.testing.assert_array_equal(sobol(6, random_state=0).nodes, engine.random(8)[:6, 0])
    x, w = np.polynomial.legendre.leggauss(5)
    np.testing.assert_allclose(gauss_legendre(5).nodes, (x + 1) / 2, rtol=1e-15)
    np.testing.assert_allclose(gauss_legendre(5).weights, w / 2, rtol=1e-15)
    single = product_measure(gauss_legendre(5))
    assert single.nodes.shape == (5,) and torch.equal(single.points, gauss_legendre(5).nodes[:, None])


def test_monte_carlo_draws_nodes_in_the_plane_per_row():
    measure = monte_carlo(3, num_rows=7, num_dims=2, random_state=0)
    assert measure.nodes.shape == (7, 3, 2) and measure.weights.shape == (7, 3)
    assert not measure.is_shared and len(measure) == 3
    y, u = torch.randn(7, 3).double(), torch.randn(7, 3).double()
    expected = (u - y).square().mean(1) / 2
    torch.testing.assert_close(IntegralLoss(Square(), measure).value(u, y), expected)


def test_grid_computes_importance_weights_in_the_plane():
    """LT-73: nodes of a normal proposal, weighted to a product of beta distributions."""
    rng = np.random.default_rng(0)
    nodes = rng.normal(0.5, 0.35, size=(60_000, 2))
    density = lambda t: beta(2, 3).pdf(t[..., 0]) * beta(2, 1).pdf(t[..., 1])  # noqa: E731
    measure = grid(nodes, density=density, proposal=lambda t: norm(0.5, 0.35).pdf(t).prod(-1), num_dims=2)
    assert [measure.integral(c).item() for c in measure.nodes.T] == pytest.approx([2 / 5, 2 / 3], abs=0.01)
    with pytest.raises(InputError, match="one number per node"):
        grid(nodes, density=norm().pdf, num_dims=2)


def test_kernel_quadrature_in_the_plane():
    """LT-27: z and ∬k are products over the coordinates; the rule integrates a function of the RKHS to its error."""
    nodes = gauss_legendre(5, num_dims=2).nodes
    z, total = gaussian_embedding(nodes, (0.4, 0.7))
    fine = gauss_legendre(30, num_dims=2)
    kernel = lambda a, b: torch.exp(  # noqa: E731
        -(((a[:, None] - b) / torch.tensor([0.4, 0.7], dtype=torch.float64)) ** 2).sum(-1) / 2
    )
    torch.testing.assert_close(z, kernel(nodes, fine.nodes) @ fine.weights, rtol=1e-12, atol=0)
    assert total == pytest.approx((fine.weights @ kernel(fine.nodes, fine.nodes) @ fine.weights).item(), rel=1e-12)
    rule = kernel_rule(kernel(nodes, nodes), z, total)
    center = torch.tensor([[0.3, 0.8]], dtype=torch.float64)
    error = (rule.weights @ kernel(nodes, center) - fine.weights @ kernel(fine.nodes, center)).abs().item()
    assert error <= rule.error < 0.01
    measure = kernel_quadrature(nodes, kernel(nodes, nodes), z)
    assert measure.num_dims == 2 and len(measure) == 25


def test_losses_that_are_the_same_for_all_tasks_integrate_over_the_plane():
    """A function of R² as u: ∬ ½ (s t)² = 1/18; the Huber loss of curves carries the weights too."""
    measure = gauss_legendre(6, num_dims=2)
    u, y = measure.nodes.prod(-1)[None], torch.zeros(1, 1, dtype=torch.float64)
    assert IntegralLoss(Square(), measure).value(u, y).item() == pytest.approx(1 / 18, rel=1e-12)
    assert CurveHuber(10.0, 2, measure).value(u, y).item() == pytest.approx(1 / 18, rel=1e-12)
    for loss in (Huber(1.0), LogCosh(2.0), Envelope(Square(), 0.5)):
        curve = IntegralLoss(loss, measure)
        assert curve.num_dims == 2 and curve.num_nodes == 36 and curve.lipschitz() > 0
        expected = (loss.value(u, y, torch.zeros(36)) * measure.weights).sum().item()
        assert curve.value(u, y).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [Pinball(), SmoothedHinge(0.1), OneClass(), Envelope(Pinball(), 0.1)])
def test_losses_with_a_number_as_task_reject_tasks_in_the_plane(loss):
    with pytest.raises(InputError, match="num_dims=2"):
        IntegralLoss(loss, gauss_legendre(3, num_dims=2))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TaskMeasure(np.zeros((3, 2)), np.full(3, 1 / 3)), "num_dims"),
        (lambda: TaskMeasure(np.zeros(3), num_dims=2), r"\(m, 2\)"),
        (lambda: TaskMeasure(np.zeros((3, 3)), num_dims=2), r"\(m, 2\)"),
        (lambda: TaskMeasure(np.zeros((2, 3, 2))), "num_dims"),
        (lambda: star_discrepancy(sobol(4, num_dims=2)), "one dimension"),
        (lambda: product_measure(monte_carlo(2, num_rows=3), gauss_legendre(2)), "shared"),
        (lambda: gaussian_embedding(torch.zeros(3, 2), [1.0, 1.0, 1.0]), "per coordinate"),
    ],
)
def test_measures_in_several_dimensions_reject_invalid_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: monte_carlo(4, [uniform(), uniform()], num_dims=3), "per coordinate"),
        (lambda: sobol(4, []), "per coordinate"),
        (lambda: gauss_legendre((3, 4), num_dims=3), "per coordinate"),
        (lambda: gauss_legendre(200, num_dims=4), "sobol"),
        (lambda: TaskMeasure([0.5], num_dims=0), "num_dims"),
    ],
)
def test_rules_in_several_dimensions_reject_invalid_options(make, message):
    with pytest.raises(OptionError, match=message):
        make()
