"""Independent outputs: held against loops, dense algebra and one GP an output; their features against those of the parts."""

import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from oracles import dense, gram, randomise, rbf

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.features import ORFF, SpectralPair, moment_order, spectral_pair
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, IndependentKernel


class TestIndependentProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return IndependentKernel([RBFKernel(**kwargs), MaternKernel(**kwargs), RQKernel(**kwargs)])

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return IndependentKernel([RBFKernel(**ard), MaternKernel(**ard)])


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def three():
    kernel = IndependentKernel(
        [RBFKernel(ard_num_dims=2), ScaleKernel(MaternKernel(nu=1.5)) + RQKernel(active_dims=[1]), MaternKernel()]
    )
    return randomise(kernel.double(), 0)


def test_blocks_are_diagonal():
    kernel = IndependentKernel.copies(RBFKernel(), 3).double()
    for scale, part in zip((0.5, 1.0, 2.0), kernel.kernels, strict=True):
        part.lengthscale = torch.tensor(scale, dtype=torch.float64)
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: np.diag([rbf(a - b, s) for s in (0.5, 1.0, 2.0)]), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-15)


def test_products_with_matrices_and_their_gradients_agree_with_dense_algebra():
    kernel, x, z, rhs = three(), points(5, 2), points(4, 2, seed=1), points(12, 2, seed=2)
    weight = points(15, 2, seed=3)
    parameters = list(kernel.parameters())
    lazy, matrix = kernel(x, z).evaluate_kernel(), kernel(x, z).to_dense()
    torch.testing.assert_close(lazy @ rhs, matrix @ rhs, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(lazy.mT @ weight, matrix.mT @ weight, rtol=1e-12, atol=1e-13)
    ours = torch.autograd.grad(((lazy @ rhs) * weight).sum(), parameters)
    expected = torch.autograd.grad(((matrix @ rhs) * weight).sum(), parameters)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_solve_and_log_determinant_agree_with_dense_algebra():
    kernel, x, rhs = three(), points(6, 2), points(18, 1, seed=2)
    lazy = kernel(x).evaluate_kernel()
    matrix = lazy.to_dense()
    quad, log_det = lazy.inv_quad_logdet(rhs, logdet=True)
    torch.testing.assert_close(lazy.solve(rhs), torch.linalg.solve(matrix, rhs), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(quad, (rhs * torch.linalg.solve(matrix, rhs)).sum(), rtol=1e-8, atol=0)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-8, atol=0)


@pytest.mark.parametrize("batched", [True, False])
def test_a_batch_of_scales_scales_whole_matrices(batched):
    """As many scales as outputs: GPyTorch's own operator would give each output one of them."""
    batch = torch.Size([2])
    inner = IndependentKernel.copies(RBFKernel(batch_shape=batch if batched else torch.Size()), 2)
    kernel = randomise(ScaleKernel(inner, batch_shape=batch).double(), 1)
    x = points(3, 2)
    expected = kernel.outputscale.detach().numpy()[:, None, None] * dense(inner, x)
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12)
    np.testing.assert_allclose(
        kernel(x, diag=True).detach(), np.diagonal(expected, axis1=-2, axis2=-1), rtol=1e-10, atol=1e-13
    )


def test_kernels_may_have_different_batch_shapes():
    kernel = IndependentKernel([RBFKernel(batch_shape=torch.Size([2])), RQKernel()]).double()
    x = points(3, 2)
    assert kernel.batch_shape == (2,)
    np.testing.assert_array_equal(dense(kernel, x)[0], dense(kernel[0], x))


def test_no_points():
    kernel = IndependentKernel.copies(RBFKernel(), 2)
    assert kernel(torch.randn(0, 3), torch.randn(4, 3)).to_dense().shape == (0, 8)
    assert kernel(torch.randn(0, 3), diag=True).shape == (0,)


