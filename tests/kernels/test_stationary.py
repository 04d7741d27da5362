"""Tests of `ovkgp.kernels.stationary`."""

import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel
from gpytorch.priors import GammaPrior
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import t as student_t

from ovkgp.exceptions import OptionError
from ovkgp.kernels.spectral import scale_mixture
from ovkgp.kernels.stationary import (
    CauchyKernel,
    GeneralMaternKernel,
    LaplaceKernel,
    RadialCauchyKernel,
    SobolevKernel,
    _BesselTerm,
)


class TestCauchyKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return CauchyKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return CauchyKernel(ard_num_dims=num_dims, **kwargs)


def test_cauchy_kernel_matches_dense_formula():
    rng = np.random.default_rng(0)
    x, z, lengthscale = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), np.array([0.5, 1.0, 2.5])
    kernel = CauchyKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor(lengthscale)
    expected = np.prod(1 / (1 + ((x[:, None] - z[None]) / lengthscale) ** 2), axis=-1)
    np.testing.assert_allclose(kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach(), expected, rtol=1e-13)
    diagonal = kernel(torch.tensor(x[:5]), torch.tensor(z), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-13)


def test_cauchy_kernel_does_not_overflow_in_single_precision():
    kernel = CauchyKernel()
    value = kernel(torch.zeros(1, 40), torch.full((1, 40), 30.0)).to_dense()
    assert torch.isfinite(value).all() and value.item() >= 0


def test_cauchy_kernel_gradients_at_coincident_points():
    x = torch.randn(3, 2, dtype=torch.float64)
    z = torch.cat([x[:2], torch.randn(2, 2, dtype=torch.float64)])
    x, z = x.requires_grad_(), z.detach().requires_grad_()
    kernel = CauchyKernel(ard_num_dims=2).double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.raw_lengthscale))
    assert torch.autograd.gradgradcheck(value, (x, z, kernel.raw_lengthscale))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=2), st.integers(0, 1000))
def test_cauchy_kernel_is_positive_semidefinite(lengthscale, seed):
    kernel = CauchyKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10


class TestRadialCauchyKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return RadialCauchyKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return RadialCauchyKernel(ard_num_dims=num_dims, **kwargs)


def test_kt_06_radial_cauchy_kernel_matches_dense_formula_and_rational_quadratic():
    rng = np.random.default_rng(0)
    x, z, lengthscale = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), np.array([0.5, 1.0, 2.5])
    kernel, rq = RadialCauchyKernel(ard_num_dims=3).double(), RQKernel(ard_num_dims=3).double()
    kernel.lengthscale, rq.lengthscale = torch.tensor(lengthscale), torch.tensor(lengthscale / np.sqrt(2))
    rq.alpha = torch.tensor(1.0, dtype=torch.float64)
    expected = 1 / (1 + (((x[:, None] - z[None]) / lengthscale) ** 2).sum(-1))
    for one in (kernel, rq):
        np.testing.assert_allclose(one(torch.tensor(x), torch.tensor(z)).to_dense().detach(), expected, rtol=1e-12)
    diagonal = kernel(torch.tensor(x[:5]), torch.tensor(z), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-12)
    product = CauchyKernel(ard_num_dims=3).double()
    product.lengthscale = kernel.lengthscale.detach()
    assert (product(torch.tensor(x), torch.tensor(z)).to_dense().detach().numpy() < expected).all()  # another kernel


def test_radial_cauchy_mixture_has_the_moments_of_its_draws():
    mixture = scale_mixture(RadialCauchyKernel())
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    tau = mixture.quantile(u)
    for s in (1.0, 2.0, 4.0):
        assert (tau ** (s / 2)).mean().item() == pytest.approx(mixture.moment(s), rel=1e-3)
    for distance in (0.3, 1.0, 4.0):
        assert torch.exp(-tau * distance / 2).mean().item() == pytest.approx(1 / (1 + distance), rel=1e-4)
    tilted = mixture.tilted_quantile(u)  # density ∝ τ times the old one
    assert tilted.mean().item() == pytest.approx((tau**2).mean().item() / tau.mean().item(), rel=1e-3)


class TestGeneralMaternKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return GeneralMaternKernel(nu=1.8, **kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return GeneralMaternKernel(nu=1.8, ard_num_dims=num_dims, **kwargs)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_bo_03_general_matern_equals_gpytorchs_where_that_exists(nu):
    """Values, and gradients in inputs and lengthscales; at coincident points too."""
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([x, x[:2]])
    results = []
    for kernel in (GeneralMaternKernel(nu, ard_num_dims=2), MaternKernel(nu, ard_num_dims=2)):
        kernel = kernel.double()
        kernel.lengthscale = torch.tensor([0.7, 1.6]).double()
        points = x[:6].clone().requires_grad_()
        (kernel(points, x[6:] + 0.3).to_dense().sin().sum()).backward()
        results.append((kernel(x).to_dense().detach(), points.grad, kernel.raw_lengthscale.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_bo_e_08_matern_five_halves_decays_with_root_five():
    kernel, r = GeneralMaternKernel(2.5).double(), 1.7
    kernel.lengthscale = torch.tensor(1.0).double()
    value = kernel(torch.zeros(1, 1).double(), torch.full((1, 1), r, dtype=torch.float64)).to_dense().item()
    polynomial = 1 + np.sqrt(5) * r + 5 * r**2 / 3
    assert value == pytest.approx(polynomial * np.exp(-np.sqrt(5) * r), rel=1e-12)
    assert value != pytest.approx(polynomial * np.exp(-np.sqrt(3) * r), rel=0.1)


@pytest.mark.parametrize("nu", [0.3, 1.0, 1.8, 4.2, 60.0])
def test_bo_03_general_matern_is_the_fourier_transform_of_its_spectral_density(nu):
    """E cos(ωr) for ω of the Student distribution with 2ν degrees of freedom; the value at 0 is 1, and near 0 it is continuous."""
    kernel = GeneralMaternKernel(nu).double()
    kernel.lengthscale = torch.tensor(1.0).double()
    r = np.array([0.0, 1e-9, 1e-4, 0.3, 1.2, 3.0])
    values = kernel(torch.zeros(1, 1).double(), torch.from_numpy(r)[:, None]).to_dense().detach().numpy()[0]
    assert values[0] == pytest.approx(1, abs=1e-12) and (np.diff(values) <= 1e-12).all()
    for distance, value in zip(r[3:], values[3:], strict=True):
        integral = quad(lambda w: student_t(2 * nu).pdf(w), 0, np.inf, weight="cos", wvar=distance, limlst=200)[0]
        assert value == pytest.approx(2 * integral, abs=1e-6)


def test_general_matern_approaches_the_gaussian_kernel():
    r = torch.linspace(0, 3, 7).double()[:, None]
    kernel, gaussian = GeneralMaternKernel(100.0).double(), RBFKernel().double()
    kernel.lengthscale = gaussian.lengthscale = torch.tensor(0.8).double()
    assert torch.allclose(kernel(r).to_dense(), gaussian(r).to_dense(), atol=3e-3)
    for bad in (-1.0, 1e4):
        with pytest.raises(OptionError, match="nu"):
            GeneralMaternKernel(bad)


def test_general_matern_has_second_derivatives_by_autograd():
    s = torch.tensor([0.2, 1.5, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda s: _BesselTerm.apply(s, 3.3, 3.3), s)


class TestLaplaceKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return LaplaceKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return LaplaceKernel(ard_num_dims=num_dims, **kwargs)


def oracle(x, z, lengthscale):
    return np.exp(-sum(np.abs(x[:, None, k] - z[None, :, k]) / lengthscale[k] for k in range(x.shape[1])))


@pytest.fixture
def kernel():
    kernel = LaplaceKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
    return kernel


def test_laplace_kernel_matches_dense_formula(kernel):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    ours = kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach().numpy()
    np.testing.assert_allclose(ours, oracle(x, z, [0.5, 1.0, 2.5]), rtol=1e-13)


def test_laplace_kernel_diagonal_between_different_points(kernel):
    x, z = torch.randn(6, 3).double(), torch.randn(6, 3).double()
    torch.testing.assert_close(kernel(x, z, diag=True), kernel(x, z).to_dense().diagonal())


def test_last_dim_is_batch_gives_one_matrix_per_coordinate(kernel):
    x = torch.randn(4, 3).double()
    with pytest.warns(DeprecationWarning):
        parts = kernel(x, last_dim_is_batch=True).to_dense()
    assert parts.shape == (3, 4, 4)
    torch.testing.assert_close(parts.prod(0), kernel(x).to_dense())


def test_laplace_kernel_gradients_in_inputs_and_lengthscale():
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    z = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    kernel = LaplaceKernel(ard_num_dims=2).double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.raw_lengthscale))


def test_laplace_kernel_gradients_at_coincident_points(kernel):
    x = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    kernel(x, x.detach().clone()).to_dense().sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(kernel.raw_lengthscale.grad, torch.zeros_like(kernel.raw_lengthscale))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=2), st.integers(0, 1000))
