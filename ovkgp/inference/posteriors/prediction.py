"""What an average over hyperparameters says about given points: a mixture of S predictions with equal weights.

Moments follow from the laws of total expectation and total covariance,

    E[y] = mean_s μ_s,    Cov[y] = mean_s C_s + mean_s (μ_s − E[y]) (μ_s − E[y])ᵀ,

and quantiles from the mixture of the distribution functions, P(y ≤ t) = mean_s P_s(y ≤ t), which is inverted by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, to_linear_operator
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

FORMS = ("none", "diag", "output", "full")


def check_form(form: str) -> str:
    """Refuse a form of covariance that there is not."""
    if form not in FORMS:
        raise OptionError(f"cov must be one of {', '.join(map(repr, FORMS))}, got {form!r}.")
    return form


class Prediction:
    """A Gaussian prediction of p outputs at m points.

    Args:
        mean: (m, p).
        covariance: None, the variances (m, p), the blocks (m, p, p) or the whole (m·p, m·p) matrix, data-major.
        form: which of these it is: "none", "diag", "output" or "full".

    Example:
        >>> import torch
        >>> from ovkgp.inference import Prediction
        >>> prediction = Prediction(torch.zeros(3, 2), torch.ones(3, 2), "diag")
        >>> lower, upper = prediction.interval(0.9)
        >>> upper.shape, round(upper[0, 0].item(), 3)
        (torch.Size([3, 2]), 1.645)
        >>> round(prediction.cdf(1.645)[0, 0].item(), 3)
        0.95
    """

    def __init__(self, mean: Tensor, covariance: Tensor | None = None, form: str = "none"):
        self.mean, self._covariance, self.form = mean, covariance, check_form(form)
        _require_shape(mean, covariance, form)

    @property
    def variance(self) -> Tensor:
        """(m, p)."""
        self._require("diag", "output", "full")
        if self.form == "diag":
            return self._covariance
        diagonal = self._covariance.diagonal(dim1=-2, dim2=-1)
        return diagonal if self.form == "output" else diagonal.unflatten(-1, self.mean.shape[-2:])

    @property
    def std(self) -> Tensor:
        """(m, p)."""
        return self.variance.sqrt()

    @property
    def cov(self) -> Tensor:
        """(m, p, p) between the outputs at each point, or (m·p, m·p) between everything, as was asked for."""
        self._require("output", "full")
        return self._covariance

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The q-quantile of each entry, (m, p); for several q, (len(q), m, p)."""
        return self.mean + torch.special.ndtri(self._levels(q))[..., None, None] * self.std

    def cdf(self, y) -> Tensor:
        """P(entry ≤ y), (m, p), for y that broadcasts to (m, p): a number, (p,), (m, 1) or (m, p); NaN where y is NaN.

        Leading axes of y are kept: (k, m, p) gives (k, m, p).
        """
        return normal_cdf(self._thresholds(y), self.mean, self.std)

    def log_density(self, y) -> Tensor:
        """log p(y) of each entry by itself, for y as in `cdf`: (m, p), NaN where y is NaN."""
        gap, variance = self._thresholds(y) - self.mean, self.variance
        return -(math.log(2 * math.pi) + variance.log() + gap.square() / variance) / 2

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval (lower, upper) that holds each entry with probability `level`, two (m, p) tensors."""
        if not 0 < level < 1:
            raise OptionError(f"the level of an interval lies strictly between 0 and 1, got {level}.")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        """As GPyTorch's distribution; what was not asked for is taken as uncorrelated."""
        self._require("diag", "output", "full")
        if self.form == "diag":
            covariance = DiagLinearOperator(self._covariance.flatten(-2))
        else:
            covariance = to_linear_operator(self._covariance)
            covariance = BlockDiagLinearOperator(covariance) if self.form == "output" else covariance
        return MultitaskMultivariateNormal(self.mean, covariance)

    def _levels(self, q) -> Tensor:
        levels = torch.as_tensor(q, dtype=self.mean.dtype, device=self.mean.device)
        if not bool(((levels > 0) & (levels < 1)).all()):
            raise OptionError(f"quantile levels lie strictly between 0 and 1, got {q}.")
        return levels

    def _thresholds(self, y) -> Tensor:
        y, shape = torch.as_tensor(y, dtype=self.mean.dtype, device=self.mean.device), tuple(self.mean.shape)
        aligned = zip(reversed(y.shape), reversed(shape), strict=False)
        if any(size not in (1, wanted) for size, wanted in aligned):
            raise InputError(f"y must be a number or broadcast to {shape}, one for each entry; got {tuple(y.shape)}.")
        return y.expand(torch.broadcast_shapes(y.shape, shape))

    def _require(self, *forms: str) -> None:
        if self.form not in forms:
            wanted = " or ".join(f'cov="{form}"' for form in forms)
            raise OptionError(f'this prediction was made with cov="{self.form}": ask for it with predict(X, {wanted}).')

    def __repr__(self) -> str:
        return f"Prediction(mean={tuple(self.mean.shape)}, cov={self.form!r})"


