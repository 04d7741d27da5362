"""The posterior of weights by products alone, against the factorised one."""

import pickle

import pytest
import torch
from gp_cases import Problem, close

from ovkgp.exceptions import OptionError
from ovkgp.inference.ridge.products import MatrixFreeSystem
from ovkgp.inference.ridge.solvers import solve_ridge
from ovkgp.inference.ridge.weight_products import WeightProducts


def systems(name="curl-free", noise="matrix", missing=0.3, chunk_rows=None):
    problem = Problem(name, noise, missing, features="orff", n=20, level=1e-2, num_frequencies=15)
    model, data = problem.gp.frozen().model, problem.gp.observe(problem.X, problem.Y, problem.known)
    products = WeightProducts(model.features, model.mean, model.noise, data, chunk_rows)
    exact = solve_ridge(problem.gp, problem.X, problem.Y, problem.known, solver="closed_form").system
    with torch.no_grad():
        return problem, MatrixFreeSystem(products), exact, model.features(problem.test)


@pytest.mark.parametrize("name", ["icm, rank 2", "lmc", "curl-free", "delays"])
@pytest.mark.parametrize("chunk_rows", [None, 7])
def test_weights_and_every_form_of_covariance(name, chunk_rows):
    problem, system, exact, Phi = systems(name, chunk_rows=chunk_rows)
    close(system.weights, exact.weights, 1e-7)
    for form in ("diag", "output", "full"):
        close(system.variance(Phi, form, problem.num_outputs), exact.variance(Phi, form, problem.num_outputs), 1e-7)
    assert system.num_features == len(exact.weights)


def test_draws_have_the_mean_and_covariance_of_the_posterior():
    problem, system, exact, Phi = systems(noise="known")
    draws = system.draw(20_000, torch.Generator().manual_seed(0))
    values = draws @ Phi.to_dense().mT
    covariance = exact.variance(Phi, "full", problem.num_outputs)
    scale = covariance.diagonal().max().item()
    torch.testing.assert_close(values.mT.cov(), covariance, rtol=0, atol=0.05 * scale)
    torch.testing.assert_close(values.mean(0), Phi @ exact.weights, rtol=0, atol=5 * (scale / 20_000) ** 0.5)
    again = system.draw(3, torch.Generator().manual_seed(5))
    assert torch.equal(again, system.draw(3, torch.Generator().manual_seed(5)))


def test_what_products_do_not_tell_is_nan_or_an_error_that_says_so():
    _, system, _, _ = systems()
    assert torch.isnan(system.log_density)
    for ask in (lambda: system.path([1.0]), lambda: system.path_weights(2.0), system.tensors):
        with pytest.raises(OptionError, match='solver="closed_form"'):
            ask()


def test_pickles():
    _, system, _, Phi = systems()
    again = pickle.loads(pickle.dumps(system))
    assert torch.equal(again.variance(Phi), system.variance(Phi))
