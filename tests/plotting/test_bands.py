"""Bands along a cut: shapes, and which estimators have them."""

import numpy as np
import plot_cases
import pytest

import ovkgp
from ovkgp.exceptions import OptionError
from ovkgp.plotting.slices import Bands, require_posterior

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def test_outputs_that_were_one_dimensional_have_one_column():
    bands = Bands.of(plot_cases.one_output(), np.linspace(10, 16, 5)[:, None], 0.9, True, 2)
    assert bands.mean.shape == bands.lower.shape == bands.upper.shape == (5, 1)
    assert bands.draws.shape == (2, 5, 1) and bands.kinds == ["real"]
    assert (bands.lower < bands.mean).all() and (bands.mean < bands.upper).all()


def test_of_several_kinds_each_has_its_own_band():
    points = np.linspace(0, 6, 5)[:, None]
    bands = Bands.of(plot_cases.mixed(), points, 0.9, True, 0)
    lower, _ = plot_cases.mixed().predict_interval(points, 0.9)
    np.testing.assert_array_equal(bands.lower[:, 1:], lower[:, 1:])
    assert ((bands.lower[:, 0] > lower[:, 0]) & (bands.upper[:, 0] < 1)).all()
    latent = Bands.of(plot_cases.mixed(), points, 0.9, False, 0)
    np.testing.assert_array_equal(latent.upper, plot_cases.mixed().predict_interval(points, 0.9, noise=False)[1])


def test_only_posteriors_have_bands():
    for model in (plot_cases.two_outputs(), ovkgp.OVKRidge(), ovkgp.ORFFRidge()):
        require_posterior(model, "plot_prediction")
    with pytest.raises(OptionError, match=r"plot_prediction draws the posterior .* got InfiniteQuantileRegressor"):
        require_posterior(plot_cases.quantile_model(), "plot_prediction")
