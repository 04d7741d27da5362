"""The `OperatorValuedGP` of a fitted regressor as JSON and tensors: kernel, mean, noise and feature map.

Everything is made anew, of the same make, and then given its values: the base noise of random features is stored, not drawn
again. Priors are not stored: those that a regressor registers are registered again.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.kernel_specs import is_storable, kernel_from_spec, kernel_to_spec
from ovkgp.estimators.kernel_state import fill, kernel_state, load_kernel_state
from ovkgp.estimators.learning import register_priors
from ovkgp.estimators.structures import given_kernel, structure
from ovkgp.estimators.tensor_layout import under
from ovkgp.exceptions import ModelFileError, OptionError, OvkgpError
from ovkgp.features import ORFF, FeatureMap, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.means import MEANS
from ovkgp.inference.noise import KINDS

ORFF_OPTIONS = ("num_frequencies", "num_dims", "sampler", "bounded", "learn_frequencies")
SHARED = "features.kernel."
"""Where the values of the kernel are met a second time: a feature map shares its kernel with the model."""


def gp_state(estimator) -> tuple[dict, dict[str, Tensor]]:
    """The model behind a fitted regressor as a dictionary that JSON can hold, and its parameters and buffers by name.

    Raises:
        KernelTypeError: the kernel has a part that no file can describe and that is not among the regressor's options.
        OptionError: the options do not lead to this kernel any more, and a file needs them to.
    """
    gp, noise = estimator.gp_, estimator.gp_.noise_model
    is_object = any(isinstance(option, Kernel) for option in (estimator.kernel, estimator.base_kernel))
    if is_object:
        _require_same_make(estimator)
    header = {
        "kernel": kernel_to_spec(gp.kernel)[0] if not is_object or is_storable(gp.kernel) else None,
        "mean": MEANS[gp.mean.degree + 1],
        "noise": {"kind": noise.kind, "is_trained": noise.is_trained},
        "features": _features_spec(gp.features),
        "road": gp.road,
    }
    return header, {name: tensor for name, tensor in kernel_state(gp).items() if not name.startswith(SHARED)}


def gp_from_state(header: dict, tensors: dict[str, Tensor], estimator, *, describe_kernel: bool) -> OperatorValuedGP:
    """The model that `gp_state` described.

    Args:
        header, tensors: from `gp_state`, possibly after a journey through a file.
        estimator: with the options, `kernel_`, `n_features_in_` and `n_outputs_` of the regressor.
        describe_kernel: build the kernel that the file describes; if not, one from the regressor's options.
    """
    values, d = under("kernel", tensors), estimator.n_features_in_
    if describe_kernel:
        kernel = kernel_from_spec(header["kernel"], values)
    else:
        kernel = load_kernel_state(_kernel_of(estimator), values)
    features = _features(header["features"], kernel, tensors)
    noise = _noise(**header["noise"], num_outputs=estimator.n_outputs_)
    gp = OperatorValuedGP(kernel, header["mean"], noise, features, header["road"])
    gp.mean.see(d)
    register_priors(gp, estimator, estimator.scaling_)
    fill(gp, tensors if features is None else tensors | {f"{SHARED}{name}": value for name, value in values.items()})
    return gp


def _require_same_make(estimator) -> None:
    """Refuse a regressor whose kernel objects were exchanged after `fit`: its file could not be loaded."""
    try:
        load_kernel_state(_kernel_of(estimator), kernel_state(estimator.gp_.kernel))
    except OvkgpError as error:
        raise OptionError(
            f"kernel or base_kernel is not what the model was fitted with: set it back, or call fit again. ({error})"
        ) from error


def _noise(kind: str, is_trained: bool, num_outputs: int) -> str | Tensor:
    """What makes a noise of this kind; its values come with the others."""
    sizes = [num_outputs] * KINDS.index(kind)
    return kind if is_trained else torch.eye(num_outputs) if len(sizes) == 2 else torch.ones(sizes)


def _kernel_of(estimator) -> Kernel:
    """The kernel as `fit` makes it, before it is trained."""
    if isinstance(estimator.kernel, Kernel):
        return given_kernel(estimator.kernel, estimator.n_outputs_).double()
    shape = estimator.n_features_in_, estimator.n_outputs_
    return structure(estimator.kernel_, estimator.base_kernel, estimator.rank, *shape).double()


def _features_spec(features: FeatureMap | None) -> dict | None:
    if features is None:
        return None
    if isinstance(features, ORFF):
        options = {name: getattr(features, name) for name in ORFF_OPTIONS}
        return {"class": "ORFF", "options": options, "seed": features.seed, "block": features.block_index}
    return {"class": type(features).__name__}


def _features(spec: dict | None, kernel: Kernel, tensors: dict[str, Tensor]) -> FeatureMap | None:
    if spec is None:
        return None
    if spec["class"] == "Nystrom":
        return Nystrom(kernel, tensors["features.landmarks"])
    if spec["class"] != "ORFF":
        raise ModelFileError(
            f"the file describes features of class {spec['class']!r}, which this version does not know."
        )
    features = ORFF(kernel, **spec["options"], random_state=spec["seed"])
    features.block_index = spec["block"]
    return features
