"""The `OperatorValuedGP` of a fitted regressor as JSON and tensors: kernel, mean, noise and feature map.

Mean and noise are made anew from the regressor's options and then given their values, and so is a feature map: the base
noise of random features is stored, not drawn again. Priors are those of the options.
"""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.kernel_specs import kernel_from_spec, kernel_to_spec
from ovkgp.estimators.kernel_state import fill, kernel_state, load_kernel_state
from ovkgp.estimators.structures import given_kernel, structure
from ovkgp.estimators.tensor_layout import under
from ovkgp.exceptions import ModelFileError
from ovkgp.features import ORFF, FeatureMap, Nystrom
from ovkgp.inference import OperatorValuedGP

ORFF_OPTIONS = ("num_frequencies", "num_dims", "sampler", "bounded", "learn_frequencies")
SHARED = "features.kernel."
"""Where the values of the kernel are met a second time: a feature map shares its kernel with the model."""


def gp_state(gp: OperatorValuedGP, *, describe_kernel: bool) -> tuple[dict, dict[str, Tensor]]:
    """A model as a dictionary that JSON can hold, and its parameters and buffers by name.

    Args:
        gp: the model behind a fitted regressor.
        describe_kernel: whether the kernel is one that a file can describe; if not, only its values are kept.

    Raises:
        KernelTypeError: the kernel was to be described, and has a part that no file can.
    """
    spec = kernel_to_spec(gp.kernel)[0] if describe_kernel else None
    tensors = {name: tensor for name, tensor in kernel_state(gp).items() if not name.startswith(SHARED)}
    return {"kernel": spec, "features": _features_spec(gp.features), "road": gp.road}, tensors


def gp_from_state(header: dict, tensors: dict[str, Tensor], estimator, *, describe_kernel: bool) -> OperatorValuedGP:
    """The model that `gp_state` described.

    Args:
        header, tensors: from `gp_state`, possibly after a journey through a file.
        estimator: with the options, the scaling, `kernel_`, `n_features_in_` and `n_outputs_` of the regressor.
        describe_kernel: build the kernel that the file describes; if not, one from the regressor's options.
    """
    values = under("kernel", tensors)
    if describe_kernel:
        kernel = kernel_from_spec(header["kernel"], values)
    else:
        kernel = load_kernel_state(_kernel_of(estimator), values)
    gp = estimator._gp(kernel, _features(header["features"], kernel, tensors))
    shared = {} if gp.features is None else {f"{SHARED}{name}": value for name, value in values.items()}
    fill(gp, tensors | shared)
    gp.road = header["road"]
    return gp


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
    return {"class": "Nystrom"}


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
