"""Likelihoods by name, as objects and as lists."""

import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import Gaussian, PerOutput, Poisson, make_likelihood
from ovkgp.inference.likelihoods.factory import LIKELIHOODS


@pytest.mark.parametrize("name", list(LIKELIHOODS))
def test_every_name_makes_its_likelihood(name):
    likelihood = make_likelihood(name, 3)
    assert type(likelihood) is LIKELIHOODS[name] and likelihood.num_outputs == 3 and likelihood.name == name
    assert likelihood.is_real.shape == (3,)
    assert likelihood.couples_outputs == (name == "softmax")


def test_names_are_those_that_are_promised():
    assert set(LIKELIHOODS) == {
        *("gaussian", "student_t", "laplace", "asymmetric_laplace", "huber"),
        *("bernoulli", "poisson", "negative_binomial", "softmax"),
    }


def test_objects_are_taken_as_they_are():
    likelihood = Gaussian(2, noise="full")
    assert make_likelihood(likelihood, 2) is likelihood
    with pytest.raises(InputError, match="of 2 outputs and the model has 3"):
        make_likelihood(likelihood, 3)


def test_lists_mix_names_and_objects():
    count = Poisson(1)
    likelihood = make_likelihood(["huber", count], 2)
    assert isinstance(likelihood, PerOutput) and likelihood.likelihoods[1] is count
    assert make_likelihood(("laplace",), 1).num_outputs == 1


@pytest.mark.parametrize("spec, error", [("normal", OptionError), (3, OptionError), (None, OptionError)])
def test_unknown_specs_list_the_names(spec, error):
    with pytest.raises(error, match="'student_t'"):
        make_likelihood(spec, 1)


def test_lists_of_the_wrong_length_or_with_softmax_are_refused():
    with pytest.raises(InputError, match="2 entries and the model 3 outputs"):
        make_likelihood(["gaussian", "poisson"], 3)
    with pytest.raises(OptionError, match="not in a list"):
        make_likelihood(["gaussian", "softmax"], 2)
