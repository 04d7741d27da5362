"""Posteriors of the exact kernel: by any solver, by Kronecker products, and of independent outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import KernelTypeError, OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.inference.algebra.dense import kronecker_in_form
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.fields import FieldPosteriors
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    FunctionDraws,
    Posterior,
    Process,
    draw_normal,
    prior_covariance,
    spawn_seeds,
    subtract_explained,
)
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel


class ProcessPosterior(FieldPosteriors, Posterior):
    """Posterior of the observed process, or of one jointly Gaussian with it, which has no noise."""

    def __init__(self, process: Process, mean: OutputMean, output_noise: Tensor, num_dims: int):
        self.process, self.mean, self.output_noise = process, mean, output_noise
        self.num_outputs, self.num_dims = process.num_outputs, num_dims

    @property
    def noise(self) -> Tensor | None:
        return self.output_noise if self.process.is_observed else None

    @property
    def draw_noise(self) -> Callable[[], Tensor] | None:
        """Function that returns the noise of `FunctionDraws`; None if the process was not observed itself."""
        return None if self.noise is None else lambda: self.output_noise

    def prior_mean(self, X: Tensor) -> Tensor:
        """Compute the prior mean of the process at X, (m, q)."""
        return self.process.prior_mean(self.mean, X)


class ExactPosterior(ProcessPosterior):
    """Posterior of a process by a solver for C⁻¹ on the observed entries of `data`, in float64."""

    def __init__(self, process: Process, solver, data: Observations, mean: OutputMean, output_noise: Tensor):
        super().__init__(process, mean, output_noise, data.X.shape[1])
        self.solver, self.data = solver, data
        self.log_evidence, self.log_evidence_error = float(solver.log_density), solver.standard_error

    @property
    def X(self) -> Tensor:
        """Training inputs (n, d)."""
        return self.data.X

    def for_process(self, process: Process) -> ExactPosterior:
        """Return the posterior of another process that is jointly Gaussian with the observed one."""
        return ExactPosterior(process, self.solver, self.data, self.mean, self.output_noise)

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // (self.solver.alpha.numel() * self.num_outputs)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = self.process.cross(X, self.X)
        cross = cross if form == "none" else to_dense(cross)
        mean = self.prior_mean(X) + (cross @ self.solver.alpha.flatten()).unflatten(-1, (-1, self.num_outputs))
        if form == "none":
            return mean, None
        explained = self.solver.explained(cross, form, num_outputs=self.num_outputs)
        return mean, subtract_explained(self.process.prior(X, form), explained, form)

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        """Compute K(X, X_train) c for coefficients c (n·p, k): (m·q, k)."""
        return self.process.cross(X, self.X) @ coefficients

    def sample_functions(self, k: int = 1, *, random_state=None, num_frequencies: int = 2000) -> FunctionDraws:
        """Draw k random functions; the prior is approximated by `num_frequencies` random features."""
        k, seeds = check_integer("the number of draws", k), spawn_seeds(random_state, 3)
        for_features, for_weights, for_noise = seeds
        prior = make_prior_features(self.process.kernel, num_frequencies, self.num_dims, for_features)
        weights = draw_normal((k, prior.num_features), for_weights, self.X)
        noise, known = draw_normal((k, *self.solver.alpha.shape), for_noise, self.X), self.data.noise
        noise = noise @ torch.linalg.cholesky(self.output_noise).mT if known is None else noise * known.sqrt()
        drawn = (prior(self.X) @ weights.mT).mT.unflatten(-1, self.solver.alpha.shape)
        coefficients = self.solver.alpha.flatten().unsqueeze(-1) - self.solver.solve((drawn + noise).flatten(1).mT)

        features = prior.freeze() if self.process.is_observed else partial(self.process.features, prior)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = features(X) @ weights[index].mT + self.propagate(X, coefficients[:, index])
            return self.prior_mean(X) + values.mT.unflatten(-1, (-1, self.num_outputs))

        return FunctionDraws(evaluate, k, self.num_dims, self.draw_noise)


class KroneckerPosterior(ExactPosterior):
    """Posterior of a kernel k(x, z) Γ given complete outputs, from factors of K and Γ; no np × np matrix is formed."""

    def __init__(self, process: Process, solver, data: Observations, mean: OutputMean, output_noise: Tensor):
        super().__init__(process, solver, data, mean, output_noise)
        ((self.scalar, self.output_matrix),) = components(process.kernel)

    def max_chunk_rows(self, form: str) -> int:
        return CHUNK_ENTRIES // max(len(self.X), self.num_outputs**2)

    def noise_path(self, multipliers) -> Tensor:
        """Compute log p(Y) with the noise multiplied by each of `multipliers` (k,), from the same eigenvalues (BT-76)."""
        return self.solver.path(multipliers)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = to_dense(evaluate_kernel(self.scalar, X, self.X))
        mean = self.prior_mean(X) + cross @ (self.solver.alpha @ self.output_matrix)
        if form == "none":
            return mean, None
        scalar = prior_covariance(self.scalar, X, 1, "full" if form == "full" else "diag")
        prior = kronecker_in_form(scalar, self.output_matrix, form)
        return mean, subtract_explained(prior, self.solver.explained(cross, form), form)

    def propagate(self, X: Tensor, coefficients: Tensor) -> Tensor:
        blocks = coefficients.unflatten(0, self.solver.alpha.shape)  # (n, p, k)
        mixed = torch.einsum("npk,pq->nqk", blocks, self.output_matrix).flatten(1)
        return (to_dense(evaluate_kernel(self.scalar, X, self.X)) @ mixed).unflatten(-1, blocks.shape[1:]).flatten(0, 1)


def make_prior_features(kernel: Kernel, num_frequencies: int, num_dims: int, seed: int) -> ORFF:
    """Make random features of the prior, or raise `OptionError` if the kernel has none."""
    try:
        return ORFF(kernel, num_frequencies, num_dims=num_dims, random_state=seed).double()
    except (SpectralError, KernelTypeError) as error:
        raise OptionError(
            f"Random functions are not supported with this kernel, which has no random features: {error} Use sample(X, k) for joint draws at given points."
        ) from error


class IndependentPosterior(Posterior):
    """p posteriors of one output each as one posterior of p outputs."""

    def __init__(self, parts: list[Posterior]):
        self.parts = parts
        self.num_outputs, self.num_dims = len(parts), parts[0].num_dims
        self.log_evidence = sum(part.log_evidence for part in parts)
        self.log_evidence_error = math.hypot(*(part.log_evidence_error for part in parts))

    @property
    def noise(self) -> Tensor:
        return torch.block_diag(*(part.noise for part in self.parts))

    @property
    def data(self) -> Observations:
        """Observations of all outputs (only if the parts are exact)."""
        return _join_outputs([part.data for part in self.parts])

    def whitened_residuals(self) -> Tensor:
        return torch.cat([part.whitened_residuals() for part in self.parts], -1)

    def forget_data(self) -> None:
        for part in self.parts:
            part.forget_data()

    def max_chunk_rows(self, form: str) -> int:
        return min(part.max_chunk_rows(form) for part in self.parts)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        means, covariances = zip(*(part.latent(X, form) for part in self.parts), strict=True)
        mean = torch.cat(means, -1)
        if form == "none":
            return mean, None
        if form == "diag":
            return mean, torch.cat(covariances, -1)
        if form == "output":
            return mean, torch.diag_embed(torch.cat(covariances, -1).squeeze(-2))
        blocks = torch.diag_embed(torch.stack(covariances, -1))  # (m, m, p, p)
        return mean, blocks.transpose(1, 2).flatten(2).flatten(0, 1)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        k, part_seeds = check_integer("the number of draws", k), spawn_seeds(random_state, len(self.parts))
        pairs = zip(self.parts, part_seeds, strict=True)
        draws = [part.sample_functions(k, random_state=seed) for part, seed in pairs]

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            return torch.cat([draw._evaluate(X, index) for draw in draws], -1)

        def evaluate_pairs(X: Tensor, index: Tensor) -> Tensor:
            return torch.cat([draw._evaluate_pairs(X, index) for draw in draws], -1)

        def noise() -> Tensor:
            return self.join_noise(torch.cat([draw.noise.flatten(1) for draw in draws], -1))

        return FunctionDraws(evaluate, k, self.num_dims, noise, evaluate_pairs)

    def join_noise(self, variances: Tensor) -> Tensor:
        """Return the noise covariances (k, p, p) of outputs with these variances (k, p)."""
        return torch.diag_embed(variances)


def stored_observations(posterior: Posterior) -> Observations | None:
    """Return the observations that a posterior stores; None if it has features or inducing points instead."""
    if isinstance(posterior, MixturePosterior):
        if posterior.data is not None:
            return posterior.data
        # a loaded model with features stores no rows
        given = getattr(getattr(posterior.parts, "condition", None), "keywords", {})
        if torch.is_tensor(given.get("X")) and torch.is_tensor(given.get("Y")):
            return Observations(given["X"], given["Y"], given.get("noise"))
        return None
    if isinstance(posterior, IndependentPosterior):
        return posterior.data if all(isinstance(part, ExactPosterior) for part in posterior.parts) else None
    return posterior.data if isinstance(posterior, ExactPosterior) else None


def _join_outputs(parts: list[Observations]) -> Observations:
    """Join outputs that were observed at different rows, (n_a, 1) each, into one table."""
    if all(torch.equal(part.X, parts[0].X) for part in parts):
        noise = None if parts[0].noise is None else torch.cat([part.noise for part in parts], 1)
        return Observations(parts[0].X, torch.cat([part.Y for part in parts], 1), noise)
    keys = [_row_keys(part.X) for part in parts]
    order = {key: i for i, key in enumerate(dict.fromkeys(key for of_part in keys for key in of_part))}
    X = parts[0].X.new_empty(len(order), parts[0].X.shape[1])
    Y = X.new_full((len(order), len(parts)), torch.nan)
    noise = None if parts[0].noise is None else torch.ones_like(Y)
    for a, (part, of_part) in enumerate(zip(parts, keys, strict=True)):
        rows = [order[key] for key in of_part]
        X[rows], Y[rows, a] = part.X, part.Y[:, 0]
        if noise is not None:
            noise[rows, a] = part.noise[:, 0]
    return Observations(X, Y, noise)


def _row_keys(X: Tensor) -> list[tuple]:
    """Return each row with the number of equal rows before it."""
    counts: dict[tuple, int] = {}
    keys = []
    for row in map(tuple, X.tolist()):
        counts[row] = counts.get(row, -1) + 1
        keys.append((row, counts[row]))
    return keys
