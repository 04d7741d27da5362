"""Tests of `ovkgp.inference.training.initial_grid`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.initial_grid import grid_around, make_lengthscale_grid
from ovkgp.inference.training.initialization import initialize, raw_state
from ovkgp.kernels import CurlFreeKernel


def test_grid_spans_neighbor_distance_to_three_root_d():
    X = np.random.default_rng(0).standard_normal((30, 2))
    distances = np.linalg.norm(X[:, None] - X, axis=-1) + np.diag(np.full(30, np.inf))
    grid = make_lengthscale_grid(X)
    assert len(grid) == 6
    assert grid[0] == pytest.approx(np.median(distances.min(1)))
    assert grid[-1] == pytest.approx(3 * np.sqrt(2))
    np.testing.assert_allclose(grid[1:] / grid[:-1], grid[1] / grid[0])


def test_grid_ignores_copies():
    X = np.random.default_rng(0).standard_normal((20, 1))
    np.testing.assert_array_equal(make_lengthscale_grid(np.vstack([X, X, X])), make_lengthscale_grid(X))


def test_grid_of_equal_or_distant_rows_is_finite_and_increasing():
    np.testing.assert_allclose(make_lengthscale_grid(np.zeros((5, 4))), [6.0])
    grid = make_lengthscale_grid(np.array([[0.0], [100.0]]))
    assert (np.diff(grid) > 0).all() and grid[-1] == pytest.approx(3.0)


# --- grids of models ------------------------------------------------------------------------------------------------


def model_and_grid(kernel, n=30, p=1, **options):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 100.0])
    Y = 3 * torch.randn(n, p, generator=generator, dtype=torch.float64)
    gp = OperatorValuedGP(kernel, **options)
    data = gp.observe(X, Y)
    found = initialize(gp, data)
    vector = ParameterVector(gp, found.bounds, found.scales)
    before = raw_state(gp)
    points = grid_around(gp, data, vector, found)
    assert all(torch.equal(before[name], value) for name, value in raw_state(gp).items())  # the model is not changed
    assert points.shape[::2] == (len(points), len(vector))
    return gp, data, vector, points.reshape(-1, len(vector))


def test_grid_varies_lengthscales_in_units_of_the_columns_and_noise_relative_to_the_outputs():
    gp, data, vector, points = model_and_grid(ScaleKernel(RBFKernel(ard_num_dims=2)), noise="shared")
    assert points.shape == (12, len(vector))
    scaled = (data.X / data.X.std(0, correction=0)).numpy()
    lengthscales, noises = [], set()
    for point in points:
        vector.set(point)
        lengthscales.append(gp.kernel.base_kernel.lengthscale[0].detach())
        noises.add(round(gp.noise.item() / data.Y.var(correction=0).item(), 4))
    ratios = torch.stack(lengthscales) / data.X.std(0, correction=0)
    np.testing.assert_allclose(ratios[:, 0], ratios[:, 1], rtol=1e-6)
    np.testing.assert_allclose(np.unique(ratios[:, 0].round(decimals=6)), make_lengthscale_grid(scaled), rtol=1e-4)
    assert len(noises) == 2 and max(noises) / min(noises) == pytest.approx(15.0, rel=1e-3)


def test_grid_has_one_group_of_points_per_lengthscale():
    gp, _, vector, points = model_and_grid(ScaleKernel(RBFKernel()), noise="shared")
    lengthscales = []
    for group in points.reshape(6, 2, -1):
        lengthscales.append(
            {round((vector.set(point) or gp.kernel.base_kernel.lengthscale).item(), 9) for point in group}
        )
    assert all(len(group) == 1 for group in lengthscales) and len(set.union(*lengthscales)) == 6


def test_grid_varies_slopes_of_linear_kernels_and_keeps_fixed_parameters():
    kernel = AdditiveKernel(LinearKernel(), ScaleKernel(RBFKernel()))
    gp, _, vector, points = model_and_grid(kernel, noise="shared")
    assert len(points) == 24
    variances = {round(math.log(float(vector.set(p) or gp.kernel.kernels[0].variance)), 6) for p in points}
    assert len(variances) == 2
    fixed = ScaleKernel(RBFKernel())
    fixed.base_kernel.raw_lengthscale.requires_grad_(False)
    assert len(model_and_grid(fixed, noise=0.1)[-1]) == 1


def test_variance_of_field_kernels_follows_the_lengthscale():
    gp, data, vector, points = model_and_grid(ScaleKernel(CurlFreeKernel(RBFKernel(), num_dims=2)), p=2, noise="shared")
    sizes = []
    for point in points:
        vector.set(point)
        with torch.no_grad():
            sizes.append(gp.kernel(data.X[:1], diag=True).mean().item())
    np.testing.assert_allclose(sizes, sizes[0], rtol=1e-6)


@pytest.mark.parametrize("periods", [2, 10, 25])
def test_fit_finds_oscillations_of_any_frequency(periods):
    x = torch.linspace(0, 1, 150, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(2 * math.pi * periods * x) + 0.1 * torch.randn(150, 1, generator=torch.Generator().manual_seed(0))
    gp = OperatorValuedGP(ScaleKernel(MaternKernel(2.5)), noise="shared").fit(x, y)
    assert gp.noise.item() < 0.05
