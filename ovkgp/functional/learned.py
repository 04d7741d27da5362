"""Dictionaries learned from curves: sparse coding on a grid, and atoms that are sparse in a base dictionary (BO-43, BO-44)."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ovkgp.checks import as_seed, check_integer, check_nonnegative
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.functional.conversion import as_functional_data
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.dictionary import Combination, Dictionary, Interpolated


class Learned(Interpolated):
    """Functions learned from curves on a common grid by scikit-learn's `DictionaryLearning`, with unit L² norm.

    Parameters
    ----------
    data : FunctionalData or array-like of shape (n, m)
        Complete curves with one channel in one dimension. They are not centered.
    num_functions : int, default=30
        Number d of functions.
    alpha : float, default=1e-6
        Penalty on the absolute values of codes of the sampled curves.
    max_iter : int, default=1000
        Maximum number of iterations.
    tol : float, default=1e-5
        Tolerance of the objective.
    fit_algorithm : {"cd", "lars"}, default="cd"
        Algorithm of the sparse codes.
    kind : {"linear", "cubic"}, default="linear"
        Interpolation between the points of the grid.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Attributes
    ----------
    codes : ndarray of shape (n, d)
        Sparse coefficients of the curves on the functions.

    Notes
    -----
    scikit-learn's atoms have unit Euclidean norm on the grid; they are rescaled to unit norm in L² by the trapezoidal rule, and the codes with
    them.

    References
    ----------
    BO-43
    """

    def __init__(
        self,
        data,
        num_functions=30,
        alpha=1e-6,
        max_iter=1000,
        tol=1e-5,
        fit_algorithm="cd",
        kind="linear",
        random_state=None,
    ):
        from sklearn.decomposition import (
            DictionaryLearning,  # here: half a second, which other dictionaries need not wait
        )

        data = check_complete_curves(data)
        model = DictionaryLearning(
            check_integer("num_functions", num_functions),
            alpha=check_nonnegative("alpha", alpha),
            max_iter=max_iter,
            tol=tol,
            fit_algorithm=fit_algorithm,
            transform_algorithm="lasso_cd",
            transform_alpha=alpha,
            random_state=as_seed(random_state),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of single sparse codes within an iteration
            codes = model.fit_transform(data.values)
        if model.n_iter_ >= max_iter:
            warnings.warn(
                f"Dictionary learning stopped after {max_iter} iterations without converging; the last functions are kept. Increase `max_iter`.",
                FitWarning,
                stacklevel=2,
            )
        norms = np.sqrt((model.components_**2) @ data.weights("trapezoid") * data.volume)
        used = norms > 0
        super().__init__((model.components_[used] / norms[used, None]).T, data.grid, data.domain, kind)
        self.codes = codes[:, used] * norms[used]


class DoublySparse(Combination):
    """Learned functions that are sparse combinations of a base dictionary and give sparse codes of the curves (sparse K-SVD).

    Parameters
    ----------
    data : FunctionalData or array-like of shape (n, m)
        Curves with one channel; they may have gaps and different points.
    base : Dictionary
        Base functions ψ_1, …, ψ_c.
    num_functions : int, default=30
        Number d of functions.
    atom_sparsity : int, default=5
        Number r of base functions in each learned function, at most.
    code_sparsity : int, default=5
        Number s of learned functions in the code of each curve, at most.
    num_iterations : int, default=20
        Number of passes over the functions.
    random_state : int, Generator, RandomState or None, default=None
        Seed of the initial functions.

    Attributes
    ----------
    codes : ndarray of shape (n, d)
        Codes of the curves, at most s nonzero each.
    objective : ndarray of shape (num_iterations + 1,)
        Mean squared L² error of the codes after initialization and each pass.

    Notes
    -----
    min (1/n) Σ_i ‖y_i − Σ_l a_il φ_l‖² with φ_l = Σ_c b_lc ψ_c, ‖b_l‖₀ ≤ r, ‖a_i‖₀ ≤ s, ‖φ_l‖ = 1. Curves enter only through their projections on the
    span of the base, that is, their inner products with ψ, so that the error excludes the part outside of the span.
    Complexity: O(num_iterations (n d s² + d (n c + c r²))).

    References
    ----------
    BO-44
    """

    def __init__(
        self,
        data,
        base: Dictionary,
        num_functions=30,
        atom_sparsity=5,
        code_sparsity=5,
        num_iterations=20,
        random_state=None,
    ):
        data = as_functional_data(data)
        if data.has_channels:
            raise InputError("data must have values of shape (n, m), got an axis of channels. Remove it.")
        count, rng = check_integer("num_functions", num_functions), np.random.default_rng(as_seed(random_state))
        self.atom_sparsity = min(check_integer("atom_sparsity", atom_sparsity), base.num_functions)
        self.code_sparsity = min(check_integer("code_sparsity", code_sparsity), count)
        gram = base.gram()
        coefficients = base.project(data)
        inner = gram @ coefficients.T  # ⟨y_i, ψ_c⟩ of the projections, (c, n)
        energy = np.einsum("nc,cn->n", coefficients, inner)
        picks = rng.choice(len(data), count, replace=count > len(data))
        atoms = np.stack([self._sparse_atom(gram, inner[:, i]) for i in picks], 1)
        codes, history = self._code(gram, atoms, inner), []
        for _ in range(check_integer("num_iterations", num_iterations)):
            history.append(self._error(gram, atoms, codes, inner, energy).mean())
            for l in range(count):
                self._update(l, gram, atoms, codes, inner, energy)
            codes = self._better_codes(gram, atoms, codes, inner, energy)
        history.append(self._error(gram, atoms, codes, inner, energy).mean())
        super().__init__(base, atoms)
        self.codes, self.objective = codes.T, np.array(history)

    def _sparse_atom(self, gram: np.ndarray, inner: np.ndarray) -> np.ndarray:
        """Return coefficients, sparse and of unit norm, of the best approximation of a function with inner products ⟨z, ψ⟩."""
        b = _pursue(gram, inner[:, None], self.atom_sparsity)[:, 0]
        norm = np.sqrt(max(b @ gram @ b, 0.0))
        if norm == 0:
            b[np.argmax(np.diag(gram))] = 1.0
            norm = np.sqrt(b @ gram @ b)
        return b / norm

    def _code(self, gram: np.ndarray, atoms: np.ndarray, inner: np.ndarray) -> np.ndarray:
        return _pursue(atoms.T @ gram @ atoms, atoms.T @ inner, self.code_sparsity)

    def _better_codes(self, gram, atoms, codes, inner, energy) -> np.ndarray:
        """Return new codes of the curves whose error they reduce, the previous ones of the others."""
        new = self._code(gram, atoms, inner)
        better = self._error(gram, atoms, new, inner, energy) < self._error(gram, atoms, codes, inner, energy)
        return np.where(better, new, codes)

    def _update(self, l: int, gram, atoms, codes, inner, energy) -> None:
        """Replace an atom and its codes: one step of alternating rank-one approximation of the residual of its users."""
        users = np.flatnonzero(codes[l])
        if users.size == 0:  # start again at the curve with the largest error
            worst = np.argmax(self._error(gram, atoms, codes, inner, energy))
            atoms[:, l] = self._sparse_atom(gram, inner[:, worst] - gram @ atoms @ codes[:, worst])
            return
        others = codes[:, users].copy()
        others[l] = 0.0
        residual = inner[:, users] - gram @ (atoms @ others)  # ⟨E_i, ψ⟩
        g = codes[l, users]
        atom = self._sparse_atom(gram, residual @ g / (g @ g))
        new = atom @ residual
        before = 2 * g @ (atoms[:, l] @ residual) - g @ g  # decrease of the squared error by the atom
        if new @ new >= before:
            atoms[:, l], codes[l, users] = atom, new

    @staticmethod
    def _error(gram, atoms, codes, inner, energy) -> np.ndarray:
        """Return the squared errors ‖y_i − Σ a_il φ_l‖² of the projections, (n,)."""
        expansion = atoms @ codes
        return energy - 2 * (expansion * inner).sum(0) + (expansion * (gram @ expansion)).sum(0)


def _pursue(gram: np.ndarray, inner: np.ndarray, sparsity: int) -> np.ndarray:
    """Return coefficients (c, n) with at most `sparsity` nonzeros per column, by orthogonal matching pursuit on unit functions."""
    from sklearn.linear_model import orthogonal_mp_gram

    norms = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    scaled = gram / np.outer(norms, norms)
    found = np.zeros_like(inner)
    active = np.linalg.norm(inner, axis=0) > 0
    if active.any():
        target = inner[:, active] / norms[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # linear dependence: fewer functions are exact already
            found[:, active] = orthogonal_mp_gram(scaled, target, n_nonzero_coefs=sparsity).reshape(len(gram), -1)
    return found / norms[:, None]


def check_complete_curves(data) -> FunctionalData:
    """Return complete functional data with one channel in one dimension."""
    data = as_functional_data(data)
    if not data.is_complete or data.num_dims > 1 or data.has_channels:
        raise InputError(
            f"data must be complete curves of shape (n, m) in one dimension, got {data!r}. Call `resample` or `smooth` first."
        )
    return data
