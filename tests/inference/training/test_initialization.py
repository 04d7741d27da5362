"""Tests of `ovkgp.inference.training.initialization`."""

import math
import pickle
from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest
import torch
from gp_cases import KERNELS
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    IndexKernel,
    Kernel,
    LCMKernel,
    LinearKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.priors import GammaPrior, LKJCovariancePrior, LogNormalPrior, MultivariateNormalPrior, NormalPrior, Prior
from linear_operator import to_dense
from oracles import OUTPUTS, operator_valued
from scipy import stats

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.sampling.prior_predictive import draw_prior, place
from ovkgp.inference.training.covariance_prior import CovariancePrior, register_covariance_prior
from ovkgp.inference.training.initialization import (
    bounds,
    initial_noise,
    initialize_from_data,
    log_prior,
    register_data_priors,
    register_default_priors,
    register_noise_prior,
    sizes,
)
from ovkgp.inference.training.log_prior import RawLogPrior, raw_log_prior
from ovkgp.inference.training.maximize import maximise
from ovkgp.inference.training.prior_sites import (
    column_distances,
    output_covariance,
    output_prior,
    prior_sites,
    row_distances,
)
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import (
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    HelmholtzKernel,
    IndependentKernel,
    LaplaceKernel,
    MeanRegularizedMatrix,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
    num_outputs,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def standardised(values):
    return (values - values.mean(0)) / values.std(0, correction=0)


def some_data(kernel, n=25, d=2, seed=0):
    return normal(n, d, seed=seed), normal(n, num_outputs(kernel), seed=seed + 1)


def model(kernel, mean="constant", noise="per_output", **options):
    return OperatorValuedGP(kernel, mean=mean, noise=noise, **options)


def registered(kernel, X=None, Y=None, **options):
    gp = model(kernel, **options)
    register_data_priors(gp, *(some_data(kernel) if X is None else (X, Y)))
    return gp


def without_prior(gp):
    covered = {id(one) for site in prior_sites(gp) for one in site.parameters.values()}
    return [name for name, one in gp.named_parameters() if one.requires_grad and id(one) not in covered]


# --- on everything ----------------------------------------------------------------------------------------------------------


class Nested(Kernel):
    """A kernel of the user's own, with kernels in a list and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([RBFKernel(), ScaleKernel(MaternKernel())])
        self.register_parameter("shift", torch.nn.Parameter(torch.zeros(2)))

    def forward(self, x1, x2, diag=False, **params):
        return self.parts[0](x1 + self.shift, x2, diag=diag) + self.parts[1](x1, x2, diag=diag)


EVERY = {
    **KERNELS,
    **{name: (lambda name=name: operator_valued(name)) for name in OUTPUTS},
    "full": lambda: DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(3)),
    "full, one output": lambda: DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(1)),
    "mixture": lambda: SpectralMixtureKernel(num_mixtures=3, ard_num_dims=2),
    "periodic": lambda: ScaleKernel(PeriodicKernel(ard_num_dims=2)),
    "cosine": lambda: CosineKernel(),
    "rational": lambda: RQKernel(),
    "linear": lambda: LinearKernel(),
    "polynomial": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "constant": lambda: RBFKernel() + ConstantKernel(),
    "coupled": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=MeanRegularizedMatrix(2)),
    "curves": lambda: GaussianCurveKernel(num_channels=1),
    "warped": lambda: WarpedKernel(RBFKernel(), CyclicGroup([2.0, 3.0])),
    "shifted": lambda: TransformableKernel(RBFKernel(), [Delay(0.1), Delay(torch.tensor([0.2, 0.3]))]),
    "nested": Nested,
    "interval": lambda: RBFKernel(lengthscale_constraint=Interval(0.1, 1.0)),
}


@pytest.mark.parametrize("mean", ["constant", "linear"])
@pytest.mark.parametrize("name", EVERY)
def test_every_trained_parameter_gets_a_proper_prior(name, mean):
    gp = registered(EVERY[name](), mean=mean, noise="full" if mean == "linear" else "per_output")
    assert without_prior(gp) == []
    drawn = draw_prior(gp, 3, random_state=0)
    for index in range(3):
        place(gp, drawn, index)
        assert torch.isfinite(raw_log_prior(gp))
        assert torch.isfinite(to_dense(gp.kernel(normal(3, 2)))).all()


@pytest.mark.parametrize("noise", ["shared", "per_output", "full"])
def test_the_noise_has_a_prior_for_each_output(noise):
    gp = registered(operator_valued("decomposable"), noise=noise)
    assert without_prior(gp) == []


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean(2), LinearMean(2, bias=False)])
def test_means_of_gpytorch_have_priors(mean):
    assert without_prior(registered(operator_valued("decomposable"), mean=mean)) == []


def test_learned_frequencies_are_standard_normal_scores():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
    gp = model(kernel, features=ORFF(kernel, 4, learn_frequencies=True, random_state=0))
    register_data_priors(gp, *some_data(kernel))
    assert without_prior(gp) == []
    (site,) = [site for site in prior_sites(gp) if site.name.startswith("features.")]
    assert (site.prior.loc.item(), site.prior.scale.item()) == (0.0, 1.0)


# --- in any units -----------------------------------------------------------------------------------------------------------

INVARIANT = {
    "icm": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=2),
    "full": lambda: DecomposableKernel(MaternKernel(ard_num_dims=2), output_matrix=FullMatrix(2)),
    "scaled icm": lambda: ScaleKernel(DecomposableKernel(RQKernel(ard_num_dims=2), num_outputs=2)),
    "lmc": lambda: DecomposableKernel(RBFKernel(ard_num_dims=2), 2) + DecomposableKernel(RBFKernel(ard_num_dims=2), 2),
    "independent": lambda: IndependentKernel(
        [ScaleKernel(RBFKernel(ard_num_dims=2)), ScaleKernel(RBFKernel(active_dims=[1]))]
    ),
    "mixture": lambda: SpectralMixtureKernel(num_mixtures=3, ard_num_dims=2),
    "periodic": lambda: ScaleKernel(PeriodicKernel(ard_num_dims=2)),
    "constant": lambda: ScaleKernel(RBFKernel(ard_num_dims=2)) + ConstantKernel(),
    "columns": lambda: (
        ScaleKernel(RBFKernel(active_dims=[1])) + ScaleKernel(RBFKernel(ard_num_dims=1, active_dims=[0]))
    ),
}
ONE_SCALE = {
    "multitask": KERNELS["gpytorch multitask"],
    "curl-free": lambda: ScaleKernel(CurlFreeKernel(RBFKernel(), num_dims=2)),
    "curl-free of a scaled kernel": lambda: CurlFreeKernel(ScaleKernel(RBFKernel()), num_dims=2),
    "helmholtz": lambda: HelmholtzKernel(RBFKernel(), num_dims=2),
    "linear": lambda: LinearKernel(),
    "polynomial": lambda: ScaleKernel(PolynomialKernel(power=2)),
    "cosine": lambda: ScaleKernel(CosineKernel()),
    "coupled": lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=MeanRegularizedMatrix(2)),
    "delays": lambda: ScaleKernel(TransformableKernel(RBFKernel(), [Delay(0.0), Delay(0.0)])),
    "tasks": lambda: FunctionValuedKernel(ScaleKernel(RBFKernel(active_dims=[0])), RBFKernel()),
}


def drawn_covariances(gp, X, draws=4):
    found, drawn = [], draw_prior(gp, draws, random_state=3)
    for index in range(draws):
        place(gp, drawn, index)
        noise = to_dense(gp.noise_model.matrix()).detach()
        found.append((to_dense(gp.kernel(X)).detach(), noise, gp.mean(X).detach()))
    return found


def require_same_beliefs(kernel, inputs, shift, outputs, level, mean="constant"):
    """A draw of the priors, in other units, is the same model."""
    X, Y = some_data(kernel)
    p = Y.shape[1]
    outputs = torch.as_tensor(outputs, dtype=torch.float64).expand(p)
    other_X, other_Y = X * inputs + shift, Y * outputs + level
    pairs = zip(
        drawn_covariances(registered(deepcopy(kernel), X, Y, mean=mean, noise="full"), X[:4]),
        drawn_covariances(registered(deepcopy(kernel), other_X, other_Y, mean=mean, noise="full"), other_X[:4]),
        strict=True,
    )
    units = outputs.repeat(4)
    for (here, here_noise, here_mean), (there, there_noise, there_mean) in pairs:
        np.testing.assert_allclose(there, here * torch.outer(units, units), rtol=1e-8, atol=1e-10 * units.max() ** 2)
        np.testing.assert_allclose(there_noise, here_noise * torch.outer(outputs, outputs), rtol=1e-8)
        np.testing.assert_allclose(there_mean, here_mean * outputs + level, rtol=1e-8)


@pytest.mark.parametrize("name", INVARIANT)
def test_the_same_seed_draws_the_same_model_in_any_units(name):
    kernel = INVARIANT[name]()
    p = num_outputs(kernel)
    require_same_beliefs(kernel, torch.tensor([1e3, 1e-4]), torch.tensor([7.0, -3.0]), [50.0, 1e-3][:p], 2.0)


@pytest.mark.parametrize("name", ONE_SCALE)
def test_kernels_that_tie_their_columns_follow_one_common_scale(name):
    kernel = ONE_SCALE[name]()
    shift = 0.0 if name in ("linear", "polynomial") else 5.0  # those two have an origin
    require_same_beliefs(kernel, 200.0, shift, 0.03, -1.0)


def test_slopes_follow_the_units():
    require_same_beliefs(INVARIANT["icm"](), torch.tensor([10.0, 0.1]), 0.0, [4.0, 0.5], 0.0, mean="linear")


def test_a_line_may_pass_anywhere_near_the_data_although_the_origin_is_far():
    X, Y = normal(40, 1) + 1000, normal(40, 1)
    gp = registered(RBFKernel(), X, Y, mean="linear")
    width = gp.mean.constant_prior.scale.item()
    assert width == pytest.approx(
        2 * Y.std().item() * math.hypot(1, X.mean().item() / X.std(correction=0).item()), rel=1e-10
    )


def test_standardised_data_have_the_default_priors():
    X, Y = standardised(normal(30, 3)), standardised(normal(30, 2, seed=1))
    kernel = IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=3)), ScaleKernel(MaternKernel())])
    gp, default = registered(deepcopy(kernel), X, Y * math.sqrt(29 / 30)), model(kernel)
    register_default_priors(default.kernel, num_dims=3)
    register_noise_prior(default.noise_model)
    here, there = ({site.name: site.prior for site in prior_sites(one)} for one in (gp, default))
    assert set(here) - set(there) == {"mean.constant_prior"}
    for name, prior in there.items():
        for part in ("loc", "scale"):
            np.testing.assert_allclose(getattr(here[name], part), getattr(prior, part), atol=1e-12)


def test_an_output_in_large_units_has_large_loadings_noise_and_mean():
    X, Y = some_data(operator_valued("decomposable"))
    Y = Y * torch.tensor([1.0, 100.0, 1e-3])
    gp = registered(operator_valued("decomposable"), X, Y)
    deviations, matrix = Y.std(0), gp.kernel.output_module
    torch.testing.assert_close(matrix.loadings_prior.scale.squeeze(-1), deviations)
    torch.testing.assert_close(matrix.diagonal_prior.loc, 2 * deviations.log() - 1)
    torch.testing.assert_close(gp.noise_model.variances_prior.loc, 2 * deviations.log() + math.log(0.05))
    torch.testing.assert_close(gp.mean.constant_prior.loc, Y.mean(0))
    torch.testing.assert_close(gp.mean.constant_prior.scale, 2 * deviations)


# --- what is not touched ------------------------------------------------------------------------------------------------------


def test_priors_of_the_users_own_are_kept():
    mine, theirs, ours = GammaPrior(2.0, 3.0), NormalPrior(0.0, 5.0), NormalPrior(1.0, 1.0)
    gp = model(ScaleKernel(RBFKernel(lengthscale_prior=mine)))
    gp.mean.register_prior("level", theirs, "constant")
    gp.noise_model.register_prior("log_noise", ours, lambda noise: noise.log_scale)
    gp.kernel.base_kernel.lengthscale_prior.rate.fill_(4.0)
    register_data_priors(gp, *some_data(gp.kernel))
    assert sorted(site.name for site in prior_sites(gp)) == [
        "kernel.base_kernel.lengthscale_prior",
        "kernel.outputscale_prior",
        "mean.level",
        "noise_model.log_noise",
    ]
    assert gp.kernel.base_kernel.lengthscale_prior.rate.item() == 4.0


def test_registering_twice_changes_nothing():
    gp = registered(operator_valued("lmc"), noise="full")
    before = {site.name: site.prior for site in prior_sites(gp)}
    register_data_priors(gp, 100 * normal(20, 2), 100 * normal(20, 3))
    assert {site.name: site.prior for site in prior_sites(gp)} == before


def test_what_is_fixed_has_no_prior():
    gp = model(ScaleKernel(RBFKernel()), mean="zero", noise=0.1)
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    register_data_priors(gp, *some_data(gp.kernel))
    assert [site.name for site in prior_sites(gp)] == ["kernel.outputscale_prior"]


def test_what_is_freed_again_gets_a_prior_beside_that_of_something_else():
    kernel = RBFKernel().double()
    kernel.register_prior("lengthscale_prior", NormalPrior(0.0, 1.0), lambda k: torch.zeros(()))  # on nothing
    gp = registered(kernel)
    assert without_prior(gp) == [] and "data_lengthscale_prior" in gp.kernel._priors


def test_a_parameter_that_two_kernels_share_has_one_prior():
    base = RBFKernel()
    gp = registered(IndependentKernel([ScaleKernel(base), ScaleKernel(base)]))
    names = [site.name for site in prior_sites(gp) if "lengthscale" in site.name]
    assert len(names) == 1 and without_prior(gp) == []


# --- poor data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "Y"),
    [
        (torch.ones(1, 2), torch.ones(1, 3)),
        (torch.ones(5, 2), normal(5, 3)),
        (normal(5, 2), torch.zeros(5, 3)),
        (normal(2, 2).repeat(4, 1).float(), normal(8, 3)),
        (normal(6, 2), normal(6, 3).where(normal(6, 3, seed=5) > -0.5, torch.nan)),
    ],
    ids=["one row", "equal rows", "constant outputs", "duplicates, float32", "missing outputs"],
)
def test_poor_data_give_finite_priors(X, Y):
    gp = registered(operator_valued("decomposable"), X, Y, mean="linear", noise="full")
    for site in prior_sites(gp):
        numbers = torch.cat([buffer.reshape(-1) for buffer in site.prior.buffers()])
        assert torch.isfinite(numbers).all()
    assert torch.isfinite(raw_log_prior(gp))


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        (torch.full((4, 2), torch.nan), torch.ones(4, 3), "X holds NaN"),
        (normal(4, 2), torch.full((4, 3), torch.nan), "every entry of Y is missing"),
        (normal(4, 2), normal(4, 2), r"Y must have shape \(n, 3\)"),
    ],
)
def test_bad_data_are_refused(X, Y, message):
    with pytest.raises(InputError, match=message):
        registered(operator_valued("decomposable"), X, Y)


# --- likelihoods, and one output at a time ----------------------------------------------------------------------------------


def test_classes_and_counts_have_latent_functions_of_order_one():
    X, rates = normal(40, 2), normal(40, 2, seed=1)
    Y = torch.stack([(rates[:, 0] > 0.5).double(), 100 * rates[:, 1]], -1)
    gp = VariationalGP(
        IndependentKernel([ScaleKernel(RBFKernel()), ScaleKernel(RBFKernel())]), ["bernoulli", "laplace"]
    )
    register_data_priors(gp, X, Y)
    classes, values = (part.outputscale_prior.loc.item() for part in gp.kernel.kernels)
    assert classes == 0.0 and values == pytest.approx(2 * Y[:, 1].std().log().item(), rel=1e-10)
    start = gp.likelihood.initial_latent(Y)
    torch.testing.assert_close(gp.mean.constant_prior.loc, torch.stack([start[0], Y[:, 1].mean()]))
    assert all(name.startswith("likelihood.") for name in without_prior(gp))


def test_the_law_of_one_output_is_that_of_its_entry():
    gp = registered(operator_valued("independent"), normal(20, 2), normal(20, 3) * torch.tensor([1.0, 10.0, 100.0]))
    prior = gp.noise_model.variances_prior
    for index in range(3):
        alone = output_prior(prior, index)
        assert (alone.loc.item(), alone.scale.item()) == (prior.loc[index].item(), prior.scale[index].item())
    gamma = GammaPrior(2.0, 3.0)
    assert output_prior(gamma, 1) is gamma


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
    for position, gradient in enumerate(gradients):
        for index in range(gradient.numel()):
            step = torch.zeros_like(raw[position])
            step.view(-1)[index] = 1e-6
            shifted = [
                [value + sign * step if i == position else value for i, value in enumerate(raw)] for sign in (1, -1)
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


def test_registering_twice_changes_nothing_priors():
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


def data(n=40, d=3, p=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 20.0, 0.05, 3.0])[:d].double()
    mixing = torch.tensor([[1.0, 0.0, 0.2], [2.0, 0.5, 0.0], [-1.0, 1.0, 3.0]]).double()[:p]
    return X, torch.randn(n, 3, generator=generator, dtype=torch.float64) @ mixing.mT + 4.0


def medians(X):
    """The median nonzero |x_i − x_j| of each column, pair by pair."""
    return [np.median([abs(a - b) for a, b in combinations(column, 2) if a != b]) for column in X.T.tolist()]


def median_distance(X):
    pairs = [np.linalg.norm(np.subtract(a, b)) for a, b in combinations(X.tolist(), 2)]
    return np.median([distance for distance in pairs if distance > 0])


def average_variance(kernel, X):
    return kernel(X, diag=True).detach().double().mean().item()


# --- lengthscales ---------------------------------------------------------------------------------------------------------


def test_a_lengthscale_is_the_median_distance():
    X, Y = data()
    kernel = RBFKernel().double()
    initialize_from_data(kernel, X, Y[:, :1])
    assert kernel.lengthscale.item() == pytest.approx(median_distance(X), rel=1e-9)


def test_ard_lengthscales_are_the_medians_of_the_columns_times_the_root_of_their_number():
    X, Y = data()
    kernel = MaternKernel(ard_num_dims=3).double()
    initialize_from_data(kernel, X, Y[:, :1])
    np.testing.assert_allclose(kernel.lengthscale.detach().flatten(), math.sqrt(3) * np.array(medians(X)), rtol=1e-9)


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, ScaleKernel, lambda kernel: CurlFreeKernel(kernel)])
def test_active_dims_are_heeded(wrap):
    X, Y = data(d=4)
    kernel = wrap(RBFKernel(active_dims=(3, 0), ard_num_dims=2)).double()
    initialize_from_data(kernel, X, Y[:, : num_outputs(kernel)])
    inner = getattr(kernel, "base_kernel", kernel)
    expected = math.sqrt(2) * np.array(medians(X[:, [3, 0]]))
    np.testing.assert_allclose(inner.lengthscale.detach().flatten(), expected, rtol=1e-9)
    assert torch.isfinite(kernel(X).to_dense()).all()


def test_active_dims_compose_on_the_way_down():
    X, Y = data(d=4)
    product = RBFKernel(active_dims=(0, 2), ard_num_dims=2) * RBFKernel(active_dims=(1,))
    kernel = ScaleKernel(product, active_dims=(3, 1, 0)).double()
    initialize_from_data(kernel, X, Y[:, :1])
    first, second = kernel.base_kernel.kernels
    expected = math.sqrt(2) * np.array(medians(X[:, [3, 0]]))  # columns 0 and 2 of columns 3, 1, 0
    np.testing.assert_allclose(first.lengthscale.detach().flatten(), expected, rtol=1e-9)
    assert second.lengthscale.item() == pytest.approx(medians(X[:, [1]])[0], rel=1e-9)


def test_binary_and_constant_columns_have_a_lengthscale_of_their_own_size():
    X = torch.stack([(torch.arange(30) % 5 == 0).double(), torch.full((30,), 7.0).double()], -1)
    kernel = RBFKernel(ard_num_dims=2).double()
    initialize_from_data(kernel, X, X[:, :1])
    torch.testing.assert_close(kernel.lengthscale.detach(), torch.full((1, 2), math.sqrt(2)).double())
    low, high = bounds(kernel, X, X[:, :1])["raw_lengthscale"]
    assert low.tolist() == [0.01, 0.01] and high.tolist() == pytest.approx([1e3 * math.sqrt(2)] * 2)


def test_many_rows_are_subsampled_the_same_way_every_time():
    X = torch.rand(5000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once, again = row_distances(X).median, row_distances(X).median
    assert torch.equal(once, again) and once.item() == pytest.approx(0.512, rel=0.05)  # of the unit square


@pytest.mark.parametrize("make", [LaplaceKernel, RQKernel, SobolevKernel])
def test_any_kernel_with_a_lengthscale_starts_at_the_data(make):
    X, Y = data()
    kernel = ScaleKernel(make(ard_num_dims=3)).double()
    initialize_from_data(kernel, X, Y[:, :1])
    np.testing.assert_allclose(
        kernel.base_kernel.lengthscale.detach().flatten(), math.sqrt(3) * np.array(medians(X)), rtol=1e-9
    )
    assert average_variance(kernel, X) == pytest.approx(Y[:, 0].var().item(), rel=1e-9)  # also where k(x, x) is not 1


def test_curves_are_compared_at_one_grid_point_at_a_time():
    X = torch.randn(30, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kernel = GaussianCurveKernel().double()
    initialize_from_data(kernel, X, X[:, :1])
    assert kernel.lengthscale.item() == pytest.approx(median_distance(X) / math.sqrt(50), rel=1e-9)


def test_the_period_takes_the_place_of_a_lengthscale_that_has_no_unit():
    X, Y = data(d=1)
    kernel = PeriodicKernel().double()
    before = kernel.lengthscale.item()
    initialize_from_data(kernel, X, Y[:, :1])
    assert kernel.period_length.item() == pytest.approx(medians(X)[0], rel=1e-9) and kernel.lengthscale.item() == before


# --- variances ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScaleKernel(RBFKernel()),
        lambda: ScaleKernel(LinearKernel()),
        lambda: LinearKernel(),
        lambda: ConstantKernel(),
        lambda: ScaleKernel(RBFKernel()) * ScaleKernel(MaternKernel()),
        lambda: ScaleKernel(RBFKernel(active_dims=(0,))) + ScaleKernel(LinearKernel()) + ScaleKernel(MaternKernel()),
        lambda: ScaleKernel(CurlFreeKernel(RBFKernel(ard_num_dims=2))),
        lambda: ScaleKernel(DivergenceFreeKernel(RBFKernel(), num_dims=2)),
        lambda: CurlFreeKernel(ScaleKernel(MaternKernel(ard_num_dims=2))),
        lambda: HelmholtzKernel(RBFKernel(ard_num_dims=2)),
        lambda: DecomposableKernel(ScaleKernel(RBFKernel()), output_matrix=3 * torch.eye(2)),
        lambda: DecomposableKernel(RBFKernel(), num_outputs=2, rank=1),
        lambda: DecomposableKernel(SobolevKernel(), num_outputs=2, rank=2),
        lambda: ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2)),
        lambda: DecomposableKernel(RBFKernel(), 2) + DecomposableKernel(MaternKernel(), 2),
        lambda: DecomposableKernel(RBFKernel(), 2) * ScaleKernel(PeriodicKernel()),
        lambda: MultitaskKernel(RBFKernel(), num_tasks=2),
        lambda: LCMKernel([RBFKernel(), MaternKernel()], num_tasks=2),
        lambda: IndependentKernel.copies(ScaleKernel(RBFKernel()), 2),
        lambda: TransformableKernel(ScaleKernel(RBFKernel()), [Delay(0.0), Delay(1.0)]),
        lambda: FunctionValuedKernel(ScaleKernel(RBFKernel()), RBFKernel(), tasks=torch.linspace(0, 1, 2)),
        lambda: FunctionValuedKernel(ScaleKernel(RBFKernel()), ScaleKernel(RBFKernel())),
        lambda: ScaleKernel(WarpedKernel(DecomposableKernel(RBFKernel(), 2), CyclicGroup([5.0, 5.0]))),
    ],
)
def test_the_prior_variance_at_the_data_is_that_of_the_outputs(make):
    X, Y = data(d=2)
    kernel = make().double()
    Y = Y[:, : num_outputs(kernel)]
    initialize_from_data(kernel, X, Y)
    # the diagonal of an output matrix has a floor of 1e-3, hence not exactly
    assert average_variance(kernel, X) == pytest.approx(Y.var(0).mean().item(), rel=5e-3)
    if num_outputs(kernel) > 1:  # a draw at the data is then a sane start for the evidence
        assert torch.isfinite(kernel(X).to_dense()).all()


def test_terms_of_a_sum_share_the_variance_and_spread_their_lengthscales():
    X, Y = data()
    kernel = sum((ScaleKernel(RBFKernel()) for _ in range(2)), ScaleKernel(RBFKernel())).double()
    initialize_from_data(kernel, X, Y[:, :1])
    lengthscales = torch.cat([part.base_kernel.lengthscale.detach().flatten() for part in kernel.kernels])
    np.testing.assert_allclose(lengthscales / median_distance(X), [1.0, 0.4, 0.16], rtol=1e-9)
    for part in kernel.kernels:
        assert part.outputscale.item() == pytest.approx(Y[:, 0].var().item() / 3, rel=1e-9)


def test_many_terms_do_not_run_away_to_tiny_lengthscales():
    X, Y = data()
    kernel = sum((RBFKernel() for _ in range(11)), RBFKernel()).double()
    initialize_from_data(kernel, X, Y[:, :1])
    assert kernel.kernels[-1].lengthscale.item() == pytest.approx(0.064 * median_distance(X), rel=1e-9)


def test_an_output_matrix_starts_at_the_principal_components_of_the_outputs():
    X, Y = data(n=500, p=3)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=3, rank=2).double()
    initialize_from_data(kernel, X, Y)
    covariance = np.cov(Y.numpy().T)
    deviations = np.sqrt(covariance.diagonal())
    values, vectors = np.linalg.eigh(covariance / np.outer(deviations, deviations))
    shared = 0.9 * (vectors[:, 1:] * values[1:]) @ vectors[:, 1:].T * np.outer(deviations, deviations)
    loadings = kernel.output_module.loadings.detach()
    np.testing.assert_allclose(loadings @ loadings.mT, shared, rtol=1e-8)
    assert (loadings.gather(0, loadings.abs().argmax(0, keepdim=True)) > 0).all()
    np.testing.assert_allclose(kernel.output_matrix.detach().diagonal(), covariance.diagonal(), rtol=1e-8)


def test_independent_outputs_start_each_from_its_own_column():
    X, Y = data(p=3)
    Y = Y * torch.tensor([1e-4, 1.0, 1e4])
    kernel = IndependentKernel.copies(ScaleKernel(RBFKernel()), 3).double()
    initialize_from_data(kernel, X, Y)
    np.testing.assert_allclose([part.outputscale.item() for part in kernel.kernels], Y.var(0), rtol=1e-8)


def test_missing_outputs_are_left_out_pair_by_pair():
    _, Y = data(n=30, p=3)
    holes = Y.clone()
    holes[::3, 0] = holes[1::4, 2] = torch.nan
    covariance = output_covariance(holes)
    for a in range(3):
        observed = ~holes[:, a].isnan()
        assert covariance[a, a].item() == pytest.approx(
            holes[observed, a].var().item(), rel=1e-2
        )  # clipped to be positive
    assert torch.linalg.eigvalsh(covariance).amin() > -1e-12
    torch.testing.assert_close(output_covariance(Y), Y.mT.cov(), rtol=1e-9, atol=1e-12)


def test_the_noise_starts_at_a_tenth_of_the_variance():
    _, Y = data(p=3)
    torch.testing.assert_close(initial_noise(Y), 0.1 * Y.var(0), rtol=1e-9, atol=0)


# --- degenerate data ------------------------------------------------------------------------------------------------------


def kernels():
    return {
        "scaled ARD": ScaleKernel(RBFKernel(ard_num_dims=2)),
        "decomposable": DecomposableKernel(MaternKernel(), num_outputs=2, rank=2),
        "sum": DecomposableKernel(RBFKernel(ard_num_dims=2), 2) + DecomposableKernel(LinearKernel(), 2),
        "helmholtz": HelmholtzKernel(RBFKernel(ard_num_dims=2)),
        "independent": IndependentKernel.copies(ScaleKernel(MaternKernel(ard_num_dims=2)), 2),
        "features": ORFFKernel(ORFF(DecomposableKernel(RBFKernel(ard_num_dims=2), 2), 10, random_state=0)),
    }


DEGENERATE = {
    "one row": lambda X, Y: (X[:1], Y[:1]),
    "duplicates": lambda X, Y: (X[:1].expand(9, -1), Y[:9]),
    "constant outputs": lambda X, Y: (X, torch.full_like(Y, 0.1)),
    "zero outputs": lambda X, Y: (X, torch.zeros_like(Y)),
    "zero inputs": lambda X, Y: (torch.zeros_like(X), Y),
    "one constant output": lambda X, Y: (X, Y * torch.tensor([1.0, 0.0])),
    "large": lambda X, Y: (1e8 * X, 1e8 * Y),
    "small": lambda X, Y: (1e-8 * X, 1e-8 * Y),
    "far away": lambda X, Y: (X + 1e8, Y + 1e8),
    "missing": lambda X, Y: (X, torch.where(torch.arange(len(Y)).unsqueeze(-1) % 2 == torch.arange(2), Y, torch.nan)),
    "nothing": lambda X, Y: (X, torch.full_like(Y, torch.nan)),
}


@pytest.mark.parametrize("name", kernels())
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_data_give_finite_starts_inside_their_boxes(name, case):
    X, Y = DEGENERATE[case](*data(d=2))
    kernel = kernels()[name].double()
    Y = Y[:, : num_outputs(kernel)]
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    ranges = bounds(kernel, X, Y)
    assert all(torch.equal(before[key], value) for key, value in kernel.state_dict().items())  # only looked at
    initialize_from_data(kernel, X, Y)
    assert ranges and all(torch.isfinite(parameter).all() for parameter in kernel.parameters())
    for key, (low, high) in ranges.items():
        value = kernel.constraint_for_parameter_name(key).transform(dict(kernel.named_parameters())[key])
        assert bool(((low > 0) & (low <= value) & (value <= high) & (high < torch.inf)).all()), key
    noise = initial_noise(Y)
    assert noise.shape == (Y.shape[1],) and bool((torch.isfinite(noise) & (noise > 0)).all())


@pytest.mark.parametrize("unit", [1e-8, 1e8])
@pytest.mark.parametrize("name", kernels())
def test_starts_follow_the_units_of_the_outputs_and_inputs(name, unit):
    X, Y = data(d=2)
    plain, scaled = kernels()[name].double(), kernels()[name].double()
    Y = Y[:, : num_outputs(plain)]
    initialize_from_data(plain, X, Y)
    initialize_from_data(scaled, unit * X, unit * Y)
    expected = unit**2 * average_variance(plain, X)
    assert average_variance(scaled, unit * X) == pytest.approx(expected, rel=1e-6)


def test_a_constant_output_has_a_small_variance_and_a_lone_one_its_own_size():
    _, Y = data()
    Y[:, 1] = 3.0
    variances = output_covariance(Y).diagonal()
    assert variances[1].item() == pytest.approx(1e-3 * variances[0].item(), rel=1e-9)
    assert output_covariance(torch.full((5, 1), 3.0)).item() == pytest.approx(9.0)
    assert output_covariance(torch.zeros(5, 2)).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_distances_of_one_row_are_one():
    assert (
        column_distances(torch.ones(1, 2)).median.tolist()
        == [1.0, 1.0]
        == column_distances(torch.ones(1, 2)).small.tolist()
    )


# --- what is not touched, and constraints -----------------------------------------------------------------------------------


def test_what_is_kept_fixed_is_left_alone_and_has_no_box():
    X, Y = data()
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2)).double()
    decomposable = kernel.base_kernel
    for parameter in (kernel.raw_outputscale, decomposable.output_module.loadings):
        parameter.requires_grad_(False)
    before = kernel.outputscale.item(), decomposable.output_module.loadings.clone()
    initialize_from_data(kernel, X, Y)
    assert kernel.outputscale.item() == before[0] and torch.equal(decomposable.output_module.loadings, before[1])
    assert set(bounds(kernel, X, Y)) == {
        "base_kernel.base_kernel.raw_lengthscale",
        "base_kernel.output_module.raw_diagonal",
    }


def test_a_start_stays_inside_a_constraint():
    X, Y = data()
    kernel = RBFKernel(lengthscale_constraint=Interval(0.1, 0.2)).double()
    initialize_from_data(kernel, X, Y[:, :1])
    assert 0.1 < kernel.lengthscale.item() < 0.2
    report = maximise(kernel, lambda: -kernel.lengthscale.square().sum(), bounds=bounds(kernel, X, Y[:, :1]))
    assert 0.1 <= kernel.lengthscale.item() < 0.11 and report.evaluations > 1


def test_the_boxes_are_relative_to_the_data():
    X, Y = data()
    kernel = IndependentKernel.copies(ScaleKernel(RBFKernel(ard_num_dims=3)), 2).double()
    found = bounds(kernel, X, Y)
    low, high = found["kernels.0.base_kernel.raw_lengthscale"]
    expected = np.array(medians(X))
    quantiles = [np.quantile([abs(a - b) for a, b in combinations(column, 2)], 0.05) for column in X.T.tolist()]
    np.testing.assert_allclose(low, 1e-2 * np.array(quantiles), rtol=1e-9)
    np.testing.assert_allclose(high, 1e3 * math.sqrt(3) * expected, rtol=1e-9)
    for a in range(2):
        low, high = found[f"kernels.{a}.raw_outputscale"]
        variance = Y[:, a].var().item()
        assert low.item() == pytest.approx(1e-8 * variance, rel=1e-9) and high.item() == pytest.approx(1e4 * variance)


# --- in a training ----------------------------------------------------------------------------------------------------------


def fitted_evidence(unit):
    X, _ = data(n=25, d=2, seed=3)
    Y = torch.stack([X[:, 0].sin(), (X[:, 0] + X[:, 1] / 20).cos()], -1) * unit
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1).double()
    noise = 0.01 * output_covariance(Y).diagonal().mean()
    initialize_from_data(kernel, X, Y)

    def evidence():
        K = kernel(X).to_dense() + noise * torch.eye(50, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(torch.zeros(50).double(), K).log_prob(Y.flatten())

    report = maximise(
        kernel, evidence, bounds=bounds(kernel, X, Y), sizes=sizes(kernel, X, Y), scale=50, tolerance=1e-8
    )
    return report.objective + 50 * math.log(unit), report


def test_units_of_the_outputs_do_not_matter_to_a_training():
    expected, report = fitted_evidence(1.0)
    assert report.converged
    for unit in (1e-6, 1e6):
        found, report = fitted_evidence(unit)
        assert report.converged and found == pytest.approx(expected, rel=1e-5)


# --- full output matrices -------------------------------------------------------------------------------------------------


def full_kernel(p=3):
    return DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(p)).double()


def correlated_outputs(n=60, units=(1.0, 100.0, 1e-3)):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[1.0, 0.8, -0.5], [0.0, 0.6, 0.3], [0.0, 0.0, 0.7]], dtype=torch.float64)
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 3, generator=generator, dtype=torch.float64) @ mixing * torch.tensor(units)


def test_a_full_matrix_starts_at_the_covariance_with_its_correlations_shrunk():
    kernel, (X, Y) = full_kernel(), correlated_outputs()
    initialize_from_data(kernel, X, Y)
    expected = torch.cov(Y.mT)
    expected = 0.9 * expected + 0.1 * torch.diag(expected.diagonal())
    torch.testing.assert_close(kernel.output_matrix.detach(), expected, rtol=1e-10, atol=0.0)


def test_a_full_matrix_starts_although_its_outputs_are_copies():
    kernel = full_kernel()
    X, Y = correlated_outputs()
    initialize_from_data(kernel, X, Y[:, :1].expand(-1, 3))
    assert torch.isfinite(kernel.output_matrix).all() and torch.linalg.eigvalsh(kernel.output_matrix.detach()).min() > 0


def test_a_full_matrix_that_is_kept_is_left_alone():
    kernel = full_kernel()
    kernel.output_module.requires_grad_(False)
    initialize_from_data(kernel, *correlated_outputs())
    assert torch.equal(kernel.output_matrix, torch.eye(3, dtype=torch.float64))


def test_the_box_and_the_steps_of_a_full_matrix_are_in_the_units_of_each_output():
    kernel, (X, Y) = full_kernel(), correlated_outputs()
    low, high = bounds(kernel, X, Y)["output_module.log_scale"]
    variances = torch.cov(Y.mT).diagonal()
    torch.testing.assert_close(low, 0.5 * (1e-8 * variances).log())
    torch.testing.assert_close(high, 0.5 * (1e4 * variances).log())
    torch.testing.assert_close(sizes(kernel, X, Y)["output_module.lower"], variances.sqrt()[[1, 2, 2]])


def test_a_full_matrix_is_trained_to_the_evidence_of_a_free_one_of_full_rank():
    X, Y = correlated_outputs(30)
    Y = Y + torch.cat([X.sin(), X.cos()], -1)[:, :3] * torch.tensor([3.0, 300.0, 3e-3])
    found = [
        OperatorValuedGP(kernel, noise="per_output").fit(X, Y, restarts=1, random_state=0).fit_report_.log_evidence
        for kernel in (full_kernel(), DecomposableKernel(RBFKernel(), num_outputs=3, rank=3))
    ]
    assert found[0] == pytest.approx(found[1], abs=0.5)
