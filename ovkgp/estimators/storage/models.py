"""Posteriors that average over draws of the hyperparameters as JSON and tensors.

The exact roads keep n² numbers a draw and are made again from the data and the draws, which a file holds, and so are variational ones: the same
computation, so that predictions are equal up to rounding (1e-12). Posteriors of features have no data, and the state of every
component is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.common.named_kernels import given_kernel, ridge_kernel, structure
from ovkgp.estimators.regression.training import register_priors
from ovkgp.estimators.ridge.base import scaled_kernel
from ovkgp.estimators.storage.file import prefixed, under
from ovkgp.estimators.storage.kernels import (
    blank_penalty,
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
from ovkgp.inference.algebra.kronecker import CommonSolver, KroneckerSolver
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.model.mean_noise import KINDS, MEANS, Model
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import Landmarks
from ovkgp.inference.posteriors.exact import ExactPosterior, IndependentPosterior, KroneckerPosterior
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior, checked_draws
from ovkgp.inference.posteriors.posterior import KernelProcess, Posterior
from ovkgp.inference.posteriors.weight_posterior import VarianceFloor, WeightPosterior
from ovkgp.inference.statistics.weight_space import WeightSystem
from ovkgp.inference.strategies.independent import output_model
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.inference.variational.posterior import VariationalPosterior
from ovkgp.kernels import ManifoldKernel

OWN = ("scale", "df", "dispersion")
"""Parameters of likelihoods, each trained or fixed."""
PLAIN = ("tau", "kappa", "link")
"""What they are given that nothing trains."""


def likelihood_state(likelihood: Likelihood) -> tuple[dict, dict[str, Tensor]]:
    """A likelihood as a dictionary that JSON can hold, and tensors by name.

    Raises:
        InputError: it is of a class of one's own.

    Example:
        >>> from ovkgp.estimators.storage.models import likelihood_from_state, likelihood_state
        >>> from ovkgp.inference.likelihoods import StudentT
        >>> spec, tensors = likelihood_state(StudentT(num_outputs=2, df=4.0))
        >>> spec, sorted(tensors)[0]
        ({'name': 'student_t', 'num_outputs': 2, 'trained': {'scale': True, 'df': False}}, 'fixed_df')
        >>> likelihood_from_state(spec, tensors).df.tolist()
        [4.0, 4.0]
    """
    return likelihood_to_spec(likelihood), kernel_state(likelihood)


def likelihood_from_state(spec: dict, tensors: dict[str, Tensor]) -> Likelihood:
    """The likelihood that `likelihood_state` described."""
    likelihood = blank_likelihood(spec)
    fill(likelihood, tensors)
    return likelihood


def likelihood_to_spec(likelihood: Likelihood) -> dict:
    """What `blank_likelihood` needs."""
    if type(likelihood) is PerOutput:
        return {"members": [likelihood_to_spec(one) for one in likelihood.likelihoods]}
    if type(likelihood) is not LIKELIHOODS.get(likelihood.name):
        raise InputError(
            f"a model file cannot hold a {type(likelihood).__name__}: use a likelihood of ovkgp.inference.likelihoods, or pickle the "
            "model."
        )
    spec = {"name": likelihood.name, "num_outputs": likelihood.num_outputs}
    if isinstance(likelihood, Gaussian):
        noise = likelihood.noise_model
        return {**spec, "noise": {"kind": noise.kind, "is_trained": noise.is_trained}}
    entries = {**likelihood._parameters, **likelihood._buffers}
    trained = {name: f"raw_{name}" in entries for name in OWN if f"raw_{name}" in entries or f"fixed_{name}" in entries}
    plain = {name: getattr(likelihood, name) for name in PLAIN if hasattr(likelihood, name)}
    return {**spec, **({"trained": trained} if trained else {}), **({"options": plain} if plain else {})}


def blank_likelihood(spec: dict) -> Likelihood:
    """A likelihood of the make that a description tells, with any values."""
    if "members" in spec:
        return PerOutput([blank_likelihood(one) for one in spec["members"]]).double()
    if spec["name"] not in LIKELIHOODS:
        raise ModelFileError(f"the file describes a likelihood {spec['name']!r}, which this version does not know.")
    options = dict(spec.get("options", {}))
    if "noise" in spec:
        options["noise"] = blank_noise(**spec["noise"], num_outputs=spec["num_outputs"])
    for name, is_trained in spec.get("trained", {}).items():
        options[name] = None if is_trained else 1.0
    return LIKELIHOODS[spec["name"]](spec["num_outputs"], **options).double()


def blank_noise(kind: str, is_trained: bool, num_outputs: int) -> str | Tensor:
    """What makes a noise of this kind; its values come with the others."""
    sizes = [num_outputs] * KINDS.index(kind)
    return kind if is_trained else torch.eye(num_outputs) if len(sizes) == 2 else torch.ones(sizes)


KIND = "variational"
OPTIONS = ("family", "rank", "learn_inducing")
WEIGHTS, SEEN = "weights", "observed"
"""Where the tensors of q are, and those that a posterior needs of the data."""


def variational_state(gp: VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """What a file holds of a model with inducing points beside its kernel, mean and parameters.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.storage.models import variational_state
        >>> from ovkgp.inference import VariationalGP
        >>> X = torch.linspace(0, 6, 20).double().unsqueeze(-1)
        >>> header, tensors = variational_state(VariationalGP(RBFKernel(), "poisson", inducing=5).settle(X, X.round()))
        >>> header["likelihood"], tensors["weights.mean"].shape
        ({'name': 'poisson', 'num_outputs': 1}, torch.Size([5]))
    """
    landmarks, noise, elbo = gp._seen
    header = {name: getattr(gp, name) for name in OPTIONS}
    header |= {"likelihood": likelihood_to_spec(gp.likelihood), "thin": gp.features.thin}
    header |= {"elbo": elbo, "limit": landmarks.limit}
    observed = {name: getattr(landmarks, name) for name in ("X", "observed", "priorities")}
    observed |= {} if noise is None else {"noise": noise}
    return header, prefixed(**{WEIGHTS: gp.q_.tensors(), SEEN: observed})


def blank_variational(header: dict, tensors: dict[str, Tensor], kernel: Kernel, mean: str) -> VariationalGP:
    """A model of the make that `variational_state` described; its parameters are filled in later.

    Args:
        header, tensors: from `variational_state`, with the parameters of the model by name.
        kernel, mean: of the model.
    """
    points, options = tensors["features.points"], {name: header[name] for name in OPTIONS}
    gp = VariationalGP(kernel, blank_likelihood(header["likelihood"]), inducing=points, mean=mean, **options)
    gp.features = InducingPoints(gp.kernel, points, gp.learn_inducing)
    gp.features.thin = list(header["thin"])
    gp.q_ = WeightGaussian.from_tensors(under(WEIGHTS, tensors))
    observed = under(SEEN, tensors)
    landmarks = Landmarks(*(observed[name] for name in ("X", "observed", "priorities")), header["limit"])
    gp._seen = landmarks, observed.get("noise"), header["elbo"]
    return gp


def is_parameter(name: str) -> bool:
    """Whether a tensor is a parameter or a buffer of the model, and not one of `variational_state`."""
    return not name.startswith((f"{WEIGHTS}.", f"{SEEN}."))


def check_same_model(posterior: VariationalPosterior, gp: VariationalGP) -> None:
    """Refuse a model that was trained or edited after its posterior was made: a file holds one of them."""
    pairs = [(posterior.process.kernel, gp.kernel), (posterior.mean, gp.mean), (posterior.likelihood, gp.likelihood)]
    states = [(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs]
    states.append((posterior.q.tensors(), gp.q_.tensors()))
    if not all(
        mine.keys() == yours.keys() and all(map(torch.equal, mine.values(), yours.values())) for mine, yours in states
    ):
        raise OptionError(
            "gp_ was changed after posterior_ was made from it, so that they are two models: call fit again."
        )


VARIATIONAL = KIND

ORFF_OPTIONS = ("num_frequencies", "num_dims", "sampler", "bounded", "learn_frequencies")
BLOCKED_OPTIONS = ("num_frequencies", "block_size", "num_dims", "sampler", "bounded")
KERNEL, UNSCALED = "kernel.", "unscaled"
"""Where the values of the kernel are, and those of a ridge estimator's before it was scaled."""


