"""A trained output matrix without redundancy: Γ = L Lᵀ by its Cholesky factor, one set of numbers for each positive Γ."""

from __future__ import annotations

import warnings

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.module import Module
from gpytorch.priors import Prior
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.outputs.roots import thin_root
from ovkgp.kernels.protocol import BatchIndexMixin

RANK_CUTOFF = 1e-5
"""Relative size below which an eigenvalue of a fixed output matrix is dropped from its factor (BT-49)."""


def _matrix_of(module: OutputMatrix) -> Tensor:
    return module()


class OutputMatrix(BatchIndexMixin, Module):
    """Base class: `forward()` gives the (..., p, p) matrix, `factor()` a (..., p, r) root of it.

    Args:
        num_outputs: p.
        batch_shape: leading dimensions, as in GPyTorch's kernels.
        prior: a prior on the matrix itself.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import DecomposableKernel, OutputMatrix
        >>> class Correlated(OutputMatrix):  # two outputs with a trained correlation
        ...     def __init__(self):
        ...         super().__init__(num_outputs=2)
        ...         self.register_parameter("raw", torch.nn.Parameter(torch.zeros(1)))
        ...     def forward(self):
        ...         one = torch.ones(1).to(self.raw)
        ...         return torch.cat([one, self.raw.tanh(), self.raw.tanh(), one]).reshape(2, 2)
        >>> DecomposableKernel(RBFKernel(), output_matrix=Correlated())(torch.randn(5, 1)).shape
        torch.Size([10, 10])
    """

    def __init__(self, num_outputs: int, batch_shape: torch.Size = torch.Size(), prior: Prior | None = None):
        super().__init__()
        self.num_outputs = check_integer("num_outputs", num_outputs)
        self._batch_shape = torch.Size(batch_shape)
        if prior is not None:
            self.register_prior("matrix_prior", prior, _matrix_of)

    @property
    def batch_shape(self) -> torch.Size:
        return self._batch_shape

    def factor(self) -> Tensor:
        """B (..., p, r) with B Bᵀ = Γ; a Cholesky factor unless a subclass knows a thinner one.

        Where Γ is singular to working precision, GPyTorch's jitter (1e-8 in float64, 1e-6 in float32, and up) is
        added with a warning.
        """
        return psd_safe_cholesky(self())


def starting_loadings(num_outputs: int, rank: int) -> Tensor:
    """A fixed (p, rank) pattern with no symmetry between outputs or columns.

    From zero loadings, or from equal columns, the gradient never breaks the tie.
    """
    a = torch.arange(1, num_outputs + 1).unsqueeze(-1)
    q = torch.arange(1, rank + 1)
    return torch.sin(1.7 * a * q + 0.5 * q) / rank**0.5


class FreeMatrix(OutputMatrix):
    """Γ = W Wᵀ + diag(v): `rank` free loadings W (p, rank) and a positive diagonal v (p,), both trained.

    Args:
        num_outputs: p.
        rank: the number of columns of W, from 1 to p.
        batch_shape, prior: as for `OutputMatrix`.
        diagonal_constraint: the constraint on v; `Positive` by default.

    Example:
        >>> from ovkgp.kernels import FreeMatrix
        >>> FreeMatrix(num_outputs=3, rank=2)().shape
        torch.Size([3, 3])
    """

    def __init__(
        self,
        num_outputs: int,
        rank: int = 1,
        batch_shape: torch.Size = torch.Size(),
        prior: Prior | None = None,
        diagonal_constraint: Interval | None = None,
    ):
        super().__init__(num_outputs, batch_shape, prior)
        self.rank = check_integer("rank", rank, least=None)
        if not 1 <= self.rank <= self.num_outputs:
            raise OptionError(f"rank must be between 1 and num_outputs = {num_outputs}, got {rank}.")
        start = starting_loadings(self.num_outputs, self.rank).to(torch.get_default_dtype())
        self.register_parameter("loadings", torch.nn.Parameter(start.repeat(*self.batch_shape, 1, 1)))
        self.register_parameter("raw_diagonal", torch.nn.Parameter(torch.zeros(*self.batch_shape, num_outputs)))
        self.register_constraint("raw_diagonal", diagonal_constraint or Positive())

    @property
    def diagonal(self) -> Tensor:
        """The positive diagonal v (..., p)."""
        return self.raw_diagonal_constraint.transform(self.raw_diagonal)

    @diagonal.setter
    def diagonal(self, value) -> None:
        value = torch.as_tensor(value).to(self.raw_diagonal)
        self.initialize(raw_diagonal=self.raw_diagonal_constraint.inverse_transform(value))

    def forward(self) -> Tensor:
        return self.loadings @ self.loadings.mT + torch.diag_embed(self.diagonal)

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}, rank={self.rank}"


