"""Tests of `ovkgp.inference.posteriors.mixture`."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
import xarray
from gp_cases import Problem
from gpytorch.kernels import RBFKernel, ScaleKernel
from scipy.stats import binomtest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors import mixture as draws_conditioning
from ovkgp.inference.posteriors.mixture import (
    ConditionedDraws,
    DrawAllocation,
    MixturePosterior,
    condition_on_draws,
    count_bytes,
    thin_draws,
)
from ovkgp.inference.sampling.arviz_data import to_arviz_object
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel

STRATEGIES = {
    "kronecker": {"name": "icm, rank 2", "noise": "per_output", "missing": 0.0},
    "full noise": {"name": "icm, rank 2", "noise": "full", "missing": 0.0},
    "dense": {"name": "lmc", "noise": "per_output"},
    "known noise": {"name": "icm, rank 2", "noise": "known"},
    "independent": {"name": "independent", "noise": "per_output"},
    "iterative": {"name": "lmc", "noise": "shared", "strategy": "iterative"},
    "field": {"name": "curl-free", "noise": "shared"},
    "linear mean": {"name": "scalar", "noise": "shared", "mean": "linear"},
    "features": {"name": "icm, rank 2", "noise": "per_output", "features": "orff", "missing": 0.0},
    "features, missing": {"name": "lmc", "noise": "per_output", "features": "orff"},
    "landmarks": {"name": "icm, rank 2", "noise": "per_output", "features": "nystrom"},
}


def draws_of(gp, count=4, chains=1, seed=0, size=0.2):
    """Perturbed raw parameters, (chains, draws, *shape)."""
    rng = np.random.default_rng(seed)
    trained = {name: p.detach().numpy() for name, p in gp.named_parameters() if p.requires_grad}
    return {n: v + size * rng.standard_normal((chains, count, *v.shape)) for n, v in trained.items()}


def as_dataset(raw):
    axes = {name: ("chain", "draw", *(f"{name}_{i}" for i in range(v.ndim - 2))) for name, v in raw.items()}
    return xarray.Dataset({name: (axes[name], value) for name, value in raw.items()})


def model_at_draw(gp, raw, index):
    gp = copy.deepcopy(gp)
    with torch.no_grad():
        for name, parameter in gp.named_parameters():
            if name in raw:
                parameter.copy_(torch.as_tensor(raw[name][0, index]))
    return gp


def flat(raw):
    return {name: value.reshape(-1, *value.shape[2:]) for name, value in raw.items()}


def simple(n=15):
    X = torch.linspace(0, 5, n, dtype=torch.float64).unsqueeze(-1)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    return OperatorValuedGP(kernel), X, torch.cat([X.sin(), X.cos()], -1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_condition_averages_over_draws_with_every_strategy(strategy):
    problem = Problem(**STRATEGIES[strategy], level=0.05)
    raw = draws_of(problem.gp)
    before = copy.deepcopy(problem.gp.state_dict())
    posterior = problem.condition(hyperparameters=flat(raw), variance="guarded", num_landmarks=5)
    assert type(posterior) is MixturePosterior and len(posterior) == 4
    each = []
    for index in range(4):
        gp = model_at_draw(problem.gp, raw, index)
        own = gp.condition(problem.X, problem.Y, noise=problem.known, variance="guarded", num_landmarks=5)
        each.append((own.predict(problem.test, "full", noise=True), own.log_evidence))
    means = torch.stack([e.mean for e, _ in each])
    flat_means = (means - means.mean(0)).flatten(1)
    expected = torch.stack([e.cov for e, _ in each]).mean(0) + flat_means.T @ flat_means / 4
    found = posterior.predict(problem.test, "full", noise=True)
    torch.testing.assert_close(found.mean, means.mean(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.cov, expected, rtol=1e-9, atol=1e-9)
    assert posterior.log_evidence == pytest.approx(np.mean([e for _, e in each]), rel=1e-9)
    assert all(torch.equal(before[name], value) for name, value in problem.gp.state_dict().items())


@pytest.mark.parametrize("kind", ["inference_data", "datatree"])
def test_condition_reads_both_types_of_arviz_object(kind):
    gp, X, Y = simple()
    raw = draws_of(gp, count=3, chains=2)
    groups = {"posterior": xarray.Dataset(), "unconstrained_posterior": as_dataset(raw)}
    given = to_arviz_object(groups, kind)
    expected = gp.condition(X, Y, hyperparameters=flat(raw)).predict(X)
    found = gp.condition(X, Y, hyperparameters=given).predict(X)
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.std, expected.std)


def test_condition_accepts_group_axes_in_any_order():
    gp, X, Y = simple()
    raw = draws_of(gp, count=3, chains=2)
    rotated = as_dataset(raw).transpose(..., "draw", "chain")
    found = gp.condition(X, Y, hyperparameters=xarray.DataTree.from_dict({"unconstrained_posterior": rotated}))
    assert torch.equal(found.predict(X).mean, gp.condition(X, Y, hyperparameters=flat(raw)).predict(X).mean)


@pytest.mark.parametrize(
    ("chains", "count", "most"), [(4, 25, 10), (3, 7, 20), (1, 100, 7), (4, 5, 2), (2, 3, 6), (2, 3, 50)]
)
def test_thin_draws_is_even_over_chains(chains, count, most):
    chain = np.repeat(np.arange(chains), count).reshape(chains, count)
    index = np.tile(np.arange(count), (chains, 1))
    found = thin_draws({"chain": chain, "index": index}, most)
    kept = min(most, chains * count)
    assert len(found["chain"]) == len(found["index"]) == kept
    assert len(set(zip(found["chain"].tolist(), found["index"].tolist(), strict=True))) == kept
    numbers = np.bincount(found["chain"], minlength=chains)
    assert numbers.max() - numbers.min() <= 1
    gaps = np.diff(found["chain"] * count + found["index"])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_condition_thins_draws():
    gp, X, Y = simple()
    raw = flat(draws_of(gp, count=30))
    posterior = gp.condition(X, Y, hyperparameters=raw, max_draws=5)
    chosen = {name: value[[3, 9, 15, 21, 27]] for name, value in raw.items()}
    assert torch.equal(posterior.predict(X).std, gp.condition(X, Y, hyperparameters=chosen).predict(X).std)
    assert len(gp.condition(X, Y, hyperparameters=raw)) == 30


def test_condition_on_draws_of_variational_model():
    """Predictions of counts are mixtures of the likelihood's own predictions, and draws of y are counts."""
    X = torch.linspace(0, 5, 20, dtype=torch.float64).unsqueeze(-1)
    Y = torch.floor(2 + 2 * X.sin())
    gp = VariationalGP(ScaleKernel(RBFKernel()), likelihood="poisson", inducing=X[::4])
    raw = draws_of(gp)
    posterior = condition_on_draws(gp, flat(raw), partial(VariationalGP.condition, X=X, Y=Y))
    each = [model_at_draw(gp, raw, i).condition(X, Y).predict(X[:3], noise=True) for i in range(4)]
    found = posterior.predict(X[:3], noise=True)
    torch.testing.assert_close(found.mean, torch.stack([e.mean for e in each]).mean(0))
    torch.testing.assert_close(found.cdf(2.0), torch.stack([e.cdf(2.0) for e in each]).mean(0))
    assert torch.equal(found.quantile(0.9), found.quantile(0.9).round())
    draws = posterior.sample(X[:3], 6, noise=True, random_state=0)
    assert draws.shape == (6, 3, 1) and torch.equal(draws, draws.round()) and bool((draws >= 0).all())


