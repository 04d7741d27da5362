"""Tests of `ovkgp.functional.data`."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.utils import _safe_indexing

from ovkgp.exceptions import DomainError, InputError, OptionError
from ovkgp.functional import FunctionalData, as_functional_data

T = np.linspace(0, 1, 20)


def table(n=6, m=20, gaps=0.0, seed=0):
    rng = np.random.default_rng(seed)
    Y = rng.standard_normal((n, 1)) + rng.standard_normal((n, 1)) * np.sin(3 * np.linspace(0, 1, m))
    return np.where(rng.uniform(size=Y.shape) < gaps, np.nan, Y)


def to_ragged(Y, t):
    keep = ~np.isnan(Y)
    return FunctionalData([y[k] for y, k in zip(Y, keep, strict=True)], [t[k] for k in keep], (t[0], t[-1]))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 6), m=st.integers(2, 9), seed=st.integers(0, 100))
def test_ragged_and_dense_data_agree(n, m, seed):
    """Same union, same long format, same mean and same values after a round trip."""
    Y, t = table(n, m, 0.3, seed), np.sort(np.random.default_rng(seed).uniform(size=m))
    Y[:, 0] = 1.0  # no curve is empty
    dense, ragged = FunctionalData(Y, t), to_ragged(Y, t)
    for a, b in zip(dense.to_long(), ragged.to_long(), strict=True):
        assert np.array_equal(a, b)
    assert np.array_equal(ragged.counts, dense.counts)
    back = ragged.on_common_grid(t)
    assert np.array_equal(back.values, Y, equal_nan=True) and np.array_equal(back.grid, t)


def test_properties_of_dense_and_ragged_data():
    dense, ragged = FunctionalData(table(), T), to_ragged(table(gaps=0.2), T)
    assert (dense.num_curves, dense.num_points, dense.num_channels, dense.num_dims) == (6, 20, 1, 1)
    assert dense.is_complete and not dense.is_ragged and ragged.is_ragged and not ragged.is_complete
    assert len(ragged) == 6 and ragged.shape == (6,) and dense.shape == (6, 20)
    assert dense.volume == 1.0 and dense.domain.tolist() == [[0.0, 1.0]]
    assert "2 curves" in repr(dense[:2]) and "channels" in repr(FunctionalData(np.zeros((2, 20, 3)), T))


def test_data_do_not_share_memory_with_the_input():
    Y = table()
    data = FunctionalData(Y, T)
    data.values[:] = 0.0
    assert np.abs(Y).max() > 0


@pytest.mark.parametrize("rows", [slice(1, 3), [4, 0], np.arange(6) % 2 == 0, -1, (np.array([1, 2]), ...)])
def test_rows_are_selected_as_those_of_an_array(rows):
    Y = table(gaps=0.2)
    index = rows[0] if isinstance(rows, tuple) else rows
    expected = np.atleast_2d(Y[index])
    assert np.array_equal(FunctionalData(Y, T)[rows].values, expected, equal_nan=True)
    picked = to_ragged(Y, T)[rows]
    assert np.array_equal(picked.on_common_grid(T).values, expected, equal_nan=True)
    assert np.array_equal(picked.domain, [[0, 1]])


def test_scikit_learn_indexes_and_pickle_restores_data():
    for data in (FunctionalData(table(), T), to_ragged(table(gaps=0.2), T)):
        parts = [_safe_indexing(data, index) for _, index in KFold(3).split(data)]
        assert [len(part) for part in parts] == [2, 2, 2] and all(isinstance(part, FunctionalData) for part in parts)
        assert len(pickle.loads(pickle.dumps(data))) == 6

    class Mean(BaseEstimator):
        def fit(self, X, Y):
            self.mean_ = Y.fit_mean()(T)[:, 0]
            return self

        def predict(self, X):
            return np.tile(self.mean_, (len(X), 1))

    assert cross_val_predict(Mean(), np.zeros((6, 1)), FunctionalData(table(), T), cv=3).shape == (6, 20)


def test_resample_interpolates_and_fills_gaps_without_extrapolation():
    """BO-34."""
    Y = np.array([[np.nan, 1.0, np.nan, 3.0, np.nan]])
    data = FunctionalData(Y, np.arange(5.0))
    found = data.resample([0.0, 1.0, 1.5, 2.0, 3.0, 4.0]).values[0]
    assert np.array_equal(found, [np.nan, 1.0, 1.5, 2.0, 3.0, np.nan], equal_nan=True)
    assert data.resample([0.0, 4.0], extrapolate=True).values[0].tolist() == [1.0, 3.0]
    t = np.linspace(0, 1, 30)
    cubic = FunctionalData([np.sin(5 * t)], t).resample(T, kind="cubic").values[0]
    assert np.abs(cubic - np.sin(5 * T)).max() < 1e-4
    with pytest.raises(DomainError):
        data.resample([5.0])


def test_resample_in_two_dimensions_is_exact_for_linear_functions():
    grid = np.random.default_rng(0).uniform(size=(40, 2))
    data = FunctionalData([2 * grid[:, 0] - grid[:, 1]], grid, [(0, 1), (0, 1)])
    found = data.resample([[0.5, 0.5], [0.4, 0.6]])
    assert np.allclose(found.values, [[0.5, 0.2]]) and found.num_dims == 2


def test_resample_rejects_points_without_values():
    data = FunctionalData([[1.0, 2.0], [1.0, 2.0]], [[0.0, 0.2], [0.5, 1.0]])
    with pytest.raises(InputError, match=r"Curve 0 .* extrapolate"):
        data.resample([0.6, 0.7])
    line = FunctionalData([[1.0, 2.0, 3.0, 4.0]], [[0, 0], [1, 1], [2, 2], [3, 3]])
    with pytest.raises(InputError, match="line"):
        line.resample([[0.5, 0.5]])
    with pytest.raises(InputError, match="line"):
        line.fit_mean()([[0.5, 0.5]])


def test_extend_symmetric_reflects_at_the_end():
    """BO-47."""
    t = np.linspace(0, 1, 5)
    data = FunctionalData([t**2, t], t).extend_symmetric()
    assert np.allclose(data.grid, np.linspace(0, 2, 9)) and data.domain.tolist() == [[0.0, 2.0]]
    assert np.array_equal(data.values[:, 4:], data.values[:, 4::-1])
    both = FunctionalData([t], t).extend_symmetric(0.5, "both")
    assert np.allclose(both.values[0], np.abs(((both.grid + 1) % 2) - 1)) and np.allclose(both.domain, [[-0.5, 1.5]])


def test_extend_symmetric_reflects_short_curves_repeatedly():
    """Curves that end earlier are folded at their own ends, up to the common end."""
    data = FunctionalData([[0.0, 1.0], [0.0, 1.0, 2.0, 3.0]], [[0.0, 1.0], [0.0, 1.0, 2.0, 3.0]])
    extended = data.extend_symmetric(1 / 3)
    assert extended.values[0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert extended.values[1].tolist() == [0.0, 1.0, 2.0, 3.0, 2.0]
    with pytest.raises(OptionError):
        FunctionalData(np.zeros((1, 3)), np.eye(3)[:, :2]).extend_symmetric()


def test_center_subtracts_the_pointwise_mean_of_complete_curves():
    Y = np.stack([table(seed=0), table(seed=1)], -1)
    centered, mean = FunctionalData(Y, T).center()
    assert np.allclose(centered.values.mean(0), 0) and np.allclose(mean(T), Y.mean(0))
    assert np.allclose(FunctionalData(Y, T).center(mean)[0].values, centered.values)


def test_channels_points_and_weights():
    data = FunctionalData(np.zeros((3, 4, 2)), [[0, 0], [0, 1], [1, 0], [1, 1]], channel_names=["u", "v"])
    assert (data.num_channels, data.num_dims, data.volume) == (2, 2, 1.0)
    assert data.to_long().channel.tolist() == [0, 1] * 12
    assert np.allclose(data.weights("trapezoid"), 0.25)
    ragged = FunctionalData([[1.0, 2.0], [3.0, 4.0, 5.0]], [[0.0, 1.0], [0.0, 0.5, 1.0]])
    assert [w.tolist() for w in ragged.weights("trapezoid")] == [[0.5, 0.5], [0.25, 0.5, 0.25]]


@pytest.mark.parametrize(
    ("values", "grid", "domain", "message"),
    [
        ([[1.0, 2.0, 3.0]], [0.0, 0.5, 0.5], None, "increasing"),
        ([[1.0, 2.0]], [1.0, 0.0], None, "increasing"),
        ([[1.0], [1.0, 2.0]], [[0.0], [1.0, 0.5]], None, "grid\\[1\\]"),
        ([[1.0, 2.0], [np.nan, np.nan]], [0.0, 1.0], None, "Curve 1 has no observed values"),
        ([[1.0, 2.0]], [0.0, 0.5, 1.0], None, "grid has shape"),
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], [[0.0, 1.0], [0.0, 1.0]], None, "values\\[1\\]"),
        ([[1.0, np.inf]], [0.0, 1.0], None, "infinity"),
        ([[1.0, 2.0]], [0.0, np.nan], None, "finite"),
        ([[1.0, 2.0]], [0.0, 1.0], (0.0, 0.5), "domain"),
        ([[1.0, 2.0]], [0.0, 1.0], [(0, 1), (0, 1)], "dimension"),
        ([1.0, 2.0], [0.0, 1.0], None, "shape"),
        ([["a", "b"]], [0.0, 1.0], None, "numbers"),
    ],
)
def test_data_reject_invalid_input(values, grid, domain, message):
    with pytest.raises(InputError, match=message):
        FunctionalData(values, grid, domain)


def test_selection_rejects_columns_and_empty_rows():
    data = FunctionalData(table(), T)
    with pytest.raises(InputError, match="rows"):
        data[:, 0]
    with pytest.raises(InputError, match="empty"):
        data[[]]


def test_arrays_tensors_and_frames_become_functional_data():
    Y = table()
    assert np.allclose(as_functional_data(Y).grid, T)
    assert np.allclose(as_functional_data(torch.from_numpy(Y), torch.from_numpy(T)).values, Y)
    frame = pd.DataFrame(Y, columns=[f"{t:.6f}" for t in T])
    frame.iloc[0, 3] = None
    data = as_functional_data(frame)
    assert np.allclose(data.grid, T, atol=1e-6) and np.isnan(data.values[0, 3])
    assert as_functional_data(data) is data
    assert np.allclose(as_functional_data(pd.DataFrame(Y, columns=[f"y{i}" for i in range(20)])).grid, range(20))
    assert np.allclose(as_functional_data(pd.DataFrame(Y, columns=list("abcdefghijklmnopqrst"))).grid, T)
    with pytest.raises(InputError, match="grid"):
        as_functional_data(data, grid=T + 0.1)


def test_objects_of_other_libraries_are_read_by_their_attributes():
    """Stand-ins with the attributes of scikit-fda's FDataGrid and FDataIrregular, and a real xarray DataArray."""
    Y = table()
    dense = SimpleNamespace(data_matrix=Y[..., None], grid_points=(T,), domain_range=((0.0, 1.5),))
    data = as_functional_data(dense)
    assert np.array_equal(data.values, Y) and data.domain.tolist() == [[0.0, 1.5]] and not data.has_channels
    surface = SimpleNamespace(
        data_matrix=np.zeros((2, 3, 4, 2)), grid_points=(np.arange(3.0), np.arange(4.0)), domain_range=((0, 2), (0, 3))
    )
    assert as_functional_data(surface).values.shape == (2, 12, 2)
    irregular = SimpleNamespace(
        start_indices=np.array([0, 2]),
        points=np.array([[0.0], [0.5], [0.1]]),
        values=np.array([[1.0], [2.0], [3.0]]),
        domain_range=((0.0, 1.0),),
    )
    ragged = as_functional_data(irregular)
    assert [v.tolist() for v in ragged.values] == [[1.0, 2.0], [3.0]] and ragged.domain.tolist() == [[0.0, 1.0]]
    array = xarray.DataArray(
        np.stack([Y, -Y], 1), dims=("word", "channel", "time"), coords={"time": T, "channel": ["u", "v"]}
    )
    read = as_functional_data(array)
    assert np.array_equal(read.values[..., 1], -Y) and read.channel_names == ("u", "v")
    with pytest.raises(InputError, match="DataArray"):
        as_functional_data(xarray.DataArray(Y, dims=("a", "b")))
