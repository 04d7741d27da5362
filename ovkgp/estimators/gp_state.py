"""The model of a fitted estimator as JSON and tensors: kernel, mean, noise and feature map, or what `variational_state` has.

Everything is made anew, of the same make, and then given its values: the base noise of random features is stored, not drawn
again, unless they are drawn again at every use. Priors are not stored: those that an estimator registers are registered
again.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.kernel_specs import is_storable, kernel_from_spec, kernel_to_spec
from ovkgp.estimators.kernel_state import fill, kernel_state, load_kernel_state
from ovkgp.estimators.kernel_table import blank_penalty
from ovkgp.estimators.learning import register_priors
from ovkgp.estimators.likelihood_state import blank_noise
from ovkgp.estimators.ridge import scaled_kernel
from ovkgp.estimators.ridge_kernels import ridge_kernel
from ovkgp.estimators.structures import given_kernel, structure
from ovkgp.estimators.tensor_layout import prefixed, under
from ovkgp.estimators.variational_state import KIND as VARIATIONAL
from ovkgp.estimators.variational_state import blank_variational, is_parameter, variational_state
from ovkgp.exceptions import ModelFileError, OptionError, OvkgpError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, ManifoldFeatures, Nystrom
from ovkgp.inference import OperatorValuedGP, VariationalGP
from ovkgp.inference.means import MEANS
from ovkgp.kernels import ManifoldKernel

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
        "road": gp.road,
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
        gp = OperatorValuedGP(kernel, header["mean"], noise, features, header["road"])
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
