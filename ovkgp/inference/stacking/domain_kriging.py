"""Interpolation of curves between the points of their grid by kriging, with the variance of its error.

Principal components and shared kernels know curves on a grid only. Between its points curves are interpolated as draws of one process with
covariance 10 + κ(|θ − θ'|/ℓ) + ν I, and κ, ℓ and ν are those with the largest leave-one-point-out density of the observed curves. With weights W and
relative error variance v(θ) of this process, and mean squares of the leave-one-point-out errors e_j,

    y(θ) = W(θ) y(grid) + e(θ),    Var e(θ) = c v(θ),    c = mean_j e_j² / v_j.

Beyond the smallest box that contains the grid curves are constant, and their error has the variance 2 s (1 − κ) at the distance from the box,
where s is the ratio of the variance of the curves along the grid to its mean under κ.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist
from torch import Tensor

from ovkgp.inference.algebra.dense import psd_root
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds

LENGTHSCALES = (0.1, 0.2, 0.4, 0.8, 1.6, 4.0)  # relative to the standard deviation of the points
NUGGETS = (1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0)  # relative to the variance of κ
CONSTANT_VARIANCE = 10.0
MAX_CHOICE_POINTS, MAX_CHOICE_CURVES = 250, 50  # data from which κ, ℓ and ν are chosen
MAX_DENSE_POINTS, NUM_NEIGHBORS = 1500, 60  # points beyond which only neighbors are used
MAX_ERROR_POINTS = 500  # points whose errors are computed in that case
CHUNK_ENTRIES = 4_000_000


def matern32(r: np.ndarray) -> np.ndarray:
    """Return the Matérn-3/2 correlation at scaled distances."""
    r = 3**0.5 * r
    return (1 + r) * np.exp(-r)


def matern52(r: np.ndarray) -> np.ndarray:
    """Return the Matérn-5/2 correlation at scaled distances."""
    r = 5**0.5 * r
    return (1 + r + r**2 / 3) * np.exp(-r)


def gaussian(r: np.ndarray) -> np.ndarray:
    """Return the Gaussian correlation at scaled distances."""
    return np.exp(-0.5 * r**2)


class DomainKriging:
    """Interpolation of functions with values (r, g·q) on a grid (g, t), chosen from curves Y (n, g·q)."""

    def __init__(self, grid: Tensor, Y: np.ndarray):
        self.grid = grid.numpy()
        self.kernel, self.lengthscale, self.nugget = _choose_kernel(self.grid, Y)
        self.tree = KDTree(self.grid)
        self.is_local = len(self.grid) > MAX_DENSE_POINTS
        if not self.is_local:
            self.factor = cho_factor(self._covariance(self.grid) + self.nugget * np.eye(len(self.grid)), lower=True)

    def _covariance(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        return CONSTANT_VARIANCE + self.kernel(cdist(a, a if b is None else b) / self.lengthscale)

    def at(self, rows: np.ndarray, tasks: Tensor) -> Tensor:
        """Return functions with values (r, g·q) on the grid at points (M, t), (M·q, r)."""
        values = rows.reshape(len(rows), len(self.grid), rows.shape[1] // len(self.grid))
        found = np.einsum("mg,rgq->mqr", self._weights(tasks.numpy())[0], values, optimize=True)
        return torch.from_numpy(found.reshape(found.shape[0] * found.shape[1], len(rows)))

    def variances(self, tasks: Tensor, scale: np.ndarray) -> Tensor:
        """Return the error variances (M·q,) at points for scales c and s (2, q)."""
        return torch.from_numpy((self._weights(tasks.numpy())[1] @ scale).ravel())

    def covariance(self, tasks: Tensor, scale: np.ndarray) -> Tensor:
        """Return the error covariance (M·q, M·q); diagonal if only neighbors are used."""
        points = tasks.numpy()
        _, v = self._weights(points)
        variances = torch.diag(torch.from_numpy((v @ scale).ravel()))
        if self.is_local:
            return variances
        cross = self._covariance(points, self.grid)
        V = self._covariance(points) - cross @ cho_solve(self.factor, cross.T)
        is_single = (v[:, 0] == 0.0) | (v[:, 1] > 0.0)
        V[is_single], V[:, is_single] = 0.0, 0.0  # on the grid, or beyond it, where errors are taken as independent
        V.flat[:: len(V) + 1] = 0.0
        return variances + torch.kron(torch.from_numpy(V).contiguous(), torch.diag(torch.from_numpy(scale[0])))

    def _weights(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (M, g) and relative error variances (M, 2) within and beyond the range of the grid, 0 at its points."""
        inside = np.clip(points, self.grid.min(0), self.grid.max(0))
        W, v = self._inner_weights(inside)
        beyond = 2 * (1 - self.kernel(np.linalg.norm(points - inside, axis=1) / self.lengthscale))
        return W, np.stack([v, beyond], 1)

    def _inner_weights(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights and variances at points within the range of the grid."""
        distance, nearest = self.tree.query(points)
        if self.is_local:
            W, v = np.zeros((len(points), len(self.grid))), np.zeros(len(points))
            _, index = self.tree.query(points, NUM_NEIGHBORS)
            for part in np.array_split(np.arange(len(points)), max(len(points) * NUM_NEIGHBORS**2 // CHUNK_ENTRIES, 1)):
                weights, v[part] = self._local(points[part], index[part])
                np.put_along_axis(W[part[0] : part[-1] + 1], index[part], weights, 1)
        else:
            cross = self._covariance(points, self.grid)
            W = cho_solve(self.factor, cross.T).T
            v = CONSTANT_VARIANCE + 1.0 + self.nugget - np.einsum("mg,mg->m", W, cross)
        on_grid = distance <= 1e-12 * max(np.ptp(self.grid), 1e-300)
        W[on_grid] = 0.0
        W[on_grid, nearest[on_grid]] = 1.0
        return W, np.where(on_grid, 0.0, np.maximum(v, self.nugget))

    def _local(self, points: np.ndarray, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (M, k) of the neighbors `index` (M, k) and error variances (M,)."""
        near = self.grid[index]
        among = np.linalg.norm(near[:, :, None] - near[:, None], axis=-1)
        R = CONSTANT_VARIANCE + self.kernel(among / self.lengthscale) + self.nugget * np.eye(index.shape[1])
        to = np.linalg.norm(near - points[:, None], axis=-1)
        cross = CONSTANT_VARIANCE + self.kernel(to / self.lengthscale)
        weights = np.linalg.solve(R, cross[..., None])[..., 0]
        return weights, CONSTANT_VARIANCE + 1.0 + self.nugget - (weights * cross).sum(1)

    def error_scales(self, rows: np.ndarray) -> np.ndarray:
        """Return c, the mean of e_j² / v_j over points and functions with values (r, g·q), and s, (2, q)."""
        values = rows.reshape(len(rows), len(self.grid), rows.shape[1] // len(self.grid))
        if len(self.grid) == 1:
            return np.repeat(np.square(values).mean((0, 1))[None], 2, 0)
        points = self.grid[np.random.default_rng(0).permutation(len(self.grid))[:MAX_CHOICE_POINTS]]
        fraction = 1 - self.kernel(cdist(points, points) / self.lengthscale).mean()
        return np.stack([self._inner_scale(values), values.var(1).mean(0) / fraction])

    def _inner_scale(self, values: np.ndarray) -> np.ndarray:
        if self.is_local:
            at = np.random.default_rng(0).permutation(len(self.grid))[:MAX_ERROR_POINTS]
            _, index = self.tree.query(self.grid[at], NUM_NEIGHBORS + 1)
            others = np.array([row[row != j][:NUM_NEIGHBORS] for row, j in zip(index, at, strict=True)])
            parts = [self._local(self.grid[at[i : i + 50]], others[i : i + 50]) for i in range(0, len(at), 50)]
            weights, v = (np.concatenate(part) for part in zip(*parts, strict=True))
            errors = values[:, at] - np.einsum("mk,rmkq->rmq", weights, values[:, others])
            return (np.square(errors) / v[:, None]).mean((0, 1))
        half = solve_triangular(self.factor[0], np.eye(len(self.grid)), lower=True)
        columns = np.moveaxis(values, 1, 0).reshape(len(half), -1)
        ratios = np.square(cho_solve(self.factor, columns)) / np.square(half).sum(0)[:, None]
        return ratios.reshape(len(half), len(values), -1).mean((0, 1))


class InterpolatedCurves:
    """Base class of models of curves on a grid `tasks` (g, t) that interpolate between its points, from their training `curves` (n, g·q)."""

    has_derivatives = False
    tasks: Tensor
    curves: np.ndarray

    def fitted_curves(self) -> np.ndarray:
        """Return the means of f (n, g·q) at the training inputs."""
        raise NotImplementedError

    @cached_property
    def kriging(self) -> DomainKriging:
        """Interpolation between the points of the grid."""
        return DomainKriging(self.tasks, self.curves)

    @cached_property
    def error_scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Scales (2, q) of the errors of interpolation of f and of the deviations of curves from f."""
        of_f = self.kriging.error_scales(self.fitted_curves())
        return of_f, np.maximum(self.kriging.error_scales(self.curves) - of_f, 0.0)

    def is_grid(self, tasks: Tensor) -> bool:
        """Whether points are the grid itself."""
        return tasks.shape == self.tasks.shape and torch.equal(tasks, self.tasks)

    def at(self, rows: np.ndarray, tasks: Tensor) -> Tensor:
        """Return functions with values (r, g·q) on the grid at points (M, t), (M·q, r)."""
        return torch.from_numpy(rows.T.copy()) if self.is_grid(tasks) else self.kriging.at(rows, tasks)

    def error(self, tasks: Tensor, part: int, form: str) -> Tensor | float:
        """Return "variances" or "covariance" of the error of interpolation of f (part 0) or of deviations (part 1); 0 on the grid."""
        return 0.0 if self.is_grid(tasks) else getattr(self.kriging, form)(tasks, self.error_scales[part])

    def draw_errors(self, X: Tensor, tasks: Tensor, k: int, random_state) -> Tensor | float:
        """Draw errors (k, m, M·q) of f for inputs (m, d), with a Gaussian correlation of lengthscale √d; 0 on the grid."""
        if self.is_grid(tasks):
            return 0.0
        root = psd_root(self.kriging.covariance(tasks, self.error_scales[0]))
        over_inputs = psd_root(torch.exp(-0.5 * torch.cdist(X, X).square() / max(X.shape[1], 1)))
        scores = draw_normal((k, len(X), len(root)), spawn_seeds(random_state, 1)[0], X)
        return over_inputs @ scores @ root.mT


def _choose_kernel(grid: np.ndarray, Y: np.ndarray) -> tuple:
    """Return κ, ℓ and ν with the largest leave-one-point-out density of some curves, with their scale at its maximum."""
    generator, best = np.random.default_rng(0), None
    points = np.sort(generator.permutation(len(grid))[:MAX_CHOICE_POINTS])
    if grid.shape[1] == 1:  # a contiguous part, of the same density
        points = np.arange(len(grid))[:MAX_CHOICE_POINTS]
    values = Y.reshape(len(Y), len(grid), -1)[generator.permutation(len(Y))[:MAX_CHOICE_CURVES]][:, points]
    values = np.moveaxis(values, 1, 0).reshape(len(points), -1)
    distances = cdist(grid[points], grid[points])
    for kernel in (matern52, matern32, gaussian):
        for lengthscale in LENGTHSCALES:
            s, U = np.linalg.eigh(CONSTANT_VARIANCE + kernel(distances / lengthscale))
            rotated = U.T @ values
            for nugget in NUGGETS:
                inverse = 1 / (np.maximum(s, 0.0) + nugget)
                diagonal = np.square(U) @ inverse
                scores = np.square(U @ (inverse[:, None] * rotated)).sum(1) / diagonal
                value = np.log(diagonal).mean() - np.log(max(scores.mean(), 1e-300))
                if best is None or value > best[0] + 1e-9:
                    best = value, kernel, lengthscale, nugget
    return best[1:]
