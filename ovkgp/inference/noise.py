"""The noise of a new observation, y = f(x) + ε with ε ~ N(0, Σ): one variance, one an output, or a full Σ (p, p).

A name ("shared", "per_output", "full") makes it trained, a value keeps it fixed. Trained variances live on the log scale
and a full Σ = L Lᵀ through its Cholesky factor, so that every real parameter is a valid noise at any scale of the data.
"""

from __future__ import annotations

import torch
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

KINDS = ("shared", "per_output", "full")


class OutputNoise(Module):
    """Σ, trained or fixed.

    Args:
        noise: "shared", "per_output" or "full" (trained); a variance, a vector (p,) of variances or a covariance (p, p).
        num_outputs: p.

    Example:
        >>> from ovkgp.inference.noise import OutputNoise
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
