"""Tests of `ovkgp.inference.statistics.statistics`."""

import itertools

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from pairwise import pairwise
from peak_memory import PeakMemory
from weight_space_cases import MAPS, WHITENED, Case

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import Landmarks, choose_landmarks, hash_rows
from ovkgp.inference.statistics.accumulation import (
    BlockGram,
    compute_grams_by_output,
    compute_statistics,
    find_patterns,
    make_row_groups,
)
from ovkgp.inference.statistics.statistics import (
    OutputStatistics,
    Statistics,
    compute_output_moments,
    make_surrogate_data,
    whiten_statistics,
)
from ovkgp.inference.statistics.weight_space import make_weight_system
from ovkgp.kernels import DecomposableKernel, IndependentKernel

KINDS = {
    "shared": ("decomposable", "full", 0.0),
    "shared stack": ("lmc", "full", 0.0),
    "by output": ("helmholtz", "per_output", 0.3),
    "known": ("curl-free", "known", 0.3),
    "whitened": ("decomposable", "full", 0.3),
    "whitened rows": ("delays", "per_output", 0.3),
}


@pytest.fixture(params=KINDS)
def case(request):
    return Case(*KINDS[request.param], mean="linear", n=60)


def statistics_of(case, data=None, **options):
    with torch.no_grad():
        return compute_statistics(case.features, case.mean, case.noise, case.data if data is None else data, **options)


def same(a, b, tolerance=1e-10):
    assert (a.layout, a.num_rows, a.num_scalar_features, a.num_basis, a.weighted) == (
        b.layout,
        b.num_rows,
        b.num_scalar_features,
        b.num_basis,
        b.weighted,
    )
    assert torch.equal(a.num_observed, b.num_observed)
    for name in ("gram", "log_noise", "noise_sum"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=tolerance, atol=tolerance)
    assert torch.equal(a.landmarks.X, b.landmarks.X) and torch.equal(a.landmarks.observed, b.landmarks.observed)
    assert torch.equal(a.landmarks.priorities, b.landmarks.priorities)


def parts(case, sizes, **options):
    """Statistics of consecutive parts of the data, all in the layout of the whole."""
    layout = statistics_of(case).layout
    arrays = zip(case.data.X.split(sizes), case.data.Y.split(sizes), strict=True)
    noises = [None] * len(sizes) if case.data.noise is None else case.data.noise.split(sizes)
    data = [Observations(*pair, noise) for pair, noise in zip(arrays, noises, strict=True)]
    return [statistics_of(case, part, layout=layout, **options) for part in data]


def sizes(case):
    n = case.data.num_rows
    return [17, 1, n - 28, 10]


def test_statistics_do_not_depend_on_order_or_chunks(case):
    whole = statistics_of(case, num_landmarks=20)
    shuffled = case.data.rows(torch.randperm(case.data.num_rows, generator=torch.Generator().manual_seed(0)))
    same(statistics_of(case, shuffled, num_landmarks=20), whole)
    for chunk_rows in (1, 7, 59):
        same(statistics_of(case, chunk_rows=chunk_rows, num_landmarks=20), whole)


def test_statistics_are_a_commutative_monoid(case):
    a, b, c, d = parts(case, sizes(case), num_landmarks=20)
    whole = statistics_of(case, num_landmarks=20)
    same(a + b, b + a, 0.0)
    same((a + b) + (c + d), a + ((b + c) + d))
    same(sum([d, b, a, c]), whole)
    same(Statistics.empty() + a, a, 0.0)
    same(a + Statistics.empty(), a, 0.0)
    assert (Statistics.empty() + Statistics.empty()).layout == "empty"
    with pytest.raises(TypeError):
        a + 1
    with pytest.raises(TypeError):
        1 + a


