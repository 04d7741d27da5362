"""Manifold regularization as a kernel: a prior conditioned on a small quadratic form of the function values (BT-111).

Ridge regression with the penalty λ_K ‖f‖² + λ_M Σ_ik ⟨f(x_i), M_ik f(x_k)⟩ over labeled and unlabeled points X is a GP
with the covariance of f given Rᵀ f(X) = 0 with noise of variance 1/s, s = λ_M/λ_K and M = R Rᵀ (ID-7):

    K_M(x, z) = K(x, z) − K(x, X) R (I/s + Rᵀ K(X, X) R)⁻¹ Rᵀ K(X, z).

If the outputs are combinations V f(x) of u latent outputs, such as the mean of several views, their covariance is
V K_M(x, z) Vᵀ (BT-115).
"""

from __future__ import annotations

import numpy as np
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_positive
from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.manifold.module_cache import ModuleCache
from ovkgp.kernels.manifold.penalties import Penalty
from ovkgp.kernels.protocol import OperatorValuedKernel, check_kernel, is_operator_valued, num_outputs


class ManifoldKernel(BatchIndexMixin, Kernel):
    """Kernel K_M that penalizes variation along the manifold of given points, labeled or not.

    The prior variance is smaller near the points; far from X the kernel equals the base kernel. If the base kernel has
    p outputs, the constructor returns an `OperatorValuedManifoldKernel`, which has p outputs too.

    Parameters
    ----------
    base_kernel : Kernel
        Kernel K, scalar or operator-valued.
    X : array-like of shape (n, d)
        Points of the penalty.
    penalty : array, Tensor or scipy.sparse matrix of shape (n, n) or (n·p, n·p)
        Symmetric positive semi-definite M, dense or sparse; (n, n) means M ⊗ I_p. See `neighbor_laplacian` and
        `cluster_laplacian`.
    strength : float, default=1.0
        Strength s = λ_M/λ_K. Must be at least 0; 0 gives the base kernel.
    learn_strength : bool, default=False
        Whether s is a trained hyperparameter, which must be initialized above 0.
    combination : array-like of shape (p, u) or None, default=None
        V, which maps the u outputs of the base kernel to p outputs. If None, the identity.

    Raises
    ------
    KernelTypeError, InputError, OptionError
        If `base_kernel` is not a kernel, `X` or `penalty` is not finite or has the wrong shape, `penalty` is not
        symmetric positive semi-definite, or `strength` is negative.

    See Also
    --------
    ovkgp.features.ManifoldFeatures : Random features for many points.

    Notes
    -----
    Complexity: O(n³p³) time once per setting of the hyperparameters and per gradient, then O(m n² p³) for m points;
    O(n²p²) memory. A penalty of rank r costs O(n² r p² + r³p³).

    References
    ----------
    BT-111, BT-115

    Examples
    --------
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
        combination=None,
    ):
        has_outputs = isinstance(base_kernel, Kernel) and (combination is not None or is_operator_valued(base_kernel))
        if cls is ManifoldKernel and has_outputs:
            cls = OperatorValuedManifoldKernel
        return super().__new__(cls)

    def __init__(
        self,
        base_kernel: Kernel,
        X,
        penalty,
        strength: float = 1.0,
        *,
        learn_strength: bool = False,
        combination=None,
    ):
        super().__init__()
        check_kernel(base_kernel, "base_kernel")
        self.base_kernel = base_kernel
        self.register_buffer("X", _validate_points(X))
        self.penalty = penalty if isinstance(penalty, Penalty) else Penalty(penalty)
        u = self._check_penalty_size()
        self.register_buffer("combination", None if combination is None else _validate_combination(combination, u))
        initial = torch.tensor(_check_strength(strength, learn_strength), dtype=torch.float64)
        if learn_strength:
            self.register_parameter("raw_strength", torch.nn.Parameter(torch.zeros(())))
            self.register_constraint("raw_strength", Positive())
            self.strength = initial
        else:
            self.register_buffer("fixed_strength", initial)
        self._cache = ModuleCache()

    def _check_penalty_size(self) -> int:
        """Check the penalty against the points and return the number of outputs of the base kernel."""
        n, p = len(self.X), self.base_kernel.num_outputs_per_input(self.X, self.X)
        if self.penalty.size not in (n, n * p):
            raise InputError(
                f"penalty has shape ({self.penalty.size}, {self.penalty.size}), expected ({n}, {n}) or ({n * p}, {n * p}) for {n} points and {p} outputs."
            )
        return p

    @property
    def strength(self) -> Tensor:
        """Strength s = λ_M/λ_K, a scalar tensor (or of the batch shape if it is learned)."""
        if "raw_strength" in self._parameters:
            return self.raw_strength_constraint.transform(self.raw_strength)
        return self.fixed_strength

    @strength.setter
    def strength(self, value: float | Tensor) -> None:
        if "raw_strength" in self._parameters:
            value = torch.as_tensor(value).to(self.raw_strength).expand_as(self.raw_strength)
            self.initialize(raw_strength=self.raw_strength_constraint.inverse_transform(value))
        else:
            value = torch.tensor(_check_strength(value, False), dtype=torch.float64)
            self.fixed_strength = value.to(self.fixed_strength)

    @property
    def is_penalized(self) -> bool:
        """Whether the kernel differs from the base kernel."""
        return bool((self.strength > 0).any())

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        if self.combination is not None:
            return self._combine(x1, x2, diag, params)
        return self._latent(x1, x2, diag, params)

    def _combine(self, x1: Tensor, x2: Tensor, diag: bool, params: dict) -> Tensor:
        """Return V K_M(x, z) Vᵀ."""
        if diag and not self.batch_shape:  # a batch of single points
            blocks = self._combine(x1.unsqueeze(-2), x2.unsqueeze(-2), False, params)
            return blocks.diagonal(dim1=-2, dim2=-1).flatten(-2)
        latent = to_dense(self._latent(x1, x2, False, params))
        combined = combine_rows(self.combination, combine_rows(self.combination, latent).mT).mT
        return combined.diagonal(dim1=-2, dim2=-1) if diag else combined

    def _latent(self, x1: Tensor, x2: Tensor, diag: bool, params: dict) -> LinearOperator | Tensor:
        """Return K_M(x, z)."""
        prior = evaluate_kernel(self.base_kernel, x1, x2, diag, **params)
        if not self.is_penalized:
            return prior
        left = self._reduction_factor(x1, params)
        right = left if x2 is x1 else self._reduction_factor(x2, params)
        return to_dense(prior) - ((left * right).sum(-1) if diag else left @ right.mT)

    def _reduction_factor(self, x: Tensor, params: dict) -> Tensor:
        """Return T = √s K(x, X) P C⁻ᵀ, (..., m·p, r·p), with T(x) T(z)ᵀ = K(x, z) − K_M(x, z)."""
        X = self.X.to(x)
        cross = to_dense(
            evaluate_kernel(self.base_kernel, x, X.expand(*x.shape[:-2], *X.shape), **params)
        )  # (..., m·p, n·p)
        chol = self._get_system_factor(X, params)
        half = torch.linalg.solve_triangular(chol.to(cross), self.penalty.project(cross.mT), upper=False)
        return half.mT * self.strength.sqrt().to(cross)[..., None, None]

    def _get_system_factor(self, X: Tensor, params: dict) -> Tensor:
        """Return the cached Cholesky factor C (..., r·p, r·p) of N + s Pᵀ K(X, X) P, N the noise of the penalty."""
        # GPyTorch passes options that are switched off
        if any(value is not False and value is not None for value in params.values()):
            return self._factorize(X, params)
        return self._cache.get_or_compute([self], (X.dtype, X.device), lambda: self._factorize(X, params))

    def _factorize(self, X: Tensor, params: dict) -> Tensor:
        projected = self.penalty.project(to_dense(evaluate_kernel(self.base_kernel, X, **params)))
        core = self.penalty.project(projected.mT)
        core = self.strength.to(core)[..., None, None] * (core + core.mT) / 2
        try:
            return psd_safe_cholesky(core + self.penalty.noise(core))
        except (NanError, NotPSDError) as error:
            raise FactorizationError(
                f"Factorization of the covariance of the penalized values failed at strength={self.strength.tolist()} ({error}). Try a smaller strength or penalty, or double precision."
            ) from error


class OperatorValuedManifoldKernel(ManifoldKernel, OperatorValuedKernel):
    """`ManifoldKernel` with p outputs; not separable even if the base kernel is."""

    @property
    def num_outputs(self) -> int:
        """Number p of outputs of the base kernel, or of their combinations."""
        return num_outputs(self.base_kernel) if self.combination is None else len(self.combination)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.base_kernel.num_outputs_per_input(x1, x2) if self.combination is None else len(self.combination)


def combine_rows(combination: Tensor, rows: Tensor) -> Tensor:
    """Return (I ⊗ V) rows, (..., m·p, k), for rows (..., m·u, k)."""
    blocks = rows.unflatten(-2, (-1, combination.shape[1]))  # (..., m, u, k)
    return (combination.to(rows) @ blocks).flatten(-3, -2)


def _validate_combination(combination, num_latent: int) -> Tensor:
    try:
        V = torch.as_tensor(np.asarray(combination, dtype=np.float64)).clone()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"combination must be a matrix of numbers, got {type(combination).__name__} ({error})."
        ) from error
    if V.dim() != 2 or len(V) == 0 or V.shape[1] != num_latent:
        raise InputError(
            f"combination has shape {tuple(V.shape)}, expected (p, {num_latent}) for {num_latent} outputs of the base kernel."
        )
    if not torch.isfinite(V).all():
        raise InputError("combination must be finite, got NaN or infinity.")
    return V


def _validate_points(X) -> Tensor:
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
        raise InputError("X must be finite, got NaN or infinity.")
    return X


def _check_strength(value: float, learned: bool) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(f"strength must be a number, got {value!r}.") from None
    return (check_positive if learned else check_nonnegative)("strength", number)
