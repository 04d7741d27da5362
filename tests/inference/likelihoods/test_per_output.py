"""Tests of `ovkgp.inference.likelihoods.per_output`."""

import pickle

import pytest
import torch
from likelihood_cases import normal

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import Bernoulli, Gaussian, PerOutput, Poisson, Softmax, StudentT


def mixed():
    return PerOutput([Gaussian(1), StudentT(1), Bernoulli(1), Poisson(1)])


def data(n=5):
    Y = torch.stack([normal(n), normal(n, seed=1), torch.arange(n) % 2, torch.arange(n)], -1)
    Y[2, 1] = Y[3, 3] = torch.nan
    return Y, normal(n, 4, seed=2), normal(n, 4, seed=3).square()


def test_per_output_columns_equal_those_of_their_members():
    likelihood, (Y, mean, variance) = mixed(), data()
    found = likelihood.terms(Y, mean, variance)
    for j, member in enumerate(likelihood.likelihoods):
        own = [part[:, [j]] for part in (Y, mean, variance)]
        for whole, wanted in zip(found, member.terms(*own), strict=True):
            torch.testing.assert_close(whole[:, [j]], wanted)
        torch.testing.assert_close(likelihood.expected(Y, mean, variance)[:, [j]], member.expected(*own))
        torch.testing.assert_close(likelihood.log_density(Y, mean)[:, [j]], member.log_density(*own[:2]))
        for whole, wanted in zip(likelihood.moments(mean, variance), member.moments(*own[1:]), strict=True):
            torch.testing.assert_close(whole[:, [j]], wanted)
        torch.testing.assert_close(likelihood.quantile(0.8, mean, variance)[:, [j]], member.quantile(0.8, *own[1:]))
        threshold = torch.full_like(mean, 0.6)
        torch.testing.assert_close(
            likelihood.cdf(threshold, mean, variance)[:, [j]], member.cdf(threshold[:, [j]], *own[1:])
        )


def test_per_output_draws_and_initial_values_are_per_column():
    likelihood, (Y, mean, _) = mixed(), data()
    y = likelihood.draw(mean.expand(6, 5, 4), torch.Generator().manual_seed(0))
    assert y.shape == (6, 5, 4)
    likelihood.check(y[0])
    likelihood.start(Y)
    assert likelihood.initial_latent(Y).shape == (4,)
    assert likelihood.is_real.tolist() == [True, True, False, False]
    assert set(likelihood.variables()) == {"noise_0", "scale_1", "df_1"}
    assert all(value.shape == () for value in likelihood.variables().values())
    copy = pickle.loads(pickle.dumps(likelihood))
    torch.testing.assert_close(copy.variables(), likelihood.variables())


def test_per_output_check_reports_the_column_in_Y():
    likelihood, (Y, *_) = mixed(), data()
    Y[1, 3] = -2.0
    with pytest.raises(InputError, match=r"Y\[1, 3\] = -2"):
        likelihood.check(Y)


def test_per_output_accepts_known_noise_only_with_gaussians():
    Y, mean, variance = (part[:, :2] for part in data())
    gaussians, noise = PerOutput([Gaussian(1), Gaussian(1)]), torch.full_like(mean, 0.7)
    torch.testing.assert_close(
        gaussians.expected(Y, mean, variance, noise), Gaussian(2).expected(Y, mean, variance, noise)
    )
    with pytest.raises(InputError, match="noise"):
        PerOutput([Gaussian(1), StudentT(1)]).expected(Y, mean, variance, noise)


def test_per_output_rejects_members_with_several_outputs():
    with pytest.raises(OptionError, match=r"likelihoods\[1\]"):
        PerOutput([Gaussian(1), StudentT(2)])
    with pytest.raises(OptionError, match="coupled"):
        PerOutput([Softmax(2)])
    with pytest.raises(InputError, match="shape"):
        mixed().expected(data()[0], torch.zeros(5, 4), torch.ones(5, 4, 4))
