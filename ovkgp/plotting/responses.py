"""What an output is, a number, a count, a label or a class, and what its latent function means in its units: E[y | f].

Of a label that is a probability, of a count the expected one; a real output is its latent function, but for noise.
"""

from __future__ import annotations

import numpy as np
import torch

from ovkgp.inference.likelihoods import Bernoulli, Likelihood, PerOutput, Softmax


def likelihood_of(estimator) -> Likelihood | None:
    """p(y | f) of a variational model; None where noise is Gaussian and added."""
    return getattr(getattr(estimator, "gp_", None), "likelihood", None)


def output_kinds(estimator, num_outputs: int) -> list[str]:
    """For each output "real", "count", "label" (0 or 1) or "class" (one column of several).

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.responses import output_kinds
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> output_kinds(ovkgp.OVKRidge().fit(X, X), num_outputs=1)
        ['real']
    """
    likelihood = likelihood_of(estimator)
    if likelihood is None:
        return ["real"] * num_outputs
    ones = likelihood.likelihoods if isinstance(likelihood, PerOutput) else [likelihood] * num_outputs
    return [
        _kind(one, bool(is_real))
        for one, is_real in zip(ones, np.broadcast_to(likelihood.is_real, num_outputs), strict=True)
    ]


def responses(estimator, latent: np.ndarray) -> np.ndarray:
    """E[y | f] (…, m, p) for latent functions f (…, m, p), both in the user's units; labels, classes and counts are not scaled."""
    likelihood = likelihood_of(estimator)
    if likelihood is None:
        return latent
    values = torch.as_tensor(latent, dtype=torch.float64)
    if isinstance(likelihood, Softmax):
        return values.softmax(-1).numpy()
    with torch.no_grad():
        flat = values.reshape(-1, values.shape[-1])
        found = likelihood.moments(flat, torch.zeros_like(flat))[0].reshape(values.shape)
    return np.where(likelihood.is_real.numpy(), latent, found.numpy())


def _kind(likelihood: Likelihood, is_real: bool) -> str:
    if is_real:
        return "real"
    if isinstance(likelihood, Bernoulli | Softmax):
        return "label" if isinstance(likelihood, Bernoulli) else "class"
    return "count"
