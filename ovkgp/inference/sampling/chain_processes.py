"""Chains in parallel processes, with the same draws as one after another.

Processes are forked, so that nothing is pickled but the draws. Children ignore Ctrl-C: the parent ends them and keeps what they
have sent. A child ends by itself if its parent is gone.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait

import torch
from threadpoolctl import threadpool_limits

from ovkgp.exceptions import DistributedError

MIN_PARALLEL_SECONDS = 1.0  # of a chain; a shorter one is not worth a process
SEND_SECONDS = 0.1  # interval at which a child sends its draws

Chain = Callable[[int], Iterator]


def count_workers(chains: int, seconds: float) -> int:
    """Return the number of processes for chains of a given duration; 1 if they should run one after another."""
    # fork is safe on Linux only; a daemon may have no children
    if seconds < MIN_PARALLEL_SECONDS or sys.platform != "linux" or mp.current_process().daemon:
        return 1
    return min(chains, len(os.sched_getaffinity(0)))


@contextmanager
def single_thread(is_needed: bool):
    """Use one thread for linear algebra, so that chains in processes and one after another have the same draws."""
    if not is_needed:
        yield
        return
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def run_in_processes(run_chain: Chain, chains: int, workers: int, write: Callable[[int, list], None], counter) -> None:
    """Run chains in parallel; `write(index, items)` gets the items of each chain, `counter` its evaluations and failures."""
    waiting, running = list(range(chains)), {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                process, receiver = _start(run_chain, waiting.pop(0), counter)
                running[receiver] = process
            for receiver in wait(list(running)):
                if not _receive(receiver, write, counter):
                    running.pop(receiver).join()
                    receiver.close()
    except KeyboardInterrupt:
        for receiver in running:
            with suppress(DistributedError, KeyboardInterrupt):  # the chain that was interrupted has ended
                while receiver.poll() and _receive(receiver, write, counter):
                    pass
        raise
    finally:
        for receiver, process in running.items():
            process.kill()
            process.join()
            receiver.close()


def _start(run_chain: Chain, index: int, counter) -> tuple[mp.Process, Connection]:
    context = mp.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(run_chain, index, sender, os.getpid(), counter), daemon=True)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the child ignores it
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    sender.close()
    return process, receiver


def _run(run_chain: Chain, index: int, sender: Connection, parent: int, counter) -> None:
    """Send the items of a chain in batches, then its counts; or the error that ended it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    evaluations, failures = counter.evaluations, counter.failures
    batch, sent = [], time.monotonic()
    try:
        for item in run_chain(index):
            batch.append(item)
            if time.monotonic() - sent > SEND_SECONDS:
                if os.getppid() != parent:
                    return
                sender.send(("items", (index, batch)))
                batch, sent = [], time.monotonic()
        sender.send(("items", (index, batch)))
        sender.send(("counts", (counter.evaluations - evaluations, counter.failures - failures)))
    except (Exception, KeyboardInterrupt) as error:
        sender.send(("items", (index, batch)))
        sender.send(("error", error))


def _receive(receiver: Connection, write: Callable[[int, list], None], counter) -> bool:
    """Handle one message of a child; return whether more may follow."""
    try:
        kind, content = receiver.recv()
    except EOFError as error:
        raise DistributedError("The process of a chain ended unexpectedly. It may have run out of memory.") from error
    if kind == "error":
        raise content
    if kind == "items":
        write(*content)
        return True
    counter.evaluations += content[0]
    counter.failures += content[1]
    return False
