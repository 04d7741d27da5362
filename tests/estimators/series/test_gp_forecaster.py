"""`GPForecaster` against dense conditioning: forecasts, updates, gaps, exogenous columns, transforms, and errors."""

import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp import GPForecaster
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.strategies import selection

FIXED = {"trend": "integrated", "kernel": "matern32", "seasonal": 12}


def make_frame(n=96, start="2001-01-01", seed=0, outputs=("a", "b")):
    """Monthly series with a trend, a season and a gap."""
    rng, t = np.random.default_rng(seed), np.arange(280)
    wave = np.cumsum(rng.normal(size=280)) * 0.2
    columns = {
        name: 10 + k + 0.05 * t + np.sin(2 * np.pi * t / 12 + k) + (k + 1) * wave + 0.1 * rng.normal(size=280)
        for k, name in enumerate(outputs)
    }
    frame = pd.DataFrame(columns, index=pd.date_range(start, periods=280, freq="MS", name="month"))
    frame.iloc[20:26, 0] = np.nan
    return frame.iloc[:n].copy()


@pytest.fixture(scope="module")
def fitted():
    return GPForecaster(**FIXED).fit(make_frame().iloc[:80])


@pytest.fixture(params=["dense", "state_space"])
def strategy(request, monkeypatch):
    monkeypatch.setattr(selection, "MIN_STATE_SPACE_ENTRIES", {"dense": 10**9, "state_space": 0}[request.param])
    return request.param


def dense_moments(model, times, inputs):
    """Mean and standard deviation of new observations by the dense strategy, in original units."""
    part = model.models_[0]
    gp = OperatorValuedGP(part.kernel, mean="zero", noise=part.noise, strategy="dense")
    Y = (model.values_ - model.center_) / model.scale_
    found = gp.condition(model._inputs(model.times_, None), Y).predict(model._inputs(times, None), noise=True)
    return model.center_ + model.scale_ * found.mean.numpy(), model.scale_ * found.std.numpy()


