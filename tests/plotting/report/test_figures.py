"""Tests of `ovkgp.plotting.report.figures`."""

import base64
import io
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import ovkgp
from ovkgp.exceptions import InputError
from ovkgp.plotting.report import figures
from ovkgp.plotting.report.evaluation_data import collect_rows, predict_held_out
from ovkgp.plotting.report.figures import (
    FILE_DPI,
    encode_extra_figures,
    encode_figure,
    find_most_relevant_input,
    make_fit_figures,
    make_regression_figures,
    make_trace_figures,
    render_panels,
    render_plot,
)
from ovkgp.plotting.report.sections import ReportFigure


@pytest.fixture
def plots(monkeypatch):
    """Plots by name with their options, recorded but not drawn."""
    recorded = []

    def record(plot, alt, caption):
        recorded.append((plot.func.__name__, plot.keywords))
        return ReportFigure("", alt, caption, 1, 1)

    monkeypatch.setattr(figures, "render_plot", record)
    return recorded


def test_draw_observed_shows_entries(styles):
    model, X, Y = styles
    axes = figures.draw_observed(model, collect_rows(model, X, Y))
    dots = axes.get_lines()[-1]
    np.testing.assert_allclose(dots.get_ydata(), Y.ravel())
    np.testing.assert_allclose(dots.get_xdata(), model.predict(X).ravel())


def captions(model, *rows):
    return [one.caption for one in make_fit_figures(model, collect_rows(model, *rows), None)]


def test_figures_of_classifiers_show_maps_and_rates(trees, costs, plots):
    assert len(captions(trees[0])) == 2 and "too optimistic" in captions(trees[0])[1]
    model, X, labels = costs
    assert len(captions(model)) == 2 and captions(model, X, labels)[1].startswith("ROC curve on the given rows.")
    assert len(captions(model, X[:15], labels[:15])) == 1  # one class has no ROC curve


def test_figures_of_three_inputs_have_no_map(costs, plots):
    X = np.random.default_rng(0).normal(size=(20, 3))
    model = ovkgp.InfiniteCostSensitiveClassifier(lam=1e-2, num_tasks=4, random_state=0).fit(X, X[:, 0] > 0)
    assert len(captions(model)) == 1
    assert len(captions(ovkgp.InfiniteOneClassSVM(num_tasks=4).fit(X))) == 1


def test_figures_follow_target_type(levels, quantiles, styles, plots):
    assert len(captions(levels[0])) == 2
    assert captions(quantiles)[0].startswith("Quantiles of a new observation")
    assert captions(styles[0]) == ["Observed entries of the training rows against their predictions."]


def test_figures_support_finitely_many_quantiles(plots):
    X = np.linspace(0, 3, 20)[:, None]
    model = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.2, 0.8], lengthscale=1.0, lam=0.1).fit(
        X, X[:, 0]
    )
    assert len(captions(model)) == 1


def test_figures_require_input_range(features, plots):
    X = np.linspace(0, 3, 20)[:, None]
    bare = ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, random_state=0).fit(X, X)
    assert bare.input_range() is None and captions(bare) == []
    assert features.input_range() is not None and captions(bare, X, X)


def test_trace_figures_require_chains(chains, coupled, plots):
    assert len(make_trace_figures(chains)) == 1 and make_trace_figures(coupled) == ()


def test_figures_have_texts(levels, plots):
    for one in make_fit_figures(levels[0], collect_rows(levels[0]), None):
        assert len(one.alt) > 20 and one.alt.endswith(".") and one.caption.endswith(".")


def decode(figure):
    """Image of a data URI."""
    head, _, data = figure.source.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_encode_figure_makes_png_of_its_size():
    figure = encode_figure(Figure(figsize=(4, 3)), "what is observed", "what it means")
    assert decode(figure).size == (4 * FILE_DPI, 3 * FILE_DPI)
    assert (figure.alt, figure.caption, figure.width, figure.height) == (
        "what is observed",
        "what it means",
        320,
        240,
    )


