"""The base class of feature maps."""

from __future__ import annotations

from copy import copy

import torch
from gpytorch.kernels import Kernel
from gpytorch.module import Module
from torch import Tensor

from ovkgp.exceptions import InputError


class FeatureMap(Module):
    """Finite-dimensional kernel: `map(X)` is Φ, a linear operator of size (n·p) × `num_features` with ΦΦᵀ ≈ K.

    Subclasses store the kernel in `kernel` (None if there is none) and define `num_outputs`, `num_features` and
    `forward`. `ORFF` and `Nystrom` are feature maps of this package; `ORFFKernel` makes a GPyTorch kernel of any
    feature map.

    Examples
    --------
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
        """Batch shape of the kernel; the batches share their base noise or landmarks."""
        return torch.Size() if self.kernel is None else self.kernel.batch_shape

    def auxiliary_parameters(self) -> list[Tensor]:
        """Return parameters that improve the approximation and have no prior, such as inducing points.

        Returns
        -------
        list of Tensor
            Parameters, empty by default.
        """
        return []

    def __getitem__(self, index) -> FeatureMap:
        return self.over(self.kernel[index]) if len(self.batch_shape) else self

    def expand_batch(self, *sizes) -> FeatureMap:
        """Return the same map over the expanded kernel.

        Parameters
        ----------
        *sizes : int
            Batch shape.

        Returns
        -------
        FeatureMap
            Expanded map.
        """
        return self.over(self.kernel.expand_batch(*sizes))

    def over(self, kernel: Kernel) -> FeatureMap:
        """Return the same map, with the same noise or landmarks, over another kernel of the same kind.

        Parameters
        ----------
        kernel : Kernel
            Kernel with the same structure.

        Returns
        -------
        FeatureMap
            Map of this kernel.
        """
        other = self._sharing_copy()
        other.kernel = kernel
        return other

    def _sharing_copy(self) -> FeatureMap:
        """Return a copy that shares tensors and kernel with this map, but whose entries can be replaced."""
        other = copy(self)
        for registry in ("_parameters", "_buffers", "_modules"):
            setattr(other, registry, dict(getattr(self, registry)))
        return other

    @staticmethod
    def check(X: Tensor, name: str = "X") -> Tensor:
        """Return X as a finite floating-point tensor (..., n, d); a vector becomes one column.

        Parameters
        ----------
        X : Tensor of shape (..., n, d) or (n,)
            Inputs.
        name : str, default="X"
            Name in error messages.

        Returns
        -------
        Tensor of shape (..., n, d)
            Checked inputs.
        """
        if not torch.is_tensor(X):
            raise InputError(f"{name} must be a torch tensor of shape (n, d), got {type(X).__name__}.")
        if not X.is_floating_point():
            raise InputError(f"{name} must be floating point, got {X.dtype}. Use .double().")
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        if not torch.isfinite(X).all():
            raise InputError(f"{name} must be finite, got NaN or infinity. Only outputs may be missing.")
        return X