# --- memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [None, "orff"])
def test_conditioned_draws_recompute_large_posteriors(features, monkeypatch):
    problem = Problem("icm, rank 2", noise="per_output", missing=0.0, features=features, level=0.05)
    raw = flat(draws_of(problem.gp))
    kept = problem.condition(hyperparameters=raw)
    monkeypatch.setattr(draws_conditioning, "MAX_CACHED_BYTES", 1)
    made = problem.condition(hyperparameters=raw)
    assert kept.parts.are_cached and not made.parts.are_cached
    assert made.parts[1] is not made.parts[1] and kept.parts[1] is kept.parts[1]
    X = problem.test
    assert torch.equal(made.predict(X).std, kept.predict(X).std)
    assert torch.equal(made.sample(X, 5, random_state=0), kept.sample(X, 5, random_state=0))
    draws = made.sample_functions(6, random_state=0)
    assert torch.equal(draws(X), kept.sample_functions(6, random_state=0)(X)) and torch.equal(draws(X), draws(X))
    problem.X.zero_()
    problem.Y.zero_()
    assert torch.equal(made.predict(X).std, kept.predict(X).std)  # copies of the data are kept
    again = pickle.loads(pickle.dumps(made))
    assert torch.equal(again.predict(X).std, kept.predict(X).std)


