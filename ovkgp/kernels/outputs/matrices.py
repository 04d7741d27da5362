"""Output matrices Γ (p, p) of separable kernels: trained, given, estimated from data, or from a graph or a code."""

from __future__ import annotations

import warnings

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.module import Module
from gpytorch.priors import Prior
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from ovkgp.checks import check_integer, check_nonnegative, check_probability
from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.batch_index import BatchIndexMixin

RANK_CUTOFF = 1e-5
"""Relative size below which an eigenvalue of a fixed output matrix is dropped from its factor (BT-49)."""
CUTOFF = 1e-10  # relative size below which an eigenvalue is considered zero in float64; float32 uses 1e-5


class OutputMatrix(BatchIndexMixin, Module):
    """Base class of output matrices: `forward()` returns Γ (..., p, p), `factor()` a root (..., p, r) of it.

    Parameters
    ----------
    num_outputs : int
        Number p of outputs.
    batch_shape : torch.Size, default=torch.Size()
        Batch shape, as in GPyTorch's kernels.
    prior : Prior or None, default=None
        Prior of the matrix Γ.

    Examples
    --------
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
            self.register_prior("matrix_prior", prior, Module.__call__)

    @property
    def batch_shape(self) -> torch.Size:
        return self._batch_shape

    def extra_repr(self) -> str:
        return f"num_outputs={self.num_outputs}"

    def factor(self) -> Tensor:
        """Return B (..., p, r) with B Bᵀ = Γ; the Cholesky factor unless a subclass has a thinner root.

        If Γ is singular to working precision, jitter (at least 1e-8 in float64, 1e-6 in float32) is added with a
        warning.

        Returns
        -------
        Tensor of shape (..., p, r)
            Root of Γ.
        """
        return psd_safe_cholesky(self())


class FreeMatrix(OutputMatrix):
    """Trained low-rank-plus-diagonal matrix Γ = W Wᵀ + diag(v), with loadings W (p, rank) and v > 0 (p,).

    Parameters
    ----------
    num_outputs : int
        Number p of outputs.
    rank : int, default=1
        Number of columns of W, from 1 to p.
    batch_shape, prior
        As for `OutputMatrix`.
    diagonal_constraint : Interval or None, default=None
        Constraint of v. If None, `Positive`.

    Examples
    --------
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
        self.rank = check_integer("rank", rank, minimum=None)
        if not 1 <= self.rank <= self.num_outputs:
            raise OptionError(f"rank must be between 1 and num_outputs = {num_outputs}, got {rank}.")
        loadings = make_initial_loadings(self.num_outputs, self.rank).to(torch.get_default_dtype())
        self.register_parameter("loadings", torch.nn.Parameter(loadings.repeat(*self.batch_shape, 1, 1)))
        self.register_parameter("raw_diagonal", torch.nn.Parameter(torch.zeros(*self.batch_shape, num_outputs)))
        self.register_constraint("raw_diagonal", diagonal_constraint or Positive())

    @property
    def diagonal(self) -> Tensor:
        """Positive diagonal v (..., p)."""
        return self.raw_diagonal_constraint.transform(self.raw_diagonal)

    @diagonal.setter
    def diagonal(self, value) -> None:
        value = torch.as_tensor(value).to(self.raw_diagonal)
        self.initialize(raw_diagonal=self.raw_diagonal_constraint.inverse_transform(value))

    def forward(self) -> Tensor:
        return self.loadings @ self.loadings.mT + torch.diag_embed(self.diagonal)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"


def make_initial_loadings(num_outputs: int, rank: int) -> Tensor:
    """Return fixed loadings (p, rank) without symmetries, which the gradient of the evidence could not break."""
    a = torch.arange(1, num_outputs + 1).unsqueeze(-1)
    q = torch.arange(1, rank + 1)
    return torch.sin(1.7 * a * q + 0.5 * q) / rank**0.5


