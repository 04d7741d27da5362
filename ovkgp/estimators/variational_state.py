"""The parts of a `VariationalGP` that are no parameters, as JSON and tensors: its make, q, and what a posterior needs of the data.

A posterior read back is made from them without computing anything, and predicts the very same numbers.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.estimators.kernel_state import kernel_state
from ovkgp.estimators.likelihood_state import blank_likelihood, likelihood_to_spec
from ovkgp.estimators.tensor_layout import prefixed, under
from ovkgp.exceptions import OptionError
from ovkgp.inference import VariationalGP
from ovkgp.inference.inducing import InducingPoints
from ovkgp.inference.landmarks import Landmarks
from ovkgp.inference.variational_families import WeightGaussian
from ovkgp.inference.variational_posterior import VariationalPosterior

KIND = "variational"
OPTIONS = ("family", "rank", "learn_inducing")
WEIGHTS, SEEN = "weights", "seen"
"""Where the tensors of q are, and those that a posterior needs of the data."""


def variational_state(gp: VariationalGP) -> tuple[dict, dict[str, Tensor]]:
    """What a file holds of a model with inducing points beside its kernel, mean and parameters.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.variational_state import variational_state
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
    seen = {name: getattr(landmarks, name) for name in ("X", "seen", "priorities")}
    seen |= {} if noise is None else {"noise": noise}
    return header, prefixed(**{WEIGHTS: gp.q_.tensors(), SEEN: seen})


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
    seen = under(SEEN, tensors)
    landmarks = Landmarks(*(seen[name] for name in ("X", "seen", "priorities")), header["limit"])
    gp._seen = landmarks, seen.get("noise"), header["elbo"]
    return gp


def is_parameter(name: str) -> bool:
    """Whether a tensor is a parameter or a buffer of the model, and not one of `variational_state`."""
    return not name.startswith((f"{WEIGHTS}.", f"{SEEN}."))


def require_same_model(posterior: VariationalPosterior, gp: VariationalGP) -> None:
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