def test_count_bytes_counts_shared_memory_once():
    tensor = torch.zeros(1000, dtype=torch.float64)
    assert count_bytes([tensor, tensor[:5], {"view": tensor.reshape(10, 100)}, 3, "text", None]) == 8000
    gp, X, Y = simple(40)
    small, large = (count_bytes(gp.condition(X[:n], Y[:n])) for n in (10, 40))
    assert large > 8 * 40**2 and small < large


def test_conditioned_draws_are_a_sequence():
    gp, X, Y = simple()
    raw = {name: torch.from_numpy(value) for name, value in flat(draws_of(gp)).items()}
    drawn = ConditionedDraws(gp, raw, partial(OperatorValuedGP.condition, X=X, Y=Y))
    assert len(drawn) == 4 and len(list(drawn)) == 4 and drawn[-1] is drawn[3] and len(drawn[1:3]) == 2
    with pytest.raises(IndexError, match="index"):
        drawn[4]


# --- statistics ---------------------------------------------------------------------------------------------------------


def with_features():
    _, X, Y = simple()
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    return OperatorValuedGP(kernel, features=ORFF(kernel, 10, num_dims=1, random_state=0)), X, Y


def test_statistics_accept_draws_on_which_they_do_not_depend():
    gp, X, Y = with_features()
    raw = {name: value for name, value in flat(draws_of(gp)).items() if "lengthscale" not in name}
    found = gp.condition(gp.statistics(X, Y), hyperparameters=raw)
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    expected = gp.condition(X, Y, hyperparameters=raw)
    torch.testing.assert_close(found.predict(X).std, expected.predict(X).std, rtol=1e-12, atol=1e-12)


def test_statistics_reject_draws_of_lengthscales():
    gp, X, Y = with_features()
    statistics = gp.statistics(X, Y)
    with pytest.raises(InputError, match="do not match the statistics"):
        gp.condition(statistics, hyperparameters=flat(draws_of(gp)))
    with pytest.raises(InputError, match="Pass statistics"):
        gp.condition(statistics, Y, hyperparameters=flat(draws_of(gp)))


# --- refusals -----------------------------------------------------------------------------------------------------------


def spoilt(change):
    gp, X, Y = simple()
    raw = flat(draws_of(gp))
    change(raw)
    return lambda: gp.condition(X, Y, hyperparameters=raw)


LENGTH = "kernel.base_kernel.raw_lengthscale"
BAD = {
    "unknown": (lambda raw: raw.update(speed=np.zeros(4)), "'speed'"),
    "missing": (lambda raw: raw.pop(LENGTH), "no draws of kernel.*raw_lengthscale"),
    "shape": (lambda raw: raw.update({LENGTH: np.zeros((4, 2))}), r"shape \(2,\), expected \(1, 1\)"),
    "count": (lambda raw: raw.update({LENGTH: np.zeros((3, 1, 1))}), "equally many draws"),
    "scalar": (lambda raw: raw.update({LENGTH: 1.0}), "got a number"),
    "none": (lambda raw: raw.clear(), "at least one draw"),
    "empty": (lambda raw: [raw.update({name: value[:0]}) for name, value in list(raw.items())], "at least one draw"),
    "not finite": (lambda raw: raw[LENGTH].fill(np.nan), "must be finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_condition_rejects_invalid_draws(case):
    change, message = BAD[case]
    with pytest.raises(InputError, match=message):
        spoilt(change)()


def test_known_noise_needs_no_draws_of_noise():
    gp, X, Y = simple()
    noise, raw = torch.full_like(Y, 0.01), flat(draws_of(gp))
    raw = {name: value for name, value in raw.items() if not name.startswith("noise_model")}
    assert len(gp.condition(X, Y, noise=noise, hyperparameters=raw)) == len(raw[LENGTH])
    assert all(parameter.requires_grad for parameter in gp.noise_model.parameters())
    del raw[LENGTH]
    with pytest.raises(InputError, match="no draws of kernel"):
        gp.condition(X, Y, noise=noise, hyperparameters=raw)


def test_condition_rejects_other_types_of_draws():
    gp, X, Y = simple()
    with pytest.raises(InputError, match="result of sample_hyperparameters"):
        gp.condition(X, Y, hyperparameters=3)
    with pytest.raises(InputError, match="group 'unconstrained_posterior'"):
        gp.condition(X, Y, hyperparameters=xarray.DataTree.from_dict({"posterior": as_dataset(draws_of(gp))}))
    with pytest.raises(OptionError, match="max_draws"):
        gp.condition(X, Y, hyperparameters=flat(draws_of(gp)), max_draws=0)
    with pytest.raises(OptionError, match="variance must be one of"):
        gp.condition(X, Y, hyperparameters=flat(draws_of(gp)), variance="nonsense")


def test_fixed_parameters_need_no_draws():
    gp, X, Y = simple()
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    raw = flat(draws_of(gp))
    assert LENGTH not in raw
    posterior = condition_on_draws(gp, raw, partial(OperatorValuedGP.condition, X=X, Y=Y))
    assert all(
        part.process.kernel.base_kernel.lengthscale == gp.kernel.base_kernel.lengthscale for part in posterior.parts
    )


LENGTHS = (0.5, 1.0, 2.0)
POINTS = torch.tensor([[0.3], [2.5], [8.0]], dtype=torch.float64)


def data(n=12):
    X = torch.linspace(0, 5, n, dtype=torch.float64).unsqueeze(-1)
    return X, torch.cat([X.sin(), X.cos() + 2], -1)


def parts():
    """Three posteriors that differ in lengthscale and noise."""
    matrix, made = torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=torch.float64), []
    for length in LENGTHS:
        kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix)
        kernel.base_kernel.lengthscale = length
        made.append(OperatorValuedGP(kernel, mean="zero", noise=0.05 * length).condition(*data()))
    return made


