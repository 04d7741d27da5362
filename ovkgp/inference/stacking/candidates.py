"""Candidate models of independent outputs, and their weights in a mixture.

A candidate gives every output its own Gaussian process with mean zero and the kernel

    k(x, z) = 1 + v x·z/d + s² κ(|x − z|/ℓ)

on standardized data: the constant 1 is the prior variance of the mean, and the linear term is optional. The mixture Σ_k w_k p_k(y) has
the weights that maximize the density of held-out rows, with one pseudo-count per candidate ("stacking", Yao et al. 2018):

    Σ_i log Σ_k w_k p_k(y_i | y_−i) + Σ_k log w_k,

where the density of a row is the product of the marginal densities of its observed outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel

from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import Posterior
from ovkgp.inference.stacking.output_draws import Draws, OutputProblem
from ovkgp.inference.stacking.output_posterior import IndependentMixture, OutputPosterior
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.kernel_parameters import DEFAULT_PRIORS, WIDE_PRIORS, PriorSettings
from ovkgp.kernels import IndependentKernel
from ovkgp.kernels.records import make_scalar_kernel

NUM_FOLDS = 5  # folds of rows that are held out, if the hyperparameters are those of the mode
MAX_FOLD_ROWS = 1000  # with more rows, leave-one-out at the mode is used
FOLD_ITERATIONS = 15  # iterations of L-BFGS from the mode of all rows, for each fold
NUM_WEIGHT_STEPS = 200  # steps of expectation maximization
MAX_RESIDUAL = 4.0  # standardized residuals are clipped at this size before their correlation is computed


@dataclass(frozen=True)
class Candidate:
    """Kernel of a candidate: name of κ, whether each column has its own lengthscale, the linear term, and its priors."""

    name: str
    base: str
    has_lengthscales: bool
    is_linear: bool
    priors: PriorSettings = DEFAULT_PRIORS

    def make_kernel(self, num_dims: int) -> Kernel:
        """Make the scalar kernel for standardized data."""
        constant = ConstantKernel().double()
        constant.constant = torch.ones(1, dtype=torch.float64)
        constant.raw_constant.requires_grad_(False)
        base = make_scalar_kernel(self.base, num_dims if self.has_lengthscales else None)
        terms = [constant, *([LinearKernel()] if self.is_linear else []), ScaleKernel(base)]
        return AdditiveKernel(*terms).double()

    def make_template(self, num_dims: int, is_noise_known: bool) -> OperatorValuedGP:
        """Make a model of one output with the priors of this candidate."""
        gp = OperatorValuedGP(self.make_kernel(num_dims), mean="zero", noise=1.0 if is_noise_known else "shared")
        register_default_priors(gp.kernel, num_dims, None, self.priors)
        register_noise_prior(gp.noise_model, None, self.priors)
        return gp

    def make_gp(self, num_dims: int, num_outputs: int) -> OperatorValuedGP:
        """Make the model of all outputs, with priors."""
        kernel = IndependentKernel([self.make_kernel(num_dims) for _ in range(num_outputs)])
        gp = OperatorValuedGP(kernel, mean="zero", noise="per_output")
        register_default_priors(gp.kernel, num_dims, None, self.priors)
        register_noise_prior(gp.noise_model, None, self.priors)
        return gp


def default_candidates(base: str | None = None) -> tuple[Candidate, ...]:
    """Return the candidates of independent outputs; with `base`, all have this kernel."""
    smooth, rough, wide = (base, base, base) if base else ("matern52", "matern32", "rq")
    return (
        Candidate(f"linear + {smooth}", smooth, has_lengthscales=False, is_linear=True),
        Candidate(f"{rough}, ARD", rough, has_lengthscales=True, is_linear=False),
        Candidate(f"linear + {wide}, ARD", wide, has_lengthscales=True, is_linear=True, priors=WIDE_PRIORS),
    )


@dataclass
class FittedCandidate:
    """A trained candidate.

    `make_gp` makes the model at the mode, `log_density` (n, p) the log densities of the entries given the other rows, and `scores` (n, p) their
    standardized residuals, NaN where missing. `draws` are those of each output.
    """

    name: str
    make_gp: Callable[[], OperatorValuedGP]
    posterior: Posterior
    log_density: np.ndarray
    scores: np.ndarray
    draws: list[Draws]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the training."""
        return any(draws.interrupted for draws in self.draws)


