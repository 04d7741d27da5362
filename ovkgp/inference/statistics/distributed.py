"""Statistics of shards as those of all rows: one all-reduce.

Each rank has the statistics of its own rows, T_k. As they are a commutative monoid, T = T_0 + … + T_{K−1} is what one
process would have gathered. The ranks first agree on one layout; then the Gram matrices are added as one flat vector, and
the rest (counts, landmarks), which is small, is gathered and added in the order of the ranks: T has the same bits on all.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ovkgp.exceptions import DistributedError, InputError, OptionError
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics

T = TypeVar("T")

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each of its processes."""

TIMEOUT = timedelta(hours=2)
"""How long a rank waits for the others, by default: rank 0 may train for so long."""

JOIN_TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others to start, at most."""


class Ranks:
    """This process among those that share a fit.

    Args:
        rank: its number, from 0.
        size: how many there are. A size of 1 uses nothing of torch.distributed.

    Use `Ranks.alone()` for one process, `process_group()` for several. Every rank must call the same methods in the same
    order.

    Example:
        >>> from ovkgp.inference.statistics.distributed import Ranks
        >>> ranks = Ranks.alone()
        >>> ranks.gather("mine"), ranks.together(lambda: 1 + 1, "adding")
        (['mine'], 2)
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    @classmethod
    def alone(cls) -> Ranks:
        """Rank 0 of 1: one process, no communication at all."""
        return cls(0, 1)

    def __repr__(self) -> str:
        return f"Ranks(rank={self.rank}, size={self.size})"

    def gather(self, value: T, doing: str = "gathering") -> list[T]:
        """The values of all ranks, in the order of the ranks, on every rank.

        Args:
            value: anything that can be pickled.
            doing: what for, in messages; ranks that are about different things are told so.

        Cost: the values of all ranks in the memory of each.
        """
        if self.size == 1:
            return [value]
        pairs = [None] * self.size
        with self._noticing(doing):
            dist.all_gather_object(pairs, (doing, value))
        if other := [rank for rank, (name, _) in enumerate(pairs) if name != doing]:
            raise DistributedError(
                f"rank {self.rank} is {doing} while rank {other[0]} is {pairs[other[0]][0]}: every rank must call the same "
                "methods in the same order."
            )
        return [value for _, value in pairs]

    def broadcast(self, value: T, doing: str = "receiving") -> T:
        """The value of rank 0, on every rank; the others' is not looked at. Its cost is that of the value's size."""
        if self.size == 1:
            return value
        box = [value if self.rank == 0 else None]
        with self._noticing(doing):
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def sum(self, tensor: Tensor, doing: str = "adding") -> Tensor:
        """The sum of a tensor of one shape over the ranks, equal to the bit on all of them.

        Cost: O(size of the tensor) sent and received by each rank, whatever their number.
        """
        total = tensor.detach().clone().contiguous()
        if self.size > 1:
            with self._noticing(doing):
                dist.all_reduce(total)
        return total

    def together(self, work: Callable[[], T], doing: str) -> T:
        """The result of some local work, once it has succeeded on *all* ranks.

        Args:
            work: run here; it must not call methods of the ranks itself.
            doing: what it does, in messages ("reading the data").

        Raises:
            Exception: whatever `work` raised here.
            DistributedError: it failed elsewhere; the message says where and why.
        """
        if self.size == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        told = self._told(failure, doing)
        if failure is not None:
            raise failure
        if failed := [(rank, why) for rank, why in enumerate(told) if why is not None]:
            listed = "; ".join(f"rank {rank} failed while {doing}: {why}" for rank, why in failed)
            raise DistributedError(f"{listed}. Mend that and start all ranks again.")
        return result

    def first(self, work: Callable[[], T], doing: str) -> T:
        """The result of work that rank 0 does for all; the others wait, and fail where it fails."""
        if self.size == 1:
            return work()
        # Pickled as part of the work: what cannot be sent is an error on all ranks, not a wait.
        done = self.together((lambda: pickle.dumps(work())) if self.rank == 0 else (lambda: None), doing)
        return pickle.loads(self.broadcast(done, doing))

    def _told(self, failure: BaseException | None, doing: str) -> list[str | None]:
        why = None if failure is None else f"{type(failure).__name__}: {failure}".splitlines()[0].rstrip(".")
        try:
            return self.gather(why, doing)
        except DistributedError:
            if failure is not None:  # the others are gone as well; one's own trouble says more
                raise failure from None
            raise

    @contextmanager
    def _noticing(self, doing: str) -> Iterator[None]:
        """Whatever a collective complains of, in words."""
        try:
            yield
        except RuntimeError as error:
            why = str(error).split(". This is typically")[0]  # gloo goes on with advice about itself
            raise DistributedError(
                f"rank {self.rank} of {self.size} lost the others while {doing}: a process has died or left, or was silent "
                f"for longer than the timeout ({why}). Look for the first error of the other ranks and start all of "
                "them again; where one only needs longer, give process_group a larger timeout."
            ) from error


