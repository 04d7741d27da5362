"""Predictions along one input: data to show, points of the slice, and mean, interval and function draws at them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_integer
from ovkgp.criticism import training_data
from ovkgp.estimators.common.summary import likelihood_names
from ovkgp.estimators.common.validation import as_inputs, input_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.axes import format_label, select_input
from ovkgp.scales import mean_and_std

MAX_NAMED_INPUTS = 3  # up to this number of other inputs, the axis label lists their values
MIN_NEAREST_ROWS = 20  # minimum number of rows that are nearest to a slice
OBSERVED, PARTIAL, NEAREST = "data", "partial residuals", "data near the slice"  # kinds of dots over a slice
NUM_CLASS_DRAWS = 500  # function draws used for intervals of class probabilities, which have no closed form
PROBABILITY_KINDS = ("label", "class")  # kinds of outputs whose predictions are probabilities
LIKELIHOOD_KINDS = {"bernoulli": "label", "softmax": "class"}  # kinds of outputs that are neither numbers nor counts


@dataclass(frozen=True)
class PlotData:
    """Data to show: X (n, d), None if the inputs are unknown; Y (n, p), None if there are no outputs to show."""

    X: np.ndarray | None
    Y: np.ndarray | None

    @classmethod
    def resolve(cls, estimator, X=None, Y=None) -> PlotData:
        """Check the given data, or return the training data that a fitted model stores; X alone only sets the range."""
        check_is_fitted(estimator)
        if X is not None and Y is None:
            return cls(input_table(estimator, X, reset=False), None)
        if X is None and Y is None:
            return cls(*(training_data(estimator) or (None, None)))
        return cls(*estimator.check_rows(X, Y))


@dataclass(frozen=True)
class InputSlice:
    """Points (m, d) along the input with index `along`, the others at their medians; `name` is the axis label."""

    along: int
    points: np.ndarray
    name: str

    @classmethod
    def create(cls, estimator, data: PlotData, along=None, num_points: int = 200) -> InputSlice:
        """Create a slice along an input, by name or number, over the range of the data."""
        index, num_points = select_input(estimator, along), check_integer("num_points", num_points, minimum=2)
        low, median, high = get_input_range(estimator, data.X)
        points, labels = np.tile(median, (num_points, 1)), estimator.label_units("input", estimator.input_labels())
        points[:, index] = np.linspace(low[index], high[index], num_points)
        return cls(index, points, _format_axis_name(labels, index, median))

    @property
    def axis(self) -> np.ndarray:
        """Values (m,) of the input along the slice."""
        return self.points[:, self.along]

    def project(self, X: np.ndarray) -> np.ndarray:
        """Move the rows of X (n, d) to the slice: the other inputs are at their medians."""
        moved = np.tile(self.points[0], (len(X), 1))
        moved[:, self.along] = X[:, self.along]
        return moved

    def find_nearest(self, X: np.ndarray) -> np.ndarray:
        """Return a mask (n,) of the tenth of the rows of X, but at least `MIN_NEAREST_ROWS`, nearest to the slice."""
        scale = mean_and_std(X)[1]
        distances = np.linalg.norm((X - self.project(X)) / np.where(scale > 0, scale, 1.0), axis=1)
        count = min(max(len(X) // 10, MIN_NEAREST_ROWS), len(X))
        return distances <= np.partition(distances, count - 1)[count - 1]


@dataclass(frozen=True)
class Dots:
    """Values (n, p) of the data to draw over a slice, NaN where there are none, and their names (p,) in the legend."""

    x: np.ndarray
    values: np.ndarray
    names: list[str]

    @classmethod
    def create(cls, input_slice: InputSlice, data: PlotData, kinds: list[str], predict: Callable) -> Dots:
        """Make the dots: data of a model with one input, else partial residuals around the prediction on the slice.

        Observations of rows far from the slice say nothing of the curve. A partial residual is y − predict(x) + predict(x on the
        slice), with `predict` from (n, d) to (n, p). Labels and classes are shown only for the rows nearest to the slice.
        """
        x = data.X[:, input_slice.along]
        if data.X.shape[1] == 1:
            return cls(x, data.Y, [OBSERVED] * len(kinds))
        is_class = np.array([kind in PROBABILITY_KINDS for kind in kinds])
        nearest = np.where(input_slice.find_nearest(data.X)[:, None], data.Y, np.nan)
        residuals = nearest
        if not is_class.all():
            residuals = data.Y - predict(data.X) + predict(input_slice.project(data.X))
        return cls(x, np.where(is_class, nearest, residuals), [NEAREST if one else PARTIAL for one in is_class])


def get_input_range(estimator, X: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return minimum, median and maximum (d,) of each input of X, or a range derived from the scaling if X is None."""
    if X is not None and len(X):
        low, high = X.min(0), X.max(0)
        margin = np.where(low == high, np.maximum(np.abs(low) / 10, 0.5), 0.0)  # an axis needs a positive width
        return low - margin, np.median(X, axis=0), high + margin
    if (known := estimator.input_range()) is None:
        raise InputError("X is required because the model stores neither its training data nor their range. Pass X.")
    return known