class KnownMatrix(OutputMatrix):
    """Given matrix Γ, which is not trained.

    The number of columns of its factor is its numerical rank: eigenvalues below 1e-5 of the largest are dropped.

    Parameters
    ----------
    matrix : Tensor of shape (..., p, p)
        Symmetric positive semi-definite matrix Γ.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import KnownMatrix
    >>> twins = KnownMatrix(torch.ones(2, 2))  # two equal outputs
    >>> twins().shape, twins.factor().shape
    (torch.Size([2, 2]), torch.Size([2, 1]))
    """

    batched_buffers = ("matrix",)

    def __init__(self, matrix: Tensor):
        matrix = torch.as_tensor(matrix).detach()
        if matrix.dtype not in (torch.float32, torch.float64):
            matrix = matrix.to(torch.get_default_dtype())
        if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise InputError(f"matrix must be square, (p, p), got shape {tuple(matrix.shape)}.")
        super().__init__(matrix.shape[-1], matrix.shape[:-2])
        _check_psd(matrix)
        self.register_buffer("matrix", (matrix + matrix.mT) / 2)

    def forward(self) -> Tensor:
        return self.matrix

    def factor(self) -> Tensor:
        return thin_root(self.matrix, RANK_CUTOFF)


def _check_psd(matrix: Tensor) -> None:
    if not torch.isfinite(matrix).all():
        raise InputError("The output matrix must be finite, got NaN or infinity.")
    size = matrix.abs().amax().clamp_min(torch.finfo(matrix.dtype).tiny)
    slack = 1e3 * torch.finfo(matrix.dtype).eps * matrix.shape[-1]
    if (matrix - matrix.mT).abs().amax() > slack * size:
        raise InputError("The output matrix must be symmetric. Use (A + A.T) / 2 if that is intended.")
    if torch.linalg.eigvalsh(matrix).amin() < -slack * size:
        raise InputError("The output matrix must be positive semi-definite, got a negative eigenvalue.")


class EmpiricalMatrix(KnownMatrix):
    """Covariance matrix of observed outputs, shrunk towards its diagonal.

    Missing entries (NaN) are omitted pairwise, and negative eigenvalues of the result are set to 0.

    Parameters
    ----------
    Y : Tensor of shape (n, p)
        Outputs, with at least 2 rows and at least one observed value per column.
    shrinkage : float, default=0.0
        Weight s in [0, 1] of the diagonal: Γ is replaced by (1 − s) Γ + s diag(Γ).

    References
    ----------
    BA-05

    Examples
    --------
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
        raise InputError(f"Y must have shape (n, p) with at least 2 rows, got shape {tuple(Y.shape)}.")
    Y = Y if Y.is_floating_point() else Y.to(torch.get_default_dtype())
    observed = ~Y.isnan()
    if not observed.any(0).all():
        raise InputError(f"Y has no observed values in column {int((~observed.any(0)).nonzero()[0])}.")
    centered = torch.where(observed, Y - Y.nanmean(0), 0.0)
    weight = observed.to(Y.dtype)
    covariance = (centered.mT @ centered) / (weight.mT @ weight - 1).clamp_min(1)
    values, vectors = torch.linalg.eigh(covariance)
    covariance = (vectors * values.clamp_min(0)) @ vectors.mT
    return (1 - shrinkage) * covariance + shrinkage * torch.diag(covariance.diagonal())


class GraphMatrix(KnownMatrix):
    """Pseudo-inverse of the Laplacian L = diag(W1) − W of a graph of outputs.

    L† alone penalizes differences along edges, ‖f‖² = ½ Σ W_kl ‖f_k − f_l‖², and gives the **mean over the outputs zero
    prior variance**: Σ_k f_k = 0 for every draw. Outputs rarely satisfy this, so set `ridge` or `mean_variance`, or set
    one of them to 0 if the pseudo-inverse alone is intended.

    Parameters
    ----------
    weights : Tensor of shape (p, p)
        Symmetric nonnegative weights W. The diagonal is ignored.
    ridge : float or None, default=None
        ε > 0 gives (L + ε I)⁻¹.
    mean_variance : float or None, default=None
        α > 0 gives L† + α P, P the projector on the null space of L (11ᵀ/p if the graph is connected). Not supported
        together with `ridge`, which gives the mean the variance 1/ε.

    References
    ----------
    BT-25

    Examples
    --------
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
            if value is not None:
                check_nonnegative(name, value)
        if ridge and mean_variance:
            raise OptionError(
                f"ridge is not supported together with mean_variance, got {ridge} and {mean_variance}. Use one of them."
            )
        if ridge is None and mean_variance is None:
            warnings.warn(
                "The pseudo-inverse of a Laplacian gives the mean over the outputs zero prior variance. Set mean_variance or ridge, or mean_variance=0 if this is intended.",
                UserWarning,
                stacklevel=2,
            )
        # double precision separates the null space from rounding errors
        inverse = _inverse_laplacian(graph_laplacian(weights.double()), ridge or 0.0, mean_variance or 0.0)
        super().__init__(inverse.to(weights.dtype))

    @classmethod
    def from_outputs(cls, Y: Tensor, gamma: float | None = None, **options) -> GraphMatrix:
        """Return a matrix with weights W_kl = exp(−γ ‖y_k − y_l‖) between complete outputs.

        Parameters
        ----------
        Y : Tensor of shape (n, p)
            Outputs without missing values.
        gamma : float or None, default=None
            Rate γ. If None, one over the median positive distance.
        **options
            Arguments `ridge` and `mean_variance` of `GraphMatrix`.

        Returns
        -------
        GraphMatrix
            The matrix.
        """
        Y = torch.as_tensor(Y)
        if not torch.isfinite(Y).all():
            raise InputError("Y must be finite, got NaN or infinity.")
        distances = torch.cdist(Y.mT, Y.mT)
        if gamma is None:
            positive = distances[distances > 0]
            gamma = 1 / positive.median() if len(positive) else 1.0
        return cls(torch.exp(-gamma * distances), **options)


