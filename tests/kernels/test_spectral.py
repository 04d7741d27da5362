"""Tests of spectral pairs of scalar kernels and of the quantiles they need."""

import functools
import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    SpectralMixtureKernel,
)
from scipy import stats
from scipy.integrate import quad
from scipy.special import ive

from ovkgp.exceptions import DomainError, OptionError, SpectralError
from ovkgp.features.spectral.pair import spectral_pair
from ovkgp.kernels import gpytorch_records, stationary
from ovkgp.kernels.chi_square import SkewedChi2Kernel
from ovkgp.kernels.groups import CyclicGroup, MultiplicativeGroup, ProductGroup
from ovkgp.kernels.spectral import SpectralPair, SpectralSum, gamma_quantile
from ovkgp.kernels.stationary import CauchyKernel, LaplaceKernel, SobolevKernel
from ovkgp.kernels.warped import WarpedKernel

NUM_DRAWS = 200_000


def mixture(num_dims):
    kernel = SpectralMixtureKernel(num_mixtures=3, ard_num_dims=num_dims)
    kernel.mixture_weights = torch.tensor([0.7, 0.2, 1.3])
    kernel.mixture_means = torch.linspace(0.05, 0.9, 3 * num_dims).reshape(3, 1, num_dims)
    kernel.mixture_scales = torch.linspace(0.4, 0.1, 3 * num_dims).reshape(3, 1, num_dims)
    return kernel


def with_values(kernel: Kernel, **values) -> Kernel:
    for name, value in values.items():
        setattr(kernel, name, torch.tensor(value))
    return kernel


PAIRS = {
    "laplace": lambda: with_values(LaplaceKernel(ard_num_dims=2), lengthscale=[0.7, 2.0]),
    "cauchy": lambda: with_values(CauchyKernel(ard_num_dims=2), lengthscale=[0.7, 2.0]),
    "skewed_chi2": lambda: with_values(SkewedChi2Kernel(ard_num_dims=2), c=[0.2, 1.5]),
    "sobolev_1": lambda: with_values(SobolevKernel(1, ard_num_dims=2), lengthscale=[0.7, 2.0]),
    "sobolev_2": lambda: with_values(SobolevKernel(2, ard_num_dims=2), lengthscale=[0.7, 2.0]),
    "sobolev_circle_1": lambda: SobolevKernel(1, periodic=True, active_dims=[0, 1]),
    "sobolev_circle_2": lambda: SobolevKernel(2, periodic=True, active_dims=[0, 1]),
    "sobolev_circle_3": lambda: SobolevKernel(3, periodic=True, active_dims=[1]),
    "periodic": lambda: with_values(PeriodicKernel(ard_num_dims=2), lengthscale=[0.3, 1.5], period_length=[0.8, 2.0]),
    "cosine": lambda: with_values(CosineKernel(active_dims=[1]), period_length=1.3),
    "mixture_1": lambda: with_active(mixture(1), [1]),
    "mixture_2": lambda: mixture(2),
    "warped_log": lambda: WarpedKernel(CauchyKernel(ard_num_dims=2), MultiplicativeGroup(2)),
    "warped_circle": lambda: WarpedKernel(
        with_values(CauchyKernel(), lengthscale=0.6), ProductGroup([MultiplicativeGroup(), CyclicGroup(2.0)])
    ),
}


def with_active(kernel: Kernel, columns: list[int]) -> Kernel:
    kernel.active_dims = torch.tensor(columns)
    return kernel


def points():
    rng = np.random.default_rng(7)
    x = rng.uniform(0.1, 2.5, size=(6, 2))
    return torch.tensor(x), torch.tensor(x + rng.uniform(0.0, 0.8, size=x.shape))


def draw_uniforms(pair, seed):
    return torch.tensor(np.random.default_rng(seed).uniform(size=(NUM_DRAWS, pair.base_dim)))


def integrands(kernel, x, z):
    """Per term, (D, number of lags): cos⟨ω, h(x) − h(z)⟩ B Bᵀ, whose mean is the kernel."""
    for seed, term in enumerate(spectral_pair(kernel).terms):
        frequencies = term.frequencies(draw_uniforms(term, seed))
        warp = term.warp or (lambda a: a)
        factor = term.factor(frequencies)
        assert frequencies.dtype == torch.float64 and factor.shape[-2:] == (1, 1)
        assert factor.shape[-3] in (1, NUM_DRAWS)
        yield torch.cos(frequencies @ (warp(x) - warp(z)).mT) * factor.square().squeeze(-1)


