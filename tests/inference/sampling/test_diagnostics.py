"""Tests of `ovkgp.inference.sampling.diagnostics` and of the record of draws."""

import warnings

import numpy as np
import pytest

from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.sampling import diagnostics
from ovkgp.inference.sampling.arviz_data import Axes
from ovkgp.inference.sampling.diagnostics import (
    HyperparameterDraws,
    check_chains,
    check_importance_ratios,
    effective_size,
    pareto_shape,
    rhat,
)

RNG = np.random.default_rng(0)


def test_check_chains_is_silent_for_good_chains():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = check_chains({"noise": RNG.random((4, 500, 2)), "fixed": np.ones((4, 500))}, divergences=0)
    assert found["num_divergences"] == 0 and found["rhat_max"] < 1.01 and found["ess_min"] > 1000
    assert found["rhat_worst"].startswith("noise[")


def test_check_chains_warns_of_unmixed_chains():
    values = RNG.standard_normal((4, 500, 2))
    values[0, :, 1] += 3
    with pytest.warns(FitWarning, match=r"not mixed: R̂ = .* for noise\[1\]"):
        found = check_chains({"noise": values}, divergences=0)
    assert found["rhat_max"] > 1.1


def test_check_chains_warns_of_small_ess():
    steps = RNG.standard_normal((4, 500))
    walk = np.zeros((4, 500))
    for i in range(1, 500):
        walk[:, i] = 0.98 * walk[:, i - 1] + steps[:, i]
    with pytest.warns(FitWarning, match="ESS of lengthscale"):
        check_chains({"lengthscale": walk}, divergences=0)


def test_check_chains_warns_of_divergences():
    with pytest.warns(FitWarning, match=r"7 of 2000 transitions diverged.*target_accept"):
        check_chains({"noise": RNG.random((4, 500))}, divergences=7)


def test_check_chains_skips_short_and_constant_chains():
    assert check_chains({"noise": RNG.random((2, 3))}, 0) == {"num_divergences": 0}
    assert check_chains({"noise": np.ones((2, 30))}, 0) == {"num_divergences": 0}


def test_rhat_splits_single_chain():
    values = np.random.default_rng(3).standard_normal((1, 500))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_chains({"noise": values}, 0)["rhat_max"] < 1.01
    with pytest.warns(FitWarning, match="not mixed: R̂ = [1-9]"):
        check_chains({"noise": values + (np.arange(500) > 250)}, 0)
    assert check_chains({"noise": values[:, :7]}, 0) == {"num_divergences": 0}


@pytest.mark.parametrize("c", [0.1, 0.25, 0.45])
def test_pareto_shape_of_known_ratios(c):
    z = np.random.default_rng(1).standard_normal(20000)
    assert pareto_shape(c * z**2) == pytest.approx(2 * c, abs=0.2)


def test_pareto_shape_of_equal_zero_or_few_ratios():
    assert pareto_shape(np.full(100, 3.0)) == 0.0
    assert pareto_shape(np.full(100, -np.inf)) == np.inf
    assert np.isnan(pareto_shape(np.zeros(5)))
    z = RNG.standard_normal(1000)
    assert np.isfinite(pareto_shape(np.where(z > 1, -np.inf, 0.1 * z**2)))


def test_check_importance_ratios_returns_bound_and_error():
    ratios = np.random.default_rng(2).normal(3.0, 0.1, 400)
    found = check_importance_ratios(ratios, "svi")
    assert found["elbo"] == pytest.approx(ratios.mean()) and found["elbo_error"] == pytest.approx(ratios.std() / 20)


def test_statistics_of_both_arviz_versions_agree(monkeypatch):
    values = RNG.standard_normal((4, 200))
    found = rhat(values), effective_size(values)
    whole = diagnostics.find_spec
    monkeypatch.setattr(diagnostics, "find_spec", lambda name: None if name == "arviz_stats" else whole(name))
    other = rhat(values), effective_size(values)
    np.testing.assert_allclose(found, other, rtol=1e-10)


@pytest.mark.parametrize("count", [32, 100, 500])
def test_pareto_shape_equals_that_of_arviz(count):
    array_stats = pytest.importorskip("arviz_stats.base").array_stats
    ratios = 0.4 * RNG.standard_normal(count) ** 2
    assert pareto_shape(ratios) == pytest.approx(float(array_stats.psislw(-ratios)[1]), rel=1e-8)


def test_missing_arviz_error_names_package(monkeypatch):
    monkeypatch.setattr(diagnostics, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install arviz"):
        rhat(np.zeros((2, 10)))


def test_hyperparameter_draws_check_shapes():
    draws = HyperparameterDraws("nuts", np.zeros((2, 5, 3)), {"lp": np.zeros((2, 5))})
    assert draws.flat.shape == (10, 3)
    with pytest.raises(InputError, match="lp has shape"):
        HyperparameterDraws("nuts", np.zeros((2, 5, 3)), {"lp": np.zeros((5, 2))})
    with pytest.raises(InputError, match="chains, draws, k"):
        HyperparameterDraws("nuts", np.zeros((5, 3)), {})


def test_check_chains_labels_entries_with_column_names():
    draws = np.random.default_rng(0).normal(size=(2, 20, 1, 2))
    draws[:, :, 0, 1] += np.array([[0.0], [9.0]])  # the chains of this entry have not mixed
    axes = Axes(("east", "depth"), ("u", "v"))
    with pytest.warns(FitWarning, match=r"lengthscale\[v, depth\]"):
        found = check_chains({"1.lengthscale": draws}, 0, axes)
    assert found["rhat_worst"] == found["ess_worst"] == "lengthscale[v, depth]"
    with pytest.warns(FitWarning, match=r"1\.lengthscale\[0, 1\]"):
        check_chains({"1.lengthscale": draws}, 0)
