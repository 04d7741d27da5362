import numpy as np
import pytest
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.kernels import DecomposableKernel, FullMatrix
from ovkgp.plotting.report.descriptions import STRUCTURES, model_words, structure_of

X = np.random.default_rng(0).uniform(-1, 1, (12, 2))


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