def test_statistics_sum_has_gradients(case):
    """The evidence of added parts has the gradient of the evidence of the whole."""
    parameters = [t for t in case.features.parameters() if t.requires_grad]
    template = case.features(case.data.X[:1])

    def gradient(statistics):
        system = make_weight_system(statistics, template, case.noise.matrix(), case.mean.coefficients)
        return torch.autograd.grad(system.log_density, parameters, retain_graph=True)

    whole = compute_statistics(case.features, case.mean, case.noise, case.data)
    halves = case.data.rows(slice(0, 20)), case.data.rows(slice(20, None))
    added = sum(compute_statistics(case.features, case.mean, case.noise, half, layout=whole.layout) for half in halves)
    for found, expected in zip(gradient(added), gradient(whole), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_statistics_by_output_splits_a_shared_gram():
    case = Case("helmholtz", "per_output", 0.3, n=40)
    data = case.data
    complete = data.observed.all(1)
    assert 0 < complete.sum() < len(complete)
    first, second = [statistics_of(case, data.rows(rows)) for rows in (complete, ~complete)]
    assert [first.layout, second.layout] == ["shared", "by_output"]
    whole = statistics_of(case)
    same(first + second, whole)
    same(second + first, whole)
    same(first.to_layout("by_output"), statistics_of(case, data.rows(complete), layout="by_output"))


def test_statistics_of_float32_data_are_summed_in_float64():
    case = Case("curl-free", "shared", 0.0, n=30)
    single = Observations(case.data.X.float(), case.data.Y.float())
    statistics = statistics_of(case, single, chunk_rows=7)
    assert statistics.gram.dtype == torch.float64
    same(statistics, statistics_of(case, Observations(single.X.double(), single.Y.double())))


def test_statistics_ignore_rows_without_outputs():
    case = Case("curl-free", "shared", 0.0, n=20)
    X, Y = case.data.X, case.data.Y.clone()
    Y[3:12] = torch.nan
    kept = torch.cat([torch.arange(3), torch.arange(12, 20)])
    expected = statistics_of(case, Observations(X[kept], Y[kept]))
    for chunk_rows in (None, 4):
        same(statistics_of(case, Observations(X, Y), chunk_rows=chunk_rows), expected)
    assert statistics_of(case, Observations(X[3:12], Y[3:12])).layout == "empty"


def test_statistics_reject_incompatible_summands():
    case = Case("curl-free", "per_output", 0.0)
    a = statistics_of(case, fingerprint="abc")
    with pytest.raises(InputError, match="'abc' and 'xyz'"):
        a + statistics_of(case, fingerprint="xyz")
    known = Observations(case.data.X, case.data.Y, torch.ones_like(case.data.Y))
    with pytest.raises(InputError, match="noise"):
        a + statistics_of(case, known, fingerprint="abc")
    with pytest.raises(InputError, match="num_basis=1 and num_basis=3"):
        linear = Case("curl-free", mean="linear")
        a + statistics_of(linear, fingerprint="abc")
    with pytest.raises(InputError, match="features=12 and num_scalar_features=24"):
        a + statistics_of(Case("helmholtz", missing=0.0), fingerprint="abc")
    full = Case("own", "full", 0.0)
    with pytest.raises(InputError):
        a + statistics_of(full, fingerprint="abc")


# --- landmarks -------------------------------------------------------------------------------------------------------


def points(n=300, d=2, p=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Y = torch.randn(n, p, generator=generator, dtype=torch.float64)
    Y[torch.rand(n, p, generator=generator) < 0.3] = torch.nan
    return Observations(torch.randn(n, d, generator=generator, dtype=torch.float64), Y).observed_rows()


def test_landmarks_do_not_depend_on_order_or_chunks(monkeypatch):
    data = points()
    whole = choose_landmarks(data, 40)
    assert len(whole) == 40 and bool((whole.priorities.diff() > 0).all()) and bool((whole.priorities >= 0).all())
    for rows, at_once in itertools.product(
        (torch.randperm(data.num_rows), torch.arange(data.num_rows).flip(0)), (1, 37)
    ):
        monkeypatch.setitem(choose_landmarks.__globals__, "CHUNK_ROWS", at_once)
        other = choose_landmarks(data.rows(rows), 40)
        assert torch.equal(other.X, whole.X) and torch.equal(other.observed, whole.observed)
    parts = [choose_landmarks(data.rows(slice(start, start + 70)), 40) for start in range(0, data.num_rows, 70)]
    merged = sum(parts[::-1], Landmarks.empty())
    assert torch.equal(merged.X, whole.X) and torch.equal(merged.priorities, whole.priorities)


def test_landmarks_are_rows_of_the_data_with_their_masks_and_copies_count_once():
    data = points(50)
    twice = Observations(torch.cat([data.X, data.X]), torch.cat([data.Y, data.Y]))
    chosen = choose_landmarks(twice, 1000)
    assert len(chosen) == data.num_rows
    for x, observed in zip(chosen.X, chosen.observed, strict=True):
        (row,) = (x == data.X).all(1).nonzero()[0]
        assert torch.equal(data.observed[row], observed)
    other_mask = Observations(data.X, torch.where(data.observed, torch.nan, 1.0)).observed_rows()
    assert len(chosen + choose_landmarks(other_mask, 1000)) == data.num_rows + other_mask.num_rows


def test_landmarks_are_a_uniform_sample():
    """1000 of 20 000 points on a line: each tenth has 100 ± 5 standard deviations of a hypergeometric count."""
    X = torch.linspace(0, 1, 20_000, dtype=torch.float64).unsqueeze(-1)
    chosen = choose_landmarks(Observations(X, torch.zeros_like(X)), 1000)
    counts = np.histogram(chosen.X.numpy(), bins=10, range=(0, 1))[0]
    assert np.abs(counts - 100).max() < 5 * np.sqrt(1000 * 0.1 * 0.9 * 19 / 20)


def test_hash_rows_does_not_depend_on_the_sign_of_zero_or_dtype():
    zeros = Observations(torch.tensor([[0.0], [-0.0]], dtype=torch.float64), torch.zeros(2, 1))
    assert hash_rows(zeros).unique().numel() == 1
    halves = Observations(torch.tensor([[0.5, 0.25]]), torch.zeros(1, 1))
    assert torch.equal(hash_rows(halves), hash_rows(halves.double()))


def test_landmarks_respect_the_smaller_limit():
    data = points(60)
    assert len(choose_landmarks(data, 0)) == 0
    merged = choose_landmarks(data, 30) + choose_landmarks(data, 10)
    assert torch.equal(merged.X, choose_landmarks(data, 10).X)


@pytest.mark.parametrize("p", [3, 64, 70, 130])
def test_find_patterns_of_any_number_of_outputs(p):
    generator = torch.Generator().manual_seed(0)
    distinct = torch.rand(5, p, generator=generator) < 0.5
    index = torch.randint(5, (40,), generator=generator)
    observed = distinct[index]
    patterns, found, counts = find_patterns(observed)
    assert torch.equal(patterns[found], observed) and len(patterns) == len(observed.unique(dim=0)) == len(counts)
    assert torch.equal(counts, torch.bincount(found))


# --- Gram matrices ---------------------------------------------------------------------------------------------------


def test_block_gram_equals_dense_and_is_twice_differentiable():
    torch.manual_seed(0)
    blocks = [torch.randn(6, k, dtype=torch.float64, requires_grad=True) for k in (3, 2, 1)]
    whole = torch.cat(blocks, 1)
    torch.testing.assert_close(BlockGram.apply(False, *blocks), whole.mT @ whole, rtol=1e-13, atol=1e-13)

    def gram(*blocks):
        return BlockGram.apply(False, *blocks).tanh()

    assert torch.autograd.gradcheck(gram, blocks) and torch.autograd.gradgradcheck(gram, blocks)
    weight = torch.randn(6, 6, dtype=torch.float64)
    value, only = (torch.autograd.grad(BlockGram.apply(flag, *blocks), blocks, weight) for flag in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(value, only, strict=True))


def gram_data(n=900):
    data = points(n, p=3, seed=1)
    torch.manual_seed(1)
    scalar_features = [torch.randn(data.num_rows, k, dtype=torch.float64) for k in (4, 3)]
    return data, scalar_features, torch.ones(data.num_rows, 1, dtype=torch.float64), torch.nan_to_num(data.Y)


@pytest.mark.parametrize("adding", [0, 100, 10_000])
@pytest.mark.parametrize("known", [False, True])
def test_compute_grams_by_output_does_not_depend_on_the_groups(adding, known, monkeypatch):
    """From one product per pattern of missing outputs to one per output."""
    monkeypatch.setitem(make_row_groups.__globals__, "GRAM_ADDITION_ROWS", adding)
    data, scalar_features, basis, Y = gram_data()
    if known:
        data = Observations(data.X, data.Y, 0.1 + torch.rand_like(data.Y))
    groups = make_row_groups(data)
    entries = torch.zeros_like(data.observed, dtype=torch.int64)
    for group in groups:
        for a in group.outputs:
            entries[group.rows, a] += 1
    assert torch.equal(entries, data.observed.long())
    if not known:
        assert max(len(group.outputs) for group in groups) == (1 if adding == 10_000 else 3)
    grams = compute_grams_by_output(scalar_features, basis, Y, groups)
    for a, gram in enumerate(grams):
        scale = torch.where(data.observed[:, a], 1.0 if data.noise is None else data.noise[:, a].rsqrt(), 0.0)
        rows = torch.cat([*scalar_features, basis, Y[:, [a]]], 1) * scale.unsqueeze(1)
        torch.testing.assert_close(gram, rows.mT @ rows, rtol=1e-12, atol=1e-12)


def test_statistics_accept_chunks_without_an_output():
    case = Case("curl-free", "per_output", 0.0, n=20)
    Y = case.data.Y.clone()
    Y[:10, 0] = torch.nan
    data = Observations(case.data.X, Y)
    same(statistics_of(case, data, chunk_rows=5), statistics_of(case, data))


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "by output", "whitened"])
def test_statistics_memory_does_not_grow_with_the_rows(kind, monkeypatch):
    """Four times the rows: the same peak, but for the data themselves, whose chunks are views of them, and their
    mask."""
    for name in ("choose_landmarks", "compute_log_noise"):
        monkeypatch.setitem(compute_statistics.__globals__[name].__globals__, "CHUNK_ROWS", 100)
    peaks, given = [], []
    for n in (600, 2400):
        case = Case(*KINDS[kind], n=n)
        with PeakMemory() as watch:
            statistics = compute_statistics(
                case.features, case.mean, case.noise, case.data, chunk_rows=100, num_landmarks=50
            )
            template = case.features(case.data.X[:1])
            system = make_weight_system(statistics, template, case.noise.matrix(), case.mean.coefficients)
            torch.autograd.grad(system.log_density, list(case.parameters().values()), allow_unused=True)
        peaks.append(watch.peak)
        given.append(8 * (case.data.X.numel() + case.data.Y.numel()) + case.data.observed.numel())
    # Missing outputs are grouped otherwise in every chunk, which moves the peak by a little.
    assert peaks[1] - peaks[0] <= given[1] - given[0] + 0.02 * (peaks[0] - given[0]), (peaks, given)


