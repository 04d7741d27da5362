"""Options and fitted values as JSON and tensors: numbers, arrays, sparse matrices, likelihoods, records and ArviZ objects."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import sparse
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp.estimators.storage.file import under
from ovkgp.estimators.storage.kernels import (
    is_storable,
    kernel_from_spec,
    kernel_state,
    kernel_to_spec,
    load_kernel_state,
    matrix_from_spec,
    matrix_to_spec,
)
from ovkgp.estimators.storage.models import likelihood_from_state, likelihood_state
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.sampling.arviz_data import groups_of, to_arviz_object
from ovkgp.kernels import OutputMatrix
from ovkgp.losses import TaskMeasure

SPARSE = {  # sparse matrices of SciPy by class name
    f"{form}_{kind}": getattr(sparse, f"{form}_{kind}")
    for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
    for kind in ("array", "matrix")
}

LAYOUTS = {  # sparse layouts of torch by name, and the functions that make them from COO
    "torch.sparse_coo": Tensor.coalesce,
    "torch.sparse_csr": Tensor.to_sparse_csr,
    "torch.sparse_csc": Tensor.to_sparse_csc,
}

RECORDS: dict[str, type] = {}  # dataclasses of numbers and arrays that a file may hold, by name
LISTED = "UOu"  # kinds of NumPy arrays that are stored as lists: strings, objects, unsigned integers


def option_state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    """Encode the arguments of the constructor as JSON and tensors."""
    options, tensors = {}, {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "random_state" and not isinstance(value, Integral):
            value = None  # a generator has advanced since and is not stored
        is_kernel = isinstance(value, Kernel)
        options[name], found = _kernel_state(name, value, estimator) if is_kernel else value_state(name, value)
        tensors |= add_prefix(name, found)
    return options, tensors


def _kernel_state(name: str, kernel: Kernel, estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    known = {"class": type(kernel).__name__}
    if is_storable(kernel):
        spec, tensors = kernel_to_spec(kernel)
        return {**known, "spec": spec}, tensors
    if name == "base_kernel" and isinstance(estimator.kernel, Kernel):
        raise KernelTypeError(
            f"base_kernel is a {known['class']}, which a file cannot describe, and is not used with a kernel object. Leave it at its default."
        )
    return {**known, "spec": None}, kernel_state(kernel)


def options_from_state(options: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> dict:
    """Decode the arguments of the constructor; `kernel` is the argument of `ovkgp.load`."""
    kernels = [name for name, entry in options.items() if isinstance(entry, dict) and "class" in entry]
    if kernel is not None and not kernels:
        raise OptionError(
            f"kernel is not supported for this model, whose kernel was given by name ({options['kernel']!r}). Remove it."
        )
    supplied = "kernel" if "kernel" in kernels else "base_kernel"
    values = {}
    for name, entry in options.items():
        found = strip_prefix(name, tensors)
        if name in kernels:
            values[name] = _kernel(name, entry, found, kernel if name == supplied else None)
        else:
            values[name] = value_from_state(entry, found)
    return values


def _kernel(name: str, entry: dict, tensors: dict[str, Tensor], given: Kernel | None) -> Kernel:
    if given is not None:
        if type(given).__name__ != entry["class"]:
            raise OptionError(
                f"kernel must be a {entry['class']}, the {name} of this model, got a {type(given).__name__}."
            )
        return load_kernel_state(given, tensors)
    if entry["spec"] is None:
        raise OptionError(
            f"The {name} of this model is a {entry['class']}, which a file cannot describe. Create one with the same options and "
            f"pass it, ovkgp.load(path, kernel={entry['class']}(...)); its values come from the file."
        )
    return kernel_from_spec(entry["spec"], tensors)


def value_state(name: str, value) -> tuple[object, dict[str, Tensor]]:
    """Encode a value as JSON and tensors; `name` is used in messages."""
    if type(value) is RECORDS.get(type(value).__name__):
        return _record_state(value)
    if isinstance(value, OutputMatrix):
        return _matrix_state(name, value)
    if isinstance(value, TaskMeasure):
        return {"measure": type(value).__name__}, dict(vars(value))
    if isinstance(value, Likelihood):
        spec, tensors = likelihood_state(value)
        return {"likelihood": spec}, tensors
    if isinstance(value, list | tuple) and any(isinstance(item, Likelihood) for item in value):
        return _list_state(name, value)
    if sparse.issparse(value) or (torch.is_tensor(value) and str(value.layout) in LAYOUTS):
        return _sparse_state(value)
    if torch.is_tensor(value):
        return {"array": "Tensor"}, {"": value.detach()}
    if isinstance(value, np.ndarray):
        return _array_state(name, value)
    if isinstance(value, dict):
        return {"mapping": [[json_value(name, key), json_value(name, item)] for key, item in value.items()]}, {}
    return json_value(name, value), {}


def value_from_state(entry, tensors: dict[str, Tensor]):
    """Decode a value of `value_state`."""
    if not isinstance(entry, dict):
        return entry
    if "mapping" in entry:
        return dict(entry["mapping"])
    if "record" in entry:
        return _record(entry, tensors)
    if "measure" in entry:
        return TaskMeasure(**tensors)
    if "likelihood" in entry:
        return likelihood_from_state(entry["likelihood"], tensors)
    if "list" in entry:
        return [value_from_state(item, strip_prefix(str(i), tensors)) for i, item in enumerate(entry["list"])]
    if "matrix" in entry:
        return matrix_from_spec(entry["matrix"], tensors)
    if "sparse" in entry:
        return _sparse(entry, tensors)
    if "items" in entry:
        return _listed(entry)
    return tensors[""].numpy() if entry["array"] == "ndarray" else tensors[""]


def storable_record(kind: type) -> type:
    """Register a dataclass of numbers and arrays as a value that a file may hold."""
    RECORDS[kind.__name__] = kind
    return kind


def _record_state(record) -> tuple[dict, dict[str, Tensor]]:
    arrays = {name: value for name, value in vars(record).items() if isinstance(value, np.ndarray)}
    fields = {name: json_value(name, value) for name, value in vars(record).items() if name not in arrays}
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    return {"record": type(record).__name__, "fields": fields}, tensors


def _record(entry: dict, tensors: dict[str, Tensor]):
    if entry["record"] not in RECORDS:
        raise ModelFileError(f"The file describes a {entry['record']!r}, which this version does not know.")
    return RECORDS[entry["record"]](**entry["fields"], **{name: tensor.numpy() for name, tensor in tensors.items()})


def json_value(name: str, value):
    """Return a value that JSON can hold: None, a string, a number (also NumPy's), or a list of these."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple):
        return [json_value(name, item) for item in value]
    raise InputError(
        f"{name} is a {type(value).__name__}, which a model file cannot hold. Call set_params({name}=...) with a supported value before saving; the fitted model does not change."
    )


def add_prefix(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prefix the names of the tensors of one value; a tensor without name gets the prefix as name."""
    return {f"{name}.{key}".rstrip("."): tensor for key, tensor in tensors.items()}


def strip_prefix(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `add_prefix`."""
    return {"": tensors[name]} if name in tensors else under(name, tensors)


def _list_state(name: str, values) -> tuple[dict, dict[str, Tensor]]:
    """Encode a list in which some items have tensors."""
    entries, tensors = [], {}
    for i, value in enumerate(values):
        entry, found = value_state(name, value)
        entries.append(entry)
        tensors |= add_prefix(str(i), found)
    return {"list": entries}, tensors


def _array_state(name: str, array: np.ndarray) -> tuple[dict, dict[str, Tensor]]:
    if array.dtype.kind in LISTED and array.dtype != np.uint8:
        return {"array": "ndarray", "dtype": array.dtype.str, "items": json_value(name, array.tolist())}, {}
    try:
        # a copy, since torch does not support reversed or read-only arrays
        return {"array": "ndarray"}, {"": torch.from_numpy(np.array(array))}
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is an array of {array.dtype}, which a model file cannot hold: {error}") from error


def _listed(entry: dict) -> np.ndarray:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in LISTED:
        raise ModelFileError(f"The file has an array of {dtype}, which this version does not support.")
    return np.array(entry["items"], dtype=dtype)


def _sparse_state(matrix) -> tuple[dict, dict[str, Tensor]]:
    about = {"shape": list(matrix.shape)}
    if torch.is_tensor(matrix):
        entries = matrix.detach().to_sparse_coo().coalesce()
        about |= {"sparse": "Tensor", "layout": str(matrix.layout)}
        return about, {"values": entries.values(), "indices": entries.indices()}
    entries = sparse.coo_array(matrix)
    indices = np.stack([entries.row, entries.col]).astype(np.int64)
    about |= {"sparse": type(matrix).__name__}
    return about, {"values": torch.from_numpy(np.array(entries.data)), "indices": torch.from_numpy(indices)}


def _sparse(entry: dict, tensors: dict[str, Tensor]):
    values, indices, shape = tensors["values"], tensors["indices"], tuple(entry["shape"])
    if entry["sparse"] == "Tensor":
        return LAYOUTS[entry["layout"]](torch.sparse_coo_tensor(indices, values, shape, check_invariants=True))
    return SPARSE[entry["sparse"]](sparse.coo_array((values.numpy(), tuple(indices.numpy())), shape=shape))


def _matrix_state(name: str, matrix: OutputMatrix) -> tuple[dict, dict[str, Tensor]]:
    try:
        spec, tensors = matrix_to_spec(matrix)
    except KernelTypeError as error:
        raise KernelTypeError(
            f"{name} is a {type(matrix).__name__}, which a file cannot describe. Fit with {name}=matrix().detach() or a matrix of ovkgp.kernels. ({error})"
        ) from error
    return {"matrix": spec}, tensors


if TYPE_CHECKING:
    import xarray


def draws_state(draws) -> tuple[list, dict[str, Tensor]]:
    """Encode an ArviZ object, in the order of its groups and variables."""
    header, tensors = [], {}
    for name, group in groups_of(draws):
        about, found = _group_state(group)
        header.append({"name": name, **about})
        tensors |= add_prefix(name, found)
    return header, tensors


def draws_from_state(header: list, tensors: dict[str, Tensor]):
    """Decode an ArviZ object of the kind that the installed ArviZ reads."""
    return to_arviz_object({about["name"]: _group(about, strip_prefix(about["name"], tensors)) for about in header})


def _group_state(group: xarray.Dataset) -> tuple[dict, dict[str, Tensor]]:
    variables, tensors = [], {}
    for name in (*group.data_vars, *group.coords):
        variable = group.variables[name]
        entry, found = value_state(str(name), np.asarray(variable.values))
        about = {"name": str(name), "dims": list(variable.dims), "is_label": name in group.coords}
        variables.append({**about, "value": entry})
        tensors |= add_prefix(str(name), found)
    return {"variables": variables, "attrs": [[key, _attribute(key, v)] for key, v in group.attrs.items()]}, tensors


def _group(about: dict, tensors: dict[str, Tensor]) -> xarray.Dataset:
    import xarray  # `import ovkgp` must not load it

    data, labels = {}, {}
    for variable in about["variables"]:
        name = variable["name"]
        value = value_from_state(variable["value"], strip_prefix(name, tensors))
        (labels if variable["is_label"] else data)[name] = (variable["dims"], value)
    return xarray.Dataset(data, labels, dict(about["attrs"]))


def _attribute(key: str, value):
    return json_value(key, value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
