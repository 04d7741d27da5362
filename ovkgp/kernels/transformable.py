"""Transformable kernels: output a at x is a scalar process at the transformed point ψ_a(x) (BT-30)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.protocol import OperatorValuedKernel, check_scalar_kernel


class Delay(torch.nn.Module):
    """Transform ψ(x) = x − τ of a `TransformableKernel`, with a trained delay τ.

    Parameters
    ----------
    delay : float or Tensor of shape (d,)
        Initial value of τ, one for all columns or one per column.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import Delay
    >>> Delay(0.5)(torch.tensor([[1.0], [2.0]])).tolist()
    [[0.5], [1.5]]
    """

    def __init__(self, delay: float | Tensor):
        super().__init__()
        self.delay = torch.nn.Parameter(torch.as_tensor(delay, dtype=torch.get_default_dtype()).clone())

    def forward(self, x: Tensor) -> Tensor:
        return x - self.delay


class TransformableKernel(OperatorValuedKernel):
    """Kernel K_ab(x, z) = k(ψ_a(x), ψ_b(z)) with a transform ψ_a per output.

    Its matrix is the Gram matrix of k at np transformed points, hence positive semi-definite for all transforms. Shifts
    ψ_a(x) = x − τ_a give delayed copies of one process, a kernel whose signature is not even (BT-E-15).

    Parameters
    ----------
    base_kernel : Kernel
        Scalar kernel k of the transformed points; its `active_dims` select their columns.
    transforms : sequence of callable
        Transforms ψ_1, …, ψ_p, each from x (..., n, d) to (..., n, q). Modules are trained with the kernel; functions
        must be defined at the top level of a module if the kernel is pickled.

    Notes
    -----
    Complexity: that of k at n p points.

    References
    ----------
    BT-30, BT-E-15

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import Delay, TransformableKernel
    >>> kernel = TransformableKernel(RBFKernel(), [Delay(0.0), Delay(0.5)])
    >>> kernel(torch.randn(4, 1)).shape
    torch.Size([8, 8])
    """

    def __init__(self, base_kernel: Kernel, transforms: Sequence[Callable[[Tensor], Tensor]]):
        super().__init__()
        check_scalar_kernel(base_kernel, "base_kernel")
        if not isinstance(transforms, Iterable) or len(transforms := list(transforms)) < 1:
            raise OptionError("transforms must be a list of at least one transform, one per output.")
        for output, transform in enumerate(transforms):
            if not callable(transform):
                raise OptionError(
                    f"transforms[{output}] must be a function of x or a module such as Delay(0.5), got {transform!r}."
                )
        self.base_kernel = base_kernel
        self.transforms = tuple(transforms)
        self.transform_modules = torch.nn.ModuleList(t for t in transforms if isinstance(t, torch.nn.Module))

    @property
    def num_outputs(self) -> int:
        return len(self.transforms)

    def points(self, x: Tensor) -> Tensor:
        """Return the transformed points ψ_a(x_i), (..., n, p, q).

        Parameters
        ----------
        x : Tensor of shape (..., n, d)
            Inputs.

        Returns
        -------
        Tensor of shape (..., n, p, q)
            Transformed points.
        """
        points = [transform(x) for transform in self.transforms]
        if any(point.shape[:-1] != x.shape[:-1] or point.shape[-1] != points[0].shape[-1] for point in points):
            raise InputError(
                f"All transforms must map x of shape {tuple(x.shape)} to (..., n, q) with the same q, got shapes {[tuple(point.shape) for point in points]}."
            )
        return torch.stack(points, dim=-2)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        points = (self.points(x).flatten(-3, -2) for x in (x1, x2))
        return evaluate_kernel(self.base_kernel, *points, diag, **params)
