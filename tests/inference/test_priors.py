"""Default priors: on what, with which parameters, and that they copy, pickle and differentiate."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import IndexKernel, MaternKernel, PolynomialKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.priors import GammaPrior, LKJCovariancePrior, LogNormalPrior, MultivariateNormalPrior, NormalPrior, Prior
from scipy import stats

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.training.initialization import log_prior, register_default_priors, register_noise_prior
from ovkgp.inference.training.log_prior import RawLogPrior, raw_log_prior
from ovkgp.inference.training.maximize import maximise
from ovkgp.kernels import (
    CyclicGroup,
    DecomposableKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    HelmholtzKernel,
    IndependentKernel,
    MeanRegularizedMatrix,
    WarpedKernel,
)


def locations(kernel):
    """The location of every lengthscale prior, less √2: half the logarithm of the number of columns."""
    return {
        name: 2 * (prior.loc.item() - math.sqrt(2))
        for name, _, prior, _, _ in kernel.named_priors()
        if name.endswith("lengthscale_prior")
    }


def lognormal(value, loc, scale):
    return stats.lognorm(s=scale, scale=math.exp(loc)).logpdf(value)


# --- the densities --------------------------------------------------------------------------------------------------------


def test_the_log_prior_is_the_sum_of_the_densities():
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=2)).double()
    register_default_priors(kernel, num_dims=3)
    base, matrix = kernel.base_kernel.base_kernel, kernel.base_kernel.output_module
    base.lengthscale, kernel.outputscale = torch.tensor([0.5, 2.0, 30.0]), 1.7
    expected = sum(
        lognormal(value, math.sqrt(2) + math.log(3) / 2, math.sqrt(3)) for value in base.lengthscale[0].tolist()
    )
    expected += lognormal(kernel.outputscale.item(), 0.0, 1.0)
    expected += stats.norm.logpdf(matrix.loadings.detach().numpy()).sum()
    expected += lognormal(matrix.diagonal.detach().numpy(), -1.0, 1.5).sum()
    assert log_prior(kernel).item() == pytest.approx(expected, rel=1e-12)


def test_the_log_prior_is_differentiable_in_every_parameter():
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2)).double()
    register_default_priors(kernel, num_dims=1)
    parameters = list(kernel.parameters())
    raw = [parameter.detach().clone() for parameter in parameters]

    def at(*values):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value.data
        return log_prior(kernel)

    gradients = torch.autograd.grad(at(*raw), parameters)
    for place, gradient in enumerate(gradients):
        for index in range(gradient.numel()):
            step = torch.zeros_like(raw[place])
            step.view(-1)[index] = 1e-6
            shifted = [
                [value + sign * step if i == place else value for i, value in enumerate(raw)] for sign in (1, -1)
            ]
            difference = (at(*shifted[0]) - at(*shifted[1])).item() / 2e-6
            assert gradient.reshape(-1)[index].item() == pytest.approx(difference, rel=1e-7, abs=1e-8)


def test_there_is_no_prior_where_none_was_registered():
    assert log_prior(RBFKernel()).item() == 0.0


def test_a_kernel_that_is_shared_counts_once():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    both = torch.nn.ModuleDict({"a": kernel, "b": DecomposableKernel(kernel, output_matrix=torch.eye(2))})
    assert log_prior(both).item() == log_prior(kernel).item()


def test_a_field_has_the_prior_of_a_unit_variance_times_its_squared_lengthscale():
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=3))
    register_default_priors(kernel, num_dims=3)
    for part in (kernel.curl, kernel.div):
        assert part.outputscale_prior.loc.item() == pytest.approx(2 * math.sqrt(2) + math.log(3), rel=1e-12)
        assert part.outputscale_prior.scale.item() == pytest.approx(math.sqrt(1 + 4 * 3), rel=1e-12)


# --- how many columns a kernel sees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: RBFKernel(), 7),
        (lambda: RBFKernel(ard_num_dims=7), 7),
        (lambda: ScaleKernel(RBFKernel(active_dims=(1, 2))), 2),
        (lambda: WarpedKernel(RBFKernel(), CyclicGroup([1.0] * 7)), 14),
        (lambda: IndependentKernel([MaternKernel()]), 7),
        (lambda: ORFFKernel(ORFF(RBFKernel(), 5, num_dims=7, random_state=0)), 7),
        (lambda: GaussianCurveKernel(num_channels=2), 2),
    ],
)
def test_the_location_of_a_lengthscale_grows_with_the_columns_it_sees(make, expected):
    kernel = make()
    register_default_priors(kernel, num_dims=7)
    (location,) = locations(kernel).values()
    assert location == pytest.approx(math.log(expected), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("tasks", "expected"), [(None, [6, 1]), (torch.randn(4, 3), [7, 3])])
def test_tasks_have_columns_of_their_own(tasks, expected):
    kernel = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=tasks)
    register_default_priors(kernel, num_dims=7)
    found = locations(kernel)
    assert found["input_kernel.lengthscale_prior"] == pytest.approx(math.log(expected[0]), abs=1e-6)
    assert found["task_kernel.lengthscale_prior"] == pytest.approx(math.log(expected[1]), abs=1e-6)


# --- what is not touched ------------------------------------------------------------------------------------------------------


def test_a_prior_of_the_users_own_is_kept():
    mine, theirs = GammaPrior(2.0, 3.0), NormalPrior(0.0, 5.0)
    kernel = ScaleKernel(
        DecomposableKernel(RBFKernel(lengthscale_prior=mine), output_matrix=FreeMatrix(2, prior=theirs)),
        outputscale_prior=GammaPrior(1.0, 1.0),
    )
    before = {name: prior for name, _, prior, _, _ in kernel.named_priors()}
    register_default_priors(kernel, num_dims=1)
    assert {name: prior for name, _, prior, _, _ in kernel.named_priors()} == before


def test_what_is_not_trained_has_no_prior():
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    register_default_priors(kernel, num_dims=1)
    assert [name for name, *_ in kernel.named_priors()] == ["outputscale_prior"]
    fixed = OutputNoise(0.1, num_outputs=2)
    register_noise_prior(fixed)
    assert log_prior(fixed).item() == 0.0


def test_registering_twice_changes_nothing():
    kernel = ScaleKernel(RBFKernel())
    register_default_priors(kernel, num_dims=1)
    value = log_prior(kernel)
    register_default_priors(kernel, num_dims=9)
    assert torch.equal(log_prior(kernel), value)


# --- noise --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "per_output", "full"])
def test_the_noise_prior_is_on_the_variances(kind):
    noise = OutputNoise(kind, num_outputs=3)
    noise.set(torch.full((), 0.2).double() if kind == "shared" else torch.tensor([0.2, 0.01, 3.0]).double())
    register_noise_prior(noise)
    expected = lognormal(noise.variances.detach().numpy(), math.log(0.05), 1.5).sum()
    if kind == "full":  # its correlations are LKJ(2), and here zero
        expected += (
            torch.distributions.LKJCholesky(3, torch.tensor(2.0).double()).log_prob(torch.eye(3).double()).item()
        )
    assert log_prior(noise).item() == pytest.approx(expected, rel=1e-12)


def test_the_noise_prior_keeps_noise_away_from_zero():
    noise = OutputNoise("shared", num_outputs=1)
    register_noise_prior(noise)
    report = maximise(noise, lambda: log_prior(noise) - 0.5 * noise.value.log(), tolerance=1e-10)
    # the mode of a density θ^(−1/2) p(θ): log θ = log 0.05 − 1.5² (1 + 1/2)
    assert report.converged and noise.value.log().item() == pytest.approx(math.log(0.05) - 1.5**3, rel=1e-6)


# --- copies -------------------------------------------------------------------------------------------------------------------


def with_all_priors():
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2)) + ScaleKernel(DecomposableKernel(MaternKernel(), num_outputs=2))
    register_default_priors(kernel, num_dims=2)
    noise = OutputNoise("per_output", num_outputs=2)
    register_noise_prior(noise)
    return torch.nn.ModuleDict({"kernel": kernel, "noise": noise}).double()


@pytest.mark.parametrize("copy", [deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_priors_survive_copies_and_pickles(copy):
    module = with_all_priors()
    again = copy(module)
    assert log_prior(again).item() == log_prior(module).item()
    again["kernel"].kernels[0].outputscale = 5.0
    assert log_prior(again).item() != log_prior(module).item()  # the copy reads its own parameters


def test_priors_survive_a_state_dict():
    module, other = with_all_priors(), with_all_priors()
    module["kernel"].kernels[0].outputscale = 5.0
    other.load_state_dict(module.state_dict())
    assert log_prior(other).item() == log_prior(module).item()


def test_every_prior_can_set_what_it_reads():
    for module in with_all_priors().modules():
        for prior, closure, setter in getattr(module, "_priors", {}).values():
            value = prior.sample(closure(module).shape).double()
            setter(module, value)
            torch.testing.assert_close(closure(module).detach(), value, rtol=1e-6, atol=1e-12)


def test_a_value_that_is_not_a_number_gives_a_density_that_is_none():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    kernel.raw_lengthscale.data.fill_(torch.nan)
    assert torch.isnan(log_prior(kernel))  # and not an error, so that a training can step back


# --- densities of the raw parameters ------------------------------------------------------------------------------------------


def slow_raw_density(module):
    """Σ log p(θ) + log |det dθ / d raw| by whole Jacobians, a prior at a time."""
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
    """The second of three is in its neighbours too, one on either side: numbers in equal steps do not show that."""
    first, second, third = kernel.raw_lengthscale.split(1, -1)
    return torch.cat([first + second, second, third + second], -1)


class Halved(Prior, torch.distributions.Normal):
    """A law of half the value: what GPyTorch calls a transform."""

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
def test_the_raw_density_is_that_of_the_values_times_the_jacobian(name):
    kernel = elementwise(name)
    assert raw_log_prior(kernel).item() == pytest.approx(slow_raw_density(kernel), rel=1e-10)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_the_raw_density_is_differentiable(name):
    kernel = elementwise(name)
    density = RawLogPrior(kernel)
    covered = [one for site in density.sites for one in site.parameters.values()]
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


def test_the_raw_density_has_a_second_derivative():
    kernel = elementwise("default")
    (gradient,) = torch.autograd.grad(raw_log_prior(kernel), kernel.raw_lengthscale, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), kernel.raw_lengthscale)
    assert torch.isfinite(second).all() and bool((second != 0).all())


def test_the_raw_density_of_a_noise_is_normal_in_its_logarithm():
    noise = OutputNoise("per_output", num_outputs=2)
    noise.set(torch.tensor([0.2, 3.0]).double())
    register_noise_prior(noise)
    expected = stats.norm(math.log(0.05), 1.5).logpdf(2 * noise.log_scale.detach().numpy()).sum() + 2 * math.log(2)
    assert raw_log_prior(noise).item() == pytest.approx(expected, rel=1e-12)


def test_the_raw_density_of_a_full_noise_is_proper_in_every_number_that_it_keeps():
    noise = OutputNoise("full", num_outputs=2)
    register_noise_prior(noise)
    chol = torch.tensor([[0.4, 0.0], [-0.3, 0.7]], dtype=torch.float64)
    noise.set(chol @ chol.mT)
    expected = CovariancePrior(math.log(0.05), 1.5).raw_log_prob(chol).item()
    assert raw_log_prior(noise).item() == pytest.approx(expected, rel=1e-10)
    noise.lower.data[0, 1] = 3.0  # nothing reads it: a standard normal density of its own
    assert raw_log_prior(noise).item() == pytest.approx(expected - 4.5, rel=1e-10)


def test_the_raw_density_counts_a_shared_module_once():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    both = torch.nn.ModuleDict({"a": kernel, "b": DecomposableKernel(kernel, output_matrix=torch.eye(2))})
    assert raw_log_prior(both).item() == raw_log_prior(kernel).item()


def test_the_raw_density_leaves_out_what_is_not_trained():
    kernel = ScaleKernel(RBFKernel()).double()
    register_default_priors(kernel, num_dims=1)
    alone = raw_log_prior(kernel.base_kernel).item()
    kernel.raw_outputscale.requires_grad_(False)
    assert raw_log_prior(kernel).item() == alone


def test_the_raw_density_follows_the_parameters():
    kernel = elementwise("gamma")
    density = RawLogPrior(kernel)
    before = density().item()
    kernel.outputscale = 7.0
    assert density().item() == pytest.approx(raw_log_prior(kernel).item(), rel=1e-14) != before


def test_a_density_may_be_asked_for_without_gradients():
    kernel = elementwise("of the logarithm")
    expected = slow_raw_density(kernel)
    with torch.no_grad():
        assert raw_log_prior(kernel).item() == pytest.approx(expected, rel=1e-10)


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
def test_a_prior_on_a_function_of_several_numbers_is_refused(make):
    with pytest.raises(OptionError, match=r"not one number for each.*FullMatrix\(p\) with register_covariance_prior"):
        raw_log_prior(make().double())


def test_two_priors_on_one_parameter_are_refused():
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2.0, 2.0)).double()
    kernel.register_prior("second_prior", NormalPrior(0.0, 1.0), "lengthscale")
    with pytest.raises(OptionError, match=r"raw_lengthscale has two priors, lengthscale_prior and second_prior"):
        raw_log_prior(kernel)


def test_a_value_that_agrees_with_the_parameters_by_chance_is_not_taken_for_it():
    kernel = with_prior(RBFKernel().double(), "square_prior", LogNormalPrior(0.0, 1.0), lambda k: k.lengthscale**2)
    kernel.lengthscale = 1.0
    assert raw_log_prior(kernel).item() == pytest.approx(slow_raw_density(kernel), rel=1e-12)


def test_a_covariance_prior_counts_with_its_jacobian():
    matrix = FullMatrix(3).double()
    matrix.lower.data = torch.tensor([0.3, -0.2, 0.9]).double()
    prior = CovariancePrior(torch.tensor([0.0, 1.0, -1.0]), 0.8, 3.0)
    register_covariance_prior(matrix, prior)
    expected = prior.log_prob(matrix.chol) + prior.log_jacobian(matrix.chol)
    assert raw_log_prior(matrix).item() == pytest.approx(expected.item(), rel=1e-12)
    assert log_prior(matrix).item() == pytest.approx(prior.log_prob(matrix.chol).item(), rel=1e-12)
