"""A prior for covariance matrices: log-normal variances and LKJ correlations, independent of each other.

Of Σ = diag(s) R diag(s), with R = C Cᵀ and L = diag(s) C the Cholesky factor of Σ (rows counted from 0),

    p(s², R) = Π_i LogNormal(s_i² | loc_i, scale) · |R|^(η−1) / c_p(η),
    |∂(s², R) / ∂(log L_ii, L_ij)| = Π_i 2 s_i^(2−i) C_ii^(p+1−i),

so the density of the trained parameters is known exactly (Lewandowski, Kurowicka and Joe 2009).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Distribution, constraints

from ovkgp.exceptions import InputError, OptionError


class CovariancePrior(Prior):
    """Prior on the variances and correlations of a covariance given by its Cholesky factor L (..., p, p).

    Parameters
    ----------
    loc : float or tensor of shape (p,)
        Mean of the logarithm of a variance.
    scale : float or tensor of shape (p,)
        Standard deviation of the logarithm of a variance. Must be positive.
    concentration : float, default=2.0
        η > 0 of the LKJ distribution of the correlations. 1 is uniform on correlation matrices; larger values shrink
        the correlations towards zero.

    Raises
    ------
    OptionError
        If a parameter has a wrong shape or value.

    See Also
    --------
    register_covariance_prior : Register the prior on a `FullMatrix` or a full `OutputNoise`.

    Notes
    -----
    Complexity: O(p²) per density, O(p³) per draw.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference import CovariancePrior
    >>> prior = CovariancePrior(loc=0.0, scale=1.0, concentration=1.0)
    >>> round(prior.log_prob(torch.eye(2, dtype=torch.float64)).item(), 6)  # −log 2π − log 2
    -2.531024
    """

    arg_constraints: ClassVar = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.lower_cholesky
    _transform = None

    def __init__(self, loc: float | Tensor, scale: float | Tensor, concentration: float = 2.0):
        torch.nn.Module.__init__(self)
        loc, scale, concentration = (
            torch.as_tensor(v, dtype=torch.float64).detach().clone() for v in (loc, scale, concentration)
        )
        if loc.dim() > 1 or scale.dim() > 1 or concentration.dim() > 0:
            raise OptionError(
                f"loc and scale must be scalars or have shape (p,), and concentration must be a scalar, got shapes {tuple(loc.shape)}, {tuple(scale.shape)} and {tuple(concentration.shape)}."
            )
        if not bool(torch.isfinite(loc).all() and (scale > 0).all() and concentration > 0):
            raise OptionError(
                f"loc must be finite, scale and concentration must be positive, got {loc.tolist()}, {scale.tolist()} and {concentration:g}."
            )
        Distribution.__init__(self, validate_args=False)
        for name, value in (("loc", loc), ("scale", scale), ("concentration", concentration)):
            self.register_buffer(name, value)

    def log_prob(self, chol: Tensor) -> Tensor:
        """Return log p(s², R).

        Parameters
        ----------
        chol : tensor of shape (..., p, p)
            Cholesky factor L.

        Returns
        -------
        tensor of shape (...)
            Log density of variances and correlations.
        """
        log_variances, log_diagonal = _split(chol)
        exponents = -0.5 * ((log_variances - self.loc) / self.scale).square()
        exponents = exponents - self.scale.log() - math.log(2 * math.pi) / 2  # log N(log s² | loc, scale)
        terms = exponents - log_variances + 2 * (self.concentration - 1) * log_diagonal
        return terms.sum(-1) - self._log_volume(chol.shape[-1])

    def log_jacobian(self, chol: Tensor) -> Tensor:
        """Return log |∂(s², R) / ∂(log L_ii, L_ij)|, with i > j.

        Parameters
        ----------
        chol : tensor of shape (..., p, p)
            Cholesky factor L.

        Returns
        -------
        tensor of shape (...)
            Log determinant of the Jacobian.
        """
        log_variances, log_diagonal = _split(chol)
        p, row = chol.shape[-1], torch.arange(chol.shape[-1], dtype=chol.dtype, device=chol.device)
        terms = (1 - row / 2) * log_variances + (p + 1 - row) * log_diagonal
        return terms.sum(-1) + p * math.log(2)

    def raw_log_prob(self, chol: Tensor) -> Tensor:
        """Return the log density of the trained parameters (log L_ii, L_ij): `log_prob` + `log_jacobian`.

        Parameters
        ----------
        chol : tensor of shape (..., p, p)
            Cholesky factor L.

        Returns
        -------
        tensor of shape (...)
            Log density.
        """
        return self.log_prob(chol) + self.log_jacobian(chol)

    def draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
        """Draw Cholesky factors by the onion method.

        Parameters
        ----------
        shape : tuple of int
            Shape (..., p, p) of the result.
        rng : numpy.random.Generator
            Source of randomness.

        Returns
        -------
        tensor of shape (..., p, p)
            Cholesky factors L.

        Raises
        ------
        InputError
            If p does not match `loc` or `scale`.
        """
        *batch, p, q = shape
        if p != q or not self._is_for(p):
            expected = max(self.loc.numel(), self.scale.numel())
            raise InputError(f"shape must end in (p, p) with p = {expected}, got {tuple(shape)}.")
        eta = self.concentration.item()
        directions = np.tril(rng.standard_normal((*batch, p, p)), -1)
        lengths = np.zeros((*batch, p))
        for i in range(1, p):  # the squared length of row i of C below the diagonal
            lengths[..., i] = rng.beta(i / 2, eta + (p - 1 - i) / 2, size=tuple(batch))
            directions[..., i, :] /= np.linalg.norm(directions[..., i, :], axis=-1, keepdims=True)
        rows = np.sqrt(lengths)[..., None] * directions
        rows += np.sqrt(np.maximum(1 - lengths, np.finfo(float).tiny))[..., None] * np.eye(p)
        loc, scale = (v.cpu().numpy() for v in (self.loc, self.scale))
        deviations = np.exp((loc + scale * rng.standard_normal((*batch, p))) / 2)
        return torch.from_numpy(deviations[..., None] * rows)

    def _is_for(self, num_outputs: int) -> bool:
        """Return whether `loc` and `scale` are scalars or have one entry per output."""
        return all(v.numel() in {1, num_outputs} for v in (self.loc, self.scale))

    def expand(self, batch_shape: torch.Size) -> CovariancePrior:
        """Return the same prior, which broadcasts over leading dimensions, as `torch.distributions` requires."""
        return self

    def _log_volume(self, p: int) -> float:
        """Return log c_p(η) = log ∫ |R|^(η−1) dR = Σ_k [k/2 log π + log Γ(α − k/2) − log Γ(α)], k < p, α = η + (p − 1)/2."""
        alpha = self.concentration.item() + (p - 1) / 2
        terms = (k / 2 * math.log(math.pi) + math.lgamma(alpha - k / 2) - math.lgamma(alpha) for k in range(1, p))
        return sum(terms)


def register_covariance_prior(module, prior: CovariancePrior, name: str = "covariance_prior") -> None:
    """Register a `CovariancePrior` on a module that holds L as `log_scale` and `lower`, in place.

    Parameters
    ----------
    module : FullMatrix or OutputNoise
        Module with the covariance; an `OutputNoise` must be of kind "full".
    prior : CovariancePrior
        Prior to register.
    name : str, default="covariance_prior"
        Name of the prior.

    Raises
    ------
    OptionError
        If the module holds no Cholesky factor or the prior has another number of outputs.

    Examples
    --------
    >>> from ovkgp.inference import CovariancePrior, register_covariance_prior
    >>> from ovkgp.kernels import FullMatrix
    >>> matrix = FullMatrix(num_outputs=3)
    >>> register_covariance_prior(matrix, CovariancePrior(0.0, 1.0))
    >>> [name for name, *_ in matrix.named_priors()]
    ['covariance_prior']
    """
    if not all(hasattr(module, part) for part in ("chol", "log_scale", "lower")):
        raise OptionError(
            "module must hold a full covariance by its Cholesky factor, such as FullMatrix(p) or "
            f'OutputNoise("full", p), got {type(module).__name__}.'
        )
    if not prior._is_for(module.num_outputs):
        raise OptionError(
            f"prior has {max(prior.loc.numel(), prior.scale.numel())} variances, expected {module.num_outputs} as in {type(module).__name__}. Give a scalar or one value per output."
        )
    module.register_prior(name, prior, get_chol, set_chol)


def get_chol(module) -> Tensor:
    """Return L (..., p, p), the value of which a `CovariancePrior` is a density."""
    return module.chol


@torch.no_grad()
def set_chol(module, chol: Tensor) -> None:
    """Write L into `log_scale` and `lower`."""
    chol = torch.as_tensor(chol).to(module.log_scale)
    rows, columns = torch.tril_indices(chol.shape[-2], chol.shape[-1], -1)
    module.log_scale.copy_(chol.diagonal(dim1=-2, dim2=-1).log())
    is_square = module.lower.shape == chol.shape
    module.lower.copy_(chol.tril(-1) if is_square else chol[..., rows, columns])


def _split(chol: Tensor) -> tuple[Tensor, Tensor]:
    """Return log s_i² and log C_ii, both (..., p)."""
    log_variances = chol.square().sum(-1).log()
    return log_variances, chol.diagonal(dim1=-2, dim2=-1).log() - log_variances / 2
