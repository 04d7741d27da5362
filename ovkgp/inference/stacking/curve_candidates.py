"""Candidate models of curves on a grid, on standardized data: kernels of inputs and of the domain, with or without deviations.

A candidate is the process

    y_i(θ) = f(x_i, θ) + δ_i(θ) + ε_i(θ),   f ~ GP(0, k_X ⊗ k_Θ),   δ_i ~ GP(0, k'_Θ),   ε white,

with k_X = 1 + v x·z/d + s² κ(|x − z|/ℓ), where the constant is the prior variance of the mean curve. From one initial point the
lengthscales of k_Θ may converge to a poor optimum: several are tried on few curves and points, and candidates differ in their kernels.
"""

from __future__ import annotations

import math
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, RBFKernel, ScaleKernel
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from ovkgp.exceptions import FitWarning
from ovkgp.inference.algebra.dense import gaussian_log_density, inverse_from_cholesky, safe_cholesky
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.stacking.scaled_curves import ScaleCurve
from ovkgp.inference.strategies.exact import observed_covariance
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.training.initialization import (
    load_raw_state,
    raw_state,
    register_default_priors,
    register_noise_prior,
)
from ovkgp.inference.training.kernel_parameters import Units, task_kernel_has_variance
from ovkgp.inference.training.priors import DEFAULT_PRIORS, WIDE_PRIORS, PriorSettings
from ovkgp.kernels import DecomposableKernel, FullMatrix, FunctionValuedKernel
from ovkgp.kernels.records import make_scalar_kernel

TASK_PRIORS = PriorSettings(
    lengthscale=(-0.4, 1.0), noise=(math.log(0.02), 2.0), deviation=(math.log(0.1), 1.5), variance=(math.log(0.1), 1.5)
)
"""Priors of k_Θ, k'_Θ and the white noise for curves of unit variance on a domain of unit standard deviation."""
SAME_GROUP_LENGTHSCALE = 1e-3  # of the integer labels of groups: the kernel is 1 for equal labels, 0 for others
SMALL_CURVES, SMALL_POINTS, SMALL_ENTRIES = 60, 30, 250  # data on which several initial points are compared
MAX_CURVES, MAX_POINTS, MAX_ENTRIES = 300, 120, 800  # data on which hyperparameters are trained
TOLERANCE, SCALED_TOLERANCE = 1e-5, 1e-7
"""Convergence tolerances per value: the optimum is flat for curves divided by their standard deviations, and must not depend on units."""
MAX_KNOTS = 6  # knots of a noise that varies along the domain


