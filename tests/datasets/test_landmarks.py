"""Tests of `ovkgp.datasets.landmarks`."""

import numpy as np
import pytest

from ovkgp.datasets import make_landmarks
from ovkgp.datasets.landmarks import (
    EMOTIONS,
    VALENCE_AROUSAL,
    angular_tasks,
    emotion_tasks,
    joint_rows,
    radial_tasks,
    single_rows,
)
from ovkgp.exceptions import InputError


def test_emotion_tasks_are_the_origin_and_unit_vectors():
    tasks = emotion_tasks(tuple(VALENCE_AROUSAL))
    np.testing.assert_allclose(np.linalg.norm(tasks, axis=1), [0] + [1] * 7)
    np.testing.assert_allclose(tasks[4], np.array([0.66479, 0.07025]) / np.hypot(0.66479, 0.07025))


def test_landmark_truth_is_the_noiseless_faces():
    faces, tasks, identities, truth = make_landmarks(20, random_state=0)
    assert faces.shape == (40, 7, 136) and len(EMOTIONS) == 7
    residuals = faces - truth(tasks)
    assert residuals.std() == pytest.approx(0.004, rel=0.02)
    exact = make_landmarks(20, noise=0.0, random_state=0)
    np.testing.assert_array_equal(exact.faces, exact.truth(exact.tasks))
    np.testing.assert_array_equal(np.bincount(identities), 2)


def test_sessions_share_a_neutral_face_and_differ_in_amplitude():
    _, _, identities, truth = make_landmarks(50, random_state=1)
    np.testing.assert_array_equal(truth.neutral[::2], truth.neutral[1::2])
    first, second = truth.amplitudes[::2], truth.amplitudes[1::2]
    assert 0.05 < (first / second).std() < 0.3
    assert 0.15 < truth.amplitudes.std() < 0.4 and truth.amplitudes.mean() == pytest.approx(1, abs=0.15)
    assert len(identities) == 100


def test_face_field_is_quadratic_in_the_task():
    truth = make_landmarks(3, random_state=0).truth
    values = truth([[0.0, 0.0], [0.4, 0.0], [0.8, 0.0], [1.2, 0.0]])
    np.testing.assert_allclose(values[:, 0], truth.neutral)
    np.testing.assert_allclose(np.diff(values, n=3, axis=1), 0, atol=1e-14)


def test_landmark_seed_gives_the_same_first_persons():
    few, many = make_landmarks(5, random_state=3), make_landmarks(9, random_state=3)
    np.testing.assert_array_equal(few.faces, many.faces[:10])
    assert not np.array_equal(few.faces, make_landmarks(5, random_state=4).faces)


def test_landmarks_have_the_published_variances():
    """½‖r‖² of noise is .0011, of the mean face about .08 (LT §4.2)."""
    faces, tasks, _, truth = make_landmarks(random_state=0)
    assert 0.5 * ((faces - truth(tasks)) ** 2).sum(-1).mean() == pytest.approx(0.0011, rel=0.05)
    assert 0.05 < 0.5 * ((faces - faces.mean(0)) ** 2).sum(-1).mean() < 0.12


def test_landmarks_reject_unknown_emotions_and_invalid_points():
    with pytest.raises(InputError, match="emotions"):
        make_landmarks(3, emotions=("happy", "bored"))
    with pytest.raises(InputError, match=r"\(m, 2\)"):
        make_landmarks(3).truth([[0.0]])


Z = np.arange(24.0).reshape(4, 3, 2)


def test_single_rows_use_one_task_as_input():
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


def test_missing_vector_is_neither_input_nor_target():
    """LT-103: it removes the input row (i, l), and is NaN among the targets of the other rows of i."""
    values = Z.copy()
    values[1, 2] = np.nan
    X, Y, persons = joint_rows(values)
    assert len(X) == 11 and np.isfinite(X).all() and (persons == 1).sum() == 2
    assert np.isnan(Y[persons == 1][:, 2]).all() and np.isfinite(Y[persons != 1]).all()
    X, Y, persons = single_rows(values, 2)
    np.testing.assert_array_equal(persons, [0, 2, 3])


def test_radial_and_angular_tasks_equal_the_formulas():
    np.testing.assert_allclose(radial_tasks([0.6, 0.8], [0, 0.5, 1.2]), [[0, 0], [0.3, 0.4], [0.72, 0.96]])
    around = angular_tasks(np.linspace(0, 2 * np.pi, 9))
    np.testing.assert_allclose(np.linalg.norm(around, axis=1), 1)
    np.testing.assert_allclose(around[2], [0, 1], atol=1e-15)


def test_rows_reject_invalid_values():
    with pytest.raises(InputError, match=r"\(n, T, d\)"):
        joint_rows(Z[0])
    with pytest.raises(InputError, match="task"):
        single_rows(Z, 3)
    with pytest.raises(InputError, match="infinity"):
        joint_rows(np.full((1, 1, 1), np.inf))
    with pytest.raises(InputError, match="angles"):
        angular_tasks(["north"])


def test_masked_values_are_missing():
    values = np.ma.masked_array(Z, mask=Z[1, 2] == Z)
    X, Y, persons = joint_rows(values)
    assert len(X) == 11 and np.isnan(Y[persons == 1][:, 2]).any(-1).all()
