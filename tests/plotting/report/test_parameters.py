import arviz as az
import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel

import ovkgp
from ovkgp.plotting.report import parameters
from ovkgp.plotting.report.parameters import parameter_table, point_values


def rows_of(estimator):
    """The rows of the table by (name, of)."""
    return {(row.name, row.of): row for row in parameter_table(estimator).rows}


def test_point_values_are_those_of_the_estimator(coupled):
    rows, matrix = rows_of(coupled), coupled.to_arviz()["posterior"]["output_matrix"].values[0, 0]
    for a, name in enumerate("uvw"):
        assert rows["noise standard deviation", name].value == pytest.approx(np.sqrt(coupled.noise_[a, a]))
        assert rows["signal standard deviation", name].value == pytest.approx(np.sqrt(matrix[a, a]))
    ratio = matrix[0, 1] / np.sqrt(matrix[0, 0] * matrix[1, 1])
    assert rows["signal correlation", "u and v"].value == pytest.approx(ratio)
    lengthscale = coupled.gp_.kernel.base_kernel.lengthscale.item() * coupled.scaling_.input_scale[0]
    assert rows["lengthscale", "time"].value == pytest.approx(lengthscale)


def test_point_values_of_a_small_model_have_intervals_and_say_where_from(coupled):
    table = parameter_table(coupled)
    assert table.has_intervals and not table.has_chains and table.value_name == "value"
    assert "largest evidence under weak priors" in table.sentence and "Laplace" in table.sentence
    known = [row for row in table.rows if row.low is not None]
    assert len(known) >= len(table.rows) / 2
    assert all(row.low <= row.value <= row.high and row.sd > 0 for row in known)


def test_a_kernel_object_is_trained_without_priors():
    X = np.linspace(0, 9, 10)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=1)
    model = ovkgp.GPRegressor(kernel, noise=0.01, random_state=0).fit(X, np.sin(X))
    assert "the largest evidence, and" in parameter_table(model).sentence


def test_without_rows_there_are_no_intervals(features):
    table = parameter_table(features)
    assert not table.has_intervals and "How uncertain they are is not known" in table.sentence


def test_draws_have_means_quantiles_and_checks_of_arviz(chains):
    table = parameter_table(chains)
    draws = np.sqrt(chains.to_arviz()["posterior"]["noise"].values[..., 0])
    (row,) = [row for row in table.rows if row.name == "noise standard deviation"]
    assert row.of == "height" and table.value_name == "mean" and table.has_chains
    wanted = draws.mean(), draws.std(), *np.quantile(draws, [0.05, 0.95])
    assert (row.value, row.sd, row.low, row.high) == pytest.approx(wanted)
    assert row.rhat == pytest.approx(float(az.rhat(draws))) and row.ess == pytest.approx(float(az.ess(draws)))
    assert "2 chains of 25 draws" in table.sentence and "over 4 of them" in table.sentence


def test_noise_that_was_given_is_shown():
    X = np.linspace(0, 1, 8)[:, None]
    model = ovkgp.GPRegressor("independent", noise=0.25, random_state=0).fit(X, np.hstack([X, -X]))
    assert point_values(model)["noise"] == pytest.approx([0.25, 0.25])
    assert rows_of(model)["noise standard deviation", "output 1"].value == pytest.approx(0.5)


def test_a_kernel_object_says_whose_units_its_numbers_have():
    X = np.linspace(0, 9, 10)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=2)
    table = parameter_table(ovkgp.GPRegressor(kernel, random_state=0).fit(X, 10 * np.hstack([X, np.sin(X)])))
    assert "of the model" in table.units and "only its author" in table.notes[0]


def test_a_long_table_is_cut_and_says_so(features, monkeypatch):
    total = len(parameter_table(features).rows)
    monkeypatch.setattr(parameters, "MOST_ROWS", 3)
    table = parameter_table(features)
    assert len(table.rows) == 3 and f"the first 3 of {total}" in table.notes[-1]


def test_others_were_given(ridge, trees, quantiles):
    for model in (ridge, trees[0], quantiles):
        table = parameter_table(model)
        assert "not trained" in table.sentence and table.rows and not table.has_intervals
