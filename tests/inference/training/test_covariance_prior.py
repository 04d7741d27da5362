"""Log-normal variances and LKJ correlations: densities, their Jacobian, and draws."""

import math
import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import stats

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior, set_chol
from ovkgp.inference.training.priors import LogPrior
from ovkgp.kernels import FreeMatrix, FullMatrix

SIZES = pytest.mark.parametrize("p", [1, 2, 3, 5])


def random_raw(p, seed=0):
    """log L_ii and what is below the diagonal, as one vector."""
    return torch.randn(p * (p + 1) // 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chol_of(raw, p):
    rows, columns = torch.tril_indices(p, p, -1)
    chol = torch.diag_embed(raw[:p].exp())
    chol[rows, columns] = raw[p:]
    return chol


def variances_and_correlations(raw, p):
    chol = chol_of(raw, p)
    covariance = chol @ chol.mT
    variances = covariance.diagonal()
    rows, columns = torch.tril_indices(p, p, -1)
    return torch.cat([variances, (covariance / torch.outer(variances, variances).sqrt())[rows, columns]])


def some_prior(p, concentration=2.5):
    return CovariancePrior(torch.linspace(-1.0, 1.0, p, dtype=torch.float64), 0.7, concentration)


@SIZES
def test_covariance_prior_is_log_normal_times_lkj(p):
    prior, chol = some_prior(p), chol_of(random_raw(p), p)
    variances = chol.square().sum(-1)
    expected = torch.distributions.LogNormal(prior.loc, prior.scale).log_prob(variances).sum()
    if p > 1:
        correlation = chol / variances.sqrt().unsqueeze(-1)
        eta = torch.tensor(2.5, dtype=torch.float64)
        steps = torch.arange(p - 1, -1, -1)  # torch's density is one of the factor: |dR / dC| = Π C_ii^(p−1−i)
        expected += torch.distributions.LKJCholesky(p, eta).log_prob(correlation)
        expected -= (steps * correlation.diagonal().log()).sum()
    assert prior.log_prob(chol).item() == pytest.approx(expected.item(), rel=1e-12)


@SIZES
def test_covariance_prior_jacobian_matches_autograd(p):
    raw = random_raw(p, seed=1)
    jacobian = torch.autograd.functional.jacobian(lambda u: variances_and_correlations(u, p), raw)
    expected = torch.linalg.slogdet(jacobian).logabsdet.item()
    prior, chol = some_prior(p), chol_of(raw, p)
    assert prior.log_jacobian(chol).item() == pytest.approx(expected, rel=1e-11)
    both = prior.log_prob(chol) + prior.log_jacobian(chol)
    assert prior.raw_log_prob(chol).item() == pytest.approx(both.item(), rel=1e-12)


@pytest.mark.parametrize("concentration", [1.0, 2.0])
def test_covariance_prior_raw_density_integrates_to_one(concentration):
    prior = CovariancePrior(torch.tensor([0.2, -0.1]), 0.5, concentration)
    axes = [
        torch.linspace(*ends, dtype=torch.float64) for ends in ((-1.5, 1.7, 41), (-9.0, 1.5, 150), (-4.0, 4.0, 201))
    ]
    first, second, below = torch.meshgrid(*axes, indexing="ij")
    top = torch.stack([first.exp(), torch.zeros_like(first)], -1)
    chol = torch.stack([top, torch.stack([below, second.exp()], -1)], -2)
    density = prior.raw_log_prob(chol).exp().numpy()
    for axis in reversed(axes):
        density = np.trapezoid(density, axis.numpy())
    assert density == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("p", [2, 4])
def test_covariance_prior_draws_have_known_marginals(p):
    prior = some_prior(p)
    chol = prior.draw((4000, p, p), np.random.default_rng(0))
    variances = chol.square().sum(-1)
    for a in range(p):
        distribution = stats.lognorm(s=0.7, scale=math.exp(prior.loc[a].item()))
        assert stats.kstest(variances[:, a].numpy(), distribution.cdf).pvalue > 0.01
    correlations = (chol @ chol.mT) / (variances.unsqueeze(-1) * variances.unsqueeze(-2)).sqrt()
    shape = 2.5 - 1 + p / 2  # of every correlation, wherever it stands
    for a in range(p):
        for b in range(a):
            distribution = stats.beta(shape, shape)
            assert stats.kstest((correlations[:, a, b].numpy() + 1) / 2, distribution.cdf).pvalue > 0.01


def test_covariance_prior_draws_match_raw_density():
    """E[∇ log q(u)] = 0 under q: the means of the scores are within 4 standard errors of zero."""
    p, prior = 3, some_prior(3)
    chol = prior.draw((4000, p, p), np.random.default_rng(1))
    rows, columns = torch.tril_indices(p, p, -1)
    raw = torch.cat([chol.diagonal(dim1=-2, dim2=-1).log(), chol[:, rows, columns]], -1).requires_grad_()
    factor = torch.diag_embed(raw[:, :p].exp()).index_put((torch.arange(4000)[:, None], rows, columns), raw[:, p:])
    (scores,) = torch.autograd.grad(prior.raw_log_prob(factor).sum(), raw)
    errors = scores.mean(0) / (scores.std(0) / math.sqrt(4000))
    assert errors.abs().max() < 4


@pytest.mark.parametrize("make", [lambda: FullMatrix(3).double(), lambda: OutputNoise("full", 3)])
def test_set_chol_writes_factor(make):
    module, chol = make(), chol_of(random_raw(3), 3)
    set_chol(module, chol)
    torch.testing.assert_close(module.chol.detach(), chol, rtol=1e-14, atol=1e-15)


def test_covariance_prior_broadcasts_over_batches():
    matrix = FullMatrix(2, batch_shape=torch.Size([4])).double()
    register_covariance_prior(matrix, CovariancePrior(0.0, 1.0))
    one = CovariancePrior(0.0, 1.0).raw_log_prob(torch.eye(2, dtype=torch.float64))
    assert LogPrior(matrix, jacobian=True)().item() == pytest.approx(4 * one.item(), rel=1e-12)
    assert CovariancePrior(0.0, 1.0).draw((5, 4, 2, 2), np.random.default_rng(0)).shape == (5, 4, 2, 2)


@pytest.mark.parametrize("copy", [deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_covariance_prior_survives_copy_and_pickle(copy):
    matrix = FullMatrix(3).double()
    register_covariance_prior(matrix, some_prior(3))
    again = copy(matrix)
    assert LogPrior(again, jacobian=True)().item() == LogPrior(matrix, jacobian=True)().item()
    again.log_scale.data += 1.0
    assert LogPrior(again, jacobian=True)().item() != LogPrior(matrix, jacobian=True)().item()


def test_covariance_prior_rejects_low_rank_matrix():
    with pytest.raises(OptionError, match=r"such as FullMatrix\(p\).*got FreeMatrix"):
        register_covariance_prior(FreeMatrix(2), CovariancePrior(0.0, 1.0))


@pytest.mark.parametrize("options", [(0.0, -1.0), (0.0, 1.0, 0.0), (torch.tensor([0.0, math.nan]), 1.0)])
def test_covariance_prior_rejects_invalid_options(options):
    with pytest.raises(OptionError, match="must be"):
        CovariancePrior(*options)


def test_covariance_prior_rejects_several_concentrations():
    with pytest.raises(OptionError, match="scalar"):
        CovariancePrior(0.0, 1.0, [1.0, 2.0])


def test_covariance_prior_draw_rejects_other_size():
    with pytest.raises(InputError, match=r"p = 3, got \(2, 2\)"):
        some_prior(3).draw((2, 2), np.random.default_rng(0))


def test_covariance_prior_broadcasts_vector_of_one():
    one, wanted = CovariancePrior([0.5], [1.2]), CovariancePrior(0.5, 1.2)
    found = one.draw((4, 3, 3), np.random.default_rng(0))
    assert torch.equal(found, wanted.draw((4, 3, 3), np.random.default_rng(0)))
    assert torch.equal(one.log_prob(found), wanted.log_prob(found))


@pytest.mark.parametrize("parameters", [(torch.zeros(2), 1.0), (0.0, torch.ones(2))])
def test_register_covariance_prior_rejects_other_number_of_outputs(parameters):
    with pytest.raises(OptionError, match="2 variances, expected 3"):
        register_covariance_prior(FullMatrix(3), CovariancePrior(*parameters))
    with pytest.raises(InputError, match=r"p = 2, got \(3, 3\)"):
        CovariancePrior(*parameters).draw((3, 3), np.random.default_rng(0))
