"""Faces that change their expression: a surrogate of the landmark data of style transfer, whose truth is known (LT-142, 144, 145).

A task is a point θ of the valence–arousal plane: neutral is the origin, the other emotions are on the unit circle. The landmarks of
a face are a base face, plus its identity, plus a smooth field of θ with an amplitude of its own, plus noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer, nonnegative
from ovkgp.datasets.samples import INPUTS, NOISE, TRUTH, finite_rows, random_stream
from ovkgp.estimators.common.validation import as_array, numbers
from ovkgp.exceptions import InputError


class TaskRows(NamedTuple):
    """Inputs X (t, d), targets Y (t, T, d) with NaN where missing, and the person (t,) that each row came from."""

    X: np.ndarray
    Y: np.ndarray
    persons: np.ndarray


def single_rows(values, task: int) -> TaskRows:
    """Each person as seen at one task, with all tasks of the same person as targets (LT-100).

    Args:
        values: z (n, T, d), NaN where a person was not seen at a task; such persons are left out where it is the input.
        task: the number of the input task.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.landmarks import single_rows
        >>> X, Y, persons = single_rows(np.ones((5, 3, 2)), task=0)
        >>> X.shape, Y.shape
        ((5, 2), (5, 3, 2))
    """
    values = _tensor(values)
    if not 0 <= task < values.shape[1]:
        raise InputError(f"there are tasks 0 to {values.shape[1] - 1}, not {task}.")
    observed = np.isfinite(values[:, task]).all(-1)
    return TaskRows(values[observed, task], values[observed], np.flatnonzero(observed))


def joint_rows(values) -> TaskRows:
    """Each person as seen at each task, with all tasks of the same person as targets (LT-101).

    Row m(i − 1) + l is z_i(θ_l). The targets of a person are repeated for each of its inputs: the likelihood of such rows is a
    composite one, and a standard deviation from them says less than it seems to. A missing z_i(θ_l) is neither input nor target.

    Args:
        values: z (n, T, d), NaN where a person was not seen at a task.

    Cost: O(n T² d) memory.

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.landmarks import joint_rows
        >>> z = np.arange(12.0).reshape(2, 3, 2)
        >>> z[0, 1] = np.nan
        >>> X, Y, persons = joint_rows(z)
        >>> X.shape, Y.shape, persons
        ((5, 2), (5, 3, 2), array([0, 0, 1, 1, 1]))
    """
    values = _tensor(values)
    n, num_tasks, d = values.shape
    persons = np.repeat(np.arange(n), num_tasks)
    X = values.reshape(n * num_tasks, d)
    observed = np.isfinite(X).all(-1)
    return TaskRows(X[observed], values[persons[observed]], persons[observed])


def radial_tasks(task, radii) -> np.ndarray:
    """ρ θ for each radius ρ, (k, q): from neutral, the origin, to a task and beyond (LT-104).

    Example:
        >>> from ovkgp.datasets.landmarks import radial_tasks
        >>> radial_tasks([0.0, 2.0], [0.0, 0.5, 1.0]).tolist()
        [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    """
    return np.outer(numbers(radii, "radii"), numbers(task, "task"))


def angular_tasks(angles) -> np.ndarray:
    """(cos φ, sin φ) for each angle φ, (k, 2): around the circle of tasks (LT-104).

    Example:
        >>> from ovkgp.datasets.landmarks import angular_tasks
        >>> angular_tasks([0.0]).tolist()
        [[1.0, 0.0]]
    """
    angles = numbers(angles, "angles")
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def _tensor(values) -> np.ndarray:
    values = numbers(as_array(values), "values")
    if values.ndim != 3:
        raise InputError(f"values must be (n, T, d): a vector for each person and task; got {values.shape}.")
    if np.isinf(values).any():
        raise InputError("values hold infinity; a missing one is NaN.")
    return values


VALENCE_AROUSAL = {
    "neutral": (0.0, 0.0),
    "fear": (-0.12538, 0.76558),
    "anger": (-0.45234, 0.56560),
    "disgust": (-0.69436, 0.45715),
    "happy": (0.66479, 0.07025),
    "sad": (-0.63649, -0.25688),
    "surprise": (0.17960, 0.68948),
    "contempt": (-0.51385, 0.58256),
}
"""Mean valence and arousal of each emotion, before they are brought to the unit circle."""

EMOTIONS = ("neutral", "fear", "anger", "disgust", "happy", "sad", "surprise")
NUM_TRAITS, TRAIT_DECAY = 12, 0.8
SPREAD, AMPLITUDE, SESSION = 0.02, 0.25, 0.1


def emotion_tasks(emotions: tuple[str, ...] = EMOTIONS) -> np.ndarray:
    """The points θ (T, 2) of emotions by name: neutral at the origin, all others on the unit circle (LT-100).

    Example:
        >>> import numpy as np
        >>> from ovkgp.datasets.landmarks import emotion_tasks
        >>> np.linalg.norm(emotion_tasks(("neutral", "happy")), axis=1).round(6)
        array([0., 1.])
    """
    unknown = [name for name in emotions if name not in VALENCE_AROUSAL]
    if unknown or len(emotions) == 0:
        raise InputError(f"emotions must be some of {', '.join(VALENCE_AROUSAL)}; got {emotions!r}.")
    points = np.array([VALENCE_AROUSAL[name] for name in emotions])
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return points / np.where(norms > 0, norms, 1.0)


class FaceField:
    """θ ↦ the noiseless landmarks of every face, (n, T, d).

    Args:
        neutral: base and identity of each face (n, d).
        directions: D (4, d) of the field (θ₁, θ₂, θ₁θ₂, ‖θ‖²) D.
        amplitudes: (n,).

    Cost: O(n T d).

    Example:
        See `make_landmarks`.
    """

    def __init__(self, neutral: np.ndarray, directions: np.ndarray, amplitudes: np.ndarray):
        self.neutral, self.directions, self.amplitudes = neutral, directions, amplitudes

    def __call__(self, tasks: ArrayLike) -> np.ndarray:
        """The landmarks (n, T, d) at tasks (T, 2)."""
        first, second = finite_rows(tasks, 2).T
        field = np.stack([first, second, first * second, first**2 + second**2], 1) @ self.directions
        return self.neutral[:, None] + self.amplitudes[:, None, None] * field


class LandmarkSample(NamedTuple):
    """Faces, the tasks they were seen at, whose they are, and the truth behind them.

    Attributes:
        faces: (n, T, d), float64: row i is one session of one person.
        tasks: θ (T, 2).
        identities: (n,), the person of each row; test sets are of other people.
        truth: tasks (T', 2) ↦ the noiseless landmarks (n, T', d) of the same faces.
    """

    faces: np.ndarray
    tasks: np.ndarray
    identities: np.ndarray
    truth: FaceField


def make_landmarks(
    num_identities: int = 70,
    *,
    num_sessions: int = 2,
    num_landmarks: int = 68,
    emotions: tuple[str, ...] = EMOTIONS,
    noise: float = 0.004**2,
    random_state=None,
) -> LandmarkSample:
    """Landmarks of faces at several emotions, of a size and with errors like those of the face data sets (LT-142).

        z_i(θ) = base + c_i B + a_i (θ₁, θ₂, θ₁θ₂, ‖θ‖²) D + ε,     base ~ U[.2, .8],  c_i ~ N(0, I₁₂),  B_k ~ .02 · .8ᵏ N(0, I),
        D ~ .02 N(0, I),  a_i = (1 + .25 N)(1 + .1 N), the first of a person, the second of a session

    Args:
        num_identities: how many people.
        num_sessions: rows of each.
        num_landmarks: points in the plane; d is twice that.
        emotions: names of `VALENCE_AROUSAL`.
        noise: the variance of ε.
        random_state: as in scikit-learn. One int gives one base, B and D, and the same first people for every number of them.

    Cost: O(n T d) time and memory.

    Example:
        >>> from ovkgp.datasets import make_landmarks
        >>> faces, tasks, identities, truth = make_landmarks(10, random_state=0)
        >>> faces.shape, tasks.shape, truth([[0.5, 0.5]]).shape
        ((20, 7, 136), (7, 2), (20, 1, 136))
    """
    people, sessions = check_integer("num_identities", num_identities), check_integer("num_sessions", num_sessions)
    d, seed, tasks = 2 * check_integer("num_landmarks", num_landmarks), as_seed(random_state), emotion_tasks(emotions)
    rng = random_stream(seed, TRUTH)
    base, directions = rng.uniform(0.2, 0.8, d), SPREAD * rng.standard_normal((4, d))
    traits = SPREAD * TRAIT_DECAY ** np.arange(NUM_TRAITS)[:, None] * rng.standard_normal((NUM_TRAITS, d))
    persons = random_stream(seed, INPUTS).standard_normal((people, NUM_TRAITS + 1 + sessions))
    neutral = np.repeat(base + persons[:, :NUM_TRAITS] @ traits, sessions, 0)
    amplitudes = ((1 + AMPLITUDE * persons[:, [NUM_TRAITS]]) * (1 + SESSION * persons[:, NUM_TRAITS + 1 :])).ravel()
    truth = FaceField(neutral, directions, amplitudes)
    epsilon = random_stream(seed, NOISE).standard_normal((len(neutral), len(tasks), d))
    faces = truth(tasks) + np.sqrt(nonnegative("noise", noise)) * epsilon
    return LandmarkSample(faces, tasks, np.repeat(np.arange(people), sessions), truth)
