"""Predictions at given points: Gaussian ones, mixtures of S predictions with weights w_s, and predictions of single outputs joined.

The moments of a mixture follow from total expectation and total covariance,

    E[y] = Σ_s w_s μ_s,    Cov[y] = Σ_s w_s (C_s + (μ_s − E[y]) (μ_s − E[y])ᵀ),

and its quantiles by bisection from P(y ≤ t) = Σ_s w_s P_s(y ≤ t).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, to_linear_operator
from torch import Tensor

from ovkgp.checks import check_one_of, check_probability
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.algebra.dense import gaussian_log_density

FORMS = ("none", "diag", "output", "full")
MAX_HALVINGS = 200  # bisection steps; it ends earlier, when no number lies between the ends of a bracket


def check_form(form: str) -> str:
    """Check that `form` is a known form of a covariance."""
    return check_one_of("cov", form, FORMS)


class Prediction:
    """Gaussian prediction of p outputs at m points.

    Parameters
    ----------
    mean : Tensor of shape (m, p)
        Means.
    covariance : Tensor, optional
        Variances (m, p), blocks (m, p, p) or full matrix (m·p, m·p), point by point.
    form : {"none", "diag", "output", "full"}, default="none"
        Form of `covariance`.

    Attributes
    ----------
    mean : Tensor of shape (m, p)
        Means.
    form : str
        Form of the covariance.

    Examples
    --------
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
        _check_shape(mean, covariance, form)

    @property
    def variance(self) -> Tensor:
        """Variances (m, p)."""
        self._check_form("diag", "output", "full")
        if self.form == "diag":
            return self._covariance
        diagonal = self._covariance.diagonal(dim1=-2, dim2=-1)
        return diagonal if self.form == "output" else diagonal.unflatten(-1, self.mean.shape[-2:])

    @property
    def std(self) -> Tensor:
        """Standard deviations (m, p)."""
        return self.variance.sqrt()

    @property
    def cov(self) -> Tensor:
        """Covariance (m, p, p) between the outputs at each point, or (m·p, m·p) between all entries, as requested."""
        self._check_form("output", "full")
        return self._covariance

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Compute quantiles of each entry.

        Parameters
        ----------
        q : float or sequence of float
            Levels in (0, 1).

        Returns
        -------
        Tensor of shape (m, p), or (len(q), m, p) for several levels
        """
        return self.mean + torch.special.ndtri(self._levels(q))[..., None, None] * self.std

    def cdf(self, y) -> Tensor:
        """Compute P(entry ≤ y).

        Parameters
        ----------
        y : float or array-like
            Thresholds that broadcast to (m, p): a number, (p,), (m, 1) or (m, p). Leading axes are kept.

        Returns
        -------
        Tensor of shape (…, m, p)
            NaN where y is NaN.
        """
        return normal_cdf(self._thresholds(y), self.mean, self.std)

    def log_density(self, y) -> Tensor:
        """Compute log p(y) of each entry.

        Parameters
        ----------
        y : float or array-like
            Values, see `cdf`.

        Returns
        -------
        Tensor of shape (…, m, p)
            NaN where y is NaN.
        """
        gap, variance = self._thresholds(y) - self.mean, self.variance
        return gaussian_log_density(gap.square() / variance, variance.log())

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Compute the central interval of each entry.

        Parameters
        ----------
        level : float, default=0.9
            Probability of the interval.

        Returns
        -------
        lower, upper : Tensor of shape (m, p)
            Ends of the intervals.
        """
        level = check_probability("level", level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        """The prediction as GPyTorch's distribution; entries whose covariance was not requested are uncorrelated."""
        self._check_form("diag", "output", "full")
        if self.form == "diag":
            covariance = DiagLinearOperator(self._covariance.flatten(-2))
        else:
            covariance = to_linear_operator(self._covariance)
            covariance = BlockDiagLinearOperator(covariance) if self.form == "output" else covariance
        return MultitaskMultivariateNormal(self.mean, covariance)

    def _quantile_range(self, level: float) -> tuple[Tensor, Tensor]:
        """Return numbers (m, p) between which the quantiles are."""
        found = self.quantile(level)
        return found, found

    def _levels(self, q) -> Tensor:
        levels = torch.as_tensor(q, dtype=self.mean.dtype, device=self.mean.device)
        if not bool(((levels > 0) & (levels < 1)).all()):
            raise OptionError(f"q must be strictly between 0 and 1, got {q}.")
        return levels

    def _thresholds(self, y) -> Tensor:
        y, shape = torch.as_tensor(y, dtype=self.mean.dtype, device=self.mean.device), tuple(self.mean.shape)
        aligned = zip(reversed(y.shape), reversed(shape), strict=False)
        if any(size not in (1, expected) for size, expected in aligned):
            raise InputError(f"y has shape {tuple(y.shape)}, expected a number or a shape that broadcasts to {shape}.")
        return y.expand(torch.broadcast_shapes(y.shape, shape))

    def _check_form(self, *forms: str) -> None:
        if self.form not in forms:
            options = " or ".join(f'cov="{form}"' for form in forms)
            raise OptionError(f'This is not supported with cov="{self.form}". Use predict with {options}.')

    def __repr__(self) -> str:
        return f"Prediction(mean={tuple(self.mean.shape)}, cov={self.form!r})"


def normal_cdf(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Compute P(N(mean, std²) ≤ y) elementwise; if std is zero the variable is its mean."""
    gap = y - mean
    scores = torch.where(std > 0, gap / std, torch.where(gap >= 0, torch.inf, -torch.inf))
    # torch.special.ndtr is (1 + erf) / 2, which is inaccurate in the lower tail
    return torch.erfc(-scores.masked_fill(gap.isnan(), torch.nan) / math.sqrt(2)) / 2


def _check_shape(mean: Tensor, covariance: Tensor | None, form: str) -> None:
    if mean.dim() != 2:
        raise InputError(f"mean has shape {tuple(mean.shape)}, expected (m, p).")
    m, p = mean.shape
    expected = {"none": None, "diag": (m, p), "output": (m, p, p), "full": (m * p, m * p)}[form]
    given = None if covariance is None else tuple(covariance.shape)
    if given != expected:
        raise InputError(
            f"covariance has shape {given}, expected {expected} with form={form!r} and a mean of shape {(m, p)}. Set `form` to one of {', '.join(map(repr, FORMS))}."
        )


class MixturePrediction(Prediction):
    """Mixture of S predictions of p outputs at m points, Gaussian or of a likelihood.

    Components may be an iterator; only their marginals are kept. `weights` (S,) sum to one; None is equal weights.
    """

    def __init__(self, components: Iterable[Prediction], weights: Sequence[float] | None = None):
        means, self.components, within, form = [], [], None, None
        for index, component in enumerate(components):
            form = component.form if form is None else form
            if component.form != form or (means and component.mean.shape != means[0].shape):
                raise InputError(
                    f"components must have the same shape and form of covariance, got {component!r} and a mean of shape {tuple(means[0].shape)} with cov={form!r}."
                )
            means.append(component.mean)
            if form != "none":
                covariance = _covariance(component)
                covariance = covariance.clone() if weights is None else float(weights[index]) * covariance
                within = covariance if within is None else within.add_(covariance)
                self.components.append(_marginal(component))
        if not means:
            raise InputError("components must have at least one prediction.")
        means, self._weights = torch.stack(means), weights
        mean = self._average(means)
        within = within / len(means) if weights is None and form != "none" else within
        super().__init__(mean, None if form == "none" else within + self._between(means - mean, form), form)

    @classmethod
    def of_moments(cls, means: Tensor, variances: Tensor | None, weights: Sequence[float]) -> MixturePrediction:
        """Make a mixture of Gaussian predictions from means and variances (S, m, p)."""
        found, form = cls.__new__(cls), "none" if variances is None else "diag"
        found._weights, found.components, covariance = weights, [], None
        mean = found._average(means)
        if variances is not None:
            covariance = found._average(variances + (means - mean).square())
            found.components = [Prediction(*pair, form) for pair in zip(means, variances, strict=True)]
        Prediction.__init__(found, mean, covariance, form)
        return found

    def _average(self, values: Tensor) -> Tensor:
        """Average values (S, ...) over the components."""
        if self._weights is None:
            return values.mean(0)
        return torch.tensordot(torch.as_tensor(self._weights, dtype=values.dtype, device=values.device), values, 1)

    def _between(self, deviations: Tensor, form: str) -> Tensor:
        """Compute the covariance of the deviations (S, m, p) of the means, in the given form."""
        if form == "diag":
            return self._average(deviations.square())
        count = len(deviations)
        weights = deviations.new_full((count,), 1 / count) if self._weights is None else torch.as_tensor(self._weights)
        deviations = deviations * weights.to(deviations).sqrt()[:, None, None]
        if form == "output":
            return torch.einsum("smp,smq->mpq", deviations, deviations)
        flat = deviations.flatten(1)
        return flat.mT @ flat

    def cdf(self, y) -> Tensor:
        """Compute P(entry ≤ y) of the mixture, for y as in `Prediction.cdf`."""
        self._check_form("diag", "output", "full")
        y = self._thresholds(y)
        flat = y.reshape(-1, *self.mean.shape)
        return torch.stack([self._cdf(level) for level in flat]).reshape(y.shape) if len(flat) else y.clone()

    def log_density(self, y) -> Tensor:
        """Compute log Σ_s w_s p_s(y) of each entry, for y as in `Prediction.log_density`."""
        self._check_form("diag", "output", "full")
        densities = torch.stack([component.log_density(y) for component in self.components])
        if self._weights is None:
            return densities.logsumexp(0) - math.log(len(densities))
        log_weights = torch.as_tensor(self._weights).to(densities).log()
        return (densities + log_weights.reshape(-1, *[1] * (densities.dim() - 1))).logsumexp(0)

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Compute the q-quantile of each entry of the mixture, (m, p), or (len(q), m, p) for several q."""
        self._check_form("diag", "output", "full")
        levels = self._levels(q)
        found = [self._quantile(float(level)) for level in levels.reshape(-1)]
        return torch.stack(found).reshape(*levels.shape, *self.mean.shape) if found else self.mean.new_zeros(0)

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        """Not supported, since a mixture is not Gaussian."""
        raise OptionError(
            "distribution is not supported with an average over hyperparameters, which is a mixture and not Gaussian. Use quantile, interval and cdf."
        )

    def _quantile(self, level: float) -> Tensor:
        found = bisect(self._cdf, level, *self._quantile_range(level))
        likelihood = getattr(self.components[0], "likelihood", None)
        if likelihood is None:
            return found
        # For counts and labels bisection approaches the jump from above, up to rounding.
        return torch.where(torch.as_tensor(likelihood.is_real, device=found.device), found, found.round())

    def _quantile_range(self, level: float) -> tuple[Tensor, Tensor]:
        low, high = zip(*(component._quantile_range(level) for component in self.components), strict=True)
        return torch.stack(low).amin(0), torch.stack(high).amax(0)

    def _cdf(self, y: Tensor) -> Tensor:
        """Compute P(entry ≤ y) for one y (m, p)."""
        if self._is_gaussian:
            return self._average(normal_cdf(y, *self._marginals))
        return self._average(torch.stack([component.cdf(y) for component in self.components]))

    @cached_property
    def _is_gaussian(self) -> bool:
        return all(type(component) is Prediction for component in self.components)

    @cached_property
    def _marginals(self) -> tuple[Tensor, Tensor]:
        return tuple(torch.stack([getattr(c, name) for c in self.components]) for name in ("mean", "std"))

    def __repr__(self) -> str:
        return f"MixturePrediction({len(self.components)} components, mean={tuple(self.mean.shape)}, cov={self.form!r})"


class JoinedPrediction(Prediction):
    """Predictions of single outputs, (m, 1) each, as one prediction of p outputs, with a covariance between them."""

    def __init__(self, columns: Sequence[Prediction], covariance: Tensor | None, form: str):
        super().__init__(torch.cat([column.mean for column in columns], -1), covariance, form)
        self.columns = [_marginal(column) for column in columns] if form != "none" else []

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """Compute quantiles of each entry, (m, p), or (len(q), m, p) for several levels."""
        self._check_form("diag", "output", "full")
        return torch.cat([column.quantile(q) for column in self.columns], -1)

    def cdf(self, y) -> Tensor:
        """Compute P(entry ≤ y), for y as in `Prediction.cdf`."""
        return self._map("cdf", y)

    def log_density(self, y) -> Tensor:
        """Compute log p(y) of each entry, for y as in `Prediction.log_density`."""
        return self._map("log_density", y)

    @property
    def distribution(self) -> MultitaskMultivariateNormal:
        """Not supported unless all outputs are Gaussian."""
        if any(isinstance(column, MixturePrediction) for column in self.columns):
            return self.columns[0].distribution  # raises
        return super().distribution

    def _map(self, name: str, y) -> Tensor:
        self._check_form("diag", "output", "full")
        parts = self._thresholds(y).split(1, -1)
        return torch.cat([getattr(column, name)(part) for column, part in zip(self.columns, parts, strict=True)], -1)

    def _quantile_range(self, level: float) -> tuple[Tensor, Tensor]:
        ends = zip(*(column._quantile_range(level) for column in self.columns), strict=True)
        return tuple(torch.cat(parts, -1) for parts in ends)

    def __repr__(self) -> str:
        return f"JoinedPrediction(mean={tuple(self.mean.shape)}, cov={self.form!r})"


def bisect(cdf: Callable[[Tensor], Tensor], level: float, low: Tensor, high: Tensor) -> Tensor:
    """Find the smallest y in [low, high] with cdf(y) ≥ level, elementwise, to the last bits, in about 60 calls."""
    for _ in range(MAX_HALVINGS):
        middle = low + (high - low) / 2
        if not bool(((low < middle) & (middle < high)).any()):
            break
        is_above = cdf(middle) >= level
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    return high


def _covariance(component: Prediction) -> Tensor:
    return component.variance if component.form == "diag" else component.cov


def _marginal(component: Prediction) -> Prediction:
    """Drop joint covariances: those of many components would exceed the memory."""
    if type(component) is not Prediction or component.form == "diag":
        return component
    return Prediction(component.mean, component.variance, "diag")
