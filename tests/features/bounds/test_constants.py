"""Orlicz norms, intrinsic dimensions and the constants of a kernel, against simulation and the thesis' values."""

import math

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)

from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features import spectral_pair
from ovkgp.features.bounds import (
    intrinsic_dimension,
    orlicz_norm,
    pointwise_error_bound,
    required_features,
    spectral_constants,
)
from ovkgp.features.bounds.constants import estimate_constants
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    HelmholtzKernel,
    LaplaceKernel,
    SkewedChi2Kernel,
    SobolevKernel,
    TransformableKernel,
)
from ovkgp.kernels.spectral import SpectralPair

FIELDS = [CurlFreeKernel, DivergenceFreeKernel]


def rbf(num_dims, lengthscale=1.0):
    kernel = RBFKernel(ard_num_dims=num_dims)
    kernel.lengthscale = lengthscale
    return kernel.double()


def close(value, draws, errors=5.0):
    """Whether `value` is the mean of `draws`, within `errors` standard errors."""
    return abs(value - draws.mean()) < errors * draws.std() / math.sqrt(draws.numel())


# Orlicz norm and intrinsic dimension


def test_orlicz_norm_of_a_constant_is_a_over_log_two():
    assert orlicz_norm(torch.full((7,), -3.0)) == pytest.approx(3 / math.log(2))
    assert orlicz_norm(torch.zeros(3)) == 0.0


def test_orlicz_norm_of_draws_solves_its_equation():
    draws = torch.distributions.Exponential(2.0).sample((1000,)).double()
    assert (draws / orlicz_norm(draws)).exp().mean() == pytest.approx(2.0, abs=1e-8)
    assert orlicz_norm(3 * draws) == pytest.approx(3 * orlicz_norm(draws))


def test_orlicz_norm_of_an_exponential_variable():
    # MGF 1/(1 − t/rate) = 2 at t = rate/2, so the norm is 2/rate. The estimator is at exp(X/C) of infinite variance
    # there, hence the wide tolerance.
    generator = torch.Generator().manual_seed(0)
    draws = torch.empty(200_000, dtype=torch.float64).exponential_(4.0, generator=generator)
    assert orlicz_norm(draws) == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize("num_dims", [2, 4])
@pytest.mark.parametrize("field", FIELDS)
def test_orlicz_norm_of_gaussian_fields(field, num_dims):
    sigma = 1.3
    norm = orlicz_norm(field(rbf(num_dims, sigma)))
    assert norm == pytest.approx(2 / (sigma**2 * (1 - 4 ** (-1 / num_dims))))
    # E exp(‖ω‖²/C) = 2, by quadrature over the radius of the Gaussian frequencies
    radius = torch.linspace(0, 60, 200_001, dtype=torch.float64)
    log_density = (
        (num_dims - 1) * radius.log() - radius**2 / 2 - math.lgamma(num_dims / 2) - (num_dims / 2 - 1) * math.log(2)
    )
    integrand = torch.exp(log_density + radius**2 / sigma**2 / norm)
    assert torch.trapezoid(integrand, radius) == pytest.approx(2.0, abs=1e-6)


def test_orlicz_norm_of_an_ard_field_is_between_the_isotropic_ones():
    norm = orlicz_norm(CurlFreeKernel(rbf(3, torch.tensor([0.5, 1.0, 2.0]))))
    assert orlicz_norm(CurlFreeKernel(rbf(3, 2.0))) < norm < orlicz_norm(CurlFreeKernel(rbf(3, 0.5)))
    rate = 2 / torch.tensor([0.25, 1.0, 4.0], dtype=torch.float64) / norm
    assert (1 - rate).prod() ** -0.5 == pytest.approx(2.0)


def test_orlicz_norm_of_heavy_tails_is_infinite_unless_bounded():
    kernel = CurlFreeKernel(MaternKernel(nu=2.5, ard_num_dims=2))
    assert orlicz_norm(kernel) == math.inf
    assert orlicz_norm(kernel, bounded=True) < math.inf


@pytest.mark.parametrize("bad", [torch.tensor([]), torch.tensor([1.0, math.nan])])
def test_orlicz_norm_rejects_empty_and_nan_draws(bad):
    with pytest.raises(InputError, match="draw"):
        orlicz_norm(bad)


def test_intrinsic_dimension():
    assert intrinsic_dimension(torch.eye(5)) == pytest.approx(5)
    assert intrinsic_dimension(torch.ones(4, 4)) == pytest.approx(1)
    assert intrinsic_dimension(torch.zeros(3, 3)) == 1
    matrix = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    assert 1 <= intrinsic_dimension(matrix @ matrix.T) <= 2


