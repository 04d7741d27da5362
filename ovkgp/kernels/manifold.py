"""Manifold regularisation as a kernel: the prior given that a quadratic form of the function's values is small (BT-111).

Ridge regression with the penalty λ_K ‖f‖² + λ_M Σ_ik ⟨f(x_i), M_ik f(x_k)⟩ over points x_1, …, x_n, labelled or not, is the
GP with the covariance of f given Rᵀ f(X) = 0 up to noise of variance 1/s, s = λ_M/λ_K and M = R Rᵀ (ID-7):

    K_M(x, z) = K(x, z) − K(x, X) R (I/s + Rᵀ K(X, X) R)⁻¹ Rᵀ K(X, z).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, KernelTypeError, OptionError
from ovkgp.kernels.penalties import ModuleCache, Penalty
from ovkgp.kernels.protocol import BatchIndexMixin, OperatorValuedKernel, is_operator_valued, num_outputs


class ManifoldKernel(BatchIndexMixin, Kernel):
    """K_M: a kernel that has seen the points of the inputs, labelled or not, and keeps to their manifold.

    The function varies little where the penalty says so, and the prior variance shrinks there; far from X the kernel is
    the base kernel. If that has p outputs, so has this one: the constructor then returns an
    `OperatorValuedManifoldKernel`.

    Args:
        base_kernel: K, scalar or operator-valued.
        X: all points of the penalty (n, d), an array or a tensor.
        penalty: M, symmetric and positive semi-definite, (n, n) for M ⊗ I_p or (n·p, n·p); dense or sparse, a NumPy array,
            a torch tensor or a SciPy matrix. See `neighbor_laplacian` and `cluster_laplacian`.
        strength: s = λ_M/λ_K ≥ 0; 0 gives the base kernel.
        learn_strength: make s a positive hyperparameter, trained by evidence; it must then start above 0.

    Cost: O(n³p³) time once for given hyperparameters (and for each gradient), then O(m n² p³) for m points; O(n²p²)
    memory. On the range of M: a penalty of rank r costs O(n² r p² + r³p³). For many points see
    `ovkgp.features.ManifoldFeatures`.

    Raises:
        KernelTypeError, InputError, OptionError: no kernel; X or the penalty of the wrong shape, not finite, or the penalty
            not symmetric and positive semi-definite; a negative strength.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import ManifoldKernel, neighbor_laplacian
        >>> circle = torch.linspace(0, 6.2, 30).unsqueeze(-1)
        >>> X = torch.cat([circle.cos(), circle.sin()], 1)
        >>> kernel = ManifoldKernel(RBFKernel(), X, neighbor_laplacian(X, num_neighbors=2), strength=10.0)
        >>> bool((kernel(X, diag=True) < 1).all())
        True
    """

    def __new__(
        cls,
        base_kernel: Kernel | None = None,  # no argument is given when an object is copied or unpickled
        X=None,
        penalty=None,
        strength: float = 1.0,
        *,
        learn_strength: bool = False,
    ):
        if cls is ManifoldKernel and isinstance(base_kernel, Kernel) and is_operator_valued(base_kernel):
            cls = OperatorValuedManifoldKernel
        return super().__new__(cls)

    def __init__(self, base_kernel: Kernel, X, penalty, strength: float = 1.0, *, learn_strength: bool = False):
        super().__init__()
        if not isinstance(base_kernel, Kernel):
            raise KernelTypeError(
                f"the base kernel must be a gpytorch.kernels.Kernel, got {type(base_kernel).__name__}."
            )
        self.base_kernel = base_kernel
        self.register_buffer("X", _points(X))
        self.penalty = penalty if isinstance(penalty, Penalty) else Penalty(penalty)
        self._require_fit()
        start = torch.tensor(_strength(strength, learn_strength), dtype=torch.float64)
        if learn_strength:
            self.register_parameter("raw_strength", torch.nn.Parameter(torch.zeros(())))
            self.register_constraint("raw_strength", Positive())
            self.strength = start
        else:
            self.register_buffer("fixed_strength", start)
        self._memory = ModuleCache()

    def _require_fit(self) -> None:
        n, p = len(self.X), self.base_kernel.num_outputs_per_input(self.X, self.X)
        if self.penalty.size not in (n, n * p):
            raise InputError(
                f"the penalty is {self.penalty.size} × {self.penalty.size}; with {n} points and {p} outputs it must be "
                f"{n} × {n}, the same for all outputs, or {n * p} × {n * p}."
            )

    @property
    def strength(self) -> Tensor:
        """s = λ_M/λ_K, as a tensor without dimensions (or of the batch shape, where it is learned)."""
        if "raw_strength" in self._parameters:
            return self.raw_strength_constraint.transform(self.raw_strength)
        return self.fixed_strength

    @strength.setter
    def strength(self, value: float | Tensor) -> None:
        if "raw_strength" in self._parameters:
            value = torch.as_tensor(value).to(self.raw_strength).expand_as(self.raw_strength)
            self.initialize(raw_strength=self.raw_strength_constraint.inverse_transform(value))
        else:
            self.fixed_strength = torch.tensor(_strength(value, False), dtype=torch.float64).to(self.fixed_strength)

    @property
    def is_penalised(self) -> bool:
        """Whether this is another kernel than the base kernel."""
        return bool((self.strength > 0).any())

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        prior = self.base_kernel(x1, x2, diag=diag, **params)
        if not self.is_penalised:
            return prior
        left = self._explained(x1, params)
        right = left if x2 is x1 else self._explained(x2, params)
        return to_dense(prior) - ((left * right).sum(-1) if diag else left @ right.mT)

    def _explained(self, x: Tensor, params: dict) -> Tensor:
        """T (..., m·p, r·p) with T(x) T(z)ᵀ what K loses: K(x, X) P C⁻ᵀ √s."""
        X = self.X.to(x)
        cross = to_dense(self.base_kernel(x, X.expand(*x.shape[:-2], *X.shape), **params))  # (..., m·p, n·p)
        chol = self._system(X, params)
        half = torch.linalg.solve_triangular(chol.to(cross), self.penalty.project(cross.mT), upper=False)
        return half.mT * self.strength.sqrt().to(cross)[..., None, None]

    def _system(self, X: Tensor, params: dict) -> Tensor:
        """C (..., r·p, r·p), lower, with C Cᵀ = N + s Pᵀ K(X, X) P: the pseudo-observations and their noise, times s."""
        # GPyTorch's own calls hand on options that are switched off
        if any(value is not False and value is not None for value in params.values()):
            return self._factorise(X, params)
        return self._memory.of([self], (X.dtype, X.device), lambda: self._factorise(X, params))

    def _factorise(self, X: Tensor, params: dict) -> Tensor:
        projected = self.penalty.project(to_dense(self.base_kernel(X, **params)))
        core = self.penalty.project(projected.mT)
        core = self.strength.to(core)[..., None, None] * (core + core.mT) / 2
        try:
            return psd_safe_cholesky(core + self.penalty.noise(core))
        except (NanError, NotPSDError) as error:
            raise FactorizationError(
                f"the covariance of the penalised values could not be factorised at strength {self.strength.tolist()} "
                f"({error}): take a smaller strength or penalty, or double precision."
            ) from error


class OperatorValuedManifoldKernel(ManifoldKernel, OperatorValuedKernel):
    """What `ManifoldKernel` makes of a base kernel with p outputs; it has the same arguments.

    It is not separable, even where the base kernel is: `components` is None.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import CurlFreeKernel, ManifoldKernel, neighbor_laplacian
        >>> X = torch.rand(20, 2)
        >>> kernel = ManifoldKernel(CurlFreeKernel(RBFKernel(), num_dims=2), X, neighbor_laplacian(X), strength=0.5)
        >>> kernel(X[:3]).shape, kernel.num_outputs
        (torch.Size([6, 6]), 2)
    """

    @property
    def num_outputs(self) -> int:
        """The number p of outputs of the base kernel."""
        return num_outputs(self.base_kernel)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.base_kernel.num_outputs_per_input(x1, x2)


def _points(X) -> Tensor:
    try:
        X = X.detach().clone() if torch.is_tensor(X) else torch.from_numpy(np.array(X))
    except (TypeError, ValueError) as error:
        raise InputError(f"X must be an (n, d) array of numbers, got {type(X).__name__} ({error}).") from error
    if X.is_complex():
        raise InputError(f"X must hold real numbers, got {X.dtype}.")
    X = X if X.is_floating_point() else X.to(torch.get_default_dtype())
    X = X.unsqueeze(-1) if X.dim() == 1 else X
    if X.dim() != 2 or len(X) == 0:
        raise InputError(f"X must be a non-empty (n, d) array, got shape {tuple(X.shape)}.")
    if not torch.isfinite(X).all():
        raise InputError("X holds NaN or infinity; inputs must be finite.")
    return X


def _strength(value: float, learned: bool) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(f"strength must be a number, λ_M/λ_K, got {value!r}.") from None
    if not math.isfinite(number) or number < 0 or (learned and number == 0):
        raise OptionError(
            f"strength must be finite and {'positive where it is learned' if learned else 'not negative'}, got {number}."
        )
    return number
