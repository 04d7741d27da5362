"""Tests of `ovkgp.plotting.curves`."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from ovkgp.exceptions import InputError, OptionError, SmoothnessError
from ovkgp.functional import BSplines, Fourier, FunctionalData, TensorProduct, Wavelets
from ovkgp.plotting import plot_basis, plot_curves, plot_loss_shapes

pytestmark = pytest.mark.filterwarnings("error")
T = np.linspace(0, 1, 20)
Y = np.sin(5 * T) + np.random.default_rng(0).standard_normal((7, 1))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_plot_curves_shows_data_mean_and_band():
    mean = Y.mean(0)
    axes = plot_curves(FunctionalData(Y, T), mean, mean - 1, mean + 1, level=0.9)
    lines = axes.get_lines()
    assert len(lines) == 8 and np.array_equal(lines[2].get_ydata(), Y[2])
    assert np.array_equal(lines[-1].get_ydata(), mean)
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() == pytest.approx((mean - 1).min())
    texts = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert texts == ["curves", "90 % band", "mean"]
    axes.figure.canvas.draw()


def test_plot_curves_estimates_the_mean_of_ragged_curves():
    data = FunctionalData([Y[0, :5], Y[1, 3:]], [T[:5], T[3:]])
    axes = plot_curves(data, ax=Figure().subplots())
    assert np.allclose(axes.get_lines()[-1].get_ydata(), data.fit_mean()(T)[:, 0])
    assert len(plot_curves(data, None, ax=Figure().subplots()).get_lines()) == 2


def test_plot_curves_has_a_panel_per_channel_or_prediction():
    channels = FunctionalData(np.stack([Y, -Y], -1), T, channel_names=["u", "v"])
    both = plot_curves(channels)
    assert [axes.get_ylabel() for axes in both] == ["u", "v"]
    each = plot_curves(Y, Y + 0.1, Y - 1, Y + 1)
    assert len(each) == 7 and np.array_equal(each[3].get_lines()[1].get_ydata(), Y[3])
    assert np.allclose(each[3].get_lines()[0].get_ydata(), Y[3] + 0.1)
    assert len(plot_curves(np.repeat(Y, 4, 0), None, max_curves=5, ax=Figure().subplots()).get_lines()) == 5


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mean": "median"}, OptionError),
        ({"mean": np.zeros(3)}, InputError),
        ({"mean": np.zeros(20), "lower": np.zeros(20)}, InputError),
        ({"mean": np.zeros(20), "lower": np.zeros(3), "upper": np.zeros(3)}, InputError),
    ],
)
def test_plot_curves_rejects_invalid_arguments(options, error):
    with pytest.raises(error):
        plot_curves(FunctionalData(Y, T), **options)
    with pytest.raises(InputError, match="dimension"):
        plot_curves(FunctionalData(np.zeros((1, 3)), np.eye(3)[:, :2]))


def test_plot_basis_shows_functions_and_derivatives():
    fourier = Fourier(2)
    axes = plot_basis(fourier, [0, 2])
    t = axes.get_lines()[0].get_xdata()
    assert np.allclose(axes.get_lines()[1].get_ydata(), fourier(t)[:, 2])
    slopes = plot_basis(fourier, order=1, ax=Figure().subplots())
    assert np.allclose(slopes.get_lines()[1].get_ydata(), fourier.derivative(t)[:, 1])
    assert len(plot_basis(BSplines(12), ax=Figure().subplots()).get_lines()) == 12


def test_plot_basis_shows_surfaces():
    panels = plot_basis(TensorProduct(Fourier(2), BSplines(4)), [1, 5])
    assert len(panels) == 2
    panels[0].figure.canvas.draw()
    assert len(plot_basis(TensorProduct(Fourier(2), BSplines(4)))) == 9


def test_plot_basis_rejects_invalid_arguments():
    with pytest.raises(InputError, match="indices"):
        plot_basis(Fourier(2), [5])
    with pytest.raises(InputError, match="Dictionary"):
        plot_basis("fourier")
    with pytest.raises(SmoothnessError):
        plot_basis(Wavelets(2), order=1)


@pytest.mark.parametrize("loss", ["huber", "insensitive"])
def test_bo_121_plot_loss_shapes_draws_level_sets_per_order(loss):
    """Level sets of p = 2 are circles; of the insensitive loss with p = ∞, squares with rounded corners, and 0 in the middle."""
    panels = plot_loss_shapes(loss, (1, 1.5, 2, math.inf), 1.0, limit=4.0)
    assert [axes.get_title() for axes in panels] == ["p = 1", "p = 1.5", "p = 2", "p = ∞"]
    circle, square = (axes.collections[0].get_paths()[3].vertices for axes in (panels[2], panels[3]))
    radii = np.hypot(*circle.T)
    assert np.ptp(radii) < 0.02 * radii.mean()
    assert np.ptp(np.hypot(*square.T)) > 0.1
    panels[0].figure.canvas.draw()


def test_plot_loss_shapes_rejects_invalid_options():
    for options in ({"loss": "square"}, {"orders": []}, {"orders": [0.5]}, {"parameter": -1.0}, {"limit": 0.0}):
        with pytest.raises(OptionError):
            plot_loss_shapes(**options)
