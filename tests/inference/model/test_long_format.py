"""Long and wide tables, held against a dictionary of rows filled one observation at a time."""

import math
import time

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.long_format import to_long, to_wide


def wide_by_hand(x, task, y, p):
    """One observation after another into the first row of its x that is free for its task; else into a new row."""
    rows = []
    for point, column, value in zip(x, task, y, strict=True):
        if math.isnan(value):
            continue
        point = tuple(float(v) for v in np.atleast_1d(point))
        for known, outputs in rows:
            if known == point and math.isnan(outputs[column]):
                outputs[column] = value
                break
        else:
            outputs = [math.nan] * p
            outputs[column] = value
            rows.append((point, outputs))
    return [list(point) for point, _ in rows], [outputs for _, outputs in rows]


def random_table(seed, n, d, p, levels=3, missing=0.1):
    rng = np.random.default_rng(seed)
    x = rng.integers(-1, levels, (n, d)) / 4 * rng.choice([-1.0, 1.0], (n, 1))  # negative zeros among them
    y = np.where(rng.random(n) < missing, np.nan, rng.normal(size=n))
    task = rng.integers(0, p, n)
    task[:1] = p - 1
    return x, task, y


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), d=st.integers(1, 3), p=st.integers(1, 4))
def test_to_wide_equals_loop(seed, n, d, p):
    x, task, y = random_table(seed, n, d, p)
    X, Y = to_wide(x, task, y)
    expected_X, expected_Y = wide_by_hand(x, task, y, p)
    assert (X.dtype, Y.dtype) == (np.float64, np.float64)
    np.testing.assert_array_equal(X, np.reshape(expected_X, (-1, d)))
    np.testing.assert_array_equal(Y, np.reshape(expected_Y, (-1, p)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40))
def test_to_wide_and_to_long_round_trip(seed, n):
    x, task, y = random_table(seed, n, 2, 3)
    observed = ~np.isnan(y)
    there = to_long(*to_wide(x, task, y))
    before = sorted(zip((x[observed] + 0.0).tolist(), task[observed].tolist(), y[observed].tolist(), strict=True))
    assert sorted(zip(*(part.tolist() for part in there), strict=True)) == before


