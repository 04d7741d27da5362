"""Tests of `ovkgp.inference.tasks.coordinate_posterior`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.inference.tasks.coordinate_posterior import (
    CoordinateEntries,
    CoordinatePosterior,
    curve_path,
)

N, M, RANK = 12, 7, 7


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X, basis = torch.from_numpy(rng.uniform(0, 1, (N, 2))), torch.from_numpy(rng.standard_normal((M, RANK)))
    observed = rng.random((N, M)) > 0.2
    rows, columns = (torch.from_numpy(index) for index in np.nonzero(observed))
    scales = torch.from_numpy(rng.uniform(0.5, 1.5, N))
    entries = CoordinateEntries(
        rows,
        basis[columns] * scales[rows].unsqueeze(-1),
        torch.from_numpy(rng.standard_normal(len(rows))),
        torch.ones(len(rows), dtype=torch.float64),
        columns,
        basis,
        scales,
    )
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.4
    return kernel, torch.from_numpy(rng.uniform(0.1, 1, RANK)), X, entries


def without_grid(entries):
    return replace(entries, columns=None, grid_basis=None, row_scales=None)


def test_few_gaps_on_a_grid_equal_dense_algebra(problem):
    kernel, variances, X, entries = problem
    fast = CoordinatePosterior(kernel, variances, X, entries, 0.05)
    dense = CoordinatePosterior(kernel, variances, X, without_grid(entries), 0.05)
    assert fast.missing is not None
    assert dense.is_dense
    torch.testing.assert_close(fast.alpha, dense.alpha, rtol=1e-8, atol=1e-10)
    assert math.isclose(fast.log_evidence, dense.log_evidence, rel_tol=1e-9)
    new = torch.from_numpy(np.random.default_rng(1).uniform(0, 1, (5, 2)))
    for form in ("diag", "output", "full"):
        for got, expected in zip(fast.latent(new, form), dense.latent(new, form), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)
    draws = [one.sample_functions(3, random_state=0)(new) for one in (fast, dense)]
    torch.testing.assert_close(*draws, rtol=1e-7, atol=1e-8)


def test_path_with_few_gaps_equals_dense_algebra(problem):
    kernel, variances, X, entries = problem
    noises = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    fast, dense = (curve_path(kernel, variances, X, one, noises) for one in (entries, without_grid(entries)))
    for name in ("log_evidence", "quadratic", "loo_error", "loo_log_density"):
        torch.testing.assert_close(getattr(fast, name), getattr(dense, name), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["grid", "dense", "iterative"])
@pytest.mark.parametrize("count", [3, 11])
def test_covariances_along_curves_equal_those_of_coordinates(problem, kind, count, monkeypatch):
    kernel, variances, X, entries = problem
    if kind == "iterative":
        monkeypatch.setattr("ovkgp.inference.tasks.coordinate_posterior.MAX_DENSE_ENTRIES", 1)
    found = CoordinatePosterior(kernel, variances, X, entries if kind == "grid" else without_grid(entries), 0.05)
    new = torch.from_numpy(np.random.default_rng(1).uniform(0, 1, (5, 2)))
    along = torch.from_numpy(np.random.default_rng(2).standard_normal((count, RANK)))
    expected = along @ found.latent(new, "output")[1] @ along.mT
    tolerance = {"rtol": 1e-6, "atol": 1e-7}  # of conjugate gradients
    torch.testing.assert_close(found.covariance_along(new, along, "output"), expected, **tolerance)
    diagonal = expected.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.covariance_along(new, along, "diag"), diagonal, **tolerance)
