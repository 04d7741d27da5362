"""Predictions of a fitted model as named columns of a table, as `Estimator.prediction_columns` returns them.

regressors           NAME_mean, NAME_std, NAME_q05, … per output; NAME_low and NAME_high if a level is given
curves               the same for each point of the grid of the fit or of another one; NAME_low and NAME_high may be simultaneous
quantile regressors  NAME_q05, …, and NAME_low, NAME_high, an interval
classifiers          NAME_class, and NAME_decision or the probability NAME_p_LABEL of each class
level sets           inlier, and the largest level whose set contains the row
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ovkgp.exceptions import OptionError

PredictionColumns = dict[str, np.ndarray]
DEFAULT_QUANTILES = (0.05, 0.5, 0.95)
DEFAULT_INTERVAL_LEVEL = 0.9


@dataclass(frozen=True)
class PredictionRequest:
    """Options of a prediction: quantile levels in (0, 1), level of the central interval, latent function, costs.

    Those of curves are the `grid` (m,) at which to predict, and whether intervals are simultaneous bands.
    """

    quantiles: tuple[float, ...] | None = None
    level: float | None = None
    latent: bool = False
    costs: tuple[float, ...] | None = None
    grid: tuple[float, ...] | None = None
    simultaneous: bool = False

    def reject_options(self, kind: str, *names: str) -> None:
        """Raise if one of the named options is set, which models of this kind do not support."""
        for name in names:
            if getattr(self, name) not in (None, False):
                raise OptionError(f"--{name} is not supported by {kind}. Remove the option.")

    def for_pointwise_columns(self) -> PredictionRequest:
        """Return the request without the level of a simultaneous band, which is not a pair of quantiles."""
        return replace(self, level=None) if self.simultaneous else self

    def add_band(
        self, found: PredictionColumns, names: list[str], lower: np.ndarray, upper: np.ndarray
    ) -> PredictionColumns:
        """Add the ends (m, p) of simultaneous bands after the other columns of each point."""
        result = {}
        for j, name in enumerate(names):
            own = [f"{name}_mean", f"{name}_std"] + [f"{name}_{quantile_suffix(q)}" for q in self._quantiles]
            result |= {key: found[key] for key in own}
            result |= {f"{name}_low": lower[:, j], f"{name}_high": upper[:, j]}
        return result

    @property
    def _quantiles(self) -> tuple[float, ...]:
        return DEFAULT_QUANTILES if self.quantiles is None else self.quantiles

    @property
    def levels(self) -> list[float]:
        """Quantile levels, followed by both ends of the interval if there is one."""
        levels = list(self._quantiles)
        return levels if self.level is None else [*levels, (1 - self.level) / 2, (1 + self.level) / 2]

    def name_columns(
        self, names: list[str], mean: np.ndarray, std: np.ndarray, quantiles: np.ndarray
    ) -> PredictionColumns:
        """Name mean and standard deviation (m, p) and quantiles (q, m, p) at `levels`, output by output."""
        suffixes = [quantile_suffix(level) for level in self._quantiles] + (
            [] if self.level is None else ["low", "high"]
        )
        found = {}
        for j, output in enumerate(names):
            found |= {f"{output}_mean": mean[:, j], f"{output}_std": std[:, j]}
            found |= {f"{output}_{suffix}": quantiles[k, :, j] for k, suffix in enumerate(suffixes)}
        return found


def quantile_suffix(level: float) -> str:
    """Return the suffix of the column of a quantile: q05, q50, q02.5."""
    percent, dot, decimals = f"{round(100 * level, 10):.10f}".rstrip("0").rstrip(".").partition(".")
    return f"q{percent.zfill(2)}{dot}{decimals}"
