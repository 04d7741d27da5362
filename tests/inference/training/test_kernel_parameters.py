"""Tests of `ovkgp.inference.training.kernel_parameters`, and of the initial values and bounds that follow from it."""

import math
from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import (
    ConstantKernel,
    LCMKernel,
    LinearKernel,
    MaternKernel,
    MultitaskKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from ovkgp.features import ORFF, ORFFKernel
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.training.initialization import initialize
from ovkgp.inference.training.kernel_parameters import Units, column_distances, output_covariance, row_distances
from ovkgp.inference.training.maximize import maximize
from ovkgp.inference.training.roles import initialize_kernel
from ovkgp.kernels import (
    CurlFreeKernel,
    CyclicGroup,
    DecomposableKernel,
    Delay,
    DivergenceFreeKernel,
    FullMatrix,
    FunctionValuedKernel,
    GaussianCurveKernel,
    HelmholtzKernel,
    IndependentKernel,
    LaplaceKernel,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
    num_outputs,
)


def set_from_data(kernel, X, Y):
    """Initialize a kernel in place, and return the bounds by identity."""
    return initialize_kernel(kernel, Units.of(X, output_covariance(Y)))


def bounds_of(kernel, X, Y):
    """Return the bounds by name; the kernel is not changed."""
    kernel = deepcopy(kernel)
    found = set_from_data(kernel, X, Y)
    return {name: found[id(parameter)] for name, parameter in kernel.named_parameters() if id(parameter) in found}


def scales_of(kernel, X, Y):
    """Return the scales of the parameters of a kernel by name."""
    gp = OperatorValuedGP(kernel, mean="zero")
    return {name.removeprefix("kernel."): scale for name, scale in initialize(gp, gp.observe(X, Y)).scales.items()}


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


# --- lengthscales ---------------------------------------------------------------------------------------------------


def test_lengthscale_starts_at_median_distance():
    X, Y = data()
    kernel = RBFKernel().double()
    set_from_data(kernel, X, Y[:, :1])
    assert kernel.lengthscale.item() == pytest.approx(median_distance(X), rel=1e-9)


def test_ard_lengthscales_start_at_scaled_column_medians():
    X, Y = data()
    kernel = MaternKernel(ard_num_dims=3).double()
    set_from_data(kernel, X, Y[:, :1])
    np.testing.assert_allclose(kernel.lengthscale.detach().flatten(), math.sqrt(3) * np.array(medians(X)), rtol=1e-9)


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, ScaleKernel, lambda kernel: CurlFreeKernel(kernel)])
def test_initialization_respects_active_dims(wrap):
    X, Y = data(d=4)
    kernel = wrap(RBFKernel(active_dims=(3, 0), ard_num_dims=2)).double()
    set_from_data(kernel, X, Y[:, : num_outputs(kernel)])
    inner = getattr(kernel, "base_kernel", kernel)
    expected = math.sqrt(2) * np.array(medians(X[:, [3, 0]]))
    np.testing.assert_allclose(inner.lengthscale.detach().flatten(), expected, rtol=1e-9)
    assert torch.isfinite(kernel(X).to_dense()).all()


def test_initialization_composes_active_dims():
    X, Y = data(d=4)
    product = RBFKernel(active_dims=(0, 2), ard_num_dims=2) * RBFKernel(active_dims=(1,))
    kernel = ScaleKernel(product, active_dims=(3, 1, 0)).double()
    set_from_data(kernel, X, Y[:, :1])
    first, second = kernel.base_kernel.kernels
    expected = math.sqrt(2) * np.array(medians(X[:, [3, 0]]))  # columns 0 and 2 of columns 3, 1, 0
    np.testing.assert_allclose(first.lengthscale.detach().flatten(), expected, rtol=1e-9)
    assert second.lengthscale.item() == pytest.approx(medians(X[:, [1]])[0], rel=1e-9)


def test_lengthscale_of_binary_and_constant_columns():
    X = torch.stack([(torch.arange(30) % 5 == 0).double(), torch.full((30,), 7.0).double()], -1)
    kernel = RBFKernel(ard_num_dims=2).double()
    set_from_data(kernel, X, X[:, :1])
    torch.testing.assert_close(kernel.lengthscale.detach(), torch.full((1, 2), math.sqrt(2)).double())
    low, high = bounds_of(kernel, X, X[:, :1])["raw_lengthscale"]
    assert low.tolist() == [0.01, 0.01] and high.tolist() == pytest.approx([1e3 * math.sqrt(2)] * 2)


