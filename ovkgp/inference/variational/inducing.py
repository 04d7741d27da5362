"""Inducing points: the process seen through its own values at a few points Z, p values a point, for any kernel.

    u = f(Z) + ε,  ε ~ N(0, δ I),   L Lᵀ = K(Z, Z) + δ I,   f(x) = Φ(x) w + residual,   Φ(x) = K(x, Z) L⁻ᵀ,   w = L⁻¹ u ~ N(0, I),

and the residual is independent of w, with covariance K(x, x) − Φ(x) Φ(x)ᵀ ≥ 0. The small δ is part of the model of u and not
an approximation: bounds stay bounds. A separable kernel Σ_c k_c Γ_c has values of each of its latent processes instead, and
Φ = φ_c ⊗ B_c side by side with B_c B_cᵀ = Γ_c, a Kronecker product for one component.
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
from ovkgp.features.operators import FeatureOperator, stacked
from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.model.observations import inputs
from ovkgp.inference.posteriors.exact import prior_features
from ovkgp.inference.posteriors.posterior import KernelProcess, Process, normal, prior_covariance, seeds
from ovkgp.kernels import components, num_outputs
from ovkgp.kernels.outputs.roots import CUTOFF, thin_root

NUGGET = 1e-8
"""δ, as a share of the mean prior variance at Z."""
CANDIDATES = 20_000
"""Rows among which inducing points are chosen."""

Draws = Callable[[Tensor, Tensor], Tensor]
"""X (n, d) and which of the functions (j,) ↦ their values (n·p, j)."""


class Part(NamedTuple):
    """A component of a separable kernel at some inputs: k_c, B_c (p, q), Γ_c (p, p) and k_c(X, Z) L⁻ᵀ (n, m)."""

    scalar: Kernel
    factor: Tensor
    matrix: Tensor
    scores: Tensor


class InducingPoints(FeatureMap):
    """The whitened features of a kernel at inducing points.

    Args:
        kernel: any kernel; its parameters are shared, not copied.
        points: Z (m, d).
        learn: whether Z is trained.

    Unlike `Nystrom`, which drops small directions, the weights mean the same at neighbouring hyperparameters: training needs
    that.

    Cost: O(m³) and O(n m²) for n rows and each component of a separable kernel; m and n are multiplied by p otherwise.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.variational.inducing import InducingPoints
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
        >>> points = InducingPoints(kernel, torch.linspace(0, 1, 5).double())
        >>> X = torch.rand(9, 1).double()
        >>> points(X).shape, points.residual(X, "diag").shape
        (torch.Size([18, 10]), torch.Size([9, 2]))
    """

    def __init__(self, kernel: Kernel, points: Tensor, learn: bool = False):
        super().__init__()
        points = inputs(points, name="the inducing points").double().detach().clone()
        if len(points) == 0:
            raise InputError("there are no inducing points: give at least one row (m, d).")
        self.kernel = kernel
        if learn:
            self.register_parameter("points", torch.nn.Parameter(points))
        else:
            self.register_buffer("points", points)
        parts = components(kernel)
        self.is_separable = parts is not None
        # decided once, since the weights must keep their meaning while a matrix is trained
        self.thin = [_is_singular(matrix) for _, matrix in parts or ()]

    @property
    def num_outputs(self) -> int:
        """p."""
        return num_outputs(self.kernel)

    @property
    def num_features(self) -> int:
        """r: m·p, or m Σ_c rank Γ_c for a separable kernel."""
        return self(self.points[:1]).shape[-1]

    def forward(self, X: Tensor) -> LinearOperator:
        """Φ(X), of size (n·p) × r, for X (n, d)."""
        X = self._checked(X)
        return self._stacked(self._parts(X)) if self.is_separable else self.features_of(self._own_process(), X)

    def features_of(self, process: Process, X: Tensor) -> LinearOperator:
        """The features (m·q) × r of any process tied to that of a kernel that is not separable."""
        cross = to_dense(process.cross(X, self.points))
        scores = torch.linalg.solve_triangular(self._chol(self.kernel), cross.mT, upper=False).mT
        return FeatureOperator(scores, scores.new_ones(1, 1), num_outputs=1)

    def residual(self, X: Tensor, form: str, process: Process | None = None) -> Tensor:
        """K(x, x) − Φ(x) Φ(x)ᵀ as "diag" (n, p), "output" (n, p, p) or "full" (n·p, n·p); O(n m²) for each component."""
        X = self._checked(X)
        if self.is_separable and process is None:
            return self._left_of(self._parts(X), X, form)
        process = self._own_process() if process is None else process
        return self._left_of_process(process, self.features_of(process, X), X, form)

    def with_residual(self, X: Tensor, form: str) -> tuple[LinearOperator, Tensor]:
        """Φ(X) and the residual, from one evaluation of the kernel."""
        X = self._checked(X)
        if self.is_separable:
            parts = self._parts(X)
            return self._stacked(parts), self._left_of(parts, X, form)
        process = self._own_process()
        features = self.features_of(process, X)
        return features, self._left_of_process(process, features, X, form)

    def _checked(self, X: Tensor) -> Tensor:
        X = self.check(X).to(self.points)
        if X.shape[-1] != self.points.shape[-1]:
            raise InputError(f"X has {X.shape[-1]} columns, the inducing points {self.points.shape[-1]}.")
        return X

    def _own_process(self) -> KernelProcess:
        return KernelProcess(self.kernel, self.num_outputs)

    def _stacked(self, parts: list[Part]) -> LinearOperator:
        return stacked(*(FeatureOperator(part.scores, part.factor, num_outputs=self.num_outputs) for part in parts))

    def _left_of_process(self, process: Process, features: LinearOperator, X: Tensor, form: str) -> Tensor:
        return _left_over(process.prior(X, form), to_dense(features), process.num_outputs, form)

    def _left_of(self, parts: list[Part], X: Tensor, form: str) -> Tensor:
        first, *rest = (_separable_residual(part, X, form) for part in parts)
        return sum(rest, first)

    def _parts(self, X: Tensor) -> list[Part]:
        return [Part(*latent, self._scores(latent[0], X)) for latent in self._latents()]

    def _latents(self) -> list[tuple[Kernel, Tensor, Tensor]]:
        """(k_c, B_c, Γ_c) of each component."""
        parts = zip(components(self.kernel), self.thin, strict=True)
        return [
            (scalar, _root(matrix.to(self.points), thin), matrix.to(self.points)) for (scalar, matrix), thin in parts
        ]

    def _scores(self, scalar: Kernel, X: Tensor) -> Tensor:
        """k(X, Z) L⁻ᵀ (n, m)."""
        cross = to_dense(scalar(X, self.points))
        return torch.linalg.solve_triangular(self._chol(scalar), cross.mT, upper=False).mT

    def _chol(self, kernel: Kernel) -> Tensor:
        matrix = to_dense(kernel(self.points))
        return safe_cholesky(matrix + _nugget(matrix) * torch.eye(len(matrix)).to(matrix))

    def prior_draws(
        self, k: int, random_state, num_frequencies: int, process: Process | None = None
    ) -> tuple[Draws, Tensor]:
        """k functions of the prior and the weights that belong to them.

        Args:
            process: whose functions, where it is not that of the kernel; the weights are the same.

        Returns:
            the functions, made of random features, and w̃ = L⁻¹ (f̃(Z) + ε) (r, k): then
            f̃ + Φ (w − w̃) is a function with weights w and the residual of f̃ (Matheron's rule).
        """
        if not self.is_separable:
            return self._dense_draws(k, random_state, num_frequencies, process)
        pieces = [
            self._latent_draws(part, k, seed, num_frequencies)
            for part, seed in zip(self._latents(), seeds(random_state, len(self.thin)), strict=True)
        ]
        functions, weights = zip(*pieces, strict=True)
        return lambda X, index: sum(function(X, index) for function in functions), torch.cat(weights)

    def _dense_draws(self, k: int, random_state, num_frequencies: int, process: Process | None) -> tuple[Draws, Tensor]:
        for_features, for_weights, for_nugget = seeds(random_state, 3)
        prior = prior_features(self.kernel, num_frequencies, self.points.shape[1], for_features)
        theta = normal((prior.num_features, k), for_weights, self.points)
        drawn, matrix = prior(self.points) @ theta, to_dense(self.kernel(self.points))
        nugget = _nugget(matrix).sqrt() * normal(drawn.shape, for_nugget, drawn)
        weights = torch.linalg.solve_triangular(self._chol(self.kernel), drawn + nugget, upper=False)
        process = KernelProcess(self.kernel, self.num_outputs) if process is None else process
        return lambda X, index: process.features(prior, X) @ theta[:, index], weights

    def _latent_draws(
        self, part: tuple[Kernel, Tensor, Tensor], k: int, random_state, num_frequencies: int
    ) -> tuple[Draws, Tensor]:
        """Of one component: q independent processes of its scalar kernel, mixed by B."""
        scalar, factor, _ = part
        q = factor.shape[1]
        for_features, for_weights, for_nugget = seeds(random_state, 3)
        prior = prior_features(scalar, num_frequencies, self.points.shape[1], for_features)
        theta = normal((prior.num_features, q * k), for_weights, self.points)
        drawn, matrix = prior(self.points) @ theta, to_dense(scalar(self.points))
        nugget = _nugget(matrix).sqrt() * normal(drawn.shape, for_nugget, drawn)
        weights = torch.linalg.solve_triangular(self._chol(scalar), drawn + nugget, upper=False)

        def function(X: Tensor, index: Tensor) -> Tensor:
            chosen = theta.unflatten(-1, (q, k))[..., index]
            return (factor @ (prior(X) @ chosen.flatten(1)).unflatten(-1, (q, -1))).flatten(0, 1)

        return function, weights.unflatten(-1, (q, k)).flatten(0, 1)


def choose_inducing(X: Tensor, num_points: int, random_state=None) -> Tensor:
    """`num_points` distinct rows of X (n, d), far from each other: the seeds of k-means++ in standardised columns.

    Each is drawn with a probability that grows with the squared distance to those chosen before; all rows where there are
    no more distinct ones. O(min(n, 20000) m d).

    Example:
        >>> import torch
        >>> from ovkgp.inference.variational.inducing import choose_inducing
        >>> choose_inducing(torch.rand(50, 2), 7, random_state=0).shape
        torch.Size([7, 2])
    """
    num_points = check_integer("inducing", num_points)
    generator = torch.Generator().manual_seed(as_seed(random_state))
    X = X.detach()
    if len(X) > CANDIDATES:
        X = X[torch.randperm(len(X), generator=generator)[:CANDIDATES].to(X.device)]
    X = torch.unique(X.double(), dim=0)
    if len(X) <= num_points:
        return X
    spread = X.std(0)
    scaled = X / torch.where(spread > 0, spread, 1.0)
    chosen = [int(torch.randint(len(X), (), generator=generator))]
    nearest = (scaled - scaled[chosen[0]]).square().sum(1)
    while len(chosen) < num_points:
        chosen.append(int(torch.multinomial(nearest.cpu(), 1, generator=generator)))
        nearest = torch.minimum(nearest, (scaled - scaled[chosen[-1]]).square().sum(1))
    return X[torch.tensor(chosen, device=X.device)]


def inducing_points(inducing, X: Tensor, random_state=None) -> Tensor:
    """Z (m, d) from a number of points or the points themselves, checked against the inputs X (n, d)."""
    if isinstance(inducing, int) and not isinstance(inducing, bool):
        return choose_inducing(X, inducing, random_state)
    if inducing is None or isinstance(inducing, (bool, float, str)):
        raise OptionError(f"inducing must be a number of points or an (m, d) array, got {inducing!r}.")
    return inputs(inducing, X.shape[1], name="inducing").to(X.device)


def _separable_residual(part: Part, X: Tensor, form: str) -> Tensor:
    if form == "full":
        left = _left_over(to_dense(part.scalar(X)), part.scores, 1, form)
        return torch.kron(left.contiguous(), part.matrix.contiguous())
    left = _left_over(prior_covariance(part.scalar, X, 1, "diag"), part.scores, 1, "diag")  # (n, 1)
    return left * part.matrix.diagonal() if form == "diag" else left.unsqueeze(-1) * part.matrix


def _nugget(matrix: Tensor) -> Tensor:
    return NUGGET * matrix.diagonal().mean()


def _left_over(prior: Tensor, features: Tensor, num_outputs: int, form: str) -> Tensor:
    """prior − ΦΦᵀ for Φ (n·p, r); rounding below zero on the diagonal is zero."""
    if form == "full":
        left = prior - gram(features.mT)
        return left + torch.diag_embed((-left.diagonal()).clamp_min(0))
    blocks = features.unflatten(0, (-1, num_outputs))
    if form == "diag":
        return (prior - blocks.square().sum(-1)).clamp_min(0)
    left = prior - blocks @ blocks.mT
    return left + torch.diag_embed((-left.diagonal(dim1=-2, dim2=-1)).clamp_min(0))


def _is_singular(matrix: Tensor) -> bool:
    values = torch.linalg.eigvalsh(matrix.detach().double())
    return bool(values[0] <= CUTOFF * values[-1])


def _root(matrix: Tensor, thin: bool) -> Tensor:
    """B with B Bᵀ = Γ: smooth in Γ where it is not singular, else with as many columns as its rank."""
    return thin_root(matrix) if thin else safe_cholesky(matrix)
