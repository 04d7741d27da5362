import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report.parameters import set_parameters


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