@dataclass(frozen=True)
class Recipe:
    """How a class of estimators makes its model.

    Args:
        kernel: from a fitted estimator, the values of the kernel by name and its `scale_`, a kernel as `fit` makes it; the
            values are for their shapes only.
        register: the priors of a model, in place.
    """

    kernel: Callable[[object, dict[str, Tensor], float], Kernel]
    register: Callable[[OperatorValuedGP, object], None] = lambda gp, estimator: None


# --- estimator → state ----------------------------------------------------------------------------------------------


def gp_state(estimator, recipe: Recipe) -> tuple[dict, dict[str, Tensor]]:
    """The model behind a fitted estimator as a dictionary that JSON can hold, and its parameters and buffers by name.

    Raises:
        KernelTypeError: the kernel has a part that no file can describe and that is not among the estimator's options.
        OptionError: the options do not lead to this kernel any more, and a file needs them to.
    """
    gp = estimator.gp_
    if _has_kernel_objects(estimator):
        _require_same_make(estimator, recipe)
    header = {
        "kernel": _description(gp.kernel, estimator),
        "mean": MEANS[gp.mean.degree + 1],
    }
    own, more = variational_state(gp) if isinstance(gp, VariationalGP) else (None, {})
    header |= _exact_header(gp) if own is None else {VARIATIONAL: own}
    again = _met_again(gp)
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
    """The spec of a kernel; None where it has parts that only the estimator's options have."""
    return None if _has_kernel_objects(estimator) and not is_storable(kernel) else kernel_to_spec(kernel)[0]