def exact(kernel, x, z):
    return kernel(x, z, diag=True)


@pytest.mark.parametrize("name", PAIRS)
def test_mean_over_frequencies_is_the_kernel(name):
    kernel, (x, z) = PAIRS[name]().double(), points()
    with torch.no_grad():
        terms = list(integrands(kernel, x, z))
        mean = sum(t.mean(0) for t in terms)
        error = sum(t.var(0) for t in terms).div(NUM_DRAWS).sqrt()
        difference = (mean - exact(kernel, x, z)).abs()
    assert (difference <= 4 * error + 1e-12).all()  # 1e-12: rounding, where every frequency is exact


# The slope ω sin(ωδ) of a Cauchy distribution has no mean, hence no standard error: these have the test below.
CAUCHY_KERNELS = ("laplace", "sobolev_1")
TRAINED = [name for name, make in PAIRS.items() if list(make().parameters()) and name not in CAUCHY_KERNELS]


@pytest.mark.parametrize("name", CAUCHY_KERNELS)
def test_cauchy_frequencies_have_the_exact_gradient_averaged_over_lags(name):
    """Averaged over lags δ ~ N(0, s²I), cos⟨ω, δ⟩ is exp(−s²‖ω‖²/2), of bounded slope; E k(δ) has a closed form."""
    kernel, s = PAIRS[name]().double(), 0.8
    pair = spectral_pair(kernel)
    frequencies = pair.frequencies(draw_uniforms(pair, 0))
    term = (-(s**2) * frequencies.square().sum(-1, keepdim=True) / 2).exp() * pair.factor(frequencies).square().squeeze(
        -1
    )
    rate = s / kernel.lengthscale
    average = (rate.square() / 2).exp() * torch.erfc(rate / math.sqrt(2))  # E exp(−|δ| / ℓ)
    exact_value = average.prod() * getattr(kernel, "value_at_zero", 1) ** 2
    exact_slopes = torch.autograd.grad(exact_value, kernel.raw_lengthscale)[0].flatten()
    for entry in range(2):
        direction = torch.nn.functional.one_hot(torch.tensor([entry]), 2).double()
        slope = directional(term, kernel.raw_lengthscale, direction)
        error = slope.std() / math.sqrt(NUM_DRAWS)
        assert abs(slope.mean() - exact_slopes[entry]) < 4 * error < 0.1 * abs(exact_slopes[entry])


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_gradient_of_the_mean_is_that_of_the_kernel(name):
    """The derivative along each hyperparameter entry, of every integrand, one direction at a time."""
    kernel, (x, z) = PAIRS[name]().double(), points()
    for parameter_name, parameter in kernel.named_parameters():
        for entry in range(parameter.numel()):
            direction = torch.zeros(parameter.numel(), dtype=torch.float64)
            direction[entry] = 1
            slopes = slopes_along(kernel, parameter_name, direction.view_as(parameter), x, z)
            expected, estimate, error = slopes
            assert ((estimate - expected).abs() <= 4 * error + 1e-10).all(), (parameter_name, entry)


def slopes_along(kernel, name, direction, x, z):
    """The derivative of the exact kernel, and the mean and standard error of that of the integrands."""
    parameter = kernel.get_parameter(name)
    value = exact(kernel, x, z)
    expected = torch.stack(
        [torch.autograd.grad(v, parameter, retain_graph=True)[0].mul(direction).sum() for v in value]
    )
    mean, variance = 0, 0
    for term in integrands(kernel, x, z):
        slope = directional(term, parameter, direction)
        mean, variance = mean + slope.mean(0), variance + slope.var(0)
    return expected, mean, (variance / NUM_DRAWS).sqrt()


def directional(term, parameter, direction):
    """The derivative of every entry of `term` along `direction`, by differentiating the gradient in its cotangent."""
    cotangent = torch.ones_like(term, requires_grad=True)
    gradient = torch.autograd.grad(term, parameter, cotangent, create_graph=True, allow_unused=True)[0]
    if gradient is None:
        return torch.zeros_like(term)
    slope = torch.autograd.grad((gradient * direction).sum(), cotangent, allow_unused=True)[0]
    return torch.zeros_like(term) if slope is None else slope.detach()


