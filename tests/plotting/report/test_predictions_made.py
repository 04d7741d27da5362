import numpy as np
import pytest

import ovkgp
from ovkgp.criticism import kept_rows
from ovkgp.plotting.report.calibration import calibration
from ovkgp.plotting.report.evaluation_data import are_of_fit, predicted, report_rows


def test_kept_entries_are_left_out_one_at_a_time(ridge, waves):
    X, Y = waves
    found = predicted(ridge, report_rows(ridge))
    assert found.rows == (None, None) and found.how == "Left out one at a time"
    # without the entry, with the same kernel, noise and intercept
    without = Y.copy()
    without.iloc[3, 0] = np.nan
    offset = ridge.scaling_.output_offset
    same = ovkgp.OVKRidge(ridge.gp_.kernel, lam=ridge.lam_).fit(X, without - offset)
    assert found.law.mean[3, 0] == pytest.approx(same.predict(X.iloc[[3]])[0, 0] + offset[0], rel=1e-6)


def test_rows_given_are_predicted(ridge, features):
    X, Y = np.linspace(0, 6, 7)[:, None], np.ones((7, 3))
    for model in (ridge, features):
        rows = report_rows(model, X, Y)
        found = predicted(model, rows)
        assert found.how == "On the rows given" and found.rows[0] is rows.X
        np.testing.assert_allclose(found.law.mean, model.predict(rows.X))
    assert (
        "If these rows are those of the fit" in found.caution and not predicted(ridge, report_rows(ridge, X, Y)).caution
    )


def test_rows_of_the_fit_are_recognised_and_left_out(ridge, waves):
    X, Y = waves
    shuffled = report_rows(ridge, X[::-1], Y[::-1])
    assert are_of_fit(ridge, shuffled).all()
    found = predicted(ridge, shuffled)
    assert found.rows == (None, None) and "are those of the fit" in found.how
    assert not are_of_fit(ridge, report_rows(ridge, X, Y + 1.0)).any()


def test_rows_of_the_fit_are_recognised_where_cells_were_emptied(ridge, waves):
    X, Y = waves
    emptied = Y.copy()
    emptied.iloc[:, 0] = np.nan
    emptied.iloc[::2, 1] = np.nan
    seen = emptied.notna().any(axis=1)
    assert (are_of_fit(ridge, report_rows(ridge, X, emptied)) == seen).all()
    assert not are_of_fit(ridge, report_rows(ridge, X, emptied + 1)).any()


def test_fresh_rows_are_judged_without_the_rows_of_the_fit_among_them():
    X = np.linspace(0, 6, 78)[:, None]
    Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * np.random.default_rng(0).normal(size=(78, 2))
    model = ovkgp.OVKRidge(lam=0.01).fit(X[:40], Y[:40])
    rows = report_rows(model, X, Y + 50.0 * (np.arange(78) >= 40)[:, None])
    found = predicted(model, rows)
    assert are_of_fit(model, rows).sum() == 40 and found.law.Y.shape == (38, 2) and (found.explained < 0).all()
    assert found.how == "Of the 78 rows given, 40 were rows of the fit and are left out. On the other 38 rows"
    assert found.which == "the other 38 rows given" and not found.caution
    np.testing.assert_array_equal(found.rows[0], X[40:])
    overall = calibration(model, rows, found).judgements[0]
    assert overall.held == 0 and overall.total == 76 and overall.is_good is False


def test_rows_without_observations_are_not_fresh(ridge, waves):
    X, Y = (np.asarray(part) for part in waves)
    rows = report_rows(ridge, np.vstack([X, [[3.0]]]), np.vstack([Y, [[np.nan] * 3]]))
    found = predicted(ridge, rows)
    assert found.rows == (None, None) and found.how.startswith("The rows given that have observations are those of the")


def test_rows_of_the_fit_that_cannot_be_left_out_are_recognised_too(quantiles):
    X, y = kept_rows(quantiles)
    assert "are those of the fit" in predicted(quantiles, report_rows(quantiles, X, y)).caution
    found = predicted(quantiles, report_rows(quantiles, np.vstack([X[:1], X + 0.01]), np.vstack([y[:1], y])))
    assert found.law.Y.shape == (40, 1) and not found.caution
    assert found.how == "Of the 41 rows given, 1 was a row of the fit and is left out. On the other 40 rows"


def test_the_share_that_is_explained(ridge):
    found = predicted(ridge, report_rows(ridge))
    for a in range(3):
        seen = np.isfinite(found.law.Y[:, a])
        y, mean = found.law.Y[seen, a], found.law.mean[seen, a]
        assert found.explained[a] == pytest.approx(1 - ((y - mean) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def test_a_constant_output_has_no_share():
    X = np.linspace(0, 1, 9)[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, np.hstack([X, np.ones_like(X)]))
    explained = predicted(model, report_rows(model)).explained
    assert np.isfinite(explained[0]) and np.isnan(explained[1])


def test_nothing_can_be_said_without_rows_or_laws(features, quantiles, trees, levels, mixed):
    for model in (features, mixed):
        assert predicted(model, None) is None
    for model in (quantiles, trees[0], levels[0]):
        assert predicted(model, report_rows(model)) is None
    X = np.linspace(0, 6, 4)[:, None]
    assert predicted(features, report_rows(features, X, np.full((4, 3), np.nan))) is None


def test_quantiles_are_judged_on_rows_given(quantiles):
    X = np.random.default_rng(1).uniform(0, 3, (8, 2))
    found = predicted(quantiles, report_rows(quantiles, X, np.sin(X[:, 0])))
    assert found.law.pit().shape == (8, 1)
