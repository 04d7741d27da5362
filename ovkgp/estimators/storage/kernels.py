"""Kernels, output matrices, likelihoods and feature maps as JSON and tensors, for model files.

A spec names classes of `STORABLE` and scalar kernels with a record, with the options of their constructors; parameters and buffers
are tensors. Loading builds only these: no name in a file is imported or called. Priors are not stored; register them before training again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import gpytorch
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.priors import Prior
from gpytorch.utils.transforms import inv_sigmoid, inv_softplus
from scipy import sparse
from torch import Tensor
from torch.nn import Module

from ovkgp import kernels as ours
from ovkgp.estimators.storage.file import under
from ovkgp.exceptions import InputError, KernelTypeError, ModelFileError, OptionError, OvkgpError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, ManifoldFeatures, Nystrom
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.model.mean_noise import NOISE_KINDS
from ovkgp.kernels import OutputMatrix
from ovkgp.kernels.manifold.kernel import OperatorValuedManifoldKernel
from ovkgp.kernels.manifold.penalties import Penalty
from ovkgp.kernels.records import KernelRecord, registered_records
from ovkgp.kernels.warped import OperatorValuedWarpedKernel


@dataclass(frozen=True)
class Storable:
    """Class that may be stored: the options of its constructor, and a function to call instead of the class."""

    kind: type
    options: Callable[[Module], dict]
    make: Callable | None = None


def _attributes(*names: str) -> Callable[[Module], dict]:
    return lambda module: {name: getattr(module, name) for name in names}


def find_storable(name: str) -> Storable | None:
    """Return the entry of a class by its name, for a scalar kernel from its record."""
    if name in STORABLE:
        return STORABLE[name]
    for record in reversed(registered_records()):  # a class that is defined again replaces the first
        if record.kernel_class.__name__ == name:
            return Storable(record.kernel_class, partial(_scalar_options, record))
    return None


def _scalar_options(record: KernelRecord, kernel: Kernel) -> dict:
    common = {"ard_num_dims": kernel.ard_num_dims, "batch_shape": kernel._batch_shape}
    return {**common, **_columns(kernel), **_attributes(*record.options)(kernel)}


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
    names = ("base_kernel", "X", "penalty", "combination")
    return {**_attributes(*names)(kernel), "learn_strength": is_learned}


def _entries(penalty: Penalty) -> dict:
    return {"size": penalty.size, "num_entries": penalty.values.numel() if penalty.is_sparse else None}


def blank_penalty(size: int, num_entries: int | None = None) -> Penalty:
    """Make a penalty (size, size) with arbitrary values, dense or with `num_entries` stored entries, whose values are filled in later."""
    penalty, is_dense = Penalty(sparse.eye_array(size, format="csr")), num_entries is None
    penalty.values = torch.zeros([size, size] if is_dense else [num_entries], dtype=torch.float64)
    penalty.indices = None if is_dense else torch.zeros(2, num_entries, dtype=torch.int64)
    return penalty


_TABLE = (
    Storable(ScaleKernel, _scaled),
    Storable(AdditiveKernel, _attributes("kernels"), lambda kernels: AdditiveKernel(*kernels)),
    Storable(ProductKernel, _attributes("kernels"), lambda kernels: ProductKernel(*kernels)),
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
"""Operator-valued and composite kernels, output matrices, penalties, groups and transforms by class name."""

CONSTRAINTS = {kind.__name__: kind for kind in (Positive, GreaterThan, LessThan, Interval)}
"""Constraints by class name."""
TRANSFORMS = {  # transforms of constraints and their inverses by name
    "softplus": (torch.nn.Softplus(), inv_softplus),
    "exp": (torch.exp, torch.log),
    "sigmoid": (torch.sigmoid, inv_sigmoid),
    "none": (None, None),
}

MAX_SMALL_SIZE = 1000  # sizes up to this are never checked
SIZES = {"ard_num_dims", "num_mixtures", "num_channels", "num_dims", "num_outputs", "num_classes", "rank", "size"}
SIZES |= {"num_entries", "batch_shape"}
"""Options that determine the sizes of arrays."""
SQUARE = ("FullMatrix", "EmpiricalMatrix")  # output matrices of which p outputs store p (p + 1)/2 numbers or more


def check_size(size: int, limit: int = 0) -> int:
    """Check that a size in a header is at most `limit`, a number of stored numbers, before arrays are made."""
    if not size <= max(limit, MAX_SMALL_SIZE):
        raise ModelFileError(f"The file describes arrays of size {size}, larger than the file.")
    return size


def kernel_state(kernel: Kernel) -> dict[str, Tensor]:
    """Copy the parameters and buffers of any module by name, without those of its priors."""
    priors = tuple(
        f"{name}." for name, module in kernel.named_modules(remove_duplicate=False) if isinstance(module, Prior)
    )
    state = {name: tensor for name, tensor in kernel.state_dict().items() if not name.startswith(priors)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def load_kernel_state(kernel: Kernel, tensors: dict[str, Tensor]) -> Kernel:
    """Return a copy of `kernel`, made with the same options as the stored one, with the stored values and their dtype."""
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"kernel must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
    copy = deepcopy(kernel)
    fill(copy, tensors)
    return copy


def owner_of(kernel: Kernel, name: str) -> tuple[Module, str]:
    """Return the module that holds an entry of the state, and the last part of its name."""
    path, _, leaf = name.rpartition(".")
    return kernel.get_submodule(path), leaf


def fill(kernel: Kernel, tensors: dict[str, Tensor]) -> None:
    """Set all parameters and buffers of a module in place."""
    _check_match(kernel_state(kernel), tensors)
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


def _check_match(own: dict[str, Tensor], stored: dict[str, Tensor]) -> None:
    faults = [f"{name} is not stored" for name in own.keys() - stored.keys()]
    faults += [f"{name} is stored, but not part of the kernel" for name in stored.keys() - own.keys()]
    for name in own.keys() & stored.keys():
        mine, theirs = own[name], stored[name]
        if mine.shape != theirs.shape or mine.is_floating_point() != theirs.is_floating_point():
            faults.append(f"{name} is {_described(mine)} in the kernel and {_described(theirs)} in the file")
    if faults:
        raise OptionError(
            f"kernel does not match the stored values: {'; '.join(sorted(faults)[:5])}. Create it with the same options."
        )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def kernel_to_spec(part: Kernel | OutputMatrix) -> tuple[dict, dict[str, Tensor]]:
    """Return a kernel or an output matrix as a JSON dictionary, and its parameters and buffers by name.

    Classes, options, constraints, batch shapes, dtypes, tied and frozen parameters are kept; priors are not. Raises
    KernelTypeError if a part of it is not of a class that `find_storable` knows; subclasses do not count.
    """
    if not isinstance(part, Kernel | OutputMatrix):
        raise KernelTypeError(f"kernel must be a gpytorch.kernels.Kernel, got {type(part).__name__}.")
    spec = {
        "kernel": _encode(part),
        "constraints": {name: _constraint_to_spec(name, owner, c) for name, owner, c in _constraints(part)},
        "batch_shapes": _batch_shapes(part),
        "tied": _tied(part),
        "frozen": [name for name, parameter in part.named_parameters() if not parameter.requires_grad],
    }
    tensors = kernel_state(part)
    try:
        kernel_from_spec(spec, tensors, type(part))
    except OvkgpError as error:  # e.g. an attribute was changed after construction
        raise KernelTypeError(f"{_cannot_store(part)} It was changed after construction: {error}") from error
    return spec, tensors


def is_storable(kernel: Kernel) -> bool:
    """Whether `kernel_to_spec` can describe this kernel."""
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
    entry = find_storable(type(value).__name__)
    if entry is None or type(value) is not entry.kind:
        raise KernelTypeError(_cannot_store(value))
    options = entry.options(value)
    return {"class": type(value).__name__, "options": {k: _encode(v) for k, v in options.items() if v is not None}}


def _cannot_store(part) -> str:
    return f"{type(part).__name__} cannot be stored in a model file, which supports classes of ovkgp and GPyTorch and registered scalar kernels. Save the model and pass the kernel to ovkgp.load(path, kernel=...)."


def _constraint_to_spec(name: str, owner: Module, constraint: Interval) -> dict:
    kind, pair = type(constraint).__name__, (constraint._transform, constraint._inv_transform)
    transform = next((key for key, known in TRANSFORMS.items() if _same_transform(pair, known)), None)
    if CONSTRAINTS.get(kind) is not type(constraint) or transform is None:
        raise KernelTypeError(f"{_cannot_store(owner)} Its {name} has a custom constraint: {constraint}.")
    return {"class": kind, "transform": transform}


def _same_transform(given: tuple, known: tuple) -> bool:
    if isinstance(given[0], torch.nn.Softplus) and isinstance(known[0], torch.nn.Softplus):  # copies differ in identity
        return given[1] is known[1] and (given[0].beta, given[0].threshold) == (known[0].beta, known[0].threshold)
    return given[0] is known[0] and (given[1] is known[1] or given[0] is None)


def _constraints(kernel: Kernel) -> list[tuple[str, Module, Interval]]:
    """Return (name, owner, constraint) of every constraint in a kernel."""
    owners = [entry for entry in kernel.named_modules(remove_duplicate=False) if isinstance(entry[1], gpytorch.Module)]
    return [(f"{path}.{n}".lstrip("."), module, c) for path, module in owners for n, c in module._constraints.items()]


def _batch_shapes(kernel: Kernel) -> dict[str, list[int]]:
    parts = [
        entry for entry in kernel.named_modules(remove_duplicate=False) if isinstance(entry[1], Kernel | OutputMatrix)
    ]
    return {name: list(module._batch_shape) for name, module in parts if len(module._batch_shape)}


def _tied(kernel: Kernel) -> list[list[str]]:
    """Return pairs of names of the same parameter."""
    first = {}
    names = [(name, first.setdefault(id(p), name)) for name, p in kernel.named_parameters(remove_duplicate=False)]
    return [[name, same] for name, same in names if name != same]


def kernel_from_spec(spec: dict, tensors: dict[str, Tensor], kind: type[Module] = Kernel) -> Kernel | OutputMatrix:
    """Build the kernel, or the output matrix, of a spec of `kernel_to_spec`, equal to the bit."""
    try:
        part = _decode(spec["kernel"], sum(tensor.numel() for tensor in tensors.values()))
        if not isinstance(part, kind):
            expected = "a kernel" if issubclass(kind, Kernel) else "an output matrix"
            raise KernelTypeError(f"The file describes a {type(part).__name__}, expected {expected}.")
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
    except (KernelTypeError, ModelFileError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"The stored kernel cannot be built: {error}") from error
    return part


def _decode(value, limit: int):
    if isinstance(value, list):
        return [_decode(item, limit) for item in value]
    if not isinstance(value, dict):
        return value
    if "shape" in value:
        check_size(math.prod(value["shape"]), limit)
        return torch.ones(value["shape"])
    entry = find_storable(value["class"])
    if entry is None:
        raise KernelTypeError(f"The file describes a {value['class']!r}, which is not a supported class.")
    options = {name: _decode(option, limit) for name, option in value["options"].items()}
    for size in (options[name] for name in SIZES & options.keys()):
        check_size(math.prod(size) if isinstance(size, list) else size, limit)
    if value["class"] in SQUARE:
        check_size((len(options["Y"][0]) if "Y" in options else options["num_outputs"]) ** 2, 2 * limit)
    if "batch_shape" in options:
        options["batch_shape"] = torch.Size(options["batch_shape"])
    return (entry.make or entry.kind)(**options)


def _set_constraint(kernel: Kernel, name: str, spec: dict, tensors: dict[str, Tensor]) -> None:
    """Register a constraint of the stored kind and shape; its bounds are buffers, which are filled later."""
    owner, leaf = owner_of(kernel, name)
    kind = CONSTRAINTS[spec["class"]]
    lower, upper = (torch.full_like(tensors[f"{name}.{end}_bound"], v) for end, v in (("lower", 0.0), ("upper", 1.0)))
    bounds = {Positive: (), GreaterThan: (lower,), LessThan: (upper,), Interval: (lower, upper)}[kind]
    transform, inverse = TRANSFORMS[spec["transform"]]
    owner.register_constraint(leaf.removesuffix("_constraint"), kind(*bounds, transform, inverse))


LIKELIHOOD_PARAMETERS = ("scale", "df", "dispersion")  # parameters of likelihoods, each trained or fixed
LIKELIHOOD_OPTIONS = ("tau", "kappa", "epsilon", "nu", "link")  # options of likelihoods that are not trained
ORFF_OPTIONS = ("num_frequencies", "num_dims", "sampler", "bounded", "learn_frequencies")
BLOCKED_OPTIONS = ("num_frequencies", "block_size", "num_dims", "sampler", "bounded")


def likelihood_to_spec(likelihood: Likelihood) -> dict:
    """Return the arguments of `blank_likelihood`."""
    if type(likelihood) is PerOutput:
        return {"members": [likelihood_to_spec(one) for one in likelihood.likelihoods]}
    if type(likelihood) is not LIKELIHOODS.get(likelihood.name):
        raise InputError(
            f"A model file cannot hold a {type(likelihood).__name__}. Use a likelihood of ovkgp.inference.likelihoods or pickle the model."
        )
    spec = {"name": likelihood.name, "num_outputs": likelihood.num_outputs}
    if isinstance(likelihood, Gaussian):
        noise = likelihood.noise_model
        return {**spec, "noise": {"kind": noise.kind, "is_trained": noise.is_trained}}
    entries = {**likelihood._parameters, **likelihood._buffers}
    known = [name for name in LIKELIHOOD_PARAMETERS if entries.keys() & {f"raw_{name}", f"fixed_{name}"}]
    trained = {name: f"raw_{name}" in entries for name in known}
    plain = {name: getattr(likelihood, name) for name in LIKELIHOOD_OPTIONS if hasattr(likelihood, name)}
    return {**spec, **({"trained": trained} if trained else {}), **({"options": plain} if plain else {})}


def blank_likelihood(spec: dict) -> Likelihood:
    """Make a likelihood of a description, with arbitrary values."""
    if "members" in spec:
        return PerOutput([blank_likelihood(one) for one in spec["members"]]).double()
    if spec["name"] not in LIKELIHOODS:
        raise ModelFileError(f"The file describes a likelihood {spec['name']!r}, which this version does not know.")
    options, num_outputs = dict(spec.get("options", {})), check_size(spec["num_outputs"])
    if "noise" in spec:
        options["noise"] = blank_noise(**spec["noise"], num_outputs=num_outputs)
    for name, is_trained in spec.get("trained", {}).items():
        options[name] = None if is_trained else 1.0
    return LIKELIHOODS[spec["name"]](num_outputs, **options).double()


def blank_noise(kind: str, is_trained: bool, num_outputs: int) -> str | Tensor:
    """Return the argument that makes a noise of this kind, with arbitrary values."""
    sizes = [num_outputs] * NOISE_KINDS.index(kind)
    return kind if is_trained else torch.eye(num_outputs) if len(sizes) == 2 else torch.ones(sizes)


def features_to_spec(features: FeatureMap | None) -> dict | None:
    """Return the first argument of `blank_features`."""
    if features is None:
        return None
    spec = {"class": type(features).__name__}
    if isinstance(features, ManifoldFeatures):
        return {**spec, "features": features_to_spec(features.features)}
    if not isinstance(features, ORFF):
        return spec
    is_blocked = isinstance(features, BlockedORFF)
    names, more = (BLOCKED_OPTIONS, "_noise_dtype") if is_blocked else (ORFF_OPTIONS, "block_index")
    options, state = {name: getattr(features, name) for name in names}, getattr(features, more)
    return {**spec, "options": options, "seed": features.seed, "state": str(state) if is_blocked else state}


def blank_features(spec: dict | None, kernel: Kernel, tensors: dict[str, Tensor], limit: int) -> FeatureMap | None:
    """Make a feature map of a description, with arbitrary values, whose frequencies are at most `limit` numbers."""
    if spec is None:
        return None
    kind, options = spec["class"], spec.get("options", {})
    check_size(options.get("num_frequencies", 0) * (options.get("num_dims") or 1), limit)
    if kind == "ManifoldFeatures":
        base = blank_features(spec["features"], kernel.base_kernel, under("features", tensors), limit)
        return ManifoldFeatures(base, kernel)
    if kind == "Nystrom":
        return Nystrom(kernel, tensors["landmarks"])
    if kind == "BlockedORFF":
        features = BlockedORFF(kernel, **options, random_state=spec["seed"])
        features._noise_dtype = {str(dtype): dtype for dtype in (torch.float32, torch.float64)}[spec["state"]]
        return features
    if kind == "ORFF":
        features = ORFF(kernel, **options, random_state=spec["seed"])
        features.block_index = spec["state"]
        return features
    raise ModelFileError(f"The file describes features of class {kind!r}, which this version does not know.")
