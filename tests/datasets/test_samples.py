"""Tests of `ovkgp.datasets.samples`, on all generators: shapes, dtypes, seeds, independent streams and errors."""

import pickle
from itertools import cycle

import numpy as np
import pytest
import torch

from ovkgp import datasets
from ovkgp.datasets import samples
from ovkgp.datasets.samples import add_noise, combine_features
from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF

MAKERS = {
    "curl free": (datasets.make_curl_free_field, {"num_frequencies": 50}, 5, 5),
    "drifters": (datasets.make_drifters, {"missing": 0.0}, 2, 2),
    "gaussian": (datasets.make_gaussian_field, {}, 2, 2),
    "quadratic": (datasets.make_quadratic_tasks, {}, 20, 4),
    "low rank": (datasets.make_low_rank_outputs, {"num_frequencies": 50}, 20, 20),
    "moons": (datasets.make_two_moons, {}, 2, 1),
    "circles": (datasets.make_circles_and_moons, {}, 2, 3),
}
NOISY = ("curl free", "drifters", "gaussian", "quadratic", "low rank")


def make(name, num_rows=40, **options):
    maker, defaults, *_ = MAKERS[name]
    return maker(num_rows, **{**defaults, "random_state": 0, **options})


@pytest.mark.parametrize("name", MAKERS)
def test_sample_is_float64_with_a_truth_of_the_same_shape(name):
    *_, d, p = MAKERS[name]
    X, Y, truth = sample = make(name)
    assert isinstance(sample, datasets.Sample)
    assert X.shape == (40, d) and Y.shape == truth(X).shape == (40, p)
    assert X.dtype == Y.dtype == truth(X).dtype == np.float64
    assert np.isfinite(X).all() and np.isfinite(truth(X)).all()


@pytest.mark.parametrize("name", MAKERS)
def test_sample_is_reproducible_bit_for_bit(name):
    a, b, other = make(name), make(name), make(name, random_state=1)
    np.testing.assert_array_equal(a.X, b.X)
    np.testing.assert_array_equal(a.Y, b.Y)
    np.testing.assert_array_equal(a.truth(a.X), b.truth(a.X))
    assert not np.array_equal(a.X, other.X)
    again = [make(name, random_state=np.random.RandomState(7)).X for _ in range(2)]
    np.testing.assert_array_equal(*again)
    assert not np.array_equal(make(name, random_state=None).X, make(name, random_state=None).X)


@pytest.mark.parametrize("name", NOISY)
def test_sample_of_more_rows_keeps_truth_and_first_rows(name):
    few, many = make(name, 10), make(name, 25)
    np.testing.assert_array_equal(few.X, many.X[:10])
    np.testing.assert_allclose(few.Y, many.Y[:10], rtol=0, atol=1e-12)  # matrix products of other sizes round otherwise
    np.testing.assert_array_equal(few.truth(few.X), many.truth(few.X))


@pytest.mark.parametrize("name", NOISY)
def test_noise_changes_outputs_only(name):
    clean, noisy = make(name, noise=0.0), make(name, noise=0.25)
    np.testing.assert_array_equal(clean.X, noisy.X)
    np.testing.assert_array_equal(clean.Y, clean.truth(clean.X))
    np.testing.assert_array_equal(clean.Y, noisy.truth(clean.X))
    residuals = noisy.Y - clean.Y
    assert abs(residuals.std() - 0.5) < 0.15  # 80 draws or more: four standard errors are .5 · 4/√160


