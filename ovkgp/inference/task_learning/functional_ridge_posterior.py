"""The posterior of x ↦ (θ ↦ vector) on pairs (x, θ), for the prior k_X(x, x') k_Θ(θ, θ') A (LT-100, LT §6.0).

A model on pairs, `OperatorValuedGP(DecomposableKernel(FunctionValuedKernel(k_X, k_Θ), output_matrix=A))`, can be conditioned on any
pairs at all: tasks of their own for each row, masks, weights. Where every input was seen at every task of a grid, `condition_on_grid`
does the same with three small eigendecompositions; `train_on_grid` trains its hyperparameters at that price.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError
from ovkgp.inference.data import Observations
from ovkgp.inference.exact_posterior import ExactPosterior
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.fitting import parameter_boxes, parameter_sizes
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.posterior import CHUNK_ENTRIES, difference
from ovkgp.inference.priors import log_prior
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.task_learning.functional_ridge_grid import GridSolver, grid_log_density
from ovkgp.inference.training import maximise
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel


def pairs(X: Tensor, tasks: Tensor) -> Tensor:
    """All pairs (x_i, θ_j) of X (n, d) and tasks (m, q), data-major: (n·m, d + q).

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.functional_ridge_posterior import pairs
        >>> pairs(torch.tensor([[1.0], [2.0]]), torch.tensor([[7.0], [8.0]])).tolist()
        [[1.0, 7.0], [1.0, 8.0], [2.0, 7.0], [2.0, 8.0]]
    """
    return torch.cat([X.repeat_interleave(len(tasks), 0), tasks.repeat(len(X), 1)], -1)


class Factors:
    """The parts of a kernel s² k_X k_Θ A on pairs, at its present hyperparameters.

    Attributes:
        inputs, tasks: k_X and k_Θ.
        output_matrix: s² A (p, p).

    Raises:
        KernelTypeError: it is not of this form.
    """

    def __init__(self, kernel: Kernel):
        is_scaled = isinstance(kernel, ScaleKernel)
        inner = kernel.base_kernel if is_scaled else kernel
        base = getattr(inner, "base_kernel", None)
        if not (
            isinstance(inner, DecomposableKernel) and isinstance(base, FunctionValuedKernel) and base.tasks is None
        ):
            raise KernelTypeError(
                "expected DecomposableKernel(FunctionValuedKernel(input_kernel, task_kernel), output_matrix=A), times an "
                f"outputscale or not; got {type(kernel).__name__}."
            )
        self.inputs, self.tasks = base.input_kernel, base.task_kernel
        self.output_matrix = kernel.outputscale * inner.output_matrix if is_scaled else inner.output_matrix


class GridPosterior(ExactPosterior):
    """The posterior on pairs (x, θ) given values at all pairs of a grid; `predict` takes pairs (k, d + q).

    Args:
        process, solver, data, mean, output_noise: as for `ExactPosterior`; the data are all pairs, data-major.
        grid: the tasks (m, q).

    Cost of k means: O(k n m p); of k standard deviations: O(k n (n + m)) for each of the distinct eigenvalues of A.

    Example:
        See `condition_on_grid`.
    """

    def __init__(
        self, process: KernelProcess, solver: GridSolver, data: Observations, mean, output_noise: Tensor, grid: Tensor
    ):
        super().__init__(process, solver, data, mean, output_noise)
        self.grid, self.factors = grid, Factors(process.kernel)
        self.inputs = data.X[:: len(grid), : -grid.shape[1]]

    def rows_at_once(self, form: str) -> int:
        n, m, p = self.solver.shape
        return CHUNK_ENTRIES // max(n, m * p, p * p if form == "output" else 1)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        inputs, tasks = X[:, : -self.grid.shape[1]], X[:, -self.grid.shape[1] :]
        left, right = self._cross(inputs, tasks)
        mean = self.prior_mean(X) + torch.einsum("kjp,kj->kp", self._towards(left), right)
        if form == "none":
            return mean, None
        return mean, difference(self.process.prior(X, form), self._explained(left, right, form), self.num_outputs, form)

    def on_grid(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Mean and, for form "diag", variance (k, l, p) of the latent vectors at all pairs of X (k, d) and tasks (l, q).

        Cost: O(k n m p + k l m p), less than that of `predict` for the k·l pairs by a factor l or m.
        """
        left, right = self._cross(X, tasks)
        mean = right @ self._towards(left)
        mean = mean + self.prior_mean(pairs(X, tasks)).unflatten(0, (len(X), -1))
        if form == "none":
            return mean, None
        explained = self._mixed(self.solver.shares(left, right, paired=False)).flatten(0, 1)
        prior = self.process.prior(pairs(X, tasks), "diag")
        return mean, difference(prior, explained, self.num_outputs, "diag").unflatten(0, (len(X), -1))

    def _cross(self, inputs: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return to_dense(self.factors.inputs(inputs, self.inputs)), to_dense(self.factors.tasks(tasks, self.grid))

    def _towards(self, left: Tensor) -> Tensor:
        """Σ_i k_X(x, x_i) A α_ij, (k, m, p)."""
        n, m, p = self.solver.shape
        return (left @ self.solver.alpha.reshape(n, m * p)).reshape(-1, m, p) @ self.factors.output_matrix

    def _mixed(self, shares: Tensor) -> Tensor:
        """Variances along the eigenvectors of A (…, p) to those of the outputs."""
        return (shares * self.solver.a) @ self.solver.W.square().mT

    def _explained(self, left: Tensor, right: Tensor, form: str) -> Tensor:
        a, W = self.solver.a, self.solver.W
        if form == "full":
            levels, place = self.solver.levels()
            blocks = [(W[:, place == i] * level) @ W[:, place == i].mT for i, level in enumerate(levels)]
            shares = (self.solver.joint_shares(left, right, level) for level in levels)
            return sum(torch.kron(share, block) for share, block in zip(shares, blocks, strict=True))
        shares = self.solver.shares(left, right, paired=True)
        return self._mixed(shares) if form == "diag" else (W * (shares * a).unsqueeze(1)) @ W.mT


def condition_on_grid(gp: OperatorValuedGP, X: Tensor, tasks: Tensor, Y: Tensor) -> GridPosterior:
    """The posterior of a model on pairs given Y at all pairs of X and tasks: what `gp.condition(pairs(X, tasks), …)` is, faster.

    Args:
        gp: with kernel s² k_X k_Θ A on pairs, mean zero and one noise for all.
        X: (n, d).
        tasks: (m, q).
        Y: (n, m, p), complete.

    Cost: O(n³ + m³ + p³ + n m p (n + m + p)) time, O(n² + m² + p² + n m p) memory.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.task_learning.functional_ridge_posterior import condition_on_grid, pairs
        >>> from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel
        >>> kernel = DecomposableKernel(FunctionValuedKernel(RBFKernel(), RBFKernel()), output_matrix=torch.eye(2))
        >>> gp = OperatorValuedGP(kernel, mean="zero", noise=0.1)
        >>> X, tasks = torch.randn(5, 3).double(), torch.linspace(0, 1, 4).double()[:, None]
        >>> Y = torch.randn(5, 4, 2).double()
        >>> fast, slow = condition_on_grid(gp, X, tasks, Y), gp.condition(pairs(X, tasks), Y.flatten(0, 1))
        >>> torch.allclose(fast.predict(pairs(X, tasks)).std, slow.predict(pairs(X, tasks)).std)
        True
    """
    with torch.no_grad(), gp.naming_failures():
        data, model = gp.observe(pairs(X, tasks), Y.flatten(0, 1)).double().clone(), gp.frozen().model
        factors, tasks = Factors(model.kernel), tasks.double()
        grams = to_dense(factors.inputs(X.double())), to_dense(factors.tasks(tasks))
        solver = GridSolver(*grams, factors.output_matrix, _one_noise(gp), Y.double())
        process = KernelProcess(model.kernel, data.num_outputs)
        return GridPosterior(process, solver, data, model.mean, model.new_noise(data), tasks)


def train_on_grid(
    gp: OperatorValuedGP, X: Tensor, tasks: Tensor, Y: Tensor, *, max_iter: int = 200, verbose: int = 0
) -> FitReport:
    """Train the hyperparameters of a model on pairs to the largest evidence, from their present values, in place.

    Args:
        gp, X, tasks, Y: as for `condition_on_grid`; what does not require a gradient stays.
        max_iter: of L-BFGS.
        verbose: 1 shows a progress bar.

    Ctrl-C keeps the best values so far. Cost: that of `condition_on_grid` an iteration.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.task_learning.functional_ridge_posterior import train_on_grid
        >>> from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel
        >>> kernel = DecomposableKernel(FunctionValuedKernel(RBFKernel(), RBFKernel()), output_matrix=torch.eye(1))
        >>> gp = OperatorValuedGP(kernel, mean="zero", noise="shared")
        >>> X, tasks = torch.linspace(0, 3, 12).double()[:, None], torch.linspace(0, 1, 4).double()[:, None]
        >>> train_on_grid(gp, X, tasks, torch.sin(X + tasks.T).unsqueeze(-1)).converged
        True
    """
    data = gp.observe(pairs(X, tasks), Y.flatten(0, 1)).double()
    X, tasks, Y = X.double(), tasks.double(), Y.double()

    def objective() -> Tensor:
        factors = Factors(gp.kernel)
        grams = to_dense(factors.inputs(X)), to_dense(factors.tasks(tasks))
        return grid_log_density(*grams, factors.output_matrix, _one_noise(gp), Y) + log_prior(gp)

    boxes, sizes = parameter_boxes(gp, data), parameter_sizes(gp, data)
    report = maximise(
        gp, objective, boxes=boxes, sizes=sizes, max_iter=max_iter, tolerance=1e-6, scale=Y.numel(), verbose=verbose
    )
    report.num_rows, report.num_seen = len(X), Y.numel()
    with torch.no_grad():
        report.log_evidence = float(objective() - log_prior(gp))
    gp.fit_report_ = report
    return report


def _one_noise(gp: OperatorValuedGP) -> Tensor:
    if gp.noise.dim():
        raise InputError(f"on a grid all outputs share one noise variance; this model has {tuple(gp.noise.shape)}.")
    return gp.noise