def graph_laplacian(weights: Tensor) -> Tensor:
    """Compute the Laplacian L = diag(W1) − W of a graph.

    Parameters
    ----------
    weights : Tensor of shape (p, p)
        Symmetric nonnegative weights W. The diagonal is ignored.

    Returns
    -------
    Tensor of shape (p, p)
        The Laplacian.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import graph_laplacian
    >>> graph_laplacian(torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    tensor([[ 2., -2.],
            [-2.,  2.]])
    """
    if weights.dim() != 2 or weights.shape[0] != weights.shape[1]:
        raise InputError(f"weights must be a square matrix (p, p), got shape {tuple(weights.shape)}.")
    if (weights < 0).any() or not torch.allclose(weights, weights.mT):
        raise InputError("weights must be symmetric and nonnegative.")
    weights = (weights + weights.mT) / 2 - torch.diag(weights.diagonal())
    return torch.diag(weights.sum(-1)) - weights


def _inverse_laplacian(laplacian: Tensor, ridge: float, mean_variance: float) -> Tensor:
    values, vectors = torch.linalg.eigh(laplacian)
    null = values <= len(values) * torch.finfo(values.dtype).eps * values.amax()
    on_null = mean_variance + (1 / ridge if ridge > 0 else 0.0)
    inverse = torch.where(null, on_null, 1 / torch.where(null, 1.0, values + ridge))
    return (vectors * inverse) @ vectors.mT


def simplex_code(num_classes: int) -> Tensor:
    """Return the simplex code C of p classes: unit columns with inner products −1/(p−1), C Cᵀ = p/(p−1) I.

    Parameters
    ----------
    num_classes : int
        Number p of classes. Must be at least 2.

    Returns
    -------
    Tensor of shape (p − 1, p)
        Column k is the code of class k. The class of a prediction f (p−1,) is `(f @ C).argmax()`.

    References
    ----------
    BT-80, BT-E-29

    Examples
    --------
    >>> from ovkgp.kernels import simplex_code
    >>> code = simplex_code(3)
    >>> code.shape, (code.mT @ code)[0, 1].item()
    (torch.Size([2, 3]), -0.5)
    """
    num_classes = check_integer("num_classes", num_classes, minimum=2)
    code = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for p in range(2, num_classes):
        top = torch.cat([code.new_ones(1, 1), code.new_full((1, p), -1 / p)], dim=1)
        bottom = torch.cat([code.new_zeros(p - 1, 1), (1 - p**-2) ** 0.5 * code], dim=1)
        code = torch.cat([top, bottom])
    return code