@pytest.mark.parametrize("name", MAKERS)
def test_sample_does_not_use_global_state(name):
    before = make(name)
    dtype, random, numpy = torch.get_default_dtype(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    try:
        torch.set_default_dtype(torch.float64 if dtype == torch.float32 else torch.float32)
        after = make(name)
    finally:
        torch.set_default_dtype(dtype)
    np.testing.assert_array_equal(before.X, after.X)
    np.testing.assert_array_equal(before.Y, after.Y)
    np.testing.assert_array_equal(before.truth(before.X), after.truth(before.X))
    assert torch.equal(random, torch.get_rng_state())
    np.testing.assert_array_equal(numpy, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("name", ["curl free", "low rank"])
def test_truth_frequencies_differ_from_a_model_with_the_same_seed(name):
    truth = make(name).truth
    features = truth._scalar_features if name == "curl free" else truth._features
    drawn = ORFF(features.kernel, 50, random_state=0).double().frequencies
    assert not torch.isclose(features.frequencies, drawn, rtol=1e-3).all(-1).any()


@pytest.mark.parametrize("name", MAKERS)
def test_truth_can_be_pickled(name):
    X, _, truth = make(name)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(truth))(X), truth(X))


@pytest.mark.parametrize("name", MAKERS)
def test_truth_accepts_tensors_lists_and_single_precision(name):
    X, _, truth = make(name)
    single = X.astype(np.float32)
    expected = truth(single.astype(np.float64))
    assert expected.dtype == np.float64
    for given in (single, torch.from_numpy(single), single.tolist()):
        np.testing.assert_array_equal(truth(given), expected)
    assert truth(X[:0]).shape == (0, expected.shape[1])
    assert truth(X[:1]).shape == (1, expected.shape[1])


@pytest.mark.parametrize("name", MAKERS)
def test_truth_rejects_invalid_points(name):
    X, _, truth = make(name)
    for bad in (X[0], X[:, :-1], X[None]):
        with pytest.raises(InputError, match="shape"):
            truth(bad)
    for value in (np.nan, np.inf):
        with pytest.raises(InputError, match="NaN or infinity"):
            truth(np.where(np.arange(X.shape[1]) == 0, value, X))


@pytest.mark.parametrize(("name", "rows"), list(zip(MAKERS, cycle([0, -3, 2.5, "many"]), strict=False)))
def test_sample_rejects_invalid_num_rows(name, rows):
    with pytest.raises(OptionError, match="num_rows"):
        make(name, rows)


@pytest.mark.parametrize("name", MAKERS)
def test_sample_rejects_negative_seed(name):
    with pytest.raises(OptionError, match="random_state"):
        make(name, random_state=-1)


@pytest.mark.parametrize("name", NOISY)
def test_sample_supports_one_row(name):
    assert len(make(name, 1).Y) == 1


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("noise", [-0.1, [0.1] * 7, np.nan, np.eye(3)])
def test_sample_rejects_invalid_noise(name, noise):
    with pytest.raises(OptionError, match="noise"):
        make(name, noise=noise)


def test_noise_has_the_requested_covariance():
    covariance = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])  # singular
    drawn = add_noise(np.ones((200_000, 3)), covariance, np.random.default_rng(0)) - 1
    # The standard error of an entry is at most √(2·2²/200 000) = .0063
    np.testing.assert_allclose(drawn.T @ drawn / len(drawn), covariance, atol=0.03)
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.015)
    np.testing.assert_allclose(drawn[:, 2], 0, atol=1e-15)
    per_output = add_noise(np.zeros((200_000, 2)), [4.0, 0.25], np.random.default_rng(0))
    np.testing.assert_allclose(per_output.std(0), [2.0, 0.5], rtol=0.01)


def test_noise_rejects_invalid_covariance():
    rng, Y = np.random.default_rng(0), np.zeros((4, 2))
    for noise, reason in (([[1.0, 0.5], [0.0, 1.0]], "symmetric"), ([[1.0, 2.0], [2.0, 1.0]], "negative")):
        with pytest.raises(OptionError, match=reason):
            add_noise(Y, noise, rng)


def test_combine_features_equals_one_call(monkeypatch):
    X, weights, sizes = np.random.default_rng(0).random((50, 3)), torch.tensor([1.0, 2.0, 4.0]).double(), []

    def features(part):
        sizes.append(len(part))
        return part

    monkeypatch.setattr(samples, "SAMPLE_CHUNK_ENTRIES", 48)  # 16 rows at a time
    np.testing.assert_array_equal(combine_features(features, weights, X), X @ weights.numpy())
    assert sizes == [16, 16, 16, 2]
