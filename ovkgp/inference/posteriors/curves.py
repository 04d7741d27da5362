"""Posterior of a function-valued process at any points of the domain of its functions, and of their derivatives.

For f ~ GP(0, k_X ⊗ k_Θ) given curves on a grid G with covariance C = K_X ⊗ K_Θ(G, G) + I ⊗ Σ,

    E f(x, θ) = (k_X(x, X) ⊗ k_Θ(θ, G)) C⁻¹ y,    Cov = k_X(x, x') k_Θ(θ, θ') − (k_X(x, X) ⊗ k_Θ(θ, G)) C⁻¹ (…)ᵀ,

with k_Θ differentiated in θ for derivatives. With several channels k_Θ is multiplied by their covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError, SmoothnessError
from ovkgp.features import ORFF
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.algebra.dense import DenseSolver, gram_in_form, kronecker_in_form, psd_root
from ovkgp.inference.algebra.kronecker import SeparableSolver
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import draw_normal, prior_covariance, spawn_seeds, subtract_explained
from ovkgp.kernels import components, lag_jet
from ovkgp.kernels.evaluation import evaluate_kernel

NUM_FREQUENCIES = 300  # random features of the kernel of the inputs of a random function
MAX_FEATURE_NODES, NODE_TOLERANCE = 80, 1e-10  # points that represent a random function along its domain
CurveFunctions = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of inputs (m, d), points (M, t) and an index of draws with the values (len(index), m, M·q)."""
CURVE_CHUNK_ENTRIES = 4_000_000  # entries of the largest matrix of one chunk of curves