def _require_same_make(estimator, recipe: Recipe) -> None:
    """Refuse an estimator whose kernel objects were exchanged after `fit`: its file could not be loaded."""
    values = kernel_state(estimator.gp_.kernel)
    try:
        load_kernel_state(recipe.kernel(estimator, values, _scale(estimator)), values)
    except OvkgpError as error:
        raise OptionError(
            f"kernel or base_kernel is not what the model was fitted with: set it back, or call fit again. ({error})"
        ) from error


def _met_again(gp: OperatorValuedGP | VariationalGP) -> dict[str, str]:
    """Names under which values of the kernel are met a second time, as a feature map shares its kernel with the model."""
    entries = gp.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in entries.items() if name.startswith(KERNEL)}
    others = {name: id(tensor) for name, tensor in entries.items() if not name.startswith(KERNEL)}
    return {name: first[key] for name, key in others.items() if key in first}


# --- state → estimator ----------------------------------------------------------------------------------------------


def gp_from_state(
    header: dict, tensors: dict[str, Tensor], estimator, recipe: Recipe, *, describe_kernel: bool
) -> OperatorValuedGP | VariationalGP:
    """The model that `gp_state` described.

    Args:
        header, tensors: from `gp_state`, possibly after a journey through a file.
        estimator: with its options and all that is plain of what was fitted.
        describe_kernel: build the kernel that the file describes; if not, one from the estimator's options.
    """
    values = under("kernel", tensors)
    spec = header["kernel"] if describe_kernel else None
    kernel = _kernel(spec, values, lambda: recipe.kernel(estimator, values, _scale(estimator)))
    if VARIATIONAL in header:
        gp = blank_variational(header[VARIATIONAL], tensors, kernel, header["mean"])
        tensors = {name: tensor for name, tensor in tensors.items() if is_parameter(name)}
    else:
        features = _features(header["features"], kernel, under("features", tensors))
        noise = blank_noise(**header["noise"], num_outputs=estimator.n_outputs_)
        gp = OperatorValuedGP(kernel, header["mean"], noise, features, header["strategy"])
    gp.mean.see(estimator.n_features_in_)
    recipe.register(gp, estimator)
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{UNSCALED}.")}
    again = {name: own[first] for name, first in _met_again(gp).items() if first in own}
    fill(gp, own | again)
    return gp


