"""Statistics of shards as those of all rows: one all-reduce.

Each rank has the statistics of its own rows, T_k. As they are a commutative monoid, T = T_0 + … + T_{K−1} is what one
process would have gathered. The ranks first agree on one layout; then the Gram matrices are added as one flat vector, and
the rest (counts, landmarks), which is small, is gathered and added in the order of the ranks: T has the same bits on all.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.distributed import Ranks
from ovkgp.inference.output_statistics import OutputStatistics
from ovkgp.inference.statistics import Statistics

DOING = "adding statistics"


def all_reduce(statistics: Statistics | OutputStatistics | None, ranks: Ranks) -> Statistics | OutputStatistics:
    """The sum of the statistics of all ranks, on every rank.

    Args:
        statistics: those of this rank; None where it has no rows.
        ranks: the processes; for one alone the statistics come back as they are.

    Raises:
        InputError: on all ranks, where nobody has any data, or the parts do not add (other features, another noise).

    Cost: the Gram matrices are sent once and received once by each rank, whatever the number of rows or ranks.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.distributed import process_group
        >>> from ovkgp.inference.reduced_statistics import all_reduce
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
        >>> with process_group() as ranks:  # under torchrun X and Y would be the shard of one rank
        ...     total = all_reduce(gp.statistics(torch.rand(30, 1), torch.rand(30, 1)), ranks)
        >>> total.num_rows
        30
    """
    kinds = ranks.gather(_kind(statistics), DOING)
    if not any(kinds):
        raise InputError("there are no data in the statistics of any rank: add some first.")
    kind, layouts = _agreed(kinds)
    if ranks.size == 1:
        return statistics
    parts = _parts(statistics) or (Statistics.empty(),) * len(layouts)
    parts = ranks.together(lambda: [_laid_out(*pair) for pair in zip(parts, layouts, strict=True)], DOING)
    shells = ranks.gather([(_shell(part), tuple(part.gram.shape)) for part in parts], DOING)
    totals = [sum((shell for shell, _ in column), Statistics.empty()) for column in zip(*shells, strict=True)]
    shapes = [max((shape for _, shape in column), key=_num_entries) for column in zip(*shells, strict=True)]
    grams = _summed([part.gram for part in parts], shapes, ranks)
    totals = tuple(replace(total, gram=gram) for total, gram in zip(totals, grams, strict=True))
    return OutputStatistics(totals) if kind == "outputs" else totals[0]


def _parts(statistics: Statistics | OutputStatistics | None) -> tuple[Statistics, ...]:
    if statistics is None:
        return ()
    return statistics.parts if isinstance(statistics, OutputStatistics) else (statistics,)


def _kind(statistics: Statistics | OutputStatistics | None) -> tuple[str, list[str]] | None:
    layouts = [part.layout for part in _parts(statistics)]
    if not any(layout != "empty" for layout in layouts):
        return None
    return ("outputs" if isinstance(statistics, OutputStatistics) else "all", layouts)


def _agreed(kinds: list[tuple[str, list[str]] | None]) -> tuple[str, list[str]]:
    """What the statistics are of, and the layout of each of their parts in which all ranks can add."""
    known = [kind for kind in kinds if kind is not None]
    if len({(name, len(layouts)) for name, layouts in known}) > 1:
        raise InputError(
            f"the statistics of the ranks do not add ({kinds}): fit the same model, with the same outputs, on all ranks."
        )
    return known[0][0], [_common(set(column)) for column in zip(*(layouts for _, layouts in known), strict=True)]


def _common(layouts: set[str]) -> str:
    layouts = layouts - {"empty"}
    if len(layouts) < 2:
        return next(iter(layouts), "empty")
    return "whitened" if "whitened" in layouts else "by_output"


def _laid_out(part: Statistics, layout: str) -> Statistics:
    if part.layout == "shared" and layout == "by_output":
        return part.by_output()
    if part.layout == "shared" and layout == "whitened" and part.to_whitened is not None:
        return part.to_whitened(part)
    return part


def _shell(part: Statistics) -> Statistics:
    """All but the Gram matrix; shells are checked and added as the statistics themselves are."""
    return replace(part, gram=part.gram.new_zeros(0))


def _num_entries(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _summed(grams: list[Tensor], shapes: list[tuple[int, ...]], ranks: Ranks) -> list[Tensor]:
    """Matrices of given shapes, zero where this rank has none, added over the ranks as one vector."""
    pairs = list(zip(grams, shapes, strict=True))
    flat = torch.cat([(gram if gram.numel() else gram.new_zeros(shape)).flatten() for gram, shape in pairs])
    parts = ranks.sum(flat, DOING).split([_num_entries(shape) for shape in shapes])
    return [part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)]
