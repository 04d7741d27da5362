"""Validation of data: shapes, types of arrays, missing entries, known noise, and error messages."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from ovkgp.exceptions import InputError
from ovkgp.inference.model import observations as module
from ovkgp.inference.model.observations import (
    Observations,
    as_floating,
    validate_inputs,
    validate_observations,
    validate_point,
)

NAN = float("nan")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def missing():
    """Five rows of three outputs: row 1 has nothing, row 3 one entry."""
    Y = normal(5, 3, seed=1)
    Y[1], Y[3, 1:], Y[4, 0] = NAN, NAN, NAN
    return Y


# --- what goes in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: t,
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: pd.DataFrame(t.numpy()),
        lambda t: np.asfortranarray(t.numpy()),
        lambda t: t.numpy()[::-1][::-1],
        lambda t: t.flip(0).numpy()[::-1],
        lambda t: np.ma.masked_invalid(t.numpy()),
        lambda t: t.clone().requires_grad_(),
    ],
)
def test_observations_accept_arrays_of_every_type(convert):
    X, Y = normal(5, 2), missing()
    found = validate_observations(convert(X), convert(Y), 3)
    expected = validate_observations(X, Y, 3)
    assert torch.equal(found.X, expected.X) and found.X.dtype == torch.float64
    assert torch.equal(found.Y.nan_to_num(), expected.Y.nan_to_num()) and torch.equal(found.observed, expected.observed)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, bool])
def test_inputs_convert_integers_to_float64(dtype):
    X = np.array([[0, 1], [1, 0]], dtype=dtype)
    assert validate_inputs(X).dtype == torch.float64
    assert validate_inputs(X).tolist() == [[0, 1], [1, 0]]


def test_inputs_convert_lists_to_float64():
    assert validate_inputs([[0.1]]).item() == 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_observations_keep_single_precision_until_double(dtype):
    data = validate_observations(normal(5, 2).to(dtype), normal(5, 1).to(dtype), 1)
    assert data.X.dtype == data.Y.dtype == dtype
    assert data.double().X.dtype == data.double().Y.dtype == torch.float64


def test_observations_do_not_copy_complete_data():
    X, Y = normal(5, 2).numpy(), normal(5, 3).numpy()
    data = validate_observations(X, Y, 3)
    assert np.shares_memory(data.X.numpy(), X) and np.shares_memory(data.Y.numpy(), Y)


def test_observations_of_read_only_memory_give_no_warning():
    X = normal(5, 2).numpy()
    X.flags.writeable = False
    torch.set_warn_always(True)  # torch says it once in a process otherwise, and perhaps has
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.shares_memory(validate_inputs(X).numpy(), X)
    finally:
        torch.set_warn_always(False)


def test_observations_treat_masked_entries_as_missing():
    Y = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    assert validate_observations([[0.0], [1.0]], Y, 2).observed.tolist() == [[True, False], [True, True]]


def test_observations_treat_vectors_as_one_column():
    data = validate_observations(torch.arange(4.0), torch.arange(4.0), 1, noise=torch.ones(4))
    assert data.X.shape == data.Y.shape == data.noise.shape == (4, 1)


@pytest.mark.parametrize("n", [1, 2])
def test_observations_with_few_rows(n):
    data = validate_observations(normal(n, 3), normal(n, 2), 2)
    assert (data.num_rows, data.num_outputs, data.num_observed, data.is_complete) == (n, 2, 2 * n, True)


# --- what comes out -------------------------------------------------------------------------------------------------------


def test_observations_drop_rows_without_outputs():
    X, Y, noise = normal(5, 2), missing(), 1 + normal(5, 3).square()
    data = validate_observations(X, Y, 3, noise)
    kept = [0, 2, 3, 4]
    assert torch.equal(data.X, X[kept])
    assert torch.equal(data.observed, ~torch.isnan(Y[kept]))
    assert torch.equal(data.noise[data.observed], noise[kept][data.observed])
    assert (data.num_rows, data.num_observed, data.is_complete) == (4, 9, False)


def test_observations_ignore_noise_of_missing_entries():
    Y = torch.tensor([[1.0, NAN], [2.0, 3.0]])
    data = validate_observations(normal(2, 1), Y, 2, noise=torch.tensor([[1.0, NAN], [2.0, 3.0]]))
    assert data.noise.tolist() == [[1, 1], [2, 3]]


def test_observations_select_one_output():
    data = validate_observations(normal(5, 2), missing(), 3, 1 + normal(5, 3).square())
    for a in range(3):
        alone, rows = data.output(a), data.observed[:, a]
        assert alone.is_complete and alone.num_outputs == 1
        assert torch.equal(alone.X, data.X[rows])
        assert torch.equal(alone.Y, data.Y[rows][:, [a]])
        assert torch.equal(alone.noise, data.noise[rows][:, [a]])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_observations_chunks_are_rows_in_order(size):
    data = Observations(normal(5, 2).float(), missing().float())
    chunks = list(data.chunks(size))
    assert all(chunk.num_rows <= size and chunk.X.dtype == torch.float64 for chunk in chunks)
    whole = data.double().observed_rows()
    assert torch.equal(torch.cat([chunk.X for chunk in chunks]), whole.X)
    assert torch.equal(torch.cat([chunk.observed for chunk in chunks]), whole.observed)


def test_observed_rows_of_complete_data_are_the_data():
    data = Observations(normal(5, 2), normal(5, 3))
    assert data.observed_rows() is data


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("Y", [normal(5, 2), normal(5), normal(5, 3, 1), torch.tensor(1.0)])
def test_observations_reject_outputs_of_wrong_shape(Y):
    with pytest.raises(InputError, match=r"Y has shape .*\(n, 3\)"):
        validate_observations(normal(5, 2), Y, 3)


def test_observations_reject_different_numbers_of_rows():
    with pytest.raises(InputError, match="rows, got 4 and 5"):
        validate_observations(normal(4, 2), normal(5, 3), 3)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf")])
def test_observations_reject_infinite_outputs(bad):
    Y = normal(5, 3)
    Y[3, 1] = bad
    with pytest.raises(InputError, match=r"Y must not contain infinity.*row 3, column 1"):
        validate_observations(normal(5, 2), Y, 3)


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_inputs_reject_nonfinite_values(bad, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ROWS", 2)
    X = normal(5, 2)
    X[3, 1] = bad
    with pytest.raises(InputError, match=r"X must not contain NaN.*row 3, column 1"):
        validate_observations(X, normal(5, 3), 3)


def test_observations_reject_data_without_observed_values():
    with pytest.raises(InputError, match="every entry of Y is missing"):
        validate_observations(normal(2, 1), torch.full((2, 2), NAN), 2)
    with pytest.raises(InputError, match="X and Y have no rows"):
        validate_observations(normal(0, 1), normal(0, 2), 2)


def test_observations_reject_output_without_observed_values():
    Y = normal(5, 3)
    Y[:, [0, 2]] = NAN
    with pytest.raises(InputError, match=r"no observed values for output 0, 2"):
        validate_observations(normal(5, 2), Y, 3)
    assert validate_observations(normal(5, 2), Y, 3, every_output=False).num_observed == 5


@pytest.mark.parametrize("noise", [0.1, [0.1, 0.1, 0.1], torch.ones(3, 3), torch.ones(5, 1), torch.ones(5)])
def test_observations_reject_noise_of_wrong_shape(noise):
    with pytest.raises(InputError, match=r"noise has shape .*\(5, 3\)"):
        validate_observations(normal(5, 2), normal(5, 3), 3, noise)


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, float("inf")])
def test_observations_reject_invalid_noise(bad):
    noise = torch.ones(5, 3)
    noise[2, 2] = bad
    with pytest.raises(InputError, match="noise must be a positive"):
        validate_observations(normal(5, 2), normal(5, 3), 3, noise)


@pytest.mark.parametrize("X", [normal(5, 2, 1), normal(5, 0), torch.tensor(1.0)])
def test_inputs_reject_wrong_shapes(X):
    with pytest.raises(InputError, match=r"X must have shape \(n, d\) with d ≥ 1, got"):
        validate_inputs(X)


def test_inputs_reject_other_number_of_columns():
    with pytest.raises(InputError, match=r"X has 2 columns, expected 3"):
        validate_inputs(normal(5, 2), 3)


@pytest.mark.parametrize("bad", [None, "words", [["a", "b"]], [[1.0], [1.0, 2.0]], object(), np.array([[None, 1.0]])])
def test_inputs_reject_other_types(bad):
    with pytest.raises(InputError, match="X must be an array of numbers"):
        as_floating(bad, "X")


@pytest.mark.parametrize("bad", [np.ones((2, 1), dtype=complex), torch.ones(2, 1, dtype=torch.complex64)])
def test_inputs_reject_complex_numbers(bad):
    with pytest.raises(InputError, match="X must be real"):
        validate_inputs(bad)


@pytest.mark.parametrize("point", [[1, 2], (1.0, 2.0), np.array([1, 2]), torch.tensor([[1.0, 2.0]]), [[1], [2]]])
def test_validate_point_accepts_one_point(point):
    row = validate_point(point, 2, "here")
    assert row.dtype == torch.float64 and row.tolist() == [[1, 2]]


@pytest.mark.parametrize("point", [1.0, [1, 2, 3], [1, NAN], "here", None, [1j, 2]])
def test_validate_point_rejects_other_shapes(point):
    with pytest.raises(InputError, match="here must be one finite point with 2"):
        validate_point(point, 2, "here")
