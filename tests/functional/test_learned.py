"""Tests of `ovkgp.functional.learned`."""

import warnings

import numpy as np
import pytest

from ovkgp.exceptions import FitWarning, InputError
from ovkgp.functional import BSplines, DoublySparse, Fourier, FunctionalData, Learned

T = np.linspace(0, 2, 60)


def sparse_curves(n=60, d=5, noise=0.0, seed=0):
    """Curves that are combinations of two of d functions, each a combination of two splines."""
    rng = np.random.default_rng(seed)
    base = BSplines(12, (0, 2))
    atoms = np.zeros((12, d))
    for l in range(d):
        atoms[rng.choice(12, 2, replace=False), l] = rng.uniform(1, 2, 2)
    codes = np.zeros((n, d))
    for i in range(n):
        codes[i, rng.choice(d, 2, replace=False)] = rng.choice([-1, 1], 2) * rng.uniform(1, 2, 2)
    Y = codes @ (base(T) @ atoms).T
    return FunctionalData(Y + noise * rng.standard_normal(Y.shape), T), base


def test_bo_43_learned_functions_have_unit_norm_and_reproduce_the_curves():
    """Unit Euclidean norm on the grid is L² norm 1/√m: functions are rescaled, and codes with them."""
    data, _ = sparse_curves()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        learned = Learned(data, 5, alpha=1e-4, max_iter=100, random_state=0)
    norms = np.sqrt((learned.values**2).T @ data.weights("trapezoid") * 2)
    assert np.allclose(norms, 1)
    assert np.sqrt(np.mean((learned.codes @ learned(T).T - data.values) ** 2)) < 0.02 * data.values.std()


def test_learned_warns_without_convergence_and_rejects_gaps():
    data, _ = sparse_curves(10)
    with pytest.warns(FitWarning, match="max_iter"):
        Learned(data, 3, alpha=1e-4, max_iter=1, random_state=0)
    data.values[0, 0] = np.nan
    with pytest.raises(InputError, match="complete"):
        Learned(data, 3)


def test_bo_44_doubly_sparse_functions_are_sparse_and_never_increase_the_error():
    data, base = sparse_curves(noise=0.01)
    learned = DoublySparse(data, base, 5, atom_sparsity=3, code_sparsity=2, num_iterations=15, random_state=0)
    assert ((learned.matrix != 0).sum(0) <= 3).all() and ((learned.codes != 0).sum(1) <= 2).all()
    assert np.allclose(np.diag(learned.gram()), 1)
    assert (np.diff(learned.objective) <= 1e-12).all() and learned.objective[-1] < 0.5 * learned.objective[0]


def test_doubly_sparse_error_is_that_of_the_expansions():
    """The objective from inner products equals the L² error of the projected curves by quadrature."""
    data, base = sparse_curves(20, noise=0.1)
    learned = DoublySparse(data, base, 4, num_iterations=3, random_state=0)
    nodes, weights = base.rule()
    projected = base.expand(base.project(data), nodes)
    errors = (projected - learned.expand(learned.codes, nodes)) ** 2 @ weights
    assert learned.objective[-1] == pytest.approx(errors.mean(), rel=1e-8)


def test_doubly_sparse_learns_from_curves_with_gaps():
    data, base = sparse_curves(40)
    values = data.values.copy()
    values[np.random.default_rng(0).uniform(size=values.shape) < 0.2] = np.nan
    gaps = DoublySparse(FunctionalData(values, T), base, 5, 3, 2, 5, random_state=0)
    full = DoublySparse(data, base, 5, 3, 2, 5, random_state=0)
    assert np.allclose(gaps.objective, full.objective, rtol=1e-6)
    with pytest.raises(InputError, match="channels"):
        DoublySparse(np.zeros((2, 3, 1)), Fourier(2))
