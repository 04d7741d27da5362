import numpy as np
import pytest

import ovkgp
import ovkgp.plotting.report.figures as pictures_module
from ovkgp.plotting.report import figures as regression_pictures
from ovkgp.plotting.report.evaluation_data import report_rows
from ovkgp.plotting.report.figures import fit_pictures, knows_inputs, trace_pictures
from ovkgp.plotting.report.sections import Picture


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    """Pictures are not drawn, only their words are made."""
    for module in (pictures_module, regression_pictures):
        monkeypatch.setattr(module, "drawn", lambda plot, alt, caption: Picture("", alt, caption, 1, 1))


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