@pytest.mark.parametrize("make", [LaplaceKernel, RQKernel, SobolevKernel])
def test_initialization_of_any_kernel_with_lengthscale(make):
    X, Y = data()
    kernel = ScaleKernel(make(ard_num_dims=3)).double()
    set_from_data(kernel, X, Y[:, :1])
    np.testing.assert_allclose(
        kernel.base_kernel.lengthscale.detach().flatten(), math.sqrt(3) * np.array(medians(X)), rtol=1e-9
    )
    assert average_variance(kernel, X) == pytest.approx(Y[:, 0].var().item(), rel=1e-9)  # also where k(x, x) is not 1


def test_lengthscale_of_curve_kernel_is_per_grid_point():
    X = torch.randn(30, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kernel = GaussianCurveKernel().double()
    set_from_data(kernel, X, X[:, :1])
    assert kernel.lengthscale.item() == pytest.approx(median_distance(X) / math.sqrt(50), rel=1e-9)


def test_period_starts_at_median_distance():
    X, Y = data(d=1)
    kernel = PeriodicKernel().double()
    before = kernel.lengthscale.item()
    set_from_data(kernel, X, Y[:, :1])
    assert kernel.period_length.item() == pytest.approx(medians(X)[0], rel=1e-9) and kernel.lengthscale.item() == before


# --- variances ------------------------------------------------------------------------------------------------------


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
        lambda: FunctionValuedKernel(RBFKernel(), ScaleKernel(RBFKernel())),
        lambda: ScaleKernel(WarpedKernel(DecomposableKernel(RBFKernel(), 2), CyclicGroup([5.0, 5.0]))),
    ],
)
def test_prior_variance_matches_output_variance(make):
    X, Y = data(d=2)
    kernel = make().double()
    Y = Y[:, : num_outputs(kernel)]
    set_from_data(kernel, X, Y)
    # the diagonal of an output matrix has a floor of 1e-3, hence not exactly
    assert average_variance(kernel, X) == pytest.approx(Y.var(0).mean().item(), rel=5e-3)
    if num_outputs(kernel) > 1:  # the evidence can be evaluated there
        assert torch.isfinite(kernel(X).to_dense()).all()


def test_terms_of_sum_split_variance_and_vary_lengthscales():
    X, Y = data()
    kernel = sum((ScaleKernel(RBFKernel()) for _ in range(2)), ScaleKernel(RBFKernel())).double()
    set_from_data(kernel, X, Y[:, :1])
    lengthscales = torch.cat([part.base_kernel.lengthscale.detach().flatten() for part in kernel.kernels])
    np.testing.assert_allclose(lengthscales / median_distance(X), [1.0, 0.4, 0.16], rtol=1e-9)
    for part in kernel.kernels:
        assert part.outputscale.item() == pytest.approx(Y[:, 0].var().item() / 3, rel=1e-9)


def test_terms_of_long_sum_have_bounded_lengthscales():
    X, Y = data()
    kernel = sum((RBFKernel() for _ in range(11)), RBFKernel()).double()
    set_from_data(kernel, X, Y[:, :1])
    assert kernel.kernels[-1].lengthscale.item() == pytest.approx(0.064 * median_distance(X), rel=1e-9)


def test_output_matrix_starts_at_principal_components():
    X, Y = data(n=500, p=3)
    kernel = DecomposableKernel(RBFKernel(), num_outputs=3, rank=2).double()
    set_from_data(kernel, X, Y)
    covariance = np.cov(Y.numpy().T)
    deviations = np.sqrt(covariance.diagonal())
    values, vectors = np.linalg.eigh(covariance / np.outer(deviations, deviations))
    shared = 0.9 * (vectors[:, 1:] * values[1:]) @ vectors[:, 1:].T * np.outer(deviations, deviations)
    loadings = kernel.output_module.loadings.detach()
    np.testing.assert_allclose(loadings @ loadings.mT, shared, rtol=1e-8)
    assert (loadings.gather(0, loadings.abs().argmax(0, keepdim=True)) > 0).all()
    np.testing.assert_allclose(kernel.output_matrix.detach().diagonal(), covariance.diagonal(), rtol=1e-8)


def test_independent_outputs_start_from_their_columns():
    X, Y = data(p=3)
    Y = Y * torch.tensor([1e-4, 1.0, 1e4])
    kernel = IndependentKernel.copies(ScaleKernel(RBFKernel()), 3).double()
    set_from_data(kernel, X, Y)
    np.testing.assert_allclose([part.outputscale.item() for part in kernel.kernels], Y.var(0), rtol=1e-8)


