import numpy as np
import pandas as pd

import ovkgp
from ovkgp.plotting.report.calibration import judged
from ovkgp.plotting.report.evaluation_data import predicted, report_rows
from ovkgp.plotting.report.overview import default_title, verdict


def of(model, judgements=(), num_warnings=0):
    rows = report_rows(model)
    return verdict(model, "A model", rows, predicted(model, rows), judgements, num_warnings)


def test_a_title_has_the_names_of_columns(coupled, quantiles, trees, levels, styles):
    assert default_title(coupled) == "u, v and w over time"
    assert default_title(quantiles) == "1 output over 2 inputs"
    assert default_title(trees[0]) == "3 classes over 2 inputs"
    X, kinds = pd.DataFrame(trees[1], columns=["height", "girth"]), pd.Series(trees[2], name="tree")
    assert default_title(ovkgp.SimplexClassifier().fit(X, kinds)) == "tree (3 classes) over height and girth"
    rain = ovkgp.InfiniteQuantileRegressor(lengthscale=1.0, lam=0.1).fit(X, pd.Series(trees[1][:, 0], name="rain"))
    assert default_title(rain) == "rain over height and girth"
    assert default_title(levels[0]) == "Level sets over 2 inputs"
    assert default_title(styles[0]) == "6 outputs over 1 input"


def test_the_first_paragraph_says_what_how_well_and_whether_to_trust_it(ridge, waves):
    text = of(ridge, (judged(60, 60),), 2)
    assert f"A model, fitted to 1 input, 3 outputs and {waves[1].count().sum()} observed entries." in text
    explained = predicted(ridge, report_rows(ridge)).explained
    assert f"{100 * explained[0]:.0f} % ('u')" in text and text.endswith("Read the 2 warnings below.")
    assert judged(60, 60).sentence in text


def test_one_warning_and_none(levels):
    assert of(levels[0], num_warnings=1).endswith("Read the warning below.")
    assert of(levels[0]) == "A model, fitted to 2 inputs and 40 rows. There are no warnings."


def test_one_output_and_many():
    X = np.linspace(0, 6, 30)[:, None]
    Y = np.sin(X + np.arange(6))
    one, many = (ovkgp.OVKRidge(lam=0.01).fit(X, part) for part in (Y[:, :1], Y))
    assert "% of their variance explained" in of(one) and "('" not in of(one)
    assert of(many).count("('output") == 2  # the least and the most


def test_a_model_that_explains_nothing_says_none():
    X = np.linspace(0, 6, 30)[:, None]
    model = ovkgp.OVKRidge(lam=1e-6, lengthscale=0.01).fit(X, np.random.default_rng(0).normal(size=(30, 1)))
    assert "none of their variance explained" in of(model)


def test_classifiers_count_what_they_get_right(trees, costs):
    model, X, labels = trees
    assert f"{100 * np.mean(model.predict(X) == labels):.0f} % are assigned" in of(model)
    model, X, labels = costs
    assert f"is {model.roc_curve(X, labels).area:.3g}." in of(model)
