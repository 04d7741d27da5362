"""The options of a regressor as JSON and tensors, kernel objects and arrays among them.

A kernel object is described where the file format knows its class; of any other only the values are kept, and the object
itself must be supplied on the way back. Options that are neither plain, nor arrays, nor kernels are refused.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from sklearn.base import BaseEstimator
from torch import Tensor

from ovkgp.estimators.kernel_specs import is_storable, kernel_from_spec, kernel_state, kernel_to_spec, load_kernel_state
from ovkgp.estimators.tensor_layout import under
from ovkgp.exceptions import InputError, KernelTypeError, OptionError


def option_state(estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    """The constructor's arguments: as they are, or as a description (a dictionary) and tensors."""
    options, tensors = {}, {}
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, Kernel):
            options[name], found = _kernel_option(name, value, estimator)
        elif isinstance(value, np.ndarray) or torch.is_tensor(value):
            options[name], found = {"array": type(value).__name__}, {"": torch.as_tensor(value)}
        else:
            options[name], found = _plain(name, value), {}
        tensors |= {f"{name}.{key}".rstrip("."): tensor for key, tensor in found.items()}
    return options, tensors


def _kernel_option(name: str, kernel: Kernel, estimator: BaseEstimator) -> tuple[dict, dict[str, Tensor]]:
    if any(isinstance(part, Prior) for part in kernel.modules()):
        warnings.warn(
            f"the priors of the {name} are not stored: the loaded model predicts as this one does, but is trained again "
            "with them only if it is loaded with ovkgp.load(path, kernel=…).",
            UserWarning,
            stacklevel=5,
        )
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


def _plain(name: str, value):
    """A value that JSON can hold; a source of random numbers has moved on since, and is left out."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):  # NumPy's too
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if name == "random_state":
        return None
    raise InputError(f"{name} is a {type(value).__name__}, which a model file cannot hold.")


def options_from_state(options: dict, tensors: dict[str, Tensor], kernel: Kernel | None) -> dict:
    """The constructor's arguments that `option_state` described; `kernel` is what `ovkgp.load` was given."""
    described = {name: entry for name, entry in options.items() if isinstance(entry, dict)}
    arrays = {name: entry for name, entry in described.items() if "array" in entry}
    kernels = {name: entry for name, entry in described.items() if "class" in entry}
    if kernel is not None and not kernels:
        raise OptionError(f"the kernel of this model was made by name ({options['kernel']!r}): leave kernel out.")
    supplied = "kernel" if "kernel" in kernels else "base_kernel"
    values = {name: _array(entry, tensors[name]) for name, entry in arrays.items()}
    for name, entry in kernels.items():
        values[name] = _kernel(name, entry, under(name, tensors), kernel if name == supplied else None)
    return {**options, **values}


def _array(entry: dict, tensor: Tensor) -> np.ndarray | Tensor:
    return tensor.numpy() if entry["array"] == "ndarray" else tensor


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