def test_initial_noise_is_tenth_of_variance():
    X, Y = data(p=3)
    gp = OperatorValuedGP(IndependentKernel.copies(RBFKernel(), 3)).initialize(X, Y)
    torch.testing.assert_close(gp.noise.detach(), 0.1 * Y.var(0), rtol=1e-9, atol=0)


# --- full output matrices -------------------------------------------------------------------------------------------


def full_kernel(p=3):
    return DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(p)).double()


def correlated_outputs(n=60, units=(1.0, 100.0, 1e-3)):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.tensor([[1.0, 0.8, -0.5], [0.0, 0.6, 0.3], [0.0, 0.0, 0.7]], dtype=torch.float64)
    X = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    return X, torch.randn(n, 3, generator=generator, dtype=torch.float64) @ mixing * torch.tensor(units)


def test_full_matrix_starts_at_shrunk_covariance():
    kernel, (X, Y) = full_kernel(), correlated_outputs()
    set_from_data(kernel, X, Y)
    expected = torch.cov(Y.mT)
    expected = 0.9 * expected + 0.1 * torch.diag(expected.diagonal())
    torch.testing.assert_close(kernel.output_matrix.detach(), expected, rtol=1e-10, atol=0.0)


def test_full_matrix_starts_positive_definite_for_equal_outputs():
    kernel = full_kernel()
    X, Y = correlated_outputs()
    set_from_data(kernel, X, Y[:, :1].expand(-1, 3))
    assert torch.isfinite(kernel.output_matrix).all() and torch.linalg.eigvalsh(kernel.output_matrix.detach()).min() > 0


def test_full_matrix_is_kept_if_fixed():
    kernel = full_kernel()
    kernel.output_module.requires_grad_(False)
    set_from_data(kernel, *correlated_outputs())
    assert torch.equal(kernel.output_matrix, torch.eye(3, dtype=torch.float64))


def test_full_matrix_has_bounds_and_scales_in_output_units():
    kernel, (X, Y) = full_kernel(), correlated_outputs()
    low, high = bounds_of(kernel, X, Y)["output_module.log_scale"]
    variances = torch.cov(Y.mT).diagonal()
    torch.testing.assert_close(low, 0.5 * (1e-8 * variances).log())
    torch.testing.assert_close(high, 0.5 * (1e4 * variances).log())
    torch.testing.assert_close(scales_of(kernel, X, Y)["output_module.lower"], variances.sqrt()[[1, 2, 2]])


def test_full_matrix_trains_to_evidence_of_free_matrix_of_full_rank():
    X, Y = correlated_outputs(30)
    Y = Y + torch.cat([X.sin(), X.cos()], -1)[:, :3] * torch.tensor([3.0, 300.0, 3e-3])
    found = [
        OperatorValuedGP(kernel, noise="per_output").fit(X, Y, restarts=1, random_state=0).fit_report_.log_evidence
        for kernel in (full_kernel(), DecomposableKernel(RBFKernel(), num_outputs=3, rank=3))
    ]
    assert found[0] == pytest.approx(found[1], abs=0.5)


# --- degenerate data and units --------------------------------------------------------------------------------------


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
def test_initial_values_are_finite_and_within_bounds_for_degenerate_data(name, case):
    X, Y = DEGENERATE[case](*data(d=2))
    kernel = kernels()[name].double()
    Y = Y[:, : num_outputs(kernel)]
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    ranges = bounds_of(kernel, X, Y)
    assert all(torch.equal(before[key], value) for key, value in kernel.state_dict().items())  # not changed
    set_from_data(kernel, X, Y)
    assert ranges and all(torch.isfinite(parameter).all() for parameter in kernel.parameters())
    for key, (low, high) in ranges.items():
        value = kernel.constraint_for_parameter_name(key).transform(dict(kernel.named_parameters())[key])
        assert bool(((low > 0) & (low <= value) & (value <= high) & (high < torch.inf)).all()), key
    noise = output_covariance(Y).diagonal()
    assert noise.shape == (Y.shape[1],) and bool((torch.isfinite(noise) & (noise > 0)).all())


@pytest.mark.parametrize("unit", [1e-8, 1e8])
@pytest.mark.parametrize("name", kernels())
def test_initial_values_are_equivariant_to_units(name, unit):
    X, Y = data(d=2)
    kernel, scaled = kernels()[name].double(), kernels()[name].double()
    Y = Y[:, : num_outputs(kernel)]
    set_from_data(kernel, X, Y)
    set_from_data(scaled, unit * X, unit * Y)
    expected = unit**2 * average_variance(kernel, X)
    assert average_variance(scaled, unit * X) == pytest.approx(expected, rel=1e-6)


