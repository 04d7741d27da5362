"""The measured error of random features: its definition, the slope of Monte Carlo, and what it does not depend on."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.features.bounds import measured_error, required_features
from ovkgp.features.bounds.concentration import block_norms
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel


def points(num=12, num_dims=2, seed=0):
    return 2 * torch.rand(num, num_dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def rbf(num_dims=2):
    kernel = RBFKernel(ard_num_dims=num_dims).double()
    kernel.lengthscale = 1.0
    return kernel


KERNELS = {
    "scalar": rbf(),
    "matern": MaternKernel(2.5, ard_num_dims=2).double(),
    "decomposable": DecomposableKernel(
        rbf(), output_matrix=torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    ),
    "curl-free": CurlFreeKernel(rbf()),
    "divergence-free": DivergenceFreeKernel(rbf()),
}


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_largest_norm_of_a_block(name, monkeypatch):
    kernel, X, maps = KERNELS[name], points(), []
    monkeypatch.setattr(
        "ovkgp.features.bounds.concentration.ORFF", lambda *a, **o: maps.append(ORFF(*a, **o)) or maps[-1]
    )
    found = measured_error(kernel, X, 30, repeats=3, random_state=0)
    p = 1 if name in ("scalar", "matern") else 2
    exact, errors = kernel(X).to_dense(), []
    for features in maps:
        Phi = features(X).to_dense()
        wrong = (Phi @ Phi.mT - exact).detach().numpy()
        blocks = [wrong[p * i : p * i + p, p * j : p * j + p] for i in range(12) for j in range(12)]
        errors.append(max(np.linalg.norm(block, 2) for block in blocks))
    size = np.linalg.norm(exact[:p, :p].detach().numpy(), 2)
    assert found == pytest.approx(np.mean(errors) / size, rel=1e-12)  # the same numbers in another order


@pytest.mark.parametrize("name", KERNELS)
def test_it_falls_as_the_square_root(name):
    sizes = (10, 100, 1000)
    errors = [measured_error(KERNELS[name], points(), size, repeats=10, random_state=1) for size in sizes]
    # ten maps a size: the slope of other seeds lies within 0.07 of a half
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.1)


def test_neither_scale_nor_number_of_outputs_matters():
    X = points()
    found = measured_error(rbf(), X, 50, random_state=3)
    many = DecomposableKernel(rbf(), output_matrix=torch.eye(5, dtype=torch.float64))
    large = ScaleKernel(rbf()).double()
    large.outputscale = 100.0
    assert measured_error(many, X, 50, random_state=3) == pytest.approx(found, rel=1e-9)
    assert measured_error(large, X, 50, random_state=3) == pytest.approx(found, rel=1e-9)


def test_it_is_below_what_is_guaranteed():
    X = points()
    diameter = torch.cdist(X, X).max().item()
    enough = required_features(rbf(), epsilon=0.5, delta=0.05, diameter=diameter)
    assert measured_error(rbf(), X, enough, repeats=10, random_state=0) < 0.5


def test_it_reproduces_itself():
    first, again, other = (measured_error(rbf(), points(), 20, random_state=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_bad_arguments():
    with pytest.raises(InputError, match=r"\(n, d\)"):
        measured_error(rbf(), torch.zeros(3), 10)
    with pytest.raises(OptionError, match="repeats"):
        measured_error(rbf(), points(), 10, repeats=0)


def test_norms_of_blocks():
    gram = torch.arange(16.0).reshape(4, 4)
    norms = block_norms(gram, 2)
    assert norms.shape == (2, 2)
    assert norms[0, 1].item() == pytest.approx(np.linalg.norm(gram[:2, 2:].numpy(), 2))
