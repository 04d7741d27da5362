"""Root finding on distribution functions: smooth, kinked and heavy-tailed laws, and whole numbers."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, one
from scipy import stats

from ovkgp.exceptions import FactorisationError, OptionError
from ovkgp.inference.likelihoods.prediction import continuous_quantile, count_quantile

LAWS = {
    "normal": stats.norm(3.0, 0.2),
    "laplace": stats.laplace(-4.0, 1e-3),
    "cauchy": stats.cauchy(1.0, 50.0),
    "bimodal": None,
}


class Bimodal:
    def cdf(self, y):
        return 0.5 * stats.norm.cdf(y, -10, 0.1) + 0.5 * stats.norm.cdf(y, 10, 0.1)


@pytest.mark.parametrize("name", list(LAWS))
@pytest.mark.parametrize("q", [1e-6, 0.1, 0.499, 0.9, 1 - 1e-6])
def test_quantiles_have_their_level(name, q):
    law, calls = LAWS[name] or Bimodal(), []

    def cdf(y):
        calls.append(1)
        return torch.from_numpy(law.cdf(y.numpy()))

    y = continuous_quantile(cdf, q, column([0.0, 0.5]), column([1.0, 2.0]))
    np.testing.assert_allclose(law.cdf(y.numpy()), q, rtol=1e-7)
    assert len(calls) < 160


def test_a_smooth_law_takes_few_evaluations():
    calls = []

    def cdf(y):
        calls.append(1)
        return torch.special.ndtr(y - 0.3)

    assert continuous_quantile(cdf, 0.95, one(0.0), one(1.0)).item() == pytest.approx(
        0.3 + stats.norm.ppf(0.95), rel=1e-12
    )
    assert len(calls) <= 16


def test_laws_without_a_quantile_are_refused():
    with pytest.raises(FactorisationError, match="no interval holds the quantile"):
        continuous_quantile(lambda y: torch.full_like(y, torch.nan), 0.5, one(0.0), one(1.0))


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1])
def test_levels_lie_strictly_between_zero_and_one(q):
    for find in (
        lambda q: continuous_quantile(torch.special.ndtr, q, one(0.0), one(1.0)),
        lambda q: count_quantile(None, q, one(1.0)),
    ):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            find(q)


@pytest.mark.parametrize("guess", [0.0, 7.0, 1e9, np.inf])
def test_whole_numbers_do_not_depend_on_the_guess(guess):
    law = stats.poisson(np.array([[0.01], [40.0]]))
    for q in (0.01, 0.5, 0.999):
        found = count_quantile(lambda k: torch.from_numpy(law.cdf(k.numpy())), q, column([guess, guess]))
        np.testing.assert_array_equal(found.numpy(), law.ppf(q))
