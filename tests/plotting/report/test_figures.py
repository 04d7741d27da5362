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
import ovkgp.plotting.report.figures as pictures_module
from ovkgp.exceptions import InputError
from ovkgp.plotting.report import figures as class_pictures
from ovkgp.plotting.report import figures as regression_pictures
from ovkgp.plotting.report.evaluation_data import kept, predicted, report_rows
from ovkgp.plotting.report.figures import (
    DOTS,
    drawn,
    extra_pictures,
    fit_pictures,
    knows_inputs,
    most_relevant,
    panels,
    picture_of,
    table_pictures,
    trace_pictures,
)
from ovkgp.plotting.report.sections import ReportFigure


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def names_of(axes):
    """What the legends of a figure say."""
    legends = [*axes.figure.legends, *([axes.get_legend()] if axes.get_legend() else [])]
    return {text.get_text() for legend in legends for text in legend.get_texts()}


def test_the_curve_of_all_costs_is_that_of_the_classifier(costs):
    model, X, labels = costs
    axes = class_pictures.draw_roc(model, report_rows(model, X, labels))
    curve = model.roc_curve(X, labels)
    line = next(line for line in axes.get_lines() if line.get_label() == "all costs")
    np.testing.assert_allclose(line.get_xydata(), np.column_stack([1 - curve.specificity, curve.sensitivity]))
    assert {"guessing", "cost -0.8", "cost 0", "cost 0.8"} <= names_of(axes)