def test_laplace_kernel_is_positive_semidefinite(lengthscale, seed):
    kernel = LaplaceKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10


def test_laplace_kernel_prior_constraint_pickle_and_batch_indexing():
    kernel = LaplaceKernel(
        batch_shape=torch.Size([2]),
        active_dims=[0, 2],
        lengthscale_prior=GammaPrior(2.0, 1.0),
        lengthscale_constraint=GreaterThan(1e-3),
    )
    kernel.lengthscale = torch.tensor([0.5, 2.0])[:, None, None]
    kernel = pickle.loads(pickle.dumps(kernel))
    assert len(list(kernel.named_priors())) == 1
    x = torch.randn(4, 3)
    assert torch.equal(kernel[1].active_dims, torch.tensor([0, 2]))
    torch.testing.assert_close(kernel[1](x).to_dense(), kernel(x).to_dense()[1])
    assert kernel.expand_batch(3, 2).batch_shape == (3, 2)


ALL = [(1, False), (2, False), (1, True), (2, True), (3, True)]


class TestSobolevProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return SobolevKernel(order=2, **kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return SobolevKernel(order=2, ard_num_dims=num_dims, **kwargs)


class TestPeriodicSobolevProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return SobolevKernel(order=1, periodic=True, **kwargs)

    def test_kernel_dtype_device(self):
        """The kernel has no parameter to convert, so the dtype of the results is that of the inputs."""
        for dtype in (torch.float32, torch.float64):
            self.assertEqual(self.create_kernel_no_ard()(torch.rand(2, 1, dtype=dtype)).to_dense().dtype, dtype)


def evaluate(kernel, delta):
    return kernel.forward(torch.zeros(1, 1).double(), torch.tensor(delta).reshape(-1, 1)).detach().numpy()[0]


@pytest.mark.parametrize("order", [1, 2])
def test_sobolev_kernel_on_line_is_inverse_fourier_transform_of_norm(order):
    kernel = SobolevKernel(order=order).double()
    kernel.lengthscale = 1.0
    delta = np.array([0.3, 1.0, 2.7])

    def density(w):
        return 1 / (1 + w**2) if order == 1 else 1 / (1 + w**2 + w**4)

    expected = [quad(density, 0, np.inf, weight="cos", wvar=d)[0] / np.pi for d in delta]
    np.testing.assert_allclose(evaluate(kernel, delta), expected, atol=1e-7)  # accuracy of the quadrature
    at_zero = quad(density, 0, np.inf)[0] / np.pi
    np.testing.assert_allclose([evaluate(kernel, [0.0])[0], kernel.value_at_zero], at_zero, rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_bo_e_06_bo_c_15_sobolev_kernel_reproduces_values_with_the_term_of_order_zero(order):
    """f(x) = Σ_{r=0}^s ⟨f^(r), k(·, x)^(r)⟩ on the line; without r = 0, as printed, the sum differs (BO-E-06)."""
    kernel = SobolevKernel(order=order).double()
    kernel.lengthscale = 1.0
    x, t = 0.4, 0.4 + np.linspace(-15, 15, 60_001)  # the kink of the kernel is a node
    f = [np.exp(-(t**2)), -2 * t * np.exp(-(t**2)), (4 * t**2 - 2) * np.exp(-(t**2))]
    values = evaluate(kernel, t - x)
    sections = [values]
    for _ in range(order):
        half = len(t) // 2  # one-sided differences left and right of the kink
        sections.append(np.concatenate([np.gradient(part, t[1] - t[0]) for part in np.split(sections[-1], [half])]))
    terms = [np.trapezoid(a * b, t) for a, b in zip(f[: order + 1], sections, strict=True)]
    assert sum(terms) == pytest.approx(np.exp(-(x**2)), abs=2e-3)
    assert abs(sum(terms[1:]) - np.exp(-(x**2))) > 0.1


@pytest.mark.parametrize("order", [1, 2, 3])
def test_bo_e_09_bernoulli_kernel_reproduces_its_own_norm_and_not_the_printed_one(order):
    """The norm (∫v)² + ∫(v^(s))² weights cos 2πkt by (2πk)^{2s}; the printed ∫v² + ∫(v^(s))² by 1 + (2πk)^{2s}."""
    kernel = SobolevKernel(order=order, periodic=True).double()
    delta = np.linspace(-1.3, 1.6, 30)
    k = np.arange(1, 200_001)[:, None]

    def series(weights):
        return 1 + sum(
            (2 * np.cos(2 * np.pi * part * delta) / w).sum(0)
            for part, w in zip(np.array_split(k, 20), np.array_split(weights, 20), strict=True)
        )

    own = series((2 * np.pi * k) ** (2.0 * order))
    printed = series(1 + (2 * np.pi * k) ** (2.0 * order))
    # the truncated series of order 1 is wrong by at most 2 / (4π² · 200 000)
    np.testing.assert_allclose(evaluate(kernel, delta), own, atol=3e-7 if order == 1 else 1e-12)
    assert np.abs(evaluate(kernel, delta) - printed).max() > {1: 1e-3, 2: 5e-7, 3: 1e-10}[order]
    # ⟨v, k(x, ·)⟩ = v(x) in that norm, for v = 1 + cos 2πt: ∫v ∫k + ∫v^(s) k^(s)
    value = evaluate(kernel, np.arange(4000) / 4000)
    first = 2 * np.mean(value * np.cos(2 * np.pi * np.arange(4000) / 4000))  # its cosine coefficient
    # the rectangle rule aliases the coefficients k = 4000 ± 1 onto the first
    np.testing.assert_allclose(value.mean() + first * (2 * np.pi) ** (2 * order) / 2, 2.0, atol=1e-6)


@pytest.mark.parametrize("order, periodic", ALL)
def test_sobolev_kernel_is_product_over_coordinates(order, periodic):
    kernel = SobolevKernel(order=order, periodic=periodic).double()
    x, z = torch.rand(5, 3).double(), torch.rand(5, 3).double()
    parts = [kernel(x[:, k : k + 1], z[:, k : k + 1]).to_dense() for k in range(3)]
    torch.testing.assert_close(kernel(x, z).to_dense(), parts[0] * parts[1] * parts[2])
    torch.testing.assert_close(kernel(x, z, diag=True), kernel(x, z).to_dense().diagonal())
    expected = torch.full((5,), kernel.value_at_zero**3, dtype=torch.float64)
    torch.testing.assert_close(kernel(x, diag=True), expected)


@pytest.mark.parametrize("order, periodic", ALL)
def test_sobolev_kernel_gradients_at_coincident_points(order, periodic):
    torch.manual_seed(0)
    x = torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    z = torch.rand(4, 2, dtype=torch.float64, requires_grad=True)
    kernel = SobolevKernel(order=order, periodic=periodic).double()
    assert torch.autograd.gradcheck(lambda x, z: kernel(x, z).to_dense(), (x, z))
    same = torch.autograd.grad(kernel(x, x.detach()).to_dense().diagonal().sum(), x)[0]
    assert torch.equal(same, torch.zeros_like(same))
    if not periodic:

        def value(raw):
            return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

        assert torch.autograd.gradcheck(value, (kernel.raw_lengthscale,))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(ALL), st.floats(0.05, 20), st.integers(0, 1000))
def test_sobolev_kernel_is_positive_semidefinite(options, lengthscale, seed):
    kernel = SobolevKernel(*options).double()
    if kernel.has_lengthscale:
        kernel.lengthscale = lengthscale
    x = torch.randn(15, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10


def test_sobolev_kernel_orders_and_periodic_lengthscale():
    for order, periodic in ((3, False), (0, False), (4, True)):
        with pytest.raises(OptionError, match="order"):
            SobolevKernel(order=order, periodic=periodic)
    assert SobolevKernel(periodic=True).lengthscale is None
    assert SobolevKernel(periodic=True).is_stationary and SobolevKernel().is_stationary


@pytest.mark.parametrize("make", [RadialCauchyKernel, lambda: GeneralMaternKernel(nu=1.3)])
def test_radial_kernels_called_directly_do_not_depend_on_distant_rows(make):
    """As in a plain `ExactGP` of GPyTorch, whose distances are centered on the mean of the batch."""
    kernel = make().double()
    x = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    far = torch.cat([x, torch.full((1, 2), 1e9, dtype=torch.float64)])
    torch.testing.assert_close(kernel(far, x).to_dense()[:6], kernel(x, x).to_dense(), rtol=1e-12, atol=0)
