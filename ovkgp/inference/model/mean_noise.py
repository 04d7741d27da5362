"""Prior mean m: (n, d) ↦ (n, p), noise covariance Σ (p, p), and `Model`, which combines them with the kernel."""

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
NOISE_KINDS = ("shared", "per_output", "full")
DEFAULT_NOISE = 0.1  # variance of trained noise before a training


class Model(NamedTuple):
    """Kernel, mean, noise and, optionally, a feature map of the kernel."""

    kernel: Kernel
    mean: OutputMean
    noise: OutputNoise
    features: FeatureMap | None = None

    def predictive_noise(self, data: Observations) -> Tensor:
        """Return Σ (p, p) of a new observation: the model's, or the average of the known variances of each output."""
        if data.noise is None:
            return self.noise.matrix().detach()
        observed = data.observed
        return torch.diag_embed((data.noise.double() * observed).sum(0) / observed.sum(0).clamp_min(1))


def make_output_mean(mean: str | Mean, num_outputs: int) -> OutputMean:
    """Make the mean module for "zero", "constant", "linear" or a GPyTorch mean."""
    if isinstance(mean, Mean):
        return WrappedMean(mean, num_outputs)
    if not isinstance(mean, str) or mean not in MEANS:
        raise OptionError(f"mean must be one of {', '.join(map(repr, MEANS))} or a gpytorch.means.Mean, got {mean!r}.")
    return PolynomialMean(num_outputs, MEANS.index(mean) - 1)


class OutputMean(Module):
    """Prior mean m: (n, d) ↦ (n, p)."""

    num_outputs: int
    has_basis = False
    """Whether m is linear in its parameters, with a basis that statistics can store."""

    def basis(self, X: Tensor) -> Tensor | None:
        """Return h(X) (n, b), or None if m is not linear in its parameters."""
        return None

    @property
    def coefficients(self) -> Tensor:
        """β (b, p)."""
        return torch.zeros(0, self.num_outputs, dtype=torch.float64)

    def set_num_dims(self, num_dims: int) -> None:
        """Set the number of input columns, if the mean depends on it."""

    def initialize_from_data(self, X: Tensor, Y: Tensor) -> None:
        """Set the parameters from data (n, d), (n, p) with NaN if missing."""


class PolynomialMean(OutputMean):
    """Mean β₀ + xᵀβ₁ up to `degree`: −1 (zero), 0 (one constant per output) or 1 (linear)."""

    has_basis = True

    def __init__(self, num_outputs: int, degree: int):
        super().__init__()
        self.num_outputs, self.degree, self.num_dims = num_outputs, degree, None
        if degree >= 0:
            self.register_parameter("constant", torch.nn.Parameter(torch.zeros(num_outputs, dtype=torch.float64)))

    def set_num_dims(self, num_dims: int) -> None:
        if self.degree < 1:
            return
        if self.num_dims is None:
            self.num_dims = num_dims
            slopes = torch.zeros(num_dims, self.num_outputs, dtype=torch.float64, device=self.constant.device)
            self.register_parameter("slopes", torch.nn.Parameter(slopes))
        elif num_dims != self.num_dims:
            raise InputError(f"X has {num_dims} columns, the linear mean expects {self.num_dims}.")

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        slopes = state_dict.get(f"{prefix}slopes")
        if slopes is not None and self.num_dims is None:  # without data, d is read from the loaded state
            self.set_num_dims(len(slopes))
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
                "The linear mean has no slopes before the number of input columns is known. Fit or condition on data, load a state, or call `set_num_dims(num_dims)`."
            )
        return torch.cat([constant, self.slopes])

    def forward(self, X: Tensor) -> Tensor:
        if self.degree < 0:
            return X.new_zeros(len(X), self.num_outputs)
        return self.basis(X.to(self.constant)) @ self.coefficients

    @torch.no_grad()
    def initialize_from_data(self, X: Tensor, Y: Tensor) -> None:
        """Fit each output by least squares; slopes are zero if it has at most d + 1 observed values."""
        if self.degree == 1:
            self.set_num_dims(X.shape[1])
        X, Y = X.to(self.coefficients), Y.to(self.coefficients)
        for a, observed in enumerate((~torch.isnan(Y)).T if self.degree >= 0 else ()):
            if bool(observed.any()):
                self._initialize_output(a, X[observed], Y[observed, a])

    def _initialize_output(self, index: int, X: Tensor, y: Tensor) -> None:
        self.constant[index] = y.mean()
        if self.degree == 1:
            slopes = _fit_slopes(X, y) if len(y) > X.shape[1] + 1 else X.new_zeros(X.shape[1])
            self.slopes[:, index] = slopes
            self.constant[index] -= X.mean(0) @ slopes


def _fit_slopes(X: Tensor, y: Tensor) -> Tensor:
    """Fit least-squares slopes (d,) with an intercept, of minimum norm in scaled columns, 0 for a constant one."""
    centered = X - X.mean(0)
    std = centered.square().mean(0).sqrt()
    varies = std > 1e-12 * X.abs().amax(0)
    scale = torch.where(varies, std, 1.0)
    return torch.linalg.pinv(torch.where(varies, centered / scale, 0.0)) @ (y - y.mean()) / scale


