"""Tests of `ovkgp.inference.likelihoods.factory`."""

import math
import pickle

import pytest
import torch
from gpytorch.priors import LogNormalPrior
from likelihood_cases import normal, one
from scipy import stats

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import (
    Gaussian,
    PerOutput,
    Poisson,
    StudentT,
    make_likelihood,
    register_likelihood_priors,
)
from ovkgp.inference.likelihoods.factory import LIKELIHOODS
from ovkgp.inference.training.priors import LogPrior


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_make_likelihood_accepts_every_name(name):
    likelihood = make_likelihood(name, 3)
    assert type(likelihood) is LIKELIHOODS[name] and likelihood.num_outputs == 3 and likelihood.name == name
    assert likelihood.is_real.shape == (3,)
    assert likelihood.couples_outputs == (name == "softmax")


def test_make_likelihood_names_are_the_documented_ones():
    assert set(LIKELIHOODS) == {
        *("gaussian", "student_t", "laplace", "asymmetric_laplace", "huber"),
        *("asymmetric_huber", "epsilon_insensitive", "log_cosh"),
        *("bernoulli", "poisson", "negative_binomial", "softmax"),
    }


def test_make_likelihood_returns_likelihood_objects_unchanged():
    likelihood = Gaussian(2, noise="full")
    assert make_likelihood(likelihood, 2) is likelihood
    with pytest.raises(InputError, match="outputs"):
        make_likelihood(likelihood, 3)


def test_make_likelihood_accepts_lists_of_names_and_objects():
    count = Poisson(1)
    likelihood = make_likelihood(["huber", count], 2)
    assert isinstance(likelihood, PerOutput) and likelihood.likelihoods[1] is count
    assert make_likelihood(("laplace",), 1).num_outputs == 1


@pytest.mark.parametrize("spec, error", [("normal", OptionError), (3, OptionError), (None, OptionError)])
def test_make_likelihood_lists_the_names_for_unknown_specs(spec, error):
    with pytest.raises(error, match="'student_t'"):
        make_likelihood(spec, 1)


def test_make_likelihood_rejects_lists_of_wrong_length_or_with_softmax():
    with pytest.raises(InputError, match="2 entries"):
        make_likelihood(["gaussian", "poisson"], 3)
    with pytest.raises(OptionError, match="softmax"):
        make_likelihood(["gaussian", "softmax"], 2)


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_register_likelihood_priors_adds_one_prior_per_trained_parameter(name):
    likelihood = make_likelihood(name, 2)
    register_likelihood_priors(likelihood)
    register_likelihood_priors(likelihood)  # a second call adds nothing
    assert len(list(likelihood.named_priors())) == len(list(likelihood.parameters()))
    pickle.loads(pickle.dumps(likelihood))


def test_register_likelihood_priors_densities_equal_scipy():
    likelihood = StudentT(1)
    likelihood.scale, likelihood.df = 0.4, 7.0
    register_likelihood_priors(likelihood)
    scale = stats.norm(math.log(0.1) / 2, 0.75).logpdf(math.log(0.4))  # a density of the logarithm
    df = stats.gamma.logpdf(5.0, 2.0, scale=10.0)
    assert LogPrior(likelihood)().item() == pytest.approx(scale + df, rel=1e-10)
    # raw values are log s and log(df − 2), whose slope is df − 2
    assert LogPrior(likelihood, jacobian=True)().item() == pytest.approx(scale + df + math.log(5.0), rel=1e-10)


def test_register_likelihood_priors_uses_the_units_of_the_data():
    Y = normal(500, 2) * torch.tensor([1.0, 100.0])
    for name in ("laplace", "gaussian"):
        likelihood = make_likelihood(name, 2)
        register_likelihood_priors(likelihood, Y)
        (prior,) = [prior for _, _, prior, *_ in likelihood.named_priors()]
        step = (prior.loc[1] - prior.loc[0]).item()
        assert step == pytest.approx((2 if name == "gaussian" else 1) * math.log(100), abs=0.3)


def test_register_likelihood_priors_of_a_list_adds_those_of_its_members():
    likelihood = make_likelihood(["student_t", "poisson", "negative_binomial"], 3)
    register_likelihood_priors(likelihood, torch.ones(4, 3))
    assert len(list(likelihood.named_priors())) == 3


def test_register_likelihood_priors_skips_fixed_parameters_and_existing_priors():
    fixed = StudentT(1, scale=1.0, df=4.0)
    register_likelihood_priors(fixed)
    assert not list(fixed.named_priors())
    mine = StudentT(1, df=4.0)
    mine.register_prior("mine", LogNormalPrior(0.0, 1.0), "scale")
    register_likelihood_priors(mine)
    assert [name for name, *_ in mine.named_priors()] == ["mine"]
    constant = Gaussian(1, noise=0.1)
    register_likelihood_priors(constant)
    assert LogPrior(constant)().item() == 0.0


def test_register_likelihood_priors_df_prior_is_set_through_its_closure():
    likelihood = StudentT(1)
    register_likelihood_priors(likelihood)
    _, get, put = likelihood._priors["df_prior"]
    put(likelihood, torch.tensor([3.0], dtype=torch.float64))
    assert likelihood.df.item() == pytest.approx(5.0) and get(likelihood).item() == pytest.approx(3.0)
    assert likelihood.moments(one(0.0), one(0.0))[1].item() > 0
