"""Huber and insensitive losses of curves: infimal convolutions, conjugates, projections and the factor √m."""

import math

import pytest
import torch
from loss_cases import MEASURE, curve_losses, normal
from scipy.optimize import minimize

from ovkgp.datasets import add_outlying_curves, corrupt_points, make_mixture_curves
from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import (
    CurveHuber,
    CurveInsensitive,
    EpsilonInsensitive,
    Huber,
    IntegralLoss,
    Square,
    TaskMeasure,
    robustness_ratio,
)
from ovkgp.losses.balls import dual_order, norm, project

ETA = MEASURE.weights
ORDERS = (1, 1.25, 1.5, 2, 3, math.inf)
STEPS = (0.1, 1.0, 10.0)
U, Y = normal(40, 4, scale=1.5), normal(40, 1, seed=1)
every_order = pytest.mark.parametrize("p", ORDERS)
every_loss = pytest.mark.parametrize("loss", curve_losses(), ids=repr)


def inner(a, b):
    return (ETA * a * b).sum(-1)


@every_order
def test_huber_is_infimal_convolution(p):
    loss, d = CurveHuber(0.7, p, MEASURE), U - Y
    value, slope = loss.value_and_derivative(U, Y)
    torch.testing.assert_close(value, inner(slope, slope) / 2 + 0.7 * norm(d - slope, p, ETA))
    others = d - slope + normal(2000, 1, 4, seed=2, scale=0.3)
    assert bool((inner(d - others, d - others) / 2 + 0.7 * norm(others, p, ETA) >= value - 1e-12).all())


@every_order
def test_insensitive_is_half_squared_distance_to_ball(p):
    loss, d = CurveInsensitive(0.4, p, MEASURE), U - Y
    value, slope = loss.value_and_derivative(U, Y)
    assert bool((norm(d - slope, p, ETA) <= 0.4 * (1 + 1e-12)).all())
    others = normal(2000, 1, 4, seed=2)
    others = 0.4 * others / norm(others, p, ETA)[..., None]
    assert bool((inner(d - others, d - others) / 2 >= value - 1e-12).all())


@pytest.mark.parametrize("p", [1, 1.5, 2, math.inf])
@pytest.mark.parametrize("kind", [CurveHuber, CurveInsensitive])
def test_conjugate_is_supremum(p, kind):
    """LT B-01, BO C-08: conjugates of infimal convolutions."""
    loss, y, count = kind(0.5, p, MEASURE), normal(1, 4, seed=4), 5 if p == 1.5 else 20
    factors = torch.linspace(0.3, 0.999, count).double()[:, None]
    slopes = loss.derivative(normal(count, 4, seed=5, scale=1.5), y) * factors
    for a in slopes:

        def minus(u, a=a):
            u = torch.from_numpy(u)[None]
            value, slope = loss.value_and_derivative(u, y)
            return (value - inner(a, u)).item(), (ETA * (slope - a))[0].numpy()

        best = minimize(minus, y[0].numpy(), jac=True, method="BFGS", options={"gtol": 1e-10})
        assert -best.fun == pytest.approx(loss.conjugate(a[None], y).item(), abs=1e-6)


@every_order
def test_huber_conjugate_is_infinite_outside_dual_ball(p):
    loss, q = CurveHuber(0.5, p, MEASURE), dual_order(p)
    a = normal(20, 4)
    a = 0.5 * a / norm(a, q, ETA)[:, None]
    assert bool(torch.isfinite(loss.conjugate(a * (1 + 1e-14), Y[:20])).all())
    assert bool((loss.conjugate(a * (1 + 1e-10), Y[:20]) == math.inf).all())
    torch.testing.assert_close(loss.nearest_slope(3 * a, Y[:20]), loss.nearest_slope(loss.nearest_slope(3 * a, Y), Y))


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_moreau_identity(loss, step):
    """LT B-02, BO C-09."""
    parts = loss.prox(U, Y, step) + step * loss.conjugate_prox(U / step, Y, 1 / step)
    torch.testing.assert_close(parts, U, rtol=0, atol=1e-12)


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_prox_is_optimal_and_firmly_nonexpansive(loss, step):
    def cost(v):
        return step * loss.value(v, Y) + inner(v - U, v - U) / 2

    best = loss.prox(U, Y, step)
    for scale in (1e-3, 0.1, 1.0):
        move = normal(40, 4, seed=7, scale=scale)
        assert bool((cost(best + move) - cost(best) >= inner(move, move) / 2 - 1e-11).all())
    other = normal(40, 4, seed=8, scale=1.5)
    difference = best - loss.prox(other, Y, step)
    assert bool((inner(difference, difference) <= inner(difference, U - other) + 1e-12).all())


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_conjugate_prox_is_optimal_and_feasible(loss, step):
    def cost(b):
        return step * loss.conjugate(b, Y) + inner(b - U, b - U) / 2

    best = loss.conjugate_prox(U, Y, step)
    assert bool(torch.isfinite(cost(best)).all())
    for scale in (1e-3, 0.1, 1.0):
        for seed in range(5):
            move = normal(40, 4, seed=seed, scale=scale)
            assert bool((cost(best + move) - cost(best) >= inner(move, move) / 2 - 1e-11).all())