class KnownMatrix(OutputMatrix):
    """A given positive semi-definite Γ (p, p), never trained.

    Its factor keeps only the eigenvalues above 1e-5 of the largest, so that features are as few as the rank.

    Args:
        matrix: Γ (..., p, p), symmetric and positive semi-definite.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import KnownMatrix
        >>> twins = KnownMatrix(torch.ones(2, 2))  # two outputs that are one
        >>> twins().shape, twins.factor().shape
        (torch.Size([2, 2]), torch.Size([2, 1]))
    """

    def __init__(self, matrix: Tensor):
        matrix = torch.as_tensor(matrix).detach()
        if matrix.dtype not in (torch.float32, torch.float64):
            matrix = matrix.to(torch.get_default_dtype())
        if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise InputError(f"an output matrix is square, (p, p); got shape {tuple(matrix.shape)}.")
        super().__init__(matrix.shape[-1], matrix.shape[:-2])
        _require_psd(matrix)
        self.register_buffer("matrix", (matrix + matrix.mT) / 2)

    def __getitem__(self, index):
        return self._map_matrix(self.matrix[index]) if len(self.batch_shape) else self

    def expand_batch(self, *sizes):
        batch_shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        return self._map_matrix(self.matrix.expand(*batch_shape, *self.matrix.shape[-2:]))

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}"

    def _map_matrix(self, matrix: Tensor) -> KnownMatrix:
        copy = self._map_batch(None, None, matrix.shape[:-2])
        copy.matrix = matrix
        return copy

    def forward(self) -> Tensor:
        return self.matrix

    def factor(self) -> Tensor:
        return thin_root(self.matrix, RANK_CUTOFF)


def _require_psd(matrix: Tensor) -> None:
    if not torch.isfinite(matrix).all():
        raise InputError("the output matrix holds NaN or infinity.")
    size = matrix.abs().amax().clamp_min(torch.finfo(matrix.dtype).tiny)
    slack = 1e3 * torch.finfo(matrix.dtype).eps * matrix.shape[-1]
    if (matrix - matrix.mT).abs().amax() > slack * size:
        raise InputError("the output matrix is not symmetric; use (A + A.T) / 2 if that is what you mean.")
    if torch.linalg.eigvalsh(matrix).amin() < -slack * size:
        raise InputError("the output matrix has a negative eigenvalue, so it is no covariance between outputs.")


class EmpiricalMatrix(KnownMatrix):
    """Γ = the covariance of the observed outputs Y (n, p) (BA-05), shrunk towards its diagonal.

    Missing entries (NaN) are left out pair by pair, and what that makes indefinite is clipped to the nearest
    positive semi-definite matrix.

    Args:
        Y: the outputs (n, p), at least two rows, at least one value a column.
        shrinkage: s in [0, 1] gives (1 − s) Γ + s diag(Γ).

    Example:
        >>> import torch
        >>> from ovkgp.kernels import EmpiricalMatrix
        >>> EmpiricalMatrix(torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]))().round(decimals=4)
        tensor([[1., 2.],
                [2., 4.]])
    """

    def __init__(self, Y: Tensor, shrinkage: float = 0.0):
        if not 0 <= shrinkage <= 1:
            raise OptionError(f"shrinkage must be between 0 and 1, got {shrinkage}.")
        super().__init__(_empirical_covariance(torch.as_tensor(Y), shrinkage))


def _empirical_covariance(Y: Tensor, shrinkage: float) -> Tensor:
    if Y.dim() != 2 or len(Y) < 2:
        raise InputError(f"Y must be (n, p) with at least two rows, got shape {tuple(Y.shape)}.")
    Y = Y if Y.is_floating_point() else Y.to(torch.get_default_dtype())
    observed = ~Y.isnan()
    if not observed.any(0).all():
        raise InputError(f"output column {int((~observed.any(0)).nonzero()[0])} of Y has no observed value.")
    centred = torch.where(observed, Y - Y.nanmean(0), 0.0)
    weight = observed.to(Y.dtype)
    covariance = (centred.mT @ centred) / (weight.mT @ weight - 1).clamp_min(1)
    values, vectors = torch.linalg.eigh(covariance)
    covariance = (vectors * values.clamp_min(0)) @ vectors.mT
    return (1 - shrinkage) * covariance + shrinkage * torch.diag(covariance.diagonal())


