"""Tests of `ovkgp.plotting.report.descriptions`."""

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp import estimators
from ovkgp.estimators.common.named_kernels import RIDGE_KERNELS
from ovkgp.estimators.common.named_kernels import STRUCTURES as NAMED
from ovkgp.estimators.common.task_options import TASK_KERNELS
from ovkgp.estimators.storage.storage import ESTIMATORS as STORED
from ovkgp.inference.likelihoods.factory import LIKELIHOODS as KNOWN
from ovkgp.kernels import DecomposableKernel, FullMatrix
from ovkgp.plotting.report.descriptions import (
    BASES,
    ESTIMATORS,
    LIKELIHOODS,
    STRUCTURES,
    base_words,
    facts_of,
    model_words,
    structure_of,
)
from ovkgp.plotting.report.evaluation_data import KINDS


def test_every_estimator_that_a_file_may_hold_has_words():
    assert set(STORED) <= set(ESTIMATORS)


def test_every_estimator_of_the_package_has_words_but_the_search():
    offered = {name for name in estimators.__all__ if name[0].isupper()} - {"BayesSearchCV"}
    assert offered == set(ESTIMATORS) == set(KINDS)


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


@pytest.mark.parametrize(
    ("kernel", "matrix", "structure"),
    [
        ("auto", None, "identity"),
        ("independent", None, "identity"),
        ("auto", [[1.0, 0.5], [0.5, 1.0]], "decomposable"),
        ("decomposable", None, "decomposable"),
        ("curl_free", None, "curl_free"),
        ("divergence_free", None, "divergence_free"),
        ("helmholtz", None, "helmholtz"),
        (DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(2)), None, "given"),
    ],
)
def test_the_structure_of_a_ridge(kernel, matrix, structure):
    model = ovkgp.OVKRidge(kernel, lam=0.1, output_matrix=matrix).fit(X, X)
    words = model_words(model)
    assert structure_of(model) == structure
    assert STRUCTURES[structure].text in words.paragraphs and STRUCTURES[structure].formula in words.formulas


def test_a_trained_model_names_its_structure(coupled):
    words = model_words(coupled)
    assert words.name == "Gaussian-process regression: coupled outputs (ICM)"
    assert any("√5" in line for line in words.formulas) and any("ε_a" in line for line in words.formulas)


def test_a_single_output_is_not_said_to_be_coupled(chains):
    assert structure_of(chains) == "single"
    assert not any("another" in text for text in model_words(chains).paragraphs)


def test_likelihoods_bring_their_formulas(mixed):
    formulas = " ".join(model_words(mixed).formulas)
    assert "Poisson" in formulas and "Student" in formulas


def test_estimators_without_a_structure_have_words_of_their_own(quantiles, trees, costs, levels, styles):
    for model in (quantiles, trees[0], costs[0], levels[0], styles[0]):
        assert structure_of(model) is None
        assert model_words(model).paragraphs and "exp(−r^2/2)" in " ".join(model_words(model).formulas)


def test_every_structure_that_a_kernel_may_have_has_words():
    assert {*NAMED, *(name for name in RIDGE_KERNELS if name != "auto"), "given"} <= set(STRUCTURES)


def test_every_base_kernel_and_every_likelihood_has_words():
    assert set(BASES) == set(TASK_KERNELS)
    assert set(LIKELIHOODS) == set(KNOWN)


def test_words_are_sentences():
    for words in STRUCTURES.values():
        assert words.text.endswith(".") and words.name[0].islower() and words.formula
