"""Posteriors averaged over draws: the laws of total expectation and covariance, fair shares of draws, fields."""

import pickle

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import binomtest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.posteriors.mixture import MixturePosterior, Shares
from ovkgp.kernels import DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel

LENGTHS = (0.5, 1.0, 2.0)
POINTS = torch.tensor([[0.3], [2.5], [8.0]], dtype=torch.float64)


def data(n=12):
    X = torch.linspace(0, 5, n, dtype=torch.float64).unsqueeze(-1)
    return X, torch.cat([X.sin(), X.cos() + 2], -1)


def parts():
    """Three posteriors that differ in lengthscale and noise."""
    matrix, made = torch.tensor([[1.0, 0.4], [0.4, 2.0]], dtype=torch.float64), []
    for length in LENGTHS:
        kernel = DecomposableKernel(RBFKernel(), output_matrix=matrix)
        kernel.base_kernel.lengthscale = length
        made.append(OperatorValuedGP(kernel, mean="zero", noise=0.05 * length).condition(*data()))
    return made


@pytest.fixture(scope="module")
def mixture():
    return MixturePosterior(parts())


def close(actual, expected, rtol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("noise", [False, True])
def test_predictions_obey_the_law_of_total_covariance(mixture, noise):
    found = [part.predict(POINTS, "full", noise) for part in parts()]
    means = torch.stack([f.mean.flatten() for f in found])
    second = torch.stack([f.cov + m.outer(m) for f, m in zip(found, means, strict=True)]).mean(0)
    expected = second - means.mean(0).outer(means.mean(0))
    for form in ("none", "diag", "output", "full"):
        prediction = mixture.predict(POINTS, form, noise)
        close(prediction.mean.flatten(), means.mean(0))
        if form != "none":
            close(prediction.variance.flatten(), expected.diagonal())
    close(mixture.predict(POINTS, "full", noise).cov, expected)


def test_latent_is_the_prediction_without_noise(mixture):
    for form in ("diag", "output", "full"):
        mean, covariance = mixture.latent(POINTS, form)
        prediction = mixture.predict(POINTS, form)
        close(mean, prediction.mean)
        close(covariance, prediction.variance if form == "diag" else prediction.cov)
    assert mixture.latent(POINTS, "none")[1] is None


def test_noise_and_evidence_are_means_over_the_draws(mixture):
    made = parts()
    close(mixture.noise, torch.stack([part.noise for part in made]).mean(0))
    assert mixture.log_evidence == pytest.approx(np.mean([part.log_evidence for part in made]), rel=1e-14)
    assert mixture.log_evidence_error == 0 and len(mixture) == 3
    assert (mixture.num_outputs, mixture.num_dims) == (2, 1) and mixture.rows_at_once("diag") > 0


@pytest.mark.parametrize("noise", [False, True])
def test_joint_draws_have_the_moments_of_the_mixture(mixture, noise):
    k = 30_000
    draws = mixture.sample(POINTS, k, noise=noise, random_state=0).flatten(1)
    prediction = mixture.predict(POINTS, "full", noise)
    error = prediction.variance.flatten().sqrt() / k**0.5
    assert bool(((draws.mean(0) - prediction.mean.flatten()).abs() < 5 * error).all())
    scale = prediction.std.flatten().outer(prediction.std.flatten())
    assert bool(((draws.T.cov() - prediction.cov).abs() < 0.05 * scale).all())
    median = prediction.quantile(0.5).flatten()
    below = (draws < median).sum(0).tolist()
    assert all(binomtest(count, k, 0.5).pvalue > 1e-4 for count in below)


def test_every_component_makes_its_share():
    share = Shares(11, 3, random_state=0)
    assert sorted(np.bincount(share.owners)) == [3, 4, 4] and list(share.owners) != sorted(share.owners)
    assert sorted(np.concatenate(list(share.places.values()))) == list(range(11))
    assert len(set(share.seeds)) == 3
    few = Shares(2, 50, random_state=0)
    assert len(few.places) == 2 and len(set(few.owners)) == 2
    assert set(Shares(2, 50, random_state=1).owners) != set(few.owners)


def test_functions_are_the_same_at_every_call(mixture):
    draws = mixture.sample_functions(7, random_state=3)
    X = torch.linspace(-1, 6, 9, dtype=torch.float64).unsqueeze(-1)
    whole = draws(X)
    assert whole.shape == (7, 9, 2) and len(draws) == 7
    close(draws(X), whole, 0)
    close(draws(X[2:4]), whole[:, 2:4])
    for i in (0, 3, -1):
        close(draws[i](X), whole[i])
    close(mixture.sample_functions(7, random_state=3)(X), whole, 0)
    assert not torch.equal(mixture.sample_functions(7, random_state=4)(X), whole)


def test_each_function_is_one_of_its_component(mixture):
    share, draws = Shares(7, 3, random_state=3), mixture.sample_functions(7, random_state=3)(POINTS)
    for owner, places in share.places.items():
        own = mixture.parts[owner].sample_functions(len(places), random_state=share.seeds[owner])
        close(draws[places], own(POINTS))


def test_functions_have_the_moments_of_the_mixture(mixture):
    k = 1500
    values, prediction = mixture.sample_functions(k, random_state=0)(POINTS), mixture.predict(POINTS)
    # at 2000 waves the prior of a draw is right up to a few per cent
    assert bool(((values.mean(0) - prediction.mean).abs() < 6 * prediction.std / k**0.5).all())
    close(values.std(0) / prediction.std, torch.ones(3, 2).double(), 0.08)


class Remade:
    """Posteriors that are made anew whenever one is asked for."""

    are_kept = False

    def __init__(self):
        self.made = 0

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError
        self.made += 1
        return parts()[index]


def test_components_made_anew_give_the_same_answers(mixture):
    sequence = Remade()
    remade = MixturePosterior(sequence)
    X = POINTS
    before = sequence.made
    prediction = remade.predict(X, "output", noise=True)
    assert sequence.made == before + 3  # each once
    close(prediction.cov, mixture.predict(X, "output", noise=True).cov)
    close(remade.sample(X, 4, random_state=1), mixture.sample(X, 4, random_state=1))
    draws, kept = (m.sample_functions(4, random_state=1) for m in (remade, mixture))
    close(draws(X), kept(X))
    close(draws[2](X), kept[2](X))
    assert remade.log_evidence == mixture.log_evidence


def test_the_global_generators_are_left_alone(mixture):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    mixture.sample(POINTS, 3)
    mixture.sample_functions(3)(POINTS)
    assert torch.equal(torch.rand(1), expected)


def test_pickle(mixture):
    again = pickle.loads(pickle.dumps(mixture))
    close(again.predict(POINTS).std, mixture.predict(POINTS).std, 0)


def test_bad_questions_get_a_clear_error(mixture):
    with pytest.raises(InputError, match="at least one posterior"):
        MixturePosterior([])
    with pytest.raises(InputError, match="2 columns"):
        mixture.predict(torch.zeros(3, 2))
    with pytest.raises(OptionError, match="cov must be one of"):
        mixture.predict(POINTS, "half")
    with pytest.raises(OptionError, match="number of draws"):
        mixture.sample(POINTS, 0)


def fields(make):
    X = torch.rand(15, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Y = torch.stack([X[:, 1].sin(), X[:, 0].cos()], -1)
    made = []
    for length in LENGTHS:
        base = RBFKernel(ard_num_dims=2)
        base.lengthscale = length
        made.append(OperatorValuedGP(make(base), mean="zero", noise=0.01).condition(X, Y))
    return made, X[:4]


def test_views_of_fields_are_averaged_too():
    made, X = fields(HelmholtzKernel)
    mixture = MixturePosterior(made)
    halves = mixture.components()
    close(sum(half.predict(X).mean for half in halves.values()), mixture.predict(X).mean, 1e-9)
    found, each = mixture.potential([0.5, 0.5]).predict(X), [part.potential([0.5, 0.5]).predict(X) for part in made]
    close(found.mean, torch.stack([e.mean for e in each]).mean(0))
    with pytest.raises(OptionError, match="not itself observed"):
        mixture.potential().predict(X, noise=True)
    stream = MixturePosterior(fields(DivergenceFreeKernel)[0]).stream_function()
    assert stream.noise is None and stream.sample_functions(2, random_state=0)(X).shape == (2, 4, 1)
