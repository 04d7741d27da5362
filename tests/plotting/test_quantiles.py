"""Fans of quantiles: the curves are those of the estimator, and the bands between them darken towards the median."""

import numpy as np
import plot_cases
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_quantiles

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def curves(axes) -> np.ndarray:
    """The quantiles (m, q), sorted at each point; dots are left out."""
    return np.sort([line.get_ydata() for line in axes.get_lines() if line.get_label() != "data"], axis=0).T


def test_curves_of_all_quantiles():
    model, levels = plot_cases.quantile_model(), [0.9, 0.5, 0.1]
    axes = plot_quantiles(model, levels=levels, num_points=15)
    x = axes.get_lines()[0].get_xdata()
    wanted = model.predict(plot_cases.pd.DataFrame({"age": x}), sorted(levels))
    np.testing.assert_allclose(curves(axes), wanted)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("age", "wage")
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["10 %, 90 %", "50 %", "data"]


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_curves_of_a_posterior_one_panel_an_output(make):
    panels = plot_quantiles(make(), num_points=15)
    x = panels[0].get_lines()[0].get_xdata()
    wanted = make().predict_quantiles(plot_cases.pd.DataFrame({"hour of the day": x}), [0.05, 0.25, 0.5, 0.75, 0.95])
    for a, axes in enumerate(panels):
        np.testing.assert_allclose(curves(axes), wanted[:, a])


def test_the_median_is_the_only_solid_line_and_bands_darken_inwards():
    axes = plot_quantiles(plot_cases.one_output(), num_points=9)
    styles = {line.get_label(): line.get_linestyle() for line in axes.get_lines()}
    assert [name for name, dash in styles.items() if dash == "-"] == ["50 %"]
    outer, inner = (band.get_facecolor()[0, :3].mean() for band in axes.collections)
    assert inner < outer


def test_the_given_axes_are_used_for_one_output():
    axes = Figure().subplots()
    assert plot_quantiles(plot_cases.two_outputs(), output=1, num_points=9, ax=axes) is axes


def test_bad_input_says_what_to_do():
    with pytest.raises(NotFittedError):
        plot_quantiles(ovkgp.InfiniteQuantileRegressor())
    for levels in ([0.0, 0.5], [1.5], []):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            plot_quantiles(plot_cases.quantile_model(), levels=levels)
    with pytest.raises(OptionError, match="plot_quantiles draws"):
        plot_quantiles(ovkgp.InfiniteOneClassSVM(nu=0.2).fit(np.linspace(0, 1, 9)[:, None]))
    X = np.linspace(0, 1, 20)[:, None]
    finite = ovkgp.InfiniteQuantileRegressor(coupling="joint", lengthscale=0.5, lam=0.1, tol=1e-2).fit(X, X[:, 0])
    with pytest.raises(InputError, match="only the levels"):
        plot_quantiles(finite, levels=[0.2])