def test_forecast_equals_the_dense_strategy(fitted, strategy):
    forecast = fitted.forecast(7, history=make_frame().iloc[:80], n_samples=2)
    mean, std = dense_moments(fitted, fitted.format_.times(forecast.stamps), None)
    np.testing.assert_allclose(forecast.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(forecast.std, std, rtol=1e-8)
    assert list(forecast.mean.columns) == ["a", "b"] and forecast.mean.index.name == "month"
    assert list(forecast.mean.index) == list(make_frame().index[80:87])


@pytest.mark.parametrize("drop", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_update_equals_conditioning_again_over_200_steps(fitted, strategy, drop):
    frame, model = make_frame(280), deepcopy(fitted)
    model._posteriors = model._condition_on(model.times_, model.values_, None)  # by this strategy
    for row in range(80, 280):
        model.update(frame.iloc[row : row + 1], drop=drop)
        if row % 50 and row < 279:
            continue
        again = model.forecast(5, history=frame.iloc[drop * (row - 79) : row + 1], n_samples=2)
        found = model.forecast(5, n_samples=2)
        np.testing.assert_allclose(found.mean, again.mean, rtol=1e-8)
        np.testing.assert_allclose(found.std, again.std, rtol=1e-8)
        assert found.stamps.equals(again.stamps)
    assert len(model.times_) == (80 if drop else 280)


def test_update_by_several_rows_missing_values_and_equal_stamps(fitted):
    frame = make_frame()
    frame.iloc[85:87] = np.nan
    rest = pd.concat([frame.iloc[80:], frame.iloc[95:] + 0.1])
    model = clone(fitted).set_params(trend="linear", kernel="matern12").fit(frame.iloc[:80])
    found = model.update(rest, drop=3).forecast(2, n_samples=2)
    again = model.forecast(2, history=pd.concat([frame.iloc[3:80], rest]), n_samples=2)
    np.testing.assert_allclose(found.mean, again.mean, rtol=1e-8)
    np.testing.assert_allclose(found.std, again.std, rtol=1e-8)
    with pytest.raises(InputError, match="continue"):
        model.update(frame.iloc[:1])
    with pytest.raises(InputError, match="drop"):
        model.update(frame.iloc[95:], drop=1000)


def test_future_rows_do_not_change_a_forecast(fitted):
    frame = make_frame()
    shuffled = pd.concat([frame.iloc[:80], frame.iloc[80:].sample(frac=1.0, random_state=0)])
    forecasts = []
    for table in (frame, shuffled):
        model = GPForecaster(trend="linear", kernel="matern12", seasonal=12).fit(table.iloc[:80])
        forecasts.append(model.forecast(5, n_samples=20, random_state=0))
    assert np.array_equal(forecasts[0].paths, forecasts[1].paths)


def test_paths_have_the_predictive_marginals_and_are_joint(fitted):
    forecast = fitted.forecast(4, n_samples=4000, random_state=0)
    z = (forecast.paths - forecast.mean.to_numpy()) / forecast.std.to_numpy()
    assert np.abs(z.mean(0)).max() < 5 / 4000**0.5
    assert np.abs(z.std(0) - 1).max() < 0.06
    inputs = fitted._inputs(fitted.format_.times(forecast.stamps), None)
    expected = fitted._posteriors[0].predict(inputs, "full", noise=True).cov.detach()
    scale = expected.diagonal().sqrt()
    found = torch.from_numpy(z.reshape(4000, -1)).mT.cov()
    torch.testing.assert_close(found, expected / scale / scale[:, None], rtol=0, atol=0.09)
    again = fitted.forecast(4, n_samples=4000, random_state=0)
    assert np.array_equal(again.paths, forecast.paths)


def test_impute_fills_gaps_with_the_posterior_and_keeps_observations(fitted):
    frame = make_frame().iloc[:80]
    filled = fitted.impute(n_samples=500, random_state=0)
    observed = frame.notna().to_numpy()
    assert np.array_equal(filled.mean.to_numpy()[observed], frame.to_numpy()[observed])
    assert not filled.std.to_numpy()[observed].any() and (filled.std.to_numpy()[~observed] > 0).all()
    mean, std = dense_moments(fitted, fitted.times_[20:26], None)
    np.testing.assert_allclose(filled.mean["a"].iloc[20:26], mean[:, 0], rtol=1e-8)
    np.testing.assert_allclose(filled.std["a"].iloc[20:26], std[:, 0], rtol=1e-8)
    assert (np.ptp(filled.paths, axis=0)[observed] == 0).all()
    assert np.abs(filled.paths[:, 20:26, 0].mean(0) - mean[:, 0]).max() < 0.3 * std[:, 0].max()


def test_impute_inserts_skipped_rows(fitted):
    frame = make_frame().iloc[:80].drop(make_frame().index[[30, 31, 50]])
    filled = fitted.impute(frame, n_samples=2)
    assert filled.mean.index.equals(make_frame().index[:80])
    assert filled.mean.notna().all(axis=None) and (filled.std.iloc[[30, 31, 50]] > 0).all(axis=None)


def test_order_of_rows_and_columns_does_not_matter(fitted):
    frame = make_frame().iloc[:80]
    shuffled = frame.sample(frac=1.0, random_state=0)[["b", "a"]]
    again = fitted.forecast(3, history=shuffled, n_samples=2)
    np.testing.assert_allclose(again.mean, fitted.forecast(3, n_samples=2).mean, rtol=1e-9)


def test_equal_and_irregular_stamps_are_readings_of_one_process():
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 10, 60))
    times[20] = times[21]
    series = pd.Series(np.sin(times) + 0.1 * rng.normal(size=60), index=times, name="y")
    model = GPForecaster(trend=None, kernel="matern32", seasonal=None).fit(series.sample(frac=1.0, random_state=0))
    with pytest.raises(InputError, match="stamps"):
        model.forecast(3)
    forecast = model.forecast(pd.Index([10.1, 10.25]), random_state=0)
    assert np.abs(forecast.mean.to_numpy() - np.sin([10.1, 10.25])).max() < 0.3
    with pytest.raises(InputError, match="after"):
        model.forecast(pd.Index([3.0]))