@pytest.fixture(scope="module")
def mixture():
    return MixturePosterior(parts())


def close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("noise", [False, True])
def test_mixture_prediction_has_total_covariance(mixture, noise):
    found = [part.predict(POINTS, "full", noise) for part in parts()]
    means = torch.stack([f.mean.flatten() for f in found])
    second = torch.stack([f.cov + m.outer(m) for f, m in zip(found, means, strict=True)]).mean(0)
    expected = second - means.mean(0).outer(means.mean(0))
    for form in ("none", "diag", "output", "full"):
        prediction = mixture.predict(POINTS, form, noise)
        close(prediction.mean.flatten(), means.mean(0))
        if form != "none":
            close(prediction.variance.flatten(), expected.diagonal())
    close(mixture.predict(POINTS, "full", noise).cov, expected)


def test_mixture_latent_equals_prediction_without_noise(mixture):
    for form in ("diag", "output", "full"):
        mean, covariance = mixture.latent(POINTS, form)
        prediction = mixture.predict(POINTS, form)
        close(mean, prediction.mean)
        close(covariance, prediction.variance if form == "diag" else prediction.cov)
    assert mixture.latent(POINTS, "none")[1] is None


def test_mixture_noise_and_evidence_are_means_over_draws(mixture):
    made = parts()
    close(mixture.noise, torch.stack([part.noise for part in made]).mean(0))
    assert mixture.log_evidence == pytest.approx(np.mean([part.log_evidence for part in made]), rel=1e-14)
    assert mixture.log_evidence_error == 0 and len(mixture) == 3
    assert (mixture.num_outputs, mixture.num_dims) == (2, 1) and mixture.max_chunk_rows("diag") > 0


@pytest.mark.parametrize("noise", [False, True])
def test_mixture_samples_have_moments_of_mixture(mixture, noise):
    k = 30_000
    draws = mixture.sample(POINTS, k, noise=noise, random_state=0).flatten(1)
    prediction = mixture.predict(POINTS, "full", noise)
    error = prediction.variance.flatten().sqrt() / k**0.5
    assert bool(((draws.mean(0) - prediction.mean.flatten()).abs() < 5 * error).all())
    scale = prediction.std.flatten().outer(prediction.std.flatten())
    assert bool(((draws.T.cov() - prediction.cov).abs() < 0.05 * scale).all())
    median = prediction.quantile(0.5).flatten()
    below = (draws < median).sum(0).tolist()
    assert all(binomtest(count, k, 0.5).pvalue > 1e-4 for count in below)


def test_draw_allocation_is_even_and_random():
    allocation = DrawAllocation(11, 3, random_state=0)
    assert sorted(np.bincount(allocation.parts)) == [3, 4, 4] and list(allocation.parts) != sorted(allocation.parts)
    assert sorted(np.concatenate(list(allocation.rows.values()))) == list(range(11))
    assert len(set(allocation.seeds)) == 3
    few = DrawAllocation(2, 50, random_state=0)
    assert len(few.rows) == 2 and len(set(few.parts)) == 2
    assert set(DrawAllocation(2, 50, random_state=1).parts) != set(few.parts)


