"""Leave-one-out predictive densities in closed form: of an entry, a row or a group of rows given all others.

With C = K + noise on the observed entries, α = C⁻¹ (y − m) and B_i the block of C⁻¹ between the entries of group i,

    y_i | y_−i  ~  N(y_i − B_i⁻¹ α_i,  B_i⁻¹).

If outputs are coupled, entries and rows differ: the other outputs of a row are informative about an entry, but unknown for
a new row. Rows of one track or station are likewise unknown for a new one, which `groups` holds out together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.model.observations import Observations


def _stack(cls, parts: list):
    """Concatenate consecutive rows.

    Parameters
    ----------
    parts : list
        Predictions of consecutive rows.

    Returns
    -------
    LeaveOneOut or LeaveGroupOut
        Predictions of all rows.
    """
    return cls(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


def _expand_rows(self, rows: Tensor | None):
    """Insert rows of NaN where the mask `rows` is False; None is True everywhere.

    Parameters
    ----------
    rows : Tensor of shape (n,) or None
        Mask of the present rows.

    Returns
    -------
    LeaveOneOut or LeaveGroupOut
        Predictions of n rows.
    """
    return type(self)(*(expand_rows(field, rows) for field in self))


class LeaveOneOut(NamedTuple):
    """Predictive mean, standard deviation and log density of each entry given all others.

    Attributes
    ----------
    mean, std, log_density : Tensor of shape (n, p)
        NaN for entries that were not observed.
    """

    mean: Tensor
    std: Tensor
    log_density: Tensor

    @classmethod
    def from_inverse(cls, data: Observations, alpha: Tensor, diagonal: Tensor) -> LeaveOneOut:
        """Compute from α and diag C⁻¹, both (n, p).

        Parameters
        ----------
        data : Observations
            Rows (n, d) and outputs (n, p).
        alpha, diagonal : Tensor of shape (n, p)
            α = C⁻¹(y − m) and the diagonal of C⁻¹.

        Returns
        -------
        LeaveOneOut
            Predictions of all entries.
        """
        observed = data.observed
        if not bool((diagonal[observed] > 0).all()):
            raise FactorizationError("The diagonal of the inverse covariance is not positive. Increase the noise.")
        diagonal = torch.where(observed, diagonal, torch.nan)
        deviation = alpha / diagonal
        log_density = gaussian_log_density(alpha * deviation, -diagonal.log())
        return cls(data.Y - deviation, diagonal.rsqrt(), log_density)

    stack = classmethod(_stack)
    expand_rows = _expand_rows

    @property
    def total(self) -> float:
        """Sum of the log densities of the observed entries."""
        return float(self.log_density.nansum())


def expand_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Insert rows of NaN where the mask `rows` is False; None is True everywhere."""
    if rows is None:
        return values
    whole = values.new_full((len(rows), *values.shape[1:]), torch.nan)
    whole[rows] = values
    return whole


GROUP_ENTRIES = 1 << 24  # numbers in the blocks that are computed together


def group_index(groups, num_rows: int) -> Tensor:
    """Return the index 0, …, G − 1 of the group of each row, in the order of the sorted labels (n,); "rows" is 0, …, n − 1."""
    if isinstance(groups, str):
        if groups != "rows":
            raise InputError(f'groups must be "entries", "rows" or one label per row, got {groups!r}.')
        return torch.arange(num_rows)
    labels = np.asarray(groups)
    if labels.shape != (num_rows,):
        raise InputError(f"groups has shape {labels.shape}, expected ({num_rows},). Pass one label per row of X.")
    if any(label is None or label != label for label in labels.tolist()):
        raise InputError("groups must not contain missing labels. Give these rows a label or omit them.")
    try:
        index = np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise InputError("groups must have labels of one type, all text or all numbers. Convert them.") from error
    if index.max(initial=0) == 0:
        raise InputError(f"groups must have at least 2 different labels, got {len(set(labels.tolist()))}.")
    return torch.from_numpy(index.reshape(-1))


