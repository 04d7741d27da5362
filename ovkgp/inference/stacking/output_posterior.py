"""Posterior of one output averaged over weighted draws of its hyperparameters, and of several such outputs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel
from scipy.linalg import blas, lapack
from scipy.special import logsumexp
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.model.observations import Observations, validate_inputs
from ovkgp.inference.posteriors.exact import IndependentPosterior, make_prior_features
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.mixture import DrawAllocation
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    FunctionDraws,
    Posterior,
    draw_normal,
    spawn_seeds,
    subtract_explained,
)
from ovkgp.inference.posteriors.prediction import (
    JoinedPrediction,
    MixturePrediction,
    Prediction,
    check_form,
    normal_cdf,
)
from ovkgp.inference.stacking.output_draws import Draws, OutputProblem
from ovkgp.inference.training.numpy_values import BLOCK_ENTRIES
from ovkgp.kernels.evaluation import evaluate_kernel

JITTER = 1e-9  # added to the diagonal of a covariance that is not positive definite, relative to its mean
MIN_TAIL = 1e-15  # smallest tail probability of a normal score
NUM_PRIOR_FREQUENCIES = 2000  # random frequencies of the stationary part of a random function


class OutputPosterior(Posterior):
    """Gaussian process with one output given data, averaged over S weighted draws of its hyperparameters.

    Complexity: O(S n³) once; O(S n²) per test point.
    """

    num_outputs = 1
    no_residuals = (
        "Whitened residuals are not defined for an average over hyperparameter draws. Use a named kernel with "
        'hyperparameters="evidence".'
    )

    def __init__(self, problem: OutputProblem, y: np.ndarray, known: np.ndarray | None, draws: Draws):
        self.problem, self.y, self.known, self.draws = problem, y, known, replace(draws, factors=None, metric=None)
        self.num_dims = problem.X.shape[1]
        factors, kept = draws.factors, np.ones(len(draws.thetas), dtype=bool)
        if factors is None:
            evidence = problem.density(y, known).evidence
            found = [_factorize(evidence.covariance(theta)) for theta in draws.thetas]
            kept = np.array([chol is not None for chol in found])
            if not kept.any():
                raise FactorizationError(
                    "The covariance matrix of the data is not positive definite at any draw. Increase the noise."
                )
            factors = np.stack([chol for chol in found if chol is not None])
        self.thetas, weights = draws.thetas[kept], draws.weights[kept]
        self.weights = weights / weights.sum()
        self.chol = torch.from_numpy(factors)
        # L.T is the upper factor in the order of Fortran; torch would copy all factors
        self.alpha = torch.from_numpy(np.stack([lapack.dpotrs(chol.T, y, lower=0)[0] for chol in factors]))
        if known is None:
            self.noise_variances = np.array([problem.noise.variances(theta)[0][0] for theta in self.thetas])
        else:
            self.noise_variances = np.full(len(factors), known.mean())

    @property
    def noise(self) -> Tensor:
        return torch.tensor([[float(self.weights @ self.noise_variances)]], dtype=torch.float64)

    @cached_property
    def log_evidence(self) -> float:
        """Weighted mean of log p(y | θ_s)."""
        quadratic = self.alpha @ torch.from_numpy(self.y)
        logdet = 2 * self.chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        densities = gaussian_log_density(quadratic, logdet, len(self.y))
        return float(torch.from_numpy(self.weights) @ densities)

    @cached_property
    def leave_one_out(self) -> LeaveOneOut:
        """Means, standard deviations and log densities (S, n) of each entry given the others, at each draw."""
        workspace = np.empty_like(self.chol[0].numpy())
        diagonal = torch.from_numpy(np.stack([_inverse_diagonal(chol, workspace) for chol in self.chol.numpy()]))
        deviation = self.alpha / diagonal
        log_density = gaussian_log_density(self.alpha * deviation, -diagonal.log())
        return LeaveOneOut(torch.from_numpy(self.y) - deviation, diagonal.rsqrt(), log_density)

    def held_out_density(self) -> np.ndarray:
        """Return log p(y_i | y_−i) (n,) averaged over the draws: −log Σ_s w_s / p(y_i | y_−i, θ_s)."""
        return -logsumexp(-self.leave_one_out.log_density.numpy() + np.log(self.weights)[:, None], axis=0)

    def leave_groups_out(self, groups: Tensor) -> Tensor:
        """Predict each entry from those of other groups (n,): mean, standard deviation and P(y′ ≤ y), as (3, n).

        The draws are weighted by w_s / p(y_i | y_−i, θ_s), with y_i the entries of the group, truncated at S^(−½).
        """
        y = torch.from_numpy(self.y)
        if int(groups.max()) + 1 == len(y):
            mean, std, log_density = self.leave_one_out
        else:
            data, found = Observations(torch.from_numpy(self.problem.X), y.unsqueeze(-1)), []
            for alpha, chol in zip(self.alpha, self.chol, strict=True):
                inverse = torch.cholesky_inverse(chol)
                blocks = lambda rows, inverse=inverse: inverse[rows.unsqueeze(-1), rows.unsqueeze(-2)]  # noqa: E731
                found.append(LeaveGroupOut.from_groups(data, alpha.unsqueeze(-1), groups, blocks))
            mean, std = (torch.stack([getattr(one, name)[:, 0] for one in found]) for name in ("mean", "std"))
            log_density = torch.stack([one.log_density for one in found])[:, groups]
        weights = (torch.from_numpy(np.log(self.weights)).unsqueeze(-1) - log_density).softmax(0)
        weights = weights.clamp_max(len(mean) ** -0.5)
        weights = weights / weights.sum(0)
        center = (weights * mean).sum(0)
        variance = (weights * (std.square() + (mean - center).square())).sum(0)
        return torch.stack([center, variance.sqrt(), (weights * normal_cdf(y, mean, std)).sum(0)])

    def held_out_scores(self) -> np.ndarray:
        """Return the standardized leave-one-out residuals (n,), averaged over the draws."""
        mean, std, _ = self.leave_one_out
        return self.weights @ ((torch.from_numpy(self.y) - mean) / std).numpy()

    def max_chunk_rows(self, form: str) -> int:
        size = len(self.y) * max(len(self.thetas), self.num_dims)
        return max(1, 4 * CHUNK_ENTRIES // size)

    def moments(self, X: Tensor, form: str, noise: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return means (S, m) and, unless `form` is "none", variances (S, m) or covariances (S, m, m) of each draw."""
        if form == "full":
            return self._chunk_moments(X, form, noise)
        parts = [self._chunk_moments(part, form, noise) for part in X.split(self.max_chunk_rows(form))]
        means, variances = zip(*parts, strict=True)
        return torch.cat(means, -1), None if form == "none" else torch.cat(variances, -1)

    def _chunk_moments(self, X: Tensor, form: str, noise: bool) -> tuple[Tensor, Tensor | None]:
        node, Z = self.problem.kernel, X.numpy()
        added = torch.from_numpy(self.noise_variances if noise else np.zeros(len(self.thetas)))
        if form == "full":
            cross = torch.from_numpy(node.cross(self.thetas, Z))
            explained = torch.linalg.solve_triangular(self.chol, cross.mT, upper=False)
            covariance = torch.from_numpy(node.cross(self.thetas, Z, Z)) - explained.mT @ explained
            mean = (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)
            return mean, covariance + added[:, None, None] * torch.eye(len(Z), dtype=torch.float64)
        mean, explained = np.empty((2, len(self.thetas), len(Z)))
        add, cross = (
            node.between(Z),
            np.empty((max(4 * BLOCK_ENTRIES // (len(Z) * len(self.y)), 1), len(Z), len(self.y))),
        )
        for start in range(0, len(self.thetas), len(cross)):  # few draws at a time, whose covariances stay in the cache
            some = self.thetas[start : start + len(cross)]
            cross.fill(0.0)
            add(cross[: len(some)], some, 1.0)
            for index, K in enumerate(cross[: len(some)], start):
                mean[index] = K @ self.alpha[index].numpy()
                if form == "diag":  # K.T and the factor are in the order of Fortran
                    half = blas.dtrsm(1.0, self.chol[index].numpy().T, K.T, trans_a=1, overwrite_b=1)
                    explained[index] = np.einsum("ij,ij->j", half, half)
        if form == "none":
            return torch.from_numpy(mean), None
        prior = torch.from_numpy(np.broadcast_to(node.variances(self.thetas, Z), mean.shape).copy())
        return torch.from_numpy(mean), subtract_explained(prior, torch.from_numpy(explained), "diag") + added[:, None]

    def predict(self, X, cov: str = "diag", noise: bool = False) -> MixturePrediction:
        form, X = check_form(cov), validate_inputs(X, self.num_dims).double()
        means, variances = self.moments(X, form, noise)
        if form in ("none", "diag"):
            variances = None if variances is None else variances.unsqueeze(-1)
            return MixturePrediction.of_moments(means.unsqueeze(-1), variances, self.weights)
        covariances = variances if form == "full" else variances[..., None, None]
        pairs = zip(means.unsqueeze(-1), covariances, strict=True)
        return MixturePrediction((Prediction(mean, part, form) for mean, part in pairs), self.weights)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        prediction = self.predict(X, form)
        return prediction.mean, prediction._covariance

    def transform_scores(self, X: Tensor, scores: Tensor, noise: bool, random_state) -> Tensor:
        """Turn standard normal scores (k, m) into joint samples (k, m) at the points X, each of one draw.

        The symmetric root of the covariance is used, so that equal scores of two outputs give similar samples.
        """
        means, covariances = self.moments(X, "full", noise)
        allocation = DrawAllocation(len(scores), len(means), random_state, self.weights)
        values = torch.empty_like(scores)
        for index, rows in allocation.rows.items():
            eigenvalues, vectors = torch.linalg.eigh(covariances[index])
            root = (vectors * eigenvalues.clamp_min(0).sqrt()) @ vectors.mT
            values[rows] = means[index] + scores[rows] @ root
        return values

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        k, X = check_integer("the number of draws", k), validate_inputs(X, self.num_dims).double()
        for_scores, for_draws = spawn_seeds(random_state, 2)
        scores = draw_normal((k, len(X)), for_scores, X)
        return self.transform_scores(X, scores, noise, for_draws).unsqueeze(-1)

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """Draw k random functions, each at one draw of the hyperparameters, by conditioning random functions of the prior."""
        k = check_integer("the number of draws", k)
        for_draws, *seeds = spawn_seeds(random_state, 1 + len(self.thetas))
        allocation = DrawAllocation(k, len(self.thetas), for_draws, self.weights)
        functions = {part: self._functions(part, len(rows), seeds[part]) for part, rows in allocation.rows.items()}

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), len(X), 1)
            for part, rows, ranks in allocation.group(index):
                values[rows, :, 0] = functions[part](X, ranks)
            return values

        def evaluate_pairs(X: Tensor, index: Tensor) -> Tensor:
            values = X.new_empty(len(index), 1)
            for part, rows, ranks in allocation.group(index):
                values[rows, 0] = functions[part](X[rows], ranks).diagonal()
            return values

        def noise() -> Tensor:
            return torch.from_numpy(self.noise_variances[allocation.parts])[:, None, None]

        return FunctionDraws(evaluate, k, self.num_dims, noise, evaluate_pairs)

    def _functions(self, part: int, count: int, seed: int):
        """Return a function of X (m, d) and an index with the values (len(index), m) of random functions at one draw."""
        for_prior, for_noise = spawn_seeds(seed, 2)
        kernel, X = self.problem.kernel_at(self.thetas[part]), torch.from_numpy(self.problem.X)
        prior = _draw_prior_functions(kernel, count, self.num_dims, for_prior)
        variances = torch.full((len(self.y),), self.noise_variances[part], dtype=torch.float64)
        variances = variances if self.known is None else torch.from_numpy(self.known)
        residuals = (
            torch.from_numpy(self.y)
            - prior(X, slice(None))
            - draw_normal((count, len(X)), for_noise, X) * variances.sqrt()
        )
        coefficients = torch.cholesky_solve(residuals.mT, self.chol[part])  # (n, count)

        def evaluate(Z: Tensor, index: Tensor) -> Tensor:
            with torch.no_grad():
                cross = evaluate_kernel(kernel, Z, X).to_dense()
            return prior(Z, index) + (cross @ coefficients[:, index]).mT

        return evaluate

    def forget_data(self) -> None:
        """Keep the data, which the predictions need."""


def _factorize(C: np.ndarray) -> np.ndarray | None:
    """Return the Cholesky factor of C (n, n), with jitter if it is not positive definite; None if that fails too."""
    for jitter in (0.0, JITTER * np.trace(C) / len(C) + JITTER):
        shifted = np.array(C, order="F")
        shifted.flat[:: len(C) + 1] += jitter
        chol, info = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if info == 0 and np.isfinite(chol.diagonal()).all():
            return chol
    return None


def _inverse_diagonal(chol: np.ndarray, workspace: np.ndarray) -> np.ndarray:
    """Return the diagonal (n,) of (L Lᵀ)⁻¹ for a lower factor L (n, n) in the order of C; `workspace` (n, n) is overwritten."""
    workspace[...] = chol
    root = lapack.dtrtri(workspace.T, lower=0, overwrite_c=1)[0]  # L⁻ᵀ
    return np.einsum("ij,ij->i", root, root)


def _draw_prior_functions(kernel: Kernel, count: int, num_dims: int, seed: int):
    """Return a function of X (m, d) and an index with values (len(index), m) of random functions of a scalar prior.

    Constant and linear terms of a sum are drawn exactly, the others by random features.
    """
    terms = [*kernel.kernels] if isinstance(kernel, AdditiveKernel) else [kernel]
    seeds = spawn_seeds(seed, 2 * len(terms))
    drawn = []
    for term, for_features, for_weights in zip(terms, seeds[::2], seeds[1::2], strict=True):
        if isinstance(term, ConstantKernel):
            scale, size, features = term.constant.detach().sqrt(), 1, lambda X: X.new_ones(len(X), 1)
        elif isinstance(term, LinearKernel):
            scale, size, features = term.variance.detach().reshape(()).sqrt(), num_dims, lambda X: X
        else:
            orff = make_prior_features(term, NUM_PRIOR_FREQUENCIES, num_dims, for_features)
            scale, size, features = torch.ones(()), orff.num_features, orff.freeze()
        drawn.append((features, scale * draw_normal((count, size), for_weights, torch.zeros(1))))

    @torch.no_grad()
    def evaluate(X: Tensor, index) -> Tensor:
        return sum((features(X) @ weights[index].mT).mT for features, weights in drawn)

    return evaluate


class IndependentMixture(IndependentPosterior):
    """Independent outputs, each averaged over its own hyperparameters, with correlated new observations.

    New observations of outputs a and b at a point have the correlation R_ab (`correlation` (p, p), or None): cov_ab = R_ab s_a s_b.
    The latent functions are independent.
    """

    no_residuals = OutputPosterior.no_residuals

    def __init__(self, parts: list[OutputPosterior], correlation: np.ndarray | None = None):
        super().__init__(parts)
        self.correlation = None if correlation is None or len(parts) == 1 else torch.from_numpy(correlation)

    @property
    def noise(self) -> Tensor:
        std = torch.cat([part.noise.flatten() for part in self.parts]).sqrt()
        return torch.diag(std.square()) if self.correlation is None else self.correlation * torch.outer(std, std)

    def join_noise(self, variances: Tensor) -> Tensor:
        """Return noise covariances (k, p, p) with these variances (k, p) and the correlation of new observations."""
        if self.correlation is None:
            return super().join_noise(variances)
        std = variances.sqrt()
        return self.correlation * std.unsqueeze(-1) * std.unsqueeze(-2)

    @property
    def data(self):
        raise AttributeError("the observations are stored by the mixture of candidates")

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        form, X = check_form(cov), validate_inputs(X, self.num_dims).double()
        columns = [part.predict(X, "diag" if form == "output" else form, noise) for part in self.parts]
        if form == "none":
            return JoinedPrediction(columns, None, form)
        correlation = self.correlation if noise else None
        if form in ("diag", "output"):
            std = torch.cat([column.std for column in columns], -1)
            if form == "diag":
                return JoinedPrediction(columns, std.square(), form)
            outer = std.unsqueeze(-1) * std.unsqueeze(-2)
            matrix = torch.eye(self.num_outputs, dtype=torch.float64) if correlation is None else correlation
            return JoinedPrediction(columns, matrix * outer, form)
        blocks = torch.stack([column.cov for column in columns])  # (p, m, m)
        return JoinedPrediction(columns, _join_blocks(blocks, correlation), form)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        prediction = self.predict(X, form)
        return prediction.mean, prediction._covariance

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        k, X = check_integer("the number of draws", k), validate_inputs(X, self.num_dims).double()
        for_scores, for_draws = spawn_seeds(random_state, 2)
        scores = draw_normal((self.num_outputs, k, len(X)), for_scores, X)
        if noise and self.correlation is not None:
            scores = torch.einsum("ab,bkm->akm", torch.linalg.cholesky(self.correlation), scores)
        pairs = zip(self.parts, scores, spawn_seeds(for_draws, self.num_outputs), strict=True)
        return torch.stack([part.transform_scores(X, own, noise, seed) for part, own, seed in pairs], -1)

    @torch.no_grad()
    def joint_log_density(self, X, Y) -> Tensor:
        """Compute log p(y_i) of the observed outputs of each new row: Σ_a log p_a(y_ia) + log c(y_i).

        c is the density of the Gaussian copula with correlation R, −½ log|R| − ½ zᵀ(R⁻¹ − I)z for the normal scores z of the
        outputs, restricted to the observed ones.
        """
        y = torch.as_tensor(Y, dtype=torch.float64)
        prediction = self.predict(X, "diag", noise=True)
        observed = torch.isfinite(y)
        marginal = torch.where(observed, prediction.log_density(y), 0.0).sum(-1)
        if self.correlation is None:
            return marginal
        scores = torch.special.ndtri(prediction.cdf(y).clamp(MIN_TAIL, 1 - MIN_TAIL))
        scores = torch.where(observed, scores, 0.0)
        both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
        chol = torch.linalg.cholesky(torch.where(both, self.correlation, torch.eye(self.num_outputs).double()))
        whitened = torch.linalg.solve_triangular(chol, scores.unsqueeze(-1), upper=False).squeeze(-1)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return marginal - 0.5 * (logdet + whitened.square().sum(-1) - scores.square().sum(-1))

    def whitened_residuals(self) -> Tensor:
        raise OptionError(self.no_residuals)

    @property
    def state(self) -> list[Draws]:
        """Draws of each output, from which the posterior can be computed again."""
        return [part.draws for part in self.parts]

    def leave_groups_out(self, data: Observations, groups: Tensor) -> Tensor:
        """Predict each entry from the rows of other groups (n,): mean, standard deviation and P(y′ ≤ y), (3, n, p)."""
        found = torch.full((3, *data.Y.shape), torch.nan, dtype=torch.float64)
        for a, part in enumerate(self.parts):
            rows = data.observed[:, a]
            found[:, rows, a] = part.leave_groups_out(groups[rows].unique(return_inverse=True)[1])
        return found


def _join_blocks(blocks: Tensor, correlation: Tensor | None) -> Tensor:
    """Join covariances (p, m, m) of outputs to one (m·p, m·p), with blocks R_ab S_a S_b between outputs, S_a the symmetric root."""
    p, m = blocks.shape[:2]
    joint = torch.zeros(m, p, m, p, dtype=blocks.dtype)
    if correlation is not None:
        values, vectors = torch.linalg.eigh(blocks)
        roots = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
        joint = torch.einsum("ab,aij,bjk->iakb", correlation, roots, roots)
    for a in range(p):
        joint[:, a, :, a] = blocks[a]
    return joint.reshape(m * p, m * p)