@pytest.mark.parametrize("bad", [torch.ones(2, 3), -torch.eye(2), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])])
def test_intrinsic_dimension_rejects_matrices_that_are_not_semidefinite(bad):
    with pytest.raises(InputError):
        intrinsic_dimension(bad)


# m, u and their like


@pytest.mark.parametrize("num_dims", [1, 2, 4])
def test_scalar_constants_against_simulation(num_dims):
    sigma = 0.7
    omega = torch.randn(200_000, num_dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / sigma
    found = spectral_constants(rbf(num_dims, sigma))
    expected = math.sqrt(2) * math.gamma((num_dims + 1) / 2) / (sigma * math.gamma(num_dims / 2))
    assert found.slope == pytest.approx(expected) and close(found.slope, omega.norm(dim=-1))
    assert found.root_slope**2 == pytest.approx(num_dims / sigma**2)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("num_dims", [2, 3])
def test_field_slope_is_the_third_moment_whatever_the_map(field, num_dims):
    sigma = 1.4
    omega = torch.randn(400_000, num_dims, generator=torch.Generator().manual_seed(1), dtype=torch.float64) / sigma
    expected = 2**1.5 * math.gamma((num_dims + 3) / 2) / (sigma**3 * math.gamma(num_dims / 2))
    for bounded in (True, False):
        assert spectral_constants(field(rbf(num_dims, sigma)), bounded=bounded).slope == pytest.approx(expected)
    assert close(expected, omega.norm(dim=-1) ** 3)


@pytest.mark.parametrize("num_dims", [2, 4])
def test_bounded_fields_have_the_thesis_u(num_dims):
    sigma = 0.8
    curl, div = (spectral_constants(field(rbf(num_dims, sigma))) for field in FIELDS)
    assert curl.sup_norm + curl.kernel_norm == pytest.approx((num_dims + 1) / sigma**2)
    assert div.sup_norm + div.kernel_norm == pytest.approx((2 * num_dims - 1) / sigma**2)


def test_unbounded_curl_free_example():
    found = spectral_constants(CurlFreeKernel(rbf(4)), bounded=False)
    assert 4 * (found.orlicz + found.kernel_norm) == pytest.approx(31.3, abs=0.05)
    assert found.variance == pytest.approx(5)


ARD = torch.tensor([0.6, 1.0, 1.7])
CLOSED = [
    rbf(3, ARD),
    MaternKernel(nu=2.5, ard_num_dims=3).double(),
    RQKernel(ard_num_dims=3).double(),
    DecomposableKernel(rbf(3, ARD), output_matrix=torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)),
    CurlFreeKernel(rbf(3, ARD)),
    DivergenceFreeKernel(rbf(3, ARD)),
    CurlFreeKernel(RQKernel(ard_num_dims=3).double()),
    DivergenceFreeKernel(MaternKernel(nu=2.5, ard_num_dims=3).double()),
    CurlFreeKernel(ScaleKernel(rbf(3, ARD)).double(), num_dims=3),
    CurlFreeKernel(rbf(3, ARD) + rbf(3), num_dims=3),
]


@pytest.mark.parametrize("kernel", CLOSED, ids=lambda k: type(k).__name__)
def test_closed_forms_agree_with_the_sobol_estimates(kernel):
    # One percent: heavy-tailed third moments converge slowly; a wrong constant would be off by far more.
    exact, estimate = spectral_constants(kernel), estimate_constants(kernel, None, True)
    for name in ("kernel_norm", "slope", "sup_norm", "orlicz"):
        assert getattr(exact, name) == pytest.approx(getattr(estimate, name), rel=1e-2), name
    if exact.separable:
        assert exact.root_slope == pytest.approx(estimate.root_slope, rel=1e-2)
        assert exact.intrinsic_dim == pytest.approx(estimate.intrinsic_dim)
    assert exact.variance <= 1.01 * estimate.variance
    assert (exact.num_dims, exact.num_outputs) == (estimate.num_dims, estimate.num_outputs)


def test_constants_of_a_scaled_kernel():
    plain, scaled = CurlFreeKernel(rbf(2)), ScaleKernel(CurlFreeKernel(rbf(2))).double()
    scaled.outputscale = 3.0
    one, three = spectral_constants(plain), spectral_constants(scaled)
    assert three.slope == pytest.approx(3 * one.slope) and three.sup_norm == pytest.approx(3 * one.sup_norm)
    assert three.variance == pytest.approx(9 * one.variance)
    assert three.kernel_norm == pytest.approx(3 * one.kernel_norm)


