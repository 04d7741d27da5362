"""`VariationalGP`: training, options, errors, copies."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import Gaussian
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.variational.families import WeightGaussian
from ovkgp.inference.variational.gp import DEFAULT_NUM_INDUCING, VariationalGP
from ovkgp.inference.variational.inducing import InducingPoints
from ovkgp.kernels import DecomposableKernel

pytestmark = pytest.mark.filterwarnings("ignore:training stopped")  # after the few iterations that a test can wait for


def icm(p=2):
    return DecomposableKernel(RBFKernel(ard_num_dims=1), p, rank=p)


def sine_data(n=40):
    X = torch.linspace(0, 6, n, dtype=torch.float64).unsqueeze(-1)
    noise = 0.1 * torch.randn((n, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return X, torch.cat([X.sin(), X.cos()], -1) + noise


def test_fit_agrees_with_exact_evidence():
    kernel, (X, Y) = icm(), sine_data()
    features = ORFF(kernel, 15, random_state=0)
    exact = OperatorValuedGP(kernel, features=features).fit(X, Y)
    found = VariationalGP(kernel, features=features).fit(X, Y)
    assert found.fit_report_.converged
    assert abs(found.fit_report_.log_evidence - exact.fit_report_.log_evidence) < 0.05
    assert found.fit_report_.num_rows == 40 and found.fit_report_.num_observed == 80
    torch.testing.assert_close(found.noise, exact.noise, rtol=0.05, atol=0)


def test_fit_with_trained_inducing_points_raises_the_bound():
    kernel, (X, Y) = icm(), sine_data()
    initial = [[0.5], [1.0], [1.5], [2.0]]
    fixed, learned = (
        VariationalGP(kernel, inducing=initial, learn_inducing=learn).fit(X, Y).fit_report_.objective
        for learn in (False, True)
    )
    assert learned > fixed + 5


@pytest.mark.slow
def test_fit_with_student_t_is_robust_against_an_outlier():
    X, Y = sine_data()
    spoilt = Y.clone()
    spoilt[10, 0] += 25
    gaussian, robust = (
        VariationalGP(icm(), kind, inducing=12).fit(X, spoilt, random_state=0).predict(X).mean
        for kind in ("gaussian", "student_t")
    )
    truth = torch.cat([X.sin(), X.cos()], -1)
    assert (robust - truth).abs().max() < 0.25 < (gaussian - truth).abs().max()


def test_fit_accepts_missing_outputs_numpy_inputs_and_single_precision():
    X, Y = sine_data()
    Y[::3, 1] = torch.nan
    gp = VariationalGP(icm(), inducing=10).fit(X.float().numpy(), Y.numpy(), max_iter=30, random_state=0)
    prediction = gp.predict(np.array([[1.0], [2.0]]))
    assert prediction.mean.dtype == torch.float64 and prediction.mean.shape == (2, 2)
    assert (prediction.mean[:, 1] - torch.tensor([1.0, 2.0]).cos()).abs().max() < 0.2


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson", "bernoulli", "student_t"])
def test_fit_accepts_one_row_and_duplicates(likelihood):
    y = [1.0]
    gp = VariationalGP(ScaleKernel(RBFKernel()), likelihood, inducing=5).fit([[0.5]], [y], max_iter=5)
    assert gp.features.points.shape == (1, 1)
    assert torch.isfinite(gp.predict([[0.5], [2.0]], noise=True).mean).all()
    twice = VariationalGP(ScaleKernel(RBFKernel()), likelihood, inducing=5).fit([[0.5]] * 6, [y] * 6, max_iter=5)
    assert torch.isfinite(twice.predict([[0.5]]).std).all()


def test_fit_does_not_modify_the_given_kernel():
    kernel, (X, Y) = icm(), sine_data()
    before = {name: value.clone() for name, value in kernel.state_dict().items()}
    gp = VariationalGP(kernel, inducing=6).fit(X, Y, max_iter=3)
    assert all(torch.equal(value, before[name]) for name, value in kernel.state_dict().items())
    assert gp.features.kernel is gp.kernel


def test_q_is_copied_but_not_a_parameter():
    X, Y = sine_data()
    gp = VariationalGP(icm(), inducing=6).fit(X, Y, max_iter=3)
    assert isinstance(gp.q_, WeightGaussian)
    assert not any("points" in name or "q_" in name for name, _ in gp.named_parameters())
    copy = deepcopy(gp)
    torch.testing.assert_close(copy.predict(X).std, gp.predict(X).std)
    assert copy.features.kernel is copy.kernel and copy.kernel is not gp.kernel
    posterior = gp.posterior()
    with torch.no_grad():
        next(gp.kernel.parameters()).add_(1.0)
    torch.testing.assert_close(posterior.predict(X).std, copy.predict(X).std)


def test_condition_does_not_modify_the_model():
    X, Y = sine_data()
    gp = VariationalGP(icm(), "student_t", inducing=6).fit(X, Y, max_iter=3)
    q = gp.q_
    posterior = gp.condition(X[:20], Y[:20])
    assert gp.q_ is q and posterior.q is not q
    assert posterior.log_evidence == pytest.approx(gp.log_evidence(X[:20], Y[:20]).item(), abs=1e-6)


def test_fit_chooses_inducing_points_from_its_data():
    X, Y = sine_data()
    gp = VariationalGP(icm(), inducing=5).fit(X, Y, max_iter=2, random_state=0)
    first = gp.features.points
    assert (first.unsqueeze(1) == X).all(-1).any(1).all()
    assert (gp.fit(X + 100, Y, max_iter=2, random_state=0).features.points >= 100).all()
    kept = gp.features
    assert gp.fit(X + 100, Y, max_iter=2, init="current").features is kept
    assert VariationalGP(icm()).inducing == DEFAULT_NUM_INDUCING
    assert isinstance(gp.features, InducingPoints)


def test_log_posterior_accepts_a_variational_gp():
    """`LogPosterior` takes the model: its gradient is the slope of its value."""
    X, Y = sine_data(15)
    lp = LogPosterior(VariationalGP(icm(), Gaussian(2, "per_output"), inducing=6), X, Y)
    u = lp.initial_point()
    value, gradient = lp(u)
    assert np.isfinite(value) and len(gradient) == len(lp)
    direction = np.random.default_rng(0).standard_normal(len(u))
    slope = (lp(u + 1e-5 * direction)[0] - lp(u - 1e-5 * direction)[0]) / 2e-5
    assert slope == pytest.approx(gradient @ direction, rel=1e-4, abs=1e-4)
    assert {"lengthscale", "output_matrix", "noise"} <= set(lp.variables(u))


def test_fit_includes_priors():
    from gpytorch.priors import NormalPrior

    X, Y = sine_data()
    kernel = icm()
    kernel.base_kernel.register_prior("lengthscale_prior", NormalPrior(0.2, 1e-3), "lengthscale")
    gp = VariationalGP(kernel, inducing=10).fit(X, Y, random_state=0)
    assert gp.kernel.base_kernel.lengthscale.item() == pytest.approx(0.2, abs=0.02)
    assert gp.fit_report_.objective != gp.fit_report_.log_evidence


def test_variational_gp_rejects_invalid_options():
    kernel, (X, Y) = icm(), sine_data()
    gp = VariationalGP(kernel, inducing=4)
    for options, message in (
        ({"init": "nowhere"}, "init"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 5, "epochs": 0}, "epochs"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"natural_step": 1.5}, "natural_step"),
    ):
        with pytest.raises(OptionError, match=message):
            gp.fit(X, Y, **options)
    with pytest.raises(OptionError, match="inducing"):
        VariationalGP(kernel, features=ORFF(kernel, 3), inducing=4)
    with pytest.raises(OptionError, match="features"):
        VariationalGP(kernel, features=ORFF(icm(), 3))
    with pytest.raises(OptionError, match="family"):
        VariationalGP(kernel, family="diagonal")
    with pytest.raises(OptionError, match="no data"):
        gp.predict(X)
    with pytest.raises(OptionError, match="variance"):
        gp.condition(X, Y, variance="none")
    with pytest.raises(OptionError, match="likelihood"):
        VariationalGP(kernel, "cauchy")
    with pytest.raises(KernelTypeError, match="kernel"):
        VariationalGP("rbf")
    with pytest.raises(KernelTypeError, match="batch shape"):
        VariationalGP(RBFKernel(batch_shape=torch.Size([2])))


def test_fit_rejects_invalid_data():
    X, Y = sine_data()
    gp = VariationalGP(icm(), inducing=4)
    with pytest.raises(InputError, match="NaN or infinity"):
        gp.fit(X * torch.nan, Y)
    with pytest.raises(InputError, match="output 1"):
        gp.fit(X, torch.cat([Y[:, :1], Y[:, 1:] * torch.nan], 1))
    with pytest.raises(InputError, match="columns"):
        VariationalGP(DecomposableKernel(RBFKernel(ard_num_dims=3), 2), inducing=4).fit(X, Y)
    with pytest.raises(InputError, match="Y "):
        gp.fit(X, Y[:, :1])
    with pytest.raises(InputError, match="bernoulli"):
        VariationalGP(icm(), "bernoulli", inducing=4).fit(X, Y)
    with pytest.raises(InputError, match="noise"):
        VariationalGP(icm(), "student_t", inducing=4).fit(X, Y, noise=torch.ones_like(Y))
    with pytest.raises(InputError, match="columns"):
        gp.fit(X, Y, max_iter=1).predict(torch.zeros(1, 2))


def test_condition_on_hyperparameter_draws_is_a_mixture():
    X, Y = sine_data(20)
    gp = VariationalGP(icm(), Gaussian(2, 0.01), inducing=6, mean="zero")
    gp.kernel.output_module.requires_grad_(False)
    gp.observe(X, Y)
    raw = torch.tensor([-0.5, 0.0, 0.7, 1.0]).double()
    mixture = gp.condition(X, Y, hyperparameters={"kernel.base_kernel.raw_lengthscale": raw.view(4, 1, 1)}, max_draws=4)
    means = []
    for value in raw:
        with torch.no_grad():
            gp.kernel.base_kernel.raw_lengthscale.fill_(value)
        means.append(gp.condition(X, Y).predict(X).mean)
    torch.testing.assert_close(mixture.predict(X).mean, torch.stack(means).mean(0))


@pytest.mark.slow
def test_condition_on_laplace_draws_under_a_student_t_likelihood():
    from ovkgp.inference import sample_hyperparameters

    X, Y = sine_data(20)
    gp = VariationalGP(icm(), "student_t", inducing=6).fit(X, Y, max_iter=10, random_state=0)
    draws = sample_hyperparameters(gp, X, Y, method="laplace", draws=6, random_state=0)
    mixture = gp.condition(X, Y, hyperparameters=draws, max_draws=6)
    assert len(mixture) == 6
    assert (mixture.predict(X).mean - torch.cat([X.sin(), X.cos()], -1)).abs().mean() < 0.2


@pytest.mark.parametrize("likelihood", [pytest.param("student_t", marks=pytest.mark.slow), ["student_t", "laplace"]])
def test_fit_keeps_the_likelihood_scale_within_bounds_without_noise(likelihood):
    X = torch.linspace(0, 6, 15, dtype=torch.float64).unsqueeze(-1)
    Y = torch.cat([X.sin(), 100 * X.cos()], -1)
    gp = VariationalGP(icm(), likelihood, inducing=8).fit(X, Y, max_iter=10, random_state=0)
    scales = torch.cat([value for name, value in ParameterVector(gp).values().items() if name.endswith("raw_scale")])
    assert len(scales) == 2
    assert (scales >= 0.99e-4 * Y.std(0).min()).all() and (scales <= 11 * Y.std(0).max()).all()
    assert torch.isfinite(gp.predict(X).std).all()
