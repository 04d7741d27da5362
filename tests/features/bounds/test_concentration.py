"""Tests of `ovkgp.features.bounds.concentration`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features import ORFF
from ovkgp.features.bounds import (
    bernstein_bound,
    kernel_variance,
    measured_error,
    pointwise_error_bound,
    required_features,
    spectral_constants,
    uniform_error_bound,
)
from ovkgp.features.bounds.concentration import block_norms, cover_constant
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    DivergenceFreeKernel,
    LaplaceKernel,
    SkewedChi2Kernel,
    SobolevKernel,
    block,
)
from ovkgp.kernels.groups import SkewedMultiplicativeGroup


def points(num=12, num_dims=2, seed=0):
    return 2 * torch.rand(num, num_dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1


def rbf(num_dims=2):
    kernel = RBFKernel(ard_num_dims=num_dims).double()
    kernel.lengthscale = 1.0
    return kernel


KERNELS = {
    "scalar": rbf(),
    "matern": MaternKernel(2.5, ard_num_dims=2).double(),
    "decomposable": DecomposableKernel(
        rbf(), output_matrix=torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    ),
    "curl-free": CurlFreeKernel(rbf()),
    "divergence-free": DivergenceFreeKernel(rbf()),
}


@pytest.mark.parametrize("name", KERNELS)
def test_measured_error_is_the_largest_norm_of_a_block(name, monkeypatch):
    kernel, X, maps = KERNELS[name], points(), []
    monkeypatch.setattr(
        "ovkgp.features.bounds.concentration.ORFF", lambda *a, **o: maps.append(ORFF(*a, **o)) or maps[-1]
    )
    found = measured_error(kernel, X, 30, repeats=3, random_state=0)
    p = 1 if name in ("scalar", "matern") else 2
    exact, errors = kernel(X).to_dense(), []
    for features in maps:
        Phi = features(X).to_dense()
        wrong = (Phi @ Phi.mT - exact).detach().numpy()
        blocks = [wrong[p * i : p * i + p, p * j : p * j + p] for i in range(12) for j in range(12)]
        errors.append(max(np.linalg.norm(block, 2) for block in blocks))
    size = np.linalg.norm(exact[:p, :p].detach().numpy(), 2)
    assert found == pytest.approx(np.mean(errors) / size, rel=1e-12)  # the same numbers in another order


@pytest.mark.parametrize("name", KERNELS)
def test_measured_error_decreases_as_the_square_root(name):
    sizes = (10, 100, 1000)
    errors = [measured_error(KERNELS[name], points(), size, repeats=10, random_state=1) for size in sizes]
    # ten maps a size: the slope of other seeds lies within 0.07 of a half
    assert np.polyfit(np.log(sizes), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.1)


def test_measured_error_is_invariant_to_scale_and_outputs():
    X = points()
    found = measured_error(rbf(), X, 50, random_state=3)
    many = DecomposableKernel(rbf(), output_matrix=torch.eye(5, dtype=torch.float64))
    large = ScaleKernel(rbf()).double()
    large.outputscale = 100.0
    assert measured_error(many, X, 50, random_state=3) == pytest.approx(found, rel=1e-9)
    assert measured_error(large, X, 50, random_state=3) == pytest.approx(found, rel=1e-9)


def test_measured_error_is_below_the_bound():
    X = points()
    diameter = torch.cdist(X, X).max().item()
    enough = required_features(rbf(), epsilon=0.5, delta=0.05, diameter=diameter)
    assert measured_error(rbf(), X, enough, repeats=10, random_state=0) < 0.5


def test_measured_error_is_reproducible():
    first, again, other = (measured_error(rbf(), points(), 20, random_state=seed) for seed in (0, 0, 1))
    assert first == again != other


def test_measured_error_rejects_invalid_arguments():
    with pytest.raises(InputError, match=r"\(n, d\)"):
        measured_error(rbf(), torch.zeros(3), 10)
    with pytest.raises(OptionError, match="repeats"):
        measured_error(rbf(), points(), 10, repeats=0)


def test_block_norms():
    gram = torch.arange(16.0).reshape(4, 4)
    norms = block_norms(gram, 2)
    assert norms.shape == (2, 2)
    assert norms[0, 1].item() == pytest.approx(np.linalg.norm(gram[:2, 2:].numpy(), 2))


GAMMA = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
SETTING = {"delta": 0.05, "diameter": 4.0}


def rbf_bounds_uniform(num_dims, lengthscale=1.0):
    kernel = RBFKernel(ard_num_dims=num_dims)
    kernel.lengthscale = lengthscale
    return kernel.double()


def kernels(num_dims=2):
    return [
        DecomposableKernel(rbf_bounds_uniform(num_dims), output_matrix=GAMMA),
        CurlFreeKernel(rbf_bounds_uniform(num_dims)),
        DivergenceFreeKernel(rbf_bounds_uniform(num_dims)),
    ]


# Reference values


@pytest.mark.parametrize(("epsilon", "expected"), [(0.5, 1353), (0.1, 41532), (0.05, 179437)])
@pytest.mark.parametrize("identity", [False, True])
def test_hoeffding_reference_values(epsilon, expected, identity):
    kernel = rbf_bounds_uniform(4)
    if identity:
        kernel = DecomposableKernel(kernel, output_matrix=torch.eye(3, dtype=torch.float64))
    assert required_features(kernel, epsilon, method="hoeffding", **SETTING) == expected
    # the inverse of the bound in closed form
    inverse = 24 / epsilon**2 * (math.log(2**8 * 4 * 16 / epsilon**2) + math.log(20))
    assert math.ceil(inverse) == expected


@pytest.mark.parametrize(("epsilon", "printed", "corrected"), [(0.5, 272, 871), (0.1, 5521, 20155)])
def test_bernstein_bounded_reference_values(epsilon, printed, corrected):
    for variant, expected in (("printed", printed), ("corrected", corrected)):
        found = required_features(
            rbf_bounds_uniform(4), epsilon, method="bernstein_bounded", variant=variant, **SETTING
        )
        assert found == expected


def test_bernstein_unbounded_reference_value():
    found = required_features(
        CurlFreeKernel(rbf_bounds_uniform(4)), 0.5, method="bernstein_unbounded", bounded=False, **SETTING
    )
    assert found == pytest.approx(2.4e5, rel=0.01)
    assert (
        required_features(CurlFreeKernel(rbf_bounds_uniform(4)), 0.5, **SETTING) < found / 40
    )  # hence the bounded map


def test_output_matrix_scales_the_bound():
    kernel = DecomposableKernel(rbf_bounds_uniform(2), output_matrix=3 * torch.eye(2, dtype=torch.float64))
    for method in ("hoeffding", "bernstein_bounded"):
        one = uniform_error_bound(rbf_bounds_uniform(2), 5000, 0.2, 1.0, method=method)
        three = uniform_error_bound(kernel, 5000, 0.6, 1.0, method=method)
        extra = 1 if method == "hoeffding" else 2 ** (1 / 3)  # p_int = 2
        assert three == pytest.approx(extra * one)
    scaled = ScaleKernel(rbf_bounds_uniform(2)).double()
    scaled.outputscale = 3.0
    assert uniform_error_bound(scaled, 5000, 0.6, 1.0) == pytest.approx(
        uniform_error_bound(rbf_bounds_uniform(2), 5000, 0.2, 1.0)
    )


# Shape


@pytest.mark.parametrize("variant", ["corrected", "printed"])
@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
def test_uniform_bound_is_monotone(kernel, bounded, variant):
    options = {"bounded": bounded, "variant": variant}
    enough = required_features(kernel, 0.5, 0.5, 2.0, **options)
    in_features = [uniform_error_bound(kernel, int(enough * s), 0.5, 2.0, **options) for s in (0.5, 1, 1.5, 2, 4)]
    assert in_features == sorted(in_features, reverse=True) and in_features[-1] < in_features[1] <= 0.5
    in_diameter = [uniform_error_bound(kernel, 2 * enough, 0.5, c, **options) for c in (0.0, 0.01, 1.0, 2.0, 4.0)]
    assert in_diameter == sorted(in_diameter) and in_diameter[2] < in_diameter[-1]
    in_epsilon = [uniform_error_bound(kernel, 2 * enough, e, 2.0, **options) for e in (0.1, 0.3, 0.5, 1.0, 3.0)]
    assert in_epsilon == sorted(in_epsilon, reverse=True) and in_epsilon[-1] < in_epsilon[0]
    assert all(0 <= value <= 1 for value in in_features + in_diameter + in_epsilon)


@pytest.mark.parametrize("variant", ["corrected", "printed"])
@pytest.mark.parametrize("method", ["auto", "bernstein_bounded", "bernstein_unbounded", "hoeffding"])
@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
def test_required_features_is_the_smallest(kernel, method, variant):
    if method == "hoeffding" and not isinstance(kernel, DecomposableKernel):
        with pytest.raises(OptionError, match="hoeffding"):
            required_features(kernel, 0.3, method=method)
        return
    for epsilon, delta, diameter in ((0.3, 0.1, 1.0), (1.0, 0.01, 3.0)):
        options = {"method": method, "variant": variant}
        enough = required_features(kernel, epsilon, delta, diameter, **options)
        assert uniform_error_bound(kernel, enough, epsilon, diameter, **options) <= delta
        assert uniform_error_bound(kernel, enough - 1, epsilon, diameter, **options) > delta


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
def test_auto_is_the_smallest_applicable_bound(kernel):
    methods = ["bernstein_bounded", "bernstein_unbounded"]
    methods += ["hoeffding"] if isinstance(kernel, DecomposableKernel) else []
    assert required_features(kernel, 0.4) == min(required_features(kernel, 0.4, method=m) for m in methods)


def test_zero_kernel_requires_one_feature():
    kernel = DecomposableKernel(rbf_bounds_uniform(2), output_matrix=torch.zeros(2, 2, dtype=torch.float64))
    assert required_features(kernel, 0.1) == 1 and uniform_error_bound(kernel, 1, 0.1, 1.0) == 0.0


@pytest.mark.parametrize(
    "kernel",
    [
        LaplaceKernel(ard_num_dims=2),
        DecomposableKernel(LaplaceKernel(ard_num_dims=2), num_outputs=2),
        SobolevKernel(order=1, ard_num_dims=2),
        MaternKernel(nu=0.5, ard_num_dims=2),
        CurlFreeKernel(MaternKernel(nu=1.5, ard_num_dims=2)),
        ScaleKernel(LaplaceKernel(ard_num_dims=2)) + RBFKernel(ard_num_dims=2),
    ],
    ids=lambda k: type(k).__name__,
)
@pytest.mark.parametrize("method", ["auto", "bernstein_bounded", "bernstein_unbounded"])
def test_infinite_moments_require_infinitely_many_features(kernel, method):
    assert required_features(kernel, 0.1, method=method) == math.inf
    assert uniform_error_bound(kernel, 10**9, 0.1, 1.0, method=method) == 1.0


def test_unbounded_map_has_no_bounded_bernstein_bound():
    kernel = CurlFreeKernel(rbf_bounds_uniform(2))
    assert required_features(kernel, 0.5, method="bernstein_bounded", bounded=False) == math.inf


def test_uniform_bound_requires_the_input_dimension():
    with pytest.raises(OptionError, match="num_dims"):
        required_features(RBFKernel(), 0.5)
    assert required_features(RBFKernel(), 0.5, num_dims=2) == required_features(RBFKernel(ard_num_dims=2), 0.5)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": math.inf}),
        ("diameter", {"diameter": -1.0}),
        ("method", {"method": "markov"}),
        ("variant", {"variant": "erroneous"}),
        ("lipschitz", {"lipschitz": -1.0}),
    ],
)
def test_uniform_bound_rejects_invalid_options(name, change):
    options = {"epsilon": 0.5, "diameter": 1.0, **change}
    with pytest.raises(OptionError, match=name):
        uniform_error_bound(rbf_bounds_uniform(2), 10, **options)
    with pytest.raises(OptionError, match=name):
        required_features(rbf_bounds_uniform(2), **options)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_required_features_reject_invalid_delta(delta):
    with pytest.raises(OptionError, match="delta"):
        required_features(rbf_bounds_uniform(2), 0.5, delta)


@pytest.mark.parametrize("num_frequencies", [0, -3, 1.5, math.nan])
def test_uniform_bound_rejects_invalid_num_frequencies(num_frequencies):
    with pytest.raises(OptionError, match="num_frequencies"):
        uniform_error_bound(rbf_bounds_uniform(2), num_frequencies, 0.5, 1.0)


def test_uniform_bound_rejects_kernels_that_are_not_shift_invariant():
    with pytest.raises(SpectralError):
        required_features(LinearKernel(), 0.5)


# What features really do


def errors(kernel, X, num_frequencies, num_draws, bounded=True):
    """max over pairs of rows of ‖K̃ − K‖, for `num_draws` draws of the features: (num_draws, n, n)."""
    n, p = len(X), block(kernel, X[0], X[0]).shape[-1]
    exact = kernel(X).to_dense()
    found = []
    for seed in range(num_draws):
        orff = ORFF(kernel, num_frequencies, bounded=bounded, random_state=seed)
        Phi = orff(X).to_dense()
        blocks = (Phi @ Phi.T - exact).detach().reshape(n, p, n, p).transpose(1, 2)
        found.append(torch.linalg.matrix_norm(blocks, ord=2))
    return torch.stack(found)


def grid(diameter, side=5):
    """A grid of points within a disc of the given diameter."""
    axis = torch.linspace(-diameter / 2, diameter / 2, side, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    return points[points.norm(dim=-1) <= diameter / 2 + 1e-9]


@pytest.mark.parametrize(("kernel", "epsilon"), list(zip(kernels(), (0.4, 0.8, 0.8), strict=True)))
def test_uniform_bound_holds_over_200_draws(kernel, epsilon):
    delta, diameter = 0.3, 1.0
    enough = required_features(kernel, epsilon, delta, diameter)
    worst = errors(kernel, grid(diameter), enough, 200).amax((1, 2))
    assert (worst >= epsilon).double().mean() <= uniform_error_bound(kernel, enough, epsilon, diameter) <= delta


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
@pytest.mark.parametrize(
    ("method", "bounded"),
    [("dimension", True), pytest.param("intrinsic", True, marks=pytest.mark.slow), ("orlicz", False)],
)
@pytest.mark.slow
def test_pointwise_bounds_hold(kernel, method, bounded):
    X = torch.tensor([[0.0, 0.0], [0.8, -0.4], [1.5, 1.0]], dtype=torch.float64)
    found = errors(kernel, X, 60, 300, bounded)
    observed = False
    for row in (0, 1, 2):
        for epsilon in (0.1, 0.3, 0.6, 1.0, 2.0):
            frequency = float((found[:, row, 0] >= epsilon).double().mean())
            bound = pointwise_error_bound(kernel, X[row], 60, epsilon, method=method, bounded=bounded)
            assert frequency <= bound + 3 * math.sqrt(bound * (1 - bound) / 300)
            observed |= bound < 1
    assert observed or method == "orlicz"  # that one is too loose for 60 features


def test_orlicz_bound_is_informative_for_many_features():
    kernel, lag = CurlFreeKernel(rbf_bounds_uniform(2)), torch.tensor([0.5, 0.2])
    bounds = [pointwise_error_bound(kernel, lag, D, 0.5, method="orlicz", bounded=False) for D in (10**3, 10**4, 10**5)]
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < 1e-6
    assert pointwise_error_bound(kernel, lag, 10**5, 0.5, bounded=False) == 1.0  # the norm of A has no bound


def test_bernstein_bound_is_two_sided():
    variance = torch.ones(1, 1)  # one random sign: |X| = 1 surely
    assert bernstein_bound(variance, 1.0, 1.0, method="dimension") == 1.0
    assert bernstein_bound(variance, 1.0, 1.0, method="dimension", variant="printed") == pytest.approx(math.exp(-3 / 8))


def test_bernstein_bound_formulas():
    V, U, epsilon = torch.diag(torch.tensor([0.04, 0.01])), 0.05, 0.9
    decay = math.exp(-(epsilon**2) / (2 * 0.04 + 2 * U * epsilon / 3))
    assert bernstein_bound(V, U, epsilon, method="dimension") == pytest.approx(4 * decay)
    assert bernstein_bound(V, U, epsilon, method="intrinsic") == pytest.approx(4 * 1.25 * decay)
    assert bernstein_bound(V, U, 0.2, method="intrinsic") == 1.0  # below √‖V‖ + U/3
    kappa = math.log(32 * math.sqrt(2)) + math.log(100 * 0.01**2 / 0.04)
    threshold = 0.04 / 0.02 * 1.5 / kappa
    for epsilon in (0.7 * threshold, 1.5 * threshold):
        tail = 1 + 3 / (epsilon * math.log1p(epsilon / 0.04)) ** 2
        exponent = epsilon**2 / (2 * 0.04 * 1.5) if epsilon < threshold else epsilon / (4 * 0.01 * kappa)
        found = bernstein_bound(V, 0.01, epsilon, method="orlicz", num_terms=100)
        assert found == pytest.approx(2 * 1.25 * tail * math.exp(-exponent), rel=1e-5) and found < 1  # V is in float32


def test_bernstein_bound_rejects_invalid_arguments():
    with pytest.raises(OptionError, match="method"):
        bernstein_bound(torch.eye(2), 1.0, 1.0, method="chebyshev")
    with pytest.raises(OptionError, match="size"):
        bernstein_bound(torch.eye(2), 0.0, 1.0, method="dimension")
    with pytest.raises(InputError, match="ψ₁"):
        bernstein_bound(torch.eye(2), 1e-6, 1.0, method="orlicz")


# Errata


def test_bt_e_19_the_skewed_group_needs_its_lipschitz_constant():
    c, lower = torch.tensor([0.5, 0.2], dtype=torch.float64), torch.tensor([0.1, 0.4], dtype=torch.float64)
    constant = SkewedMultiplicativeGroup(c).lipschitz(lower)
    generator = torch.Generator().manual_seed(0)
    delta = lower + torch.rand(1000, 2, generator=generator, dtype=torch.float64)
    omega = torch.randn(1000, 2, generator=generator, dtype=torch.float64)
    steepness = (omega / (delta + c)).norm(dim=-1)  # of δ ↦ ⟨ω, log(δ + c)⟩
    assert (steepness <= constant * omega.norm(dim=-1)).all()
    printed = omega.norm(dim=-1) / (lower.norm() + c.max())
    assert (steepness > printed).any()
    kernel = SkewedChi2Kernel(ard_num_dims=2, c=c)
    plain, steep = spectral_constants(kernel), spectral_constants(kernel, lipschitz=constant)
    assert steep.slope == pytest.approx(constant * plain.slope)
    assert required_features(kernel, 0.2, lipschitz=constant) > required_features(kernel, 0.2)


def test_bt_e_20_the_constant_exceeds_its_printed_bound():
    for d, value in ((2, 12.0), (3, 11.80), (4, 11.49)):
        printed_step = cover_constant(d) * 2 ** (d / (d + 1))
        assert printed_step == pytest.approx(value, abs=0.01) and printed_step > 8 * math.sqrt(2)
    r = torch.linspace(0.01, 20, 200_000, dtype=torch.float64)
    for d in (1, 3, 6):  # the least of 4(r + r^−d), which the thesis bounds by 8√2
        assert float((4 * (r + r**-d)).min()) == pytest.approx(cover_constant(d), rel=1e-6)


def explicit(kernel, num_frequencies, epsilon, diameter, cover):
    """Cor. 5.3 from its constants, with the covering number (cover · |C|/r)^d."""
    c = spectral_constants(kernel)
    d, u = c.num_dims, c.sup_norm + c.kernel_norm
    exponent = num_frequencies * epsilon**2 / (8 * (d + 1) * (c.variance + u * epsilon / 6))
    reach = (cover * c.slope * diameter / epsilon) ** (d / (d + 1))
    return cover_constant(d) * reach * c.intrinsic_dim ** (1 / (d + 1)) * math.exp(-exponent)


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
def test_bt_e_21_lags_fill_a_ball_whose_radius_is_the_diameter(kernel):
    found = uniform_error_bound(kernel, 20_000, 0.5, 2.0, method="bernstein_bounded")
    assert found == pytest.approx(explicit(kernel, 20_000, 0.5, 2.0, cover=4))
    assert found > explicit(kernel, 20_000, 0.5, 2.0, cover=2)


@pytest.mark.parametrize("kernel", kernels(), ids=lambda k: type(k).__name__)
def test_bt_e_22_errors_at_ball_centers_are_bounded_at_half_epsilon(kernel):
    epsilon, c = 0.5, spectral_constants(kernel)
    u, d, D = c.sup_norm + c.kernel_norm, c.num_dims, 8000

    def rate(variant):
        options = {"method": "bernstein_bounded", "variant": variant}
        values = (uniform_error_bound(kernel, n, epsilon, 2.0, **options) for n in (D, D + 1000))
        return math.log(next(values) / next(values)) / 1000

    assert rate("corrected") == pytest.approx(epsilon**2 / (8 * (d + 1) * (c.variance + u * epsilon / 6)))
    assert rate("printed") == pytest.approx(epsilon**2 / (2 * (d + 1) * (c.variance + u * epsilon / 3)))
    # each center at ε/2 is Bernstein's inequality at ε/2, to the power 1/(d + 1)
    half = math.exp(-((epsilon / 2) ** 2) / (2 * c.variance / D + 2 * u / D * epsilon / 6))
    assert D * rate("corrected") == pytest.approx(-math.log(half) / (d + 1))


def test_variance_in_the_bound_dominates_that_of_every_lag():
    for kernel in kernels():
        for bounded in (True, False):
            v = spectral_constants(kernel, bounded=bounded).variance
            for length in (0.0, 0.3, 1.0, 2.0, 5.0):
                variance = kernel_variance(kernel, torch.tensor([length, length / 2]), bounded=bounded)
                assert torch.linalg.matrix_norm(variance, ord=2) <= v * (1 + 1e-9)
