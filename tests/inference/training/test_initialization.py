"""Tests of the priors in `ovkgp.inference.training.initialization` and `roles`."""

import math
import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from gp_cases import KERNELS
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.priors import GammaPrior, NormalPrior
from linear_operator import to_dense
from oracles import OUTPUTS, operator_valued
from scipy import stats

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF, ORFFKernel
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.mean_noise import OutputNoise
from ovkgp.inference.sampling.prior_predictive import draw_prior, set_parameters
from ovkgp.inference.training.initialization import register_data_priors, register_default_priors, register_noise_prior
from ovkgp.inference.training.maximize import maximize
from ovkgp.inference.training.priors import (
    LogPrior,
    output_prior,
    prior_sites,
)
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import (
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
    FreeMatrix,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    HelmholtzKernel,
    IndependentKernel,
    MeanRegularizedMatrix,
    TransformableKernel,
    WarpedKernel,
    num_outputs,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def standardize(values):
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
    with_prior = {id(one) for site in prior_sites(gp) for one in site.parameters.values()}
    return [name for name, one in gp.named_parameters() if one.requires_grad and id(one) not in with_prior]


# --- coverage -------------------------------------------------------------------------------------------------------


class Nested(Kernel):
    """A custom kernel with kernels in a list and another parameter."""

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
def test_data_priors_cover_every_trained_parameter(name, mean):
    gp = registered(EVERY[name](), mean=mean, noise="full" if mean == "linear" else "per_output")
    assert without_prior(gp) == []
    drawn = draw_prior(gp, 3, random_state=0)
    for index in range(3):
        set_parameters(gp, drawn, index)
        assert torch.isfinite(LogPrior(gp, jacobian=True)())
        assert torch.isfinite(to_dense(gp.kernel(normal(3, 2)))).all()


@pytest.mark.parametrize("noise", ["shared", "per_output", "full"])
def test_data_priors_cover_every_noise(noise):
    gp = registered(operator_valued("decomposable"), noise=noise)
    assert without_prior(gp) == []


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean(2), LinearMean(2, bias=False)])
def test_data_priors_cover_gpytorch_means(mean):
    assert without_prior(registered(operator_valued("decomposable"), mean=mean)) == []


def test_data_priors_of_learned_frequencies_are_standard_normal():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
    gp = model(kernel, features=ORFF(kernel, 4, learn_frequencies=True, random_state=0))
    register_data_priors(gp, *some_data(kernel))
    assert without_prior(gp) == []
    (site,) = [site for site in prior_sites(gp) if site.name.startswith("features.")]
    assert (site.prior.loc.item(), site.prior.scale.item()) == (0.0, 1.0)


def test_data_priors_of_classes_and_counts_have_unit_scale():
    X, rates = normal(40, 2), normal(40, 2, seed=1)
    Y = torch.stack([(rates[:, 0] > 0.5).double(), 100 * rates[:, 1]], -1)
    gp = VariationalGP(
        IndependentKernel([ScaleKernel(RBFKernel()), ScaleKernel(RBFKernel())]), ["bernoulli", "laplace"]
    )
    register_data_priors(gp, X, Y)
    classes, values = (part.outputscale_prior.loc.item() for part in gp.kernel.kernels)
    assert classes == 0.0 and values == pytest.approx(2 * Y[:, 1].std().log().item(), rel=1e-10)
    initial = gp.likelihood.initial_latent(Y)
    torch.testing.assert_close(gp.mean.constant_prior.loc, torch.stack([initial[0], Y[:, 1].mean()]))
    assert all(name.startswith("likelihood.") for name in without_prior(gp))


# --- units ----------------------------------------------------------------------------------------------------------


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
        set_parameters(gp, drawn, index)
        noise = to_dense(gp.noise_model.matrix()).detach()
        found.append((to_dense(gp.kernel(X)).detach(), noise, gp.mean(X).detach()))
    return found


def assert_priors_are_equivariant(kernel, inputs, shift, outputs, level, mean="constant"):
    """A draw of the priors is the same model in other units."""
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
def test_data_priors_are_equivariant_to_units(name):
    kernel = INVARIANT[name]()
    p = num_outputs(kernel)
    assert_priors_are_equivariant(kernel, torch.tensor([1e3, 1e-4]), torch.tensor([7.0, -3.0]), [50.0, 1e-3][:p], 2.0)


