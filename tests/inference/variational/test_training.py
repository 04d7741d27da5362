"""Training with batches: unbiased estimates, the same optimum as with all rows, Ctrl-C."""

import math
import signal

import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import FitWarning
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.variational.bound import VariationalBound
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.inference.variational.natural_gradients import compute_slopes, natural_step
from ovkgp.inference.variational.training import BatchTraining
from ovkgp.kernels import DecomposableKernel


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def icm():
    return DecomposableKernel(RBFKernel(ard_num_dims=1), 2, rank=2).double()


def model(likelihood="student_t", family="full", rank=None, n=60, inducing=None):
    kernel = icm()
    X = torch.linspace(0, 6, n).double().unsqueeze(-1)
    Y = torch.cat([X.sin(), X.cos()], 1) + 0.1 * normal(n, 2)
    Y[::7, 1] = torch.nan
    options = {"inducing": X[::inducing]} if inducing else {"features": ORFF(kernel, 6, random_state=0)}
    return VariationalGP(kernel, likelihood, family=family, rank=rank, **options), X, Y


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
@pytest.mark.parametrize(("family", "rank"), [("full", None), ("mean_field", None), ("low_rank", 5)])
@pytest.mark.parametrize("inducing", [None, 10])
def test_batch_slopes_and_gradients_average_to_those_of_all_rows(likelihood, family, rank, inducing):
    gp, X, Y = model(likelihood, family, rank, inducing=inducing)
    gp.log_evidence(X, Y)  # a q that is not the prior
    gp.q_ = gp.q_.move_mean(0.1 * normal(gp.q_.num_weights, seed=4))
    data, q, parameters = gp.observe(X, Y), gp.q_, list(gp.parameters())
    bound = VariationalBound(gp.features, gp.mean, gp.likelihood, data)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))

    def all_of(rows, scale):
        chunk = bound.make_chunk(data.rows(rows)).rotate(q.basis)
        found = compute_slopes(q, [chunk.detach()], gp.likelihood, bound.form, scale)
        value = scale * bound.expected(chunk, q) - q.divergence
        gradient = torch.autograd.grad(value, parameters)
        return [found.value, found.gradient, found.diagonal, found.block, value.detach(), *gradient]

    whole = all_of(slice(None), 1.0)
    parts = [all_of(rows, 4.0) for rows in order.split(15)]
    for index, wanted in enumerate(whole):
        torch.testing.assert_close(sum(part[index] for part in parts) / 4, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "family"), [("gaussian", "full"), ("student_t", "mean_field")])
def test_batch_training_ends_near_the_optimum_of_all_rows(likelihood, family):
    gp, X, Y = model(likelihood, family, n=200)
    best = gp.fit(X, Y).fit_report_.objective
    again, _, _ = model(likelihood, family, n=200)
    again.fit(X, Y, batch_size=50, epochs=75, random_state=0)
    report = again.fit_report_
    assert report.converged and report.iterations == 300 and report.failures == 0 and len(report.history) == 76
    assert best - report.objective < 0.05 * Y.numel()
    assert (again.predict(X).mean - gp.predict(X).mean).abs().max() < 0.1


