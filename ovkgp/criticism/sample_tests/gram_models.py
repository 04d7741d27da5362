"""Gaussian models of samples in a reproducing kernel Hilbert space, computed from Gram matrices alone.

Parsimonious covariances and the classifier they define (KT-34..36), effective degrees of freedom (KT-38), the trace criterion for
paths of Gaussian processes (KT-31..33) and renormalized kernels (KT-12). For re-centered kernels (KT-13) use
`sklearn.preprocessing.KernelCenterer`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular

from ovkgp.checks import as_numbers, check_integer, check_nonnegative, check_positive
from ovkgp.criticism.sample_tests.samples import as_gram, center_gram, coordinates_of_gram
from ovkgp.exceptions import FactorizationError, InputError, OptionError


@dataclass(frozen=True, repr=False)
class ParsimoniousCovariance:
    """Covariance of a sample in a Hilbert space with few components: leading eigenvalues, and the mean of all others.

    Attributes
    ----------
    eigenvalues : ndarray of shape (num_components,)
        Leading eigenvalues of the empirical covariance, decreasing.
    tail : float
        Mean of the other nonzero eigenvalues.
    num_dimensions : int
        Rank of the empirical covariance.
    vectors : ndarray of shape (n, num_components)
        Coefficients of the eigenfunctions: a centered column of kernel values times `vectors` are principal scores.
    gram : ndarray of shape (n, n)
        Inner products of the sample.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import ParsimoniousCovariance
    >>> rows = np.random.default_rng(0).normal(size=(100, 6)) * [3, 2, 1, 1, 1, 1]
    >>> model = ParsimoniousCovariance.fit(rows @ rows.T, num_components=2)
    >>> model.num_dimensions, bool(np.isclose(model.trace, rows.var(0).sum()))
    (6, True)
    """

    eigenvalues: np.ndarray
    tail: float
    num_dimensions: int
    vectors: np.ndarray
    gram: np.ndarray

    @classmethod
    def fit(cls, gram, num_components: int) -> ParsimoniousCovariance:
        """Fit the covariance to the Gram matrix of a sample.

        Parameters
        ----------
        gram : array-like of shape (n, n)
            Inner products of the observations.
        num_components : int
            Number of eigenvalues that are kept, below the rank of the covariance.

        Returns
        -------
        ParsimoniousCovariance
            Model with the trace of the empirical covariance (KT-E-29).
        """
        gram, number = as_gram(gram, minimum=2), check_integer("num_components", num_components, 0)
        coordinates, eigenvalues = coordinates_of_gram(center_gram(gram))
        if number >= len(eigenvalues):
            raise OptionError(
                f"num_components must be below the rank of the covariance, {len(eigenvalues)}, got {number}."
            )
        vectors = coordinates[:, :number] / (len(gram) * eigenvalues[:number])
        return cls(eigenvalues[:number], float(eigenvalues[number:].mean()), len(eigenvalues), vectors, gram)

    @property
    def trace(self) -> float:
        """Trace of the covariance."""
        return float(self.eigenvalues.sum() + (self.num_dimensions - len(self.eigenvalues)) * self.tail)

    @property
    def log_determinant(self) -> float:
        """Logarithm of the product of all nonzero eigenvalues."""
        remaining = self.num_dimensions - len(self.eigenvalues)
        return float(np.log(self.eigenvalues).sum() + remaining * np.log(self.tail))

    def squared_distances(self, cross, diagonal) -> np.ndarray:
        """Compute Mahalanobis distances of new points.

        Parameters
        ----------
        cross : array-like of shape (n, m)
            Inner products of the sample with new points.
        diagonal : array-like of shape (m,)
            Inner products of new points with themselves.

        Returns
        -------
        ndarray of shape (m,)
            Squared distances to the mean of the sample.
        """
        cross, diagonal = as_numbers(cross, "cross"), as_numbers(diagonal, "diagonal")
        if cross.ndim != 2 or len(cross) != len(self.gram) or diagonal.shape != (cross.shape[1],):
            raise InputError(
                f"cross and diagonal must have shapes ({len(self.gram)}, m) and (m,), got {cross.shape} and {diagonal.shape}."
            )
        scores = self.vectors.T @ (cross - self.gram.mean(1)[:, None])
        to_mean = diagonal + self.gram.mean() - 2 * cross.mean(0)
        return (1 / self.eigenvalues - 1 / self.tail) @ scores**2 + to_mean / self.tail

    def discriminant(self, cross, diagonal, proportion: float = 1.0) -> np.ndarray:
        """Compute the score of a class in quadratic discriminant analysis; the predicted class has the smallest score.

        Parameters
        ----------
        cross, diagonal
            As for `squared_distances`, for the sample of the class.
        proportion : float, default=1.0
            Proportion of the class.

        Returns
        -------
        ndarray of shape (m,)
            Squared distances + log determinant − 2 log proportion (KT-36, KT-E-28).
        """
        constant = self.log_determinant - 2 * np.log(check_positive("proportion", proportion))
        return self.squared_distances(cross, diagonal) + constant

    def __repr__(self) -> str:
        return (
            f"ParsimoniousCovariance({len(self.eigenvalues)} of {self.num_dimensions} components, "
            f"tail {self.tail:.4g}, trace {self.trace:.4g})"
        )


def effective_degrees_of_freedom(gram, noise: float, *, centered: bool = False) -> float:
    """Compute the effective degrees of freedom tr K(K + δI)⁻¹ of a regression with kernel matrix K and noise variance δ.

    Parameters
    ----------
    gram : array-like of shape (n, n)
        Kernel matrix, of all observed entries if there are several outputs.
    noise : float
        Noise variance δ.
    centered : bool, default=False
        Whether to center the kernel matrix: the mean of the Mahalanobis distances of Roth's test.

    Returns
    -------
    float
        Degrees of freedom, between 0 and n.

    References
    ----------
    KT-38

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import effective_degrees_of_freedom
    >>> effective_degrees_of_freedom(np.diag([1.0, 3.0, 0.0]), noise=1.0)
    1.25
    """
    gram, noise = as_gram(gram, minimum=1), check_positive("noise", noise)
    eigenvalues = eigh(center_gram(gram) if centered else gram, eigvals_only=True)
    _check_semidefinite("gram", eigenvalues)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    return float((eigenvalues / (eigenvalues + noise)).sum())


def nuclear_dominance_trace(prior_gram, kernel_gram, *, num_outputs: int = 1, jitter: float = 0.0) -> np.ndarray:
    """Compute tr(R_n K_n⁻¹) for the first n = 1, 2, … points of a sequence.

    Paths of a Gaussian process with covariance R are in the reproducing kernel Hilbert space of K, with probability 1,
    if the traces are bounded as points fill the domain, and outside if they are not. R = K gives n: paths of a Gaussian process are
    not in their own space.

    Parameters
    ----------
    prior_gram, kernel_gram : array-like of shape (n·p, n·p)
        Covariance R and kernel K at the same points, in the same order; blocks of p outputs by point.
    num_outputs : int, default=1
        Number of outputs p.
    jitter : float, default=0.0
        Number added to the diagonal of K; it makes traces too small.

    Returns
    -------
    ndarray of shape (n,)
        Traces for the first 1, 2, …, n points, not decreasing.

    Raises
    ------
    FactorizationError
        If K is not numerically positive definite.

    Notes
    -----
    One Cholesky factorization yields all traces. Complexity: O((n·p)³).

    References
    ----------
    KT-31..33

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import nuclear_dominance_trace
    >>> x = np.linspace(0, 1, 5)
    >>> K = np.exp(-abs(x[:, None] - x))
    >>> nuclear_dominance_trace(K, K).round(6).tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0]
    """
    R, K = as_gram(prior_gram, "prior_gram", 1), as_gram(kernel_gram, "kernel_gram", 1)
    p = check_integer("num_outputs", num_outputs)
    if R.shape != K.shape or len(R) % p:
        raise InputError(
            f"prior_gram and kernel_gram must have the same shape (n·p, n·p) with p = {p}, got {R.shape} and {K.shape}."
        )
    try:
        factor = cholesky(K + check_nonnegative("jitter", jitter) * np.eye(len(K)), lower=True)
    except LinAlgError:
        raise FactorizationError("kernel_gram is not positive definite. Pass a jitter, or fewer points.") from None
    half = solve_triangular(factor, R, lower=True)
    # the factor of a leading block is the leading block of the factor, so that diagonals add up
    diagonal = np.diag(solve_triangular(factor, half.T, lower=True))
    return diagonal.reshape(-1, p).sum(1).cumsum()


def renormalize_gram(gram, cross=None) -> np.ndarray:
    """Divide a kernel by the root mean squares of its rows: k(x, y)/√(S(x) S(y)), S(x) = mean of k(X_i, x)².

    Random projections of the embedded sample are then Gaussian for flat spectra, whatever the distribution of the sample. The
    renormalization removes the signal of outlier detection, so that it must not be used there.

    Parameters
    ----------
    gram : array-like of shape (n, n)
        Kernel between the observations X_i.
    cross : array-like of shape (n, m) or None, default=None
        Kernel between the observations and new points.

    Returns
    -------
    ndarray of shape (n, n) or (n, m)
        Renormalized kernel between the observations, or between the observations and new points.

    References
    ----------
    KT-12, KT-52, KT-53

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import renormalize_gram
    >>> renormalize_gram(np.eye(4)).diagonal().tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    gram = as_gram(gram, minimum=1)
    cross = gram if cross is None else as_numbers(cross, "cross")
    if cross.ndim != 2 or len(cross) != len(gram):
        raise InputError(f"cross has shape {cross.shape}, expected ({len(gram)}, m).")
    squares, new_squares = (gram**2).mean(0), (cross**2).mean(0)
    if not (squares > 0).all() or not (new_squares > 0).all():
        raise InputError("A point has kernel 0 with all observations. Use a smaller scale, or drop the point.")
    return cross / np.sqrt(np.outer(squares, new_squares))


def _check_semidefinite(name: str, eigenvalues: np.ndarray) -> None:
    """Raise if increasing eigenvalues are negative beyond rounding errors."""
    if eigenvalues[0] < -1e-8 * max(eigenvalues[-1], -eigenvalues[0]):
        raise InputError(f"{name} must be positive semi-definite, got an eigenvalue of {eigenvalues[0]:.3g}.")
