"""Kernels as JSON and tensors, so that a model file can hold one and nothing need be pickled.

A spec names classes from `kernel_table.STORABLE` with the options of their constructors; parameters and buffers travel as
tensors. Loading builds what the table knows and looks up nothing else: no name in a file is ever imported or called.

**Priors are not stored.** A loaded kernel predicts as before; register its priors again before it is trained again.
"""

from __future__ import annotations

from numbers import Integral, Real

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn import Module

from ovkgp.estimators.kernel_state import fill, kernel_state, load_kernel_state, owner_of
from ovkgp.estimators.kernel_table import CONSTRAINTS, STORABLE, TRANSFORMS
from ovkgp.exceptions import KernelTypeError, ModelFileError, OvkgpError
from ovkgp.kernels import OutputMatrix

__all__ = [
    "is_storable",
    "kernel_from_spec",
    "kernel_state",
    "kernel_to_spec",
    "load_kernel_state",
    "matrix_from_spec",
    "matrix_to_spec",
]

# --- kernel → spec -----------------------------------------------------------------------------------------------


def kernel_to_spec(kernel: Kernel) -> tuple[dict, dict[str, Tensor]]:
    """A kernel as a dictionary that JSON can hold, and its parameters and buffers by name.

    Classes, options, constraints, batch shapes, dtypes, shared and frozen parameters are kept; priors are not.

    Args:
        kernel: a kernel of this package or of GPyTorch, made of parts in `STORABLE`; classes count, not their parents.

    Raises:
        KernelTypeError: it has a part that no file can describe, such as a class of one's own.

    Cost: one copy of the tensors.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.kernel_specs import kernel_from_spec, kernel_to_spec
        >>> from ovkgp.kernels import DecomposableKernel
        >>> spec, tensors = kernel_to_spec(DecomposableKernel(RBFKernel(), num_outputs=3))
        >>> spec["kernel"]["class"], sorted(tensors)[:2]
        ('DecomposableKernel', ['base_kernel.raw_lengthscale', 'base_kernel.raw_lengthscale_constraint.lower_bound'])
        >>> kernel_from_spec(spec, tensors).num_outputs
        3
    """
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"expected a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
    return _to_spec(kernel)


def matrix_to_spec(matrix: OutputMatrix) -> tuple[dict, dict[str, Tensor]]:
    """An output matrix by itself, as `kernel_to_spec` describes the one inside a kernel.

    Args:
        matrix: of a class in `STORABLE`.

    Raises:
        KernelTypeError: it is of another class.

    Cost: one copy of the tensors.

    Example:
        >>> from ovkgp.estimators.kernel_specs import matrix_from_spec, matrix_to_spec
        >>> from ovkgp.kernels import SimplexMatrix
        >>> matrix_from_spec(*matrix_to_spec(SimplexMatrix(3)))().shape
        torch.Size([3, 3])
    """
    return _to_spec(matrix)


def _to_spec(part: Kernel | OutputMatrix) -> tuple[dict, dict[str, Tensor]]:
    spec = {
        "kernel": _encode(part),
        "constraints": {name: _constraint_to_spec(name, owner, c) for name, owner, c in _constraints(part)},
        "batch_shapes": _batch_shapes(part),
        "tied": _tied(part),
        "frozen": [name for name, parameter in part.named_parameters() if not parameter.requires_grad],
    }
    tensors = kernel_state(part)
    try:
        _from_spec(spec, tensors, type(part))
    except OvkgpError as error:  # an attribute was changed after construction, a constraint removed, …
        raise KernelTypeError(f"{_cannot_store(part)} Its parts are known, but not as they are now: {error}") from error
    return spec, tensors


def is_storable(kernel: Kernel) -> bool:
    """Whether `kernel_to_spec` can describe this kernel.

    Args:
        kernel: any kernel.

    Example:
        >>> from gpytorch.kernels import RBFKernel, RBFKernelGrad
        >>> from ovkgp.estimators.kernel_specs import is_storable
        >>> is_storable(RBFKernel()), is_storable(RBFKernelGrad())
        (True, False)
    """
    try:
        kernel_to_spec(kernel)
    except KernelTypeError:
        return False
    return True


def _encode(value):
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Real):  # NumPy's too
        return int(value) if isinstance(value, Integral) else float(value)
    if torch.is_tensor(value):
        return {"shape": list(value.shape)}
    if isinstance(value, list | tuple | torch.nn.ModuleList):
        return [_encode(item) for item in value]
    entry = STORABLE.get(type(value).__name__)
    if entry is None or type(value) is not entry.kind:
        raise KernelTypeError(_cannot_store(value))
    options = entry.options(value)
    return {"class": type(value).__name__, "options": {k: _encode(v) for k, v in options.items() if v is not None}}


def _cannot_store(part) -> str:
    return (
        f"{type(part).__name__} cannot be stored in a model file, which knows the classes of ovkgp and GPyTorch only. "
        "The rest of the model can: save it, and supply the kernel with ovkgp.load(path, kernel=…)."
    )


