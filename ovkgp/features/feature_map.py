"""What every feature map has in common."""

from __future__ import annotations

from copy import copy

import torch
from gpytorch.kernels import Kernel
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import InputError


class FeatureMap(Module):
    """A finite-dimensional kernel: `map(X)` is Φ, a linear operator of size (n·p) × `num_features` with ΦΦᵀ ≈ K.

    Subclasses keep the kernel at `kernel` (None where there is none) and give `num_outputs` and `num_features`.
    """

    kernel: Kernel | None

    @property
    def is_stationary(self) -> bool:
        """Whether ΦΦᵀ depends on lags only, as the kernel of random Fourier features does."""
        return False

    @property
    def batch_shape(self) -> torch.Size:
        """That of the kernel; the batches share their base noise or landmarks."""
        return torch.Size() if self.kernel is None else self.kernel.batch_shape

    def __getitem__(self, index) -> FeatureMap:
        return self.over(self.kernel[index]) if len(self.batch_shape) else self

    def expand_batch(self, *sizes) -> FeatureMap:
        """The same map over the expanded kernel."""
        return self.over(self.kernel.expand_batch(*sizes))

    def over(self, kernel: Kernel) -> FeatureMap:
        """The same map, noise or landmarks and all, over another kernel of the same kind."""
        other = self._sharing_copy()
        other.kernel = kernel
        return other

    def _sharing_copy(self) -> FeatureMap:
        """A copy that shares tensors and kernel with this map, but can be given others without changing it."""
        other = copy(self)
        for registry in ("_parameters", "_buffers", "_modules"):
            setattr(other, registry, dict(getattr(self, registry)))
        return other

    @staticmethod
    def check(X: Tensor) -> Tensor:
        """X as a finite floating (..., n, d) tensor; a vector is one column."""
        if not torch.is_tensor(X):
            raise InputError(f"X must be a torch tensor of shape (n, d), got {type(X).__name__}.")
        if not X.is_floating_point():
            raise InputError(f"X must be floating point, got {X.dtype}; use X.double().")
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        if not torch.isfinite(X).all():
            raise InputError("X holds NaN or infinity; inputs must be finite (only outputs may be missing).")
        return X
