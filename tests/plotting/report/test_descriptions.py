"""Tests of `ovkgp.estimators.common.descriptions` and of `describe` of the estimators."""

import numpy as np
import pytest
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp import estimators
from ovkgp.estimators.common.descriptions import LIKELIHOODS, STRUCTURES, describe_base_kernel
from ovkgp.estimators.common.named_kernels import RIDGE_KERNELS
from ovkgp.estimators.common.named_kernels import STRUCTURES as NAMED
from ovkgp.estimators.storage.storage import ESTIMATORS as STORED
from ovkgp.inference.likelihoods.factory import LIKELIHOODS as KNOWN
from ovkgp.kernels import DecomposableKernel, FullMatrix


def test_exported_and_storable_estimators_have_descriptions():
    offered = {name for name in estimators.__all__ if name[0].isupper()} - {"BayesSearchCV"}
    parts = {"CurveRidge", "NystromRidge"}  # of other estimators
    assert set(STORED) - parts <= offered
    for name in offered:
        assert getattr(ovkgp, name).description.text[-1] == "." and getattr(ovkgp, name).description.formula


X = np.random.default_rng(0).uniform(-1, 1, (12, 2))


def test_facts_describe_trained_model(coupled):
    facts = dict(coupled.describe().facts)
    assert facts["Estimator"] == "GPRegressor" and facts["Kernel of the inputs"].startswith("Matérn 5/2")
    assert (
        facts["Noise"] == "a variance for each output, trained" and facts["Prior mean"] == "a constant for each output"
    )
    assert facts["Approximation"] == "none: the exact posterior" and "by evidence" in facts["Hyperparameters"]
    assert f"{coupled.log_evidence_:.6g}".lstrip("-") in facts["Evidence"]
    assert coupled.fit_report_.message in facts["Training"] and "Penalty" not in facts


def test_facts_of_features_report_number_and_variance_floor(features):
    assert dict(features.describe().facts)["Approximation"].startswith("20 random frequencies; the variance is bounded")


def test_facts_of_draws_report_method(chains):
    assert "nuts" in dict(chains.describe().facts)["Hyperparameters"]


def test_facts_list_candidates():
    facts = dict(ovkgp.GPRegressor(random_state=0).fit(X, np.sin(X)).describe().facts)
    assert "linear + rq" in facts["Candidates"] and "held-out" in facts["Candidates"]
    assert "weighted draws" in facts["Hyperparameters"]


@pytest.mark.parametrize(("noise", "text"), [("shared", "one variance"), ("full", "correlated"), (0.1, "given")])
def test_facts_describe_noise(noise, text):
    model = ovkgp.GPRegressor("decomposable", noise=noise, random_state=0).fit(X, np.sin(X))
    assert text in dict(model.describe().facts)["Noise"]


def test_facts_describe_known_noise():
    model = ovkgp.GPRegressor("decomposable", random_state=0).fit(X, np.sin(X), noise=np.full((12, 2), 0.1))
    assert "known variance for each entry" in dict(model.describe().facts)["Noise"]


def test_facts_describe_penalty(ridge, field):
    assert dict(ridge.describe().facts)["Penalty"] == 'λ = 0.01, given (convention "sum")'
    chosen = ovkgp.OVKRidge(lam=[0.1, 1.0, 10.0]).fit(X, X)
    assert "selected among 3" in dict(chosen.describe().facts)["Penalty"]
    assert dict(ridge.describe().facts)["Prior mean"] == "the mean of each output"
    assert dict(field.describe().facts)["Prior mean"] == "zero"


def test_facts_name_class_of_kernel_object():
    model = ovkgp.OVKRidge(base_kernel=RBFKernel(), lam=0.1).fit(X, X)
    assert describe_base_kernel(model.get_params()) is None
    assert "RBFKernel" in dict(model.describe().facts)["Kernel of the inputs"]


def test_facts_describe_quantile_levels(quantiles):
    assert (
        dict(quantiles.describe().facts)["Levels"] == f"all between 0 and 1, learned at {len(quantiles.measure_)} nodes"
    )
    few = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.1, 0.9], lengthscale=1.0, lam=0.1).fit(X, X[:, 0])
    assert dict(few.describe().facts)["Levels"] == "0.1, 0.9 only (joint)"


def test_facts_describe_likelihood_per_output(mixed):
    facts = dict(mixed.describe().facts)
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
def test_structure_of_ridge_follows_kernel_and_matrix(kernel, matrix, structure):
    model = ovkgp.OVKRidge(kernel, lam=0.1, output_matrix=matrix).fit(X, X)
    description = model.describe()
    assert model.describe().structure == structure
    assert (
        STRUCTURES[structure].text in description.paragraphs and STRUCTURES[structure].formula in description.formulas
    )


def test_describe_model_names_structure(coupled):
    description = coupled.describe()
    assert description.name == "Gaussian-process regression: coupled outputs (ICM)"
    assert any("√5" in line for line in description.formulas) and any("ε_a" in line for line in description.formulas)


def test_structure_of_single_output_is_single(chains):
    assert chains.describe().structure == "single"
    assert not any("another" in text for text in chains.describe().paragraphs)


def test_describe_model_includes_likelihood_formulas(mixed):
    formulas = " ".join(mixed.describe().formulas)
    assert "Poisson" in formulas and "Student" in formulas


def test_describe_model_supports_estimators_without_structure(quantiles, trees, costs, levels, styles):
    for model in (quantiles, trees[0], costs[0], levels[0], styles[0]):
        assert model.describe().structure is None
        assert model.describe().paragraphs and "exp(−r^2/2)" in " ".join(model.describe().formulas)


def test_structures_have_descriptions():
    assert {*NAMED, *(name for name in RIDGE_KERNELS if name != "auto"), "given"} <= set(STRUCTURES)


def test_likelihoods_have_descriptions():
    assert set(LIKELIHOODS) == set(KNOWN)


def test_descriptions_are_sentences():
    for description in STRUCTURES.values():
        assert description.text.endswith(".") and description.name[0].islower() and description.formula
