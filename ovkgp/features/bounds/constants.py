"""The numbers of a kernel that every concentration bound is made of, and how they add and scale (BT-59, 63, 64)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ovkgp.features.bounds.orlicz import intrinsic_dimension


@dataclass(frozen=True, eq=False)
class SpectralConstants:
    """What a bound needs to know of a kernel and its features; any of the numbers may be infinite.

    Args:
        num_dims: d, the dimension of the lags that are covered by balls.
        num_outputs: p.
        at_zero: K_e(e), (p, p).
        slope: m = E[H_ω ‖A(ω)‖].
        root_slope: √E[H_ω² ‖A(ω)‖²]; for K = k Γ this is σ_p ‖Γ‖.
        sup_norm: ess sup ‖A(ω)‖.
        orlicz: the ψ₁ norm of ‖A(ω)‖.
        variance: v ≥ sup_δ ‖D · Var K̃(δ)‖.
        intrinsic_dim: p_int ≥ sup_δ IntDim(V(δ)) for a dominating V.
        separable: the error K̃ − K is a random number times a fixed matrix, so Hoeffding's inequality applies.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import spectral_constants
        >>> constants = spectral_constants(RBFKernel(ard_num_dims=2))
        >>> constants.kernel_norm, constants.scaled(3.0).kernel_norm
        (1.0, 3.0)
    """

    num_dims: int
    num_outputs: int
    at_zero: Tensor
    slope: float
    root_slope: float
    sup_norm: float
    orlicz: float
    variance: float
    intrinsic_dim: float
    separable: bool

    @property
    def kernel_norm(self) -> float:
        """‖K_e(e)‖ = sup_δ ‖K_e(δ)‖."""
        return float(torch.linalg.matrix_norm(self.at_zero, ord=2))

    def scaled(self, scale: float) -> SpectralConstants:
        """The constants of s · K."""
        linear = {name: scale * getattr(self, name) if scale else 0.0 for name in _LINEAR}  # infinity · 0 would be NaN
        variance = scale**2 * self.variance if scale else 0.0
        return replace(self, at_zero=scale * self.at_zero, variance=variance, **linear)

    def times(self, matrix: Tensor) -> SpectralConstants:
        """The constants of k · Γ from those of the scalar kernel k."""
        matrix = matrix.detach().to("cpu", torch.float64)
        return replace(
            self.scaled(float(torch.linalg.matrix_norm(matrix, ord=2))),
            num_outputs=matrix.shape[-1],
            at_zero=self.at_zero * matrix,
            intrinsic_dim=intrinsic_dimension(matrix @ matrix),
        )

    def __add__(self, other: SpectralConstants) -> SpectralConstants:
        """The constants of a sum with independent features: all add, by the triangle inequality."""
        totals = {name: getattr(self, name) + getattr(other, name) for name in (*_LINEAR, "at_zero", "variance")}
        scalar = self.num_outputs == 1 and self.separable and other.separable
        p = max(self.num_outputs, other.num_outputs)
        return replace(self, **totals, num_outputs=p, intrinsic_dim=float(p), separable=scalar)


_LINEAR = ("slope", "root_slope", "sup_norm", "orlicz")


def total(parts: Iterable[SpectralConstants]) -> SpectralConstants:
    """The constants of a sum of kernels."""
    first, *others = parts
    for other in others:
        first = first + other
    return first