def test_batch_training_is_reproducible_and_keeps_the_global_random_state():
    levels, state = [], torch.get_rng_state()
    for seed in (0, 0, 1):
        gp, X, Y = model()
        levels.append(gp.fit(X, Y, batch_size=16, epochs=2, random_state=seed).fit_report_.history)
    assert levels[0] == levels[1] != levels[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_batch_training_with_all_rows_and_a_full_step_is_the_posterior():
    gp, X, Y = model("gaussian")
    gp.requires_grad_(False)
    gp.fit(X, Y, batch_size=1000, epochs=1, natural_step=1.0, random_state=0)
    exact = OperatorValuedGP(gp.kernel, noise=gp.noise, features=gp.features)
    exact.mean.load_state_dict(gp.mean.state_dict())
    torch.testing.assert_close(gp.fit_report_.log_evidence, exact.log_evidence(X, Y).item(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("batch_size", [None, 16])
def test_fit_keeps_parameters_on_ctrl_c(batch_size, monkeypatch):
    gp, X, Y = model()
    calls = []
    original = type(gp.likelihood).expected

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 12:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(type(gp.likelihood), "expected", interrupted)
    with pytest.warns(FitWarning, match="interrupted"):
        gp.fit(X, Y, batch_size=batch_size, random_state=0)
    assert gp.fit_report_.interrupted and not gp.fit_report_.converged
    assert torch.isfinite(gp.predict(X).std).all() and math.isfinite(gp.fit_report_.log_evidence)


@pytest.mark.filterwarnings("ignore:training stopped")  # after the few iterations that a test can wait for
@pytest.mark.parametrize("batch_size", [None, 50])
def test_fit_does_not_overflow_for_large_counts(batch_size):
    """A full natural step from one batch overshot, exp overflowed, and the training failed."""
    X = normal(1000, 3)
    F = torch.stack([X[:, 0].sin() + X[:, 1], 2 * X[:, 1].sin() + X[:, 2]], 1)
    gp = VariationalGP(DecomposableKernel(RBFKernel(ard_num_dims=3), 2, rank=2), "poisson", inducing=40)
    Y = (4 + 1.5 * F).exp().round()
    gp.fit(X, Y, batch_size=batch_size, epochs=3, max_iter=3, random_state=0)
    assert gp.fit_report_.failures == 0
    assert math.isfinite(gp.fit_report_.log_evidence)


def test_take_natural_step_is_shortened_if_it_lowers_the_bound_of_the_batch():
    gp, X, Y = model("poisson")
    data = gp.observe(X, (4 * (Y + 1).nan_to_num()).exp().round())
    training = BatchTraining(gp, data, 60, 1, 0.03, 1.0, bounds={}, scales={}, random_state=0)
    training.update_basis(torch.arange(60))
    chunk, before = training.bound.make_chunk(data).rotate(gp.q_.basis).detach(), gp.q_
    level = float(training.bound.expected(chunk, before) - before.divergence)
    whole = natural_step(before, training.compute_slopes(chunk, 1.0), 1.0)
    assert not float(training.bound.expected(chunk, whole) - whole.divergence) > level
    found = training.take_natural_step(chunk, 1.0)
    assert float(training.bound.expected(chunk, found) - found.divergence) > level


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.parametrize(("family", "rank", "slack"), [("mean_field", None, 0.5), ("low_rank", 4, 0.2)])
def test_fit_of_small_families_is_near_that_of_the_full_one(likelihood, family, rank, slack):
    """In a fixed basis the bound has its maximum near the initial point: the full bound there was 1 to 4 below its
    maximum."""
    X = normal(60, 1)
    F = 2 * torch.cat([X.sin(), X.cos()], 1)
    Y = (F + 1).exp().round() if likelihood == "poisson" else F + 0.1 * normal(60, 2, seed=5)
    Y[torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) < 0.2] = torch.nan
    best = VariationalGP(icm(), likelihood, family="full", inducing=10).fit(X, Y, random_state=0)
    gp = VariationalGP(icm(), likelihood, family=family, rank=rank, inducing=10).fit(X, Y, random_state=0)
    assert gp.fit_report_.converged
    assert gp.fit_report_.log_evidence == pytest.approx(gp.fit_report_.objective, abs=1e-3)
    gp.family, gp.rank = "full", None
    assert best.fit_report_.objective - gp.log_evidence(X, Y).item() < slack


def test_batch_training_decays_rates_and_updates_the_basis():
    gp, X, Y = model("gaussian", "mean_field")
    data = gp.observe(X, Y)
    training = BatchTraining(gp, data, 20, 4, 0.1, 0.5, bounds={}, scales={}, random_state=0)
    assert training.decay == 1.0
    training.run()
    assert training.decay == pytest.approx(0.05)
    assert len(gp.q_.basis) == 2 and gp.q_.rank == 0
