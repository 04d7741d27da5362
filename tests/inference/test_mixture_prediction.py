"""Mixtures of predictions: moments by the laws of total expectation and covariance, quantiles that invert the mixture."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import LikelihoodPrediction, make_likelihood
from ovkgp.inference.posteriors.prediction import MixturePrediction, Prediction, bisect

M, P, S = 3, 2, 5


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_form(full, form):
    blocks = torch.stack([full[i * P : (i + 1) * P, i * P : (i + 1) * P] for i in range(M)])
    return {"diag": full.diagonal().reshape(M, P), "output": blocks, "full": full}[form]


def components(form, spread=1.0):
    """S Gaussian predictions, and their means (S, m, p) and whole covariances (S, m·p, m·p)."""
    roots = normal(S, M * P, M * P, seed=1)
    means, covariances = spread * normal(S, M, P), roots @ roots.mT
    return [Prediction(m, in_form(c, form), form) for m, c in zip(means, covariances, strict=True)], means, covariances


def close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_moments_are_those_of_the_mixture(form):
    """Cov y = E[y yᵀ] − E[y] E[y]ᵀ, with the second moments of the components."""
    made, means, covariances = components(form, spread=10.0)
    flat = means.flatten(1)
    second = (covariances + flat.unsqueeze(-1) * flat.unsqueeze(-2)).mean(0)
    expected = second - flat.mean(0).outer(flat.mean(0))
    mixture = MixturePrediction(made)
    close(mixture.mean, means.mean(0))
    close(mixture.variance, expected.diagonal().reshape(M, P), 1e-11)
    close(mixture.std, expected.diagonal().reshape(M, P).sqrt(), 1e-11)
    if form != "diag":
        close(mixture.cov, in_form(expected, form), 1e-11)


def test_the_variance_of_means_that_lie_far_away_keeps_its_digits():
    offset = 1e8
    means = torch.tensor([offset - 1, offset + 1], dtype=torch.float64).reshape(2, 1, 1)
    made = [Prediction(mean, torch.ones(1, 1).double(), "diag") for mean in means]
    assert MixturePrediction(made).variance.item() == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("form", ["diag", "output", "full"])
@pytest.mark.parametrize("q", [1e-12, 0.025, 0.5, 0.99, 1 - 1e-9])
def test_quantiles_invert_the_mixture_of_distribution_functions(form, q):
    made, means, covariances = components(form, spread=3.0)
    found = MixturePrediction(made).quantile(q)
    means, std = means.numpy(), covariances.diagonal(dim1=-2, dim2=-1).sqrt().reshape(S, M, P).numpy()
    for i, a in np.ndindex(M, P):
        law = norm(means[:, i, a], std[:, i, a])
        ends = law.ppf(q)
        expected = brentq(lambda y, law=law: law.cdf(y).mean() - q, ends.min(), ends.max(), xtol=1e-13, rtol=1e-15)
        assert found[i, a].item() == pytest.approx(
            expected, rel=1e-7 if q > 0.999 else 1e-10
        )  # 1 − q has few digits there


def test_the_distribution_function_is_the_average():
    made, means, covariances = components("diag")
    mixture, y = MixturePrediction(made), normal(4, M, P, seed=9)
    std = covariances.diagonal(dim1=-2, dim2=-1).sqrt().reshape(S, M, P)
    close(mixture.cdf(y), norm.cdf(y.numpy()[:, None], means.numpy(), std.numpy()).mean(1))
    close(mixture.cdf(0.3), norm.cdf(0.3, means.numpy(), std.numpy()).mean(0))
    levels = [0.05, 0.5, 0.9]
    assert mixture.quantile(levels).shape == (3, M, P)
    expected = torch.tensor(levels, dtype=torch.float64)[:, None, None].expand(3, M, P)
    close(mixture.cdf(mixture.quantile(levels)), expected)


def test_intervals_hold_what_they_say_and_matched_ones_do_not():
    """Two narrow components far apart: a Gaussian with the same moments puts its 50 % where nothing is."""
    made = [
        Prediction(torch.full((1, 1), level).double(), torch.ones(1, 1).double(), "diag") for level in (-50.0, 50.0)
    ]
    mixture = MixturePrediction(made)
    lower, upper = mixture.interval(0.5)
    assert (mixture.cdf(upper) - mixture.cdf(lower)).item() == pytest.approx(0.5, abs=1e-12)
    assert lower.item() == pytest.approx(-50, abs=1e-9) and upper.item() == pytest.approx(50, abs=1e-9)
    lower, upper = mixture.matched.interval(0.5)
    assert (mixture.cdf(upper) - mixture.cdf(lower)).item() < 1e-12


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_one_component_is_itself(form):
    made, *_ = components(form)
    mixture = MixturePrediction(made[:1])
    close(mixture.mean, made[0].mean)
    close(mixture.variance, made[0].variance)
    close(mixture.quantile(0.3), made[0].quantile(0.3))
    close(mixture.cdf(0.1), made[0].cdf(0.1))


def test_points_and_steps():
    """Components without variance: the quantile is the smallest y at which the mixture reaches the level."""
    made = [Prediction(torch.full((1, 1), float(s)).double(), torch.zeros(1, 1).double(), "diag") for s in range(4)]
    mixture = MixturePrediction(made)
    assert [mixture.quantile(q).item() for q in (0.2, 0.25, 0.26, 0.99)] == pytest.approx([0, 0, 1, 3], abs=1e-12)


def likelihood_predictions(likelihood, form="diag"):
    """Two predictions of counts (the first output) and of a heavy-tailed number (the second), at one point."""
    latent = torch.tensor([[[0.3, 4.0]], [[3.0, 7.0]]]).double(), torch.tensor([[[0.2, 0.5]], [[0.01, 2.0]]]).double()
    return [LikelihoodPrediction(Prediction(m, v, form), likelihood) for m, v in zip(*latent, strict=True)]


def test_mixtures_of_likelihoods():
    """One likelihood an output: quantiles of counts are whole numbers, all of them invert the averaged cdf."""
    made = likelihood_predictions(make_likelihood(["poisson", "student_t"], 2))
    mixture = MixturePrediction(made)
    means, variances = (torch.stack([getattr(m, name) for m in made]) for name in ("mean", "variance"))
    close(mixture.mean, means.mean(0))
    close(mixture.variance, variances.mean(0) + means.var(0, correction=0), 1e-11)
    counts = torch.arange(200.0).double()
    reached = sum(m.cdf(counts[:, None, None].expand(200, 1, 2))[..., 0, 0] for m in made) / 2
    for q in (0.01, 0.4, 0.5, 0.77, 0.999):
        found = mixture.quantile(q)
        assert found[0, 0].item() == counts[(reached >= q).nonzero()[0, 0]]
        assert (sum(m.cdf(found) for m in made)[0, 1] / 2).item() == pytest.approx(q, abs=1e-9)


def test_real_outputs_are_never_rounded():
    """Components whose quantiles are whole numbers by chance."""
    likelihood = make_likelihood(["gaussian", "gaussian"], 2)
    made = [
        LikelihoodPrediction(Prediction(torch.full((1, 2), m).double(), torch.ones(1, 2).double(), "diag"), likelihood)
        for m in (0.0, 2.0, 7.0)
    ]
    assert all(m.quantile(0.5).frac().abs().max() < 1e-9 for m in made)
    median = MixturePrediction(made).quantile(0.5)
    assert (sum(m.cdf(median) for m in made) / 3 - 0.5).abs().max() < 1e-12 and (median.frac() > 1e-3).all()


def test_bisection_ends_at_the_last_bit():
    root = bisect(lambda y: y**3, 0.5, torch.zeros(1).double(), torch.full((1,), 1e10).double())
    assert root.item() == pytest.approx(0.5 ** (1 / 3), rel=4e-16)


def test_means_alone():
    mixture = MixturePrediction(Prediction(mean) for mean in normal(S, M, P))
    close(mixture.mean, normal(S, M, P).mean(0))
    for ask in (lambda: mixture.std, lambda: mixture.quantile(0.5), lambda: mixture.cdf(0.0)):
        with pytest.raises(OptionError, match='made with cov="none"'):
            ask()


def test_a_mixture_is_no_gaussian():
    mixture = MixturePrediction(components("full")[0])
    with pytest.raises(OptionError, match=r"matched\.distribution"):
        _ = mixture.distribution
    close(mixture.matched.distribution.covariance_matrix, mixture.cov)
    assert "5 components" in repr(mixture)


def test_components_must_fit_together():
    with pytest.raises(InputError, match="at least one"):
        MixturePrediction([])
    with pytest.raises(InputError, match="one shape and one form"):
        MixturePrediction([components("diag")[0][0], components("full")[0][0]])
    with pytest.raises(InputError, match="one shape and one form"):
        MixturePrediction([Prediction(normal(2, 1)), Prediction(normal(3, 1))])


@pytest.mark.parametrize("q", [0, 1, float("nan"), [0.5, 2.0]])
def test_levels_outside_the_unit_interval_are_refused(q):
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        MixturePrediction(components("diag")[0]).quantile(q)
