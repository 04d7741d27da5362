"""Learned input kernel k_V(f(x), f(z)) of a network f, with random features of k_V (LT-44, LT-105).

Network and weights are trained together with Adam on batches of rows, on the objective of quantile regression in
features,

    (1/n) Σ_i L(φ(f(x_i))ᵀ W Ψᵀ, y_i) + (λ/2) ‖W‖²;

then f is fixed and W is solved for exactly, as for any other kernel.
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
from ovkgp.estimators.quantiles.model import QuantileModel, TaskSide, complete_model, is_auto
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.exceptions import InputError
from ovkgp.functional.factors import FeatureFactor
from ovkgp.inference.tasks.problem import TaskProblem

DEFAULT_NUM_FREQUENCIES = 100
BATCH_ROWS = 256
WEIGHT_DECAY = 1e-4


class DeepFactor:
    """Factor φ(f(x)) of a network f in evaluation mode and a factor φ."""

    def __init__(self, network: Module, factor: FeatureFactor):
        self.network, self.factor = network, factor

    def __call__(self, points: Tensor) -> Tensor:
        with torch.no_grad():
            return self.factor(self.network(points))

    def residual_variance(self, points: Tensor) -> Tensor:
        """Return the residual variance (k,) of the other factor."""
        with torch.no_grad():
            return self.factor.residual_variance(self.network(points))


def build_deep_model(options, rows: QuantileRows, side: TaskSide, lam: float, seed: int) -> QuantileModel:
    """Build the model for scaled rows with a trained copy of `options.feature_extractor`.

    The lengthscales "auto" and "median" are both the median distance between the outputs of the untrained network.
    Complexity: a pass of the network over the rows and O(n D m) per epoch.
    """
    X = torch.from_numpy(rows.X)
    network = deepcopy(options.feature_extractor).double()
    with torch.no_grad():
        first = _network_outputs(network.eval(), X)
    lengthscale = "median" if isinstance(options.lengthscale, str) else options.lengthscale
    is_default = options.num_frequencies is None or is_auto(options.num_frequencies)
    num_frequencies = DEFAULT_NUM_FREQUENCIES if is_default else options.num_frequencies
    features = random_features(task_kernel(options.kernel, lengthscale, first), first.shape[1], num_frequencies, seed)
    factor = DeepFactor(network, FeatureFactor(features.double()))
    inputs = InterceptFactor(factor) if options.intercept else factor
    untrained = complete_model(options, rows, inputs, inputs(X)).problem(side, lam)
    _train(options, network, features, untrained, X, seed)
    return complete_model(options, rows, inputs, inputs(X))


def _network_outputs(network: Module, X: Tensor) -> Tensor:
    outputs = network(X)
    if not torch.is_tensor(outputs) or outputs.dim() != 2 or len(outputs) != len(X):
        shape = tuple(outputs.shape) if torch.is_tensor(outputs) else type(outputs).__name__
        raise InputError(f"feature_extractor must map (n, d) to (n, k), got {shape} for {tuple(X.shape)}.")
    return outputs


def _train(options, network: Module, features: Module, problem: TaskProblem, X: Tensor, seed: int) -> None:
    """Train network and weights together, in place."""
    weights = Parameter(torch.zeros(problem.inputs.shape[1], problem.tasks.shape[1], dtype=torch.float64))
    groups = [{"params": list(network.parameters()), "weight_decay": WEIGHT_DECAY}, {"params": [weights]}]
    optimizer, rng = torch.optim.Adam(groups, lr=options.extractor_rate), np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):  # layers such as dropout draw from the global state
        torch.manual_seed(seed)
        network.train()
        for _ in tqdm(range(options.extractor_epochs), disable=not options.verbose, desc="network", unit="epoch"):
            for batch in _split_batches(len(X), rng):
                optimizer.zero_grad()
                rows = _feature_rows(network, features, X[batch], options.intercept)
                _objective(problem, rows, weights, batch).backward()
                optimizer.step()
    network.eval()
    network.requires_grad_(False)


def _feature_rows(network: Module, features: Module, X: Tensor, intercept: bool) -> Tensor:
    rows = to_dense(features(network(X)))
    return torch.cat([rows, torch.ones_like(rows[:, :1])], -1) if intercept else rows


def _objective(problem: TaskProblem, rows: Tensor, weights: Tensor, batch: Tensor) -> Tensor:
    values = rows @ weights @ problem.tasks.T
    risk = (problem.row_weights[batch] * problem.loss.value(values, problem.targets[batch])).mean()
    return risk + problem.lam / 2 * weights.square().sum()


def _split_batches(num_rows: int, rng: np.random.Generator) -> list[Tensor]:
    order = rng.permutation(num_rows)
    return [torch.from_numpy(part) for part in np.array_split(order, max(num_rows // BATCH_ROWS, 1))]
