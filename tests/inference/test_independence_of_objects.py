"""Posteriors, statistics, checkpoints and seeds keep to themselves: nothing moves them from outside, unnoticed."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.features import ORFF, Nystrom
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import DecomposableKernel, DivergenceFreeKernel, IndependentKernel


def table(n=25, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    X = shift + torch.rand(n, 2, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 2, generator=generator, dtype=torch.float64)


def icm(base=None):
    return DecomposableKernel(base or RBFKernel(ard_num_dims=2), num_outputs=2, rank=2)


@pytest.mark.parametrize("strategy", ["kronecker", "dense", "iterative"])
def test_posterior_is_independent_of_changed_arrays(strategy):
    X, Y = (part.numpy().copy() for part in table())
    points = X[:3].copy()
    posterior = OperatorValuedGP(icm(), strategy=strategy).condition(X, Y)
    before = posterior.predict(points)
    X[:], Y[:] = 0.0, 1e3
    after = posterior.predict(points)
    assert torch.equal(before.mean, after.mean) and torch.equal(before.std, after.std)


def test_posterior_is_independent_of_later_training():
    X, Y = table()
    gp = OperatorValuedGP(icm())
    posterior = gp.condition(X, Y)
    before = posterior.predict(X[:3]).mean
    gp.fit(X, Y)
    assert torch.equal(posterior.predict(X[:3]).mean, before)


def test_statistics_reject_changed_mean_without_basis():
    X, Y = table()
    gp = OperatorValuedGP(
        kernel := icm(), mean=gpytorch.means.ConstantMean(), features=ORFF(kernel, 20, random_state=0)
    )
    statistics = gp.statistics(X, Y)
    gp.condition(statistics)
    with torch.no_grad():
        gp.mean.mean.constant.fill_(3.0)
    with pytest.raises(InputError, match="Compute them again"):
        gp.condition(statistics)


def test_statistics_reject_changed_nystrom_kernel_far_from_origin():
    X, Y = table(shift=1000.0)
    gp = OperatorValuedGP(kernel := icm(), features=Nystrom(kernel, X[:8]))
    statistics = gp.statistics(X, Y)
    gp.kernel.base_kernel.lengthscale = 0.1
    with pytest.raises(InputError, match="Compute them again"):
        gp.log_evidence(statistics)


def test_statistics_allow_changed_noise_mean_and_output_matrix():
    X, Y = table()
    gp = OperatorValuedGP(kernel := icm(), features=ORFF(kernel, 20, random_state=0))
    statistics = gp.statistics(X, Y)
    with torch.no_grad():
        gp.mean.constant.copy_(torch.tensor([1.0, -2.0]))
        gp.kernel.output_module.loadings.mul_(0.3)
        gp.noise_model.set([0.5, 0.7])
    assert gp.log_evidence(statistics).item() == pytest.approx(gp.log_evidence(X, Y).item(), rel=1e-9)
    gradients = []
    for arguments in ((statistics,), (X, Y)):
        gp.zero_grad()
        gp.log_evidence(*arguments).backward()
        gradients.append([gp.mean.constant.grad, gp.noise_model.log_scale.grad, gp.kernel.output_module.loadings.grad])
    for streamed, direct in zip(*gradients, strict=True):
        torch.testing.assert_close(streamed, direct, rtol=1e-8, atol=1e-9)


def test_statistics_of_field_have_no_partial_gradient():
    """The factors of a field depend on its lengthscale, as the scalar features do: a partial derivative would be wrong."""
    X, Y = table()
    kernel = ScaleKernel(DivergenceFreeKernel(RBFKernel(ard_num_dims=2)))
    gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
    gp.log_evidence(gp.statistics(X, Y)).backward()
    assert gp.kernel.base_kernel.base_kernel.raw_lengthscale.grad is None
    assert gp.noise_model.log_scale.grad is not None


def test_statistics_need_feature_map_and_no_data():
    X, Y = table()
    gp = OperatorValuedGP(kernel := icm(), features=ORFF(kernel, 20, random_state=0))
    statistics = gp.statistics(X, Y)
    with pytest.raises(OptionError, match="feature map"):
        OperatorValuedGP(icm()).condition(statistics)
    with pytest.raises(InputError, match="Y and noise must be None"):
        gp.condition(statistics, Y)


def test_neighboring_seeds_are_independent():
    """Far from the data a draw is its prior: no output of one seed may be an output of another."""
    X, Y = table()
    gp = OperatorValuedGP(IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(2)]))
    posterior = gp.condition(X, Y)
    far = 1e3 + 50 * torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    functions = [posterior.sample_functions(1, random_state=seed)(far)[0, :, a] for seed in range(4) for a in range(2)]
    correlations = np.corrcoef(torch.stack(functions).numpy()) - np.eye(8)
    assert np.abs(correlations).max() < 0.7  # 28 pairs of 40 nearly independent values


@pytest.mark.parametrize("features", [False, True])
def test_noise_path_equals_evidence_at_each_noise(features):
    X, Y = table()
    kernel = icm()
    gp = OperatorValuedGP(
        kernel, mean="zero", noise=[0.2, 0.3], features=ORFF(kernel, 20, random_state=0) if features else None
    )
    multipliers = [0.1, 1.0, 7.0]
    path = gp.condition(X, Y).noise_path(torch.tensor(multipliers, dtype=torch.float64))
    for c, value in zip(multipliers, path, strict=True):
        gp.noise_model.set([0.2 * c, 0.3 * c])
        assert value.item() == pytest.approx(gp.log_evidence(X, Y).item(), rel=1e-9)


def test_path_weights_equal_weights_at_each_noise():
    X, Y = table()
    gp = OperatorValuedGP(kernel := icm(), mean="zero", noise=0.2, features=ORFF(kernel, 20, random_state=0))
    weights = gp.condition(X, Y).path_weights(3.0)
    gp.noise_model.set(0.6)
    torch.testing.assert_close(weights, gp.condition(X, Y).weights, rtol=1e-8, atol=1e-10)


def test_checkpoint_of_another_kernel_is_rejected(tmp_path):
    X, Y = table()
    path = tmp_path / "progress"
    OperatorValuedGP(icm(MaternKernel(nu=0.5, ard_num_dims=2))).fit(X, Y, checkpoint=path)
    with pytest.raises(InputError):
        OperatorValuedGP(icm(MaternKernel(nu=2.5, ard_num_dims=2))).fit(X, Y, checkpoint=path)


def test_failed_factorization_reports_hyperparameters():
    X, Y = table()
    gp = OperatorValuedGP(icm(), strategy="dense")
    gp.kernel.base_kernel.raw_lengthscale.data.fill_(torch.nan)
    with pytest.raises(FactorizationError, match="lengthscale = "):
        gp.condition(X, Y)
