"""The feature operators against linear_operator's own test cases and against dense products."""

import unittest
from unittest import mock

import pytest
import torch
from gpytorch.kernels import RBFKernel
from linear_operator.operators import (
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    KroneckerProductLinearOperator,
    to_linear_operator,
)
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase, RectangularLinearOperatorTestCase

from ovkgp.features import ORFF
from ovkgp.features.covariance import FeatureCovariance, FeatureCrossCovariance, NoisyFeatureCovariance
from ovkgp.features.operators import (
    ComplexFeatureOperator,
    CosSinFeatures,
    FeatureOperator,
    ReflectedFeatureOperator,
    SelfGram,
    StackedFeatures,
    stack_features,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel


def separable(n=4, m=3, p=2, r=2, batch=()):
    return FeatureOperator(torch.randn(*batch, n, m), torch.randn(*batch, p, r), num_outputs=p)


def per_frequency(n=4, frequencies=3, p=2, r=1, batch=()):
    features = torch.randn(*batch, n, 2 * frequencies)
    return FeatureOperator(features, torch.randn(*batch, frequencies * p, r), num_outputs=p)


def complex_factor(n=4, frequencies=2, p=2, r=1, batch=()):
    parts = (torch.randn(*batch, frequencies * p, r) for _ in range(2))
    return ComplexFeatureOperator(torch.randn(*batch, n, 2 * frequencies), *parts, num_outputs=p)


def dense_twin(op):
    """Φ entry by entry from the definition, in the order of the docstrings; differentiable in the arguments."""
    if isinstance(op, StackedFeatures):
        return torch.cat([dense_twin(part) for part in op.parts], -1)
    p, n, M = op.num_outputs, op.features.shape[-2], op.features.shape[-1]
    if isinstance(op, ComplexFeatureOperator):
        D = M // 2
        columns = []
        for e in range(2):
            for j in range(D):
                re, im = (t[..., j * p : (j + 1) * p, :] for t in (op.factor, op.imaginary))
                on_cos, on_sin = (re, im) if e == 0 else (im, -re)
                cos, sin = op.features[..., j], op.features[..., D + j]
                block = cos[..., None, None] * on_cos.unsqueeze(-3) + sin[..., None, None] * on_sin.unsqueeze(-3)
                columns.append(block.reshape(*block.shape[:-3], n * p, -1))
        return torch.cat(columns, -1)
    if isinstance(op, ReflectedFeatureOperator):
        v = op.factor
        outer = v.unsqueeze(-1) * v.unsqueeze(-2) / v.square().sum(-1)[..., None, None]
        factor = (op.lengths.unsqueeze(-1) * (torch.eye(p, dtype=v.dtype) - 2 * outer))[..., 1:].flatten(-3, -2)
    else:
        factor = op.factor
    J = factor.shape[-2] // p
    columns = []
    for m in range(M):
        block = factor[..., (m % J) * p : (m % J + 1) * p, :]
        columns.append((op.features[..., m, None, None] * block.unsqueeze(-3)).flatten(-3, -2))
    return torch.cat(columns, -1)


def reflected(n=4, frequencies=2, p=2, batch=()):
    parts = torch.randn(*batch, frequencies, p), torch.rand(*batch, frequencies, 1)
    return ReflectedFeatureOperator(torch.randn(*batch, n, 2 * frequencies), *parts, num_outputs=p)


class TestSeparable(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        return separable().requires_grad_(True)

    def evaluate_linear_op(self, op):
        return dense_twin(op)


class TestSeparableBatch(TestSeparable):
    def create_linear_op(self):
        return separable(batch=(2,)).requires_grad_(True)


class TestPerFrequency(TestSeparable):
    def create_linear_op(self):
        return per_frequency().requires_grad_(True)


class TestPerFrequencyMultiBatch(TestSeparable):
    def create_linear_op(self):
        return per_frequency(batch=(3, 2)).requires_grad_(True)


class TestReflected(TestSeparable):
    def create_linear_op(self):
        return reflected(p=3).requires_grad_(True)


class TestReflectedBatch(TestSeparable):
    def create_linear_op(self):
        return reflected(batch=(2,)).requires_grad_(True)


class TestComplex(TestSeparable):
    def create_linear_op(self):
        return complex_factor().requires_grad_(True)


class TestStacked(TestSeparable):
    def create_linear_op(self):
        return StackedFeatures(separable(), per_frequency()).requires_grad_(True)


class TestCurlFreeMap(TestSeparable):
    def create_linear_op(self):
        orff = ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), 3, random_state=0)
        return orff(torch.randn(4, 2)).detach().requires_grad_(True)


