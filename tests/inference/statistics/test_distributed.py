"""Tests of `ovkgp.inference.statistics.distributed`."""

import pickle
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from gp_cases import Problem, close
from launching import free_port
from thread_ranks import on_ranks

from ovkgp.exceptions import DistributedError, InputError, OptionError, OvkgpError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.statistics.distributed import ENVIRONMENT, Ranks, all_reduce, process_group
from ovkgp.inference.statistics.statistics import OutputStatistics


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


MODELS = ("icm, rank 2", "lmc", "independent", "curl-free", "delays")


def problem_of(model, noise="per_output", missing="late"):
    """24 rows; with "late", outputs are missing in the last third only, so that shards have different layouts."""
    problem = Problem(model, noise=noise, missing=0.0, features="orff", mean="linear", n=24, level=0.05)
    if missing == "late":
        problem.Y[16:, 0] = torch.nan
    return problem


def shards(problem, sizes):
    """The statistics of each rank's rows; None where it has none."""
    parts = zip(problem.X.split(sizes), problem.Y.split(sizes), strict=True)
    return [problem.gp.statistics(X, Y) if len(X) else None for X, Y in parts]


def reduced(found):
    return on_ranks(len(found), lambda ranks: all_reduce(found[ranks.rank], ranks))


@pytest.mark.parametrize("missing", ["none", "late"])
@pytest.mark.parametrize("noise", ["per_output", "full"])
@pytest.mark.parametrize("model", MODELS)
def test_the_sum_over_ranks_is_one_pass(model, noise, missing):
    check(problem_of(model, noise, missing), [8, 8, 8])


@pytest.mark.parametrize("noise", ["per_output", "full"])
@pytest.mark.parametrize("sizes", [[9, 15], [0, 13, 11], [0, 24, 0]])
def test_shards_of_any_size(sizes, noise):
    for model in ("icm, rank 2", "independent"):
        check(problem_of(model, noise), sizes)


def check(problem, sizes):
    """The posterior of the reduced statistics, on every rank, against that of one pass."""
    whole = problem.gp.condition(problem.gp.statistics(problem.X, problem.Y), variance="guarded")
    expected = whole.predict(problem.test, "full")
    for total in reduced(shards(problem, sizes)):
        posterior = problem.gp.condition(total, variance="guarded")
        prediction = posterior.predict(problem.test, "full")
        close(prediction.mean, expected.mean, 1e-8)
        close(prediction.cov, expected.cov, 1e-8)
        assert posterior.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)


@pytest.mark.parametrize("model", ["icm, rank 2", "independent"])
def test_every_rank_has_the_same_bits(model):
    first, *others = (total.tensors() for total in reduced(shards(problem_of(model), [8, 8, 8])))
    for tensors, header in others:
        assert header == first[1]
        assert all(torch.equal(tensor, first[0][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize("model", ["icm, rank 2", "independent"])
def test_one_sum_does_it_all(model):
    found = shards(problem_of(model), [8, 8, 8])

    def count(ranks):
        all_reduce(found[ranks.rank], ranks)
        return ranks.num_sums

    assert on_ranks(3, count) == [1, 1, 1]


def test_landmarks_are_those_of_all_rows():
    problem = problem_of("icm, rank 2")
    whole = problem.gp.statistics(problem.X, problem.Y).landmarks
    for total in reduced(shards(problem, [4, 20])):
        assert torch.equal(total.landmarks.X, whole.X) and torch.equal(total.landmarks.observed, whole.observed)


def test_an_output_may_be_seen_on_one_rank_only():
    for model in ("icm, rank 2", "independent"):
        problem = problem_of(model, missing="none")
        problem.Y[:12, 1] = torch.nan
        total, _ = reduced(shards(problem, [12, 12]))
        close(problem.gp.log_evidence(total), problem.log_evidence(), 1e-9)


def test_shards_of_other_features_do_not_add():
    problem = problem_of("icm, rank 2")
    mine = problem.gp.statistics(problem.X, problem.Y)
    other = OperatorValuedGP(
        problem.gp.kernel, "linear", features=ORFF(problem.gp.kernel, 7, num_dims=2, random_state=9)
    )
    results = reduced([mine, other.statistics(problem.X, problem.Y)])
    assert all(isinstance(error, InputError) and "different features" in str(error) for error in results)


def test_shards_of_other_models_do_not_add():
    problem, other = problem_of("icm, rank 2"), problem_of("independent")
    results = reduced([problem.gp.statistics(problem.X, problem.Y), other.gp.statistics(other.X, other.Y)])
    assert all(isinstance(error, InputError) and "do not add" in str(error) for error in results)


@pytest.mark.parametrize("nothing", [None, Statistics.empty(), OutputStatistics((Statistics.empty(),) * 3)])
def test_no_data_at_all(nothing):
    with pytest.raises(InputError, match="no data"):
        all_reduce(nothing, Ranks.alone())
    assert all(isinstance(error, InputError) for error in reduced([nothing, None]))


def test_alone_there_is_nothing_to_do():
    problem = problem_of("icm, rank 2")
    statistics = problem.gp.statistics(problem.X, problem.Y)
    assert all_reduce(statistics, Ranks.alone()) is statistics
