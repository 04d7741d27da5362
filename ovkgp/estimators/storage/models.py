"""Models and posteriors as JSON and tensors: likelihoods, `OperatorValuedGP`, `VariationalGP`, and averages over hyperparameter draws.

Posteriors are stored factorized. Averages over draws with the exact kernel, and variational ones, are computed again from the data
and the draws, so that predictions are equal up to rounding (1e-12).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import (
    fill,
    is_storable,
    kernel_from_spec,
    kernel_state,
    kernel_to_spec,
    load_kernel_state,
)
from ovkgp.exceptions import InputError, ModelFileError, OptionError, OvkgpError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, ManifoldFeatures, Nystrom
from ovkgp.inference import OperatorValuedGP, VariationalGP
from ovkgp.inference.algebra.dense import DenseSolver
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker import KroneckerSolver, ProportionalSolver
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.model.mean_noise import MEANS, NOISE_KINDS, Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import Landmarks
from ovkgp.inference.posteriors.exact import ExactPosterior, IndependentPosterior, KroneckerPosterior
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior, validate_draws
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor, WeightPosterior
from ovkgp.inference.statistics.weight_space import WeightSystem
from ovkgp.inference.strategies.independent import output_model
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.posterior import VariationalPosterior
from ovkgp.kernels import ManifoldKernel

LIKELIHOOD_PARAMETERS = ("scale", "df", "dispersion")  # parameters of likelihoods, each trained or fixed
LIKELIHOOD_OPTIONS = ("tau", "kappa", "link")  # options of likelihoods that are not trained


def likelihood_state(likelihood: Likelihood) -> tuple[dict, dict[str, Tensor]]:
    """Encode a likelihood as JSON and tensors."""
    return likelihood_to_spec(likelihood), kernel_state(likelihood)


def likelihood_from_state(spec: dict, tensors: dict[str, Tensor]) -> Likelihood:
    """Decode a likelihood of `likelihood_state`."""
    likelihood = blank_likelihood(spec)
    fill(likelihood, tensors)
    return likelihood


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
    trained = {
        name: f"raw_{name}" in entries
        for name in LIKELIHOOD_PARAMETERS
        if f"raw_{name}" in entries or f"fixed_{name}" in entries
    }
    plain = {name: getattr(likelihood, name) for name in LIKELIHOOD_OPTIONS if hasattr(likelihood, name)}
    return {**spec, **({"trained": trained} if trained else {}), **({"options": plain} if plain else {})}


def blank_likelihood(spec: dict) -> Likelihood:
    """Make a likelihood of a description, with arbitrary values."""
    if "members" in spec:
        return PerOutput([blank_likelihood(one) for one in spec["members"]]).double()
    if spec["name"] not in LIKELIHOODS:
        raise ModelFileError(f"The file describes a likelihood {spec['name']!r}, which this version does not know.")
    options = dict(spec.get("options", {}))
    if "noise" in spec:
        options["noise"] = blank_noise(**spec["noise"], num_outputs=spec["num_outputs"])
    for name, is_trained in spec.get("trained", {}).items():
        options[name] = None if is_trained else 1.0
    return LIKELIHOODS[spec["name"]](spec["num_outputs"], **options).double()


def blank_noise(kind: str, is_trained: bool, num_outputs: int) -> str | Tensor:
    """Return the argument that makes a noise of this kind, with arbitrary values."""
    sizes = [num_outputs] * NOISE_KINDS.index(kind)
    return kind if is_trained else torch.eye(num_outputs) if len(sizes) == 2 else torch.ones(sizes)


VARIATIONAL, MIXTURE = "variational", "mixture"  # kinds of posteriors that are not stored as they are
OPTIONS = ("family", "rank", "learn_inducing")
WEIGHTS, SEEN = "weights", "observed"  # where the tensors of q are, and those that a posterior needs of the data


def variational_state(gp: VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """Encode what a model with inducing points has besides kernel, mean and parameters."""
    landmarks, noise, elbo = gp._fitted_data
    header = {name: getattr(gp, name) for name in OPTIONS}
    header |= {"likelihood": likelihood_to_spec(gp.likelihood), "thin": gp.features.thin}
    header |= {"elbo": elbo, "limit": landmarks.limit}
    observed = {name: getattr(landmarks, name) for name in ("X", "observed", "priorities")}
    observed |= {} if noise is None else {"noise": noise}
    return header, prefixed(**{WEIGHTS: gp.q_.tensors(), SEEN: observed})


def blank_variational(header: dict, tensors: dict[str, Tensor], kernel: Kernel, mean: str) -> VariationalGP:
    """Make a model of `variational_state`; its parameters are filled in later."""
    points, options = tensors["features.points"], {name: header[name] for name in OPTIONS}
    gp = VariationalGP(kernel, blank_likelihood(header["likelihood"]), inducing=points, mean=mean, **options)
    gp.features = InducingPoints(gp.kernel, points, gp.learn_inducing)
    gp.features.thin = list(header["thin"])
    gp.q_ = WeightGaussian.from_tensors(under(WEIGHTS, tensors))
    observed = under(SEEN, tensors)
    landmarks = Landmarks(*(observed[name] for name in ("X", "observed", "priorities")), header["limit"])
    gp._fitted_data = landmarks, observed.get("noise"), header["elbo"]
    return gp


def is_parameter(name: str) -> bool:
    """Whether a tensor is a parameter or buffer of the model, not one of `variational_state`."""
    return not name.startswith((f"{WEIGHTS}.", f"{SEEN}."))


def check_same_model(posterior: VariationalPosterior, gp: VariationalGP) -> None:
    """Check that a model was not changed after its posterior was computed."""
    pairs = [(posterior.process.kernel, gp.kernel), (posterior.mean, gp.mean), (posterior.likelihood, gp.likelihood)]
    states = [(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs]
    states.append((posterior.q.tensors(), gp.q_.tensors()))
    if not all(
        mine.keys() == yours.keys() and all(map(torch.equal, mine.values(), yours.values())) for mine, yours in states
    ):
        raise OptionError("gp_ was modified after fitting and no longer matches posterior_. Call fit again.")


ORFF_OPTIONS = ("num_frequencies", "num_dims", "sampler", "bounded", "learn_frequencies")
BLOCKED_OPTIONS = ("num_frequencies", "block_size", "num_dims", "sampler", "bounded")
KERNEL, UNSCALED = "kernel.", "unscaled"
"""Prefixes of the values of the kernel, and of the unscaled kernel of a ridge estimator."""


@dataclass(frozen=True)
class ModelBuilder:
    """Functions that make the model of a loaded estimator.

    `kernel(estimator, values, scale)` makes the kernel as `fit` does, of which only the shapes matter; `register` adds the
    priors; `keeps_unscaled_kernel` is set for ridge estimators.
    """

    kernel: Callable[[object, dict[str, Tensor], float], Kernel]
    register: Callable[[OperatorValuedGP, object], None] = lambda gp, estimator: None
    keeps_unscaled_kernel: bool = False


def gp_state(estimator, builder: ModelBuilder) -> tuple[dict, dict[str, Tensor]]:
    """Encode the model of a fitted estimator: JSON, and parameters and buffers by name.

    Raises KernelTypeError if the kernel has a part that no file can describe and that is not among the options, and OptionError
    if the options no longer lead to this kernel.
    """
    gp = estimator.gp_
    if _has_kernel_objects(estimator):
        _check_same_kernel(estimator, builder)
    header = {"kernel": _description(gp.kernel, estimator), "mean": MEANS[gp.mean.degree + 1]}
    own, more = variational_state(gp) if isinstance(gp, VariationalGP) else (None, {})
    header |= _exact_header(gp) if own is None else {VARIATIONAL: own}
    again = _shared_names(gp)
    tensors = {name: tensor for name, tensor in kernel_state(gp).items() if name not in again} | more
    if _scale(estimator) != 1.0:
        header[UNSCALED] = _description(estimator._kernel, estimator)
        tensors |= prefixed(**{UNSCALED: kernel_state(estimator._kernel)})
    return header, tensors


def _exact_header(gp: OperatorValuedGP) -> dict:
    noise = gp.noise_model
    return {
        "noise": {"kind": noise.kind, "is_trained": noise.is_trained},
        "features": _features_spec(gp.features),
        "strategy": gp.strategy,
    }


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


def gp_from_state(
    header: dict, tensors: dict[str, Tensor], estimator, builder: ModelBuilder, *, describe_kernel: bool
) -> OperatorValuedGP | VariationalGP:
    """Decode the model of `gp_state`; if not `describe_kernel`, its kernel is made from the options of the estimator."""
    values = under("kernel", tensors)
    spec = header["kernel"] if describe_kernel else None
    kernel = _kernel(spec, values, lambda: builder.kernel(estimator, values, _scale(estimator)))
    if VARIATIONAL in header:
        gp = blank_variational(header[VARIATIONAL], tensors, kernel, header["mean"])
        tensors = {name: tensor for name, tensor in tensors.items() if is_parameter(name)}
    else:
        features = _features(header["features"], kernel, under("features", tensors))
        noise = blank_noise(**header["noise"], num_outputs=estimator.n_outputs_)
        gp = OperatorValuedGP(kernel, header["mean"], noise, features, header["strategy"])
    gp.mean.set_num_dims(estimator.n_features_in_)
    builder.register(gp, estimator)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{UNSCALED}.")}
    again = {name: own[first] for name, first in _shared_names(gp).items() if first in own}
    fill(gp, own | again)
    return gp


def unscaled_from_state(
    header: dict, tensors: dict[str, Tensor], estimator, builder: ModelBuilder, *, describe_kernel: bool
) -> Kernel:
    """Decode the kernel of a ridge estimator before it was scaled; arguments as for `gp_from_state`."""
    if UNSCALED not in header:
        return deepcopy(estimator.gp_.kernel)
    values, spec = under(UNSCALED, tensors), header[UNSCALED] if describe_kernel else None
    return _kernel(spec, values, lambda: builder.kernel(estimator, values, 1.0))


def _kernel(spec: dict | None, values: dict[str, Tensor], make: Callable[[], Kernel]) -> Kernel:
    return load_kernel_state(make(), values) if spec is None else kernel_from_spec(spec, values)


def _features_spec(features: FeatureMap | None) -> dict | None:
    if features is None:
        return None
    spec = {"class": type(features).__name__}
    if isinstance(features, BlockedORFF):
        born = str(features._noise_dtype).removeprefix("torch.")
        return {**spec, "options": _options(features, BLOCKED_OPTIONS), "seed": features.seed, "born": born}
    if isinstance(features, ORFF):
        block = features.block_index
        return {**spec, "options": _options(features, ORFF_OPTIONS), "seed": features.seed, "block": block}
    return {**spec, "features": _features_spec(features.features)} if isinstance(features, ManifoldFeatures) else spec


def _options(features: ORFF, names: tuple[str, ...]) -> dict:
    return {name: getattr(features, name) for name in names}


def _features(spec: dict | None, kernel: Kernel, tensors: dict[str, Tensor]) -> FeatureMap | None:
    if spec is None:
        return None
    if spec["class"] not in FEATURES:
        raise ModelFileError(
            f"The file describes features of class {spec['class']!r}, which this version does not know."
        )
    return FEATURES[spec["class"]](spec, kernel, tensors)


def _orff(spec: dict, kernel: Kernel, tensors: dict[str, Tensor]) -> ORFF:
    features = ORFF(kernel, **spec["options"], random_state=spec["seed"])
    features.block_index = spec["block"]
    return features


def _blocked(spec: dict, kernel: Kernel, tensors: dict[str, Tensor]) -> BlockedORFF:
    features = BlockedORFF(kernel, **spec["options"], random_state=spec["seed"])
    features._noise_dtype = {"float32": torch.float32, "float64": torch.float64}[spec["born"]]
    return features


def _on_manifold(spec: dict, kernel: ManifoldKernel, tensors: dict[str, Tensor]) -> ManifoldFeatures:
    return ManifoldFeatures(_features(spec["features"], kernel.base_kernel, under("features", tensors)), kernel)


FEATURES = {  # functions that make feature maps, by class name
    "ORFF": _orff,
    "BlockedORFF": _blocked,
    "ManifoldFeatures": _on_manifold,
    "Nystrom": lambda spec, kernel, tensors: Nystrom(kernel, tensors["landmarks"]),
}


SOLVERS = {  # posteriors with the exact kernel and their solvers, by name
    "dense": (ExactPosterior, DenseSolver),
    "kronecker": (KroneckerPosterior, KroneckerSolver),
    "common": (KroneckerPosterior, ProportionalSolver),
    "iterative": (ExactPosterior, IterativeSolver),
}

DATA = ("X", "Y", "noise")


def posterior_state(posterior: Posterior, model: Model) -> tuple[dict, dict[str, Tensor]]:
    """Encode a posterior of `model`, which must not have changed since; nothing is computed."""
    if isinstance(posterior, IndependentPosterior):
        parts = [posterior_state(part, output_model(model, a)) for a, part in enumerate(posterior.parts)]
        groups = {str(a): tensors for a, (_, tensors) in enumerate(parts)}
        return {"kind": "independent", "parts": [header for header, _ in parts]}, prefixed(**groups)
    _check_unchanged(posterior, model)
    noise = {"output_noise": posterior.output_noise}
    if isinstance(posterior, WeightPosterior):
        guard = {} if posterior.variance_floor is None else posterior.variance_floor.tensors()
        header = {"kind": "weights", "num_dims": posterior.num_dims, "guarded": posterior.variance_floor is not None}
        return header, {**noise, **prefixed(system=posterior.system.tensors(), guard=guard)}
    solver = posterior.solver
    kind = next(kind for kind, (_, known) in SOLVERS.items() if isinstance(solver, known))
    counted = {"num_iterations": solver.num_iterations} if kind == "iterative" else {}
    data = {name: value for name in DATA if (value := getattr(posterior.data, name)) is not None}
    return {"kind": kind, **counted}, {**noise, **prefixed(solver=solver.tensors(), data=data)}


def posterior_from_state(header: dict, tensors: dict[str, Tensor], model: Model) -> Posterior:
    """Decode a posterior of `posterior_state` for a frozen model with the same values; nothing is factorized."""
    kind = header["kind"]
    if kind == "independent":
        return IndependentPosterior(
            [
                posterior_from_state(h, under(str(a), tensors), output_model(model, a))
                for a, h in enumerate(header["parts"])
            ]
        )
    noise = tensors["output_noise"]
    process = KernelProcess(model.kernel, len(noise))
    if kind == "weights":
        system = WeightSystem.from_tensors(under("system", tensors))
        guard = VarianceFloor.from_tensors(model.kernel, under("guard", tensors)) if header["guarded"] else None
        return WeightPosterior(process, model.features, system, model.mean, noise, header["num_dims"], guard)
    if kind not in SOLVERS:
        raise ModelFileError(f"The file describes a posterior of kind {kind!r}, which this version does not know.")
    posterior, solver = SOLVERS[kind][0], SOLVERS[kind][1].from_tensors(under("solver", tensors))
    if "num_iterations" in header:
        solver.num_iterations = header["num_iterations"]
    return posterior(process, solver, Observations(**under("data", tensors)), model.mean, noise)


def _check_unchanged(posterior: ExactPosterior | WeightPosterior, model: Model) -> None:
    """Check that the model was not changed after the posterior was computed."""
    pairs = [(posterior.process.kernel, model.kernel), (posterior.mean, model.mean)]
    if isinstance(posterior, WeightPosterior):
        pairs.append((posterior.feature_map, model.features))
    if not all(_same(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs):
        raise OptionError("gp_ was modified after fitting and no longer matches posterior_. Call fit again.")


def _same(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> bool:
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


CONDITION_OPTIONS = ("variance", "num_landmarks")


def mixture_state(posterior: MixturePosterior, gp: OperatorValuedGP | VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """Encode an average over hyperparameter draws of `gp`, whose other values must be those of the draws."""
    drawn = posterior.parts
    _check_draws_unchanged(drawn, gp)
    raw = prefixed(raw=drawn.raw)
    if drawn.are_cached and _has_features(drawn[0]):
        parts = [posterior_state(part, drawn.set_draw(index).model) for index, part in enumerate(drawn)]
        groups = {str(index): tensors for index, (_, tensors) in enumerate(parts)}
        return {"kind": MIXTURE, "parts": [header for header, _ in parts]}, {**raw, **prefixed(part=prefixed(**groups))}
    given = drawn.condition.keywords
    data = {name: given[name] for name in DATA if given[name] is not None}
    return {"kind": MIXTURE, "options": {name: given[name] for name in CONDITION_OPTIONS}}, {
        **raw,
        **prefixed(data=data),
    }


def mixture_from_state(
    header: dict, tensors: dict[str, Tensor], gp: OperatorValuedGP | VariationalGP
) -> MixturePosterior:
    """Decode an average over draws; with the exact kernel, one conditioning per draw."""
    raw = validate_draws(gp, {name: value.numpy() for name, value in under("raw", tensors).items()}, allow_missing=True)
    if not raw:
        raise ModelFileError("The file describes an average over hyperparameter draws but has no draws.")
    if "parts" in header:
        kept = []
        drawn = ConditionedDraws(gp, raw, None, kept)
        for index, part in enumerate(header["parts"]):
            model = drawn.set_draw(index).frozen().model
            kept.append(posterior_from_state(part, under(f"part.{index}", tensors), model))
        return MixturePosterior(drawn)
    data = dict.fromkeys(DATA) | under("data", tensors)
    options = {name: header["options"][name] for name in CONDITION_OPTIONS}
    return MixturePosterior(ConditionedDraws(gp, raw, partial(type(gp).condition, **data, **options)))


def _has_features(posterior: Posterior) -> bool:
    parts = posterior.parts if isinstance(posterior, IndependentPosterior) else [posterior]
    return all(isinstance(part, WeightPosterior) for part in parts)


def _check_draws_unchanged(drawn: ConditionedDraws, gp: OperatorValuedGP | VariationalGP) -> None:
    mine, yours = (kernel_state(model) for model in (drawn.gp, gp))
    trained = {id(p) for name, p in gp.named_parameters() if name in drawn.raw}
    again = {n for n, p in gp.named_parameters(remove_duplicate=False) if id(p) in trained}
    if mine.keys() != yours.keys() or not all(torch.equal(mine[n], yours[n]) for n in mine if n not in again):
        raise OptionError("gp_ was modified after fitting and no longer matches posterior_. Call fit again.")
