"""Named arrays as xarray datasets, and datasets as the object that ArviZ reads.

Dimensions are `chain` and `draw`, then `input` for ARD lengthscales, `output` (and `output_bis`) for noise, mean and
output matrix. ArviZ 0.x reads an `InferenceData`, ArviZ 1.x an `xarray.DataTree`. xarray and ArviZ are imported inside
the functions, since `import ovkgp` must load neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    import xarray

KINDS = ("auto", "inference_data", "datatree")
SAMPLES = ("chain", "draw")


@dataclass(frozen=True)
class Axes:
    """Labels of the columns of X (None for statistics) and Y, for the dimensions `input` and `output`."""

    inputs: tuple | None
    outputs: tuple

    @classmethod
    def of(cls, num_inputs: int | None, num_outputs: int, input_names=None, output_names=None) -> Axes:
        """Return labels from names, or 0, 1, … if there are none."""
        inputs = _labels(input_names, num_inputs, "input_names") if num_inputs is not None else None
        return cls(inputs, _labels(output_names, num_outputs, "output_names"))

    def dims(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the dimensions of a hyperparameter whose value has this shape, without uninformative ones."""
        p, last = len(self.outputs), name.rpartition(".")[2]
        shape = squeeze_shape(last, shape)
        if last in ("output_matrix", "noise") and shape == (p, p):
            return ("output", "output_bis")
        if last in ("noise", "mean", "scale", "df", "dispersion") and shape == (p,):
            return ("output",)
        if self.inputs is not None and last == "slopes" and shape == (len(self.inputs), p):
            return ("input", "output")
        if self.inputs is not None and last == "lengthscale" and shape == (len(self.inputs),):
            return ("input",)
        return tuple(f"{name}_dim_{i}" for i in range(len(shape)))

    def coords(self) -> dict[str, Any]:
        """Return the labels by dimension."""
        labels = {"output": list(self.outputs), "output_bis": list(self.outputs)}
        return labels if self.inputs is None else {"input": list(self.inputs), **labels}


def squeeze_shape(last: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones that GPyTorch adds; noise, mean and output matrix keep theirs."""
    if last in ("noise", "mean", "output_matrix", "slopes"):
        return tuple(shape)
    return tuple(size for size in shape if size > 1)


def make_dataset(
    variables: Mapping[str, np.ndarray],
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> xarray.Dataset:
    """Return an xarray Dataset of named arrays; coordinates of unused dimensions are omitted.

    `coords` has labels by dimension, or (dimension, labels) for coordinates along another one. `attrs` must be storable
    in netCDF.
    """
    import xarray

    arrays = {name: (tuple(dims[name]), values) for name, values in variables.items()}
    used = {dim: size for names, values in arrays.values() for dim, size in zip(names, values.shape, strict=True)}
    labels = {dim: np.arange(size) for dim, size in used.items()}
    for name, values in (coords or {}).items():
        if (values[0] if isinstance(values, tuple) else name) in used:
            labels[name] = values
    return xarray.Dataset(arrays, labels, {key: _storable(key, value) for key, value in (attrs or {}).items()})


def make_named_group(
    variables: Mapping[str, np.ndarray], axes: Axes, attrs: Mapping[str, Any] | None = None
) -> xarray.Dataset:
    """Return the group of hyperparameters by name, each (chains, draws, *shape)."""
    dims, arrays = {}, {}
    for name, values in variables.items():
        dims[name] = (*SAMPLES, *axes.dims(name, values.shape[2:]))
        arrays[name] = values.reshape(*values.shape[:2], *squeeze_shape(name.rpartition(".")[2], values.shape[2:]))
    return make_dataset(arrays, dims, axes.coords(), attrs)


def make_raw_group(raw: Mapping[str, np.ndarray]) -> xarray.Dataset:
    """Return the raw parameters by qualified name, each (chains, draws, *shape) with every dimension kept."""
    dims = {name: (*SAMPLES, *(f"{name}_dim_{i}" for i in range(v.ndim - 2))) for name, v in raw.items()}
    return make_dataset(raw, dims)


def to_arviz_object(groups: Mapping[str, xarray.Dataset], kind: str = "auto"):
    """Return the groups as one object that ArviZ reads, saves and plots.

    `kind` is "inference_data" (ArviZ 0.x), "datatree" (ArviZ 1.x), or "auto" for that of the installed ArviZ.
    """
    if kind not in KINDS:
        raise OptionError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    kind = _installed_kind() if kind == "auto" else kind
    if kind == "inference_data":
        return import_module("arviz").InferenceData(**groups)
    return import_module("xarray").DataTree.from_dict({f"/{name}": group for name, group in groups.items()})


def _installed_kind() -> str:
    try:
        return "inference_data" if int(version("arviz").partition(".")[0]) < 1 else "datatree"
    except PackageNotFoundError:
        return "datatree"  # what arviz-base reads


def _labels(names, size: int, what: str) -> tuple:
    labels = tuple(range(size)) if names is None else tuple(names)
    if len(labels) != size or len(set(labels)) != size:
        raise InputError(f"{what} must have {size} different names, got {list(labels)}.")
    return labels


def _storable(key: str, value):
    """Return an attribute as netCDF stores it: text, a number or an array."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (str, int, float, np.integer, np.floating, np.ndarray)):
        return value
    raise InputError(f"Attribute {key} must be text, a number or an array, got {value!r}.")


def groups_of(data) -> list[tuple[str, xarray.Dataset]]:
    """The groups of an ArviZ object of either kind, as Datasets by name."""
    if hasattr(data, "children"):  # an xarray.DataTree
        return [(name, group.to_dataset()) for name, group in data.children.items()]
    return [(name, data[name]) for name in data.groups()]
