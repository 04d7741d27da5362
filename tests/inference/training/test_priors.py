"""Tests of `ovkgp.inference.training.priors`: torch against full Jacobians, NumPy against torch and differences."""

import math

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    IndexKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.priors import (
    GammaPrior,
    LKJCovariancePrior,
    LogNormalPrior,
    MultivariateNormalPrior,
    NormalPrior,
    Prior,
    UniformPrior,
)
from scipy import stats

from ovkgp.exceptions import OptionError
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.training.initialization import register_default_priors, register_noise_prior
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector
from ovkgp.inference.training.priors import LogPrior, make_prior_terms, trained_sites
from ovkgp.kernels import (
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    MeanRegularizedMatrix,
)

# --- torch ----------------------------------------------------------------------------------------------------------


def slow_raw_density(module):
    """Σ log p(θ) + log |det dθ / d raw| by full Jacobians, one prior at a time."""
    total = 0.0
    for part in module.modules():
        for prior, closure, _ in getattr(part, "_priors", {}).values():
            (parameter,) = [one for one in part.parameters(recurse=False) if reads(closure, part, one)]

            def value(raw, part=part, parameter=parameter, closure=closure, prior=prior):
                name = next(name for name, one in part.named_parameters() if one is parameter)
                value = torch.func.functional_call(Closing(part, closure), {f"part.{name}": raw}).reshape(-1)
                return value if getattr(prior, "_transform", None) is None else prior._transform(value)

            raw = parameter.detach().clone()
            jacobian = torch.autograd.functional.jacobian(value, raw).reshape(raw.numel(), raw.numel())
            total += prior.log_prob(closure(part)).sum().item() + torch.linalg.slogdet(jacobian).logabsdet.item()
    return total


class Closing(torch.nn.Module):
    """A closure as a module."""

    def __init__(self, part, closure):
        super().__init__()
        self.part, self.closure = part, closure

    def forward(self):
        return self.closure(self.part)


def reads(closure, part, parameter):
    return torch.autograd.grad(closure(part).sum(), parameter, allow_unused=True)[0] is not None


def log_lengthscale(kernel):
    return kernel.lengthscale.log()


def spilled_lengthscale(kernel):
    """The second of three is added to its neighbors: equidistant numbers do not show that."""
    first, second, third = kernel.raw_lengthscale.split(1, -1)
    return torch.cat([first + second, second, third + second], -1)


