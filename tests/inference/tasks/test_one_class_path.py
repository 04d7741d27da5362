"""Tests of `ovkgp.inference.tasks.one_class_path`."""

import numpy as np
import pytest
from scipy.optimize import minimize

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.one_class_path import (
    ABOVE,
    BELOW,
    MARGIN,
    MAX_EXACT_REMOVALS,
    OneClassPath,
    leave_one_out,
    leave_one_out_value,
)

LEVELS = (0.05, 0.2, 0.5, 0.8, 0.95)


def gram_rows(X, lengthscale=1.0):
    """Φ with Φ Φᵀ the Gaussian kernel of X."""
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / (2 * lengthscale**2))
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.clip(values, 0, None))


def data(n=40, seed=0, weighted=False, lengthscale=0.7):
    rng = np.random.default_rng(seed)
    rows = gram_rows(rng.standard_normal((n, 2)), lengthscale)
    return rows, rng.uniform(0.3, 3.0, n) if weighted else np.ones(n)


@pytest.mark.parametrize("weighted", [False, True])
def test_optimality_conditions_hold_along_the_path(weighted):
    """b in its box, and f > 1 where b = 0, f < 1 where b = C s, f = 1 between; at breaks and between them."""
    rows, s = data(weighted=weighted)
    path = OneClassPath(rows, s)
    path.position(0.02)
    ends = np.array([segment.high for segment in path.segments])
    ends = ends[np.isfinite(ends)]
    assert len(ends) > 2 * len(s)
    for C in np.concatenate([ends[::5], (ends[1:] + ends[:-1])[::5] / 2]):
        b, f, status = path.at(C)
        assert ((b >= 0) & (b <= C * s)).all()
        np.testing.assert_allclose(f, rows @ (rows.T @ b), atol=1e-7)
        assert (f[status == ABOVE] > 1 - 1e-7).all() and (b[status == ABOVE] == 0).all()
        assert (f[status == BELOW] < 1 + 1e-7).all() and np.array_equal(b[status == BELOW], C * s[status == BELOW])
        np.testing.assert_allclose(f[status == MARGIN], 1, atol=1e-7)


@pytest.mark.parametrize("C", [0.02, 0.1, 0.5, 3.0])
def test_path_value_equals_that_of_a_quadratic_program(C):
    rows, s = data(12, weighted=True)
    K = rows @ rows.T
    best = minimize(
        lambda b: b @ K @ b / 2 - b.sum(),
        np.zeros(12),
        jac=lambda b: K @ b - 1,
        bounds=[(0, C * w) for w in s],
        method="L-BFGS-B",
        options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000},
    )
    path = OneClassPath(rows, s)
    assert path.value(C) == pytest.approx(-best.fun, rel=1e-8)
    assert path.value(C) == pytest.approx(C * (s * np.clip(1 - path.at(C).values, 0, None)).sum() + _norm(path, C) / 2)


def _norm(path, C):
    return np.square(path.rows.T @ path.at(C).coefficients).sum()


def test_level_at_falls_from_one_to_zero_and_inverts_position():
    path = OneClassPath(*data())
    positions = [path.position(level) for level in LEVELS]
    assert positions == sorted(positions, reverse=True)
    for level, C in zip(LEVELS, positions, strict=True):
        assert path.level_at(C) == pytest.approx(level, abs=1e-10)
        assert path.level_at(C) == pytest.approx(path.at(C).coefficients.sum() / (path.total_weight * C), abs=1e-8)
    levels = [path.level_at(C) for C in np.geomspace(1e-4, 10, 200)]
    assert levels[0] == pytest.approx(1) and (np.diff(levels) <= 1e-12).all()


def test_at_level_one_every_point_is_at_its_bound():
    path = OneClassPath(*data())
    state = path.at(path.position(1.0))
    np.testing.assert_allclose(state.coefficients, path.position(1.0), rtol=1e-6)
    assert state.values.max() == pytest.approx(1)


@pytest.mark.parametrize("C", [0.05, 0.3])
def test_slope_of_the_path_value_is_the_mean_shortfall(C):
    """G'(C) = Σ s |1 − f|_+, against finite differences."""
    rows, s = data(weighted=True)
    path, step = OneClassPath(rows, s), 1e-6
    slope = (path.value(C + step) - path.value(C - step)) / (2 * step)
    assert slope == pytest.approx((s * np.clip(1 - path.at(C).values, 0, None)).sum(), rel=1e-5)


def test_path_weight_of_two_equals_two_points():
    rows, s = data(15)
    s[3] = 2.0
    once, twice = OneClassPath(rows, s), OneClassPath(np.vstack([rows, rows[3:4]]))
    for level in LEVELS:
        one, two = once.at(once.position(level)), twice.at(twice.position(level))
        np.testing.assert_allclose(one.values, two.values[:15], atol=1e-6)
        assert one.coefficients[3] == pytest.approx(two.coefficients[3] + two.coefficients[15], abs=1e-6)


