"""Gaussian processes on pairs (x, θ) with the prior k_X(x, x') k_Θ(θ, θ') A, observed on a grid (LT-100, LT §6.0).

The model `OperatorValuedGP(DecomposableKernel(FunctionValuedKernel(k_X, k_Θ), output_matrix=A))` can be conditioned on
any pairs. If each input is observed at each task of a grid, `condition_on_grid` computes the same posterior with three
small eigendecompositions, and `train_on_grid` trains its hyperparameters at that cost.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.algebra.kronecker import SeparableSolver, eigh
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, KernelProcess, subtract_explained
from ovkgp.inference.training.initial_grid import grid_around
from ovkgp.inference.training.initialization import initialize
from ovkgp.inference.training.log_posterior import LogDensity
from ovkgp.inference.training.maximize import maximize_density
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel
from ovkgp.kernels.evaluation import evaluate_kernel


def condition_on_grid(gp: OperatorValuedGP, X: Tensor, tasks: Tensor, Y: Tensor) -> GridPosterior:
    """Return the posterior given complete Y (n, m, p) at all pairs of X (n, d) and tasks (m, q).

    It equals `gp.condition(make_pairs(X, tasks), …)` for a model with kernel s² k_X k_Θ A on pairs, mean zero and one
    noise variance. Complexity: O(n³ + m³ + p³ + n m p (n + m + p)) time, O(n² + m² + p² + n m p) memory.
    """
    with torch.no_grad(), gp.report_hyperparameters_on_failure():
        data, model = gp.observe(make_pairs(X, tasks), Y.flatten(0, 1)).double().clone(), gp.frozen().model
        factors, tasks = PairKernelParts(model.kernel), tasks.double()
        grams = to_dense(evaluate_kernel(factors.inputs, X.double())), to_dense(evaluate_kernel(factors.tasks, tasks))
        solver = GridSolver(*grams, factors.output_matrix, _shared_noise(gp), Y.double())
        process = KernelProcess(model.kernel, data.num_outputs)
        return GridPosterior(process, solver, data, model.mean, model.predictive_noise(data), tasks)


def train_on_grid(
    gp: OperatorValuedGP,
    X: Tensor,
    tasks: Tensor,
    Y: Tensor,
    *,
    max_iter: int = 200,
    restarts: int = 1,
    verbose: int = 0,
) -> FitReport:
    """Train the hyperparameters of a model on pairs in place, by maximizing the evidence.

    The optimizer begins at the best of the current values, those from the data, and a grid of lengthscales and noises. Further runs (`restarts`) begin at the other lengthscales. Arguments as in `condition_on_grid`; parameters that do not require a gradient stay fixed. Ctrl-C keeps the best
    values so far. Complexity per iteration: that of `condition_on_grid`.
    """
    data = gp.observe(make_pairs(X, tasks), Y.flatten(0, 1)).double()
    X, tasks, Y = X.double(), tasks.double(), Y.double()
    initialization = initialize(gp, data)

    def evidence() -> Tensor:
        factors = PairKernelParts(gp.kernel)
        grams = to_dense(evaluate_kernel(factors.inputs, X)), to_dense(evaluate_kernel(factors.tasks, tasks))
        return grid_log_density(*grams, factors.output_matrix, _shared_noise(gp), Y)

    vector = ParameterVector(gp, initialization.bounds, initialization.scales)
    density = LogDensity(gp, evidence, data, vector, jacobian=False, backend="torch")
    report = maximize_density(
        density,
        initial_states=initialization.initial_states(gp, data, "auto"),
        initial_points=grid_around(gp, data, vector, initialization),
        max_iter=max_iter,
        restarts=restarts,
        random_state=0,
        scale=Y.numel(),
        verbose=verbose,
    )
    report.num_rows, report.num_observed = len(X), Y.numel()
    with torch.no_grad():
        report.log_evidence = float(evidence())
    gp.fit_report_ = report
    return report


def _shared_noise(gp: OperatorValuedGP) -> Tensor:
    if gp.noise.dim():
        raise InputError(
            f"noise must be one variance shared by all outputs on a grid, got shape {tuple(gp.noise.shape)}."
        )
    return gp.noise


class GridPosterior(ExactPosterior):
    """Posterior on pairs (x, θ) given values at all pairs of a grid with tasks (m, q); `predict` takes pairs.

    Complexity of k means: O(k n m p); of k standard deviations: O(k n (n + m)) per distinct eigenvalue of A.
    """

    def __init__(
        self, process: KernelProcess, solver: GridSolver, data: Observations, mean, output_noise: Tensor, grid: Tensor
    ):
        super().__init__(process, solver, data, mean, output_noise)
        self.grid, self.factors = grid, PairKernelParts(process.kernel)
        self.inputs = data.X[:: len(grid), : -grid.shape[1]]

    def max_chunk_rows(self, form: str) -> int:
        n, m, p = self.solver.shape
        return CHUNK_ENTRIES // max(n, m * p, p * p if form == "output" else 1)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        inputs, tasks = X[:, : -self.grid.shape[1]], X[:, -self.grid.shape[1] :]
        left, right = self._cross(inputs, tasks)
        mean = self.prior_mean(X) + torch.einsum("kjp,kj->kp", self._contract_inputs(left), right)
        if form == "none":
            return mean, None
        return mean, subtract_explained(self.process.prior(X, form), self._explained(left, right, form), form)

    def on_grid(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Return mean and, for form "diag", variance (k, l, p) at all pairs of X (k, d) and tasks (l, q).

        Complexity: O(k n m p + k l m p), less than `predict` for the k·l pairs by a factor l or m.
        """
        left, right = self._cross(X, tasks)
        mean = right @ self._contract_inputs(left)
        mean = mean + self.prior_mean(make_pairs(X, tasks)).unflatten(0, (len(X), -1))
        if form == "none":
            return mean, None
        explained = self._to_outputs(self.solver.explained_fractions(left, right, paired=False)).flatten(0, 1)
        prior = self.process.prior(make_pairs(X, tasks), "diag")
        return mean, subtract_explained(prior, explained, "diag").unflatten(0, (len(X), -1))

    def _cross(self, inputs: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        rows = to_dense(evaluate_kernel(self.factors.inputs, inputs, self.inputs))
        return rows, to_dense(evaluate_kernel(self.factors.tasks, tasks, self.grid))

    def _contract_inputs(self, left: Tensor) -> Tensor:
        """Return Σ_i k_X(x, x_i) A α_ij, (k, m, p)."""
        n, m, p = self.solver.shape
        return (left @ self.solver.alpha.reshape(n, m * p)).reshape(-1, m, p) @ self.factors.output_matrix

    def _to_outputs(self, fractions: Tensor) -> Tensor:
        """Convert variances along the eigenvectors of A (…, p) to those of the outputs."""
        return (fractions * self.solver.a) @ self.solver.W.square().mT

    def _explained(self, left: Tensor, right: Tensor, form: str) -> Tensor:
        a, W = self.solver.a, self.solver.W
        if form == "full":
            levels, index = self.solver.distinct_eigenvalues()
            blocks = [(W[:, index == i] * level) @ W[:, index == i].mT for i, level in enumerate(levels)]
            fractions = (self.solver.joint_explained_fraction(left, right, level) for level in levels)
            return sum(torch.kron(fraction, block) for fraction, block in zip(fractions, blocks, strict=True))
        fractions = self.solver.explained_fractions(left, right, paired=True)
        return self._to_outputs(fractions) if form == "diag" else (W * (fractions * a).unsqueeze(1)) @ W.mT


class GridSolver(SeparableSolver):
    """C⁻¹ for C = K_X ⊗ K_Θ ⊗ A + σ² I and complete targets Y (n, m, p), for predictions.

    `alpha` is C⁻¹ Y (n·m, p), with one row per pair (x_i, θ_j), the representer coefficients of LT-83; `log_density` is
    log N(vec Y | 0, C). Complexity: O(n³ + m³ + p³ + n m p (n + m + p)); a solve with k columns O(n m p (n + m + p) k).
    """

    @torch.no_grad()
    def __init__(self, input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor):
        (self.s, self.U), (self.t, self.V), (self.a, self.W) = map(eigh, (input_gram, task_gram, output_matrix))
        self.noise = torch.as_tensor(noise, dtype=torch.float64).detach().clone()
        rotated = rotate(targets, self.U.mT, self.V.mT, self.W.mT)
        weights = rotated / self.values
        self.alpha = rotate(weights, self.U, self.V, self.W).flatten(0, 1).contiguous()
        size, logdet = targets.numel(), self.values.log().sum()
        self.log_density = gaussian_log_density((rotated * weights).sum(), logdet, size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (n, m, p) of the targets."""
        return len(self.s), len(self.t), len(self.a)

    @property
    def values(self) -> Tensor:
        """Eigenvalues s_i t_j a_u + σ² of C, (n, m, p)."""
        return torch.einsum("i,j,u->iju", self.s, self.t, self.a) + self.noise

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ rhs, (n·m·p, k) → (n·m·p, k)."""
        rotated = (rotate(column.reshape(self.shape), self.U.mT, self.V.mT, self.W.mT) for column in rhs.mT)
        return torch.stack([rotate(part / self.values, self.U, self.V, self.W).flatten() for part in rotated], -1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Return the diagonal of C⁻¹ (n·m, p)."""
        squares = (vectors.square() for vectors in (self.U, self.V, self.W))
        return rotate(1 / self.values, *squares).flatten(0, 1)

    def distinct_eigenvalues(self) -> tuple[Tensor, Tensor]:
        """Return the distinct eigenvalues of A, to 1e-12 of the largest, and the index of each among them."""
        unit = 1e-12 * self.a.max().clamp_min(torch.finfo(self.a.dtype).tiny)
        rounded, index = torch.unique((self.a / unit).round(), return_inverse=True)
        return rounded * unit, index

    def explained_fractions(self, inputs: Tensor, tasks: Tensor, paired: bool) -> Tensor:
        """Return the variance explained by the data along each eigenvector of A, as a fraction of its eigenvalue.

            Σ_ij (k_X U)_i² (k_Θ V)_j² a_u / (s_i t_j a_u + σ²)

        for k_X (k, n) and k_Θ (l, m) with the grid. If `paired`, their rows go together, (k, p); otherwise all
        combinations, (k, l, p).
        """
        left, right = (inputs @ self.U).square(), (tasks @ self.V).square()
        levels, index = self.distinct_eigenvalues()
        fractions = []
        for level in levels:
            inner = left @ (level / (torch.outer(self.s, self.t) * level + self.noise))  # (k, m)
            fractions.append((inner * right).sum(-1) if paired else inner @ right.mT)
        return torch.stack(fractions, -1)[..., index]

    def joint_explained_fraction(self, inputs: Tensor, tasks: Tensor, level: Tensor) -> Tensor:
        """Return the explained fractions between all pairs, (k, k), for one eigenvalue `level` of A. O(k² n m)."""
        features = torch.einsum("ki,kj->kij", inputs @ self.U, tasks @ self.V).flatten(1)
        return (features * (level / (torch.outer(self.s, self.t) * level + self.noise)).flatten()) @ features.mT


def grid_log_density(
    input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
) -> Tensor:
    """Return log N(vec Y | 0, K_X ⊗ K_Θ ⊗ A + σ² I) for complete Y (n, m, p), differentiable once.

    Complexity: O(n³ + m³ + p³ + n m p (n + m + p)) for value and gradient.
    """
    return _GridDensity.apply(input_gram, task_gram, output_matrix, noise, targets)


class _GridDensity(torch.autograd.Function):
    """∂K_X = ½ (Σ α (K_Θ ⊗ A) αᵀ − U diag(Σ_jk t_j a_k / c_ijk) Uᵀ) with α = C⁻¹ Y; likewise for K_Θ, A and σ²."""

    @staticmethod
    def forward(
        ctx, input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
    ) -> Tensor:
        spectra = [eigh(matrix) for matrix in (input_gram, task_gram, output_matrix)]
        (s, U), (t, V), (a, W) = spectra
        values = torch.einsum("i,j,k->ijk", s, t, a) + noise.detach()
        rotated = rotate(targets.detach(), U.mT, V.mT, W.mT)
        weights = rotated / values
        ctx.save_for_backward(s, U, t, V, a, W, values, weights)
        return gaussian_log_density((rotated * weights).sum(), values.log().sum(), values.numel())

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if torch.is_grad_enabled():
            raise OptionError("The evidence on a grid supports first derivatives only. Do not use create_graph=True.")
        s, U, t, V, a, W, values, weights = ctx.saved_tensors
        half, needed = gradient / 2, ctx.needs_input_grad

        def gradient_by(axis: int, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor | None:
            if not needed[axis]:
                return None
            scale = torch.outer(first, second).flatten()
            rows, eigenvalues = (tensor.movedim(axis, 0).flatten(1) for tensor in (weights, values))
            inner = (rows * scale) @ rows.mT - torch.diag((scale / eigenvalues).sum(1))
            return vectors @ inner @ vectors.mT * half

        by_noise = (weights.square().sum() - (1 / values).sum()) * half if needed[3] else None
        by_targets = -gradient * rotate(weights, U, V, W) if needed[4] else None
        return gradient_by(0, t, a, U), gradient_by(1, s, a, V), gradient_by(2, s, t, W), by_noise, by_targets


def rotate(tensor: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Apply F ⊗ S ⊗ T to a tensor (n, m, p), one axis after another. O(n m p (n + m + p))."""
    n, m, p = tensor.shape
    tensor = (first @ tensor.reshape(n, m * p)).reshape(-1, m, p)
    return second @ (tensor @ third.mT)


def make_pairs(X: Tensor, tasks: Tensor) -> Tensor:
    """Return all pairs (x_i, θ_j) of X (n, d) and tasks (m, q), data-major: (n·m, d + q)."""
    return torch.cat([X.repeat_interleave(len(tasks), 0), tasks.repeat(len(X), 1)], -1)


class PairKernelParts:
    """k_X, k_Θ and s² A (p, p) of a kernel s² k_X k_Θ A on pairs; raises KernelTypeError for other kernels."""

    def __init__(self, kernel: Kernel):
        is_scaled = isinstance(kernel, ScaleKernel)
        inner = kernel.base_kernel if is_scaled else kernel
        base = inner.base_kernel if isinstance(inner, DecomposableKernel) else None
        if not isinstance(base, FunctionValuedKernel) or base.tasks is not None:
            raise KernelTypeError(
                f"kernel must be DecomposableKernel(FunctionValuedKernel(input_kernel, task_kernel), output_matrix=A), optionally in a ScaleKernel, got {type(kernel).__name__}."
            )
        self.inputs, self.tasks = base.input_kernel, base.task_kernel
        self.output_matrix = kernel.outputscale * inner.output_matrix if is_scaled else inner.output_matrix
