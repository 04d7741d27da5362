"""Tests of `ovkgp.kernels.decomposable`."""

import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from linear_operator.operators import KroneckerProductLinearOperator
from oracles import curl_free_rbf, dense, gram, randomize, rbf

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.features import ORFF, SpectralPair, moment_order, spectral_pair
from ovkgp.kernels import (
    BlockwiseProductKernel,
    CurlFreeKernel,
    DecomposableKernel,
    FreeMatrix,
    IndependentKernel,
    MeanRegularizedMatrix,
    SimplexMatrix,
)


class TestDecomposableProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(RBFKernel(**kwargs), num_outputs=2)

    def create_kernel_ard(self, num_dims, **kwargs):
        return DecomposableKernel(RBFKernel(ard_num_dims=num_dims, **kwargs), num_outputs=2)


class TestDecomposableProtocolWithAKnownMatrix(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(ScaleKernel(MaternKernel(**kwargs)), output_matrix=SimplexMatrix(3))

    def create_kernel_ard(self, num_dims, **kwargs):
        return DecomposableKernel(MaternKernel(ard_num_dims=num_dims, **kwargs), output_matrix=SimplexMatrix(3))


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bt_24_blocks_are_the_scalar_kernel_times_the_output_matrix():
    kernel = randomize(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2).double(), 0)
    lengthscale, matrix = kernel.base_kernel.lengthscale[0].detach().numpy(), kernel.output_matrix.detach().numpy()
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: rbf(a - b, lengthscale) * matrix, x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


def test_decomposable_matrix_is_kronecker_product():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=3)
    assert isinstance(kernel(points(4, 2)).evaluate_kernel(), KroneckerProductLinearOperator)


def test_decomposable_kernel_accepts_nonstationary_base():
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(2)).double()
    x = points(3, 2)
    expected = np.kron(dense(kernel.base_kernel, x), np.eye(2))
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12, atol=1e-14)
    assert (kernel.is_stationary, DecomposableKernel(RBFKernel(), 2).is_stationary) == (False, True)


@pytest.mark.parametrize("rank", [2, 4])
def test_bt_26_bt_e_14_squared_norm_weighs_inner_products_by_the_pseudo_inverse(rank):
    """‖f‖²_K, and not ‖f‖_K as printed, is Σ Γ†_ab ⟨f_a, f_b⟩_k, for a nonsingular and for a singular Γ."""
    root = points(4, rank)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=root @ root.mT).double()
    x, u = points(6, 2, seed=1), points(6, 4, seed=2).numpy()
    matrix = (root @ root.mT).numpy()
    C = u @ matrix  # f_a = Σ_i C_ia k(·, x_i)
    scalar = gram(lambda a, b: [[rbf(a - b, kernel.base_kernel.lengthscale.item())]], x.numpy(), x.numpy())
    inverse = np.linalg.pinv(matrix, hermitian=True)
    squared_norm = sum(inverse[a, b] * C[:, a] @ scalar @ C[:, b] for a in range(4) for b in range(4))
    assert u.flatten() @ dense(kernel, x) @ u.flatten() == pytest.approx(squared_norm, rel=1e-9)


def test_bt_26_functions_of_singular_matrix_are_dependent():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.ones(2, 2)).double()
    f = (dense(kernel, points(5, 2), points(3, 2, seed=1)) @ points(6, seed=2).numpy()).reshape(5, 2)
    np.testing.assert_allclose(f[:, 0], f[:, 1], rtol=1e-12)


def test_output_matrix_module_is_not_copied():
    module = MeanRegularizedMatrix(3)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=module)
    assert kernel.output_module is module and kernel.num_outputs == 3


def test_free_matrix_is_the_default_with_rank_one():
    module = DecomposableKernel(RBFKernel(), num_outputs=3).output_module
    assert isinstance(module, FreeMatrix) and module.rank == 1


def test_free_matrix_follows_the_batch_shape_of_the_base_kernel():
    kernel = DecomposableKernel(RBFKernel(batch_shape=torch.Size([2])), num_outputs=3)
    assert kernel.output_matrix.shape == (2, 3, 3)


