"""Rows of style transfer, and walks through the tasks."""

import numpy as np
import pytest

from ovkgp.datasets.landmarks import angular_tasks, joint_rows, radial_tasks, single_rows
from ovkgp.exceptions import InputError

Z = np.arange(24.0).reshape(4, 3, 2)


def test_single_rows_have_one_task_as_input():
    X, Y, persons = single_rows(Z, 1)
    np.testing.assert_array_equal(X, Z[:, 1])
    np.testing.assert_array_equal(Y, Z)
    np.testing.assert_array_equal(persons, range(4))


def test_joint_rows_list_every_task_of_every_person():
    """LT-101: row m(i − 1) + l is z_i(θ_l), and its targets are all tasks of person i."""
    X, Y, persons = joint_rows(Z)
    for i in range(4):
        for j in range(3):
            np.testing.assert_array_equal(X[3 * i + j], Z[i, j])
            np.testing.assert_array_equal(Y[3 * i + j], Z[i])
            assert persons[3 * i + j] == i


def test_a_missing_vector_is_neither_input_nor_target():
    """LT-103: it removes the input row (i, l), and is NaN among the targets of the other rows of i."""
    values = Z.copy()
    values[1, 2] = np.nan
    X, Y, persons = joint_rows(values)
    assert len(X) == 11 and np.isfinite(X).all() and (persons == 1).sum() == 2
    assert np.isnan(Y[persons == 1][:, 2]).all() and np.isfinite(Y[persons != 1]).all()
    X, Y, persons = single_rows(values, 2)
    np.testing.assert_array_equal(persons, [0, 2, 3])


def test_walks():
    np.testing.assert_allclose(radial_tasks([0.6, 0.8], [0, 0.5, 1.2]), [[0, 0], [0.3, 0.4], [0.72, 0.96]])
    around = angular_tasks(np.linspace(0, 2 * np.pi, 9))
    np.testing.assert_allclose(np.linalg.norm(around, axis=1), 1)
    np.testing.assert_allclose(around[2], [0, 1], atol=1e-15)


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match=r"\(n, T, d\)"):
        joint_rows(Z[0])
    with pytest.raises(InputError, match="tasks 0 to 2"):
        single_rows(Z, 3)
    with pytest.raises(InputError, match="infinity"):
        joint_rows(np.full((1, 1, 1), np.inf))