class IndependentFit:
    """Training of candidates of independent outputs on standardized data X (n, d), Y (n, p) with NaN if missing."""

    def __init__(self, candidate: Candidate, data: Observations):
        self.candidate, self.data, self.problems = candidate, data, {}

    def outputs(self):
        """Yield the problem, the values (n_a,), the known noise (n_a,) or None, and the rows of each output."""
        data = self.data
        for a in range(data.num_outputs):
            rows = data.observed[:, a]
            key = rows.numpy().tobytes()
            if key not in self.problems:
                template = self.candidate.make_template(data.X.shape[1], data.noise is not None)
                self.problems[key] = OutputProblem(template, data.X[rows])
            known = None if data.noise is None else data.noise[rows, a].numpy()
            yield self.problems[key], data.Y[rows, a].numpy(), known, rows.numpy()

    def train(self, *, average: bool = True) -> FittedCandidate:
        """Train and condition every output, with draws around the mode if `average` and they are affordable."""
        found = []
        for problem, y, known, rows in self.outputs():
            average = average and not any(draws.interrupted for *_, draws in found)
            found.append((problem, y, known, rows, problem.draw(y, known, average=average)))
        shape = self.data.Y.shape
        log_density, scores = np.full(shape, np.nan), np.full(shape, np.nan)
        parts = []
        for a, (problem, y, known, rows, draws) in enumerate(found):
            part = OutputPosterior(problem, y, known, draws)
            at_mode = len(draws.weights) == 1
            density = _fold_density(problem, self.candidate, y, known, draws) if at_mode else part.held_out_density()
            log_density[rows, a], scores[rows, a] = density, part.held_out_scores()
            parts.append(part)
        all_draws = [draws for *_, draws in found]
        return FittedCandidate(
            self.candidate.name, partial(self._mode, found), IndependentMixture(parts), log_density, scores, all_draws
        )

    def restore(self, draws: list[Draws]) -> IndependentMixture:
        """Condition every output at given draws."""
        pairs = zip(self.outputs(), draws, strict=True)
        return IndependentMixture([OutputPosterior(*one[:3], own) for one, own in pairs])

    def _mode(self, found) -> OperatorValuedGP:
        """Return the model of all outputs at the modes."""
        gp = self.candidate.make_gp(self.data.X.shape[1], self.data.num_outputs)
        for a, (problem, _, known, _, draws) in enumerate(found):
            problem.vector.set(draws.mode)
            gp.kernel.kernels[a].load_state_dict(problem.gp.kernel.state_dict(), strict=False)
            noise = problem.gp.noise if known is None else torch.tensor(known.mean())
            with torch.no_grad():
                gp.noise_model.log_scale[a] = 0.5 * noise.log()
        return gp


def _fold_density(
    problem: OutputProblem, candidate: Candidate, y: np.ndarray, known: np.ndarray | None, draws: Draws
) -> np.ndarray:
    """Return the log density (n,) of each entry given the other folds, with the hyperparameters trained again on these."""
    n = len(y)
    if n > MAX_FOLD_ROWS or n < 2 * NUM_FOLDS:
        return OutputPosterior(problem, y, known, draws).held_out_density()
    density = np.empty(n)
    fold = np.random.default_rng(0).permutation(n) % NUM_FOLDS
    template = problem.gp
    for index in range(NUM_FOLDS):
        kept, left = fold != index, fold == index
        part = OutputProblem(template, torch.from_numpy(problem.X[kept]))
        own_known = None if known is None else known[kept]
        own = part.draw_from(draws.mode, y[kept], own_known, FOLD_ITERATIONS)
        posterior = OutputPosterior(part, y[kept], own_known, own)
        mean, variance = posterior.moments(torch.from_numpy(problem.X[left]), "diag", noise=known is None)
        variance = variance[0].numpy() + (0.0 if known is None else known[left])
        density[left] = -0.5 * ((y[left] - mean[0].numpy()) ** 2 / variance + np.log(variance) + math.log(2 * math.pi))
    return density


def stacking_weights(log_density: np.ndarray) -> np.ndarray:
    """Return the weights (K,) that maximize Σ_i log Σ_k w_k p_ik + Σ_k log w_k for log p (n, K), by expectation maximization."""
    densities = np.exp(log_density - log_density.max(1, keepdims=True))
    n, count = densities.shape
    weights = np.full(count, 1 / count)
    for _ in range(NUM_WEIGHT_STEPS):
        shares = densities * weights
        weights = ((shares / shares.sum(1, keepdims=True)).sum(0) + 1) / (n + count)
    return weights


def residual_correlation(scores: np.ndarray) -> np.ndarray:
    """Return the correlation (p, p) of standardized residuals (n, p), NaN if missing, shrunk to I by p / (n + p)."""
    n, p = scores.shape
    observed = np.isfinite(scores)
    clipped = np.where(observed, np.clip(np.nan_to_num(scores), -MAX_RESIDUAL, MAX_RESIDUAL), 0.0)
    counts = observed.T.astype(float) @ observed
    covariance = clipped.T @ clipped / np.maximum(counts, 1)
    std = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(np.where(std > 0, std, 1.0), np.where(std > 0, std, 1.0))
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    if values[0] < 0:  # from entries that were observed at different rows
        correlation = (vectors * np.maximum(values, 0.0)) @ vectors.T
        std = np.sqrt(np.diag(correlation))
        correlation /= np.outer(std, std)
    shrinkage = p / (n + p)
    return (1 - shrinkage) * correlation + shrinkage * np.eye(p)
