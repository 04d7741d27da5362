"""A one-class SVM without one of its points is the SVM of the others."""

import numpy as np
import pytest

from ovkgp.inference.tasks.one_class_path import FEW, OneClassPath, leave_one_out, value_without


def rows_and_weights(n, seed=0, lengthscale=0.7):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / (2 * lengthscale**2))
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.clip(values, 0, None)), rng.uniform(0.3, 3, n)


def refit(rows, s, C, i, units=None):
    """f(x_i) of the SVM at C in which x_i weighs less by `units`, or is not there."""
    if units is None:
        rest = np.arange(len(s)) != i
        return rows[i] @ (rows[rest].T @ OneClassPath(rows[rest], s[rest]).at(C).coefficients)
    s = s.copy()
    s[i] -= units
    return OneClassPath(rows, s).at(C).values[i]


@pytest.mark.parametrize("level", [0.03, 0.15, 0.4, 0.8])
def test_the_value_without_a_point_is_that_of_a_refit(level):
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(level)
    state = path.at(C)
    changed = 0
    for i in np.flatnonzero(state.coefficients > 0):
        found = value_without(path, state, C, int(i), state.coefficients[i])
        assert found == pytest.approx(refit(rows, s, C, i), abs=1e-7)
        changed += abs(found - path.span_rule(C)[i]) > 1e-3
    assert changed > 3  # places moved: the span rule is not enough


def test_half_of_a_point_may_go():
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(0.4)
    found = leave_one_out(path, C, s / 2)
    for i in range(40):
        assert found[i] == pytest.approx(refit(rows, s, C, i, s[i] / 2), abs=1e-6)


def test_points_above_the_margin_leave_nothing_behind():
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(0.2)
    state, found = path.at(C), leave_one_out(path, C)
    free = state.coefficients == 0
    np.testing.assert_allclose(found[free], state.values[free], atol=1e-12)
    assert (found[~free] < state.values[~free]).all()


def test_with_many_points_it_is_the_span_rule():
    rows, s = rows_and_weights(150)
    path = OneClassPath(rows, s)
    many, few = path.position(0.8), path.position(0.02)
    assert (path.at(many).coefficients > 0).sum() > FEW >= (path.at(few).coefficients > 0).sum()
    np.testing.assert_array_equal(leave_one_out(path, many), path.span_rule(many))
    assert np.abs(leave_one_out(path, few) - path.span_rule(few)).max() > 1e-3


def test_the_kernel_matrix_need_not_be_kept():
    rows, s = rows_and_weights(30)
    rows = np.abs(rows[:, -6:])  # few coordinates, so that K is made column by column
    path = OneClassPath(rows, s)
    C = path.position(0.3)
    assert path._gram is None
    for i in np.flatnonzero(path.at(C).coefficients > 0):
        assert leave_one_out(path, C)[i] == pytest.approx(refit(rows, s, C, i), abs=1e-6)
