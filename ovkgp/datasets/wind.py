"""A wind farm and the weather predictions for it: a surrogate for measurements of farms, of which none are public.

    speed = softplus(7 + 3 a + diurnal + turbulence),      power = running turbines · cubic curve of the speed

a is a large-scale autoregressive process of order 2 with unit variance, turbulence one of order 1. The curve has a cut-in, rated and
cut-out speed. Each of six turbines stops every ten days for eight hours, on average, so that 97 % of them are running. Weather predictions know the
large scale, smoothed over an hour, with a bias and errors that grow with the lead time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from ovkgp.checks import as_seed, check_integer
from ovkgp.datasets.samples import INPUTS, LABELS, NOISE, TRUTH, make_rng

STEPS_PER_HOUR = 6
MEAN_SPEED, SPEED_SCALE, DIURNAL_SPEED = 7.0, 3.0, 0.7  # m/s
LARGE_SCALE_HOURS = (16.0, 3.0)  # decay times of both factors of the large-scale process
TURBULENCE_HOURS, TURBULENCE_SPEED = 1.0, 0.8  # decay time, and standard deviation in m/s
CUT_IN, RATED_SPEED, CUT_OUT, RATED_POWER = 3.0, 13.0, 25.0, 2000.0  # m/s, and kW per turbine
POWER_NOISE = 30.0  # standard deviation in kW
NUM_TURBINES, RUNNING_HOURS, STOPPED_HOURS = 6, 240.0, 8.0  # mean durations
RUN_HOURS, DELAY_HOURS = 12, 6  # distance of the runs of the weather model, and time until one is published
BIAS_SPEED, ERROR_SPEED, ERROR_GROWTH = 0.5, 0.5, 0.03  # m/s: bias, error at lead 0, and its growth per hour
ERROR_HOURS = 3.0  # decay time of the error of a run along its lead time
FORECAST_HOURS = 12  # hours after the last measurement for which there are predictions
BURN_IN = 5000  # steps before the first row


class WindFarm(NamedTuple):
    """Measurements of a wind farm and weather predictions for its location.

    Attributes
    ----------
    measured : DataFrame
        Rows every 10 minutes with the columns speed (m/s), power (kW, mean of the turbines), direction (degrees) and temperature (°C).
    predicted : DataFrame
        Hourly weather predictions with the columns speed_100m, speed_10m (m/s), direction (degrees), temperature (°C) and pressure
        (hPa), up to 12 hours after the last measurement. The prediction for a time was issued at least 6 hours before it.

    Examples
    --------
    >>> import pandas as pd
    >>> from ovkgp.datasets import make_wind_farm
    >>> measured, predicted = make_wind_farm(1000, random_state=0)
    >>> measured.shape, predicted.index[-1] - measured.index[-1] >= pd.Timedelta("11h")
    ((1000, 4), True)
    """

    measured: pd.DataFrame
    predicted: pd.DataFrame


def make_wind_farm(num_rows: int = 52_560, *, random_state=None) -> WindFarm:
    """Generate a year of wind speed and power of a farm every 10 minutes, and weather predictions (BO-130).

    Parameters
    ----------
    num_rows : int, default=52_560
        Number of rows.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    WindFarm
        Measurements and predictions.

    Notes
    -----
    Persistence is the better baseline for 10 minutes, and the weather prediction for 4 hours. Direction, temperature and pressure do
    not affect the speed. Complexity: O(n) time and memory.

    References
    ----------
    BO-130

    Examples
    --------
    >>> from ovkgp.datasets import make_wind_farm
    >>> farm = make_wind_farm(500, random_state=0)
    >>> list(farm.measured), bool((farm.measured["speed"] > 0).all())
    (['speed', 'power', 'direction', 'temperature'], True)
    """
    seed, num_rows = as_seed(random_state), check_integer("num_rows", num_rows)
    index = pd.date_range("2017-01-01", periods=num_rows, freq="10min")
    num_hours = -(-num_rows // STEPS_PER_HOUR) + FORECAST_HOURS
    hours = pd.date_range(index[0], periods=num_hours, freq="h")
    steps = num_hours * STEPS_PER_HOUR + 1  # of 10 minutes, the last of which is only smoothed over
    rng, noise, errors = (make_rng(seed, name) for name in (TRUTH, NOISE, INPUTS))
    clock = np.arange(steps) / STEPS_PER_HOUR % 24
    slow = MEAN_SPEED + SPEED_SCALE * _draw_process(LARGE_SCALE_HOURS, steps, rng)
    slow += DIURNAL_SPEED * np.cos(2 * np.pi * (clock - 15) / 24)
    speed = np.logaddexp(0, slow + TURBULENCE_SPEED * _draw_process((TURBULENCE_HOURS,), steps, rng))
    direction = 230 + 60 * _draw_process((36.0, 6.0), steps, rng)
    day = np.arange(steps) / STEPS_PER_HOUR / 24
    temperature = 11 - 7 * np.cos(2 * np.pi * (day - 20) / 365) + 3 * np.cos(2 * np.pi * (clock - 15) / 24)
    temperature += 3 * _draw_process((48.0, 6.0), steps, rng)
    pressure = 1013 + 9 * _draw_process((60.0, 12.0), steps, rng)
    measured = {
        "speed": speed[:num_rows],
        "power": _draw_running(num_rows, make_rng(seed, LABELS)) * _power(speed[:num_rows])
        + POWER_NOISE * noise.standard_normal(num_rows),
        "direction": direction[:num_rows] % 360,
        "temperature": temperature[:num_rows] + 0.3 * noise.standard_normal(num_rows),
    }
    error, hourly = _draw_run_errors(num_hours, errors), slice(0, num_hours * STEPS_PER_HOUR, STEPS_PER_HOUR)
    above = np.logaddexp(0, _smooth(slow)[hourly] + BIAS_SPEED + error)
    predicted = {
        "speed_100m": above,
        "speed_10m": 0.7 * above + 0.4 * errors.standard_normal(num_hours),
        "direction": (direction[hourly] + 15 * errors.standard_normal(num_hours)) % 360,
        "temperature": temperature[hourly] + errors.standard_normal(num_hours),
        "pressure": pressure[hourly] + errors.standard_normal(num_hours),
    }
    return WindFarm(pd.DataFrame(measured, index=index), pd.DataFrame(predicted, index=hours))


def _draw_process(hours: tuple[float, ...], steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an autoregressive process with unit variance, whose characteristic roots decay within the given hours."""
    polynomial = np.poly(np.exp(-1 / (STEPS_PER_HOUR * np.array(hours))))
    impulse = lfilter([1.0], polynomial, np.r_[1.0, np.zeros(BURN_IN - 1)])
    path = lfilter([1.0], polynomial, rng.standard_normal(BURN_IN + steps))[BURN_IN:]
    return path / np.sqrt(impulse @ impulse)


