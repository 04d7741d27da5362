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

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.algebra.kronecker import SeparableSolver, eigh
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, KernelProcess, difference
from ovkgp.inference.training.initialization import log_prior, parameter_bounds, parameter_scales
from ovkgp.inference.training.maximize import maximise
from ovkgp.kernels import DecomposableKernel, FunctionValuedKernel


def rotate(tensor: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """(F ⊗ S ⊗ T) applied to a tensor (n, m, p), one axis after another. O(n m p (n + m + p))."""
    n, m, p = tensor.shape
    tensor = (first @ tensor.reshape(n, m * p)).reshape(-1, m, p)
    return second @ (tensor @ third.mT)


def grid_log_density(
    input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
) -> Tensor:
    """log N(vec Y | 0, K_X ⊗ K_Θ ⊗ A + σ² I), differentiable once in K_X, K_Θ, A and σ².

    Args:
        input_gram: K_X (n, n).
        task_gram: K_Θ (m, m).
        output_matrix: A (p, p), positive semi-definite.
        noise: σ², a scalar.
        targets: Y (n, m, p), complete.

    Cost: O(n³ + m³ + p³ + n m p (n + m + p)), value and gradient.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.functional_ridge_grid import grid_log_density
        >>> I, one = torch.eye(3).double(), torch.ones(()).double()
        >>> grid_log_density(I, I[:2, :2], I[:1, :1], one, torch.ones(3, 2, 1).double())
        tensor(-9.0931, dtype=torch.float64)
    """
    return _GridDensity.apply(input_gram, task_gram, output_matrix, noise, targets)


class _GridDensity(torch.autograd.Function):
    """∂K_X = ½ (Σ α (K_Θ ⊗ A) αᵀ − U diag(Σ_jk t_j a_k / c_ijk) Uᵀ) with α = C⁻¹ Y, and so for the other two; ∂σ² = ½ (‖α‖² − Σ 1/c)."""

    @staticmethod
    def forward(
        ctx, input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
    ) -> Tensor:
        sides = [eigh(matrix) for matrix in (input_gram, task_gram, output_matrix)]
        (s, U), (t, V), (a, W) = sides
        values = torch.einsum("i,j,k->ijk", s, t, a) + noise.detach()
        rotated = rotate(targets.detach(), U.mT, V.mT, W.mT)
        weights = rotated / values
        ctx.save_for_backward(s, U, t, V, a, W, values, weights)
        return gaussian_log_density((rotated * weights).sum(), values.log().sum(), values.numel())

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if torch.is_grad_enabled():
            raise OptionError(
                "the evidence on a grid has first derivatives only: create_graph=True asks for the second."
            )
        s, U, t, V, a, W, values, weights = ctx.saved_tensors
        half, needed = gradient / 2, ctx.needs_input_grad

        def by(axis: int, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor | None:
            if not needed[axis]:
                return None
            scale = torch.outer(first, second).flatten()
            rows, eigenvalues = (tensor.movedim(axis, 0).flatten(1) for tensor in (weights, values))
            inner = (rows * scale) @ rows.mT - torch.diag((scale / eigenvalues).sum(1))
            return vectors @ inner @ vectors.mT * half

        by_noise = (weights.square().sum() - (1 / values).sum()) * half if needed[3] else None
        by_targets = -gradient * rotate(weights, U, V, W) if needed[4] else None
        return by(0, t, a, U), by(1, s, a, V), by(2, s, t, W), by_noise, by_targets


class GridSolver(SeparableSolver):
    """C⁻¹ for C = K_X ⊗ K_Θ ⊗ A + σ² I, for predictions.

    Args:
        input_gram: K_X (n, n).
        task_gram: K_Θ (m, m).
        output_matrix: A (p, p), positive semi-definite.
        noise: σ² > 0.
        targets: Y (n, m, p), complete.

    Attributes:
        alpha: C⁻¹ Y, (n·m, p): a row for each pair (x_i, θ_j), the representer coefficients of LT-83.
        log_density: log N(vec Y | 0, C).

    Cost: O(n³ + m³ + p³ + n m p (n + m + p)); a solve with k columns O(n m p (n + m + p) k).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.functional_ridge_grid import GridSolver
        >>> I, one = torch.eye(3).double(), torch.ones(()).double()
        >>> GridSolver(I, I[:2, :2], I[:1, :1], one, torch.ones(3, 2, 1).double()).alpha.flatten()
        tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """

    KEPT = ("s", "U", "t", "V", "a", "W", "noise", "alpha", "log_density")

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
        """(n, m, p)."""
        return len(self.s), len(self.t), len(self.a)

    @property
    def values(self) -> Tensor:
        """s_i t_j a_u + σ², (n, m, p), the eigenvalues of C."""
        return torch.einsum("i,j,u->iju", self.s, self.t, self.a) + self.noise

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, (n·m·p, k) → (n·m·p, k)."""
        columns = (self._solve_one(column.reshape(self.shape)).flatten() for column in rhs.mT)
        return torch.stack(list(columns), -1)

    def _solve_one(self, tensor: Tensor) -> Tensor:
        return rotate(rotate(tensor, self.U.mT, self.V.mT, self.W.mT) / self.values, self.U, self.V, self.W)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹ (n·m, p)."""
        squares = (vectors.square() for vectors in (self.U, self.V, self.W))
        return rotate(1 / self.values, *squares).flatten(0, 1)

    def levels(self) -> tuple[Tensor, Tensor]:
        """The distinct eigenvalues of A, to 1e-12 of the largest, and which of them each is: one for A = I, two for a projection."""
        unit = 1e-12 * self.a.max().clamp_min(torch.finfo(self.a.dtype).tiny)
        rounded, place = torch.unique((self.a / unit).round(), return_inverse=True)
        return rounded * unit, place

    def shares(self, inputs: Tensor, tasks: Tensor, paired: bool) -> Tensor:
        """What the data explain of the variance along each eigenvector of A, as a part of its eigenvalue.

            Σ_ij (k_X U)_i² (k_Θ V)_j² a_u / (s_i t_j a_u + σ²)

        Args:
            inputs: k_X (k, n), covariances with the training inputs.
            tasks: k_Θ (l, m), with the tasks of the grid.
            paired: rows of the two go together, (k, p); else all combinations, (k, l, p).
        """
        left, right = (inputs @ self.U).square(), (tasks @ self.V).square()
        levels, place = self.levels()
        found = []
        for level in levels:
            inner = left @ (level / (torch.outer(self.s, self.t) * level + self.noise))  # (k, m)
            found.append((inner * right).sum(-1) if paired else inner @ right.mT)
        return torch.stack(found, -1)[..., place]

    def joint_shares(self, inputs: Tensor, tasks: Tensor, level: Tensor) -> Tensor:
        """The same between all pairs (k, k), of one eigenvalue `level` of A. O(k² n m)."""
        features = torch.einsum("ki,kj->kij", inputs @ self.U, tasks @ self.V).flatten(1)
        return (features * (level / (torch.outer(self.s, self.t) * level + self.noise)).flatten()) @ features.mT


def pairs(X: Tensor, tasks: Tensor) -> Tensor:
    """All pairs (x_i, θ_j) of X (n, d) and tasks (m, q), data-major: (n·m, d + q).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.functional_ridge_grid import pairs
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
        >>> from ovkgp.inference.tasks.functional_ridge_grid import condition_on_grid, pairs
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
        >>> from ovkgp.inference.tasks.functional_ridge_grid import train_on_grid
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

    bounds, sizes = parameter_bounds(gp, data), parameter_scales(gp, data)
    report = maximise(
        gp, objective, bounds=bounds, sizes=sizes, max_iter=max_iter, tolerance=1e-6, scale=Y.numel(), verbose=verbose
    )
    report.num_rows, report.num_observed = len(X), Y.numel()
    with torch.no_grad():
        report.log_evidence = float(objective() - log_prior(gp))
    gp.fit_report_ = report
    return report


def _one_noise(gp: OperatorValuedGP) -> Tensor:
    if gp.noise.dim():
        raise InputError(f"on a grid all outputs share one noise variance; this model has {tuple(gp.noise.shape)}.")
    return gp.noise
