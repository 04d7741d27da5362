"""Priors on a likelihood's own parameters: one each, in the units of the data, proper on the raw parameters."""

import math
import pickle

import pytest
import torch
from gpytorch.priors import LogNormalPrior
from likelihood_cases import normal, one
from scipy import stats

from ovkgp.inference.likelihoods import Gaussian, StudentT, make_likelihood, register_likelihood_priors
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.training.initialization import log_prior
from ovkgp.inference.training.log_prior import raw_log_prior


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_every_trained_parameter_has_one_prior(name):
    likelihood = make_likelihood(name, 2)
    register_likelihood_priors(likelihood)
    register_likelihood_priors(likelihood)  # a second call adds nothing
    assert len(list(likelihood.named_priors())) == len(list(likelihood.parameters()))
    pickle.loads(pickle.dumps(likelihood))


def test_densities_are_those_of_scipy():
    likelihood = StudentT(1)
    likelihood.scale, likelihood.df = 0.4, 7.0
    register_likelihood_priors(likelihood)
    scale = stats.lognorm.logpdf(0.4, 0.75, scale=math.sqrt(0.05))
    df = stats.gamma.logpdf(5.0, 2.0, scale=10.0)
    assert log_prior(likelihood).item() == pytest.approx(scale + df, rel=1e-10)
    # raw values are log s and log(df − 2), whose slopes are s and df − 2
    assert raw_log_prior(likelihood).item() == pytest.approx(scale + df + math.log(0.4 * 5.0), rel=1e-10)


def test_priors_of_scales_are_in_the_units_of_the_data():
    Y = normal(500, 2) * torch.tensor([1.0, 100.0])
    for name in ("laplace", "gaussian"):
        likelihood = make_likelihood(name, 2)
        register_likelihood_priors(likelihood, Y)
        (prior,) = [prior for _, _, prior, *_ in likelihood.named_priors()]
        step = (prior.loc[1] - prior.loc[0]).item()
        assert step == pytest.approx((2 if name == "gaussian" else 1) * math.log(100), abs=0.3)


def test_lists_have_the_priors_of_their_members():
    likelihood = make_likelihood(["student_t", "poisson", "negative_binomial"], 3)
    register_likelihood_priors(likelihood, torch.ones(4, 3))
    assert len(list(likelihood.named_priors())) == 3


def test_fixed_parameters_and_those_with_a_prior_are_left_alone():
    fixed = StudentT(1, scale=1.0, df=4.0)
    register_likelihood_priors(fixed)
    assert not list(fixed.named_priors())
    mine = StudentT(1, df=4.0)
    mine.register_prior("mine", LogNormalPrior(0.0, 1.0), "scale")
    register_likelihood_priors(mine)
    assert [name for name, *_ in mine.named_priors()] == ["mine"]
    constant = Gaussian(1, noise=0.1)
    register_likelihood_priors(constant)
    assert log_prior(constant).item() == 0.0


def test_the_prior_of_df_is_set_through_its_closure():
    likelihood = StudentT(1)
    register_likelihood_priors(likelihood)
    _, get, put = likelihood._priors["df_prior"]
    put(likelihood, torch.tensor([3.0], dtype=torch.float64))
    assert likelihood.df.item() == pytest.approx(5.0) and get(likelihood).item() == pytest.approx(3.0)
    assert likelihood.moments(one(0.0), one(0.0))[1].item() > 0