def _draw_running(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the fraction of the turbines that are running at each step."""
    hours, running = np.arange(steps) / STEPS_PER_HOUR, np.zeros(steps)
    count = 20 + int(3 * hours[-1] / RUNNING_HOURS)  # of stops, more than there can be
    for _ in range(NUM_TURBINES):
        changes = rng.exponential([RUNNING_HOURS, STOPPED_HOURS], size=(count, 2)).cumsum()
        running += np.searchsorted(changes, hours) % 2 == 0
    return running / NUM_TURBINES


def _power(speed: np.ndarray) -> np.ndarray:
    """Return the power in kW of wind speeds in m/s."""
    cubic = RATED_POWER * (speed**3 - CUT_IN**3) / (RATED_SPEED**3 - CUT_IN**3)
    return np.where(speed < CUT_OUT, np.clip(cubic, 0, RATED_POWER), 0.0)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Average over the hour around each step."""
    kernel = np.full(STEPS_PER_HOUR + 1, 1 / (STEPS_PER_HOUR + 1))
    padded = np.pad(values, STEPS_PER_HOUR // 2, mode="edge")
    return np.convolve(padded, kernel, "valid")


def _draw_run_errors(num_hours: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the errors in m/s of the run that is the latest published one for each hour."""
    runs = -(-num_hours // RUN_HOURS)
    decay = np.exp(-1 / ERROR_HOURS)
    found = np.empty((runs, RUN_HOURS))
    state = rng.standard_normal(runs)
    for k in range(RUN_HOURS):  # runs are independent of each other
        found[:, k] = (ERROR_SPEED + ERROR_GROWTH * (DELAY_HOURS + k)) * state
        state = decay * state + np.sqrt(1 - decay**2) * rng.standard_normal(runs)
    return found.ravel()[:num_hours]
