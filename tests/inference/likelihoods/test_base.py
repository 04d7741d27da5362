"""Properties of every likelihood whose outputs are independent given f, checked against SciPy's distributions and
adaptive quadrature."""

import pickle
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
import torch
from likelihood_cases import ALL, DISCRETE, REAL, column, fine_average, log_density, normal, one
from scipy.integrate import quad

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import counts, location, make_likelihood, quadrature

NAMES = list(ALL)
TRAINED = [
    "gaussian",
    "student_t",
    "laplace",
    "asymmetric_laplace",
    "huber",
    "asymmetric_huber",
    "epsilon_insensitive",
    "log_cosh",
    "bernoulli",
    "poisson",
    "negative_binomial",
]
MEANS, STDS = (-1.5, 0.2, 2.0), (0.05, 0.6, 1.4, 4.0)


def observations(name, n=5, p=2):
    """Y (n, p) in the support, with missing entries, and a latent distribution."""
    values = torch.tensor(ALL[name][2], dtype=torch.float64)
    Y = values[torch.arange(n * p) % len(values)].reshape(n, p)
    Y[1, 0] = Y[3, 1] = torch.nan
    return Y, normal(n, p), 0.2 + normal(n, p, seed=1).square()


@pytest.mark.parametrize("name", NAMES)
def test_log_density_equals_scipy(name):
    likelihood, distribution, values = ALL[name]
    for f in (-1.5, 0.2, 2.0):
        for y in values:
            expected = log_density(distribution(f), y)
            assert likelihood.log_density(one(y), one(f)).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", list(REAL))
def test_density_integrates_to_one(name):
    likelihood = ALL[name][0]

    def density(y):
        return likelihood.log_density(one(y), one(0.4)).exp().item()

    cuts = (-np.inf, -5.0, 0.4 - 0.77, 0.4, 0.4 + 0.77, 5.0, np.inf)
    mass = sum(quad(density, a, b, epsabs=1e-11)[0] for a, b in pairwise(cuts))
    assert mass == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("name", list(DISCRETE))
def test_probabilities_sum_to_one(name):
    likelihood = ALL[name][0]
    values = torch.arange(2.0 if name in ("bernoulli", "probit") else 400.0)
    total = likelihood.log_density(column(values), one(0.9).expand(len(values), 1)).exp().sum()
    assert total.item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_expected_equals_numerical_integral(name):
    """To 1e-8 at any variance."""
    likelihood, _, values = ALL[name]
    for mean in MEANS:
        for std in STDS:
            for y in values:
                exact = fine_average(lambda f, y=y: _log_density(likelihood, y, f), mean, std, (y - 0.77, y, y + 0.77))
                found = likelihood.expected(one(y), one(mean), one(std**2)).item()
                assert found == pytest.approx(exact, rel=1e-8, abs=1e-8), (y, mean, std)


