"""Tests of `ovkgp.plotting.report.parameters`."""

import warnings

import arviz as az
import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel

import ovkgp
from ovkgp.plotting.report import parameters
from ovkgp.plotting.report import parameters as quick_intervals
from ovkgp.plotting.report.parameters import (
    DRAWS,
    MAX_OUTPUTS,
    Names,
    entries,
    local_draws,
    parameter_table,
    point_values,
    set_parameters,
)


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
    monkeypatch.setattr(parameters, "MAX_ROWS", 3)
    table = parameter_table(features)
    assert len(table.rows) == 3 and f"the first 3 of {total}" in table.notes[-1]


def test_others_were_given(ridge, trees, quantiles):
    for model in (ridge, trees[0], quantiles):
        table = parameter_table(model)
        assert "not trained" in table.sentence and table.rows and not table.has_intervals


TWO = Names(["x", "z"], ["u", "v"], "decomposable")


def listed(path, value, names=TWO):
    """Name, column and value of each entry of one hyperparameter."""
    found = entries(path, np.asarray(value, dtype=float)[None, None], names)
    return [(entry.name, entry.of, entry.draws.item()) for entry in found]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("lengthscale", [[2.0, 3.0]], [("lengthscale", "x", 2.0), ("lengthscale", "z", 3.0)]),
        ("lengthscale", [[2.0]], [("lengthscale", "all inputs", 2.0)]),
        ("noise", [4.0, 9.0], [("noise standard deviation", "u", 2.0), ("noise standard deviation", "v", 3.0)]),
        ("mean", [4.0, 9.0], [("mean", "u", 4.0), ("mean", "v", 9.0)]),
        ("1.lengthscale", [[2.0, 3.0]], [("lengthscale", "x, component 2", 2.0), ("lengthscale", "z, component 2", 3.0)]),
        ("alpha", [1.5], [("mixture of lengthscales α", "", 1.5)]),
        ("scale_1", 0.5, [("scale of the errors", "v", 0.5)]),
        ("input_kernel.lengthscale", 0.5, [("lengthscale", "input kernel", 0.5)]),
        ("my_own", 0.5, [("my own", "", 0.5)]),
        ("mean.slopes", [[1.0, 2.0], [3.0, 4.0]], [("slope of the mean", f"{y} along {x}", v) for x, y, v in [("x", "u", 1), ("x", "v", 2), ("z", "u", 3), ("z", "v", 4)]]),
    ],
)  # fmt: skip
def test_entries_belong_to_columns(path, value, found):
    assert listed(path, value) == found


def test_parts_of_fields_are_named_for_what_they_are():
    names = TWO._replace(structure="helmholtz")
    assert listed("0.outputscale", 4.0, names) == [("signal standard deviation", "the curl-free part", 2.0)]
    assert listed("1.lengthscale", [[2.0]], names) == [("lengthscale", "the divergence-free part", 2.0)]
    assert listed("outputscale", 4.0, TWO._replace(structure="curl_free"))[0][1] == "the potential"


def test_independent_outputs_own_their_hyperparameters():
    names = TWO._replace(structure="independent")
    assert listed("1.outputscale", 4.0, names) == [("signal standard deviation", "v", 2.0)]
    assert listed("1.lengthscale", [[2.0, 3.0]], names)[0] == ("lengthscale", "x, v", 2.0)
    alone = Names(["x"], ["u"], "independent")
    assert listed("0.lengthscale", [[2.0]], alone) == [("lengthscale", "x", 2.0)]


def test_a_full_noise_has_correlations():
    assert listed("noise", [[4.0, -3.0], [-3.0, 9.0]])[-1] == ("noise correlation", "u and v", -0.5)


def test_correlations_of_many_outputs_are_left_to_a_picture():
    many = Names(["x"], [f"y{a}" for a in range(MAX_OUTPUTS + 1)], "decomposable")
    found = listed("output_matrix", np.eye(MAX_OUTPUTS + 1), many)
    assert {name for name, _, _ in found} == {"signal standard deviation"}


def test_an_output_without_variance_has_no_correlation():
    assert listed("output_matrix", [[4.0, 0.0], [0.0, 0.0]])[-1] == ("signal correlation", "u and v", 0.0)


def test_draws_stay_together():
    draws = np.arange(1.0, 13.0).reshape(2, 3, 2)  # chains, draws, outputs
    first, second = entries("noise", draws, TWO)
    np.testing.assert_allclose(first.draws, np.sqrt(draws[..., 0]))
    assert second.draws.shape == (2, 3)


