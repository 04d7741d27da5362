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
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_field
from ovkgp.plotting.axes import LINE_COLOR
from ovkgp.plotting.fields import (
    LIGHT_CIVIDIS,
    LIGHT_GRAYS,
    MIN_OPACITY,
    NUM_BACKGROUND_POINTS,
    FieldValues,
    compute_opacity,
    draw_arrows,
    draw_data,
    draw_truth,
    evaluate_truth,
    make_grid,
    predict_field,
    predict_scalar,
)
from ovkgp.plotting.slices import PlotData

pytestmark = pytest.mark.filterwarnings("error")


def arrows(axes) -> list:
    return [part for part in axes.collections if hasattr(part, "U")]


def names(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_plot_field_shows_mean_and_standard_deviation():
    model = plot_cases.field()
    axes = plot_field(model, num_arrows=6, truth=plot_cases.truth)
    assert isinstance(axes, Axes) and axes.get_aspect() == 1.0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("east", "north")
    mean = arrows(axes)[0]
    points = np.column_stack([mean.X, mean.Y])
    np.testing.assert_allclose(np.column_stack([mean.U, mean.V]), predict_field(model, points).mean)
    (image,) = axes.images
    points, shape = make_grid(image.get_extent(), NUM_BACKGROUND_POINTS, inside=False)
    np.testing.assert_allclose(image.get_array(), predict_field(model, points).std.reshape(shape))
    assert axes.child_axes[0].get_ylabel() == "standard deviation of the field"
    legend = names(axes.figure.legends[0])
    assert legend[0].startswith("mean (longest: ") and legend[1:] == ["ground truth", "data", "data, one component"]
    axes.figure.canvas.draw()


@pytest.mark.parametrize("background", ["potential", "stream_function"])
def test_plot_field_draws_scalar_background_as_contours(background):
    axes = plot_field(plot_cases.field(), num_arrows=4, background=background)
    left, right, bottom, top = *axes.get_xlim(), *axes.get_ylim()
    points, _ = make_grid((left, right, bottom, top), NUM_BACKGROUND_POINTS, inside=False)
    values = predict_scalar(plot_cases.field(), points, background, np.array([(left + right) / 2, (bottom + top) / 2]))
    (bar,) = axes.child_axes
    assert bar.get_ylabel() == background.replace("_", " ")
    assert bar.get_ylim()[0] <= values.min() and bar.get_ylim()[1] >= values.max()


def test_plot_field_without_background_draws_only_arrows():
    X = plot_cases.field_table()[0]
    axes = plot_field(plot_cases.field(), X, background=None, num_arrows=4)
    assert not axes.child_axes and len(arrows(axes)) == 1 and not axes.images


def test_plot_field_uses_given_axes_and_extent():
    figure = Figure(layout="constrained")
    axes = figure.subplots(1, 2)[1]
    assert plot_field(plot_cases.field(), ax=axes, extent=(350, 450, 60, 110), num_arrows=8) is axes
    assert (axes.get_xlim(), axes.get_ylim()) == ((350, 450), (60, 110))
    assert len(arrows(axes)[0].U) == 8 * 4 and not plt.get_fignums()
    assert "data" in names(axes.get_legend())


def test_plot_field_supports_ridge_on_features():
    X, Y = plot_cases.field_table()
    ridge = ovkgp.ORFFRidge("divergence_free", num_frequencies=20, lengthscale=50.0, random_state=0).fit(X, Y)
    axes = plot_field(ridge, X, Y, background="stream_function", num_arrows=4)
    assert len(arrows(axes)) == 3
    with pytest.raises(InputError, match="X is required"):
        plot_field(ridge)


def test_plot_field_of_zeros_does_not_warn():
    X = np.random.default_rng(0).uniform(size=(5, 2))
    axes = plot_field(ovkgp.OVKRidge("curl_free").fit(X, np.zeros((5, 2))), background="potential", num_arrows=3)
    axes.figure.canvas.draw()
    assert not arrows(axes)[0].U.any()


def test_plot_field_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_field(ovkgp.GPRegressor("helmholtz"))
    with pytest.raises(OptionError, match="two inputs and two outputs"):
        plot_field(plot_cases.two_outputs())
    with pytest.raises(OptionError, match="background must be one of"):
        plot_field(plot_cases.field(), background="speed")
    with pytest.raises(OptionError, match="background='potential' requires kernel"):
        plot_field(plot_cases.field("divergence_free"), background="potential")
    with pytest.raises(InputError, match="ax has"):
        plot_field(plot_cases.field(), ax=Figure().subplots(1, 2))
    for extent in ((0, 1), (1, 0, 0, 1), "wide", (0, np.nan, 0, 1)):
        with pytest.raises(InputError, match="extent"):
            plot_field(plot_cases.field(), extent=extent)
    with pytest.raises(OptionError, match="num_arrows"):
        plot_field(plot_cases.field(), num_arrows=1)
    with pytest.raises(InputError, match="truth"):
        plot_field(plot_cases.field(), num_arrows=3, background=None, truth=np.sum)
    assert not plt.get_fignums()  # errors leave no empty figure


POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
VALUES = FieldValues(np.array([[1.0, 0.0], [0.0, -1.0], [0.6, 0.8]]), np.array([0.0, 1.0, 100.0]))


def test_compute_opacity_decreases_with_standard_deviation():
    np.testing.assert_allclose(compute_opacity(VALUES), [1.0, 0.5, MIN_OPACITY])
    assert (compute_opacity(FieldValues(np.zeros((2, 2)), np.ones(2))) == MIN_OPACITY).all()


def test_draw_arrows_shows_mean():
    axes = Figure().subplots()
    (handle,) = draw_arrows(axes, POINTS, VALUES, scale=2.0)
    (drawn,) = arrows(axes)
    np.testing.assert_allclose(np.column_stack([drawn.U, drawn.V]), VALUES.mean)
    np.testing.assert_allclose(np.column_stack([drawn.X, drawn.Y]), POINTS)
    np.testing.assert_allclose(drawn.get_facecolor()[:, 3], compute_opacity(VALUES))
    np.testing.assert_allclose(drawn.get_facecolor()[0, :3], to_rgb(LINE_COLOR))
    assert (drawn.scale, drawn.angles, drawn.scale_units) == (2.0, "xy", "xy")
    assert handle.get_label() == "mean (longest: 1)"


def test_draw_truth_shows_outlines_and_checks_shape():
    axes = Figure().subplots()
    draw_truth(axes, POINTS, evaluate_truth(POINTS, lambda X: -X), scale=2.0)
    np.testing.assert_allclose(np.column_stack([arrows(axes)[0].U, arrows(axes)[0].V]), -POINTS)
    assert not len(arrows(axes)[0].get_facecolor()) or arrows(axes)[0].get_facecolor()[0, 3] == 0
    with pytest.raises(InputError, match="truth"):
        evaluate_truth(POINTS, lambda X: X[:, 0])


def test_draw_data_marks_rows_with_one_component():
    axes = Figure().subplots()
    Y = np.array([[1.0, 2.0], [np.nan, 3.0], [np.nan, np.nan]])
    handles = draw_data(axes, PlotData(POINTS, Y), scale=1.0)
    assert [handle.get_label() for handle in handles] == ["data", "data, one component"]
    whole, part = arrows(axes)
    assert (whole.U.tolist(), part.U.tolist(), part.V.tolist()) == ([1.0], [0.0], [3.0])
    assert [handle.get_marker() for handle in handles] == ["o", "s"]
    assert len(draw_data(Figure().subplots(), PlotData(POINTS, np.ones((3, 2))), scale=1.0)) == 1


def test_truth_of_plot_cases_is_an_eddy():
    assert plot_cases.truth(np.array([[460.0, 80.0]]))[0, 1] > 1


def test_make_grid_has_square_cells():
    points, shape = make_grid((0.0, 4.0, 0.0, 2.0), 4, inside=True)
    assert shape == (2, 4)
    np.testing.assert_allclose(points[:2], [[0.5, 0.5], [1.5, 0.5]])
    np.testing.assert_allclose(make_grid((0.0, 4.0, 0.0, 2.0), 5, inside=False)[0].max(0), [4.0, 2.0])


@pytest.mark.parametrize("colormap", [LIGHT_GRAYS, LIGHT_CIVIDIS])
def test_background_colormaps_are_light_and_monotone(colormap):
    red, green, blue = colormap(np.linspace(0, 1, 50))[:, :3].T
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
        return predict_scalar(model, X, kind, MIDDLE)

    return np.stack([(scalar(points() + h) - scalar(points() - h)) / (2 * STEP) for h in STEP * np.eye(2)], axis=1)


def rotated(vectors) -> np.ndarray:
    """(∂₁, ∂₂) ↦ (∂₂, −∂₁)."""
    return np.stack([vectors[:, 1], -vectors[:, 0]], axis=1)


def test_potential_of_curl_free_model_has_mean_as_gradient():
    model = plot_cases.field("curl_free")
    np.testing.assert_allclose(gradient(model, "potential"), predict_field(model, points()).mean, atol=DIFFERENCES)
    assert abs(model.scaling_.output_offset).max() > 0.1  # the constant is in it
    assert predict_scalar(model, MIDDLE[None], "potential", MIDDLE).item() == pytest.approx(0, abs=1e-9)


def test_stream_function_of_divergence_free_model_has_mean_as_rotated_gradient():
    model = plot_cases.field("divergence_free")
    found = rotated(gradient(model, "stream_function"))
    np.testing.assert_allclose(found, predict_field(model, points()).mean, atol=DIFFERENCES)


def test_scalars_of_helmholtz_model_give_both_parts():
    model = plot_cases.field("helmholtz")
    curl, div = gradient(model, "potential"), rotated(gradient(model, "stream_function"))
    parts = model.components(as_inputs(model, points()))
    for found, name in ((curl, "curl_free"), (div, "divergence_free")):
        np.testing.assert_allclose(found, parts[name], atol=DIFFERENCES)
    np.testing.assert_allclose(curl + div, predict_field(model, points()).mean, atol=DIFFERENCES)


def test_predict_scalar_supports_features_and_draws():
    X, Y = plot_cases.field_table(20)
    featured = ovkgp.ORFFRidge("curl_free", lam=0.1, num_frequencies=30, lengthscale=60.0, random_state=0).fit(X, Y)
    np.testing.assert_allclose(
        gradient(featured, "potential"), predict_field(featured, points()).mean, atol=DIFFERENCES
    )
    model = deepcopy(plot_cases.field("curl_free"))
    raw = {name: torch.stack([value.detach()] * 3) for name, value in model.gp_.named_parameters()}
    raw["mean.constant"] += torch.arange(3.0).unsqueeze(-1)
    raw["kernel.raw_outputscale"] += torch.arange(3.0)
    data = model.posterior_.data
    model.posterior_ = model.gp_.condition(data.X, data.Y, hyperparameters=raw)
    np.testing.assert_allclose(gradient(model, "potential"), predict_field(model, points()).mean, atol=DIFFERENCES)


def test_predict_field_std_is_latent():
    model = plot_cases.field()
    _, std = model.predict(plot_cases.pd.DataFrame(points(), columns=["east", "north"]), return_std=True, noise=False)
    np.testing.assert_allclose(predict_field(model, points()).std, np.sqrt((std**2).mean(1)))


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("curl_free", "stream_function"),
        ("divergence_free", "potential"),
        ("decomposable", "potential"),
        ("independent", "potential"),
    ],
)
def test_predict_scalar_rejects_other_kernels(kernel, kind):
    with pytest.raises(OptionError, match=f"{kind}.*helmholtz"):
        predict_scalar(plot_cases.field(kernel), points(), kind, MIDDLE)
