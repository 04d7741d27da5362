"""Long checks of the samplers: against GPyTorch with Pyro, and simulation-based calibration."""

import gpytorch
import numpy as np
import pyro
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from pyro.infer import MCMC, NUTS
from scipy.stats import chisquare

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling.diagnostics import effective_size
from ovkgp.inference.sampling.laplace import sample_laplace
from ovkgp.inference.sampling.nuts import sample_nuts
from ovkgp.inference.sampling.prior_predictive import draw_prior, set_parameters
from ovkgp.inference.sampling.svi import sample_svi
from ovkgp.inference.training.log_posterior import LogPosterior
from ovkgp.inference.training.priors import get_variances, set_variances

NAMES = ("lengthscale", "outputscale", "noise")
PRIORS = {"lengthscale": (0.0, 0.5), "outputscale": (0.0, 0.7), "noise": (-2.0, 0.7)}
"""Location and scale of the logarithm of each."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")]


def prior(name):
    return LogNormalPrior(*(torch.tensor(number, dtype=torch.float64) for number in PRIORS[name]))


def ours():
    base = RBFKernel(lengthscale_prior=prior("lengthscale"), lengthscale_constraint=Positive())
    kernel = ScaleKernel(base, outputscale_prior=prior("outputscale"), outputscale_constraint=Positive())
    gp = OperatorValuedGP(kernel, mean="zero", noise="shared")
    gp.noise_model.register_prior("noise_prior", prior("noise"), get_variances, set_variances)
    return gp


class Theirs(gpytorch.models.ExactGP):
    def __init__(self, x, y):
        likelihood = GaussianLikelihood(noise_prior=prior("noise"), noise_constraint=Positive())
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        base = RBFKernel(lengthscale_prior=prior("lengthscale"), lengthscale_constraint=Positive())
        self.covar_module = ScaleKernel(base, outputscale_prior=prior("outputscale"), outputscale_constraint=Positive())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


SITES = {
    "lengthscale": "covar_module.base_kernel.lengthscale_prior",
    "outputscale": "covar_module.outputscale_prior",
    "noise": "likelihood.noise_covar.noise_prior",
}


def test_posterior_means_match_gpytorch_with_pyro(record_property):
    x = torch.linspace(0, 5, 12, dtype=torch.float64)
    y = x.sin() + 0.3 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Theirs(x, y).double()

    def sample_from_prior(x, y):
        with gpytorch.settings.fast_computations(False, False, False):
            drawn = model.pyro_sample_from_prior()
            pyro.sample("y", drawn.likelihood(drawn(x)), obs=y)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        chain = MCMC(NUTS(sample_from_prior), num_samples=500, warmup_steps=200, disable_progbar=True)
        chain.run(x, y)
    theirs = {name: chain.get_samples()[site].reshape(1, -1).numpy() for name, site in SITES.items()}
    density = LogPosterior(ours(), x, y.unsqueeze(-1), priors="given")
    sampled = sample_nuts(density, 500, 200, 4, [1, 2, 3, 4])
    rows = [density.variables(u) for u in sampled.flat]
    for name in NAMES:
        mine = np.log([np.squeeze(row[name]) for row in rows]).reshape(4, 500)
        other = np.log(theirs[name])
        error = np.hypot(*(v.std() / np.sqrt(effective_size(v)) for v in (mine, other)))
        record_property(f"{name}, in standard errors", float((mine.mean() - other.mean()) / error))
        assert abs(mine.mean() - other.mean()) < 3 * error
        assert mine.std() == pytest.approx(other.std(), rel=0.25)


# --- simulation-based calibration -----------------------------------------------------------------------------------

LEVELS, BINS = 15, 8
"""Draws that each true value is ranked among, and bins for the 16 possible ranks."""


def data_sets(count):
    """Hyperparameters from their priors, and data given them, (θ, X, Y) one by one."""
    gp = ours()
    X = torch.linspace(0, 5, 15, dtype=torch.float64).unsqueeze(-1)
    drawn = draw_prior(gp, count, random_state=11)
    generator = torch.Generator().manual_seed(12)
    for index in range(count):
        set_parameters(gp, drawn, index)
        with torch.no_grad():
            covariance = gp.kernel(X).to_dense() + gp.noise * torch.eye(len(X), dtype=torch.float64)
            Y = torch.linalg.cholesky(covariance) @ torch.randn(len(X), 1, generator=generator, dtype=torch.float64)
        true = {
            "lengthscale": gp.kernel.base_kernel.lengthscale,
            "outputscale": gp.kernel.outputscale,
            "noise": gp.noise,
        }
        yield {name: value.item() for name, value in true.items()}, X, Y


def ranks(sample, count):
    """The rank (count, 3) of each true value among `LEVELS` draws from its posterior."""
    found = []
    for index, (true, X, Y) in enumerate(data_sets(count)):
        density = LogPosterior(ours(), X, Y, priors="given")
        rows = [density.variables(u) for u in sample(density, 1000 + index)]
        assert len(rows) == LEVELS
        found.append([sum(np.squeeze(row[name]) < true[name] for row in rows) for name in NAMES])
    return np.array(found)


def uniformity(found):
    """Return the p-value of each hyperparameter's ranks under a uniform distribution."""
    counts = [np.bincount(column * BINS // (LEVELS + 1), minlength=BINS) for column in found.T]
    return {name: chisquare(count).pvalue for name, count in zip(NAMES, counts, strict=True)}


def by_nuts(density, seed):
    """Every seventh draw, which are about independent: transitions of NUTS are nearly so for three hyperparameters."""
    return sample_nuts(density, 7 * LEVELS, 100, 1, [seed]).flat[6::7]


def test_nuts_is_calibrated(record_property):
    p_values = uniformity(ranks(by_nuts, 200))
    for name, value in p_values.items():
        record_property(f"p-value of {name}", float(value))
    assert min(p_values.values()) > 0.01


@pytest.mark.parametrize("method, count", [("laplace", 200), ("svi", 100)])
def test_miscalibration_of_approximations_is_reported(method, count, record_property, capsys):
    def sample(density, seed):
        if method == "laplace":
            return sample_laplace(density, LEVELS, seed).flat
        return sample_svi(density, LEVELS, "multivariate", seed).flat

    found = ranks(sample, count)
    p_values = uniformity(found)
    for name, value in p_values.items():
        record_property(f"p-value of {name}", float(value))
    with capsys.disabled():
        print(f"\n{method}: p-values of uniform ranks { ({name: round(float(v), 4) for name, v in p_values.items()}) }")
    # a departure is reported, not a failure; but the ranks must be those of draws that follow the truth
    assert all(0 < column.mean() < LEVELS for column in found.T)
