"""Variables of a posterior of hyperparameters: parameters that the evidence depends on, with lower triangular loadings.

Loadings are known up to a rotation, Γ = W Wᵀ + diag(v) = (W Q)(W Q)ᵀ + diag(v), along which the posterior is exactly
flat. With W = L Q, L (p, r) lower triangular, dW = Π_i |L_ii|^(r−i) dL dQ (i = 1, …, r), so under a rotation-invariant
prior

    log p(L) = log p(W = L) + Σ_i (r − i) log |L_ii| + ½ r² log π − log Γ_r(r/2)

is the density of L with a diagonal of any signs (Γ_r is the multivariate gamma function); the distribution of Γ is
unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.priors import NormalPrior, Prior
from scipy.special import multigammaln
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.lbfgs import FAILURES
from ovkgp.inference.training.priors import trained_sites
from ovkgp.kernels import FreeMatrix

PROBE_STEP = 1e-3  # step by which a parameter is changed to find out whether anything depends on it


def freeze_unused_parameters(
    gp: torch.nn.Module, evidence: Callable[[], Tensor], from_statistics: bool = False
) -> None:
    """Freeze the parameters that the evidence does not depend on, or (for statistics) at whose other values it is unknown.

    Complexity: an evidence and its gradient; for statistics also one evidence per parameter.
    """
    for parameter in () if gp.features is None else gp.features.auxiliary_parameters():  # no hyperparameters
        parameter.requires_grad_(False)
    trained = [parameter for parameter in gp.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        value = evidence()
    slopes = torch.autograd.grad(value, trained, allow_unused=True) if value.requires_grad else [None] * len(trained)
    for parameter, slope in zip(trained, slopes, strict=True):
        if slope is None or (from_statistics and not _has_evidence_elsewhere(parameter, evidence)):
            parameter.requires_grad_(False)


@torch.no_grad()
def _has_evidence_elsewhere(parameter: Tensor, evidence: Callable[[], Tensor]) -> bool:
    """Return whether the evidence is known at another value: statistics hold for one value of some parameters."""
    kept = parameter.clone()
    parameter.add_(PROBE_STEP)
    try:
        evidence()
    except InputError:
        return False
    except FAILURES:
        return True
    finally:
        parameter.copy_(kept)
    return True


def find_used_variables(
    vector: ParameterVector, evidence: Callable[[], Tensor], values: Callable[[], dict[str, np.ndarray]]
) -> np.ndarray:
    """Return a mask (len,) of the variables that the evidence or any of the named values depends on.

    Complexity: an evidence and its gradient, and the named values for each variable with a zero gradient.
    """
    vector.clear_gradient()
    with torch.enable_grad():
        evidence().backward()
    read, here, u = vector.gradient() != 0, values(), vector.get()
    vector.clear_gradient()
    for i in np.flatnonzero(~read):
        vector.set(u + PROBE_STEP * (np.arange(len(u)) == i))
        there = values()
        read[i] = any(not np.array_equal(here[name], there[name]) for name in here)
    vector.set(u)
    return read


class TriangularLoadings:
    """The loadings of rank two and more inside a model, rotated in place to be lower triangular, as variables of a vector.

    The vector omits the entries above the diagonals from now on. Loadings without a rotation-invariant prior are kept.
    The density has 2 to the power `num_sign_flips` equal modes. Complexity: O(p r²) once, O(r) per call.
    """

    def __init__(self, gp: torch.nn.Module, vector: ParameterVector):
        entries = {id(entry.parameter): entry for entry in vector.entries}
        modules = [part for part in gp.modules() if type(part) is FreeMatrix and id(part.loadings) in entries]
        priors = {id(one): site.prior for site in trained_sites(gp) for one in site.parameters.values()}
        alike = [part for part in modules if _is_rotation_invariant(priors.get(id(part.loadings)), part.loadings)]
        self.modules, self.num_sign_flips = [part for part in alike if part.rank > 1], sum(part.rank for part in alike)
        self.rotate()
        kept, diagonals, powers, self.constant = np.ones(len(vector.kept), dtype=bool), [], [], 0.0
        for part in self.modules:
            entry = entries[id(part.loadings)]
            (p, r), first = part.loadings.shape, entry.span.start
            rows, columns = np.triu_indices(p, 1, r)
            kept[first + rows * r + columns] = False
            diagonals += [first + i * (r + 1) for i in range(r - 1)]
            powers += [r - 1 - i for i in range(r - 1)]
            self.constant += 0.5 * r**2 * math.log(math.pi) - float(multigammaln(r / 2, r))
            self.constant += sum((r - 1 - i) * float(entry.scale[i, i].log()) for i in range(r - 1))  # L = size u
        vector.keep(kept[vector.kept])
        self.indices = (np.cumsum(vector.kept) - 1)[np.array(diagonals, dtype=int)]
        self.powers = np.array(powers, dtype=np.float64)

    @torch.no_grad()
    def rotate(self) -> None:
        """Make the present loadings lower triangular with a nonnegative diagonal."""
        for part in self.modules:
            r = part.rank
            Q, R = torch.linalg.qr(part.loadings[:r].mT)
            signs = torch.where(R.diagonal() < 0, -1.0, 1.0).to(Q)
            rotated = part.loadings @ (Q * signs)
            rotated[:r].tril_()
            part.loadings.copy_(rotated)

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the terms that the loadings add to log p(W = L) at u (k,) and their gradient; −∞ if a diagonal entry is 0."""
        gradient = np.zeros(len(u))
        if not len(self.indices):
            return 0.0, gradient
        diagonal = u[self.indices]
        if not diagonal.all():
            return -np.inf, gradient
        gradient[self.indices] = self.powers / diagonal
        return self.constant + float(self.powers @ np.log(np.abs(diagonal))), gradient


def _is_rotation_invariant(prior: Prior | None, loadings: Tensor) -> bool:
    """Return whether rotations of the columns keep the density: no prior, or a normal with equal scales in each row."""
    if prior is None:
        return True
    if type(prior) is not NormalPrior or getattr(prior, "_transform", None) is not None:
        return False
    scale = prior.scale.detach().expand(loadings.shape)
    return not bool(prior.loc.detach().any()) and bool((scale == scale[:, :1]).all())
