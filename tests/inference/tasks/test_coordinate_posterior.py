"""Tests of `ovkgp.inference.tasks.coordinate_posterior`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import OptionError
from ovkgp.inference.tasks import coordinate_posterior
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
    values, ratios = torch.from_numpy(rng.standard_normal(len(rows))), torch.ones(len(rows), dtype=torch.float64)
    entries = CoordinateEntries(rows, basis, values, ratios, columns, scales)
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.4
    return kernel, torch.from_numpy(rng.uniform(0.1, 1, RANK)), X, entries


def without_grid(entries):
    return replace(entries, basis=entries.entry_basis, columns=None, row_scales=None)


def make_large(monkeypatch, max_weights=5000):
    """Let these few entries be more than a dense solve has."""
    monkeypatch.setattr(coordinate_posterior, "MAX_DENSE_ENTRIES", 1)
    monkeypatch.setattr(coordinate_posterior, "SMALL_ENTRIES", 1)
    monkeypatch.setattr(coordinate_posterior, "MAX_WEIGHTS", max_weights)
    monkeypatch.setattr(coordinate_posterior, "MIN_INFLUENCE", 1e-12)


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


@pytest.mark.parametrize("on_grid", [True, False])
@pytest.mark.parametrize("max_weights", [5000, 1])
def test_many_entries_equal_dense_algebra(problem, on_grid, max_weights, monkeypatch):
    kernel, variances, X, entries = problem
    dense = CoordinatePosterior(kernel, variances, X, without_grid(entries), 0.05)
    make_large(monkeypatch, max_weights)
    found = CoordinatePosterior(kernel, variances, X, entries if on_grid else without_grid(entries), 0.05)
    assert found.missing is None
    assert not found.is_dense
    assert found.weights.has_all == (max_weights > 1)
    torch.testing.assert_close(found.alpha, dense.alpha, rtol=1e-8, atol=1e-8)
    assert math.isclose(found.quadratic, dense.quadratic, rel_tol=1e-9)
    if max_weights > 1:
        assert math.isclose(found.log_evidence, dense.log_evidence, rel_tol=1e-9)
    else:
        assert math.isnan(found.log_evidence)
    new = torch.from_numpy(np.random.default_rng(1).uniform(0, 1, (5, 2)))
    for form in ("diag", "output", "full"):
        for got, expected in zip(found.latent(new, form), dense.latent(new, form), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)
    draws = [one.sample_functions(3, random_state=0)(new) for one in (found, dense)]
    torch.testing.assert_close(*draws, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("on_grid", [True, False])
def test_path_with_many_entries_equals_dense_algebra(problem, on_grid, monkeypatch):
    kernel, variances, X, entries = problem
    noises = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    expected = curve_path(kernel, variances, X, without_grid(entries), noises)
    make_large(monkeypatch)
    found = curve_path(kernel, variances, X, entries if on_grid else without_grid(entries), noises)
    for name in ("log_evidence", "quadratic", "loo_error", "loo_log_density"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-8, atol=1e-8)
    monkeypatch.setattr(coordinate_posterior, "MAX_WEIGHTS", 1)
    with pytest.raises(OptionError, match="lam"):
        curve_path(kernel, variances, X, without_grid(entries), noises)


def test_weights_without_influence_are_dropped_to_first_order(problem, monkeypatch):
    kernel, variances, X, entries = problem
    kernel.lengthscale = 2.0  # few large eigenvalues
    dense = CoordinatePosterior(kernel, variances, X, without_grid(entries), 0.05)
    make_large(monkeypatch)
    monkeypatch.setattr(coordinate_posterior, "MIN_INFLUENCE", 1e-4)
    found = CoordinatePosterior(kernel, variances, X, entries, 0.05)
    assert len(found.weights.algebra.pairs[0]) < 0.8 * found.weights.algebra.kept.numel()
    torch.testing.assert_close(found.alpha, dense.alpha, rtol=1e-7, atol=1e-7)  # the mean drops nothing
    assert math.isclose(found.log_evidence, dense.log_evidence, abs_tol=1e-4)
    new = torch.from_numpy(np.random.default_rng(1).uniform(0, 1, (5, 2)))
    torch.testing.assert_close(found.latent(new, "diag")[1], dense.latent(new, "diag")[1], rtol=0, atol=1e-4)


def test_curves_on_a_grid_form_no_matrix_per_entry_or_curve(monkeypatch):
    """The arrays that a fit of 60 × 40 values keeps are of size n m, n² and m²."""
    rng, n, m = np.random.default_rng(0), 60, 40
    X, basis = (
        torch.from_numpy(rng.uniform(0, 1, (n, 2))),
        torch.from_numpy(np.linalg.qr(rng.standard_normal((m, m)))[0]),
    )
    rows, columns = (torch.from_numpy(index) for index in np.nonzero(rng.random((n, m)) > 0.3))
    values = torch.from_numpy(rng.standard_normal(len(rows)))
    entries = CoordinateEntries(rows, basis, values, torch.ones_like(values), columns, torch.ones(n).double())
    kernel = RBFKernel().double().requires_grad_(False)
    make_large(monkeypatch, 1)
    found = CoordinatePosterior(kernel, torch.from_numpy(0.8 ** np.arange(m)), X, entries, 0.05)
    assert found.num_iterations < 30
    parts = [vars(one) for one in (found, found.weights, found.weights.algebra, found.weights.algebra.information)]
    sizes = [value.numel() for part in parts for value in part.values() if torch.is_tensor(value)]
    assert max(sizes) <= max(n * n, n * m, m * m)


@pytest.mark.parametrize("kind", ["grid", "dense", "weights", "iterative"])
@pytest.mark.parametrize("count", [3, 11])
def test_covariances_along_curves_equal_those_of_coordinates(problem, kind, count, monkeypatch):
    kernel, variances, X, entries = problem
    if kind in ("weights", "iterative"):
        make_large(monkeypatch, 1 if kind == "iterative" else 5000)
    found = CoordinatePosterior(kernel, variances, X, entries if kind == "grid" else without_grid(entries), 0.05)
    new = torch.from_numpy(np.random.default_rng(1).uniform(0, 1, (5, 2)))
    along = torch.from_numpy(np.random.default_rng(2).standard_normal((count, RANK)))
    expected = along @ found.latent(new, "output")[1] @ along.mT
    tolerance = {"rtol": 1e-6, "atol": 1e-7}  # of conjugate gradients
    torch.testing.assert_close(found.covariance_along(new, along, "output"), expected, **tolerance)
    diagonal = expected.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.covariance_along(new, along, "diag"), diagonal, **tolerance)
