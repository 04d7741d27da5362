"""Missing entries: which weight do those that are left have? Three answers (LT-75).

| normalisation | η_ij of an observed entry | its noise λn/η_ij |
|---|---|---|
| fixed | η_j, as if nothing were missing | λ n m |
| pooled | η_j · n / Σ (η of the observed) | λ N, with N observed entries |
| per_sample | η_j / Σ (η of the observed in row i) | λ n m_i, with m_i observed entries in the row |

for η_j = 1/m. The first is what a mask means in a sum, the second a mean over what there is, the third a mean of the rows' means.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import TaskMeasure

NORMALISATIONS = ("fixed", "pooled", "per_sample")


@dataclass(frozen=True)
class ObservedTasks:
    """A measure with a weight for each entry, zero where nothing was observed: in place of a `TaskMeasure` in a loss.

    Args:
        nodes: θ, (m,) or (n, m).
        weights: η (n, m); a row need not sum to 1.

    Example:
        See `observed`.
    """

    nodes: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return self.nodes.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == 1


def observed(measure: TaskMeasure, seen: Tensor, normalisation: str = "fixed") -> ObservedTasks:
    """The part of a measure that was observed.

    Args:
        measure: with nodes (m,) or (n, m).
        seen: (n, m), which entries of the targets there are.
        normalisation: "fixed", "pooled" or "per_sample"; see above. Rows without any entry count in n.

    Cost: O(n m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.square_masks import observed
        >>> from ovkgp.losses import TaskMeasure
        >>> seen = torch.tensor([[True, False], [True, True]])
        >>> [observed(TaskMeasure([0.0, 1.0]), seen, how).weights.tolist() for how in ("fixed", "per_sample")]
        [[[0.5, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]
    """
    if normalisation not in NORMALISATIONS:
        raise OptionError(
            f"normalisation must be one of {', '.join(map(repr, NORMALISATIONS))}, got {normalisation!r}."
        )
    if (
        seen.dim() != 2
        or seen.shape[1] != len(measure)
        or not (measure.nodes.dim() == 1 or len(measure.nodes) == len(seen))
    ):
        raise InputError(f"seen must be (n, {len(measure)}), one column a node; got {tuple(seen.shape)}.")
    weights = torch.where(seen, measure.weights, 0.0)
    if not bool(weights.any()):
        raise InputError("nothing was observed at a node with a weight: give at least one entry.")
    if normalisation == "pooled":
        weights = weights * (len(seen) / weights.sum())
    elif normalisation == "per_sample":
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    return ObservedTasks(measure.nodes, weights)
