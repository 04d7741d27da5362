"""A vector field in the plane and what lies behind it, in the user's units.

The model sees x′ = (x − o_x)/s_x and y′ = (y − o_y)/s_y with one s_x and one s_y. Where its field is m′ + ∇′g′, the user's is
∇G with G(x) = s_x s_y g′(x′) + ⟨s_y m′ + o_y, x⟩: a constant is the gradient of a plane. It is also a rotated gradient, so that of a
Helmholtz field, which has both parts, it belongs to neither.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ovkgp.criticism.rows import as_inputs
from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.inference.field_features import field_terms
from ovkgp.inference.mixture_posterior import MixturePosterior
from ovkgp.inference.posterior import Posterior

SCALARS = {
    "potential": 'kernel="curl_free" or kernel="helmholtz"',
    "stream_function": 'kernel="divergence_free" or kernel="helmholtz"',
}
"""What a field may come from, and which kernels have it."""


class FieldValues(NamedTuple):
    """Mean of the field (m, 2), and the root of the mean variance of its two components, (m,)."""

    mean: np.ndarray
    std: np.ndarray


def field_values(estimator, points: np.ndarray) -> FieldValues:
    """The latent field at points (m, 2)."""
    mean, std = estimator.predict(as_inputs(estimator, points), return_std=True, noise=False)
    return FieldValues(mean, np.sqrt(np.mean(std**2, axis=1)))


def scalar_behind(estimator, points: np.ndarray, kind: str, reference: np.ndarray) -> np.ndarray:
    """The posterior mean (m,) of the potential or stream function at points (m, 2); zero at `reference` (2,).

    The gradient of the potential of a curl-free model is its predicted mean; that of a Helmholtz model is the mean of its curl-free
    part, without the constant that both parts could have. A stream function ψ has the field (∂₂ψ, −∂₁ψ).

    Args:
        estimator: a fitted regressor with the kernel of a field in the plane.
        points: in the user's units.
        kind: "potential" or "stream_function".
        reference: where it is taken as zero.

    Raises:
        OptionError: the kernel has none.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.field_values import scalar_behind
        >>> X = np.random.default_rng(0).uniform(-1, 1, (60, 2))
        >>> model = ovkgp.OVKRidge("curl_free", lam=1e-3).fit(X, X)  # the gradient of |x|²/2
        >>> scalar_behind(model, np.array([[0.6, 0.8]]), "potential", np.zeros(2)).round(2)
        array([0.5])
    """
    scaling, posterior = estimator.scaling_, estimator.posterior_
    try:
        scalar = getattr(posterior, kind)(scaling.inputs(reference[None])[0])
    except (KernelTypeError, AttributeError) as error:  # posteriors of independent outputs are no fields at all
        raise OptionError(f"shade={kind!r} needs {SCALARS[kind]}; this model has none behind it: {error}") from error
    values = scalar.predict(scaling.inputs(points), "none").mean[:, 0].numpy()
    values = values * scaling.input_scale[0] * scaling.output_scale[0]
    if len(field_terms(estimator.gp_.kernel)) > 1:
        return values
    level = scaling.mean(_prior_mean(posterior, scaling.inputs(reference[None])))[0]
    direction = level if kind == "potential" else np.array([-level[1], level[0]])
    return values + (points - reference) @ direction


def _prior_mean(posterior: Posterior, X: Tensor) -> Tensor:
    """m(X) (m, p) in the units of the model, averaged where there are draws."""
    if isinstance(posterior, MixturePosterior):
        return torch.stack([part.prior_mean(X) for part in posterior.parts]).mean(0)
    return posterior.prior_mean(X)
