"""Whether draws can be trusted, in numbers and words; and the plain record of draws."""

import warnings

import numpy as np
import pytest

from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.sampling import diagnostics as sampler_checks
from ovkgp.inference.sampling.diagnostics import chain_checks, effective_size, importance_checks, pareto_shape, rhat
from ovkgp.inference.sampling.draws import HyperparameterDraws

RNG = np.random.default_rng(0)


def test_good_chains_pass_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = chain_checks({"noise": RNG.random((4, 500, 2)), "fixed": np.ones((4, 500))}, divergences=0)
    assert found["num_divergences"] == 0 and found["rhat_max"] < 1.01 and found["ess_min"] > 1000
    assert found["rhat_worst"].startswith("noise[")


def test_chains_in_different_places_are_named():
    values = RNG.standard_normal((4, 500, 2))
    values[0, :, 1] += 3
    with pytest.warns(FitWarning, match=r"not mixed: R̂ = .* for noise\[1\]"):
        found = chain_checks({"noise": values}, divergences=0)
    assert found["rhat_max"] > 1.1


def test_slow_chains_are_named():
    steps = RNG.standard_normal((4, 500))
    walk = np.zeros((4, 500))
    for i in range(1, 500):
        walk[:, i] = 0.98 * walk[:, i - 1] + steps[:, i]
    with pytest.warns(FitWarning, match="independent ones for lengthscale"):
        chain_checks({"lengthscale": walk}, divergences=0)


def test_divergences_are_counted_in_words():
    with pytest.warns(FitWarning, match=r"7 of 2000 transitions diverged.*target_accept"):
        chain_checks({"noise": RNG.random((4, 500))}, divergences=7)


def test_very_short_and_constant_chains_say_nothing():
    assert chain_checks({"noise": RNG.random((2, 3))}, 0) == {"num_divergences": 0}
    assert chain_checks({"noise": np.ones((2, 30))}, 0) == {"num_divergences": 0}


def test_a_single_chain_is_judged_by_its_halves():
    values = np.random.default_rng(3).standard_normal((1, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chain_checks({"noise": values}, 0)["rhat_max"] < 1.01
    with pytest.warns(FitWarning, match="not mixed: R̂ = [1-9]"):
        chain_checks({"noise": values + (np.arange(500) > 250)}, 0)
    assert chain_checks({"noise": values[:, :7]}, 0) == {"num_divergences": 0}


@pytest.mark.parametrize("c", [0.1, 0.25, 0.45])
def test_the_shape_of_known_ratios(c):
    z = np.random.default_rng(1).standard_normal(20000)
    assert pareto_shape(c * z**2) == pytest.approx(2 * c, abs=0.2)


def test_ratios_that_are_equal_zero_or_few():
    assert pareto_shape(np.full(100, 3.0)) == 0.0
    assert pareto_shape(np.full(100, -np.inf)) == np.inf
    assert np.isnan(pareto_shape(np.zeros(5)))
    z = RNG.standard_normal(1000)
    assert np.isfinite(pareto_shape(np.where(z > 1, -np.inf, 0.1 * z**2)))


def test_the_bound_and_its_error():
    ratios = np.random.default_rng(2).normal(3.0, 0.1, 400)
    found = importance_checks(ratios, "svi")
    assert found["elbo"] == pytest.approx(ratios.mean()) and found["elbo_error"] == pytest.approx(ratios.std() / 20)


def test_arviz_0_and_arviz_stats_give_the_same(monkeypatch):
    values, ratios = RNG.standard_normal((4, 200)), 0.2 * RNG.standard_normal(500) ** 2
    found = rhat(values), effective_size(values), pareto_shape(ratios)
    whole = sampler_checks.find_spec
    monkeypatch.setattr(sampler_checks, "find_spec", lambda name: None if name == "arviz_stats" else whole(name))
    other = rhat(values), effective_size(values), pareto_shape(ratios)
    np.testing.assert_allclose(found[:2], other[:2], rtol=1e-10)
    assert found[2] == pytest.approx(other[2], abs=0.03)  # the two smooth the fit of a Pareto tail a little differently


def test_without_arviz_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sampler_checks, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install arviz"):
        rhat(np.zeros((2, 10)))


def test_a_record_of_draws_checks_its_shapes():
    draws = HyperparameterDraws("nuts", np.zeros((2, 5, 3)), {"lp": np.zeros((2, 5))})
    assert (draws.num_chains, draws.num_draws, draws.flat.shape) == (2, 5, (10, 3))
    with pytest.raises(InputError, match="lp has shape"):
        HyperparameterDraws("nuts", np.zeros((2, 5, 3)), {"lp": np.zeros((5, 2))})
    with pytest.raises(InputError, match="chains, draws, k"):
        HyperparameterDraws("nuts", np.zeros((5, 3)), {})
