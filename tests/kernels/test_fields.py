import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RBFKernelGrad, RQKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from oracles import (
    SMOOTH_BASES,
    curl_free,
    curl_free_rbf,
    dense,
    difference_hessian,
    divergence_free,
    divergence_free_rbf,
    gram,
    rbf_hessian_ard,
    smooth_base,
)

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel, num_outputs


class TestCurlFreeProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return CurlFreeKernel(RBFKernel(**kwargs))

    def create_kernel_ard(self, num_dims, **kwargs):
        return CurlFreeKernel(RBFKernel(ard_num_dims=num_dims, **kwargs))


class TestDivergenceFreeProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DivergenceFreeKernel(MaternKernel(nu=2.5, **kwargs))

    def create_kernel_ard(self, num_dims, **kwargs):
        return DivergenceFreeKernel(MaternKernel(nu=2.5, ard_num_dims=num_dims, **kwargs))


class TestHelmholtzProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return HelmholtzKernel(RBFKernel(**kwargs), RQKernel(**kwargs))

    def create_kernel_ard(self, num_dims, **kwargs):
        return HelmholtzKernel(RBFKernel(ard_num_dims=num_dims, **kwargs))


FIELDS = pytest.mark.parametrize("make", [CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel])


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_copies(n, d):
    """Return n points, two of which occur twice."""
    x = points(n, d)
    return torch.cat([x, x[:2]])


# --- the matrices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize(
    ("make", "formula"), [(CurlFreeKernel, curl_free_rbf), (DivergenceFreeKernel, divergence_free_rbf)]
)
def test_bt_27_bt_28_closed_forms_for_the_rbf_kernel(make, formula, d):
    kernel = make(RBFKernel()).double()
    kernel.base_kernel.raw_lengthscale.data.fill_(0.4)
    s = kernel.base_kernel.lengthscale.item()
    x, z = with_copies(4, d), with_copies(3, d)
    expected = gram(lambda a, b: formula(a - b, s), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize(("make", "field"), [(CurlFreeKernel, curl_free), (DivergenceFreeKernel, divergence_free)])
def test_closed_forms_for_the_rbf_kernel_with_ard(make, field, d):
    kernel = make(smooth_base("rbf", d))
    lengthscale = kernel.base_kernel.lengthscale[0].detach().numpy()
    x, z = with_copies(4, d), with_copies(3, d)
    expected = gram(lambda a, b: field(rbf_hessian_ard(a - b, lengthscale)), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


def test_curl_free_one_dimension_is_minus_the_second_derivative():
    kernel = CurlFreeKernel(smooth_base("rbf", 1))
    s, x = kernel.base_kernel.lengthscale.item(), points(4, 1)
    expected = gram(lambda a, b: curl_free_rbf(a - b, s), x.numpy(), x.numpy())
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3])
def test_curl_free_is_the_gradient_block_of_gpytorchs_rbf_kernel_grad(d):
    base = smooth_base("rbf", d)
    reference = RBFKernelGrad(ard_num_dims=d).double()
    reference.raw_lengthscale.data = base.raw_lengthscale.data
    x, z = with_copies(4, d), points(3, d, seed=1)
    full = dense(reference, x, z).reshape(6, d + 1, 3, d + 1)
    expected = full[:, 1:, :, 1:].reshape(6 * d, 3 * d)
    np.testing.assert_allclose(dense(CurlFreeKernel(base), x, z), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH_BASES)
@pytest.mark.parametrize(("make", "field"), [(CurlFreeKernel, curl_free), (DivergenceFreeKernel, divergence_free)])
def test_fields_match_finite_differences_of_base_kernel(name, make, field):
    base, d = smooth_base(name, 3), 3
    x = 0.4 * points(3, d)
    x = torch.cat([x, x[:1]])  # with a pair of coincident points beside the diagonal

    def k(lags):
        return base(torch.tensor(lags), torch.zeros(1, d).double()).to_dense()[:, 0].detach().numpy()

    expected = gram(lambda a, b: field(difference_hessian(k, a - b)), x.numpy(), x.numpy())
    np.testing.assert_allclose(dense(make(base), x), expected, atol=5e-6)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_bt_e_09_signs_of_the_second_derivatives(d):
    """Tr K_curl(0) = d/σ² and Tr K_div(0) = d(d−1)/σ²: wrong intermediate signs would make both negative."""
    base = smooth_base("rbf_isotropic", d)
    s, zero = base.lengthscale.item(), torch.zeros(1, d).double()
    assert np.trace(dense(CurlFreeKernel(base), zero)) == pytest.approx(d / s**2)
    assert np.trace(dense(DivergenceFreeKernel(base), zero)) == pytest.approx(d * (d - 1) / s**2)