def test_constant_series_is_forecast_as_constant():
    forecast = GPForecaster().fit(np.full(40, 3.5)).forecast(5)
    np.testing.assert_allclose(forecast.mean, 3.5, atol=0.05)
    assert (forecast.std < 0.1).all()


def test_period_names_steps_and_durations_agree():
    frame = make_frame().iloc[:60, :1]
    periods = [
        GPForecaster(trend="linear", kernel=None, seasonal=seasonal).fit(frame).structures_["a"].seasons[0].period
        for seasonal in ("year", 12, "365.2425D")
    ]
    np.testing.assert_allclose(periods, 365.2425, rtol=1e-3)


def test_calendar_season_is_selected_and_noise_has_none():
    t, rng = np.arange(24 * 10), np.random.default_rng(0)
    index = pd.date_range("2024-01-01", periods=len(t), freq="h")
    daily = np.sin(2 * np.pi * t / 24) + 0.3 * rng.normal(size=len(t))
    model = GPForecaster().fit(pd.Series(daily, index=index))
    assert [season.period for season in model.structures_["y"].seasons] == [1.0]
    noise = GPForecaster(kernel="matern12").fit(pd.Series(rng.normal(size=100), index=index[:100]))
    assert noise.structures_["y"].seasons == ()


@pytest.mark.slow
def test_period_of_a_series_without_dates_is_detected():
    t, rng = np.arange(150), np.random.default_rng(0)
    model = GPForecaster(kernel="matern12").fit(np.sin(2 * np.pi * t / 17.3) + 0.2 * rng.normal(size=150))
    (season,) = model.structures_["y"].seasons
    assert season.period == pytest.approx(17.3, rel=0.02)


def test_exogenous_columns_need_future_values():
    rng, frame = np.random.default_rng(0), make_frame(90, outputs=("a",))
    frame["heat"] = rng.normal(size=90)
    frame["a"] += 3 * frame["heat"]
    model = GPForecaster(trend="linear", kernel="matern12", seasonal=12, exog=["heat"]).fit(frame.iloc[:80])
    with pytest.raises(InputError, match="heat"):
        model.forecast(10)
    forecast = model.forecast(10, exog=frame.iloc[80:], n_samples=2)
    assert forecast.output_names == ["a"]
    effect = model.forecast(10, exog=frame.iloc[80:][["heat"]] + 1.0, n_samples=2).mean - forecast.mean
    np.testing.assert_allclose(effect, 3.0, atol=0.3)
    assert forecast.score(frame["a"].iloc[80:].to_frame())["rmse"] < 1.5
    with pytest.raises(InputError, match="exog"):
        model.forecast(10, exog=frame.iloc[85:][["heat"]].to_numpy())
    frame.iloc[3, 1] = np.nan
    with pytest.raises(InputError, match="heat"):
        clone(model).fit(frame)
    with pytest.raises(InputError, match="DataFrame"):
        clone(model).fit(frame.to_numpy())
    updated = model.update(frame.iloc[80:85]).forecast(2, exog=frame.iloc[85:87], n_samples=2)
    again = model.forecast(2, history=make_history(frame), exog=frame.iloc[85:87], n_samples=2)
    np.testing.assert_allclose(updated.mean, again.mean, rtol=1e-8)


def make_history(frame):
    """First 85 rows with the exogenous value that a test deleted."""
    frame = frame.iloc[:85].copy()
    frame.iloc[3, 1] = np.random.default_rng(0).normal(size=90)[3]
    return frame


def test_log_transform_gives_positive_paths_and_log_normal_means():
    frame = np.exp(make_frame()[["a"]].iloc[:80] - 10)
    model = GPForecaster(trend="linear", kernel="matern12", seasonal=12, transform="log").fit(frame)
    forecast = model.forecast(6, n_samples=20_000, random_state=0)
    assert (forecast.paths > 0).all() and (forecast.lower > 0).all(axis=None)
    np.testing.assert_allclose(forecast.paths.mean(0), forecast.mean, rtol=0.05)
    logs = GPForecaster(trend="linear", kernel="matern12", seasonal=12).fit(np.log(frame)).forecast(6)
    np.testing.assert_allclose(np.log(forecast.quantile(0.5)), logs.mean, atol=0.05)
    assert (model.impute(n_samples=2).mean > 0).all(axis=None)
    with pytest.raises(InputError, match="positive"):
        clone(model).fit(frame - 100)