def test_copies_are_independent_of_each_other_and_of_the_original():
    base = RBFKernel()
    kernel = IndependentKernel.copies(base, 3)
    kernel.kernels[0].lengthscale = 5.0
    assert len(list(kernel.parameters())) == 3
    assert base.lengthscale.item() == kernel.kernels[1].lengthscale.item() != kernel.kernels[0].lengthscale.item()


def test_stationary_if_every_part_is():
    assert IndependentKernel([RBFKernel(), RQKernel()]).is_stationary
    assert not IndependentKernel([RBFKernel(), LinearKernel()]).is_stationary


def test_bad_arguments():
    with pytest.raises(OptionError, match="one for each output"):
        IndependentKernel([])
    with pytest.raises(OptionError, match="a list of scalar kernels"):
        IndependentKernel(3)
    with pytest.raises(KernelTypeError, match="kernel of output 1 must be a scalar kernel"):
        IndependentKernel([RBFKernel(), CurlFreeKernel(RBFKernel(ard_num_dims=2))])
    with pytest.raises(KernelTypeError, match="kernel of output 0 must be a gpytorch"):
        IndependentKernel("rbf")
    with pytest.raises(OptionError, match="num_outputs"):
        IndependentKernel.copies(RBFKernel(), 0)


# --- features ---------------------------------------------------------------------------------------------------


def test_terms_of_the_spectral_pair():
    pair = spectral_pair(three(), num_dims=2)
    assert len(pair.terms) == 4  # the second kernel is a sum
    for term, output in zip(pair.terms, (0, 1, 1, 2), strict=True):
        factor = term.factor(term.frequencies(torch.full((1, term.base_dim), 0.3).double()))
        assert (factor[0, :, 0] != 0).nonzero().flatten().tolist() == [output]
    assert moment_order(three()) == 3


@pytest.mark.parametrize("learn", [True, False])
def test_parts_of_the_features_are_the_blocks_of_the_whole(learn):
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
def test_parts_share_their_parameters_with_the_whole(learn):
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
    assert orff.num_outputs == 3 and len(orff.frequencies) == 4  # the whole is as it was


def test_parts_grow_and_are_drawn_again_as_the_whole_is():
    kernel, x = three(), points(5, 2)
    orff = ORFF(kernel, 7, num_dims=2, random_state=0).double()
    part = pickle.loads(pickle.dumps(orff.part(2)))
    assert torch.equal(part.block(3)(x).to_dense(), orff.block(3).part(2)(x).to_dense())
    longer = part.extend(4)(x).to_dense()
    assert torch.equal(longer, orff.extend(4).part(2)(x).to_dense())


def test_parts_of_a_sum_of_separable_kernels():
    """Φ = [φ_1 ⊗ B_1, φ_2 ⊗ B_2]."""
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2) + DecomposableKernel(MaternKernel(), num_outputs=2)
    orff = ORFF(randomise(kernel.double(), 0), 6, num_dims=2, random_state=0).double()
    x = points(4, 2)
    roots = [term.output_module.factor().contiguous() for term in kernel.kernels]
    expected = [torch.kron(orff.part(q)(x).to_dense(), root) for q, root in enumerate(roots)]
    torch.testing.assert_close(orff(x).to_dense(), torch.cat(expected, -1), rtol=1e-12, atol=1e-14)


def test_parts_that_are_not_there():
    orff = ORFF(three(), 5, num_dims=2, random_state=0)
    with pytest.raises(OptionError, match="there are 3 parts, counted from 0; got index 3"):
        orff.part(3)
    with pytest.raises(OptionError, match="index of a part"):
        orff.part(-1)
    with pytest.raises(KernelTypeError, match="RBFKernel is not the kernel of part 1"):
        orff.part(1, RBFKernel())
    with pytest.raises(KernelTypeError, match="separable"):
        ORFF(CurlFreeKernel(RBFKernel(ard_num_dims=2)), 5).part(0)
    pair = SpectralPair(1, torch.special.ndtri, lambda w: torch.ones(1, 1, 1, dtype=w.dtype))
    with pytest.raises(KernelTypeError, match="separable"):
        ORFF(pair, 5).part(0)
