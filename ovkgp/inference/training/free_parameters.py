"""Loadings are known up to a rotation, Γ = W Wᵀ + diag(v) = (W Q)(W Q)ᵀ + diag(v): here they are kept lower triangular.

Along a rotation the posterior is exactly flat: no Gaussian at a mode describes that, and chains wander. With W = L Q, L (p, r)
lower triangular, dW = Π_i |L_ii|^(r−i) dL dQ (i = 1, …, r), so that under a prior that rotations leave alone

    log p(L) = log p(W = L) + Σ_i (r − i) log |L_ii| + ½ r² log π − log Γ_r(r/2)

is the density of L with a diagonal of any signs (Γ_r is the multivariate gamma function), and Γ has the law that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.priors import NormalPrior
from scipy.special import multigammaln
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.training.prior_sites import trained_sites
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.kernels import FreeMatrix

NUDGE = 1e-3
"""How far a parameter is moved to see whether anything depends on it."""


def freeze_unused(gp: torch.nn.Module, evidence: Callable[[], Tensor], is_gathered: bool = False) -> None:
    """Keep the parameters on which the evidence does not depend, or at whose other values it is not known, in place.

    Args:
        gp: holds the parameters.
        evidence: of some data, at the present parameters.
        is_gathered: whether it is one of statistics, which may refuse other values of a parameter.

    Cost: an evidence and its gradient; for statistics also an evidence for each parameter.
    """
    if isinstance(gp.features, InducingPoints):  # where an approximation is good, and no belief about the data
        gp.features.points.requires_grad_(False)
    trained = [parameter for parameter in gp.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        value = evidence()
    slopes = torch.autograd.grad(value, trained, allow_unused=True) if value.requires_grad else [None] * len(trained)
    for parameter, slope in zip(trained, slopes, strict=True):
        if slope is None or (is_gathered and not _may_move(parameter, evidence)):
            parameter.requires_grad_(False)


@torch.no_grad()
def _may_move(parameter: Tensor, evidence: Callable[[], Tensor]) -> bool:
    """Whether there is an evidence at another value: statistics refuse what would make others of them."""
    kept = parameter.clone()
    parameter.add_(NUDGE)
    try:
        evidence()
    except InputError:
        return False
    except FAILURES:
        return True
    finally:
        parameter.copy_(kept)
    return True


def read_entries(
    vector: ParameterVector, evidence: Callable[[], Tensor], values: Callable[[], dict[str, np.ndarray]]
) -> np.ndarray:
    """Which variables (len,) the evidence, or any of the named values, depends on.

    Args:
        vector: of the parameters.
        evidence: of some data, at the present parameters.
        values: the hyperparameters by name, likewise.

    Cost: an evidence and its gradient, and a look at the values for each variable with a gradient of zero.
    """
    vector.clear_gradient()
    with torch.enable_grad():
        evidence().backward()
    read, here, u = vector.gradient() != 0, values(), vector.get()
    vector.clear_gradient()
    for i in np.flatnonzero(~read):
        vector.set(u + NUDGE * (np.arange(len(u)) == i))
        there = values()
        read[i] = any(not np.array_equal(here[name], there[name]) for name in here)
    vector.set(u)
    return read


class TriangularLoadings:
    """The loadings of rank two and more inside a model, turned to be lower triangular, as variables of a vector.

    Args:
        gp: the model; its loadings are turned in place.
        vector: its trained parameters, of which what is above the diagonals is left out from now on.

    Loadings whose prior is not alike for all columns keep their rotations.

    Attributes:
        num_reflections: columns whose sign nothing depends on: the density has 2 to this power equal modes.

    Cost: O(p r²) once, O(r) a call.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.free_parameters import TriangularLoadings
        >>> from ovkgp.kernels import DecomposableKernel
        >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=3, rank=2))
        >>> matrix, vector = gp.kernel.output_matrix, ParameterVector(gp)
        >>> before, rotated = len(vector), TriangularLoadings(gp, vector)
        >>> before - len(vector), bool((gp.kernel.output_matrix - matrix).abs().max() < 1e-12)
        (1, True)
    """

    def __init__(self, gp: torch.nn.Module, vector: ParameterVector):
        entries = {id(entry.parameter): entry for entry in vector.entries}
        modules = [part for part in gp.modules() if type(part) is FreeMatrix and id(part.loadings) in entries]
        priors = _priors_of_loadings(gp)
        alike = [part for part in modules if _is_alike(priors.get(id(part.loadings), []))]
        self.modules, self.num_reflections = [part for part in alike if part.rank > 1], sum(part.rank for part in alike)
        self.turn()
        kept, diagonals, powers, self.constant = np.ones(len(vector.kept), dtype=bool), [], [], 0.0
        for part in self.modules:
            entry = entries[id(part.loadings)]
            (p, r), first = part.loadings.shape, entry.piece.start
            rows, columns = np.triu_indices(p, 1, r)
            kept[first + rows * r + columns] = False
            diagonals += [first + i * (r + 1) for i in range(r - 1)]
            powers += [r - 1 - i for i in range(r - 1)]
            self.constant += 0.5 * r**2 * math.log(math.pi) - float(multigammaln(r / 2, r))
            self.constant += sum((r - 1 - i) * float(entry.size[i, i].log()) for i in range(r - 1))  # L = size u
        vector.keep(kept[vector.kept])
        self.places = (np.cumsum(vector.kept) - 1)[np.array(diagonals, dtype=int)]
        self.powers = np.array(powers, dtype=np.float64)

    @torch.no_grad()
    def turn(self) -> None:
        """Make the present loadings lower triangular, with a diagonal that is not negative."""
        for part in self.modules:
            r = part.rank
            Q, R = torch.linalg.qr(part.loadings[:r].mT)
            signs = torch.where(R.diagonal() < 0, -1.0, 1.0).to(Q)
            rotated = part.loadings @ (Q * signs)
            rotated[:r].tril_()
            part.loadings.copy_(rotated)

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """What the loadings add to log p(W = L) at u (k,), and its gradient (k,); −∞ at a diagonal of zero."""
        gradient = np.zeros(len(u))
        if not len(self.places):
            return 0.0, gradient
        diagonal = u[self.places]
        if not diagonal.all():
            return -np.inf, gradient
        gradient[self.places] = self.powers / diagonal
        return self.constant + float(self.powers @ np.log(np.abs(diagonal))), gradient


def _priors_of_loadings(gp: torch.nn.Module) -> dict[int, list]:
    found: dict[int, list] = {}
    for site in trained_sites(gp):
        for parameter in site.parameters.values():
            found.setdefault(id(parameter), []).append((site.prior, parameter))
    return found


def _is_alike(priors: list) -> bool:
    """Whether rotations of the columns leave the density alone: none, or one normal with the same scale in each row."""
    if not priors:
        return True
    (prior, loadings), *more = priors
    if more or type(prior) is not NormalPrior or getattr(prior, "_transform", None) is not None:
        return False
    scale = prior.scale.detach().expand(loadings.shape)
    return not bool(prior.loc.detach().any()) and bool((scale == scale[:, :1]).all())
