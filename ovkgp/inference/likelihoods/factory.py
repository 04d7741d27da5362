"""Weakly informative priors on a likelihood's own parameters, in the units of the data.

scale        LogNormal(½ log 0.05 + log s_a, 0.75): its square has the prior of a noise variance
df − 2       Gamma(2, 0.1), which favours heavy tails a little (Juárez and Steel 2010) and keeps the variance finite
dispersion   LogNormal(−1, 1.5)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from gpytorch.priors import GammaPrior
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood, check_outputs, marginal
from ovkgp.inference.likelihoods.classification import Bernoulli, Softmax
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.location import MIN_DF, Huber, LocationLikelihood, StudentT, column_spread
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace, Laplace
from ovkgp.inference.training.initialization import NOISE, register_noise_priors
from ovkgp.inference.training.prior_sites import Registry, log_normal


class PerOutput(Likelihood):
    """p(y | f) = Π_j p_j(y_j | f_j).

    Args:
        likelihoods: p likelihoods of one output each, none of which couples outputs.

    Cost: that of its members, one after another.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import Bernoulli, Gaussian, PerOutput
        >>> likelihood = PerOutput([Gaussian(1), Bernoulli(1)])
        >>> likelihood.is_real.tolist()
        [True, False]
        >>> likelihood.expected(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2)).shape
        torch.Size([3, 2])
    """

    name = "per_output"

    def __init__(self, likelihoods: Sequence[Likelihood]):
        super().__init__(len(likelihoods))
        for j, one in enumerate(likelihoods):
            if one.num_outputs != 1 or one.couples_outputs:
                raise OptionError(
                    f"a list holds one likelihood for each output; number {j} ({one.name}) is of {one.num_outputs} outputs"
                    f"{' that it couples' if one.couples_outputs else ''}."
                )
        self.likelihoods = torch.nn.ModuleList(likelihoods)

    @property
    def is_real(self) -> Tensor:
        return torch.cat([one.is_real for one in self.likelihoods])

    def check(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        for j, one in enumerate(self.likelihoods):
            try:
                one.check(Y[:, [j]])
            except InputError as error:
                raise InputError(f"output {j}: {str(error).replace(', 0]', f', {j}]', 1)}") from error

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        return self._columns(lambda one, j: one.log_density(Y[:, j], F[..., j], _column(noise, j)))

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        _require_shapes(Y, mean, variance)
        return self._columns(lambda one, j: one.expected(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))

    def terms(
        self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        Y = check_outputs(Y, self.num_outputs)
        _require_shapes(Y, mean, variance)
        found = self._each(lambda one, j: one.terms(Y[:, j], mean[:, j], variance[:, j], _column(noise, j)))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        variance = marginal(mean, variance)
        found = self._each(lambda one, j: one.moments(mean[:, j], variance[:, j]))
        return tuple(torch.cat(parts, -1) for parts in zip(*found, strict=True))

    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda one, j: one.cdf(y[..., j], mean[:, j], variance[:, j]))

    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        y = y.expand(torch.broadcast_shapes(y.shape, mean.shape))
        return self._columns(lambda one, j: one.log_predictive(y[..., j], mean[:, j], variance[:, j]))

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        variance = marginal(mean, variance)
        return self._columns(lambda one, j: one.quantile(q, mean[:, j], variance[:, j]))

    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return self._columns(lambda one, j: one.draw(F[..., j], generator))

    def start(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        self._each(lambda one, j: one.start(Y[:, j]))

    def initial_latent(self, Y: Tensor) -> Tensor:
        Y = check_outputs(Y, self.num_outputs)
        return self._columns(lambda one, j: one.initial_latent(Y[:, j]))

    def noise_covariance(self) -> Tensor | None:
        parts = [one.noise_covariance() for one in self.likelihoods]
        return None if any(part is None for part in parts) else torch.block_diag(*parts)

    def variables(self) -> dict[str, Tensor]:
        """By name and output: `scale_0`, `dispersion_2`, …"""
        found = enumerate(one.variables() for one in self.likelihoods)
        return {f"{name}_{j}": value.reshape(()) for j, own in found for name, value in own.items()}

    def _each(self, ask: Callable[[Likelihood, list[int]], object]) -> list:
        """What every member says; it is given its column as a list, so that the axis stays."""
        return [ask(one, [j]) for j, one in enumerate(self.likelihoods)]

    def _columns(self, ask: Callable[[Likelihood, list[int]], Tensor]) -> Tensor:
        return torch.cat(self._each(ask), -1)


def _column(noise: Tensor | None, j: list[int]) -> Tensor | None:
    return None if noise is None else noise[:, j]


def _require_shapes(Y: Tensor, mean: Tensor, variance: Tensor) -> None:
    if mean.shape != Y.shape or variance.shape != Y.shape:
        raise InputError(
            f"the latent mean and variance must have the shape of Y, {tuple(Y.shape)}; got {tuple(mean.shape)} and "
            f"{tuple(variance.shape)}."
        )


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


EXCESS_DF = (2.0, 0.1)
"""Shape and rate of the Gamma law of df − 2."""
DISPERSION = (-1.0, 1.5)
"""Location and scale of the logarithm of a dispersion."""


def register_likelihood_priors(likelihood: Likelihood, Y: Tensor | None = None) -> None:
    """Give every trained parameter of a likelihood that has no prior one, in place.

    Args:
        likelihood: any.
        Y: outputs (n, p) that give the units, NaN where missing; without them those of standardised outputs.

    Cost: O(n p).

    Example:
        >>> from ovkgp.inference.likelihoods import StudentT, register_likelihood_priors
        >>> likelihood = StudentT(num_outputs=2)
        >>> register_likelihood_priors(likelihood)
        >>> [name for name, *_ in likelihood.named_priors()]
        ['scale_prior', 'df_prior']
    """
    if isinstance(likelihood, PerOutput):
        for j, one in enumerate(likelihood.likelihoods):
            register_likelihood_priors(one, None if Y is None else Y[:, [j]])
        return
    spread = torch.ones(1, dtype=torch.float64)
    if Y is not None and bool(likelihood.is_real.all()):
        robust = not isinstance(likelihood, Gaussian)
        spread = column_spread(check_outputs(Y, likelihood.num_outputs), robust).detach().cpu()
    _register(likelihood, spread)


def _register(likelihood: Likelihood, spread: Tensor) -> None:
    registry, trained = Registry(likelihood), dict(likelihood.named_parameters(recurse=False))
    if isinstance(likelihood, Gaussian) and likelihood.noise_model.is_trained:
        register_noise_priors(likelihood.noise_model, spread)
    if isinstance(likelihood, LocationLikelihood) and "raw_scale" in trained:
        registry.add(likelihood, "raw_scale", log_normal(NOISE[0] / 2 + spread.log(), NOISE[1] / 2))
    if isinstance(likelihood, StudentT) and "raw_df" in trained:
        prior = GammaPrior(*torch.tensor(EXCESS_DF, dtype=torch.float64), validate_args=False)
        registry.add_with(likelihood, "df_prior", likelihood.raw_df, prior, get_excess_df, set_excess_df)
    if isinstance(likelihood, NegativeBinomial) and "raw_dispersion" in trained:
        registry.add(likelihood, "raw_dispersion", log_normal(*DISPERSION))


# Closures at the top level of the module: a lambda could not be pickled.


def get_excess_df(likelihood: StudentT) -> Tensor:
    return likelihood.df - MIN_DF


def set_excess_df(likelihood: StudentT, value: Tensor) -> None:
    likelihood.df = value + MIN_DF
