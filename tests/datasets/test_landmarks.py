"""Faces whose truth is known."""

import numpy as np
import pytest

from ovkgp.datasets import make_landmarks
from ovkgp.datasets.landmarks import EMOTIONS, VALENCE_AROUSAL, emotion_tasks
from ovkgp.exceptions import InputError


def test_neutral_is_the_origin_and_the_others_are_on_the_circle():
    tasks = emotion_tasks(tuple(VALENCE_AROUSAL))
    np.testing.assert_allclose(np.linalg.norm(tasks, axis=1), [0] + [1] * 7)
    np.testing.assert_allclose(tasks[4], np.array([0.66479, 0.07025]) / np.hypot(0.66479, 0.07025))


def test_the_truth_is_what_the_faces_are_without_noise():
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


def test_the_field_is_quadratic_in_the_task():
    truth = make_landmarks(3, random_state=0).truth
    values = truth([[0.0, 0.0], [0.4, 0.0], [0.8, 0.0], [1.2, 0.0]])
    np.testing.assert_allclose(values[:, 0], truth.neutral)
    np.testing.assert_allclose(np.diff(values, n=3, axis=1), 0, atol=1e-14)


def test_one_seed_gives_the_same_first_people():
    few, many = make_landmarks(5, random_state=3), make_landmarks(9, random_state=3)
    np.testing.assert_array_equal(few.faces, many.faces[:10])
    assert not np.array_equal(few.faces, make_landmarks(5, random_state=4).faces)


def test_the_sizes_of_the_surrogate():
    """½‖r‖² of noise is .0011, of the mean face about .08 (LT §4.2)."""
    faces, tasks, _, truth = make_landmarks(random_state=0)
    assert 0.5 * ((faces - truth(tasks)) ** 2).sum(-1).mean() == pytest.approx(0.0011, rel=0.05)
    assert 0.05 < 0.5 * ((faces - faces.mean(0)) ** 2).sum(-1).mean() < 0.12


def test_unknown_emotions_and_bad_points_are_refused():
    with pytest.raises(InputError, match="emotions"):
        make_landmarks(3, emotions=("happy", "bored"))
    with pytest.raises(InputError, match=r"\(m, 2\)"):
        make_landmarks(3).truth([[0.0]])