@pytest.mark.parametrize(
    "make",
    [
        LaplaceKernel,
        CauchyKernel,
        SkewedChi2Kernel,
        SobolevKernel,
        functools.partial(SobolevKernel, order=2),
        PeriodicKernel,
        functools.partial(SpectralMixtureKernel, num_mixtures=2),
    ],
)
def test_scalar_pairs_accept_batches_of_hyperparameters(make):
    kernel = make(ard_num_dims=2, batch_shape=torch.Size([3]))
    pair = spectral_pair(kernel)
    frequencies = pair.frequencies(torch.rand(5, pair.base_dim, dtype=torch.float64))
    assert frequencies.shape in ((3, 5, 2), (5, 2)) and not pair.isotropic
    factor = pair.factor(frequencies)
    assert factor.shape[-2:] == (1, 1) and factor.shape[-3] in (1, 5)
    assert not isinstance(kernel, SkewedChi2Kernel) or pair.warp(torch.rand(4, 2)).shape == (3, 4, 2)


def test_batched_periodic_frequencies_equal_those_of_each_member():
    kernel = PeriodicKernel(ard_num_dims=2, batch_shape=torch.Size([3])).double()
    kernel.lengthscale = torch.tensor([0.05, 0.4, 3.0]).double()[:, None, None].expand(3, 1, 2)
    u = torch.rand(50, 2, dtype=torch.float64)
    batched = spectral_pair(kernel).frequencies(u)
    for i, lengthscale in enumerate([0.05, 0.4, 3.0]):
        single = PeriodicKernel(ard_num_dims=2).double()
        single.lengthscale = torch.tensor(lengthscale).double()
        torch.testing.assert_close(batched[i], spectral_pair(single).frequencies(u))


def test_sobolev_2_quantiles_match_quadrature_also_in_the_tails():
    u = torch.tensor([1e-12, 1e-6, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-6], dtype=torch.float64)
    quantiles = stationary._sobolev2_quantile(u)

    def density(w):
        return math.sqrt(3) / math.pi / (1 + w**2 + w**4)

    for probability, quantile in zip(u[:5].tolist(), quantiles[:5].tolist(), strict=True):
        # P(ξ > −quantile), in y = 1/ξ where the tail is long
        a = -quantile
        tail = quad(lambda y: density(1 / y) / y**2, 0, 1 / a)[0] if a > 1 else quad(density, a, np.inf)[0]
        assert tail == pytest.approx(probability, rel=1e-9)
    torch.testing.assert_close(quantiles[2:4], -quantiles[[6, 5]])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_zeta_integers_match_the_cumulative_sum(order):
    kernel = SobolevKernel(order, periodic=True)
    mass = 1 / kernel.value_at_zero
    k = np.arange(1, 2000)
    edges = np.concatenate([[mass], mass + np.cumsum(2 * mass / (2 * np.pi * k) ** (2 * order))])
    folded = np.random.default_rng(0).uniform(size=20_000) * edges[1500]
    expected = np.searchsorted(edges, folded, side="right")
    for sign in (1, -1):
        drawn = stationary._zeta_integers(torch.tensor((1 + sign * folded) / 2), order, mass)
        np.testing.assert_array_equal(drawn, sign * expected)


def test_bessel_integers_are_symmetric_with_the_right_masses():
    u = torch.tensor(np.random.default_rng(0).uniform(size=(NUM_DRAWS, 1)))
    drawn = gpytorch_records._bessel_integers(u, torch.full((1, 1), 2.0)).flatten().numpy()
    values = np.arange(-5, 6)
    masses = ive(np.abs(values), 2.0)
    counts = np.array([(drawn == v).sum() for v in values] + [(np.abs(drawn) > 5).sum()])
    assert stats.chisquare(counts, NUM_DRAWS * np.append(masses, 1 - masses.sum())).pvalue > 1e-4


def test_log_bessel_is_twice_differentiable():
    order = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    z = torch.tensor([0.3, 1.0, 9.0], dtype=torch.float64, requires_grad=True)
    np.testing.assert_allclose(gpytorch_records.log_bessel(order, z).detach(), np.log(ive([0, 1, 4], [0.3, 1, 9])))
    assert torch.autograd.gradcheck(lambda z: gpytorch_records.log_bessel(order, z), (z,))
    assert torch.autograd.gradgradcheck(lambda z: gpytorch_records.log_bessel(order, z), (z,))


