"""Posterior of curves that were each observed at their own points, with many values: O(Σ m_i³ + n r³) for curves of m_i values.

On the n inputs X the process f ~ GP(0, k_X ⊗ k_Θ) is written in the eigenvectors of K_X = U diag(λ) Uᵀ and r functions φ with φφᵀ ≈ k_Θ,
the kernel of the domain at nodes chosen by pivoted Cholesky decomposition,

    f(x, θ) = ψ(x)ᵀ W φ(θ),    ψ(x) = diag(λ)^(−½) Uᵀ k_X(X, x),    W (n, r) white.

A curve with deviation and noise of covariance N_i between its own points enters by H_i = Φ_iᵀ N_i⁻¹ Φ_i and b_i = Φ_iᵀ N_i⁻¹ y_i only. The posterior
precision of W is S = I + Σ_i ψ_i ψ_iᵀ ⊗ H_i. Its mean is computed by conjugate gradients; its covariance for the (at most `MAX_WEIGHTS`) entries of W with
the largest prior influence, while all others keep their prior variance. Where n r ≤ `MAX_WEIGHTS` nothing is dropped.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.inference.algebra.curve_weights import CurveWeights, MatrixInformation
from ovkgp.inference.algebra.dense import kronecker_in_form, psd_root, safe_cholesky
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.posteriors.curves import CurveFunctions, CurvePosterior, ScalarFeatures, task_covariance
from ovkgp.inference.posteriors.posterior import draw_normal, prior_covariance, spawn_seeds
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

MAX_NODES = 250  # functions φ
NODE_TOLERANCE = 0.01  # largest variance of f outside of the span of φ, relative to the white noise
MAX_WEIGHTS = 3000  # entries of W whose posterior covariance is computed
MIN_EIGENVALUE = 1e-10  # of K_X, relative to the largest
CHUNK_ENTRIES = 20_000_000  # entries of the largest matrix of one chunk of predictions


class RaggedCurvePosterior(CurvePosterior):
    """Posterior of a function-valued process with `CurveNoise` given observed entries of Y (n, p·q), NaN if missing.

    Parameters
    ----------
    gp : OperatorValuedGP
        Model with a `FunctionValuedKernel` on the grid of the p points; it is not changed.
    X : Tensor of shape (n, d)
        Inputs.
    Y : Tensor of shape (n, p·q)
        Values.
    """

    @torch.no_grad()
    def __init__(self, gp, X: Tensor, Y: Tensor):
        kernel = gp.kernel
        self.noise: CurveNoise = gp.noise_model
        self.kernel, self.task_kernel, self.tasks, self.X = kernel, kernel.task_kernel, kernel.tasks, X
        ((self.input_kernel, self.channels),) = components(kernel.input_kernel)
        self.num_channels = len(self.channels)
        self.channel_root = psd_root(self.channels).contiguous()
        white = self.noise.variances_at(self.tasks)
        self.nodes = choose_nodes(self.task_kernel, self.tasks, NODE_TOLERANCE * float(white.min()))
        values, vectors = torch.linalg.eigh(to_dense(evaluate_kernel(self.task_kernel, self.nodes)))
        kept = values > 1e-12 * values[-1]
        self.node_root = vectors[:, kept] / values[kept].sqrt()
        grid_functions = self._over_nodes(self.tasks)
        _, _, rotation = torch.linalg.svd(grid_functions, full_matrices=False)
        self.node_root = self.node_root @ rotation.mT  # the functions by decreasing size
        s, U = torch.linalg.eigh(to_dense(evaluate_kernel(self.input_kernel, X)))
        active = s > MIN_EIGENVALUE * s[-1]
        self.eigenvalues, self.U = s[active].flip(0), U[:, active].flip(1)
        self.at_data = self.U * self.eigenvalues.sqrt()
        grams, targets = self._reduce_curves(self.functions(self.tasks), white, Y)
        self.algebra = CurveWeights(self.at_data, MatrixInformation(grams), MAX_WEIGHTS)
        moments = self.at_data.mT @ targets
        self.weights = self.algebra.solve(moments.unsqueeze(1))[0].squeeze(1)
        explained = (self.weights * moments).sum()
        logdet = self.noise_logdet + self.algebra.log_determinant
        self._log_evidence = float(-0.5 * (self.quadratic - explained + logdet + self.count * math.log(2 * math.pi)))

    @property
    def log_evidence(self) -> float:
        """log p(Y) of the data, with the diagonal of S for the weights that are dropped."""
        return self._log_evidence

    def _over_nodes(self, tasks: Tensor, derivative: int = 0) -> Tensor:
        return task_covariance(self.task_kernel, tasks, self.nodes, derivative, 0) @ self.node_root

    def functions(self, tasks: Tensor, derivative: int = 0) -> Tensor:
        """Return φ (M·q, r) at points (M, t), or derivatives."""
        return torch.kron(self._over_nodes(tasks, derivative).contiguous(), self.channel_root)

    def features(self, X: Tensor) -> Tensor:
        """Return ψ (m, a) of inputs (m, d)."""
        cross = to_dense(evaluate_kernel(self.input_kernel, X, self.X))
        return cross @ self.U / self.eigenvalues.sqrt()

    def _reduce_curves(self, Phi: Tensor, white: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Compute H_i (n, r, r) and b_i (n, r) from each curve at its own points."""
        n, r = len(Y), Phi.shape[1]
        grams, targets = Phi.new_zeros(n, r, r), Phi.new_zeros(n, r)
        self.quadratic, self.noise_logdet, self.count, q = 0.0, 0.0, 0, self.num_channels
        for i, y in enumerate(Y):
            observed = (~torch.isnan(y)).nonzero().flatten()
            N = torch.diag(white[observed])
            if self.noise.deviation is not None:
                points = (observed // q).unique()
                at = torch.searchsorted(points, observed // q) * q + observed % q
                N = N + self.noise.deviation_at(self.tasks[points])[at][:, at]
            chol = safe_cholesky(N)
            half = torch.linalg.solve_triangular(chol, torch.column_stack([Phi[observed], y[observed]]), upper=False)
            whitened, residual = half[:, :-1], half[:, -1]
            grams[i], targets[i] = whitened.mT @ whitened, whitened.mT @ residual
            self.quadratic += float(residual @ residual)
            self.noise_logdet += 2 * float(chol.diagonal().log().sum())
            self.count += len(observed)
        return grams, targets

    @torch.no_grad()
    def moments(self, X: Tensor, tasks: Tensor, form: str, derivative: int = 0) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, M·q) and covariance of f, or of its derivative: "none", "diag" or "output"."""
        functions, psi = self.functions(tasks, derivative), self.features(X)
        mean = psi @ self.weights @ functions.mT
        if form == "none":
            return mean, None
        scalar = prior_covariance(self.input_kernel, X, 1, "diag")
        outputs = self._prior_outputs(tasks, derivative, form)
        prior = scalar * outputs if form == "diag" else kronecker_in_form(scalar, outputs, form)
        size = max(CHUNK_ENTRIES // (functions.shape[1] * len(self.algebra.chol) + len(functions) ** 2), 1)
        parts = [self.algebra.explained(part, functions, form) for part in psi.split(size)]
        covariance = prior - torch.cat(parts)
        return mean, covariance.clamp_min(0.0) if form == "diag" else covariance

    @torch.no_grad()
    def deviation_means(self, Y: Tensor) -> Tensor | float:
        """Return the expectations (n, p·q) of the deviations of the training curves Y on the grid; 0 if there are none."""
        smooth = self.deviation_at(self.tasks)
        if smooth is None:
            return 0.0
        residuals = Y - self.at_data @ self.weights @ self.functions(self.tasks).mT
        found, white = torch.zeros_like(Y), self.noise.variances_at(self.tasks)
        for i, row in enumerate(residuals):
            observed = (~torch.isnan(row)).nonzero().flatten()
            own = smooth[observed]
            chol = safe_cholesky(own[:, observed] + torch.diag(white[observed]))
            found[i] = torch.cholesky_solve(row[observed].unsqueeze(-1), chol).squeeze(-1) @ own
        return found

    def _draw_weights(self, k: int, random_state) -> Tensor:
        """Draw weights (k, a, r) from their posterior; those that were dropped have their prior variance."""
        scores, pairs = draw_normal((k, *self.weights.shape), random_state, self.weights), self.algebra.pairs
        own = scores[:, *pairs]
        scores[:, *pairs] = torch.linalg.solve_triangular(self.algebra.chol.mT, own.mT, upper=True).mT
        return self.weights + scores

    @torch.no_grad()
    def sample(self, X: Tensor, tasks: Tensor, k: int, *, derivative: int = 0, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, M·q) of f: the posterior of W, and the prior of what is outside of ψ and φ."""
        seeds = spawn_seeds(random_state, 3)
        functions, psi = self.functions(tasks, derivative), self.features(X)
        draws = psi @ self._draw_weights(k, seeds[0]) @ functions.mT
        over_inputs = psd_root(to_dense(evaluate_kernel(self.input_kernel, X)) - psi @ psi.mT)
        prior = self._prior_outputs(tasks, derivative, "output")
        for left, right, seed in (
            (over_inputs, psd_root(prior), seeds[1]),
            (psi, psd_root(prior - functions @ functions.mT), seeds[2]),
        ):
            draws = draws + left @ draw_normal((k, left.shape[1], right.shape[1]), seed, X) @ right.mT
        return draws

    @torch.no_grad()
    def sample_functions(self, k: int, *, random_state=None) -> CurveFunctions:
        """Draw k random functions f; see `CurvePosterior.sample_functions`."""
        seeds = spawn_seeds(random_state, 3)
        over_inputs = ScalarFeatures(self.input_kernel, self.X.shape[1], seeds[0])
        at_data = over_inputs(self.X)
        scores = draw_normal((k, at_data.shape[1], self.weights.shape[1]), seeds[1], self.X)
        prior = (self.U / self.eigenvalues.sqrt()).mT @ at_data @ scores
        update = self._draw_weights(k, seeds[2]) - prior

        def evaluate(X: Tensor, tasks: Tensor, index: Tensor) -> Tensor:
            return (over_inputs(X) @ scores[index] + self.features(X) @ update[index]) @ self.functions(tasks).mT

        return evaluate


def choose_nodes(kernel: Kernel, tasks: Tensor, tolerance: float) -> Tensor:
    """Choose points (r, t) by pivoted Cholesky decomposition, until no prior variance given them exceeds `tolerance`. O(g r²)."""
    left = evaluate_kernel(kernel, tasks, diag=True).clone()
    rows, chosen = [], []
    while len(chosen) < min(MAX_NODES, len(tasks)):
        largest, pivot = (value.item() for value in left.max(0))
        if chosen and largest <= tolerance:
            break
        column = to_dense(evaluate_kernel(kernel, tasks[[pivot]], tasks))[0]
        for row in rows:
            column = column - row[pivot] * row
        rows.append(column / max(largest, 1e-300) ** 0.5)
        left = left - rows[-1].square()
        chosen.append(pivot)
    return tasks[chosen]
