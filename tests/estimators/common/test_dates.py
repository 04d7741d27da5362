"""Tests of dates and durations in the tables of the estimators."""

import datetime

import numpy as np
import pandas as pd
import pytest

import ovkgp
from ovkgp.estimators.common.dates import from_days, to_days
from ovkgp.exceptions import InputError
from ovkgp.plotting import write_report

N = 40
UNITS = ("s", "ms", "us", "ns")
ESTIMATORS = {
    "exact": lambda: ovkgp.GPRegressor(random_state=0),
    "features": lambda: ovkgp.GPRegressor(approximation="orff", num_frequencies=30, random_state=0),
    "OVKRidge": lambda: ovkgp.OVKRidge(lam=0.1),
    "ORFFRidge": lambda: ovkgp.ORFFRidge(lam=0.1, num_frequencies=30, random_state=0),
    "ManifoldRidge": lambda: ovkgp.ManifoldRidge(num_neighbors=3, num_frequencies=30, random_state=0),
    "ONORMA": lambda: ovkgp.ONORMA(),
    "quantiles": lambda: ovkgp.InfiniteQuantileRegressor(lam=1e-3, num_tasks=5, random_state=0),
    "one class": lambda: ovkgp.InfiniteOneClassSVM(num_tasks=5, random_state=0),
    "cost": lambda: ovkgp.InfiniteCostSensitiveClassifier(num_tasks=5, random_state=0),
    "simplex": lambda: ovkgp.SimplexClassifier(random_state=0),
    "tasks": lambda: ovkgp.VectorTaskRegressor(),
}


def make_frame(unit: str = "ns", zone: str | None = None) -> pd.DataFrame:
    dates = pd.date_range("2024-01-05 03:00", periods=N, freq="37h", tz=zone).as_unit(unit)
    return pd.DataFrame({"when": dates, "x": np.random.default_rng(0).normal(size=N)})


def make_target() -> np.ndarray:
    return np.sin(np.arange(N) / 7) + 0.1 * np.random.default_rng(1).normal(size=N)


def fit(name: str, X):
    y = make_target()
    return ESTIMATORS[name]().fit(X, y > 0 if name in ("cost", "simplex") else y)


