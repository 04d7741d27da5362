"""χ² kernels for histograms and other positive inputs."""

from __future__ import annotations

import math

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor

from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.groups import check_domain, list_columns
from ovkgp.kernels.records import KernelRecord, register_kernel
from ovkgp.kernels.spectral import SpectralPair
from ovkgp.kernels.stationary import sum_over_coordinates


class SkewedChi2Kernel(BatchIndexMixin, Kernel):
    """Skewed χ² kernel, k(x, z) = Π_k 2√((x_k + c_k)(z_k + c_k)) / (x_k + z_k + 2c_k), with trained skews c.

    If inputs are nonnegative, every c > 0 is valid. Otherwise keep c above −min x with a ``GreaterThan`` constraint.

    Parameters
    ----------
    ard_num_dims : int or None, default=None
        Number d of skews, one per column. If None, all columns share one skew.
    c : float, Tensor of shape (d,) or None, default=None
        Initial skew. If None, that of a zero raw parameter.
    c_prior : Prior or None, default=None
        Prior of c.
    c_constraint : Interval or None, default=None
        Constraint of c. If None, `Positive`.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `batch_shape` and `active_dims`.

    Raises
    ------
    DomainError
        If the kernel is called with some x_k ≤ −c_k.

    Notes
    -----
    This is the shift-invariant kernel Π_k sech(t_k / 2), t_k = log(x_k + c_k) − log(z_k + c_k), of the skewed
    multiplicative group.
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients); O(n d) for the diagonal.

    References
    ----------
    BT-14

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import SkewedChi2Kernel
    >>> kernel = SkewedChi2Kernel(c=1.0)
    >>> round(kernel(torch.tensor([[0.0]]), torch.tensor([[3.0]])).to_dense().item(), 6)
    0.8
    """

    def __init__(
        self,
        ard_num_dims: int | None = None,
        c: float | Tensor | None = None,
        c_prior: Prior | None = None,
        c_constraint: Interval | None = None,
        **kwargs,
    ):
        super().__init__(ard_num_dims=ard_num_dims, **kwargs)
        self.columns = list_columns(self.active_dims)
        self.register_parameter("raw_c", torch.nn.Parameter(torch.zeros(*self.batch_shape, 1, ard_num_dims or 1)))
        self.register_constraint("raw_c", Positive() if c_constraint is None else c_constraint)
        if c_prior is not None:
            self.register_prior("c_prior", c_prior, _get_c, _set_c)
        if c is not None:
            self.c = c

    @property
    def c(self) -> Tensor:
        """Skew c, (*batch_shape, 1, d) or (*batch_shape, 1, 1)."""
        return self.raw_c_constraint.transform(self.raw_c)

    @c.setter
    def c(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value, dtype=self.raw_c.dtype, device=self.raw_c.device)
        self.initialize(raw_c=self.raw_c_constraint.inverse_transform(value))

    def shift(self, x: Tensor) -> Tensor:
        """Return x + c, (..., n, d); raise DomainError unless it is positive.

        Parameters
        ----------
        x : Tensor of shape (..., n, d)
            Inputs.

        Returns
        -------
        Tensor of shape (..., n, d)
            Shifted inputs.
        """
        shifted = x + self.c
        check_domain(shifted > 0, x, "must be greater than −c; increase c", self.columns)
        return shifted

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        x1, x2 = self.shift(x1).sqrt(), self.shift(x2).sqrt()
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        return sum_over_coordinates(_skewed_log_term, x1, x2, diag=diag).neg().exp()


def _skewed_chi2_pair(kernel: SkewedChi2Kernel, num_dims: int) -> SpectralPair:
    """Return the pair ω_k = (1/π) log tan(πu_k/2), of density sech(πω), on the warped inputs log(x + c) (BT-E-10)."""
    return SpectralPair(
        num_dims,
        lambda u: torch.tan(u * (math.pi / 2)).log() / math.pi,
        warp=lambda x: kernel.shift(x).log(),
    )


register_kernel(KernelRecord(SkewedChi2Kernel, spectral_pair=_skewed_chi2_pair))


class ExponentiatedChi2Kernel(BatchIndexMixin, Kernel):
    """Exponentiated χ² kernel, k(x, z) = exp(−γ Σ_k (x_k − z_k)² / (x_k + z_k)), for nonnegative inputs.

    A term with x_k + z_k = 0 is 0, and so is its gradient.

    Parameters
    ----------
    gamma : float, Tensor or None, default=None
        Initial rate γ. If None, that of a zero raw parameter.
    gamma_prior, gamma_constraint, **kwargs
        As `c_prior`, `c_constraint` and the further arguments of `SkewedChi2Kernel`.

    Raises
    ------
    DomainError
        If the kernel is called with a negative input.

    Notes
    -----
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients); O(n d) for the diagonal.

    References
    ----------
    LT-40

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import ExponentiatedChi2Kernel
    >>> kernel = ExponentiatedChi2Kernel(gamma=0.25)
    >>> round(kernel(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 3.0]])).to_dense().log().item(), 6)
    -0.25
    """

    def __init__(
        self,
        gamma: float | Tensor | None = None,
        gamma_prior: Prior | None = None,
        gamma_constraint: Interval | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.columns = list_columns(self.active_dims)
        self.register_parameter("raw_gamma", torch.nn.Parameter(torch.zeros(*self.batch_shape, 1, 1)))
        self.register_constraint("raw_gamma", Positive() if gamma_constraint is None else gamma_constraint)
        if gamma_prior is not None:
            self.register_prior("gamma_prior", gamma_prior, _get_gamma, _set_gamma)
        if gamma is not None:
            self.gamma = gamma

    @property
    def gamma(self) -> Tensor:
        """Rate γ, (*batch_shape, 1, 1)."""
        return self.raw_gamma_constraint.transform(self.raw_gamma)

    @gamma.setter
    def gamma(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value, dtype=self.raw_gamma.dtype, device=self.raw_gamma.device)
        self.initialize(raw_gamma=self.raw_gamma_constraint.inverse_transform(value))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        for x in (x1, x2):
            check_domain(x >= 0, x, "must be at least 0 in a χ² kernel; shift the inputs", self.columns)
        gamma = self.gamma.squeeze(-1) if diag else self.gamma
        if last_dim_is_batch:
            x1, x2, gamma = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1), gamma.unsqueeze(-2 if diag else -3)
        return (sum_over_coordinates(_chi2_term, x1, x2, diag=diag) * -gamma).exp()


register_kernel(KernelRecord(ExponentiatedChi2Kernel))


def _skewed_log_term(root_x: Tensor, root_z: Tensor) -> Tensor:
    # (a + b) / 2√(ab) = 1 + (√a − √b)² / 2√(ab) avoids cancellation if a is close to b
    return torch.log1p((root_x - root_z).square() / (2 * root_x * root_z))


def _chi2_term(x: Tensor, z: Tensor) -> Tensor:
    total = x + z
    safe = torch.where(total > 0, total, 1)  # avoids 0/0 in the gradient of the next `where`
    return torch.where(total > 0, (x - z).square() / safe, 0)


def _get_c(kernel: SkewedChi2Kernel) -> Tensor:
    return kernel.c


def _set_c(kernel: SkewedChi2Kernel, value: Tensor) -> None:
    kernel.c = value


def _get_gamma(kernel: ExponentiatedChi2Kernel) -> Tensor:
    return kernel.gamma


def _set_gamma(kernel: ExponentiatedChi2Kernel, value: Tensor) -> None:
    kernel.gamma = value