class CurvePosterior:
    """Posterior of f(x, θ) at any inputs and points, from that of an `OperatorValuedGP` with a `FunctionValuedKernel` on a grid.

    Values of curves are (m, M·q): point by point for q channels.
    """

    has_derivatives = True

    def __init__(self, posterior: ExactPosterior, noise: CurveNoise):
        self.posterior, self.noise = posterior, noise
        kernel = posterior.process.kernel
        self.task_kernel, self.tasks = kernel.task_kernel, kernel.tasks
        ((self.input_kernel, self.channels),) = components(kernel.input_kernel)
        self.kernel, self.num_channels = kernel, len(self.channels)

    @property
    def log_evidence(self) -> float:
        """log p(Y) of the data."""
        return self.posterior.log_evidence

    def deviation_at(self, tasks: Tensor, derivative: int = 0) -> Tensor | None:
        """Return the covariance (M·q, M·q) of the smooth deviations of a new curve at points (M, t); None if there are none."""
        if self.noise.deviation is None:
            return None
        matrix = task_covariance(self.noise.deviation, tasks, tasks, derivative, derivative)
        return matrix if self.noise.channel_matrix is None else torch.kron(matrix, self.noise.channel_matrix())

    def deviation_variances_at(self, tasks: Tensor, derivative: int = 0) -> Tensor | float:
        """Return the diagonal (M·q,) of `deviation_at`; 0 if there are no deviations."""
        if self.noise.deviation is None:
            return 0.0
        channels = None if self.noise.channel_matrix is None else self.noise.channel_matrix().diagonal()
        return _diagonal(self.noise.deviation, tasks, derivative, channels)

    @torch.no_grad()
    def deviation_means(self, Y: Tensor) -> Tensor | float:
        """Return the expectations (n, p·q) of the deviations of the training curves Y on the grid; 0 if there are none."""
        smooth = self.deviation_at(self.tasks)
        return 0.0 if smooth is None else self.posterior.solver.alpha @ smooth

    def white_at(self, tasks: Tensor) -> Tensor:
        """Return the white variances (M·q,) of a new curve at points (M, t)."""
        return self.noise.variances_at(tasks)

    @torch.no_grad()
    def moments(self, X: Tensor, tasks: Tensor, form: str, derivative: int = 0) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, M·q) and covariance of f, or of its derivative in θ, at inputs X (m, d) and points (M, t).

        `form` is "none", "diag" (m, M·q), "output" (m, M·q, M·q) or "full" (m·M·q, m·M·q).
        """
        outputs = self._join_channels(task_covariance(self.task_kernel, tasks, self.tasks, derivative, 0))
        size = len(X) if form == "full" else max(CURVE_CHUNK_ENTRIES // self._row_entries(len(outputs), form), 1)
        prior = None if form == "none" else self._prior_outputs(tasks, derivative, form)
        found = [self._chunk(part, outputs, prior, form) for part in X.split(size)]
        means, covariances = zip(*found, strict=True)
        return torch.cat(means), None if form == "none" else covariances[0] if form == "full" else torch.cat(
            covariances
        )

    def _row_entries(self, num_outputs: int, form: str) -> int:
        solver = self.posterior.solver
        if isinstance(solver, SeparableSolver | MissingSolver):
            return max(len(self.posterior.X), num_outputs**2 if form == "output" else num_outputs)
        entries = len(solver.chol) if isinstance(solver, DenseSolver) else solver.alpha.numel()
        return entries * num_outputs

    def _join_channels(self, matrix: Tensor) -> Tensor:
        return torch.kron(matrix.contiguous(), self.channels)

    def _prior_outputs(self, tasks: Tensor, derivative: int, form: str) -> Tensor:
        """Return the prior covariance (M·q, M·q) of the outputs at points; for "diag", its diagonal (M·q,)."""
        if form == "diag":
            return _diagonal(self.task_kernel, tasks, derivative, self.channels.diagonal())
        return self._join_channels(task_covariance(self.task_kernel, tasks, tasks, derivative, derivative))

    def _chunk(self, X: Tensor, outputs: Tensor, prior: Tensor | None, form: str) -> tuple[Tensor, Tensor | None]:
        solver = self.posterior.solver
        cross = to_dense(evaluate_kernel(self.input_kernel, X, self.posterior.X))
        mean = cross @ (solver.alpha @ outputs.mT)
        if form == "none":
            return mean, None
        scalar = prior_covariance(self.input_kernel, X, 1, "full" if form == "full" else "diag")
        prior = scalar * prior if form == "diag" else kronecker_in_form(scalar, prior, form)
        return mean, subtract_explained(prior, self._explained(cross, outputs, form), form)

    def _explained(self, cross: Tensor, outputs: Tensor, form: str) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ for K_* = cross ⊗ outputs, between observed entries only if some are missing."""
        solver = self.posterior.solver
        if isinstance(solver, SeparableSolver | MissingSolver):
            return solver.explained(cross, form, outputs)
        if isinstance(solver, DenseSolver):
            rows, columns = solver.observed.nonzero(as_tuple=True)
            between = (cross[:, rows].unsqueeze(1) * outputs[:, columns]).flatten(0, 1)  # (m·M, N)
            root = torch.linalg.solve_triangular(solver.chol, between.mT, upper=False)
            return gram_in_form(root.mT, form, len(outputs))
        return solver.explained(torch.kron(cross, outputs), form, len(outputs))

    @torch.no_grad()
    def sample(self, X: Tensor, tasks: Tensor, k: int, *, derivative: int = 0, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, M·q) of f at inputs X (m, d) and points (M, t).

        A prior draw at all inputs and points, from Cholesky factors of the two kernels, is corrected by its own residuals at the
        observed entries. Complexity: O((n + m)³ + (g + M)³ + k n g (n + g)) for n curves on a grid of g points.
        """
        posterior, seeds = self.posterior, spawn_seeds(random_state, 2)
        inputs = torch.cat([posterior.X, X])
        input_root = psd_root(to_dense(evaluate_kernel(self.input_kernel, inputs)))
        task_root = self._task_root(tasks, derivative)
        channel_root = psd_root(self.channels)
        q, n, num_grid = self.num_channels, len(posterior.X), len(self.tasks)
        scores = draw_normal((k, input_root.shape[1], task_root.shape[1], q), seeds[0], X)
        prior = torch.einsum("ia,sabc,tb,dc->sitd", input_root, scores, task_root, channel_root)
        noise = draw_normal((k, n, num_grid * q), seeds[1], X) @ psd_root(self.noise.matrix()).mT
        at_data = prior[:, :n, :num_grid].flatten(2) + noise
        coefficients = posterior.solver.alpha.flatten().unsqueeze(-1) - posterior.solver.solve(at_data.flatten(1).mT)
        cross = to_dense(evaluate_kernel(self.input_kernel, X, posterior.X))
        outputs = self._join_channels(task_covariance(self.task_kernel, tasks, self.tasks, derivative, 0))
        update = torch.einsum("mn,ngk,og->kmo", cross, coefficients.unflatten(0, (n, num_grid * q)), outputs)
        return prior[:, n:, num_grid:].flatten(2) + update

    @torch.no_grad()
    def sample_functions(self, k: int, *, random_state=None) -> CurveFunctions:
        """Draw k random functions f of inputs and points, which keep their values over repeated calls.

        The prior is a product of random features of k_X and of k_Θ interpolated from points of the grid, corrected at the observed
        entries as in `sample`.
        """
        posterior, seeds = self.posterior, spawn_seeds(random_state, 4)
        over_inputs = ScalarFeatures(self.input_kernel, posterior.X.shape[1], seeds[0])
        over_tasks = KernelFactor(self.task_kernel, choose_nodes(self.tasks, seeds[1]), NODE_TOLERANCE)
        at_inputs, at_grid = over_inputs(posterior.X), over_tasks(self.tasks)
        q, n, num_grid = self.num_channels, len(posterior.X), len(self.tasks)
        weights = (
            draw_normal((k, at_inputs.shape[1], at_grid.shape[1], q), seeds[2], posterior.X)
            @ psd_root(self.channels).mT
        )
        drawn = torch.einsum("nf,kftc,gt->kngc", at_inputs, weights, at_grid).flatten(2)
        noise = draw_normal((k, n, num_grid * q), seeds[3], posterior.X) @ psd_root(self.noise.matrix()).mT
        solved = posterior.solver.solve((drawn + noise).flatten(1).mT)
        coefficients = (posterior.solver.alpha.flatten().unsqueeze(-1) - solved).unflatten(0, (n, num_grid * q))

        def evaluate(X: Tensor, tasks: Tensor, index: Tensor) -> Tensor:
            prior = torch.einsum("mf,kftc,gt->kmgc", over_inputs(X), weights[index], over_tasks(tasks)).flatten(2)
            cross = to_dense(evaluate_kernel(self.input_kernel, X, posterior.X))
            outputs = self._join_channels(task_covariance(self.task_kernel, tasks, self.tasks, 0, 0))
            return prior + torch.einsum("mn,ngk,og->kmo", cross, coefficients[..., index], outputs)

        return evaluate

    def _task_root(self, tasks: Tensor, derivative: int) -> Tensor:
        """Return a root of the joint covariance of f on the grid and of f, or its derivative, at points."""
        grid = self.tasks
        own = task_covariance(self.task_kernel, grid, grid, 0, 0)
        cross = task_covariance(self.task_kernel, tasks, grid, derivative, 0)
        other = task_covariance(self.task_kernel, tasks, tasks, derivative, derivative)
        return psd_root(torch.cat([torch.cat([own, cross.mT], 1), torch.cat([cross, other], 1)]))


class ScalarFeatures:
    """Features Φ (m, r) of a scalar kernel with ΦΦᵀ ≈ K: exact ones of constant and linear terms, else random ones."""

    def __init__(self, kernel: Kernel, num_dims: int, seed: int):
        self.terms = []
        for term, scale in _terms(kernel, 1.0):
            dims = None if term.active_dims is None else term.active_dims
            count = num_dims if dims is None else len(dims)
            if isinstance(term, ConstantKernel | LinearKernel):
                self.terms.append((term, scale, None))
            else:
                inner = deepcopy(term)
                inner.active_dims = None
                features = ORFF(inner, NUM_FREQUENCIES, num_dims=count, random_state=seed + len(self.terms)).double()
                self.terms.append((term, scale, features))

    def __call__(self, X: Tensor) -> Tensor:
        return torch.cat([scale**0.5 * self._evaluate(term, features, X) for term, scale, features in self.terms], 1)

    @staticmethod
    def _evaluate(term: Kernel, features: ORFF | None, X: Tensor) -> Tensor:
        X = X if term.active_dims is None else X[:, term.active_dims]
        if isinstance(term, ConstantKernel):
            return term.constant.sqrt().reshape(1, 1).expand(len(X), 1)
        if isinstance(term, LinearKernel):
            return X * term.variance.reshape(1, -1).sqrt()
        return to_dense(features(X))


def choose_nodes(grid: Tensor, seed: int) -> Tensor:
    """Choose at most 80 points of a grid (g, t), evenly along an interval and at random otherwise, for a `KernelFactor`."""
    count = min(MAX_FEATURE_NODES, len(grid))
    if grid.shape[1] > 1:
        return grid[torch.randperm(len(grid), generator=torch.Generator().manual_seed(seed))[:count]]
    return grid[torch.linspace(0, len(grid) - 1, count).round().long()]


def _terms(kernel: Kernel, scale) -> list[tuple[Kernel, Tensor | float]]:
    """Return the terms of a sum of scaled kernels."""
    if isinstance(kernel, AdditiveKernel):
        return [pair for part in kernel.kernels for pair in _terms(part, scale)]
    if isinstance(kernel, ScaleKernel):
        return _terms(kernel.base_kernel, scale * kernel.outputscale)
    return [(kernel, scale)]


def _diagonal(kernel: Kernel, tasks: Tensor, derivative: int, channels: Tensor | None) -> Tensor:
    """Return the prior variances (M·q,) of a process, or of its derivative, at points (M, t)."""
    points = tasks if derivative == 0 else tasks[:1]  # derivatives of stationary kernels have equal variances
    if derivative == 0:
        single = evaluate_kernel(kernel, tasks, diag=True)
    elif hasattr(kernel, "derivative_covariance"):
        single = task_covariance(kernel, tasks, tasks, derivative, derivative).diagonal()
    else:
        single = task_covariance(kernel, points, points, derivative, derivative).expand(len(tasks), 1).squeeze(1)
    return single if channels is None else (single.unsqueeze(-1) * channels).flatten()


def task_covariance(kernel: Kernel, a: Tensor, b: Tensor, left: int | Tensor, right: int | Tensor) -> Tensor:
    """Compute the covariance (k, l) of the `left`-th derivative at points (k, t) and the `right`-th at points (l, t).

    Orders are a number, or one for each point. Raises `OptionError` for derivatives in several dimensions or beyond the first, and for kernels without a derivative.
    """
    if torch.is_tensor(left):
        found = a.new_empty(len(a), len(b))
        for order in left.unique().tolist():
            found[left == order] = task_covariance(kernel, a[left == order], b, order, right)
        return found
    if torch.is_tensor(right):
        return task_covariance(kernel, b, a, right, left).mT
    if left == right == 0:
        return to_dense(evaluate_kernel(kernel, a, b))
    if max(left, right) > 1 or a.shape[1] != 1:
        raise OptionError("derivative must be 0 or, on a one-dimensional domain, 1.")
    if hasattr(kernel, "derivative_covariance"):
        return kernel.derivative_covariance(a, b, left, right)
    try:
        jet = lag_jet(kernel, a.unsqueeze(1) - b)
    except SmoothnessError as error:
        raise OptionError(f"The curves of this kernel have no derivative: {error}") from error
    if left and right:
        return -jet.hessian[..., 0, 0]
    return jet.gradient[..., 0] * (1.0 if left else -1.0)