BASES = {"zero": 0, "constant": 1, "linear": 3}
UNWHITENED = [name for name in MAPS if name not in WHITENED]


def close(actual, expected, rtol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * expected.abs().max().item())


def both(name, mean, noise="full"):
    """Shared statistics of complete data, converted, and those of the same data in the whitened layout."""
    case = Case(name, noise=noise, missing=0.0, mean=mean)
    parts = case.features, case.mean, case.noise, case.data
    with torch.no_grad():
        shared, direct = compute_statistics(*parts), compute_statistics(*parts, layout="whitened", fingerprint="w")
        assert shared.layout == "shared"
        template = case.features(case.data.X[:1])
        return case, whiten_statistics(shared, template, case.noise.matrix(), "w"), direct


@pytest.mark.parametrize(
    ("name", "mean", "noise"), pairwise(name=UNWHITENED, mean=BASES, noise=["full", "per_output", "shared"])
)
def test_whiten_statistics_equals_whitened_layout(name, mean, noise):
    case, found, direct = both(name, mean, noise)
    d = case.data.X.shape[1]
    assert found.num_basis == (1 + d if mean == "linear" else BASES[mean])
    close(found.gram, direct.gram)
    close(found.log_noise, direct.log_noise)
    for name in ("layout", "num_rows", "num_scalar_features", "num_basis", "weighted", "fingerprint"):
        assert getattr(found, name) == getattr(direct, name)
    for name in ("num_observed", "noise_sum"):
        assert torch.equal(getattr(found, name), getattr(direct, name))
    assert torch.equal(found.landmarks.X, direct.landmarks.X)


