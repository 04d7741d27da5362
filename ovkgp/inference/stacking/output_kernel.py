"""Hyperparameters of one output as a vector, with priors, bounds, initial points, and the nodes of its covariance.

On standardized data an output has the covariance

    k(x, z) = 1 + v x·z + s² κ(Σ_i (x_i − z_i)²/ℓ_i²),   noise σ²,

with normal priors on the logarithms of v d, s², ℓ/√d and σ². The variables u are these logarithms, but log σ for the noise; θ are the
values, and log σ. The modules that an `IndependentCandidate` makes have the same parameters and priors; they are made only at the mode.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel

from ovkgp.inference.model.parameter_vector import name_active_bounds
from ovkgp.inference.training import initial_grid
from ovkgp.inference.training.initialization import RELATIVE_NOISE_BOUNDS
from ovkgp.inference.training.kernel_parameters import column_distances, row_distances, subsample
from ovkgp.inference.training.numpy_density import SingleOutputEvidence
from ovkgp.inference.training.numpy_outputs import Variances
from ovkgp.inference.training.numpy_values import InnerProducts, Ones, Radial, Reference, ScaledKernel, Sum
from ovkgp.inference.training.priors import LOG_ROOT_2_PI
from ovkgp.inference.training.roles import RELATIVE_LENGTHSCALE_BOUNDS, RELATIVE_VARIANCE_BOUNDS
from ovkgp.kernels.records import KernelRecord, find_named_record, make_scalar_kernel

if TYPE_CHECKING:
    from ovkgp.inference.stacking.candidates import IndependentCandidate

MAX_BOUND_ROWS, MAX_GRID_ROWS = 100, 500  # rows whose distances bound the lengthscales, and give their initial values
MAX_JOINT_ROWS = 64  # up to this number of rows, the covariances at several points are computed together


def is_output_kernel(name: str) -> bool:
    """Whether the kernel of a name may be κ: it has a profile, and parameters of known roles."""
    record = find_named_record(name)
    return record.profile is not None and set(record.roles.values()) <= {"lengthscale", "shape"}


class OutputParameters:
    """Hyperparameters u (k,) of one output at inputs X (n, d), which are standardized if no output is missing.

    `constant_variance` is that of the constant term, the mean of the output. `spans` are the entries of each parameter of the model, by name; `loc` and `scale` (k,) are those of the normal prior of u, and
    `bounds` (k, 2) its bounds. The nodes `kernel` and `noise` are functions of θ; `noise` is None if it is known.
    """

    def __init__(
        self, candidate: IndependentCandidate, X: np.ndarray, is_noise_known: bool, constant_variance: float = 1.0
    ):
        self.spans, self._columns, (n, d), priors = {}, [], X.shape, candidate.priors
        self._log_size = math.log(np.square(X).sum(1).mean() or 1.0)  # of a typical input
        terms = [ScaledKernel(Reference((), None, np.array(constant_variance)), Ones(n))]
        if candidate.is_linear:
            loc, scale = priors.slope_variance
            bounds = np.log(RELATIVE_VARIANCE_BOUNDS) - self._log_size
            slope = self._add("kernel.kernels.1.raw_variance", (1, 1), (loc - math.log(d), scale), bounds)
            terms.append(ScaledKernel(slope, InnerProducts(X)))
        path = f"kernel.kernels.{len(terms)}"
        variance = self._add(f"{path}.raw_outputscale", (), priors.variance, np.log(RELATIVE_VARIANCE_BOUNDS))
        record, references = find_named_record(candidate.base), {}
        for name, role in record.roles.items():
            given = (1,), priors.shape, (-np.inf, np.inf)
            if role == "lengthscale":
                loc, scale = priors.lengthscale
                bounds = _bound_lengthscales(X, candidate.has_lengthscales)
                given = (1, d if candidate.has_lengthscales else 1), (loc + math.log(d) / 2, scale), bounds
                self._lengthscale = f"{path}.base_kernel.raw_{name}"
            references[name] = self._add(f"{path}.base_kernel.raw_{name}", *given)
        radial = Radial(record.profile, _module(record, candidate.base), X, references)
        self.kernel, self.noise = Sum([*terms, ScaledKernel(variance, radial)]), None
        if not is_noise_known:
            prior = tuple(number / 2 for number in priors.noise)
            self.noise = Variances(self._add("noise_model.log_scale", (), prior, np.log(RELATIVE_NOISE_BOUNDS) / 2), 1)
        self.loc, self.scale, *ends = np.concatenate(self._columns, 1)
        self.bounds = np.stack(ends, -1)
        self.is_log = np.arange(len(self)) < len(self) - (self.noise is not None)
        self._constant = -float(np.log(self.scale).sum()) - len(self) * LOG_ROOT_2_PI

    def _add(self, name: str, shape: tuple[int, ...], prior: tuple[float, float], bounds) -> Reference:
        """Add a parameter, with location and scale of the prior and bounds of its entries in u."""
        start = len(self)
        self.spans[name] = slice(start, start + math.prod(shape))
        self._columns.append([np.broadcast_to(number, math.prod(shape)) for number in (*prior, *bounds)])
        return Reference(shape, self.spans[name])

    def __len__(self) -> int:
        return max((span.stop for span in self.spans.values()), default=0)

    def theta(self, u: np.ndarray) -> np.ndarray:
        """Return θ at u, both (..., k)."""
        return np.where(self.is_log, np.exp(u), u)

    def log_prior(self, u: np.ndarray, by_u: np.ndarray | None = None) -> float:
        """Return the log density of u, and add its derivatives to `by_u`."""
        scores = (u - self.loc) / self.scale
        if by_u is not None:
            by_u -= scores / self.scale
        return self._constant - 0.5 * float(scores @ scores)

    def log_priors(self, points: np.ndarray) -> np.ndarray:
        """Return the log densities (S,) of points u (S, k)."""
        return self._constant - 0.5 * np.square((points - self.loc) / self.scale).sum(1)

    def active_bounds(self, u: np.ndarray) -> tuple[tuple[str, int, str], ...]:
        """Return name, index and side of the entries that are at a bound."""
        entries = [(name, index) for name, span in self.spans.items() for index in range(span.stop - span.start)]
        return name_active_bounds(entries, u, self.bounds)

    def initial_points(self, X: np.ndarray) -> np.ndarray:
        """Return initial points (L, S, k): the location of the prior with S noise and slope variances for each of L lengthscales."""
        rows = subsample(torch.from_numpy(X), MAX_GRID_ROWS).numpy()
        lengthscales = initial_grid.make_lengthscale_grid(rows, initial_grid.NUM_LENGTHSCALES)
        choices = {self._lengthscale: np.log(lengthscales)}
        if "kernel.kernels.1.raw_variance" in self.spans:
            choices["kernel.kernels.1.raw_variance"] = np.log(initial_grid.SLOPES) - self._log_size
        if self.noise is not None:
            choices["noise_model.log_scale"] = np.log(initial_grid.NOISES) / 2
        points = np.tile(self.loc, (*map(len, choices.values()), 1))
        for axis, (name, values) in enumerate(choices.items()):
            points[..., self.spans[name]] = np.expand_dims(values, [*range(1, len(choices) - axis), -1])
        return np.clip(points, *self.bounds.T).reshape(len(lengthscales), -1, len(self))


@cache
def _module(record: KernelRecord, name: str) -> Kernel:
    """Make the kernel of a name, of which a profile reads the options but not the parameters."""
    return make_scalar_kernel(name)


def _bound_lengthscales(X: np.ndarray, is_ard: bool) -> np.ndarray:
    """Return the bounds (2, d) or (2, 1) of log ℓ, relative to distances in each column or between rows."""
    distances = (column_distances if is_ard else row_distances)(subsample(torch.from_numpy(X), MAX_BOUND_ROWS))
    largest = (X.shape[1] ** 0.5 if is_ard else 1.0) * distances.median
    low, high = RELATIVE_LENGTHSCALE_BOUNDS
    return np.log([low * torch.minimum(distances.small, largest).numpy(), high * largest.numpy()])


class OutputDensity:
    """log π(u) of one output from its evidence, a function of θ and of a vector to which it adds derivatives."""

    def __init__(self, parameters: OutputParameters, evidence):
        self.parameters, self.evidence = parameters, evidence

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the density and its gradient (k,), NaN if θ is not finite; `numpy.linalg.LinAlgError` if it cannot be evaluated."""
        with np.errstate(all="ignore"):  # overflow is detected by the checks for finite values
            theta = self.parameters.theta(u)
            if not math.isfinite(theta.sum()):
                return np.nan, u
            gradient = np.zeros(len(u))
            value = self.evidence(theta, gradient)
            gradient[self.parameters.is_log] *= theta[self.parameters.is_log]
            return value + self.parameters.log_prior(u, gradient), gradient

    def value(self, u: np.ndarray, out: np.ndarray | None = None) -> float:
        """Return the density; −∞ if it cannot be evaluated. The Cholesky factor of the covariance is written to `out` (n, n), if given."""
        with np.errstate(all="ignore"):
            theta = self.parameters.theta(u)
            if not math.isfinite(theta.sum()):
                return -np.inf
            try:
                value = self.evidence.value(theta, out) + self.parameters.log_prior(u)
            except np.linalg.LinAlgError:
                return -np.inf
            return value if math.isfinite(value) else -np.inf

    def values(self, points: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the densities (S,) of points u (S, k), as `value` does; the factors are written to `out` (S, n, n), if given."""
        evidence = self.evidence
        if not isinstance(evidence, SingleOutputEvidence) or len(evidence.y) > MAX_JOINT_ROWS:
            factors = [None] * len(points) if out is None else out
            return np.array([self.value(u, factor) for u, factor in zip(points, factors, strict=True)])
        with np.errstate(all="ignore"):
            out = np.empty((len(points), *2 * (len(evidence.y),))) if out is None else out
            values = evidence.values(self.parameters.theta(points), out) + self.parameters.log_priors(points)
            return np.where(np.isfinite(values), values, -np.inf)