class Halved(Prior, torch.distributions.Normal):
    """A distribution of half the value: a transform in GPyTorch."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        torch.distributions.Normal.__init__(self, 0.3, 2.0, validate_args=False)
        self._transform = lambda value: value / 2


def with_prior(kernel, name, prior, closure):
    kernel.register_prior(name, prior, closure)
    return kernel


ELEMENTWISE = {
    "default": lambda: RBFKernel(ard_num_dims=3),
    "bounded below": lambda: RBFKernel(lengthscale_constraint=GreaterThan(0.2)),
    "by exp": lambda: RBFKernel(lengthscale_constraint=Positive(torch.exp, torch.log)),
    "by a steeper softplus": lambda: RBFKernel(lengthscale_constraint=Positive(torch.nn.Softplus(beta=3.0), torch.log)),
    "by a steeper softplus, gamma": lambda: RBFKernel(
        lengthscale_constraint=Positive(torch.nn.Softplus(beta=3.0), torch.log), lengthscale_prior=GammaPrior(2.0, 3.0)
    ),
    "in an interval": lambda: RBFKernel(lengthscale_constraint=Interval(0.1, 5.0)),
    "bounded above": lambda: RBFKernel(lengthscale_constraint=LessThan(9.0), lengthscale_prior=NormalPrior(0.0, 3.0)),
    "gamma": lambda: ScaleKernel(RBFKernel(lengthscale_prior=GammaPrior(2.0, 3.0))),
    "log-normal of GPyTorch": lambda: RQKernel(
        lengthscale_prior=LogNormalPrior(
            torch.tensor(0.3).double(), torch.tensor(1.2).double()
        )  # not rounded to float32
    ),
    "of the logarithm": lambda: with_prior(RBFKernel(), "log_prior", NormalPrior(0.3, 2.0), log_lengthscale),
    "transformed": lambda: with_prior(RBFKernel(), "half_prior", Halved(), lambda kernel: kernel.lengthscale),
    "correlated": lambda: RBFKernel(
        ard_num_dims=2,
        lengthscale_prior=MultivariateNormalPrior(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 2.0]])),
    ),
    "loadings": lambda: DecomposableKernel(RBFKernel(), num_outputs=3, rank=2),
    "coupling": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=MeanRegularizedMatrix(3)),
    "offset": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "index": lambda: IndexKernel(num_tasks=3, rank=2),
}


def elementwise(name, seed=0):
    kernel = ELEMENTWISE[name]().double()
    if name != "index":
        register_default_priors(kernel, num_dims=2)
    else:
        kernel.register_prior("var_prior", LogNormalPrior(0.0, 1.0), "var")
    generator = torch.Generator().manual_seed(seed)
    for parameter in kernel.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return kernel


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_raw_log_prior_includes_jacobian(name):
    kernel = elementwise(name)
    assert LogPrior(kernel, jacobian=True)().item() == pytest.approx(slow_raw_density(kernel), rel=1e-10)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_raw_log_prior_is_differentiable(name):
    kernel = elementwise(name)
    density = LogPrior(kernel, jacobian=True)
    covered = [one for site in trained_sites(kernel) for one in site.parameters.values()]
    gradients = torch.autograd.grad(density(), covered)
    for parameter, gradient in zip(covered, gradients, strict=True):
        for index in range(parameter.numel()):
            ends = []
            for step in (1e-6, -2e-6):
                parameter.data.view(-1)[index] += step
                ends.append(density().item())
            parameter.data.view(-1)[index] += 1e-6
            expected = (ends[0] - ends[1]) / 2e-6
            assert gradient.reshape(-1)[index].item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_raw_log_prior_has_second_derivative():
    kernel = elementwise("default")
    (gradient,) = torch.autograd.grad(LogPrior(kernel, jacobian=True)(), kernel.raw_lengthscale, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), kernel.raw_lengthscale)
    assert torch.isfinite(second).all() and bool((second != 0).all())


def test_raw_log_prior_of_noise_is_normal_in_logarithm():
    noise = OutputNoise("per_output", num_outputs=2)
    noise.set(torch.tensor([0.2, 3.0]).double())
    register_noise_prior(noise)
    expected = stats.norm(math.log(0.1), 1.5).logpdf(2 * noise.log_scale.detach().numpy()).sum() + 2 * math.log(2)
    assert LogPrior(noise, jacobian=True)().item() == pytest.approx(expected, rel=1e-12)


def test_raw_log_prior_of_full_noise_is_proper():
    noise = OutputNoise("full", num_outputs=2)
    register_noise_prior(noise)
    chol = torch.tensor([[0.4, 0.0], [-0.3, 0.7]], dtype=torch.float64)
    noise.set(chol @ chol.mT)
    expected = CovariancePrior(math.log(0.1), 1.5).raw_log_prob(chol).item()
    assert LogPrior(noise, jacobian=True)().item() == pytest.approx(expected, rel=1e-10)
    noise.lower.data[0, 1] = 3.0  # not read: it has a standard normal density
    assert LogPrior(noise, jacobian=True)().item() == pytest.approx(expected - 4.5, rel=1e-10)


def test_raw_log_prior_of_covariance_includes_jacobian():
    matrix = FullMatrix(3).double()
    matrix.lower.data = torch.tensor([0.3, -0.2, 0.9]).double()
    prior = CovariancePrior(torch.tensor([0.0, 1.0, -1.0]), 0.8, 3.0)
    register_covariance_prior(matrix, prior)
    expected = prior.log_prob(matrix.chol) + prior.log_jacobian(matrix.chol)
    assert LogPrior(matrix, jacobian=True)().item() == pytest.approx(expected.item(), rel=1e-12)
    assert LogPrior(matrix)().item() == pytest.approx(prior.log_prob(matrix.chol).item(), rel=1e-12)


def test_raw_log_prior_counts_shared_module_once():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    both = torch.nn.ModuleDict({"a": kernel, "b": DecomposableKernel(kernel, output_matrix=torch.eye(2))})
    assert LogPrior(both, jacobian=True)().item() == LogPrior(kernel, jacobian=True)().item()


def test_raw_log_prior_skips_fixed_parameters():
    kernel = ScaleKernel(RBFKernel()).double()
    register_default_priors(kernel, num_dims=1)
    alone = LogPrior(kernel.base_kernel, jacobian=True)().item()
    kernel.raw_outputscale.requires_grad_(False)
    assert LogPrior(kernel, jacobian=True)().item() == alone


def test_raw_log_prior_follows_parameters():
    kernel = elementwise("gamma")
    density = LogPrior(kernel, jacobian=True)
    before = density().item()
    kernel.outputscale = 7.0
    assert density().item() == pytest.approx(LogPrior(kernel, jacobian=True)().item(), rel=1e-14) != before


def test_raw_log_prior_works_without_gradients():
    kernel = elementwise("of the logarithm")
    expected = slow_raw_density(kernel)
    with torch.no_grad():
        assert LogPrior(kernel, jacobian=True)().item() == pytest.approx(expected, rel=1e-10)


def test_raw_log_prior_detects_transformed_values():
    kernel = with_prior(RBFKernel().double(), "square_prior", LogNormalPrior(0.0, 1.0), lambda k: k.lengthscale**2)
    kernel.lengthscale = 1.0
    assert LogPrior(kernel, jacobian=True)().item() == pytest.approx(slow_raw_density(kernel), rel=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FreeMatrix(2, prior=NormalPrior(0.0, 1.0)),
        lambda: FullMatrix(2, prior=LKJCovariancePrior(2, 2.0, GammaPrior(2.0, 2.0))),
        lambda: with_prior(
            RBFKernel(ard_num_dims=2), "mean_prior", NormalPrior(0.0, 1.0), lambda k: k.lengthscale.mean()
        ),
        lambda: with_prior(
            RBFKernel(ard_num_dims=2), "sums_prior", NormalPrior(0.0, 1.0), lambda k: k.lengthscale.cumsum(-1)
        ),
        lambda: with_prior(RBFKernel(ard_num_dims=3), "spilled_prior", NormalPrior(0.0, 1.0), spilled_lengthscale),
        lambda: with_prior(FullMatrix(2), "own_prior", CovariancePrior(0.0, 1.0), lambda matrix: 2 * matrix.chol),
    ],
    ids=["free matrix", "full matrix", "a mean", "running sums", "spilled", "another factor"],
)
def test_raw_log_prior_rejects_priors_that_are_not_one_to_one(make):
    with pytest.raises(OptionError, match=r"not one-to-one.*register_covariance_prior"):
        LogPrior(make().double(), jacobian=True)()


def test_raw_log_prior_rejects_two_priors_on_one_parameter():
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2.0, 2.0)).double()
    kernel.register_prior("second_prior", NormalPrior(0.0, 1.0), "lengthscale")
    with pytest.raises(OptionError, match=r"raw_lengthscale has two priors.*second_prior"):
        LogPrior(kernel, jacobian=True)()


# --- NumPy ----------------------------------------------------------------------------------------------------------


def exact(*numbers):
    return [torch.tensor(number, dtype=torch.float64) for number in numbers]


def lengths():
    return RBFKernel(lengthscale_prior=LogNormalPrior(*exact(0.3, 0.8)), ard_num_dims=3)


def loadings():
    matrix = FreeMatrix(3, 2)
    matrix.register_prior("loadings_prior", NormalPrior(*exact(0.2, 1.5)), "loadings")
    return matrix


def noise():
    module = OutputNoise("per_output", 3)
    register_noise_prior(module)
    return module


def covariance(module):
    loc = torch.tensor([0.1, -0.4, 0.9], dtype=torch.float64)
    register_covariance_prior(module, CovariancePrior(loc, 0.7, 1.7))
    return module


def uniform():
    inside = {"lengthscale_constraint": Interval(0.5, 2.0), "lengthscale_prior": UniformPrior(*exact(0.25, 4.0))}
    return RBFKernel(**inside)


MODULES = {
    "log-normal": lengths,
    "normal": loadings,
    "variances": noise,
    "matrix": lambda: covariance(FullMatrix(3)),
    "full noise": lambda: covariance(OutputNoise("full", 3)),
    "uniform": uniform,
    "none": RBFKernel,
    "two": lambda: ScaleKernel(lengths(), outputscale_prior=NormalPrior(*exact(1.0, 2.0))),
}


@pytest.mark.parametrize("name", MODULES)
def test_numpy_prior_terms_match_torch(name):
    module = MODULES[name]().double()
    vector = ParameterVector(module)
    values, u = NumpyVector(vector), np.linspace(-0.8, 0.7, len(vector))
    if name == "full noise":  # its upper triangle is not read
        u[3:] = np.tril(u[3:].reshape(3, 3), -1).ravel()
    vector.set(u)
    terms = make_prior_terms(module, values)

    def density(u):
        theta, slope, log_slope, by_slope = values.values(u)
        out = np.zeros_like(theta)
        value = sum(term(theta, out) for term in terms) + log_slope
        return value, out * slope + by_slope

    flat = [not any(True for _ in module.named_priors())] * len(vector.entries)
    if name == "normal":
        flat = [False, True]
    expected = LogPrior(module, jacobian=True)().item() + vector.log_slopes(flat)[0]
    value, gradient = density(u)
    assert value == pytest.approx(expected, rel=1e-10)
    found = [(density(u + 1e-5 * e)[0] - density(u - 1e-5 * e)[0]) / 2e-5 for e in np.eye(len(u))]
    np.testing.assert_allclose(gradient, found, rtol=1e-6, atol=1e-8)


def test_numpy_prior_terms_reject_other_priors():
    escaping = RBFKernel(lengthscale_prior=UniformPrior(*exact(0.25, 4.0)))
    function = RBFKernel()
    function.register_prior(
        "square_prior", LogNormalPrior(*exact(0.0, 1.0)), lambda module: module.lengthscale.square()
    )
    unit = RBFKernel()  # at a lengthscale of one a prior on its inverse looks like one on itself
    unit.lengthscale = 1.0
    unit.register_prior("inverse_prior", NormalPrior(*exact(1.0, 0.5)), lambda module: 1 / module.lengthscale)
    at_zero = OutputNoise("per_output", 2)  # and exp(s) like exp(2s)
    at_zero.log_scale.data.zero_()
    at_zero.register_prior("std_prior", LogNormalPrior(*exact(0.0, 1.0)), lambda module: module.log_scale.exp())
    for module in (unit, at_zero, RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)), escaping, function):
        with pytest.raises(NoAnalyticForm):
            make_prior_terms(module, NumpyVector(ParameterVector(module.double())))
