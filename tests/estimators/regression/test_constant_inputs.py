"""Tests of constant inputs, which the mixture `kernel="auto"` does not use."""

import numpy as np
import pytest

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.plotting.output_correlations import compute_output_correlations
from ovkgp.plotting.report.page import write_report

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 5, (40, 2))
Y = np.c_[np.sin(X[:, 0]) * X[:, 1], np.cos(X[:, 0])] + 0.1 * RNG.standard_normal((40, 2))
NEW = RNG.uniform(0, 5, (7, 2))


def add_constant(values, constant=7.0):
    return np.c_[values[:, :1], np.full(len(values), constant), values[:, 1:]]


@pytest.fixture(scope="module")
def pair():
    """A model without and one with a constant column."""
    options = {"random_state": 0}
    return ovkgp.GPRegressor(**options).fit(X, Y), ovkgp.GPRegressor(**options).fit(add_constant(X), Y)


def test_constant_input_changes_neither_candidates_nor_predictions(pair):
    without, with_constant = pair
    assert "helmholtz" in without.candidates_  # as many outputs as inputs that vary
    assert [*with_constant.candidates_] == [*without.candidates_]
    for name, score in without.candidates_.items():
        assert with_constant.candidates_[name].weight == pytest.approx(score.weight, abs=1e-8)
    for mine, other in zip(
        without.predict(NEW, return_std=True), with_constant.predict(add_constant(NEW), return_std=True), strict=True
    ):
        assert other == pytest.approx(mine, abs=1e-8)


def test_constant_input_has_no_hyperparameters_and_no_checks(pair):
    without, with_constant = pair
    assert len(with_constant.list_parameters()) == len(without.list_parameters())
    assert {row.input for row in with_constant.list_parameters()} <= {"x0", "x2", "all", ""}
    assert with_constant.list_problems() == without.list_problems()
    assert "x1 (constant)" in with_constant.summary() and "not used" not in without.summary()


def test_constant_input_with_another_value_has_no_effect(pair):
    _, model = pair
    assert np.array_equal(model.predict(add_constant(NEW)), model.predict(add_constant(NEW, -3.0)))
    with pytest.raises(InputError):
        model.predict(NEW)


def test_constant_input_is_in_files_plots_and_exports(pair, tmp_path):
    _, model = pair
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    assert loaded.predict(add_constant(NEW)) == pytest.approx(model.predict(add_constant(NEW)), rel=1e-12)
    assert loaded.training_data()[0] == pytest.approx(add_constant(X))
    assert model.to_arviz()["posterior"].sizes.get("input", 2) == 2
    assert compute_output_correlations(model).shape == (2, 2)
    assert write_report(model, tmp_path / "report.html").exists()


def test_only_constant_inputs_are_kept():
    model = ovkgp.GPRegressor(random_state=0).fit(np.ones((20, 2)), Y[:20])
    assert model.predict(np.ones((3, 2))).shape == (3, 2) and [*model.scaling_.used_inputs] == [0, 1]