def test_whiten_statistics_of_a_mean_without_a_basis():
    _, found, direct = both("decomposable", "bumps")
    assert found.num_basis == 0
    close(found.gram, direct.gram)


def test_whiten_statistics_add_to_those_of_later_rows():
    case, found, direct = both("lmc", "linear")
    later = Case("lmc", noise="full", missing=0.4, mean="linear", seed=1).data
    with torch.no_grad():
        more = compute_statistics(case.features, case.mean, case.noise, later, fingerprint="w")
    assert more.layout == "whitened"
    close((found + more).gram, (direct + more).gram)


def test_whiten_statistics_returns_whitened_ones_unchanged():
    case, _, direct = both("decomposable", "constant")
    template = case.features(case.data.X[:1])
    assert whiten_statistics(direct, template, case.noise.matrix(), "other") is direct


def data(n=200, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) + np.array([5.0, 0.0])
    Y = rng.standard_normal((n, p)) @ rng.standard_normal((p, p)) * [1.0, 10.0, 0.1] + [3.0, 0.0, -1.0]
    return torch.from_numpy(X), torch.from_numpy(Y)


def model(mean="constant", noise="per_output", kernel=None):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3) if kernel is None else kernel
    return OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 5, random_state=0))


@pytest.mark.parametrize("mean", ("constant", "linear"))
def test_compute_output_moments_is_exact_for_complete_outputs(mean):
    gp, (X, Y) = model(mean), data()
    center, covariance = compute_output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    np.testing.assert_allclose(center, Y.mean(0), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.cov(Y.numpy().T, bias=True), rtol=1e-8, atol=1e-10)