def test_batch_of_matrices_broadcasts_against_one_base_kernel():
    stack = torch.stack([torch.eye(2), torch.ones(2, 2)]).double()
    kernel, x = DecomposableKernel(RBFKernel(), output_matrix=stack).double(), points(3, 2)
    scalar = dense(kernel.base_kernel, x)
    assert kernel.batch_shape == (2,)
    np.testing.assert_allclose(dense(kernel, x), [np.kron(scalar, m) for m in stack.numpy()], rtol=1e-12)
    diagonal = np.diagonal(dense(kernel, x), axis1=-2, axis2=-1)
    np.testing.assert_allclose(kernel(x, diag=True).detach(), diagonal, rtol=1e-12)
    np.testing.assert_allclose(dense(kernel[1], x), dense(kernel, x)[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "num_outputs"),
        ({"rank": 2, "output_matrix": torch.eye(2)}, "rank"),
        ({"num_outputs": 3, "output_matrix": torch.eye(2)}, "num_outputs must be 2"),
        ({"num_outputs": 3, "rank": 4}, "between 1 and num_outputs = 3"),
        ({"num_outputs": 0}, "at least 1"),
    ],
)
def test_decomposable_kernel_rejects_inconsistent_options(options, message):
    with pytest.raises(OptionError, match=message):
        DecomposableKernel(RBFKernel(), **options)


def test_decomposable_kernel_rejects_indefinite_output_matrix():
    with pytest.raises(InputError, match="negative eigenvalue"):
        DecomposableKernel(RBFKernel(), output_matrix=-torch.eye(2))


def test_decomposable_kernel_rejects_base_that_is_not_a_kernel():
    with pytest.raises(KernelTypeError, match=r"must be a gpytorch.kernels.Kernel, got str"):
        DecomposableKernel("rbf", num_outputs=2)


@pytest.mark.parametrize(
    "base",
    [CurlFreeKernel(RBFKernel()), DecomposableKernel(RBFKernel(), 2), ScaleKernel(DecomposableKernel(RBFKernel(), 2))],
)
def test_decomposable_kernel_rejects_operator_valued_base(base):
    with pytest.raises(KernelTypeError, match="must be a scalar kernel"):
        DecomposableKernel(base, num_outputs=2)


@pytest.mark.parametrize("options", [{"num_outputs": 2.5}, {"num_outputs": "2"}, {"num_outputs": 2, "rank": 1.5}])
def test_decomposable_kernel_rejects_noninteger_sizes(options):
    with pytest.raises(OptionError, match=r"rank|num_outputs"):
        DecomposableKernel(RBFKernel(), **options)


def test_decomposable_kernel_accepts_numpy_and_torch_integers():
    kernel = DecomposableKernel(RBFKernel(), np.int64(3), rank=torch.tensor(2))
    assert kernel.num_outputs == 3 and kernel.output_module.rank == 2


@pytest.mark.parametrize("make", [lambda k: k, lambda k: k * RBFKernel(), lambda k: k + k, ScaleKernel])
def test_separable_kernels_without_points_give_empty_matrix(make):
    kernel, x = make(DecomposableKernel(RBFKernel(), num_outputs=2)), torch.randn(3, 1)
    assert kernel(x[:0]).to_dense().shape == (0, 0)
    assert kernel(x[:0], x).to_dense().shape == (0, 6)
    assert kernel(x, x[:0]).to_dense().shape == (6, 0)
    assert kernel(x[:0], diag=True).shape == (0,)


class TestBlockwiseProtocolOfASeparableKernel(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(RBFKernel(**kwargs), num_outputs=2) * RQKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return DecomposableKernel(RBFKernel(**ard), num_outputs=2) * RQKernel(**ard)


class TestBlockwiseProtocolOfAField(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return CurlFreeKernel(RBFKernel(**kwargs)) * RQKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return CurlFreeKernel(RBFKernel(**ard)) * RQKernel(**ard)


def test_blockwise_product_of_curl_free_kernel():
    field, scalar = CurlFreeKernel(RBFKernel()).double(), RBFKernel().double()
    field.base_kernel.lengthscale, scalar.lengthscale = 0.8, 1.7
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (4, 2))
    expected = gram(lambda a, b: rbf(a - b, 1.7) * curl_free_rbf(a - b, 0.8), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(field * scalar, x, z), expected, rtol=1e-6, atol=1e-9)  # lengthscales set in float


def test_blockwise_product_of_kronecker_product_is_kronecker_product():
    product = DecomposableKernel(RBFKernel(), num_outputs=2) * RQKernel()
    assert isinstance(product(torch.randn(4, 2)).evaluate_kernel(), KroneckerProductLinearOperator)


def test_blockwise_products_can_be_chained():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2).double()
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scalar = RQKernel().double()
    expected = dense(kernel, x) * np.kron(dense(scalar, x) ** 2, np.ones((2, 2)))
    np.testing.assert_allclose(dense(kernel * scalar * scalar, x), expected, rtol=1e-12)


@pytest.mark.parametrize(("first", "second"), [("rbf", RBFKernel()), (DecomposableKernel(RBFKernel(), 2), "rbf")])
def test_blockwise_product_rejects_factors_that_are_not_kernels(first, second):
    with pytest.raises(KernelTypeError, match="got str"):
        BlockwiseProductKernel(first, second)


