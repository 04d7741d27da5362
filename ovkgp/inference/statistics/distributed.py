"""Processes that share a fit (`Ranks`, `process_group`), and the statistics of all their rows by one all-reduce.

Each rank has the statistics T_k of its rows, and T = T_0 + … + T_{K−1} are those of one process with all rows. The
ranks first agree on one layout; then the Gram matrices are added as one flat vector, and the rest (counts, landmarks),
which is small, is added in the order of the ranks, so that T is identical on all ranks.
"""

from __future__ import annotations

import math
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
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics, common_layout

T = TypeVar("T")

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets for each process."""
TIMEOUT = timedelta(hours=2)  # default time a rank waits for the others, for example while rank 0 trains
JOIN_TIMEOUT = timedelta(minutes=5)  # maximum time a rank waits for the others to start
ACTIVITY = "adding statistics"


class Ranks:
    """This process, with index `rank`, among `size` processes that share a fit; 1 does not use torch.distributed.

    Every rank must call the same methods in the same order; `activity` describes a call in error messages.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    @classmethod
    def single_process(cls) -> Ranks:
        """Return rank 0 of 1: one process without communication."""
        return cls(0, 1)

    def __repr__(self) -> str:
        return f"Ranks(rank={self.rank}, size={self.size})"

    def gather(self, value: T, activity: str = "gathering") -> list[T]:
        """Return the values (any picklable object) of all ranks, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [value]
        pairs = [None] * self.size
        with self._report_loss(activity):
            dist.all_gather_object(pairs, (activity, value))
        if other := [rank for rank, (name, _) in enumerate(pairs) if name != activity]:
            raise DistributedError(
                f"Rank {self.rank} is {activity} while rank {other[0]} is {pairs[other[0]][0]}. Call the same methods in the same order on every rank."
            )
        return [value for _, value in pairs]

    def broadcast(self, value: T, activity: str = "receiving") -> T:
        """Return the value of rank 0 on every rank; those of the others are ignored."""
        if self.size == 1:
            return value
        objects = [value if self.rank == 0 else None]
        with self._report_loss(activity):
            dist.broadcast_object_list(objects, src=0)
        return objects[0]

    def sum(self, tensor: Tensor, activity: str = "adding") -> Tensor:
        """Sum a tensor over the ranks, with identical results on all of them."""
        total = tensor.detach().clone().contiguous()
        if self.size > 1:
            with self._report_loss(activity):
                dist.all_reduce(total)
        return total

    def run_on_all(self, work: Callable[[], T], activity: str) -> T:
        """Run work without communication on every rank; raise its error, or DistributedError if it failed on others."""
        if self.size == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        reasons = self._share_failure(failure, activity)
        if failure is not None:
            raise failure
        if failed := [(rank, reason) for rank, reason in enumerate(reasons) if reason is not None]:
            listed = "; ".join(f"rank {rank} failed while {activity}: {reason}" for rank, reason in failed)
            raise DistributedError(f"Another process failed: {listed}. Fix the error and restart all ranks.")
        return result

    def run_on_first(self, work: Callable[[], T], activity: str) -> T:
        """Run work on rank 0, and return its result on every rank; the others wait, and fail if it fails."""
        if self.size == 1:
            return work()
        # Pickled as part of the work: a result that cannot be sent is an error on all ranks, not a deadlock.
        done = self.run_on_all((lambda: pickle.dumps(work())) if self.rank == 0 else (lambda: None), activity)
        return pickle.loads(self.broadcast(done, activity))

    def _share_failure(self, failure: BaseException | None, activity: str) -> list[str | None]:
        """Return the failures of all ranks as text, None for those that succeeded."""
        reason = None if failure is None else f"{type(failure).__name__}: {failure}".splitlines()[0].rstrip(".")
        try:
            return self.gather(reason, activity)
        except DistributedError:
            if failure is not None:  # the others are gone as well; the local error is more informative
                raise failure from None
            raise

    @contextmanager
    def _report_loss(self, activity: str) -> Iterator[None]:
        """Turn the error of a collective operation into a DistributedError."""
        try:
            yield
        except RuntimeError as error:
            reason = str(error).split(". This is typically")[0]  # gloo appends general advice
            raise DistributedError(
                f"Communication failed: rank {self.rank} of {self.size} lost the others while {activity}, as a process "
                f"died, left or exceeded the timeout ({reason}). Look for the first error of the other ranks and "
                "restart all of them, or increase the timeout of process_group."
            ) from error


@contextmanager
def process_group(timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Join the processes that torchrun started on entry, and leave them on exit.

    Inside, estimators with `distributed=True` treat their data as one shard of many. An existing default group of
    torch.distributed is used and not modified; in a process that torchrun did not start there is one rank only.

    A script for two processes, run with ``torchrun --nproc_per_node=2 script.py``::

        import ovkgp
        from ovkgp.datasets import stream
        from ovkgp.inference.statistics.distributed import process_group

        with process_group() as ranks:
            shard = stream("table.csv", "a,b", "u,v").shard(ranks.rank, ranks.size)
            model = ovkgp.GPRegressor(distributed=True, random_state=0).fit_stream(shard)
            if ranks.rank == 0:  # the model is the same on every rank
                model.save("model.ovkgp")

    Parameters
    ----------
    timeout : timedelta, default=2 hours
        Maximum time a rank waits for the others, for example while rank 0 trains. Ranks that communicate with a rank
        that dies notice it within seconds, independently of the timeout.

    Yields
    ------
    Ranks
        This process among all, with attributes `rank` and `size`.

    Raises
    ------
    DistributedError
        If the others do not start within five minutes.
    OptionError
        If the backend of the default group does not support tensors on the CPU.

    Examples
    --------
    >>> from ovkgp.inference import process_group
    >>> with process_group() as ranks:  # not under torchrun
    ...     ranks
    Ranks(rank=0, size=1)
    """
    if dist.is_available() and dist.is_initialized():
        yield _default_group()
    elif not all(name in os.environ for name in ENVIRONMENT) or os.environ["WORLD_SIZE"] == "1":
        yield Ranks.single_process()
    else:
        ranks = _join(timeout)
        try:
            yield ranks
        finally:
            dist.destroy_process_group()  # closes the connections, which notifies ranks that wait for this one


