"""Streamed statistics: any cuts and any order of the data give the posterior and the evidence of one pass."""

import pytest
import torch
from gp_cases import Problem, close
from gpytorch.kernels import RBFKernel
from pairwise import pairwise

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.kernels import DecomposableKernel

MODELS = {
    "icm": dict(name="icm, rank 2", features="orff"),
    "singular icm": dict(name="icm, singular", features="orff"),
    "lmc": dict(name="lmc", features="orff"),
    "independent": dict(name="independent", features="orff"),
    "field": dict(name="helmholtz", features="orff"),
    "warped": dict(name="delays", features="orff"),
    "nystrom": dict(name="lmc", features="nystrom"),
    "scalar": dict(name="scalar", features="orff"),
}
NOISES = ("shared", "per_output", "full")
CUTS = {"halves": [12, 12], "uneven": [1, 9, 2, 12], "single rows": [1] * 24}


def stream(model, noise, missing="some", **options):
    """24 rows; with "some", outputs are missing in the second half only, so that chunks with and without alternate."""
    problem = Problem(
        **{"mean": "linear", "n": 24, "missing": 0.0, "level": 0.05, **MODELS[model], **options}, noise=noise
    )
    generator = torch.Generator().manual_seed(1)
    if missing == "some":
        gone = torch.rand(problem.Y.shape, generator=generator) < 0.3
        gone[:12] = False
        if problem.num_outputs > 1:  # rows without observed values are for another test
            gone[gone.all(1), 0] = False
        else:
            gone[:] = False
        problem.Y[gone] = torch.nan
    return problem


def chunks(problem, cuts, order=None):
    """Parts (X, Y, noise) of the rows in some order."""
    rows = torch.arange(len(problem.X)) if order is None else order
    for part in rows.split(cuts):
        yield problem.X[part], problem.Y[part], None if problem.known is None else problem.known[part]


def added(gp, parts):
    return sum(gp.statistics(*part) for part in parts)


def accumulated(gp, parts):
    total = None
    for part in parts:
        total = gp.statistics(*part, into=total)
    return total


def check(problem, statistics):
    """Against one pass, and against dense algebra."""
    one, streamed = problem.condition(), problem.gp.condition(statistics)
    mean, covariance, evidence = problem.expected()
    for posterior in (one, streamed):
        prediction = posterior.predict(problem.test, "full")
        close(prediction.mean, mean)
        close(prediction.cov, covariance)
        assert posterior.log_evidence == pytest.approx(evidence, rel=1e-8)
    assert problem.gp.log_evidence(statistics).item() == pytest.approx(evidence, rel=1e-8)
    close(streamed.noise, one.noise, 1e-12)


@pytest.mark.parametrize(
    ("model", "noise", "missing", "combine"),
    pairwise(model=MODELS, noise=[*NOISES, "known"], missing=["none", "some"], combine=[added, accumulated]),
)
def test_streamed_statistics_equal_one_pass(model, noise, missing, combine):
    problem = stream(model, noise, missing)
    check(problem, combine(problem.gp, chunks(problem, CUTS["uneven"])))


