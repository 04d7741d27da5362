"""What a road needs to know of a model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.inference.model.observations import Observations

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
        >>> from ovkgp.inference.model.mean_noise import PolynomialMean
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
        for a, observed in enumerate((~torch.isnan(Y)).T if self.degree >= 0 else ()):
            if bool(observed.any()):
                self._start_output(a, X[observed], Y[observed, a])

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


KINDS = ("shared", "per_output", "full")


class OutputNoise(Module):
    """Σ, trained or fixed.

    Args:
        noise: "shared", "per_output" or "full" (trained); a variance, a vector (p,) of variances or a covariance (p, p).
        num_outputs: p.

    Example:
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> OutputNoise("per_output", num_outputs=2).value.shape, OutputNoise(0.1, num_outputs=2).matrix().shape
        (torch.Size([2]), torch.Size([2, 2]))
    """

    def __init__(self, noise, num_outputs: int):
        super().__init__()
        self.num_outputs = num_outputs
        self.is_trained = isinstance(noise, str)
        value = _start(noise, num_outputs) if self.is_trained else _fixed(noise, num_outputs)
        self.kind = KINDS[value.dim()]
        store = self._store_parameter if self.is_trained else self.register_buffer
        chol = value.sqrt() if value.dim() < 2 else torch.linalg.cholesky(value)
        if self.kind == "full":
            store("log_scale", chol.diagonal().log().clone())
            store("lower", chol.tril(-1))
        else:
            store("log_scale", chol.log())

    def _store_parameter(self, name: str, value: Tensor) -> None:
        self.register_parameter(name, torch.nn.Parameter(value))

    @property
    def is_diagonal(self) -> bool:
        return self.kind != "full"

    @property
    def chol(self) -> Tensor:
        """The Cholesky factor of a full Σ."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_scale.exp())

    @property
    def value(self) -> Tensor:
        """Σ as it was asked for: a scalar, (p,) or (p, p)."""
        return self.chol @ self.chol.mT if self.kind == "full" else (2 * self.log_scale).exp()

    @property
    def variances(self) -> Tensor:
        """The diagonal of Σ (p,), or a scalar where all outputs share it."""
        return self.value.diagonal() if self.kind == "full" else self.value

    def matrix(self) -> Tensor:
        """Σ (p, p)."""
        return self.value if self.kind == "full" else torch.diag_embed(self.value.expand(self.num_outputs))

    @torch.no_grad()
    def set(self, value) -> None:
        """Give Σ another value of the same kind; one variance, or one an output, is spread where more is wanted."""
        value = _fixed(value, self.num_outputs).to(self.log_scale)
        if self.kind == "shared":
            self.log_scale.copy_(value.diagonal().mean().log() / 2 if value.dim() == 2 else value.mean().log() / 2)
        elif self.kind == "per_output":
            self.log_scale.copy_((value.diagonal() if value.dim() == 2 else value).log() / 2)
        else:
            matrix = value if value.dim() == 2 else torch.diag_embed(value.expand(self.num_outputs))
            chol = torch.linalg.cholesky(matrix)
            self.log_scale.copy_(chol.diagonal().log())
            self.lower.copy_(chol.tril(-1))


class NoiseEntry(Module):
    """One output's noise, sharing the parameters of the whole (which must be diagonal)."""

    is_diagonal, num_outputs = True, 1

    def __init__(self, whole: OutputNoise, index: int):
        super().__init__()
        self.whole, self.index = whole, index

    def matrix(self) -> Tensor:
        variances = self.whole.variances
        return (variances if variances.dim() == 0 else variances[self.index]).reshape(1, 1)


def _start(kind: str, num_outputs: int) -> Tensor:
    if kind not in KINDS:
        raise OptionError(
            f"noise must be one of {', '.join(map(repr, KINDS))} (trained), or a variance, a vector (p,) or a matrix "
            f"(p, p) (fixed); got {kind!r}."
        )
    shapes = {"shared": torch.ones(()), "per_output": torch.ones(num_outputs), "full": torch.eye(num_outputs)}
    return 0.1 * shapes[kind].double()


def _fixed(noise, num_outputs: int) -> Tensor:
    if isinstance(noise, bool):
        raise InputError(f"noise is a variance, not a switch; got {noise}. (predict(…, noise=True) is one.)")
    try:
        value = torch.as_tensor(noise, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"noise must be a number, (p,) or (p, p): {error}") from error
    if value.dim() > 2 or any(size != num_outputs for size in value.shape):
        raise InputError(
            f"noise must be a number, ({num_outputs},) or ({num_outputs}, {num_outputs}); got shape {tuple(value.shape)}. "
            "Variances known for each entry of Y go to fit, condition and log_evidence as `noise=`."
        )
    if value.dim() == 2:
        asymmetry = (value - value.mT).abs().max()  # relative: the scale of the data is anybody's
        if not bool(asymmetry <= 1e-8 * value.abs().max()) or torch.linalg.cholesky_ex(value).info.item() != 0:
            raise InputError("a noise matrix must be symmetric and positive definite.")
    elif not bool((torch.isfinite(value) & (value > 0)).all()):
        raise InputError(
            "noise is a variance and must be positive and finite; give data without noise a small share of their variance, such as 1e-6."
        )
    return value


class Model(NamedTuple):
    """Kernel, mean, noise and, perhaps, a feature map of the kernel."""

    kernel: Kernel
    mean: OutputMean
    noise: OutputNoise
    features: FeatureMap | None = None

    def new_noise(self, data: Observations) -> Tensor:
        """Σ (p, p) of a new observation: the model's, or the average of the known variances for each output."""
        if data.noise is None:
            return self.noise.matrix().detach()
        observed = data.observed
        return torch.diag_embed((data.noise.double() * observed).sum(0) / observed.sum(0).clamp_min(1))