@pytest.mark.parametrize("name", ONE_SCALE)
def test_data_priors_are_equivariant_to_one_common_scale(name):
    kernel = ONE_SCALE[name]()
    shift = 0.0 if name in ("linear", "polynomial") else 5.0  # those two have an origin
    assert_priors_are_equivariant(kernel, 200.0, shift, 0.03, -1.0)


def test_data_priors_of_slopes_are_equivariant_to_units():
    assert_priors_are_equivariant(INVARIANT["icm"](), torch.tensor([10.0, 0.1]), 0.0, [4.0, 0.5], 0.0, mean="linear")


def test_data_prior_of_constant_is_wide_far_from_origin():
    X, Y = normal(40, 1) + 1000, normal(40, 1)
    gp = registered(RBFKernel(), X, Y, mean="linear")
    width = gp.mean.constant_prior.scale.item()
    assert width == pytest.approx(
        2 * Y.std().item() * math.hypot(1, X.mean().item() / X.std(correction=0).item()), rel=1e-10
    )


def test_data_priors_equal_default_priors_for_standardized_data():
    X, Y = standardize(normal(30, 3)), standardize(normal(30, 2, seed=1))
    kernel = IndependentKernel([ScaleKernel(RBFKernel(ard_num_dims=3)), ScaleKernel(MaternKernel())])
    gp, default = registered(deepcopy(kernel), X, Y * math.sqrt(29 / 30)), model(kernel)
    register_default_priors(default.kernel, num_dims=3)
    register_noise_prior(default.noise_model)
    here, there = ({site.name: site.prior for site in prior_sites(one)} for one in (gp, default))
    assert set(here) - set(there) == {"mean.constant_prior"}
    for name, prior in there.items():
        for part in ("loc", "scale"):
            np.testing.assert_allclose(getattr(here[name], part), getattr(prior, part), atol=1e-12)


def test_data_priors_scale_with_each_output():
    X, Y = some_data(operator_valued("decomposable"))
    Y = Y * torch.tensor([1.0, 100.0, 1e-3])
    gp = registered(operator_valued("decomposable"), X, Y)
    deviations, matrix = Y.std(0), gp.kernel.output_module
    torch.testing.assert_close(matrix.loadings_prior.scale.squeeze(-1), deviations)
    torch.testing.assert_close(matrix.diagonal_prior.loc, 2 * deviations.log() - 1)
    torch.testing.assert_close(gp.noise_model.variances_prior.loc, 2 * deviations.log() + math.log(0.1))
    torch.testing.assert_close(gp.mean.constant_prior.loc, Y.mean(0))
    torch.testing.assert_close(gp.mean.constant_prior.scale, 2 * deviations)


# --- existing priors and fixed parameters ---------------------------------------------------------------------------


def test_data_priors_keep_custom_priors():
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


def test_default_priors_keep_custom_priors():
    mine, theirs = GammaPrior(2.0, 3.0), NormalPrior(0.0, 5.0)
    kernel = ScaleKernel(
        DecomposableKernel(RBFKernel(lengthscale_prior=mine), output_matrix=FreeMatrix(2, prior=theirs)),
        outputscale_prior=GammaPrior(1.0, 1.0),
    )
    before = {name: prior for name, _, prior, _, _ in kernel.named_priors()}
    register_default_priors(kernel, num_dims=1)
    assert {name: prior for name, _, prior, _, _ in kernel.named_priors()} == before


def test_data_priors_are_idempotent():
    gp = registered(operator_valued("lmc"), noise="full")
    before = {site.name: site.prior for site in prior_sites(gp)}
    register_data_priors(gp, 100 * normal(20, 2), 100 * normal(20, 3))
    assert {site.name: site.prior for site in prior_sites(gp)} == before


def test_default_priors_are_idempotent():
    kernel = ScaleKernel(RBFKernel())
    register_default_priors(kernel, num_dims=1)
    value = LogPrior(kernel)()
    register_default_priors(kernel, num_dims=9)
    assert torch.equal(LogPrior(kernel)(), value)


def test_data_priors_skip_fixed_parameters():
    gp = model(ScaleKernel(RBFKernel()), mean="zero", noise=0.1)
    gp.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    register_data_priors(gp, *some_data(gp.kernel))
    assert [site.name for site in prior_sites(gp)] == ["kernel.outputscale_prior"]


