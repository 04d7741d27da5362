"""Daubechies-type orthogonal wavelets on an interval, evaluated exactly at any point (BO-37, BO-12).

All functions are combinations of the scaling functions φ_{J,k}(u) = 2^{J/2} φ(2^J u − k) of the finest level J, with the coefficients of
the two-scale relations φ_{j,n} = Σ_k h_k φ_{j+1,2n+k} and ψ_{j,n} = Σ_k g_k φ_{j+1,2n+k}. The values of φ follow from its values at the
integers by one matrix product per binary digit of the point (Daubechies and Lagarias), and Gram matrices from linear equations.
"""

from __future__ import annotations

import numpy as np
import pywt

from ovkgp.checks import check_integer, check_one_of, check_positive
from ovkgp.exceptions import InputError, OptionError, SmoothnessError
from ovkgp.functional.dictionary import Dictionary
from ovkgp.functional.quadrature import as_domain

NUM_DIGITS = 52  # number of binary digits of a point in [0, 1)
BOUNDARIES = ("periodic", "symmetric", "restricted")


class Wavelets(Dictionary):
    """Orthogonal wavelets with compact support: scaling functions of the coarsest level, then wavelets from coarse to fine.

    Parameters
    ----------
    num_levels : int
        Number of levels of wavelets.
    name : str, default="db2"
        Orthogonal wavelet of PyWavelets, such as "haar", "db2", "db3", "sym4" or "coif1". "dbN" has N vanishing moments.
    domain : array-like of shape (2,), default=(0, 1)
        Domain.
    boundary : {"periodic", "symmetric", "restricted"}, default="periodic"
        "periodic": functions of a period, an orthonormal basis of 2^(coarsest + num_levels) functions. "symmetric": the periodic functions of a
        domain of twice the length, folded at its middle, which represent functions that need not be periodic; there are twice as many, and they
        are redundant. "restricted": all wavelets on the real line that overlap the domain.
    coarsest : int, default=0
        Level of the scaling functions: 2^coarsest translations per length of the domain.

    Attributes
    ----------
    levels : ndarray of shape (d,)
        Level of each function: 0 for scaling functions and the coarsest wavelets, then 1, 2, …

    Notes
    -----
    Folded functions are coefficients of the even, periodic extension f̃ of f: Σ_l ⟨f, φ_l⟩² = ‖P f̃‖²/2 ≤ ‖f‖² for the projection P on the periodic
    functions, so that the eigenvalues of the Gram matrix lie in [0, 1]. Complexity: O(k (52 N² + N 2^J)) for k points and filters of length N.

    References
    ----------
    BO-37

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.functional import Wavelets
    >>> wavelets = Wavelets(3, "db3")
    >>> wavelets.num_functions, wavelets.levels.tolist()
    (8, [0, 0, 1, 1, 2, 2, 2, 2])
    >>> bool(np.allclose(wavelets.gram(), np.eye(8)))
    True
    """

    def __init__(
        self, num_levels: int, name: str = "db2", domain=(0.0, 1.0), boundary: str = "periodic", coarsest: int = 0
    ):
        self.num_levels, self.coarsest = check_integer("num_levels", num_levels), check_integer("coarsest", coarsest, 0)
        self.name, self.boundary = name, check_one_of("boundary", boundary, BOUNDARIES)
        self.domain = as_domain(domain)
        if len(self.domain) != 1:
            raise InputError("domain must be an interval (low, high). Use TensorProduct for several dimensions.")
        self.filter = _scaling_filter(name)
        self.matrix, self.levels = self._synthesis()

    @property
    def num_functions(self) -> int:
        return self.matrix.shape[1]

    @property
    def finest(self) -> int:
        """Level J of the scaling functions of which all functions are combinations."""
        return self.coarsest + self.num_levels

    def scale_weights(self, base: float) -> np.ndarray:
        """Return base^(−level) of each function, (d,), the diagonal of an output matrix that damps fine wavelets (BO-12).

        Parameters
        ----------
        base : float
            Factor b ≥ 1 between levels.

        Returns
        -------
        ndarray of shape (d,)
            Weights, 1 for the coarsest functions.
        """
        return check_positive("base", base) ** -self.levels.astype(float)

    def _translations(self, level: int) -> tuple[int, int]:
        """Return the first translation of a level and their number."""
        if self.boundary == "restricted":
            overlap = len(self.filter) - 2
            return -overlap, 2**level + overlap
        return 0, 2 ** (level + (self.boundary == "symmetric"))

    def _synthesis(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients of all functions on the finest scaling functions, (2^J, d), and their levels."""
        wavelet_filter = self.filter[::-1] * (-1.0) ** np.arange(len(self.filter))
        blocks, levels = [], []
        up = np.eye(self._translations(self.finest)[1])
        for level in range(self.finest - 1, self.coarsest - 1, -1):
            blocks.append(up @ self._two_scale(level, wavelet_filter))
            levels.append(np.full(blocks[-1].shape[1], level - self.coarsest))
            up = up @ self._two_scale(level, self.filter)
        blocks.append(up)
        levels.append(np.zeros(up.shape[1], dtype=int))
        return np.concatenate(blocks[::-1], 1), np.concatenate(levels[::-1])

    def _two_scale(self, level: int, coefficients: np.ndarray) -> np.ndarray:
        """Return the matrix of a two-scale relation, from a level to the next finer one."""
        first, count = self._translations(level)
        fine_first, fine_count = self._translations(level + 1)
        matrix = np.zeros((fine_count, count))
        for n in range(count):
            rows = 2 * (n + first) + np.arange(len(coefficients)) - fine_first
            if self.boundary == "restricted":  # scaling functions beyond the domain vanish on it
                keep = (rows >= 0) & (rows < fine_count)
                matrix[rows[keep], n] = coefficients[keep]
            else:
                np.add.at(matrix[:, n], rows % fine_count, coefficients)
        return matrix

    def _evaluate(self, points: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        if order[0]:
            raise SmoothnessError("Derivatives are not supported with Wavelets. Use BSplines or Fourier.")
        u = (points[:, 0] - self.domain[0, 0]) / self.volume
        rows = self._scaling_rows(u)
        if self.boundary == "symmetric":
            rows = (rows + self._scaling_rows(2 - u)) / np.sqrt(2)
        return rows @ self.matrix / np.sqrt(self.volume)

    def _scaling_rows(self, u: np.ndarray) -> np.ndarray:
        """Return φ_{J,k}(u) for all translations, (k, 2^J), periodic unless restricted."""
        first, count = self._translations(self.finest)
        position = 2.0**self.finest * u
        if self.boundary == "restricted":
            position = np.where(u >= 1, np.nextafter(position, 0), position)  # the limit from the left at the high end
        cell = np.floor(position).astype(int)
        values = 2 ** (self.finest / 2) * scaling_values(self.filter, position - cell)
        rows = np.zeros((len(u), count))
        for i in range(values.shape[1]):  # φ(2^J u − k) with k = cell − i
            index = cell - i - first
            if self.boundary == "restricted":
                keep = (index >= 0) & (index < count)
                rows[np.flatnonzero(keep), index[keep]] += values[keep, i]
            else:
                np.add.at(rows, (np.arange(len(u)), index % count), values[:, i])
        return rows

    def gram(self) -> np.ndarray:
        """Return the Gram matrix, exactly; the identity if periodic."""
        count = self._translations(self.finest)[1]
        if self.boundary == "periodic":
            return np.eye(self.num_functions)
        fine = self._mirror_gram(count) if self.boundary == "symmetric" else self._restricted_gram(count)
        return self.matrix.T @ fine @ self.matrix

    def roughness(self, order: int = 2) -> np.ndarray:
        if check_integer("order", order, 0) == 0:
            return self.gram()
        raise SmoothnessError("roughness is not supported with Wavelets. Use BSplines or Fourier, or a ridge penalty.")

    def _mirror_gram(self, count: int) -> np.ndarray:
        """Return ½ (I + R) with R_kl = ∫ φ_{J,k}(u) φ_{J,l}(2 − u) du over a period 2."""
        # ∫ φ(x − k) φ(P − x − l) dx = c(P − k − l) with the values c of φ ∗ φ at the integers, and P = `count`
        c = _integer_values(np.convolve(self.filter, self.filter) / np.sqrt(2))
        reflected = np.zeros((count, count))
        k = np.arange(count)
        for m, value in enumerate(c):
            np.add.at(reflected, (k, (-k - m) % count), value)
        return (np.eye(count) + reflected) / 2

    def _restricted_gram(self, count: int) -> np.ndarray:
        """Return ∫_0^1 φ_{J,k} φ_{J,l} du: half-line integrals from 0 minus those from 1."""
        first, period = self._translations(self.finest)[0], 2**self.finest
        gram = np.eye(count)
        half = _half_line_gram(self.filter)  # of translations −overlap, …, −1
        size = len(half)
        left = np.arange(-size, 0) - first
        gram[np.ix_(left, left)] = half
        right = left + period
        gram[np.ix_(right, right)] -= half
        return gram


def scaling_values(coefficients: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return φ(x + i) for i = 0, …, N − 2 and x (k,) in [0, 1), of shape (k, N − 1), for a filter (N,) with sum √2.

    With v(x) = (φ(x + i))_i and binary digits b_1 b_2 … of x: v(x) = T_{b_1} v(2x − b_1), (T_b)_ij = √2 h_{2i + b − j}.
    """
    size = len(coefficients) - 1
    i, j = np.indices((size, size))
    padded = np.concatenate([coefficients, [0.0]])
    steps = []
    for digit in (0, 1):
        index = 2 * i + digit - j
        steps.append(
            np.sqrt(2) * padded[np.where((index >= 0) & (index < len(coefficients)), index, len(coefficients))]
        )
    values = np.tile(_integer_values(coefficients)[:size], (len(x), 1))
    digits = np.floor(x * 2.0**NUM_DIGITS).astype(np.int64)
    for _ in range(NUM_DIGITS):  # from the last digit to the first
        values = np.where((digits & 1)[:, None] == 1, values @ steps[1].T, values @ steps[0].T)
        digits >>= 1
    return values


def _integer_values(coefficients: np.ndarray) -> np.ndarray:
    """Return the values at 0, 1, … of the function with φ(x) = √2 Σ h_k φ(2x − k), which sum to 1."""
    size = len(coefficients)
    if size == 2:  # Haar, continuous from the right
        return np.array([1.0, 0.0])
    i, j = np.indices((size, size))
    index = 2 * i - j
    padded = np.concatenate([coefficients, [0.0]])
    matrix = np.sqrt(2) * padded[np.where((index >= 0) & (index < size), index, size)]
    system = np.vstack([matrix - np.eye(size), np.ones(size)])
    return np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]