def test_saved_model_forecasts_as_before(fitted, tmp_path):
    fitted.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    one, two = (model.forecast(4, n_samples=5, random_state=0) for model in (fitted, loaded))
    np.testing.assert_allclose(one.paths, two.paths, rtol=1e-9)
    assert loaded.structures_ == fitted.structures_
    np.testing.assert_allclose(loaded.update(make_frame().iloc[80:81]).forecast(1).mean.shape, (1, 2))


def test_updated_model_can_be_pickled_and_copied(fitted, monkeypatch):
    monkeypatch.setattr(selection, "MIN_STATE_SPACE_ENTRIES", 0)
    model = deepcopy(fitted)
    model._condition()
    model.update(make_frame().iloc[80:82])
    expected = model.forecast(3, n_samples=3, random_state=0).paths
    for twin in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert np.array_equal(twin.forecast(3, n_samples=3, random_state=0).paths, expected)
        assert twin.impute(n_samples=2).mean.notna().all(axis=None)


def test_kernel_object_and_separate_outputs():
    frame = make_frame().iloc[:60]
    kernel = ScaleKernel(RBFKernel())
    model = GPForecaster(kernel=kernel, seasonal=None, trend="linear", coupled=False).fit(frame)
    assert len(model.models_) == 2 and kernel.base_kernel.raw_lengthscale.item() == 0.0
    assert model.forecast(3).mean.shape == (3, 2)
    assert "kernel object" in str(model.summary()) and "a" in str(model.summary())


def test_parameters_are_those_of_the_constructor():
    model = GPForecaster(trend="linear", exog=["heat"])
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        model.forecast(3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"trend": "cubic"}, "trend"),
        ({"kernel": "nothing"}, "kernel"),
        ({"seasonal": 1}, "two steps"),
        ({"seasonal": "fortnightish"}, "seasonal"),
        ({"seasonal": [-3]}, "positive"),
        ({"transform": "sqrt"}, "transform"),
        ({"rank": 0}, "rank"),
        ({"exog": "heat"}, "exog"),
    ],
)
def test_invalid_options_are_rejected(options, match):
    with pytest.raises(OptionError, match=match):
        GPForecaster(**options).fit(make_frame())


def test_invalid_series_are_rejected(fitted):
    frame = make_frame()
    with pytest.raises(OptionError, match="groups"):
        GPForecaster().fit(frame, groups=np.zeros(len(frame)))
    with pytest.raises(InputError, match="at least 3"):
        GPForecaster().fit([1.0, np.nan, 2.0])
    with pytest.raises(OptionError, match="without dates"):
        GPForecaster(seasonal="year").fit(np.arange(50.0))
    with pytest.raises(OptionError, match="steps"):
        fitted.forecast(0)
    with pytest.raises(InputError, match="columns"):
        fitted.update(frame[["a"]])


@pytest.mark.slow
def test_intervals_of_simulated_series_cover_85_to_95_percent():
    """80 series of a level, a season and an autoregression, forecast 10 steps ahead with selected terms."""
    hits = []
    for seed in range(80):
        rng, t = np.random.default_rng(seed), np.arange(130)
        state = np.zeros(130)
        for i in range(1, 130):
            state[i] = 0.8 * state[i - 1] + rng.normal() * 0.6
        y = 4 + np.sin(2 * np.pi * t / 12) + state + 0.3 * rng.normal(size=130)
        series = pd.Series(y, index=pd.date_range("2001-01-01", periods=130, freq="MS"))
        forecast = GPForecaster().fit(series.iloc[:120]).forecast(10, n_samples=2)
        hits.append((forecast.lower <= series.iloc[120:]) & (series.iloc[120:] <= forecast.upper))
    assert 0.85 <= np.mean(hits) <= 0.95
