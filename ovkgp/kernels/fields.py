"""Curl-free, divergence-free and Helmholtz kernels: priors for vector fields on R^d (BT-27..29)."""

from __future__ import annotations

from abc import abstractmethod
from copy import deepcopy

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels.protocol import OperatorValuedKernel, check_scalar_kernel, infer_num_dims
from ovkgp.kernels.radial_derivatives import lag_jet


class FieldKernel(OperatorValuedKernel):
    """Kernel of second derivatives of a stationary scalar kernel, with as many outputs as inputs."""

    min_dims = 1

    def __init__(self, base_kernel: Kernel, num_dims: int | None = None):
        super().__init__()
        check_scalar_kernel(base_kernel, "base_kernel")
        self.base_kernel = base_kernel
        self.num_dims = _resolve_num_dims(base_kernel, num_dims)
        dims = max(self.min_dims, _count_required_columns(base_kernel)) if self.num_dims is None else self.num_dims
        self._check_dims(dims)
        lag = torch.zeros(1, 1, dims, dtype=base_kernel.dtype, device=base_kernel.device)
        lag_jet(base_kernel, lag)  # raises if the kernel is not smooth enough

    def _check_dims(self, num_dims: int) -> None:
        if num_dims < self.min_dims:
            raise OptionError(
                f"{type(self).__name__} needs at least {self.min_dims} input dimensions, got {num_dims}; in one dimension only constants are divergence-free."
            )

    @property
    def num_outputs(self) -> int:
        if self.num_dims is None:
            raise KernelTypeError(
                f"The number of input dimensions, and thus of outputs, of {type(self).__name__} is unknown. Set ard_num_dims on base_kernel or pass num_dims."
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
        """Return the blocks K(x, z) from ∇∇ᵀk (..., d, d).

        Parameters
        ----------
        hessian : Tensor of shape (..., d, d)
            Second derivatives of the scalar kernel k.

        Returns
        -------
        Tensor of shape (..., d, d)
            Blocks.
        """

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        if self.base_kernel.active_dims is not None:
            x1, x2 = (x.index_select(-1, self.base_kernel.active_dims) for x in (x1, x2))
        d = x1.shape[-1]
        if self.num_dims is not None and d != self.num_dims:
            raise InputError(f"Inputs of {type(self).__name__} must have {self.num_dims} columns, got {d}.")
        self._check_dims(d)
        lag = (x1 - x2).unsqueeze(-2) if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        blocks = self.from_hessian(lag_jet(self.base_kernel, lag).hessian)  # (..., n, m or 1, d, d)
        if diag:
            return blocks.squeeze(-3).diagonal(dim1=-2, dim2=-1).flatten(-2)
        return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def _count_required_columns(kernel: Kernel) -> int:
    """Return the smallest number of columns that contains the `active_dims` of all terms and factors of a kernel."""
    if isinstance(kernel, ScaleKernel):
        return _count_required_columns(kernel.base_kernel)
    children = kernel.kernels if isinstance(kernel, (AdditiveKernel, ProductKernel)) else []
    counts = (
        _count_required_columns(child) if child.active_dims is None else int(child.active_dims.max()) + 1
        for child in children
    )
    return max(counts, default=1)


def _resolve_num_dims(base_kernel: Kernel, num_dims: int | None) -> int | None:
    """Return the number of dimensions of the base kernel or else `num_dims`; raise if they disagree."""
    known = infer_num_dims(base_kernel)
    num_dims = None if num_dims is None else check_integer("num_dims", num_dims)
    if num_dims is not None and known is not None and num_dims != known:
        raise OptionError(f"num_dims must be {known}, the number of dimensions of base_kernel, got {num_dims}.")
    dims = num_dims if known is None else known
    if dims is not None and dims < (required := _count_required_columns(base_kernel)):
        raise OptionError(f"A part of base_kernel uses column {required - 1}, but there are only {dims} columns.")
    return dims


class CurlFreeKernel(FieldKernel):
    """Curl-free kernel K(x, z) = −∇∇ᵀk(x − z), whose draws are gradients of a potential.

    The prior variance depends on the lengthscale (1/ℓ² for the RBF kernel): wrap the kernel in GPyTorch's `ScaleKernel`
    to learn both.

    Parameters
    ----------
    base_kernel : Kernel
        Stationary scalar kernel k with two derivatives at zero lag: RBF, Matérn-3/2 or -5/2, RQ, Cauchy, Periodic,
        SpectralMixture, Sobolev of order 2, a scaling, sum or product of these, or a kernel added with
        `register_kernel`.
    num_dims : int or None, default=None
        Number d of inputs and outputs. If None, it is inferred from the ARD or `active_dims` of the base kernel.

    Notes
    -----
    For the RBF kernel with lengthscale ℓ, K(δ) = exp(−‖δ‖²/2ℓ²)/ℓ² · (I − δδᵀ/ℓ²).
    Complexity: O(n m d²) time and memory.

    References
    ----------
    BT-27

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import CurlFreeKernel
    >>> CurlFreeKernel(RBFKernel(ard_num_dims=2))(torch.randn(5, 2)).shape
    torch.Size([10, 10])
    """

    def from_hessian(self, hessian: Tensor) -> Tensor:
        return -hessian


class DivergenceFreeKernel(FieldKernel):
    """Divergence-free kernel K(x, z) = (∇∇ᵀ − Δ I) k(x − z), d ≥ 2, whose draws are incompressible.

    The prior variance depends on the lengthscale ((d − 1)/ℓ² for the RBF kernel): wrap the kernel in GPyTorch's
    `ScaleKernel` to learn both.

    Parameters
    ----------
    base_kernel, num_dims
        As for `CurlFreeKernel`.

    Notes
    -----
    For the RBF kernel with lengthscale ℓ, K(δ) = exp(−‖δ‖²/2ℓ²)/ℓ² · (δδᵀ/ℓ² + (d − 1 − ‖δ‖²/ℓ²) I).
    Complexity: O(n m d²) time and memory.

    References
    ----------
    BT-28

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import DivergenceFreeKernel
    >>> DivergenceFreeKernel(RBFKernel(ard_num_dims=3)).num_outputs
    3
    """

    min_dims = 2

    def from_hessian(self, hessian: Tensor) -> Tensor:
        laplacian = hessian.diagonal(dim1=-2, dim2=-1).sum(-1)
        return hessian - torch.diag_embed(laplacian.unsqueeze(-1).expand(hessian.shape[:-1]))


class HelmholtzKernel(OperatorValuedKernel, AdditiveKernel):
    """Helmholtz kernel s_c K_curl + s_d K_div, a scaled sum of a curl-free and a divergence-free kernel.

    Parameters
    ----------
    curl_base : Kernel
        Scalar kernel of the curl-free part.
    div_base : Kernel or None, default=None
        Scalar kernel of the divergence-free part. If None, a copy of `curl_base` that is trained separately.
    num_dims : int or None, default=None
        Number d of inputs and outputs. If None, it is inferred from the base kernels.

    Attributes
    ----------
    curl, div : ScaleKernel
        The two scaled terms.

    Notes
    -----
    Complexity: O(n m d²) time and memory.

    References
    ----------
    BT-29

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import HelmholtzKernel, num_outputs
    >>> kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2))
    >>> kernel.curl.outputscale = 2.0
    >>> num_outputs(kernel)
    2
    """

    def __init__(self, curl_base: Kernel, div_base: Kernel | None = None, num_dims: int | None = None):
        div_base = deepcopy(curl_base) if div_base is None else div_base
        for name, base in (("curl_base", curl_base), ("div_base", div_base)):  # both have the same dimension
            check_scalar_kernel(base, name)
            num_dims = _resolve_num_dims(base, num_dims)
        terms = CurlFreeKernel(curl_base, num_dims), DivergenceFreeKernel(div_base, num_dims)
        AdditiveKernel.__init__(self, *(ScaleKernel(term, batch_shape=term.batch_shape) for term in terms))

    @property
    def curl(self) -> ScaleKernel:
        """Scaled curl-free term."""
        return self.kernels[0]

    @property
    def div(self) -> ScaleKernel:
        """Scaled divergence-free term."""
        return self.kernels[1]

    @property
    def num_outputs(self) -> int:
        return self.curl.base_kernel.num_outputs

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.curl.num_outputs_per_input(x1, x2)