def _half_line_gram(coefficients: np.ndarray) -> np.ndarray:
    """Return M_kl = ∫_0^∞ φ(x − k) φ(x − l) dx for k, l = −(N − 2), …, −1 from its two-scale relation.

    M_kl = Σ_ab h_a h_b M_{2k+a, 2l+b}, where M is the identity for translations ≥ 0 and 0 for those ≤ −(N − 1).
    """
    size = len(coefficients) - 2
    shifts = np.arange(-size, 0)
    system, known = np.eye(size * size), np.zeros(size * size)
    for row, (k, l) in enumerate((k, l) for k in shifts for l in shifts):
        for a, ha in enumerate(coefficients):
            for b, hb in enumerate(coefficients):
                p, q = 2 * k + a, 2 * l + b
                if p >= 0 or q >= 0:
                    known[row] += ha * hb * (p == q)
                elif p >= -size and q >= -size:
                    system[row, (p + size) * size + q + size] -= ha * hb
    return np.linalg.solve(system, known).reshape(size, size)


def _scaling_filter(name: str) -> np.ndarray:
    try:
        wavelet = pywt.Wavelet(name)
    except ValueError as error:
        raise OptionError(f'name must be a wavelet of PyWavelets such as "db2", got {name!r}.') from error
    if not wavelet.orthogonal:
        raise OptionError(f'name must be an orthogonal wavelet such as "db2", got {name!r}.')
    coefficients = np.trim_zeros(np.array(wavelet.rec_lo))
    return coefficients if len(coefficients) % 2 == 0 else np.append(coefficients, 0.0)
