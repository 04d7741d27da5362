"""Potentials and stream functions against the field that is predicted, by central differences in the user's units."""

from copy import deepcopy

import numpy as np
import plot_cases
import pytest
import torch

import ovkgp
from ovkgp.exceptions import OptionError
from ovkgp.plotting.fields import field_values, scalar_behind

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

STEP = 1e-3
"""In units of the inputs, which vary over 60: differences are good to (STEP/60)² and to 1e-13 · 60/STEP."""
DIFFERENCES = 1e-6
MIDDLE = np.array([400.0, 80.0])


def points() -> np.ndarray:
    return np.random.default_rng(0).uniform([310.0, -10.0], [490.0, 170.0], (6, 2))


def gradient(model, kind) -> np.ndarray:
    """∇ of the scalar (m, 2), by central differences."""

    def scalar(X):
        return scalar_behind(model, X, kind, MIDDLE)

    return np.stack([(scalar(points() + h) - scalar(points() - h)) / (2 * STEP) for h in STEP * np.eye(2)], axis=1)


def turned(vectors) -> np.ndarray:
    """(∂₁, ∂₂) ↦ (∂₂, −∂₁)."""
    return np.stack([vectors[:, 1], -vectors[:, 0]], axis=1)


def test_the_potential_of_a_curl_free_model_has_its_mean_as_gradient():
    model = plot_cases.field("curl_free")
    np.testing.assert_allclose(gradient(model, "potential"), field_values(model, points()).mean, atol=DIFFERENCES)
    assert abs(model.scaling_.output_offset).max() > 0.1  # the constant is in it
    assert scalar_behind(model, MIDDLE[None], "potential", MIDDLE).item() == pytest.approx(0, abs=1e-9)


def test_the_stream_function_of_a_divergence_free_model_has_its_mean_as_turned_gradient():
    model = plot_cases.field("divergence_free")
    found = turned(gradient(model, "stream_function"))
    np.testing.assert_allclose(found, field_values(model, points()).mean, atol=DIFFERENCES)


def test_the_two_scalars_of_a_helmholtz_model_are_its_two_parts_and_the_rest_is_constant():
    model = plot_cases.field("helmholtz")
    curl, div = gradient(model, "potential"), turned(gradient(model, "stream_function"))
    parts, scale = model.posterior_.components(), model.scaling_.output_scale
    X = model.scaling_.inputs(points())
    for found, name in ((curl, "curl"), (div, "div")):
        np.testing.assert_allclose(found, parts[name].predict(X, "none").mean.numpy() * scale, atol=DIFFERENCES)
    rest = field_values(model, points()).mean - curl - div
    np.testing.assert_allclose(rest, np.tile(rest[0], (len(rest), 1)), atol=DIFFERENCES)


def test_draws_and_features_have_potentials_too():
    X, Y = plot_cases.field_table(20)
    featured = ovkgp.ORFFRidge("curl_free", lam=0.1, num_frequencies=30, lengthscale=60.0, random_state=0).fit(X, Y)
    np.testing.assert_allclose(gradient(featured, "potential"), field_values(featured, points()).mean, atol=DIFFERENCES)
    model = deepcopy(plot_cases.field("curl_free"))
    raw = {name: torch.stack([value.detach()] * 3) for name, value in model.gp_.named_parameters()}
    raw["mean.constant"] += torch.arange(3.0).unsqueeze(-1)
    raw["kernel.raw_outputscale"] += torch.arange(3.0)
    data = model.posterior_.data
    model.posterior_ = model.gp_.condition(data.X, data.Y, hyperparameters=raw)
    np.testing.assert_allclose(gradient(model, "potential"), field_values(model, points()).mean, atol=DIFFERENCES)


def test_the_standard_deviation_is_that_of_the_latent_field():
    model = plot_cases.field()
    _, std = model.predict(plot_cases.pd.DataFrame(points(), columns=["east", "north"]), return_std=True, noise=False)
    np.testing.assert_allclose(field_values(model, points()).std, np.sqrt((std**2).mean(1)))


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("curl_free", "stream_function"),
        ("divergence_free", "potential"),
        ("decomposable", "potential"),
        ("independent", "potential"),
    ],
)
def test_a_kernel_without_such_a_scalar_is_told_which_have_it(kernel, kind):
    with pytest.raises(OptionError, match=f"shade='{kind}' needs kernel=.*helmholtz"):
        scalar_behind(plot_cases.field(kernel), points(), kind, MIDDLE)
