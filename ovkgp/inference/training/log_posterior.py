"""The posterior density of the hyperparameters as one function of one vector.

In well-scaled variables u (`ParameterVector`: logarithms of what is positive) it is

    log π(u) = log p(Y | θ(u)) + log p(θ(u)) + log |dθ / du|,

and the samplers see nothing but its value and gradient. Where all priors are proper, ∫ π(u) du = p(Y).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector, hyperparameters
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics, make_surrogate_data
from ovkgp.inference.training.free_parameters import NUDGE, TriangularLoadings, freeze_unused, read_entries
from ovkgp.inference.training.initialization import parameter_scales, register_data_priors
from ovkgp.inference.training.lbfgs import FAILURES, Mode, find_mode, second_derivatives
from ovkgp.inference.training.log_prior import RawLogPrior
from ovkgp.inference.training.numpy_density import NumpyDensity, numpy_density
from ovkgp.inference.training.numpy_values import NoAnalyticForm
from ovkgp.inference.training.prior_sites import trained_sites

PRIORS = ("default", "given")
BACKENDS = ("auto", "torch")
NOWHERE = -np.inf, np.zeros(1)
"""Where there is no density."""


class LogPosterior:
    """log π(u) of a model and its data.

    Parameters on which the evidence does not depend (the noise of the model where it is known for each entry; for
    `Statistics` all that would make other statistics, such as lengthscales) are kept at their values. A parameter without
    a prior has a flat density in its constrained value; free loadings are kept lower triangular (`rotations`). Where the
    evidence cannot be computed, or a prior has no density, log π is −∞. On the iterative road the evidence is an estimate with
    fixed probes: the same at every call, but its gradient is that of the exact evidence up to the error of the probes.

    Args:
        gp: a model with `evidence(X, Y, noise)`; copied, and left alone.
        X, Y, noise: as for `gp.log_evidence`; X may be `Statistics`, without Y.
        priors: "default" gives each trained parameter without a prior a weakly informative one, scaled by the data;
            "given" takes those that are registered, and nothing else.
        backend: "auto" takes the plain functions of `numpy_density` where the model has them; "torch" never does.

    Attributes:
        gp: the copy, where `place` puts hyperparameters.
        backend: "numpy", or "torch" where some part of the model is in no table.
        evaluations, failures: how many calls there were, and how many of them gave −∞.
        log_copies: the logarithm of the number of equal modes that the signs of loadings make.

    Cost: of a call, that of the evidence and its gradient on its road, plus O(k) for k variables.

    Raises:
        OptionError: there is nothing to infer, since no trained parameter changes the evidence.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.training.log_posterior import LogPosterior
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> lp = LogPosterior(OperatorValuedGP(ScaleKernel(RBFKernel()), mean="zero"), X, X.sin())
        >>> value, gradient = lp(lp.start())
        >>> gradient.shape, sorted(lp.variables(lp.start()))
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
        is_gathered = isinstance(X, (Statistics, OutputStatistics))
        freeze_unused(self.gp, self.evidence, is_gathered)
        data = None if is_gathered else self.gp.observe(X, Y, noise).double()
        scales = self.gp.observe(*make_surrogate_data(X, self.gp.noise_model.matrix())) if is_gathered else data
        if priors == "default":
            _register_priors(self.gp, scales)
        self.vector = ParameterVector(self.gp, sizes=parameter_scales(self.gp, scales))
        if len(self.vector) == 0:
            raise OptionError(
                "there is nothing to infer: every parameter is fixed, or the evidence does not depend on it (statistics hold for "
                "one set of lengthscales and, gathered with full noise and missing outputs, for one noise and output matrix)."
            )
        self.vector.keep(read_entries(self.vector, self.evidence, lambda: named_values(self.gp)))
        self.loadings = TriangularLoadings(self.gp, self.vector)
        self.log_copies = self.loadings.num_reflections * math.log(2)
        self.prior = RawLogPrior(self.gp)
        covered = _covered(self.gp)
        self._flat = [id(entry.parameter) not in covered for entry in self.vector.entries]
        self._starts = self._find_starts(data)
        self._varying = self._find_varying()
        self.evaluations = self.failures = 0
        self._plain = self._find_plain(X if is_gathered else data) if backend == "auto" else None
        self.backend = "torch" if self._plain is None else "numpy"

    def _find_plain(self, data: Observations | Statistics | OutputStatistics) -> NumpyDensity | None:
        if type(self.gp) is not OperatorValuedGP:  # another may mean something else by its evidence
            return None
        try:
            return numpy_density(self.gp, data, self.vector)
        except NoAnalyticForm:
            return None

    def __len__(self) -> int:
        return len(self.vector)

    def start(self) -> np.ndarray:
        """u (k,) at the hyperparameters that the model came with."""
        return self._starts[0].copy()

    def place(self, u: np.ndarray) -> None:
        """Give the model the hyperparameters of u (k,)."""
        self.vector.set(self._checked(u))

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """log π(u) and its gradient (k,); −∞ and zeros where it cannot be evaluated."""
        self.evaluations += 1
        density, gradient = self._evaluate(self._checked(u))
        if not (np.isfinite(density) and np.isfinite(gradient).all()):
            self.failures += 1
            return -np.inf, np.zeros(len(self))
        return density, gradient

    def _checked(self, u: np.ndarray) -> np.ndarray:
        u = np.asarray(u, dtype=np.float64)
        if u.shape != (len(self),):
            raise InputError(f"u has {len(self)} variables, got shape {u.shape}; `start()` gives one such vector.")
        return u

    def _evaluate(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        if self._plain is None:
            return self._by_modules(u)
        try:
            density, gradient = self._plain(u)
        except np.linalg.LinAlgError:
            return self._by_modules(u)  # they know what to add to a matrix that is almost positive definite
        if not np.isfinite(density):
            return density, gradient
        if self._plain.priors is None:
            self.place(u)
            prior, by_prior = self.add_prior(0.0, u)
            return density + prior, gradient + by_prior
        loadings, by_loadings = self.loadings(u)
        return density + loadings, gradient + by_loadings

    def _by_modules(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        self.place(u)
        if not self.vector.is_finite():
            return NOWHERE
        try:
            with torch.enable_grad():
                value = self.evidence()
            return self.add_prior(value, u) if torch.isfinite(value) else NOWHERE
        except FAILURES:
            return NOWHERE

    def add_prior(self, value: Tensor | float, u: np.ndarray) -> tuple[float, np.ndarray]:
        """A value at the hyperparameters of u (k,), which must be those of the model, plus the log-density of u under the
        priors; and the gradient of the sum (k,)."""
        self.vector.clear_gradient()
        try:
            with torch.enable_grad():
                value = value + self.prior()
        except ValueError as error:  # torch's distributions refuse values outside of their support
            if "support" not in str(error):
                raise
            return NOWHERE
        if torch.is_tensor(value) and value.requires_grad:
            value.backward()
        slopes, by_slopes = self.vector.log_slopes(self._flat)
        loadings, by_loadings = self.loadings(u)
        total = float(torch.as_tensor(value).detach()) + slopes + loadings
        return total, self.vector.gradient() + by_slopes + by_loadings

    def potential(self, u: Tensor) -> Tensor:
        """−log π(u) for a tensor u (k,), differentiable once: what Pyro's samplers want."""
        return -_Density.apply(u, self)

    def mode(self, start: np.ndarray | Sequence[np.ndarray] | None = None, max_iter: int = 500) -> Mode:
        """The largest density that a climb with L-BFGS-B finds.

        Args:
            start: u (k,), or several; the present hyperparameters where it is None. The climb begins at the best of these
                and of what the data suggest (`gp.start`).
            max_iter: the most iterations.

        Raises:
            FactorizationError: the density could not be evaluated at any start.
        """
        given = self._starts[:1] if start is None else np.atleast_2d(np.asarray(start, dtype=np.float64))
        return find_mode(self.vector, self, [*map(self._checked, given), *self._starts[1:]], max_iter)

    def hessian(self, u: np.ndarray) -> np.ndarray:
        """The second derivatives of log π at u (k, k), by central differences of the gradient: negative definite at a mode.

        Cost: 2k to 4k gradients.
        """
        return second_derivatives(self, u)

    def variables(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """The inferred hyperparameters by name at u (k,): lengthscale, outputscale, output_matrix, noise, mean, …"""
        self.place(u)
        return {name: value for name, value in named_values(self.gp).items() if name in self._varying}

    def raw(self, u: np.ndarray) -> dict[str, np.ndarray]:
        """The raw parameters by qualified name at u (k,)."""
        self.place(u)
        return {name: value.cpu().numpy() for name, value in self.vector.state().items()}

    def _find_starts(self, data: Observations | None) -> list[np.ndarray]:
        """The present variables and, where there are data, those that they suggest."""
        here = self.vector.get()
        if data is None or not hasattr(self.gp, "start"):
            return [here]
        kept = {name: parameter.detach().clone() for name, parameter in self.gp.named_parameters()}
        self.gp.start(data.X, data.Y)
        self.loadings.turn()
        there = self.vector.get()
        with torch.no_grad():  # those that are not trained too
            for name, parameter in self.gp.named_parameters():
                parameter.copy_(kept[name])
        return [here, there]

    def _find_varying(self) -> set[str]:
        """The names of what depends on u: a fixed hyperparameter is not part of the posterior."""
        here = named_values(self.gp)
        self.place(self.start() + NUDGE)
        there = named_values(self.gp)
        self.place(self.start())
        return {name for name in here if not np.array_equal(here[name], there[name])}


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
    """The hyperparameters of a model by name: those of its kernel, of its mean (`mean`, `mean.slopes`), and of its noise
    or likelihood (`noise`, `scale`, …)."""
    values = {name: value.cpu().numpy() for name, value in hyperparameters(gp.kernel).items()}
    for name, parameter, constraint in gp.mean.named_parameters_and_constraints():
        name = name.removeprefix("mean.").removeprefix("raw_")  # of a wrapped GPyTorch mean
        value = parameter if constraint is None else constraint.transform(parameter)
        values["mean" if name == "constant" else f"mean.{name}"] = value.detach().cpu().numpy().copy()
    noise = getattr(gp, "noise_model", None)
    if noise is not None and noise.is_trained:
        values["noise"] = noise.value.detach().cpu().numpy()
    likelihood = getattr(gp, "likelihood", None)  # of a variational model
    if likelihood is not None:
        values |= {name: value.cpu().numpy() for name, value in likelihood.variables().items()}
    parts = [part for part in (gp.kernel, gp.mean, noise, likelihood) if part is not None]
    known = {id(parameter) for part in parts for parameter in part.parameters()}
    for name, parameter, constraint in gp.named_parameters_and_constraints():
        if id(parameter) not in known:
            value = parameter if constraint is None else constraint.transform(parameter)
            values[name.replace("raw_", "")] = value.detach().cpu().numpy().copy()
    return values


def _register_priors(gp, data: Observations) -> None:
    register_data_priors(gp, data.X, data.Y)
    if (likelihood := getattr(gp, "likelihood", None)) is not None:  # of a variational model
        from ovkgp.inference.likelihoods import register_likelihood_priors

        register_likelihood_priors(likelihood, data.Y)
    covered = _covered(gp)
    for parameter in gp.parameters():
        if id(parameter) not in covered:  # no hyperparameter, such as an inducing point
            parameter.requires_grad_(False)


def _covered(gp) -> set[int]:
    """The parameters that a prior looks at, by identity."""
    return {id(parameter) for site in trained_sites(gp) for parameter in site.parameters.values()}