def test_compute_output_moments_has_zero_mean_without_a_constant():
    gp, (X, Y) = model("zero"), data()
    center, covariance = compute_output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    assert not center.any()
    np.testing.assert_allclose(covariance, Y.mT @ Y / len(Y), rtol=1e-8)


@pytest.mark.parametrize("kernel", (None, "independent"))
def test_compute_output_moments_with_missing_outputs(kernel):
    kernel = kernel and IndependentKernel([RBFKernel(ard_num_dims=2) for _ in range(3)])
    gp, (X, Y) = model(kernel=kernel), data()
    Y[::3, 1] = torch.nan
    center, covariance = compute_output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    np.testing.assert_allclose(center, Y.nanmean(0), rtol=1e-10)
    np.testing.assert_allclose(covariance.diagonal(), np.nanvar(Y.numpy(), 0), rtol=1e-8)
    assert torch.equal(covariance, torch.diag(covariance.diagonal()))


@pytest.mark.parametrize("mean", ("zero", "constant"))
@pytest.mark.parametrize("kind", ("known", "full"))
def test_compute_output_moments_of_weighted_statistics(kind, mean):
    gp, (X, Y) = model(mean, "full"), data()
    gp.noise_model.set(0.1 * Y.var(0))
    Y = Y - Y.mean(0)
    Y[::3, 1] = torch.nan
    known = (0.1 * Y.nan_to_num().square().mean(0)).expand(len(Y), 3).clone() if kind == "known" else None
    center, covariance = compute_output_moments(gp.statistics(X, Y, known), gp.noise_model.matrix())
    deviations = np.nanstd(Y.numpy(), 0)
    np.testing.assert_allclose(covariance.diagonal().sqrt(), deviations, rtol=0.5)
    assert bool((center.abs() < 0.3 * torch.from_numpy(deviations)).all())


