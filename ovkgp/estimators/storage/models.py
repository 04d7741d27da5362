"""Models and posteriors as JSON and tensors: `OperatorValuedGP`, `VariationalGP`, and averages over hyperparameter draws.

A posterior is stored as the data or the statistics from which it was computed, and computed again; of an iterative solver the solution
is stored too.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import (
    blank_features,
    blank_likelihood,
    blank_noise,
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
from ovkgp.estimators.storage.values import count_numbers, decode, encode
from ovkgp.exceptions import ModelFileError, OptionError, OvkgpError
from ovkgp.inference import OperatorValuedGP, VariationalGP
from ovkgp.inference.algebra.dense import DenseSolver
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker import KroneckerSolver, ProportionalSolver
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.model.mean_noise import MEANS, Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import IndependentPosterior
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior, validate_draws
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import WeightPosterior
from ovkgp.inference.stacking.stack import StackPosterior
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.exact import (
    DenseStrategy,
    IterativeStrategy,
    KroneckerMissingStrategy,
    KroneckerStrategy,
)
from ovkgp.inference.strategies.features import MAX_LANDMARKS, FeatureStrategy, predictive_noise, sign_statistics
from ovkgp.inference.strategies.independent import output_model
from ovkgp.inference.tasks.mode_posterior import ModePosterior
from ovkgp.inference.variational.inducing import InducingPoints

KERNEL, UNSCALED = "kernel.", "unscaled"
"""Prefixes of the values of the kernel, and of the unscaled kernel of a ridge estimator."""
STACK_ATTRIBUTES = ("candidates", "states", "weights", "data", "correlation")  # from which a mixture is computed
MODE_ATTRIBUTES = ("data", "coefficients", "likelihood", "reason", "variance")  # that a mode is computed from
VARIATIONAL_OPTIONS = ("family", "rank", "learn_inducing")
STRATEGIES = {  # strategies that compute posteriors with the exact kernel again, by the class of their solver
    DenseSolver: ("dense", DenseStrategy),
    KroneckerSolver: ("eigen", partial(KroneckerStrategy, KroneckerSolver)),
    ProportionalSolver: ("kronecker", KroneckerStrategy),
    MissingSolver: ("kronecker_missing", KroneckerMissingStrategy),
    IterativeSolver: ("iterative", IterativeStrategy),
}


@dataclass(frozen=True)
class ModelBuilder:
    """Functions that make the model of a loaded estimator.

    `kernel(estimator, values, scale)` makes the kernel as `fit` does, of which only the shapes matter; `register` adds the
    priors; `keeps_unscaled_kernel` is set for ridge estimators.
    """

    kernel: Callable[[object, dict[str, Tensor], float], Kernel]
    register: Callable[[OperatorValuedGP, object], None] = lambda gp, estimator: None
    keeps_unscaled_kernel: bool = False


def encode_gp(estimator, builder: ModelBuilder, tensors: dict[str, Tensor]) -> dict:
    """Return the model of a fitted estimator as JSON, and add its parameters and buffers to `tensors`.

    Raises KernelTypeError if the kernel has a part that no file can describe and that is not among the options, and OptionError
    if the options no longer lead to this kernel.
    """
    gp = estimator.gp_
    if _has_kernel_objects(estimator):
        _check_same_kernel(estimator, builder)
    header = {"kernel": _description(gp.kernel, estimator), "mean": MEANS[gp.mean.degree + 1]}
    if isinstance(gp, VariationalGP):
        header |= {name: getattr(gp, name) for name in VARIATIONAL_OPTIONS}
        header |= {"likelihood": likelihood_to_spec(gp.likelihood), "thin": list(gp.features.thin)}
        header["fitted"] = encode("fitted", (gp.q_, gp._fitted_data), tensors)
    else:
        noise = gp.noise_model
        header["noise"] = {"kind": noise.kind, "is_trained": noise.is_trained}
        header |= {"features": features_to_spec(gp.features), "strategy": gp.strategy}
    again = _shared_names(gp)
    tensors |= prefixed(gp={name: tensor for name, tensor in kernel_state(gp).items() if name not in again})
    if _scale(estimator) != 1.0:
        header[UNSCALED] = _description(estimator._kernel, estimator)
        tensors |= prefixed(**{UNSCALED: kernel_state(estimator._kernel)})
    return header


def _scale(estimator) -> float:
    return getattr(estimator, "scale_", 1.0)


def _has_kernel_objects(estimator) -> bool:
    return any(isinstance(option, Kernel) for option in (estimator.kernel, estimator.base_kernel))


def _description(kernel: Kernel, estimator) -> dict | None:
    """Return the spec of a kernel; None if it has parts that only the options have."""
    return None if _has_kernel_objects(estimator) and not is_storable(kernel) else kernel_to_spec(kernel)[0]


def _check_same_kernel(estimator, builder: ModelBuilder) -> None:
    """Check that the kernel objects among the options are those of the fit."""
    values = kernel_state(estimator.gp_.kernel)
    try:
        load_kernel_state(builder.kernel(estimator, values, _scale(estimator)), values)
    except OvkgpError as error:
        raise OptionError(
            f"kernel or base_kernel was changed after fitting. Set it back or call fit again. ({error})"
        ) from error


def _shared_names(gp: OperatorValuedGP | VariationalGP) -> dict[str, str]:
    """Return names under which values of the kernel occur again, as a feature map shares its kernel with the model."""
    entries = gp.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in entries.items() if name.startswith(KERNEL)}
    others = {name: id(tensor) for name, tensor in entries.items() if not name.startswith(KERNEL)}
    return {name: first[key] for name, key in others.items() if key in first}


def restore_gp(estimator, header: dict, tensors: dict[str, Tensor], builder: ModelBuilder, *, describe: bool) -> None:
    """Set `gp_` of `encode_gp`, and `_kernel` of a ridge estimator; if not `describe`, kernels are made from the options."""
    values, limit = under("gp", tensors), count_numbers(tensors)

    def make_kernel(spec: dict | None, state: dict[str, Tensor], scale: float) -> Kernel:
        if spec is None or not describe:
            return load_kernel_state(builder.kernel(estimator, state, scale), state)
        return kernel_from_spec(spec, state)

    kernel = make_kernel(header["kernel"], under("kernel", values), _scale(estimator))
    if "likelihood" in header:
        gp = _blank_variational(header, values["features.points"], kernel, tensors)
    else:
        features = blank_features(header["features"], kernel, under("features", values), limit)
        noise = blank_noise(**header["noise"], num_outputs=check_size(estimator.n_outputs_, limit))
        gp = OperatorValuedGP(kernel, header["mean"], noise, features, header["strategy"])
    gp.mean.set_num_dims(check_size(estimator.n_features_in_, limit) - _num_unused_inputs(estimator))
    builder.register(gp, estimator)
    fill(gp, values | {name: values[first] for name, first in _shared_names(gp).items() if first in values})
    gp.fit_report_ = getattr(estimator, "fit_report_", None)
    estimator.gp_ = gp
    if builder.keeps_unscaled_kernel:
        is_scaled = UNSCALED in header
        state = under(UNSCALED, tensors)
        estimator._kernel = make_kernel(header[UNSCALED], state, 1.0) if is_scaled else deepcopy(gp.kernel)


def _num_unused_inputs(estimator) -> int:
    """Return the number of constant inputs that the model does not use."""
    return len(getattr(getattr(estimator, "scaling_", None), "unused_inputs", ()))


def _blank_variational(header: dict, points: Tensor, kernel: Kernel, tensors: dict[str, Tensor]) -> VariationalGP:
    options = {name: header[name] for name in VARIATIONAL_OPTIONS}
    likelihood = blank_likelihood(header["likelihood"])
    gp = VariationalGP(kernel, likelihood, inducing=points, mean=header["mean"], **options)
    gp.features = InducingPoints(gp.kernel, points, gp.learn_inducing)
    gp.features.thin = list(header["thin"])
    gp.q_, gp._fitted_data = decode(header["fitted"], tensors)
    return gp


def encode_posterior(name: str, posterior: Posterior, gp: OperatorValuedGP | VariationalGP, tensors: dict) -> dict:
    """Return the posterior of a model as JSON, and add what it is computed from to `tensors`."""
    if isinstance(posterior, StackPosterior):
        state = {key: encode(f"{name}.{key}", getattr(posterior, key), tensors) for key in STACK_ATTRIBUTES}
        return {"kind": "stack"} | state
    if isinstance(posterior, MixturePosterior):
        weights = encode(f"{name}.weights", posterior.weights, tensors)
        return _encode_mixture(name, posterior.parts, gp, tensors) | {"weights": weights}
    if isinstance(posterior, ModePosterior):
        _check_unchanged([(posterior.process.kernel, gp.kernel)], True)
        state = {key: encode(f"{name}.{key}", getattr(posterior, key), tensors) for key in MODE_ATTRIBUTES}
        return {"kind": "mode"} | state
    if isinstance(gp, VariationalGP):
        pairs = [(posterior.process.kernel, gp.kernel), (posterior.mean, gp.mean)]
        mine, yours = {}, {}
        encode("q", posterior.q, mine)
        encode("q", gp.q_, yours)
        _check_unchanged([*pairs, (posterior.likelihood, gp.likelihood)], _same(mine, yours))
        return {"kind": "variational"}
    return _encode_part(name, posterior, gp.model, tensors)


def _encode_part(name: str, posterior: Posterior, model: Model, tensors: dict[str, Tensor]) -> dict:
    if isinstance(posterior, IndependentPosterior):
        parts = enumerate(posterior.parts)
        return {
            "kind": "independent",
            "parts": [_encode_part(f"{name}.{a}", part, output_model(model, a), tensors) for a, part in parts],
        }
    pairs = [(posterior.process.kernel, model.kernel), (posterior.mean, model.mean)]
    if isinstance(posterior, WeightPosterior):
        _check_factorized(posterior.statistics is not None)
        noise = predictive_noise(model, posterior.statistics)
        _check_unchanged([*pairs, (posterior.feature_map, model.features)], torch.equal(posterior.output_noise, noise))
        statistics = encode(f"{name}.statistics", pack_statistics(posterior.statistics), tensors)
        return {"kind": "statistics", "statistics": statistics, "guarded": posterior.variance_floor is not None}
    solver = posterior.solver
    _check_factorized(type(solver) in STRATEGIES)
    _check_unchanged(pairs, torch.equal(posterior.output_noise, model.predictive_noise(posterior.data)))
    entry = {"kind": STRATEGIES[type(solver)][0], "data": encode(f"{name}.data", posterior.data, tensors)}
    if isinstance(solver, IterativeSolver):
        options = {key: getattr(solver, key) for key in ("tolerance", "max_iterations", "solution")}
        entry["options"] = encode(f"{name}.options", options, tensors)
    return entry


def decode_posterior(
    entry: dict, tensors: dict[str, Tensor], gp: OperatorValuedGP | VariationalGP
) -> Posterior | MixturePosterior:
    """Compute the posterior of `encode_posterior` again: one conditioning, or one per draw."""
    if entry["kind"] == "stack":
        with torch.no_grad():
            return StackPosterior.of_states(**{key: decode(entry[key], tensors) for key in STACK_ATTRIBUTES})
    if entry["kind"] == "mixture":
        return _decode_mixture(entry, tensors, gp)
    if entry["kind"] == "variational":
        return gp.posterior()
    if entry["kind"] == "mode":
        model, state = gp.frozen().model, {key: decode(entry[key], tensors) for key in MODE_ATTRIBUTES}
        process = KernelProcess(model.kernel, state["data"].num_outputs)
        return ModePosterior(process, model.mean, **state, features=model.features)
    with torch.no_grad():
        return _decode_part(entry, tensors, gp.frozen().model)


def _decode_part(entry: dict, tensors: dict[str, Tensor], model: Model) -> Posterior:
    kind = entry["kind"]
    if kind == "independent":
        parts = enumerate(entry["parts"])
        return IndependentPosterior([_decode_part(part, tensors, output_model(model, a)) for a, part in parts])
    if kind == "statistics":
        statistics = sign_statistics(model, unpack_statistics(decode(entry["statistics"], tensors)))
        landmarks = MAX_LANDMARKS if entry["guarded"] else 0
        return FeatureStrategy().condition_on_statistics(model, statistics, landmarks)
    strategies = dict(STRATEGIES.values())
    if kind not in strategies:
        raise ModelFileError(f"The file describes a posterior of kind {kind!r}, which this version does not know.")
    options = decode(entry["options"], tensors) if kind == "iterative" else {}
    return strategies[kind]().condition(model, decode(entry["data"], tensors), **options)


def _check_factorized(is_factorized: bool) -> None:
    if not is_factorized:
        raise OptionError(
            'Storing a posterior is not supported by matrix-free solvers, as it requires a factorized matrix. Fit with solver="auto" or solver="closed_form".'
        )


def _check_unchanged(pairs: list[tuple[torch.nn.Module, torch.nn.Module]], is_same: bool) -> None:
    """Check that the modules of the model were not changed after the posterior was computed."""
    if not (is_same and all(_same(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs)):
        raise OptionError("gp_ was modified after fitting and no longer matches posterior_. Call fit again.")


def _same(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> bool:
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


def pack_statistics(statistics: Statistics) -> Statistics:
    """Replace the symmetric Gram matrices by their lower triangles."""
    rows, columns = torch.tril_indices(*statistics.gram.shape[-2:])
    return replace(statistics, gram=statistics.gram[..., rows, columns], to_whitened=None)


def unpack_statistics(statistics: Statistics) -> Statistics:
    """Undo `pack_statistics`."""
    packed = statistics.gram
    size = (isqrt(8 * packed.shape[-1] + 1) - 1) // 2
    rows, columns = torch.tril_indices(size, size)
    gram = packed.new_empty(*packed.shape[:-1], size, size)
    gram[..., rows, columns] = gram[..., columns, rows] = packed
    return replace(statistics, gram=gram)


def statistics_of(posterior: WeightPosterior | IndependentPosterior) -> Statistics | OutputStatistics:
    """Return the statistics from which a posterior was computed."""
    if isinstance(posterior, IndependentPosterior):
        return OutputStatistics(tuple(part.statistics for part in posterior.parts))
    return posterior.statistics


CONDITION_OPTIONS = ("variance", "num_landmarks")


def _encode_mixture(name: str, drawn: ConditionedDraws, gp: OperatorValuedGP | VariationalGP, tensors: dict) -> dict:
    """Encode an average over hyperparameter draws of `gp`, whose other values must be those of the draws."""
    states = [kernel_state(model) for model in (drawn.gp, gp)]
    trained = {id(p) for key, p in gp.named_parameters() if key in drawn.raw}
    again = {key for key, p in gp.named_parameters(remove_duplicate=False) if id(p) in trained}
    mine, yours = ({key: tensor for key, tensor in state.items() if key not in again} for state in states)
    _check_unchanged([], _same(mine, yours))
    given = drawn.condition.keywords
    data, options = Observations(given["X"], given["Y"], given["noise"]), [given[key] for key in CONDITION_OPTIONS]
    state = {"raw": drawn.raw, "data": data, "options": options}
    return {"kind": "mixture"} | {key: encode(f"{name}.{key}", value, tensors) for key, value in state.items()}


def _decode_mixture(entry: dict, tensors: dict[str, Tensor], gp: OperatorValuedGP | VariationalGP) -> MixturePosterior:
    raw, data, options = (decode(entry[key], tensors) for key in ("raw", "data", "options"))
    raw = validate_draws(gp, {name: value.numpy() for name, value in raw.items()}, allow_missing=True)
    if not raw:
        raise ModelFileError("The file describes an average over hyperparameter draws but has no draws.")
    given = {"X": data.X, "Y": data.Y, "noise": data.noise, **dict(zip(CONDITION_OPTIONS, options, strict=True))}
    weights = decode(entry["weights"], tensors) if "weights" in entry else None  # files without them have equal weights
    return MixturePosterior(ConditionedDraws(gp, raw, partial(type(gp).condition, **given)), weights)
