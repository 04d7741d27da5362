"""The posterior density of the hyperparameters as a function of one vector u.

In well-scaled variables u (`ParameterVector`: logarithms of positive parameters) it is

    log π(u) = log p(Y | θ(u)) + log p(θ(u)) + log |dθ / du|.

Samplers use only its value and gradient. If all priors are proper, ∫ π(u) du = p(Y). Training maximizes the same sum without
log |dθ / du|. `LogDensity` computes both, by closed-form gradients in NumPy where the model has them and they are faster,
otherwise by automatic differentiation through the modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import (
    ParameterVector,
    hyperparameter_readers,
    parameter_name,
    read_constrained_value,
)
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics, make_surrogate_data
from ovkgp.inference.training.free_parameters import (
    PROBE_STEP,
    TriangularLoadings,
    find_used_variables,
    freeze_unused_parameters,
)
from ovkgp.inference.training.initialization import Initialization, initialize, load_raw_state, raw_state
from ovkgp.inference.training.lbfgs import FAILURES, Mode, compute_hessian, find_mode
from ovkgp.inference.training.numpy_density import make_numpy_density
from ovkgp.inference.training.numpy_values import NoAnalyticForm
from ovkgp.inference.training.priors import LogPrior, trained_sites
from ovkgp.kernels import FunctionValuedKernel

PRIORS = ("default", "given")
BACKENDS = ("auto", "torch")
MAX_TRAINING_ENTRIES = 2000
"""Maximum number of observed entries of a training with NumPy; for more, modules are as fast and use several threads."""
MAX_FACTOR_ROWS = 600  # the same for curves on a grid: maximum number of curves and of grid points
NO_DENSITY = -np.inf, np.zeros(1)  # value and gradient where the density cannot be evaluated


class LogDensity:
    """log p(Y | θ(u)) + log p(θ(u)) of a model as a function of u, plus log |dθ / du| with `jacobian`; with its gradient.

    `evidence` computes log p(Y) at the present hyperparameters; `data` are the data or statistics from which it does. A parameter
    without a prior has a flat density in its constrained value. Evaluations raise an error of `FAILURES` or return a value that
    is not finite if the evidence cannot be computed.
    """

    def __init__(
        self,
        gp,
        evidence: Callable[[], Tensor],
        data,
        vector: ParameterVector,
        *,
        jacobian: bool,
        backend: str = "auto",
    ):
        self.gp, self.evidence, self.vector, self.jacobian = gp, evidence, vector, jacobian
        self.prior, self.numpy_density = LogPrior(gp, jacobian), None
        with_prior = _parameters_with_prior(gp) if jacobian else set()
        self._flat = [id(entry.parameter) not in with_prior for entry in vector.entries]
        is_small = jacobian or data.num_observed <= MAX_TRAINING_ENTRIES or _has_small_factors(gp, data)
        # a subclass may define another evidence
        if backend == "auto" and is_small and vars(type(gp)).get("has_gaussian_evidence", False):
            # training also allows priors that are not a density of the parameters
            with suppress(NoAnalyticForm) if jacobian else suppress(NoAnalyticForm, OptionError):
                self.numpy_density = make_numpy_density(gp, data, vector, jacobian)

    @property
    def backend(self) -> str:
        """The backend in use, "numpy" or "torch"."""
        return "torch" if self.numpy_density is None else "numpy"

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the value and its gradient (k,) at u (k,)."""
        if self.numpy_density is None:
            return self._evaluate_torch(u)
        try:
            value, gradient = self.numpy_density(u)
        except np.linalg.LinAlgError:
            return self._evaluate_torch(u)  # which adds jitter to a nearly singular matrix
        if self.numpy_density.priors is not None or not math.isfinite(value):
            return value, gradient
        self.vector.set(u)
        prior, by_prior = self.add_prior(0.0)
        return value + prior, gradient + by_prior

    def _evaluate_torch(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        self.vector.set(u)
        if not self.vector.is_finite():
            return NO_DENSITY
        with torch.enable_grad():
            value = self.evidence()
        return self.add_prior(value) if torch.isfinite(value) else NO_DENSITY

    def add_prior(self, value: Tensor | float) -> tuple[float, np.ndarray]:
        """Add the log prior to a value at the present hyperparameters; return the sum and its gradient (k,)."""
        self.vector.clear_gradient()
        try:
            with torch.enable_grad():
                value = value + self.prior()
        except ValueError as error:  # torch's distributions reject values outside their support
            if "support" not in str(error):
                raise
            return NO_DENSITY
        if torch.is_tensor(value) and value.requires_grad:
            value.backward()
        total, gradient = float(torch.as_tensor(value).detach()), self.vector.gradient()
        if not self.jacobian:
            return total, gradient
        slopes, by_slopes = self.vector.log_slopes(self._flat)
        return total + slopes, gradient + by_slopes


def _has_small_factors(gp, data) -> bool:
    """Whether the outputs are complete curves, whose covariance has two factors of moderate size."""
    is_grid = isinstance(gp.kernel, FunctionValuedKernel) and isinstance(getattr(gp, "noise_model", None), CurveNoise)
    return is_grid and isinstance(data, Observations) and data.is_complete and max(data.Y.shape) <= MAX_FACTOR_ROWS


class LogPosterior:
    """log π(u) of a model and its data.

    Parameters that the evidence does not depend on are kept fixed: the noise of the model if it is known for each entry
    and, for `Statistics`, everything that would change the statistics, such as lengthscales. A parameter without a
    prior has a flat density in its constrained value. Free loadings are kept lower triangular (`TriangularLoadings`).
    If the evidence cannot be computed or a prior has no density, log π is −∞. With the iterative strategy the evidence
    is an estimate with fixed probes: it is deterministic, and its gradient is that of the exact evidence up to the
    error of the probes.

    Parameters
    ----------
    gp : OperatorValuedGP or VariationalGP
        Model with `evidence(X, Y, noise)`. It is copied and not changed.
    X, Y, noise : array-like
        Data as for `gp.log_evidence`; X may be `Statistics`, without Y.
    priors : {"default", "given"}, default="default"
        If "default", each trained parameter without a prior gets a weakly informative one, scaled by the data. If
        "given", only registered priors are used.
    backend : {"auto", "torch"}, default="auto"
        If "auto", the NumPy functions of `numpy_density` are used if the model has them.

    Attributes
    ----------
    gp : OperatorValuedGP or VariationalGP
        The copy whose hyperparameters `set` writes.
    backend : {"numpy", "torch"}
        The backend in use.
    evaluations, failures : int
        Number of calls, and of calls that returned −∞.
    log_num_modes : float
        Logarithm of the number of equal modes that differ by signs of loadings.

    Raises
    ------
    OptionError
        If no trained parameter changes the evidence.

    Notes
    -----
    Complexity of a call: that of the evidence and its gradient, plus O(k) for k variables.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel, ScaleKernel
    >>> from ovkgp.inference import OperatorValuedGP
    >>> from ovkgp.inference.training.log_posterior import LogPosterior
    >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
    >>> lp = LogPosterior(OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero"), X, X.sin())
    >>> value, gradient = lp(lp.initial_point())
    >>> gradient.shape, sorted(lp.variables(lp.initial_point()))
    ((3,), ['lengthscale', 'noise', 'outputscale'])
    >>> mode = lp.mode()
    >>> mode.converged, bool(mode.value > value)
    (True, True)
    """

    def __init__(self, gp, X, Y=None, noise=None, *, priors: str = "default", backend: str = "auto"):
        for name, given, known in (("priors", priors, PRIORS), ("backend", backend, BACKENDS)):
            if given not in known:
                raise OptionError(f"{name} must be one of {', '.join(map(repr, known))}, got {given!r}.")
        self.gp = deepcopy(gp)
        self.evidence = self.gp.evidence(X, Y, noise)
        from_statistics = isinstance(X, (Statistics, OutputStatistics))
        freeze_unused_parameters(self.gp, self.evidence, from_statistics)
        data = None if from_statistics else self.gp.observe(X, Y, noise).double()
        scales = self.gp.observe(*make_surrogate_data(X, self.gp.noise_model.matrix())) if from_statistics else data
        if priors == "default":
            self.gp.register_priors(scales)
            with_prior = _parameters_with_prior(self.gp)
            for parameter in self.gp.parameters():
                if id(parameter) not in with_prior:  # not a hyperparameter, such as an inducing point
                    parameter.requires_grad_(False)
        initialization = initialize(self.gp, scales)
        self.vector = ParameterVector(self.gp, scales=initialization.scales)
        if len(self.vector) == 0:
            raise OptionError(
                "The model has no parameter to infer: all are fixed, or the evidence does not depend on them. Statistics hold "
                "for one set of lengthscales and, with full noise and missing outputs, for one noise and output matrix."
            )
        self.vector.keep(find_used_variables(self.vector, self.evidence, lambda: named_values(self.gp)))
        self.loadings = TriangularLoadings(self.gp, self.vector)
        self.log_num_modes = self.loadings.num_sign_flips * math.log(2)
        self._initial_points = self._find_initial_points(initialization, data)
        self._varying = self._find_varying_names()
        self.evaluations = self.failures = 0
        self.density = LogDensity(
            self.gp, self.evidence, X if from_statistics else data, self.vector, jacobian=True, backend=backend
        )
        self.backend = self.density.backend

    def __len__(self) -> int:
        return len(self.vector)

    def initial_point(self) -> np.ndarray:
        """Return u (k,) at the hyperparameters of the given model."""
        return self._initial_points[0].copy()

    def set(self, u: np.ndarray) -> None:
        """Write the hyperparameters of u (k,) into the model."""
        self.vector.set(self._check(u))

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log π(u) and its gradient (k,); −∞ and zeros if it cannot be evaluated."""
        self.evaluations += 1
        u = self._check(u)
        try:
            return self._add_loadings(*self.density(u), u)
        except FAILURES:
            return self._reject()

    def add_prior(self, value: Tensor | float, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Add the log density of u (k,) under the priors to a value at these hyperparameters; return sum and gradient (k,)."""
        return self._add_loadings(*self.density.add_prior(value), u)

    def _add_loadings(self, value: float, gradient: np.ndarray, u: np.ndarray) -> tuple[float, np.ndarray]:
        if len(self.loadings.indices):
            term, by_term = self.loadings(u)
            value, gradient = value + term, gradient + by_term
        # a sum is not finite if one of its terms is not
        return (value, gradient) if math.isfinite(value) and math.isfinite(gradient.sum()) else self._reject()

    def _reject(self) -> tuple[float, np.ndarray]:
        self.failures += 1
        return -np.inf, np.zeros(len(self))

    def _check(self, u: np.ndarray) -> np.ndarray:
        u = np.asarray(u, dtype=np.float64)
        if u.shape != (len(self),):
            raise InputError(
                f"u has shape {u.shape}, expected ({len(self)},). `initial_point()` returns such a vector."
            )
        return u

    def potential(self, u: Tensor) -> Tensor:
        """Return −log π(u) for a tensor u (k,), differentiable once, as Pyro's samplers need it."""
        return -_Density.apply(u, self)

    def mode(self, initial_points: np.ndarray | Sequence[np.ndarray] | None = None, max_iter: int = 500) -> Mode:
        """Maximize log π by L-BFGS-B, from the best of the given points u (k,) and the initial values from the data.

        `initial_points` defaults to the present hyperparameters. Raises `FactorizationError` if no point can be
        evaluated.
        """
        given = self._initial_points[:1] if initial_points is None else np.atleast_2d(initial_points)
        return find_mode(self.vector, self, [*map(self._check, given), *self._initial_points[1:]], max_iter)

    def hessian(self, u: np.ndarray) -> np.ndarray:
        """Return the second derivatives of log π at u (k, k), by 2k to 4k gradients; negative definite at a mode."""
        return compute_hessian(self, u)

    def variables(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inferred hyperparameters by name at u (k,): lengthscale, outputscale, output_matrix, noise, mean, …"""
        self.set(u)
        return {name: value for name, value in named_values(self.gp).items() if name in self._varying}

    def raw(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """Return the raw parameters by qualified name at u (k,)."""
        self.set(u)
        return {name: value.cpu().numpy() for name, value in self.vector.state().items()}

    def _find_initial_points(self, initialization: Initialization, data: Observations | None) -> list[np.ndarray]:
        """Return the present variables and, if there are data, those that the data suggest."""
        here, points = raw_state(self.gp), [self.vector.get()]
        for state in [] if data is None else initialization.values:
            load_raw_state(self.gp, state)
            self.loadings.rotate()
            points.append(self.vector.get())
        load_raw_state(self.gp, here)
        return points

    def _find_varying_names(self) -> frozenset[str]:
        """Return the names of the hyperparameters that depend on u; fixed ones are not part of the posterior."""
        here = named_values(self.gp)
        self.set(self.initial_point() + PROBE_STEP)
        there = named_values(self.gp)
        self.set(self.initial_point())
        return frozenset(name for name in here if not np.array_equal(here[name], there[name]))


class _Density(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u: Tensor, density: LogPosterior) -> Tensor:
        value, gradient = density(u.detach().cpu().numpy())
        ctx.gradient = u.new_tensor(gradient)
        return u.new_tensor(value)

    @staticmethod
    def backward(ctx, by_value: Tensor):
        return by_value * ctx.gradient, None


def named_values(gp) -> dict[str, np.ndarray]:
    """Return the hyperparameters of a model by name: kernel, mean (`mean`, `mean.slopes`), noise or likelihood."""
    return {name: read() for name, read in value_readers(gp).items()}


def value_readers(gp) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that read the hyperparameters of a model at their present values, by name."""
    readers: dict[str, Callable[[], Tensor]] = hyperparameter_readers(gp.kernel)
    for name, parameter, constraint in gp.mean.named_parameters_and_constraints():
        name = name.removeprefix("mean.").removeprefix("raw_")  # of a wrapped GPyTorch mean
        reader = partial(read_constrained_value, parameter, constraint)
        readers["mean" if name == "constant" else f"mean.{name}"] = reader
    noise = getattr(gp, "noise_model", None)
    if isinstance(noise, CurveNoise):
        readers |= {name: lambda name=name: noise.named_values()[name] for name in noise.named_values()}
    elif noise is not None and noise.is_trained:
        readers["noise"] = lambda: noise.value
    likelihood = getattr(gp, "likelihood", None)  # of a variational model
    if likelihood is not None:
        readers |= {name: lambda name=name: likelihood.variables()[name] for name in likelihood.variables()}
    parts = [part for part in (gp.kernel, gp.mean, noise, likelihood) if part is not None]
    known = {id(parameter) for part in parts for parameter in part.parameters()}
    for name, parameter, constraint in gp.named_parameters_and_constraints():
        if id(parameter) not in known:
            readers[name.replace("raw_", "")] = partial(read_constrained_value, parameter, constraint)
    return {name: partial(_read_array, reader) for name, reader in readers.items()}


@torch.no_grad()
def _read_array(reader: Callable[[], Tensor]) -> np.ndarray:
    return reader().detach().cpu().numpy()


def short_name(gp, path: str) -> str:
    """Return the name in `named_values` of the parameter at a path; the matrix, for a parameter inside an output matrix."""
    part, _, rest = path.partition(".")
    if part == "kernel":
        return parameter_name(gp.kernel, rest)
    owner, _, last = rest.rpartition(".")
    if part == "noise_model" and owner.startswith(("deviation", "channel_matrix")):  # of a `CurveNoise`
        return f"deviation.{'output_matrix' if owner == 'channel_matrix' else last.removeprefix('raw_')}"
    last = "noise" if owner.endswith("noise_model") or part == "noise_model" else last.removeprefix("raw_")
    if part == "mean":
        return "mean" if last == "constant" else f"mean.{last}"
    if owner.startswith("likelihoods."):  # one per output
        return f"{last}_{owner.split('.')[1]}"
    return last if part in ("likelihood", "noise_model") else path.replace("raw_", "")


def _parameters_with_prior(gp) -> set[int]:
    """Return the identities of the parameters that have a prior."""
    return {id(parameter) for site in trained_sites(gp) for parameter in site.parameters.values()}
