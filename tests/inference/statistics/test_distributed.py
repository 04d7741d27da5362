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


def test_ranks_of_a_single_process_do_not_communicate():
    ranks, tensor = Ranks.single_process(), torch.arange(3.0)
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.gather("a") == ["a"] and ranks.broadcast("a") == "a"
    assert torch.equal(ranks.sum(tensor), tensor) and ranks.sum(tensor) is not tensor
    assert ranks.run_on_all(lambda: 5, "counting") == ranks.run_on_first(lambda: 5, "counting") == 5
    with pytest.raises(ZeroDivisionError):
        ranks.run_on_all(lambda: 1 / 0, "dividing")
    assert not dist.is_initialized()


def test_process_group_has_one_rank_outside_torchrun(no_environment):
    with process_group() as ranks:
        assert ranks.size == 1 and not dist.is_initialized()


def test_process_group_of_one_process_needs_no_group(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("0", "1", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    with process_group() as ranks:
        assert ranks.size == 1 and not dist.is_initialized()


def test_process_group_uses_an_existing_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with process_group() as ranks:
            assert (ranks.rank, ranks.size) == (0, 1)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_process_group_rejects_backends_without_the_cpu(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(OptionError, match="gloo"), process_group():
        pass


def test_process_group_times_out_if_ranks_do_not_start(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("0", "2", "127.0.0.1", free_port()), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match="ranks to start"), process_group(timedelta(seconds=1)):
        pass
    assert not dist.is_initialized()


def test_process_group_rejects_a_rank_out_of_range(no_environment, monkeypatch):
    for name, value in zip(ENVIRONMENT, ("2", "2", "127.0.0.1", free_port()), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="RANK"), process_group():
        pass


def test_distributed_error_is_a_runtime_error():
    assert issubclass(DistributedError, RuntimeError) and issubclass(DistributedError, OvkgpError)


def test_run_on_all_returns_local_results():
    assert on_ranks(3, lambda ranks: ranks.run_on_all(lambda: 10 * ranks.rank, "counting")) == [0, 10, 20]


def test_run_on_all_fails_on_all_ranks_if_one_fails():
    def work(ranks):
        return ranks.run_on_all(lambda: 1 / (ranks.rank - 1), "dividing")

    first, second, third = on_ranks(3, work)
    assert isinstance(second, ZeroDivisionError)
    for error in (first, third):
        assert isinstance(error, DistributedError)
        assert "rank 1 failed while dividing: ZeroDivisionError: division by zero." in str(error)


def test_run_on_all_reports_all_failed_ranks():
    def work(ranks):
        return ranks.run_on_all(lambda: [1][ranks.rank], "looking")

    first, *others = on_ranks(3, work)
    assert all(isinstance(error, IndexError) for error in others)
    assert "rank 1 failed" in str(first) and "rank 2 failed" in str(first)


def test_run_on_first_returns_the_result_on_all_ranks():
    ran = []
    results = on_ranks(
        3, lambda ranks: ranks.run_on_first(lambda: ran.append(ranks.rank) or {"a": ranks.rank}, "working")
    )
    assert results == [{"a": 0}] * 3 and ran == [0]


def test_run_on_first_fails_on_all_ranks_if_the_result_cannot_be_pickled():
    first, second = on_ranks(2, lambda ranks: ranks.run_on_first(lambda: lambda: 0, "working"))
    assert isinstance(first, pickle.PicklingError | AttributeError)
    assert isinstance(second, DistributedError) and "rank 0 failed while working" in str(second)


def test_ranks_report_failed_communication(monkeypatch):
    def broken(*_):
        raise RuntimeError("Connection closed by peer. This is typically caused by a remote worker")

    monkeypatch.setattr(dist, "all_gather_object", broken)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda *_, **__: broken())
    monkeypatch.setattr(dist, "all_reduce", broken)
    ranks = Ranks(1, 3)
    for verb in (ranks.gather, ranks.broadcast, ranks.sum):
        with pytest.raises(DistributedError, match=r"rank 1 of 3 .* resting.*Connection closed"):
            verb(torch.zeros(1), "resting")
    with pytest.raises(ZeroDivisionError):  # the local error is more informative
        ranks.run_on_all(lambda: 1 / 0, "dividing")


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
def test_all_reduce_equals_one_pass(model, noise, missing):
    check(problem_of(model, noise, missing), [8, 8, 8])


@pytest.mark.parametrize("noise", ["per_output", "full"])
@pytest.mark.parametrize("sizes", [[9, 15], [0, 13, 11], [0, 24, 0]])
def test_all_reduce_accepts_shards_of_any_size(sizes, noise):
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


def assert_identical(found, expected):
    """Compare statistics and their attributes."""
    if torch.is_tensor(expected):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict | tuple | list):
        assert len(found) == len(expected)
        for key in expected if isinstance(expected, dict) else range(len(expected)):
            assert_identical(found[key], expected[key])
    elif hasattr(expected, "__dict__"):
        assert_identical(vars(found), vars(expected))
    else:
        assert found == expected


@pytest.mark.parametrize("model", ["icm, rank 2", "independent"])
def test_all_reduce_is_identical_on_all_ranks(model):
    first, *others = (vars(total) for total in reduced(shards(problem_of(model), [8, 8, 8])))
    for other in others:
        assert_identical(other, first)


@pytest.mark.parametrize("model", ["icm, rank 2", "independent"])
def test_all_reduce_sums_once(model):
    found = shards(problem_of(model), [8, 8, 8])

    def count(ranks):
        all_reduce(found[ranks.rank], ranks)
        return ranks.num_sums

    assert on_ranks(3, count) == [1, 1, 1]


def test_all_reduce_has_the_landmarks_of_all_rows():
    problem = problem_of("icm, rank 2")
    whole = problem.gp.statistics(problem.X, problem.Y).landmarks
    for total in reduced(shards(problem, [4, 20])):
        assert torch.equal(total.landmarks.X, whole.X) and torch.equal(total.landmarks.observed, whole.observed)


def test_all_reduce_accepts_an_output_observed_on_one_rank_only():
    for model in ("icm, rank 2", "independent"):
        problem = problem_of(model, missing="none")
        problem.Y[:12, 1] = torch.nan
        total, _ = reduced(shards(problem, [12, 12]))
        close(problem.gp.log_evidence(total), problem.log_evidence(), 1e-9)


def test_all_reduce_rejects_different_features():
    problem = problem_of("icm, rank 2")
    mine = problem.gp.statistics(problem.X, problem.Y)
    other = OperatorValuedGP(
        problem.gp.kernel, "linear", features=ORFF(problem.gp.kernel, 7, num_dims=2, random_state=9)
    )
    results = reduced([mine, other.statistics(problem.X, problem.Y)])
    assert all(isinstance(error, InputError) and "different features" in str(error) for error in results)


def test_all_reduce_rejects_different_models():
    problem, other = problem_of("icm, rank 2"), problem_of("independent")
    results = reduced([problem.gp.statistics(problem.X, problem.Y), other.gp.statistics(other.X, other.Y)])
    assert all(isinstance(error, InputError) and "cannot be added" in str(error) for error in results)


@pytest.mark.parametrize("nothing", [None, Statistics.empty(), OutputStatistics((Statistics.empty(),) * 3)])
def test_all_reduce_rejects_no_data(nothing):
    with pytest.raises(InputError, match="no data"):
        all_reduce(nothing, Ranks.single_process())
    assert all(isinstance(error, InputError) for error in reduced([nothing, None]))


def test_all_reduce_of_a_single_process_returns_its_statistics():
    problem = problem_of("icm, rank 2")
    statistics = problem.gp.statistics(problem.X, problem.Y)
    assert all_reduce(statistics, Ranks.single_process()) is statistics
