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

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.algebra.dense import inverse_from_cholesky, kronecker_in_form, psd_root, safe_cholesky
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.posteriors.curves import CurveFunctions, CurvePosterior, ScalarFeatures, task_covariance
from ovkgp.inference.posteriors.posterior import draw_normal, prior_covariance, spawn_seeds
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel

MAX_NODES = 250  # functions φ
NODE_TOLERANCE = 0.01  # largest variance of f outside of the span of φ, relative to the white noise
MAX_WEIGHTS = 3000  # entries of W whose posterior covariance is computed
MIN_EIGENVALUE = 1e-10  # of K_X, relative to the largest
CG_TOLERANCE, MAX_CG_STEPS = 1e-10, 500
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
        self._reduce_curves(self.functions(self.tasks), white, Y)
        self._choose_weights()
        r = self.kept.shape[1]
        self.groups = [(rows := (self.pairs[1] == b).nonzero().flatten(), self.pairs[0][rows]) for b in range(r)]
        self.chol = safe_cholesky(self._precision())
        self.explained_weights = torch.eye(len(self.chol)).double() - inverse_from_cholesky(self.chol)
        self.weights = self._solve_weights(self.at_data.mT @ self.targets)
        explained = (self.weights * (self.at_data.mT @ self.targets)).sum()
        logdet = self.noise_logdet + 2 * self.chol.diagonal().log().sum()
        self._log_evidence = float(-0.5 * (self.quadratic - explained + logdet + self.count * math.log(2 * math.pi)))

    @property
    def log_evidence(self) -> float:
        """log p(Y) of the data, with the determinant of the weights that are not dropped."""
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

    def _reduce_curves(self, Phi: Tensor, white: Tensor, Y: Tensor) -> None:
        """Compute H_i (n, r, r), b_i (n, r), and the means of deviations, from each curve at its own points."""
        self.at_data = self.U * self.eigenvalues.sqrt()
        n, r = len(Y), Phi.shape[1]
        self.grams, self.targets = Phi.new_zeros(n, r, r), Phi.new_zeros(n, r)
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
            self.grams[i], self.targets[i] = whitened.mT @ whitened, whitened.mT @ residual
            self.quadratic += float(residual @ residual)
            self.noise_logdet += 2 * float(chol.diagonal().log().sum())
            self.count += len(observed)

    def _choose_weights(self) -> None:
        """Keep the entries (a, b) of W with the largest λ_a mean(H)_bb."""
        influence = torch.outer(self.eigenvalues, self.grams.diagonal(dim1=1, dim2=2).mean(0))
        count = min(MAX_WEIGHTS, influence.numel())
        index = influence.flatten().topk(count).indices.sort().values
        self.kept = torch.zeros(influence.numel(), dtype=torch.bool)
        self.kept[index] = True
        self.kept = self.kept.view_as(influence)
        self.pairs = self.kept.nonzero(as_tuple=True)

    def _precision(self) -> Tensor:
        """Return S between the kept entries, by blocks of functions."""
        S = torch.eye(int(self.kept.sum()), dtype=torch.float64)
        for one, (rows, a) in enumerate(self.groups):
            for other, (columns, c) in enumerate(self.groups[: one + 1]):
                block = (self.at_data[:, a] * self.grams[:, one, other].unsqueeze(-1)).mT @ self.at_data[:, c]
                S[rows.unsqueeze(-1), columns] += block
                if one != other:
                    S[columns.unsqueeze(-1), rows] += block.mT
        return S

    def _multiply(self, W: Tensor) -> Tensor:
        """Compute S W for weights (a, r)."""
        return W + self.at_data.mT @ torch.einsum("nr,nrs->ns", self.at_data @ W, self.grams)

    def _precondition(self, W: Tensor) -> Tensor:
        """Solve with the kept block of S, and with the diagonal of the others."""
        result = W / self.diagonal
        result[self.pairs] = torch.cholesky_solve(W[self.pairs].unsqueeze(-1), self.chol).squeeze(-1)
        return result

    def _solve_weights(self, rhs: Tensor) -> Tensor:
        """Solve S W = rhs (a, r) by preconditioned conjugate gradients."""
        self.diagonal = 1.0 + self.at_data.square().mT @ self.grams.diagonal(dim1=1, dim2=2)
        W = self._precondition(rhs)
        residual = rhs - self._multiply(W)
        goal = CG_TOLERANCE * rhs.norm()
        direction = z = self._precondition(residual)
        rho = (residual * z).sum()
        for _ in range(MAX_CG_STEPS):
            if residual.norm() <= goal:
                return W
            product = self._multiply(direction)
            step = rho / (direction * product).sum()
            W, residual = W + step * direction, residual - step * product
            z = self._precondition(residual)
            previous, rho = rho, (residual * z).sum()
            direction = z + rho / previous * direction
        if residual.norm() > 1e-4 * rhs.norm():
            raise FactorizationError("Conjugate gradients did not converge for the posterior mean of curves.")
        return W

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
        size = max(CHUNK_ENTRIES // (functions.shape[1] * len(self.chol) + len(functions) ** 2), 1)
        parts = [self._explained(part, functions, form) for part in psi.split(size)]
        covariance = prior - torch.cat(parts)
        return mean, covariance.clamp_min(0.0) if form == "diag" else covariance

    def _explained(self, psi: Tensor, functions: Tensor, form: str) -> Tensor:
        """Compute z (I − S⁻¹) zᵀ for z = ψ φ over the kept entries, from its r × r matrix for each input. O(m (R² + M r²))."""
        r = functions.shape[1]
        inner = psi.new_zeros(len(psi), r, r)
        for one, (rows, a) in enumerate(self.groups):
            if len(rows):
                half = psi[:, a] @ self.explained_weights[rows]  # (m, R)
                for other, (columns, c) in enumerate(self.groups):
                    inner[:, one, other] = (half[:, columns] * psi[:, c]).sum(1)
        products = functions @ inner  # (m, M·q, r)
        return (products * functions).sum(-1) if form == "diag" else products @ functions.mT

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
        scores = draw_normal((k, *self.kept.shape), random_state, self.weights)
        own = scores[:, *self.pairs]
        scores[:, *self.pairs] = torch.linalg.solve_triangular(self.chol.mT, own.mT, upper=True).mT
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