@pytest.mark.parametrize("combine", [added, accumulated])
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_streamed_statistics_do_not_depend_on_order_and_cuts(cuts, seed, combine):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    for model in ("icm", "field"):
        problem = stream(model, "per_output")
        check(problem, combine(problem.gp, chunks(problem, CUTS[cuts], order)))


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_streamed_statistics_with_correlated_noise_do_not_depend_on_order_and_cuts(cuts, seed):
    """Complete rows are independent of the noise until the first missing output."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    for model in ("icm", "field"):
        problem = stream(model, "full")
        for one in (order, torch.arange(24), torch.arange(24).flip(0)):
            check(problem, accumulated(problem.gp, chunks(problem, CUTS[cuts], one)))


def test_streamed_statistics_add_in_any_grouping():
    problem = stream("icm", "per_output")
    a, b, c, d = (problem.gp.statistics(*part) for part in chunks(problem, [3, 7, 8, 6]))
    check(problem, (d + a) + (c + b))
    check(problem, Statistics.empty() + a + (b + (c + Statistics.empty() + d)))
    x, y, z = chunks(problem, [3, 7, 14])
    total = problem.gp.statistics(*z, into=problem.gp.statistics(*x) + problem.gp.statistics(*y))
    check(
        problem,
        problem.gp.statistics(*x, into=Statistics.empty()) + problem.gp.statistics(*y) + problem.gp.statistics(*z),
    )
    check(problem, total)
    assert total.num_rows == 24 and torch.equal(total.num_observed, (~torch.isnan(problem.Y)).sum(0))


def test_statistics_into_does_not_modify_its_argument():
    problem = stream("icm", "full")
    first, second = chunks(problem, [12, 12])
    kept = problem.gp.statistics(*first)
    gram = kept.gram.clone()
    problem.gp.statistics(*second, into=kept)
    assert torch.equal(kept.gram, gram) and kept.num_rows == 12


@pytest.mark.parametrize("noise", NOISES)
def test_streamed_statistics_ignore_rows_without_observed_values(noise):
    problem = stream("icm", noise)
    expected = problem.condition().predict(problem.test, "full")
    evidence = problem.log_evidence()
    problem.X = torch.cat([problem.X, torch.zeros(2, 2)])
    problem.Y = torch.cat([problem.Y, torch.full((2, 3), torch.nan)])
    statistics = accumulated(problem.gp, chunks(problem, [5, 21]))
    prediction = problem.gp.condition(statistics).predict(problem.test, "full")
    close(prediction.mean, expected.mean)
    close(prediction.cov, expected.cov)
    close(problem.gp.log_evidence(statistics), evidence)


def test_streamed_statistics_accept_parts_without_an_output():
    for noise in NOISES:
        problem = stream("icm", noise)
        problem.Y[:12, 1] = torch.nan
        check(problem, accumulated(problem.gp, chunks(problem, [6, 6, 12])))


@pytest.mark.parametrize("model", MODELS)
def test_streamed_statistics_of_single_precision_data(model):
    problem = stream(model, "per_output")
    problem.X, problem.Y = problem.X.float(), problem.Y.float()
    statistics = added(problem.gp, chunks(problem, [10, 14]))
    assert all(part.gram.dtype == torch.float64 for part in getattr(statistics, "parts", (statistics,)))
    problem.X, problem.Y = problem.X.double(), problem.Y.double()
    check(problem, statistics)


@pytest.mark.parametrize("noise", NOISES)
def test_streamed_statistics_allow_changes_of_mean_and_noise(noise):
    """If all outputs are observed the statistics depend on neither; the posterior is that of one pass at the new
    values."""
    problem = stream("icm", noise, "none")
    statistics = added(problem.gp, chunks(problem, [10, 14]))
    with torch.no_grad():
        for parameter in (*problem.gp.mean.parameters(), *problem.gp.noise_model.parameters()):
            parameter.mul_(0.9)
    check(problem, statistics)


@pytest.mark.parametrize("noise, missing", [("per_output", "none"), ("per_output", "some"), ("full", "some")])
@pytest.mark.parametrize("model", ["icm", "field", "warped", "nystrom"])
def test_condition_rejects_statistics_at_other_kernel_hyperparameters(model, noise, missing):
    problem = stream(model, noise, missing)
    before = accumulated(problem.gp, chunks(problem, [12, 12]))
    name, raw = next((n, t) for n, t in problem.gp.kernel.named_parameters() if "lengthscale" in n)
    with torch.no_grad():
        raw.add_(1e-6)
    after = accumulated(problem.gp, chunks(problem, [12, 12]))
    for compute in (problem.gp.condition, problem.gp.log_evidence):
        with pytest.raises(InputError, match="hyperparameters"):
            compute(before)
    with pytest.raises(InputError, match="hyperparameters"):
        before + after
    with pytest.raises(InputError, match="hyperparameters"):
        problem.gp.statistics(problem.X, problem.Y, into=before)
    assert name


def test_condition_rejects_statistics_at_another_correlated_noise():
    problem = stream("icm", "full")
    statistics = accumulated(problem.gp, chunks(problem, [12, 12]))
    with torch.no_grad():
        problem.gp.noise_model.log_scale.add_(1e-6)
    with pytest.raises(InputError, match="hyperparameters"):
        problem.gp.condition(statistics)


def test_condition_rejects_statistics_of_another_feature_map():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3)
    first, second = (OperatorValuedGP(kernel, features=ORFF(kernel, 7, random_state=seed)) for seed in (0, 1))
    problem = stream("icm", "per_output")
    statistics = first.statistics(problem.X, problem.Y)
    for compute in (lambda: second.condition(statistics), lambda: statistics + second.statistics(problem.X, problem.Y)):
        with pytest.raises(InputError, match="features"):
            compute()


def test_streamed_statistics_reject_mixing_known_and_model_noise():
    problem = stream("icm", "per_output")
    (X, Y, _), (X2, Y2, _) = chunks(problem, [12, 12])
    known = problem.gp.statistics(X2, Y2, noise=torch.full_like(Y2, 0.1))
    for mix in (lambda: known + problem.gp.statistics(X, Y), lambda: problem.gp.statistics(X, Y, into=known)):
        with pytest.raises(InputError):
            mix()


def test_guarded_variance_does_not_depend_on_the_stream():
    problem = stream("icm", "per_output")
    one = problem.gp.statistics(problem.X, problem.Y)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    other = added(problem.gp, chunks(problem, [5, 9, 10], order))
    far = problem.test + 4
    a, b = (problem.gp.condition(s, variance="guarded", num_landmarks=8).predict(far) for s in (one, other))
    close(a.std, b.std)
