"""Groups that are computed when they are first read."""

import copy
import pickle

import numpy as np
import pytest
import xarray

from ovkgp.inference.sampling.arviz_data import resize_draws, to_arviz_object
from ovkgp.inference.sampling.lazy_groups import make_lazy_group

VALUES = np.arange(24.0).reshape(2, 3, 4)
calls = []


def compute():
    calls.append(1)
    return xarray.Dataset({"y": (("chain", "draw", "row"), VALUES), "z": (("chain", "draw"), VALUES[..., 0])})


def lazy():
    calls.clear()
    zeros = np.broadcast_to(0.0, VALUES.shape)
    template = {"y": (("chain", "draw", "row"), zeros), "z": (("chain", "draw"), zeros[..., 0])}
    return make_lazy_group(xarray.Dataset(template, {"row": [2, 4, 6, 8]}, {"method": "nuts"}), compute)


def test_lazy_group_is_computed_once_for_all_variables():
    group = lazy()
    assert (
        group["y"].dims == ("chain", "draw", "row")
        and group["y"].shape == (2, 3, 4)
        and group.attrs["method"] == "nuts"
    )
    repr(group), copy.deepcopy(group), pickle.dumps(group)
    assert not calls
    for _ in range(2):
        np.testing.assert_array_equal(group["y"].values, VALUES)
        np.testing.assert_array_equal(group["z"].values, VALUES[..., 0])
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["inference_data", "datatree"])
def test_arviz_objects_keep_groups_lazy(kind):
    data = to_arviz_object({"posterior": xarray.Dataset(), "log_likelihood": lazy()}, kind)
    repr(data)
    assert not calls
    np.testing.assert_array_equal(data["log_likelihood"]["y"].values, VALUES)


@pytest.mark.parametrize(
    "select",
    [
        lambda y: y.isel(chain=1, draw=slice(1, None)),
        lambda y: y.sel(row=[4, 8]),
        lambda y: y.isel(draw=[2, 0], row=[0, 3]),
        lambda y: y.isel(chain=xarray.DataArray([0, 1], dims="point"), draw=xarray.DataArray([2, 0], dims="point")),
        lambda y: y.stack(sample=("chain", "draw")),
        lambda y: y.transpose("row", ...) + 1,
    ],
)
def test_lazy_values_are_indexed_like_arrays(select):
    expected = xarray.Dataset({"y": (("chain", "draw", "row"), VALUES)}, {"row": [2, 4, 6, 8]})
    np.testing.assert_array_equal(select(lazy()["y"]).values, select(expected["y"]).values)


def test_lazy_group_can_be_read_after_failure():
    calls.clear()

    def fail_once():
        if not calls:
            calls.append(1)
            raise KeyboardInterrupt
        return compute()

    group = make_lazy_group(xarray.Dataset({"z": (("chain", "draw"), np.zeros((2, 3)))}), fail_once)
    with pytest.raises(KeyboardInterrupt):
        group["z"].to_numpy()
    np.testing.assert_array_equal(group["z"].values, VALUES[..., 0])


def test_resize_draws_keeps_labels():
    one = xarray.Dataset(
        {"y": (("chain", "draw", "row"), np.ones((1, 1, 2)))}, {"chain": [0], "draw": [0], "row": [3, 5]}
    )
    found = resize_draws(one, (4, 1000))
    assert found["y"].shape == (4, 1000, 2) and found["row"].values.tolist() == [3, 5] and len(found["draw"]) == 1000