def test_to_long_and_to_wide_round_trip_with_distinct_rows():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 3)), rng.normal(size=(20, 4))
    Y[rng.random(Y.shape) < 0.5] = np.nan
    Y[:, 3][np.isnan(Y).all(1)] = 0.0
    Y[0, 3] = 1.0
    for ours, expected in zip(to_wide(*to_long(X, Y)), (X, Y), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_to_wide_keeps_complete_repetitions():
    X, Y = np.zeros((3, 1)), np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(to_wide(*to_long(X, Y))[1], Y)


def test_to_wide_merges_observations_of_one_row():
    X, Y = to_wide([[1.0, 2.0], [1.0, 2.0]], [1, 0], [5.0, 6.0])
    assert (X.tolist(), Y.tolist()) == ([[1.0, 2.0]], [[6.0, 5.0]])


def test_to_wide_with_one_task_per_point():
    x, task = np.arange(6.0), np.array([0, 1, 2, 0, 1, 2])
    X, Y = to_wide(x, task, x)
    assert X.shape == (6, 1) and (np.isnan(Y).sum(1) == 2).all()
    np.testing.assert_array_equal(Y[np.arange(6), task], x)


def test_to_long_is_row_by_row():
    x, task, y = to_long([1.0, 2.0], [[np.nan, 1.0], [2.0, 3.0]])
    assert (x.tolist(), task.tolist(), y.tolist()) == ([[1.0], [2.0], [2.0]], [1, 0, 1], [1.0, 2.0, 3.0])
    assert (x.dtype, task.dtype, y.dtype) == (np.float64, np.int64, np.float64)


def test_to_long_accepts_vector_output():
    x, task, y = to_long(np.eye(2), [3.0, np.nan])
    assert (x.tolist(), task.tolist(), y.tolist()) == ([[1.0, 0.0]], [0], [3.0])


@pytest.mark.parametrize(
    "labels", [["wind", "rain"], [7, 3], [("a", 1), ("b", 2)], [None, "rain"], [np.int64(7), np.int64(3)]]
)
def test_to_wide_orders_columns_by_labels(labels):
    X, Y = to_wide([0.0, 0.0, 1.0], [labels[1], labels[0], labels[1]], [1.0, 2.0, 3.0], tasks=[*labels, "unobserved"])
    assert X.tolist() == [[0.0], [1.0]]
    np.testing.assert_array_equal(Y, [[2.0, 1.0, np.nan], [np.nan, 3.0, np.nan]])


@pytest.mark.parametrize("wrap", [np.array, torch.tensor, pd.Series])
def test_to_wide_accepts_numeric_labels(wrap):
    Y = to_wide([0.0, 1.0], wrap([30, 10]), [1.0, 2.0], tasks=[10, 30])[1]
    np.testing.assert_array_equal(Y, [[np.nan, 1.0], [2.0, np.nan]])


def test_to_wide_counts_tasks_without_observations():
    X, Y = to_wide([0.0, 1.0], [0, 2], [1.0, np.nan])
    assert X.tolist() == [[0.0]] and Y.shape == (1, 3)


def test_long_and_wide_tables_without_observations():
    X, Y = to_wide(np.zeros((0, 3)), [], [], tasks=["a", "b"])
    assert (X.shape, Y.shape) == ((0, 3), (0, 2))
    assert [part.shape for part in to_long(np.zeros((2, 3)), np.full((2, 2), np.nan))] == [(0, 3), (0,), (0,)]


def test_to_wide_accepts_integers_stored_as_floats():
    assert to_wide([0.0, 0.0], [0.0, 1.0], [1.0, 2.0])[1].tolist() == [[1.0, 2.0]]


def test_long_format_converts_tensors_to_tensors():
    X, Y = to_wide(torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([1.0, 2.0], requires_grad=True))
    assert torch.equal(Y, torch.tensor([[1.0, 2.0]], dtype=torch.float64)) and X.dtype == torch.float64
    x, task, y = to_long(X, Y)
    assert task.dtype == torch.int64 and torch.equal(y, Y[0]) and x.shape == (2, 1)
    assert torch.is_tensor(to_long([[0.0]], torch.ones(1, 1))[0])


def test_to_wide_keeps_names_of_columns_and_tasks():
    frame = pd.DataFrame({"a": [1, 1], "b": [0.5, 0.5], "task": ["v", "u"], "y": [2.0, 1.0]})
    for tasks in (None, ["u", "v"]):
        X, Y = to_wide(frame[["a", "b"]], frame["task"], frame["y"], tasks=tasks)
        pd.testing.assert_frame_equal(X, pd.DataFrame({"a": [1.0], "b": [0.5]}))
        pd.testing.assert_frame_equal(Y, pd.DataFrame({"u": [1.0], "v": [2.0]}))
    ordered = pd.Categorical(frame["task"], categories=["v", "w", "u"])
    for categories in (ordered, pd.Series(ordered)):
        assert to_wide(frame[["a"]], categories, frame["y"])[1].columns.tolist() == ["v", "w", "u"]
    for strings in (["v", "u"], np.array(["v", "u"]), np.array(["v", "u"], dtype=object)):
        X, Y = to_wide([0.0, 0.0], strings, [2.0, 1.0])
        assert type(X) is np.ndarray and Y.columns.tolist() == ["u", "v"] and Y.to_numpy().tolist() == [[1.0, 2.0]]
    assert torch.is_tensor(to_wide(torch.zeros(2, 1), ["v", "u"], torch.ones(2))[1])
    model = ovkgp.OVKRidge().fit(*to_wide([0.0, 0.0, 1.0], ["v", "u", "v"], [2.0, 1.0, 0.0]))
    assert model.output_names_ == ["u", "v"]


def test_to_long_converts_data_frames_to_arrays():
    frame = pd.DataFrame({"a": [1, 1], "b": [0.5, 0.5], "y": [1.0, 2.0]})
    x, _, y = to_long(frame[["a", "b"]], frame[["y"]])
    assert type(x) is np.ndarray and y.tolist() == [1.0, 2.0]


def test_long_format_leaves_inputs_unchanged():
    x = np.array([[-0.0], [0.0]])
    X, Y = to_wide(x, [0, 0], [1.0, 2.0])
    assert np.signbit(x[0, 0]) and Y.tolist() == [[1.0], [2.0]] and X.tolist() == [[0.0], [0.0]]
    X[:] = 5.0
    assert x[0, 0] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0, 1.0], [0], [1.0, 2.0]), "got 2, 1 and 2"),
        (([0.0], [0], [1.0, 2.0]), "got 1, 1 and 2"),
        (([np.nan], [0], [1.0]), "x must not contain"),
        (([np.inf], [0], [1.0]), "x must not contain"),
        (([0.0], [0], [np.inf]), "y must not contain infinity"),
        (([0.0], [-1], [1.0]), "from 0 on"),
        (([0.0], [0.5], [1.0]), "task must be"),
        (([0.0, 1.0], ["wind", 3], [1.0, 2.0]), r"list them: tasks="),
        (([0.0], [np.nan], [1.0]), "task must be"),
        (([0.0], [[0, 1]], [1.0]), "task must be"),
        (([0.0], 0, [1.0]), "task must be"),
        (([0.0], [0], [[1.0]]), r"y has shape \(1, 1\)"),
        ((np.zeros((1, 1, 1)), [0], [1.0]), r"x has shape \(1, 1, 1\)"),
        ((["a"], [0], [1.0]), "x must be an array of numbers"),
        (([0.0, 1.0], [0, 10**12], [1.0, 1.0]), r"tasks=sorted\(set\(task\)\)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_to_wide_rejects_invalid_tables(arguments, message):
    with pytest.raises(InputError, match=message):
        to_wide(*arguments)


def test_to_wide_rejects_invalid_labels():
    with pytest.raises(InputError, match="task contains 'rain'"):
        to_wide([0.0], ["rain"], [1.0], tasks=["wind"])
    with pytest.raises(InputError, match="one label of tasks"):
        to_wide([0.0], [["wind"]], [1.0], tasks=["wind"])
    with pytest.raises(OptionError, match="distinct labels"):
        to_wide([0.0], ["rain"], [1.0], tasks=["rain", "rain"])


def test_to_long_rejects_invalid_tables():
    with pytest.raises(InputError, match="got 1 and 2"):
        to_long([0.0], [1.0, 2.0])
    with pytest.raises(InputError, match="X must not contain NaN"):
        to_long([np.nan], [1.0])
    with pytest.raises(InputError, match="Y must not contain infinity"):
        to_long([0.0], [np.inf])


def test_to_wide_of_a_million_observations_is_fast():
    """A second or two; the bound is wide, for a machine that does other things."""
    rng = np.random.default_rng(0)
    n = 10**6
    x, task = rng.normal(size=(n // 5, 3))[rng.integers(0, n // 5, n)], rng.integers(0, 8, n)
    start = time.perf_counter()
    _, Y = to_wide(x, task, np.ones(n))
    assert np.nansum(Y) == n and time.perf_counter() - start < 15