def test_default_priors_skip_fixed_parameters():
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    register_default_priors(kernel, num_dims=1)
    assert [name for name, *_ in kernel.named_priors()] == ["outputscale_prior"]
    fixed = OutputNoise(0.1, num_outputs=2)
    register_noise_prior(fixed)
    assert LogPrior(fixed)().item() == 0.0


def test_data_priors_use_another_name_if_taken():
    kernel = RBFKernel().double()
    kernel.register_prior("lengthscale_prior", NormalPrior(0.0, 1.0), lambda k: torch.zeros(()))  # on nothing
    gp = registered(kernel)
    assert without_prior(gp) == [] and "data_lengthscale_prior" in gp.kernel._priors


def test_data_priors_register_shared_parameters_once():
    base = RBFKernel()
    gp = registered(IndependentKernel([ScaleKernel(base), ScaleKernel(base)]))
    names = [site.name for site in prior_sites(gp) if "lengthscale" in site.name]
    assert len(names) == 1 and without_prior(gp) == []


# --- degenerate and invalid data ------------------------------------------------------------------------------------


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
def test_data_priors_are_finite_for_degenerate_data(X, Y):
    gp = registered(operator_valued("decomposable"), X, Y, mean="linear", noise="full")
    for site in prior_sites(gp):
        numbers = torch.cat([buffer.reshape(-1) for buffer in site.prior.buffers()])
        assert torch.isfinite(numbers).all()
    assert torch.isfinite(LogPrior(gp, jacobian=True)())


@pytest.mark.parametrize(
    ("X", "Y", "message"),
    [
        (torch.full((4, 2), torch.nan), torch.ones(4, 3), "X .*NaN"),
        (normal(4, 2), torch.full((4, 3), torch.nan), "every entry of Y is missing"),
        (normal(4, 2), normal(4, 2), r"Y .*shape .*\(n, 3\)"),
    ],
)
def test_data_priors_reject_invalid_data(X, Y, message):
    with pytest.raises(InputError, match=message):
        registered(operator_valued("decomposable"), X, Y)


# --- default priors -------------------------------------------------------------------------------------------------


def locations(kernel):
    """Twice the location of every lengthscale prior minus that of one column: the logarithm of the number of columns."""
    return {
        name: 2 * (prior.loc.item() - 0.35)
        for name, _, prior, _, _ in kernel.named_priors()
        if name.endswith("lengthscale_prior")
    }


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
def test_default_prior_of_lengthscale_grows_with_number_of_columns(make, expected):
    kernel = make()
    register_default_priors(kernel, num_dims=7)
    (location,) = locations(kernel).values()
    assert location == pytest.approx(math.log(expected), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("tasks", "expected"), [(None, [6, 1]), (torch.randn(4, 3), [7, 3])])
def test_default_priors_separate_inputs_and_tasks(tasks, expected):
    kernel = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=tasks)
    register_default_priors(kernel, num_dims=7)
    found = locations(kernel)
    assert found["input_kernel.lengthscale_prior"] == pytest.approx(math.log(expected[0]), abs=1e-6)
    assert found["task_kernel.lengthscale_prior"] == pytest.approx(math.log(expected[1]), abs=1e-6)


def test_default_prior_of_field_is_unit_variance_times_squared_lengthscale():
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=3))
    register_default_priors(kernel, num_dims=3)
    for part in (kernel.curl, kernel.div):
        assert part.outputscale_prior.loc.item() == pytest.approx(2 * 0.35 + math.log(3), rel=1e-12)
        assert part.outputscale_prior.scale.item() == pytest.approx(math.hypot(1, 2 * 0.8), rel=1e-12)


def normal_in_log(value, loc, scale):
    return stats.norm(loc, scale).logpdf(np.log(value))


@pytest.mark.parametrize("kind", ["shared", "per_output", "full"])
def test_noise_prior_is_on_variances(kind):
    noise = OutputNoise(kind, num_outputs=3)
    noise.set(torch.full((), 0.2).double() if kind == "shared" else torch.tensor([0.2, 0.01, 3.0]).double())
    register_noise_prior(noise)
    expected = normal_in_log(noise.variances.detach().numpy(), math.log(0.1), 1.5).sum()
    if kind == "full":  # its correlations are LKJ(2), and here zero
        expected += (
            torch.distributions.LKJCholesky(3, torch.tensor(2.0).double()).log_prob(torch.eye(3).double()).item()
        )
    assert LogPrior(noise)().item() == pytest.approx(expected, rel=1e-12)


