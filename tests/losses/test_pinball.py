"""The pinball loss and its two smoothings: what minimises them."""

import math

import numpy as np
import pytest
import torch
from loss_cases import normal
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import Envelope, Pinball, PinballEnvelope, SmoothedPinball

LEVEL = torch.tensor([0.8], dtype=torch.float64)
NORMAL = torch.from_numpy(norm.ppf((np.arange(20_000) + 0.5) / 20_000))[:, None]


def minimiser(loss, sample, level=LEVEL):
    """The number u whose mean loss is least, by the root of the mean derivative."""

    def mean_slope(u):
        return loss.derivative(torch.full_like(sample, u), sample, level).mean().item()

    return brentq(mean_slope, sample.min().item(), sample.max().item(), xtol=1e-12)


def expectile_of_normal(level):
    """e with θ E(Y − e)₊ = (1 − θ) E(e − Y)₊."""

    def gap(e):
        above = norm.pdf(e) - e * norm.sf(e)
        return level * above - (1 - level) * (above + e)

    return brentq(gap, -3, 3)


def test_bt_e_31_the_pinball_loss_of_exponential_data_is_least_at_the_quantile():
    sample = torch.from_numpy(-np.log1p(-(np.arange(10_000) + 0.5) / 10_000))[:, None]

    def least(mean):
        return minimize_scalar(mean, bounds=(0, 5), method="bounded", options={"xatol": 1e-6}).x

    ours = least(lambda u: Pinball().value(torch.full_like(sample, u), sample, LEVEL).mean().item())
    assert ours == pytest.approx(-math.log(0.2), abs=1e-3)  # 1.609
    # the thesis prints the loss of f − y, whose minimiser is the 0.2-quantile
    printed = least(lambda u: torch.maximum(0.8 * (u - sample), -0.2 * (u - sample)).mean().item())
    assert printed == pytest.approx(-math.log(0.8), abs=1e-3)


def test_lt_e_30_an_error_on_either_side_costs_something():
    """max(θ r, (θ − 1) r); with (1 − θ) r, as printed, what lies below costs less than nothing."""
    u, y = torch.tensor([[1.0], [3.0]], dtype=torch.float64), torch.full((2, 1), 2.0, dtype=torch.float64)
    torch.testing.assert_close(Pinball().value(u, y, LEVEL), torch.tensor([[0.8], [0.2]], dtype=torch.float64))
    printed = torch.maximum(LEVEL * (y - u), (1 - LEVEL) * (y - u))
    assert printed[1].item() == pytest.approx(-0.2)


def test_lt_e_02_the_conjugate_of_the_pinball_loss_adds_the_target():
    y = torch.tensor([[2.0]], dtype=torch.float64)
    u = torch.linspace(-50, 50, 10_001, dtype=torch.float64)[:, None]
    for a in (-0.8, -0.3, 0.0, 0.2):
        brute = (a * u - Pinball().value(u, y, LEVEL)).max().item()
        closed = Pinball().conjugate(torch.tensor([[a]], dtype=torch.float64), y, LEVEL).item()
        assert closed == pytest.approx(brute, abs=1e-12)
        assert closed == pytest.approx(a * 2.0)
    assert Pinball().conjugate(torch.tensor([[0.3]], dtype=torch.float64), y, LEVEL).item() == math.inf
    assert Pinball().conjugate(torch.tensor([[-0.81]], dtype=torch.float64), y, LEVEL).item() == math.inf


@pytest.mark.parametrize(("kappa", "reported"), [(1e-3, 0.822), (0.1, 0.796), (1.0, 0.625), (10.0, 0.538)])
def test_smoothed_pinball_goes_from_the_quantile_to_the_expectile(kappa, reported):
    # `reported` is of a sample whose mean is −0.015 (LT-52); this one has mean 0
    assert minimiser(SmoothedPinball(kappa), NORMAL) == pytest.approx(reported, abs=0.025)


def test_limits_of_the_smoothed_pinball():
    assert minimiser(SmoothedPinball(1e-4), NORMAL) == pytest.approx(norm.ppf(0.8), abs=1e-3)
    assert minimiser(SmoothedPinball(1e3), NORMAL) == pytest.approx(expectile_of_normal(0.8), abs=1e-3)
    assert expectile_of_normal(0.8) == pytest.approx(0.549, abs=1e-3)


