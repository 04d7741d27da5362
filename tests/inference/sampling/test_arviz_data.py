"""Groups of named arrays, and the two kinds of object that ArviZ reads."""

import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.sampling.arviz_data import Axes, make_dataset, make_named_group, make_raw_group, to_arviz_object

KINDS = ("inference_data", "datatree")


def group(**attrs):
    noise = np.random.default_rng(0).random((2, 5, 3))
    return make_dataset({"noise": noise}, {"noise": ("chain", "draw", "output")}, {"output": ["a", "b", "c"]}, attrs)


@pytest.mark.parametrize(
    "name, shape, dims",
    [
        ("lengthscale", (1, 1), ()),
        ("lengthscale", (1, 2), ("input",)),
        ("0.lengthscale", (1, 2), ("input",)),
        ("lengthscale", (1, 4), ("lengthscale_dim_0",)),  # of some of the columns
        ("outputscale", (), ()),
        ("noise", (), ()),
        ("noise", (3,), ("output",)),
        ("noise", (3, 3), ("output", "output_bis")),
        ("1.output_matrix", (3, 3), ("output", "output_bis")),
        ("mean", (3,), ("output",)),
        ("mean.slopes", (2, 3), ("input", "output")),
        ("mixture_means", (4, 1, 2), ("mixture_means_dim_0", "mixture_means_dim_1")),
    ],
)
def test_axes_dims_follow_from_name_and_shape(name, shape, dims):
    assert Axes.of(2, 3).dims(name, shape) == dims


def test_axes_keep_dimension_of_one_output():
    axes = Axes.of(1, 1)
    assert axes.dims("noise", (1,)) == ("output",) and axes.dims("output_matrix", (1, 1)) == ("output", "output_bis")


def test_axes_without_inputs_name_lengthscale_dimension():
    assert Axes.of(None, 3).dims("lengthscale", (1, 2)) == ("lengthscale_dim_0",)


def test_axes_reject_wrong_labels():
    with pytest.raises(InputError, match="output_names must have 3"):
        Axes.of(2, 3, output_names=["a", "b"])
    with pytest.raises(InputError, match="input_names must have 2"):
        Axes.of(2, 3, input_names=["a", "a"])


def test_named_group_has_chains_draws_and_labels():
    variables = {"lengthscale": np.ones((2, 5, 1, 2)), "outputscale": np.ones((2, 5)), "noise": np.ones((2, 5, 3))}
    found = make_named_group(variables, Axes.of(2, 3, ["x", "t"], ["a", "b", "c"]), {"method": "nuts"})
    assert found["lengthscale"].dims == ("chain", "draw", "input") and found["outputscale"].dims == ("chain", "draw")
    assert found["lengthscale"].sel(input="t").shape == (2, 5) and found["noise"].sel(output="c").shape == (2, 5)
    assert found.attrs == {"method": "nuts"} and "output_bis" not in found.coords


def test_raw_group_keeps_every_dimension():
    raw = {"kernel.raw_lengthscale": np.ones((2, 5, 1, 1)), "noise_model.log_scale": np.ones((2, 5))}
    found = make_raw_group(raw)
    assert found["kernel.raw_lengthscale"].shape == (2, 5, 1, 1) and found["noise_model.log_scale"].shape == (2, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_arviz_object_of_both_kinds_reads_alike(kind):
    data = to_arviz_object({"posterior": group(method="svi"), "prior": group()}, kind)
    assert data["posterior"]["noise"].shape == (2, 5, 3)
    assert data["posterior"].attrs["method"] == "svi"
    assert "prior" in set(data.groups() if kind == "inference_data" else data.children)


def test_arviz_object_kind_follows_installed_arviz(monkeypatch):
    import arviz

    from ovkgp.inference.sampling import arviz_data

    monkeypatch.setattr(arviz_data, "version", lambda name: "0.23.4")
    assert isinstance(to_arviz_object({"posterior": group()}), arviz.InferenceData)
    monkeypatch.setattr(arviz_data, "version", lambda name: "1.0.0")
    assert isinstance(to_arviz_object({"posterior": group()}), xr.DataTree)


def test_arviz_object_rejects_unknown_kind():
    with pytest.raises(OptionError, match="kind must be one of"):
        to_arviz_object({}, "table")


@pytest.mark.parametrize("kind", KINDS)
def test_arviz_object_survives_netcdf(kind, tmp_path):
    data = to_arviz_object({"posterior": group(seconds=1.5, interrupted=True, method="laplace")}, kind)
    path = tmp_path / "draws.nc"
    if kind == "inference_data":
        import arviz

        data.to_netcdf(str(path), engine="h5netcdf")
        again = arviz.from_netcdf(str(path), engine="h5netcdf")
    else:
        data.to_netcdf(path, engine="h5netcdf")
        again = xr.open_datatree(path, engine="h5netcdf")
    assert (again["posterior"]["noise"].values == data["posterior"]["noise"].values).all()
    assert again["posterior"]["noise"]["output"].values.tolist() == ["a", "b", "c"]
    attrs = again["posterior"].attrs
    assert (attrs["seconds"], attrs["interrupted"], attrs["method"]) == (1.5, 1, "laplace")


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, 2]])
def test_dataset_rejects_attributes_unsupported_by_netcdf(value):
    with pytest.raises(InputError, match="Attribute"):
        group(strange=value)


def test_import_loads_neither_arviz_nor_xarray():
    script = "import sys, ovkgp, ovkgp.inference.sampling.sampling as s; print([m for m in ('arviz', 'xarray', 'matplotlib', 'optuna') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