def test_make_surrogate_data_has_the_scales_of_the_data():
    gp, (X, Y) = model(), data()
    Z, W = make_surrogate_data(gp.statistics(X, Y), gp.noise_model.matrix())
    assert len(Z) == len(W)
    np.testing.assert_allclose(W.mean(0), Y.mean(0), rtol=1e-8)
    np.testing.assert_allclose(np.cov(W.numpy().T, bias=True), np.cov(Y.numpy().T, bias=True), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(Z.mean(0), X.mean(0), atol=0.4)
    np.testing.assert_allclose(Z.std(0), X.std(0), rtol=0.3)


def independent_model(noise="per_output"):
    kernel = IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(3)])
    for a, part in enumerate(kernel.kernels):
        part.base_kernel.lengthscale = 0.5 + a
    return OperatorValuedGP(kernel, noise=noise, features=ORFF(kernel, 15, random_state=0))


def table(missing=True):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    Y = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    if missing:
        Y[torch.rand(40, 3, generator=generator) < 0.3] = torch.nan
        Y[:10, 1] = torch.nan  # an output without values in the first part of the stream
    return X, Y


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("missing", [False, True])
def test_output_statistics_do_not_depend_on_chunks_and_order(missing, known):
    gp, (X, Y) = independent_model(), table(missing)
    noise = torch.rand(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1 if known else None
    parts = [slice(10, 25), slice(0, 10), slice(25, 40)]
    statistics = [gp.statistics(X[part], Y[part], None if noise is None else noise[part]) for part in parts]
    total = sum(statistics)
    assert isinstance(total, OutputStatistics)
    torch.testing.assert_close(total.num_observed, (~torch.isnan(Y)).sum(0))
    whole = gp.condition(X, Y, noise=noise, variance="guarded")
    streamed = gp.condition(total, variance="guarded")
    one, other = whole.predict(X[:7], "full", noise=True), streamed.predict(X[:7], "full", noise=True)
    torch.testing.assert_close(other.mean, one.mean, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(other.cov, one.cov, rtol=1e-8, atol=1e-10)
    assert streamed.log_evidence == pytest.approx(whole.log_evidence, rel=1e-8)
    assert gp.log_evidence(total).item() == pytest.approx(gp.log_evidence(X, Y, noise).item(), rel=1e-8)


def test_output_statistics_agree_with_the_joint_feature_map():
    """One weight space for all outputs agrees with one per output."""
    gp, (X, Y) = independent_model(), table()
    together = OperatorValuedGP(kernel := gp.kernel, noise="per_output", strategy="features", features=gp.features)
    assert together.kernel is not kernel
    separate, joint = gp.condition(X, Y), together.condition(X, Y)
    torch.testing.assert_close(separate.predict(X, "full").cov, joint.predict(X, "full").cov, rtol=1e-8, atol=1e-10)
    assert separate.log_evidence == pytest.approx(joint.log_evidence, rel=1e-8)


def test_condition_rejects_output_statistics_without_data():
    gp, (X, Y) = independent_model(), table()
    with pytest.raises(InputError, match="output 1"):
        gp.condition(gp.statistics(X[:10], Y[:10]))


def test_output_statistics_reject_different_numbers_of_outputs():
    gp, (X, Y) = independent_model(), table()
    statistics = gp.statistics(X, Y)
    with pytest.raises(InputError, match="outputs"):
        statistics + OutputStatistics(statistics.parts[:2])
    with pytest.raises(TypeError):
        statistics + statistics.parts[0]


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", ["per_output", "full"])
def test_statistics_of_nystrom_features_are_accepted_with_gradients(noise, seed):
    """Kernels round differently if gradients are required: the last bits of features identify nothing."""
    generator = torch.Generator().manual_seed(seed)
    kernel = DecomposableKernel(MaternKernel(1.5, ard_num_dims=2), 2).double()
    for parameter in kernel.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    X, Y = (torch.randn(30, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    Y[:5, 0] = torch.nan
    gp = OperatorValuedGP(kernel, noise=noise, features=Nystrom(kernel, X[:10]))
    statistics = gp.statistics(X, Y)
    assert gp.log_evidence(statistics).item() == pytest.approx(gp.log_evidence(X, Y).item(), rel=1e-6)
    gp.kernel.base_kernel.lengthscale = 1.001 * gp.kernel.base_kernel.lengthscale.detach()
    with pytest.raises(InputError, match="other features"):
        gp.log_evidence(statistics)


@pytest.mark.parametrize("kind", ["joint", "independent"])
def test_statistics_of_rows_without_observed_outputs_add_nothing(kind):
    if kind == "independent":
        gp, (X, Y) = independent_model(), table()
    else:
        gp, (X, Y) = (
            OperatorValuedGP(
                kernel := DecomposableKernel(RBFKernel(), 3), features=ORFF(kernel, 9, num_dims=2, random_state=0)
            ),
            table(),
        )
    whole, empty = gp.statistics(X, Y), gp.statistics(X, torch.full_like(Y, torch.nan))
    for total in (
        whole + empty,
        empty + whole,
        gp.statistics(X, Y * torch.nan, into=whole),
        gp.statistics(X, Y, into=empty),
    ):
        assert gp.log_evidence(total).item() == pytest.approx(gp.log_evidence(whole).item(), rel=1e-12)
    assert gp.statistics(X[:0], Y[:0]).num_observed.sum() == 0
    with pytest.raises(InputError, match=r"no observed values|must contain data"):
        gp.condition(empty)


def test_statistics_subtract_what_was_added(case):
    layout = statistics_of(case).layout
    some, rest = parts(case, [17, case.data.num_rows - 17])
    found = statistics_of(case, layout=layout) - some
    same(found, rest)
    assert (some - some).layout == "empty" and found - Statistics.empty() is found
    same(some + rest - rest, some)


def test_statistics_subtract_rows_of_another_layout():
    case = Case("decomposable", "per_output", 0.3, n=60)
    complete = case.data.rows(case.data.observed.all(1))
    assert statistics_of(case, complete).layout == "shared"
    found = statistics_of(case) - statistics_of(case, complete)
    same(found, statistics_of(case, case.data.rows(~case.data.observed.all(1)), layout="by_output"))


def test_statistics_subtraction_stays_accurate_over_a_sliding_window():
    torch.manual_seed(0)
    kernel = RBFKernel(ard_num_dims=1)
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
    X, Y = torch.rand(600, 1, dtype=torch.float64), torch.rand(600, 1, dtype=torch.float64)
    window = gp.statistics(X[:100], Y[:100])
    for i in range(500):
        new, old = slice(100 + i, 101 + i), slice(i, i + 1)
        window = window + gp.statistics(X[new], Y[new]) - gp.statistics(X[old], Y[old])
    same(window, gp.statistics(X[500:], Y[500:]), 1e-12)


def test_statistics_subtraction_detects_lost_digits_and_unknown_rows():
    kernel = RBFKernel()
    gp = OperatorValuedGP(kernel, features=Nystrom(kernel, torch.zeros(1, 1)))
    X = torch.zeros(4, 1, dtype=torch.float64)
    large, small = torch.full((4, 1), 1e6, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    both = gp.statistics(X, large) + gp.statistics(X, small)
    with pytest.raises(InputError, match="lost to rounding"):
        both - gp.statistics(X, large)
    with pytest.raises(InputError, match="not added before"):
        gp.statistics(torch.cat([X, X]), torch.cat([small, small])) - gp.statistics(X, 2 * large)
    with pytest.raises(InputError, match="do not contain"):
        gp.statistics(X, small) - both
    other = OperatorValuedGP(kernel, features=Nystrom(kernel, torch.ones(1, 1)))
    with pytest.raises(InputError, match="different features"):
        both - other.statistics(X, small)


def test_output_statistics_subtract_output_by_output():
    kernel = IndependentKernel([ScaleKernel(RBFKernel()), ScaleKernel(MaternKernel())])
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 10, num_dims=1, random_state=0))
    X, Y = torch.rand(20, 1, dtype=torch.float64), torch.rand(20, 2, dtype=torch.float64)
    Y[3, 0] = torch.nan
    found = gp.statistics(X, Y) - gp.statistics(X[:8], Y[:8])
    for part, expected in zip(found.parts, gp.statistics(X[8:], Y[8:]).parts, strict=True):
        same(part, expected)
    with pytest.raises(InputError, match="those of 2"):
        found - OutputStatistics(found.parts[:1])
