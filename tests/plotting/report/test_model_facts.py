import numpy as np
import pytest
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.plotting.report.descriptions import base_words, facts_of

X = np.random.default_rng(0).uniform(-1, 1, (12, 2))


def test_facts_of_a_trained_model(coupled):
    facts = dict(facts_of(coupled))
    assert facts["Estimator"] == "GPRegressor" and facts["Kernel of the inputs"].startswith("Matérn 5/2")
    assert (
        facts["Noise"] == "a variance for each output, trained" and facts["Prior mean"] == "a constant for each output"
    )
    assert facts["Approximation"] == "none: the exact posterior" and "by evidence" in facts["Hyperparameters"]
    assert f"{coupled.log_evidence_:.6g}".lstrip("-") in facts["Evidence"]
    assert coupled.fit_report_.message in facts["Training"] and "Penalty" not in facts


def test_features_say_how_many_and_that_they_are_guarded(features):
    assert dict(facts_of(features))["Approximation"].startswith("20 random frequencies; the variance is kept")


def test_draws_say_their_method(chains):
    assert "nuts" in dict(facts_of(chains))["Hyperparameters"]


def test_candidates_are_named_with_their_evidence():
    facts = dict(facts_of(ovkgp.GPRegressor(random_state=0).fit(X, np.sin(X))))
    assert "independent" in facts["Candidates"] and "decomposable" in facts["Candidates"]


@pytest.mark.parametrize(("noise", "words"), [("shared", "one variance"), ("full", "correlated"), (0.1, "given")])
def test_noise(noise, words):
    model = ovkgp.GPRegressor("decomposable", noise=noise, random_state=0).fit(X, np.sin(X))
    assert words in dict(facts_of(model))["Noise"]


def test_noise_that_is_known_for_each_entry():
    model = ovkgp.GPRegressor("decomposable", random_state=0).fit(X, np.sin(X), noise=np.full((12, 2), 0.1))
    assert "known variance for each entry" in dict(facts_of(model))["Noise"]


def test_a_penalty_is_given_or_chosen(ridge, field):
    assert dict(facts_of(ridge))["Penalty"] == 'λ = 0.01, given (convention "sum")'
    chosen = ovkgp.OVKRidge(lam=[0.1, 1.0, 10.0]).fit(X, X)
    assert "chosen among 3" in dict(facts_of(chosen))["Penalty"]
    assert dict(facts_of(ridge))["Prior mean"] == "the mean of each output"
    assert dict(facts_of(field))["Prior mean"] == "zero"


def test_an_object_is_named_by_its_class():
    model = ovkgp.OVKRidge(base_kernel=RBFKernel(), lam=0.1).fit(X, X)
    assert base_words(model) is None
    assert "RBFKernel" in dict(facts_of(model))["Kernel of the inputs"]


def test_levels_of_quantiles(quantiles):
    assert dict(facts_of(quantiles))["Levels"] == f"all between 0 and 1, learned at {len(quantiles.measure_)} nodes"
    few = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.1, 0.9], lengthscale=1.0, lam=0.1).fit(X, X[:, 0])
    assert dict(facts_of(few))["Levels"] == "0.1, 0.9 only (joint)"


def test_likelihoods_go_with_the_names_of_their_outputs(mixed):
    facts = dict(facts_of(mixed))
    assert "output 0: Poisson" in facts["Likelihood"] and "output 1: Student-t" in facts["Likelihood"]
    assert "Noise" not in facts and "4 inducing points" in facts["Approximation"] and "lower bound" in facts["Evidence"]
