"""Landmarks of faces at several emotions: surrogate style-transfer data with known ground truth (LT-142, 144, 145).

A task is a point θ of the valence–arousal plane: neutral is the origin, the other emotions lie on the unit circle. The
landmarks of a face are a base face plus its identity plus a smooth field of θ with its own amplitude, plus noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ovkgp.checks import as_seed, check_integer, check_nonnegative
from ovkgp.datasets.samples import INPUTS, NOISE, TRUTH, check_points, make_rng
from ovkgp.exceptions import InputError

VALENCE_AROUSAL = {  # mean valence and arousal of each emotion, before projection to the unit circle
    "neutral": (0.0, 0.0),
    "fear": (-0.12538, 0.76558),
    "anger": (-0.45234, 0.56560),
    "disgust": (-0.69436, 0.45715),
    "happy": (0.66479, 0.07025),
    "sad": (-0.63649, -0.25688),
    "surprise": (0.17960, 0.68948),
    "contempt": (-0.51385, 0.58256),
}
EMOTIONS = ("neutral", "fear", "anger", "disgust", "happy", "sad", "surprise")
NUM_TRAITS, TRAIT_DECAY = 12, 0.8
LANDMARK_STD, PERSON_AMPLITUDE_STD, SESSION_AMPLITUDE_STD = 0.02, 0.25, 0.1


class LandmarkSample(NamedTuple):
    """Faces (n, T, d) at tasks θ (T, 2), one session per row, the person (n,) of each row, and the ground truth."""

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
    """Generate landmarks of faces at several emotions, of a size and with errors like those of face data sets (LT-142).

        z_i(θ) = base + c_i B + a_i (θ₁, θ₂, θ₁θ₂, ‖θ‖²) D + ε,     base ~ U[.2, .8],  c_i ~ N(0, I₁₂),
        B_k ~ .02 · .8ᵏ N(0, I),  D ~ .02 N(0, I),  a_i = (1 + .25 N)(1 + .1 N), by person and by session

    Parameters
    ----------
    num_identities : int, default=70
        Number of persons.
    num_sessions : int, default=2
        Number of rows per person.
    num_landmarks : int, default=68
        Number of points in the plane; d is twice that.
    emotions : tuple of str
        Names of `VALENCE_AROUSAL`.
    noise : float, default=0.004**2
        Variance of ε.
    random_state : int, RandomState or None, default=None
        Seed. One int gives one base, B and D, and the same first persons for every number of persons.

    Returns
    -------
    LandmarkSample
        Faces (n, T, d), tasks (T, 2), the person (n,) of each row, and the ground truth: a function from tasks (T', 2)
        to the noiseless landmarks (n, T', d) of the same faces.

    Notes
    -----
    Complexity: O(n T d) time and memory.

    Examples
    --------
    >>> from ovkgp.datasets import make_landmarks
    >>> faces, tasks, identities, truth = make_landmarks(10, random_state=0)
    >>> faces.shape, tasks.shape, truth([[0.5, 0.5]]).shape
    ((20, 7, 136), (7, 2), (20, 1, 136))
    """
    people, sessions = check_integer("num_identities", num_identities), check_integer("num_sessions", num_sessions)
    d, seed, tasks = 2 * check_integer("num_landmarks", num_landmarks), as_seed(random_state), emotion_tasks(emotions)
    rng = make_rng(seed, TRUTH)
    base, directions = rng.uniform(0.2, 0.8, d), LANDMARK_STD * rng.standard_normal((4, d))
    traits = LANDMARK_STD * TRAIT_DECAY ** np.arange(NUM_TRAITS)[:, None] * rng.standard_normal((NUM_TRAITS, d))
    persons = make_rng(seed, INPUTS).standard_normal((people, NUM_TRAITS + 1 + sessions))
    # einsum, as the rounding of a matrix product depends on the number of rows
    neutral = np.repeat(base + np.einsum("ik,kd->id", persons[:, :NUM_TRAITS], traits), sessions, 0)
    amplitudes = (
        (1 + PERSON_AMPLITUDE_STD * persons[:, [NUM_TRAITS]])
        * (1 + SESSION_AMPLITUDE_STD * persons[:, NUM_TRAITS + 1 :])
    ).ravel()
    truth = FaceField(neutral, directions, amplitudes)
    epsilon = make_rng(seed, NOISE).standard_normal((len(neutral), len(tasks), d))
    faces = truth(tasks) + np.sqrt(check_nonnegative("noise", noise)) * epsilon
    return LandmarkSample(faces, tasks, np.repeat(np.arange(people), sessions), truth)


class FaceField:
    """Function θ ↦ the noiseless landmarks (n, T, d) of every face, neutral_i + a_i (θ₁, θ₂, θ₁θ₂, ‖θ‖²) D.

    `neutral` (n, d) is base and identity of each face, `directions` is D (4, d), `amplitudes` is a (n,).
    """

    def __init__(self, neutral: np.ndarray, directions: np.ndarray, amplitudes: np.ndarray):
        self.neutral, self.directions, self.amplitudes = neutral, directions, amplitudes

    def __call__(self, tasks: ArrayLike) -> np.ndarray:
        """Return the landmarks (n, T, d) at tasks (T, 2)."""
        first, second = check_points(tasks, 2).T
        field = np.stack([first, second, first * second, first**2 + second**2], 1) @ self.directions
        return self.neutral[:, None] + self.amplitudes[:, None, None] * field


def emotion_tasks(emotions: tuple[str, ...] = EMOTIONS) -> np.ndarray:
    """Return the points θ of emotions by name: neutral at the origin, all others on the unit circle.

    Parameters
    ----------
    emotions : tuple of str, default=EMOTIONS
        Names of emotions.

    Returns
    -------
    ndarray of shape (T, 2)
        Points in the plane of valence and arousal.

    References
    ----------
    LT-100.

    Examples
    --------
    >>> from ovkgp.datasets import emotion_tasks
    >>> emotion_tasks(("neutral",)).tolist()
    [[0.0, 0.0]]
    """
    unknown = [name for name in emotions if name not in VALENCE_AROUSAL]
    if unknown or len(emotions) == 0:
        raise InputError(f"emotions must be one or more of {', '.join(VALENCE_AROUSAL)}, got {emotions!r}.")
    points = np.array([VALENCE_AROUSAL[name] for name in emotions])
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return points / np.where(norms > 0, norms, 1.0)


def radial_tasks(task, radii) -> np.ndarray:
    """Return ρ θ for each radius ρ: from neutral, the origin, through a task and beyond.

    Parameters
    ----------
    task : array-like of shape (q,)
        Task θ.
    radii : array-like of shape (k,)
        Radii ρ.

    Returns
    -------
    ndarray of shape (k, q)
        Tasks.

    References
    ----------
    LT-104.

    Examples
    --------
    >>> from ovkgp.datasets import radial_tasks
    >>> radial_tasks([0.6, 0.8], [0.0, 0.5]).tolist()
    [[0.0, 0.0], [0.3, 0.4]]
    """
    return np.outer(_as_floats(radii, "radii"), _as_floats(task, "task"))


def angular_tasks(angles) -> np.ndarray:
    """Return (cos φ, sin φ) for each angle φ: tasks on the unit circle.

    Parameters
    ----------
    angles : array-like of shape (k,)
        Angles φ in radians.

    Returns
    -------
    ndarray of shape (k, 2)
        Tasks.

    References
    ----------
    LT-104.

    Examples
    --------
    >>> from ovkgp.datasets import angular_tasks
    >>> angular_tasks([0.0]).tolist()
    [[1.0, 0.0]]
    """
    angles = _as_floats(angles, "angles")
    return np.stack([np.cos(angles), np.sin(angles)], -1)


class TaskRows(NamedTuple):
    """Inputs X (t, d), targets Y (t, T, d) with NaN where missing, and the person (t,) of each row."""

    X: np.ndarray
    Y: np.ndarray
    persons: np.ndarray


def single_rows(values, task: int) -> TaskRows:
    """Return each person at one input task, with all tasks of the same person as targets.

    Parameters
    ----------
    values : array-like of shape (n, T, d)
        Vectors z of each person at each task, NaN where a person was not observed at a task. Persons not observed at the
        input task are omitted.
    task : int
        Index of the input task.

    Returns
    -------
    TaskRows
        X (t, d), Y (t, T, d) and the person (t,) of each row.

    References
    ----------
    LT-100.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.datasets import single_rows
    >>> [part.shape for part in single_rows(np.zeros((5, 3, 2)), task=0)]
    [(5, 2), (5, 3, 2), (5,)]
    """
    values = _check_values(values)
    if not 0 <= task < values.shape[1]:
        raise InputError(f"task must be an index from 0 to {values.shape[1] - 1}, got {task}.")
    observed = np.isfinite(values[:, task]).all(-1)
    return TaskRows(values[observed, task], values[observed], np.flatnonzero(observed))


def joint_rows(values) -> TaskRows:
    """Return each person at each task, with all tasks of the same person as targets.

    Row m(i − 1) + l is z_i(θ_l). The targets of a person are repeated for each of its inputs: the likelihood of such
    rows is a composite one, and standard deviations from them are too small.

    Parameters
    ----------
    values : array-like of shape (n, T, d)
        Vectors z of each person at each task. A missing one, NaN, is neither input nor target.

    Returns
    -------
    TaskRows
        X (t, d), Y (t, T, d) and the person (t,) of each row.

    Notes
    -----
    Complexity: O(n T² d) memory.

    References
    ----------
    LT-101.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.datasets import joint_rows
    >>> [part.shape for part in joint_rows(np.zeros((5, 3, 2)))]
    [(15, 2), (15, 3, 2), (15,)]
    """
    values = _check_values(values)
    n, num_tasks, d = values.shape
    persons = np.repeat(np.arange(n), num_tasks)
    X = values.reshape(n * num_tasks, d)
    observed = np.isfinite(X).all(-1)
    return TaskRows(X[observed], values[persons[observed]], persons[observed])


def _check_values(values) -> np.ndarray:
    """Return z (n, T, d) as floats, NaN where missing or masked."""
    if isinstance(values, np.ma.MaskedArray):
        values = values.astype(np.float64).filled(np.nan)
    values = _as_floats(values, "values")
    if values.ndim != 3:
        raise InputError(f"values has shape {values.shape}, expected (n, T, d): one vector per person and task.")
    if np.isinf(values).any():
        raise InputError("values must not contain infinity. Mark missing values by NaN.")
    return values


def _as_floats(values, name: str) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers, got {values!r}.") from error