class GraphMatrix(KnownMatrix):
    """Γ from a graph of tasks: the pseudo-inverse of its Laplacian L = diag(W1) − W (BT-25).

    A bare L† punishes differences along edges, ‖f‖² = ½ Σ W_kl ‖f_k − f_l‖², and gives the **mean over the tasks
    zero prior variance**: Σ_k f_k = 0 for every function of the prior. Real outputs seldom have a zero mean over
    tasks, so give one of the two remedies, or 0 to say that you mean the bare pseudo-inverse.

    Args:
        weights: W (p, p), symmetric, non-negative; its diagonal is ignored.
        ridge: ε > 0 gives (L + ε I)⁻¹.
        mean_variance: α > 0 gives L† + α P, P the projector on the null space of L (11ᵀ/p if the graph is connected).
            Not together with a ridge, which gives that mean the variance 1/ε already.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import GraphMatrix
        >>> chain = torch.tensor([[0., 1., 0.], [1., 0., 1.], [0., 1., 0.]])
        >>> GraphMatrix(chain, mean_variance=1.0)().shape
        torch.Size([3, 3])
    """

    def __init__(self, weights: Tensor, ridge: float | None = None, mean_variance: float | None = None):
        weights = torch.as_tensor(weights)
        if weights.dtype not in (torch.float32, torch.float64):
            weights = weights.to(torch.get_default_dtype())
        for name, value in (("ridge", ridge), ("mean_variance", mean_variance)):
            if value is not None and value < 0:
                raise OptionError(f"{name} must not be negative, got {value}.")
        if ridge and mean_variance:
            raise OptionError(
                f"give ridge or mean_variance, not both (got {ridge} and {mean_variance}): each of them gives the mean "
                "over the tasks a variance."
            )
        if ridge is None and mean_variance is None:
            warnings.warn(
                "a bare Laplacian pseudo-inverse gives the mean over the tasks zero prior variance; pass "
                "mean_variance= or ridge=, or mean_variance=0 if you mean it.",
                UserWarning,
                stacklevel=2,
            )
        # in double precision: the null space must not drown in round-off
        inverse = _inverse_laplacian(graph_laplacian(weights.double()), ridge or 0.0, mean_variance or 0.0)
        super().__init__(inverse.to(weights.dtype))

    @classmethod
    def from_outputs(cls, Y: Tensor, gamma: float | None = None, **options) -> GraphMatrix:
        """Weights W_kl = exp(−γ ‖y_k − y_l‖) from complete outputs Y (n, p); γ = 1 / median distance by default."""
        Y = torch.as_tensor(Y)
        if not torch.isfinite(Y).all():
            raise InputError("Y holds NaN or infinity; distances between outputs need complete ones.")
        distances = torch.cdist(Y.mT, Y.mT)
        if gamma is None:
            positive = distances[distances > 0]
            gamma = 1 / positive.median() if len(positive) else 1.0
        return cls(torch.exp(-gamma * distances), **options)


def graph_laplacian(weights: Tensor) -> Tensor:
    """The Laplacian L = diag(W1) − W of a graph.

    Args:
        weights: W (p, p), symmetric and non-negative; its diagonal is ignored.

    Example:
        >>> import torch
        >>> from ovkgp.kernels import graph_laplacian
        >>> graph_laplacian(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
        tensor([[ 2., -2.],
                [-2.,  2.]])
    """
    if weights.dim() != 2 or weights.shape[0] != weights.shape[1]:
        raise InputError(f"graph weights are a square matrix (p, p), got shape {tuple(weights.shape)}.")
    if (weights < 0).any() or not torch.allclose(weights, weights.mT):
        raise InputError("graph weights must be symmetric and non-negative.")
    weights = (weights + weights.mT) / 2 - torch.diag(weights.diagonal())
    return torch.diag(weights.sum(-1)) - weights


def _inverse_laplacian(laplacian: Tensor, ridge: float, mean_variance: float) -> Tensor:
    values, vectors = torch.linalg.eigh(laplacian)
    null = values <= len(values) * torch.finfo(values.dtype).eps * values.amax()
    on_null = mean_variance + (1 / ridge if ridge > 0 else 0.0)
    inverse = torch.where(null, on_null, 1 / torch.where(null, 1.0, values + ridge))
    return (vectors * inverse) @ vectors.mT


def simplex_code(num_classes: int) -> Tensor:
    """The simplex code C (p−1, p): unit columns with pairwise inner products −1/(p−1), C Cᵀ = p/(p−1) I (BT-80, BT-E-29).

    Args:
        num_classes: p, at least 2. Column k is the code of class k; of a prediction f (p−1,), `(f @ C).argmax()` is
            the class.

    Example:
        >>> from ovkgp.kernels import simplex_code
        >>> code = simplex_code(3)
        >>> code.shape, (code.mT @ code)[0, 1].item()
        (torch.Size([2, 3]), -0.5)
    """
    num_classes = check_integer("num_classes", num_classes, least=2)
    code = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for p in range(2, num_classes):
        top = torch.cat([code.new_ones(1, 1), code.new_full((1, p), -1 / p)], dim=1)
        bottom = torch.cat([code.new_zeros(p - 1, 1), (1 - p**-2) ** 0.5 * code], dim=1)
        code = torch.cat([top, bottom])
    return code


