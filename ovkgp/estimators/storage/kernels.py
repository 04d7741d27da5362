"""Kernels as JSON and tensors, so that a model file can hold one and nothing need be pickled.

A spec names classes from `kernel_table.STORABLE` with the options of their constructors; parameters and buffers travel as
tensors. Loading builds what the table knows and looks up nothing else: no name in a file is ever imported or called.

**Priors are not stored.** A loaded kernel predicts as before; register its priors again before it is trained again.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.priors import Prior
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from scipy import sparse
from torch import Tensor
from torch.nn import Module

from ovkgp import kernels as ours
from ovkgp.exceptions import KernelTypeError, ModelFileError, OptionError, OvkgpError
from ovkgp.kernels import OutputMatrix
from ovkgp.kernels.manifold import OperatorValuedManifoldKernel
from ovkgp.kernels.penalties import Penalty
from ovkgp.kernels.warped import OperatorValuedWarpedKernel


@dataclass(frozen=True)
class Storable:
    """A class that may be stored: what its constructor is given, and, where that is not its keywords, how it is called."""

    kind: type
    options: Callable[[Module], dict]
    make: Callable | None = None


def _attributes(*names: str) -> Callable[[Module], dict]:
    return lambda module: {name: getattr(module, name) for name in names}


def _scalar(*names: str) -> Callable[[Kernel], dict]:
    """The options that every GPyTorch kernel has, and those of this one."""

    def options(kernel: Kernel) -> dict:
        common = {"ard_num_dims": kernel.ard_num_dims, "batch_shape": kernel._batch_shape}
        return {**common, **_columns(kernel), **_attributes(*names)(kernel)}

    return options


def _columns(kernel: Kernel) -> dict:
    return {"active_dims": None if kernel.active_dims is None else kernel.active_dims.tolist()}


def _scaled(kernel: ScaleKernel) -> dict:
    return {"base_kernel": kernel.base_kernel, "batch_shape": kernel._batch_shape, **_columns(kernel)}


def _warped(kernel: ours.WarpedKernel) -> dict:
    return {"base_kernel": kernel.base_kernel, "group": kernel.group, **_columns(kernel)}


def _helmholtz(kernel: ours.HelmholtzKernel) -> dict:
    curl, div = kernel.curl.base_kernel, kernel.div.base_kernel
    return {"curl_base": curl.base_kernel, "div_base": div.base_kernel, "num_dims": curl.num_dims}


def _manifold(kernel: ours.ManifoldKernel) -> dict:
    is_learned = "raw_strength" in kernel._parameters
    return {"base_kernel": kernel.base_kernel, "X": kernel.X, "penalty": kernel.penalty, "learn_strength": is_learned}


def _entries(penalty: Penalty) -> dict:
    return {"size": penalty.size, "num_entries": penalty.values.numel() if penalty.is_sparse else None}


def blank_penalty(size: int, num_entries: int | None = None) -> Penalty:
    """A penalty of the size and the form of another, whose values are filled in later.

    It passes the checks of the constructor in no time, which the values have passed when they were first given.

    Args:
        size: s, of the matrix (s, s).
        num_entries: how many entries a sparse one stores; None makes it dense.

    Cost: the memory of the values.

    Example:
        >>> from ovkgp.estimators.storage.kernels import blank_penalty
        >>> blank_penalty(4).values.shape, blank_penalty(4, num_entries=10).indices.shape
        (torch.Size([4, 4]), torch.Size([2, 10]))
    """
    penalty, is_dense = Penalty(sparse.eye_array(size, format="csr")), num_entries is None
    penalty.values = torch.zeros([size, size] if is_dense else [num_entries], dtype=torch.float64)
    penalty.indices = None if is_dense else torch.zeros(2, num_entries, dtype=torch.int64)
    return penalty


_TABLE = (
    Storable(RBFKernel, _scalar()),
    Storable(MaternKernel, _scalar("nu")),
    Storable(RQKernel, _scalar()),
    Storable(PeriodicKernel, _scalar()),
    Storable(CosineKernel, _scalar()),
    Storable(LinearKernel, _scalar()),
    Storable(SpectralMixtureKernel, _scalar("num_mixtures")),
    Storable(ScaleKernel, _scaled),
    Storable(AdditiveKernel, _attributes("kernels"), lambda kernels: AdditiveKernel(*kernels)),
    Storable(ProductKernel, _attributes("kernels"), lambda kernels: ProductKernel(*kernels)),
    Storable(ours.LaplaceKernel, _scalar()),
    Storable(ours.CauchyKernel, _scalar()),
    Storable(ours.SobolevKernel, _scalar("order", "periodic")),
    Storable(ours.SkewedChi2Kernel, _scalar()),
    Storable(ours.ExponentiatedChi2Kernel, _scalar()),
    Storable(ours.GaussianCurveKernel, _scalar("num_channels", "weights")),
    Storable(ours.LaplaceCurveKernel, _scalar("num_channels", "weights")),
    Storable(ours.DecomposableKernel, lambda k: {"base_kernel": k.base_kernel, "output_matrix": k.output_module}),
    Storable(ours.IndependentKernel, _attributes("kernels")),
    Storable(ours.CurlFreeKernel, _attributes("base_kernel", "num_dims")),
    Storable(ours.DivergenceFreeKernel, _attributes("base_kernel", "num_dims")),
    Storable(ours.HelmholtzKernel, _helmholtz),
    Storable(ours.BlockwiseProductKernel, _attributes("base_kernel", "scalar_kernel")),
    Storable(ours.FunctionValuedKernel, _attributes("input_kernel", "task_kernel", "tasks")),
    Storable(ours.TransformableKernel, _attributes("base_kernel", "transforms")),
    Storable(ours.Delay, _attributes("delay")),
    Storable(ours.WarpedKernel, _warped),
    Storable(OperatorValuedWarpedKernel, _warped),
    Storable(ours.ManifoldKernel, _manifold),
    Storable(OperatorValuedManifoldKernel, _manifold),
    Storable(Penalty, _entries, blank_penalty),
    Storable(ours.AdditiveGroup, _attributes("num_dims")),
    Storable(ours.MultiplicativeGroup, _attributes("num_dims")),
    Storable(ours.SkewedMultiplicativeGroup, _attributes("c")),
    Storable(ours.CyclicGroup, _attributes("period")),
    Storable(ours.ProductGroup, _attributes("groups")),
    Storable(ours.FreeMatrix, _attributes("num_outputs", "rank", "batch_shape")),
    Storable(ours.FullMatrix, _attributes("num_outputs", "batch_shape")),
    Storable(ours.KnownMatrix, _attributes("matrix")),
    Storable(ours.EmpiricalMatrix, lambda matrix: {"Y": torch.ones(2, matrix.num_outputs)}),
    Storable(ours.GraphMatrix, lambda m: {"weights": torch.ones(m.num_outputs, m.num_outputs), "ridge": 1.0}),
    Storable(ours.SimplexMatrix, lambda matrix: {"num_classes": matrix.num_outputs}),
    Storable(ours.MeanRegularizedMatrix, _attributes("num_outputs", "batch_shape")),
)
STORABLE = {entry.kind.__name__: entry for entry in _TABLE}
"""By name, the classes of kernels, of their output matrices, penalties, groups and transforms."""

CONSTRAINTS = {kind.__name__: kind for kind in (Positive, GreaterThan, LessThan, Interval)}
"""By name, the constraints."""
TRANSFORMS = {
    "softplus": (torch.nn.Softplus(), inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "none": (None, None),
}
"""By name, the transforms of constraints and their inverses."""


def kernel_state(kernel: Kernel) -> dict[str, Tensor]:
    """Copies of the parameters and buffers of any kernel by name, without those of its priors.

    Args:
        kernel: any kernel, also one that `kernel_to_spec` does not know.

    Example:
        >>> from gpytorch.kernels import CosineKernel
        >>> from ovkgp.estimators.storage.kernels import kernel_state
        >>> sorted(kernel_state(CosineKernel()))[0]
        'raw_period_length'
    """
    priors = tuple(
        f"{name}." for name, module in kernel.named_modules(remove_duplicate=False) if isinstance(module, Prior)
    )
    state = {name: tensor for name, tensor in kernel.state_dict().items() if not name.startswith(priors)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def load_kernel_state(kernel: Kernel, tensors: dict[str, Tensor]) -> Kernel:
    """A copy of `kernel` with stored values: the way back for kernels of one's own.

    Args:
        kernel: made as the stored one was, with the same options; it is left as it is.
        tensors: its parameters and buffers, from `kernel_state`; their dtype wins.

    Raises:
        OptionError: names or shapes do not fit; the message lists them.

    Cost: one copy of the tensors.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.storage.kernels import kernel_state, load_kernel_state
        >>> trained = RBFKernel()
        >>> trained.lengthscale = 2.0
        >>> round(load_kernel_state(RBFKernel(), kernel_state(trained)).lengthscale.item(), 6)
        2.0
    """
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"expected a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
    copy = deepcopy(kernel)
    fill(copy, tensors)
    return copy


def owner_of(kernel: Kernel, name: str) -> tuple[Module, str]:
    """The module that holds an entry of the state, and the entry's last name."""
    path, _, leaf = name.rpartition(".")
    return kernel.get_submodule(path), leaf


