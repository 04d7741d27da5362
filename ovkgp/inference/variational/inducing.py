"""Inducing points: a process represented by its p values at each of a few points Z, for any kernel.

    u = f(Z) + ε,   ε ~ N(0, δ I),   L Lᵀ = K(Z, Z) + δ I,
    f(x) = Φ(x) w + residual,   Φ(x) = K(x, Z) L⁻ᵀ,   w = L⁻¹ u ~ N(0, I),

and the residual is independent of w, with covariance K(x, x) − Φ(x) Φ(x)ᵀ ≥ 0. The small δ is part of the model of u
and not an approximation, so that bounds remain valid. For a separable kernel Σ_c k_c Γ_c, u holds values of its latent
processes instead, and Φ stacks φ_c ⊗ B_c with B_c B_cᵀ = Γ_c, a Kronecker product for one component.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features.feature_map import FeatureMap
from ovkgp.features.operators import FeatureOperator, stack_features
from ovkgp.inference.algebra.dense import gram_in_form, kronecker_in_form, safe_cholesky
from ovkgp.inference.model.observations import validate_inputs
from ovkgp.inference.posteriors.exact import make_prior_features
from ovkgp.inference.posteriors.posterior import KernelProcess, Process, draw_normal, prior_covariance, spawn_seeds
from ovkgp.kernels import components, num_outputs
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.outputs.matrices import CUTOFF, thin_root

RELATIVE_NUGGET = 1e-8  # δ relative to the mean prior variance at Z
MAX_CANDIDATE_ROWS = 20_000  # maximum number of rows among which inducing points are chosen

Draws = Callable[[Tensor, Tensor], Tensor]
"""Map from X (n, d) and the indices (j,) of functions to their values (n·p, j)."""


class KernelComponent(NamedTuple):
    """Component of a separable kernel at some inputs: k_c, B_c (p, q), Γ_c (p, p) and k_c(X, Z) L⁻ᵀ (n, m)."""

    scalar: Kernel
    factor: Tensor
    matrix: Tensor
    scores: Tensor


class InducingPoints(FeatureMap):
    """Whitened features of a kernel (shared, not copied) at inducing points Z (m, d), trained if `learn` is True.

    Unlike `Nystrom`, which drops small directions, the weights depend continuously on the hyperparameters.
    """

    def __init__(self, kernel: Kernel, points: Tensor, learn: bool = False):
        super().__init__()
        points = validate_inputs(points, name="the inducing points").double().detach().clone()
        if len(points) == 0:
            raise InputError("The inducing points must have at least 1 row, got 0.")
        self.kernel = kernel
        if learn:
            self.register_parameter("points", torch.nn.Parameter(points))
        else:
            self.register_buffer("points", points)
        parts = components(kernel)
        self.is_separable = parts is not None
        # decided once, as the number of weights must not change while a matrix is trained
        self.thin = [_is_singular(matrix) for _, matrix in parts or ()]

    @property
    def num_outputs(self) -> int:
        """Number of outputs p."""
        return num_outputs(self.kernel)

    @property
    def num_features(self) -> int:
        """Number of features r: m·p, or m Σ_c rank Γ_c for a separable kernel."""
        return self(self.points[:1]).shape[-1]

    def forward(self, X: Tensor) -> LinearOperator:
        """Compute Φ(X), of size (n·p) × r, for X (n, d)."""
        X = self._check_inputs(X)
        if self.is_separable:
            return self._stack_features(self._make_components(X))
        return self.features_of(KernelProcess(self.kernel, self.num_outputs), X)

    def features_of(self, process: Process, X: Tensor) -> LinearOperator:
        """Compute the features (m·q) × r of a process correlated with that of a kernel that is not separable."""
        scores = self._scores(self.kernel, process.cross(X, self.points))
        return FeatureOperator(scores, scores.new_ones(1, 1), num_outputs=1)

    def residual(self, X: Tensor, form: str, process: Process | None = None) -> Tensor:
        """Compute K(x, x) − Φ(x) Φ(x)ᵀ as "diag" (n, p), "output" (n, p, p) or "full" (n·p, n·p)."""
        return self.with_residual(X, form, process)[1]

    def with_residual(self, X: Tensor, form: str, process: Process | None = None) -> tuple[LinearOperator, Tensor]:
        """Compute Φ(X) and the residual from one evaluation of the kernel."""
        X = self._check_inputs(X)
        if self.is_separable and process is None:
            parts = self._make_components(X)
            first, *rest = (_separable_residual(part, X, form) for part in parts)
            return self._stack_features(parts), sum(rest, first)
        process = KernelProcess(self.kernel, self.num_outputs) if process is None else process
        features = self.features_of(process, X)
        return features, _residual_covariance(process.prior(X, form), to_dense(features), process.num_outputs, form)

    def auxiliary_parameters(self) -> list[Tensor]:
        """Return the inducing points, which are no hyperparameters."""
        return [self.points]

    def _check_inputs(self, X: Tensor) -> Tensor:
        X = self.check(X).to(self.points)
        if X.shape[-1] != self.points.shape[-1]:
            raise InputError(f"X has {X.shape[-1]} columns, expected {self.points.shape[-1]} as the inducing points.")
        return X

    def _stack_features(self, parts: list[KernelComponent]) -> LinearOperator:
        p = self.num_outputs
        return stack_features(*(FeatureOperator(part.scores, part.factor, num_outputs=p) for part in parts))

    def _make_components(self, X: Tensor) -> list[KernelComponent]:
        return [
            KernelComponent(k, B, A, self._scores(k, evaluate_kernel(k, X, self.points))) for k, B, A in self._latents()
        ]

    def _latents(self) -> list[tuple[Kernel, Tensor, Tensor]]:
        """Return (k_c, B_c, Γ_c) of each component."""
        parts = zip(components(self.kernel), self.thin, strict=True)
        parts = [(scalar, matrix.to(self.points), thin) for (scalar, matrix), thin in parts]
        return [(scalar, _root(matrix, thin), matrix) for scalar, matrix, thin in parts]

    def _scores(self, kernel: Kernel, cross: LinearOperator) -> Tensor:
        """Compute K(X, Z) L⁻ᵀ from K(X, Z)."""
        return torch.linalg.solve_triangular(self._chol(kernel), to_dense(cross).mT, upper=False).mT

    def _chol(self, kernel: Kernel) -> Tensor:
        matrix = to_dense(evaluate_kernel(kernel, self.points))
        return safe_cholesky(matrix + _nugget(matrix) * torch.eye(len(matrix)).to(matrix))

    def prior_draws(
        self, k: int, random_state, num_frequencies: int, process: Process | None = None
    ) -> tuple[Draws, Tensor]:
        """Draw k functions f̃ of the prior, or of `process`, by random features, and w̃ = L⁻¹ (f̃(Z) + ε) (r, k)."""
        if not self.is_separable:
            prior, theta, weights = self._draw(self.kernel, k, random_state, num_frequencies)
            process = KernelProcess(self.kernel, self.num_outputs) if process is None else process
            return lambda X, index: process.features(prior, X) @ theta[:, index], weights
        pairs = zip(self._latents(), spawn_seeds(random_state, len(self.thin)), strict=True)
        draws = [self._latent_draws(latent, k, seed, num_frequencies) for latent, seed in pairs]
        functions, weights = zip(*draws, strict=True)
        return lambda X, index: sum(function(X, index) for function in functions), torch.cat(weights)

    def _latent_draws(
        self, part: tuple[Kernel, Tensor, Tensor], k: int, random_state, num_frequencies: int
    ) -> tuple[Draws, Tensor]:
        """Draw functions of one component: q independent processes of its scalar kernel, mixed by B."""
        scalar, factor, _ = part
        q = factor.shape[1]
        prior, theta, weights = self._draw(scalar, q * k, random_state, num_frequencies)

        def function(X: Tensor, index: Tensor) -> Tensor:
            chosen = theta.unflatten(-1, (q, k))[..., index]
            return (factor @ (prior(X) @ chosen.flatten(1)).unflatten(-1, (q, -1))).flatten(0, 1)

        return function, weights.unflatten(-1, (q, k)).flatten(0, 1)

    def _draw(self, kernel: Kernel, k: int, random_state, num_frequencies: int) -> tuple[FeatureMap, Tensor, Tensor]:
        """Draw k functions of a kernel: random features, their coefficients, and L⁻¹ (f̃(Z) + ε)."""
        for_features, for_weights, for_nugget = spawn_seeds(random_state, 3)
        prior = make_prior_features(kernel, num_frequencies, self.points.shape[1], for_features)
        theta = draw_normal((prior.num_features, k), for_weights, self.points)
        drawn, matrix = prior(self.points) @ theta, to_dense(evaluate_kernel(kernel, self.points))
        nugget = _nugget(matrix).sqrt() * draw_normal(drawn.shape, for_nugget, drawn)
        return prior, theta, torch.linalg.solve_triangular(self._chol(kernel), drawn + nugget, upper=False)


def choose_inducing(X: Tensor, num_points: int, random_state=None) -> Tensor:
    """Choose at most `num_points` distant distinct rows of X (n, d) by k-means++ initialization in scaled columns."""
    num_points = check_integer("inducing", num_points)
    generator = torch.Generator().manual_seed(as_seed(random_state))
    X = X.detach()
    if len(X) > MAX_CANDIDATE_ROWS:
        X = X[torch.randperm(len(X), generator=generator)[:MAX_CANDIDATE_ROWS].to(X.device)]
    X = torch.unique(X.double(), dim=0)
    if len(X) <= num_points:
        return X
    std = X.std(0)
    scaled = X / torch.where(std > 0, std, 1.0)
    chosen = [int(torch.randint(len(X), (), generator=generator))]
    nearest = (scaled - scaled[chosen[0]]).square().sum(1)
    while len(chosen) < num_points:
        chosen.append(int(torch.multinomial(nearest.cpu(), 1, generator=generator)))
        nearest = torch.minimum(nearest, (scaled - scaled[chosen[-1]]).square().sum(1))
    return X[torch.tensor(chosen, device=X.device)]


def inducing_points(inducing, X: Tensor, random_state=None) -> Tensor:
    """Return Z (m, d) from a number of points or the points themselves, checked against the inputs X (n, d)."""
    if isinstance(inducing, int) and not isinstance(inducing, bool):
        return choose_inducing(X, inducing, random_state)
    if inducing is None or isinstance(inducing, (bool, float, str)):
        raise OptionError(f"inducing must be a number of points or an (m, d) array, got {inducing!r}.")
    return validate_inputs(inducing, X.shape[1], name="inducing").to(X.device)


def _separable_residual(part: KernelComponent, X: Tensor, form: str) -> Tensor:
    scalar_form = "full" if form == "full" else "diag"
    prior = prior_covariance(part.scalar, X, 1, scalar_form)
    return kronecker_in_form(_residual_covariance(prior, part.scores, 1, scalar_form), part.matrix, form)


def _nugget(matrix: Tensor) -> Tensor:
    return RELATIVE_NUGGET * matrix.diagonal().mean()


def _residual_covariance(prior: Tensor, features: Tensor, num_outputs: int, form: str) -> Tensor:
    """Compute prior − ΦΦᵀ for Φ (n·p, r), with negative rounding errors on the diagonal set to zero."""
    left = prior - gram_in_form(features, form, num_outputs)
    if form == "diag":
        return left.clamp_min(0)
    return left + torch.diag_embed((-left.diagonal(dim1=-2, dim2=-1)).clamp_min(0))


def _is_singular(matrix: Tensor) -> bool:
    values = torch.linalg.eigvalsh(matrix.detach().double())
    return bool(values[0] <= CUTOFF * values[-1])


def _root(matrix: Tensor, thin: bool) -> Tensor:
    """Compute B with B Bᵀ = Γ: smooth in Γ unless `thin` (Γ singular), which has as many columns as its rank."""
    return thin_root(matrix) if thin else safe_cholesky(matrix)
