"""What an online expansion says of uncertainty: its own mean, and the variance of the Gaussian process given the points it kept.

The variance does not depend on the outputs, and points that were seen and not kept could only lower it: it is an upper bound on
the variance given all rows, at the noise σ² that is given.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.data import observations
from ovkgp.inference.draws import FunctionDraws
from ovkgp.inference.exact_roads import DenseRoad, KroneckerRoad
from ovkgp.inference.gp import OperatorValuedGP
from ovkgp.inference.online import Expansion
from ovkgp.inference.posterior import CHUNK_ENTRIES, Posterior
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.roads import DENSE_LIMIT, has_kronecker_form


class OnlinePosterior(Posterior):
    """The mean Σ_j K(·, x_j) a_j, with the covariance of the process given the kept points.

    Args:
        gp: kernel and noise σ², with mean zero.
        expansion: of at least one point.
        average: whether the mean is that of the averaged iterates.

    `log_evidence` is NaN: the points do not tell what the rows that were let go had been.

    Cost: O(m n p²) for the mean at n test points of m kept ones. The first covariance takes a factorisation, O(m³ + p³) for
    k(x, z) Γ with complete outputs, else O(N³) for the N observed entries of the points. If those are more than 5000 (points,
    entries), it is given an even selection of the points: still an upper bound.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.online import OnlineGradient
        >>> from ovkgp.inference.online_posterior import OnlinePosterior
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.5)
        >>> learner = OnlineGradient(gp.kernel, 1, lam=0.5)
        >>> expansion = learner.learn(learner.start(1), np.zeros((1, 1)), np.ones((1, 1)))
        >>> prediction = OnlinePosterior(gp, expansion).predict([[0.0]])
        >>> round(prediction.mean.item(), 4), round(prediction.std.item() ** 2, 4)  # 1 − 1 / 1.5
        (0.6667, 0.3333)
    """

    log_evidence = math.nan

    def __init__(self, gp: OperatorValuedGP, expansion: Expansion, average: bool = False):
        self.gp, self.expansion = gp.frozen(), expansion
        self.num_outputs, self.num_dims = expansion.seen.shape[1], expansion.X.shape[1]
        self.process = KernelProcess(self.gp.kernel, self.num_outputs)
        self.X = torch.from_numpy(expansion.X)
        self.coefficients = torch.from_numpy(expansion.average if average else expansion.coefficients)

    @property
    def noise(self) -> Tensor:
        return self.gp.noise_model.matrix().detach()

    @cached_property
    def given_points(self) -> Posterior:
        """The process given the outputs seen at the kept points, all of them zero: its covariance is ours."""
        kept = np.where(self.expansion.seen, 0.0, np.nan)
        with torch.no_grad():
            data, model = observations(self.X, kept, self.num_outputs, every_output=False), self.gp.model
            is_kronecker = has_kronecker_form(model, data)
            size = data.num_rows if is_kronecker else data.num_seen
            if size > DENSE_LIMIT:
                data = data.rows(torch.linspace(0, data.num_rows - 1, data.num_rows * DENSE_LIMIT // size).long())
            return (KroneckerRoad() if is_kronecker else DenseRoad()).condition(model, data)

    def rows_at_once(self, form: str) -> int:
        return CHUNK_ENTRIES // (len(self.X) * self.num_outputs**2)

    @torch.no_grad()
    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        return self._mean(X), None if form == "none" else self.given_points.latent(X, form)[1]

    def _mean(self, X: Tensor) -> Tensor:
        return (self.process.cross(X, self.X) @ self.coefficients.flatten()).unflatten(-1, (-1, self.num_outputs))

    def sample_functions(self, k: int = 1, *, random_state=None) -> FunctionDraws:
        """k random functions around the mean, with the covariance given the kept points."""
        around_zero = self.given_points.sample_functions(k, random_state=random_state)

        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            with torch.no_grad():
                return self._mean(X) + around_zero._at(X, index)

        return FunctionDraws(evaluate, len(around_zero), self.num_dims)