@pytest.mark.parametrize("level", [0.3, 0.6])
def test_span_rule_is_exact_while_the_status_holds(level):
    """Leave-one-out values are those of refits if the other points keep their status (all do, for points above the margin), and near
    elsewhere."""
    rows, s = data(60, weighted=True)
    path = OneClassPath(rows, s)
    C = path.position(level)
    state, guess = path.at(C), path.span_rule(C)
    refits, held = np.empty(60), np.zeros(60, dtype=bool)
    for i in range(60):
        rest = np.arange(60) != i
        other = OneClassPath(rows[rest], s[rest]).at(C)
        refits[i] = rows[i] @ (rows[rest].T @ other.coefficients)
        held[i] = np.array_equal(other.status, state.status[rest])
    above = state.status == ABOVE
    assert held[above].all() and held[~above].any()
    np.testing.assert_allclose(guess[held], refits[held], atol=1e-9)
    np.testing.assert_allclose(guess[above], state.values[above], atol=1e-12)
    assert np.corrcoef(guess[~above], refits[~above])[0, 1] > 0.95
    assert abs(np.mean(guess - refits)) < 0.2 * np.mean(state.values - refits)


def test_span_rule_for_one_of_several_copies_removes_at_most_its_weight():
    rows, s = data(30)
    s[:] = 4.0
    path = OneClassPath(rows, s)
    C = path.position(0.4)
    values, one, all_four = path.at(C).values, path.span_rule(C, np.ones(30)), path.span_rule(C)
    below = path.at(C).status == BELOW
    np.testing.assert_allclose((values - one)[below], ((values - all_four) / 4)[below], atol=1e-9)
    assert (one >= all_four - 1e-12).all()


def test_path_supports_near_copies_of_a_point():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 2))
    X = np.vstack([X, X + 1e-9])
    path = OneClassPath(gram_rows(X))
    C = path.position(0.1)
    assert path.level_at(C) == pytest.approx(0.1, abs=1e-8)
    assert abs(path.at(C).values[:20] - path.at(C).values[20:]).max() < 1e-5


def test_path_supports_ties_of_points_on_a_lattice():
    grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(5.0)), -1).reshape(-1, 2)
    path = OneClassPath(gram_rows(grid, 1.5))
    for level in LEVELS:
        assert path.level_at(path.position(level)) == pytest.approx(level, abs=1e-8)


def test_position_rejects_a_kernel_that_cannot_separate_the_rows_from_zero():
    path = OneClassPath(np.array([[1.0], [-1.0], [2.0]]))
    with pytest.raises(InputError, match="positive values"):
        path.position(0.1)


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
def test_leave_one_out_value_equals_a_refit(level):
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(level)
    state = path.at(C)
    changed = 0
    for i in np.flatnonzero(state.coefficients > 0):
        found = leave_one_out_value(path, state, C, int(i), state.coefficients[i])
        assert found == pytest.approx(refit(rows, s, C, i), abs=1e-7)
        changed += abs(found - path.span_rule(C)[i]) > 1e-3
    assert changed > 3  # the status changed: the span rule is not enough


def test_leave_one_out_value_supports_half_of_a_point():
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(0.4)
    found = leave_one_out(path, C, s / 2)
    for i in range(40):
        assert found[i] == pytest.approx(refit(rows, s, C, i, s[i] / 2), abs=1e-6)


def test_leave_one_out_is_unchanged_for_points_above_the_margin():
    rows, s = rows_and_weights(40)
    path = OneClassPath(rows, s)
    C = path.position(0.2)
    state, found = path.at(C), leave_one_out(path, C)
    free = state.coefficients == 0
    np.testing.assert_allclose(found[free], state.values[free], atol=1e-12)
    assert (found[~free] < state.values[~free]).all()


def test_leave_one_out_is_the_span_rule_for_many_points():
    rows, s = rows_and_weights(150)
    path = OneClassPath(rows, s)
    many, few = path.position(0.8), path.position(0.02)
    assert (path.at(many).coefficients > 0).sum() > MAX_EXACT_REMOVALS >= (path.at(few).coefficients > 0).sum()
    np.testing.assert_array_equal(leave_one_out(path, many), path.span_rule(many))
    assert np.abs(leave_one_out(path, few) - path.span_rule(few)).max() > 1e-3


def test_path_works_without_a_stored_kernel_matrix():
    rows, s = rows_and_weights(30)
    rows = np.abs(rows[:, -6:])  # few coordinates, so that K is made column by column
    path = OneClassPath(rows, s)
    C = path.position(0.3)
    assert path._gram is None
    for i in np.flatnonzero(path.at(C).coefficients > 0):
        assert leave_one_out(path, C)[i] == pytest.approx(refit(rows, s, C, i), abs=1e-6)
