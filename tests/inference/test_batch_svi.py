"""q(θ) and q(w) trained together on batches of rows."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sampler_cases import GlobalState

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling import svi as autoguides
from ovkgp.inference.sampling.sampling import sample_hyperparameters
from ovkgp.inference.sampling.svi import BatchDensity
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational import gp as variational_gp
from ovkgp.inference.variational import training as variational_training
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel


def problem(n=60, likelihood="gaussian"):
    generator = torch.Generator().manual_seed(0)
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    Y = torch.cat([X.sin(), X.cos()], -1) + 0.2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2, rank=1)
    features = ORFF(kernel, 10, num_dims=1, random_state=0)
    return VariationalGP(kernel, likelihood, features=features), X, Y


def batch_density(batch_size=20):
    gp, X, Y = problem()
    density = LogPosterior(gp, X, Y)
    density.gp._settle(density.gp.observe(X, Y))
    return BatchDensity(density, density.gp.observe(X, Y), batch_size, seed=0)


def test_estimates_of_a_partition_average_to_the_whole():
    batches = batch_density()
    u = batches.log_posterior.start() + 0.1
    rows = torch.randperm(60, generator=torch.Generator().manual_seed(3)).split(20)
    parts = [batches.estimate(u, batches.data.rows(part)) for part in rows]
    value, gradient = batches.estimate(u, batches.data)
    assert np.mean([part[0] for part in parts]) == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(np.mean([part[1] for part in parts], 0), gradient, rtol=1e-8, atol=1e-8)


def test_at_the_best_q_the_estimate_of_all_rows_is_the_collapsed_density():
    batches = batch_density()
    u = batches.log_posterior.start()
    value, gradient = batches.estimate(u, batches.data)
    expected, slope = batches.log_posterior(u)
    assert value == pytest.approx(expected, rel=1e-8)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-5)  # the envelope theorem


def test_every_call_takes_other_rows_and_moves_the_weights():
    batches = batch_density()
    u = batches.log_posterior.start()
    before = batches.gp.q_
    first, second = batches(u)[0], batches(u)[0]
    assert first != second and batches.gp.q_ is not before


@pytest.fixture
def _short(monkeypatch):
    """Fewer steps than a user takes."""
    monkeypatch.setattr(variational_gp, "NUM_STEPS", 400)
    monkeypatch.setattr(autoguides, "HALVINGS", 3)
    monkeypatch.setattr(autoguides, "MOST_WINDOWS", 3)


def test_the_centre_is_a_mode_of_the_collapsed_posterior_and_the_spread_smaller(_short):
    gp, X, Y = problem()
    before, state = {name: value.clone() for name, value in gp.state_dict().items()}, GlobalState()
    options = {"draws": 200, "random_state": 0, "prior_draws": 5, "posterior_predictive": False}
    data = sample_hyperparameters(gp, X, Y, "svi", batch_size=20, **options)
    assert GlobalState() == state and all(torch.equal(before[name], value) for name, value in gp.state_dict().items())
    with torch.no_grad():  # the search for the mode begins at the centre
        for name, values in data["unconstrained_posterior"].items():
            gp.get_parameter(name).copy_(torch.as_tensor(values.mean(("chain", "draw")).values))
    exact = sample_hyperparameters(gp, X, Y, "laplace", **options)
    for name in ("lengthscale", "noise"):
        ours, theirs = (np.log(one["posterior"][name].values) for one in (data, exact))
        assert (np.abs(ours.mean((0, 1)) - theirs.mean((0, 1))) < 2 * theirs.std((0, 1))).all()
        assert (ours.std((0, 1)) < 1.3 * theirs.std((0, 1))).all()
    attrs = data["posterior"].attrs
    assert attrs["batch_size"] == 20 and "khat" not in attrs and "no leave-one-out" in attrs["log_likelihood"]


def test_another_likelihood():
    gp, X, Y = problem(likelihood="student_t")
    density = LogPosterior(gp, X, Y)
    density.gp._settle(density.gp.observe(X, Y))
    batches = BatchDensity(density, density.gp.observe(X, Y), 20, seed=0)
    value, gradient = batches(density.start())
    assert np.isfinite(value) and np.isfinite(gradient).all() and len(gradient) == len(density)
    assert {"scale", "df"} <= set(density.variables(density.start()))


def test_ctrl_c_while_the_centre_is_sought_is_passed_on(monkeypatch):
    gp, X, Y = problem()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(variational_training.BatchTraining, "natural", interrupted)
    with pytest.warns(FitWarning, match="interrupted"), pytest.raises(KeyboardInterrupt, match="nothing to keep"):
        sample_hyperparameters(gp, X, Y, "svi", batch_size=20, random_state=0)


def test_batches_are_for_svi_and_variational_models():
    gp, X, Y = problem()
    with pytest.raises(OptionError, match="batch_size is for"):
        sample_hyperparameters(gp, X, Y, "laplace", batch_size=10)
    with pytest.raises(OptionError, match="batch_size is for"):
        sample_hyperparameters(OperatorValuedGP(gp.kernel), X, Y, "svi", batch_size=10)
    with pytest.raises(OptionError, match="batch_size must be at least 1"):
        sample_hyperparameters(gp, X, Y, "svi", batch_size=0)
