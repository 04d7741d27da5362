"""`SktimeForecaster`, any forecaster of `ovkgp` with the interface of sktime."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.base import clone

from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.persistence import PersistenceForecaster
from ovkgp.exceptions import MissingExtraError

try:
    from sktime.forecasting.base import BaseForecaster
except ImportError as error:
    raise MissingExtraError(
        "ovkgp.bridges.sktime needs sktime, which is not installed. Run `pip install 'ovkgp[sktime]'`."
    ) from error


class SktimeForecaster(BaseForecaster):
    """Forecaster of `ovkgp` with the interface of sktime, for its pipelines, tuning and evaluation.

    `update(y)` appends the rows after the last known one with the exact update of the forecaster, at fixed hyperparameters. With
    `update_params=False` they are kept for the next update, and forecasts remain those of the fitted rows.

    Parameters
    ----------
    forecaster : forecaster or None, default=None
        Forecaster with `fit`, `update` and `forecast`. If None, a `PersistenceForecaster`.
    n_samples : int, default=1000
        Number of paths of a forecast, from which quantiles are computed unless the forecast is normal in closed form.
    random_state : int, default=0
        Seed of the paths. It is the same for all forecasts, so that means, quantiles and variances agree.

    Attributes
    ----------
    forecaster_ : forecaster
        Fitted forecaster.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from ovkgp import PersistenceForecaster
    >>> from ovkgp.bridges.sktime import SktimeForecaster
    >>> months = pd.period_range("2020-01", periods=48, freq="M")
    >>> series = pd.Series(np.cos(np.arange(48) * np.pi / 6), index=months)
    >>> forecaster = SktimeForecaster(PersistenceForecaster(season=12)).fit(series)
    >>> forecaster.predict(fh=[1, 7]).round(6).tolist()
    [1.0, -1.0]
    """

    _tags = {  # noqa: RUF012 - sktime's convention
        "authors": "ovkgp",
        "maintainers": "ovkgp",
        "y_inner_mtype": "pd.DataFrame",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": False,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
    }

    def __init__(self, forecaster=None, n_samples=1000, random_state=0):
        self.forecaster = forecaster
        self.n_samples = n_samples
        self.random_state = random_state
        super().__init__()

    def _fit(self, y, X, fh):
        forecaster = PersistenceForecaster() if self.forecaster is None else clone(self.forecaster)
        self.forecaster_ = forecaster.fit(y)
        self._last, self._pending = y.index[-1:], y.iloc[:0]
        return self

    def _update(self, y, X=None, update_params=True):
        known = self._pending.index[-1] if len(self._pending) else self._last[-1]
        rows = pd.concat([self._pending, y[y.index > known]])
        if update_params and len(rows):
            self.forecaster_.update(rows)
            self._last, rows = rows.index[-1:], rows.iloc[:0]
        self._pending = rows
        return self

    def _predict(self, fh, X):
        forecast, steps, index = self._forecast(fh)
        return pd.DataFrame(self._rows(forecast.mean, steps), index=index, columns=self._pending.columns)

    def _predict_quantiles(self, fh, X, alpha):
        forecast, steps, index = self._forecast(fh)
        values = np.stack([self._rows(forecast.quantile(level), steps) for level in alpha], -1)
        columns = pd.MultiIndex.from_product([self._get_varnames(), alpha])
        return pd.DataFrame(values.reshape(len(steps), -1), index=index, columns=columns)

    def _predict_var(self, fh, X=None, cov=False):
        if cov:
            return super()._predict_var(fh, X, cov=cov)
        forecast, steps, index = self._forecast(fh)
        return pd.DataFrame(self._rows(forecast.std, steps) ** 2, index=index, columns=self._pending.columns)

    def _forecast(self, fh) -> tuple[Forecast, np.ndarray, pd.Index]:
        """Return the forecast from the last row of the forecaster, the requested steps of it, and their stamps."""
        absolute = fh.to_absolute(self.cutoff)
        steps = np.asarray(absolute.to_relative(self._last).to_numpy(), dtype=np.int64)
        forecast = self.forecaster_.forecast(int(steps.max()), n_samples=self.n_samples, random_state=self.random_state)
        return forecast, steps, absolute.to_absolute_index(self.cutoff)

    def _rows(self, values, steps: np.ndarray) -> np.ndarray:
        """Return the rows (steps, p) of a table of a forecast."""
        return np.asarray(values, dtype=np.float64).reshape(-1, self._pending.shape[1])[steps - 1]

    @classmethod
    def get_test_params(cls, parameter_set="default"):
        """Return options for sktime's checks.

        Parameters
        ----------
        parameter_set : str, default="default"
            Ignored.

        Returns
        -------
        list of dict
            Options.
        """
        return [{"n_samples": 50}, {"forecaster": PersistenceForecaster(season=3), "n_samples": 50}]