@dataclass(frozen=True)
class CurveData:
    """Standardized curves: X (n, d), values (n, g·q) with NaN if missing, and the grid (g, t)."""

    X: Tensor
    Y: Tensor
    tasks: Tensor
    num_channels: int = 1

    @property
    def observations(self) -> Observations:
        return Observations(self.X, self.Y)

    @property
    def is_complete(self) -> bool:
        return not bool(torch.isnan(self.Y).any())

    def select(self, rows: Tensor, points: Tensor) -> CurveData:
        """Select curves, those with an observed value, and points of the grid, those with one."""
        values = self.Y.unflatten(1, (-1, self.num_channels))[rows][:, points]
        observed = ~torch.isnan(values).all(-1)
        kept, used = observed.any(1), observed.any(0)
        return CurveData(
            self.X[rows][kept], values[kept][:, used].flatten(1), self.tasks[points][used], self.num_channels
        )

    def subset(self, num_curves: int, num_points: int, num_entries: int) -> CurveData:
        """Select a subset of limited size, always the same: random curves on an even subset of the points of the grid.

        With missing values, a random subset of at most `num_entries` observed values of random curves.
        """
        generator = np.random.default_rng(0)
        rows = torch.from_numpy(np.sort(generator.permutation(len(self.X))[:num_curves]))
        if self.is_complete:
            points = np.unique(
                np.linspace(0, len(self.tasks) - 1, min(num_points, len(self.tasks))).round().astype(int)
            )
            if self.tasks.shape[1] > 1 and len(points) < len(self.tasks):
                points = np.sort(generator.permutation(len(self.tasks))[:num_points])
            return self.select(rows, torch.from_numpy(points))
        part = self.select(rows, torch.arange(len(self.tasks)))
        observed = (~torch.isnan(part.Y)).numpy()
        if observed.sum() <= num_entries:
            return part
        per_curve = max(num_entries // len(part.X), 3)  # random points of every curve
        keys = np.where(observed, generator.random(observed.shape), np.inf)
        rank = keys.argsort(1).argsort(1)
        Y = torch.where(torch.from_numpy((rank < per_curve) & observed), part.Y, torch.nan)
        part = replace(part, Y=Y)
        count = max(num_entries // per_curve, 2)
        return part.select(torch.arange(min(count, len(part.X))), torch.arange(len(part.tasks)))


@dataclass(frozen=True)
class CurveCandidate:
    """Kernel names of κ and k_Θ, whether each input has its own lengthscale, the linear term, deviations, and priors of k_X.

    Kernel objects replace the kernels by name. They are in original units, and so are the curves, whose channels then have standard
    deviations `output_scale`. With a fixed noise variance nothing is trained. A candidate with a curve of standard deviations is a model of the curves divided by it.
    """

    name: str
    base: str
    task_base: str
    has_lengthscales: bool = False
    is_linear: bool = True
    has_deviations: bool = True
    num_knots: int = 1
    has_groups: bool = False
    priors: PriorSettings = DEFAULT_PRIORS
    input_kernel: Kernel | None = None
    domain_kernel: Kernel | None = None
    fixed_noise: float | None = None
    output_scale: tuple[float, ...] | None = None
    scale: ScaleCurve | None = None

    def divide(self, data: CurveData) -> CurveData:
        """Divide curves by the standard deviations of the candidate, if it has them."""
        return data if self.scale is None else self.scale.divide(data)

    def make_input_kernel(self, num_dims: int) -> Kernel:
        """Make k_X for standardized inputs; with groups, the last column has their integer labels."""
        d = num_dims - self.has_groups
        columns = tuple(range(d)) if self.has_groups else None
        if self.input_kernel is not None:
            given = deepcopy(self.input_kernel).double()
            return given if columns is None else AdditiveKernel(_restrict(given, columns), _same_group(d)).double()
        constant = ConstantKernel().double()
        constant.constant = torch.ones(1, dtype=torch.float64)
        constant.raw_constant.requires_grad_(False)
        base = make_scalar_kernel(self.base, d if self.has_lengthscales else None)
        if columns is not None:
            base.active_dims = torch.tensor(columns)
        terms = [constant, *([LinearKernel(active_dims=columns)] if self.is_linear else []), ScaleKernel(base)]
        if self.has_groups:
            terms.append(_same_group(d))
        return AdditiveKernel(*terms).double()

    def make_gp(self, data: CurveData) -> OperatorValuedGP:
        """Make the model on the grid of the data, with priors for standardized data."""
        tasks, q, d = data.tasks, data.num_channels, data.X.shape[1]
        t = tasks.shape[1]
        over_inputs = self.make_input_kernel(d)
        if q > 1:
            over_inputs = DecomposableKernel(over_inputs, output_matrix=FullMatrix(q))
        over_tasks = (
            make_scalar_kernel(self.task_base, t) if self.domain_kernel is None else deepcopy(self.domain_kernel)
        )
        deviation = None
        if self.has_deviations:
            deviation = make_scalar_kernel(self.task_base, t)
            deviation = ScaleKernel(deviation) if q == 1 else deviation
        knots = make_knots(tasks, self.num_knots) if self.num_knots > 1 else None
        kernel = FunctionValuedKernel(over_inputs, over_tasks, tasks=tasks)
        gp = OperatorValuedGP(kernel, mean="zero", noise=CurveNoise(tasks, deviation, q, knots))
        if self.fixed_noise is not None:
            gp.noise_model.set(self.fixed_noise)
            return gp.requires_grad_(False)
        if self.output_scale is not None:
            return self._register_priors_in_units(gp, data)
        register_default_priors(gp.kernel.task_kernel, t, None, TASK_PRIORS)
        register_default_priors(gp.kernel.input_kernel, d - self.has_groups, None, self.priors)
        register_noise_prior(gp.noise_model, None, TASK_PRIORS)
        return gp

    def _register_priors_in_units(self, gp: OperatorValuedGP, data: CurveData) -> OperatorValuedGP:
        """Register priors for data in original units; fixed constants, which are those of standardized data, get their unit."""
        over_inputs, over_tasks = gp.kernel.input_kernel, gp.kernel.task_kernel
        scale, unit = torch.tensor(self.output_scale, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
        variance = torch.diag(scale**2)
        of_inputs, of_tasks = (
            (unit, variance) if task_kernel_has_variance(over_inputs, over_tasks) else (variance, unit)
        )
        priors = replace(TASK_PRIORS, variance=DEFAULT_PRIORS.variance)
        register_default_priors(over_tasks, data.tasks.shape[1], Units.of(data.tasks, of_tasks), priors)
        register_default_priors(over_inputs, data.X.shape[1], Units.of(data.X, of_inputs), self.priors)
        register_noise_prior(gp.noise_model, scale, TASK_PRIORS)
        if self.input_kernel is None and len(of_inputs) == 1:
            over_inputs.kernels[0].constant = of_inputs.flatten()
        return gp

    def train(self, data: CurveData, *, max_iter: int = 200) -> OperatorValuedGP:
        """Train the hyperparameters on a subset of limited size, from the best of several initial points on a smaller one."""
        if self.fixed_noise is not None:
            return self.make_gp(data)
        data = self.divide(data)
        small = data.subset(SMALL_CURVES, SMALL_POINTS, SMALL_ENTRIES)
        large = data.subset(MAX_CURVES, MAX_POINTS, MAX_ENTRIES)
        gp = self.make_gp(small)
        is_all = small.Y.shape == large.Y.shape
        tolerance = TOLERANCE if self.scale is None else SCALED_TOLERANCE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)  # of points that the optimizer rejects
            warnings.filterwarnings("ignore", ".*raining stopped", FitWarning)
            gp.fit(small.X, small.Y, init="data", max_iter=max_iter, tolerance=tolerance, random_state=0)
            if not is_all and not gp.fit_report_.interrupted:
                whole = self.make_gp(large)
                load_raw_state(whole, raw_state(gp))
                gp = whole.fit(large.X, large.Y, init="current", max_iter=max_iter, tolerance=3e-5, random_state=0)
        return gp


def _same_group(column: int) -> ScaleKernel:
    """Make the covariance of rows with equal integer labels in a column."""
    same = RBFKernel(active_dims=(column,)).double()
    same.lengthscale = SAME_GROUP_LENGTHSCALE
    same.raw_lengthscale.requires_grad_(False)
    return ScaleKernel(same)


def _restrict(kernel: Kernel, columns: tuple[int, ...]) -> Kernel:
    """Let a kernel, and all its parts that read all columns, read the given ones only."""
    for part in kernel.modules():
        if isinstance(part, Kernel) and part.active_dims is None:
            part.active_dims = torch.tensor(columns)
    return kernel


def make_knots(tasks: Tensor, count: int) -> Tensor:
    """Return evenly spaced knots (K, t) over the range of points (g, t), about `count` in all."""
    t = tasks.shape[1]
    each = max(2, round(count ** (1 / t)))
    axes = [torch.linspace(column.min(), column.max(), each, dtype=torch.float64) for column in tasks.T]
    return torch.cartesian_prod(*axes).reshape(-1, t)


def default_curve_candidates(
    task_kernel: str = "auto", deviations: bool = True, num_knots: int = 1, has_groups: bool = False
) -> list[CurveCandidate]:
    """Return the candidates for a kernel of the domain by name; "auto" pairs three of them with three kernels of inputs."""
    options = {"has_deviations": deviations, "num_knots": num_knots, "has_groups": has_groups}
    smooth, rough, wide = ("matern52", "matern32", "rbf") if task_kernel == "auto" else (task_kernel,) * 3
    return [
        CurveCandidate(f"linear + matern52 ⊗ {smooth}", "matern52", smooth, **options),
        CurveCandidate(
            f"matern32, ARD ⊗ {rough}", "matern32", rough, has_lengthscales=True, is_linear=False, **options
        ),
        CurveCandidate(f"linear + rq, ARD ⊗ {wide}", "rq", wide, has_lengthscales=True, priors=WIDE_PRIORS, **options),
    ]


def held_out_densities(gp: OperatorValuedGP, data: CurveData) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities (n, g·q) of the entries given all other curves, and standardized residuals, NaN where missing."""
    if not data.is_complete and data.observations.num_observed <= MAX_DENSE_ENTRIES:
        return _held_out_rows(gp, data)
    found = gp.leave_one_out(data.X, data.Y, groups="rows")
    scores = ((data.Y - found.mean) / found.std).numpy()
    return gaussian_log_density(scores**2, 2 * found.std.log().numpy()), scores


@torch.no_grad()
def _held_out_rows(gp: OperatorValuedGP, data: CurveData) -> tuple[np.ndarray, np.ndarray]:
    """Compute `held_out_densities` by blocks of the observed entries of a curve, of which there are far fewer than points. O(N³)."""
    observations = data.observations.double()
    inverse = inverse_from_cholesky(safe_cholesky(observed_covariance(gp.model, observations)))
    y = (observations.Y - gp.model.mean(observations.X))[observations.observed]
    alpha, rows = inverse @ y, observations.observed.nonzero()[:, 0]
    residuals, std = torch.empty_like(y), torch.empty_like(y)
    for row in rows.unique():
        own = (rows == row).nonzero().flatten()
        covariance = torch.cholesky_inverse(safe_cholesky(inverse[own.unsqueeze(-1), own]))
        residuals[own], std[own] = covariance @ alpha[own], covariance.diagonal().sqrt()
    scores, log_std = (torch.full_like(observations.Y, torch.nan) for _ in range(2))
    scores[observations.observed], log_std[observations.observed] = residuals / std, std.log()
    return gaussian_log_density(scores**2, 2 * log_std).numpy(), scores.numpy()
