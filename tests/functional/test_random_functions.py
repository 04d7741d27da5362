"""Tests of `ovkgp.functional.random_functions`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import AdditiveKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError
from ovkgp.functional import Dictionary, RandomFourier, RandomProcesses


def gaussian(lengthscale=0.3):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale).double()
    return kernel


def test_bo_e_10_products_of_features_are_averages_of_cosines():
    """BO C-06: the second half are sines; with cosines in both halves the product depends on t + s."""
    frequencies, t = np.array([0.5, 2.0, 7.0]), np.linspace(0, 1, 6)
    rows = RandomFourier(frequencies)(t)
    lag = t[:, None] - t
    assert np.allclose(rows @ rows.T, np.cos(lag[..., None] * frequencies).mean(-1))
    assert np.allclose(rows[:, 3:], np.sin(np.outer(t, frequencies)) / np.sqrt(3))


def test_bo_c_06_error_decreases_as_the_root_of_the_number_of_frequencies():
    kernel, t = gaussian(), np.linspace(0, 1, 15)
    exact = np.exp(-((t[:, None] - t) ** 2) / (2 * 0.3**2))
    sizes, errors = np.array([16, 64, 256, 1024]), []
    for size in sizes:
        draws = [RandomFourier(kernel, int(size), random_state=seed)(t) for seed in range(30)]
        errors.append(np.sqrt(np.mean([(rows @ rows.T - exact) ** 2 for rows in draws])))
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.15)
    mean = np.mean([rows @ rows.T for rows in draws], 0)
    assert np.abs(mean - exact).max() < 4 * errors[-1] / np.sqrt(30) * 1.5


def test_scale_of_the_kernel_and_shift_of_the_domain():
    kernel = ScaleKernel(gaussian()).double()
    kernel.outputscale = torch.tensor(2.5).double()
    features = RandomFourier(kernel, 10, (3, 5), random_state=0)
    assert np.allclose((features([3.0, 4.2]) ** 2).sum(1), 2.5)
    assert np.array_equal(features([3.5]), RandomFourier(kernel, 10, (3, 5), random_state=0)([3.5]))


def test_gram_in_two_dimensions_is_that_of_the_quadrature():
    features = RandomFourier(gaussian(), 4, [(0, 1), (0, 2)], random_state=0)
    points = np.random.default_rng(0).uniform(size=(200_000, 2)) * [1, 2]
    rows = features(points)
    assert np.allclose(features.gram(), rows.T @ rows / len(rows) * 2, atol=0.01)
    for order in ((0, 0), (1, 0), (1, 1), (0, 2)):
        closed, numeric = features._gram_of(order), Dictionary._gram_of(features, order)
        assert np.allclose(closed, numeric, atol=1e-9 * np.abs(numeric).max())
    step = np.array([1e-6, 0.0])
    differences = (features(points[:5] + step) - features(points[:5] - step)) / 2e-6
    assert np.allclose(features.derivative(points[:5], (1, 0)), differences, atol=1e-6)
    with pytest.raises(InputError, match="frequencies"):
        RandomFourier(np.zeros((3, 2)))
    with pytest.raises(InputError, match="frequencies"):
        RandomFourier(5)


def test_random_processes_accept_one_lengthscale():
    assert len(RandomProcesses(3, 0.2, random_state=0)) == 3


def test_closed_forms_are_those_of_the_quadrature():
    features = RandomFourier(gaussian(), 6, (1, 4), random_state=0)
    for order in (0, 1, 2, 3):
        closed, numeric = features._gram_of((order,)), Dictionary._gram_of(features, (order,))
        assert np.allclose(closed, numeric, atol=1e-10 * np.abs(numeric).max())


def test_features_of_a_sum_of_kernels_are_those_of_its_terms():
    matern, t = ScaleKernel(MaternKernel(nu=2.5)).double(), np.linspace(0, 1, 5)
    matern.outputscale = 0.5
    rows = RandomFourier(AdditiveKernel(gaussian(), matern), 4000, random_state=0)(t)
    with torch.no_grad():
        exact = (gaussian()(torch.from_numpy(t)) + matern(torch.from_numpy(t))).to_dense().numpy()
    assert np.abs(rows @ rows.T - exact).max() < 0.05


def test_bo_45_random_processes_are_redundant_with_unit_norm():
    processes = RandomProcesses(10, random_state=0)
    assert processes.num_functions == 90 and np.unique(processes.lengthscales).size == 9
    weights = np.full(200, 1 / 199)
    weights[[0, -1]] /= 2
    assert np.allclose(weights @ processes.values**2, 1)
    assert processes.condition_number > 1e3
    smooth = processes.values[:, processes.lengthscales == 0.7]
    assert np.abs(np.diff(smooth, axis=0)).max() < 0.1
    assert np.array_equal(processes.values, RandomProcesses(10, random_state=0).values)