def fill(kernel: Kernel, tensors: dict[str, Tensor]) -> None:
    """Set, in place, the parameters and buffers of a kernel, all of them and no others, to the bit."""
    _require_fit(kernel_state(kernel), tensors)
    for name, tensor in tensors.items():
        owner, leaf = owner_of(kernel, name)
        value = tensor.detach().clone().to(getattr(owner, leaf).device)
        if leaf in owner._parameters:
            owner._parameters[leaf].data = value
        else:
            owner._buffers[leaf] = value
    for module in kernel.modules():
        if isinstance(module, gpytorch.Module):
            module._clear_cache()


def _require_fit(own: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    faults = [f"{name} is not stored" for name in own.keys() - stored.keys()]
    faults += [f"{name} is stored, but the kernel has no such entry" for name in stored.keys() - own.keys()]
    for name in own.keys() & stored.keys():
        mine, theirs = own[name], stored[name]
        if mine.shape != theirs.shape or mine.is_floating_point() != theirs.is_floating_point():
            faults.append(f"{name} is {_described(mine)} in the kernel and {_described(theirs)} in the file")
    if faults:
        raise OptionError(
            f"the kernel does not fit the stored values: {'; '.join(sorted(faults)[:5])}. Make it as it was made before "
            "it was saved."
        )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


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
        >>> from ovkgp.estimators.storage.kernels import kernel_from_spec, kernel_to_spec
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
        >>> from ovkgp.estimators.storage.kernels import matrix_from_spec, matrix_to_spec
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
        >>> from ovkgp.estimators.storage.kernels import is_storable
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
