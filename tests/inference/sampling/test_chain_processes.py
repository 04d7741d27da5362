"""Chains in parallel processes."""

import multiprocessing as mp
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from sampler_cases import Gaussian, correlated

from ovkgp.exceptions import DistributedError, FactorizationError, FitWarning
from ovkgp.inference.sampling import chain_processes, nuts
from ovkgp.inference.sampling.chain_processes import count_workers, run_in_processes, single_thread
from ovkgp.inference.sampling.nuts import sample_nuts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


@pytest.fixture
def two_workers(monkeypatch):
    monkeypatch.setattr(nuts, "count_workers", lambda chains, seconds: min(chains, 2))


class Slow(Gaussian):
    """A Gaussian that takes a millisecond."""

    def __call__(self, u):
        time.sleep(1e-3)
        return super().__call__(u)


def test_parallel_draws_equal_sequential_ones(monkeypatch):
    first, second = correlated(), correlated()
    alone = sample_nuts(first, 30, 120, 3, [1, 2, 3])
    monkeypatch.setattr(nuts, "count_workers", lambda chains, seconds: 2)
    together = sample_nuts(second, 30, 120, 3, [1, 2, 3])
    assert (alone.u == together.u).all()
    assert all((alone.stats[name] == together.stats[name]).all() for name in alone.stats)
    assert first.evaluations == second.evaluations and not mp.active_children()


def test_interrupt_keeps_draws_of_all_processes(two_workers):
    density = Slow(np.zeros(2), np.eye(2))
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.warns(FitWarning, match="interrupted; 2 of 2 chains"):
        sampled = sample_nuts(density, 100_000, 20, 2, [1, 2])
    timer.join()
    assert sampled.attrs["interrupted"] == 1 and 10 < sampled.u.shape[1] < 100_000
    assert not mp.active_children()  # which also joins processes that have ended


def test_interrupt_inside_a_process_is_raised(two_workers):
    with pytest.raises(KeyboardInterrupt, match="before the first draw"):
        sample_nuts(correlated(interrupt_at=60), 50, 50, 2, [1, 2])


def test_error_of_a_chain_is_raised(two_workers):
    class Hole(Gaussian):
        def __call__(self, u):
            return super().__call__(u) if np.abs(u).max() < 1e-2 else (-np.inf, 0 * u)

    with pytest.raises(FactorizationError, match="No initial point"):
        sample_nuts(Hole(np.zeros(2), np.eye(2)), 5, 5, 2, [0, 1])
    assert not mp.active_children()


def test_death_of_a_process_is_reported():
    def run_chain(index):
        yield 1
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DistributedError, match="ended unexpectedly"):
        run_in_processes(run_chain, 2, 2, lambda index, items: None, correlated())
    assert not mp.active_children()


def test_interrupt_of_a_process_that_has_ended_is_raised():
    def run_chain(index):
        yield 1
        raise KeyboardInterrupt("in the chain")

    with pytest.raises(KeyboardInterrupt, match="in the chain"):
        run_in_processes(run_chain, 1, 1, lambda index, items: time.sleep(0.5), correlated())  # the process ends before
    assert not mp.active_children()


SCRIPT = """
import sys, time
from ovkgp.inference.sampling.chain_processes import run_in_processes
class Counter: evaluations = failures = 0
def chain(index):
    import os
    print(os.getpid(), flush=True)
    while True:
        time.sleep(0.02)
        yield None
run_in_processes(chain, 2, 2, lambda index, items: None, Counter())
"""


def test_processes_end_with_their_parent():
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    children = [int(parent.stdout.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in children)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_short_chains_and_daemons_have_one_worker(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(4))
    assert count_workers(3, 100.0) == 3 and count_workers(8, 100.0) == 4
    assert count_workers(4, 0.01) == 1
    daemon = type("Daemon", (), {"daemon": True})
    monkeypatch.setattr(chain_processes.mp, "current_process", daemon)
    assert count_workers(4, 100.0) == 1


def test_single_thread_restores_threads():
    before = torch.get_num_threads()
    with single_thread(True):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_parallel_sampling_warns_of_nothing(two_workers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample_nuts(correlated(), 10, 10, 2, [1, 2])
