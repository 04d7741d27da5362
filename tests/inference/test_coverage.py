"""Coverage of intervals at the true hyperparameters, over data drawn from the prior of each strategy.

200 data sets with 50 test points each; entries of one data set are dependent, so that the standard error of a coverage is
taken between data sets. Every coverage must lie within three of them of its level.
"""

import numpy as np
import pytest
import torch
from gp_cases import normal
from gpytorch.kernels import MaternKernel
from linear_operator import to_dense

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

N, M, SETS, MEAN = 12, 50, 200, 0.7
LEVELS = (0.5, 0.9, 0.95)


def icm():
    return DecomposableKernel(MaternKernel(nu=2.5, ard_num_dims=2), num_outputs=2, rank=1).double()


def field():
    return CurlFreeKernel(MaternKernel(nu=2.5, ard_num_dims=2)).double()


STRATEGIES = {
    "kronecker": dict(kernel=icm, missing=0.0),
    "dense": dict(kernel=field, missing=0.3),
    "features": dict(kernel=icm, missing=0.0, num_frequencies=20),
    "features, missing": dict(kernel=field, missing=0.3, num_frequencies=20),
}


def model(kernel, num_frequencies=None):
    features = None if num_frequencies is None else ORFF(kernel, num_frequencies, random_state=0)
    sigma = torch.tensor([[0.2, 0.05], [0.05, 0.1]], dtype=torch.float64)
    gp = OperatorValuedGP(kernel, "constant", sigma, features=features)
    gp.mean.constant.data.fill_(MEAN)
    return gp


def prior_draws(gp, X, generator):
    """SETS draws (SETS, n, p) of the latent function from the prior of the model itself."""
    with torch.no_grad():
        if gp.features is not None:
            root = to_dense(gp.features(X))
        else:
            values, vectors = torch.linalg.eigh(to_dense(gp.kernel(X)))
            root = vectors * values.clamp_min(0).sqrt()
        scores = normal(generator, SETS, root.shape[1])
        return MEAN + (scores @ root.mT).unflatten(-1, (len(X), -1))


def coverage(strategy):
    """Fraction of entries inside, (SETS,), by level and by whether noise is added."""
    kernel, missing, *rest = STRATEGIES[strategy].values()
    gp, generator = model(kernel(), *rest), torch.Generator().manual_seed(1)
    X = 3 * torch.rand(N + M, 2, generator=generator, dtype=torch.float64)
    latent = prior_draws(gp, X, generator)
    observed = latent + normal(generator, *latent.shape) @ torch.linalg.cholesky(gp.noise).mT
    inside = {(level, noise): [] for level in LEVELS for noise in (False, True)}
    for f, y in zip(latent, observed, strict=True):
        mask = y[:N].clone()
        mask[torch.rand(mask.shape, generator=generator) < missing] = torch.nan
        posterior = gp.condition(X[:N], mask)
        for noise, truth in ((False, f[N:]), (True, y[N:])):
            prediction = posterior.predict(X[N:], noise=noise)
            for level in LEVELS:
                lower, upper = prediction.interval(level)
                inside[level, noise].append(((lower < truth) & (truth < upper)).double().mean().item())
    taken = select_strategy(gp.model, validate_observations(X[:N], mask, 2)).name
    return taken, {key: np.array(value) for key, value in inside.items()}


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=[pytest.mark.slow] if "features" in name else []) for name in STRATEGIES],
)
def test_intervals_have_nominal_coverage(strategy):
    taken, fractions = coverage(strategy)
    assert taken == strategy.split(",")[0]
    for (level, noise), found in fractions.items():
        error = found.std(ddof=1) / np.sqrt(SETS)
        assert error < 0.02, (level, noise)  # otherwise the next check is too weak
        assert abs(found.mean() - level) < 3 * error, (level, noise)