def test_spectral_distributions_are_symmetric():
    for name, make in PAIRS.items():
        for term in spectral_pair(make()).terms:
            u = torch.rand(101, term.base_dim, dtype=torch.float64)
            reflected = 1 - u
            if name == "mixture_2":
                reflected[:, 4:] = u[:, 4:]  # the last two choose the components, the others make ω
            torch.testing.assert_close(term.frequencies(reflected), -term.frequencies(u), msg=name)


def test_cosine_pair_is_exact_in_one_dimension_only():
    kernel = with_values(CosineKernel(), period_length=1.3).double()
    pair = spectral_pair(kernel, num_dims=1)
    frequency = pair.frequencies(torch.tensor([[0.9]], dtype=torch.float64))
    x = torch.linspace(0, 4, 9, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(torch.cos((x - x.mT) * frequency), kernel(x).to_dense())
    with pytest.raises(SpectralError, match="not positive definite in 2 dimensions"):
        spectral_pair(kernel, num_dims=2)
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(square).to_dense()).min() < -0.1  # the refusal is right


def test_mixture_is_a_sum_of_pairs_in_one_dimension_and_one_pair_in_more():
    assert isinstance(spectral_pair(mixture(1)), SpectralSum) and len(spectral_pair(mixture(1)).terms) == 3
    assert isinstance(spectral_pair(mixture(2)), SpectralPair)


def test_warp_checks_domains():
    for kernel in (SkewedChi2Kernel(c=0.5), WarpedKernel(LaplaceKernel(), MultiplicativeGroup(2))):
        pair = spectral_pair(kernel, num_dims=2)
        with pytest.raises(DomainError, match=r"column 1 .*smallest value is -3"):
            pair.warp(torch.tensor([[1.0, -3.0]]))


def test_scalar_pairs_require_the_input_dimension():
    with pytest.raises(OptionError, match="num_dims"):
        spectral_pair(LaplaceKernel())
    assert spectral_pair(LaplaceKernel(), num_dims=4).base_dim == 4
    assert spectral_pair(WarpedKernel(LaplaceKernel(), CyclicGroup(1.0))).base_dim == 2


def test_warped_kernel_selects_columns_before_and_after_the_warp():
    base = LaplaceKernel(active_dims=[1])
    pair = spectral_pair(WarpedKernel(base, MultiplicativeGroup(2), active_dims=[3, 0]))
    x = torch.rand(5, 4) + 0.1
    torch.testing.assert_close(pair.warp(x), x[:, :1].log())
    assert pair.base_dim == 1


def test_base_kernel_without_a_pair_is_rejected():
    with pytest.raises(SpectralError):
        spectral_pair(WarpedKernel(KernelWithoutPair(), MultiplicativeGroup()))


class KernelWithoutPair(Kernel):
    has_lengthscale = True


def test_gamma_quantiles_are_twice_differentiable():
    """Also where second derivatives are asked of a rational quadratic kernel's α."""
    shape = torch.tensor([0.4, 1.3, 7.0], dtype=torch.float64, requires_grad=True)
    uniforms = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gamma_quantile, (shape, uniforms))
    assert torch.autograd.gradgradcheck(gamma_quantile, (shape, uniforms), atol=1e-4)


def test_kt_e_25_frequencies_of_the_exponential_kernel_are_multivariate_cauchy():
    """exp(−‖δ‖) in two dimensions: P(‖ω‖ ≤ r) = 1 − (1 + r²)^(−½); a Cauchy radius in a uniform direction has another kernel."""
    kernel = MaternKernel(nu=0.5)
    kernel.lengthscale = 1.0
    pair = spectral_pair(kernel, num_dims=2)
    u = torch.rand(20_000, pair.base_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    radii = pair.frequencies(u).detach().norm(dim=1).numpy()
    assert stats.kstest(radii, lambda r: 1 - 1 / np.sqrt(1 + r**2)).pvalue > 0.01
    assert stats.kstest(radii, lambda r: 2 / np.pi * np.arctan(r)).pvalue < 1e-9
