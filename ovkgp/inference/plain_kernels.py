"""Scalar kernels as plain functions of their values, on squared distances that are computed once.

    K = k(r²),   r² = Σ_d D_d / ℓ_d²,   ∂ℓ_d = −2 ℓ_d⁻³ Σ_ij G_ij k'(r²_ij) D_d,ij

for D_d the squared differences in column d and G the derivatives by K. Each piece has `matrix(θ)`, which gives K (n, n) and a
function that carries G, contracted as if symmetric, back to the derivatives by θ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel

from ovkgp.inference.plain_parameters import Back, NotPlain, PlainVector, Reference, Scaled

MOST_ENTRIES = 10_000_000
"""Squared differences that are kept (80 MB); where there would be more, the modules cost little beside the algebra."""
TINY = 1e-150
"""In place of a distance of zero, where it divides zero."""


def _rbf(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    K = np.exp(-0.5 * r2)
    return K, -0.5 * K


def _matern12(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r = np.sqrt(r2)
    K = np.exp(-r)
    return K, -0.5 * K / np.maximum(r, TINY)


def _matern32(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(3 * r2)
    decay = np.exp(-a)
    return (1 + a) * decay, -1.5 * decay


def _matern52(r2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(5 * r2)
    decay = np.exp(-a)
    grown = (1 + a) * decay
    return grown + (5 / 3) * r2 * decay, (-5 / 6) * grown


MATERNS = {0.5: _matern12, 1.5: _matern32, 2.5: _matern52}


class Stationary:
    """k(r²) with a lengthscale for all columns or one for each.

    Args:
        profile: r² ↦ k and dk/dr².
        X: the columns that the kernel looks at (n, d).
        lengthscale: (1, 1) or (1, d).
    """

    def __init__(self, profile: Callable, X: np.ndarray, lengthscale: Reference):
        self.profile, self.lengthscale = profile, lengthscale
        self.squares = _squares(X, separate=lengthscale.shape[-1] > 1)

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        ell = self.lengthscale.value(theta).ravel()
        r2 = self._scaled(ell)
        K, slope = self.profile(r2)

        def back(G: np.ndarray, out: np.ndarray) -> None:
            self._add_lengthscale(out, ell, G * slope)

        return K, back

    def _scaled(self, ell: np.ndarray) -> np.ndarray:
        n = self.squares.shape[-1]
        return (
            self.squares * ell[0] ** -2
            if len(ell) == 1
            else (ell**-2 @ self.squares.reshape(len(ell), -1)).reshape(n, n)
        )

    def _add_lengthscale(self, out: np.ndarray, ell: np.ndarray, weights: np.ndarray) -> None:
        by_inverse = self.squares.reshape(len(ell), -1) @ weights.ravel()
        self.lengthscale.add(out, -2 * by_inverse / ell**3)


class RationalQuadratic(Stationary):
    """(1 + r²/2α)^{−α}; see `Stationary`.

    Args:
        alpha: α (1,).
    """

    def __init__(self, X: np.ndarray, lengthscale: Reference, alpha: Reference):
        super().__init__(None, X, lengthscale)
        self.alpha = alpha

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        ell, alpha = self.lengthscale.value(theta).ravel(), self.alpha.number(theta)
        part = self._scaled(ell) / (2 * alpha)
        logs = np.log1p(part)
        K = np.exp(-alpha * logs)

        def back(G: np.ndarray, out: np.ndarray) -> None:
            weighted = G * K
            self._add_lengthscale(out, ell, -0.5 * weighted / (1 + part))
            self.alpha.add(out, np.vdot(weighted, part / (1 + part) - logs))

        return K, back


class Sum:
    """k_1 + k_2 + …

    Args:
        parts: their pieces.
    """

    def __init__(self, parts: list):
        self.parts = parts

    def matrix(self, theta: np.ndarray) -> tuple[np.ndarray, Back]:
        found = [part.matrix(theta) for part in self.parts]

        def back(G: np.ndarray, out: np.ndarray) -> None:
            for _, one in found:
                one(G, out)

        return sum(K for K, _ in found), back


def plain_kernel(kernel: Kernel, X: np.ndarray, vector: PlainVector, is_called: bool = True):
    """The piece of a scalar kernel at the rows of X (n, d).

    Args:
        kernel: an RBF, Matérn or rational quadratic kernel, scaled or added up.
        X: the inputs.
        vector: where the parameters are.
        is_called: whether the kernel selects its `active_dims` itself; GPyTorch's ScaleKernel does it for what it scales.

    Cost: O(n²d) once; K and its derivatives O(n²), O(n²d) with a lengthscale for each column.

    Raises:
        NotPlain: the kernel is not in the table; a subclass, whose `forward` is its own, never is.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.parameters import ParameterVector
        >>> from ovkgp.inference.plain_kernels import plain_kernel
        >>> from ovkgp.inference.plain_parameters import PlainVector
        >>> kernel = RBFKernel().double()
        >>> piece = plain_kernel(kernel, np.array([[0.0], [1.0]]), PlainVector(ParameterVector(kernel)))
        >>> K, back = piece.matrix(np.array([2.0]))  # lengthscale 2
        >>> bool(abs(K[0, 1] - np.exp(-1 / 8)) < 1e-15)
        True
    """
    if len(kernel.batch_shape):
        raise NotPlain("a batch of kernels")
    if is_called and kernel.active_dims is not None:
        X = X[:, kernel.active_dims.cpu().numpy()]
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = vector.reference(kernel.raw_outputscale, kernel.raw_outputscale_constraint)
        return Scaled(scale, plain_kernel(kernel.base_kernel, X, vector, is_called=False))
    if kind is AdditiveKernel:
        return Sum([plain_kernel(part, X, vector) for part in kernel.kernels])
    if kind not in (RBFKernel, MaternKernel, RQKernel) or (kind is MaternKernel and kernel.nu not in MATERNS):
        raise NotPlain(f"the kernel {kind.__name__}")
    lengthscale = vector.reference(kernel.raw_lengthscale, kernel.raw_lengthscale_constraint)
    if kind is RQKernel:
        return RationalQuadratic(X, lengthscale, vector.reference(kernel.raw_alpha, kernel.raw_alpha_constraint))
    return Stationary(_rbf if kind is RBFKernel else MATERNS[kernel.nu], X, lengthscale)


def _squares(X: np.ndarray, separate: bool) -> np.ndarray:
    """Squared differences (d, n, n) between the rows, or their sum (n, n)."""
    n, d = X.shape
    if n * n * (d if separate else 1) > MOST_ENTRIES:
        raise NotPlain("too many rows")
    if separate:
        return np.square(X.T[:, :, None] - X.T[:, None, :])
    return sum(np.square(column[:, None] - column) for column in X.T)