def unscaled_from_state(
    header: dict, tensors: dict[str, Tensor], estimator, recipe: Recipe, *, describe_kernel: bool
) -> Kernel:
    """The kernel of a ridge estimator as it was before it was scaled; the arguments are those of `gp_from_state`."""
    if UNSCALED not in header:
        return deepcopy(estimator.gp_.kernel)
    values, spec = under(UNSCALED, tensors), header[UNSCALED] if describe_kernel else None
    return _kernel(spec, values, lambda: recipe.kernel(estimator, values, 1.0))


def _kernel(spec: dict | None, values: dict[str, Tensor], make: Callable[[], Kernel]) -> Kernel:
    return load_kernel_state(make(), values) if spec is None else kernel_from_spec(spec, values)


# --- recipes --------------------------------------------------------------------------------------------------------


def _trained_kernel(estimator, values: dict[str, Tensor], scale: float) -> Kernel:
    if isinstance(estimator.kernel, Kernel):
        return given_kernel(estimator.kernel, estimator.n_outputs_).double()
    shape = estimator.n_features_in_, estimator.n_outputs_
    return structure(estimator.kernel_, estimator.base_kernel, estimator.rank, *shape).double()


def _ridge_kernel(estimator, values: dict[str, Tensor], scale: float) -> Kernel:
    options = SimpleNamespace(base_kernel=estimator.base_kernel, output_matrix=estimator.output_matrix, lengthscale=1.0)
    options.kernel = estimator.kernel if isinstance(estimator.kernel, Kernel) else estimator.kernel_
    kernel = ridge_kernel(options, np.zeros((2, estimator.n_features_in_)), np.zeros((2, estimator.n_outputs_)))
    return kernel if scale == 1.0 else scaled_kernel(kernel, scale)


def _manifold_kernel(estimator, values: dict[str, Tensor], scale: float) -> Kernel:
    indices = values.get("penalty.indices")
    penalty = blank_penalty(estimator.manifold_.shape[0], None if indices is None else indices.shape[1])
    return ManifoldKernel(_ridge_kernel(estimator, values, scale), values["X"], penalty).double()


TRAINED = Recipe(_trained_kernel, lambda gp, estimator: register_priors(gp, estimator, estimator.scaling_))
RIDGE, MANIFOLD = Recipe(_ridge_kernel), Recipe(_manifold_kernel)


# --- feature maps ---------------------------------------------------------------------------------------------------


def _features_spec(features: FeatureMap | None) -> dict | None:
    if features is None:
        return None
    spec = {"class": type(features).__name__}
    if isinstance(features, BlockedORFF):
        born = str(features._born).removeprefix("torch.")
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
            f"the file describes features of class {spec['class']!r}, which this version does not know."
        )
    return FEATURES[spec["class"]](spec, kernel, tensors)


def _orff(spec: dict, kernel: Kernel, tensors: dict[str, Tensor]) -> ORFF:
    features = ORFF(kernel, **spec["options"], random_state=spec["seed"])
    features.block_index = spec["block"]
    return features


def _blocked(spec: dict, kernel: Kernel, tensors: dict[str, Tensor]) -> BlockedORFF:
    features = BlockedORFF(kernel, **spec["options"], random_state=spec["seed"])
    features._born = {"float32": torch.float32, "float64": torch.float64}[spec["born"]]
    return features


def _on_manifold(spec: dict, kernel: ManifoldKernel, tensors: dict[str, Tensor]) -> ManifoldFeatures:
    return ManifoldFeatures(_features(spec["features"], kernel.base_kernel, under("features", tensors)), kernel)


FEATURES = {
    "ORFF": _orff,
    "BlockedORFF": _blocked,
    "ManifoldFeatures": _on_manifold,
    "Nystrom": lambda spec, kernel, tensors: Nystrom(kernel, tensors["landmarks"]),
}
"""By name, how the feature maps are made again."""


