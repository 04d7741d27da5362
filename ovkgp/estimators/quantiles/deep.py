"""A learned input kernel: k_V(f(x), f(z)) for a network f, with random features of k_V (LT-44, LT-105).

Network and weights descend together on the objective of quantile regression in features,

    (1/n) Σ_i L(φ(f(x_i))ᵀ W Ψᵀ, y_i) + (λ/2) ‖W‖²,

with Adam on batches of rows; then f is kept and W is solved for exactly, as for any other kernel.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from linear_operator import to_dense
from torch import Tensor
from torch.nn import Module, Parameter
from tqdm import tqdm

from ovkgp.estimators.common.named_kernels import random_features
from ovkgp.estimators.common.task_options import InterceptFactor, task_kernel
from ovkgp.estimators.quantiles.model import QuantileModel, TaskSide, completed
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.factors import FeatureFactor
from ovkgp.inference.tasks.problem import TaskProblem

NUM_FREQUENCIES = 100
"""Where none are named."""
BATCH = 256
WEIGHT_DECAY = 1e-4


class DeepFactor:
    """φ(f(x)): the coordinates of another factor after a network.

    Args:
        network: f, from (k, d) to (k, d'), in evaluation mode.
        factor: φ.
    """

    def __init__(self, network: Module, factor: FeatureFactor):
        self.network, self.factor = network, factor

    def __call__(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return self.factor(self.network(points))

    def left_out(self, points: Tensor) -> Tensor:
        """That of the other factor, (k,)."""
        with torch.no_grad():
            return self.factor.left_out(self.network(points))


def deep_model(options, rows: QuantileRows, side: TaskSide, lam: float, seed: int) -> QuantileModel:
    """The model with a trained copy of `options.feature_extractor`.

    Args:
        options: for `feature_extractor`, `extractor_epochs`, `extractor_rate`, and those of `quantile_model`; the lengthscales "auto"
            and "median" are both the median distance between the outputs of the network before it is trained.
        rows: scaled.
        side: the levels.
        lam: λ.

    Cost: a pass of the network over the rows and O(n D m) an epoch.
    """
    X = torch.from_numpy(rows.X)
    network = deepcopy(options.feature_extractor).double()
    with torch.no_grad():
        first = _outputs(network.eval(), X)
    lengthscale = "median" if isinstance(options.lengthscale, str) else options.lengthscale
    num_frequencies = NUM_FREQUENCIES if options.num_frequencies is None else options.num_frequencies
    features = random_features(task_kernel(options.kernel, lengthscale, first), first.shape[1], num_frequencies, seed)
    factor = DeepFactor(network, FeatureFactor(features.double()))
    inputs = InterceptFactor(factor) if options.intercept else factor
    before = completed(options, rows, inputs, inputs(X)).problem(side, lam)
    _train(options, network, features, before, X, seed)
    return completed(options, rows, inputs, inputs(X))


def _outputs(network: Module, X: Tensor) -> Tensor:
    outputs = network(X)
    if not torch.is_tensor(outputs) or outputs.dim() != 2 or len(outputs) != len(X):
        shape = tuple(outputs.shape) if torch.is_tensor(outputs) else type(outputs).__name__
        raise InputError(f"feature_extractor must map (n, d) to (n, k), got {shape} for {tuple(X.shape)}.")
    return outputs


def _train(options, network: Module, features: Module, problem: TaskProblem, X: Tensor, seed: int) -> None:
    """Descend on network and weights together, in place."""
    weights = Parameter(torch.zeros(problem.inputs.shape[1], problem.tasks.shape[1], dtype=torch.float64))
    groups = [{"params": list(network.parameters()), "weight_decay": WEIGHT_DECAY}, {"params": [weights]}]
    optimiser, rng = torch.optim.Adam(groups, lr=options.extractor_rate), np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):  # layers such as dropout draw from the global state
        torch.manual_seed(seed)
        network.train()
        for _ in tqdm(range(options.extractor_epochs), disable=not options.verbose, desc="network", unit="epoch"):
            for batch in _batches(len(X), rng):
                optimiser.zero_grad()
                _objective(problem, _rows(network, features, X[batch], options.intercept), weights, batch).backward()
                optimiser.step()
    network.eval()
    network.requires_grad_(False)


def _rows(network: Module, features: Module, X: Tensor, intercept: bool) -> Tensor:
    rows = to_dense(features(network(X)))
    return torch.cat([rows, torch.ones_like(rows[:, :1])], -1) if intercept else rows


def _objective(problem: TaskProblem, rows: Tensor, weights: Tensor, batch: Tensor) -> Tensor:
    values = rows @ weights @ problem.tasks.T
    risk = (problem.row_weights[batch] * problem.loss.value(values, problem.targets[batch])).mean()
    return risk + problem.lam / 2 * weights.square().sum()


def _batches(num_rows: int, rng: np.random.Generator) -> list[Tensor]:
    order = rng.permutation(num_rows)
    return [torch.from_numpy(part) for part in np.array_split(order, max(num_rows // BATCH, 1))]