def evaluate(model, X) -> np.ndarray:
    if hasattr(model, "scores"):  # probabilities of separable classes are ill-conditioned
        return model.scores(X)
    return getattr(model, "decision_function", model.predict)(X)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_dates_predict_the_same_in_every_unit_and_after_loading(name, tmp_path):
    model = fit(name, make_frame("us"))
    expected = evaluate(model, make_frame("us"))
    days = (make_frame().when - make_frame().when.min()) / pd.Timedelta(days=1)
    np.testing.assert_allclose(
        expected, evaluate(fit(name, make_frame().assign(when=days)), make_frame().assign(when=days))
    )
    for unit in UNITS:
        np.testing.assert_array_equal(evaluate(model, make_frame(unit)), expected, err_msg=unit)
    np.testing.assert_array_equal(evaluate(model, make_frame().iloc[5:9]), evaluate(model, make_frame("s").iloc[5:9]))
    if name != "ONORMA":  # has no model file
        model.save(tmp_path / "model.ovkgp")
        loaded = ovkgp.load(tmp_path / "model.ovkgp")
        assert loaded.input_times_ == ["2024-01-05T03:00:00", None]
        np.testing.assert_allclose(evaluate(loaded, make_frame()), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_date_columns_reject_numbers_other_zones_and_missing_dates(name):
    model = fit(name, make_frame())
    with pytest.raises(
        InputError, match="Column 'when' of X must hold dates without a time zone, as in fit, got numbers"
    ):
        model.predict(make_frame().assign(when=1.0))
    with pytest.raises(InputError, match="got dates with a time zone"):
        model.predict(make_frame(zone="UTC"))
    with pytest.raises(InputError, match="NaN in row 3, column 'when'"):
        model.predict(make_frame().assign(when=make_frame().when.where(np.arange(N) != 3)))
    with pytest.raises(InputError, match="Column 'x' of X must hold numbers, as in fit, got dates"):
        model.predict(make_frame().assign(x=make_frame().when))


def test_arrays_of_dates_agree_with_frames():
    dates = make_frame().when.to_numpy().astype("M8[D]")[:, None]
    model = ovkgp.OVKRidge(lam=0.1).fit(dates, make_target())
    expected = model.predict(dates)
    for X in (dates.astype("M8[ns]"), dates.astype("M8[h]"), dates.astype(object), dates.tolist()):
        np.testing.assert_array_equal(model.predict(X), expected)
    X = np.column_stack([dates.astype(object), np.arange(N)])
    mixed = ovkgp.OVKRidge(lam=0.1).fit(X, make_target())
    assert mixed.input_times_ == ["2024-01-05T00:00:00", None]
    np.testing.assert_array_equal(mixed.predict(X), mixed.predict(X.tolist()))


def test_time_zones_are_the_same_instants():
    model = fit("OVKRidge", make_frame(zone="UTC"))
    elsewhere = make_frame(zone="UTC").assign(when=make_frame(zone="UTC").when.dt.tz_convert("Asia/Tokyo"))
    np.testing.assert_array_equal(model.predict(elsewhere), model.predict(make_frame(zone="UTC")))


@pytest.mark.parametrize("unit", UNITS)
def test_durations_are_days(unit):
    hours = np.arange(N)[:, None] * 7
    X = (hours * 3600).astype("m8[s]").astype(f"m8[{unit}]")
    model = ovkgp.OVKRidge(lam=0.1, lengthscale=1.0).fit(X, make_target())
    same = ovkgp.OVKRidge(lam=0.1, lengthscale=1.0).fit(hours / 24, make_target())
    np.testing.assert_allclose(model.predict(X), same.predict(hours / 24), rtol=1e-12)
    with pytest.raises(InputError, match="must hold durations, as in fit, got numbers"):
        model.predict(hours / 24)


def test_missing_dates_of_outputs_are_missing():
    Y = pd.DataFrame({"u": make_frame().when, "v": make_target()})
    Y.loc[3, "u"] = pd.NaT
    model = ovkgp.OVKRidge(lam=0.1).fit(make_frame()[["x"]], Y)
    days = Y.assign(u=(Y.u - Y.u.min()) / pd.Timedelta(days=1))
    same = ovkgp.OVKRidge(lam=0.1).fit(make_frame()[["x"]], days)
    assert np.isnan(days.u[3]) and model.output_times_ == ["2024-01-05T03:00:00", None]
    np.testing.assert_allclose(model.predict(make_frame()[["x"]]), same.predict(make_frame()[["x"]]))
    np.testing.assert_allclose(model.score(make_frame()[["x"]], Y), same.score(make_frame()[["x"]], days))
    with pytest.raises(InputError, match="Column 'u' of Y must hold dates"):
        model.score(make_frame()[["x"]], days)


def test_summary_states_days():
    summary = str(fit("exact", make_frame()).summary())
    assert "when (days since 2024-01-05T03:00:00)" in summary and "when (days)" in summary
    assert "when (days since 2024-01-05T03:00:00)" in str(fit("OVKRidge", make_frame()).summary())


def test_functions_and_paths_take_dates():
    model, X = fit("OVKRidge", make_frame()), make_frame()
    draws = model.sample_functions(2, random_state=0)
    np.testing.assert_array_equal(draws(X), draws(make_frame("s")))
    path = model.path(X, make_target(), [0.1, 1.0])
    np.testing.assert_allclose(path.predict(X)[0].ravel(), model.predict(X))
    with pytest.raises(InputError, match="must hold dates"):
        draws(X.assign(when=0.0))


def test_dates_of_chunks_count_from_the_first_chunk():
    X, y = make_frame(), make_target()
    chunks = [(X[20:], y[20:]), (X[:20].astype({"when": "M8[s]"}), y[:20])]
    model = ovkgp.GPRegressor(approximation="orff", num_frequencies=30, random_state=0).fit_stream(chunks)
    assert model.input_times_ == [str(X.when[20:].min().isoformat()), None]
    days = X.assign(when=(X.when - X.when[20:].min()) / pd.Timedelta(days=1))
    same = ovkgp.GPRegressor(approximation="orff", num_frequencies=30, random_state=0)
    same.fit_stream([(days[20:], y[20:]), (days[:20], y[:20])])
    np.testing.assert_allclose(model.predict(X), same.predict(days), rtol=1e-10)
    with pytest.raises(InputError, match="Chunk 1: Column when of X must hold dates"):
        model.fit_stream([chunks[0], (days[:20], y[:20])])


def test_partial_fit_keeps_the_first_origin():
    X, y = make_frame(), make_target()
    model = ovkgp.ORFFRidge(lam=0.1, num_frequencies=30, lengthscale=10.0, random_state=0)
    model.partial_fit(X[20:], y[20:]).partial_fit(X[:20], y[:20])
    assert model.input_times_[0] == X.when[20:].min().isoformat()
    whole = ovkgp.ORFFRidge(lam=0.1, num_frequencies=30, lengthscale=10.0, random_state=0).fit(X[::-1], y[::-1])
    assert np.corrcoef(model.predict(X), whole.predict(X))[0, 1] > 0.99


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            ["2024-01-01"] * N,
            "Column 'when' of X must hold numbers or dates, got the text '2024-01-01'. Convert it with",
        ),
        (["red"] * N, "Column 'when' of X must hold numbers, got the text 'red'. Encode it"),
        (pd.Categorical(["a", "b"] * (N // 2)), "Column 'when' of X must hold numbers, got the text 'a'. Encode it"),
        ([datetime.date(2024, 1, 1), 3.0] * (N // 2), "Column 'when' of X mixes values"),
        (["2024-01-01", 3.0] * (N // 2), "Column 'when' of X mixes values"),
        (pd.period_range("2024-01", periods=N, freq="M"), "to_timestamp"),
    ],
)
@pytest.mark.parametrize("name", ["OVKRidge", "quantiles", "simplex", "one class"])
def test_columns_of_text_raise_with_a_remedy(name, values, text):
    with pytest.raises(InputError) as error:
        fit(name, make_frame().assign(when=values))
    assert text in str(error.value)


def test_outputs_of_text_raise_with_a_remedy():
    with pytest.raises(InputError, match="Column 'v' of Y must hold numbers, got the text 'low'"):
        ovkgp.OVKRidge().fit(make_frame(), pd.DataFrame({"u": make_target(), "v": "low"}))


def test_numbers_in_columns_of_objects_are_numbers():
    X = make_frame()[["x"]]
    model = ovkgp.OVKRidge(lam=0.1).fit(X, make_target())
    for same in (X.astype(object), X.astype(str), X.astype("category"), X.astype("Float64")):
        np.testing.assert_array_equal(model.predict(same), model.predict(X))


@pytest.mark.parametrize("days", [0.0, 1 / 3, -17.123456789, 20_000.987654321])
@pytest.mark.parametrize("origin", ["2024-02-29T12:30:00.5", "1969-12-31T23:59:59", "2024-01-01T00:00:00+00:00", "P0D"])
def test_from_days_inverts_to_days(days, origin):
    (column,) = from_days(np.array([[days]]), [origin])
    found, origins = to_days(pd.DataFrame({"a": column}), [origin])
    assert origins == [origin] and abs(found.a[0] - days) < 1e-11


def dated_rows():
    """Return inputs and outputs with dates and durations, and a missing date."""
    rng = np.random.default_rng(0)
    days = np.arange(30)
    X = pd.DataFrame({"day": pd.Timestamp("2020-01-01") + pd.to_timedelta(days, "D"), "x": rng.uniform(size=30)})
    values = 10 * np.sin(days / 5) + 20 + rng.standard_normal(30)
    Y = pd.DataFrame(
        {"end": pd.Timestamp("2021-01-01") + pd.to_timedelta(values, "D"), "length": pd.to_timedelta(values, "h")}
    )
    Y.iloc[3, 0] = pd.NaT
    return X, Y


def dated_model(columns):
    """Return a model of dates with its data, new inputs, and the same model of numbers."""
    (X, Y), new = dated_rows(), dated_rows()[0].assign(day=lambda table: table["day"] + pd.Timedelta("12h"))
    make = lambda: ovkgp.GPRegressor("independent", hyperparameters="evidence", random_state=0)  # noqa: E731
    model = make().fit(X, Y[columns])
    return model, X, Y[columns], new, make().fit(X, model._outputs(Y[columns], None))


@pytest.mark.parametrize("columns", [["end", "length"], ["end"]])
def test_residuals_and_densities_read_dates(columns):
    """Rows that were converted to days were checked again, as if they were those of a user."""
    model, X, Y, new, of_numbers = dated_model(columns)
    numbers = model._outputs(Y, None)
    for inputs in (X, new):
        expected = of_numbers.normal_residuals(inputs, numbers, random_state=0)
        found = model.normal_residuals(inputs, Y, random_state=0)
        assert found.is_held_out is (inputs is new)
        np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
        for joint in (True, False):
            expected = of_numbers.log_density(inputs, numbers, joint=joint)
            np.testing.assert_allclose(model.log_density(inputs, Y, joint=joint), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [["end", "length"], ["end"]])
def test_reports_read_dates(columns, tmp_path):
    model, X, Y, new, _ = dated_model(columns)
    groups = np.arange(len(X)) // 4
    for data in ({}, {"X": X, "Y": Y}, {"X": X, "Y": Y, "groups": groups}, {"X": new, "Y": Y}):
        write_report(model, tmp_path / "report.html", **data)
    assert "days since" in (tmp_path / "report.html").read_text(encoding="utf-8")