def test_bt_29_helmholtz_is_weighted_sum_of_its_terms():
    curl_base, div_base = smooth_base("rbf", 2), smooth_base("rq", 2)
    kernel = HelmholtzKernel(curl_base, div_base).double()
    kernel.curl.raw_outputscale.data.fill_(0.7)
    kernel.div.raw_outputscale.data.fill_(-0.9)
    a, b = kernel.curl.outputscale.item(), kernel.div.outputscale.item()
    x, z = with_copies(4, 2), points(3, 2, seed=1)
    expected = a * dense(CurlFreeKernel(curl_base), x, z) + b * dense(DivergenceFreeKernel(div_base), x, z)
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


def test_helmholtz_copies_base_kernel_for_second_term():
    base = RBFKernel(ard_num_dims=2)
    kernel = HelmholtzKernel(base)
    kernel.curl.base_kernel.base_kernel.lengthscale = 5.0
    assert kernel.div.base_kernel.base_kernel.lengthscale.max() < 1
    assert kernel.curl.base_kernel.base_kernel is base


# --- Jacobians of draws ---------------------------------------------------------------------------------------


def jacobian(kernel, d):
    """Return the Jacobian of z ↦ Σ_i K(z, x_i) u_i at a point z different from all x_i, by autograd."""
    x, u = points(3, d), points(3 * d, seed=1)
    z = 0.5 * points(d, seed=2)
    J = torch.autograd.functional.jacobian(lambda z: kernel(z.unsqueeze(0), x).to_dense() @ u, z)
    assert J.abs().max() > 1e-4  # the test is not vacuous
    return J


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("name", SMOOTH_BASES)
def test_curl_free_functions_have_symmetric_jacobian(name, d):
    J = jacobian(CurlFreeKernel(smooth_base(name, d)), d)
    torch.testing.assert_close(J, J.mT, rtol=0, atol=1e-12 * J.abs().max().item())


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("name", SMOOTH_BASES)
def test_divergence_free_functions_have_traceless_jacobian(name, d):
    J = jacobian(DivergenceFreeKernel(smooth_base(name, d)), d)
    assert J.trace().abs() < 1e-12 * J.abs().max()


def test_jacobian_properties_differ_between_fields():
    base = smooth_base("rbf", 3)
    J = jacobian(DivergenceFreeKernel(base), 3)
    assert (J - J.mT).abs().max() > 1e-2
    assert jacobian(CurlFreeKernel(base), 3).trace().abs() > 1e-2


@pytest.mark.parametrize("name", ["rbf", "matern52", "rq", "cauchy", "periodic"])
def test_jacobian_properties_hold_at_data_points(name):
    base, x, u = smooth_base(name, 3), points(3, 3), points(9, seed=1)
    for make, residual in ((CurlFreeKernel, lambda J: J - J.mT), (DivergenceFreeKernel, torch.trace)):
        kernel = make(base)
        J = torch.autograd.functional.jacobian(lambda z, k=kernel: k(z.unsqueeze(0), x).to_dense() @ u, x[1].clone())
        assert residual(J).abs().max() < 1e-12 * J.abs().max()


# --- gradients ---------------------------------------------------------------------------------------------------


