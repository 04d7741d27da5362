import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ovkgp
from ovkgp.plotting.report import figures as regression_pictures
from ovkgp.plotting.report.evaluation_data import predicted, report_rows
from ovkgp.plotting.report.figures import most_relevant, panels, table_pictures
from ovkgp.plotting.report.sections import Picture


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are not drawn: what would be is in `plots`."""
    plots = []

    def note(plot, alt, caption):
        plots.append((plot.func.__name__, plot.keywords))
        return Picture("", alt, caption, 1, 1)

    monkeypatch.setattr(regression_pictures, "drawn", note)
    return plots


def names_of(model, undrawn, *rows):
    rows = report_rows(model, *rows)
    list(table_pictures(model, rows, predicted(model, rows)))
    return [name for name, _ in undrawn]


def test_one_input_has_bands_entries_left_out_and_correlations(coupled, undrawn):
    assert names_of(coupled, undrawn) == ["plot_prediction", "plot_leave_one_out", "plot_output_correlations"]


def test_a_field_is_drawn_as_one_with_what_lies_behind(field, undrawn):
    assert names_of(field, undrawn) == ["plot_field", "plot_field", "plot_leave_one_out"]
    assert undrawn[1][1]["shade"] == "stream_function"


def test_two_outputs_in_the_plane_that_are_no_field_have_bands_too(undrawn):
    X = np.random.default_rng(0).uniform(-1, 1, (12, 2))
    names = names_of(ovkgp.OVKRidge(lam=0.1).fit(X, X), undrawn)
    assert names == ["plot_field", "plot_prediction", "plot_leave_one_out"]  # independent outputs have no correlations


def test_rows_given_have_residuals(ridge, features, undrawn):
    X = np.linspace(0, 6, 5)[:, None]
    for model in (ridge, features):
        undrawn.clear()
        assert "plot_residuals" in names_of(model, undrawn, X, np.ones((5, 3)))


def test_a_lengthscale_for_each_input_shows_which_matter(mixed, undrawn):
    assert names_of(mixed, undrawn)[-1] == "plot_relevance"


def test_means_alone_are_held_against_observations(undrawn):
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.ConstrainedORFF(num_frequencies=5, tolerance=0.1, random_state=0).fit(X, X)
    assert names_of(model, undrawn, X, X) == ["draw_observed"]


def test_bands_run_along_the_input_that_matters_most(undrawn):
    X = np.random.default_rng(0).uniform(-1, 1, (30, 3))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.sin(3 * X[:, 2]))
    assert most_relevant(model, report_rows(model)) == 2
    names_of(model, undrawn)
    assert undrawn[0][1]["along"] == 2


def test_an_output_that_the_rows_given_do_not_show_has_no_say():
    X = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    model = ovkgp.OVKRidge(lam=1e-3).fit(X, np.column_stack([np.sin(3 * X[:, 0]), 9 * np.sin(3 * X[:, 1])]))
    rows = report_rows(model, X, np.column_stack([np.sin(3 * X[:, 0]), np.full(30, np.nan)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert most_relevant(model, rows) == 0


def test_of_many_outputs_nine_are_drawn():
    seen = []

    def plot(estimator, X, Y, *, output):
        seen.extend(output)
        return plt.subplots()[1]

    X = np.linspace(0, 1, 6)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.tile(X, 11))
    picture = panels(plot, model, (None, None), "alt", "Caption.")
    assert seen == list(range(9)) and picture.caption == "Caption. The first 9 of 11 outputs." and not plt.get_fignums()