SOLVERS = {
    "dense": (ExactPosterior, DenseSolver),
    "kronecker": (KroneckerPosterior, KroneckerSolver),
    "common": (KroneckerPosterior, CommonSolver),
    "iterative": (ExactPosterior, IterativeSolver),
}
"""By name, the posteriors with the exact kernel and their solvers."""

DATA = ("X", "Y", "noise")


def posterior_state(posterior: Posterior, model: Model) -> tuple[dict, dict[str, Tensor]]:
    """A posterior as a dictionary that JSON can hold, and tensors by name.

    Args:
        posterior: of `model`, by the exact kernel or by features.
        model: what it was made from; its values are not stored here, and must not have changed since.

    Raises:
        OptionError: the posterior was made by products alone and has nothing factorised, or the model has changed.

    Cost: nothing is computed or copied.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.storage.models import posterior_from_state, posterior_state
        >>> from ovkgp.inference import OperatorValuedGP
        >>> gp = OperatorValuedGP(RBFKernel(), noise=0.1)
        >>> X = torch.linspace(0, 6, 20).double().unsqueeze(-1)
        >>> posterior = gp.condition(X, X.sin())
        >>> header, tensors = posterior_state(posterior, gp.model)
        >>> again = posterior_from_state(header, tensors, gp.frozen().model)
        >>> header["kind"], torch.equal(again.predict(X).std, posterior.predict(X).std)
        ('dense', True)
    """
    if isinstance(posterior, IndependentPosterior):
        parts = [posterior_state(part, output_model(model, a)) for a, part in enumerate(posterior.parts)]
        groups = {str(a): tensors for a, (_, tensors) in enumerate(parts)}
        return {"kind": "independent", "parts": [header for header, _ in parts]}, prefixed(**groups)
    _require_unchanged(posterior, model)
    noise = {"output_noise": posterior.output_noise}
    if isinstance(posterior, WeightPosterior):
        guard = {} if posterior.guard is None else posterior.guard.tensors()
        header = {"kind": "weights", "num_dims": posterior.num_dims, "guarded": posterior.guard is not None}
        return header, {**noise, **prefixed(system=posterior.system.tensors(), guard=guard)}
    solver = posterior.solver
    kind = next(kind for kind, (_, known) in SOLVERS.items() if isinstance(solver, known))
    counted = {"num_iterations": solver.num_iterations} if kind == "iterative" else {}
    data = {name: value for name in DATA if (value := getattr(posterior.data, name)) is not None}
    return {"kind": kind, **counted}, {**noise, **prefixed(solver=solver.tensors(), data=data)}


def posterior_from_state(header: dict, tensors: dict[str, Tensor], model: Model) -> Posterior:
    """The posterior that `posterior_state` described.

    Args:
        header, tensors: from `posterior_state`, possibly after a journey through a file.
        model: frozen, with the values that it had.

    Cost: nothing is factorised again.

    Example:
        See `posterior_state`.
    """
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
        raise ModelFileError(f"the file describes a posterior of kind {kind!r}, which this version does not know.")
    posterior, solver = SOLVERS[kind][0], SOLVERS[kind][1].from_tensors(under("solver", tensors))
    if "num_iterations" in header:
        solver.num_iterations = header["num_iterations"]
    return posterior(process, solver, Observations(**under("data", tensors)), model.mean, noise)


def _require_unchanged(posterior: ExactPosterior | WeightPosterior, model: Model) -> None:
    """Refuse a model that was trained or edited after the data were conditioned on: the two would not fit together."""
    pairs = [(posterior.process.kernel, model.kernel), (posterior.mean, model.mean)]
    if isinstance(posterior, WeightPosterior):
        pairs.append((posterior.feature_map, model.features))
    if not all(_same(kernel_state(mine), kernel_state(yours)) for mine, yours in pairs):
        raise OptionError(
            "gp_ was changed after posterior_ was made from it, so that they are two models: call fit again."
        )


def _same(mine: dict[str, Tensor], yours: dict[str, Tensor]) -> bool:
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