def test_draws_are_around_the_trained_values_in_the_units_of_the_data(coupled):
    found, trained = local_draws(coupled), point_values(coupled)
    assert set(found.values) == set(trained)
    middle = np.median(found.values["noise"][0], axis=0)
    assert found.values["noise"].shape == (1, DRAWS, 3)
    np.testing.assert_array_less(np.abs(np.log(middle / trained["noise"])), np.log(4.0))


def test_neither_the_model_nor_the_warnings_of_python_see_it(coupled):
    before = {name: value.clone() for name, value in coupled.gp_.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local_draws(coupled)
    assert all(bool((value == before[name]).all()) for name, value in coupled.gp_.state_dict().items())


def test_it_is_made_only_where_it_is_cheap_and_makes_sense(coupled, features, chains, mixed, monkeypatch):
    assert local_draws(features) is None and local_draws(chains) is None and local_draws(mixed) is None
    monkeypatch.setattr(quick_intervals, "MAX_ENTRIES", 10)
    assert local_draws(coupled) is None


def test_values_that_were_fixed_have_none():
    X = np.linspace(0, 1, 8)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(RBFKernel(), num_outputs=1)
    assert local_draws(ovkgp.GPRegressor(kernel, hyperparameters="fixed").fit(X, X)) is None


def test_rough_and_flat_approximations_are_said_to_be():
    notes = quick_intervals._notes({"khat": 0.9, "num_flat": 1})
    assert "k̂ = 0.9" in notes[0] and "open" in notes[1]
    assert quick_intervals._notes({"khat": 0.5, "num_flat": 0}) == ()


def values_of(estimator):
    return {(row.name, row.of): row.value for row in set_parameters(estimator)}


def test_a_ridge_shows_its_penalty_noise_and_kernel(ridge):
    values = values_of(ridge)
    assert values["penalty λ", ""] == ridge.lam_ == 1e-2
    assert values["noise standard deviation", ""] == pytest.approx(np.sqrt(ridge.noise_))
    assert values["lengthscale", "time"] == pytest.approx(ridge.gp_.kernel.base_kernel.lengthscale.item())
    assert ("signal correlation", "u and v") in values


def test_the_scale_of_the_evidence_is_in_the_noise():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.OVKRidge(lam=0.5, scale="evidence").fit(X, 100 * np.sin(9 * X))
    values = values_of(model)
    assert values["noise standard deviation", ""] == pytest.approx(np.sqrt(model.noise_ * model.scale_))
    assert values["scale of prior and noise s²", ""] == pytest.approx(model.scale_)


def test_outputs_without_a_tie_show_no_correlation():
    X = np.linspace(0, 1, 9)[:, None]
    assert not any("correlation" in name for name, _ in values_of(ovkgp.OVKRidge(lam=0.5).fit(X, np.hstack([X, X]))))


def test_codes_of_classes_are_not_shown_as_outputs(trees):
    values = values_of(trees[0])
    assert {name for name, _ in values} == {"penalty λ", "noise standard deviation", "lengthscale"}
    assert values["lengthscale", "all inputs"] > 0


def test_lengthscales_of_scaled_inputs_are_in_their_units(quantiles, levels):
    values = values_of(quantiles)
    for i, scale in enumerate(quantiles.scaling_.input_scale):
        assert values["lengthscale", f"input {i}"] == pytest.approx(1.0 * scale)
    assert values["residual scale", ""] == pytest.approx(quantiles.residual_scale_)
    model = levels[0]
    shared = values_of(model)["lengthscale", "input 0"] / model.scaling_.input_scale[0]
    assert values_of(model)["lengthscale", "input 1"] == pytest.approx(shared * model.scaling_.input_scale[1])
    assert values_of(model)["threshold at that level", ""] == model.offset_


def test_tasks_and_random_features(styles):
    model = styles[0]
    values = values_of(model)
    assert values["noise standard deviation", ""] == pytest.approx(np.sqrt(model.noise_ * model.scale_))
    assert ("lengthscale", "task kernel") in values
    assert not any("correlation" in name for name, _ in values)


def test_a_radius_is_a_parameter():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.ConstrainedORFF(radius=3.0, num_frequencies=9, tolerance=0.1, random_state=0).fit(X, X)
    assert values_of(model)["radius M of the weights", ""] == 3.0
    assert values_of(model)["radius of each frequency", ""] == pytest.approx(1.0)
