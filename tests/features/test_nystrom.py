"""Nyström features against K_b K_M† K_bᵀ, exact at the landmarks, for scalar and operator-valued kernels."""

import pickle

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, RBFKernelGrad, ScaleKernel

from ovkgp.exceptions import InputError
from ovkgp.features import Nystrom
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    ExponentiatedChi2Kernel,
    FunctionValuedKernel,
    SimplexMatrix,
    block,
    num_outputs,
)

KERNELS = {
    "scalar": lambda: RBFKernel(),
    "chi2": lambda: ExponentiatedChi2Kernel(),
    "icm": lambda: ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=3, rank=2)),
    "icm simplex": lambda: DecomposableKernel(MaternKernel(), output_matrix=SimplexMatrix(3)),
    "lmc": lambda: DecomposableKernel(RBFKernel(), num_outputs=2) + DecomposableKernel(MaternKernel(), num_outputs=2),
    "curl": lambda: CurlFreeKernel(RBFKernel(), num_dims=2),
    "div": lambda: DivergenceFreeKernel(MaternKernel(), num_dims=2),
    "function": lambda: FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=torch.linspace(0, 1, 3)),
}


def inputs(n, seed):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("name", KERNELS)
def test_features_equal_the_pseudo_inverse_formula(name):
    kernel, Z, X = KERNELS[name]().double(), inputs(5, 0), inputs(9, 1)
    map_ = Nystrom(kernel, Z)
    Phi = map_(X)
    assert Phi.shape == (9 * num_outputs(kernel), map_.num_features)
    assert map_.num_outputs == num_outputs(kernel)
    with torch.no_grad():
        cross = kernel(X, Z).to_dense()
        expected = cross @ torch.linalg.pinv(kernel(Z).to_dense(), hermitian=True, rtol=1e-10) @ cross.mT
        # K_Z is ill-conditioned: pinv itself is only good to about 1e-16 / 1e-10
        torch.testing.assert_close((Phi @ Phi.mT).to_dense(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_features_are_exact_at_the_landmarks(name):
    kernel, Z = KERNELS[name]().double(), inputs(5, 0)
    Phi = Nystrom(kernel, Z)(Z).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, kernel(Z).to_dense(), atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["icm", "curl", "function"])
def test_duplicated_landmarks_change_nothing(name):
    kernel, Z, X = KERNELS[name]().double(), inputs(4, 0), inputs(6, 1)
    once, twice = Nystrom(kernel, Z)(X).to_dense(), Nystrom(kernel, torch.cat([Z, Z]))(X).to_dense()
    torch.testing.assert_close(twice @ twice.mT, once @ once.mT, atol=1e-7, rtol=0)
    assert twice.shape == once.shape


@pytest.mark.parametrize("name", ["scalar", "icm", "lmc", "div"])
def test_nystrom_gradients_match_differences(name):
    kernel, Z, X = KERNELS[name]().double(), inputs(4, 0), inputs(3, 1)
    map_ = Nystrom(kernel, Z)
    weight = torch.randn(3 * num_outputs(kernel), generator=torch.Generator().manual_seed(2)).double()

    def value():
        return (weight @ map_(X).to_dense()).square().sum()

    parameters = list(kernel.parameters())
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(flat.numel()):
            flat[i] += 1e-6
            up = value().item()
            flat[i] -= 2e-6
            down = value().item()
            flat[i] += 1e-6
            assert gradient.view(-1)[i].item() == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)


def test_nystrom_error_decreases_with_landmarks():
    """The residual K − ΦΦᵀ is positive semi-definite and shrinks as landmarks are added."""
    kernel, X, Z = CurlFreeKernel(RBFKernel(), num_dims=2).double(), inputs(8, 1), inputs(12, 0)
    K = kernel(X).to_dense().detach()
    traces = []
    for m in (2, 4, 8, 12):
        Phi = Nystrom(kernel, Z[:m])(X).to_dense().detach()
        residual = K - Phi @ Phi.mT
        assert torch.linalg.eigvalsh(residual).min() > -1e-8
        traces.append(residual.trace().item())
    assert traces == sorted(traces, reverse=True)


def test_nystrom_rejects_invalid_arguments():
    kernel = RBFKernel()
    with pytest.raises(InputError, match="non-empty"):
        Nystrom(kernel, torch.zeros(0, 2))
    with pytest.raises(InputError, match="landmarks"):
        Nystrom(kernel, torch.tensor([[torch.nan]]))
    with pytest.raises(InputError, match="3 columns"):
        Nystrom(kernel, torch.zeros(4, 2))(torch.zeros(5, 3))


def test_nystrom_survives_pickle_and_has_landmarks_in_state_dict():
    map_ = Nystrom(KERNELS["icm"]().double(), inputs(4, 0))
    twin = pickle.loads(pickle.dumps(map_))
    assert torch.equal(twin(inputs(3, 1)).to_dense(), map_(inputs(3, 1)).to_dense())
    assert "landmarks" in map_.state_dict()


def test_nystrom_is_exact_for_batches_of_different_rank():
    kernel = RBFKernel(batch_shape=torch.Size([2])).double()
    kernel.lengthscale = torch.tensor([[[0.05]], [[50.0]]])
    Z = inputs(8, 0)
    Phi = Nystrom(kernel, Z)(Z).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, kernel(Z).to_dense(), atol=1e-8, rtol=0)


def test_nystrom_is_exact_for_kernels_of_values_and_gradients():
    kernel, Z = RBFKernelGrad().double(), inputs(4, 0)
    Phi = Nystrom(kernel, Z)(Z).to_dense()
    torch.testing.assert_close(Phi @ Phi.mT, kernel(Z).to_dense(), atol=1e-8, rtol=0)


def test_lt_e_18_feature_maps_go_from_weights_to_outputs():
    """K(x, z) = Φ(x)Φ(z)ᵀ with Φ(x) (p, r), and h(x) = Φ(x) v: one order of spaces throughout."""
    kernel, Z = KERNELS["curl"]().double(), inputs(5, 0)
    map_ = Nystrom(kernel, Z)
    rows = [map_(z[None]).to_dense() for z in Z]
    assert all(row.shape == (2, map_.num_features) for row in rows)
    torch.testing.assert_close(rows[0] @ rows[3].mT, block(kernel, Z[0], Z[3]), atol=1e-8, rtol=0)
    v = torch.randn(map_.num_features, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(map_(Z).to_dense() @ v, torch.cat([row @ v for row in rows]))
