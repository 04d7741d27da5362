"""Comparison of the dual and the primal solution of ridge regression for one feature map (BT-69)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.algebra.krylov import Quadratic, minimize_quadratic
from ovkgp.inference.algebra.preconditioners import SketchedPreconditioner
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.ridge.products import MatrixFreeSystem, default_iterations
from ovkgp.inference.ridge.weight_products import WeightProducts
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES

TOLERANCE = 1e-12  # relative residual of the conjugate gradients


class PrimalDual(NamedTuple):
    """Difference between the dual and the primal solution.

    Attributes
    ----------
    residual : Tensor of shape (r,)
        Φᵀu − θ, with u the dual and θ the primal solution.
    relative : float
        Norm of the residual divided by the norm of θ.
    """

    residual: Tensor
    relative: float


def primal_dual_residual(gp: OperatorValuedGP, X, Y, noise=None) -> PrimalDual:
    """Compute the difference between the weights of the dual solution and those of the primal one.

    Parameters
    ----------
    gp : OperatorValuedGP
        Model with a feature map.
    X : array-like of shape (n, d)
        Inputs.
    Y : array-like of shape (n, p)
        Outputs. NaN marks a missing output.
    noise : array-like of shape (n, p) or None, default=None
        Known noise variances. If None, the model's noise is used.

    Returns
    -------
    PrimalDual
        Residual, which is zero in exact arithmetic, and its relative norm. A large residual shows that the noise is
        zero to working precision and that neither solution is reliable.

    Raises
    ------
    OptionError
        If the model has no feature map.

    Notes
    -----
    Complexity: O((np)³ + r³) up to 5000 entries and features; beyond, conjugate gradients at O(n M p) per iteration.

    References
    ----------
    BT-69.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features import ORFF
    >>> from ovkgp.inference import OperatorValuedGP, primal_dual_residual
    >>> kernel = RBFKernel(ard_num_dims=1)
    >>> gp = OperatorValuedGP(kernel, noise=0.1, features=ORFF(kernel, 20, random_state=0))
    >>> X = torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
    >>> primal_dual_residual(gp, X, X.sin()).relative < 1e-10
    True
    """
    if gp.features is None:
        raise OptionError(
            "primal_dual_residual requires a model with a feature map. Use OperatorValuedGP(kernel, features=ORFF(kernel))."
        )
    with torch.no_grad():
        products = WeightProducts.from_model(gp.frozen().model, gp.observe(X, Y, noise).double())
        weights = _primal_weights(products)
        residual = products.adjoint(_dual_coefficients(products)) - weights
    size = torch.linalg.vector_norm(weights).item()
    return PrimalDual(residual, torch.linalg.vector_norm(residual).item() / size if size else 0.0)


def _primal_weights(products: WeightProducts) -> Tensor:
    """Return θ (r,)."""
    if products.num_features > MAX_DENSE_ENTRIES:
        return MatrixFreeSystem(products, tolerance=TOLERANCE).weights
    return _solve_identity_plus(products.matrix(), products.moment())


def _dual_coefficients(products: WeightProducts) -> Tensor:
    """Return w (n, p) with (ΨΨᵀ + I) w = z, the whitened u: Φᵀu = Ψᵀw."""
    targets = products.targets()
    if targets.numel() <= MAX_DENSE_ENTRIES:
        rows = torch.cat(list(products.whitened_rows()))
        return _solve_identity_plus(gram(rows.mT), targets.reshape(-1, 1)).view(targets.shape)

    def apply(columns: Tensor) -> Tensor:
        return columns + products.forward(products.adjoint_columns(columns))

    P = SketchedPreconditioner(apply, targets.numel(), like=targets)
    quadratic = Quadratic(
        lambda V: apply(V.squeeze(-1)).unsqueeze(-1),
        *(lambda V: P.power(V, 1.0), lambda V: P.power(V, 0.5), lambda V: P.power(V, 0.5)),
        norm=1 + products.trace,
    )
    limit = default_iterations(targets.numel(), "cg")
    return minimize_quadratic(quadratic, targets.reshape(-1, 1, 1), "cg", TOLERANCE, limit).solution.view_as(targets)


def _solve_identity_plus(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Return (I + matrix)⁻¹ rhs as a vector."""
    matrix.diagonal().add_(1)
    return torch.cholesky_solve(rhs, safe_cholesky(matrix)).squeeze(-1)