def test_blockwise_product_rejects_operator_valued_scalar_kernel():
    kernel = DecomposableKernel(RBFKernel(), 2)
    with pytest.raises(KernelTypeError, match="scalar_kernel"):
        BlockwiseProductKernel(kernel, kernel)


class TestIndependentProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return IndependentKernel([RBFKernel(**kwargs), MaternKernel(**kwargs), RQKernel(**kwargs)])

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return IndependentKernel([RBFKernel(**ard), MaternKernel(**ard)])


def three():
    kernel = IndependentKernel(
        [RBFKernel(ard_num_dims=2), ScaleKernel(MaternKernel(nu=1.5)) + RQKernel(active_dims=[1]), MaternKernel()]
    )
    return randomize(kernel.double(), 0)


def test_independent_kernel_has_diagonal_blocks():
    kernel = IndependentKernel.copies(RBFKernel(), 3).double()
    for scale, part in zip((0.5, 1.0, 2.0), kernel.kernels, strict=True):
        part.lengthscale = torch.tensor(scale, dtype=torch.float64)
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: np.diag([rbf(a - b, s) for s in (0.5, 1.0, 2.0)]), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-15)


def test_independent_kernel_products_match_dense_algebra():
    kernel, x, z, rhs = three(), points(5, 2), points(4, 2, seed=1), points(12, 2, seed=2)
    weight = points(15, 2, seed=3)
    parameters = list(kernel.parameters())
    lazy, matrix = kernel(x, z).evaluate_kernel(), kernel(x, z).to_dense()
    torch.testing.assert_close(lazy @ rhs, matrix @ rhs, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(lazy.mT @ weight, matrix.mT @ weight, rtol=1e-12, atol=1e-13)
    ours = torch.autograd.grad(((lazy @ rhs) * weight).sum(), parameters)
    expected = torch.autograd.grad(((matrix @ rhs) * weight).sum(), parameters)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_independent_kernel_solve_and_log_determinant_match_dense_algebra():
    kernel, x, rhs = three(), points(6, 2), points(18, 1, seed=2)
    lazy = kernel(x).evaluate_kernel()
    matrix = lazy.to_dense()
    quad, log_det = lazy.inv_quad_logdet(rhs, logdet=True)
    torch.testing.assert_close(lazy.solve(rhs), torch.linalg.solve(matrix, rhs), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(quad, (rhs * torch.linalg.solve(matrix, rhs)).sum(), rtol=1e-8, atol=0)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-8, atol=0)


@pytest.mark.parametrize("batched", [True, False])
def test_independent_kernel_with_batch_of_scales(batched):
    """As many scales as outputs: GPyTorch's operator would apply one of them to each output."""
    batch = torch.Size([2])
    inner = IndependentKernel.copies(RBFKernel(batch_shape=batch if batched else torch.Size()), 2)
    kernel = randomize(ScaleKernel(inner, batch_shape=batch).double(), 1)
    x = points(3, 2)
    expected = kernel.outputscale.detach().numpy()[:, None, None] * dense(inner, x)
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12)
    np.testing.assert_allclose(
        kernel(x, diag=True).detach(), np.diagonal(expected, axis1=-2, axis2=-1), rtol=1e-10, atol=1e-13
    )


def test_independent_kernel_broadcasts_batch_shapes():
    kernel = IndependentKernel([RBFKernel(batch_shape=torch.Size([2])), RQKernel()]).double()
    x = points(3, 2)
    assert kernel.batch_shape == (2,)
    np.testing.assert_array_equal(dense(kernel, x)[0], dense(kernel[0], x))


def test_independent_kernel_without_points():
    kernel = IndependentKernel.copies(RBFKernel(), 2)
    assert kernel(torch.randn(0, 3), torch.randn(4, 3)).to_dense().shape == (0, 8)
    assert kernel(torch.randn(0, 3), diag=True).shape == (0,)


def test_copies_are_independent_of_each_other_and_of_the_base():
    base = RBFKernel()
    kernel = IndependentKernel.copies(base, 3)
    kernel.kernels[0].lengthscale = 5.0
    assert len(list(kernel.parameters())) == 3
    assert base.lengthscale.item() == kernel.kernels[1].lengthscale.item() != kernel.kernels[0].lengthscale.item()


def test_independent_kernel_is_stationary_if_all_kernels_are():
    assert IndependentKernel([RBFKernel(), RQKernel()]).is_stationary
    assert not IndependentKernel([RBFKernel(), LinearKernel()]).is_stationary


