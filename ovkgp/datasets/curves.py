"""Pairs of curves with known ground truth: spline bumps to mixtures of Gaussian processes, mixtures to mixtures, and lip movements.

Rows are curves on equidistant grids. The functions that are mixed are fixed by the seed, so that training and test curves of one call
belong together; split the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import BSpline

from ovkgp.checks import as_seed, check_integer, check_nonnegative, check_positive
from ovkgp.datasets.samples import INPUTS, NOISE, TRUTH, make_rng

SPLINE_LENGTHSCALES = (0.1, 0.25, 0.1, 0.25)  # b in exp(−Δ²/b²), of the outputs of `make_spline_curves`
MIXTURE_LENGTHSCALES = (0.05, 0.1, 0.5, 0.7)  # ℓ in exp(−Δ²/(2ℓ²)), of both sides of `make_mixture_curves`


class CurveSample(NamedTuple):
    """Input and output curves on their grids.

    Attributes
    ----------
    X : ndarray of shape (n, t)
        Input curves, with noise.
    Y : ndarray of shape (n, m)
        Output curves, with noise.
    input_grid : ndarray of shape (t,)
        Points of the input curves.
    grid : ndarray of shape (m,)
        Points of the output curves.
    truth : ndarray of shape (n, m)
        Output curves without noise.

    Examples
    --------
    >>> from ovkgp.datasets import make_spline_curves
    >>> sample = make_spline_curves(50, random_state=0)
    >>> sample.X.shape, sample.Y.shape, sample.grid[[0, -1]].tolist()
    ((50, 200), (50, 200), [0.0, 1.0])
    """

    X: np.ndarray
    Y: np.ndarray
    input_grid: np.ndarray
    grid: np.ndarray
    truth: np.ndarray


def make_spline_curves(
    num_curves: int, *, num_points: int = 200, input_noise: float = 0.07, noise: float = 0.0, random_state=None
) -> CurveSample:
    """Make curves y = Σ_t a_t V_t from x = Σ_t a_t B(· − t): bumps on [0, 5] to paths of Gaussian processes on [0, 1].

    Parameters
    ----------
    num_curves : int
        Number n of pairs.
    num_points : int, default=200
        Number of points of both grids.
    input_noise, noise : float, default=0.07 and 0.0
        Standard deviations of the noise of inputs and outputs.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    CurveSample
        Curves with coefficients a uniform on [−1, 1]⁴; B is the cubic cardinal B-spline of unit width, and the four paths V have the covariances
        exp(−Δ²/b²), b = 0.1, 0.25, 0.1, 0.25.

    References
    ----------
    BO-100
    """
    seed, count = as_seed(random_state), check_integer("num_curves", num_curves)
    input_grid, grid = (np.linspace(0, end, check_integer("num_points", num_points, 2)) for end in (5.0, 1.0))
    paths = draw_paths(grid, np.array(SPLINE_LENGTHSCALES) / np.sqrt(2), make_rng(seed, TRUTH))
    bump = BSpline.basis_element(np.arange(-2.0, 3.0), extrapolate=False)
    bumps = np.stack([np.nan_to_num(bump(4 * (input_grid - t))) for t in range(1, 5)])
    a = make_rng(seed, INPUTS).uniform(-1, 1, (count, 4))
    return _observe(a @ bumps, a @ paths, input_grid, grid, input_noise, noise, seed)


def make_mixture_curves(
    num_curves: int,
    *,
    num_points: int = 100,
    lengthscales=MIXTURE_LENGTHSCALES,
    amplitude: float = 0.5,
    input_noise: float = 0.0,
    noise: float = 0.0,
    random_state=None,
) -> CurveSample:
    """Make curves (x, y) = Σ_t a_t (g_t, h_t) on [0, 1] from paths g, h of Gaussian processes.

    Parameters
    ----------
    num_curves : int
        Number n of pairs.
    num_points : int, default=100
        Number of points of both grids.
    lengthscales : sequence of float, default=(0.05, 0.1, 0.5, 0.7)
        Lengthscales ℓ of the covariances exp(−Δ²/(2ℓ²)), one per path, for both sides.
    amplitude : float, default=0.5
        Coefficients are uniform on [−amplitude, amplitude]; LT-131 has 2.
    input_noise, noise : float, default=0.0
        Standard deviations of the noise of inputs and outputs.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    CurveSample
        The curves.

    References
    ----------
    BO-101, LT-131
    """
    seed, count = as_seed(random_state), check_integer("num_curves", num_curves)
    grid, rng = np.linspace(0, 1, check_integer("num_points", num_points, 2)), make_rng(seed, TRUTH)
    inputs, outputs = (draw_paths(grid, np.array(lengthscales, dtype=float), rng) for _ in range(2))
    bound = check_positive("amplitude", amplitude)
    a = make_rng(seed, INPUTS).uniform(-bound, bound, (count, len(inputs)))
    return _observe(a @ inputs, a @ outputs, grid, grid, input_noise, noise, seed)


def make_lip_curves(
    num_curves: int = 32, *, num_points: int = 641, noise: float = 0.05, random_state=None
) -> CurveSample:
    """Make curves like lip accelerations from muscle activity: each output is a delayed, filtered and resonant response to its input.

    Parameters
    ----------
    num_curves : int, default=32
        Number n of repetitions of one utterance.
    num_points : int, default=641
        Number of points of both grids on [0, 1], which stand for 0.64 s.
    noise : float, default=0.05
        Standard deviation of the noise of the outputs, whose own is about 1.
    random_state : int, Generator, RandomState or None, default=None
        Seed.

    Returns
    -------
    CurveSample
        Muscle activity: nonnegative bursts with random sizes and times. Acceleration: a damped oscillation, 0.05 s after the activity.

    References
    ----------
    LT-130, whose measured curves are not distributed with this package
    """
    seed, count = as_seed(random_state), check_integer("num_curves", num_curves)
    grid, rng = np.linspace(0, 1, check_integer("num_points", num_points, 20)), make_rng(seed, INPUTS)
    draws = rng.standard_normal((count, 3, 3))  # of a curve: times, sizes and widths of its three bursts
    delay = 0.05 / 0.64
    after = np.maximum(grid - delay, 0.0)
    response = np.where(grid >= delay, np.exp(-after / 0.08) * np.cos(2 * np.pi * after / 0.22), 0.0)

    def accelerate(activity: np.ndarray) -> np.ndarray:
        return np.stack([np.convolve(row, response)[: len(grid)] for row in activity])

    activity = _bursts(grid, draws)
    scale = accelerate(
        _bursts(grid, np.zeros((1, 3, 3)))
    ).std()  # that of the typical curve, the same for every number of curves
    return _observe(activity, accelerate(activity) / scale, grid, grid, 0.0, noise, seed)


def _bursts(grid: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return sums of three bursts with times, sizes and widths from standard normal draws (n, 3, 3)."""
    times = np.array([0.18, 0.42, 0.7]) + 0.025 * draws[:, 0]
    sizes, widths = np.array([1.0, 0.6, 0.8]) * np.exp(0.3 * draws[:, 1]), 0.04 * np.exp(0.15 * draws[:, 2])
    shapes = np.exp(-(((grid - times[..., None]) / widths[..., None]) ** 2) / 2)
    return np.einsum("nb,nbt->nt", sizes, shapes)


def _observe(X, truth, input_grid, grid, input_noise: float, noise: float, seed: int) -> CurveSample:
    """Add noise to inputs and outputs."""
    rng = make_rng(seed, NOISE)
    X = X + check_nonnegative("input_noise", input_noise) * rng.standard_normal(X.shape)
    Y = truth + check_nonnegative("noise", noise) * rng.standard_normal(truth.shape)
    return CurveSample(X, Y, input_grid, grid, truth)


def draw_paths(grid: np.ndarray, lengthscales: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return one path of a Gaussian process with covariance exp(−Δ²/(2ℓ²)) per lengthscale, (r, m)."""
    squares, paths = (grid[:, None] - grid) ** 2, []
    for lengthscale in lengthscales:
        values, vectors = np.linalg.eigh(np.exp(-squares / (2 * check_positive("lengthscales", lengthscale) ** 2)))
        paths.append(vectors @ (np.sqrt(values.clip(min=0)) * rng.standard_normal(len(grid))))
    return np.stack(paths)
