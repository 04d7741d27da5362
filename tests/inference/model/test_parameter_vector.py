"""The names and values of the hyperparameters of kernels."""

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

from ovkgp.inference import hyperparameters
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    IndependentKernel,
    SimplexMatrix,
)

NAMES = {
    "scalar": (lambda: RBFKernel(), ["lengthscale"]),
    "scaled": (lambda: ScaleKernel(PeriodicKernel()), ["lengthscale", "outputscale", "period_length"]),
    "icm": (lambda: DecomposableKernel(RBFKernel(), 2), ["lengthscale", "output_matrix"]),
    "icm, scaled base": (
        lambda: DecomposableKernel(ScaleKernel(RBFKernel()), 2, rank=1),
        ["lengthscale", "output_matrix", "outputscale"],
    ),
    "icm, known matrix": (
        lambda: DecomposableKernel(RBFKernel(), output_matrix=SimplexMatrix(3)),
        ["lengthscale", "output_matrix"],
    ),
    "lmc": (
        lambda: DecomposableKernel(RBFKernel(), 2) + ScaleKernel(DecomposableKernel(MaternKernel(), 2)),
        [
            "component_1.lengthscale",
            "component_1.output_matrix",
            "component_2.lengthscale",
            "component_2.output_matrix",
            "component_2.outputscale",
        ],
    ),
    "field": (lambda: CurlFreeKernel(RBFKernel(ard_num_dims=2)), ["lengthscale"]),
    "scaled field": (lambda: ScaleKernel(CurlFreeKernel(RBFKernel(ard_num_dims=2))), ["lengthscale", "outputscale"]),
    "helmholtz": (
        lambda: HelmholtzKernel(RBFKernel(ard_num_dims=2)),
        ["curl.lengthscale", "curl.outputscale", "div.lengthscale", "div.outputscale"],
    ),
    "independent": (
        lambda: IndependentKernel([RBFKernel(), ScaleKernel(MaternKernel())]),
        ["0.lengthscale", "1.lengthscale", "1.outputscale"],
    ),
    "sum of sums": (
        lambda: DecomposableKernel(RBFKernel() + LinearKernel(), 2) + DecomposableKernel(RBFKernel(), 2),
        [
            "component_1.component_1.lengthscale",
            "component_1.component_2.variance",
            "component_1.output_matrix",
            "component_2.lengthscale",
            "component_2.output_matrix",
        ],
    ),
    "function-valued": (
        lambda: FunctionValuedKernel(RBFKernel(), MaternKernel(), tasks=torch.tensor([0.0, 1.0])),
        ["input_kernel.lengthscale", "task_kernel.lengthscale"],
    ),
    "blockwise": (
        lambda: DecomposableKernel(RBFKernel(), 2) * MaternKernel(),
        ["lengthscale", "output_matrix", "scalar_kernel.lengthscale"],
    ),
    "scaled inside scaled": (
        lambda: ScaleKernel(DecomposableKernel(ScaleKernel(RBFKernel()), 2)),
        ["base_kernel.base_kernel.outputscale", "lengthscale", "output_matrix", "outputscale"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_hyperparameters_have_short_names(name):
    make, expected = NAMES[name]
    assert sorted(hyperparameters(make())) == expected


def test_hyperparameters_are_constrained_and_detached():
    kernel = ScaleKernel(DecomposableKernel(ScaleKernel(MaternKernel(ard_num_dims=2)), 3, rank=1)).double()
    kernel.outputscale = 2.5
    kernel.base_kernel.base_kernel.outputscale = 0.3
    kernel.base_kernel.base_kernel.base_kernel.lengthscale = torch.tensor([0.4, 7.0])
    found = hyperparameters(kernel)
    assert found["outputscale"].item() == pytest.approx(2.5, rel=1e-6)
    assert found["base_kernel.base_kernel.outputscale"].item() == pytest.approx(0.3, rel=1e-6)
    assert found["lengthscale"].flatten().tolist() == pytest.approx([0.4, 7.0], rel=1e-6)
    assert torch.equal(found["output_matrix"], kernel.base_kernel.output_module())
    assert not any(value.requires_grad for value in found.values())


def test_hyperparameters_are_copies():
    kernel = DecomposableKernel(RBFKernel(), 2)
    found = hyperparameters(kernel)
    before = {name: value.clone() for name, value in found.items()}
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.add_(1)
    assert all(torch.equal(found[name], before[name]) for name in before)
    assert not any(torch.equal(value, before[name]) for name, value in hyperparameters(kernel).items())