def test_independent_kernel_rejects_invalid_arguments():
    with pytest.raises(OptionError, match="kernels"):
        IndependentKernel([])
    with pytest.raises(OptionError, match="kernels"):
        IndependentKernel(3)
    with pytest.raises(KernelTypeError, match=r"kernels\[1\]"):
        IndependentKernel([RBFKernel(), CurlFreeKernel(RBFKernel(ard_num_dims=2))])
    with pytest.raises(KernelTypeError, match=r"kernels\[0\]"):
        IndependentKernel("rbf")
    with pytest.raises(OptionError, match="num_outputs"):
        IndependentKernel.copies(RBFKernel(), 0)


# --- features ---------------------------------------------------------------------------------------------------


def test_independent_kernel_spectral_pair_terms():
    pair = spectral_pair(three(), num_dims=2)
    assert len(pair.terms) == 4  # the second kernel is a sum
    for term, output in zip(pair.terms, (0, 1, 1, 2), strict=True):
        factor = term.factor(term.frequencies(torch.full((1, term.base_dim), 0.3).double()))
        assert (factor[0, :, 0] != 0).nonzero().flatten().tolist() == [output]
    assert moment_order(three()) == 3


@pytest.mark.parametrize("learn", [True, False])
def test_feature_parts_are_blocks_of_the_features(learn):
    kernel, x = three(), points(5, 2)
    orff = ORFF(kernel, 7, num_dims=2, learn_frequencies=learn, random_state=0).double()
    Phi = orff(x).to_dense().reshape(5, 3, -1)
    columns = (slice(0, 14), slice(14, 42), slice(42, 56))
    for a, block in enumerate(columns):
        part = orff.part(a, kernel.kernels[a])
        assert (part.num_outputs, part.num_features) == (1, block.stop - block.start)
        assert torch.equal(part(x).to_dense(), Phi[:, a, block])
        assert torch.equal(orff.part(a)(x).to_dense(), Phi[:, a, block])
        outside = Phi[:, a].clone()
        outside[:, block] = 0
        assert not outside.any()


@pytest.mark.parametrize("learn", [True, False])
def test_feature_parts_share_parameters(learn):
    kernel, x = three(), points(5, 2)
    orff = ORFF(kernel, 7, num_dims=2, learn_frequencies=learn, random_state=0)
    part = orff.part(1, kernel.kernels[1])
    assert {id(p) for p in part.parameters()} < {id(p) for p in orff.parameters()}
    weights = points(5, 28, seed=3)
    (part(x).to_dense() * weights).sum().backward()
    ours = {name: p.grad for name, p in kernel.kernels[1].named_parameters()}
    orff.zero_grad()
    (orff(x).to_dense().reshape(5, 3, -1)[:, 1, 14:42] * weights).sum().backward()
    for name, parameter in kernel.kernels[1].named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-12, atol=0)
    assert kernel.kernels[0].raw_lengthscale.grad.abs().max() == 0
    assert orff.num_outputs == 3 and len(orff.frequencies) == 4  # the features are unchanged


def test_feature_parts_grow_and_resample_with_the_features():
    kernel, x = three(), points(5, 2)
    orff = ORFF(kernel, 7, num_dims=2, random_state=0).double()
    part = pickle.loads(pickle.dumps(orff.part(2)))
    assert torch.equal(part.block(3)(x).to_dense(), orff.block(3).part(2)(x).to_dense())
    longer = part.extend(4)(x).to_dense()
    assert torch.equal(longer, orff.extend(4).part(2)(x).to_dense())


def test_feature_parts_of_sum_of_separable_kernels():
    """Φ = [φ_1 ⊗ B_1, φ_2 ⊗ B_2]."""
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2) + DecomposableKernel(MaternKernel(), num_outputs=2)
    orff = ORFF(randomize(kernel.double(), 0), 6, num_dims=2, random_state=0).double()
    x = points(4, 2)
    roots = [term.output_module.factor().contiguous() for term in kernel.kernels]
    expected = [torch.kron(orff.part(q)(x).to_dense(), root) for q, root in enumerate(roots)]
    torch.testing.assert_close(orff(x).to_dense(), torch.cat(expected, -1), rtol=1e-12, atol=1e-14)


def test_feature_parts_reject_invalid_index_and_kernel():
    orff = ORFF(three(), 5, num_dims=2, random_state=0)
    with pytest.raises(OptionError, match="3"):
        orff.part(3)
    with pytest.raises(OptionError, match="index"):
        orff.part(-1)
    with pytest.raises(KernelTypeError, match="RBFKernel"):
        orff.part(1, RBFKernel())
    with pytest.raises(KernelTypeError, match="separable"):
        ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), 5).part(0)
    pair = SpectralPair(1, torch.special.ndtri, lambda w: torch.ones(1, 1, 1, dtype=w.dtype))
    with pytest.raises(KernelTypeError, match="separable"):
        ORFF(pair, 5).part(0)