class WrappedMean(OutputMean):
    """GPyTorch mean with values (n, p), or (n,) shared by all outputs."""

    def __init__(self, mean: Mean, num_outputs: int):
        super().__init__()
        self.mean, self.num_outputs = mean, num_outputs

    def forward(self, X: Tensor) -> Tensor:
        value = self.mean(X)
        value = value.unsqueeze(-1) if value.dim() == 1 else value
        if value.shape not in {(len(X), 1), (len(X), self.num_outputs)}:
            raise InputError(
                f"{type(self.mean).__name__} returned shape {tuple(value.shape)}, expected ({len(X)}, {self.num_outputs}) or ({len(X)},)."
            )
        return value.expand(-1, self.num_outputs)


class MeanColumn(OutputMean):
    """Mean of one output, sharing the parameters of the whole."""

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


class OutputNoise(Module):
    """Noise covariance Σ, trained (by name) or fixed (a variance, a vector (p,) or a matrix (p, p))."""

    def __init__(self, noise, num_outputs: int):
        super().__init__()
        self.num_outputs = num_outputs
        self.is_trained = isinstance(noise, str)
        value = _initial_noise(noise, num_outputs) if self.is_trained else _validate_noise(noise, num_outputs)
        self.kind = NOISE_KINDS[value.dim()]
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
        """Cholesky factor of a full Σ."""
        return self.lower.tril(-1) + torch.diag_embed(self.log_scale.exp())

    @property
    def value(self) -> Tensor:
        """Σ as it was specified: a scalar, (p,) or (p, p)."""
        return self.chol @ self.chol.mT if self.kind == "full" else (2 * self.log_scale).exp()

    @property
    def variances(self) -> Tensor:
        """Diagonal of Σ (p,), or a scalar if all outputs share it."""
        return self.value.diagonal() if self.kind == "full" else self.value

    def matrix(self) -> Tensor:
        """Return Σ (p, p)."""
        return self.value if self.kind == "full" else torch.diag_embed(self.value.expand(self.num_outputs))

    @torch.no_grad()
    def set(self, value) -> None:
        """Set Σ to a value of the same kind; one variance, or one per output, is expanded if needed."""
        value = _validate_noise(value, self.num_outputs).to(self.log_scale)
        if self.kind == "full":
            matrix = value if value.dim() == 2 else torch.diag_embed(value.expand(self.num_outputs))
            chol = torch.linalg.cholesky(matrix)
            self.log_scale.copy_(chol.diagonal().log())
            self.lower.copy_(chol.tril(-1))
        else:
            variances = value.diagonal() if value.dim() == 2 else value
            self.log_scale.copy_((variances.mean() if self.kind == "shared" else variances).log() / 2)


class NoiseEntry(Module):
    """Noise of one output, sharing the parameters of the whole (which must be diagonal)."""

    is_diagonal, num_outputs = True, 1

    def __init__(self, whole: OutputNoise, index: int):
        super().__init__()
        self.whole, self.index = whole, index

    def matrix(self) -> Tensor:
        variances = self.whole.variances
        return (variances if variances.dim() == 0 else variances[self.index]).reshape(1, 1)


def _initial_noise(kind: str, num_outputs: int) -> Tensor:
    if kind not in NOISE_KINDS:
        raise OptionError(
            f"noise must be one of {', '.join(map(repr, NOISE_KINDS))} (trained), or a variance, a vector (p,) or a matrix (p, p) (fixed), got {kind!r}."
        )
    shapes = {"shared": torch.ones(()), "per_output": torch.ones(num_outputs), "full": torch.eye(num_outputs)}
    return DEFAULT_NOISE * shapes[kind].double()


def _validate_noise(noise, num_outputs: int) -> Tensor:
    if isinstance(noise, bool):
        raise InputError("noise must be a variance, got a bool. Only predict(X, noise=True) expects one.")
    try:
        value = torch.as_tensor(noise, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"noise must be a number, (p,) or (p, p): {error}") from error
    if value.dim() > 2 or any(size != num_outputs for size in value.shape):
        raise InputError(
            f"noise has shape {tuple(value.shape)}, expected a number, ({num_outputs},) or ({num_outputs}, "
            f"{num_outputs}). Pass variances known for each entry of Y to fit, condition and log_evidence as `noise=`."
        )
    if value.dim() == 2:
        asymmetry = (value - value.mT).abs().max()  # compared relative to the scale of the data, which is arbitrary
        if not bool(asymmetry <= 1e-8 * value.abs().max()) or torch.linalg.cholesky_ex(value).info.item() != 0:
            raise InputError("noise must be a symmetric and positive definite matrix.")
    elif not bool((torch.isfinite(value) & (value > 0)).all()):
        raise InputError(
            "noise must be a positive, finite variance. For data without noise use a small fraction of their variance, such as 1e-6."
        )
    return value
