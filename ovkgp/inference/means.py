"""The prior mean m(x) of the outputs: zero, a constant each, a linear trend each, or any GPyTorch mean.

The first three are h(x)ᵀβ with a basis h of b functions and trained coefficients β (b, p); sufficient statistics keep the
columns of the basis, so that β can change after the data have streamed by.
"""

from __future__ import annotations

import torch
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

MEANS = ("zero", "constant", "linear")


class OutputMean(Module):
    """m: (n, d) ↦ (n, p); `basis` is None where m is not linear in its parameters."""

    num_outputs: int
    has_basis = False
    """Whether the mean is linear in its parameters, with a basis that statistics can keep."""

    def basis(self, X: Tensor) -> Tensor | None:
        """h(X) (n, b)."""
        return None

    @property
    def coefficients(self) -> Tensor:
        """β (b, p)."""
        return torch.zeros(0, self.num_outputs, dtype=torch.float64)

    def see(self, num_dims: int) -> None:
        """Learn the number of input columns, where the mean depends on it."""

    def start(self, X: Tensor, Y: Tensor) -> None:
        """Set the parameters from data (n, d), (n, p) with NaN where missing."""


class PolynomialMean(OutputMean):
    """β₀ + xᵀβ₁ up to `degree`: −1 (zero), 0 (a constant for each output) or 1 (linear).

    Args:
        num_outputs: p.
        degree: −1, 0 or 1.

    Example:
        >>> import torch
        >>> from ovkgp.inference.means import PolynomialMean
        >>> mean = PolynomialMean(num_outputs=2, degree=0)
        >>> mean.start(torch.zeros(3, 1), torch.tensor([[1.0, 4.0], [3.0, torch.nan], [2.0, 6.0]]))
        >>> mean(torch.zeros(1, 1)).tolist()
        [[2.0, 5.0]]
    """

    has_basis = True

    def __init__(self, num_outputs: int, degree: int):
        super().__init__()
        self.num_outputs, self.degree, self.num_dims = num_outputs, degree, None
        if degree >= 0:
            self.register_parameter("constant", torch.nn.Parameter(torch.zeros(num_outputs, dtype=torch.float64)))

    def see(self, num_dims: int) -> None:
        if self.degree < 1:
            return
        if self.num_dims is None:
            self.num_dims = num_dims
            slopes = torch.zeros(num_dims, self.num_outputs, dtype=torch.float64, device=self.constant.device)
            self.register_parameter("slopes", torch.nn.Parameter(slopes))
        elif num_dims != self.num_dims:
            raise InputError(f"X has {num_dims} columns; the linear mean was made with {self.num_dims}.")

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        slopes = state_dict.get(f"{prefix}slopes")
        if slopes is not None and self.num_dims is None:  # a mean that has not seen data learns d from what it loads
            self.see(len(slopes))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def basis(self, X: Tensor) -> Tensor:
        ones = X.new_ones(len(X), int(self.degree >= 0))
        return torch.cat([ones, X], -1) if self.degree == 1 else ones

    @property
    def coefficients(self) -> Tensor:
        if self.degree < 0:
            return super().coefficients
        constant = self.constant.unsqueeze(0)
        if self.degree == 0:
            return constant
        if self.num_dims is None:
            raise InputError(
                "the linear mean has no slopes yet, since it has not seen the number of input columns: fit or condition "
                "on data, load a state, or call `see(num_dims)`."
            )
        return torch.cat([constant, self.slopes])

    def forward(self, X: Tensor) -> Tensor:
        if self.degree < 0:
            return X.new_zeros(len(X), self.num_outputs)
        return self.basis(X.to(self.constant)) @ self.coefficients

    @torch.no_grad()
    def start(self, X: Tensor, Y: Tensor) -> None:
        """Least squares for each output where it was observed; no slopes where it has no more than d + 1 entries."""
        if self.degree == 1:
            self.see(X.shape[1])
        X, Y = X.to(self.coefficients), Y.to(self.coefficients)
        for a, seen in enumerate((~torch.isnan(Y)).T if self.degree >= 0 else ()):
            if bool(seen.any()):
                self._start_output(a, X[seen], Y[seen, a])

    def _start_output(self, index: int, X: Tensor, y: Tensor) -> None:
        self.constant[index] = y.mean()
        if self.degree == 1:
            slopes = _slopes(X, y) if len(y) > X.shape[1] + 1 else X.new_zeros(X.shape[1])
            self.slopes[:, index] = slopes
            self.constant[index] -= X.mean(0) @ slopes


def _slopes(X: Tensor, y: Tensor) -> Tensor:
    """Least-squares slopes (d,) with an intercept, the smallest in standardised columns; zero for a constant column."""
    centred = X - X.mean(0)
    spread = centred.square().mean(0).sqrt()
    varies = spread > 1e-12 * X.abs().amax(0)
    scale = torch.where(varies, spread, 1.0)
    return torch.linalg.pinv(torch.where(varies, centred / scale, 0.0)) @ (y - y.mean()) / scale


class WrappedMean(OutputMean):
    """A GPyTorch mean whose value is (n, p), or (n,) and then the same for all outputs."""

    def __init__(self, mean: Mean, num_outputs: int):
        super().__init__()
        self.mean, self.num_outputs = mean, num_outputs

    def forward(self, X: Tensor) -> Tensor:
        value = self.mean(X)
        value = value.unsqueeze(-1) if value.dim() == 1 else value
        if value.shape not in {(len(X), 1), (len(X), self.num_outputs)}:
            raise InputError(
                f"the mean {type(self.mean).__name__} gave shape {tuple(value.shape)} for {len(X)} points; expected "
                f"({len(X)}, {self.num_outputs}) or ({len(X)},)."
            )
        return value.expand(-1, self.num_outputs)


class MeanColumn(OutputMean):
    """One output's mean, sharing the parameters of the whole."""

    def __init__(self, whole: OutputMean, index: int):
        super().__init__()
        self.whole, self.index, self.num_outputs = whole, index, 1

    @property
    def has_basis(self) -> bool:
        return self.whole.has_basis

    def basis(self, X: Tensor) -> Tensor | None:
        return self.whole.basis(X)

    @property
    def coefficients(self) -> Tensor:
        return self.whole.coefficients[:, [self.index]]

    def forward(self, X: Tensor) -> Tensor:
        return self.whole(X)[:, [self.index]]


def output_mean(mean: str | Mean, num_outputs: int) -> OutputMean:
    """The mean module for "zero", "constant", "linear" or a GPyTorch mean."""
    if isinstance(mean, Mean):
        return WrappedMean(mean, num_outputs)
    if not isinstance(mean, str) or mean not in MEANS:
        raise OptionError(f"mean must be one of {', '.join(map(repr, MEANS))} or a gpytorch.means.Mean, got {mean!r}.")
    return PolynomialMean(num_outputs, MEANS.index(mean) - 1)
