"""What a model predicts along a cut: its mean, the interval around it, and random functions.

A new label is 0 or 1 and has no interval worth drawing; the band of a label or a class is that of its probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import check_integer
from ovkgp.criticism.predictive_distributions import as_inputs, given_rows, kept_rows
from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.validation import input_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import Bernoulli, Likelihood, PerOutput, Softmax
from ovkgp.plotting.axes import chosen_input, input_names, label

REACH = 2.0
"""Standard deviations to either side of the mean that are drawn where a model knows no more of its inputs."""
NAMED = 3
"""So many other inputs are named with their values."""


@dataclass(frozen=True)
class Data:
    """X (n, d), or None where nothing is known of the inputs; Y (n, p), or None where there is none to show."""

    X: np.ndarray | None
    Y: np.ndarray | None

    @classmethod
    def of(cls, estimator, X=None, Y=None) -> Data:
        """What was given, or else the rows that a fitted model keeps; X alone says only where to draw.

        Raises:
            NotFittedError: there is no model yet.
            InputError: Y without X, or other columns than those of the fit.
        """
        check_is_fitted(estimator)
        if X is not None and Y is None:
            return cls(input_table(estimator, X, reset=False), None)
        if X is None and Y is None:
            return cls(*(kept_rows(estimator) or (None, None)))
        return cls(*given_rows(estimator, X, Y))


@dataclass(frozen=True)
class InputSlice:
    """Points along one input.

    Attributes:
        along: the column that runs.
        points: (m, d), the others at their medians.
        name: what stands below the axis.
    """

    along: int
    points: np.ndarray
    name: str

    @classmethod
    def of(cls, estimator, data: Data, along=None, num_points: int = 200) -> InputSlice:
        """Along an input by name or number, over the range of the data.

        Raises:
            OptionError: there is no such input.
            InputError: neither the model nor the caller says where the inputs lie.
        """
        index, number = chosen_input(estimator, along), check_integer("num_points", num_points, least=2)
        low, middle, high = input_range(estimator, data.X)
        points = np.tile(middle, (number, 1))
        points[:, index] = np.linspace(low[index], high[index], number)
        return cls(index, points, _axis_name(input_names(estimator), index, middle))

    @property
    def axis(self) -> np.ndarray:
        """The values (m,) of the input that runs."""
        return self.points[:, self.along]


def input_range(estimator, X: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least, middle and largest value (d,) of each input: of the rows X, or of what the scaling knows of them."""
    if X is not None and len(X):
        low, high = X.min(0), X.max(0)
        flat = low == high  # a range of no width is no axis
        reach = np.where(flat, np.maximum(np.abs(low) / 10, 0.5), 0.0)
        return low - reach, np.median(X, axis=0), high + reach
    offset, scale = estimator.scaling_.input_offset, estimator.scaling_.input_scale
    if not offset.any() and (scale == 1).all():
        raise InputError("this model keeps no rows, and does not know where its inputs lie: give X.")
    return offset - REACH * scale, offset, offset + REACH * scale


def _axis_name(names: list[str], along: int, middle: np.ndarray) -> str:
    """The name of the input and, small enough, at what the others stay."""
    others = [i for i in range(len(names)) if i != along]
    if not others:
        return label(names[along], 40)
    held = ", ".join(f"{names[i]} = {middle[i]:.3g}" for i in others)
    if len(others) > NAMED or len(held) > 80:
        held = f"the other {len(others)} inputs" if len(others) > 1 else "the other input"
        held += " at their medians" if len(others) > 1 else " at its median"
    return f"{label(names[along], 40)}\n{label(f'({held})', 48)}"


def likelihood_of(estimator) -> Likelihood | None:
    """p(y | f) of a variational model; None where noise is Gaussian and added."""
    return getattr(getattr(estimator, "gp_", None), "likelihood", None)


