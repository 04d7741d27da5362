"""Any covariance, by Cholesky: C = L Lᵀ of the observed entries, noise added, and

    log N(r | 0, C) = −½ rᵀα − Σ log L_ii − ½ N log 2π,   α = C⁻¹ r,   ∂C = ½ (α αᵀ − C⁻¹).

The gradient is this closed form, with a third of the work of one product of N × N matrices; it can be differentiated again.
"""

from __future__ import annotations

import math
import warnings

import torch
from linear_operator.utils.warnings import NumericalWarning
from scipy.linalg import lapack
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError

JITTERS = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
"""What is added to the diagonal of a matrix that has no Cholesky factor, as parts of its mean diagonal."""

FORMS = ("diag", "output", "full")
"""Forms of a covariance: variances (m, q), blocks (m, q, q) at each point, all of it (m·q, m·q)."""


def safe_cholesky(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor (N, N) of a covariance that rounding may have made indefinite, differentiable. O(N³).

    Where it fails, `JITTERS` times the mean diagonal are added one after another, with a warning; then it is an error.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.dense import safe_cholesky
        >>> safe_cholesky(torch.tensor([[4.0, 2.0], [2.0, 5.0]]))
        tensor([[2., 0.],
                [1., 2.]])
    """
    return _cholesky(matrix)[0]


def _cholesky(matrix: Tensor) -> tuple[Tensor, float]:
    """The factor and the jitter that it took."""
    chol, info = torch.linalg.cholesky_ex(matrix)
    if info.item() == 0 and math.isfinite(chol.diagonal().sum().item()):
        return chol, 0.0
    check_finite(matrix, "a covariance matrix")
    scale = matrix.detach().diagonal().mean().item()
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for part in JITTERS:
        chol, info = torch.linalg.cholesky_ex(matrix + part * scale * eye)
        if info.item() == 0:
            message = f"a covariance matrix was not positive definite: {part:.0e} of its mean diagonal was added to it."
            warnings.warn(message, NumericalWarning, stacklevel=3)
            return chol, part * scale
    raise FactorizationError(
        f"a {len(matrix)} × {len(matrix)} covariance matrix (mean diagonal {scale:.3g}) is not positive definite, not even "
        f"with {JITTERS[-1]:.0e} of its mean diagonal added: take more noise, shorter lengthscales or smaller outputscales."
    )


def check_finite(matrix: Tensor, name: str) -> None:
    """Refuse NaN and infinity, in one pass without a copy: the sum of a matrix keeps them."""
    if not math.isfinite(matrix.detach().sum().item()):
        raise FactorizationError(
            f"{name} holds NaN or infinity: the hyperparameters made it so (a lengthscale near zero, an outputscale or a "
            "noise that overflowed). Bound them, or scale the data."
        )


def dense_log_density(covariance: Tensor, residuals: Tensor) -> Tensor:
    """log N(r | 0, C), differentiable in both, twice too.

    Args:
        covariance: C (N, N) of the observed entries, noise added.
        residuals: r (N,), observed minus mean.

    Cost: N³/3 for the value and 2N³/3 for the gradient.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.dense import dense_log_density
        >>> dense_log_density(2 * torch.eye(3).double(), torch.ones(3).double())
        tensor(-4.5465, dtype=torch.float64)
    """
    return _DenseDensity.apply(covariance, residuals)


class _DenseDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, covariance: Tensor, residuals: Tensor) -> Tensor:
        chol, ctx.jitter = _cholesky(covariance)
        alpha = torch.cholesky_solve(residuals.unsqueeze(-1), chol).squeeze(-1)
        ctx.save_for_backward(covariance, residuals, chol, alpha)
        return gaussian_log_density(residuals @ alpha, 2 * chol.diagonal().log().sum(), len(residuals))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        covariance, residuals, chol, alpha = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates again: the factor above is a constant, so start anew
            eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            inverse = torch.linalg.inv(covariance + ctx.jitter * eye)
            alpha = inverse @ residuals
            return gradient * (alpha.outer(alpha) - inverse) / 2, -gradient * alpha
        by_covariance = None
        if ctx.needs_input_grad[0]:
            by_covariance = inverse_of(chol).addr_(alpha, alpha, beta=-0.5, alpha=0.5).mul_(gradient)
        return by_covariance, -gradient * alpha


def gaussian_log_density(quadratic: Tensor, logdet: Tensor, size: int) -> Tensor:
    """−½ (rᵀC⁻¹r + log det C + N log 2π)."""
    return -(quadratic + logdet + size * math.log(2 * math.pi)) / 2


def inverse_of(chol: Tensor) -> Tensor:
    """C⁻¹ from its Cholesky factor, without a gradient: LAPACK's potri, faster than `torch.cholesky_inverse`."""
    if chol.device.type != "cpu" or chol.dtype != torch.float64:
        return torch.cholesky_inverse(chol)
    lower = torch.from_numpy(lapack.dpotri(chol.detach().numpy(), lower=1)[0])  # its upper triangle stays L's zeros
    return lower + lower.tril(-1).mT


def gram(matrix: Tensor) -> Tensor:
    """AᵀA (m, m) of A (r, m). On the processor, where no gradient is wanted, it is NumPy's SYRK: half a product."""
    if matrix.device.type != "cpu" or (torch.is_grad_enabled() and matrix.requires_grad):
        return matrix.mT @ matrix
    array = matrix.detach().numpy()
    return torch.from_numpy(array.T @ array)


class DenseSolver:
    """C⁻¹ on the observed entries, for predictions.

    Args:
        covariance: C (N, N) of the observed entries, in the order of `residuals` read row by row, noise added.
        residuals: R (n, p), NaN where missing.

    Cost: N³/3 once; a solve with k columns N² k.

    Attributes:
        alpha: C⁻¹ r (n, p), zero where missing.
        log_density: log N(r | 0, C).
        standard_error: 0.0, since it is exact.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.dense import DenseSolver
        >>> R = torch.tensor([[1.0, float("nan")], [2.0, 3.0]]).double()
        >>> DenseSolver(2 * torch.eye(3).double(), R).alpha
        tensor([[0.5000, 0.0000],
                [1.0000, 1.5000]], dtype=torch.float64)
    """

    standard_error = 0.0

    @torch.no_grad()
    def __init__(self, covariance: Tensor, residuals: Tensor):
        self.observed = ~torch.isnan(residuals)
        observed = residuals[self.observed]
        if covariance.shape != (len(observed), len(observed)):
            raise InputError(
                f"the covariance of the {len(observed)} observed entries must be square of that size; got "
                f"{tuple(covariance.shape)}."
            )
        self.chol = safe_cholesky(covariance)
        alpha = torch.cholesky_solve(observed.unsqueeze(-1), self.chol).squeeze(-1)
        self.log_density = gaussian_log_density(observed @ alpha, 2 * self.chol.diagonal().log().sum(), len(observed))
        self.alpha = self._spread(alpha).view(residuals.shape)

    def _spread(self, observed: Tensor) -> Tensor:
        """(N, ...) to (n·p, ...), zero where missing."""
        spread = observed.new_zeros(self.observed.numel(), *observed.shape[1:])
        spread[self.observed.flatten()] = observed
        return spread

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, (n·p, k) → (n·p, k); rows of missing entries are ignored on input and zero on output."""
        return self._spread(torch.cholesky_solve(rhs[self.observed.flatten()], self.chol))

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹ (n, p), zero where missing. 2N³/3."""
        return self._spread(inverse_of(self.chol).diagonal()).view(self.observed.shape)

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """K_* C⁻¹ K_*ᵀ for the covariance K_* (m·q, n·p) with the observed process; q is `num_outputs`, p by default.

        `form` is "diag" → (m, q), "output" → (m, q, q) or "full" → (m·q, m·q). O(m q N²); differentiable in K_*.
        """
        check_form(form)
        q = self.observed.shape[1] if num_outputs is None else num_outputs
        root = torch.linalg.solve_triangular(self.chol, cross[:, self.observed.flatten()].mT, upper=False)  # (N, m·q)
        if form == "diag":
            return root.square().sum(0).view(-1, q)
        if form == "full":
            return gram(root)
        points = root.mT.unflatten(0, (-1, q))  # (m, q, N)
        return points @ points.mT

    def tensors(self) -> dict[str, Tensor]:
        """Everything the solver holds, to be stored."""
        upper = self.chol.mT.contiguous()  # LAPACK's order: a view of the factor as it is, and no copy
        return {"upper": upper, "observed": self.observed, "alpha": self.alpha, "log_density": self.log_density}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> DenseSolver:
        """The solver that `tensors` came from."""
        solver = cls.__new__(cls)
        solver.chol = tensors["upper"].mT
        solver.observed, solver.alpha, solver.log_density = (
            tensors[name] for name in ("observed", "alpha", "log_density")
        )
        return solver


def check_form(form: str) -> None:
    """Refuse a form of a covariance that is not in `FORMS`."""
    if form not in FORMS:
        raise OptionError(f"a covariance comes as one of {', '.join(map(repr, FORMS))}; got {form!r}.")
