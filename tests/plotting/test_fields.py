"""Tests of `ovkgp.plotting.fields`."""

from copy import deepcopy

import matplotlib.pyplot as plt
import numpy as np
import plot_cases
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_field
from ovkgp.plotting.axes import LINE
from ovkgp.plotting.fields import (
    FAINTEST,
    GREYS,
    LIGHT_CIVIDIS,
    SHADED_POINTS,
    FieldValues,
    draw_arrows,
    draw_data,
    draw_truth,
    field_values,
    grid,
    opacity,
    scalar_behind,
    true_vectors,
)
from ovkgp.plotting.slices import Data

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def arrows(axes) -> list:
    return [part for part in axes.collections if hasattr(part, "U")]


def names(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_arrows_are_the_posterior_mean_and_the_shade_is_its_standard_deviation():
    model = plot_cases.field()
    axes = plot_field(model, num_arrows=6, truth=plot_cases.truth)
    assert isinstance(axes, Axes) and axes.get_aspect() == 1.0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("east", "north")
    mean = arrows(axes)[0]
    points = np.column_stack([mean.X, mean.Y])
    np.testing.assert_allclose(np.column_stack([mean.U, mean.V]), field_values(model, points).mean)
    (image,) = axes.images
    shaded, shape = grid(image.get_extent(), SHADED_POINTS, inside=False)
    np.testing.assert_allclose(image.get_array(), field_values(model, shaded).std.reshape(shape))
    assert axes.child_axes[0].get_ylabel() == "standard deviation of the field"
    legend = names(axes.figure.legends[0])
    assert legend[0].startswith("mean (longest: ") and legend[1:] == ["truth", "data", "data, one component"]
    axes.figure.canvas.draw()


@pytest.mark.parametrize("shade", ["potential", "stream_function"])
def test_a_scalar_behind_the_field_is_drawn_as_contours(shade):
    axes = plot_field(plot_cases.field(), num_arrows=4, shade=shade)
    left, right, bottom, top = *axes.get_xlim(), *axes.get_ylim()
    points, _ = grid((left, right, bottom, top), SHADED_POINTS, inside=False)
    values = scalar_behind(plot_cases.field(), points, shade, np.array([(left + right) / 2, (bottom + top) / 2]))
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == shade.replace("_", " ")
    assert bar.get_ylim()[0] <= values.min() and bar.get_ylim()[1] >= values.max()


def test_no_shade_has_no_colour_bar_and_x_alone_only_says_where():
    X = plot_cases.field_table()[0]
    axes = plot_field(plot_cases.field(), X, shade=None, num_arrows=4)
    assert not axes.child_axes and len(arrows(axes)) == 1 and not axes.images


def test_the_given_axes_and_the_given_extent_are_used():
    figure = Figure(layout="constrained")
    axes = figure.subplots(1, 2)[1]
    assert plot_field(plot_cases.field(), ax=axes, extent=(350, 450, 60, 110), num_arrows=8) is axes
    assert (axes.get_xlim(), axes.get_ylim()) == ((350, 450), (60, 110))
    assert len(arrows(axes)[0].U) == 8 * 4 and not plt.get_fignums()
    assert "data" in names(axes.get_legend())


def test_ridges_and_features_are_fields_too():
    X, Y = plot_cases.field_table()
    ridge = ovkgp.ORFFRidge("divergence_free", num_frequencies=20, lengthscale=50.0, random_state=0).fit(X, Y)
    axes = plot_field(ridge, X, Y, shade="stream_function", num_arrows=4)
    assert len(arrows(axes)) == 3
    with pytest.raises(InputError, match="give X"):
        plot_field(ridge)


def test_a_field_of_nothing_is_drawn_without_a_warning():
    X = np.random.default_rng(0).uniform(size=(5, 2))
    axes = plot_field(ovkgp.OVKRidge("curl_free").fit(X, np.zeros((5, 2))), shade="potential", num_arrows=3)
    axes.figure.canvas.draw()
    assert not arrows(axes)[0].U.any()


def test_bad_input_says_what_to_do():
    with pytest.raises(NotFittedError):
        plot_field(ovkgp.GPRegressor("helmholtz"))
    with pytest.raises(OptionError, match="two inputs and two outputs; this model has 1 and 2: use plot_prediction"):
        plot_field(plot_cases.two_outputs())
    with pytest.raises(
        OptionError, match="shade must be one of 'std', 'potential', 'stream_function' or None, got 'speed'"
    ):
        plot_field(plot_cases.field(), shade="speed")
    with pytest.raises(OptionError, match="shade='potential' needs kernel=\"curl_free\""):
        plot_field(plot_cases.field("divergence_free"), shade="potential")
    with pytest.raises(InputError, match="1 are needed"):
        plot_field(plot_cases.field(), ax=Figure().subplots(1, 2))
    for extent in ((0, 1), (1, 0, 0, 1), "wide", (0, np.nan, 0, 1)):
        with pytest.raises(InputError, match="extent is"):
            plot_field(plot_cases.field(), extent=extent)
    with pytest.raises(OptionError, match="num_arrows"):
        plot_field(plot_cases.field(), num_arrows=1)
    with pytest.raises(InputError, match="truth must map"):
        plot_field(plot_cases.field(), num_arrows=3, shade=None, truth=np.sum)
    assert not plt.get_fignums()  # none was opened for nothing


POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
VALUES = FieldValues(np.array([[1.0, 0.0], [0.0, -1.0], [0.6, 0.8]]), np.array([0.0, 1.0, 100.0]))


def test_arrows_fade_with_their_standard_deviation():
    np.testing.assert_allclose(opacity(VALUES), [1.0, 0.5, FAINTEST])
    assert (opacity(FieldValues(np.zeros((2, 2)), np.ones(2))) == FAINTEST).all()


def test_arrows_of_the_mean():
    axes = Figure().subplots()
    (sign,) = draw_arrows(axes, POINTS, VALUES, scale=2.0)
    (drawn,) = arrows(axes)
    np.testing.assert_allclose(np.column_stack([drawn.U, drawn.V]), VALUES.mean)
    np.testing.assert_allclose(np.column_stack([drawn.X, drawn.Y]), POINTS)
    np.testing.assert_allclose(drawn.get_facecolor()[:, 3], opacity(VALUES))
    np.testing.assert_allclose(drawn.get_facecolor()[0, :3], to_rgb(LINE))
    assert (drawn.scale, drawn.angles, drawn.scale_units) == (2.0, "xy", "xy")
    assert sign.get_label() == "mean (longest: 1)"


def test_arrows_of_the_truth_are_outlines_and_must_be_vectors():
    axes = Figure().subplots()
    draw_truth(axes, POINTS, true_vectors(POINTS, lambda X: -X), scale=2.0)
    np.testing.assert_allclose(np.column_stack([arrows(axes)[0].U, arrows(axes)[0].V]), -POINTS)
    assert not len(arrows(axes)[0].get_facecolor()) or arrows(axes)[0].get_facecolor()[0, 3] == 0
    with pytest.raises(InputError, match=r"truth must map points \(3, 2\) to vectors \(3, 2\), got \(3,\)"):
        true_vectors(POINTS, lambda X: X[:, 0])


def test_data_with_one_component_have_a_sign_of_their_own():
    axes = Figure().subplots()
    Y = np.array([[1.0, 2.0], [np.nan, 3.0], [np.nan, np.nan]])
    signs = draw_data(axes, Data(POINTS, Y), scale=1.0)
    assert [sign.get_label() for sign in signs] == ["data", "data, one component"]
    whole, part = arrows(axes)
    assert (whole.U.tolist(), part.U.tolist(), part.V.tolist()) == ([1.0], [0.0], [3.0])
    assert [sign.get_marker() for sign in signs] == ["o", "s"]
    assert len(draw_data(Figure().subplots(), Data(POINTS, np.ones((3, 2))), scale=1.0)) == 1


def test_the_truth_of_the_cases_is_an_eddy():
    assert plot_cases.truth(np.array([[460.0, 80.0]]))[0, 1] > 1


def test_cells_of_a_grid_are_square():
    points, shape = grid((0.0, 4.0, 0.0, 2.0), 4, inside=True)
    assert shape == (2, 4)
    np.testing.assert_allclose(points[:2], [[0.5, 0.5], [1.5, 0.5]])
    np.testing.assert_allclose(grid((0.0, 4.0, 0.0, 2.0), 5, inside=False)[0].max(0), [4.0, 2.0])


@pytest.mark.parametrize("colours", [GREYS, LIGHT_CIVIDIS])
def test_backgrounds_are_ordered_by_lightness_and_stay_light(colours):
    red, green, blue = colours(np.linspace(0, 1, 50))[:, :3].T
    lightness = 0.299 * red + 0.587 * green + 0.114 * blue
    assert (np.diff(lightness) > 0).all() or (np.diff(lightness) < 0).all()
    assert lightness.min() > 0.45


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


def rotated(vectors) -> np.ndarray:
    """(∂₁, ∂₂) ↦ (∂₂, −∂₁)."""
    return np.stack([vectors[:, 1], -vectors[:, 0]], axis=1)


def test_the_potential_of_a_curl_free_model_has_its_mean_as_gradient():
    model = plot_cases.field("curl_free")
    np.testing.assert_allclose(gradient(model, "potential"), field_values(model, points()).mean, atol=DIFFERENCES)
    assert abs(model.scaling_.output_offset).max() > 0.1  # the constant is in it
    assert scalar_behind(model, MIDDLE[None], "potential", MIDDLE).item() == pytest.approx(0, abs=1e-9)


def test_the_stream_function_of_a_divergence_free_model_has_its_mean_as_turned_gradient():
    model = plot_cases.field("divergence_free")
    found = rotated(gradient(model, "stream_function"))
    np.testing.assert_allclose(found, field_values(model, points()).mean, atol=DIFFERENCES)


def test_the_two_scalars_of_a_helmholtz_model_are_its_two_parts_and_the_rest_is_constant():
    model = plot_cases.field("helmholtz")
    curl, div = gradient(model, "potential"), rotated(gradient(model, "stream_function"))
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