class TestDivergenceFreeMap(TestSeparable):
    def create_linear_op(self):
        orff = ORFF(DivergenceFreeKernel(RBFKernel(ard_num_dims=3)), 2, random_state=0)
        return orff(torch.randn(3, 3)).detach().requires_grad_(True)


class TestNoisySharedVariance(LinearOperatorTestCase, unittest.TestCase):
    """ΦΦᵀ + σ² I with fewer features than observations, solved by Woodbury's formula."""

    seed = 0
    should_test_sample = True
    should_call_cholesky = False
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False

    def features(self):
        return separable(n=6, m=3, p=2, r=1)

    def noise(self, size):
        return ConstantDiagLinearOperator(torch.tensor([0.7]), diag_shape=size)

    def test_sqrt_inv_matmul(self):
        with self.distinct_eigenvalues():
            super().test_sqrt_inv_matmul()

    def test_sqrt_inv_matmul_no_lhs(self):
        with self.distinct_eigenvalues():
            super().test_sqrt_inv_matmul_no_lhs()

    def distinct_eigenvalues(self):
        """Use distinct eigenvalues: the check differentiates `eigh`, which depends on rounding at repeated ones."""
        return mock.patch.object(self, "features", lambda: separable(n=6, m=6, p=2, r=2))

    def create_linear_op(self):
        features = self.features()
        op = FeatureCovariance(features) + self.noise(features.shape[-2])
        assert isinstance(op, NoisyFeatureCovariance)
        return op.detach().requires_grad_(True)

    def evaluate_linear_op(self, op):
        root = dense_twin(op.features)
        return root @ root.mT + op.noise.to_dense()


class TestNoisyWide(TestNoisySharedVariance):
    """More features than observations, solved densely."""

    def features(self):
        return separable(n=3, m=8, p=2, r=2)


class TestNoisyDiagonal(TestNoisySharedVariance):
    def noise(self, size):
        return DiagLinearOperator(torch.rand(size) + 0.5)