def output_kinds(estimator, num_outputs: int) -> list[str]:
    """For each output "real", "count", "label" (0 or 1) or "class" (one column of several).

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.slices import output_kinds
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> output_kinds(ovkgp.OVKRidge().fit(X, X), num_outputs=1)
        ['real']
    """
    likelihood = likelihood_of(estimator)
    if likelihood is None:
        return ["real"] * num_outputs
    ones = likelihood.likelihoods if isinstance(likelihood, PerOutput) else [likelihood] * num_outputs
    return [
        _kind(one, bool(is_real))
        for one, is_real in zip(ones, np.broadcast_to(likelihood.is_real, num_outputs), strict=True)
    ]


def responses(estimator, latent: np.ndarray) -> np.ndarray:
    """E[y | f] (…, m, p) for latent functions f (…, m, p), both in the user's units; labels, classes and counts are not scaled."""
    likelihood = likelihood_of(estimator)
    if likelihood is None:
        return latent
    values = torch.as_tensor(latent, dtype=torch.float64)
    if isinstance(likelihood, Softmax):
        return values.softmax(-1).numpy()
    with torch.no_grad():
        flat = values.reshape(-1, values.shape[-1])
        found = likelihood.moments(flat, torch.zeros_like(flat))[0].reshape(values.shape)
    return np.where(likelihood.is_real.numpy(), latent, found.numpy())


def _kind(likelihood: Likelihood, is_real: bool) -> str:
    if is_real:
        return "real"
    if isinstance(likelihood, Bernoulli | Softmax):
        return "label" if isinstance(likelihood, Bernoulli) else "class"
    return "count"


CLASS_DRAWS = 500
"""Random functions from which the interval of a class probability is read: it has no closed form."""
PROBABILITIES = ("label", "class")


@dataclass(frozen=True)
class Bands:
    """Mean, lower and upper ends (m, p), draws (k, m, p), and what each output is, (p,)."""

    mean: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    draws: np.ndarray
    kinds: list[str]

    @classmethod
    def of(cls, estimator, points: np.ndarray, level: float, noise: bool, num_draws: int) -> Bands:
        """At points (m, d) in the user's units; see `plot_prediction` for the options."""
        kinds = output_kinds(estimator, estimator.n_outputs_)
        X, shape = as_inputs(estimator, points), (len(points), estimator.n_outputs_)
        mean = estimator.predict(X, noise=noise).reshape(shape)
        lower, upper = _ends(estimator, X, level, noise, kinds, shape)
        draws = np.empty((0, *shape))
        if check_integer("num_draws", num_draws, least=0):
            draws = estimator.sample_functions(num_draws, random_state=0)(points).reshape(-1, *shape)
            draws = responses(estimator, draws) if noise else draws
        return cls(mean, lower, upper, draws, kinds)


def check_posterior(estimator, plot: str) -> None:
    """Refuse an estimator that does not predict distributions of several outputs."""
    if not isinstance(estimator, PosteriorRegressor):
        raise OptionError(
            f"{plot} draws the posterior of a GPRegressor or of a ridge; got {type(estimator).__name__}. An "
            "InfiniteQuantileRegressor is drawn by plot_quantiles; write_report draws every estimator."
        )


def _ends(estimator, X, level: float, noise: bool, kinds: list[str], shape) -> tuple[np.ndarray, np.ndarray]:
    is_probability = np.array([noise and kind in PROBABILITIES for kind in kinds])
    if not is_probability.any():
        return tuple(end.reshape(shape) for end in estimator.predict_interval(X, level, noise=noise))
    if "class" in kinds:
        draws = estimator.sample_functions(CLASS_DRAWS, random_state=0)(X).reshape(-1, *shape)
        return tuple(np.quantile(responses(estimator, draws), [(1 - level) / 2, (1 + level) / 2], axis=0))
    latent = [end.reshape(shape) for end in estimator.predict_interval(X, level, noise=False)]
    ends = [end.reshape(shape) for end in estimator.predict_interval(X, level, noise=True)]
    return tuple(np.where(is_probability, responses(estimator, f), y) for f, y in zip(latent, ends, strict=True))