def test_constants_of_a_sum_add():
    parts = [spectral_constants(CurlFreeKernel(rbf(2))), spectral_constants(DivergenceFreeKernel(rbf(2)))]
    kernel = HelmholtzKernel(rbf(2)).double()
    kernel.curl.outputscale = kernel.div.outputscale = 1.0
    total = spectral_constants(kernel)
    for name in ("slope", "sup_norm", "variance", "kernel_norm"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))


def test_constants_of_multitask_kernels_are_decomposable():
    kernel = MultitaskKernel(rbf(2), num_tasks=3).double()
    found = spectral_constants(kernel)
    assert found.separable and found.num_outputs == 3
    matrix = kernel.task_covar_module.covar_matrix.to_dense().detach()
    assert found.sup_norm == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]))


def test_constants_count_the_active_dims():
    kernel = RBFKernel(active_dims=(0, 2)).double()
    assert spectral_constants(kernel).num_dims == 2
    total = kernel + RBFKernel(active_dims=(1,)).double()
    with pytest.raises(OptionError, match="num_dims"):
        spectral_constants(total)
    assert spectral_constants(total, num_dims=3).num_dims == 3


@pytest.mark.parametrize(
    ("kernel", "slope_is_finite", "root_slope_is_finite"),
    [
        (LaplaceKernel(ard_num_dims=2), False, False),
        (SobolevKernel(order=1, ard_num_dims=2), False, False),
        (SobolevKernel(order=2, ard_num_dims=2), True, True),
        (MaternKernel(nu=0.5, ard_num_dims=2), False, False),
        (MaternKernel(nu=1.5, ard_num_dims=2), True, True),
        (CurlFreeKernel(MaternKernel(nu=1.5, ard_num_dims=2)), False, False),
        (DecomposableKernel(LaplaceKernel(ard_num_dims=2), num_outputs=2), False, False),
        (PeriodicKernel(ard_num_dims=2), True, True),
        (SkewedChi2Kernel(ard_num_dims=2), True, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_slopes_are_finite_with_finite_moments(kernel, slope_is_finite, root_slope_is_finite):
    found = spectral_constants(kernel)
    assert math.isfinite(found.slope) == slope_is_finite
    assert math.isfinite(found.root_slope) == root_slope_is_finite


class DelayedKernel(Kernel):
    """[[k(δ), k(δ − τ)], [k(δ + τ), k(δ)]]: shift-invariant, but K̃ is not symmetric (BT-E-15)."""

    num_outputs = 2


@spectral_pair.register(DelayedKernel)
def _(kernel):
    def factor(frequencies):
        ones = torch.ones(frequencies.shape[0], dtype=torch.complex128)
        return torch.stack([ones, torch.exp(-1j * 0.7 * frequencies[:, 0])], -1).unsqueeze(-1)

    return SpectralPair(1, lambda u: torch.special.ndtri(u), factor, even=False)


def test_constants_of_a_kernel_that_is_not_even_use_its_dilation():
    found = spectral_constants(DelayedKernel())
    assert (found.num_outputs, found.separable) == (4, False)
    assert found.sup_norm == pytest.approx(2) and found.variance == pytest.approx(4)
    assert found.slope == pytest.approx(2 * math.sqrt(2 / math.pi), rel=1e-3)
    assert required_features(DelayedKernel(), 0.5) < math.inf
    with pytest.raises(SpectralError, match="symmetric"):
        pointwise_error_bound(DelayedKernel(), torch.ones(1), 100, 0.5)


def test_constants_of_a_product_add_its_frequencies():
    narrow = spectral_constants(rbf(2, math.sqrt(0.5)))  # k² of lengthscale 1
    found = spectral_constants(rbf(2) * rbf(2), num_dims=2)
    assert found.num_dims == 2 and found.separable
    assert narrow.slope <= found.slope <= 1.6 * narrow.slope
    assert narrow.root_slope <= found.root_slope <= 1.6 * narrow.root_slope
    field = spectral_constants(CurlFreeKernel(rbf(2)) * rbf(2), num_dims=2)
    assert field.num_outputs == 2 and field.sup_norm == pytest.approx(2) and math.isfinite(field.slope)


@pytest.mark.parametrize(
    "kernel", [LinearKernel(), RBFKernelGrad(ard_num_dims=2), TransformableKernel(rbf(2), [torch.sin])]
)
def test_constants_reject_kernels_that_are_not_a_function_of_the_lag(kernel):
    with pytest.raises(SpectralError):
        spectral_constants(kernel)


def test_constants_reject_batches_and_invalid_lipschitz():
    with pytest.raises(OptionError, match="batch"):
        spectral_constants(RBFKernel(ard_num_dims=2, batch_shape=torch.Size([3])))
    with pytest.raises(OptionError, match="lipschitz"):
        spectral_constants(rbf(2), lipschitz=0.0)
