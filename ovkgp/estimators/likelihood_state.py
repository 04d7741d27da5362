"""Likelihoods as JSON and tensors: the class and what its constructor is given, and the values of its parameters by name.

Only the classes of `ovkgp.inference.likelihoods` are known. Of a parameter the description says whether it is trained; the
value is among the tensors. Priors are not stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.estimators.kernel_state import fill, kernel_state
from ovkgp.exceptions import InputError, ModelFileError
from ovkgp.inference.likelihoods import Gaussian, Likelihood, PerOutput
from ovkgp.inference.likelihoods.making import LIKELIHOODS
from ovkgp.inference.noise import KINDS

OWN = ("scale", "df", "dispersion")
"""Parameters of likelihoods, each trained or fixed."""
PLAIN = ("tau", "kappa", "link")
"""What they are given that nothing trains."""


def likelihood_state(likelihood: Likelihood) -> tuple[dict, dict[str, Tensor]]:
    """A likelihood as a dictionary that JSON can hold, and tensors by name.

    Raises:
        InputError: it is of a class of one's own.

    Example:
        >>> from ovkgp.estimators.likelihood_state import likelihood_from_state, likelihood_state
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