class SimplexMatrix(OutputMatrix):
    """Γ = CᵀC = p/(p−1) (I − 11ᵀ/p) of the simplex code C: class scores that sum to zero (BT-80).

    Args:
        num_classes: p, at least 2.

    Example:
        >>> from ovkgp.kernels import SimplexMatrix
        >>> matrix = SimplexMatrix(3)
        >>> bool(matrix().sum(-1).abs().max() < 1e-6), matrix.factor().shape
        (True, torch.Size([3, 2]))
    """

    def __init__(self, num_classes: int):
        super().__init__(num_classes)
        self.register_buffer("code", simplex_code(num_classes).to(torch.get_default_dtype()))

    def _apply(self, *args, **options) -> SimplexMatrix:
        super()._apply(*args, **options)
        self.code = simplex_code(self.num_outputs).to(
            self.code
        )  # in the new precision, without the rounding of the old
        return self

    def forward(self) -> Tensor:
        return self.factor() @ self.factor().mT

    def factor(self) -> Tensor:
        return self.code.mT.expand(*self.batch_shape, *self.code.mT.shape)


class MeanRegularizedMatrix(OutputMatrix):
    """Γ = c 11ᵀ + (1 − c) I: outputs are shrunk towards their common mean, by a trained coupling c in (0, 1).

    The matching penalty is ‖f‖² = Σ_a ‖f_a − f̄‖² / (1 − c) + p ‖f̄‖² / (1 − c + p c): c = 0 is independence,
    c → 1 one function for all.

    Args:
        num_outputs: p.
        coupling: where c starts.
        batch_shape: leading dimensions.

    Example:
        >>> from ovkgp.kernels import MeanRegularizedMatrix
        >>> MeanRegularizedMatrix(2, coupling=0.25)().tolist()
        [[1.0, 0.25], [0.25, 1.0]]
    """

    def __init__(self, num_outputs: int, coupling: float = 0.5, batch_shape: torch.Size = torch.Size()):
        super().__init__(num_outputs, batch_shape)
        if not 0 < coupling < 1:
            raise OptionError(f"coupling must lie strictly between 0 and 1, got {coupling}.")
        self.register_parameter("raw_coupling", torch.nn.Parameter(torch.zeros(self.batch_shape)))
        self.register_constraint("raw_coupling", Interval(0.0, 1.0))
        self.coupling = coupling

    @property
    def coupling(self) -> Tensor:
        """c (...)."""
        return self.raw_coupling_constraint.transform(self.raw_coupling)

    @coupling.setter
    def coupling(self, value) -> None:
        value = torch.as_tensor(value).to(self.raw_coupling).expand_as(self.raw_coupling)
        self.initialize(raw_coupling=self.raw_coupling_constraint.inverse_transform(value))

    def forward(self) -> Tensor:
        c = self.coupling[..., None, None]
        return c + (1 - c) * torch.eye(self.num_outputs, dtype=c.dtype, device=c.device)


class FullMatrix(OutputMatrix):
    """Γ = L Lᵀ with a lower-triangular L (p, p), trained: p(p + 1)/2 numbers, and no two of them give the same Γ.

    The diagonal of L is kept as its logarithm, what is below it as it is. Where Γ itself is to be inferred this is the
    matrix to take: the loadings of a `FreeMatrix` can be rotated without changing Γ.

    Args:
        num_outputs: p.
        batch_shape, prior: as for `OutputMatrix`.

    Cost: O(p³) for Γ, O(p²) for its factor.

    Example:
        >>> from ovkgp.kernels import FullMatrix
        >>> matrix = FullMatrix(num_outputs=3)
        >>> matrix().shape, sum(parameter.numel() for parameter in matrix.parameters())
        (torch.Size([3, 3]), 6)
    """

    def __init__(self, num_outputs: int, batch_shape: torch.Size = torch.Size(), prior: Prior | None = None):
        super().__init__(num_outputs, batch_shape, prior)
        p = self.num_outputs
        self.register_parameter("log_scale", torch.nn.Parameter(torch.zeros(*self.batch_shape, p)))
        self.register_parameter("lower", torch.nn.Parameter(torch.zeros(*self.batch_shape, p * (p - 1) // 2)))

    @property
    def chol(self) -> Tensor:
        """L (..., p, p)."""
        rows, columns = torch.tril_indices(self.num_outputs, self.num_outputs, -1, device=self.lower.device)
        chol = torch.diag_embed(self.log_scale.exp())
        chol[..., rows, columns] = self.lower  # in place of zeros that need no gradient
        return chol

    def forward(self) -> Tensor:
        chol = self.chol
        return chol @ chol.mT

    def factor(self) -> Tensor:
        return self.chol

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}"
