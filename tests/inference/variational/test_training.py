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
from ovkgp.inference.variational.natural_gradients import natural_step, slopes
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
def test_the_batches_of_a_partition_average_to_the_slopes_and_gradients_of_all_rows(likelihood, family, rank, inducing):
    gp, X, Y = model(likelihood, family, rank, inducing=inducing)
    gp.log_evidence(X, Y)  # a q that is not the prior
    gp.q_ = gp.q_.moved(0.1 * normal(gp.q_.num_weights, seed=4))
    data, q, parameters = gp.observe(X, Y), gp.q_, list(gp.parameters())
    bound = VariationalBound(gp.features, gp.mean, gp.likelihood, data)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))

    def all_of(rows, scale):
        piece = bound.piece(data.rows(rows)).rotated(q.basis)
        found = slopes(q, [piece.detach()], gp.likelihood, bound.form, scale)
        value = scale * bound.expected(piece, q) - q.divergence
        gradient = torch.autograd.grad(value, parameters)
        return [found.value, found.gradient, found.diagonal, found.block, value.detach(), *gradient]

    whole = all_of(slice(None), 1.0)
    parts = [all_of(rows, 4.0) for rows in order.split(15)]
    for index, wanted in enumerate(whole):
        torch.testing.assert_close(sum(part[index] for part in parts) / 4, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("likelihood", "family"), [("gaussian", "full"), ("student_t", "mean_field")])
def test_batches_end_near_the_optimum_of_all_rows(likelihood, family):
    gp, X, Y = model(likelihood, family, n=200)
    best = gp.fit(X, Y).fit_report_.objective
    again, _, _ = model(likelihood, family, n=200)
    again.fit(X, Y, batch_size=50, epochs=75, random_state=0)
    report = again.fit_report_
    assert report.converged and report.iterations == 300 and report.failures == 0 and len(report.history) == 76
    assert best - report.objective < 0.05 * Y.numel()
    assert (again.predict(X).mean - gp.predict(X).mean).abs().max() < 0.1


def test_batches_reproduce_from_their_random_state_and_leave_the_global_one_alone():
    levels, state = [], torch.get_rng_state()
    for seed in (0, 0, 1):
        gp, X, Y = model()
        levels.append(gp.fit(X, Y, batch_size=16, epochs=2, random_state=seed).fit_report_.history)
    assert levels[0] == levels[1] != levels[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_of_all_rows_and_a_whole_step_is_the_posterior_at_once():
    gp, X, Y = model("gaussian")
    gp.requires_grad_(False)
    gp.fit(X, Y, batch_size=1000, epochs=1, natural_step=1.0, random_state=0)
    exact = OperatorValuedGP(gp.kernel, noise=gp.noise, features=gp.features)
    exact.mean.load_state_dict(gp.mean.state_dict())
    torch.testing.assert_close(gp.fit_report_.log_evidence, exact.log_evidence(X, Y).item(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("batch_size", [None, 16])
def test_ctrl_c_keeps_what_there_is(batch_size, monkeypatch):
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
def test_large_counts_do_not_throw_the_rate_out_of_the_range_of_numbers(batch_size):
    """A whole natural step from one batch overshot, exp overflowed, and the training failed for good."""
    X = normal(1000, 3)
    F = torch.stack([X[:, 0].sin() + X[:, 1], 2 * X[:, 1].sin() + X[:, 2]], 1)
    gp = VariationalGP(DecomposableKernel(RBFKernel(ard_num_dims=3), 2, rank=2), "poisson", inducing=40)
    Y = (4 + 1.5 * F).exp().round()
    gp.fit(X, Y, batch_size=batch_size, epochs=3, max_iter=3, random_state=0)
    assert gp.fit_report_.failures == 0
    assert math.isfinite(gp.fit_report_.log_evidence)


def test_a_shorter_step_is_taken_where_a_whole_one_would_lower_the_bound_of_the_batch():
    gp, X, Y = model("poisson")
    data = gp.observe(X, (4 * (Y + 1).nan_to_num()).exp().round())
    training = BatchTraining(gp, data, 60, 1, 0.03, 1.0, bounds={}, sizes={}, random_state=0)
    training.turn(torch.arange(60))
    piece, before = training.bound.piece(data).rotated(gp.q_.basis).detach(), gp.q_
    level = float(training.bound.expected(piece, before) - before.divergence)
    whole = natural_step(before, training.slopes(piece, 1.0), 1.0)
    assert not float(training.bound.expected(piece, whole) - whole.divergence) > level
    found = training.natural(piece, 1.0)
    assert float(training.bound.expected(piece, found) - found.divergence) > level


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.parametrize(("family", "rank", "slack"), [("mean_field", None, 0.5), ("low_rank", 4, 0.2)])
def test_hyperparameters_of_small_families_are_near_those_of_the_full_one(likelihood, family, rank, slack):
    """In the basis of the start, the bound has its summit near the start: the full bound there was 1 to 4 below its own summit."""
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


def test_rates_fall_and_the_basis_follows_the_features():
    gp, X, Y = model("gaussian", "mean_field")
    data = gp.observe(X, Y)
    training = BatchTraining(gp, data, 20, 4, 0.1, 0.5, bounds={}, sizes={}, random_state=0)
    assert training.decay == 1.0
    training.run()
    assert training.decay == pytest.approx(0.05)
    assert len(gp.q_.basis) == 2 and gp.q_.rank == 0
