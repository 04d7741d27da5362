import matplotlib.pyplot as plt
import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report import figures as class_pictures
from ovkgp.plotting.report.evaluation_data import kept, report_rows


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
