"""A likelihood from its name, or from a list with one for each output."""

from __future__ import annotations

from collections.abc import Sequence

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood
from ovkgp.inference.likelihoods.bernoulli import Bernoulli
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.huber import Huber
from ovkgp.inference.likelihoods.per_output import PerOutput
from ovkgp.inference.likelihoods.softmax import Softmax
from ovkgp.inference.likelihoods.student_t import StudentT
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace, Laplace

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (Gaussian, StudentT, Laplace, AsymmetricLaplace, Huber, Bernoulli, Poisson, NegativeBinomial, Softmax)
}

Spec = str | Likelihood | Sequence["str | Likelihood"]


def make_likelihood(spec: Spec, num_outputs: int) -> Likelihood:
    """The likelihood of p outputs that `spec` asks for.

    Args:
        spec: a name ("gaussian", "student_t", "laplace", "asymmetric_laplace", "huber", "bernoulli", "poisson",
            "negative_binomial", "softmax"), a `Likelihood` of p outputs, or a list of p of these, one for each output (a
            `Likelihood` in it has one output; softmax takes all outputs and cannot be in a list).
        num_outputs: p.

    Example:
        >>> from ovkgp.inference.likelihoods import make_likelihood
        >>> make_likelihood("student_t", 2).scale.shape, make_likelihood(["gaussian", "poisson"], 2).is_real.tolist()
        (torch.Size([2]), [True, False])
    """
    if isinstance(spec, Likelihood):
        if spec.num_outputs != num_outputs:
            raise InputError(f"the likelihood is of {spec.num_outputs} outputs and the model has {num_outputs}.")
        return spec
    if isinstance(spec, str):
        return _named(spec)(num_outputs)
    if not isinstance(spec, Sequence):
        raise OptionError(f"likelihood must be {_choice()}, a Likelihood, or a list of them; got {spec!r}.")
    if len(spec) != num_outputs:
        raise InputError(f"the list of likelihoods has {len(spec)} entries and the model {num_outputs} outputs.")
    if "softmax" in [one for one in spec if isinstance(one, str)]:
        raise OptionError("softmax takes all outputs together: give likelihood='softmax' alone, not in a list.")
    return PerOutput([make_likelihood(one, 1) for one in spec])


def _named(name: str) -> type[Likelihood]:
    if name not in LIKELIHOODS:
        raise OptionError(f"likelihood must be {_choice()}, a Likelihood, or a list of them; got {name!r}.")
    return LIKELIHOODS[name]


def _choice() -> str:
    return f"one of {', '.join(map(repr, LIKELIHOODS))}"
