"""Values as JSON and tensors: numbers, arrays, kernels, likelihoods, feature maps, registered classes and ArviZ objects.

`encode` adds arrays to a dictionary of tensors by name and returns JSON that refers to them. `decode` makes only what it knows:
no name in a file is imported or called.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import sparse
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp import losses
from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import (
    blank_features,
    blank_likelihood,
    check_size,
    features_to_spec,
    fill,
    is_storable,
    kernel_from_spec,
    kernel_state,
    kernel_to_spec,
    likelihood_to_spec,
    load_kernel_state,
)
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError
from ovkgp.features import ORFF
from ovkgp.functional.bases import BSplines, Fourier, TensorProduct
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.dictionary import Combination, DictionaryFactor, Interpolated
from ovkgp.functional.dictionary_kernel import DictionaryKernel
from ovkgp.functional.eigenfunctions import (
    DictionaryFunctions,
    EigenFactor,
    Eigenfunctions,
    Eigenpairs,
    FeatureFunctions,
    FirstFunctions,
    GaussianEigenfunctions,
    HermiteFunctions,
    LaplaceFunctions,
    SampledFunctions,
)
from ovkgp.functional.factors import DerivativeTaskFactor, FeatureFactor, KernelFactor, LevelFactor
from ovkgp.functional.learned import DoublySparse, Learned
from ovkgp.functional.mean_curve import MeanCurve
from ovkgp.functional.principal_components import PrincipalComponents
from ovkgp.functional.random_functions import RandomFourier, RandomProcesses
from ovkgp.functional.smoothing import KernelSections
from ovkgp.functional.wavelets import Wavelets
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import Landmarks
from ovkgp.inference.sampling.arviz_data import groups_of, to_arviz_object
from ovkgp.inference.stacking.candidates import CoupledCandidate, IndependentCandidate
from ovkgp.inference.stacking.class_mixture import ClassComponent, ClassMixture
from ovkgp.inference.stacking.output_draws import Draws
from ovkgp.inference.stacking.stack import CandidateScore
from ovkgp.inference.statistics.statistics import Statistics
from ovkgp.inference.tasks.problem import TaskFunction, zero_offset
from ovkgp.inference.training.priors import PriorSettings
from ovkgp.inference.variational.families import Frame, WeightGaussian
from ovkgp.kernels import OutputMatrix
from ovkgp.losses import TaskMeasure

if TYPE_CHECKING:
    import xarray

_SHARED = (FitReport, Landmarks, Observations, Statistics, TaskMeasure, WeightGaussian, Frame)
_STACK = (IndependentCandidate, CoupledCandidate, CandidateScore, Draws, PriorSettings, ClassComponent, ClassMixture)
_TASKS = (TaskFunction, KernelFactor, FeatureFactor, LevelFactor, DerivativeTaskFactor)
_DICTIONARIES = (BSplines, Combination, DoublySparse, Eigenfunctions, Fourier, GaussianEigenfunctions, Interpolated)
_DICTIONARIES += (KernelSections, Learned, PrincipalComponents, RandomFourier, RandomProcesses, TensorProduct, Wavelets)
_FUNCTIONAL = (
    FunctionalData,
    MeanCurve,
    DictionaryFactor,
    EigenFactor,
    Eigenpairs,
    DictionaryFunctions,
    FeatureFunctions,
)
_FUNCTIONAL += (FirstFunctions, HermiteFunctions, LaplaceFunctions, SampledFunctions)
_LOSSES = tuple(
    kind
    for kind in vars(losses).values()
    if isinstance(kind, type) and issubclass(kind, losses.Loss | losses.CurveLoss | losses.Coordinates)
)
RECORDS = {
    kind.__name__: kind for kind in (*_SHARED, *_STACK, *_TASKS, *_LOSSES, *_DICTIONARIES, *_FUNCTIONAL)
}  # classes stored with all their attributes, by name
DICTIONARY_KERNEL = ("dictionary", "offset", "scale", "fixed_matrix", "raw_variances")  # what is stored of this kernel
FUNCTIONS = {"zero_offset": zero_offset}  # functions that may be stored, by name
ARVIZ = ("InferenceData", "DataTree")  # classes of ArviZ objects, by name
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
LISTED = "UOu"  # kinds of NumPy arrays that are stored as lists: strings, objects, unsigned integers


def storable_record(kind: type) -> type:
    """Register a class that a file may hold with all its attributes (of a dataclass: its fields)."""
    RECORDS[kind.__name__] = kind
    return kind


def encode(name: str, value, tensors: dict[str, Tensor]):
    """Return a value as JSON, and add its arrays to `tensors` under names that begin with `name`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):  # NumPy's too
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple):
        items = [encode(f"{name}.{i}", item, tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {"mapping": [[encode(name, k, tensors), encode(f"{name}.{k}", v, tensors)] for k, v in value.items()]}
    if sparse.issparse(value) or (torch.is_tensor(value) and str(value.layout) in LAYOUTS):
        return _encode_sparse(name, value, tensors)
    if torch.is_tensor(value):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, np.ndarray):
        return _encode_array(name, value, tensors)
    if type(value) is RECORDS.get(type(value).__name__):
        names = [field.name for field in fields(value)] if is_dataclass(value) else vars(value)
        entries = {key: encode(f"{name}.{key}", getattr(value, key), tensors) for key in names}
        return {"record": type(value).__name__, "attributes": entries}
    if isinstance(value, torch.nn.Module):
        return _encode_module(name, value, tensors)
    if (known := getattr(value, "__name__", None)) in FUNCTIONS and value is FUNCTIONS[known]:
        return {"function": known}
    if type(value).__name__ in ARVIZ:
        return {"arviz": [_encode_group(name, *group, tensors) for group in groups_of(value)]}
    raise InputError(
        f"{name} is a {type(value).__name__}, which a model file cannot hold. Call set_params({name}=...) with a supported value before saving, or pickle the estimator."
    )


def decode(entry, tensors: dict[str, Tensor]):
    """Return the value of an entry of `encode`."""
    if isinstance(entry, list):
        return [decode(item, tensors) for item in entry]
    if not isinstance(entry, dict):
        return entry
    (kind,) = entry.keys() & _DECODERS.keys()
    return _DECODERS[kind](entry, tensors)


def _encode_array(name: str, array: np.ndarray, tensors: dict[str, Tensor]) -> dict:
    if array.dtype.kind in LISTED and array.dtype != np.uint8:
        return {"dtype": array.dtype.str, "items": encode(name, array.tolist(), tensors)}
    try:
        # a copy, since torch does not support reversed or read-only arrays
        tensors[name] = torch.from_numpy(np.array(array))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is an array of {array.dtype}, which a model file cannot hold: {error}") from error
    return {"array": name}


def _decode_items(entry: dict, tensors: dict[str, Tensor]) -> np.ndarray:
    dtype = np.dtype(entry["dtype"])
    if dtype.kind not in LISTED:
        raise ModelFileError(f"The file has an array of {dtype}, which this version does not support.")
    return np.array(entry["items"], dtype=dtype)


def _encode_sparse(name: str, matrix, tensors: dict[str, Tensor]) -> dict:
    about = {"at": name, "shape": list(matrix.shape)}
    if torch.is_tensor(matrix):
        entries = matrix.detach().to_sparse_coo().coalesce()
        tensors[f"{name}.values"], tensors[f"{name}.indices"] = entries.values(), entries.indices()
        return {"sparse": "Tensor", "layout": str(matrix.layout), **about}
    entries = sparse.coo_array(matrix)
    indices = np.stack([entries.row, entries.col]).astype(np.int64)
    tensors[f"{name}.values"] = torch.from_numpy(np.array(entries.data))
    tensors[f"{name}.indices"] = torch.from_numpy(indices)
    return {"sparse": type(matrix).__name__, **about}


def _decode_sparse(entry: dict, tensors: dict[str, Tensor]):
    values, indices = (tensors[f"{entry['at']}.{part}"] for part in ("values", "indices"))
    shape = tuple(check_size(size, count_numbers(tensors)) for size in entry["shape"])
    if entry["sparse"] == "Tensor":
        return LAYOUTS[entry["layout"]](torch.sparse_coo_tensor(indices, values, shape, check_invariants=True))
    return SPARSE[entry["sparse"]](sparse.coo_array((values.numpy(), tuple(indices.numpy())), shape=shape))


def _encode_module(name: str, module: torch.nn.Module, tensors: dict[str, Tensor]) -> dict:
    if type(module) is DictionaryKernel:
        parts = {key: getattr(module, key, None) for key in DICTIONARY_KERNEL}
        return {"dictionary_kernel": encode(name, parts, tensors)}
    if isinstance(module, ORFF):
        entry, state = {"features": features_to_spec(module)}, kernel_state(module)
        entry["kernel_spec"] = kernel_to_spec(module.kernel)[0]
    elif isinstance(module, Likelihood):
        entry, state = {"likelihood": likelihood_to_spec(module)}, kernel_state(module)
    else:
        try:
            spec, state = kernel_to_spec(module)
        except KernelTypeError as error:
            if not isinstance(module, OutputMatrix):
                raise
            raise KernelTypeError(
                f"{name} is a {type(module).__name__}, which a file cannot describe. Fit with {name}=matrix().detach() or a matrix of ovkgp.kernels. ({error})"
            ) from error
        entry = {"matrix" if isinstance(module, OutputMatrix) else "kernel": spec}
    tensors |= prefixed(**{name: state})
    return {**entry, "at": name}


def _decode_features(entry: dict, tensors: dict[str, Tensor]) -> ORFF:
    values = under(entry["at"], tensors)
    kernel = kernel_from_spec(entry["kernel_spec"], under("kernel", values))
    features = blank_features(entry["features"], kernel, values, count_numbers(tensors))
    fill(features, values)
    return features


def _decode_dictionary_kernel(entry: dict, tensors: dict[str, Tensor]) -> DictionaryKernel:
    parts = decode(entry["dictionary_kernel"], tensors)
    raw, matrix = parts.pop("raw_variances"), parts.pop("fixed_matrix")
    kernel = DictionaryKernel(output_matrix=matrix, **parts)
    if raw is not None:
        kernel.raw_variances.data = raw.clone()
    return kernel


def _decode_likelihood(entry: dict, tensors: dict[str, Tensor]) -> Likelihood:
    likelihood = blank_likelihood(entry["likelihood"])
    fill(likelihood, under(entry["at"], tensors))
    return likelihood


def _decode_record(entry: dict, tensors: dict[str, Tensor]):
    if entry["record"] not in RECORDS:
        raise ModelFileError(f"The file describes a {entry['record']!r}, which this version does not know.")
    kind, attributes = RECORDS[entry["record"]], {k: decode(v, tensors) for k, v in entry["attributes"].items()}
    if is_dataclass(kind):
        return kind(**attributes)
    record = kind.__new__(kind)  # the constructor would factorize again
    vars(record).update(attributes)
    return record


def _encode_group(name: str, group: str, data: xarray.Dataset, tensors: dict[str, Tensor]) -> dict:
    variables = []
    for key in (*data.data_vars, *data.coords):
        variable = data.variables[key]
        about = {"name": str(key), "dims": list(variable.dims), "is_label": key in data.coords}
        value = encode(f"{name}.{group}.{key}", np.asarray(variable.values), tensors)
        variables.append({**about, "value": value})
    attributes = {k: v.tolist() if isinstance(v, np.ndarray | np.generic) else v for k, v in data.attrs.items()}
    return {"name": group, "variables": variables, "attrs": encode(f"{name}.{group}", attributes, tensors)}


def _decode_groups(entry: dict, tensors: dict[str, Tensor]):
    """Make an ArviZ object of the kind that the installed ArviZ reads."""
    return to_arviz_object({about["name"]: _decode_group(about, tensors) for about in entry["arviz"]})


def _decode_group(about: dict, tensors: dict[str, Tensor]) -> xarray.Dataset:
    import xarray  # `import ovkgp` must not load it

    data, labels = {}, {}
    for variable in about["variables"]:
        value = decode(variable["value"], tensors)
        (labels if variable["is_label"] else data)[variable["name"]] = (variable["dims"], value)
    return xarray.Dataset(data, labels, decode(about["attrs"], tensors))


_DECODERS = {  # by the key that only this kind of entry has
    "tuple": lambda entry, tensors: tuple(decode(entry["tuple"], tensors)),
    "mapping": lambda entry, tensors: {decode(k, tensors): decode(v, tensors) for k, v in entry["mapping"]},
    "tensor": lambda entry, tensors: tensors[entry["tensor"]],
    "array": lambda entry, tensors: tensors[entry["array"]].numpy(),
    "items": _decode_items,
    "sparse": _decode_sparse,
    "kernel": lambda entry, tensors: kernel_from_spec(entry["kernel"], under(entry["at"], tensors)),
    "matrix": lambda entry, tensors: kernel_from_spec(entry["matrix"], under(entry["at"], tensors), OutputMatrix),
    "dictionary_kernel": _decode_dictionary_kernel,
    "likelihood": _decode_likelihood,
    "features": _decode_features,
    "record": _decode_record,
    "function": lambda entry, tensors: FUNCTIONS[entry["function"]],
    "arviz": _decode_groups,
}


def count_numbers(tensors: dict[str, Tensor]) -> int:
    """Return the number of stored numbers, which bounds the sizes that a header may describe."""
    return sum(tensor.numel() for tensor in tensors.values())


def encode_options(estimator: BaseEstimator, tensors: dict[str, Tensor]) -> dict:
    """Return the arguments of the constructor as JSON, and add their arrays to `tensors`."""
    options = estimator.get_params(deep=False)
    if not isinstance(options.get("random_state"), Integral | None):
        options["random_state"] = None  # a generator has advanced since and is not stored
    return {name: _encode_option(name, value, estimator, tensors) for name, value in options.items()}


def _encode_option(name: str, value, estimator: BaseEstimator, tensors: dict[str, Tensor]):
    if not isinstance(value, Kernel) or type(value) is DictionaryKernel:
        return encode(name, value, tensors)
    known = {"class": type(value).__name__}
    if is_storable(value):
        return known | encode(name, value, tensors)
    if name == "base_kernel" and isinstance(estimator.kernel, Kernel):
        raise KernelTypeError(
            f"base_kernel is a {known['class']}, which a file cannot describe, and is not used with a kernel object. Leave it at its default."
        )
    tensors |= prefixed(**{name: kernel_state(value)})
    return {**known, "kernel": None, "at": name}


def decode_options(options: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> dict:
    """Return the arguments of the constructor; `kernel` is the argument of `ovkgp.load`."""
    kernels = [name for name, entry in options.items() if isinstance(entry, dict) and "class" in entry]
    if kernel is not None and not kernels:
        raise OptionError(
            f"kernel is not supported for this model, whose kernel was given by name ({options['kernel']!r}). Remove it."
        )
    supplied = "kernel" if "kernel" in kernels else "base_kernel"
    return {
        name: _decode_kernel(name, entry, tensors, kernel if name == supplied else None)
        if name in kernels
        else decode(entry, tensors)
        for name, entry in options.items()
    }


def _decode_kernel(name: str, entry: dict, tensors: dict[str, Tensor], given: Kernel | None) -> Kernel:
    if given is not None:
        if type(given).__name__ != entry["class"]:
            raise OptionError(
                f"kernel must be a {entry['class']}, the {name} of this model, got a {type(given).__name__}."
            )
        return load_kernel_state(given, under(entry["at"], tensors))
    if entry["kernel"] is None:
        raise OptionError(
            f"The {name} of this model is a {entry['class']}, which a file cannot describe. Create one with the same options and "
            f"pass it, ovkgp.load(path, kernel={entry['class']}(...)); its values come from the file."
        )
    return decode(entry, tensors)