class TestNoisyFullOutputs(TestNoisySharedVariance):
    def features(self):
        return per_frequency(n=6, frequencies=3, p=2, r=1)

    def noise(self, size):
        eye = ConstantDiagLinearOperator(torch.ones(1), diag_shape=size // 2)
        return KroneckerProductLinearOperator(eye, to_linear_operator(torch.tensor([[1.0, 0.4], [0.4, 0.9]])))


class TestNoisyStacked(TestNoisySharedVariance):
    def features(self):
        return StackedFeatures(separable(n=9, m=3), per_frequency(n=9, frequencies=2))


class TestNoisyBatch(TestNoisySharedVariance):
    def features(self):
        return separable(n=6, m=3, p=2, r=1, batch=(2,))

    def noise(self, size):
        return ConstantDiagLinearOperator(torch.tensor([[0.7], [0.9]]), diag_shape=size)


MAKERS = [separable, per_frequency, complex_factor, reflected, lambda: StackedFeatures(separable(), per_frequency())]


@pytest.mark.parametrize("make", MAKERS)
def test_squared_rows_and_gram_equal_dense(make):
    torch.manual_seed(1)
    op = make().double()
    dense = dense_twin(op)
    weight = torch.randn(2, 2, dtype=torch.float64)
    weight = weight @ weight.mT
    weighted = torch.kron(torch.eye(4, dtype=torch.float64), weight)
    torch.testing.assert_close(op.squared_rows(), dense.square().sum(-1))
    torch.testing.assert_close(op.cross_gram(op, weight), dense.mT @ weighted @ dense)
    torch.testing.assert_close(FeatureCovariance(op).diagonal(), (dense @ dense.mT).diagonal())


def test_cross_covariance_scales_and_adds():
    torch.manual_seed(2)
    pairs = [(separable(n=3), separable(n=5)), (per_frequency(n=3), per_frequency(n=5))]
    crosses = [FeatureCrossCovariance(a, b) for a, b in pairs]
    dense = [dense_twin(a) @ dense_twin(b).mT for a, b in pairs]
    torch.testing.assert_close((crosses[0] * 4.0 + crosses[1]).to_dense(), 4 * dense[0] + dense[1])
    assert isinstance(crosses[0] * 4.0 + crosses[1], FeatureCrossCovariance)
    torch.testing.assert_close((crosses[0] * -1.0).to_dense(), -dense[0])


class TestCrossCovariance(RectangularLinearOperatorTestCase, unittest.TestCase):
    seed = 0

    def create_linear_op(self):
        return FeatureCrossCovariance(per_frequency(n=3), per_frequency(n=4)).requires_grad_(True)

    def evaluate_linear_op(self, op):
        return dense_twin(op.left) @ dense_twin(op.right).mT


def test_stack_features_is_flat():
    parts = separable(), per_frequency(), complex_factor()
    assert len(stack_features(stack_features(*parts[:2]), parts[2]).parts) == 3
    assert stack_features(parts[0]) is parts[0]


def test_products_form_no_n_p_d_tensor():
    """The largest tensor in Φθ and Φᵀy has n·2D entries, not n·p·2D."""
    n, d, D = 300, 10, 50
    orff = ORFF(DivergenceFreeKernel(RBFKernel(ard_num_dims=d)), D, random_state=0)
    with torch.no_grad():
        Phi = orff(torch.randn(n, d))
        sizes = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                if torch.is_tensor(result):
                    sizes.append(result.untyped_storage().nbytes() // result.element_size())
                return result

        with Watch():
            Phi @ torch.randn(Phi.shape[-1])
            Phi.mT @ torch.randn(Phi.shape[-2])
    assert max(sizes) <= n * 2 * D


def test_cos_sin_features_are_twice_differentiable():
    angles = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(CosSinFeatures.apply(angles), torch.cat([angles.cos(), angles.sin()], -1))
    assert torch.autograd.gradcheck(CosSinFeatures.apply, angles)
    assert torch.autograd.gradgradcheck(CosSinFeatures.apply, angles)


@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3), (0, 3)])
def test_self_gram_is_twice_differentiable(shape):
    features = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(SelfGram.apply(features), features.mT @ features)
    assert torch.autograd.gradcheck(SelfGram.apply, features)
    assert torch.autograd.gradgradcheck(SelfGram.apply, features)


def test_bt_e_27_separable_features_are_the_kronecker_product_with_the_root():
    """BT-E-27: kron(φ, Bᵀ) in the paper's column layout, φ ⊗ B here; B Bᵀ = Γ and not BᵀB."""
    Gamma = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=1), output_matrix=Gamma).double()
    Phi = ORFF(kernel, 20, random_state=0)(torch.zeros(1, 1, dtype=torch.float64)).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, Gamma)


def test_bt_e_26_cosines_and_sines_have_separate_weights():
    """BT-E-26: one weight shared by cos and sin would halve the columns."""
    orff = ORFF(RBFKernel(ard_num_dims=1), 7, random_state=0)
    assert orff(torch.zeros(2, 1)).shape == (2, 14)
