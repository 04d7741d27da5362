"""Tests of `ovkgp.plotting.report.parameters`."""

import warnings

import arviz as az
import numpy as np
import pytest
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

import ovkgp
from ovkgp.plotting.report import parameters
from ovkgp.plotting.report.parameters import (
    NUM_LAPLACE_DRAWS,
    make_parameter_table,
    sample_laplace,
)


def rows_of(estimator):
    """Rows of the table by name, output and input."""
    return {(row.name, row.output, row.input): row for row in make_parameter_table(estimator).rows}


def test_table_of_points_shows_values_of_estimator(coupled):
    rows, matrix = rows_of(coupled), coupled.to_arviz()["posterior"]["output_matrix"].values[0, 0]
    for a, name in enumerate("uvw"):
        assert rows["noise std", name, ""].value == pytest.approx(np.sqrt(coupled.noise_[a, a]))
        assert rows["signal std", name, ""].value == pytest.approx(np.sqrt(matrix[a, a]))
    ratio = matrix[0, 1] / np.sqrt(matrix[0, 0] * matrix[1, 1])
    assert rows["signal correlation", "u, v", ""].value == pytest.approx(ratio)
    lengthscale = coupled.gp_.kernel.base_kernel.lengthscale.item() * coupled.scaling_.input_scale[0]
    assert rows["lengthscale", "", "time"].value == pytest.approx(lengthscale)


def test_table_of_small_model_has_laplace_intervals(coupled):
    table = make_parameter_table(coupled)
    assert table.has_intervals and not table.has_chains and table.value_name == "value"
    assert "largest evidence under weak priors" in table.sentence and "Laplace" in table.sentence
    known = [row for row in table.rows if row.low is not None]
    assert len(known) >= len(table.rows) / 2
    assert all(row.low <= row.value <= row.high and row.sd > 0 for row in known)


def test_table_of_kernel_object_mentions_priors():
    X = np.linspace(0, 9, 10)[:, None]
    for prior, text in (
        (None, "evidence under weak priors;"),
        (GammaPrior(2.0, 1.0), "under the given and weak priors;"),
    ):
        kernel = ScaleKernel(RBFKernel(), outputscale_prior=prior)
        model = ovkgp.GPRegressor(kernel, noise=0.01, random_state=0).fit(X, np.sin(X))
        assert text in make_parameter_table(model).sentence


def test_table_without_stored_rows_has_no_intervals(features):
    table = make_parameter_table(features)
    assert not table.has_intervals and "uncertainty is unknown" in table.sentence


def test_table_of_draws_matches_arviz(chains):
    table = make_parameter_table(chains)
    draws = np.sqrt(chains.to_arviz()["posterior"]["noise"].values[..., 0])
    (row,) = [row for row in table.rows if row.name == "noise std"]
    assert row.output == "height" and table.value_name == "mean" and table.has_chains
    wanted = draws.mean(), draws.std(), *np.quantile(draws, [0.05, 0.95])
    assert (row.value, row.sd, row.low, row.high) == pytest.approx(wanted)
    assert row.rhat == pytest.approx(float(az.rhat(draws))) and row.ess == pytest.approx(float(az.ess(draws)))
    assert "2 chains of 25 draws" in table.sentence and "over 4 of them" in table.sentence


def test_table_shows_fixed_noise():
    X = np.linspace(0, 1, 8)[:, None]
    model = ovkgp.GPRegressor("independent", noise=0.25, random_state=0).fit(X, np.hstack([X, -X]))
    assert rows_of(model)["noise std", "y1", ""].value == pytest.approx(0.5)


def test_table_of_kernel_object_is_in_original_units():
    X = np.linspace(0, 9, 10)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(ScaleKernel(RBFKernel()), num_outputs=2)
    table = make_parameter_table(ovkgp.GPRegressor(kernel, random_state=0).fit(X, 10 * np.hstack([X, np.sin(X)])))
    assert table.units == "original units"


def test_table_is_truncated(features, monkeypatch):
    total = len(make_parameter_table(features).rows)
    monkeypatch.setattr(parameters, "MAX_ROWS", 3)
    table = make_parameter_table(features)
    assert len(table.rows) == 3 and f"the first 3 of {total}" in table.notes[-1]


def test_table_of_untrained_estimators_has_no_intervals(ridge, trees, quantiles):
    for model in (ridge, trees[0], quantiles):
        table = make_parameter_table(model)
        assert "not trained" in table.sentence and table.rows and not table.has_intervals


