"""The operator variance of random features, against simulation and closed forms."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.features.bounds import kernel_variance, spectral_constants
from ovkgp.features.bounds.variance import _estimate_variance
from ovkgp.features.spectral.fields import largest_radial_variance
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    HelmholtzKernel,
    LaplaceKernel,
    SkewedChi2Kernel,
    TransformableKernel,
    block,
)

GAMMA = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
FIELDS = [CurlFreeKernel, DivergenceFreeKernel]
LAGS = [[0.0, 0.0, 0.0], [0.3, -0.2, 0.1], [1.0, 0.5, -0.8], [2.0, 2.0, 1.0]]


def rbf(num_dims, lengthscale=1.0):
    kernel = RBFKernel(ard_num_dims=num_dims)
    kernel.lengthscale = lengthscale
    return kernel.double()


def vector(values):
    return torch.tensor(values, dtype=torch.float64)


def frequencies(num_draws, sigma, bounded, seed=0):
    """Gaussian ω, or for the bounded map ω = R û / σ with R² ~ χ²(d + 2), for d = 3."""
    generator = torch.Generator().manual_seed(seed)
    omega = torch.randn(num_draws, 3, generator=generator, dtype=torch.float64)
    if bounded:
        radius = torch.randn(num_draws, 5, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
        omega = radius * torch.nn.functional.normalize(omega, dim=-1)
    return omega / sigma


def spectral_operators(field, omega, sigma, bounded):
    outer = omega.unsqueeze(-1) * omega.unsqueeze(-2)
    square = omega.square().sum(-1)[:, None, None]
    matrices = outer if field is CurlFreeKernel else square * torch.eye(3, dtype=torch.float64) - outer
    return matrices * (3 / sigma**2) / square if bounded else matrices


def assert_simulated(value, draws, mean, errors=5.0):
    """`value` = E[(X − mean)²], entry by entry within `errors` standard errors of the simulation."""
    squares = (draws - mean) @ (draws - mean).mT
    deviation = (value - squares.mean(0)).abs()
    allowed = errors * squares.std(0) / len(draws) ** 0.5 + 1e-12
    assert (deviation < allowed).all(), (value, squares.mean(0))


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_field_variance_against_simulation(field, bounded, lag):
    sigma, lag = 0.9, vector(lag)
    kernel = field(rbf(3, sigma))
    omega = frequencies(100_000, sigma, bounded)
    draws = (omega @ lag).cos()[:, None, None] * spectral_operators(field, omega, sigma, bounded)
    exact = block(kernel, lag, torch.zeros(3, dtype=torch.float64)).detach()
    assert_simulated(kernel_variance(kernel, lag, bounded=bounded), draws, exact)


@pytest.mark.parametrize("lag", LAGS)
def test_decomposable_variance_against_simulation(lag):
    lag = vector(lag)
    kernel = DecomposableKernel(rbf(3, 0.9), output_matrix=GAMMA)
    draws = (frequencies(100_000, 0.9, False) @ lag).cos()[:, None, None] * GAMMA
    k_lag = torch.exp(-lag.square().sum() / 2 / 0.81)
    assert_simulated(kernel_variance(kernel, lag), draws, k_lag * GAMMA)


@pytest.mark.parametrize("num_dims", [2, 4])
def test_variance_at_zero_lag(num_dims):
    sigma, zero = 1.3, torch.zeros(num_dims)
    eye = torch.eye(num_dims, dtype=torch.float64)
    curl, div = (field(rbf(num_dims, sigma)) for field in FIELDS)
    for kernel, bounded, value in [
        (curl, False, num_dims + 1),
        (div, False, 3 * (num_dims - 1)),
        (curl, True, num_dims - 1),
        (div, True, num_dims - 1),
    ]:
        assert torch.allclose(kernel_variance(kernel, zero, bounded=bounded), value / sigma**4 * eye)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("lengthscale", [0.8, vector([0.6, 1.0, 1.7])], ids=["isotropic", "ard"])
def test_closed_forms_agree_with_the_sobol_estimate(field, bounded, lengthscale):
    kernel, lag = field(rbf(3, lengthscale)), vector([0.4, -0.3, 0.2])
    exact, estimate = kernel_variance(kernel, lag, bounded=bounded), _estimate_variance(kernel, lag, bounded).detach()
    # 2¹⁴ points; without the bounded map A² holds fourth powers of normal variables, which converge more slowly
    tolerance = 0.01 if bounded else 0.02
    assert torch.allclose(exact, estimate, rtol=0, atol=tolerance * float(estimate.abs().max()))


@pytest.mark.parametrize("num_dims", [1, 2, 3, 6])
@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_v_is_the_largest_variance_over_lags(field, bounded, num_dims):
    if num_dims == 1 and field is DivergenceFreeKernel:
        num_dims = 2
    kernel = field(rbf(num_dims))
    direction = torch.nn.functional.normalize(torch.arange(1.0, num_dims + 1, dtype=torch.float64), dim=0)
    norms = [
        float(torch.linalg.matrix_norm(kernel_variance(kernel, r * direction, bounded=bounded), ord=2))
        for r in torch.linspace(0, 7, 141, dtype=torch.float64)
    ]
    largest = largest_radial_variance(num_dims, field is CurlFreeKernel, bounded)
    # the grid of 141 lags misses the top by its own coarseness only
    assert largest * 0.99 <= max(norms) <= largest * (1 + 1e-4)
    assert spectral_constants(kernel, bounded=bounded).variance == pytest.approx(largest)


def test_variance_decreases_as_one_over_the_number_of_frequencies():
    kernel, lag = CurlFreeKernel(rbf(2)), vector([0.5, 0.1])
    assert torch.allclose(kernel_variance(kernel, lag, 40), kernel_variance(kernel, lag) / 40)


def test_variance_of_scaled_and_summed_kernels():
    lag = vector([0.5, 0.1])
    one, other = CurlFreeKernel(rbf(2)), DivergenceFreeKernel(rbf(2, 0.6))
    scaled = ScaleKernel(one).double()
    scaled.outputscale = 2.0
    assert torch.allclose(kernel_variance(scaled, lag), 4 * kernel_variance(one, lag))
    inner = CurlFreeKernel(ScaleKernel(rbf(2)).double(), num_dims=2)
    inner.base_kernel.outputscale = 2.0
    assert torch.allclose(kernel_variance(inner, lag), 4 * kernel_variance(one, lag))
    assert torch.allclose(kernel_variance(one + other, lag), kernel_variance(one, lag) + kernel_variance(other, lag))


@pytest.mark.parametrize(
    "base",
    [LaplaceKernel(ard_num_dims=2), MaternKernel(nu=1.5, ard_num_dims=2), PeriodicKernel(ard_num_dims=2)],
    ids=lambda k: type(k).__name__,
)
def test_scalar_variance_against_the_sobol_estimate(base):
    base, lag = base.double(), vector([0.4, -0.7])
    exact, estimate = kernel_variance(base, lag), _estimate_variance(base, lag, True).detach()
    assert torch.allclose(exact, estimate, atol=0.01)  # 2¹⁴ points of a heavy-tailed distribution
    lifted = DecomposableKernel(base, output_matrix=GAMMA)
    assert torch.allclose(kernel_variance(lifted, lag), exact * GAMMA @ GAMMA)


def test_active_dims_select_columns_of_the_lag():
    kernel = RBFKernel(active_dims=(2,)).double()
    kernel.lengthscale = 0.7
    plain = rbf(1, 0.7)
    assert torch.allclose(kernel_variance(kernel, vector([9.0, 9.0, 0.4])), kernel_variance(plain, vector([0.4])))


def test_scale_kernel_selects_the_columns_of_its_base_kernel_once():
    base = RBFKernel(active_dims=(2,)).double()
    lag = vector([9.0, 9.0, 0.4])
    scaled = ScaleKernel(base).double()
    scaled.outputscale = 3.0
    assert torch.allclose(kernel_variance(scaled, lag), 9 * kernel_variance(base, lag))
    field = RBFKernel(active_dims=(1, 2)).double()
    curl = CurlFreeKernel(ScaleKernel(field).double())
    curl.base_kernel.outputscale = 3.0
    assert torch.allclose(kernel_variance(curl, lag), 9 * kernel_variance(CurlFreeKernel(field), lag))


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(HelmholtzKernel(rbf(2)).double(), marks=pytest.mark.slow),
        DecomposableKernel(rbf(2), output_matrix=GAMMA)
        + DecomposableKernel(rbf(2, 0.4), output_matrix=GAMMA.flip(0, 1)),
        CurlFreeKernel(rbf(2, vector([0.6, 1.2]))),
        CurlFreeKernel(rbf(2)) * rbf(2),
    ],
    ids=["helmholtz", "lmc", "ard", "product"],
)
@pytest.mark.slow
def test_variance_against_draws_of_features(kernel):
    X = vector([[0.4, -0.3], [0.0, 0.0]])
    exact = block(kernel, X[0], X[1]).detach()
    products = []
    for seed in range(300):
        Phi = ORFF(kernel, 2, random_state=seed)(X).to_dense().detach()
        products.append(Phi[:2] @ Phi[2:].T)
    assert_simulated(kernel_variance(kernel, X[0], 2), torch.stack(products), exact)


def test_variance_on_the_skewed_group_uses_its_lag():
    kernel = SkewedChi2Kernel(ard_num_dims=2, c=0.5).double()
    assert kernel_variance(kernel, vector([0.5, 0.5])).item() == pytest.approx(0.0, abs=1e-12)  # the neutral element
    lag = vector([1.2, 0.1])
    shift = (lag + 0.5).log()
    value, double = ((1 / torch.cosh(s / 2)).prod() for s in (shift, 2 * shift))
    assert kernel_variance(kernel, lag).item() == pytest.approx(float((1 + double - 2 * value**2) / 2), abs=1e-3)


def test_variance_is_positive_semidefinite():
    for lag in LAGS:
        for kernel in (CurlFreeKernel(rbf(3)), DivergenceFreeKernel(rbf(3, vector([0.6, 1.0, 1.7])))):
            eigenvalues = torch.linalg.eigvalsh(kernel_variance(kernel, vector(lag)))
            assert eigenvalues[0] > -1e-12 * eigenvalues[-1]


def test_variance_rejects_invalid_arguments():
    kernel = CurlFreeKernel(rbf(2))
    with pytest.raises(InputError, match="lag"):
        kernel_variance(kernel, torch.zeros(3, 2))
    with pytest.raises(OptionError, match="num_frequencies"):
        kernel_variance(kernel, torch.zeros(2), 0)
    with pytest.raises(SpectralError):
        kernel_variance(TransformableKernel(rbf(2), [torch.sin, torch.cos]), torch.zeros(2))


# Errata


def printed_proposition(kernel, lag, operator_variance):
    """½((K(2δ) + K(0)) E[A] − 2K(δ)² + Var[A]), Prop. 5.1 as printed, for D = 1."""
    zero = torch.zeros_like(lag)
    start, once, twice = (block(kernel, s * lag, zero).detach() for s in (0.0, 1.0, 2.0))
    return ((twice + start) @ start - 2 * once @ once + operator_variance) / 2


@pytest.mark.parametrize("field", FIELDS)
def test_bt_e_16_the_printed_variance_bound_is_false_where_the_operator_depends_on_the_frequency(field):
    kernel = field(rbf(3))
    at_zero = kernel_variance(kernel, torch.zeros(3), bounded=False)  # this is Var[A]
    start = block(kernel, torch.zeros(3).double(), torch.zeros(3).double()).detach()
    for lag in (vector([0.0, 0.0, 0.0]), vector([0.1, 0.0, -0.1])):
        exact = kernel_variance(kernel, lag, bounded=False)
        once = block(kernel, lag, torch.zeros(3).double()).detach()
        assert torch.linalg.eigvalsh(printed_proposition(kernel, lag, at_zero) - exact)[-1] < 0
        always_valid = at_zero + start @ start - once @ once  # E[A²] − K(δ)²
        assert torch.linalg.eigvalsh(always_valid - exact)[0] > -1e-9


@pytest.mark.parametrize("num_dims", [2, 3, 5])
def test_bt_e_17_variance_of_the_divergence_free_operator(num_dims):
    sigma = 0.7
    found = kernel_variance(DivergenceFreeKernel(rbf(num_dims, sigma)), torch.zeros(num_dims), bounded=False)
    assert torch.allclose(found, 3 * (num_dims - 1) / sigma**4 * torch.eye(num_dims, dtype=torch.float64))
    assert found[0, 0] < num_dims * (4 * num_dims - 3) / sigma**4  # the printed value is loose


def test_bt_e_18_decomposable_variance_is_exact_and_the_printed_bound_is_not_one():
    lag = vector([3.0, 3.0])
    base = rbf(2)
    kernel = DecomposableKernel(base, output_matrix=4 * torch.eye(2, dtype=torch.float64))
    once, twice = (block(base, s * lag, torch.zeros(2).double()).item() for s in (1.0, 2.0))
    exact = float(torch.linalg.matrix_norm(kernel_variance(kernel, lag), ord=2))
    assert exact == pytest.approx(16 * (1 + twice - 2 * once**2) / 2)
    assert exact > (1 + twice) * 4 / 2 + once**2  # what the thesis prints as an upper bound
