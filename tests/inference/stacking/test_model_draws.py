"""Tests of `ovkgp.inference.stacking.model_draws`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import ScaleKernel
from scipy.stats import multivariate_normal

from ovkgp.exceptions import FactorizationError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.stacking import model_draws, output_draws
from ovkgp.inference.stacking.model_draws import NUM_DRAWS, average_over_draws
from ovkgp.inference.training.initialization import raw_state, register_default_priors, register_noise_prior
from ovkgp.inference.training.priors import LogPrior
from ovkgp.kernels import DecomposableKernel, HelmholtzKernel, IndependentKernel
from ovkgp.kernels.records import make_scalar_kernel


def data(n=18, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    Y = np.sin(X @ rng.standard_normal((2, 2))) + 0.3 * rng.standard_normal((n, 2))
    Y = (Y - Y.mean(0)) / Y.std(0)
    Y[rng.random(Y.shape) < missing] = np.nan
    return Observations(torch.from_numpy(X), torch.from_numpy(Y)).observed_rows()


def kernel(name):
    bases = [make_scalar_kernel("matern52", 2) for _ in range(2)]
    if name == "independent":
        return IndependentKernel([ScaleKernel(make_scalar_kernel("matern52", 2)) for _ in range(2)])
    if name == "helmholtz":
        return HelmholtzKernel(make_scalar_kernel("matern52"), num_dims=2)
    terms = [DecomposableKernel(base, 2, 1) for base in bases]
    return terms[0] if name == "decomposable" else terms[0] + terms[1]


def trained(name, observed, noise="per_output"):
    gp = OperatorValuedGP(kernel(name), noise=noise)
    register_default_priors(gp.kernel, 2)
    register_noise_prior(gp.noise_model)
    return gp.fit(observed.X, observed.Y)


def dense(gp, observed, Z=None):
    """Return log p(Y) and, at Z (m, 2), means and variances (m, 2) of the latent functions by dense algebra."""
    with torch.no_grad():
        X, mask = observed.X, observed.observed.numpy().ravel()
        K = gp.kernel(X).to_dense().numpy() + np.kron(np.eye(len(X)), gp.noise_model.matrix().numpy())
        mean = gp.mean(X).numpy().ravel()[mask]
        y, K = observed.Y.numpy().ravel()[mask], K[np.ix_(mask, mask)]
        log_evidence = multivariate_normal.logpdf(y, mean, K)
        if Z is None:
            return log_evidence
        cross = gp.kernel(Z, X).to_dense().numpy()[:, mask]
        means = gp.mean(Z).numpy().ravel() + cross @ np.linalg.solve(K, y - mean)
        variances = gp.kernel(Z).to_dense().numpy().diagonal() - (cross * np.linalg.solve(K, cross.T).T).sum(1)
        return log_evidence, means.reshape(-1, 2), variances.reshape(-1, 2)


def capture(monkeypatch):
    """Record the arguments and results of `importance_weights`."""
    found = []

    def record(*args):
        found.append((*args, output_draws.importance_weights(*args)))
        return found[-1][-1]

    monkeypatch.setattr(model_draws, "importance_weights", record)
    return found


@pytest.mark.parametrize(
    ("name", "noise", "missing"),
    [
        ("decomposable", "per_output", 0.0),
        ("decomposable", "full", 0.3),
        ("sum", "full", 0.0),
        ("helmholtz", "shared", 0.0),
    ],
)
def test_joint_draws_are_the_weighted_mixture_of_dense_algebra(name, noise, missing, monkeypatch):
    observed = data(missing=missing)
    gp, found = trained(name, observed, noise), capture(monkeypatch)
    before = raw_state(gp)
    mixture = average_over_draws(gp, observed)
    ((values, scores, at_mode, weights),) = found
    assert len(mixture) == NUM_DRAWS
    Z = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, density = [], LogPrior(gp, False)
    for index, value in enumerate(values):
        load(gp, before | {key: raw[index] for key, raw in mixture.parts.raw.items()})
        expected.append(dense(gp, observed, Z))
        assert value == pytest.approx(expected[-1][0] + float(density().detach()), rel=1e-9)
    load(gp, before)
    assert at_mode == pytest.approx(dense(gp, observed) + float(density().detach()), rel=1e-9)
    assert at_mode > values.max() - 0.1  # the evaluations are around a maximum
    # the weights are π / q, truncated at S^(−½) of their sum
    ratios = np.exp(values - at_mode + 0.5 * (scores**2).sum(1))
    truncated = np.minimum(ratios / ratios.sum(), NUM_DRAWS**-0.5)
    np.testing.assert_allclose(mixture.weights, truncated / truncated.sum(), rtol=1e-9)
    _, means, variances = (np.stack(part) for part in zip(*expected, strict=True))
    weights = mixture.weights[:, None, None]
    mean = (weights * means).sum(0)
    prediction = mixture.predict(Z)
    np.testing.assert_allclose(prediction.mean, mean, atol=1e-8)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    np.testing.assert_allclose(prediction.std**2, variance, atol=1e-8)
    # what is not drawn is at the mode
    drawn = set(mixture.parts.raw)
    assert not any("loadings" in key or "diagonal" in key or "lower" in key for key in drawn)
    assert {key.rpartition(".")[2] for key in drawn} >= {"raw_lengthscale", "log_scale", "constant"}
    for key, value in raw_state(gp).items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def load(gp, state):
    with torch.no_grad():
        for key, parameter in gp.named_parameters():
            parameter.copy_(state[key])


def test_independent_outputs_have_separate_draws_resampled_by_their_weights(monkeypatch):
    observed = data(missing=0.2)
    gp, found = trained("independent", observed), capture(monkeypatch)
    before = raw_state(gp)
    mixture = average_over_draws(gp, observed)
    assert mixture.weights is None
    assert len(found) == 2
    assert len(mixture) == NUM_DRAWS
    Z = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = []
    for index in range(NUM_DRAWS):
        load(gp, before | {key: raw[index] for key, raw in mixture.parts.raw.items()})
        rows.append(dense(gp, observed, Z)[1])
    np.testing.assert_allclose(mixture.predict(Z).mean, np.mean(rows, 0), atol=1e-8)
    for values, scores, at_mode, weights in found:
        ratios = np.exp(values - at_mode + 0.5 * (scores**2).sum(1))
        truncated = np.minimum(ratios / ratios.sum(), len(values) ** -0.5)
        np.testing.assert_allclose(weights, truncated / truncated.sum(), rtol=1e-9)
    # the outputs have different draws in different orders
    lengths = [mixture.parts.raw[f"kernel.kernels.{a}.base_kernel.raw_lengthscale"] for a in range(2)]
    assert abs(np.corrcoef(*(one[:, 0, 0] for one in lengths))[0, 1]) < 0.95


def test_resampled_draws_have_their_weights_on_average():
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    index = model_draws.resample(weights, 1000, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(index) / 1000, weights, atol=2e-3)


@pytest.mark.parametrize("name", ["decomposable", "independent"])
def test_draws_that_are_bad_or_unaffordable_are_not_used(name, monkeypatch):
    observed = data()
    gp = trained(name, observed)
    for limit, value in {"MAX_FACTOR_BYTES": 1e3, "MAX_LAPLACE_SIZE": 20}.items():
        with monkeypatch.context() as context:
            context.setattr(model_draws, limit, value)
            assert average_over_draws(gp, observed) is None
    monkeypatch.setattr(output_draws, "MAX_DROP_FACTOR", -1e9)
    assert average_over_draws(gp, observed) is None


def test_a_draw_that_cannot_be_factorized_is_dropped(monkeypatch):
    observed = data()
    gp, condition, calls = trained("decomposable", observed), model_draws.select_strategy, []

    def fail_once(*args):
        calls.append(args)
        if len(calls) == 3:
            raise FactorizationError("not positive definite")
        return condition(*args)

    monkeypatch.setattr(model_draws, "select_strategy", fail_once)
    mixture = average_over_draws(gp, observed)
    assert isinstance(mixture, MixturePosterior)
    assert len(mixture) == len(mixture.weights) == NUM_DRAWS - 1
    assert mixture.weights.sum() == pytest.approx(1)


def test_mixture_equals_conditioning_on_its_draws():
    observed = data()
    for name in ("decomposable", "independent"):
        mixture = average_over_draws(trained(name, observed), observed)
        for index in (0, NUM_DRAWS - 1):
            again, kept = mixture.parts.condition_at(index), mixture.parts[index]
            torch.testing.assert_close(again.predict(observed.X).mean, kept.predict(observed.X).mean, rtol=0, atol=0)
