"""The surrogate of a wind farm: reproducibility, units, and the order of the baselines."""

import numpy as np
import pandas as pd
import pytest

from ovkgp.datasets import make_wind_farm
from ovkgp.exceptions import OptionError


def root_mean_square(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.fixture(scope="module")
def farm():
    return make_wind_farm(random_state=0)


def test_wind_farm_is_reproducible():
    first, second = (make_wind_farm(100, random_state=1) for _ in range(2))
    pd.testing.assert_frame_equal(first.measured, second.measured)
    pd.testing.assert_frame_equal(first.predicted, second.predicted)
    assert not first.measured.equals(make_wind_farm(100, random_state=2).measured)
    with pytest.raises(OptionError, match="num_rows"):
        make_wind_farm(0)


def test_wind_farm_has_plausible_values(farm):
    measured, predicted = farm
    assert len(measured) == 52_560 and measured.index.freqstr == "10min" and predicted.index.freqstr == "h"
    assert measured.notna().to_numpy().all() and predicted.notna().to_numpy().all()
    assert (measured["speed"] > 0).all() and 6 < measured["speed"].mean() < 8
    assert measured["direction"].between(0, 360).all()
    slow, rated = measured["speed"] < 3, measured["speed"].between(13, 25)
    assert measured["power"][slow].mean() == pytest.approx(0, abs=1)
    at_rated = measured["power"][rated]
    assert at_rated[at_rated > 1830].mean() == pytest.approx(2000, abs=3)  # with all turbines; five give 1667
    assert measured["power"].max() < 2000 + 6 * 30


def test_turbines_stop_for_hours(farm):
    rated = farm.measured[farm.measured["speed"].between(13, 25)]
    stopped = (6 * (1 - rated["power"] / 2000)).round()
    assert stopped.between(0, 6).all() and 0.01 < stopped.mean() / 6 < 0.06  # 8/248 of the time
    # at the next 10 minutes the same turbines are stopped, but for one change per five hours
    following = stopped.shift(-1)[rated.index.to_series().diff().shift(-1) == pd.Timedelta("10min")]
    assert (following == stopped[following.index]).mean() > 0.97


def test_large_scale_process_has_unit_variance():
    # slow parts of 40 farms of four days, every 12 hours: 3² plus the diurnal .7²/2
    speeds = [make_wind_farm(576, random_state=seed).measured["speed"].to_numpy()[::72] for seed in range(40)]
    assert np.var(speeds) == pytest.approx(9 + 0.245 + 0.64, rel=0.2)


def test_persistence_is_best_first_and_the_prediction_later(farm):
    speed = farm.measured["speed"].to_numpy()
    predicted = farm.predicted["speed_100m"].reindex(farm.measured.index).interpolate().to_numpy()
    weather = root_mean_square(predicted - speed)
    persistence = {h: root_mean_square(speed[h:] - speed[:-h]) for h in (1, 24)}
    assert persistence[1] < 0.6 * weather and weather < 0.8 * persistence[24]


def test_errors_of_predictions_grow_with_the_lead_time(farm):
    # removing noise of the turbulence, each hour of a run is compared with hourly averages of the speed
    hourly = farm.measured["speed"].rolling(7, center=True).mean().reindex(farm.predicted.index)
    errors = (farm.predicted["speed_100m"] - hourly).to_numpy()
    errors = errors[: len(errors) // 12 * 12].reshape(-1, 12)
    spread = np.nanstd(errors, 0)
    assert spread[9:].mean() > 1.1 * spread[:3].mean()
    assert np.nanmean(errors) == pytest.approx(0.5, abs=0.05)