@contextmanager
def process_group(timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """The ranks that torchrun started, as a context: joined on entry and left on exit.

    Inside, estimators with `distributed=True` treat their data as one shard of many. Where torch.distributed has a default
    group already that is used, and left as it is; in a process that torchrun did not start there is one rank only.

    A script for two processes, run with ``torchrun --nproc_per_node=2 script.py``::

        import ovkgp
        from ovkgp.datasets import stream
        from ovkgp.inference.statistics.distributed import process_group

        with process_group() as ranks:
            shard = stream("table.csv", "a,b", "u,v").shard(ranks.rank, ranks.size)
            model = ovkgp.GPRegressor(distributed=True, random_state=0).fit_stream(shard)
            if ranks.rank == 0:  # the model is the same on every rank
                model.save("model.ovkgp")

    Args:
        timeout: how long a rank waits for the others. Those that wait while rank 0 trains wait for so long at most; a rank
            that dies is noticed within seconds by those that talk to it, whatever the timeout.

    Raises:
        DistributedError: the others did not start within five minutes.
        OptionError: the default group is of a backend without tensors on the CPU.

    Example:
        >>> from ovkgp.inference.statistics.distributed import process_group
        >>> with process_group() as ranks:  # not under torchrun
        ...     ranks
        Ranks(rank=0, size=1)
    """
    if dist.is_available() and dist.is_initialized():
        yield _default_group()
    elif not all(name in os.environ for name in ENVIRONMENT) or os.environ["WORLD_SIZE"] == "1":
        yield Ranks.alone()
    else:
        ranks = _join(timeout)
        try:
            yield ranks
        finally:
            dist.destroy_process_group()  # closes the connections: whoever still waits for this rank is told


def _default_group() -> Ranks:
    if "cpu:" not in (config := dist.get_backend_config()):
        raise OptionError(
            f"the default process group ({config}) cannot exchange tensors on the CPU: initialise it with "
            'backend="gloo" or "cpu:gloo,cuda:nccl".'
        )
    return Ranks(dist.get_rank(), dist.get_world_size())


def _join(timeout: timedelta) -> Ranks:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not 0 <= rank < size:
        raise OptionError(f"RANK is {rank} and WORLD_SIZE {size} in the environment: ranks count from 0.")
    wait = min(timeout, JOIN_TIMEOUT)
    try:
        store = _store(rank, size, wait, *(os.environ[name] for name in ENVIRONMENT[2:]))
        name = f"ovkgp/{store.add(f'ovkgp/joined/{rank}', 1)}"  # a later group finds none of the keys of an earlier one
        store.set(f"{name}/{rank}", "here")
        store.wait([f"{name}/{other}" for other in range(size)], wait)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=size, timeout=timeout
        )
    except RuntimeError as error:
        raise DistributedError(
            f"rank {rank} waited {wait} for all {size} ranks to start, and some did not ({error}). Look for their errors, and "
            "check MASTER_ADDR and MASTER_PORT."
        ) from error
    return Ranks(rank, size)


@lru_cache
def _store(rank: int, size: int, wait: timedelta, address: str, port: str) -> dist.Store:
    """Where the ranks find each other. Rank 0 may be its host, so it stays for later groups of this process."""
    return next(dist.rendezvous("env://", rank, size, timeout=wait))[0]


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
        >>> from ovkgp.inference.statistics.distributed import process_group
        >>> from ovkgp.inference.statistics.distributed import all_reduce
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
