"""A learned function h(x)(θ) = b(θ) + φ(x)ᵀWψ(θ): a double sum of kernels, its slopes and its norm."""

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import GAMMA_T, GAMMA_X, gauss, rbf

from ovkgp.exceptions import InputError, SmoothnessError
from ovkgp.features import ORFF
from ovkgp.inference.tasks.factors import FeatureFactor, KernelFactor, LevelFactor
from ovkgp.inference.tasks.problem import TaskFunction

X, NODES = torch.linspace(0, 2, 6).double(), torch.tensor([0.1, 0.4, 0.8]).double()
AT, LEVELS = torch.tensor([-0.3, 0.77, 1.2, 5.0]).double(), torch.tensor([0.0, 0.33]).double()
ALPHA = normal(6, 3, seed=0)


def offset(tasks):
    return tasks**3 - 2


def expansion(b=offset) -> TaskFunction:
    """Σ_ij α_ij k_X(·, x_i) k_Θ(·, θ_j) in coordinates, W = Φᵀ α Ψ (LT-83)."""
    phi = KernelFactor(rbf(GAMMA_X), X[:, None], cutoff=0.0)
    psi = KernelFactor(rbf(GAMMA_T), NODES[:, None], cutoff=0.0)
    return TaskFunction(phi, psi, phi.anchor_rows.T @ ALPHA @ psi.anchor_rows, b)


def test_values_are_the_double_sum_of_kernels():
    expected = gauss(GAMMA_X, AT, X) @ ALPHA.numpy() @ gauss(GAMMA_T, NODES, LEVELS) + offset(LEVELS).numpy()
    np.testing.assert_allclose(expansion()(AT[:, None], LEVELS), expected, atol=1e-9)


def test_slopes_are_those_of_the_double_sum_and_of_the_offset():
    """∂_θ k_Θ(θ, θ_j) = −2γ (θ − θ_j) k_Θ (LT-43)."""
    kernel = -2 * GAMMA_T * (LEVELS[:, None] - NODES).numpy() * gauss(GAMMA_T, LEVELS, NODES)
    expected = gauss(GAMMA_X, AT, X) @ ALPHA.numpy() @ kernel.T + 3 * LEVELS.numpy() ** 2
    np.testing.assert_allclose(expansion().slopes(AT[:, None], LEVELS), expected, atol=1e-8)


@pytest.mark.parametrize("b", [None, lambda tasks: torch.ones(1).double()], ids=["no offset", "a constant"])
def test_an_offset_that_does_not_vary_has_no_slope(b):
    h = expansion() if b is None else expansion(b)
    plain = TaskFunction(h.inputs, h.tasks, h.weights)
    reference = expansion(lambda tasks: torch.zeros_like(tasks))
    torch.testing.assert_close(plain.slopes(AT[:, None], LEVELS), reference.slopes(AT[:, None], LEVELS))
    if b is not None:
        torch.testing.assert_close(h.slopes(AT[:, None], LEVELS), reference.slopes(AT[:, None], LEVELS))


def test_slopes_on_features_are_differences_of_values():
    phi = FeatureFactor(ORFF(rbf(GAMMA_X), 10, num_dims=1, random_state=0).double())
    psi = FeatureFactor(ORFF(rbf(GAMMA_T), 8, num_dims=1, random_state=1).double())
    h, step = TaskFunction(phi, psi, normal(20, 16, seed=1), offset), 1e-6
    differences = (h(AT[:, None], LEVELS + step) - h(AT[:, None], LEVELS - step)) / (2 * step)
    torch.testing.assert_close(h.slopes(AT[:, None], LEVELS), differences, rtol=1e-6, atol=1e-7)


def test_norm_is_that_of_the_product_kernel():
    """B-13: ‖h − b‖² = Tr(K_X α K_Θ αᵀ) = ‖W‖²."""
    square = np.trace(gauss(GAMMA_X, X, X) @ ALPHA.numpy() @ gauss(GAMMA_T, NODES, NODES) @ ALPHA.numpy().T)
    assert expansion().norm() ** 2 == pytest.approx(square, rel=1e-10)


def test_values_are_bounded_by_the_norm():
    """|h(x)(θ)| ≤ √(k_X k_Θ) ‖h‖, the reproducing property."""
    h = expansion(lambda tasks: torch.zeros_like(tasks))
    assert h(AT[:, None], LEVELS).abs().max().item() <= h.norm()


def test_finitely_many_levels_have_values_and_no_slopes():
    h = TaskFunction(KernelFactor(rbf(GAMMA_X), X[:, None]), LevelFactor(NODES), normal(6, 3, seed=2))
    assert h(AT[:, None], NODES[[1]]).shape == (4, 1)
    with pytest.raises(SmoothnessError):
        h.slopes(AT[:, None], NODES)


@pytest.mark.parametrize("tasks", [0.5, torch.tensor(0.5), torch.ones(2, 1)])
def test_tasks_are_a_vector(tasks):
    with pytest.raises(InputError, match="tasks must be a tensor"):
        expansion()(X[:, None], tasks)
