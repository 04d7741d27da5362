"""Priors in the units of the data: on every trained parameter, the same beliefs in any units, and the user's own kept."""

import math
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

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.sampling.prior_predictive import draw_prior, place
from ovkgp.inference.training.initialization import register_data_priors, register_default_priors, register_noise_prior
from ovkgp.inference.training.log_prior import raw_log_prior
from ovkgp.inference.training.prior_sites import output_prior, prior_sites
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import (
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
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
    start = gp.likelihood.latent_start(Y)
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
