"""Statistics of shards: their all-reduce is their sum, in whichever layouts the shards are, and the same on every rank."""

import pytest
import torch
from gp_cases import Problem, close
from thread_ranks import on_ranks

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.statistics.distributed import Ranks, all_reduce
from ovkgp.inference.statistics.statistics import OutputStatistics

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
        assert torch.equal(total.landmarks.X, whole.X) and torch.equal(total.landmarks.seen, whole.seen)


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