def _default_group() -> Ranks:
    if "cpu:" not in (config := dist.get_backend_config()):
        raise OptionError(
            f"The default process group ({config}) does not support tensors on the CPU. Initialize it with "
            'backend="gloo" or "cpu:gloo,cuda:nccl".'
        )
    return Ranks(dist.get_rank(), dist.get_world_size())


def _join(timeout: timedelta) -> Ranks:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not 0 <= rank < size:
        raise OptionError(f"RANK must be in 0, …, WORLD_SIZE − 1 = {size - 1} in the environment, got {rank}.")
    wait = min(timeout, JOIN_TIMEOUT)
    try:
        store = _store(rank, size, wait, *(os.environ[name] for name in ENVIRONMENT[2:]))
        name = f"ovkgp/{store.add(f'ovkgp/joined/{rank}', 1)}"  # each group has its own keys
        store.set(f"{name}/{rank}", "here")
        store.wait([f"{name}/{other}" for other in range(size)], wait)
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=size, timeout=timeout
        )
    except RuntimeError as error:
        raise DistributedError(
            f"Rank {rank} waited {wait} for all {size} ranks to start, but some did not ({error}). Look for their errors, and check MASTER_ADDR and MASTER_PORT."
        ) from error
    return Ranks(rank, size)


@lru_cache
def _store(rank: int, size: int, wait: timedelta, address: str, port: str) -> dist.Store:
    """Connect to the store in which the ranks find each other; cached for later groups, as rank 0 may host it."""
    return next(dist.rendezvous("env://", rank, size, timeout=wait))[0]


def all_reduce(statistics: Statistics | OutputStatistics | None, ranks: Ranks) -> Statistics | OutputStatistics:
    """Sum the statistics of all ranks (None for a rank without rows), on every rank; one process returns its own."""
    kinds = ranks.gather(_kind_and_layouts(statistics), ACTIVITY)
    if not any(kinds):
        raise InputError("The statistics of all ranks have no data. Add some first.")
    kind, layouts = _agree_on_layouts(kinds)
    if ranks.size == 1:
        return statistics
    parts = _parts(statistics) or (Statistics.empty(),) * len(layouts)
    parts = ranks.run_on_all(lambda: [part.to_layout(one) for part, one in zip(parts, layouts, strict=True)], ACTIVITY)
    # without the Gram matrices, which are added separately
    shells = [(replace(part, gram=part.gram.new_zeros(0)), tuple(part.gram.shape)) for part in parts]
    shells = ranks.gather(shells, ACTIVITY)
    totals = [sum((shell for shell, _ in column), Statistics.empty()) for column in zip(*shells, strict=True)]
    shapes = [max((shape for _, shape in column), key=math.prod) for column in zip(*shells, strict=True)]
    grams = _sum_grams([part.gram for part in parts], shapes, ranks)
    totals = tuple(replace(total, gram=gram) for total, gram in zip(totals, grams, strict=True))
    return OutputStatistics(totals) if kind == "outputs" else totals[0]


def _parts(statistics: Statistics | OutputStatistics | None) -> tuple[Statistics, ...]:
    if statistics is None:
        return ()
    return statistics.parts if isinstance(statistics, OutputStatistics) else (statistics,)


def _kind_and_layouts(statistics: Statistics | OutputStatistics | None) -> tuple[str, list[str]] | None:
    layouts = [part.layout for part in _parts(statistics)]
    if not any(layout != "empty" for layout in layouts):
        return None
    return ("outputs" if isinstance(statistics, OutputStatistics) else "all", layouts)


def _agree_on_layouts(kinds: list[tuple[str, list[str]] | None]) -> tuple[str, list[str]]:
    """Agree on the kind of statistics, and on a layout of each part in which all ranks can add."""
    known = [kind for kind in kinds if kind is not None]
    if len({(name, len(layouts)) for name, layouts in known}) > 1:
        raise InputError(
            f"The statistics of the ranks cannot be added ({kinds}). Fit the same model, with the same outputs, on all ranks."
        )
    return known[0][0], [common_layout(set(column)) for column in zip(*(layouts for _, layouts in known), strict=True)]


def _sum_grams(grams: list[Tensor], shapes: list[tuple[int, ...]], ranks: Ranks) -> list[Tensor]:
    """Add matrices of given shapes, zero if this rank has none, over the ranks as one vector."""
    pairs = list(zip(grams, shapes, strict=True))
    flat = torch.cat([(gram if gram.numel() else gram.new_zeros(shape)).flatten() for gram, shape in pairs])
    parts = ranks.sum(flat, ACTIVITY).split([math.prod(shape) for shape in shapes])
    return [part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)]
