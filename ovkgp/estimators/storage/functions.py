"""Functions of inputs and tasks (`TaskFunction`), and the posterior of a `VectorTaskRegressor`, as JSON and tensors."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor, is_tensor

from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import fill, kernel_from_spec, kernel_state, kernel_to_spec
from ovkgp.estimators.storage.models import FEATURES, ORFF_OPTIONS, posterior_from_state, posterior_state
from ovkgp.estimators.storage.values import add_prefix, json_value, strip_prefix
from ovkgp.exceptions import InputError, ModelFileError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.mean_noise import Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior
from ovkgp.inference.posteriors.posterior import KernelProcess
from ovkgp.inference.tasks.factors import DerivativeTaskFactor, FeatureFactor, KernelFactor, LevelFactor
from ovkgp.inference.tasks.functional_ridge_grid import GridPosterior, GridSolver
from ovkgp.inference.tasks.problem import TaskFunction, zero_offset

_KINDS = (TaskFunction, KernelFactor, FeatureFactor, LevelFactor, DerivativeTaskFactor)
PARTS = {kind.__name__: kind for kind in _KINDS}  # classes that may be stored with all their attributes, by name
FUNCTIONS = {"zero_offset": zero_offset}  # functions that may be stored, by name


def storable_part(kind: type) -> type:
    """Register a class of factors or offsets in `PARTS`."""
    PARTS[kind.__name__] = kind
    return kind


def function_state(function: TaskFunction) -> tuple[dict, dict[str, Tensor]]:
    """Encode a `TaskFunction` as JSON and tensors."""
    return _encode("function_", function)


def function_from_state(entry: dict, tensors: dict[str, Tensor]) -> TaskFunction:
    """Decode a function of `function_state`."""
    return _decode(entry, tensors)


def _encode(name: str, value) -> tuple[object, dict[str, Tensor]]:
    if is_tensor(value):
        return {"kind": "tensor"}, {"": value.detach()}
    if isinstance(value, Kernel):
        spec, tensors = kernel_to_spec(value)
        return {"kind": "kernel", "spec": spec}, tensors
    if isinstance(value, ORFF):
        return _encode_features(value)
    if type(value) is PARTS.get(type(value).__name__):
        return _encode_part(value)
    if (known := getattr(value, "__name__", None)) in FUNCTIONS and value is FUNCTIONS[known]:
        return {"kind": "function", "name": known}, {}
    if value is None or isinstance(value, int | float | str):
        return json_value(name, value), {}
    raise InputError(
        f"{name} is a {type(value).__name__}, which a model file cannot hold. Pickle the estimator or fit without it."
    )


def _encode_part(part) -> tuple[dict, dict[str, Tensor]]:
    entries, tensors = {}, {}
    for name, value in vars(part).items():
        entries[name], found = _encode(name, value)
        tensors |= add_prefix(name, found)
    return {"kind": "part", "class": type(part).__name__, "attributes": entries}, tensors


def _encode_features(features: ORFF) -> tuple[dict, dict[str, Tensor]]:
    spec, _ = kernel_to_spec(features.kernel)
    options = {name: getattr(features, name) for name in ORFF_OPTIONS}
    map_spec = {
        "class": type(features).__name__,
        "options": options,
        "seed": features.seed,
        "block": features.block_index,
    }
    return {"kind": "features", "spec": spec, "map": map_spec}, kernel_state(features)


def _decode(entry, tensors: dict[str, Tensor]):
    if not isinstance(entry, dict):
        return entry
    return _DECODERS[entry["kind"]](entry, tensors)


def _decode_part(entry: dict, tensors: dict[str, Tensor]):
    if entry["class"] not in PARTS:
        raise ModelFileError(f"The file describes a {entry['class']!r}, which is not a supported class.")
    kind = PARTS[entry["class"]]
    part = kind.__new__(kind)  # the constructor would factorize again, and some classes are frozen
    for name, value in entry["attributes"].items():
        object.__setattr__(part, name, _decode(value, strip_prefix(name, tensors)))
    return part


def _decode_features(entry: dict, tensors: dict[str, Tensor]) -> ORFF:
    kernel = kernel_from_spec(entry["spec"], under("kernel", tensors))
    features = FEATURES[entry["map"]["class"]](entry["map"], kernel, tensors)
    fill(features, tensors)
    return features


_DECODERS = {
    "tensor": lambda entry, tensors: tensors[""],
    "kernel": lambda entry, tensors: kernel_from_spec(entry["spec"], tensors),
    "features": _decode_features,
    "part": _decode_part,
    "function": lambda entry, tensors: FUNCTIONS[entry["name"]],
}


GRID = "grid"


def task_posterior_state(posterior: ExactPosterior) -> tuple[dict, dict[str, Tensor]]:
    """Encode a posterior on pairs as JSON and tensors."""
    spec, values = kernel_to_spec(posterior.process.kernel)
    if isinstance(posterior, GridPosterior):
        about = {"kind": GRID}
        data = {"X": posterior.data.X, "Y": posterior.data.Y}
        own = {"output_noise": posterior.output_noise, "grid": posterior.grid}
        tensors = {**own, **prefixed(solver=posterior.solver.tensors(), data=data)}
    else:
        model = Model(posterior.process.kernel, posterior.mean, None)
        about, tensors = posterior_state(posterior, model)
    return {"kernel": spec, "posterior": about}, prefixed(kernel=values, posterior=tensors)


def task_posterior_from_state(entry: dict, tensors: dict[str, Tensor]) -> ExactPosterior:
    """Decode a posterior of `task_posterior_state`, without factorizing again."""
    kernel, values = kernel_from_spec(entry["kernel"], under("kernel", tensors)), under("posterior", tensors)
    gp = OperatorValuedGP(kernel, mean="zero", noise=1.0)
    gp.mean.set_num_dims(values["data.X"].shape[1])
    model = gp.frozen().model
    if entry["posterior"]["kind"] != GRID:
        return posterior_from_state(entry["posterior"], values, model)
    solver, data = GridSolver.from_tensors(under("solver", values)), Observations(**under("data", values))
    process = KernelProcess(model.kernel, data.num_outputs)
    return GridPosterior(process, solver, data, model.mean, values["output_noise"], values["grid"])
