"""What a posterior says about given points: a mean, and as much of the covariance as was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, to_linear_operator
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

FORMS = ("none", "diag", "output", "full")


def require_form(form: str) -> str:
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
        self.mean, self._covariance, self.form = mean, covariance, require_form(form)
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
