"""Fields in the plane: arrows, backgrounds with their words, and models that are no fields."""

import matplotlib.pyplot as plt
import numpy as np
import plot_cases
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_field
from ovkgp.plotting.fields import SHADED_POINTS, field_values, grid, scalar_behind

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