class LeaveGroupOut(NamedTuple):
    """Predictive means and standard deviations of each row given all other groups of rows, and densities of the groups.

    Attributes
    ----------
    mean, std : Tensor of shape (n, p)
        Mean and standard deviation of each entry; NaN for entries that were not observed.
    log_density : Tensor of shape (G,)
        Joint log density of the observed entries of each group given all others; (n,) if each row is a group.
    quadratic : Tensor of shape (G,)
        (y_i − mean)ᵀ B_i (y_i − mean) of each group.
    """

    mean: Tensor
    std: Tensor
    log_density: Tensor
    quadratic: Tensor

    @classmethod
    def from_groups(
        cls, data: Observations, alpha: Tensor, groups: Tensor, inverse_blocks: Callable[[Tensor], Tensor]
    ) -> LeaveGroupOut:
        """Compute from α (n, p), the index (n,) of the groups, and B (k, m·p, m·p) of k groups by their rows (k, m).

        Groups of equal size are computed together. O(Σ (m p)³) beyond the blocks.

        Parameters
        ----------
        data : Observations
            Rows (n, d) and outputs (n, p).
        alpha : Tensor of shape (n, p)
            α = C⁻¹(y − m), 0 where missing.
        groups : Tensor of shape (n,)
            Index of the group of each row.
        inverse_blocks : callable
            Map of rows (k, m) to the blocks of C⁻¹, (k, m·p, m·p).

        Returns
        -------
        LeaveGroupOut
            Predictions of all rows.
        """
        count, p = int(groups.max()) + 1, data.num_outputs
        mean, std = (torch.full_like(data.Y, torch.nan) for _ in range(2))
        log_density, quadratic = (data.Y.new_zeros(count) for _ in range(2))
        for which, rows in _equal_groups(groups, p):
            parts = (part[rows].flatten(1) for part in (data.Y, alpha))
            found = cls.from_blocks(*parts, inverse_blocks(rows))
            mean[rows], std[rows] = (part.unflatten(1, (-1, p)) for part in found[:2])
            log_density[which], quadratic[which] = found.log_density, found.quadratic
        return cls(mean, std, log_density, quadratic)

    @classmethod
    def from_blocks(cls, Y: Tensor, alpha: Tensor, blocks: Tensor) -> LeaveGroupOut:
        """Compute from Y (k, q), NaN if missing, α (k, q) and the blocks B (k, q, q), both zero if missing. O(k q³).

        Parameters
        ----------
        Y, alpha : Tensor of shape (k, q)
            Outputs and α of each group.
        blocks : Tensor of shape (k, q, q)
            Blocks of C⁻¹.

        Returns
        -------
        LeaveGroupOut
            Predictions of k groups.
        """
        filled = blocks + torch.diag_embed(torch.isnan(Y).to(blocks))
        chol, info = torch.linalg.cholesky_ex(filled)
        if bool(info.any()):
            raise FactorizationError("A block of the inverse covariance is not positive definite. Increase the noise.")
        covariance = torch.cholesky_inverse(chol)
        deviation = (covariance @ alpha.unsqueeze(-1)).squeeze(-1)
        logdet = -2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return cls.from_deviations(Y, alpha, deviation, covariance.diagonal(dim1=-2, dim2=-1), logdet)

    @classmethod
    def from_deviations(
        cls, Y: Tensor, alpha: Tensor, deviation: Tensor, variance: Tensor, logdet: Tensor
    ) -> LeaveGroupOut:
        """Compute from B⁻¹ α (k, q), the diagonals of B⁻¹ (k, q) and their log determinants (k,).

        Parameters
        ----------
        Y, alpha, deviation, variance : Tensor of shape (k, q)
            Outputs, α, B⁻¹α and the diagonals of B⁻¹.
        logdet : Tensor of shape (k,)
            Log determinants of B⁻¹.

        Returns
        -------
        LeaveGroupOut
            Predictions of k groups.
        """
        observed = ~torch.isnan(Y)
        quadratic = torch.where(observed, alpha * deviation, 0.0).sum(-1)
        log_density = gaussian_log_density(quadratic, logdet, observed.sum(-1).to(logdet))
        std = torch.where(observed, variance, torch.nan).sqrt()
        return cls(Y - deviation, std, log_density, quadratic)

    stack = classmethod(_stack)
    expand_rows = _expand_rows


def _equal_groups(groups: Tensor, num_outputs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield some groups (k,) of equal size and their rows (k, m), in chunks of limited memory."""
    order, sizes = groups.argsort(stable=True), groups.bincount()
    starts = sizes.cumsum(0) - sizes
    for size in sizes.unique().tolist():
        which = (sizes == size).nonzero().flatten()
        for part in which.split(max(GROUP_ENTRIES // (size * num_outputs) ** 2, 1)):
            yield part, order[starts[part].unsqueeze(-1) + torch.arange(size, device=order.device)]