def _format_axis_name(names: list[str], along: int, medians: np.ndarray) -> str:
    """Format the name of an input and the values of the others, or their number if that is too long."""
    others = [i for i in range(len(names)) if i != along]
    if not others:
        return format_label(names[along], 40)
    held = ", ".join(f"{names[i]} = {medians[i]:.3g}" for i in others)
    if len(others) > MAX_NAMED_INPUTS or len(held) > 80:
        is_single = len(others) == 1
        held = "the other input at its median" if is_single else f"the other {len(others)} inputs at their medians"
    return f"{format_label(names[along], 40)}\n{format_label(f'({held})', 48)}"


@dataclass(frozen=True)
class Bands:
    """Mean, lower and upper ends (m, p), function draws (k, m, p), and kinds (p,) of the outputs."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    draws: np.ndarray
    kinds: list[str]

    @classmethod
    def predict(cls, estimator, points: np.ndarray, level: float, noise: bool, num_draws: int) -> Bands:
        """Predict at points (m, d) in original units; the options are those of `plot_prediction`."""
        kinds = get_output_kinds(estimator, estimator.n_outputs_)
        X, shape = as_inputs(estimator, points), (len(points), estimator.n_outputs_)
        mean = estimator.predict(X, noise=noise).reshape(shape)
        lower, upper = _predict_interval(estimator, X, level, noise, kinds, shape)
        draws = np.empty((0, *shape))
        if check_integer("num_draws", num_draws, minimum=0):
            draws = estimator.sample_functions(num_draws, random_state=0)(X).reshape(-1, *shape)
            draws = compute_mean_response(estimator, draws) if noise else draws
        return cls(mean, lower, upper, draws, kinds)


def _predict_interval(estimator, X, level: float, noise: bool, kinds: list[str], shape) -> tuple[np.ndarray, ...]:
    """Predict intervals of new observations or of the functions, but of probabilities for labels and classes."""
    is_probability = np.array([noise and kind in PROBABILITY_KINDS for kind in kinds])
    if not is_probability.any():
        return tuple(np.reshape(estimator.predict_interval(X, level, noise=noise), (2, *shape)))
    if "class" in kinds:
        draws = estimator.sample_functions(NUM_CLASS_DRAWS, random_state=0)(X).reshape(-1, *shape)
        return tuple(np.quantile(compute_mean_response(estimator, draws), [(1 - level) / 2, (1 + level) / 2], axis=0))
    latent, ends = (
        np.reshape(estimator.predict_interval(X, level, noise=noisy), (2, *shape)) for noisy in (False, True)
    )
    return tuple(np.where(is_probability, compute_mean_response(estimator, latent), ends))


def check_posterior_regressor(estimator, plot: str) -> None:
    """Check that an estimator predicts distributions of several outputs."""
    if not estimator.has_posterior:
        raise OptionError(
            f"estimator must be a GPRegressor or a ridge regressor for {plot}, got {estimator.class_name}. Use plot_quantiles for an InfiniteQuantileRegressor and write_report for all others."
        )


def get_output_kinds(estimator, num_outputs: int) -> list[str]:
    """Return the kind of each output: "real", "count", "label" (0 or 1) or "class" (one column of several)."""
    likelihood = estimator.likelihood_
    if likelihood is None:
        return ["real"] * num_outputs
    names = np.broadcast_to(likelihood_names(likelihood), num_outputs)
    is_real = np.broadcast_to(likelihood.is_real, num_outputs)
    return ["real" if real else LIKELIHOOD_KINDS.get(name, "count") for name, real in zip(names, is_real, strict=True)]


def compute_mean_response(estimator, latent: np.ndarray) -> np.ndarray:
    """Compute E[y | f] (…, m, p) of latent functions f (…, m, p), both in original units."""
    likelihood = estimator.likelihood_
    if likelihood is None:
        return latent
    values = torch.as_tensor(latent, dtype=torch.float64)
    if likelihood_names(likelihood) == ["softmax"]:
        return values.softmax(-1).numpy()
    with torch.no_grad():
        flat = values.reshape(-1, values.shape[-1])
        means = likelihood.moments(flat, torch.zeros_like(flat))[0].reshape(values.shape)
    return np.where(likelihood.is_real.numpy(), latent, means.numpy())