MIXTURE_STATE_KIND = "mixture"
MIXTURE_STATE_OPTIONS = ("variance", "num_landmarks")


def mixture_state(posterior: MixturePosterior, gp: OperatorValuedGP | VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """A mixture over draws of the hyperparameters of `gp` as a dictionary that JSON can hold, and tensors by name.

    Args:
        posterior: as `gp.condition(X, Y, hyperparameters=…)` gives it.
        gp: the model; of what was drawn its present values do not matter, all others must be those of the draws.

    Raises:
        OptionError: the model has changed.

    Cost: nothing is computed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.storage.models import mixture_from_state, mixture_state
        >>> from ovkgp.inference import OperatorValuedGP, VariationalGP
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> X = torch.linspace(0, 6, 20).double().unsqueeze(-1)
        >>> draws = {"kernel.raw_lengthscale": torch.linspace(-1, 1, 3).reshape(3, 1, 1)}
        >>> posterior = gp.condition(X, X.sin(), hyperparameters=draws)
        >>> again = mixture_from_state(*mixture_state(posterior, gp), gp)
        >>> len(again), torch.allclose(again.predict(X).std, posterior.predict(X).std, rtol=1e-12)
        (3, True)
    """
    drawn = posterior.parts
    _require_unchanged_mixture_state(drawn, gp)
    raw = prefixed(raw=drawn.raw)
    if drawn.are_kept and _has_features(drawn[0]):
        parts = [posterior_state(part, drawn.place(index).model) for index, part in enumerate(drawn)]
        groups = {str(index): tensors for index, (_, tensors) in enumerate(parts)}
        return {"kind": MIXTURE_STATE_KIND, "parts": [header for header, _ in parts]}, {
            **raw,
            **prefixed(part=prefixed(**groups)),
        }
    given = drawn.condition.keywords
    data = {name: given[name] for name in DATA if given[name] is not None}
    return {"kind": MIXTURE_STATE_KIND, "options": {name: given[name] for name in MIXTURE_STATE_OPTIONS}}, {
        **raw,
        **prefixed(data=data),
    }


def mixture_from_state(
    header: dict, tensors: dict[str, Tensor], gp: OperatorValuedGP | VariationalGP
) -> MixturePosterior:
    """The mixture that `mixture_state` described, over a model with the values that it had.

    Cost: with the exact kernel, one conditioning for each draw; nothing is computed for features.
    """
    raw = checked_draws(gp, {name: value.numpy() for name, value in under("raw", tensors).items()}, allow_missing=True)
    if not raw:
        raise ModelFileError("the file describes an average over draws of the hyperparameters, and holds no draws.")
    if "parts" in header:
        kept = []
        drawn = ConditionedDraws(gp, raw, None, kept)
        for index, part in enumerate(header["parts"]):
            model = drawn.place(index).frozen().model
            kept.append(posterior_from_state(part, under(f"part.{index}", tensors), model))
        return MixturePosterior(drawn)
    data = dict.fromkeys(DATA) | under("data", tensors)
    options = {name: header["options"][name] for name in MIXTURE_STATE_OPTIONS}
    return MixturePosterior(ConditionedDraws(gp, raw, partial(type(gp).condition, **data, **options)))


def _has_features(posterior: Posterior) -> bool:
    parts = posterior.parts if isinstance(posterior, IndependentPosterior) else [posterior]
    return all(isinstance(part, WeightPosterior) for part in parts)


def _require_unchanged_mixture_state(drawn: ConditionedDraws, gp: OperatorValuedGP | VariationalGP) -> None:
    mine, yours = (kernel_state(model) for model in (drawn.gp, gp))
    trained = {id(p) for name, p in gp.named_parameters() if name in drawn.raw}
    again = {n for n, p in gp.named_parameters(remove_duplicate=False) if id(p) in trained}
    if mine.keys() != yours.keys() or not all(torch.equal(mine[n], yours[n]) for n in mine if n not in again):
        raise OptionError(
            "gp_ was changed after posterior_ was made from it, so that they are two models: call fit again."
        )
