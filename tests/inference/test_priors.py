"""Default priors: on what, with which parameters, and that they copy, pickle and differentiate."""

import math
import pickle
from copy import deepcopy

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, NormalPrior
from scipy import stats

from ovkgp.features import ORFF, ORFFKernel
from ovkgp.inference.noise import OutputNoise
from ovkgp.inference.priors import log_prior, register_default_priors, register_noise_prior
from ovkgp.inference.training import maximise
from ovkgp.kernels import (
    CyclicGroup,
    DecomposableKernel,
    FreeMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    HelmholtzKernel,
    IndependentKernel,
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
