"""Curl-free, divergence-free and Helmholtz kernels: priors for vector fields on R^d (BT-27..29).

With a twice-differentiable stationary scalar kernel k,

    curl-free        K(x, z) = −∇∇ᵀ k(x − z)              draws are gradients of a potential,
    divergence-free  K(x, z) = (∇∇ᵀ − Δ I) k(x − z)       draws are incompressible,

and a Helmholtz kernel is the sum of one of each, with a scale for each.
"""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels.decomposable import check_scalar
from ovkgp.kernels.protocol import OperatorValuedKernel, known_dims
from ovkgp.kernels.radial_derivatives import lag_jet


class FieldKernel(OperatorValuedKernel):
    """Base of the kernels that are made of second derivatives: as many outputs as input dimensions.

    Args:
        base_kernel: k, a stationary scalar kernel with two derivatives at zero lag.
        num_dims: d; from ARD or `active_dims` where those are set. Left open otherwise: the kernel then takes
            inputs of any dimension, but `num_outputs` is not known.
    """

    least_dims = 1

    def __init__(self, base_kernel: Kernel, num_dims: int | None = None):
        super().__init__()
        check_scalar(base_kernel, "base kernel")
        self.base_kernel = base_kernel
        self.num_dims = _known_dims(base_kernel, num_dims)
        dims = max(self.least_dims, _reach(base_kernel)) if self.num_dims is None else self.num_dims
        self._require_dims(dims)
        lag = torch.zeros(1, 1, dims, dtype=base_kernel.dtype, device=base_kernel.device)
        lag_jet(base_kernel, lag)  # refuse a rough kernel at once

    def _require_dims(self, num_dims: int) -> None:
        if num_dims < self.least_dims:
            raise OptionError(
                f"{type(self).__name__} needs at least {self.least_dims} input dimensions, got {num_dims}: in one "
                "dimension only constants are divergence-free, and the kernel is identically zero."
            )

    @property
    def num_outputs(self) -> int:
        if self.num_dims is None:
            raise KernelTypeError(
                f"{type(self).__name__} has as many outputs as input dimensions, and those are not known yet: "
                "set ard_num_dims on the base kernel or pass num_dims."
            )
        return self.num_dims

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        active = self.base_kernel.active_dims
        return x1.shape[-1] if active is None else len(active)

    @property
    def is_stationary(self) -> bool:
        return True

    @abstractmethod
    def from_hessian(self, hessian: Tensor) -> Tensor:
        """The block K(x, z) from ∇∇ᵀk (..., d, d)."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        if self.base_kernel.active_dims is not None:
            x1, x2 = (x.index_select(-1, self.base_kernel.active_dims) for x in (x1, x2))
        d = x1.shape[-1]
        if self.num_dims is not None and d != self.num_dims:
            raise InputError(f"{type(self).__name__} of {self.num_dims} dimensions got inputs with {d} columns.")
        self._require_dims(d)
        lag = (x1 - x2).unsqueeze(-2) if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        blocks = self.from_hessian(lag_jet(self.base_kernel, lag).hessian)  # (..., n, m or 1, d, d)
        if diag:
            return blocks.squeeze(-3).diagonal(dim1=-2, dim2=-1).flatten(-2)
        return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def _reach(kernel: Kernel) -> int:
    """The least number of columns in which the terms and factors of a kernel find all their `active_dims`."""
    if isinstance(kernel, ScaleKernel):
        return _reach(kernel.base_kernel)
    parts = kernel.kernels if isinstance(kernel, (AdditiveKernel, ProductKernel)) else []
    reaches = (_reach(part) if part.active_dims is None else int(part.active_dims.max()) + 1 for part in parts)
    return max(reaches, default=1)


def _known_dims(base_kernel: Kernel, num_dims: int | None) -> int | None:
    known = known_dims(base_kernel)
    num_dims = None if num_dims is None else check_integer("num_dims", num_dims)
    if num_dims is not None and known is not None and num_dims != known:
        raise OptionError(f"num_dims={num_dims} contradicts the {known} dimensions of the base kernel.")
    dims = num_dims if known is None else known
    if dims is not None and dims < (reach := _reach(base_kernel)):
        raise OptionError(f"a part of the base kernel looks at column {reach - 1}, but there are only {dims} columns.")
    return dims


class CurlFreeKernel(FieldKernel):
    """K(x, z) = −∇∇ᵀk(x − z): fields that are gradients (BT-27). For the RBF kernel with lengthscale ℓ,

    K(δ) = exp(−‖δ‖²/2ℓ²)/ℓ² · (I − δδᵀ/ℓ²).

    The variance of a draw is then 1/ℓ² and changes with the lengthscale: wrap the kernel in GPyTorch's `ScaleKernel`
    where both are to be learned.

    Args:
        base_kernel: RBF (with ARD or not), Matérn-3/2 or -5/2, RQ, Cauchy, Periodic, SpectralMixture, Sobolev of
            order 2, or a scaling, sum or product of such; others through `lag_jet.register`.
        num_dims: d = p, where the base kernel does not know it.

    Cost: O(n m d²) time and memory.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> CurlFreeKernel(RBFKernel(ard_num_dims=2))(torch.randn(5, 2)).shape
        torch.Size([10, 10])
    """

    def from_hessian(self, hessian: Tensor) -> Tensor:
        return -hessian


class DivergenceFreeKernel(FieldKernel):
    """K(x, z) = (∇∇ᵀ − Δ I) k(x − z): incompressible fields, d ≥ 2 (BT-28). For the RBF kernel with lengthscale ℓ,

    K(δ) = exp(−‖δ‖²/2ℓ²)/ℓ² · (δδᵀ/ℓ² + (d − 1 − ‖δ‖²/ℓ²) I).

    The variance of a draw is then (d − 1)/ℓ²: see `CurlFreeKernel` for the remedy.

    Args:
        base_kernel, num_dims: as for `CurlFreeKernel`.

    Cost: O(n m d²) time and memory.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import DivergenceFreeKernel
        >>> DivergenceFreeKernel(RBFKernel(ard_num_dims=3)).num_outputs
        3
    """

    least_dims = 2

    def from_hessian(self, hessian: Tensor) -> Tensor:
        laplacian = hessian.diagonal(dim1=-2, dim2=-1).sum(-1)
        return hessian - torch.diag_embed(laplacian.unsqueeze(-1).expand(hessian.shape[:-1]))


class HelmholtzKernel(OperatorValuedKernel, AdditiveKernel):
    """s_c K_curl + s_d K_div: any smooth field, split into a gradient and a swirl, each with its own scale (BT-29).

    Args:
        curl_base: the scalar kernel of the curl-free part.
        div_base: that of the divergence-free part; a copy of `curl_base`, trained on its own, where it is None.
        num_dims: d, where the base kernels do not know it.

    The two terms are GPyTorch `ScaleKernel`s, at `kernel.curl` and `kernel.div`.

    Cost: O(n m d²) time and memory, as for its terms.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import HelmholtzKernel, num_outputs
        >>> kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2))
        >>> kernel.curl.outputscale = 2.0
        >>> num_outputs(kernel)
        2
    """

    def __init__(self, curl_base: Kernel, div_base: Kernel | None = None, num_dims: int | None = None):
        div_base = deepcopy(curl_base) if div_base is None else div_base
        for base in (curl_base, div_base):  # the dimension that one of them knows holds for both
            check_scalar(base, "base kernel")
            num_dims = _known_dims(base, num_dims)
        parts = CurlFreeKernel(curl_base, num_dims), DivergenceFreeKernel(div_base, num_dims)
        AdditiveKernel.__init__(self, *(ScaleKernel(part, batch_shape=part.batch_shape) for part in parts))

    @property
    def curl(self) -> ScaleKernel:
        """The scaled curl-free term."""
        return self.kernels[0]

    @property
    def div(self) -> ScaleKernel:
        """The scaled divergence-free term."""
        return self.kernels[1]

    @property
    def num_outputs(self) -> int:
        return self.curl.base_kernel.num_outputs

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.curl.num_outputs_per_input(x1, x2)
