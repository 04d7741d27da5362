"""Tests of `ovkgp.estimators.common.streaming`."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from distributed_scripts.cases import CASES, FULL, chunks, collect_results, decomposable, fixed, grid
from distributed_scripts.cases import table as shard_table
from gpytorch.kernels import RBFKernel
from sklearn.base import clone
from thread_ranks import on_ranks

import ovkgp
from ovkgp.datasets import stream
from ovkgp.estimators.common.scaling import Scaling
from ovkgp.estimators.common.streaming import CHUNK_ROWS, Chunks, accumulate_rows, scan
from ovkgp.exceptions import DistributedError, InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import DecomposableKernel


def table(n=100, seed=0):
    rng = np.random.default_rng(seed)
    X, Y = rng.uniform(0, 5, (n, 2)), rng.standard_normal((n, 3))
    Y[rng.random(Y.shape) < 0.3] = np.nan
    Y[:3] = np.nan  # rows without observations
    return X, Y


def split(X, Y, *at):
    return list(zip(np.split(X, at), np.split(Y, at), strict=True))


def assert_equal_scans(a, b):
    assert (a.columns, a.num_observed_rows) == (b.columns, b.num_observed_rows)
    np.testing.assert_array_equal(a.sample.X, b.sample.X)
    np.testing.assert_array_equal(a.sample.Y, b.sample.Y)
    for mine, yours in ((a.inputs, b.inputs), (a.outputs, b.outputs)):
        np.testing.assert_array_equal(mine.count, yours.count)
        np.testing.assert_allclose(mine.mean, yours.mean, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(mine.std, yours.std, rtol=1e-12)


def test_scan_counts_rows_and_observations():
    X, Y = table()
    found = scan(split(X, Y, 10, 60), limit=30)
    assert found.num_observed_rows == np.isfinite(Y).any(1).sum()
    assert (found.columns.num_inputs, found.columns.num_outputs) == (2, 3)
    np.testing.assert_array_equal(found.outputs.count, np.isfinite(Y).sum(0))
    np.testing.assert_allclose(found.inputs.mean, X.mean(0))  # over all rows, as in the scaling of a table
    assert len(found.table.X) >= 30


@pytest.mark.parametrize("at", [(), (1,), (50, 50, 99), tuple(range(1, 100))])
def test_scan_does_not_depend_on_the_partition(at):
    X, Y = table()
    assert_equal_scans(scan(split(X, Y, *at), 30), scan([(X, Y)], 30))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_scan_on_several_ranks_equals_one_rank(size):
    X, Y = table()
    shards = [split(X[k::size], Y[k::size], 7) for k in range(size - 1)] + [
        [(X[size - 1 :: size], Y[size - 1 :: size])]
    ]
    for found in on_ranks(size, lambda ranks: scan(shards[ranks.rank], 30, ranks)):
        assert_equal_scans(found, scan([(X, Y)], 30))


def test_scan_accepts_ranks_without_rows():
    X, Y = table()
    shards = [[], [(X, Y)], [(X[:0], Y[:0])]]
    for found in on_ranks(3, lambda ranks: scan(shards[ranks.rank], 30, ranks)):
        assert_equal_scans(found, scan([(X, Y)], 30))


def test_chunks_split_long_chunks():
    X = np.zeros((CHUNK_ROWS + 5, 1))
    assert [len(part.X) for part in Chunks([(X, X)])] == [CHUNK_ROWS, 5]


def test_scan_accepts_arrays_tensors_frames_and_lists():
    X, Y = table()
    expected = scan([(X, Y)], 30)
    assert_equal_scans(scan([(torch.from_numpy(X), torch.from_numpy(Y))], 30), expected)
    assert_equal_scans(scan([[X.tolist(), Y.tolist()]], 30), expected)
    framed = scan([(pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y, columns=["u", "v", "w"]))], 30)
    assert framed.columns[2:4] == (("a", "b"), ("u", "v", "w"))
    np.testing.assert_array_equal(framed.sample.X, expected.sample.X)


def test_scan_reads_column_names_of_a_stream():
    class Named(list):
        inputs, outputs = ["east", "north"], ["u", "v", "w"]

    found = scan(Named(split(*table(), 30)), 30)
    assert found.columns.inputs == ("east", "north") and found.columns.outputs == ("u", "v", "w")


def test_scan_rejects_one_shot_iterators():
    X, Y = table()
    for once in (iter([(X, Y)]), (pair for pair in [(X, Y)])):
        with pytest.raises(InputError, match="two passes"):
            scan(once, 30)


@pytest.mark.parametrize("value", [5, None])
def test_scan_rejects_non_iterables(value):
    with pytest.raises(InputError, match="chunks"):
        scan(value, 30)


@pytest.mark.parametrize("chunks", [[], [(np.zeros((0, 2)), np.zeros((0, 1)))]])
def test_scan_rejects_tables_without_rows(chunks):
    with pytest.raises(InputError, match="no rows"):
        scan(chunks, 30)


X, Y = table()
BAD = {
    "NaN in X": ((np.where(X > 4.9, np.nan, X), Y), "NaN in row [0-9]+, column"),
    "infinity in Y": ((X, np.where(Y > 2, np.inf, Y)), "contains infinity"),
    "more inputs": ((np.hstack([X, X]), Y), "4 features"),
    "fewer outputs": ((X, Y[:, :2]), "2 outputs after 3"),
    "rows that do not match": ((X[:5], Y), "inconsistent numbers"),
    "text": ((np.full((100, 2), "a"), Y), "must hold numbers, got the text 'a'"),
    "sparse": ((scipy.sparse.csr_matrix(X), Y), "[Ss]parse"),
    "three axes": ((X, Y[None]), "inconsistent|dim"),
    "no outputs": ((X, None), "requires y"),
    "one array": (X, "pairs"),
    "three arrays": ((X, Y, Y), "pairs"),
    "other names": ((X, pd.DataFrame(Y, columns=["a", "b", "c"])), "same outputs"),
}


@pytest.mark.parametrize(("chunk", "message"), BAD.values(), ids=BAD)
def test_scan_reports_the_invalid_chunk(chunk, message):
    good = (X, pd.DataFrame(Y, columns=["u", "v", "w"]))
    with pytest.raises(InputError, match=rf"(?i){message}") as error:
        scan([good, chunk], 30)
    assert "chunk 1" in str(error.value).lower()


def test_scan_rejects_unobserved_outputs():
    X, Y = table()
    Y[:, 1] = np.nan
    with pytest.raises(InputError, match="output 1"):
        scan([(X, Y)], 30)
    with pytest.raises(InputError, match="output 'v'"):
        scan([(X, pd.DataFrame(Y, columns=["u", "v", "w"]))], 30)
    with pytest.raises(InputError, match="missing"):
        scan([(X, np.full_like(Y, np.nan))], 30)


def test_scan_raises_on_all_ranks_for_an_invalid_chunk():
    good, bad = [(X, Y)], [(X, Y), (np.full_like(X, np.nan), Y)]
    first, second = on_ranks(2, lambda ranks: scan(bad if ranks.rank else good, 30, ranks))
    assert isinstance(second, InputError) and "Chunk 1" in str(second)
    assert isinstance(first, DistributedError) and "rank 1 failed while scanning" in str(first)


def test_scan_rejects_ranks_with_different_columns():
    for error in on_ranks(2, lambda ranks: scan([(X, Y[:, : 2 + ranks.rank])], 30, ranks)):
        assert isinstance(error, InputError) and "rank 1" in str(error) and "3 outputs after 2" in str(error)


# cases without training and without landmarks, which are chosen from the rows
FIXED = [name for name in CASES if name not in ("trained", "nystrom")]


def shuffled(X, Y, cuts, seed=0):
    order = np.random.default_rng(seed).permutation(len(X))
    return [(X[part], Y[part]) for part in np.split(order, cuts)]


def assert_same_results(model, other, tolerance=1e-8):
    mine, yours = collect_results(model), collect_results(other)
    for name, value in mine.items():
        np.testing.assert_allclose(value, yours[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", FIXED)
def test_fit_stream_equals_fit(name):
    make, (X, Y) = CASES[name]
    whole = make().set_params(distributed=False, approximation="orff").fit(X, Y)
    for cuts in ([], [1, 40, 41], range(10, 90, 10)):
        assert_same_results(make().fit_stream(shuffled(X, Y, cuts)), whole)


def test_fit_stream_equals_dense_algebra():
    """ŷ = Φ_* (ΦᵀΦ / σ² + I)⁻¹ Φᵀ (y − m) / σ² + m with the initial mean m of the observed outputs."""
    X, Y = shard_table(1)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), output_matrix=torch.ones(1, 1))
    model = fixed(kernel, 0.05).fit_stream(chunks(X, Y))
    Phi, Phi_star = (model.gp_.features(torch.from_numpy(part)).to_dense().detach().numpy() for part in (X, grid()))
    mean = model.gp_.mean.coefficients.detach().numpy().ravel()
    np.testing.assert_allclose(mean, Y.mean(0))
    precision = Phi.T @ Phi / 0.05 + np.eye(Phi.shape[1])
    expected = Phi_star @ np.linalg.solve(precision, Phi.T @ (Y - mean) / 0.05) + mean
    np.testing.assert_allclose(model.predict(grid()), expected, atol=1e-9)


@pytest.mark.parametrize("name", ["trained", "nystrom"])
def test_fit_stream_does_not_depend_on_order_or_partition(name):
    make, (X, Y) = CASES[name]
    assert_same_results(make().fit_stream(shuffled(X, Y, [20, 55], seed=1)), make().fit_stream([(X, Y)]))


def test_fit_stream_scales_by_all_rows_instead_of_the_sample():
    rng = np.random.default_rng(0)
    X, Y = rng.uniform(0, 5, (400, 2)), rng.standard_normal((400, 2))
    model = ovkgp.GPRegressor("independent", num_frequencies=10, training_rows=20, random_state=0)
    model.fit_stream(shuffled(X, Y, [100, 350]))
    np.testing.assert_allclose(model.scaling_.output_offset, Y.mean(0), rtol=1e-9)
    np.testing.assert_allclose(model.scaling_.output_scale, Y.std(0), rtol=1e-9)
    np.testing.assert_allclose(model.scaling_.input_scale, X.std(0), rtol=1e-9)
    assert model.fit_report_.num_rows == 20 and model.statistics_.num_observed.tolist() == [400, 400]


def test_fit_stream_compares_kernels_on_the_sample_if_outputs_are_missing():
    X, Y = shard_table(missing=0.1)
    model = ovkgp.GPRegressor(num_frequencies=20, random_state=0).fit_stream(chunks(X, Y))
    assert set(model.candidates_) == {"independent", "decomposable"} and model.kernel_ in model.candidates_
    assert model.approximation_ == "orff" and model.kernel_ in str(model.summary())
    truth = np.sin(grid()[:, :1] + np.arange(3)) * np.cos(grid()[:, 1:])
    assert np.abs(model.predict(grid()) - truth)[4].max() < 0.2  # in the middle of the data


def test_partial_fit_continues_fit_stream():
    X, Y = shard_table(missing=0.4)
    for noise in (0.05, FULL):
        whole = fixed(decomposable(), noise).fit_stream(chunks(X, Y))
        part = fixed(decomposable(), noise).fit_stream(chunks(X[:40], Y[:40]))
        mean = part.gp_.mean.coefficients.clone()
        part.set_params(distributed=False).partial_fit(X[40:70], Y[40:70]).partial_fit(X[70:], Y[70:])
        assert torch.equal(part.gp_.mean.coefficients, mean)
        whole.gp_.mean.load_state_dict(part.gp_.mean.state_dict())  # the initial mean is that of the first rows
        whole.posterior_ = whole.gp_.condition(whole.statistics_, variance="guarded")
        np.testing.assert_allclose(part.predict(grid()), whole.predict(grid()), atol=1e-8)


def test_distributed_fit_in_one_process_equals_fit_stream():
    X, Y = shard_table(missing=0.4)
    assert_same_results(
        fixed(decomposable()).fit(X, Y), fixed(decomposable()).set_params(distributed=False).fit_stream([(X, Y)])
    )
    first = fixed(decomposable()).partial_fit(X[:50], Y[:50]).partial_fit(X[50:], Y[50:])
    first.partial_fit(X[:0], Y[:0])  # an empty shard
    assert first.statistics_.num_rows == np.isfinite(Y).any(1).sum()


def test_partial_fit_of_an_exact_model_uses_features():
    X, Y = shard_table()
    model = fixed(decomposable()).set_params(distributed=False).fit(X[:50], Y[:50])
    assert model.approximation_ == "exact"
    other = copy.deepcopy(model).set_params(distributed=True)
    assert_same_results(other.partial_fit(X[50:], Y[50:]), model.partial_fit(X[50:], Y[50:]))
    assert other.approximation_ == "orff"


def test_fit_stream_keeps_column_names_of_files(tmp_path):
    X, Y = shard_table(2, missing=0.4)
    path = tmp_path / "wind.csv"
    pd.DataFrame(np.hstack([X, Y]), columns=["east", "north", "u", "v"]).to_csv(path, index=False, float_format="%.17g")
    make, _ = CASES["curl-free"]
    model = make().fit_stream(stream(path, "east,north", "u,v", chunk_rows=32))
    assert model.feature_names_in_.tolist() == ["east", "north"] and model.output_names_ == ["u", "v"]
    frame = pd.DataFrame(grid(), columns=["east", "north"])
    np.testing.assert_allclose(model.predict(frame), make().fit_stream([(X, Y)]).predict(grid()), atol=1e-10)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["north", "east"]])
    halves = [make().fit_stream(stream(path, "east,north", "u,v", shard=(k, 2))) for k in (0, 1)]
    assert sum(half.statistics_.num_rows for half in halves) == model.statistics_.num_rows


def test_fit_stream_keeps_one_dimensional_targets():
    X, Y = shard_table(1)
    model = ovkgp.GPRegressor("independent", num_frequencies=10, random_state=0)
    assert model.fit_stream(chunks(X, Y[:, 0])).predict(grid()).shape == (9,)
    assert model.fit_stream(chunks(X, Y)).predict(grid()).shape == (9, 1)


def test_fit_stream_accepts_one_row():
    X, Y = shard_table()
    mean, std = fixed(decomposable()).fit_stream([(X[:1], Y[:1])]).predict(X[:1], return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()


def test_fit_stream_accepts_mixed_precision():
    X, Y = (part.astype(np.float32) for part in shard_table())
    mixed = [(X[:30], Y[:30].astype(float)), (X[30:].astype(float), Y[30:])]
    assert_same_results(
        fixed(decomposable()).fit_stream(mixed), fixed(decomposable()).fit_stream([(X.astype(float), Y.astype(float))])
    )


def test_fit_stream_model_can_be_saved_and_copied(tmp_path):
    X, Y = shard_table(missing=0.4)
    model = fixed(decomposable(), FULL).fit_stream(chunks(X, Y))
    model.save(tmp_path / "model.ovkgp")
    for again in (ovkgp.load(tmp_path / "model.ovkgp"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert again.distributed is True
        np.testing.assert_array_equal(again.predict(grid()), model.predict(grid()))
    assert clone(model).get_params()["distributed"] is True and ovkgp.GPRegressor().distributed is False


# --- errors -------------------------------------------------------------------------------------------------------------


def test_fit_stream_rejects_exact_inference():
    with pytest.raises(OptionError, match="exact"):
        ovkgp.GPRegressor(approximation="exact").fit_stream([shard_table()])
    with pytest.raises(OptionError, match="exact"):
        ovkgp.GPRegressor(approximation="exact", distributed=True).fit(*shard_table())


def test_distributed_fit_rejects_known_noise():
    X, Y = shard_table()
    for verb in ("fit", "partial_fit"):
        with pytest.raises(OptionError, match="noise"):
            getattr(fixed(decomposable()), verb)(X, Y, noise=np.ones_like(Y))


def test_fit_stream_rejects_training_on_all_rows_of_a_long_stream(monkeypatch):
    X, Y = shard_table()
    model = ovkgp.GPRegressor("independent", training_rows=None, num_frequencies=5, random_state=0)
    assert model.fit_stream(chunks(X, Y)).fit_report_.num_rows == 90
    monkeypatch.setattr("ovkgp.estimators.regression.gp_regressor.SAMPLE_ROWS", 60)
    with pytest.raises(OptionError, match="training_rows"):
        model.fit_stream(chunks(X, Y))
    model.set_params(hyperparameters="fixed").fit_stream(chunks(X, Y))


def test_fit_stream_restores_the_model_on_error():
    X, Y = shard_table()
    model = fixed(decomposable()).fit_stream(chunks(X, Y))
    before = model.predict(grid())
    for bad in ([(X, Y), (X * np.nan, Y)], iter([(X, Y)]), [], [(X, Y * np.nan)]):
        with pytest.raises(InputError):
            model.fit_stream(bad)
        np.testing.assert_array_equal(model.predict(grid()), before)


class ShrinkingChunks:
    """Chunks with one chunk less in the second pass."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __iter__(self):
        pairs, self.pairs = self.pairs, self.pairs[:-1]
        return iter(pairs)


def test_fit_stream_rejects_chunks_that_change_between_passes():
    with pytest.raises(InputError, match="both passes"):
        fixed(decomposable()).fit_stream(ShrinkingChunks(chunks(*shard_table())))


def test_accumulate_rows_rejects_invalid_chunks():
    kernel = decomposable()
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 5, random_state=0))
    with pytest.raises(InputError, match=r"(?i)chunk 0.*NaN"):
        accumulate_rows(gp, Scaling.none(2, 3), [(np.full((4, 2), np.nan), np.zeros((4, 3)))])
    with pytest.raises(InputError, match="no data"):
        accumulate_rows(gp, Scaling.none(2, 3), [])
