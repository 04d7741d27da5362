import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.priors import GammaPrior
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import DomainError
from ovkgp.kernels.chi_square import ExponentiatedChi2Kernel, SkewedChi2Kernel


class _PositiveData:
    def create_data_no_batch(self):
        return torch.randn(50, 10).abs()

    def create_data_single_batch(self):
        return torch.randn(2, 3, 2).abs()

    def create_data_double_batch(self):
        return torch.randn(3, 2, 50, 2).abs()


class TestSkewedChi2Protocol(_PositiveData, BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return SkewedChi2Kernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return SkewedChi2Kernel(ard_num_dims=num_dims, **kwargs)


class TestExponentiatedChi2Protocol(_PositiveData, BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ExponentiatedChi2Kernel(**kwargs)


def positive_inputs(n, d, seed=0):
    return np.random.default_rng(seed).gamma(1.0, size=(n, d))


def test_skewed_kernel_matches_dense_formula():
    x, z, c = positive_inputs(7, 3), positive_inputs(5, 3, 1), np.array([0.1, 1.0, 4.0])
    kernel = SkewedChi2Kernel(ard_num_dims=3).double()
    kernel.c = torch.tensor(c)
    a, b = x[:, None] + c, z[None] + c
    expected = np.prod(2 * np.sqrt(a * b) / (a + b), axis=-1)
    np.testing.assert_allclose(kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach(), expected, rtol=1e-13)
    diagonal = kernel(torch.tensor(x[:5]), torch.tensor(z), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-13)


def test_bt_e_10_skewed_is_sech_of_half_the_difference_of_log_x_plus_c():
    """BT-E-10: the substitution is t = log(δ + c), not the printed t = 1 / (δ + c)."""
    x, z, c = positive_inputs(6, 2), positive_inputs(6, 2, 1), 0.7
    kernel = SkewedChi2Kernel().double()
    kernel.c = c
    value = kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach().numpy()

    def signature(h):
        return np.prod(1 / np.cosh((h(x)[:, None] - h(z)[None]) / 2), axis=-1)

    np.testing.assert_allclose(value, signature(lambda t: np.log(t + c)), rtol=1e-12)
    assert np.abs(value - signature(lambda t: 1 / (t + c))).max() > 0.05


def test_exponentiated_kernel_matches_dense_formula_with_zero_over_zero_as_zero():
    x, z = positive_inputs(7, 3), positive_inputs(5, 3, 1)
    x[:3, 0] = 0
    z[:2, 0] = 0
    kernel = ExponentiatedChi2Kernel().double()
    kernel.gamma = 0.25
    total = x[:, None] + z[None]
    terms = np.divide((x[:, None] - z[None]) ** 2, total, out=np.zeros_like(total), where=total > 0)
    value = kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach()
    np.testing.assert_allclose(value, np.exp(-0.25 * terms.sum(-1)), rtol=1e-13)
    diagonal = kernel(torch.tensor(x[:5]), torch.tensor(z), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(value), rtol=1e-13)


@pytest.mark.parametrize("make, name", [(SkewedChi2Kernel, "raw_c"), (ExponentiatedChi2Kernel, "raw_gamma")])
def test_chi_square_kernels_gradients_at_coincident_points(make, name):
    x = torch.tensor(positive_inputs(3, 2)).requires_grad_()
    z = torch.tensor(np.concatenate([positive_inputs(3, 2)[:2], positive_inputs(2, 2, 5)])).requires_grad_()
    kernel = make().double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {name: raw}, (x, z)).to_dense()

    inputs = (x, z, getattr(kernel, name))
    assert torch.autograd.gradcheck(value, inputs)
    assert torch.autograd.gradgradcheck(value, inputs)


def test_exponentiated_kernel_gradient_is_finite_at_zero():
    x = torch.zeros(2, 3, requires_grad=True)
    kernel = ExponentiatedChi2Kernel()
    kernel(x).to_dense().sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.isfinite(kernel.raw_gamma.grad).all()


def test_skewed_kernel_domain_error_names_column_and_smallest_value():
    kernel = SkewedChi2Kernel(c=1.0)
    x = torch.tensor([[0.0, -0.5, 3.0], [0.0, -2.5, -7.0]])
    with pytest.raises(DomainError, match=r"column 1 .* smallest value is -2\.5"):
        kernel(x).to_dense()
    selected = SkewedChi2Kernel(c=1.0, active_dims=[0, 2])
    with pytest.raises(DomainError, match=r"column 2 .* smallest value is -7"):
        selected(x).to_dense()
    kernel(x[:1]).to_dense()  # −c < x < 0 is inside


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_exponentiated_kernel_rejects_negative_and_nan_inputs(bad):
    with pytest.raises(DomainError, match="column 1"):
        ExponentiatedChi2Kernel()(torch.tensor([[1.0, bad]])).to_dense()


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 50), st.integers(0, 1000))
def test_chi_square_kernels_are_positive_semidefinite(parameter, seed):
    x = torch.tensor(positive_inputs(20, 2, seed))
    for kernel in (SkewedChi2Kernel(c=parameter), ExponentiatedChi2Kernel(gamma=parameter)):
        assert torch.linalg.eigvalsh(kernel.double()(x).to_dense()).min() > -1e-10


def test_chi_square_kernels_prior_constraint_setter_and_pickle():
    kernel = SkewedChi2Kernel(ard_num_dims=2, c=0.5, c_prior=GammaPrior(2.0, 1.0), c_constraint=GreaterThan(0.1))
    kernel = pickle.loads(pickle.dumps(kernel))
    _, module, _, closure, setter = next(kernel.named_priors())
    torch.testing.assert_close(closure(module), torch.full((1, 2), 0.5))
    setter(module, torch.full((1, 2), 2.0))
    torch.testing.assert_close(kernel.c, torch.full((1, 2), 2.0))
    kernel = pickle.loads(pickle.dumps(ExponentiatedChi2Kernel(gamma=0.25, gamma_prior=GammaPrior(2.0, 1.0))))
    _, module, _, closure, setter = next(kernel.named_priors())
    setter(module, torch.tensor(2.0))
    torch.testing.assert_close(closure(module), torch.full((1, 1), 2.0))
