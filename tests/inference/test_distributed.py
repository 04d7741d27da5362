"""Ranks: one process needs nobody, a failure on one rank is an error on all, and nobody waits for ever."""

import pickle
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from launching import free_port
from thread_ranks import on_ranks

from ovkgp.exceptions import DistributedError, OptionError, OvkgpError
from ovkgp.inference.statistics.distributed import ENVIRONMENT, Ranks, process_group


@pytest.fixture
def no_environment(monkeypatch):
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def test_alone_nothing_is_sent():
    ranks, tensor = Ranks.alone(), torch.arange(3.0)
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.gather("a") == ["a"] and ranks.broadcast("a") == "a"
    assert torch.equal(ranks.sum(tensor), tensor) and ranks.sum(tensor) is not tensor
    assert ranks.together(lambda: 5, "counting") == ranks.first(lambda: 5, "counting") == 5
    with pytest.raises(ZeroDivisionError):
        ranks.together(lambda: 1 / 0, "dividing")
    assert not dist.is_initialized()


def test_outside_torchrun_there_is_one_rank(no_environment):
    with process_group() as ranks:
        assert ranks.size == 1 and not dist.is_initialized()


def test_torchrun_with_one_process_needs_no_group(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("0", "1", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with process_group() as ranks:
        assert ranks.size == 1 and not dist.is_initialized()


def test_a_group_that_is_there_is_used_and_left_alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with process_group() as ranks:
            assert (ranks.rank, ranks.size) == (0, 1)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_group_without_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(OptionError, match="gloo"), process_group():
        pass


def test_ranks_that_never_start_are_not_waited_for(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("0", "2", "127.0.0.1", free_port()), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match="all 2 ranks to start"), process_group(timedelta(seconds=1)):
        pass
    assert not dist.is_initialized()


def test_a_rank_out_of_range_is_refused(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("2", "2", "127.0.0.1", free_port()), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="count from 0"), process_group():
        pass


def test_the_error_is_a_runtime_error():
    assert issubclass(DistributedError, RuntimeError) and issubclass(DistributedError, OvkgpError)


def test_work_that_succeeds_everywhere_gives_its_own_result():
    assert on_ranks(3, lambda ranks: ranks.together(lambda: 10 * ranks.rank, "counting")) == [0, 10, 20]


def test_work_that_fails_on_one_rank_fails_on_all():
    def work(ranks):
        return ranks.together(lambda: 1 / (ranks.rank - 1), "dividing")

    first, second, third = on_ranks(3, work)
    assert isinstance(second, ZeroDivisionError)
    for error in (first, third):
        assert isinstance(error, DistributedError)
        assert "rank 1 failed while dividing: ZeroDivisionError: division by zero." in str(error)


def test_each_rank_that_fails_has_its_own_error_and_the_others_hear_of_all():
    def work(ranks):
        return ranks.together(lambda: [1][ranks.rank], "looking")

    first, *others = on_ranks(3, work)
    assert all(isinstance(error, IndexError) for error in others)
    assert "rank 1 failed" in str(first) and "rank 2 failed" in str(first)


def test_what_rank_0_does_is_known_to_all():
    ran = []
    results = on_ranks(3, lambda ranks: ranks.first(lambda: ran.append(ranks.rank) or {"a": ranks.rank}, "working"))
    assert results == [{"a": 0}] * 3 and ran == [0]


def test_what_rank_0_cannot_send_is_an_error_on_all():
    first, second = on_ranks(2, lambda ranks: ranks.first(lambda: lambda: 0, "working"))
    assert isinstance(first, pickle.PicklingError | AttributeError)
    assert isinstance(second, DistributedError) and "rank 0 failed while working" in str(second)


def test_a_failed_collective_says_who_noticed_and_when(monkeypatch):
    def broken(*_):
        raise RuntimeError("Connection closed by peer. This is typically caused by a remote worker")

    monkeypatch.setattr(dist, "all_gather_object", broken)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda *_, **__: broken())
    monkeypatch.setattr(dist, "all_reduce", broken)
    ranks = Ranks(1, 3)
    for verb in (ranks.gather, ranks.broadcast, ranks.sum):
        with pytest.raises(DistributedError, match=r"rank 1 of 3 .* while resting: .*\(Connection closed by peer\)"):
            verb(torch.zeros(1), "resting")
    with pytest.raises(ZeroDivisionError):  # one's own trouble says more than that the others are gone
        ranks.together(lambda: 1 / 0, "dividing")
