"""Coordinates of curves with independent priors, and their values for observed curves (BO-60..63).

ψ are coordinates of the output kernel: a dictionary times the root of an output matrix, or those of a kernel on the domain. In
the eigenbasis of their Gram matrix in L²(η), G = W diag(t) Wᵀ, the coordinates u = diag(t)^½ Wᵀ w of a curve ψ(θ)ᵀ w are independent
a priori with variances t, and are observed with the noise σ² of an orthonormal basis (BO §6.2):

    z_i = diag(t)^{−½} Wᵀ ⟨ψ, y_i⟩ = u(x_i) + ε_i,     ε_i ~ N(0, σ² I),     y(θ) = ψ(θ)ᵀ W diag(t)^{−½} u.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.estimators.functional.curve_problem import as_columns, factor_rows, to_tensor
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning
from ovkgp.functional import FunctionalData
from ovkgp.functional.quadrature import quadrature_weights
from ovkgp.inference.tasks.coordinate_posterior import CoordinateEntries
from ovkgp.kernels.evaluation import evaluate_kernel

COORDINATE_CUTOFF = 1e-14
"""Coordinates with a smaller fraction of the largest variance are dropped, as they are below the precision of float64."""
MAX_GRAM_ERROR = (
    0.05  # relative error of the Gram matrix at the points of a curve above which plug-in estimates warn (BO-62)
)


@storable_record
@dataclass(frozen=True, eq=False)
class CurveCoordinates:
    """Basis h(θ) = ψ(θ)ᵀ P (k, ρ) of curves with independent coordinates of prior variances t (ρ,).

    The prior of a curve is that of ψ with white coefficients, of which the coordinates may explain a part, or, without a residual, that of the
    coordinates.
    """

    factor: object
    projection: np.ndarray
    variances: np.ndarray
    has_residual: bool = True

    def rows(self, points: np.ndarray) -> np.ndarray:
        """Return h at points (k, b), (k, ρ)."""
        return factor_rows(self.factor, points) @ self.projection

    def residual_variance(self, points: np.ndarray) -> np.ndarray:
        """Return the prior variance at points (k, b) that the coordinates do not explain, (k,)."""
        if not self.has_residual:
            return np.zeros(len(points))
        psi = factor_rows(self.factor, points)
        inside = np.square(psi @ self.projection) @ self.variances
        outside = self.factor.residual_variance(to_tensor(points)).numpy()
        return np.clip(outside + np.square(psi).sum(1) - inside, 0.0, None)

    def residual_covariance(self, points: np.ndarray) -> np.ndarray:
        """Return the prior covariance between points (k, b) that the coordinates do not explain, (k, k)."""
        if not self.has_residual:
            return np.zeros((len(points), len(points)))
        psi = factor_rows(self.factor, points)
        rows = psi @ self.projection
        kernel = getattr(self.factor, "kernel", None)
        total = psi @ psi.T
        if kernel is not None:
            with torch.no_grad():
                total = to_dense(evaluate_kernel(kernel, to_tensor(points))).double().numpy()
        residual = total - (rows * self.variances) @ rows.T
        np.fill_diagonal(residual, self.residual_variance(points))
        return residual


def empirical_coordinates(factor, points: np.ndarray, weights: np.ndarray) -> CurveCoordinates:
    """Make coordinates that are orthonormal at points (m, b) with weights (m,), from the singular values of √η ψ."""
    weighted = np.sqrt(weights)[:, None] * factor_rows(factor, points)
    _, roots, vectors = np.linalg.svd(weighted, full_matrices=False)
    keep = np.square(roots) > COORDINATE_CUTOFF * roots[0] ** 2
    return CurveCoordinates(factor, vectors[keep].T / roots[keep], np.square(roots[keep]))


def gram_coordinates(factor, gram: np.ndarray) -> CurveCoordinates:
    """Make coordinates that are orthonormal for the Gram matrix (q, q) of ψ in L²."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > max(COORDINATE_CUTOFF, len(values) * np.finfo(float).eps) * values[-1]
    return CurveCoordinates(factor, vectors[:, keep] / np.sqrt(values[keep]), values[keep])


def observed_coordinates(factor, data: FunctionalData, quadrature: str) -> CurveCoordinates:
    """Make coordinates that are orthonormal at the points of complete curves, or at those of all curves together."""
    if not data.is_ragged:
        return empirical_coordinates(factor, as_columns(data.grid), data.weights(quadrature))
    pairs = [(points, quadrature_weights(points, data.domain, quadrature)) for points, _ in data.curves()]
    points, weights = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return empirical_coordinates(factor, points, weights / len(data))


class Evidence(NamedTuple):
    """yᵀ(K + N)⁻¹y and log density of all observed values, and their number, before the scale."""

    quadratic: float
    count: int
    log_evidence: float

    def at_scale(self, scale: float) -> float:
        """Return the log density with prior and noise times a scale."""
        return float(self.log_evidence + self.quadratic * (1 - 1 / scale) / 2 - self.count * np.log(scale) / 2)


