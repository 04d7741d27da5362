"""Likelihoods whose outputs are independent given f: each entry is a scalar problem, p(y_ij | f_ij).

A subclass writes the scalar formulas for whole tensors of entries that were all observed; what is missing is put in and
taken out here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError

START_SHARE = 0.1
"""The share of an output's variance that is taken for noise before training, as for `OutputNoise`."""


class Likelihood(Module, ABC):
    """p(y | f) of p outputs; `expected`, `terms` and `log_density` are of a whole batch of rows.

    Args:
        num_outputs: p.

    Where `couples_outputs` is False, the outputs are independent given f: values are (n, p) and `variance` is the marginal
    one, (n, p). Where it is True, values are (n,), one for each row, and `variance` is the covariance (n, p, p).
    All arithmetic is in float64. `expected` and `terms` take O(n p) memory, O(n p²) where outputs are coupled, whatever the nodes of a
    quadrature; they are differentiable once.
    """

    couples_outputs: bool = False
    """Whether the outputs of one row depend on one another given f."""

    predicts_from: str = "diag"
    """The form of the latent prediction that `moments` needs: "diag", or "output" with the covariances (m, p, p)."""

    name: str
    """What `make_likelihood` calls it."""

    def __init__(self, num_outputs: int):
        super().__init__()
        self.num_outputs = check_integer("the number of outputs", num_outputs)

    @property
    def is_real(self) -> Tensor:
        """Which outputs (p,) take any real value, so that they may be centred and scaled."""
        return torch.zeros(self.num_outputs, dtype=torch.bool)

    @abstractmethod
    def check(self, Y: Tensor) -> None:
        """Refuse Y (n, p) with values that cannot be observed; NaN passes."""

    @abstractmethod
    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        """log p(y | f) of Y (n, p) at F (…, n, p): (…, n, p), or (…, n) where outputs are coupled."""

    @abstractmethod
    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """E log p(y | f) under f ~ N(mean, variance), differentiable in these and in the likelihood's parameters.

        Args:
            Y: (n, p), NaN where missing.
            mean: (n, p).
            variance: (n, p), or (n, p, p) where outputs are coupled.
            noise: known variances (n, p) of the entries, for Gaussian likelihoods only.

        Returns:
            (n, p), zero where missing; (n,) where outputs are coupled.
        """

    def terms(
        self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The expected value, its ∂/∂mean (n, p) and −2 ∂/∂variance (n, p) or (n, p, p), without a graph.

        These are what natural gradients need: by Bonnet's and Price's theorems E ∂ log p / ∂f and −E ∂² log p / ∂f².
        """
        with torch.enable_grad():
            mean, variance = (part.detach().double().requires_grad_() for part in (mean, variance))
            value = self.expected(Y, mean, variance, noise)
            first, second = torch.autograd.grad(value.sum(), (mean, variance))
        return value.detach(), first, -(second + second.mT if self.couples_outputs else 2 * second)

    @abstractmethod
    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E[y] and Var[y], each (m, p), of a new observation whose latent marginal is N(mean, variance)."""

    @abstractmethod
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """P(Y ≤ y) of the predictive mixture for y (…, m, p): (…, m, p)."""

    @abstractmethod
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) N(f; mean, variance) df of each entry of y (…, m, p): (…, m, p), NaN where y is NaN."""

    @abstractmethod
    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """The q-quantile (m, p) of the predictive mixture."""

    def noise_covariance(self) -> Tensor | None:
        """Cov[y | f] (p, p) where y = f + noise; None where it depends on f."""
        return None

    @abstractmethod
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """An observation for every latent value of F (…, p)."""

    def start(self, Y: Tensor) -> None:
        """Set the trained parameters from data (n, p), NaN where missing."""

    @abstractmethod
    def initial_latent(self, Y: Tensor) -> Tensor:
        """Where the latent mean (p,) may start, given data (n, p)."""

    def variables(self) -> dict[str, Tensor]:
        """The trained parameters by name, as values: `scale`, `df`, `dispersion`, `noise`, …"""
        names = [name.removeprefix("raw_") for name, _ in self.named_parameters(recurse=False)]
        return {name: self._value(name).detach().clone() for name in names}

    def _own(self, name: str, value, start: float, least: float = 0.0) -> None:
        """Keep a parameter above `least`, one number an output: trained (on the log scale) if `value` is None, else fixed."""
        if value is None:
            raw = torch.full((self.num_outputs,), start - least, dtype=torch.float64).log()
            self.register_parameter(f"raw_{name}", torch.nn.Parameter(raw))
            self.register_constraint(f"raw_{name}", GreaterThan(least, torch.exp, torch.log).double())
        else:
            self.register_buffer(f"fixed_{name}", _one_an_output(name, value, self.num_outputs, least))

    def _is_trained(self, name: str) -> bool:
        return f"raw_{name}" in self._parameters

    def _value(self, name: str) -> Tensor:
        if self._is_trained(name):
            return self._constraints_of(name).transform(self._parameters[f"raw_{name}"])
        return self._buffers[f"fixed_{name}"]

    def _constraints_of(self, name: str) -> GreaterThan:
        return self.constraint_for_parameter_name(f"raw_{name}")

    @torch.no_grad()
    def _place(self, name: str, value) -> None:
        """Give a parameter, trained or fixed, another value."""
        least = self._constraints_of(name).lower_bound.item() if self._is_trained(name) else 0.0
        value = _one_an_output(name, value, self.num_outputs, least)
        if self._is_trained(name):
            raw = self._parameters[f"raw_{name}"]
            raw.copy_(self._constraints_of(name).inverse_transform(value.to(raw.device)))
        else:
            self._buffers[f"fixed_{name}"].copy_(value)


def _one_an_output(name: str, value, num_outputs: int, least: float) -> Tensor:
    try:
        value = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"{name} must be a number or one an output, ({num_outputs},): {error}") from error
    if value.dim() > 1 or (value.dim() == 1 and len(value) not in {1, num_outputs}):
        raise OptionError(
            f"{name} must be a number or one an output, ({num_outputs},); got shape {tuple(value.shape)}."
        )
    if not bool((torch.isfinite(value) & (value > least)).all()):
        raise OptionError(f"{name} must be finite and greater than {least:g}, got {value.tolist()}.")
    return value.expand(num_outputs).clone()


def check_outputs(Y: Tensor, num_outputs: int) -> Tensor:
    """Y (n, p) in float64, or an error that says what it should have been."""
    if not isinstance(Y, Tensor) or Y.dim() != 2 or Y.shape[1] != num_outputs:
        given = tuple(Y.shape) if isinstance(Y, Tensor) else type(Y).__name__
        raise InputError(f"Y must be a tensor (n, {num_outputs}), one column for each output; got {given}.")
    return Y.double()


def reject_values(Y: Tensor, bad: Tensor, who: str, wanted: str) -> None:
    """An error that names the first entry of Y (n, p) where `bad` holds."""
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        more = int(bad.sum()) - 1
        raise InputError(
            f"Y[{row}, {column}] = {Y[row, column].item():g}{f' (and {more} more)' if more else ''} cannot be an observation of "
            f"a {who} likelihood, which takes {wanted}; NaN is a missing output."
        )


def reject_noise(noise: Tensor | None, who: str) -> None:
    """Known variances make sense for Gaussian noise only."""
    if noise is not None:
        raise InputError(f"a {who} likelihood takes no known noise; leave `noise` out, or use likelihood='gaussian'.")


class EntrywiseLikelihood(Likelihood):
    """p(y | f) = Π_ij p(y_ij | f_ij); a subclass has `entry_log_density` and `entry_expected`, perhaps `entry_terms`.

    Missing entries are seen by these as y = 0, mean = 0 and variance = 1, and their results are set to zero: zero is a
    possible observation of every one of them.
    """

    @abstractmethod
    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        """log p(y | f), elementwise over (…, n, p)."""

    @abstractmethod
    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E log p(y | f), elementwise over (n, p)."""

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        reject_noise(noise, self.name)
        Y, F = check_outputs(Y, self.num_outputs), F.double()
        observed = ~torch.isnan(Y)
        return self.entry_log_density(torch.where(observed, Y, 0.0), torch.where(observed, F, 0.0)).where(observed, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        reject_noise(noise, self.name)
        observed, *entries = observed_entries(Y, mean, variance, self.num_outputs)
        return self.entry_expected(*entries).where(observed, 0.0)

    def terms(
        self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        reject_noise(noise, self.name)
        with torch.no_grad():
            observed, *entries = observed_entries(Y, mean, variance, self.num_outputs)
            return tuple(term.where(observed, 0.0) for term in self.entry_terms(*entries))

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value, ∂/∂mean and −2 ∂/∂variance, elementwise; by automatic differentiation unless it is overridden."""
        with torch.enable_grad():
            mean, variance = (part.detach().requires_grad_() for part in (mean, variance))
            value = self.entry_expected(y, mean, variance)
            first, second = torch.autograd.grad(value.sum(), (mean, variance))
        return value.detach(), first, -2 * second


def observed_entries(Y: Tensor, mean: Tensor, variance: Tensor, num_outputs: int) -> tuple[Tensor, ...]:
    """Which entries were seen, and y, mean, variance in float64 with (0, 0, 1) where they were not."""
    Y = check_outputs(Y, num_outputs)
    for name, part in (("mean", mean), ("variance", variance)):
        if part.shape != Y.shape:
            raise InputError(f"the latent {name} must have the shape of Y, {tuple(Y.shape)}; got {tuple(part.shape)}.")
    observed = ~torch.isnan(Y)
    return (
        observed,
        torch.where(observed, Y, 0.0),
        torch.where(observed, mean.double(), 0.0),
        torch.where(observed, variance.double(), 1.0),
    )


def marginal(mean: Tensor, variance: Tensor) -> Tensor:
    """The marginal variances (m, p) in float64, of those or of covariances (m, p, p)."""
    variance = variance.double()
    return variance.diagonal(dim1=-2, dim2=-1) if variance.dim() > mean.dim() else variance
