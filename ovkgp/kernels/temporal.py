"""Scalar kernels of time: integrated Brownian motion for trends, and a Fourier series of a periodic kernel for seasons.

Both are Markov (`state_space`), alone, in sums, and multiplied by Matérn kernels, so that Kalman filters are exact.
"""

from __future__ import annotations

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import check_integer, check_positive
from ovkgp.exceptions import InputError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.gpytorch_records import TWO_PI, log_bessel
from ovkgp.kernels.radial_derivatives import Jet, separable_jet
from ovkgp.kernels.records import KernelRecord, register_kernel
from ovkgp.kernels.spectral import SpectralPair, density_ratio, draw_sign
from ovkgp.kernels.state_space import StateSpaceForm


class IntegratedBrownianKernel(BatchIndexMixin, Kernel):
    """Kernel of integrated Brownian motion, k(s, t) = (m³ + 1.5 |s − t| m²) / span³ with m = max(min(s, t) − origin, 0).

    Draws are zero until `origin` and smooth trends after it: cubic smoothing splines are their posterior means. The variance is 1 at
    origin + span. Add constant and linear kernels for the level and the slope at the origin.

    Parameters
    ----------
    origin : float, default=0.0
        Time at which the motion begins, at most the first time of the data.
    span : float, default=1.0
        Time after the origin at which the variance is 1, such as the length of the series.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `active_dims`.

    Raises
    ------
    InputError
        At evaluation, if the inputs have more than one column.

    Notes
    -----
    The state is (f, f' span). Complexity: O(n m) operations and memory; O(n) for the diagonal.

    References
    ----------
    Wahba (1978), Improper priors, spline smoothing and the problem of guarding against model errors in regression.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import IntegratedBrownianKernel
    >>> kernel = IntegratedBrownianKernel(origin=1.0, span=2.0)
    >>> kernel(torch.tensor([[1.0], [3.0]]), torch.tensor([[3.0], [5.0]])).to_dense()
    tensor([[0.0000, 0.0000],
            [1.0000, 2.5000]])
    """

    has_lengthscale = False

    def __init__(self, origin: float = 0.0, span: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.origin, self.span = float(origin), check_positive("span", span)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        s, t = _as_times(x1, x2, diag, self)
        lag = ((t - s) / self.span).abs()
        m = ((torch.minimum(s, t) - self.origin) / self.span).clamp_min(0)
        return m**2 * (m + 1.5 * lag)


def _as_times(x1: Tensor, x2: Tensor, diag: bool, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """Return times that broadcast to all pairs, or to those of equal index."""
    if x1.shape[-1] != 1:
        raise InputError(
            f"{type(kernel).__name__} has one input, time, got {x1.shape[-1]} columns. Select the column of times with active_dims=[0]."
        )
    return (x1[..., 0], x2[..., 0]) if diag else (x1, x2.mT)


def _brownian_form(kernel: IntegratedBrownianKernel) -> StateSpaceForm:
    origin, span = kernel.origin, kernel.span

    def transition(lags: Tensor) -> Tensor:
        one = torch.ones_like(lags)
        return torch.stack([one, lags / span, 0 * one, one], -1).unflatten(-1, (2, 2))

    def process_noise(lags: Tensor, times: Tensor | None = None) -> Tensor:
        # the state is zero until the origin
        u = (lags if times is None else torch.minimum(lags, (times - origin).clamp_min(0))) / span
        return torch.stack([u**3, 1.5 * u**2, 1.5 * u**2, 3 * u], -1).unflatten(-1, (2, 2))

    return StateSpaceForm(2, transition, process_noise, lambda times: process_noise((times - origin).clamp_min(0)))


register_kernel(KernelRecord(IntegratedBrownianKernel, state_space=_brownian_form, options=("origin", "span")))


class SeasonalKernel(BatchIndexMixin, Kernel):
    """Fourier series of a periodic kernel without its constant, k(τ) = Σ_j q_j cos(2πjτ/period), j = 1, …, J.

    The weights q_j ∝ I_j(1/ℓ) have the sum 1; they are the first ones of `gpytorch.kernels.PeriodicKernel`. Draws have the mean zero
    over a period. The product with a Matérn kernel is quasi-periodic: its draws change from one period to the next.

    Parameters
    ----------
    period_length : float, default=1.0
        Period. It is trained unless `raw_period_length.requires_grad` is set to False.
    num_harmonics : int, default=4
        Number J of harmonics. The state has 2J entries.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `active_dims`.

    Raises
    ------
    InputError
        At evaluation, if the inputs have more than one column.

    Notes
    -----
    Complexity: O(n m J) operations and O(n m) memory; O(n J) for the diagonal.

    References
    ----------
    Solin and Särkkä (2014), Explicit link between periodic covariance functions and state space models.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import SeasonalKernel
    >>> kernel = SeasonalKernel(period_length=12.0, num_harmonics=1)
    >>> kernel(torch.zeros(1, 1), torch.tensor([[0.0], [6.0], [12.0]])).to_dense().detach().round(decimals=5)
    tensor([[ 1., -1.,  1.]])
    """

    has_lengthscale = True
    is_stationary = True

    def __init__(self, period_length: float = 1.0, num_harmonics: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.num_harmonics = check_integer("num_harmonics", num_harmonics)
        self.register_parameter("raw_period_length", torch.nn.Parameter(torch.zeros(*self.batch_shape, 1, 1)))
        self.register_constraint("raw_period_length", Positive())
        self.period_length = check_positive("period_length", period_length)

    @property
    def period_length(self) -> Tensor:
        """Period."""
        return self.raw_period_length_constraint.transform(self.raw_period_length)

    @period_length.setter
    def period_length(self, value) -> None:
        value = torch.as_tensor(value).to(self.raw_period_length)
        self.initialize(raw_period_length=self.raw_period_length_constraint.inverse_transform(value))

    @property
    def rates(self) -> Tensor:
        """Angular frequencies 2πj/period (*batch, J)."""
        orders = torch.arange(1, self.num_harmonics + 1).to(self.period_length)
        return TWO_PI * orders / self.period_length.squeeze(-1)

    @property
    def weights(self) -> Tensor:
        """Variances q_j (*batch, J) of the harmonics, of sum 1."""
        orders = torch.arange(1, self.num_harmonics + 1).to(self.lengthscale)
        return log_bessel(orders, 1 / self.lengthscale.squeeze(-1)).softmax(-1)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        s, t = _as_times(x1, x2, diag, self)
        lag = t - s
        terms = (
            part.reshape(-1, *self.batch_shape, *[1] * (1 if diag else 2))
            for part in (self.weights.movedim(-1, 0), self.rates.movedim(-1, 0))
        )
        return sum(weight * torch.cos(rate * lag) for weight, rate in zip(*terms, strict=True))


def _seasonal_jet(kernel: SeasonalKernel, lag: Tensor) -> Jet:
    angles, rates, weights = lag.unsqueeze(-1) * kernel.rates, kernel.rates, kernel.weights
    value, slope = (weights * angles.cos()).sum(-1), -(weights * rates * angles.sin()).sum(-1)
    return separable_jet(value, slope, -(weights * rates**2 * angles.cos()).sum(-1))


def _seasonal_pair(kernel: SeasonalKernel, num_dims: int) -> SpectralPair:
    """Return the pair ω = ±2πj/period with the probabilities q_j."""

    def frequencies(u: Tensor) -> Tensor:
        edges = kernel.weights.detach().to(u).cumsum(-1)
        orders = torch.searchsorted(edges, (2 * u - 1).abs().contiguous()).clamp_max(kernel.num_harmonics - 1)
        return kernel.rates.to(u)[orders] * draw_sign(u)

    def factor(frequencies: Tensor) -> Tensor:
        orders = (frequencies.detach().abs() * kernel.period_length.detach() / TWO_PI).round().long() - 1
        return density_ratio(kernel.weights.to(frequencies).log()[orders].sum(-1))

    return SpectralPair(num_dims, frequencies, factor, discrete=True)


def _seasonal_form(kernel: SeasonalKernel) -> StateSpaceForm:
    """Make the form with independent states (c_j, s_j) that rotate; f = Σ_j c_j."""
    rates, weights, size = kernel.rates.double(), kernel.weights.double(), 2 * kernel.num_harmonics

    def transition(lags: Tensor) -> Tensor:
        angles = lags.unsqueeze(-1) * rates
        cos, sin = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
        return torch.cat([torch.cat([cos, sin], -1), torch.cat([-sin, cos], -1)], -2)

    def covariance(times: Tensor) -> Tensor:
        return torch.diag(weights.repeat(2)).expand(len(times), -1, -1)

    reading = torch.cat([torch.ones(kernel.num_harmonics), torch.zeros(kernel.num_harmonics)]).double()
    return StateSpaceForm(
        size, transition, lambda lags, times=None: lags.new_zeros(len(lags), size, size), covariance, reading
    )


register_kernel(
    KernelRecord(
        SeasonalKernel,
        {"period_length": "period", "lengthscale": "relative_lengthscale"},
        jet=_seasonal_jet,
        spectral_pair=_seasonal_pair,
        state_space=_seasonal_form,
        options=("num_harmonics",),
    )
)