class _Dense(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return self.kernel(x).to_dense()


@FIELDS
@pytest.mark.parametrize("name", [name for name in SMOOTH_BASES if "periodic_sobolev" not in name])  # no parameters
def test_hyperparameter_gradients_match_finite_differences(make, name):
    module = _Dense(make(smooth_base(name, 2)).double())
    x = with_copies(3, 2)
    labels = [label for label, _ in module.named_parameters()]

    def matrix(*values):
        return torch.func.functional_call(module, dict(zip(labels, values, strict=True)), (x,))

    values = tuple(v.detach().clone().requires_grad_() for v in module.parameters())
    assert torch.autograd.gradcheck(matrix, values, fast_mode=True)


@FIELDS
@pytest.mark.parametrize("name", SMOOTH_BASES)
def test_input_gradients_match_finite_differences(make, name):
    module = _Dense(make(smooth_base(name, 2)).double())
    z = points(2, 2, seed=1)

    def matrix(x):
        return module.kernel(x, z).to_dense()

    assert torch.autograd.gradcheck(matrix, (points(3, 2).requires_grad_(),), fast_mode=True)


@FIELDS
@pytest.mark.parametrize("name", ["rbf", "matern52", "rq", "cauchy", "spectral_mixture"])
def test_input_gradients_match_finite_differences_at_coincident_points(make, name):
    kernel, z = make(smooth_base(name, 2)).double(), points(3, 2)
    assert torch.autograd.gradcheck(lambda x: kernel(x, z).to_dense(), (z.clone().requires_grad_(),))


@FIELDS
@pytest.mark.parametrize("name", SMOOTH_BASES)
def test_input_gradients_are_finite_at_coincident_points(make, name):
    """If the field has a kink at zero lag (Matérn-3/2, Sobolev 2), gradients are finite."""
    kernel, x = make(smooth_base(name, 2)).double(), with_copies(3, 2).requires_grad_()
    (kernel(x).to_dense() * points(10, 10, seed=3)).sum().backward()
    assert x.grad.isfinite().all()


# --- dimensions and bad inputs -------------------------------------------------------------------------------------


@FIELDS
@pytest.mark.parametrize(
    "base",
    [
        RBFKernel(ard_num_dims=3),
        RBFKernel(active_dims=[0, 2, 3]),
        ScaleKernel(RBFKernel(ard_num_dims=3)),
        ScaleKernel(ScaleKernel(RBFKernel(active_dims=[0, 2, 3]))),
        ScaleKernel(RQKernel() + RBFKernel(ard_num_dims=3)),
        RQKernel() * RBFKernel(ard_num_dims=3),
        RBFKernel(ard_num_dims=3) + RBFKernel(ard_num_dims=2, active_dims=[0, 2]),
    ],
)
def test_num_dims_is_inferred_from_base_kernel(make, base):
    assert num_outputs(make(base)) == 3


@FIELDS
def test_num_dims_can_be_given_or_unknown(make):
    assert num_outputs(make(RBFKernel(), num_dims=4)) == 4
    kernel = make(RBFKernel())
    assert [kernel(torch.randn(2, d)).to_dense().shape for d in (2, 3)] == [(4, 4), (6, 6)]


@FIELDS
def test_num_dims_is_not_needed_with_active_dims_of_terms(make):
    kernel = make(RBFKernel(active_dims=[0]) + RQKernel(active_dims=[2, 1]))
    assert kernel(torch.randn(2, 3)).to_dense().shape == (6, 6)


@pytest.mark.parametrize(("first", "second"), [({}, {"ard_num_dims": 3}), ({"ard_num_dims": 3}, {})])
def test_helmholtz_infers_num_dims_from_either_base_kernel(first, second):
    kernel = HelmholtzKernel(RBFKernel(**first), RBFKernel(**second))
    assert num_outputs(kernel) == 3


@FIELDS
@pytest.mark.parametrize(
    ("base", "num_dims", "message"),
    [
        (RBFKernel(ard_num_dims=2), 3, "num_dims must be 2"),
        (RBFKernel(active_dims=[0, 1]), 3, "num_dims must be 2"),
        (ScaleKernel(RBFKernel(ard_num_dims=2)), 3, "num_dims must be 2"),
        (RBFKernel(ard_num_dims=2) + RBFKernel(ard_num_dims=3), None, r"different numbers of dimensions: \[2, 3\]"),
        (RBFKernel(active_dims=[0]) + RBFKernel(active_dims=[4]), 3, "column 4"),
    ],
)
def test_fields_reject_inconsistent_num_dims(make, base, num_dims, message):
    with pytest.raises(OptionError, match=message):
        make(base, num_dims=num_dims)


def test_helmholtz_rejects_base_kernels_of_different_dimensions():
    with pytest.raises(OptionError, match="num_dims"):
        HelmholtzKernel(RBFKernel(ard_num_dims=2), RBFKernel(ard_num_dims=3))


@pytest.mark.parametrize("make", [DivergenceFreeKernel, HelmholtzKernel])
def test_divergence_free_fields_reject_one_dimension(make):
    with pytest.raises(OptionError, match="at least 2 input dimensions"):
        make(RBFKernel(ard_num_dims=1))
    with pytest.raises(OptionError, match="at least 2 input dimensions"):
        make(RBFKernel())(torch.randn(3, 1)).to_dense()


@FIELDS
def test_fields_reject_wrong_number_of_columns(make):
    kernel = make(RBFKernel(ard_num_dims=2))
    with pytest.raises(InputError, match="2 columns, got 3"):
        kernel(torch.randn(4, 3)).to_dense()
    with pytest.raises(InputError, match="2 columns, got 3"):
        kernel(torch.randn(4, 3), diag=True)


@FIELDS
@pytest.mark.parametrize(
    ("base", "message"), [("rbf", "got str"), (DecomposableKernel(RBFKernel(), 2), "must be a scalar kernel")]
)
def test_fields_reject_invalid_base_kernel(make, base, message):
    with pytest.raises(KernelTypeError, match=message):
        make(base)


@pytest.mark.parametrize("make", [CurlFreeKernel, DivergenceFreeKernel, HelmholtzKernel])
def test_fields_reject_noninteger_num_dims(make):
    with pytest.raises(OptionError, match="num_dims"):
        make(RBFKernel(), num_dims=2.5)