def test_sample_laplace_is_close_to_trained_values(coupled):
    found, trained = sample_laplace(coupled), np.diag(coupled.noise_)
    assert set(found.values) == set(coupled.to_arviz()["posterior"].data_vars)
    middle = np.median(found.values["noise"][0], axis=0)
    assert found.values["noise"].shape == (1, NUM_LAPLACE_DRAWS, 3)
    np.testing.assert_array_less(np.abs(np.log(middle / trained)), np.log(4.0))


def test_sample_laplace_changes_nothing_and_does_not_warn(coupled):
    before = {name: value.clone() for name, value in coupled.gp_.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample_laplace(coupled)
    assert all(bool((value == before[name]).all()) for name, value in coupled.gp_.state_dict().items())


def test_sample_laplace_requires_small_exact_model(coupled, features, chains, mixed, monkeypatch):
    assert sample_laplace(features) is None and sample_laplace(chains) is None and sample_laplace(mixed) is None
    monkeypatch.setattr(parameters, "MAX_LAPLACE_ENTRIES", 10)
    assert sample_laplace(coupled) is None


def test_sample_laplace_of_fixed_values_returns_none():
    X = np.linspace(0, 1, 8)[:, None]
    kernel = ovkgp.kernels.DecomposableKernel(RBFKernel(), num_outputs=1)
    assert sample_laplace(ovkgp.GPRegressor(kernel, hyperparameters="fixed").fit(X, X)) is None


def test_laplace_notes_report_poor_diagnostics():
    notes = parameters._describe_reliability({"khat": 0.9, "num_flat": 1})
    assert "k̂ = 0.9" in notes[0] and "do not determine" in notes[1]
    assert parameters._describe_reliability({"khat": 0.5, "num_flat": 0}) == ()


def values_of(estimator):
    return {(row.name, row.output, row.input): row.value for row in make_parameter_table(estimator).rows}


def test_fixed_parameters_of_ridge_match_estimator(ridge):
    values = values_of(ridge)
    assert values["penalty λ", "", ""] == ridge.lam_ == 1e-2
    assert values["noise std", "", ""] == pytest.approx(np.sqrt(ridge.noise_))
    assert values["lengthscale", "", "time"] == pytest.approx(ridge.gp_.kernel.base_kernel.lengthscale.item())
    assert ("signal correlation", "u, v", "") in values


def test_fixed_parameters_scale_noise_by_evidence():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.OVKRidge(lam=0.5, scale="evidence").fit(X, 100 * np.sin(9 * X))
    values = values_of(model)
    assert values["noise std", "", ""] == pytest.approx(np.sqrt(model.noise_ * model.scale_))
    assert values["scale of prior and noise s²", "", ""] == pytest.approx(model.scale_)


def test_fixed_parameters_of_independent_outputs_have_no_correlation():
    X = np.linspace(0, 1, 9)[:, None]
    assert not any("correlation" in name for name, *_ in values_of(ovkgp.OVKRidge(lam=0.5).fit(X, np.hstack([X, X]))))


def test_fixed_parameters_of_classifier_omit_codes(trees):
    values = values_of(trees[0])
    assert {name for name, *_ in values} == {"penalty λ", "noise std", "lengthscale"}
    assert values["lengthscale", "", "all"] > 0


def test_fixed_parameters_lengthscales_are_in_original_units(quantiles, levels):
    values = values_of(quantiles)
    for i, scale in enumerate(quantiles.scaling_.input_scale):
        assert values["lengthscale", "", f"x{i}"] == pytest.approx(1.0 * scale)
    assert values["residual scale", "", ""] == pytest.approx(quantiles.residual_scale_)
    model = levels[0]
    shared = values_of(model)["lengthscale", "", "x0"] / model.scaling_.input_scale[0]
    assert values_of(model)["lengthscale", "", "x1"] == pytest.approx(shared * model.scaling_.input_scale[1])
    assert values_of(model)["threshold at that level", "", ""] == model.offset_


def test_fixed_parameters_of_tasks_include_task_lengthscale(styles):
    model = styles[0]
    values = values_of(model)
    assert values["noise std", "", ""] == pytest.approx(np.sqrt(model.noise_ * model.scale_))
    assert any(name == "task_kernel.lengthscale" for name, *_ in values)
    assert not any("correlation" in name for name, *_ in values)


def test_fixed_parameters_of_constrained_features_include_radii():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.ConstrainedORFF(radius=3.0, num_frequencies=9, tolerance=0.1, random_state=0).fit(X, X)
    assert values_of(model)["radius M of the weights", "", ""] == 3.0
    assert values_of(model)["radius of each frequency", "", ""] == pytest.approx(1.0)