def normal_cdf(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """P(N(mean, std²) ≤ y), elementwise; where std is zero the variable is its mean."""
    gap = y - mean
    scores = torch.where(std > 0, gap / std, torch.where(gap >= 0, torch.inf, -torch.inf))
    # torch.special.ndtr is (1 + erf) / 2, which has no digits left in the lower tail
    return torch.erfc(-scores.masked_fill(gap.isnan(), torch.nan) / math.sqrt(2)) / 2


def _require_shape(mean: Tensor, covariance: Tensor | None, form: str) -> None:
    if mean.dim() != 2:
        raise InputError(f"the mean of a prediction has shape (m, p), got {tuple(mean.shape)}.")
    m, p = mean.shape
    wanted = {"none": None, "diag": (m, p), "output": (m, p, p), "full": (m * p, m * p)}[form]
    given = None if covariance is None else tuple(covariance.shape)
    if given != wanted:
        raise InputError(
            f"with form={form!r} and a mean {(m, p)} the covariance has shape {wanted}, got {given}. `form` says what it is: "
            f"one of {', '.join(map(repr, FORMS))}."
        )


HALVINGS = 200
"""Bisection ends when no number lies between the ends of a bracket; from any bracket of float64 numbers that takes less."""


class MixturePrediction(Prediction):
    """The average of S predictions of p outputs at m points, each of them Gaussian or of a likelihood.

    Args:
        components: S predictions of one shape and form; taken one by one, and only their marginals are kept.

    `mean`, `variance`, `std` and `cov` are those of the mixture, in the form that its components have. `quantile`,
    `interval` and `cdf` belong to the mixture itself, which is no Gaussian: `matched` is the Gaussian with its moments.

    Cost: O(S m p) time and memory beside those of one component; a quantile about 60 evaluations of S m p normal integrals.

    Example:
        >>> import torch
        >>> from ovkgp.inference import Prediction
        >>> from ovkgp.inference.posteriors.prediction import MixturePrediction
        >>> apart = [Prediction(torch.full((1, 1), level), torch.ones(1, 1), "diag") for level in (-3.0, 3.0)]
        >>> prediction = MixturePrediction(apart)
        >>> prediction.mean.item(), prediction.variance.item()
        (0.0, 10.0)
        >>> [round(prediction.quantile(q).item(), 3) for q in (0.25, 0.975)]
        [-3.0, 4.645]
    """

    def __init__(self, components: Iterable[Prediction]):
        means, self.components, within, form = [], [], None, None
        for component in components:
            form = component.form if form is None else form
            _require_alike(component, form, means)
            means.append(component.mean)
            if form != "none":
                own = _covariance(component)
                within = own.clone() if within is None else within.add_(own)
                self.components.append(_marginal(component))
        if not means:
            raise InputError("a mixture needs at least one component.")
        means = torch.stack(means)
        mean = means.mean(0)
        super().__init__(mean, None if form == "none" else within / len(means) + _between(means - mean, form), form)

    def cdf(self, y) -> Tensor:
        """P(entry ≤ y) of the mixture, for y as in `Prediction.cdf`."""
        self._require("diag", "output", "full")
        y = self._thresholds(y)
        flat = y.reshape(-1, *self.mean.shape)
        return torch.stack([self._cdf(level) for level in flat]).reshape(y.shape) if len(flat) else y.clone()

    def log_density(self, y) -> Tensor:
        """log mean_s p_s(y) of each entry, for y as in `Prediction.log_density`."""
        self._require("diag", "output", "full")
        densities = torch.stack([component.log_density(y) for component in self.components])
        return densities.logsumexp(0) - math.log(len(densities))

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The q-quantile of each entry of the mixture, (m, p); for several q, (len(q), m, p)."""
        self._require("diag", "output", "full")
        levels = self._levels(q)
        found = [self._quantile(float(level)) for level in levels.reshape(-1)]
        return torch.stack(found).reshape(*levels.shape, *self.mean.shape) if found else self.mean.new_zeros(0)

    @property
    def matched(self) -> Prediction:
        """The Gaussian prediction with the moments of the mixture."""
        return Prediction(self.mean, self._covariance, self.form)

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        """Refused, since a mixture is no Gaussian; `matched.distribution` is the Gaussian with its moments."""
        raise OptionError(
            "an average over hyperparameters is a mixture, not a Gaussian: use quantile, interval and cdf, or "
            "`matched.distribution` for the Gaussian with the same mean and covariance."
        )

    def _quantile(self, level: float) -> Tensor:
        own = torch.stack([component.quantile(level) for component in self.components])
        found = bisect(self._cdf, level, own.amin(0), own.amax(0))
        likelihood = getattr(self.components[0], "likelihood", None)
        if likelihood is None:
            return found
        # The jump of a count or a label is met from above, up to rounding.
        return torch.where(torch.as_tensor(likelihood.is_real, device=found.device), found, found.round())

    def _cdf(self, y: Tensor) -> Tensor:
        """P(entry ≤ y) for one y (m, p)."""
        if self._is_gaussian:
            return normal_cdf(y, *self._marginals).mean(0)
        first, *rest = (component.cdf(y) for component in self.components)
        return sum(rest, first) / len(self.components)

    @cached_property
    def _is_gaussian(self) -> bool:
        return all(type(component) is Prediction for component in self.components)

    @cached_property
    def _marginals(self) -> tuple[Tensor, Tensor]:
        return tuple(torch.stack([getattr(c, name) for c in self.components]) for name in ("mean", "std"))

    def __repr__(self) -> str:
        return f"MixturePrediction({len(self.components)} components, mean={tuple(self.mean.shape)}, cov={self.form!r})"


def bisect(cdf: Callable[[Tensor], Tensor], level: float, low: Tensor, high: Tensor) -> Tensor:
    """The smallest y with cdf(y) ≥ level, elementwise and to the last bits, where it lies in [low, high].

    Args:
        cdf: never falls, y ↦ values of the same shape.
        level: between 0 and 1.
        low, high: ends of a bracket for each element.

    Cost: about 60 calls of `cdf`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.posteriors.prediction import bisect
        >>> round(bisect(torch.special.ndtr, 0.975, torch.tensor([0.0]), torch.tensor([9.0])).item(), 4)
        1.96
    """
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        enough = cdf(middle) >= level
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


def _require_alike(component: Prediction, form: str, means: list[Tensor]) -> None:
    if component.form != form or (means and component.mean.shape != means[0].shape):
        raise InputError(
            f"the components of a mixture have one shape and one form of covariance; got {component!r} beside a mean "
            f"{tuple(means[0].shape)} with cov={form!r}."
        )


def _covariance(component: Prediction) -> Tensor:
    return component.variance if component.form == "diag" else component.cov


def _marginal(component: Prediction) -> Prediction:
    """What the marginals need: joint covariances of many components would fill the memory."""
    if type(component) is not Prediction or component.form == "diag":
        return component
    return Prediction(component.mean, component.variance, "diag")


def _between(deviations: Tensor, form: str) -> Tensor:
    """The covariance of the means (S, m, p), in the given form."""
    if form == "diag":
        return deviations.square().mean(0)
    if form == "output":
        return torch.einsum("smp,smq->mpq", deviations, deviations) / len(deviations)
    flat = deviations.flatten(1)
    return flat.mT @ flat / len(flat)