def test_encode_figure_preserves_colors():
    figure = Figure(figsize=(2, 2))
    figure.add_axes((0, 0, 1, 1)).imshow(np.linspace(0, 1, 100).reshape(10, 10), cmap="viridis")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=FILE_DPI)
    full, small = (
        np.asarray(one.convert("RGB"), dtype=int) for one in (Image.open(buffer), decode(encode_figure(figure, "", "")))
    )
    assert np.abs(full - small).max() <= 8


@pytest.mark.parametrize("several", [False, True])
def test_render_plot_closes_figure(several):
    before = plt.get_fignums()
    render_plot(lambda: plt.subplots(1, 2)[1] if several else plt.subplots()[1], "", "")
    assert plt.get_fignums() == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_render_plot_closes_figures_on_errors(failure):
    mine = plt.figure()
    before = plt.get_fignums()

    def draw():
        plt.subplots()
        raise failure

    with pytest.raises(failure):
        render_plot(draw, "", "")
    assert plt.get_fignums() == before
    plt.close(mine)


def test_encode_extra_figures_keeps_figures_open():
    figure = plt.figure()
    (encoded,) = encode_extra_figures([("Mine", figure)])
    assert plt.fignum_exists(figure.number) and encoded.caption == encoded.alt == "Mine"
    plt.close(figure)


@pytest.mark.parametrize("wrong", [["caption"], [(Figure(), "caption")], [("one", Figure(), 3)], [Figure()]])
def test_encode_extra_figures_rejects_other_entries(wrong):
    with pytest.raises(InputError, match="pairs"):
        encode_extra_figures(wrong)


def plot_names(model, plots, *rows):
    rows = collect_rows(model, *rows)
    list(make_regression_figures(model, rows, predict_held_out(model, rows)))
    return [name for name, _ in plots]


def test_regression_figures_of_one_input_show_prediction(coupled, plots):
    assert plot_names(coupled, plots) == [
        "plot_prediction",
        "plot_leave_one_out",
        "plot_output_correlations",
    ]


def test_regression_figures_of_field_show_background(field, plots):
    assert plot_names(field, plots) == ["plot_field", "plot_field", "plot_leave_one_out"]
    assert plots[1][1]["background"] == "stream_function"


def test_regression_figures_of_planar_outputs_show_field_and_prediction(plots):
    X = np.random.default_rng(0).uniform(-1, 1, (12, 2))
    names = plot_names(ovkgp.OVKRidge(lam=0.1).fit(X, X), plots)
    assert names == ["plot_field", "plot_prediction", "plot_leave_one_out"]  # independent outputs have no correlations


def test_regression_figures_of_given_rows_have_residuals(ridge, features, plots):
    X = np.linspace(0, 6, 5)[:, None]
    for model in (ridge, features):
        plots.clear()
        assert "plot_residuals" in plot_names(model, plots, X, np.ones((5, 3)))


def test_regression_figures_with_ard_have_relevance(mixed, plots):
    assert plot_names(mixed, plots)[-1] == "plot_relevance"


def test_regression_figures_without_posterior_show_observed_entries(plots):
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)
    assert plot_names(model, plots, X, X) == ["draw_observed"]


def test_prediction_figure_runs_along_most_relevant_input(plots):
    X = np.random.default_rng(0).uniform(-1, 1, (30, 3))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.sin(3 * X[:, 2]))
    assert find_most_relevant_input(model, collect_rows(model)) == 2
    plot_names(model, plots)
    assert plots[0][1]["along"] == 2


def test_most_relevant_input_ignores_unobserved_outputs():
    X = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.column_stack([np.sin(3 * X[:, 0]), 9 * np.sin(3 * X[:, 1])]))
    rows = collect_rows(model, X, np.column_stack([np.sin(3 * X[:, 0]), np.full(30, np.nan)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_most_relevant_input(model, rows) == 0


def test_render_panels_draws_nine_of_many_outputs():
    drawn = []

    def plot(estimator, X, Y, *, output):
        drawn.extend(output)
        return plt.subplots()[1]

    X = np.linspace(0, 1, 6)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.tile(X, 11))
    figure = render_panels(plot, model, (None, None), "alt", "Caption.")
    assert drawn == list(range(9)) and not plt.get_fignums()
    assert figure.caption == "Caption. The first 9 of 11 outputs."
