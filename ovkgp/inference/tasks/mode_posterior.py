"""Regression with any convex loss and any operator-valued kernel: the mode of a posterior, and its covariance (BT-70, LT §6.0).

    f̂ = argmin Σ_ij w_ij ℓ(θ_j, f_j(x_i), y_ij) / σ² + ½ ‖f‖²_K = Σ_i K(·, x_i) u_i,     u_ij = −w_ij ∂ℓ(θ_j, f̂_j(x_i), y_ij) / σ²

is the mode of f ~ GP(0, K) under the likelihood exp(−ℓ/σ²), with the level θ_j of output j. It is a `TaskProblem` whose nodes are the
outputs if the kernel is separable, and whose rows are the observed entries otherwise. Standard deviations are those of a variational
approximation under the normalized likelihood, computed when they are first requested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from scipy.optimize import minimize_scalar
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.likelihoods import Likelihood, LikelihoodPrediction
from ovkgp.inference.likelihoods.factory import likelihood_of_loss
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.mean_noise import OutputMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ProcessPosterior
from ovkgp.inference.posteriors.posterior import CHUNK_ENTRIES, FunctionDraws, Process, spawn_seeds
from ovkgp.inference.posteriors.prediction import FORMS, Prediction, check_form
from ovkgp.inference.tasks.functional_ridge_grid import PairKernelParts
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.paths import compute_sparsity
from ovkgp.inference.tasks.solvers.primal import Curvature, solve_primal
from ovkgp.inference.tasks.solvers.square import ObservedTasks
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.inference.variational.posterior import VariationalPosterior
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.losses import CurveLoss, IntegralLoss, Loss

ROOT_CUTOFF = 1e-13  # eigenvalues of Gram matrices below this fraction of the largest are dropped
MAX_INDUCING = 300  # number of inducing points of the approximation; with fewer rows, these are the points
MAX_LOG_SCALE = 30.0
MAX_NEWTON_STEPS, MAX_POLISH_OPERATIONS = 8, 2e10


@dataclass
class Mode:
    """Minimizer f̂: coefficients u (n, p), 0 where nothing was observed, and its certificate.

    `objective` is Σ w ℓ/σ² + ½ ‖f̂‖², `gap` the duality gap relative to it, `sparsity` the fraction of entries with u = 0.
    """

    coefficients: Tensor
    objective: float
    gap: float
    sparsity: float
    report: FitReport


@torch.no_grad()
def solve_mode(problem: TaskProblem, observed: Tensor, noise: float, **options) -> Mode:
    """Solve a problem of `make_entry_problem` by `solve_primal` with its `options`; `observed` is the mask (n, p)."""
    found = _polish(problem, solve_primal(problem, **options))
    coefficients = problem.entry_weights * found.dual / noise
    if coefficients.shape != observed.shape:  # the rows are the observed entries
        coefficients = observed.new_zeros(observed.shape, dtype=torch.float64).masked_scatter(observed, coefficients)
    found.report.num_rows = len(observed)
    natural = problem.num_rows / noise  # from (1/n) Σ ℓ + (λ/2) ‖f‖² with λ = σ²/n
    sparsity = compute_sparsity(found.dual, problem.entry_weights).entries
    relative = found.gap / max(abs(found.objective), 1e-300)
    return Mode(coefficients, natural * found.objective, relative, sparsity, found.report)


def _polish(problem: TaskProblem, solution: TaskSolution) -> TaskSolution:
    """Take Newton steps on J itself, if the loss has a curvature, until the gradient stops falling; A becomes −∂L.

    An error of W is about the root of a duality gap, so that a gap of 1e-9 is not enough for exact results.
    """
    loss = problem.loss
    if not isinstance(loss, IntegralLoss) or not math.isfinite(loss.lipschitz()):
        return solution
    if Curvature(problem, problem.entry_weights).cost > MAX_POLISH_OPERATIONS:
        return solution
    weights, best = solution.weights, math.inf
    for _ in range(MAX_NEWTON_STEPS):
        slopes = loss.derivative(H := problem.values(weights), problem.targets)
        gradient = problem.adjoint(problem.entry_weights * slopes) / problem.num_rows + problem.lam * weights
        if (size := gradient.norm().item()) >= 0.5 * best:
            break
        best, kept, dual = size, weights, -slopes
        curvature = problem.entry_weights * loss.curvature(H, problem.targets) / problem.num_rows
        weights = weights - Curvature(problem, curvature).solve(gradient)
    objective, lower = problem.objective(kept).item(), problem.dual_objective(dual).item()
    if objective - lower > solution.gap + 1e-12 * abs(objective):
        return solution
    return replace(solution, weights=kept, dual=dual, objective=objective, gap=max(objective - lower, 0.0))


@torch.no_grad()
def make_entry_problem(
    kernel: Kernel,
    features: FeatureMap | None,
    data: Observations,
    loss: Loss | CurveLoss,
    levels: Tensor,
    noise: float,
    weights: Tensor | None = None,
) -> TaskProblem:
    """Make the problem of a kernel, or of its feature map, with noise σ², levels (p,) and weights (n, p) of the entries.

    Complexity: O(n³ + p³) for a separable kernel, O(n M min(n, M)) with M scalar features, else O(N³) for N observed entries.
    """
    factors = _separable_factors(kernel, features, data.X)
    if factors is not None:
        return make_separable_problem(*factors, data.Y, loss, levels, noise, weights)
    if isinstance(loss, CurveLoss):
        raise OptionError(
            f"loss={type(loss).__name__} couples the outputs of a row and requires a separable kernel. Use a loss of single values, such as Huber."
        )
    observed = data.observed.flatten()
    if features is None:
        rows = _root(to_dense(evaluate_kernel(kernel, data.X)).double()[observed][:, observed])
    else:
        rows = _narrow(to_dense(features(data.X)).double()[observed])
    levels = levels.expand(data.Y.shape)[data.observed].unsqueeze(-1)
    weights = torch.ones_like(levels) if weights is None else weights[data.observed].unsqueeze(-1)
    loss.check_targets(data.Y[data.observed])
    measured = IntegralLoss(loss, ObservedTasks(levels, weights))
    one = torch.ones(1, 1, dtype=torch.float64)
    return TaskProblem(rows, one, data.Y[data.observed].unsqueeze(-1), measured, noise / len(rows))


def make_separable_problem(
    inputs: Tensor,
    tasks: Tensor,
    Y: Tensor,
    loss: Loss | CurveLoss,
    levels: Tensor,
    noise: float,
    weights: Tensor | None = None,
) -> TaskProblem:
    """Make the problem of the kernel with factors ΦΦᵀ (n, n) of the inputs and ΨΨᵀ (p, p) of the outputs, NaN where Y is missing."""
    observed = torch.isfinite(Y)
    if isinstance(loss, CurveLoss):
        measured = _check_curve_loss(loss, observed, weights)
    else:
        loss.check_targets(Y[observed])
        if weights is None and bool(observed.all()):
            weights = torch.ones_like(levels)  # shared by all rows
        else:
            weights = observed.double() if weights is None else torch.where(observed, weights, 0.0)
        measured = IntegralLoss(loss, ObservedTasks(levels, weights))
    return TaskProblem(inputs, tasks, Y, measured, noise / len(inputs))


@torch.no_grad()
def make_pair_problems(
    kernel: Kernel, X: Tensor, tasks: Tensor, Y: Tensor, loss: Loss, noise: float, weights: Tensor | None = None
) -> list[TaskProblem]:
    """Make the problems of a kernel k_X k_Θ A on pairs of X (n, d) and tasks (m, q), for Y (n, m, p) and weights (n, m, p).

    There is one problem per output if A is diagonal, whose nodes are the tasks, and one problem whose nodes are all m·p entries of a
    row otherwise. Complexity: O(n³ + m³), and O(p³ + m²p²) if A is not diagonal.
    """
    parts = PairKernelParts(kernel)
    inputs = _root(to_dense(evaluate_kernel(parts.inputs, X)).double())
    over_tasks, matrix = _root(to_dense(evaluate_kernel(parts.tasks, tasks)).double()), parts.output_matrix.double()

    def make(rows: Tensor, Y: Tensor, weights: Tensor | None) -> TaskProblem:
        levels = torch.full((len(rows),), 0.5, dtype=torch.float64)
        return make_separable_problem(inputs, rows, Y, loss, levels, noise, weights)

    if bool((matrix == torch.diag(matrix.diagonal())).all()):
        scales = matrix.diagonal().clamp_min(0.0).sqrt()
        each = [None] * len(scales) if weights is None else weights.unbind(-1)
        return [make(s * over_tasks, y, w) for s, y, w in zip(scales, Y.unbind(-1), each, strict=True)]
    rows = torch.kron(over_tasks, _root(matrix))
    return [make(rows, Y.flatten(1), None if weights is None else weights.flatten(1))]


def solve_pair_problems(problems: list[TaskProblem], observed: Tensor, noise: float, **options) -> Mode:
    """Solve the problems of `make_pair_problems`, with coefficients and `observed` (n, m, p); options of `solve_primal`."""
    verbose = options.pop("verbose", 0)
    if len(problems) == 1:
        mode = solve_mode(problems[0], observed.flatten(1), noise, verbose=verbose, **options)
        return replace(mode, coefficients=mode.coefficients.reshape(observed.shape))
    masks = zip(problems, observed.unbind(-1), strict=True)
    masks = tqdm(masks, total=len(problems), disable=not verbose, desc="outputs", unit="output")
    modes = [solve_mode(problem, mask, noise, **options) for problem, mask in masks]
    reports, total = [mode.report for mode in modes], sum(mode.objective for mode in modes)
    worst = next((report for report in reports if not report.converged), reports[0])
    counts = {name: sum(getattr(one, name) for one in reports) for name in ("iterations", "evaluations", "seconds")}
    report = replace(worst, objective=sum(one.objective for one in reports), num_observed=int(observed.sum()), **counts)
    gap = sum(mode.gap * mode.objective for mode in modes) / max(total, 1e-300)
    sizes = observed.sum((0, 1)).double()
    sparsity = sum(size * mode.sparsity for size, mode in zip(sizes, modes, strict=True)) / sizes.sum()
    return Mode(torch.stack([mode.coefficients for mode in modes], -1), total, gap, float(sparsity), report)


def _check_curve_loss(loss: CurveLoss, observed: Tensor, weights: Tensor | None) -> CurveLoss:
    if loss.num_nodes != observed.shape[1]:
        raise InputError(
            f"loss has a measure with {loss.num_nodes} nodes, expected {observed.shape[1]}, the number of outputs. Use measure=Coordinates({observed.shape[1]})."
        )
    if weights is not None or not bool(observed.all()):
        raise OptionError(
            f"loss={type(loss).__name__} requires complete outputs without sample_weight. Use a loss of single values, such as Huber."
        )
    return loss


def _separable_factors(kernel: Kernel, features: FeatureMap | None, X: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return Φ (n, r) and Ψ (p, q) of a kernel k(x, z) Γ or of features φ ⊗ B; None if there are none."""
    if features is not None:
        found = features(X)
        is_separable = isinstance(found, FeatureOperator) and found.is_separable
        return (_narrow(found.features.double()), found.factor.double()) if is_separable else None
    pairs = components(kernel)
    if pairs is None or len(pairs) != 1:
        return None
    ((scalar, matrix),) = pairs
    return _root(to_dense(evaluate_kernel(scalar, X)).double()), _root(matrix.double())


