"""Likelihoods and feature maps as JSON; their parameters and buffers are tensors."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.storage.file import under
from ovkgp.estimators.storage.kernels import check_size
from ovkgp.exceptions import InputError, ModelFileError
from ovkgp.features import ORFF, BlockedORFF, FeatureMap, ManifoldFeatures, Nystrom
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.model.mean_noise import NOISE_KINDS

LIKELIHOOD_PARAMETERS = ("scale", "df", "dispersion")  # parameters of likelihoods, each trained or fixed
LIKELIHOOD_OPTIONS = ("tau", "kappa", "link")  # options of likelihoods that are not trained
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
