"""Blocks of random features: together they are the map of `ORFF`, and none is stored."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from linear_operator import to_dense

import ovkgp
from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF, BlockedORFF
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, Delay, DivergenceFreeKernel, TransformableKernel


def rbf(d=2):
    return RBFKernel(ard_num_dims=d)


KERNELS = {
    "scalar": lambda: ScaleKernel(rbf()),
    "decomposable": lambda: DecomposableKernel(rbf(), num_outputs=3, rank=2),
    "lmc": lambda: (
        DecomposableKernel(rbf(), num_outputs=2)
        + ScaleKernel(DecomposableKernel(MaternKernel(ard_num_dims=2), num_outputs=2, rank=1))
    ),
    "curl-free": lambda: CurlFreeKernel(rbf()),
    "divergence-free": lambda: DivergenceFreeKernel(rbf(3)),
    "delays": lambda: TransformableKernel(rbf(), [Delay(0.0), Delay(0.4)]),
}
DIMS = {name: 2 for name in KERNELS} | {"divergence-free": 3}


def points(name, n=9):
    return torch.randn(n, DIMS[name], generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sampler", ["iid", "qmc", "orthogonal"])
@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_features_equal_orff_bit_for_bit_for_every_block_size(name, sampler, size):
    kernel, X = KERNELS[name](), points(name)
    orff = ORFF(kernel, 12, sampler=sampler, random_state=5)
    blocked = BlockedORFF(kernel, 12, size, sampler=sampler, random_state=5)
    assert torch.equal(to_dense(blocked(X)), to_dense(orff(X)))
    assert torch.equal(to_dense(blocked.double()(X)), to_dense(orff.double()(X)))
    assert blocked.num_features == orff.num_features
    drawn = torch.cat(
        [torch.as_tensor(blocked.block(i)._regenerate_noise(orff.pair.terms)[0]) for i in range(12 // size)]
    )
    torch.testing.assert_close(drawn.to(orff.raw_frequencies_0), orff.raw_frequencies_0, rtol=0, atol=0)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1, 3])
def test_block_columns_equal_the_map_of_the_block(name, size):
    blocked, X = BlockedORFF(KERNELS[name](), 6, size, random_state=0), points(name)
    Phi = to_dense(blocked(X))
    columns = [blocked.columns(i) for i in range(blocked.num_blocks)]
    for i, indices in enumerate(columns):
        torch.testing.assert_close(to_dense(blocked.block(i)(X)), Phi[:, indices], rtol=0, atol=1e-14)
    assert torch.equal(torch.cat(columns).sort().values, torch.arange(blocked.num_features))


@pytest.mark.parametrize("name", KERNELS)
def test_bt_e_36_blocks_and_whole_share_one_scale(name):
    """ΦΦᵀ of the whole is the sum of those of the blocks: 1/√D, and not 1/√b, in each."""
    kernel, X = KERNELS[name](), points(name)
    blocked = BlockedORFF(kernel, 20, 5, random_state=3)
    grams = [to_dense(blocked.block(i)(X)) @ to_dense(blocked.block(i)(X)).mT for i in range(4)]
    whole = to_dense(ORFF(kernel, 20, random_state=3)(X))
    torch.testing.assert_close(whole @ whole.mT, sum(grams), rtol=1e-12, atol=1e-12)
    weights = torch.randn(blocked.num_features, generator=torch.Generator().manual_seed(0)).double()
    parts = sum(blocked.block(i)(X) @ weights[blocked.columns(i)] for i in range(4))
    torch.testing.assert_close(blocked(X) @ weights, parts, rtol=0, atol=1e-13)


def test_separable_maps_stay_separable():
    blocked = BlockedORFF(KERNELS["decomposable"](), 20, 5, random_state=0)
    for Phi in (blocked(points("decomposable")), blocked.block(2)(points("decomposable"))):
        assert isinstance(Phi, FeatureOperator) and Phi.is_separable


@pytest.mark.parametrize("name", KERNELS)
def test_blocked_orff_stores_no_frequencies(name):
    blocked = BlockedORFF(KERNELS[name](), 10_000, 100, random_state=0)
    blocked(points(name)), blocked.block(7)(points(name))
    assert sum(buffer.numel() for buffer in blocked.buffers() if buffer.shape[-1:] == (DIMS[name],)) == 0
    assert all(getattr(blocked, noise).numel() == 0 for noise in blocked._noise_names)
    assert len(pickle.dumps(blocked)) < 50_000


def test_pickles_and_copies_give_the_same_features():
    blocked, X = BlockedORFF(KERNELS["lmc"](), 12, 4), points("lmc")
    for other in (pickle.loads(pickle.dumps(blocked)), deepcopy(blocked)):
        assert torch.equal(to_dense(other(X)), to_dense(blocked(X)))
        assert torch.equal(to_dense(other.block(2)(X)), to_dense(blocked.block(2)(X)))


def test_blocked_orff_supports_statistics_and_gradients_in_a_gp():
    kernel = KERNELS["decomposable"]()
    gp = OperatorValuedGP(kernel, noise=0.1, features=BlockedORFF(kernel, 20, 5, random_state=0))
    X = points("decomposable", 40)
    Y = torch.cat([X.sin(), X.cos()[:, :1]], 1)
    halves = gp.statistics(X[:20], Y[:20]) + gp.statistics(X[20:], Y[20:])
    mean = gp.condition(X, Y).predict(X).mean
    torch.testing.assert_close(gp.condition(halves).predict(X).mean, mean, rtol=1e-8, atol=1e-9)
    Phi = to_dense(gp.features(X)).detach()
    K = Phi @ Phi.mT
    dense = K @ torch.linalg.solve(K + 0.1 * torch.eye(len(K)).double(), Y.flatten())
    torch.testing.assert_close(mean, dense.view(Y.shape), rtol=1e-8, atol=1e-9)
    gp.log_evidence(X, Y).backward()
    lengthscale = gp.kernel.base_kernel.raw_lengthscale
    step = torch.zeros_like(lengthscale)
    step[..., 0] = 1e-5
    with torch.no_grad():
        up, down = (_moved(lengthscale, change, gp, X, Y) for change in (step, -step))
    assert lengthscale.grad[0, 0].item() == pytest.approx((up - down) / 2e-5, rel=1e-5)


def _moved(parameter, change, gp, X, Y):
    parameter.add_(change)
    value = gp.log_evidence(X, Y).item()
    parameter.sub_(change)
    return value


def test_terms_of_a_sum_are_blocked():
    kernel, X = KERNELS["lmc"](), points("lmc")
    blocked = BlockedORFF(kernel, 6, 3, random_state=0)
    part = blocked.part(1)(X)
    torch.testing.assert_close(part.features, blocked(X).parts[1].features)


def test_extending_adds_blocks_and_keeps_the_old_ones():
    kernel, X = KERNELS["curl-free"](), points("curl-free")
    longer = BlockedORFF(kernel, 6, 3, random_state=0).extend(3)
    assert torch.equal(to_dense(longer(X)), to_dense(BlockedORFF(kernel, 9, 3, random_state=0)(X)))
    with pytest.raises(OptionError, match="3 or 6"):
        longer.extend(4)


def test_blocked_orff_rejects_invalid_sizes():
    with pytest.raises(OptionError, match="block_size=30, such as 90 or 120, got 100"):
        BlockedORFF(rbf(), 100, 30)
    with pytest.raises(OptionError, match="such as 30"):
        BlockedORFF(rbf(), 10, 30)
    with pytest.raises(OptionError, match="block_size"):
        BlockedORFF(rbf(), 10, 0)
    with pytest.raises(OptionError, match="number of blocks, 5"):
        BlockedORFF(rbf(), 10, 2).block(5)


def test_block_size_does_not_change_a_fit():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(80, 3, generator=generator).numpy()
    Y = np.sin(X[:, :2]) + 0.1 * torch.randn(80, 2, generator=generator).numpy()
    fits = [
        ovkgp.ORFFRidge(num_frequencies=40, block_size=size, random_state=3).fit(X, Y) for size in (None, 40, 20, 8, 1)
    ]
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.predict(X), fits[0].predict(X), rtol=0, atol=1e-9)
