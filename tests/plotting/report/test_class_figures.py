"""Tests of `ovkgp.plotting.report.class_figures`."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report import class_figures
from ovkgp.plotting.report.evaluation_data import collect_rows, get_training_rows


def names_of(axes):
    """Texts of all legends of a figure."""
    legends = [*axes.figure.legends, *([axes.get_legend()] if axes.get_legend() else [])]
    return {text.get_text() for legend in legends for text in legend.get_texts()}


def test_draw_roc_matches_classifier(costs):
    model, X, labels = costs
    axes = class_figures.draw_roc(model, collect_rows(model, X, labels))
    curve = model.roc_curve(X, labels)
    line = next(line for line in axes.get_lines() if line.get_label() == "all costs")
    np.testing.assert_allclose(line.get_xydata(), np.column_stack([1 - curve.specificity, curve.sensitivity]))
    assert {"chance", "cost -0.8", "cost 0", "cost 0.8"} <= names_of(axes)


def test_draw_cost_map_shows_costs_and_classes(costs):
    model = costs[0]
    axes = class_figures.draw_cost_map(model, get_training_rows(model))
    assert {"class no", "class yes", "cost 0"} <= names_of(axes)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("input 0", "input 1")


def test_draw_class_map_names_classes(trees):
    model = trees[0]
    axes = class_figures.draw_class_map(model, get_training_rows(model))
    assert names_of(axes) == {"class ash", "class birch", "class cedar"}


def test_draw_class_map_supports_many_classes():
    X = np.random.default_rng(0).normal(size=(24, 2)) + np.repeat(np.arange(8), 3)[:, None]
    model = ovkgp.SimplexClassifier(lam=0.1, cv=2).fit(X, np.repeat(np.arange(8), 3))
    assert len(names_of(class_figures.draw_class_map(model, get_training_rows(model)))) == 8


def test_draw_confusion_counts_rows(trees):
    model, X, labels = trees
    axes = class_figures.draw_confusion(model, collect_rows(model, X, labels))
    numbers = np.array([int(text.get_text()) for text in axes.texts]).reshape(3, 3)
    found = model.predict(X)
    wanted = [[np.sum((labels == a) & (found == b)) for b in model.classes_] for a in model.classes_]
    assert (numbers == wanted).all() and numbers.sum() == 30


def test_draw_level_scores_shows_fractions(levels):
    model, X = levels
    axes = class_figures.draw_level_scores(model, get_training_rows(model))
    heights = [patch.get_height() for patch in axes.patches]
    assert sum(heights) == pytest.approx(1.0)
    assert heights[0] == pytest.approx(np.mean(model.level_score(X) < 0.1))


def test_draw_level_sets_labels_inputs(levels):
    model = levels[0]
    assert class_figures.draw_level_sets(model, get_training_rows(model)).get_xlabel() == "input 0"


def test_draw_boundary_without_sign_change_does_not_warn(recwarn):
    axes, plane = plt.subplots()[1], np.meshgrid([0.0, 1.0], [0.0, 1.0])
    class_figures._draw_boundary(axes, plane, np.ones((2, 2)))
    assert not axes.collections and not recwarn.list