def test_noise_prior_keeps_noise_positive():
    noise = OutputNoise("shared", num_outputs=1)
    register_noise_prior(noise)
    report = maximize(noise, lambda: LogPrior(noise)() - 0.5 * noise.value.log(), tolerance=1e-10)
    # the mode of θ^(−1/2) p(log θ) in log θ: log 0.1 − 1.5² / 2
    assert report.converged and noise.value.log().item() == pytest.approx(math.log(0.1) - 1.5**2 / 2, rel=1e-6)


# --- the log prior --------------------------------------------------------------------------------------------------


def test_log_prior_sums_densities():
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=2)).double()
    register_default_priors(kernel, num_dims=3)
    base, matrix = kernel.base_kernel.base_kernel, kernel.base_kernel.output_module
    base.lengthscale, kernel.outputscale = torch.tensor([0.5, 2.0, 30.0]), 1.7
    expected = sum(normal_in_log(value, 0.35 + math.log(3) / 2, 0.8) for value in base.lengthscale[0].tolist())
    expected += normal_in_log(kernel.outputscale.item(), 0.0, 1.0)
    expected += stats.norm.logpdf(matrix.loadings.detach().numpy()).sum()
    expected += normal_in_log(matrix.diagonal.detach().numpy(), -1.0, 1.5).sum()
    assert LogPrior(kernel)().item() == pytest.approx(expected, rel=1e-12)


def test_log_prior_is_differentiable():
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2)).double()
    register_default_priors(kernel, num_dims=1)
    parameters = list(kernel.parameters())
    raw = [parameter.detach().clone() for parameter in parameters]

    def at(*values):
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value.data
        return LogPrior(kernel)()

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


def test_log_prior_is_zero_without_priors():
    assert LogPrior(RBFKernel())().item() == 0.0


def test_log_prior_counts_shared_kernel_once():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    both = torch.nn.ModuleDict({"a": kernel, "b": DecomposableKernel(kernel, output_matrix=torch.eye(2))})
    assert LogPrior(both)().item() == LogPrior(kernel)().item()


def test_log_prior_is_nan_for_nan_values():
    kernel = RBFKernel().double()
    register_default_priors(kernel, num_dims=1)
    kernel.raw_lengthscale.data.fill_(torch.nan)
    assert torch.isnan(LogPrior(kernel)())  # and not an error, so that a training can step back


# --- copies ---------------------------------------------------------------------------------------------------------


def with_all_priors():
    kernel = HelmholtzKernel(RBFKernel(ard_num_dims=2)) + ScaleKernel(DecomposableKernel(MaternKernel(), num_outputs=2))
    register_default_priors(kernel, num_dims=2)
    noise = OutputNoise("per_output", num_outputs=2)
    register_noise_prior(noise)
    return torch.nn.ModuleDict({"kernel": kernel, "noise": noise}).double()


@pytest.mark.parametrize("copy", [deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_priors_survive_copy_and_pickle(copy):
    module = with_all_priors()
    again = copy(module)
    assert LogPrior(again)().item() == LogPrior(module)().item()
    again["kernel"].kernels[0].outputscale = 5.0
    assert LogPrior(again)().item() != LogPrior(module)().item()  # the copy reads its own parameters


def test_priors_survive_state_dict():
    module, other = with_all_priors(), with_all_priors()
    module["kernel"].kernels[0].outputscale = 5.0
    other.load_state_dict(module.state_dict())
    assert LogPrior(other)().item() == LogPrior(module)().item()


def test_priors_set_the_value_they_read():
    for module in with_all_priors().modules():
        for prior, closure, setter in getattr(module, "_priors", {}).values():
            value = prior.sample(closure(module).shape).double()
            setter(module, value)
            torch.testing.assert_close(closure(module).detach(), value, rtol=1e-6, atol=1e-12)


def test_output_prior_selects_entry():
    gp = registered(operator_valued("independent"), normal(20, 2), normal(20, 3) * torch.tensor([1.0, 10.0, 100.0]))
    prior = gp.noise_model.variances_prior
    for index in range(3):
        alone = output_prior(prior, index)
        assert (alone.loc.item(), alone.scale.item()) == (prior.loc[index].item(), prior.scale[index].item())
    gamma = GammaPrior(2.0, 3.0)
    assert output_prior(gamma, 1) is gamma
