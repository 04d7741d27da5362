"""Draws of hyperparameters as JSON and tensors: every variable of every group, with its dimensions and labels.

What comes back is the object that the ArviZ here reads, whichever wrote the file.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import sparse
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp.estimators.regression.hyperparameters import groups_of
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
from ovkgp.inference.sampling.arviz_data import to_arviz_object
from ovkgp.kernels import OutputMatrix
from ovkgp.losses import TaskMeasure

SPARSE = {
    f"{form}_{kind}": getattr(sparse, f"{form}_{kind}")
    for form in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
    for kind in ("array", "matrix")
}
"""By name, the sparse matrices of SciPy."""

LAYOUTS = {
    "torch.sparse_coo": Tensor.coalesce,
    "torch.sparse_csr": Tensor.to_sparse_csr,
    "torch.sparse_csc": Tensor.to_sparse_csc,
}
"""By name, the sparse layouts of torch, and how they are made from the first."""

LISTED = "UOu"
"""Kinds of NumPy arrays that are written as lists, where no tensor holds them: strings, objects, unsigned numbers."""


# --- options --------------------------------------------------------------------------------------------------------


def option_state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    """The constructor's arguments: as they are, or as a description (a dictionary) and tensors."""
    options, tensors = {}, {}
    for name, value in estimator.get_params(deep=False).items():
        if name == "random_state" and not isinstance(value, Integral):
            value = None  # a source of random numbers has moved on since, and is left out
        is_kernel = isinstance(value, Kernel)
        options[name], found = _kernel_state(name, value, estimator) if is_kernel else value_state(name, value)
        tensors |= placed(name, found)
    return options, tensors