class SimplexMatrix(OutputMatrix):
    """Matrix Γ = CᵀC = p/(p−1) (I − 11ᵀ/p) of the simplex code C, for class scores that sum to zero.

    Parameters
    ----------
    num_classes : int
        Number p of classes. Must be at least 2.

    References
    ----------
    BT-80

    Examples
    --------
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
        self.code = simplex_code(self.num_outputs).to(self.code)  # recompute in the new precision
        return self

    def forward(self) -> Tensor:
        return self.factor() @ self.factor().mT

    def factor(self) -> Tensor:
        return self.code.mT.expand(*self.batch_shape, *self.code.mT.shape)


class MeanRegularizedMatrix(OutputMatrix):
    """Matrix Γ = c 11ᵀ + (1 − c) I, which shrinks outputs towards their mean by a trained coupling c in (0, 1).

    Outputs are independent for c → 0 and equal for c → 1.

    Parameters
    ----------
    num_outputs : int
        Number p of outputs.
    coupling : float, default=0.5
        Initial value of c.
    batch_shape : torch.Size, default=torch.Size()
        Batch shape, as in GPyTorch's kernels.

    Notes
    -----
    The corresponding penalty is ‖f‖² = Σ_a ‖f_a − f̄‖² / (1 − c) + p ‖f̄‖² / (1 − c + p c).

    Examples
    --------
    >>> from ovkgp.kernels import MeanRegularizedMatrix
    >>> MeanRegularizedMatrix(2, coupling=0.25)().tolist()
    [[1.0, 0.25], [0.25, 1.0]]
    """

    def __init__(self, num_outputs: int, coupling: float = 0.5, batch_shape: torch.Size = torch.Size()):
        super().__init__(num_outputs, batch_shape)
        coupling = check_probability("coupling", coupling)
        self.register_parameter("raw_coupling", torch.nn.Parameter(torch.zeros(self.batch_shape)))
        self.register_constraint("raw_coupling", Interval(0.0, 1.0))
        self.coupling = coupling

    @property
    def coupling(self) -> Tensor:
        """Coupling c (...)."""
        return self.raw_coupling_constraint.transform(self.raw_coupling)

    @coupling.setter
    def coupling(self, value) -> None:
        value = torch.as_tensor(value).to(self.raw_coupling).expand_as(self.raw_coupling)
        self.initialize(raw_coupling=self.raw_coupling_constraint.inverse_transform(value))

    def forward(self) -> Tensor:
        c = self.coupling[..., None, None]
        return c + (1 - c) * torch.eye(self.num_outputs, dtype=c.dtype, device=c.device)


class FullMatrix(OutputMatrix):
    """Trained matrix Γ = L Lᵀ with a lower-triangular L (p, p), parameterized by its p(p + 1)/2 entries.

    The diagonal of L is stored as its logarithm. Use this matrix to infer Γ: unlike the loadings of a `FreeMatrix`,
    which can be rotated without changing Γ, its parameters are identified.

    Parameters
    ----------
    num_outputs, batch_shape, prior
        As for `OutputMatrix`.

    Notes
    -----
    Complexity: O(p³) for Γ, O(p²) for its factor.

    Examples
    --------
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
        """Cholesky factor L (..., p, p)."""
        rows, columns = torch.tril_indices(self.num_outputs, self.num_outputs, -1, device=self.lower.device)
        chol = torch.diag_embed(self.log_scale.exp())
        chol[..., rows, columns] = self.lower  # replaces zeros that need no gradient
        return chol

    def forward(self) -> Tensor:
        chol = self.chol
        return chol @ chol.mT

    def factor(self) -> Tensor:
        return self.chol


def leading_subspace(matrix: Tensor, cutoff: float = CUTOFF) -> tuple[Tensor, Tensor]:
    """Return a constant V (..., m, r), r the largest rank of a batch, and the Cholesky factor of Vᵀ A V (..., r, r)."""
    cutoff = cutoff if matrix.dtype == torch.float64 else max(cutoff, 1e-5)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
        large = values > cutoff * values.amax(-1, keepdim=True)
        keep = large.reshape(-1, values.shape[-1]).any(0)
        large = large[..., keep].to(matrix)
        vectors = vectors[..., keep] * large.unsqueeze(-2)  # zero columns if another batch has a larger rank
    core = vectors.mT @ matrix @ vectors + torch.diag_embed(1 - large)
    return vectors, torch.linalg.cholesky((core + core.mT) / 2)


def thin_root(matrix: Tensor, cutoff: float = CUTOFF) -> Tensor:
    """Return B (..., m, r) with B Bᵀ = A up to the cutoff, for a positive semi-definite A (..., m, m) of rank r.

    The eigenvectors V are constants, and A V (Vᵀ A V)⁻¹ Vᵀ Aᵀ is the Nyström form of A on their span. It equals A if no
    eigenvalue is dropped, for any V, so that its derivative needs none of `eigh`.
    """
    vectors, chol = leading_subspace(matrix, cutoff)
    return torch.linalg.solve_triangular(chol, (matrix @ vectors).mT, upper=False).mT