def test_mixture_functions_keep_their_values_over_calls(mixture):
    draws = mixture.sample_functions(7, random_state=3)
    X = torch.linspace(-1, 6, 9, dtype=torch.float64).unsqueeze(-1)
    whole = draws(X)
    assert whole.shape == (7, 9, 2) and len(draws) == 7
    close(draws(X), whole, 0)
    close(draws(X[2:4]), whole[:, 2:4])
    for i in (0, 3, -1):
        close(draws[i](X), whole[i])
    close(mixture.sample_functions(7, random_state=3)(X), whole, 0)
    assert not torch.equal(mixture.sample_functions(7, random_state=4)(X), whole)


def test_mixture_functions_are_those_of_components(mixture):
    allocation, draws = DrawAllocation(7, 3, random_state=3), mixture.sample_functions(7, random_state=3)(POINTS)
    for part, rows in allocation.rows.items():
        own = mixture.parts[part].sample_functions(len(rows), random_state=allocation.seeds[part])
        close(draws[rows], own(POINTS))


def test_mixture_functions_have_moments_of_mixture(mixture):
    k = 1500
    values, prediction = mixture.sample_functions(k, random_state=0)(POINTS), mixture.predict(POINTS)
    # with 2000 frequencies the prior of a draw is accurate to a few per cent
    assert bool(((values.mean(0) - prediction.mean).abs() < 6 * prediction.std / k**0.5).all())
    close(values.std(0) / prediction.std, torch.ones(3, 2).double(), 0.08)


class Remade:
    """Posteriors that are recomputed at every access."""

    are_cached = False

    def __init__(self):
        self.made = 0

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError
        self.made += 1
        return parts()[index]


def test_mixture_of_recomputed_components_is_unchanged(mixture):
    sequence = Remade()
    remade = MixturePosterior(sequence)
    X = POINTS
    before = sequence.made
    prediction = remade.predict(X, "output", noise=True)
    assert sequence.made == before + 3  # each once
    close(prediction.cov, mixture.predict(X, "output", noise=True).cov)
    close(remade.sample(X, 4, random_state=1), mixture.sample(X, 4, random_state=1))
    draws, kept = (m.sample_functions(4, random_state=1) for m in (remade, mixture))
    close(draws(X), kept(X))
    close(draws[2](X), kept[2](X))
    assert remade.log_evidence == mixture.log_evidence


def test_mixture_sampling_leaves_global_generators_unchanged(mixture):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    mixture.sample(POINTS, 3)
    mixture.sample_functions(3)(POINTS)
    assert torch.equal(torch.rand(1), expected)


def test_mixture_can_be_pickled(mixture):
    again = pickle.loads(pickle.dumps(mixture))
    close(again.predict(POINTS).std, mixture.predict(POINTS).std, 0)


def test_mixture_rejects_invalid_requests(mixture):
    with pytest.raises(InputError, match="at least one posterior"):
        MixturePosterior([])
    with pytest.raises(InputError, match="2 columns"):
        mixture.predict(torch.zeros(3, 2))
    with pytest.raises(OptionError, match="cov must be one of"):
        mixture.predict(POINTS, "half")
    with pytest.raises(OptionError, match="number of draws"):
        mixture.sample(POINTS, 0)


def fields(make):
    X = torch.rand(15, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Y = torch.stack([X[:, 1].sin(), X[:, 0].cos()], -1)
    made = []
    for length in LENGTHS:
        base = RBFKernel(ard_num_dims=2)
        base.lengthscale = length
        made.append(OperatorValuedGP(make(base), mean="zero", noise=0.01).condition(X, Y))
    return made, X[:4]


def test_mixture_averages_derived_fields():
    made, X = fields(HelmholtzKernel)
    mixture = MixturePosterior(made)
    halves = mixture.components()
    close(sum(half.predict(X).mean for half in halves.values()), mixture.predict(X).mean, 1e-9)
    found, each = mixture.potential([0.5, 0.5]).predict(X), [part.potential([0.5, 0.5]).predict(X) for part in made]
    close(found.mean, torch.stack([e.mean for e in each]).mean(0))
    with pytest.raises(OptionError, match="noise=True"):
        mixture.potential().predict(X, noise=True)
    stream = MixturePosterior(fields(DivergenceFreeKernel)[0]).stream_function()
    assert stream.noise is None and stream.sample_functions(2, random_state=0)(X).shape == (2, 4, 1)
