"""The posterior of a `VectorTaskRegressor` in a model file, with the kernel and the noise that it was made from."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor, is_tensor

from ovkgp.estimators.common.task_options import InterceptFactor
from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import fill, kernel_from_spec, kernel_state, kernel_to_spec
from ovkgp.estimators.storage.models import FEATURES, ORFF_OPTIONS, posterior_from_state, posterior_state
from ovkgp.estimators.storage.values import placed, plain, there
from ovkgp.estimators.tasks.vector_tasks import VectorTaskRegressor
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

_KINDS = (TaskFunction, KernelFactor, FeatureFactor, LevelFactor, DerivativeTaskFactor, InterceptFactor)
PARTS = {kind.__name__: kind for kind in _KINDS}
"""By name, the classes that may be stored, with all their attributes."""
FUNCTIONS = {"zero_offset": zero_offset}
"""By name, the plain functions that may be stored."""


def storable_part(kind: type) -> type:
    """Enter a class of factors or offsets in `PARTS`; its attributes must be of the kinds named above.

    Example:
        >>> from ovkgp.estimators.storage.functions import PARTS
        >>> "KernelFactor" in PARTS
        True
    """
    PARTS[kind.__name__] = kind
    return kind


def function_state(function: TaskFunction) -> tuple[dict, dict[str, Tensor]]:
    """A `TaskFunction` as what JSON can hold, and tensors.

    Raises:
        InputError: a part of it is of a class of one's own.
        KernelTypeError: a kernel is.

    Cost: one copy of the tensors.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.common.task_options import input_factor, task_factor
        >>> from ovkgp.estimators.storage.functions import function_from_state, function_state
        >>> from ovkgp.inference.tasks.problem import TaskFunction
        >>> X, tasks = torch.randn(6, 2).double(), torch.linspace(0, 1, 4).double()
        >>> function = TaskFunction(input_factor(X), task_factor(tasks), torch.ones(6, 4).double())
        >>> torch.equal(function_from_state(*function_state(function))(X, tasks), function(X, tasks))
        True
    """
    return _encode("function_", function)


def function_from_state(entry: dict, tensors: dict[str, Tensor]) -> TaskFunction:
    """The function that `function_state` described.

    Raises:
        ModelFileError: the file names a class that is not in `PARTS`.
    """
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
        return plain(name, value), {}
    raise InputError(
        f"{name} is a {type(value).__name__}, which a model file cannot hold: pickle the estimator, or fit without it."
    )


def _encode_part(part) -> tuple[dict, dict[str, Tensor]]:
    entries, tensors = {}, {}
    for name, value in vars(part).items():
        entries[name], found = _encode(name, value)
        tensors |= placed(name, found)
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
        raise ModelFileError(f"the file describes a {entry['class']!r}, which is not among the classes it may name.")
    kind = PARTS[entry["class"]]
    part = kind.__new__(kind)  # its constructor would factorise again, and some are frozen
    for name, value in entry["attributes"].items():
        object.__setattr__(part, name, _decode(value, there(name, tensors)))
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
    """A posterior on pairs as what JSON can hold, and tensors. Nothing is computed."""
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
    """The posterior that `task_posterior_state` described. Nothing is factorised again."""
    kernel, values = kernel_from_spec(entry["kernel"], under("kernel", tensors)), under("posterior", tensors)
    gp = OperatorValuedGP(kernel, mean="zero", noise=1.0)
    gp.mean.see(values["data.X"].shape[1])
    model = gp.frozen().model
    if entry["posterior"]["kind"] != GRID:
        return posterior_from_state(entry["posterior"], values, model)
    solver, data = GridSolver.from_tensors(under("solver", values)), Observations(**under("data", values))
    process = KernelProcess(model.kernel, data.num_outputs)
    return GridPosterior(process, solver, data, model.mean, values["output_noise"], values["grid"])


def put_gp(estimator: VectorTaskRegressor) -> None:
    """`gp_` of a loaded estimator, from its posterior."""
    noise = estimator.noise_ * estimator.scale_
    estimator.gp_ = OperatorValuedGP(estimator.posterior_.process.kernel, mean="zero", noise=noise)
    estimator.gp_.requires_grad_(False)
    estimator.gp_.fit_report_ = estimator.fit_report_
