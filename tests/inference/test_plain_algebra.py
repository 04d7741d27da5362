"""Solves, inverses and log-determinants by either LAPACK, against NumPy's."""

import numpy as np
import pytest

from ovkgp.inference.training.numpy_evidence import SMALL, solved


@pytest.mark.parametrize("n", (1, 2, SMALL, SMALL + 1, 150))
def test_solutions_are_those_of_numpy(n):
    rng = np.random.default_rng(n)
    root = rng.standard_normal((n, n))
    C, columns = root @ root.T + np.eye(n), rng.standard_normal((n, 2))
    x, inverse, logdet = solved(C.copy(), columns)
    expected = np.linalg.inv(C)
    np.testing.assert_allclose(x, expected @ columns, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose((inverse + inverse.T) / 2, expected, rtol=1e-8, atol=1e-10)
    assert logdet == pytest.approx(np.linalg.slogdet(C)[1], rel=1e-12) and inverse.flags.c_contiguous


@pytest.mark.parametrize("n", (3, SMALL + 1))
@pytest.mark.parametrize("value", (-1.0, np.nan, np.inf))
def test_what_is_not_positive_definite_is_refused(n, value):
    C = np.eye(n)
    C[1, 1] = value
    with pytest.raises(np.linalg.LinAlgError):
        solved(C, np.ones((n, 1)))