@every_loss
def test_derivative_matches_autograd_in_inner_product(loss):
    u = U.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.value(u, Y).sum(), u)
    torch.testing.assert_close(gradient, ETA * loss.derivative(U, Y), rtol=0, atol=1e-12)
    value, slope = loss.value_and_derivative(U, Y)
    gap = value + loss.conjugate(slope, Y) - inner(slope, U)
    torch.testing.assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-12)


@every_loss
def test_lipschitz_constant_bounds_gradient_differences(loss):
    other = U + normal(40, 4, seed=3, scale=0.05)
    difference = loss.derivative(U, Y) - loss.derivative(other, Y)
    ratio = (inner(difference, difference) / inner(U - other, U - other)).sqrt().max().item()
    assert ratio <= loss.lipschitz() * (1 + 1e-9)


@every_order
@pytest.mark.parametrize("kind", [CurveHuber, CurveInsensitive])
def test_curvature_product_matches_finite_differences(p, kind):
    loss, direction, h = kind(0.5, p, MEASURE), normal(40, 4, seed=3), 1e-6
    ahead, behind = (loss.derivative(U + move * direction, Y) for move in (h, -h))
    product = loss.curvature_product(U, Y, direction)
    torch.testing.assert_close((ahead - behind) / (2 * h), product, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("curve", "entry"),
    [(CurveHuber(0.7, 1, MEASURE), Huber(0.7)), (CurveInsensitive(0.4, math.inf, MEASURE), EpsilonInsensitive(0.4))],
    ids=["huber", "insensitive"],
)
def test_curve_losses_include_integral_losses(curve, entry):
    integral = IntegralLoss(entry, MEASURE)
    slope = integral.derivative(U, Y)
    torch.testing.assert_close(curve.value_and_derivative(U, Y), integral.value_and_derivative(U, Y))
    torch.testing.assert_close(curve.conjugate(slope, Y), integral.conjugate(slope, Y))
    for method in ("prox", "conjugate_prox"):
        torch.testing.assert_close(getattr(curve, method)(U, Y, 0.3), getattr(integral, method)(U, Y, 0.3))


def test_curve_losses_with_p_2_are_functions_of_the_norm():
    size = norm(U - Y, 2, ETA)
    huber = torch.where(size <= 0.7, size**2 / 2, 0.7 * (size - 0.35))
    torch.testing.assert_close(CurveHuber(0.7, 2, MEASURE).value(U, Y), huber)
    # LT-E-08: with the factor ½
    torch.testing.assert_close(CurveInsensitive(0.4, 2, MEASURE).value(U, Y), (size - 0.4).clamp_min(0).square() / 2)


@pytest.mark.parametrize("m", [4, 100])
def test_ball_has_euclidean_radius_kappa_root_m(m):
    """With η = 1/m the norm is the Euclidean one over √m, so radius and threshold scale with √m (LT-57, LT-60)."""
    measure = TaskMeasure(torch.linspace(0.01, 0.99, m))
    u, y = normal(10, m, scale=3.0), torch.zeros(10, 1, dtype=torch.float64)
    size = u.norm(dim=1, keepdim=True)
    slope = CurveHuber(0.5, 2, measure).derivative(u, y)
    torch.testing.assert_close(slope, u * (0.5 * math.sqrt(m) / size).clamp_max(1.0))
    step, epsilon = 0.7, 0.4
    shrunk = u / (1 + step)
    threshold = step * epsilon / (1 + step) * math.sqrt(m)
    expected = shrunk * (1 - threshold / shrunk.norm(dim=1, keepdim=True)).clamp_min(0.0)
    torch.testing.assert_close(CurveInsensitive(epsilon, 2, measure).conjugate_prox(u, y, step), expected)


@every_order
def test_curve_losses_have_square_loss_as_limit(p):
    square = IntegralLoss(Square(), MEASURE)
    for loss in (CurveHuber(1e6, p, MEASURE), CurveInsensitive(0.0, p, MEASURE)):
        torch.testing.assert_close(loss.value_and_derivative(U, Y), square.value_and_derivative(U, Y))
        torch.testing.assert_close(loss.conjugate(U, Y), square.conjugate(U, Y))
        torch.testing.assert_close(loss.prox(U, Y, 0.3), square.prox(U, Y, 0.3))


def test_insensitive_slopes_are_sparse():
    u = torch.cat([0.1 * U, 3 * U])
    y = torch.zeros(80, 1, dtype=torch.float64)
    rows = (CurveInsensitive(0.4, 2, MEASURE).derivative(u, y) == 0).all(1)
    values = CurveInsensitive(0.4, math.inf, MEASURE).derivative(u, y) == 0
    assert bool(rows[:40].all()) and not bool(rows[40:].all())
    assert 0 < values[40:].double().mean().item() < 1