def _root(gram: Tensor) -> Tensor:
    """Return R with R Rᵀ = gram, with as many columns as the rank."""
    values, vectors = eigh((gram + gram.mT) / 2)
    kept = values > ROOT_CUTOFF * values[-1].clamp_min(1e-300)
    return vectors[:, kept] * values[kept].sqrt()


def _narrow(rows: Tensor) -> Tensor:
    """Return rows with the same inner products and at most as many columns as rows."""
    return _root(rows @ rows.mT) if rows.shape[1] > rows.shape[0] else rows


def find_evidence_scale(mode: Mode, loss: Loss, levels: Tensor, noise: float, counts: Tensor) -> float:
    """Return the factor s² of prior and noise that maximizes −J/s² − Σ_j N_j log Z_j(s² σ²), with N (p,) observed entries per output.

    It is the Laplace approximation of the evidence with constant curvature, exact for the square loss: s² = 2J/N (LT §6.0).
    """
    zero = torch.zeros(1, len(levels), dtype=torch.float64)

    @torch.no_grad()
    def negative(log_scale: float) -> float:
        scale = math.exp(log_scale)
        # the loss of an error 0 is 0
        log_height = likelihood_of_loss(loss, scale * noise, levels).log_density(zero, zero)[0]
        return mode.objective / scale - (counts * log_height).sum().item()

    first = math.log(max(2 * mode.objective / counts.sum().item(), 1e-300))
    bounds = (first - MAX_LOG_SCALE, first + MAX_LOG_SCALE)
    return math.exp(minimize_scalar(negative, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x)


class ModePosterior(ProcessPosterior):
    """Posterior under the likelihood of a loss, as a Gaussian process with its mode as mean.

    The covariance is that of the variational posterior `approximation`. Without a normalized likelihood (None), or if entries have
    weights, there is no covariance, and requests for it raise an `OptionError`.

    Parameters
    ----------
    process : Process
        The observed process, or one that is jointly Gaussian with it.
    mean : OutputMean
        Prior mean.
    data : Observations
        Training data.
    coefficients : Tensor of shape (n, p)
        u in f̂ = Σ_i K(·, x_i) u_i.
    likelihood : Likelihood or None
        Likelihood of the loss.
    reason : str, default=""
        Reason why there is no likelihood, for error messages.
    features : FeatureMap or None, default=None
        Feature map of the kernel.
    variance : {"features", "guarded"}, default="features"
        Variance of a model with features, as in `VariationalGP.condition`.
    """

    no_residuals = "Whitened residuals are not supported with losses other than the square loss. Use loss='square'."

    def __init__(
        self,
        process: Process,
        mean: OutputMean,
        data: Observations,
        coefficients: Tensor,
        likelihood: Likelihood | None,
        reason: str = "",
        features: FeatureMap | None = None,
        variance: str = "features",
    ):
        super().__init__(process, mean, None, data.X.shape[1])
        self.data, self.coefficients, self.likelihood, self.reason = data, coefficients, likelihood, reason
        self.feature_map, self.variance, self.log_evidence = features, variance, math.nan
        self._observed: ModePosterior | None = None

    @property
    def X(self) -> Tensor:
        """Training inputs (n, d)."""
        return self.data.X

    @cached_property
    def weights(self) -> Tensor:
        """Weights (r,) of the features at the mode, Φᵀ u."""
        with torch.no_grad():
            return self.feature_map(self.X).mT @ self.coefficients.flatten()

    @cached_property
    def approximation(self) -> VariationalPosterior:
        """Variational posterior, with its own mean; with the exact kernel, from at most 300 inducing points."""
        if self._observed is not None:
            return self._observed.approximation.for_process(self.process)
        if self.likelihood is None:
            raise OptionError(
                f"Standard deviations, intervals and draws are not supported {self.reason} Use predict(X) without them."
            )
        inducing = MAX_INDUCING if self.feature_map is None else None
        gp = VariationalGP(self.process.kernel, self.likelihood, self.feature_map, inducing, mean="zero")
        return gp.requires_grad_(False).condition(self.X, self.data.Y, variance=self.variance)

    def for_process(self, process: Process) -> ModePosterior:
        """Return the posterior of another process that is jointly Gaussian with the observed one."""
        parts = self.data, self.coefficients, self.likelihood, self.reason, self.feature_map, self.variance
        found = ModePosterior(process, self.mean, *parts)
        found._observed = self._observed or self
        return found

    @cached_property
    def _separable(self) -> tuple[Kernel, Tensor] | None:
        """Scalar kernel and Γ of a separable kernel of the observed process; else None."""
        pairs = components(self.process.kernel) if self.process.is_observed and self.feature_map is None else None
        return pairs[0] if pairs is not None and len(pairs) == 1 else None

    def max_chunk_rows(self, form: str) -> int:
        if form != "none":
            return self.approximation.max_chunk_rows(form)
        if self._separable is not None:
            return CHUNK_ENTRIES // max(len(self.X), self.num_outputs**2)
        size = self.coefficients.numel() if self.feature_map is None else len(self.weights)
        return CHUNK_ENTRIES // (size * self.num_outputs)

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        if self._separable is not None:
            scalar, matrix = self._separable
            values = (to_dense(evaluate_kernel(scalar, X, self.X)) @ (self.coefficients @ matrix)).flatten()
        elif self.feature_map is None:
            values = self.process.cross(X, self.X) @ self.coefficients.flatten()
        else:
            values = self.process.features(self.feature_map, X) @ self.weights
        mode = self.prior_mean(X) + values.unflatten(-1, (-1, self.num_outputs))
        return mode, None if form == "none" else self.approximation.latent(X, form)[1]

    def predict(self, X, cov: str = "diag", noise: bool = False) -> Prediction:
        """Predict the latent f, or with `noise` a new observation, whose `mean` is the mode of f too."""
        if not noise or not self.process.is_observed or cov == "none":
            return super().predict(X, cov, noise and not self.process.is_observed)
        form = max(check_form(cov), "diag", key=FORMS.index)
        return ModePrediction(super().predict(X, form), self.likelihood)

    def sample(self, X, k: int = 1, *, noise: bool = False, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, p) at the points X (m, d), of f or, with `noise`, of y. Complexity: O((m·p)³)."""
        if not noise or not self.process.is_observed:
            return super().sample(X, k, noise=noise, random_state=random_state)
        for_function, for_noise = spawn_seeds(random_state, 2)
        values = super().sample(X, k, random_state=for_function)
        return self.likelihood.draw(values, torch.Generator().manual_seed(for_noise))

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        draws = self.approximation.sample_functions(k, random_state=random_state)

        @torch.no_grad()
        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            shift = self.latent(X, "none")[0] - self.approximation.latent(X, "none")[0]
            return draws._evaluate(X, index) + shift

        return FunctionDraws(evaluate, k, self.num_dims)


class ModePrediction(LikelihoodPrediction):
    """Prediction of new observations with the mode of f as `mean`, a quantile for a pinball loss, instead of E[y]."""

    def _mean_and_covariance(self) -> tuple[Tensor, Tensor, str]:
        _, covariance, form = super()._mean_and_covariance()
        return self.latent.mean, covariance, form
