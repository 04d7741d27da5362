"""Windows of past and known future values: a slow oracle, alignment of stamps, gaps, and absence of leakage."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

from ovkgp.datasets import make_wind_farm
from ovkgp.estimators.series.forecast_windows import ForecastWindows
from ovkgp.exceptions import InputError, OptionError

T = 40


@pytest.fixture
def farm():
    return make_wind_farm(T, random_state=0)


def slow_row(measured, predicted, t, lags, horizon, before, after):
    """Return the inputs of origin t by their definition, from rows every 10 minutes."""
    past = [measured[name].iloc[t - k] for name in measured for k in range(lags)]
    future = predicted.reindex(pd.date_range(measured.index[0], predicted.index[-1], freq="10min")).interpolate()
    return [*past, *(future[name].iloc[t + k] for name in predicted for k in range(1 - before, horizon + after + 1))]


@pytest.mark.parametrize(("lags", "horizons", "before", "after"), [(18, 6, 9, 9), (3, 2, 0, 0), (1, 1, 4, 1)])
def test_windows_agree_with_their_definition_bo_130(farm, lags, horizons, before, after):
    windows = ForecastWindows(horizons, lags, before=before, after=after).fit(*farm)
    X = windows.transform(*farm)
    first = max(lags - 1, before - 1)
    for t in (first, first + 5, T - 1):
        expected = slow_row(*farm, t, lags, horizons, before, after)
        np.testing.assert_allclose(X.loc[farm.measured.index[t]], expected)
    assert X.index[-1] == farm.measured.index[-1] and len(X) == T - lags + 1
    assert list(X) == list(windows.get_feature_names_out()) and len(windows.groups_) == X.shape[1]
    names = ["speed", "power", "forecast direction", "pressure"]
    assert [np.sum(windows.groups_ == name) for name in names] == [lags, lags] + [before + horizons + after] * 2


def test_first_output_is_the_next_step_bo_e_41(farm):
    """The thesis prints y_{t+1+m}, m = 1, 2, …, which omits the step that follows the origin."""
    X, Y = ForecastWindows(horizons=3, lags=2).fit(farm.measured).make_pairs(farm.measured)
    speed = farm.measured["speed"]
    assert list(Y) == ["speed[t+1]", "speed[t+2]", "speed[t+3]"] and len(Y) == T - 4
    for t in (1, 20, T - 4):
        stamp = farm.measured.index[t]
        np.testing.assert_array_equal(Y.loc[stamp], speed.iloc[t + 1 : t + 4])
        assert X.loc[stamp, "speed[t]"] == speed.iloc[t] and X.columns[0] == "speed[t]"


def test_windows_of_selected_horizons_and_targets(farm):
    windows = ForecastWindows(horizons=[1, 5], lags=2, target="power", before=0, after=0)
    X, Y = windows.fit(*farm).make_pairs(*farm)
    assert list(Y) == ["power[t+1]", "power[t+5]"] and X.columns[0] == "power[t]"
    assert X.columns[-5:].tolist() == [f"pressure[t+{k}]" for k in range(1, 6)]
    assert ForecastWindows(target=1).fit(farm.measured).target_ == "power"


def test_directions_become_cosines_and_sines(farm):
    windows = ForecastWindows(2, 3, before=0, after=0, directions=["direction", "forecast direction"]).fit(*farm)
    X = windows.transform(*farm)
    angle = np.deg2rad(farm.measured["direction"].iloc[-1])
    assert X["cos direction[t]"].iloc[-1] == pytest.approx(np.cos(angle))
    assert X["sin direction[t]"].iloc[-1] == pytest.approx(np.sin(angle))
    assert np.sum(windows.groups_ == "direction") == 6 and "direction[t]" not in X
    assert np.sum(windows.groups_ == "forecast direction") == 4


def test_inputs_do_not_depend_on_later_rows(farm):
    windows = ForecastWindows(2, 3, before=1, after=1).fit(*farm)
    X = windows.transform(*farm)
    changed = farm.measured.copy()
    changed.iloc[25:] = np.random.default_rng(0).permutation(changed.iloc[25:].to_numpy())
    later = windows.transform(changed, farm.predicted)
    origins = farm.measured.index[24]
    pd.testing.assert_frame_equal(X[:origins], later[:origins])
    assert not X.equals(later)
    # the last origin needs no row after it
    pd.testing.assert_frame_equal(windows.transform(farm.measured[:25], farm.predicted), X[:origins])


def test_windows_of_arrays():
    series, known = np.arange(12.0)[:, None] * [1, 10], np.arange(14.0) * 100
    X, Y = ForecastWindows(2, 2, before=1, after=0).fit(series, known).make_pairs(series, known)
    assert list(X) == ["y0[t]", "y0[t-1]", "y1[t]", "y1[t-1]", "u0[t]", "u0[t+1]", "u0[t+2]"]
    np.testing.assert_array_equal(X.loc[3], [3, 2, 30, 20, 300, 400, 500])
    np.testing.assert_array_equal(Y.loc[3], [4, 5])
    shorter = ForecastWindows(2, 2, before=1, after=0).fit(series, known).transform(series, known[:13])
    assert np.isnan(shorter.iloc[-1, -1]) and not shorter.iloc[:-1].isna().to_numpy().any()


def test_pairs_omit_origins_with_missing_inputs(farm):
    measured = farm.measured.drop(farm.measured.index[20])  # a gap
    X, Y = ForecastWindows(2, 3).fit(measured).make_pairs(measured)
    missing = farm.measured.index[20:23]
    assert not X.index.isin(missing).any() and len(X) == T - 4 - 3
    assert Y.isna().sum().tolist() == [1, 1] and np.isnan(Y.loc[farm.measured.index[19], "speed[t+1]"])
    with pytest.raises(InputError, match="No origin has complete windows"):
        ForecastWindows(2, 3).fit(measured).make_pairs(measured.assign(power=np.nan))


def test_windows_serve_regressors():
    t = np.arange(200.0)
    series = pd.Series(np.sin(t / 5), name="y")
    windows = ForecastWindows(3, 2).fit(series)
    X, Y = windows.make_pairs(series[:150])
    later, actual = windows.make_pairs(series[150:])
    np.testing.assert_allclose(LinearRegression().fit(X, Y).predict(later), actual, atol=1e-10)
    assert clone(windows).get_params() == windows.get_params()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizons": 0}, "horizons"),
        ({"horizons": [0, 1]}, "horizons"),
        ({"horizons": []}, "horizons"),
        ({"lags": 0}, "lags"),
        ({"target": "wind"}, "target must be one of"),
        ({"target": 4}, "target must be less than 4"),
        ({"target": "direction", "directions": ["direction"]}, "must not be a direction"),
        ({"directions": ["wind"]}, "directions must be columns"),
        ({"directions": "direction"}, "directions"),
    ],
)
def test_windows_reject_invalid_options(farm, options, message):
    with pytest.raises(OptionError, match=message):
        ForecastWindows(**options).fit(*farm)


def test_windows_reject_invalid_data(farm):
    windows = ForecastWindows(2, 3).fit(*farm)
    with pytest.raises(InputError, match="exogenous must be passed"):
        windows.transform(farm.measured)
    with pytest.raises(InputError, match="at least 3 rows"):
        windows.transform(farm.measured[:2], farm.predicted)
    with pytest.raises(InputError, match="distinct stamps"):
        windows.transform(farm.measured, pd.concat([farm.predicted, farm.predicted[:1]]))
    with pytest.raises(InputError, match="at least 5 rows"):
        windows.make_pairs(farm.measured[:4], farm.predicted)
    with pytest.raises(InputError, match="not be passed"):
        ForecastWindows().fit(farm.measured).transform(*farm)