def test_curve_losses_reject_invalid_parameters():
    for kind in (CurveHuber, CurveInsensitive):
        with pytest.raises(OptionError, match="p must be"):
            kind(0.5, 0.5, MEASURE)
        with pytest.raises(OptionError, match=r"kappa|epsilon"):
            kind(-0.5, 2, MEASURE)


@pytest.mark.parametrize("p", [1, 1.25, 1.5, 2, 3, math.inf])
def test_bo_c_24_losses_of_any_order_are_minimized_numerically(p):
    """BO-71, BO-72, LT-62 in R⁷: both losses are values of an optimization over the part that the norm or the ball takes."""
    measure = TaskMeasure(torch.arange(7.0))
    y = normal(1, 7, seed=2, scale=1.2)
    zero, q = torch.zeros(1, 1, dtype=torch.float64), dual_order(p)
    # H = max over ‖a‖_q ≤ κ of ⟨a, y⟩ − ½‖a‖²; in the direction of the boundary it is 1-D, so that a grid brackets it
    huber, flat = CurveHuber(0.6, p, measure), CurveInsensitive(0.6, p, measure)
    rays = torch.cat([normal(4000, 7, seed=3), y + normal(4000, 7, seed=4, scale=0.2)])
    slopes = 0.6 * rays / norm(rays, q, measure.weights)[:, None]
    best = ((slopes * (y - slopes / 2)).mean(-1)).max().item()
    assert best <= huber.value(y, zero).item() + 1e-12
    inside = 0.6 * rays / norm(rays, p, measure.weights)[:, None]
    assert ((y - inside).square().mean(-1) / 2).min().item() >= flat.value(y, zero).item() - 1e-12
    # both are equalities at their own maximizer and minimizer
    a = huber.derivative(y, zero)
    assert (a * (y - a / 2)).mean().item() == pytest.approx(huber.value(y, zero).item(), rel=1e-12)
    assert norm(y - flat.derivative(y, zero), p, measure.weights).item() == pytest.approx(0.6, rel=1e-9)
    # H = ½‖·‖² inside the dual ball, ℓ = 0 inside the ball
    small_q, small_p = (0.59 * y / norm(y, order, measure.weights) for order in (q, p))
    assert huber.value(small_q, zero).item() == pytest.approx(small_q.square().mean().item() / 2, rel=1e-12)
    assert flat.value(small_p, zero).item() == pytest.approx(0.0, abs=1e-20)
    assert huber.value(y, zero).item() <= y.square().mean().item() / 2


@pytest.mark.parametrize("p", [1.5, 3])
def test_bo_77_projections_of_any_order_solve_their_equation(p):
    """|z| + μ|z|^{p−1} = |x| with one μ ≥ 0 per curve, ‖z‖_p = r; a larger ball has its points fixed (BO C-25)."""
    x = normal(20, 6, scale=3.0)
    eta = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64)
    z = project(x, 0.7, p, eta)
    multipliers = (x.abs() - z.abs()) / z.abs() ** (p - 1)
    torch.testing.assert_close(multipliers, multipliers[:, :1].expand(20, 6), rtol=1e-7, atol=0)
    torch.testing.assert_close(norm(z, p, eta), torch.full((20,), 0.7, dtype=torch.float64))
    torch.testing.assert_close(project(z, 0.7 * (1 + 1e-12), p, eta), z, rtol=0, atol=0)
    y = normal(20, 6, seed=1, scale=3.0)
    moved, apart = project(y, 0.7, p, eta) - z, y - x
    assert bool(((eta * moved.square()).sum(-1) <= (eta * moved * apart).sum(-1) + 1e-12).all())


def test_bo_c_39_robustness_ratio_favors_p_2_for_curves_and_p_near_1_for_values():
    """BO-79, BO-113, the claims of Fig. 7.4: outlying curves raise the loss least with p = 2, outlying values with p just above 1."""
    curves = make_mixture_curves(100, random_state=0).Y
    errors, measure = torch.from_numpy(curves - curves.mean(0)), TaskMeasure(torch.linspace(0, 1, 100))
    orders = (1, 1.1, 2)
    ratios = {}
    for name, bad in (
        ("curves", add_outlying_curves(errors, 0.1, 4.0, random_state=1)[0]),
        ("values", corrupt_points(errors, 0.1, kind="symmetric", random_state=1)[0]),
    ):
        ratios[name] = [robustness_ratio(errors, torch.from_numpy(bad), p, measure) for p in orders]
        assert min(ratios[name]) > 1
    assert min(ratios["curves"]) == ratios["curves"][-1] < 0.92 * ratios["curves"][0]
    assert min(ratios["values"]) == min(ratios["values"][:2]) < 0.95 * ratios["values"][-1]
    assert robustness_ratio(errors, errors, 1.5, measure) == pytest.approx(1.0)
    with pytest.raises(InputError, match="shape"):
        robustness_ratio(errors, errors[:5], 2, measure)
    with pytest.raises(InputError, match="zero"):
        robustness_ratio(0 * errors, errors, 2, measure)