def fitted_evidence(unit):
    X, _ = data(n=25, d=2, seed=3)
    Y = torch.stack([X[:, 0].sin(), (X[:, 0] + X[:, 1] / 20).cos()], -1) * unit
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=1).double()
    noise = 0.01 * output_covariance(Y).diagonal().mean()
    set_from_data(kernel, X, Y)

    def evidence():
        K = kernel(X).to_dense() + noise * torch.eye(50, dtype=torch.float64)
        return torch.distributions.MultivariateNormal(torch.zeros(50).double(), K).log_prob(Y.flatten())

    report = maximize(
        kernel,
        evidence,
        bounds=bounds_of(kernel, X, Y),
        scales=scales_of(kernel, X, Y),
        scale=50,
        tolerance=1e-8,
    )
    return report.objective + 50 * math.log(unit), report


def test_training_is_equivariant_to_output_units():
    expected, report = fitted_evidence(1.0)
    assert report.converged
    for unit in (1e-6, 1e6):
        found, report = fitted_evidence(unit)
        assert report.converged and found == pytest.approx(expected, rel=1e-5)


# --- fixed parameters, constraints and bounds -----------------------------------------------------------------------


def test_fixed_parameters_are_kept_and_have_no_bounds():
    X, Y = data()
    kernel = ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=2)).double()
    decomposable = kernel.base_kernel
    for parameter in (kernel.raw_outputscale, decomposable.output_module.loadings):
        parameter.requires_grad_(False)
    before = kernel.outputscale.item(), decomposable.output_module.loadings.clone()
    set_from_data(kernel, X, Y)
    assert kernel.outputscale.item() == before[0] and torch.equal(decomposable.output_module.loadings, before[1])
    assert set(bounds_of(kernel, X, Y)) == {
        "base_kernel.base_kernel.raw_lengthscale",
        "base_kernel.output_module.raw_diagonal",
    }


def test_initial_values_respect_constraints():
    X, Y = data()
    kernel = RBFKernel(lengthscale_constraint=Interval(0.1, 0.2)).double()
    set_from_data(kernel, X, Y[:, :1])
    assert 0.1 < kernel.lengthscale.item() < 0.2
    report = maximize(kernel, lambda: -kernel.lengthscale.square().sum(), bounds=bounds_of(kernel, X, Y[:, :1]))
    assert 0.1 <= kernel.lengthscale.item() < 0.11 and report.evaluations > 1


def test_bounds_are_relative_to_data():
    X, Y = data()
    kernel = IndependentKernel.copies(ScaleKernel(RBFKernel(ard_num_dims=3)), 2).double()
    found = bounds_of(kernel, X, Y)
    low, high = found["kernels.0.base_kernel.raw_lengthscale"]
    expected = np.array(medians(X))
    quantiles = [np.quantile([abs(a - b) for a, b in combinations(column, 2)], 0.05) for column in X.T.tolist()]
    np.testing.assert_allclose(low, 1e-2 * np.array(quantiles), rtol=1e-9)
    np.testing.assert_allclose(high, 1e3 * math.sqrt(3) * expected, rtol=1e-9)
    for a in range(2):
        low, high = found[f"kernels.{a}.raw_outputscale"]
        variance = Y[:, a].var().item()
        assert low.item() == pytest.approx(1e-8 * variance, rel=1e-9) and high.item() == pytest.approx(1e4 * variance)


def test_row_distances_subsample_deterministically():
    X = torch.rand(5000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    once, again = row_distances(X).median, row_distances(X).median
    assert torch.equal(once, again) and once.item() == pytest.approx(0.512, rel=0.05)  # of the unit square


def test_column_distances_of_one_row_are_one():
    assert (
        column_distances(torch.ones(1, 2)).median.tolist()
        == [1.0, 1.0]
        == column_distances(torch.ones(1, 2)).small.tolist()
    )


def test_output_covariance_omits_missing_outputs_pairwise():
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


def test_output_covariance_of_constant_outputs_is_positive():
    _, Y = data()
    Y[:, 1] = 3.0
    variances = output_covariance(Y).diagonal()
    assert variances[1].item() == pytest.approx(1e-3 * variances[0].item(), rel=1e-9)
    assert output_covariance(torch.full((5, 1), 3.0)).item() == pytest.approx(9.0)
    assert output_covariance(torch.zeros(5, 2)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
