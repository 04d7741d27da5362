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

    Subclasses keep the kernel at `kernel` (None where there is none) and give `num_outputs`, `num_features` and
    `forward`. `ORFF` and `Nystrom` are the two in this package; `ORFFKernel` makes a GPyTorch kernel of any.

    Example:
        >>> import torch
        >>> from linear_operator import to_linear_operator
        >>> from ovkgp.features import FeatureMap, ORFFKernel
        >>> class Parabolas(FeatureMap):  # random functions a + b x + c x²
        ...     kernel, num_outputs, num_features = None, 1, 3
        ...     def forward(self, X):
        ...         X = self.check(X)
        ...         return to_linear_operator(torch.cat([X**0, X, X**2], -1))
        >>> Parabolas()(torch.randn(5, 1)).shape, ORFFKernel(Parabolas())(torch.randn(5, 1)).shape
        (torch.Size([5, 3]), torch.Size([5, 5]))
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
    def check(X: Tensor, name: str = "X") -> Tensor:
        """X as a finite floating (..., n, d) tensor; a vector is one column."""
        if not torch.is_tensor(X):
            raise InputError(f"{name} must be a torch tensor of shape (n, d), got {type(X).__name__}.")
        if not X.is_floating_point():
            raise InputError(f"{name} must be floating point, got {X.dtype}; use .double().")
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        if not torch.isfinite(X).all():
            raise InputError(f"{name} holds NaN or infinity; inputs must be finite (only outputs may be missing).")
        return X