def test_borders_of_three_costs_and_points_of_both_classes(costs):
    model = costs[0]
    axes = class_pictures.draw_cost_map(model, kept(model))
    assert {"class no", "class yes", "cost 0"} <= names_of(axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("input 0", "input 1")


def test_a_map_of_classes_names_them(trees):
    model = trees[0]
    axes = class_pictures.draw_class_map(model, kept(model))
    assert names_of(axes) == {"class ash", "class birch", "class cedar"}


def test_classes_beyond_the_sixth_are_drawn_too():
    X = np.random.default_rng(0).normal(size=(24, 2)) + np.repeat(np.arange(8), 3)[:, None]
    model = ovkgp.SimplexClassifier(lam=0.1, cv=2).fit(X, np.repeat(np.arange(8), 3))
    assert len(names_of(class_pictures.draw_class_map(model, kept(model)))) == 8


def test_the_confusion_counts_every_row(trees):
    model, X, labels = trees
    axes = class_pictures.draw_confusion(model, report_rows(model, X, labels))
    numbers = np.array([int(text.get_text()) for text in axes.texts]).reshape(3, 3)
    found = model.predict(X)
    wanted = [[np.sum((labels == a) & (found == b)) for b in model.classes_] for a in model.classes_]
    assert (numbers == wanted).all() and numbers.sum() == 30


def test_scores_of_level_sets_are_shares_of_rows(levels):
    model, X = levels
    axes = class_pictures.draw_level_scores(model, kept(model))
    heights = [patch.get_height() for patch in axes.patches]
    assert sum(heights) == pytest.approx(1.0)
    assert heights[0] == pytest.approx(np.mean(model.level_score(X) < 0.1))
    assert class_pictures.draw_level_sets(model, kept(model)).get_xlabel() == "input 0"


def test_observed_against_predicted(styles):
    model, X, Y = styles
    axes = class_pictures.draw_observed(model, report_rows(model, X, Y))
    dots = axes.get_lines()[-1]
    np.testing.assert_allclose(dots.get_ydata(), Y.ravel())
    np.testing.assert_allclose(dots.get_xdata(), model.predict(X).ravel())


def test_a_border_that_is_nowhere_does_not_warn(recwarn):
    axes, plane = plt.subplots()[1], np.meshgrid([0.0, 1.0], [0.0, 1.0])
    class_pictures._draw_border(axes, plane, np.ones((2, 2)))
    assert not axes.collections and not recwarn.list


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Pictures are not drawn, only their words are made."""
    for module in (pictures_module, regression_pictures):
        monkeypatch.setattr(module, "drawn", lambda plot, alt, caption: ReportFigure("", alt, caption, 1, 1))


def captions(model, *rows):
    return [one.caption for one in fit_pictures(model, report_rows(model, *rows), None)]


def test_classifiers_have_maps_and_rates(trees, costs):
    assert len(captions(trees[0])) == 2 and "looks better" in captions(trees[0])[1]
    model, X, labels = costs
    assert len(captions(model)) == 2 and captions(model, X, labels)[1].endswith("On the rows given.")
    assert len(captions(model, X[:15], labels[:15])) == 1  # one class has no rates


def test_more_inputs_have_no_map(costs):
    X = np.random.default_rng(0).normal(size=(20, 3))
    model = ovkgp.InfiniteCostSensitiveClassifier(lam=1e-2, num_tasks=4, random_state=0).fit(X, X[:, 0] > 0)
    assert len(captions(model)) == 1
    assert len(captions(ovkgp.InfiniteOneClassSVM(num_tasks=4).fit(X))) == 1


def test_level_sets_quantiles_and_tasks(levels, quantiles, styles):
    assert len(captions(levels[0])) == 2
    assert captions(quantiles)[0].startswith("Quantiles of a new observation")
    assert captions(styles[0]) == ["Every observed entry of the rows of the fit against its prediction."]


def test_finitely_many_quantiles_are_drawn_at_their_levels():
    X = np.linspace(0, 3, 20)[:, None]
    model = ovkgp.InfiniteQuantileRegressor(coupling="joint", levels=[0.2, 0.8], lengthscale=1.0, lam=0.1).fit(
        X, X[:, 0]
    )
    assert len(captions(model)) == 1


def test_nobody_knows_where_the_inputs_of_bare_features_lie(features):
    X = np.linspace(0, 3, 20)[:, None]
    bare = ovkgp.ORFFRidge(lam=0.1, num_frequencies=5, random_state=0).fit(X, X)
    assert not knows_inputs(bare, None) and captions(bare) == []
    assert knows_inputs(features, None) and captions(bare, X, X)


def test_traces_are_those_of_chains(chains, coupled):
    assert len(trace_pictures(chains)) == 1 and trace_pictures(coupled) == ()


def test_every_picture_can_be_read_aloud(levels):
    for one in fit_pictures(levels[0], report_rows(levels[0]), None):
        assert len(one.alt) > 20 and one.alt.endswith(".") and one.caption.endswith(".")


def image_of(picture):
    """The picture behind a data URI."""
    head, _, data = picture.source.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_figure_becomes_a_png_of_its_size():
    picture = picture_of(Figure(figsize=(4, 3)), "what is observed", "what it means")
    assert image_of(picture).size == (4 * DOTS, 3 * DOTS)
    assert (picture.alt, picture.caption, picture.width, picture.height) == (
        "what is observed",
        "what it means",
        320,
        240,
    )


def test_few_colours_keep_the_picture():
    figure = Figure(figsize=(2, 2))
    figure.add_axes((0, 0, 1, 1)).imshow(np.linspace(0, 1, 100).reshape(10, 10), cmap="viridis")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS)
    full, small = (
        np.asarray(one.convert("RGB"), dtype=int) for one in (Image.open(buffer), image_of(picture_of(figure, "", "")))
    )
    assert np.abs(full - small).max() <= 8


@pytest.mark.parametrize("several", [False, True])
def test_what_is_drawn_is_closed(several):
    before = plt.get_fignums()
    drawn(lambda: plt.subplots(1, 2)[1] if several else plt.subplots()[1], "", "")
    assert plt.get_fignums() == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_what_was_opened_is_closed_where_drawing_fails(failure):
    mine = plt.figure()
    before = plt.get_fignums()

    def draw():
        plt.subplots()
        raise failure

    with pytest.raises(failure):
        drawn(draw, "", "")
    assert plt.get_fignums() == before
    plt.close(mine)


def test_figures_of_the_user_stay_open():
    figure = plt.figure()
    (picture,) = extra_pictures([("Mine", figure)])
    assert plt.fignum_exists(figure.number) and picture.caption == picture.alt == "Mine"
    plt.close(figure)


@pytest.mark.parametrize("wrong", [["caption"], [(Figure(), "caption")], [("one", Figure(), 3)], [Figure()]])
def test_what_is_no_pair_is_refused(wrong):
    with pytest.raises(InputError, match="pairs"):
        extra_pictures(wrong)


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are not drawn: what would be is in `plots`."""
    plots = []

    def note(plot, alt, caption):
        plots.append((plot.func.__name__, plot.keywords))
        return ReportFigure("", alt, caption, 1, 1)

    monkeypatch.setattr(regression_pictures, "drawn", note)
    return plots


def names_of_regression_pictures(model, undrawn, *rows):
    rows = report_rows(model, *rows)
    list(table_pictures(model, rows, predicted(model, rows)))
    return [name for name, _ in undrawn]


def test_one_input_has_bands_entries_left_out_and_correlations(coupled, undrawn):
    assert names_of_regression_pictures(coupled, undrawn) == [
        "plot_prediction",
        "plot_leave_one_out",
        "plot_output_correlations",
    ]


def test_a_field_is_drawn_as_one_with_what_lies_behind(field, undrawn):
    assert names_of_regression_pictures(field, undrawn) == ["plot_field", "plot_field", "plot_leave_one_out"]
    assert undrawn[1][1]["shade"] == "stream_function"


def test_two_outputs_in_the_plane_that_are_no_field_have_bands_too(undrawn):
    X = np.random.default_rng(0).uniform(-1, 1, (12, 2))
    names = names_of_regression_pictures(ovkgp.OVKRidge(lam=0.1).fit(X, X), undrawn)
    assert names == ["plot_field", "plot_prediction", "plot_leave_one_out"]  # independent outputs have no correlations


def test_rows_given_have_residuals(ridge, features, undrawn):
    X = np.linspace(0, 6, 5)[:, None]
    for model in (ridge, features):
        undrawn.clear()
        assert "plot_residuals" in names_of_regression_pictures(model, undrawn, X, np.ones((5, 3)))


def test_a_lengthscale_for_each_input_shows_which_matter(mixed, undrawn):
    assert names_of_regression_pictures(mixed, undrawn)[-1] == "plot_relevance"


def test_means_alone_are_held_against_observations(undrawn):
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)
    assert names_of_regression_pictures(model, undrawn, X, X) == ["draw_observed"]


def test_bands_run_along_the_input_that_matters_most(undrawn):
    X = np.random.default_rng(0).uniform(-1, 1, (30, 3))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.sin(3 * X[:, 2]))
    assert most_relevant(model, report_rows(model)) == 2
    names_of_regression_pictures(model, undrawn)
    assert undrawn[0][1]["along"] == 2


def test_an_output_that_the_rows_given_do_not_show_has_no_say():
    X = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.column_stack([np.sin(3 * X[:, 0]), 9 * np.sin(3 * X[:, 1])]))
    rows = report_rows(model, X, np.column_stack([np.sin(3 * X[:, 0]), np.full(30, np.nan)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert most_relevant(model, rows) == 0


def test_of_many_outputs_nine_are_drawn():
    observed = []

    def plot(estimator, X, Y, *, output):
        observed.extend(output)
        return plt.subplots()[1]

    X = np.linspace(0, 1, 6)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.tile(X, 11))
    picture = panels(plot, model, (None, None), "alt", "Caption.")
    assert (
        observed == list(range(9))
        and picture.caption == "Caption. The first 9 of 11 outputs."
        and not plt.get_fignums()
    )