def _log_density(likelihood, y, f):
    return likelihood.log_density(one(y), column(f).unsqueeze(-1)).numpy().ravel()


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_derivatives_of_expected(name):
    likelihood, (Y, mean, variance) = make_likelihood([ALL[name][0]] * 2, 2), observations(name)
    mean, variance = mean.requires_grad_(), variance.requires_grad_()
    value = likelihood.expected(Y, mean, variance)
    first, second = torch.autograd.grad(value.sum(), (mean, variance))
    found = likelihood.terms(Y, mean, variance)
    assert not any(term.requires_grad for term in found)
    for term, wanted in zip(found, (value.detach(), first, -2 * second), strict=True):
        torch.testing.assert_close(term, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_terms_satisfy_price_theorem(name):
    """−2 ∂/∂v equals −∂²/∂m²: the heat equation, an oracle that does not know how the rule was made."""
    likelihood, step = ALL[name][0], 1e-3
    y, mean, variance = column(ALL[name][2]), 0.3, 0.8
    means = [one(mean + k * step).expand(len(y), 1) for k in (-1, 0, 1)]
    below, here, above = (likelihood.terms(y, m, torch.full_like(m, variance)) for m in means)
    torch.testing.assert_close((above[0] - below[0]) / (2 * step), here[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(-(above[1] - below[1]) / (2 * step), here[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_expected_equals_log_density_without_variance(name):
    likelihood, values = ALL[name][0], column(ALL[name][2])
    mean = torch.full_like(values, 0.45)
    value, first, curvature = likelihood.terms(values, mean, torch.zeros_like(values))
    torch.testing.assert_close(value, likelihood.log_density(values, mean), rtol=1e-9, atol=1e-9)
    assert bool(torch.isfinite(first).all() and torch.isfinite(curvature).all())


@pytest.mark.parametrize("name", NAMES)
def test_missing_entries_contribute_zero_and_change_nothing(name):
    likelihood, (Y, mean, variance) = make_likelihood([ALL[name][0]] * 2, 2), observations(name)
    missing = torch.isnan(Y)
    mean = mean.masked_fill(missing, 1e6).requires_grad_()  # unobserved entries are arbitrary
    value = likelihood.expected(Y, mean, variance)
    assert bool((value[missing] == 0).all()) and bool(torch.isfinite(value).all())
    (slope,) = torch.autograd.grad(value.sum(), mean)
    assert bool((slope[missing] == 0).all()) and bool((slope[~missing] != 0).any())
    assert all(bool((term[missing] == 0).all()) for term in likelihood.terms(Y, mean.detach(), variance))
    assert bool((likelihood.log_density(Y, mean.detach())[missing] == 0).all())
    observed = ~missing[:, 0]
    alone = likelihood.likelihoods[0].expected(Y[observed][:, :1], mean[observed][:, :1], variance[observed][:, :1])
    torch.testing.assert_close(value[observed][:, :1], alone)


@pytest.mark.parametrize("name", TRAINED)
def test_expected_is_differentiable_in_the_likelihood_parameters(name):
    likelihood = make_likelihood(name, 2)
    Y, mean, variance = observations(name)
    parameters = list(likelihood.parameters())
    assert bool(parameters) == (name not in ("bernoulli", "poisson"))
    for parameter in parameters:
        (slope,) = torch.autograd.grad(likelihood.expected(Y, mean, variance).sum(), parameter)
        for j in range(2):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter[j] += sign * 1e-5
                    values.append(likelihood.expected(Y, mean, variance).sum())
                    parameter[j] -= sign * 1e-5
            assert slope[j].item() == pytest.approx(((values[0] - values[1]) / 2e-5).item(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_log_density_accepts_draws_of_the_latent_function(name):
    likelihood, (Y, mean, _) = make_likelihood([ALL[name][0]] * 2, 2), observations(name)
    F = mean + normal(4, 5, 2, seed=2)
    found = likelihood.log_density(Y, F)
    assert found.shape == (4, 5, 2)
    torch.testing.assert_close(found[2], likelihood.log_density(Y, F[2]))


@pytest.mark.parametrize("name", NAMES)
def test_moments_equal_those_of_draws(name):
    likelihood = ALL[name][0]
    mean, std, count = 0.4, 0.5, 200_000
    generator = torch.Generator().manual_seed(0)
    F = mean + std * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    y = likelihood.draw(F, generator)
    assert y.shape == F.shape and y.dtype == torch.float64
    likelihood.check(y)
    center, variance = (part.item() for part in likelihood.moments(one(mean), one(std**2)))
    error = (variance / count) ** 0.5
    assert y.mean().item() == pytest.approx(center, abs=5 * error)
    assert y.var().item() == pytest.approx(variance, rel=0.2 if name == "student_t" else 0.03)


@pytest.mark.parametrize("name", NAMES)
def test_cdf_equals_numerical_integral(name):
    likelihood, distribution, values = ALL[name]
    for mean, std in ((0.2, 0.05), (0.2, 0.6), (-1.0, 3.0)):
        for y in (*values, -0.5, 0.9):
            kinks = (y - 0.77, y, y + 0.77) if name in REAL else (0.0, np.log(max(y, 1)))
            exact = fine_average(lambda f, y=y: distribution(f).cdf(y), mean, std, kinks)
            found = likelihood.cdf(one(y), one(mean), one(std**2)).item()
            assert found == pytest.approx(exact, abs=1e-8), (y, mean, std)


@pytest.mark.parametrize("name", list(REAL))
def test_quantile_inverts_cdf(name):
    likelihood = make_likelihood([ALL[name][0]] * 2, 2)
    mean, variance = normal(6, 2), normal(6, 2, seed=1).square()
    for q in (1e-4, 0.05, 0.5, 0.9, 0.999):
        y = likelihood.quantile(q, mean, variance)
        torch.testing.assert_close(likelihood.cdf(y, mean, variance), torch.full_like(y, q), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", list(DISCRETE))
def test_quantile_is_smallest_integer_with_enough_probability(name):
    likelihood, mean, variance = ALL[name][0], column([-2.0, 0.1, 3.0]), column([0.1, 2.0, 0.3])
    for q in (0.03, 0.5, 0.77, 0.999):
        k = likelihood.quantile(q, mean, variance)
        assert torch.equal(k, k.round())
        assert bool((likelihood.cdf(k, mean, variance) >= q).all())
        assert bool((likelihood.cdf(k - 1, mean, variance) < q).all())


@pytest.mark.parametrize("name", list(DISCRETE))
def test_check_reports_row_and_column(name):
    likelihood = make_likelihood([ALL[name][0]] * 2, 2)
    Y = torch.zeros(4, 2, dtype=torch.float64)
    Y[0, 0] = torch.nan
    likelihood.check(Y)
    for bad in (-1.0, 0.5, torch.inf):
        Y[2, 1] = bad
        with pytest.raises(InputError, match=r"Y\[2, 1\]"):
            likelihood.check(Y)


@pytest.mark.parametrize("name", list(REAL))
def test_check_rejects_only_infinity_for_real_outputs(name):
    likelihood = ALL[name][0]
    likelihood.check(column([1e300, -5.5, np.nan]))
    with pytest.raises(InputError, match=r"Y\[1, 0\].*1 more"):
        likelihood.check(column([0.0, np.inf, -np.inf]))


@pytest.mark.parametrize("name", TRAINED)
def test_parameters_survive_copy_pickle_and_state_dict(name):
    likelihood = make_likelihood(name, 2)
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += 0.3
    Y, mean, variance = observations(name)
    value = likelihood.expected(Y, mean, variance)
    fresh = make_likelihood(name, 2)
    fresh.load_state_dict(likelihood.state_dict())
    for copy in (deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood)), fresh):
        assert torch.equal(copy.expected(Y, mean, variance), value)
    assert likelihood.variables().keys() == fresh.variables().keys()


@pytest.mark.parametrize("name", NAMES)
def test_expected_uses_double_precision_for_single_precision_inputs(name):
    likelihood, (Y, mean, variance) = make_likelihood([ALL[name][0]] * 2, 2), observations(name)
    single = [part.float() for part in (Y, mean, variance)]
    found = likelihood.expected(*single)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, likelihood.expected(*(part.double() for part in single)), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_expected_rejects_wrong_shapes(name):
    likelihood = ALL[name][0]
    with pytest.raises(InputError, match="Y must"):
        likelihood.expected(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2))
    with pytest.raises(InputError, match="shape"):
        likelihood.expected(torch.zeros(3, 1), torch.zeros(3, 1), torch.ones(1, 1))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gaussian"])
def test_expected_rejects_known_noise_unless_gaussian(name):
    with pytest.raises(InputError, match="noise"):
        ALL[name][0].expected(one(1.0), one(0.0), one(1.0), noise=one(1.0))


@pytest.mark.parametrize("name", NAMES)
def test_draw_uses_its_generator_only(name):
    state, F = torch.get_rng_state(), torch.zeros(3, 4, 1)
    first, second = (ALL[name][0].draw(F, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second) and first.shape == F.shape
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "name", [name for name in REAL if name not in ("huber", "epsilon_insensitive")]
)  # Owen's T function is good to 1e-16 as it is
def test_cdf_is_accurate_in_the_lower_tail(name):
    likelihood, distribution, _ = ALL[name]
    for y in (-4.0, -9.0):
        found = likelihood.cdf(one(y), one(0.3), one(0.0)).item()
        assert found == pytest.approx(distribution(0.3).cdf(y), rel=1e-7, abs=0.0)


@pytest.mark.parametrize("name", ["student_t", "poisson", "negative_binomial"])
def test_cdf_of_many_points_is_computed_in_blocks(name, monkeypatch):
    """A block of entries at a time, with the same numbers: predictions at 1e5 points must not take gigabytes."""
    likelihood, n = make_likelihood(name, 2), 7
    mean, variance = normal(n, 2), 0.01 + 4 * normal(n, 2, seed=1).square()
    y = torch.tensor([0.0, 1.0, torch.nan]).double().reshape(3, 1, 1).expand(3, n, 2)
    whole, sizes = likelihood.cdf(y, mean, variance), []
    for module, name in ((location, "normal_cdf"), (counts, "ndtr"), (counts, "betainc")):
        original = getattr(module, name)

        def recorded(*parts, original=original):
            sizes.append(len(parts[0]))
            return original(*parts)

        monkeypatch.setattr(module, name, recorded)
    for module in (quadrature, counts):
        monkeypatch.setattr(module, "BLOCK_ENTRIES", 2 * counts.MIN_CDF_NODES)
    torch.testing.assert_close(likelihood.cdf(y, mean, variance), whole, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert bool(torch.isnan(whole[2]).all())
    assert sizes and max(sizes) <= 2


@pytest.mark.parametrize("name", NAMES)
def test_quantile_rejects_levels_outside_the_unit_interval(name):
    for q in (0.0, 1.0, 1.5):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            ALL[name][0].quantile(q, one(0.0), one(1.0))
