"""Arrows point where the field does, on one scale, and fade where nothing is known."""

import numpy as np
import plot_cases
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ovkgp.exceptions import InputError
from ovkgp.plotting.axes import LINE
from ovkgp.plotting.fields import FAINTEST, FieldValues, draw_arrows, draw_data, draw_truth, opacity, true_vectors
from ovkgp.plotting.slices import Data

POINTS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 1.0]])
VALUES = FieldValues(np.array([[1.0, 0.0], [0.0, -1.0], [0.6, 0.8]]), np.array([0.0, 1.0, 100.0]))


def arrows(axes) -> list:
    return [part for part in axes.collections if hasattr(part, "U")]


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