def _constraint_to_spec(name: str, owner: Module, constraint: Interval) -> dict:
    kind, pair = type(constraint).__name__, (constraint._transform, constraint._inv_transform)
    transform = next((key for key, known in TRANSFORMS.items() if _same_transform(pair, known)), None)
    if CONSTRAINTS.get(kind) is not type(constraint) or transform is None:
        raise KernelTypeError(f"{_cannot_store(owner)} Its {name} has a constraint of its own: {constraint}.")
    return {"class": kind, "transform": transform}


def _same_transform(given: tuple, known: tuple) -> bool:
    if isinstance(given[0], torch.nn.Softplus) and isinstance(known[0], torch.nn.Softplus):  # copies differ in identity
        return given[1] is known[1] and (given[0].beta, given[0].threshold) == (known[0].beta, known[0].threshold)
    return given[0] is known[0] and (given[1] is known[1] or given[0] is None)


def _modules(kernel: Kernel):
    return kernel.named_modules(remove_duplicate=False)


def _constraints(kernel: Kernel) -> list[tuple[str, Module, Interval]]:
    """The (name, owner, constraint) of every constraint in a kernel."""
    owners = [(path, module) for path, module in _modules(kernel) if isinstance(module, gpytorch.Module)]
    return [(f"{path}.{n}".lstrip("."), module, c) for path, module in owners for n, c in module._constraints.items()]


def _batch_shapes(kernel: Kernel) -> dict[str, list[int]]:
    parts = [(name, module) for name, module in _modules(kernel) if isinstance(module, Kernel | OutputMatrix)]
    return {name: list(module._batch_shape) for name, module in parts if len(module._batch_shape)}


def _tied(kernel: Kernel) -> list[list[str]]:
    """Pairs of names of one and the same parameter."""
    first = {}
    names = [(name, first.setdefault(id(p), name)) for name, p in kernel.named_parameters(remove_duplicate=False)]
    return [[name, same] for name, same in names if name != same]


# --- spec → kernel -----------------------------------------------------------------------------------------------


def kernel_from_spec(spec: dict, tensors: dict[str, Tensor]) -> Kernel:
    """The kernel that `kernel_to_spec` described, bit for bit.

    Args:
        spec: the dictionary, possibly after a journey through JSON.
        tensors: the parameters and buffers by name.

    Raises:
        KernelTypeError: the spec names a class that is not in `STORABLE`.
        ModelFileError: it does not describe a kernel, or the tensors are not those of the kernel.

    Cost: one copy of the tensors.

    Example:
        See `kernel_to_spec`.
    """
    return _from_spec(spec, tensors, Kernel)


def matrix_from_spec(spec: dict, tensors: dict[str, Tensor]) -> OutputMatrix:
    """The output matrix that `matrix_to_spec` described, bit for bit.

    Args:
        spec, tensors: as for `kernel_from_spec`.

    Raises:
        KernelTypeError, ModelFileError: as for `kernel_from_spec`.

    Cost: one copy of the tensors.

    Example:
        See `matrix_to_spec`.
    """
    return _from_spec(spec, tensors, OutputMatrix)


def _from_spec(spec: dict, tensors: dict[str, Tensor], kind: type[Module]) -> Kernel | OutputMatrix:
    try:
        part = _decode(spec["kernel"])
        if not isinstance(part, kind):
            expected = "a kernel" if issubclass(kind, Kernel) else "an output matrix"
            raise KernelTypeError(f"the file describes a {type(part).__name__} where {expected} was expected.")
        for name, shape in spec["batch_shapes"].items():
            part.get_submodule(name)._batch_shape = torch.Size(shape)
        for name, constraint in spec["constraints"].items():
            _set_constraint(part, name, constraint, tensors)
        for name, same in spec["tied"]:
            owner, leaf = owner_of(part, name)
            owner._parameters[leaf] = part.get_parameter(same)
        fill(part, tensors)
        for name in spec["frozen"]:
            part.get_parameter(name).requires_grad_(False)
    except KernelTypeError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"the stored kernel cannot be built again: {error}") from error
    return part


def _decode(value):
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        return torch.ones(value["shape"])
    entry = STORABLE.get(value["class"])
    if entry is None:
        raise KernelTypeError(f"the file describes a {value['class']!r}, which is not among the classes it may name.")
    options = {name: _decode(option) for name, option in value["options"].items()}
    if "batch_shape" in options:
        options["batch_shape"] = torch.Size(options["batch_shape"])
    return (entry.make or entry.kind)(**options)


def _set_constraint(kernel: Kernel, name: str, spec: dict, tensors: dict[str, Tensor]) -> None:
    """A constraint of the stored kind and shape; its bounds are buffers and are filled with the others."""
    owner, leaf = owner_of(kernel, name)
    kind = CONSTRAINTS[spec["class"]]
    lower, upper = (torch.full_like(tensors[f"{name}.{end}_bound"], v) for end, v in (("lower", 0.0), ("upper", 1.0)))
    bounds = {Positive: (), GreaterThan: (lower,), LessThan: (upper,), Interval: (lower, upper)}[kind]
    transform, inverse = TRANSFORMS[spec["transform"]]
    owner.register_constraint(leaf.removesuffix("_constraint"), kind(*bounds, transform, inverse))