def test_limits_of_the_true_envelope():
    assert minimiser(PinballEnvelope(1e-4), NORMAL) == pytest.approx(norm.ppf(0.8), abs=1e-3)
    assert minimiser(PinballEnvelope(100.0), NORMAL) == pytest.approx(0.0, abs=1e-9)


def test_both_smoothings_tend_to_the_pinball_loss():
    u, y, levels = normal(20, 3), normal(20, 1, seed=1), torch.tensor([0.1, 0.5, 0.9]).double()
    sharp = Pinball().value(u, y, levels)
    for kind in (SmoothedPinball, PinballEnvelope):
        assert (kind(1e-6).value(u, y, levels) - sharp).abs().max() <= 1e-6
        assert bool((kind(0.5).value(u, y, levels) <= sharp).all())


def test_large_kappa_times_the_smoothed_pinball_is_expectile_regression():
    X, levels = normal(60, 3), torch.tensor([0.2, 0.8]).double()
    y = X.sum(1, keepdim=True) + normal(60, 1, seed=1) * (1 + X[:, :1].abs())
    ridge = 0.1 * torch.eye(3, dtype=torch.float64)
    fixed = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(200):  # asymmetric least squares: the weights of the last residuals
        weights = torch.where(y > X @ fixed, levels, 1 - levels)
        fixed = torch.stack(
            [torch.linalg.solve(X.T @ (w[:, None] * X) + ridge, X.T @ (w * y[:, 0])) for w in weights.T], 1
        )
    kappa = 1e6
    loss = SmoothedPinball(kappa)
    found = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(2000):
        slope = kappa * (X.T @ loss.derivative(X @ found, y, levels)) + ridge @ found
        found = found - slope / torch.linalg.eigvalsh(X.T @ X + ridge)[-1]
    torch.testing.assert_close(found, fixed, rtol=0, atol=1e-5)


def test_the_closed_envelope_is_the_generic_one():
    u, y, levels = normal(50, 3), normal(50, 1, seed=1), torch.tensor([0.1, 0.5, 0.9]).double()
    closed, generic = PinballEnvelope(0.3), Envelope(Pinball(), 0.3)
    slopes = closed.derivative(u, y, levels)
    for method in ("value", "derivative", "curvature"):
        torch.testing.assert_close(
            getattr(closed, method)(u, y, levels), getattr(generic, method)(u, y, levels), rtol=0, atol=1e-12
        )
    for method, at in (("prox", u), ("conjugate_prox", u)):
        torch.testing.assert_close(
            getattr(closed, method)(at, y, levels, 0.7),
            getattr(generic, method)(at, y, levels, 0.7),
            rtol=0,
            atol=1e-12,
        )
    torch.testing.assert_close(closed.conjugate(slopes, y, levels), generic.conjugate(slopes, y, levels))
    torch.testing.assert_close(closed.lipschitz(levels), generic.lipschitz(levels))


@pytest.mark.parametrize("loss", [Pinball(), SmoothedPinball(0.4), PinballEnvelope(0.4)], ids=str)
def test_the_levels_zero_and_one_give_no_nan(loss):
    u, y, levels = normal(20, 2), normal(20, 1, seed=1), torch.tensor([0.0, 1.0]).double()
    slope = loss.derivative(u, y, levels)
    for result in (
        loss.value(u, y, levels),
        slope,
        loss.conjugate(slope, y, levels),
        loss.prox(u, y, levels, 0.5),
        loss.conjugate_prox(u, y, levels, 0.5),
    ):
        assert bool(torch.isfinite(result).all())


def test_what_is_refused():
    for kind in (SmoothedPinball, PinballEnvelope):
        for kappa in (0.0, -1.0, math.inf, math.nan, "small"):
            with pytest.raises(OptionError, match="kappa must be finite"):
                kind(kappa)
        with pytest.raises(InputError, match="percentages"):
            kind(1.0).require_tasks(torch.tensor([10.0, 90.0]))
