"""The protocol of a likelihood p(y | f), and the base class of those whose outputs are independent given f.

For the latter each entry is a scalar problem, p(y_ij | f_ij): a subclass implements the formulas for tensors of
observed entries, and `EntrywiseLikelihood` handles the missing ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods.quadrature import differentiate

INITIAL_NOISE_FRACTION = 0.1
"""Fraction of an output's variance that is attributed to noise before training, as for `OutputNoise`."""
Terms = tuple[Tensor, Tensor, Tensor]  # `expected`, its ∂/∂mean and −2 ∂/∂variance


class Likelihood(Module, ABC):
    """Distribution p(y | f) of p outputs given the latent function.

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.

    Attributes
    ----------
    name : str
        Name in `make_likelihood`.
    couples_outputs : bool
        Whether the outputs of one row depend on one another given f. If False, log densities have shape (n, p) and
        `variance` is the marginal one, (n, p). If True, log densities have shape (n,) and `variance` is the covariance,
        (n, p, p).
    predicts_from : {"diag", "output"}
        Form of the latent prediction that `moments` needs: marginal variances (m, p), or covariances (m, p, p).

    Notes
    -----
    All arithmetic is in float64. `expected` and `terms` take O(n p) memory, O(n p²) if outputs are coupled,
    independently of the number of quadrature nodes; they are differentiable once.
    """

    name: str
    couples_outputs: bool = False
    predicts_from: str = "diag"

    def __init__(self, num_outputs: int):
        super().__init__()
        self.num_outputs = check_integer("num_outputs", num_outputs)

    @property
    def is_real(self) -> Tensor:
        """Mask (p,) of the outputs that take any real value, so that they can be centered and scaled."""
        return torch.zeros(self.num_outputs, dtype=torch.bool)

    def check(self, Y: Tensor, first_output: int = 0) -> None:
        """Check that all values can be observed under this likelihood: finite numbers, unless overridden.

        Parameters
        ----------
        Y : Tensor of shape (n, p)
            Outputs. NaN (missing) is allowed.
        first_output : int, default=0
            Index of the first column of Y in the data, which error messages refer to.

        Raises
        ------
        InputError
            If a value is outside the support; the message gives its row and column.
        """
        reject_values(check_outputs(Y, self.num_outputs), torch.isinf(Y), self.name, "finite numbers", first_output)

    @abstractmethod
    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        """Compute log p(y | f).

        Parameters
        ----------
        Y : Tensor of shape (n, p)
            Outputs, NaN where missing.
        F : Tensor of shape (..., n, p)
            Latent values.
        noise : Tensor of shape (n, p) or None, default=None
            Known noise variances, for Gaussian likelihoods only.

        Returns
        -------
        Tensor of shape (..., n, p), or (..., n) if outputs are coupled
            Log densities, zero where missing.
        """

    @abstractmethod
    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        """Compute E log p(y | f) under f ~ N(mean, variance), differentiable in these and in the parameters.

        Parameters
        ----------
        Y, noise
            As for `log_density`.
        mean : Tensor of shape (n, p)
            Latent mean.
        variance : Tensor of shape (n, p), or (n, p, p) if outputs are coupled
            Latent variances or covariances.

        Returns
        -------
        Tensor of shape (n, p), or (n,) if outputs are coupled
            Expected log densities, zero where missing.
        """

    def terms(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Terms:
        """Compute `expected`, its ∂/∂mean (n, p) and −2 ∂/∂variance (n, p) or (n, p, p), without a graph.

        By Bonnet's and Price's theorems the derivatives are E ∂ log p / ∂f and −E ∂² log p / ∂f²; natural gradients
        need them.

        Parameters
        ----------
        Y, mean, variance, noise
            As for `expected`.

        Returns
        -------
        value, first, second : tuple of Tensor
            Expectations and their derivatives.
        """
        latent = mean.double(), variance.double()
        value, first, second = differentiate(lambda m, v: self.expected(Y, m, v, noise), *latent)
        return value, first, -(second + second.mT if self.couples_outputs else 2 * second)

    @abstractmethod
    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Compute E[y] and Var[y], each (m, p), of a new observation with latent marginals N(mean, variance).

        Parameters
        ----------
        mean, variance : Tensor of shape (m, p), or variance (m, p, p) if outputs are coupled
            Latent moments, as `predicts_from` says.

        Returns
        -------
        mean, variance : Tensor of shape (m, p)
            Moments of y.
        """

    @abstractmethod
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute P(Y ≤ y) of the predictive distribution at y (…, m, p); returns (…, m, p).

        Parameters
        ----------
        y : Tensor of shape (..., m, p)
            Values.
        mean, variance : Tensor of shape (m, p), or variance (m, p, p) if outputs are coupled
            Latent moments, as `predicts_from` says.

        Returns
        -------
        Tensor of shape (..., m, p)
            Probabilities.
        """

    @abstractmethod
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute log ∫ p(y | f) N(f; mean, variance) df of each entry of y (…, m, p); NaN where y is NaN.

        Parameters
        ----------
        y : Tensor of shape (..., m, p)
            Values, NaN where missing.
        mean, variance : Tensor of shape (m, p), or variance (m, p, p) if outputs are coupled
            Latent moments, as `predicts_from` says.

        Returns
        -------
        Tensor of shape (..., m, p)
            Log densities.
        """

    @abstractmethod
    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute the q-quantile (m, p) of the predictive distribution.

        Parameters
        ----------
        q : float
            Level in (0, 1).
        mean, variance : Tensor of shape (m, p), or variance (m, p, p) if outputs are coupled
            Latent moments, as `predicts_from` says.

        Returns
        -------
        Tensor of shape (m, p)
            Quantiles.
        """

    def noise_covariance(self) -> Tensor | None:
        """Return Cov[y | f] (p, p) if y = f + noise; None if it depends on f.

        Returns
        -------
        Tensor of shape (p, p) or None
            Covariance.
        """
        return None

    @abstractmethod
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one observation per latent value of F (…, p).

        Parameters
        ----------
        F : Tensor of shape (..., p)
            Latent values.
        generator : torch.Generator
            Source of random numbers.

        Returns
        -------
        Tensor of shape (..., p)
            Observations.
        """

    def start(self, Y: Tensor) -> None:
        """Initialize the trained parameters from data (n, p), NaN where missing.

        Parameters
        ----------
        Y : Tensor of shape (n, p)
            Outputs.
        """

    @abstractmethod
    def initial_latent(self, Y: Tensor) -> Tensor:
        """Compute an initial value (p,) of the latent mean from data (n, p).

        Parameters
        ----------
        Y : Tensor of shape (n, p)
            Outputs, NaN where missing.

        Returns
        -------
        Tensor of shape (p,)
            Initial values.
        """

    def variables(self) -> dict[str, Tensor]:
        """Return the values of the trained parameters by name: `scale`, `df`, `dispersion`, `noise`, …

        Returns
        -------
        dict of str to Tensor
            Values.
        """
        names = [name.removeprefix("raw_") for name, _ in self.named_parameters(recurse=False)]
        return {name: self._get_value(name).detach().clone() for name in names}

    def _add_parameter(self, name: str, value, initial: float, lower: float = 0.0) -> None:
        """Register a parameter (p,) above `lower`: trained (on the log scale) if `value` is None, else fixed."""
        if value is None:
            raw = torch.full((self.num_outputs,), initial - lower, dtype=torch.float64).log()
            self.register_parameter(f"raw_{name}", torch.nn.Parameter(raw))
            self.register_constraint(f"raw_{name}", GreaterThan(lower, torch.exp, torch.log).double())
        else:
            self.register_buffer(f"fixed_{name}", _check_per_output(name, value, self.num_outputs, lower))

    def _is_trained(self, name: str) -> bool:
        return f"raw_{name}" in self._parameters

    def _get_value(self, name: str) -> Tensor:
        if self._is_trained(name):
            return self._get_constraint(name).transform(self._parameters[f"raw_{name}"])
        return self._buffers[f"fixed_{name}"]

    def _get_constraint(self, name: str) -> GreaterThan:
        return self.constraint_for_parameter_name(f"raw_{name}")

    @torch.no_grad()
    def _set_value(self, name: str, value) -> None:
        """Set the value of a parameter, trained or fixed."""
        lower = self._get_constraint(name).lower_bound.item() if self._is_trained(name) else 0.0
        value = _check_per_output(name, value, self.num_outputs, lower)
        if self._is_trained(name):
            raw = self._parameters[f"raw_{name}"]
            raw.copy_(self._get_constraint(name).inverse_transform(value.to(raw.device)))
        else:
            self._buffers[f"fixed_{name}"].copy_(value)


def parameter_property(name: str, doc: str) -> property:
    """Make a property for a parameter of `Likelihood._add_parameter`."""
    return property(lambda self: self._get_value(name), lambda self, value: self._set_value(name, value), None, doc)


def _check_per_output(name: str, value, num_outputs: int, lower: float) -> Tensor:
    """Expand a number or one value per output to a tensor (p,) after checking its shape and range."""
    expected = f"a number or one value per output, shape ({num_outputs},)"
    try:
        value = torch.as_tensor(value, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"{name} must be {expected}, got {value!r} ({error}).") from error
    if value.dim() > 1 or (value.dim() == 1 and len(value) not in {1, num_outputs}):
        raise OptionError(f"{name} must be {expected}, got shape {tuple(value.shape)}.")
    if not bool((torch.isfinite(value) & (value > lower)).all()):
        raise OptionError(f"{name} must be finite and greater than {lower:g}, got {value.tolist()}.")
    return value.expand(num_outputs).clone()


def check_outputs(Y: Tensor, num_outputs: int) -> Tensor:
    """Check that Y is a tensor (n, p), and return it in float64."""
    if not isinstance(Y, Tensor) or Y.dim() != 2 or Y.shape[1] != num_outputs:
        given = tuple(Y.shape) if isinstance(Y, Tensor) else type(Y).__name__
        raise InputError(f"Y must be a tensor of shape (n, {num_outputs}), one column per output, got {given}.")
    return Y.double()


def reject_values(Y: Tensor, bad: Tensor, likelihood: str, supported: str, first_output: int) -> None:
    """Raise an error on the first entry of Y (n, p) where `bad` holds; columns are counted from `first_output`."""
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        more = int(bad.sum()) - 1
        raise InputError(
            f"Y[{row}, {first_output + column}] = {Y[row, column].item():g}{f' (and {more} more)' if more else ''} cannot be observed under a {likelihood} likelihood, which supports {supported}. Use NaN for missing outputs."
        )


def reject_noise(noise: Tensor | None, likelihood: str) -> None:
    """Raise an error if variances are known, which makes sense for Gaussian noise only."""
    if noise is not None:
        raise InputError(
            f"Known noise is not supported with a {likelihood} likelihood. Omit `noise`, or use likelihood='gaussian'."
        )


class EntrywiseLikelihood(Likelihood):
    """p(y | f) = Π_ij p(y_ij | f_ij); a subclass has `entry_log_density` and `entry_expected`, perhaps `entry_terms`.

    Missing entries are passed to these as y = 0 (in every support), mean = 0 and variance = 1.
    """

    @abstractmethod
    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        """Compute log p(y | f), elementwise over (…, n, p).

        Parameters
        ----------
        y, f : Tensor of shape (..., n, p)
            Observed and latent values.

        Returns
        -------
        Tensor of the same shape
            Log densities.
        """

    @abstractmethod
    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute E log p(y | f), elementwise over (n, p).

        Parameters
        ----------
        y : Tensor of shape (n, p)
            Observed values.
        mean, variance : Tensor of shape (n, p)
            Latent moments.

        Returns
        -------
        Tensor of shape (n, p)
            Expectations.
        """

    def log_density(self, Y: Tensor, F: Tensor, noise: Tensor | None = None) -> Tensor:
        reject_noise(noise, self.name)
        Y, F = check_outputs(Y, self.num_outputs), F.double()
        observed = ~torch.isnan(Y)
        return self.entry_log_density(torch.where(observed, Y, 0.0), torch.where(observed, F, 0.0)).where(observed, 0.0)

    def expected(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Tensor:
        reject_noise(noise, self.name)
        observed, *entries = observed_entries(Y, mean, variance, self.num_outputs)
        return self.entry_expected(*entries).where(observed, 0.0)

    def terms(self, Y: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> Terms:
        reject_noise(noise, self.name)
        with torch.no_grad():
            observed, *entries = observed_entries(Y, mean, variance, self.num_outputs)
            return tuple(term.where(observed, 0.0) for term in self.entry_terms(*entries))

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the value, ∂/∂mean and −2 ∂/∂variance, elementwise, by automatic differentiation.

        Parameters
        ----------
        y : Tensor of shape (n, p)
            Observed values.
        mean, variance : Tensor of shape (n, p)
            Latent moments.

        Returns
        -------
        value, first, second : Tensor of shape (n, p)
            Expectation and its derivatives.
        """
        value, first, second = differentiate(lambda m, v: self.entry_expected(y, m, v), mean, variance)
        return value, first, -2 * second


def observed_entries(Y: Tensor, mean: Tensor, variance: Tensor, num_outputs: int) -> tuple[Tensor, ...]:
    """Return the mask of observed entries, and y, mean, variance in float64 with (0, 0, 1) where unobserved."""
    Y = check_outputs(Y, num_outputs)
    check_latent_shapes(Y, mean, variance)
    observed = ~torch.isnan(Y)
    filled = ((Y, 0.0), (mean.double(), 0.0), (variance.double(), 1.0))
    return observed, *(torch.where(observed, values, fill) for values, fill in filled)


def check_latent_shapes(Y: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Check that the latent mean and variance have the shape of Y."""
    for name, latent in (("mean", mean), ("variance", variance)):
        if latent.shape != Y.shape:
            raise InputError(
                f"The latent {name} has shape {tuple(latent.shape)}, expected {tuple(Y.shape)}, the shape of Y."
            )


def marginal_variance(mean: Tensor, variance: Tensor) -> Tensor:
    """Return the marginal variances (m, p) in float64, from these or from covariances (m, p, p)."""
    variance = variance.double()
    return variance.diagonal(dim1=-2, dim2=-1) if variance.dim() > mean.dim() else variance
