"""Random functions from a posterior, the same at every call.

Feature posteriors draw weights, f(x) = m(x) + Φ(x) θ. Exact ones correct a prior draw f̃ with the data (Matheron's rule),

    f(x) = m(x) + f̃(x) + K(x, X) C⁻¹ (y − m(X) − f̃(X) − ε),    f̃ = Φ θ with random features of the prior, ε ~ N(0, noise),

whose mean and covariance at the data are exact, and everywhere else as good as the features of the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ovkgp.inference.data import inputs


class FunctionDraws(Sequence):
    """k functions X (m, d) ↦ (m, p); calling the sequence evaluates all of them, (k, m, p).

    Args:
        evaluate: X (m, d), index ↦ (len(index), m, p).
        num_draws: k.
        num_dims: d.
    """

    def __init__(self, evaluate: Callable[[Tensor, Tensor], Tensor], num_draws: int, num_dims: int):
        self._evaluate, self._num_draws, self._num_dims = evaluate, num_draws, num_dims

    def __len__(self) -> int:
        return self._num_draws

    def __call__(self, X) -> Tensor:
        return self._at(X, torch.arange(self._num_draws))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} draws; {index} is not one of them.")
        position = torch.tensor([index % len(self)])
        return lambda X: self._at(X, position)[0]

    def _at(self, X, index: Tensor) -> Tensor:
        return self._evaluate(inputs(X, self._num_dims).double(), index)