@dataclass(frozen=True)
class ProjectedCurves:
    """Coordinates z of curves, Σ η y² outside of the basis, the number of observed values and Σ ½ log η."""

    Z: np.ndarray | Tensor
    outside: float
    count: int
    jacobian: float

    @classmethod
    def without_rest(cls, Z: np.ndarray) -> ProjectedCurves:
        """Return coordinates (n, ρ) whose evidence does not count what is outside of the basis."""
        return cls(Z, 0.0, Z.size, 0.0)

    def evidence(self, noise: float, quadratic: float, log_evidence: float) -> Evidence:
        """Return the evidence of all values from that of the coordinates: the rest is white noise, in the units of y."""
        size = self.count - np.prod(self.Z.shape)
        rest = self.jacobian - (self.outside / noise + size * np.log(2 * np.pi * noise)) / 2
        return Evidence(quadratic + self.outside / noise, self.count, log_evidence + rest)


def project_curves(coordinates: CurveCoordinates, data: FunctionalData, quadrature: str) -> ProjectedCurves:
    """Return z (n, ρ) of complete curves, and their part outside of the basis."""
    weights = data.weights(quadrature)
    Z = (data.values * weights) @ coordinates.rows(as_columns(data.grid))
    outside = max(float((np.square(data.values) @ weights).sum()) - float(np.square(Z).sum()), 0.0)
    return ProjectedCurves(Z, outside, data.values.size, len(data) * float(np.log(weights).sum()) / 2)


def project_plug_in(coordinates: CurveCoordinates, data: FunctionalData, quadrature: str) -> ProjectedCurves:
    """Return z (n, ρ) from averages over the points of each curve, whatever is outside of the basis (BO-62)."""
    if data.is_complete:
        weights, rows = data.weights(quadrature), coordinates.rows(as_columns(data.grid))
        Z, errors = (data.values * weights) @ rows, [_gram_error(coordinates, rows, weights)]
    else:
        Z, errors = [], []
        for points, values in data.curves():
            weights, rows = quadrature_weights(points, data.domain, quadrature), coordinates.rows(points)
            Z.append((values[:, 0] * weights) @ rows)
            errors.append(_gram_error(coordinates, rows, weights))
    if (worst := max(errors)) > MAX_GRAM_ERROR:
        warnings.warn(
            f"Inner products at the observed points are inaccurate: the Gram matrix of the basis at the points of a curve differs by {worst:.2g} (relative) from the exact one. "
            'Use method="exact", quadrature="trapezoid", fewer functions or more points.',
            FitWarning,
            stacklevel=3,
        )
    return ProjectedCurves.without_rest(np.stack(Z))


def _gram_error(coordinates: CurveCoordinates, rows: np.ndarray, weights: np.ndarray) -> float:
    """Return ‖Ĝ − G‖/‖G‖ of the Gram matrix Ĝ of ψ at points with basis rows (m, ρ) and weights (m,)."""
    roots = np.sqrt(coordinates.variances)
    gram = (rows * weights[:, None]).T @ rows - np.eye(len(roots))
    return float(np.linalg.norm(roots[:, None] * gram * roots, 2) / roots.max() ** 2)


def collect_entries(
    coordinates: CurveCoordinates, data: FunctionalData, quadrature: str, weighting: str
) -> tuple[CoordinateEntries, ProjectedCurves]:
    """Return values √η y with basis √η h of each curve, rotated to at most ρ values, and what is outside of the basis."""
    relative = data.counts / np.mean(data.counts) if weighting == "points" else np.ones(len(data))
    on_grid = None if data.is_ragged else coordinates.rows(as_columns(data.grid))
    if on_grid is not None and quadrature == "mean" and data.counts.max() <= len(coordinates.variances):
        return _collect_table(data, on_grid, np.sqrt(relative / data.counts))
    basis, targets, total, jacobian = [], [], 0.0, 0.0
    for i, (factor, (points, values)) in enumerate(zip(relative, data.curves(), strict=True)):
        weights = quadrature_weights(points, data.domain, quadrature) * factor
        roots = np.sqrt(weights)
        rows = coordinates.rows(points) if on_grid is None else on_grid[~np.isnan(data.values[i])]
        basis.append(torch.from_numpy(rows * roots[:, None]))
        targets.append(torch.from_numpy(values[:, 0] * roots))
        total += float(targets[-1].square().sum())
        jacobian += float(np.log(weights).sum()) / 2
    entries = CoordinateEntries.compress(basis, targets, [1.0] * len(basis))
    outside = max(total - float(entries.values.square().sum()), 0.0)
    return entries, ProjectedCurves(entries.values, outside, int(data.counts.sum()), jacobian)


def _collect_table(
    data: FunctionalData, basis: np.ndarray, scales: np.ndarray
) -> tuple[CoordinateEntries, ProjectedCurves]:
    """Return the values of curves on a common grid with basis (m, ρ), times the scale of each curve (n,)."""
    rows, columns = np.nonzero(~np.isnan(data.values))
    values = torch.from_numpy(data.values[rows, columns] * scales[rows])
    entries = CoordinateEntries(
        torch.from_numpy(rows),
        torch.from_numpy(basis),
        values,
        torch.ones_like(values),
        torch.from_numpy(columns),
        torch.from_numpy(scales),
    )
    return entries, ProjectedCurves(values, 0.0, len(values), float((data.counts * np.log(scales)).sum()))


@storable_record
@dataclass(frozen=True, eq=False)
class CurveFunction:
    """Function f(x)(θ) = φ(x)ᵀ W ψ(θ) of coordinates of the input and output kernels, with weights W (r, q)."""

    inputs: object
    factor: object
    weights: np.ndarray

    def __call__(self, X: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the values at X (k, d) and points (m, b), (k, m)."""
        return factor_rows(self.inputs, X) @ self.weights @ factor_rows(self.factor, points).T


storable_record(CoordinateEntries)