def _kernel_state(name: str, kernel: Kernel, estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    known = {"class": type(kernel).__name__}
    if is_storable(kernel):
        spec, tensors = kernel_to_spec(kernel)
        return {**known, "spec": spec}, tensors
    if name == "base_kernel" and isinstance(estimator.kernel, Kernel):
        raise KernelTypeError(
            f"base_kernel is a {known['class']}, which no file can describe, and is not used beside a kernel object: leave "
            "it at its default."
        )
    return {**known, "spec": None}, kernel_state(kernel)


def options_from_state(options: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> dict:
    """The constructor's arguments that `option_state` described; `kernel` is what `ovkgp.load` was given."""
    kernels = [name for name, entry in options.items() if isinstance(entry, dict) and "class" in entry]
    if kernel is not None and not kernels:
        raise OptionError(f"the kernel of this model was made by name ({options['kernel']!r}): leave kernel out.")
    supplied = "kernel" if "kernel" in kernels else "base_kernel"
    values = {}
    for name, entry in options.items():
        found = there(name, tensors)
        if name in kernels:
            values[name] = _kernel(name, entry, found, kernel if name == supplied else None)
        else:
            values[name] = value_from_state(entry, found)
    return values


def _kernel(name: str, entry: dict, tensors: dict[str, Tensor], given: Kernel | None) -> Kernel:
    if given is not None:
        if type(given).__name__ != entry["class"]:
            raise OptionError(f"the {name} of this model is a {entry['class']}; got a {type(given).__name__}.")
        return load_kernel_state(given, tensors)
    if entry["spec"] is None:
        raise OptionError(
            f"the {name} of this model is a {entry['class']}, which a file cannot describe: make one as it was made for the "
            f"constructor and give it, ovkgp.load(path, kernel={entry['class']}(…)). Its values come from the file."
        )
    return kernel_from_spec(entry["spec"], tensors)


# --- values ---------------------------------------------------------------------------------------------------------


def value_state(name: str, value) -> tuple[object, dict[str, Tensor]]:
    """A value as what JSON can hold, and tensors.

    Args:
        name: what it is called where it is refused.
        value: None, a number, a string, a list or a dictionary of these, an array, a tensor, a sparse matrix, an output matrix, a
            measure on tasks, a likelihood, or a list of likelihoods and names.

    Raises:
        InputError, KernelTypeError: it is something else.

    Cost: one copy of an array.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.storage.values import value_from_state, value_state
        >>> entry, tensors = value_state("lam", np.array([0.1, 1.0]))
        >>> entry, value_from_state(entry, tensors)
        ({'array': 'ndarray'}, array([0.1, 1. ]))
    """
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
        return {"mapping": [[plain(name, key), plain(name, item)] for key, item in value.items()]}, {}
    return plain(name, value), {}


def value_from_state(entry, tensors: dict[str, Tensor]):
    """The value that `value_state` described."""
    if not isinstance(entry, dict):
        return entry
    if "mapping" in entry:
        return dict(entry["mapping"])
    if "measure" in entry:
        return TaskMeasure(**tensors)
    if "likelihood" in entry:
        return likelihood_from_state(entry["likelihood"], tensors)
    if "list" in entry:
        return [value_from_state(item, there(str(i), tensors)) for i, item in enumerate(entry["list"])]
    if "matrix" in entry:
        return matrix_from_spec(entry["matrix"], tensors)
    if "sparse" in entry:
        return _sparse(entry, tensors)
    if "items" in entry:
        return _listed(entry)
    return tensors[""].numpy() if entry["array"] == "ndarray" else tensors[""]


def plain(name: str, value):
    """A value that JSON can hold: None, a string, a number (NumPy's too), or a list of these."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple):
        return [plain(name, item) for item in value]
    raise InputError(
        f"{name} is a {type(value).__name__}, which a model file cannot hold: set_params({name}=…) to something plain before "
        "saving. It says how the next fit will be, and the model stays as it is."
    )


def placed(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one value under its name; the value's own, without a name, has that name alone."""
    return {f"{name}.{key}".rstrip("."): tensor for key, tensor in tensors.items()}


def there(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `placed`."""
    return {"": tensors[name]} if name in tensors else under(name, tensors)


def _list_state(name: str, values) -> tuple[dict, dict[str, Tensor]]:
    """Of a list in which some items have tensors."""
    entries, tensors = [], {}
    for i, value in enumerate(values):
        entry, found = value_state(name, value)
        entries.append(entry)
        tensors |= placed(str(i), found)
    return {"list": entries}, tensors


def _array_state(name: str, array: np.ndarray) -> tuple[dict, dict[str, Tensor]]:
    if array.dtype.kind in LISTED and array.dtype != np.uint8:
        return {"array": "ndarray", "dtype": array.dtype.str, "items": plain(name, array.tolist())}, {}
    try:
        # a copy, as torch cannot look at arrays that are reversed or not to be written to
        return {"array": "ndarray"}, {"": torch.from_numpy(np.array(array))}
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is an array of {array.dtype}, which a model file cannot hold: {error}") from error


def _listed(entry: dict) -> np.ndarray:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in LISTED:
        raise ModelFileError(f"the file lists the entries of an array of {dtype}, which this version does not know.")
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
            f"{name} is a {type(matrix).__name__}, which no file can describe: fit with its values, "
            f"{name}=matrix().detach(), or with a matrix of ovkgp.kernels. ({error})"
        ) from error
    return {"matrix": spec}, tensors


if TYPE_CHECKING:
    import xarray


def draws_state(draws) -> tuple[list, dict[str, Tensor]]:
    """An ArviZ object as a list that JSON can hold, in the order of its groups and variables, and tensors by name.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.storage.values import draws_from_state, draws_state
        >>> from ovkgp.inference.sampling.arviz_data import dataset, to_arviz_object
        >>> group = dataset({"noise": np.ones((2, 3))}, {"noise": ("chain", "draw")}, attrs={"method": "nuts"})
        >>> header, tensors = draws_state(to_arviz_object({"posterior": group}))
        >>> sorted(tensors), draws_from_state(header, tensors)["posterior"].identical(group)
        (['posterior.chain', 'posterior.draw', 'posterior.noise'], True)
    """
    header, tensors = [], {}
    for name, group in groups_of(draws):
        about, found = _group_state(group)
        header.append({"name": name, **about})
        tensors |= placed(name, found)
    return header, tensors


def draws_from_state(header: list, tensors: dict[str, Tensor]):
    """The ArviZ object that `draws_state` described."""
    return to_arviz_object({about["name"]: _group(about, there(about["name"], tensors)) for about in header})


def _group_state(group: xarray.Dataset) -> tuple[dict, dict[str, Tensor]]:
    variables, tensors = [], {}
    for name in (*group.data_vars, *group.coords):
        variable = group.variables[name]
        entry, found = value_state(str(name), np.asarray(variable.values))
        about = {"name": str(name), "dims": list(variable.dims), "is_label": name in group.coords}
        variables.append({**about, "value": entry})
        tensors |= placed(str(name), found)
    return {"variables": variables, "attrs": [[key, _attribute(key, v)] for key, v in group.attrs.items()]}, tensors


def _group(about: dict, tensors: dict[str, Tensor]) -> xarray.Dataset:
    import xarray  # here, since `import ovkgp` must not load it

    data, labels = {}, {}
    for variable in about["variables"]:
        name = variable["name"]
        value = value_from_state(variable["value"], there(name, tensors))
        (labels if variable["is_label"] else data)[name] = (variable["dims"], value)
    return xarray.Dataset(data, labels, dict(about["attrs"]))


def _attribute(key: str, value):
    return plain(key, value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
